//! Hosts without an interpreter, without a home directory, or without a reader of the server's output.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nereid_test_support::http::Peer;
use nereid_test_support::python::Python;
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::{OTHER_SERVER, PATIENCE, binary, free_port, signal};
use nereid_test_support::variant::usual;

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

/// A quickstart with ports of its own, in a directory that holds nothing.
struct Quickstart {
    child: Child,
    ports: [u16; 3],
}

impl Quickstart {
    /// Starts with these variables alone, and waits for the message, which it returns.
    fn start(variables: &[(&str, &str)]) -> (Quickstart, String) {
        let ports = [free_port(), free_port(), free_port()];
        let flags: Vec<String> =
            ["http", "grpc", "metrics"].iter().zip(ports).map(|(name, port)| format!("--{name}-port={port}")).collect();
        let engine = format!("--io-engine={}", usual().io_engine);
        let words: Vec<&str> = ["quickstart", &*engine].into_iter().chain(flags.iter().map(String::as_str)).collect();
        let (mut command, home) = bare(&words);
        command.envs(variables.iter().copied()).current_dir(home).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("start");
        let mut message = String::new();
        let mut said = BufReader::new(child.stdout.take().expect("a pipe"));
        while !message.contains("Ctrl-C ends it.") {
            let read = said.read_line(&mut message).expect("what it says");
            assert!(read > 0, "it ended: {message}{}", text(&child.wait_with_output().expect("the end")));
        }
        // The rest is read too, so that the pipe never fills.
        std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
        (Quickstart { child, ports }, message)
    }

    fn peer(&self) -> Peer {
        Peer::connect(([127, 0, 0, 1], self.ports[0]).into())
    }

    /// What it wrote to stderr.
    fn end(self) -> String {
        signal(self.child.id(), "TERM");
        let output = self.child.wait_with_output().expect("the end");
        assert_eq!(output.status.code(), Some(0), "{}", text(&output));
        String::from_utf8_lossy(&output.stderr).into_owned()
    }
}

/// Sends the body of the `curl` line that has `path`.
fn curl(quickstart: &Quickstart, message: &str, path: &str) -> serde_json::Value {
    let line = message.lines().find(|line| line.contains("curl") && line.contains(path));
    let line = line.unwrap_or_else(|| panic!("no line for {path} in {message}"));
    let body = line.split("-d '").nth(1).and_then(|rest| rest.strip_suffix('\'')).expect("a body");
    let answer = quickstart.peer().post(path, &[], body.as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

#[test]
fn quickstart_serves_what_needs_no_runtime() {
    if std::env::var_os(OTHER_SERVER).is_some() {
        return;
    }
    let (quickstart, message) = Quickstart::start(&[]);
    for port in quickstart.ports {
        assert!(TcpStream::connect(("127.0.0.1", port)).is_ok(), "the message came before port {port} was open");
        let other = TcpStream::connect(("127.0.0.2", port));
        assert!(other.is_err(), "port {port} is open on more than the loopback address");
    }
    for part in ["python3 is needed", "Left out, because they need it: digits and simple.", "identity  sends back"] {
        assert!(message.contains(part), "expected {part:?} in {message}");
    }
    let answer = curl(&quickstart, &message, "/v2/models/identity/infer");
    assert_eq!(answer["outputs"][0]["data"], serde_json::json!([1.0, 2.0, 3.0]));
    quickstart.end();
}

#[test]
fn quickstart_shows_how_a_digit_is_classified() {
    if std::env::var_os(OTHER_SERVER).is_some() {
        return;
    }
    let Some(python) = Python::get() else { return };
    let library = python.onnxruntime();
    let (quickstart, message) = Quickstart::start(&[("ORT_DYLIB_PATH", library.to_str().expect("UTF-8"))]);
    let answer = curl(&quickstart, &message, "/v2/models/digits/infer");
    let best = answer["outputs"][0]["data"][0].as_str().unwrap_or_default();
    assert!(best.ends_with(":7:seven"), "{answer}");
    quickstart.end();
}

/// pip tries for half a minute by itself.
#[test]
fn without_a_network_quickstart_gives_up_soon() {
    if std::env::var_os(OTHER_SERVER).is_some() {
        return;
    }
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("offline-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a directory");
    let (program, words) = (folder.join("python3"), folder.join("words"));
    let script = format!(
        "#!/bin/sh\ncase \"$*\" in *download*) echo \"$*\" > '{}'; echo 'WARNING: Retrying after connection broken' >&2; \
         exit 1 ;; esac\n",
        words.display()
    );
    std::fs::write(&program, script).expect("a script");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("its mode");
    let (quickstart, message) = Quickstart::start(&[("PATH", folder.to_str().expect("UTF-8"))]);
    assert!(message.contains("cannot be downloaded; is this host connected"), "{message}");
    let said = quickstart.end();
    assert!(said.contains("Downloading onnxruntime 1.31.1 with pip"), "{said}");
    let words = std::fs::read_to_string(words).expect("pip's words");
    assert!(words.contains("--retries=1") && words.contains("--timeout=10"), "{words}");
    std::fs::remove_dir_all(folder).expect("remove it");
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
