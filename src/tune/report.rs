//! What is shown of a run: a few lines for the terminal, JSON, CSV, and a page. All of them are made from one outcome.

pub mod csv;
pub mod html;
pub mod json;
pub mod text;

use super::statistics::Interval;

/// What was not measured.
const NONE: &str = "n/a";

/// With three significant digits.
fn number(value: f64) -> String {
    if !value.is_finite() {
        return NONE.to_owned();
    }
    let digits = match value.abs() {
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        size if size >= 0.1 => 3,
        0.0 => 0,
        _ => 4,
    };
    format!("{value:.digits$}")
}

fn optional(value: Option<f64>) -> String {
    value.map_or_else(|| NONE.to_owned(), number)
}

/// A mean with the half of its interval.
fn plus_minus(interval: Option<Interval>) -> String {
    match interval {
        Some(interval) if interval.high.is_finite() => {
            format!("{} ± {}", number(interval.mean), number(interval.high - interval.mean))
        }
        Some(interval) => number(interval.mean),
        None => NONE.to_owned(),
    }
}

fn mib(bytes: Option<u64>) -> Option<f64> {
    bytes.map(|bytes| bytes as f64 / f64::from(1 << 20))
}

/// A gain as percent.
fn percent(factor: f64) -> String {
    let percent = (factor - 1.0) * 100.0;
    match percent.abs() < 10.0 {
        true => format!("{percent:+.1} %"),
        false => format!("{percent:+.0} %"),
    }
}

fn gain(interval: Interval) -> String {
    format!("{} (95 %: {} to {})", percent(interval.mean), percent(interval.low), percent(interval.high))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let cases = [(1234.5, "1234"), (99.94, "99.9"), (1.0, "1.00"), (0.25, "0.250"), (0.0, "0"), (f64::NAN, "n/a")];
        for (value, text) in cases {
            assert_eq!(number(value), text);
        }
        assert_eq!(gain(Interval { mean: 1.5, low: 1.02, high: 2.0 }), "+50 % (95 %: +2.0 % to +100 %)");
        assert_eq!(plus_minus(Some(Interval { mean: 10.0, low: 9.0, high: 11.0 })), "10.0 ± 1.00");
    }
}
