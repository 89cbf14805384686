//! `nereid quickstart`: serves the example models with one command, on a machine without any preparation.

mod bundled;
mod chat;
mod environment;
mod minilm;
mod preparation;
mod with;

use std::process::ExitCode;

use super::options::{BackendSetting, ModelControl, ServeOptions};
use super::runtime::{self, Terminal};
use super::terminal::{self, fitted};
use super::{Arguments, serve};
use nereid_backend::onnxruntime::RUNTIME;
use nereid_backend::runtime_search::Surroundings;
use with::{Example, FirstRequest, Interface};

/// A model and its description.
type Served = (&'static str, &'static str);

/// Example models that need ONNX Runtime.
const ONNX_MODELS: [Served; 2] =
    [("digits", "classifies handwritten digits of 64 pixels"), ("simple", "adds and subtracts two vectors")];
const NATIVE_MODELS: [Served; 1] = [("identity", "sends back what it gets")];

/// A seven, and the three likeliest digits.
const DIGITS_REQUEST: FirstRequest = FirstRequest {
    interface: Interface::Http,
    path: "/v2/models/digits/infer",
    body: "{\"inputs\":[{\"name\":\"image\",\"datatype\":\"FP32\",\"shape\":[1,64],\"data\":\
     [0,0,7,16,16,16,7,0,0,0,9,8,8,14,11,0,0,0,0,0,2,15,4,0,0,0,2,8,12,16,8,0,\
     0,0,9,16,16,11,5,0,0,0,0,14,6,0,0,0,0,0,4,15,0,0,0,0,0,0,9,10,0,0,0,0]}],\
     \"outputs\":[{\"name\":\"probabilities\",\"parameters\":{\"classification\":3}}]}",
};
const IDENTITY_REQUEST: FirstRequest = FirstRequest {
    interface: Interface::Http,
    path: "/v2/models/identity/infer",
    body: r#"{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[3],"data":[1,2,3]}]}"#,
};

pub(super) const USAGE: &str = "\
Usage: nereid quickstart [--with=<example>] [options of serve]

Serves example models that the program holds itself: digits, simple and identity. Installs ONNX Runtime for this user if
it is missing, which needs python3 with pip and a network; without it, identity alone is served. The ports are 8000
(HTTP), 8001 (gRPC) and 8002 (metrics), for programs on this machine only; --http-address=0.0.0.0 and
--grpc-address=0.0.0.0 open them to others. All other options of serve work too (`nereid help serve`).

  --with=<chat|minilm>
      chat: serve a very small language model besides, with OpenAI's interface on port 9000 (--openai-port,
      --openai-address). It is trained on this machine, in about a minute; fetches about 30 MB.
      minilm: serve a text pipeline besides, sentences to embeddings. Fetches about 100 MB.
      May be given several times.
";

/// Installs what is missing, then serves until a signal comes. Takes the flags of `serve` besides `--with`.
pub fn run(arguments: &Arguments) -> ExitCode {
    if arguments.words.iter().any(|word| word == "--help" || word == "-h") {
        super::check::print(USAGE);
        return ExitCode::SUCCESS;
    }
    let (examples, mut arguments) = match with::take(arguments) {
        Ok(taken) => taken,
        Err(error) => return failure(&error),
    };
    // A first trial should not be open to the network; a later flag wins over these.
    let mut local = vec!["--http-address=127.0.0.1", "--grpc-address=127.0.0.1", "--openai-address=127.0.0.1"];
    if examples.iter().any(|example| example.request.interface == Interface::OpenAi) {
        local.push("--allow-openai=true");
    }
    arguments.words.splice(0..0, local.into_iter().map(Into::into));
    let mut line = match serve::read(&arguments, || USAGE.to_owned()) {
        Ok(line) => line,
        Err(code) => return code,
    };
    let options = &mut line.options;
    let repository = match bundled::repository(Surroundings::of_process(&RUNTIME, None).data_home.as_deref()) {
        Ok(repository) => repository,
        Err(error) => return failure(&format!("the example models cannot be written: {error}")),
    };
    options.model_repositories = vec![repository];
    let mut serves: Vec<Served> = NATIVE_MODELS.to_vec();
    match runtime::ensure("onnxruntime", &mut Terminal::new()) {
        Ok(library) => {
            serves.splice(0..0, ONNX_MODELS);
            options.backend_settings.push(BackendSetting {
                backend: Some("onnxruntime".to_owned()),
                key: "library".to_owned(),
                value: library.display().to_string(),
            });
        }
        Err(error) if examples.iter().any(|example| example.needs_onnxruntime) => {
            let names = named(&examples);
            return failure(&format!("{names} needs ONNX Runtime, which could not be installed: {error}"));
        }
        Err(error) => {
            let left_out = ONNX_MODELS.map(|(name, _)| name).join(" and ");
            super::check::print(&format!(
                "ONNX Runtime is not there and could not be installed: {error}\n\
                 Left out, because they need it: {left_out}. The rest is served.\n\n"
            ));
        }
    }
    for example in &examples {
        match (example.prepare)(&mut Terminal::new()) {
            Ok(models) => options.model_repositories.push(models),
            Err(error) => return failure(&format!("{} cannot be made: {error}", example.name)),
        }
        serves.extend(example.models);
    }
    options.model_control = ModelControl::Explicit;
    options.startup_models = serves.iter().map(|(name, _)| (*name).to_owned()).collect();
    let announcement = announcement(options, &serves, &examples, terminal::columns());
    serve::start(&line, &announcement)
}

fn failure(text: &str) -> ExitCode {
    eprintln!("error: {text}");
    ExitCode::FAILURE
}

/// The examples that need ONNX Runtime.
fn named(examples: &[&Example]) -> String {
    examples
        .iter()
        .filter(|example| example.needs_onnxruntime)
        .map(|example| example.name)
        .collect::<Vec<_>>()
        .join(" and ")
}

/// What is served, and how to try it. Requests stay whole in a narrow terminal: they are to be copied.
fn announcement(options: &ServeOptions, serves: &[Served], examples: &[&Example], columns: Option<usize>) -> String {
    let (http, grpc, metrics) = (options.http.port, options.grpc.port, options.metrics.port);
    let width = serves.iter().map(|(name, _)| name.len()).max().unwrap_or(0).max(8) + 2;
    let models: String = serves.iter().map(|(name, what)| format!("  {name:<width$}{what}\n")).collect();
    let has_digits = serves.iter().any(|(name, _)| *name == "digits");
    let first = if has_digits { DIGITS_REQUEST } else { IDENTITY_REQUEST };
    let requests = std::iter::once(first).chain(examples.iter().map(|example| example.request));
    let openai = &options.openai.listen;
    let requests = requests.filter(|request| request.interface == Interface::Http || openai.allowed);
    let requests: String = requests.map(|request| command(request, http, openai.port)).collect();
    let place = match options.http.address.as_str() {
        "127.0.0.1" => "to programs on this machine (--http-address and --grpc-address open it to others)",
        address => &format!("at {address}"),
    };
    let also = match openai.allowed {
        true => format!("OpenAI's interface on port {}, ", openai.port),
        false => String::new(),
    };
    let ports =
        format!("by HTTP on port {http}, gRPC on port {grpc}, {also}with metrics on port {metrics}, {place}. Try");
    let (models, ports) = (fitted(&models, columns), fitted(&ports, columns));
    format!("\nNereid serves\n{models}\n{ports}\n\n{requests}\nCtrl-C ends it.\n")
}

/// The request as a command for a shell. What goes to OpenAI's interface may come as a stream, and must say that it is
/// JSON.
fn command(request: FirstRequest, http: i32, openai: i32) -> String {
    let FirstRequest { interface, path, body } = request;
    match interface {
        Interface::Http => format!("  curl -s localhost:{http}{path} -d '{body}'\n"),
        Interface::OpenAi => {
            format!("  curl -sN localhost:{openai}{path} -H 'content-type: application/json' -d '{body}'\n")
        }
    }
}
