//! Responses as server-sent events: inference with `Accept: text/event-stream` (docs/streaming.md); and all chunked
//! responses over HTTP: clients that disconnect, clients that do not read, and the end of the server.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use nereid_test_support::backend;
use nereid_test_support::http::{Answer, Peer, infer_with_tail, request};
use nereid_test_support::python::Python;
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::{PATIENCE, Server};
use nereid_test_support::steadily::{Window, in_time};
use nereid_test_support::variant::{self, Variant, each, usual};

pub const DECOUPLED: &str = "model_transaction_policy { decoupled: true }\n";
const SSE: (&str, &str) = ("Accept", "text/event-stream");

pub fn repeat_config() -> String {
    format!(
        r#"backend: "repeat"
        input [ {{ name: "IN" data_type: TYPE_INT32 dims: [ -1 ] }},
                {{ name: "DELAY" data_type: TYPE_UINT32 dims: [ -1 ] }},
                {{ name: "WAIT" data_type: TYPE_UINT32 dims: [ 1 ] }} ]
        output [ {{ name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }},
                 {{ name: "IDX" data_type: TYPE_UINT32 dims: [ 1 ] }} ]
        instance_group [ {{ kind: KIND_CPU count: 1 }} ] {DECOUPLED}"#
    )
}

pub fn square_config(parameters: &[(&str, &str)]) -> String {
    let parameters: String = parameters
        .iter()
        .map(|(key, value)| format!("parameters {{ key: \"{key}\" value {{ string_value: \"{value}\" }} }}\n"))
        .collect();
    format!(
        r#"backend: "square"
        input [ {{ name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }} ]
        output [ {{ name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }} ]
        instance_group [ {{ kind: KIND_CPU count: 1 }} ] {DECOUPLED} {parameters}"#
    )
}

/// The directory of a C backend that answers later, often, or not at all (tests/backends/later.c). None, after a
/// visible skip, without a C compiler.
pub fn later_backend() -> Option<PathBuf> {
    backend::compiled("later.c")
}

/// The events of a body, which holds nothing else.
pub fn events(body: &[u8]) -> Vec<Value> {
    let text = String::from_utf8_lossy(body);
    assert!(text.is_empty() || text.ends_with("\n\n"), "{text:?}");
    let event = |event: &str| {
        let data = event.strip_prefix("data: ").unwrap_or_else(|| panic!("{event:?} of {text:?}"));
        assert!(!data.contains('\n'), "{data:?}");
        serde_json::from_str(data).unwrap_or_else(|error| panic!("{error}: {data:?}"))
    };
    text.split("\n\n").filter(|event| !event.is_empty()).map(event).collect()
}

/// What an event says under `name`, or as an error.
pub fn either(name: &str) -> impl Fn(&Value) -> Value {
    move |event| event.get(name).or(event.get("error")).cloned().unwrap_or_else(|| panic!("{name}: {event}"))
}

fn start(variant: Variant, flags: &[&str]) -> (Repository, Server) {
    let repository = Repository::new();
    repository.model("repeat", &repeat_config()).model("square", &square_config(&[]));
    repository.model("failing", &square_config(&[("CUSTOM_FAIL_COUNT", "2"), ("CUSTOM_EMPTY_COUNT", "1")]));
    repository.model("failing_first", &square_config(&[("CUSTOM_FAIL_COUNT", "9")]));
    repository.model("slow", &square_config(&[("CUSTOM_INFER_DELAY_NS", "5000000")]));
    repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
    repository.identity("half", 0, &[Pair::new("FP16", "-1")]);
    repository.identity("scores", 0, &[Pair::new("FP32", "-1").labels()]).file("scores/labels.txt", "a\nb\nc\n");
    let server = Server::start(variant, repository.path(), flags);
    (repository, server)
}

fn square(count: i32, parameters: Value) -> String {
    let input = json!({"name": "IN", "datatype": "INT32", "shape": [1], "data": [count]});
    json!({"id": "s", "parameters": parameters, "inputs": [input]}).to_string()
}

fn infer(peer: &mut Peer, model: &str, headers: &[(&str, &str)], body: &str) -> Answer {
    peer.post(&format!("/v2/models/{model}/infer"), headers, body.as_bytes())
}

fn is_events(answer: &Answer) -> bool {
    answer.header("content-type") == Some("text/event-stream; charset=utf-8")
        && answer.header("transfer-encoding") == Some("chunked")
}

const REFUSED: &str = "HTTP end point doesn't support models with decoupled transaction policy";

#[test]
fn every_response_of_a_decoupled_model_is_an_event() {
    each(&variant::ALL, |variant| {
        let (_repository, server) = start(variant, &[]);
        let mut peer = Peer::connect(server.http);
        let body = json!({"id": "r", "inputs": [
            {"name": "IN", "datatype": "INT32", "shape": [3], "data": [7, -8, 9]},
            {"name": "DELAY", "datatype": "UINT32", "shape": [3], "data": [0, 1, 0]},
            {"name": "WAIT", "datatype": "UINT32", "shape": [1], "data": [0]}]});
        peer.send(&request("POST", "/v2/models/repeat/infer", &[SSE], body.to_string().as_bytes()));
        let head = peer.head();
        assert!(head.status == 200 && is_events(&head), "{head:?}");
        for (index, value) in [7, -8, 9].into_iter().enumerate() {
            let expected = format!(
                "data: {{\"id\":\"r\",\"model_name\":\"repeat\",\"model_version\":\"1\",\
                 \"parameters\":{{\"triton_final_response\":false}},\"outputs\":[\
                 {{\"name\":\"OUT\",\"datatype\":\"INT32\",\"shape\":[1],\"data\":[{value}]}},\
                 {{\"name\":\"IDX\",\"datatype\":\"UINT32\",\"shape\":[1],\"data\":[{index}]}}]}}\n\n"
            );
            assert_eq!(peer.chunk().map(|chunk| String::from_utf8_lossy(&chunk).into_owned()), Some(expected));
        }
        assert_eq!(peer.chunk(), None);
        // An end of its own, if it is asked for.
        for (wanted, count) in [(json!(true), 3), (json!(true), 0), (json!(false), 2)] {
            let body = square(count, json!({"triton_enable_empty_final_response": wanted}));
            let answer = infer(&mut peer, "square", &[SSE], &body);
            assert!(answer.status == 200 && is_events(&answer), "{answer:?}");
            let mut found = events(&answer.body);
            if wanted == json!(true) {
                let end = json!({"id": "s", "model_name": "square", "model_version": "1",
                    "parameters": {"triton_final_response": true}, "outputs": []});
                assert_eq!(found.pop(), Some(end));
            }
            assert_eq!(found.len() as i32, count);
            assert!(found.iter().all(|event| event["parameters"]["triton_final_response"] == false), "{found:?}");
            assert!(found.iter().all(|event| event["outputs"][0]["data"] == json!([count])), "{found:?}");
        }
        server.stop();
    });
}

#[test]
fn models_that_answer_once_have_one_event() {
    let (_repository, server) = start(usual(), &[]);
    let mut peer = Peer::connect(server.http);
    let body = r#"{"id":"p","inputs":[{"name":"INPUT0","datatype":"INT32","shape":[2],"data":[5,6]}]}"#;
    let whole = infer(&mut peer, "plain", &[], body).json();
    let answer = infer(&mut peer, "plain", &[SSE], body);
    assert!(answer.status == 200 && is_events(&answer), "{answer:?}");
    let mut expected = whole.clone();
    expected["parameters"]["triton_final_response"] = json!(true);
    assert_eq!(events(&answer.body), [expected], "the same object, and the flag");
    // Binary data goes in, and classes come out.
    let tail: Vec<u8> = [0.5f32, 2.0, 1.0].iter().flat_map(|value| value.to_le_bytes()).collect();
    let head = json!({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [3],
        "parameters": {"binary_data_size": 12}}],
        "outputs": [{"name": "OUTPUT0", "parameters": {"classification": 2, "binary_data": false}}]});
    let bytes = infer_with_tail("/v2/models/scores/infer", &head.to_string(), &tail);
    let with_accept = String::from_utf8_lossy(&bytes[..60]).find("\r\n").expect("the request line") + 2;
    let bytes = [&bytes[..with_accept], b"Accept: Text/Event-Stream;q=0.5\r\n", &bytes[with_accept..]].concat();
    let answer = peer.send(&bytes).answer();
    assert_eq!(events(&answer.body)[0]["outputs"][0]["data"], json!(["2.000000:1:b", "1.000000:2:c"]));
    let headers = [SSE, ("Inference-Header-Content-Length", "0")];
    let answer = peer.post("/v2/models/plain/infer", &headers, &9i32.to_le_bytes());
    assert_eq!(events(&answer.body)[0]["outputs"][0]["data"], json!([9]), "a raw request");
    server.stop();
}

#[test]
fn without_the_header_nothing_has_changed() {
    let (_repository, server) = start(usual(), &[]);
    let mut peer = Peer::connect(server.http);
    let body = square(1, json!({}));
    for accept in ["*/*", "application/json", "text/event-stream;q=0", "application/json, text/event-stream;q=0.5"] {
        let answer = infer(&mut peer, "square", &[("Accept", accept)], &body);
        assert_eq!((answer.status, answer.error()), (501, REFUSED.to_owned()), "{accept}");
        assert_eq!(answer.header("content-type"), Some("text/plain"));
    }
    let answer = infer(&mut peer, "square", &[("Accept", "application/json"), SSE], &body);
    assert_eq!(events(&answer.body).len(), 1, "both are as welcome");
    let plain = |parameters: Value| {
        let input = json!({"name": "INPUT0", "datatype": "INT32", "shape": [1], "data": [5]});
        json!({"parameters": parameters, "inputs": [input]}).to_string()
    };
    let wish = plain(json!({"triton_enable_empty_final_response": true}));
    let answer = infer(&mut peer, "plain", &[], &wish);
    let text = "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified.";
    assert_eq!((answer.status, answer.error()), (400, text.to_owned()));
    let answer = infer(&mut peer, "plain", &[SSE], &wish);
    assert_eq!(events(&answer.body).len(), 1, "it has no end of its own");
    let answer = infer(&mut peer, "plain", &[SSE], &plain(json!({"triton_other": true})));
    assert_eq!((answer.status, answer.error()), (400, text.to_owned()));
    server.stop();
}

#[test]
fn errors_before_and_behind_the_first_response() {
    let (_repository, server) = start(usual(), &[]);
    let mut peer = Peer::connect(server.http);
    let plain_input = r#"{"name":"INPUT0","datatype":"INT32","shape":[1],"data":[5]}"#;
    let wish = r#"{"parameters":{"triton_enable_empty_final_response":1},"inputs":[]}"#;
    let data =
        format!(r#"{{"inputs":[{plain_input}],"outputs":[{{"name":"OUTPUT0","parameters":{{"binary_data":true}}}}]}}"#);
    let all = format!(r#"{{"parameters":{{"binary_data_output":true}},"inputs":[{plain_input}]}}"#);
    let carried = "is true, but an event stream carries no binary data";
    let table = [
        ("plain", "{", 500, "Missing a name for object member. at 1".to_owned()),
        (
            "plain",
            wish,
            500,
            "Unable to parse 'triton_enable_empty_final_response': attempt to access JSON non-boolean as boolean"
                .into(),
        ),
        ("plain", &data, 400, format!("'binary_data' of output 'OUTPUT0' {carried}")),
        ("plain", &all, 400, format!("'binary_data_output' of the request {carried}")),
        ("absent", "{", 404, "Request for unknown model: 'absent' is not found".into()),
        ("square", r#"{"inputs":[]}"#, 400, "expected 1 inputs but got 0 inputs for model 'square'".into()),
    ];
    for (model, body, status, text) in table {
        let answer = infer(&mut peer, model, &[SSE], body);
        assert_eq!(answer.status, status, "{body}: {}", answer.text());
        assert!(answer.error().contains(&text), "{body}: {}", answer.error());
        assert!(answer.header("content-length").is_some());
    }
    let failure = json!({"error": "simulated failure"});
    let answer = infer(&mut peer, "failing_first", &[SSE], &square(2, json!({})));
    assert!(is_events(&answer));
    assert_eq!((answer.status, events(&answer.body)), (400, vec![failure.clone(), failure.clone()]));
    let body = square(4, json!({"triton_enable_empty_final_response": true}));
    let answer = infer(&mut peer, "failing", &[SSE], &body);
    let found = events(&answer.body);
    assert_eq!((answer.status, found.len()), (200, 4), "{found:?}");
    assert_eq!((&found[1], &found[2]), (&failure, &failure));
    assert_eq!(found[3]["parameters"]["triton_final_response"], true);
    // What cannot be written as JSON is an error of the response.
    let headers = [SSE, ("Inference-Header-Content-Length", "0")];
    let answer = peer.post("/v2/models/half/infer", &headers, b"ab");
    let text = "sending FP16 data via JSON is not supported. Please use the binary data format for output";
    assert_eq!((answer.status, events(&answer.body)), (400, vec![json!({"error": text})]));
    server.stop();
}

#[test]
fn a_model_that_promised_one_response_is_held_to_it_in_events_too() {
    let Some(directory) = later_backend() else { return };
    let (_repository, server) = start_later(usual(), &directory, &[]);
    let mut peer = Peer::connect(server.http);
    let table = [
        ("together", &[4][..], 200, json!(4)),
        ("plainly", &[4], 200, json!(4)),
        ("plainly", &[4, 5], 500, json!("expected a single response, got 2")),
        ("plainly", &[], 500, json!("expected a single response, got 0")),
        ("error", &[4], 400, json!("trouble at 4")),
    ];
    for (what, values, status, expected) in table {
        let answer = infer(&mut peer, "once", &[SSE], &later(what, values));
        let [event] = &events(&answer.body)[..] else { panic!("{answer:?}") };
        let found = event.pointer("/outputs/0/data/0").or(event.get("error")).cloned();
        assert_eq!((answer.status, found), (status, Some(expected)), "{what} {values:?}");
        if status == 200 {
            assert_eq!(event["parameters"]["triton_final_response"], true, "nothing follows it");
        }
    }
    server.stop();
}

fn cancels(server: &Server, model: &str) -> u64 {
    let found = Peer::connect(server.http).get(&format!("/v2/models/{model}/stats")).json();
    let responses = found["model_stats"][0]["response_stats"].as_object().cloned().unwrap_or_default();
    responses.values().filter_map(|response| response["cancel"]["count"].as_u64()).sum()
}

fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The ways to ask for many responses of `slow`; the last two leave no other request possible on their connection.
fn long_requests(count: i32) -> Vec<Vec<u8>> {
    let object = format!("{{\"IN\":{count}}}");
    let tensors = square(count, json!({}));
    let stream = "/v2/models/slow/generate_stream";
    let old = format!("POST {stream} HTTP/1.0\r\nContent-Length: {}\r\n\r\n{object}", object.len());
    vec![
        request("POST", stream, &[], object.as_bytes()),
        request("POST", "/v2/models/slow/generate", &[], object.as_bytes()),
        request("POST", "/v2/models/slow/infer", &[SSE], tensors.as_bytes()),
        request("POST", stream, &[("Connection", "close")], object.as_bytes()),
        old.into_bytes(),
    ]
}

#[test]
fn whoever_leaves_in_the_middle_cancels_at_once() {
    each(&variant::ALL, |variant| {
        let (_repository, server) = start(variant, &[]);
        for (at, bytes) in long_requests(1_000_000).iter().enumerate() {
            let mut peer = Peer::connect(server.http);
            peer.send(bytes);
            // `generate` says nothing before the end: its model is seen at work instead.
            match at {
                1 => wait_until("the model works", || {
                    let found = Peer::connect(server.http).get("/v2/models/slow/stats").json();
                    let first = &found["model_stats"][0]["response_stats"]["0"]["success"]["count"];
                    first.as_u64().is_some_and(|count| count > at as u64)
                }),
                _ => assert_eq!(peer.head().status, 200),
            }
            // Closing alone may take effect late: a process that another test starts holds a copy of the descriptor.
            peer.finish();
            drop(peer);
            wait_until("the cancellation", || cancels(&server, "slow") == at as u64 + 1);
        }
        server.stop();
    });
}

fn later(what: &str, values: &[i32]) -> String {
    let input = json!({"name": "INPUT0", "datatype": "INT32", "shape": [values.len()], "data": values});
    json!({"parameters": {"do": what}, "inputs": [input]}).to_string()
}

/// The C backend as decoupled model `later`, and as `once`, which promises one response.
fn start_later(variant: Variant, directory: &Path, flags: &[&str]) -> (Repository, Server) {
    let repository = Repository::new();
    repository.identity_of("later", "later", 0, &[Pair::new("INT32", "-1")], DECOUPLED);
    repository.identity_of("later", "once", 0, &[Pair::new("INT32", "-1")], "");
    repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
    let directory = format!("--backend-directory={}", directory.display());
    let server = Server::start(variant, repository.path(), &[&[&*directory], flags].concat());
    (repository, server)
}

#[test]
fn a_waiting_library_sees_the_cancellation() {
    let Some(directory) = later_backend() else { return };
    each(&variant::ALL, |variant| {
        let (_repository, server) = start_later(variant, &directory, &[]);
        let mut peer = Peer::connect(server.http);
        peer.send(&request("POST", "/v2/models/later/infer", &[SSE], later("cancelled", &[1, 2]).as_bytes()));
        peer.head();
        assert_eq!(events(&peer.chunk().expect("an event")).len(), 1);
        assert!(!server.log().contains("saw the cancellation"));
        peer.finish();
        server.wait_for_log("later.c: saw the cancellation");
        drop(peer);
        server.stop();
    });
}

/// Responses of a MiB each, and as much as JSON: far more than the server may keep for one client.
const BIG: usize = 150;

/// A client that reads nothing for so long loses its connection.
const UNREAD: Duration = Duration::from_secs(10);

/// Asks for so many, reads them with pauses, and returns by how many MiB the server grew meanwhile.
fn read_slowly(variant: Variant, directory: &Path, flags: &[&str], count: usize, window: &Window) -> u64 {
    let (_repository, server) = start_later(variant, directory, flags);
    let before = server.resident_kib();
    let mut peer = Peer::connect(server.http);
    let values: Vec<i32> = (100..100 + count as i32).collect();
    let body = later("big", &values);
    peer.send(&request("POST", "/v2/models/later/infer", &[SSE], body.as_bytes()));
    assert_eq!(peer.head().status, 200);
    let mut most = 0;
    for (at, value) in values.iter().enumerate() {
        window.open(UNREAD);
        let event = peer.chunk().expect("an event");
        let text = String::from_utf8_lossy(&event);
        let expected = format!("\"data\":[{value},{value},");
        assert!(text.contains(&expected), "{}", &text[..200.min(text.len())]);
        if at % 10 == 0 {
            // Nothing is read meanwhile; others are served.
            let mut other = Peer::connect(server.http);
            let answer = other.post("/v2/models/plain/generate", &[], br#"{"INPUT0":1}"#);
            assert_eq!(answer.json()["OUTPUT0"], 1);
            most = most.max(server.resident_kib());
        }
    }
    assert_eq!(peer.chunk(), None);
    server.stop();
    most.saturating_sub(before) >> 10
}

#[test]
fn a_slow_reader_holds_the_model_back_and_not_the_memory() {
    let Some(directory) = later_backend() else { return };
    in_time(|window| {
        let grown = read_slowly(usual(), &directory, &[], BIG, window);
        assert!(grown < BIG as u64 / 2, "the server grew by {grown} MiB");
    });
    each(&variant::ALL, |variant| {
        in_time(|window| {
            let grown = read_slowly(variant, &directory, &["--grpc-max-response-pool-size=1"], 50, window);
            assert!(grown < 25, "the server grew by {grown} MiB");
        });
    });
}

#[test]
fn a_client_that_never_reads_loses_its_connection_and_nobody_else_does() {
    let Some(directory) = later_backend() else { return };
    in_time(|window| never_read_and_slowly_read(&directory, window));
}

fn never_read_and_slowly_read(directory: &Path, window: &Window) {
    let (_repository, server) = start_later(usual(), directory, &[]);
    let values: Vec<i32> = (0..BIG as i32).collect();
    let mut stuck = Peer::connect(server.http);
    let body = later("big", &values);
    stuck.send(&request("POST", "/v2/models/later/infer", &[SSE], body.as_bytes()));
    assert_eq!(stuck.head().status, 200);
    // One that reads a little every second keeps its own.
    let mut slow = Peer::connect(server.http);
    slow.send(&request("POST", "/v2/models/later/infer", &[SSE], body.as_bytes()));
    assert_eq!(slow.head().status, 200);
    let gone = "a connection is closed: its client does not read the responses";
    let (mut read, started) = (0, Instant::now());
    while !server.log().contains(gone) {
        assert!(started.elapsed() < PATIENCE, "who never reads keeps its connection:\n{}", server.log());
        window.open(UNREAD);
        if read < BIG - 50 {
            slow.chunk().expect("an event");
            read += 1;
        }
        std::thread::sleep(Duration::from_millis(300));
    }
    let mut got = 0;
    while let Ok(Some(_)) = stuck.try_chunk() {
        got += 1;
    }
    assert!(got < BIG / 2, "{got} responses");
    window.open(UNREAD);
    while slow.chunk().is_some() {
        window.open(UNREAD);
        read += 1;
    }
    assert_eq!(read, BIG, "the slow one has everything");
    assert_eq!(server.log().matches(gone).count(), 1);
    let answer = infer(&mut slow, "later", &[SSE], &later("plainly", &[1, 2]));
    assert_eq!(events(&answer.body).len(), 2, "neither its connection nor the model has suffered");
    server.stop();
}

#[test]
fn an_answer_that_has_begun_is_finished_before_the_server_ends() {
    each(&variant::ALL, |variant| {
        let (_repository, server) = start(variant, &[]);
        let mut peer = Peer::connect(server.http);
        peer.send(&request("POST", "/v2/models/slow/infer", &[SSE], square(100, json!({})).as_bytes()));
        assert_eq!(peer.head().status, 200);
        assert_eq!(events(&peer.chunk().expect("an event")).len(), 1);
        server.terminate();
        let mut found = 1;
        while let Some(event) = peer.chunk() {
            found += events(&event).len();
        }
        assert_eq!(found, 100);
        let (status, log) = server.wait();
        assert_eq!(status.code(), Some(0), "{log}");
    });
}

#[test]
fn many_streams_at_once() {
    each(&variant::ALL, |variant| {
        let (_repository, server) = start(variant, &[]);
        let mut peers: Vec<Peer> = (0..24).map(|_| Peer::connect(server.http)).collect();
        for (at, peer) in peers.iter_mut().enumerate() {
            for round in 0..3 {
                let count = at as i32 + round;
                let body = square(count, json!({"triton_enable_empty_final_response": true}));
                peer.send(&request("POST", "/v2/models/square/infer", &[SSE], body.as_bytes()));
                let body = format!("{{\"IN\":{count}}}");
                peer.send(&request("POST", "/v2/models/square/generate_stream", &[], body.as_bytes()));
            }
        }
        for (at, peer) in peers.iter_mut().enumerate() {
            for round in 0..3 {
                assert_eq!(events(&peer.answer().body).len(), at + round + 1);
                let found = events(&peer.answer().body);
                assert_eq!(found.len(), at + round);
                assert!(found.iter().all(|event| event["OUT"] == json!(at + round)));
            }
        }
        server.stop();
    });
}

#[test]
fn pythons_own_client_reads_events() {
    let Some(python) = Python::get() else { return };
    each(&variant::ALL, |variant| {
        let (_repository, server) = start(variant, &[]);
        python.run("events.py", &["--url", &server.http.to_string()]);
        server.stop();
    });
}
