//! Copies of short byte strings, many in one block.
//!
//! A block of the pool costs its users about eight atomic operations, part of which all shards see; a portion costs
//! two. It keeps its whole block as long as it lives: at most [`BLOCK_BYTES`] for a portion.

use super::{BlockMut, Exhausted, Pool, Slice, align_up};

/// Longer strings get blocks of their own.
pub const LONGEST: usize = 1024;
/// A portion that waits in a queue holds this much of the pool in the worst case.
const BLOCK_BYTES: usize = 4 * 1024;

/// See the [module](self). It belongs to one thread; the portions go anywhere.
#[derive(Debug, Default)]
pub struct Portions {
    open: Option<BlockMut>,
}

impl Portions {
    /// A copy of `bytes`, aligned for numbers of any size.
    pub fn copy(&mut self, pool: &Pool, bytes: &[u8]) -> Result<Slice, Exhausted> {
        if bytes.len() > LONGEST {
            let mut block = pool.get(bytes.len())?;
            block.copy_from_slice(bytes);
            return Ok(block.freeze());
        }
        let padded = align_up(bytes.len());
        if self.open.as_ref().is_none_or(|open| open.len() < padded) {
            self.open = Some(pool.get(BLOCK_BYTES)?);
        }
        let Some(open) = &mut self.open else { return Ok(Slice::empty()) };
        if let Some(place) = open.get_mut(..bytes.len()) {
            place.copy_from_slice(bytes);
        }
        let copy = open.split_to(bytes.len());
        open.skip(padded - bytes.len());
        Ok(copy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ALIGNMENT;

    #[test]
    fn copies_are_apart_aligned_and_share_a_block() {
        let (pool, mut portions) = (Pool::new(1 << 20), Portions::default());
        let strings: Vec<Vec<u8>> = [0, 1, 63, 64, 65, LONGEST].map(|len| vec![len as u8; len]).into();
        let copies: Vec<Slice> = strings.iter().map(|bytes| portions.copy(&pool, bytes).unwrap()).collect();
        assert_eq!(pool.bytes_in_use(), BLOCK_BYTES);
        for (copy, bytes) in copies.iter().zip(&strings) {
            assert_eq!(**copy, **bytes);
            assert!(copy.is_aligned_to(ALIGNMENT));
        }
        let long = portions.copy(&pool, &[7; LONGEST + 1]).unwrap();
        assert_eq!((long.len(), pool.bytes_in_use()), (LONGEST + 1, BLOCK_BYTES + 2048));
        drop((copies, long, portions));
        assert_eq!(pool.bytes_in_use(), 0);
    }

    #[test]
    fn a_full_block_lives_as_long_as_its_last_portion() {
        let (pool, mut portions) = (Pool::new(1 << 20), Portions::default());
        let first = portions.copy(&pool, b"first").unwrap();
        for _ in 0..2 * BLOCK_BYTES / LONGEST {
            portions.copy(&pool, &[1; LONGEST]).unwrap();
        }
        assert_eq!((&*first, pool.bytes_in_use()), (&b"first"[..], 2 * BLOCK_BYTES));
        drop(first);
        assert_eq!(pool.bytes_in_use(), BLOCK_BYTES);
    }

    #[test]
    fn a_pool_at_its_bound_returns_an_error() {
        let (pool, mut portions) = (Pool::new(BLOCK_BYTES), Portions::default());
        let _whole = pool.get(1).unwrap();
        assert_eq!(portions.copy(&pool, b"x").unwrap_err().requested, BLOCK_BYTES);
    }
}
