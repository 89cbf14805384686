//! Checks citations: of the contract's files, sections and rules, of the design's decisions and headings, of the pages
//! of docs/, and the targets of links. The index of docs/ must list every page.
//!
//! A citation may continue in the next line of its comment, so a file is read as one line without comment marks.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

/// Files and directories that may contain citations.
const PLACES: [&str; 12] = [
    "src",
    "tests",
    "benches",
    "docs",
    "examples",
    "proto",
    "tuning",
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CHANGELOG.md",
    "build.rs",
];
const ENDINGS: [&str; 15] =
    ["rs", "py", "md", "proto", "c", "cc", "cpp", "h", "js", "mjs", "go", "sh", "toml", "conf", "pbtxt"];
/// Directories that tools create beside the sources.
const FOREIGN: [&str; 4] = ["node_modules", "target", "__pycache__", ".venv"];

const CONTRACT: &str = "docs/contract";
const DESIGN: &str = "docs/design.md";
/// Lists the pages of docs/, each in the row of a table.
const INDEX: &str = "docs/README.md";
/// Names the files of typical changes.
const WALKS: &str = "CONTRIBUTING.md";

/// The parts of a page that can be cited.
#[derive(Default)]
struct Page {
    /// `5`, `1.4`, `1a`.
    sections: BTreeSet<String>,
    /// `H5`.
    rules: BTreeSet<String>,
    headings: BTreeSet<String>,
    /// The headings as links name them.
    anchors: BTreeSet<String>,
}

/// The pages of docs/ and the README, by their paths from the root.
struct Pages(BTreeMap<String, Page>);

impl Page {
    fn of(text: &str) -> Page {
        let mut page = Page::default();
        let mut is_code = false;
        for line in text.lines() {
            is_code ^= line.starts_with("```");
            let title = line.trim_start_matches('#');
            if let Some(title) = title.strip_prefix(' ').filter(|_| title.len() < line.len() && !is_code) {
                page.headings.insert(title.to_owned());
                page.anchors.insert(anchor(title));
                let (first, _) = title.split_once(' ').unwrap_or((title, ""));
                let first = first.strip_suffix('.').unwrap_or(first);
                if first.starts_with(|c: char| c.is_ascii_digit()) {
                    page.sections.insert(first.to_owned());
                }
                page.rules.extend(rule(title).map(str::to_owned));
            }
            page.rules.extend(line.strip_prefix("| ").and_then(rule).map(str::to_owned));
        }
        page
    }
}

impl Pages {
    fn read(root: &Path) -> Pages {
        let pages = texts(root).into_iter().filter(|(path, _)| path.ends_with(".md"));
        Pages(pages.map(|(path, text)| (path, Page::of(&text))).collect())
    }

    /// The citations of a file that do not resolve.
    fn findings(&self, path: &str, text: &str) -> Vec<String> {
        let flat = Flat::of(text);
        let mut findings = Vec::new();
        for (at, _) in flat.text.match_indices(".md") {
            let name_at = flat.text[..at].rfind(|c: char| !is_of_path(c)).map_or(0, |before| before + 1);
            let (name, rest) = (&flat.text[name_at..at + 3], &flat.text[at + 3..]);
            let why = (name.len() > ".md".len()).then(|| self.fault(path, name, rest)).flatten();
            if let Some(why) = why {
                findings.push(format!("{path}:{}: {why}", flat.line(at)));
            }
        }
        if let Some(at) = flat.text.find(concat!("DES", "IGN, ")) {
            findings.push(format!("{path}:{}: the design is cited as {DESIGN}", flat.line(at)));
        }
        findings
    }

    /// The fault of `name`, a path that ends in `.md`, and of the sections named after it.
    fn fault(&self, path: &str, name: &str, rest: &str) -> Option<String> {
        let numbers = numbers_behind(rest, "section");
        let rule = rest.strip_prefix(", ").or(rest.strip_prefix(' ')).and_then(rule);
        let cited = match (name.strip_prefix("docs/"), name.strip_prefix("contract/")) {
            (Some(_), _) => name.to_owned(),
            (_, Some(file)) => format!("{CONTRACT}/{file}"),
            // The contract's files cite each other without a folder.
            _ if path.starts_with(CONTRACT) && !name.contains('/') => format!("{CONTRACT}/{name}"),
            _ if !numbers.is_empty() || rule.is_some() => {
                return Some(format!("{name} is no file of {CONTRACT} (contract/{name})"));
            }
            _ if name == concat!("DES", "IGN.md") => return Some(format!("the design is cited as {DESIGN}")),
            _ => return None,
        };
        let is_contract = cited.starts_with(CONTRACT);
        let Some(page) = self.0.get(&cited) else {
            // Other projects have pages too.
            let is_ours = is_contract && name.contains('/') || name.starts_with("docs/") || !numbers.is_empty();
            let is_foreign = path.starts_with(CONTRACT) && !name.starts_with("contract/");
            return (is_ours && !is_foreign).then(|| format!("there is no {cited}"));
        };
        if is_contract {
            let missing = numbers.into_iter().find(|number| !page.sections.contains(number));
            let missing = missing.map(|number| format!("{cited} has no section {number}"));
            let unknown = rule.filter(|rule| !page.rules.contains(*rule));
            return missing.or(unknown.map(|rule| format!("{cited} has no rule {rule}")));
        }
        if cited != DESIGN {
            return None;
        }
        let numbers = numbers_behind(rest, "decision");
        if let Some(number) = numbers.iter().find(|number| !page.sections.contains(*number)) {
            return Some(format!("{DESIGN} has no decision {number}"));
        }
        let heading = rest.strip_prefix(", ").filter(|_| numbers.is_empty())?;
        let heading = match heading.strip_prefix('"') {
            Some(quoted) => quoted.split('"').next()?,
            None => heading.split([')', '.', ',', ';', ':']).next().filter(|text| begins_large(text))?.trim_end(),
        };
        (!page.headings.contains(heading)).then(|| format!("{DESIGN} has no heading \"{heading}\""))
    }

    /// The links of a page without a target.
    fn broken_links(&self, root: &Path, path: &str, text: &str) -> Vec<String> {
        let flat = Flat::of(&without_code(text));
        let mut broken = Vec::new();
        for (at, _) in flat.text.match_indices("](") {
            let Some((target, _)) = flat.text[at + 2..].split_once(')') else { continue };
            let (file, fragment) = target.split_once('#').unwrap_or((target, ""));
            if target.contains("://") || target.starts_with("mailto:") || target.contains(' ') {
                continue;
            }
            let to = match file {
                "" => path.to_owned(),
                file => joined(path, file),
            };
            let leads_on = match self.0.get(&to) {
                Some(page) => fragment.is_empty() || page.anchors.contains(fragment),
                None => root.join(&to).exists(),
            };
            if !leads_on {
                broken.push(format!("{path}:{}: the link to {target} leads nowhere", flat.line(at)));
            }
        }
        broken
    }
}

/// A text as one line, without comment marks.
struct Flat {
    text: String,
    /// Where each line begins in it.
    begins: Vec<usize>,
}

impl Flat {
    fn of(text: &str) -> Flat {
        let mut flat = Flat { text: String::with_capacity(text.len()), begins: Vec::new() };
        for line in text.lines() {
            flat.begins.push(flat.text.len());
            let line = line.trim();
            let mark = ["///", "//!", "//", "#", "*"].into_iter().find_map(|mark| line.strip_prefix(mark));
            flat.text.push_str(mark.unwrap_or(line).trim_start());
            flat.text.push(' ');
        }
        flat
    }

    /// The number of the line that contained the byte `at`.
    fn line(&self, at: usize) -> usize {
        self.begins.partition_point(|begin| *begin <= at)
    }
}

/// The numbers in ` section 5`, `, sections 2, 4 and 5`.
fn numbers_behind(rest: &str, word: &str) -> Vec<String> {
    let rest = rest.strip_prefix(',').unwrap_or(rest).trim_start();
    let Some(rest) = rest.strip_prefix(word) else { return Vec::new() };
    let mut rest = rest.strip_prefix('s').unwrap_or(rest);
    let mut numbers = Vec::new();
    while let Some((number, behind)) = number(rest) {
        numbers.push(number);
        let next = [", and", ", or", ",", " and", " to", " or"].into_iter().find_map(|mark| behind.strip_prefix(mark));
        let Some(next) = next else { break };
        rest = next;
    }
    numbers
}

/// `7`, `1.4` or `1a` behind a blank, and what follows.
fn number(text: &str) -> Option<(String, &str)> {
    let text = text.strip_prefix(' ')?;
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let mut end = digits(text);
    if end == 0 {
        return None;
    }
    if text[end..].starts_with('.') && digits(&text[end + 1..]) > 0 {
        end += 1 + digits(&text[end + 1..]);
    } else if text[end..].starts_with(['a', 'b']) && !text[end + 1..].starts_with(char::is_alphanumeric) {
        end += 1;
    }
    Some((text[..end].to_owned(), &text[end..]))
}

/// The number of a rule at the start: a capital and digits, and then neither.
fn rule(text: &str) -> Option<&str> {
    let digits = text.get(1..)?.bytes().take_while(u8::is_ascii_digit).count();
    let is_rule = text.starts_with(|c: char| "HGMCLXAPSBO".contains(c)) && (1..=2).contains(&digits);
    let ends = !text[text.len().min(1 + digits)..].starts_with(|c: char| c.is_alphanumeric() || c == '_');
    (is_rule && ends).then(|| &text[..1 + digits])
}

fn begins_large(text: &str) -> bool {
    text.starts_with(|c: char| c.is_uppercase())
}

fn is_of_path(c: char) -> bool {
    c.is_ascii_alphanumeric() || "/._-".contains(c)
}

/// A heading as links name it.
fn anchor(title: &str) -> String {
    let letters = title.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    letters.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// The target of a link in `page` to `file`, as a path from the root.
fn joined(page: &str, file: &str) -> String {
    let mut path = PathBuf::from(page);
    path.pop();
    for part in Path::new(file).components() {
        match part {
            Component::ParentDir => drop(path.pop()),
            Component::Normal(part) => path.push(part),
            _ => {}
        }
    }
    path.to_string_lossy().replace('\\', "/")
}

/// The text with code blanked out: between fences and between backquotes.
fn without_code(text: &str) -> String {
    let mut is_fenced = false;
    let blanked = text.lines().map(|line| {
        let is_fence = line.trim_start().starts_with("```");
        is_fenced ^= is_fence;
        match is_fence || is_fenced {
            true => String::new(),
            false => line.split('`').step_by(2).collect::<Vec<_>>().join("``"),
        }
    });
    blanked.collect::<Vec<_>>().join("\n")
}

/// All texts that may contain citations, by their paths from the root.
fn texts(root: &Path) -> Vec<(String, String)> {
    let mut pending: Vec<PathBuf> = PLACES.iter().map(|place| root.join(place)).collect();
    let mut found = Vec::new();
    while let Some(path) = pending.pop() {
        let ends = |path: &Path| path.extension().is_some_and(|end| ENDINGS.iter().any(|known| end == *known));
        if path.is_dir() {
            let entries = fs::read_dir(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
            let entries = entries.map(|entry| entry.expect("an entry of the tree").path());
            let is_own = |path: &PathBuf| !FOREIGN.iter().any(|name| path.ends_with(name)) && !path.is_symlink();
            pending.extend(entries.filter(is_own));
        } else if ends(&path) || path.extension().is_none() {
            // Programs without a file extension are read if they are text.
            let Ok(text) = fs::read_to_string(&path) else { continue };
            let name = path.strip_prefix(root).expect("a path under the root").to_string_lossy().replace('\\', "/");
            found.push((name, text));
        }
    }
    found.sort();
    found
}

#[test]
fn citations_and_links_lead_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let pages = Pages::read(root);
    assert!(pages.0.contains_key(DESIGN) && pages.0.len() > 40, "the pages of docs/ are found");
    let mut findings = Vec::new();
    for (path, text) in texts(root) {
        findings.extend(pages.findings(&path, &text));
        if path.ends_with(".md") && (path.starts_with("docs/") || !path.contains('/')) {
            findings.extend(pages.broken_links(root, &path, &text));
        }
    }
    super::demand_none("citations and links lead somewhere", findings);
}

#[test]
fn the_index_lists_every_page_once() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let index = fs::read_to_string(root.join(INDEX)).expect("the index of docs/");
    let rows = |page: &str| index.lines().filter(|line| line.starts_with(&format!("| [{page}]({page}) |"))).count();
    let pages = fs::read_dir(root.join("docs")).expect("docs/").flatten();
    let names = pages.filter_map(|page| page.file_name().into_string().ok()).filter(|name| name.ends_with(".md"));
    let unlisted = names.filter(|name| !INDEX.ends_with(&format!("/{name}")) && rows(name) != 1);
    super::demand_none(&format!("{INDEX} has one row for each page"), unlisted.collect());
}

#[test]
fn files_that_the_walks_name_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(root.join(WALKS)).expect("the walks");
    let missing = missing_paths(root, &text);
    super::demand_none(&format!("{WALKS} names files that exist"), missing);
    let planted = "a `src/lib.rs`, `src/none.rs` and `tests/none`, `src/<name>.rs`, `none/none.rs`";
    assert_eq!(missing_paths(root, planted), ["src/none.rs", "tests/none"]);
}

/// The paths between backquotes that do not exist; `<name>` is a placeholder.
fn missing_paths(root: &Path, text: &str) -> Vec<String> {
    let places = PLACES.iter().chain(&[".ci", "include", "model_repository"]);
    let is_ours = |path: &str| places.clone().any(|place| path == *place || path.starts_with(&format!("{place}/")));
    let is_path = |path: &&str| !path.contains(['<', ' ', '\n']) && is_ours(path);
    let named = text.split('`').skip(1).step_by(2).filter(is_path);
    named.filter(|path| !root.join(path).exists()).map(str::to_owned).collect()
}

/// Citations here are written in two halves, so that this file does not match itself.
#[test]
fn a_wrong_citation_is_found() {
    let page = |path: &str, text: &str| (path.to_owned(), Page::of(text));
    let pages = Pages(BTreeMap::from([
        page("docs/contract/http.md", "# H\n## 5. Inference\n| H5 | all | … |\n### 5.1 More\n## 7a. Other\n"),
        page("docs/design.md", "# D\n### 4. Small work\n## Placement\n## In `a` process\n"),
    ]));
    let contract = concat!("contract/http", ".md");
    let design = concat!("docs/design", ".md");
    let is_found = |path: &str, text: String| !pages.findings(path, &text).is_empty();
    for right in [
        format!("// ({contract} section 5)"),
        format!("//! ({contract}\n//! section 5.1, and {contract}\n//! sections 5 and 7a)."),
        format!("/// {contract}, H5: …"),
        format!("# {contract}, \"Request use\""),
        format!("{design}, decision 4, says so; {design}, Placement"),
        format!("({design}, \"Placement\")"),
        concat!("RFC 9113 section 8, and readme", ".md").to_owned(),
    ] {
        assert!(!is_found("src/a.rs", right.clone()), "{right}");
    }
    for wrong in [
        format!("// ({contract} section 6)"),
        format!("//! ({contract}\n//! section 5.2)"),
        format!("// {contract} sections 5 and 9"),
        format!("// {contract}, H6"),
        concat!("contract/none", ".md").to_owned(),
        concat!("docs/none", ".md").to_owned(),
        concat!("(http", ".md section 5)").to_owned(),
        concat!("(http", ".md, section 5)").to_owned(),
        format!("{design}, decisions 4 and 15"),
        format!("({design}, Placements)"),
        concat!("DES", "IGN, decision 4").to_owned(),
        concat!("DES", "IGN", ".md decision 4").to_owned(),
        concat!("since", ".md, H5").to_owned(),
    ] {
        assert!(is_found("src/a.rs", wrong.clone()), "{wrong}");
    }
    assert!(is_found("docs/contract/grpc.md", concat!("http", ".md section 6").to_owned()));
    assert!(!is_found("docs/contract/grpc.md", concat!("http", ".md section 5").to_owned()));
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let broken = |text: String| pages.broken_links(root, "docs/design.md", &text).len();
    let right =
        format!("[a](contract/{}#5-inference) [b](#placement) `[c](d)` [e](#in-a-process) [f](../src)", "http.md");
    assert_eq!(broken(right), 0);
    let wrong = format!("[a](contract/{}) [b](#placements) [c](contract/{}#9) [d](../none)", "none.md", "http.md");
    assert_eq!(broken(wrong), 4);
}
