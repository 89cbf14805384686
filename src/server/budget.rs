//! The memory that requests and answers may hold, each and in total.

use std::path::Path;
use std::sync::Arc;

use tracing::warn;

use super::ipc;
use super::options::Options;
use super::process_limits::ProcessLimit;
use nereid_memory::Peers;
use nereid_net::{CONNECTIONS_MAX, Shares, WAITING_MAX};
use nereid_scheduler::ModelBounds;
use nereid_shard::placement::memory_granted_bytes;

/// Requests may hold one part in so many of the available memory: models and their computations need the rest.
const SERVER_PART: u64 = 2;
/// Assumed for a machine that does not report its memory.
const UNKNOWN_BYTES: u64 = 4 << 30;
/// Of what a limit of the process leaves, threads that are started later and the allocator take so much, or half of it
/// where that is less.
const THREADS_BYTES: u64 = 512 << 20;
/// Where addresses are limited, the rings and arenas of clients may take one part in so many of what is left for
/// requests and models: they are shared memory, for which nothing is charged.
const RINGS_PART: u64 = 4;
/// The least that requests may hold by default, where a limit of the process leaves so much: with less the server would
/// refuse everything.
const LEAST_BYTES: u64 = 64 << 20;

/// Bytes of the server's budget: the value of `--request-memory-byte-size`, else half of what the machine, the control
/// groups and the process's own limits leave.
pub fn bytes(options: &Options) -> usize {
    let bytes = match options.request_memory_byte_size {
        0 => default_bytes(machine_bytes(), left_bytes(options)),
        bytes => bytes,
    };
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// What the limits of the process leave beside the rings of clients, which are addresses but no data.
fn left_bytes(options: &Options) -> Option<u64> {
    let addresses = ProcessLimit::of_addresses().map(|limit| limit.left_bytes().saturating_sub(rings_bytes(options)));
    let data = ProcessLimit::of_data().map(|limit| limit.left_bytes());
    addresses.into_iter().chain(data).min()
}

/// Addresses of the rings and arenas of all clients.
fn rings_bytes(options: &Options) -> u64 {
    match options.ipc.path {
        None => 0,
        Some(_) => ipc::bytes_of_each(options).saturating_mul(u64::from(options.ipc.clients_max)),
    }
}

/// The options with as many clients of rings as a limit on addresses has room for: beyond it an allocation would fail
/// anywhere, and end the process.
pub fn within_addresses(options: &Options) -> Options {
    let mut options = options.clone();
    if options.ipc.path.is_some()
        && let Some(limit) = ProcessLimit::of_addresses()
    {
        let (given, of_each) = (options.ipc.clients_max, ipc::bytes_of_each(&options));
        let clients = ring_clients(given, of_each, limit.left_bytes(), options.request_memory_byte_size);
        if clients < given {
            warn!(
                "the limit on the addresses of the process (ulimit -v) has room for {clients} clients of shared-memory \
                 rings with {of_each} bytes each, not for {given} (--ipc-connections); next step: raise the limit, or \
                 lower --ipc-arena-bytes"
            );
        }
        options.ipc.clients_max = clients;
    }
    options
}

/// How many of the `given` clients have rings where `left_bytes` addresses are left and requests may hold
/// `request_bytes`; 0 is a part of what is left.
fn ring_clients(given: u32, of_each: u64, left_bytes: u64, request_bytes: u64) -> u32 {
    let available_bytes = beside_threads(left_bytes).saturating_sub(request_bytes);
    // One of them may have half.
    let one = u64::from(of_each <= available_bytes / 2);
    let clients = (available_bytes / RINGS_PART).checked_div(of_each).unwrap_or(u64::MAX).max(one);
    u32::try_from(clients).unwrap_or(u32::MAX).min(given)
}

fn beside_threads(left_bytes: u64) -> u64 {
    left_bytes.saturating_sub(THREADS_BYTES.min(left_bytes / 2))
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

/// What the machine and the control groups leave.
fn machine_bytes() -> u64 {
    let total = field(Path::new("/proc/meminfo"), "MemTotal:").unwrap_or(UNKNOWN_BYTES);
    total.min(memory_granted_bytes().unwrap_or(u64::MAX))
}

/// The budget without the flag, on a machine with so many bytes and where the limits of the process leave `left_bytes`.
fn default_bytes(machine_bytes: u64, left_bytes: Option<u64>) -> u64 {
    let Some(left_bytes) = left_bytes else { return (machine_bytes / SERVER_PART).max(LEAST_BYTES) };
    let available_bytes = beside_threads(left_bytes);
    let part = (machine_bytes.min(available_bytes) / SERVER_PART).max(LEAST_BYTES);
    part.min(available_bytes / SERVER_PART)
}

/// Bytes of a line like `VmSize:  1024 kB`.
pub(super) fn field(file: &Path, name: &str) -> Option<u64> {
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
        let least = if left_bytes(&options).is_some() { 0 } else { LEAST_BYTES };
        assert!((least..=(total / 2).max(LEAST_BYTES)).contains(&default), "{default} of {total}");
        options.request_memory_byte_size = 1000;
        options.request_memory_connection_share = 0.25;
        let budget = bytes(&options);
        assert_eq!((budget, shares(&options, budget, 1).connection), (1000, 250));
        assert!(field(Path::new("/proc/self/status"), "VmSize:").is_some_and(|bytes| bytes > 4096));
        assert_eq!(field(Path::new("/proc/self/status"), "Name:"), None);
    }

    #[test]
    fn a_limit_of_the_process_leaves_less() {
        const MIB: u64 = 1 << 20;
        for (machine, left, budget) in [
            (1000 * MIB, None, 500 * MIB),
            (10 * MIB, None, 64 * MIB),
            (1 << 40, Some(2512 * MIB), 1000 * MIB),
            (1000 * MIB, Some(1 << 40), 500 * MIB),
            (10 * MIB, Some(1 << 40), 64 * MIB),
            // Half of it is for threads, and half of the rest for models.
            (1 << 40, Some(1024 * MIB), 256 * MIB),
            (1 << 40, Some(100 * MIB), 25 * MIB),
            (1 << 40, Some(0), 0),
        ] {
            assert_eq!(default_bytes(machine, left), budget, "{machine} {left:?}");
        }
    }

    #[test]
    fn rings_have_a_part_of_the_addresses_that_are_left() {
        const MIB: u64 = 1 << 20;
        for (given, of_each, left, flag, clients) in [
            // Without what threads take 2,048 MiB are left, of which rings may take 512.
            (64, 65 * MIB, 2560 * MIB, 0, 7),
            (7, 65 * MIB, 2560 * MIB, 0, 7),
            (2, 65 * MIB, 2560 * MIB, 0, 2),
            (64, 65 * MIB, 2560 * MIB, 1024 * MIB, 3),
            (64, 65 * MIB, u64::MAX, 0, 64),
            // One may take half.
            (64, 65 * MIB, 260 * MIB, 0, 1),
            (64, 65 * MIB, 259 * MIB, 0, 0),
            (64, 65 * MIB, 2560 * MIB, u64::MAX, 0),
            (0, 65 * MIB, u64::MAX, 0, 0),
            (64, 0, 0, 0, 64),
        ] {
            assert_eq!(ring_clients(given, of_each, left, flag), clients, "{given} {of_each} {left} {flag}");
        }
    }

    #[test]
    fn rings_are_addresses_where_there_is_a_socket_for_them() {
        let mut options = Options::default();
        assert_eq!(rings_bytes(&options), 0);
        options.ipc.path = Some("/run/ring".into());
        let each = options.ipc.arena_bytes + 2 * options.ipc.ring_bytes;
        let all = rings_bytes(&options);
        assert!(all >= each * u64::from(options.ipc.clients_max), "{all}");
        options.ipc.clients_max = 1;
        assert!((each..each + 1_000_000).contains(&rings_bytes(&options)), "{}", rings_bytes(&options));
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
