//! The regions of one kind of shared memory, and how they are reported.

use std::sync::Arc;

use crate::api::routes::MemoryKind;
use nereid_gpu::DeviceRegion;
use nereid_memory::{Gather, Pool, Region};
use nereid_protocol::json::{GatherSink, Writer};
use nereid_request::{SharedMemory, Status};
use nereid_wire::inference as wire;

#[derive(Debug)]
pub enum Listing {
    System(Vec<Arc<Region>>),
    Cuda(Vec<Arc<DeviceRegion>>),
}

impl Listing {
    /// The region of that name, or all of the kind.
    pub fn of(kind: MemoryKind, name: Option<&[u8]>, memory: &SharedMemory) -> Result<Listing, Status> {
        let (system, cuda) = (&memory.system, memory.gpus.regions());
        let Some(name) = name else {
            return Ok(match kind {
                MemoryKind::System => Listing::System(system.list()),
                MemoryKind::Cuda => Listing::Cuda(cuda.list()),
            });
        };
        let found = match kind {
            MemoryKind::System => system.find(name).map(|region| Listing::System(vec![region])),
            MemoryKind::Cuda => cuda.find(name).map(|region| Listing::Cuda(vec![region])),
        };
        found.ok_or_else(|| {
            let shown = String::from_utf8_lossy(name);
            Status::not_found(match kind {
                MemoryKind::System if cuda.find(name).is_some() => {
                    format!("The region named '{shown}' is registered as CUDA shared memory, not system shared memory")
                }
                MemoryKind::Cuda if system.find(name).is_some() => {
                    format!("The region named '{shown}' is registered as system shared memory, not CUDA shared memory")
                }
                MemoryKind::System => format!("Unable to find system shared memory region: '{shown}'"),
                MemoryKind::Cuda => format!("Unable to find cuda shared memory region: '{shown}'"),
            })
        })
    }

    /// The answer over HTTP.
    pub fn to_json(&self, pool: &Pool) -> Gather {
        let mut body = Gather::new();
        let mut writer = Writer::new(GatherSink { gather: &mut body, pool });
        writer.begin_array();
        match self {
            Listing::System(regions) => {
                for region in regions {
                    writer.begin_object();
                    writer.key("name");
                    writer.string(region.name());
                    writer.key("key");
                    writer.string(region.key());
                    writer.key("offset");
                    writer.uint(region.offset());
                    writer.key("byte_size");
                    writer.uint(region.byte_size() as u64);
                    writer.end_object();
                }
            }
            Listing::Cuda(regions) => {
                for region in regions {
                    writer.begin_object();
                    writer.key("name");
                    writer.string(region.name());
                    writer.key("device_id");
                    writer.int(region.device_id());
                    writer.key("byte_size");
                    writer.uint(region.byte_size() as u64);
                    writer.end_object();
                }
            }
        }
        writer.end_array();
        body
    }
}

/// The answer over gRPC.
pub fn system_message(regions: &[Arc<Region>]) -> wire::SystemSharedMemoryStatusResponse {
    let rows = regions.iter().map(|region| {
        let name = String::from_utf8_lossy(region.name()).into_owned();
        let row = wire::system_shared_memory_status_response::RegionStatus {
            name: name.clone(),
            key: String::from_utf8_lossy(region.key()).into_owned(),
            offset: region.offset(),
            byte_size: region.byte_size() as u64,
        };
        (name, row)
    });
    wire::SystemSharedMemoryStatusResponse { regions: rows.collect() }
}

/// The answer over gRPC.
pub fn cuda_message(regions: &[Arc<DeviceRegion>]) -> wire::CudaSharedMemoryStatusResponse {
    let rows = regions.iter().map(|region| {
        let name = String::from_utf8_lossy(region.name()).into_owned();
        let row = wire::cuda_shared_memory_status_response::RegionStatus {
            name: name.clone(),
            // Of a device that the server has: not negative.
            device_id: region.device_id().unsigned_abs(),
            byte_size: region.byte_size() as u64,
        };
        (name, row)
    });
    wire::CudaSharedMemoryStatusResponse { regions: rows.collect() }
}
