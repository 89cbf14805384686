//! What a control thread reports about a call.

use super::shared_memory::listing::Listing;
use crate::repository::IndexRow;
use nereid_memory::Gather;

/// The protocol of a call, and so of its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    Http,
    Grpc,
}

/// The outcome of work on a control thread.
#[derive(Debug)]
pub enum Outcome {
    Loaded,
    Unloaded,
    Index(Vec<IndexRow>),
    Regions(RegionOutcome),
    /// The subject of the probe, and whether it is ready.
    Checked(Probe, bool),
}

/// The subject of a call about readiness.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Probe {
    Server,
    /// The same by the name of gRPC's own health service.
    Serving,
    Model,
}

/// What became of a call about shared memory.
#[derive(Debug)]
pub enum RegionOutcome {
    Changed,
    Listed(Listing),
    /// A long list, as it is sent.
    Written(Gather),
}
