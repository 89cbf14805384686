//! The texts of configurations that do not fit their model, and the order in which they are checked.

use super::*;
use nereid_model_config::{from_dynamic, parse};

fn names() -> (TensorNames, TensorNames) {
    let inputs = ["ARGS[0]", "ARGS[1]", "KWARGS[kw1]"].map(str::to_owned);
    let outputs = ["RESULT[AAA]", "RESULT[BBB]"].map(str::to_owned);
    (TensorNames::of_inputs(&inputs), TensorNames::of_outputs(&outputs))
}

fn planned(config: &str) -> Result<Plan, String> {
    let text = format!("name: \"m\" max_batch_size: 8 {config}");
    let document = parse("config.pbtxt", text.as_bytes()).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let config = from_dynamic(&document.message).expect("a configuration");
    let spec = ModelSpec::new(config).map_err(|error| error.to_string())?;
    let (inputs, outputs) = names();
    Plan::new("m_0_0", &spec, &inputs, &outputs).map_err(|status| status.message.to_string())
}

fn tensors(kind: &str, names: &[(&str, &str)]) -> String {
    let tensor = |(name, datatype): &(&str, &str)| {
        format!("{kind} {{ name: \"{name}\" data_type: TYPE_{datatype} dims: [ 16 ] }}\n")
    };
    names.iter().map(tensor).collect()
}

const INPUTS: [(&str, &str); 3] = [("KWARGS[kw1]", "FP32"), ("INPUT__0", "BF16"), ("ARGS[1]", "INT64")];
const OUTPUTS: [(&str, &str); 2] = [("OUTPUT__1", "FP32"), ("RESULT[AAA]", "BOOL")];

#[test]
fn names_of_both_kinds_are_mixed() {
    let plan = planned(&(tensors("input", &INPUTS) + &tensors("output", &OUTPUTS))).unwrap();
    let inputs: Vec<(usize, usize, i32)> =
        plan.inputs.iter().map(|input| (input.input.index, input.position, input.dtype)).collect();
    assert_eq!(inputs, [(0, 2, 6), (1, 0, 15), (2, 1, 4)]);
    assert_eq!(plan.results, [(1, 6), (0, 11)]);
    assert_eq!((plan.max_batch_size, plan.has_equal_rows), (8, true));
}

#[test]
fn what_does_not_fit_is_refused_in_triton_s_words() {
    let renamed = |at: usize, name, datatype| {
        let mut inputs = INPUTS;
        inputs[at] = (name, datatype);
        tensors("input", &inputs)
    };
    let good = (tensors("input", &INPUTS), tensors("output", &OUTPUTS));
    for (config, text) in [
        (
            tensors("input", &INPUTS[..2]) + &good.1,
            "Failed to load model \"m_0_0\" configuration expects 2 inputs, but model expects 3 inputs.",
        ),
        (
            renamed(1, "INPUT__3", "FP32") + &good.1,
            "Input \"INPUT__3\" for model instance \"m_0_0\" is not found in model input map.",
        ),
        (
            good.0.clone() + &tensors("output", &[("RESULT", "FP32")]),
            "Output \"RESULT\" for model instance \"m_0_0\" is not found in model output map.",
        ),
        (good.0.clone(), "Configuration for model \"m_0_0\" must define at least one output, none were specified."),
        (
            renamed(0, "KWARGSkw1", "STRING") + &good.1,
            "Unsupported datatype TYPE_STRING for input \"KWARGSkw1\" for model instance \"m_0_0\".",
        ),
        (
            good.0.clone() + &tensors("output", &[("OUTPUT__0", "UINT32")]),
            "Unsupported datatype TYPE_UINT32 for output \"OUTPUT__0\" for model instance \"m_0_0\".",
        ),
        (
            renamed(1, "INPUT__1", "FP32") + &good.1,
            "Inputs \"ARGS[1]\" and \"INPUT__1\" for model instance \"m_0_0\" are the same input of the model; name \
             each input once.",
        ),
    ] {
        assert_eq!(planned(&config).map(|_| ()), Err(text.to_owned()), "{config}");
    }
    let scattered = good.0
        + &good.1
        + "batch_output [ { target_name: \"OUTPUT__1\" kind: BATCH_SCATTER_WITH_INPUT_SHAPE
            source_input: \"ARGS[1]\" } ]";
    assert!(planned(&scattered).unwrap_err().contains("is split by batch_output"), "{:?}", planned(&scattered));
}

fn sequence(corrid: &str, state: &str) -> Result<Plan, String> {
    planned(&format!(
        "{} {} sequence_batching {{
            control_input {{ name: \"CORRID__1\" control {{ kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_{corrid} }} }}
            state {{ input_name: \"KWARGS[kw1]\" output_name: \"NEXT__1\" data_type: TYPE_{state} dims: [ 1 ] }}
        }}",
        tensors("input", &[("INPUT__0", "INT32")]),
        tensors("output", &[("RESULT[AAA]", "INT32")]),
    ))
}

#[test]
fn controls_and_states_are_inputs_and_outputs_of_the_model() {
    let plan = sequence("INT64", "INT32").unwrap();
    let inputs: Vec<(usize, usize, i32)> =
        plan.inputs.iter().map(|input| (input.input.index, input.position, input.dtype)).collect();
    assert_eq!(inputs, [(0, 0, 3), (1, 1, 4), (2, 2, 3)]);
    let outputs: Vec<(usize, bool)> = plan.outputs.iter().map(|output| (output.index, output.is_state)).collect();
    assert_eq!(outputs, [(0, false), (usize::MAX, true)]);
    assert_eq!(plan.results, [(0, 3), (1, 3)]);
    let text = |name| format!("Unsupported datatype TYPE_STRING for input \"{name}\" for model instance \"m_0_0\".");
    assert_eq!(sequence("STRING", "INT32").map(|_| ()), Err(text("CORRID__1")));
    assert_eq!(sequence("INT64", "STRING").map(|_| ()), Err(text("KWARGS[kw1]")));
}

#[test]
fn a_batch_input_is_an_input_of_the_model() {
    let config = tensors("input", &INPUTS[..2])
        + &tensors("output", &OUTPUTS)
        + "batch_input [ { kind: BATCH_ELEMENT_COUNT target_name: \"INPUT__1\" data_type: TYPE_FP32
            source_input: \"INPUT__0\" } ]";
    let plan = planned(&config).unwrap();
    assert!(!plan.has_equal_rows);
    let batch_input = &plan.batch_inputs[0];
    assert_eq!((&batch_input.positions[..], batch_input.dtype, batch_input.plan.source), (&[1][..], 6, 1));
}
