//! A request's body in one block, with the byte that matters aligned.

use nereid_memory::{ALIGNMENT, BlockMut, Exhausted, Pool, Slice};

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
    /// Bytes before the body, so that its byte at the requested offset is aligned.
    pad: usize,
    len: usize,
    /// Bytes that the block will hold with the announced body, the padding included; 0: no length was announced.
    whole: usize,
}

impl Body {
    /// Room for the beginning of `len` announced bytes; a body of unknown length starts with 0. Both grow with what
    /// arrives.
    pub fn new(pool: &Pool, align_at: usize, len: usize) -> Result<Body, Exhausted> {
        let pad = (ALIGNMENT - align_at % ALIGNMENT) % ALIGNMENT;
        let whole = if len == 0 { 0 } else { pad.saturating_add(len) };
        let block = if len == 0 { None } else { Some(pool.begin(whole)?) };
        Ok(Body { block, pad, len: 0, whole })
    }

    /// Bytes that it takes beyond those that it has, of `limit` in all.
    pub fn room(&self, limit: usize) -> usize {
        limit.saturating_sub(self.len)
    }

    /// Appends `bytes`; a block that is too small makes way for a larger one.
    pub fn append(&mut self, pool: &Pool, bytes: &[u8], limit: usize) -> Result<(), BodyError> {
        let end = self.len.saturating_add(bytes.len());
        if end > limit {
            return Err(BodyError::TooLong { limit });
        }
        if bytes.is_empty() {
            return Ok(());
        }
        let needed = self.pad + end;
        self.make_room(pool, needed, limit)?;
        if let Some(room) = self.block.as_mut().and_then(|block| block.get_mut(self.pad + self.len..needed)) {
            room.copy_from_slice(bytes);
        }
        self.len = end;
        Ok(())
    }

    fn make_room(&mut self, pool: &Pool, needed: usize, limit: usize) -> Result<(), Exhausted> {
        let Some(block) = &mut self.block else {
            self.block = Some(pool.get(needed.max(FIRST_CAPACITY))?);
            return Ok(());
        };
        if block.len() >= needed {
            return Ok(());
        }
        // The end of a body of unknown length may be anywhere.
        let likely = block.capacity().saturating_mul(2).min(self.pad.saturating_add(limit));
        let announced = if self.whole == 0 { likely } else { self.whole };
        pool.grow(block, needed, announced.max(needed))
    }

    /// Hands the block out with the place where the next bytes belong, which has room for at least one. `None`: there
    /// is no memory for more of them; the call that appends them returns why.
    pub fn take_block(&mut self, pool: &Pool) -> Option<(BlockMut, usize)> {
        let at = self.pad + self.len;
        // It may be out already.
        self.block.as_ref()?;
        self.make_room(pool, at + 1, usize::MAX).ok()?;
        Some((self.block.take()?, at))
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
