//! The memory that ordinary receives land in: a fixed number of equal chunks, lent one at a time.
//!
//! Idle connections hold no receive memory: a chunk is chosen when bytes are there. For io_uring the free chunks lie in
//! a ring that is shared with the kernel, which takes them from there by itself (`IORING_REGISTER_PBUF_RING`,
//! io_uring_register(2)); for epoll they lie on a stack.

use std::cell::{Cell, RefCell};
use std::io;
use std::ops::Deref;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::types::BufRingEntry;

use super::sys;

/// Bytes of one chunk.
pub const CHUNK_BYTES: usize = 16 * 1024;
const PAGE: usize = 4096;
const MOST_CHUNKS: usize = 1 << 15;

/// Received bytes in a chunk of the engine, which takes it back when this is dropped.
pub struct Chunk {
    chunks: Rc<Chunks>,
    index: u16,
    len: usize,
}

/// All chunks of an engine. They outlive the engine while a [`Chunk`] is held.
pub(super) struct Chunks {
    memory: Region,
    count: usize,
    /// Chunks that are lent.
    out: Cell<usize>,
    free: FreeChunks,
}

/// Chunks for an engine of a simulation, which has no socket to receive from.
#[cfg(any(test, feature = "testing"))]
pub struct ReceiveChunks(Rc<Chunks>);

#[cfg(any(test, feature = "testing"))]
impl ReceiveChunks {
    pub fn new(count: usize) -> ReceiveChunks {
        ReceiveChunks(Chunks::on_stack(count).expect("a test has memory"))
    }

    /// A chunk that `fill` has written so many bytes to; `None` while all are lent.
    pub fn fill(&self, fill: impl FnOnce(&mut [u8]) -> usize) -> Option<Chunk> {
        self.0.fill(|bytes| Ok::<_, std::convert::Infallible>(fill(bytes))).and_then(Result::ok)
    }

    /// Chunks that are lent.
    pub fn lent(&self) -> usize {
        self.0.count() - self.0.free()
    }
}

enum FreeChunks {
    Stack(RefCell<Vec<u16>>),
    Kernel { ring: Region, tail: Cell<u16> },
}

impl Chunks {
    fn clamp(count: usize) -> usize {
        count.clamp(1, MOST_CHUNKS).next_power_of_two()
    }

    /// Chunks whose free ones lie on a stack. An error where the system has no memory for them.
    pub(super) fn on_stack(count: usize) -> io::Result<Rc<Chunks>> {
        let count = Chunks::clamp(count);
        let free = FreeChunks::Stack(RefCell::new((0..count).rev().map(|index| index as u16).collect()));
        Ok(Rc::new(Chunks { memory: Region::zeroed(count * CHUNK_BYTES)?, count, out: Cell::new(0), free }))
    }

    /// Chunks whose free ones lie in a ring for the kernel. The ring has [`Chunks::count`] entries.
    pub(super) fn in_ring(count: usize) -> io::Result<Rc<Chunks>> {
        let count = Chunks::clamp(count);
        let ring = Region::zeroed(count * size_of::<BufRingEntry>())?;
        let free = FreeChunks::Kernel { ring, tail: Cell::new(0) };
        let chunks = Chunks { memory: Region::zeroed(count * CHUNK_BYTES)?, count, out: Cell::new(0), free };
        (0..count).for_each(|index| chunks.put_back(index as u16));
        Ok(Rc::new(chunks))
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Chunks that are not lent.
    pub(super) fn free(&self) -> usize {
        self.count - self.out.get()
    }

    /// Address of the ring, for the kernel.
    pub(super) fn ring_address(&self) -> Option<u64> {
        match &self.free {
            FreeChunks::Stack(_) => None,
            FreeChunks::Kernel { ring, .. } => Some(ring.start.as_ptr() as u64),
        }
    }

    /// Takes a chunk off the stack and lets `fill` write to it; the number of bytes that it returns are lent.
    pub(super) fn fill<E>(
        self: &Rc<Self>,
        fill: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Option<Result<Chunk, E>> {
        let FreeChunks::Stack(free) = &self.free else { return None };
        let index = free.borrow_mut().pop()?;
        self.out.set(self.out.get() + 1);
        let mut chunk = Chunk { chunks: Rc::clone(self), index, len: 0 };
        // SAFETY: the chunk was free, only this code has its index, and its memory was zeroed when it was mapped.
        let bytes = unsafe { std::slice::from_raw_parts_mut(self.at(index).as_ptr(), CHUNK_BYTES) };
        Some(fill(bytes).map(|len| {
            chunk.len = len.min(CHUNK_BYTES);
            chunk
        }))
    }

    /// The kernel took chunk `index` from the ring and wrote `len` bytes to it.
    ///
    /// # Safety
    /// The kernel reported it in a completion that is not used twice: no other code has the chunk.
    pub(super) unsafe fn taken(self: &Rc<Self>, index: u16, len: usize) -> Chunk {
        assert!(usize::from(index) < self.count, "the kernel chose a chunk that it was not given");
        self.out.set(self.out.get() + 1);
        Chunk { chunks: Rc::clone(self), index, len: len.min(CHUNK_BYTES) }
    }

    fn at(&self, index: u16) -> NonNull<u8> {
        // SAFETY: all indices are below `count`, so this lies in the region.
        unsafe { self.memory.start.add(usize::from(index) * CHUNK_BYTES) }
    }

    fn put_back(&self, index: u16) {
        match &self.free {
            FreeChunks::Stack(free) => free.borrow_mut().push(index),
            FreeChunks::Kernel { ring, tail } => {
                let base = ring.start.as_ptr().cast::<BufRingEntry>();
                let at = usize::from(tail.get()) & (self.count - 1);
                // SAFETY: `at` is below the number of entries. There are as many entries as chunks, and this chunk is
                // not in the ring, so the kernel is done with what was here.
                let entry = unsafe { &mut *base.add(at) };
                entry.set_addr(self.at(index).as_ptr() as u64);
                entry.set_len(CHUNK_BYTES as u32);
                entry.set_bid(index);
                tail.set(tail.get().wrapping_add(1));
                // SAFETY: the base is the ring's first entry, whose last field is the tail that the kernel reads.
                let shared_tail = unsafe { &*BufRingEntry::tail(base).cast::<AtomicU16>() };
                shared_tail.store(tail.get(), Ordering::Release);
            }
        }
    }
}

impl Deref for Chunk {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: these bytes were written before the chunk was lent, and neither kernel nor engine writes to it until
        // it is back.
        unsafe { std::slice::from_raw_parts(self.chunks.at(self.index).as_ptr(), self.len) }
    }
}

impl Drop for Chunk {
    #[inline]
    fn drop(&mut self) {
        self.chunks.out.set(self.chunks.out.get() - 1);
        self.chunks.put_back(self.index);
    }
}

impl std::fmt::Debug for Chunk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Chunk({} bytes)", self.len)
    }
}

/// Page-aligned, zeroed memory, directly from the system: untouched pages take no memory. The allocator would have
/// zeroed aligned memory by hand, and so made all of it resident before the first connection came.
struct Region {
    start: NonNull<u8>,
    bytes: usize,
}

impl Region {
    fn zeroed(bytes: usize) -> io::Result<Region> {
        let bytes = bytes.next_multiple_of(PAGE);
        let start = sys::map_private(bytes).ok_or_else(|| {
            let text = format!(
                "the system gives no {bytes} bytes for the buffers that an I/O thread receives into: raise the limit \
                 on the memory or the addresses of the process (ulimit -v), or start fewer I/O threads (--io-cores)"
            );
            io::Error::new(io::ErrorKind::OutOfMemory, text)
        })?;
        Ok(Region { start, bytes })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: mapped with this size, and the chunks that own the region drop it after the last window on it.
        unsafe { sys::unmap(self.start, self.bytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_lent_and_come_back() {
        let chunks = Chunks::on_stack(2).unwrap();
        let lend = |byte: u8| {
            chunks.fill(|bytes| {
                bytes[..3].fill(byte);
                Ok::<_, ()>(3)
            })
        };
        let first = lend(1).unwrap().unwrap();
        let second = lend(2).unwrap().unwrap();
        assert!(lend(3).is_none() && chunks.free() == 0);
        assert_eq!((&*first, &*second), (&[1; 3][..], &[2; 3][..]));
        drop(first);
        assert_eq!(chunks.free(), 1);
        assert_eq!(chunks.fill(|_| Err("no")).unwrap().unwrap_err(), "no");
        assert_eq!(chunks.free(), 1, "a failed fill keeps nothing");
        assert_eq!(&*second, &[2; 3]);
    }

    /// Pages of the chunks count as memory when something was received into them, not before.
    #[test]
    fn untouched_chunks_take_no_memory() {
        let chunks = Chunks::on_stack(64).unwrap();
        assert_eq!(chunks.memory.start.as_ptr() as usize % PAGE, 0);
        assert_eq!(sys::resident_pages(chunks.memory.start, chunks.memory.bytes).unwrap(), 0);
        let chunk = chunks.fill(|bytes| {
            bytes[0] = 1;
            Ok::<_, ()>(1)
        });
        let resident = sys::resident_pages(chunks.memory.start, chunks.memory.bytes).unwrap();
        // More than one only where the system hands out huge pages.
        assert!((1..=64 * CHUNK_BYTES / PAGE).contains(&resident), "{resident}");
        drop(chunk);
    }

    #[test]
    fn memory_that_the_system_does_not_give_is_an_error() {
        // More than a process has addresses.
        let error = Region::zeroed(1 << 50).map(|region| region.bytes).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::OutOfMemory);
        assert!(error.to_string().contains("no 1125899906842624 bytes"), "{error}");
    }

    #[test]
    fn a_chunk_outlives_its_engine() {
        let chunks = Chunks::on_stack(1).unwrap();
        let chunk = chunks.fill(|bytes| Ok::<_, ()>(bytes.len())).unwrap().unwrap();
        drop(chunks);
        assert_eq!(chunk.len(), CHUNK_BYTES);
    }

    #[test]
    fn the_ring_names_every_chunk_once() {
        let chunks = Chunks::in_ring(3).unwrap();
        assert_eq!(chunks.count(), 4);
        let base = chunks.ring_address().unwrap() as *const BufRingEntry;
        let mut named: Vec<u16> = (0..4)
            .map(|at| {
                // SAFETY: four entries were written.
                unsafe { &*base.add(at) }.bid()
            })
            .collect();
        named.sort_unstable();
        assert_eq!(named, [0, 1, 2, 3]);
        // SAFETY: there is no kernel here that could take it a second time.
        let chunk = unsafe { chunks.taken(2, 5) };
        assert_eq!((chunk.len(), chunks.free()), (5, 3));
        drop(chunk);
        assert_eq!(chunks.free(), 4);
        assert!(chunks.fill(|_| Ok::<_, ()>(0)).is_none());
    }
}
