//! What is to be sent, in order: small pieces copied together, large ones by reference.

use std::collections::VecDeque;
use std::io::IoSlice;

use super::{BlockMut, Pool, Slice};

/// Pieces shorter than this are cheaper to copy than to carry as a gather entry of their own.
const COPY_BELOW: usize = 1024;
const CHUNK: usize = 16 * 1024;

/// A queue of bytes made of owned slices, ready for a gathered send.
#[derive(Default)]
pub struct Gather {
    sealed: VecDeque<Slice>,
    /// Small writes collect here until a large piece or a send seals them.
    open: Option<BlockMut>,
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

    /// Copies `bytes` to the end. Memory comes from `pool`, or from outside it where its bound is reached: replies to
    /// what was accepted must not fail, and connections bound what they leave unsent.
    pub fn put(&mut self, pool: &Pool, mut bytes: &[u8]) {
        self.len += bytes.len();
        while !bytes.is_empty() {
            let open = self.open.get_or_insert_with(|| {
                let mut block = pool.get(CHUNK).unwrap_or_else(|_| BlockMut::unpooled(CHUNK));
                block.set_len(0);
                block
            });
            let taken = open.append(bytes);
            bytes = &bytes[taken..];
            if !bytes.is_empty() {
                self.seal();
                self.open = None;
            }
        }
    }

    /// Appends `slice` without copying it, unless it is so short that copying is cheaper.
    pub fn push(&mut self, pool: &Pool, slice: Slice) {
        if slice.len() < COPY_BELOW {
            return self.put(pool, &slice);
        }
        self.seal();
        self.len += slice.len();
        self.sealed.push_back(slice);
    }

    /// Moves everything of `other` behind what is here.
    pub fn append(&mut self, other: &mut Gather) {
        self.seal();
        other.seal();
        self.len += std::mem::take(&mut other.len);
        self.sealed.append(&mut other.sealed);
    }

    fn seal(&mut self) {
        if let Some(open) = &mut self.open
            && !open.is_empty()
        {
            let len = open.len();
            self.sealed.push_back(open.split_to(len));
            if open.spare() < 64 {
                self.open = None;
            }
        }
    }

    /// Takes up to `max_pieces` slices from the front for one send operation.
    pub fn take(&mut self, max_pieces: usize, into: &mut Vec<Slice>) {
        self.seal();
        let n = self.sealed.len().min(max_pieces);
        for slice in self.sealed.drain(..n) {
            self.len -= slice.len();
            into.push(slice);
        }
    }

    /// Everything as one vector; for tests and small messages.
    pub fn to_vec(&mut self) -> Vec<u8> {
        self.seal();
        let mut all = Vec::with_capacity(self.len);
        self.sealed.iter().for_each(|slice| all.extend_from_slice(slice));
        all
    }

    /// The pieces as the system call wants them.
    pub fn io_slices(&mut self) -> Vec<IoSlice<'_>> {
        self.seal();
        self.sealed.iter().map(|slice| IoSlice::new(slice)).collect()
    }

    pub fn clear(&mut self) {
        self.sealed.clear();
        self.open = None;
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

    #[test]
    fn long_copies_span_blocks() {
        let pool = Pool::new(1 << 20);
        let bytes: Vec<u8> = (0..100_000u32).map(|i| i as u8).collect();
        let mut gather = Gather::new();
        gather.put(&pool, &bytes);
        assert_eq!(gather.to_vec(), bytes);
    }
}
