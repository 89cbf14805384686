//! The layout of the memory object, and the two rings in it as streams of frames.
//!
//! Words that one side writes often stand 128 bytes from those of the other: CPUs fetch cache lines in pairs.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use nereid_memory::Segment;
use nereid_queue::frames::Memory;

/// The first bytes of the greeting and of the object.
pub const MAGIC: [u8; 8] = *b"NRDIPC01";
pub const VERSION: u32 = 1;
/// Bytes of the object before the rings.
pub const HEADER_BYTES: usize = 4096;
/// Bytes of the greeting on the socket.
pub const HELLO_BYTES: usize = 24;
/// Routes that a client may define: one is a method with its metadata.
pub const ROUTES_MAX: usize = 64;
/// Capacities of a ring.
pub const RING_BYTES_MIN: usize = 64 << 10;
pub const RING_BYTES_MAX: usize = 16 << 20;
/// Bytes of the arena's name.
const NAME_BYTES_MAX: usize = 256;
/// The beginnings of rings and arena are multiples of this.
const PAGE_BYTES: usize = 4096;

/// Where the words and the facts stand.
mod at {
    pub const VERSION: usize = 8;
    pub const HEADER: usize = 12;
    pub const SIZE: usize = 16;
    pub const REQUESTS: usize = 24;
    pub const RESPONSES: usize = 40;
    pub const ARENA: usize = 56;
    pub const NAME_BYTES: usize = 72;
    pub const ROUTES: usize = 76;
    pub const NAME: usize = 80;
    pub const REQUEST_HEAD: usize = 512;
    pub const REQUEST_TAIL: usize = 640;
    pub const RESPONSE_HEAD: usize = 768;
    pub const RESPONSE_TAIL: usize = 896;
    pub const SERVER_BELL: usize = 1024;
    pub const CLIENT_BELL: usize = 1152;
    pub const EMPTIED: usize = 1280;
}

/// The sizes that the server sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Of each of the two rings; a power of two from [`RING_BYTES_MIN`] to [`RING_BYTES_MAX`].
    pub ring_bytes: usize,
    pub arena_bytes: usize,
}

/// Why an object cannot be used by a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    #[error("the object is none of a shared-memory ring")]
    Magic,
    #[error("the server speaks version {0} of the shared-memory ring, and this client version {VERSION}")]
    Version(u32),
    #[error("parts of the object do not lie in it")]
    Parts,
}

/// Where everything lies in an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    pub size: usize,
    /// Offset and capacity of each ring.
    pub requests: (usize, usize),
    pub responses: (usize, usize),
    /// Offset and size.
    pub arena: (usize, usize),
    /// The name of the arena in requests.
    pub name: Vec<u8>,
}

impl Layout {
    /// The layout of a new object; `None`: the sizes are not allowed.
    pub fn new(sizes: Sizes, name: &[u8]) -> Option<Layout> {
        let Sizes { ring_bytes, arena_bytes } = sizes;
        let is_ring = ring_bytes.is_power_of_two() && (RING_BYTES_MIN..=RING_BYTES_MAX).contains(&ring_bytes);
        if !is_ring || name.len() > NAME_BYTES_MAX {
            return None;
        }
        let arena_at = HEADER_BYTES + 2 * ring_bytes;
        Some(Layout {
            size: arena_at.checked_add(arena_bytes)?.checked_next_multiple_of(PAGE_BYTES)?,
            requests: (HEADER_BYTES, ring_bytes),
            responses: (HEADER_BYTES + ring_bytes, ring_bytes),
            arena: (arena_at, arena_bytes),
            name: name.to_vec(),
        })
    }

    /// Writes what the header says about it; false if the object is too small.
    #[must_use]
    pub fn write(&self, segment: &Segment) -> bool {
        let word = |at: usize, value: usize| segment.write(at, &(value as u64).to_le_bytes());
        let half = |at: usize, value: u32| segment.write(at, &value.to_le_bytes());
        let pair = |at: usize, (offset, len): (usize, usize)| word(at, offset) && word(at + 8, len);
        segment.write(at::NAME, &self.name)
            && half(at::NAME_BYTES, self.name.len() as u32)
            && half(at::ROUTES, ROUTES_MAX as u32)
            && half(at::VERSION, VERSION)
            && half(at::HEADER, HEADER_BYTES as u32)
            && word(at::SIZE, self.size)
            && pair(at::REQUESTS, self.requests)
            && pair(at::RESPONSES, self.responses)
            && pair(at::ARENA, self.arena)
            && segment.write(0, &MAGIC)
    }

    /// What the header of an object says, for a client.
    pub fn read(segment: &Segment) -> Result<Layout, LayoutError> {
        let mut head = Vec::new();
        if !segment.read(0, at::NAME + NAME_BYTES_MAX, &mut head) || !head.starts_with(&MAGIC) {
            return Err(LayoutError::Magic);
        }
        let half = |at: usize| head.get(at..at + 4).and_then(|four| four.try_into().ok()).map_or(0, u32::from_le_bytes);
        let word = |at: usize| head.get(at..at + 8).and_then(|all| all.try_into().ok()).map_or(0, u64::from_le_bytes);
        if half(at::VERSION) != VERSION {
            return Err(LayoutError::Version(half(at::VERSION)));
        }
        let pair = |at: usize| (usize::try_from(word(at)).ok()).zip(usize::try_from(word(at + 8)).ok());
        let is_inside = |(at, len): (usize, usize)| at.checked_add(len).is_some_and(|end| end <= segment.len());
        let part = |at: usize| pair(at).filter(|part| is_inside(*part)).ok_or(LayoutError::Parts);
        let ring =
            |at: usize| part(at).and_then(|ring| ring.1.is_power_of_two().then_some(ring).ok_or(LayoutError::Parts));
        let name = head.get(at::NAME..at::NAME + half(at::NAME_BYTES) as usize).ok_or(LayoutError::Parts)?;
        Ok(Layout {
            size: segment.len(),
            requests: ring(at::REQUESTS)?,
            responses: ring(at::RESPONSES)?,
            arena: part(at::ARENA)?,
            name: name.to_vec(),
        })
    }

    /// The ring of frames to the server.
    pub fn request_ring(&self, segment: &Arc<Segment>) -> Ring {
        let (at, capacity) = self.requests;
        Ring { segment: Arc::clone(segment), head: at::REQUEST_HEAD, tail: at::REQUEST_TAIL, at, capacity }
    }

    /// The ring of frames to the client.
    pub fn response_ring(&self, segment: &Arc<Segment>) -> Ring {
        let (at, capacity) = self.responses;
        Ring { segment: Arc::clone(segment), head: at::RESPONSE_HEAD, tail: at::RESPONSE_TAIL, at, capacity }
    }
}

/// By which the server is woken.
pub(super) fn server_bell(segment: &Segment) -> &AtomicU64 {
    segment.word(at::SERVER_BELL)
}

/// By which the client is woken.
pub(super) fn client_bell(segment: &Segment) -> &AtomicU64 {
    segment.word(at::CLIENT_BELL)
}

/// Where the word stands that is 1 before the server empties what lies behind the header.
pub(super) const EMPTIED_AT: usize = at::EMPTIED;

/// One ring of an object.
#[derive(Debug)]
pub struct Ring {
    segment: Arc<Segment>,
    head: usize,
    tail: usize,
    at: usize,
    capacity: usize,
}

impl Memory for Ring {
    fn head(&self) -> &AtomicU64 {
        self.segment.word(self.head)
    }

    fn tail(&self) -> &AtomicU64 {
        self.segment.word(self.tail)
    }

    fn capacity(&self) -> usize {
        self.capacity
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        let is_inside = self.segment.write(self.at + at, bytes);
        debug_assert!(is_inside);
    }

    fn read(&self, at: usize, len: usize, bytes: &mut Vec<u8>) {
        let is_inside = self.segment.read(self.at + at, len, bytes);
        debug_assert!(is_inside);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_reads_what_the_server_wrote() {
        let sizes = Sizes { ring_bytes: RING_BYTES_MIN, arena_bytes: 100_000 };
        let layout = Layout::new(sizes, b"nereid-ipc/5d").unwrap();
        let segment = Segment::create(layout.size).unwrap();
        assert_eq!(Layout::read(&segment), Err(LayoutError::Magic));
        assert!(layout.write(&segment));
        assert_eq!(Layout::read(&segment), Ok(layout.clone()));
        assert!(layout.size.is_multiple_of(PAGE_BYTES) && layout.arena.0.is_multiple_of(PAGE_BYTES));
        assert!(segment.write(at::VERSION, &7u32.to_le_bytes()));
        assert_eq!(Layout::read(&segment), Err(LayoutError::Version(7)));
        assert!(layout.write(&segment) && segment.write(at::ARENA + 8, &(1u64 << 40).to_le_bytes()));
        assert_eq!(Layout::read(&segment), Err(LayoutError::Parts));
    }

    #[test]
    fn rings_are_powers_of_two_within_their_bounds() {
        let of = |ring_bytes| Layout::new(Sizes { ring_bytes, arena_bytes: 0 }, b"");
        assert!(of(RING_BYTES_MIN).is_some() && of(RING_BYTES_MAX).is_some());
        for wrong in [0, RING_BYTES_MIN / 2, RING_BYTES_MIN + 8, RING_BYTES_MAX * 2] {
            assert!(of(wrong).is_none(), "{wrong}");
        }
        assert!(Layout::new(Sizes { ring_bytes: RING_BYTES_MIN, arena_bytes: usize::MAX }, b"").is_none());
    }
}
