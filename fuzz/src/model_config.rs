//! Configurations of models: parsed, printed, and parsed again.
//!
//! What is printed is read back as the same message, by the server and by prost-reflect; the JSON that is served is
//! read back as the same configuration. No configuration makes a later step panic.

use nereid_model_config::{ModelSpec, SupportedGpus, json, normalize, text, validate};
use prost::Message as _;
use prost_reflect::DynamicMessage;

use crate::{Target, split};

pub const TARGET: Target = Target {
    name: "model_config",
    run,
    runs: 6_000,
    words: &[
        "name: \"m\"\n",
        "input [ { name: \"I\" data_type: TYPE_FP32 dims: [ -1 ] } ]\n",
        "output { ",
        "max_batch_size: 8 ",
        "dynamic_batching { }",
        "sequence_batching { direct { } }",
        "ensemble_scheduling { step [ { ",
        "parameters { key: \"",
        "value { string_value: \"",
        "instance_group [ { kind: KIND_GPU count: 2 gpus: [ 0 ] } ]",
        "version_policy: { all { } }",
        "version_policy: { specific { versions: 1, 2 } }",
        "dims: 3, 4",
        "label_filename: 'a'",
        "reshape { shape: [ ] }",
        "{",
        "}",
        "[",
        "]",
        "<",
        ">",
        ":",
        ",",
        ";",
        "#",
        "\n",
        "\"",
        "'",
        "\\n",
        "\\u00e4",
        "\\377",
        "\\x41",
        "0x7f",
        "017",
        "-1",
        "1.5f",
        "inf",
        "nan",
        "TYPE_STRING",
        "true",
        "t",
        "optimization { ",
        "model_warmup { name: \"w\" inputs { key: ",
    ],
    seeds,
};

fn run(data: &[u8]) -> bool {
    let (_, input) = split(data);
    let shown = || input.escape_ascii();
    overrides(input);
    // Overrides are JSON; what they say is printed like anything else.
    let message = match (nereid_model_config::parse("config.pbtxt", input), json::read(input)) {
        (Ok(document), _) => document.message,
        (Err(first), other) => {
            let all = nereid_model_config::parse_all("config.pbtxt", input).expect_err("a text with an error");
            assert_eq!(all.first(), Some(&first), "{}", shown());
            let Ok(config) = other else { return false };
            nereid_model_config::to_dynamic(&config).expect("a configuration")
        }
    };
    let printed = text::print(&message);
    match nereid_model_config::parse("printed", printed.as_bytes()) {
        Ok(again) => {
            assert_eq!(encoded(&again.message), encoded(&message), "{printed}: {}", shown());
            assert_eq!(text::print(&again.message), printed, "{}", shown());
        }
        Err(error) => panic!("{error}\n{printed}: {}", shown()),
    }
    match DynamicMessage::parse_text_format(nereid_model_config::descriptor().clone(), &printed) {
        Ok(theirs) => assert_eq!(encoded(&theirs), encoded(&message), "{printed}"),
        Err(error) => panic!("prost-reflect: {error}\n{printed}: {}", shown()),
    }
    let mut config = from_dynamic(&message);
    let served = json::write(&config, 1).expect("there is a version 1");
    if !served.is_empty() {
        match json::read(served.as_bytes()) {
            Ok(again) => assert_eq!(again.encode_to_vec(), config.encode_to_vec(), "{served}: {}", shown()),
            Err(error) => panic!("{error}\n{served}: {}", shown()),
        }
    }
    normalize::fill_defaults(&mut config);
    let before = config.encode_to_vec();
    let mut twice = config.clone();
    normalize::fill_defaults(&mut twice);
    assert_eq!(twice.encode_to_vec(), before, "defaults are filled once: {}", shown());
    // What is refused is refused; nothing panics.
    let _ = validate::at_poll(&config, "m", true);
    let _ = validate::at_load(&config, &SupportedGpus::NoDriver);
    let _ = ModelSpec::new(config);
    true
}

/// A JSON text that prost-reflect takes is taken, as the same message.
fn overrides(input: &[u8]) {
    let mut theirs = serde_json::Deserializer::from_slice(input);
    let read = DynamicMessage::deserialize(nereid_model_config::descriptor().clone(), &mut theirs);
    let (Ok(theirs), Ok(())) = (read, theirs.end()) else { return };
    match json::read(input) {
        Ok(ours) => {
            assert_eq!(ours.encode_to_vec(), encoded(&theirs), "{}", input.escape_ascii());
        }
        // Texts of numbers are read by Rust there, which takes signs and zeros in front.
        Err(error) if error.message.ends_with("is not an integer") => {}
        Err(error) => panic!("{error}, but prost-reflect finds {theirs}: {}", input.escape_ascii()),
    }
}

/// The bytes of the server's own type, which holds the entries of maps by their keys: those of a dynamic message have
/// them in any order, and in another one each time. Bytes, since a NaN is not equal to itself.
fn encoded(message: &DynamicMessage) -> Vec<u8> {
    from_dynamic(message).encode_to_vec()
}

fn from_dynamic(message: &DynamicMessage) -> nereid_wire::inference::ModelConfig {
    nereid_model_config::from_dynamic(message).expect("a message of this type")
}

fn seeds() -> Vec<Vec<u8>> {
    let texts = [
        "name: \"identity\"\nbackend: \"identity\"\nmax_batch_size: 8\ninput [ { name: \"INPUT0\" data_type: TYPE_FP32 dims: [ -1 ] } ]\n\
         output [ { name: \"OUTPUT0\" data_type: TYPE_FP32 dims: [ -1 ] label_filename: \"labels.txt\" } ]\n\
         dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 100 }\n",
        "name: \"s\" platform: \"onnxruntime_onnx\" sequence_batching { max_sequence_idle_microseconds: 5000000 control_input [ {\n\
         name: \"START\" control [ { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } ] } ]\n\
         state [ { input_name: \"a\" output_name: \"b\" data_type: TYPE_INT32 dims: [ -1 ] initial_state { data_type: TYPE_INT32\n\
         dims: [ 1 ] zero_data: true name: \"z\" } } ] oldest { max_candidate_sequences: 4 } }\n",
        "name: \"e\" platform: \"ensemble\" ensemble_scheduling { step [ { model_name: \"a\" model_version: -1 input_map { key: \"X\" value: \"Y\" }\n\
         output_map { key: \"O\" value: \"P\" } } ] }\ninput { name: \"Y\" data_type: TYPE_STRING dims: 1 reshape { shape: [ ] } }\n",
        "parameters: { key: \"threads\" value: { string_value: \"4\\n\\\"\\303\\244\" } }\n# a comment\n\
         instance_group [ { count: 2 kind: KIND_GPU gpus: [ 0, 1 ] rate_limiter { resources [ { name: \"R\" count: 1 global: true } ] priority: 2 } } ]\n\
         version_policy: { specific { versions: [ 1, 3 ] } }\noptimization { priority: PRIORITY_MAX execution_accelerators {\n\
         gpu_execution_accelerator [ { name: \"tensorrt\" parameters { key: \"precision_mode\" value: \"FP16\" } } ] } }\n",
        "model_warmup [ { name: \"w\" batch_size: 1 inputs { key: \"I\" value { data_type: TYPE_FP32 dims: [ 4 ] random_data: true } } count: 3 } ]\n\
         response_cache { enable: true } model_transaction_policy { decoupled: true }\n\
         batch_input [ { kind: BATCH_ELEMENT_COUNT target_name: [ \"C\" ] data_type: TYPE_INT32 source_input: [ \"I\" ] } ]\n\
         metric_tags { key: 'a' value: 'b' } cc_model_filenames { key: \"8.0\" value: \"m.plan\" } default_model_filename: 'm'\n",
        "{\"name\":\"j\",\"max_batch_size\":4,\"input\":[{\"name\":\"I\",\"data_type\":\"TYPE_FP32\",\"dims\":[\"-1\",4]}],\"parameters\":{\"a\":{\"string_value\":\"b\"}}}",
    ];
    texts.iter().zip(1u32..).map(|(text, n)| [&n.to_be_bytes()[..], text.as_bytes()].concat()).collect()
}
