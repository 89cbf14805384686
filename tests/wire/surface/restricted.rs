//! Groups of routes and RPCs that need a header (contract/http.md section 2, contract/grpc.md section 3).

use bytes::Bytes;

use nereid_test_support::grpc::{Grpc, SERVICE, Status, code, frame_bytes};
use nereid_test_support::http::{Peer, request};
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::{Server, run_to_end};
use nereid_test_support::variant::{self, Variant, each, usual};

/// Every group with a secret of its own, but for health, which the test itself waits for.
const GROUPS: [&str; 8] =
    ["metadata", "inference", "shared-memory", "model-config", "model-repository", "statistics", "trace", "logging"];

/// Category, method and path of every route (contract/http.md section 1).
pub const ROUTES: [(&str, &str, &str); 39] = [
    ("metadata", "GET", "/v2"),
    ("metadata", "GET", "/v2/models/plain"),
    ("metadata", "GET", "/v2/models/plain/versions/1"),
    ("inference", "POST", "/v2/models/plain/infer"),
    ("inference", "POST", "/v2/models/plain/versions/1/infer"),
    ("inference", "POST", "/v2/models/plain/generate"),
    ("inference", "POST", "/v2/models/plain/versions/1/generate"),
    ("inference", "POST", "/v2/models/plain/generate_stream"),
    ("inference", "POST", "/v2/models/plain/versions/1/generate_stream"),
    ("model-config", "GET", "/v2/models/plain/config"),
    ("model-config", "GET", "/v2/models/plain/versions/1/config"),
    ("statistics", "GET", "/v2/models/plain/stats"),
    ("statistics", "GET", "/v2/models/plain/versions/1/stats"),
    ("statistics", "GET", "/v2/models/stats"),
    ("trace", "GET", "/v2/models/plain/trace/setting"),
    ("trace", "POST", "/v2/models/plain/trace/setting"),
    ("trace", "GET", "/v2/trace/setting"),
    ("trace", "POST", "/v2/trace/setting"),
    ("logging", "GET", "/v2/logging"),
    ("logging", "POST", "/v2/logging"),
    ("model-repository", "POST", "/v2/repository/index"),
    ("model-repository", "POST", "/v2/repository/any/index"),
    ("model-repository", "POST", "/v2/repository/models/plain/load"),
    ("model-repository", "POST", "/v2/repository/models/plain/unload"),
    ("model-repository", "POST", "/v2/repository/any/models/plain/load"),
    ("model-repository", "GET", "/v2/models/plain/traffic"),
    ("model-repository", "POST", "/v2/models/plain/traffic"),
    ("model-repository", "POST", "/v2/models/plain/traffic/promote"),
    ("model-repository", "POST", "/v2/models/plain/traffic/rollback"),
    ("model-repository", "GET", "/v2/models/plain/generations"),
    ("model-repository", "POST", "/v2/models/plain/generations/x/activate"),
    ("shared-memory", "GET", "/v2/systemsharedmemory/status"),
    ("shared-memory", "GET", "/v2/systemsharedmemory/region/r/status"),
    ("shared-memory", "POST", "/v2/systemsharedmemory/region/r/register"),
    ("shared-memory", "POST", "/v2/systemsharedmemory/unregister"),
    ("shared-memory", "GET", "/v2/cudasharedmemory/status"),
    ("shared-memory", "POST", "/v2/cudasharedmemory/region/r/register"),
    ("shared-memory", "POST", "/v2/cudasharedmemory/region/r/unregister"),
    ("shared-memory", "POST", "/v2/cudasharedmemory/unregister"),
];

/// Category and RPC (contract/grpc.md section 1).
pub const RPCS: [(&str, &str); 17] = [
    ("metadata", "ServerMetadata"),
    ("metadata", "ModelMetadata"),
    ("inference", "ModelInfer"),
    ("inference", "ModelStreamInfer"),
    ("model-config", "ModelConfig"),
    ("statistics", "ModelStatistics"),
    ("model-repository", "RepositoryIndex"),
    ("model-repository", "RepositoryModelLoad"),
    ("model-repository", "RepositoryModelUnload"),
    ("shared-memory", "SystemSharedMemoryStatus"),
    ("shared-memory", "SystemSharedMemoryRegister"),
    ("shared-memory", "SystemSharedMemoryUnregister"),
    ("shared-memory", "CudaSharedMemoryStatus"),
    ("shared-memory", "CudaSharedMemoryRegister"),
    ("shared-memory", "CudaSharedMemoryUnregister"),
    ("trace", "TraceSetting"),
    ("logging", "LogSettings"),
];

fn start(variant: Variant, flags: &[String]) -> (Repository, Server) {
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let server = Server::start(variant, repository.path(), &flags);
    (repository, server)
}

fn refusal(header: &str) -> String {
    format!("This API is restricted, expecting header '{header}'")
}

#[test]
fn every_route_demands_the_header_of_its_group() {
    each(&variant::ALL, |variant| {
        let flags = GROUPS.map(|group| format!("--http-restricted-api={group}:{group}-Key={group}=secret"));
        let (_repository, server) = start(variant, &flags);
        let mut peer = Peer::connect(server.http);
        for (group, method, path) in ROUTES {
            let (key, secret) = (format!("{group}-Key"), format!("{group}=secret"));
            let (lower, upper) = (key.to_lowercase(), key.to_uppercase());
            let other = if group == "trace" { "logging=secret" } else { "trace=secret" };
            let refused: [&[(&str, &str)]; 7] = [
                &[],
                &[(&key, "")],
                &[(&key, &secret[1..])],
                &[(&key, &secret[..secret.len() - 1])],
                &[(&key, other)],
                &[(&key, &secret.to_uppercase())],
                &[("Authorization", &secret)],
            ];
            for headers in refused {
                let answer = peer.send(&request(method, path, headers, b"{}")).answer();
                assert_eq!((answer.status, answer.error()), (403, refusal(&key)), "{method} {path} {headers:?}");
                assert_eq!(answer.header("content-type"), Some("text/plain"), "{method} {path}");
            }
            // Before the method is looked at.
            let answer = peer.send(&request("DELETE", path, &[], b"")).answer();
            assert_eq!(answer.status, 403, "DELETE {path}");
            let answer = peer.send(&request("DELETE", path, &[(&key, &secret)], b"")).answer();
            assert_eq!(answer.status, 405, "DELETE {path}");
            // A header's name is the same in any case.
            for key in [&key, &lower, &upper] {
                let answer = peer.send(&request(method, path, &[(key, &secret)], b"{}")).answer();
                assert_ne!(answer.status, 403, "{method} {path}: {}", answer.text());
            }
        }
        // What is in no group, and a group without a demand.
        assert_eq!(peer.get("/v2/absent").status, 404);
        assert_eq!(peer.get("/v2/health/ready").status, 200);
        assert_eq!(peer.get("/v2/models/plain/ready").status, 200);
        assert_eq!(Peer::connect(server.metrics).get("/metrics").status, 200);
        let log = server.stop();
        assert!(!log.contains("=secret"), "the log tells a secret:\n{log}");
    });
}

#[test]
fn several_groups_share_a_header_and_no_body_is_taken_from_strangers() {
    let flags = ["--http-restricted-api=inference,health:X-Key=a", "--http-restricted-api=logging:X-Key=b"];
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
    // Readiness is restricted, too; metadata are not.
    let server = Server::start_with(usual(), repository.path(), &flags, "/v2");
    let mut peer = Peer::connect(server.http);
    // A port answers a moment before the server says of itself that it is ready.
    server.wait_until("it is ready", || {
        peer.send(&request("GET", "/v2/health/ready", &[("X-Key", "a")], b"")).answer().status == 200
    });
    for (path, secret) in
        [("/v2/health/live", "a"), ("/v2/health/ready", "a"), ("/v2/models/plain/ready", "a"), ("/v2/logging", "b")]
    {
        assert_eq!(peer.get(path).error(), refusal("X-Key"), "{path}");
        for given in ["a", "b"] {
            let answer = peer.send(&request("GET", path, &[("x-key", given)], b"")).answer();
            assert_eq!(answer.status == 200, given == secret, "{path} with {given}: {}", answer.status);
        }
    }
    // The first of several fields counts.
    let answer = peer.send(&request("GET", "/v2/logging", &[("X-Key", "a"), ("X-Key", "b")], b"")).answer();
    assert_eq!(answer.status, 403);
    // Answered while the body is still to come.
    let head = "POST /v2/models/plain/infer HTTP/1.1\r\nHost: t\r\nContent-Length: 50000000\r\n\r\n";
    let mut stranger = Peer::connect(server.http);
    assert_eq!(stranger.send(head.as_bytes()).answer().error(), refusal("X-Key"));
    let head = format!("{}Expect: 100-continue\r\n\r\n", &head[..head.len() - 2]);
    let mut stranger = Peer::connect(server.http);
    assert_eq!(stranger.send(head.as_bytes()).answer().status, 403);
    let body = br#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1],"data":[1]}]}"#;
    assert_eq!(peer.post("/v2/models/plain/infer", &[("X-Key", "a")], body).status, 200);
    server.stop();
}

/// The status of a call; only its first message is sent, and for a stream not even that.
fn status_of(grpc: &mut Grpc, rpc: &str, headers: &[(&str, &str)]) -> Status {
    let path = if rpc.starts_with('/') { rpc.to_owned() } else { format!("{SERVICE}{rpc}") };
    let message = if rpc == "ModelStreamInfer" { Bytes::new() } else { frame_bytes(0, b"") };
    let mut exchange = grpc.open(&path, headers);
    grpc.send_bytes(&mut exchange, message);
    grpc.half_close(&mut exchange);
    grpc.finish(exchange).status
}

#[test]
fn every_rpc_demands_the_metadata_of_its_group() {
    each(&variant::ALL, |variant| {
        let flags = GROUPS.map(|group| format!("--grpc-restricted-protocol={group}:{group}-key={group} secret"));
        let (_repository, server) = start(variant, &flags);
        let mut grpc = Grpc::connect(server.grpc);
        for (group, rpc) in RPCS {
            let (key, secret) = (format!("triton-grpc-protocol-{group}-key"), format!("{group} secret"));
            let text = format!("This protocol is restricted, expecting header '{key}'");
            let bare = format!("{group}-key");
            let refused: [&[(&str, &str)]; 5] =
                [&[], &[(&key, "")], &[(&key, "secret")], &[(&key, &secret.to_uppercase())], &[(&bare, &secret)]];
            for headers in refused {
                let expected = Status { code: code::UNAVAILABLE, message: text.clone() };
                assert_eq!(status_of(&mut grpc, rpc, headers), expected, "{rpc} {headers:?}");
            }
            let status = status_of(&mut grpc, rpc, &[(&key, &secret)]);
            assert_ne!(status.message, text, "{rpc}");
        }
        for rpc in ["ServerLive", "ServerReady", "/grpc.health.v1.Health/Check"] {
            assert_eq!(status_of(&mut grpc, rpc, &[]).code, code::OK, "{rpc}");
        }
        server.stop();
    });
}

#[test]
fn health_is_a_group_of_grpc_and_streams_end_at_once() {
    let flags = [
        "--grpc-restricted-protocol=health:Admin=a".to_owned(),
        "--grpc-restricted-protocol=inference:infer=b".to_owned(),
    ];
    let (_repository, server) = start(usual(), &flags);
    let mut grpc = Grpc::connect(server.grpc);
    for rpc in ["ServerLive", "ServerReady", "ModelReady", "/grpc.health.v1.Health/Check"] {
        let status = status_of(&mut grpc, rpc, &[]);
        let text = "This protocol is restricted, expecting header 'triton-grpc-protocol-Admin'";
        assert_eq!((status.code, &*status.message), (code::UNAVAILABLE, text), "{rpc}");
        // Metadata is in lower case, whatever the flag says.
        let status = status_of(&mut grpc, rpc, &[("triton-grpc-protocol-admin", "a")]);
        assert_ne!(status.code, code::UNAVAILABLE, "{rpc}: {status:?}");
    }
    // The stream is over although its client has not finished, or even begun.
    let exchange = grpc.open(&format!("{SERVICE}ModelStreamInfer"), &[("triton-grpc-protocol-infer", "a")]);
    let reply = grpc.finish(exchange);
    assert_eq!(reply.status.code, code::UNAVAILABLE, "{:?}", reply.status);
    assert!(reply.messages.is_empty());
    // HTTP has its own flag.
    assert_eq!(Peer::connect(server.http).get("/v2/health/ready").status, 200);
    server.stop();
}

#[test]
fn groups_that_are_none_end_the_start() {
    for (flag, kind) in [("http-restricted-api", "api"), ("grpc-restricted-protocol", "protocol")] {
        for (values, text) in [
            (&["heath:a=b"][..], format!("unknown restricted {kind} 'heath' ")),
            (
                &["health:a=b", "trace,health:c=d"],
                format!("restricted {kind} 'health' can not be specified in multiple config groups"),
            ),
            (&["health=b"], format!("--{flag} option format is '<config name>:<setting>=<value>'. Got health=b")),
        ] {
            let mut words = vec!["--model-repository=/nowhere".to_owned()];
            words.extend(values.iter().map(|value| format!("--{flag}={value}")));
            let (status, _, stderr) = run_to_end(&words.iter().map(String::as_str).collect::<Vec<_>>());
            assert_eq!(status.code(), Some(1), "{words:?}");
            assert!(stderr.starts_with(&format!("Bad option: \"--{flag}\".\n{text}\n")), "{words:?}: {stderr}");
        }
    }
}
