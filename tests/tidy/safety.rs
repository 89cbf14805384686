//! Notes on `unsafe` state a reason of their own: what makes the block sound, not that something else does.

use crate::{demand_none, sources};

/// Whole notes that state nothing.
const FORMULAS: [&str; 8] = [
    "as above",
    "as below",
    "by contract",
    "by the contract of this function",
    "as the caller guarantees",
    "the caller's promise",
    "the caller's promise is passed on",
    "the caller's promises are passed on",
];

fn is_formula(line: &str) -> bool {
    let note = line.trim_start().strip_prefix("// SAFETY: ");
    note.is_some_and(|note| FORMULAS.contains(&note.trim_end().trim_end_matches('.')))
}

#[test]
fn safety_notes_state_their_reason() {
    let findings = sources("src").into_iter().flat_map(|source| {
        let lines: Vec<String> = source
            .text
            .lines()
            .enumerate()
            .filter(|(_, line)| is_formula(line))
            .map(|(index, line)| format!("{}:{}: {}", source.path, index + 1, line.trim()))
            .collect();
        lines
    });
    demand_none("notes on unsafe that state no reason", findings.collect());
}

#[test]
fn a_note_without_a_reason_is_found() {
    for line in ["    // SAFETY: as above.", "// SAFETY: the caller's promise is passed on."] {
        assert!(is_formula(line), "{line}");
    }
    for line in ["// SAFETY: `at` is live: this function requires it of its caller.", "// as above."] {
        assert!(!is_formula(line), "{line}");
    }
}
