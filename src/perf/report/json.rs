//! Everything that was measured, for programs: the plan, the machine, and each load point with its whole histogram.

use std::time::{Duration, UNIX_EPOCH};

use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};

use super::figures::{Breakdown, Phases, doubts};
use super::{Report, client, generation, version};
use crate::generator_limit::engine_name;
use crate::{
    ClientSide, Compression, Form, Load, LoadPoint, Measurement, Phase, Plan, Protocol, Recording, ServerSide,
    SharedMemory, Spacing, ThreadUsage, Window,
};
use nereid_recording::Contents;

/// Changes with the meaning of what stands in the file.
pub const FORMAT: u64 = 1;
const PERCENTILES: [f64; 12] = [1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.99, 99.999];

pub fn render(report: &Report<'_>) -> Value {
    let model_info = report.model_info;
    json!({
        "format": FORMAT,
        "program": version(),
        "began_unix_ns": report.began.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64),
        "machine": {
            "cpu": report.machine.cpu,
            "cores": report.machine.cores,
            "virtual": report.machine.is_virtual,
            "kernel": report.machine.kernel,
            "governor": report.machine.governor,
            "memory_mib": report.machine.memory_mib,
            "load_average": report.machine.load_average,
        },
        "server": {
            "name": model_info.server,
            "version": model_info.server_version,
            "build": Some(&model_info.server_build).filter(|build| !build.is_empty()),
        },
        "model": {
            "name": model_info.model,
            "version": model_info.version,
            "platform": model_info.platform,
            "max_batch_size": model_info.max_batch_size,
            "decoupled": model_info.decoupled,
            "sequences": model_info.sequences,
            "response_cache": model_info.response_cache,
        },
        "plan": plan(report.plan, report.batch),
        "points": report.points.iter().map(|found| point(report, found)).collect::<Vec<_>>(),
    })
}

/// Values of headers may be secrets: only their names are reported.
fn plan(plan: &Plan, batch: u32) -> Value {
    let work = &plan.work;
    let form = |form: Form| match form {
        Form::Binary => "binary",
        Form::Json => "json",
    };
    let inputs = |template: &crate::Template| {
        let inputs = template.inputs.iter();
        inputs
            .map(|input| {
                json!({
                    "name": input.name, "datatype": input.datatype, "shape": input.shape, "bytes": input.data.len()
                })
            })
            .collect::<Vec<_>>()
    };
    json!({
        "endpoint": plan.target.endpoint.to_string(),
        "protocol": match plan.target.protocol {
            Protocol::Http => "http",
            Protocol::GrpcUnary => "grpc",
            Protocol::GrpcStream => "grpc_stream",
            Protocol::Ipc => "ipc",
        },
        "tls": plan.target.tls.is_some(),
        "service": if plan.service.openai().is_some() { "openai" } else { "triton" },
        "openai": plan.service.openai().map(generation::json::plan),
        "model": plan.model,
        "version": plan.version,
        "batch_size": batch,
        "streams": work.streams.len(),
        "requests": work.streams.iter().map(Vec::len).sum::<usize>(),
        "first_request": work.streams.first().and_then(|stream| stream.first()).map(inputs),
        "headers": work.headers.iter().map(|(name, _)| name).collect::<Vec<_>>(),
        "input_tensor_format": form(work.input_form),
        "output_tensor_format": form(work.output_form),
        "compression": match work.compression {
            Compression::None => "none",
            Compression::Gzip => "gzip",
            Compression::Deflate => "deflate",
        },
        "shared_memory": match work.shared_memory {
            SharedMemory::None => "none",
            SharedMemory::System { .. } => "system",
            SharedMemory::Arena { .. } => "arena",
        },
        "decoupled": work.decoupled,
        "priority": work.priority,
        "queue_timeout_us": work.queue_timeout_us,
        "sequences": work.sequences.as_ref().map(|sequences| json!({
            "at_once": sequences.at_once,
            "length": sequences.length,
            "length_variation_percent": sequences.length_variation_percent,
            "first_id": sequences.first_id,
            "end_id": sequences.end_id,
        })),
        "recording": work.recording.as_ref().map(recording),
        "load": load(&plan.load),
        "rules": {
            "window_ms": match plan.rules.window {
                Window::Time(time) => Some(time.as_millis() as u64),
                Window::Count(_) => None,
            },
            "window_requests": match plan.rules.window {
                Window::Time(_) => None,
                Window::Count(count) => Some(count),
            },
            "stability_percent": plan.rules.stability_percent,
            "trials_max": plan.rules.trials_max,
            "percentile": plan.rules.percentile,
            "warm_up_requests": plan.rules.warm_up_requests,
            "request_count": plan.rules.request_count,
            "latency_threshold_ms": plan.rules.latency_threshold.map(|threshold| threshold.as_secs_f64() * 1e3),
            "binary_search": plan.rules.binary_search,
            "seed": plan.rules.seed,
        },
        "client": {
            "connections": plan.client.connections,
            "unique_connections": plan.client.unique_connections,
            "threads": plan.client.threads,
            "pinned_to": plan.client.pin_to,
            "engine": plan.client.engine.map(|engine| format!("{engine:?}")),
            "spin": client::spins(plan),
            "ring_spin_us": plan.client.ring_spin.as_micros() as u64,
            "http2": client::Http2::of(plan).map(|http2| json!({
                "frame_bytes_max": http2.frame_bytes_max,
                "stream_window_bytes": http2.stream_window_bytes,
                "connection_window_bytes": http2.connection_window_bytes,
            })),
            "request_timeout_ms": plan.client.request_timeout.as_millis() as u64,
            "outstanding_max": plan.client.outstanding_max,
        },
    })
}

fn recording(recording: &Recording) -> Value {
    json!({
        "file": recording.file.to_string_lossy(),
        "requests": recording.used,
        "requests_with_made_contents": recording.made,
        "made_contents": match recording.contents {
            _ if recording.made == 0 => None,
            Contents::Zero => Some("zeros"),
            Contents::Random(_) => Some("random"),
        },
        "left_out": recording.left_out.total(),
        "reasons": recording.left_out.counts,
        "other_reasons": recording.left_out.other,
        "note": recording.note,
    })
}

fn load(load: &Load) -> Value {
    match load {
        Load::Concurrency(sweep) => {
            json!({ "kind": "concurrency", "start": sweep.start, "end": sweep.end, "step": sweep.step })
        }
        Load::Rate { sweep, spacing } => json!({
            "kind": "rate", "start": sweep.start, "end": sweep.end, "step": sweep.step,
            "spacing": match spacing {
                Spacing::Constant => "constant",
                Spacing::Poisson => "poisson",
            },
        }),
        Load::Intervals(intervals) => json!({ "kind": "intervals", "count": intervals.len() }),
        Load::Recorded(times) => {
            json!({ "kind": "recorded", "count": times.offsets.len(), "speed": times.speed, "rate": times.rate() })
        }
    }
}

fn point(report: &Report<'_>, point: &Measurement) -> Value {
    let (kind, value) = match point.load {
        LoadPoint::Concurrency(count) => ("concurrency", json!(count)),
        LoadPoint::Rate(rate) => ("rate", json!(rate)),
        LoadPoint::Intervals(rate) => ("intervals", json!(rate)),
    };
    let openai = report.plan.service.openai();
    // Without the server's statistics, all of the time in a server that generates would be the network's.
    let breakdown: Option<Map<String, Value>> = openai
        .is_none()
        .then(|| Breakdown::known(point).iter().map(|(name, us)| (name.replace(' ', "_"), json!(us))).collect());
    let metrics: Map<String, Value> = point
        .metrics
        .iter()
        .map(|(name, figures)| {
            let figures = json!({
                "samples": figures.samples, "mean": figures.mean, "max": figures.max, "first": figures.first,
                "last": figures.last,
            });
            (name.clone(), figures)
        })
        .collect();
    let windows = point.windows.iter().map(|window| {
        json!({
            "seconds": window.wall.as_secs_f64(), "completed": window.completed, "failed": window.failed,
            "mean_us": (window.completed > 0).then_some(window.mean_ns / 1e3),
            "judged_us": (window.completed > 0).then_some(window.judged_ns / 1e3),
            "counted": window.counted,
        })
    });
    json!({
        "load": { "kind": kind, "value": value },
        "stable": point.stable,
        "within_threshold": point.within_threshold,
        "sustainable": !point.limits.unsustainable,
        "client_is_bottleneck": point.limits.client_is_bottleneck(),
        "behind_schedule": point.limits.behind_schedule,
        "busiest_thread": point.client.busiest(),
        "void": point.is_void(),
        "generator_limit": point.limits.generator.map(|limit| json!({
            "kind": limit.name(), "evidence": limit.to_string(), "next_step": limit.next_step(),
        })),
        "doubts": client::void(point).into_iter().chain(doubts(point)).collect::<Vec<_>>(),
        "seconds": point.wall.as_secs_f64(),
        "sent": point.counts.sent,
        "completed": point.counts.completed,
        "failed": point.counts.failed,
        "responses": point.counts.responses,
        "sequences": point.counts.sequences,
        "requests_per_s": point.rate(),
        "responses_per_s": point.response_rate(),
        "inferences_per_s": report.inferences_per_s(point),
        "bytes_sent": point.counts.bytes_sent,
        "bytes_received": point.counts.bytes_received,
        "client": of_client(&point.client),
        "client_cpu_us": point.client.cpu().as_secs_f64() * 1e6,
        "client_cpu_us_per_request": (point.counts.ended() > 0).then_some(point.client_cpu_per_request_ns() / 1e3),
        "latency": histogram(&point.histograms.latency_ns),
        "service": histogram(&point.histograms.service_ns),
        "send_lag": histogram(&point.histograms.send_lag_ns),
        "schedule_lag": histogram(&point.histograms.schedule_lag_ns),
        "first_response": histogram(&point.histograms.first_response_ns),
        "between_responses": histogram(&point.histograms.between_responses_ns),
        "breakdown_us": breakdown,
        "generation": openai.map(|openai| generation::json::point(openai, point)),
        "server": point.server.as_ref().map(server),
        "composing": point.composing.iter().map(server).collect::<Vec<_>>(),
        "errors": point.errors.counts,
        "other_errors": point.errors.other,
        "windows": windows.collect::<Vec<_>>(),
        "timeline": {
            "slot_s": point.timeline.slot.as_secs_f64(),
            "completed": point.timeline.completed,
            "covered_s": point.timeline.covered.iter().map(Duration::as_secs_f64).collect::<Vec<_>>(),
        },
        "metrics": metrics,
        "requests_recorded": point.records.len(),
        "requests_not_recorded": point.records_dropped,
    })
}

/// `buckets` are pairs of the highest nanosecond of a bucket and how many fell into it: enough to add histograms of
/// several runs, or to compute any other percentile.
pub(super) fn histogram(histogram: &Histogram<u64>) -> Value {
    if histogram.is_empty() {
        return json!({ "count": 0 });
    }
    let us = |ns: u64| ns as f64 / 1e3;
    let percentiles: Map<String, Value> = PERCENTILES
        .iter()
        .map(|percentile| {
            let name = format!("p{}", super::figures::percentile_name(*percentile));
            (name, json!(us(histogram.value_at_quantile(percentile / 100.0))))
        })
        .collect();
    let buckets: Vec<[u64; 2]> = histogram
        .iter_recorded()
        .map(|bucket| [bucket.value_iterated_to(), bucket.count_since_last_iteration()])
        .collect();
    json!({
        "count": histogram.len(),
        "mean_us": histogram.mean() / 1e3,
        "deviation_us": histogram.stdev() / 1e3,
        "min_us": us(histogram.min()),
        "max_us": us(histogram.max()),
        "percentiles_us": percentiles,
        "buckets_ns": buckets,
    })
}

/// `cores` are those that all threads together used; `waiting` is the part of the time in which a thread could have run
/// and had no core, and null where the kernel does not count that.
fn of_client(client: &ClientSide) -> Value {
    let thread = |thread: &ThreadUsage| {
        json!({
            "wall_us": thread.wall_ns as f64 / 1e3,
            "cpu_us": thread.cpu_ns as f64 / 1e3,
            "spun_us": thread.spun_ns as f64 / 1e3,
            "run_queue_us": thread.run_queue_ns.map(|ns| ns as f64 / 1e3),
            "busy": thread.busy(),
            "waiting": thread.waiting(),
        })
    };
    json!({
        "connections": client.connections,
        "engine": engine_name(client.engine),
        "cores": client.cores(),
        "threads": client.threads.iter().map(thread).collect::<Vec<_>>(),
    })
}

fn server(server: &ServerSide) -> Value {
    let phase = |phase: Phase| json!({ "count": phase.count, "ns": phase.ns });
    json!({
        "model": server.model,
        "version": server.version,
        "inferences": server.inferences,
        "executions": server.executions,
        "mean_batch": server.mean_batch(),
        "overhead_us": Phases::of(server).overhead(),
        "success": phase(server.success),
        "fail": phase(server.fail),
        "queue": phase(server.queue),
        "compute_input": phase(server.compute_input),
        "compute_infer": phase(server.compute_infer),
        "compute_output": phase(server.compute_output),
        "cache_hit": phase(server.cache_hit),
        "cache_miss": phase(server.cache_miss),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::samples::Sample;

    #[test]
    fn what_is_read_back_is_what_was_measured() {
        let sample = Sample::new(&[LoadPoint::Concurrency(1), LoadPoint::Concurrency(2)]);
        let text = serde_json::to_string_pretty(&render(&sample.report())).expect("JSON");
        let value: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(value["points"].as_array().map(Vec::len), Some(2));
        let point = &value["points"][1];
        assert_eq!(point["load"], json!({ "kind": "concurrency", "value": 2 }));
        assert_eq!(point["completed"], json!(1000));
        let latency = &point["latency"];
        let expected = &sample.points[1].histograms.latency_ns;
        let mut again = Histogram::<u64>::new_with_bounds(1, crate::LATENCY_MAX_NS, 3).expect("a histogram");
        for bucket in latency["buckets_ns"].as_array().expect("buckets") {
            let pair = (bucket[0].as_u64().expect("ns"), bucket[1].as_u64().expect("count"));
            again.record_n(pair.0, pair.1).expect("within bounds");
        }
        assert_eq!(again.len(), expected.len());
        for quantile in [0.1, 0.5, 0.9, 0.99, 0.999, 1.0] {
            assert_eq!(again.value_at_quantile(quantile), expected.value_at_quantile(quantile), "{quantile}");
        }
        let p99 = latency["percentiles_us"]["p99"].as_f64().expect("a number");
        assert_eq!(p99, expected.value_at_quantile(0.99) as f64 / 1e3);
        assert_eq!(point["server"]["queue"], json!({ "count": 1000, "ns": 5_000_000 }));
        assert_eq!(point["send_lag"], json!({ "count": 0 }));
    }

    #[test]
    fn what_a_recording_gives_and_what_not_is_told() {
        let mut sample = Sample::new(&[LoadPoint::Intervals(2.0)]);
        assert_eq!(render(&sample.report())["plan"]["recording"], Value::Null);
        sample.record();
        let plan = &render(&sample.report())["plan"];
        let recording = json!({
            "file": "monday.rec", "requests": 4, "requests_with_made_contents": 3, "made_contents": "random",
            "left_out": 2,
            "reasons": { "it is of another model": 2 }, "other_reasons": 0, "note": "the file ends",
        });
        assert_eq!(plan["recording"], recording);
        let made = |sample: &Sample| render(&sample.report())["plan"]["recording"]["made_contents"].clone();
        let recording = sample.plan.work.recording.as_mut().unwrap();
        recording.contents = Contents::Zero;
        assert_eq!(made(&sample), "zeros");
        sample.plan.work.recording.as_mut().unwrap().made = 0;
        assert_eq!(made(&sample), Value::Null);
        assert_eq!(plan["load"], json!({ "kind": "recorded", "count": 3, "speed": 2.0, "rate": 2.0 }));
    }

    #[test]
    fn secrets_stay_where_they_are() {
        let sample = Sample::new(&[LoadPoint::Rate(1.0)]);
        let text = render(&sample.report()).to_string();
        assert!(text.contains("authorization") && !text.contains("secret"), "{text}");
    }
}
