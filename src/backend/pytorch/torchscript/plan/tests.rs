//! The checks of a configuration against the arguments of `forward`, without PyTorch.

use super::*;
use crate::fixtures::{config, tensor};

fn argument(name: &str, type_name: &str) -> Argument {
    let kind = match type_name {
        "Tensor" => ArgumentKind::Tensor,
        "List[str]" => ArgumentKind::List,
        "Dict(str, Tensor)" => ArgumentKind::Dict,
        _ => ArgumentKind::Other,
    };
    Argument { name: name.to_owned(), type_name: type_name.to_owned(), kind }
}

fn plan(text: &str, arguments: &[(&str, &str)]) -> Result<Plan, Status> {
    let spec = ModelSpec::new(config("model", text)).unwrap();
    let arguments: Vec<Argument> = arguments.iter().map(|(name, kind)| argument(name, kind)).collect();
    Plan::new(&spec, &arguments)
}

fn tensors(inputs: &[&str], outputs: &[&str]) -> String {
    let each = |what, names: &[&str]| names.iter().map(|name| tensor(what, name, "TYPE_FP32", "4")).collect::<String>();
    each("input", inputs) + &each("output", outputs)
}

const TWO: [(&str, &str); 2] = [("INPUT0", "Tensor"), ("INPUT1", "Tensor")];

/// The arguments of the inputs and the positions of the outputs, in the order of the configuration.
fn mapped(inputs: &[&str], outputs: &[&str]) -> (Vec<usize>, Vec<usize>) {
    let plan = plan(&tensors(inputs, outputs), &TWO).unwrap();
    let arguments = plan.inputs.iter().map(|(_, target)| target.argument).collect();
    (arguments, plan.positions.clone())
}

/// The mixes of Triton's test L0_libtorch_io_names (contract/frameworks.md section 10).
#[test]
fn every_mix_of_names_leads_to_the_right_arguments_and_results() {
    let straight = (vec![0, 1], vec![0, 1]);
    for (inputs, outputs) in [
        (["INPUT__0", "INPUT__1"], ["OUTPUT__0", "OUTPUT__1"]),
        (["INPUT0", "INPUT1"], ["OUTPUT__0", "OUTPUT__1"]),
        (["INPUT0", "INPUT1"], ["OUTPUT0", "OUTPUT1"]),
        (["FIRST", "SECOND"], ["OUTPUT__0", "OUTPUT__1"]),
        (["INPUT__0", "INPUT1"], ["OUTPUT__0", "OUTPUT__1"]),
        (["INPUT0", "SECOND"], ["OUTPUT0", "OUTPUT1"]),
        (["INPUT0", "SECOND"], ["OUTPUT__0", "OUTPUT1"]),
    ] {
        assert_eq!(mapped(&inputs, &outputs), straight, "{inputs:?} {outputs:?}");
    }
    let crossed = (vec![1, 0], vec![1, 0]);
    assert_eq!(mapped(&["INPUT1", "INPUT0"], &["OUT__1", "OUT__0"]), crossed, "unordered_index");
    assert_eq!(mapped(&["INPUT0", "INPUT1"], &["OUT__1"]).1, [1], "a subset of the outputs");
}

fn refused(text: &str, arguments: &[(&str, &str)]) -> String {
    let status = plan(text, arguments).unwrap_err();
    format!("{}: {}", status.code.name(), status.message)
}

#[test]
fn modules_that_cannot_be_served_are_refused() {
    let text = tensors(&["INPUT0", "INPUT1"], &["OUTPUT0"]);
    let dictionary = "Dict(str, Tensor)";
    assert_eq!(
        refused(&text, &[("INPUT0", "Tensor"), ("INPUT1", dictionary)]),
        "Internal: Multiple inputs of kind DictType were detected. Only a single input of type Dict(str, Tensor) is \
         supported."
    );
    for (first, name) in [("int", "int"), (dictionary, dictionary)] {
        assert_eq!(
            refused(&text, &[("INPUT0", first), ("INPUT1", "Tensor")]),
            format!(
                "Internal: An input of type '{name}' was detected in the model. Only a single input of type Dict(str, \
                 Tensor) or input(s) of type Tensor are supported."
            )
        );
    }
    assert_eq!(
        refused(&tensors(&["INPUT0"], &["OUTPUT0"]), &TWO),
        "Invalid argument: unable to load model 'm', configuration expects 1 inputs, model provides 2"
    );
    assert_eq!(
        refused(&tensors(&[], &["OUTPUT0"]), &TWO),
        "Invalid argument: unable to load model 'm', configuration expects 0 inputs, model provides 2"
    );
    let none =
        |what: &str| format!("Internal: model configuration must contain at least one {what}, none were specified.");
    assert_eq!(refused(&tensors(&[], &["OUTPUT0"]), &[]), none("input"));
    assert_eq!(refused(&tensors(&["INPUT0", "INPUT1"], &[]), &TWO), none("output"));
}

#[test]
fn indices_that_no_argument_has_are_refused() {
    assert_eq!(
        refused(&tensors(&["A__0", "B__2"], &["OUTPUT0"]), &TWO),
        "Invalid argument: input 'B__2' of model 'm' has the index 2, but the model has 2 arguments"
    );
    assert_eq!(
        refused(&tensors(&["A__1", "B__1"], &["OUTPUT0"]), &TWO),
        "Invalid argument: inputs 'A__1' and 'B__1' of model 'm' are the same argument, number 1"
    );
}

#[test]
fn types_that_pytorch_has_not_are_refused() {
    for data_type in ["TYPE_UINT16", "TYPE_UINT32", "TYPE_UINT64", "TYPE_BF16"] {
        let wrong = tensor("input", "INPUT0", data_type, "4") + &tensors(&["INPUT1"], &["OUTPUT0"]);
        assert_eq!(
            refused(&wrong, &TWO),
            format!("Internal: unsupported datatype {data_type} for input 'INPUT0' for model 'm'")
        );
        let wrong = tensors(&["INPUT0", "INPUT1"], &[]) + &tensor("output", "OUTPUT0", data_type, "4");
        assert_eq!(
            refused(&wrong, &TWO),
            format!("Internal: unsupported datatype {data_type} for output 'OUTPUT0' for model 'm'")
        );
    }
}

#[test]
fn strings_are_lists_of_one_dimension() {
    let list = [("TEXT", "List[str]")];
    let input = |dims| tensor("input", "TEXT", "TYPE_STRING", dims);
    let output = |dims| tensor("output", "OUT__0", "TYPE_STRING", dims);
    assert!(plan(&(input("-1") + &output("-1")), &list).is_ok());
    let text = |what: &str, name: &str| {
        format!("Internal: Triton only supports 1 dimensional List of String as {what} for '{name}' for model 'm'")
    };
    assert_eq!(refused(&(input("2, 2") + &output("-1")), &list), text("input", "TEXT"));
    assert_eq!(refused(&(input("-1") + &output("2, 2")), &list), text("output", "OUT__0"));
    // With batching the batch is the one dimension.
    let batching = |text: String| format!("max_batch_size: 4 {text}");
    assert_eq!(refused(&batching(input("1") + &output("1")), &list), text("input", "TEXT"));
    let reshaped = |what: &str, name: &str| {
        format!("{what} {{ name: \"{name}\" data_type: TYPE_STRING dims: [ 1 ] reshape {{ shape: [ ] }} }} ")
    };
    assert!(plan(&batching(reshaped("input", "TEXT") + &reshaped("output", "OUT__0")), &list).is_ok());
}

#[test]
fn a_dictionary_has_the_inputs_as_keys() {
    let plan = plan(&tensors(&["A", "B", "C__9"], &["OUTPUT0"]), &[("tensors", "Dict(str, Tensor)")]).unwrap();
    let targets: Vec<_> = plan.inputs.iter().map(|(_, target)| (target.name.as_str(), target.argument)).collect();
    assert_eq!(targets, [("A", 0), ("B", 0), ("C__9", 0)]);
}

fn sequence(input: &str, control: &str, corrid: &str, state: &str) -> String {
    let batching = format!(
        "sequence_batching {{ control_input {{ name: \"{control}\" control {{ kind: CONTROL_SEQUENCE_START \
         fp32_false_true: [ 0, 1 ] }} }} control_input {{ name: \"CORRID__2\" control {{ kind: \
         CONTROL_SEQUENCE_CORRID data_type: {corrid} }} }} state {{ input_name: \"{state}\" output_name: \
         \"OUT_STATE__1\" data_type: TYPE_FP32 dims: [ 4 ] }} }}"
    );
    tensors(&[input], &["OUT__0"]) + &batching
}

#[test]
fn controls_and_states_are_arguments_by_their_indices() {
    let four = [("a", "Tensor"), ("b", "Tensor"), ("c", "Tensor"), ("d", "Tensor")];
    let plan = plan(&sequence("IN__0", "START__1", "TYPE_INT64", "IN_STATE__3"), &four).unwrap();
    let inputs: Vec<_> = plan.inputs.iter().map(|(input, target)| (input.index, target.argument)).collect();
    assert_eq!(inputs, [(1, 1), (2, 2), (0, 0), (3, 3)], "positions in requests, and arguments");
    assert_eq!((plan.positions[1], plan.scatters[1]), (1, None));
    assert!(plan.outputs[1].is_state && plan.outputs[1].index == usize::MAX);
    assert_eq!(
        refused(&sequence("IN__0", "START", "TYPE_INT64", "IN_STATE__3"), &four),
        "Internal: input 'START' does not follow <name>__<index> naming convention."
    );
    assert_eq!(
        refused(&sequence("IN__0", "START__1", "TYPE_UINT32", "IN_STATE__3"), &four),
        "Internal: input 'CORRID__2' type 'TYPE_UINT32' is not supported by PyTorch."
    );
    assert_eq!(
        refused(&sequence("a", "START__1", "TYPE_INT64", "IN_STATE__3"), &four),
        "Invalid argument: PyTorch model 'm' is using sequence batching with state but not all inputs and outputs \
         follow the <name>__<index> naming convention. "
    );
    assert_eq!(
        refused(&sequence("IN__0", "START__1", "TYPE_INT64", "STATE"), &four),
        "Invalid argument: PyTorch model 'm' is using sequence batching with state but state 'STATE' does not follow \
         the <name>__<index> naming convention. "
    );
    assert_eq!(
        refused(&sequence("IN__0", "START__1", "TYPE_INT64", "IN_STATE__3"), &TWO),
        "Invalid argument: unable to load model 'm', configuration expects 4 inputs, model provides 2"
    );
}
