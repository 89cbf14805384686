//! Auto-completion: what a model's file says is merged into its configuration (contract/frameworks.md section 3,
//! "Auto-complete, checks").

use nereid_request::Status;
use nereid_wire::inference::model_config::SchedulingChoice;
use nereid_wire::inference::{DataType, ModelConfig, ModelInput, ModelOutput};

use super::runtime::Port;

/// A model as its file describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Described {
    pub inputs: Vec<Port>,
    pub outputs: Vec<Port>,
    /// Every tensor has a layout with the batch in front.
    pub batches: bool,
}

/// Which lists of tensors were filled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Filled {
    pub inputs: bool,
    pub outputs: bool,
}

/// Fills what the configuration leaves out.
pub fn complete(config: &mut ModelConfig, model: &Described, default_max_batch_size: i32) -> Result<Filled, Status> {
    complete_batching(config, model.batches, default_max_batch_size);
    let batches = config.max_batch_size > 0;
    let filled = Filled { inputs: config.input.is_empty(), outputs: config.output.is_empty() };
    let name = config.name.clone();
    let skipped = |side: &str| {
        tracing::info!("skipping {side} model configuration auto-complete for '{name}': {side} already specified");
    };
    if filled.inputs {
        let tensors = model.inputs.iter().map(|port| tensor(&name, port, batches));
        let inputs = tensors.map(|tensor| {
            let (name, data_type, dims) = tensor?;
            Ok(ModelInput { name, data_type: data_type.into(), dims, ..Default::default() })
        });
        config.input = inputs.collect::<Result<_, Status>>()?;
    } else {
        skipped("input");
    }
    if filled.outputs {
        let tensors = model.outputs.iter().map(|port| tensor(&name, port, batches));
        let outputs = tensors.map(|tensor| {
            let (name, data_type, dims) = tensor?;
            Ok(ModelOutput { name, data_type: data_type.into(), dims, ..Default::default() })
        });
        config.output = outputs.collect::<Result<_, Status>>()?;
    } else {
        skipped("output");
    }
    Ok(filled)
}

fn complete_batching(config: &mut ModelConfig, batches: bool, default_max_batch_size: i32) {
    let name = &config.name;
    if !batches {
        if config.max_batch_size > 0 {
            tracing::warn!(
                "model layout for model {name} does not support batching while non-zero max_batch_size is specified"
            );
        }
        return;
    }
    if config.max_batch_size == 0 {
        config.max_batch_size = default_max_batch_size.max(1);
        tracing::warn!(
            "autofilled max_batch_size to {} for model '{name}' since batching is supported but no max_batch_size is \
             specified in model configuration. Must specify max_batch_size to utilize autofill with a larger max batch \
             size",
            config.max_batch_size
        );
    }
    if config.max_batch_size > 1 && config.scheduling_choice.is_none() {
        config.scheduling_choice = Some(SchedulingChoice::DynamicBatching(Default::default()));
    }
}

/// Name, type and dims of a completed tensor. If any dimension is open, all of them count as open.
fn tensor(model: &str, port: &Port, batches: bool) -> Result<(String, DataType, Vec<i64>), Status> {
    let shape = port.shape().ok_or_else(|| open_rank(model, &port.name))?;
    let dims = shape.get(usize::from(batches)..).unwrap_or_default();
    if dims.is_empty() {
        return Err(Status::unsupported(format!(
            "model '{model}', tensor '{}': the openvino backend does not support scalars; give the tensor one \
             dimension",
            port.name
        )));
    }
    let dims = if port.is_static() { dims.to_vec() } else { vec![-1; dims.len()] };
    let number = port.datatype.and_then(|datatype| i32::try_from(datatype as u32).ok());
    let data_type = number.and_then(|number| DataType::try_from(number).ok()).unwrap_or(DataType::TypeInvalid);
    Ok((port.name.clone(), data_type, dims))
}

/// The error for a tensor of any number of dimensions.
pub fn open_rank(model: &str, tensor: &str) -> Status {
    Status::unsupported(format!(
        "model '{model}', tensor '{tensor}': the model leaves the number of its dimensions open; set the parameter \
         RESHAPE_IO_LAYERS to 'yes' and give the dims of all inputs"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::Dimension;
    use nereid_request::DataType as Type;

    fn port(name: &str, datatype: Option<Type>, dims: &[i64]) -> Port {
        let dims = dims.iter().copied().map(Dimension::of_config).collect();
        Port { name: name.to_owned(), datatype, dims: Some(dims) }
    }

    fn described(dims: &[i64], batches: bool) -> Described {
        Described {
            inputs: vec![port("a", Some(Type::Fp32), dims), port("b", Some(Type::Int8), dims)],
            outputs: vec![port("c", None, dims)],
            batches,
        }
    }

    fn completed(config: ModelConfig, model: &Described, default: i32) -> (ModelConfig, Filled) {
        let mut config = ModelConfig { name: "m".to_owned(), ..config };
        let filled = complete(&mut config, model, default).unwrap();
        (config, filled)
    }

    #[test]
    fn a_model_with_a_batch_in_its_layout_gets_a_batch_size_and_a_scheduler() {
        let (config, filled) = completed(ModelConfig::default(), &described(&[1, 4], true), 4);
        assert_eq!((config.max_batch_size, filled), (4, Filled { inputs: true, outputs: true }));
        assert_eq!(config.scheduling_choice, Some(SchedulingChoice::DynamicBatching(Default::default())));
        let inputs: Vec<_> =
            config.input.iter().map(|input| (&*input.name, input.data_type(), &input.dims[..])).collect();
        assert_eq!(inputs, [("a", DataType::TypeFp32, &[4][..]), ("b", DataType::TypeInt8, &[4][..])]);
        assert_eq!(config.output[0].data_type(), DataType::TypeInvalid);
        // With one row, nothing is to be batched.
        let (config, _) = completed(ModelConfig::default(), &described(&[1, 4], true), 0);
        assert_eq!((config.max_batch_size, config.scheduling_choice), (1, None));
        let given = ModelConfig { max_batch_size: 8, ..Default::default() };
        let (config, _) = completed(given, &described(&[1, 4], true), 4);
        assert_eq!((config.max_batch_size, config.scheduling_choice.is_some()), (8, true));
    }

    #[test]
    fn without_a_layout_the_batch_size_stays() {
        let (config, _) = completed(ModelConfig::default(), &described(&[1, 4], false), 4);
        assert_eq!(
            (config.max_batch_size, config.scheduling_choice, &config.input[0].dims[..]),
            (0, None, &[1, 4][..])
        );
        let given = ModelConfig { max_batch_size: 8, ..Default::default() };
        let (config, _) = completed(given, &described(&[1, 4], false), 4);
        assert_eq!((config.max_batch_size, config.scheduling_choice, &config.input[0].dims[..]), (8, None, &[4][..]));
    }

    #[test]
    fn one_open_dimension_opens_all() {
        let (config, _) = completed(ModelConfig::default(), &described(&[-1, 4, 3], false), 4);
        assert_eq!(config.input[0].dims, [-1, -1, -1]);
        let (config, _) = completed(ModelConfig::default(), &described(&[-1, 4, 3], true), 4);
        assert_eq!(config.input[0].dims, [-1, -1]);
    }

    #[test]
    fn lists_that_are_given_stay_as_they_are() {
        let input = ModelInput { name: "mine".to_owned(), ..Default::default() };
        let given = ModelConfig { input: vec![input.clone()], ..Default::default() };
        let (config, filled) = completed(given, &described(&[1, 4], false), 4);
        assert_eq!((config.input, config.output.len()), (vec![input], 1));
        assert_eq!(filled, Filled { inputs: false, outputs: true });
    }

    #[test]
    fn scalars_and_open_ranks_are_refused() {
        let refused = |model: &Described| {
            let mut config = ModelConfig { name: "m".to_owned(), ..Default::default() };
            complete(&mut config, model, 4).unwrap_err().message.into_owned()
        };
        let text =
            "model 'm', tensor 'a': the openvino backend does not support scalars; give the tensor one dimension";
        assert_eq!(refused(&described(&[], false)), text);
        assert_eq!(refused(&described(&[-1], true)), text, "a scalar per row");
        let mut model = described(&[4], false);
        model.inputs[0].dims = None;
        assert!(
            refused(&model).starts_with("model 'm', tensor 'a': the model leaves the number of its dimensions open")
        );
    }
}
