//! Reads the tables of docs/design.md, and the names of source files in them.

use std::fs;
use std::path::Path;

/// The page with the tables.
pub const PAGE: &str = "docs/design.md";

/// A row of a table, without its head.
pub struct Row {
    pub line: usize,
    pub cells: Vec<String>,
}

/// The rows of all tables between a heading of the second level and the next one.
pub fn rows_below(heading: &str) -> Vec<Row> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(root.join(PAGE)).expect("the page with the tables");
    let rows = rows_of(&text, heading);
    assert!(!rows.is_empty(), "{PAGE} has no table below '{heading}'");
    rows
}

fn rows_of(text: &str, heading: &str) -> Vec<Row> {
    let title = format!("## {heading}");
    let lines: Vec<(usize, &str)> = text.lines().enumerate().map(|(index, line)| (index + 1, line)).collect();
    let section = lines.split(|(_, line)| line.starts_with("## "));
    // The text after the title, wherever it is on the page.
    let at = lines.iter().filter(|(_, line)| line.starts_with("## ")).position(|(_, line)| *line == title);
    let Some(section) = at.and_then(|at| section.into_iter().nth(at + 1)) else { return Vec::new() };
    let mut rows = Vec::new();
    for (index, (line, text)) in section.iter().enumerate() {
        let is_rule = |text: &str| text.starts_with("|---");
        let is_head = section.get(index + 1).is_some_and(|(_, next)| is_rule(next));
        if text.starts_with('|') && !is_rule(text) && !is_head {
            let cells = text.trim().trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect();
            rows.push(Row { line: *line, cells });
        }
    }
    rows
}

/// The texts between backquotes.
pub fn code_of(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// `net` for `net.rs` and `net/lib.rs`: the place of a module, for both layouts of files.
pub fn place(path: &str) -> &str {
    let path = path.strip_suffix(".rs").unwrap_or(path);
    path.strip_suffix("/lib").unwrap_or(path)
}

#[test]
fn rows_stand_below_their_heading_and_heads_are_none() {
    let text = "# P\n## A\n| x | y |\n|---|---|\n| 1 | 2 |\n### More\n| x |\n|---|\n| 3 |\n## B\n| x |\n|---|\n| 4 |\n";
    let rows =
        |heading| rows_of(text, heading).into_iter().map(|row| (row.line, row.cells.join("+"))).collect::<Vec<_>>();
    assert_eq!(rows("A"), [(5, "1+2".to_owned()), (9, "3".to_owned())]);
    assert_eq!((rows("B").len(), rows("C").len()), (1, 0));
    assert_eq!((place("net.rs"), place("net/lib.rs"), place("net/tls.rs")), ("net", "net", "net/tls"));
}
