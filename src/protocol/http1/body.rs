//! A request's body in one block, with the byte that matters aligned.

use crate::memory::{ALIGNMENT, BlockMut, Exhausted, Pool, Slice};

/// First capacity of a body whose length is not known.
const FIRST_CAPACITY: usize = 4096;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum BodyError {
    #[error("request body exceeds the maximum of {limit} bytes")]
    TooLong { limit: usize },
    #[error(transparent)]
    Exhausted(#[from] Exhausted),
}

#[derive(Debug)]
pub(super) struct Body {
    /// `None` while nothing is stored, and while the block is out to be received into.
    block: Option<BlockMut>,
    /// Bytes before the body, so that its byte at the asked offset is aligned.
    pad: usize,
    len: usize,
}

impl Body {
    /// Room for `len` bytes, taken at once; a body of unknown length starts with 0 and grows.
    pub fn new(pool: &Pool, align_at: usize, len: usize) -> Result<Body, Exhausted> {
        let pad = (ALIGNMENT - align_at % ALIGNMENT) % ALIGNMENT;
        let block = if len == 0 { None } else { Some(pool.get(pad.saturating_add(len))?) };
        Ok(Body { block, pad, len: 0 })
    }

    /// Refuses `announced` more bytes that would not be taken.
    pub fn check_room(&self, announced: u64, limit: usize) -> Result<(), BodyError> {
        match (self.len as u64).saturating_add(announced) > limit as u64 {
            true => Err(BodyError::TooLong { limit }),
            false => Ok(()),
        }
    }

    /// Appends `bytes`; a block that is too small makes way for one of twice its size.
    pub fn append(&mut self, pool: &Pool, bytes: &[u8], limit: usize) -> Result<(), BodyError> {
        let end = self.len.saturating_add(bytes.len());
        if end > limit {
            return Err(BodyError::TooLong { limit });
        }
        if bytes.is_empty() {
            return Ok(());
        }
        let needed = self.pad + end;
        if self.block.as_ref().is_none_or(|block| block.capacity() < needed) {
            let doubled = self.block.as_ref().map_or(FIRST_CAPACITY, |block| block.capacity().saturating_mul(2));
            let mut larger = pool.get(needed.max(doubled.min(self.pad.saturating_add(limit))))?;
            if let Some(block) = &self.block
                && let (Some(to), Some(from)) =
                    (larger.get_mut(..self.pad + self.len), block.get(..self.pad + self.len))
            {
                to.copy_from_slice(from);
            }
            self.block = Some(larger);
        }
        if let Some(block) = &mut self.block {
            if block.len() < needed {
                block.set_len(needed);
            }
            if let Some(room) = block.get_mut(self.pad + self.len..needed) {
                room.copy_from_slice(bytes);
            }
        }
        self.len = end;
        Ok(())
    }

    /// Hands the block out, with the place where the next bytes belong.
    pub fn take_block(&mut self) -> Option<(BlockMut, usize)> {
        Some((self.block.take()?, self.pad + self.len))
    }

    /// Takes the block back after `n` more bytes were received into it.
    pub fn put_block(&mut self, block: BlockMut, n: usize) {
        self.len += n;
        self.block = Some(block);
    }

    pub fn finish(self) -> Slice {
        let end = self.pad + self.len;
        match self.block {
            Some(mut block) if self.len > 0 && end <= block.capacity() => {
                block.set_len(end);
                let mut body = block.freeze();
                body.advance(self.pad);
                body
            }
            _ => Slice::empty(),
        }
    }
}
