//! The start: failures that end it, the conditions of readiness, retries, and the number of parallel loads.

use crate::repository::life_cycle::control::{EXPLICIT, Life, POLL, config, make_old, parameter};
use nereid_test_support::backend;
use nereid_test_support::http::{Peer, request};
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::{Server, free_port, run_to_end};
use nereid_test_support::strace::late_main_thread;
use nereid_test_support::variant::{self, each, usual};

/// Runs the server to its end; its exit code and everything that it printed.
fn run(repository: &Repository, flags: &[&str]) -> Option<(Option<i32>, String)> {
    let backends = format!("--backend-directory={}", backend::directory()?.display());
    let store = format!("--model-repository={}", repository.path().display());
    let ports = ["http", "grpc", "metrics"].map(|name| format!("--{name}-port={}", free_port()));
    let mut all = vec![store.as_str(), &backends, "--http-address=127.0.0.1", "--grpc-address=127.0.0.1"];
    all.extend(ports.iter().map(String::as_str));
    all.extend(flags);
    let (status, out, err) = run_to_end(&all);
    Some((status.code(), format!("{out}{err}")))
}

#[test]
fn what_ends_the_start() {
    let failing = config("m", &parameter("fail_load", "broken"));
    let loads_all = "error: creating server: Internal - failed to load all models";
    for (contents, flags, text) in [
        (failing.as_str(), &[][..], loads_all),
        ("not a config", &[], loads_all),
        (failing.as_str(), &["--model-control-mode=poll"], loads_all),
        // Explicit mode may say which model it was.
        (failing.as_str(), &[EXPLICIT, "--load-model=m"], "error: creating server: "),
        ("not a config", &[EXPLICIT, "--load-model=*"], "error: creating server: "),
        ("", &[EXPLICIT, "--load-model=absent"], "error: creating server: "),
        (
            "",
            &["--load-model=m"],
            "Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well.",
        ),
        (
            "",
            &[EXPLICIT, "--load-model=m", "--load-model=*"],
            "Wildcard model name '*' must be the ONLY startup model if specified at all.",
        ),
        ("", &["--model-config-name="], "Error: empty argument for --model-config-name"),
        ("", &["--model-control-mode=sometimes"], "invalid argument for --model-control-mode"),
    ] {
        let repository = Repository::new();
        repository.model("m", contents).model("good", &config("good", ""));
        let Some((code, log)) = run(&repository, flags) else { return };
        assert_eq!(code, Some(1), "{flags:?}:\n{log}");
        assert!(log.contains(text), "{flags:?}: expected {text:?} in:\n{log}");
    }
}

#[test]
fn a_failed_model_need_not_end_the_start() {
    for (flags, ready) in [
        (&["--exit-on-error=false"][..], 400),
        (&["--exit-on-error=false", "--strict-readiness=false"], 200),
        (&["--exit-on-error=false", EXPLICIT, "--load-model=m", "--load-model=good"], 400),
    ] {
        let repository = Repository::new();
        repository.model("m", &config("m", &parameter("fail_load", "broken"))).model("good", &config("good", ""));
        let Some(mut life) = Life::start(usual(), &repository, flags) else { return };
        assert_eq!(life.get("/v2/health/ready").status, ready, "{flags:?}");
        assert_eq!(life.served_by("good"), "1");
        assert_eq!(life.rows_of("m"), ["1:UNAVAILABLE:Invalid argument: broken"]);
        life.server.stop();
    }
}

/// It stays, and says that it is neither live nor ready, as long as it is asked.
#[test]
fn repositories_that_cannot_be_read_need_not_end_the_start() {
    let repository = Repository::new();
    repository.file("plain", "");
    for (path, text) in [
        ("absent", "Internal: failed to stat file "),
        ("plain", "Invalid argument: repository path is not a valid directory"),
    ] {
        let path = repository.path().join(path);
        for mode in ["--model-control-mode=none", EXPLICIT, POLL] {
            let server = Server::start_with(usual(), &path, &[mode, "--exit-on-error=false"], "/v2");
            let mut peer = Peer::connect(server.http);
            for probe in ["/v2/health/live", "/v2/health/ready"] {
                assert_eq!(peer.get(probe).status, 400, "{mode} {probe}");
            }
            let answer = peer.post("/v2/repository/index", &[], b"");
            assert_eq!(answer.error(), "Server not ready", "{mode}");
            server.wait_for_log(text);
            server.stop();
        }
    }
}

/// A directory that is no model is not known: it does not keep the server from being ready.
#[test]
fn what_fails_its_poll_does_not_count_for_readiness() {
    for flags in [
        &["--exit-on-error=false"][..],
        &["--exit-on-error=false", "--disable-auto-complete-config"],
        &["--exit-on-error=false", POLL],
        &["--exit-on-error=false", EXPLICIT, "--load-model=bare", "--load-model=absent", "--load-model=good"],
    ] {
        let repository = Repository::new();
        repository.model("good", &config("good", "")).version("bare", "1");
        let Some(mut life) = Life::start(usual(), &repository, flags) else { return };
        assert_eq!(life.get("/v2/health/ready").status, 200, "{flags:?}");
        assert_eq!(life.served_by("good"), "1");
        assert_eq!(life.rows_of("bare"), ["::"]);
        life.server.wait_for_log("Internal: failed to load all models");
        life.server.stop();
    }
}

#[test]
fn strict_readiness_follows_loads_and_unloads() {
    let repository = Repository::new();
    repository.model("good", &config("good", "")).model("bad", &config("bad", &parameter("fail_load", "no")));
    let Some(mut life) = Life::start(usual(), &repository, &[EXPLICIT]) else { return };
    let ready = |life: &mut Life| life.get("/v2/health/ready").status;
    assert_eq!(ready(&mut life), 200);
    assert_eq!(life.load("bad").status, 400);
    assert_eq!(ready(&mut life), 400, "a version is UNAVAILABLE for another reason than 'unloaded'");
    life.must_load("good");
    assert_eq!(ready(&mut life), 400);
    repository.model("bad", &config("bad", ""));
    life.must_load("bad");
    assert_eq!(ready(&mut life), 200);
    life.must_unload("good");
    life.must_unload("bad");
    life.wait_for_rows("bad", &["1:UNAVAILABLE:unloaded"]);
    life.wait_for_rows("good", &["1:UNAVAILABLE:unloaded"]);
    assert_eq!(ready(&mut life), 200);
    life.server.stop();
}

#[test]
fn a_load_is_tried_again_as_often_as_the_flag_says() {
    for (retries, failures, loads) in [("0", "1", false), ("1", "2", false), ("3", "3", true), ("9", "2", true)] {
        let repository = Repository::new();
        let counter = repository.path().with_extension("counter");
        std::fs::write(&counter, format!("{failures}\n")).expect("write the counter");
        repository.model("m", &config("m", &parameter("fail_file", &counter.display().to_string())));
        let flag = format!("--model-load-retry-count={retries}");
        let Some(mut life) = Life::start(usual(), &repository, &[EXPLICIT, &flag]) else { return };
        let answer = life.load("m");
        assert_eq!(answer.status == 200, loads, "{retries} retries, {failures} failures: {}", answer.text());
        if !loads {
            let text = "load failed for model 'm': version 1 is at UNAVAILABLE state: Internal: identity.c: told to \
                        fail;\n";
            assert_eq!(answer.error(), text);
        }
        let left: i64 = std::fs::read_to_string(&counter).expect("the counter").trim().parse().expect("a number");
        let used = failures.parse::<i64>().expect("a number").min(retries.parse::<i64>().expect("a number") + 1);
        assert_eq!(left, failures.parse::<i64>().expect("a number") - used, "{retries} retries");
        life.server.stop();
        std::fs::remove_file(&counter).expect("remove the counter");
    }
}

/// How many loads the journal has open at once, at most.
fn most_at_once(journal: &str) -> usize {
    let (mut open, mut most) = (0usize, 0);
    for line in journal.lines() {
        match line.split(' ').next() {
            Some("begin") => open += 1,
            Some("end") => open -= 1,
            _ => {}
        }
        most = most.max(open);
    }
    most
}

#[test]
fn models_load_side_by_side_on_so_many_threads() {
    // Those that may load side by side wait for each other, and then stay for a while in which others could come.
    for (threads, most) in [("1", 1), ("3", 3)] {
        let repository = Repository::new();
        let journal = repository.path().with_extension("journal");
        let more = parameter("load_journal", &journal.display().to_string())
            + &parameter("load_together", threads)
            + &parameter("load_delay_ms", "150");
        for model in ["a", "b", "c", "d", "e", "f"] {
            repository.model(model, &config(model, &more));
        }
        let flag = format!("--model-load-thread-count={threads}");
        let Some(life) = Life::start(usual(), &repository, &[&flag]) else { return };
        let text = std::fs::read_to_string(&journal).expect("the journal");
        assert_eq!(text.matches("begin").count(), 6, "{text}");
        assert_eq!(most_at_once(&text), most, "{threads} threads:\n{text}");
        life.server.stop();
        std::fs::remove_file(&journal).expect("remove the journal");
    }
}

#[test]
fn plain_files_are_no_models_and_hidden_directories_are() {
    let repository = Repository::new();
    repository.model("m", &config("m", "")).file("readme.txt", "text").file("config.pbtxt", "text");
    let Some(mut life) = Life::start(usual(), &repository, &[]) else { return };
    let names: Vec<String> = life.index().into_iter().map(|row| row.name).collect();
    assert_eq!(names, ["m"]);
    assert_eq!(life.get("/v2/health/ready").status, 200);
    life.server.stop();

    repository.file(".hidden/config.pbtxt", "no configuration");
    let Some((code, log)) = run(&repository, &[]) else { return };
    assert_eq!(code, Some(1), "{log}");
    assert!(log.contains("failed to load all models") && log.contains("'.hidden'"), "{log}");
    let Some(mut life) = Life::start(usual(), &repository, &["--exit-on-error=false"]) else { return };
    let names: Vec<String> = life.index().into_iter().map(|row| row.name).collect();
    assert_eq!(names, [".hidden", "m"]);
    life.server.stop();
}

#[test]
fn a_link_to_a_model_is_a_model() {
    let repository = Repository::new();
    let elsewhere = Repository::new();
    elsewhere.model("original", &config("linked", ""));
    let link = repository.path().join("linked");
    std::os::unix::fs::symlink(elsewhere.path().join("original"), &link).expect("a link");
    make_old(&elsewhere.path().join("original"));
    let Some(mut life) = Life::start(usual(), &repository, &[]) else { return };
    assert_eq!(life.rows_of("linked"), ["1:READY:"]);
    assert_eq!(life.served_by("linked"), "1");
    life.server.stop();
}

/// Strict mode: nothing is completed, so a config is needed, and it must say all.
#[test]
fn without_completion_the_config_must_be_there_and_whole() {
    let repository = Repository::new();
    repository.model("whole", &config("whole", "")).version("bare.copycat", "1");
    repository.model("part", "backend: \"copycat\"\n");
    repository.model("half", &config("half", "").replace("data_type: TYPE_INT32", ""));
    let Some(mut life) = Life::start(usual(), &repository, &[EXPLICIT, "--disable-auto-complete-config"]) else {
        return;
    };
    life.must_load("whole");
    for model in ["bare.copycat", "half"] {
        let wanted = format!("failed to load '{model}', failed to poll from model repository");
        assert_eq!(life.load(model).error(), wanted);
    }
    life.server.wait_for_log("Poll failed for model directory 'half': model input 'INPUT0' must specify");
    life.server.stop();
}

/// A load is complete when every shard serves the model, also for a client that comes before the start is over.
#[test]
fn a_model_that_is_loaded_while_the_server_starts_is_served_at_once() {
    let repository = Repository::new();
    repository.identity("m", 0, &[Pair::new("INT32", "-1")]);
    let infer = request("POST", "/v2/models/m/infer", &[], INFER.as_bytes());
    let Some(words) = late_main_thread(20_000) else { return };
    each(&variant::ALL, |variant| {
        let server = Server::start_without_waiting(&words, variant, repository.path(), &[EXPLICIT]);
        let mut peer = Peer::connect(server.http);
        let load = peer.post("/v2/repository/models/m/load", &[], b"");
        assert_eq!(load.status, 200, "{}", load.text());
        let answer = peer.send(&infer).answer();
        assert_eq!(answer.status, 200, "{}", answer.text());
        server.stop();
    });
}

const INFER: &str = r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1],"data":[7]}]}"#;
