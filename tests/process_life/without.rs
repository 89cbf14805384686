//! A host that lacks things: an interpreter, a home, somebody who reads what the server prints.

use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::support::http::Peer;
use crate::support::repository::{Pair, Repository};
use crate::support::server::{OTHER_SERVER, PATIENCE, binary, free_port, signal};
use crate::support::variant::usual;

/// A command of ours on a host with no programs and an empty home.
fn bare(words: &[&str]) -> (Command, PathBuf) {
    let home = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("home-{}-{}", std::process::id(), words[0]));
    std::fs::create_dir_all(&home).expect("make a home");
    let mut command = Command::new(binary());
    command.args(words).env_clear().env("PATH", "").env("HOME", &home).stdin(Stdio::null());
    (command, home)
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn without_python_the_installation_says_what_to_do() {
    let (mut install, home) = bare(&["runtime", "install", "onnxruntime"]);
    let output = install.output().expect("run");
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    for part in ["python3 is needed", "Install Python 3 with pip", "--backend-config=onnxruntime,library=<path>"] {
        assert!(text(&output).contains(part), "expected {part:?} in {}", text(&output));
    }
    let (mut install, _) = bare(&["runtime", "install", "python"]);
    let output = install.output().expect("run");
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    let part = "error: python3 is needed to make an environment, but it does not start (it is not on the PATH)";
    assert!(text(&output).contains(part), "{}", text(&output));
    let (mut list, _) = bare(&["runtime", "list"]);
    let output = list.output().expect("run");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    for part in ["nereid runtime install onnxruntime", "nereid runtime install python"] {
        assert!(text(&output).contains(part), "expected {part:?} in {}", text(&output));
    }
    let left: Vec<_> =
        std::fs::read_dir(home.join(".local/share/nereid/runtimes/onnxruntime")).into_iter().flatten().collect();
    assert!(left.is_empty(), "the failed installation left {left:?}");
}

#[test]
fn quickstart_serves_what_needs_no_runtime() {
    let ports = [free_port(), free_port(), free_port()];
    let flags: Vec<String> =
        ["http", "grpc", "metrics"].iter().zip(ports).map(|(name, port)| format!("--{name}-port={port}")).collect();
    let engine = format!("--io-engine={}", usual().io_engine);
    let words: Vec<&str> = ["quickstart", &*engine].into_iter().chain(flags.iter().map(String::as_str)).collect();
    let (mut command, _) = bare(&words);
    command.current_dir(env!("CARGO_MANIFEST_DIR")).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().expect("start");
    let child = wait_until_ready(child, ports[0]);
    let body = br#"{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[3],"data":[1,2,3]}]}"#;
    let mut peer = Peer::connect(([127, 0, 0, 1], ports[0]).into());
    let answer = peer.post("/v2/models/identity/infer", &[], body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    signal(child.id(), "TERM");
    let output = child.wait_with_output().expect("the end");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    for part in ["python3 is needed", "Left out, because they need it: digits and simple.", "identity  sends back"] {
        assert!(text(&output).contains(part), "expected {part:?} in {}", text(&output));
    }
}

fn wait_until_ready(mut child: Child, port: u16) -> Child {
    let started = Instant::now();
    let is_ready = || {
        TcpStream::connect(("127.0.0.1", port)).is_ok()
            && Peer::connect(([127, 0, 0, 1], port).into()).get("/v2/health/ready").status == 200
    };
    while !is_ready() {
        let has_ended = child.try_wait().expect("ask for the server's state").is_some();
        if has_ended || started.elapsed() > PATIENCE {
            let _ = child.kill();
            panic!("the server does not get ready: {}", child.wait().expect("its end"));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    child
}

#[test]
fn the_end_is_in_order_when_nobody_reads_what_is_printed() {
    if std::env::var_os(OTHER_SERVER).is_some() {
        return;
    }
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
    let port = free_port();
    let mut child = Command::new(binary())
        .arg(format!("--model-repository={}", repository.path().display()))
        .args(["--allow-grpc=false", "--allow-metrics=false", "--http-address=127.0.0.1", "--log-verbose=1"])
        .args([format!("--http-port={port}"), format!("--io-engine={}", usual().io_engine)])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("start");
    drop((child.stdout.take(), child.stderr.take()));
    let mut child = wait_until_ready(child, port);
    signal(child.id(), "TERM");
    let status = child.wait().expect("the end");
    assert_eq!(status.code(), Some(0), "closed pipes are no reason to fail: {status}");
}
