//! The Prometheus text format and OpenMetrics 1.0: one family after the other, `# HELP` and `# TYPE` only above its
//! samples.
//!
//! Both formats have the same samples under the same names, so that a query holds for either. OpenMetrics demands that
//! counters end with `_total`, which Triton's do not: these are of the type `unknown` there. Names and labels are
//! chosen by backends and model configurations, so everything that could end a line or a quoted value is escaped here
//! and nowhere else.

use std::collections::{HashMap, HashSet};
use std::fmt::{self, Write};

use crate::exemplars::{Exemplar, PhaseExemplars};

/// The format of a page.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PageFormat {
    /// The text format of Prometheus, version 0.0.4.
    #[default]
    Text,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl PageFormat {
    /// `Content-Type` of a page (contract/http.md section 1).
    pub fn content_type(self) -> &'static str {
        match self {
            PageFormat::Text => "text/plain; charset=utf-8",
            PageFormat::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Kinds of families this build exposes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
    Summary,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
            Kind::Summary => "summary",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
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
    /// The texts of the families that have samples, each apart: with many models the whole has megabytes, which are
    /// then neither searched nor moved for a family that gets more samples.
    families: Vec<String>,
    format: PageFormat,
    /// Bytes that a family is likely to have.
    family_bytes: usize,
    /// Of the families, by their names.
    headings: HashMap<String, Heading>,
}

#[derive(Debug)]
struct Heading {
    /// The name in the heading.
    name: String,
    /// The family's place in the list of texts.
    at: usize,
}

impl Exposition {
    pub fn new(format: PageFormat) -> Exposition {
        Exposition { format, ..Exposition::default() }
    }

    /// One whose families have room for so many bytes each: a text that grows to megabytes is moved again and again.
    pub fn with_capacity(format: PageFormat, family_bytes: usize) -> Exposition {
        Exposition { format, family_bytes, ..Exposition::default() }
    }

    /// Starts a family. It writes its heading with its first sample.
    pub fn family<'a>(&'a mut self, name: &'a str, help: &'a str, kind: Kind) -> Family<'a> {
        Family { exposition: self, name, help, kind, has_sample: false }
    }

    pub fn format(&self) -> PageFormat {
        self.format
    }

    /// Whether the family has a sample.
    pub fn has_family(&self, name: &str) -> bool {
        self.headings.contains_key(name)
    }

    /// Adds the samples of `more`, which has this family alone, behind those that the family has here. Series that are
    /// here already stay as they are.
    pub fn add_to_family(&mut self, name: &str, more: Exposition) {
        let Some(text) = self.headings.get(name).and_then(|heading| self.families.get_mut(heading.at)) else {
            let before = self.families.len();
            let moved = |(family, Heading { name, at })| (family, Heading { name, at: before + at });
            self.headings.extend(more.headings.into_iter().map(moved));
            return self.families.extend(more.families);
        };
        // No label holds a line break.
        fn series_of(line: &str) -> Option<&str> {
            line.rsplit_once(' ').map(|(series, _)| series)
        }
        let here: HashSet<&str> = text.lines().filter_map(series_of).collect();
        let is_new =
            |line: &&str| !line.starts_with('#') && series_of(line).is_some_and(|series| !here.contains(series));
        let lines = more.families.iter().flat_map(|family| family.split_inclusive('\n'));
        let added: String = lines.filter(is_new).collect();
        text.push_str(&added);
    }

    /// The page, a text for each family, which nothing can be added to any more.
    pub fn into_parts(mut self) -> Vec<String> {
        if self.format == PageFormat::OpenMetrics {
            self.families.push("# EOF\n".to_owned());
        }
        self.families
    }

    #[cfg(test)]
    pub fn into_text(self) -> String {
        self.into_parts().concat()
    }

    /// The name and the type in the heading of a family.
    fn heading_of(&self, name: &str, kind: Kind) -> (String, &'static str) {
        if self.format == PageFormat::Text || kind != Kind::Counter {
            return (name.to_owned(), kind.name());
        }
        // The family of a counter is named without the suffix that its sample must have (OpenMetrics 1.0, "Counter").
        // The name may be that of another family; one that is here already keeps it.
        match name.strip_suffix("_total") {
            Some(stem) if !stem.is_empty() && !self.has_family(stem) => (stem.to_owned(), kind.name()),
            _ => (name.to_owned(), "unknown"),
        }
    }
}

pub struct Family<'a> {
    exposition: &'a mut Exposition,
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
    /// `counts` are those of each bucket alone, the last one has no bound. Buckets that are not empty show the newest
    /// of the `exemplars` among their values, where the format has exemplars.
    pub fn histogram(
        &mut self,
        labels: &str,
        bounds: &[f64],
        counts: &[u64],
        sum: Value,
        exemplars: Option<&PhaseExemplars>,
    ) {
        let exemplars = exemplars.filter(|_| self.exposition.format == PageFormat::OpenMetrics);
        let among = |above: f64, to: f64, count: u64| exemplars.filter(|_| count > 0)?.newest(above, to);
        let all = counts.iter().fold(0u64, |all, count| all.wrapping_add(*count));
        self.sample_of("_count", labels, Value::Integer(all));
        self.sample_of("_sum", labels, sum);
        let (mut so_far, mut above, mut text) = (0u64, f64::NEG_INFINITY, String::new());
        for (bound, count) in bounds.iter().zip(counts) {
            so_far = so_far.wrapping_add(*count);
            self.bucket(&mut text, labels, (*bound, so_far), among(above, *bound, *count));
            above = *bound;
        }
        let last = counts.last().copied().unwrap_or_default();
        self.bucket(&mut text, labels, (f64::INFINITY, all), among(above, f64::INFINITY, last));
    }

    fn bucket(&mut self, text: &mut String, labels: &str, (bound, count): (f64, u64), exemplar: Option<&Exemplar>) {
        text.clear();
        text.push_str(labels);
        push_label(text, "le", &self.bound_text(bound));
        self.write_sample("_bucket", text, Value::Integer(count), exemplar);
    }

    /// The text of a bound or a quantile. In OpenMetrics it is the one into which Prometheus 3 turns that of the other
    /// format, so that the series are the same.
    fn bound_text(&self, bound: f64) -> String {
        match self.exposition.format {
            PageFormat::Text => Value::Real(bound).to_string(),
            PageFormat::OpenMetrics => canonical(bound),
        }
    }

    /// The samples of a summary: all values, their sum, and quantiles of the recent ones, which are no numbers where
    /// there are none.
    pub fn summary(&mut self, labels: &str, quantiles: &[(f64, Option<f64>)], count: u64, sum: u64) {
        self.sample_of("_count", labels, Value::Integer(count));
        self.sample_of("_sum", labels, Value::Integer(sum));
        for (quantile, value) in quantiles {
            let mut text = labels.to_owned();
            push_label(&mut text, "quantile", &self.bound_text(*quantile));
            self.sample_of("", &text, Value::Real(value.unwrap_or(f64::NAN)));
        }
    }

    fn sample_of(&mut self, suffix: &str, labels: &str, value: Value) {
        self.write_sample(suffix, labels, value, None);
    }

    fn write_sample(&mut self, suffix: &str, labels: &str, value: Value, exemplar: Option<&Exemplar>) {
        if !self.has_sample {
            self.has_sample = true;
            self.heading();
        }
        // It begins with the heading.
        let Some(text) = self.exposition.families.last_mut() else { return };
        text.push_str(self.name);
        text.push_str(suffix);
        if !labels.is_empty() {
            text.push('{');
            text.push_str(labels);
            text.push('}');
        }
        text.push(' ');
        match value {
            Value::Integer(value) => push_integer(text, value),
            // Writing to a String cannot fail.
            Value::Real(_) => _ = write!(text, "{value}"),
        }
        if let Some(Exemplar { trace, value, at }) = exemplar {
            let (seconds, millis) = (at.as_secs(), at.subsec_millis());
            let _ = write!(text, " # {{trace_id=\"{trace}\"}} {value} {seconds}.{millis:03}");
        }
        text.push('\n');
    }

    fn heading(&mut self) {
        let (name, kind) = self.exposition.heading_of(self.name, self.kind);
        let format = self.exposition.format;
        let mut text = String::with_capacity(self.exposition.family_bytes);
        let _ = write!(text, "# HELP {name} ");
        for char in self.help.chars() {
            match char {
                '\\' => text.push_str("\\\\"),
                '\n' => text.push_str("\\n"),
                '"' if format == PageFormat::OpenMetrics => text.push_str("\\\""),
                // Not a line end in the format, but one for readers that split lines generously.
                '\r' => text.push(' '),
                char => text.push(char),
            }
        }
        let _ = writeln!(text, "\n# TYPE {name} {kind}");
        let unit = UNITS.into_iter().find(|unit| name.strip_suffix(unit).is_some_and(|stem| stem.ends_with('_')));
        if let Some(unit) = unit.filter(|_| format == PageFormat::OpenMetrics) {
            let _ = writeln!(text, "# UNIT {name} {unit}");
        }
        let at = self.exposition.families.len();
        self.exposition.families.push(text);
        self.exposition.headings.insert(self.name.to_owned(), Heading { name, at });
    }
}

/// Base units (OpenMetrics 1.0, "Units and Base Units") by which names of families end.
const UNITS: [&str; 2] = ["bytes", "seconds"];

/// A number as Go formats it with the fewest digits, and never without a point or an exponent: the canonical form of
/// bounds (OpenMetrics 1.0, "Considerations: Canonical Numbers").
fn canonical(number: f64) -> String {
    if !number.is_finite() {
        return Value::Real(number).to_string();
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>().unwrap_or_default() {
        exponent if !(-4..6).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.abs())
        }
        _ => match number.to_string() {
            text if text.contains('.') => text,
            text => text + ".0",
        },
    }
}

/// Appends a number, as `Display` does. Pages consist of them, and this takes a fraction of the time.
fn push_integer(text: &mut String, mut value: u64) {
    let mut digits = [0; 20];
    let mut start = digits.len();
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (value % 10) as u8;
        value /= 10;
        start -= 1;
        if value == 0 {
            break;
        }
    }
    text.push_str(std::str::from_utf8(digits.get(start..).unwrap_or_default()).unwrap_or_default());
}

/// Appends `name="value"`, after a comma where something precedes it.
pub fn push_label(labels: &mut String, name: &str, value: &str) {
    if !labels.is_empty() {
        labels.push(',');
    }
    labels.push_str(name);
    labels.push_str("=\"");
    // Most values have nothing to escape.
    let mut rest = value;
    while let Some(at) = rest.find(['\\', '"', '\n']) {
        let (plain, special) = rest.split_at(at);
        labels.push_str(plain);
        labels.push_str(match special.as_bytes().first() {
            Some(b'\\') => "\\\\",
            Some(b'"') => "\\\"",
            _ => "\\n",
        });
        rest = special.get(1..).unwrap_or_default();
    }
    labels.push_str(rest);
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
    fn integers_are_written_as_they_are_shown() {
        for value in [0, 1, 9, 10, 99, 100, 12_345, u64::MAX / 10, u64::MAX - 1, u64::MAX] {
            let mut text = "x ".to_owned();
            push_integer(&mut text, value);
            assert_eq!(text, format!("x {value}"));
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
            None,
        );
        exposition.family("s", "y", Kind::Summary).summary("", &[(0.5, Some(3.5)), (0.99, None)], 4, 9);
        let expected = "# HELP h x\n# TYPE h histogram\nh_count{a=\"1\"} 6\nh_sum{a=\"1\"} 77\n\
                        h_bucket{a=\"1\",le=\"0.5\"} 1\nh_bucket{a=\"1\",le=\"100\"} 3\n\
                        h_bucket{a=\"1\",le=\"+Inf\"} 6\n\
                        # HELP s y\n# TYPE s summary\ns_count 4\ns_sum 9\n\
                        s{quantile=\"0.5\"} 3.5\ns{quantile=\"0.99\"} NaN\n";
        assert_eq!(exposition.into_text(), expected);
    }

    /// The samples have the names that they have in the other format; only headings, bounds and the end differ.
    #[test]
    fn openmetrics_has_the_same_samples() {
        let mut page = Exposition::new(PageFormat::OpenMetrics);
        page.family("a_count", "say \"x\"", Kind::Counter).sample("", Value::Integer(1));
        page.family("b_seconds_total", "x", Kind::Counter).sample("", Value::Integer(2));
        page.family("c", "x", Kind::Gauge).sample("", Value::Integer(3));
        page.family("c_total", "x", Kind::Counter).sample("", Value::Integer(4));
        page.family("d_bytes", "x", Kind::Gauge).sample("", Value::Integer(5));
        page.family("s", "y", Kind::Summary).summary("", &[(1.0, Some(3.0))], 4, 9);
        let mut more = Exposition::new(PageFormat::OpenMetrics);
        more.family("b_seconds_total", "x", Kind::Counter).sample("a=\"1\"", Value::Integer(6));
        page.add_to_family("b_seconds_total", more);
        let expected = "# HELP a_count say \\\"x\\\"\n# TYPE a_count unknown\na_count 1\n\
                        # HELP b_seconds x\n# TYPE b_seconds counter\n# UNIT b_seconds seconds\n\
                        b_seconds_total 2\nb_seconds_total{a=\"1\"} 6\n\
                        # HELP c x\n# TYPE c gauge\nc 3\n\
                        # HELP c_total x\n# TYPE c_total unknown\nc_total 4\n\
                        # HELP d_bytes x\n# TYPE d_bytes gauge\n# UNIT d_bytes bytes\nd_bytes 5\n\
                        # HELP s y\n# TYPE s summary\ns_count 4\ns_sum 9\ns{quantile=\"1.0\"} 3\n# EOF\n";
        assert_eq!(page.into_text(), expected);
    }

    #[test]
    fn buckets_show_the_newest_exemplar_among_their_values() {
        let mut exemplars = PhaseExemplars::default();
        let at = |secs: u64| std::time::Duration::from_millis(secs * 1000 + 5);
        for (value, secs, trace) in [(16, 1, "old"), (10, 2, "new"), (17, 3, "of an empty bucket"), (70, 4, "last")] {
            exemplars.add(Exemplar { trace: trace.into(), value, at: at(secs) });
        }
        let page = |format: PageFormat| {
            let mut page = Exposition::new(format);
            let mut family = page.family("h", "x", Kind::Histogram);
            family.histogram("", &[16.0, 64.0], &[2, 0, 1], Value::Integer(77), Some(&exemplars));
            page.into_text()
        };
        let expected = "# HELP h x\n# TYPE h histogram\nh_count 3\nh_sum 77\n\
                        h_bucket{le=\"16.0\"} 2 # {trace_id=\"new\"} 10 2.005\nh_bucket{le=\"64.0\"} 2\n\
                        h_bucket{le=\"+Inf\"} 3 # {trace_id=\"last\"} 70 4.005\n# EOF\n";
        assert_eq!(page(PageFormat::OpenMetrics), expected);
        assert!(!page(PageFormat::Text).contains("# {"));
    }

    #[test]
    fn bounds_have_their_canonical_form() {
        for (bound, text) in [
            (0.0, "0.0"),
            (1.0, "1.0"),
            (0.005, "0.005"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (-2.5, "-2.5"),
            (524_288.0, "524288.0"),
            (1_000_000.0, "1e+06"),
            (67_108_864.0, "6.7108864e+07"),
            (f64::INFINITY, "+Inf"),
        ] {
            assert_eq!(canonical(bound), text);
        }
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
