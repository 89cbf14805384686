//! The batch dimension of a tensor that goes from a model that batches to one that does not, or back
//! (contract/schedulers.md section 5, "batch mapping").

use nereid_request::Shape;

/// The shape for a reader with the dimensions `dims` in its configuration. A shape that cannot be made to fit stays as
/// it is, and the reader's validation reports it.
pub fn adapt(shape: &Shape, is_batched: bool, into_batching: bool, dims: &[i64]) -> Shape {
    match (is_batched, into_batching) {
        (false, true) if fits(shape, dims) => std::iter::once(1).chain(shape.iter().copied()).collect(),
        (true, false) if !fits(shape, dims) && shape.first() == Some(&1) => Shape::from_slice(&shape[1..]),
        _ => shape.clone(),
    }
}

fn fits(shape: &[i64], dims: &[i64]) -> bool {
    shape.len() == dims.len() && shape.iter().zip(dims).all(|(got, dim)| *dim == -1 || got == dim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_change_between_batching_and_not_changes_a_shape() {
        /// Shape, whether it is batched, whether its reader batches, the reader's dims, and the shape that the reader
        /// gets.
        type Case<'a> = (&'a [i64], bool, bool, &'a [i64], &'a [i64]);
        let cases: [Case<'_>; 12] = [
            (&[4, 3], true, true, &[3], &[4, 3]),
            (&[4, 3], false, false, &[4, 3], &[4, 3]),
            (&[1, 3], false, false, &[3], &[1, 3]),
            // Into a model that batches: one more dimension, unless the first one can serve as the batch.
            (&[3], false, true, &[3], &[1, 3]),
            (&[3], false, true, &[-1], &[1, 3]),
            (&[4, 3], false, true, &[3], &[4, 3]),
            (&[4, 3], false, true, &[5], &[4, 3]),
            // Out of one.
            (&[4, 3], true, false, &[-1, 3], &[4, 3]),
            (&[1, 3], true, false, &[-1, 3], &[1, 3]),
            (&[1, 3], true, false, &[3], &[3]),
            (&[2, 3], true, false, &[3], &[2, 3]),
            (&[], true, false, &[3], &[]),
        ];
        for (shape, is_batched, into_batching, dims, expected) in cases {
            let got = adapt(&Shape::from_slice(shape), is_batched, into_batching, dims);
            assert_eq!(&got[..], expected, "{shape:?} batched: {is_batched}, into {dims:?} batching: {into_batching}");
        }
    }
}
