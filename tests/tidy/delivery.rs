//! Checks that requests, responses and tensors in src/request do not use `request::delivery`, which is above them.

use super::{demand_none, sources, without_tests};

/// What a file beside `delivery` may use of it, with the reason. `lib.rs` holds the `Request` and the list of names.
const MAY_USE: [(&str, &[&str]); 2] = [
    // A response holds its credit until the transport has its bytes.
    ("request/response.rs", &["Credit"]),
    // A request from inside the process names the sink of its responses.
    ("request/submit.rs", &["ResponseFactory", "Sink"]),
];

/// The words of a text.
fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// The types that a module exports with `pub use`.
fn public_types(code: &str) -> Vec<&str> {
    let items = code.split("pub use ").skip(1).filter_map(|item| item.split(';').next());
    items.flat_map(words).filter(|word| word.starts_with(char::is_uppercase)).collect()
}

/// Lines that name a type of `types`, or the module itself, with the name.
fn named<'a>(code: &'a str, types: &[&str]) -> Vec<(usize, &'a str)> {
    let lines = code.lines().enumerate().flat_map(|(index, line)| words(line).map(move |word| (index + 1, word)));
    lines.filter(|(_, word)| *word == "delivery" || types.contains(word)).collect()
}

#[test]
fn nouns_do_not_use_the_way_of_an_answer() {
    let all = sources("src");
    let delivery = all.iter().find(|source| source.path == "request/delivery.rs").expect("request/delivery.rs");
    let types = public_types(&delivery.code);
    assert!(types.contains(&"Completion"), "the types of delivery are {types:?}");
    let above = |path: &str| path == "request/lib.rs" || path.starts_with("request/delivery");
    let mut findings = Vec::new();
    for source in all.iter().filter(|source| source.module() == "request" && !above(&source.path)) {
        let allowed = MAY_USE.iter().find(|(path, _)| *path == source.path).map_or(&[][..], |(_, names)| names);
        let code = without_tests(&source.code);
        let wrong = named(&code, &types).into_iter().filter(|(_, name)| !allowed.contains(name));
        findings.extend(wrong.map(|(line, name)| format!("{}:{line}: a noun may not use '{name}'", source.path)));
    }
    demand_none("nouns do not use delivery", findings);
}

#[test]
fn types_of_a_module_are_read_and_found() {
    let types = public_types("mod a;\npub mod b;\npub use a::{One, two, Three};\nuse b::Hidden;\npub use b::Four;\n");
    assert_eq!(types, ["One", "Three", "Four"]);
    let code = "use super::{Four, Fourth};\nfn f(delivery_at: One) {}\nuse crate::delivery::x;\n";
    assert_eq!(named(code, &types), [(1, "Four"), (2, "One"), (3, "delivery")]);
}
