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

/// The modules that hand out memory which another process may write to.
const SHARED_MEMORY: [&str; 3] = ["memory/regions", "memory/segment", "memory/shared_bytes"];

/// What makes a reference of an address.
const REFERENCES: [&str; 4] = ["from_raw_parts", "&*", "&mut *", ".as_ref()"];

/// Lines of such a module that may refer to shared bytes, each with the reason.
const OWN_BYTES: [(&str, &str); 1] = [
    // The copy that a snapshot is: memory of this process alone.
    ("memory/shared_bytes.rs", "unsafe { &*kept }"),
];

fn makes_a_reference(path: &str, line: &str) -> bool {
    let is_own = OWN_BYTES.iter().any(|(place, text)| *place == path && line.contains(text));
    !is_own && line.contains("unsafe") && REFERENCES.iter().any(|text| line.contains(text))
}

/// Bytes that another process may change are copied, or passed on by their address: a reference would let the compiler
/// read them once for a check and once more for their use.
#[test]
fn no_reference_points_to_shared_memory() {
    let is_shared = |path: &str| SHARED_MEMORY.iter().any(|place| path.starts_with(place)) && !path.contains("test");
    let shared: Vec<_> = sources("src").into_iter().filter(|source| is_shared(&source.path)).collect();
    assert!(shared.len() >= 5, "the modules of shared memory");
    let findings = shared.iter().flat_map(|source| {
        let lines = source.code.lines().enumerate();
        let found = lines.filter(|(_, line)| makes_a_reference(&source.path, line));
        found.map(|(index, line)| format!("{}:{}: {}", source.path, index + 1, line.trim()))
    });
    demand_none("references to memory that another process may write to", findings.collect());
}

#[test]
fn a_reference_to_shared_memory_is_found() {
    let path = "memory/regions/window.rs";
    assert!(makes_a_reference(path, "unsafe { std::slice::from_raw_parts(self.start(), self.len) }"));
    assert!(makes_a_reference(path, "let byte = unsafe { &*self.start() };"));
    assert!(!makes_a_reference(path, "unsafe { Slice::in_region(self.start(), self.len, Arc::clone(&self.region)) }"));
}

/// Objects of the C interface that one call at a time uses (contract/c_api.md section 4), as `deref_mut` names them. No
/// other object is referred to exclusively: any thread may use servers, models, metrics, allocators, and the requests
/// of an application, while another one does.
const EXCLUSIVE: [(&str, &str); 9] = [
    ("inference_request", "a backend's, which has it alone; an application's is edited through a cell"),
    ("response", "it belongs to the caller until it is sent or deleted"),
    ("output", "a part of a response under construction"),
    ("options", "before there is a server"),
    ("args", "arguments of a metric that is not made yet"),
    ("buffer_attributes", "a value of the caller"),
    ("response_statistics", "a value of the caller"),
    ("backend_attributes", "lent for one call of the backend"),
    ("what", "the definition of the function"),
];

/// What a line refers to exclusively, as the text that names it.
fn exclusive(line: &str) -> Option<&str> {
    let rest = line.split_once("deref_mut(")?.1;
    let name = rest.split_once('"').map(|(_, rest)| rest.split('"').next().unwrap_or_default());
    Some(name.unwrap_or(if rest.contains("what") { "what" } else { rest }))
}

#[test]
fn only_what_one_call_uses_is_referred_to_exclusively() {
    let mut findings = Vec::new();
    let mut seen = std::collections::BTreeSet::from(["what"]);
    for source in sources("src").iter().filter(|source| source.is_in("abi")) {
        let is_test = source.path.ends_with("tests.rs");
        for (index, line) in source.text.lines().enumerate().filter(|_| !is_test) {
            match exclusive(line) {
                Some(_) if line.contains("fn deref_mut") => {}
                Some(name) => match EXCLUSIVE.iter().find(|(known, _)| *known == name) {
                    Some((known, _)) => drop(seen.insert(*known)),
                    None => findings.push(format!("{}:{}: {}", source.path, index + 1, line.trim())),
                },
                None => {}
            }
        }
    }
    let unused = EXCLUSIVE.iter().filter(|(known, _)| !seen.contains(known));
    findings.extend(unused.map(|(known, _)| format!("'{known}' is listed, and no call refers to it exclusively")));
    demand_none("exclusive references to objects that several threads may use", findings);
}

#[test]
fn an_exclusive_reference_is_named() {
    assert_eq!(exclusive("unsafe { deref_mut(allocator, \"allocator\")? }.functions"), Some("allocator"));
    assert_eq!(exclusive("unsafe { deref(allocator, \"allocator\")? }"), None);
}
