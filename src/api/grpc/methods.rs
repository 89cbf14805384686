//! The RPCs, by the paths of their calls, and the groups by which they can be restricted (contract/grpc.md section 1).

use crate::api::routes::{Category, MemoryKind, RegionAction};

macro_rules! methods {
    ($($method:ident = $number:literal;)*) => {
        /// The RPCs (contract/grpc.md section 1).
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Method { $($method = $number),* }

        impl Method {
            fn of(name: &[u8]) -> Option<Method> {
                $(if name == stringify!($method).as_bytes() { return Some(Method::$method); })*
                None
            }

            pub fn from_number(number: u8) -> Option<Method> {
                match number { $($number => Some(Method::$method),)* _ => None }
            }
        }
    };
}

methods! {
    ModelInfer = 0;
    ModelStreamInfer = 1;
    ServerLive = 2;
    ServerReady = 3;
    ModelReady = 4;
    ServerMetadata = 5;
    ModelMetadata = 6;
    ModelConfig = 7;
    ModelStatistics = 8;
    RepositoryIndex = 9;
    Check = 10;
    RepositoryModelLoad = 11;
    RepositoryModelUnload = 12;
    LogSettings = 13;
    SystemSharedMemoryStatus = 14;
    SystemSharedMemoryRegister = 15;
    SystemSharedMemoryUnregister = 16;
    CudaSharedMemoryStatus = 17;
    CudaSharedMemoryRegister = 18;
    CudaSharedMemoryUnregister = 19;
    TraceSetting = 20;
}

impl Method {
    /// The kind and the action of a method that concerns shared memory.
    pub fn of_regions(self) -> Option<(MemoryKind, RegionAction)> {
        Some(match self {
            Method::SystemSharedMemoryStatus => (MemoryKind::System, RegionAction::Status),
            Method::SystemSharedMemoryRegister => (MemoryKind::System, RegionAction::Register),
            Method::SystemSharedMemoryUnregister => (MemoryKind::System, RegionAction::Unregister),
            Method::CudaSharedMemoryStatus => (MemoryKind::Cuda, RegionAction::Status),
            Method::CudaSharedMemoryRegister => (MemoryKind::Cuda, RegionAction::Register),
            Method::CudaSharedMemoryUnregister => (MemoryKind::Cuda, RegionAction::Unregister),
            _ => return None,
        })
    }

    /// The group by which the method can be restricted (contract/grpc.md section 1).
    pub fn category(self) -> Category {
        match self {
            Method::ServerLive | Method::ServerReady | Method::ModelReady | Method::Check => Category::Health,
            Method::ServerMetadata | Method::ModelMetadata => Category::Metadata,
            Method::ModelInfer | Method::ModelStreamInfer => Category::Inference,
            Method::ModelConfig => Category::ModelConfig,
            Method::ModelStatistics => Category::Statistics,
            Method::RepositoryIndex | Method::RepositoryModelLoad | Method::RepositoryModelUnload => {
                Category::ModelRepository
            }
            Method::LogSettings => Category::Logging,
            Method::TraceSetting => Category::Trace,
            Method::SystemSharedMemoryStatus
            | Method::SystemSharedMemoryRegister
            | Method::SystemSharedMemoryUnregister
            | Method::CudaSharedMemoryStatus
            | Method::CudaSharedMemoryRegister
            | Method::CudaSharedMemoryUnregister => Category::SharedMemory,
        }
    }
}

/// The method of `/package.Service/Method`.
pub fn method_of(path: &[u8]) -> Option<Method> {
    if path == b"/grpc.health.v1.Health/Check" {
        return Some(Method::Check);
    }
    let name = path.strip_prefix(b"/inference.GRPCInferenceService/")?;
    Method::of(name).filter(|method| *method != Method::Check)
}
