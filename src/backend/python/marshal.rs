//! Python's marshal format, as far as messages need it.
//!
//! A message is one value, which the interpreter reads and writes in one call of C code. Version 2 of the format has no
//! references and no short forms, and every Python 3 reads and writes it; a worker checks its interpreter for that at
//! its start. A list of byte strings in it is the wire's form of BYTES with a letter before each length.

use std::borrow::Cow;

/// The deepest nesting of values.
const DEPTH_MAX: u32 = 16;
/// The most values of one message: in memory each takes many times the one byte that it may take in the message.
const VALUES_MAX: usize = 1 << 21;
/// Bits of one digit of a large integer.
const DIGIT_BITS: u32 = 15;

/// A value that a worker sent.
#[derive(Debug, Clone, PartialEq)]
pub enum Value<'a> {
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Bytes(&'a [u8]),
    /// UTF-8, possibly with lone surrogates.
    Str(&'a [u8]),
    Tuple(Vec<Value<'a>>),
    List(Vec<Value<'a>>),
    Dict(Vec<(Value<'a>, Value<'a>)>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("a message ends too early")]
    Short,
    #[error("a message goes on after its end")]
    Long,
    #[error("a message holds a value of the unknown kind {0:#04x}")]
    Kind(u8),
    #[error("a message is nested too deeply")]
    Deep,
    #[error("a message holds more than {VALUES_MAX} values")]
    Many,
    #[error("a number of a message is too large")]
    Large,
    #[error("a message does not have the form of its kind")]
    Form,
}

impl<'a> Value<'a> {
    /// Reads `bytes`, which must be exactly one value.
    pub fn read(bytes: &'a [u8]) -> Result<Value<'a>, Malformed> {
        let mut reader = Reader { bytes, left: VALUES_MAX };
        let value = reader.value(0)?;
        if reader.bytes.is_empty() { Ok(value) } else { Err(Malformed::Long) }
    }

    pub fn as_int<T: TryFrom<i128>>(&self) -> Result<T, Malformed> {
        match self {
            Value::Int(value) => T::try_from(*value).map_err(|_| Malformed::Large),
            _ => Err(Malformed::Form),
        }
    }

    pub fn as_bool(&self) -> Result<bool, Malformed> {
        match self {
            Value::Bool(value) => Ok(*value),
            _ => Err(Malformed::Form),
        }
    }

    pub fn as_float(&self) -> Result<f64, Malformed> {
        match self {
            Value::Float(value) => Ok(*value),
            Value::Int(value) => Ok(*value as f64),
            _ => Err(Malformed::Form),
        }
    }

    pub fn as_bytes(&self) -> Result<&'a [u8], Malformed> {
        match self {
            Value::Bytes(bytes) => Ok(bytes),
            _ => Err(Malformed::Form),
        }
    }

    /// Text as the server writes it: invalid UTF-8 is replaced.
    pub fn as_text(&self) -> Result<Cow<'a, str>, Malformed> {
        match self {
            Value::Str(text) => Ok(String::from_utf8_lossy(text)),
            _ => Err(Malformed::Form),
        }
    }

    /// The values of a tuple or a list.
    pub fn as_sequence(&self) -> Result<&[Value<'a>], Malformed> {
        match self {
            Value::Tuple(values) | Value::List(values) => Ok(values),
            _ => Err(Malformed::Form),
        }
    }

    /// The values of a tuple of exactly `N`.
    pub fn as_tuple<const N: usize>(&self) -> Result<&[Value<'a>; N], Malformed> {
        self.as_sequence()?.try_into().map_err(|_| Malformed::Form)
    }

    /// `None` for None, else the result of `read`.
    pub fn optional<T>(&self, read: impl FnOnce(&Self) -> Result<T, Malformed>) -> Result<Option<T>, Malformed> {
        match self {
            Value::None => Ok(None),
            value => read(value).map(Some),
        }
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    /// The number of further values allowed.
    left: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (front, rest) = self.bytes.split_at_checked(len).ok_or(Malformed::Short)?;
        self.bytes = rest;
        Ok(front)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (front, rest) = self.bytes.split_first_chunk().ok_or(Malformed::Short)?;
        self.bytes = rest;
        Ok(*front)
    }

    fn i32(&mut self) -> Result<i32, Malformed> {
        self.array().map(i32::from_le_bytes)
    }

    /// A length; every element takes at least one byte.
    fn len(&mut self) -> Result<usize, Malformed> {
        let len = usize::try_from(self.i32()?).map_err(|_| Malformed::Large)?;
        if len > self.bytes.len() { Err(Malformed::Short) } else { Ok(len) }
    }

    fn values(&mut self, depth: u32) -> Result<Vec<Value<'a>>, Malformed> {
        let len = self.len()?;
        (0..len).map(|_| self.value(depth + 1)).collect()
    }

    fn value(&mut self, depth: u32) -> Result<Value<'a>, Malformed> {
        if depth > DEPTH_MAX {
            return Err(Malformed::Deep);
        }
        self.left = self.left.checked_sub(1).ok_or(Malformed::Many)?;
        Ok(match self.array::<1>()?[0] {
            b'N' => Value::None,
            b'T' => Value::Bool(true),
            b'F' => Value::Bool(false),
            b'i' => Value::Int(i128::from(self.i32()?)),
            b'l' => Value::Int(self.large()?),
            b'g' => Value::Float(f64::from_le_bytes(self.array()?)),
            b's' => {
                let len = self.len()?;
                Value::Bytes(self.take(len)?)
            }
            b'u' => {
                let len = self.len()?;
                Value::Str(self.take(len)?)
            }
            b'(' => Value::Tuple(self.values(depth)?),
            b'[' => Value::List(self.values(depth)?),
            b'{' => {
                let mut pairs = Vec::new();
                while self.bytes.first().ok_or(Malformed::Short)? != &b'0' {
                    pairs.push((self.value(depth + 1)?, self.value(depth + 1)?));
                }
                self.take(1)?;
                Value::Dict(pairs)
            }
            kind => return Err(Malformed::Kind(kind)),
        })
    }

    /// An integer by its digits, the lowest first; their number carries the sign.
    fn large(&mut self) -> Result<i128, Malformed> {
        let digits = self.i32()?;
        if digits.unsigned_abs() > 127 / DIGIT_BITS {
            return Err(Malformed::Large);
        }
        let mut value = 0i128;
        for place in 0..digits.unsigned_abs() {
            let digit = u16::from_le_bytes(self.array()?);
            if digit >> DIGIT_BITS > 0 {
                return Err(Malformed::Large);
            }
            value |= i128::from(digit) << (place * DIGIT_BITS);
        }
        Ok(if digits < 0 { -value } else { value })
    }
}

/// Writes one value, piece by piece: a tuple or list is announced with the number of its values.
#[derive(Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
    }

    pub fn none(&mut self) {
        self.bytes.push(b'N');
    }

    pub fn bool(&mut self, value: bool) {
        self.bytes.push(if value { b'T' } else { b'F' });
    }

    pub fn int(&mut self, value: impl Into<i128>) {
        let value = value.into();
        match i32::try_from(value) {
            Ok(value) => {
                self.bytes.push(b'i');
                self.bytes.extend_from_slice(&value.to_le_bytes());
            }
            Err(_) => self.large(value),
        }
    }

    fn large(&mut self, value: i128) {
        self.bytes.push(b'l');
        let mut rest = value.unsigned_abs();
        let count = (128 - rest.leading_zeros()).div_ceil(DIGIT_BITS) as i32;
        self.bytes.extend_from_slice(&(if value < 0 { -count } else { count }).to_le_bytes());
        while rest > 0 {
            self.bytes.extend_from_slice(&((rest & 0x7fff) as u16).to_le_bytes());
            rest >>= DIGIT_BITS;
        }
    }

    pub fn float(&mut self, value: f64) {
        self.bytes.push(b'g');
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// Writes the start of a byte string; the caller appends its `len` bytes. Lengths are below 2 GiB: callers put
    /// larger ones into shared memory.
    pub fn bytes_head(&mut self, len: usize) {
        self.head(b's', len);
    }

    /// Lets `write` append the announced bytes.
    pub fn append<E>(&mut self, write: impl FnOnce(&mut Vec<u8>) -> Result<(), E>) -> Result<(), E> {
        write(&mut self.bytes)
    }

    /// Writes text; invalid UTF-8 is replaced, because the interpreter would refuse the message.
    pub fn text(&mut self, value: &[u8]) {
        let text = String::from_utf8_lossy(value);
        self.head(b'u', text.len());
        self.bytes.extend_from_slice(text.as_bytes());
    }

    pub fn tuple(&mut self, len: usize) {
        self.head(b'(', len);
    }

    pub fn list(&mut self, len: usize) {
        self.head(b'[', len);
    }

    fn head(&mut self, kind: u8, len: usize) {
        self.bytes.push(kind);
        self.bytes.extend_from_slice(&u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that Python 3.11 wrote with `marshal.dumps(value, 2)`.
    #[test]
    fn what_python_writes_is_read() {
        let cases: [(&[u8], Value<'_>); 9] = [
            (b"N", Value::None),
            (b"(\x02\0\0\0TF", Value::Tuple(vec![Value::Bool(true), Value::Bool(false)])),
            (b"i\xff\xff\xff\xff", Value::Int(-1)),
            (b"l\x03\0\0\0\0\0\0\0\x02\0", Value::Int(1 << 31)),
            (b"l\xfd\xff\xff\xff\0\0\0\0\x04\0", Value::Int(-(1 << 32))),
            (b"g\0\0\0\0\0\0\xf8?", Value::Float(1.5)),
            (b"s\x02\0\0\0\0a", Value::Bytes(b"\0a")),
            (b"[\x01\0\0\0u\x02\0\0\0\xc3\xa9", Value::List(vec![Value::Str("é".as_bytes())])),
            (b"{u\x01\0\0\0ai\x01\0\0\x000", Value::Dict(vec![(Value::Str(b"a"), Value::Int(1))])),
        ];
        for (bytes, value) in cases {
            assert_eq!(Value::read(bytes), Ok(value), "{bytes:?}");
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let numbers = [0, 1, -1, i128::from(i32::MAX), 1 << 31, -(1 << 31) - 1, i128::from(u64::MAX), -(1 << 63)];
        let mut writer = Writer::default();
        writer.tuple(numbers.len() + 4);
        numbers.iter().for_each(|number| writer.int(*number));
        writer.text(b"a\xffb");
        writer.bytes_head(3);
        writer
            .append(|bytes| {
                bytes.extend_from_slice(b"xyz");
                Ok::<(), ()>(())
            })
            .unwrap();
        writer.float(-0.25);
        writer.list(1);
        writer.none();
        let Value::Tuple(values) = Value::read(writer.bytes()).unwrap() else { panic!("a tuple") };
        let read: Vec<i128> = values[..numbers.len()].iter().map(|value| value.as_int().unwrap()).collect();
        assert_eq!(read, numbers);
        let rest = &values[numbers.len()..];
        assert_eq!(rest[0].as_text().unwrap(), "a\u{fffd}b");
        assert_eq!(rest[1], Value::Bytes(b"xyz"));
        assert_eq!(rest[2], Value::Float(-0.25));
        assert_eq!(rest[3], Value::List(vec![Value::None]));
    }

    #[test]
    fn malformed_messages_are_refused() {
        let deep = b"(\x01\0\0\0".repeat(40);
        let cases: [(&[u8], Malformed); 10] = [
            (b"", Malformed::Short),
            (b"NN", Malformed::Long),
            (b"c", Malformed::Kind(b'c')),
            (b"s\x05\0\0\0abcd", Malformed::Short),
            (b"(\xff\xff\xff\x7fN", Malformed::Short),
            (b"(\xff\xff\xff\xffN", Malformed::Large),
            (b"l\x40\0\0\0", Malformed::Large),
            (b"l\x01\0\0\0\0\x80", Malformed::Large),
            (b"{N", Malformed::Short),
            (&deep, Malformed::Deep),
        ];
        for (bytes, error) in cases {
            assert_eq!(Value::read(bytes), Err(error), "{bytes:?}");
        }
        let many = [&b"[\x01\0\x20\0"[..], &vec![b'N'; VALUES_MAX + 1]].concat();
        assert_eq!(Value::read(&many), Err(Malformed::Many));
        let most = [&b"[\xff\xff\x1f\0"[..], &vec![b'N'; VALUES_MAX - 1]].concat();
        assert!(Value::read(&most).is_ok());
        assert_eq!(Value::Int(300).as_int::<u8>(), Err(Malformed::Large));
        assert_eq!(Value::None.as_int::<u8>(), Err(Malformed::Form));
    }
}
