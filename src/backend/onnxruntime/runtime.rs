//! The started library: its table of functions, its environment, and its errors as Rust values.
//!
//! Everything here lives as long as the process. ONNX Runtime's environment owns thread pools and loggers that its
//! sessions use, and sessions end on whatever thread drops them last, so an environment that never ends is the only
//! safe order of destruction.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};

use ort::sys;

use nereid_request::Status;

/// An error as ONNX Runtime reports it (contract/backends.md section 4).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("onnx runtime error {code}: {text}")]
pub struct RuntimeError {
    /// `OrtErrorCode`; newer libraries may have more than the binding does.
    pub code: i32,
    pub text: String,
}

impl RuntimeError {
    /// An error that this side detected before or after a call, with the code for a general failure.
    pub fn here(text: impl Into<String>) -> RuntimeError {
        RuntimeError { code: sys::OrtErrorCode::ORT_FAIL as i32, text: text.into() }
    }
}

impl From<RuntimeError> for Status {
    fn from(error: RuntimeError) -> Status {
        Status::internal(error.to_string())
    }
}

/// Thread counts of a pool that all sessions share; 0 leaves the library's default of one per core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GlobalThreads {
    pub intra_op: i32,
    pub inter_op: i32,
    /// Whether threads of the pool may spin before they sleep.
    pub may_spin: bool,
}

/// Options that apply to the whole process.
#[derive(Debug, Clone, Copy, Default)]
pub struct RuntimeOptions {
    /// `enable-global-threadpool`
    pub global_threads: Option<GlobalThreads>,
}

/// ONNX Runtime, opened and started.
pub struct Runtime {
    pub(super) api: &'static sys::OrtApi,
    environment: NonNull<sys::OrtEnv>,
    /// Describes memory of this process, for tensors over the server's buffers.
    memory: NonNull<sys::OrtMemoryInfo>,
    /// The library's own allocator for names and string tensors; never released.
    allocator: NonNull<sys::OrtAllocator>,
    path: PathBuf,
    version: String,
    has_global_threads: bool,
}

// SAFETY: the environment, the memory description and the default allocator are immutable or locked inside the
// library, whose interface allows their use from any thread.
unsafe impl Send for Runtime {}
// SAFETY: the environment, the memory description and the default allocator are immutable or locked inside the library,
// whose interface allows their use from any thread.
unsafe impl Sync for Runtime {}

impl Runtime {
    pub fn version(&self) -> &str {
        &self.version
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether sessions share one pool instead of having threads of their own.
    pub fn has_global_threads(&self) -> bool {
        self.has_global_threads
    }

    pub(super) fn start(
        api: &'static sys::OrtApi,
        path: PathBuf,
        version: String,
        options: &RuntimeOptions,
    ) -> Result<Runtime, RuntimeError> {
        let environment = create_environment(api, options)?;
        let mut memory = ptr::null_mut();
        // SAFETY: writes a handle to the given place.
        let status = unsafe {
            (api.CreateCpuMemoryInfo)(
                sys::OrtAllocatorType::OrtDeviceAllocator,
                sys::OrtMemType::OrtMemTypeDefault,
                &mut memory,
            )
        };
        check(api, status)?;
        let mut allocator = ptr::null_mut();
        // SAFETY: writes a pointer to a static allocator to the given place.
        check(api, unsafe { (api.GetAllocatorWithDefaultOptions)(&mut allocator) })?;
        Ok(Runtime {
            api,
            environment,
            memory: filled(memory)?,
            allocator: filled(allocator)?,
            path,
            version,
            has_global_threads: options.global_threads.is_some(),
        })
    }

    /// The same library with another table of its functions.
    #[cfg(test)]
    pub(super) fn by(&self, api: &'static sys::OrtApi) -> Runtime {
        let Runtime { environment, memory, allocator, has_global_threads, .. } = *self;
        let (path, version) = (self.path.clone(), self.version.clone());
        Runtime { api, environment, memory, allocator, path, version, has_global_threads }
    }

    /// Turns the status of a call into a result; frees it.
    pub(super) fn check(&self, status: sys::OrtStatusPtr) -> Result<(), RuntimeError> {
        check(self.api, status)
    }

    pub(super) fn environment(&self) -> *const sys::OrtEnv {
        self.environment.as_ptr()
    }

    pub(super) fn memory(&self) -> *const sys::OrtMemoryInfo {
        self.memory.as_ptr()
    }

    pub(super) fn allocator(&self) -> *mut sys::OrtAllocator {
        self.allocator.as_ptr()
    }

    /// The providers that the library was built with, in its own order of preference.
    pub fn available_providers(&self) -> Result<Vec<String>, RuntimeError> {
        let (mut list, mut count) = (ptr::null_mut(), 0);
        // SAFETY: a list of strings, and its length, are written to the given places.
        self.check(unsafe { (self.api.GetAvailableProviders)(&mut list, &mut count) })?;
        let list = filled(list)?.as_ptr();
        let names = (0..usize::try_from(count).unwrap_or(0)).map(|at| {
            // SAFETY: the list has that many strings, which are alive until it is released.
            let name = unsafe { CStr::from_ptr(list.add(at).read()) };
            name.to_string_lossy().into_owned()
        });
        let names = names.collect();
        // SAFETY: made by the call above, and released once.
        self.check(unsafe { (self.api.ReleaseAvailableProviders)(list, count) })?;
        Ok(names)
    }

    /// Takes ownership of a string that the library allocated with [`Runtime::allocator`].
    ///
    /// # Safety
    /// `text` is null or such a string, and is not used afterwards.
    pub(super) unsafe fn take_string(&self, text: *mut c_char) -> Result<String, RuntimeError> {
        let text = filled(text)?;
        // SAFETY: NUL-terminated by contract.
        let copy = unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned();
        // SAFETY: it came from this allocator and has no other owner.
        self.check(unsafe { (self.api.AllocatorFree)(self.allocator(), text.as_ptr().cast()) })?;
        Ok(copy)
    }
}

impl std::fmt::Debug for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ONNX Runtime {} from {}", self.version, self.path.display())
    }
}

/// The handle that a successful call left in an out-parameter; a null one is an error, not a crash.
pub(super) fn filled<T>(pointer: *mut T) -> Result<NonNull<T>, RuntimeError> {
    NonNull::new(pointer).ok_or_else(|| RuntimeError::here("the library returned no object"))
}

fn check(api: &sys::OrtApi, status: sys::OrtStatusPtr) -> Result<(), RuntimeError> {
    let Some(status) = NonNull::new(status.0) else { return Ok(()) };
    // The codes grow with the library's versions, and a Rust enum must not hold a value it does not declare.
    type GetCode = unsafe extern "system" fn(*const sys::OrtStatus) -> i32;
    type Declared = unsafe extern "system" fn(*const sys::OrtStatus) -> sys::OrtErrorCode;
    // SAFETY: OrtErrorCode is repr(i32), so both types describe the same call.
    let get_code = unsafe { std::mem::transmute::<Declared, GetCode>(api.GetErrorCode) };
    // SAFETY: the status is alive until it is released below.
    let (code, message) = unsafe { (get_code(status.as_ptr()), (api.GetErrorMessage)(status.as_ptr())) };
    let text = match message.is_null() {
        true => String::new(),
        // SAFETY: a NUL-terminated string that belongs to the status.
        false => unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned(),
    };
    // SAFETY: every non-null status is the caller's to release, once.
    unsafe { (api.ReleaseStatus)(status.as_ptr()) };
    Err(RuntimeError { code, text })
}

fn create_environment(
    api: &'static sys::OrtApi,
    options: &RuntimeOptions,
) -> Result<NonNull<sys::OrtEnv>, RuntimeError> {
    let id = c"nereid".as_ptr();
    let mut environment = ptr::null_mut();
    match options.global_threads {
        None => {
            // SAFETY: the logging function lives as long as the program and takes no state.
            let status = unsafe {
                (api.CreateEnvWithCustomLogger)(logger(), ptr::null_mut(), log_level(), id, &mut environment)
            };
            check(api, status)?;
        }
        Some(threads) => {
            let mut pool = ptr::null_mut();
            // SAFETY: writes a handle to the given place.
            check(api, unsafe { (api.CreateThreadingOptions)(&mut pool) })?;
            let pool = filled(pool)?.as_ptr();
            // SAFETY: the handle is alive until it is released below; the environment copies what it needs.
            let result = unsafe {
                check(api, (api.SetGlobalIntraOpNumThreads)(pool, threads.intra_op))
                    .and_then(|()| check(api, (api.SetGlobalInterOpNumThreads)(pool, threads.inter_op)))
                    .and_then(|()| check(api, (api.SetGlobalSpinControl)(pool, c_int::from(threads.may_spin))))
                    .and_then(|()| {
                        let status = (api.CreateEnvWithCustomLoggerAndGlobalThreadPools)(
                            logger(),
                            ptr::null_mut(),
                            log_level(),
                            id,
                            pool,
                            &mut environment,
                        );
                        check(api, status)
                    })
            };
            // SAFETY: created above and released once.
            unsafe { (api.ReleaseThreadingOptions)(pool) };
            result?;
        }
    }
    let environment = filled(environment)?;
    // The server reports its use to no one. Builds without telemetry return an error without significance. SAFETY: the
    // environment was just created.
    let _ = check(api, unsafe { (api.DisableTelemetryEvents)(environment.as_ptr()) });
    Ok(environment)
}

/// Verbose if the server is, else warnings if it prints them, else errors (contract/backends.md section 4).
fn log_level() -> sys::OrtLoggingLevel {
    if tracing::enabled!(target: "onnxruntime", tracing::Level::DEBUG) {
        sys::OrtLoggingLevel::ORT_LOGGING_LEVEL_VERBOSE
    } else if tracing::enabled!(target: "onnxruntime", tracing::Level::WARN) {
        sys::OrtLoggingLevel::ORT_LOGGING_LEVEL_WARNING
    } else {
        sys::OrtLoggingLevel::ORT_LOGGING_LEVEL_ERROR
    }
}

type LogFunction =
    unsafe extern "system" fn(*mut c_void, c_int, *const c_char, *const c_char, *const c_char, *const c_char);

fn logger() -> sys::OrtLoggingFunction {
    // SAFETY: the severity is repr(i32) on the other side; as a number it may have values that this build does not
    // define.
    unsafe { std::mem::transmute::<LogFunction, sys::OrtLoggingFunction>(log) }
}

thread_local! {
    /// What the library logs in this thread is about an attempt that may fail.
    static IS_TRIAL: Cell<bool> = const { Cell::new(false) };
}

/// Calls `attempt`, whose failure is no error of the server: what the library logs about it in this thread is for
/// verbose logs only.
pub fn on_trial<T>(attempt: impl FnOnce() -> T) -> T {
    struct End;
    impl Drop for End {
        fn drop(&mut self) {
            IS_TRIAL.set(false);
        }
    }
    IS_TRIAL.set(true);
    let _end = End;
    attempt()
}

/// Called by the library on any of its threads. Never unwinds into it.
unsafe extern "system" fn log(
    _state: *mut c_void,
    severity: c_int,
    category: *const c_char,
    _id: *const c_char,
    location: *const c_char,
    message: *const c_char,
) {
    let text = |at: *const c_char| match at.is_null() {
        true => std::borrow::Cow::Borrowed(""),
        // SAFETY: NUL-terminated strings that outlive this call, by the interface's contract.
        false => unsafe { CStr::from_ptr(at) }.to_string_lossy(),
    };
    let (category, location, message) = (text(category), text(location), text(message));
    let event = std::panic::AssertUnwindSafe(|| match level_of(severity) {
        tracing::Level::ERROR => tracing::error!(target: "onnxruntime", "[{category} {location}] {message}"),
        tracing::Level::WARN => tracing::warn!(target: "onnxruntime", "[{category} {location}] {message}"),
        _ => tracing::debug!(target: "onnxruntime", "[{category} {location}] {message}"),
    });
    let _ = std::panic::catch_unwind(event);
}

/// The level of what the library logs with this `OrtLoggingLevel` in this thread.
fn level_of(severity: c_int) -> tracing::Level {
    match severity {
        _ if IS_TRIAL.get() => tracing::Level::DEBUG,
        0 | 1 => tracing::Level::DEBUG,
        2 => tracing::Level::WARN,
        _ => tracing::Level::ERROR,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_tried_logs_no_errors() {
        let levels = || [1, 2, 3, 4].map(level_of);
        use tracing::Level;
        let usual = [Level::DEBUG, Level::WARN, Level::ERROR, Level::ERROR];
        assert_eq!(levels(), usual);
        assert_eq!(on_trial(levels), [Level::DEBUG; 4]);
        assert!(std::panic::catch_unwind(|| on_trial(|| panic!("an attempt"))).is_err());
        assert_eq!(levels(), usual, "also after a panic");
    }
}
