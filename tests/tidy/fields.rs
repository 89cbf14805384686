//! Holds the structs of src/ to a size that a reader can keep in mind: a bounded number of fields, and few booleans.

use super::{demand_none, sources, without_tests};

/// Fields of a struct, and those of them that are `bool` or `AtomicBool`: each boolean doubles the states that a value
/// may be in.
const FIELDS_MAX: usize = 20;
const BOOLEANS_MAX: usize = 5;

/// Structs beyond these bounds, by file and name, with the reason.
const EXCEPTIONS: [(&str, &str, &str); 3] = [
    ("cli/perf/given.rs", "Given", "the flags of `nereid perf`, one field each"),
    ("server/options.rs", "Options", "the options of a server, one field for each flag"),
    ("repository.rs", "Settings", "the options that concern models"),
];

/// A struct with named fields.
#[derive(Debug, PartialEq)]
struct Struct {
    line: usize,
    name: String,
    fields: usize,
    booleans: usize,
}

impl Struct {
    fn is_too_large(&self) -> bool {
        self.fields > FIELDS_MAX || self.booleans > BOOLEANS_MAX
    }
}

/// The structs with named fields that `code` defines, comments and literals being blanks.
fn structs(code: &str) -> Vec<Struct> {
    let starts = code.match_indices("struct ").filter(|(at, _)| {
        let before = code[..*at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || c == '_')
    });
    starts.filter_map(|(at, word)| definition(code, at, &code[at + word.len()..])).collect()
}

/// The struct of which the name and all behind it are `rest`; `None` for one without named fields.
fn definition(code: &str, at: usize, rest: &str) -> Option<Struct> {
    let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    let behind = without_generics(rest[name.len()..].trim_start());
    // A tuple, and a struct without fields, which ends before any brace.
    let open = behind.find(['{', ';']).filter(|open| behind[*open..].starts_with('{') && !behind.starts_with('('))?;
    let types = field_types(&behind[open + 1..]);
    let is_boolean = |ty: &&String| ["bool", "AtomicBool"].contains(&ty.rsplit("::").next().unwrap_or_default().trim());
    let line = code[..at].matches('\n').count() + 1;
    Some(Struct { line, name, fields: types.len(), booleans: types.iter().filter(is_boolean).count() })
}

/// What stands behind `<…>`, if `text` begins with it.
fn without_generics(text: &str) -> &str {
    let mut depth = 0usize;
    let mut previous = ' ';
    for (at, c) in text.char_indices() {
        match c {
            '<' => depth += 1,
            '>' if previous != '-' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return if at == 0 { text } else { text[at + 1..].trim_start() };
        }
        previous = c;
    }
    text
}

/// The types of the fields in `a: A, pub b: B<C, D> }…`, up to the brace that closes the struct.
fn field_types(body: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut depth = 0usize;
    let mut previous = ' ';
    for c in body.chars() {
        match c {
            '{' | '(' | '[' | '<' => depth += 1,
            '}' if depth == 0 => break,
            // `->` closes nothing.
            '>' if previous == '-' => {}
            '}' | ')' | ']' | '>' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => fields.push(String::new()),
            _ => {}
        }
        if !(c == ',' && depth == 0)
            && let Some(field) = fields.last_mut()
        {
            field.push(c);
        }
        previous = c;
    }
    let types = fields.iter().filter_map(|field| {
        // An attribute and `pub(in crate::x)` stand before the name; `: ` or `:` and a line's end stand behind it.
        let colon = field.char_indices().find(|(at, c)| *c == ':' && is_single_colon(field, *at))?.0;
        Some(field[colon + 1..].trim().to_owned())
    });
    types.collect()
}

fn is_single_colon(text: &str, at: usize) -> bool {
    !text[..at].ends_with(':') && !text[at + 1..].starts_with(':')
}

#[test]
fn structs_have_a_bounded_number_of_fields_and_booleans() {
    let mut findings = Vec::new();
    let mut met = Vec::new();
    for source in sources("src") {
        for found in structs(&without_tests(&source.code)).into_iter().filter(Struct::is_too_large) {
            let Struct { line, name, fields, booleans } = found;
            match EXCEPTIONS.iter().find(|(path, exception, _)| *path == source.path && *exception == name) {
                Some(exception) => met.push(exception),
                None => findings.push(format!(
                    "{}:{line}: '{name}' has {fields} fields and {booleans} booleans: give what belongs together a \
                     type of its own (at most {FIELDS_MAX} and {BOOLEANS_MAX})",
                    source.path
                )),
            }
        }
    }
    let unused = EXCEPTIONS.iter().filter(|exception| !met.contains(exception));
    findings.extend(unused.map(|(path, name, _)| format!("{path}: '{name}' needs no exception any more")));
    demand_none("large structs", findings);
}

#[test]
fn fields_and_booleans_are_counted() {
    let text = "\
        struct Empty;\n\
        struct Tuple(bool, AtomicBool);\n\
        pub struct Plain<'a, T: Fn(u8) -> bool> where T: Send {\n\
            #[attr(a, b)]\n\
            pub(in crate::x) first: std::collections::BTreeMap<u8, (bool, bool)>,\n\
            second: Box<dyn Fn(u8, u8) -> bool + Send>, third: bool,\n\
            pub fourth: std::sync::atomic::AtomicBool,\n\
            r#fifth: [Option<bool>; 2]\n\
        }\n\
        fn f() { let my_struct = 1; }\n\
        struct Last { only: ::std::vec::Vec<u8> }\n";
    let found = structs(text);
    let row = |line, name: &str, fields, booleans| Struct { line, name: name.to_owned(), fields, booleans };
    assert_eq!(found, [row(3, "Plain", 5, 2), row(11, "Last", 1, 0)]);
    let of = |fields, booleans| row(1, "S", fields, booleans).is_too_large();
    assert_eq!([of(20, 5), of(21, 0), of(6, 6)], [false, true, true]);
}
