//! The ways in which the server is run: how many shards, on which engine. Both engines answer to the same tests.

#![allow(dead_code)] // Every test binary takes the part of tests/support that it needs.

use super::skip::skip;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Variant {
    pub io_engine: &'static str,
    pub io_cores: &'static str,
}

/// One shard on io_uring: what a test uses unless it says otherwise.
pub const DEFAULT: Variant = Variant { io_engine: "io_uring", io_cores: "1" };

/// For the tests in which the number of shards or the engine may matter.
pub const ALL: [Variant; 3] =
    [DEFAULT, Variant { io_engine: "io_uring", io_cores: "2" }, Variant { io_engine: "epoll", io_cores: "1" }];

/// Runs `test` once per variant of `variants` that this host can run, naming the variant on the terminal when the
/// test fails. A host whose seccomp filter or kernel refuses io_uring skips those, visibly.
pub fn each(variants: &[Variant], test: impl Fn(Variant)) {
    for &variant in variants {
        if variant.io_engine == "io_uring" && !io_uring_works() {
            skip(&format!("{variant:?}: this host refuses io_uring"));
            continue;
        }
        println!("--- {variant:?}");
        test(variant);
    }
}

/// The default variant, or epoll where io_uring is refused (the tests of the engine itself say so visibly).
pub fn usual() -> Variant {
    if io_uring_works() { DEFAULT } else { ALL[2] }
}

fn io_uring_works() -> bool {
    let mut ring: io_uring::Builder = io_uring::IoUring::builder();
    ring.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag().build(8).is_ok()
}
