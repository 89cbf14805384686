//! Models that load other models during their own load, and in a process without a server (contract/python_backend.md
//! section 3, "Model control").

use std::net::TcpStream;
use std::thread;

use super::{models, trouble};
use nereid_test_support::http::{Answer, Peer};
use nereid_test_support::python::Python;
use nereid_test_support::repository::Repository;
use nereid_test_support::variant::usual;

const EXPLICIT: &str = "--model-control-mode=explicit";

/// A model that runs `initialize`, line by line, and then `execute` before it answers. There are `tried`, which logs
/// what becomes of a function, and `gate`, which waits for the file `go` beside the configuration.
fn add(repository: &Repository, name: &str, initialize: &[&str], execute: &[&str]) {
    let lines = |lines: &[&str]| lines.iter().map(|line| format!("        {line}\n")).collect::<String>();
    let script = format!(
        r#"import os
import time

import triton_python_backend_utils as pb_utils


def tried(action, *arguments):
    try:
        text = repr(action(*arguments))
    except pb_utils.TritonModelException as error:
        text = str(error)
    pb_utils.Logger.log_info("{name}: %s %s: %s" % (action.__name__, " ".join(arguments), text))


class TritonPythonModel:
    def gate(self):
        pb_utils.Logger.log_info("{name}: at the gate")
        while not os.path.exists(os.path.join(self.directory, "go")):
            time.sleep(0.002)

    def initialize(self, args):
        self.directory = args["model_repository"]
{}
    def execute(self, requests):
{}        return [pb_utils.InferenceResponse([]) for _ in requests]
"#,
        lines(initialize),
        lines(execute)
    );
    let config = "backend: \"python\"\ninput { name: \"IN\" data_type: TYPE_INT32 dims: [ 1 ] optional: true }\n\
                  output { name: \"OUT\" data_type: TYPE_INT32 dims: [ 1 ] }\n\
                  instance_group [ { kind: KIND_CPU count: 1 } ]\n";
    repository.model(name, config).file(&format!("{name}/1/model.py"), script);
}

fn load(peer: &mut Peer, model: &str) -> (u16, String) {
    let answer = peer.post(&format!("/v2/repository/models/{model}/load"), &[], b"{}");
    (answer.status, answer.text())
}

/// The server as a library in a Python program: its models run with that program's interpreter, also where it is that
/// of a virtual environment, and see an empty command line.
#[test]
fn models_run_with_the_interpreter_of_the_program_that_loads_the_server() {
    let Some(python) = Python::get() else { return };
    let repository = Repository::new();
    let lines = ["import sys", r#"print("runs", sys.executable, sys.argv, sys.prefix, flush=True)"#];
    add(&repository, "tells", &lines, &["pass"]);
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_nereid"));
    let library = program.parent().expect("a directory").join("deps/libtritonserver.so");
    let [library, path] = [&library, repository.path()].map(|path| path.display().to_string());
    // Neither the PATH nor an installation has anything to say.
    let mut command = python.command("hosting.py");
    let output = command.args([&library, &path]).env("PATH", "").env("HOME", "/nowhere").env_remove("XDG_DATA_HOME");
    let output = output.output().expect("the program runs");
    let text = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned()).concat();
    assert!(output.status.success(), "{text}");
    let interpreter = python.interpreter();
    let prefix = interpreter.parent().and_then(std::path::Path::parent).expect("an environment");
    let expected = format!("runs {} [''] {}", interpreter.display(), prefix.display());
    assert!(text.contains(&expected), "{expected:?} is not in {text}");
}

fn infer(peer: &mut Peer, model: &str) -> Answer {
    peer.post(&format!("/v2/models/{model}/infer"), &[], br#"{"inputs":[]}"#)
}

fn is_ready(peer: &mut Peer, model: &str) -> bool {
    peer.get(&format!("/v2/models/{model}/ready")).status == 200
}

const ITSELF: &str = "model 'selfish' cannot load or unload itself while it is being loaded";

#[test]
fn a_model_that_loads_itself_is_refused_and_others_it_may_load() {
    let repository = models::repository(&["echo"]);
    let initialize = [
        "tried(pb_utils.load_model, 'selfish')",
        "tried(pb_utils.unload_model, 'selfish')",
        "tried(pb_utils.load_model, 'echo')",
        "tried(pb_utils.is_model_ready, 'echo')",
        "tried(pb_utils.is_model_ready, 'selfish')",
    ];
    // Once it serves, it may even load itself: that happens beside it.
    let execute = ["os.utime(__file__)", "tried(pb_utils.load_model, 'selfish')"];
    add(&repository, "selfish", &initialize, &execute);
    add(&repository, "stubborn", &["pb_utils.load_model('stubborn')"], &[]);
    let Some(server) = models::serve(usual(), &repository, &[EXPLICIT]) else { return };
    let mut peer = Peer::connect(server.http);
    assert_eq!(load(&mut peer, "selfish").0, 200, "{}", server.log());
    for line in [
        format!("selfish: load_model selfish: Failed to load model: {ITSELF}"),
        format!("selfish: unload_model selfish: Failed to unload model: {ITSELF}"),
        "selfish: load_model echo: None".to_owned(),
        "selfish: is_model_ready echo: True".to_owned(),
        "selfish: is_model_ready selfish: False".to_owned(),
    ] {
        server.wait_for_log(&line);
    }
    assert_eq!(infer(&mut peer, "selfish").status, 200);
    server.wait_for_log("selfish: load_model selfish: None");
    // Who lets the error through does not load, and says why.
    let (status, text) = load(&mut peer, "stubborn");
    let expected = "Failed to load model: model 'stubborn' cannot load or unload itself while it is being loaded";
    assert!(status == 400 && text.contains(expected), "{status} {text}");
    // What was refused holds nothing: the same load is refused again, and a mended model loads.
    assert_eq!(load(&mut peer, "stubborn").0, 400);
    add(&repository, "stubborn", &[], &[]);
    assert_eq!(load(&mut peer, "stubborn"), (200, String::new()));
    server.stop();
}

#[test]
fn models_that_load_each_other_are_told_whoever_begins() {
    let repository = Repository::new();
    add(&repository, "left", &["pb_utils.load_model('middle')"], &[]);
    add(&repository, "middle", &["pb_utils.load_model('right')"], &[]);
    add(&repository, "right", &["pb_utils.load_model('left')"], &[]);
    // Both have begun before one goes on.
    add(&repository, "one", &["self.gate()", "pb_utils.load_model('two')"], &[]);
    add(&repository, "two", &["self.gate()", "pb_utils.load_model('one')"], &[]);
    let Some(server) = models::serve(usual(), &repository, &[EXPLICIT]) else { return };
    let (status, text) = load(&mut Peer::connect(server.http), "left");
    let why = "model 'left' cannot be loaded or unloaded for model 'right' while 'right' is being loaded, because the \
               load of 'left' waits for 'right'";
    assert!(status == 400 && text.contains(why), "{status} {text}");
    let answers = thread::scope(|scope| {
        let load = |model| scope.spawn(move || load(&mut Peer::connect(server.http), model));
        let loads = [load("one"), load("two")];
        server.wait_for_log("one: at the gate");
        server.wait_for_log("two: at the gate");
        repository.file("one/go", "").file("two/go", "");
        loads.map(|load| load.join().expect("an answer"))
    });
    // Whose question came second was refused, and with it failed what the other waits for.
    assert!(
        answers.iter().any(|(status, text)| *status == 400 && text.contains("waits for 'one'"))
            || answers.iter().any(|(status, text)| *status == 400 && text.contains("waits for 'two'")),
        "{answers:?}"
    );
    server.stop();
}

/// An ensemble needs its parts, and looks at them again when they change.
#[test]
fn a_part_that_loads_its_ensemble_is_told_that_it_is_missing_itself() {
    let repository = Repository::new();
    let try_it = ["tried(pb_utils.load_model, 'whole')", "tried(pb_utils.load_model, 'other')"];
    add(&repository, "part", &try_it, &[]);
    add(&repository, "other", &[], &[]);
    let steps = ["part", "other"].map(|model| {
        let io = "input_map { key: \"IN\" value: \"IN\" } output_map { key: \"OUT\" value: ";
        format!("step {{ model_name: \"{model}\" model_version: -1 {io}\"{model}\" }} }}\n")
    });
    let outputs =
        ["part", "other"].map(|name| format!("output {{ name: \"{name}\" data_type: TYPE_INT32 dims: [ 1 ] }}\n"));
    let config = format!(
        "platform: \"ensemble\"\ninput {{ name: \"IN\" data_type: TYPE_INT32 dims: [ 1 ] }}\n{}\
         ensemble_scheduling {{ {} }}\n",
        outputs.concat(),
        steps.concat()
    );
    repository.model("whole", &config);
    let Some(server) = models::serve(usual(), &repository, &[EXPLICIT]) else { return };
    let mut peer = Peer::connect(server.http);
    // From the part's own load the ensemble cannot be loaded; from outside it loads, with the part.
    for model in ["part", "whole"] {
        assert_eq!(load(&mut peer, model), (200, String::new()), "{}", server.log());
    }
    assert!(is_ready(&mut peer, "whole"));
    let log = server.stop();
    let said = log.lines().find(|line| line.contains("part: load_model whole: ")).expect("a refusal");
    assert!(said.contains("Failed to load model: ") && said.contains("'part'"), "{said}");
    assert!(log.contains("model 'part' cannot load or unload itself while it is being loaded"), "{log}");
    assert!(log.contains("part: load_model other: None"), "{log}");
}

/// The state of a model in the index.
fn state(peer: &mut Peer, model: &str) -> String {
    let index = peer.post("/v2/repository/index", &[], b"{}").json();
    let rows = index.as_array().cloned().unwrap_or_default();
    let row = rows.iter().find(|row| row["name"] == model);
    row.and_then(|row| row["state"].as_str()).unwrap_or_default().to_owned()
}

/// The load that a model waits for has begun on somebody else's behalf, and waits for the permit that the model has.
#[test]
fn a_load_that_another_load_waits_for_does_not_wait_for_its_turn() {
    let repository = Repository::new();
    add(&repository, "first", &["self.gate()", "tried(pb_utils.load_model, 'second')"], &[]);
    add(&repository, "second", &[], &[]);
    let flags = [EXPLICIT, "--model-load-thread-count=1"];
    let Some(server) = models::serve(usual(), &repository, &flags) else { return };
    thread::scope(|scope| {
        let load = |model| scope.spawn(move || load(&mut Peer::connect(server.http), model));
        let first = load("first");
        server.wait_for_log("first: at the gate");
        let second = load("second");
        let mut peer = Peer::connect(server.http);
        trouble::wait_until("the second load has begun", || state(&mut peer, "second") == "LOADING");
        repository.file("first/go", "");
        for load in [first, second] {
            assert_eq!(load.join().expect("an answer"), (200, String::new()), "{}", server.log());
        }
        server.wait_for_log("first: load_model second: None");
    });
    server.stop();
}

#[test]
fn models_are_not_controlled_while_the_server_starts_or_ends() {
    let repository = models::repository(&["echo"]);
    let ask = [
        "tried(pb_utils.load_model, 'echo')",
        "tried(pb_utils.unload_model, 'echo')",
        "tried(pb_utils.is_model_ready, 'echo')",
    ];
    let said = [
        "load_model echo: Failed to load model: Server not ready",
        "unload_model echo: Failed to unload model: Server not ready",
        "is_model_ready echo: Failed to check model readiness: Server not ready",
    ];
    add(&repository, "early", &ask, &[]);
    add(&repository, "late", &[], &[&["self.gate()"], &ask[..]].concat());
    let flags = [EXPLICIT, "--load-model=early", "--load-model=late", "--exit-timeout-secs=600"];
    let Some(server) = models::serve(usual(), &repository, &flags) else { return };
    let mut peer = Peer::connect(server.http);
    for line in said {
        server.wait_for_log(&format!("early: {line}"));
    }
    assert!(!is_ready(&mut peer, "echo"));
    let http = server.http;
    let request = thread::spawn(move || infer(&mut Peer::connect(http), "late").status);
    server.wait_for_log("late: at the gate");
    server.terminate();
    trouble::wait_until("nobody is let in any more", || TcpStream::connect(http).is_err());
    repository.file("late/go", "");
    assert_eq!(request.join().expect("an answer"), 200, "what was accepted is answered");
    let (status, log) = server.wait();
    assert_eq!(status.code(), Some(0), "{log}");
    for line in said {
        assert!(log.contains(&format!("late: {line}")), "{line}\n{log}");
    }
}
