//! The [`Driver`] trait: CUDA's driver interface, without its global state.
//!
//! Calls name the device, so that no thread has to track which context is current; handles are numbers that only their
//! driver interprets. No function here waits for a whole device.

use std::fmt;
use std::time::Duration;

use thiserror::Error;

/// An address in the memory of a device. CUDA gives each byte of all devices and of pinned memory its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceAddress(pub u64);

impl DeviceAddress {
    /// The address `bytes` further on.
    pub fn offset(self, bytes: usize) -> DeviceAddress {
        DeviceAddress(self.0.wrapping_add(bytes as u64))
    }
}

/// A queue of work, which runs in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StreamHandle(pub u64);

/// A point in a stream that other streams and threads can wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EventHandle(pub u64);

/// A function on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KernelHandle(pub u64);

/// Recorded work that is launched as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GraphHandle(pub u64);

/// What another process needs to see an allocation (`CUipcMemHandle`).
pub type IpcHandle = [u8; 64];

/// The properties of a device (cuDeviceGetAttribute and related calls).
#[derive(Debug, Clone, PartialEq)]
pub struct Description {
    pub name: String,
    /// `GPU-…`, as NVML names it.
    pub uuid: String,
    pub memory_bytes: u64,
    /// Compute capability, major and minor.
    pub compute_capability: (i32, i32),
    /// `0000:3b:00.0`.
    pub pci_address: String,
    /// The NUMA node of the host, where it is known.
    pub numa_node: Option<usize>,
}

impl Description {
    /// 7.5 for (7, 5): the form in flags and file names.
    pub fn capability(&self) -> f64 {
        f64::from(self.compute_capability.0) + f64::from(self.compute_capability.1) / 10.0
    }
}

/// An error of the driver.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{call} failed: {name} ({code}): {text}")]
pub struct DriverError {
    /// The function of the driver.
    pub call: &'static str,
    /// `CUresult`.
    pub code: i32,
    /// `CUDA_ERROR_ILLEGAL_ADDRESS`.
    pub name: String,
    pub text: String,
}

impl DriverError {
    /// `CUresult` of an exhausted memory.
    pub const OUT_OF_MEMORY: i32 = 2;
    /// `CUresult` of an invalid argument.
    pub const INVALID_VALUE: i32 = 1;
    /// `CUresult` of an access outside of allocated memory.
    pub const ILLEGAL_ADDRESS: i32 = 700;
    /// `CUresult` of a failed launch.
    pub const LAUNCH_FAILED: i32 = 719;

    /// `CUresult` of a driver that ends with the process.
    pub const DEINITIALIZED: i32 = 4;

    /// True for an error after which nothing that was enqueued runs any more: the device is lost, or the driver is
    /// gone.
    pub fn ends_work(&self) -> bool {
        self.is_sticky() || self.code == Self::DEINITIALIZED
    }

    /// True for an error after which every further call in this process fails too: the device's context is broken, and
    /// only a new process gets another (CUDA's documentation of the errors marks them).
    pub fn is_sticky(&self) -> bool {
        // ECC, hardware stack, illegal instruction, misaligned address, invalid address space, invalid PC, launch
        // failed, illegal address, launch timeout, assert, contained, tensor memory leak, external device, and device
        // lost.
        matches!(self.code, 214 | 226 | 700 | 702 | 710 | 714..=719 | 721 | 911 | 912 | 999)
    }
}

pub type Result<T> = std::result::Result<T, DriverError>;

/// An argument of a kernel.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Argument {
    Address(DeviceAddress),
    U32(u32),
    U64(u64),
    F32(f32),
}

/// The size of a launch: one-dimensional, as all kernels of this server are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    pub blocks: u32,
    pub threads: u32,
}

/// Bytes that a kernel reads or writes, for a driver that checks the accesses of a launch. A range that is written, and
/// not listed as read too, is written to its last byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    pub at: DeviceAddress,
    pub len: usize,
    pub writes: bool,
}

/// The two forms of a kernel: text for a device, and a function that does the same on the host.
pub struct Program {
    /// Its name, in the text and elsewhere.
    pub name: &'static str,
    /// PTX, which the driver compiles for the device.
    pub ptx: &'static str,
    /// The same computation for a driver on host memory.
    ///
    /// # Safety
    /// The arguments are those that the kernel takes, and no other code uses the memory that they name meanwhile.
    pub on_host: unsafe fn(&[Argument]),
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Program({})", self.name)
    }
}

/// How threads wait for an event, and whether it records the time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EventOptions {
    /// A waiting thread sleeps, instead of polling.
    pub sleeps: bool,
    /// The time between it and another event can be queried.
    pub is_timed: bool,
}

/// See the [module](self).
///
/// # Safety
/// Of the implementation: an event is reported complete only when all work enqueued before it in its stream is, and
/// addresses that are handed out are valid, and given to no other caller, until they are freed.
pub unsafe trait Driver: Send + Sync {
    /// The name for the log, such as `CUDA 13.0`.
    fn name(&self) -> String;

    /// True for a stand-in on host memory, which other libraries cannot use.
    fn is_simulated(&self) -> bool;

    fn device_count(&self) -> usize;

    fn describe(&self, device: usize) -> Result<Description>;

    /// Free and total bytes of the device, all processes counted.
    fn memory(&self, device: usize) -> Result<(u64, u64)>;

    /// Makes the device's context current on this thread, for libraries that use the current context.
    fn enter(&self, device: usize) -> Result<()>;

    /// The context for libraries, a `CUcontext`. Null for a stand-in, and where there is none.
    fn context(&self, device: usize) -> *mut std::ffi::c_void;

    /// Lets `device` read and write the memory of `peer`. False: the hardware cannot.
    fn enable_peer_access(&self, device: usize, peer: usize) -> Result<bool>;

    fn allocate(&self, device: usize, len: usize) -> Result<DeviceAddress>;

    /// # Safety
    /// `at` was allocated, and nothing that was enqueued uses it any more.
    unsafe fn free(&self, device: usize, at: DeviceAddress) -> Result<()>;

    /// Memory of the host that devices access directly.
    fn allocate_pinned(&self, len: usize) -> Result<*mut u8>;

    /// # Safety
    /// `at` was allocated, and nothing that was enqueued uses it any more.
    unsafe fn free_pinned(&self, at: *mut u8) -> Result<()>;

    fn create_stream(&self, device: usize) -> Result<StreamHandle>;

    /// # Safety
    /// The stream is not used afterwards. What is in it runs to its end.
    unsafe fn destroy_stream(&self, device: usize, stream: StreamHandle);

    /// The stream for libraries, a `CUstream`.
    fn stream_pointer(&self, stream: StreamHandle) -> *mut std::ffi::c_void;

    fn create_event(&self, device: usize, options: EventOptions) -> Result<EventHandle>;

    /// # Safety
    /// The event is not used afterwards.
    unsafe fn destroy_event(&self, device: usize, event: EventHandle);

    /// Records the event: it covers all work that is in the stream by now.
    fn record(&self, device: usize, event: EventHandle, stream: StreamHandle) -> Result<()>;

    /// Work enqueued in the stream from now on waits for the event, on the device.
    fn wait(&self, device: usize, stream: StreamHandle, event: EventHandle) -> Result<()>;

    /// True if all work that the event covers is complete. An error of that work is returned here.
    fn query(&self, device: usize, event: EventHandle) -> Result<bool>;

    /// Blocks until the work that the event covers is complete.
    fn synchronize(&self, device: usize, event: EventHandle) -> Result<()>;

    /// Time between two complete events that are timed.
    fn elapsed(&self, device: usize, from: EventHandle, to: EventHandle) -> Result<Duration>;

    /// # Safety
    /// Of this and the next three: both ranges are valid until the work is complete. No code writes the source or
    /// accesses the destination before that, unless a stream or an event orders it.
    unsafe fn copy_in(
        &self,
        device: usize,
        stream: StreamHandle,
        to: DeviceAddress,
        from: *const u8,
        len: usize,
    ) -> Result<()>;

    /// # Safety
    /// As [`copy_in`](Driver::copy_in).
    unsafe fn copy_out(
        &self,
        device: usize,
        stream: StreamHandle,
        to: *mut u8,
        from: DeviceAddress,
        len: usize,
    ) -> Result<()>;

    /// Between memories of devices: of one, or of two. `stream` belongs to `device`.
    ///
    /// # Safety
    /// As [`copy_in`](Driver::copy_in).
    unsafe fn copy_across(
        &self,
        device: usize,
        stream: StreamHandle,
        to: (usize, DeviceAddress),
        from: (usize, DeviceAddress),
        len: usize,
    ) -> Result<()>;

    /// # Safety
    /// As [`copy_in`](Driver::copy_in).
    unsafe fn fill(&self, device: usize, stream: StreamHandle, at: DeviceAddress, value: u8, len: usize) -> Result<()>;

    /// Compiles the program for the device, or returns the kernel that it compiled before.
    fn load(&self, device: usize, program: &'static Program) -> Result<KernelHandle>;

    /// # Safety
    /// The arguments are those that the kernel takes, `accesses` lists all memory that they point to, and it is valid
    /// until the work is complete, as for a copy.
    unsafe fn launch(
        &self,
        device: usize,
        stream: StreamHandle,
        kernel: KernelHandle,
        extent: Extent,
        arguments: &[Argument],
        accesses: &[Access],
    ) -> Result<()>;

    /// Begins a recording: work enqueued in the stream from now on, and in streams that wait for its events, is
    /// recorded instead of run.
    fn begin_capture(&self, device: usize, stream: StreamHandle) -> Result<()>;

    /// Ends a recording; the result can be launched.
    fn end_capture(&self, device: usize, stream: StreamHandle) -> Result<GraphHandle>;

    /// # Safety
    /// The memory that the recorded work names is valid until this launch is complete, as for a copy.
    unsafe fn launch_graph(&self, device: usize, stream: StreamHandle, graph: GraphHandle) -> Result<()>;

    /// # Safety
    /// The graph is not used afterwards, and no launch of it is incomplete.
    unsafe fn destroy_graph(&self, device: usize, graph: GraphHandle);

    /// What another process needs to see the allocation that begins at `at`.
    fn ipc_export(&self, device: usize, at: DeviceAddress) -> Result<IpcHandle>;

    /// The beginning of another process's allocation.
    fn ipc_open(&self, device: usize, handle: &IpcHandle) -> Result<DeviceAddress>;

    /// # Safety
    /// `at` was opened, and nothing that was enqueued uses it any more.
    unsafe fn ipc_close(&self, device: usize, at: DeviceAddress) -> Result<()>;

    /// Where the allocation begins that holds `at`, and its length.
    fn allocation_of(&self, device: usize, at: DeviceAddress) -> Result<(DeviceAddress, usize)>;

    /// The address at which the host reads and writes the memory of the device, where it can: the stand-in's host can.
    fn host_view(&self, at: DeviceAddress, len: usize) -> Option<*mut u8>;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(code: i32) -> DriverError {
        DriverError { call: "cuEventQuery", code, name: "CUDA_ERROR_X".to_owned(), text: "why".to_owned() }
    }

    #[test]
    fn an_error_names_the_call_and_whether_the_device_is_lost() {
        assert_eq!(error(700).to_string(), "cuEventQuery failed: CUDA_ERROR_X (700): why");
        for code in [700, 715, 716, 719] {
            assert!(error(code).is_sticky(), "{code}");
        }
        for code in [1, 2, 201, 600, 900] {
            assert!(!error(code).is_sticky(), "{code}");
        }
    }

    #[test]
    fn a_capability_reads_as_in_flags() {
        let description = Description {
            name: String::new(),
            uuid: String::new(),
            memory_bytes: 0,
            compute_capability: (8, 9),
            pci_address: String::new(),
            numa_node: None,
        };
        assert!((description.capability() - 8.9).abs() < 1e-9);
    }
}
