//! CUDA's driver, opened where it is installed.
//!
//! Only the driver's own interface is used: the library is there wherever a GPU is, and no version of CUDA's runtime
//! has to be matched. Contexts are the primary ones, which ONNX Runtime and others use too; a library may leave another
//! one current on a thread, so that each call checks. The check reads a word of the thread.

mod context;
mod functions;

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::sys::{self, CUcontext, CUdevice, CUipcMemHandle};
use tracing::{debug, warn};

use self::context::Device;
use self::functions::Functions;
use super::driver::{
    Access, Argument, Description, DeviceAddress, Driver, DriverError, EventHandle, EventOptions, Extent, GraphHandle,
    IpcHandle, KernelHandle, Program, Result, StreamHandle,
};

/// `CUDA_ERROR_NOT_READY`: an answer, not an error.
const NOT_READY: c_int = 600;
const NO_DEVICE: c_int = 100;
const INVALID_DEVICE: c_int = 101;
const PEER_ACCESS_UNSUPPORTED: i32 = 217;
const PEER_ACCESS_ALREADY_ENABLED: i32 = 704;
/// `CU_STREAM_NON_BLOCKING`: the default stream, which libraries may use, orders nothing here.
const NON_BLOCKING: c_uint = 1;
/// `CU_EVENT_BLOCKING_SYNC` and `CU_EVENT_DISABLE_TIMING`.
const BLOCKING_SYNC: c_uint = 1;
const DISABLE_TIMING: c_uint = 2;
/// `CU_MEMHOSTALLOC_PORTABLE`: pinned for the contexts of all devices. Not write-combined: the host reads there.
const PORTABLE: c_uint = 1;
/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`.
const LAZY_PEER_ACCESS: c_uint = 1;
/// `CU_STREAM_CAPTURE_MODE_THREAD_LOCAL`: what other threads do meanwhile is no part of the recording.
const THREAD_LOCAL: c_uint = 1;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: c_uint = 2;
/// `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED`: another thread's recording forbids the query, and the error does not
/// concern the queried event.
const CAPTURE_UNSUPPORTED: c_int = 900;

thread_local! {
    /// True once recordings of other threads no longer restrict the calls of this one.
    static IS_RELAXED: Cell<bool> = const { Cell::new(false) };
}

/// The driver of this host; `None` if there is none.
pub fn open() -> Option<Arc<dyn Driver>> {
    // SAFETY: the search for the library loads and unloads it, which runs its initialisers.
    if !unsafe { sys::is_culib_present() } {
        debug!("there are no GPUs: CUDA's driver is not installed");
        return None;
    }
    match Functions::load().and_then(Cuda::open) {
        Ok(cuda) => Some(Arc::new(cuda)),
        Err(text) => {
            warn!("there are no GPUs: {text}");
            None
        }
    }
}

struct Cuda {
    functions: Functions,
    version: c_int,
    devices: Vec<Device>,
}

impl Cuda {
    fn open(functions: Functions) -> std::result::Result<Cuda, String> {
        let mut cuda = Cuda { functions, version: 0, devices: Vec::new() };
        cuda.find_devices().map_err(|error| error.to_string())?;
        Ok(cuda)
    }

    /// A driver without a device is valid: requests for a GPU then fail with the reason.
    fn find_devices(&mut self) -> Result<()> {
        let functions = self.functions;
        let (mut version, mut count) = (0, 0);
        // SAFETY: no function of the driver is called before, and the places are ours.
        unsafe {
            self.check("cuDriverGetVersion", (functions.driver_version)(&mut version))?;
            self.version = version;
            match (functions.init)(0) {
                NO_DEVICE => return Ok(()),
                code => self.check("cuInit", code)?,
            }
            self.check("cuDeviceGetCount", (functions.device_count)(&mut count))?;
        }
        for ordinal in 0..count {
            let mut handle: CUdevice = 0;
            // SAFETY: the place is ours.
            self.check("cuDeviceGet", unsafe { (functions.device)(&mut handle, ordinal) })?;
            self.devices.push(Device::new(handle));
        }
        Ok(())
    }

    /// Turns the code that a call returned into a result.
    fn check(&self, call: &'static str, code: c_int) -> Result<()> {
        if code == 0 { Ok(()) } else { Err(self.error(call, code)) }
    }

    fn error(&self, call: &'static str, code: c_int) -> DriverError {
        let text = |read: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int| {
            let mut text: *const c_char = ptr::null();
            // SAFETY: the place is ours; what it points to afterwards is the driver's for good.
            unsafe {
                let known = read(code, &mut text) == 0 && !text.is_null();
                known.then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
            }
        };
        let name = text(self.functions.error_name).unwrap_or_else(|| "CUDA_ERROR".to_owned());
        let text =
            text(self.functions.error_text).unwrap_or_else(|| "an error that this driver does not name".to_owned());
        DriverError { call, code, name, text }
    }

    fn device(&self, device: usize) -> Result<&Device> {
        self.devices.get(device).ok_or_else(|| self.error("cuDeviceGet", INVALID_DEVICE))
    }

    /// Exempts this thread, once, from the recordings of others: ONNX Runtime records in the process-wide mode, in
    /// which allocations and queries of events fail on every thread that is not exempt, and break the recording.
    fn relax(&self) -> Result<()> {
        if !IS_RELAXED.get() {
            let mut mode = RELAXED;
            // SAFETY: the place is ours; the driver writes the mode of before to it.
            let exchanged = unsafe { (self.functions.exchange_capture_mode)(&mut mode) };
            self.check("cuThreadExchangeStreamCaptureMode", exchanged)?;
            IS_RELAXED.set(true);
        }
        Ok(())
    }

    /// Makes the context current, if it is not.
    fn current(&self, device: usize) -> Result<CUcontext> {
        self.relax()?;
        let context = self.device(device)?.context(self)?;
        let mut current: CUcontext = ptr::null_mut();
        // SAFETY: the place is ours, and the context is retained.
        unsafe {
            let code = (self.functions.current_context)(&mut current);
            if code != 0 || current != context {
                self.check("cuCtxSetCurrent", (self.functions.set_context)(context))?;
            }
        }
        Ok(context)
    }

    /// A device for calls that belong to none: one that is in use, else the first.
    fn any_device(&self) -> usize {
        self.devices.iter().position(|device| device.context_in_use().is_some()).unwrap_or_default()
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        let functions = self.functions;
        self.devices.iter_mut().for_each(|device| device.close(&functions));
    }
}

/// Turns a handle into the driver's pointer.
fn pointer<T>(handle: u64) -> *mut T {
    ptr::with_exposed_provenance_mut(handle as usize)
}

fn number<T>(pointer: *mut T) -> u64 {
    pointer.expose_provenance() as u64
}

// SAFETY: CUDA keeps the contract: an event covers all work before it in its stream, and allocations do not overlap.
unsafe impl Driver for Cuda {
    fn name(&self) -> String {
        format!("CUDA {}.{}", self.version / 1000, self.version % 1000 / 10)
    }

    fn is_simulated(&self) -> bool {
        false
    }

    fn device_count(&self) -> usize {
        self.devices.len()
    }

    fn describe(&self, device: usize) -> Result<Description> {
        self.device(device)?.describe(self)
    }

    fn memory(&self, device: usize) -> Result<(u64, u64)> {
        self.current(device)?;
        let (mut free, mut total) = (0usize, 0usize);
        // SAFETY: the places are ours.
        self.check("cuMemGetInfo", unsafe { (self.functions.memory)(&mut free, &mut total) })?;
        Ok((free as u64, total as u64))
    }

    fn enter(&self, device: usize) -> Result<()> {
        self.current(device).map(|_| ())
    }

    fn context(&self, device: usize) -> *mut c_void {
        let context = self.device(device).and_then(|found| found.context(self));
        context.map_or(ptr::null_mut(), |context| context.cast())
    }

    fn enable_peer_access(&self, device: usize, peer: usize) -> Result<bool> {
        let (own, other) = (self.device(device)?.handle, self.device(peer)?.handle);
        let mut can = 0;
        // SAFETY: the place is ours.
        self.check("cuDeviceCanAccessPeer", unsafe { (self.functions.can_access_peer)(&mut can, own, other) })?;
        if can == 0 {
            return Ok(false);
        }
        let peer = self.device(peer)?.context(self)?;
        self.current(device)?;
        // SAFETY: both contexts are retained.
        match self.check("cuCtxEnablePeerAccess", unsafe { (self.functions.enable_peer_access)(peer, 0) }) {
            Err(error) if error.code == PEER_ACCESS_ALREADY_ENABLED => Ok(true),
            Err(error) if error.code == PEER_ACCESS_UNSUPPORTED => Ok(false),
            other => other.map(|()| true),
        }
    }

    fn allocate(&self, device: usize, len: usize) -> Result<DeviceAddress> {
        self.current(device)?;
        let mut at = 0;
        // SAFETY: the place is ours.
        self.check("cuMemAlloc", unsafe { (self.functions.allocate)(&mut at, len) })?;
        Ok(DeviceAddress(at))
    }

    unsafe fn free(&self, device: usize, at: DeviceAddress) -> Result<()> {
        self.current(device)?;
        // SAFETY: `at` came from `allocate`, and no work uses it: `Driver` requires that of the caller.
        self.check("cuMemFree", unsafe { (self.functions.free)(at.0) })
    }

    fn allocate_pinned(&self, len: usize) -> Result<*mut u8> {
        self.current(self.any_device())?;
        let mut at = ptr::null_mut();
        // SAFETY: the place is ours.
        self.check("cuMemHostAlloc", unsafe { (self.functions.allocate_host)(&mut at, len, PORTABLE) })?;
        Ok(at.cast())
    }

    unsafe fn free_pinned(&self, at: *mut u8) -> Result<()> {
        self.current(self.any_device())?;
        // SAFETY: `at` came from `allocate_pinned`, and no work uses it: `Driver` requires that of the caller.
        self.check("cuMemFreeHost", unsafe { (self.functions.free_host)(at.cast()) })
    }

    fn create_stream(&self, device: usize) -> Result<StreamHandle> {
        self.current(device)?;
        let mut stream = ptr::null_mut();
        // SAFETY: the place is ours.
        self.check("cuStreamCreate", unsafe { (self.functions.create_stream)(&mut stream, NON_BLOCKING) })?;
        Ok(StreamHandle(number(stream)))
    }

    unsafe fn destroy_stream(&self, device: usize, stream: StreamHandle) {
        if self.current(device).is_ok() {
            // SAFETY: by the contract of this function. An error is one of earlier work, and is reported where that is
            // awaited.
            unsafe { (self.functions.destroy_stream)(pointer(stream.0)) };
        }
    }

    fn stream_pointer(&self, stream: StreamHandle) -> *mut c_void {
        pointer(stream.0)
    }

    fn create_event(&self, device: usize, options: EventOptions) -> Result<EventHandle> {
        self.current(device)?;
        let sleeps = if options.sleeps { BLOCKING_SYNC } else { 0 };
        let timing = if options.is_timed { 0 } else { DISABLE_TIMING };
        let mut event = ptr::null_mut();
        // SAFETY: the place is ours.
        self.check("cuEventCreate", unsafe { (self.functions.create_event)(&mut event, sleeps | timing) })?;
        Ok(EventHandle(number(event)))
    }

    unsafe fn destroy_event(&self, device: usize, event: EventHandle) {
        if self.current(device).is_ok() {
            // SAFETY: the event came from `create_event` and is not used afterwards: `Driver` requires that of the
            // caller.
            unsafe { (self.functions.destroy_event)(pointer(event.0)) };
        }
    }

    fn record(&self, device: usize, event: EventHandle, stream: StreamHandle) -> Result<()> {
        self.current(device)?;
        // SAFETY: handles live until they are destroyed, by the contract of the function that destroys them.
        self.check("cuEventRecord", unsafe { (self.functions.record_event)(pointer(event.0), pointer(stream.0)) })
    }

    fn wait(&self, device: usize, stream: StreamHandle, event: EventHandle) -> Result<()> {
        self.current(device)?;
        // SAFETY: handles live until they are destroyed, by the contract of the function that destroys them.
        self.check("cuStreamWaitEvent", unsafe { (self.functions.wait_event)(pointer(stream.0), pointer(event.0), 0) })
    }

    fn query(&self, device: usize, event: EventHandle) -> Result<bool> {
        self.current(device)?;
        // SAFETY: handles live until they are destroyed, by the contract of the function that destroys them.
        match unsafe { (self.functions.query_event)(pointer(event.0)) } {
            NOT_READY | CAPTURE_UNSUPPORTED => Ok(false),
            code => self.check("cuEventQuery", code).map(|()| true),
        }
    }

    fn synchronize(&self, device: usize, event: EventHandle) -> Result<()> {
        self.current(device)?;
        // SAFETY: handles live until they are destroyed, by the contract of the function that destroys them.
        self.check("cuEventSynchronize", unsafe { (self.functions.synchronize_event)(pointer(event.0)) })
    }

    fn elapsed(&self, device: usize, from: EventHandle, to: EventHandle) -> Result<Duration> {
        self.current(device)?;
        let mut elapsed_ms = 0f32;
        // SAFETY: as above, and the place is ours.
        let code = unsafe { (self.functions.elapsed)(&mut elapsed_ms, pointer(from.0), pointer(to.0)) };
        self.check("cuEventElapsedTime", code)?;
        Ok(Duration::try_from_secs_f64(f64::from(elapsed_ms) / 1000.0).unwrap_or_default())
    }

    unsafe fn copy_in(
        &self,
        device: usize,
        stream: StreamHandle,
        to: DeviceAddress,
        from: *const u8,
        len: usize,
    ) -> Result<()> {
        self.current(device)?;
        // SAFETY: by the contract of this function; so for all work below.
        let copied = unsafe { (self.functions.copy_in)(to.0, from.cast(), len, pointer(stream.0)) };
        self.check("cuMemcpyHtoDAsync", copied)
    }

    unsafe fn copy_out(
        &self,
        device: usize,
        stream: StreamHandle,
        to: *mut u8,
        from: DeviceAddress,
        len: usize,
    ) -> Result<()> {
        self.current(device)?;
        // SAFETY: both ranges stay valid until the work is complete: `Driver` requires that of the caller.
        let copied = unsafe { (self.functions.copy_out)(to.cast(), from.0, len, pointer(stream.0)) };
        self.check("cuMemcpyDtoHAsync", copied)
    }

    unsafe fn copy_across(
        &self,
        device: usize,
        stream: StreamHandle,
        to: (usize, DeviceAddress),
        from: (usize, DeviceAddress),
        len: usize,
    ) -> Result<()> {
        self.current(device)?;
        if to.0 == from.0 {
            // SAFETY: both ranges stay valid until the work is complete: `Driver` requires that of the caller.
            let copied = unsafe { (self.functions.copy_within)(to.1.0, from.1.0, len, pointer(stream.0)) };
            return self.check("cuMemcpyDtoDAsync", copied);
        }
        let (there, here) = (self.device(to.0)?.context(self)?, self.device(from.0)?.context(self)?);
        // SAFETY: as above, and both contexts are retained.
        let copied = unsafe { (self.functions.copy_peer)(to.1.0, there, from.1.0, here, len, pointer(stream.0)) };
        self.check("cuMemcpyPeerAsync", copied)
    }

    unsafe fn fill(&self, device: usize, stream: StreamHandle, at: DeviceAddress, value: u8, len: usize) -> Result<()> {
        self.current(device)?;
        // SAFETY: the range stays valid until the work is complete: `Driver` requires that of the caller.
        self.check("cuMemsetD8Async", unsafe { (self.functions.fill)(at.0, value, len, pointer(stream.0)) })
    }

    fn load(&self, device: usize, program: &'static Program) -> Result<KernelHandle> {
        self.current(device)?;
        self.device(device)?.load(self, program)
    }

    unsafe fn launch(
        &self,
        device: usize,
        stream: StreamHandle,
        kernel: KernelHandle,
        extent: Extent,
        arguments: &[Argument],
        _accesses: &[Access],
    ) -> Result<()> {
        self.current(device)?;
        // The driver copies what these point to before the call returns, and does not write it.
        let mut places: Vec<*mut c_void> = arguments
            .iter()
            .map(|argument| match argument {
                Argument::Address(address) => ptr::from_ref(&address.0).cast_mut().cast(),
                Argument::U32(value) => ptr::from_ref(value).cast_mut().cast(),
                Argument::U64(value) => ptr::from_ref(value).cast_mut().cast(),
                Argument::F32(value) => ptr::from_ref(value).cast_mut().cast(),
            })
            .collect();
        let Extent { blocks, threads } = extent;
        let (function, stream) = (pointer(kernel.0), pointer(stream.0));
        // SAFETY: as above; each place holds an argument of the size that the kernel takes.
        let launched = unsafe {
            let (places, none) = (places.as_mut_ptr(), ptr::null_mut());
            (self.functions.launch)(function, blocks, 1, 1, threads, 1, 1, 0, stream, places, none)
        };
        self.check("cuLaunchKernel", launched)
    }

    fn begin_capture(&self, device: usize, stream: StreamHandle) -> Result<()> {
        self.current(device)?;
        // SAFETY: handles live until they are destroyed.
        let begun = unsafe { (self.functions.begin_capture)(pointer(stream.0), THREAD_LOCAL) };
        self.check("cuStreamBeginCapture", begun)
    }

    fn end_capture(&self, device: usize, stream: StreamHandle) -> Result<GraphHandle> {
        self.current(device)?;
        let (mut graph, mut executable) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: handles live until they are destroyed, and the places are ours. The executable copies the graph.
        unsafe {
            let ended = (self.functions.end_capture)(pointer(stream.0), &mut graph);
            self.check("cuStreamEndCapture", ended)?;
            let instantiated = (self.functions.instantiate)(&mut executable, graph, 0);
            (self.functions.destroy_graph)(graph);
            self.check("cuGraphInstantiate", instantiated)?;
        }
        Ok(GraphHandle(number(executable)))
    }

    unsafe fn launch_graph(&self, device: usize, stream: StreamHandle, graph: GraphHandle) -> Result<()> {
        self.current(device)?;
        // SAFETY: what the graph names stays valid until its work is complete: `Driver` requires that of the caller.
        self.check("cuGraphLaunch", unsafe { (self.functions.launch_graph)(pointer(graph.0), pointer(stream.0)) })
    }

    unsafe fn destroy_graph(&self, device: usize, graph: GraphHandle) {
        if self.current(device).is_ok() {
            // SAFETY: the graph came from `end_capture` and is not used afterwards: `Driver` requires that of the
            // caller.
            unsafe { (self.functions.destroy_executable)(pointer(graph.0)) };
        }
    }

    fn ipc_export(&self, device: usize, at: DeviceAddress) -> Result<IpcHandle> {
        self.current(device)?;
        let mut handle = CUipcMemHandle { reserved: [0; 64] };
        // SAFETY: the place is ours.
        self.check("cuIpcGetMemHandle", unsafe { (self.functions.ipc_export)(&mut handle, at.0) })?;
        Ok(handle.reserved.map(|byte| byte as u8))
    }

    fn ipc_open(&self, device: usize, handle: &IpcHandle) -> Result<DeviceAddress> {
        self.current(device)?;
        let handle = CUipcMemHandle { reserved: handle.map(|byte| byte as c_char) };
        let mut at = 0;
        // SAFETY: the place is ours; the driver checks the handle.
        self.check("cuIpcOpenMemHandle", unsafe { (self.functions.ipc_open)(&mut at, handle, LAZY_PEER_ACCESS) })?;
        Ok(DeviceAddress(at))
    }

    unsafe fn ipc_close(&self, device: usize, at: DeviceAddress) -> Result<()> {
        self.current(device)?;
        // SAFETY: `at` came from `ipc_open`, and no work uses it: `Driver` requires that of the caller.
        self.check("cuIpcCloseMemHandle", unsafe { (self.functions.ipc_close)(at.0) })
    }

    fn allocation_of(&self, device: usize, at: DeviceAddress) -> Result<(DeviceAddress, usize)> {
        self.current(device)?;
        let (mut base, mut len) = (0, 0usize);
        // SAFETY: the places are ours.
        self.check("cuMemGetAddressRange", unsafe { (self.functions.address_range)(&mut base, &mut len, at.0) })?;
        Ok((DeviceAddress(base), len))
    }

    fn host_view(&self, _at: DeviceAddress, _len: usize) -> Option<*mut u8> {
        None
    }
}

#[cfg(test)]
mod device_tests;
#[cfg(test)]
mod tests;
