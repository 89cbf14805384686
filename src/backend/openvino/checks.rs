//! Checks that a configuration fits the model, when the first instance is created (contract/frameworks.md section 3,
//! "Auto-complete, checks").

use std::collections::BTreeSet;

use nereid_model_config::{ModelSpec, TensorSpec};
use nereid_request::{DataType, Status, format_shape};
use nereid_wire::inference::ModelConfig;
use nereid_wire::inference::model_instance_group::Kind;

use super::completion::open_rank;
use super::runtime::{Dimension, Port};

/// Only instances on the CPU exist; devices of the library are a parameter of the model.
pub fn check_kind(model: &str, kind: Kind) -> Result<(), Status> {
    match kind {
        Kind::Cpu | Kind::Auto => Ok(()),
        Kind::Gpu | Kind::Model => Err(Status::invalid(format!(
            "unable to load model '{model}', Triton OpenVINO backend supports only Kind CPU and AUTO"
        ))),
    }
}

/// Refuses what the backend does not support.
pub fn check_features(config: &ModelConfig) -> Result<(), Status> {
    let model = &config.name;
    let refused = |what: String| {
        Err(Status::unsupported(format!(
            "unable to load model '{model}', the openvino backend does not support {what}"
        )))
    };
    for input in &config.input {
        if input.allow_ragged_batch {
            return refused(format!("ragged input '{}'", input.name));
        }
        if input.optional {
            return refused(format!("optional input '{}'", input.name));
        }
    }
    if !config.batch_input.is_empty() {
        return refused("batch_input".to_owned());
    }
    if !config.batch_output.is_empty() {
        return refused("batch_output".to_owned());
    }
    Ok(())
}

/// What the configuration calls a tensor, and the port of the model that it is.
#[derive(Debug)]
pub struct Matched<'a> {
    pub spec: &'a TensorSpec,
    /// Position among the model's inputs, or outputs.
    pub port: usize,
    pub datatype: DataType,
}

/// The inputs of the configuration, then those that the server adds, with their ports. Each input of the model is
/// matched once.
pub fn match_inputs<'a>(spec: &'a ModelSpec, ports: &[Port]) -> Result<Vec<Matched<'a>>, Status> {
    let expected = spec.inputs.len() + spec.hidden_inputs.len();
    if expected != ports.len() {
        return Err(Status::invalid(format!(
            "unable to load model '{}', configuration expects {expected} inputs, model provides {}",
            spec.name,
            ports.len()
        )));
    }
    for hidden in &spec.hidden_inputs {
        if !ports.iter().any(|port| port.name == hidden.name) {
            return Err(Status::internal(format!(
                "configuration specified sequence control '{}', but model does not provide that input",
                hidden.name
            )));
        }
    }
    let tensors = spec.inputs.iter().chain(&spec.hidden_inputs);
    let matched = tensors.map(|tensor| matched(&spec.name, tensor, ports, "input"));
    let matched: Vec<Matched<'a>> = matched.collect::<Result<_, Status>>()?;
    let distinct: BTreeSet<usize> = matched.iter().map(|tensor| tensor.port).collect();
    if distinct.len() != ports.len() {
        // A state or control has the name of an input.
        return Err(Status::invalid(format!("unable to load model '{}', an input is specified twice", spec.name)));
    }
    Ok(matched)
}

/// The outputs of the configuration, then the states that are no outputs, with their ports.
pub fn match_outputs<'a>(spec: &'a ModelSpec, ports: &[Port]) -> Result<Vec<Matched<'a>>, Status> {
    let tensors = spec.outputs.iter().chain(&spec.hidden_outputs);
    tensors.map(|tensor| matched(&spec.name, tensor, ports, "output")).collect()
}

fn matched<'a>(model: &str, spec: &'a TensorSpec, ports: &[Port], side: &str) -> Result<Matched<'a>, Status> {
    let name = &spec.name;
    let port = ports.iter().position(|port| port.name == *name).ok_or_else(|| {
        let names: BTreeSet<&str> = ports.iter().map(|port| port.name.as_str()).collect();
        let names: Vec<&str> = names.into_iter().collect();
        Status::invalid(format!("unexpected inference {side} '{name}', allowed {side}s are: {}", names.join(", ")))
    })?;
    let number = u32::try_from(spec.wire_number()).ok();
    let datatype = number.and_then(DataType::from_number).filter(|datatype| is_supported(*datatype));
    let datatype = datatype.ok_or_else(|| {
        let datatype = spec.data_type.as_str_name();
        Status::internal(format!("unsupported datatype {datatype} for {side} '{name}' for model '{model}'"))
    })?;
    Ok(Matched { spec, port, datatype })
}

fn is_supported(datatype: DataType) -> bool {
    !matches!(datatype, DataType::Fp64 | DataType::Bf16 | DataType::Bytes)
}

/// Which dimensions of a configuration a model's tensor is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    /// All of them: the model does not batch.
    Whole,
    /// Inputs of a batching model: not the first one, and none that the configuration leaves open.
    BatchedInput,
    /// Outputs of a batching model: not the first one.
    BatchedOutput,
}

/// Compares the dims of the configuration with those of the model. A dimension that the model leaves open takes any.
pub fn check_dims(model: &str, spec: &TensorSpec, dims: &[Dimension], comparison: Comparison) -> Result<(), Status> {
    let given = spec.backend_dims();
    let batches = comparison != Comparison::Whole;
    let full: Vec<i64> = batches.then_some(-1).into_iter().chain(given.iter().copied()).collect();
    let fits = |(at, (dim, given)): (usize, (&Dimension, &i64))| match comparison {
        Comparison::BatchedInput | Comparison::BatchedOutput if at == 0 => true,
        Comparison::BatchedInput if *given == -1 => true,
        _ => dim.fixed().is_none_or(|fixed| fixed == *given),
    };
    if full.len() == dims.len() && dims.iter().zip(&full).enumerate().all(fits) {
        return Ok(());
    }
    let shape: Vec<i64> = dims.iter().map(|dim| dim.as_config()).collect();
    let expects = format!(
        "model '{model}', tensor '{}': the model expects {} dimensions (shape {}) but the model configuration \
         specifies {} dimensions",
        spec.name,
        dims.len(),
        format_shape(&shape),
        full.len()
    );
    let full = format_shape(&full);
    Err(Status::invalid(match batches {
        true => format!(
            "{expects} (an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, \
             making complete shape {full})"
        ),
        false => format!("{expects} (shape {full})"),
    }))
}

/// The dims of a port that must have a known number of them.
pub fn known_dims<'a>(model: &str, port: &'a Port) -> Result<&'a [Dimension], Status> {
    port.dims.as_deref().ok_or_else(|| open_rank(model, &port.name))
}

/// The shape that RESHAPE_IO_LAYERS gives an input, without the batch.
pub fn reshaped(spec: &TensorSpec) -> Result<Vec<Dimension>, Status> {
    let dimension = |dim: &i64| match dim {
        -1 | 1.. => Ok(Dimension::of_config(*dim)),
        _ => Err(Status::internal(
            "openvino backend does not support dimensions values other than `-1` or positive integers",
        )),
    };
    spec.backend_dims().iter().map(dimension).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nereid_request::Code;
    use nereid_wire::inference::DataType as Type;

    fn spec(name: &str, data_type: Type, dims: &[i64]) -> TensorSpec {
        TensorSpec {
            name: name.to_owned(),
            data_type,
            datatype: "",
            dims: dims.to_vec(),
            reshape: None,
            optional: false,
            label_filename: String::new(),
        }
    }

    fn dims(dims: &[i64]) -> Vec<Dimension> {
        dims.iter().copied().map(Dimension::of_config).collect()
    }

    fn compared(given: &[i64], provided: &[i64], comparison: Comparison) -> Option<String> {
        let spec = spec("t", Type::TypeFp32, given);
        let error = check_dims("m", &spec, &dims(provided), comparison).err()?;
        assert_eq!(error.code, Code::InvalidArg);
        Some(error.message.into_owned())
    }

    #[test]
    fn dims_are_compared_as_the_contract_says() {
        use Comparison::{BatchedInput, BatchedOutput, Whole};
        for (given, provided, comparison, fits) in [
            (&[1, 4][..], &[1, 4][..], Whole, true),
            (&[1, 256], &[1, 4], Whole, false),
            (&[-1, 4], &[1, 4], Whole, false),
            (&[7, 4], &[-1, 4], Whole, true),
            (&[4], &[1, 4], Whole, false),
            (&[4], &[1, 4], BatchedInput, true),
            (&[-1], &[1, 4], BatchedInput, true),
            (&[5], &[1, 4], BatchedInput, false),
            (&[4, 4], &[1, 4], BatchedInput, false),
            (&[4], &[8, 4], BatchedOutput, true),
            (&[-1], &[8, 4], BatchedOutput, false),
            (&[-1], &[8, -1], BatchedOutput, true),
            (&[1], &[], Whole, false),
        ] {
            assert_eq!(compared(given, provided, comparison).is_none(), fits, "{given:?} {provided:?} {comparison:?}");
        }
        let text = "model 'm', tensor 't': the model expects 2 dimensions (shape [1,4]) but the model configuration \
                    specifies 2 dimensions (shape [1,256])";
        assert_eq!(compared(&[1, 256], &[1, 4], Whole).unwrap(), text);
        let text = "model 'm', tensor 't': the model expects 2 dimensions (shape [-1,4]) but the model configuration \
                    specifies 2 dimensions (an initial batch dimension because max_batch_size > 0 followed by the \
                    explicit tensor shape, making complete shape [-1,5])";
        assert_eq!(compared(&[5], &[-1, 4], BatchedInput).unwrap(), text);
    }

    #[test]
    fn only_instances_on_the_cpu_exist() {
        for kind in [Kind::Gpu, Kind::Model] {
            let error = check_kind("m", kind).unwrap_err();
            let text = "unable to load model 'm', Triton OpenVINO backend supports only Kind CPU and AUTO";
            assert_eq!((error.code, &*error.message), (Code::InvalidArg, text));
        }
        assert!(check_kind("m", Kind::Cpu).is_ok() && check_kind("m", Kind::Auto).is_ok());
    }

    #[test]
    fn types_without_a_place_in_the_library_are_refused() {
        let ports = [Port { name: "t".to_owned(), datatype: None, dims: Some(Vec::new()) }];
        for data_type in [Type::TypeFp64, Type::TypeBf16, Type::TypeString, Type::TypeInvalid] {
            let error = matched("m", &spec("t", data_type, &[1]), &ports, "input").unwrap_err();
            let text = format!("unsupported datatype {} for input 't' for model 'm'", data_type.as_str_name());
            assert_eq!((error.code, &*error.message), (Code::Internal, text.as_str()));
        }
        assert!(matched("m", &spec("t", Type::TypeFp16, &[1]), &ports, "input").is_ok());
    }

    #[test]
    fn features_that_the_backend_lacks_are_refused_by_name() {
        use nereid_wire::inference::{BatchInput, BatchOutput, ModelInput};
        let input = |optional, allow_ragged_batch| {
            vec![ModelInput { name: "t".to_owned(), optional, allow_ragged_batch, ..Default::default() }]
        };
        let config = |config: ModelConfig| ModelConfig { name: "m".to_owned(), ..config };
        for (config, what) in [
            (config(ModelConfig { input: input(true, false), ..Default::default() }), "optional input 't'"),
            (config(ModelConfig { input: input(false, true), ..Default::default() }), "ragged input 't'"),
            (config(ModelConfig { batch_input: vec![BatchInput::default()], ..Default::default() }), "batch_input"),
            (config(ModelConfig { batch_output: vec![BatchOutput::default()], ..Default::default() }), "batch_output"),
        ] {
            let text = format!("unable to load model 'm', the openvino backend does not support {what}");
            assert_eq!(check_features(&config), Err(Status::unsupported(text)));
        }
        assert_eq!(check_features(&config(ModelConfig { input: input(false, false), ..Default::default() })), Ok(()));
    }

    #[test]
    fn inputs_are_reshaped_to_open_and_positive_dimensions_only() {
        assert_eq!(reshaped(&spec("t", Type::TypeFp32, &[-1, 3])).unwrap(), dims(&[-1, 3]));
        let error = reshaped(&spec("t", Type::TypeFp32, &[0])).unwrap_err();
        let text = "openvino backend does not support dimensions values other than `-1` or positive integers";
        assert_eq!((error.code, &*error.message), (Code::Internal, text));
    }
}
