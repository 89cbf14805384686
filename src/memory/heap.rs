//! Memory that its users hold by address only: libraries that allocate and free through a C interface.
//!
//! It is the pool's, so that it counts against the server's bound. The heap records every address that is out: it
//! rejects the address of other memory, and it frees what was never given back when it is dropped.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use super::{BlockMut, Exhausted, Pool};

/// See the [module](self).
pub struct Heap {
    pool: Pool,
    /// By the address of the first byte.
    blocks: Mutex<HashMap<usize, BlockMut>>,
}

impl Heap {
    pub fn new(pool: Pool) -> Heap {
        Heap { pool, blocks: Mutex::default() }
    }

    /// At least `byte_size` bytes with unspecified contents, aligned to [`super::ALIGNMENT`], until they are freed.
    pub fn allocate(&self, byte_size: usize) -> Result<*mut u8, Exhausted> {
        let mut block = self.pool.get(byte_size)?;
        let at = block.as_mut_ptr();
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner).insert(at.addr(), block);
        Ok(at)
    }

    /// False, and nothing is freed, if `at` did not come from here or was freed already.
    pub fn free(&self, at: *const u8) -> bool {
        let block = self.blocks.lock().unwrap_or_else(PoisonError::into_inner).remove(&at.addr());
        block.is_some()
    }

    /// The number of live allocations, and their bytes.
    pub fn in_use(&self) -> (usize, usize) {
        let blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        (blocks.len(), blocks.values().map(|block| block.len()).sum())
    }
}

impl std::fmt::Debug for Heap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (count, bytes) = self.in_use();
        write!(f, "Heap({count} allocations, {bytes} bytes)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ALIGNMENT;

    #[test]
    fn what_is_allocated_is_freed_once_and_counted_by_the_pool() {
        let pool = Pool::new(1 << 20);
        let heap = Heap::new(pool.clone());
        let (one, two) = (heap.allocate(1000).unwrap(), heap.allocate(0).unwrap());
        assert!(!one.is_null() && !two.is_null() && one != two);
        assert!(one.addr().is_multiple_of(ALIGNMENT));
        assert_eq!(heap.in_use(), (2, 1000));
        assert!(pool.bytes_in_use() >= 1000);
        assert!(!heap.free(one.wrapping_add(1)), "not the address that was handed out");
        assert!(heap.free(one) && !heap.free(one), "freed once");
        assert_eq!(heap.allocate(2 << 20).unwrap_err().requested, 2 << 20);
        assert_eq!(heap.in_use(), (1, 0));
        drop(heap);
        assert_eq!(pool.bytes_in_use(), 0, "what was left goes with the heap");
    }
}
