//! The report of a check, for people and for programs.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::cli::options::{HostPolicySetting, ServeOptions};
use crate::repository::inspect::{BackendLocation, Inspection};
use nereid_model_config::{Instance, InstanceKind};
use nereid_shard::placement::{IoCores, Placement};

/// All repositories.
#[derive(Debug, Default)]
pub struct Report {
    /// Of the repositories themselves.
    pub problems: Vec<String>,
    /// By name, then in the order of the repositories.
    pub models: Vec<ModelReport>,
}

/// One model.
#[derive(Debug)]
pub struct ModelReport {
    pub repository: String,
    pub problems: Vec<String>,
    pub inspection: Inspection,
    pub instances: Instances,
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
    match (placement.workers.as_slice(), placement.spin_ns / 1_000) {
        ([], _) => "any core".to_owned(),
        (cores, 0) => format!("cores {}", ranges(cores)),
        (cores, spin_us) => format!("cores {}, spinning for up to {spin_us} us", ranges(cores)),
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
    /// True if no model has a finding, as far as that shows without loading it.
    pub fn is_consistent(&self) -> bool {
        self.problems.is_empty() && self.models.iter().all(|model| model.problems.is_empty())
    }

    pub fn text(&self) -> String {
        let mut text = String::new();
        for problem in &self.problems {
            let _ = writeln!(text, "{problem}");
        }
        for model in &self.models {
            model.push_text(&mut text);
        }
        let good = self.models.iter().filter(|model| model.problems.is_empty()).count();
        let _ = writeln!(text, "{good} of {} models are consistent", self.models.len());
        text
    }

    pub fn json(&self) -> String {
        let models: Vec<Value> = self.models.iter().map(ModelReport::json).collect();
        let report = json!({ "consistent": self.is_consistent(), "problems": self.problems, "models": models });
        format!("{report:#}\n")
    }
}

impl ModelReport {
    fn push_text(&self, text: &mut String) {
        let seen = &self.inspection;
        let verdict = match self.problems.len() {
            0 => "consistent".to_owned(),
            1 => "1 problem".to_owned(),
            count => format!("{count} problems"),
        };
        let _ = writeln!(text, "{} in {}: {verdict}", seen.name, self.repository);
        for problem in &self.problems {
            let _ = writeln!(text, "  {problem}");
        }
        for warning in &seen.warnings {
            let _ = writeln!(text, "  warning: {warning}");
        }
        if !self.problems.is_empty() {
            return;
        }
        let _ = writeln!(text, "  versions   {} of {}", numbers(&seen.chosen), numbers(&seen.versions));
        let _ = writeln!(text, "  backend    {}", backend(seen));
        for placed in &self.instances.0 {
            let passive = if placed.is_passive { ", passive" } else { "" };
            let _ = writeln!(text, "  instance   {}, {}, {}{passive}", placed.name, placed.kind, placed.place);
        }
    }

    fn json(&self) -> Value {
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
        json!({
            "name": seen.name,
            "repository": self.repository,
            "consistent": self.problems.is_empty(),
            "problems": self.problems,
            "warnings": seen.warnings,
            "versions": seen.chosen,
            "backend": backend(seen),
            "instances": instances,
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
        let pinned = Placement { shards: vec![Some(0)], workers: vec![1, 2, 3], spin_ns: 0 };
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
        assert_eq!(place("cpu", &options, &Placement::unpinned()), "any core");
    }
}
