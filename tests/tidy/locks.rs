//! Compares the tables of locks in docs/design.md with the sources: each lock in src/ has a row, each row names a lock.

use std::collections::BTreeSet;

use super::tables::{PAGE, Row, code_of, place, rows_below};
use super::{Source, demand_none, sources, without_tests};

/// Types behind which a thread may wait for another.
const LOCKS: [&str; 11] = [
    "Mutex",
    "RwLock",
    "Condvar",
    "Barrier",
    "Once",
    "OnceLock",
    "LazyLock",
    "OpenedOnce",
    "SyncSender",
    "FairMutex",
    "ReentrantMutex",
];

/// Calls that wait for another thread without a lock of their own.
const WAITS: [&str; 4] = ["spin_loop", "yield_now", "flock", "fcntl_lock"];

/// What tests of other crates use as well.
const FOR_TESTS: &str = "any(test, feature = \"testing\")";

/// The tables are below this heading.
const HEADING: &str = "Locks";

/// The locks of a file: `Type::field`, `Type` for the field of a tuple or an alias, `STATIC`, or the call that waits.
fn locks_of(code: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (at, word) in words(code) {
        let rest = code[at + word.len()..].trim_start();
        match word {
            "struct" | "enum" => fields(rest, &mut found),
            "static" => named(rest.trim_start_matches("mut ").trim_start(), "=;", &mut found),
            "type" => {
                let (name, behind) = rest.split_at(identifier(rest));
                let aliased = behind.split(';').next().filter(|aliased| aliased.trim_start().starts_with(['=', '<']));
                if aliased.is_some_and(holds_lock) {
                    found.insert(name.to_owned());
                }
            }
            wait if WAITS.contains(&wait) && rest.starts_with('(') => drop(found.insert(wait.to_owned())),
            _ => {}
        }
    }
    found
}

/// The locks among the fields of the struct or the variants of the enum whose name `rest` begins with.
fn fields(rest: &str, found: &mut BTreeSet<String>) {
    let (owner, behind) = rest.split_at(identifier(rest));
    let behind = behind_generics(behind);
    let Some(opening) = behind.find(['{', '(', ';']).filter(|_| !owner.is_empty()) else { return };
    let body = match behind.as_bytes()[opening] {
        b';' => return,
        _ => &behind[opening + 1..],
    };
    for element in elements(body) {
        let element = without_marks(element);
        let name = &element[..identifier(element)];
        let is_type = element[name.len()..].trim_start();
        let is_reference = |behind: &str| behind.trim_start().starts_with('&');
        match is_type.strip_prefix(':').filter(|behind| !behind.starts_with(':')) {
            // A reference to a lock is not another lock.
            Some(behind) if holds_lock(behind) && !is_reference(behind) => {
                found.insert(format!("{owner}::{name}"));
            }
            Some(_) => {}
            None if behind.as_bytes()[opening] == b'(' && holds_lock(element) && !is_reference(element) => {
                found.insert(owner.to_owned());
            }
            // A variant with fields of its own.
            None if behind.as_bytes()[opening] == b'{' && holds_lock(element) => {
                found.insert(format!("{owner}::{name}"));
            }
            None => {}
        }
    }
}

/// The text after `<…>` and after the bounds of `where`, which may contain brackets too.
fn behind_generics(behind: &str) -> &str {
    let behind = behind.trim_start();
    let (mut depth, mut before, mut end) = (0_usize, ' ', 0);
    for (at, c) in behind.char_indices().take_while(|_| behind.starts_with('<')) {
        match c {
            '<' => depth += 1,
            '>' if before != '-' => depth -= 1,
            _ => {}
        }
        before = c;
        if depth == 0 {
            end = at + 1;
            break;
        }
    }
    let behind = behind[end..].trim_start();
    match behind.strip_prefix("where").and_then(|bounds| bounds.find('{')) {
        Some(at) => &behind["where".len() + at..],
        None => behind,
    }
}

/// `NAME: Type`, up to one of `ends`.
fn named(rest: &str, ends: &str, found: &mut BTreeSet<String>) {
    let (name, behind) = rest.split_at(identifier(rest));
    let Some(behind) = behind.trim_start().strip_prefix(':') else { return };
    let of_type = behind.split(|c: char| ends.contains(c)).next().unwrap_or_default();
    if holds_lock(of_type) {
        found.insert(name.to_owned());
    }
}

/// The elements between commas, up to the closing bracket.
fn elements(body: &str) -> Vec<&str> {
    let (mut depth, mut begin, mut found) = (0_usize, 0, Vec::new());
    let mut before = ' ';
    for (at, c) in body.char_indices() {
        match c {
            '(' | '[' | '{' | '<' => depth += 1,
            '>' if before == '-' || before == '=' => {}
            ')' | ']' | '}' | '>' if depth > 0 => depth -= 1,
            ')' | ']' | '}' => {
                found.push(body[begin..at].trim());
                return found;
            }
            ',' if depth == 0 => {
                found.push(body[begin..at].trim());
                begin = at + 1;
            }
            _ => {}
        }
        before = c;
    }
    found
}

/// An element without its attributes and its visibility.
fn without_marks(mut element: &str) -> &str {
    loop {
        element = element.trim_start();
        if element.starts_with("#[") {
            element = element.split_once(']').map_or("", |(_, behind)| behind);
        } else if let Some(behind) = element.strip_prefix("pub(") {
            element = behind.split_once(')').map_or("", |(_, behind)| behind);
        } else if let Some(behind) = element.strip_prefix("pub ") {
            element = behind;
        } else {
            return element;
        }
    }
}

fn holds_lock(of_type: &str) -> bool {
    words(of_type).any(|(_, word)| LOCKS.contains(&word))
}

/// The length of the identifier at the start.
fn identifier(text: &str) -> usize {
    text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len())
}

fn words(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let begin = at + text[at..].find(|c: char| c.is_alphanumeric() || c == '_')?;
        at = begin + identifier(&text[begin..]);
        Some((begin, &text[begin..at]))
    })
}

/// The modules that exist only in builds of tests, as paths under src/.
fn test_modules(all: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for source in all {
        let mut is_marked = false;
        for (line, text) in source.code.lines().map(str::trim).zip(source.text.lines()) {
            if line.starts_with("#[cfg(") && !line.contains("not(test") && words(line).any(|(_, word)| word == "test") {
                is_marked = !line.contains("any(") || text.contains(FOR_TESTS);
                continue;
            }
            let name = line.strip_suffix(';').and_then(|line| line.rsplit_once("mod ")).map(|(_, name)| name);
            match name {
                Some(name) if is_marked => found.push(format!("{}/{name}", place(&source.path))),
                _ if line.starts_with("#[") => continue,
                _ => {}
            }
            is_marked = false;
        }
    }
    found
}

/// All locks of the sources, as (place, name).
fn locks(all: &[Source]) -> BTreeSet<(String, String)> {
    let of_tests = test_modules(all);
    let is_test = |place: &str| {
        of_tests
            .iter()
            .any(|test| place.strip_prefix(test).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
    };
    let mut found = BTreeSet::new();
    for source in all.iter().filter(|source| !is_test(place(&source.path))) {
        let names = locks_of(&without_tests(&source.code));
        found.extend(names.into_iter().map(|name| (place(&source.path).to_owned(), name)));
    }
    found
}

/// Locks of the tables that the sources lack, and the reverse.
fn differences(tables: &[Row], locks: &BTreeSet<(String, String)>) -> Vec<String> {
    let mut findings = Vec::new();
    let mut rows = BTreeSet::new();
    for row in tables {
        let mut file = None;
        for name in code_of(row.cells.first().map_or("", String::as_str)) {
            if name.ends_with(".rs") {
                file = Some(place(name).to_owned());
                continue;
            }
            let Some(file) = &file else {
                findings.push(format!("{PAGE}:{}: no file stands before `{name}`", row.line));
                continue;
            };
            let lock = (file.clone(), name.to_owned());
            if !locks.contains(&lock) {
                findings.push(format!("{PAGE}:{}: src/ has no lock `{file}` `{name}`", row.line));
            }
            if !rows.insert(lock) {
                findings.push(format!("{PAGE}:{}: `{file}` `{name}` has a row already", row.line));
            }
        }
        if file.is_none() {
            findings.push(format!("{PAGE}:{}: the row names no file", row.line));
        }
    }
    let unlisted = locks.iter().filter(|lock| !rows.contains(*lock));
    findings
        .extend(unlisted.map(|(place, name)| format!("src/{place}: `{name}` has no row below '{HEADING}' in {PAGE}")));
    findings
}

#[test]
fn each_lock_has_a_row_and_each_row_a_lock() {
    let locks = locks(&sources("src"));
    assert!(locks.len() > 100, "the locks of src/ are found");
    demand_none("the tables of locks", differences(&rows_below(HEADING), &locks));
}

#[test]
fn a_lock_without_a_row_and_a_row_without_a_lock_are_found() {
    let source = |path: &str, text: &str| {
        let code = super::blank_out(text);
        Source { path: path.to_owned(), text: text.to_owned(), code }
    };
    let all = [
        source(
            "a.rs",
            "struct A<'a, T: Fn() -> u8> { one: Mutex<u8>, pub(super) two: Vec<(u8, Arc<RwLock<T>>)>, \
             lent: &'a Mutex<u8>, held: MutexGuard<'a, u8>, plain: fn(u8) -> u8, \
             #[allow(x)] pub three: sync::Condvar }\n\
             // struct Said { one: Mutex<u8> }\n\
             fn f() { static INNER: LazyLock<u8> = x; std::hint::spin_loop(); let spin_loop = 1; }\n\
             #[cfg(test)]\nmod tests {\n    struct B {\n        one: Mutex<u8>,\n    }\n}\n\
             #[cfg(any(test, feature = \"testing\"))]\nmod c;\n#[cfg(not(test))]\nmod d;\n",
        ),
        source("a/c.rs", "static TESTED: Mutex<u8> = x;"),
        source("a/c/deep.rs", "static TESTED: Mutex<u8> = x;"),
        source("a/d.rs", "pub struct Tuple(u8, Mutex<u8>); enum E { One(Mutex<u8>), Two { three: Once }, Four }"),
        source("room/lib.rs", "type Shared<T> = Arc<Mutex<T>>; static mut S: [OnceLock<u8>; 2] = x; struct Unit;"),
        source(
            "room/channel.rs",
            "struct C { jobs: SyncSender<u8>, free: Sender<u8> } impl X for C { type O = Mutex; }",
        ),
    ];
    let found = locks(&all);
    let named: Vec<String> = found.iter().map(|(place, name)| format!("{place} {name}")).collect();
    let expected = "a A::one, a A::three, a A::two, a INNER, a spin_loop, a/d E::One, a/d E::Two, a/d Tuple, room S, \
                    room Shared, room/channel C::jobs, room/channel O";
    assert_eq!(named.join(", "), expected);
    let row = |cell: &str| Row { line: 7, cells: vec![cell.to_owned()] };
    let mut rows = vec![
        row("`a.rs` `A::one`, `A::two`, `A::three` (read and write)"),
        row("`a.rs` `INNER`, `spin_loop`; `a/d.rs` `E::One`, `E::Two`, `Tuple`"),
        row("`room.rs` `Shared`; `room/lib.rs` `S`; `room/channel.rs` `C::jobs`, `O`"),
    ];
    assert!(differences(&rows, &found).is_empty());
    let mut planted = found.clone();
    planted.insert(("a".to_owned(), "A::four".to_owned()));
    assert_eq!(differences(&rows, &planted), ["src/a: `A::four` has no row below 'Locks' in docs/design.md"]);
    planted.remove(&("a".to_owned(), "INNER".to_owned()));
    assert_eq!(differences(&rows, &planted).len(), 2);
    for wrong in ["`a.rs` `A::one`", "`a.rs` `A::none`", "`none.rs` `A::one`", "`A::one`", "all of them"] {
        rows.push(row(wrong));
        assert!(!differences(&rows, &found).is_empty(), "{wrong}");
        rows.pop();
    }
}
