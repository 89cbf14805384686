//! The width of the terminal, and text that fits it: wrapped lines, and tables whose cells are wrapped.
//!
//! Only what a person reads in a terminal is fitted. Where stdout is a file or a pipe each row is one line, and nothing
//! is wrapped.

use std::io::IsTerminal;

/// A narrower terminal cannot hold a table.
const COLUMNS_MIN: usize = 40;
/// Text in wider lines is hard to read.
const TEXT_COLUMNS_MAX: usize = 100;
/// Letters that a column of a fitted table keeps at least.
const CELL_MIN: usize = 8;
/// What stands between two columns.
const GAP: &str = "  ";

/// The columns of the terminal that stdout is: COLUMNS, or what the terminal reports. `None`: it is no terminal.
pub fn columns() -> Option<usize> {
    let stdout = std::io::stdout();
    if !stdout.is_terminal() {
        return None;
    }
    let given = std::env::var("COLUMNS").ok().and_then(|columns| columns.trim().parse().ok());
    let reported = || console::Term::stdout().size_checked().map(|(_, columns)| usize::from(columns));
    given.or_else(reported).filter(|columns| *columns > 0).map(|columns| columns.max(COLUMNS_MIN))
}

/// The width for running text.
pub fn text_columns() -> usize {
    columns().unwrap_or(TEXT_COLUMNS_MAX).min(TEXT_COLUMNS_MAX)
}

/// The words of `text` in lines of at most `columns` letters. A word that is longer than a line is cut into parts.
pub fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let columns = columns.max(1);
    let (mut lines, mut line, mut length) = (Vec::new(), String::new(), 0);
    for word in text.split_whitespace() {
        let mut rest: Vec<char> = word.chars().collect();
        if length > 0 && length + 1 + rest.len() > columns {
            lines.push(std::mem::take(&mut line));
            length = 0;
        }
        if length > 0 {
            line.push(' ');
            length += 1;
        }
        while length == 0 && rest.len() > columns {
            lines.push(rest.drain(..columns).collect());
        }
        length += rest.len();
        line.extend(rest);
    }
    if !line.is_empty() || lines.is_empty() {
        lines.push(line);
    }
    lines
}

/// Paragraphs wrapped to `columns`, each line behind `indent` blanks.
pub fn indented(text: &str, indent: usize, columns: usize) -> String {
    let lines = wrapped(text, columns.saturating_sub(indent).max(CELL_MIN));
    lines.iter().map(|line| format!("{:indent$}{line}\n", "")).collect()
}

/// Fits each line of a report: what is longer than the terminal goes on in further lines, behind the blanks that the
/// line itself begins with and two more. Without a terminal the text stays as it is.
pub fn fitted(text: &str, columns: Option<usize>) -> String {
    let Some(columns) = columns else { return text.to_owned() };
    let mut fitted = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        if line.trim_end_matches('\n').chars().count() <= columns {
            fitted.push_str(line);
            continue;
        }
        let indent = line.chars().take_while(|letter| *letter == ' ').count();
        let hanging = (indent + 2).min(columns / 2);
        let mut lines = wrapped_as_is(line.trim_end_matches('\n'), columns, hanging).into_iter();
        fitted.push_str(&lines.next().unwrap_or_default());
        for more in lines {
            fitted.push_str(&format!("\n{:hanging$}{more}", ""));
        }
        fitted.push_str(if line.ends_with('\n') { "\n" } else { "" });
    }
    fitted
}

/// As [`wrapped`], with the blanks inside a line kept: they align columns. The lines after the first are shorter by
/// `hanging`.
fn wrapped_as_is(line: &str, columns: usize, hanging: usize) -> Vec<String> {
    let letters: Vec<char> = line.chars().collect();
    let (mut lines, mut rest) = (Vec::new(), letters.as_slice());
    let mut room = columns;
    while rest.len() > room {
        let head = rest.get(..=room).unwrap_or(rest);
        let first_word = head.iter().position(|letter| *letter != ' ').unwrap_or(0);
        let blank = head.iter().rposition(|letter| *letter == ' ').filter(|at| *at > first_word);
        let (line, more) = rest.split_at(blank.unwrap_or(room));
        lines.push(line.iter().collect::<String>().trim_end().to_owned());
        let blanks = more.iter().take_while(|letter| **letter == ' ').count();
        rest = more.get(blanks..).unwrap_or_default();
        room = columns.saturating_sub(hanging).max(1);
    }
    lines.push(rest.iter().collect());
    lines
}

/// Rows of cells in aligned columns, the first row being the head. In a terminal that is too narrow for them the widest
/// columns are narrowed and their cells wrapped.
#[derive(Debug, Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
    /// Columns of figures, whose cells end at one edge.
    right: Vec<usize>,
}

impl Table {
    pub fn new(head: &[&str]) -> Table {
        Table { rows: vec![head.iter().map(|cell| (*cell).to_owned()).collect()], right: Vec::new() }
    }

    /// Aligns these columns to the right.
    pub fn right(mut self, columns: impl IntoIterator<Item = usize>) -> Table {
        self.right.extend(columns);
        self
    }

    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    pub fn text(&self, columns: Option<usize>) -> String {
        let widths = self.widths(columns);
        let mut text = String::new();
        for row in &self.rows {
            let cells: Vec<Vec<String>> =
                row.iter().zip(&widths).map(|(cell, width)| wrapped_as_is(cell, *width, 0)).collect();
            let height = cells.iter().map(Vec::len).max().unwrap_or(1);
            for at in 0..height {
                let mut line = String::new();
                for (column, (cell, width)) in cells.iter().zip(&widths).enumerate() {
                    let part = cell.get(at).map(String::as_str).unwrap_or_default();
                    if column > 0 {
                        line.push_str(GAP);
                    }
                    let blanks = " ".repeat(width.saturating_sub(part.chars().count()));
                    match self.right.contains(&column) {
                        true => line.extend([blanks.as_str(), part]),
                        false => line.extend([part, blanks.as_str()]),
                    }
                }
                text.push_str(line.trim_end());
                text.push('\n');
            }
        }
        text
    }

    /// The widest column gives way first.
    fn widths(&self, columns: Option<usize>) -> Vec<usize> {
        let count = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |at: usize| self.rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count()).max();
        let mut widths: Vec<usize> = (0..count).map(|at| width(at).unwrap_or(0).max(1)).collect();
        let gaps = GAP.len() * count.saturating_sub(1);
        while let Some(columns) = columns.filter(|columns| widths.iter().sum::<usize>() + gaps > *columns) {
            let surplus = widths.iter().sum::<usize>() + gaps - columns;
            let next = widths.iter().copied().filter(|width| Some(width) < widths.iter().max()).max().unwrap_or(0);
            let Some(widest) = widths.iter_mut().max().filter(|width| **width > CELL_MIN) else { break };
            let step = (*widest - next).clamp(1, surplus).min(*widest - CELL_MIN);
            *widest -= step;
        }
        widths
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_wrapped_and_long_ones_are_cut() {
        assert_eq!(wrapped("a bc def", 4), ["a bc", "def"]);
        assert_eq!(wrapped("abcdefghij kl", 4), ["abcd", "efgh", "ij", "kl"]);
        assert_eq!(wrapped("", 4), [""]);
        assert_eq!(indented("one two", 2, 10), "  one two\n");
    }

    #[test]
    fn lines_of_a_report_fit_a_terminal_and_stay_whole_elsewhere() {
        let text = "model  a\n  a finding that is a little long  (here)\n\nend";
        assert_eq!(fitted(text, None), text);
        let narrow = fitted(text, Some(20));
        assert_eq!(narrow, "model  a\n  a finding that is\n    a little long\n    (here)\n\nend");
        let path = "/a/path/without/blanks/that/is/longer/than/a/line";
        let cut = fitted(path, Some(20));
        assert!(cut.lines().all(|line| line.chars().count() <= 20), "{cut}");
        assert_eq!(cut.replace("\n  ", ""), path);
    }

    #[test]
    fn tables_narrow_their_widest_column() {
        let mut table = Table::new(&["name", "figure", "what it is"]).right([1]);
        table.row(vec!["a".into(), "1".into(), "a text of several words that is long".into()]);
        table.row(vec!["longer".into(), "1000".into(), String::new()]);
        let whole = table.text(None);
        assert_eq!(
            whole,
            "name    figure  what it is\na            1  a text of several words that is long\nlonger    1000\n"
        );
        let narrow = table.text(Some(40));
        assert!(narrow.lines().all(|line| line.chars().count() <= 40), "{narrow}");
        let words = |text: &str| -> Vec<String> { text.split_whitespace().map(str::to_owned).collect() };
        assert_eq!(words(&narrow).len(), words(&whole).len(), "nothing is cut: {narrow}");
        // A table of many columns gets as narrow as it can.
        assert!(table.text(Some(3)).lines().count() > 3);
    }
}
