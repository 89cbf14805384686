//! Figures as people read them: three digits, a unit, and `n/a` where a server does not export one.

use super::histogram::Quantile;

pub const ABSENT: &str = "n/a";

/// `0`, `0.12`, `3.4`, `123`, `12.3k`, `4.5M`.
pub fn number(value: f64) -> String {
    let size = value.abs();
    let scaled = |divisor: f64, unit: &str| format!("{}{unit}", digits(value / divisor));
    match () {
        () if !value.is_finite() => ABSENT.to_owned(),
        () if size < 0.005 => "0".to_owned(),
        () if size < 9_999.5 => digits(value),
        () if size < 999_500.0 => scaled(1e3, "k"),
        () if size < 999.5e6 => scaled(1e6, "M"),
        () => scaled(1e9, "G"),
    }
}

fn digits(value: f64) -> String {
    match value.abs() {
        size if size < 9.995 => {
            let text = format!("{value:.2}");
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        }
        size if size < 99.95 => format!("{value:.1}").trim_end_matches(".0").to_owned(),
        _ => format!("{value:.0}"),
    }
}

pub fn some_number(value: Option<f64>) -> String {
    value.map_or(ABSENT.to_owned(), number)
}

/// `12us`, `1.23ms`, `4.5s`.
pub fn duration_us(value: f64) -> String {
    let (divisor, unit) = match value.abs() {
        size if !size.is_finite() => return ABSENT.to_owned(),
        size if size < 999.5 => (1.0, "us"),
        size if size < 999_500.0 => (1e3, "ms"),
        _ => (1e6, "s"),
    };
    let value = if unit == "us" && value >= 10.0 { value.round() } else { value };
    format!("{}{unit}", digits(value / divisor))
}

pub fn some_duration_us(value: Option<f64>) -> String {
    value.map_or(ABSENT.to_owned(), duration_us)
}

pub fn quantile_us(value: Option<Quantile>) -> String {
    match value {
        None => ABSENT.to_owned(),
        Some(Quantile::At(value)) => duration_us(value),
        Some(Quantile::Above(bound)) => format!(">{}", duration_us(bound)),
    }
}

/// `512 B`, `1.5 MiB`.
pub fn bytes(value: f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    if !value.is_finite() {
        return ABSENT.to_owned();
    }
    let (mut value, mut at) = (value, 0);
    while value >= 1023.5 && at + 1 < units.len() {
        value /= 1024.0;
        at += 1;
    }
    format!("{} {}", digits(value), units.get(at).copied().unwrap_or_default())
}

pub fn some_bytes(value: Option<f64>) -> String {
    value.map_or(ABSENT.to_owned(), bytes)
}

/// `45s`, `12m 3s`, `3h 12m`, `4d 3h`.
pub fn uptime(secs: u64) -> String {
    let (minutes, hours, days) = (secs / 60, secs / 3600, secs / 86_400);
    match () {
        () if days > 0 => format!("{days}d {}h", hours % 24),
        () if hours > 0 => format!("{hours}h {}m", minutes % 60),
        () if minutes > 0 => format!("{minutes}m {}s", secs % 60),
        () => format!("{secs}s"),
    }
}

/// A part of 1 as whole percent.
pub fn percent(value: Option<f64>) -> String {
    value.filter(|value| value.is_finite()).map_or(ABSENT.to_owned(), |value| format!("{:.0}%", value * 100.0))
}

/// A text of a server without what could steer a terminal.
pub fn plain(text: &str) -> String {
    let is_steering = |c: char| c.is_control() || ('\u{200b}'..='\u{200f}').contains(&c) || is_bidi(c);
    text.chars().map(|c| if is_steering(c) { '?' } else { c }).collect()
}

fn is_bidi(c: char) -> bool {
    ('\u{202a}'..='\u{202e}').contains(&c) || ('\u{2066}'..='\u{2069}').contains(&c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_few_digits_and_a_unit() {
        let numbers = [0.0, 0.004, 0.126, 3.4, 9.996, 99.96, 123.4, 9_999.0, 12_345.0, 4.5e6, 7e9, f64::NAN];
        let shown = ["0", "0", "0.13", "3.4", "10", "100", "123", "9999", "12.3k", "4.5M", "7G", "n/a"];
        assert_eq!(numbers.map(number), shown);
        assert_eq!(
            [0.5, 12.4, 999.0, 1_234.0, 99_960.0, 1.5e6, 9e7].map(duration_us),
            ["0.5us", "12us", "999us", "1.23ms", "100ms", "1.5s", "90s"]
        );
        assert_eq!([0.0, 1023.0, 1536.0, 3.0 * 1024.0 * 1024.0].map(bytes), ["0 B", "1023 B", "1.5 KiB", "3 MiB"]);
        assert_eq!([5, 65, 3_700, 90_000].map(uptime), ["5s", "1m 5s", "1h 1m", "1d 1h"]);
        assert_eq!((percent(Some(0.256)), percent(None)), ("26%".to_owned(), "n/a".to_owned()));
        assert_eq!(quantile_us(Some(Quantile::Above(67e6))), ">67s");
    }

    #[test]
    fn texts_do_not_steer_the_terminal() {
        assert_eq!(plain("a\u{1b}[2Jb\nc\u{202e}d\u{9b}e"), "a?[2Jb?c?d?e");
        assert_eq!(plain("modèle"), "modèle");
    }
}
