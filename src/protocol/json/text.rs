//! Strings: finding their end, checking their escapes, and undoing them.
//!
//! Most strings have no escape and are used where they lie; the scan reports that, and only the others are copied.

use super::syntax::{Reason, SyntaxError};

/// A string in the text, without its quotes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TextSpan {
    pub start: usize,
    pub end: usize,
    /// True if the bytes must be decoded before use.
    pub escaped: bool,
}

/// How far a scan of a string got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scan {
    /// At its closing quote.
    Done(TextSpan),
    /// At the limit, between two characters.
    Paused(TextSpan),
}

/// Scans the string whose opening quote is at `quote`.
#[cfg(test)]
pub(super) fn scan(input: &[u8], quote: usize) -> Result<TextSpan, SyntaxError> {
    let span = TextSpan { start: quote + 1, end: quote + 1, escaped: false };
    match scan_on(input, span, usize::MAX)? {
        Scan::Done(span) | Scan::Paused(span) => Ok(span),
    }
}

/// Goes on with the scan of a string from the end of what was scanned, up to about `limit`.
pub(super) fn scan_on(input: &[u8], scanned: TextSpan, limit: usize) -> Result<Scan, SyntaxError> {
    let TextSpan { start, end: mut at, mut escaped } = scanned;
    let within = input.get(..limit).unwrap_or(input);
    loop {
        at = plain_end(within, at);
        if at >= limit {
            return Ok(Scan::Paused(TextSpan { start, end: at, escaped }));
        }
        match input.get(at) {
            Some(b'"') => return Ok(Scan::Done(TextSpan { start, end: at, escaped })),
            Some(b'\\') => {
                escaped = true;
                at += escape(&input[at..]).map_err(|reason| SyntaxError::new(reason, at))?.len;
            }
            // Triton's parser takes a NUL byte for the end of the text.
            None | Some(0) => return Err(SyntaxError::new(Reason::MissingQuote, at)),
            Some(_) => return Err(SyntaxError::new(Reason::Encoding, at)),
        }
    }
}

/// Appends what the raw bytes of a string mean. `raw` has passed [`scan`]; bytes of an escape that has not are kept.
pub(super) fn decode(raw: &[u8], into: &mut Vec<u8>) {
    let mut rest = raw;
    while let Some(backslash) = memchr::memchr(b'\\', rest) {
        into.extend_from_slice(&rest[..backslash]);
        rest = &rest[backslash..];
        match escape(rest) {
            Ok(Escape { len, meaning: Meaning::Byte(byte) }) => {
                into.push(byte);
                rest = &rest[len..];
            }
            Ok(Escape { len, meaning: Meaning::Char(char) }) => {
                into.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes());
                rest = &rest[len..];
            }
            Err(_) => {
                into.push(b'\\');
                rest = &rest[1..];
            }
        }
    }
    into.extend_from_slice(rest);
}

struct Escape {
    /// Bytes of the escape, backslash included.
    len: usize,
    meaning: Meaning,
}

enum Meaning {
    Byte(u8),
    Char(char),
}

/// Reads the escape that `text` begins with.
fn escape(text: &[u8]) -> Result<Escape, Reason> {
    let byte = match text.get(1) {
        Some(b'u') => return unicode_escape(text),
        Some(&c @ (b'"' | b'\\' | b'/')) => c,
        Some(b'b') => 8,
        Some(b'f') => 12,
        Some(b'n') => b'\n',
        Some(b'r') => b'\r',
        Some(b't') => b'\t',
        _ => return Err(Reason::Escape),
    };
    Ok(Escape { len: 2, meaning: Meaning::Byte(byte) })
}

fn unicode_escape(text: &[u8]) -> Result<Escape, Reason> {
    let first = hex4(text.get(2..).unwrap_or_default())?;
    if !(0xD800..=0xDFFF).contains(&first) {
        let meaning = Meaning::Char(char::from_u32(first).ok_or(Reason::Surrogate)?);
        return Ok(Escape { len: 6, meaning });
    }
    if first > 0xDBFF || text.get(6..8) != Some(b"\\u") {
        return Err(Reason::Surrogate);
    }
    let second = hex4(text.get(8..).unwrap_or_default())?;
    if !(0xDC00..=0xDFFF).contains(&second) {
        return Err(Reason::Surrogate);
    }
    let code_point = (((first - 0xD800) << 10) | (second - 0xDC00)) + 0x10000;
    Ok(Escape { len: 12, meaning: Meaning::Char(char::from_u32(code_point).ok_or(Reason::Surrogate)?) })
}

fn hex4(text: &[u8]) -> Result<u32, Reason> {
    let digits = text.get(..4).ok_or(Reason::HexDigit)?;
    digits.iter().try_fold(0, |value, &digit| {
        let digit = char::from(digit).to_digit(16).ok_or(Reason::HexDigit)?;
        Ok(value << 4 | digit)
    })
}

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGHS: u64 = 0x8080_8080_8080_8080;

/// The first position from `at` on whose byte is a quote, a backslash or a control character; eight bytes a step.
pub(super) fn plain_end(input: &[u8], mut at: usize) -> usize {
    while let Some(Ok(eight)) = input.get(at..at + 8).map(<[u8; 8]>::try_from) {
        let word = u64::from_le_bytes(eight);
        let below = |limit: u64| move |word: u64| word.wrapping_sub(ONES * limit) & !word & HIGHS;
        let is = |byte: u8| below(1)(word ^ (ONES * u64::from(byte)));
        let special = below(0x20)(word) | is(b'"') | is(b'\\');
        if special != 0 {
            // Borrows run upwards only, so the lowest mark is always a true one.
            return at + special.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    let tail = input.get(at..).unwrap_or_default();
    at + tail.iter().position(|&byte| byte < 0x20 || matches!(byte, b'"' | b'\\')).unwrap_or(tail.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wide_scan_agrees_with_a_plain_one() {
        let mut text: Vec<u8> = (0..64).map(|i| b'a' + i % 26).collect();
        for byte in 0..=255 {
            for place in 0..40 {
                let kept = std::mem::replace(&mut text[place], byte);
                let special = byte < 0x20 || byte == b'"' || byte == b'\\';
                let expected = if special { place } else { text.len() };
                for from in 0..=place {
                    assert_eq!(plain_end(&text, from), expected, "byte {byte} at {place} from {from}");
                }
                text[place] = kept;
            }
        }
        assert_eq!(plain_end(b"abc", 3), 3);
        assert_eq!(plain_end(b"abc", 9), 9);
    }

    #[test]
    fn escapes_become_what_they_mean() {
        let cases: [(&str, &str); 8] = [
            (r#"\"\\\/\b\f\n\r\t"#, "\"\\/\u{8}\u{c}\n\r\t"),
            (r"\u0041\u00e9\u20AC", "Aé€"),
            (r"\ud83d\ude00!", "😀!"),
            (r"\u0000", "\0"),
            ("plain", "plain"),
            ("", ""),
            (r"a\nb", "a\nb"),
            (r"\uFFFF", "\u{ffff}"),
        ];
        for (raw, meant) in cases {
            let quoted = format!("\"{raw}\" tail");
            let span = scan(quoted.as_bytes(), 0).unwrap();
            assert_eq!((span.start, span.end), (1, 1 + raw.len()));
            assert_eq!(span.escaped, raw.contains('\\'));
            let mut decoded = Vec::new();
            decode(raw.as_bytes(), &mut decoded);
            assert_eq!(decoded, meant.as_bytes(), "{raw}");
        }
    }

    #[test]
    fn broken_strings_say_where() {
        let cases: [(&[u8], Reason, usize); 14] = [
            (br#""abc"#, Reason::MissingQuote, 4),
            (b"\"a\0b\"", Reason::MissingQuote, 2),
            (b"\"a\nb\"", Reason::Encoding, 2),
            (br#""a\x""#, Reason::Escape, 2),
            (br#""\"#, Reason::Escape, 1),
            (br#""\u12G4""#, Reason::HexDigit, 1),
            (br#""\u12"#, Reason::HexDigit, 1),
            (br#""\u+123""#, Reason::HexDigit, 1),
            (br#""ab\ud800""#, Reason::Surrogate, 3),
            (br#""\ud800\n""#, Reason::Surrogate, 1),
            (br#""\ud800\u0041""#, Reason::Surrogate, 1),
            (br#""\ud800\u00""#, Reason::HexDigit, 1),
            (br#""\udc00""#, Reason::Surrogate, 1),
            (br#"""#, Reason::MissingQuote, 1),
        ];
        for (text, reason, offset) in cases {
            assert_eq!(scan(text, 0), Err(SyntaxError::new(reason, offset)), "{}", String::from_utf8_lossy(text));
        }
    }

    #[test]
    fn decoding_what_was_never_checked_does_not_panic() {
        for raw in [&br"\"[..], br"\u", br"\u12", br"\ud800\u", br"\q", br"a\"] {
            let mut decoded = Vec::new();
            decode(raw, &mut decoded);
            assert_eq!(decoded, raw);
        }
    }
}
