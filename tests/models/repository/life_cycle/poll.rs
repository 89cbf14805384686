//! Polling of a faulty repository: half-copied models, bad files, a repository that disappears.

use crate::repository::life_cycle::control::{
    EVERY_SECOND, Life, POLL, config, generation, make_old, parameter, touch,
};
use nereid_test_support::repository::Repository;
use nereid_test_support::server::OTHER_SERVER;
use nereid_test_support::variant::{self, each, usual};

/// Waits until a poll that began after this call has ended: a model that was added now serves.
fn next_poll(life: &mut Life, repository: &Repository, marker: &str) {
    repository.model(marker, &config(marker, ""));
    life.wait_for_rows(marker, &["1:READY:"]);
}

#[test]
fn bad_models_come_and_go_without_touching_the_others() {
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        repository.model("good", &config("good", ""));
        let Some(mut life) = Life::start(variant, &repository, &[POLL, EVERY_SECOND]) else { return };
        repository.file("syntax/config.pbtxt", "name: \"syntax\"\nmax_batch_sise: 4\n");
        repository.file("empty/readme.txt", "");
        repository.model("failing", &config("failing", &parameter("fail_load", "no")));
        next_poll(&mut life, &repository, "first");
        life.wait_for_rows("failing", &["1:UNAVAILABLE:Invalid argument: no"]);
        life.server.wait_for_log("Poll failed for model directory 'syntax'");
        assert_eq!(life.served_by("good"), "1");
        assert_eq!(life.get("/v2/health/live").status, 200);
        // Mended, each of them serves.
        repository.model("syntax", &config("syntax", "")).model("failing", &config("failing", ""));
        touch(&repository, "failing/config.pbtxt", 10);
        life.wait_for_rows("syntax", &["1:READY:"]);
        life.wait_for_rows("failing", &["1:READY:"]);
        life.server.stop();
    });
}

/// A copy that is under way: first the directory, then the config, then the version.
#[test]
fn a_model_that_is_copied_slowly_serves_in_the_end() {
    let repository = Repository::new();
    let Some(mut life) = Life::start(usual(), &repository, &[POLL, EVERY_SECOND]) else { return };
    std::fs::create_dir(repository.path().join("m")).expect("make a directory");
    next_poll(&mut life, &repository, "first");
    let whole = config("m", "");
    repository.file("m/config.pbtxt", &whole[..whole.len() / 2]);
    next_poll(&mut life, &repository, "second");
    repository.file("m/config.pbtxt", &whole);
    touch(&repository, "m/config.pbtxt", 10);
    next_poll(&mut life, &repository, "third");
    assert!(!life.is_ready("m"), "there is no version yet");
    repository.version("m", "1");
    touch(&repository, "m", 20);
    life.wait_for_rows("m", &["1:READY:"]);
    life.server.stop();
}

#[test]
fn a_bad_change_leaves_what_serves() {
    let repository = Repository::new();
    repository.model("m", &generation("m", "good"));
    make_old(&repository.path().join("m"));
    let Some(mut life) = Life::start(usual(), &repository, &[POLL, EVERY_SECOND]) else { return };
    let failing = config("m", &(parameter("fail_load", "broken") + &parameter("generation", "bad")));
    for (step, text) in ["not a config", failing.as_str()].into_iter().enumerate() {
        repository.file("m/config.pbtxt", text);
        touch(&repository, "m/config.pbtxt", 10 * (step as i64 + 1));
        next_poll(&mut life, &repository, &format!("marker{step}"));
        assert_eq!((life.generation("m"), life.served_by("m")), ("good".into(), "1".into()), "{text}");
    }
    repository.file("m/config.pbtxt", generation("m", "better"));
    touch(&repository, "m/config.pbtxt", 100);
    life.wait_until("the mended config", |life| life.generation("m") == "better");
    life.server.stop();
}

/// The whole repository is moved away, as when a mount goes. Nothing may be unloaded for that: it is an error of the
/// repository, not the removal of its models.
#[test]
fn a_repository_that_vanishes_takes_no_model_with_it() {
    if std::env::var_os(OTHER_SERVER).is_some() {
        return; // 2.51 unloads them all.
    }
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        repository.model("m", &config("m", ""));
        let Some(mut life) = Life::start(variant, &repository, &[POLL, EVERY_SECOND]) else { return };
        let away = repository.path().with_extension("away");
        std::fs::rename(repository.path(), &away).expect("move the repository away");
        life.server.wait_for_log("failed to poll model repository: Internal - failed to ");
        assert_eq!(life.served_by("m"), "1");
        assert!(life.is_ready("m"));
        std::fs::rename(&away, repository.path()).expect("move the repository back");
        next_poll(&mut life, &repository, "marker");
        assert_eq!(life.served_by("m"), "1");
        assert!(!life.server.log().contains("model finalize: m\""), "the model was unloaded");
        life.server.stop();
    });
}

#[test]
fn versions_come_and_go_by_polling() {
    let repository = Repository::new();
    repository.model("m", &config("m", "version_policy { latest { num_versions: 2 } }")).version("m", "2");
    make_old(&repository.path().join("m"));
    let Some(mut life) = Life::start(usual(), &repository, &[POLL, EVERY_SECOND]) else { return };
    assert_eq!(life.versions("m"), ["1", "2"]);
    repository.version("m", "5");
    life.wait_until("version 5", |life| life.versions("m") == ["2", "5"]);
    std::fs::remove_dir(repository.path().join("m/5")).expect("remove a version");
    touch(&repository, "m", 20);
    life.wait_until("version 1 again", |life| life.versions("m") == ["1", "2"]);
    life.server.stop();
}
