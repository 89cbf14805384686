//! Packed bytes to plain ones, resumable at any byte.
//!
//! A gzip file may have several members (RFC 1952 section 2.2): their contents follow each other. Whatever else stands
//! behind the end is an error, and so are a wrong checksum, a wrong length and an end before the end. Only a stream
//! that is whole yields what its sender packed.

use flate2::{Decompress, FlushDecompress, Status};

use super::Format;

/// Which framings are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// Either: the first byte distinguishes them.
    Any,
    Only(Format),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InflateError {
    #[error("the data is not in the format {0}")]
    Corrupt(&'static str),
    #[error("the data ends before its end")]
    Truncated,
    #[error("there is something behind the end of the data")]
    Trailing,
    #[error("more than {bytes_max} bytes come out of the data")]
    TooLong { bytes_max: usize },
}

/// What one call did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    pub taken: usize,
    pub written: usize,
    /// A member, or the whole, ended here.
    pub ended: bool,
}

pub struct Inflater {
    framing: Framing,
    state: InflateState,
    /// Bytes that may still come out.
    left: usize,
    bytes_max: usize,
}

enum InflateState {
    /// Nothing was read yet.
    Start,
    Inside(Format, Box<Decompress>),
    /// A whole was read. Another member may follow one of gzip.
    Ended(Format, Box<Decompress>),
    Failed(InflateError),
}

/// The first byte of a gzip member; no zlib stream begins with it.
const GZIP_FIRST: u8 = 0x1f;
/// The window of deflate, as the base-2 logarithm of its bytes.
pub(super) const WINDOW_BITS: u8 = 15;

impl Inflater {
    /// `bytes_max`: of what comes out, in all.
    pub fn new(framing: Framing, bytes_max: usize) -> Inflater {
        Inflater { framing, state: InflateState::Start, left: bytes_max, bytes_max }
    }

    /// Reads from `input` and writes to `output`. Makes progress unless `input` is empty and nothing is left inside, or
    /// `output` is empty. Errors stay.
    pub fn read(&mut self, input: &[u8], output: &mut [u8]) -> Result<Progress, InflateError> {
        let outcome = self.advance(input, output);
        if let Err(error) = outcome {
            self.state = InflateState::Failed(error);
        }
        outcome
    }

    /// There is no more input: an error unless a whole was read.
    pub fn finish(&self) -> Result<(), InflateError> {
        match &self.state {
            InflateState::Ended(..) => Ok(()),
            InflateState::Failed(error) => Err(*error),
            InflateState::Start | InflateState::Inside(..) => Err(InflateError::Truncated),
        }
    }

    fn advance(&mut self, input: &[u8], output: &mut [u8]) -> Result<Progress, InflateError> {
        let nothing = Progress { taken: 0, written: 0, ended: false };
        let first = input.first().copied();
        match (std::mem::replace(&mut self.state, InflateState::Start), first) {
            (InflateState::Failed(error), _) => return Err(error),
            (InflateState::Start, None) => return Ok(nothing),
            (InflateState::Start, Some(first)) => {
                let format = match self.framing {
                    Framing::Only(format) => format,
                    Framing::Any if first == GZIP_FIRST => Format::Gzip,
                    Framing::Any => Format::Deflate,
                };
                let engine = match format {
                    Format::Gzip => Decompress::new_gzip(WINDOW_BITS),
                    Format::Deflate => Decompress::new(true),
                };
                self.state = InflateState::Inside(format, Box::new(engine));
            }
            (ended @ InflateState::Ended(..), None) => {
                self.state = ended;
                return Ok(nothing);
            }
            (InflateState::Ended(Format::Gzip, mut engine), Some(GZIP_FIRST)) => {
                engine.reset(true);
                self.state = InflateState::Inside(Format::Gzip, engine);
            }
            (InflateState::Ended(..), Some(_)) => return Err(InflateError::Trailing),
            (inside @ InflateState::Inside(..), _) => self.state = inside,
        }
        self.inflate(input, output)
    }

    fn inflate(&mut self, input: &[u8], output: &mut [u8]) -> Result<Progress, InflateError> {
        let InflateState::Inside(format, engine) = &mut self.state else { return Err(InflateError::Truncated) };
        // Where nothing more may come out, one byte of room still shows whether something would.
        let mut beyond = [0; 1];
        let is_full = self.left == 0;
        let room = output.len().min(self.left);
        let room = if is_full { &mut beyond[..] } else { output.get_mut(..room).unwrap_or_default() };
        let before = (engine.total_in(), engine.total_out());
        let status = engine.decompress(input, room, FlushDecompress::None);
        let status = status.map_err(|_| InflateError::Corrupt(format.name()))?;
        let taken = usize::try_from(engine.total_in() - before.0).unwrap_or(usize::MAX).min(input.len());
        let written = usize::try_from(engine.total_out() - before.1).unwrap_or(usize::MAX).min(room.len());
        if is_full && written > 0 {
            return Err(InflateError::TooLong { bytes_max: self.bytes_max });
        }
        self.left -= written;
        let ended = status == Status::StreamEnd;
        if ended {
            self.state = match std::mem::replace(&mut self.state, InflateState::Start) {
                InflateState::Inside(format, engine) => InflateState::Ended(format, engine),
                other => other,
            };
        } else if taken == 0 && written == 0 && !input.is_empty() && (is_full || !output.is_empty()) {
            // Room and input, and nothing happens: no stream that a packer makes does that.
            return Err(InflateError::Corrupt(format.name()));
        }
        Ok(Progress { taken, written, ended })
    }
}
