//! The source of each value of a resolved configuration: the file, an override, the model's own file, or a rule.
//!
//! Found by comparing the stages of a configuration: a value belongs to the first stage that has it. No stage has to
//! record its changes.

use std::collections::BTreeMap;

use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MessageDescriptor, ReflectMessage as _, Value};

use super::text::{FieldPosition, Positions, entry_path, push_scalar};
use super::{Error, to_dynamic};
use nereid_wire::inference::ModelConfig;

/// One configuration on its way to the server.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Stages {
    /// The configuration of the file or the override.
    pub written: ModelConfig,
    /// After the rules that need no backend.
    pub normalized: ModelConfig,
    /// After the backend read the model's file; the same as before where it did not.
    pub completed: ModelConfig,
    /// The configuration that is served.
    pub resolved: ModelConfig,
}

/// The source of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    File(FieldPosition),
    Override,
    /// The backend found it in the model's file.
    ModelFile,
    /// A rule, in words.
    Default(&'static str),
}

/// One value of the resolved configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// As [`Positions`] spells it. A list of plain values is one field.
    pub path: String,
    /// In text format.
    pub value: String,
    pub source: Source,
}

/// What a served model keeps of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Provenance {
    /// The configuration file; none if there is none or an override stands in for it.
    pub file: Option<String>,
    pub fields: Vec<Field>,
}

/// The configuration that a model's directory or a request gives, before any rule.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Written {
    pub config: ModelConfig,
    pub file: Option<String>,
    pub positions: Option<Positions>,
    /// Instead of a file, even an empty one.
    pub is_override: bool,
}

impl Written {
    /// What becomes of it, with the source of each value.
    pub fn provenance(
        &self,
        normalized: &ModelConfig,
        completed: &ModelConfig,
        resolved: &ModelConfig,
    ) -> Result<Provenance, Error> {
        let stages = Stages {
            written: self.config.clone(),
            normalized: normalized.clone(),
            completed: completed.clone(),
            resolved: resolved.clone(),
        };
        let none = Positions::default();
        let positions = if self.is_override { None } else { Some(self.positions.as_ref().unwrap_or(&none)) };
        Ok(Provenance { file: self.file.clone(), fields: fields(&stages, positions)? })
    }
}

/// The values of `stages.resolved` in the order of their declarations. `positions` are those of the file; `None` for an
/// override.
pub fn fields(stages: &Stages, positions: Option<&Positions>) -> Result<Vec<Field>, Error> {
    let values = |config: &ModelConfig| -> Result<BTreeMap<String, String>, Error> {
        Ok(flatten(config, positions)?.into_iter().collect())
    };
    let (written, normalized) = (values(&stages.written)?, values(&stages.normalized)?);
    let completed = values(&stages.completed)?;
    let source = |path: &str, value: &String| {
        if written.get(path) == Some(value) {
            match positions {
                None if path == ALWAYS && stages.written.max_batch_size == 0 => {}
                None => return Source::Override,
                Some(positions) => {
                    if let Some(place) = positions.get(path) {
                        return Source::File(place);
                    }
                }
            }
        }
        if completed.get(path) == Some(value) && normalized.get(path) != Some(value) {
            return Source::ModelFile;
        }
        Source::Default(rule(path))
    };
    let resolved = flatten(&stages.resolved, positions)?;
    Ok(resolved
        .into_iter()
        .map(|(path, value)| {
            let source = source(&path, &value);
            Field { path, value, source }
        })
        .collect())
}

/// A field that is shown even where it is not set.
const ALWAYS: &str = "max_batch_size";

/// The rule that fills a field (contract/model_config.md section 5).
fn rule(path: &str) -> &'static str {
    let last = path.rsplit('.').next().unwrap_or(path);
    match (path, last) {
        ("name", _) => "the directory's name",
        ("backend" | "platform" | "default_model_filename", _) => "follows from the backend and the model's files",
        (ALWAYS, _) => "no batch dimension",
        ("sequence_batching.max_sequence_idle_microseconds", _) => "one second",
        (_, "preferred_batch_size") => "max_batch_size",
        _ if path.starts_with("version_policy") => "the latest version",
        _ if path.starts_with("optimization") => "on unless it is turned off",
        (_, "name") if path.starts_with("instance_group") => "made from the model's name",
        (_, "kind") if path.starts_with("instance_group") => "what the backend prefers, without GPUs the CPU",
        (_, "count") if path.starts_with("instance_group") => "what the backend prefers",
        _ if path.starts_with("instance_group") && last.starts_with("gpus") => "all that there are to use",
        _ => "",
    }
}

/// Paths and values of all fields that are set, or that the file sets to what they would be anyway.
fn flatten(config: &ModelConfig, positions: Option<&Positions>) -> Result<Vec<(String, String)>, Error> {
    let mut flat = Flat { positions, fields: Vec::new() };
    flat.message(&to_dynamic(config)?, "");
    Ok(flat.fields)
}

struct Flat<'a> {
    positions: Option<&'a Positions>,
    fields: Vec<(String, String)>,
}

impl Flat<'_> {
    fn message(&mut self, message: &DynamicMessage, outer: &str) {
        let before = self.fields.len();
        for field in declared(&message.descriptor()) {
            let path = if outer.is_empty() { field.name().to_owned() } else { format!("{outer}.{}", field.name()) };
            let is_said = || path == ALWAYS || self.positions.is_some_and(|positions| positions.get(&path).is_some());
            if message.has_field(&field) || (is_plain(&field) && !field.supports_presence() && is_said()) {
                self.field(&field, &message.get_field(&field), path);
            }
        }
        if self.fields.len() == before && !outer.is_empty() {
            self.fields.push((outer.to_owned(), "{ }".to_owned()));
        }
    }

    fn field(&mut self, field: &FieldDescriptor, value: &Value, path: String) {
        match value {
            Value::List(values) if is_plain(field) => {
                let values: Vec<String> = values.iter().map(|value| scalar(&field.kind(), value)).collect();
                self.fields.push((path, format!("[ {} ]", values.join(", "))));
            }
            Value::List(values) => {
                for (index, value) in values.iter().enumerate() {
                    if let Value::Message(message) = value {
                        self.message(message, &format!("{path}[{index}]"));
                    }
                }
            }
            Value::Map(entries) => {
                let Kind::Message(entry) = field.kind() else { return };
                let kind = entry.map_entry_value_field().kind();
                let mut entries: Vec<_> = entries.iter().collect();
                entries.sort_unstable_by_key(|(key, _)| *key);
                for (key, value) in entries {
                    let path = entry_path(&path, key);
                    match value {
                        Value::Message(message) => self.message(message, &path),
                        value => self.fields.push((path, scalar(&kind, value))),
                    }
                }
            }
            Value::Message(message) => self.message(message, &path),
            value => self.fields.push((path, scalar(&field.kind(), value))),
        }
    }
}

/// Neither a message nor a map.
fn is_plain(field: &FieldDescriptor) -> bool {
    !matches!(field.kind(), Kind::Message(_))
}

fn scalar(kind: &Kind, value: &Value) -> String {
    let mut text = String::new();
    push_scalar(kind, value, &mut text);
    text
}

/// The fields in the order of their declarations; reflection itself sorts them by number.
fn declared(descriptor: &MessageDescriptor) -> Vec<FieldDescriptor> {
    let fields = &descriptor.descriptor_proto().field;
    fields.iter().filter_map(|field| descriptor.get_field_by_name(field.name())).collect()
}

#[cfg(test)]
mod tests {
    use super::super::layout::Layout;
    use super::super::{from_dynamic, json, normalize, parse};
    use super::*;

    /// Normalises, lets `complete` play the backend, and resolves.
    fn stages(written: ModelConfig, complete: impl Fn(&mut ModelConfig)) -> Stages {
        let mut normalized = written.clone();
        normalize::normalize(&mut normalized, "m", &Layout::default()).unwrap();
        let mut completed = normalized.clone();
        complete(&mut completed);
        let mut resolved = completed.clone();
        normalize::fill_defaults(&mut resolved);
        normalize::instance_groups(&mut resolved, &[], &super::super::SupportedGpus::NoDriver);
        Stages { written, normalized, completed, resolved }
    }

    fn lines(stages: &Stages, positions: Option<&Positions>) -> Vec<String> {
        let source = |source: Source| match source {
            Source::File(place) => format!("{}:{}", place.field.line, place.field.column),
            Source::Override => "override".into(),
            Source::ModelFile => "model file".into(),
            Source::Default(rule) => format!("default ({rule})"),
        };
        let fields = fields(stages, positions).unwrap();
        fields.into_iter().map(|field| format!("{}: {}  {}", field.path, field.value, source(field.source))).collect()
    }

    #[test]
    fn every_value_has_a_source() {
        let text = "backend: \"onnxruntime\"\n\
                    max_batch_size: 0\n\
                    output [ { name: \"O\" data_type: TYPE_FP32 dims: [ 1, 2 ]\n reshape { } } ]\n\
                    instance_group { count: 3 }\n\
                    parameters { key: \"k\" value { string_value: \"v\" } }\n\
                    metric_tags { key: \"t\" value: \"u\" }\n\
                    optimization { input_pinned_memory { enable: false } }";
        let document = parse("c", text.as_bytes()).unwrap();
        let complete = |config: &mut ModelConfig| {
            let mut input = nereid_wire::inference::ModelInput { name: "I".into(), ..Default::default() };
            input.dims.push(-1);
            config.input.push(input);
        };
        let stages = stages(from_dynamic(&document.message).unwrap(), complete);
        assert_eq!(
            lines(&stages, Some(&document.positions)),
            [
                "name: \"m\"  default (the directory's name)",
                "platform: \"onnxruntime_onnx\"  default (follows from the backend and the model's files)",
                "backend: \"onnxruntime\"  1:1",
                "version_policy.latest.num_versions: 1  default (the latest version)",
                "max_batch_size: 0  2:1",
                "input[0].name: \"I\"  model file",
                "input[0].dims: [ -1 ]  model file",
                "output[0].name: \"O\"  3:12",
                "output[0].data_type: TYPE_FP32  3:22",
                "output[0].dims: [ 1, 2 ]  3:43",
                "output[0].reshape: { }  4:2",
                "optimization.input_pinned_memory.enable: false  8:38",
                "optimization.output_pinned_memory.enable: true  default (on unless it is turned off)",
                "instance_group[0].name: \"m_0\"  default (made from the model's name)",
                "instance_group[0].kind: KIND_CPU  default (what the backend prefers, without GPUs the CPU)",
                "instance_group[0].count: 3  5:18",
                "default_model_filename: \"model.onnx\"  default (follows from the backend and the model's files)",
                "metric_tags[\"t\"]: \"u\"  7:1",
                "parameters[\"k\"].string_value: \"v\"  6:31",
            ]
        );
    }

    #[test]
    fn an_override_has_no_places() {
        let written = json::read(br#"{"backend":"b","instance_group":[{"name":"g","count":2}]}"#).unwrap();
        let lines = lines(&stages(written, |config| config.max_batch_size = 4), None);
        assert!(lines.contains(&"backend: \"b\"  override".to_owned()), "{lines:?}");
        assert!(lines.contains(&"max_batch_size: 4  model file".to_owned()), "{lines:?}");
        assert!(lines.contains(&"instance_group[0].count: 2  override".to_owned()), "{lines:?}");
        let plain = self::lines(&stages(ModelConfig { backend: "b".into(), ..Default::default() }, |_| ()), None);
        assert!(plain.contains(&"max_batch_size: 0  default (no batch dimension)".to_owned()), "{plain:?}");
    }
}
