//! Elements of each datatype as bytes, from numbers, strings, or nothing.

use super::random::Random;
use super::{DataError, DataPlan, datatype};
use crate::TensorFacts;
use nereid_request::DataType;

/// Writes the elements of one tensor.
#[derive(Debug, Clone, Copy)]
pub struct Elements {
    pub datatype: DataType,
}

/// An element as a file contains it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Element<'a> {
    Bool(bool),
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Text(&'a str),
}

impl std::fmt::Display for Element<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Element::Bool(value) => value.fmt(f),
            Element::Unsigned(value) => value.fmt(f),
            Element::Signed(value) => value.fmt(f),
            Element::Float(value) => value.fmt(f),
            Element::Text(value) => {
                // Text of a file is repeated up to a bounded length.
                let shown: String = value.chars().take(40).collect();
                write!(f, "{shown:?}")
            }
        }
    }
}

impl Elements {
    pub fn of(facts: &TensorFacts) -> Result<Elements, DataError> {
        Ok(Elements { datatype: datatype(facts)? })
    }

    /// `count` elements, zeros without a source of chance. What they take is taken from `room`.
    pub fn generate(
        self,
        count: usize,
        random: Option<&mut Random>,
        plan: &DataPlan,
        room: &mut usize,
    ) -> Result<Vec<u8>, DataError> {
        let text = plan.string.as_deref().map(str::as_bytes);
        let width = match (self.datatype, text, &random) {
            (DataType::Bytes, Some(text), _) => text.len().saturating_add(4),
            (DataType::Bytes, None, Some(_)) => plan.string_length.saturating_add(4),
            (DataType::Bytes, None, None) => 4,
            _ => self.datatype.byte_size(),
        };
        let size = count.checked_mul(width).filter(|size| size <= room).ok_or(DataError::TooLarge)?;
        *room -= size;
        let mut bytes = Vec::with_capacity(size);
        match (random, text) {
            (_, Some(text)) if self.datatype == DataType::Bytes => {
                (0..count).for_each(|_| put_string(&mut bytes, text));
            }
            (None, _) => bytes.resize(size, 0),
            (Some(random), _) => (0..count).for_each(|_| self.put_random(&mut bytes, random, plan.string_length)),
        }
        Ok(bytes)
    }

    /// Floats are from 0 to 1, so that no sum of them is infinite; integers are any.
    fn put_random(self, bytes: &mut Vec<u8>, random: &mut Random, string_length: usize) {
        match self.datatype {
            DataType::Bool => bytes.push((random.next() >> 63) as u8),
            DataType::Fp16 => bytes.extend(half(random.fraction()).to_le_bytes()),
            DataType::Bf16 => bytes.extend(brain_float(random.fraction()).to_le_bytes()),
            DataType::Fp32 => bytes.extend((random.fraction() as f32).to_le_bytes()),
            DataType::Fp64 => bytes.extend(random.fraction().to_le_bytes()),
            DataType::Bytes => {
                put_length(bytes, string_length);
                bytes.extend((0..string_length).map(|_| random.letter()));
            }
            _ => {
                let value = random.next().to_le_bytes();
                bytes.extend(value.iter().take(self.datatype.byte_size()));
            }
        }
    }

    /// Appends one element; the error states what was expected.
    pub fn put(self, bytes: &mut Vec<u8>, element: Element<'_>) -> Result<(), String> {
        let wrong = || format!("{element} is no {}", self.datatype);
        match self.datatype {
            DataType::Bytes => match element {
                Element::Text(text) => put_string(bytes, text.as_bytes()),
                _ => return Err(wrong()),
            },
            DataType::Bool => {
                let value = match element {
                    Element::Bool(value) => value,
                    Element::Unsigned(0) => false,
                    Element::Unsigned(1) => true,
                    _ => return Err(wrong()),
                };
                bytes.push(u8::from(value));
            }
            DataType::Fp16 | DataType::Bf16 | DataType::Fp32 | DataType::Fp64 => {
                let value = match element {
                    Element::Unsigned(value) => value as f64,
                    Element::Signed(value) => value as f64,
                    Element::Float(value) => value,
                    Element::Bool(_) | Element::Text(_) => return Err(wrong()),
                };
                match self.datatype {
                    DataType::Fp16 => bytes.extend(half(value).to_le_bytes()),
                    DataType::Bf16 => bytes.extend(brain_float(value).to_le_bytes()),
                    DataType::Fp32 => bytes.extend((value as f32).to_le_bytes()),
                    _ => bytes.extend(value.to_le_bytes()),
                }
            }
            _ => {
                let value = match element {
                    Element::Unsigned(value) => i128::from(value),
                    Element::Signed(value) => i128::from(value),
                    // 3.0 is what some programs write for 3.
                    Element::Float(value) if value.fract() == 0.0 && value.abs() < 9e15 => value as i128,
                    _ => return Err(wrong()),
                };
                let (least, most) = bounds(self.datatype);
                if value < least || value > most {
                    return Err(wrong());
                }
                bytes.extend(value.to_le_bytes().iter().take(self.datatype.byte_size()));
            }
        }
        Ok(())
    }
}

/// One string as raw contents hold it.
pub fn put_string(bytes: &mut Vec<u8>, text: &[u8]) {
    put_length(bytes, text.len());
    bytes.extend_from_slice(text);
}

/// What is longer than a length field can hold is beyond [`super::DATA_BYTES_MAX`].
fn put_length(bytes: &mut Vec<u8>, length: usize) {
    bytes.extend(u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
}

/// How many strings raw contents hold; `None` if they are cut off.
pub fn count_strings(mut bytes: &[u8]) -> Option<usize> {
    let mut count = 0;
    while !bytes.is_empty() {
        let (length, rest) = bytes.split_first_chunk::<4>()?;
        bytes = rest.get(usize::try_from(u32::from_le_bytes(*length)).ok()?..)?;
        count += 1;
    }
    Some(count)
}

fn bounds(datatype: DataType) -> (i128, i128) {
    let bits = datatype.byte_size() as u32 * 8;
    match datatype {
        DataType::Uint8 | DataType::Uint16 | DataType::Uint32 | DataType::Uint64 => (0, (1 << bits) - 1),
        _ => (-(1 << (bits - 1)), (1 << (bits - 1)) - 1),
    }
}

/// The nearest bfloat16, ties to even.
fn brain_float(value: f64) -> u16 {
    let single = value as f32;
    let bits = single.to_bits();
    if single.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
    (rounded >> 16) as u16
}

/// The nearest IEEE 754 half, ties to even.
fn half(value: f64) -> u16 {
    let sign = if value.is_sign_negative() { 0x8000 } else { 0 };
    let magnitude = value.abs();
    if magnitude.is_nan() {
        return sign | 0x7e00;
    }
    // Half of the last place beyond the largest finite value.
    if magnitude >= 65_520.0 {
        return sign | 0x7c00;
    }
    // Scaled so that the last place of the value's binade is 1; below 2^-14 it is that of the smallest.
    let exponent = if magnitude < 2f64.powi(-14) { -14 } else { magnitude.log2().floor() as i32 };
    let mantissa = (magnitude * 2f64.powi(10 - exponent)).round_ties_even() as u16;
    // The leading bit of a normal value adds one to the exponent's field, and a carry out of the mantissa another.
    sign | ((((exponent + 14) as u16) << 10) + mantissa)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(datatype: DataType, element: Element<'_>) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::new();
        Elements { datatype }.put(&mut bytes, element).map(|()| bytes)
    }

    #[test]
    fn halves() {
        for (value, bits) in [
            (0.0, 0),
            (-0.0, 0x8000),
            (1.0, 0x3c00),
            (-2.0, 0xc000),
            (65_504.0, 0x7bff),
            (65_519.0, 0x7bff),
            (65_520.0, 0x7c00),
            (f64::INFINITY, 0x7c00),
            (6.103_515_625e-5, 0x0400),
            (5.960_464_477_539_063e-8, 0x0001),
            (2.980_232_238_769_531_3e-8, 0x0000),
            (0.1, 0x2e66),
            (0.333_333_333, 0x3555),
            (2047.5, 0x6800),
            // A carry into the next binade.
            (1.999_999, 0x4000),
        ] {
            assert_eq!(half(value), bits, "{value}");
        }
        assert!(half(f64::NAN) & 0x7c00 == 0x7c00 && half(f64::NAN) & 0x3ff != 0);
        for (value, bits) in
            [(1.0, 0x3f80), (-1.5, 0xbfc0), (3.140_625, 0x4049), (f64::INFINITY, 0x7f80), (1e39, 0x7f80)]
        {
            assert_eq!(brain_float(value), bits, "{value}");
        }
        assert!(brain_float(f64::NAN) & 0x7f != 0);
    }

    #[test]
    fn integers_have_bounds() {
        assert_eq!(bytes(DataType::Uint8, Element::Unsigned(255)), Ok(vec![255]));
        assert_eq!(bytes(DataType::Int8, Element::Signed(-128)), Ok(vec![128]));
        assert_eq!(bytes(DataType::Int16, Element::Signed(-2)), Ok(vec![254, 255]));
        assert_eq!(bytes(DataType::Uint64, Element::Unsigned(u64::MAX)), Ok(vec![255; 8]));
        assert_eq!(bytes(DataType::Int64, Element::Signed(i64::MIN)), Ok(vec![0, 0, 0, 0, 0, 0, 0, 128]));
        assert_eq!(bytes(DataType::Int32, Element::Float(3.0)), Ok(vec![3, 0, 0, 0]));
        for (datatype, element) in [
            (DataType::Uint8, Element::Unsigned(256)),
            (DataType::Uint8, Element::Signed(-1)),
            (DataType::Int8, Element::Unsigned(128)),
            (DataType::Int64, Element::Unsigned(1 << 63)),
            (DataType::Int32, Element::Float(1.5)),
            (DataType::Int32, Element::Float(1e300)),
            (DataType::Int32, Element::Bool(true)),
            (DataType::Int32, Element::Text("1")),
            (DataType::Bool, Element::Unsigned(2)),
            (DataType::Bytes, Element::Unsigned(2)),
            (DataType::Fp32, Element::Text("1")),
        ] {
            let error = bytes(datatype, element).unwrap_err();
            assert!(error.ends_with(&format!("is no {datatype}")), "{error}");
        }
    }

    #[test]
    fn floats_and_strings() {
        assert_eq!(bytes(DataType::Fp32, Element::Unsigned(1)), Ok(1f32.to_le_bytes().to_vec()));
        assert_eq!(bytes(DataType::Fp64, Element::Float(0.5)), Ok(0.5f64.to_le_bytes().to_vec()));
        assert_eq!(bytes(DataType::Bool, Element::Bool(true)), Ok(vec![1]));
        assert_eq!(bytes(DataType::Bytes, Element::Text("ab")), Ok(vec![2, 0, 0, 0, b'a', b'b']));
        assert_eq!(count_strings(&[2, 0, 0, 0, b'a', b'b', 0, 0, 0, 0]), Some(2));
        assert_eq!(count_strings(&[]), Some(0));
        assert_eq!(count_strings(&[2, 0, 0]), None);
        assert_eq!(count_strings(&[255, 255, 255, 255, 1]), None);
    }
}
