//! What loads of TorchScript models log, and why they fail.

use nereid_test_support::http::Peer;
use nereid_test_support::python::Python;
use nereid_test_support::repository::Repository;
use nereid_test_support::server::Server;
use nereid_test_support::variant::usual;

use super::{add, library_flag, tensor};

fn add_sub(rest: &str) -> String {
    let of = |what: &str, names: [&str; 2]| names.map(|name| tensor(what, name, "TYPE_FP32", "2")).concat();
    of("input", ["INPUT0", "INPUT1"]) + &of("output", ["OUTPUT__0", "OUTPUT__1"]) + rest
}

fn parameter(key: &str, value: &str) -> String {
    format!("parameters {{ key: \"{key}\" value {{ string_value: \"{value}\" }} }} ")
}

/// The reason for which a model is not ready, of the repository's index.
fn reason(server: &Server, model: &str) -> String {
    let index = Peer::connect(server.http).post("/v2/repository/index", &[], b"{}").json();
    let entries = index.as_array().expect("an index");
    let entry = entries.iter().find(|entry| entry["name"] == model).unwrap_or_else(|| panic!("no {model}: {index}"));
    entry["reason"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn models_that_cannot_be_served_fail_by_their_own_texts_and_others_are_served() {
    let Some(library) = library_flag() else { return };
    let repository = Repository::new();
    let of = |what, name, data_type| tensor(what, name, data_type, "2");
    let two = |data_type| of("input", "INPUT0", data_type) + &of("input", "INPUT1", data_type);
    let output = of("output", "OUTPUT__0", "TYPE_FP32");
    add(&repository, "good", "add_sub", &add_sub(""));
    add(&repository, "uint32_input", "add_sub", &(two("TYPE_UINT32") + &output));
    add(&repository, "uint64_output", "add_sub", &(two("TYPE_FP32") + &of("output", "OUTPUT__0", "TYPE_UINT64")));
    add(&repository, "too_few", "add_sub", &(of("input", "INPUT0", "TYPE_FP32") + &output));
    add(&repository, "garbage", "add_sub", &add_sub(""));
    repository.file("garbage/1/model.pt", [b'x'; 64]);
    add(&repository, "absent", "add_sub", &add_sub("default_model_filename: \"other.pt\""));
    add(&repository, "boolean", "add_sub", &add_sub(&parameter("INFERENCE_MODE", "perhaps")));
    let corrid = "max_batch_size: 4 sequence_batching { control_input { name: \"CORRID__1\" control { kind: \
                  CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT32 } } } ";
    add(&repository, "corrid", "add_sub", &format!("{corrid}{}{output}", of("input", "INPUT__0", "TYPE_FP32")));
    let server =
        Server::start(usual(), repository.path(), &["--exit-on-error=false", "--strict-readiness=false", &library]);
    let path = repository.path().join("absent/1/other.pt");
    for (model, text) in [
        ("uint32_input", "Internal: unsupported datatype TYPE_UINT32 for input 'INPUT0' for model 'uint32_input'"),
        (
            "uint64_output",
            "Internal: unsupported datatype TYPE_UINT64 for output 'OUTPUT__0' for model 'uint64_output'",
        ),
        (
            "too_few",
            "Invalid argument: unable to load model 'too_few', configuration expects 1 inputs, model provides 2",
        ),
        ("corrid", "Internal: input 'CORRID__1' type 'TYPE_UINT32' is not supported by PyTorch."),
        (
            "garbage",
            "Internal: failed to load model 'garbage': PytorchStreamReader failed reading zip archive: failed finding \
             central directory",
        ),
        ("absent", &format!("Unavailable: unable to find '{}' for model instance 'absent'", path.display())),
        ("boolean", "Invalid argument: failed to convert 'perhaps' to boolean"),
        ("good", ""),
    ] {
        let reason = reason(&server, model);
        assert!(reason.starts_with(text) && reason.is_empty() == text.is_empty(), "{model}: {reason}");
    }
    server.stop();
}

#[test]
fn settings_are_logged_as_tests_of_triton_look_for_them() {
    let Some(library) = library_flag() else { return };
    let repository = Repository::new();
    let of = |key, value| add_sub(&parameter(key, value));
    add(&repository, "unset", "add_sub", &add_sub(""));
    add(&repository, "inference", "add_sub", &of("INFERENCE_MODE", "false"));
    add(&repository, "optimized", "add_sub", &of("DISABLE_OPTIMIZED_EXECUTION", "true"));
    add(&repository, "cudnn", "add_sub", &of("DISABLE_CUDNN", "true"));
    add(&repository, "threads", "add_sub", &of("INTRA_OP_THREAD_COUNT", "2"));
    let server = Server::start(usual(), repository.path(), &[&library]);
    let log = server.stop();
    for line in [
        "Optimized execution is enabled for model instance 'unset'",
        "Cache Cleaning is disabled for model instance 'unset'",
        "Inference Mode is enabled for model instance 'unset'",
        "cuDNN is enabled for model instance 'unset'",
        "Inference Mode is disabled for model instance 'inference'",
        "Optimized execution is disabled for model instance 'optimized'",
        "cuDNN is disabled for model instance 'cudnn'",
        "Intra op thread count is set to 2 for model instance 'threads'",
        "skipping model configuration auto-complete for 'unset': not supported for pytorch backend",
        "Model platform for 'unset': 'pytorch_libtorch'.",
    ] {
        assert!(log.contains(line), "no line: {line}");
    }
    assert!(!log.contains("Weight sharing is"), "only if it is given");
}

#[test]
fn sixteen_instances_share_one_module_if_that_is_asked_for() {
    let Some(library) = library_flag() else { return };
    for (sharing, lines) in [("true", 15), ("false", 0)] {
        let repository = Repository::new();
        let group =
            format!("instance_group {{ kind: KIND_CPU count: 16 }} {}", parameter("ENABLE_WEIGHT_SHARING", sharing));
        add(&repository, "shared", "add_sub", &add_sub(&group));
        let log = Server::start(usual(), repository.path(), &[&library]).stop();
        assert_eq!(log.matches("Reusing TorchScript model for instance 'shared'").count(), lines, "{sharing}");
    }
}

/// The script of the Python runtime comes with the server; the tests' Python has no PyTorch.
#[test]
fn the_python_runtime_names_what_its_environment_lacks() {
    let Some(_) = library_flag() else { return };
    let Some(python) = Python::get() else { return };
    let repository = Repository::new();
    add(&repository, "scripted", "add_sub", &add_sub("backend: \"pytorch\" runtime: \"model.py\""));
    let interpreter = format!("--backend-config=python,interpreter={}", python.interpreter().display());
    let flags = ["--exit-on-error=false", "--strict-readiness=false", &interpreter];
    let server = Server::start(usual(), repository.path(), &flags);
    let reason = reason(&server, "scripted");
    assert!(reason.contains("nereid runtime install python --package=torch"), "{reason}");
    server.stop();
}
