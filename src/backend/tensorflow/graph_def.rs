//! Graphs without signatures: any placeholder can be an input, any other operation an output
//! (contract/frameworks.md section 5, "names" and "checks").

use std::collections::BTreeSet;

use super::api::{Node, Session, TensorFlowError};
use super::saved_model::{ModelTensor, Signature};
use nereid_request::Status;
use nereid_wire::inference::ModelConfig;
use nereid_wire::inference::model_config::SchedulingChoice;

/// Holds the names of the configuration against those of the graph.
pub fn check_names(config: &ModelConfig, nodes: &[Node]) -> Result<(), Status> {
    let model = &config.name;
    if nodes.is_empty() {
        return Err(Status::internal(format!("model {model} has an empty network")));
    }
    let is_input = |node: &&Node| node.operation.starts_with("Placeholder");
    let inputs: BTreeSet<&str> = nodes.iter().filter(is_input).map(|node| node.name.as_str()).collect();
    let outputs: BTreeSet<&str> = nodes.iter().filter(|node| !is_input(node)).map(|node| node.name.as_str()).collect();
    if config.input.len() > inputs.len() {
        return Err(Status::invalid(format!(
            "unable to load model '{model}', configuration expects {} inputs, model provides at most {}",
            config.input.len(),
            inputs.len()
        )));
    }
    let sequence = match &config.scheduling_choice {
        Some(SchedulingChoice::SequenceBatching(sequence)) => Some(sequence),
        _ => None,
    };
    let controls = sequence.into_iter().flat_map(|sequence| &sequence.control_input).map(|control| &control.name);
    if let Some(missing) = controls.into_iter().find(|name| !inputs.contains(name.as_str())) {
        return Err(Status::internal(format!(
            "configuration specified sequence control '{missing}', but model does not provide that input"
        )));
    }
    let states = || sequence.into_iter().flat_map(|sequence| &sequence.state);
    let described = config.batch_input.iter().flat_map(|input| &input.target_name);
    let named_inputs = config.input.iter().map(|input| &input.name);
    let mut named_inputs = named_inputs.chain(states().map(|state| &state.input_name)).chain(described);
    if let Some(unknown) = named_inputs.find(|name| !inputs.contains(name.as_str())) {
        return Err(Status::invalid(format!("unexpected inference input '{unknown}'")));
    }
    let named_outputs = config.output.iter().map(|output| &output.name);
    match named_outputs.chain(states().map(|state| &state.output_name)).find(|name| !outputs.contains(name.as_str())) {
        Some(unknown) => Err(Status::invalid(format!("unexpected inference output '{unknown}'"))),
        None => Ok(()),
    }
}

/// The tensors of these names as the graph describes them: for outputs the first one of the operation.
pub fn describe<'a>(
    session: &Session,
    inputs: impl Iterator<Item = &'a str>,
    outputs: impl Iterator<Item = &'a str>,
) -> Result<Signature, TensorFlowError> {
    let tensor = |name: &str| {
        let no_result = || TensorFlowError(format!("operation '{name}' of the graph has no result"));
        let port = session.port(&format!("{name}:0")).ok_or_else(no_result)?;
        Ok(ModelTensor {
            name: name.to_owned(),
            tensor: format!("{name}:0"),
            element_type: session.element_type(port)?,
            dims: session.dims(port)?,
        })
    };
    Ok(Signature {
        inputs: inputs.map(tensor).collect::<Result<_, TensorFlowError>>()?,
        outputs: outputs.map(tensor).collect::<Result<_, TensorFlowError>>()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{input, output, sequence};
    use nereid_request::{Code, DataType};

    fn nodes() -> Vec<Node> {
        let nodes = [("A", "Placeholder"), ("B", "PlaceholderWithDefault"), ("C", "AddV2"), ("init", "NoOp")];
        nodes.map(|(name, operation)| Node { name: name.to_owned(), operation: operation.to_owned() }).to_vec()
    }

    fn config(inputs: &[&str], outputs: &[&str]) -> ModelConfig {
        ModelConfig {
            name: "m".to_owned(),
            input: inputs.iter().map(|name| input(name, DataType::Fp32, &[1])).collect(),
            output: outputs.iter().map(|name| output(name, DataType::Fp32, &[1])).collect(),
            ..ModelConfig::default()
        }
    }

    #[test]
    fn names_of_the_configuration_must_be_in_the_graph() {
        assert_eq!(check_names(&config(&["A", "B"], &["C"]), &nodes()), Ok(()));
        assert_eq!(check_names(&config(&["A"], &[]), &nodes()), Ok(()));
        for (config, text) in [
            (
                config(&["A", "B", "C"], &["C"]),
                "unable to load model 'm', configuration expects 3 inputs, model provides at most 2",
            ),
            (config(&["A", "C"], &["C"]), "unexpected inference input 'C'"),
            (config(&["A"], &["C", "A"]), "unexpected inference output 'A'"),
        ] {
            let error = check_names(&config, &nodes()).unwrap_err();
            assert_eq!((error.code, &*error.message), (Code::InvalidArg, text));
        }
        let error = check_names(&config(&["A"], &["C"]), &[]).unwrap_err();
        assert_eq!((error.code, &*error.message), (Code::Internal, "model m has an empty network"));
    }

    #[test]
    fn controls_and_states_must_be_in_the_graph() {
        let mut config = config(&["A"], &[]);
        config.scheduling_choice = Some(sequence(&["B", "START"], &[]));
        let error = check_names(&config, &nodes()).unwrap_err();
        let text = "configuration specified sequence control 'START', but model does not provide that input";
        assert_eq!((error.code, &*error.message), (Code::Internal, text));
        config.scheduling_choice = Some(sequence(&[], &[("B", "C")]));
        assert_eq!(check_names(&config, &nodes()), Ok(()));
        config.scheduling_choice = Some(sequence(&[], &[("B", "NEXT")]));
        assert_eq!(check_names(&config, &nodes()).unwrap_err().message, "unexpected inference output 'NEXT'");
    }
}
