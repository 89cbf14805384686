//! Shared by the tests: configurations from their text, and models of tests/fixtures/pytorch with the PyTorch of this
//! host.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nereid_backend::fixtures::{Answers, Draft, context};
use nereid_backend::runtime_search::Surroundings;
use nereid_backend::{Instance, InstanceContext, Model, ModelContext};
use nereid_model_config::ModelSpec;
use nereid_model_config::normalize::fill_defaults;
use nereid_request::{Request, Response, Status};
use nereid_scheduler::Payload;
use nereid_test_support::large_runtimes::{self, is_large_runtime_wanted};
use nereid_wire::inference::ModelConfig;

use crate::torch::{self, Shim, Torch};

/// PyTorch and its shim; `None` after a note that the test is not run.
pub fn pytorch() -> Option<(&'static Torch, &'static Shim)> {
    if !is_large_runtime_wanted(crate::NAME) {
        return None;
    }
    let mut surroundings = Surroundings::of_process(&torch::RUNTIME, None);
    surroundings.library_setting = Some(large_runtimes::pytorch()?);
    let torch = torch::load(&surroundings).expect("PyTorch is wanted");
    let shim = torch.shim(&surroundings, &mut |progress| eprintln!("{progress}"));
    Some((torch, shim.expect("a C++ compiler")))
}

pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/fixtures/pytorch")
}

/// The configuration of model `m` with the file `<file>.pt`.
pub fn config(file: &str, text: &str) -> ModelConfig {
    let text = format!("name: \"m\" backend: \"pytorch\" default_model_filename: \"{file}.pt\" {text}");
    let document = nereid_model_config::parse("m/config.pbtxt", text.as_bytes()).unwrap();
    let mut config = nereid_model_config::from_dynamic(&document.message).unwrap();
    fill_defaults(&mut config);
    config
}

/// An input or output of the configuration.
pub fn tensor(what: &str, name: &str, data_type: &str, dims: &str) -> String {
    format!("{what} {{ name: \"{name}\" data_type: {data_type} dims: [ {dims} ] }} ")
}

/// An instance of model `m`, and what it answers.
pub struct Rig {
    pub model: Arc<ModelContext>,
    instance: Box<dyn Instance>,
    answers: Arc<Answers>,
}

impl Rig {
    /// Opens the model of `<file>.pt` with this configuration.
    pub fn open(shim: &'static Shim, file: &str, text: &str) -> Result<Rig, Status> {
        Rig::open_with_cores(shim, file, text, 1)
    }

    /// The same on a host with so many cores for workers.
    pub fn open_with_cores(
        shim: &'static Shim,
        file: &str,
        text: &str,
        worker_cpu_count: usize,
    ) -> Result<Rig, Status> {
        let config = config(file, text);
        let model = Arc::new(ModelContext { worker_cpu_count, ..context("m", folder(), config.clone()) });
        let spec = Arc::new(ModelSpec::new(config).unwrap());
        let (torch, _) = pytorch().expect("a shim is there, so PyTorch is");
        let opened = Arc::new(crate::torchscript::TorchScriptModel::open(Arc::clone(&model), torch, shim)?);
        let instance = opened.create_instance(InstanceContext::new("m_0", spec, Arc::clone(&model)))?;
        Ok(Rig { model, instance, answers: Arc::default() })
    }

    pub fn draft(&self, key: u64) -> Draft {
        Draft::new(&self.answers, key)
    }

    /// The answers to `requests` as one batch, by their keys.
    pub fn run(&mut self, requests: impl IntoIterator<Item = Box<Request>>) -> Vec<Result<Response, Status>> {
        let mut payload = Payload::default();
        requests.into_iter().for_each(|request| payload.push(request));
        self.instance.execute(&mut payload).unwrap();
        let mut answers = self.answers.take();
        answers.sort_by_key(|(key, _)| *key);
        answers.into_iter().map(|(_, answer)| answer).collect()
    }
}
