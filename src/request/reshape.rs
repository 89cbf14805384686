//! The shape under which a client sees an output: native backends read it here, and outputs of libraries are converted
//! here.

use super::{OutputTensor, Shape, Text};

/// `dims` and `reshape` of a configured output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputShape {
    pub dims: Shape,
    /// What the model produces instead of `dims`; empty: a scalar per item.
    pub reshape: Option<Shape>,
}

impl OutputShape {
    /// `shape` as the model produced it, turned into `dims`, wildcards carried over by position
    /// (contract/model_config.md section 7). The first dimension of a batching model stays in front.
    pub fn for_client(&self, shape: &[i64], batching: bool) -> Shape {
        let Some(reshape) = &self.reshape else { return Shape::from_slice(shape) };
        let (batch, items) = shape.split_at(usize::from(batching).min(shape.len()));
        let mut variable = reshape.iter().zip(items).filter(|(dim, _)| **dim == -1).map(|(_, value)| *value);
        let dims = self.dims.iter().map(|&dim| if dim == -1 { variable.next().unwrap_or(1) } else { dim });
        batch.iter().copied().chain(dims).collect()
    }
}

/// The outputs of one model that clients see otherwise than its backend makes them.
#[derive(Debug)]
pub struct OutputShapes {
    batches: bool,
    outputs: Vec<(Text, OutputShape)>,
}

impl OutputShapes {
    /// `None` where all outputs are what the backend makes.
    pub fn new(outputs: impl Iterator<Item = (Text, OutputShape)>, batches: bool) -> Option<OutputShapes> {
        let outputs: Vec<_> = outputs.filter(|(_, shape)| shape.reshape.is_some()).collect();
        (!outputs.is_empty()).then_some(OutputShapes { batches, outputs })
    }

    /// Turns the shape of `output`, as its backend made it, into what clients see.
    pub fn turn(&self, output: &mut OutputTensor) {
        if let Some((_, shape)) = self.outputs.iter().find(|(name, _)| *name == output.name) {
            output.shape = shape.for_client(&output.shape, self.batches);
        }
    }
}

#[cfg(test)]
mod tests {
    use smallvec::SmallVec;

    use super::*;

    fn output(dims: &[i64], reshape: Option<&[i64]>) -> OutputShape {
        OutputShape { dims: Shape::from_slice(dims), reshape: reshape.map(Shape::from_slice) }
    }

    #[test]
    fn clients_see_configured_dimensions() {
        assert_eq!(output(&[-1, 4], None).for_client(&[3, 4], false)[..], [3, 4]);
        assert_eq!(output(&[2, 2], Some(&[4])).for_client(&[8, 4], true)[..], [8, 2, 2]);
        assert_eq!(output(&[-1, 2, -1], Some(&[2, -1, -1])).for_client(&[2, 5, 7], false)[..], [5, 2, 7]);
        assert_eq!(output(&[1], Some(&[])).for_client(&[6], true)[..], [6, 1]);
    }

    #[test]
    fn only_outputs_with_a_reshape_are_turned() {
        let named = |name: &str, output: OutputShape| (Text::from(name), output);
        assert!(OutputShapes::new([named("A", output(&[4], None))].into_iter(), true).is_none());
        let outputs = [named("A", output(&[4], None)), named("B", output(&[-1, 2], Some(&[2, -1])))];
        let shapes = OutputShapes::new(outputs.into_iter(), true).unwrap();
        for (name, made, seen) in [("A", &[1i64, 2, 3][..], &[1i64, 2, 3][..]), ("B", &[1, 2, 3], &[1, 3, 2])] {
            let (name, shape) = (Text::from(name), Shape::from_slice(made));
            let datatype = crate::DataType::Int8;
            let mut tensor = OutputTensor { name, datatype, shape, data: SmallVec::new(), index: 0, on_device: None };
            shapes.turn(&mut tensor);
            assert_eq!(&tensor.shape[..], seen);
        }
    }

    #[test]
    fn shapes_a_model_should_not_have_do_not_panic() {
        let split = output(&[-1, -1], Some(&[-1, -1]));
        assert_eq!(split.for_client(&[], true)[..], [1, 1]);
        assert_eq!(split.for_client(&[9], false)[..], [9, 1]);
    }
}
