//! Writers: as FastAPI answers (no blanks, characters as they are), and as Python's `json.dumps` (blanks, and characters
//! beyond ASCII escaped if so wanted). Floats have the text of Python's `repr`.

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
    use std::fmt::Write;
    // Writing to a string does not fail.
    let _ = write!(out, "{value}");
}

/// As Python's `repr`: plain from 1e-4 up to below 1e16, else with an exponent of a sign and two digits at least.
pub(super) fn push_float(value: f64, out: &mut String) {
    if !value.is_finite() {
        out.push_str(match value {
            value if value.is_nan() => "NaN",
            value if value > 0.0 => "Infinity",
            _ => "-Infinity",
        });
        return;
    }
    let magnitude = value.abs();
    if magnitude == 0.0 || (1e-4..1e16).contains(&magnitude) {
        let text = format!("{value}");
        out.push_str(&text);
        if !text.contains('.') {
            out.push_str(".0");
        }
        return;
    }
    // Rust's shortest digits are Python's; its exponent has neither a plus nor a leading zero.
    let text = format!("{value:e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    out.push_str(digits);
    let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |exponent| ('-', exponent));
    out.push('e');
    out.push(sign);
    if exponent.len() < 2 {
        out.push('0');
    }
    out.push_str(exponent);
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
