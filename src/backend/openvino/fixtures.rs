//! Shared by the tests that run OpenVINO: the library, models, requests.

use std::path::PathBuf;
use std::sync::Arc;

use nereid_backend::fixtures::{self, Answers, Draft};
use nereid_backend::runtime_search::Surroundings;
use nereid_backend::{InstanceContext, ModelContext};
use nereid_memory::Slice;
use nereid_model_config::ModelSpec;
use nereid_request::{DataType, Request, Response, Status};
use nereid_scheduler::Payload;
use nereid_test_support::openvino::OpenVino;
use nereid_test_support::skip::skip;
use nereid_wire::inference as wire;
use nereid_wire::inference::{ModelConfig, ModelInput, ModelOutput, ModelParameter};

use nereid_backend::Instance;

use crate::model::OpenVinoModel;
use crate::runtime::{self, Runtime};

/// OpenVINO and the folder of the models, or `None` after a message that the test is skipped.
pub fn runtime() -> Option<(&'static Runtime, PathBuf)> {
    let openvino = OpenVino::get()?;
    // A library that the environment names is tested in place of that of the packages.
    let mut surroundings = Surroundings::of_process(&crate::RUNTIME, None);
    if surroundings.variables.is_empty() {
        surroundings.library_setting = Some(openvino.library());
    }
    match runtime::load(&surroundings) {
        Ok(runtime) => Some((runtime, openvino.models().to_owned())),
        Err(missing) => {
            skip(&missing.to_string());
            None
        }
    }
}

/// The configuration of the model in a file.
pub fn config(file: &str) -> ModelConfig {
    ModelConfig { name: "m".to_owned(), default_model_filename: file.to_owned(), ..ModelConfig::default() }
}

pub fn with_parameters(config: ModelConfig, parameters: &[(&str, &str)]) -> ModelConfig {
    let mut config = config;
    for (key, value) in parameters {
        let value = ModelParameter { string_value: (*value).to_owned() };
        config.parameters.insert((*key).to_owned(), value);
    }
    config
}

pub fn input(name: &str, data_type: wire::DataType, dims: &[i64]) -> ModelInput {
    ModelInput { name: name.to_owned(), data_type: data_type.into(), dims: dims.to_vec(), ..ModelInput::default() }
}

pub fn output(name: &str, data_type: wire::DataType, dims: &[i64]) -> ModelOutput {
    ModelOutput { name: name.to_owned(), data_type: data_type.into(), dims: dims.to_vec(), ..ModelOutput::default() }
}

/// Two inputs and outputs of the same type and dims.
pub fn pair(config: ModelConfig, max_batch_size: i32, data_type: wire::DataType, dims: &[i64]) -> ModelConfig {
    ModelConfig {
        max_batch_size,
        input: ["INPUT0", "INPUT1"].map(|name| input(name, data_type, dims)).to_vec(),
        output: ["OUTPUT0", "OUTPUT1"].map(|name| output(name, data_type, dims)).to_vec(),
        ..config
    }
}

/// One input and one output.
pub fn single(config: ModelConfig, max_batch_size: i32, names: [&str; 2], dims: [&[i64]; 2]) -> ModelConfig {
    ModelConfig {
        max_batch_size,
        input: vec![input(names[0], wire::DataType::TypeFp32, dims[0])],
        output: vec![output(names[1], wire::DataType::TypeFp32, dims[1])],
        ..config
    }
}

/// The context of a model whose file is in the folder of the models.
pub fn context(folder: PathBuf, config: ModelConfig) -> ModelContext {
    fixtures::context("m", folder, config)
}

/// A model with one instance.
pub struct Opened {
    pub model: Arc<OpenVinoModel>,
    pub context: InstanceContext,
    pub instance: Box<dyn Instance>,
    pub answers: Arc<Answers>,
}

/// Opens a model as the server does, with the configuration that it completes.
pub fn open(config: ModelConfig) -> Option<Result<Opened, Status>> {
    open_with(config, |_| {})
}

pub fn open_with(config: ModelConfig, change: impl FnOnce(&mut ModelContext)) -> Option<Result<Opened, Status>> {
    let (runtime, folder) = runtime()?;
    let mut context = context(folder, config);
    context.worker_cpu_count = 2;
    change(&mut context);
    Some(opened(runtime, Arc::new(context)))
}

pub fn opened(runtime: &'static Runtime, context: Arc<ModelContext>) -> Result<Opened, Status> {
    use nereid_backend::Model;
    let model = Arc::new(OpenVinoModel::open(runtime, Arc::clone(&context))?);
    let config = model.completed_config().unwrap_or_else(|| context.config.clone());
    let spec = Arc::new(ModelSpec::new(config).map_err(Status::from)?);
    let context = InstanceContext::new("m_0", spec, context);
    let instance = Arc::clone(&model).create_instance(context.clone())?;
    Ok(Opened { model, context, instance, answers: Arc::default() })
}

impl Opened {
    pub fn draft(&self, key: u64) -> Draft {
        Draft::new(&self.answers, key)
    }

    /// A request of the same values in two inputs, with both outputs.
    pub fn pair(&self, key: u64, shape: &[i64], values: [&[f32]; 2]) -> Box<Request> {
        let rows = u64::try_from(shape[0]).unwrap();
        self.draft(key).batch(rows).floats(0, shape, values[0]).floats(1, shape, values[1]).outputs([0, 1])
    }

    /// A request with one input and one output.
    pub fn single(&self, key: u64, shape: &[i64], values: &[f32]) -> Box<Request> {
        self.draft(key).batch(u64::try_from(shape[0]).unwrap()).floats(0, shape, values).outputs([0])
    }

    pub fn execute(&mut self, requests: impl IntoIterator<Item = Box<Request>>) -> Vec<Result<Response, Status>> {
        let mut payload = Payload::default();
        requests.into_iter().for_each(|request| payload.push(request));
        self.instance.execute(&mut payload).unwrap();
        assert!(payload.is_empty());
        let mut answers = self.answers.take();
        answers.sort_by_key(|(key, _)| *key);
        answers.into_iter().map(|(_, answer)| answer).collect()
    }

    pub fn batches(&self) -> u64 {
        self.context.statistics.snapshot().execution_count
    }
}

/// Shape and values of an output.
pub fn floats_of(answer: &Result<Response, Status>, output: usize) -> (Vec<i64>, Vec<f32>) {
    let tensor = &answer.as_ref().expect("a response").outputs[output];
    assert_eq!(tensor.datatype, DataType::Fp32);
    (tensor.shape.to_vec(), fixtures::as_floats(&tensor.data))
}

pub fn bytes_of(answer: &Result<Response, Status>, output: usize) -> Vec<u8> {
    let tensor = &answer.as_ref().expect("a response").outputs[output];
    tensor.data.iter().flat_map(|piece| piece.iter().copied()).collect()
}

pub fn error_of<T>(answer: Result<T, Status>) -> String {
    match answer {
        Ok(_) => panic!("no error"),
        Err(status) => status.message.into_owned(),
    }
}

pub fn slice(bytes: &[u8]) -> Slice {
    Slice::copy_of(bytes)
}
