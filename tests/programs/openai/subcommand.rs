//! `nereid openai`, which takes the flags of Triton's front end (contract/openai.md section 2).

use std::fs::{self, File};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;

use super::frontend::{COMPLETIONS, completion, has_run, plain_repository};
use nereid_test_support::http::Peer;
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::{PATIENCE, binary, free_port, run_to_end, signal};

/// A running front end, whose output goes to files. Dropping it kills the process.
struct Program {
    child: Child,
    address: SocketAddr,
    folder: PathBuf,
}

impl Program {
    fn start(repository: &Repository, flags: &[&str]) -> Program {
        let port = free_port();
        let folder = repository.path().with_extension(format!("output-{port}"));
        fs::create_dir_all(&folder).expect("a folder for the output");
        let file = |name: &str| Stdio::from(File::create(folder.join(name)).expect("a file for the output"));
        let mut command = Command::new(binary());
        command.args(["openai", "--model-repository"]).arg(repository.path());
        command.args(["--host", "127.0.0.1", "--openai-port", &port.to_string()]).args(flags);
        command.stdin(Stdio::null()).stdout(file("stdout")).stderr(file("stderr"));
        let child = command.spawn().expect("the front end starts");
        let mut program = Program { child, address: SocketAddr::from(([127, 0, 0, 1], port)), folder };
        program.wait_until("it is ready", |program| {
            assert!(program.child.try_wait().expect("its state").is_none(), "it ended:\n{}", program.output());
            TcpStream::connect(program.address).is_ok()
                && Peer::connect(program.address).get("/health/ready").status == 200
        });
        program
    }

    fn wait_until(&mut self, what: &str, mut holds: impl FnMut(&mut Program) -> bool) {
        let started = Instant::now();
        while !holds(self) {
            assert!(started.elapsed() < PATIENCE, "it never comes to pass that {what}:\n{}", self.output());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn output(&self) -> String {
        ["stdout", "stderr"].map(|name| fs::read_to_string(self.folder.join(name)).unwrap_or_default()).concat()
    }

    fn stop(mut self, name: &str) -> (ExitStatus, String) {
        signal(self.child.id(), name);
        self.wait_until("it ends", |program| program.child.try_wait().expect("its state").is_some());
        (self.child.wait().expect("its status"), self.output())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn the_front_end_serves_openais_port_alone() {
    if has_run() {
        return;
    }
    let repository = plain_repository();
    let (http, grpc) = (free_port().to_string(), free_port().to_string());
    let ports = ["--kserve-http-port", &http, "--kserve-grpc-port", &grpc];
    let at = |port: &str| SocketAddr::from(([127, 0, 0, 1], port.parse().expect("a port")));
    for name in ["TERM", "INT"] {
        let program = Program::start(&repository, &ports);
        let list = Peer::connect(program.address).get("/v1/models").json();
        assert_eq!(list["data"][0]["id"], "plain");
        let answer = Peer::connect(program.address).post(COMPLETIONS, &[], completion("x", "y").to_string().as_bytes());
        assert_eq!((answer.status, &answer.json()["detail"]), (400, &json!("Unknown model: x")));
        assert!([&http, &grpc].iter().all(|port| TcpStream::connect(at(port)).is_err()), "KServe's ports are off");
        let (status, output) = program.stop(name);
        assert_eq!(status.code(), Some(0), "{output}");
        assert!(output.contains("Found model: name='plain', backend='identity'"), "{output}");
    }
    let program = Program::start(&repository, &[&ports[..], &["--enable-kserve-frontends"]].concat());
    assert_eq!(Peer::connect(at(&http)).get("/v2/health/ready").status, 200);
    assert!(TcpStream::connect(at(&grpc)).is_ok());
    assert_eq!(program.stop("TERM").0.code(), Some(0));
}

#[test]
fn flags_are_written_as_for_the_original() {
    if has_run() {
        return;
    }
    let repository = plain_repository();
    // Beginnings of names, both ways to give a value, and the last of several.
    let flags = [
        "--http-max=5",
        "--http-max-input-size=100",
        "--default-max-tok",
        "7",
        "--uvicorn-log-level=debug",
        "--tritonserver-log-verbose-level",
        "1",
        "--model-control",
        "explicit",
        "--load-model=plain",
        "--backend",
        "vllm",
        "--openai-restricted-api",
        "inference,model-repository",
        "admin-key",
        "the-secret",
        "--openai-restricted-api",
        "metrics",
        "metrics-key",
        "other-secret",
    ];
    let program = Program::start(&repository, &flags);
    let peer = || Peer::connect(program.address);
    assert_eq!(peer().get("/v1/models").status, 401);
    assert_eq!(peer().get("/metrics").status, 401);
    assert_eq!(peer().post("/v1/models/plain/unload", &[("Admin-Key", "the-secret")], b"").status, 200);
    assert_eq!(peer().post("/x", &[], &[b' '; 101]).status, 413);
    let (status, output) = program.stop("TERM");
    assert_eq!(status.code(), Some(0), "{output}");
    assert!(output.contains("API restrictions enabled"), "{output}");
    for named in ["inference", "model-repository", "metrics", "admin-key", "metrics-key"] {
        assert!(output.contains(named), "{named} in {output}");
    }
    assert!(!output.contains("the-secret") && !output.contains("other-secret"), "{output}");
}

/// Runs it to its end; the exit code and standard error.
fn ended(flags: &[&str]) -> (Option<i32>, String) {
    let (status, out, err) = run_to_end(&[&["openai"], flags].concat());
    assert!(!err.contains("panicked") && !out.contains("panicked"), "{out}{err}");
    (status.code(), err)
}

#[test]
fn wrong_flags_end_the_start_with_the_originals_texts() {
    if has_run() {
        return;
    }
    let repository = plain_repository();
    let path = repository.path().display().to_string();
    let with = |flags: &[&str]| ended(&[&["--model-repository", &path, "--openai-port", "0"], flags].concat());
    let (code, err) = ended(&[]);
    assert_eq!(code, Some(2), "{err}");
    assert!(
        err.contains("usage:") && err.contains("the following arguments are required: --model-repository"),
        "{err}"
    );
    for (flags, text) in [
        (
            &["--http-max-input-size", "0"][..],
            "argument --http-max-input-size: invalid validate_positive_int value: '0'",
        ),
        (&["--http-max-input-size=x"], "argument --http-max-input-size: invalid validate_positive_int value: 'x'"),
        (&["--openai-port", "x"], "argument --openai-port: invalid int value: 'x'"),
        (&["--model-control-mode", "poll"], "argument --model-control-mode: invalid choice: 'poll'"),
        (&["--backend", "onnx"], "argument --backend: invalid choice: 'onnx'"),
        (&["--openai-restricted-api", "inference:key=value"], "argument --openai-restricted-api: expected 3 arguments"),
        (&["--no-such-flag"], "unrecognized arguments: --no-such-flag"),
        (&["--tokenizer"], "argument --tokenizer: expected one argument"),
    ] {
        let (code, err) = with(flags);
        assert_eq!(code, Some(2), "{flags:?}: {err}");
        assert!(err.contains("usage:") && err.contains(text), "{flags:?}: {err}");
    }
    let duplicate = ["--openai-restricted-api", "health", "k", "v", "--openai-restricted-api", "health", "k", "v"];
    for (flags, text) in [
        (
            &["--load-model", "plain"][..],
            "Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well.",
        ),
        (&["--tool-call-parser", "x"], "tool parser: 'x' not found in tool_call_parsers"),
        (
            &["--openai-restricted-api", "embedding", "k", "v"],
            "Unknown API 'embedding'. Available APIs: ['inference', 'model-repository', 'metrics', 'health']",
        ),
        (&duplicate, "restricted api 'health' can not be specified in multiple config groups"),
    ] {
        let (code, err) = with(flags);
        assert_eq!(code, Some(1), "{flags:?}: {err}");
        assert!(err.contains(text), "{flags:?}: {err}");
    }
}

#[test]
fn models_are_loaded_as_the_flags_say() {
    if has_run() {
        return;
    }
    let repository = plain_repository();
    repository.identity("other", 0, &[Pair::new("INT32", "-1")]);
    let path = repository.path().display().to_string();
    let explicit = "--model-control-mode=explicit";
    let listed = |flags: &[&str]| {
        let program = Program::start(&repository, flags);
        let list = Peer::connect(program.address).get("/v1/models").json();
        let models = list["data"].as_array().expect("a list").iter();
        let mut names: Vec<String> = models.map(|model| model["id"].as_str().unwrap_or_default().to_owned()).collect();
        names.sort();
        assert_eq!(program.stop("TERM").0.code(), Some(0));
        names
    };
    assert_eq!(listed(&[]), ["other", "plain"]);
    assert!(listed(&[explicit]).is_empty());
    assert_eq!(listed(&[explicit, "--load-model", "other"]), ["other"]);
    assert_eq!(listed(&[explicit, "--load-model=other", "--load-model", "plain"]), ["other", "plain"]);
    assert_eq!(listed(&[explicit, "--load-model=*"]), ["other", "plain"]);
    let wildcard = "Wildcard model name '*' must be the ONLY startup model if specified at all.";
    for (models, text) in [
        (&["*", "plain"][..], wildcard),
        (&["absent"], "absent"),
        (&[".."], ".."),
        (&["plain", "../plain"], "../plain"),
        (&[""], ""),
    ] {
        let models: Vec<String> = models.iter().map(|model| format!("--load-model={model}")).collect();
        let flags = ["--model-repository", path.as_str(), "--openai-port=0", explicit];
        let (code, err) = ended(&[&flags[..], &models.iter().map(String::as_str).collect::<Vec<_>>()].concat());
        assert!(code.is_some_and(|code| code != 0), "{models:?}: {code:?} {err}");
        assert!(err.contains(text) && !err.is_empty(), "{models:?}: {err}");
    }
}
