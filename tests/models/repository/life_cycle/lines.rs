//! Lines of the log about loads and unloads that Triton's users and scripts search.

use std::path::Path;

use super::control::{EXPLICIT, Life, config};
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::{OTHER_SERVER, Server};
use nereid_test_support::variant::usual;

/// Everything that loading, changing and unloading models logs, with the severity of its record.
#[test]
fn loads_and_unloads_are_logged_in_tritons_words() {
    if std::env::var_os(OTHER_SERVER).is_some() {
        return;
    }
    let repository = Repository::new();
    let versions = "version_policy { specific { versions: [ 1, 7 ] } }";
    repository.model("m", &config("m", versions)).version("m", "01");
    repository.identity("part", 4, &[Pair::new("INT32", "-1")]);
    repository.model(
        "whole",
        "platform: \"ensemble\" max_batch_size: 4\n\
         input { name: \"I\" data_type: TYPE_INT32 dims: [ -1 ] }\n\
         output { name: \"O\" data_type: TYPE_INT32 dims: [ -1 ] }\n\
         ensemble_scheduling { max_inflight_requests: 3 step { model_name: \"part\" model_version: -1\n\
         input_map { key: \"INPUT0\" value: \"I\" } output_map { key: \"OUTPUT0\" value: \"O\" } } }",
    );
    let environment = ["env", "TRITON_SERVER_CPU_ONLY=1", "TRITON_PARALLEL_INSTANCE_LOADING=0", &binary()];
    let words = environment.map(str::to_owned);
    let Some(mut life) = Life::start_under(&words, usual(), &repository, &[EXPLICIT, "--log-verbose=2"]) else {
        return;
    };
    assert_eq!(life.load("absent").status, 500);
    life.must_load("m");
    repository.file("m/config.pbtxt", config("m", versions).replace("count: 1", "count: 2"));
    life.must_load("m");
    life.must_load("whole");
    life.must_unload("m");
    life.server.wait_for_log("successfully unloaded 'm' version 1");
    let log = life.server.stop();
    for (severity, line) in [
        ('I', "Pinned memory pool disabled"),
        ('I', "CUDA memory pool disabled"),
        ('E', "failed to poll model 'absent': model not found in any model repository."),
        ('W', "ignore version directory '01' which contains leading zeros in its directory name"),
        ('E', "version 7 is specified for model 'm', but the version directory is not present"),
        ('I', "Server side auto-completed config: "),
        ('I', "loading: m:1"),
        ('I', "Using TRITON_PARALLEL_INSTANCE_LOADING environment variable override: 0"),
        ('I', "Created model instance named 'm_0_0' with device id '0'"),
        ('I', "successfully loaded 'm'"),
        ('I', "Re-using model instance named 'm_0_0' with device id '0'"),
        ('I', "Created model instance named 'm_0_1' with device id '0'"),
        ('I', "Ensemble model 'whole' configured with max_inflight_requests: 3"),
        ('I', "successfully unloaded 'm' version 1"),
    ] {
        let record = log.lines().find(|record| record.contains(line)).unwrap_or_default();
        assert!(record.starts_with(severity), "no record {severity} with {line:?}: {record:?} in\n{log}");
    }
    assert!(!log.contains("Should not print this"), "{log}");
}

/// A repository that cannot be listed, whose model is asked for.
#[test]
fn a_repository_that_cannot_be_read_is_named_with_the_model() {
    if std::env::var_os(OTHER_SERVER).is_some() {
        return;
    }
    let repository = Repository::new();
    repository.model("m", &config("m", ""));
    let Some(mut life) = Life::start(usual(), &repository, &[EXPLICIT]) else { return };
    // Directories within one another beyond the bound.
    let mut deep = repository.path().join("m/1");
    (0..130).for_each(|_| deep.push("d"));
    std::fs::create_dir_all(&deep).expect("directories");
    assert_eq!(life.load("m").status, 500);
    let at = shown(repository.path());
    life.server.wait_for_log(&format!("failed to poll model repository '{at}' for model 'm': "));
    life.server.stop();
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

fn binary() -> String {
    nereid_test_support::server::binary().into_string().expect("the binary's path is UTF-8")
}

/// The batcher of a model, and a poll, at verbose level 1.
#[test]
fn batchers_and_polls_are_logged() {
    let repository = Repository::new();
    repository.identity_of("identity", "m", 4, &[Pair::new("INT32", "-1")], "dynamic_batching { }");
    let flags = ["--model-control-mode=poll", "--repository-poll-secs=1", "--log-verbose=1"];
    let server = Server::start(usual(), repository.path(), &flags);
    server.wait_for_log("Starting dynamic-batcher thread for m at nice 0...");
    server.wait_for_log("Polling model repository");
    server.stop();
}
