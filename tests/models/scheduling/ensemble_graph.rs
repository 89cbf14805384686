//! Ensembles and the repository: models that are loaded with them, and changes that unload them or load them again
//! (contract/schedulers.md section 10).

use nereid_wire::inference::model_repository_parameter::ParameterChoice;
use nereid_wire::inference::{ModelRepositoryParameter, RepositoryModelUnloadRequest, RepositoryModelUnloadResponse};
use serde_json::json;

use super::ensemble::ensemble;
use nereid_test_support::grpc::Grpc;
use nereid_test_support::http::{Answer, Peer};
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::{PATIENCE, Server};
use nereid_test_support::variant::usual;

const EXPLICIT: &str = "--model-control-mode=explicit";

struct Life {
    server: Server,
    http: Peer,
}

impl Life {
    fn start(repository: &Repository, flags: &[&str]) -> Life {
        let server = Server::start_with(usual(), repository.path(), flags, "/v2/health/live");
        let http = Peer::connect(server.http);
        Life { server, http }
    }

    fn load(&mut self, model: &str) -> Answer {
        self.http.post(&format!("/v2/repository/models/{model}/load"), &[], b"")
    }

    fn must_load(&mut self, model: &str) {
        let answer = self.load(model);
        assert_eq!((answer.status, answer.text().as_str()), (200, ""), "load {model}");
    }

    fn unload(&mut self, model: &str, body: &str) {
        let answer = self.http.post(&format!("/v2/repository/models/{model}/unload"), &[], body.as_bytes());
        assert_eq!((answer.status, answer.text().as_str()), (200, ""), "unload {model}");
    }

    fn is_ready(&mut self, model: &str) -> bool {
        self.http.get(&format!("/v2/models/{model}/ready")).status == 200
    }

    /// The names of what serves.
    fn ready(&mut self) -> String {
        let answer = self.http.post("/v2/repository/index", &[], br#"{"ready":true}"#);
        let rows = answer.json();
        let names = rows.as_array().into_iter().flatten().filter_map(|row| row["name"].as_str().map(str::to_owned));
        let mut names: Vec<String> = names.collect();
        names.sort();
        names.join(" ")
    }

    fn wait_for(&mut self, ready: &str) {
        let started = std::time::Instant::now();
        while self.ready() != ready {
            assert!(started.elapsed() < PATIENCE, "{ready} never serve; {} do", self.ready());
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    fn answers(&mut self, model: &str) -> bool {
        let body = json!({ "inputs": [{ "name": "X", "datatype": "INT32", "shape": [1], "data": [7] }] }).to_string();
        let answer = self.http.post(&format!("/v2/models/{model}/infer"), &[], body.as_bytes());
        answer.status == 200 && answer.json()["outputs"][0]["data"] == json!([7])
    }
}

fn part(repository: &Repository, name: &str) {
    repository.identity(name, 0, &[Pair::new("INT32", "-1")]);
}

/// An ensemble of a chain of parts that are identities or, as `inner`, ensembles from X to Y.
fn chain(repository: &Repository, name: &str, parts: &[&str], more: &str) {
    repository.model(name, &chain_config(name, parts, more));
}

fn chain_config(name: &str, parts: &[&str], more: &str) -> String {
    let tensor = |at: usize| match at {
        0 => "X".to_owned(),
        at if at == parts.len() => "Y".to_owned(),
        at => format!("T{at}"),
    };
    let steps: Vec<String> = parts
        .iter()
        .enumerate()
        .map(|(at, part)| match part.starts_with("inner") {
            true => format!("{part} X={} -> Y={}", tensor(at), tensor(at + 1)),
            false => format!("{part} INPUT0={} -> OUTPUT0={}", tensor(at), tensor(at + 1)),
        })
        .collect();
    let steps: Vec<&str> = steps.iter().map(String::as_str).collect();
    ensemble(name, "X", "Y", &steps, more)
}

/// `p` and `q`, `inner` of `p`, and `e` of `inner` and `q`.
fn nested() -> Repository {
    let repository = Repository::new();
    part(&repository, "p");
    part(&repository, "q");
    chain(&repository, "inner", &["p"], "");
    chain(&repository, "e", &["inner", "q"], "");
    repository
}

#[test]
fn an_ensemble_is_loaded_with_what_it_is_made_of() {
    let repository = nested();
    let mut life = Life::start(&repository, &[EXPLICIT]);
    assert_eq!(life.ready(), "");
    life.must_load("e");
    assert_eq!(life.ready(), "e inner p q");
    assert!(life.answers("e") && life.answers("inner"));
    life.must_load("e");
    // All of it: what was read of a running server's log lags behind.
    let log = life.server.stop();
    assert_eq!(log.matches("successfully loaded 'p'").count(), 1, "what serves is not loaded again: {log}");
}

#[test]
fn ensembles_follow_their_parts_away_and_back() {
    let repository = nested();
    let mut life = Life::start(&repository, &[EXPLICIT, "--load-model=e"]);
    assert_eq!(life.ready(), "e inner p q");
    life.unload("p", "");
    life.wait_for("q");
    let text = "ensemble 'inner' depends on 'p' which has no loaded version";
    life.server.wait_for_log(text);
    // What was unloaded does not count against the server, once it is.
    life.server.wait_until("the server is ready", || life.http.get("/v2/health/ready").status == 200);
    life.must_load("p");
    assert_eq!(life.ready(), "e inner p q");
    assert!(life.answers("e"));
    // One that was unloaded by its own name stays away.
    life.unload("inner", "");
    life.wait_for("p q");
    life.must_load("p");
    assert_eq!(life.ready(), "p q");
    life.must_load("inner");
    assert_eq!(life.ready(), "e inner p q");
    assert!(life.answers("e"));
    life.server.stop();
}

#[test]
fn a_part_that_changes_has_its_ensembles_checked_again() {
    let repository = nested();
    let mut life = Life::start(&repository, &[EXPLICIT, "--load-model=e"]);
    let later = |seconds: u64| {
        let file = std::fs::File::open(repository.path().join("p/config.pbtxt")).expect("the config");
        file.set_modified(std::time::SystemTime::now() + std::time::Duration::from_secs(seconds)).expect("a time");
    };
    // Of another type it does not fit any more.
    repository.identity("p", 0, &[Pair::new("FP32", "-1")]);
    later(10);
    life.must_load("p");
    assert_eq!(life.ready(), "p q");
    let text =
        "inconsistent data type: TYPE_INT32 is inferred from model inner while TYPE_FP32 is inferred from model p";
    life.server.wait_for_log(text);
    let answer = life.load("e");
    let text = "ensemble 'e' depends on 'inner' which is not valid. Model 'inner' failed with error: in ensemble inner, \
                ensemble tensor X: inconsistent data type: TYPE_INT32 is inferred from model inner while TYPE_FP32 is \
                inferred from model p";
    assert_eq!((answer.status, answer.error().as_str()), (400, text));
    part(&repository, "p");
    later(20);
    life.must_load("p");
    assert_eq!(life.ready(), "e inner p q");
    assert!(life.answers("e"));
    life.server.stop();
}

#[test]
fn failures_of_ensembles_have_their_texts() {
    let repository = Repository::new();
    part(&repository, "p");
    repository.identity_of("nowhere", "broken", 0, &[Pair::new("INT32", "-1")], "");
    chain(&repository, "lost", &["p", "nobody", "other"], "");
    chain(&repository, "on_broken", &["broken"], "");
    let config = chain_config("old", &["p"], "").replace("model_version: -1", "model_version: 7");
    repository.model("old", &config);
    chain(&repository, "inner1", &["inner2", "p"], "");
    chain(&repository, "inner2", &["inner1"], "");
    chain(&repository, "inner3", &["inner3"], "");
    let wide = chain_config("wide", &["p"], "max_batch_size: 8");
    repository.model("wide", &wide);
    repository.identity("small", 2, &[Pair::new("INT32", "-1")]);
    repository.model("large", &chain_config("large", &["small"], "max_batch_size: 8"));
    let mut life = Life::start(&repository, &[EXPLICIT]);
    for (model, text) in [
        ("lost", "ensemble lost contains models that are not available or ambiguous: nobody, other"),
        ("old", "ensemble 'old' depends on 'p' whose required version 7 is not loaded."),
        ("inner1", "circular dependency between ensembles: inner1 -> ... -> inner2 -> inner1"),
        ("inner3", "circular dependency between ensembles: inner3 -> ... -> inner3 -> inner3"),
        (
            "large",
            "ensemble large allows maximum batch size 8, but it contains model small which only allows maximum batch \
             size to be 2",
        ),
    ] {
        let answer = life.load(model);
        assert_eq!((answer.status, answer.error().as_str()), (400, text));
        assert!(!life.is_ready(model));
    }
    let answer = life.load("on_broken");
    let start = "ensemble 'on_broken' depends on 'broken' which has no loaded version. Model 'broken' loading failed \
                 with error: ";
    assert!(answer.status == 400 && answer.error().starts_with(start), "{}", answer.text());
    life.must_load("wide");
    assert_eq!(life.ready(), "p small wide", "parts stay, and a model without a batch dimension is no obstacle");
    // The graph of a configuration alone is checked before any part is touched.
    repository.model("unused", &chain_config("unused", &["p"], "").replace("value: \"Y\"", "value: \"Q\""));
    let answer = life.load("unused");
    assert_eq!(answer.error(), "failed to load 'unused', failed to poll from model repository");
    life.server.stop();
}

#[test]
fn a_failed_reload_of_an_ensemble_leaves_the_old_one() {
    let repository = nested();
    let mut life = Life::start(&repository, &[EXPLICIT, "--load-model=e"]);
    chain(&repository, "e", &["inner", "nobody"], "");
    let file = std::fs::File::open(repository.path().join("e/config.pbtxt")).expect("the config");
    file.set_modified(std::time::SystemTime::now() + std::time::Duration::from_secs(10)).expect("a time");
    let answer = life.load("e");
    assert_eq!(answer.error(), "ensemble e contains models that are not available or ambiguous: nobody");
    assert!(life.answers("e"));
    // It still follows what it is made of.
    life.unload("q", "");
    life.wait_for("inner p");
    life.must_load("q");
    assert!(life.answers("e"));
    life.server.stop();
}

#[test]
fn unload_dependents_takes_what_nothing_else_needs() {
    let repository = nested();
    chain(&repository, "second", &["q"], "");
    let mut life = Life::start(&repository, &[EXPLICIT, "--load-model=e", "--load-model=second"]);
    life.must_load("p");
    let dependents = r#"{"parameters":{"unload_dependents":true}}"#;
    life.unload("e", dependents);
    // `p` was asked for by name, `q` is needed by the second one.
    life.wait_for("p q second");
    let mut grpc = Grpc::connect(life.server.grpc);
    let wish = ModelRepositoryParameter { parameter_choice: Some(ParameterChoice::BoolParam(true)) };
    let request = RepositoryModelUnloadRequest {
        model_name: "second".to_owned(),
        parameters: [("unload_dependents".to_owned(), wish)].into(),
        ..Default::default()
    };
    grpc.call::<RepositoryModelUnloadResponse>("RepositoryModelUnload", &request).expect("an answer");
    life.wait_for("p");
    life.must_load("e");
    life.unload("e", "");
    life.wait_for("inner p q");
    life.server.stop();
}

#[test]
fn everything_is_loaded_in_an_order_that_works() {
    let repository = Repository::new();
    // In the order of their names every ensemble would come before what it is made of.
    chain(&repository, "a", &["inner_b", "z"], "");
    chain(&repository, "inner_b", &["inner_c", "y"], "");
    chain(&repository, "inner_c", &["z"], "");
    part(&repository, "y");
    part(&repository, "z");
    for flags in [&[][..], &["--model-control-mode=poll"], &[EXPLICIT, "--load-model=*"], &[EXPLICIT, "--load-model=a"]]
    {
        let mut life = Life::start(&repository, flags);
        assert_eq!(life.ready(), "a inner_b inner_c y z", "{flags:?}");
        assert_eq!(life.http.get("/v2/health/ready").status, 200);
        assert!(life.answers("a"));
        life.server.stop();
    }
}

#[test]
fn polling_keeps_ensembles_and_parts_together() {
    let repository = nested();
    let flags = ["--model-control-mode=poll", "--repository-poll-secs=1"];
    let mut life = Life::start(&repository, &flags);
    assert_eq!(life.ready(), "e inner p q");
    let away = repository.path().with_extension("away");
    std::fs::rename(repository.path().join("p"), &away).expect("rename");
    life.wait_for("q");
    std::fs::rename(&away, repository.path().join("p")).expect("rename");
    life.wait_for("e inner p q");
    assert!(life.answers("e"));
    // One that comes with its parts, in one go or not.
    chain(&repository, "b", &["r"], "");
    part(&repository, "r");
    life.wait_for("b e inner p q r");
    assert!(life.answers("b"));
    life.server.stop();
}

#[test]
fn ensembles_prefer_the_models_of_their_own_repository() {
    let (one, two) = (Repository::new(), Repository::new());
    for repository in [&one, &two] {
        part(repository, "p");
    }
    two.identity("p", 0, &[Pair::new("FP32", "-1")]);
    part(&two, "q");
    chain(&one, "e", &["p", "q"], "");
    chain(&two, "f", &["p"], "");
    let second = format!("--model-repository={}", two.path().display());
    let flags = ["--model-namespacing=true", "--exit-on-error=false", second.as_str()];
    let mut life = Life::start(&one, &flags);
    // The p of the other repository has another type.
    assert_eq!(life.ready(), "e p p q");
    assert!(life.answers("e"));
    let steps = life.http.get("/v2/models/e/config").json()["ensemble_scheduling"]["step"].clone();
    let namespaces = [0, 1].map(|at| steps[at]["model_namespace"].as_str().unwrap_or_default().to_owned());
    assert_eq!(namespaces, [one.path().display().to_string(), two.path().display().to_string()]);
    life.server.stop();
}

/// Loads and unloads of parts and of ensembles on them, all at once: nobody waits for ever, and what is left fits.
#[test]
fn operations_on_parts_and_ensembles_do_not_block_each_other() {
    let repository = nested();
    chain(&repository, "second", &["q", "p"], "");
    let mut life = Life::start(&repository, &[EXPLICIT]);
    let address = life.server.http;
    let models = ["p", "q", "inner", "e", "second"];
    std::thread::scope(|scope| {
        for (at, model) in models.into_iter().enumerate() {
            scope.spawn(move || {
                let mut http = Peer::connect(address);
                for round in 0..12 {
                    let verb = if (round + at) % 3 == 2 { "unload" } else { "load" };
                    let answer = http.post(&format!("/v2/repository/models/{model}/{verb}"), &[], b"");
                    // What it is made of may be on its way out; the answer says so.
                    assert!(matches!(answer.status, 200 | 400), "{verb} {model}: {}", answer.text());
                }
            });
        }
    });
    for model in models {
        life.must_load(model);
    }
    assert_eq!(life.ready(), "e inner p q second");
    assert!(life.answers("e") && life.answers("second"));
    for model in models {
        life.unload(model, "");
    }
    life.wait_for("");
    life.server.stop();
}
