//! Numbers and booleans of a tensor's `data`, parsed straight into the tensor's buffer.
//!
//! The rules are those of contract/http.md section 5, and contract/http.md, H10: an integer that its type has no room
//! for is refused, FP32 is narrowed from a double (so that 1e39 is infinite), and the number of elements must be that
//! of the shape.

use std::ops::Range;

use super::Element;
use super::number::{self, Scanned};
use super::value::AccessError;
use super::walk::{Stop, TensorError, Walk};

/// Evaluates an expression with the function that reads one element of a kind, once for each kind.
macro_rules! with_reader {
    ($element:expr, |$read:ident| $body:expr) => {{
        use $crate::json::Element;
        use $crate::json::numbers::{boolean, double, fit, signed, unsigned};
        match $element {
            Element::Bool => {
                let $read = boolean;
                $body
            }
            Element::U8 => {
                let $read = |input: &[u8], at: &mut usize| unsigned(input, at, |v| fit(v, u8::to_le_bytes), "UINT8");
                $body
            }
            Element::U16 => {
                let $read = |input: &[u8], at: &mut usize| unsigned(input, at, |v| fit(v, u16::to_le_bytes), "UINT16");
                $body
            }
            Element::U32 => {
                let $read = |input: &[u8], at: &mut usize| unsigned(input, at, |v| fit(v, u32::to_le_bytes), "UINT32");
                $body
            }
            Element::U64 => {
                let $read = |input: &[u8], at: &mut usize| unsigned(input, at, |v| fit(v, u64::to_le_bytes), "UINT64");
                $body
            }
            Element::I8 => {
                let $read = |input: &[u8], at: &mut usize| signed(input, at, |v| fit(v, i8::to_le_bytes), "INT8");
                $body
            }
            Element::I16 => {
                let $read = |input: &[u8], at: &mut usize| signed(input, at, |v| fit(v, i16::to_le_bytes), "INT16");
                $body
            }
            Element::I32 => {
                let $read = |input: &[u8], at: &mut usize| signed(input, at, |v| fit(v, i32::to_le_bytes), "INT32");
                $body
            }
            Element::I64 => {
                let $read = |input: &[u8], at: &mut usize| signed(input, at, |v| fit(v, i64::to_le_bytes), "INT64");
                $body
            }
            Element::F32 => {
                let $read = |input: &[u8], at: &mut usize| double(input, at, |v| (v as f32).to_le_bytes());
                $body
            }
            Element::F64 => {
                let $read = |input: &[u8], at: &mut usize| double(input, at, f64::to_le_bytes);
                $body
            }
        }
    }};
}
pub(super) use with_reader;

/// Fills a little-endian buffer from the array at a byte range that a [`Document`](super::Document) or
/// [`Reader`](super::Reader) has checked. Flat and nested arrays are the same to it.
#[derive(Debug)]
pub struct NumbersReader {
    walk: Walk,
    element: Element,
    /// Bytes of the buffer that hold elements.
    filled: usize,
}

impl NumbersReader {
    pub fn new(element: Element, span: Range<usize>) -> NumbersReader {
        NumbersReader { walk: Walk::new(span), element, filled: 0 }
    }

    /// Reads up to `max_steps` elements and brackets into `out`, whose length is that of the whole tensor; true when
    /// the array is complete and `out` is full. `input` and `out` are the same in every call.
    pub fn step(&mut self, input: &[u8], out: &mut [u8], max_steps: usize) -> Result<bool, TensorError> {
        self.walk.begin_step();
        with_reader!(self.element, |read| self.fill(input, out, max_steps, read))
    }

    /// Where in the text the search for the next element begins.
    pub fn position(&self) -> usize {
        self.walk.at
    }

    /// Elements read so far.
    pub fn count(&self) -> usize {
        self.filled / self.element.byte_size()
    }

    fn fill<const N: usize>(
        &mut self,
        input: &[u8],
        out: &mut [u8],
        mut steps: usize,
        read: impl Fn(&[u8], &mut usize) -> Result<[u8; N], TensorError>,
    ) -> Result<bool, TensorError> {
        loop {
            match self.walk.next(input, &mut steps)? {
                Stop::Pause => return Ok(false),
                Stop::End if self.filled == out.len() => return Ok(true),
                Stop::End => return Err(TensorError::Shortage),
                Stop::Element => {
                    // Triton checks for room before it checks the element.
                    let rest = out.get_mut(self.filled..).and_then(<[u8]>::first_chunk_mut::<N>);
                    let room = rest.ok_or(TensorError::Excess)?;
                    *room = read(input, &mut self.walk.at)?;
                    self.filled += N;
                }
            }
        }
    }
}

pub(super) fn boolean(input: &[u8], at: &mut usize) -> Result<[u8; 1], TensorError> {
    let rest = input.get(*at..).unwrap_or_default();
    let (value, len) = if rest.starts_with(b"true") {
        (1, 4)
    } else if rest.starts_with(b"false") {
        (0, 5)
    } else {
        return Err(AccessError::NotBoolean.into());
    };
    *at += len;
    Ok([value])
}

#[inline(always)]
pub(super) fn unsigned<const N: usize>(
    input: &[u8],
    at: &mut usize,
    bytes: impl Fn(u64) -> Option<[u8; N]>,
    datatype: &'static str,
) -> Result<[u8; N], TensorError> {
    if let Some(short) = number::scan_short(input, *at)
        && let Some((value, false)) = short.to_integer()
    {
        *at = short.end;
        return bytes(value).ok_or_else(|| out_of_range(datatype, value.into()));
    }
    let value = scan(input, at, AccessError::NotUnsigned)?.value(input);
    let value = value.as_u64().ok_or(AccessError::NotUnsigned)?;
    bytes(value).ok_or_else(|| out_of_range(datatype, value.into()))
}

#[inline(always)]
pub(super) fn signed<const N: usize>(
    input: &[u8],
    at: &mut usize,
    bytes: impl Fn(i64) -> Option<[u8; N]>,
    datatype: &'static str,
) -> Result<[u8; N], TensorError> {
    if let Some(short) = number::scan_short(input, *at)
        && let Some((value, negative)) = short.to_integer()
    {
        // At most 15 digits: it fits.
        let value = value as i64;
        let value = if negative { -value } else { value };
        *at = short.end;
        return bytes(value).ok_or_else(|| out_of_range(datatype, value.into()));
    }
    let value = scan(input, at, AccessError::NotSigned)?.value(input);
    let value = value.as_i64().ok_or(AccessError::NotSigned)?;
    bytes(value).ok_or_else(|| out_of_range(datatype, value.into()))
}

#[inline(always)]
pub(super) fn double<const N: usize>(
    input: &[u8],
    at: &mut usize,
    bytes: impl Fn(f64) -> [u8; N],
) -> Result<[u8; N], TensorError> {
    if let Some(short) = number::scan_short(input, *at) {
        let value = short.to_f64(input, *at);
        *at = short.end;
        return Ok(bytes(value));
    }
    Ok(bytes(scan(input, at, AccessError::NotNumber)?.to_f64(input)))
}

/// The bytes of a value that has room in its type.
#[inline(always)]
pub(super) fn fit<V, T: TryFrom<V>, const N: usize>(value: V, bytes: impl Fn(T) -> [u8; N]) -> Option<[u8; N]> {
    T::try_from(value).ok().map(bytes)
}

#[cold]
fn out_of_range(datatype: &'static str, value: i128) -> TensorError {
    TensorError::OutOfRange { datatype, value }
}

/// Any number.
#[cold]
fn scan(input: &[u8], at: &mut usize, other: AccessError) -> Result<Scanned, TensorError> {
    if matches!(input.get(*at), Some(b'"' | b'{' | b't' | b'f' | b'n')) {
        return Err(other.into());
    }
    let scanned = number::scan(input, *at)?;
    *at = scanned.end;
    Ok(scanned)
}
