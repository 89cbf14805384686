//! Compares the responses of both servers, except for known and intended differences.
//!
//! docs/differences.md contains the reason of each known difference under the same name. A known difference that no
//! longer occurs also fails the test, so that the page stays true.

use std::collections::BTreeSet;
use std::path::Path;

/// One question and its answer. What stands before the first `: ` is what the question is about.
pub type Line = (String, String);

/// A question that was answered in two ways.
pub struct Difference<'a> {
    pub question: &'a str,
    pub ours: &'a str,
    pub theirs: &'a str,
}

/// A kind of difference.
#[derive(Clone, Copy)]
pub struct Known {
    /// The heading in docs/differences.md.
    pub name: &'static str,
    pub is: fn(&Difference) -> bool,
}

/// Fails with all unknown differences, and with the known ones that do not show.
pub fn compare(ours: &[Line], theirs: &[Line], known: &[Known]) {
    let questions = |lines: &[Line]| lines.iter().map(|line| line.0.clone()).collect::<Vec<_>>();
    assert_eq!(questions(ours), questions(theirs), "the servers were asked different questions");
    assert!(!ours.is_empty());
    let mut findings = Vec::new();
    let mut seen = BTreeSet::new();
    for ((question, our_answer), (_, their_answer)) in ours.iter().zip(theirs) {
        if our_answer == their_answer {
            continue;
        }
        let difference = Difference { question, ours: our_answer, theirs: their_answer };
        match known.iter().find(|known| (known.is)(&difference)) {
            Some(known) => drop(seen.insert(known.name)),
            None => findings.push(format!("{question}\n      ours:   {our_answer:?}\n      theirs: {their_answer:?}")),
        }
    }
    let documented = documented();
    for known in known {
        if !seen.contains(known.name) {
            findings.push(format!("'{}' is no difference any more", known.name));
        }
        if !documented.contains(known.name) {
            findings.push(format!("docs/differences.md has no heading '{}'", known.name));
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

/// The text about missing versions, alone or behind the caller's.
pub const MISSING_VERSION: Known = Known {
    name: "The text about a missing version",
    is: |difference| {
        let bare = |text: &str| {
            let at = text.find("at least one version must be available under the version policy of model '");
            at.map(|at| text[at..].trim_end_matches(['"', '\\', 'n', '\n']).to_string())
        };
        bare(difference.ours).is_some() && bare(difference.ours) == bare(difference.theirs)
    },
};
