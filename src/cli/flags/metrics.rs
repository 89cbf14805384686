//! Flags of the metrics port and of tracing.

use super::{Flag, Group};

const METRICS: Group = Group("Metrics");
const TRACING: Group = Group("Tracing");

pub static FLAGS: &[Flag] = &[
    METRICS.set("allow-metrics", "boolean", "Whether to serve metrics. Default: true.", |g, v| {
        v.boolean().map(|given| g.options.metrics.allowed = given)
    }),
    METRICS.set("allow-gpu-metrics", "boolean", "Whether metrics show the GPUs of the host. Default: true.", |g, v| {
        v.boolean().map(|given| g.options.allow_gpu_metrics = given)
    }),
    METRICS.set(
        "allow-cpu-metrics",
        "boolean",
        "Whether metrics show the CPU and memory of the host. Default: true.",
        |g, v| v.boolean().map(|given| g.options.allow_cpu_metrics = given),
    ),
    METRICS.set("metrics-address", "string", "Address to listen on. Default: that of HTTP.", |g, v| {
        g.options.metrics.address = v.text();
        Ok(())
    }),
    METRICS.set("metrics-port", "integer", "Port to listen on. Default: 8002.", |g, v| {
        v.int().map(|given| g.options.metrics.port = given)
    }),
    METRICS.set(
        "metrics-interval-ms",
        "integer",
        "Twice the time between two readings of the host's metrics. Default: 2000.",
        |g, v| v.natural().map(|given| g.options.metrics_interval_ms = given),
    ),
    METRICS.set(
        "metrics-config",
        "<setting>=<value>",
        "Which latencies are shown as counters, histograms and summaries. May be given several times.",
        |g, v| v.metrics_setting().map(|given| g.options.metrics_settings.push(given)),
    ),
    TRACING.set(
        "trace-config",
        "[<mode>,]<setting>=<value>",
        "Setting of the traces of requests; level=OFF is none. May be given several times.",
        |g, v| g.trace.add(v),
    ),
];
