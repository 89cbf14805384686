//! The report of a check, for people and for programs.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::cli::options::{HostPolicySetting, ServeOptions};
use crate::repository::inspect::ensembles::Candidate;
use crate::repository::inspect::{BackendLocation, Inspection};
use nereid_model_config::{Instance, InstanceKind};
use nereid_shard::placement::{IoCores, Placement};

/// All repositories.
#[derive(Debug, Default)]
pub struct Report {
    /// Of the repositories themselves.
    pub problems: Vec<String>,
    /// What to do about the problems of the repositories.
    pub next_steps: Vec<String>,
    /// By name, then in the order of the repositories.
    pub models: Vec<ModelReport>,
    /// The models without findings were loaded.
    pub is_deep: bool,
}

/// One model.
#[derive(Debug, Default)]
pub struct ModelReport {
    pub repository: String,
    pub problems: Vec<String>,
    /// What to do about usual mistakes, if there is a problem.
    pub next_steps: Vec<String>,
    pub inspection: Inspection,
    pub instances: Instances,
    /// The load of a deep check; none for a model with findings before.
    pub load: Option<Load>,
}

/// A load that has ended, well or not.
#[derive(Debug, Clone, PartialEq)]
pub struct Load {
    /// From the start of its process to its end.
    pub secs: f64,
    /// Lines that the process wrote, if it did not end as it should.
    pub output: Vec<String>,
}

/// The instances of a model, and the cores or device of each.
#[derive(Debug, Default)]
pub struct Instances(Vec<Placed>);

#[derive(Debug)]
struct Placed {
    name: String,
    kind: &'static str,
    /// In words: `cores 1-3`.
    place: String,
    is_passive: bool,
}

impl Instances {
    /// Those that a server with `options` would make, if the model would load.
    pub fn of(inspection: &Inspection, options: &ServeOptions, placement: &Placement) -> Instances {
        let Some(spec) = &inspection.spec else { return Instances::default() };
        let placed = |instance: &Instance| {
            let group = spec.config.instance_group.get(instance.group);
            let (kind, default_policy) = match instance.kind {
                InstanceKind::Cpu => ("KIND_CPU", "cpu".to_owned()),
                InstanceKind::Gpu(device) => ("KIND_GPU", format!("gpu_{device}")),
                InstanceKind::Model => ("KIND_MODEL", "model".to_owned()),
            };
            let named = group.map(|group| group.host_policy.as_str()).filter(|name| !name.is_empty());
            Placed {
                name: instance.name.clone(),
                kind,
                place: match instance.kind {
                    InstanceKind::Gpu(device) => {
                        format!("GPU {device}, {}", place(named.unwrap_or(&default_policy), options, placement))
                    }
                    _ => place(named.unwrap_or(&default_policy), options, placement),
                },
                is_passive: group.is_some_and(|group| group.passive),
            }
        };
        Instances(spec.instances.iter().map(placed).collect())
    }
}

/// The cores of a host policy, else those that the shards leave.
fn place(policy: &str, options: &ServeOptions, placement: &Placement) -> String {
    let setting = |key: &str| {
        let fits = |given: &&HostPolicySetting| given.policy == policy && given.key == key;
        options.host_policies.iter().rev().find(fits).map(|given| given.value.as_str())
    };
    if let Some(list) = setting("cpu-cores") {
        return match list.parse() {
            Ok(IoCores::List(cores)) => format!("cores {} (host policy {policy})", ranges(&cores)),
            Ok(IoCores::Count(core)) => format!("cores {core} (host policy {policy})"),
            Err(_) => format!("cores {list} (host policy {policy})"),
        };
    }
    if let Some(node) = setting("numa-node") {
        return format!("NUMA node {node} (host policy {policy})");
    }
    let cores = match placement.workers.as_slice() {
        [] => "any core".to_owned(),
        cores => format!("cores {}", ranges(cores)),
    };
    let (spin_us, percent) = (placement.spin_ns / 1_000, placement.spin_percent);
    match (placement.spins(), percent) {
        (false, _) => cores,
        (true, 100..) => format!("{cores}, spinning for up to {spin_us} us"),
        (true, _) => format!("{cores}, spinning for up to {spin_us} us and {percent} % of the time"),
    }
}

/// `0-2,5`.
fn ranges(cores: &[usize]) -> String {
    let mut text = String::new();
    let mut rest = cores;
    while let Some(first) = rest.first() {
        let length = rest.iter().zip(*first..).take_while(|(core, expected)| *core == expected).count().max(1);
        let last = rest.get(length - 1).unwrap_or(first);
        let comma = if text.is_empty() { "" } else { "," };
        // Writing to a String cannot fail, here and below.
        let _ = match first == last {
            true => write!(text, "{comma}{first}"),
            false => write!(text, "{comma}{first}-{last}"),
        };
        rest = rest.get(length..).unwrap_or_default();
    }
    text
}

/// `1, 2`.
pub fn numbers(numbers: &[i64]) -> String {
    let texts: Vec<String> = numbers.iter().map(i64::to_string).collect();
    if texts.is_empty() { "none".to_owned() } else { texts.join(", ") }
}

/// `onnxruntime, built in`.
pub fn backend(inspection: &Inspection) -> String {
    let name = &inspection.stages.resolved.backend;
    match &inspection.backend {
        BackendLocation::Unknown if name.is_empty() => "unknown".to_owned(),
        BackendLocation::Unknown => format!("{name}, not found"),
        BackendLocation::NotNeeded => "none, it is an ensemble".to_owned(),
        BackendLocation::BuiltIn => format!("{name}, built in"),
        BackendLocation::Library(code) | BackendLocation::Script(code) => format!("{name}, {}", code.display()),
    }
}

impl Report {
    /// True if no model has a finding: after a deep check, that all would load; else as far as that shows without
    /// loading them.
    pub fn is_good(&self) -> bool {
        self.problems.is_empty() && self.models.iter().all(|model| model.problems.is_empty())
    }

    /// The models for which this is true, by their places.
    pub fn indices(&self, is_meant: impl Fn(&ModelReport) -> bool) -> Vec<usize> {
        let meant = self.models.iter().enumerate().filter(|(_, model)| is_meant(model));
        meant.map(|(at, _)| at).collect()
    }

    /// The models as ensembles see them.
    pub fn candidates(&self) -> Vec<Candidate<'_>> {
        let candidate = |model: &'_ ModelReport| model.problems.first().cloned();
        let models = self.models.iter().map(|model| (model, candidate(model)));
        let models = models.map(|(ModelReport { repository, inspection, .. }, problem)| Candidate {
            repository,
            inspection,
            problem,
        });
        models.collect()
    }

    pub fn text(&self) -> String {
        let mut text = String::new();
        for problem in &self.problems {
            let _ = writeln!(text, "{problem}");
        }
        if !self.is_good() {
            push_steps("", &self.next_steps, &mut text);
        }
        for model in &self.models {
            model.push_text(self.is_deep, &mut text);
        }
        let good = self.models.iter().filter(|model| model.problems.is_empty()).count();
        let models = self.models.len();
        let _ = match self.is_deep {
            true => writeln!(text, "{good} of {models} models would load"),
            false if good == 0 => writeln!(text, "{good} of {models} models are consistent"),
            false => writeln!(text, "{good} of {models} models are consistent; --deep also loads them"),
        };
        text
    }

    pub fn json(&self) -> String {
        let models: Vec<Value> = self.models.iter().map(|model| model.json(self.is_deep)).collect();
        let (verdict, problems) = (verdict(self.is_deep), &self.problems);
        let next_steps: &[String] = if self.is_good() { &[] } else { &self.next_steps };
        let report =
            json!({ verdict: self.is_good(), "problems": problems, "next_steps": next_steps, "models": models });
        format!("{report:#}\n")
    }
}

/// The name of the verdict in JSON.
fn verdict(is_deep: bool) -> &'static str {
    if is_deep { "would_load" } else { "consistent" }
}

fn push_steps(indent: &str, steps: &[String], text: &mut String) {
    for step in steps {
        let _ = writeln!(text, "{indent}next step: {step}");
    }
}

impl ModelReport {
    fn push_text(&self, is_deep: bool, text: &mut String) {
        let seen = &self.inspection;
        let verdict = match self.problems.len() {
            0 if is_deep => "would load".to_owned(),
            0 => "consistent".to_owned(),
            1 => "1 problem".to_owned(),
            count => format!("{count} problems"),
        };
        let _ = writeln!(text, "{} in {}: {verdict}", seen.name, self.repository);
        for problem in &self.problems {
            // A traceback has several lines.
            for (number, line) in problem.lines().filter(|line| !line.trim().is_empty()).enumerate() {
                let indent = if number == 0 { "  " } else { "    " };
                let _ = writeln!(text, "{indent}{line}");
            }
        }
        for line in self.load.iter().flat_map(|load| &load.output) {
            let _ = writeln!(text, "    | {line}");
        }
        for warning in &seen.warnings {
            let _ = writeln!(text, "  warning: {warning}");
        }
        if !self.problems.is_empty() {
            push_steps("  ", &self.next_steps, text);
            return;
        }
        let _ = writeln!(text, "  versions   {} of {}", numbers(&seen.chosen), numbers(&seen.versions));
        let _ = writeln!(text, "  backend    {}", backend(seen));
        for placed in &self.instances.0 {
            let passive = if placed.is_passive { ", passive" } else { "" };
            let _ = writeln!(text, "  instance   {}, {}, {}{passive}", placed.name, placed.kind, placed.place);
        }
        if let Some(load) = &self.load {
            let _ = writeln!(text, "  loaded     and unloaded in {:.1} s", load.secs);
        }
    }

    fn json(&self, is_deep: bool) -> Value {
        let seen = &self.inspection;
        let instances: Vec<Value> = self
            .instances
            .0
            .iter()
            .map(|placed| {
                json!({
                    "name": placed.name,
                    "kind": placed.kind,
                    "place": placed.place,
                    "passive": placed.is_passive,
                })
            })
            .collect();
        let next_steps: &[String] = if self.problems.is_empty() { &[] } else { &self.next_steps };
        json!({
            "name": seen.name,
            "repository": self.repository,
            verdict(is_deep): self.problems.is_empty(),
            "problems": self.problems,
            "next_steps": next_steps,
            "warnings": seen.warnings,
            "versions": seen.chosen,
            "backend": backend(seen),
            "instances": instances,
            "load_secs": self.load.as_ref().map(|load| load.secs),
            "output": self.load.as_ref().map(|load| &*load.output).unwrap_or_default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_written_as_ranges() {
        for (cores, text) in
            [(&[][..], ""), (&[3], "3"), (&[0, 1, 2], "0-2"), (&[0, 2, 3, 7], "0,2-3,7"), (&[5, 4], "5,4")]
        {
            assert_eq!(ranges(cores), text);
        }
        assert_eq!(numbers(&[]), "none");
        assert_eq!(numbers(&[1, 3]), "1, 3");
    }

    #[test]
    fn instances_run_where_their_policy_says() {
        let setting = |policy: &str, key: &str, value: &str| HostPolicySetting {
            policy: policy.into(),
            key: key.into(),
            value: value.into(),
        };
        let options = ServeOptions {
            host_policies: vec![
                setting("p", "cpu-cores", "0,2-3"),
                setting("q", "cpu-cores", "5"),
                setting("n", "numa-node", "1"),
                setting("n", "other", "x"),
            ],
            ..ServeOptions::default()
        };
        let (shards, workers) = (vec![Some(0)], vec![1, 2, 3]);
        let pinned = Placement { shards, workers, spin_ns: 0, spin_percent: 100, shares_cores: false };
        for (policy, expected) in [
            ("p", "cores 0,2-3 (host policy p)"),
            ("q", "cores 5 (host policy q)"),
            ("n", "NUMA node 1 (host policy n)"),
            ("cpu", "cores 1-3"),
        ] {
            assert_eq!(place(policy, &options, &pinned), expected);
        }
        let spinning = Placement { spin_ns: 50_000, ..pinned };
        assert_eq!(place("cpu", &options, &spinning), "cores 1-3, spinning for up to 50 us");
        let bounded = Placement { spin_percent: 5, ..spinning };
        assert_eq!(place("cpu", &options, &bounded), "cores 1-3, spinning for up to 50 us and 5 % of the time");
        let forbidden = Placement { spin_percent: 0, ..bounded };
        assert_eq!(place("cpu", &options, &forbidden), "cores 1-3");
        assert_eq!(place("cpu", &options, &Placement::unpinned()), "any core");
        let requested = Placement { spin_ns: 20_000, ..Placement::unpinned() };
        assert_eq!(place("cpu", &options, &requested), "any core, spinning for up to 20 us and 5 % of the time");
    }
}
