//! The SageMaker port (contract/http.md section 8; contract/cli.md sections 2, 4, 5).

use std::net::SocketAddr;

use serde_json::Value;

use nereid_test_support::http::{Answer, Peer, request};
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::{Server, free_port, run_to_end_under};
use nereid_test_support::variant::{self, Variant, each, usual};

mod hosted;

const MIME: &str = "application/vnd.sagemaker-triton.binary+json;json-header-size=";
const BODY: &str = r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[2],"data":[1,2]}]}"#;

/// A server with a SageMaker port.
struct Endpoint {
    server: Server,
    address: SocketAddr,
}

impl Endpoint {
    fn start(variant: Variant, repository: &Repository, flags: &[&str], environment: &[(&str, &str)]) -> Endpoint {
        let port = free_port();
        let own = ["--allow-sagemaker=true".to_owned(), format!("--sagemaker-port={port}")];
        let all: Vec<&str> = own.iter().map(String::as_str).chain(flags.iter().copied()).collect();
        let server = Server::start_in(variant, repository.path(), &all, "/v2/health/live", environment);
        Endpoint { server, address: SocketAddr::from(([127, 0, 0, 1], port)) }
    }

    fn peer(&self) -> Peer {
        Peer::connect(self.address)
    }
}

fn ask(peer: &mut Peer, method: &str, path: &str, body: &str) -> Answer {
    peer.send(&request(method, path, &[], body.as_bytes())).answer()
}

fn plain() -> Repository {
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
    repository.identity("text", 0, &[Pair::new("BYTES", "1")]);
    repository
}

const DEFAULT_MODEL: (&str, &str) = ("SAGEMAKER_TRITON_DEFAULT_MODEL_NAME", "plain");

#[test]
fn ping_tells_health() {
    each(&variant::ALL, |variant| {
        let repository = plain();
        let endpoint = Endpoint::start(variant, &repository, &["--log-verbose=1"], &[]);
        let mut peer = endpoint.peer();
        let answer = peer.get("/ping");
        assert_eq!((answer.status, answer.text().as_str()), (200, ""));
        assert_eq!(peer.get("/ping?x=1").status, 200);
        let answer = ask(&mut peer, "POST", "/ping", "");
        assert_eq!((answer.status, answer.error().as_str()), (405, "Method Not Allowed"));
        let log = endpoint.server.stop();
        assert!(
            log.contains(&format!("Started Sagemaker HTTPService at 0.0.0.0:{}", endpoint.address.port())),
            "{log}"
        );
        for line in ["SageMaker request: 0 /ping", "SageMaker request: 2 /ping"] {
            assert!(log.contains(line), "{line}: {log}");
        }
        let place = |text: &str| log.find(text).unwrap_or_else(|| panic!("{text}: {log}"));
        assert!(place("Started HTTPService") < place("Started Sagemaker"), "the order of contract/cli.md section 7");
        assert!(place("Started Sagemaker") < place("Started Metrics"), "the order of contract/cli.md section 7");
    });
}

#[test]
fn ping_asks_for_readiness_or_for_life() {
    for (mode, expected) in [("ready", 400), ("live", 200), ("nonsense", 400)] {
        let repository = plain();
        repository.model("broken", "backend: \"no_such_backend\"");
        let environment = [("SAGEMAKER_TRITON_PING_MODE", mode)];
        let endpoint = Endpoint::start(usual(), &repository, &["--exit-on-error=false"], &environment);
        let answer = endpoint.peer().get("/ping");
        assert_eq!((answer.status, answer.text().as_str()), (expected, ""), "{mode}");
        endpoint.server.stop();
    }
}

#[test]
fn what_the_port_does_not_know_is_a_bad_request() {
    let repository = plain();
    let endpoint = Endpoint::start(usual(), &repository, &[], &[DEFAULT_MODEL]);
    let mut peer = endpoint.peer();
    for (method, path) in [
        ("GET", "/"),
        ("GET", "/v2"),
        ("GET", "/v2/health/ready"),
        ("POST", "/v2/models/plain/infer"),
        ("GET", "/ping/"),
        ("PUT", "/models"),
        ("DELETE", "/models"),
        ("DELETE", "/models/"),
        ("POST", "/models/h"),
        ("GET", "/models/h/invoke"),
        ("POST", "/models/h/load"),
        ("POST", "/models/h/invoke/"),
    ] {
        let answer = ask(&mut peer, method, path, "");
        assert_eq!((answer.status, answer.text().as_str()), (400, ""), "{method} {path}");
    }
    endpoint.server.stop();
}

/// The inference of both ports with the same body.
#[test]
fn invocations_infer_on_the_default_model() {
    each(&variant::ALL, |variant| {
        let repository = plain();
        let endpoint = Endpoint::start(variant, &repository, &["--http-max-input-size=4096"], &[DEFAULT_MODEL]);
        let mut peer = endpoint.peer();
        let mut http = Peer::connect(endpoint.server.http);
        let answer = peer.post("/invocations", &[("Content-Type", "application/json")], BODY.as_bytes());
        assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")));
        assert_eq!(answer.json(), http.post("/v2/models/plain/infer", &[], BODY.as_bytes()).json());
        for body in ["{", "{}", r#"{"inputs":[]}"#, &BODY.replace("INT32", "INT64"), &" ".repeat(5000)] {
            let expected = http.post("/v2/models/plain/infer", &[], body.as_bytes());
            let answer = peer.post("/invocations", &[], body.as_bytes());
            assert_eq!((answer.status, answer.text()), (expected.status, expected.text()), "{body}");
            assert!(answer.status >= 400, "{body}");
        }
        // Bodies without a known length are bounded, too.
        let mut chunked =
            b"POST /invocations HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1388\r\n".to_vec();
        chunked.extend(vec![b' '; 5000]);
        chunked.extend(b"\r\n0\r\n\r\n");
        let answer = endpoint.peer().send(&chunked).answer();
        assert_eq!(answer.status, 400, "{}", answer.text());
        assert!(answer.error().starts_with("request JSON size of 5000 bytes exceeds"), "{}", answer.text());
        let answer = ask(&mut peer, "GET", "/invocations", "");
        assert_eq!((answer.status, answer.error().as_str()), (405, "Method Not Allowed"));
        // What this port takes no notice of.
        for header in [("Content-Encoding", "gzip"), ("Content-Encoding", "br"), ("Accept-Encoding", "gzip")] {
            let answer = peer.post("/invocations", &[header], BODY.as_bytes());
            assert_eq!((answer.status, answer.header("content-encoding")), (200, None), "{header:?}");
        }
        let header = ("Inference-Header-Content-Length", "3");
        assert_eq!(peer.post("/invocations", &[header], BODY.as_bytes()).status, 200, "not the header of this port");
        endpoint.server.stop();
    });
}

#[test]
fn invocations_generate_where_the_environment_says_so() {
    for (kind, content_type) in
        [("generate", "application/json"), ("generate_stream", "text/event-stream; charset=utf-8")]
    {
        let repository = plain();
        let environment = [DEFAULT_MODEL, ("SAGEMAKER_TRITON_INFERENCE_TYPE", kind)];
        let endpoint = Endpoint::start(usual(), &repository, &[], &environment);
        let mut peer = endpoint.peer();
        let path = format!("/v2/models/plain/{kind}");
        let text = Peer::connect(endpoint.server.http).post(&path, &[], br#"{"INPUT0":7}"#).text();
        assert!(text.contains("{\"OUTPUT0\":7,"), "{text}");
        for headers in [&[][..], &[("Content-Encoding", "gzip")]] {
            let answer = peer.post("/invocations", headers, br#"{"INPUT0":7}"#);
            assert_eq!((answer.status, answer.text()), (200, text.clone()), "{kind}");
            assert_eq!(answer.header("content-type"), Some(content_type));
        }
        let answer = peer.post("/invocations", &[], b"{");
        assert_eq!(answer.status, 500, "{}", answer.text());
        let answer = ask(&mut peer, "GET", "/invocations", "");
        assert_eq!((answer.status, answer.error().as_str()), (405, "Method Not Allowed"));
        endpoint.server.stop();
    }
}

#[test]
fn without_a_default_model_there_is_none() {
    let repository = plain();
    let endpoint = Endpoint::start(usual(), &repository, &[], &[]);
    let answer = endpoint.peer().post("/invocations", &[], BODY.as_bytes());
    let text = "Request for unknown model: 'unspecified_SAGEMAKER_TRITON_DEFAULT_MODEL_NAME' is not found";
    assert_eq!((answer.status, answer.error().as_str()), (404, text));
    endpoint.server.stop();
}

const BINARY_JSON: &str = concat!(
    r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[2],"parameters":{"binary_data_size":8}}],"#,
    r#""outputs":[{"name":"OUTPUT0","parameters":{"binary_data":true}}]}"#,
);

/// JSON in front, a tensor behind it.
fn binary_body() -> Vec<u8> {
    [BINARY_JSON.as_bytes(), &7i32.to_le_bytes(), &(-7i32).to_le_bytes()].concat()
}

#[test]
fn binary_bodies_say_their_length_in_their_type() {
    each(&variant::ALL, |variant| {
        let repository = plain();
        let endpoint = Endpoint::start(variant, &repository, &[], &[DEFAULT_MODEL]);
        let mut peer = endpoint.peer();
        let (body, length) = (binary_body(), BINARY_JSON.len());
        let answer = peer.post("/invocations", &[("Content-Type", &format!("{MIME}{length}"))], &body);
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(answer.header("inference-header-content-length"), None);
        let content_type = answer.header("content-type").unwrap_or_default();
        let json_len: usize = content_type.strip_prefix(MIME).and_then(|len| len.parse().ok()).expect(content_type);
        let (json, tail) = answer.body.split_at(json_len);
        let json: Value = serde_json::from_slice(json).expect("the leading JSON");
        assert_eq!(json["outputs"][0]["parameters"]["binary_data_size"], 8);
        assert_eq!(tail, &body[length..]);
        for (given, text) in [
            (
                format!("x; {MIME}{length}"),
                format!("expect MIME type for binary data starts with '{MIME}', got: x; {MIME}{length}"),
            ),
            (MIME.to_owned(), "Unable to parse inference header size, got: ".to_owned()),
            (format!("{MIME}ten"), "Unable to parse inference header size, got: ten".to_owned()),
            (
                format!("{MIME}2147483648"),
                "Unable to parse inference header size, value is out of range, got: 2147483648".to_owned(),
            ),
            (format!("{MIME}-1"), format!("inference header size should be in range (0, {}), got: -1", body.len())),
            (
                format!("{MIME}9999x"),
                format!("inference header size should be in range (0, {}), got: 9999x", body.len()),
            ),
        ] {
            let answer = peer.post("/invocations", &[("Content-Type", &given)], &body);
            assert_eq!((answer.status, answer.error()), (400, text), "{given}");
        }
        // A number ends where its digits end, and another type says nothing about lengths.
        let given = format!("{MIME}{length};charset=utf-8");
        assert_eq!(peer.post("/invocations", &[("Content-Type", &given)], &body).status, 200);
        assert_eq!(peer.post("/invocations", &[("Content-Type", "text/csv")], BODY.as_bytes()).status, 200);
        endpoint.server.stop();
    });
}

#[test]
fn a_length_of_nothing_is_a_raw_tensor() {
    let repository = plain();
    let endpoint = Endpoint::start(usual(), &repository, &[], &[DEFAULT_MODEL]);
    let answer = endpoint.peer().post("/invocations", &[("Content-Type", &format!("{MIME}0"))], &[1, 0, 0, 0]);
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert!(answer.header("content-type").is_some_and(|given| given.starts_with(MIME)));
    assert!(answer.body.ends_with(&[1, 0, 0, 0]));
    endpoint.server.stop();
}

#[test]
fn starts_that_fail() {
    let repository = plain();
    let words = |environment: &str| -> Vec<String> {
        let binary = env!("CARGO_BIN_EXE_nereid");
        ["env", environment, binary].iter().map(|word| (*word).to_owned()).collect()
    };
    let [port, http, grpc, metrics] = [free_port(), free_port(), free_port(), free_port()];
    let model_repository = format!("--model-repository={}", repository.path().display());
    let ports = [
        format!("--http-port={http}"),
        format!("--grpc-port={grpc}"),
        format!("--metrics-port={metrics}"),
        format!("--sagemaker-port={port}"),
        model_repository,
    ];
    let run = |environment: &str, more: &[&str]| {
        let all: Vec<&str> = ports.iter().map(String::as_str).chain(more.iter().copied()).collect();
        let (status, _, err) = run_to_end_under(&words(environment), &all);
        assert_eq!(status.code(), Some(1), "{err}");
        err
    };
    let err = run("SAGEMAKER_TRITON_INFERENCE_TYPE=other", &["--allow-sagemaker=true"]);
    let text = "failed to start Sagemaker service: Invalid argument - invalid value for \
                SAGEMAKER_TRITON_INFERENCE_TYPE: 'other'";
    assert!(err.contains(text), "{err}");
    // A second server on the port: there is no sharing.
    let taken = std::net::TcpListener::bind(("0.0.0.0", port)).expect("the port is free");
    let err = run("X=1", &["--allow-sagemaker=true"]);
    assert!(
        err.contains(&format!(
            "failed to start Sagemaker service: Unavailable - Socket '0.0.0.0:{port}' already in use "
        )),
        "{err}"
    );
    drop(taken);
    let range = ["--allow-sagemaker=true", "--sagemaker-safe-port-range=1-2"];
    let err = run("X=1", &range);
    assert!(err.contains(&format!("requests at port {http}, allowed port range is [1, 2]")), "{err}");
}

/// Method, path, group of every route (contract/http.md section 8).
const RESTRICTED: [(&str, &str, &str); 7] = [
    ("GET", "/ping", "health"),
    ("POST", "/invocations", "inference"),
    ("POST", "/models/absent/invoke", "inference"),
    ("GET", "/models", "model-repository"),
    ("GET", "/models/absent", "model-repository"),
    ("POST", "/models", "model-repository"),
    ("DELETE", "/models/absent", "model-repository"),
];

#[test]
fn restricted_groups_count_here_too() {
    each(&variant::ALL, |variant| {
        let flags = ["health", "inference", "model-repository"]
            .map(|group| format!("--http-restricted-api={group}:{group}-Key={group}-secret"));
        let flags: Vec<&str> = flags.iter().map(String::as_str).chain(["--model-control-mode=explicit"]).collect();
        let repository = plain();
        let port = free_port();
        let own = ["--allow-sagemaker=true".to_owned(), format!("--sagemaker-port={port}")];
        let all: Vec<&str> = own.iter().map(String::as_str).chain(flags).collect();
        // Health is restricted on the HTTP port, metadata are not.
        let server = Server::start_in(variant, repository.path(), &all, "/v2", &[DEFAULT_MODEL]);
        let mut peer = Peer::connect(SocketAddr::from(([127, 0, 0, 1], port)));
        for (method, path, group) in RESTRICTED {
            let (key, secret) = (format!("{group}-Key"), format!("{group}-secret"));
            let refused: [&[(&str, &str)]; 3] = [&[], &[(&key, "wrong")], &[("other-Key", &secret)]];
            for headers in refused {
                let answer = peer.send(&request(method, path, headers, b"{}")).answer();
                let text = format!("This API is restricted, expecting header '{key}'");
                assert_eq!((answer.status, answer.error()), (403, text), "{method} {path} {headers:?}");
            }
            let answer = peer.send(&request(method, path, &[(&key, &secret)], b"{}")).answer();
            assert_ne!(answer.status, 403, "{method} {path}: {}", answer.text());
        }
        server.stop();
    });
}
