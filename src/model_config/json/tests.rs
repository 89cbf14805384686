//! Tests of the served form, path by path, and of overrides.

use serde_json::{Value as Json, json};

use super::super::text::tests::{Random, random_message};
use super::super::{descriptor, parse};
use super::*;

fn from_text(text: &str) -> ModelConfig {
    from_dynamic(&parse("c", text.as_bytes()).unwrap().message).unwrap()
}

fn served(text: &str) -> Json {
    let written = write(&from_text(text), 1).unwrap();
    serde_json::from_str(&written).unwrap_or_else(|error| panic!("{error}: {written}"))
}

/// The value at a path like `input/0/dims/1`.
fn at<'a>(json: &'a Json, path: &str) -> &'a Json {
    json.pointer(&format!("/{path}")).unwrap_or_else(|| panic!("no {path} in {json}"))
}

#[test]
fn only_version_one() {
    let config = from_text("name: \"m\"");
    for version in [0, 2, u32::MAX] {
        assert_eq!(
            write(&config, version).unwrap_err(),
            Error::invalid(format!("model configuration version {version} not supported, supported versions are: 1"))
        );
    }
    assert_eq!(write(&ModelConfig::default(), 1), Ok(String::new()));
    assert!(write(&ModelConfig::default(), 2).is_err());
}

#[test]
fn a_whole_configuration_letter_for_letter() {
    let mut config = from_text(
        r#"
        name: "m" backend: "onnxruntime" platform: "onnxruntime_onnx" max_batch_size: 8
        input { name: "I" data_type: TYPE_FP32 dims: [ -1, 16 ] }
        output { name: "O" data_type: TYPE_STRING dims: 1 reshape { } label_filename: "l.txt" }
        parameters { key: "b" value { string_value: "\"/\\\n\001é" } } parameters { key: "a" value { } }
        "#,
    );
    super::super::normalize::fill_defaults(&mut config);
    super::super::normalize::instance_groups(&mut config, &[], &super::super::SupportedGpus::NoDriver);
    let expected = json!({
        "name": "m",
        "platform": "onnxruntime_onnx",
        "backend": "onnxruntime",
        "runtime": "",
        "version_policy": { "latest": { "num_versions": 1 } },
        "max_batch_size": 8,
        "input": [{
            "name": "I", "data_type": "TYPE_FP32", "format": "FORMAT_NONE", "dims": [-1, 16],
            "is_shape_tensor": false, "allow_ragged_batch": false, "optional": false, "is_non_linear_format_io": false
        }],
        "output": [{
            "name": "O", "data_type": "TYPE_STRING", "dims": [1], "label_filename": "l.txt", "reshape": { "shape": [] },
            "is_shape_tensor": false, "is_non_linear_format_io": false
        }],
        "batch_input": [],
        "batch_output": [],
        "optimization": {
            "priority": "PRIORITY_DEFAULT",
            "input_pinned_memory": { "enable": true },
            "output_pinned_memory": { "enable": true },
            "gather_kernel_buffer_threshold": 0,
            "eager_batching": false
        },
        "instance_group": [{
            "name": "m", "kind": "KIND_CPU", "count": 2, "gpus": [], "secondary_devices": [], "profile": [],
            "passive": false, "host_policy": ""
        }],
        "default_model_filename": "",
        "cc_model_filenames": {},
        "metric_tags": {},
        "parameters": { "a": { "string_value": "" }, "b": { "string_value": "\"/\\\n\u{1}é" } },
        "model_warmup": []
    });
    let written = write(&config, 1).unwrap();
    assert_eq!(serde_json::from_str::<Json>(&written).unwrap(), expected);
    // No blanks, and only the escapes that must be.
    assert!(written.contains(r#""b":{"string_value":"\"/\\\n\u0001é"}"#), "{written}");
    assert!(!written.contains(' '), "{written}");
    // Fields stand in the order of the .proto file, map entries in that of their keys.
    let positions: Vec<usize> = descriptor()
        .descriptor_proto()
        .field
        .iter()
        .filter_map(|field| written.find(&format!("\"{}\":", field.name())))
        .collect();
    assert!(positions.is_sorted(), "{written}");
    assert!(written.find("\"a\":") < written.find("\"b\":"));
}

/// The names of the members of every object that stands at `path`, in their order.
fn names_at(written: &str, path: &[&str]) -> Vec<String> {
    let mut rest = written;
    for name in path {
        rest = rest.split_once(&format!("\"{name}\":")).unwrap_or_else(|| panic!("no {name} in {written}")).1;
    }
    let mut names = Vec::new();
    let mut depth = 0;
    let mut word = None;
    for (at, character) in rest.char_indices() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            '"' => {
                word = match word {
                    None => Some(at + 1),
                    Some(start) => {
                        if depth == 1 && rest[at + 1..].starts_with(':') {
                            names.push(rest[start..at].to_owned());
                        }
                        None
                    }
                };
            }
            _ => {}
        }
        if depth == 0 && character == '}' {
            break;
        }
    }
    names
}

#[test]
fn fields_stand_in_tritons_order() {
    let written = write(
        &from_text(
            r#"
            name: "m"
            output { reshape { } }
            instance_group { rate_limiter { resources { } } secondary_devices { } }
            optimization { graph { } cuda { graph_spec { } } execution_accelerators { cpu_execution_accelerator { } } }
            sequence_batching { direct { } control_input { control { } } state { initial_state { zero_data: true } } }
            model_warmup { inputs { key: "i" value { zero_data: true } } }
            model_operations { } model_transaction_policy { } model_repository_agents { } response_cache { }
            model_metrics { metric_control { metric_identifier { } histogram_options { } } }
            version_policy { latest { } }
            "#,
        ),
        1,
    )
    .unwrap();
    let split = |names: &str| -> Vec<String> { names.split_whitespace().map(str::to_owned).collect() };
    for (path, names) in [
        (
            &[][..],
            "name platform backend runtime version_policy max_batch_size input output batch_input batch_output \
             optimization sequence_batching instance_group default_model_filename cc_model_filenames metric_tags \
             parameters model_warmup model_operations model_transaction_policy model_repository_agents response_cache \
             model_metrics",
        ),
        (&["output"], "name data_type dims reshape label_filename is_shape_tensor is_non_linear_format_io"),
        (&["instance_group"], "name kind count rate_limiter gpus secondary_devices profile passive host_policy"),
        (&["instance_group", "rate_limiter"], "resources priority"),
        (&["instance_group", "resources"], "name global count"),
        (&["optimization"], "graph priority cuda execution_accelerators gather_kernel_buffer_threshold eager_batching"),
        (&["optimization", "cuda"], "graphs busy_wait_events graph_spec output_copy_stream"),
        (&["sequence_batching"], "direct max_sequence_idle_microseconds control_input state iterative_sequence"),
        (&["control_input", "control"], "kind int32_false_true fp32_false_true bool_false_true data_type"),
        (
            &["state"],
            "input_name output_name data_type dims initial_state use_same_buffer_for_input_output use_growable_memory",
        ),
        (&["state", "initial_state"], "data_type dims name zero_data"),
        (&["model_warmup"], "name batch_size inputs count"),
        (&["model_warmup", "i"], "data_type dims zero_data"),
        (&["model_metrics", "metric_control"], "metric_identifier histogram_options"),
    ] {
        assert_eq!(names_at(&written, path), split(names), "{path:?} in {written}");
    }
}

#[test]
fn wide_integers_are_numbers_at_the_listed_paths_and_strings_elsewhere() {
    let json = served(
        r#"
        input { dims: 9007199254740993 reshape { shape: -1 } }
        output { dims: -9223372036854775808 reshape { shape: 2 } }
        version_policy { specific { versions: [ 1, 9223372036854775807 ] } }
        dynamic_batching {
            max_queue_delay_microseconds: 18446744073709551615 priority_levels: 3 default_priority_level: 2
            default_queue_policy { default_timeout_microseconds: 4 }
            priority_queue_policy { key: 10 value { default_timeout_microseconds: 5 } }
            priority_queue_policy { key: 9 value { } }
        }
        model_warmup { inputs { key: "i" value { dims: [ 6 ] } } }
        instance_group { secondary_devices { device_id: 7 } }
        optimization { cuda { graph_spec { input { key: "i" value { dim: 8 } }
                                           graph_lower_bound { input { key: "i" value { dim: 9 } } } } } }
        "#,
    );
    let expected = [
        ("input/0/dims/0", json!(9007199254740993u64)),
        ("input/0/reshape/shape/0", json!(-1)),
        ("output/0/dims/0", json!(i64::MIN)),
        ("output/0/reshape/shape/0", json!(2)),
        ("version_policy/specific/versions", json!([1, i64::MAX])),
        ("dynamic_batching/max_queue_delay_microseconds", json!(u64::MAX)),
        ("dynamic_batching/priority_levels", json!(3)),
        ("dynamic_batching/default_priority_level", json!(2)),
        ("dynamic_batching/default_queue_policy/default_timeout_microseconds", json!(4)),
        ("dynamic_batching/priority_queue_policy/10/default_timeout_microseconds", json!(5)),
        ("dynamic_batching/priority_queue_policy/9/default_timeout_microseconds", json!(0)),
        ("dynamic_batching/priority_queue_policy/9/timeout_action", json!("REJECT")),
        ("dynamic_batching/priority_queue_policy/9/max_queue_size", json!(0)),
        ("model_warmup/0/inputs/i/dims/0", json!(6)),
        ("instance_group/0/secondary_devices/0/device_id", json!("7")),
        ("instance_group/0/secondary_devices/0/kind", json!("KIND_NVDLA")),
        ("optimization/cuda/graph_spec/0/input/i/dim/0", json!("8")),
        ("optimization/cuda/graph_spec/0/graph_lower_bound/input/i/dim/0", json!("9")),
    ];
    for (path, expected) in expected {
        assert_eq!(*at(&json, path), expected, "{path}");
    }
    let json = served(
        r#"sequence_batching { max_sequence_idle_microseconds: 1 direct { max_queue_delay_microseconds: 2 }
                               state { dims: 3 initial_state { dims: 4 zero_data: true } } }"#,
    );
    for (path, expected) in [
        ("sequence_batching/max_sequence_idle_microseconds", json!(1)),
        ("sequence_batching/direct/max_queue_delay_microseconds", json!(2)),
        ("sequence_batching/state/0/dims/0", json!(3)),
        ("sequence_batching/state/0/initial_state/0/dims/0", json!("4")),
        ("sequence_batching/state/0/initial_state/0/zero_data", json!(true)),
    ] {
        assert_eq!(*at(&json, path), expected, "{path}");
    }
    // Members of a oneof that are not set are not printed.
    assert!(json.pointer("/sequence_batching/oldest").is_none());
    assert!(json.pointer("/sequence_batching/state/0/initial_state/0/data_file").is_none());
    assert!(json.pointer("/dynamic_batching").is_none());
    let json = served("sequence_batching { oldest { max_queue_delay_microseconds: 2 } }");
    assert_eq!(*at(&json, "sequence_batching/oldest/max_queue_delay_microseconds"), json!(2));
    let json = served("ensemble_scheduling { step { model_version: -1 } }");
    assert_eq!(*at(&json, "ensemble_scheduling/step/0/model_version"), json!(-1));
}

#[test]
fn absent_messages_are_omitted_and_present_ones_are_not() {
    let json = served("name: \"m\" model_transaction_policy { } dynamic_batching { }");
    assert_eq!(*at(&json, "model_transaction_policy"), json!({"decoupled": false}));
    assert_eq!(*at(&json, "dynamic_batching/preferred_batch_size"), json!([]));
    assert_eq!(*at(&json, "dynamic_batching/priority_queue_policy"), json!({}));
    for absent in ["version_policy", "optimization", "response_cache", "model_metrics", "model_operations"] {
        assert!(json.get(absent).is_none(), "{absent}");
    }
    assert!(at(&json, "dynamic_batching").get("default_queue_policy").is_none());
}

#[test]
fn floats_are_printed_as_triton_prints_them() {
    let bucket = |value: f64| {
        use nereid_wire::inference::ModelMetrics;
        use nereid_wire::inference::model_metrics::MetricControl;
        use nereid_wire::inference::model_metrics::metric_control::{HistogramOptions, MetricOptions};
        let options = HistogramOptions { buckets: vec![value] };
        let control =
            MetricControl { metric_options: Some(MetricOptions::HistogramOptions(options)), ..Default::default() };
        let metrics = ModelMetrics { metric_control: vec![control] };
        let written = write(&ModelConfig { model_metrics: Some(metrics), ..Default::default() }, 1).unwrap();
        serde_json::from_str::<Json>(&written).unwrap();
        written.split_once("\"buckets\":[").unwrap().1.split_once(']').unwrap().0.to_owned()
    };
    for (value, expected) in [
        (0.0, "0"),
        (1.0, "1"),
        (-2.0, "-2"),
        (0.1, "0.1"),
        (2.5, "2.5"),
        (123456789012345.0, "123456789012345"),
        (1e15, "1000000000000000.0"),
        (1234567890123456.0, "1234567890123456"),
        (1e21, "1e21"),
        (1.5e300, "1.5e300"),
        (1e-6, "0.000001"),
        (1.5e-7, "1.5e-7"),
        (f64::INFINITY, "\"Infinity\""),
        (f64::NEG_INFINITY, "\"-Infinity\""),
        (f64::NAN, "\"NaN\""),
    ] {
        assert_eq!(bucket(value), expected, "{value}");
    }
    let slots = |text: &str| {
        let text = format!("sequence_batching {{ direct {{ minimum_slot_utilization: {text} }} }}");
        let written = write(&from_text(&text), 1).unwrap();
        written.split_once("\"minimum_slot_utilization\":").unwrap().1.split_once('}').unwrap().0.to_owned()
    };
    for (text, expected) in [
        ("0", "0"),
        ("1", "1"),
        ("0.1", "0.1"),
        ("0.333333333", "0.33333334"),
        ("1e6", "1000000.0"),
        ("999999", "999999"),
    ] {
        assert_eq!(slots(text), expected, "{text}");
    }
}

#[test]
fn everything_served_can_be_read_back() {
    let mut random = Random(3);
    for round in 0..1000 {
        let config = from_dynamic(&random_message(&mut random, descriptor(), 0)).unwrap();
        let written = write(&config, 1).unwrap();
        let read = if written.is_empty() { Ok(ModelConfig::default()) } else { read(written.as_bytes()) };
        let read = read.unwrap_or_else(|error| panic!("round {round}: {error}\n{written}"));
        // The text does not distinguish -0 from 0, which compare equal.
        assert_eq!(read, config, "round {round}\n{written}");
    }
}

fn overridden(text: &str) -> Result<ModelConfig, String> {
    read(text.as_bytes()).map_err(|error| error.to_string())
}

#[test]
fn overrides_in_both_spellings() {
    let expected = from_text(
        r#"name: "m" max_batch_size: 8 input { name: "I" data_type: TYPE_FP32 dims: [ 1, -1 ] optional: true }
           parameters { key: "max_batch_size" value { string_value: "v" } }
           dynamic_batching { priority_queue_policy { key: 2 value { max_queue_size: 3 } } }"#,
    );
    for text in [
        r#"{"name":"m","max_batch_size":8,"input":[{"name":"I","data_type":"TYPE_FP32","dims":[1,-1],"optional":true}],
            "parameters":{"max_batch_size":{"string_value":"v"}},
            "dynamic_batching":{"priority_queue_policy":{"2":{"max_queue_size":3}}}}"#,
        r#"{"name":"m","maxBatchSize":"8","input":[{"name":"I","dataType":"type_fp32","dims":["1","-1"],"optional":true}
            ],"parameters":{"max_batch_size":{"stringValue":"v"}},
            "dynamicBatching":{"priorityQueuePolicy":{"2":{"maxQueueSize":3.0}}}}"#,
        r#" {"name":"m","maxBatchSize":8e0,"input":[{"name":"I","dataType":11,"dims":[1.0,-1],"optional":true}],
            "output":null,"backend":null,"sequence_batching":null,
            "parameters":{"max_batch_size":{"stringValue":"v"}},
            "dynamicBatching":{"priorityQueuePolicy":{"2":{"maxQueueSize":3}}}} "#,
    ] {
        assert_eq!(overridden(text), Ok(expected.clone()), "{text}");
    }
    assert_eq!(overridden("{}"), Ok(ModelConfig::default()));
}

#[test]
fn overrides_as_protobuf_takes_them() {
    let expected = from_text(
        r#"name: "m" max_batch_size: 2 input { name: "I" data_type: TYPE_INT32 dims: [ 1, 2 ] }
           parameters { key: "a" value { string_value: "x" } } parameters { key: "b" value { } }
           sequence_batching { direct { max_queue_delay_microseconds: 3 } max_sequence_idle_microseconds: 4 }"#,
    );
    let sequence = "sequence_batching:{direct:{max_queue_delay_microseconds:3},max_sequence_idle_microseconds:4}";
    let parameters = "parameters:{a:{string_value:'x',},'b':null,},";
    for text in [
        // One value for a list, names without quotes, commas at the ends.
        "{name:'m',max_batch_size:2,input:{name:'I',data_type:'TYPE_INT32',dims:[1,2,],},",
        // A repeated member wins, or is added to a list; a list in a list is merged into it.
        "{name:'x','name':\"m\",maxBatchSize:1,max_batch_size:'2',input:[{name:'I',data_type:'8',dims:1,dims:[[2]]}],",
        "{name:'m',max_batch_size:2,input:[{name:'I',data_type:'type-int32',dims:[null,1,2]},null],",
    ] {
        let text = format!("{text}{parameters}{sequence},}}");
        assert_eq!(overridden(&text), Ok(expected.clone()), "{text}");
    }
    let merged = overridden("{optimization:{priority:'PRIORITY_MAX'},optimization:{eager_batching:'true'}}");
    assert_eq!(merged, Ok(from_text("optimization { priority: PRIORITY_MAX eager_batching: true }")));
    assert_eq!(overridden("{input:{}}"), Ok(from_text("input { }")), "an empty object is an object all the same");
}

#[test]
fn overrides_that_are_refused() {
    for (text, expected) in [
        (r#"{"max_batchsize":8}"#, "unknown field \"max_batchsize\" in ModelConfig; did you mean \"max_batch_size\"?"),
        (r#"{"input":[{},{"x_y":1}]}"#, "input[1]: unknown field \"x_y\" in ModelInput"),
        (
            r#"{"dynamic_batching":{},"sequenceBatching":{}}"#,
            "\"sequenceBatching\" excludes \"dynamic_batching\": only one of them is allowed",
        ),
        ("[]", "expected an object, got an array"),
        ("null", "expected an object, got null"),
        (r#"{"input":5}"#, "input[0]: expected an object, got a number"),
        (r#"{"max_batch_size":[1]}"#, "max_batch_size: expected an integer, got an array"),
        (r#"{"dynamic_batching":[{}]}"#, "dynamic_batching: expected an object, got an array"),
        (
            r#"{"dynamic_batching":{},"dynamicBatching":{}}"#,
            "\"dynamicBatching\" excludes \"dynamic_batching\": only one of them is allowed",
        ),
        (r#"{"parameters":{"a":{},"a":{}}}"#, "parameters[\"a\"]: Repeated map key: 'a' is already set."),
        (r#"{"foo":null}"#, "unknown field \"foo\" in ModelConfig"),
        (r#"{"input":[{"dims":[1,"x"]}]}"#, "input[0].dims[1]: \"x\" is not an integer"),
        (r#"{"input":[{"dims":[1.5]}]}"#, "input[0].dims[0]: 1.5 is not an integer"),
        (r#"{"input":[{"dims":[9223372036854775808]}]}"#, "input[0].dims[0]: 9223372036854775808 is out of range"),
        (r#"{"input":[{"dims":[1e30]}]}"#, "input[0].dims[0]: 1e+30 is not an integer"),
        (r#"{"input":[{"dims":[true]}]}"#, "input[0].dims[0]: expected an integer, got a boolean"),
        (r#"{"max_batch_size":2147483648}"#, "max_batch_size: 2147483648 is out of range"),
        (r#"{"max_batch_size":" 8"}"#, "max_batch_size: \" 8\" is not an integer"),
        (r#"{"name":1}"#, "name: expected a string, got a number"),
        (r#"{"input":[{"optional":"yes"}]}"#, "input[0].optional: expected a boolean, got a string"),
        (r#"{"input":[{"optional":1}]}"#, "input[0].optional: expected a boolean, got a number"),
        (
            r#"{"input":[{"data_type":"TYPE_FP31"}]}"#,
            "input[0].data_type: \"TYPE_FP31\" is not a value of DataType; did you mean \"TYPE_FP32\" or \"TYPE_FP16\" \
             or \"TYPE_FP64\"?",
        ),
        (r#"{"input":[{"data_type":99}]}"#, "input[0].data_type: 99 is not a value of DataType"),
        (r#"{"input":[{"data_type":[]}]}"#, "input[0].data_type: expected a value of DataType, got an array"),
        (r#"{"parameters":[]}"#, "parameters: expected an object, got an array"),
        (r#"{"parameters":{"a":"b"}}"#, "parameters[\"a\"]: expected an object, got a string"),
        (
            r#"{"dynamic_batching":{"priority_queue_policy":{"-1":{}}}}"#,
            "dynamic_batching.priority_queue_policy[\"-1\"]: -1 is out of range",
        ),
        (
            r#"{"sequence_batching":{"direct":{"minimum_slot_utilization":"inf"}}}"#,
            "sequence_batching.direct.minimum_slot_utilization: \"inf\" is not a number",
        ),
        (
            r#"{"sequence_batching":{"direct":{"minimum_slot_utilization":1e300}}}"#,
            "sequence_batching.direct.minimum_slot_utilization: 1e300 is out of range",
        ),
    ] {
        assert_eq!(overridden(text), Err(expected.to_owned()), "{text}");
    }
    for text in ["", "{", "{} {}", "{\"name\":\"\\ud800\"}", "{\"input\":[,]}"] {
        assert!(overridden(text).is_err(), "{text}");
    }
    assert!(read(b"{\"name\":\"\xff\"}").is_err());
    assert!(overridden(&"[".repeat(100_000)).is_err());
    let long = format!("{{\"name\":\"{}\"}}", "x".repeat(MAX_TEXT_BYTES));
    assert!(overridden(&long).unwrap_err().contains("exceeds the maximum of 4194304 bytes"));
    let error: Error = read(b"{\"x\":1}").unwrap_err().into();
    assert_eq!(error, Error::invalid("Invalid config override: unknown field \"x\" in ModelConfig"));
}

#[test]
fn every_prefix_of_an_override_is_handled() {
    let text =
        write(&from_text("name: \"é\" input { dims: [ 1, 2 ] } parameters { key: \"k\" value { } }"), 1).unwrap();
    for end in 0..text.len() {
        assert!(read(&text.as_bytes()[..end]).is_err(), "{end}");
    }
    assert!(read(text.as_bytes()).is_ok());
}
