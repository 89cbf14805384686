//! Batches that the library records as CUDA graphs and replays from then on.
//!
//! A graph contains the addresses of its first run. So each combination of input shapes gets buffers of its own, with
//! fixed addresses, and a number that identifies its graph in the library. Other batches are run without a graph.

use std::sync::Arc;

use super::options::RunOptions;
use super::runtime::Runtime;
use super::settings::SessionSettings;
use nereid_gpu::{DeviceBuffer, Gpu};
use nereid_request::{Shape, Status};

/// Recordings of an instance: each keeps its memory as long as the instance lives.
const RECORDINGS_MAX: usize = 16;

/// The shapes and sizes that determine a batch's buffers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordingKey {
    /// The shapes of all inputs, in the order of the plan.
    pub shapes: Vec<Shape>,
    pub input_lens: Vec<usize>,
    pub output_lens: Vec<usize>,
}

/// The buffers for one combination of shapes, which serve one batch at a time.
pub struct Recording {
    key: RecordingKey,
    pub inputs: Vec<Arc<DeviceBuffer>>,
    pub outputs: Vec<Arc<DeviceBuffer>>,
    pub options: RunOptions,
    /// A run was recorded; further ones replay it.
    pub is_made: bool,
}

impl Recording {
    fn is_free(&self) -> bool {
        self.inputs.iter().chain(&self.outputs).all(|buffer| Arc::strong_count(buffer) == 1)
    }
}

/// The recordings of one instance.
pub struct Recordings {
    runtime: &'static Runtime,
    settings: SessionSettings,
    all: Vec<Recording>,
}

impl Recordings {
    /// `None`: the configuration does not enable graphs.
    pub fn new(runtime: &'static Runtime, settings: &SessionSettings) -> Option<Recordings> {
        let settings = settings.gpu.records_graphs().then(|| settings.clone())?;
        Some(Recordings { runtime, settings, all: Vec::new() })
    }

    /// The number of the recording for batches with that key, which the first of them makes. `None`: there are too
    /// many, or another batch uses it.
    pub fn find(&mut self, key: RecordingKey, gpu: &Gpu) -> Result<Option<usize>, Status> {
        if let Some(at) = self.all.iter().position(|one| one.key == key) {
            return Ok(self.all.get(at).filter(|one| one.is_free()).map(|_| at));
        }
        let at = self.all.len();
        if at >= RECORDINGS_MAX {
            return Ok(None);
        }
        let buffers = |lens: &[usize]| {
            let buffers = lens.iter().map(|len| gpu.allocate(*len).map(Arc::new));
            buffers.collect::<Result<Vec<_>, _>>()
        };
        let (inputs, outputs) = (buffers(&key.input_lens)?, buffers(&key.output_lens)?);
        let options = RunOptions::recorded(self.runtime, &self.settings, at)?;
        self.all.push(Recording { key, inputs, outputs, options, is_made: false });
        Ok(Some(at))
    }

    /// Notes that a run with recording number `at` has succeeded.
    pub fn note_made(&mut self, at: usize) {
        self.all.iter_mut().skip(at).take(1).for_each(|one| one.is_made = true);
    }

    pub fn get(&self, at: usize) -> Option<&Recording> {
        self.all.get(at)
    }
}
