//! Which models stay in memory, where a repository holds more than fit: settings, the table of resident models, the
//! choice of the next to unload, and schedules (docs/many-models.md).
//!
//! Nothing here does I/O or takes a lock but [`measure`]; `lifecycle::residency` acts on the decisions, on control
//! threads.

pub mod measure;
mod policy;
mod schedule;

use std::collections::{BTreeMap, BTreeSet};

pub use policy::{Excess, Reason, Residents, Seen};
pub use schedule::{Prewarm, Schedules};

/// The parameter of a model's configuration that keeps it in memory.
pub const PINNED: &str = "nereid.pinned";

/// The flags about models that are loaded and unloaded by use.
#[derive(Debug, Clone, PartialEq)]
pub struct ResidencySettings {
    /// `--model-load-on-demand`; the others have no meaning without it.
    pub on_demand: bool,
    /// `--model-load-wait-secs`: how long a request waits for the load of its model.
    pub wait_secs: u32,
    /// `--model-idle-secs`; 0 is for ever.
    pub idle_secs: u32,
    /// `--model-count-max`; 0 is any number.
    pub count_max: u32,
    /// `--model-memory-byte-size`; 0 is any size.
    pub host_bytes: u64,
    /// `--model-device-memory-byte-size`, by device.
    pub device_bytes: BTreeMap<i32, u64>,
    /// `--model-pin`.
    pub pinned: BTreeSet<String>,
    /// `--model-prewarm`.
    pub prewarm: Vec<Prewarm>,
}

impl Default for ResidencySettings {
    fn default() -> ResidencySettings {
        ResidencySettings {
            on_demand: false,
            wait_secs: 30,
            idle_secs: 0,
            count_max: 0,
            host_bytes: 0,
            device_bytes: BTreeMap::new(),
            pinned: BTreeSet::new(),
            prewarm: Vec::new(),
        }
    }
}

impl ResidencySettings {
    /// Memory of models is bounded, so that their loads are measured, one after the other.
    pub fn has_byte_budget(&self) -> bool {
        self.host_bytes > 0 || self.device_bytes.values().any(|bytes| *bytes > 0)
    }

    /// The name of a flag that is given and has no meaning without loads on demand.
    pub fn needs_on_demand(&self) -> Option<&'static str> {
        let flags = [
            (self.idle_secs > 0, "model-idle-secs"),
            (self.count_max > 0, "model-count-max"),
            (self.host_bytes > 0, "model-memory-byte-size"),
            (!self.device_bytes.is_empty(), "model-device-memory-byte-size"),
            (!self.pinned.is_empty(), "model-pin"),
            (!self.prewarm.is_empty(), "model-prewarm"),
        ];
        flags.into_iter().find_map(|(is_given, flag)| is_given.then_some(flag))
    }

    /// Something bounds how many models are loaded.
    pub fn has_budget(&self) -> bool {
        self.count_max > 0 || self.has_byte_budget()
    }
}

/// Memory that a version or a model holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes on the host, those of processes of the model included.
    pub host: u64,
    /// Bytes by device.
    pub devices: BTreeMap<i32, u64>,
}

impl Usage {
    pub fn add(&mut self, other: &Usage) {
        self.host = self.host.saturating_add(other.host);
        for (device, bytes) in &other.devices {
            let sum = self.devices.entry(*device).or_default();
            *sum = sum.saturating_add(*bytes);
        }
    }
}
