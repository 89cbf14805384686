//! `points.csv`: Model Analyzer's default columns (contract/tune.md section 3), and behind them some more.

use std::fmt::Write;

use super::super::outcome::Outcome;
use super::super::point::Point;
use super::super::space::FieldKind;

const COLUMNS: [&str; 15] = [
    "model_name",
    "batch_size",
    "concurrency",
    "model_config_path",
    "instance_group",
    "max_batch_size",
    "satisfies_constraints",
    "perf_throughput",
    "perf_latency_p99",
    "request_rate",
    "perf_latency_p90",
    "cpu_used_ram",
    "requests",
    "errors",
    "failure",
];

pub fn render(outcome: &Outcome) -> String {
    let mut text = COLUMNS.join(",");
    text.push('\n');
    for point in &outcome.points {
        for row in rows(outcome, point) {
            let cells: Vec<String> = row.iter().map(|cell| quoted(cell)).collect();
            let _ = writeln!(text, "{}", cells.join(","));
        }
    }
    text
}

/// One for each tuned model, as Model Analyzer has one for each model of a measurement.
fn rows(outcome: &Outcome, point: &Point) -> Vec<[String; 15]> {
    let number = |value: Option<f64>| value.map(|value| format!("{value:.3}")).unwrap_or_default();
    let reference = outcome.points.first().map(super::super::goal::Reference::of).unwrap_or_default();
    let fits =
        point.is_valid() && outcome.plan.goal.judge(point, &reference).standing == super::super::search::Standing::Fits;
    let row = |facts: &super::super::configuration::ModelFacts| {
        let of = |kind: FieldKind| {
            let changed = point.changes.get(&format!("{}/{}", facts.name, kind.name())).cloned();
            changed.or_else(|| facts.value(&kind).map(|value| value.to_string()))
        };
        let kind = facts.config["instance_group"][0]["kind"].as_str().unwrap_or("KIND_CPU").trim_start_matches("KIND_");
        let instances = of(FieldKind::Instances).unwrap_or_else(|| facts.instances().to_string());
        [
            facts.name.clone(),
            "1".to_owned(),
            point.concurrency.map(|concurrency| concurrency.to_string()).unwrap_or_default(),
            match point.changes.is_empty() {
                true => format!("{}_config_default", facts.name),
                false => format!("{}_config_{}", facts.name, point.number),
            },
            format!("{instances}:{kind}"),
            of(FieldKind::MaxBatch).unwrap_or_else(|| facts.max_batch.to_string()),
            if fits { "Yes" } else { "No" }.to_owned(),
            number(point.throughput().map(|interval| interval.mean)),
            number(point.p99_ms()),
            number(point.rate),
            number(point.percentile_ms(90.0)),
            number(super::mib(point.memory_bytes())),
            point.completed().to_string(),
            point.failed().to_string(),
            point.failure.clone().unwrap_or_default(),
        ]
    };
    outcome.tuned.iter().map(row).collect()
}

/// As RFC 4180 has it; a text that a spreadsheet would take for a formula gets an apostrophe.
fn quoted(cell: &str) -> String {
    let cell = match cell.starts_with(['=', '+', '-', '@']) {
        true => format!("'{cell}"),
        false => cell.to_owned(),
    };
    match cell.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_quoted() {
        for (cell, text) in [("a", "a"), ("a,b", "\"a,b\""), ("a\"b", "\"a\"\"b\""), ("=1", "'=1"), ("", "")] {
            assert_eq!(quoted(cell), text);
        }
    }
}
