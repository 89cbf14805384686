//! Checks the rules of the source tree: which module may use which, where `unsafe` and glommio may occur, how a file
//! begins and how long it may be (docs/design.md, "The path of a request"), and that citations resolve.

#[path = "tidy/bounds.rs"]
mod bounds;
#[path = "tidy/citations.rs"]
mod citations;
#[path = "tidy/crates.rs"]
mod crates;
#[path = "tidy/delivery.rs"]
mod delivery;
#[path = "tidy/fields.rs"]
mod fields;
#[path = "tidy/life_of_a_request.rs"]
mod life_of_a_request;
#[path = "tidy/locks.rs"]
mod locks;
#[path = "tidy/safety.rs"]
mod safety;
#[path = "tidy/tables.rs"]
mod tables;

use std::fs;
use std::path::{Path, PathBuf};

/// What each module of the server's package may name besides itself: modules, and crates (`nereid_queue` is `queue`). A
/// use that no row lists is an error, and a row lists only modules below it, so that there is no circle. For crates,
/// Cargo.toml lists the dependencies.
const MAY_USE: [(&str, &[&str]); 7] = [
    ("main", &["cli"]),
    // Installing a runtime searches the same places as its backend; flags set the log; check and explain inspect models
    // as a load would, and the cores that they would get; installing writes the headers of the C interface; serving
    // passes `abi::LIBRARIES` to the server; the flags of a server's address become what calls it.
    (
        "cli",
        &[
            "abi",
            "server",
            "repository",
            "backend",
            "fil",
            "openvino",
            "pytorch",
            "tensorflow",
            "tensorrt",
            "observe",
            "client",
            "monitor",
            "perf",
            "recording",
            "replay",
            "shard",
            "tune",
        ],
    ),
    // Programs that link the library start and drive a server through it. It implements the traits of backend,
    // scheduler and repository through which libraries are opened (`server::Libraries`).
    ("abi", &["server", "repository", "backend", "memory", "observe", "scheduler"]),
    (
        "server",
        &[
            "api",
            "repository",
            "native_backends",
            "backend",
            "ipc",
            "memory",
            "net",
            "observe",
            "openai",
            "protocol",
            "queue",
            "recording",
            "scheduler",
            "shard",
        ],
    ),
    // The service of a shard reads its mailbox, which is an actor of `queue`.
    ("api", &["repository", "protocol", "scheduler", "observe", "openai", "queue", "recording"]),
    ("repository", &["native_backends", "backend", "scheduler", "observe"]),
    // The table of the backends that are built in.
    ("native_backends", &["backend", "fil", "openvino", "pytorch", "tensorflow", "tensorrt"]),
];

/// To count calls of the allocator and of memcpy, tests must replace them.
const UNSAFE_TESTS: [&str; 2] = ["costs/allocator", "costs/copying"];

/// The crates that every module may use: requests, configurations, the slices that carry their bytes on the host and on
/// devices, the generated messages of proto/, the clock, and mistakes on demand.
const NOUNS: [&str; 7] = ["request", "model_config", "memory", "gpu", "wire", "clock", "mutants"];

/// The crate that unit tests share with the tests of the whole server. No other build contains it.
const OF_TESTS: &str = "test_support";

/// Where `unsafe` may occur, as paths under src/. Fatal signals need a handler that libc calls, and stacks that it
/// prints: `abi/crash`. The clock is libc's, which tools that trace a process can intercept: `clock`. Code between
/// fork and exec of a child is `unsafe`: `backend/python/process`. An interpreter that has loaded the server is called
/// through its C interface: `backend/python/host`. The Python package calls the server's C interface: `python_api`. A
/// stuck thread writes down its stack in a signal handler: `observe/stacks`.
const UNSAFE: [&str; 18] = [
    "abi",
    "gpu",
    "memory",
    "queue",
    "clock",
    "observe/stacks",
    "python_api",
    "shard/engine",
    "backend/fil/treelite",
    "backend/onnxruntime",
    "backend/openvino/runtime",
    "backend/pytorch/aoti/bindings",
    "backend/pytorch/torch",
    "backend/python/host",
    "backend/python/process",
    "backend/tensorflow/api",
    "backend/tensorrt/api",
    "backend/tensorrt/contexts",
];

/// Where glommio may be used.
const GLOMMIO: [&str; 1] = ["shard/engine"];

const LONGEST_FILE: usize = 1000;
const LONGEST_LINE: usize = 120;

struct Source {
    /// Path under the directory that was searched, with `/`.
    path: String,
    text: String,
    /// The text with comments and literals blanked out, lines kept.
    code: String,
}

impl Source {
    /// The top-level module that the file belongs to.
    fn module(&self) -> &str {
        self.path.split('/').next().unwrap_or_default().trim_end_matches(".rs")
    }

    /// Whether the file is `place` or is in it: `shard/engine` is shard/engine.rs and shard/engine/….
    fn is_in(&self, place: &str) -> bool {
        self.path.strip_prefix(place).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
    }
}

fn sources(directory: &str) -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(directory);
    let mut pending = vec![root.clone()];
    let mut found = Vec::new();
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(&directory).unwrap_or_else(|error| panic!("{directory:?}: {error}")) {
            let path: PathBuf = entry.expect("an entry of the tree").path();
            if path.is_dir() {
                pending.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
                let path =
                    path.strip_prefix(&root).expect("a path under the root").to_string_lossy().replace('\\', "/");
                let code = blank_out(&text);
                found.push(Source { path, text, code });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(!found.is_empty(), "no sources in {directory}");
    found
}

/// Fails with all findings at once.
fn demand_none(rule: &str, findings: Vec<String>) {
    assert!(findings.is_empty(), "{rule}:\n  {}", findings.join("\n  "));
}

#[test]
fn modules_use_only_what_lies_below_them() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut findings = Vec::new();
    for source in sources("src") {
        let module = source.module();
        if module == "lib" || root.join(module).join("Cargo.toml").exists() {
            continue;
        }
        let Some((_, allowed)) = MAY_USE.iter().find(|(name, _)| *name == module) else {
            findings.push(format!("{}: module '{module}' has no place in the order (tests/tidy.rs)", source.path));
            continue;
        };
        for (line, used) in uses(&without_tests(&source.code)) {
            let noun = NOUNS.contains(&used.as_str());
            let own = used == module || used == "self" || used == OF_TESTS;
            if !own && !noun && !allowed.contains(&used.as_str()) {
                findings.push(format!("{}:{line}: '{module}' may not use '{used}'", source.path));
            }
        }
    }
    demand_none("dependencies point one way", findings);
}

#[test]
fn the_order_of_modules_has_no_circle() {
    let mut findings = Vec::new();
    for (at, (module, allowed)) in MAY_USE.iter().enumerate() {
        let above = MAY_USE[..=at].iter().filter(|(name, _)| allowed.contains(name));
        findings.extend(above.map(|(name, _)| format!("'{module}' may use '{name}', which does not lie below it")));
    }
    demand_none("modules in the order of MAY_USE", findings);
}

#[test]
fn glommio_is_named_by_the_engine_only() {
    let places = |source: &Source| GLOMMIO.iter().any(|place| source.is_in(place));
    let findings = sources("src")
        .iter()
        .filter(|source| !places(source))
        .flat_map(|source| lines_with_word(source, "glommio"))
        .collect();
    demand_none(&format!("glommio is named outside {GLOMMIO:?}"), findings);
}

#[test]
fn unsafe_stands_where_it_is_allowed() {
    let places = |source: &Source| UNSAFE.iter().any(|place| source.is_in(place));
    let findings = sources("src")
        .iter()
        .filter(|source| !places(source))
        .flat_map(|source| lines_with_word(source, "unsafe").into_iter().chain(lines_with_word(source, "unsafe_code")))
        .collect();
    demand_none(&format!("unsafe outside {UNSAFE:?}"), findings);
    demand_none(
        "unsafe in a test",
        sources("tests")
            .iter()
            .filter(|source| !UNSAFE_TESTS.iter().any(|place| source.is_in(place)))
            .flat_map(|source| lines_with_word(source, "unsafe"))
            .collect(),
    );
}

#[test]
fn files_say_their_duty_first_and_stay_short() {
    let mut findings = Vec::new();
    let own = sources("src").into_iter().map(|source| (source, false));
    for (source, is_test) in own.chain(sources("tests").into_iter().map(|source| (source, true))) {
        let path = &source.path;
        if !source.text.starts_with("//! ") {
            findings.push(format!("{path}: does not open with //! and its duty"));
        }
        if path.ends_with("mod.rs") {
            findings.push(format!("{path}: foo.rs stands beside foo/, not mod.rs in it"));
        }
        let lines = source.text.lines().count();
        if lines > LONGEST_FILE {
            findings.push(format!("{path}: {lines} lines, more than {LONGEST_FILE}"));
        }
        for (index, line) in source.text.lines().enumerate() {
            // A string that a test sends or expects may be long; rustfmt does not wrap it.
            let literal = is_test && line.contains('"');
            if line.chars().count() > LONGEST_LINE && !literal {
                findings.push(format!("{path}:{}: longer than {LONGEST_LINE} columns", index + 1));
            }
            if line.ends_with([' ', '\t']) {
                findings.push(format!("{path}:{}: ends with a blank", index + 1));
            }
        }
    }
    demand_none("files", findings);
}

#[test]
fn nothing_is_left_for_later() {
    // Written in two halves, so that this file does not match itself.
    let marks = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];
    let macros = [concat!("to", "do!"), concat!("unimple", "mented!"), concat!("db", "g!")];
    let mut findings = Vec::new();
    for source in sources("src").into_iter().chain(sources("tests")) {
        for (index, line) in source.text.lines().enumerate() {
            let marked = marks.iter().any(|mark| line.split(|c: char| !c.is_alphanumeric()).any(|word| word == *mark));
            if marked {
                findings.push(format!("{}:{}: {}", source.path, index + 1, line.trim()));
            }
        }
        for (index, line) in source.code.lines().enumerate() {
            if macros.iter().any(|name| line.contains(name)) {
                findings.push(format!("{}:{}: {}", source.path, index + 1, line.trim()));
            }
        }
    }
    demand_none("left for later", findings);
}

/// Every fault that can be planted (`Mutant`) is used in the code, and a test states that it detects it.
#[test]
fn each_planted_fault_is_noticed() {
    let all = sources("src");
    let mut findings = Vec::new();
    let mut count = 0;
    for faults in all.iter().filter(|source| source.path.ends_with("mutants.rs")) {
        let body = faults.code.split("pub enum Mutant {").nth(1).and_then(|rest| rest.split('}').next());
        let body = body.unwrap_or_else(|| panic!("{} has no faults", faults.path));
        for name in body.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            count += 1;
            let of_module = || all.iter().filter(|source| source.module() == faults.module());
            let lines = || of_module().flat_map(|source| source.code.lines()).filter(|line| line.contains(name));
            let (planted, named) = (format!("is(Mutant::{name})"), format!("Mutant::{name}"));
            if !lines().any(|line| line.contains(&planted)) {
                findings.push(format!("{}: '{name}' is planted nowhere", faults.path));
            }
            if !lines().any(|line| line.contains(&named) && !line.contains(&planted)) {
                findings.push(format!("{}: no test plants '{name}'", faults.path));
            }
        }
    }
    assert!(count > 0, "there are no faults");
    demand_none("planted faults", findings);
}

/// The modules and crates named as `crate::x`, `tritonserver::x` or `nereid_x`, with their lines; groups as well
/// (`use crate::{a, b::c}`).
fn uses(code: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for root in ["crate::", "tritonserver::", "nereid_"] {
        for (at, _) in code.match_indices(root) {
            let before = code[..at].chars().next_back();
            if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '$') {
                continue;
            }
            let line = code[..at].matches('\n').count() + 1;
            let rest = code[at + root.len()..].trim_start();
            match rest.strip_prefix('{') {
                // A function may also have such a name: `nereid_guard(…)`.
                None if root == "nereid_" && !is_path(rest) => {}
                None => found.push((line, identifier(rest))),
                Some(group) => found.extend(first_names(group).into_iter().map(|name| (line, name))),
            }
        }
    }
    found.retain(|(_, name)| !name.is_empty());
    found
}

/// Whether the text after a name continues a path or ends a `use`.
fn is_path(text: &str) -> bool {
    let rest = text.trim_start_matches(|c: char| c.is_alphanumeric() || c == '_');
    ["::", ";", " as "].iter().any(|next| rest.starts_with(next))
}

/// The first identifier of each element of `a, b::{c, d}, e}…`, up to the brace that closes the group.
fn first_names(group: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut depth = 0;
    let mut element = String::new();
    for c in group.chars() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => names.push(identifier(std::mem::take(&mut element).trim())),
            _ if depth == 0 => element.push(c),
            _ => {}
        }
    }
    names.push(identifier(element.trim()));
    names
}

/// The identifier at the start; a type or macro of the crate's root (`crate::Error`) is not a module.
fn identifier(text: &str) -> String {
    let name: String = text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    if name.starts_with(|c: char| c.is_uppercase()) { String::new() } else { name }
}

/// Blanks the items marked `#[cfg(test)]`: tests may use modules that the code may not.
fn without_tests(code: &str) -> String {
    let mut kept = String::new();
    let mut lines = code.lines();
    while let Some(line) = lines.next() {
        kept.push('\n');
        let marked = line.trim().starts_with("#[cfg(test)]") || line.trim().starts_with("#[cfg(all(test");
        if !marked {
            kept.push_str(line);
            continue;
        }
        let indent = line.len() - line.trim_start().len();
        // The item ends with a line of its own indentation that closes it, or with a semicolon.
        for line in lines.by_ref() {
            kept.push('\n');
            let own = line.len() - line.trim_start().len() == indent;
            let ends = line.trim_end().ends_with(';') || line.trim_end().ends_with('}');
            if own && ends && !line.trim().starts_with("#[") {
                break;
            }
        }
    }
    kept
}

fn lines_with_word(source: &Source, word: &str) -> Vec<String> {
    let is_word = |line: &str| line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|found| found == word);
    let lines = source.code.lines().enumerate().filter(|(_, line)| is_word(line));
    lines.map(|(index, line)| format!("{}:{}: {}", source.path, index + 1, line.trim())).collect()
}

/// Replaces comments, strings and character literals by blanks, keeping the line structure.
fn blank_out(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut code = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let word_before = at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_');
        let end = if rest.starts_with(b"//") {
            rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len())
        } else if rest.starts_with(b"/*") {
            block_comment(rest)
        } else if rest[0] == b'"' {
            string(rest)
        } else if rest[0] == b'r' && (!word_before || bytes[at - 1] == b'b' || bytes[at - 1] == b'c') {
            raw_string(rest)
        } else if rest[0] == b'\'' {
            character(rest)
        } else {
            0
        };
        if end == 0 {
            code.push(rest[0]);
            at += 1;
        } else {
            code.extend(rest[..end].iter().map(|&byte| if byte == b'\n' { b'\n' } else { b' ' }));
            at += end;
        }
    }
    String::from_utf8_lossy(&code).into_owned()
}

fn block_comment(rest: &[u8]) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < rest.len() {
        if rest[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if rest[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    rest.len()
}

fn string(rest: &[u8]) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

/// The length of `r"…"` or `r#"…"#`; 0 if the text is not one.
fn raw_string(rest: &[u8]) -> usize {
    let hashes = rest[1..].iter().take_while(|&&byte| byte == b'#').count();
    if rest.get(1 + hashes) != Some(&b'"') {
        return 0;
    }
    let close = [b"\"", "#".repeat(hashes).as_bytes()].concat();
    let start = 2 + hashes;
    let end = rest[start..].windows(close.len()).position(|window| window == close);
    end.map_or(rest.len(), |end| start + end + close.len())
}

/// The length of a character literal; 0 for a lifetime.
fn character(rest: &[u8]) -> usize {
    if rest.get(1) == Some(&b'\\') {
        let end = rest[2..].iter().skip(1).position(|&byte| byte == b'\'');
        return end.map_or(0, |end| end + 4);
    }
    // One character of up to four bytes, then the closing quote.
    (2..=5).find(|&end| rest.get(end) == Some(&b'\'')).map_or(0, |end| {
        let inner = std::str::from_utf8(&rest[1..end]).map_or(0, |inner| inner.chars().count());
        if inner == 1 { end + 1 } else { 0 }
    })
}

#[test]
fn the_scanner_sees_what_it_should() {
    let text = r####"
use crate::{alpha, beta::{gamma, delta}, self as here};
let a = crate::epsilon::f(); // crate::comment
let s = "crate::string"; let r = r#"crate::raw "quoted""#; let c = '"'; let l: &'static str = "x";
/* crate::block /* nested */ crate::still */ crate::zeta::g();
type E = crate::Error; not_crate::eta();
#[cfg(test)]
mod tests {
    use crate::theta;
}
use crate::iota;
use nereid_kappa; nereid_lambda(1); nereid_mu::h();
"####;
    let code = blank_out(text);
    let mut names: Vec<String> = uses(&without_tests(&code)).into_iter().map(|(_, name)| name).collect();
    names.sort();
    assert_eq!(names, ["alpha", "beta", "epsilon", "iota", "kappa", "mu", "self", "zeta"].map(String::from));
    assert_eq!(uses(&code).iter().find(|(_, name)| name == "theta"), Some(&(9, "theta".to_string())));
    assert_eq!(code.lines().count(), text.lines().count());
    assert_eq!(blank_out(r"'\'' unsafe '\u{41}' b'x' 'a").split_whitespace().next(), Some("unsafe"));
}
