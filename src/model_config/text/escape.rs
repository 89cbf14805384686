//! The escapes of a text-format string, out and in.

use std::fmt::Write;

/// Resolves the escapes of `token`, a quoted string as the lexer hands it out, onto the end of `out`.
///
/// The error is a sentence about the first bad escape.
pub(super) fn unescape(token: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
    let body = match token {
        [_, body @ .., _] => body,
        _ => return Err("string is not closed".into()),
    };
    let mut rest = body;
    while let [byte, after @ ..] = rest {
        rest = after;
        if *byte == b'\\' {
            rest = escape(rest, out)?;
        } else {
            out.push(*byte);
        }
    }
    Ok(())
}

/// Resolves one escape, whose backslash has been read; returns what follows it.
fn escape<'a>(rest: &'a [u8], out: &mut Vec<u8>) -> Result<&'a [u8], String> {
    let [letter, after @ ..] = rest else {
        return Err("a backslash ends the string".into());
    };
    let byte = match letter {
        b'a' => 0x07,
        b'b' => 0x08,
        b'f' => 0x0C,
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'v' => 0x0B,
        b'\\' | b'\'' | b'"' | b'?' => *letter,
        b'0'..=b'7' => {
            let (value, after) = digits(rest, 8, 3);
            out.push(u8::try_from(value).map_err(|_| format!("octal escape \\{value:o} is more than a byte"))?);
            return Ok(after);
        }
        b'x' | b'X' => {
            let (value, after_digits) = digits(after, 16, 2);
            if after_digits.len() == after.len() {
                return Err("\\x must be followed by hexadecimal digits".into());
            }
            out.push(u8::try_from(value).unwrap_or_default());
            return Ok(after_digits);
        }
        b'u' => return unicode(after, 4, out),
        b'U' => return unicode(after, 8, out),
        _ => return Err(format!("unknown escape \\{}", letter.escape_ascii())),
    };
    out.push(byte);
    Ok(after)
}

/// Reads up to `most` digits of `radix`.
fn digits(bytes: &[u8], radix: u32, most: usize) -> (u32, &[u8]) {
    let mut value: u32 = 0;
    let mut rest = bytes;
    for _ in 0..most {
        let Some((digit, after)) =
            rest.split_first().and_then(|(byte, after)| Some((char::from(*byte).to_digit(radix)?, after)))
        else {
            break;
        };
        value = value.wrapping_mul(radix).wrapping_add(digit);
        rest = after;
    }
    (value, rest)
}

/// `\uXXXX` and `\UXXXXXXXX`; a high surrogate must be followed by `\u` and its low one.
fn unicode<'a>(rest: &'a [u8], width: usize, out: &mut Vec<u8>) -> Result<&'a [u8], String> {
    let (value, mut after) = digits(rest, 16, width);
    if rest.len().saturating_sub(after.len()) != width {
        return Err(format!("\\{} must be followed by {width} hexadecimal digits", if width == 4 { 'u' } else { 'U' }));
    }
    let mut scalar = value;
    if width == 4
        && (0xD800..0xDC00).contains(&value)
        && let [b'\\', b'u', low @ ..] = after
    {
        let (second, after_second) = digits(low, 16, 4);
        if low.len().saturating_sub(after_second.len()) == 4 && (0xDC00..0xE000).contains(&second) {
            scalar = 0x1_0000 + ((value - 0xD800) << 10) + (second - 0xDC00);
            after = after_second;
        }
    }
    let character = char::from_u32(scalar).ok_or_else(|| format!("U+{scalar:04X} is not a Unicode character"))?;
    out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
    Ok(after)
}

/// Writes `text` as a quoted string that [`unescape`] reads back.
pub(super) fn quote(text: &[u8], out: &mut String) {
    out.push('"');
    for chunk in text.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                // Three digits always, so that a digit that follows is not taken for one of them.
                control if control.is_ascii_control() => push_octal(control as u8, out),
                _ => out.push(character),
            }
        }
        for byte in chunk.invalid() {
            push_octal(*byte, out);
        }
    }
    out.push('"');
}

fn push_octal(byte: u8, out: &mut String) {
    // Writing to a String cannot fail.
    let _ = write!(out, "\\{byte:03o}");
}
