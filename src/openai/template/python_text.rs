//! Values as Python's `str()` has them.

use std::fmt::Write;

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

/// Templates can nest lists deeper than a stack allows; Python ends with a RecursionError at a similar depth.
pub(super) const DEPTH_MAX: usize = 200;

/// `str(value)` of anything but strings, which `print` of the environment writes themselves.
pub(super) fn text_of(value: &Value, bytes_max: usize) -> Result<String, Error> {
    let mut text = String::new();
    match value.kind() {
        ValueKind::Number if !value.is_integer() => text.push_str(&float_text(f64::try_from(value.clone())?)),
        ValueKind::Map | ValueKind::Seq | ValueKind::Iterable => write_value(&mut text, value, bytes_max, 0)?,
        _ => write!(text, "{value}")?,
    }
    Ok(text)
}

/// `repr(value)`
fn write_value(text: &mut String, value: &Value, bytes_max: usize, depth: usize) -> Result<(), Error> {
    if depth > DEPTH_MAX {
        return Err(too_deep());
    }
    if text.len() > bytes_max {
        return Err(ErrorKind::OutOfFuel.into());
    }
    match value.kind() {
        ValueKind::String => write_quoted(text, value.as_str().unwrap_or_default()),
        ValueKind::Number if !value.is_integer() => text.push_str(&float_text(f64::try_from(value.clone())?)),
        ValueKind::Undefined => text.push_str("Undefined"),
        ValueKind::Map => {
            text.push('{');
            for (index, (key, item)) in pairs(value).enumerate() {
                text.push_str(if index == 0 { "" } else { ", " });
                write_value(text, &key, bytes_max, depth.saturating_add(1))?;
                text.push_str(": ");
                write_value(text, &item, bytes_max, depth.saturating_add(1))?;
            }
            text.push('}');
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let (open, close) = if value.is_tuple() { ('(', ')') } else { ('[', ']') };
            text.push(open);
            for (index, item) in value.try_iter()?.enumerate() {
                text.push_str(if index == 0 { "" } else { ", " });
                write_value(text, &item, bytes_max, depth.saturating_add(1))?;
            }
            text.push_str(if value.is_tuple() && value.len() == Some(1) { "," } else { "" });
            text.push(close);
        }
        _ => write!(text, "{value}")?,
    }
    Ok(())
}

pub(super) fn too_deep() -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("a value is nested more than {DEPTH_MAX} times"))
}

/// The members of a mapping, in their order.
pub(super) fn pairs(value: &Value) -> impl Iterator<Item = (Value, Value)> {
    value.as_object().and_then(|object| object.try_iter_pairs()).into_iter().flatten()
}

/// `repr` of a string: with the quotation mark that it does not hold.
fn write_quoted(text: &mut String, value: &str) {
    let mark = if value.contains('\'') && !value.contains('"') { '"' } else { '\'' };
    text.push(mark);
    for character in value.chars() {
        match character {
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            _ if character == mark => text.extend(['\\', mark]),
            _ if is_printable(character) => text.push(character),
            _ => write_code(text, character),
        }
    }
    text.push(mark);
}

fn write_code(text: &mut String, character: char) {
    let code = u32::from(character);
    // Writing to a string does not fail.
    let _ = match code {
        0..=0xff => write!(text, "\\x{code:02x}"),
        0x100..=0xffff => write!(text, "\\u{code:04x}"),
        _ => write!(text, "\\U{code:08x}"),
    };
}

/// As `str.isprintable`. Rust's debug text escapes the same categories of characters, and at the start of a string
/// combining ones as well, hence the letter before it.
fn is_printable(character: char) -> bool {
    if character.is_ascii() {
        return !character.is_ascii_control();
    }
    let mut pair = [b'a', 0, 0, 0, 0];
    let [_, rest @ ..] = &mut pair;
    let length = character.encode_utf8(rest).len();
    let pair = pair.get(..=length).and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or_default();
    pair.escape_debug().nth(1) != Some('\\')
}

/// `repr` of a float: the shortest digits, with an exponent below 1e-4 and from 1e16 on.
pub(super) fn float_text(value: f64) -> String {
    if value.is_nan() {
        return "nan".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf".into() } else { "-inf".into() };
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>().unwrap_or_default() {
        // Rust's debug text is without an exponent here, and has `.0` where there is no fraction.
        -4..=15 => format!("{value:?}"),
        exponent if exponent < 0 => format!("{digits}e-{:02}", exponent.unsigned_abs()),
        exponent => format!("{digits}e+{exponent:02}"),
    }
}
