//! [`Gather`]: bytes to send, in order, with small pieces copied together and large ones held by reference.

use std::collections::VecDeque;
use std::io::IoSlice;

use super::{BlockMut, Pool, Slice};

/// Pieces shorter than this are cheaper to copy than to carry as a gather entry of their own.
const COPY_BELOW: usize = 1024;
/// Memory for small writes; the first of it is less, because most of many connections at rest have sent little.
const CHUNK: usize = 16 * 1024;
const FIRST_CHUNK: usize = 2 * 1024;

/// A queue of bytes made of owned slices, ready for a gathered send.
#[derive(Default)]
pub struct Gather {
    /// Before everything in `sealed`; most gathers have no more than this, and so no list.
    front: Slice,
    sealed: VecDeque<Slice>,
    /// Small writes collect here until a large piece or a send seals them.
    open: Option<BlockMut>,
    /// The first chunk is used up.
    is_busy: bool,
    len: usize,
}

impl Gather {
    pub fn new() -> Gather {
        Gather::default()
    }

    /// Bytes waiting.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies `bytes` to the end. Memory comes from `pool`, even where its bound is reached: short replies to accepted
    /// requests must not fail, and the writer of a long one checks the bound as it goes ([`Pool::check`]).
    pub fn put(&mut self, pool: &Pool, mut bytes: &[u8]) {
        self.len += bytes.len();
        while !bytes.is_empty() {
            let is_first = !self.is_busy && bytes.len() <= FIRST_CHUNK;
            let open = self.open.get_or_insert_with(|| {
                let mut block = pool.get_anyway(if is_first { FIRST_CHUNK } else { CHUNK });
                block.set_len(0);
                block
            });
            let taken = open.append(bytes);
            bytes = &bytes[taken..];
            if !bytes.is_empty() {
                self.seal();
                self.open = None;
                self.is_busy = true;
            }
        }
    }

    /// Copies `parts` to the end, one behind the other.
    pub fn put_all(&mut self, pool: &Pool, parts: &[&[u8]]) {
        let len = parts.iter().map(|part| part.len()).sum();
        if let Some(open) = self.open.as_mut().filter(|open| open.spare() >= len) {
            self.len += len;
            for part in parts {
                open.append(part);
            }
            return;
        }
        parts.iter().for_each(|part| self.put(pool, part));
    }

    /// Appends `slice` without copying it, unless it is so short that copying is cheaper.
    pub fn push(&mut self, pool: &Pool, slice: Slice) {
        if slice.len() < COPY_BELOW {
            return match slice.shared() {
                Some(shared) => {
                    let mut copy = [0; COPY_BELOW];
                    let len = shared.copy_to(0, &mut copy);
                    self.put(pool, &copy[..len])
                }
                None => self.put(pool, &slice),
            };
        }
        self.push_whole(slice);
    }

    /// Appends `slice` without copying it, however short it is.
    pub fn push_whole(&mut self, slice: Slice) {
        self.seal();
        self.len += slice.len();
        self.append_sealed(slice);
    }

    /// Appends all of `other`, which is empty afterwards, as [`Gather::push`] does with each of its pieces.
    pub fn push_all(&mut self, pool: &Pool, other: &mut Gather) {
        other.seal();
        other.len = 0;
        let front = std::mem::take(&mut other.front);
        if !front.is_empty() {
            self.push(pool, front);
        }
        while let Some(slice) = other.sealed.pop_front() {
            self.push(pool, slice);
        }
    }

    fn append_sealed(&mut self, slice: Slice) {
        if slice.is_empty() {
            return;
        }
        match self.front.is_empty() && self.sealed.is_empty() {
            true => self.front = slice,
            false => self.sealed.push_back(slice),
        }
    }

    /// Moves everything of `other` behind what is here.
    pub fn append(&mut self, other: &mut Gather) {
        self.seal();
        other.seal();
        self.len += std::mem::take(&mut other.len);
        self.append_sealed(std::mem::take(&mut other.front));
        if self.front.is_empty() && self.sealed.is_empty() {
            self.front = other.sealed.pop_front().unwrap_or_default();
        }
        self.sealed.append(&mut other.sealed);
    }

    fn seal(&mut self) {
        if let Some(open) = &mut self.open
            && !open.is_empty()
        {
            let len = open.len();
            let sealed = open.split_to(len);
            if open.spare() < 64 {
                self.open = None;
                self.is_busy = true;
            }
            self.append_sealed(sealed);
        }
    }

    /// Takes up to `max_pieces` slices from the front for one send operation.
    pub fn take(&mut self, max_pieces: usize, into: &mut Vec<Slice>) {
        self.seal();
        if max_pieces == 0 {
            return;
        }
        let mut left = max_pieces;
        let front = std::mem::take(&mut self.front);
        if !front.is_empty() {
            left -= 1;
            self.len -= front.len();
            into.push(front);
        }
        let n = self.sealed.len().min(left);
        for slice in self.sealed.drain(..n) {
            self.len -= slice.len();
            into.push(slice);
        }
    }

    /// Everything as one vector; for tests and small messages.
    pub fn to_vec(&mut self) -> Vec<u8> {
        self.seal();
        let mut all = Vec::with_capacity(self.len);
        self.pieces().for_each(|slice| slice.append_to(&mut all));
        all
    }

    /// The pieces in the form that the system call takes.
    pub fn io_slices(&mut self) -> Vec<IoSlice<'_>> {
        self.seal();
        self.pieces().map(|slice| IoSlice::new(slice)).collect()
    }

    fn pieces(&self) -> impl Iterator<Item = &Slice> {
        std::iter::once(&self.front).filter(|front| !front.is_empty()).chain(&self.sealed)
    }

    /// Gives back the memory that an empty one keeps for the next bytes.
    pub fn rest(&mut self) {
        if self.is_empty() {
            *self = Gather::new();
        }
    }

    pub fn clear(&mut self) {
        self.front = Slice::empty();
        self.sealed.clear();
        self.open = None;
        self.is_busy = false;
        self.len = 0;
    }
}

impl std::fmt::Debug for Gather {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Gather({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_one_at_rest_holds_no_memory() {
        let pool = Pool::new(1 << 20);
        let (mut gather, mut pieces) = (Gather::new(), Vec::new());
        gather.put(&pool, b"one");
        gather.rest();
        assert_eq!((gather.len(), gather.to_vec()), (3, b"one".to_vec()), "what waits stays");
        gather.take(usize::MAX, &mut pieces);
        pieces.clear();
        let kept = pool.bytes_in_use();
        gather.rest();
        assert!(kept > 0 && pool.bytes_in_use() == 0, "{kept}, then {}", pool.bytes_in_use());
        gather.put(&pool, b"two");
        assert_eq!(gather.to_vec(), b"two");
    }

    #[test]
    fn little_is_written_to_a_small_chunk() {
        let pool = Pool::new(1 << 20);
        let mut gather = Gather::new();
        gather.put(&pool, &[1; 1500]);
        let small = pool.bytes_in_use();
        gather.put(&pool, &[2; 1500]);
        assert!(small < CHUNK && pool.bytes_in_use() > CHUNK, "{small}, then {}", pool.bytes_in_use());
        assert_eq!(gather.to_vec(), [[1; 1500], [2; 1500]].concat());
        let mut large = Gather::new();
        large.put(&pool, &[3; 3000]);
        assert_eq!(large.io_slices().len(), 1);
    }

    #[test]
    fn order_is_kept_and_large_pieces_are_not_copied() {
        let pool = Pool::new(1 << 20);
        let mut gather = Gather::new();
        let large = Slice::copy_of(&[9; 4000]);
        gather.put(&pool, b"head");
        gather.push(&pool, large.clone());
        gather.put(&pool, b"tail");
        gather.push(&pool, Slice::from_static(b"!"));
        assert_eq!(gather.len(), 4 + 4000 + 5);
        let mut pieces = Vec::new();
        gather.take(8, &mut pieces);
        assert!(gather.is_empty());
        assert_eq!(pieces.len(), 3);
        assert!(pieces[1].same_memory(&large));
        assert_eq!((&*pieces[0], &*pieces[2]), (&b"head"[..], &b"tail!"[..]));
    }

    /// Against one vector: whatever is put, pushed, appended and taken, bytes stay in order and counted.
    #[test]
    fn any_order_of_calls_keeps_the_bytes() {
        let pool = Pool::new(1 << 24);
        let mut state = 7u64;
        let mut random = move |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        let (mut gather, mut model, mut taken) = (Gather::new(), Vec::new(), Vec::new());
        for round in 0..3000u32 {
            let mut bytes = |most: u64| vec![round as u8; random(most) as usize];
            let (short, long) = (bytes(40), bytes(3000));
            match round % 8 {
                0 => gather.put(&pool, &short),
                7 => gather.put_all(&pool, &[&short, &long, b""]),
                1 => gather.push(&pool, Slice::copy_of(&long)),
                2 => gather.push_whole(Slice::copy_of(&short)),
                3 | 4 => {
                    let mut other = Gather::new();
                    other.push_whole(Slice::copy_of(&short));
                    other.put(&pool, &long);
                    other.push_whole(Slice::copy_of(&long));
                    match round % 8 {
                        3 => gather.append(&mut other),
                        _ => gather.push_all(&pool, &mut other),
                    }
                    assert!(other.is_empty() && other.to_vec().is_empty());
                }
                _ => {
                    let mut pieces = Vec::new();
                    gather.take(random(4) as usize, &mut pieces);
                    pieces.iter().for_each(|piece| taken.extend_from_slice(piece));
                }
            }
            match round % 8 {
                7 => [&short, &long].iter().for_each(|bytes| model.extend_from_slice(bytes)),
                0 | 2 => model.extend_from_slice(&short),
                1 => model.extend_from_slice(&long),
                3 | 4 => [&short, &long, &long].iter().for_each(|bytes| model.extend_from_slice(bytes)),
                _ => {}
            }
            assert_eq!(gather.len(), model.len() - taken.len());
        }
        taken.extend(gather.to_vec());
        assert!(taken == model);
    }

    #[test]
    fn long_copies_span_blocks() {
        let pool = Pool::new(1 << 20);
        let bytes: Vec<u8> = (0..100_000u32).map(|i| i as u8).collect();
        let mut gather = Gather::new();
        gather.put(&pool, &bytes);
        assert_eq!(gather.to_vec(), bytes);
    }
}
