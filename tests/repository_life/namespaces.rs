//! Several repositories, and models of one name in them.

use crate::repository_life::control::{EVERY_SECOND, EXPLICIT, Life, POLL, config, generation};
use crate::support::repository::Repository;
use crate::support::server::OTHER_SERVER;
use crate::support::variant::usual;

/// Two repositories: `both` is in each, `first` and `second` in one.
fn two() -> (Repository, Repository, String) {
    let (a, b) = (Repository::new(), Repository::new());
    a.model("both", &generation("both", "a")).model("first", &config("first", ""));
    b.model("both", &generation("both", "b")).model("second", &config("second", ""));
    let flag = format!("--model-repository={}", b.path().display());
    (a, b, flag)
}

#[test]
fn one_name_in_two_repositories_is_loaded_from_neither() {
    let (a, _b, second) = two();
    let flags = [EXPLICIT, second.as_str()];
    let Some(mut life) = Life::start(usual(), &a, &flags) else { return };
    life.must_load("first");
    life.must_load("second");
    let answer = life.load("both");
    assert_eq!(
        (answer.status, answer.error().as_str()),
        (500, "failed to load 'both', failed to poll from model repository")
    );
    life.server.wait_for_log("failed to poll model 'both': not unique across all model repositories");
    assert_eq!((life.served_by("first"), life.served_by("second")), ("1".into(), "1".into()));
    assert_eq!(life.rows_of("both"), [":UNAVAILABLE:model appears in two or more repositories"]);
    life.server.stop();
}

#[test]
fn a_second_model_of_the_name_leaves_the_first_in_explicit_mode() {
    let (a, b, second) = two();
    std::fs::rename(b.path().join("both"), b.path().join("later")).expect("rename");
    let Some(mut life) = Life::start(usual(), &a, &[EXPLICIT, &second, "--load-model=both"]) else { return };
    assert_eq!(life.generation("both"), "a");
    std::fs::rename(b.path().join("later"), b.path().join("both")).expect("rename");
    assert_eq!(life.load("both").status, 500);
    assert_eq!((life.generation("both"), life.served_by("both")), ("a".into(), "1".into()));
    std::fs::remove_dir_all(a.path().join("both")).expect("remove the first");
    life.must_load("both");
    assert_eq!(life.generation("both"), "b");
    life.server.stop();
}

#[test]
fn a_second_model_of_the_name_unloads_the_first_in_poll_mode() {
    let (a, b, second) = two();
    std::fs::rename(b.path().join("both"), b.path().join("later")).expect("rename");
    b.file("later/config.pbtxt", config("later", ""));
    let Some(mut life) = Life::start(usual(), &a, &[POLL, EVERY_SECOND, &second]) else { return };
    assert_eq!(life.generation("both"), "a");
    b.model("both", &generation("both", "b"));
    life.wait_until("the end of the ambiguous model", |life| !life.is_ready("both"));
    std::fs::remove_dir_all(b.path().join("both")).expect("remove the second");
    life.wait_until("the first again", |life| life.is_ready("both"));
    assert_eq!(life.generation("both"), "a");
    life.server.stop();
}

#[test]
fn namespacing_keeps_models_of_one_name_apart() {
    let (a, _b, second) = two();
    let flags = ["--model-namespacing=true", second.as_str()];
    let Some(mut life) = Life::start(usual(), &a, &flags) else { return };
    assert_eq!((life.served_by("first"), life.served_by("second")), ("1".into(), "1".into()));
    assert_eq!(life.rows_of("both"), ["1:READY:"; 2]);
    let text = "There are 2 identifiers of model 'both' in global map, model namespace must be provided to resolve \
                ambiguity.";
    let answer = life.infer("both");
    assert_eq!(answer.status, 400, "{}", answer.text());
    assert!(answer.error().contains(text), "{}", answer.text());
    // What is in no repository is an error of the request here.
    let answer = life.infer("absent");
    assert_eq!(answer.status, 400, "{}", answer.text());
    life.server.stop();
}

#[test]
fn a_repository_that_is_not_there_ends_the_start_or_is_left_out() {
    if std::env::var_os(OTHER_SERVER).is_some() {
        return;
    }
    let repository = Repository::new();
    let absent = repository.path().join("absent");
    let (code, out, err) =
        crate::support::server::run_to_end(&[&format!("--model-repository={}", absent.display()), EXPLICIT]);
    assert_eq!(code.code(), Some(1), "{out}{err}");
    assert!(err.contains(&absent.display().to_string()), "{err}");
}
