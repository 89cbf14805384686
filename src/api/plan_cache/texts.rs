//! Short texts of answers, cut from blocks that many of them share.
//!
//! An answer's text is written into one piece of memory that stays, and copied behind the others once its length is
//! known: no answer takes a block of its own.

use nereid_memory::{BlockMut, Pool, Slice};

/// Bytes of a block that texts are cut from.
const BLOCK_BYTES: usize = 16 * 1024;
/// Of the memory that texts are written in, what is kept.
const SCRATCH_KEPT: usize = 64 * 1024;

/// See the [module](self).
#[derive(Debug, Default)]
pub struct Texts {
    scratch: Vec<u8>,
    open: Option<BlockMut>,
}

impl Texts {
    /// An empty text to be written; [`cut`](Texts::cut) makes a slice of it.
    pub fn begin(&mut self) -> &mut Vec<u8> {
        self.scratch.clear();
        self.scratch.shrink_to(SCRATCH_KEPT);
        &mut self.scratch
    }

    /// What was written since [`begin`](Texts::begin).
    pub fn cut(&mut self, pool: &Pool) -> Slice {
        let len = self.scratch.len();
        let mut block = match self.open.take().filter(|block| block.spare() >= len) {
            Some(block) => block,
            None => {
                let capacity = len.max(BLOCK_BYTES);
                let mut block = pool.get_anyway(capacity);
                block.set_len(0);
                block
            }
        };
        block.append(&self.scratch);
        let text = block.split_to(len);
        self.open = Some(block);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_share_a_block_until_it_is_full() {
        let pool = Pool::new(1 << 20);
        let mut texts = Texts::default();
        let mut cut = |byte: u8, len: usize| {
            texts.begin().resize(len, byte);
            texts.cut(&pool)
        };
        let slices: Vec<Slice> = (0..100).map(|n| cut(n, 400)).collect();
        for (n, slice) in slices.iter().enumerate() {
            assert_eq!(**slice, [n as u8; 400]);
        }
        assert_eq!(pool.bytes_in_use(), 3 * BLOCK_BYTES);
        drop(slices);
        assert_eq!(pool.bytes_in_use(), BLOCK_BYTES, "the one that more are cut from");
        assert_eq!(*cut(7, 100_000), [7; 100_000]);
        assert!(cut(0, 0).is_empty());
    }
}
