//! Limits on the memory of the process (`ulimit -v`, `ulimit -d`) at its start: the allocator keeps within them, and a
//! server that could not start within them, or not serve what its flags promise, ends with the reason.
//!
//! Beyond such a limit allocations fail at any place, and many of those end the process. The allocator of the C library
//! makes that likely: by default it reserves 64 MiB of addresses for each of up to eight threads a core, as soon as
//! they start, and uses few of them.

use std::fmt;
use std::path::Path;

use nereid_memory::bound_arenas;
use rustix::process::{Resource, getrlimit};

use super::budget::field;

/// The start of the server takes so many bytes, and of each I/O thread: stacks, rings, and buffers to receive into.
const START_BYTES: u64 = 32 << 20;
const SHARD_BYTES: u64 = 12 << 20;
/// The least that is left for requests where no flag says how much.
const LEAST_FOR_REQUESTS_BYTES: u64 = 16 << 20;
/// Addresses of one arena of the allocator, and the part of what is left that all of them may take.
const ARENA_BYTES: u64 = 64 << 20;
const ARENAS_PART: u64 = 8;
/// More arenas than threads allocate at a time gain nothing.
const ARENAS_MAX: u64 = 64;
/// The setting with which an operator bounds the arenas.
const OWN_BOUND: &str = "MALLOC_ARENA_MAX";

/// A limit, and how much of it is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ProcessLimit {
    /// Its name, how a shell sets it, and how systemd does.
    names: [&'static str; 3],
    bytes: u64,
    used_bytes: u64,
}

/// A limit within which the server cannot start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooSmall {
    limit: ProcessLimit,
    start_bytes: u64,
    shards: usize,
    request_bytes: u64,
    is_flag: bool,
}

impl std::error::Error for TooSmall {}

impl fmt::Display for TooSmall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ProcessLimit { names: [name, shell, _], bytes, used_bytes } = self.limit;
        let TooSmall { start_bytes, shards, request_bytes, .. } = self;
        let flag = if self.is_flag { " (--request-memory-byte-size)" } else { "" };
        write!(
            f,
            "the limit {name} ({shell}) of the process is {bytes} bytes, of which {used_bytes} are in use; \
             {start_bytes} more are needed to start {shards} I/O threads, and {request_bytes} for requests{flag}"
        )
    }
}

impl TooSmall {
    /// What an operator can do.
    pub fn next_step(&self) -> String {
        let [_, shell, systemd] = self.limit.names;
        let smaller = if self.is_flag { "a smaller --request-memory-byte-size" } else { "--io-cores=1" };
        format!("raise the limit (`{shell} unlimited`, `{systemd}infinity`), or start with {smaller}")
    }
}

impl ProcessLimit {
    fn of(resource: Resource, used: &str, names: [&'static str; 3]) -> Option<ProcessLimit> {
        let bytes = getrlimit(resource).current?;
        Some(ProcessLimit { names, bytes, used_bytes: field(Path::new("/proc/self/status"), used).unwrap_or(0) })
    }

    /// The limits that the process has.
    pub fn all() -> impl Iterator<Item = ProcessLimit> {
        let addresses = ["RLIMIT_AS", "ulimit -v", "LimitAS="];
        let data = ["RLIMIT_DATA", "ulimit -d", "LimitDATA="];
        [ProcessLimit::of(Resource::As, "VmSize:", addresses), ProcessLimit::of(Resource::Data, "VmData:", data)]
            .into_iter()
            .flatten()
    }

    pub fn left_bytes(&self) -> u64 {
        self.bytes.saturating_sub(self.used_bytes)
    }

    /// The arenas that the allocator may have.
    fn arenas(&self) -> u64 {
        (self.left_bytes() / ARENAS_PART / ARENA_BYTES).clamp(1, ARENAS_MAX)
    }

    /// Checks that so many I/O threads can start, and that requests can have the `request_bytes` of their flag; 0 is a
    /// part of what is left.
    fn check(self, shards: usize, request_bytes: u64) -> Result<(), TooSmall> {
        let start_bytes = SHARD_BYTES.saturating_mul(shards.max(1) as u64).saturating_add(START_BYTES);
        let is_flag = request_bytes > 0;
        let request_bytes = if is_flag { request_bytes } else { LEAST_FOR_REQUESTS_BYTES };
        match self.left_bytes() < start_bytes.saturating_add(request_bytes) {
            true => Err(TooSmall { limit: self, start_bytes, shards, request_bytes, is_flag }),
            false => Ok(()),
        }
    }
}

/// Bounds the arenas of the allocator where the process has such a limit and its operator no bound. To be called before
/// threads start.
pub(super) fn bound_allocator() {
    if std::env::var_os(OWN_BOUND).is_none()
        && let Some(arenas) = ProcessLimit::all().map(|limit| limit.arenas()).min()
    {
        // Elsewhere than in glibc there are none.
        let _ = bound_arenas(u32::try_from(arenas).unwrap_or(u32::MAX));
    }
}

/// Checks all limits for a server with so many I/O threads and this `--request-memory-byte-size`.
pub(super) fn check(shards: usize, request_bytes: u64) -> Result<(), TooSmall> {
    ProcessLimit::all().try_for_each(|limit| limit.check(shards, request_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn limit(bytes: u64, used_bytes: u64) -> ProcessLimit {
        ProcessLimit { names: ["RLIMIT_AS", "ulimit -v", "LimitAS="], bytes, used_bytes }
    }

    #[test]
    fn a_limit_may_be_used_up_exactly() {
        // 32 MiB, and 12 for each of two threads.
        let start = 56 * MIB;
        for (left, shards, flag, is_enough) in [
            (start + 16 * MIB, 2, 0, true),
            (start + 16 * MIB - 1, 2, 0, false),
            (start + 1000, 2, 1000, true),
            (start + 999, 2, 1000, false),
            (44 * MIB + 1, 0, 1, true),
            (u64::MAX, 2, u64::MAX, true),
            (u64::MAX - 1, usize::MAX, u64::MAX, false),
        ] {
            let outcome = limit(left, 0).check(shards, flag);
            assert_eq!(outcome.is_ok(), is_enough, "{left} {shards} {flag}: {outcome:?}");
        }
        assert!(limit(100 * MIB, 100 * MIB - 1).check(1, 0).is_err(), "what is in use is not left");
        assert!(limit(1, 2).check(1, 0).is_err(), "more is in use than the limit says");
    }

    #[test]
    fn the_error_names_the_limit_the_flag_and_the_next_step() {
        let error = limit(100 * MIB, 40 * MIB).check(1, 4_000_000_000).unwrap_err();
        let text = "the limit RLIMIT_AS (ulimit -v) of the process is 104857600 bytes, of which 41943040 are in use; \
                    46137344 more are needed to start 1 I/O threads, and 4000000000 for requests \
                    (--request-memory-byte-size)";
        assert_eq!(error.to_string(), text);
        let step = "raise the limit (`ulimit -v unlimited`, `LimitAS=infinity`), or start with a smaller \
                    --request-memory-byte-size";
        assert_eq!(error.next_step(), step);
        let error = limit(50 * MIB, 40 * MIB).check(1, 0).unwrap_err();
        assert!(error.to_string().ends_with("16777216 for requests"), "{error}");
        assert!(error.next_step().ends_with("or start with --io-cores=1"), "{}", error.next_step());
    }

    #[test]
    fn arenas_take_a_part_of_what_is_left() {
        let arenas = |left_bytes| limit(left_bytes, 0).arenas();
        let each = ARENA_BYTES * ARENAS_PART;
        assert_eq!([arenas(0), arenas(2 * each - 1), arenas(2 * each), arenas(u64::MAX)], [1, 1, 2, ARENAS_MAX]);
        assert_eq!(limit(4 * each, 2 * each).arenas(), 2);
    }
}
