//! Executions that are recorded once and launched as one (`optimization { cuda { graphs: true … } }`).
//!
//! A recorded execution uses the buffers that it was recorded with: a batch is copied there, and a graph serves one
//! batch at a time. A batch takes the smallest free graph that holds it and has a lower bound that it reaches; the rows
//! behind its end are computed in vain. The dims of inputs must be those of the recording.

use std::collections::BTreeSet;
use std::sync::Arc;

use nereid_gpu::DeviceBuffer;
use nereid_gpu::graph::Graph;
use nereid_request::{Shape, Status};
use nereid_wire::inference::ModelConfig;
use nereid_wire::inference::model_config::SchedulingChoice;
use nereid_wire::inference::model_optimization_policy::cuda::GraphSpec;
use nereid_wire::inference::model_sequence_batching::StrategyChoice;

/// Graphs of each size: while one batch computes, the next one is copied in.
pub const COPIES: usize = 2;

/// Batch sizes that are recorded where the configuration names none.
const COMMON_SIZES: [i32; 8] = [1, 2, 3, 4, 6, 8, 12, 16];

/// What is to be recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// 0 without batching.
    pub batch_size: i32,
    pub batch_size_min: i32,
    /// By input of the configuration, without the batch dimension.
    pub dims: Vec<Vec<i64>>,
    /// The configuration names it: then it must be recorded.
    pub is_explicit: bool,
}

impl Wanted {
    /// All that the configuration asks for.
    pub fn of(config: &ModelConfig) -> Result<Vec<Wanted>, Status> {
        let cuda = config.optimization.as_ref().and_then(|optimization| optimization.cuda.as_ref());
        let Some(cuda) = cuda.filter(|cuda| cuda.graphs) else { return Ok(Vec::new()) };
        if !cuda.graph_spec.is_empty() {
            return cuda.graph_spec.iter().map(|spec| explicit(config, spec)).collect();
        }
        let common = |batch_size| Wanted {
            batch_size,
            batch_size_min: batch_size,
            dims: config.input.iter().map(|input| dims_of(&input.dims, input.reshape.as_ref()).to_vec()).collect(),
            is_explicit: false,
        };
        let common: Vec<Wanted> = sizes(config).into_iter().map(common).collect();
        let is_open = |wanted: &Wanted| wanted.dims.iter().flatten().any(|dim| *dim < 0);
        if common.iter().any(is_open) {
            tracing::warn!(
                "no CUDA graphs are captured for model '{}': its inputs have variable dims, so a graph_spec must name \
                 shapes",
                config.name
            );
            return Ok(Vec::new());
        }
        Ok(common)
    }
}

fn dims_of<'a>(dims: &'a [i64], reshape: Option<&'a nereid_wire::inference::ModelTensorReshape>) -> &'a [i64] {
    reshape.map_or(dims, |reshape| &reshape.shape)
}

/// The sizes without a `graph_spec`.
fn sizes(config: &ModelConfig) -> BTreeSet<i32> {
    let most = config.max_batch_size;
    if most <= 0 {
        return BTreeSet::from([0]);
    }
    let preferred = match &config.scheduling_choice {
        Some(SchedulingChoice::DynamicBatching(batching)) => batching.preferred_batch_size.as_slice(),
        Some(SchedulingChoice::SequenceBatching(sequence)) => match &sequence.strategy_choice {
            Some(StrategyChoice::Oldest(oldest)) => oldest.preferred_batch_size.as_slice(),
            _ => &[],
        },
        _ => &[],
    };
    let sizes = if preferred.is_empty() { &COMMON_SIZES[..] } else { preferred };
    sizes.iter().copied().filter(|size| (1..=most).contains(size)).chain([most]).collect()
}

fn explicit(config: &ModelConfig, spec: &GraphSpec) -> Result<Wanted, Status> {
    let most = config.max_batch_size;
    if most == 0 && spec.batch_size != 0 {
        return Err(Status::invalid("graph spec expects 'batch_size' to be 0 if 'max_batch_size' is 0"));
    }
    if most > 0 && !(1..=most).contains(&spec.batch_size) {
        return Err(Status::invalid(format!("graph spec expects 'batch_size' to be >= 1 and <= {most}")));
    }
    let mut batch_size_min = spec.batch_size;
    if let Some(lower) = &spec.graph_lower_bound {
        if lower.batch_size > spec.batch_size || lower.batch_size < 0 {
            let text = "graph lower bound spec expects 'batch_size' to be <= graph spec 'batch_size'";
            return Err(Status::invalid(text));
        }
        if let Some((name, _)) = spec.input.iter().find(|(name, _)| !lower.input.contains_key(*name)) {
            return Err(Status::invalid(format!("graph lower bound spec expects shape for input '{name}'")));
        }
        batch_size_min = lower.batch_size;
    }
    let mut dims = Vec::with_capacity(config.input.len());
    for input in &config.input {
        let given = spec.input.get(&input.name).map(|shape| shape.dim.as_slice());
        let of_input = given.unwrap_or_else(|| dims_of(&input.dims, input.reshape.as_ref()));
        if of_input.iter().any(|dim| *dim < 0) {
            return Err(Status::invalid(format!(
                "graph_spec of model '{}' needs the shape of input '{}', whose dims are variable",
                config.name, input.name
            )));
        }
        dims.push(of_input.to_vec());
    }
    Ok(Wanted { batch_size: spec.batch_size, batch_size_min, dims, is_explicit: true })
}

/// One recorded execution.
pub struct Recorded {
    pub rows_min: i64,
    pub rows: i64,
    /// The whole shapes of the inputs, in the plan's order.
    pub shapes: Vec<Shape>,
    pub inputs: Vec<Arc<DeviceBuffer>>,
    pub outputs: Vec<(Arc<DeviceBuffer>, Shape)>,
    pub graph: Arc<Graph>,
}

impl Recorded {
    /// Whether it can run inputs of these shapes now.
    pub fn fits(&self, shapes: &[Shape], batching: bool) -> bool {
        let first = usize::from(batching);
        let fits = |recorded: &Shape, shape: &Shape| {
            let rows = shape.first().copied().filter(|_| batching).unwrap_or(self.rows);
            (self.rows_min..=self.rows).contains(&rows)
                && recorded.len() == shape.len()
                && recorded.get(first..) == shape.get(first..)
        };
        let all_fit = self.shapes.len() == shapes.len() && self.shapes.iter().zip(shapes).all(|(a, b)| fits(a, b));
        all_fit && self.is_free()
    }

    /// Whether no flight holds its buffers: then only this and its graph do.
    fn is_free(&self) -> bool {
        let outputs = self.outputs.iter().map(|(buffer, _)| buffer);
        self.inputs.iter().chain(outputs).all(|buffer| Arc::strong_count(buffer) == 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nereid_wire::inference::model_optimization_policy::Cuda;
    use nereid_wire::inference::model_optimization_policy::cuda::graph_spec::{LowerBound, Shape as Dims};
    use nereid_wire::inference::{ModelDynamicBatching, ModelInput, ModelOptimizationPolicy};

    fn config(max_batch_size: i32, dims: &[i64], graph_spec: Vec<GraphSpec>) -> ModelConfig {
        let cuda = Some(Cuda { graphs: true, graph_spec, ..Default::default() });
        ModelConfig {
            name: "m".to_owned(),
            max_batch_size,
            input: vec![ModelInput { name: "IN".to_owned(), dims: dims.to_vec(), ..Default::default() }],
            optimization: Some(ModelOptimizationPolicy { cuda, ..Default::default() }),
            ..Default::default()
        }
    }

    fn sizes_of(config: &ModelConfig) -> Vec<i32> {
        Wanted::of(config).unwrap().iter().map(|wanted| wanted.batch_size).collect()
    }

    #[test]
    fn common_sizes_are_recorded_unless_preferred_ones_are_named() {
        assert_eq!(sizes_of(&config(0, &[4], vec![])), [0]);
        assert_eq!(sizes_of(&config(7, &[4], vec![])), [1, 2, 3, 4, 6, 7]);
        assert_eq!(sizes_of(&config(32, &[4], vec![])), [1, 2, 3, 4, 6, 8, 12, 16, 32]);
        let mut preferring = config(8, &[4], vec![]);
        let batching = ModelDynamicBatching { preferred_batch_size: vec![4], ..Default::default() };
        preferring.scheduling_choice = Some(SchedulingChoice::DynamicBatching(batching));
        assert_eq!(sizes_of(&preferring), [4, 8]);
        assert_eq!(sizes_of(&config(8, &[-1], vec![])), [0i32; 0], "variable dims");
        let mut off = config(8, &[4], vec![]);
        off.optimization.as_mut().unwrap().cuda.as_mut().unwrap().graphs = false;
        assert_eq!(sizes_of(&off), [0i32; 0]);
    }

    #[test]
    fn specs_are_checked() {
        let spec = |batch_size| GraphSpec { batch_size, ..Default::default() };
        let refused = |config: &ModelConfig| Wanted::of(config).unwrap_err().message.into_owned();
        let text = "graph spec expects 'batch_size' to be 0 if 'max_batch_size' is 0";
        assert_eq!(refused(&config(0, &[4], vec![spec(1)])), text);
        for size in [0, 9] {
            let text = "graph spec expects 'batch_size' to be >= 1 and <= 8";
            assert_eq!(refused(&config(8, &[4], vec![spec(size)])), text);
        }
        let mut bounded = spec(4);
        bounded.input.insert("IN".to_owned(), Dims { dim: vec![5] });
        bounded.graph_lower_bound = Some(LowerBound { batch_size: 5, ..Default::default() });
        let text = "graph lower bound spec expects 'batch_size' to be <= graph spec 'batch_size'";
        assert_eq!(refused(&config(8, &[-1], vec![bounded.clone()])), text);
        bounded.graph_lower_bound = Some(LowerBound { batch_size: 2, ..Default::default() });
        let text = "graph lower bound spec expects shape for input 'IN'";
        assert_eq!(refused(&config(8, &[-1], vec![bounded.clone()])), text);
        let input = [("IN".to_owned(), Dims { dim: vec![5] })].into();
        bounded.graph_lower_bound = Some(LowerBound { batch_size: 2, input });
        let wanted = Wanted::of(&config(8, &[-1], vec![bounded])).unwrap();
        let expected = Wanted { batch_size: 4, batch_size_min: 2, dims: vec![vec![5]], is_explicit: true };
        assert_eq!(wanted, [expected]);
        let text = "graph_spec of model 'm' needs the shape of input 'IN', whose dims are variable";
        assert_eq!(refused(&config(8, &[-1], vec![spec(4)])), text);
    }
}
