//! Decodes a JSON string character by character.
//!
//! Raw control characters are taken as they are: models write line breaks into strings, and re-serialised they are
//! valid. A surrogate without its pair becomes U+FFFD, which every reader of the arguments accepts.

/// What a character came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StringStep {
    More,
    /// It was the closing quote.
    End,
    /// It cannot follow.
    Broken,
}

/// Reads a string from behind its opening quote.
#[derive(Debug, Default)]
pub struct StringReader {
    escape: Escape,
    /// The first half of a pair of surrogates.
    high: Option<u16>,
}

#[derive(Debug, Default, Clone, Copy)]
enum Escape {
    #[default]
    None,
    Begun,
    Hex {
        digits: u8,
        unit: u16,
    },
}

impl StringReader {
    pub fn push(&mut self, character: char, mut sink: impl FnMut(char)) -> StringStep {
        match self.escape {
            Escape::None => match character {
                '\\' => self.escape = Escape::Begun,
                '"' => {
                    self.end_pair(&mut sink);
                    return StringStep::End;
                }
                _ => {
                    self.end_pair(&mut sink);
                    sink(character);
                }
            },
            Escape::Begun => {
                let decoded = match character {
                    '"' | '\\' | '/' => character,
                    'b' => '\u{8}',
                    'f' => '\u{c}',
                    'n' => '\n',
                    'r' => '\r',
                    't' => '\t',
                    'u' => {
                        self.escape = Escape::Hex { digits: 0, unit: 0 };
                        return StringStep::More;
                    }
                    _ => return StringStep::Broken,
                };
                self.escape = Escape::None;
                self.end_pair(&mut sink);
                sink(decoded);
            }
            Escape::Hex { digits, unit } => {
                let Some(digit) = character.to_digit(16) else { return StringStep::Broken };
                let unit = unit << 4 | digit as u16;
                if digits < 3 {
                    self.escape = Escape::Hex { digits: digits + 1, unit };
                } else {
                    self.escape = Escape::None;
                    self.take_unit(unit, &mut sink);
                }
            }
        }
        StringStep::More
    }

    fn take_unit(&mut self, unit: u16, sink: &mut impl FnMut(char)) {
        if let (Some(high), 0xdc00..=0xdfff) = (self.high, unit) {
            self.high = None;
            let paired = char::decode_utf16([high, unit]).next();
            sink(paired.and_then(Result::ok).unwrap_or(char::REPLACEMENT_CHARACTER));
            return;
        }
        self.end_pair(sink);
        match unit {
            0xd800..=0xdbff => self.high = Some(unit),
            _ => sink(char::from_u32(unit.into()).unwrap_or(char::REPLACEMENT_CHARACTER)),
        }
    }

    /// What follows is no second half.
    fn end_pair(&mut self, sink: &mut impl FnMut(char)) {
        if self.high.take().is_some() {
            sink(char::REPLACEMENT_CHARACTER);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(text: &str) -> Option<String> {
        let mut reader = StringReader::default();
        let mut out = String::new();
        for character in text.chars() {
            match reader.push(character, |decoded| out.push(decoded)) {
                StringStep::More => {}
                StringStep::End => return Some(out),
                StringStep::Broken => return None,
            }
        }
        None
    }

    #[test]
    fn escapes_are_decoded() {
        assert_eq!(decoded(r#"a\"\\\/\b\f\n\r\té\u00e9\ud83d\ude00""#).unwrap(), "a\"\\/\u{8}\u{c}\n\r\té\u{e9}😀");
        assert_eq!(decoded("raw\nline\"").unwrap(), "raw\nline");
    }

    #[test]
    fn surrogates_without_a_pair_are_replaced() {
        assert_eq!(decoded(r#"\ud83d""#).unwrap(), "\u{fffd}");
        assert_eq!(decoded(r#"\ud83dx""#).unwrap(), "\u{fffd}x");
        assert_eq!(decoded(r#"\ud83d\n""#).unwrap(), "\u{fffd}\n");
        assert_eq!(decoded(r#"\ud83d\ud83d\ude00""#).unwrap(), "\u{fffd}😀");
        assert_eq!(decoded(r#"\ude00""#).unwrap(), "\u{fffd}");
    }

    #[test]
    fn bad_escapes_are_refused() {
        assert_eq!(decoded(r#"\x""#), None);
        assert_eq!(decoded(r#"\u00g0""#), None);
        assert_eq!(decoded(r#"\u00""#), None);
    }
}
