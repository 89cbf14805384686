//! The options of sessions and runs, as the library's own objects.

#![allow(unsafe_code)]

use std::ffi::{CString, c_int};
use std::ptr::{self, NonNull};

use ort::sys;

use super::append::{OnGpu, append};
use super::runtime::{Runtime, RuntimeError, filled};
use super::settings::{RETURNS_EARLY, SessionSettings};

/// `OrtSessionOptions`, alive while a session is created.
pub(super) struct SessionOptions {
    runtime: &'static Runtime,
    at: NonNull<sys::OrtSessionOptions>,
}

impl SessionOptions {
    pub fn new(
        runtime: &'static Runtime,
        settings: &SessionSettings,
        gpu: Option<OnGpu<'_>>,
    ) -> Result<SessionOptions, RuntimeError> {
        let mut options = ptr::null_mut();
        // SAFETY: a handle is written to the given place.
        runtime.check(unsafe { (runtime.api.CreateSessionOptions)(&mut options) })?;
        let options = SessionOptions { runtime, at: filled(options)? };
        options.set_execution(settings)?;
        options.set_memory(settings)?;
        options.add_entries(settings)?;
        if let Some(OnGpu { lanes, providers: Some(providers) }) = gpu {
            // SAFETY: the options are alive, and a session keeps the streams of its device.
            unsafe { append(runtime, options.at, providers, lanes.compute().as_ptr()) }?;
        }
        options.add_extensions(settings)?;
        Ok(options)
    }

    pub fn as_ptr(&self) -> *const sys::OrtSessionOptions {
        self.at.as_ptr()
    }

    fn set_execution(&self, settings: &SessionSettings) -> Result<(), RuntimeError> {
        let (runtime, api, at) = (self.runtime, self.runtime.api, self.at.as_ptr());
        let mode = match settings.parallel {
            true => sys::ExecutionMode::ORT_PARALLEL,
            false => sys::ExecutionMode::ORT_SEQUENTIAL,
        };
        // SAFETY: the handle is alive; the value is a plain number.
        runtime.check(unsafe { (api.SetSessionExecutionMode)(at, mode) })?;
        // SAFETY: the handle is alive; the value is a plain number.
        runtime.check(unsafe { (api.SetSessionGraphOptimizationLevel)(at, settings.optimization.into()) })?;
        if runtime.has_global_threads() {
            // SAFETY: the handle is alive.
            return runtime.check(unsafe { (api.DisablePerSessionThreads)(at) });
        }
        if let Some(threads) = settings.intra_op_threads {
            // SAFETY: the handle is alive; the value is a plain number.
            runtime.check(unsafe { (api.SetIntraOpNumThreads)(at, threads as c_int) })?;
        }
        if let Some(threads) = settings.inter_op_threads {
            // SAFETY: the handle is alive; the value is a plain number.
            runtime.check(unsafe { (api.SetInterOpNumThreads)(at, threads as c_int) })?;
        }
        Ok(())
    }

    fn set_memory(&self, settings: &SessionSettings) -> Result<(), RuntimeError> {
        let api = self.runtime.api;
        let arena = settings.memory_arena.map(|on| if on { api.EnableCpuMemArena } else { api.DisableCpuMemArena });
        let pattern = settings.memory_pattern.map(|on| if on { api.EnableMemPattern } else { api.DisableMemPattern });
        for switch in [arena, pattern].into_iter().flatten() {
            // SAFETY: the handle is alive; both switches take nothing else.
            self.runtime.check(unsafe { switch(self.at.as_ptr()) })?;
        }
        Ok(())
    }

    fn add_entries(&self, settings: &SessionSettings) -> Result<(), RuntimeError> {
        let add = self.runtime.api.AddSessionConfigEntry;
        for (key, value) in &settings.session_entries {
            let (key, value) = (c_string(key.as_bytes())?, c_string(value.as_bytes())?);
            // SAFETY: the handle is alive; both strings are copied.
            self.runtime.check(unsafe { add(self.at.as_ptr(), key.as_ptr(), value.as_ptr()) })?;
        }
        Ok(())
    }

    fn add_extensions(&self, settings: &SessionSettings) -> Result<(), RuntimeError> {
        let (runtime, api, at) = (self.runtime, self.runtime.api, self.at.as_ptr());
        for library in &settings.custom_op_libraries {
            let library = c_string(library.as_bytes())?;
            // SAFETY: the handle is alive; the library that the configuration names runs its registration.
            runtime.check(unsafe { (api.RegisterCustomOpsLibrary_V2)(at, library.as_ptr()) })?;
        }
        if settings.openvino {
            let (keys, values) = ([c"device_type".as_ptr()], [c"CPU".as_ptr()]);
            let append = api.SessionOptionsAppendExecutionProvider;
            // SAFETY: the handle is alive; there is one key with its value, and both are copied.
            let status = unsafe { append(at, c"OpenVINO".as_ptr(), keys.as_ptr(), values.as_ptr(), keys.len()) };
            runtime.check(status)?;
        }
        Ok(())
    }
}

impl Drop for SessionOptions {
    fn drop(&mut self) {
        // SAFETY: this handle owns its options, which are not used afterwards.
        unsafe { (self.runtime.api.ReleaseSessionOptions)(self.at.as_ptr()) }
    }
}

/// The number of the graph that a run is recorded as and replayed from; -1: none.
const GRAPH: &str = "gpu_graph_id";

/// `OrtRunOptions`: made once per instance and used for each of its runs.
pub struct RunOptions {
    runtime: &'static Runtime,
    at: NonNull<sys::OrtRunOptions>,
}

// SAFETY: plain data inside the library; only one instance uses it.
unsafe impl Send for RunOptions {}

impl RunOptions {
    pub fn new(runtime: &'static Runtime, settings: &SessionSettings) -> Result<RunOptions, RuntimeError> {
        RunOptions::with(runtime, settings, &[])
    }

    /// The options of runs on a device. With early returns a run returns as soon as its work is in the device's stream.
    pub fn on_device(
        runtime: &'static Runtime,
        settings: &SessionSettings,
        is_early: bool,
    ) -> Result<RunOptions, RuntimeError> {
        // Tensors change their addresses from run to run, and a recorded run would use those of its first.
        let unrecorded = settings.gpu.records_graphs().then_some((GRAPH, "-1"));
        let early = is_early.then_some((RETURNS_EARLY, "1"));
        let more: Vec<(&str, &str)> = early.into_iter().chain(unrecorded).collect();
        RunOptions::with(runtime, settings, &more)
    }

    /// The options of runs that are recorded and replayed under that number.
    pub fn recorded(
        runtime: &'static Runtime,
        settings: &SessionSettings,
        number: usize,
    ) -> Result<RunOptions, RuntimeError> {
        // 0 is the library's number for runs without one.
        let number = number.saturating_add(1).to_string();
        RunOptions::with(runtime, settings, &[(RETURNS_EARLY, "1"), (GRAPH, &number)])
    }

    fn with(
        runtime: &'static Runtime,
        settings: &SessionSettings,
        more: &[(&str, &str)],
    ) -> Result<RunOptions, RuntimeError> {
        let mut options = ptr::null_mut();
        // SAFETY: a handle is written to the given place.
        runtime.check(unsafe { (runtime.api.CreateRunOptions)(&mut options) })?;
        let options = RunOptions { runtime, at: filled(options)? };
        let add = runtime.api.AddRunConfigEntry;
        let given = settings.run_entries.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        for (key, value) in given.chain(more.iter().copied()) {
            let (key, value) = (c_string(key.as_bytes())?, c_string(value.as_bytes())?);
            // SAFETY: the handle is alive; both strings are copied.
            runtime.check(unsafe { add(options.at.as_ptr(), key.as_ptr(), value.as_ptr()) })?;
        }
        Ok(options)
    }

    pub(super) fn as_ptr(&self) -> *const sys::OrtRunOptions {
        self.at.as_ptr()
    }
}

impl Drop for RunOptions {
    fn drop(&mut self) {
        // SAFETY: this handle owns its options, which are not used afterwards.
        unsafe { (self.runtime.api.ReleaseRunOptions)(self.at.as_ptr()) }
    }
}

pub(super) fn c_string(bytes: &[u8]) -> Result<CString, RuntimeError> {
    CString::new(bytes).map_err(|_| RuntimeError::here("a text for the library contains a zero byte"))
}
