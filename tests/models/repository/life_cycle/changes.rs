//! What counts as a modification, what is loaded again for it and what stays.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::repository::life_cycle::control::{
    EVERY_SECOND, EXPLICIT, Life, POLL, config, generation, make_old, parameter, touch,
};
use nereid_test_support::repository::Repository;
use nereid_test_support::variant::usual;

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
        self.events("begin", model)
    }

    /// Versions of `model` that something happened to since the last look, in ascending order.
    fn events(&self, event: &str, model: &str) -> Vec<String> {
        let text = std::fs::read_to_string(&self.0).unwrap_or_default();
        let _ = std::fs::remove_file(&self.0);
        let prefix = format!("{event} {model} ");
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
    // Written again with a time that is older than what was seen, in a directory that did not change.
    repository.file("m/1/model.bin", "new");
    touch(&repository, "m/1/model.bin", -60);
    life.must_load("m");
    assert_eq!(journal.loaded("m"), ["1"]);
    life.must_load("m");
    assert_eq!(journal.loaded("m"), [""; 0]);
    life.server.stop();
}

/// Copies a directory with its times, as who takes a release back does.
fn copy(from: &Path, to: &Path) {
    let status = Command::new("cp").arg("-a").arg(from).arg(to).status().expect("cp");
    assert!(status.success(), "cp -a {from:?} {to:?}");
}

/// A release is taken back: the files of the last one return with the times that they had.
#[test]
fn a_release_that_is_taken_back_is_loaded() {
    for flags in [&[EXPLICIT, "--load-model=m"][..], &[POLL, EVERY_SECOND]] {
        let repository = Repository::new();
        repository.model("m", &generation("m", "old")).file("m/1/model.bin", "old");
        make_old(&repository.path().join("m"));
        let kept = repository.path().with_extension("kept");
        copy(&repository.path().join("m"), &kept);
        repository.file("m/config.pbtxt", generation("m", "new")).file("m/1/model.bin", "new");
        let Some(mut life) = Life::start(usual(), &repository, flags) else { return };
        assert_eq!(life.generation("m"), "new", "{flags:?}");
        // Another directory takes the place; then the files alone, whose directories keep their times.
        let replace = || {
            std::fs::remove_dir_all(repository.path().join("m")).expect("remove the model");
            copy(&kept, &repository.path().join("m"));
        };
        let overwrite = || {
            for file in ["config.pbtxt", "1/model.bin"] {
                copy(&kept.join(file), &repository.path().join("m").join(file));
            }
        };
        for take_back in [&replace as &dyn Fn(), &overwrite] {
            take_back();
            if flags[0] == EXPLICIT {
                life.must_load("m");
                assert_eq!(life.generation("m"), "old");
            }
            // A look of the server between the removal and the copy finds no model, and unloads it.
            life.wait_until("the last release", |life| life.serves("m", "old"));
            repository.file("m/config.pbtxt", generation("m", "new"));
            if flags[0] == EXPLICIT {
                life.must_load("m");
            }
            life.wait_until("the new release", |life| life.serves("m", "new"));
        }
        life.server.stop();
        std::fs::remove_dir_all(&kept).expect("remove the copy");
    }
}

/// Reproducible archives give every file one time: weights of one shape differ in nothing but what they hold.
#[test]
fn other_weights_of_the_same_size_and_time_are_loaded() {
    let repository = Repository::new();
    let journal = Journal::new(&repository);
    repository.model("m", &config("m", &journal.parameter())).file("m/1/model.bin", "one");
    make_old(&repository.path().join("m"));
    let Some(mut life) = Life::start(usual(), &repository, &[EXPLICIT, "--load-model=m"]) else { return };
    assert_eq!(journal.loaded("m"), ["1"]);
    let path = |file: &str| repository.path().join("m/1").join(file);
    let times = |file: &str| std::fs::metadata(path(file)).and_then(|it| it.modified()).expect("a time");
    let (of_file, of_directory) = (times("model.bin"), times("."));
    repository.file("m/1/other.bin", "two");
    std::fs::File::open(path("other.bin")).and_then(|file| file.set_modified(of_file)).expect("a time");
    std::fs::rename(path("other.bin"), path("model.bin")).expect("a move");
    std::fs::File::open(path(".")).and_then(|file| file.set_modified(of_directory)).expect("a time");
    life.must_load("m");
    assert_eq!(journal.loaded("m"), ["1"]);
    life.server.stop();
}

#[test]
fn instances_that_go_are_gone_when_the_load_answers() {
    let repository = Repository::new();
    let journal = Journal::new(&repository);
    let with = |count: u32| config("m", &journal.parameter()).replace("count: 1", &format!("count: {count}"));
    repository.model("m", &with(4));
    make_old(&repository.path().join("m"));
    let Some(mut life) = Life::start(usual(), &repository, &[EXPLICIT, "--load-model=m"]) else { return };
    journal.loaded("m");
    for (step, (count, gone)) in [(2, 2), (3, 0), (1, 2)].into_iter().enumerate() {
        repository.file("m/config.pbtxt", with(count));
        touch(&repository, "m/config.pbtxt", 10 * (step as i64 + 1));
        life.must_load("m");
        assert_eq!(journal.events("less", "m").len(), gone, "{count} instances");
    }
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
    // Refused by the library where the kind is offered, by the check of the configuration where it is not.
    assert!(matches!(answer.status, 400 | 500), "{}", answer.text());
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
