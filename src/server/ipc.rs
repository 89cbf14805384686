//! Clients of shared-memory rings, as the server sets them up for its shards and shows them on its metrics page.

use std::sync::Arc;

use tracing::warn;

use super::options::Options;
use crate::api::Facts;
use nereid_ipc::{Layout, Sizes};
use nereid_net::{IpcCounts, IpcSettings, RefusedClient};
use nereid_observe::metrics::{CallbackMetric, MetricError, Registry};

fn sizes(options: &Options) -> Sizes {
    let bytes = |given: u64| usize::try_from(given).unwrap_or(usize::MAX);
    Sizes { ring_bytes: bytes(options.ipc.ring_bytes), arena_bytes: bytes(options.ipc.arena_bytes) }
}

/// Bytes of the memory of one client, all of it addresses of the server.
pub fn bytes_of_each(options: &Options) -> u64 {
    Layout::new(sizes(options), b"").map_or(0, |layout| layout.size as u64)
}

/// What clients get, on all shards together.
pub fn settings(options: &Options, facts: &Facts, counts: &Arc<IpcCounts>) -> IpcSettings {
    let regions = Arc::clone(&facts.regions);
    IpcSettings {
        sizes: sizes(options),
        users: options.ipc.users.clone(),
        clients_max: options.ipc.clients_max as usize,
        counts: Arc::clone(counts),
        lend: Arc::new(move |name, segment, at, len| regions.system.lend(name, segment, at, len)),
    }
}

/// Its families. Servers without `--ipc-path` have none of them.
pub fn metrics(metrics: &Registry, options: &Options, counts: &Arc<IpcCounts>) -> Vec<CallbackMetric> {
    let of_each = bytes_of_each(options);
    let most = of_each as f64 * f64::from(options.ipc.clients_max);
    let (clients, bytes) = (Arc::clone(counts), Arc::clone(counts));
    let gauges = [
        metrics.gauge("nereid_ipc_clients", "Clients of shared-memory rings that have memory", &[], move || {
            clients.clients() as f64
        }),
        metrics.gauge("nereid_ipc_bytes", "Bytes that the memory of these clients may take", &[], move || {
            bytes.clients() as f64 * of_each as f64
        }),
        metrics.gauge("nereid_ipc_bytes_limit", "Bytes that the memory of all of them may take", &[], move || most),
    ];
    let refused = RefusedClient::ALL.map(|reason| {
        let (counts, labels) = (Arc::clone(counts), [("reason", reason.name())]);
        let help = "Clients of shared-memory rings that were refused";
        metrics.counter("nereid_ipc_refused_clients_total", help, &labels, move || counts.refused(reason))
    });
    let keep = |metric: Result<_, MetricError>| metric.map_err(|error| warn!("a metric is left out: {error}")).ok();
    gauges.into_iter().chain(refused).filter_map(keep).collect()
}
