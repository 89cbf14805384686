//! Exemplars: traced requests that stand for the values in a bucket of a histogram, so that a dashboard leads from a
//! slow bucket to a trace.
//!
//! The thread that writes traces records them, so a request that is not traced costs nothing. They are kept by powers
//! of two of their values and not by buckets, which every model may choose.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::statistics::PHASES;

/// Versions of models that have exemplars at once; the one without a trace for the longest time makes room.
const MODELS_MAX: usize = 256;

/// One traced request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exemplar {
    /// The id of its trace: hexadecimal digits, or the number in a file of traces.
    pub trace: Arc<str>,
    /// What the histogram observed of it, in the histogram's unit.
    pub value: u64,
    /// The time since the epoch.
    pub at: Duration,
}

/// The exemplars of one histogram.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PhaseExemplars {
    /// The newest of each power of two, by the exponent of the smallest one that is not below the value.
    by_size: BTreeMap<u32, Exemplar>,
}

impl PhaseExemplars {
    pub fn add(&mut self, exemplar: Exemplar) {
        let size = u64::BITS - exemplar.value.saturating_sub(1).leading_zeros();
        self.by_size.insert(size, exemplar);
    }

    /// The newest above one value and not above another one.
    pub fn newest(&self, above: f64, to: f64) -> Option<&Exemplar> {
        let is_between = |exemplar: &&Exemplar| (exemplar.value as f64) > above && exemplar.value as f64 <= to;
        self.by_size.values().filter(is_between).max_by_key(|exemplar| exemplar.at)
    }
}

/// The exemplars of one model version.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelExemplars {
    /// In milliseconds.
    pub first_response: PhaseExemplars,
    /// In microseconds, in the order of [`crate::statistics::Latency`].
    pub phases: [PhaseExemplars; PHASES],
    newest: Duration,
}

/// The times of one traced request, as far as they are known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TracedTimes {
    pub first_response_ns: Option<u64>,
    /// In the order of [`crate::statistics::Latency`].
    pub phases_ns: [Option<u64>; PHASES],
}

/// The exemplars of all models of a server.
#[derive(Debug, Default)]
pub struct Exemplars {
    models: Mutex<HashMap<(String, i64), ModelExemplars>>,
}

impl Exemplars {
    /// Adds a request of a model version.
    pub fn add(&self, model: &str, version: i64, trace: &Arc<str>, at: Duration, times: &TracedTimes) {
        let mut models = self.models();
        let key = (model.to_owned(), version);
        if !models.contains_key(&key) && models.len() >= MODELS_MAX {
            let oldest = models.iter().min_by_key(|(_, model)| model.newest).map(|(key, _)| key.clone());
            oldest.map(|key| models.remove(&key));
        }
        let model = models.entry(key).or_default();
        model.newest = at;
        let exemplar = |value: u64| Exemplar { trace: Arc::clone(trace), value, at };
        if let Some(ns) = times.first_response_ns {
            model.first_response.add(exemplar(ns / 1_000_000));
        }
        for (phase, ns) in model.phases.iter_mut().zip(times.phases_ns) {
            if let Some(ns) = ns {
                phase.add(exemplar(ns / 1000));
            }
        }
    }

    /// Those of a model version, if it has any.
    pub fn of(&self, model: &str, version: i64) -> Option<ModelExemplars> {
        self.models().get(&(model.to_owned(), version)).cloned()
    }

    fn models(&self) -> MutexGuard<'_, HashMap<(String, i64), ModelExemplars>> {
        self.models.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_newest_of_each_size_is_kept() {
        let mut phase = PhaseExemplars::default();
        for (second, value) in (1..).zip([0, 1, 2, 16, 17, 32, u64::MAX]) {
            phase.add(Exemplar { trace: "t".into(), value, at: SECOND * second });
        }
        let newest = |above, to| phase.newest(above, to).map(|exemplar| exemplar.value);
        assert_eq!(newest(f64::NEG_INFINITY, 1.0), Some(1), "0 has the same size");
        assert_eq!(newest(f64::NEG_INFINITY, 16.0), Some(16));
        assert_eq!(newest(16.0, 32.0), Some(32), "17 has the same size, and is older");
        assert_eq!(newest(32.0, 64.0), None);
        assert_eq!(newest(64.0, f64::INFINITY), Some(u64::MAX));
    }

    #[test]
    fn the_model_without_a_trace_for_the_longest_time_makes_room() {
        let exemplars = Exemplars::default();
        let times =
            TracedTimes { first_response_ns: Some(2_999_999), phases_ns: [Some(7_999), None, None, Some(1_000), None] };
        for model in 0..MODELS_MAX as u32 {
            exemplars.add(&format!("m{model}"), 1, &"a".into(), SECOND * (model + 1), &times);
        }
        exemplars.add("m0", 1, &"b".into(), SECOND * 1000, &times);
        exemplars.add("m0", 2, &"c".into(), SECOND * 1001, &times);
        assert!(exemplars.of("m1", 1).is_none() && exemplars.of("m2", 1).is_some());
        let found = exemplars.of("m0", 1).unwrap();
        let value =
            |phase: &PhaseExemplars| phase.newest(-1.0, 1e9).map(|found| (found.value, found.trace.to_string()));
        assert_eq!(value(&found.first_response), Some((2, "b".to_owned())));
        let phases = found.phases.each_ref().map(|phase| value(phase).map(|(value, _)| value));
        assert_eq!(phases, [Some(7), None, None, Some(1), None]);
    }
}
