//! `nereid migrate`: its reports, and that a server finds the same.
//!
//! What the report says of a whole set-up is held against a server that is started with it: by the command that ends
//! the report, or in the repositories of the report.

mod hostile;

use std::collections::BTreeSet;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use serde_json::Value;

use nereid_test_support::backend;
use nereid_test_support::http::Peer;
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::{PATIENCE, Server, binary, free_port, run_to_end};
use nereid_test_support::variant::usual;

/// The report in JSON, and the exit code.
fn report(words: &[&str]) -> (i32, Value) {
    let words: Vec<&str> = ["migrate", "--json"].iter().chain(words).copied().collect();
    let (status, out, err) = run_to_end(&words);
    assert_eq!(err, "", "{words:?}");
    let report: Value = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"));
    let code = status.code().expect("it exits");
    assert_eq!(report["exit_code"], code, "{out}");
    (code, report)
}

/// The subjects of a group.
fn subjects(report: &Value, group: &str) -> BTreeSet<String> {
    let findings = report[group].as_array().unwrap_or_else(|| panic!("{group}: {report}"));
    findings.iter().map(|finding| finding["subject"].as_str().expect("a subject").to_owned()).collect()
}

/// The anchors of what differs, by subject.
fn differences(report: &Value) -> BTreeSet<(String, String)> {
    let findings = report["differs"].as_array().expect("a group");
    let text = |finding: &Value, key: &str| finding[key].as_str().expect("a text").to_owned();
    findings
        .iter()
        .map(|finding| {
            let see = text(finding, "see");
            let anchor = see.strip_prefix("docs/differences.md#").unwrap_or_else(|| panic!("{see}"));
            (text(finding, "subject"), anchor.to_owned())
        })
        .collect()
}

fn pair() -> [Pair; 1] {
    [Pair::new("INT32", "-1")]
}

/// A server that the command of a report started; its end kills it.
struct Replacement(Child);

impl Replacement {
    /// Starts it and waits until it is ready at `port`.
    fn start(report: &Value, port: u16) -> Replacement {
        let words = report["command"].as_array().expect("a command");
        let mut words: Vec<&str> = words.iter().map(|word| word.as_str().expect("a word")).collect();
        let at = words.iter().position(|word| *word == "nereid").expect("the program's name");
        let program = binary().into_string().expect("a path in UTF-8");
        words[at] = &program;
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut server = Replacement(command.spawn().expect("the command starts"));
        let started = Instant::now();
        let address = ([127, 0, 0, 1], port).into();
        loop {
            if let Ok(mut peer) = Peer::try_connect(address)
                && peer.get("/v2/health/ready").status == 200
            {
                return server;
            }
            let ended = server.0.try_wait().expect("ask for its state");
            assert!(ended.is_none() && started.elapsed() < PATIENCE, "{ended:?}: {words:?}");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn what_works_is_served_by_the_command_of_the_report() {
    let repository = Repository::new();
    repository.identity("m", 2, &pair());
    let [http, grpc, metrics] = [free_port(), free_port(), free_port()];
    let line = format!(
        "docker run --gpus=1 --rm -p 127.0.0.1:{http}:8000 -p127.0.0.1:{grpc}:8001 --publish 127.0.0.1:{metrics}:8002 \
         -v {}:/models nvcr.io/nvidia/tritonserver:26.11-py3 \
         tritonserver --model-repository=/models --log-verbose=1 --strict-readiness true",
        repository.path().display()
    );
    let (code, found) = report(&[&line]);
    assert_eq!(code, 0, "{found:#}");
    assert!(subjects(&found, "works").is_superset(&["--log-verbose", "model m"].map(str::to_owned).into()));
    let _server = Replacement::start(&found, http);
    let address = |port: u16| ([127, 0, 0, 1], port).into();
    assert_eq!(Peer::connect(address(http)).get("/v2/models/m/ready").status, 200);
    assert_eq!(Peer::connect(address(metrics)).get("/metrics").status, 200);
    Peer::connect(address(grpc));
}

#[test]
fn what_is_missing_is_what_a_server_does_not_load() {
    let repository = Repository::new();
    repository.identity("good", 2, &pair());
    repository.identity_of("nowhere", "unknown_backend", 2, &pair(), "");
    repository.model("unknown_platform", "platform: \"caffe2_netdef\"\n");
    repository.identity_of("identity", "on_gpus", 2, &pair(), "instance_group { kind: KIND_GPU }\n");
    repository.identity_of("identity", "versionless", 2, &pair(), "version_policy { specific { versions: 9 } }\n");
    repository.identity_of("identity", "torn", 2, &pair(), "max_batch_sise: 3\n");
    repository.identity_of("onnxruntime", "no_file", 2, &pair(), "");
    repository.identity_of(
        "python",
        "no_environment",
        2,
        &pair(),
        "parameters { key: \"EXECUTION_ENV_PATH\" \
                            value { string_value: \"/no/such/environment.tar.gz\" } }\n",
    );
    repository.file(
        "no_environment/1/model.py",
        "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n",
    );
    repository.identity_of("identity", "no_agent", 2, &pair(), "model_repository_agents { agents { name: \"x\" } }\n");
    repository.identity_of("library", "no_library", 2, &pair(), "");
    repository.file("no_library/1/libtriton_library.so", "no library");
    let (code, found) = report(&[repository.path().to_str().expect("a path in UTF-8")]);
    assert_eq!((code, &found["command"]), (2, &Value::Null));
    let name = |subject: &String| {
        let name = subject.strip_prefix("model ").unwrap_or_else(|| panic!("{subject}"));
        name.split(',').next().unwrap_or(name).to_owned()
    };
    let missing: BTreeSet<String> = subjects(&found, "missing").iter().map(name).collect();
    let server = Server::start_with(usual(), repository.path(), &["--exit-on-error=false"], "/v2/health/live");
    let is_ready = |model: &str| {
        let path = format!("/v2/models/{model}/ready");
        Peer::connect(server.http).get(&path).status == 200
    };
    server.wait_until("all loads have ended", || {
        let index = Peer::connect(server.http).post("/v2/repository/index", &[], b"{}").text();
        is_ready("good") && !index.contains("LOADING")
    });
    let models = std::fs::read_dir(repository.path()).expect("the repository");
    let models = models.map(|entry| entry.expect("an entry").file_name().into_string().expect("a name in UTF-8"));
    let unserved: BTreeSet<String> = models.filter(|model| !is_ready(model)).collect();
    assert_eq!(missing, unserved, "{found:#}");
    assert_eq!(subjects(&found, "works"), ["model good".to_owned()].into());
    server.stop();
}

#[test]
fn flags_are_what_a_server_takes() {
    let repository = Repository::new();
    repository.identity("m", 2, &pair());
    let flag = format!("--model-repository={}", repository.path().display());
    // Each is refused by a server, and missing here.
    for words in [
        &["--http-port=x"][..],
        &["--no-such-flag=1"],
        &["--load-model=m"],
        &["--cache-config=local,size=1", "--response-cache-byte-size=1"],
        &["--http-port=9000", "--grpc-port=9000"],
        &["--cache-config=local,other=1"],
        &["--cache-config=absent,size=1"],
        &["--model-control-mode=explicit", "--load-model=absent", "--exit-on-error=true"],
        &["word"],
    ] {
        let line: Vec<&str> = ["--", "tritonserver", &flag].iter().chain(words).copied().collect();
        let (code, found) = report(&line);
        assert_eq!(code, 2, "{words:?}: {found:#}");
        let ports = ["--http-port=0", "--grpc-port=0", "--metrics-port=0"].iter();
        let local = ["--http-address=127.0.0.1", "--grpc-address=127.0.0.2", "--metrics-address=127.0.0.3"].iter();
        let served: Vec<&str> = ports.chain(local).chain([&flag.as_str()]).chain(words).copied().collect();
        // The last of two equal flags counts, so only the addresses of the colliding ports are left out.
        let served: Vec<&str> = match words.len() == 2 && words[1].starts_with("--grpc-port") {
            true => words.iter().copied().chain([flag.as_str()]).collect(),
            false => served,
        };
        let (status, _, err) = run_to_end(&served);
        assert_eq!(status.code(), Some(1), "{words:?}: {err}");
    }
    // Each has no effect, and the log of a server says so with the same reason.
    let idle = ["--http-thread-count=4", "--grpc-infer-thread-count=4", "--buffer-manager-thread-count=2"];
    let line: Vec<&str> = ["--", "tritonserver", &flag].iter().chain(&idle).copied().collect();
    let (code, found) = report(&line);
    assert_eq!(code, 1, "{found:#}");
    let server = Server::start(usual(), repository.path(), &idle);
    let log = server.stop();
    let differs = found["differs"].as_array().expect("a group");
    assert_eq!(differs.len(), idle.len(), "{found:#}");
    for finding in differs {
        let text = finding["text"].as_str().expect("a text");
        let (_, reason) = text.split_once(": ").expect("a reason");
        let flag = finding["subject"].as_str().expect("a flag");
        assert!(log.contains(&format!("{flag} has no effect: {reason}")), "{finding}: {log}");
    }
}

#[test]
fn what_differs_loads_and_is_as_the_page_says() {
    let repository = Repository::new();
    repository.identity("first", 2, &pair());
    repository.identity_of("identity", "second", 2, &pair(), "optimization { eager_batching: true }\n");
    // The built-in backend is used: this library could not be opened.
    repository.file("second/1/libtriton_identity.so", "no library");
    repository.model(
        "both",
        "platform: \"ensemble\"\nmax_batch_size: 2\ninput { name: \"I\" data_type: TYPE_INT32 dims: [ -1 ] }\n\
         output [ { name: \"B\" data_type: TYPE_INT32 dims: [ -1 ] }, { name: \"A\" data_type: TYPE_INT32 dims: [ -1 ] } ]\n\
         ensemble_scheduling { step [\n\
         { model_name: \"first\" model_version: -1 input_map { key: \"INPUT0\" value: \"I\" }\n\
           output_map { key: \"OUTPUT0\" value: \"A\" } },\n\
         { model_name: \"second\" model_version: -1 input_map { key: \"INPUT0\" value: \"I\" }\n\
           output_map { key: \"OUTPUT0\" value: \"B\" } } ] }\n",
    );
    std::fs::create_dir_all(repository.path().join("first/99999999999999999999")).expect("make a directory");
    let flag = format!("--model-repository={}", repository.path().display());
    let (code, found) = report(&["--", "tritonserver", &flag, "--model-control-mode=poll"]);
    assert_eq!(code, 1, "{found:#}");
    let expected = [
        ("--model-control-mode", "a-change-that-makes-nothing-newer"),
        ("--model-control-mode", "a-repository-that-disappears"),
        ("model both", "executions-of-an-ensemble"),
        ("model both", "the-order-of-an-ensembles-outputs"),
        ("model first", "version-beyond-64-bits"),
        ("model second", "a-built-in-backend-in-place-of-a-library"),
        ("model second", "fields-and-settings-without-an-effect"),
    ];
    assert_eq!(differences(&found), expected.map(|(subject, id)| (subject.to_owned(), id.to_owned())).into());
    let poll = ["--model-control-mode=poll", "--repository-poll-secs=1"];
    let server = Server::start(usual(), repository.path(), &poll);
    let mut peer = Peer::connect(server.http);
    let body = r#"{"inputs":[{"name":"I","datatype":"INT32","shape":[1,2],"data":[1,2]}]}"#;
    let answer = peer.post("/v2/models/both/infer", &[], body.as_bytes());
    let answer = answer.json();
    let names: Vec<&Value> =
        answer["outputs"].as_array().expect("outputs").iter().map(|output| &output["name"]).collect();
    assert_eq!(names, ["B", "A"], "the order of the configuration: {answer}");
    let statistics = peer.get("/v2/models/both/stats");
    let statistics = statistics.json();
    assert_eq!(statistics["model_stats"][0]["execution_count"], 1, "{statistics}");
    // A file that becomes older is a change, too.
    let config = std::fs::File::open(repository.path().join("first/config.pbtxt")).expect("the configuration");
    config.set_modified(std::time::SystemTime::UNIX_EPOCH).expect("set the time");
    server.wait_until("the model is loaded again", || server.log().matches("loaded 'first'").count() > 1);
    server.stop();
}

#[test]
fn a_library_of_a_backend_is_looked_at_and_not_opened() {
    let Some(directory) = backend::directory() else { return };
    let repository = Repository::new();
    repository.identity_of("copycat", "m", 2, &pair(), "");
    let words = [
        "--".to_owned(),
        "tritonserver".to_owned(),
        format!("--model-repository={}", repository.path().display()),
        format!("--backend-directory={}", directory.display()),
    ];
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (code, found) = report(&words);
    assert_eq!(code, 0, "{found:#}");
    assert!(subjects(&found, "works").contains("model m, its backend"), "{found:#}");
    Server::start(usual(), repository.path(), &words[3..]).stop();
    // Without the required function neither the report nor a server takes it.
    let Some(agent) = nereid_test_support::library::compiled("agent.c") else { return };
    std::fs::copy(agent, repository.path().join("m/1/libtriton_copycat.so")).expect("copy a library");
    let (code, found) = report(&words);
    assert_eq!(code, 2, "{found:#}");
    let text = found["missing"][0]["text"].as_str().expect("a text");
    assert!(text.starts_with("unable to find required entrypoint 'TRITONBACKEND_ModelInstanceExecute'"), "{text}");
    let (status, out, err) = run_to_end(&[
        words[2],
        words[3],
        "--http-port=0",
        "--grpc-port=0",
        "--metrics-port=0",
        "--http-address=127.0.0.1",
        "--grpc-address=127.0.0.2",
        "--metrics-address=127.0.0.3",
    ]);
    assert_eq!(status.code(), Some(1));
    assert!(format!("{out}{err}").contains("unable to find required entrypoint"), "{out}{err}");
}

#[test]
fn texts_are_for_people() {
    let repository = Repository::new();
    repository.identity("m", 2, &pair());
    let path = repository.path().display().to_string();
    let (status, out, err) = run_to_end(&["migrate", &path]);
    assert_eq!((status.code(), &*out, &*err), (Some(0), "Works: 1; --all lists it\n\nDiffers: 0\n\nMissing: 0\n", ""));
    let (_, out, _) = run_to_end(&["migrate", "--all", &path]);
    assert!(out.starts_with("Works: 1\n  model m: identity, built in, versions 1\n"), "{out}");
    let line = format!("mpirun -n 2 tritonserver --model-repository={path} --http-thread-count=2");
    let (status, out, _) = run_to_end(&["migrate", &line]);
    assert_eq!(status.code(), Some(2));
    for part in [
        "\nDiffers: 1\n  --http-thread-count: is checked and has no effect: the shards of --io-cores take all connections\n",
        "      see docs/differences.md#flags-without-an-effect\n",
        "\nMissing: 1\n  mpirun: mpirun starts 2 processes that share a model; this server is one process\n",
        "      instead: one process whose backend",
        "\nCommand: nereid --model-repository=",
    ] {
        assert!(out.contains(part), "{part} in\n{out}");
    }
    let (status, out, _) = run_to_end(&["migrate", "--help"]);
    assert!(status.success() && out.starts_with("Usage: nereid migrate"), "{out}");
    for (words, part) in [
        (&["migrate"][..], "missing <repository> or <command line>"),
        (&["migrate", "--", "ls"], "the command line names no tritonserver: 'ls' is not known"),
        (&["migrate", "--", "docker", "run", "x"], "the command that the image 'x' runs by itself"),
    ] {
        let (status, _, err) = run_to_end(words);
        assert_eq!(status.code(), Some(2), "{words:?}");
        assert!(err.contains(part), "{words:?}: {err}");
    }
}
