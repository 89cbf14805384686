//! What a model says of itself, and what its backend adds to a configuration that says little.

use serde_json::{Value, json};

use super::bench::{Bench, EXPLICIT, repository_of};
use super::files::add_files;
use super::table::{Completion, Framework, ModelKind};
use nereid_test_support::variant::is_second_run;

pub fn a_model_is_described_as_its_file_and_its_configuration_state(framework: &Framework) {
    if is_second_run() {
        return;
    }
    let Some(repository) = repository_of(framework, &[ModelKind::Network], "") else { return };
    let (model, bare) = (framework.model(ModelKind::Network), format!("{}_bare", framework.name));
    if framework.completion.is_some() {
        let Some(()) = add_files(&repository, framework, ModelKind::AddSub, &bare) else { return };
        repository.file(&format!("{bare}/config.pbtxt"), framework.backend);
    }
    let Some(mut bench) = Bench::start(&[framework], &repository, &[EXPLICIT]) else { return };
    bench.must_load(&model);
    let (inputs, outputs) = (framework.function.inputs(), framework.function.outputs());
    let described = bench.get(&format!("/v2/models/{model}"));
    assert_eq!((&described["name"], &described["versions"]), (&json!(model), &json!(["1"])));
    let tensor = |name: String, columns: usize| json!([{ "name": name, "datatype": "FP32", "shape": [-1, columns] }]);
    assert_eq!(described["inputs"], tensor(framework.input(0), inputs), "{described}");
    assert_eq!(described["outputs"], tensor(framework.output(0), outputs), "{described}");
    let config = bench.get(&format!("/v2/models/{model}/config"));
    assert!(framework.backend.contains(config["backend"].as_str().expect("a backend")), "{config}");
    if let Some(completion) = framework.completion {
        bench.must_load(&bare);
        let config = bench.get(&format!("/v2/models/{bare}/config"));
        check_completion(framework, completion, &config);
    }
    bench.stop();
}

fn check_completion(framework: &Framework, completion: Completion, config: &Value) {
    assert_eq!(config["max_batch_size"], json!(completion.max_batch_size), "{config}");
    let has_dynamic_batching = !config["dynamic_batching"].is_null();
    assert_eq!(has_dynamic_batching, completion.has_dynamic_batching, "{config}");
    let names =
        [("input", [framework.input(0), framework.input(1)]), ("output", [0, 1].map(|at| framework.output(at)))];
    for (side, names) in names {
        let tensors = config[side].as_array().unwrap_or_else(|| panic!("no {side}: {config}"));
        assert_eq!(tensors.len(), names.len(), "{config}");
        for name in names {
            let tensor = tensors.iter().find(|tensor| tensor["name"] == json!(name));
            let tensor = tensor.unwrap_or_else(|| panic!("no {side} {name}: {config}"));
            assert_eq!(tensor["data_type"], json!("TYPE_FP32"), "{config}");
            assert_eq!(tensor["dims"], json!(completion.dims), "{config}");
        }
    }
}
