//! Tests of resolved samples, and of refused ones.

use super::super::labels::tests::Scratch;
use super::super::{from_dynamic, parse};
use super::*;

/// The samples of a model with inputs A and B, in a directory of its own.
fn resolved(files: &[(&str, &[u8])], max_batch_size: u32, samples: &str) -> Result<Vec<Sample>, String> {
    let directory = Scratch::new("warmup");
    directory.write("warmup/other", b"");
    files.iter().for_each(|(name, data)| directory.write(name, data));
    let text = format!(
        "name: \"m\" max_batch_size: {max_batch_size}
         input {{ name: \"A\" data_type: TYPE_FP32 dims: [ -1 ] }}
         input {{ name: \"B\" data_type: TYPE_STRING dims: [ 2 ] }}
         {samples}"
    );
    let document = parse("config.pbtxt", text.as_bytes()).unwrap();
    let spec = ModelSpec::new(from_dynamic(&document.message).unwrap()).unwrap();
    resolve(&spec, directory.path()).map_err(|error| error.to_string())
}

fn input(name: &str, value: &str) -> String {
    format!("inputs {{ key: \"{name}\" value {{ {value} }} }}")
}

fn sample(inputs: &str) -> String {
    format!("model_warmup {{ name: \"s\" batch_size: 1 {inputs} }}")
}

fn one(data: &str) -> Vec<u8> {
    let samples = resolved(&[], 0, &sample(&input("A", data))).unwrap();
    samples[0].inputs[0].data.to_vec()
}

#[test]
fn a_sample_is_resolved_to_bytes() {
    let inputs = [
        input("B", "data_type: TYPE_STRING dims: [ 2 ] zero_data: true"),
        input("A", "data_type: TYPE_FP32 dims: [ 3 ] input_data_file: \"a\""),
        input("CORRID", "data_type: TYPE_UINT64 dims: [ 1 ] zero_data: true"),
    ];
    let text = format!("model_warmup {{ name: \"s\" batch_size: 4 count: 2 {} }}", inputs.concat());
    let samples = resolved(&[("warmup/a", &[7; 20])], 8, &text).unwrap();
    let [sample] = samples.as_slice() else { panic!("{samples:?}") };
    assert_eq!((sample.name.as_str(), sample.batch_size, sample.count), ("s", 4, 2));
    let inputs: Vec<_> = sample.inputs.iter().map(|i| (i.name.as_str(), &i.shape[..], i.index, i.data.len())).collect();
    let expected: [(&str, &[i64], _, _); 3] =
        [("A", &[1, 3], Some(0), 12), ("B", &[1, 2], Some(1), 8), ("CORRID", &[1, 1], None, 8)];
    assert_eq!(inputs, expected, "all have a batch dimension");
    assert_eq!(*sample.inputs[0].data, [7; 12], "as much of the file as the tensor needs");
    assert_eq!(*sample.inputs[1].data, [0; 8], "two empty strings");
    let without_batch = resolved(&[("warmup/a", &[7; 20])], 0, &text).unwrap();
    assert_eq!(without_batch[0].inputs[0].shape, [3]);
}

#[test]
fn what_the_server_adds_to_sequences_has_its_place_behind_the_inputs() {
    let control = |name: &str, kind: &str| {
        format!("control_input {{ name: \"{name}\" control {{ kind: {kind} int32_false_true: [ 0, 1 ] }} }}")
    };
    let controls = [control("START", "CONTROL_SEQUENCE_START"), control("READY", "CONTROL_SEQUENCE_READY")].concat();
    let zero = "data_type: TYPE_INT32 dims: [ 1 ] zero_data: true";
    let inputs = ["READY", "START", "other"].map(|name| input(name, zero)).concat();
    let samples = resolved(&[], 8, &format!("sequence_batching {{ {controls} }} {}", sample(&inputs))).unwrap();
    let inputs: Vec<_> = samples[0].inputs.iter().map(|i| (i.name.as_str(), &i.shape[..], i.index)).collect();
    let expected: [(&str, &[i64], _); 3] =
        [("READY", &[1, 1], Some(3)), ("START", &[1, 1], Some(2)), ("other", &[1, 1], None)];
    assert_eq!(inputs, expected);
}

#[test]
fn counts_without_an_effect() {
    let text = "model_warmup { name: \"skipped\" inputs { key: \"A\" value { dims: -1 } } }
                model_warmup { name: \"s\" batch_size: 1 }";
    let samples = resolved(&[], 0, text).unwrap();
    let counts: Vec<_> = samples.iter().map(|sample| (sample.name.as_str(), sample.batch_size, sample.count)).collect();
    assert_eq!(counts, [("s", 1, 1)]);
}

#[test]
fn presence_counts_and_not_the_value() {
    assert_eq!(one("data_type: TYPE_FP32 dims: 4 zero_data: false"), [0; 16]);
    assert_ne!(one("data_type: TYPE_INT64 dims: 4 random_data: false"), [0; 32]);
}

#[test]
fn random_data_differ_and_are_numbers() {
    let random = |data_type: &str| one(&format!("data_type: {data_type} dims: 1000 random_data: true"));
    for data_type in ["TYPE_FP32", "TYPE_FP64", "TYPE_FP16", "TYPE_BF16", "TYPE_INT8", "TYPE_UINT64", "TYPE_BOOL"] {
        let (first, second) = (random(data_type), random(data_type));
        assert_ne!(first, second, "{data_type}: from run to run");
        assert!(first.iter().any(|byte| *byte != first[0]), "{data_type}: within a run");
    }
    assert_eq!(random("TYPE_STRING"), [0; 4000], "strings are always zero");
    assert!(random("TYPE_BOOL").iter().all(|byte| *byte <= 1));
    let unit = |number: f64| (0.0..=1.0).contains(&number);
    let fp32 = random("TYPE_FP32");
    assert!(fp32.as_chunks().0.iter().all(|bytes| unit(f32::from_le_bytes(*bytes).into())));
    let fp64 = random("TYPE_FP64");
    assert!(fp64.as_chunks().0.iter().all(|bytes| unit(f64::from_le_bytes(*bytes))));
    let bf16 = random("TYPE_BF16");
    let widened = |bytes: &[u8; 2]| f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
    assert!(bf16.as_chunks().0.iter().all(|bytes| unit(widened(bytes).into())));
    let fp16 = random("TYPE_FP16");
    // Sign, exponent and mantissa of the numbers from 1/2 to 1.
    assert!(fp16.as_chunks().0.iter().all(|bytes| (0x3800..0x3c00).contains(&u16::from_le_bytes(*bytes))));
}

#[test]
fn files_hold_what_the_tensor_needs_or_strings() {
    let file = |data_type: &str, name: &str| {
        sample(&input("A", &format!("data_type: {data_type} dims: 2 input_data_file: \"{name}\"")))
    };
    let short = resolved(&[("warmup/a.bin", &[0; 7])], 0, &file("TYPE_FP32", "a.bin"));
    assert_eq!(
        short.unwrap_err(),
        "[request id: <id_unknown>] warmup setting expects 8 bytes, but the data provided from a.binonly has 7 bytes"
    );
    let text = resolved(&[("warmup/t", b"\x01\0\0\0x\x02\0\0\0yy")], 0, &file("TYPE_STRING", "t")).unwrap();
    assert_eq!(*text[0].inputs[0].data, b"\x01\0\0\0x\x02\0\0\0yy");
    assert_eq!(text[0].inputs[0].data.len(), 11, "strings are as long as they are");
    let beside = resolved(&[("beside", &[1; 8])], 0, &file("TYPE_FP32", "../beside")).unwrap();
    assert_eq!(*beside[0].inputs[0].data, [1; 8], "inside the model's directory");
    for name in ["../../x", "a/../../../x", "/../../../etc/passwd", "/etc/passwd"] {
        assert_eq!(
            resolved(&[], 0, &file("TYPE_FP32", name)).unwrap_err(),
            format!("warmup data file path '{name}' in model 'm' is outside model directory")
        );
    }
    for (name, text) in [("absent", "No such file"), ("", "it is not a file"), (".", "it is not a file")] {
        let error = resolved(&[], 0, &file("TYPE_FP32", name)).unwrap_err();
        assert!(error.starts_with("failed to open text file for read ") && error.contains(text), "{error}");
        assert!(error.contains("/warmup/"), "the whole path: {error}");
    }
}

#[test]
fn what_cannot_be_run_is_refused() {
    for (samples, text) in [
        (
            sample(&input("A", "data_type: TYPE_FP32 dims: [ 1, -1 ] zero_data: true")),
            "warmup setting expects all variable-size dimensions are specified for input 'A'".to_owned(),
        ),
        (
            sample(&input("A", "data_type: TYPE_FP32 dims: 1")),
            "[request id: <id_unknown>] warmup setting expects input 'A' to have input_data_type set".to_owned(),
        ),
        (
            "model_warmup { name: \"s\" batch_size: 65537 }".to_owned(),
            "warmup sample 's' of model 'm' has batch_size 65537, more than 65536".to_owned(),
        ),
    ] {
        assert_eq!(resolved(&[], 0, &samples), Err(text));
    }
    let beyond = "warmup sample 's' of model 'm': input 'A' takes the samples beyond 1073741824 bytes";
    for dims in ["268435457", "[ 4294967296, 4294967296, 4294967296 ]"] {
        let text = sample(&input("A", &format!("data_type: TYPE_FP32 dims: {dims} zero_data: true")));
        assert_eq!(resolved(&[], 0, &text).unwrap_err(), beyond);
    }
    let empty = sample(&input(
        "A",
        "data_type: TYPE_FP32 dims: [ 9223372036854775807, 9223372036854775807, 0 ] zero_data: true",
    ));
    assert_eq!(resolved(&[], 0, &empty).unwrap()[0].inputs[0].data.len(), 0);
}

#[test]
fn expected_answers_are_read_with_their_sample() {
    let zero = sample(&input("A", "data_type: TYPE_FP32 dims: [ 1 ] zero_data: true"));
    let outputs = "output { name: \"O\" data_type: TYPE_FP32 dims: [ 1 ] }\n";
    let tolerance = |text: &str| {
        format!("parameters {{ key: \"nereid.warmup.tolerance\" value {{ string_value: \"{text}\" }} }}\n")
    };
    let text = format!("{outputs}{}{zero}", tolerance("0.5"));
    let samples = resolved(&[("warmup_expected/s/O", &[1; 4]), ("warmup_expected/t/X", b"")], 0, &text).unwrap();
    let expected = ExpectedOutput { name: "O".into(), file: "warmup_expected/s/O".into(), data: Arc::new(vec![1; 4]) };
    assert_eq!((&samples[0].expected, samples[0].tolerance), (&vec![expected], 0.5));
    let samples = resolved(&[], 0, &format!("{outputs}{zero}")).unwrap();
    assert_eq!((samples[0].expected.len(), samples[0].tolerance), (0, 0.0));
    let error = resolved(&[("warmup_expected/s/X", b"")], 0, &text).unwrap_err();
    assert_eq!(error, "'warmup_expected/s/X' is named after no output of model 'm'");
    for given in ["-1", "much", "NaN", ""] {
        let error = resolved(&[], 0, &format!("{}{zero}", tolerance(given))).unwrap_err();
        let expected =
            format!("parameter 'nereid.warmup.tolerance' is '{given}', expected a number that is at least 0");
        assert_eq!(error, expected);
    }
}
