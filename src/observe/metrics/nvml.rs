//! The host's GPUs through NVIDIA's management library, opened on request where it is installed.

use std::ffi::OsStr;

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use super::gpu::{Devices, Field};

/// Drivers install the first; the second comes with tools for developers.
const LIBRARIES: [&str; 2] = ["libnvidia-ml.so.1", "libnvidia-ml.so"];

pub struct NvmlDevices {
    nvml: Nvml,
    /// NVML's index and the UUID of the devices that can be read.
    devices: Vec<(u32, String)>,
}

impl NvmlDevices {
    /// Fails where there is no driver.
    pub fn open() -> Result<NvmlDevices, String> {
        let open = |library: &str| Nvml::builder().lib_path(OsStr::new(library)).init();
        let [first, second] = LIBRARIES;
        let nvml = open(first).or_else(|_| open(second)).map_err(|error| error.to_string())?;
        let count = nvml.device_count().map_err(|error| error.to_string())?;
        let uuid = |index| Some((index, nvml.device_by_index(index).ok()?.uuid().ok()?));
        let devices = (0..count).filter_map(uuid).collect();
        Ok(NvmlDevices { nvml, devices })
    }

    fn read_field(&self, index: u32, field: Field) -> Result<u64, NvmlError> {
        let device = self.nvml.device_by_index(index)?;
        Ok(match field {
            Field::Utilization => device.utilization_rates()?.gpu.into(),
            Field::MemoryTotal => device.memory_info()?.total,
            Field::MemoryUsed => device.memory_info()?.used,
            Field::PowerUsage => device.power_usage()?.into(),
            Field::PowerLimit => device.enforced_power_limit()?.into(),
            Field::Energy => device.total_energy_consumption()?,
        })
    }
}

impl Devices for NvmlDevices {
    fn uuids(&self) -> Vec<String> {
        self.devices.iter().map(|(_, uuid)| uuid.clone()).collect()
    }

    fn read(&self, device: usize, field: Field) -> Result<u64, String> {
        let (index, _) = self.devices.get(device).ok_or("there is no such device")?;
        self.read_field(*index, field).map_err(|error| error.to_string())
    }
}
