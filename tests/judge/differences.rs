//! What both servers answered, held side by side; and the differences that are known and wanted.
//!
//! Each known difference has its reason in docs/differences.md, under the name that it has here. One that no longer
//! shows fails as well, so that the list stays true.

use std::collections::BTreeSet;
use std::path::Path;

/// A line of a transcript in which the servers may differ, and the name under which the documentation says why. A line
/// is known by how it begins.
#[derive(Clone, Copy)]
pub struct Known {
    pub line: &'static str,
    pub name: &'static str,
}

/// One question and its answer.
pub type Line = (String, String);

/// Fails with all unknown differences, and with those that were expected and did not come.
pub fn compare(ours: &[Line], theirs: &[Line], known: &[Known]) {
    assert_eq!(
        ours.iter().map(|line| &line.0).collect::<Vec<_>>(),
        theirs.iter().map(|line| &line.0).collect::<Vec<_>>(),
        "the servers were asked different questions"
    );
    let documented = documented();
    let mut findings = Vec::new();
    let mut seen = BTreeSet::new();
    for ((question, our_answer), (_, their_answer)) in ours.iter().zip(theirs) {
        if our_answer == their_answer {
            continue;
        }
        match known.iter().find(|known| question.starts_with(known.line)) {
            Some(known) => {
                seen.insert(known.line);
            }
            None => findings.push(format!("{question}\n      ours:   {our_answer:?}\n      theirs: {their_answer:?}")),
        }
    }
    for known in known {
        if !seen.contains(known.line) {
            findings.push(format!("{}: is no difference any more ({})", known.line, known.name));
        }
        if !documented.contains(known.name) {
            findings.push(format!("{}: docs/differences.md has no heading '{}'", known.line, known.name));
        }
    }
    assert!(findings.is_empty(), "{} differences:\n  {}", findings.len(), findings.join("\n  "));
}

/// The headings of docs/differences.md.
fn documented() -> BTreeSet<String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/differences.md");
    let text = std::fs::read_to_string(&page).unwrap_or_else(|error| panic!("{page:?}: {error}"));
    text.lines().filter_map(|line| line.strip_prefix("### ")).map(str::to_string).collect()
}
