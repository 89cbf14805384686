//! Which version a request gets: weights, keys, headers and labels over both protocols.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde_json::json;

use super::{BODY, identity, is_near, sample, shown, version};
use nereid_test_support::grpc::{Grpc, SERVICE, code, decode, frame};
use nereid_test_support::http::Peer;
use nereid_test_support::repository::Repository;
use nereid_test_support::server::Server;
use nereid_test_support::variant::{self, each, usual};
use nereid_wire::inference as wire;
use wire::model_infer_request::InferInputTensor;

fn message(model: &str, version: &str) -> wire::ModelInferRequest {
    wire::ModelInferRequest {
        model_name: model.to_owned(),
        model_version: version.to_owned(),
        inputs: vec![InferInputTensor {
            name: "INPUT0".to_owned(),
            datatype: "INT32".to_owned(),
            shape: vec![1],
            ..Default::default()
        }],
        raw_input_contents: vec![Bytes::from_static(&[7, 0, 0, 0])],
        ..Default::default()
    }
}

/// The version that answers a unary call with that metadata.
fn by_grpc(grpc: &mut Grpc, headers: &[(&str, &str)], request: &wire::ModelInferRequest) -> Result<String, String> {
    let reply = grpc.exchange(&format!("{SERVICE}ModelInfer"), headers, &[frame(request)]);
    match reply.messages.first() {
        Some(answer) => Ok(decode::<wire::ModelInferResponse>(answer).model_version),
        None => Err(reply.status.message),
    }
}

#[test]
fn requests_without_a_version_are_spread_by_weight() {
    const TRIALS: usize = 1200;
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        identity(&repository, "m", &[("weights", "1:80,2:20")]);
        let server = Server::start(variant, repository.path(), &[]);
        // The same head again and again, which a plan would serve: no plan fixes a version.
        let mut peer = Peer::connect(server.http);
        let count = (0..TRIALS).filter(|_| version(&mut peer, "/v2/models/m/infer", &[]) == 2).count();
        assert!(is_near(count, TRIALS, 0.2), "{count} over HTTP");
        let mut grpc = Grpc::connect(server.grpc);
        let request = message("m", "");
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for _ in 0..TRIALS {
            *counts.entry(by_grpc(&mut grpc, &[], &request).unwrap()).or_default() += 1;
        }
        assert_eq!(counts.values().sum::<usize>(), TRIALS);
        assert!(is_near(counts["2"], TRIALS, 0.2) && counts.len() == 2, "{counts:?} over gRPC");
        let mut stream = grpc.open(&format!("{SERVICE}ModelStreamInfer"), &[]);
        let mut on_stream = 0;
        for _ in 0..TRIALS {
            grpc.send(&mut stream, &request);
            let answer: wire::ModelStreamInferResponse = decode(&grpc.next(&mut stream).expect("an answer"));
            assert_eq!(answer.error_message, "");
            on_stream += usize::from(answer.infer_response.unwrap_or_default().model_version == "2");
        }
        grpc.half_close(&mut stream);
        assert!(is_near(on_stream, TRIALS, 0.2), "{on_stream} on a stream");
        // A number in the path is what it always was, and is not counted.
        assert_eq!(version(&mut peer, "/v2/models/m/versions/3/infer", &[]), 3);
        let rule = shown(&server, "m");
        let of = |number: &str| rule["requests"][number]["weight"].as_u64().unwrap_or_default() as usize;
        assert_eq!(of("1") + of("2"), 3 * TRIALS);
        assert_eq!(of("2"), count + counts["2"] + on_stream);
        assert_eq!(rule["requests"]["3"], json!({"weight": 0, "header": 0, "sticky": 0, "label": 0}));
        let begins = r#"nereid_traffic_requests_total{model="m",reason="weight",version="2"}"#;
        assert_eq!(sample(&server, begins), Some(of("2") as f64));
        assert_eq!(sample(&server, r#"nereid_traffic_weight{model="m",version="2"}"#), Some(20.0));
        server.stop();
    });
}

#[test]
fn a_key_keeps_its_version_over_both_protocols() {
    const USERS: usize = 200;
    let repository = Repository::new();
    identity(&repository, "by_header", &[("weights", "1:50,2:50"), ("sticky", "header:X-User-Id")]);
    identity(&repository, "by_parameter", &[("weights", "1:50,2:50"), ("sticky", "parameter:user")]);
    let server = Server::start(usual(), repository.path(), &[]);
    let (mut peer, mut grpc) = (Peer::connect(server.http), Grpc::connect(server.grpc));
    let mut second = 0;
    for user in 0..USERS {
        let user = format!("user-{user}");
        let first = version(&mut peer, "/v2/models/by_header/infer", &[("x-user-id", &user)]);
        assert_eq!(version(&mut peer, "/v2/models/by_header/infer", &[("X-User-Id", &user)]), first);
        let other = by_grpc(&mut grpc, &[("x-user-id", &user)], &message("by_header", "")).unwrap();
        assert_eq!(other, first.to_string(), "{user}");
        let body = BODY.replacen('{', &format!("{{\"parameters\":{{\"user\":\"{user}\"}},"), 1);
        let answer = peer.post("/v2/models/by_parameter/infer", &[], body.as_bytes());
        assert_eq!(super::version_of(&answer), first, "{}", answer.text());
        let mut request = message("by_parameter", "");
        let value = wire::infer_parameter::ParameterChoice::StringParam(user);
        request.parameters.insert("user".to_owned(), wire::InferParameter { parameter_choice: Some(value) });
        assert_eq!(by_grpc(&mut grpc, &[], &request).unwrap(), first.to_string());
        second += usize::from(first == 2);
    }
    assert!(is_near(second, USERS, 0.5), "{second}");
    // A sequence stays on one version whatever the rule keeps together.
    for sequence in 1..30 {
        let body = BODY.replacen('{', &format!("{{\"parameters\":{{\"sequence_id\":{sequence}}},"), 1);
        let mut infer = || super::version_of(&peer.post("/v2/models/by_header/infer", &[], body.as_bytes()));
        let first = infer();
        assert!((0..4).all(|_| infer() == first), "sequence {sequence}");
    }
    server.stop();
}

#[test]
fn clients_choose_by_header_and_label() {
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        let rule = [("weights", "1:100"), ("header", "X-Canary"), ("labels", "stable:1,canary:2")];
        identity(&repository, "m", &rule);
        identity(&repository, "plain", &[]);
        let server = Server::start(variant, repository.path(), &[]);
        let (mut peer, mut grpc) = (Peer::connect(server.http), Grpc::connect(server.grpc));
        for (value, expected) in [("2", 2), ("canary", 2), ("3", 3), ("stable", 1)] {
            assert_eq!(version(&mut peer, "/v2/models/m/infer", &[("X-Canary", value)]), expected, "{value}");
            let answered = by_grpc(&mut grpc, &[("x-canary", value)], &message("m", "")).unwrap();
            assert_eq!(answered, expected.to_string(), "{value}");
        }
        let text = "Request for unknown model: 'm' version 9 is not found";
        let answer = peer.post("/v2/models/m/infer", &[("X-Canary", "9")], BODY.as_bytes());
        assert_eq!((answer.status, answer.error()), (404, text.to_owned()));
        assert_eq!(by_grpc(&mut grpc, &[("x-canary", "9")], &message("m", "")), Err(text.to_owned()));

        assert_eq!(version(&mut peer, "/v2/models/m/versions/canary/infer", &[]), 2);
        assert_eq!(version(&mut peer, "/v2/models/m/versions/stable/infer", &[("X-Canary", "2")]), 1);
        assert_eq!(by_grpc(&mut grpc, &[], &message("m", "canary")).as_deref(), Ok("2"));
        assert_eq!(peer.get("/v2/models/m/versions/canary").json()["versions"], json!(["2"]));
        assert_eq!(peer.get("/v2/models/m/versions/canary/ready").status, 200);
        assert_eq!(peer.get("/v2/models/m/versions/canary/config").status, 200);
        let statistics = peer.get("/v2/models/m/versions/canary/stats").json();
        assert_eq!(statistics["model_stats"][0]["version"], "2", "{statistics}");
        let asked = wire::ModelMetadataRequest { name: "m".to_owned(), version: "canary".to_owned() };
        let metadata: wire::ModelMetadataResponse = grpc.call("ModelMetadata", &asked).unwrap();
        assert_eq!(metadata.versions, ["2"]);
        let asked = wire::ModelReadyRequest { name: "m".to_owned(), version: "canary".to_owned() };
        assert!(grpc.call::<wire::ModelReadyResponse>("ModelReady", &asked).unwrap().ready);
        assert_eq!(shown(&server, "m")["requests"]["2"]["label"], 2);

        // Where there is no such label, all is as without labels.
        for path in ["/v2/models/m/versions/beta/infer", "/v2/models/plain/versions/canary/infer"] {
            let answer = peer.post(path, &[], BODY.as_bytes());
            assert_eq!((answer.status, answer.text()), (404, r#"{"error":"Not Found"}"#.to_owned()), "{path}");
        }
        let text = "failed to get model version from specified version string 'canary' (details: stol), version should \
                    be an integral value > 0";
        assert_eq!(by_grpc(&mut grpc, &[], &message("plain", "canary")), Err(text.to_owned()));
        let asked = wire::ModelReadyRequest { name: "plain".to_owned(), version: "canary".to_owned() };
        let refused = grpc.call::<wire::ModelReadyResponse>("ModelReady", &asked).unwrap_err();
        assert_eq!((refused.code, &*refused.message), (code::INVALID_ARGUMENT, text));
        server.stop();
    });
}

#[test]
fn generate_follows_the_rule_too() {
    let repository = Repository::new();
    let rule = [("weights", "1:100"), ("header", "x-canary")];
    identity(&repository, "m", &rule);
    let server = Server::start(usual(), repository.path(), &[]);
    let mut peer = Peer::connect(server.http);
    for (value, expected) in [("1", "1"), ("3", "3")] {
        let answer = peer.post("/v2/models/m/generate", &[("x-canary", value)], br#"{"INPUT0":[7]}"#);
        assert_eq!((answer.status, &answer.json()["model_version"]), (200, &json!(expected)), "{}", answer.text());
    }
    server.stop();
}

#[test]
fn a_label_needs_the_keys_that_its_route_needs() {
    let repository = Repository::new();
    identity(&repository, "m", &[("weights", "1:100"), ("labels", "canary:2")]);
    let flags = ["--http-restricted-api=inference:key=secret", "--http-restricted-api=model-repository:admin=secret"];
    let server = Server::start(usual(), repository.path(), &flags);
    let mut peer = Peer::connect(server.http);
    let infer = "/v2/models/m/versions/canary/infer";
    assert_eq!(peer.post(infer, &[], BODY.as_bytes()).status, 403);
    assert_eq!(version(&mut Peer::connect(server.http), infer, &[("key", "secret")]), 2);
    let status = |method: &str, path: &str, headers: &[(&str, &str)]| {
        let request = nereid_test_support::http::request(method, path, headers, b"");
        Peer::connect(server.http).send(&request).answer().status
    };
    for (method, path) in [
        ("GET", "/v2/models/m/traffic"),
        ("POST", "/v2/models/m/traffic/promote"),
        ("POST", "/v2/models/m/traffic/rollback"),
    ] {
        assert_eq!(status(method, path, &[]), 403, "{path}");
        assert_eq!(status(method, path, &[("admin", "secret")]), 200, "{path}");
    }
    server.stop();
}
