//! `nereid quickstart`: the example models served with one command, on a machine that has nothing yet.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::options::{BackendSetting, ModelControl, ServeOptions};
use super::runtime::{self, Terminal};
use super::{Arguments, serve};

/// Models of the example repository that need ONNX Runtime, with what they do.
const ONNX_MODELS: [(&str, &str); 2] =
    [("digits", "classifies handwritten digits of 64 pixels"), ("simple", "adds and subtracts two vectors")];
const NATIVE_MODELS: [(&str, &str); 1] = [("identity", "sends back what it gets")];

/// `model_repository` of the working directory, else of the checkout that this program was built in.
fn repository() -> Option<PathBuf> {
    let places = [PathBuf::from("model_repository"), Path::new(env!("CARGO_MANIFEST_DIR")).join("model_repository")];
    places.into_iter().find(|place| place.is_dir())
}

/// Installs what is missing, then serves until a signal comes. Takes the flags of `serve` besides.
pub fn run(arguments: &Arguments) -> ExitCode {
    let Some(mut line) = serve::read(arguments) else { return ExitCode::FAILURE };
    let options = &mut line.options;
    let Some(repository) = repository() else {
        eprintln!("error: there is no folder model_repository here; run quickstart in a checkout of Nereid");
        return ExitCode::FAILURE;
    };
    let mut serves: Vec<(&str, &str)> = NATIVE_MODELS.to_vec();
    match runtime::ensure_onnxruntime(&mut Terminal::new()) {
        Ok(library) => {
            serves.splice(0..0, ONNX_MODELS);
            options.backend_settings.push(BackendSetting {
                backend: Some("onnxruntime".to_owned()),
                key: "library".to_owned(),
                value: library.display().to_string(),
            });
        }
        Err(error) => {
            let left_out = ONNX_MODELS.map(|(name, _)| name).join(" and ");
            println!("ONNX Runtime is not there and could not be installed: {error}");
            println!("Left out, because they need it: {left_out}. The rest is served.\n");
        }
    }
    options.model_repositories = vec![repository];
    options.model_control = ModelControl::Explicit;
    options.startup_models = serves.iter().map(|(name, _)| (*name).to_owned()).collect();
    let announcement = announcement(options, &serves);
    serve::start(&line, &announcement)
}

fn announcement(options: &ServeOptions, serves: &[(&str, &str)]) -> String {
    let (http, grpc, metrics) = (options.http.port, options.grpc.port, options.metrics.port);
    let models: String = serves.iter().map(|(name, what)| format!("  {name:<10}{what}\n")).collect();
    let request = r#"{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[3],"data":[1,2,3]}]}"#;
    format!(
        "\nNereid serves\n{models}\nby HTTP on port {http}, gRPC on port {grpc}, with metrics on port \
         {metrics}. Try\n\n  \
         curl -s localhost:{http}/v2/models/identity/infer -d '{request}'\n\nCtrl-C ends it.\n"
    )
}
