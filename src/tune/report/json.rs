//! `tune.json`: everything, for programs, and for a run that goes on with it.

use serde_json::{Value, json};

use super::super::outcome::Outcome;
use super::super::point::{Point, pareto};

pub const FORMAT: &str = "nereid-tune";
/// Changes with the meaning of what stands in the file.
pub const VERSION: u64 = 1;

pub fn text(outcome: &Outcome) -> String {
    format!("{:#}\n", render(outcome))
}

pub fn render(outcome: &Outcome) -> Value {
    let plan = &outcome.plan;
    let front: Vec<usize> =
        pareto(&outcome.points).iter().filter_map(|at| outcome.points.get(*at)).map(|point| point.number).collect();
    let fields = outcome.space.fields.iter().map(|field| {
        let values: Vec<String> = field.values.iter().map(ToString::to_string).collect();
        json!({ "name": field.name(), "values": values, "present": values.get(field.start) })
    });
    let recommendations = outcome
        .recommendations
        .iter()
        .map(|one| json!({ "model": one.model, "config": one.fragment, "diff": one.diff }));
    json!({
        "format": FORMAT,
        "version": VERSION,
        "program": nereid_perf::report::version(),
        "began_unix_ns": outcome.facts.began_unix_ns,
        "seconds": outcome.seconds,
        "machine": {
            "cpu": outcome.facts.machine.cpu,
            "cores": outcome.facts.machine.cores,
            "virtual": outcome.facts.machine.is_virtual,
            "kernel": outcome.facts.machine.kernel,
            "governor": outcome.facts.machine.governor,
            "memory_mib": outcome.facts.machine.memory_mib,
            "load_average": outcome.facts.machine.load_average,
        },
        "identity": outcome.facts.identity,
        "goal": plan.goal.describe(),
        "search": plan.search.name(),
        "budget_seconds": plan.budget.as_secs_f64(),
        "max_memory_bytes": plan.memory_max_bytes,
        "tuned": outcome.tuned.iter().map(|facts| &facts.name).collect::<Vec<_>>(),
        "space": fields.collect::<Vec<_>>(),
        "choices": outcome.choices,
        "ladders": outcome.facts.ladders,
        "executions_us": outcome.facts.executions_us,
        "points": outcome.points.iter().map(point).collect::<Vec<_>>(),
        "points_left": outcome.points_left,
        "slice_ns": u64::try_from(outcome.facts.slice.as_nanos()).unwrap_or(u64::MAX),
        "pareto": front,
        "verdict": outcome.verdict.name(),
        "baseline": outcome.baseline,
        "best": outcome.best,
        "gain": outcome.gain.map(|gain| json!({ "factor": gain.mean, "low": gain.low, "high": gain.high })),
        "only_best_keeps_limits": outcome.is_kept_alone,
        "drift": outcome.drift,
        "unstable": outcome.is_unstable(),
        "capacity": outcome.capacity.as_ref().map(|capacity| {
            json!({ "throughput": capacity.throughput, "load": capacity.load, "p99_ms": capacity.p99_ms })
        }),
        "recommendations": recommendations.collect::<Vec<_>>(),
        "server_flag": outcome.server_flag,
        "why": outcome.why,
        "ended_early": outcome.ended_early,
        "bursts_measured": outcome.measured,
    })
}

/// The record itself, and figures that follow from it.
fn point(point: &Point) -> Value {
    let mut value = serde_json::to_value(point).unwrap_or(Value::Null);
    let throughput = point.throughput();
    let figures = json!({
        "completed": point.completed(),
        "failed": point.failed(),
        "throughput": throughput.map(|interval| interval.mean),
        "throughput_low": throughput.map(|interval| interval.low).filter(|low| low.is_finite()),
        "throughput_high": throughput.map(|interval| interval.high).filter(|high| high.is_finite()),
        "p50_ms": point.percentile_ms(50.0),
        "p90_ms": point.percentile_ms(90.0),
        "p99_ms": point.percentile_ms(99.0),
        "p99_9_ms": point.percentile_ms(99.9),
        "memory_bytes": point.memory_bytes(),
        "cpu_seconds_per_request": point.cpu_per_request(),
        "generator_limited": point.is_generator_limited(),
        "valid": point.is_valid(),
    });
    if let Some(object) = value.as_object_mut() {
        object.insert("figures".to_owned(), figures);
    }
    value
}
