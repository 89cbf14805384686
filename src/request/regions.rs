//! The memory that clients have registered, of the host and of devices: one space of names for both.

use std::sync::Arc;

use nereid_gpu::{Gpus, IpcAllocation, OpenError};
use nereid_memory::Regions;
use nereid_memory::regions::{JobThread, RegisterError};

/// See the [module](self). One value for the process.
#[derive(Debug, Default)]
pub struct SharedMemory {
    pub system: Regions,
    /// With the regions of their memory.
    pub gpus: Arc<Gpus>,
}

impl SharedMemory {
    pub fn new(gpus: Arc<Gpus>) -> SharedMemory {
        SharedMemory { system: Regions::default(), gpus }
    }

    /// Who does what takes long: all that is registered and unregistered, one after the other.
    pub fn job_thread(&self) -> &JobThread {
        self.system.job_thread()
    }

    /// Maps an object of the host. Not for shards.
    pub fn register(&self, name: &[u8], key: &[u8], range: (u64, u64)) -> Result<(), RegisterError> {
        self.system.register_unless(name, key, range, || self.gpus.regions().find(name).is_some())
    }

    /// Opens an allocation of a device. Not for shards.
    pub fn register_cuda(&self, name: &[u8], lent: IpcAllocation<'_>) -> Result<(), OpenError> {
        if self.system.find(name).is_some() {
            return Err(OpenError::Exists);
        }
        self.gpus.regions().register(&self.gpus, self.job_thread(), name, lent)
    }

    /// Regions of both kinds.
    pub fn len(&self) -> usize {
        self.system.len() + self.gpus.regions().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
