//! Two documents of answers, field by field; and what may differ between them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;

/// What a server answered: by case, the answer.
pub type Answers = BTreeMap<String, Value>;

/// A field of an answer that is not the same. None: the field is not there.
pub struct Difference<'a> {
    pub case: &'a str,
    /// `.body.outputs[0].name`
    pub field: &'a str,
    pub ours: Option<&'a Value>,
    pub theirs: Option<&'a Value>,
    pub our_answer: &'a Value,
    pub their_answer: &'a Value,
}

/// A kind of difference that is known and wanted.
pub struct Known {
    /// The heading in docs/differences.md, where the reason stands.
    pub name: &'static str,
    pub is: fn(&Difference) -> bool,
}

/// The section of docs/differences.md whose headings are the names of [`Known`].
const SECTION: &str = "## Python models";

/// All that is wrong: differences that are not known, those that are known and do not show, and what the page says
/// otherwise.
pub fn findings(ours: &Answers, theirs: &Answers, known: &[Known]) -> Vec<String> {
    let mut findings = Vec::new();
    let mut seen = BTreeSet::new();
    let cases: BTreeSet<&String> = ours.keys().chain(theirs.keys()).collect();
    for case in cases {
        let (Some(our_answer), Some(their_answer)) = (ours.get(case), theirs.get(case)) else {
            let who = if ours.contains_key(case) { "ours" } else { "theirs" };
            let difference = one_sided(case, ours.get(case), theirs.get(case));
            match known.iter().find(|known| (known.is)(&difference)) {
                Some(known) => drop(seen.insert(known.name)),
                None => findings.push(format!("{case}\n      only {who} has it")),
            }
            continue;
        };
        let fields = differing(our_answer, their_answer);
        let mut unknown = Vec::new();
        for (field, (ours, theirs)) in &fields {
            let difference = Difference { case, field, ours: *ours, theirs: *theirs, our_answer, their_answer };
            match known.iter().find(|known| (known.is)(&difference)) {
                Some(known) => drop(seen.insert(known.name)),
                None => {
                    unknown.push(format!("{field}\n        ours:   {}\n        theirs: {}", told(*ours), told(*theirs)))
                }
            }
        }
        if !unknown.is_empty() {
            let more = unknown.len().saturating_sub(4);
            unknown.truncate(4);
            let more = if more > 0 { format!("\n      and {more} more fields") } else { String::new() };
            findings.push(format!("{case}\n      {}{more}", unknown.join("\n      ")));
        }
    }
    let documented = documented();
    for known in known {
        if !seen.contains(known.name) {
            findings.push(format!("'{}' is no difference any more", known.name));
        }
        if !documented.contains(known.name) {
            findings.push(format!("docs/differences.md has no heading '{}' under '{SECTION}'", known.name));
        }
    }
    for name in documented.iter().filter(|name| !known.iter().any(|known| known.name == **name)) {
        findings.push(format!("docs/differences.md tells of '{name}', which no test knows"));
    }
    findings
}

/// A case that one server alone has: which model a statistic is about, say.
fn one_sided<'a>(case: &'a str, ours: Option<&'a Value>, theirs: Option<&'a Value>) -> Difference<'a> {
    let answer = |answer: Option<&'a Value>| answer.unwrap_or(&Value::Null);
    Difference { case, field: "", ours, theirs, our_answer: answer(ours), their_answer: answer(theirs) }
}

/// The fields that are not the same.
fn differing<'a>(ours: &'a Value, theirs: &'a Value) -> BTreeMap<String, (Option<&'a Value>, Option<&'a Value>)> {
    let mut found = BTreeMap::new();
    let (mut our_fields, mut their_fields) = (BTreeMap::new(), BTreeMap::new());
    flatten(ours, String::new(), &mut our_fields);
    flatten(theirs, String::new(), &mut their_fields);
    for field in our_fields.keys().chain(their_fields.keys()) {
        let (ours, theirs) = (our_fields.get(field).copied(), their_fields.get(field).copied());
        if ours != theirs {
            found.insert(field.clone(), (ours, theirs));
        }
    }
    found
}

/// The leaves of a value by their paths. What is empty is a leaf.
fn flatten<'a>(value: &'a Value, path: String, fields: &mut BTreeMap<String, &'a Value>) {
    match value {
        Value::Object(members) if !members.is_empty() => {
            members.iter().for_each(|(key, value)| flatten(value, format!("{path}.{key}"), fields));
        }
        Value::Array(items) if !items.is_empty() => {
            items.iter().enumerate().for_each(|(at, value)| flatten(value, format!("{path}[{at}]"), fields));
        }
        leaf => drop(fields.insert(path, leaf)),
    }
}

fn told(value: Option<&Value>) -> String {
    let text = value.map_or("(nothing)".to_owned(), Value::to_string);
    match text.char_indices().nth(600) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// The headings of the section in docs/differences.md.
fn documented() -> BTreeSet<String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/differences.md");
    let text = std::fs::read_to_string(&page).unwrap_or_else(|error| panic!("{page:?}: {error}"));
    let section = text.lines().skip_while(|line| *line != SECTION).skip(1).take_while(|line| !line.starts_with("## "));
    section.filter_map(|line| line.strip_prefix("### ")).map(str::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_field_that_differs_is_found() {
        let answers = |value: Value| Answers::from([("a case".to_owned(), value)]);
        let ours = answers(json!({ "same": 1, "list": [1, 2], "ours": true, "kind": "1" }));
        let theirs = answers(json!({ "same": 1, "list": [1, 3, 4], "theirs": {}, "kind": 1 }));
        let fields: Vec<String> = differing(&ours["a case"], &theirs["a case"]).into_keys().collect();
        assert_eq!(fields, [".kind", ".list[1]", ".list[2]", ".ours", ".theirs"]);
        assert!(findings(&ours, &theirs, &[])[0].starts_with("a case\n"));
        let missing = findings(&ours, &Answers::new(), &[]);
        assert!(missing[0].contains("only ours has it"), "{missing:?}");
    }

    #[test]
    fn a_known_difference_must_show() {
        let never = Known { name: "Never", is: |_| false };
        let found = findings(&Answers::new(), &Answers::new(), &[never]);
        assert!(found.contains(&"'Never' is no difference any more".to_owned()), "{found:?}");
        assert!(found.iter().any(|finding| finding.contains("no heading 'Never'")), "{found:?}");
    }
}
