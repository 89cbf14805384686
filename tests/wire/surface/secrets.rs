//! No secret that the server is given, and none that a client sends in a header or a query, is in anything that it
//! writes: the log at its highest level, traces, metrics, the audit log, answers.
//!
//! What every process shows of itself to its own user, the command line and the environment under /proc, has what it
//! was given: docs/access.md says so, and that files are for what must not be there.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use nereid_test_support::certificates::Certificates;
use nereid_test_support::grpc::{Grpc, SERVICE, frame_bytes};
use nereid_test_support::http::{Peer, request};
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::{PATIENCE, Server, free_port, run_to_end_under};
use nereid_test_support::skip::skip;
use nereid_test_support::variant::usual;

use super::restricted::{ROUTES, RPCS};

/// In every secret of these tests.
const MARK: &str = "9f3Xmarked";

fn secret(what: &str) -> String {
    format!("{what}-{MARK}-{what}")
}

fn assert_clean(what: &str, text: &str) {
    let at = text.find(MARK);
    let shown = at.map(|at| String::from_utf8_lossy(&text.as_bytes()[at.saturating_sub(300)..at + MARK.len()]));
    assert!(shown.is_none(), "{what} tells a secret: …{}", shown.unwrap_or_default());
}

/// Variables of the environment with credentials of buckets.
fn variables() -> Vec<(String, String)> {
    let named = |name: &str| (name.to_owned(), secret(&name.to_lowercase()));
    ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AZURE_STORAGE_KEY"].map(named).to_vec()
}

/// A Redis that demands a password.
struct Redis {
    child: Child,
    port: u16,
}

impl Redis {
    fn start(password: &str) -> Option<Redis> {
        let port = free_port();
        let mut command = Command::new("redis-server");
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--requirepass", password]);
        let Ok(child) = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn() else {
            skip("there is no redis-server");
            return None;
        };
        let (redis, started) = (Redis { child, port }, Instant::now());
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(started.elapsed() < PATIENCE, "redis-server does not listen");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        Some(redis)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Every route and RPC without a key, with a wrong one and with the right one; the answers.
fn use_everything(server: &Server, http_key: &str, grpc_key: &str) -> String {
    let mut answers = String::new();
    let (wrong, token) = (secret("wrong"), secret("query"));
    let mut peer = Peer::connect(server.http);
    for (_, method, path) in ROUTES {
        let path = format!("{path}?token={token}");
        for headers in [&[][..], &[("x-key", &*wrong), ("authorization", &*wrong)], &[("x-key", http_key)]] {
            let answer = peer.send(&request(method, &path, headers, b"{}")).answer();
            answers.push_str(&format!("{:?} {}\n", answer.headers, answer.text()));
        }
    }
    let body = br#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1,1],"data":[1]}]}"#;
    let answer = peer.post("/v2/models/plain/infer", &[("x-key", http_key)], body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    // Cut off in the middle, and wrong: errors may quote what they could not read.
    for rest in ["no colon\r\n\r\n", "x: \0\r\n\r\n", "Content-Length: x\r\n\r\n", "Content-Length: 5\r\n\r\n{"] {
        let mut other = Peer::connect(server.http);
        let head = format!("POST /v2/logging?token={token} HTTP/1.1\r\nHost: t\r\nx-key: {http_key}\r\n{rest}");
        other.try_send(head.as_bytes());
        other.finish();
        if let Ok(answer) = other.try_answer() {
            answers.push_str(&answer.text());
        }
    }
    let mut grpc = Grpc::connect(server.grpc);
    for (_, rpc) in RPCS {
        for key in ["", &wrong, grpc_key] {
            let pieces = if rpc == "ModelStreamInfer" { Vec::new() } else { vec![frame_bytes(0, b"")] };
            let headers = [("triton-grpc-protocol-x-key", key), ("authorization", &wrong)];
            let reply = grpc.exchange(&format!("{SERVICE}{rpc}"), &headers, &pieces);
            answers.push_str(&format!("{:?}\n", reply.status));
        }
    }
    answers.push_str(&Peer::connect(server.metrics).get("/metrics").text());
    answers
}

#[test]
fn nothing_that_a_server_writes_has_a_secret() {
    let Some(files) = Certificates::make() else { return };
    let Some(redis) = Redis::start(&secret("redis")) else { return };
    let repository = Repository::new();
    repository.model(
        "plain",
        "backend: \"identity\" max_batch_size: 4 response_cache { enable: true } \
         input { name: \"INPUT0\" data_type: TYPE_INT32 dims: [ -1 ] } \
         output { name: \"OUTPUT0\" data_type: TYPE_INT32 dims: [ -1 ] }",
    );
    let place = |name: &str| repository.path().join(name);
    let keys = format!("carol logging:x-key={}\n", secret("file"));
    std::fs::write(place("keys"), keys).expect("keys");
    let (http_key, grpc_key) = (secret("http"), secret("grpc"));
    let groups = "inference,model-repository,trace,shared-memory";
    let flags = [
        format!("--http-restricted-api={groups}:x-key={http_key}"),
        format!("--grpc-restricted-protocol={groups}:x-key={grpc_key}"),
        format!("--http-restricted-api-file={}", place("keys").display()),
        format!("--grpc-restricted-protocol-file={}", place("keys").display()),
        "--cache-config=redis,host=127.0.0.1".to_owned(),
        format!("--cache-config=redis,port={}", redis.port),
        format!("--cache-config=redis,password={}", secret("redis")),
        format!("--trace-config=triton,file={}", place("trace").display()),
        "--trace-config=level=TIMESTAMPS".to_owned(),
        "--trace-config=level=TENSORS".to_owned(),
        "--trace-config=rate=1".to_owned(),
        format!("--audit-log={}", place("audit").display()),
        "--log-verbose=9".to_owned(),
        "--http-header-forward-pattern=^x-tenant$".to_owned(),
        format!("--http-server-key={}", files.path("server.key")),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let variables = variables();
    let variables: Vec<(&str, &str)> = variables.iter().map(|(name, value)| (&**name, &**value)).collect();
    let server = Server::start_in(usual(), repository.path(), &flags, "/v2/health/ready", &variables);
    let answers = use_everything(&server, &http_key, &grpc_key);
    assert_clean("an answer", &answers);
    let broken = format!("logging:x-key={}\nlogging={}\n", secret("new"), secret("broken"));
    std::fs::write(place("keys"), broken).expect("keys");
    server.wait_for_log("line 2: expected");
    let (pid, mut shown) = (server.pid(), String::new());
    for name in ["maps", "status", "limits", "mountinfo", "comm"] {
        shown.push_str(&std::fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default());
    }
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).expect("threads").flatten() {
        shown.push_str(&std::fs::read_to_string(task.path().join("comm")).unwrap_or_default());
    }
    assert_clean("/proc", &shown);
    let log = server.stop();
    assert!(log.contains("HTTP request: 2 /v2/logging"), "the log is not at its highest level:\n{log}");
    assert_clean("the log", &log);
    let private = std::fs::read_to_string(files.path("server.key")).expect("the key");
    let line = private.lines().nth(1).expect("a line of the key");
    assert!(!log.contains(line), "the log tells the key of the certificate");
    for name in ["audit", "trace"] {
        let text = std::fs::read_to_string(place(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(!text.is_empty(), "{name}");
        assert_clean(name, &text);
    }
}

/// Answers every request as a bucket does that does not know the caller.
fn refusing_bucket() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut head = [0; 8192];
            let _ = stream.read(&mut head);
            let body = "<Error><Code>SignatureDoesNotMatch</Code><Message>no</Message></Error>";
            let answer =
                format!("HTTP/1.1 403 Forbidden\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len());
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    address
}

fn words_of(flags: &[String]) -> Vec<String> {
    let ports = ["http", "grpc", "metrics"].map(|service| format!("--{service}-port={}", free_port()));
    ports.iter().chain(flags).cloned().collect()
}

/// The output of a start that fails, with these variables in its environment.
fn failed_start(flags: &[String], variables: &[(String, String)]) -> String {
    let program = nereid_test_support::server::binary().into_string().expect("the binary's path is UTF-8");
    let mut words = vec!["env".to_owned()];
    words.extend(variables.iter().map(|(name, value)| format!("{name}={value}")));
    words.push(program);
    let flags = words_of(flags);
    let (status, out, err) = run_to_end_under(&words, &flags.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(status.code(), Some(1), "{out}{err}");
    out + &err
}

#[test]
fn a_start_that_fails_tells_no_secret() {
    let verbose = "--log-verbose=9".to_owned();
    let bucket = format!("--model-repository=s3://http://{}/bucket/models", refusing_bucket());
    let said = failed_start(&[bucket.clone(), verbose.clone()], &variables());
    assert!(said.contains("bucket"), "{said}");
    assert_clean("a bucket that refuses", &said);
    // The same from a file of credentials.
    let repository = Repository::new();
    let path = repository.path().join("credentials.json");
    let text = format!(
        r#"{{"s3":{{"":{{"secret_key":"{}","key_id":"{}","region":"r","session_token":"{}"}}}}}}"#,
        secret("key"),
        secret("id"),
        secret("session")
    );
    for text in [text.clone(), text.replace("\"r\"", "[]"), text[..text.len() - 3].to_owned()] {
        std::fs::write(&path, text).expect("a file of credentials");
        let variable = [("TRITON_CLOUD_CREDENTIAL_PATH".to_owned(), path.display().to_string())];
        assert_clean("a file of credentials", &failed_start(&[bucket.clone(), verbose.clone()], &variable));
    }
    let Some(redis) = Redis::start("another") else { return };
    repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
    let cache = |setting: String| format!("--cache-config=redis,{setting}");
    let flags = [
        format!("--model-repository={}", repository.path().display()),
        cache("host=127.0.0.1".to_owned()),
        cache(format!("port={}", redis.port)),
        verbose,
    ];
    let with = [&flags[..], &[cache(format!("password={}", secret("redis")))]].concat();
    assert_clean("a cache that refuses", &failed_start(&with, &[]));
    let variable = [("TRITONCACHE_REDIS_PASSWORD".to_owned(), secret("redis"))];
    assert_clean("a cache that refuses", &failed_start(&flags, &variable));
}
