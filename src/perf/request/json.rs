//! Tensors as JSON numbers and strings, and back far enough to compare them.

use serde_json::Value;

use nereid_request::DataType;

/// The elements of raw contents, in order; or why JSON cannot hold them.
pub fn values(datatype: &str, data: &[u8]) -> Result<Vec<Value>, String> {
    let kind = DataType::from_name(datatype.as_bytes()).ok_or_else(|| format!("no datatype is named '{datatype}'"))?;
    fn each<const N: usize>(data: &[u8], value: impl Fn([u8; N]) -> Value) -> Result<Vec<Value>, String> {
        let (elements, rest) = data.as_chunks::<N>();
        match rest {
            [] => Ok(elements.iter().map(|element| value(*element)).collect()),
            _ => Err(format!("{} bytes are no whole number of elements of {N} bytes", data.len())),
        }
    }
    let values = match kind {
        DataType::Bool => each::<1>(data, |[byte]| Value::from(byte != 0)),
        DataType::Uint8 => each::<1>(data, |[byte]| Value::from(byte)),
        DataType::Uint16 => each(data, |bytes| Value::from(u16::from_le_bytes(bytes))),
        DataType::Uint32 => each(data, |bytes| Value::from(u32::from_le_bytes(bytes))),
        DataType::Uint64 => each(data, |bytes| Value::from(u64::from_le_bytes(bytes))),
        DataType::Int8 => each(data, |bytes| Value::from(i8::from_le_bytes(bytes))),
        DataType::Int16 => each(data, |bytes| Value::from(i16::from_le_bytes(bytes))),
        DataType::Int32 => each(data, |bytes| Value::from(i32::from_le_bytes(bytes))),
        DataType::Int64 => each(data, |bytes| Value::from(i64::from_le_bytes(bytes))),
        DataType::Fp32 => each(data, |bytes| Value::from(f64::from(f32::from_le_bytes(bytes)))),
        DataType::Fp64 => each(data, |bytes| Value::from(f64::from_le_bytes(bytes))),
        DataType::Bytes => strings(data)?
            .into_iter()
            .map(|text| str::from_utf8(text).map(Value::from).map_err(|_| "a string is not UTF-8".to_owned()))
            .collect(),
        _ => Err(format!("{datatype} has no form in JSON")),
    }?;
    match values.iter().any(Value::is_null) {
        true => Err("JSON has no infinities and no NaN".to_owned()),
        false => Ok(values),
    }
}

/// The strings of a BYTES tensor, each behind its length in four bytes.
pub fn strings(mut data: &[u8]) -> Result<Vec<&[u8]>, String> {
    let mut texts = Vec::new();
    while !data.is_empty() {
        let Some((len, behind)) = data.split_first_chunk::<4>() else {
            return Err("a string's length is cut off".to_owned());
        };
        let len = u32::from_le_bytes(*len) as usize;
        let Some((text, rest)) = behind.split_at_checked(len) else {
            return Err(format!("a string of {len} bytes is cut off"));
        };
        texts.push(text);
        data = rest;
    }
    Ok(texts)
}

/// The values of nested arrays, in order.
pub fn flatten<'a>(value: &'a Value, into: &mut Vec<&'a Value>) {
    match value {
        // As deep as serde_json reads.
        Value::Array(values) => values.iter().for_each(|value| flatten(value, into)),
        value => into.push(value),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn elements_become_values() {
        let cases: [(&str, &[u8], Value); 9] = [
            ("BOOL", &[0, 1, 7], json!([false, true, true])),
            ("INT8", &[255, 1], json!([-1, 1])),
            ("UINT16", &[1, 1], json!([257])),
            ("INT32", &[254, 255, 255, 255], json!([-2])),
            ("UINT64", &[255; 8], json!([u64::MAX])),
            ("FP32", &1.5f32.to_le_bytes(), json!([1.5])),
            ("FP64", &(-0.1f64).to_le_bytes(), json!([-0.1])),
            ("BYTES", b"\x02\0\0\0ab\0\0\0\0", json!(["ab", ""])),
            ("INT64", &[], json!([])),
        ];
        for (datatype, data, expected) in cases {
            assert_eq!(values(datatype, data).map(Value::Array), Ok(expected), "{datatype}");
        }
        let refused: [(&str, &[u8], &str); 7] = [
            ("FP16", &[0, 0], "FP16 has no form in JSON"),
            ("FLOAT", &[0, 0], "no datatype is named 'FLOAT'"),
            ("FP32", &[0; 5], "5 bytes are no whole number of elements of 4 bytes"),
            ("FP32", &f32::NAN.to_le_bytes(), "JSON has no infinities and no NaN"),
            ("BYTES", b"\x02\0\0", "a string's length is cut off"),
            ("BYTES", b"\x02\0\0\0a", "a string of 2 bytes is cut off"),
            ("BYTES", b"\x01\0\0\0\xff", "a string is not UTF-8"),
        ];
        for (datatype, data, error) in refused {
            assert_eq!(values(datatype, data), Err(error.to_owned()));
        }
        let nested = json!([[1, [2]], [], 3]);
        let mut flat = Vec::new();
        flatten(&nested, &mut flat);
        assert_eq!(flat, [&json!(1), &json!(2), &json!(3)]);
    }
}
