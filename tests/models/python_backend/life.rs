//! From load to unload: instances and their processes, arguments of initialize, configurations that models complete,
//! and requests in the meantime (contract/python_backend.md sections 1, 2 and 6).

use std::collections::BTreeSet;
use std::fs;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::models;
use nereid_test_support::http::Peer;
use nereid_test_support::repository::Repository;
use nereid_test_support::variant::usual;

const EXPLICIT: &str = "--model-control-mode=explicit";

/// What an instance of `tells` says after so many milliseconds.
fn told(peer: &mut Peer, model: &str, wait_ms: u32) -> Value {
    let body = format!(r#"{{"inputs":[{{"name":"WAIT_MS","datatype":"INT32","shape":[1],"data":[{wait_ms}]}}]}}"#);
    let answer = peer.post(&format!("/v2/models/{model}/infer"), &[], body.as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text());
    serde_json::from_str(answer.json()["outputs"][0]["data"][0].as_str().expect("a text")).expect("JSON")
}

fn load(peer: &mut Peer, model: &str) -> (u16, String) {
    let answer = peer.post(&format!("/v2/repository/models/{model}/load"), &[], b"{}");
    (answer.status, answer.text())
}

fn unload(peer: &mut Peer, model: &str) {
    let answer = peer.post(&format!("/v2/repository/models/{model}/unload"), &[], b"{}");
    assert_eq!(answer.status, 200, "{}", answer.text());
}

fn wait_until(what: &str, mut fact: impl FnMut() -> bool) {
    for _ in 0..60_000 {
        if fact() {
            return;
        }
        thread::sleep(Duration::from_millis(2));
    }
    panic!("it never happens: {what}");
}

fn append(repository: &Repository, path: &str, text: &str) {
    let before = fs::read_to_string(repository.path().join(path)).expect("a file of a model");
    repository.file(path, format!("{before}\n{text}\n"));
}

#[test]
fn every_instance_is_a_process_and_learns_who_it_is() {
    let repository = models::repository(&["tells"]);
    append(&repository, "tells/config.pbtxt", "instance_group [ { kind: KIND_CPU count: 3 } ]");
    models::add(&repository, "tells", "other");
    let Some(server) = models::serve(usual(), &repository, &[]) else { return };
    let http = server.http;
    let text = |value: &Value, name: &str| value["args"][name].as_str().expect("a text").to_owned();
    let (mut said, mut names) = (Vec::new(), BTreeSet::new());
    // On a busy machine the requests may come one by one, each when the first instance is free again.
    for wait_ms in [100, 1_000, 10_000] {
        let asked: Vec<_> =
            (0..12).map(|_| thread::spawn(move || told(&mut Peer::connect(http), "tells", wait_ms))).collect();
        said.extend(asked.into_iter().map(|thread| thread.join().expect("an answer")));
        names = said.iter().map(|value| text(value, "model_instance_name")).collect();
        if names.len() >= 3 {
            break;
        }
    }
    assert_eq!(names.into_iter().collect::<Vec<_>>(), ["tells_0_0", "tells_0_1", "tells_0_2"]);
    let processes: BTreeSet<u64> = said.iter().map(|value| value["pid"].as_u64().expect("a number")).collect();
    assert_eq!(processes.len(), 3, "{processes:?}");
    for value in &said {
        let mut args = value["args"].clone();
        args.as_object_mut().expect("an object").remove("model_instance_name");
        let directory = repository.path().join("tells").display().to_string();
        let expected = json!({"model_instance_kind": "CPU", "model_instance_device_id": "0", "model_name": "tells",
            "model_repository": directory, "model_version": "1"});
        assert_eq!(args, expected);
        assert_eq!(value["config"], json!({"name": "tells", "backend": "python", "max_batch_size": 0}));
        assert_eq!(value["cwd"], json!(fs::read_link(format!("/proc/{}/cwd", server.pid())).expect("a link")));
    }
    assert_ne!(told(&mut Peer::connect(http), "other", 0)["pid"], said[0]["pid"]);
    let log = server.stop();
    for name in ["tells_0_0", "tells_0_1", "tells_0_2", "other_0"] {
        assert_eq!(log.matches(&format!("tells: finalized {name}")).count(), 1, "{log}");
    }
    for process in processes {
        assert!(!fs::exists(format!("/proc/{process}")).expect("a look at /proc"), "process {process} is left");
    }
}

#[test]
fn a_worker_runs_where_the_policy_of_its_instance_says() {
    let allowed = thread::available_parallelism().map_or(1, usize::from);
    let repository = models::repository(&["tells"]);
    append(&repository, "tells/config.pbtxt", "instance_group [ { kind: KIND_CPU host_policy: \"mine\" } ]");
    let last = allowed - 1;
    let Some(server) = models::serve(usual(), &repository, &[&format!("--host-policy=mine,cpu-cores={last}")]) else {
        return;
    };
    assert_eq!(told(&mut Peer::connect(server.http), "tells", 0)["cpus"], json!([last]));
    server.stop();
}

#[test]
fn a_changed_script_is_what_runs_after_a_reload() {
    let repository = models::repository(&["tells"]);
    let Some(server) = models::serve(usual(), &repository, &[EXPLICIT]) else { return };
    let mut peer = Peer::connect(server.http);
    assert_eq!(load(&mut peer, "tells").0, 200);
    let first = told(&mut peer, "tells", 0);
    assert_eq!(first["edition"], "first");
    let script = repository.path().join("tells/1/model.py");
    let changed = fs::read_to_string(&script).expect("a script").replace("\"first\"", "\"second\"");
    fs::write(&script, &changed).expect("a script that can be written");
    assert_eq!(load(&mut peer, "tells").0, 200);
    let second = told(&mut peer, "tells", 0);
    assert_eq!((second["edition"].clone(), second["count"].clone()), ("second".into(), 1.into()));
    assert_ne!(first["pid"], second["pid"]);
    server.wait_for_log("tells: finalized tells_0");
    // One that does not load leaves the one before in service.
    append(&repository, "tells/1/model.py", "raise RuntimeError('not this edition')");
    let (status, text) = load(&mut peer, "tells");
    assert_eq!(status, 400, "{text}");
    assert!(text.contains("RuntimeError: not this edition") && text.contains("model.py("), "{text}");
    assert_eq!(told(&mut peer, "tells", 0)["edition"], "second");
    unload(&mut peer, "tells");
    let pid = second["pid"].as_u64().expect("a number");
    wait_until("the process is gone", || !fs::exists(format!("/proc/{pid}")).expect("a look at /proc"));
    server.stop();
}

#[test]
fn instances_load_at_the_same_time_and_end_when_their_requests_have() {
    let repository = models::repository(&["gated"]);
    let Some(server) = models::serve(usual(), &repository, &[EXPLICIT]) else { return };
    let http = server.http;
    let open = |gate: &str| {
        repository.file(&format!("gated/1/{gate}"), "");
    };
    let loading = thread::spawn(move || load(&mut Peer::connect(http), "gated"));
    // Each waits for the others in initialize.
    server.wait_for_log("gated: all are here");
    let mut peer = Peer::connect(http);
    assert_eq!(peer.get("/v2/health/live").status, 200, "the server lives while a model takes its time");
    assert_ne!(peer.get("/v2/models/gated/ready").status, 200);
    assert!(!loading.is_finished());
    open("initialize");
    assert_eq!(loading.join().expect("an answer").0, 200);
    let asking = thread::spawn(move || {
        let body = br#"{"inputs":[{"name":"IN","datatype":"INT32","shape":[1],"data":[5]}]}"#;
        let answer = Peer::connect(http).post("/v2/models/gated/infer", &[], body);
        (answer.status, answer.text())
    });
    server.wait_for_log("gated: executes");
    unload(&mut peer, "gated");
    wait_until("the model is not ready any more", || peer.get("/v2/models/gated/ready").status != 200);
    assert!(!asking.is_finished());
    open("execute");
    let (status, text) = asking.join().expect("an answer");
    assert!(status == 200 && text.contains("\"data\":[5]"), "{status}: {text}");
    for number in 0..3 {
        server.wait_for_log(&format!("gated: finalized gated_0_{number}"));
    }
    server.stop();
}

/// A model of one line in its place.
fn script(body: &str) -> String {
    format!("import sys\nimport triton_python_backend_utils as pb_utils\n\n\nclass TritonPythonModel:\n{body}\n")
}

#[test]
fn what_goes_wrong_while_a_model_loads_is_told_whole() {
    let repository = Repository::new();
    let no_execute =
        format!("Python model {}/none/1/model.py does not implement `execute` method.", repository.path().display());
    let execute = "    def execute(self, requests):\n        return []\n";
    for (model, body, expected) in [
        (
            "raises",
            format!("    def initialize(self, args):\n        raise ValueError('not today')\n{execute}"),
            "ValueError: not today\n\nAt:\n  ",
        ),
        ("key", format!("    def initialize(self, args):\n        args['absent']\n{execute}"), "KeyError: 'absent'"),
        (
            "exits",
            format!("    def initialize(self, args):\n        import os\n        os._exit(3)\n{execute}"),
            "Stub process 'exits_0' is not healthy.",
        ),
        ("none", "    pass\n".to_owned(), no_execute.as_str()),
        (
            "imports",
            "    import nothing_of_the_kind\n".to_owned(),
            "ModuleNotFoundError: No module named 'nothing_of_the_kind'",
        ),
        ("syntax", "    def\n".to_owned(), "SyntaxError"),
    ] {
        repository.model(model, "backend: \"python\"").file(&format!("{model}/1/model.py"), script(&body));
        let Some(server) = models::serve(usual(), &repository, &[EXPLICIT]) else { return };
        let (status, text) = load(&mut Peer::connect(server.http), model);
        let text = text.replace("\\n", "\n").replace("\\\"", "\"");
        assert!(status == 400 && text.contains(expected), "{model}: {status} {text}");
        assert_ne!(Peer::connect(server.http).get(&format!("/v2/models/{model}/ready")).status, 200);
        server.stop();
    }
}

fn configuration(peer: &mut Peer, model: &str) -> Value {
    peer.get(&format!("/v2/models/{model}/config")).json()
}

#[test]
fn models_complete_their_configurations_or_say_why_not() {
    let repository = Repository::new();
    let with = |how: &str, more: &str| {
        models::add(&repository, "auto", how);
        let parameters = format!("parameters {{ key: \"how\" value {{ string_value: \"{how}\" }} }}");
        repository.file(&format!("{how}/config.pbtxt"), format!("backend: \"python\"\n{parameters}\n{more}"));
    };
    let Some(server) = models::serve(usual(), &repository, &[EXPLICIT]) else { return };
    let mut peer = Peer::connect(server.http);
    let batch = json!(4);
    for (how, at, expected) in [
        ("plain", "/max_batch_size", &batch),
        ("plain", "/input/0/name", &json!("IN")),
        ("plain", "/output/0/dims", &json!(["2"])),
        ("batching", "/dynamic_batching/max_queue_delay_microseconds", &json!(0)),
        ("optional", "/input/1/optional", &json!(true)),
        ("decoupled", "/model_transaction_policy/decoupled", &json!(true)),
    ] {
        with(how, "");
        let (status, text) = load(&mut peer, how);
        assert_eq!(status, 200, "{how}: {text}");
        let got = configuration(&mut peer, how);
        let found = got.pointer(at).cloned().unwrap_or_default();
        let unquoted = expected.to_string().replace('"', "");
        let same = found == *expected || format!("{found}") == unquoted;
        assert!(same, "{how}: {at} is {found}, not {expected}: {got}");
    }
    let nothing = "auto_complete_config function in model 'none' must return a valid pb.ModelConfig object.";
    for (how, more, expected) in [
        ("none", "", nothing),
        ("raises", "", "ValueError: no configuration today"),
        ("foreign_input_key", "", "contains property other than 'name', 'data_type', 'dims' and 'optional'."),
        ("input_without_name", "", "is missing 'name' property."),
        ("output_without_dims", "", "is missing 'dims' property."),
        ("small_batch", "", "configuration specified max_batch_size 4, but in auto-complete-config function"),
        ("other_policy", "", "contains property other than 'decoupled'."),
    ] {
        with(how, more);
        let (status, text) = load(&mut peer, how);
        assert!(status == 400 && text.contains(expected), "{how}: {status} {text}");
    }
    // Nothing of a configuration is needed, and none of what the model would add is there where that is off.
    models::add(&repository, "auto_bare", "bare");
    assert_eq!(load(&mut peer, "bare").0, 200);
    assert_eq!(configuration(&mut peer, "bare")["max_batch_size"], 4);
    server.stop();
    with(
        "plain",
        "input { name: \"IN\" data_type: TYPE_INT32 dims: [ 2 ] }\n\
         output { name: \"OUT\" data_type: TYPE_INT32 dims: [ 2 ] }",
    );
    let off = [EXPLICIT, "--disable-auto-complete-config"];
    let Some(server) = models::serve(usual(), &repository, &off) else { return };
    let mut peer = Peer::connect(server.http);
    assert_eq!(load(&mut peer, "plain").0, 200);
    assert_eq!(configuration(&mut peer, "plain")["max_batch_size"], 0);
    server.stop();
}

#[test]
fn files_of_other_names_siblings_and_warm_up() {
    let repository = models::repository(&["tells"]);
    let script = fs::read_to_string(repository.path().join("tells/1/model.py")).expect("a script");
    let other = script
        .replace("\"edition\": \"first\"", "\"edition\": sibling.NAME")
        .replace("import json", "from . import sibling\nimport json");
    fs::remove_file(repository.path().join("tells/1/model.py")).expect("a file that was there");
    repository.file("tells/1/another.py", other).file("tells/1/sibling.py", "NAME = 'of a sibling'\n");
    append(
        &repository,
        "tells/config.pbtxt",
        "default_model_filename: \"another.py\"\n\
         model_warmup { name: \"w\" batch_size: 1 count: 2 inputs { key: \"WAIT_MS\" value { \
         data_type: TYPE_INT32 dims: [ 1 ] zero_data: true } } }",
    );
    let Some(server) = models::serve(usual(), &repository, &[]) else { return };
    let mut peer = Peer::connect(server.http);
    let said = told(&mut peer, "tells", 0);
    assert_eq!((said["edition"].clone(), said["count"].clone()), ("of a sibling".into(), 3.into()));
    let counted = peer.get("/v2/models/tells/stats").json()["model_stats"][0]["inference_count"].clone();
    assert_eq!(counted, 1, "warm-up is not counted");
    server.stop();
}

#[test]
fn a_request_that_nobody_ends_goes_with_its_client() {
    let repository = models::repository(&["stream"]);
    let Some(server) = models::serve(usual(), &repository, &[EXPLICIT]) else { return };
    let mut peer = Peer::connect(server.http);
    assert_eq!(load(&mut peer, "stream").0, 200);
    let body = br#"{"HOW":"never","COUNT":2}"#;
    {
        let mut client = Peer::connect(server.http);
        let head = super::execution::generate("/v2/models/stream/generate_stream", body);
        client.send(&head).head();
        assert!(client.chunk().is_some() && client.chunk().is_some());
    }
    unload(&mut peer, "stream");
    server.wait_for_log("successfully unloaded 'stream' version 1");
    server.stop();
}
