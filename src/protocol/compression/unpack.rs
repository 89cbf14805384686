//! Packed bytes into pooled memory, in steps.
//!
//! How much comes out is known at the end only. So blocks of a bounded size are filled one after the other, and who
//! needs one run of bytes joins them afterwards, in steps too: growing one block would copy what is there again and
//! again, megabytes at a time. Most bodies fit into the first block, and gzip contains how long they are: those are
//! where they belong at once.

use std::collections::VecDeque;

use super::inflate::{Framing, InflateError, Inflater, Progress};
use super::{Format, STEP_BYTES};
use nereid_memory::{ALIGNMENT, BlockMut, Exhausted, Pool, Slice};

/// Of blocks behind the first, and of a first one without a length in its content.
const BLOCK: usize = 256 * 1024;
const SMALLEST_BLOCK: usize = 1024;
/// Deflate makes no more out of one byte.
const RATIO_MAX: usize = 1032;
/// Bytes that are taken in before their output is checked.
const PART_BYTES: usize = 512;
/// Bytes that one step of joining copies.
const JOIN_STEP: usize = 128 * 1024;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnpackError {
    #[error(transparent)]
    Inflate(#[from] InflateError),
    #[error(transparent)]
    Exhausted(#[from] Exhausted),
}

/// The outcome of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// There is more; `is_long` if this step was as long as a step may be.
    More {
        is_long: bool,
    },
    Done,
}

/// The unpacking of one whole.
pub struct Unpacker {
    inflater: Inflater,
    input: VecDeque<Slice>,
    /// Room for this is taken at first.
    first: usize,
    /// Bytes before the first of the output, so that its byte at the requested offset is aligned.
    pad: usize,
    output: Vec<Slice>,
    /// What comes out is charged like what goes in.
    pool: Option<Pool>,
    /// The block that is being filled: where its content begins, and how far it is filled.
    open: Option<(BlockMut, usize, usize)>,
}

impl Unpacker {
    /// `bytes_max`: of what comes out. The byte at `align_at` of it is to be aligned, if it all fits into one block.
    pub fn new(
        input: impl IntoIterator<Item = Slice>,
        framing: Framing,
        bytes_max: usize,
        align_at: usize,
    ) -> Unpacker {
        let input: VecDeque<Slice> = input.into_iter().filter(|piece| !piece.is_empty()).collect();
        let packed: usize = input.iter().map(|piece| piece.len()).sum();
        let likely = length_of_gzip(&input, framing).unwrap_or_else(|| packed.saturating_mul(4).min(BLOCK));
        let first = likely.min(packed.saturating_mul(RATIO_MAX)).min(bytes_max).max(SMALLEST_BLOCK);
        let pad = align_at.wrapping_neg() % ALIGNMENT;
        let (inflater, pool) = (Inflater::new(framing, bytes_max), pool_of(&input));
        Unpacker { inflater, input, first, pad, output: Vec::new(), pool, open: None }
    }

    /// Unpacks a bounded part.
    pub fn step(&mut self, pool: &Pool) -> Result<Step, UnpackError> {
        let mut written = 0;
        while written < STEP_BYTES {
            if self.input.is_empty() {
                self.inflater.finish()?;
                self.seal();
                return Ok(Step::Done);
            }
            let progress = self.advance(pool, STEP_BYTES - written)?;
            written += progress.written;
            // Bytes that lead to little are the ones that take long: tables that are built for nothing, members without
            // content. The end of everything is not one of them.
            let is_barren = progress.written < progress.taken / 2 || progress.ended;
            if is_barren && !self.input.is_empty() {
                return Ok(Step::More { is_long: true });
            }
        }
        Ok(Step::More { is_long: true })
    }

    /// Takes the next few bytes in, and no more than `most` out.
    fn advance(&mut self, pool: &Pool, most: usize) -> Result<Progress, UnpackError> {
        let pool = self.pool.as_ref().unwrap_or(pool);
        let piece = self.input.front().cloned().unwrap_or_default();
        let (block, _, filled) = match &mut self.open {
            Some(open) => open,
            None => self.open.insert(next_block(pool, self.output.is_empty().then_some((self.first, self.pad)))?),
        };
        let whole = self.pad.saturating_add(self.first);
        if *filled == block.len() && self.output.is_empty() && block.len() < whole {
            pool.grow(block, *filled + 1, whole)?;
        }
        let part = piece.get(..piece.len().min(PART_BYTES)).unwrap_or_default();
        let end = block.len().min(filled.saturating_add(most));
        let room = block.get_mut(*filled..end).unwrap_or_default();
        let is_full = room.is_empty();
        let progress = self.inflater.read(part, room)?;
        let Progress { taken, written, ended } = progress;
        *filled += written;
        if let Some(piece) = self.input.front_mut() {
            piece.advance(taken);
            // Something may still be inside the inflater when the last byte is in: it shows that by writing nothing.
            if piece.is_empty() && (ended || (written == 0 && !is_full)) {
                self.input.pop_front();
            }
        }
        if is_full && taken == 0 && !ended {
            self.seal();
        }
        Ok(progress)
    }

    /// The output, once a step has returned that it is complete.
    pub fn finish(mut self) -> Vec<Slice> {
        self.seal();
        self.output
    }

    fn seal(&mut self) {
        if let Some((mut block, begin, filled)) = self.open.take()
            && filled > begin
        {
            block.set_len(filled);
            let mut piece = block.freeze();
            piece.advance(begin);
            self.output.push(piece);
        }
    }
}

/// The first block where `first` gives its length and padding, or one of those behind it.
fn next_block(pool: &Pool, first: Option<(usize, usize)>) -> Result<(BlockMut, usize, usize), Exhausted> {
    let (len, pad) = first.unwrap_or((BLOCK, 0));
    // The length in a packed body need not be true: the block grows with what really comes.
    let whole = pad.saturating_add(len);
    let block = if whole <= BLOCK { pool.get(whole) } else { pool.begin(whole) };
    Ok((block?, pad, pad))
}

/// What the first of these slices is charged to.
fn pool_of<'a>(pieces: impl IntoIterator<Item = &'a Slice>) -> Option<Pool> {
    pieces.into_iter().next().and_then(Slice::pool)
}

/// What the last four bytes of a gzip member contain: how much was packed, below 4 GiB (RFC 1952 section 2.3.1).
fn length_of_gzip(input: &VecDeque<Slice>, framing: Framing) -> Option<usize> {
    let (first, last) = (input.front()?, input.back()?);
    let is_gzip = framing != Framing::Only(Format::Deflate) && first.first() == Some(&0x1f);
    let length = last.last_chunk::<4>().filter(|_| is_gzip)?;
    usize::try_from(u32::from_le_bytes(*length)).ok()
}

/// Makes one run of bytes of several.
pub struct Joiner {
    pieces: VecDeque<Slice>,
    /// The run in the making, with where it begins and how far it is filled.
    block: Option<(BlockMut, usize, usize)>,
}

impl Joiner {
    /// The byte at `align_at` of the whole will be aligned, unless there is one piece only, which stays as it is.
    pub fn new(pieces: Vec<Slice>, align_at: usize, pool: &Pool) -> Result<Joiner, Exhausted> {
        let block = match &pieces[..] {
            [] | [_] => None,
            pieces => {
                let pad = align_at.wrapping_neg() % ALIGNMENT;
                let len: usize = pieces.iter().map(|piece| piece.len()).sum();
                let own = pool_of(pieces);
                Some((own.as_ref().unwrap_or(pool).get(pad.saturating_add(len))?, pad, pad))
            }
        };
        Ok(Joiner { pieces: pieces.into(), block })
    }

    /// Copies a bounded part; true when all is in one run.
    pub fn step(&mut self) -> bool {
        let Some((block, _, filled)) = &mut self.block else { return true };
        let mut budget = JOIN_STEP;
        while let Some(piece) = self.pieces.front_mut() {
            let n = piece.len().min(budget);
            if let (Some(to), Some(from)) = (block.get_mut(*filled..*filled + n), piece.get(..n)) {
                to.copy_from_slice(from);
            }
            piece.advance(n);
            *filled += n;
            budget -= n;
            if piece.is_empty() {
                self.pieces.pop_front();
            }
            if budget == 0 && !self.pieces.is_empty() {
                return false;
            }
        }
        true
    }

    /// The run, once a step has returned that it is whole.
    pub fn finish(mut self) -> Slice {
        match self.block {
            None => self.pieces.pop_front().unwrap_or_default(),
            Some((block, begin, _)) => {
                let mut whole = block.freeze();
                whole.advance(begin);
                whole
            }
        }
    }
}
