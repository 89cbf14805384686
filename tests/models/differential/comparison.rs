//! Compares two documents of responses field by field, except for known differences.

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
}

/// A kind of difference that is known and wanted.
pub struct Known {
    /// The heading in docs/differences.md, where the reason stands.
    pub name: &'static str,
    pub is: fn(&Difference) -> bool,
}

/// Differences that are known value by value: by their name, the case, and the field with our value of it. The field ""
/// stands for our answer as a whole. The file beside this one holds them.
#[derive(Default)]
pub struct Recorded(BTreeMap<String, BTreeMap<String, BTreeMap<String, Value>>>);

const RECORDED: &str = "tests/models/differential/recorded.json";
/// Differences that do not show in each run: 2.51 does not always load a model again that was asked for once more, and
/// only then counts anew.
const MAY_AGREE: [&str; 2] = ["Executions of an ensemble", "Statistics of a model that was loaded again"];
/// Set to anything but `0`, the values of all fields in that file are taken from this run: for a change that is wanted.
const RECORD: &str = "NEREID_TEST_RECORD";

impl Recorded {
    pub fn read() -> Recorded {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(RECORDED);
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        Recorded(serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path:?}: {error}")))
    }

    /// Writes what our server answered in this run into the file, where the environment asks for it.
    pub fn refresh_where_asked(&self, ours: &Answers) {
        if !std::env::var(RECORD).is_ok_and(|value| value != "0") {
            return;
        }
        let mut refreshed = self.0.clone();
        for (case, fields) in refreshed.values_mut().flatten() {
            let answer = ours.get(case).unwrap_or(&Value::Null);
            let mut leaves = BTreeMap::new();
            flatten(answer, String::new(), &mut leaves);
            for (field, value) in fields {
                *value = if field.is_empty() { answer.clone() } else { leaf(&leaves, field) };
            }
        }
        let text = serde_json::to_string_pretty(&refreshed).expect("JSON of strings and values");
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(RECORDED);
        std::fs::write(&path, text + "\n").unwrap_or_else(|error| panic!("{path:?}: {error}"));
        panic!("{RECORDED} holds the answers of this run now: read its diff, and run the test without {RECORD}");
    }

    /// The name and the field under which a difference is recorded.
    fn entry(&self, difference: &Difference) -> Option<(&str, &str)> {
        self.0.iter().find_map(|(name, cases)| {
            let fields = cases.get(difference.case)?;
            if fields.get("") == Some(difference.our_answer) {
                return Some((name.as_str(), ""));
            }
            let (field, value) = fields.get_key_value(difference.field)?;
            (value == difference.ours.unwrap_or(&Value::Null)).then_some((name.as_str(), field.as_str()))
        })
    }

    fn entries(&self) -> impl Iterator<Item = (&str, &str, &str)> {
        let cases =
            self.0.iter().flat_map(|(name, cases)| cases.iter().map(move |(case, fields)| (name, case, fields)));
        cases.flat_map(|(name, case, fields)| {
            fields.keys().map(move |field| (name.as_str(), case.as_str(), field.as_str()))
        })
    }
}

fn leaf(leaves: &BTreeMap<String, &Value>, field: &str) -> Value {
    leaves.get(field).map_or(Value::Null, |value| (*value).clone())
}

/// Which of the known differences showed.
#[derive(Default)]
struct Seen<'a> {
    names: BTreeSet<&'a str>,
    entries: BTreeSet<(&'a str, String, &'a str)>,
}

impl<'a> Seen<'a> {
    /// Whether a difference is known; then it has been seen.
    fn knows(&mut self, difference: &Difference, known: &'a [Known], recorded: &'a Recorded) -> bool {
        if let Some((name, field)) = recorded.entry(difference) {
            self.entries.insert((name, difference.case.to_owned(), field));
            return true;
        }
        let name = known.iter().find(|known| (known.is)(difference)).map(|known| known.name);
        self.names.extend(name);
        name.is_some()
    }
}

/// The section of docs/differences.md whose headings are the names of [`Known`].
const SECTION: &str = "## Python models";

/// All that is wrong: differences that are not known, those that are known and do not show, and what the page says
/// otherwise.
pub fn findings(ours: &Answers, theirs: &Answers, known: &[Known], recorded: &Recorded) -> Vec<String> {
    let mut findings = Vec::new();
    let mut seen = Seen::default();
    let cases: BTreeSet<&String> = ours.keys().chain(theirs.keys()).collect();
    for case in cases {
        let (Some(our_answer), Some(their_answer)) = (ours.get(case), theirs.get(case)) else {
            let side = if ours.contains_key(case) { "ours" } else { "theirs" };
            if !seen.knows(&one_sided(case, ours.get(case), theirs.get(case)), known, recorded) {
                findings.push(format!("{case}\n      only {side} has it"));
            }
            continue;
        };
        let mut unknown = Vec::new();
        for (field, (ours, theirs)) in differing(our_answer, their_answer) {
            let difference = Difference { case, field: &field, ours, theirs, our_answer };
            if !seen.knows(&difference, known, recorded) {
                let (ours, theirs) = (shortened(ours), shortened(theirs));
                unknown.push(format!("{field}\n        ours:   {ours}\n        theirs: {theirs}"));
            }
        }
        if !unknown.is_empty() {
            let more = unknown.len().saturating_sub(4);
            unknown.truncate(4);
            let more = if more > 0 { format!("\n      and {more} more fields") } else { String::new() };
            findings.push(format!("{case}\n      {}{more}", unknown.join("\n      ")));
        }
    }
    findings.extend(stale(&seen, known, recorded));
    findings
}

/// What is known and did not show, and what the page and the tests say otherwise of each other.
fn stale(seen: &Seen, known: &[Known], recorded: &Recorded) -> Vec<String> {
    let mut findings = Vec::new();
    for known in known.iter().filter(|known| !seen.names.contains(known.name)) {
        findings.push(format!("'{}' is no difference any more", known.name));
    }
    for (name, case, field) in recorded.entries().filter(|(name, ..)| !MAY_AGREE.contains(name)) {
        if !seen.entries.contains(&(name, case.to_owned(), field)) {
            findings.push(format!("'{name}': {RECORDED} has field '{field}' of '{case}', which did not show"));
        }
    }
    let names: BTreeSet<&str> =
        known.iter().map(|known| known.name).chain(recorded.0.keys().map(String::as_str)).collect();
    let documented = documented();
    for name in names.iter().filter(|name| !documented.contains(**name)) {
        findings.push(format!("docs/differences.md has no heading '{name}' under '{SECTION}'"));
    }
    for name in documented.iter().filter(|name| !names.contains(name.as_str())) {
        findings.push(format!("docs/differences.md describes '{name}', which no test knows"));
    }
    findings
}

/// A case that one server alone has: which model a statistic is about, say.
fn one_sided<'a>(case: &'a str, ours: Option<&'a Value>, theirs: Option<&'a Value>) -> Difference<'a> {
    Difference { case, field: "", ours, theirs, our_answer: ours.unwrap_or(&Value::Null) }
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

fn shortened(value: Option<&Value>) -> String {
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

    fn recorded(name: &str, case: &str, field: &str, value: Value) -> Recorded {
        let fields = BTreeMap::from([(field.to_owned(), value)]);
        Recorded(BTreeMap::from([(name.to_owned(), BTreeMap::from([(case.to_owned(), fields)]))]))
    }

    /// Of one case, without what the page and the tests say of each other.
    fn found(ours: &Answers, theirs: &Answers, recorded: &Recorded) -> Vec<String> {
        let all = findings(ours, theirs, &[], recorded);
        all.into_iter().filter(|finding| !finding.contains("docs/differences.md")).collect()
    }

    #[test]
    fn every_field_that_differs_is_found() {
        let answers = |value: Value| Answers::from([("a case".to_owned(), value)]);
        let ours = answers(json!({ "same": 1, "list": [1, 2], "ours": true, "kind": "1" }));
        let theirs = answers(json!({ "same": 1, "list": [1, 3, 4], "theirs": {}, "kind": 1 }));
        let fields: Vec<String> = differing(&ours["a case"], &theirs["a case"]).into_keys().collect();
        assert_eq!(fields, [".kind", ".list[1]", ".list[2]", ".ours", ".theirs"]);
        let none = Recorded::default();
        assert!(found(&ours, &theirs, &none)[0].starts_with("a case\n"));
        let missing = found(&ours, &Answers::new(), &none);
        assert!(missing[0].contains("only ours has it"), "{missing:?}");
    }

    #[test]
    fn a_recorded_difference_excuses_its_own_value_alone() {
        let answers = |value: Value| Answers::from([("a case".to_owned(), value)]);
        let (ours, theirs) = (answers(json!({ "count": 3, "kind": 1 })), answers(json!({ "count": 4, "kind": 1 })));
        assert_eq!(found(&ours, &theirs, &recorded("Name", "a case", ".count", json!(3))), [""; 0]);
        assert_eq!(found(&ours, &theirs, &recorded("Name", "a case", "", json!({ "count": 3, "kind": 1 }))), [""; 0]);
        let others = [
            recorded("Name", "a case", ".count", json!(5)),
            recorded("Name", "a case", ".kind", json!(1)),
            recorded("Name", "another case", ".count", json!(3)),
            recorded("Name", "a case", "", json!({ "count": 3, "kind": 2 })),
        ];
        for other in others {
            let found = found(&ours, &theirs, &other);
            assert_eq!(found.len(), 2, "the difference, and the entry that did not show: {found:?}");
        }
    }

    #[test]
    fn a_known_difference_must_show() {
        let never = Known { name: "Never", is: |_| false };
        let found = findings(&Answers::new(), &Answers::new(), &[never], &Recorded::default());
        assert!(found.contains(&"'Never' is no difference any more".to_owned()), "{found:?}");
        assert!(found.iter().any(|finding| finding.contains("no heading 'Never'")), "{found:?}");
    }
}
