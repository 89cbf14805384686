//! JSON as protobuf's own parser accepts it, which is more than the standard: single quotes, names without quotes,
//! commas behind the last element, control characters and meaningless escapes in strings. Triton accepts such
//! overrides, so clients and scripts send them.
//!
//! Members are kept in their order, repeated ones included: a repeated member is added to the earlier one, or replaces
//! it.

use serde_json::Number;

/// Deepest nesting, as protobuf has it.
const DEPTH_MAX: usize = 100;

#[derive(Debug, Clone, PartialEq)]
pub enum Json {
    Null,
    Bool(bool),
    Number(Number),
    String(String),
    Array(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl std::fmt::Display for Json {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Json::Null => f.write_str("null"),
            Json::Bool(value) => write!(f, "{value}"),
            Json::Number(number) => write!(f, "{number}"),
            Json::String(text) => write!(f, "{text:?}"),
            Json::Array(_) => f.write_str("an array"),
            Json::Object(_) => f.write_str("an object"),
        }
    }
}

/// Reads one value, with only blanks around it. The error holds the position.
pub fn parse(text: &[u8]) -> Result<Json, String> {
    let text = std::str::from_utf8(text).map_err(|error| format!("Encountered non UTF-8 code points: {error}"))?;
    let mut parser = Parser { text, at: 0 };
    let outcome = parser.document();
    outcome.map_err(|message| {
        let before = text.get(..parser.at).unwrap_or(text);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().map_or(0, |line| line.chars().count()) + 1;
        format!("{message} at line {line} column {column}")
    })
}

struct Parser<'a> {
    text: &'a str,
    /// Always between characters.
    at: usize,
}

type Outcome<T> = Result<T, String>;

fn fail<T>(message: &str) -> Outcome<T> {
    Err(message.to_owned())
}

impl<'a> Parser<'a> {
    fn document(&mut self) -> Outcome<Json> {
        let value = self.value(0)?;
        match self.peek() {
            None => Ok(value),
            Some(_) => fail("Parsing terminated before end of input."),
        }
    }

    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    /// The next byte behind blanks.
    fn peek(&mut self) -> Option<u8> {
        let is_blank = |byte: &u8| byte.is_ascii_whitespace() || *byte == 0x0B;
        self.at += self.rest().bytes().take_while(is_blank).count();
        self.rest().bytes().next()
    }

    fn accept(&mut self, byte: u8) -> bool {
        let is_next = self.peek() == Some(byte);
        self.at += usize::from(is_next);
        is_next
    }

    fn value(&mut self, depth: usize) -> Outcome<Json> {
        if depth > DEPTH_MAX {
            return fail("Message too deep. Max recursion depth reached");
        }
        match self.peek() {
            None => fail("Unexpected end of string. Expected a value."),
            Some(b'{') => self.object(depth),
            Some(b'[') => self.array(depth),
            Some(quote @ (b'"' | b'\'')) => Ok(Json::String(self.string(quote)?)),
            Some(b'-' | b'0'..=b'9') => Ok(Json::Number(self.number()?)),
            Some(byte) if byte.is_ascii_alphabetic() => match self.word() {
                "null" => Ok(Json::Null),
                "true" => Ok(Json::Bool(true)),
                "false" => Ok(Json::Bool(false)),
                word => Err(format!("Unexpected token \"{}\".", word.chars().take(64).collect::<String>())),
            },
            Some(b',' | b']' | b'}' | b':') => fail("Unexpected token."),
            Some(_) => fail("Expected a value."),
        }
    }

    fn object(&mut self, depth: usize) -> Outcome<Json> {
        self.at += 1;
        let mut members = Vec::new();
        // A comma may come behind the last member, and none without one.
        while !self.accept(b'}') {
            let name = match self.peek() {
                Some(quote @ (b'"' | b'\'')) => self.string(quote)?,
                Some(byte) if byte.is_ascii_alphabetic() || byte == b'_' || byte == b'$' => self.word().to_owned(),
                None => return fail("Unexpected end of string. Expected an object key or }."),
                Some(_) => return fail("Expected an object key or }."),
            };
            if !self.accept(b':') {
                return fail("Expected : between key:value pair.");
            }
            members.push((name, self.value(depth + 1)?));
            if !self.accept(b',') && self.peek() != Some(b'}') {
                return fail("Expected , or } after key:value pair.");
            }
        }
        Ok(Json::Object(members))
    }

    fn array(&mut self, depth: usize) -> Outcome<Json> {
        self.at += 1;
        let mut elements = Vec::new();
        while !self.accept(b']') {
            elements.push(self.value(depth + 1)?);
            if !self.accept(b',') && self.peek() != Some(b']') {
                return fail("Expected , or ] after array value.");
            }
        }
        Ok(Json::Array(elements))
    }

    fn word(&mut self) -> &'a str {
        let rest = self.rest();
        let len = rest.bytes().take_while(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$')).count();
        self.at += len;
        rest.get(..len).unwrap_or_default()
    }

    fn number(&mut self) -> Outcome<Number> {
        let rest = self.rest();
        let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
        let text = rest.get(..rest.bytes().take_while(is_part).count()).unwrap_or_default();
        let digits = text.strip_prefix('-').unwrap_or(text).as_bytes();
        if digits.len() > 1 && digits[0] == b'0' && (digits[1].is_ascii_digit() || matches!(digits[1], b'x' | b'X')) {
            return fail("Octal/hex numbers are not valid JSON values.");
        }
        // "1." is one, too, to protobuf.
        let number = serde_json::from_str(text).or_else(|_| serde_json::from_str(&format!("{text}0")));
        match number {
            Ok(number) if digits.first().is_some_and(u8::is_ascii_digit) && is_written_out(text) => {
                self.at += text.len();
                Ok(number)
            }
            _ => fail("Unable to parse number."),
        }
    }

    /// The text between quotes.
    fn string(&mut self, quote: u8) -> Outcome<String> {
        self.at += 1;
        let mut out = String::new();
        loop {
            let rest = self.rest();
            let Some(len) = rest.bytes().position(|byte| byte == quote || byte == b'\\') else {
                return fail("Closing quote expected in string.");
            };
            out.push_str(rest.get(..len).unwrap_or_default());
            self.at += len + 1;
            if rest.as_bytes().get(len) == Some(&quote) {
                return Ok(out);
            }
            let Some(escaped) = self.rest().chars().next() else { return fail("Closing quote expected in string.") };
            self.at += escaped.len_utf8();
            out.push(match escaped {
                'b' => '\u{8}',
                'f' => '\u{c}',
                'n' => '\n',
                'r' => '\r',
                't' => '\t',
                'v' => '\u{b}',
                'u' => self.code_point()?,
                other => other,
            });
        }
    }

    /// What four digits stand for, or eight where the first four are half of a pair.
    fn code_point(&mut self) -> Outcome<char> {
        let first = self.unit()?;
        let code = match first {
            0xD800..=0xDBFF => {
                let Some(rest) = self.rest().strip_prefix("\\u") else { return fail("Missing low surrogate.") };
                self.at = self.text.len() - rest.len();
                match self.unit()? {
                    low @ 0xDC00..=0xDFFF => 0x10000 + ((first - 0xD800) << 10) + (low - 0xDC00),
                    _ => return fail("Invalid low surrogate."),
                }
            }
            first => first,
        };
        char::from_u32(code).ok_or_else(|| "Invalid unicode code point.".to_owned())
    }

    fn unit(&mut self) -> Outcome<u32> {
        let digits = self.rest().get(..4).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let unit = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok());
        self.at += digits.map_or(0, str::len);
        unit.ok_or_else(|| "Illegal hex string.".to_owned())
    }
}

/// True unless only the digit that the parser added on trial made the exponent complete.
fn is_written_out(text: &str) -> bool {
    text.bytes().last().is_some_and(|byte| byte.is_ascii_digit() || byte == b'.')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The value as serde_json holds it.
    fn strict(json: &Json) -> serde_json::Value {
        match json {
            Json::Null => serde_json::Value::Null,
            Json::Bool(value) => (*value).into(),
            Json::Number(number) => number.clone().into(),
            Json::String(text) => text.clone().into(),
            Json::Array(elements) => elements.iter().map(strict).collect::<Vec<_>>().into(),
            Json::Object(members) => members
                .iter()
                .map(|(name, value)| (name.clone(), strict(value)))
                .collect::<serde_json::Map<_, _>>()
                .into(),
        }
    }

    #[test]
    fn what_protobuf_takes_is_the_same_as_its_strict_form() {
        for (lenient, expected) in [
            (r#" {"a":[1,-2.5,1e1,"x",true,false,null,{}]} "#, r#"{"a":[1,-2.5,10.0,"x",true,false,null,{}]}"#),
            ("{'a':'b'}", r#"{"a":"b"}"#),
            ("{a:1,_b$2:2,$c:3,null:4}", r#"{"a":1,"_b$2":2,"$c":3,"null":4}"#),
            ("{a:[1,2,],b:{c:1,},}", r#"{"a":[1,2],"b":{"c":1}}"#),
            ("\u{b}[\n]\r\t", "[]"),
            ("'it\\'s \\q\\/\\v \\\" \\x41'", "\"it's q/\\u000b \\\" x41\""),
            ("\"a\tb\nc'd\"", "\"a\\tb\\nc'd\""),
            (r#""é\u00e9\ud83d\ude00""#, "\"éé😀\""),
            ("[1.,-0,0,-0.5]", "[1.0,-0,0,-0.5]"),
        ] {
            let read = parse(lenient.as_bytes()).unwrap_or_else(|error| panic!("{lenient}: {error}"));
            assert_eq!(strict(&read), serde_json::from_str::<serde_json::Value>(expected).unwrap(), "{lenient}");
        }
        let twice = Json::Object(vec![("a".into(), Json::Null), ("a".into(), Json::Bool(true))]);
        assert_eq!(parse(b"{a:null,a:true}"), Ok(twice));
    }

    #[test]
    fn what_protobuf_refuses_is_refused_with_its_place() {
        for (text, expected) in [
            ("", "Unexpected end of string. Expected a value. at line 1 column 1"),
            ("{\n a:1,,b:2}", "Expected an object key or }. at line 2 column 6"),
            ("{,}", "Expected an object key or }. at line 1 column 2"),
            ("{5:1}", "Expected an object key or }. at line 1 column 2"),
            ("{a-b:1}", "Expected : between key:value pair. at line 1 column 3"),
            ("{a 1}", "Expected : between key:value pair. at line 1 column 4"),
            ("{a:1 b:2}", "Expected , or } after key:value pair. at line 1 column 6"),
            ("{a:1", "Expected , or } after key:value pair. at line 1 column 5"),
            ("{a:1;}", "Expected , or } after key:value pair. at line 1 column 5"),
            ("[1,,2]", "Unexpected token. at line 1 column 4"),
            ("[1 2]", "Expected , or ] after array value. at line 1 column 4"),
            ("{} x", "Parsing terminated before end of input. at line 1 column 4"),
            ("{a:TRUE}", "Unexpected token \"TRUE\". at line 1 column 8"),
            ("{a:0x4}", "Octal/hex numbers are not valid JSON values. at line 1 column 4"),
            ("[010]", "Octal/hex numbers are not valid JSON values. at line 1 column 2"),
            ("[+4]", "Expected a value. at line 1 column 2"),
            ("[.5]", "Expected a value. at line 1 column 2"),
            ("[1e]", "Unable to parse number. at line 1 column 2"),
            ("[-]", "Unable to parse number. at line 1 column 2"),
            ("[1e999]", "Unable to parse number. at line 1 column 2"),
            ("[1-2]", "Unable to parse number. at line 1 column 2"),
            ("\u{feff}{}", "Expected a value. at line 1 column 1"),
            ("'a", "Closing quote expected in string. at line 1 column 2"),
            ("'a\\", "Closing quote expected in string. at line 1 column 4"),
            (r#""\ud800""#, "Missing low surrogate. at line 1 column 8"),
            (r#""\ud800\u0041""#, "Invalid low surrogate. at line 1 column 14"),
            (r#""\udc00""#, "Invalid unicode code point. at line 1 column 8"),
            (r#""\u00g0""#, "Illegal hex string. at line 1 column 4"),
        ] {
            assert_eq!(parse(text.as_bytes()), Err(expected.to_owned()), "{text}");
        }
        assert!(parse(b"'\xff'").unwrap_err().starts_with("Encountered non UTF-8 code points"));
        let nested = |depth: usize| parse(format!("{}{}", "[".repeat(depth), "]".repeat(depth)).as_bytes());
        assert!(nested(DEPTH_MAX).is_ok());
        assert!(nested(1_000_000).unwrap_err().starts_with("Message too deep"));
    }
}
