//! Loads that fail by their texts while the server goes on, and loads that are repeated.

use serde_json::json;

use super::stand::{EXPLICIT, Models, Stand, floats};
use nereid_test_support::grpc::code;
use nereid_wire::inference::{RepositoryModelLoadRequest, RepositoryModelLoadResponse};

fn refusal(stand: &mut Stand, model: &str) -> String {
    let answer = stand.load(model);
    assert_eq!(answer.status, 400, "{model}: {}", answer.text());
    let prefix = format!("load failed for model '{model}': version 1 is at UNAVAILABLE state: ");
    let error = answer.error();
    error.strip_prefix(&prefix).unwrap_or_else(|| panic!("{model}: {error}")).to_owned()
}

#[test]
fn what_does_not_fit_or_is_broken_is_refused_by_its_text() {
    let Some(models) = Models::new() else { return };
    let model = models.repository.path().to_owned();
    models.add("truncated", "add_sub.savedmodel", "");
    let file = model.join("truncated/1/model.savedmodel/saved_model.pb");
    let whole = std::fs::read(&file).expect("a fixture");
    std::fs::write(file, &whole[..whole.len() / 2]).expect("write it");
    models.add("no_variables", "add_sub.savedmodel", "");
    std::fs::remove_dir_all(model.join("no_variables/1/model.savedmodel/variables")).expect("remove them");
    // A graph under the name of the other format.
    models.add("other_format", "add_sub.graphdef", "platform: \"tensorflow_savedmodel\" backend: \"tensorflow\"");
    std::fs::rename(model.join("other_format/1/model.graphdef"), model.join("other_format/1/model.savedmodel"))
        .expect("rename");
    models.add(
        "fixed",
        "dynamic.savedmodel",
        "max_batch_size: 2 input { name: \"VALUE\" data_type: TYPE_INT32 dims: [ -1, -1 ] }",
    );
    models.add("scalar", "scalar.savedmodel", "");
    models.add("no_batch", "fixed.savedmodel", "max_batch_size: 8");
    models.add("complex", "unsupported.savedmodel", "");
    models.add("bfloat", "bfloat.savedmodel", "");
    models.add(
        "shares",
        "add_sub.savedmodel",
        "parameters { key: \"MAX_SESSION_SHARE_COUNT\" value { string_value: \"0\" } }",
    );
    models.add(
        "accelerated",
        "add_sub.savedmodel",
        "optimization { execution_accelerators { cpu_execution_accelerator { name: \"openvino\" } } }",
    );
    models.repository.model("absent", "platform: \"tensorflow_savedmodel\"");
    models.add("good", "add_sub.savedmodel", "");
    let mut stand = models.serve(&[EXPLICIT]);
    let completion = "Internal: unable to auto-complete model configuration for";
    for (model, text) in [
        ("truncated", &*format!("{completion} 'truncated', failed to load model: ")),
        (
            "no_variables",
            &format!(
                "{completion} 'no_variables', failed to load model: unable to load model 'no_variables', the values of \
                 its variables are missing: there is no '"
            ),
        ),
        ("other_format", &format!("{completion} 'other_format', failed to load model: ")),
        (
            "fixed",
            "Invalid argument: unable to load model 'fixed', configuration expects datatype TYPE_INT32 for input \
             'VALUE', model provides TYPE_FP32;",
        ),
        (
            "scalar",
            "Invalid argument: Unable to autofill for 'scalar': the rank of model tensor 'FACTOR' is 0 and dimensions \
             are not defined;",
        ),
        (
            "no_batch",
            "Internal: unable to autofill for 'no_batch', configuration specified max-batch 8 but model signature does \
             not support batching;",
        ),
        ("complex", "Internal: unable to process input 'VALUE' for 'complex', unsupported datatype 'DT_COMPLEX64';"),
        ("bfloat", "Internal: unable to process input 'VALUE' for 'bfloat', unsupported datatype 'DT_BFLOAT16';"),
        (
            "shares",
            "Invalid argument: parameter 'MAX_SESSION_SHARE_COUNT' must be positive number for TensorFlow model \
             'shares';",
        ),
        ("accelerated", "Invalid argument: CPU Execution Accelerator is not supported in TensorFlow backend;"),
        ("absent", "Unavailable: unable to find '"),
    ] {
        let refused = refusal(&mut stand, model);
        assert!(refused.starts_with(text), "{model}: {refused}");
        let request = RepositoryModelLoadRequest { model_name: model.to_owned(), ..Default::default() };
        let status = stand.grpc.call::<RepositoryModelLoadResponse>("RepositoryModelLoad", &request).expect_err(model);
        assert_eq!(status.code, code::INVALID_ARGUMENT);
        assert!(status.message.contains(text), "{model}: {}", status.message);
    }
    stand.must_load("good");
}

#[test]
fn without_completion_the_configuration_must_say_everything() {
    let Some(models) = Models::new() else { return };
    let few = r#"
        platform: "tensorflow_savedmodel"
        input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1, 4 ] } ]
        output [ { name: "OUTPUT1" data_type: TYPE_FP32 dims: [ -1, 4 ] } ]
    "#;
    let second = r#"input [ { name: "INPUT1" data_type: TYPE_FP32 dims: [ -1, 4 ] } ]"#;
    models.add("full", "add_sub.savedmodel", &format!("{few} {second}"));
    models.add("few", "add_sub.savedmodel", few);
    let mut stand = models.serve(&[EXPLICIT, "--disable-auto-complete-config"]);
    stand.must_load("full");
    assert_eq!(stand.config("full")["max_batch_size"], json!(0));
    let inputs =
        [("INPUT0", "FP32", &[3i64, 4][..], floats(&[2.; 12])), ("INPUT1", "FP32", &[3, 4][..], floats(&[1.; 12]))];
    let response = stand.call("full", &inputs, &[]).expect("an answer");
    assert_eq!(
        (response.outputs[0].shape.as_slice(), &response.raw_output_contents[0][..]),
        (&[3, 4][..], &floats(&[1.; 12])[..])
    );
    let refused = refusal(&mut stand, "few");
    assert!(
        refused.contains("unable to load model 'few', configuration expects 1 inputs, model provides 2"),
        "{refused}"
    );
}

#[test]
fn an_absent_library_is_named_with_the_command_that_installs_it() {
    use nereid_test_support::repository::Repository;
    use nereid_test_support::server::Server;
    use nereid_test_support::variant::usual;
    // Runs always: it needs no library.
    let repository = Repository::new();
    let file = nereid_test_support::paths::root().join("tests/fixtures/tensorflow/add_sub.graphdef");
    repository.file("m/1/model.graphdef", std::fs::read(file).expect("a fixture"));
    let config = r#"
        input { name: "INPUT0" data_type: TYPE_FP32 dims: [ 4 ] }
        output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 4 ] }
    "#;
    repository.file("m/config.pbtxt", config);
    let flags = [EXPLICIT, "--backend-config=tensorflow,library=/nowhere/libtensorflow_cc.so.2"];
    let server = Server::start_with(usual(), repository.path(), &flags, "/v2/health/live");
    let mut http = nereid_test_support::http::Peer::connect(server.http);
    let answer = http.post("/v2/repository/models/m/load", &[], b"");
    let error = answer.error();
    let text =
        "load failed for model 'm': version 1 is at UNAVAILABLE state: Unavailable: TensorFlow is not available (";
    assert!(error.starts_with(text), "{error}");
    assert!(error.contains("/nowhere/libtensorflow_cc.so.2 cannot be opened"), "{error}");
    assert!(error.contains("Install it with: nereid runtime install tensorflow;"), "{error}");
}

#[test]
fn loads_and_unloads_do_not_add_up() {
    let Some(models) = Models::new() else { return };
    models.add("add_sub", "add_sub.savedmodel", "").add("strings", "strings.savedmodel", "");
    let mut stand = models.serve(&[EXPLICIT]);
    let round = |stand: &mut Stand, count: usize| {
        for _ in 0..count {
            for model in ["add_sub", "strings"] {
                stand.must_load(model);
                if model == "add_sub" {
                    let inputs = [
                        ("INPUT0", "FP32", &[1i64, 4][..], floats(&[2.; 4])),
                        ("INPUT1", "FP32", &[1, 4][..], floats(&[1.; 4])),
                    ];
                    stand.call(model, &inputs, &["OUTPUT0"]).expect("an answer");
                }
                stand.must_unload(model);
                stand.wait_for_state(model, "UNAVAILABLE");
            }
        }
        (stand.server.resident_kib(), stand.server.threads(), stand.server.descriptors())
    };
    // The library's caches and its heap grow with the first hundred loads, by about 20 MiB, and then stay as they are.
    let (before, threads, descriptors) = round(&mut stand, 50);
    let (after, threads_after, descriptors_after) = round(&mut stand, 40);
    eprintln!("resident memory: {before} KiB before 80 loads, {after} KiB after");
    assert!(after < before + 8 * 1024, "{before} KiB, then {after} KiB");
    // Pools start threads as they need them, and an instance's thread may end a moment after its model.
    assert!(threads_after < threads + 20, "{threads} threads, then {threads_after}");
    assert!(descriptors_after < descriptors + 20, "{descriptors} descriptors, then {descriptors_after}");
}
