//! Splits a command line into flags, values and words as GNU getopt_long does, its messages included.
//!
//! Scripts and charts abbreviate flags, so the meaning of a prefix must not depend on the flags that Nereid adds: those
//! are compared only where none of Triton's matches.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use super::flags::{Flag, flags};
use super::nearest::nearest;

/// One thing on the command line.
#[derive(Debug)]
pub enum Item<'a> {
    Flag(&'static Flag, Option<&'a OsStr>),
    /// Neither a flag nor the value of one.
    Word(&'a OsStr),
}

/// The items in their order, up to the first error.
pub struct Items<'a> {
    program: &'a OsStr,
    rest: std::slice::Iter<'a, OsString>,
    only_words: bool,
    is_over: bool,
}

impl<'a> Items<'a> {
    pub fn new(program: &'a OsStr, words: &'a [OsString]) -> Items<'a> {
        Items { program, rest: words.iter(), only_words: false, is_over: false }
    }

    /// Goes on behind an error.
    pub fn go_on(&mut self) {
        self.is_over = false;
    }

    fn long(&mut self, given: &'a [u8]) -> Result<Item<'a>, String> {
        let (name, value) = match given.iter().position(|byte| *byte == b'=') {
            Some(at) => (given.get(..at).unwrap_or_default(), given.get(at + 1..)),
            None => (given, None),
        };
        let flag = self.resolve(name, given)?;
        match (flag.takes_value(), value) {
            (true, Some(value)) => Ok(Item::Flag(flag, Some(OsStr::from_bytes(value)))),
            // The next word is the value, whatever its form.
            (true, None) => match self.rest.next() {
                Some(value) => Ok(Item::Flag(flag, Some(value))),
                None => Err(self.message(&format!("option '--{}' requires an argument", flag.name))),
            },
            (false, None) => Ok(Item::Flag(flag, None)),
            (false, Some(_)) => Err(self.message(&format!("option '--{}' doesn't allow an argument", flag.name))),
        }
    }

    fn resolve(&self, name: &[u8], given: &[u8]) -> Result<&'static Flag, String> {
        if let Some(flag) = flags().find(|flag| flag.name.as_bytes() == name) {
            return Ok(flag);
        }
        for is_own in [false, true] {
            let fits = |flag: &&Flag| flag.is_own() == is_own && flag.name.as_bytes().starts_with(name);
            let mut fitting = flags().filter(fits);
            let Some(first) = fitting.next() else { continue };
            // Two names of one flag are no ambiguity.
            let others: Vec<_> = fitting.filter(|other| other.target() != first.target()).collect();
            if others.is_empty() {
                return Ok(first);
            }
            let mut text = format!("option '--{}' is ambiguous; possibilities:", String::from_utf8_lossy(given));
            for flag in [first].into_iter().chain(others) {
                text.push_str(&format!(" '--{}'", flag.name));
            }
            return Err(self.message(&text));
        }
        let meant = nearest(&String::from_utf8_lossy(name), flags().map(|flag| flag.name));
        let meant = meant.map(|name| format!("; did you mean '--{name}'?")).unwrap_or_default();
        Err(self.message(&format!("unrecognized option '--{}'{meant}", String::from_utf8_lossy(given))))
    }

    fn message(&self, text: &str) -> String {
        format!("{}: {text}", self.program.to_string_lossy())
    }
}

impl<'a> Iterator for Items<'a> {
    type Item = Result<Item<'a>, String>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.is_over {
            let word = self.rest.next()?;
            let item = match word.as_bytes() {
                _ if self.only_words => Ok(Item::Word(word)),
                b"--" => {
                    self.only_words = true;
                    continue;
                }
                [b'-', b'-', given @ ..] => self.long(given),
                // Triton has no short options; a lone dash is a word.
                [b'-', first, ..] => {
                    let letter = String::from_utf8_lossy(std::slice::from_ref(first)).into_owned();
                    Err(self.message(&format!("invalid option -- '{letter}'")))
                }
                _ => Ok(Item::Word(word)),
            };
            self.is_over = item.is_err();
            return Some(item);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `name`, `name=value` or a bare word in brackets; an error's text ends the list.
    fn items(words: &[&str]) -> Vec<String> {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        Items::new(OsStr::new("nereid"), &words)
            .map(|item| match item {
                Ok(Item::Flag(flag, None)) => flag.name.to_owned(),
                Ok(Item::Flag(flag, Some(value))) => format!("{}={}", flag.name, value.to_string_lossy()),
                Ok(Item::Word(word)) => format!("[{}]", word.to_string_lossy()),
                Err(text) => text,
            })
            .collect()
    }

    #[test]
    fn values_follow_an_equals_sign_or_are_the_next_word() {
        assert_eq!(items(&["--http-port=80", "--http-port", "81"]), ["http-port=80", "http-port=81"]);
        assert_eq!(items(&["--id=", "--id", ""]), ["id=", "id="]);
        assert_eq!(items(&["--id=a=b", "--id", "--http-port"]), ["id=a=b", "id=--http-port"]);
        assert_eq!(items(&["--id", "--"]), ["id=--"]);
        assert_eq!(items(&["--help", "x"]), ["help", "[x]"]);
    }

    #[test]
    fn words_may_stand_between_flags_and_after_two_dashes() {
        assert_eq!(
            items(&["a", "--id=x", "-", "", "--", "--id=y", "--"]),
            ["[a]", "id=x", "[-]", "[]", "[--id=y]", "[--]"]
        );
    }

    #[test]
    fn every_flag_is_found_by_every_unambiguous_prefix() {
        for flag in flags() {
            for end in 1..=flag.name.len() {
                let prefix = &flag.name[..end];
                let own = flags().filter(|other| other.name.starts_with(prefix) && other.is_own());
                let tritons: Vec<_> =
                    flags().filter(|other| other.name.starts_with(prefix) && !other.is_own()).collect();
                let exact = flags().find(|other| other.name == prefix);
                let expected: Vec<_> = match (exact, tritons.is_empty()) {
                    (Some(exact), _) => vec![exact],
                    (None, true) => own.collect(),
                    (None, false) => tritons,
                };
                let given = format!("--{prefix}");
                let items = items(&[&given, "value"]);
                match expected.as_slice() {
                    [one] if one.takes_value() => assert_eq!(items, [format!("{}=value", one.name)]),
                    [one] => assert_eq!(items, [one.name, "[value]"]),
                    several => {
                        // As glibc, which leaves out a second name of the first flag that fits.
                        let is_alias = |flag: &&&Flag| flag.target() != flag.name && flag.target() == several[0].name;
                        let several = several.iter().filter(|flag| !is_alias(flag));
                        let names: String = several.map(|flag| format!(" '--{}'", flag.name)).collect();
                        assert_eq!(items, [format!("nereid: option '{given}' is ambiguous; possibilities:{names}")]);
                    }
                }
            }
        }
    }

    #[test]
    fn own_flags_do_not_change_what_a_prefix_means() {
        assert_eq!(items(&["--i=x"]), ["id=x"], "not --io-cores");
        assert_eq!(items(&["--io-c=2"]), ["io-cores=2"]);
        assert_eq!(
            items(&["--io=2"]),
            ["nereid: option '--io=2' is ambiguous; possibilities: '--io-cores' '--io-engine'"]
        );
    }

    #[test]
    fn an_exact_name_beats_longer_ones() {
        assert_eq!(items(&["--grpc-max-connection-age=1"]), ["grpc-max-connection-age=1"]);
        assert_eq!(items(&["--rate-limit=off", "--rate-limit-r=a"]), ["rate-limit=off", "rate-limit-resource=a"]);
    }

    #[test]
    fn errors_have_getopts_texts_and_end_the_scan() {
        assert_eq!(items(&["--nonsense", "--id=x"]), ["nereid: unrecognized option '--nonsense'"]);
        assert_eq!(items(&["--nonsense=1"]), ["nereid: unrecognized option '--nonsense=1'"]);
        assert_eq!(
            items(&["--HTTP-port=1"]),
            ["nereid: unrecognized option '--HTTP-port=1'; did you mean '--http-port'?"]
        );
        assert_eq!(
            items(&["--modle-repository=/x"]),
            ["nereid: unrecognized option '--modle-repository=/x'; did you mean '--model-repository'?"]
        );
        assert_eq!(items(&["--http-por"]), ["nereid: option '--http-port' requires an argument"]);
        assert_eq!(items(&["--hel=1"]), ["nereid: option '--help' doesn't allow an argument"]);
        assert_eq!(items(&["-x", "--id=x"]), ["nereid: invalid option -- 'x'"]);
        assert_eq!(items(&["-http-port=1"]), ["nereid: invalid option -- 'h'"]);
        let all = items(&["--=x"]);
        assert!(all.len() == 1 && all[0].starts_with("nereid: option '--=x' is ambiguous; possibilities: '--help'"));
        let raw = [OsString::from(OsStr::from_bytes(b"--\xff=1"))];
        let text = Items::new(OsStr::new("n"), &raw).next().unwrap().unwrap_err();
        assert_eq!(text, "n: unrecognized option '--\u{fffd}=1'");
    }
}
