//! The Vertex AI port (contract/http.md section 9; contract/cli.md sections 2, 4, 5).

use std::net::SocketAddr;

use serde_json::json;

use nereid_test_support::http::{Answer, Peer, request};
use nereid_test_support::python::Python;
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::{Server, free_port, run_to_end_under};
use nereid_test_support::variant::{self, Variant, each, usual};

const MIME: &str = "application/vnd.vertex-ai-triton.binary+json;json-header-size=";
const REDIRECT: &str = "X-Vertex-Ai-Triton-Redirect";
const PREDICT: &str = "/v1/endpoints/12/deployedModels/34:predict";
const HEALTH: &str = "/v1/endpoints/12/deployedModels/34";
const ROUTES: [(&str, &str); 2] = [("AIP_PREDICT_ROUTE", PREDICT), ("AIP_HEALTH_ROUTE", HEALTH)];
const BODY: &str = r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[2],"data":[1,2]}]}"#;
const BINARY_JSON: &str = concat!(
    r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[2],"parameters":{"binary_data_size":8}}],"#,
    r#""outputs":[{"name":"OUTPUT0","parameters":{"binary_data":true}}]}"#,
);

struct Endpoint {
    server: Server,
    address: SocketAddr,
}

impl Endpoint {
    fn start(variant: Variant, repository: &Repository, flags: &[&str], environment: &[(&str, &str)]) -> Endpoint {
        let port = free_port();
        let own = ["--allow-vertex-ai=true".to_owned(), format!("--vertex-ai-port={port}")];
        let all: Vec<&str> = own.iter().map(String::as_str).chain(flags.iter().copied()).collect();
        let server = Server::start_in(variant, repository.path(), &all, "/v2/health/live", environment);
        Endpoint { server, address: SocketAddr::from(([127, 0, 0, 1], port)) }
    }

    fn peer(&self) -> Peer {
        Peer::connect(self.address)
    }
}

fn one_model() -> Repository {
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
    repository
}

fn ask(peer: &mut Peer, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
    peer.send(&request(method, path, headers, body.as_bytes())).answer()
}

fn redirect(peer: &mut Peer, target: &str, body: &str) -> Answer {
    ask(peer, "POST", PREDICT, &[(REDIRECT, target)], body)
}

#[test]
fn the_predict_route_infers_on_the_only_model() {
    each(&variant::ALL, |variant| {
        let repository = one_model();
        let endpoint =
            Endpoint::start(variant, &repository, &["--log-verbose=1", "--http-max-input-size=4096"], &ROUTES);
        let mut peer = endpoint.peer();
        let mut http = Peer::connect(endpoint.server.http);
        let answer = peer.get(HEALTH);
        assert_eq!((answer.status, answer.text().as_str()), (200, ""));
        let answer = ask(&mut peer, "POST", PREDICT, &[], BODY);
        assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")));
        assert_eq!(answer.json(), http.post("/v2/models/plain/infer", &[], BODY.as_bytes()).json());
        for body in ["{", "{}", &BODY.replace("INT32", "INT64"), &" ".repeat(5000)] {
            let expected = http.post("/v2/models/plain/infer", &[], body.as_bytes());
            let answer = ask(&mut peer, "POST", PREDICT, &[], body);
            assert_eq!((answer.status, answer.text()), (expected.status, expected.text()), "{body}");
            assert!(answer.status >= 400, "{body}");
        }
        for method in ["GET", "PUT", "DELETE"] {
            let answer = ask(&mut peer, method, PREDICT, &[], "");
            assert_eq!((answer.status, answer.error().as_str()), (405, "Method Not Allowed"), "{method}");
        }
        let answer = ask(&mut peer, "POST", HEALTH, &[], "");
        assert_eq!((answer.status, answer.error().as_str()), (405, "Method Not Allowed"));
        for (method, path) in [
            ("GET", "/"),
            ("GET", "/v2"),
            ("GET", "/v2/health/ready"),
            ("POST", "/v2/models/plain/infer"),
            ("POST", "/v1/endpoints/12/deployedModels/34:predictx"),
            ("POST", "/x/v1/endpoints/12/deployedModels/34:predict"),
        ] {
            let answer = ask(&mut peer, method, path, &[], BODY);
            assert_eq!((answer.status, answer.text().as_str()), (400, ""), "{method} {path}");
        }
        let log = endpoint.server.stop();
        assert!(
            log.contains(&format!("Started Vertex AI HTTPService at 0.0.0.0:{}", endpoint.address.port())),
            "{log}"
        );
        for line in [format!("Vertex AI request: 0 {HEALTH}"), format!("Vertex AI request: 2 {PREDICT}")] {
            assert!(log.contains(&line), "{line}: {log}");
        }
    });
}

#[test]
fn binary_requests_say_their_length_in_their_type_and_answers_in_the_header() {
    each(&variant::ALL, |variant| {
        let repository = one_model();
        let endpoint = Endpoint::start(variant, &repository, &[], &ROUTES);
        let mut peer = endpoint.peer();
        let body = [BINARY_JSON.as_bytes(), &[1, 2, 3, 4, 5, 6, 7, 8]].concat();
        for headers in [&[][..], &[(REDIRECT, "v2/models/plain/infer")]] {
            let content_type = format!("{MIME}{}", BINARY_JSON.len());
            let with: Vec<_> = headers.iter().copied().chain([("Content-Type", content_type.as_str())]).collect();
            let answer = peer.post(PREDICT, &with, &body);
            assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/octet-stream")));
            let (json, tail) = answer.split();
            assert_eq!(json["outputs"][0]["parameters"]["binary_data_size"], 8);
            assert_eq!(tail, [1, 2, 3, 4, 5, 6, 7, 8]);
            for (given, text) in [
                (
                    format!("x; {MIME}9"),
                    format!("expect MIME type for binary data starts with '{MIME}', got: x; {MIME}9"),
                ),
                (format!("{MIME}ten"), "Unable to parse inference header size, got: ten".to_owned()),
                (
                    format!("{MIME}99999999999"),
                    "Unable to parse inference header size, value is out of range, got: 99999999999".to_owned(),
                ),
                (format!("{MIME}-1"), format!("inference header size should be in range (0, {}), got: -1", body.len())),
            ] {
                let with: Vec<_> = headers.iter().copied().chain([("Content-Type", given.as_str())]).collect();
                let answer = peer.post(PREDICT, &with, &body);
                assert_eq!((answer.status, answer.error()), (400, text), "{given}");
            }
        }
        // Nothing is unpacked or packed, and the header of the HTTP port is not this one's.
        for header in [
            ("Content-Encoding", "gzip"),
            ("Accept-Encoding", "gzip"),
            ("Inference-Header-Content-Length", "3"),
            ("Content-Type", "application/json"),
        ] {
            let answer = peer.post(PREDICT, &[header], BODY.as_bytes());
            assert_eq!((answer.status, answer.header("content-encoding")), (200, None), "{header:?}");
        }
        endpoint.server.stop();
    });
}

#[test]
fn the_header_leads_to_routes_of_the_http_port() {
    each(&variant::ALL, |variant| {
        let repository = one_model();
        let endpoint = Endpoint::start(variant, &repository, &["--log-verbose=1"], &ROUTES);
        let mut peer = endpoint.peer();
        let mut http = Peer::connect(endpoint.server.http);
        for target in [
            "v2",
            "v2/health/live",
            "v2/health/ready",
            "v2/models/plain",
            "v2/models/plain/versions/1",
            "v2/models/plain/ready",
            "v2/models/plain/config",
            "v2/models/plain/stats",
            "v2/models/stats",
            "v2/models/nothing",
            "v2/models/nothing/ready",
            "v2/systemsharedmemory/status",
            "v2/cudasharedmemory/status",
        ] {
            let expected = http.get(&format!("/{target}"));
            let answer = redirect(&mut peer, target, "");
            assert_eq!((answer.status, answer.text()), (expected.status, expected.text()), "{target}");
            assert_eq!(answer.header("content-type"), expected.header("content-type"), "{target}");
        }
        let answer = redirect(&mut peer, "v2/repository/index", r#"{"ready":true}"#);
        assert_eq!(answer.json(), json!([{"name":"plain","version":"1","state":"READY"}]));
        let answer = redirect(&mut peer, "v2/models/plain/versions/1/infer", BODY);
        assert_eq!((answer.status, &answer.json()["outputs"][0]["data"]), (200, &json!([1, 2])));
        let answer = redirect(&mut peer, "metrics", "");
        assert_eq!(answer.header("content-type"), Some("text/plain; charset=utf-8"));
        assert!(answer.text().contains("nv_inference_request_success"), "{}", answer.text());
        for (status, targets) in [
            (
                403,
                &[
                    "v2/systemsharedmemory/region/r/register",
                    "v2/systemsharedmemory/unregister",
                    "v2/cudasharedmemory/region/r/register",
                    "v2/cudasharedmemory/region/r/unregister",
                    "v2/repository/models/plain/load",
                    "v2/repository/models/plain/unload",
                ][..],
            ),
            (
                400,
                &[
                    "",
                    "/v2",
                    "v2/logging",
                    "v2/trace/setting",
                    "v2/models/plain/trace/setting",
                    "v2/models/plain/generate",
                    "v2/models/plain/generate_stream",
                    "ping",
                ],
            ),
        ] {
            for target in targets {
                let answer = redirect(&mut peer, target, "{}");
                assert_eq!((answer.status, answer.text().as_str()), (status, ""), "{target}");
            }
        }
        let answer = ask(&mut peer, "GET", PREDICT, &[(REDIRECT, "v2")], "");
        assert_eq!((answer.status, answer.text().as_str()), (405, ""));
        assert_eq!(http.get("/v2/models/plain/ready").status, 200, "nothing was unloaded");
        let answer = ask(&mut peer, "POST", PREDICT, &[(REDIRECT, "v2/health/live")], "");
        assert_eq!(answer.status, 200);
        let log = endpoint.server.stop();
        for line in ["Vertex AI redirect blocked: /v2/logging", "Redirecting Vertex AI request: /v2/health/live"] {
            assert!(log.contains(line), "{line}: {log}");
        }
    });
}

#[test]
fn routes_are_patterns_that_fit_the_whole_path() {
    let repository = one_model();
    let environment = [("AIP_PREDICT_ROUTE", "/p[0-9]+|/q"), ("AIP_HEALTH_ROUTE", "/(h|q)")];
    let endpoint = Endpoint::start(usual(), &repository, &[], &environment);
    let mut peer = endpoint.peer();
    for (method, path, status) in [
        ("GET", "/h", 200),
        ("POST", "/p1", 200),
        ("POST", "/p22?x", 200),
        ("POST", "/p", 400),
        ("POST", "/p1x", 400),
        ("POST", "/qq", 400),
        ("GET", "/hh", 400),
        // One path may be both.
        ("GET", "/q", 200),
        ("POST", "/q", 200),
    ] {
        assert_eq!(ask(&mut peer, method, path, &[], BODY).status, status, "{method} {path}");
    }
    endpoint.server.stop();
}

#[test]
fn prediction_mode_and_a_default_model() {
    let repository = one_model();
    repository.identity("second", 0, &[Pair::new("INT32", "-1")]).version("second", "2");
    let port = free_port().to_string();
    let environment: Vec<_> =
        ROUTES.into_iter().chain([("AIP_MODE", "PREDICTION"), ("AIP_HTTP_PORT", &port)]).collect();
    let flags = ["--allow-http=true", "--allow-grpc=true", "--vertex-ai-default-model=second"];
    let server = Server::start_in(usual(), repository.path(), &flags, "/v2/health/live", &environment);
    let address = SocketAddr::from(([127, 0, 0, 1], port.parse().expect("a port")));
    let answer = ask(&mut Peer::connect(address), "POST", PREDICT, &[], BODY);
    assert_eq!((answer.status, &answer.json()["model_name"]), (200, &json!("second")));
    server.stop();
}

#[test]
fn readiness_is_told_and_a_default_model_may_be_one_of_two_versions() {
    let repository = Repository::new();
    let all = "version_policy { all { } }";
    repository.identity_of("identity", "plain", 0, &[Pair::new("INT32", "-1")], all).version("plain", "2");
    repository.model("broken", "backend: \"no_such_backend\"");
    let endpoint = Endpoint::start(usual(), &repository, &["--exit-on-error=false"], &ROUTES);
    let answer = endpoint.peer().get(HEALTH);
    assert_eq!((answer.status, answer.text().as_str()), (400, ""), "a model that should be loaded is not");
    let answer = ask(&mut endpoint.peer(), "POST", PREDICT, &[], BODY);
    assert_eq!((answer.status, &answer.json()["model_version"]), (200, &json!("2")));
    endpoint.server.stop();
}

#[test]
fn starts_that_fail() {
    let (one, two) = (one_model(), one_model());
    two.identity("second", 0, &[Pair::new("INT32", "-1")]);
    let single = "Expect the model repository contains only a single model if default model is not specified";
    for (repository, environment, flags, text) in [
        (&one, &[][..], &[][..], "API_PREDICT_ROUTE is not defined for Vertex AI endpoint"),
        (&one, &ROUTES[1..], &[], "API_PREDICT_ROUTE is not defined for Vertex AI endpoint"),
        (&one, &ROUTES[..1], &[], "AIP_HEALTH_ROUTE is not defined for Vertex AI endpoint"),
        (&one, &[ROUTES[0], ("AIP_HEALTH_ROUTE", "(")], &[], "AIP_HEALTH_ROUTE is no regular expression"),
        (&two, &ROUTES, &[], single),
        (&one, &ROUTES, &["--vertex-ai-default-model=other"], "Expect the default model 'other' is loaded"),
    ] {
        let variables = environment.iter().map(|(name, value)| format!("{name}={value}"));
        let binary = env!("CARGO_BIN_EXE_nereid").to_owned();
        let words: Vec<String> = ["env".to_owned()].into_iter().chain(variables).chain([binary]).collect();
        let [http, grpc, metrics, vertex] =
            ["http", "grpc", "metrics", "vertex-ai"].map(|service| format!("--{service}-port={}", free_port()));
        let path = format!("--model-repository={}", repository.path().display());
        let mut arguments = vec!["--allow-vertex-ai=true", &path, &http, &grpc, &metrics, &vertex];
        arguments.extend(flags);
        let (status, _, err) = run_to_end_under(&words, &arguments);
        assert_eq!(status.code(), Some(1), "{err}");
        let text = format!("failed to start Vertex AI service: Invalid argument - {text}");
        assert!(err.contains(&text), "expected {text:?} in {err}");
    }
}

/// The official client, whose every request goes through the predict route.
#[test]
fn the_official_client_through_the_redirect() {
    let Some(python) = Python::get() else { return };
    let repository = one_model();
    let environment = [("AIP_PREDICT_ROUTE", "/v2/models/plain/infer"), ("AIP_HEALTH_ROUTE", "/v2/health/ready")];
    let endpoint = Endpoint::start(usual(), &repository, &[], &environment);
    let text = python.run("vertex.py", &["--url", &endpoint.address.to_string()]);
    assert!(text.contains("ok"), "{text}");

    endpoint.server.stop();
}

#[test]
fn restricted_groups_count_here_too() {
    each(&variant::ALL, |variant| {
        let repository = one_model();
        let flags = ["health", "inference", "statistics"]
            .map(|group| format!("--http-restricted-api={group}:{group}-Key={group}-secret"));
        let port = free_port();
        let own = ["--allow-vertex-ai=true".to_owned(), format!("--vertex-ai-port={port}")];
        let all: Vec<&str> = own.iter().chain(&flags).map(String::as_str).collect();
        // Health is restricted on the HTTP port, metadata are not.
        let server = Server::start_in(variant, repository.path(), &all, "/v2", &ROUTES);
        let mut peer = Peer::connect(SocketAddr::from(([127, 0, 0, 1], port)));
        let redirected = [(REDIRECT, "v2/models/stats")];
        let cases = [
            ("GET", HEALTH, "health", &[][..]),
            ("POST", PREDICT, "inference", &[][..]),
            ("POST", PREDICT, "statistics", &redirected[..]),
        ];
        for (method, path, group, headers) in cases {
            let (key, secret) = (format!("{group}-Key"), format!("{group}-secret"));
            let mut asked = |more: &[(&str, &str)]| ask(&mut peer, method, path, &[headers, more].concat(), BODY);
            for more in [&[][..], &[(&*key, "wrong")], &[("other-Key", &secret)]] {
                let answer = asked(more);
                let text = format!("This API is restricted, expecting header '{key}'");
                assert_eq!((answer.status, answer.error()), (403, text), "{method} {path} {headers:?} {more:?}");
            }
            let answer = asked(&[(&key, &secret)]);
            assert_eq!(answer.status, 200, "{method} {path} {headers:?}: {}", answer.text());
        }
        server.stop();
    });
}
