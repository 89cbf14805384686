//! Models that cannot be served: the errors at the start, and when they end the process.

use serde_json::Value;

use nereid_test_support::http::Peer;
use nereid_test_support::python::Python;
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::{Server, free_port, run_to_end};
use nereid_test_support::variant::usual;

/// Starts on `repository` and expects exit code 1; returns all that was printed.
fn fails_to_start(repository: &Repository, more: &[&str]) -> String {
    let store = format!("--model-repository={}", repository.path().display());
    let ports = ["http", "grpc", "metrics"].map(|name| format!("--{name}-port={}", free_port()));
    let mut flags = vec![store.as_str(), "--http-address=127.0.0.1", "--grpc-address=127.0.0.1", "--io-cores=1"];
    flags.extend(ports.iter().map(String::as_str));
    flags.extend(more);
    let (status, out, err) = run_to_end(&flags);
    let log = format!("{out}{err}");
    assert_eq!(status.code(), Some(1), "expected the start to fail:\n{log}");
    log
}

fn expect(log: &str, texts: &[&str]) {
    for text in texts {
        // Log messages are quoted JSON strings; what they say is compared unquoted.
        assert!(log.contains(text) || log.replace("\\\"", "\"").contains(text), "expected {text:?} in:\n{log}");
    }
}

#[test]
fn a_typo_in_a_config_is_found_with_its_place() {
    for (config, texts) in [
        ("name: \"m\"\nbackend: \"identity\"\nmax_batch_sise: 4\n", &["config.pbtxt", "3", "max_batch_sise"][..]),
        (
            "name: \"m\"\nbackend: \"identity\"\ninput [ { name: \"INPUT0\" data_type: TYPE_FP33 dims: [ 1 ] } ]\n",
            &["config.pbtxt", "3", "TYPE_FP33"],
        ),
        ("name: \"m\"\nbackend: \"identity\"\nmax_batch_size: many\n", &["config.pbtxt", "3", "many"]),
        ("name: \"m\"\nbackend: \"identity\"\ninput [ {\n", &["config.pbtxt"]),
        ("name: \"other\"\nbackend: \"identity\"\n", &["other"]),
    ] {
        let repository = Repository::new();
        repository.model("m", config);
        let log = fails_to_start(&repository, &[]);
        expect(&log, texts);
        expect(&log, &["failed to load all models"]);
    }
}

#[test]
fn the_rules_of_the_identity_backend() {
    let one = "input { name: \"INPUT0\" data_type: TYPE_INT8 dims: [ 1 ] }\n";
    let start = "backend: \"identity\"\nmax_batch_size: 0\n";
    for (io, text) in [
        (one.to_string(), "model configuration must have equal input/output pairs"),
        (
            "input { name: \"IN\" data_type: TYPE_INT8 dims: [ 1 ] }\noutput { name: \"OUTPUT0\" data_type: TYPE_INT8 dims: [ 1 ] }"
                .to_string(),
            "expected input name to follow INPUT<index> pattern, got 'IN'",
        ),
        (
            format!("{one}output {{ name: \"OUT\" data_type: TYPE_INT8 dims: [ 1 ] }}"),
            "expected output name to follow OUTPUT<index> pattern, got 'OUT'",
        ),
        (
            format!("{one}output {{ name: \"OUTPUT1\" data_type: TYPE_INT8 dims: [ 1 ] }}"),
            "expected input and output indices to match",
        ),
        (
            format!("{one}output {{ name: \"OUTPUT0\" data_type: TYPE_INT16 dims: [ 1 ] }}"),
            "expected input and output datatype to match, got TYPE_INT8 and TYPE_INT16",
        ),
        (
            format!("{one}output {{ name: \"OUTPUT0\" data_type: TYPE_INT8 dims: [ 2 ] }}"),
            "expected input and output shape to match, got [1] and [2]",
        ),
    ] {
        let repository = Repository::new();
        repository.model("m", &format!("{start}{io}\n"));
        let log = fails_to_start(&repository, &[]);
        expect(&log, &[text, "failed to load all models"]);
    }
}

#[test]
fn one_bad_model_need_not_stop_the_others() {
    let repository = Repository::new();
    repository.identity("good", 0, &[Pair::new("INT32", "-1")]);
    repository.identity_of("nowhere", "bad", 0, &[Pair::new("INT32", "-1")], "");
    repository.model("worse", "not a config");
    fails_to_start(&repository, &[]);

    let server = Server::start_with(usual(), repository.path(), &["--exit-on-error=false"], "/v2/health/live");
    let mut peer = Peer::connect(server.http);
    assert_eq!(peer.get("/v2/health/ready").status, 400, "strict readiness asks for every model");
    assert_eq!(peer.get("/v2/models/good/ready").status, 200);
    let body = br#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1],"data":[1]}]}"#;
    assert_eq!(peer.post("/v2/models/good/infer", &[], body).status, 200);
    // A version that is known and not loaded is 503; a model that never got as far as a version is 404.
    let bad = peer.post("/v2/models/bad/infer", &[], body);
    let text = bad.error();
    assert!(text.starts_with("Request for unknown model: 'bad' "), "{text}");
    assert!(matches!(bad.status, 404 | 503), "{} {text}", bad.status);
    let index = peer.post("/v2/repository/index", &[], b"").json();
    let row = |name: &str| {
        index.as_array().into_iter().flatten().find(|row| row["name"] == name).cloned().unwrap_or_default()
    };
    assert_eq!(row("good")["state"], "READY", "{index}");
    assert_eq!(row("bad")["state"], "UNAVAILABLE", "{index}");
    assert_ne!(row("bad")["reason"], Value::Null, "{index}");
    server.stop();

    let flags = ["--exit-on-error=false", "--strict-readiness=false"];
    let server = Server::start(usual(), repository.path(), &flags);
    server.stop();
}

/// What a backend cannot do is the reason of its model; a setting for it is read by each load.
#[test]
fn what_a_backend_does_not_support_fails_the_load() {
    for (version, text) in [
        (
            "1",
            "Invalid argument: starting from 23.04, Triton no longer supports Tensorflow 1. Please switch to Tensorflow 2.",
        ),
        ("3", "Invalid argument: unexpected TensorFlow library version '3', expects 2."),
        ("2", "Unavailable: unable to find '"),
    ] {
        let repository = Repository::new();
        repository.identity_of(
            "tensorflow",
            "m",
            0,
            &[Pair::new("INT32", "-1")],
            "platform: \"tensorflow_savedmodel\"",
        );
        let flag = format!("--backend-config=tensorflow,version={version}");
        expect(&fails_to_start(&repository, &[&flag]), &[text]);
    }
    let repository = Repository::new();
    repository.model(
        "m",
        "backend: \"square\" model_transaction_policy { decoupled: true }\n\
         input { name: \"IN\" data_type: TYPE_INT32 dims: [ 1 ] optional: true }\n\
         output { name: \"OUT\" data_type: TYPE_INT32 dims: [ 1 ] }\n",
    );
    let text = "Invalid argument: 'optional' is set to true for input 'IN' while the backend model doesn't support \
                optional input";
    expect(&fails_to_start(&repository, &[]), &[text]);
}

/// Each load logs the setting that every backend has without being given it.
#[test]
fn the_default_batch_size_of_backends_is_logged() {
    let repository = Repository::new();
    repository.identity("m", 0, &[Pair::new("INT32", "-1")]);
    for (flags, text) in [
        (&["--log-verbose=1"][..], "Adding default backend config setting: default-max-batch-size,4"),
        (
            &["--log-verbose=1", "--backend-config=default-max-batch-size=7"],
            "Found overwritten default setting: default-max-batch-size,7",
        ),
    ] {
        let log = Server::start(usual(), repository.path(), flags).stop();
        assert!(log.contains(text), "{text} in {log}");
    }
}

#[test]
fn a_missing_model_file_is_named() {
    let Some(python) = Python::get() else { return };
    let repository = Repository::new();
    repository.example("simple");
    std::fs::remove_file(repository.path().join("simple/1/model.onnx")).expect("remove the model file");
    let log = fails_to_start(&repository, &[&python.onnxruntime_flag()]);
    let path = repository.path().join("simple/1/model.onnx").display().to_string();
    expect(&log, &["unable to find '", &path, "failed to load all models"]);
}

#[test]
fn a_broken_model_file_is_an_error_not_a_crash() {
    let Some(python) = Python::get() else { return };
    let whole = Repository::new();
    whole.example("digits");
    let model = std::fs::read(whole.path().join("digits/1/model.onnx")).expect("the example model");
    for (what, bytes) in [("empty", &model[..0]), ("cut off", &model[..model.len() / 2]), ("text", b"no model at all")]
    {
        let repository = Repository::new();
        repository.example("digits").file("digits/1/model.onnx", bytes);
        let log = fails_to_start(&repository, &[&python.onnxruntime_flag()]);
        expect(&log, &["digits", "onnx runtime error", "failed to load all models"]);
        assert!(!log.contains("panicked at"), "{what}: {log}");
    }
}

#[test]
fn a_config_that_contradicts_the_model_file_is_explained() {
    let Some(python) = Python::get() else { return };
    for (from, to, text) in [
        (
            "dims: [ 64 ]",
            "dims: [ 65 ]",
            "model 'digits', tensor 'image': the model expects 2 dimensions (shape [-1,64]) but the model configuration specifies 2 dimensions (an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, making complete shape [-1,65])",
        ),
        ("name: \"image\"", "name: \"picture\"", "unexpected inference input 'picture', allowed inputs are: image"),
        (
            "data_type: TYPE_INT64",
            "data_type: TYPE_INT32",
            "unable to load model 'digits', configuration expects datatype TYPE_INT32 for output 'label', model provides TYPE_INT64",
        ),
    ] {
        let repository = Repository::new();
        repository.example("digits");
        let config = std::fs::read_to_string(repository.path().join("digits/config.pbtxt")).expect("the config");
        assert!(config.contains(from), "the example no longer says {from:?}");
        repository.file("digits/config.pbtxt", config.replacen(from, to, 1));
        let log = fails_to_start(&repository, &[&python.onnxruntime_flag()]);
        expect(&log, &[text]);
    }
}

#[test]
fn a_missing_runtime_says_how_to_get_one() {
    let repository = Repository::new();
    repository.example("simple");
    let log = fails_to_start(&repository, &["--backend-config=onnxruntime,library=/no/such/libonnxruntime.so"]);
    expect(&log, &["/no/such/libonnxruntime.so", "onnxruntime", "failed to load all models"]);
}
