//! Shared by the tests of backends: contexts, requests, a receiver of responses.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use smallvec::SmallVec;

use crate::ModelContext;
use nereid_gpu::DeviceSlice;
use nereid_memory::{BlockMut, Exhausted, Pool, Slice};
use nereid_request::shared::OutputDestination;
use nereid_request::{
    Completion, DataType, Delivery, InputTensor, OutputQuery, Request, RequestedOutput, Response, Shape, Sink, Status,
    Text,
};
use nereid_wire::inference::{ModelConfig, ModelParameter};

/// The context of model `name` whose files lie in `folder`, as in its version directory.
pub fn context(name: &str, folder: PathBuf, config: ModelConfig) -> ModelContext {
    ModelContext {
        name: name.to_owned(),
        version: 1,
        directory: folder.clone(),
        version_directory: folder,
        config,
        auto_complete: true,
        settings: Vec::new(),
        backend_directory: Default::default(),
        statistics: Default::default(),
        metrics: Default::default(),
        pool: Pool::new(64 << 20),
        worker_cpu_count: 1,
        host: Default::default(),
        load: Default::default(),
        gpus: Arc::default(),
    }
}

/// The context of a model with these `parameters`.
pub fn with_parameters(folder: PathBuf, parameters: &[(&str, &str)]) -> ModelContext {
    let mut config = ModelConfig::default();
    for (key, value) in parameters {
        let value = ModelParameter { string_value: (*value).to_owned() };
        config.parameters.insert((*key).to_owned(), value);
    }
    context("m", folder, config)
}

/// Keeps the deliveries, and provides memory for outputs.
pub struct Answers {
    deliveries: Mutex<Vec<(u64, Delivery)>>,
    pub pool: Pool,
    /// The place that it prefers for outputs.
    pub destination: Mutex<OutputDestination>,
}

impl Default for Answers {
    fn default() -> Answers {
        Answers { deliveries: Mutex::default(), pool: Pool::new(64 << 20), destination: Mutex::default() }
    }
}

impl Sink for Answers {
    fn deliver(&self, key: u64, delivery: Delivery) {
        self.deliveries.lock().unwrap().push((key, delivery));
    }

    fn allocate(&self, _key: u64, byte_size: usize) -> Result<BlockMut, Exhausted> {
        self.pool.get(byte_size)
    }

    fn destination(&self, _key: u64, _query: &OutputQuery<'_>) -> Result<OutputDestination, Status> {
        Ok(self.destination.lock().unwrap().clone())
    }
}

impl Answers {
    /// All deliveries, in order: key, and response or error.
    pub fn take(&self) -> Vec<(u64, Result<Response, Status>)> {
        let deliveries = std::mem::take(&mut *self.deliveries.lock().unwrap());
        let split = |(key, delivery): (u64, Delivery)| {
            assert!(delivery.last, "these backends answer once");
            let mut response = delivery.response.expect("an answer");
            let error = response.error.take();
            (key, error.map_or(Ok(response), Err))
        };
        deliveries.into_iter().map(split).collect()
    }
}

/// A request under construction.
pub struct Draft(Request);

impl Draft {
    pub fn new(answers: &Arc<Answers>, key: u64) -> Draft {
        let mut request = Request::new(Completion::new(answers.clone(), key));
        request.id = Text::from(format!("r{key}").as_str());
        Draft(request)
    }

    pub fn batch(mut self, rows: u64) -> Draft {
        self.0.batch_size = rows;
        self
    }

    /// The next input of the configuration; `skip` leaves one out.
    pub fn input(mut self, index: usize, datatype: DataType, shape: &[i64], data: &[Slice]) -> Draft {
        let mut input = InputTensor::new(Text::from("in"), datatype, Shape::from_slice(shape));
        input.model_shape = input.shape.clone();
        input.index = index;
        input.data = SmallVec::from(data);
        self.0.inputs.push(input);
        self
    }

    /// The next input, which lies on a device.
    pub fn on_device(self, index: usize, datatype: DataType, shape: &[i64], slice: &DeviceSlice) -> Draft {
        let mut draft = self.input(index, datatype, shape, &[]);
        let input = draft.0.inputs.last_mut().unwrap();
        input.placement.get_or_insert_default().on_device = Some(slice.clone());
        draft
    }

    pub fn floats(self, index: usize, shape: &[i64], values: &[f32]) -> Draft {
        self.input(index, DataType::Fp32, shape, &[floats(values)])
    }

    pub fn outputs(mut self, indices: impl IntoIterator<Item = usize>) -> Box<Request> {
        self.0.outputs = indices.into_iter().map(|index| RequestedOutput { name: Text::from("out"), index }).collect();
        Box::new(self.0)
    }
}

pub fn floats(values: &[f32]) -> Slice {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    Slice::copy_of(&bytes)
}

pub fn as_floats(data: &[Slice]) -> Vec<f32> {
    let bytes: Vec<u8> = data.iter().flat_map(|piece| piece.iter().copied()).collect();
    bytes.chunks_exact(4).map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]])).collect()
}
