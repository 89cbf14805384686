//! The phases of a traced request as the histograms of its model observe them, for their exemplars.

use std::fmt::Write;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use super::options::Mode;
use super::record::{Finished, TraceEntry};
use crate::exemplars::{Exemplars, TracedTimes};

/// Adds the requests of a trace that have times.
pub(super) fn record(exemplars: &Exemplars, trace: &Finished, mode: Mode) {
    let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    for entry in &trace.entries {
        let TraceEntry::Identity(identity) = entry else { continue };
        let times = times_of(trace, identity.trace);
        if times == TracedTimes::default() {
            continue;
        }
        let id: Arc<str> = match mode {
            Mode::Triton => identity.trace.to_string().into(),
            Mode::OpenTelemetry => hexadecimal(&trace.position.trace).into(),
        };
        exemplars.add(&identity.model, identity.version, &id, at, &times);
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// The times of one request of the trace. One that did not execute, such as that of an ensemble, has the first two
/// only.
fn times_of(trace: &Finished, id: u64) -> TracedTimes {
    let own = |wanted: &str| {
        let mut times = trace.entries.iter().filter_map(|entry| match entry {
            TraceEntry::Time { trace, name, ns, .. } if *trace == id && name == wanted => Some(*ns),
            _ => None,
        });
        times.next()
    };
    let between = |start: Option<u64>, end: Option<u64>| Some(end?.saturating_sub(start?));
    let (started, queued, ended) = (own("REQUEST_START"), own("QUEUE_START"), own("REQUEST_END"));
    let (begun, prepared) = (own("COMPUTE_START"), own("COMPUTE_INPUT_END"));
    let (computed, executed) = (own("COMPUTE_OUTPUT_START"), own("COMPUTE_END"));
    TracedTimes {
        first_response_ns: between(started, own("INFER_RESPONSE_COMPLETE").or(ended)),
        phases_ns: [
            between(started, executed.or(ended)),
            between(queued, begun),
            between(begun, prepared),
            between(prepared, computed),
            between(computed, executed),
        ],
    }
}
