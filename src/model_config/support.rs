//! The fields of a configuration that this version of Nereid honours: a field that would be silently ignored is an
//! error instead.
//!
//! The check reads the file's values, before any default is filled in, and names the field and its position. All
//! supported fields are in one table, to which a new feature adds its own.

use prost_reflect::{DynamicMessage, Kind, MapKey, MessageDescriptor, Value};
use thiserror::Error;

use super::text::{Position, Positions, entry_path};
use nereid_wire::inference::ModelOptimizationPolicy;

/// When a field may be given.
#[derive(Clone, Copy)]
enum Rule {
    /// Always, with everything inside it.
    Whole,
    /// A message of which the table lists the fields that may be given.
    Parts,
    /// Only for a backend that is loaded from a library.
    PlugIn,
}

/// Field names without indices; all others are not supported.
const SUPPORTED: [(&str, Rule); 50] = [
    ("name", Rule::Whole),
    ("platform", Rule::Whole),
    ("backend", Rule::Whole),
    ("runtime", Rule::PlugIn),
    ("version_policy", Rule::Whole),
    ("max_batch_size", Rule::Whole),
    ("input", Rule::Parts),
    ("input.name", Rule::Whole),
    ("input.data_type", Rule::Whole),
    // The layout of an image in memory; the data are passed on unchanged.
    ("input.format", Rule::Whole),
    ("input.dims", Rule::Whole),
    ("input.reshape", Rule::Whole),
    ("input.optional", Rule::Whole),
    ("input.allow_ragged_batch", Rule::Whole),
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
    ("batch_input", Rule::Whole),
    ("batch_output", Rule::Whole),
    ("dynamic_batching", Rule::Whole),
    ("sequence_batching", Rule::Whole),
    ("ensemble_scheduling", Rule::Whole),
    ("instance_group", Rule::Parts),
    ("instance_group.name", Rule::Whole),
    // Validation refuses KIND_GPU, and the devices of such a group, where the host has no such GPUs.
    ("instance_group.kind", Rule::Whole),
    ("instance_group.count", Rule::Whole),
    // For KIND_GPU alone: validation refuses them for other kinds.
    ("instance_group.gpus", Rule::Whole),
    // Passed to the backend; they have a meaning only beside an accelerator.
    ("instance_group.secondary_devices", Rule::Whole),
    ("instance_group.rate_limiter", Rule::Whole),
    // Refused by validation unless the platform is TensorRT's; passed to its backend.
    ("instance_group.profile", Rule::Whole),
    ("instance_group.passive", Rule::Whole),
    ("instance_group.host_policy", Rule::Whole),
    ("default_model_filename", Rule::Whole),
    // Chosen by the device of an instance; one on the CPU opens the default file.
    ("cc_model_filenames", Rule::Whole),
    ("parameters", Rule::Whole),
    ("metric_tags", Rule::Whole),
    ("model_metrics", Rule::Whole),
    // `graph` and the CPU's accelerators are read by the backend. The rest concerns device memory and the streams of a
    // GPU, or hints at how to hide their latency: it has no meaning without a GPU.
    ("optimization", Rule::Whole),
    ("model_warmup", Rule::Whole),
    // Read by the backend.
    ("model_operations", Rule::Whole),
    ("model_transaction_policy", Rule::Whole),
    ("response_cache", Rule::Whole),
    ("model_repository_agents", Rule::Whole),
];

/// The fields of `optimization` that are given and change nothing here, also where there is a GPU.
pub fn without_effect(given: &ModelOptimizationPolicy) -> Vec<&'static str> {
    let fields = [
        ("priority", given.priority != 0),
        ("eager_batching", given.eager_batching),
        ("gather_kernel_buffer_threshold", given.gather_kernel_buffer_threshold != 0),
        ("input_pinned_memory", given.input_pinned_memory.is_some()),
        ("output_pinned_memory", given.output_pinned_memory.is_some()),
    ];
    fields.into_iter().filter(|(_, is_given)| *is_given).map(|(name, _)| name).collect()
}

/// The first field, in the order of the file, that this version does not honour.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{}'{field}' is not supported by this version of Nereid", prefix(.file, *.position))]
pub struct Unsupported {
    /// Path of the field: `dynamic_batching`, `instance_group[0].rate_limiter`.
    pub field: String,
    /// Name of the file that was parsed, empty if the configuration is not from a file.
    pub file: String,
    /// `None` for a value that is not from a file.
    pub position: Option<Position>,
}

fn prefix(file: &str, position: Option<Position>) -> String {
    match position {
        Some(Position { line, column }) => format!("{file}:{line}:{column}: "),
        None => String::new(),
    }
}

/// Checks a file or an override; the first unsupported field is the error.
///
/// `built_in` returns whether a backend is part of the server; the backend may still be empty here, and then counts as
/// a built-in one.
pub fn check(
    message: &DynamicMessage,
    positions: Option<&Positions>,
    built_in: impl Fn(&str) -> bool,
) -> Result<(), Unsupported> {
    check_all(message, positions, built_in).into_iter().next().map_or(Ok(()), Err)
}

/// All that is not supported, in the order of the file.
pub fn check_all(
    message: &DynamicMessage,
    positions: Option<&Positions>,
    built_in: impl Fn(&str) -> bool,
) -> Vec<Unsupported> {
    let backend = message.get_field_by_name("backend");
    let backend = backend.as_deref().and_then(Value::as_str).unwrap_or_default();
    // A runtime makes a plug-in of whatever backend is named beside it.
    let has_runtime = message.get_field_by_name("runtime").is_some_and(|runtime| runtime.as_str() != Some(""));
    let plug_in = !backend.is_empty() && (has_runtime || !built_in(backend));
    let mut scan = Scan { plug_in, found: Vec::new() };
    scan.message(message, "", "");
    let position = |path: &str| positions.and_then(|positions| positions.get(path)).map(|place| place.field);
    let mut found: Vec<_> = scan.found.into_iter().map(|field| (position(&field), field)).collect();
    found.sort();
    let file = positions.map(|positions| positions.file().to_owned()).unwrap_or_default();
    found.into_iter().map(|(position, field)| Unsupported { field, file: file.clone(), position }).collect()
}

/// The fields that this version refuses, at least in some configurations, by their paths without indices; in the order
/// of the fields' declarations.
pub fn refused() -> Vec<String> {
    let mut refused = Vec::new();
    push_refused(super::descriptor(), "", &mut refused);
    refused
}

fn push_refused(message: &MessageDescriptor, names: &str, refused: &mut Vec<String>) {
    // Reflection itself sorts fields by number.
    for field in &message.descriptor_proto().field {
        let names = join(names, field.name());
        match rule(&names) {
            Some(Rule::Whole) => {}
            Some(Rule::Parts) => {
                let inner = message.get_field_by_name(field.name()).map(|field| field.kind());
                if let Some(Kind::Message(inner)) = inner {
                    push_refused(&inner, &names, refused);
                }
            }
            Some(Rule::PlugIn) | None => refused.push(names),
        }
    }
}

fn rule(names: &str) -> Option<Rule> {
    SUPPORTED.iter().find(|(name, _)| *name == names).map(|(_, rule)| *rule)
}

struct Scan {
    plug_in: bool,
    /// Paths of unsupported fields.
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
            let supported = match rule(&names) {
                Some(Rule::Whole) => true,
                Some(Rule::PlugIn) => self.plug_in,
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
                      format: FORMAT_NCHW allow_ragged_batch: true } ]
            output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] label_filename: "labels.txt" } ]
            instance_group [ { kind: KIND_CPU count: 2 name: "g" }, { kind: KIND_AUTO }, { kind: KIND_GPU gpus: [0] },
                             { kind: KIND_MODEL passive: true host_policy: "p" profile: "0"
                               secondary_devices { device_id: 1 } } ]
            default_model_filename: "x"
            cc_model_filenames { key: "7.0" value: "x" }
            model_warmup { name: "w" batch_size: 1 count: 2 inputs { key: "INPUT0" value { zero_data: true } } }
            model_operations { op_library_filename: "x.so" }
            parameters { key: "k" value { string_value: "v" } }
            metric_tags { key: "k" value: "v" }
            optimization {
                graph { level: 1 } priority: PRIORITY_MAX cuda { graphs: true graph_spec { } } eager_batching: true
                execution_accelerators { cpu_execution_accelerator { name: "openvino" } }
                gather_kernel_buffer_threshold: 1
                input_pinned_memory { enable: false } output_pinned_memory { enable: true }
            }
            model_transaction_policy { decoupled: true }
            response_cache { enable: true }
            model_repository_agents { agents { name: "checksum" parameters { key: "MD5:1/m" value: "0" } } }
            dynamic_batching { preferred_batch_size: [ 4 ] }
            batch_input { kind: BATCH_ITEM_SHAPE target_name: "t" data_type: TYPE_FP32 source_input: "INPUT0" }
            batch_output { }
        "#;
        assert_eq!(checked(text), Ok(()));
        assert_eq!(checked(""), Ok(()));
        assert_eq!(checked("backend: \"mine\" runtime: \"libmine.so\""), Ok(()));
    }

    #[test]
    fn what_is_not_honoured_is_named_with_its_place() {
        let cases = [
            ("input { name: \"a\" }\n\n runtime: \"libx.so\"", "3:2", "runtime"),
            ("runtime: \"libx.so\"", "1:1", "runtime"),
        ];
        for (text, place, field) in cases {
            let expected = format!("m/config.pbtxt:{place}: '{field}' is not supported by this version of Nereid");
            assert_eq!(checked(text), Err(expected), "{text}");
        }
    }

    #[test]
    fn refused_fields_exist_and_are_documented() {
        let expected = ["runtime"];
        assert_eq!(refused(), expected);
        let page = include_str!("../../docs/models.md");
        let section = page.split_once("### Refused\n").expect("the page has a section on what is refused").1;
        let table = section.split("\n#").next().unwrap_or_default();
        let documented: Vec<&str> =
            table.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`')).map(|(name, _)| name).collect();
        assert_eq!(documented, expected, "docs/models.md, section Refused");
    }

    #[test]
    fn fields_without_an_effect_are_documented() {
        let text = "optimization { priority: PRIORITY_MAX eager_batching: true gather_kernel_buffer_threshold: 1 \
                    input_pinned_memory { } output_pinned_memory { } graph { level: 1 } cuda { graphs: true } }";
        let config = crate::from_dynamic(&parse("c", text.as_bytes()).unwrap().message).unwrap();
        let found = without_effect(&config.optimization.unwrap());
        assert_eq!(found.len(), 5);
        let page = include_str!("../../docs/models.md");
        let row = page.lines().find(|line| line.starts_with("| `optimization` |")).unwrap();
        assert!(found.iter().all(|name| row.contains(&format!("`{name}`"))), "{row}");
        assert_eq!(without_effect(&ModelOptimizationPolicy::default()), Vec::<&str>::new());
    }

    #[test]
    fn all_that_is_refused_is_found_in_the_order_of_the_file() {
        let text = "max_batch_size: 1\nruntime: \"libx.so\"";
        let document = parse("c", text.as_bytes()).unwrap();
        let found: Vec<String> = check_all(&document.message, Some(&document.positions), |_| true)
            .iter()
            .map(|unsupported| unsupported.field.clone())
            .collect();
        assert_eq!(found, ["runtime"]);
    }

    #[test]
    fn an_override_has_no_place() {
        let config = json::read(br#"{"runtime":"libx.so"}"#).unwrap();
        let error = check(&to_dynamic(&config).unwrap(), None, |_| true).unwrap_err();
        assert_eq!(error.to_string(), "'runtime' is not supported by this version of Nereid");
        assert_eq!((error.file.as_str(), error.position), ("", None));
    }
}
