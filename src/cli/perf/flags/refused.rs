//! Flags of perf_analyzer that Nereid refuses, with the reason and a replacement.

use super::{Action, Flag};

const TRACING: &str = "tracing belongs to the server: give it --trace-config, or change it with POST /v2/trace/setting \
                       before the run";
const IN_PROCESS: &str = "it names a server inside the load generator; start `nereid serve` on this machine and \
                          measure it over a Unix socket, -u unix:<path>";
const SESSIONS: &str = "it drives conversations with chat servers; for sequences of a model use --concurrency-range";

pub static FLAGS: &[Flag] = &[
    refuse(
        "periodic-concurrency-range",
        "start:end:step",
        "load that grows while it is measured has no stable figures; use --concurrency-range for a sweep, or \
         --request-intervals for a load with a shape of its own",
    ),
    refuse("request-period", "responses", "it belongs to --periodic-concurrency-range; use --concurrency-range"),
    refuse("trace-file", "path", TRACING),
    refuse("trace-level", "level", TRACING),
    refuse("trace-rate", "rate", TRACING),
    refuse("trace-count", "count", TRACING),
    refuse("log-frequency", "count", TRACING),
    refuse("triton-server-directory", "path", IN_PROCESS),
    refuse("model-repository", "path", IN_PROCESS),
    refuse("model-signature-name", "name", "it belongs to TensorFlow Serving, whose protocol is not supported"),
    refuse("grpc-method", "method", "gRPC methods other than ModelInfer and ModelStreamInfer are not called"),
    refuse("session-concurrency", "count", SESSIONS),
    refuse("session-turns-mean", "count", SESSIONS),
    refuse("session-turn-delay-mean", "ms", SESSIONS),
    refuse(
        "schedule",
        "list",
        "write the times between requests into a file, in microseconds, and use --request-intervals",
    ),
    Flag {
        value: None,
        ..refuse(
            "fixed-schedule",
            "",
            "times inside input data are not read; write the times between requests into a file, in microseconds, and \
             use --request-intervals",
        )
    },
    Flag {
        value: None,
        ..refuse("enable-mpi", "", "processes do not wait for each other; --threads lets one process use many cores")
    },
];

const fn refuse(name: &'static str, value: &'static str, reason: &'static str) -> Flag {
    Flag { name, letter: None, is_own: false, value: Some(value), help: reason, action: Action::Refuse(reason) }
}
