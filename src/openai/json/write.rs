//! Writers: as FastAPI answers (no blanks, characters as they are), and as `json.dumps` of Python (blanks, and
//! characters beyond ASCII escaped if so wanted). Floats have the text of `repr`.

use std::fmt::Write;

use super::Json;

const HEXADECIMAL: &[u8; 16] = b"0123456789abcdef";
/// Bytes that are looked at together: short enough for strings of names, long enough for vector instructions.
const BLOCK_LEN: usize = 16;

impl Json {
    /// Without blanks. What JSON cannot say (NaN, infinities) is `null`.
    pub fn compact(&self, out: &mut String) {
        write(self, &Style { item: ",", name: ":", is_ascii: false, has_non_finite: false }, out);
    }

    /// As `json.dumps` writes: `, ` and `: `, and `NaN`, `Infinity`, `-Infinity`.
    pub fn python(&self, out: &mut String, ensure_ascii: bool) {
        write(self, &Style { item: ", ", name: ": ", is_ascii: ensure_ascii, has_non_finite: true }, out);
    }
}

struct Style {
    /// Between items, and between members.
    item: &'static str,
    /// Between a name and its value.
    name: &'static str,
    is_ascii: bool,
    has_non_finite: bool,
}

fn write(value: &Json, style: &Style, out: &mut String) {
    match value {
        Json::Null => out.push_str("null"),
        Json::Bool(true) => out.push_str("true"),
        Json::Bool(false) => out.push_str("false"),
        Json::Int(value) => match i64::try_from(*value) {
            Ok(value) => push_integer(value, out),
            Err(_) => out.push_str(&value.to_string()),
        },
        Json::Float(value) if value.is_finite() || style.has_non_finite => push_float(*value, out),
        Json::Float(_) => out.push_str("null"),
        Json::Text(text) => push_string(text, style.is_ascii, out),
        Json::List(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push_str(style.item);
                }
                write(item, style, out);
            }
            out.push(']');
        }
        Json::Object(members) => {
            out.push('{');
            for (index, (name, value)) in members.iter().enumerate() {
                if index > 0 {
                    out.push_str(style.item);
                }
                push_string(name, style.is_ascii, out);
                out.push_str(style.name);
                write(value, style, out);
            }
            out.push('}');
        }
    }
}

fn push_integer(value: i64, out: &mut String) {
    // Writing to a string does not fail.
    let _ = write!(out, "{value}");
}

/// As Python's `repr`: plain from 1e-4 up to below 1e16, else with an exponent of a sign and two digits at least.
///
/// Digits are the shortest that read back, of several the closest, and of two that are as close the even one, by the
/// crate zmij; the standard library takes the other.
fn push_float(value: f64, out: &mut String) {
    if !value.is_finite() {
        out.push_str(match value {
            value if value.is_nan() => "NaN",
            value if value > 0.0 => "Infinity",
            _ => "-Infinity",
        });
        return;
    }
    let mut buffer = zmij::Buffer::new();
    let text = buffer.format_finite(value);
    // There the crate writes as Python does.
    if value == 0.0 || (1e-4..1e15).contains(&value.abs()) {
        out.push_str(text);
        return;
    }
    let text = text.strip_prefix('-').map_or(text, |magnitude| {
        out.push('-');
        magnitude
    });
    let (digits, exponent) = digits_and_exponent(text);
    let (first, rest) = digits.split_at(1.min(digits.len()));
    if exponent == 15 {
        // The one exponent that Python writes plain and the crate may not.
        let (whole, fraction) = digits.split_at(16.min(digits.len()));
        out.push_str(whole);
        out.extend(std::iter::repeat_n('0', 16_usize.saturating_sub(whole.len())));
        out.push('.');
        out.push_str(if fraction.is_empty() { "0" } else { fraction });
        return;
    }
    out.push_str(first);
    if !rest.is_empty() {
        out.push('.');
        out.push_str(rest);
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    let _ = write!(out, "e{sign}{:02}", exponent.unsigned_abs());
}

/// The significant digits of a positive number, and the exponent of the first of them.
fn digits_and_exponent(text: &str) -> (String, i32) {
    let (text, exponent) = text.split_once('e').unwrap_or((text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let mut digits = [whole, fraction].concat();
    let zeros = digits.bytes().take_while(|digit| *digit == b'0').count();
    digits.drain(..zeros);
    digits.truncate(digits.trim_end_matches('0').len());
    (digits, exponent + whole.len() as i32 - 1 - zeros as i32)
}

fn push_string(text: &str, is_ascii: bool, out: &mut String) {
    out.push('"');
    if is_ascii {
        push_ascii(text, out);
    } else {
        let mut rest = text;
        while let Some(at) = position_of_special(rest.as_bytes()) {
            // A special byte is a character of its own, so both sides of it are whole characters.
            let (plain, special) = rest.split_at(at);
            out.push_str(plain);
            let mut characters = special.chars();
            push_escape(characters.next().unwrap_or_default(), out);
            rest = characters.as_str();
        }
        out.push_str(rest);
    }
    out.push('"');
}

fn push_ascii(text: &str, out: &mut String) {
    for character in text.chars() {
        if matches!(character, ' '..='~') && !matches!(character, '"' | '\\') {
            out.push(character);
        } else {
            push_escape(character, out);
        }
    }
}

fn push_escape(character: char, out: &mut String) {
    match short_escape(character) {
        Some(letter) => {
            out.push('\\');
            out.push(char::from(letter));
        }
        None => {
            for unit in character.encode_utf16(&mut [0; 2]) {
                out.push_str("\\u");
                for shift in [12, 8, 4, 0] {
                    out.push(char::from(hexadecimal(*unit >> shift)));
                }
            }
        }
    }
}

fn short_escape(character: char) -> Option<u8> {
    Some(match character {
        '"' => b'"',
        '\\' => b'\\',
        '\n' => b'n',
        '\r' => b'r',
        '\t' => b't',
        '\u{8}' => b'b',
        '\u{c}' => b'f',
        _ => return None,
    })
}

fn hexadecimal(value: u16) -> u8 {
    HEXADECIMAL[usize::from(value & 15)]
}

/// Writes the inside of a JSON string (without its quotes), characters beyond ASCII as they are.
pub fn escape_into(text: &str, out: &mut Vec<u8>) {
    let mut rest = text.as_bytes();
    out.reserve(rest.len());
    while let Some(at) = position_of_special(rest) {
        let (plain, special) = rest.split_at(at);
        out.extend_from_slice(plain);
        let Some((byte, behind)) = special.split_first() else { return };
        match short_escape(char::from(*byte)) {
            Some(letter) => out.extend_from_slice(&[b'\\', letter]),
            None => {
                let byte = u16::from(*byte);
                out.extend_from_slice(&[b'\\', b'u', b'0', b'0', hexadecimal(byte >> 4), hexadecimal(byte)]);
            }
        }
        rest = behind;
    }
    out.extend_from_slice(rest);
}

/// The first byte that may not stand in a string as it is: a quote, a backslash or a control character.
pub(super) fn position_of_special(bytes: &[u8]) -> Option<usize> {
    let mut passed = 0;
    // Whole blocks without an early exit become vector instructions.
    for block in bytes.chunks_exact(BLOCK_LEN) {
        if block.iter().fold(false, |found, byte| found | is_special(*byte)) {
            break;
        }
        passed += BLOCK_LEN;
    }
    let rest = bytes.get(passed..)?;
    rest.iter().position(|byte| is_special(*byte)).map(|at| passed + at)
}

fn is_special(byte: u8) -> bool {
    byte < 0x20 || byte == b'"' || byte == b'\\'
}
