//! What this version of Nereid honours of a configuration: a field that would be silently ignored is an error instead.
//!
//! The check looks at what the file says, before any default is filled in, and names the field and its place. It is one
//! table; a feature that is built loses its absence here.

use prost_reflect::{DynamicMessage, FieldDescriptor, MapKey, Value};
use thiserror::Error;

use super::text::{Position, Positions, entry_path};
use crate::wire::inference::model_instance_group::Kind;

/// When a field may be given.
#[derive(Clone, Copy)]
enum Rule {
    /// Always, with everything inside it.
    Whole,
    /// A message of which the table lists the fields that may be given.
    Parts,
    /// Only with its default value, all through.
    Default,
    /// Only for a backend that is loaded from a library.
    PlugIn,
    /// Any instance kind but KIND_MODEL: what KIND_GPU is told on a host without GPUs is a check's business.
    NotKindModel,
}

/// Field names without indices; what is not here is not supported.
const SUPPORTED: [(&str, Rule); 37] = [
    ("name", Rule::Whole),
    ("platform", Rule::Whole),
    ("backend", Rule::Whole),
    ("runtime", Rule::PlugIn),
    ("version_policy", Rule::Whole),
    ("max_batch_size", Rule::Whole),
    ("input", Rule::Parts),
    ("input.name", Rule::Whole),
    ("input.data_type", Rule::Whole),
    // Says how an image lies in memory; the data pass through as they come.
    ("input.format", Rule::Whole),
    ("input.dims", Rule::Whole),
    ("input.reshape", Rule::Whole),
    ("input.optional", Rule::Whole),
    // Refused by validation where they are on: they belong to TensorRT.
    ("input.is_shape_tensor", Rule::Whole),
    ("input.is_non_linear_format_io", Rule::Whole),
    ("output", Rule::Parts),
    ("output.name", Rule::Whole),
    ("output.data_type", Rule::Whole),
    ("output.dims", Rule::Whole),
    ("output.reshape", Rule::Whole),
    ("output.label_filename", Rule::Whole),
    ("output.is_shape_tensor", Rule::Whole),
    ("output.is_non_linear_format_io", Rule::Whole),
    ("instance_group", Rule::Parts),
    ("instance_group.name", Rule::Whole),
    ("instance_group.kind", Rule::NotKindModel),
    ("instance_group.count", Rule::Whole),
    // Refused by validation on a host without GPUs, whatever the kind.
    ("instance_group.gpus", Rule::Whole),
    ("default_model_filename", Rule::Whole),
    ("parameters", Rule::Whole),
    ("metric_tags", Rule::Whole),
    ("optimization", Rule::Parts),
    // There is no device memory to copy to: pinned or not is the same.
    ("optimization.input_pinned_memory", Rule::Whole),
    ("optimization.output_pinned_memory", Rule::Whole),
    ("model_transaction_policy", Rule::Default),
    ("response_cache", Rule::Default),
    ("model_repository_agents", Rule::Default),
];

/// The first field, in the order of the file, that this version does not honour.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{}'{field}' is not supported by this version of Nereid", prefix(.file, *.position))]
pub struct Unsupported {
    /// Path of the field: `dynamic_batching`, `instance_group[0].rate_limiter`.
    pub field: String,
    /// Name of the file that was parsed, empty if the configuration is not from a file.
    pub file: String,
    /// None for what is not from a file.
    pub position: Option<Position>,
}

fn prefix(file: &str, position: Option<Position>) -> String {
    match position {
        Some(Position { line, column }) => format!("{file}:{line}:{column}: "),
        None => String::new(),
    }
}

/// Checks what a file or an override says.
///
/// `built_in` says whether a backend is part of the server; the backend may still be unknown here, and then counts as a
/// built-in one.
pub fn check(
    message: &DynamicMessage,
    positions: Option<&Positions>,
    built_in: impl Fn(&str) -> bool,
) -> Result<(), Unsupported> {
    let backend = message.get_field_by_name("backend");
    let backend = backend.as_deref().and_then(Value::as_str).unwrap_or_default();
    // A runtime makes a plug-in of whatever backend is named beside it.
    let has_runtime = message.get_field_by_name("runtime").is_some_and(|runtime| runtime.as_str() != Some(""));
    let plug_in = !backend.is_empty() && (has_runtime || !built_in(backend));
    let mut scan = Scan { plug_in, found: Vec::new() };
    scan.message(message, "", "");
    let position = |path: &str| positions.and_then(|positions| positions.get(path)).map(|place| place.field);
    let first = scan.found.into_iter().map(|field| (position(&field), field)).min();
    match first {
        None => Ok(()),
        Some((position, field)) => {
            let file = positions.map(|positions| positions.file().to_owned()).unwrap_or_default();
            Err(Unsupported { field, file, position })
        }
    }
}

struct Scan {
    plug_in: bool,
    /// Paths of what is not supported.
    found: Vec<String>,
}

impl Scan {
    /// `names` is the path without indices, `path` the one with them.
    fn message(&mut self, message: &DynamicMessage, names: &str, path: &str) {
        for (field, value) in message.fields() {
            if !message.has_field(&field) {
                continue;
            }
            let names = join(names, field.name());
            let path = join(path, field.name());
            let rule = SUPPORTED.iter().find(|(name, _)| *name == names).map(|(_, rule)| *rule);
            let supported = match rule {
                Some(Rule::Whole) => true,
                Some(Rule::Default) => is_default(&field, value),
                Some(Rule::PlugIn) => self.plug_in,
                Some(Rule::NotKindModel) => value.as_enum_number() != Some(Kind::Model.into()),
                Some(Rule::Parts) => {
                    self.parts(value, &names, &path);
                    true
                }
                None => false,
            };
            if !supported {
                self.found.push(path);
            }
        }
    }

    fn parts(&mut self, value: &Value, names: &str, path: &str) {
        match value {
            Value::Message(message) => self.message(message, names, path),
            Value::List(values) => {
                for (index, value) in values.iter().enumerate() {
                    self.parts(value, names, &format!("{path}[{index}]"));
                }
            }
            Value::Map(entries) => {
                let mut entries: Vec<(&MapKey, &Value)> = entries.iter().collect();
                entries.sort_unstable_by_key(|(key, _)| *key);
                for (key, value) in entries {
                    self.parts(value, names, &entry_path(path, key));
                }
            }
            _ => {}
        }
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// A message is default if nothing is set inside it, whether it is there or not.
fn is_default(field: &FieldDescriptor, value: &Value) -> bool {
    match value {
        Value::Message(message) => message.fields().all(|(field, value)| is_default(&field, value)),
        Value::List(values) => values.is_empty(),
        Value::Map(entries) => entries.is_empty(),
        value => value.is_default(&field.kind()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{descriptor, json, parse, to_dynamic};
    use super::*;

    fn checked(text: &str) -> Result<(), String> {
        let document = parse("m/config.pbtxt", text.as_bytes()).unwrap();
        check(&document.message, Some(&document.positions), |backend| backend == "identity")
            .map_err(|error| error.to_string())
    }

    #[test]
    fn the_table_names_fields_that_exist() {
        for (path, _) in SUPPORTED {
            let mut message = descriptor().clone();
            let mut names = path.split('.').peekable();
            while let Some(name) = names.next() {
                let field = message.get_field_by_name(name).unwrap_or_else(|| panic!("{path}"));
                if names.peek().is_some() {
                    message = field.kind().as_message().unwrap().clone();
                }
            }
        }
    }

    #[test]
    fn what_is_honoured_passes() {
        let text = r#"
            name: "m" platform: "" backend: "identity" max_batch_size: 8
            version_policy { specific { versions: [1, 2] } }
            input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] reshape { shape: [ -1 ] } optional: true
                      format: FORMAT_NCHW allow_ragged_batch: false } ]
            output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] label_filename: "labels.txt" } ]
            instance_group [ { kind: KIND_CPU count: 2 name: "g" }, { kind: KIND_AUTO }, { kind: KIND_GPU gpus: [0] } ]
            default_model_filename: "x"
            parameters { key: "k" value { string_value: "v" } }
            metric_tags { key: "k" value: "v" }
            optimization { input_pinned_memory { enable: false } output_pinned_memory { enable: true } }
            model_transaction_policy { decoupled: false }
            response_cache { enable: false }
            model_repository_agents { }
        "#;
        assert_eq!(checked(text), Ok(()));
        assert_eq!(checked(""), Ok(()));
        assert_eq!(checked("backend: \"mine\" runtime: \"libmine.so\""), Ok(()));
    }

    #[test]
    fn what_is_not_honoured_is_named_with_its_place() {
        let cases = [
            ("name: \"m\"\n\ndynamic_batching { }", "3:1", "dynamic_batching"),
            ("sequence_batching { direct { } }", "1:1", "sequence_batching"),
            ("ensemble_scheduling { step { } }", "1:1", "ensemble_scheduling"),
            ("model_transaction_policy {\n  decoupled: true }", "1:1", "model_transaction_policy"),
            ("response_cache { enable: true }", "1:1", "response_cache"),
            (
                "input { name: \"a\" }\ninput { name: \"b\"\n allow_ragged_batch: true }",
                "3:2",
                "input[1].allow_ragged_batch",
            ),
            ("instance_group [ { }, { rate_limiter { } } ]", "1:25", "instance_group[1].rate_limiter"),
            ("instance_group { passive: true }", "1:18", "instance_group[0].passive"),
            ("instance_group { profile: \"1\" }", "1:18", "instance_group[0].profile"),
            ("instance_group { host_policy: \"p\" }", "1:18", "instance_group[0].host_policy"),
            ("instance_group { secondary_devices { } }", "1:18", "instance_group[0].secondary_devices"),
            ("instance_group { kind: KIND_MODEL }", "1:18", "instance_group[0].kind"),
            ("optimization { graph { level: 1 } }", "1:16", "optimization.graph"),
            ("optimization { priority: PRIORITY_MAX }", "1:16", "optimization.priority"),
            ("optimization { cuda { } }", "1:16", "optimization.cuda"),
            ("optimization { execution_accelerators { } }", "1:16", "optimization.execution_accelerators"),
            (
                "optimization { gather_kernel_buffer_threshold: 1 }",
                "1:16",
                "optimization.gather_kernel_buffer_threshold",
            ),
            ("optimization { eager_batching: true }", "1:16", "optimization.eager_batching"),
            ("batch_input { }", "1:1", "batch_input"),
            ("batch_output [ { } ]", "1:1", "batch_output"),
            ("cc_model_filenames { key: \"7.0\" value: \"x\" }", "1:1", "cc_model_filenames"),
            ("model_warmup { }", "1:1", "model_warmup"),
            ("model_operations { }", "1:1", "model_operations"),
            ("model_repository_agents { agents { } }", "1:1", "model_repository_agents"),
            ("model_metrics { }", "1:1", "model_metrics"),
            ("runtime: \"libx.so\"", "1:1", "runtime"),
            // The first one in the file, not in the order of field numbers.
            ("model_warmup { }\ndynamic_batching { }", "1:1", "model_warmup"),
        ];
        for (text, place, field) in cases {
            let expected = format!("m/config.pbtxt:{place}: '{field}' is not supported by this version of Nereid");
            assert_eq!(checked(text), Err(expected), "{text}");
        }
    }

    #[test]
    fn every_top_level_field_is_decided_on() {
        // A field that is neither in the table nor refused would be ignored silently.
        let honoured = SUPPORTED.iter().filter(|(path, _)| !path.contains('.')).count();
        let refused: Vec<String> = descriptor()
            .fields()
            .map(|field| field.name().to_owned())
            .filter(|name| !SUPPORTED.iter().any(|(path, _)| path == name))
            .collect();
        assert_eq!(honoured + refused.len(), 25);
        assert_eq!(
            refused,
            [
                "cc_model_filenames",
                "dynamic_batching",
                "sequence_batching",
                "ensemble_scheduling",
                "model_warmup",
                "model_operations",
                "batch_input",
                "batch_output",
                "model_metrics"
            ]
        );
    }

    #[test]
    fn an_override_has_no_place() {
        let config = json::read(br#"{"backend":"identity","modelWarmup":[{}]}"#).unwrap();
        let error = check(&to_dynamic(&config).unwrap(), None, |_| true).unwrap_err();
        assert_eq!(error.to_string(), "'model_warmup' is not supported by this version of Nereid");
        assert_eq!((error.file.as_str(), error.position), ("", None));
    }
}
