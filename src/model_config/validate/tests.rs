//! Every row of contract/model_config.md section 6 that can be checked without a backend, as a file that causes it.

use super::super::{from_dynamic, normalize, parse};
use super::*;

mod messages;

fn read(text: &str) -> ModelConfig {
    let document = parse("c", text.as_bytes()).unwrap_or_else(|error| panic!("{error}\n{text}"));
    from_dynamic(&document.message).unwrap()
}

/// Poll-time validation of a raw configuration called "m" for backend "b" where it names none.
fn poll(text: &str) -> Result<(), String> {
    let mut config = read(text);
    if config.name.is_empty() {
        config.name = "m".into();
    }
    if config.backend.is_empty() && config.platform.is_empty() {
        config.backend = "b".into();
    }
    at_poll(&config, "m", false).map_err(|error| error.to_string())
}

/// Load-time validation, instance groups resolved.
fn load(text: &str) -> Result<(), String> {
    let mut config = read(text);
    config.name = "m".into();
    if config.backend.is_empty() {
        config.backend = "b".into();
    }
    normalize::fill_defaults(&mut config);
    normalize::instance_groups(&mut config, &[], &SupportedGpus::NoDriver);
    let result = at_load(&config, &SupportedGpus::NoDriver);
    if let Err(error) = &result {
        assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
    }
    result.map_err(|error| error.to_string())
}

fn refused(check: impl Fn(&str) -> Result<(), String>, cases: &[(&str, &str)]) {
    for (text, expected) in cases {
        assert_eq!(check(text), Err((*expected).to_owned()), "{text}");
    }
}

fn accepted(check: impl Fn(&str) -> Result<(), String>, cases: &[&str]) {
    for text in cases {
        assert_eq!(check(text), Ok(()), "{text}");
    }
}

#[test]
fn name() {
    let config = ModelConfig::default();
    let message = |config: &ModelConfig, directory| at_poll(config, directory, false).unwrap_err().to_string();
    assert_eq!(message(&config, "m"), "model configuration must specify 'name'");
    let config = ModelConfig { name: "other".into(), backend: "b".into(), ..Default::default() };
    assert_eq!(
        message(&config, "m"),
        "unexpected directory name 'm' for model 'other', directory name must equal model name"
    );
    assert_eq!(at_poll(&config, "other", false), Ok(()));
}

#[test]
fn backend_and_platform() {
    let config = ModelConfig { name: "m".into(), ..Default::default() };
    assert_eq!(at_poll(&config, "m", false), Err(Error::invalid("must specify 'platform' or 'backend' for 'm'")));
    refused(
        poll,
        &[
            ("platform: \"tensorflow\"", "unexpected platform type 'tensorflow' for m"),
            (
                "platform: \"ensemble\" backend: \"b\"",
                "Ensemble model 'm' must have platform type 'ensemble' and empty backend type",
            ),
            (
                "platform: \"onnxruntime_onnx\" backend: \"python\"",
                "unexpected 'platform' and 'backend' pair, got:onnxruntime_onnx, python",
            ),
            ("platform: \"x\" backend: \"tensorrt\"", "unexpected 'platform' and 'backend' pair, got:x, tensorrt"),
            ("backend: \"pytorch\"", "unexpected 'platform' and 'backend' pair, got:, pytorch"),
            (
                "platform: \"tensorrt_plan\" backend: \"onnxruntime\"",
                "unexpected 'platform' and 'backend' pair, got:tensorrt_plan, onnxruntime",
            ),
        ],
    );
    accepted(
        poll,
        &[
            "backend: \"identity\"",
            "backend: \"python\" platform: \"anything\"",
            "backend: \"onnxruntime\" platform: \"onnxruntime_onnx\"",
            "backend: \"pytorch\" platform: \"libtorch\"",
            "backend: \"pytorch\" platform: \"torch_aoti\"",
            "backend: \"tensorflow\" platform: \"tensorflow_savedmodel\"",
        ],
    );
}

#[test]
fn batch() {
    refused(poll, &[("max_batch_size: -1", "'max_batch_size' must be non-negative value for m")]);
    accepted(poll, &["max_batch_size: 0", "max_batch_size: 2147483647"]);
}

#[test]
fn dynamic() {
    refused(
        poll,
        &[
            (
                "max_batch_size: 4 dynamic_batching { preferred_batch_size: [ 4, 0 ] }",
                "dynamic batching preferred size must be positive for m",
            ),
            (
                "max_batch_size: 4 dynamic_batching { preferred_batch_size: [ 5 ] }",
                "dynamic batching preferred size must be <= max batch size for m",
            ),
            ("dynamic_batching { priority_levels: 3 }", "default priority level must be in range [1, 3] for m"),
            (
                "dynamic_batching { priority_levels: 3 default_priority_level: 4 }",
                "default priority level must be in range [1, 3] for m",
            ),
            (
                "dynamic_batching { priority_levels: 3 default_priority_level: 3 priority_queue_policy { key: 4 } }",
                "priority queue policy must have priority level in range [1, 3] for m",
            ),
            (
                "dynamic_batching { priority_levels: 3 default_priority_level: 3 priority_queue_policy { key: 0 } }",
                "priority queue policy must have priority level in range [1, 3] for m",
            ),
            (
                "dynamic_batching { priority_levels: 2 default_priority_level: 1 preserve_ordering: true }",
                "Only one priority level is allowed when 'preserve_ordering' is true for m",
            ),
            (
                "dynamic_batching { preserve_ordering: true
                   default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 1 } }",
                "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for m",
            ),
            (
                "dynamic_batching { preserve_ordering: true priority_levels: 1 default_priority_level: 1
                   priority_queue_policy { key: 1
                     value { timeout_action: DELAY default_timeout_microseconds: 1 } } }",
                "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for m",
            ),
        ],
    );
    accepted(
        poll,
        &[
            "dynamic_batching { }",
            "max_batch_size: 4 dynamic_batching { preferred_batch_size: [ 1, 4 ] }",
            "dynamic_batching { priority_levels: 3 default_priority_level: 3 priority_queue_policy { key: 1 } }",
            "dynamic_batching { preserve_ordering: true default_queue_policy { timeout_action: DELAY } }",
            "dynamic_batching { default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 1 } }",
        ],
    );
}

#[test]
fn sequence() {
    let start = "kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ]";
    let case = |controls: &str| poll(&format!("sequence_batching {{ {controls} }}"));
    let multiple = format!(
        "control_input {{ name: \"a\" control {{ {start} }} }} control_input {{ name: \"b\" control {{ {start} }} }}"
    );
    let twice = "control_input { name: \"a\" } control_input { name: \"a\" }";
    refused(
        case,
        &[
            ("control_input { }", "sequence batching control tensor must have a name for m"),
            (twice, "sequence batching control tensor 'a' is specified for multiple control kinds for m"),
            (&multiple, "sequence batching specifies multiple CONTROL_SEQUENCE_START tensors for m"),
            (
                "control_input { name: \"a\" control { kind: CONTROL_SEQUENCE_END } }",
                "sequence batching must specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' for \
                 CONTROL_SEQUENCE_END for m",
            ),
            (
                "control_input { name: \"a\" control { kind: CONTROL_SEQUENCE_READY
                   int32_false_true: [ 0, 1 ] bool_false_true: [ false, true ] } }",
                "sequence batching specifies more than one from 'int32_false_true', 'fp32_false_true' and \
                 'bool_false_true' for CONTROL_SEQUENCE_READY for m",
            ),
            (
                "control_input { name: \"a\" control { int32_false_true: 0 } }",
                "sequence batching control 'int32_false_true' must have exactly 2 entries for CONTROL_SEQUENCE_START \
                 for m",
            ),
            (
                "control_input { name: \"a\" control { fp32_false_true: [ 0, 1, 2 ] } }",
                "sequence batching control 'fp32_false_true' must have exactly 2 entries for CONTROL_SEQUENCE_START \
                 for m",
            ),
            (
                "control_input { name: \"a\" control { bool_false_true: true } }",
                "sequence batching control 'bool_false_true' must have exactly 2 entries for CONTROL_SEQUENCE_START \
                 for m",
            ),
            (
                "control_input { name: \"a\" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64
                   fp32_false_true: 0 } }",
                "sequence batching must not specify either 'int32_false_true', 'fp32_false_true' or \
                 'bool_false_true' for CONTROL_SEQUENCE_CORRID for m",
            ),
            (
                "control_input { name: \"a\" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_FP32 } }",
                "unexpected data type for control CONTROL_SEQUENCE_CORRID for m. Allowed data types are TYPE_UINT64, \
                 TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING",
            ),
            ("oldest { preferred_batch_size: 0 }", "sequence batching preferred batch size must be positive for m"),
            (
                "oldest { preferred_batch_size: 1 }",
                "sequence batching preferred batch size must be <= max batch size for m",
            ),
            (
                "direct { minimum_slot_utilization: -0.1 }",
                "sequence batching minimum slot utilization must be in range (0.0, 1.0] for m",
            ),
            (
                "direct { minimum_slot_utilization: 1.1 }",
                "sequence batching minimum slot utilization must be in range (0.0, 1.0] for m",
            ),
            (
                "direct { minimum_slot_utilization: nan }",
                "sequence batching minimum slot utilization must be in range (0.0, 1.0] for m",
            ),
        ],
    );
    let corrid = |data_type: &str| {
        case(&format!(
            "control_input {{ name: \"a\" control {{ kind: CONTROL_SEQUENCE_CORRID data_type: {data_type} }} }}"
        ))
    };
    accepted(corrid, &["TYPE_UINT64", "TYPE_INT64", "TYPE_UINT32", "TYPE_INT32", "TYPE_STRING"]);
    let one = format!("control_input {{ name: \"a\" control {{ {start} }} }}");
    accepted(case, &["", "direct { }", "direct { minimum_slot_utilization: 1 }", "oldest { }", &one]);
}

#[test]
fn cache() {
    refused(
        poll,
        &[
            (
                "response_cache { enable: true } sequence_batching { }",
                "Response Cache does not currently support model m with sequence batching scheduler. Please disable \
                 the response cache.",
            ),
            (
                "response_cache { enable: true } model_transaction_policy { decoupled: true }",
                "Response Cache does not currently support model m with 'decoupled' transaction policy. Please \
                 disable the response cache.",
            ),
        ],
    );
    accepted(
        poll,
        &[
            "response_cache { enable: true } dynamic_batching { }",
            "response_cache { enable: false } sequence_batching { }",
            "response_cache { } model_transaction_policy { decoupled: true }",
            "response_cache { enable: true } model_transaction_policy { }",
        ],
    );
}

#[test]
fn metrics() {
    let case = |control: &str| poll(&format!("model_metrics {{ metric_control {{ {control} }} }}"));
    refused(
        case,
        &[
            ("", "metric control must specify 'metric_identifier'"),
            ("histogram_options { buckets: 1 }", "metric control must specify 'metric_identifier'"),
            ("metric_identifier { }", "metric identifier must specify non-empty 'family'"),
            ("metric_identifier { family: \"f\" }", "metric control must specify 'histogram_options'"),
            (
                "metric_identifier { family: \"f\" } histogram_options { }",
                "histogram options must specify non-empty 'buckets'",
            ),
            (
                "metric_identifier { family: \"f\" } histogram_options { buckets: [ 1, 1 ] }",
                "histogram options must specify strictly increasing 'buckets'",
            ),
            (
                "metric_identifier { family: \"f\" } histogram_options { buckets: [ 1, inf ] }",
                "histogram options must specify finite 'buckets'",
            ),
            (
                "metric_identifier { family: \"f\" } histogram_options { buckets: nan }",
                "histogram options must specify finite 'buckets'",
            ),
        ],
    );
    let buckets: Vec<String> = (0..1025).map(|bucket| bucket.to_string()).collect();
    let with = |buckets: &[String]| {
        let list = buckets.join(", ");
        format!("metric_identifier {{ family: \"f\" }} histogram_options {{ buckets: [ {list} ] }}")
    };
    refused(case, &[(&with(&buckets), "histogram options may specify at most 1024 'buckets'")]);
    accepted(case, &[&with(&buckets[1..])]);
    accepted(case, &["metric_identifier { family: \"f\" } histogram_options { buckets: [ 1, 2.5 ] }"]);
    accepted(poll, &["model_metrics { }"]);
}

#[test]
fn ensembles() {
    let good = messages::ensemble(&["p I=X -> O=A", "q I=A -> O=Y"]);
    accepted(poll, &[&good, &messages::ensemble(&["q I=A -> O=Y", "p I=X -> O=A"])]);
    // An incomplete step causes no findings on the tensors of others.
    refused(
        poll,
        &[
            (
                &messages::ensemble(&["p I=X -> O=A", " I=A -> O=Y"]),
                "must specify 'model_name' in step 1 of ensemble 'm'",
            ),
            (
                "platform: \"ensemble\" dynamic_batching { }",
                "ensemble scheduling must be set for ensemble m whose platform is ensemble",
            ),
        ],
    );
    // An ensemble has no instances of its own to check.
    let mut config = read(&good);
    normalize::fill_defaults(&mut config);
    assert_eq!(at_load(&config, &SupportedGpus::NoDriver), Ok(()));
}

#[test]
fn io() {
    let input = |text: &str| load(&format!("max_batch_size: 2 input {{ {text} }}"));
    let output = |text: &str| load(&format!("max_batch_size: 2 output {{ {text} }}"));
    let wildcard = "or -1 to indicate a variable-size dimension for m";
    let cases = [
        ("", "must specify 'name' for m".to_owned()),
        ("name: \"t\"", "'t' must specify 'data_type' for m".into()),
        ("name: \"t\" data_type: TYPE_INVALID dims: 1", "'t' must specify 'data_type' for m".into()),
        ("name: \"t\" data_type: TYPE_FP32", "'t' must specify 'dims' for m".into()),
        ("name: \"t\" data_type: TYPE_FP32 dims: [ 1, 0 ]", format!("'t' dimension must be integer >= 1, {wildcard}")),
        ("name: \"t\" data_type: TYPE_FP32 dims: -2", format!("'t' dimension must be integer >= 1, {wildcard}")),
        (
            "name: \"t\" data_type: TYPE_FP32 dims: 1 reshape { shape: 0 }",
            format!("'t' reshape dimensions must be integer >= 1, {wildcard}"),
        ),
    ];
    for (text, expected) in &cases {
        assert_eq!(input(text), Err(format!("model input {expected}")), "{text}");
        assert_eq!(output(text), Err(format!("model output {expected}")), "{text}");
    }
    let reshaped = |dims: &str, shape: &str| {
        input(&format!("name: \"t\" data_type: TYPE_FP32 dims: [ {dims} ] reshape {{ shape: [ {shape} ] }}"))
    };
    let size = "model input 't' has different size for dims and reshape for m";
    let number = "model input 't' has different number of variable-size dimensions for dims and reshape for m";
    for (dims, shape, expected) in [
        ("2, 3", "6", Ok(())),
        ("2, 3", "5", Err(size)),
        ("1", "", Ok(())),
        ("1, 1", "", Ok(())),
        ("2", "", Err(size)),
        ("-1", "", Err(size)),
        ("-1", "-1", Ok(())),
        ("-1", "4", Err(size)),
        ("4", "-1", Err(size)),
        ("-1, -1", "-1", Err(number)),
        ("2, 4, -1, 6", "8, -1, 1, 6", Ok(())),
        ("2, 4, -1, 6", "-1, 48", Err(size)),
        ("-1, 2, -1", "-1, 3, -1", Err(size)),
        ("-1, 2, -1", "1, -1, 2, -1, 1", Ok(())),
        // Sizes beyond anything that exists are not equal to each other.
        ("9223372036854775807, 9223372036854775807, 4", "9223372036854775807, 9223372036854775807, 4", Ok(())),
        (
            "9223372036854775807, 9223372036854775807, 9223372036854775807",
            "9223372036854775807, 9223372036854775807, 9223372036854775807",
            Err(size),
        ),
    ] {
        assert_eq!(reshaped(dims, shape), expected.map_err(str::to_owned), "{dims} as {shape}");
    }
    refused(
        load,
        &[(
            "input { name: \"t\" data_type: TYPE_FP32 dims: 1 reshape { } }",
            "model input 't' cannot have empty reshape for non-batching model as scalar tensors are not supported \
             for m",
        )],
    );
}

#[test]
fn inputs_and_outputs_wait_for_the_backend_unless_strict() {
    let config =
        ModelConfig { name: "m".into(), backend: "b".into(), input: vec![Default::default()], ..Default::default() };
    assert_eq!(at_poll(&config, "m", false), Ok(()));
    assert_eq!(at_poll(&config, "m", true), Err(Error::invalid("model input must specify 'name' for m")));
}

#[test]
fn formats() {
    let input = |text: &str| load(&format!("input {{ name: \"t\" data_type: TYPE_FP32 {text} }}"));
    let output = |text: &str| load(&format!("output {{ name: \"t\" data_type: TYPE_FP32 {text} }}"));
    let tensor_rt = |text: &str| {
        load(&format!(
            "backend: \"tensorrt\" platform: \"tensorrt_plan\" input {{ name: \"t\" data_type: TYPE_FP32 {text} }}"
        ))
    };
    refused(
        input,
        &[
            ("dims: [ 1, 2 ] format: FORMAT_NHWC", "model input NHWC/NCHW require 3 dims for m"),
            ("dims: [ 1, 2, 3, 4 ] format: FORMAT_NCHW", "model input NHWC/NCHW require 3 dims for m"),
            ("dims: 1 is_shape_tensor: true", "shape tensors are only supported for TensorRT platform for m"),
            (
                "dims: 1 is_non_linear_format_io: true",
                "Non-linear IO format is only supported for the TensorRT platform for m",
            ),
        ],
    );
    refused(
        output,
        &[
            ("dims: 1 is_shape_tensor: true", "shape tensors are only supported for TensorRT platform for m"),
            (
                "dims: 1 is_non_linear_format_io: true",
                "Non-linear IO format is only supported for the TensorRT platform for m",
            ),
        ],
    );
    refused(
        tensor_rt,
        &[("dims: 1 is_non_linear_format_io: true", "Non-linear IO format input requires 3 dims for m")],
    );
    accepted(input, &["dims: [ 3, 2, 1 ] format: FORMAT_NHWC", "dims: 1 format: FORMAT_NONE"]);
    accepted(tensor_rt, &["dims: 1 is_shape_tensor: true", "dims: [ 1, 2, 3 ] is_non_linear_format_io: true"]);
}

#[test]
fn batch_inputs_and_outputs() {
    let tensors =
        "input { name: \"I\" data_type: TYPE_FP32 dims: 1 } output { name: \"O\" data_type: TYPE_FP32 dims: 1 }
                   output { name: \"P\" data_type: TYPE_FP32 dims: 1 }";
    let case = |text: &str| load(&format!("{tensors} {text}"));
    refused(
        case,
        &[
            (
                "batch_input { kind: BATCH_ITEM_SHAPE data_type: TYPE_FP32 }",
                "batch input kind 'BATCH_ITEM_SHAPE' expects 1 source input, got 0 for m",
            ),
            (
                "batch_input { data_type: TYPE_FP32 source_input: [ \"I\", \"I\" ] }",
                "batch input kind 'BATCH_ELEMENT_COUNT' expects 1 source input, got 2 for m",
            ),
            (
                "batch_input { data_type: TYPE_INT64 source_input: \"I\" }",
                "batch input data type must be TYPE_INT32 or TYPE_FP32 for m",
            ),
            ("batch_input { data_type: TYPE_INT32 source_input: \"O\" }", "unknown source input name 'O' for m"),
            (
                "batch_output { target_name: \"O\" }",
                "batch output kind 'BATCH_SCATTER_WITH_INPUT_SHAPE' expects 1 source input, got 0 for m",
            ),
            ("batch_output { target_name: \"O\" source_input: \"X\" }", "unknown source input name 'X' for m"),
            ("batch_output { target_name: \"I\" source_input: \"I\" }", "unknown target output name 'I' for m"),
            (
                "batch_output { target_name: [ \"O\", \"O\" ] source_input: \"I\" }",
                "target output name 'O' can only be specified once for m",
            ),
            (
                "batch_output { target_name: \"O\" source_input: \"I\" }
                 batch_output { target_name: \"O\" source_input: \"I\" }",
                "target output name 'O' can only be specified once for m",
            ),
        ],
    );
    accepted(
        case,
        &[
            "batch_input { data_type: TYPE_INT32 source_input: \"I\" target_name: \"X\" }",
            "batch_output { target_name: [ \"O\", \"P\" ] source_input: \"I\" }",
        ],
    );
}

#[test]
fn instances() {
    refused(
        load,
        &[
            (
                "instance_group { kind: KIND_MODEL gpus: 0 }",
                "instance group m_0 of model m has kind KIND_MODEL but specifies one or more GPUs",
            ),
            (
                "instance_group { kind: KIND_CPU gpus: 0 }",
                "instance group m_0 of model m has kind KIND_CPU but specifies one or more GPUs",
            ),
            // Without a GPU, "auto" means the CPU, whatever is listed.
            (
                "instance_group { } instance_group { name: \"g\" gpus: [ 0, 1 ] }",
                "instance group g of model m has kind KIND_CPU but specifies one or more GPUs",
            ),
            (
                "instance_group { kind: KIND_GPU }",
                "instance group m_0 of model m has kind KIND_GPU but server does not support GPUs",
            ),
            (
                "instance_group { name: \"g\" kind: KIND_GPU gpus: 0 }",
                "instance group g of model m has kind KIND_GPU but server does not support GPUs",
            ),
            (
                "platform: \"p\" instance_group { profile: \"1\" }",
                "instance group m_0 of model m and platform pspecifies profile field which is only supported for \
                 TensorRT models",
            ),
            (
                "backend: \"tensorrt\" platform: \"tensorrt_plan\" instance_group { profile: [ \"1\", \"-1\" ] }",
                "instance group m_0 of model m and platform tensorrt_plan specifies invalid profile -1. The field \
                 should contain the string representation of a non-negative integer.",
            ),
        ],
    );
    accepted(
        load,
        &[
            "",
            "instance_group { kind: KIND_MODEL }",
            "instance_group [ { kind: KIND_CPU count: 2 }, { } ]",
            "backend: \"tensorrt\" platform: \"tensorrt_plan\" instance_group { profile: \"1\" }",
        ],
    );
    let unresolved = ModelConfig { name: "m".into(), backend: "b".into(), ..Default::default() };
    assert_eq!(
        at_load(&unresolved, &SupportedGpus::NoDriver),
        Err(Error::invalid("must specify one or more 'instance group's for m"))
    );
    let unresolved = read("name: \"m\" backend: \"b\" instance_group { name: \"g\" }");
    assert_eq!(
        at_load(&unresolved, &SupportedGpus::NoDriver),
        Err(Error::invalid("instance group g of model m has unexpected kind KIND_AUTO"))
    );
}

#[test]
fn warmup() {
    let case =
        |text: &str| load(&format!("model_warmup {{ batch_size: 1 inputs {{ key: \"i\" value {{ {text} }} }} }}"));
    refused(
        case,
        &[
            (
                "dims: [ 1, -1 ] zero_data: true",
                "warmup setting expects all variable-size dimensions are specified for input 'i'",
            ),
            ("dims: 1", "[request id: <id_unknown>] warmup setting expects input 'i' to have input_data_type set"),
        ],
    );
    // Presence counts, not the value.
    accepted(case, &["dims: 1 zero_data: false", "random_data: true", "input_data_file: \"f\""]);
    accepted(load, &["model_warmup { inputs { key: \"i\" value { dims: -1 } } }"]);
}

#[test]
fn whatever_parses_can_be_checked() {
    use super::super::text::tests::{Random, random_message};
    let mut random = Random(4);
    let mut refusals = std::collections::BTreeSet::new();
    for _ in 0..1500 {
        let mut config = from_dynamic(&random_message(&mut random, super::super::descriptor(), 0)).unwrap();
        let _ = normalize::normalize(&mut config, "m", &Default::default());
        normalize::instance_groups(&mut config, &[], &SupportedGpus::NoDriver);
        for result in [at_poll(&config, "m", true), at_load(&config, &SupportedGpus::NoDriver)] {
            match result {
                Ok(()) => {}
                Err(error) => _ = refusals.insert(error.to_string()),
            }
        }
    }
    assert!(refusals.len() > 20, "{refusals:?}");
}
