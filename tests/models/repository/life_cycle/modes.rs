//! The three control modes: what is loaded at the start, and what may change it later.

use crate::repository::life_cycle::control::{
    EVERY_SECOND, EXPLICIT, Life, POLL, config, generation, grpc_load, grpc_unload, touch,
};
use nereid_test_support::grpc::{Grpc, code};
use nereid_test_support::repository::Repository;
use nereid_test_support::server::OTHER_SERVER;
use nereid_test_support::variant::{self, each, usual};

const NOT_ALLOWED: &str = "explicit model load / unload is not allowed if polling is enabled";

#[test]
fn outside_explicit_mode_nobody_may_load_or_unload() {
    for mode in ["--model-control-mode=none", "--model-control-mode=NONE", POLL] {
        let repository = Repository::new();
        repository.model("m", &config("m", ""));
        let Some(mut life) = Life::start(usual(), &repository, &[mode, "--repository-poll-secs=3600"]) else { return };
        for model in ["m", "unknown"] {
            for answer in [life.load(model), life.unload(model)] {
                assert_eq!((answer.status, answer.error().as_str()), (503, NOT_ALLOWED), "{mode} {model}");
            }
            let mut grpc = Grpc::connect(life.server.grpc);
            for answer in [grpc_load(&mut grpc, "", model, &[]), grpc_unload(&mut grpc, "", model, &[])] {
                let status = answer.expect_err("a refusal");
                assert_eq!((status.code, status.message.as_str()), (code::UNAVAILABLE, NOT_ALLOWED), "{mode} {model}");
            }
        }
        assert_eq!(life.rows_of("m"), ["1:READY:"], "the refused unload did nothing");
        assert_eq!(life.served_by("m"), "1");
        life.server.stop();
    }
}

#[test]
fn without_a_mode_the_repository_is_read_once() {
    let repository = Repository::new();
    repository.model("m", &generation("m", "first"));
    let Some(mut life) = Life::start(usual(), &repository, &[]) else { return };
    repository.model("late", &config("late", ""));
    repository.model("m", &generation("m", "second"));
    touch(&repository, "m/config.pbtxt", 10);
    assert_eq!(life.generation("m"), "first");
    assert!(!life.is_ready("late"));
    std::fs::remove_dir_all(repository.path().join("m")).expect("remove the model");
    assert_eq!(life.served_by("m"), "1");
    // The index lists the directories that are there now; none of them is loaded, or unloaded, for that. What serves
    // without a directory is listed by us, and left out by 2.51.
    assert_eq!(life.rows_of("late"), ["::"]);
    let listed: &[&str] = if std::env::var_os(OTHER_SERVER).is_some() { &[] } else { &["1:READY:"] };
    assert_eq!(life.rows_of("m"), listed);
    life.server.stop();
}

#[test]
fn explicit_mode_loads_what_it_is_told() {
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        repository.model("a", &config("a", "")).model("b", &config("b", ""));
        let Some(mut life) = Life::start(variant, &repository, &[EXPLICIT]) else { return };
        assert_eq!(life.get("/v2/health/ready").status, 200, "a server without models is ready");
        assert_eq!((life.rows_of("a"), life.rows_of("b")), (vec!["::".to_string()], vec!["::".to_string()]));
        let answer = life.infer("a");
        assert_eq!((answer.status, answer.error().as_str()), (404, "Request for unknown model: 'a' is not found"));
        life.must_load("a");
        assert_eq!((life.rows_of("a"), life.rows_of("b")), (vec!["1:READY:".to_string()], vec!["::".to_string()]));
        assert_eq!(life.served_by("a"), "1");
        life.must_unload("a");
        life.wait_for_rows("a", &["1:UNAVAILABLE:unloaded"]);
        assert_eq!(life.get("/v2/health/ready").status, 200, "what was unloaded does not hold the server back");
        assert!(!life.is_ready("a"));
        // A model that was not there at the start.
        repository.model("new", &config("new", ""));
        life.must_load("new");
        assert_eq!(life.served_by("new"), "1");
        life.must_load("a");
        assert_eq!(life.served_by("a"), "1");
        life.server.stop();
    });
}

#[test]
fn explicit_mode_starts_with_what_its_flags_name() {
    let repository = Repository::new();
    for model in ["a", "b", "c"] {
        repository.model(model, &config(model, ""));
    }
    for (flags, loaded) in [
        (&[][..], &[][..]),
        (&["--load-model=a"], &["a"]),
        (&["--load-model=a", "--load-model=c", "--load-model=a"], &["a", "c"]),
        (&["--load-model=*"], &["a", "b", "c"]),
    ] {
        let all: Vec<&str> = [EXPLICIT].iter().chain(flags).copied().collect();
        let Some(mut life) = Life::start(usual(), &repository, &all) else { return };
        for model in ["a", "b", "c"] {
            let wanted = if loaded.contains(&model) { "1:READY:" } else { "::" };
            assert_eq!(life.rows_of(model), [wanted], "{flags:?}: {model}");
        }
        life.server.stop();
    }
}

#[test]
fn poll_mode_follows_the_repository() {
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        repository.model("m", &generation("m", "first")).model("gone", &config("gone", ""));
        let Some(mut life) = Life::start(variant, &repository, &[POLL, EVERY_SECOND]) else { return };
        assert_eq!(life.rows_of("m"), ["1:READY:"]);
        // Added.
        repository.model("late", &config("late", ""));
        life.wait_for_rows("late", &["1:READY:"]);
        // Modified: the configuration.
        repository.model("m", &generation("m", "second"));
        touch(&repository, "m/config.pbtxt", 10);
        life.wait_until("the second config", |life| life.generation("m") == "second");
        // Modified: a version more, which the default policy prefers.
        repository.version("m", "3");
        touch(&repository, "m", 20);
        life.wait_until("version 3", |life| life.versions("m") == ["3"]);
        assert_eq!(life.served_by("m"), "3");
        // Removed.
        std::fs::remove_dir_all(repository.path().join("gone")).expect("remove the model");
        life.wait_until("the end of the model", |life| !life.is_ready("gone"));
        assert_eq!(life.rows_of("gone"), [""; 0], "the index lists what is in the repository");
        let answer = life.infer("gone");
        assert_eq!(answer.error(), "Request for unknown model: 'gone' has no available versions");
        assert_eq!(answer.status, 404);
        // And back.
        repository.model("gone", &config("gone", ""));
        life.wait_for_rows("gone", &["1:READY:"]);
        life.server.stop();
    });
}
