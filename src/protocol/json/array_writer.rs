//! A tensor's bytes as a flat JSON array, a bounded number of elements at a time.

use super::Element;
use super::double::DoubleText;
use super::writer::{Sink, write_characters};

/// Text that collects before it goes to the sink; a sink may be a gather list, which is better fed in larger pieces.
const BATCH: usize = 4096;
const LONGEST_NUMBER: usize = 32;
/// Numbers that are written before the batch is checked.
const PORTION: usize = 64;

/// Bytes of strings that one step writes at most.
const STRING_BYTES_AT_ONCE: usize = super::STEP_BYTES / 2;

/// A model's output does not have the length of its data type and shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MalformedTensor {
    #[error("{len} bytes are not a whole number of elements of {element_size} bytes")]
    PartialElement { len: usize, element_size: usize },
    #[error("{len} bytes are not {count} elements of {element_size} bytes")]
    WrongSize { len: usize, count: usize, element_size: usize },
    #[error("incomplete string at byte {at} of a tensor of {len} bytes")]
    IncompleteString { at: usize, len: usize },
}

/// Writes one array. The bytes are little-endian; strings have their 32-bit lengths before them.
#[derive(Debug)]
pub struct ArrayWriter {
    /// `None` for strings.
    element: Option<Element>,
    /// Elements that there are by the tensor's shape; `None`: as many as there are bytes for.
    count: Option<usize>,
    /// The value of a single element, without brackets.
    is_bare: bool,
    at: usize,
    /// Strings that are written, and what is left of the one that is begun.
    strings: usize,
    begun: Option<usize>,
    opened: bool,
    closed: bool,
}

impl ArrayWriter {
    pub fn numbers(element: Element) -> ArrayWriter {
        ArrayWriter { element: Some(element), ..ArrayWriter::strings() }
    }

    pub fn strings() -> ArrayWriter {
        ArrayWriter {
            element: None,
            count: None,
            is_bare: false,
            at: 0,
            strings: 0,
            begun: None,
            opened: false,
            closed: false,
        }
    }

    /// The same of a tensor that has so many elements by its shape. Bytes behind that many strings are left out.
    pub fn of(self, count: usize) -> ArrayWriter {
        ArrayWriter { count: Some(count), ..self }
    }

    /// The same without brackets.
    pub fn bare(self) -> ArrayWriter {
        ArrayWriter { is_bare: true, ..self }
    }

    /// What its elements are; `None` for strings.
    pub fn element(&self) -> Option<Element> {
        self.element
    }

    /// Writes a whole array of numbers at once.
    pub fn write(element: Element, data: &[u8], out: &mut Vec<u8>) -> Result<(), MalformedTensor> {
        if !data.len().is_multiple_of(element.byte_size()) {
            return Err(MalformedTensor::PartialElement { len: data.len(), element_size: element.byte_size() });
        }
        out.push(b'[');
        write_numbers(element, data, out);
        out.push(b']');
        Ok(())
    }

    /// Writes up to `max_elements` elements of `data`, and a bounded number of bytes of strings; true when the array is
    /// closed. `data` is the same in every call, and nothing is written after the end.
    pub fn step(
        &mut self,
        data: &[u8],
        sink: &mut (impl Sink + ?Sized),
        max_elements: usize,
    ) -> Result<bool, MalformedTensor> {
        self.check(data.len())?;
        if !std::mem::replace(&mut self.opened, true) && !self.is_bare {
            sink.put(b"[");
        }
        let mut batch = Vec::with_capacity(BATCH + PORTION * LONGEST_NUMBER);
        let mut left = max_elements;
        let mut bytes_left = STRING_BYTES_AT_ONCE;
        while left > 0 && bytes_left > 0 && !self.is_over(data.len()) {
            if self.at > 0 && self.begun.is_none() {
                batch.push(b',');
            }
            match self.element {
                Some(element) => {
                    let rest = data.get(self.at..).unwrap_or_default();
                    let count = left.min(PORTION).min(rest.len() / element.byte_size());
                    let portion = rest.get(..count * element.byte_size()).unwrap_or(rest);
                    write_numbers(element, portion, &mut batch);
                    self.at += portion.len();
                    left -= count;
                }
                None => {
                    let written = self.write_string(data, &mut batch)?;
                    bytes_left = bytes_left.saturating_sub(written);
                    left -= usize::from(self.begun.is_none());
                }
            }
            if batch.len() >= BATCH {
                sink.put(&batch);
                batch.clear();
            }
        }
        let closes = !self.closed && self.is_over(data.len());
        if closes && !self.is_bare {
            batch.push(b']');
        }
        self.closed |= closes;
        sink.put(&batch);
        Ok(self.closed)
    }

    fn check(&self, len: usize) -> Result<(), MalformedTensor> {
        let Some(element_size) = self.element.map(Element::byte_size) else { return Ok(()) };
        match self.count {
            Some(count) if count.checked_mul(element_size) != Some(len) => {
                Err(MalformedTensor::WrongSize { len, count, element_size })
            }
            None if !len.is_multiple_of(element_size) => Err(MalformedTensor::PartialElement { len, element_size }),
            _ => Ok(()),
        }
    }

    /// All elements are written.
    fn is_over(&self, len: usize) -> bool {
        match (self.element, self.count) {
            (None, Some(count)) => self.strings >= count && self.begun.is_none(),
            _ => self.at >= len && self.begun.is_none(),
        }
    }

    /// Writes the next bytes of a string, or of the next one; returns how many.
    fn write_string(&mut self, data: &[u8], batch: &mut Vec<u8>) -> Result<usize, MalformedTensor> {
        let left = match self.begun {
            Some(left) => left,
            None => {
                let incomplete = MalformedTensor::IncompleteString { at: self.at, len: data.len() };
                let rest = data.get(self.at..).unwrap_or_default();
                let (len, behind) = rest.split_first_chunk().ok_or(incomplete)?;
                let len = u32::from_le_bytes(*len) as usize;
                if len > behind.len() {
                    return Err(incomplete);
                }
                self.at += 4;
                batch.push(b'"');
                len
            }
        };
        let portion = data.get(self.at..self.at + left.min(BATCH)).unwrap_or_default();
        write_characters(batch, portion);
        self.at += portion.len();
        let left = left - portion.len();
        self.begun = (left > 0).then_some(left);
        if left == 0 {
            batch.push(b'"');
            self.strings += 1;
        }
        Ok(portion.len())
    }
}

/// Writes elements with commas between them; `data` is a whole number of them.
fn write_numbers(element: Element, data: &[u8], out: &mut Vec<u8>) {
    fn each<const N: usize>(data: &[u8], out: &mut Vec<u8>, write: impl Fn([u8; N], &mut Vec<u8>)) {
        for (at, element) in data.as_chunks::<N>().0.iter().enumerate() {
            if at > 0 {
                out.push(b',');
            }
            write(*element, out);
        }
    }
    fn integer(value: impl itoa::Integer, out: &mut Vec<u8>) {
        out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
    }
    match element {
        Element::Bool => each(data, out, |[byte], out| {
            out.extend_from_slice(if byte == 0 { b"false" } else { b"true" });
        }),
        Element::U8 => each(data, out, |bytes, out| integer(u8::from_le_bytes(bytes), out)),
        Element::U16 => each(data, out, |bytes, out| integer(u16::from_le_bytes(bytes), out)),
        Element::U32 => each(data, out, |bytes, out| integer(u32::from_le_bytes(bytes), out)),
        Element::U64 => each(data, out, |bytes, out| integer(u64::from_le_bytes(bytes), out)),
        Element::I8 => each(data, out, |bytes, out| integer(i8::from_le_bytes(bytes), out)),
        Element::I16 => each(data, out, |bytes, out| integer(i16::from_le_bytes(bytes), out)),
        Element::I32 => each(data, out, |bytes, out| integer(i32::from_le_bytes(bytes), out)),
        Element::I64 => each(data, out, |bytes, out| integer(i64::from_le_bytes(bytes), out)),
        Element::F32 => each(data, out, |bytes, out| {
            out.extend_from_slice(DoubleText::new().of(f64::from(f32::from_le_bytes(bytes))));
        }),
        Element::F64 => each(data, out, |bytes, out| {
            out.extend_from_slice(DoubleText::new().of(f64::from_le_bytes(bytes)));
        }),
    }
}
