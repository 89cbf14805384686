//! Holds the final configuration against the model (contract/frameworks.md section 5, "checks" and "types").

use super::complete::supported;
use super::element::configured;
use super::saved_model::{ModelTensor, Signature};
use nereid_model_config::complete::{Learned, LearnedKind, LearnedTensor, check_instance};
use nereid_request::Status;
use nereid_wire::inference::model_config::SchedulingChoice;
use nereid_wire::inference::model_sequence_batching::Control;
use nereid_wire::inference::model_sequence_batching::control::Kind;
use nereid_wire::inference::{DataType, ModelConfig, ModelTensorReshape};

/// Refuses types of the configuration that the backend has not.
pub fn check_types(config: &ModelConfig) -> Result<(), Status> {
    let inputs = config.input.iter().map(|input| (&input.name, input.data_type()));
    let outputs = config.output.iter().map(|output| (&output.name, output.data_type()));
    match inputs.chain(outputs).find(|(_, data_type)| *data_type == DataType::TypeBf16) {
        Some((tensor, data_type)) => Err(Status::invalid(format!(
            "unsupported datatype '{}' for tensor '{tensor}' for model '{}'",
            data_type.as_str_name(),
            config.name
        ))),
        None => Ok(()),
    }
}

/// Checks names, types and dimensions against the signature of a SavedModel.
pub fn check_saved_model(config: &ModelConfig, signature: &Signature) -> Result<(), Status> {
    check_configured_tensors(config, signature)?;
    check_controls(config, signature)?;
    let learned = Learned {
        inputs: signature.inputs.iter().map(|tensor| learned(tensor, config)).collect(),
        overridable: Vec::new(),
        outputs: signature.outputs.iter().map(|tensor| learned(tensor, config)).collect(),
    };
    // All inputs of a signature have to be given: none of them is optional for the model.
    let mut config = config.clone();
    config.input.iter_mut().for_each(|input| input.optional = false);
    Ok(check_instance(&config, &learned)?)
}

/// Checks the types of a graph, which has no shapes to check.
pub fn check_graph_types(config: &ModelConfig, signature: &Signature) -> Result<(), Status> {
    check_configured_tensors(config, signature)?;
    check_controls(config, signature)?;
    let inputs = config.input.iter().map(|input| ("input", &input.name, input.data_type(), &signature.inputs));
    let outputs = config.output.iter().map(|output| ("output", &output.name, output.data_type(), &signature.outputs));
    for (what, name, expected, tensors) in inputs.chain(outputs) {
        let provided = tensors.iter().find(|tensor| tensor.name == *name).map(|tensor| configured(tensor.element_type));
        if let Some(provided) = provided.filter(|provided| *provided != expected) {
            return Err(Status::invalid(format!(
                "unable to load model '{}', configuration expects datatype {} for {what} '{name}', model provides {}",
                config.name,
                expected.as_str_name(),
                provided.as_str_name()
            )));
        }
    }
    Ok(())
}

/// Refuses configured tensors that are not dense or have an unsupported type.
fn check_configured_tensors(config: &ModelConfig, signature: &Signature) -> Result<(), Status> {
    let find = |tensors: &'_ [ModelTensor], name: &str| tensors.iter().find(|tensor| tensor.name == name).cloned();
    for input in &config.input {
        find(&signature.inputs, &input.name).map_or(Ok(()), |tensor| supported(&config.name, "input", &tensor))?;
    }
    for output in &config.output {
        find(&signature.outputs, &output.name).map_or(Ok(()), |tensor| supported(&config.name, "output", &tensor))?;
    }
    Ok(())
}

/// The types of sequence controls. Their presence and dimensions are checked with the inputs.
fn check_controls(config: &ModelConfig, signature: &Signature) -> Result<(), Status> {
    let Some(SchedulingChoice::SequenceBatching(sequence)) = &config.scheduling_choice else { return Ok(()) };
    for input in &sequence.control_input {
        let Some(tensor) = signature.inputs.iter().find(|tensor| tensor.name == input.name) else { continue };
        let provided = configured(tensor.element_type);
        if let Some(expected) = input.control.iter().map(control_type).find(|expected| *expected != provided) {
            return Err(Status::invalid(format!(
                "unable to load model '{}', sequence control '{}', the model expects data-type {} but the model \
                 configuration specifies data-type {}",
                config.name,
                input.name,
                provided.as_str_name(),
                expected.as_str_name()
            )));
        }
    }
    Ok(())
}

/// The correlation id has the type that is declared, the others that of their values.
fn control_type(control: &Control) -> DataType {
    match control {
        _ if control.kind() == Kind::ControlSequenceCorrid => control.data_type(),
        _ if !control.int32_false_true.is_empty() => DataType::TypeInt32,
        _ if !control.fp32_false_true.is_empty() => DataType::TypeFp32,
        _ => DataType::TypeBool,
    }
}

/// The tensor with a shape to check against: one without a rank takes any, so that it gets that of the configuration.
fn learned(tensor: &ModelTensor, config: &ModelConfig) -> LearnedTensor {
    let batching = config.max_batch_size > 0;
    let is_scalar = tensor.dims.as_ref().is_some_and(Vec::is_empty) && !batching;
    let dims = match tensor.ranked() {
        Some(dims) => dims.to_vec(),
        None if is_scalar => Vec::new(),
        None => shape_of(&tensor.name, config, batching),
    };
    LearnedTensor { name: tensor.name.clone(), kind: LearnedKind::Tensor(configured(tensor.element_type)), dims }
}

/// What the configuration says of the tensor; of a control, the shape that is expected.
fn shape_of(name: &str, config: &ModelConfig, batching: bool) -> Vec<i64> {
    let given = |dims: &[i64], reshape: &Option<ModelTensorReshape>| {
        reshape.as_ref().map_or_else(|| dims.to_vec(), |reshape| reshape.shape.clone())
    };
    if let Some(input) = config.input.iter().find(|input| input.name == name && input.allow_ragged_batch) {
        tracing::debug!("ragged input '{}' of model '{}' has no rank to check", input.name, config.name);
        return vec![-1];
    }
    let input = config.input.iter().find(|input| input.name == name).map(|input| given(&input.dims, &input.reshape));
    let output = || config.output.iter().find(|output| output.name == name);
    let items = input.or_else(|| output().map(|output| given(&output.dims, &output.reshape))).unwrap_or(vec![1]);
    batching.then_some(-1).into_iter().chain(items).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{input, output, sequence};
    use nereid_request::{Code, DataType as Element};

    fn tensor(name: &str, element_type: i32, dims: Option<&[i64]>) -> ModelTensor {
        let dims = dims.map(<[i64]>::to_vec);
        ModelTensor { name: name.to_owned(), tensor: format!("{name}:0"), element_type, dims }
    }

    fn signature() -> Signature {
        Signature {
            inputs: vec![tensor("A", 1, Some(&[-1, 4])), tensor("F", 1, None)],
            outputs: vec![tensor("B", 1, Some(&[-1, 4])), tensor("T", 8, Some(&[-1]))],
        }
    }

    fn config(max_batch_size: i32) -> ModelConfig {
        let dims: &[i64] = if max_batch_size > 0 { &[4] } else { &[-1, 4] };
        ModelConfig {
            name: "m".to_owned(),
            max_batch_size,
            input: vec![input("A", Element::Fp32, dims), input("F", Element::Fp32, &[7, 7])],
            output: vec![output("B", Element::Fp32, dims)],
            ..ModelConfig::default()
        }
    }

    fn refused(change: impl FnOnce(&mut ModelConfig)) -> (Code, String) {
        let mut config = config(8);
        change(&mut config);
        let error = check_saved_model(&config, &signature()).unwrap_err();
        (error.code, error.message.to_string())
    }

    #[test]
    fn a_configuration_that_fits_passes() {
        for max_batch_size in [0, 8] {
            assert_eq!(check_saved_model(&config(max_batch_size), &signature()), Ok(()), "{max_batch_size}");
        }
        let mut scalar = signature();
        scalar.inputs[1].dims = Some(vec![]);
        assert_eq!(check_saved_model(&config(8), &scalar), Ok(()), "with batching, rank 0 says nothing");
    }

    #[test]
    fn every_difference_has_its_text() {
        let invalid = |text: &str| (Code::InvalidArg, text.to_owned());
        let text = "unable to load model 'm', configuration expects 1 inputs, model provides 2";
        assert_eq!(refused(|config| drop(config.input.pop())), invalid(text));
        let text = "unexpected inference input 'X', allowed inputs are: A, F";
        assert_eq!(refused(|config| config.input[0].name = "X".into()), invalid(text));
        let text = "unexpected inference output 'X', allowed outputs are: B, T";
        assert_eq!(refused(|config| config.output[0].name = "X".into()), invalid(text));
        let text = "unable to load model 'm', configuration expects datatype TYPE_INT32 for input 'A', model provides \
                    TYPE_FP32";
        assert_eq!(refused(|config| config.input[0].data_type = Element::Int32 as i32), invalid(text));
        let text = "model 'm', tensor 'A': the model expects 2 dimensions (shape [-1,4]) but the model configuration \
                    specifies 2 dimensions (an initial batch dimension because max_batch_size > 0 followed by the \
                    explicit tensor shape, making complete shape [-1,5])";
        assert_eq!(refused(|config| config.input[0].dims = vec![5]), invalid(text));
        let text = "unable to load model 'm', configuration expects model provides input with shape [-1]  for ragged \
                    input 'A', model provides [-1,4]";
        assert_eq!(refused(|config| config.input[0].allow_ragged_batch = true), invalid(text));
        let (code, text) = refused(|config| config.output.push(output("T", Element::Fp32, &[1])));
        assert_eq!(
            (code, &*text),
            (Code::Internal, "unable to process output 'T' for 'm', unsupported datatype 'DT_COMPLEX64'")
        );
    }

    #[test]
    fn a_fixed_first_dimension_does_not_batch() {
        let mut fixed = signature();
        fixed.inputs[0].dims = Some(vec![2, 4]);
        let error = check_saved_model(&config(8), &fixed).unwrap_err();
        assert_eq!(
            error.message,
            "model 'm', tensor 'A': for the model to support batching the shape should have at least 1 dimension and \
             the first dimension must be -1; but shape expected by the model is [2,4]"
        );
    }

    #[test]
    fn controls_are_checked_by_type_and_dimensions() {
        let control = |dims: &[i64], number| {
            let mut signature = signature();
            signature.inputs[1] = tensor("START", number, Some(dims));
            let mut config = config(8);
            config.input.pop();
            config.scheduling_choice = Some(sequence(&["START"], &[]));
            check_saved_model(&config, &signature)
        };
        assert_eq!(control(&[-1, 1], 3), Ok(()));
        let error = control(&[-1, 2], 3).unwrap_err();
        let text = "unable to load model 'm', sequence control 'START' in model has dims [2] but dims [1] is expected";
        assert_eq!((error.code, &*error.message), (Code::InvalidArg, text));
        let error = control(&[-1, 1], 1).unwrap_err();
        let text = "unable to load model 'm', sequence control 'START', the model expects data-type TYPE_FP32 but the \
                    model configuration specifies data-type TYPE_INT32";
        assert_eq!((error.code, &*error.message), (Code::InvalidArg, text));
        let mut absent = config(8);
        absent.scheduling_choice = Some(sequence(&["END"], &[]));
        let error = check_saved_model(&absent, &signature()).unwrap_err();
        let text = "configuration specified sequence control 'END', but model does not provide that input";
        assert_eq!((error.code, &*error.message), (Code::Internal, text));
    }

    #[test]
    fn bf16_and_wrong_types_of_graphs_are_refused() {
        let mut given = config(0);
        assert_eq!(check_types(&given), Ok(()));
        given.output[0].data_type = Element::Bf16 as i32;
        let error = check_types(&given).unwrap_err();
        let text = "unsupported datatype 'TYPE_BF16' for tensor 'B' for model 'm'";
        assert_eq!((error.code, &*error.message), (Code::InvalidArg, text));
        assert_eq!(check_graph_types(&config(0), &signature()), Ok(()));
        given.output[0].data_type = Element::Uint8 as i32;
        let error = check_graph_types(&given, &signature()).unwrap_err();
        let text = "unable to load model 'm', configuration expects datatype TYPE_UINT8 for output 'B', model provides \
                    TYPE_FP32";
        assert_eq!((error.code, &*error.message), (Code::InvalidArg, text));
    }
}
