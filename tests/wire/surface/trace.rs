//! Traces in files, and their settings (contract/metrics.md section 4, contract/http.md section 3,
//! contract/grpc.md section 6).

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bytes::Bytes;
use nereid_wire::inference::model_infer_request::InferInputTensor;
use nereid_wire::inference::trace_setting_request::SettingValue;
use nereid_wire::inference::{ModelInferRequest, ModelInferResponse, TraceSettingRequest, TraceSettingResponse};
use serde_json::{Value, json};

use nereid_test_support::backend;
use nereid_test_support::grpc::{Grpc, SERVICE, Status, code, frame};
use nereid_test_support::http::{Answer, Peer, request};
use nereid_test_support::python::Python;
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::{PATIENCE, Server};
use nereid_test_support::variant::{self, each, usual};

const HTTP: [&str; 4] = ["HTTP_RECV_START", "HTTP_RECV_END", "HTTP_SEND_START", "HTTP_SEND_END"];
const GRPC: [&str; 4] = ["GRPC_WAITREAD_START", "GRPC_WAITREAD_END", "GRPC_SEND_START", "GRPC_SEND_END"];
const COMPUTE: [&str; 4] = ["COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END"];

/// A directory for trace files.
struct Files(Repository);

impl Files {
    fn new() -> Files {
        Files(Repository::new())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Flags that have every request traced into `t.json`.
    fn flags(&self, level: &str) -> Vec<String> {
        vec![
            format!("--trace-config=level={level}"),
            "--trace-config=rate=1".to_owned(),
            format!("--trace-config=triton,file={}", self.path("t.json").display()),
        ]
    }

    /// The entries of a file that is complete.
    fn entries(&self, name: &str) -> Vec<Value> {
        let path = self.path(name);
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        let value: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path:?}: {error}\n{text}"));
        value.as_array().expect("an array").clone()
    }

    /// Waits until a file is there and complete, which an indexed one is while the server runs.
    fn wait_for(&self, name: &str) -> Vec<Value> {
        let started = Instant::now();
        loop {
            let text = std::fs::read_to_string(self.path(name)).unwrap_or_default();
            if let Ok(value) = serde_json::from_str::<Vec<Value>>(&text) {
                return value;
            }
            assert!(started.elapsed() < PATIENCE, "no complete file {name}: {text:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.path()).expect("the directory of trace files");
        let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

fn start(repository: &Repository, flags: &[String]) -> Server {
    start_as(usual(), repository, flags)
}

fn start_as(variant: variant::Variant, repository: &Repository, flags: &[String]) -> Server {
    Server::start(variant, repository.path(), &flags.iter().map(String::as_str).collect::<Vec<_>>())
}

/// One trace of a file.
#[derive(Debug, Default)]
struct Traced {
    identity: Value,
    /// In the order of the file.
    times: Vec<(String, u64)>,
    tensors: Vec<Value>,
}

impl Traced {
    fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.times.iter().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        names
    }

    fn at(&self, name: &str) -> u64 {
        let found = self.times.iter().find(|(known, _)| known == name);
        found.unwrap_or_else(|| panic!("no {name} in {self:?}")).1
    }
}

/// The traces of a file by id; the identity stands directly before REQUEST_START, and once.
fn traces(entries: &[Value]) -> BTreeMap<u64, Traced> {
    let mut traces: BTreeMap<u64, Traced> = BTreeMap::new();
    for (at, entry) in entries.iter().enumerate() {
        let id = entry["id"].as_u64().unwrap_or_else(|| panic!("no id: {entry}"));
        let trace = traces.entry(id).or_default();
        if entry.get("model_name").is_some() {
            assert!(trace.identity.is_null(), "one identity: {entry}");
            assert_eq!(entries[at + 1]["timestamps"][0]["name"], "REQUEST_START", "behind {entry}");
            assert_eq!(entries[at + 1]["id"], id);
            trace.identity = entry.clone();
        } else if let Some(stamps) = entry["timestamps"].as_array() {
            assert_eq!(stamps.len(), 1, "one name an entry: {entry}");
            let name = stamps[0]["name"].as_str().expect("a name").to_owned();
            trace.times.push((name, stamps[0]["ns"].as_u64().expect("nanoseconds")));
        } else {
            trace.tensors.push(entry.clone());
        }
    }
    traces
}

fn sorted<'a>(lists: &[&[&'a str]]) -> Vec<&'a str> {
    let mut names: Vec<&str> = lists.concat();
    names.sort_unstable();
    names
}

fn one() -> [Pair; 1] {
    [Pair::new("INT32", "-1")]
}

fn plain() -> Repository {
    let repository = Repository::new();
    repository.identity("plain", 0, &one());
    repository
}

pub fn body(id: &str) -> String {
    json!({"id": id, "inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [2], "data": [7, 8]}]}).to_string()
}

pub fn infer_http(server: &Server, model: &str, id: &str) -> Answer {
    let answer = Peer::connect(server.http).post(&format!("/v2/models/{model}/infer"), &[], body(id).as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer
}

pub fn message(model: &str, id: &str) -> ModelInferRequest {
    ModelInferRequest {
        model_name: model.to_owned(),
        id: id.to_owned(),
        inputs: vec![InferInputTensor {
            name: "INPUT0".to_owned(),
            datatype: "INT32".to_owned(),
            shape: vec![2],
            ..Default::default()
        }],
        raw_input_contents: vec![Bytes::from_static(&[7, 0, 0, 0, 8, 0, 0, 0])],
        ..Default::default()
    }
}

fn infer_grpc(server: &Server, model: &str, id: &str) {
    let answer = Grpc::connect(server.grpc).call::<ModelInferResponse>("ModelInfer", &message(model, id));
    assert_eq!(answer.expect("an answer").id, id);
}

/// Time order of one plain request (contract/metrics.md section 4).
fn check_order(trace: &Traced, [received, whole, send, sent]: [&str; 4]) {
    let way = [received, whole, "REQUEST_START", "QUEUE_START"];
    let way = [&way[..], &COMPUTE, &["INFER_RESPONSE_COMPLETE", send, sent]].concat();
    for pair in way.windows(2) {
        assert!(trace.at(pair[0]) <= trace.at(pair[1]), "{pair:?} in {trace:?}");
    }
    assert!(trace.at("REQUEST_END") >= trace.at("COMPUTE_END"), "{trace:?}");
}

#[test]
fn requests_of_both_protocols_leave_their_times() {
    each(&variant::ALL, |variant| {
        let (repository, files) = (plain(), Files::new());
        let server = start_as(variant, &repository, &files.flags("TIMESTAMPS"));
        infer_http(&server, "plain", "by http");
        infer_grpc(&server, "plain", "by grpc");
        let mut grpc = Grpc::connect(server.grpc);
        let pieces = ["s1", "s2"].map(|id| frame(&message("plain", id)));
        let reply = grpc.exchange(&format!("{SERVICE}ModelStreamInfer"), &[], &pieces);
        assert_eq!((reply.status.code, reply.messages.len()), (code::OK, 2));
        assert_eq!(files.names(), [""; 0], "no file before the first write");
        server.stop();
        let traces = traces(&files.entries("t.json"));
        assert_eq!(traces.keys().copied().collect::<Vec<_>>(), [1, 2, 3, 4], "ids count from 1");
        let core = ["REQUEST_START", "QUEUE_START", "REQUEST_END", "INFER_RESPONSE_COMPLETE"];
        for (trace, request_id) in traces.values().zip(["by http", "by grpc", "s1", "s2"]) {
            let id = trace.identity["id"].clone();
            let expected = json!({"id": id, "model_name": "plain", "model_version": 1, "request_id": request_id});
            assert_eq!(trace.identity, expected, "and no parent");
            let exchange = if request_id == "by http" { HTTP } else { GRPC };
            assert_eq!(trace.names(), sorted(&[&exchange, &core, &COMPUTE]), "{request_id}");
            check_order(trace, exchange);
            assert!(trace.tensors.is_empty());
        }
    });
}

/// It is counted, and has a number, but no model ever had it.
#[test]
fn a_request_that_is_refused_leaves_no_trace() {
    let (repository, files) = (plain(), Files::new());
    let server = start(&repository, &files.flags("TIMESTAMPS"));
    infer_http(&server, "plain", "good");
    let wrong = body("bad").replace("INPUT0", "INPUT9");
    assert_eq!(Peer::connect(server.http).post("/v2/models/plain/infer", &[], wrong.as_bytes()).status, 400);
    infer_http(&server, "plain", "good too");
    server.stop();
    let traces = traces(&files.entries("t.json"));
    assert_eq!(traces.keys().copied().collect::<Vec<_>>(), [1, 3]);
}

#[test]
fn tensors_are_shown_where_they_pass() {
    let (repository, files) = (plain(), Files::new());
    let server = start(&repository, &files.flags("TENSORS"));
    infer_http(&server, "plain", "");
    server.stop();
    let traces =
        traces(&files.entries("t.json").into_iter().filter(|e| e.get("model_name").is_none()).collect::<Vec<_>>());
    let trace = &traces[&1];
    assert!(trace.times.is_empty(), "no times on this level: {trace:?}");
    let tensor = |activity: &str, name: &str| {
        let tensor = json!({"name": name, "data": "7,8", "shape": "2", "dtype": "INT32"});
        json!({"id": 1, "activity": activity, "tensor": tensor})
    };
    let expected = [tensor("TENSOR_QUEUE_INPUT", "INPUT0"), tensor("TENSOR_BACKEND_OUTPUT", "OUTPUT0")];
    assert_eq!(trace.tensors, expected);
}

#[test]
fn every_datatype_can_be_shown() {
    let (repository, files) = (Repository::new(), Files::new());
    repository.every_datatype();
    let server = start(&repository, &files.flags("TENSORS"));
    let mut peer = Peer::connect(server.http);
    let rows = [
        ("bool", json!([true, false]), "1,0"),
        ("uint8", json!([255, 1]), "255,1"),
        ("int8", json!([-128, 1]), "-128,1"),
        ("int16", json!([-5, 6]), "-5,6"),
        ("uint64", json!([18_446_744_073_709_551_615u64, 0]), "18446744073709551615,0"),
        ("fp32", json!([0.1, 1_234_567.0]), "0.1,1.23457e+06"),
        ("fp64", json!([-2.5, 1e-7]), "-2.5,1e-07"),
        ("bytes", json!(["x", "y\"z"]), "\"x\",\"y\"z\""),
    ];
    for (datatype, data, _) in &rows {
        let input = json!({"name": "INPUT0", "datatype": datatype.to_uppercase(), "shape": [1, 2], "data": data});
        let body = json!({ "inputs": [input] }).to_string();
        let answer = peer.post(&format!("/v2/models/identity_{datatype}/infer"), &[], body.as_bytes());
        assert_eq!(answer.status, 200, "{datatype}: {}", answer.text());
    }
    server.stop();
    let entries = files.entries("t.json");
    let outputs = entries.iter().filter(|entry| entry["activity"] == "TENSOR_BACKEND_OUTPUT");
    let shown: Vec<_> = outputs.map(|entry| entry["tensor"]["data"].as_str().unwrap().to_owned()).collect();
    assert_eq!(shown, rows.map(|(.., shown)| shown));
}

/// The example activities, on a model that sleeps for them.
#[test]
fn backends_add_activities_of_their_own() {
    let (repository, files) = (Repository::new(), Files::new());
    let parameters =
        [("enable_custom_tracing", "true"), ("nested_span_count", "2"), ("single_activity_frequency", "2")];
    let parameters: String = parameters
        .iter()
        .map(|(key, value)| format!("parameters {{ key: \"{key}\" value {{ string_value: \"{value}\" }} }}\n"))
        .collect();
    repository.identity_of("identity", "telling", 0, &one(), &parameters);
    let server = start(&repository, &files.flags("TIMESTAMPS"));
    infer_http(&server, "telling", "");
    server.stop();
    let traces = traces(&files.entries("t.json"));
    let own: Vec<_> = traces[&1].times.iter().filter(|(name, _)| name.starts_with("CUSTOM_")).collect();
    let expected = [
        "CUSTOM_ACTIVITY_START",
        "CUSTOM_ACTIVITY0_START",
        "CUSTOM_SINGLE_ACTIVITY",
        "CUSTOM_ACTIVITY1_START",
        "CUSTOM_ACTIVITY1_END",
        "CUSTOM_ACTIVITY0_END",
        "CUSTOM_ACTIVITY_END",
        "CUSTOM_SINGLE_ACTIVITY",
    ];
    assert_eq!(own.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), expected);
    assert!(own[6].1 - own[0].1 >= 300_000_000, "three sleeps of 100 ms: {own:?}");
}

#[test]
fn steps_of_ensembles_are_children() {
    let (repository, files) = (plain(), Files::new());
    let step = |from: &str, to: &str| {
        format!(
            "step {{ model_name: \"plain\" model_version: -1 input_map {{ key: \"INPUT0\" value: \"{from}\" }} \
             output_map {{ key: \"OUTPUT0\" value: \"{to}\" }} }}"
        )
    };
    let tensor = |name: &str| format!("{{ name: \"{name}\" data_type: TYPE_INT32 dims: [ -1 ] }}");
    let config = format!(
        "platform: \"ensemble\" input {} output {} ensemble_scheduling {{ {} {} }}",
        tensor("INPUT0"),
        tensor("OUT"),
        step("INPUT0", "between"),
        step("between", "OUT")
    );
    repository.model("both", &config);
    let server = start(&repository, &files.flags("TIMESTAMPS"));
    infer_http(&server, "both", "e1");
    server.stop();
    let traces = traces(&files.entries("t.json"));
    assert_eq!(traces.len(), 3);
    let root = &traces[&1];
    assert_eq!((&root.identity["model_name"], root.identity.get("parent_id")), (&json!("both"), None));
    let core = ["REQUEST_START", "QUEUE_START", "REQUEST_END"];
    assert_eq!(root.names(), sorted(&[&HTTP, &core, &["INFER_RESPONSE_COMPLETE"]]), "an ensemble computes nothing");
    for id in [2, 3] {
        let step = &traces[&id];
        let identity = json!({"id": id, "model_name": "plain", "model_version": 1, "request_id": "e1", "parent_id": 1});
        assert_eq!(step.identity, identity);
        assert_eq!(step.names(), sorted(&[&core, &COMPUTE]));
        assert!(step.at("REQUEST_START") >= root.at("REQUEST_START"));
    }
    assert!(traces[&3].at("REQUEST_START") >= traces[&2].at("COMPUTE_END"), "one after the other");
}

#[test]
fn an_answer_from_the_cache_computes_nothing() {
    let (repository, files) = (Repository::new(), Files::new());
    repository.identity_of("identity", "cached", 0, &one(), "response_cache { enable: true }");
    let flags = [files.flags("TIMESTAMPS"), vec!["--cache-config=local,size=1048576".to_owned()]].concat();
    let server = start(&repository, &flags);
    infer_http(&server, "cached", "miss");
    infer_http(&server, "cached", "hit");
    server.stop();
    let traces = traces(&files.entries("t.json"));
    let core = ["REQUEST_START", "QUEUE_START", "REQUEST_END", "INFER_RESPONSE_COMPLETE"];
    assert_eq!(traces[&1].names(), sorted(&[&HTTP, &core, &COMPUTE]));
    assert_eq!(traces[&2].names(), sorted(&[&HTTP, &core]));
}

#[test]
fn a_request_that_is_cancelled_in_its_queue_has_no_answer_in_its_trace() {
    let (repository, files) = (Repository::new(), Files::new());
    // What waits for seven more waits an hour for them.
    let waits = "dynamic_batching { preferred_batch_size: [ 8 ] max_queue_delay_microseconds: 3600000000 }";
    repository.identity_of("identity", "waiting", 8, &one(), waits);
    let server = start(&repository, &files.flags("TIMESTAMPS"));
    let input = json!({"name": "INPUT0", "datatype": "INT32", "shape": [1, 1], "data": [1]});
    let body = json!({"id": "gone", "inputs": [input]}).to_string();
    let mut peer = Peer::connect(server.http);
    peer.send(&request("POST", "/v2/models/waiting/infer", &[], body.as_bytes()));
    let pending = |count: u64| {
        let line = format!("nv_inference_pending_request_count{{model=\"waiting\",version=\"1\"}} {count}");
        let started = Instant::now();
        while !Peer::connect(server.metrics).get("/metrics").text().contains(&line) {
            assert!(started.elapsed() < PATIENCE, "never {line}");
        }
    };
    pending(1);
    peer.finish();
    pending(0);
    server.stop();
    let traces = traces(&files.entries("t.json"));
    assert_eq!(traces[&1].identity["request_id"], "gone");
    let core = ["REQUEST_START", "QUEUE_START", "REQUEST_END"];
    assert_eq!(traces[&1].names(), sorted(&[&HTTP[..2], &core]));
}

/// Each of its answers has its own times.
#[test]
fn a_model_may_answer_more_than_once() {
    let (repository, files) = (Repository::new(), Files::new());
    let config = "backend: \"square\" input [ { name: \"IN\" data_type: TYPE_INT32 dims: [ 1 ] } ] output [ { name: \
                  \"OUT\" data_type: TYPE_INT32 dims: [ 1 ] } ] instance_group [ { kind: KIND_CPU count: 1 } ] \
                  model_transaction_policy { decoupled: true }";
    repository.model("square", config);
    let server = start(&repository, &files.flags("TIMESTAMPS"));
    let input =
        InferInputTensor { name: "IN".to_owned(), datatype: "INT32".to_owned(), shape: vec![1], ..Default::default() };
    let message = ModelInferRequest {
        model_name: "square".to_owned(),
        inputs: vec![input],
        raw_input_contents: vec![Bytes::from_static(&[3, 0, 0, 0])],
        ..Default::default()
    };
    let mut grpc = Grpc::connect(server.grpc);
    let reply = grpc.exchange(&format!("{SERVICE}ModelStreamInfer"), &[], &[frame(&message)]);
    assert_eq!((reply.status.code, reply.messages.len()), (code::OK, 3));
    server.stop();
    let traces = traces(&files.entries("t.json"));
    let count = |name: &str| traces[&1].times.iter().filter(|(known, _)| known == name).count();
    for (name, expected) in
        [("INFER_RESPONSE_COMPLETE", 3), ("GRPC_SEND_START", 3), ("GRPC_SEND_END", 3), ("REQUEST_END", 1)]
    {
        assert_eq!(count(name), expected, "{name} in {:?}", traces[&1]);
    }
}

/// A request of a sequence is queued once for who reads its trace, however often it changes queues.
#[test]
fn requests_of_sequences_are_queued_once() {
    let (repository, files) = (Repository::new(), Files::new());
    let patient = "sequence_batching { max_sequence_idle_microseconds: 600000000 }";
    repository.identity_of("identity", "sequence", 4, &one(), patient);
    let server = start(&repository, &files.flags("TIMESTAMPS"));
    let mut peer = Peer::connect(server.http);
    for (start, end) in [(true, false), (false, false), (false, true)] {
        let input = json!({"name": "INPUT0", "datatype": "INT32", "shape": [1, 1], "data": [1]});
        let parameters = json!({"sequence_id": 7, "sequence_start": start, "sequence_end": end});
        let body = json!({"parameters": parameters, "inputs": [input]});
        assert_eq!(post(&mut peer, "/v2/models/sequence/infer", &body).status, 200);
    }
    server.stop();
    let traces = traces(&files.entries("t.json"));
    assert_eq!(traces.len(), 3);
    let core = ["REQUEST_START", "QUEUE_START", "REQUEST_END", "INFER_RESPONSE_COMPLETE"];
    for trace in traces.values() {
        assert_eq!(trace.names(), sorted(&[&HTTP, &core, &COMPUTE]));
        check_order(trace, HTTP);
    }
}

/// A plug-in through the C interface reports its times after it has answered.
#[test]
fn plug_ins_report_their_times() {
    let Some(directory) = backend::directory() else { return };
    let (repository, files) = (Repository::new(), Files::new());
    repository.identity_of("copycat", "copycat", 0, &one(), "");
    let flags = [files.flags("TIMESTAMPS"), vec![format!("--backend-directory={}", directory.display())]].concat();
    let server = start(&repository, &flags);
    infer_http(&server, "copycat", "");
    server.stop();
    let traces = traces(&files.entries("t.json"));
    let core = ["REQUEST_START", "QUEUE_START", "REQUEST_END", "INFER_RESPONSE_COMPLETE"];
    assert_eq!(traces[&1].names(), sorted(&[&HTTP, &core, &COMPUTE]));
}

fn post(peer: &mut Peer, path: &str, body: &Value) -> Answer {
    peer.post(path, &[], body.to_string().as_bytes())
}

#[test]
fn settings_change_while_the_server_runs() {
    each(&variant::ALL, |variant| {
        let (repository, files) = (plain(), Files::new());
        let file = format!("--trace-config=triton,file={}", files.path("t.json").display());
        let server = Server::start(variant, repository.path(), &[&file]);
        let mut peer = Peer::connect(server.http);
        let shown = |levels: &[&str], rate: &str, count: &str, frequency: &str| {
            let file = files.path("t.json");
            format!(
                "{{\"trace_level\":{},\"trace_rate\":\"{rate}\",\"trace_count\":\"{count}\",\"log_frequency\":\
                 \"{frequency}\",\"trace_file\":\"{}\",\"trace_mode\":\"triton\"}}",
                json!(levels),
                file.display()
            )
        };
        let got = peer.get("/v2/trace/setting");
        assert_eq!((got.status, got.text()), (200, shown(&["OFF"], "1000", "-1", "0")));
        assert_eq!(got.header("content-type"), Some("application/json"));
        infer_http(&server, "plain", "not traced");
        let on = json!({"trace_level": ["TIMESTAMPS"], "trace_rate": "2", "trace_count": "3", "log_frequency": "2"});
        assert_eq!(post(&mut peer, "/v2/trace/setting", &on).text(), shown(&["TIMESTAMPS"], "2", "3", "2"));
        for number in 1..=8 {
            infer_http(&server, "plain", &number.to_string());
        }
        // Of eight requests every second is traced, three in all; two make a file.
        assert_eq!(peer.get("/v2/models/plain/trace/setting").text(), shown(&["TIMESTAMPS"], "2", "0", "2"));
        let of = |entries: &[Value]| -> Vec<String> {
            traces(entries).values().map(|trace| trace.identity["request_id"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(of(&files.wait_for("t.json.0")), ["2", "4"]);
        // The setting that is replaced has what it collected written.
        let off = json!({"trace_level": ["OFF"]});
        assert_eq!(post(&mut peer, "/v2/trace/setting", &off).status, 200);
        assert_eq!(of(&files.wait_for("t.json.1")), ["6"]);
        let nothing = json!({"trace_level": null, "trace_rate": null, "trace_count": null, "log_frequency": null});
        assert_eq!(post(&mut peer, "/v2/trace/setting", &nothing).text(), shown(&["OFF"], "1000", "-1", "0"));
        server.stop();
        assert_eq!(files.names(), ["t.json.0", "t.json.1"], "nothing more was traced");
    });
}

#[test]
fn models_have_settings_of_their_own() {
    let (repository, files) = (plain(), Files::new());
    repository.identity("other", 0, &one());
    let flags =
        [files.flags("TIMESTAMPS"), vec!["--model-control-mode=explicit".to_owned(), "--load-model=*".to_owned()]];
    let server = start(&repository, &flags.concat());
    let mut peer = Peer::connect(server.http);
    let off = json!({"trace_level": ["OFF"]});
    let answer = post(&mut peer, "/v2/models/plain/trace/setting", &off);
    assert_eq!((answer.status, answer.json()["trace_level"].clone()), (200, json!(["OFF"])));
    infer_http(&server, "plain", "off");
    infer_http(&server, "other", "on");
    // What changes for all changes for the model but where it has a value of its own.
    let rate = json!({"trace_rate": "3"});
    assert_eq!(post(&mut peer, "/v2/trace/setting", &rate).json()["trace_level"], json!(["TIMESTAMPS"]));
    let model = peer.get("/v2/models/plain/trace/setting").json();
    assert_eq!((&model["trace_rate"], &model["trace_level"]), (&json!("3"), &json!(["OFF"])));
    let cleared = post(&mut peer, "/v2/models/plain/trace/setting", &json!({"trace_level": null})).json();
    assert_eq!(cleared["trace_level"], json!(["TIMESTAMPS"]));
    // A model that is not there, before and after, and with a body that would not parse.
    let unknown = json!({"error": "Request for unknown model : absent"});
    for answer in
        [peer.get("/v2/models/absent/trace/setting"), peer.post("/v2/models/absent/trace/setting", &[], b"no json")]
    {
        assert_eq!((answer.status, answer.json()), (400, unknown.clone()));
    }
    assert_eq!(peer.get("/v2/models/plain/versions/1/trace/setting").status, 404);
    assert_eq!(peer.post("/v2/repository/models/plain/unload", &[], b"").status, 200);
    let started = Instant::now();
    let gone = loop {
        let answer = peer.get("/v2/models/plain/trace/setting");
        if answer.status != 200 || started.elapsed() > PATIENCE {
            break answer;
        }
    };
    assert_eq!((gone.status, gone.error()), (400, "Request for unknown model : plain".to_owned()));
    server.stop();
    let traces = traces(&files.entries("t.json"));
    let ids: Vec<_> = traces.values().map(|trace| &trace.identity["request_id"]).collect();
    assert_eq!(ids, ["on"]);
}

/// Every text of contract/http.md section 3, and that what is refused changes nothing.
#[test]
fn what_cannot_be_set_is_refused_over_http() {
    let (repository, files) = (plain(), Files::new());
    let server = start(&repository, &files.flags("TIMESTAMPS"));
    let mut peer = Peer::connect(server.http);
    let rows = [
        (json!({"trace_file": "x"}), 501, "trace file location can not be updated through network protocol"),
        (json!({"trace_level": ["OFF", "TENSORS"]}), 400, "Expect only one trace level 'OFF' is specified"),
        (json!({"trace_count": "-2"}), 400, "Unable to parse 'trace_count'. Expecting value >= -1, got:-2"),
        (json!({"trace_rate": "x"}), 400, "Unable to parse 'trace_rate', got: x"),
        (
            json!({"log_frequency": "2147483648"}),
            400,
            "Unable to parse 'log_frequency', value is out of range [ 0, 4294967295 ], got: 2147483648",
        ),
        (json!({"trace_rate": "0"}), 400, "Attempting to set invalid trace setting :sample rate must be non-zero"),
        (json!({"trace_count": "0"}), 400, "Attempting to set invalid trace setting :"),
    ];
    for path in ["/v2/trace/setting", "/v2/models/plain/trace/setting"] {
        for (body, status, text) in &rows {
            let answer = post(&mut peer, path, body);
            assert_eq!((answer.status, &*answer.error()), (*status, *text), "{path} {body}");
        }
        assert_eq!(post(&mut peer, path, &json!({"trace_rate": 5})).status, 500, "no string");
        assert_eq!(peer.post(path, &[], b"").status, 500, "an empty body");
        let shown = peer.get(path).json();
        assert_eq!((&shown["trace_rate"], &shown["trace_count"]), (&json!("1"), &json!("-1")), "{path}");
        assert_eq!(post(&mut peer, path, &json!({"trace_rate": "-5"})).json()["trace_rate"], "4294967291");
        assert_eq!(post(&mut peer, path, &json!({"trace_rate": "1"})).status, 200);
    }
    server.stop();
    let nowhere = Server::start(usual(), repository.path(), &["--trace-config=level=TIMESTAMPS"]);
    let answer = post(&mut Peer::connect(nowhere.http), "/v2/trace/setting", &json!({"trace_rate": "1"}));
    let text = "Attempting to set invalid trace setting :trace file name is not given";
    assert_eq!((answer.status, &*answer.error()), (400, text));
    infer_http(&nowhere, "plain", "not traced");
    nowhere.stop();
}

fn setting(
    grpc: &mut Grpc,
    model: &str,
    settings: &[(&str, &[&str])],
) -> Result<BTreeMap<String, Vec<String>>, Status> {
    let entry = |(key, values): &(&str, &[&str])| {
        ((*key).to_owned(), SettingValue { value: values.iter().map(|&value| value.to_owned()).collect() })
    };
    let request = TraceSettingRequest { settings: settings.iter().map(entry).collect(), model_name: model.to_owned() };
    let answer: TraceSettingResponse = grpc.call("TraceSetting", &request)?;
    Ok(answer.settings.into_iter().map(|(key, value)| (key, value.value)).collect())
}

#[test]
fn settings_over_grpc() {
    let (repository, files) = (plain(), Files::new());
    let server = start(&repository, &files.flags("TIMESTAMPS"));
    let mut grpc = Grpc::connect(server.grpc);
    let file = files.path("t.json").display().to_string();
    let shown = |level: &[&str], rate: &str| -> BTreeMap<String, Vec<String>> {
        let entry = |key: &str, values: &[&str]| {
            (key.to_owned(), values.iter().map(|&value| value.to_owned()).collect::<Vec<_>>())
        };
        BTreeMap::from([
            entry("trace_level", level),
            entry("trace_rate", &[rate]),
            entry("trace_count", &["-1"]),
            entry("log_frequency", &["0"]),
            entry("trace_file", &[&file]),
            entry("trace_mode", &["triton"]),
        ])
    };
    assert_eq!(setting(&mut grpc, "", &[]), Ok(shown(&["TIMESTAMPS"], "1")));
    let both = &["TENSORS", "TIMESTAMPS"][..];
    assert_eq!(
        setting(&mut grpc, "plain", &[("trace_level", both), ("trace_rate", &["5"])]),
        Ok(shown(&["TIMESTAMPS", "TENSORS"], "5"))
    );
    assert_eq!(setting(&mut grpc, "", &[]), Ok(shown(&["TIMESTAMPS"], "1")));
    assert_eq!(setting(&mut grpc, "plain", &[("trace_rate", &[])]), Ok(shown(&["TIMESTAMPS", "TENSORS"], "1")));
    let invalid = |message: &str| Err(Status { code: code::INVALID_ARGUMENT, message: message.to_owned() });
    let rows: [(&str, &[&str], &str); 6] = [
        ("trace_rate", &["1", "2"], "expect only 1 value for 'trace_rate'"),
        ("trace_count", &["-2"], "Unable to parse 'trace_count'. Expecting value >= -1, got: -2"),
        ("trace_count", &["0"], "Attempting to set invalid trace setting :"),
        ("log_frequency", &["x"], "Unable to parse 'log_frequency', got: x"),
        ("trace_rate", &["0"], "Attempting to set invalid trace setting :sample rate must be non-zero"),
        ("trace_level", &["OFF", "OFF"], "Expect only one trace level 'OFF' is specified"),
    ];
    for (key, values, text) in rows {
        assert_eq!(setting(&mut grpc, "plain", &[(key, values)]), invalid(text), "{key} {values:?}");
    }
    let file = "trace file location can not be updated through network protocol";
    let unsupported = Err(Status { code: code::UNIMPLEMENTED, message: file.to_owned() });
    assert_eq!(setting(&mut grpc, "", &[("trace_file", &["x"])]), unsupported);
    assert_eq!(setting(&mut grpc, "absent", &[]), invalid("Request for unknown model : absent"));
    server.stop();
}

#[test]
fn the_official_client_reads_and_changes_settings() {
    let Some(python) = Python::get() else { return };
    let (repository, files) = (plain(), Files::new());
    let file = files.path("t.json").display().to_string();
    let server = Server::start(usual(), repository.path(), &[&format!("--trace-config=triton,file={file}")]);
    for (protocol, address) in [("http", server.http), ("grpc", server.grpc)] {
        let arguments = ["--protocol", protocol, "--url", &address.to_string(), "--file", &file, "--model", "plain"];
        python.run("trace_settings.py", &arguments);
    }
    server.stop();
}

#[test]
fn the_older_flags_still_work_and_counts_are_shown() {
    let (repository, files) = (plain(), Files::new());
    let file = format!("--trace-file={}", files.path("t.json").display());
    let flags = [&*file, "--trace-level=TIMESTAMPS", "--trace-rate=1", "--trace-count=2", "--trace-log-frequency=1"];
    let server = Server::start(usual(), repository.path(), &flags);
    for id in ["1", "2", "3"] {
        infer_http(&server, "plain", id);
    }
    assert_eq!(traces(&files.wait_for("t.json.0")).len(), 1);
    assert_eq!(traces(&files.wait_for("t.json.1")).len(), 1);
    let page = Peer::connect(server.metrics).get("/metrics").text();
    for line in ["nereid_traces_completed 2", "nereid_traces_dropped 0"] {
        assert!(page.contains(line), "{line} in {page}");
    }
    server.stop();
    assert_eq!(files.names(), ["t.json.0", "t.json.1"]);
}

#[test]
fn a_file_that_cannot_be_made_is_named_and_disturbs_nobody() {
    let (repository, files) = (Repository::new(), Files::new());
    repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
    let missing = files.path("missing").join("t.json");
    let settings = ["level=TIMESTAMPS", "rate=1", "triton,log-frequency=1"].map(str::to_owned);
    let file = format!("triton,file={}", missing.display());
    let flags: Vec<String> = settings.into_iter().chain([file]).map(|it| format!("--trace-config={it}")).collect();
    let server = start(&repository, &flags);
    let body = br#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1],"data":[1]}]}"#;
    assert_eq!(Peer::connect(server.http).post("/v2/models/plain/infer", &[], body).status, 200);
    server.wait_for_log(&format!("failed creating trace file: '{}': No such file or directory", missing.display()));
    server.stop();
}
