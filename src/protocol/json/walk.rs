//! The way through a tensor's `data`: nested arrays of any shape, whose elements count in the order they stand in.

use std::ops::Range;

use super::STEP_BYTES;
use super::syntax::{Reason, SyntaxError};
use super::value::AccessError;

/// Arrays around an element that are one too many (contract/http.md section 2).
const TOO_DEEP: u32 = 100;

/// Why `data` is no tensor. The texts reach the client behind a caller's prefix, except for [`Shortage`] and
/// [`OutOfRange`], which stand alone.
///
/// [`Shortage`]: TensorError::Shortage
/// [`OutOfRange`]: TensorError::OutOfRange
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TensorError {
    #[error(transparent)]
    Access(#[from] AccessError),
    #[error("Shape does not match true shape of 'data' field")]
    Excess,
    #[error("Failed to parse 'data' field: shape does not match true shape")]
    Shortage,
    #[error("JSON nesting depth exceeds maximum allowed limit (100)")]
    TooDeep,
    #[error("{datatype} data value {value} is out of range")]
    OutOfRange { datatype: &'static str, value: i128 },
    /// Only for ranges that no reader has checked.
    #[error(transparent)]
    Syntax(#[from] SyntaxError),
}

/// Where a reader of a tensor's array stands.
#[derive(Debug)]
pub(super) struct Walk {
    pub at: usize,
    end: usize,
    depth: u32,
    done: bool,
    /// Where a step ends that has steps left.
    pause_at: usize,
}

pub(super) enum Stop {
    /// `at` is at the first byte of an element.
    Element,
    /// The array is complete.
    End,
    /// The steps are used up.
    Pause,
}

impl Walk {
    pub fn new(span: Range<usize>) -> Walk {
        Walk { at: span.start, end: span.end, depth: 0, done: false, pause_at: usize::MAX }
    }

    /// Begins a step, which reads a bounded number of bytes.
    pub fn begin_step(&mut self) {
        self.pause_at = self.at.saturating_add(STEP_BYTES);
    }

    /// Whether the step has read its bytes.
    pub fn is_step_over(&self) -> bool {
        self.at >= self.pause_at
    }

    /// Goes on to the next element; each bracket costs a step, so that empty arrays do not come for free.
    #[inline]
    pub fn next(&mut self, input: &[u8], steps: &mut usize) -> Result<Stop, TensorError> {
        let input = input.get(..self.end).unwrap_or(input);
        loop {
            if self.done {
                return Ok(Stop::End);
            }
            if self.at >= self.pause_at {
                return Ok(Stop::Pause);
            }
            match input.get(self.at) {
                Some(b' ' | b'\n' | b'\r' | b'\t' | b',') => {}
                _ if *steps == 0 => return Ok(Stop::Pause),
                Some(b'[') => {
                    *steps -= 1;
                    if self.depth >= TOO_DEEP {
                        return Err(TensorError::TooDeep);
                    }
                    self.depth += 1;
                }
                Some(b']') => {
                    *steps -= 1;
                    self.depth = self.depth.saturating_sub(1);
                    self.done = self.depth == 0;
                }
                Some(_) if self.depth >= TOO_DEEP => return Err(TensorError::TooDeep),
                Some(_) if self.depth > 0 => {
                    *steps -= 1;
                    return Ok(Stop::Element);
                }
                Some(_) => return Err(AccessError::NotArray.into()),
                None => return Err(SyntaxError::new(Reason::MissingCommaOrBracket, self.at).into()),
            }
            self.at += 1;
        }
    }
}
