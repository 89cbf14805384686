//! The configuration of a model: what a choice makes of it, and how that differs from the present one.
//!
//! The server gives the configuration as JSON, completed and with all defaults. A choice changes some fields of it; the
//! result is the override of a load request. What the user gets is a fragment of `config.pbtxt` with these fields
//! alone.

use std::fmt::Write;

use serde_json::{Value as Json, json};

use super::space::{Choice, FieldKind, Space, Value};

/// Parameter of ONNX Runtime's models.
const THREADS: &str = "intra_op_thread_count";

/// What the space of a model depends on.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelFacts {
    pub name: String,
    pub backend: String,
    pub max_batch: u64,
    /// The least that the largest batch may be: that of an ensemble which it is part of.
    pub batch_min: u64,
    /// Requests can be batched, or are.
    pub may_batch: bool,
    pub is_on_cpu: bool,
    /// Microseconds of an execution, where it is known.
    pub execution_us: Option<f64>,
    /// As the server gives it.
    pub config: Json,
}

fn number(value: &Json) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.parse().ok())
}

fn list(value: &Json) -> &[Json] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

impl ModelFacts {
    pub fn read(name: &str, config: &Json) -> ModelFacts {
        let text = |field: &str| config[field].as_str().unwrap_or_default().to_owned();
        let max_batch = number(&config["max_batch_size"]).unwrap_or(0);
        let is_other = !config["sequence_batching"].is_null() || !config["ensemble_scheduling"].is_null();
        let is_on_cpu = |group: &Json| !matches!(group["kind"].as_str(), Some("KIND_GPU" | "KIND_MODEL"));
        ModelFacts {
            name: name.to_owned(),
            backend: text("backend"),
            max_batch,
            batch_min: 1,
            may_batch: max_batch > 0 && !is_other,
            is_on_cpu: list(&config["instance_group"]).iter().all(is_on_cpu),
            execution_us: None,
            config: config.clone(),
        }
    }

    /// The models of an ensemble's steps.
    pub fn parts(&self) -> Vec<String> {
        let steps = list(&self.config["ensemble_scheduling"]["step"]).iter();
        let mut parts: Vec<String> = steps.filter_map(|step| step["model_name"].as_str()).map(str::to_owned).collect();
        parts.sort_unstable();
        parts.dedup();
        parts
    }

    pub fn is_ensemble(&self) -> bool {
        !self.config["ensemble_scheduling"].is_null()
    }

    /// Instances of all groups.
    pub fn instances(&self) -> u64 {
        let groups = list(&self.config["instance_group"]);
        let counts = groups.iter().map(|group| number(&group["count"]).unwrap_or(1).max(1));
        counts.sum::<u64>().max(1)
    }

    /// The present value of a field; none if the model has no such field.
    pub fn value(&self, kind: &FieldKind) -> Option<Value> {
        let dynamic = &self.config["dynamic_batching"];
        let parameter = |key: &str| self.config["parameters"][key]["string_value"].as_str();
        match kind {
            FieldKind::Delay | FieldKind::MaxBatch | FieldKind::Preferred if !self.may_batch => None,
            FieldKind::Delay if dynamic.is_null() => Some(Value::Off),
            FieldKind::Delay => Some(Value::Number(number(&dynamic["max_queue_delay_microseconds"]).unwrap_or(0))),
            FieldKind::MaxBatch => Some(Value::Number(self.max_batch)),
            FieldKind::Instances => match list(&self.config["instance_group"]) {
                [group] if !self.is_ensemble() => Some(Value::Number(number(&group["count"]).unwrap_or(1).max(1))),
                _ => None,
            },
            FieldKind::Preferred => {
                let sizes: Vec<u64> = list(&dynamic["preferred_batch_size"]).iter().filter_map(number).collect();
                // The server fills in the largest batch.
                Some(match sizes.is_empty() || sizes == [self.max_batch] {
                    true => Value::Default,
                    false => Value::Numbers(sizes),
                })
            }
            FieldKind::Threads if self.backend != "onnxruntime" => None,
            FieldKind::Threads => Some(match parameter(THREADS).and_then(|text| text.parse().ok()) {
                Some(0) | None => Value::Default,
                Some(threads) => Value::Number(threads),
            }),
            FieldKind::RunToCompletion => None,
            FieldKind::Parameter(_) if self.is_ensemble() => None,
            FieldKind::Parameter(key) => {
                Some(parameter(key).map_or(Value::Default, |text| Value::Text(text.to_owned())))
            }
        }
    }

    /// The value of a field under a choice.
    fn chosen(&self, space: &Space, choice: &Choice, kind: &FieldKind) -> Option<Value> {
        space.of_model(choice, &self.name, kind).cloned().or_else(|| self.value(kind))
    }

    /// Requests that the model can work on at a time: the largest batch on each instance.
    pub fn width(&self, space: &Space, choice: &Choice) -> u64 {
        let instances = match self.chosen(space, choice, &FieldKind::Instances) {
            Some(Value::Number(instances)) => instances,
            _ => self.instances(),
        };
        let batch =
            match (self.chosen(space, choice, &FieldKind::Delay), self.chosen(space, choice, &FieldKind::MaxBatch)) {
                (Some(Value::Number(_)), Some(Value::Number(batch))) => batch,
                _ => 1,
            };
        batch.saturating_mul(instances).max(1)
    }

    /// Instances under a choice.
    pub fn instances_of(&self, space: &Space, choice: &Choice) -> u64 {
        match self.chosen(space, choice, &FieldKind::Instances) {
            Some(Value::Number(instances)) => instances,
            _ => self.instances(),
        }
    }

    /// The whole configuration under a choice; the present one if nothing is changed.
    pub fn changed(&self, space: &Space, choice: &Choice) -> Json {
        let mut config = self.config.clone();
        for (at, field) in space.fields.iter().enumerate() {
            let is_own = field.model.as_deref() == Some(self.name.as_str());
            if !is_own || choice.values.get(at) == Some(&field.start) {
                continue;
            }
            let Some(value) = space.value(choice, at) else { continue };
            match (&field.kind, value) {
                (FieldKind::Delay, Value::Off) => {
                    config.as_object_mut().map(|fields| fields.remove("dynamic_batching"));
                }
                (FieldKind::Delay, Value::Number(us)) => {
                    if config["dynamic_batching"].is_null() {
                        config["dynamic_batching"] = json!({});
                    }
                    config["dynamic_batching"]["max_queue_delay_microseconds"] = json!(us);
                }
                (FieldKind::MaxBatch, Value::Number(batch)) => config["max_batch_size"] = json!(batch),
                (FieldKind::Instances, Value::Number(count)) => config["instance_group"][0]["count"] = json!(count),
                (FieldKind::Threads, value) => set_parameter(&mut config, THREADS, value),
                (FieldKind::Parameter(key), value) => set_parameter(&mut config, key, value),
                _ => {}
            }
        }
        self.put_preferred(space, choice, &mut config);
        config
    }

    /// Preferred sizes follow the largest batch, unless they are fixed.
    fn put_preferred(&self, space: &Space, choice: &Choice, config: &mut Json) {
        if config["dynamic_batching"].is_null() || !self.may_batch {
            return;
        }
        let batch = number(&config["max_batch_size"]).unwrap_or(self.max_batch);
        let sizes = match self.chosen(space, choice, &FieldKind::Preferred) {
            Some(Value::Half) => vec![(batch / 2).max(1), batch],
            Some(Value::Number(size)) => vec![size.min(batch)],
            Some(Value::Numbers(sizes)) => sizes.into_iter().filter(|size| *size <= batch).collect(),
            _ => Vec::new(),
        };
        match sizes.is_empty() {
            // The server fills in the largest batch.
            true => {
                config["dynamic_batching"].as_object_mut().map(|fields| fields.remove("preferred_batch_size"));
            }
            false => config["dynamic_batching"]["preferred_batch_size"] = json!(sizes),
        }
    }

    /// The fields of `config.pbtxt` that a choice changes, as text, with a remark for each that has to go.
    pub fn fragment(&self, space: &Space, choice: &Choice) -> String {
        let (before, after) = self.fragments(space, choice);
        let is_block = |lines: &[String]| lines.iter().any(|line| line.starts_with("dynamic_batching"));
        let changed = self.changed(space, choice);
        let mut removed = Vec::new();
        if is_block(&before) && !is_block(&after) {
            removed.push("# remove dynamic_batching".to_owned());
        }
        let has_sizes = |lines: &[String]| lines.iter().any(|line| line.contains("preferred_batch_size"));
        if is_block(&after) && has_sizes(&before) && !has_sizes(&after) {
            removed.push("# remove preferred_batch_size from dynamic_batching".to_owned());
        }
        let keys = self.config["parameters"].as_object().into_iter().flat_map(|parameters| parameters.keys());
        let gone = keys.filter(|key| changed["parameters"].get(key.as_str()).is_none());
        removed.extend(gone.map(|key| format!("# remove parameters with key: {}", Json::from(key.as_str()))));
        after.iter().chain(&removed).map(|line| format!("{line}\n")).collect()
    }

    /// The fields of `config.pbtxt` that a choice changes, as text: before, and after.
    fn fragments(&self, space: &Space, choice: &Choice) -> (Vec<String>, Vec<String>) {
        let after = self.changed(space, choice);
        let mut lines = (Vec::new(), Vec::new());
        let changed = |kind: &FieldKind| {
            let at = space.position(Some(&self.name), kind);
            at.is_some_and(|at| choice.values.get(at).copied() != space.fields.get(at).map(|field| field.start))
        };
        let mut add = |of: fn(&Json) -> Vec<String>| {
            lines.0.extend(of(&self.config));
            lines.1.extend(of(&after));
        };
        if changed(&FieldKind::MaxBatch) {
            add(max_batch_size);
        }
        // The present sizes would stay in the file, where another largest batch has others.
        let has_sizes = |config: &Json| !list(&config["dynamic_batching"]["preferred_batch_size"]).is_empty();
        if changed(&FieldKind::MaxBatch) && (has_sizes(&self.config) || has_sizes(&after)) {
            add(|config| dynamic_batching(config, true));
        } else if changed(&FieldKind::Delay) || changed(&FieldKind::Preferred) {
            add(|config| dynamic_batching(config, false));
        }
        if changed(&FieldKind::Instances) {
            add(instance_group);
        }
        for field in space.fields.iter().filter(|field| field.model.as_deref() == Some(self.name.as_str())) {
            let key = match &field.kind {
                FieldKind::Threads => THREADS,
                FieldKind::Parameter(key) => key,
                _ => continue,
            };
            if changed(&field.kind) {
                lines.0.extend(parameter(&self.config, key));
                lines.1.extend(parameter(&after, key));
            }
        }
        lines
    }

    /// The same as a diff; empty if nothing changes.
    pub fn diff(&self, space: &Space, choice: &Choice) -> String {
        let (before, after) = self.fragments(space, choice);
        if before == after {
            return String::new();
        }
        let mut text = format!("--- {0}/config.pbtxt\n+++ {0}/config.pbtxt\n", self.name);
        let (mut left, mut right) = (before.as_slice(), after.as_slice());
        // Lines that stay stand once: the longest common beginning and end.
        let common = left.iter().zip(right).take_while(|(one, other)| one == other).count();
        let put = |sign: char, lines: &[String], text: &mut String| {
            for line in lines {
                let _ = writeln!(text, "{sign}{line}");
            }
        };
        put(' ', left.get(..common).unwrap_or_default(), &mut text);
        left = left.get(common..).unwrap_or_default();
        right = right.get(common..).unwrap_or_default();
        let tail = left.iter().rev().zip(right.iter().rev()).take_while(|(one, other)| one == other).count();
        put('-', left.get(..left.len() - tail).unwrap_or_default(), &mut text);
        put('+', right.get(..right.len() - tail).unwrap_or_default(), &mut text);
        put(' ', left.get(left.len() - tail..).unwrap_or_default(), &mut text);
        text
    }
}

fn set_parameter(config: &mut Json, key: &str, value: &Value) {
    if !config["parameters"].is_object() {
        config["parameters"] = json!({});
    }
    match value {
        Value::Default => {
            config["parameters"].as_object_mut().map(|parameters| parameters.remove(key));
        }
        value => config["parameters"][key] = json!({ "string_value": value.to_string() }),
    }
}

fn max_batch_size(config: &Json) -> Vec<String> {
    vec![format!("max_batch_size: {}", number(&config["max_batch_size"]).unwrap_or(0))]
}

/// A field has a value that is not its default.
fn is_set(value: &Json) -> bool {
    match value {
        Json::Null => false,
        Json::Bool(value) => *value,
        Json::Number(number) => number.as_f64() != Some(0.0),
        Json::String(text) => !text.is_empty() && text != "0",
        Json::Array(values) => !values.is_empty(),
        Json::Object(fields) => fields.values().any(is_set),
    }
}

/// Fields beside those that are named have values.
fn has_others(fields: &Json, named: &[&str]) -> bool {
    let fields = fields.as_object();
    fields.is_some_and(|fields| fields.iter().any(|(name, value)| !named.contains(&name.as_str()) && is_set(value)))
}

/// With preferred sizes in any case, or only where they are not the server's default.
fn dynamic_batching(config: &Json, is_whole: bool) -> Vec<String> {
    let dynamic = &config["dynamic_batching"];
    if dynamic.is_null() {
        return Vec::new();
    }
    let mut lines = vec!["dynamic_batching {".to_owned()];
    let mut sizes: Vec<u64> = list(&dynamic["preferred_batch_size"]).iter().filter_map(number).collect();
    let default = number(&config["max_batch_size"]);
    if sizes.is_empty() && is_whole {
        // The server fills in the largest batch.
        sizes.extend(default);
    }
    if !sizes.is_empty() && (is_whole || Some(sizes.as_slice()) != default.as_ref().map(std::slice::from_ref)) {
        lines.push(format!("  preferred_batch_size: {sizes:?}"));
    }
    if let Some(us) = number(&dynamic["max_queue_delay_microseconds"]) {
        lines.push(format!("  max_queue_delay_microseconds: {us}"));
    }
    if has_others(dynamic, &["preferred_batch_size", "max_queue_delay_microseconds"]) {
        lines.push("  # other fields as they are".to_owned());
    }
    lines.push("}".to_owned());
    lines
}

fn instance_group(config: &Json) -> Vec<String> {
    let mut lines = Vec::new();
    for group in list(&config["instance_group"]) {
        lines.push("instance_group {".to_owned());
        lines.push(format!("  count: {}", number(&group["count"]).unwrap_or(1)));
        if let Some(kind) = group["kind"].as_str().filter(|kind| *kind != "KIND_AUTO") {
            lines.push(format!("  kind: {kind}"));
        }
        let gpus: Vec<u64> = list(&group["gpus"]).iter().filter_map(number).collect();
        if !gpus.is_empty() {
            lines.push(format!("  gpus: {gpus:?}"));
        }
        // The server names groups that have no name.
        if has_others(group, &["count", "kind", "gpus", "name"]) {
            lines.push("  # other fields as they are".to_owned());
        }
        lines.push("}".to_owned());
    }
    lines
}

/// Of the text format, whose escapes JSON's are for plain texts.
fn parameter(config: &Json, key: &str) -> Vec<String> {
    let Some(value) = config["parameters"][key]["string_value"].as_str() else { return Vec::new() };
    let quoted = |text: &str| Json::from(text).to_string();
    vec![format!("parameters {{ key: {} value {{ string_value: {} }} }}", quoted(key), quoted(value))]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::plan::{LoadRule, Setting};
    use crate::space::ServerFacts;

    fn config() -> Json {
        json!({
            "name": "m", "backend": "onnxruntime", "max_batch_size": 8,
            "dynamic_batching": {"preferred_batch_size": [8], "max_queue_delay_microseconds": "100"},
            "instance_group": [{"name": "m", "kind": "KIND_CPU", "count": 1, "gpus": []}],
            "parameters": {"x": {"string_value": "1"}},
        })
    }

    fn space(facts: &ModelFacts) -> Space {
        let settings = [("parameters.x", "2"), ("preferred_batch_size", "half")]
            .map(|(field, value)| Setting { field: field.to_owned(), values: vec![value.to_owned()] });
        let server = ServerFacts { cores: 4, run_to_completion: "auto".to_owned() };
        let facts = std::slice::from_ref(facts);
        Space::new(facts, &settings, &BTreeMap::new(), &LoadRule::Follows, &server).unwrap()
    }

    fn choose(space: &Space, values: &[(FieldKind, Value)]) -> Choice {
        let mut choice = space.baseline();
        for (kind, value) in values {
            let at = space.position(Some("m"), kind).unwrap();
            choice.values[at] = space.fields[at].values.iter().position(|one| one == value).unwrap();
        }
        choice
    }

    #[test]
    fn nothing_changes_for_the_present_configuration() {
        let facts = ModelFacts::read("m", &config());
        let space = space(&facts);
        let baseline = space.baseline();
        let mut same = facts.changed(&space, &baseline);
        // The server fills this in again.
        same["dynamic_batching"]["preferred_batch_size"] = json!([8]);
        assert_eq!(same, config());
        assert_eq!(facts.diff(&space, &baseline), "");
        assert_eq!(facts.width(&space, &baseline), 8);
    }

    #[test]
    fn a_choice_changes_its_fields_alone() {
        let facts = ModelFacts::read("m", &config());
        let space = space(&facts);
        let choice = choose(
            &space,
            &[
                (FieldKind::MaxBatch, Value::Number(32)),
                (FieldKind::Instances, Value::Number(2)),
                (FieldKind::Preferred, Value::Half),
                (FieldKind::Threads, Value::Number(2)),
                (FieldKind::Parameter("x".to_owned()), Value::Text("2".to_owned())),
            ],
        );
        let changed = facts.changed(&space, &choice);
        assert_eq!(changed["max_batch_size"], 32);
        assert_eq!(changed["dynamic_batching"]["preferred_batch_size"], json!([16, 32]));
        assert_eq!(changed["instance_group"][0], json!({"name": "m", "kind": "KIND_CPU", "count": 2, "gpus": []}));
        assert_eq!(changed["parameters"]["intra_op_thread_count"]["string_value"], "2");
        assert_eq!(changed["parameters"]["x"]["string_value"], "2");
        assert_eq!(facts.width(&space, &choice), 64);
        let diff = facts.diff(&space, &choice);
        for line in ["-max_batch_size: 8", "+max_batch_size: 32", "+  count: 2", "+  preferred_batch_size: [16, 32]"] {
            assert!(diff.lines().any(|found| found == line), "{line}: {diff}");
        }
        // The sizes of the file would be those of another largest batch.
        let fragment = facts.fragment(&space, &choose(&space, &[(FieldKind::MaxBatch, Value::Number(32))]));
        assert!(fragment.contains("  preferred_batch_size: [32]\n  max_queue_delay_microseconds: 100\n"), "{fragment}");
        assert!(!changed.to_string().contains("KIND_GPU"));
    }

    #[test]
    fn the_batcher_is_added_and_removed() {
        let mut without = config();
        without.as_object_mut().unwrap().remove("dynamic_batching");
        let facts = ModelFacts::read("m", &without);
        let space = space(&facts);
        let choice = choose(&space, &[(FieldKind::Delay, Value::Number(0))]);
        assert_eq!(facts.changed(&space, &choice)["dynamic_batching"], json!({"max_queue_delay_microseconds": 0}));
        let diff = facts.diff(&space, &choice);
        assert!(diff.contains("+dynamic_batching {\n+  max_queue_delay_microseconds: 0\n+}\n"), "{diff}");
        assert_eq!((facts.width(&space, &space.baseline()), facts.width(&space, &choice)), (1, 8));
    }

    #[test]
    fn what_goes_and_what_stays_is_said() {
        let mut present = config();
        present["instance_group"][0]["host_policy"] = json!("near");
        present["instance_group"][0]["rate_limiter"] = json!({"resources": [], "priority": 0});
        let facts = ModelFacts::read("m", &present);
        let off = Setting { field: "max_queue_delay_microseconds".to_owned(), values: vec!["off".to_owned()] };
        let default = Setting { field: "parameters.x".to_owned(), values: vec!["default".to_owned()] };
        let server = ServerFacts { cores: 4, run_to_completion: "auto".to_owned() };
        let models = std::slice::from_ref(&facts);
        let space = Space::new(models, &[off, default], &BTreeMap::new(), &LoadRule::Follows, &server).unwrap();
        let parameter = (FieldKind::Parameter("x".to_owned()), Value::Default);
        let choice = choose(&space, &[(FieldKind::Delay, Value::Off), parameter]);
        let fragment = facts.fragment(&space, &choice);
        assert_eq!(fragment, "# remove dynamic_batching\n# remove parameters with key: \"x\"\n");
        assert!(facts.diff(&space, &choice).contains("-dynamic_batching {\n"));
        let two = facts.fragment(&space, &choose(&space, &[(FieldKind::Instances, Value::Number(2))]));
        assert_eq!(two, "instance_group {\n  count: 2\n  kind: KIND_CPU\n  # other fields as they are\n}\n");
        assert!(!is_set(&json!({"resources": [], "priority": 0})));
    }

    #[test]
    fn what_a_server_gives_is_read_without_trust() {
        for config in [Json::Null, json!([]), json!({"instance_group": 3, "max_batch_size": "x"})] {
            let facts = ModelFacts::read("m", &config);
            assert_eq!((facts.max_batch, facts.may_batch, facts.instances()), (0, false, 1));
            assert!(facts.value(&FieldKind::Instances).is_none() && facts.parts().is_empty());
        }
        let ensemble = json!({"ensemble_scheduling": {"step": [{"model_name": "b"}, {"model_name": "a"}, {}]}});
        assert_eq!(ModelFacts::read("e", &ensemble).parts(), ["a", "b"]);
    }
}
