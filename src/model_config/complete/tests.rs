//! Auto-completion and the checks at instance creation, row by row of contract/backends.md section 4.

use super::super::{from_dynamic, normalize, parse};
use super::*;

fn read(text: &str) -> ModelConfig {
    let document = parse("c", text.as_bytes()).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let mut config = from_dynamic(&document.message).unwrap();
    config.name = "m".into();
    config
}

fn tensor(name: &str, data_type: DataType, dims: &[i64]) -> LearnedTensor {
    LearnedTensor { name: name.into(), kind: LearnedKind::Tensor(data_type), dims: dims.to_vec() }
}

fn fp32(name: &str, dims: &[i64]) -> LearnedTensor {
    tensor(name, DataType::TypeFp32, dims)
}

fn learned(inputs: &[LearnedTensor], outputs: &[LearnedTensor]) -> Learned {
    Learned { inputs: inputs.to_vec(), outputs: outputs.to_vec(), ..Default::default() }
}

const INPUT: &str = "input { name: \"I\" data_type: TYPE_FP32 dims: 16 }";
const OUTPUT: &str = "output { name: \"O\" data_type: TYPE_FP32 dims: 16 }";

fn io(config: &ModelConfig) -> (Vec<String>, Vec<String>) {
    let shape = |dims: &[i64], reshape: &Option<ModelTensorReshape>| {
        let reshape = reshape.as_ref().map(|reshape| format!("->{:?}", reshape.shape)).unwrap_or_default();
        format!("{dims:?}{reshape}")
    };
    let inputs = config
        .input
        .iter()
        .map(|i| format!("{} {} {}", i.name, i.data_type().as_str_name(), shape(&i.dims, &i.reshape)));
    let outputs = config
        .output
        .iter()
        .map(|o| format!("{} {} {}", o.name, o.data_type().as_str_name(), shape(&o.dims, &o.reshape)));
    (inputs.collect(), outputs.collect())
}

#[test]
fn batching_needs_an_open_first_dimension_everywhere() {
    for (inputs, outputs, expected) in [
        (vec![fp32("I", &[-1, 16])], vec![fp32("O", &[-1])], true),
        (vec![fp32("I", &[-1, 16]), fp32("J", &[1, 16])], vec![fp32("O", &[-1])], false),
        (vec![fp32("I", &[-1])], vec![fp32("O", &[])], false),
        (vec![fp32("I", &[16, -1])], vec![fp32("O", &[-1])], false),
    ] {
        assert_eq!(learned(&inputs, &outputs).batching_possible(), expected, "{inputs:?}");
    }
}

#[test]
fn an_empty_configuration_is_filled() {
    let model = learned(&[fp32("I", &[-1, 16]), tensor("J", DataType::TypeString, &[-1])], &[fp32("O", &[-1, -1])]);
    let mut config = read("");
    let completion = complete(&mut config, &model, DEFAULT_MAX_BATCH_SIZE).unwrap();
    assert_eq!(config.max_batch_size, 4);
    let (inputs, outputs) = io(&config);
    assert_eq!(inputs, ["I TYPE_FP32 [16]", "J TYPE_STRING [1]->[]"]);
    assert_eq!(outputs, ["O TYPE_FP32 [-1]"]);
    assert_eq!(completion.skipped, None);
    assert!(completion.warning.unwrap().contains("max_batch_size to 4 for model 'm'"));
    assert_eq!(config.scheduling_choice, Some(SchedulingChoice::DynamicBatching(Default::default())));
    // The instance checks the completed values.
    assert_eq!(check_instance(&config, &model), Ok(()));
}

#[test]
fn a_model_without_batch_is_taken_as_it_is() {
    let model = learned(&[fp32("I", &[1, -1])], &[fp32("O", &[])]);
    let mut config = read("");
    let completion = complete(&mut config, &model, 4).unwrap();
    assert_eq!(config.max_batch_size, 0);
    assert_eq!(io(&config), (vec!["I TYPE_FP32 [1, -1]".into()], vec!["O TYPE_FP32 [1]".into()]));
    assert_eq!(completion, Completion::default());
    assert_eq!(check_instance(&config, &model), Ok(()));
}

#[test]
fn the_batch_size() {
    let model = learned(&[fp32("I", &[-1, 16])], &[fp32("O", &[-1, 16])]);
    for (text, default, expected, warned, batched) in [
        ("", 4, 4, true, true),
        ("", 1, 1, true, false),
        ("", 0, 0, false, false),
        ("", -1, 0, false, false),
        ("max_batch_size: 8", 4, 8, false, true),
        ("max_batch_size: 1", 4, 1, false, false),
        ("max_batch_size: 8 dynamic_batching { }", 4, 8, false, true),
        ("max_batch_size: 8 sequence_batching { }", 4, 8, false, false),
    ] {
        let mut config = read(text);
        let completion = complete(&mut config, &model, default).unwrap();
        assert_eq!(config.max_batch_size, expected, "{text} default {default}");
        assert_eq!(completion.warning.is_some(), warned, "{text} default {default}");
        let choice = &config.scheduling_choice;
        let found = matches!(choice, Some(SchedulingChoice::DynamicBatching(_)));
        assert_eq!(found, batched, "{text} default {default}");
        let dims = if expected > 0 { "[16]" } else { "[-1, 16]" };
        assert_eq!(io(&config).0, [format!("I TYPE_FP32 {dims}")], "{text} default {default}");
    }
}

#[test]
fn only_an_empty_list_is_filled() {
    let model = learned(&[fp32("I", &[-1, 16]), fp32("J", &[-1, 2])], &[fp32("O", &[-1, 16])]);
    let mut config = read(INPUT);
    complete(&mut config, &model, 4).unwrap();
    assert_eq!(io(&config), (vec!["I TYPE_FP32 [16]".into()], vec!["O TYPE_FP32 [16]".into()]));
    let mut config = read(OUTPUT);
    complete(&mut config, &model, 4).unwrap();
    assert_eq!(config.input.len(), 2);

    for text in [format!("{INPUT} {OUTPUT}"), format!("batch_input {{ }} {OUTPUT}")] {
        let mut config = read(&text);
        let before = config.clone();
        let completion = complete(&mut config, &model, 4).unwrap();
        assert_eq!(
            completion.skipped.as_deref(),
            Some("skipping model configuration auto-complete for 'm': inputs and outputs already specified")
        );
        assert_eq!(completion.warning, None);
        assert_eq!(config, before);
    }
}

#[test]
fn completion_can_fail() {
    let fixed = learned(&[fp32("I", &[1, 16])], &[fp32("O", &[-1, 16])]);
    let mut config = read("max_batch_size: 2");
    let before = config.clone();
    assert_eq!(
        complete(&mut config, &fixed, 4),
        Err(Error::invalid(
            "autofill failed for model 'm': model does not support batching while non-zero max_batch_size is specified"
        ))
    );
    assert_eq!(config, before);
    let sequence =
        LearnedTensor { name: "S".into(), kind: LearnedKind::Other("ONNX_TYPE_SEQUENCE".into()), dims: vec![-1] };
    let mut config = read("");
    assert_eq!(
        complete(&mut config, &learned(&[fp32("I", &[-1])], &[sequence]), 4),
        Err(Error::unsupported("Unsupported ONNX Type 'ONNX_TYPE_SEQUENCE' for I/O 'S', expected 'ONNX_TYPE_TENSOR'."))
    );
    assert_eq!(config, read(""));
}

fn check(text: &str, model: &Learned) -> Result<(), Error> {
    let mut config = read(text);
    normalize::fill_defaults(&mut config);
    check_instance(&config, model)
}

fn refused(text: &str, model: &Learned, expected: &str) {
    assert_eq!(check(text, model), Err(Error::invalid(expected)), "{text}");
}

#[test]
fn the_number_of_inputs() {
    let two = learned(&[fp32("I", &[16]), fp32("J", &[16])], &[fp32("O", &[16])]);
    let text = format!("{INPUT} {OUTPUT}");
    refused(&text, &two, "unable to load model 'm', configuration expects 1 inputs, model provides 2");
    // Inputs that the server itself fills count too.
    let batched = learned(&[fp32("I", &[-1, 16]), fp32("N", &[-1])], &[fp32("O", &[-1, 16])]);
    let text = format!(
        "max_batch_size: 2 {INPUT} {OUTPUT} batch_input {{ data_type: TYPE_FP32 source_input: \"I\" \
         target_name: \"N\" }}"
    );
    assert_eq!(check(&text, &batched), Ok(()));
    let state = learned(&[fp32("I", &[16]), fp32("S", &[1])], &[fp32("O", &[16]), fp32("T", &[1])]);
    let text = format!("{INPUT} {OUTPUT} sequence_batching {{ state {{ input_name: \"S\" output_name: \"T\" }} }}");
    assert_eq!(check(&text, &state), Ok(()));
}

#[test]
fn names() {
    let model = learned(&[fp32("B", &[16]), fp32("A", &[16])], &[fp32("Y", &[16]), fp32("X", &[16])]);
    let inputs =
        "input { name: \"A\" data_type: TYPE_FP32 dims: 16 } input { name: \"Z\" data_type: TYPE_FP32 dims: 16 }";
    refused(inputs, &model, "unexpected inference input 'Z', allowed inputs are: A, B");
    let inputs = inputs.replace('Z', "B");
    refused(&format!("{inputs} {OUTPUT}"), &model, "unexpected inference output 'O', allowed outputs are: X, Y");
    // Outputs may be a subset.
    assert_eq!(check(&format!("{inputs} {}", OUTPUT.replace('O', "X")), &model), Ok(()));
    assert_eq!(check(&inputs, &model), Ok(()));
}

#[test]
fn types() {
    let text = format!("{INPUT} {OUTPUT}");
    let model = |input, output| learned(&[tensor("I", input, &[16])], &[tensor("O", output, &[16])]);
    refused(
        &text,
        &model(DataType::TypeInt64, DataType::TypeFp32),
        "unable to load model 'm', configuration expects datatype TYPE_FP32 for input 'I', model provides TYPE_INT64",
    );
    refused(
        &text,
        &model(DataType::TypeFp32, DataType::TypeInvalid),
        "unable to load model 'm', configuration expects datatype TYPE_FP32 for output 'O', model \
         provides TYPE_INVALID",
    );
    assert_eq!(
        check("input { name: \"I\" dims: 16 }", &model(DataType::TypeFp32, DataType::TypeFp32)),
        Err(Error::internal("unsupported datatype TYPE_INVALID for input 'I' for model 'm'"))
    );
    let map = LearnedTensor { name: "I".into(), kind: LearnedKind::Other("ONNX_TYPE_MAP".into()), dims: vec![] };
    assert_eq!(
        check(INPUT, &learned(&[map], &[])),
        Err(Error::unsupported("Unsupported ONNX Type 'ONNX_TYPE_MAP' for I/O 'I', expected 'ONNX_TYPE_TENSOR'."))
    );
}

#[test]
fn dims_with_batching() {
    let config = |dims: &str| format!("max_batch_size: 2 input {{ name: \"I\" data_type: TYPE_FP32 {dims} }}");
    let model = |dims: &[i64]| learned(&[fp32("I", dims)], &[]);
    for shape in ["[]", "[2,16]"] {
        let dims: Vec<i64> = serde_json::from_str(shape).unwrap();
        refused(
            &config("dims: 16"),
            &model(&dims),
            &format!(
                "model 'm', tensor 'I': for the model to support batching the shape should have at least 1 dimension \
                 and the first dimension must be -1; but shape expected by the model is {shape}"
            ),
        );
    }
    let mismatch = |dims: &str, count: usize, full: &str, provided: &[i64], shape: &str| {
        refused(
            &config(dims),
            &model(provided),
            &format!(
                "model 'm', tensor 'I': the model expects {} dimensions (shape {shape}) but the model configuration \
                 specifies {count} dimensions (an initial batch dimension because max_batch_size > 0 followed by the \
                 explicit tensor shape, making complete shape {full})",
                provided.len()
            ),
        );
    };
    mismatch("dims: 16", 2, "[-1,16]", &[-1, 15], "[-1,15]");
    mismatch("dims: [ 16, 1 ]", 3, "[-1,16,1]", &[-1, 16], "[-1,16]");
    mismatch("dims: -1", 2, "[-1,-1]", &[-1, 16], "[-1,16]");
    mismatch("dims: 1", 2, "[-1,1]", &[-1], "[-1]");
    assert_eq!(check(&config("dims: 16"), &model(&[-1, -1])), Ok(()));
    assert_eq!(check(&config("dims: -1"), &model(&[-1, -1])), Ok(()));
    assert_eq!(check(&config("dims: 1 reshape { }"), &model(&[-1])), Ok(()));
    assert_eq!(check(&config("dims: 16 reshape { shape: [ 4, 4 ] }"), &model(&[-1, 4, 4])), Ok(()));
}

#[test]
fn dims_without_batching() {
    let config = |dims: &str| format!("input {{ name: \"I\" data_type: TYPE_FP32 {dims} }}");
    let model = |dims: &[i64]| learned(&[fp32("I", dims)], &[]);
    refused(
        &config("dims: [ 1, 16 ]"),
        &model(&[16]),
        "model 'm', tensor 'I': the model expects 1 dimensions (shape [16]) but the model configuration specifies 2 \
         dimensions (shape [1,16])",
    );
    refused(
        &config("dims: -1"),
        &model(&[16]),
        "model 'm', tensor 'I': the model expects 1 dimensions (shape [16]) but the model configuration specifies 1 \
         dimensions (shape [-1])",
    );
    refused(
        &config("dims: [ 1, 2 ]"),
        &model(&[]),
        "unable to load model 'm', scalar tensor 'I', should only provide 1 in the model configuration when the model \
         doesn't support batching. Model configuration provided: [1,2].",
    );
    assert_eq!(check(&config("dims: [ 1, 1 ]"), &model(&[])), Ok(()));
    assert_eq!(check(&config("dims: [ 3, -1 ]"), &model(&[-1, -1])), Ok(()));
}

#[test]
fn optional_inputs() {
    let mut model = learned(&[fp32("I", &[-1])], &[]);
    model.overridable = vec![fp32("W", &[4])];
    let config = |input: &str| format!("input {{ name: \"I\" data_type: TYPE_FP32 dims: -1 }} input {{ {input} }}");
    let optional = "name: \"W\" data_type: TYPE_FP32 dims: 4 optional: true";
    assert_eq!(check(&config(optional), &model), Ok(()));
    refused(&config(&optional.replace('W', "X")), &model, "unexpected inference input 'X', allowed inputs are: W");
    refused(
        &config(&format!("{optional} allow_ragged_batch: true")),
        &model,
        "unable to load model 'm', configuration expects model provides input with shape [-1] for ragged input 'W', \
         which is not supported for optional input",
    );
    model.inputs = vec![fp32("I", &[-1, 2])];
    refused(
        &format!("max_batch_size: 2 input {{ name: \"I\" data_type: TYPE_FP32 dims: 2 }} input {{ {optional} }}"),
        &model,
        "unable to load model 'm', optional input 'W' is not supported for models that support batching",
    );
}

#[test]
fn ragged_inputs() {
    let text = "max_batch_size: 2 input { name: \"I\" data_type: TYPE_FP32 dims: -1 allow_ragged_batch: true }";
    assert_eq!(check(text, &learned(&[fp32("I", &[-1])], &[])), Ok(()));
    refused(
        text,
        &learned(&[fp32("I", &[-1, -1])], &[]),
        "unable to load model 'm', configuration expects model provides input with shape [-1]  for ragged input 'I', \
         model provides [-1,-1]",
    );
}

#[test]
fn sequence_controls() {
    let text = |control: &str| {
        format!("max_batch_size: 2 sequence_batching {{ control_input {{ name: \"C\" control {{ {control} }} }} }}")
    };
    let start = "int32_false_true: [ 0, 1 ]";
    let model = |data_type, dims: &[i64]| learned(&[tensor("C", data_type, dims)], &[]);
    assert_eq!(check(&text(start), &model(DataType::TypeInt32, &[-1, 1])), Ok(()));
    for (control, data_type) in [
        ("fp32_false_true: [ 0, 1 ]", DataType::TypeFp32),
        ("bool_false_true: [ false, true ]", DataType::TypeBool),
        ("kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING", DataType::TypeString),
    ] {
        assert_eq!(check(&text(control), &model(data_type, &[-1, 1])), Ok(()), "{control}");
    }
    assert_eq!(
        check(&text(start), &learned(&[fp32("X", &[-1, 1])], &[])),
        Err(Error::internal("configuration specified sequence control 'C', but model does not provide that input"))
    );
    for (dims, shown) in [(&[-1, 2][..], "[2]"), (&[-1], "[]"), (&[], "[]"), (&[-1, 1, 1], "[1,1]")] {
        refused(
            &text(start),
            &model(DataType::TypeInt32, dims),
            &format!(
                "unable to load model 'm', sequence control 'C' in model has dims {shown} but dims [1] is expected"
            ),
        );
    }
    refused(
        &text(start),
        &model(DataType::TypeFp16, &[-1, 1]),
        "unable to load model 'm', sequence control 'C', the model expects data-type FLOAT16 but the model \
         configuration specifies data-type TYPE_INT32",
    );
}
