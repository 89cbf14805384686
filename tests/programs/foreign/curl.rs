//! curl against the HTTP port: every plain route, uploads in chunks and with `Expect`, old and new versions of HTTP,
//! and many parallel requests over kept connections.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use nereid_test_support::http::Peer;
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::Server;
use nereid_test_support::skip::skip;
use nereid_test_support::variant::{self, Variant, each, usual};

/// curl is there, and can what `feature` names (`""`: nothing beyond the ordinary).
fn curl_can(feature: &str) -> bool {
    let said = Command::new("curl").arg("--version").output();
    let Ok(said) = said else {
        skip("no curl");
        return false;
    };
    let can = String::from_utf8_lossy(&said.stdout).contains(feature);
    if !can {
        skip(&format!("this curl is built without {feature}"));
    }
    can
}

/// What curl received.
struct Got {
    status: u16,
    /// As `%{http_version}` names it.
    version: String,
    connections: u32,
    body: Vec<u8>,
    /// What `--verbose` tells of heads.
    told: String,
}

impl Got {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {:?}", self.body))
    }
}

/// Runs curl with `input` as its standard input; it must end well.
fn curl(arguments: &[&str], input: &[u8]) -> Got {
    let (exit, got) = try_curl(arguments, input);
    assert_eq!(exit, Some(0), "curl {arguments:?}: {}", got.told);
    got
}

fn try_curl(arguments: &[&str], input: &[u8]) -> (Option<i32>, Got) {
    let mut command = Command::new("curl");
    command.args(["--silent", "--show-error", "--verbose", "--max-time", "300", "--noproxy", "*"]);
    // By default it sends a body when "100 Continue" has not come for a second.
    command.args(["--expect100-timeout", "300"]);
    command.args(["--write-out", "\n%{http_code} %{http_version} %{num_connects}"]).args(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("curl starts");
    let mut stdin = child.stdin.take().expect("a piped stream");
    let input = input.to_vec();
    // A request that is refused early is not read to its end.
    let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().expect("curl ends");
    writer.join().expect("the writer");
    let at = output.stdout.iter().rposition(|&byte| byte == b'\n').unwrap_or(0);
    let (body, last) = output.stdout.split_at(at);
    let last = String::from_utf8_lossy(last);
    let mut words = last.split_whitespace();
    let status = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
    let version = words.next().unwrap_or_default().to_string();
    let connections = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), Got { status, version, connections, body: body.to_vec(), told })
}

fn start(variant: Variant) -> (Repository, Server) {
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
    repository.identity("large", 0, &[Pair::new("UINT8", "-1")]);
    let server = Server::start(variant, repository.path(), &[]);
    (repository, server)
}

const BODY: &str = r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[2],"data":[5,6]}]}"#;

/// A file that is removed with its owner.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, contents: &[u8]) -> Scratch {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("curl-{}-{name}", std::process::id()));
        std::fs::write(&path, contents).expect("write a file");
        Scratch(path)
    }

    fn argument(&self) -> String {
        format!("@{}", self.0.display())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn every_plain_route() {
    if !curl_can("") {
        return;
    }
    let (_repository, server) = start(usual());
    let url = |path: &str| format!("http://{}{path}", server.http);
    for (method, path, body, status) in [
        ("GET", "/v2", "", 200),
        ("GET", "/v2/health/live", "", 200),
        ("GET", "/v2/health/ready", "", 200),
        ("GET", "/v2/models/plain", "", 200),
        ("GET", "/v2/models/plain/versions/1", "", 200),
        ("GET", "/v2/models/plain/ready", "", 200),
        ("GET", "/v2/models/plain/versions/1/ready", "", 200),
        ("POST", "/v2/models/plain/infer", BODY, 200),
        ("POST", "/v2/models/plain/versions/1/infer", BODY, 200),
        ("GET", "/v2/models/plain/config", "", 200),
        ("GET", "/v2/models/plain/versions/1/config", "", 200),
        ("GET", "/v2/models/plain/stats", "", 200),
        ("GET", "/v2/models/stats", "", 200),
        ("GET", "/v2/logging", "", 200),
        ("POST", "/v2/logging", "{}", 200),
        ("POST", "/v2/repository/index", "", 200),
        ("POST", "/v2/repository/any/index", "{}", 200),
        ("POST", "/v2/repository/models/plain/load", "", 503),
        ("POST", "/v2/repository/models/plain/unload", "", 503),
        ("POST", "/v2/repository/any/models/plain/load", "", 501),
        ("DELETE", "/v2/models/plain", "", 405),
        ("PUT", "/v2", "", 405),
        ("GET", "/v2/nowhere", "", 404),
    ] {
        let got = curl(&["-X", method, "--data-binary", "@-", &url(path)], body.as_bytes());
        assert_eq!((got.status, got.version.as_str()), (status, "1.1"), "{method} {path}: {}", got.told);
        // Its own content type is that of a form: nobody minds.
        assert!(got.told.contains("Content-Type: application/x-www-form-urlencoded"), "{}", got.told);
    }
    let metrics = curl(&[&format!("http://{}/metrics", server.metrics)], b"");
    assert!(String::from_utf8_lossy(&metrics.body).contains("nv_inference_request_success"), "{}", metrics.told);
    server.stop();
}

#[test]
fn a_head_request_has_an_answer_without_a_body() {
    if !curl_can("") {
        return;
    }
    let (_repository, server) = start(usual());
    let url = format!("http://{}/v2/health/live", server.http);
    // The connection is still in step afterwards.
    let got =
        curl(&["--head", &url, "--next", "--silent", &url, "--write-out", "\n%{http_code} - %{num_connects}"], b"");
    assert_eq!((got.status, got.connections), (200, 0), "{}", got.told);
    assert!(got.told.contains("HTTP/1.1 405"), "HEAD is no method of the route: {}", got.told);
    server.stop();
}

#[test]
fn uploads_in_chunks_and_behind_expect() {
    if !curl_can("") {
        return;
    }
    each(&variant::ALL, |variant| {
        let (_repository, server) = start(variant);
        let plain = format!("http://{}/v2/models/plain/infer", server.http);
        // A standard input has no length: curl sends chunks.
        let got = curl(&["-X", "POST", "-T", "-", &plain], BODY.as_bytes());
        assert!(got.told.contains("Transfer-Encoding: chunked"), "{}", got.told);
        assert_eq!(got.json()["outputs"][0]["data"], json!([5, 6]));

        let tail: Vec<u8> = (0..12_000_000u32).map(|at| (at ^ (at >> 11)) as u8).collect();
        let head = json!({
            "inputs": [{"name": "INPUT0", "datatype": "UINT8", "shape": [tail.len()],
                        "parameters": {"binary_data_size": tail.len()}}],
            "parameters": {"binary_data_output": true},
        })
        .to_string();
        let body = [head.as_bytes(), &tail].concat();
        let file = Scratch::new(&format!("{}-{}", variant.io_engine, variant.io_cores), &body);
        let length = format!("Inference-Header-Content-Length: {}", head.len());
        let large = format!("http://{}/v2/models/large/infer", server.http);
        let from_file = file.argument();
        for how in [
            &["--data-binary", &from_file][..],
            &["-H", "Expect: 100-continue", "--data-binary", &from_file],
            &["-H", "Expect:", "--data-binary", &from_file],
            &["-H", "Expect: 100-continue", "-X", "POST", "-T", &from_file[1..]],
            &["-H", "Transfer-Encoding: chunked", "-H", "Expect: 100-continue", "--data-binary", &from_file],
            &["--http1.0", "--data-binary", &from_file],
        ] {
            let arguments: Vec<&str> = ["-H", &length, "-H", "Content-Type:"].iter().chain(how).copied().collect();
            let got = curl(&[&arguments[..], &[&large]].concat(), b"");
            assert_eq!(got.status, 200, "{how:?}: {}", got.told);
            if how.contains(&"Expect: 100-continue") {
                assert!(got.told.contains("HTTP/1.1 100 Continue"), "{how:?}: {}", got.told);
            }
            let told = got.told.lines().find_map(|line| line.strip_prefix("< Inference-Header-Content-Length: "));
            let json: usize = told.and_then(|length| length.trim().parse().ok()).expect("the length of the JSON");
            assert!(got.body[json..] == tail, "{how:?}: 12 MB changed on their way");
        }
        server.stop();
    });
}

/// A body that will be refused is not even sent.
#[test]
fn a_body_that_is_too_long_is_refused_before_it_is_sent() {
    if !curl_can("") {
        return;
    }
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
    let server = Server::start(usual(), repository.path(), &["--http-max-input-size=1000000"]);
    let url = format!("http://{}/v2/models/plain/infer", server.http);
    let file = Scratch::new("long", &vec![b' '; 3_000_000]);
    let got = curl(&["-H", "Expect: 100-continue", "--data-binary", &file.argument(), &url], b"");
    let text = "request JSON size of 3000000 bytes exceeds the maximum allowed input size of 1000000 bytes. Use \
                --http-max-input-size to increase the limit.";
    assert_eq!((got.status, got.json()), (400, json!({ "error": text })), "{}", got.told);
    assert!(!got.told.contains("100 Continue"), "{}", got.told);
    assert_eq!(Peer::connect(server.http).get("/v2/health/live").status, 200);
    server.stop();
}

#[test]
fn versions_of_http() {
    if !curl_can("HTTP2") {
        return;
    }
    let (_repository, server) = start(usual());
    let url = format!("http://{}/v2/models/plain/infer", server.http);
    let got = curl(&["--http1.0", "--data-binary", BODY, &url], b"");
    assert_eq!(got.json()["outputs"][0]["data"], json!([5, 6]));
    assert!(got.told.contains("Closing connection"), "HTTP/1.0 closes: {}", got.told);
    let got = curl(&["--http1.0", "-H", "Connection: keep-alive", "--data-binary", BODY, &url], b"");
    assert!(got.told.contains("left intact"), "unless it asks: {}", got.told);
    // An upgrade that is offered is not taken; the request is answered as it stands.
    let got = curl(&["--http2", "--data-binary", BODY, &url], b"");
    assert!(got.told.contains("Upgrade: h2c"), "{}", got.told);
    assert_eq!((got.status, got.version.as_str()), (200, "1.1"), "{}", got.told);
    assert_eq!(got.json()["outputs"][0]["data"], json!([5, 6]));
    // HTTP/2 from the first byte is not spoken on this port: the connection ends, at once and without harm.
    let (exit, got) = try_curl(&["--http2-prior-knowledge", "--data-binary", BODY, &url], b"");
    assert!(exit != Some(0) && got.status == 0, "exit {exit:?}: {}", got.told);
    assert_eq!(Peer::connect(server.http).get("/v2/health/live").status, 200);
    server.stop();
}

#[test]
fn many_at_once() {
    if !curl_can("") {
        return;
    }
    each(&variant::ALL, |variant| {
        let (_repository, server) = start(variant);
        let url = format!("http://{}/v2/models/plain/infer?number=[1-400]", server.http);
        let all = ["-Z", "--parallel-max", "64", "--data-binary", BODY, "--write-out", "\n%{http_code} - 0\n", &url];
        let got = curl(&all, b"");
        let text = String::from_utf8_lossy(&got.body).into_owned();
        assert_eq!(text.matches("\"data\":[5,6]").count(), 400, "{text}");
        assert_eq!(text.matches("\n200 - 0").count() + usize::from(got.status == 200), 400, "{text}");
        server.stop();
    });
}

/// curl unpacks what it asks for.
#[test]
fn what_may_be_compressed() {
    if !curl_can("libz") {
        return;
    }
    let (_repository, server) = start(usual());
    let url = format!("http://{}/v2/models/plain/infer", server.http);
    let got = curl(&["--compressed", "--data-binary", BODY, &url], b"");
    assert!(got.told.contains("Accept-Encoding: deflate, gzip"), "{}", got.told);
    assert_eq!(got.json()["outputs"][0]["data"], json!([5, 6]));
    let told = got.told.to_lowercase();
    let packed = ["deflate", "gzip"].iter().any(|name| told.contains(&format!("< content-encoding: {name}")));
    assert!(packed, "the answer came as it is: {}", got.told);
    server.stop();
}
