//! The variants of the server under test: the number of shards and the engine. Both engines must pass the same tests.
//!
//! A test either runs over [`ALL`] variants or over the [`usual`] one, which is io_uring. Every test binary then runs
//! itself once more with epoll as the usual one. So `cargo test` covers both engines, and tests that ran over all
//! variants do not run again. [`ENGINE`] restricts a run to one engine.

use std::process::Command;

use crate::server::OTHER_SERVER;
use crate::skip::skip;

/// `io_uring` or `epoll`: the engine for all tests of the run.
pub const ENGINE: &str = "NEREID_TEST_ENGINE";
/// Set for the second run of a test binary, in which only tests of the usual variant run.
const SECOND_RUN: &str = "NEREID_TEST_SECOND_RUN";

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Variant {
    pub io_engine: &'static str,
    pub io_cores: &'static str,
}

/// One shard on io_uring: the variant of most tests.
pub const DEFAULT: Variant = Variant { io_engine: "io_uring", io_cores: "1" };

const EPOLL: Variant = Variant { io_engine: "epoll", io_cores: "1" };

/// For tests that may depend on the number of shards or on the engine.
pub const ALL: [Variant; 3] = [DEFAULT, Variant { io_engine: "io_uring", io_cores: "2" }, EPOLL];

/// Runs `test` once per variant of `variants` that this host can run, naming the variant on the terminal when the
/// test fails. A host whose seccomp filter or kernel refuses io_uring skips those, visibly.
pub fn each(variants: &[Variant], test: impl Fn(Variant)) {
    if is_second_run() {
        return;
    }
    let only = std::env::var(ENGINE).ok();
    for &variant in variants {
        if only.as_ref().is_some_and(|only| only != variant.io_engine) {
            continue;
        }
        if variant.io_engine == "io_uring" && !io_uring_works() {
            skip(&format!("{variant:?}: this host refuses io_uring"));
            continue;
        }
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        if variant.io_cores.parse().is_ok_and(|shards: usize| shards > cores) {
            skip(&format!("{variant:?}: this host lets us use {cores} core"));
            continue;
        }
        println!("--- {variant:?}");
        test(variant);
    }
}

/// The default variant, or epoll on hosts that refuse io_uring (the tests of the engine itself report that visibly).
pub fn usual() -> Variant {
    match std::env::var(ENGINE).as_deref() {
        Ok("epoll") => EPOLL,
        Ok("io_uring") => DEFAULT,
        Ok(other) => panic!("{ENGINE}={other}: io_uring or epoll"),
        Err(_) if io_uring_works() => DEFAULT,
        Err(_) => EPOLL,
    }
}

/// Runs this test binary once more with epoll as the usual variant: the test `what_ran_on_io_uring_runs_on_epoll_too`,
/// which every binary that starts servers contains. `but`: modules whose tests say nothing of an engine, because what
/// they are about lies behind or beside the shards.
pub fn run_again_on_epoll(but: &[&str]) {
    let restricted = [ENGINE, OTHER_SERVER].iter().any(|name| std::env::var_os(name).is_some());
    if restricted || !io_uring_works() {
        return;
    }
    let binary = std::env::current_exe().expect("the path of this test binary");
    let tests = Command::new(&binary).arg("--list").output().expect("the tests of this binary").stdout;
    let tests = String::from_utf8_lossy(&tests);
    let unknown: Vec<&&str> =
        but.iter().filter(|module| !tests.lines().any(|test| test.starts_with(**module))).collect();
    assert!(unknown.is_empty(), "no test is in {unknown:?}");
    let mut again = Command::new(&binary);
    // This test is the last of the first run, or nearly: the second has the cores to itself.
    let output = again
        .arg("--color=never")
        .args(but.iter().flat_map(|module| ["--skip", module]))
        .env(ENGINE, "epoll")
        .env(SECOND_RUN, "1")
        .stderr(std::process::Stdio::inherit())
        .output()
        .expect("run this test binary once more");
    let report = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "with {ENGINE}=epoll: {}\n{report}", output.status);
    assert!(report.contains("test result: ok. "), "the second run says nothing of its result:\n{report}");
}

/// Whether [`run_again_on_epoll`] has started this run of the test binary.
pub fn is_second_run() -> bool {
    std::env::var_os(SECOND_RUN).is_some()
}

pub fn io_uring_works() -> bool {
    // In a thread of its own: see `interrupt_next_wait`.
    std::thread::spawn(builds_ring).join().expect("a look at io_uring")
}

fn builds_ring() -> bool {
    let mut ring: io_uring::Builder = io_uring::IoUring::builder();
    ring.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag().build(8).is_ok()
}

/// Interrupts a read of the calling thread that has a timeout, some 20 ms from now, as a signal would: so does the
/// kernel while it takes down a ring that the thread has closed. False where io_uring is refused.
pub fn interrupt_next_wait() -> bool {
    builds_ring()
}
