//! Reads the object of one call: `{"name": .., "arguments": {..}}`, or with `parameters`.
//!
//! A call is announced once its name is complete and its arguments have begun: before, the object may be ordinary JSON.

use super::string::{StringReader, StringStep};
use super::value::{Step, ValueWriter};
use crate::python_json::Escapes;

/// What a character came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallStep {
    More,
    /// The object is whole.
    Done,
    Broken,
}

/// The longest key that means something is shorter; what is longer need not be kept.
const KEY_BYTES_MAX: usize = 16;

#[derive(Debug)]
pub struct CallReader {
    escapes: Escapes,
    at: At,
    key: String,
    name: Option<String>,
    /// Of the arguments, what has not been taken yet.
    fragment: String,
    has_arguments: bool,
    is_announced: bool,
    /// The arguments are all: their end is that of the call.
    is_bare: bool,
    /// Where values go that nobody reads.
    unread: String,
}

#[derive(Debug)]
enum At {
    Start,
    KeyOrEnd,
    Key,
    InKey(StringReader),
    Colon,
    Value,
    Name(StringReader, String),
    Arguments(ValueWriter),
    Other(ValueWriter),
    CommaOrEnd,
}

impl CallReader {
    /// Reads from the opening brace on.
    pub fn new(escapes: Escapes) -> CallReader {
        CallReader {
            escapes,
            at: At::Start,
            key: String::new(),
            name: None,
            fragment: String::new(),
            has_arguments: false,
            is_announced: false,
            is_bare: false,
            unread: String::new(),
        }
    }

    /// Reads only the arguments, from their opening brace on.
    pub fn of_arguments(name: String, escapes: Escapes) -> CallReader {
        CallReader {
            at: At::Arguments(ValueWriter::new(escapes)),
            name: Some(name),
            has_arguments: true,
            is_bare: true,
            ..CallReader::new(escapes)
        }
    }

    /// The name, once, when the call can be announced.
    pub fn take_name(&mut self) -> Option<String> {
        if self.is_announced || !self.has_arguments {
            return None;
        }
        let name = self.name.as_mut()?;
        self.is_announced = true;
        Some(std::mem::take(name))
    }

    pub fn is_announced(&self) -> bool {
        self.is_announced
    }

    /// The arguments' text that has not been taken.
    pub fn take_fragment(&mut self) -> String {
        std::mem::take(&mut self.fragment)
    }

    pub fn push(&mut self, character: char) -> CallStep {
        let step = match &mut self.at {
            At::InKey(reader) => {
                let key = &mut self.key;
                let step = reader.push(character, |decoded| {
                    if key.len() < KEY_BYTES_MAX {
                        key.push(decoded);
                    }
                });
                match step {
                    StringStep::More => return CallStep::More,
                    StringStep::Broken => return CallStep::Broken,
                    StringStep::End => {
                        self.at = At::Colon;
                        return CallStep::More;
                    }
                }
            }
            At::Name(reader, name) => match reader.push(character, |decoded| name.push(decoded)) {
                StringStep::More => return CallStep::More,
                StringStep::End if !name.is_empty() => {
                    self.name = Some(std::mem::take(name));
                    Step::Done
                }
                _ => return CallStep::Broken,
            },
            At::Arguments(writer) => writer.push(character, &mut self.fragment),
            At::Other(writer) => {
                self.unread.clear();
                writer.push(character, &mut self.unread)
            }
            _ => return self.between(character),
        };
        match step {
            Step::More => CallStep::More,
            Step::Broken => CallStep::Broken,
            Step::Done if self.is_bare => CallStep::Done,
            Step::Done => {
                self.at = At::CommaOrEnd;
                CallStep::More
            }
            Step::DoneBefore => {
                self.at = At::CommaOrEnd;
                self.between(character)
            }
        }
    }

    /// Takes a character outside of keys and values.
    fn between(&mut self, character: char) -> CallStep {
        self.at = match (&self.at, character) {
            (At::Start, '{') => At::KeyOrEnd,
            (_, ' ' | '\t' | '\n' | '\r') => return CallStep::More,
            (At::KeyOrEnd | At::Key, '"') => {
                self.key.clear();
                At::InKey(StringReader::default())
            }
            (At::Colon, ':') => At::Value,
            (At::CommaOrEnd, ',') => At::Key,
            (At::CommaOrEnd | At::KeyOrEnd, '}') => return CallStep::Done,
            (At::Value, _) => return self.begin_value(character),
            _ => return CallStep::Broken,
        };
        CallStep::More
    }

    /// Of members that come twice, the first counts: its text may be gone already.
    fn begin_value(&mut self, character: char) -> CallStep {
        let writer = ValueWriter::new(self.escapes);
        match self.key.as_str() {
            "name" if self.name.is_none() => {
                self.at = At::Name(StringReader::default(), String::new());
                return if character == '"' { CallStep::More } else { CallStep::Broken };
            }
            "arguments" | "parameters" if !self.has_arguments => {
                if character != '{' {
                    return CallStep::Broken;
                }
                self.has_arguments = true;
                self.at = At::Arguments(writer);
            }
            _ => self.at = At::Other(writer),
        }
        self.push(character)
    }
}
