//! Splits a command line as getopt_long does: long flags, which may be abbreviated, and letters, which may carry their
//! value behind them.
//!
//! The meaning of an abbreviation must not depend on the flags that only Nereid has, or scripts would change their
//! meaning: those are compared only where none of perf_analyzer's matches.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use super::flags::{Flag, flags};
use super::mistake::Mistake;
use super::value::Value;

/// A flag, and its value.
pub type Item<'a> = (&'static Flag, Option<Value<'a>>);

/// The flags in their order, up to the first mistake.
pub struct Items<'a> {
    rest: std::slice::Iter<'a, OsString>,
    /// The rest of a word of letters.
    letters: &'a [u8],
}

impl<'a> Items<'a> {
    pub fn new(words: &'a [OsString]) -> Items<'a> {
        Items { rest: words.iter(), letters: &[] }
    }

    fn long(&mut self, given: &'a [u8]) -> Result<Item<'a>, Mistake> {
        let (name, value) = match given.iter().position(|byte| *byte == b'=') {
            Some(at) => (given.get(..at).unwrap_or_default(), given.get(at + 1..)),
            None => (given, None),
        };
        let flag = resolve(name)?;
        let written = format!("--{}", flag.name);
        match (flag.takes_value(), value) {
            (true, Some(value)) => Ok((flag, Some(Value { flag: written, raw: OsStr::from_bytes(value) }))),
            (true, None) => self.next_word(flag, written),
            (false, None) => Ok((flag, None)),
            (false, Some(_)) => Err(Mistake::TakesNoValue(written)),
        }
    }

    /// The flag of the first of the letters that are left.
    fn letter(&mut self) -> Result<Item<'a>, Mistake> {
        let (first, rest) = self.letters.split_first().unwrap_or((&0, &[]));
        let known = flags().find(|flag| flag.letter == Some(char::from(*first)));
        let written = format!("-{}", String::from_utf8_lossy(std::slice::from_ref(first)));
        let Some(flag) = known else { return Err(Mistake::Unknown(written)) };
        if !flag.takes_value() {
            self.letters = rest;
            return Ok((flag, None));
        }
        self.letters = &[];
        match rest {
            [] => self.next_word(flag, written),
            value => Ok((flag, Some(Value { flag: written, raw: OsStr::from_bytes(value) }))),
        }
    }

    /// The next word is the value, whatever its form.
    fn next_word(&mut self, flag: &'static Flag, written: String) -> Result<Item<'a>, Mistake> {
        match self.rest.next() {
            Some(raw) => Ok((flag, Some(Value { flag: written, raw }))),
            None => Err(Mistake::NeedsValue(written)),
        }
    }
}

fn resolve(name: &[u8]) -> Result<&'static Flag, Mistake> {
    let named = |flag: &&Flag| flag.name.as_bytes() == name;
    if let Some(flag) = flags().find(named) {
        return Ok(flag);
    }
    let written = || format!("--{}", String::from_utf8_lossy(name));
    for is_own in [false, true] {
        let fits = |flag: &&Flag| flag.is_own == is_own && !name.is_empty() && flag.name.as_bytes().starts_with(name);
        let fitting: Vec<&'static Flag> = flags().filter(fits).collect();
        match fitting.as_slice() {
            [] => {}
            [flag] => return Ok(flag),
            several => {
                let names = several.iter().map(|flag| format!("--{}", flag.name)).collect::<Vec<_>>().join(", ");
                return Err(Mistake::Ambiguous { given: written(), names });
            }
        }
    }
    Err(Mistake::Unknown(written()))
}

impl<'a> Iterator for Items<'a> {
    type Item = Result<Item<'a>, Mistake>;

    fn next(&mut self) -> Option<Self::Item> {
        if !self.letters.is_empty() {
            return Some(self.letter());
        }
        let word = self.rest.next()?;
        Some(match word.as_bytes() {
            [b'-', b'-', name @ ..] if !name.is_empty() => self.long(name),
            [b'-', first, ..] if *first != b'-' => {
                self.letters = word.as_bytes().get(1..).unwrap_or_default();
                self.letter()
            }
            _ => Err(Mistake::Word(word.to_string_lossy().into_owned())),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(words: &[&str]) -> Vec<String> {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        let mut items = Vec::new();
        for item in Items::new(&words) {
            match item {
                Ok((flag, None)) => items.push(flag.name.to_owned()),
                Ok((flag, Some(value))) => items.push(format!("{}={}", flag.name, value.raw.to_string_lossy())),
                Err(mistake) => {
                    items.push(mistake.to_string());
                    break;
                }
            }
        }
        items
    }

    #[test]
    fn letters_stand_together_and_carry_values() {
        assert_eq!(items(&["-m", "a", "-mb", "-vam", "c"]), ["model=a", "model=b", "verbose", "async", "model=c"]);
        assert_eq!(items(&["-b8", "-m", "-v"]), ["batch-size=8", "model=-v"]);
        assert_eq!(items(&["-m"]), ["-m needs a value"]);
        assert_eq!(items(&["-vQ"]), ["verbose", "there is no -Q"]);
    }

    #[test]
    fn long_flags_may_be_cut_short() {
        assert_eq!(
            items(&["--concurrency-r=1", "--concurrency-range", "2"]),
            ["concurrency-range=1", "concurrency-range=2"]
        );
        // Ours do not make one of theirs ambiguous.
        assert_eq!(items(&["--measurement-i=1"]), ["measurement-interval=1"]);
        assert_eq!(items(&["--streaming", "--streaming=1"]), ["streaming", "--streaming takes no value"]);
        assert_eq!(items(&["--html"]), ["--html needs a value"]);
        assert_eq!(items(&["--shape=", "--shape", "a:1=2"]), ["shape=", "shape=a:1=2"]);
        let ambiguous = items(&["--measurement-"]);
        assert!(ambiguous[0].contains("--measurement-mode") && ambiguous[0].contains("--measurement-interval"));
    }

    #[test]
    fn what_is_no_flag_is_an_error() {
        assert_eq!(items(&["--nonsense"]), ["there is no --nonsense"]);
        assert_eq!(items(&["model"]), ["'model' is neither a flag nor the value of one"]);
        assert_eq!(items(&["-"]), ["'-' is neither a flag nor the value of one"]);
        assert_eq!(items(&["--"]), ["'--' is neither a flag nor the value of one"]);
        assert_eq!(items(&["--=x"]), ["there is no --"]);
    }

    #[test]
    fn every_flag_is_found_by_its_name_and_letter() {
        for flag in flags() {
            let found = resolve(flag.name.as_bytes()).expect(flag.name);
            assert!(std::ptr::eq(found, flag), "{}: two flags have this name", flag.name);
            let same = flags().filter(|other| flag.letter.is_some() && other.letter == flag.letter).count();
            assert!(same <= 1, "-{:?}", flag.letter);
        }
    }
}
