//! Shared by the tests of the sequence batcher: models, requests, answers, folders.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use nereid_memory::{BlockMut, Exhausted, Slice};
use nereid_model_config::{ModelSpec, normalize};
use nereid_request::{Completion, CorrelationId, DataType, Delivery, InputTensor, Request, Shape, Sink, Text};
use nereid_wire::inference::ModelSequenceBatching;
use nereid_wire::inference::model_config::SchedulingChoice;

/// The model `m` with one input `INPUT0` of one byte, and its sequence batching.
pub fn model(text: &str) -> (Arc<ModelSpec>, ModelSequenceBatching) {
    let io = "input { name: \"INPUT0\" data_type: TYPE_UINT8 dims: [ 1 ] }
              output { name: \"OUTPUT0\" data_type: TYPE_UINT8 dims: [ 1 ] }";
    let text = format!("name: \"m\" backend: \"identity\" {io} {text}");
    let document = nereid_model_config::parse("m/config.pbtxt", text.as_bytes()).unwrap();
    let mut config = nereid_model_config::from_dynamic(&document.message).unwrap();
    normalize::fill_defaults(&mut config);
    normalize::instance_groups(&mut config, &[], &nereid_model_config::SupportedGpus::NoDriver);
    let Some(SchedulingChoice::SequenceBatching(batching)) = config.scheduling_choice.clone() else {
        panic!("{text} has no sequences")
    };
    (Arc::new(ModelSpec::new(config).unwrap()), batching)
}

/// A request of sequence `id` with an answer that is discarded.
pub fn request(id: u64) -> Box<Request> {
    let mut request = request_to(&Arc::default(), id);
    request.correlation_id = CorrelationId::Number(id);
    request
}

/// A request with one byte of input, answered to `answers` under `key`.
pub fn request_to(answers: &Arc<Answers>, key: u64) -> Box<Request> {
    let mut request = Box::new(Request::new(Completion::new(answers.clone(), key)));
    request.id = Text::from(key.to_string().as_str());
    let mut input = InputTensor::new(Text::from("INPUT0"), DataType::Uint8, Shape::from_slice(&[1, 1]));
    input.model_shape = input.shape.clone();
    input.data.push(Slice::copy_of(&[key as u8]));
    request.inputs.push(input);
    request
}

/// Receives answers.
#[derive(Default)]
pub struct Answers(Mutex<Vec<(u64, Delivery)>>);

impl Answers {
    /// Of all deliveries so far, in their order.
    pub fn keys(&self) -> Vec<u64> {
        self.0.lock().unwrap().iter().map(|(key, _)| *key).collect()
    }

    /// The ends since the last call: keys, and the messages of errors.
    pub fn take(&self) -> Vec<(u64, Option<String>)> {
        let error = |delivery: Delivery| delivery.response.and_then(|mut response| response.error.take());
        let ends = self.0.lock().unwrap().drain(..).collect::<Vec<_>>();
        ends.into_iter().map(|(key, delivery)| (key, error(delivery).map(|status| status.to_string()))).collect()
    }
}

impl Sink for Answers {
    fn deliver(&self, key: u64, delivery: Delivery) {
        self.0.lock().unwrap().push((key, delivery));
    }

    fn allocate(&self, _key: u64, byte_size: usize) -> Result<BlockMut, Exhausted> {
        Ok(BlockMut::unpooled(byte_size))
    }
}

/// A temporary directory.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("nereid-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn write(&self, relative: &str, bytes: &[u8]) {
        let path = self.0.join(relative);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
