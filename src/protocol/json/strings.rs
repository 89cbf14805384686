//! Strings of a tensor's `data`, turned into the form in which BYTES tensors travel.
//!
//! That form is a little-endian 32-bit length before each string (contract/http.md section 5). The first pass measures,
//! so that the caller can compare the size with its limit and take one buffer of the right length; the second fills.

use std::ops::Range;

use super::STEP_BYTES;
use super::syntax::{Reason, SyntaxError};
use super::text::{self, Scan, TextSpan};
use super::value::AccessError;
use super::walk::{Stop, TensorError, Walk};

/// Reads the array of strings at a byte range that a [`Document`](super::Document) or [`Reader`](super::Reader) has
/// checked.
#[derive(Debug)]
pub struct StringsReader {
    span: Range<usize>,
    /// The range is that of one string, without its quotes.
    is_single: bool,
    walk: Walk,
    measured: usize,
    count: usize,
    filled: usize,
    /// Decoded bytes so far of the string that is being read; a long one takes several steps.
    open: Option<usize>,
    scratch: Vec<u8>,
}

impl StringsReader {
    pub fn new(span: Range<usize>) -> StringsReader {
        let walk = Walk::new(span.clone());
        let is_single = false;
        StringsReader { span, is_single, walk, measured: 0, count: 0, filled: 0, open: None, scratch: Vec::new() }
    }

    /// Reads one string, at the range between its quotes.
    pub fn single(span: Range<usize>) -> StringsReader {
        StringsReader { is_single: true, ..StringsReader::new(span) }
    }

    /// Measures up to `max_steps` strings and brackets; true when all are measured. Strings are not counted against a
    /// shape here: Triton leaves that to the check of the request.
    pub fn measure(&mut self, input: &[u8], mut max_steps: usize) -> Result<bool, TensorError> {
        self.walk.begin_step();
        while self.is_in_string(input, &mut max_steps)? {
            let before = self.open.unwrap_or(0);
            let (piece, is_last) = self.piece(input)?;
            let len = before.saturating_add(piece.len());
            self.open = Some(len);
            if is_last {
                self.measured = self.measured.saturating_add(4).saturating_add(len);
                self.count += 1;
                self.open = None;
            }
        }
        self.rewind_if_done(input)
    }

    /// Bytes of the tensor, once [`measure`](StringsReader::measure) is done.
    pub fn byte_size(&self) -> usize {
        self.measured
    }

    /// Where in the text the step ended.
    pub fn position(&self) -> usize {
        self.walk.at
    }

    /// Number of strings, once [`measure`](StringsReader::measure) is done.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Writes up to `max_steps` strings into `out`, which has the measured length; true when all are written. `input`
    /// and `out` are the same in every call.
    pub fn fill(&mut self, input: &[u8], out: &mut [u8], mut max_steps: usize) -> Result<bool, TensorError> {
        self.walk.begin_step();
        while self.is_in_string(input, &mut max_steps)? {
            let (head_at, before) = (self.filled, self.open.unwrap_or(0));
            let (piece, is_last) = self.piece(input)?;
            let from = head_at.saturating_add(4).saturating_add(before);
            let to = out.get_mut(from..from.saturating_add(piece.len())).ok_or(TensorError::Excess)?;
            to.copy_from_slice(piece);
            let len = before.saturating_add(piece.len());
            self.open = Some(len);
            if is_last {
                let head = u32::try_from(len).map_err(|_| TensorError::Excess)?.to_le_bytes();
                let place = out.get_mut(head_at..head_at.saturating_add(4)).ok_or(TensorError::Excess)?;
                place.copy_from_slice(&head);
                self.filled = head_at + 4 + len;
                self.open = None;
            }
        }
        match self.rewind_if_done(input)? {
            true if self.filled != out.len() => Err(TensorError::Shortage),
            done => Ok(done),
        }
    }

    /// Goes to the next string, unless one is being read; false where the step or the array ends.
    fn is_in_string(&mut self, input: &[u8], steps: &mut usize) -> Result<bool, TensorError> {
        if self.open.is_some() {
            return Ok(!self.walk.is_step_over());
        }
        if self.is_single {
            self.open = (self.walk.at == self.span.start).then_some(0);
            return Ok(self.open.is_some());
        }
        let Stop::Element = self.walk.next(input, steps)? else { return Ok(false) };
        if input.get(self.walk.at) != Some(&b'"') {
            return Err(AccessError::NotString.into());
        }
        self.walk.at += 1;
        self.open = Some(0);
        Ok(true)
    }

    /// Whether the last string is read.
    fn is_done(&mut self, input: &[u8]) -> Result<bool, TensorError> {
        Ok(match self.is_single {
            // Behind the closing quote.
            true => self.walk.at > self.span.end,
            false => matches!(self.walk.next(input, &mut 0)?, Stop::End),
        })
    }

    /// The next bytes of the string, decoded, and whether they are its last.
    fn piece<'a>(&'a mut self, input: &'a [u8]) -> Result<(&'a [u8], bool), TensorError> {
        let at = self.walk.at;
        let begun = TextSpan { start: at, end: at, escaped: false };
        let (piece, is_last) = match text::scan_on(input, begun, at.saturating_add(STEP_BYTES))? {
            Scan::Done(piece) => (piece, true),
            Scan::Paused(piece) if piece.end > at => (piece, false),
            Scan::Paused(_) => return Err(SyntaxError::new(Reason::MissingQuote, at).into()),
        };
        self.walk.at = piece.end + usize::from(is_last);
        let raw = input.get(piece.start..piece.end).unwrap_or_default();
        if !piece.escaped {
            return Ok((raw, is_last));
        }
        self.scratch.clear();
        text::decode(raw, &mut self.scratch);
        Ok((&self.scratch, is_last))
    }

    /// After the last string the walk starts again, for the pass that fills.
    fn rewind_if_done(&mut self, input: &[u8]) -> Result<bool, TensorError> {
        let done = self.open.is_none() && self.is_done(input)?;
        if done {
            self.walk = Walk::new(self.span.clone());
        }
        Ok(done)
    }
}
