//! What counts as a modification, what is loaded again for it and what stays.

use std::path::PathBuf;

use crate::repository_life::control::{EXPLICIT, Life, config, generation, make_old, parameter, touch};
use crate::support::repository::Repository;
use crate::support::server::OTHER_SERVER;
use crate::support::variant::usual;

/// The events that the C backend wrote down: `begin m 1`.
struct Journal(PathBuf);

impl Journal {
    fn new(repository: &Repository) -> Journal {
        Journal(repository.path().with_extension("journal"))
    }

    fn parameter(&self) -> String {
        parameter("load_journal", &self.0.display().to_string())
    }

    /// Versions of `model` that were loaded since the last look, in ascending order.
    fn loaded(&self, model: &str) -> Vec<String> {
        let text = std::fs::read_to_string(&self.0).unwrap_or_default();
        let _ = std::fs::remove_file(&self.0);
        let prefix = format!("begin {model} ");
        let mut versions: Vec<String> =
            text.lines().filter_map(|line| line.strip_prefix(&prefix)).map(str::to_string).collect();
        versions.sort();
        versions
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

const ALL: &str = "version_policy { all { } }\n";

#[test]
fn a_model_without_changes_is_not_loaded_again() {
    let repository = Repository::new();
    let journal = Journal::new(&repository);
    repository.model("m", &config("m", &journal.parameter())).file("m/1/model.bin", "old");
    let Some(mut life) = Life::start(usual(), &repository, &[EXPLICIT]) else { return };
    life.must_load("m");
    assert_eq!(journal.loaded("m"), ["1"]);
    for _ in 0..3 {
        life.must_load("m");
    }
    assert_eq!(journal.loaded("m"), [""; 0]);
    if std::env::var_os(OTHER_SERVER).is_some() {
        return; // 2.51 notices the following as well.
    }
    // Written again with a time that is older than what was seen, in a directory that did not change: unnoticed.
    repository.file("m/1/model.bin", "new");
    touch(&repository, "m/1/model.bin", -60);
    life.must_load("m");
    assert_eq!(journal.loaded("m"), [""; 0], "nothing is newer than at the last load");
    life.server.stop();
}

/// Which versions a change loads again.
#[test]
fn a_change_reloads_the_versions_that_it_touches() {
    let repository = Repository::new();
    let journal = Journal::new(&repository);
    repository.model("m", &config("m", &(journal.parameter() + ALL)));
    repository.file("m/1/model.bin", "1").file("m/2/model.bin", "2").file("m/labels.txt", "a\n");
    make_old(&repository.path().join("m"));
    let Some(mut life) = Life::start(usual(), &repository, &[EXPLICIT]) else { return };
    life.must_load("m");
    assert_eq!(journal.loaded("m"), ["1", "2"]);
    for (step, (path, reloaded)) in [
        ("m/2/model.bin", &["2"][..]),
        ("m/1", &["1"]),
        // The config file is newer and says the same.
        ("m/config.pbtxt", &[]),
        // Beside the version directories.
        ("m/labels.txt", &["1", "2"]),
    ]
    .into_iter()
    .enumerate()
    {
        touch(&repository, path, 10 * (step as i64 + 1));
        life.must_load("m");
        assert_eq!(journal.loaded("m"), reloaded, "{path}");
        assert_eq!(life.versions("m"), ["1", "2"], "{path}");
    }
    // Another configuration concerns all.
    repository.file("m/config.pbtxt", config("m", &(journal.parameter() + ALL + &parameter("generation", "2"))));
    touch(&repository, "m/config.pbtxt", 100);
    life.must_load("m");
    assert_eq!(journal.loaded("m"), ["1", "2"]);
    assert_eq!(life.generation("m"), "2");
    life.server.stop();
}

#[test]
fn a_policy_alone_moves_only_the_versions_that_come_and_go() {
    let repository = Repository::new();
    let journal = Journal::new(&repository);
    let with = |policy: &str| config("m", &(journal.parameter() + policy));
    repository.model("m", &with(ALL)).version("m", "2").version("m", "3");
    make_old(&repository.path().join("m"));
    let Some(mut life) = Life::start(usual(), &repository, &[EXPLICIT]) else { return };
    life.must_load("m");
    assert_eq!(journal.loaded("m"), ["1", "2", "3"]);
    repository.file("m/config.pbtxt", with("version_policy { specific { versions: [ 2 ] } }\n"));
    touch(&repository, "m/config.pbtxt", 10);
    life.must_load("m");
    assert_eq!((journal.loaded("m"), life.versions("m")), (vec![], vec!["2".to_string()]));
    repository.file("m/config.pbtxt", with("version_policy { latest { num_versions: 2 } }\n"));
    touch(&repository, "m/config.pbtxt", 20);
    life.must_load("m");
    assert_eq!((journal.loaded("m"), life.versions("m")), (vec!["3".to_string()], vec!["2".into(), "3".into()]));
    life.server.stop();
}

#[test]
fn instances_change_in_place() {
    let repository = Repository::new();
    let journal = Journal::new(&repository);
    let with = |groups: &str| {
        let plain = config("m", &journal.parameter());
        plain.replace("instance_group [ { kind: KIND_CPU count: 1 } ]", groups)
    };
    repository.model("m", &with("instance_group [ { kind: KIND_CPU count: 1 } ]"));
    make_old(&repository.path().join("m"));
    let Some(mut life) = Life::start(usual(), &repository, &[EXPLICIT]) else { return };
    life.must_load("m");
    assert_eq!(journal.loaded("m"), ["1"]);
    for (step, (groups, counts)) in [
        ("instance_group [ { kind: KIND_CPU count: 4 } ]", &[4][..]),
        ("instance_group [ { kind: KIND_CPU count: 2 } ]", &[2]),
        ("instance_group [ { kind: KIND_CPU count: 1 }, { name: \"other\" kind: KIND_CPU count: 2 } ]", &[1, 2]),
        ("instance_group [ { kind: KIND_CPU count: 1 } ]", &[1]),
    ]
    .into_iter()
    .enumerate()
    {
        repository.file("m/config.pbtxt", with(groups));
        touch(&repository, "m/config.pbtxt", 10 * (step as i64 + 1));
        life.must_load("m");
        assert_eq!(journal.loaded("m"), [""; 0], "{groups}: the model itself stays");
        let served = life.config("m");
        let served: Vec<i64> = served["instance_group"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|group| group["count"].as_i64())
            .collect();
        assert_eq!(served, counts, "{groups}");
        assert_eq!(life.served_by("m"), "1");
    }
    // Kept instances were kept, whatever they are called: 1 + 3 + 1 came, 2 + 2 went.
    life.wait_until("the end of the surplus instances", |life| {
        let log = life.server.log();
        let count = |text: &str| log.matches(text).count();
        count("instance initialize: ") == 5 && count("instance finalize: ") == 4
    });
    assert!(!life.server.log().contains("model finalize"), "{}", life.server.log());
    // A change that fails leaves all as it was.
    repository.file("m/config.pbtxt", with("instance_group [ { kind: KIND_MODEL count: 3 } ]"));
    touch(&repository, "m/config.pbtxt", 100);
    let answer = life.load("m");
    assert_eq!(answer.status, 400, "{}", answer.text());
    assert_eq!(life.config("m")["instance_group"][0]["kind"], "KIND_CPU");
    assert_eq!(life.served_by("m"), "1");
    life.server.stop();
}

#[test]
fn a_failed_reload_leaves_the_old_model_serving() {
    let repository = Repository::new();
    repository.model("m", &generation("m", "good"));
    let Some(mut life) = Life::start(usual(), &repository, &[EXPLICIT]) else { return };
    life.must_load("m");
    let failing = config("m", &(parameter("fail_load", "broken") + &parameter("generation", "bad")));
    for (step, (text, http_status)) in
        [("not a config", 500), (failing.as_str(), 400), (generation("x", "bad").as_str(), 500)].into_iter().enumerate()
    {
        repository.file("m/config.pbtxt", text);
        touch(&repository, "m/config.pbtxt", 10 * (step as i64 + 1));
        let answer = life.load("m");
        assert_eq!(answer.status, http_status, "{}", answer.text());
        assert_eq!((life.generation("m"), life.served_by("m")), ("good".into(), "1".into()), "{text}");
        assert!(life.is_ready("m"));
    }
    // Gone from the disk altogether.
    std::fs::rename(repository.path().join("m"), repository.path().join("n")).expect("rename");
    let answer = life.load("m");
    assert_eq!(answer.error(), "failed to load 'm', failed to poll from model repository");
    assert_eq!(life.served_by("m"), "1");
    life.server.stop();
}
