//! Flags that only Nereid has.

use std::path::PathBuf;
use std::time::Duration;

use super::{Flag, Group};
use crate::cli::given::Given;
use crate::cli::options::{BackendSetting, EngineMetrics, IoCores, IoEngine, Orca, RunToCompletion};
use crate::cli::values::{Value, ValueError};
use nereid_backend::python;

pub const GROUP: &str = "Nereid";
/// A day.
const DRAIN_DELAY_SECS_MAX: f64 = 86_400.0;
/// Some thirty years.
const STALL_TIMEOUT_SECS_MAX: f64 = 1e9;
const NEREID: Group = Group(GROUP);

pub static FLAGS: &[Flag] = &[
    NEREID.set(
        "io-cores",
        "count or list",
        "Cores for network I/O, a number or a list like 0,2-3. Default: 1 below 4 cores, else a quarter.",
        |g, v| io_cores(v).map(|given| g.options.io_cores = Some(given)),
    ),
    NEREID.set(
        "io-engine",
        "auto|io_uring|epoll",
        "I/O engine that drives sockets. Default: auto, io_uring if the kernel supports all that the server needs.",
        |g, v| io_engine(v).map(|given| g.options.io_engine = given),
    ),
    NEREID.set(
        "spin-us",
        "integer",
        "Microseconds that a thread spins for work before it sleeps, if its last waits were shorter; 0: it sleeps \
         immediately. Default: 50 from 4 cores on, if I/O and models have cores of their own; else 0, or 20 with \
         --spin-percent. With one core no thread spins.",
        |g, v| spin_us(v).map(|given| g.options.spin_us = Some(given)),
    ),
    NEREID.set(
        "spin-percent",
        "integer",
        "Percent of its time that an I/O thread or a thread of an instance spins at most; 0: never, 100: without a \
         bound. Default: 100 if I/O and models have cores of their own; else 5, for which threads spin there only with \
         this option or --spin-us.",
        |g, v| spin_percent(v).map(|given| g.options.spin_percent = Some(given)),
    ),
    NEREID.set(
        "drain-delay",
        "seconds",
        "How long the server still serves after SIGTERM, while it is not ready and its responses tell clients to \
         connect elsewhere; part of --exit-timeout-secs, at most half of it. Default: 5 if the environment has \
         NOTIFY_SOCKET or KUBERNETES_SERVICE_HOST, else 0.",
        |g, v| drain_delay(v).map(|given| g.drain_delay = Some(given)),
    ),
    NEREID.set(
        "take-over",
        "path",
        "A Unix socket over which a starting server takes the listening sockets over from the running one: both are \
         given the same path. No connection is refused between them; the running server ends when the new one answers.",
        |g, v| {
            g.options.take_over = file(v);
            Ok(())
        },
    ),
    NEREID.set(
        "run-to-completion",
        "off|declared|auto|measured",
        "Which requests the I/O thread itself executes: none, those of backends that declare that they never block \
         (identity), or also those of models without a dynamic batcher whose executions take at most 20 microseconds \
         on average, on the CPU with one thread and for a time that their inputs bound (auto: affine, fil, and \
         onnxruntime with one thread, fixed shapes and no loops), or at most 50 microseconds with a dynamic batcher or \
         without, with any threads and graphs of the backends onnxruntime, tensorflow, openvino, fil and affine on the \
         CPU (measured; the log names the models of other backends). Default: auto.",
        |g, v| run_to_completion(v).map(|given| g.options.run_to_completion = given),
    ),
    NEREID.set(
        "request-plan-cache",
        "on|off",
        "Whether the server keeps the results of decoding requests and encoding responses and reuses them for equal \
         ones; off: it decodes each request and encodes each response anew, which takes more CPU time and changes no \
         response. Default: on.",
        |g, v| on_or_off(v).map(|given| g.options.request_plan_cache = given),
    ),
    NEREID.set(
        "orca",
        "off|on-request|always",
        "Which inference responses carry an ORCA load report: none, those whose requests ask for one by the header \
         endpoint-load-metrics-format, or all; off also refuses the RPC StreamCoreMetrics. Default: on-request.",
        |g, v| orca(v).map(|given| g.options.orca = given),
    ),
    NEREID.set(
        "http-metrics",
        "boolean",
        "Whether the HTTP port too answers /metrics, and /health like /v2/health/ready, for probes and pickers that \
         know one port only. Default: false.",
        |g, v| v.boolean().map(|given| g.options.http_metrics = given),
    ),
    NEREID.set(
        "allow-ui",
        "boolean",
        "Whether the metrics port has the inspect page at /ui, which shows models, requests, errors and settings in a \
         browser. Default: true.",
        |g, v| v.boolean().map(|given| g.options.allow_ui = given),
    ),
    NEREID.set(
        "engine-metrics",
        "none|vllm|triton|trtllm|sglang",
        "The engine under whose names the metrics page shows the queue, the running requests and the key-value cache \
         of every model, for endpoint pickers; triton: those of its TensorRT-LLM backend. Default: none.",
        |g, v| engine_metrics(v).map(|given| g.options.engine_metrics = given),
    ),
    NEREID.set(
        "stall-timeout",
        "seconds",
        "How long an execution may take before its instance counts as stalled: that is logged and counted, and a model \
         is not ready while all its instances are stalled; 0: no limit. Default: 600.",
        |g, v| stall_timeout(v).map(|given| g.options.stall_timeout = given),
    ),
    NEREID.for_gpus(
        "strict-device-liveness",
        "boolean",
        "Whether the server is live only as long as no GPU is lost to it. Default: false.",
        |g, v| v.boolean().map(|given| g.options.strict_device_liveness = given),
    ),
    NEREID.set(
        "python-execute-timeout",
        "seconds",
        "How long the Python backend lets a model execute a batch before its worker is ended. Default: 0, for ever.",
        |g, v| execute_timeout(v).map(|given| python_setting(g, python::EXECUTE_TIMEOUT, given.to_string())),
    ),
    NEREID.set(
        "python-restart",
        "boolean",
        "Whether the Python backend starts a worker again that died; without, as in Triton, the model has to be loaded \
         again. Default: true.",
        |g, v| v.boolean().map(|given| python_setting(g, python::RESTART, given.to_string())),
    ),
    NEREID.set(
        "slow-peer-secs",
        "integer",
        "Seconds for which a peer may be silent, or keep below the minimum rate, while it owes the rest of a request \
         or has not taken an answer. Default: 60.",
        |g, v| seconds(v, 1).map(|given| g.options.slow_peers.window_s = given),
    ),
    NEREID.set(
        "slow-peer-min-rate",
        "integer",
        "Bytes a second that such a peer must send or take over that time; 0 is any. Default: 500.",
        |g, v| bytes_a_second(v).map(|given| g.options.slow_peers.rate_min = given),
    ),
    NEREID.set(
        "request-receive-secs",
        "integer",
        "Seconds that one request may take from its first byte to its last; 0 is any time. Default: 3600.",
        |g, v| seconds(v, 0).map(|given| g.options.slow_peers.request_s = given),
    ),
    NEREID.set("http-use-ssl", "boolean", "Whether the HTTP port uses TLS. Default: false.", |g, v| {
        v.boolean().map(|given| g.options.http_tls.allowed = given)
    }),
    NEREID.set(
        "http-use-ssl-mutual",
        "boolean",
        "Whether HTTP clients must present a certificate; implies --http-use-ssl. Default: false.",
        |g, v| v.boolean().map(|given| g.options.http_tls.credentials.mutual = given),
    ),
    NEREID.set("http-server-cert", "path", "The HTTP port's certificate, PEM.", |g, v| {
        g.options.http_tls.credentials.certificate = v.path();
        Ok(())
    }),
    NEREID.set("http-server-key", "path", "The key of the HTTP port's certificate, PEM.", |g, v| {
        g.options.http_tls.credentials.key = v.path();
        Ok(())
    }),
    NEREID.set(
        "http-root-cert",
        "path",
        "Certificates that those of HTTP clients are checked against, PEM.",
        |g, v| {
            g.options.http_tls.credentials.roots = v.path();
            Ok(())
        },
    ),
    NEREID.set("http-unix-socket", "path", "Unix socket that HTTP is served on beside its port.", |g, v| {
        g.options.http_unix_socket = file(v);
        Ok(())
    }),
    NEREID.set("grpc-unix-socket", "path", "Unix socket that gRPC is served on beside its port.", |g, v| {
        g.options.grpc_unix_socket = file(v);
        Ok(())
    }),
    NEREID.set(
        "http-restricted-api-file",
        "path",
        "A file with keys as those of --http-restricted-api, several for each group; it is read again when it changes.",
        |g, v| {
            g.options.http_restricted_file = file(v);
            Ok(())
        },
    ),
    NEREID.set("grpc-restricted-protocol-file", "path", "The same for --grpc-restricted-protocol.", |g, v| {
        g.options.grpc_restricted_file = file(v);
        Ok(())
    }),
    NEREID.set(
        "audit-log",
        "path or -",
        "A file to which a line is appended for every call that changes the server: loads, shared memory, settings of \
         traces and the log; -: stdout.",
        |g, v| {
            g.options.audit_log = file(v);
            Ok(())
        },
    ),
    NEREID.set(
        "request-memory-byte-size",
        "integer",
        "Bytes that requests and answers may hold in all; what does not fit is refused. Default: 0, half of what the \
         machine, its control groups and the limits of the process leave.",
        |g, v| v.bytes().map(|given| g.options.request_memory_byte_size = given),
    ),
    NEREID.set(
        "request-memory-connection-share",
        "fraction",
        "The part of these bytes that one connection may hold. Default: 0.5.",
        |g, v| share(v).map(|given| g.options.request_memory_connection_share = given),
    ),
    NEREID.set(
        "request-memory-client-share",
        "fraction",
        "The part of these bytes that the connections from one address may hold together. Default: 0.75.",
        |g, v| share(v).map(|given| g.options.request_memory_client_share = given),
    ),
    NEREID.set(
        "grpc-max-receive-message-size",
        "integer",
        "Longest message in bytes that a gRPC client may send. Default: 2147483647.",
        |g, v| v.positive().map(|given| g.options.grpc_max_receive_message_size = given.unsigned_abs()),
    ),
    NEREID.set(
        "request-memory-model-share",
        "fraction",
        "The part of these bytes that the inputs of clients' requests to one model may hold. Default: 0.75.",
        |g, v| share(v).map(|given| g.options.request_memory_model_share = given),
    ),
    NEREID.set(
        "request-count-connection-share",
        "fraction",
        "The part of the calls that its I/O thread takes at a time that one connection may have. Default: 0.5.",
        |g, v| share(v).map(|given| g.options.request_count_connection_share = given),
    ),
    NEREID.set(
        "request-count-client-share",
        "fraction",
        "The part of the calls of all I/O threads that the connections from one address may have together, beyond one \
         call of each connection. Default: 0.75.",
        |g, v| share(v).map(|given| g.options.request_count_client_share = given),
    ),
    NEREID.set(
        "request-count-model-share",
        "fraction",
        "The part of the calls of all I/O threads that may wait for one model. Default: 0.75.",
        |g, v| share(v).map(|given| g.options.request_count_model_share = given),
    ),
    NEREID.set(
        "deadline-admission",
        "on|off",
        "Whether a model refuses a request at once whose deadline of gRPC, or whose parameter timeout, ends before the \
         requests in front of it are expected to be executed; a model's parameter deadline_admission overrides it. \
         Default: off.",
        |g, v| on_or_off(v).map(|given| g.options.deadline_admission = given),
    ),
];

/// The same as `--backend-config=python,<key>=<value>`.
fn python_setting(given: &mut Given, key: &str, value: String) {
    let backend = Some(python::NAME.to_owned());
    given.options.backend_settings.push(BackendSetting { backend, key: key.to_owned(), value });
}

/// Something, and not more than all.
fn share(value: Value<'_>) -> Result<f64, ValueError> {
    let share = value.float()?;
    if share > 0.0 && share <= 1.0 { Ok(share) } else { Err(ValueError::OutOfBound(value.text())) }
}

fn execute_timeout(value: Value<'_>) -> Result<f64, ValueError> {
    let secs = value.float()?;
    match (0.0..=python::EXECUTE_TIMEOUT_SECS_MAX).contains(&secs) {
        true => Ok(secs),
        false => Err(ValueError::OutOfBound(value.text())),
    }
}

fn drain_delay(value: Value<'_>) -> Result<Duration, ValueError> {
    let secs = value.float()?;
    match (0.0..=DRAIN_DELAY_SECS_MAX).contains(&secs) {
        true => Ok(Duration::from_secs_f64(secs)),
        false => Err(ValueError::OutOfBound(value.text())),
    }
}

fn stall_timeout(value: Value<'_>) -> Result<Option<Duration>, ValueError> {
    let secs = value.float()?;
    match (0.0..=STALL_TIMEOUT_SECS_MAX).contains(&secs) {
        true => Ok(Some(Duration::from_secs_f64(secs)).filter(|limit| !limit.is_zero())),
        false => Err(ValueError::OutOfBound(value.text())),
    }
}

/// An empty path is none.
fn file(value: Value<'_>) -> Option<PathBuf> {
    Some(value.path()).filter(|path| !path.as_os_str().is_empty())
}

fn io_cores(value: Value<'_>) -> Result<IoCores, ValueError> {
    match value.text().parse() {
        Ok(cores) => Ok(cores),
        // At least one core is required: zero is a number, but out of bounds.
        Err(_) if value.text() == "0" => Err(ValueError::OutOfBound(value.text())),
        Err(_) => Err(ValueError::Number(value.text())),
    }
}

/// A spin of more than a second has no use.
fn spin_us(value: Value<'_>) -> Result<u32, ValueError> {
    match value.natural()? {
        given @ 0..=1_000_000 => Ok(given),
        _ => Err(ValueError::OutOfBound(value.text())),
    }
}

fn spin_percent(value: Value<'_>) -> Result<u32, ValueError> {
    Some(value.natural()?).filter(|given| *given <= 100).ok_or_else(|| ValueError::OutOfBound(value.text()))
}

/// At least `least`, at most some 11 days.
fn seconds(value: Value<'_>, least: u32) -> Result<u32, ValueError> {
    let given = Some(value.natural()?).filter(|given| (least..=1_000_000).contains(given));
    given.ok_or_else(|| ValueError::OutOfBound(value.text()))
}

fn bytes_a_second(value: Value<'_>) -> Result<u32, ValueError> {
    Some(value.natural()?).filter(|given| *given <= 1 << 30).ok_or_else(|| ValueError::OutOfBound(value.text()))
}

fn io_engine(value: Value<'_>) -> Result<IoEngine, ValueError> {
    match value.lower_case().as_str() {
        "auto" => Ok(IoEngine::Auto),
        "io_uring" => Ok(IoEngine::IoUring),
        "epoll" => Ok(IoEngine::Epoll),
        _ => Err(value.unknown_word()),
    }
}

fn run_to_completion(value: Value<'_>) -> Result<RunToCompletion, ValueError> {
    match value.lower_case().as_str() {
        "off" => Ok(RunToCompletion::Off),
        "declared" => Ok(RunToCompletion::Declared),
        "auto" => Ok(RunToCompletion::Auto),
        "measured" => Ok(RunToCompletion::Measured),
        _ => Err(value.unknown_word()),
    }
}

fn orca(value: Value<'_>) -> Result<Orca, ValueError> {
    match value.lower_case().as_str() {
        "off" => Ok(Orca::Off),
        "on-request" => Ok(Orca::OnRequest),
        "always" => Ok(Orca::Always),
        _ => Err(value.unknown_word()),
    }
}

fn engine_metrics(value: Value<'_>) -> Result<EngineMetrics, ValueError> {
    match value.lower_case().as_str() {
        "none" => Ok(EngineMetrics::None),
        "vllm" => Ok(EngineMetrics::Vllm),
        "triton" => Ok(EngineMetrics::Triton),
        "trtllm" => Ok(EngineMetrics::Trtllm),
        "sglang" => Ok(EngineMetrics::Sglang),
        _ => Err(value.unknown_word()),
    }
}

fn on_or_off(value: Value<'_>) -> Result<bool, ValueError> {
    match value.lower_case().as_str() {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(value.unknown_word()),
    }
}
