//! `TRITONSERVER_ServerOptions`: the configuration of a server that an application starts.
//!
//! Each setter fills in the same option as the program's flag of that meaning, with the same checks; combinations of
//! options are checked when the server starts.

use std::ffi::{c_char, c_void};
use std::path::PathBuf;
use std::sync::Arc;

use tracing::info;

use super::super::border::{deref_mut, entry, give, put, take, utf8};
use super::Error;
use super::log::{LogCallback, LogFn, LogSetting, apply, install};
use crate::abi::LIBRARIES;
use crate::server::access::Access;
use crate::server::options::{
    BackendSetting, CacheSetting, HostPolicySetting, ModelControl, NO_COPYING_THREADS, NO_GROWING, Options,
    RateLimitResource,
};
use nereid_backend::{HostPolicies, check_key};
use nereid_observe::log::LogGuard;
use nereid_request::Status;

/// Seconds between two polls of the repositories in mode POLL, in addition to those that the application requests.
const POLL_SECS: u32 = 15;

/// `TRITONSERVER_InstanceGroupKind`.
const KIND_GPU: u32 = 2;
const KINDS: [&str; 4] = ["AUTO", "CPU", "GPU", "MODEL"];

/// See the [module](self).
#[derive(Debug)]
pub struct ServerOptions {
    options: Options,
    /// Options that were set without effect, and why; each once.
    idle: Vec<(&'static str, &'static str)>,
    /// Installed when it is set, and when a server starts.
    log_callback: Option<LogCallback>,
    _log: LogGuard,
}

impl ServerOptions {
    fn new() -> ServerOptions {
        // Where the program completes configurations, an application has to request it, as with Triton.
        let options = Options { auto_complete_config: false, ..Options::without_ports() };
        ServerOptions { options, idle: Vec::new(), log_callback: None, _log: LogGuard::new() }
    }

    /// Starts a server. The options stay unchanged, and the server does not need them afterwards.
    pub fn start(&self) -> Result<Arc<Access>, Status> {
        install(self.log_callback)?;
        for (option, reason) in &self.idle {
            info!("{option} has no effect: {reason}");
        }
        Access::embed(&self.complete(), &LIBRARIES)
    }

    /// The options, completed where one depends on several setters.
    fn complete(&self) -> Options {
        let mut options = self.options.clone();
        match options.model_control {
            ModelControl::Explicit => {
                options.startup_models.sort();
                options.startup_models.dedup();
            }
            // Startup models apply in the explicit mode only.
            ModelControl::None | ModelControl::Poll { .. } => options.startup_models.clear(),
        }
        options.allow_cpu_metrics &= options.metrics.allowed;
        options.allow_gpu_metrics &= options.metrics.allowed;
        options
    }

    fn note_idle(&mut self, option: &'static str, reason: &'static str) {
        if self.idle.iter().all(|(noted, _)| *noted != option) {
            self.idle.push((option, reason));
        }
    }

    /// Replaces all settings of this cache.
    fn set_cache(&mut self, cache: &str, settings: Vec<(String, String)>) {
        let settings = settings.into_iter().map(|(key, value)| CacheSetting { cache: cache.to_owned(), key, value });
        self.options.cache_settings.retain(|setting| setting.cache != cache);
        if settings.len() == 0 {
            self.options.bare_cache = Some(cache.to_owned());
        } else if self.options.bare_cache.as_deref() == Some(cache) {
            self.options.bare_cache = None;
        }
        self.options.cache_settings.extend(settings);
    }
}

/// The members of a flat JSON object, as texts.
fn members(json: &str) -> Result<Vec<(String, String)>, Status> {
    let wrong = |what: &str| Status::invalid(format!("failed to parse the cache's configuration: {what}"));
    let object: serde_json::Value = serde_json::from_str(json).map_err(|error| wrong(&error.to_string()))?;
    let serde_json::Value::Object(members) = object else { return Err(wrong("it is no JSON object")) };
    let member = |(key, value): (String, serde_json::Value)| match value {
        serde_json::Value::String(text) => (key, text),
        other => (key, other.to_string()),
    };
    Ok(members.into_iter().map(member).collect())
}

/// An argument of a setter as C passes it.
trait Argument {
    type Parsed;

    /// # Safety
    /// A pointer is NULL or a C string.
    unsafe fn parse(self, what: &'static str) -> Result<Self::Parsed, Status>;
}

macro_rules! plain_arguments {
    ($($kind:ty)*) => {$(
        impl Argument for $kind {
            type Parsed = $kind;

            unsafe fn parse(self, _what: &'static str) -> Result<$kind, Status> {
                Ok(self)
            }
        }
    )*};
}

plain_arguments! { bool i32 u32 u64 usize f64 }

impl Argument for *const c_char {
    type Parsed = String;

    unsafe fn parse(self, what: &'static str) -> Result<String, Status> {
        // SAFETY: the trait requires of the caller that the text is NULL or a C string.
        unsafe { utf8(self, what) }.map(str::to_owned)
    }
}

/// Exports setters of the form `(options, arguments…) -> error`.
macro_rules! setters {
    ($($name:ident($($argument:ident: $kind:ty),*) = |$it:ident| $body:expr;)*) => {$(
        /// # Safety
        /// `options` is live and used by this call only; texts are C strings or NULL.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(options: *mut ServerOptions, $($argument: $kind),*) -> *mut Error {
            entry(|| {
                // SAFETY: `options` is NULL or live, and used by this call alone: this function requires it of its
                // caller.
                let $it = unsafe { deref_mut(options, "options")? };
                // SAFETY: `options` is NULL or live, and used by this call alone: this function requires it of its
                // caller.
                $(let $argument = unsafe { $argument.parse(stringify!($argument))? };)*
                #[allow(clippy::unit_arg)]
                let outcome: Result<(), Status> = $body;
                outcome
            })
        }
    )*};
}

/// # Safety
/// `options` is writable; the caller owns the options.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ServerOptionsNew(options: *mut *mut ServerOptions) -> *mut Error {
    // SAFETY: `options` is NULL or writable: this function requires it of its caller.
    entry(|| unsafe {
        // Checked first: options without a place to put them would never be deleted.
        put(options, std::ptr::null_mut())?;
        put(options, give(ServerOptions::new()))
    })
}

/// # Safety
/// `options` is live and not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ServerOptionsDelete(options: *mut ServerOptions) -> *mut Error {
    // SAFETY: `options` is NULL or an object that the caller gives back: this function requires it of its caller.
    entry(|| unsafe { take(options, "options") }.map(drop))
}

/// NULL: none. Installs the function for the process, or removes a former one, at once and again when a server starts
/// with the options.
///
/// # Safety
/// `options` is live and used by this call only; the function may be called on any thread with `userp` until another
/// one is set or a server starts with other options.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ServerOptionsSetLogCallback(
    options: *mut ServerOptions,
    callback: Option<LogFn>,
    userp: *mut c_void,
) -> *mut Error {
    entry(|| {
        // SAFETY: `options` is NULL or live, and used by this call alone: this function requires it of its caller.
        let options = unsafe { deref_mut(options, "options")? };
        options.log_callback = callback.map(|function| LogCallback { function, userp });
        install(options.log_callback)
    })
}

setters! {
    TRITONSERVER_ServerOptionsSetServerId(server_id: *const c_char) = |it| Ok(it.options.server_id = server_id);
    TRITONSERVER_ServerOptionsSetModelRepositoryPath(model_repository_path: *const c_char) = |it| {
        Ok(it.options.model_repositories.push(PathBuf::from(model_repository_path)))
    };
    TRITONSERVER_ServerOptionsSetModelControlMode(mode: u32) = |it| {
        it.options.model_control = match mode {
            0 => ModelControl::None,
            1 => ModelControl::Poll { period_secs: POLL_SECS },
            2 => ModelControl::Explicit,
            _ => return Err(Status::invalid(format!("unknown control mode '{mode}'"))),
        };
        Ok(())
    };
    TRITONSERVER_ServerOptionsSetStartupModel(model_name: *const c_char) = |it| {
        Ok(it.options.startup_models.push(model_name))
    };
    TRITONSERVER_ServerOptionsSetStrictModelConfig(strict: bool) = |it| Ok(it.options.auto_complete_config = !strict);
    TRITONSERVER_ServerOptionsSetModelConfigName(model_config_name: *const c_char) = |it| {
        Ok(it.options.model_config_name = Some(model_config_name).filter(|name| !name.is_empty()))
    };
    TRITONSERVER_ServerOptionsSetRateLimiterMode(mode: u32) = |it| {
        it.options.rate_limit = match mode {
            0 => false,
            1 => true,
            _ => return Err(Status::invalid(format!("unknown rate limit mode '{mode}'"))),
        };
        Ok(())
    };
    TRITONSERVER_ServerOptionsAddRateLimiterResource(
        resource_name: *const c_char, resource_count: usize, device: i32
    ) = |it| {
        Ok(it.options.rate_limit_resources.push(RateLimitResource {
            name: resource_name,
            count: i64::try_from(resource_count).unwrap_or(i64::MAX),
            device: Some(device).filter(|device| *device != -1),
        }))
    };
    TRITONSERVER_ServerOptionsSetPinnedMemoryPoolByteSize(size: u64) = |it| {
        it.options.note_for_gpus("the size of the pool of pinned memory");
        Ok(it.options.pinned_memory_pool_byte_size = size)
    };
    TRITONSERVER_ServerOptionsSetCudaMemoryPoolByteSize(gpu_device: i32, size: u64) = |it| {
        it.options.note_for_gpus("the size of a pool of CUDA memory");
        it.options.cuda_memory_pools.insert(gpu_device, size);
        Ok(())
    };
    TRITONSERVER_ServerOptionsSetCudaVirtualAddressSize(_gpu_device: i32, _cuda_virtual_address_size: usize) = |it| {
        Ok(it.note_idle("the size of CUDA's virtual addresses", NO_GROWING))
    };
    TRITONSERVER_ServerOptionsSetResponseCacheByteSize(size: u64) = |it| {
        Ok(it.set_cache("local", vec![("size".to_owned(), size.to_string())]))
    };
    TRITONSERVER_ServerOptionsSetCacheConfig(cache_name: *const c_char, config_json: *const c_char) = |it| {
        Ok(it.set_cache(&cache_name, members(&config_json)?))
    };
    TRITONSERVER_ServerOptionsSetCacheDirectory(cache_dir: *const c_char) = |it| {
        Ok(it.options.cache_directory = cache_dir.into())
    };
    TRITONSERVER_ServerOptionsSetMinSupportedComputeCapability(cc: f64) = |it| {
        it.options.note_for_gpus("the least compute capability");
        Ok(it.options.min_compute_capability = cc)
    };
    TRITONSERVER_ServerOptionsSetExitOnError(exit: bool) = |it| Ok(it.options.exit_on_error = exit);
    TRITONSERVER_ServerOptionsSetStrictReadiness(strict: bool) = |it| Ok(it.options.strict_readiness = strict);
    TRITONSERVER_ServerOptionsSetExitTimeout(timeout: u32) = |it| Ok(it.options.exit_timeout_secs = timeout);
    TRITONSERVER_ServerOptionsSetBufferManagerThreadCount(_thread_count: u32) = |it| {
        Ok(it.note_idle("the number of threads that copy tensors", NO_COPYING_THREADS))
    };
    TRITONSERVER_ServerOptionsSetModelLoadThreadCount(thread_count: u32) = |it| {
        Ok(it.options.model_load_thread_count = thread_count.max(1) as usize)
    };
    TRITONSERVER_ServerOptionsSetModelLoadRetryCount(retry_count: u32) = |it| {
        Ok(it.options.model_load_retry_count = retry_count)
    };
    TRITONSERVER_ServerOptionsSetModelNamespacing(enable_namespace: bool) = |it| {
        Ok(it.options.model_namespacing = enable_namespace)
    };
    TRITONSERVER_ServerOptionsSetEnablePeerAccess(enable_peer_access: bool) = |it| {
        it.options.note_for_gpus("access of GPUs to each other's memory");
        Ok(it.options.enable_peer_access = enable_peer_access)
    };
    TRITONSERVER_ServerOptionsSetLogFile(file: *const c_char) = |_it| apply(&LogSetting::File(&file));
    TRITONSERVER_ServerOptionsSetLogInfo(log: bool) = |_it| apply(&LogSetting::Info(log));
    TRITONSERVER_ServerOptionsSetLogWarn(log: bool) = |_it| apply(&LogSetting::Warning(log));
    TRITONSERVER_ServerOptionsSetLogError(log: bool) = |_it| apply(&LogSetting::Error(log));
    TRITONSERVER_ServerOptionsSetLogFormat(format: u32) = |_it| apply(&LogSetting::Format(format));
    TRITONSERVER_ServerOptionsSetLogVerbose(level: i32) = |_it| apply(&LogSetting::Verbose(level));
    TRITONSERVER_ServerOptionsSetMetrics(metrics: bool) = |it| Ok(it.options.metrics.allowed = metrics);
    TRITONSERVER_ServerOptionsSetGpuMetrics(gpu_metrics: bool) = |it| Ok(it.options.allow_gpu_metrics = gpu_metrics);
    TRITONSERVER_ServerOptionsSetCpuMetrics(cpu_metrics: bool) = |it| Ok(it.options.allow_cpu_metrics = cpu_metrics);
    TRITONSERVER_ServerOptionsSetMetricsInterval(metrics_interval_ms: u64) = |it| {
        Ok(it.options.metrics_interval_ms = u32::try_from(metrics_interval_ms).unwrap_or(u32::MAX))
    };
    TRITONSERVER_ServerOptionsSetBackendDirectory(backend_dir: *const c_char) = |it| {
        Ok(it.options.backend_directory = backend_dir.into())
    };
    TRITONSERVER_ServerOptionsSetRepoAgentDirectory(repoagent_dir: *const c_char) = |it| {
        Ok(it.options.agent_directory = repoagent_dir.into())
    };
    TRITONSERVER_ServerOptionsSetModelLoadDeviceLimit(kind: u32, device_id: i32, fraction: f64) = |it| {
        check_device_limit(kind, device_id, fraction)?;
        it.options.note_for_gpus("the limit of a device's memory for loads");
        it.options.gpu_load_limits.insert(device_id, fraction);
        Ok(())
    };
    TRITONSERVER_ServerOptionsSetBackendConfig(
        backend_name: *const c_char, setting: *const c_char, value: *const c_char
    ) = |it| {
        let backend = Some(backend_name).filter(|name| !name.is_empty());
        Ok(it.options.backend_settings.push(BackendSetting { backend, key: setting, value }))
    };
    TRITONSERVER_ServerOptionsSetHostPolicy(
        policy_name: *const c_char, setting: *const c_char, value: *const c_char
    ) = |it| {
        check_key(&setting)?;
        HostPolicies::new(&[(policy_name.clone(), setting.clone(), value.clone())]).map_err(Status::invalid)?;
        Ok(it.options.host_policies.push(HostPolicySetting { policy: policy_name, key: setting, value }))
    };
    TRITONSERVER_ServerOptionsSetMetricsConfig(
        name: *const c_char, setting: *const c_char, value: *const c_char
    ) = |it| {
        // As in Triton, a name that the server does not use is no error.
        match name.is_empty() {
            true => Ok(it.options.metrics_settings.push((setting, value))),
            false => Ok(it.note_idle("a configuration of metrics by name", "the server has none of that name")),
        }
    };
}

/// The checks of `--model-load-gpu-limit`, and that of the kind, which the flag implies.
fn check_device_limit(kind: u32, device: i32, fraction: f64) -> Result<(), Status> {
    if kind != KIND_GPU {
        let shown = usize::try_from(kind).ok().and_then(|kind| KINDS.get(kind)).unwrap_or(&"<invalid>");
        return Err(Status::invalid(format!("given device kind is not supported, got: {shown}")));
    }
    if device < 0 {
        return Err(Status::invalid(format!("expects device ID >= 0, got {device}")));
    }
    match (0.0..=1.0).contains(&fraction) {
        true => Ok(()),
        false => Err(Status::invalid(format!("expects limit fraction to be in range [0.0, 1.0], got {fraction:.6}"))),
    }
}

#[cfg(test)]
mod tests;
