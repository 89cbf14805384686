//! Does a request's shape fit a model's, and how are shapes written in messages (contract/http.md section 6).

use std::fmt::Write;

/// A dimension of any size.
pub const WILDCARD: i64 = -1;

/// How a request's shape matches a model's input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShapeMatch {
    Match,
    /// Another rank, or a dimension that differs.
    Mismatch,
    /// The request leaves a dimension open (-1), which it may not.
    Unspecified,
    /// The model batches and the request's shape has not even a batch dimension.
    NoBatchDimension,
}

/// Compares `shape`, of the request, with `dims`, of the configuration.
///
/// `batching` means that the request's first dimension is the batch, which `dims` do not have; its size is not checked
/// here. Dimensions are compared from left to right: the first wrong one decides.
pub fn match_request(dims: &[i64], batching: bool, shape: &[i64]) -> ShapeMatch {
    if !batching {
        return match_dims(dims, shape);
    }
    match shape {
        [] => ShapeMatch::NoBatchDimension,
        [_, rest @ ..] => match_dims(dims, rest),
    }
}

/// Holds a shape without batch dimension against `dims`.
pub fn match_dims(dims: &[i64], shape: &[i64]) -> ShapeMatch {
    if dims.len() != shape.len() {
        return ShapeMatch::Mismatch;
    }
    for (expected, got) in dims.iter().zip(shape) {
        if *got == WILDCARD {
            return ShapeMatch::Unspecified;
        }
        if *got < 0 || (*expected != WILDCARD && expected != got) {
            return ShapeMatch::Mismatch;
        }
    }
    ShapeMatch::Match
}

/// The shape with the batch dimension in front, as a client sees it.
pub fn full_dims(dims: &[i64], batching: bool) -> Vec<i64> {
    batching.then_some(WILDCARD).into_iter().chain(dims.iter().copied()).collect()
}

/// `[-1,16]`.
pub fn format_shape(shape: &[i64]) -> String {
    let mut out = String::with_capacity(2 + 3 * shape.len());
    out.push('[');
    for (index, dim) in shape.iter().enumerate() {
        // Writing to a String cannot fail.
        let _ = write!(out, "{}{dim}", if index > 0 { "," } else { "" });
    }
    out.push(']');
    out
}

/// Elements of a tensor of this shape: none if a dimension is open or negative, or if the count does not fit.
///
/// The empty shape is a scalar and has one element.
pub fn element_count(shape: &[i64]) -> Option<u64> {
    if shape.contains(&0) && shape.iter().all(|dim| *dim >= 0) {
        // 0 whatever the others are, even where their product would overflow.
        return Some(0);
    }
    shape.iter().try_fold(1u64, |count, dim| count.checked_mul(u64::try_from(*dim).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_match_with_and_without_batch() {
        use ShapeMatch::*;
        let cases: [(&[i64], bool, &[i64], ShapeMatch); 18] = [
            (&[16], false, &[16], Match),
            (&[16], false, &[15], Mismatch),
            (&[16], false, &[16, 1], Mismatch),
            (&[16], false, &[], Mismatch),
            (&[], false, &[], Match),
            (&[-1], false, &[0], Match),
            (&[-1], false, &[i64::MAX], Match),
            (&[-1], false, &[-1], Unspecified),
            (&[-1], false, &[-2], Mismatch),
            (&[4, -1], false, &[4, 9], Match),
            // The first wrong dimension decides.
            (&[4, -1], false, &[5, -1], Mismatch),
            (&[-1, 4], false, &[-1, 5], Unspecified),
            (&[16], true, &[], NoBatchDimension),
            (&[16], true, &[3, 16], Match),
            (&[16], true, &[3], Mismatch),
            (&[16], true, &[-1, 16], Match),
            (&[], true, &[3], Match),
            (&[16], true, &[16, 3], Mismatch),
        ];
        for (dims, batching, shape, expected) in cases {
            assert_eq!(match_request(dims, batching, shape), expected, "{shape:?} for {dims:?}, batching {batching}");
        }
    }

    #[test]
    fn shapes_print_without_blanks() {
        assert_eq!(format_shape(&[]), "[]");
        assert_eq!(format_shape(&[7]), "[7]");
        assert_eq!(format_shape(&full_dims(&[16], true)), "[-1,16]");
        assert_eq!(format_shape(&full_dims(&[16], false)), "[16]");
        assert_eq!(format_shape(&full_dims(&[], true)), "[-1]");
    }

    #[test]
    fn element_counts_do_not_overflow() {
        assert_eq!(element_count(&[]), Some(1));
        assert_eq!(element_count(&[3, 4]), Some(12));
        assert_eq!(element_count(&[3, -1]), None);
        assert_eq!(element_count(&[0, -1]), None);
        assert_eq!(element_count(&[i64::MAX, i64::MAX, 0]), Some(0));
        assert_eq!(element_count(&[i64::MAX, i64::MAX]), None);
        assert_eq!(element_count(&[i64::MAX, 2]), Some(u64::MAX - 1));
    }
}
