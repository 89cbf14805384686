//! Checks that the configuration fits the model, when an instance is created.
//!
//! Written against [`ModelConfig`] rather than [`super::super::ModelSpec`], because sequence controls, states and
//! ragged inputs are checked too.

use std::collections::BTreeMap;

use super::super::Error;
use super::super::shape_match::{WILDCARD, format_shape};
use super::{Learned, LearnedKind, LearnedTensor};
use nereid_wire::inference::model_config::SchedulingChoice;
use nereid_wire::inference::model_sequence_batching::Control;
use nereid_wire::inference::model_sequence_batching::control::Kind;
use nereid_wire::inference::{DataType, ModelConfig, ModelInput, ModelSequenceBatching, ModelTensorReshape};

/// Holds a normalised configuration against the model's file.
pub fn check_instance(config: &ModelConfig, learned: &Learned) -> Result<(), Error> {
    let check = Check { config, learned, model: &config.name };
    check.controls()?;
    check.input_count()?;
    check.inputs()?;
    check.outputs()
}

/// Refuses a value that is no tensor.
pub(super) fn tensor_type(tensor: &LearnedTensor) -> Result<DataType, Error> {
    match &tensor.kind {
        LearnedKind::Tensor(data_type) => Ok(*data_type),
        LearnedKind::Other(kind) => Err(Error::unsupported(format!(
            "Unsupported ONNX Type '{kind}' for I/O '{}', expected 'ONNX_TYPE_TENSOR'.",
            tensor.name
        ))),
    }
}

struct Check<'a> {
    config: &'a ModelConfig,
    learned: &'a Learned,
    model: &'a str,
}

type Named<'a> = BTreeMap<&'a str, &'a LearnedTensor>;

fn by_name(tensors: &[LearnedTensor]) -> Named<'_> {
    tensors.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect()
}

impl Check<'_> {
    fn batching(&self) -> bool {
        self.config.max_batch_size > 0
    }

    /// An error that names the model that could not be loaded.
    fn unable(&self, what: &str) -> Error {
        Error::invalid(format!("unable to load model '{}', {what}", self.model))
    }

    fn sequence(&self) -> Option<&ModelSequenceBatching> {
        match &self.config.scheduling_choice {
            Some(SchedulingChoice::SequenceBatching(sequence)) => Some(sequence),
            _ => None,
        }
    }

    fn input_count(&self) -> Result<(), Error> {
        let targets: usize = self.config.batch_input.iter().map(|input| input.target_name.len()).sum();
        let sequence = self.sequence();
        let expected = self.config.input.iter().filter(|input| !input.optional).count()
            + targets
            + sequence.map_or(0, |sequence| {
                sequence.control_input.iter().map(|input| input.control.len()).sum::<usize>() + sequence.state.len()
            });
        let provided = self.learned.inputs.len();
        if expected != provided {
            return Err(self.unable(&format!("configuration expects {expected} inputs, model provides {provided}")));
        }
        Ok(())
    }

    fn inputs(&self) -> Result<(), Error> {
        let inputs = by_name(&self.learned.inputs);
        let overridable = by_name(&self.learned.overridable);
        for input in &self.config.input {
            let name = &input.name;
            let allowed = if input.optional { &overridable } else { &inputs };
            let tensor = find(name, allowed, "input")?;
            self.data_type("input", name, input.data_type(), tensor)?;
            if input.optional && self.batching() {
                return Err(
                    self.unable(&format!("optional input '{name}' is not supported for models that support batching"))
                );
            }
            if input.allow_ragged_batch {
                self.ragged(input, tensor)?;
            } else {
                self.dims(name, &input.dims, input.reshape.as_ref(), tensor)?;
            }
        }
        Ok(())
    }

    fn outputs(&self) -> Result<(), Error> {
        let outputs = by_name(&self.learned.outputs);
        for output in &self.config.output {
            let tensor = find(&output.name, &outputs, "output")?;
            self.data_type("output", &output.name, output.data_type(), tensor)?;
            // A flat output need not have the shape of the outputs that it is split into.
            if self.config.batch_output.iter().any(|batch| batch.target_name.contains(&output.name)) {
                continue;
            }
            self.dims(&output.name, &output.dims, output.reshape.as_ref(), tensor)?;
        }
        Ok(())
    }

    fn data_type(&self, what: &str, name: &str, expected: DataType, tensor: &LearnedTensor) -> Result<(), Error> {
        let provided = tensor_type(tensor)?;
        if expected == DataType::TypeInvalid {
            return Err(Error::internal(format!(
                "unsupported datatype {} for {what} '{name}' for model '{}'",
                expected.as_str_name(),
                self.model
            )));
        }
        if expected != provided {
            return Err(self.unable(&format!(
                "configuration expects datatype {} for {what} '{name}', model provides {}",
                expected.as_str_name(),
                provided.as_str_name()
            )));
        }
        Ok(())
    }

    /// The requests' payloads are joined flat, whatever their shapes.
    fn ragged(&self, input: &ModelInput, tensor: &LearnedTensor) -> Result<(), Error> {
        let name = &input.name;
        if input.optional {
            return Err(self.unable(&format!(
                "configuration expects model provides input with shape [-1] for ragged input '{name}', which is not \
                 supported for optional input"
            )));
        }
        if tensor.dims != [WILDCARD] {
            return Err(self.unable(&format!(
                "configuration expects model provides input with shape [-1]  for ragged input '{name}', model \
                 provides {}",
                format_shape(&tensor.dims)
            )));
        }
        Ok(())
    }

    fn dims(
        &self,
        name: &str,
        dims: &[i64],
        reshape: Option<&ModelTensorReshape>,
        tensor: &LearnedTensor,
    ) -> Result<(), Error> {
        let dims = reshape.map_or(dims, |reshape| &reshape.shape);
        let provided = &tensor.dims;
        if self.batching() {
            return self.batched_dims(name, dims, provided);
        }
        if provided.is_empty() {
            if dims.iter().all(|dim| *dim == 1) {
                return Ok(());
            }
            return Err(self.unable(&format!(
                "scalar tensor '{name}', should only provide 1 in the model configuration when the model doesn't \
                 support batching. Model configuration provided: {}.",
                format_shape(dims)
            )));
        }
        if fits(dims, provided) {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "model '{}', tensor '{name}': the model expects {} dimensions (shape {}) but the model configuration \
             specifies {} dimensions (shape {})",
            self.model,
            provided.len(),
            format_shape(provided),
            dims.len(),
            format_shape(dims)
        )))
    }

    fn batched_dims(&self, name: &str, dims: &[i64], provided: &[i64]) -> Result<(), Error> {
        let subject = format!("model '{}', tensor '{name}'", self.model);
        if provided.first() != Some(&WILDCARD) {
            return Err(Error::invalid(format!(
                "{subject}: for the model to support batching the shape should have at least 1 dimension and the \
                 first dimension must be -1; but shape expected by the model is {}",
                format_shape(provided)
            )));
        }
        let full: Vec<i64> = [WILDCARD].into_iter().chain(dims.iter().copied()).collect();
        if fits(&full, provided) {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "{subject}: the model expects {} dimensions (shape {}) but the model configuration specifies {} dimensions \
             (an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, making \
             complete shape {})",
            provided.len(),
            format_shape(provided),
            full.len(),
            format_shape(&full)
        )))
    }

    fn controls(&self) -> Result<(), Error> {
        let inputs = by_name(&self.learned.inputs);
        for input in self.sequence().into_iter().flat_map(|sequence| &sequence.control_input) {
            for control in &input.control {
                self.control(&input.name, control, &inputs)?;
            }
        }
        Ok(())
    }

    fn control(&self, name: &str, control: &Control, inputs: &Named<'_>) -> Result<(), Error> {
        let Some(tensor) = inputs.get(name) else {
            return Err(Error::internal(format!(
                "configuration specified sequence control '{name}', but model does not provide that input"
            )));
        };
        // The correlation id has the type that is declared, the others that of their values.
        let data_type = if control.kind() == Kind::ControlSequenceCorrid {
            control.data_type()
        } else if !control.int32_false_true.is_empty() {
            DataType::TypeInt32
        } else if !control.fp32_false_true.is_empty() {
            DataType::TypeFp32
        } else {
            DataType::TypeBool
        };
        let dims = tensor.dims.get(usize::from(self.batching())..).unwrap_or_default();
        if dims != [1] {
            return Err(self.unable(&format!(
                "sequence control '{name}' in model has dims {} but dims [1] is expected",
                format_shape(dims)
            )));
        }
        let provided = tensor_type(tensor)?;
        if provided != data_type {
            return Err(self.unable(&format!(
                "sequence control '{name}', the model expects data-type {} but the model configuration specifies \
                 data-type {}",
                onnx_name(provided),
                data_type.as_str_name()
            )));
        }
        Ok(())
    }
}

fn find<'a>(name: &str, allowed: &Named<'a>, what: &str) -> Result<&'a LearnedTensor, Error> {
    allowed.get(name).copied().ok_or_else(|| {
        let names: Vec<&str> = allowed.keys().copied().collect();
        Error::invalid(format!("unexpected inference {what} '{name}', allowed {what}s are: {}", names.join(", ")))
    })
}

/// An open dimension of the model takes anything, a fixed one only itself.
fn fits(dims: &[i64], provided: &[i64]) -> bool {
    dims.len() == provided.len()
        && dims.iter().zip(provided).all(|(dim, provided)| *provided == WILDCARD || dim == provided)
}

/// ONNX's name of a type; `UNDEFINED` where it has none.
fn onnx_name(data_type: DataType) -> &'static str {
    match data_type {
        DataType::TypeInvalid => "UNDEFINED",
        DataType::TypeBool => "BOOL",
        DataType::TypeUint8 => "UINT8",
        DataType::TypeUint16 => "UINT16",
        DataType::TypeUint32 => "UINT32",
        DataType::TypeUint64 => "UINT64",
        DataType::TypeInt8 => "INT8",
        DataType::TypeInt16 => "INT16",
        DataType::TypeInt32 => "INT32",
        DataType::TypeInt64 => "INT64",
        DataType::TypeFp16 => "FLOAT16",
        DataType::TypeFp32 => "FLOAT",
        DataType::TypeFp64 => "DOUBLE",
        DataType::TypeString => "STRING",
        DataType::TypeBf16 => "BFLOAT16",
    }
}
