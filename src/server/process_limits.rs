//! Limits on the memory of the process (`ulimit -v`, `ulimit -d`) at its start: the allocator keeps within them, a
//! server that cannot start within them, or not hold what its flags promise, ends with the reason, and one for which
//! they may be too small warns.
//!
//! Beyond such a limit allocations fail at any place, and many of those end the process. The allocator of the C library
//! makes that likely: by default it reserves 64 MiB of addresses for each of up to eight threads a core, as soon as
//! they start, and uses few of them.

use std::ffi::OsString;
use std::fmt;
use std::path::Path;

use nereid_memory::bound_arenas;
use rustix::process::{Resource, getrlimit};

use super::budget::field;

/// Bytes that the start of a server takes, and each of its I/O threads: stacks, rings, and buffers to receive into.
#[derive(Debug, Clone, Copy)]
struct Needs {
    start: u64,
    shard: u64,
    /// For requests where no flag says how much.
    requests: u64,
}

/// Less than a start takes anywhere: with less left than this it fails.
const LEAST: Needs = Needs { start: 8 << 20, shard: 4 << 20, requests: 0 };
/// A little more than what it takes usually, which differs between engines and C libraries (docs/overload.md).
const USUAL: Needs = Needs { start: 24 << 20, shard: 8 << 20, requests: 16 << 20 };

/// Addresses of one arena of the allocator, and the part of what is left that all of them may take.
const ARENA_BYTES: u64 = 64 << 20;
const ARENAS_PART: u64 = 8;
/// More arenas than threads allocate at a time gain nothing.
const ARENAS_MAX: u64 = 64;
/// As many arenas as the allocator has for each core without a bound.
const ARENAS_EACH_CORE: u64 = 8;
/// The settings with which an operator bounds the arenas: a variable, and a word in another one.
const OWN_BOUND: &str = "MALLOC_ARENA_MAX";
const OWN_TUNABLES: &str = "GLIBC_TUNABLES";
const OWN_TUNABLE: &str = "glibc.malloc.arena_max=";

/// A limit, and how much of it is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ProcessLimit {
    /// Its name, how a shell sets it, and how systemd does.
    names: [&'static str; 3],
    bytes: u64,
    used_bytes: u64,
}

/// A limit within which the server cannot start, or may not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooSmall {
    limit: ProcessLimit,
    start_bytes: u64,
    shards: usize,
    request_bytes: u64,
    is_flag: bool,
    /// Fewer I/O threads, or less for requests, would be enough.
    fits_with_one_shard: bool,
    fits_without_requests: bool,
}

impl std::error::Error for TooSmall {}

impl fmt::Display for TooSmall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ProcessLimit { names: [name, shell, _], bytes, used_bytes } = self.limit;
        let TooSmall { start_bytes, shards, request_bytes, .. } = self;
        let threads = if *shards == 1 { "I/O thread" } else { "I/O threads" };
        write!(
            f,
            "the limit {name} ({shell}) of the process is {bytes} bytes, of which {used_bytes} are in use; \
             {start_bytes} more are needed to start {shards} {threads}"
        )?;
        match (request_bytes, self.is_flag) {
            (0, _) => Ok(()),
            (bytes, true) => write!(f, ", and {bytes} for requests (--request-memory-byte-size)"),
            (bytes, false) => write!(f, ", and {bytes} for requests"),
        }
    }
}

impl TooSmall {
    /// What an operator can do.
    pub fn next_step(&self) -> String {
        let [_, shell, systemd] = self.limit.names;
        let raise = format!("raise the limit (`{shell} unlimited`, `{systemd}infinity`)");
        if self.is_flag && self.fits_without_requests {
            format!("{raise}, or start with a smaller --request-memory-byte-size")
        } else if self.fits_with_one_shard {
            format!("{raise}, or start with --io-cores=1")
        } else {
            raise
        }
    }
}

impl Needs {
    fn start_bytes(&self, shards: usize) -> u64 {
        self.shard.saturating_mul(shards.max(1) as u64).saturating_add(self.start)
    }
}

impl ProcessLimit {
    fn of(resource: Resource, used: &str, names: [&'static str; 3]) -> Option<ProcessLimit> {
        let bytes = getrlimit(resource).current?;
        Some(ProcessLimit { names, bytes, used_bytes: field(Path::new("/proc/self/status"), used).unwrap_or(0) })
    }

    /// That on addresses, which counts whatever is mapped.
    pub fn of_addresses() -> Option<ProcessLimit> {
        ProcessLimit::of(Resource::As, "VmSize:", ["RLIMIT_AS", "ulimit -v", "LimitAS="])
    }

    /// That on data: private memory that may be written to. Shared memory, and what is reserved only, do not count.
    pub fn of_data() -> Option<ProcessLimit> {
        ProcessLimit::of(Resource::Data, "VmData:", ["RLIMIT_DATA", "ulimit -d", "LimitDATA="])
    }

    fn all() -> impl Iterator<Item = ProcessLimit> {
        [ProcessLimit::of_addresses(), ProcessLimit::of_data()].into_iter().flatten()
    }

    pub fn left_bytes(&self) -> u64 {
        self.bytes.saturating_sub(self.used_bytes)
    }

    /// The arenas that the allocator may have on a machine with so many cores.
    fn arenas(&self, cores: usize) -> u64 {
        let unbounded = (cores as u64).saturating_mul(ARENAS_EACH_CORE).clamp(1, ARENAS_MAX);
        (self.left_bytes() / ARENAS_PART / ARENA_BYTES).clamp(1, unbounded)
    }

    /// Checks that so many I/O threads can start, and that requests can have the `request_bytes` of their flag; 0 is a
    /// part of what is left.
    fn check(self, needs: &Needs, shards: usize, request_bytes: u64) -> Result<(), TooSmall> {
        let start_bytes = needs.start_bytes(shards);
        let is_flag = request_bytes > 0;
        let request_bytes = if is_flag { request_bytes } else { needs.requests };
        let fits =
            |start_bytes: u64, request_bytes: u64| self.left_bytes() >= start_bytes.saturating_add(request_bytes);
        if fits(start_bytes, request_bytes) {
            return Ok(());
        }
        Err(TooSmall {
            limit: self,
            start_bytes,
            shards,
            request_bytes,
            is_flag,
            fits_with_one_shard: shards > 1 && fits(needs.start_bytes(1), request_bytes),
            fits_without_requests: fits(start_bytes, needs.requests),
        })
    }
}

/// Bounds the arenas of the allocator where addresses are limited and the operator has set no bound. To be called
/// before the first thread starts: one that allocates earlier has an arena of its own.
pub fn bound_allocator() {
    if let Some(limit) = ProcessLimit::of_addresses()
        && !has_own_bound(|name| std::env::var_os(name))
    {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        // Elsewhere than in glibc there are none.
        let _ = bound_arenas(u32::try_from(limit.arenas(cores)).unwrap_or(u32::MAX));
    }
}

fn has_own_bound(variable: impl Fn(&str) -> Option<OsString>) -> bool {
    let tunables = variable(OWN_TUNABLES).unwrap_or_default();
    variable(OWN_BOUND).is_some() || tunables.to_string_lossy().split(':').any(|word| word.starts_with(OWN_TUNABLE))
}

/// Checks all limits for a server with so many I/O threads and this `--request-memory-byte-size`: an error is one
/// within which it cannot start, a value one within which it may not.
pub(super) fn check(shards: usize, request_bytes: u64) -> Result<Option<TooSmall>, TooSmall> {
    let check = |needs: &Needs| ProcessLimit::all().try_for_each(|limit| limit.check(needs, shards, request_bytes));
    check(&LEAST)?;
    Ok(check(&USUAL).err())
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
        // 24 MiB, and 8 for each of two threads.
        let start = 40 * MIB;
        for (left, shards, flag, is_enough) in [
            (start + 16 * MIB, 2, 0, true),
            (start + 16 * MIB - 1, 2, 0, false),
            (start + 1000, 2, 1000, true),
            (start + 999, 2, 1000, false),
            (32 * MIB + 1, 0, 1, true),
            (u64::MAX, 2, u64::MAX, true),
            (u64::MAX - 1, usize::MAX, u64::MAX, false),
        ] {
            let outcome = limit(left, 0).check(&USUAL, shards, flag);
            assert_eq!(outcome.is_ok(), is_enough, "{left} {shards} {flag}: {outcome:?}");
        }
        assert!(limit(100 * MIB, 100 * MIB - 1).check(&LEAST, 1, 0).is_err(), "what is in use is not left");
        assert!(limit(1, 2).check(&LEAST, 1, 0).is_err(), "more is in use than the limit says");
    }

    /// What is known to start: with 20 MiB left and one thread, with 27 and two.
    #[test]
    fn a_start_that_may_succeed_is_not_refused() {
        for (left, shards) in [(20 * MIB, 1), (27 * MIB, 2)] {
            assert_eq!(limit(left, 0).check(&LEAST, shards, 0), Ok(()));
            assert!(limit(left, 0).check(&USUAL, shards, 0).is_err(), "it is warned");
        }
        assert!(limit(11 * MIB, 0).check(&LEAST, 1, 0).is_err());
        for shards in [1, 2, 16, 256] {
            assert!(LEAST.start_bytes(shards) < USUAL.start_bytes(shards));
        }
    }

    #[test]
    fn the_error_names_the_limit_and_the_flag() {
        let error = limit(100 * MIB, 40 * MIB).check(&LEAST, 1, 4_000_000_000).unwrap_err();
        let text = "the limit RLIMIT_AS (ulimit -v) of the process is 104857600 bytes, of which 41943040 are in use; \
                    12582912 more are needed to start 1 I/O thread, and 4000000000 for requests \
                    (--request-memory-byte-size)";
        assert_eq!(error.to_string(), text);
        let error = limit(50 * MIB, 40 * MIB).check(&LEAST, 2, 0).unwrap_err();
        assert!(error.to_string().ends_with("16777216 more are needed to start 2 I/O threads"), "{error}");
        let error = limit(50 * MIB, 40 * MIB).check(&USUAL, 2, 0).unwrap_err();
        assert!(error.to_string().ends_with("and 16777216 for requests"), "{error}");
    }

    #[test]
    fn the_next_step_is_one_that_helps() {
        let raise = "raise the limit (`ulimit -v unlimited`, `LimitAS=infinity`)";
        let smaller = "a smaller --request-memory-byte-size";
        for (left, needs, shards, flag, other) in [
            (100 * MIB, LEAST, 1, 4_000_000_000, Some(smaller)),
            (100 * MIB, LEAST, 2, 4_000_000_000, Some(smaller)),
            // The start alone does not fit.
            (11 * MIB, LEAST, 1, 4_000_000_000, None),
            (15 * MIB, LEAST, 2, 1000, Some("--io-cores=1")),
            (15 * MIB, LEAST, 2, 0, Some("--io-cores=1")),
            (15 * MIB, LEAST, 2, 4_000_000_000, None),
            // There is one thread already, or one is too many.
            (11 * MIB, LEAST, 1, 0, None),
            (11 * MIB, LEAST, 2, 0, None),
            (47 * MIB, USUAL, 1, 0, None),
            (48 * MIB, USUAL, 2, 0, Some("--io-cores=1")),
        ] {
            let step = limit(left, 0).check(&needs, shards, flag).unwrap_err().next_step();
            let expected = other.map_or(raise.to_owned(), |other| format!("{raise}, or start with {other}"));
            assert_eq!(step, expected, "{left} {shards} {flag}");
        }
    }

    #[test]
    fn arenas_take_a_part_of_what_is_left_and_are_never_more_than_without_a_bound() {
        let arenas = |left_bytes| limit(left_bytes, 0).arenas(1000);
        let each = ARENA_BYTES * ARENAS_PART;
        assert_eq!([arenas(0), arenas(2 * each - 1), arenas(2 * each), arenas(u64::MAX)], [1, 1, 2, ARENAS_MAX]);
        assert_eq!(limit(4 * each, 2 * each).arenas(1000), 2);
        assert_eq!([0, 1, 2, 8, 9].map(|cores| limit(u64::MAX, 0).arenas(cores)), [1, 8, 16, 64, 64]);
    }

    #[test]
    fn the_bound_of_an_operator_is_kept() {
        let is_bound = |set: &[(&str, &str)]| {
            has_own_bound(|name| set.iter().find(|(other, _)| *other == name).map(|(_, value)| OsString::from(*value)))
        };
        assert!(!is_bound(&[]));
        assert!(is_bound(&[(OWN_BOUND, "2")]));
        assert!(is_bound(&[(OWN_TUNABLES, "glibc.malloc.arena_max=2")]));
        assert!(is_bound(&[(OWN_TUNABLES, "glibc.malloc.check=1:glibc.malloc.arena_max=2")]));
        assert!(!is_bound(&[(OWN_TUNABLES, "glibc.malloc.arena_test=2")]));
    }
}
