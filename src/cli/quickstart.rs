//! `nereid quickstart`: the example models served with one command, on a machine that has nothing yet.

mod minilm;
mod preparation;
mod with;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::options::{BackendSetting, ModelControl, ServeOptions};
use super::runtime::{self, Terminal};
use super::{Arguments, serve};
use with::Example;

/// Models of the example repository that need ONNX Runtime, with what they do.
const ONNX_MODELS: [(&str, &str); 2] =
    [("digits", "classifies handwritten digits of 64 pixels"), ("simple", "adds and subtracts two vectors")];
const NATIVE_MODELS: [(&str, &str); 1] = [("identity", "sends back what it gets")];

/// `model_repository` of the working directory, else of the checkout that this program was built in.
fn repository() -> Option<PathBuf> {
    let places = [PathBuf::from("model_repository"), Path::new(env!("CARGO_MANIFEST_DIR")).join("model_repository")];
    places.into_iter().find(|place| place.is_dir())
}

/// Installs what is missing, then serves until a signal comes. Takes the flags of `serve` besides `--with`.
pub fn run(arguments: &Arguments) -> ExitCode {
    let (examples, arguments) = match with::take(arguments) {
        Ok(taken) => taken,
        Err(error) => return failure(&error),
    };
    let Some(mut line) = serve::read(&arguments) else { return ExitCode::FAILURE };
    let repository = repository();
    if repository.is_none() && examples.is_empty() {
        return failure("there is no folder model_repository here; run quickstart in a checkout of Nereid");
    }
    let mut serves: Vec<(&str, &str)> = NATIVE_MODELS.to_vec();
    let options = &mut line.options;
    match runtime::ensure_onnxruntime(&mut Terminal::new()) {
        Ok(library) => {
            serves.splice(0..0, ONNX_MODELS);
            options.backend_settings.push(BackendSetting {
                backend: Some("onnxruntime".to_owned()),
                key: "library".to_owned(),
                value: library.display().to_string(),
            });
        }
        Err(error) if !examples.is_empty() => {
            let names = named(&examples);
            return failure(&format!("{names} needs ONNX Runtime, which could not be installed: {error}"));
        }
        Err(error) => {
            let left_out = ONNX_MODELS.map(|(name, _)| name).join(" and ");
            println!("ONNX Runtime is not there and could not be installed: {error}");
            println!("Left out, because they need it: {left_out}. The rest is served.\n");
        }
    }
    if repository.is_none() {
        serves.clear();
    }
    options.model_repositories = repository.into_iter().collect();
    for example in &examples {
        match (example.prepare)(&mut Terminal::new()) {
            Ok(models) => options.model_repositories.push(models),
            Err(error) => return failure(&format!("{} cannot be made: {error}", example.name)),
        }
        serves.extend(example.models);
    }
    options.model_control = ModelControl::Explicit;
    options.startup_models = serves.iter().map(|(name, _)| (*name).to_owned()).collect();
    let announcement = announcement(options, &serves, &examples);
    serve::start(&line, &announcement)
}

fn failure(text: &str) -> ExitCode {
    eprintln!("error: {text}");
    ExitCode::FAILURE
}

fn named(examples: &[&Example]) -> String {
    examples.iter().map(|example| example.name).collect::<Vec<_>>().join(" and ")
}

fn announcement(options: &ServeOptions, serves: &[(&str, &str)], examples: &[&Example]) -> String {
    let (http, grpc, metrics) = (options.http.port, options.grpc.port, options.metrics.port);
    let width = serves.iter().map(|(name, _)| name.len()).max().unwrap_or(0).max(8) + 2;
    let models: String = serves.iter().map(|(name, what)| format!("  {name:<width$}{what}\n")).collect();
    let plain =
        ("/v2/models/identity/infer", r#"{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[3],"data":[1,2,3]}]}"#);
    let has_plain = serves.iter().any(|(name, _)| *name == "identity");
    let requests = has_plain.then_some(plain).into_iter().chain(examples.iter().map(|example| example.request));
    let requests: String =
        requests.map(|(path, body)| format!("  curl -s localhost:{http}{path} -d '{body}'\n")).collect();
    format!(
        "\nNereid serves\n{models}\nby HTTP on port {http}, gRPC on port {grpc}, with metrics on port \
         {metrics}. Try\n\n{requests}\nCtrl-C ends it.\n"
    )
}
