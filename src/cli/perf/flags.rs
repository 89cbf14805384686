//! The one table of flags: perf_analyzer's wherever the meaning is the same, and Nereid's own.
//!
//! Each of perf_analyzer's is honoured, or is refused by name with a replacement: a script never measures something
//! else than it requested without an error.

mod client;
mod input;
mod load;
mod openai;
mod refused;
mod reports;
mod rules;
mod server;

use super::given::Given;
use super::mistake::Mistake;
use super::value::Value;

#[derive(Debug)]
pub struct Flag {
    /// Its long name. A flag that is only a letter in perf_analyzer has a name of ours.
    pub name: &'static str,
    pub letter: Option<char>,
    /// True if perf_analyzer does not have the long name.
    pub is_own: bool,
    /// The name of its value; `None` if it takes no value.
    pub value: Option<&'static str>,
    pub help: &'static str,
    pub action: Action,
}

#[derive(Debug)]
pub enum Action {
    Help,
    Version,
    Switch(fn(&mut Given)),
    Set(fn(&mut Given, &Value<'_>) -> Result<(), Mistake>),
    /// Refused, for this reason and with this replacement.
    Refuse(&'static str),
}

/// Flags that the help text lists together.
#[derive(Debug)]
pub struct Group {
    pub title: &'static str,
    pub flags: &'static [Flag],
}

pub static GROUPS: [Group; 8] = [
    Group { title: "Server and model", flags: server::FLAGS },
    Group { title: "Load", flags: load::FLAGS },
    Group { title: "When a figure counts", flags: rules::FLAGS },
    Group { title: "Requests", flags: input::FLAGS },
    Group { title: "Requests to OpenAI's interface (--service-kind openai)", flags: openai::FLAGS },
    Group { title: "This client", flags: client::FLAGS },
    Group { title: "Reports", flags: reports::FLAGS },
    Group { title: "Flags of perf_analyzer that are refused", flags: refused::FLAGS },
];

pub fn flags() -> impl Iterator<Item = &'static Flag> + Clone {
    GROUPS.iter().flat_map(|group| group.flags)
}

impl Flag {
    pub fn takes_value(&self) -> bool {
        self.value.is_some()
    }

    const fn set(
        name: &'static str,
        value: &'static str,
        help: &'static str,
        set: fn(&mut Given, &Value<'_>) -> Result<(), Mistake>,
    ) -> Flag {
        Flag { name, letter: None, is_own: false, value: Some(value), help, action: Action::Set(set) }
    }

    const fn switch(name: &'static str, help: &'static str, set: fn(&mut Given)) -> Flag {
        Flag { name, letter: None, is_own: false, value: None, help, action: Action::Switch(set) }
    }

    const fn or(mut self, letter: char) -> Flag {
        self.letter = Some(letter);
        self
    }

    const fn own(mut self) -> Flag {
        self.is_own = true;
        self
    }
}
