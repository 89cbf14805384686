//! Ensembles of models (contract/schedulers.md section 5).

use bytes::Bytes;
use nereid_wire::inference::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use nereid_wire::inference::{ModelInferRequest, ModelInferResponse};
use serde_json::{Value, json};

use nereid_test_support::backend;
use nereid_test_support::gate::{self, Gate};
use nereid_test_support::grpc::{Grpc, code};
use nereid_test_support::http::{Answer, Peer, request};
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::Server;
use nereid_test_support::variant::{self, each, usual};

/// Tensors `X Y?`, all INT32 of these dims; a question mark stands behind what is optional.
fn tensors(side: &str, names: &str, dims: &str) -> String {
    let tensor = |name: &str| {
        let optional = if name.ends_with('?') { "optional: true" } else { "" };
        let name = name.trim_end_matches('?');
        format!("{side} {{ name: \"{name}\" data_type: TYPE_INT32 dims: [ {dims} ] {optional} }}\n")
    };
    names.split_whitespace().map(tensor).collect()
}

/// The config of an ensemble; steps are written as `model INPUT0=X -> OUTPUT0=Y`.
pub fn ensemble(name: &str, inputs: &str, outputs: &str, steps: &[&str], more: &str) -> String {
    let step = |text: &&str| {
        let (model, maps) = text.split_once(' ').expect("a model and its maps");
        let (reads, writes) = maps.split_once("->").expect("inputs and outputs");
        let map = |side: &str, pairs: &str| -> String {
            let pair = |pair: &str| {
                let (key, value) = pair.split_once('=').expect("a pair");
                format!("{side} {{ key: \"{key}\" value: \"{value}\" }} ")
            };
            pairs.split_whitespace().map(pair).collect()
        };
        let (reads, writes) = (map("input_map", reads), map("output_map", writes));
        format!("step {{ model_name: \"{model}\" model_version: -1 {reads} {writes} }}\n")
    };
    let (inputs, outputs) = (tensors("input", inputs, "-1"), tensors("output", outputs, "-1"));
    let steps: String = steps.iter().map(step).collect();
    let (scheduling, more) = more.split_once('|').unwrap_or(("", more));
    format!(
        "name: \"{name}\" platform: \"ensemble\" {inputs} {outputs} ensemble_scheduling {{ {scheduling} {steps} }}\n{more}"
    )
}

pub fn one() -> [Pair; 1] {
    [Pair::new("INT32", "-1")]
}

pub fn two() -> [Pair; 2] {
    [Pair::new("INT32", "-1"), Pair::new("INT32", "-1")]
}

/// An identity model of one pair that takes its time.
pub fn slow(repository: &Repository, name: &str, delay_ms: u32) {
    let delay = format!("parameters {{ key: \"execute_delay_ms\" value {{ string_value: \"{delay_ms}\" }} }}");
    repository.identity_of("identity", name, 0, &one(), &delay);
}

fn body(inputs: &[(&str, &[i64], &[i32])], outputs: &[&str]) -> String {
    let inputs = inputs
        .iter()
        .map(|(name, shape, data)| json!({ "name": name, "datatype": "INT32", "shape": shape, "data": data }));
    let mut body = json!({ "inputs": inputs.collect::<Vec<_>>() });
    if !outputs.is_empty() {
        let outputs = outputs.iter().map(|name| json!({ "name": name }));
        body["outputs"] = outputs.collect();
    }
    body.to_string()
}

pub fn infer(server: &Server, model: &str, inputs: &[(&str, &[i64], &[i32])], outputs: &[&str]) -> Answer {
    let mut peer = Peer::connect(server.http);
    peer.post(&format!("/v2/models/{model}/infer"), &[], body(inputs, outputs).as_bytes())
}

/// The outputs of an answer as `name[shape]=data`, in its order.
pub fn outputs_of(answer: &Answer) -> String {
    assert_eq!(answer.status, 200, "{}", answer.text());
    let json = answer.json();
    let show = |output: &Value| {
        let name = output["name"].as_str().unwrap_or_default();
        format!("{name}{}={}", output["shape"], output["data"])
    };
    json["outputs"].as_array().into_iter().flatten().map(show).collect::<Vec<_>>().join(" ")
}

pub fn statistics(server: &Server, model: &str) -> Value {
    let mut peer = Peer::connect(server.http);
    let answer = peer.get(&format!("/v2/models/{model}/stats"));
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["model_stats"][0].clone()
}

fn count(server: &Server, model: &str, what: &str) -> i64 {
    statistics(server, model)["inference_stats"][what]["count"].as_i64().unwrap_or_default()
}

fn grpc_request(model: &str, input: &str, values: &[i32]) -> ModelInferRequest {
    let data: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    ModelInferRequest {
        model_name: model.to_owned(),
        id: "me".to_owned(),
        inputs: vec![InferInputTensor {
            name: input.to_owned(),
            datatype: "INT32".to_owned(),
            shape: vec![values.len() as i64],
            ..Default::default()
        }],
        raw_input_contents: vec![Bytes::from(data)],
        ..Default::default()
    }
}

/// A diamond, its parts, and an ensemble around it.
fn diamond() -> Repository {
    let repository = Repository::new();
    repository.identity("top", 0, &one()).identity("left", 0, &one()).identity("right", 0, &one());
    repository.identity("join", 0, &two());
    let steps = [
        "top INPUT0=X -> OUTPUT0=A",
        "left INPUT0=A -> OUTPUT0=B",
        "right INPUT0=A -> OUTPUT0=C",
        "join INPUT0=B INPUT1=C -> OUTPUT0=Y OUTPUT1=Z",
    ];
    repository.model("diamond", &ensemble("diamond", "X", "Y Z", &steps, ""));
    let steps = ["diamond X=IN -> Y=M", "top INPUT0=M -> OUTPUT0=OUT"];
    repository.model("around", &ensemble("around", "IN", "OUT", &steps, ""));
    repository
}

#[test]
fn diamonds_and_ensembles_in_ensembles_answer_over_both_protocols() {
    each(&variant::ALL, |variant| {
        let repository = diamond();
        let server = Server::start(variant, repository.path(), &[]);
        let answer = infer(&server, "diamond", &[("X", &[3], &[1, 2, 3])], &[]);
        assert_eq!(outputs_of(&answer), "Y[3]=[1,2,3] Z[3]=[1,2,3]");
        let parameters = &answer.json()["parameters"];
        assert_eq!(parameters["sequence_id"], 0, "{parameters}");
        assert_eq!((&parameters["sequence_start"], &parameters["sequence_end"]), (&json!(false), &json!(false)));
        let mut grpc = Grpc::connect(server.grpc);
        let answer: ModelInferResponse =
            grpc.call("ModelInfer", &grpc_request("around", "IN", &[7, 8])).expect("answer");
        assert_eq!((answer.id.as_str(), answer.model_name.as_str(), answer.outputs.len()), ("me", "around", 1));
        assert_eq!((answer.outputs[0].name.as_str(), answer.outputs[0].shape.as_slice()), ("OUT", &[2_i64][..]));
        assert_eq!(answer.raw_output_contents, [Bytes::from_static(&[7, 0, 0, 0, 8, 0, 0, 0])]);
        let counts =
            ["top", "left", "right", "join", "diamond", "around"].map(|model| count(&server, model, "success"));
        assert_eq!(counts, [3, 2, 2, 2, 2, 1]);
        for model in ["diamond", "around"] {
            let seen = statistics(&server, model);
            assert_eq!(seen["execution_count"], seen["inference_count"], "{seen}");
            assert_eq!(seen["batch_stats"][0]["batch_size"], 1, "{seen}");
        }
        server.stop();
    });
}

#[test]
fn many_requests_at_once_are_all_answered() {
    each(&variant::ALL, |variant| {
        let repository = diamond();
        let server = Server::start(variant, repository.path(), &[]);
        let mut peers: Vec<Peer> = (0..16).map(|_| Peer::connect(server.http)).collect();
        for round in 0..20 {
            for (at, peer) in peers.iter_mut().enumerate() {
                let body = body(&[("IN", &[2], &[at as i32, round])], &[]);
                peer.send(&request("POST", "/v2/models/around/infer", &[], body.as_bytes()));
            }
            for (at, peer) in peers.iter_mut().enumerate() {
                assert_eq!(outputs_of(&peer.answer()), format!("OUT[2]=[{at},{round}]"));
            }
        }
        assert_eq!((count(&server, "around", "success"), count(&server, "top", "success")), (320, 640));
        server.stop();
    });
}

/// The sums of the steps stand under the ensemble.
#[test]
fn statistics_are_the_sums_of_the_steps() {
    let repository = Repository::new();
    slow(&repository, "first", 20);
    slow(&repository, "second", 30);
    let steps = ["first INPUT0=X -> OUTPUT0=A", "second INPUT0=A -> OUTPUT0=Y"];
    repository.model("e", &ensemble("e", "X", "Y", &steps, "")).version("e", "3");
    let server = Server::start(usual(), repository.path(), &[]);
    for _ in 0..3 {
        infer(&server, "e", &[("X", &[1], &[5])], &[]);
    }
    let of = |model: &str, what: &str| {
        statistics(&server, model)["inference_stats"][what]["ns"].as_u64().expect("a sum of nanoseconds")
    };
    for what in ["queue", "compute_input", "compute_infer", "compute_output"] {
        assert_eq!(of("e", what), of("first", what) + of("second", what), "{what}");
    }
    assert!(of("e", "compute_infer") >= 150_000_000 && of("e", "success") >= of("e", "compute_infer"));
    let metrics = Peer::connect(server.metrics).get("/metrics").text();
    let line = "nv_inference_request_success{model=\"e\",version=\"1\"} 3";
    assert!(metrics.contains(line), "whatever the version's directory is called: {metrics}");
    server.stop();
}

#[test]
fn a_batch_dimension_is_added_and_taken_away() {
    let repository = Repository::new();
    repository.identity("rows", 4, &one()).identity("flat", 0, &one());
    let steps = ["flat INPUT0=X -> OUTPUT0=A", "rows INPUT0=A -> OUTPUT0=B", "flat INPUT0=B -> OUTPUT0=Y"];
    repository.model("plain", &ensemble("plain", "X", "Y", &steps, ""));
    repository.model("batching", &ensemble("batching", "X", "Y", &steps, "max_batch_size: 4"));
    let server = Server::start(usual(), repository.path(), &[]);
    assert_eq!(outputs_of(&infer(&server, "plain", &[("X", &[3], &[1, 2, 3])], &[])), "Y[3]=[1,2,3]");
    assert_eq!(outputs_of(&infer(&server, "batching", &[("X", &[1, 3], &[1, 2, 3])], &[])), "Y[1,3]=[1,2,3]");
    // Two rows do not fit into a model that sees one vector; its own check says so.
    let answer = infer(&server, "batching", &[("X", &[2, 1], &[1, 2])], &[]);
    let text = "in ensemble 'batching', [request id: <id_unknown>] unexpected shape for input 'INPUT0' for model 'flat'. \
                Expected [-1], got [2,1]. ";
    assert_eq!((answer.status, answer.error().as_str()), (400, text));
    assert_eq!(statistics(&server, "rows")["inference_count"], 2);
    server.stop();
}

#[test]
fn absent_inputs_and_unwanted_outputs_leave_steps_out() {
    let repository = Repository::new();
    repository.identity("maybe", 0, &[Pair::new("INT32", "-1"), Pair::new("INT32", "-1").optional()]);
    repository.identity("other", 0, &one());
    let steps = ["maybe INPUT0=X INPUT1=Z -> OUTPUT0=Y OUTPUT1=V", "other INPUT0=X -> OUTPUT0=W"];
    repository.model("e", &ensemble("e", "X Z?", "Y V W", &steps, ""));
    let server = Server::start(usual(), repository.path(), &[]);
    let both = infer(&server, "e", &[("X", &[1], &[5]), ("Z", &[2], &[6, 7])], &["V", "Y"]);
    assert_eq!(outputs_of(&both), "V[2]=[6,7] Y[1]=[5]");
    assert_eq!(outputs_of(&infer(&server, "e", &[("X", &[1], &[5])], &["Y"])), "Y[1]=[5]");
    assert_eq!(count(&server, "other", "success"), 0, "nobody asked for its output");
    assert_eq!(outputs_of(&infer(&server, "e", &[("X", &[1], &[5])], &["W"])), "W[1]=[5]");
    assert_eq!((count(&server, "other", "success"), count(&server, "maybe", "success")), (1, 2));
    server.stop();
}

#[test]
fn an_error_of_a_step_is_the_ensembles() {
    let repository = Repository::new();
    repository.identity("any", 0, &one()).identity("pair", 0, &[Pair::new("INT32", "2")]);
    let steps = ["any INPUT0=X -> OUTPUT0=A", "pair INPUT0=A -> OUTPUT0=B", "any INPUT0=B -> OUTPUT0=Y"];
    repository.model("e", &ensemble("e", "X", "Y", &steps, ""));
    repository.model("outer", &ensemble("outer", "X", "Y", &["e X=X -> Y=Y"], ""));
    let server = Server::start(usual(), repository.path(), &[]);
    assert_eq!(outputs_of(&infer(&server, "e", &[("X", &[2], &[1, 2])], &[])), "Y[2]=[1,2]");
    let text =
        "[request id: <id_unknown>] unexpected shape for input 'INPUT0' for model 'pair'. Expected [2], got [3]. ";
    let answer = infer(&server, "e", &[("X", &[3], &[1, 2, 3])], &[]);
    assert_eq!((answer.status, answer.error()), (400, format!("in ensemble 'e', {text}")));
    let mut grpc = Grpc::connect(server.grpc);
    let status = grpc.call::<ModelInferResponse>("ModelInfer", &grpc_request("outer", "X", &[1, 2, 3])).unwrap_err();
    let text = text.replace("<id_unknown>", "me");
    assert_eq!(
        (status.code, status.message),
        (code::INVALID_ARGUMENT, format!("in ensemble 'outer', in ensemble 'e', {text}"))
    );
    assert_eq!(
        (count(&server, "e", "success"), count(&server, "e", "fail"), count(&server, "outer", "fail")),
        (1, 2, 1)
    );
    assert_eq!((count(&server, "any", "success"), count(&server, "pair", "fail")), (4, 0));
    let metrics = Peer::connect(server.metrics).get("/metrics").text();
    assert!(
        metrics.contains("nv_inference_request_failure{model=\"e\",reason=\"OTHER\",version=\"1\"} 2"),
        "{metrics}"
    );
    server.stop();
}

#[test]
fn what_a_request_asks_for_is_checked_like_for_other_models() {
    let repository = diamond();
    let server = Server::start(usual(), repository.path(), &[]);
    let answer = infer(&server, "diamond", &[("X", &[1], &[1])], &["A"]);
    assert_eq!((answer.status, answer.error().as_str()), (400, "unexpected inference output 'A' for model 'diamond'"));
    let metadata = Peer::connect(server.http).get("/v2/models/diamond").json();
    assert_eq!((&metadata["platform"], &metadata["versions"]), (&json!("ensemble"), &json!(["1"])));
    let config = Peer::connect(server.http).get("/v2/models/diamond/config").json();
    assert_eq!(config["model_transaction_policy"]["decoupled"], false, "{config}");
    assert_eq!(config["ensemble_scheduling"]["step"][0]["model_version"], -1);
    assert!(config.get("instance_group").is_none_or(|groups| groups == &json!([])), "{config}");
    server.stop();
}

#[test]
fn a_client_that_leaves_ends_what_waits() {
    each(&variant::ALL, |variant| {
        let (repository, gate) = (Repository::new(), Gate::new());
        repository.identity_of(gate::BACKEND, "p", 0, &one(), &gate.of_executions());
        repository.identity("q", 0, &one());
        let steps = ["p INPUT0=X -> OUTPUT0=A", "q INPUT0=A -> OUTPUT0=Y"];
        repository.model("e", &ensemble("e", "X", "Y", &steps, ""));
        let Some(backends) = backend::directory_flag() else { return };
        let server = Server::start(variant, repository.path(), &[&backends]);
        let mut grpc = Grpc::connect(server.grpc);
        let path = "/inference.GRPCInferenceService/ModelInfer";
        let open = |grpc: &mut Grpc| {
            let mut call = grpc.open(path, &[]);
            grpc.send(&mut call, &grpc_request("e", "X", &[1]));
            grpc.half_close(&mut call);
            grpc.flush();
            call
        };
        let first = open(&mut grpc);
        gate.wait_until_held(&server, "p");
        let second = open(&mut grpc);
        let waits = "nv_inference_pending_request_count{model=\"p\",version=\"1\"} 1";
        server.wait_until("one waits", || Peer::connect(server.metrics).get("/metrics").text().contains(waits));
        grpc.cancel(second);
        // It does not wait for the first one to end, and no step of it begins any more.
        server.wait_until("it has failed", || count(&server, "e", "fail") > 0);
        gate.open();
        assert_eq!(grpc.finish(first).status.code, code::OK);
        // The backend of the first step reports behind its answer.
        server.wait_until("the first one has succeeded", || count(&server, "e", "success") == 1);
        assert_eq!(count(&server, "q", "success"), 1);
        let metrics = Peer::connect(server.metrics).get("/metrics").text();
        assert!(
            metrics.contains("nv_inference_request_failure{model=\"p\",reason=\"CANCELED\",version=\"1\"} 1"),
            "{metrics}"
        );
        assert!(
            metrics.contains("nv_inference_request_failure{model=\"e\",reason=\"OTHER\",version=\"1\"} 1"),
            "{metrics}"
        );
        server.stop();
    });
}

#[test]
fn so_many_requests_of_a_step_are_in_flight() {
    let repository = Repository::new();
    slow(&repository, "p", 20);
    let steps = ["p INPUT0=X -> OUTPUT0=A", "p INPUT0=A -> OUTPUT0=Y"];
    repository.model("e", &ensemble("e", "X", "Y", &steps, "max_inflight_requests: 1|"));
    let server = Server::start(usual(), repository.path(), &[]);
    let mut peers: Vec<Peer> = (0..8).map(|_| Peer::connect(server.http)).collect();
    for (at, peer) in peers.iter_mut().enumerate() {
        let body = body(&[("X", &[1], &[at as i32])], &[]);
        peer.send(&request("POST", "/v2/models/e/infer", &[], body.as_bytes()));
    }
    let mut metrics = Peer::connect(server.metrics);
    while count(&server, "e", "success") < 8 {
        let text = metrics.get("/metrics").text();
        let line = text.lines().find(|line| line.starts_with("nv_inference_pending_request_count{model=\"p\""));
        let pending: usize = line.and_then(|line| line.split("} ").nth(1)?.parse().ok()).expect("a gauge");
        assert!(pending <= 2, "one of each step: {pending} wait");
    }
    for (at, peer) in peers.iter_mut().enumerate() {
        assert_eq!(outputs_of(&peer.answer()), format!("Y[1]=[{at}]"));
    }
    server.stop();
}

#[test]
fn a_request_is_finished_with_the_models_that_it_began_with() {
    let repository = Repository::new();
    slow(&repository, "p", 300);
    repository.identity("q", 0, &one());
    let steps = ["p INPUT0=X -> OUTPUT0=A", "q INPUT0=A -> OUTPUT0=Y"];
    repository.model("e", &ensemble("e", "X", "Y", &steps, ""));
    let flags = ["--model-control-mode=explicit", "--load-model=e"];
    let server = Server::start_with(usual(), repository.path(), &flags, "/v2/health/live");
    for gone in ["q", "p", "e"] {
        let mut peer = Peer::connect(server.http);
        peer.send(&request("POST", "/v2/models/e/infer", &[], body(&[("X", &[1], &[9])], &[]).as_bytes()));
        let begun = count(&server, "p", "success");
        let running = "nv_inference_pending_request_count{model=\"p\",version=\"1\"} 0";
        let mut control = Peer::connect(server.http);
        // It runs when nothing waits and nothing has ended.
        server.wait_until("nothing waits", || Peer::connect(server.metrics).get("/metrics").text().contains(running));
        assert!(count(&server, "p", "success") <= begun + 1);
        assert_eq!(control.post(&format!("/v2/repository/models/{gone}/unload"), &[], b"").status, 200);
        let answer = peer.answer();
        // The request may come only after the unload; then nobody has it.
        if answer.status == 200 {
            assert_eq!(outputs_of(&answer), "Y[1]=[9]");
        } else {
            assert!(answer.error().starts_with("Request for unknown model: 'e'"), "{}", answer.text());
        }
        assert_eq!(control.post("/v2/repository/models/e/load", &[], b"").status, 200);
    }
    server.stop();
}

/// Names nothing that its clients would miss.
#[test]
fn outputs_may_be_asked_for_over_grpc() {
    let repository = diamond();
    let server = Server::start(usual(), repository.path(), &[]);
    let mut grpc = Grpc::connect(server.grpc);
    let outputs = vec![InferRequestedOutputTensor { name: "Z".to_owned(), ..Default::default() }];
    let request = ModelInferRequest { outputs, ..grpc_request("diamond", "X", &[4]) };
    let answer: ModelInferResponse = grpc.call("ModelInfer", &request).expect("an answer");
    let names: Vec<_> = answer.outputs.iter().map(|output| output.name.as_str()).collect();
    assert_eq!((names, answer.raw_output_contents.len()), (vec!["Z"], 1));
    server.stop();
}
