//! The options of a session as the library reads them: a serialised `ConfigProto`.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use prost::Message;

use super::messages::{ConfigProto, GpuOptions, RunOptions};
use super::settings::{BackendSettings, ModelSettings};
use nereid_request::Status;

/// The number of the pool that stands for the thread that calls.
const CALLING_THREAD: i32 = -1;

/// Where the instances of a session run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    Cpu,
    Gpu(i32),
    /// Where the model's operations say.
    Model,
}

impl Place {
    /// The device for operations of a graph that name none.
    pub fn device(self) -> Option<String> {
        match self {
            Place::Cpu => Some("/cpu:0".to_owned()),
            Place::Gpu(ordinal) => Some(format!("/gpu:{ordinal}")),
            Place::Model => None,
        }
    }
}

/// The options of a session at `place`.
pub fn session_config(backend: &BackendSettings, model: &ModelSettings, place: Place) -> Result<Vec<u8>, Status> {
    let on_cpu = place == Place::Cpu;
    let gpu_options = GpuOptions {
        per_process_gpu_memory_fraction: backend.gpu_memory_fraction,
        allow_growth: backend.gpu_memory_fraction == 0.0,
    };
    let config = ConfigProto {
        // A session without GPUs: the library would prefer them for all operations that can run there.
        device_count: if on_cpu { BTreeMap::from([("GPU".to_owned(), 0)]) } else { BTreeMap::new() },
        intra_op_parallelism_threads: model.intra_op_threads,
        inter_op_parallelism_threads: model.inter_op_threads,
        use_per_session_threads: model.has_own_threads,
        gpu_options: Some(gpu_options),
        allow_soft_placement: backend.allows_soft_placement,
        graph_options: Some(model.optimization.options(on_cpu)?),
    };
    Ok(config.encode_to_vec())
}

/// The options of a run as the library reads them: a serialised `RunOptions`.
///
/// With one thread between operations nothing runs side by side there, so that the instance's own thread executes all
/// of them: handing a run over to that thread and back costs as much as a small model. Instances then run side by side
/// too.
pub fn run_options(model: &ModelSettings) -> Vec<u8> {
    let inter_op_thread_pool = if model.inter_op_threads == 1 { CALLING_THREAD } else { 0 };
    RunOptions { inter_op_thread_pool }.encode_to_vec()
}

/// Warns if a model asks for thread counts that it does not get: the first session of the process makes the pools that
/// all sessions without threads of their own share.
pub fn note_threads(name: &str, model: &ModelSettings) {
    static POOLS: OnceLock<(i32, i32)> = OnceLock::new();
    let wanted = (model.intra_op_threads, model.inter_op_threads);
    let made = *POOLS.get_or_init(|| wanted);
    if made != wanted && !model.has_own_threads {
        tracing::warn!(
            "model '{name}' asks for {} and {} threads within and between operations, but TensorFlow has {} and {} for \
             all models since its first session. Set TF_USE_PER_SESSION_THREADS to give it threads between operations",
            wanted.0,
            wanted.1,
            made.0,
            made.1
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::parameters;

    #[test]
    fn settings_become_options_of_a_session() {
        let context = parameters(&[("TF_NUM_INTRA_THREADS", "3"), ("TF_USE_PER_SESSION_THREADS", "1")]);
        let model = ModelSettings::parse(&context).unwrap();
        let backend = |fraction| BackendSettings {
            default_max_batch_size: 4,
            allows_soft_placement: true,
            gpu_memory_fraction: fraction,
        };
        let decoded = |fraction, place| {
            let bytes = session_config(&backend(fraction), &model, place).unwrap();
            ConfigProto::decode(&bytes[..]).unwrap()
        };
        let on_cpu = decoded(0.0, Place::Cpu);
        assert_eq!((on_cpu.intra_op_parallelism_threads, on_cpu.inter_op_parallelism_threads), (3, 1));
        assert!(on_cpu.use_per_session_threads && on_cpu.allow_soft_placement);
        assert_eq!(on_cpu.device_count.get("GPU"), Some(&0));
        assert!(on_cpu.gpu_options.unwrap().allow_growth);
        let on_gpu = decoded(0.25, Place::Gpu(1));
        let options = on_gpu.gpu_options.unwrap();
        assert_eq!((options.per_process_gpu_memory_fraction, options.allow_growth), (0.25, false));
        assert!(on_gpu.device_count.is_empty());
        let pool = |threads: &str| {
            let context = parameters(&[("TF_NUM_INTER_THREADS", threads)]);
            let bytes = run_options(&ModelSettings::parse(&context).unwrap());
            RunOptions::decode(&bytes[..]).unwrap().inter_op_thread_pool
        };
        assert_eq!(["0", "1", "2"].map(pool), [-1, -1, 0], "0 is that of the CPUs for workers, which is 1 here");
        let devices = [Place::Cpu, Place::Gpu(1), Place::Model].map(Place::device);
        assert_eq!(devices, [Some("/cpu:0".to_owned()), Some("/gpu:1".to_owned()), None]);
    }
}
