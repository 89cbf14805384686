//! A body on its way: how its end is known, where its bytes go, and why it may break off.

use super::body::{Body, BodyError};
use super::chunked::{ChunkError, Chunked, Piece};
use super::response::ResponseHead;
use super::{ExchangeId, Limits};
use nereid_memory::Pool;

/// A request whose body is on its way.
#[derive(Debug)]
pub(super) struct Incoming {
    pub exchange: ExchangeId,
    pub coding: Coding,
    pub target: Target,
    /// The block is out, to be received into.
    pub direct: bool,
}

#[derive(Debug)]
pub(super) enum Coding {
    Length { missing: usize },
    Chunked(Chunked),
}

#[derive(Debug)]
pub(super) enum Target {
    Store(Body),
    /// The request is answered already.
    Discard {
        left: usize,
    },
}

/// Why a body ends before its time.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    #[error(transparent)]
    Chunk(#[from] ChunkError),
    #[error(transparent)]
    Body(#[from] BodyError),
    #[error("more than {0} bytes of a refused body")]
    Discard(usize),
}

impl Broken {
    pub fn head(&self) -> ResponseHead {
        match self {
            Broken::Body(BodyError::TooLong { .. }) | Broken::Discard(_) => ResponseHead::new(413),
            Broken::Body(BodyError::Exhausted(exhausted)) => ResponseHead::refused(exhausted.reason()),
            Broken::Chunk(_) => ResponseHead::new(400),
        }
    }
}

impl Incoming {
    /// Takes bytes of the body; returns how many it used and whether the body is complete.
    pub fn take(&mut self, pool: &Pool, limits: &Limits, bytes: &[u8]) -> Result<(usize, bool), Broken> {
        match &mut self.coding {
            Coding::Length { missing } => {
                let part = bytes.get(..*missing).unwrap_or(bytes);
                *missing -= part.len();
                let complete = *missing == 0;
                self.target.add(pool, limits, part)?;
                Ok((part.len(), complete))
            }
            Coding::Chunked(chunked) => {
                let mut used = 0;
                loop {
                    let room = self.target.room(limits);
                    let (n, piece) = chunked.decode(bytes.get(used..).unwrap_or_default(), room)?;
                    used += n;
                    match piece {
                        Piece::Beyond => return Err(self.target.beyond(limits)),
                        Piece::Data(len) => {
                            let data = bytes.get(used.saturating_sub(len)..used).unwrap_or_default();
                            self.target.add(pool, limits, data)?;
                        }
                        Piece::More => return Ok((used, false)),
                        Piece::End => return Ok((used, true)),
                    }
                }
            }
        }
    }
}

impl Target {
    /// Bytes that are still taken.
    fn room(&self, limits: &Limits) -> u64 {
        match self {
            Target::Store(body) => body.room(limits.body) as u64,
            Target::Discard { left } => *left as u64,
        }
    }

    /// The refusal of more than that, before it comes.
    fn beyond(&self, limits: &Limits) -> Broken {
        match self {
            Target::Store(_) => BodyError::TooLong { limit: limits.body }.into(),
            Target::Discard { .. } => Broken::Discard(limits.discard),
        }
    }

    fn add(&mut self, pool: &Pool, limits: &Limits, bytes: &[u8]) -> Result<(), Broken> {
        match self {
            Target::Store(body) => Ok(body.append(pool, bytes, limits.body)?),
            Target::Discard { left } => {
                *left = left.checked_sub(bytes.len()).ok_or(Broken::Discard(limits.discard))?;
                Ok(())
            }
        }
    }
}
