//! What a server holds: descriptors, threads, anonymous memory files, processes, entries of its /dev/shm, and what its
//! own gauges say of requests.

use std::collections::BTreeMap;
use std::fs;

use super::site::Site;
use nereid_test_support::http::Peer;
use nereid_test_support::server::Server;

/// The gauge at rest varies by chunks of 16 KiB in both directions, from one run of the same clients to the next: what
/// shards keep of recurring requests lies in them, and what instances have begun. Two shards kept five more than
/// before; there are fourteen instances. A campaign has some 80,000 requests: what each hundredth left would be far
/// more.
const KEPT_BYTES: u64 = 16 * 16 * 1024;

/// A worker has its second memory file only after its first long message: one that was just started may lack it, before
/// or after.
pub const LATE_FILES: usize = 4;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Resources {
    pub descriptors: usize,
    /// Of these, by what they are of.
    pub kinds: BTreeMap<String, usize>,
    pub threads: BTreeMap<String, usize>,
    /// Mapped memory files.
    pub mapped: usize,
    pub children: usize,
    pub shm: usize,
    pub pending: u64,
    pub pool_bytes: u64,
}

impl Resources {
    pub fn of(site: &Site) -> Resources {
        let server = &site.server;
        let kinds = kinds(server);
        let maps = fs::read_to_string(format!("/proc/{}/maps", server.pid())).unwrap_or_default();
        let page = Peer::connect(server.metrics).get("/metrics").text();
        Resources {
            descriptors: kinds.values().sum(),
            kinds,
            threads: server.thread_names(),
            mapped: maps.lines().filter(|line| line.contains("/memfd:")).count(),
            children: children(server).len(),
            shm: fs::read_dir(site.shm()).map_or(0, Iterator::count),
            pending: sum(&page, "nv_inference_pending_request_count"),
            pool_bytes: sum(&page, "nereid_pool_bytes_in_use"),
        }
    }

    /// Whether nothing is left of what happened since `before`.
    pub fn are_back_at(&self, before: &Resources) -> bool {
        let Resources { descriptors, kinds: _, threads, mapped, children, shm, pending, pool_bytes: _ } = self;
        *descriptors <= before.descriptors + LATE_FILES
            && threads.values().sum::<usize>() <= before.threads.values().sum()
            && *mapped <= before.mapped + LATE_FILES
            && *children == before.children
            && *shm <= before.shm
            && *pending == 0
            && self.pool_bytes <= before.pool_bytes + KEPT_BYTES
    }
}

fn kinds(server: &Server) -> BTreeMap<String, usize> {
    let mut kinds = BTreeMap::new();
    let entries = fs::read_dir(format!("/proc/{}/fd", server.pid())).expect("descriptors of the server");
    for entry in entries.flatten() {
        // One may have been closed meanwhile.
        let Ok(target) = fs::read_link(entry.path()) else { continue };
        let target = target.to_string_lossy().into_owned();
        let kind = match target.split_once(':') {
            Some((kind, _)) => kind.to_owned(),
            None => target,
        };
        *kinds.entry(kind).or_default() += 1;
    }
    kinds
}

/// The sum of a family's samples.
pub fn sum(page: &str, family: &str) -> u64 {
    let samples = page.lines().filter(|line| line.starts_with(family));
    samples.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>() as u64
}

/// The processes that the server has started: the workers of Python models.
pub fn children(server: &Server) -> Vec<u32> {
    let parent = format!("\nPPid:\t{}\n", server.pid());
    let all = fs::read_dir("/proc").expect("processes").flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|id: &u32| fs::read_to_string(format!("/proc/{id}/status")).is_ok_and(|text| text.contains(&parent)))
        .collect()
}
