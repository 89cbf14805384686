//! The text form in which Prometheus reads metrics, line by line.

use std::borrow::Cow;

/// One line with a value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample<'a> {
    /// The name with its labels, as the line has them.
    pub series: &'a str,
    pub value: f64,
}

/// The samples of a page. Comments, and lines that are none, are left out.
pub fn samples(page: &str) -> impl Iterator<Item = Sample<'_>> {
    page.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
        let (series, rest) = line.split_at_checked(end_of_series(line)?)?;
        // The value, and maybe a time.
        let value = rest.split_whitespace().next()?.parse().ok()?;
        Some(Sample { series: series.trim(), value })
    })
}

/// Labels may have blanks and braces inside of their quotation marks.
fn end_of_series(line: &str) -> Option<usize> {
    let first = line.find(|c: char| c == '{' || c.is_whitespace())?;
    if line.as_bytes().get(first) != Some(&b'{') {
        return Some(first);
    }
    let (mut is_quoted, mut is_escaped) = (false, false);
    for (at, byte) in line.bytes().enumerate().skip(first) {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_quoted => is_escaped = true,
            b'"' => is_quoted = !is_quoted,
            b'}' if !is_quoted => return Some(at + 1),
            _ => {}
        }
    }
    None
}

impl<'a> Sample<'a> {
    pub fn name(&self) -> &'a str {
        self.series.split('{').next().unwrap_or_default()
    }

    /// The labels in their order, with their values as they were meant.
    pub fn labels(&self) -> Labels<'a> {
        let inside = self.series.split_once('{').map_or("", |(_, rest)| rest.strip_suffix('}').unwrap_or(rest));
        Labels(inside)
    }
}

/// Ends early where the text is broken.
#[derive(Debug, Clone)]
pub struct Labels<'a>(&'a str);

impl<'a> Iterator for Labels<'a> {
    type Item = (&'a str, Cow<'a, str>);

    fn next(&mut self) -> Option<Self::Item> {
        let (name, rest) = self.0.split_once("=\"")?;
        let mut is_escaped = false;
        let end = rest.bytes().position(|byte| {
            let is_end = byte == b'"' && !is_escaped;
            is_escaped = byte == b'\\' && !is_escaped;
            is_end
        })?;
        let (value, behind) = rest.split_at_checked(end)?;
        self.0 = behind.strip_prefix('"').unwrap_or_default().trim_start_matches([',', ' ']);
        Some((name.trim(), unescaped(value)))
    }
}

fn unescaped(value: &str) -> Cow<'_, str> {
    if !value.contains('\\') {
        return Cow::Borrowed(value);
    }
    let (mut text, mut chars) = (String::with_capacity(value.len()), value.chars());
    while let Some(c) = chars.next() {
        match (c, c == '\\') {
            (_, true) => match chars.next() {
                Some('n') => text.push('\n'),
                Some(other) => text.push(other),
                None => {}
            },
            (c, false) => text.push(c),
        }
    }
    Cow::Owned(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_read() {
        let page = "# HELP a b\n# TYPE a gauge\na 1\nb{x=\"y } z\",q=\"1\"} 2.5e3 1700000000\n\nc\nd nonsense\ne NaN\n\
                    f{x=\"1\nopen{x=\"}\" 3\ng{} +Inf\nh{a=\"b\"} 1 # {trace_id=\"x\"} 0.5\n";
        let found: Vec<_> = samples(page).map(|sample| (sample.series, sample.value)).collect();
        assert!(found[2].1.is_nan());
        let plain: Vec<_> = found.into_iter().filter(|(name, _)| *name != "e").collect();
        let infinite = f64::INFINITY;
        let expected = [("a", 1.0), ("b{x=\"y } z\",q=\"1\"}", 2500.0), ("g{}", infinite), ("h{a=\"b\"}", 1.0)];
        assert_eq!(plain, expected);
    }

    #[test]
    fn labels_are_read_with_what_is_escaped() {
        let labels = |series| -> Vec<(String, String)> {
            let sample = Sample { series, value: 0.0 };
            sample.labels().map(|(name, value)| (name.to_owned(), value.into_owned())).collect()
        };
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(labels("a"), []);
        assert_eq!(labels("a{}"), []);
        let both = [pair("x", "1,\"2\"=\\}\nn"), pair("y", "")];
        assert_eq!(labels(r#"a{x="1,\"2\"=\\}\nn",y=""}"#), both);
        assert_eq!(labels(r#"a{x="1", y="2",}"#), [pair("x", "1"), pair("y", "2")]);
        assert_eq!(labels(r#"a{x="1",y="2}"#), [pair("x", "1")], "broken from there on");
        assert_eq!(Sample { series: r#"a{x="{"}"#, value: 0.0 }.name(), "a");
    }
}
