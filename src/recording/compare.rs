//! Compares two answers by the names, types, shapes and contents of their outputs.

use std::collections::BTreeMap;

use super::message::Tensor;
use nereid_request::DataType;

/// In which way an answer differs from the recorded one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference(pub String);

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// The first difference. Outputs are found by their names. `tolerance`: how far two numbers with a fraction may be
/// apart, absolutely below 1 and as a part of the larger number above; others have to be equal. `has_contents`: whether
/// contents are compared at all.
pub fn compare(recorded: &[Tensor], given: &[Tensor], tolerance: f64, has_contents: bool) -> Option<Difference> {
    if recorded.len() != given.len() {
        return Some(Difference(format!("the answer has {} outputs, not {}", given.len(), recorded.len())));
    }
    // Looked up, not searched: a server and a file may name as many outputs as fit into an answer.
    let mut by_name = BTreeMap::new();
    for tensor in given {
        if by_name.insert(&*tensor.name, tensor).is_some() {
            return Some(Difference(format!("output '{}' is there twice", tensor.name)));
        }
    }
    recorded.iter().find_map(|expected| {
        let name = &expected.name;
        // Taken out, so that a name that was recorded twice is a difference as well.
        let Some(found) = by_name.remove(&**name) else {
            return Some(Difference(format!("there is no output '{name}'")));
        };
        if found.datatype != expected.datatype {
            return Some(Difference(format!(
                "output '{name}' has datatype {}, not {}",
                found.datatype, expected.datatype
            )));
        }
        if found.shape != expected.shape {
            return Some(Difference(format!("output '{name}' has shape {:?}, not {:?}", found.shape, expected.shape)));
        }
        match (&expected.contents, &found.contents) {
            (Some(expected), Some(given)) if has_contents => {
                of_contents(name, &found.datatype, expected, given, tolerance)
            }
            _ => None,
        }
    })
}

fn of_contents(name: &str, datatype: &str, expected: &[u8], given: &[u8], tolerance: f64) -> Option<Difference> {
    if expected == given {
        return None;
    }
    let datatype = DataType::from_name(datatype.as_bytes());
    let size = datatype.map_or(0, DataType::byte_size);
    if size == 0 || expected.len() != given.len() {
        return Some(Difference(format!("output '{name}' has other contents")));
    }
    let datatype = datatype?;
    let pairs = expected.chunks_exact(size).zip(given.chunks_exact(size)).enumerate();
    let mut apart = pairs.filter(|(_, (one, other))| one != other && !are_near(datatype, one, other, tolerance));
    let (at, (one, other)) = apart.next()?;
    let more = apart.count();
    let shown = |bytes: &[u8]| match real(datatype, bytes) {
        Some(number) => number.to_string(),
        None => {
            super::values::to_json(datatype.name(), bytes).map_or_else(|_| "?".to_owned(), |json| json[0].to_string())
        }
    };
    let more = if more == 0 { String::new() } else { format!(", and {more} more") };
    Some(Difference(format!("output '{name}' has {} at element {at}, not {}{more}", shown(other), shown(one))))
}

fn are_near(datatype: DataType, one: &[u8], other: &[u8], tolerance: f64) -> bool {
    let (Some(one), Some(other)) = (real(datatype, one), real(datatype, other)) else { return false };
    let is_within = || (one - other).abs() <= tolerance * one.abs().max(other.abs()).max(1.0);
    one == other || (one.is_nan() && other.is_nan()) || (one.is_finite() && other.is_finite() && is_within())
}

/// A number with a fraction, whatever its width.
fn real(datatype: DataType, bytes: &[u8]) -> Option<f64> {
    Some(match (datatype, bytes) {
        (DataType::Fp64, &[a, b, c, d, e, f, g, h]) => f64::from_le_bytes([a, b, c, d, e, f, g, h]),
        (DataType::Fp32, &[a, b, c, d]) => f64::from(f32::from_le_bytes([a, b, c, d])),
        (DataType::Bf16, &[a, b]) => f64::from(f32::from_le_bytes([0, 0, a, b])),
        (DataType::Fp16, &[a, b]) => half(u16::from_le_bytes([a, b])),
        _ => return None,
    })
}

/// A number of IEEE 754 binary16.
fn half(bits: u16) -> f64 {
    let (exponent, fraction) = (i32::from((bits >> 10) & 0x1f), f64::from(bits & 0x3ff));
    let size = match exponent {
        0 => fraction * 2f64.powi(-24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        exponent => (1024.0 + fraction) * 2f64.powi(exponent - 25),
    };
    if bits >> 15 == 1 { -size } else { size }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(name: &str, datatype: &str, shape: &[i64], contents: &[u8]) -> Tensor {
        Tensor {
            name: name.to_owned(),
            datatype: datatype.to_owned(),
            shape: shape.to_vec(),
            contents: Some(contents.to_vec()),
            ..Tensor::default()
        }
    }

    #[test]
    fn answers_differ_by_name_type_shape_and_contents() {
        let a = || tensor("A", "UINT8", &[2], b"ab");
        let b = || tensor("B", "UINT8", &[2], b"cd");
        assert_eq!(compare(&[a(), b()], &[b(), a()], 0.0, true), None);
        let text = |given: &[Tensor]| compare(&[a()], given, 0.0, true).map(|difference| difference.0);
        assert_eq!(text(&[]).as_deref(), Some("the answer has 0 outputs, not 1"));
        assert_eq!(text(&[b()]).as_deref(), Some("there is no output 'A'"));
        assert_eq!(compare(&[a(), b()], &[a(), a()], 0.0, true).unwrap().0, "output 'A' is there twice");
        assert_eq!(compare(&[a(), a()], &[a(), b()], 0.0, true).unwrap().0, "there is no output 'A'");
        let other = tensor("A", "INT8", &[2], b"ab");
        assert_eq!(text(&[other]).as_deref(), Some("output 'A' has datatype INT8, not UINT8"));
        let other = tensor("A", "UINT8", &[1, 2], b"ab");
        assert_eq!(text(&[other]).as_deref(), Some("output 'A' has shape [1, 2], not [2]"));
        let other = || tensor("A", "UINT8", &[2], b"ax");
        assert_eq!(text(&[other()]).as_deref(), Some("output 'A' has 120 at element 1, not 98"));
        assert_eq!(compare(&[a()], &[other()], 0.0, false), None);
        let texts = |text: &[u8]| [tensor("A", "BYTES", &[1], text)];
        assert_eq!(
            compare(&texts(b"\x01\0\0\0a"), &texts(b"\x01\0\0\0b"), 1.0, true).map(|difference| difference.0),
            Some("output 'A' has other contents".to_owned())
        );
    }

    #[test]
    fn numbers_may_be_apart_by_the_tolerance() {
        let reals = |values: &[f32]| {
            let contents: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            [tensor("A", "FP32", &[values.len() as i64], &contents)]
        };
        let is_equal =
            |one: f32, other: f32, tolerance| compare(&reals(&[one]), &reals(&[other]), tolerance, true).is_none();
        assert!(is_equal(1.0, 1.0, 0.0) && !is_equal(1.0, 1.000_01, 0.0));
        assert!(is_equal(1e6, 1e6 + 5.0, 1e-5) && !is_equal(1e6, 1e6 + 50.0, 1e-5));
        assert!(is_equal(0.0, -0.0, 0.0) && is_equal(0.0, 5e-6, 1e-5) && !is_equal(0.0, 5e-5, 1e-5));
        assert!(is_equal(f32::NAN, -f32::NAN, 0.0) && !is_equal(f32::NAN, 1.0, 1.0));
        assert!(is_equal(f32::INFINITY, f32::INFINITY, 0.0) && !is_equal(f32::INFINITY, 1.0, 1.0));
        let difference = compare(&reals(&[1.0, 2.0, 3.0]), &reals(&[1.0, 2.5, 3.5]), 1e-3, true).unwrap();
        assert_eq!(difference.0, "output 'A' has 2.5 at element 1, not 2, and 1 more");
        let half = |bits: u16| [tensor("A", "FP16", &[1], &bits.to_le_bytes())];
        assert!(compare(&half(0x3c00), &half(0x3c01), 1e-2, true).is_none());
        assert!(compare(&half(0x3c00), &half(0x4000), 1e-2, true).is_some());
    }
}
