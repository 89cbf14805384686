//! Strings of a tensor's `data`, turned into the form in which BYTES tensors travel.
//!
//! That form is a little-endian 32-bit length before each string (spec http.md, section 5). The first pass measures,
//! so that the caller can compare the size with its limit and take one buffer of the right length; the second fills.

use std::ops::Range;

use super::text::{self, TextSpan};
use super::value::AccessError;
use super::walk::{Stop, TensorError, Walk};

/// Reads the array of strings at a byte range that a [`Document`](super::Document) or [`Reader`](super::Reader) has
/// checked.
#[derive(Debug)]
pub struct StringsReader {
    span: Range<usize>,
    walk: Walk,
    measured: usize,
    count: usize,
    filled: usize,
    scratch: Vec<u8>,
}

impl StringsReader {
    pub fn new(span: Range<usize>) -> StringsReader {
        let walk = Walk::new(span.clone());
        StringsReader { span, walk, measured: 0, count: 0, filled: 0, scratch: Vec::new() }
    }

    /// Measures up to `max_steps` strings and brackets; true when all are measured. Strings are not counted against a
    /// shape here: Triton leaves that to the check of the request.
    pub fn measure(&mut self, input: &[u8], mut max_steps: usize) -> Result<bool, TensorError> {
        while let Some(string) = self.next(input, &mut max_steps)? {
            self.measured = self.measured.saturating_add(4).saturating_add(self.decode(input, string).len());
            self.count += 1;
        }
        self.rewind_if_done(input)
    }

    /// Bytes of the tensor, once [`measure`](StringsReader::measure) is done.
    pub fn byte_size(&self) -> usize {
        self.measured
    }

    /// Number of strings, once [`measure`](StringsReader::measure) is done.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Writes up to `max_steps` strings into `out`, which has the measured length; true when all are written. `input`
    /// and `out` are the same in every call.
    pub fn fill(&mut self, input: &[u8], out: &mut [u8], mut max_steps: usize) -> Result<bool, TensorError> {
        while let Some(string) = self.next(input, &mut max_steps)? {
            let at = self.filled;
            let bytes = self.decode(input, string);
            let len = u32::try_from(bytes.len()).map_err(|_| TensorError::Excess)?;
            let end = at.saturating_add(4).saturating_add(bytes.len());
            let (head, body) =
                out.get_mut(at..end).and_then(<[u8]>::split_first_chunk_mut).ok_or(TensorError::Excess)?;
            *head = len.to_le_bytes();
            body.copy_from_slice(bytes);
            self.filled = end;
        }
        match self.rewind_if_done(input)? {
            true if self.filled != out.len() => Err(TensorError::Shortage),
            done => Ok(done),
        }
    }

    fn next(&mut self, input: &[u8], steps: &mut usize) -> Result<Option<TextSpan>, TensorError> {
        let Stop::Element = self.walk.next(input, steps)? else { return Ok(None) };
        if input.get(self.walk.at) != Some(&b'"') {
            return Err(AccessError::NotString.into());
        }
        let string = text::scan(input, self.walk.at)?;
        self.walk.at = string.end + 1;
        Ok(Some(string))
    }

    fn decode<'a>(&'a mut self, input: &'a [u8], string: TextSpan) -> &'a [u8] {
        let raw = input.get(string.start..string.end).unwrap_or_default();
        if !string.escaped {
            return raw;
        }
        self.scratch.clear();
        text::decode(raw, &mut self.scratch);
        &self.scratch
    }

    /// After the last string the walk starts again, for the pass that fills.
    fn rewind_if_done(&mut self, input: &[u8]) -> Result<bool, TensorError> {
        let done = matches!(self.walk.next(input, &mut 0)?, Stop::End);
        if done {
            self.walk = Walk::new(self.span.clone());
        }
        Ok(done)
    }
}
