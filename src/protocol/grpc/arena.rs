//! Small tensors of one message, side by side at aligned places of pooled blocks.
//!
//! A tensor is written at the end, grows as its bytes arrive and is then handed out as a slice; the block that they
//! share goes back to the pool with the last of them.

use nereid_memory::{BlockMut, Exhausted, Pool, Slice, align_up};

/// A block is not made larger than this for the sake of tensors that may still come.
const AHEAD_BYTES: usize = 64 * 1024;

#[repr(align(64))]
struct Aligned([u8; 64]);
static ALIGNED: Aligned = Aligned([0; 64]);

/// An empty tensor whose address is aligned all the same: `&[f32]` of length 0 needs that too.
fn empty_tensor() -> Slice {
    Slice::from_static(&ALIGNED.0[..0])
}

pub(super) struct TensorArena {
    pool: Pool,
    /// Begins where the tensor in the making begins, which is an aligned place, and is as long as it is so far.
    open: Option<BlockMut>,
}

impl TensorArena {
    pub(super) fn new(pool: Pool) -> TensorArena {
        TensorArena { pool, open: None }
    }

    pub(super) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Takes memory from this pool from now on.
    pub(super) fn set_pool(&mut self, pool: &Pool) {
        if !self.pool.is(pool) {
            (self.pool, self.open) = (pool.clone(), None);
        }
    }

    /// Makes room for `more` bytes of the current tensor. `ahead` is a guess of what the message still holds.
    pub(super) fn reserve(&mut self, more: usize, ahead: usize) -> Result<(), Exhausted> {
        let (written, spare) = self.open.as_ref().map_or((0, 0), |open| (open.len(), open.spare()));
        if spare >= more {
            return Ok(());
        }
        let needed = written.saturating_add(more);
        let guess = ahead.saturating_add(written * 2).min(AHEAD_BYTES.max(written * 2));
        // What is long is not copied again and again: that would be a long step.
        if written >= AHEAD_BYTES
            && let Some(open) = &mut self.open
            && self.pool.enlarge(open, needed.max(guess))
        {
            return Ok(());
        }
        let mut block = self.pool.get(needed.max(guess)).or_else(|_| self.pool.get(needed))?;
        block.set_len(0);
        if let Some(open) = &self.open {
            block.append(open);
        }
        self.open = Some(block);
        Ok(())
    }

    pub(super) fn append(&mut self, bytes: &[u8], ahead: usize) -> Result<(), Exhausted> {
        self.reserve(bytes.len(), ahead)?;
        if let Some(open) = &mut self.open {
            open.append(bytes);
        }
        Ok(())
    }

    /// Ends the current tensor and hands it out.
    pub(super) fn finish(&mut self) -> Slice {
        let Some(open) = self.open.as_mut().filter(|open| !open.is_empty()) else { return empty_tensor() };
        let len = open.len();
        let padded = align_up(len);
        if padded > open.capacity() {
            return self.open.take().map_or_else(empty_tensor, BlockMut::freeze);
        }
        open.set_len(padded);
        open.split_to(padded).window(0..len)
    }

    /// Lets go of what is not handed out yet: the message is over.
    pub(super) fn clear(&mut self) {
        self.open = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nereid_memory::ALIGNMENT;

    #[test]
    fn tensors_are_aligned_whole_and_share_a_block() {
        let pool = Pool::new(1 << 20);
        let mut arena = TensorArena::new(pool.clone());
        let mut tensors = Vec::new();
        for len in [1usize, 63, 64, 65, 0, 200, 3] {
            let bytes: Vec<u8> = (0..len).map(|i| (i * 7 + len) as u8).collect();
            for chunk in bytes.chunks(10) {
                arena.append(chunk, 700).unwrap();
            }
            tensors.push((arena.finish(), bytes));
        }
        assert_eq!(pool.bytes_in_use(), 1024, "one block for all");
        arena.clear();
        for (tensor, bytes) in &tensors {
            assert!(tensor.is_aligned_to(ALIGNMENT));
            assert_eq!(**tensor, **bytes);
        }
        tensors.clear();
        assert_eq!(pool.bytes_in_use(), 0);
    }

    #[test]
    fn a_tensor_that_outgrows_its_block_moves_and_the_others_stay() {
        let pool = Pool::new(1 << 20);
        let mut arena = TensorArena::new(pool.clone());
        arena.append(&[1; 100], 0).unwrap();
        let first = arena.finish();
        for at in 0..5000u32 {
            arena.append(&at.to_le_bytes(), 0).unwrap();
        }
        let second = arena.finish();
        assert_eq!(*first, [1; 100]);
        assert!(second.is_aligned_to(ALIGNMENT));
        assert!(second.chunks(4).enumerate().all(|(at, bytes)| *bytes == (at as u32).to_le_bytes()));
    }

    #[test]
    fn the_pool_says_no_and_nothing_is_lost() {
        let pool = Pool::new(2048);
        let mut arena = TensorArena::new(pool.clone());
        arena.append(&[1; 600], usize::MAX).unwrap();
        assert!(arena.append(&[2; 2000], 0).is_err());
        assert_eq!(*arena.finish(), [1; 600]);
    }

    #[test]
    fn empty_tensors_are_aligned() {
        assert!(empty_tensor().is_aligned_to(ALIGNMENT));
        assert!(TensorArena::new(Pool::new(0)).finish().is_empty());
    }
}
