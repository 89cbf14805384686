//! The server's use of GPUs apart from running models: it reads them for the metrics, and logs the options that have no
//! effect without them.

use std::sync::Arc;

use tracing::info;

use super::options::{NO_GPU, Options};
use nereid_gpu::Gpus;
use nereid_observe::metrics::{Devices, Field, GpuSource, Sources};

/// Logs, in Triton's words, which memory pools are disabled, and, where there are no GPUs, each option that has no
/// effect without them.
pub fn log_unused_options(options: &Options, gpus: &Gpus) {
    let has_none = gpus.iter().next().is_none();
    if has_none || options.pinned_memory_pool_byte_size == 0 {
        info!("Pinned memory pool disabled");
    }
    let settings = options.gpu_settings();
    if gpus.iter().enumerate().all(|(device, _)| settings.memory_pool_of(device) == 0) {
        info!("CUDA memory pool disabled");
    }
    if has_none {
        options.for_gpus.iter().for_each(|option| info!("{option} has no effect: {NO_GPU}"));
    }
}

/// The sources of metrics of GPUs and of pinned memory. `are_allowed` is `--allow-gpu-metrics`.
pub fn sources(gpus: &Arc<Gpus>, are_allowed: bool) -> Sources {
    let of_pool = Arc::clone(gpus);
    Sources {
        gpus: match (are_allowed, gpus.is_simulated()) {
            (false, _) => GpuSource::None,
            (true, false) => GpuSource::Nvml,
            (true, true) => GpuSource::These(Box::new(SimulatedDevices(Arc::clone(gpus)))),
        },
        pinned: gpus.is_supported().then(|| Box::new(move || of_pool.pinned().usage()) as Box<_>),
    }
}

/// Simulated devices. They have memory, and neither load nor power.
struct SimulatedDevices(Arc<Gpus>);

impl Devices for SimulatedDevices {
    fn uuids(&self) -> Vec<String> {
        self.0.iter().map(|gpu| gpu.description().uuid.clone()).collect()
    }

    fn read(&self, device: usize, field: Field) -> Result<u64, String> {
        let gpu = self.0.iter().nth(device).ok_or("there is no such device")?;
        let memory = || gpu.memory().map_err(|error| error.to_string());
        match field {
            Field::MemoryTotal => memory().map(|(_, total)| total),
            Field::MemoryUsed => memory().map(|(free, total)| total.saturating_sub(free)),
            Field::Utilization | Field::PowerUsage | Field::PowerLimit | Field::Energy => Ok(0),
        }
    }
}
