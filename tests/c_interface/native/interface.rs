//! The interface as a whole: everything that the table of the interface offers is exported, and nothing else of its
//! kind; each function is checked from C; the header compiles as every C and C++ that its users write, and its numbers
//! are those of the specification (contract/c_api.md section 2).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use tritonserver::abi::interface::Table;

use super::elf::{Exports, exports};
use super::program::{declared, library_directory};
use nereid_test_support::skip::skip;

fn table() -> Table {
    Table::own().unwrap_or_else(|error| panic!("{error}"))
}

fn offered() -> BTreeSet<String> {
    table().offered().map(|function| function.name.clone()).collect()
}

/// The symbols of the interface and no others, which programs might bind to by chance, and how many each of its parts
/// has (contract/c_api.md, first section: of 305 the server offers 282, and its own beside them).
fn check_symbols(exports: &Exports) {
    let found = &exports.symbols;
    let offered = offered();
    let missing: Vec<_> = offered.difference(found).collect();
    let surplus: Vec<_> = found.difference(&offered).collect();
    assert!(missing.is_empty() && surplus.is_empty(), "{} missing: {missing:#?}\nsurplus: {surplus:?}", missing.len());
    for (prefix, count) in
        [("TRITONSERVER_", 173), ("TRITONBACKEND_", 91), ("TRITONREPOAGENT_", 12), ("TRITONCACHE_", 6), ("NEREID_", 9)]
    {
        assert_eq!(found.iter().filter(|name| name.starts_with(prefix)).count(), count, "{prefix}");
    }
}

#[test]
fn the_program_exports_the_interface() {
    check_symbols(&exports(Path::new(env!("CARGO_BIN_EXE_nereid"))));
}

#[test]
fn the_library_exports_the_interface_under_its_name() {
    let exports = exports(&library_directory().join("libtritonserver.so"));
    check_symbols(&exports);
    assert_eq!(exports.soname.as_deref(), Some("libtritonserver.so"));
}

/// Functions that cannot fail, and why.
const NEVER_FAIL: [(&str, &str); 1] =
    [("TRITONSERVER_MetricArgsDelete", "Triton's Python backend deletes arguments that it never made")];

/// All C and C++ sources of the tests.
fn sources() -> Vec<PathBuf> {
    let mut pending = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")];
    let mut found = Vec::new();
    while let Some(directory) = pending.pop() {
        for entry in std::fs::read_dir(&directory).unwrap_or_else(|error| panic!("{directory:?}: {error}")) {
            let path = entry.expect("an entry of the tree").path();
            if path.is_dir() {
                pending.push(path);
            } else if path.extension().is_some_and(|extension| extension == "c" || extension == "cc") {
                found.push(path);
            }
        }
    }
    found
}

#[test]
fn every_function_is_checked_from_c() {
    let mut checks: BTreeMap<String, BTreeSet<char>> = BTreeMap::new();
    for path in sources() {
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        declared(&text).into_iter().for_each(|(sign, name)| _ = checks.entry(name).or_default().insert(sign));
    }
    let offered = offered();
    let has = |name: &str, sign: char| checks.get(name).is_some_and(|signs| signs.contains(&sign));
    let excused = |name: &str| NEVER_FAIL.iter().any(|(known, _)| *known == name);
    let successes: Vec<_> = offered.iter().filter(|name| !has(name, '+')).collect();
    let failures: Vec<_> = offered.iter().filter(|name| !has(name, '-') && !excused(name)).collect();
    assert!(
        successes.is_empty() && failures.is_empty(),
        "no call that succeeds ({}): {successes:#?}\nno call that fails ({}): {failures:#?}",
        successes.len(),
        failures.len()
    );
    for (name, reason) in NEVER_FAIL {
        assert!(offered.contains(name) && !has(name, '-'), "{name} is excused ('{reason}'), but can be checked");
    }
}

#[test]
fn the_header_compiles_as_c_and_as_cpp_with_the_numbers_of_the_specification() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (compiler, source, standards) in
        [("cc", "numbers.c", ["c99", "c11", "gnu17"]), ("c++", "numbers.cc", ["c++11", "c++17", "c++20"])]
    {
        for standard in standards {
            let mut command = Command::new(compiler);
            command.args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"]);
            command.arg(format!("-std={standard}")).arg("-I").arg(root.join("include"));
            match command.arg(root.join("tests/native_programs").join(source)).output() {
                Err(error) => return skip(&format!("no compiler '{compiler}': {error}")),
                Ok(output) => {
                    let said = String::from_utf8_lossy(&output.stderr);
                    assert!(output.status.success(), "{source} as {standard}: {said}");
                }
            }
        }
    }
}

#[test]
fn each_header_can_be_the_only_one() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for name in ["tritonserver.h", "tritonbackend.h", "tritonrepoagent.h", "tritoncache.h"] {
        let mut command = Command::new("cc");
        command.args(["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-include"]);
        command.arg(root.join("include/triton/core").join(name)).arg(root.join("tests/native_programs/numbers.c"));
        match command.arg("-I").arg(root.join("include")).output() {
            Err(error) => return skip(&format!("no compiler 'cc': {error}")),
            Ok(output) => assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr)),
        }
    }
}

/// What numbers.h compares is all that there is.
#[test]
fn every_number_is_compared() {
    let compared = include_str!("../../native_programs/numbers.h");
    let of = |word: &str| -> BTreeSet<String> {
        let lines = compared.lines().filter_map(|line| line.strip_prefix(word)?.split([',', ')']).next());
        lines.map(str::to_owned).collect()
    };
    let table = table();
    let enums = || table.interfaces.iter().flat_map(|interface| &interface.enums);
    let names: BTreeSet<_> = enums().flat_map(|one| one.values.iter().map(|(name, _)| name.clone())).collect();
    assert_eq!(of("NUMBER("), names);
    let types: BTreeSet<_> = enums().map(|one| one.name.clone()).collect();
    assert_eq!(types.len(), 24);
    assert_eq!(of("FOUR_BYTES("), types);
}
