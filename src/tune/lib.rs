//! Finds the configuration with which a model serves a load best: starts a server of its own, changes the configuration
//! of its models, measures each candidate with the load generator, and reports what it found.
//!
//! Nothing here knows a command line, and nothing writes into a repository: a configuration reaches the server as the
//! override of a load request. The search sees a [`Measure`] alone, so that tests run it on simulated models.
//!
//! ```text
//! Plan ─► run: ScratchServer, traffic, Space ─► search (race | exhaustive | quick) ─► Measure ─► pairs ─► Outcome
//!                                                                 │
//!                                        Measurer: load request, nereid_perf, /proc ─► Point ─► tune.json
//! ```

mod configuration;
mod goal;
mod identity;
mod interrupt;
mod measurer;
mod outcome;
mod plan;
mod point;
mod process;
pub mod report;
mod resume;
mod run;
mod search;
mod server;
mod space;
mod statistics;
mod traffic;

pub use goal::{Comparison, Constraint, Goal, Metric, Objective, Slo};
pub use outcome::{Outcome, Verdict};
pub use plan::{InputSource, LoadRule, Plan, Search, Setting};
pub use point::{ModelFigures, Point};
pub use run::{run, write_report};
pub use search::Measure;
pub use space::FIELDS;

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum TuneError {
    /// The command line or a file of the user is of no use.
    #[error("{0}")]
    Usage(String),
    /// The scratch server or the load does not work.
    #[error("{0}")]
    Failed(String),
    #[error("{what}: {source}")]
    System { what: String, source: std::io::Error },
    /// A signal came before anything was measured.
    #[error("interrupted before anything was measured")]
    Interrupted,
}
