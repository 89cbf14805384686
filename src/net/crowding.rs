//! What happens when descriptors, or a shard's places for connections, run out.
//!
//! The last of both are kept for brief connections: each has a few seconds and one request, and the oldest of them
//! gives way to the next one. It does so only after the time that a client needs to send its request, unless very many
//! come at once: else a health check among them would be closed before it is read. So a health check is answered
//! however many connections others hold open. What cannot be accepted at all is reported once a while with a count,
//! because the engine tries again many times a second.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use tracing::warn;

use super::Net;
use nereid_memory::Key;
use nereid_protocol::service::Service;
use nereid_shard::Core;

/// Seconds that a brief connection has.
pub(super) const BRIEF_S: u32 = 5;
/// Nanoseconds that a brief connection has before it gives way.
pub(super) const BRIEF_LEAST_NS: u64 = 100_000_000;
/// Brief connections of a shard at a time of which none has had that long.
const BRIEF_YOUNG_MAX: usize = 256;
/// Places of a shard that are kept for brief connections; twice as many as there are of them at a time, because it
/// takes a while to close one.
const BRIEF_MAX: usize = 32;
/// Descriptors that are kept for brief connections, and as many again for everything else that opens files.
const DESCRIPTORS_KEPT: u64 = 2 * BRIEF_MAX as u64;
/// Of a low limit no more than this share is kept.
const KEPT_SHARE: u64 = 8;
/// Nanoseconds between two reports.
const REPORT_NS: u64 = 10_000_000_000;

/// What a shard has left of its resources.
#[derive(Debug)]
pub(super) struct Crowding {
    /// Descriptors from this number on are kept for brief connections.
    brief_from: u64,
    /// Connections from this count on are brief.
    crowded_from: usize,
    /// Brief connections at a time, so that some of what is kept is always free.
    brief_max: usize,
    /// The same where the oldest has not had its time.
    brief_young_max: usize,
    /// The same if it is descriptors that run out: half of what is kept.
    brief_descriptors_max: usize,
    /// Oldest first, with the times of their beginnings; some may be closed already.
    brief: VecDeque<(Key, u64)>,
    /// When the next report may be made, and what was not reported since the last one.
    report_at_ns: u64,
    unreported: u64,
}

impl Crowding {
    /// Of a shard that takes so many connections.
    pub fn new(connections_max: usize) -> Crowding {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let kept = limit.map_or(DESCRIPTORS_KEPT, |limit| DESCRIPTORS_KEPT.min(limit / KEPT_SHARE));
        let brief_from = limit.map_or(u64::MAX, |limit| limit.saturating_sub(kept));
        let brief_max = usize::try_from(kept / 4).unwrap_or(BRIEF_MAX).clamp(1, BRIEF_MAX / 2);
        Crowding {
            brief_from,
            crowded_from: connections_max.saturating_sub(BRIEF_MAX),
            brief_max,
            brief_young_max: BRIEF_YOUNG_MAX,
            brief_descriptors_max: 2 * brief_max,
            brief: VecDeque::new(),
            report_at_ns: 0,
            unreported: 0,
        }
    }

    #[cfg(test)]
    pub fn keep_from(&mut self, descriptor: u64) {
        self.brief_from = descriptor;
    }

    /// How many brief connections there may be with this one; `None`: it takes none of the last descriptors or places.
    /// The system gives out the lowest free number.
    pub fn brief_limit(&self, fd: &OwnedFd, connections: usize) -> Option<usize> {
        let number = u64::try_from(fd.as_raw_fd()).unwrap_or(0);
        if number >= self.brief_from {
            return Some(self.brief_descriptors_max);
        }
        (connections >= self.crowded_from).then_some(self.brief_young_max)
    }

    /// Reports that no connection can be accepted, unless that was reported just now.
    pub fn report(&mut self, error: &io::Error, now_ns: u64) {
        self.unreported += 1;
        if now_ns < self.report_at_ns {
            return;
        }
        self.report_at_ns = now_ns.saturating_add(REPORT_NS);
        match std::mem::take(&mut self.unreported) {
            1 => warn!("cannot accept a connection: {error}"),
            times => warn!("cannot accept a connection: {error} ({times} times since the last report)"),
        }
    }
}

impl<S: Service> Net<S> {
    /// A brief connection has come: the oldest gives way if there are too many, more than `limit` or such as have had
    /// their time.
    pub(super) fn make_room(&mut self, key: Key, limit: usize, core: &mut Core<u64>) {
        let now_ns = core.now_ns();
        self.crowding.brief.push_back((key, now_ns));
        while let Some(&(oldest, since_ns)) = self.crowding.brief.front() {
            let count = self.crowding.brief.len();
            let had_its_time = now_ns.saturating_sub(since_ns) >= BRIEF_LEAST_NS;
            let gives_way = count > limit || (count > self.crowding.brief_max && had_its_time);
            if !gives_way && self.connections.get(oldest).is_some() {
                return;
            }
            self.crowding.brief.pop_front();
            self.close(oldest, core);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_reported_once_a_while() {
        let mut crowding = Crowding::new(1000);
        let error = io::Error::from_raw_os_error(libc::EMFILE);
        crowding.report(&error, 1);
        assert_eq!(crowding.unreported, 0);
        for at in 0..1000 {
            crowding.report(&error, 1 + at * (REPORT_NS / 1000));
        }
        assert_eq!(crowding.unreported, 1000, "nothing more within the time");
        crowding.report(&error, 1 + REPORT_NS);
        assert_eq!(crowding.unreported, 0);
    }
}
