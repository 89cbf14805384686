//! Batches that the library records as CUDA graphs, and plays again from then on.
//!
//! A graph has the addresses of its first run in it. So each combination of input shapes gets buffers of its own, which
//! stay where they are, and a number by which the library knows its graph. Other batches are run without.

use std::sync::Arc;

use super::options::RunOptions;
use super::runtime::Runtime;
use super::settings::SessionSettings;
use nereid_gpu::{DeviceBuffer, Gpu};
use nereid_request::{Shape, Status};

/// Combinations of an instance: each has its memory for as long as the instance.
const RECORDINGS_MAX: usize = 16;

/// What a batch needs of its buffers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Form {
    /// Of all inputs, in the order of the plan.
    pub shapes: Vec<Shape>,
    pub input_lens: Vec<usize>,
    pub output_lens: Vec<usize>,
}

/// One combination. Its buffers serve one batch at a time.
pub struct Recording {
    form: Form,
    pub inputs: Vec<Arc<DeviceBuffer>>,
    pub outputs: Vec<Arc<DeviceBuffer>>,
    pub options: RunOptions,
}

impl Recording {
    fn is_free(&self) -> bool {
        self.inputs.iter().chain(&self.outputs).all(|buffer| Arc::strong_count(buffer) == 1)
    }
}

/// Of one instance.
pub struct Recordings {
    runtime: &'static Runtime,
    settings: SessionSettings,
    all: Vec<Recording>,
}

impl Recordings {
    /// `None`: the configuration does not ask for graphs.
    pub fn new(runtime: &'static Runtime, settings: &SessionSettings) -> Option<Recordings> {
        let settings = settings.gpu.records_graphs().then(|| settings.clone())?;
        Some(Recordings { runtime, settings, all: Vec::new() })
    }

    /// The number of the recording for batches of that form, made with the first of them. `None`: there are too many,
    /// or another batch is on its way with it.
    pub fn find(&mut self, form: Form, gpu: &Gpu) -> Result<Option<usize>, Status> {
        if let Some(at) = self.all.iter().position(|one| one.form == form) {
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
        let (inputs, outputs) = (buffers(&form.input_lens)?, buffers(&form.output_lens)?);
        let options = RunOptions::recorded(self.runtime, &self.settings, at)?;
        self.all.push(Recording { form, inputs, outputs, options });
        Ok(Some(at))
    }

    pub fn get(&self, at: usize) -> Option<&Recording> {
        self.all.get(at)
    }
}
