//! `generate` and `generate_stream` (contract/http.md section 7).

use serde_json::{Value, json};

use super::http_streaming::{self, DECOUPLED, events, later_backend, repeat_config, square_config};
use nereid_test_support::http::{Answer, Peer, request};
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::Server;
use nereid_test_support::variant::{self, each, usual};

/// Models of one input and what the rows below need besides.
fn models() -> Repository {
    let repository = Repository::new();
    let one = |name: &str, batch, datatype, dims| {
        repository.identity(name, batch, &[Pair::new(datatype, dims)]);
    };
    one("plain", 0, "INT32", "-1");
    one("batch", 4, "FP32", "2");
    one("words", 0, "BYTES", "-1");
    one("word_rows", 4, "BYTES", "1");
    one("flag", 0, "BOOL", "1");
    one("half", 0, "FP16", "-1");
    one("brain", 0, "BF16", "-1");
    one("deep", 0, "UINT8", "-1, -1");
    one("fixed", 0, "INT64", "2, 3");
    one("wide", 0, "FP64", "-1");
    repository.identity("two", 0, &[Pair::new("INT32", "-1"), Pair::new("BYTES", "-1").optional()]);
    let ensemble = r#"platform: "ensemble"
        input [ { name: "parameters" data_type: TYPE_INT32 dims: [ -1 ] } ]
        output [ { name: "OUT" data_type: TYPE_INT32 dims: [ -1 ] } ]
        ensemble_scheduling { step [ { model_name: "plain" model_version: -1
          input_map { key: "INPUT0" value: "parameters" } output_map { key: "OUTPUT0" value: "OUT" } } ] }"#;
    repository.model("named", ensemble);
    repository.model("repeat", &repeat_config()).model("square", &square_config(&[]));
    repository.model("failing", &square_config(&[("CUSTOM_FAIL_COUNT", "2"), ("CUSTOM_EMPTY_COUNT", "1")]));
    repository.model("failing_first", &square_config(&[("CUSTOM_FAIL_COUNT", "9")]));
    repository
}

fn ask(peer: &mut Peer, model: &str, action: &str, body: &str) -> Answer {
    peer.post(&format!("/v2/models/{model}/{action}"), &[], body.as_bytes())
}

/// What `generate` answers, which must be framed as it should.
fn object(answer: &Answer) -> Value {
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!((answer.header("transfer-encoding"), answer.header("content-length")), (Some("chunked"), None));
    answer.json()
}

#[test]
fn members_become_tensors_and_parameters() {
    each(&variant::ALL, |variant| {
        let repository = models();
        let server = Server::start(variant, repository.path(), &[]);
        let mut peer = Peer::connect(server.http);
        // Model, body, and what comes back as OUTPUT0.
        let table = [
            ("plain", r#"{"INPUT0":7}"#, json!(7)),
            ("plain", r#"{"INPUT0":[7]}"#, json!(7)),
            ("plain", r#"{"INPUT0":[-1,2,2147483647]}"#, json!([-1, 2, 2147483647])),
            ("plain", r#"{"parameters":{"INPUT0":[1,2]}}"#, json!([1, 2])),
            ("plain", r#"{"INPUT0":[[[3]]]}"#, json!(3)),
            ("batch", r#"{"INPUT0":[1,2]}"#, json!([1.0, 2.0])),
            ("batch", r#"{"INPUT0":[1,2,3.5,NaN]}"#, Value::Null),
            ("words", r#"{"INPUT0":"a \u00e9 \"q\" \n"}"#, json!("a é \"q\" \n")),
            ("words", r#"{"INPUT0":["x","","z"]}"#, json!(["x", "", "z"])),
            ("word_rows", r#"{"INPUT0":["x","y"]}"#, json!(["x", "y"])),
            ("flag", r#"{"INPUT0":true}"#, json!(true)),
            ("flag", r#"{"INPUT0":[false]}"#, json!(false)),
            // The innermost open dimension takes them all.
            ("deep", r#"{"INPUT0":[1,255,3]}"#, json!([1, 255, 3])),
            ("fixed", r#"{"INPUT0":[1,2,3,4,5,9223372036854775807]}"#, json!([1, 2, 3, 4, 5, i64::MAX])),
            ("wide", r#"{"INPUT0":1e-7}"#, json!(1e-7)),
            // Names that mean something elsewhere are plain parameters here.
            (
                "plain",
                r#"{"INPUT0":1,"priority":"high","sequence_id":true,"timeout":1.5,"triton_x":2,"binary_data_output":7,
                   "big":18446744073709551615,"parameters":{"sequence_start":"no"}}"#,
                json!(1),
            ),
        ];
        for (model, body, expected) in table {
            let answer = ask(&mut peer, model, "generate", body);
            if expected.is_null() {
                assert!(answer.text().contains(r#""OUTPUT0":[1.0,2.0,3.5,NaN]"#), "{}", answer.text());
                continue;
            }
            let found = object(&answer);
            assert_eq!((&found["OUTPUT0"], &found["model_name"]), (&expected, &json!(model)), "{body}");
        }
        server.stop();
    });
}

#[test]
fn the_object_is_sorted_and_holds_scalars_where_there_is_one_element() {
    let repository = models();
    let server = Server::start(usual(), repository.path(), &[]);
    let mut peer = Peer::connect(server.http);
    let parameters = r#""param0":"an example string parameter","param1":42,"param2":false,"param3":123.123"#;
    let table = [
        (
            "two",
            r#"{"INPUT0":[1,2],"id":"r1","INPUT1":"w"}"#,
            format!(
                r#"{{"OUTPUT0":[1,2],"OUTPUT1":"w","id":"r1","model_name":"two","model_version":"1",{parameters}}}"#
            ),
        ),
        (
            "plain",
            r#"{"INPUT0":5,"id":""}"#,
            format!(r#"{{"OUTPUT0":5,"model_name":"plain","model_version":"1",{parameters}}}"#),
        ),
    ];
    for (model, body, expected) in table {
        let answer = ask(&mut peer, model, "generate", body);
        object(&answer);
        assert_eq!(answer.text(), expected);
        let answer = ask(&mut peer, model, "generate_stream", body);
        assert_eq!((answer.status, answer.text()), (200, format!("data: {expected}\n\n")));
    }
    let answer = peer.post("/v2/models/plain/versions/1/generate", &[], br#"{"INPUT0":5}"#);
    assert_eq!(object(&answer)["model_version"], "1");
    server.stop();
}

#[test]
fn what_cannot_be_mapped_is_refused_with_plain_json() {
    let repository = models();
    let server = Server::start(usual(), repository.path(), &["--http-max-input-size=4000"]);
    let mut peer = Peer::connect(server.http);
    let boolean = "Unable to parse 'data': attempt to access JSON non-boolean as boolean";
    let empty = "failed to parse the request JSON buffer: The document is empty. at 0";
    let schema = "The schema can not convert input 'INPUT0' to tensor with proper shape";
    let object = "Expected JSON object for keyword: 'parameters': attempt to access JSON non-object as object";
    let conflict = "Keyword 'parameters' for nested schema also given as input tensor name";
    let signed = "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer";
    let unsigned = "Unable to parse 'data': attempt to access JSON non-unsigned-integer as unsigned-integer";
    let id = "Unable to parse 'id': attempt to access JSON non-string as string";
    let members = "attempt to get members for non-object";
    let root = "failed to parse the request JSON buffer: The document root must not be followed by other values. at 13";
    let excess = "Unable to parse 'data': Shape does not match true shape of 'data' field";
    let shortage = "Failed to parse 'data' field: shape does not match true shape";
    let nesting = "Unable to parse 'data': JSON nesting depth exceeds maximum allowed limit (100)";
    let no_id = "[request id: <id_unknown>] ";
    let twice = "input 'INPUT0' already exists in request";
    let no_shape = "input 'INPUT0' has no shape but model requires batch dimension for 'batch'";
    let shape = "unexpected shape for input 'INPUT0' for model 'plain'. Expected [-1], got []. ";
    let missing = "expected 1 inputs but got 0 inputs for model 'plain'. Got input(s) [], but missing required \
                   input(s) ['INPUT0']. Please provide all required input(s).";
    let half = "data via JSON is not supported. Please use the binary data format for input INPUT0";
    let invalid = "has invalid type. It should be either 'int', 'bool', or 'string'.";
    let strings = "Unable to parse JSON bytes array: attempt to access JSON non-string as string";
    let nested = "Converting keyword: 'parameters': ";
    let unknown = "Request for unknown model: ";
    let limit = "exceeds the maximum allowed input size of";
    let raise = "Use --http-max-input-size to increase the limit.";
    let large = format!(r#"{{"INPUT0":[{}]}}"#, ["0"; 600].join(","));
    let sum = format!(r#"{{"INPUT0":[{}],"INPUT1":"{}"}}"#, ["0"; 900].join(","), "x".repeat(500));
    let nested_sum =
        format!(r#"{{"INPUT0":[{}],"parameters":{{"INPUT1":"{}"}}}}"#, ["0"; 900].join(","), "x".repeat(500));
    let long = format!(r#"{{"x":"{}"}}"#, "x".repeat(4000));
    let deep = format!(r#"{{"INPUT0":{}1{}}}"#, "[".repeat(100), "]".repeat(100));
    let table: &[(&str, &str, u16, String)] = &[
        ("plain", "", 500, empty.into()),
        ("plain", "[1]", 500, members.into()),
        ("plain", "7", 500, members.into()),
        ("plain", r#"{"INPUT0":1} x"#, 500, root.into()),
        ("plain", r#"{"id":7,"INPUT0":[]}"#, 500, id.into()),
        ("plain", r#"{"parameters":7}"#, 500, object.into()),
        ("named", r#"{"parameters":{}}"#, 400, conflict.into()),
        ("plain", r#"{"INPUT0":1,"p":{}}"#, 400, format!("parameter 'p' {invalid}")),
        ("plain", r#"{"INPUT0":1,"p":[1]}"#, 400, format!("parameter 'p' {invalid}")),
        ("plain", r#"{"INPUT0":1,"p":null}"#, 400, format!("parameter 'p' {invalid}")),
        ("plain", r#"{"INPUT0":1,"parameters":{"p":{}}}"#, 400, format!("{nested}parameter 'p' {invalid}")),
        // Behind the first `parameters` the word is one like any other.
        (
            "plain",
            r#"{"INPUT0":1,"parameters":{"parameters":{}}}"#,
            400,
            format!("{nested}parameter 'parameters' {invalid}"),
        ),
        // The first thing that is wrong in the body's order.
        ("flag", r#"{"INPUT0":1,"p":{}}"#, 500, boolean.into()),
        ("flag", r#"{"p":{},"INPUT0":1}"#, 400, format!("parameter 'p' {invalid}")),
        ("flag", r#"{"INPUT0":[1]}"#, 500, boolean.into()),
        ("flag", r#"{"parameters":{"INPUT0":"yes"}}"#, 500, format!("{nested}{boolean}")),
        ("plain", r#"{"INPUT0":1.5}"#, 500, signed.into()),
        ("plain", r#"{"INPUT0":["1"]}"#, 500, signed.into()),
        ("plain", r#"{"INPUT0":{}}"#, 500, signed.into()),
        ("plain", r#"{"INPUT0":null}"#, 500, signed.into()),
        ("deep", r#"{"INPUT0":-1}"#, 500, unsigned.into()),
        (
            "wide",
            r#"{"INPUT0":true}"#,
            500,
            "Unable to parse 'data': attempt to access JSON non-number as double".into(),
        ),
        ("words", r#"{"INPUT0":7}"#, 500, strings.into()),
        ("words", r#"{"INPUT0":["a",7]}"#, 500, strings.into()),
        ("plain", r#"{"INPUT0":[[1,2]]}"#, 500, excess.into()),
        ("plain", r#"{"INPUT0":[[]]}"#, 500, shortage.into()),
        ("plain", &deep, 400, nesting.into()),
        ("fixed", r#"{"INPUT0":[1,2,3,4]}"#, 400, schema.into()),
        ("fixed", r#"{"INPUT0":[1,2,3,4,5,6,7,8,9,10,11,12]}"#, 400, schema.into()),
        ("batch", r#"{"INPUT0":[1,2,3]}"#, 400, schema.into()),
        ("half", r#"{"INPUT0":[1]}"#, 400, format!("receiving FP16 {half}")),
        ("brain", r#"{"INPUT0":1}"#, 400, format!("receiving BF16 {half}")),
        ("plain", r#"{"INPUT0":1,"INPUT0":2}"#, 400, format!("{no_id}{twice}")),
        (
            "plain",
            r#"{"id":"a","INPUT0":1,"parameters":{"INPUT0":2}}"#,
            400,
            format!("{nested}[request id: a] {twice}"),
        ),
        ("batch", r#"{"INPUT0":[]}"#, 400, format!("{no_id}{no_shape}")),
        ("plain", r#"{"INPUT0":[]}"#, 400, format!("{no_id}{shape}")),
        ("plain", r#"{"input0":1}"#, 400, format!("{no_id}{missing}")),
        (
            "wide",
            &large,
            400,
            format!("request size of 0 bytes with input 'INPUT0' of size 4800 bytes {limit} 4000. {raise}"),
        ),
        (
            "two",
            &sum,
            400,
            format!("request size of 3600 bytes with input 'INPUT1' of size 504 bytes {limit} 4000. {raise}"),
        ),
        (
            "two",
            &nested_sum,
            400,
            format!("{nested}request size of 3600 bytes with input 'INPUT1' of size 504 bytes {limit} 4000. {raise}"),
        ),
        ("plain", &long, 400, format!("request JSON size of 4008 bytes {limit} 4000 bytes. {raise}")),
        ("absent", "{", 404, format!("{unknown}'absent' is not found")),
        ("plain/versions/2", "{", 404, format!("{unknown}'plain' version 2 is not found")),
    ];
    for action in ["generate", "generate_stream"] {
        for (model, body, status, text) in table {
            let answer = ask(&mut peer, model, action, body);
            let shown = &body[..body.len().min(80)];
            assert_eq!((answer.status, answer.error()), (*status, text.clone()), "{model}/{action} {shown}");
            assert_eq!(answer.header("content-type"), Some("application/json"), "{model}/{action} {shown}");
            assert!(answer.header("content-length").is_some(), "{model}/{action} {shown}");
        }
        let chunked = format!(
            "POST /v2/models/plain/{action} HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{long}\r\n0\r\n\r\n",
            long.len()
        );
        let answer = peer.send(chunked.as_bytes()).answer();
        assert_eq!(answer.error(), format!("request JSON size of 4008 bytes {limit} 4000 bytes. {raise}"));
        for coding in ["gzip", "deflate", "br"] {
            // Before the body is looked at, behind the model.
            let path = format!("/v2/models/plain/{action}");
            let answer = peer.post(&path, &[("Content-Encoding", coding)], b"no JSON");
            let text = "Unsupported content-encoding, only 'identity' is supported.";
            assert_eq!((answer.status, answer.error()), (400, text.to_owned()));
            assert_eq!(answer.header("content-type"), Some("application/json"));
            let path = format!("/v2/models/absent/{action}");
            assert_eq!(peer.post(&path, &[("Content-Encoding", coding)], b"").status, 404);
        }
        for coding in ["identity", ""] {
            let path = format!("/v2/models/plain/{action}");
            assert_eq!(peer.post(&path, &[("Content-Encoding", coding)], br#"{"INPUT0":1}"#).status, 200);
        }
        let answer = peer.get(&format!("/v2/models/plain/{action}"));
        assert_eq!((answer.status, answer.error()), (405, "Method Not Allowed".to_owned()));
        assert_eq!(answer.header("content-type"), Some("application/json"));
    }
    server.stop();
}

#[test]
fn each_response_is_an_event_and_the_end_is_none() {
    each(&variant::ALL, |variant| {
        let repository = models();
        let server = Server::start(variant, repository.path(), &[]);
        let mut peer = Peer::connect(server.http);
        let body = br#"{"id":"r","IN":[4,5,6],"DELAY":[0,1,0],"WAIT":0}"#;
        peer.send(&request("POST", "/v2/models/repeat/generate_stream", &[], body));
        let head = peer.head();
        assert_eq!((head.status, head.header("transfer-encoding")), (200, Some("chunked")));
        assert_eq!(head.header("content-type"), Some("text/event-stream; charset=utf-8"));
        for (index, value) in [4, 5, 6].into_iter().enumerate() {
            let expected = format!(
                "data: {{\"IDX\":{index},\"OUT\":{value},\"id\":\"r\",\"model_name\":\"repeat\",\
                 \"model_version\":\"1\"}}\n\n"
            );
            let chunk = peer.chunk().expect("an event");
            assert_eq!(String::from_utf8_lossy(&chunk), expected, "one chunk each");
        }
        assert_eq!(peer.chunk(), None, "no event for the bare end, and no sentinel");
        let answer = ask(&mut peer, "square", "generate_stream", r#"{"IN":0}"#);
        assert_eq!((answer.status, answer.text()), (200, String::new()));
        assert_eq!(answer.header("content-type"), Some("text/event-stream; charset=utf-8"));
        server.stop();
    });
}

const ONE: &str = "generate expects model to produce exactly 1 response, use generate stream for model that generates \
                   various number of responses";

#[test]
fn generate_wants_one_response() {
    let repository = models();
    let server = Server::start(usual(), repository.path(), &[]);
    let mut peer = Peer::connect(server.http);
    // Model, count, status, error.
    let table = [
        ("square", 1, 200, None),
        ("square", 0, 200, Some(ONE)),
        ("square", 2, 200, Some(ONE)),
        ("square", 500, 200, Some(ONE)),
        ("failing_first", 1, 400, Some("simulated failure")),
        // The first response has the say about the status.
        ("failing_first", 3, 400, Some(ONE)),
        ("failing", 4, 200, Some(ONE)),
    ];
    for (model, count, status, error) in table {
        let answer = ask(&mut peer, model, "generate", &format!(r#"{{"IN":{count}}}"#));
        assert_eq!(answer.status, status, "{model} {count}: {}", answer.text());
        assert_eq!(answer.header("content-type"), Some("application/json"));
        assert_eq!(answer.header("transfer-encoding"), Some("chunked"));
        match error {
            Some(text) => assert_eq!(answer.error(), text, "{model} {count}"),
            None => assert_eq!(answer.json()["OUT"], 1),
        }
    }
    server.stop();
}

#[test]
fn errors_of_a_stream_are_events() {
    let repository = models();
    let server = Server::start(usual(), repository.path(), &[]);
    let mut peer = Peer::connect(server.http);
    let answer = ask(&mut peer, "failing_first", "generate_stream", r#"{"IN":2}"#);
    let failure = "data: {\"error\":\"simulated failure\"}\n\n";
    assert_eq!((answer.status, answer.text()), (400, failure.repeat(2)));
    assert_eq!(answer.header("content-type"), Some("text/event-stream; charset=utf-8"));
    // Four: one good, two failed, one not sent.
    let answer = ask(&mut peer, "failing", "generate_stream", r#"{"IN":4}"#);
    assert_eq!(answer.status, 200);
    let found = events(&answer.body);
    assert_eq!(found[0]["OUT"], 4);
    assert_eq!(found[1..], [json!({"error": "simulated failure"}), json!({"error": "simulated failure"})]);
    // An output that JSON has no word for fails where it is written.
    let answer = ask(&mut peer, "repeat", "generate_stream", r#"{"IN":[1],"DELAY":[1,2],"WAIT":0}"#);
    let text = "expected IN and DELAY shape to match, got [1] and [2]";
    assert_eq!((answer.status, events(&answer.body)), (400, vec![json!({"error": text})]));
    server.stop();
}

#[test]
fn parameters_reach_the_model_and_odd_ends_are_ends() {
    let Some(directory) = later_backend() else { return };
    let repository = Repository::new();
    repository.identity_of("later", "later", 0, &[Pair::new("INT32", "-1")], DECOUPLED);
    let directory = format!("--backend-directory={}", directory.display());
    let server = Server::start(usual(), repository.path(), &[&directory]);
    let mut peer = Peer::connect(server.http);
    let unended = "the model ended the request without a final response";
    let table = [
        (r#"{"INPUT0":[4,5],"do":"plainly"}"#, vec![json!(4), json!(5)]),
        (r#"{"INPUT0":[4,5],"parameters":{"do":"together"}}"#, vec![json!(4), json!(5)]),
        (r#"{"INPUT0":[4],"do":"twice"}"#, vec![json!(4)]),
        (r#"{"INPUT0":[4,5],"do":"empty"}"#, vec![json!(4), json!(5)]),
        (r#"{"INPUT0":[4],"do":"never"}"#, vec![json!(4), json!(unended)]),
        (r#"{"INPUT0":[4,5],"do":"error"}"#, vec![json!("trouble at 4"), json!("trouble at 5")]),
    ];
    for (body, expected) in table {
        let answer = ask(&mut peer, "later", "generate_stream", body);
        let found: Vec<Value> = events(&answer.body).iter().map(http_streaming::either("OUTPUT0")).collect();
        assert_eq!(found, expected, "{body}");
    }
    let answer = ask(&mut peer, "later", "generate", r#"{"INPUT0":[4],"do":"nothing"}"#);
    assert_eq!((answer.status, answer.error()), (500, unended.to_owned()));
    let answer = ask(&mut peer, "later", "generate", r#"{"INPUT0":[4],"do":"together"}"#);
    assert_eq!(answer.json()["OUTPUT0"], 4);
    server.stop();
}

#[test]
fn old_peers_and_pipelines() {
    let repository = models();
    let server = Server::start(usual(), repository.path(), &[]);
    let mut old = Peer::connect(server.http);
    let body = r#"{"IN":[4,5],"DELAY":[0,1],"WAIT":0}"#;
    let old_request = |action: &str| {
        format!("POST /v2/models/repeat/{action} HTTP/1.0\r\nContent-Length: {}\r\n\r\n{body}", body.len())
    };
    let answer = old.send(old_request("generate_stream").as_bytes()).answer();
    assert_eq!((answer.status, answer.header("transfer-encoding")), (200, None));
    assert_eq!(events(&answer.body).len(), 2);
    let answer = Peer::connect(server.http).send(old_request("generate").as_bytes()).answer();
    assert_eq!(answer.error(), ONE);
    // Whatever is asked at once is answered in its order.
    let mut peer = Peer::connect(server.http);
    let slow = br#"{"id":"slow","IN":[1,2,3],"DELAY":[20,20,20],"WAIT":0}"#;
    let mut bytes = request("POST", "/v2/models/repeat/generate_stream", &[], slow);
    bytes.extend(request("POST", "/v2/models/plain/generate", &[], br#"{"INPUT0":9}"#));
    bytes.extend(request("POST", "/v2/models/repeat/generate_stream", &[], body.as_bytes()));
    bytes.extend(request("GET", "/v2/health/live", &[], b""));
    peer.send(&bytes);
    assert_eq!(events(&peer.answer().body).len(), 3);
    assert_eq!(object(&peer.answer())["OUTPUT0"], 9);
    assert_eq!(events(&peer.answer().body).len(), 2);
    assert_eq!(peer.answer().status, 200);
    server.stop();
}

#[test]
fn large_bodies_and_answers_are_read_and_written_in_portions() {
    each(&variant::ALL, |variant| {
        let repository = models();
        let server = Server::start(variant, repository.path(), &[]);
        let mut peer = Peer::connect(server.http);
        let numbers: Vec<i32> = (0..300_000).collect();
        let words: Vec<String> = numbers.iter().take(50_000).map(|number| format!("w{number}\"")).collect();
        for action in ["generate", "generate_stream"] {
            let body = json!({"INPUT0": numbers, "INPUT1": words}).to_string();
            let answer = ask(&mut peer, "two", action, &body);
            let found = match action {
                "generate" => object(&answer),
                _ => events(&answer.body).remove(0),
            };
            assert!(found["OUTPUT0"] == json!(numbers) && found["OUTPUT1"] == json!(words));
        }
        server.stop();
    });
}
