//! Rows "io", "format" and "batch_input/output". Every text gets ` for <model>` appended.

use std::collections::BTreeSet;

use super::super::datatype::config_name;
use super::super::shape_match::WILDCARD;
use super::Findings;
use nereid_wire::inference::model_input::Format;
use nereid_wire::inference::{BatchInput, BatchOutput, DataType, ModelConfig, ModelInput, ModelOutput};

pub(super) fn check(config: &ModelConfig, findings: &mut Findings) {
    let batching = config.max_batch_size > 0;
    let tensor_rt = config.platform == "tensorrt_plan";
    let mut note = |path: String, checked: Result<(), String>| {
        if let Err(message) = checked {
            findings.invalid(path, format!("{message} for {}", config.name));
        }
    };
    for (index, input) in config.input.iter().enumerate() {
        note(format!("input[{index}]"), check_input(input, batching, tensor_rt));
    }
    for (index, output) in config.output.iter().enumerate() {
        note(format!("output[{index}]"), check_output(output, batching, tensor_rt));
    }
    let inputs: BTreeSet<&str> = config.input.iter().map(|input| input.name.as_str()).collect();
    let outputs: BTreeSet<&str> = config.output.iter().map(|output| output.name.as_str()).collect();
    for (index, input) in config.batch_input.iter().enumerate() {
        note(format!("batch_input[{index}]"), check_batch_input(input, &inputs));
    }
    let mut targets = BTreeSet::new();
    for (index, output) in config.batch_output.iter().enumerate() {
        note(format!("batch_output[{index}]"), check_batch_output(output, &inputs, &outputs, &mut targets));
    }
}

fn check_input(input: &ModelInput, batching: bool, tensor_rt: bool) -> Result<(), String> {
    let reshape = input.reshape.as_ref().map(|reshape| reshape.shape.as_slice());
    Shape { name: &input.name, data_type: input.data_type, dims: &input.dims, reshape }
        .check(batching, "model input ")?;
    if matches!(input.format(), Format::Nhwc | Format::Nchw) && input.dims.len() != 3 {
        return Err("model input NHWC/NCHW require 3 dims".into());
    }
    check_tensor_rt_flags(tensor_rt, input.is_shape_tensor, input.is_non_linear_format_io)?;
    if input.is_non_linear_format_io && input.dims.len() != 3 {
        return Err("Non-linear IO format input requires 3 dims".into());
    }
    Ok(())
}

fn check_output(output: &ModelOutput, batching: bool, tensor_rt: bool) -> Result<(), String> {
    let reshape = output.reshape.as_ref().map(|reshape| reshape.shape.as_slice());
    Shape { name: &output.name, data_type: output.data_type, dims: &output.dims, reshape }
        .check(batching, "model output ")?;
    check_tensor_rt_flags(tensor_rt, output.is_shape_tensor, output.is_non_linear_format_io)
}

fn check_tensor_rt_flags(tensor_rt: bool, shape_tensor: bool, non_linear: bool) -> Result<(), String> {
    if !tensor_rt && shape_tensor {
        return Err("shape tensors are only supported for TensorRT platform".into());
    }
    if !tensor_rt && non_linear {
        return Err("Non-linear IO format is only supported for the TensorRT platform".into());
    }
    Ok(())
}

/// The fields that inputs and outputs have in common.
struct Shape<'a> {
    name: &'a str,
    data_type: i32,
    dims: &'a [i64],
    reshape: Option<&'a [i64]>,
}

impl Shape<'_> {
    fn check(&self, batching: bool, prefix: &str) -> Result<(), String> {
        if self.name.is_empty() {
            return Err(format!("{prefix}must specify 'name'"));
        }
        let refused = |what: &str| Err(format!("{prefix}'{}' {what}", self.name));
        // A number that is no type is as good as none.
        if config_name(self.data_type) == DataType::TypeInvalid.as_str_name() {
            return refused("must specify 'data_type'");
        }
        if self.dims.is_empty() {
            return refused("must specify 'dims'");
        }
        if !batching && self.reshape.is_some_and(<[i64]>::is_empty) {
            return refused("cannot have empty reshape for non-batching model as scalar tensors are not supported");
        }
        let is_dim = |dim: &i64| *dim >= 1 || *dim == WILDCARD;
        if !self.dims.iter().all(is_dim) {
            return refused("dimension must be integer >= 1, or -1 to indicate a variable-size dimension");
        }
        let Some(reshape) = self.reshape else { return Ok(()) };
        if !reshape.iter().all(is_dim) {
            return refused("reshape dimensions must be integer >= 1, or -1 to indicate a variable-size dimension");
        }
        self.check_sizes(reshape).or_else(refused)
    }

    /// Dims and reshape must hold equally many elements between each two variable-size dimensions.
    fn check_sizes(&self, reshape: &[i64]) -> Result<(), &'static str> {
        const SIZE: &str = "has different size for dims and reshape";
        let is_open = |dims: &[i64]| dims.contains(&WILDCARD);
        if is_open(self.dims) != is_open(reshape) {
            return Err(SIZE);
        }
        let trunks = |dims: &[i64]| -> Vec<Option<u128>> { dims.split(|dim| *dim == WILDCARD).map(product).collect() };
        let (dims, reshape) = (trunks(self.dims), trunks(reshape));
        if dims.len() != reshape.len() {
            return Err("has different number of variable-size dimensions for dims and reshape");
        }
        // A size that overflows is not equal to another one: such a tensor cannot exist.
        if dims.iter().zip(&reshape).all(|(dims, reshape)| dims.is_some() && dims == reshape) {
            Ok(())
        } else {
            Err(SIZE)
        }
    }
}

fn product(dims: &[i64]) -> Option<u128> {
    dims.iter().try_fold(1u128, |product, dim| product.checked_mul(u128::try_from(*dim).ok()?))
}

fn check_batch_input(input: &BatchInput, inputs: &BTreeSet<&str>) -> Result<(), String> {
    check_sources("input", input.kind().as_str_name(), &input.source_input)?;
    if !matches!(input.data_type(), DataType::TypeInt32 | DataType::TypeFp32) {
        return Err("batch input data type must be TYPE_INT32 or TYPE_FP32".into());
    }
    check_known(&input.source_input, inputs)
}

fn check_batch_output<'a>(
    output: &'a BatchOutput,
    inputs: &BTreeSet<&str>,
    outputs: &BTreeSet<&str>,
    targets: &mut BTreeSet<&'a str>,
) -> Result<(), String> {
    check_sources("output", output.kind().as_str_name(), &output.source_input)?;
    check_known(&output.source_input, inputs)?;
    for target in &output.target_name {
        if !outputs.contains(target.as_str()) {
            return Err(format!("unknown target output name '{target}'"));
        }
        if !targets.insert(target) {
            return Err(format!("target output name '{target}' can only be specified once"));
        }
    }
    Ok(())
}

fn check_sources(what: &str, kind: &str, sources: &[String]) -> Result<(), String> {
    if sources.len() != 1 {
        return Err(format!("batch {what} kind '{kind}' expects 1 source input, got {}", sources.len()));
    }
    Ok(())
}

fn check_known(sources: &[String], inputs: &BTreeSet<&str>) -> Result<(), String> {
    match sources.iter().find(|source| !inputs.contains(source.as_str())) {
        Some(source) => Err(format!("unknown source input name '{source}'")),
        None => Ok(()),
    }
}
