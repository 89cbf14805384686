//! The functions of CUDA's driver that the server calls, looked up when it is opened.
//!
//! cudarc finds the library and names its types. Its own functions are not used: they panic where a driver lacks one,
//! and return an enumeration, which must not hold the code of an error that is newer than it.

use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

use cudarc::driver::sys::{
    self, CUcontext, CUdevice, CUdeviceptr, CUevent, CUfunction, CUgraph, CUgraphExec, CUipcMemHandle, CUmodule,
    CUstream, CUuuid,
};

macro_rules! functions {
    ($($field:ident = $symbol:literal ( $($argument:ty),* );)*) => {
        /// Each returns a `CUresult`.
        #[derive(Clone, Copy)]
        pub(super) struct Functions {
            $(pub $field: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl Functions {
            /// All of them, or what is missing. Must be called only where the library was found.
            pub fn load() -> Result<Functions, String> {
                // SAFETY: it was loaded before, and stays.
                let library = unsafe { sys::culib() };
                Ok(Functions {
                    $($field: {
                        // SAFETY: the type is that of cuda.h for the symbol of this version.
                        let found = unsafe { library.get::<unsafe extern "C" fn($($argument),*) -> c_int>($symbol) };
                        *found.map_err(|error| format!("{}: {error}", stringify!($field)))?
                    },)*
                })
            }
        }
    };
}

functions! {
    init = b"cuInit"(c_uint);
    driver_version = b"cuDriverGetVersion"(*mut c_int);
    error_name = b"cuGetErrorName"(c_int, *mut *const c_char);
    error_text = b"cuGetErrorString"(c_int, *mut *const c_char);
    device_count = b"cuDeviceGetCount"(*mut c_int);
    device = b"cuDeviceGet"(*mut CUdevice, c_int);
    device_name = b"cuDeviceGetName"(*mut c_char, c_int, CUdevice);
    device_uuid = b"cuDeviceGetUuid_v2"(*mut CUuuid, CUdevice);
    device_memory = b"cuDeviceTotalMem_v2"(*mut usize, CUdevice);
    device_attribute = b"cuDeviceGetAttribute"(*mut c_int, c_int, CUdevice);
    device_pci_address = b"cuDeviceGetPCIBusId"(*mut c_char, c_int, CUdevice);
    can_access_peer = b"cuDeviceCanAccessPeer"(*mut c_int, CUdevice, CUdevice);
    retain_context = b"cuDevicePrimaryCtxRetain"(*mut CUcontext, CUdevice);
    release_context = b"cuDevicePrimaryCtxRelease_v2"(CUdevice);
    current_context = b"cuCtxGetCurrent"(*mut CUcontext);
    set_context = b"cuCtxSetCurrent"(CUcontext);
    enable_peer_access = b"cuCtxEnablePeerAccess"(CUcontext, c_uint);
    memory = b"cuMemGetInfo_v2"(*mut usize, *mut usize);
    allocate = b"cuMemAlloc_v2"(*mut CUdeviceptr, usize);
    free = b"cuMemFree_v2"(CUdeviceptr);
    address_range = b"cuMemGetAddressRange_v2"(*mut CUdeviceptr, *mut usize, CUdeviceptr);
    allocate_host = b"cuMemHostAlloc"(*mut *mut c_void, usize, c_uint);
    free_host = b"cuMemFreeHost"(*mut c_void);
    create_stream = b"cuStreamCreate"(*mut CUstream, c_uint);
    destroy_stream = b"cuStreamDestroy_v2"(CUstream);
    wait_event = b"cuStreamWaitEvent"(CUstream, CUevent, c_uint);
    begin_capture = b"cuStreamBeginCapture_v2"(CUstream, c_uint);
    exchange_capture_mode = b"cuThreadExchangeStreamCaptureMode"(*mut c_uint);
    end_capture = b"cuStreamEndCapture"(CUstream, *mut CUgraph);
    create_event = b"cuEventCreate"(*mut CUevent, c_uint);
    destroy_event = b"cuEventDestroy_v2"(CUevent);
    record_event = b"cuEventRecord"(CUevent, CUstream);
    query_event = b"cuEventQuery"(CUevent);
    synchronize_event = b"cuEventSynchronize"(CUevent);
    elapsed = b"cuEventElapsedTime"(*mut f32, CUevent, CUevent);
    copy_in = b"cuMemcpyHtoDAsync_v2"(CUdeviceptr, *const c_void, usize, CUstream);
    copy_out = b"cuMemcpyDtoHAsync_v2"(*mut c_void, CUdeviceptr, usize, CUstream);
    copy_within = b"cuMemcpyDtoDAsync_v2"(CUdeviceptr, CUdeviceptr, usize, CUstream);
    copy_peer = b"cuMemcpyPeerAsync"(CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, usize, CUstream);
    fill = b"cuMemsetD8Async"(CUdeviceptr, u8, usize, CUstream);
    load_module = b"cuModuleLoadDataEx"(*mut CUmodule, *const c_void, c_uint, *mut c_uint, *mut *mut c_void);
    unload_module = b"cuModuleUnload"(CUmodule);
    module_function = b"cuModuleGetFunction"(*mut CUfunction, CUmodule, *const c_char);
    launch = b"cuLaunchKernel"(
        CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream, *mut *mut c_void,
        *mut *mut c_void
    );
    instantiate = b"cuGraphInstantiateWithFlags"(*mut CUgraphExec, CUgraph, c_ulonglong);
    launch_graph = b"cuGraphLaunch"(CUgraphExec, CUstream);
    destroy_graph = b"cuGraphDestroy"(CUgraph);
    destroy_executable = b"cuGraphExecDestroy"(CUgraphExec);
    ipc_export = b"cuIpcGetMemHandle"(*mut CUipcMemHandle, CUdeviceptr);
    ipc_open = b"cuIpcOpenMemHandle_v2"(*mut CUdeviceptr, CUipcMemHandle, c_uint);
    ipc_close = b"cuIpcCloseMemHandle"(CUdeviceptr);
}
