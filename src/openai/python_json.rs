//! JSON text as Python's `json.dumps` writes it: characters of strings, and floats.
//!
//! Upstream is a Python program, and its answers hold what `json.dumps` makes of a value (contract/openai.md sections
//! 1.6 and 1.7). Clients that compare texts see no difference only if floats and escapes are the same.

use std::fmt::Write;

/// How characters beyond ASCII are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Escapes {
    /// As `\uXXXX`, in lower case; beyond U+FFFF as two surrogates. Python's default.
    Ascii,
    /// As they are (`ensure_ascii=False`).
    Kept,
}

/// Writes one character of a string.
pub fn push_char(out: &mut String, character: char, escapes: Escapes) {
    match character {
        '"' => out.push_str("\\\""),
        '\\' => out.push_str("\\\\"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        '\u{8}' => out.push_str("\\b"),
        '\u{c}' => out.push_str("\\f"),
        ' '..='~' => out.push(character),
        _ if character < ' ' || escapes == Escapes::Ascii => {
            for unit in character.encode_utf16(&mut [0; 2]) {
                // Writing to a String does not fail.
                let _ = write!(out, "\\u{unit:04x}");
            }
        }
        _ => out.push(character),
    }
}

/// Writes a string with its quotes.
pub fn push_string(out: &mut String, text: &str, escapes: Escapes) {
    out.push('"');
    for character in text.chars() {
        push_char(out, character, escapes);
    }
    out.push('"');
}

/// Writes a finite float as `repr` does: the shortest digits that read back as the same value, always with a point or
/// an exponent; an exponent below 1e-4 and from 1e16 on, with a sign and two digits at least.
pub fn push_float(out: &mut String, value: f64) {
    // Of two shortest texts that are as near, `repr` takes the one with the even digit, and so does zmij, but not
    // `Display`.
    let mut buffer = zmij::Buffer::new();
    let shortest = buffer.format_finite(value.abs());
    let (mantissa, exponent) = shortest.split_once('e').unwrap_or((shortest, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let padded = format!("{whole}{fraction}");
    let digits = padded.trim_start_matches('0');
    // The value is 0.DIGITS times ten to the power of `point`.
    let leading_zeros = padded.len() - digits.len();
    let point = exponent.parse().unwrap_or(0) + whole.len() as i32 - leading_zeros as i32;
    let digits = digits.trim_end_matches('0');

    if value.is_sign_negative() {
        out.push('-');
    }
    if digits.is_empty() {
        out.push_str("0.0");
    } else if !(-3..=16).contains(&point) {
        let (first, rest) = digits.split_at(1);
        let (exponent, dot) = (point - 1, if rest.is_empty() { "" } else { "." });
        let sign = if exponent < 0 { '-' } else { '+' };
        let _ = write!(out, "{first}{dot}{rest}e{sign}{:02}", exponent.unsigned_abs());
    } else if point <= 0 {
        let _ = write!(out, "0.{:0<zeros$}{digits}", "", zeros = point.unsigned_abs() as usize);
    } else {
        let (whole, fraction) = digits.split_at(digits.len().min(point as usize));
        let fraction = if fraction.is_empty() { "0" } else { fraction };
        let _ = write!(out, "{whole:0<width$}.{fraction}", width = point as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_written_as_repr_writes_them() {
        // What `repr` of CPython 3.11 gives.
        for (value, text) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (-0.5, "-0.5"),
            (0.1, "0.1"),
            (738_178_037_438_691.2, "738178037438691.2"),
            (-0.001_25, "-0.00125"),
            (120.0, "120.0"),
            (1e-4, "0.0001"),
            (1e-5, "1e-05"),
            (1.5e-7, "1.5e-07"),
            (-9999.0, "-9999.0"),
            (123_456_789_012_345_680.0, "1.2345678901234568e+17"),
            (1e15, "1000000000000000.0"),
            (9_999_999_999_999_998.0, "9999999999999998.0"),
            (1e16, "1e+16"),
            (1e22, "1e+22"),
            (1e100, "1e+100"),
            (5e-324, "5e-324"),
            (f64::MAX, "1.7976931348623157e+308"),
        ] {
            let mut out = String::new();
            push_float(&mut out, value);
            assert_eq!(out, text);
        }
    }

    #[test]
    fn strings_are_escaped_as_dumps_escapes_them() {
        let text = "a\"\\/\n\r\t\u{8}\u{c}\0\u{1f}\u{7f}é\u{2028}😀";
        let mut out = String::new();
        push_string(&mut out, text, Escapes::Ascii);
        assert_eq!(out, r#""a\"\\/\n\r\t\b\f\u0000\u001f\u007f\u00e9\u2028\ud83d\ude00""#);
        out.clear();
        push_string(&mut out, text, Escapes::Kept);
        assert_eq!(out, "\"a\\\"\\\\/\\n\\r\\t\\b\\f\\u0000\\u001f\u{7f}é\u{2028}😀\"");
    }
}
