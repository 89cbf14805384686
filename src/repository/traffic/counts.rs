//! What a rule counts, for the metrics and for the API.

use std::sync::atomic::{AtomicU64, Ordering};

use tracing::warn;

use nereid_observe::metrics::{Counter, Family, Kind, Metric, MetricError, Registry};

/// Why a request got its version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    Weight,
    /// The client chose it in a header.
    Header,
    /// A key of the request, or its sequence.
    Sticky,
    /// The request named a label in place of a version.
    Label,
}

impl Reason {
    pub const ALL: [Reason; 4] = [Reason::Weight, Reason::Header, Reason::Sticky, Reason::Label];

    pub fn name(self) -> &'static str {
        match self {
            Reason::Weight => "weight",
            Reason::Header => "header",
            Reason::Sticky => "sticky",
            Reason::Label => "label",
        }
    }
}

/// What became of a copy of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShadowResult {
    Equal,
    Different,
    /// The version refused the copy or failed.
    Error,
    /// It had no answer in time.
    Timeout,
    /// No copy was made, because as many as there may be were under way.
    Busy,
    /// The request is of a kind that is not copied, or it failed itself.
    Skipped,
}

impl ShadowResult {
    pub const ALL: [ShadowResult; 6] = [
        ShadowResult::Equal,
        ShadowResult::Different,
        ShadowResult::Error,
        ShadowResult::Timeout,
        ShadowResult::Busy,
        ShadowResult::Skipped,
    ];

    pub fn name(self) -> &'static str {
        match self {
            ShadowResult::Equal => "equal",
            ShadowResult::Different => "different",
            ShadowResult::Error => "error",
            ShadowResult::Timeout => "timeout",
            ShadowResult::Busy => "busy",
            ShadowResult::Skipped => "skipped",
        }
    }
}

/// A number that is shown as a metric, unless the server has too many of them.
#[derive(Default)]
pub struct Count {
    value: AtomicU64,
    shown: Option<Counter>,
}

impl Count {
    pub fn add_one(&self) {
        self.value.fetch_add(1, Ordering::Relaxed);
        if let Some(shown) = &self.shown {
            shown.increment(1);
        }
    }

    pub fn get(&self) -> u64 {
        self.value.load(Ordering::Relaxed)
    }
}

/// The families of all rules of a server.
pub struct Families {
    requests: Option<Family>,
    shadows: Option<Family>,
    weights: Option<Family>,
    rollbacks: Option<Family>,
}

fn kept<T>(made: Result<T, MetricError>) -> Option<T> {
    made.map_err(|error| warn!("a metric of a traffic rule is left out: {error}")).ok()
}

impl Families {
    pub fn of(registry: &Registry) -> Families {
        let family = |name: &str, help: &str, kind| kept(registry.own_family(name, help, kind));
        Families {
            requests: family(
                "nereid_traffic_requests_total",
                "Requests that a traffic rule gave to a version, by the reason for it",
                Kind::Counter,
            ),
            shadows: family(
                "nereid_shadow_requests_total",
                "Copies of requests for a shadow version, by what became of them",
                Kind::Counter,
            ),
            weights: family("nereid_traffic_weight", "Weight of a version in percent", Kind::Gauge),
            rollbacks: family(
                "nereid_traffic_rollbacks_total",
                "Versions that were taken out of a traffic rule",
                Kind::Counter,
            ),
        }
    }

    pub fn requests(&self, model: &str, version: &str, reason: Reason) -> Count {
        counted(&self.requests, &[("model", model), ("version", version), ("reason", reason.name())])
    }

    pub fn shadows(&self, model: &str, version: &str, result: ShadowResult) -> Count {
        counted(&self.shadows, &[("model", model), ("version", version), ("result", result.name())])
    }

    pub fn rollbacks(&self, model: &str) -> Count {
        counted(&self.rollbacks, &[("model", model)])
    }

    pub fn weight(&self, model: &str, version: &str) -> Option<Metric> {
        kept(self.weights.as_ref()?.metric(&[("model", model), ("version", version)], &[]))
    }
}

fn counted(family: &Option<Family>, labels: &[(&str, &str)]) -> Count {
    let shown = family.as_ref().and_then(|family| kept(family.counter(labels)));
    Count { value: AtomicU64::new(0), shown }
}
