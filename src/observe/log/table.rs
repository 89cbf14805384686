//! The tables that are logged at start-up (contract/cli.md section 5).

use std::fmt;

/// Rows of text under headings; its `Display` draws the frame.
#[derive(Debug, Clone)]
pub struct Table {
    rows: Vec<Vec<String>>,
    columns: usize,
}

impl Table {
    pub fn new<const N: usize>(headings: [&str; N]) -> Table {
        Table { rows: vec![headings.map(str::to_owned).to_vec()], columns: N }
    }

    /// Missing cells stay empty; a row has no more cells than there are headings.
    pub fn push<T: Into<String>>(&mut self, cells: impl IntoIterator<Item = T>) {
        let mut row: Vec<String> = cells.into_iter().take(self.columns).map(Into::into).collect();
        row.resize(self.columns, String::new());
        self.rows.push(row);
    }
}

/// The lines of a cell. Control characters of paths and error texts must not reach a terminal.
fn lines_of(cell: &str) -> Vec<String> {
    cell.lines().map(|line| line.replace(char::is_control, " ")).collect()
}

impl fmt::Display for Table {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows: Vec<Vec<Vec<String>>> =
            self.rows.iter().map(|row| row.iter().map(|cell| lines_of(cell)).collect()).collect();
        let mut widths = vec![0; self.columns];
        for row in &rows {
            for (width, lines) in widths.iter_mut().zip(row) {
                let longest = lines.iter().map(|line| line.chars().count()).max();
                *width = longest.unwrap_or(0).max(*width);
            }
        }
        let rule = widths.iter().fold("+".to_owned(), |rule, width| rule + &"-".repeat(width + 2) + "+");
        formatter.write_str(&rule)?;
        for (index, row) in rows.iter().enumerate() {
            let height = row.iter().map(Vec::len).max().unwrap_or(0).max(1);
            for at in 0..height {
                formatter.write_str("\n|")?;
                for (width, lines) in widths.iter().zip(row) {
                    let line = lines.get(at).map_or("", String::as_str);
                    write!(formatter, " {line:width$} |")?;
                }
            }
            if index == 0 {
                write!(formatter, "\n{rule}")?;
            }
        }
        write!(formatter, "\n{rule}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(["Model", "Version", "Status"]);
        table.push(["a_long_name", "1", "READY"]);
        table.push(["b", "-", "UNAVAILABLE: first\nsecond\tline"]);
        table.push(["ü"]);
        table.push(["c", "2", "", "too many"]);
        let expected = "\
+-------------+---------+--------------------+
| Model       | Version | Status             |
+-------------+---------+--------------------+
| a_long_name | 1       | READY              |
| b           | -       | UNAVAILABLE: first |
|             |         | second line        |
| ü           |         |                    |
| c           | 2       |                    |
+-------------+---------+--------------------+";
        assert_eq!(table.to_string(), expected);
    }

    #[test]
    fn a_table_without_rows_shows_its_headings() {
        assert_eq!(Table::new(["A", "B"]).to_string(), "+---+---+\n| A | B |\n+---+---+\n+---+---+");
    }
}
