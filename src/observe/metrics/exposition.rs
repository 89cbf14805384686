//! The Prometheus text format: one family after the other, `# HELP` and `# TYPE` only above samples.
//!
//! Names and labels are chosen by backends and model configurations, so everything that could end a line or a quoted
//! value is escaped here and nowhere else.

use std::collections::HashSet;
use std::fmt::{self, Write};

/// Kinds of families this build exposes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
    Summary,
}

impl fmt::Display for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
            Kind::Summary => "summary",
        })
    }
}

/// A sample's value; integral ones print without a decimal point (contract/metrics.md section 1).
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value {
    Integer(u64),
    Real(f64),
}

impl Value {
    pub fn as_f64(self) -> f64 {
        match self {
            Value::Integer(value) => value as f64,
            Value::Real(value) => value,
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Value::Integer(value) => write!(formatter, "{value}"),
            Value::Real(value) if value.is_nan() => formatter.write_str("NaN"),
            Value::Real(f64::INFINITY) => formatter.write_str("+Inf"),
            Value::Real(f64::NEG_INFINITY) => formatter.write_str("-Inf"),
            // Beyond 1e17 the digits of Display are noise and there may be 300 of them.
            Value::Real(value) if value != 0.0 && !(1e-6..1e17).contains(&value.abs()) => {
                write!(formatter, "{value:e}")
            }
            Value::Real(value) => write!(formatter, "{value}"),
        }
    }
}

/// The text under construction.
#[derive(Debug, Default)]
pub struct Exposition {
    text: String,
}

impl Exposition {
    /// Starts a family. It writes its heading with its first sample.
    pub fn family<'a>(&'a mut self, name: &'a str, help: &'a str, kind: Kind) -> Family<'a> {
        Family { text: &mut self.text, name, help, kind, has_sample: false }
    }

    /// Adds the samples of `more`, which has this family alone, behind those that the family has here. Series that are
    /// here already stay as they are.
    pub fn add_to_family(&mut self, name: &str, more: Exposition) {
        // Behind the line of its help. No label holds a line break.
        let heading = format!("\n# TYPE {name} ");
        let Some(start) = self.text.find(&heading) else {
            self.text.push_str(&more.text);
            return;
        };
        let end = self.text[start..].find("\n# HELP ").map_or(self.text.len(), |at| start + at + 1);
        let series_of = |line: &str| line.rsplit_once(' ').map(|(series, _)| series.to_owned());
        let here: HashSet<String> = self.text[start..end].lines().filter_map(series_of).collect();
        let is_new = |line: &&str| series_of(line).is_some_and(|series| !here.contains(&series));
        let lines = more.text.split_inclusive('\n').filter(|line| !line.starts_with('#')).filter(is_new);
        let added: String = lines.collect();
        self.text.insert_str(end, &added);
    }

    pub fn into_text(self) -> String {
        self.text
    }
}

pub struct Family<'a> {
    text: &'a mut String,
    name: &'a str,
    help: &'a str,
    kind: Kind,
    has_sample: bool,
}

impl Family<'_> {
    /// `labels` is the text between the braces, as [`push_label`] makes it; it may be empty.
    pub fn sample(&mut self, labels: &str, value: Value) {
        self.sample_of("", labels, value);
    }

    /// The samples of a histogram: all values, their sum, and for each of the `bounds` how many are not above it;
    /// `counts` are those of each bucket alone, the last one has no bound.
    pub fn histogram(&mut self, labels: &str, bounds: &[f64], counts: &[u64], sum: Value) {
        let all = counts.iter().fold(0u64, |all, count| all.wrapping_add(*count));
        self.sample_of("_count", labels, Value::Integer(all));
        self.sample_of("_sum", labels, sum);
        let (mut so_far, mut bucket_labels) = (0u64, String::new());
        for (bound, count) in bounds.iter().zip(counts) {
            so_far = so_far.wrapping_add(*count);
            self.bucket(&mut bucket_labels, labels, Value::Real(*bound), so_far);
        }
        self.bucket(&mut bucket_labels, labels, Value::Real(f64::INFINITY), all);
    }

    fn bucket(&mut self, text: &mut String, labels: &str, bound: Value, count: u64) {
        text.clear();
        text.push_str(labels);
        push_label(text, "le", &bound.to_string());
        self.sample_of("_bucket", text, Value::Integer(count));
    }

    /// The samples of a summary: all values, their sum, and quantiles of the recent ones, which are no numbers where
    /// there are none.
    pub fn summary(&mut self, labels: &str, quantiles: &[(f64, Option<f64>)], count: u64, sum: u64) {
        self.sample_of("_count", labels, Value::Integer(count));
        self.sample_of("_sum", labels, Value::Integer(sum));
        for (quantile, value) in quantiles {
            let mut text = labels.to_owned();
            push_label(&mut text, "quantile", &Value::Real(*quantile).to_string());
            self.sample_of("", &text, Value::Real(value.unwrap_or(f64::NAN)));
        }
    }

    fn sample_of(&mut self, suffix: &str, labels: &str, value: Value) {
        if !self.has_sample {
            self.has_sample = true;
            self.heading();
        }
        self.text.push_str(self.name);
        self.text.push_str(suffix);
        if !labels.is_empty() {
            self.text.push('{');
            self.text.push_str(labels);
            self.text.push('}');
        }
        // Writing to a String cannot fail.
        let _ = writeln!(self.text, " {value}");
    }

    fn heading(&mut self) {
        let _ = write!(self.text, "# HELP {} ", self.name);
        for char in self.help.chars() {
            match char {
                '\\' => self.text.push_str("\\\\"),
                '\n' => self.text.push_str("\\n"),
                // Not a line end in the format, but one for readers that split lines generously.
                '\r' => self.text.push(' '),
                char => self.text.push(char),
            }
        }
        let _ = writeln!(self.text, "\n# TYPE {} {}", self.name, self.kind);
    }
}

/// Appends `name="value"`, after a comma where something precedes it.
pub fn push_label(labels: &mut String, name: &str, value: &str) {
    if !labels.is_empty() {
        labels.push(',');
    }
    labels.push_str(name);
    labels.push_str("=\"");
    for char in value.chars() {
        match char {
            '\\' => labels.push_str("\\\\"),
            '"' => labels.push_str("\\\""),
            '\n' => labels.push_str("\\n"),
            char => labels.push(char),
        }
    }
    labels.push('"');
}

/// `[a-zA-Z_:][a-zA-Z0-9_:]*`
pub fn is_metric_name(name: &str) -> bool {
    !name.starts_with(|first: char| first.is_ascii_digit())
        && !name.is_empty()
        && name.chars().all(|char| char.is_ascii_alphanumeric() || char == '_' || char == ':')
}

/// `[a-zA-Z_][a-zA-Z0-9_]*`, and not `__…`: those are the Prometheus server's own. Nor `le` and `quantile`, where the
/// kind's samples use them.
pub fn is_label_name(name: &str, kind: Kind) -> bool {
    let is_taken = match kind {
        Kind::Histogram => name == "le",
        Kind::Summary => name == "quantile",
        Kind::Counter | Kind::Gauge => false,
    };
    is_metric_name(name) && !name.contains(':') && !name.starts_with("__") && !is_taken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integral_values_have_no_decimal_point() {
        let expected = [
            (Value::Integer(0), "0"),
            (Value::Integer(u64::MAX), "18446744073709551615"),
            (Value::Real(0.0), "0"),
            (Value::Real(3.0), "3"),
            (Value::Real(-2.5), "-2.5"),
            (Value::Real(0.1), "0.1"),
            (Value::Real(9_007_199_254_740_992.0), "9007199254740992"),
            (Value::Real(1e300), "1e300"),
            (Value::Real(2.5e-9), "2.5e-9"),
            (Value::Real(f64::NAN), "NaN"),
            (Value::Real(f64::INFINITY), "+Inf"),
            (Value::Real(f64::NEG_INFINITY), "-Inf"),
        ];
        for (value, text) in expected {
            assert_eq!(value.to_string(), text);
        }
    }

    #[test]
    fn samples_are_added_to_a_family_that_is_here() {
        let mut page = Exposition::default();
        // A label that looks like the heading of another family.
        let mut label = String::new();
        push_label(&mut label, "a", "# TYPE two gauge");
        page.family("one", "x", Kind::Gauge).sample(&label, Value::Integer(1));
        page.family("two", "y", Kind::Gauge).sample("a=\"b\"", Value::Integer(2));
        page.family("two_more", "z", Kind::Gauge).sample("", Value::Integer(3));
        let mut more = Exposition::default();
        let mut samples = more.family("two", "not this", Kind::Gauge);
        for (labels, value) in [("a=\"b\"", 8), ("a=\"c\"", 9), ("", 10)] {
            samples.sample(labels, Value::Integer(value));
        }
        page.add_to_family("two", more);
        let expected = "# HELP one x\n# TYPE one gauge\none{a=\"# TYPE two gauge\"} 1\n\
                        # HELP two y\n# TYPE two gauge\ntwo{a=\"b\"} 2\ntwo{a=\"c\"} 9\ntwo 10\n\
                        # HELP two_more z\n# TYPE two_more gauge\ntwo_more 3\n";
        assert_eq!(page.into_text(), expected);
    }

    #[test]
    fn histograms_and_summaries_have_their_lines() {
        let mut exposition = Exposition::default();
        exposition.family("h", "x", Kind::Histogram).histogram(
            "a=\"1\"",
            &[0.5, 100.0],
            &[1, 2, 3],
            Value::Integer(77),
        );
        exposition.family("s", "y", Kind::Summary).summary("", &[(0.5, Some(3.5)), (0.99, None)], 4, 9);
        let expected = "# HELP h x\n# TYPE h histogram\nh_count{a=\"1\"} 6\nh_sum{a=\"1\"} 77\n\
                        h_bucket{a=\"1\",le=\"0.5\"} 1\nh_bucket{a=\"1\",le=\"100\"} 3\n\
                        h_bucket{a=\"1\",le=\"+Inf\"} 6\n\
                        # HELP s y\n# TYPE s summary\ns_count 4\ns_sum 9\n\
                        s{quantile=\"0.5\"} 3.5\ns{quantile=\"0.99\"} NaN\n";
        assert_eq!(exposition.into_text(), expected);
    }

    #[test]
    fn a_family_without_samples_leaves_no_trace() {
        let mut exposition = Exposition::default();
        exposition.family("empty", "help", Kind::Counter);
        assert_eq!(exposition.into_text(), "");
    }

    #[test]
    fn help_and_labels_cannot_break_out() {
        let mut labels = String::new();
        push_label(&mut labels, "a", "x\"} 1\nevil 2\\");
        push_label(&mut labels, "b", "");
        assert_eq!(labels, r#"a="x\"} 1\nevil 2\\",b="""#);
        let mut exposition = Exposition::default();
        let mut family = exposition.family("f", "two\nlines \\ and \r more", Kind::Gauge);
        family.sample(&labels, Value::Integer(7));
        family.sample("", Value::Real(0.5));
        let text = exposition.into_text();
        let expected = "# HELP f two\\nlines \\\\ and   more\n# TYPE f gauge\n\
                        f{a=\"x\\\"} 1\\nevil 2\\\\\",b=\"\"} 7\nf 0.5\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn names_follow_the_grammar() {
        for good in ["a", "_a", "a1", "A_b"] {
            assert!(is_metric_name(good) && is_label_name(good, Kind::Gauge), "{good}");
        }
        assert!(is_metric_name("a:b") && !is_label_name("a:b", Kind::Gauge));
        assert!(is_metric_name("__a") && !is_label_name("__a", Kind::Gauge));
        for bad in ["", "1a", "a b", "a-b", "ä", "a\n", "a{"] {
            assert!(!is_metric_name(bad) && !is_label_name(bad, Kind::Gauge), "{bad}");
        }
        assert!(is_label_name("le", Kind::Counter) && !is_label_name("le", Kind::Histogram));
        assert!(is_label_name("quantile", Kind::Histogram) && !is_label_name("quantile", Kind::Summary));
    }
}
