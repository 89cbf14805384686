//! Compares the tables of bounds in docs/design.md with the sources: each constant that a row names has the value in
//! the row.

use super::tables::{PAGE, Row, code_of, place, rows_below};
use super::{Source, demand_none, sources, without_tests};

/// The tables lie below this heading.
const HEADING: &str = "Bounds";

/// A constant that the last column names.
#[derive(Debug)]
struct Named {
    file: String,
    name: String,
    /// The value after it, if there is one.
    value: Option<f64>,
}

/// A value as the page shows it: in nanoseconds where it is a time.
fn value_of(text: &str) -> Option<f64> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != ',' && c != '.').unwrap_or(text.len());
    let number: f64 = text[..digits].trim_end_matches(['.', ',']).replace(',', "").parse().ok()?;
    let unit = text[digits..].trim_start();
    let unit = &unit[..unit.find(|c: char| !c.is_alphanumeric()).unwrap_or(unit.len())];
    Some(number * factor(unit).unwrap_or(1.0))
}

fn factor(unit: &str) -> Option<f64> {
    match unit {
        "KiB" => Some(1024.0),
        "MiB" => Some(1024.0 * 1024.0),
        "GiB" => Some(1024.0 * 1024.0 * 1024.0),
        "ns" => Some(1.0),
        "µs" => Some(1e3),
        "ms" => Some(1e6),
        "s" => Some(1e9),
        _ => None,
    }
}

/// All values in a text.
fn values_in(text: &str) -> Vec<f64> {
    let begins = |(at, c): &(usize, char)| {
        c.is_ascii_digit() && !text[..*at].ends_with(|c: char| c.is_alphanumeric() || ",._".contains(c))
    };
    text.char_indices().filter(begins).filter_map(|(at, _)| value_of(&text[at..])).collect()
}

/// The constants of a cell: `` `file.rs` `NAME`, `NAME` = value ``.
fn named(cell: &str) -> Result<Vec<Named>, String> {
    let mut found: Vec<Named> = Vec::new();
    let mut file = None;
    for (index, code) in code_of(cell).enumerate() {
        if code.ends_with(".rs") {
            file = Some(place(code).to_owned());
            continue;
        }
        let file = file.clone().ok_or_else(|| format!("no file stands before `{code}`"))?;
        let behind = cell.split('`').nth(2 * index + 2).unwrap_or_default();
        let value =
            behind.trim_start().strip_prefix('=').map(|value| value_of(value).ok_or("no value stands behind ="));
        found.push(Named { file, name: code.to_owned(), value: value.transpose()? });
    }
    if found.is_empty() { Err("the row names no constant".to_owned()) } else { Ok(found) }
}

/// The expression to which a file sets a constant, or a field of a default.
fn set_to(all: &[Source], code: &str, path: &str) -> Option<String> {
    let name = path.rsplit("::").next().unwrap_or(path);
    let is_constant = name.chars().all(|c| c.is_uppercase() || c.is_ascii_digit() || c == '_');
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    for (at, _) in code.match_indices(name) {
        let (before, behind) = (&code[..at], &code[at + name.len()..]);
        let Some(behind) = behind.strip_prefix(':').filter(|_| !before.ends_with(is_word)) else { continue };
        if is_constant {
            if before.trim_end().ends_with("const") {
                return Some(behind.split_once('=')?.1.split(';').next()?.trim().to_owned());
            }
        } else if let Some(end) = end_of_field(behind) {
            let value = behind[..end].trim();
            // A declaration has a type there.
            if evaluated(all, code, value).is_some() {
                return Some(value.to_owned());
            }
        }
    }
    None
}

fn end_of_field(behind: &str) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, c) in behind.char_indices() {
        match c {
            '(' => depth += 1,
            ')' if depth > 0 => depth -= 1,
            ',' | '}' | ';' if depth == 0 => return Some(at),
            _ => {}
        }
    }
    None
}

/// The value of an expression of a file: in nanoseconds where it is a duration.
fn evaluated(all: &[Source], code: &str, expression: &str) -> Option<f64> {
    let mut parser = Parser { all, code, rest: expression.trim() };
    let value = parser.expression(0)?;
    parser.rest.trim().is_empty().then_some(value)
}

/// Parses the expressions of constants: numbers, other constants, `+ - * / <<`, casts and durations.
struct Parser<'a> {
    all: &'a [Source],
    code: &'a str,
    rest: &'a str,
}

impl Parser<'_> {
    fn eat(&mut self, token: &str) -> bool {
        let rest = self.rest.trim_start();
        let is_there = rest.starts_with(token);
        self.rest = if is_there { &rest[token.len()..] } else { rest };
        is_there
    }

    fn expression(&mut self, level: usize) -> Option<f64> {
        const LEVELS: [&[&str]; 3] = [&["<<", ">>"], &["+", "-"], &["*", "/"]];
        let Some(operators) = LEVELS.get(level) else { return self.operand() };
        let mut value = self.expression(level + 1)?;
        while let Some(operator) = operators.iter().find(|operator| self.eat(operator)) {
            let other = self.expression(level + 1)?;
            value = match *operator {
                "<<" => value * other.exp2(),
                ">>" => (value / other.exp2()).floor(),
                "+" => value + other,
                "-" => value - other,
                "*" => value * other,
                _ => (value / other).floor(),
            };
        }
        Some(value)
    }

    fn operand(&mut self) -> Option<f64> {
        let mut value = if self.eat("(") {
            let value = self.expression(0)?;
            self.eat(")").then_some(value)?
        } else {
            self.word()?
        };
        while self.eat("as ") {
            self.identifier();
        }
        if value.fract() != 0.0 {
            value = (value * 1e9).round() / 1e9;
        }
        Some(value)
    }

    fn identifier(&mut self) -> &str {
        let rest = self.rest.trim_start();
        let end = rest.find(|c: char| !c.is_alphanumeric() && !"_:.".contains(c)).unwrap_or(rest.len());
        self.rest = &rest[end..];
        &rest[..end]
    }

    fn word(&mut self) -> Option<f64> {
        let word = self.identifier().to_owned();
        if word.starts_with(|c: char| c.is_ascii_digit()) {
            let digits = word.replace('_', "");
            return match digits.strip_prefix("0x") {
                Some(digits) => u64::from_str_radix(digits, 16).ok().map(|value| value as f64),
                None => digits.parse().ok(),
            };
        }
        let of_type = |bits: i32| 2_f64.powi(bits) - 1.0;
        match word.as_str() {
            "u16::MAX" => return Some(of_type(16)),
            "i32::MAX" => return Some(of_type(31)),
            "u32::MAX" => return Some(of_type(32)),
            _ => {}
        }
        if let Some(unit) = word.strip_prefix("Duration::from_") {
            let scale = match unit {
                "secs" => "s",
                "millis" => "ms",
                "micros" => "µs",
                _ => "ns",
            };
            return self
                .eat("(")
                .then(|| self.expression(0))
                .flatten()
                .filter(|_| self.eat(")"))
                .zip(factor(scale))
                .map(|(value, factor)| value * factor);
        }
        let is_constant = word.rsplit("::").next()?.chars().all(|c| c.is_uppercase() || c.is_ascii_digit() || c == '_');
        if !is_constant {
            return None;
        }
        if let Some(set) = set_to(self.all, self.code, &word) {
            return evaluated(self.all, self.code, &set);
        }
        // It is defined in another file; its name is enough if all constants of that name have the same value.
        let others = self.all.iter().filter_map(|source| {
            let set = set_to(&[], &source.code, &word)?;
            evaluated(&[], &source.code, &set)
        });
        let others: Vec<f64> = others.collect();
        others.first().copied().filter(|value| others.iter().all(|other| other == value))
    }
}

/// A number whose name denotes a time, as a time.
fn timed(name: &str, value: f64) -> f64 {
    let unit = |ends: &[&str], unit| ends.iter().any(|end| name.ends_with(end)).then_some(unit);
    let unit = unit(&["_NS", "_ns"], "ns").or(unit(&["_MS", "_MS_MAX"], "ms")).or(unit(&["_S", "_s"], "s"));
    let is_rate = name.ends_with("_per_s");
    unit.filter(|_| !is_rate).and_then(factor).map_or(value, |factor| value * factor)
}

/// Differences between the rows and the sources.
fn differences(rows: &[Row], all: &[Source]) -> Vec<String> {
    let mut findings = Vec::new();
    for row in rows {
        let mut wrong = |why: String| findings.push(format!("{PAGE}:{}: {why}", row.line));
        let [_, bound, beyond, set_by] = &row.cells[..] else {
            wrong("the row says what, its bound, what is beyond it and what sets it".to_owned());
            continue;
        };
        if beyond.is_empty() {
            wrong("the row does not say what is beyond the bound".to_owned());
        }
        let names = match named(set_by) {
            Ok(names) => names,
            Err(why) => {
                wrong(why);
                continue;
            }
        };
        let shown = values_in(bound);
        for Named { file, name, value } in names {
            let source = all.iter().find(|source| place(&source.path) == file);
            let Some(source) = source else {
                wrong(format!("there is no src/{file}"));
                continue;
            };
            let code = without_tests(&source.code);
            let set = set_to(all, &code, &name).map(|set| (evaluated(all, &code, &set), set));
            match set {
                None => wrong(format!("src/{file} sets no `{name}`")),
                Some((None, set)) => wrong(format!("`{name}` of src/{file} is `{set}`, which this test cannot read")),
                Some((Some(is), set)) => {
                    let is = timed(name.rsplit("::").next().unwrap_or(&name), is);
                    let is_shown = value.map_or_else(|| shown.contains(&is), |value| value == is);
                    if !is_shown {
                        wrong(format!("`{name}` of src/{file} is {set}, which the row does not say"));
                    }
                }
            }
        }
    }
    findings
}

#[test]
fn each_bound_is_the_constant_that_sets_it() {
    let rows = rows_below(HEADING);
    assert!(rows.len() > 100, "the bounds are found");
    demand_none("the tables of bounds", differences(&rows, &sources("src")));
}

#[test]
fn a_bound_that_is_none_or_another_is_found() {
    let source =
        |path: &str, text: &str| Source { path: path.to_owned(), text: text.to_owned(), code: super::blank_out(text) };
    let all = [
        source(
            "a.rs",
            "pub const MOST: usize = 16 * KIB + (2 << 1); const KIB: usize = 1 << 10; const WAIT_NS: u64 = 5_000_000; \
             const PAUSE: Duration = Duration::from_secs(2 * 30); const ODD: usize = size_of::<u8>(); \
             const FAR: u32 = 2 * LONGEST;\n\
             #[cfg(test)]\nmod tests {\n    const TESTED: usize = 1;\n}\n",
        ),
        source(
            "room/lib.rs",
            "struct Limits { head: usize, wait_s: u32 } fn d() { Limits { head: 64 << 10, wait_s: 7, share: 0.5 } } \
             impl Limits { const LONGEST: u32 = u16::MAX as u32; const LEAST: f64 = Limits::LONGEST as f64 / 2; }",
        ),
    ];
    let is_found = |bound: &str, set_by: &str| {
        let cells = ["what", bound, "refused", set_by].map(str::to_owned).to_vec();
        !differences(&[Row { line: 7, cells }], &all).is_empty()
    };
    for (bound, set_by) in [
        ("16,388 each", "`a.rs` `MOST`"),
        ("all", "`a.rs` `MOST` = 16,388, `KIB` = 1 KiB"),
        ("5 ms, then 60 s", "`a.rs` `WAIT_NS`, `PAUSE`"),
        ("64 KiB; 7 s; half; 65,535", "`room.rs` `Limits::head`, `Limits::wait_s`, `share` = 0.5, `Limits::LONGEST`"),
        ("131,070", "`a.rs` `FAR`"),
        ("1 KiB", "`a.rs` `KIB`; `room/lib.rs` `Limits::LEAST` = 32,767"),
    ] {
        assert!(!is_found(bound, set_by), "{bound}: {set_by}");
    }
    for (bound, set_by) in [
        ("16,389 each", "`a.rs` `MOST`"),
        ("16,388", "`a.rs` `MOST` = 16,389"),
        ("16,388", "`a.rs` `MORE`"),
        ("16,388", "`b.rs` `MOST`"),
        ("16,388", "`MOST`"),
        ("16,388", "`a.rs`"),
        ("5 s", "`a.rs` `WAIT_NS`"),
        ("1", "`a.rs` `ODD`"),
        ("1", "`a.rs` `TESTED`"),
        ("64 KiB", "`room.rs` `Limits::wait_s`"),
    ] {
        assert!(is_found(bound, set_by), "{bound}: {set_by}");
    }
    assert!(!differences(&[Row { line: 7, cells: vec!["what".to_owned(), "1".to_owned()] }], &all).is_empty());
}
