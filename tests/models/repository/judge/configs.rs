//! One repository of broken and odd configurations, loaded model by model into both servers: the response, the cause in
//! the log, the index afterwards, and the completed configuration of models that load.

use serde_json::Value;

use crate::repository::judge::differences::{Known, Line, MISSING_VERSION, compare};
use crate::repository::life_cycle::control::{EXPLICIT, Life};
use nereid_test_support::original::original;
use nereid_test_support::repository::Repository;
use nereid_test_support::steadily::steadily;
use nereid_test_support::variant::usual;

/// A model: its name and what its config says after `backend: "copycat"`; `-` in front leaves that line out.
const CONFIGS: &[(&str, &str)] = &[
    ("plain", IO),
    // Text format.
    ("comment", "# nothing\n"),
    ("unknown_field", "max_batch_sise: 4\n"),
    ("unknown_enum", "input { name: \"INPUT0\" data_type: TYPE_FP33 dims: [ 1 ] }\n"),
    (
        "enum_number",
        "input { name: \"INPUT0\" data_type: 8 dims: 1 }\noutput { name: \"OUTPUT0\" data_type: 8 dims: 1 }",
    ),
    ("no_number", "max_batch_size: many\n"),
    ("too_large", "max_batch_size: 99999999999\n"),
    ("open", "input [ {\n"),
    ("twice", "max_batch_size: 1\nmax_batch_size: 2\n"),
    ("separators", "max_batch_size: 0, input: < name: 'INPUT' '0'; data_type: TYPE_INT32, dims: [ 1, ] >\n"),
    (
        "joined",
        "input { name: 'INP' \"UT0\" data_type: TYPE_INT32 dims: [ 4 ] }\noutput { name: 'OUTPUT0', data_type: TYPE_INT32; dims: 4 };",
    ),
    ("garbage", "\u{1}\u{2}{{{"),
    // Name, backend, platform.
    ("other_name", "name: \"x\"\n"),
    (
        "own_name",
        "name: \"own_name\"\ninput { name: \"INPUT0\" data_type: TYPE_INT32 dims: [ -1 ] }\noutput { name: \"OUTPUT0\" data_type: TYPE_INT32 dims: [ -1 ] }",
    ),
    ("no_backend", "-max_batch_size: 0\n"),
    ("no_library", "-backend: \"nowhere\"\n"),
    ("platform_only", "-platform: \"nothing_known\"\n"),
    ("platform_pair", "-backend: \"onnxruntime\" platform: \"tensorrt_plan\"\n"),
    (
        "suffix.copycat",
        "-input { name: \"INPUT0\" data_type: TYPE_INT32 dims: [ -1 ] }\noutput { name: \"OUTPUT0\" data_type: TYPE_INT32 dims: [ -1 ] }",
    ),
    ("runtime_escapes", "runtime: \"../../libc.so\"\n"),
    ("runtime_missing", "runtime: \"libtriton_missing.so\"\n"),
    ("ensemble_backend", "platform: \"ensemble\"\n"),
    // Batch.
    ("negative_batch", "max_batch_size: -1\n"),
    (
        "batch_four",
        "max_batch_size: 4\ninput { name: \"INPUT0\" data_type: TYPE_INT32 dims: [ 2 ] }\noutput { name: \"OUTPUT0\" data_type: TYPE_INT32 dims: [ 2 ] }",
    ),
    // Inputs and outputs.
    ("no_io", ""),
    ("input_no_name", "input { data_type: TYPE_INT32 dims: [ 1 ] }\n"),
    ("input_no_type", "input { name: \"INPUT0\" dims: [ 1 ] }\n"),
    ("input_no_dims", "input { name: \"INPUT0\" data_type: TYPE_INT32 }\n"),
    ("input_zero", "input { name: \"INPUT0\" data_type: TYPE_INT32 dims: [ 0 ] }\n"),
    ("input_minus_two", "input { name: \"INPUT0\" data_type: TYPE_INT32 dims: [ 2, -2 ] }\n"),
    (
        "output_no_name",
        "input { name: \"INPUT0\" data_type: TYPE_INT32 dims: [ 1 ] }\noutput { data_type: TYPE_INT32 dims: [ 1 ] }\n",
    ),
    (
        "output_no_type",
        "input { name: \"INPUT0\" data_type: TYPE_INT32 dims: [ 1 ] }\noutput { name: \"OUTPUT0\" dims: [ 1 ] }\n",
    ),
    ("reshape_empty", "input { name: \"INPUT0\" data_type: TYPE_INT32 dims: [ 1 ] reshape { } }\n"),
    ("reshape_size", "input { name: \"INPUT0\" data_type: TYPE_INT32 dims: [ 4 ] reshape { shape: [ 2, 3 ] } }\n"),
    ("reshape_wild", "input { name: \"INPUT0\" data_type: TYPE_INT32 dims: [ -1, 2 ] reshape { shape: [ 2 ] } }\n"),
    ("reshape_negative", "input { name: \"INPUT0\" data_type: TYPE_INT32 dims: [ 4 ] reshape { shape: [ -3 ] } }\n"),
    ("format_dims", "input { name: \"INPUT0\" data_type: TYPE_INT32 format: FORMAT_NHWC dims: [ 1, 2 ] }\n"),
    ("shape_tensor", "input { name: \"INPUT0\" data_type: TYPE_INT32 dims: [ 1 ] is_shape_tensor: true }\n"),
    // Instances.
    (
        "group_model",
        "instance_group { kind: KIND_MODEL gpus: [ 0 ] }\ninput { name: \"INPUT0\" data_type: TYPE_INT32 dims: [ 1 ] }\noutput { name: \"OUTPUT0\" data_type: TYPE_INT32 dims: [ 1 ] }",
    ),
    (
        "group_cpu_gpus",
        "instance_group { kind: KIND_CPU gpus: [ 0 ] }\ninput { name: \"INPUT0\" data_type: TYPE_INT32 dims: [ 1 ] }\noutput { name: \"OUTPUT0\" data_type: TYPE_INT32 dims: [ 1 ] }",
    ),
    (
        "group_gpu",
        "instance_group { kind: KIND_GPU }\ninput { name: \"INPUT0\" data_type: TYPE_INT32 dims: [ 1 ] }\noutput { name: \"OUTPUT0\" data_type: TYPE_INT32 dims: [ 1 ] }",
    ),
    (
        "group_two",
        "instance_group [ { kind: KIND_CPU count: 2 }, { name: \"special\" count: 0 } ]\ninput { name: \"INPUT0\" data_type: TYPE_INT32 dims: [ 1 ] }\noutput { name: \"OUTPUT0\" data_type: TYPE_INT32 dims: [ 1 ] }",
    ),
    (
        "group_profile",
        "instance_group { kind: KIND_CPU profile: \"1\" }\ninput { name: \"INPUT0\" data_type: TYPE_INT32 dims: [ 1 ] }\noutput { name: \"OUTPUT0\" data_type: TYPE_INT32 dims: [ 1 ] }",
    ),
    // Schedulers and the rest.
    ("dynamic_zero", "max_batch_size: 4 dynamic_batching { preferred_batch_size: [ 0 ] }\n"),
    ("dynamic_large", "max_batch_size: 4 dynamic_batching { preferred_batch_size: [ 8 ] }\n"),
    ("priority_default", "max_batch_size: 4 dynamic_batching { priority_levels: 2 default_priority_level: 3 }\n"),
    (
        "priority_policy",
        "max_batch_size: 4 dynamic_batching { priority_levels: 2 default_priority_level: 1 priority_queue_policy { key: 5 value { } } }\n",
    ),
    (
        "preserve_levels",
        "max_batch_size: 4 dynamic_batching { preserve_ordering: true priority_levels: 2 default_priority_level: 1 }\n",
    ),
    (
        "preserve_delay",
        "max_batch_size: 4 dynamic_batching { preserve_ordering: true default_queue_policy { timeout_action: DELAY } }\n",
    ),
    (
        "sequence_unnamed",
        "sequence_batching { control_input { control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } } }\n",
    ),
    (
        "sequence_twice",
        "sequence_batching { control_input { name: \"S\" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } } control_input { name: \"T\" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } } }\n",
    ),
    (
        "sequence_value",
        "sequence_batching { control_input { name: \"S\" control { kind: CONTROL_SEQUENCE_START } } }\n",
    ),
    (
        "sequence_three",
        "sequence_batching { control_input { name: \"S\" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1, 2 ] } } }\n",
    ),
    (
        "sequence_corrid",
        "sequence_batching { control_input { name: \"S\" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_FP32 } } }\n",
    ),
    ("sequence_oldest", "max_batch_size: 4 sequence_batching { oldest { preferred_batch_size: [ 9 ] } }\n"),
    ("sequence_slots", "max_batch_size: 4 sequence_batching { direct { minimum_slot_utilization: 1.5 } }\n"),
    ("cache_sequence", "response_cache { enable: true } sequence_batching { }\n"),
    ("cache_decoupled", "response_cache { enable: true } model_transaction_policy { decoupled: true }\n"),
    ("ensemble_scheduler", "ensemble_scheduling { step { model_name: \"plain\" model_version: -1 } }\n"),
    ("ensemble_empty", "-platform: \"ensemble\"\n"),
    ("ensemble_group", "-platform: \"ensemble\" instance_group { } ensemble_scheduling { }\n"),
    ("metric_family", "model_metrics { metric_control { metric_identifier { } } }\n"),
    // Versions.
    ("policy_absent", "version_policy { specific { versions: [ 9 ] } }\n"),
    ("policy_none", "version_policy { specific { } }\n"),
    ("policy_zero", "version_policy { latest { num_versions: 0 } }\n"),
    // What the library itself says.
    ("told_to_fail", "parameters { key: \"fail_load\" value { string_value: \"as told\" } }\n"),
    (
        "parameters",
        "input { name: \"INPUT0\" data_type: TYPE_INT32 dims: [ 1 ] }\noutput { name: \"OUTPUT0\" data_type: TYPE_INT32 dims: [ 1 ] }\nparameters { key: \"k\" value { string_value: \"\\\"v\\\"\\n\\302\\265\" } }\nmetric_tags { key: \"a\" value: \"b\" }",
    ),
];

const IO: &str = "input { name: \"INPUT0\" data_type: TYPE_INT32 dims: [ -1 ] }\noutput { name: \"OUTPUT0\" data_type: TYPE_INT32 dims: [ -1 ] }\n";

const PLACE: Known = Known {
    name: "The place of a mistake in a configuration",
    is: |difference| {
        difference.theirs.starts_with("failed to read text proto from ")
            && difference.ours.starts_with(&format!("{}: ", difference.theirs))
    },
};

const MODEL_METRICS: Known = Known {
    name: "Buckets of a model's histograms",
    is: |difference| {
        difference.question == "metric_family: cause"
            && difference.ours == "metric identifier must specify non-empty 'family'"
            && difference.theirs == "failed to read text proto from <repository>/metric_family/config.pbtxt"
    },
};

const VERSIONLESS: Known = Known {
    name: "Models without a version in the index",
    is: |difference| {
        ["policy_absent: index", "policy_none: index", "policy_zero: index"].contains(&difference.question)
            && (difference.ours, difference.theirs) == (r#"["::"]"#, "[]")
    },
};

const ESCAPING: Known = Known {
    name: "Libraries outside the backend's directory",
    is: |difference| {
        difference.question.starts_with("runtime_escapes: ")
            && difference.ours.contains("backend library name '../../libc.so' escapes backend directory '")
            && difference.theirs.contains("unable to find backend library '../../libc.so' for model 'runtime_escapes'")
    },
};

const BLANK: Known = Known {
    name: "A blank after the directories that were searched",
    is: |difference| {
        let without_blank = difference.theirs.replace("' ;", "';").replace("' \"", "'\"");
        difference.ours.contains("searched: '") && difference.ours == without_blank
    },
};

const NO_GPU: Known = Known {
    name: "Instances on GPUs",
    is: |difference| {
        let (ours, theirs) = ("but server does not support GPUs", "but no GPUs are available");
        difference.ours.contains(ours) && difference.ours == difference.theirs.replace(theirs, ours)
    },
};

fn write(repository: &Repository) {
    for (model, rest) in CONFIGS {
        let config = match rest.strip_prefix('-') {
            Some(whole) => whole.to_string(),
            None => format!("backend: \"copycat\"\n{rest}"),
        };
        repository.model(model, &config);
    }
    repository.version("unconfigured", "1");
    repository.version("unconfigured.copycat", "1");
    repository.file("hollow/readme.txt", "");
}

fn models() -> impl Iterator<Item = &'static str> {
    CONFIGS.iter().map(|(model, _)| *model).chain(["unconfigured", "unconfigured.copycat", "hollow", "absent"])
}

/// Loads every model, and writes down what came of it.
fn transcript(words: &[String], flags: &[&str]) -> Option<Vec<Line>> {
    let repository = Repository::new();
    write(&repository);
    let mut life = Life::start_under(words, usual(), &repository, flags)?;
    let mut lines = Vec::new();
    let place = repository.path().display().to_string();
    let plain = |text: String| text.replace(&place, "<repository>");
    for model in models() {
        let answer = life.load(model);
        let text = if answer.status == 200 { answer.text() } else { plain(answer.error()) };
        lines.push((format!("{model}: load"), format!("{} {text}", answer.status)));
        let cause = if answer.status == 500 {
            // Next steps behind the errors of other models may name it as well.
            let about = |line: &str| line.contains(&format!("'{model}'")) && !line.contains("next step for model");
            life.server.wait_until("the cause in the log", || life.server.log().lines().any(about));
            plain(cause(&life.server.log(), model))
        } else {
            String::new()
        };
        lines.push((format!("{model}: cause"), cause));
        let config = if answer.status == 200 { sorted(&life.config(model)).to_string() } else { String::new() };
        lines.push((format!("{model}: config"), config));
        lines.push((format!("{model}: index"), plain(format!("{:?}", life.rows_of(model)))));
    }
    assert_eq!(life.get("/v2/health/live").status, 200);
    // The other one waits for idle connections, and is just ended.
    if words.is_empty() {
        life.server.stop();
    }
    Some(lines)
}

/// What the log says of the poll of a model.
fn cause(log: &str, model: &str) -> String {
    let about = format!("Poll failed for model directory '{model}': ");
    let line = log.lines().find_map(|line| line.split_once(&about)).map(|(_, text)| text).unwrap_or_default();
    line.trim_end_matches('"').replace("\\\"", "\"")
}

/// With the members of every object in order.
fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(members) => {
            let mut members: Vec<_> = members.iter().map(|(key, value)| (key.clone(), sorted(value))).collect();
            members.sort_by(|a, b| a.0.cmp(&b.0));
            Value::Object(members.into_iter().collect())
        }
        Value::Array(values) => Value::Array(values.iter().map(sorted).collect()),
        other => other.clone(),
    }
}

#[test]
fn both_servers_say_the_same_of_a_bad_config() {
    let Some(original) = original() else { return };
    steadily(|| {
        let flags = [EXPLICIT, "--exit-on-error=false"];
        let (Some(ours), Some(theirs)) = (transcript(&[], &flags), transcript(&original, &flags)) else { return };
        compare(&ours, &theirs, &[PLACE, MODEL_METRICS, MISSING_VERSION, VERSIONLESS, ESCAPING, BLANK, NO_GPU]);
    });
}

#[test]
fn both_servers_say_the_same_without_completion() {
    let Some(original) = original() else { return };
    steadily(|| {
        let flags = [EXPLICIT, "--exit-on-error=false", "--disable-auto-complete-config"];
        let (Some(ours), Some(theirs)) = (transcript(&[], &flags), transcript(&original, &flags)) else { return };
        compare(&ours, &theirs, &[PLACE, MODEL_METRICS, MISSING_VERSION, VERSIONLESS, ESCAPING, BLANK, NO_GPU]);
    });
}
