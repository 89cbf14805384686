//! Which directories are versions, and which of them the policy serves.

use crate::repository::life_cycle::control::{EXPLICIT, Life, config, make_old, touch};
use nereid_test_support::repository::Repository;
use nereid_test_support::server::OTHER_SERVER;
use nereid_test_support::variant::usual;

#[test]
fn policies_choose_versions() {
    let repository = Repository::new();
    let cases = [
        ("default", "", &["10"][..]),
        ("latest", "version_policy { latest { num_versions: 1 } }", &["10"]),
        ("two", "version_policy { latest { num_versions: 2 } }", &["9", "10"]),
        ("many", "version_policy { latest { num_versions: 99 } }", &["0", "1", "9", "10"]),
        ("all", "version_policy { all { } }", &["0", "1", "9", "10"]),
        ("listed", "version_policy { specific { versions: [ 1, 9 ] } }", &["1", "9"]),
        ("partly", "version_policy { specific { versions: [ 9, 77 ] } }", &["9"]),
    ];
    for (model, policy, _) in cases {
        repository.model(model, &config(model, policy));
        for version in ["0", "9", "10"] {
            repository.version(model, version);
        }
    }
    let Some(mut life) = Life::start(usual(), &repository, &[EXPLICIT, "--load-model=*"]) else { return };
    for (model, _, versions) in cases {
        assert_eq!(life.versions(model), versions, "{model}");
        let rows: Vec<String> = versions.iter().map(|version| format!("{version}:READY:")).collect();
        assert_eq!(life.rows_of(model), rows, "{model}");
        assert_eq!(life.served_by(model), *versions.last().expect("a version"), "{model}: the highest serves");
    }
    // A listed version that is not there is told.
    life.server.wait_for_log("version 77 is specified");
    life.server.stop();
}

#[test]
fn only_whole_numbers_are_versions() {
    let repository = Repository::new();
    repository.model("m", &config("m", "version_policy { all { } }"));
    for name in ["01", "002", "v3", "4x", "5.0", "-6", "+7", "warmup", "initial_state", "configs", "0"] {
        repository.version("m", name);
    }
    // A file is no version.
    repository.file("m/8", "");
    let Some(mut life) = Life::start(usual(), &repository, &[EXPLICIT]) else { return };
    life.must_load("m");
    let versions = life.versions("m");
    for version in ["0", "1"] {
        assert!(versions.contains(&version.to_string()), "{version} is missing in {versions:?}");
    }
    for version in ["01", "2", "002", "3", "8"] {
        assert!(!versions.contains(&version.to_string()), "{version} serves: {versions:?}");
    }
    assert_eq!(life.served_by("m/versions/0"), "0", "version 0 is legal");
    life.server.stop();
}

#[test]
fn numbers_out_of_range_harm_nobody() {
    if std::env::var_os(OTHER_SERVER).is_some() {
        return; // 2.51 ends with an exception at the first of them.
    }
    let repository = Repository::new();
    for (model, version) in [
        ("huge", "99999999999999999999999999999999999999999"),
        ("u64", "18446744073709551615"),
        ("above", "9223372036854775808"),
    ] {
        repository.file(&format!("{model}/config.pbtxt"), config(model, "version_policy { all { } }"));
        repository.version(model, version);
    }
    repository.model("good", &config("good", "")).version("good", "99999999999999999999999");
    repository.model("top", &config("top", "version_policy { all { } }")).version("top", "9223372036854775807");
    let Some(mut life) = Life::start(usual(), &repository, &[EXPLICIT]) else { return };
    for model in ["huge", "u64", "above", "top"] {
        let answer = life.load(model);
        assert!(matches!(answer.status, 200 | 400 | 500), "{model}: {}", answer.text());
    }
    assert_eq!(life.get("/v2/health/live").status, 200);
    life.must_load("good");
    assert_eq!(life.served_by("good"), "1");
    for version in ["99999999999999999999999", "9223372036854775808", "-1", "1x", "0x1"] {
        let answer = life.get(&format!("/v2/models/good/versions/{version}"));
        assert!(matches!(answer.status, 400 | 404), "{version}: {} {}", answer.status, answer.text());
    }
    life.server.stop();
}

#[test]
fn a_load_follows_the_versions_that_came_and_went() {
    let repository = Repository::new();
    repository.model("m", &config("m", "version_policy { latest { num_versions: 2 } }")).version("m", "2");
    make_old(&repository.path().join("m"));
    let Some(mut life) = Life::start(usual(), &repository, &[EXPLICIT]) else { return };
    life.must_load("m");
    assert_eq!(life.versions("m"), ["1", "2"]);
    repository.version("m", "4");
    life.must_load("m");
    assert_eq!(life.versions("m"), ["2", "4"]);
    life.wait_for_rows("m", &["1:UNAVAILABLE:unloaded", "2:READY:", "4:READY:"]);
    std::fs::remove_dir(repository.path().join("m/4")).expect("remove a version");
    touch(&repository, "m", 10);
    life.must_load("m");
    assert_eq!(life.versions("m"), ["1", "2"]);
    life.wait_for_rows("m", &["1:READY:", "2:READY:", "4:UNAVAILABLE:unloaded"]);
    // None left: the load fails, and what serves goes on serving.
    for version in ["1", "2"] {
        std::fs::remove_dir(repository.path().join("m").join(version)).expect("remove a version");
    }
    touch(&repository, "m", 20);
    let answer = life.load("m");
    assert_eq!(answer.status, 400);
    assert!(answer.error().contains("at least one version must be available under the version policy of model 'm'"));
    assert_eq!(life.versions("m"), ["1", "2"]);
    life.server.stop();
}
