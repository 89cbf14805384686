//! Reads one call as Python writes it: `f(a=1, b="x")`.
//!
//! The call is put into JSON character by character and read by [`CallReader`], which bounds the nesting and refuses
//! what is malformed. Only literals are values, and only keywords name arguments.

use super::call::{CallReader, CallStep};
use crate::python_json::{Escapes, push_char, push_string};

#[derive(Debug)]
pub struct PythonReader {
    call: CallReader,
    at: At,
    /// The name, key, number or constant that is being read.
    word: String,
    name: String,
    /// Brackets that are open in the value.
    depth: usize,
    /// A comma that has not been written: Python allows one in front of the end.
    has_comma: bool,
    /// The name was passed on.
    has_begun: bool,
}

#[derive(Debug, Clone, Copy)]
enum At {
    Name,
    KeyOrEnd,
    Key,
    BehindKey,
    ValueStart,
    Value,
    Word,
    Text { quote: char },
    Escape { quote: char },
    Hex { quote: char, left: u8, code: u32 },
}

impl PythonReader {
    /// Reads from the first character of the name on.
    pub fn new() -> PythonReader {
        PythonReader {
            call: CallReader::new(Escapes::Kept),
            at: At::Name,
            word: String::new(),
            name: String::new(),
            depth: 0,
            has_comma: false,
            has_begun: false,
        }
    }

    pub fn call(&mut self) -> &mut CallReader {
        &mut self.call
    }

    pub fn push(&mut self, character: char) -> CallStep {
        match (self.at, character) {
            (At::Name, '(') if !self.word.is_empty() => {
                self.name = std::mem::take(&mut self.word);
                self.at = At::KeyOrEnd;
            }
            (At::Name, '.') if !self.word.is_empty() => self.word.push(character),
            (At::Name | At::Key, _) if is_of_name(character, self.word.is_empty()) => self.word.push(character),
            (At::KeyOrEnd, ')') => return self.end(),
            (At::KeyOrEnd, _) if is_of_name(character, true) => {
                self.word.push(character);
                self.at = At::Key;
            }
            (At::Key | At::BehindKey, '=') => self.at = At::ValueStart,
            (At::Key, ' ') => self.at = At::BehindKey,
            (At::KeyOrEnd | At::BehindKey | At::ValueStart | At::Value, ' ' | '\n' | '\t' | '\r') => {}
            (At::ValueStart, _) => return self.begin_value(character),
            (At::Value, _) => return self.push_value(character),
            (At::Word, '0'..='9' | 'a'..='z' | 'A'..='Z' | '.' | '+' | '-') => self.word.push(character),
            (At::Word, _) => {
                let step = self.end_word();
                return if step == CallStep::More { self.push(character) } else { step };
            }
            (At::Text { quote }, _) if character == quote => {
                self.at = At::Value;
                return self.feed("\"");
            }
            (At::Text { quote }, '\\') => self.at = At::Escape { quote },
            (At::Text { .. }, _) => return self.feed_char(character),
            (At::Escape { quote }, _) => return self.push_escape(character, quote),
            (At::Hex { quote, left, code }, _) => return self.push_hex(character, quote, left, code),
            _ => return CallStep::Broken,
        }
        CallStep::More
    }

    /// The key was one: it goes out, after the name if it is the first.
    fn begin_value(&mut self, character: char) -> CallStep {
        self.at = At::Value;
        let step = self.begin();
        if step != CallStep::More {
            return step;
        }
        let mut text = String::new();
        if std::mem::take(&mut self.has_comma) {
            text.push(',');
        }
        push_string(&mut text, &self.word, Escapes::Kept);
        text.push(':');
        self.word.clear();
        match self.feed(&text) {
            CallStep::More => self.push_value(character),
            step => step,
        }
    }

    fn begin(&mut self) -> CallStep {
        if std::mem::replace(&mut self.has_begun, true) {
            return CallStep::More;
        }
        let mut text = String::from("{\"name\":");
        push_string(&mut text, &self.name, Escapes::Kept);
        text.push_str(",\"arguments\":{");
        self.feed(&text)
    }

    fn end(&mut self) -> CallStep {
        match self.begin() {
            CallStep::More => self.feed("}}"),
            step => step,
        }
    }

    /// Takes a character of a value outside of texts and words.
    fn push_value(&mut self, character: char) -> CallStep {
        match character {
            ',' if !self.has_comma => {
                self.has_comma = true;
                if self.depth == 0 {
                    self.at = At::KeyOrEnd;
                }
                return CallStep::More;
            }
            ')' if self.depth == 0 => return self.end(),
            ']' | '}' => {
                let Some(depth) = self.depth.checked_sub(1) else { return CallStep::Broken };
                self.depth = depth;
                self.has_comma = false;
                return self.feed(character.encode_utf8(&mut [0; 4]));
            }
            _ => {}
        }
        if std::mem::take(&mut self.has_comma) {
            let step = self.feed(",");
            if step != CallStep::More {
                return step;
            }
        }
        match character {
            '"' | '\'' => {
                self.at = At::Text { quote: character };
                self.feed("\"")
            }
            '[' | '{' => {
                self.depth += 1;
                self.feed(character.encode_utf8(&mut [0; 4]))
            }
            ':' => self.feed(":"),
            '0'..='9' | 'a'..='z' | 'A'..='Z' | '-' => {
                self.word.push(character);
                self.at = At::Word;
                CallStep::More
            }
            _ => CallStep::Broken,
        }
    }

    fn end_word(&mut self) -> CallStep {
        self.at = At::Value;
        let word = std::mem::take(&mut self.word);
        match word.as_str() {
            "True" | "true" => self.feed("true"),
            "False" | "false" => self.feed("false"),
            "None" | "null" => self.feed("null"),
            number if number.starts_with(|first: char| first == '-' || first.is_ascii_digit()) => self.feed(number),
            _ => CallStep::Broken,
        }
    }

    fn push_escape(&mut self, character: char, quote: char) -> CallStep {
        let hex = |left| At::Hex { quote, left, code: 0 };
        self.at = At::Text { quote };
        match character {
            '\\' | '\'' | '"' => self.feed_char(character),
            'n' => self.feed_char('\n'),
            'r' => self.feed_char('\r'),
            't' => self.feed_char('\t'),
            'b' => self.feed_char('\u{8}'),
            'f' => self.feed_char('\u{c}'),
            'a' => self.feed_char('\u{7}'),
            'v' => self.feed_char('\u{b}'),
            // A line that goes on.
            '\n' => CallStep::More,
            'x' | 'u' | 'U' => {
                self.at = hex(match character {
                    'x' => 2,
                    'u' => 4,
                    _ => 8,
                });
                CallStep::More
            }
            // Octal numbers and names of characters.
            '0'..='7' | 'N' => CallStep::Broken,
            // Python keeps the backslash of what is no escape.
            _ => match self.feed_char('\\') {
                CallStep::More => self.feed_char(character),
                step => step,
            },
        }
    }

    fn push_hex(&mut self, character: char, quote: char, left: u8, code: u32) -> CallStep {
        let Some(digit) = character.to_digit(16) else { return CallStep::Broken };
        let code = code << 4 | digit;
        if left > 1 {
            self.at = At::Hex { quote, left: left - 1, code };
            return CallStep::More;
        }
        self.at = At::Text { quote };
        self.feed_char(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER))
    }

    fn feed_char(&mut self, character: char) -> CallStep {
        let mut text = String::new();
        push_char(&mut text, character, Escapes::Kept);
        self.feed(&text)
    }

    fn feed(&mut self, text: &str) -> CallStep {
        for character in text.chars() {
            let step = self.call.push(character);
            if step != CallStep::More {
                return step;
            }
        }
        CallStep::More
    }
}

/// True if a name of Python may have this character; the first one is no digit.
pub fn is_of_name(character: char, is_first: bool) -> bool {
    character == '_' || if is_first { character.is_alphabetic() } else { character.is_alphanumeric() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<(String, String)> {
        let mut reader = PythonReader::new();
        let mut name = None;
        for (place, character) in text.char_indices() {
            let step = reader.push(character);
            name = name.or(reader.call().take_name());
            match step {
                CallStep::More => {}
                CallStep::Done if place + 1 == text.len() => return Some((name?, reader.call().take_fragment())),
                _ => return None,
            }
        }
        None
    }

    #[test]
    fn calls_become_json() {
        for (text, name, arguments) in [
            ("f()", "f", "{}"),
            ("m.f( a = 1 ,\n b=-2.50,)", "m.f", r#"{"a": 1, "b": -2.5}"#),
            (
                r#"f(a='x"y', b="it's", c='é\n\x41\u00e9\U0001F600\d')"#,
                "f",
                r#"{"a": "x\"y", "b": "it's", "c": "é\nAé😀\\d"}"#,
            ),
            (
                "f(a=True, b=False, c=None, d=true, e=null)",
                "f",
                r#"{"a": true, "b": false, "c": null, "d": true, "e": null}"#,
            ),
            (
                "f(a=[1, 2, ], b={'k': [], 'l': {}}, c=1e5)",
                "f",
                r#"{"a": [1, 2], "b": {"k": [], "l": {}}, "c": 100000.0}"#,
            ),
            ("_f1(größe=0)", "_f1", r#"{"größe": 0}"#),
        ] {
            assert_eq!(read(text).expect(text), (name.into(), arguments.into()), "{text}");
        }
    }

    #[test]
    fn what_is_no_call_with_literals_is_broken() {
        for text in [
            "f",
            "f(1)",
            "f(a)",
            "f(a==1)",
            "f(a=)",
            "f(a=b)",
            "f(a=g())",
            "f(a=1 b=2)",
            "f(a=[1)",
            "f(a=1])",
            "f(a=,b=1)",
            "1f()",
            ".f()",
            "f (a=1)",
            "f(a={1: 2})",
            "f(a=(1,2))",
            "f(a=1,,b=2)",
            r"f(a='\0')",
            r"f(a='\xg')",
            "f(a=f'x')",
            "f(a={'k'})",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn nesting_is_bounded() {
        let text = format!("f(a={}{})", "[".repeat(200), "]".repeat(200));
        assert_eq!(read(&text), None);
    }
}
