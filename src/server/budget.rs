//! The memory that requests and answers may hold, each and in total.

use std::path::Path;
use std::sync::Arc;

use rustix::process::{Resource, getrlimit};

use super::options::Options;
use nereid_memory::Peers;
use nereid_net::{CONNECTIONS_MAX, Shares, WAITING_MAX};
use nereid_scheduler::ModelBounds;
use nereid_shard::placement::memory_granted_bytes;

/// Requests may hold one part in so many of the available memory: models and their computations need the rest.
const SERVER_PART: u64 = 2;
/// Assumed for a machine that does not report its memory.
const UNKNOWN_BYTES: u64 = 4 << 30;
/// Addresses that the allocator reserves for threads started later, though it uses few of them.
const THREADS_BYTES: u64 = 512 << 20;
/// The least that requests may hold by default: with less the server would refuse everything.
const LEAST_BYTES: u64 = 64 << 20;

/// Bytes of the server's budget: the value of `--request-memory-byte-size`, else half of what the machine, the control
/// groups and the process's own limits leave.
pub fn bytes(options: &Options) -> usize {
    let bytes = match options.request_memory_byte_size {
        0 => (available_bytes() / SERVER_PART).max(LEAST_BYTES),
        bytes => bytes,
    };
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// The shares of one connection and one client in a budget, and the numbers of connections and waiting requests, which
/// take memory beside it, on each of `shards`.
pub fn shares(options: &Options, budget_bytes: usize, shards: usize) -> Shares {
    let part = |share: f64| (budget_bytes as f64 * share) as usize;
    let count = |bytes: usize, most: usize| (budget_bytes / BESIDE_PART / bytes / shards.max(1)).clamp(LEAST, most);
    let waiting = count(WAITING_BYTES, WAITING_MAX);
    let client_calls = calls_of(options.request_count_client_share, waiting.saturating_mul(shards.max(1)));
    Shares {
        connection: part(options.request_memory_connection_share),
        connection_calls: calls_of(options.request_count_connection_share, waiting),
        clients: Arc::new(Peers::new(part(options.request_memory_client_share), client_calls)),
        connections: count(CONNECTION_BYTES, CONNECTIONS_MAX),
        waiting,
    }
}

/// What one model may have of a budget, and of the calls of all shards.
pub fn of_model(options: &Options, budget_bytes: usize, calls: usize) -> ModelBounds {
    ModelBounds {
        calls: calls_of(options.request_count_model_share, calls),
        bytes: (budget_bytes as f64 * options.request_memory_model_share) as usize,
    }
}

/// A part of `calls`, one at least: with none every request would be refused. All of them are no bound beside that of
/// all calls, which probes do not share.
fn calls_of(share: f64, calls: usize) -> usize {
    if share < 1.0 { ((calls as f64 * share) as usize).max(1) } else { usize::MAX }
}

/// Idle connections may take one part in so many of the budget beside it, and waiting requests as much again.
const BESIDE_PART: usize = 4;
/// Bytes of an idle connection, its codec and its lists included.
const CONNECTION_BYTES: usize = 20 * 1024;
/// Bytes of a request beside its tensors and texts, from its call to its place in a queue.
const WAITING_BYTES: usize = 4 * 1024;
/// A shard accepts so many of either however small the budget is.
const LEAST: usize = 256;

fn available_bytes() -> u64 {
    let total = field(Path::new("/proc/meminfo"), "MemTotal:").unwrap_or(UNKNOWN_BYTES);
    let granted = memory_granted_bytes().unwrap_or(u64::MAX);
    let status = Path::new("/proc/self/status");
    // These limits count addresses, of which the process uses some already.
    let left = |resource, used, later| {
        let limit = getrlimit(resource).current?;
        Some(limit.saturating_sub(field(status, used).unwrap_or(0)).saturating_sub(later))
    };
    let limits = [left(Resource::As, "VmSize:", THREADS_BYTES), left(Resource::Data, "VmData:", 0)];
    limits.into_iter().flatten().fold(total.min(granted), u64::min)
}

/// Bytes of a line like `VmSize:  1024 kB`.
fn field(file: &Path, name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(file).ok()?;
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = rest.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_the_calls_is_one_at_least_and_the_whole_is_no_bound() {
        assert_eq!((calls_of(0.5, 256), calls_of(0.75, 257), calls_of(0.001, 256)), (128, 192, 1));
        assert_eq!((calls_of(1.0, 256), calls_of(0.5, 0)), (usize::MAX, 1));
    }

    #[test]
    fn a_budget_is_the_configured_size_or_a_part_of_the_memory() {
        let mut options = Options::default();
        let total = field(Path::new("/proc/meminfo"), "MemTotal:").expect("Linux reports its memory");
        let default = bytes(&options) as u64;
        assert!((LEAST_BYTES..=(total / 2).max(LEAST_BYTES)).contains(&default), "{default} of {total}");
        options.request_memory_byte_size = 1000;
        options.request_memory_connection_share = 0.25;
        let budget = bytes(&options);
        assert_eq!((budget, shares(&options, budget, 1).connection), (1000, 250));
        assert!(field(Path::new("/proc/self/status"), "VmSize:").is_some_and(|bytes| bytes > 4096));
        assert_eq!(field(Path::new("/proc/self/status"), "Name:"), None);
    }

    #[test]
    fn connections_and_waiting_requests_are_as_many_as_a_part_of_the_budget_holds() {
        let options = Options::default();
        let of = |budget_bytes, shards| {
            let shares = shares(&options, budget_bytes, shards);
            (shares.connections, shares.waiting)
        };
        assert_eq!(of(0, 1), (LEAST, LEAST));
        assert_eq!(of(1 << 30, 4), (3276, 16_384));
        assert_eq!(of(1 << 40, 1), (CONNECTIONS_MAX, WAITING_MAX));
    }
}
