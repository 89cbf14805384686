//! The values of the flags: numbers within bounds, words of a list, ranges, shapes, headers, parameters.

use std::ffi::OsStr;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;

use super::mistake::Mistake;
use nereid_perf::{Parameter, Sweep};

/// The value of a flag.
#[derive(Debug, Clone)]
pub struct Value<'a> {
    /// As it was written: `-b`, `--shape`.
    pub flag: String,
    pub raw: &'a OsStr,
}

/// `start:end:step`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Span<T> {
    pub sweep: Sweep<T>,
    /// True if the end was given, and not derived from the start.
    pub has_end: bool,
}

impl<'a> Value<'a> {
    pub fn text(&self) -> Result<&'a str, Mistake> {
        self.raw.to_str().ok_or_else(|| self.wrong("UTF-8"))
    }

    /// A text that is not empty.
    pub fn name(&self) -> Result<String, Mistake> {
        match self.text()? {
            "" => Err(self.wrong("a name")),
            text => Ok(text.to_owned()),
        }
    }

    pub fn path(&self) -> Result<PathBuf, Mistake> {
        match self.raw.is_empty() {
            true => Err(self.wrong("a path")),
            false => Ok(PathBuf::from(self.raw)),
        }
    }

    pub fn number<T: FromStr + PartialOrd + Display>(&self, bounds: RangeInclusive<T>) -> Result<T, Mistake> {
        let expected = || self.wrong(&format!("a number from {} to {}", bounds.start(), bounds.end()));
        let number: T = self.text()?.trim().parse().map_err(|_| expected())?;
        if bounds.contains(&number) { Ok(number) } else { Err(expected()) }
    }

    /// Whole or not, positive or 0.
    pub fn quantity(&self, most: f64) -> Result<f64, Mistake> {
        self.number(0.0..=most)
    }

    pub fn one_of<T: Copy>(&self, words: &[(&str, T)]) -> Result<T, Mistake> {
        let given = self.text()?;
        let found = words.iter().find(|(word, _)| word.eq_ignore_ascii_case(given));
        found.map(|(_, meaning)| *meaning).ok_or_else(|| {
            let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            self.wrong(&format!("one of {}", words.join(", ")))
        })
    }

    pub fn boolean(&self) -> Result<bool, Mistake> {
        self.one_of(&[("true", true), ("false", false), ("1", true), ("0", false)])
    }

    /// `start[:end[:step]]`: a start from `least` on, nothing above `most`. An end of nought is none.
    pub fn span<T>(&self, least: T, most: T, zero: T, one: T) -> Result<Span<T>, Mistake>
    where
        T: FromStr + PartialOrd + Copy + Display,
    {
        let expected = || self.wrong(&format!("<start:end:step> with numbers from {least} to {most}"));
        let mut numbers = Vec::new();
        for part in self.text()?.split(':') {
            let number: T = part.trim().parse().map_err(|_| expected())?;
            if !(zero..=most).contains(&number) {
                return Err(expected());
            }
            numbers.push(number);
        }
        let (start, end, step) = match numbers.as_slice() {
            [start] => (*start, None, one),
            [start, end] => (*start, Some(*end), one),
            [start, end, step] => (*start, Some(*end), *step),
            _ => return Err(expected()),
        };
        if start < least || step <= zero {
            return Err(expected());
        }
        let span = |end, has_end| Ok(Span { sweep: Sweep { start, end, step }, has_end });
        match end {
            None => span(Some(start), false),
            Some(end) if end == zero => span(None, true),
            Some(end) if end < start => Err(self.wrong("a range: its end lies before its start")),
            Some(end) => span(Some(end), true),
        }
    }

    /// `name:1,2,3`. Names may have colons, shapes have none.
    pub fn shape(&self) -> Result<(String, Vec<i64>), Mistake> {
        let expected = || self.wrong("<input>:<size>,<size>,... with sizes from 0");
        let (name, sizes) = self.text()?.rsplit_once(':').ok_or_else(expected)?;
        let size = |text: &str| text.trim().parse::<i64>().ok().filter(|size| *size >= 0);
        let sizes: Option<Vec<i64>> = sizes.split(',').map(size).collect();
        match sizes {
            Some(sizes) if !name.is_empty() => Ok((name.to_owned(), sizes)),
            _ => Err(expected()),
        }
    }

    /// `Name: value`, as HTTP takes it.
    pub fn header(&self) -> Result<(String, String), Mistake> {
        let expected = || self.wrong("<name>:<value> of a header");
        let (name, value) = self.text()?.split_once(':').ok_or_else(expected)?;
        let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        let is_plain = |byte: u8| byte == b'\t' || (b' '..=b'~').contains(&byte);
        let value = value.trim_matches([' ', '\t']);
        match !name.is_empty() && name.bytes().all(is_token) && value.bytes().all(is_plain) {
            true => Ok((name.to_owned(), value.to_owned())),
            false => Err(expected()),
        }
    }

    /// `name:value:type`. Values may have colons.
    pub fn parameter(&self) -> Result<(String, Parameter), Mistake> {
        let expected = || self.wrong("<name>:<value>:<type> with a type of bool, int, uint, double, string");
        let (name, rest) = self.text()?.split_once(':').ok_or_else(expected)?;
        let (value, kind) = rest.rsplit_once(':').ok_or_else(expected)?;
        let parameter = match kind {
            "bool" => match value {
                "true" | "1" => Some(Parameter::Bool(true)),
                "false" | "0" => Some(Parameter::Bool(false)),
                _ => None,
            },
            "int" => value.parse().ok().map(Parameter::Int),
            // A server takes both for the same; values beyond the signed ones have no use as a parameter.
            "uint" => value.parse::<u64>().ok().and_then(|value| i64::try_from(value).ok()).map(Parameter::Int),
            "double" => value.parse().ok().filter(|value: &f64| value.is_finite()).map(Parameter::Double),
            "string" => Some(Parameter::String(value.to_owned())),
            _ => None,
        };
        let is_named = !name.is_empty();
        parameter.filter(|_| is_named).map(|parameter| (name.to_owned(), parameter)).ok_or_else(expected)
    }

    pub fn wrong(&self, expected: &str) -> Mistake {
        let given = self.raw.to_string_lossy().into_owned();
        Mistake::Value { flag: self.flag.clone(), given, expected: expected.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(raw: &str) -> Value<'_> {
        Value { flag: "--x".into(), raw: OsStr::new(raw) }
    }

    fn whole(raw: &str) -> Option<(u32, Option<u32>, u32)> {
        value(raw).span(1u32, 1000, 0, 1).ok().map(|span| (span.sweep.start, span.sweep.end, span.sweep.step))
    }

    #[test]
    fn ranges() {
        assert_eq!(whole("4"), Some((4, Some(4), 1)));
        assert_eq!(whole("1:8"), Some((1, Some(8), 1)));
        assert_eq!(whole("1:8:3"), Some((1, Some(8), 3)));
        assert_eq!(whole("2:0:4"), Some((2, None, 4)), "an end of 0 is none");
        for wrong in ["", ":", "0", "0:4", "8:1", "1:8:0", "1:2:3:4", "a", "1:b", "-1", "1001", "1:2000", "1.5"] {
            assert_eq!(whole(wrong), None, "{wrong}");
        }
        let rates =
            |raw: &str| value(raw).span(1e-3, 1e7, 0.0, 1.0).ok().map(|span| (span.sweep.start, span.sweep.end));
        assert_eq!(rates("0.5:2.5:0.5"), Some((0.5, Some(2.5))));
        for wrong in ["inf", "nan", "1:nan", "1e9"] {
            assert_eq!(rates(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn shapes() {
        assert_eq!(value("a:1,2").shape(), Ok(("a".into(), vec![1, 2])));
        assert_eq!(value("a:b:0").shape(), Ok(("a:b".into(), vec![0])));
        for wrong in ["", "a", "a:", ":1", "a:-1", "a:1,,2", "a:x", "a:9223372036854775808"] {
            assert!(value(wrong).shape().is_err(), "{wrong}");
        }
    }

    #[test]
    fn headers() {
        assert_eq!(value("A: b:c ").header(), Ok(("A".into(), "b:c".into())));
        assert_eq!(value("x-empty:").header(), Ok(("x-empty".into(), String::new())));
        for wrong in ["a", ":b", "a b:c", "a:b\r\nc: d", "a\n:b", "ä:b"] {
            assert!(value(wrong).header().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn parameters() {
        for (given, expected) in [
            ("a:7:int", Parameter::Int(7)),
            ("a:-7:int", Parameter::Int(-7)),
            ("a:7:uint", Parameter::Int(7)),
            ("a:true:bool", Parameter::Bool(true)),
            ("a:0:bool", Parameter::Bool(false)),
            ("a:0.5:double", Parameter::Double(0.5)),
            ("a:b:c:string", Parameter::String("b:c".into())),
            ("a::string", Parameter::String(String::new())),
        ] {
            assert_eq!(value(given).parameter(), Ok(("a".into(), expected)), "{given}");
        }
        for wrong in [
            "",
            "a",
            "a:b",
            ":1:int",
            "a:x:int",
            "a:-1:uint",
            "a:18446744073709551615:uint",
            "a:2:bool",
            "a:nan:double",
            "a:b:nothing",
        ] {
            assert!(value(wrong).parameter().is_err(), "{wrong}");
        }
    }

    #[test]
    fn numbers_and_words() {
        assert_eq!(value("7").number(1..=9), Ok(7));
        let error = value("10").number(1..=9).map_err(|error| error.to_string());
        assert_eq!(error, Err("--x: '10' is not a number from 1 to 9".into()));
        assert!(value("").number(0..=9).is_err() && value("1x").number(0..=9).is_err());
        assert!(value("-0.1").quantity(9.0).is_err() && value("NaN").quantity(9.0).is_err());
        assert_eq!(value("HTTP").one_of(&[("http", 1), ("grpc", 2)]), Ok(1));
        let error = value("ftp").one_of(&[("http", 1), ("grpc", 2)]).map_err(|error| error.to_string());
        assert_eq!(error, Err("--x: 'ftp' is not one of http, grpc".into()));
    }
}
