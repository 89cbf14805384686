//! Contents of tensors: between JSON and the binary form, which is little-endian with a length in front of each text.

use serde_json::Value;

use super::message::MessageError;
use nereid_request::DataType;

/// Length in front of a text.
const LENGTH_BYTES: usize = 4;
/// Bytes of a made text where none is known.
const TEXT_BYTES: u64 = 8;

fn datatype(name: &str) -> Result<DataType, MessageError> {
    DataType::from_name(name.as_bytes()).ok_or_else(|| MessageError::Datatype(name.to_owned()))
}

/// Bytes of an element of that type, 0 for texts; none for an unknown type.
pub fn element_bytes(name: &str) -> Option<usize> {
    datatype(name).ok().map(DataType::byte_size)
}

/// Elements of a tensor of that shape.
pub(crate) fn elements(shape: &[i64]) -> Result<u64, MessageError> {
    let product = shape.iter().try_fold(1u64, |product, dim| product.checked_mul(u64::try_from(*dim).ok()?));
    product.ok_or(MessageError::Shape)
}

/// Appends the elements of `data`, which may be nested arrays, in the binary form.
pub(crate) fn from_json(name: &str, data: &Value, into: &mut Vec<u8>) -> Result<(), MessageError> {
    let of_type = datatype(name)?;
    put(of_type, data, into)
}

fn put(of_type: DataType, value: &Value, into: &mut Vec<u8>) -> Result<(), MessageError> {
    if let Value::Array(values) = value {
        return values.iter().try_for_each(|value| put(of_type, value, into));
    }
    let wrong = || MessageError::Element(of_type.name());
    let signed = || value.as_i64().or_else(|| value.as_bool().map(i64::from)).ok_or_else(wrong);
    let unsigned = || value.as_u64().or_else(|| value.as_bool().map(u64::from)).ok_or_else(wrong);
    match of_type {
        DataType::Bool => into.push(u8::from(unsigned()? != 0)),
        DataType::Uint8 => into.push(u8::try_from(unsigned()?).map_err(|_| wrong())?),
        DataType::Uint16 => into.extend(u16::try_from(unsigned()?).map_err(|_| wrong())?.to_le_bytes()),
        DataType::Uint32 => into.extend(u32::try_from(unsigned()?).map_err(|_| wrong())?.to_le_bytes()),
        DataType::Uint64 => into.extend(unsigned()?.to_le_bytes()),
        DataType::Int8 => into.extend(i8::try_from(signed()?).map_err(|_| wrong())?.to_le_bytes()),
        DataType::Int16 => into.extend(i16::try_from(signed()?).map_err(|_| wrong())?.to_le_bytes()),
        DataType::Int32 => into.extend(i32::try_from(signed()?).map_err(|_| wrong())?.to_le_bytes()),
        DataType::Int64 => into.extend(signed()?.to_le_bytes()),
        DataType::Fp32 => into.extend((value.as_f64().ok_or_else(wrong)? as f32).to_le_bytes()),
        DataType::Fp64 => into.extend(value.as_f64().ok_or_else(wrong)?.to_le_bytes()),
        DataType::Bytes => put_text(value.as_str().ok_or_else(wrong)?.as_bytes(), into)?,
        DataType::Fp16 | DataType::Bf16 => return Err(wrong()),
    }
    Ok(())
}

pub(crate) fn put_text(text: &[u8], into: &mut Vec<u8>) -> Result<(), MessageError> {
    let length = u32::try_from(text.len()).map_err(|_| MessageError::Element("BYTES"))?;
    into.extend(length.to_le_bytes());
    into.extend_from_slice(text);
    Ok(())
}

/// One array with the elements.
pub(crate) fn to_json(name: &str, contents: &[u8]) -> Result<Value, MessageError> {
    let of_type = datatype(name)?;
    let wrong = || MessageError::Element(of_type.name());
    if of_type == DataType::Bytes {
        let text = |text: &[u8]| std::str::from_utf8(text).map(Value::from).map_err(|_| wrong());
        return texts(contents).map(|one| one.and_then(text)).collect::<Result<Vec<_>, _>>().map(Value::from);
    }
    let (numbers, rest) = match of_type.byte_size() {
        0 => return Err(wrong()),
        size => (contents.chunks_exact(size), contents.len() % size),
    };
    let one = |bytes: &[u8]| -> Option<Value> {
        Some(match (of_type, bytes) {
            (DataType::Bool, [byte]) => (*byte != 0).into(),
            (DataType::Uint8, [byte]) => (*byte).into(),
            (DataType::Int8, bytes) => i8::from_le_bytes(bytes.try_into().ok()?).into(),
            (DataType::Uint16, bytes) => u16::from_le_bytes(bytes.try_into().ok()?).into(),
            (DataType::Int16, bytes) => i16::from_le_bytes(bytes.try_into().ok()?).into(),
            (DataType::Uint32, bytes) => u32::from_le_bytes(bytes.try_into().ok()?).into(),
            (DataType::Int32, bytes) => i32::from_le_bytes(bytes.try_into().ok()?).into(),
            (DataType::Uint64, bytes) => u64::from_le_bytes(bytes.try_into().ok()?).into(),
            (DataType::Int64, bytes) => i64::from_le_bytes(bytes.try_into().ok()?).into(),
            // The shortest text of a number in its own width, not that of its value in 64 bits.
            (DataType::Fp32, bytes) => {
                let number = f32::from_le_bytes(bytes.try_into().ok()?);
                number.to_string().parse::<serde_json::Number>().ok()?.into()
            }
            (DataType::Fp64, bytes) => serde_json::Number::from_f64(f64::from_le_bytes(bytes.try_into().ok()?))?.into(),
            _ => return None,
        })
    };
    match rest {
        0 => numbers.map(|bytes| one(bytes).ok_or_else(wrong)).collect::<Result<Vec<_>, _>>().map(Value::from),
        _ => Err(wrong()),
    }
}

/// The texts of a tensor of `BYTES`; an error ends them.
pub(crate) fn texts(mut contents: &[u8]) -> impl Iterator<Item = Result<&[u8], MessageError>> {
    std::iter::from_fn(move || {
        if contents.is_empty() {
            return None;
        }
        let text = contents
            .split_first_chunk::<LENGTH_BYTES>()
            .and_then(|(length, rest)| rest.split_at_checked(usize::try_from(u32::from_le_bytes(*length)).ok()?));
        let (text, rest) = match text {
            Some((text, rest)) => (Ok(text), rest),
            None => (Err(MessageError::Element("BYTES")), &[][..]),
        };
        contents = rest;
        Some(text)
    })
}

/// Bytes of a text of a tensor with so many, which had `byte_size` together.
fn made_text_bytes(count: u64, byte_size: Option<u64>) -> u64 {
    match (byte_size, count) {
        (Some(all), 1..) => (all / count).saturating_sub(LENGTH_BYTES as u64),
        _ => TEXT_BYTES,
    }
}

/// Bytes of what [`made_contents`] makes.
pub(crate) fn made_byte_size(
    name: &str,
    shape: &[i64],
    byte_size: Option<u64>,
    bytes_max: u64,
) -> Result<u64, MessageError> {
    let (of_type, count) = (datatype(name)?, elements(shape)?);
    let each = match of_type.byte_size() as u64 {
        0 => made_text_bytes(count, byte_size).saturating_add(LENGTH_BYTES as u64),
        size => size,
    };
    count.checked_mul(each).filter(|bytes| *bytes <= bytes_max).ok_or(MessageError::Shape)
}

/// Contents for a tensor that was recorded without them: zeros, or numbers that follow from a seed: 0 and 1 for
/// integers, from 0 to 1 for others. `byte_size`: what a tensor of texts had. `bytes_max`: what the request has left; a
/// file may state any shapes, and as many inputs as fit into a line.
pub fn made_contents(
    name: &str,
    shape: &[i64],
    byte_size: Option<u64>,
    seed: Option<u64>,
    bytes_max: u64,
) -> Result<Vec<u8>, MessageError> {
    let (of_type, count) = (datatype(name)?, elements(shape)?);
    let text_bytes = made_text_bytes(count, byte_size);
    let bytes = made_byte_size(name, shape, byte_size, bytes_max)?;
    let mut made = Vec::with_capacity(usize::try_from(bytes).map_err(|_| MessageError::Shape)?);
    let mut state = seed.map(|seed| seed | 1);
    let mut next = || {
        state.as_mut().map_or(0, |state| {
            *state ^= *state << 13;
            *state ^= *state >> 7;
            *state ^= *state << 17;
            *state >> 40
        })
    };
    for _ in 0..count {
        let bits = next();
        // 24 bits: a fraction that both widths hold.
        let fraction = bits as f32 / (1u32 << 24) as f32;
        match of_type {
            DataType::Bytes => {
                let letter = b'a' + u8::try_from(bits % 26).unwrap_or(0);
                put_text(&vec![letter; usize::try_from(text_bytes).unwrap_or(0)], &mut made)?;
            }
            DataType::Fp32 => made.extend(fraction.to_le_bytes()),
            DataType::Fp64 => made.extend(f64::from(fraction).to_le_bytes()),
            // The upper half of a number of 32 bits.
            DataType::Bf16 => made.extend(fraction.to_le_bytes().get(2..).unwrap_or_default()),
            // 0 or 1.
            DataType::Fp16 => made.extend(if bits & 1 == 1 { 0x3c00u16 } else { 0 }.to_le_bytes()),
            _ => made.extend((bits & 1).to_le_bytes().get(..of_type.byte_size()).unwrap_or_default()),
        }
    }
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn both_ways(name: &str, data: Value, bytes: &[u8]) {
        let mut made = Vec::new();
        from_json(name, &data, &mut made).unwrap();
        assert_eq!(made, bytes, "{name}");
        assert_eq!(to_json(name, bytes).unwrap(), data, "{name}");
    }

    #[test]
    fn contents_have_two_forms() {
        both_ways("BOOL", json!([true, false]), &[1, 0]);
        both_ways("INT8", json!([-1, 127]), &[255, 127]);
        both_ways("UINT64", json!([u64::MAX]), &[255; 8]);
        both_ways("FP32", json!([0.1f32.to_string().parse::<serde_json::Number>().unwrap()]), &0.1f32.to_le_bytes());
        both_ways("BYTES", json!(["ab", ""]), b"\x02\0\0\0ab\0\0\0\0");
        let mut nested = Vec::new();
        from_json("UINT8", &json!([[1, 2], [[3]]]), &mut nested).unwrap();
        assert_eq!(nested, [1, 2, 3]);
        for (name, data) in
            [("UINT8", json!([256])), ("INT8", json!(["1"])), ("FP16", json!([1])), ("NONE", json!([1]))]
        {
            assert!(from_json(name, &data, &mut Vec::new()).is_err(), "{name}");
        }
        for (name, bytes) in [("INT32", &b"abc"[..]), ("BYTES", b"\x05\0\0\0ab"), ("FP64", &[255; 8]), ("FP16", b"ab")]
        {
            assert!(to_json(name, bytes).is_err(), "{name}");
        }
    }

    const MOST: u64 = 1 << 30;

    #[test]
    fn made_contents_have_the_recorded_size() {
        assert_eq!(made_contents("INT32", &[2, 3], None, None, MOST).unwrap(), [0; 24]);
        assert_eq!(made_contents("INT32", &[0], None, None, MOST).unwrap(), [0; 0]);
        assert_eq!(made_contents("BYTES", &[2], Some(14), None, MOST).unwrap(), b"\x03\0\0\0aaa\x03\0\0\0aaa");
        assert_eq!(made_contents("BYTES", &[1], None, Some(3), MOST).unwrap().len(), 12);
        let numbers = made_contents("FP32", &[100], None, Some(7), MOST).unwrap();
        let numbers: Vec<f32> = numbers.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        assert!(numbers.iter().all(|number| (0.0..1.0).contains(number)));
        assert!(numbers.iter().any(|number| *number != numbers[0]));
        for shape in [&[-1][..], &[i64::MAX, 2], &[1 << 40]] {
            assert!(made_contents("INT8", shape, None, None, MOST).is_err(), "{shape:?}");
        }
        assert!(made_contents("BYTES", &[1 << 20], Some(u64::MAX), None, MOST).is_err());
        assert!(
            made_contents("INT8", &[8], None, None, 8).is_ok() && made_contents("INT8", &[9], None, None, 8).is_err()
        );
    }
}
