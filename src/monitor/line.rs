//! Lines of a view, with the looks of their parts; a program maps these to its terminal.

/// How a part of a line looks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Look {
    #[default]
    Plain,
    Bold,
    Dim,
    /// The selected row, the head of a table.
    Reverse,
    Good,
    Warning,
    Bad,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    pub text: String,
    pub look: Look,
}

/// Texts of servers in it are free of control characters ([`super::format::plain`]).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Line {
    pub spans: Vec<Span>,
}

impl Line {
    pub fn of(text: impl Into<String>, look: Look) -> Line {
        Line::default().and(text, look)
    }

    pub fn and(mut self, text: impl Into<String>, look: Look) -> Line {
        self.spans.push(Span { text: text.into(), look });
        self
    }

    pub fn text(&self) -> String {
        self.spans.iter().map(|span| span.text.as_str()).collect()
    }

    /// At most `width` characters.
    pub fn cut(mut self, width: usize) -> Line {
        let mut left = width;
        for span in &mut self.spans {
            let len = span.text.chars().count();
            if len > left {
                span.text = span.text.chars().take(left).collect();
            }
            left -= len.min(left);
        }
        self.spans.retain(|span| !span.text.is_empty());
        self
    }
}

/// A text of exactly `width` characters; `…` marks what is cut off.
pub fn fit(text: &str, width: usize) -> String {
    let len = text.chars().count();
    match len.cmp(&width) {
        std::cmp::Ordering::Greater if width == 0 => String::new(),
        std::cmp::Ordering::Greater => text.chars().take(width - 1).chain(['…']).collect(),
        _ => format!("{text:<width$}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cut_by_characters() {
        let line = Line::of("äbc", Look::Bold).and("def", Look::Plain);
        assert_eq!(line.clone().cut(4).text(), "äbcd");
        assert_eq!(line.clone().cut(2).spans.len(), 1);
        assert_eq!(line.cut(0).text(), "");
        assert_eq!([fit("äbc", 5), fit("äbc", 3), fit("äbc", 2), fit("a", 0)], ["äbc  ", "äbc", "ä…", ""]);
    }
}
