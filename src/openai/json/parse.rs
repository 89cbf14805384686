//! The parser: takes what Python's `json.loads` takes, and tells errors with its texts and positions, since clients of
//! Triton's front end see them (contract/openai.md section 1.2).
//!
//! Python knows no bound but its stack. Here nesting, values and names are counted, and each byte is looked at a
//! bounded number of times, so that a body costs no more than its length allows.

use std::collections::HashMap;

use thiserror::Error;

use super::Json;

/// What a text may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Lists and objects inside each other. Functions over [`Json`] recurse that deep.
    pub depth_max: usize,
    /// Values in all, lists and objects among them.
    pub values_max: usize,
    /// Names of members in all.
    pub names_max: usize,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds { depth_max: 200, values_max: 1_000_000, names_max: 250_000 }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ParseError {
    /// `position` counts characters, as Python does.
    #[error("{message}: char {position}")]
    Syntax { message: &'static str, position: usize },
    #[error("the body is not UTF-8: byte {0} does not continue a character")]
    NotUtf8(usize),
    #[error("the body nests lists and objects deeper than {0} levels")]
    TooDeep(usize),
    #[error("the body has more than {0} values")]
    TooManyValues(usize),
    #[error("the body has more than {0} names of members")]
    TooManyNames(usize),
}

/// Objects with at most this many members find a name by looking at all of them.
const FEW_MEMBERS: usize = 16;

impl Json {
    /// Reads a whole text. A byte order mark in front is passed over.
    pub fn parse(bytes: &[u8], bounds: &Bounds) -> Result<Json, ParseError> {
        let text = std::str::from_utf8(bytes).map_err(|error| ParseError::NotUtf8(error.valid_up_to()))?;
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut parser = Parser { text, at: 0, bounds, values: 0, names: 0 };
        parser.blanks();
        let value = parser.value(0).map_err(|error| error.in_text(text))?;
        parser.blanks();
        match parser.peek() {
            None => Ok(value),
            Some(_) => Err(parser.error("Extra data", parser.at).in_text(text)),
        }
    }
}

/// An error at a byte, until characters are counted.
enum Failure {
    Syntax { message: &'static str, byte: usize },
    Bound(ParseError),
}

impl Failure {
    fn in_text(self, text: &str) -> ParseError {
        match self {
            Failure::Bound(error) => error,
            Failure::Syntax { message, byte } => {
                let starts = text.as_bytes().iter().take(byte).filter(|byte| (**byte as i8) >= -0x40);
                ParseError::Syntax { message, position: starts.count() }
            }
        }
    }
}

struct Parser<'a> {
    text: &'a str,
    /// The next byte.
    at: usize,
    bounds: &'a Bounds,
    values: usize,
    names: usize,
}

impl Parser<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn rest(&self) -> &[u8] {
        self.text.as_bytes().get(self.at..).unwrap_or_default()
    }

    fn error(&self, message: &'static str, byte: usize) -> Failure {
        Failure::Syntax { message, byte }
    }

    fn blanks(&mut self) {
        self.at += self.rest().iter().take_while(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r')).count();
    }

    /// Takes a value, without the blanks around it.
    fn value(&mut self, depth: usize) -> Result<Json, Failure> {
        self.values += 1;
        if self.values > self.bounds.values_max {
            return Err(Failure::Bound(ParseError::TooManyValues(self.bounds.values_max)));
        }
        match self.peek() {
            Some(b'"') => self.string().map(Json::Text),
            Some(b'{') => {
                let depth = self.deeper(depth)?;
                self.object(depth)
            }
            Some(b'[') => {
                let depth = self.deeper(depth)?;
                self.list(depth)
            }
            _ => self.scalar(),
        }
    }

    fn deeper(&self, depth: usize) -> Result<usize, Failure> {
        if depth >= self.bounds.depth_max {
            return Err(Failure::Bound(ParseError::TooDeep(self.bounds.depth_max)));
        }
        Ok(depth + 1)
    }

    fn scalar(&mut self) -> Result<Json, Failure> {
        const WORDS: [(&[u8], Json); 6] = [
            (b"null", Json::Null),
            (b"true", Json::Bool(true)),
            (b"false", Json::Bool(false)),
            (b"NaN", Json::Float(f64::NAN)),
            (b"Infinity", Json::Float(f64::INFINITY)),
            (b"-Infinity", Json::Float(f64::NEG_INFINITY)),
        ];
        for (word, value) in WORDS {
            if self.rest().starts_with(word) {
                self.at += word.len();
                return Ok(value);
            }
        }
        self.number()
    }

    fn number(&mut self) -> Result<Json, Failure> {
        let rest = self.rest();
        let byte = |at: usize| rest.get(at).copied().unwrap_or(b' ');
        let digits = |at: usize| rest.iter().skip(at).take_while(|byte| byte.is_ascii_digit()).count();
        let sign = usize::from(byte(0) == b'-');
        let mut end = match byte(sign) {
            b'0' => sign + 1,
            b'1'..=b'9' => sign + digits(sign),
            _ => return Err(self.error("Expecting value", self.at)),
        };
        let whole = end;
        if byte(end) == b'.' && digits(end + 1) > 0 {
            end += 1 + digits(end + 1);
        }
        if matches!(byte(end), b'e' | b'E') {
            let signed = usize::from(matches!(byte(end + 1), b'+' | b'-'));
            let count = digits(end + 1 + signed);
            if count > 0 {
                end += 1 + signed + count;
            }
        }
        let is_int = end == whole;
        let text = self.text.get(self.at..self.at + end).unwrap_or_default();
        self.at += end;
        if is_int && let Ok(value) = text.parse() {
            return Ok(Json::Int(value));
        }
        Ok(Json::Float(text.parse().unwrap_or(f64::NAN)))
    }

    fn list(&mut self, depth: usize) -> Result<Json, Failure> {
        let mut items = Vec::new();
        self.at += 1;
        self.blanks();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(Json::List(items));
        }
        loop {
            items.push(self.value(depth)?);
            self.blanks();
            match self.peek() {
                Some(b']') => {
                    self.at += 1;
                    return Ok(Json::List(items));
                }
                Some(b',') => self.at += 1,
                _ => return Err(self.error("Expecting ',' delimiter", self.at)),
            }
            self.blanks();
        }
    }

    fn object(&mut self, depth: usize) -> Result<Json, Failure> {
        let mut members = Vec::new();
        self.at += 1;
        self.blanks();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(Json::Object(members));
        }
        loop {
            if self.peek() != Some(b'"') {
                return Err(self.error("Expecting property name enclosed in double quotes", self.at));
            }
            self.names += 1;
            if self.names > self.bounds.names_max {
                return Err(Failure::Bound(ParseError::TooManyNames(self.bounds.names_max)));
            }
            let name = self.string()?;
            self.blanks();
            if self.peek() != Some(b':') {
                return Err(self.error("Expecting ':' delimiter", self.at));
            }
            self.at += 1;
            self.blanks();
            let value = self.value(depth)?;
            members.push((name, value));
            self.blanks();
            match self.peek() {
                Some(b'}') => {
                    self.at += 1;
                    return Ok(Json::Object(unique(members)));
                }
                Some(b',') => self.at += 1,
                _ => return Err(self.error("Expecting ',' delimiter", self.at)),
            }
            self.blanks();
        }
    }

    /// Takes a string, from its opening quote on.
    fn string(&mut self) -> Result<String, Failure> {
        let begin = self.at;
        self.at += 1;
        let mut text = String::new();
        loop {
            let Some(plain) = super::write::position_of_special(self.rest()) else {
                return Err(self.error("Unterminated string starting at", begin));
            };
            // Specials are ASCII: these are whole characters.
            text.push_str(self.text.get(self.at..self.at + plain).unwrap_or_default());
            self.at += plain;
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(text);
                }
                Some(b'\\') => text.push(self.escape(begin)?),
                _ => return Err(self.error("Invalid control character at", self.at)),
            }
        }
    }

    /// Takes an escape, from its backslash on.
    fn escape(&mut self, begin: usize) -> Result<char, Failure> {
        let backslash = self.at;
        let Some(letter) = self.rest().get(1).copied() else {
            return Err(self.error("Unterminated string starting at", begin));
        };
        let plain = match letter {
            b'"' | b'\\' | b'/' => char::from(letter),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => return self.unicode_escape(),
            _ => return Err(self.error("Invalid \\escape", backslash)),
        };
        self.at += 2;
        Ok(plain)
    }

    fn unicode_escape(&mut self) -> Result<char, Failure> {
        let unit = self.unit(self.at)?;
        self.at += 6;
        // Python looks for the second half only where something follows it.
        if (0xD800..0xDC00).contains(&unit) && self.rest().starts_with(b"\\u") && self.has_characters_after_pair() {
            let low = self.unit(self.at)?;
            if (0xDC00..0xE000).contains(&low) {
                self.at += 6;
                let code = 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00);
                return Ok(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
            }
        }
        Ok(char::from_u32(unit).unwrap_or(char::REPLACEMENT_CHARACTER))
    }

    /// At least seven characters are left: the escape of a second half, and one behind it.
    fn has_characters_after_pair(&self) -> bool {
        self.text.get(self.at..).is_some_and(|rest| rest.chars().take(7).count() == 7)
    }

    /// The unit of UTF-16 that the escape at this backslash says.
    fn unit(&self, backslash: usize) -> Result<u32, Failure> {
        let digits = self.text.get(backslash + 2..).unwrap_or_default();
        let wrong = || self.error("Invalid \\uXXXX escape", backslash + 1);
        // Python wants a character behind the digits.
        if digits.chars().take(5).count() < 5 {
            return Err(wrong());
        }
        let mut unit = 0;
        for character in digits.chars().take(4) {
            unit = unit * 16 + character.to_digit(16).ok_or_else(wrong)?;
        }
        Ok(unit)
    }
}

/// Makes names unique, as a dictionary of Python does: the last value, at the place of the first.
fn unique(mut members: Vec<(String, Json)>) -> Vec<(String, Json)> {
    let repeated = if members.len() <= FEW_MEMBERS { repeated_of_few(&members) } else { repeated_of_many(&members) };
    if repeated.is_empty() {
        return members;
    }
    let mut is_repeated = vec![false; members.len()];
    for (first, later) in repeated {
        let value = members.get_mut(later).map(|(_, value)| std::mem::replace(value, Json::Null));
        if let (Some(member), Some(value)) = (members.get_mut(first), value) {
            member.1 = value;
        }
        if let Some(is_repeated) = is_repeated.get_mut(later) {
            *is_repeated = true;
        }
    }
    let kept = members.into_iter().zip(is_repeated).filter(|(_, is_repeated)| !is_repeated);
    kept.map(|(member, _)| member).collect()
}

/// The places of names that were there before, in order, each with the place where the name is first.
fn repeated_of_few(members: &[(String, Json)]) -> Vec<(usize, usize)> {
    let first = |name: &str| members.iter().position(|(member, _)| member == name);
    let places = members.iter().enumerate().filter_map(|(later, (name, _))| Some((first(name)?, later)));
    places.filter(|(first, later)| first < later).collect()
}

fn repeated_of_many(members: &[(String, Json)]) -> Vec<(usize, usize)> {
    let mut places = HashMap::with_capacity(members.len());
    let mut repeated = Vec::new();
    for (place, (name, _)) in members.iter().enumerate() {
        let first = *places.entry(name.as_str()).or_insert(place);
        if first < place {
            repeated.push((first, place));
        }
    }
    repeated
}
