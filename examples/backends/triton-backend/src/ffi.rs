//! The functions of include/triton/core that this layer calls, declared by hand. Objects of the server are plain
//! pointers here; `handles.rs` gives them types.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};

use crate::error::{Code, Error};

/// The version that these declarations are of.
const VERSION: (u32, u32) = (1, 19);

pub const MEMORY_CPU: u32 = 0;
pub const MEMORY_CPU_PINNED: u32 = 1;
pub const KIND_CPU: u32 = 1;
pub const RELEASE_ALL: u32 = 1;
pub const FINAL: u32 = 1;
const LOG_ERROR: u32 = 2;

/// `TRITONSERVER_Error*`; NULL is success.
pub type Failure = *mut c_void;
pub type Handle = *mut c_void;

unsafe extern "C" {
    fn TRITONSERVER_ErrorNew(code: u32, message: *const c_char) -> Failure;
    fn TRITONSERVER_ErrorDelete(error: Failure);
    fn TRITONSERVER_ErrorCode(error: Failure) -> u32;
    fn TRITONSERVER_ErrorMessage(error: Failure) -> *const c_char;
    fn TRITONSERVER_LogMessage(level: u32, file: *const c_char, line: c_int, message: *const c_char) -> Failure;
    pub fn TRITONSERVER_MessageNewFromSerializedJson(message: *mut Handle, base: *const c_char, size: usize)
    -> Failure;
    pub fn TRITONSERVER_MessageSerializeToJson(message: Handle, base: *mut *const c_char, size: *mut usize) -> Failure;
    pub fn TRITONSERVER_MessageDelete(message: Handle) -> Failure;

    fn TRITONBACKEND_ApiVersion(major: *mut u32, minor: *mut u32) -> Failure;
    pub fn TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(
        attributes: Handle,
        kind: u32,
        count: u64,
        devices: *const u64,
        device_count: u64,
    ) -> Failure;
    pub fn TRITONBACKEND_BackendAttributeSetParallelModelInstanceLoading(attributes: Handle, enabled: bool) -> Failure;

    pub fn TRITONBACKEND_ModelAutoCompleteConfig(model: Handle, enabled: *mut bool) -> Failure;
    pub fn TRITONBACKEND_ModelConfig(model: Handle, version: u32, message: *mut Handle) -> Failure;
    pub fn TRITONBACKEND_ModelSetConfig(model: Handle, version: u32, message: Handle) -> Failure;
    pub fn TRITONBACKEND_ModelState(model: Handle, state: *mut Handle) -> Failure;
    pub fn TRITONBACKEND_ModelSetState(model: Handle, state: Handle) -> Failure;
    pub fn TRITONBACKEND_ModelInstanceModel(instance: Handle, model: *mut Handle) -> Failure;
    pub fn TRITONBACKEND_ModelInstanceState(instance: Handle, state: *mut Handle) -> Failure;
    pub fn TRITONBACKEND_ModelInstanceSetState(instance: Handle, state: Handle) -> Failure;
    pub fn TRITONBACKEND_ModelInstanceReportStatistics(
        instance: Handle,
        request: Handle,
        success: bool,
        exec_start_ns: u64,
        compute_start_ns: u64,
        compute_end_ns: u64,
        exec_end_ns: u64,
    ) -> Failure;
    pub fn TRITONBACKEND_ModelInstanceReportBatchStatistics(
        instance: Handle,
        batch_size: u64,
        exec_start_ns: u64,
        compute_start_ns: u64,
        compute_end_ns: u64,
        exec_end_ns: u64,
    ) -> Failure;

    pub fn TRITONBACKEND_ModelInstanceResponseStatisticsNew(statistics: *mut Handle) -> Failure;
    pub fn TRITONBACKEND_ModelInstanceResponseStatisticsDelete(statistics: Handle) -> Failure;
    pub fn TRITONBACKEND_ModelInstanceResponseStatisticsSetModelInstance(
        statistics: Handle,
        instance: Handle,
    ) -> Failure;
    pub fn TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseFactory(
        statistics: Handle,
        factory: Handle,
    ) -> Failure;
    pub fn TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseStart(statistics: Handle, at_ns: u64) -> Failure;
    pub fn TRITONBACKEND_ModelInstanceResponseStatisticsSetComputeOutputStart(
        statistics: Handle,
        at_ns: u64,
    ) -> Failure;
    pub fn TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseEnd(statistics: Handle, at_ns: u64) -> Failure;
    pub fn TRITONBACKEND_ModelInstanceResponseStatisticsSetError(statistics: Handle, error: Failure) -> Failure;
    pub fn TRITONBACKEND_ModelInstanceReportResponseStatistics(statistics: Handle) -> Failure;

    pub fn TRITONBACKEND_RequestIsCancelled(request: Handle, is_cancelled: *mut bool) -> Failure;
    pub fn TRITONBACKEND_RequestInput(request: Handle, name: *const c_char, input: *mut Handle) -> Failure;
    pub fn TRITONBACKEND_RequestRelease(request: Handle, flags: u32) -> Failure;
    pub fn TRITONBACKEND_InputProperties(
        input: Handle,
        name: *mut *const c_char,
        datatype: *mut u32,
        shape: *mut *const i64,
        rank: *mut u32,
        bytes: *mut u64,
        buffers: *mut u32,
    ) -> Failure;
    pub fn TRITONBACKEND_InputBuffer(
        input: Handle,
        index: u32,
        buffer: *mut *const c_void,
        bytes: *mut u64,
        memory_type: *mut u32,
        memory_type_id: *mut i64,
    ) -> Failure;

    pub fn TRITONBACKEND_ResponseFactoryNew(factory: *mut Handle, request: Handle) -> Failure;
    pub fn TRITONBACKEND_ResponseFactoryDelete(factory: Handle) -> Failure;
    pub fn TRITONBACKEND_ResponseFactoryIsCancelled(factory: Handle, is_cancelled: *mut bool) -> Failure;
    pub fn TRITONBACKEND_ResponseFactorySendFlags(factory: Handle, flags: u32) -> Failure;
    pub fn TRITONBACKEND_ResponseNewFromFactory(response: *mut Handle, factory: Handle) -> Failure;
    pub fn TRITONBACKEND_ResponseDelete(response: Handle) -> Failure;
    pub fn TRITONBACKEND_ResponseOutput(
        response: Handle,
        output: *mut Handle,
        name: *const c_char,
        datatype: u32,
        shape: *const i64,
        rank: u32,
    ) -> Failure;
    pub fn TRITONBACKEND_OutputBuffer(
        output: Handle,
        buffer: *mut *mut c_void,
        bytes: u64,
        memory_type: *mut u32,
        memory_type_id: *mut i64,
    ) -> Failure;
    pub fn TRITONBACKEND_ResponseSend(response: Handle, flags: u32, error: Failure) -> Failure;
}

/// Takes over an error that the server returned.
pub fn check(failure: Failure) -> Result<(), Error> {
    if failure.is_null() {
        return Ok(());
    }
    // SAFETY: errors belong to whom they are returned to, and the text lives as long as the error.
    unsafe {
        let message = CStr::from_ptr(TRITONSERVER_ErrorMessage(failure)).to_string_lossy().into_owned();
        let code = Code::from_number(TRITONSERVER_ErrorCode(failure));
        TRITONSERVER_ErrorDelete(failure);
        Err(Error { code, message })
    }
}

/// An error of ours as the server's. It belongs to whom it is given.
pub fn raise(error: &Error) -> Failure {
    let message = c_string(&error.message);
    // SAFETY: the server copies the text.
    unsafe { TRITONSERVER_ErrorNew(error.code as u32, message.as_ptr()) }
}

/// Runs `action` with an error of ours as the server's, for calls that do not take it over.
pub fn with_raised<T>(error: Option<&Error>, action: impl FnOnce(Failure) -> T) -> T {
    let failure = error.map_or(std::ptr::null_mut(), raise);
    let result = action(failure);
    if !failure.is_null() {
        // SAFETY: made above, and by contract not taken over.
        unsafe { TRITONSERVER_ErrorDelete(failure) }
    }
    result
}

/// Logs what cannot be passed on.
pub fn tell(result: Result<(), Error>) {
    let Err(error) = result else { return };
    let message = c_string(&error.message);
    // SAFETY: the texts live through the call.
    let failure = unsafe { TRITONSERVER_LogMessage(LOG_ERROR, c"triton-backend".as_ptr(), 0, message.as_ptr()) };
    // A log that fails has nobody to be told to.
    let _ = check(failure);
}

/// A text for C, which ends at the first NUL there.
pub fn c_string(text: &str) -> CString {
    CString::new(text.replace('\0', " ")).unwrap_or_default()
}

/// Whether the server offers what this was written against.
pub fn check_version() -> Result<(), Error> {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both can be written.
    check(unsafe { TRITONBACKEND_ApiVersion(&mut major, &mut minor) })?;
    if major == VERSION.0 && minor >= VERSION.1 {
        return Ok(());
    }
    let (needed_major, needed_minor) = VERSION;
    Err(Error::new(
        Code::Unsupported,
        format!(
            "the backend needs version {needed_major}.{needed_minor} of the backend interface or a later minor one, \
             and the server offers {major}.{minor}"
        ),
    ))
}

#[repr(C)]
struct TimeSpec {
    seconds: i64,
    nanoseconds: i64,
}

/// `CLOCK_MONOTONIC` of Linux, whose zero `std::time::Instant` does not show.
pub fn monotonic_ns() -> u64 {
    const CLOCK_MONOTONIC: c_int = 1;
    unsafe extern "C" {
        fn clock_gettime(clock: c_int, time: *mut TimeSpec) -> c_int;
    }
    let mut time = TimeSpec { seconds: 0, nanoseconds: 0 };
    // SAFETY: `TimeSpec` is what 64-bit Linux writes.
    unsafe { clock_gettime(CLOCK_MONOTONIC, &mut time) };
    time.seconds as u64 * 1_000_000_000 + time.nanoseconds as u64
}
