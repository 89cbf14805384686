//! Repository agents in C (contract/c_api.md section 6; tests/backends/agent.c says how they are told what to do).

use std::path::Path;

use crate::native::program;
use nereid_test_support::http::Peer;
use nereid_test_support::library::{Libraries, compiled, text_of};
use nereid_test_support::repository::{Pair, Repository, identity_config};
use nereid_test_support::server::{PATIENCE, Server, run_to_end};
use nereid_test_support::variant::{self, each, usual};

/// Agents with their parameters, as a configuration says it.
pub fn agents(agents: &[(&str, &[(&str, &str)])]) -> String {
    let mut text = "model_repository_agents {\n".to_owned();
    for (name, parameters) in agents {
        text.push_str(&format!("  agents {{ name: \"{name}\"\n"));
        for (key, value) in *parameters {
            text.push_str(&format!("    parameters {{ key: \"{key}\" value: \"{value}\" }}\n"));
        }
        text.push_str("  }\n");
    }
    text.push_str("}\n");
    text
}

/// An identity model with agents.
pub fn model(repository: &Repository, name: &str, named: &[(&str, &[(&str, &str)])]) {
    repository.identity_of("identity", name, 0, &[Pair::new("INT32", "-1")], &agents(named));
}

/// What the agents told, without the mark.
fn told(log: &str) -> Vec<&str> {
    log.lines().filter_map(|line| line.strip_prefix("~ ")).map(str::trim_end).collect()
}

pub fn load(server: &Server, model: &str) -> (u16, String) {
    control(server, model, "load", "")
}

fn control(server: &Server, model: &str, what: &str, body: &str) -> (u16, String) {
    let path = format!("/v2/repository/models/{model}/{what}");
    let answer = Peer::connect(server.http).post(&path, &[], body.as_bytes());
    (answer.status, answer.text())
}

const EXPLICIT: &str = "--model-control-mode=explicit";

#[test]
fn every_function_does_what_it_should() {
    let Some(library) = compiled("agent.c") else { return };
    let libraries = Libraries::new();
    libraries.agent("teller", &library);
    let repository = Repository::new();
    model(&repository, "m", &[("teller", &[("tag", "t"), ("check", "")])]);
    // The same where handles are checked.
    let mut log = String::new();
    for is_checked in ["0", "1"] {
        let environment = [("NEREID_CHECK_HANDLES", is_checked)];
        let flags = [&*libraries.flag("repoagent-directory")];
        let server = Server::start_in(usual(), repository.path(), &flags, "/v2/health/ready", &environment);
        log = server.stop();
    }
    let (declared, told) = (program::declared(&text_of("agent.c")), program::told(&log));
    let missing: Vec<_> = declared.difference(&told).collect();
    assert!(missing.is_empty(), "not checked: {missing:?}\n{log}");
    let functions: std::collections::BTreeSet<&str> =
        declared.iter().map(|(_, name)| name.as_str()).filter(|name| name.starts_with("TRITONREPOAGENT_")).collect();
    assert_eq!(functions.len(), 12, "{functions:?}");
    for function in functions {
        for sign in ['+', '-'] {
            assert!(declared.contains(&(sign, function.to_owned())), "{sign} {function}");
        }
    }
}

#[test]
fn agents_see_the_whole_life_of_a_model_in_order() {
    let Some(library) = compiled("agent.c") else { return };
    each(&variant::ALL, |variant| {
        let libraries = Libraries::new();
        libraries.agent("teller", &library);
        let (repository, elsewhere) = (Repository::new(), Repository::new());
        // Without agents of its own: only a later agent sees this configuration.
        elsewhere.identity("moved", 0, &[Pair::new("INT32", "-1")]);
        let place = elsewhere.path().join("moved").display().to_string();
        model(&repository, "m", &[("teller", &[("tag", "one"), ("move", &place)]), ("teller", &[("tag", "two")])]);
        let flags = [&libraries.flag("repoagent-directory"), EXPLICIT, "--load-model=m"];
        let server = Server::start(variant, repository.path(), &flags);
        let begun = ["one initialize m", "one LOAD m", "two initialize moved", "two LOAD moved"];
        let complete = ["two LOAD_COMPLETE moved", "one LOAD_COMPLETE moved"];
        let gone = [
            "one UNLOAD moved",
            "two UNLOAD moved",
            "two UNLOAD_COMPLETE moved",
            "one UNLOAD_COMPLETE moved",
            "one finalize moved",
            "two finalize moved",
        ];
        let mut expected = vec!["agent initialize"];
        expected.extend(begun.iter().chain(&complete));
        assert_eq!(told(&log_after(&server, expected.len())), expected);
        // Unchanged: nothing happens, as what comes next shows.
        assert_eq!(load(&server, "m").0, 200);
        // Another parameter: the new load is complete before the old one goes.
        model(
            &repository,
            "m",
            &[("teller", &[("tag", "one"), ("move", &place), ("x", "")]), ("teller", &[("tag", "two")])],
        );
        assert_eq!(load(&server, "m").0, 200);
        let log = log_after(&server, expected.len() + 4 + 2 + 6);
        let lines = told(&log);
        let fresh: Vec<&str> = lines[expected.len()..].to_vec();
        assert_eq!(fresh[..4], begun);
        // Two threads tell the rest.
        for chain in [&complete[..], &gone[..]] {
            let mut rest = fresh[4..].iter();
            assert!(chain.iter().all(|line| rest.any(|found| found == line)), "{chain:?} in {fresh:?}");
        }
        assert_eq!(fresh.len(), 4 + 2 + 6);
        let count = lines.len();
        assert_eq!(control(&server, "m", "unload", "{}").0, 200);
        assert_eq!(told(&log_after(&server, count + gone.len()))[count..], gone);
        assert_eq!(load(&server, "m").0, 200);
        let log = server.stop();
        let mut last: Vec<&str> = begun.to_vec();
        last.extend(complete.iter().chain(&gone));
        last.push("agent finalize");
        assert_eq!(told(&log)[count + gone.len()..], last);
        let row = log.lines().find(|line| line.starts_with("| teller "));
        assert!(row.is_some_and(|row| row.contains("teller/libtritonrepoagent_teller.so")), "{log}");
    });
}

/// The log once the agents have told so many lines, or more.
fn log_after(server: &Server, count: usize) -> String {
    let started = std::time::Instant::now();
    loop {
        let log = server.log();
        if told(&log).len() >= count {
            return log;
        }
        assert!(started.elapsed() < PATIENCE, "fewer than {count} lines:\n{log}");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

#[test]
fn a_failing_load_fails_the_model_and_every_agent_hears_of_it() {
    let Some(library) = compiled("agent.c") else { return };
    let libraries = Libraries::new();
    libraries.agent("teller", &library);
    let repository = Repository::new();
    model(&repository, "good", &[]);
    let (one, three): (&[_], &[_]) = (&[("tag", "one")], &[("tag", "three")]);
    model(&repository, "m", &[("teller", one), ("teller", &[("tag", "two"), ("fail", "LOAD")]), ("teller", three)]);
    model(&repository, "i", &[("teller", one), ("teller", &[("tag", "two"), ("fail", "initialize")])]);
    model(&repository, "nowhere", &[("teller", &[("tag", "n"), ("move", "/no/such/directory")])]);
    // Passes its poll, and then there is no library.
    let nobody = identity_config(
        "nosuch",
        "nobody",
        0,
        &[Pair::new("INT32", "-1")],
        &agents(&[("teller", one), ("teller", three)]),
    );
    repository.model("nobody", &nobody);
    let flags = [&libraries.flag("repoagent-directory"), EXPLICIT, "--load-model=good"];
    let server = Server::start(usual(), repository.path(), &flags);
    let polls =
        |model: &str| format!("{{\"error\":\"failed to load '{model}', failed to poll from model repository\"}}");
    let two_fails = ["one initialize m", "one LOAD m", "two initialize m", "two LOAD m"];
    let both_fail = ["two LOAD_FAIL m", "one LOAD_FAIL m", "one finalize m", "two finalize m"];
    let cases: [(&str, Option<&str>, Vec<&str>); 4] = [
        ("m", Some("failing as it was told"), [two_fails, both_fail].concat()),
        (
            "i",
            Some("no such models"),
            vec!["one initialize i", "one LOAD i", "two initialize i", "one LOAD_FAIL i", "one finalize i"],
        ),
        (
            "nowhere",
            Some("/no/such/directory"),
            vec!["n initialize nowhere", "n LOAD nowhere", "n LOAD_FAIL directory", "n finalize directory"],
        ),
        (
            "nobody",
            None,
            vec![
                "one initialize nobody",
                "one LOAD nobody",
                "three initialize nobody",
                "three LOAD nobody",
                "three LOAD_FAIL nobody",
                "one LOAD_FAIL nobody",
                "one finalize nobody",
                "three finalize nobody",
            ],
        ),
    ];
    // The first one opens it.
    let mut before = 1;
    for (name, cause, expected) in cases {
        let (status, text) = load(&server, name);
        if cause.is_some() {
            server.wait_for_log(&format!("Poll failed for model directory '{name}': "));
        }
        let log = log_after(&server, before + expected.len());
        match cause {
            Some(cause) => {
                assert_eq!((status, text), (500, polls(name)));
                let line =
                    log.lines().find(|line| line.contains(&format!("Poll failed for model directory '{name}': ")));
                assert!(line.is_some_and(|line| line.contains(cause)), "{name}: {line:?}");
            }
            None => assert!(status == 400 && text.contains("unable to find backend library"), "{status} {text}"),
        }
        assert_eq!(told(&log)[before..], expected, "{name}");
        before = told(&log).len();
    }
    server.stop();
}

#[test]
fn what_agents_answer_later_is_only_logged() {
    let Some(library) = compiled("agent.c") else { return };
    let libraries = Libraries::new();
    libraries.agent("teller", &library);
    let repository = Repository::new();
    let actions = ["LOAD_COMPLETE", "UNLOAD", "UNLOAD_COMPLETE"];
    for action in actions {
        model(&repository, &action.to_lowercase(), &[("teller", &[("tag", action), ("fail", action)])]);
    }
    let server = Server::start(usual(), repository.path(), &[&libraries.flag("repoagent-directory")]);
    let log = server.stop();
    for action in actions {
        let text = format!(
            "the agent 'teller' of model '{}' returns error on TRITONREPOAGENT_ACTION_{action}: Invalid argument: \
             failing as it was told",
            action.to_lowercase()
        );
        assert!(log.contains(&text), "expected {text:?} in\n{log}");
    }
}

#[test]
fn a_model_can_be_loaded_from_a_directory_of_its_agent() {
    let Some(library) = compiled("agent.c") else { return };
    let libraries = Libraries::new();
    libraries.agent("teller", &library);
    let repository = Repository::new();
    // No version in the repository: the agent brings it.
    let config = |more: &str| identity_config("identity", "m", 0, &[Pair::new("INT32", "-1")], more);
    repository.file("m/config.pbtxt", config(&agents(&[("teller", &[("tag", "c"), ("copy", "file")])])));
    let server = Server::start(usual(), repository.path(), &[&libraries.flag("repoagent-directory")]);
    server.wait_for_log("~ c LOAD_COMPLETE");
    let log = server.log();
    let own = told(&log).into_iter().find_map(|line| line.strip_prefix("c own ")).expect("a directory").to_owned();
    assert!(Path::new(&own).join("1/file").is_file(), "{own}");
    let body = r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1],"data":[7]}]}"#;
    let answer = Peer::connect(server.http).post("/v2/models/m/infer", &[], body.as_bytes());
    assert_eq!(answer.json()["outputs"][0]["data"][0], 7, "{}", answer.text());
    server.stop();
    assert!(!Path::new(&own).exists(), "{own} is left behind");
}

#[test]
fn a_location_may_be_one_of_another_repository() {
    let Some(library) = compiled("agent.c") else { return };
    let libraries = Libraries::new();
    libraries.agent("teller", &library);
    let (repository, elsewhere) = (Repository::new(), Repository::new());
    elsewhere.identity("other", 0, &[Pair::new("INT32", "-1")]);
    elsewhere.version("other", "5");
    let remote = elsewhere.path().join("other").display().to_string();
    model(&repository, "m", &[("teller", &[("tag", "r"), ("remote", &remote)]), ("teller", &[("tag", "s")])]);
    let server = Server::start(usual(), repository.path(), &[&libraries.flag("repoagent-directory")]);
    let versions = Peer::connect(server.http).get("/v2/models/m").json()["versions"].clone();
    assert_eq!(versions, serde_json::json!(["5"]));
    server.wait_for_log("~ s LOAD other");
    server.stop();
}

#[test]
fn overrides_name_agents_too() {
    let Some(library) = compiled("agent.c") else { return };
    let libraries = Libraries::new();
    libraries.agent("teller", &library);
    let repository = Repository::new();
    model(&repository, "m", &[]);
    let flags = [&libraries.flag("repoagent-directory"), EXPLICIT, "--load-model=m"];
    let server = Server::start(usual(), repository.path(), &flags);
    let tensor = |name: &str| format!(r#"[{{\"name\":\"{name}\",\"data_type\":\"TYPE_INT32\",\"dims\":[-1]}}]"#);
    let config = format!(
        r#"{{\"backend\":\"identity\",\"input\":{},\"output\":{},\"model_repository_agents\":{}}}"#,
        tensor("INPUT0"),
        tensor("OUTPUT0"),
        r#"{\"agents\":[{\"name\":\"teller\",\"parameters\":{\"tag\":\"o\"}}]}"#
    );
    let body = format!(r#"{{"parameters":{{"config":"{config}"}}}}"#);
    assert_eq!(control(&server, "m", "load", &body).0, 200);
    let expected = ["agent initialize", "o initialize m", "o LOAD m", "o LOAD_COMPLETE m"];
    assert_eq!(told(&log_after(&server, expected.len())), expected);
    // With files the agents see the directory that these were written to, which bears the model's name.
    let body = format!(r#"{{"parameters":{{"config":"{config}","file:1/x":"YQ=="}}}}"#);
    let (status, text) = control(&server, "m", "load", &body);
    assert_eq!(status, 200, "{text}");
    server.wait_for_log("o finalize m");
    server.stop();
}

#[test]
fn polling_and_ensembles_keep_to_the_order_too() {
    let Some(library) = compiled("agent.c") else { return };
    let libraries = Libraries::new();
    libraries.agent("teller", &library);
    let repository = Repository::new();
    model(&repository, "part", &[]);
    let whole = |tag: &str| {
        let named = agents(&[("teller", &[("tag", tag)])]);
        format!(
            "platform: \"ensemble\"\ninput {{ name: \"X\" data_type: TYPE_INT32 dims: [ -1 ] }}\n\
             output {{ name: \"Y\" data_type: TYPE_INT32 dims: [ -1 ] }}\n{named}\
             ensemble_scheduling {{ step {{ model_name: \"part\" model_version: -1\n\
             input_map {{ key: \"INPUT0\" value: \"X\" }} output_map {{ key: \"OUTPUT0\" value: \"Y\" }} }} }}\n"
        )
    };
    repository.model("whole", &whole("e"));
    let flags = [&libraries.flag("repoagent-directory"), "--model-control-mode=poll", "--repository-poll-secs=1"];
    let server = Server::start(usual(), repository.path(), &flags);
    server.wait_for_log("~ e LOAD_COMPLETE whole");
    repository.model("whole", &whole("f"));
    server.wait_for_log("~ f LOAD_COMPLETE whole");
    server.wait_for_log("~ e UNLOAD_COMPLETE whole");
    // Its part goes, and with it the ensemble; its agents stay for when it is back. A poll that saw the file while it
    // was written may have loaded it twice, so what counts is how many loads have no unload.
    std::fs::remove_dir_all(repository.path().join("part")).expect("remove a model");
    server.wait_for_log("'whole' depends on 'part'");
    server.wait_until("one load is left", || loads_without_unload(&server.log()) == 1);
    // Nor does the next poll take them away: what came meanwhile is loaded by it.
    model(&repository, "late", &[]);
    server.wait_for_log("successfully loaded 'late'");
    assert_eq!(loads_without_unload(&server.log()), 1, "{}", server.log());
    std::fs::remove_dir_all(repository.path().join("whole")).expect("remove a model");
    server.wait_until("the last load is unloaded", || loads_without_unload(&server.log()) == 0);
    server.wait_for_log("~ f finalize whole");
    let log = server.stop();
    let last: Vec<&str> = told(&log).into_iter().filter(|line| line.starts_with("f ")).collect();
    let ended = last.len().checked_sub(3).expect("three actions end it");
    assert_eq!(last[ended..], ["f UNLOAD whole", "f UNLOAD_COMPLETE whole", "f finalize whole"]);
}

/// How many complete loads of the model `whole` with the tag `f` were not unloaded since.
fn loads_without_unload(log: &str) -> usize {
    let times = |action: &str| told(log).into_iter().filter(|line| *line == action).count();
    times("f LOAD_COMPLETE whole") - times("f UNLOAD whole")
}

#[test]
fn what_is_no_agent_is_refused() {
    let (Some(agent), Some(empty), Some(throwing)) =
        (compiled("agent.c"), compiled("empty.c"), compiled("throwing.cc"))
    else {
        return;
    };
    let Some(refusing) = compiled("refusing.c") else { return };
    let libraries = Libraries::new();
    libraries.agent("refusing", &refusing);
    libraries.agent("empty", &empty).agent("throwing", &throwing).agent("teller", &agent);
    libraries.add("text", "libtritonrepoagent_text.so", Path::new(file!()));
    let repository = Repository::new();
    model(&repository, "good", &[]);
    let directory = libraries.path().display();
    let absent = |name: &str| {
        format!("unable to find 'libtritonrepoagent_{name}.so' for repo agent '{name}', searched: {directory}")
    };
    let threw = |place: &str| format!("the repository agent threw an exception: thrown at {place}");
    let throws = |place: &'static str| ("throwing", vec![("throw", place)]);
    let cases = [
        ("absent", ("absent", vec![]), absent("absent")),
        ("escape", ("../teller", vec![]), absent("../teller")),
        ("dots", ("..", vec![]), absent("..")),
        ("nameless", ("", vec![]), absent("")),
        ("empty", ("empty", vec![]), "unable to find required entrypoint 'TRITONREPOAGENT_ModelAction'".to_owned()),
        ("refusing", ("refusing", vec![]), "agent needs version 1.0 of the interface, the server has 0.1".to_owned()),
        ("text", ("text", vec![]), "unable to load shared library: ".to_owned()),
        ("initialize", throws("initialize"), threw("initialize")),
        ("load", throws("load"), threw("load")),
    ];
    for (name, (agent, parameters), _) in &cases {
        model(&repository, name, &[(agent, parameters)]);
    }
    for place in ["load_complete", "unload", "unload_complete", "finalize"] {
        model(&repository, place, &[("throwing", &[("throw", place)])]);
    }
    let flags = [&libraries.flag("repoagent-directory"), EXPLICIT, "--load-model=good"];
    let server = Server::start(usual(), repository.path(), &flags);
    for (name, _, cause) in &cases {
        let (status, text) = load(&server, name);
        let expected = format!("{{\"error\":\"failed to load '{name}', failed to poll from model repository\"}}");
        assert_eq!((status, text), (500, expected));
        server.wait_for_log(&format!("Poll failed for model directory '{name}': "));
        let log = server.log();
        let line = log.lines().find(|line| line.contains(&format!("Poll failed for model directory '{name}': ")));
        assert!(line.is_some_and(|line| line.contains(cause)), "{name}: expected {cause:?} in {line:?}");
    }
    for place in ["load_complete", "unload", "unload_complete", "finalize"] {
        assert_eq!(load(&server, place).0, 200, "{place}");
    }
    let log = server.stop();
    assert!(!log.contains("~ refusing finalize"), "what did not initialise is not finalised: {log}");
    for place in ["load_complete", "unload", "unload_complete", "finalize"] {
        assert!(log.contains(&threw(place)), "{place}: {log}");
    }
    // At the start it ends the server as any model that does not load.
    let start = run_to_end(&[&format!("--model-repository={}", repository.path().display())]);
    assert_eq!(start.0.code(), Some(1), "{}{}", start.1, start.2);
}
