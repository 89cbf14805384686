//! The one table of flags: Triton's 92 long options (contract/cli.md section 2) in Triton's order, and Nereid's own.
//!
//! A flag has its effect, or has no meaning here and is noted in the log. Every value is checked as Triton checks it in
//! any case.

mod backends;
mod clouds;
mod deprecated;
mod grpc;
mod http;
mod ipc;
mod memory;
mod metrics;
mod openai;
mod own;
mod record;
mod repository;
mod residency;
mod server;

use super::given::Given;
use super::values::{Value, ValueError};

/// One long option.
#[derive(Debug)]
pub struct Flag {
    pub name: &'static str,
    pub group: &'static str,
    /// The name of its value in the usage text; `None` if it takes no value.
    pub value: Option<&'static str>,
    pub help: &'static str,
    pub action: Action,
}

#[derive(Debug)]
pub enum Action {
    Help,
    Set(Set),
    /// The same, with an effect only where there is a GPU.
    ForGpus(Set),
    /// Checked, taken, and without effect for the reason given.
    Idle(Set, &'static str),
}

pub type Set = fn(&mut Given, Value<'_>) -> Result<(), ValueError>;

impl Flag {
    pub fn takes_value(&self) -> bool {
        self.value.is_some()
    }

    /// True if Triton does not have it.
    pub fn is_own(&self) -> bool {
        matches!(self.group, own::GROUP | openai::GROUP)
    }

    /// The setting that it changes: names with one target are one flag.
    pub fn target(&self) -> &'static str {
        match self.name {
            "model-store" => "model-repository",
            name => name,
        }
    }
}

/// The flags in the order of the usage text.
pub fn flags() -> impl Iterator<Item = &'static Flag> + Clone {
    static GROUPS: [&[Flag]; 14] = [
        server::FLAGS,
        repository::FLAGS,
        http::FLAGS,
        grpc::FLAGS,
        clouds::FLAGS,
        metrics::FLAGS,
        backends::FLAGS,
        memory::FLAGS,
        deprecated::FLAGS,
        own::FLAGS,
        residency::FLAGS,
        record::FLAGS,
        ipc::FLAGS,
        openai::FLAGS,
    ];
    GROUPS.iter().flat_map(|group| group.iter())
}

/// Makes the flags of one group.
#[derive(Clone, Copy)]
struct Group(&'static str);

impl Group {
    const fn set(self, name: &'static str, value: &'static str, help: &'static str, set: Set) -> Flag {
        Flag { name, group: self.0, value: Some(value), help, action: Action::Set(set) }
    }

    /// Takes no value.
    const fn switch(self, name: &'static str, help: &'static str, set: Set) -> Flag {
        Flag { name, group: self.0, value: None, help, action: Action::Set(set) }
    }

    const fn for_gpus(self, name: &'static str, value: &'static str, help: &'static str, set: Set) -> Flag {
        Flag { name, group: self.0, value: Some(value), help, action: Action::ForGpus(set) }
    }

    const fn idle(
        self,
        name: &'static str,
        value: &'static str,
        help: &'static str,
        reason: &'static str,
        check: Set,
    ) -> Flag {
        Flag { name, group: self.0, value: Some(value), help, action: Action::Idle(check, reason) }
    }
}
