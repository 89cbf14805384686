//! Flat outputs that are split by the shapes of an input: BATCH_SCATTER_WITH_INPUT_SHAPE
//! (contract/model_config.md section 7).

use std::ops::Range;

use smallvec::SmallVec;

use super::{Batch, Output, elements, model_shape};
use nereid_request::{Shape, Status};

/// How one output is split: each request gets as many elements as the shape has that follows from its source input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scatter {
    /// Position of the source input in the configuration.
    pub source: usize,
}

impl Scatter {
    /// The output's shape for the request at `number`: open dimensions are those of the source.
    fn shape(self, output: &Output, batch: &Batch<'_>, number: usize) -> Result<Shape, Status> {
        let source = batch.tensors.input(number, self.source).map(model_shape).unwrap_or_default();
        let dims = output.shape.reshape.as_ref().unwrap_or(&output.shape.dims);
        let full = batch.batching.then_some(-1).into_iter().chain(dims.iter().copied());
        let taken = full.enumerate().map(|(at, dim)| if dim == -1 { source.get(at).copied() } else { Some(dim) });
        taken.collect::<Option<Shape>>().ok_or_else(|| {
            Status::internal(format!("output '{}' has more dimensions than the input it is split by", output.name))
        })
    }
}

/// How far the flat outputs of a batch were handed out.
pub(super) struct Shares<'a> {
    scatters: &'a [Option<Scatter>],
    taken: SmallVec<[usize; 4]>,
}

impl<'a> Shares<'a> {
    pub fn new(scatters: &'a [Option<Scatter>]) -> Shares<'a> {
        Shares { scatters, taken: SmallVec::from_elem(0, scatters.len()) }
    }

    pub fn is_flat(&self, index: usize) -> bool {
        self.scatters.get(index).is_some_and(Option::is_some)
    }

    /// The share of output number `index` for the request at `number`, in the order of the requests; `None` for an
    /// output that is not flat.
    pub fn take(
        &mut self,
        index: usize,
        output: &Output,
        batch: &Batch<'_>,
        number: usize,
    ) -> Result<Option<(Shape, Range<usize>)>, Status> {
        let (Some(Some(scatter)), Some(taken)) = (self.scatters.get(index), self.taken.get_mut(index)) else {
            return Ok(None);
        };
        let shape = scatter.shape(output, batch, number)?;
        let end = elements(&shape).and_then(|count| taken.checked_add(count));
        let end =
            end.ok_or_else(|| Status::internal(format!("the shares of output '{}' are too large", output.name)))?;
        let start = std::mem::replace(taken, end);
        Ok(Some((shape, start..end)))
    }
}
