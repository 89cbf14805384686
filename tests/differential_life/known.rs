//! The differences between 2.51 and what we promise that are known and wanted; docs/differences.md has their reasons.

use serde_json::Value;

use super::comparison::{Difference, Known};

fn text(value: Option<&Value>) -> &str {
    value.and_then(Value::as_str).unwrap_or_default()
}

/// A text without the frames of a traceback that lie in a backend itself or in Python's importer.
fn own_frames(text: &str) -> String {
    let foreign = |line: &&str| line.contains("triton_python_backend_utils.py(") || line.contains("<frozen importlib");
    let kept: Vec<&str> = text.lines().filter(|line| !foreign(line)).collect();
    let kept = format!("{}\n", kept.join("\n")).replace("\n\nAt:\n", "\n");
    kept.trim_end_matches(['\n', ';']).trim_end().to_owned()
}

/// The answers hold the same values, in another order.
fn is_reordered(difference: &Difference) -> bool {
    let sorted = |answer: &Value| {
        let mut bytes = answer.to_string().into_bytes();
        bytes.sort_unstable();
        bytes
    };
    sorted(difference.our_answer) == sorted(difference.their_answer)
}

fn they_say(difference: &Difference, what: &str) -> bool {
    difference.their_answer.to_string().contains(what)
}

fn is_of(difference: &Difference, cases: &[&str]) -> bool {
    cases.iter().any(|case| difference.case.starts_with(case))
}

/// A count of a model's, which differs by the questions that differ before.
fn is_counted(difference: &Difference, model: &str) -> bool {
    let case = difference.case;
    let of = |kind: &str| case.strip_prefix(kind).and_then(|rest| rest.strip_suffix(" 1")) == Some(model);
    of("measured: statistics of ")
        || of("measured: ModelStatistics ")
        || (case.starts_with("measured: samples of nv_inference_")
            && difference.field.contains(&format!("\"{model}\"")))
}

pub const KNOWN: [Known; 29] = [
    Known { name: "The release", is: |it| it.field.ends_with(".version") && text(it.theirs) == "2.51.0" },
    Known {
        name: "Readiness of models that do not serve",
        is: |it| {
            (it.case.ends_with("/ready") || it.case.contains(": ModelReady "))
                && it.our_answer.to_string().contains("Request for unknown model")
        },
    },
    Known {
        name: "The limit of an ensemble's requests",
        is: |it| it.field.ends_with(".max_inflight_requests") && it.theirs.is_none(),
    },
    Known {
        name: "Which input is named first",
        is: |it| {
            let both = [it.our_answer, it.their_answer].map(Value::to_string);
            let complaint = both.iter().all(|text| text.contains("Got input(s) [") || text.contains("data-type is"));
            complaint && is_of(it, &["failures: a third input", "calls: another type"])
        },
    },
    Known { name: "The order of an ensemble's outputs", is: |it| is_of(it, &["forms: ensemble"]) && is_reordered(it) },
    Known {
        name: "An output that is asked for twice",
        is: |it| {
            it.our_answer.to_string().contains("output 'OUTPUT0' already exists in request")
                || is_counted(it, "add_sub")
        },
    },
    Known { name: "An output that is made twice", is: |it| is_of(it, &["failures: same_output_twice"]) },
    Known {
        name: "The status of a generation that fails",
        is: |it| {
            is_of(it, &["generating: "])
                && it.field == ".status"
                && (it.ours, it.theirs) == (Some(&500.into()), Some(&400.into()))
        },
    },
    Known {
        name: "Texts as correlation ids",
        is: |it| {
            they_say(it, "unexpected number of string elements 2 for inference input 'CORRID'")
                || is_counted(it, "sequence_texts")
        },
    },
    Known {
        name: "Correlation ids of another type than the control's",
        is: |it| is_of(it, &["sequences: a text where numbers are the rule"]) || is_counted(it, "sequence"),
    },
    Known {
        name: "Whose value a decoupled model returned",
        is: |it| {
            let renamed = text(it.theirs).replace("Python model 'decoupled_0_0'", "Python model 'decoupled'");
            it.ours != it.theirs && !renamed.is_empty() && text(it.ours) == renamed
        },
    },
    Known { name: "A transaction policy without its setting", is: |it| is_of(it, &["interface: configurations"]) },
    Known {
        name: "Arguments that fit no type of C++",
        is: |it| {
            let complaints = ["Unable to cast Python instance to C++ type", "Expect N8pybind114dictE"];
            complaints.iter().any(|complaint| they_say(it, complaint))
        },
    },
    Known {
        name: "Parameters of responses",
        is: |it| {
            is_of(it, &["interface: parameters of a response"])
                || they_say(it, "InferenceResponse(output_tensors: List[c_python_backend_utils.Tensor] = [], error:")
                || is_counted(it, "echo_request")
        },
    },
    Known { name: "The datatype of a tensor", is: |it| is_of(it, &["interface: the types of tensors"]) },
    Known { name: "A region beyond its end", is: |it| is_of(it, &["regions: register too much"]) },
    Known {
        name: "The code of a callee's error",
        is: |it| {
            let is_code = it.field.ends_with(".error.code") || it.field.ends_with(".error.number");
            is_of(it, &["calls: "])
                && is_code
                && (text(it.theirs) == "__ErrorCode.INTERNAL" || it.theirs == Some(&1.into()))
        },
    },
    Known { name: "An error among the responses of a callee", is: |it| is_of(it, &["calls: iterated over errors"]) },
    Known {
        name: "Cancelling an iterator",
        is: |it| is_of(it, &["calls: cancelled"]) && they_say(it, "has no attribute 'cancel'"),
    },
    Known {
        name: "Frames of the backend itself",
        is: |it| text(it.ours) != text(it.theirs) && own_frames(text(it.ours)) == own_frames(text(it.theirs)),
    },
    Known {
        name: "The type of an empty answer",
        is: |it| {
            is_of(it, &["life: "])
                && it.field.ends_with(".type")
                && (text(it.ours), text(it.theirs)) == ("text/plain", "application/json")
        },
    },
    Known {
        name: "Descriptions of metrics",
        is: |it| is_of(it, &["measured: family nv_"]) && it.field == ".HELP" && !text(it.ours).is_empty(),
    },
    Known {
        name: "Families of our own",
        is: |it| it.case.contains(" nereid_") || it.case.ends_with(" nv_model_load_duration_secs"),
    },
    Known {
        name: "Counters of models that are gone",
        is: |it| {
            let gone = ["\"auto\"", "\"auto_bare\"", "\"life\""].iter().any(|model| it.field.contains(model));
            is_of(it, &["measured: samples of nv_"]) && gone && it.ours.is_none()
        },
    },
    Known { name: "Statistics of a model that was loaded again", is: |it| is_counted(it, "strings") },
    Known { name: "Executions of an ensemble", is: |it| is_counted(it, "pipeline") },
    Known { name: "Ends of iterative sequences", is: |it| is_counted(it, "iterative") },
    Known { name: "A model without execute", is: |it| is_of(it, &["life: source: no execute"]) },
    Known { name: "Datatypes that there are not", is: |it| is_of(it, &["life: completed by wrong_datatype"]) },
];
