//! Recorded launches (CUDA graphs) for batches of certain sizes (`optimization { cuda { graphs: true graph_spec … }
//! }`).
//!
//! A recorded launch uses the buffers that it was recorded with, so a batch has to be copied there, and a bucket serves
//! one batch at a time. A batch takes the smallest free bucket that holds it and has a lower bound that it reaches; the
//! rows behind its end are computed in vain.

use std::sync::Arc;

use super::model::AffineModel;
use crate::InstanceContext;
use nereid_gpu::graph::Graph;
use nereid_gpu::{DeviceBuffer, Kernel, Lanes};
use nereid_request::{Status, element_count};
use nereid_wire::inference::model_optimization_policy::cuda::GraphSpec;

/// Buckets of each size: while one batch computes, the next one is copied in.
const COPIES: usize = 2;

/// One size of batches.
pub struct Bucket {
    rows_min: u64,
    rows: u64,
    /// Elements of a row, by input.
    row_counts: Vec<usize>,
    pub inputs: Vec<Arc<DeviceBuffer>>,
    pub outputs: Vec<Arc<DeviceBuffer>>,
    pub graph: Arc<Graph>,
}

impl Bucket {
    fn fits(&self, rows: u64, row_counts: &[usize]) -> bool {
        (self.rows_min..=self.rows).contains(&rows) && self.row_counts == row_counts
    }

    /// Whether no flight holds its buffers: then only the bucket and its graph do.
    fn is_free(&self) -> bool {
        self.inputs.iter().chain(&self.outputs).all(|buffer| Arc::strong_count(buffer) == 2)
    }
}

/// All buckets of an instance, the smallest first.
#[derive(Default)]
pub struct Buckets(Vec<Bucket>);

impl Buckets {
    /// Records the sizes that the configuration requests; without a `graph_spec`, those of one row and of the maximum.
    pub fn record(
        context: &InstanceContext,
        model: &AffineModel,
        lanes: &Lanes,
        kernel: &Kernel,
    ) -> Result<Buckets, Status> {
        let config = &context.spec.config;
        let cuda = config.optimization.as_ref().and_then(|optimization| optimization.cuda.as_ref());
        let Some(cuda) = cuda.filter(|cuda| cuda.graphs) else { return Ok(Buckets::default()) };
        let most = config.max_batch_size.max(0);
        let common = |batch_size| GraphSpec { batch_size, ..GraphSpec::default() };
        let specs = match &cuda.graph_spec[..] {
            [] if most > 1 => vec![common(1), common(most)],
            [] => vec![common(most)],
            given => given.to_vec(),
        };
        let mut buckets = Vec::with_capacity(specs.len());
        for spec in specs.iter().flat_map(|spec| std::iter::repeat_n(spec, COPIES)) {
            buckets.push(bucket(context, model, lanes, kernel, spec)?);
        }
        buckets.sort_by_key(|bucket| bucket.rows);
        Ok(Buckets(buckets))
    }

    /// The bucket for a batch of `rows` rows with `row_counts` elements each.
    pub fn find(&self, rows: u64, row_counts: &[usize]) -> Option<&Bucket> {
        self.0.iter().find(|bucket| bucket.fits(rows, row_counts) && bucket.is_free())
    }
}

fn bucket(
    context: &InstanceContext,
    model: &AffineModel,
    lanes: &Lanes,
    kernel: &Kernel,
    spec: &GraphSpec,
) -> Result<Bucket, Status> {
    let config = &context.spec.config;
    let rows = u64::try_from(spec.batch_size.max(1)).unwrap_or(1);
    if config.max_batch_size > 0 && spec.batch_size > config.max_batch_size {
        return Err(Status::invalid(format!(
            "graph_spec of model '{}' has batch_size {}, beyond max_batch_size {}",
            context.spec.name, spec.batch_size, config.max_batch_size
        )));
    }
    let lower = spec.graph_lower_bound.as_ref().map_or(rows, |bound| u64::try_from(bound.batch_size).unwrap_or(1));
    let mut row_counts = Vec::new();
    let (mut inputs, mut outputs, mut pairs) = (Vec::new(), Vec::new(), Vec::new());
    for input in &config.input {
        let dims = spec.input.get(&input.name).map_or(&input.dims, |shape| &shape.dim);
        let count = element_count(dims).and_then(|count| usize::try_from(count).ok()).ok_or_else(|| {
            Status::invalid(format!(
                "graph_spec of model '{}' needs the shape of input '{}', whose dims are variable",
                context.spec.name, input.name
            ))
        })?;
        let total = usize::try_from(rows).ok().and_then(|rows| count.checked_mul(rows));
        let total = total.filter(|total| total.checked_mul(4).is_some()).ok_or_else(|| {
            Status::invalid(format!("graph_spec of model '{}' is larger than memory", context.spec.name))
        })?;
        let (from, to) = (lanes.gpu().allocate(total * 4)?, lanes.gpu().allocate(total * 4)?);
        let (from, to) = (Arc::new(from), Arc::new(to));
        pairs.push((Arc::clone(&from), Arc::clone(&to), total));
        inputs.push(from);
        outputs.push(to);
        row_counts.push(count);
    }
    let graph = Arc::new(model.affine.record(lanes, kernel, &pairs)?);
    Ok(Bucket { rows_min: lower.clamp(1, rows), rows, row_counts, inputs, outputs, graph })
}
