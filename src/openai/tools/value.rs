//! Re-serialises a JSON value character by character, as Python's `json.dumps(json.loads(text))` would.
//!
//! What is written is always a prefix of the whole text, so that fragments can go out while the value is still being
//! read. Two things differ from Python: a member that comes twice stays twice, because the first is gone already, and a
//! float beyond the range keeps its digits, because `Infinity` is no JSON.

use super::string::{StringReader, StringStep};
use crate::python_json::{Escapes, push_char, push_float};

/// Objects and lists within each other.
pub const DEPTH_MAX: usize = 128;

/// What a character came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    More,
    /// The value is whole, with this character.
    Done,
    /// The value, a number, was whole before this character.
    DoneBefore,
    /// No value continues so.
    Broken,
}

/// Reads one value.
#[derive(Debug)]
pub struct ValueWriter {
    escapes: Escapes,
    /// The containers that are open; true: an object.
    open: Vec<bool>,
    at: At,
}

#[derive(Debug)]
enum At {
    Value,
    /// In a list that has no element yet.
    ValueOrEnd,
    Key,
    KeyOrEnd,
    Colon,
    CommaOrEnd,
    String {
        reader: StringReader,
        is_key: bool,
    },
    Number(String),
    /// `true`, `false` or `null`: what is still to come.
    Word(&'static str),
}

impl ValueWriter {
    pub fn new(escapes: Escapes) -> ValueWriter {
        ValueWriter { escapes, open: Vec::new(), at: At::Value }
    }

    pub fn push(&mut self, character: char, out: &mut String) -> Step {
        match &mut self.at {
            At::String { reader, is_key } => {
                let escapes = self.escapes;
                match reader.push(character, |decoded| push_char(out, decoded, escapes)) {
                    StringStep::More => Step::More,
                    StringStep::Broken => Step::Broken,
                    StringStep::End => {
                        out.push('"');
                        if *is_key {
                            self.at = At::Colon;
                            return Step::More;
                        }
                        self.end_value()
                    }
                }
            }
            At::Number(digits) => match character {
                '0'..='9' | '+' | '-' | '.' | 'e' | 'E' => {
                    digits.push(character);
                    Step::More
                }
                _ => {
                    if !write_number(digits, out) {
                        return Step::Broken;
                    }
                    match self.end_value() {
                        Step::Done => Step::DoneBefore,
                        _ => self.between(character, out),
                    }
                }
            },
            At::Word(rest) => match rest.strip_prefix(character) {
                Some("") => {
                    out.push(character);
                    self.end_value()
                }
                Some(left) => {
                    out.push(character);
                    *rest = left;
                    Step::More
                }
                None => Step::Broken,
            },
            _ => self.between(character, out),
        }
    }

    /// Takes a character outside of strings, numbers and words.
    fn between(&mut self, character: char, out: &mut String) -> Step {
        match (&self.at, character) {
            (_, ' ' | '\t' | '\n' | '\r') => Step::More,
            (At::Value | At::ValueOrEnd, '{' | '[') => {
                if self.open.len() == DEPTH_MAX {
                    return Step::Broken;
                }
                out.push(character);
                self.open.push(character == '{');
                self.at = if character == '{' { At::KeyOrEnd } else { At::ValueOrEnd };
                Step::More
            }
            (At::Value | At::ValueOrEnd, '"') => self.begin_string(false, out),
            (At::Key | At::KeyOrEnd, '"') => self.begin_string(true, out),
            (At::Value | At::ValueOrEnd, '-' | '0'..='9') => {
                self.at = At::Number(character.into());
                Step::More
            }
            (At::Value | At::ValueOrEnd, 't' | 'f' | 'n') => {
                out.push(character);
                self.at = At::Word(match character {
                    't' => "rue",
                    'f' => "alse",
                    _ => "ull",
                });
                Step::More
            }
            (At::Colon, ':') => {
                out.push_str(": ");
                self.at = At::Value;
                Step::More
            }
            (At::CommaOrEnd, ',') => {
                out.push_str(", ");
                self.at = if self.open.last() == Some(&true) { At::Key } else { At::Value };
                Step::More
            }
            (At::CommaOrEnd | At::KeyOrEnd, '}') if self.open.last() == Some(&true) => self.close(character, out),
            (At::CommaOrEnd | At::ValueOrEnd, ']') if self.open.last() == Some(&false) => self.close(character, out),
            _ => Step::Broken,
        }
    }

    fn begin_string(&mut self, is_key: bool, out: &mut String) -> Step {
        out.push('"');
        self.at = At::String { reader: StringReader::default(), is_key };
        Step::More
    }

    fn close(&mut self, character: char, out: &mut String) -> Step {
        out.push(character);
        self.open.pop();
        self.end_value()
    }

    fn end_value(&mut self) -> Step {
        self.at = At::CommaOrEnd;
        if self.open.is_empty() { Step::Done } else { Step::More }
    }
}

/// Writes a number, if the text is one.
fn write_number(text: &str, out: &mut String) -> bool {
    let Some(is_integer) = number_is_integer(text) else { return false };
    match text.parse::<f64>() {
        _ if is_integer => out.push_str(if text == "-0" { "0" } else { text }),
        Ok(value) if value.is_finite() => push_float(out, value),
        _ => out.push_str(text),
    }
    true
}

/// `None`: JSON has no such number.
fn number_is_integer(text: &str) -> Option<bool> {
    let text = text.strip_prefix('-').unwrap_or(text);
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (text, None),
    };
    let (whole, fraction) = match mantissa.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (mantissa, None),
    };
    let are_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_valid = are_digits(whole)
        && (whole.len() == 1 || !whole.starts_with('0'))
        && fraction.is_none_or(are_digits)
        && exponent.is_none_or(|exponent| are_digits(exponent.strip_prefix(['+', '-']).unwrap_or(exponent)));
    is_valid.then_some(fraction.is_none() && exponent.is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The value at the start of the text, written anew, and the rest of the text.
    fn rewritten(text: &str, escapes: Escapes) -> Option<(String, String)> {
        let mut writer = ValueWriter::new(escapes);
        let mut out = String::new();
        for (place, character) in text.char_indices() {
            match writer.push(character, &mut out) {
                Step::More => {}
                Step::Done => return Some((out, text[place + character.len_utf8()..].into())),
                Step::DoneBefore => return Some((out, text[place..].into())),
                Step::Broken => return None,
            }
        }
        None
    }

    #[test]
    fn values_are_written_as_python_writes_them() {
        // What json.dumps(json.loads(text)) of CPython gives.
        for (text, expected) in [
            (r#"{}"#, r#"{}"#),
            (r#"{ }"#, r#"{}"#),
            (r#"[ ]"#, r#"[]"#),
            (r#"{"a":1,"b":[1,2,{"c":null}]}"#, r#"{"a": 1, "b": [1, 2, {"c": null}]}"#),
            ("{\n  \"a\" : true ,\n  \"b\" : false\n}", r#"{"a": true, "b": false}"#),
            (r#"[1.0,1e5,1E-7,-0,-0.0,1e16,0.1]"#, r#"[1.0, 100000.0, 1e-07, 0, -0.0, 1e+16, 0.1]"#),
            (r#"[123456789012345678901234567890]"#, r#"[123456789012345678901234567890]"#),
            (r#"["\u00e9é\ud83d\ude00\/"]"#, r#"["\u00e9\u00e9\ud83d\ude00/"]"#),
        ] {
            assert_eq!(rewritten(text, Escapes::Ascii).unwrap(), (expected.into(), String::new()), "{text}");
        }
        assert_eq!(rewritten(r#"["\u00e9é😀"]"#, Escapes::Kept).unwrap().0, r#"["éé😀"]"#);
    }

    #[test]
    fn a_number_ends_before_what_follows_it() {
        assert_eq!(rewritten("12 ,", Escapes::Kept).unwrap(), ("12".into(), " ,".into()));
        assert_eq!(rewritten("true,", Escapes::Kept).unwrap(), ("true".into(), ",".into()));
    }

    #[test]
    fn a_float_beyond_the_range_keeps_its_digits() {
        assert_eq!(rewritten("[1e999,-1e999]", Escapes::Kept).unwrap().0, "[1e999, -1e999]");
    }

    #[test]
    fn what_is_no_json_is_broken() {
        for text in [
            "[1,]",
            "{\"a\":1,}",
            "{,}",
            "[,]",
            "{1:2}",
            "{\"a\" 1}",
            "[01 ]",
            "[1.]",
            "[.5]",
            "[1e]",
            "[+1]",
            "[-]",
            "[1-2]",
            "[nul]",
            "[truex]",
            "[NaN]",
            "[Infinity]",
            "['a']",
            "[1 2]",
            "{\"a\":1]",
            "[1}",
            "]",
            "}",
            ":",
            "x",
            "[\u{a0}1]",
        ] {
            assert_eq!(rewritten(text, Escapes::Kept), None, "{text}");
        }
    }

    #[test]
    fn nesting_is_bounded() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert!(rewritten(&nested(DEPTH_MAX), Escapes::Kept).is_some());
        assert!(rewritten(&nested(DEPTH_MAX + 1), Escapes::Kept).is_none());
    }
}
