//! Compares the answer of a shadow version with the one that the client got.

use std::borrow::Cow;

use nereid_request::{OutputTensor, are_near, format_shape};

/// In which way the answers differ, if they do. Outputs are found by their names. `tolerance`: how far two numbers may
/// be apart, absolutely below 1 and as a part of the number above.
pub fn difference(primary: &[OutputTensor], shadow: &[OutputTensor], tolerance: f64) -> Option<String> {
    if primary.len() != shadow.len() {
        return Some(format!("it has {} outputs, not {}", shadow.len(), primary.len()));
    }
    primary.iter().find_map(|expected| {
        let name = &expected.name;
        let Some(given) = shadow.iter().find(|given| given.name == *name) else {
            return Some(format!("it has no output '{name}'"));
        };
        if given.datatype != expected.datatype {
            return Some(format!("output '{name}' has datatype {}, not {}", given.datatype, expected.datatype));
        }
        if given.shape != expected.shape {
            let (given, expected) = (format_shape(&given.shape), format_shape(&expected.shape));
            return Some(format!("output '{name}' has shape {given}, not {expected}"));
        }
        let (one, other) = (bytes(expected), bytes(given));
        let is_equal = one == other || (tolerance > 0.0 && are_near(expected.datatype, &one, &other, tolerance));
        (!is_equal).then(|| format!("output '{name}' has other contents"))
    })
}

fn bytes(output: &OutputTensor) -> Cow<'_, [u8]> {
    match &output.data[..] {
        [one] => Cow::Borrowed(one),
        pieces => Cow::Owned(pieces.iter().flat_map(|piece| piece.iter().copied()).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nereid_memory::Slice;
    use nereid_request::{DataType, Shape, Text};
    use smallvec::smallvec;

    fn output(name: &str, datatype: DataType, shape: &[i64], data: &[u8]) -> OutputTensor {
        OutputTensor {
            name: Text::from(name),
            datatype,
            shape: Shape::from_slice(shape),
            data: smallvec![Slice::copy_of(data)],
            index: 0,
            on_device: None,
        }
    }

    fn reals(values: &[f32]) -> OutputTensor {
        let data: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        output("OUT", DataType::Fp32, &[values.len() as i64], &data)
    }

    #[test]
    fn answers_are_compared_by_name_type_shape_and_contents() {
        let a = || output("A", DataType::Uint8, &[2], b"ab");
        let b = || output("B", DataType::Uint8, &[2], b"cd");
        assert_eq!(difference(&[a(), b()], &[b(), a()], 0.0), None);
        let text = |shadow: &[OutputTensor]| difference(&[a()], shadow, 0.0);
        assert_eq!(text(&[]).as_deref(), Some("it has 0 outputs, not 1"));
        assert_eq!(text(&[b()]).as_deref(), Some("it has no output 'A'"));
        let other = output("A", DataType::Int8, &[2], b"ab");
        assert_eq!(text(&[other]).as_deref(), Some("output 'A' has datatype INT8, not UINT8"));
        let other = output("A", DataType::Uint8, &[2, 1], b"ab");
        assert_eq!(text(&[other]).as_deref(), Some("output 'A' has shape [2,1], not [2]"));
        let other = output("A", DataType::Uint8, &[2], b"ax");
        assert_eq!(text(&[other]).as_deref(), Some("output 'A' has other contents"));
        let mut pieces = a();
        pieces.data = smallvec![Slice::copy_of(b"a"), Slice::copy_of(b"b")];
        assert_eq!(text(&[pieces]), None);
    }

    #[test]
    fn numbers_may_be_apart_by_the_tolerance() {
        let is_equal =
            |one: f32, other: f32, tolerance| difference(&[reals(&[one])], &[reals(&[other])], tolerance).is_none();
        assert!(is_equal(1.0, 1.0, 0.0) && !is_equal(1.0, 1.000_01, 0.0));
        assert!(is_equal(1.0, 1.000_005, 1e-5) && !is_equal(1.0, 1.000_05, 1e-5));
        assert!(is_equal(1e6, 1e6 + 5.0, 1e-5) && !is_equal(1e6, 1e6 + 50.0, 1e-5));
        assert!(is_equal(0.0, 5e-6, 1e-5) && !is_equal(0.0, 5e-5, 1e-5));
        assert!(is_equal(f32::NAN, -f32::NAN, 1e-5) && !is_equal(f32::NAN, 1.0, 1e-5));
        assert!(is_equal(f32::INFINITY, f32::INFINITY, 1e-5) && !is_equal(f32::INFINITY, 1.0, 1e-5));
    }
}
