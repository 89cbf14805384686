//! Fuzz targets: functions of arbitrary bytes, each with an oracle.
//!
//! An oracle is a second reader of the same bytes, or a rule that holds of every input. A target panics where they
//! disagree. The programs of `fuzz_targets/` hand a target to libFuzzer, which needs a nightly toolchain; the driver runs
//! all of them with any.

pub mod c_interface;
pub mod compression;
mod dice;
mod driver;
pub mod grpc;
pub mod hpack;
pub mod http1;
pub mod http2;
pub mod infer_json;
pub mod ipc;
pub mod json;
pub mod model_config;
pub mod mutator;
pub mod openai_json;
pub mod openai_request;
pub mod openai_template;
pub mod openai_tools;
pub mod python;
pub mod recording;
pub mod shapes;
pub mod uploads;

use nereid_memory::Pool;

pub use dice::{Dice, split};
pub use driver::drive;

/// A function that is fed arbitrary bytes. It panics where its oracle disagrees, and returns whether the input passed
/// the first checks of what is tested: inputs that do not say little.
pub type Run = fn(&[u8]) -> bool;

/// One function to fuzz, and what is known of its inputs.
pub struct Target {
    /// Also that of its folder of inputs under `corpus/`, and of its program under `fuzz_targets/`.
    pub name: &'static str,
    pub run: Run,
    /// Mutated inputs of one run of the driver, without an argument that says otherwise.
    pub runs: u64,
    /// Texts that inputs are made of.
    pub words: &'static [&'static str],
    /// Inputs to begin with, made by the encoders of the server or of its peers; the corpus holds them.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

pub const TARGETS: [Target; 20] = [
    http1::TARGET,
    json::TARGET,
    infer_json::TARGET,
    grpc::TARGET,
    model_config::TARGET,
    python::frames::TARGET,
    python::marshal::TARGET,
    python::memory::TARGET,
    hpack::TARGET,
    http2::TARGET,
    uploads::TARGET,
    compression::TARGET,
    shapes::TARGET,
    c_interface::TARGET,
    openai_json::TARGET,
    openai_request::TARGET,
    openai_tools::TARGET,
    openai_template::TARGET,
    recording::TARGET,
    ipc::TARGET,
];

/// Memory for one input: a pool takes long to make, so each thread has one. Nothing of it may be in use.
fn pool() -> Pool {
    thread_local! {
        static POOL: Pool = Pool::new(1 << 30);
    }
    let pool = POOL.with(Clone::clone);
    assert_eq!(pool.bytes_in_use(), 0, "bytes that an earlier input left in use");
    pool
}
