//! The snapshot that the inspect page polls (docs/inspect-page.md): one JSON document about the whole server.
//!
//! A control thread writes it from counters that are there anyway. No shard, worker or request does anything for it,
//! except that slow requests are recorded ([`slowest`]).

mod models;

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::core::Core;
use super::options::ModelControl;
use crate::api::{InspectQuery, SERVER_VERSION, ServerState};
use nereid_clock::now_ns;
use nereid_gpu::Gpu;
use nereid_net::Gauges;
use nereid_observe::log::{self, recent};
use nereid_observe::statistics::FailureReason;
use nereid_observe::statistics::slowest::{self, Ending, SlowRequest};
use nereid_shard::{Load, placement};

/// Most bytes of a reason or a value in the snapshot.
const TEXT_BYTES_MAX: usize = 2048;

/// A flag with the value that serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlagValue {
    pub name: &'static str,
    /// Without secrets.
    pub value: String,
    pub source: FlagSource,
}

/// Where the value of a flag comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlagSource {
    /// The command line.
    Flag,
    Default,
    /// This variable.
    Environment(&'static str),
}

/// The counts of the shards.
struct ShardReadings {
    connections: Load,
    gauges: Vec<Arc<Gauges>>,
}

/// What snapshots are made from.
pub struct Inspect {
    core: Arc<Core>,
    flags: Value,
    started: Instant,
    /// Set once the shards run.
    shards: OnceLock<ShardReadings>,
}

impl Inspect {
    pub fn new(core: Arc<Core>, flags: &[FlagValue]) -> Arc<Inspect> {
        let flag = |flag: &FlagValue| {
            let source = match flag.source {
                FlagSource::Flag => "flag".to_owned(),
                FlagSource::Default => "default".to_owned(),
                FlagSource::Environment(variable) => format!("environment: {variable}"),
            };
            json!({ "name": flag.name, "value": flag.value, "source": source })
        };
        let flags = flags.iter().map(flag).collect();
        Arc::new(Inspect { core, flags, started: Instant::now(), shards: OnceLock::new() })
    }

    /// The shards of the server, in their order.
    pub fn set_shards<'a>(&self, connections: &Load, gauges: impl Iterator<Item = &'a Arc<Gauges>>) {
        let readings = ShardReadings { connections: connections.clone(), gauges: gauges.cloned().collect() };
        let _ = self.shards.set(readings);
    }

    /// The snapshot as JSON text.
    pub fn render(&self, query: &InspectQuery) -> String {
        let map = self.core.lifecycle.map();
        let (models, left_out) = models::overview(&map);
        let mut snapshot = json!({
            "server": self.server(),
            "management": self.management(query),
            "log": log_settings(),
            "models": models,
            "models_left_out": left_out,
            "shards": self.shards(),
            "memory": self.memory(),
            "gpus": self.core.facts.settings.gpus.iter().map(gpu).collect::<Vec<_>>(),
            "messages": recent::messages().iter().map(message).collect::<Vec<_>>(),
            "slow": slow_requests(),
            "flags": self.flags,
        });
        if let (Some(name), Some(members)) = (&query.model, snapshot.as_object_mut()) {
            let detail = models::detail(&map, name, query);
            members.insert("model".to_owned(), detail);
        }
        snapshot.to_string()
    }

    fn server(&self) -> Value {
        let state = match self.core.facts.state() {
            ServerState::Starting => "STARTING",
            ServerState::Ready => "READY",
            ServerState::Leaving => "LEAVING",
            ServerState::Exiting => "EXITING",
            ServerState::Failed => "FAILED",
        };
        json!({
            "name": self.core.options.server_id,
            "version": env!("CARGO_PKG_VERSION"),
            "triton_version": SERVER_VERSION,
            "build": format!(
                "{} {}, {}",
                std::env::consts::OS,
                std::env::consts::ARCH,
                if cfg!(debug_assertions) { "development build" } else { "release build" }
            ),
            "state": state,
            "pid": std::process::id(),
            "uptime_ms": millis(self.started.elapsed()),
            "now_ms": millis(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()),
            // By which the page computes rates: a clock that is never set.
            "clock_ns": now_ns(),
            "stuck_shards": self.core.facts.stuck_shards.load(Ordering::Relaxed),
            "stale_deliveries": self.core.facts.stale_deliveries.load(Ordering::Relaxed),
        })
    }

    fn management(&self, query: &InspectQuery) -> Value {
        let mode = match self.core.options.model_control {
            ModelControl::None => "none",
            ModelControl::Poll { .. } => "poll",
            ModelControl::Explicit => "explicit",
        };
        json!({
            "mode": mode,
            "repository_header": query.repository_header,
            "logging_header": query.logging_header,
            "operations": self.core.lifecycle.operations(),
        })
    }

    fn shards(&self) -> Vec<Value> {
        let Some(readings) = self.shards.get() else { return Vec::new() };
        let of = |(shard, gauges): (usize, &Arc<Gauges>)| {
            json!({
                "connections": readings.connections.on(shard),
                "http": gauges.http_connections.load(Ordering::Relaxed),
                "grpc": gauges.grpc_connections.load(Ordering::Relaxed),
                "calls": gauges.in_flight.load(Ordering::Relaxed),
            })
        };
        readings.gauges.iter().enumerate().map(of).collect()
    }

    fn memory(&self) -> Value {
        let machine = placement::memory_use();
        let (pinned_used, pinned_total) = self.core.facts.settings.gpus.pinned().usage();
        json!({
            "requests_used": self.core.pool.bytes_in_use(),
            "requests_limit": self.core.pool.limit(),
            "pinned_used": pinned_used,
            "pinned_total": pinned_total,
            "resident": resident_bytes(),
            "machine_used": machine.as_ref().map(|memory| memory.used_bytes),
            "machine_limit": machine.as_ref().map(|memory| memory.limit_bytes),
        })
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// A text without what is beyond the bound.
fn bounded(text: &str) -> &str {
    text.get(..text.floor_char_boundary(TEXT_BYTES_MAX)).unwrap_or_default()
}

/// Memory of this process that is in RAM, as the kernel counts it.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

fn log_settings() -> Value {
    let Some(logger) = log::installed() else { return Value::Null };
    let settings = logger.settings();
    json!({
        "info": settings.info,
        "warning": settings.warning,
        "error": settings.error,
        "verbose_level": settings.verbose_level,
        "format": settings.format.name(),
        "file": settings.file.map(|file| file.display().to_string()),
        "dropped": logger.dropped(),
    })
}

fn gpu(gpu: &Gpu) -> Value {
    let description = gpu.description();
    // The driver of a device that is lost is asked no more.
    let memory = if gpu.failure().is_none() { gpu.memory().ok() } else { None };
    let (pool_used, pool_total) = gpu.pool_usage();
    json!({
        "id": gpu.id(),
        "name": description.name,
        "uuid": description.uuid,
        "capability": format!("{:.1}", description.capability()),
        "total": description.memory_bytes,
        "used": memory.map(|(free, total)| total.saturating_sub(free)),
        "pool_used": pool_used,
        "pool_total": pool_total,
        "failure": gpu.failure().map(bounded),
    })
}

fn message(message: &recent::RecentMessage) -> Value {
    json!({
        "severity": message.severity.word(),
        "at_ms": millis(message.at),
        "place": message.place,
        "text": message.message,
    })
}

fn slow_requests() -> Vec<Value> {
    let now_ns = now_ns();
    let of = |request: &SlowRequest| {
        let ending = match request.ending {
            Ending::Success => "success",
            Ending::CacheHit => "cache hit",
            Ending::Failure(FailureReason::Rejected) => "failed: rejected",
            Ending::Failure(FailureReason::Canceled) => "failed: canceled",
            Ending::Failure(FailureReason::Backend) => "failed: backend",
            Ending::Failure(FailureReason::Other) => "failed: other",
        };
        let phases = &request.phases;
        json!({
            "model": request.model.name,
            "version": request.model.version,
            "batch": request.batch_size,
            "ago_ms": now_ns.saturating_sub(request.ended_ns) / 1_000_000,
            "ending": ending,
            "ns": [
                phases.total, phases.queue, phases.compute_input, phases.compute_infer, phases.compute_output,
            ],
        })
    };
    slowest::collect().iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_between_letters() {
        assert_eq!(bounded("short"), "short");
        assert!(bounded(&"é".repeat(TEXT_BYTES_MAX)).len() <= TEXT_BYTES_MAX);
        assert!(resident_bytes().is_some_and(|bytes| bytes > 1 << 20));
    }
}
