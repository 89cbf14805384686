//! `TRITONSERVER_ServerOptions`: what a server is started with.

use std::ffi::{c_int, c_uint};
use std::ptr::null_mut;
use std::sync::Arc;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::c;
use crate::errors::{call, check, text};
use crate::log;
use crate::numbers::{InstanceGroupKind, LogFormat, ModelControlMode, RateLimitMode};

#[pyclass(name = "TRITONSERVER_ServerOptions", module = "tritonserver._c.triton_bindings")]
pub struct ServerOptions {
    at: *mut c::Options,
    log_function: Option<Arc<Py<PyAny>>>,
}

// SAFETY: options may be used on any thread, by one at a time.
unsafe impl Send for ServerOptions {}
// SAFETY: what changes the C object takes `&mut self`, which nobody has while a server starts with it.
unsafe impl Sync for ServerOptions {}

impl ServerOptions {
    pub fn at(&self) -> *mut c::Options {
        self.at
    }

    /// A server that starts installs the function of its options.
    pub fn install_log_function(&self, _py: Python<'_>) {
        log::set_function(self.log_function.clone());
    }
}

/// Makes a call with one text.
macro_rules! set_text {
    ($options:expr, $function:ident, $text:expr) => {{
        let text = text($text)?;
        Ok(call!($function($options.at, text.as_ptr()))?)
    }};
}

#[pymethods]
impl ServerOptions {
    #[new]
    fn new() -> PyResult<ServerOptions> {
        let mut at = null_mut();
        call!(TRITONSERVER_ServerOptionsNew(&mut at))?;
        Ok(ServerOptions { at, log_function: None })
    }

    fn set_server_id(&mut self, server_id: &str) -> PyResult<()> {
        set_text!(self, TRITONSERVER_ServerOptionsSetServerId, server_id)
    }

    fn set_model_repository_path(&mut self, model_repository_path: &str) -> PyResult<()> {
        set_text!(self, TRITONSERVER_ServerOptionsSetModelRepositoryPath, model_repository_path)
    }

    fn set_model_control_mode(&mut self, mode: ModelControlMode) -> PyResult<()> {
        Ok(call!(TRITONSERVER_ServerOptionsSetModelControlMode(self.at, mode.0))?)
    }

    fn set_startup_model(&mut self, model_name: &str) -> PyResult<()> {
        set_text!(self, TRITONSERVER_ServerOptionsSetStartupModel, model_name)
    }

    fn set_strict_model_config(&mut self, strict: bool) -> PyResult<()> {
        Ok(call!(TRITONSERVER_ServerOptionsSetStrictModelConfig(self.at, strict))?)
    }

    fn set_rate_limiter_mode(&mut self, mode: RateLimitMode) -> PyResult<()> {
        Ok(call!(TRITONSERVER_ServerOptionsSetRateLimiterMode(self.at, mode.0))?)
    }

    fn add_rate_limiter_resource(&mut self, resource_name: &str, resource_count: usize, device: c_int) -> PyResult<()> {
        let name = text(resource_name)?;
        Ok(call!(TRITONSERVER_ServerOptionsAddRateLimiterResource(self.at, name.as_ptr(), resource_count, device))?)
    }

    fn set_pinned_memory_pool_byte_size(&mut self, size: u64) -> PyResult<()> {
        Ok(call!(TRITONSERVER_ServerOptionsSetPinnedMemoryPoolByteSize(self.at, size))?)
    }

    fn set_cuda_memory_pool_byte_size(&mut self, gpu_device: c_int, size: u64) -> PyResult<()> {
        Ok(call!(TRITONSERVER_ServerOptionsSetCudaMemoryPoolByteSize(self.at, gpu_device, size))?)
    }

    fn set_response_cache_byte_size(&mut self, size: u64) -> PyResult<()> {
        Ok(call!(TRITONSERVER_ServerOptionsSetResponseCacheByteSize(self.at, size))?)
    }

    fn set_cache_config(&mut self, cache_name: &str, config_json: &str) -> PyResult<()> {
        let (name, json) = (text(cache_name)?, text(config_json)?);
        Ok(call!(TRITONSERVER_ServerOptionsSetCacheConfig(self.at, name.as_ptr(), json.as_ptr()))?)
    }

    fn set_cache_directory(&mut self, cache_dir: &str) -> PyResult<()> {
        set_text!(self, TRITONSERVER_ServerOptionsSetCacheDirectory, cache_dir)
    }

    fn set_min_supported_compute_capability(&mut self, cc: f64) -> PyResult<()> {
        Ok(call!(TRITONSERVER_ServerOptionsSetMinSupportedComputeCapability(self.at, cc))?)
    }

    fn set_exit_on_error(&mut self, exit: bool) -> PyResult<()> {
        Ok(call!(TRITONSERVER_ServerOptionsSetExitOnError(self.at, exit))?)
    }

    fn set_strict_readiness(&mut self, strict: bool) -> PyResult<()> {
        Ok(call!(TRITONSERVER_ServerOptionsSetStrictReadiness(self.at, strict))?)
    }

    fn set_exit_timeout(&mut self, timeout: c_uint) -> PyResult<()> {
        Ok(call!(TRITONSERVER_ServerOptionsSetExitTimeout(self.at, timeout))?)
    }

    fn set_buffer_manager_thread_count(&mut self, thread_count: c_uint) -> PyResult<()> {
        Ok(call!(TRITONSERVER_ServerOptionsSetBufferManagerThreadCount(self.at, thread_count))?)
    }

    fn set_model_load_thread_count(&mut self, thread_count: c_uint) -> PyResult<()> {
        Ok(call!(TRITONSERVER_ServerOptionsSetModelLoadThreadCount(self.at, thread_count))?)
    }

    fn set_model_load_retry_count(&mut self, retry_count: c_uint) -> PyResult<()> {
        Ok(call!(TRITONSERVER_ServerOptionsSetModelLoadRetryCount(self.at, retry_count))?)
    }

    fn set_model_namespacing(&mut self, enable_namespace: bool) -> PyResult<()> {
        Ok(call!(TRITONSERVER_ServerOptionsSetModelNamespacing(self.at, enable_namespace))?)
    }

    fn set_enable_peer_access(&mut self, enable_peer_access: bool) -> PyResult<()> {
        Ok(call!(TRITONSERVER_ServerOptionsSetEnablePeerAccess(self.at, enable_peer_access))?)
    }

    /// Without the interpreter's lock: it waits for room in the log.
    fn set_log_file(&mut self, py: Python<'_>, file: &str) -> PyResult<()> {
        let (options, file) = (c::Pointer::to(self.at), text(file)?);
        Ok(py.detach(|| call!(TRITONSERVER_ServerOptionsSetLogFile(options.get(), file.as_ptr())))?)
    }

    fn set_log_info(&mut self, log: bool) -> PyResult<()> {
        Ok(call!(TRITONSERVER_ServerOptionsSetLogInfo(self.at, log))?)
    }

    fn set_log_warn(&mut self, log: bool) -> PyResult<()> {
        Ok(call!(TRITONSERVER_ServerOptionsSetLogWarn(self.at, log))?)
    }

    fn set_log_error(&mut self, log: bool) -> PyResult<()> {
        Ok(call!(TRITONSERVER_ServerOptionsSetLogError(self.at, log))?)
    }

    fn set_log_format(&mut self, format: LogFormat) -> PyResult<()> {
        Ok(call!(TRITONSERVER_ServerOptionsSetLogFormat(self.at, format.0))?)
    }

    fn set_log_verbose(&mut self, level: c_int) -> PyResult<()> {
        Ok(call!(TRITONSERVER_ServerOptionsSetLogVerbose(self.at, level))?)
    }

    /// `callback(level, filename, line, timestamp_us, message)` gets the process's log from now on; None ends that.
    fn set_log_callback(&mut self, py: Python<'_>, callback: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        if let Some(callback) = callback.filter(|callback| !callback.is_callable()) {
            return Err(PyTypeError::new_err(format!("expected a function, not {}", callback.get_type().name()?)));
        }
        let function = callback.map(|callback| Arc::new(callback.clone().unbind()));
        let deliver: Option<c::LogFn> = function.as_ref().map(|_| log::deliver as c::LogFn);
        self.log_function = function.clone();
        log::set_function(function);
        let options = c::Pointer::to(self.at);
        Ok(py.detach(|| call!(TRITONSERVER_ServerOptionsSetLogCallback(options.get(), deliver, null_mut())))?)
    }

    fn set_metrics(&mut self, metrics: bool) -> PyResult<()> {
        Ok(call!(TRITONSERVER_ServerOptionsSetMetrics(self.at, metrics))?)
    }

    fn set_gpu_metrics(&mut self, gpu_metrics: bool) -> PyResult<()> {
        Ok(call!(TRITONSERVER_ServerOptionsSetGpuMetrics(self.at, gpu_metrics))?)
    }

    fn set_cpu_metrics(&mut self, cpu_metrics: bool) -> PyResult<()> {
        Ok(call!(TRITONSERVER_ServerOptionsSetCpuMetrics(self.at, cpu_metrics))?)
    }

    fn set_metrics_interval(&mut self, metrics_interval_ms: u64) -> PyResult<()> {
        Ok(call!(TRITONSERVER_ServerOptionsSetMetricsInterval(self.at, metrics_interval_ms))?)
    }

    fn set_backend_directory(&mut self, backend_dir: &str) -> PyResult<()> {
        set_text!(self, TRITONSERVER_ServerOptionsSetBackendDirectory, backend_dir)
    }

    fn set_repo_agent_directory(&mut self, repoagent_dir: &str) -> PyResult<()> {
        set_text!(self, TRITONSERVER_ServerOptionsSetRepoAgentDirectory, repoagent_dir)
    }

    fn set_model_load_device_limit(
        &mut self,
        kind: InstanceGroupKind,
        device_id: c_int,
        fraction: f64,
    ) -> PyResult<()> {
        Ok(call!(TRITONSERVER_ServerOptionsSetModelLoadDeviceLimit(self.at, kind.0, device_id, fraction))?)
    }

    fn set_backend_config(&mut self, backend_name: &str, setting: &str, value: &str) -> PyResult<()> {
        let (name, setting, value) = (text(backend_name)?, text(setting)?, text(value)?);
        let (name, setting, value) = (name.as_ptr(), setting.as_ptr(), value.as_ptr());
        Ok(call!(TRITONSERVER_ServerOptionsSetBackendConfig(self.at, name, setting, value))?)
    }

    fn set_host_policy(&mut self, policy_name: &str, setting: &str, value: &str) -> PyResult<()> {
        let (name, setting, value) = (text(policy_name)?, text(setting)?, text(value)?);
        let (name, setting, value) = (name.as_ptr(), setting.as_ptr(), value.as_ptr());
        Ok(call!(TRITONSERVER_ServerOptionsSetHostPolicy(self.at, name, setting, value))?)
    }

    fn set_metrics_config(&mut self, name: &str, setting: &str, value: &str) -> PyResult<()> {
        let (name, setting, value) = (text(name)?, text(setting)?, text(value)?);
        let (name, setting, value) = (name.as_ptr(), setting.as_ptr(), value.as_ptr());
        Ok(call!(TRITONSERVER_ServerOptionsSetMetricsConfig(self.at, name, setting, value))?)
    }
}

impl Drop for ServerOptions {
    fn drop(&mut self) {
        // SAFETY: this object owns the C object, and nothing uses it afterwards.
        drop(check(unsafe { c::TRITONSERVER_ServerOptionsDelete(self.at) }));
    }
}
