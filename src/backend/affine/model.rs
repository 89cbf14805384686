//! The configuration of an affine model, checked.

use crate::ModelContext;
use crate::vectors::{demand, demand_all};
use nereid_gpu::kernels::Affine;
use nereid_request::{ByNumber, DataType, InputTensor, OutputTensor, Request, Shape, Status};

/// See the [module](self).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AffineModel {
    pub affine: Affine,
    pub is_batching: bool,
    /// Whether the configuration requests recorded launches.
    pub records_graphs: bool,
}

impl AffineModel {
    pub fn read(context: &ModelContext) -> Result<AffineModel, Status> {
        let config = &context.config;
        demand_all(&config.input)?;
        let (inputs, outputs) = (config.input.len(), config.output.len());
        demand(inputs == outputs && inputs > 0, || {
            format!("expected as many outputs as inputs, got {outputs} and {inputs}")
        })?;
        for (at, (input, output)) in config.input.iter().zip(&config.output).enumerate() {
            let names = [(&input.name, format!("INPUT{at}")), (&output.name, format!("OUTPUT{at}"))];
            for (given, expected) in names {
                demand(*given == expected, || format!("expected '{expected}', got '{given}'"))?;
            }
            for (name, data_type) in [(&input.name, input.data_type), (&output.name, output.data_type)] {
                demand(u32::try_from(data_type) == Ok(DataType::Fp32 as u32), || {
                    format!("expected '{name}' to have data type TYPE_FP32")
                })?;
            }
            demand(input.dims == output.dims, || {
                format!("expected '{}' and '{}' to have the same dims", input.name, output.name)
            })?;
        }
        let graphs = config.optimization.as_ref().and_then(|optimization| optimization.cuda.as_ref());
        Ok(AffineModel {
            affine: Affine { scale: number(context, "scale", 1.0)?, bias: number(context, "bias", 0.0)? },
            is_batching: config.max_batch_size > 0,
            records_graphs: graphs.is_some_and(|cuda| cuda.graphs),
        })
    }

    /// The rows that a request adds to the batch.
    pub fn rows(&self, request: &Request) -> u64 {
        if self.is_batching { request.batch_size } else { 0 }
    }
}

fn number(context: &ModelContext, key: &str, default: f32) -> Result<f32, Status> {
    let Some(text) = context.parameter(key) else { return Ok(default) };
    text.trim().parse().map_err(|_| Status::invalid(format!("parameter '{key}' is no number: '{text}'")))
}

/// The pairs that a request selects: for each requested output its position, its input, and the request's entry for it.
pub fn pairs(request: &Request) -> Result<Vec<(&InputTensor, &nereid_request::RequestedOutput)>, Status> {
    let inputs = ByNumber::new(&request.inputs);
    let pair = |output: &'_ nereid_request::RequestedOutput| {
        let missing = || Status::invalid(format!("output '{}' has no input", output.name));
        inputs.get(output.index).ok_or_else(missing)
    };
    request.outputs.iter().map(|output| Ok((pair(output)?, output))).collect()
}

/// An output without its data.
pub fn output_of(input: &InputTensor, wanted: &nereid_request::RequestedOutput) -> OutputTensor {
    OutputTensor {
        name: wanted.name.clone(),
        datatype: DataType::Fp32,
        shape: Shape::from_slice(&input.model_shape),
        data: smallvec::SmallVec::new(),
        index: wanted.index,
        on_device: None,
    }
}
