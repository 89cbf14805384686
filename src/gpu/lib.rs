//! GPUs: the devices of this host, their memory, their streams.
//!
//! Everything here goes through one [`Driver`]: CUDA's, opened when it is there, or a stand-in on host memory that
//! keeps an order only where a stream or an event requires one ([`simulated`]). The server is built without CUDA and
//! runs without it; then there are no devices, and none is used.
//!
//! The interface for the layers above is safe: buffers go back when they are dropped, and the holder of a
//! [`DeviceSlice`] may read it, because a slice is only made when all work that writes it is complete. The calls that
//! start asynchronous work, and their safety contracts, stay in [`stream`] and [`flight`].

#![allow(unsafe_code)]

mod arena;
mod buffer;
pub mod capture;
mod cuda;
mod device;
pub mod driver;
pub mod flight;
mod gather;
pub mod graph;
mod ipc;
mod kernel;
pub mod kernels;
mod memory;
mod pinned;
mod regions;
mod settings;
#[cfg(any(test, feature = "simulated"))]
pub mod simulated;
pub mod stream;

pub use buffer::{DeviceBuffer, DeviceSlice};
pub use device::{CAN_SIMULATE, Gpu, Gpus, SIMULATED};
pub use driver::{Description, Driver, DriverError, Program};
pub use flight::{Flight, Lanes, Piece};
pub use ipc::{Exported, Imported, run_in_background};
pub use kernel::Kernel;
pub use pinned::{PinnedBuffer, PinnedPool};
pub use regions::{DeviceRegion, DeviceRegionUse, DeviceRegions, DeviceTarget, IpcAllocation, OpenError};
pub use settings::Settings;
