//! The responses to load and unload requests, letter for letter, over both protocols.

use nereid_wire::inference::model_repository_parameter::ParameterChoice;
use serde_json::{Value, json};

use crate::repository::life_cycle::control::{EXPLICIT, Life, config, grpc_load, grpc_unload, parameter};
use nereid_test_support::grpc::{Grpc, Status, code};
use nereid_test_support::repository::Repository;
use nereid_test_support::server::OTHER_SERVER;
use nereid_test_support::variant::{self, each, usual};

fn not_polled(model: &str) -> String {
    format!("failed to load '{model}', failed to poll from model repository")
}

fn status(code: u32, message: &str) -> Status {
    Status { code, message: message.into() }
}

/// Models that cannot be loaded, and what a load of them answers: HTTP status, gRPC code, text.
fn unloadable(repository: &Repository) -> Vec<(&'static str, u16, u32, String)> {
    let no_version = "at least one version must be available under the version policy of model";
    repository
        .file("syntax/config.pbtxt", "name: \"syntax\"\nmax_batch_sise: 4\n")
        .file("othername/config.pbtxt", "name: \"x\"\nbackend: \"copycat\"\n")
        .model("negative", &config("negative", "").replace("max_batch_size: 0", "max_batch_size: -1"))
        .model("cached", &config("cached", "sequence_batching { } response_cache { enable: true }"))
        .file("versionless/config.pbtxt", config("versionless", ""))
        .model("policy", &config("policy", "version_policy { specific { versions: [ 7, 8 ] } }"))
        .model("failing", &config("failing", &parameter("fail_load", "I was told to")))
        .model("orphan", &config("orphan", "").replace("copycat", "nowhere"))
        .model("dims", &config("dims", "").replace("dims: [ -1 ]", "dims: [ -2 ]"));
    repository.version("failing", "2").file("nothing/readme.txt", "no model");
    std::fs::create_dir(repository.path().join("hollow")).expect("make a directory");
    let several = config("several", &(parameter("fail_load", "both") + "version_policy { all { } }\n"));
    repository.model("several", &several).version("several", "5");
    let load_failed = |model: &str, rest: &str| format!("load failed for model '{model}': {rest}");
    vec![
        ("absent", 500, code::INTERNAL, not_polled("absent")),
        ("syntax", 500, code::INTERNAL, not_polled("syntax")),
        ("othername", 500, code::INTERNAL, not_polled("othername")),
        ("negative", 500, code::INTERNAL, not_polled("negative")),
        ("cached", 500, code::INTERNAL, not_polled("cached")),
        ("nothing", 500, code::INTERNAL, not_polled("nothing")),
        ("hollow", 500, code::INTERNAL, not_polled("hollow")),
        ("versionless", 400, code::INVALID_ARGUMENT, format!("{no_version} 'versionless'")),
        ("policy", 400, code::INVALID_ARGUMENT, format!("{no_version} 'policy'")),
        (
            "failing",
            400,
            code::INVALID_ARGUMENT,
            load_failed("failing", "version 2 is at UNAVAILABLE state: Invalid argument: I was told to;\n"),
        ),
        (
            "several",
            400,
            code::INVALID_ARGUMENT,
            load_failed(
                "several",
                "version 1 is at UNAVAILABLE state: Invalid argument: both;version 5 is at UNAVAILABLE state: \
                 Invalid argument: both;\n",
            ),
        ),
        (
            "orphan",
            400,
            code::INVALID_ARGUMENT,
            load_failed(
                "orphan",
                "version 1 is at UNAVAILABLE state: Invalid argument: unable to find backend library for backend \
                 'nowhere', try specifying runtime on the model configuration.;\n",
            ),
        ),
        (
            "dims",
            400,
            code::INVALID_ARGUMENT,
            load_failed(
                "dims",
                "version 1 is at UNAVAILABLE state: Invalid argument: model input 'INPUT0' dimension must be \
                 integer >= 1, or -1 to indicate a variable-size dimension for dims;\n",
            ),
        ),
    ]
}

/// The contract gives the text about missing versions alone, the 2.51 server puts it behind `load failed for model`:
/// both are taken. Failed versions are told in any order; here they are compared in ascending order.
fn bare(model: &str, text: &str) -> String {
    let prefix = format!("load failed for model '{model}': ");
    let Some(inner) = text.strip_prefix(&prefix) else { return text.to_string() };
    if inner.starts_with("at least one version") {
        return inner.trim_end().to_string();
    }
    let Some(versions) = inner.strip_suffix(";\n") else { return text.to_string() };
    let mut versions: Vec<&str> = versions.split(";version ").collect();
    let first = versions.first().and_then(|first| first.strip_prefix("version "));
    let (Some(first), Some(slot)) = (first, versions.first_mut()) else { return text.to_string() };
    *slot = first;
    versions.sort();
    format!("{prefix}version {};\n", versions.join(";version "))
}

#[test]
fn what_cannot_be_loaded_says_why() {
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        let cases = unloadable(&repository);
        let Some(mut life) = Life::start(variant, &repository, &[EXPLICIT]) else { return };
        let mut grpc = Grpc::connect(life.server.grpc);
        for (model, http_status, grpc_code, text) in &cases {
            let answer = life.load(model);
            assert_eq!((answer.status, &bare(model, &answer.error())), (*http_status, text), "{model}");
            let refused = grpc_load(&mut grpc, "", model, &[]).expect_err("a failure");
            assert_eq!(status(refused.code, &bare(model, &refused.message)), status(*grpc_code, text), "{model}");
        }
        assert_eq!(life.get("/v2/health/live").status, 200);
        life.server.stop();
    });
}

#[test]
fn the_cause_of_a_failed_poll_is_in_the_log() {
    let repository = Repository::new();
    unloadable(&repository);
    let Some(mut life) = Life::start(usual(), &repository, &[EXPLICIT]) else { return };
    for (model, text) in [
        ("syntax", "failed to read text proto from"),
        ("othername", "unexpected directory name 'othername' for model 'x', directory name must equal model name"),
        ("negative", "'max_batch_size' must be non-negative value for negative"),
        (
            "nothing",
            "Invalid model name: Could not determine backend for model 'nothing' with no backend in model \
             configuration. Expected model name of the form 'model.<backend_name>'.",
        ),
    ] {
        assert_eq!(life.load(model).error(), not_polled(model));
        life.server.wait_for_log(&format!("Poll failed for model directory '{model}': {text}"));
    }
    life.server.stop();
}

#[test]
fn failed_loads_leave_their_reason_in_the_index() {
    let repository = Repository::new();
    let cases = unloadable(&repository);
    let Some(mut life) = Life::start(usual(), &repository, &[EXPLICIT]) else { return };
    for (model, ..) in &cases {
        life.load(model);
    }
    for (model, wanted) in [
        ("syntax", &["::"][..]),
        ("nothing", &["::"]),
        ("failing", &["2:UNAVAILABLE:Invalid argument: I was told to"]),
        ("several", &["1:UNAVAILABLE:Invalid argument: both", "5:UNAVAILABLE:Invalid argument: both"]),
        (
            "orphan",
            &["1:UNAVAILABLE:Invalid argument: unable to find backend library for backend 'nowhere', try specifying \
               runtime on the model configuration."],
        ),
        ("absent", &[]),
    ] {
        assert_eq!(life.rows_of(model), wanted, "{model}");
    }
    // Mended, each of them loads.
    for model in ["syntax", "failing", "orphan", "dims", "versionless", "nothing"] {
        repository.model(model, &config(model, ""));
        life.must_load(model);
        assert!(life.rows_of(model).iter().any(|row| row.ends_with(":READY:")), "{model}: {:?}", life.rows_of(model));
    }
    life.server.stop();
}

/// Requests that are wrong by themselves.
#[test]
fn requests_are_checked_before_anything_is_loaded() {
    let repository = Repository::new();
    repository.model("m", &config("m", ""));
    let Some(mut life) = Life::start(usual(), &repository, &[EXPLICIT]) else { return };
    let parameters = |value: Value| json!({ "parameters": value }).to_string();
    let not_bool = if std::env::var_os(OTHER_SERVER).is_some() {
        (500, "attempt to access JSON non-boolean as boolean")
    } else {
        (400, "Invalid value for 'ready': expected a boolean")
    };
    for (path, body, http_status, text) in [
        ("models/m/load", parameters(json!({ "colour": "red" })), 500, "unexpected error on creating Triton parameter"),
        ("models/m/load", parameters(json!({ "config": 7 })), 500, "attempt to access JSON non-string as string"),
        (
            "models/m/load",
            parameters(json!({ "file:1/model": true })),
            500,
            "attempt to access JSON non-string as string",
        ),
        ("models/m/load", "{".into(), 500, "failed to parse the request JSON buffer: "),
        ("x/models/m/load", String::new(), 501, "'repository_name' specification is not supported"),
        ("x/models/m/unload", String::new(), 501, "'repository_name' specification is not supported"),
        ("index", "{\"ready\":1}".into(), not_bool.0, not_bool.1),
    ] {
        let answer = life.post(&format!("/v2/repository/{path}"), &body);
        assert_eq!(answer.status, http_status, "{path} {body}: {}", answer.text());
        assert!(answer.error().starts_with(text), "{path} {body}: {}", answer.text());
    }
    for path in ["index", "x/index", "models/m/load", "models/m/unload"] {
        let answer = life.get(&format!("/v2/repository/{path}"));
        assert_eq!((answer.status, answer.error().as_str()), (405, "Method Not Allowed"), "GET {path}");
    }
    let mut grpc = Grpc::connect(life.server.grpc);
    let (text, bytes) = (ParameterChoice::StringParam("x".into()), ParameterChoice::BytesParam("x".into()));
    let unimplemented = status(code::UNIMPLEMENTED, "'repository_name' specification is not supported");
    assert_eq!(grpc_load(&mut grpc, "x", "m", &[]), Err(unimplemented.clone()));
    assert_eq!(grpc_unload(&mut grpc, "x", "m", &[]), Err(unimplemented));
    for (key, value, wanted) in [
        ("config", &bytes, "invalid value type for load parameter 'config', expected string_param."),
        ("file:1/a", &text, "invalid value type for load parameter 'file:1/a', expected bytes_param."),
        ("colour", &text, "unrecognized load parameter 'colour'."),
    ] {
        let refused = grpc_load(&mut grpc, "", "m", &[(key, value.clone())]);
        assert_eq!(refused, Err(status(code::INVALID_ARGUMENT, wanted)), "{key}");
    }
    let refused = grpc_unload(&mut grpc, "", "m", &[("unload_dependents", text)]);
    let wanted = "invalid value type for 'unload_dependents' parameter, expected bool_param.";
    assert_eq!(refused, Err(status(code::INVALID_ARGUMENT, wanted)));
    assert_eq!(life.rows_of("m"), ["::"], "nothing was loaded");
    life.server.stop();
}

#[test]
fn names_that_are_no_names() {
    let repository = Repository::new();
    repository.model("m", &config("m", ""));
    let Some(mut life) = Life::start(usual(), &repository, &[EXPLICIT]) else { return };
    let mut grpc = Grpc::connect(life.server.grpc);
    if std::env::var_os(OTHER_SERVER).is_some() {
        return; // 2.51 does not check names yet.
    }
    let empty = "Model name cannot be empty. Please enter a valid name to deploy.";
    for name in ["", " ", "\t \n"] {
        let refused = grpc_load(&mut grpc, "", name, &[]);
        assert_eq!(refused, Err(status(code::INVALID_ARGUMENT, empty)), "{name:?}");
    }
    for name in ["..", "a/b", "/", "../m", "/etc"] {
        let wanted = format!("invalid model name '{name}', model name must not contain path traversal characters");
        let refused = grpc_load(&mut grpc, "", name, &[]);
        assert_eq!(refused, Err(status(code::INVALID_ARGUMENT, &wanted)), "{name:?}");
    }
    let answer = life.load("..");
    let wanted = "invalid model name '..', model name must not contain path traversal characters";
    assert_eq!((answer.status, answer.error().as_str()), (400, wanted));
    let long = "n".repeat(300);
    let strange = ["no\u{1}such", "no\nsuch", "ünï", "100%", long.as_str()];
    for name in strange {
        let refused = grpc_load(&mut grpc, "", name, &[]);
        assert_eq!(refused, Err(status(code::INTERNAL, &not_polled(name))), "{name:?}");
    }
    // The check belongs to loading: whatever is not loaded may be unloaded.
    for name in [" ", "..", "a/b"].iter().chain(&strange) {
        assert_eq!(grpc_unload(&mut grpc, "", name, &[]), Ok(()), "{name:?}");
    }
    life.must_load("m");
    life.server.stop();
}

#[test]
fn unloading_what_is_not_there_is_granted() {
    let repository = Repository::new();
    repository.model("m", &config("m", ""));
    let Some(mut life) = Life::start(usual(), &repository, &[EXPLICIT]) else { return };
    life.must_unload("unknown");
    life.must_unload("m");
    assert_eq!(life.rows_of("m"), ["::"], "never loaded");
    life.must_load("m");
    let answer = life.post("/v2/repository/models/m/unload", "{\"parameters\":{\"unload_dependents\":\"x\"}}");
    assert_eq!((answer.status, answer.text().as_str()), (200, ""), "a value that is no bool is passed over");
    life.wait_for_rows("m", &["1:UNAVAILABLE:unloaded"]);
    life.must_unload("m");
    let mut grpc = Grpc::connect(life.server.grpc);
    assert_eq!(grpc_load(&mut grpc, "", "m", &[]), Ok(()));
    let dependents = [("unload_dependents", ParameterChoice::BoolParam(true))];
    assert_eq!(grpc_unload(&mut grpc, "", "m", &dependents), Ok(()));
    life.wait_for_rows("m", &["1:UNAVAILABLE:unloaded"]);
    life.server.stop();
}

/// What requests hear about a model in each stage of its life.
#[test]
fn requests_meet_the_state_of_the_model() {
    let repository = Repository::new();
    repository.model("m", &config("m", "version_policy { latest { num_versions: 2 } }")).version("m", "2");
    repository.model("failing", &config("failing", &parameter("fail_load", "no")));
    let Some(mut life) = Life::start(usual(), &repository, &[EXPLICIT]) else { return };
    let said = |life: &mut Life, path: &str| {
        let answer = life.post(&format!("/v2/models/{path}/infer"), super::control::BODY);
        (answer.status, if answer.status == 200 { String::new() } else { answer.error() })
    };
    let unknown = |what: &str| format!("Request for unknown model: {what}");
    assert_eq!(said(&mut life, "m"), (404, unknown("'m' is not found")));
    assert_eq!(said(&mut life, "m/versions/1"), (404, unknown("'m' is not found")));
    life.must_load("m");
    assert_eq!(said(&mut life, "m").0, 200);
    assert_eq!(said(&mut life, "m/versions/3"), (404, unknown("'m' version 3 is not found")));
    life.must_unload("m");
    life.wait_for_rows("m", &["1:UNAVAILABLE:unloaded", "2:UNAVAILABLE:unloaded"]);
    assert_eq!(said(&mut life, "m"), (404, unknown("'m' has no available versions")));
    assert_eq!(said(&mut life, "m/versions/1"), (503, unknown("'m' version 1 is not at ready state")));
    assert_eq!(said(&mut life, "m/versions/3"), (404, unknown("'m' version 3 is not found")));
    assert_eq!(life.load("failing").status, 400);
    assert_eq!(said(&mut life, "failing"), (404, unknown("'failing' has no available versions")));
    assert_eq!(said(&mut life, "failing/versions/1"), (503, unknown("'failing' version 1 is not at ready state")));
    // Readiness is no lookup that fails.
    for path in ["failing", "failing/versions/1", "m", "m/versions/3"] {
        let answer = life.get(&format!("/v2/models/{path}/ready"));
        assert_eq!((answer.status, answer.error().as_str()), (400, "Model version not ready"), "{path}");
    }
    life.server.stop();
}
