//! A tensor's bytes as a flat JSON array, a bounded number of elements at a time.

use super::Element;
use super::double::DoubleText;
use super::writer::{Sink, write_string};

/// Text that collects before it goes to the sink; a sink may be a gather list, which is better fed in larger pieces.
const BATCH: usize = 4096;
const LONGEST_NUMBER: usize = 32;
/// Numbers that are written before the batch is looked at.
const PORTION: usize = 64;

/// A model's output is not what its data type says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MalformedTensor {
    #[error("{len} bytes are not a whole number of elements of {element_size} bytes")]
    PartialElement { len: usize, element_size: usize },
    #[error("incomplete string at byte {at} of a tensor of {len} bytes")]
    IncompleteString { at: usize, len: usize },
}

/// Writes one array. The bytes are little-endian; strings have their 32-bit lengths before them.
#[derive(Debug)]
pub struct ArrayWriter {
    /// `None` for strings.
    element: Option<Element>,
    at: usize,
    opened: bool,
}

impl ArrayWriter {
    pub fn numbers(element: Element) -> ArrayWriter {
        ArrayWriter { element: Some(element), at: 0, opened: false }
    }

    pub fn strings() -> ArrayWriter {
        ArrayWriter { element: None, at: 0, opened: false }
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

    /// Writes up to `max_elements` elements of `data`; true when the array is closed. `data` is the same in every
    /// call, and nothing is written after the end.
    pub fn step(
        &mut self,
        data: &[u8],
        sink: &mut (impl Sink + ?Sized),
        max_elements: usize,
    ) -> Result<bool, MalformedTensor> {
        if let Some(element) = self.element
            && !data.len().is_multiple_of(element.byte_size())
        {
            return Err(MalformedTensor::PartialElement { len: data.len(), element_size: element.byte_size() });
        }
        if !self.opened {
            self.opened = true;
            sink.put(b"[");
        }
        let mut batch = Vec::with_capacity(BATCH + PORTION * LONGEST_NUMBER);
        let mut left = max_elements;
        while left > 0
            && let Some(rest) = data.get(self.at..).filter(|rest| !rest.is_empty())
        {
            if self.at > 0 {
                batch.push(b',');
            }
            match self.element {
                Some(element) => {
                    let count = left.min(PORTION).min(rest.len() / element.byte_size());
                    let portion = rest.get(..count * element.byte_size()).unwrap_or(rest);
                    write_numbers(element, portion, &mut batch);
                    self.at += portion.len();
                    left -= count;
                }
                None => {
                    let incomplete = MalformedTensor::IncompleteString { at: self.at, len: data.len() };
                    let (len, behind) = rest.split_first_chunk().ok_or(incomplete)?;
                    let string = behind.get(..u32::from_le_bytes(*len) as usize).ok_or(incomplete)?;
                    write_string(&mut batch, string);
                    self.at += 4 + string.len();
                    left -= 1;
                }
            }
            if batch.len() >= BATCH {
                sink.put(&batch);
                batch.clear();
            }
        }
        let done = self.at == data.len();
        if done {
            batch.push(b']');
            // One past the end: a further call finds nothing to do.
            self.at = self.at.saturating_add(1);
        }
        sink.put(&batch);
        Ok(done || self.at > data.len())
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
