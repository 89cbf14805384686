//! How long one request may keep a shard: no turn uses more CPU time than its budget, whatever shape the request has.
//!
//! The server measures its turns itself (`NEREID_TURN_BUDGET_US`) and reports those that are too long. The budget is
//! that of an optimised build, scaled by what reading JSON costs in this one; a shape fails only if each of several
//! attempts had a long turn, because a hypervisor's pauses look like CPU time.

use nereid_memory::Slice;
use nereid_protocol::json::Document;
use nereid_wire::inference::infer_parameter::ParameterChoice;
use nereid_wire::inference::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use nereid_wire::inference::{InferParameter, InferTensorContents, ModelInferRequest, ModelStreamInferResponse};
use prost::Message;
use rustix::time::{ClockId, clock_gettime};

use nereid_test_support::grpc::{Grpc, SERVICE, code, decode, frame_bytes};
use nereid_test_support::http::{Peer, infer_with_tail, request};
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::Server;
use nereid_test_support::variant::usual;

/// Microseconds of CPU time that a turn of an optimised build may use.
const BUDGET_US: u64 = 2000;
/// What a value of JSON costs such a build, in nanoseconds.
const VALUE_NS: u64 = 10;
const ATTEMPTS: usize = 20;

fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// How much slower this build is than an optimised one.
fn slowness() -> u64 {
    const VALUES: usize = 50_000;
    let text = Slice::copy_of(format!("[{}1]", "1,".repeat(VALUES - 1)).as_bytes());
    let costs = (0..3).map(|_| {
        let before = cpu_ns();
        Document::parse(text.clone()).expect("a document");
        (cpu_ns() - before) / VALUES as u64
    });
    costs.min().unwrap_or(0).div_ceil(VALUE_NS).clamp(1, 100)
}

/// What one shape is, and how it is to be answered.
enum Shape {
    /// JSON for `infer`: status, and a part of the text.
    Http(String, u16, &'static str),
    /// Bytes as they are, answered with one of these statuses.
    Raw(Vec<u8>, &'static [u16]),
    Grpc(ModelInferRequest, u32, &'static str),
    /// The one message of a stream, and a part of its answer's error.
    Stream(ModelInferRequest, &'static str),
    /// A message of another RPC.
    Call(&'static str, Vec<u8>, u32, &'static str),
    /// JSON for `generate`.
    Generate(String, u16, &'static str),
}

fn input(name: &str, datatype: &str, count: i64) -> InferInputTensor {
    InferInputTensor { name: name.into(), datatype: datatype.into(), shape: vec![count], ..Default::default() }
}

fn plain() -> ModelInferRequest {
    ModelInferRequest {
        model_name: "plain".into(),
        inputs: vec![input("INPUT0", "INT32", 1)],
        outputs: vec![InferRequestedOutputTensor { name: "OUTPUT0".into(), ..Default::default() }],
        raw_input_contents: vec![vec![7u8; 4].into()],
        ..Default::default()
    }
}

fn text_parameter(text: String) -> InferParameter {
    InferParameter { parameter_choice: Some(ParameterChoice::StringParam(text)) }
}

/// A message whose first field has so many bytes.
fn long_name(len: u64) -> Vec<u8> {
    let mut message = vec![0x0a];
    prost::encoding::encode_varint(len, &mut message);
    message.resize(message.len() + len as usize, b'n');
    message
}

fn grpc_shapes() -> Vec<(&'static str, Shape)> {
    let outputs = |count: usize| {
        let output = |at| InferRequestedOutputTensor { name: format!("O{at:06}"), ..Default::default() };
        (0..count).map(output).collect::<Vec<_>>()
    };
    let inputs: Vec<_> = (0..60_000).map(|at| input(&format!("I{at:06}"), "INT32", 1)).collect();
    let few: Vec<_> = (0..18).map(|at| input(&format!("{at}{}", "x".repeat(200_000)), "INT32", 1)).collect();
    let keys = |count: usize, len: usize| (0..count).map(move |at| format!("{}{at:06}", "k".repeat(len)));
    let parameters = |count, len| keys(count, len).map(|key| (key, text_parameter("v".into()))).collect();
    let strings = |count: usize, bytes: Vec<u8>| ModelInferRequest {
        inputs: vec![input("INPUT0", "INT32", 1), input("INPUT1", "BYTES", count as i64)],
        raw_input_contents: vec![vec![7u8; 4].into(), bytes.into()],
        ..plain()
    };
    let classes = |count: i64| {
        let wanted = InferParameter { parameter_choice: Some(ParameterChoice::Int64Param(count)) };
        let output = InferRequestedOutputTensor {
            name: "OUTPUT0".into(),
            parameters: [("classification".into(), wanted)].into(),
        };
        let numbers = (0..1_000_000u32).flat_map(|at| at.wrapping_mul(2_654_435_761).to_le_bytes());
        ModelInferRequest {
            inputs: vec![input("INPUT0", "INT32", 1_000_000)],
            outputs: vec![output],
            raw_input_contents: vec![numbers.collect::<Vec<u8>>().into()],
            ..plain()
        }
    };
    let refused = code::INVALID_ARGUMENT;
    let narrow = ModelInferRequest {
        model_name: "narrow".into(),
        inputs: vec![InferInputTensor {
            contents: Some(InferTensorContents { int_contents: vec![7; 4 << 20], ..Default::default() }),
            ..input("INPUT0", "INT8", 4 << 20)
        }],
        ..Default::default()
    };
    // A map of many names, each of which would become an entry.
    let setting = |at: u32| [&[0x0a, 8, 0x0a, 4][..], &(at | 0x2020_2020).to_le_bytes(), &[0x12, 0]].concat();
    let settings: Vec<u8> = (0..200_000).flat_map(setting).collect();
    vec![
        ("narrow contents", Shape::Grpc(narrow, 0, "")),
        ("the best of many classes", Shape::Grpc(classes(3), 0, "")),
        ("many classes of a stream", Shape::Stream(classes(100_000), "")),
        ("strings of a stream", Shape::Stream(strings(4 << 20, vec![0; 16 << 20]), "")),
        ("broken strings of a stream", Shape::Stream(strings(1 << 20, vec![0; (4 << 20) - 4]), "string elements")),
        ("trace settings", Shape::Call("TraceSetting", settings.clone(), refused, "at most 65536 are read")),
        ("log settings", Shape::Call("LogSettings", settings, refused, "at most 65536 are read")),
        ("a long name", Shape::Call("ModelConfig", long_name(16 << 20), refused, "at most 65536 are read")),
        ("inputs", Shape::Grpc(ModelInferRequest { inputs, ..plain() }, refused, "but got 60000 inputs")),
        ("outputs", Shape::Grpc(ModelInferRequest { outputs: outputs(60_000), ..plain() }, refused, "60000 outputs")),
        (
            "long names",
            Shape::Grpc(ModelInferRequest { inputs: few, ..plain() }, refused, "unexpected inference input"),
        ),
        (
            "parameters",
            Shape::Grpc(
                ModelInferRequest { parameters: parameters(60_000, 1), ..plain() },
                code::RESOURCE_EXHAUSTED,
                "4096",
            ),
        ),
        ("long keys", Shape::Grpc(ModelInferRequest { parameters: parameters(3_000, 300), ..plain() }, 0, "")),
        (
            "a long parameter",
            Shape::Grpc(
                ModelInferRequest {
                    parameters: [("k".into(), text_parameter("é".repeat(2 << 20)))].into(), ..plain()
                },
                0,
                "",
            ),
        ),
        ("strings", Shape::Grpc(strings(1 << 20, vec![0; 4 << 20]), 0, "")),
        ("broken strings", Shape::Grpc(strings(1 << 20, vec![0; (4 << 20) - 4]), refused, "string elements")),
        (
            "dimensions",
            Shape::Grpc(
                ModelInferRequest {
                    inputs: vec![InferInputTensor { shape: vec![1; 500_000], ..input("INPUT0", "INT32", 1) }],
                    ..plain()
                },
                refused,
                "more than 256 dimensions",
            ),
        ),
    ]
}

fn http_shapes() -> Vec<(&'static str, Shape)> {
    let tensor = |at: usize| format!(r#"{{"name":"I{at:06}","datatype":"INT32","shape":[1],"data":[1]}}"#);
    let tensors = |count: usize| (0..count).map(tensor).collect::<Vec<_>>().join(",");
    let good = r#"{"name":"INPUT0","datatype":"INT32","shape":[1],"data":[1]}"#;
    let with = |more: &str| format!(r#"{{{more}"inputs":[{good}],"outputs":[{{"name":"OUTPUT0"}}]}}"#);
    let members = |count: usize| (0..count).map(|at| format!(r#""m{at}":0,"#)).collect::<String>();
    let outputs: Vec<_> = (0..10_000).map(|at| format!(r#"{{"name":"O{at}"}}"#)).collect();
    let strings = |data: &str, count: usize| {
        format!(
            r#"{{"inputs":[{good},{{"name":"INPUT1","datatype":"BYTES","shape":[{count}],"data":[{data}]}}],"outputs":[{{"name":"OUTPUT0"}}]}}"#
        )
    };
    let fields: String = (0..100).map(|at| format!("X-{at}: {}\r\n", "v".repeat(500))).collect();
    let headers = [("Inference-Header-Content-Length", "0")];
    let raw = request("POST", "/v2/models/text/infer", &headers, &vec![b's'; 32 << 20]);
    let mut tail = vec![0; 8 + (32 << 20)];
    tail[4..8].copy_from_slice(&(32u32 << 20).to_le_bytes());
    let of_tail = |name, datatype, bytes| {
        format!(
            r#"{{"name":"{name}","datatype":"{datatype}","shape":[1],"parameters":{{"binary_data_size":{bytes}}}}}"#
        )
    };
    let (number, text) = (of_tail("INPUT0", "INT32", 4), of_tail("INPUT1", "BYTES", tail.len() - 4));
    let json = format!(r#"{{"inputs":[{number},{text}],"parameters":{{"binary_data_output":true}}}}"#);
    let odd = infer_with_tail("/v2/models/plain/infer", &json, &tail);
    let head = format!("GET /v2/health/ready HTTP/1.1\r\nHost: t\r\n{fields}\r\n").into_bytes();
    vec![
        ("4,000 tensors", Shape::Http(format!(r#"{{"inputs":[{}]}}"#, tensors(4_000)), 400, "but got 4000 inputs")),
        ("60,000 tensors", Shape::Http(format!(r#"{{"inputs":[{}]}}"#, tensors(60_000)), 400, "more than 65536")),
        (
            "outputs",
            Shape::Http(format!(r#"{{"inputs":[{good}],"outputs":[{}]}}"#, outputs.join(",")), 400, "10000 outputs"),
        ),
        ("a wide object", Shape::Http(with(&members(30_000)), 200, "OUTPUT0")),
        ("a wider object", Shape::Http(with(&members(200_000)), 400, "more than 65536 values")),
        (
            "parameters",
            Shape::Http(with(&format!(r#""parameters":{{{}"z":1}},"#, members(20_000))), 400, "20001 parameters"),
        ),
        (
            "depth",
            Shape::Http(with(&format!(r#""deep":{}{},"#, "[".repeat(30_000), "]".repeat(30_000))), 200, "OUTPUT0"),
        ),
        (
            "depth in data",
            Shape::Http(strings(&format!("{}{}", "[".repeat(1 << 20), "]".repeat(1 << 20)), 1), 400, "nesting depth"),
        ),
        ("blanks", Shape::Http(with(&" ".repeat(16 << 20)), 200, "OUTPUT0")),
        ("blanks in data", Shape::Http(strings(&format!("{}\"a\"", " ".repeat(16 << 20)), 1), 200, "OUTPUT0")),
        ("a long string", Shape::Http(strings(&format!("\"{}\"", "s".repeat(16 << 20)), 1), 200, "OUTPUT0")),
        ("a long escaped string", Shape::Http(strings(&format!("\"{}\"", r"\n".repeat(4 << 20)), 1), 200, "OUTPUT0")),
        ("many strings", Shape::Http(strings(&vec![r#""""#; 1 << 20].join(","), 1 << 20), 200, "OUTPUT0")),
        ("a long number", Shape::Http(with(&format!(r#""n":{},"#, "1".repeat(4 << 20))), 500, "Number too big")),
        ("long texts", Shape::Http(with(&format!(r#""id":"{}","#, "i".repeat(16 << 20))), 400, "bytes of names")),
        ("headers", Shape::Raw(head, &[200])),
        ("a string as the body", Shape::Raw(raw, &[200])),
        ("a tensor at an odd place", Shape::Raw(odd, &[200])),
        (
            "a text to generate from",
            Shape::Generate(format!(r#"{{"INPUT0":"{}"}}"#, r"\n".repeat(8 << 20)), 200, r"\n"),
        ),
        (
            "a text that is no tensor",
            Shape::Generate(format!(r#"{{"INPUT0":"a","x":"{}"}}"#, "x".repeat(16 << 20)), 400, "bytes of names"),
        ),
        ("a long name", Shape::Generate(format!(r#"{{"{}":1}}"#, r"\n".repeat(8 << 20)), 400, "bytes of names")),
    ]
}

/// Sends one request and checks its answer.
fn ask(server: &Server, name: &str, shape: &Shape) {
    match shape {
        Shape::Http(json, status, part) => {
            let bytes = request("POST", "/v2/models/plain/infer", &[], json.as_bytes());
            let mut peer = Peer::connect(server.http);
            peer.try_send(&bytes);
            let answer = peer.answer();
            let text: String = answer.text().chars().take(300).collect();
            assert!(answer.status == *status && answer.text().contains(part), "{name}: {} {text}", answer.status);
        }
        Shape::Raw(bytes, statuses) => {
            let answer = Peer::connect(server.http).send(bytes).answer();
            assert!(statuses.contains(&answer.status), "{name}: {}", answer.status);
        }
        Shape::Grpc(message, expected, part) => {
            call(server, name, "ModelInfer", &message.encode_to_vec(), *expected, part)
        }
        Shape::Call(rpc, message, expected, part) => call(server, name, rpc, message, *expected, part),
        Shape::Stream(message, part) => {
            let framed = frame_bytes(0, &message.encode_to_vec());
            let reply = Grpc::connect(server.grpc).exchange(&format!("{SERVICE}ModelStreamInfer"), &[], &[framed]);
            let answer: ModelStreamInferResponse = decode(reply.messages.first().expect("an answer"));
            let fits = answer.error_message.is_empty() == part.is_empty() && answer.error_message.contains(part);
            assert!(fits && reply.messages.len() == 1, "{name}: {:?}", answer.error_message);
        }
        Shape::Generate(json, status, part) => {
            let mut peer = Peer::connect(server.http);
            peer.try_send(&request("POST", "/v2/models/text/generate", &[], json.as_bytes()));
            let answer = peer.answer();
            let text: String = answer.text().chars().take(300).collect();
            assert!(answer.status == *status && text.contains(part), "{name}: {} {text}", answer.status);
        }
    }
}

fn call(server: &Server, name: &str, rpc: &str, message: &[u8], expected: u32, part: &str) {
    let reply = Grpc::connect(server.grpc).exchange(&format!("{SERVICE}{rpc}"), &[], &[frame_bytes(0, message)]);
    let text: String = reply.status.message.chars().take(300).collect();
    let fits = reply.status.code == expected && reply.status.message.contains(part);
    assert!(fits, "{name}: {:?} {text}", reply.status.code);
}

/// The long turns so far, once everything is in the log that happened before.
fn long_turns(server: &Server, marker: &mut usize) -> Vec<String> {
    *marker += 1;
    let path = format!("/v2/models/marker-{marker}-/ready");
    Peer::connect(server.http).get(&path);
    server.wait_for_log(&path);
    let log = server.log();
    log.lines().filter(|line| line.contains("a turn used")).map(str::to_owned).collect()
}

/// What a line of the log says of a turn.
fn used_us(turn: &str) -> u64 {
    let number = turn.split_once("a turn used ").and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
    number.unwrap_or_else(|| panic!("no number in {turn:?}"))
}

#[test]
fn no_shape_of_a_request_keeps_a_shard() {
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("INT32", "-1"), Pair::new("BYTES", "-1").optional()]);
    repository.identity("narrow", 0, &[Pair::new("INT8", "-1")]);
    repository.identity("text", 0, &[Pair::new("BYTES", "1")]);
    let slowness_at_first = slowness();
    let budget_us = (BUDGET_US * slowness_at_first).to_string();
    let server = Server::start_in(
        usual(),
        repository.path(),
        &["--log-verbose=1", "--run-to-completion=off"],
        "/v2/health/ready",
        &[("NEREID_TURN_BUDGET_US", &budget_us)],
    );
    let mut marker = 0;
    let mut seen = long_turns(&server, &mut marker).len();
    let mut slow = Vec::new();
    for (name, shape) in grpc_shapes().iter().chain(&http_shapes()) {
        for attempt in 1..=ATTEMPTS {
            ask(&server, name, shape);
            let turns = long_turns(&server, &mut marker);
            // The machine may have become slower meanwhile.
            let budget_now_us = BUDGET_US * slowness().max(slowness_at_first);
            let new: Vec<_> =
                turns.get(seen..).unwrap_or_default().iter().filter(|turn| used_us(turn) > budget_now_us).collect();
            seen = turns.len();
            if new.is_empty() {
                break;
            }
            if attempt == ATTEMPTS {
                slow.push(format!("{name}, beyond {budget_now_us} us: {new:?}"));
            }
        }
    }
    assert!(slow.is_empty(), "more than {budget_us} us of CPU time in a turn:\n{}", slow.join("\n"));
    server.stop();
}
