//! The result of a run: what is recommended, by how much it is better, and why.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use super::configuration::ModelFacts;
use super::plan::Plan;
use super::point::Point;
use super::search::DRIFT_MAX;
use super::space::Space;
use super::statistics::Interval;
use nereid_perf::report::Machine;

/// Of the cores that a server has, the part from which on they are what limits it.
const CORES_BUSY: f64 = 0.85;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Better,
    /// Nothing is better than the present configuration beyond noise.
    NothingBetter,
    /// No configuration keeps the limits.
    LimitsNotMet,
    Interrupted,
}

impl Verdict {
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Better => "better",
            Verdict::NothingBetter => "nothing better",
            Verdict::LimitsNotMet => "limits not met",
            Verdict::Interrupted => "interrupted",
        }
    }
}

/// What one model should have.
#[derive(Debug, Clone, PartialEq)]
pub struct Recommendation {
    pub model: String,
    /// The fields of `config.pbtxt` that change.
    pub fragment: String,
    pub diff: String,
}

/// A load that keeps the limits, where the wanted one does not.
#[derive(Debug, Clone, PartialEq)]
pub struct Capacity {
    pub throughput: f64,
    pub load: String,
    pub p99_ms: Option<f64>,
}

/// What is known before anything is measured.
#[derive(Debug)]
pub struct RunFacts {
    pub machine: Machine,
    pub began_unix_ns: u64,
    /// What measurements depend on beside the choice.
    pub identity: Value,
    /// Delays of each model.
    pub ladders: BTreeMap<String, Vec<u64>>,
    /// Of each model.
    pub executions_us: BTreeMap<String, f64>,
    /// The length of a slice, unless the model is slow.
    pub slice: Duration,
}

#[derive(Debug)]
pub struct Outcome {
    pub plan: Plan,
    pub facts: RunFacts,
    pub seconds: f64,
    pub tuned: Vec<ModelFacts>,
    pub space: Space,
    /// Choices of the whole space.
    pub choices: usize,
    pub points: Vec<Point>,
    /// Points of an earlier run that this one did not need, for one after it.
    pub points_left: Vec<Point>,
    pub verdict: Verdict,
    /// Numbers of points.
    pub baseline: Option<usize>,
    pub best: Option<usize>,
    /// Of the recommended configuration over the present one, as a factor.
    pub gain: Option<Interval>,
    /// The present configuration misses the limits that the recommended one keeps.
    pub is_kept_alone: bool,
    /// The most that the present configuration changed during the run.
    pub drift: f64,
    pub capacity: Option<Capacity>,
    pub recommendations: Vec<Recommendation>,
    /// A flag for the server.
    pub server_flag: Option<String>,
    /// One sentence: what limits it.
    pub why: String,
    /// Why the search ended before its time.
    pub ended_early: Option<String>,
    /// Bursts that were measured, not taken from an earlier run.
    pub measured: usize,
}

impl Outcome {
    pub fn is_unstable(&self) -> bool {
        self.drift > DRIFT_MAX
    }

    pub fn point(&self, number: Option<usize>) -> Option<&Point> {
        self.points.get(number?.checked_sub(1)?)
    }
}

/// The resource that limits the better configuration, in a sentence.
pub fn why(baseline: &Point, best: &Point, cores: usize) -> String {
    let batch = |point: &Point| {
        let spans = point.models.iter().flat_map(|model| &model.spans).filter(|spans| spans.executions > 0);
        spans.map(super::point::Spans::mean_batch).fold(0.0, f64::max)
    };
    let waits = |point: &Point| {
        let spans = point.models.iter().flat_map(|model| &model.spans);
        spans.fold((0.0f64, 0.0f64), |(queue, compute), spans| {
            (queue.max(spans.queue_us), compute.max(spans.compute_infer_us))
        })
    };
    let used = best.cores_used();
    let (batch_before, batch_after) = (batch(baseline), batch(best));
    let (queue, compute) = waits(baseline);
    let mut causes = Vec::new();
    if batch_after > batch_before * 1.3 {
        causes.push(format!(
            "executions of {batch_after:.1} requests in the mean, before {batch_before:.1}, share what an execution \
             costs"
        ));
    }
    if queue > compute && best.cores_used() > baseline.cores_used() * 1.2 {
        causes.push(format!(
            "requests waited {:.1} ms for an instance whose execution takes {:.1} ms, while cores were idle",
            queue / 1e3,
            compute / 1e3
        ));
    }
    let limit = if used >= CORES_BUSY * cores as f64 {
        format!("the limit is now the processor: {used:.1} of {cores} cores")
    } else {
        let (queue, compute) = waits(best);
        match queue > compute {
            true => format!(
                "the limit is now the time of an execution, {:.1} ms, for which requests wait {:.1} ms",
                compute / 1e3,
                queue / 1e3
            ),
            false => format!("the limit is now the time of an execution, {:.1} ms", compute / 1e3),
        }
    };
    causes.push(limit);
    let mut sentence = causes.join("; ");
    if let Some(first) = sentence.get(..1).map(str::to_uppercase) {
        sentence.replace_range(..1, &first);
    }
    sentence.push('.');
    sentence
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::point::tests::burst;

    #[test]
    fn the_limiting_resource_is_named() {
        let baseline = burst(100.0, 10.0, 1);
        let mut best = burst(400.0, 10.0, 1);
        best.models[0].spans[0].executions = 10;
        best.cpu_seconds = vec![1.9];
        let text = why(&baseline, &best, 2);
        assert!(text.starts_with("Executions of 30.0 requests in the mean, before 3.0"), "{text}");
        assert!(text.ends_with("the limit is now the processor: 1.9 of 2 cores."), "{text}");
        assert!(why(&baseline, &baseline, 2).starts_with("The limit is now the time of an execution"));
    }
}
