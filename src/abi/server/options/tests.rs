//! Each setter against the option that it fills in, and against what it must not take.

use std::collections::BTreeMap;
use std::ffi::CStr;

use super::*;
use nereid_request::{Code, Status};

/// Takes an error apart; NULL is none.
fn outcome(error: *mut Error) -> Result<(), Status> {
    // SAFETY: NULL, or an error of this interface that nobody else has.
    match unsafe { error.as_ref() } {
        None => Ok(()),
        Some(found) => {
            let status = found.status();
            // SAFETY: NULL, or an error of this interface that nobody else has.
            unsafe { super::super::TRITONSERVER_ErrorDelete(error) };
            Err(status)
        }
    }
}

/// Calls a setter with options of their own.
macro_rules! set {
    ($options:expr, $name:ident($($argument:expr),*)) => {
        // SAFETY: the options are live, and the texts are literals or NULL.
        outcome(unsafe { $name($options, $($argument),*) })
    };
}

fn text(text: &'static CStr) -> *const c_char {
    text.as_ptr()
}

/// What `change` makes of the options of a new server.
fn after(change: impl FnOnce(&mut ServerOptions)) -> Options {
    let mut options = ServerOptions::new();
    change(&mut options);
    Options { for_gpus: Vec::new(), ..options.complete() }
}

/// The options of a new server but for what `change` does.
fn expected(change: impl FnOnce(&mut Options)) -> Options {
    let mut options = Options { auto_complete_config: false, ..Options::without_ports() };
    change(&mut options);
    options
}

/// One row: what is set, and which option is another one then.
macro_rules! rows {
    ($($name:ident($($argument:expr),*) => |$it:ident| $change:expr;)*) => {$({
        let found = after(|options| assert_eq!(set!(options, $name($($argument),*)), Ok(()), stringify!($name)));
        let wanted = expected(|$it: &mut Options| $change);
        assert_eq!(found, wanted, stringify!($name));
    })*};
}

#[test]
fn each_setter_fills_in_its_option() {
    rows! {
        TRITONSERVER_ServerOptionsSetServerId(text(c"me")) => |it| it.server_id = "me".into();
        TRITONSERVER_ServerOptionsSetModelRepositoryPath(text(c"/models")) => |it| {
            it.model_repositories = vec!["/models".into()]
        };
        TRITONSERVER_ServerOptionsSetModelControlMode(0) => |it| it.model_control = ModelControl::None;
        TRITONSERVER_ServerOptionsSetModelControlMode(1) => |it| {
            it.model_control = ModelControl::Poll { period_secs: 15 }
        };
        TRITONSERVER_ServerOptionsSetModelControlMode(2) => |it| it.model_control = ModelControl::Explicit;
        // Not in the explicit mode: it means nothing.
        TRITONSERVER_ServerOptionsSetStartupModel(text(c"a")) => |it| it.startup_models.clear();
        TRITONSERVER_ServerOptionsSetStrictModelConfig(true) => |it| it.auto_complete_config = false;
        TRITONSERVER_ServerOptionsSetStrictModelConfig(false) => |it| it.auto_complete_config = true;
        TRITONSERVER_ServerOptionsSetModelConfigName(text(c"fast")) => |it| it.model_config_name = Some("fast".into());
        TRITONSERVER_ServerOptionsSetModelConfigName(text(c"")) => |it| it.model_config_name = None;
        TRITONSERVER_ServerOptionsSetRateLimiterMode(0) => |it| it.rate_limit = false;
        TRITONSERVER_ServerOptionsSetRateLimiterMode(1) => |it| it.rate_limit = true;
        TRITONSERVER_ServerOptionsAddRateLimiterResource(text(c"R"), 3, -1) => |it| {
            it.rate_limit_resources = vec![RateLimitResource { name: "R".into(), count: 3, device: None }]
        };
        TRITONSERVER_ServerOptionsAddRateLimiterResource(text(c"R"), usize::MAX, 2) => |it| {
            it.rate_limit_resources = vec![RateLimitResource { name: "R".into(), count: i64::MAX, device: Some(2) }]
        };
        TRITONSERVER_ServerOptionsSetPinnedMemoryPoolByteSize(7) => |it| it.pinned_memory_pool_byte_size = 7;
        TRITONSERVER_ServerOptionsSetCudaMemoryPoolByteSize(1, 7) => |it| {
            it.cuda_memory_pools = BTreeMap::from([(1, 7)])
        };
        TRITONSERVER_ServerOptionsSetCudaVirtualAddressSize(1, 7) => |_it| ();
        TRITONSERVER_ServerOptionsSetResponseCacheByteSize(7) => |it| {
            it.cache_settings = vec![cache("local", "size", "7")]
        };
        TRITONSERVER_ServerOptionsSetCacheConfig(text(c"mine"), text(c"{\"a\":\"1\",\"b\":2}")) => |it| {
            it.cache_settings = vec![cache("mine", "a", "1"), cache("mine", "b", "2")]
        };
        TRITONSERVER_ServerOptionsSetCacheConfig(text(c"mine"), text(c"{}")) => |it| {
            it.bare_cache = Some("mine".into())
        };
        TRITONSERVER_ServerOptionsSetCacheDirectory(text(c"/c")) => |it| it.cache_directory = "/c".into();
        TRITONSERVER_ServerOptionsSetMinSupportedComputeCapability(7.5) => |it| it.min_compute_capability = 7.5;
        TRITONSERVER_ServerOptionsSetExitOnError(false) => |it| it.exit_on_error = false;
        TRITONSERVER_ServerOptionsSetStrictReadiness(false) => |it| it.strict_readiness = false;
        TRITONSERVER_ServerOptionsSetExitTimeout(7) => |it| it.exit_timeout_secs = 7;
        TRITONSERVER_ServerOptionsSetBufferManagerThreadCount(7) => |_it| ();
        TRITONSERVER_ServerOptionsSetModelLoadThreadCount(7) => |it| it.model_load_thread_count = 7;
        TRITONSERVER_ServerOptionsSetModelLoadThreadCount(0) => |it| it.model_load_thread_count = 1;
        TRITONSERVER_ServerOptionsSetModelLoadRetryCount(7) => |it| it.model_load_retry_count = 7;
        TRITONSERVER_ServerOptionsSetModelNamespacing(true) => |it| it.model_namespacing = true;
        TRITONSERVER_ServerOptionsSetEnablePeerAccess(false) => |it| it.enable_peer_access = false;
        TRITONSERVER_ServerOptionsSetMetrics(false) => |it| {
            (it.metrics.allowed, it.allow_cpu_metrics, it.allow_gpu_metrics) = (false, false, false)
        };
        TRITONSERVER_ServerOptionsSetGpuMetrics(false) => |it| it.allow_gpu_metrics = false;
        TRITONSERVER_ServerOptionsSetCpuMetrics(false) => |it| it.allow_cpu_metrics = false;
        TRITONSERVER_ServerOptionsSetMetricsInterval(7) => |it| it.metrics_interval_ms = 7;
        TRITONSERVER_ServerOptionsSetMetricsInterval(1 << 40) => |it| it.metrics_interval_ms = u32::MAX;
        TRITONSERVER_ServerOptionsSetBackendDirectory(text(c"/b")) => |it| it.backend_directory = "/b".into();
        TRITONSERVER_ServerOptionsSetRepoAgentDirectory(text(c"/r")) => |it| it.agent_directory = "/r".into();
        TRITONSERVER_ServerOptionsSetModelLoadDeviceLimit(2, 0, 0.5) => |it| it.gpu_load_limits = [(0, 0.5)].into();
        TRITONSERVER_ServerOptionsSetBackendConfig(text(c"x"), text(c"k"), text(c"v")) => |it| {
            it.backend_settings = vec![BackendSetting { backend: Some("x".into()), key: "k".into(), value: "v".into() }]
        };
        TRITONSERVER_ServerOptionsSetBackendConfig(text(c""), text(c"k"), text(c"v")) => |it| {
            it.backend_settings = vec![BackendSetting { backend: None, key: "k".into(), value: "v".into() }]
        };
        TRITONSERVER_ServerOptionsSetHostPolicy(text(c"p"), text(c"numa-node"), text(c"0")) => |it| {
            it.host_policies =
                vec![HostPolicySetting { policy: "p".into(), key: "numa-node".into(), value: "0".into() }]
        };
        TRITONSERVER_ServerOptionsSetMetricsConfig(text(c""), text(c"k"), text(c"v")) => |it| {
            it.metrics_settings = vec![("k".into(), "v".into())]
        };
    }
}

fn cache(cache: &str, key: &str, value: &str) -> CacheSetting {
    CacheSetting { cache: cache.to_owned(), key: key.to_owned(), value: value.to_owned() }
}

#[test]
fn models_of_the_start_are_sorted_and_named_once() {
    let options = after(|options| {
        assert_eq!(set!(options, TRITONSERVER_ServerOptionsSetModelControlMode(2)), Ok(()));
        for name in [c"b", c"a", c"b"] {
            assert_eq!(set!(options, TRITONSERVER_ServerOptionsSetStartupModel(text(name))), Ok(()));
        }
    });
    assert_eq!(options.startup_models, ["a", "b"]);
}

#[test]
fn one_cache_is_configured_by_its_last_word() {
    let configure = |options: &mut ServerOptions, name: &'static CStr, json: &'static CStr| {
        set!(options, TRITONSERVER_ServerOptionsSetCacheConfig(text(name), text(json)))
    };
    let options = after(|options| {
        assert_eq!(set!(options, TRITONSERVER_ServerOptionsSetResponseCacheByteSize(1)), Ok(()));
        assert_eq!(configure(options, c"local", c"{}"), Ok(()));
        assert_eq!(configure(options, c"local", c"{\"size\":\"2\"}"), Ok(()));
    });
    assert_eq!((options.cache_settings, options.bare_cache), (vec![cache("local", "size", "2")], None));
    for other in [c"{}", c"{\"k\":\"v\"}"] {
        let mut options = after(|options| {
            assert_eq!(configure(options, c"local", c"{\"size\":\"2\"}"), Ok(()));
            assert_eq!(configure(options, c"other", other), Ok(()));
        });
        options.model_repositories.push("/models".into());
        let text = "found multiple cache configurations, but only a single cache is currently supported";
        assert_eq!(options.check(), Err(Status::invalid(text)));
    }
}

#[test]
fn what_has_no_effect_is_noted_once() {
    let mut options = ServerOptions::new();
    for _ in 0..2 {
        assert_eq!(set!(&mut options, TRITONSERVER_ServerOptionsSetEnablePeerAccess(true)), Ok(()));
        assert_eq!(set!(&mut options, TRITONSERVER_ServerOptionsSetBufferManagerThreadCount(3)), Ok(()));
    }
    assert_eq!(options.idle, [("the number of threads that copy tensors", NO_COPYING_THREADS)]);
    assert_eq!(options.complete().for_gpus, ["access of GPUs to each other's memory"], "told where there is none");
}

#[test]
fn texts_have_to_be_there_and_to_be_utf_8() {
    let options = &mut ServerOptions::new();
    let absent = set!(options, TRITONSERVER_ServerOptionsSetServerId(std::ptr::null()));
    assert_eq!(absent, Err(Status::invalid("server_id must not be NULL")));
    let other = set!(options, TRITONSERVER_ServerOptionsSetServerId(text(c"\xff")));
    assert_eq!(other, Err(Status::invalid("server_id is not UTF-8: '\u{fffd}'")));
    let without = set!(std::ptr::null_mut(), TRITONSERVER_ServerOptionsSetServerId(text(c"me")));
    assert_eq!(without, Err(Status::invalid("options must not be NULL")));
    let refused = set!(options, TRITONSERVER_ServerOptionsSetHostPolicy(text(c"p"), text(c"numa-node"), text(c"x")));
    assert_eq!(refused.unwrap_err().code, Code::InvalidArg);
    assert_eq!(options.complete(), expected(|_| ()));
}
