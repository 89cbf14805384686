//! Compares the table of crates in docs/design.md with the manifests: the names, and the crates that each may use.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::demand_none;
use super::tables::{PAGE, Row, code_of, rows_below};

/// The table lies below this heading.
const HEADING: &str = "The path of a request";

/// The crates of src/ and what each depends on, by the names of their folders.
type Crates = BTreeMap<String, Vec<String>>;

/// The workspace's crates that the section `[dependencies]` of a manifest names.
fn dependencies(manifest: &str) -> Vec<String> {
    let sections = manifest.lines().scan(String::new(), |section, line| {
        if line.starts_with('[') {
            *section = line.to_owned();
        }
        Some((section.clone(), line))
    });
    // An optional one is what tests of other crates need.
    let own = sections.filter(|(section, line)| section == "[dependencies]" && !line.contains("optional = true"));
    let names = own.filter_map(|(_, line)| line.strip_prefix("nereid-")?.split(['.', ' ', '=']).next());
    let mut names: Vec<String> = names.map(|name| name.replace('-', "_")).collect();
    names.sort();
    names
}

fn crates_of_sources() -> Crates {
    let entries = |folder: &Path| {
        let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
        entries.map(|entry| entry.expect("an entry of src").path()).filter(|path| path.is_dir()).collect::<Vec<_>>()
    };
    let above = entries(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    // Those of large backends are inside `backend`.
    let inside: Vec<PathBuf> = above.iter().flat_map(|folder| entries(folder)).collect();
    let manifests = above.into_iter().chain(inside).filter_map(|folder| {
        let name = folder.file_name()?.to_string_lossy().into_owned();
        Some((name, fs::read_to_string(folder.join("Cargo.toml")).ok()?))
    });
    manifests.map(|(name, manifest)| (name, dependencies(&manifest))).collect()
}

fn crates_of_page(rows: &[Row]) -> Crates {
    let names = |cell: Option<&String>| code_of(cell.map_or("", String::as_str)).map(str::to_owned).collect::<Vec<_>>();
    let crates = rows.iter().map(|row| {
        let mut used = names(row.cells.get(2));
        used.sort();
        (names(row.cells.first()).concat(), used)
    });
    crates.collect()
}

/// Differences between the page and the sources.
fn differences(page: &Crates, sources: &Crates) -> Vec<String> {
    let said =
        |of: &Crates, name: &str| of.get(name).map_or("no crate".to_owned(), |used| format!("[{}]", used.join(", ")));
    let mut all: Vec<&String> = page.keys().chain(sources.keys()).collect();
    all.sort();
    all.dedup();
    all.retain(|name| page.get(*name) != sources.get(*name));
    let finding = |name: &String| format!("'{name}': {} on the page, {} in src", said(page, name), said(sources, name));
    all.into_iter().map(finding).collect()
}

#[test]
fn the_table_of_crates_is_that_of_the_manifests() {
    let page = crates_of_page(&rows_below(HEADING));
    demand_none(&format!("the table of crates in {PAGE}"), differences(&page, &crates_of_sources()));
}

#[test]
fn manifests_and_tables_are_read_and_compared() {
    let manifest = "[package]\nname = \"nereid-x\"\n[dependencies]\nbytes.workspace = true\nnereid-model-config = { path = \
                    \"y\" }\nnereid-clock.workspace = true\nnereid-x = { optional = true }\n[dev-dependencies]\nnereid-wire.workspace = true\n";
    assert_eq!(dependencies(manifest), ["clock", "model_config"]);
    let row = |cells: [&str; 3]| Row { line: 1, cells: cells.map(str::to_owned).to_vec() };
    let page = crates_of_page(&[row(["`a`", "what it is", ""]), row(["`b`", "`x`", "`c`, `a`"])]);
    assert_eq!(page["b"], ["a", "c"]);
    let sources = Crates::from([("a".to_owned(), Vec::new()), ("c".to_owned(), vec!["a".to_owned()])]);
    assert_eq!(
        differences(&page, &sources),
        ["'b': [a, c] on the page, no crate in src", "'c': no crate on the page, [a] in src"]
    );
    assert!(differences(&page, &page).is_empty());
}
