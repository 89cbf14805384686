//! The one table of flags: Triton's 91 long options (cli.md section 2) in Triton's order, and Nereid's own.
//!
//! Flags that this version cannot honour are known by name, so that abbreviations mean what they mean in Triton and
//! a script that relies on such a flag is told instead of misunderstood.

use super::options::{IoCores, IoEngine, ServeOptions};
use super::values::{Value, ValueError};
use crate::observe::log::LogFormat;

/// One long option.
#[derive(Debug)]
pub struct Flag {
    pub name: &'static str,
    pub group: &'static str,
    /// What its value is called in the usage text; `None`: it takes none.
    pub value: Option<&'static str>,
    pub help: &'static str,
    pub action: Action,
}

#[derive(Debug)]
pub enum Action {
    Help,
    Set(Set),
    /// Known, and refused.
    Unbuilt,
}

pub type Set = fn(&mut ServeOptions, Value<'_>) -> Result<(), ValueError>;

impl Flag {
    pub fn takes_value(&self) -> bool {
        self.value.is_some()
    }

    /// Triton does not know it.
    pub fn is_own(&self) -> bool {
        self.group == NEREID
    }

    /// What it sets: names with one target are one flag.
    pub fn target(&self) -> &'static str {
        match self.name {
            "model-store" => "model-repository",
            name => name,
        }
    }
}

const SERVER: &str = "Server";
const LOGGING: &str = "Logging";
const REPOSITORY: &str = "Model repository";
const HTTP: &str = "HTTP";
const GRPC: &str = "gRPC";
const METRICS: &str = "Metrics";
const BACKENDS: &str = "Backends";
const NEREID: &str = "Nereid";

pub static FLAGS: &[Flag] = &[
    Flag { name: "help", group: SERVER, value: None, help: "Print this text and exit.", action: Action::Help },
    flag("id", SERVER, Some("string"), "Name of this server in its metadata. Default: triton.", |o, v| {
        o.server_id = v.text();
        Ok(())
    }),
    flag(
        "exit-timeout-secs",
        SERVER,
        Some("integer"),
        "Seconds that requests in flight may take to end when the server stops. Default: 30.",
        |o, v| v.natural().map(|given| o.exit_timeout_secs = given),
    ),
    flag(
        "log-verbose",
        LOGGING,
        Some("integer"),
        "Level up to which verbose messages appear; true is 1, false is 0. Default: 0.",
        |o, v| v.int_or_boolean().map(|given| o.log.verbose_level = given.max(0).unsigned_abs()),
    ),
    flag("log-info", LOGGING, Some("boolean"), "Whether info messages appear. Default: true.", |o, v| {
        v.boolean().map(|given| o.log.info = given)
    }),
    flag("log-warning", LOGGING, Some("boolean"), "Whether warnings appear. Default: true.", |o, v| {
        v.boolean().map(|given| o.log.warning = given)
    }),
    flag("log-error", LOGGING, Some("boolean"), "Whether errors appear. Default: true.", |o, v| {
        v.boolean().map(|given| o.log.error = given)
    }),
    flag(
        "log-format",
        LOGGING,
        Some("default|ISO8601"),
        "How the lines of the log begin. Default: default.",
        |o, v| log_format(v).map(|given| o.log.format = given),
    ),
    flag(
        "log-file",
        LOGGING,
        Some("path"),
        "File that gets all messages instead of stdout and stderr; it is appended to.",
        |o, v| {
            o.log.file = Some(v.path()).filter(|path| !path.as_os_str().is_empty());
            Ok(())
        },
    ),
    flag("model-repository", REPOSITORY, Some("path"), "Directory of models. May be given several times.", |o, v| {
        o.model_repositories.push(v.path());
        Ok(())
    }),
    flag("model-store", REPOSITORY, Some("path"), "The same as --model-repository.", |o, v| {
        o.model_repositories.push(v.path());
        Ok(())
    }),
    flag(
        "exit-on-error",
        REPOSITORY,
        Some("boolean"),
        "Whether a model that fails to load at the start ends the server. Default: true.",
        |o, v| v.boolean().map(|given| o.exit_on_error = given),
    ),
    flag(
        "disable-auto-complete-config",
        REPOSITORY,
        None,
        "Do not complete configurations from the model files.",
        |o, _| {
            o.auto_complete_config = false;
            Ok(())
        },
    ),
    flag(
        "strict-readiness",
        REPOSITORY,
        Some("boolean"),
        "Whether the server is ready only when all its models are. Default: true.",
        |o, v| v.boolean().map(|given| o.strict_readiness = given),
    ),
    flag(
        "model-control-mode",
        REPOSITORY,
        Some("none"),
        "When models are loaded: none is once, at the start. Default: none.",
        |_, v| model_control_mode(v),
    ),
    unbuilt("repository-poll-secs"),
    unbuilt("load-model"),
    unbuilt("model-config-name"),
    unbuilt("model-load-thread-count"),
    unbuilt("model-load-retry-count"),
    unbuilt("model-namespacing"),
    unbuilt("enable-peer-access"),
    unbuilt("model-load-gpu-limit"),
    flag("allow-http", HTTP, Some("boolean"), "Whether to serve HTTP. Default: true.", |o, v| {
        v.boolean().map(|given| o.http.allowed = given)
    }),
    flag("http-address", HTTP, Some("string"), "Address to listen on. Default: 0.0.0.0.", |o, v| {
        o.http.address = v.text();
        Ok(())
    }),
    flag("http-port", HTTP, Some("integer"), "Port to listen on. Default: 8000.", |o, v| {
        v.int().map(|given| o.http.port = given)
    }),
    flag(
        "reuse-http-port",
        HTTP,
        Some("boolean"),
        "Whether other servers may listen on the same port. Default: false.",
        |o, v| v.boolean().map(|given| o.http.reuse_port = given),
    ),
    unbuilt("http-header-forward-pattern"),
    unbuilt("http-thread-count"),
    flag("http-max-input-size", HTTP, Some("integer"), "Largest request body in bytes. Default: 67108864.", |o, v| {
        input_size(v).map(|given| o.http_max_input_size = given)
    }),
    unbuilt("http-restricted-api"),
    flag("allow-grpc", GRPC, Some("boolean"), "Whether to serve gRPC. Default: true.", |o, v| {
        v.boolean().map(|given| o.grpc.allowed = given)
    }),
    flag("grpc-address", GRPC, Some("string"), "Address to listen on. Default: 0.0.0.0.", |o, v| {
        o.grpc.address = v.text();
        Ok(())
    }),
    flag("grpc-port", GRPC, Some("integer"), "Port to listen on. Default: 8001.", |o, v| {
        v.int().map(|given| o.grpc.port = given)
    }),
    flag(
        "reuse-grpc-port",
        GRPC,
        Some("boolean"),
        "Whether other servers may listen on the same port. Default: false.",
        |o, v| v.boolean().map(|given| o.grpc.reuse_port = given),
    ),
    unbuilt("grpc-header-forward-pattern"),
    unbuilt("grpc-infer-thread-count"),
    unbuilt("grpc-infer-allocation-pool-size"),
    unbuilt("grpc-max-response-pool-size"),
    unbuilt("grpc-use-ssl"),
    unbuilt("grpc-use-ssl-mutual"),
    unbuilt("grpc-server-cert"),
    unbuilt("grpc-server-key"),
    unbuilt("grpc-root-cert"),
    unbuilt("grpc-infer-response-compression-level"),
    unbuilt("grpc-keepalive-time"),
    unbuilt("grpc-keepalive-timeout"),
    unbuilt("grpc-keepalive-permit-without-calls"),
    unbuilt("grpc-http2-max-pings-without-data"),
    unbuilt("grpc-http2-min-recv-ping-interval-without-data"),
    unbuilt("grpc-http2-max-ping-strikes"),
    unbuilt("grpc-max-connection-age"),
    unbuilt("grpc-max-connection-age-grace"),
    unbuilt("grpc-restricted-protocol"),
    unbuilt("allow-sagemaker"),
    unbuilt("sagemaker-port"),
    unbuilt("sagemaker-safe-port-range"),
    unbuilt("sagemaker-thread-count"),
    unbuilt("allow-vertex-ai"),
    unbuilt("vertex-ai-port"),
    unbuilt("vertex-ai-thread-count"),
    unbuilt("vertex-ai-default-model"),
    flag("allow-metrics", METRICS, Some("boolean"), "Whether to serve metrics. Default: true.", |o, v| {
        v.boolean().map(|given| o.metrics.allowed = given)
    }),
    unbuilt("allow-gpu-metrics"),
    flag(
        "allow-cpu-metrics",
        METRICS,
        Some("boolean"),
        "Whether metrics show the CPU and memory of the host. Default: true.",
        |o, v| v.boolean().map(|given| o.allow_cpu_metrics = given),
    ),
    flag("metrics-address", METRICS, Some("string"), "Address to listen on. Default: that of HTTP.", |o, v| {
        o.metrics.address = v.text();
        Ok(())
    }),
    flag("metrics-port", METRICS, Some("integer"), "Port to listen on. Default: 8002.", |o, v| {
        v.int().map(|given| o.metrics.port = given)
    }),
    flag(
        "metrics-interval-ms",
        METRICS,
        Some("integer"),
        "Twice the time between two readings of the host's metrics. Default: 2000.",
        |o, v| v.natural().map(|given| o.metrics_interval_ms = given),
    ),
    unbuilt("metrics-config"),
    unbuilt("trace-config"),
    flag(
        "backend-directory",
        BACKENDS,
        Some("path"),
        "Directory of backend libraries. Default: /opt/tritonserver/backends.",
        |o, v| {
            o.backend_directory = v.path();
            Ok(())
        },
    ),
    flag(
        "backend-config",
        BACKENDS,
        Some("[<backend>,]<setting>=<value>"),
        "Setting of one backend or of all. May be given several times.",
        |o, v| v.backend_setting().map(|given| o.backend_settings.push(given)),
    ),
    unbuilt("repoagent-directory"),
    unbuilt("cache-directory"),
    unbuilt("cache-config"),
    unbuilt("rate-limit"),
    unbuilt("rate-limit-resource"),
    unbuilt("pinned-memory-pool-byte-size"),
    unbuilt("cuda-memory-pool-byte-size"),
    unbuilt("cuda-virtual-address-size"),
    unbuilt("min-supported-compute-capability"),
    unbuilt("buffer-manager-thread-count"),
    unbuilt("host-policy"),
    unbuilt("allow-client-shm"),
    unbuilt("strict-model-config"),
    unbuilt("response-cache-byte-size"),
    unbuilt("trace-file"),
    unbuilt("trace-level"),
    unbuilt("trace-rate"),
    unbuilt("trace-count"),
    unbuilt("trace-log-frequency"),
    flag(
        "io-cores",
        NEREID,
        Some("count or list"),
        "Cores that do network I/O, as a number or a list like 0,2-3. Default: 1 below 4 cores, else a quarter of them.",
        |o, v| io_cores(v).map(|given| o.io_cores = Some(given)),
    ),
    flag(
        "io-engine",
        NEREID,
        Some("auto|io_uring|epoll"),
        "How sockets are driven. Default: auto, io_uring where the kernel has what it takes.",
        |o, v| io_engine(v).map(|given| o.io_engine = given),
    ),
];

const fn flag(
    name: &'static str,
    group: &'static str,
    value: Option<&'static str>,
    help: &'static str,
    set: Set,
) -> Flag {
    Flag { name, group, value, help, action: Action::Set(set) }
}

const fn unbuilt(name: &'static str) -> Flag {
    Flag { name, group: "Not supported", value: Some("value"), help: "", action: Action::Unbuilt }
}

/// Case matters, unlike in the other words (cli.md section 1).
fn log_format(value: Value<'_>) -> Result<LogFormat, ValueError> {
    LogFormat::from_name(&value.text()).ok_or(value.unknown_word())
}

fn model_control_mode(value: Value<'_>) -> Result<(), ValueError> {
    match value.text().to_ascii_lowercase().as_str() {
        "none" => Ok(()),
        "poll" => Err(ValueError::Unbuilt(value.flag, "poll")),
        "explicit" => Err(ValueError::Unbuilt(value.flag, "explicit")),
        _ => Err(value.unknown_word()),
    }
}

fn input_size(value: Value<'_>) -> Result<u64, ValueError> {
    match u64::try_from(value.int64()?) {
        Ok(0) | Err(_) => Err(ValueError::InputSize),
        Ok(bytes) => Ok(bytes),
    }
}

fn io_cores(value: Value<'_>) -> Result<IoCores, ValueError> {
    match value.text().parse() {
        Ok(IoCores::Count(0)) => Err(ValueError::OutOfBound(value.text())),
        Ok(cores) => Ok(cores),
        Err(_) if value.natural().is_ok_and(|count| count == 0) => Err(ValueError::OutOfBound(value.text())),
        Err(_) => Err(ValueError::Number(value.text())),
    }
}

fn io_engine(value: Value<'_>) -> Result<IoEngine, ValueError> {
    match value.text().to_ascii_lowercase().as_str() {
        "auto" => Ok(IoEngine::Auto),
        "io_uring" => Ok(IoEngine::IoUring),
        "epoll" => Ok(IoEngine::Epoll),
        _ => Err(value.unknown_word()),
    }
}
