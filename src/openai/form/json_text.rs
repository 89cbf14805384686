//! JSON text as Python writes it: `json.dumps` for engines, compact for the texts of schemas.

use std::fmt::Write as _;

use crate::json::Json;

/// How a text is laid out.
#[derive(Clone, Copy)]
struct Style {
    comma: &'static str,
    colon: &'static str,
    is_ascii: bool,
}

/// As `json.dumps(value)`.
pub(crate) fn python(value: &Json) -> String {
    let mut out = String::new();
    write(value, Style { comma: ", ", colon: ": ", is_ascii: true }, &mut out);
    out
}

/// Without blanks, non-ASCII as it is.
pub(crate) fn compact(value: &Json) -> String {
    let mut out = String::new();
    write(value, Style { comma: ",", colon: ":", is_ascii: false }, &mut out);
    out
}

/// Recurses: the nesting of values is bounded where they are parsed.
fn write(value: &Json, style: Style, out: &mut String) {
    match value {
        Json::Null => out.push_str("null"),
        Json::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
        Json::Int(value) => _ = write!(out, "{value}"),
        Json::Float(value) => float(*value, out),
        Json::Text(text) => string(text, style, out),
        Json::List(values) => {
            out.push('[');
            for (index, value) in values.iter().enumerate() {
                out.push_str(if index == 0 { "" } else { style.comma });
                write(value, style, out);
            }
            out.push(']');
        }
        Json::Object(members) => {
            out.push('{');
            for (index, (name, value)) in members.iter().enumerate() {
                out.push_str(if index == 0 { "" } else { style.comma });
                string(name, style, out);
                out.push_str(style.colon);
                write(value, style, out);
            }
            out.push('}');
        }
    }
}

/// The shortest text that reads back as the number, as Python's `repr` has it.
fn float(value: f64, out: &mut String) {
    if !value.is_finite() {
        let text = if value.is_nan() {
            "NaN"
        } else if value > 0.0 {
            "Infinity"
        } else {
            "-Infinity"
        };
        return out.push_str(text);
    }
    let magnitude = value.abs();
    if magnitude == 0.0 || (1e-4..1e16).contains(&magnitude) {
        _ = write!(out, "{value:?}");
        return;
    }
    // `1e20` and `1.5e-7`; Python wants a sign and two digits.
    let text = format!("{value:e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |exponent| ('-', exponent));
    _ = write!(out, "{digits}e{sign}{exponent:0>2}");
}

fn string(text: &str, style: Style, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if (c as u32) < 0x20 || style.is_ascii && !c.is_ascii() || style.is_ascii && c == '\u{7f}' => {
                let mut units = [0u16; 2];
                for unit in c.encode_utf16(&mut units) {
                    _ = write!(out, "\\u{unit:04x}");
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}
