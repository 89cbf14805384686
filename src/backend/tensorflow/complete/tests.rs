//! Every rule and text of auto-completion.

use super::*;
use crate::fixtures::{input, output, sequence};
use nereid_request::{Code, DataType as Element};

const FP32: i32 = 1;
const STRING: i32 = 7;

fn tensor(name: &str, element_type: i32, dims: Option<&[i64]>) -> ModelTensor {
    let dims = dims.map(<[i64]>::to_vec);
    ModelTensor { name: name.to_owned(), tensor: format!("{name}:0"), element_type, dims }
}

fn signature(inputs: &[(&str, Option<&[i64]>)], outputs: &[(&str, Option<&[i64]>)]) -> Signature {
    let tensors =
        |given: &[(&str, Option<&[i64]>)]| given.iter().map(|(name, dims)| tensor(name, FP32, *dims)).collect();
    Signature { inputs: tensors(inputs), outputs: tensors(outputs) }
}

fn batching() -> Signature {
    signature(&[("A", Some(&[-1, 4]))], &[("B", Some(&[-1])), ("C", Some(&[-1, -1, 2]))])
}

fn config() -> ModelConfig {
    ModelConfig { name: "m".to_owned(), ..ModelConfig::default() }
}

fn refused(mut config: ModelConfig, signature: &Signature) -> (Code, String) {
    let error = complete(&mut config, signature, 4).unwrap_err();
    (error.code, error.message.to_string())
}

#[test]
fn an_empty_configuration_is_filled() {
    let mut filled = config();
    let warning = complete(&mut filled, &batching(), 4).unwrap().unwrap();
    assert_eq!(
        warning,
        "autofilled max_batch_size to 4 for model 'm' since batching is supporrted but no max_batch_size is specified \
         in model configuration. Must specify max_batch_size to utilize autofill with a larger max batch size"
    );
    assert_eq!(filled.max_batch_size, 4);
    assert!(matches!(filled.scheduling_choice, Some(SchedulingChoice::DynamicBatching(_))));
    assert_eq!(filled.input, [input("A", Element::Fp32, &[4])]);
    let scalar = ModelTensorReshape::default();
    assert_eq!(filled.output[0], ModelOutput { reshape: Some(scalar), ..output("B", Element::Fp32, &[1]) });
    assert_eq!(filled.output[1], output("C", Element::Fp32, &[-1, 2]));
}

#[test]
fn the_default_batch_size_is_the_flags() {
    for (default, size, dynamic) in [(16, 16, true), (1, 1, false), (0, 0, false), (-5, 0, false)] {
        let mut filled = config();
        complete(&mut filled, &batching(), default).unwrap();
        assert_eq!((filled.max_batch_size, filled.scheduling_choice.is_some()), (size, dynamic), "{default}");
    }
    let mut given = ModelConfig { max_batch_size: 2, ..config() };
    assert_eq!(complete(&mut given, &batching(), 8).unwrap(), None);
    assert_eq!(given.max_batch_size, 2);
}

#[test]
fn without_an_open_first_dimension_there_is_no_batching() {
    let fixed = signature(&[("A", Some(&[4]))], &[("B", Some(&[-1, 4]))]);
    let mut filled = config();
    assert_eq!(complete(&mut filled, &fixed, 4).unwrap(), None);
    assert_eq!((filled.max_batch_size, &filled.output[0].dims[..]), (0, &[-1, 4][..]));
    assert!(filled.scheduling_choice.is_none());
    let text = "unable to autofill for 'm', configuration specified max-batch 8 but model signature does not support \
                batching";
    let given = ModelConfig { max_batch_size: 8, ..config() };
    assert_eq!(refused(given, &fixed), (Code::Internal, text.to_owned()));
}

#[test]
fn dimensions_in_the_configuration_decide_what_the_signature_leaves_open() {
    let given = |a: &[i64], b: &[i64]| ModelConfig {
        input: vec![input("A", Element::Fp32, a)],
        output: vec![output("C", Element::Fp32, b)],
        ..config()
    };
    let mut whole = given(&[-1, 4], &[-1, -1, 2]);
    assert_eq!(complete(&mut whole, &batching(), 4).unwrap(), None);
    assert_eq!((whole.max_batch_size, whole.input[0].dims.len()), (0, 2));
    let mut items = given(&[4], &[-1, 2]);
    complete(&mut items, &batching(), 4).unwrap();
    assert_eq!((items.max_batch_size, items.output.len()), (4, 1), "only the listed outputs");
    let text = "unable to autofill for 'm', model tensor configurations are contradicting each other in terms of \
                whether batching is supported";
    assert_eq!(refused(given(&[4], &[-1, -1, 2]), &batching()), (Code::Internal, text.to_owned()));
    // What the model gets counts, not what clients send.
    let mut reshaped = given(&[2, 2], &[]);
    reshaped.input[0].reshape = Some(ModelTensorReshape { shape: vec![4] });
    complete(&mut reshaped, &batching(), 4).unwrap();
    assert_eq!((reshaped.max_batch_size, &reshaped.output[0].dims[..]), (4, &[-1, 2][..]));
}

#[test]
fn a_tensor_without_rank_needs_dimensions_and_does_not_count() {
    let text = |name: &str| {
        format!("Unable to autofill for 'm': the rank of model tensor '{name}' is 0 and dimensions are not defined")
    };
    let scalar = signature(&[("A", Some(&[]))], &[("B", None)]);
    assert_eq!(refused(config(), &scalar), (Code::InvalidArg, text("A")));
    let mut given = ModelConfig { input: vec![input("A", Element::Fp32, &[1])], ..config() };
    assert_eq!(refused(given.clone(), &scalar), (Code::InvalidArg, text("B")));
    given.output = vec![output("B", Element::Fp32, &[-1])];
    complete(&mut given, &scalar, 4).unwrap();
    assert_eq!(given.max_batch_size, 0, "nothing speaks for batching");
    let mixed = signature(&[("A", Some(&[-1, 4])), ("F", None)], &[("B", Some(&[-1]))]);
    let mut given =
        ModelConfig { input: vec![input("A", Element::Fp32, &[]), input("F", Element::Fp32, &[2])], ..config() };
    complete(&mut given, &mixed, 4).unwrap();
    assert_eq!((given.max_batch_size, &given.input[0].dims[..]), (4, &[4][..]));
}

#[test]
fn what_an_entry_leaves_out_is_filled_and_unknown_names_stay() {
    let mut strings = batching();
    strings.inputs[0].element_type = STRING;
    let nameless = ModelInput { name: "A".to_owned(), ..ModelInput::default() };
    let mut given = ModelConfig { input: vec![nameless, input("X", Element::Fp32, &[])], ..config() };
    complete(&mut given, &strings, 4).unwrap();
    assert_eq!(given.input[0], input("A", Element::Bytes, &[4]));
    assert_eq!(given.input[1], input("X", Element::Fp32, &[]), "the checks refuse it");
}

#[test]
fn inputs_that_the_server_adds_are_not_listed() {
    let whole = Some(&[-1, 1][..]);
    let sequence_model =
        signature(&[("A", whole), ("BEFORE", whole), ("START", whole)], &[("AFTER", whole), ("B", whole)]);
    let mut given = ModelConfig { scheduling_choice: Some(sequence(&["START"], &[("BEFORE", "AFTER")])), ..config() };
    complete(&mut given, &sequence_model, 4).unwrap();
    assert_eq!(given.input, [input("A", Element::Fp32, &[1])]);
    assert_eq!(given.output, [output("B", Element::Fp32, &[1])]);
    assert!(matches!(given.scheduling_choice, Some(SchedulingChoice::SequenceBatching(_))));
}

#[test]
fn types_and_forms_that_configurations_lack_are_refused() {
    let mut complex = batching();
    complex.inputs[0].element_type = 8;
    let text = "unable to process input 'A' for 'm', unsupported datatype 'DT_COMPLEX64'";
    assert_eq!(refused(config(), &complex), (Code::Internal, text.to_owned()));
    let mut sparse = batching();
    sparse.outputs[0].tensor.clear();
    let text = "output 'B' of model 'm' is not a dense tensor, which is not supported";
    assert_eq!(refused(config(), &sparse), (Code::Unsupported, text.to_owned()));
}
