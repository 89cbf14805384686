//! The settings of GPUs from the command line (contract/cli.md: `--min-supported-compute-capability` and its
//! neighbours).

use std::collections::BTreeMap;

/// See the [module](self).
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Devices below are not used.
    pub min_compute_capability: f64,
    /// Bytes of the pool of pinned memory; 0: none.
    pub pinned_pool_bytes: u64,
    /// Bytes of a device's pool, by device, where it is not [`Settings::MEMORY_POOL_BYTES`].
    pub memory_pool_bytes: BTreeMap<i32, u64>,
    /// Devices read and write each other's memory where they can.
    pub enable_peer_access: bool,
    /// By device, the part of its memory, 0 to 1, beyond which no more instances are made there.
    pub load_limits: BTreeMap<i32, f64>,
}

impl Settings {
    /// The default size of each device's pool.
    pub const MEMORY_POOL_BYTES: u64 = 64 << 20;

    /// Bytes of the pool of one device.
    pub fn memory_pool_of(&self, device: usize) -> u64 {
        let configured = i32::try_from(device).ok().and_then(|device| self.memory_pool_bytes.get(&device));
        configured.copied().unwrap_or(Settings::MEMORY_POOL_BYTES)
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            min_compute_capability: 0.0,
            pinned_pool_bytes: 256 << 20,
            memory_pool_bytes: BTreeMap::new(),
            enable_peer_access: true,
            load_limits: BTreeMap::new(),
        }
    }
}
