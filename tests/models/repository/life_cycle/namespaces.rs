//! Several repositories, and models of one name in them.

use crate::repository::life_cycle::control::{EVERY_SECOND, EXPLICIT, Life, POLL, config, generation, parameter};
use nereid_test_support::repository::Repository;
use nereid_test_support::server::{free_port, run_to_end};
use nereid_test_support::variant::usual;

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

/// Ensembles of two repositories, each over a part of one name that computes another thing.
#[test]
fn each_ensemble_computes_with_the_part_of_its_own_repository() {
    let tensor = |side: &str, name: &str| format!("{side} {{ name: \"{name}\" data_type: TYPE_FP32 dims: [ 1 ] }}\n");
    let part = |scale: &str| {
        let io = tensor("input", "INPUT0") + &tensor("output", "OUTPUT0");
        format!("backend: \"affine\"\n{io}{}", parameter("scale", scale))
    };
    let whole = tensor("input", "I")
        + &tensor("output", "O")
        + "platform: \"ensemble\"\nensemble_scheduling { step { model_name: \"part\" model_version: -1\n\
           input_map { key: \"INPUT0\" value: \"I\" } output_map { key: \"OUTPUT0\" value: \"O\" } } }";
    let (a, b) = (Repository::new(), Repository::new());
    a.model("part", &part("2")).model("twice", &whole);
    b.model("part", &part("-1")).model("negative", &whole);
    let second = format!("--model-repository={}", b.path().display());
    let flags = [EXPLICIT, "--model-namespacing=true", second.as_str()];
    let Some(mut life) = Life::start(usual(), &a, &flags) else { return };
    let check = |life: &mut Life, model: &str, expected: f64| {
        let body = r#"{"inputs":[{"name":"I","datatype":"FP32","shape":[1],"data":[5]}]}"#;
        let answer = life.post(&format!("/v2/models/{model}/infer"), body);
        assert_eq!(answer.status, 200, "{model}: {}", answer.text());
        assert_eq!(answer.json()["outputs"][0]["data"][0], expected, "{model}");
    };
    life.must_load("twice");
    check(&mut life, "twice", 10.0);
    life.must_load("negative");
    check(&mut life, "negative", -5.0);
    check(&mut life, "twice", 10.0);
    life.server.stop();
}

#[test]
fn a_repository_that_is_not_there_ends_the_start() {
    let repository = Repository::new();
    let absent = format!("--model-repository={}", repository.path().join("absent").display());
    for mode in ["--model-control-mode=none", EXPLICIT, POLL] {
        let ports = ["http", "grpc", "metrics"].map(|name| format!("--{name}-port={}", free_port()));
        let (status, out, err) = run_to_end(&[&absent, mode, &ports[0], &ports[1], &ports[2]]);
        assert_eq!(status.code(), Some(1), "{mode}: {out}{err}");
        assert!(err.contains("error: creating server: ") && err.contains("/absent"), "{mode}: {err}");
    }
}
