//! Plain bytes to packed ones, a few kilobytes a step.

use flate2::{Compress, Compression, FlushCompress, Status};

use super::Format;
use super::inflate::WINDOW_BITS;
use nereid_memory::{BlockMut, Pool, Slice};

/// Of one block of what comes out.
const BLOCK: usize = 16 * 1024;

/// How hard to try: zlib's levels 1, 6 and 9.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    Low,
    Medium,
    High,
}

impl Level {
    fn compression(self) -> Compression {
        Compression::new(match self {
            Level::Low => 1,
            Level::Medium => 6,
            Level::High => 9,
        })
    }

    /// Bytes that one step packs: about 50 µs, and not much more of what takes longest.
    fn step(self) -> usize {
        match self {
            Level::Low => 4096,
            Level::Medium => 2048,
            Level::High => 512,
        }
    }
}

/// The packing of one whole.
pub struct Packer {
    engine: Compress,
    /// Bytes of one step.
    step: usize,
    /// What is packed, and what of it comes next: the piece, and where in it.
    plain: Vec<Slice>,
    next: (usize, usize),
    plain_len: usize,
    /// What came out, but for the block that is being filled, with how much of it is.
    packed: Vec<Slice>,
    open: Option<(BlockMut, usize)>,
    packed_len: usize,
    failed: bool,
}

/// What became of what was to be packed.
#[derive(Debug)]
pub enum Outcome {
    Packed(Vec<Slice>),
    /// It could not be packed, or was given up: as it came.
    Plain(Vec<Slice>),
}

impl Packer {
    pub fn new(format: Format, level: Level, plain: Vec<Slice>) -> Packer {
        let engine = match format {
            Format::Gzip => Compress::new_gzip(level.compression(), WINDOW_BITS),
            Format::Deflate => Compress::new(level.compression(), true),
        };
        let plain_len = plain.iter().map(|piece| piece.len()).sum();
        let (packed, open) = (Vec::new(), None);
        Packer {
            engine,
            step: level.step(),
            plain,
            next: (0, 0),
            plain_len,
            packed,
            open,
            packed_len: 0,
            failed: false,
        }
    }

    /// More bytes came out than went in.
    pub fn grows(&self) -> bool {
        self.packed_len >= self.plain_len
    }

    /// Packs a bounded part; true when everything is packed, or nothing will be.
    pub fn step(&mut self, pool: &Pool) -> bool {
        let mut budget = self.step;
        loop {
            let (piece, at) = self.next;
            let part = self.plain.get(piece).and_then(|piece| piece.get(at..)).unwrap_or_default();
            if part.is_empty() && piece < self.plain.len() {
                self.next = (piece + 1, 0);
                continue;
            }
            let part = part.get(..budget).unwrap_or(part);
            let flush = if part.is_empty() { FlushCompress::Finish } else { FlushCompress::None };
            // Memory from outside the pool where its bound is reached: the answer to what was accepted must not fail.
            let (block, filled) = self.open.get_or_insert_with(|| {
                let mut block = pool.get_anyway(BLOCK);
                block.set_len(block.capacity());
                (block, 0)
            });
            let room = block.get_mut(*filled..).unwrap_or_default();
            let before = (self.engine.total_in(), self.engine.total_out());
            let status = self.engine.compress(part, room, flush);
            let taken = usize::try_from(self.engine.total_in() - before.0).unwrap_or(usize::MAX).min(part.len());
            let written = usize::try_from(self.engine.total_out() - before.1).unwrap_or(usize::MAX).min(room.len());
            let is_full = written == room.len();
            *filled += written;
            self.packed_len += written;
            self.next.1 += taken;
            budget -= taken;
            if is_full {
                self.seal();
            }
            let is_over = matches!(status, Ok(Status::StreamEnd));
            self.failed |= status.is_err() || (!is_over && taken == 0 && written == 0);
            if is_over || self.failed {
                return true;
            }
            if budget == 0 || is_full {
                return false;
            }
        }
    }

    /// Everything, packed, once a step has returned that it is.
    pub fn finish(mut self) -> Outcome {
        self.seal();
        if self.failed { Outcome::Plain(self.plain) } else { Outcome::Packed(self.packed) }
    }

    /// Everything as it came.
    pub fn give_up(self) -> Outcome {
        Outcome::Plain(self.plain)
    }

    fn seal(&mut self) {
        if let Some((mut block, filled)) = self.open.take()
            && filled > 0
        {
            block.set_len(filled);
            self.packed.push(block.freeze());
        }
    }
}
