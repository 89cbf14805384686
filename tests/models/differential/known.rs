//! The known differences from 2.51 that a rule over field and value describes. recorded.json contains those of single
//! responses, value by value. docs/differences.md has the reasons of both.

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

fn is_of(difference: &Difference, cases: &[&str]) -> bool {
    cases.iter().any(|case| difference.case.starts_with(case))
}

pub const KNOWN: [Known; 5] = [
    Known { name: "The release", is: |it| it.field.ends_with(".version") && text(it.theirs) == "2.51.0" },
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
        name: "Families of our own",
        is: |it| {
            let is_own = [" nereid_", " process_"].iter().any(|start| it.case.contains(start));
            is_own || it.case.ends_with(" nv_model_load_duration_secs")
        },
    },
    Known {
        name: "Counters of models that are gone",
        is: |it| {
            let gone = ["\"auto\"", "\"auto_bare\"", "\"life\""].iter().any(|model| it.field.contains(model));
            is_of(it, &["measured: samples of nv_"]) && gone && it.ours.is_none()
        },
    },
];
