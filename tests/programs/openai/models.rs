//! Models listed, loaded and unloaded through OpenAI's port (contract/openai.md section 1.9).

use std::thread;

use serde_json::{Value, json};

use super::frontend::{COMPLETIONS, Frontend, completion, has_run, repository};
use nereid_test_support::http::{Answer, Peer};
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::variant::{ALL, each, usual};

const EXPLICIT: &str = "--model-control-mode=explicit";

fn names(frontend: &Frontend) -> Vec<String> {
    let list = frontend.get("/v1/models").json();
    let ids = list["data"].as_array().expect("a list").iter().map(|model| model["id"].as_str().expect("a name"));
    let mut ids: Vec<String> = ids.map(str::to_owned).collect();
    ids.sort();
    ids
}

fn change(frontend: &Frontend, model: &str, verb: &str) -> Answer {
    frontend.peer().post(&format!("/v1/models/{model}/{verb}"), &[], b"")
}

fn two_models() -> Repository {
    let repository = Repository::new();
    for name in ["one", "two"] {
        repository.identity(name, 0, &[Pair::new("INT32", "-1")]);
    }
    repository
}

#[test]
fn without_explicit_control_nothing_is_loaded() {
    each(&ALL, |variant| {
        let repository = two_models();
        let frontend = Frontend::start_without_python(variant, &repository, &[]);
        for (model, verb) in [("one", "load"), ("absent", "unload"), ("..", "load"), ("%20", "unload")] {
            let answer = change(&frontend, model, verb);
            let text = "Model load/unload requires --model-control-mode=explicit";
            assert_eq!((answer.status, &answer.json()["detail"]), (400, &json!(text)), "{model}");
        }
        assert_eq!(names(&frontend), ["one", "two"]);
        frontend.stop();
    });
}

#[test]
fn models_are_loaded_and_unloaded_once() {
    each(&ALL, |variant| {
        let repository = two_models();
        let flags = [EXPLICIT, "--load-model=one", "--openai-compat=triton"];
        let frontend = Frontend::start_without_python(variant, &repository, &flags);
        let said = |model: &str, verb: &str| {
            let answer = change(&frontend, model, verb);
            (answer.status, answer.text())
        };
        let detail = |status: u16, text: &str| (status, format!("{{\"detail\":\"{text}\"}}"));
        assert_eq!(names(&frontend), ["one"]);
        assert_eq!(said("one", "load"), detail(400, "Model 'one' is already loaded"));
        assert_eq!(said("two", "unload"), detail(400, "Unknown model: two"));
        let loaded = change(&frontend, "two", "load");
        assert_eq!((loaded.status, &loaded.json()["id"]), (200, &json!("two")), "{}", loaded.text());
        assert_eq!(loaded.json()["owned_by"], "Triton Inference Server");
        assert_eq!(frontend.get("/v1/models/two").status, 200);
        assert_eq!(said("two", "unload"), (200, "{\"status\":\"success\",\"model\":\"two\"}".to_owned()));
        assert_eq!(frontend.get("/v1/models/two").status, 404);
        assert_eq!(said("two", "unload"), detail(400, "Unknown model: two"));

        let (status, text) = said("absent", "load");
        assert_eq!(status, 500, "{text}");
        let core = "Failed to load model 'absent': failed to load 'absent', failed to poll from model repository";
        assert_eq!(text, detail(500, core).1);
        for (path, name) in [("..", ".."), ("%20%20", "  ")] {
            let (status, text) = said(path, "load");
            assert_eq!(status, 400, "{text}");
            assert!(text.starts_with(&format!("{{\"detail\":\"Failed to load model '{name}': ")), "{text}");
            assert_eq!(said(path, "unload"), detail(400, &format!("Unknown model: {name}")));
        }
        assert_eq!(said("%0A%09", "unload"), detail(400, "Unknown model: \\n\\t"));
        for path in ["a%2Fb", "a/b", ""] {
            assert_eq!(said(path, "load"), detail(404, "Not Found"), "{path:?}");
        }
        assert_eq!(names(&frontend), ["one"]);
        frontend.stop();
    });
}

#[test]
fn the_list_follows_the_other_ports() {
    each(&ALL, |variant| {
        let repository = two_models();
        let frontend = Frontend::start_without_python(variant, &repository, &[EXPLICIT, "--load-model=one"]);
        let mut kserve = Peer::connect(frontend.server.http);
        assert_eq!(kserve.post("/v2/repository/models/two/load", &[], b"{}").status, 200);
        assert_eq!(names(&frontend), ["one", "two"]);
        assert_eq!(kserve.post("/v2/repository/models/one/unload", &[], b"{}").status, 200);
        frontend.server.wait_until("one is unloaded", || names(&frontend) == ["two"]);
        assert_eq!(change(&frontend, "two", "unload").status, 200);
        assert!(names(&frontend).is_empty());
        let ready = kserve.get("/v2/models/two/ready");
        assert_ne!(ready.status, 200);
        frontend.stop();
    });
}

#[test]
fn one_of_many_loads_at_once_succeeds() {
    if has_run() {
        return;
    }
    let repository = Repository::new();
    for number in 0..10 {
        repository.identity(&format!("m{number}"), 0, &[Pair::new("INT32", "-1")]);
    }
    let frontend = Frontend::start_without_python(usual(), &repository, &[EXPLICIT]);
    let at_once = |count: usize, models: usize, verb: &str| -> Vec<(usize, u16)> {
        thread::scope(|scope| {
            let all: Vec<_> = (0..count)
                .map(|number| {
                    (
                        number % models,
                        scope.spawn({
                            let frontend = &frontend;
                            move || change(frontend, &format!("m{}", number % models), verb).status
                        }),
                    )
                })
                .collect();
            all.into_iter().map(|(model, answer)| (model, answer.join().expect("a status"))).collect()
        })
    };
    for (count, models) in [(5, 1), (10, 2), (50, 10)] {
        for verb in ["load", "unload"] {
            let answers = at_once(count, models, verb);
            for model in 0..models {
                let of_model = answers.iter().filter(|(one, _)| *one == model);
                let mut statuses: Vec<u16> = of_model.map(|(_, status)| *status).collect();
                statuses.sort_unstable();
                assert_eq!(statuses[0], 200, "{verb} of m{model}: {statuses:?}");
                assert!(statuses[1..].iter().all(|status| *status == 400), "{verb} of m{model}: {statuses:?}");
            }
        }
    }
    // Both at once: which of them comes first is open.
    thread::scope(|scope| {
        for number in 0..50 {
            let frontend = &frontend;
            scope.spawn(move || {
                let verb = if number % 2 == 0 { "load" } else { "unload" };
                let status = change(frontend, &format!("m{}", number % 5), verb).status;
                assert!(status == 200 || status == 400, "{verb}: {status}");
            });
        }
    });
    assert_eq!(frontend.get("/health/ready").status, 200);
    frontend.stop();
}

#[test]
fn a_model_answers_between_its_load_and_its_unload() {
    if has_run() {
        return;
    }
    let repository = repository(&["openai_mock"]);
    let Some(frontend) = Frontend::start(&repository, &[EXPLICIT]) else { return };
    let ask = || frontend.post(COMPLETIONS, &completion("openai_mock", "<<reply yes>>"));
    let unknown = json!("Unknown model: openai_mock");
    for _ in 0..2 {
        let before = ask();
        assert_eq!((before.status, &before.json()["detail"]), (400, &unknown));
        assert_eq!(change(&frontend, "openai_mock", "load").status, 200);
        let between = ask();
        assert_eq!(between.status, 200, "{}", between.text());
        let between: Value = between.json();
        assert_eq!(between["choices"][0]["text"], "yes");
        assert_eq!(between["choices"][0]["finish_reason"], "stop");
        assert!(between["usage"]["total_tokens"].as_u64().is_some_and(|count| count > 0), "{between}");
        assert_eq!(change(&frontend, "openai_mock", "unload").status, 200);
        assert_eq!(ask().json()["detail"], unknown);
    }
    frontend.stop();
}
