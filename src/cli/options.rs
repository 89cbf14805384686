//! What `nereid serve` was asked to do: Triton's flags, parsed and checked against each other (cli.md).

use std::ffi::{OsStr, OsString};
use std::fmt::Write;
use std::path::PathBuf;

use super::Arguments;
use super::flags::{Action, FLAGS, Flag};
use super::getopt::{Item, Items};
use super::values::{Value, ValueError};

pub use crate::server::options::{
    BackendSetting, HostPolicySetting, IoCores, IoEngine, Listen, ModelControl, Options as ServeOptions,
};

/// Why the server does not start; [`OptionsError::report`] is what its user sees.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    #[error("")]
    Help,
    /// getopt's own line, which comes before the usage text.
    #[error("{0}")]
    Getopt(String),
    #[error("Bad option: \"--{flag}\".\n{error}")]
    BadOption { flag: &'static str, error: ValueError },
    #[error("--{0} is not supported by this version of Nereid")]
    Unbuilt(&'static str),
    #[error("Unexpected argument: {0}")]
    Unexpected(String),
    #[error("AIP_MODE=PREDICTION asks for --allow-vertex-ai, which is not supported by this version of Nereid")]
    VertexAi,
    #[error("The server cannot listen to {0} requests and {1} requests at the same address and port {2}:{3}")]
    Collision(&'static str, &'static str, String, i32),
}

impl OptionsError {
    /// The whole text for stderr. The process exits with 1 after it, also after `--help`.
    pub fn report(&self) -> String {
        match self {
            OptionsError::Help => usage(),
            OptionsError::Getopt(line) => format!("{line}\n{}", usage()),
            OptionsError::BadOption { .. } | OptionsError::Unbuilt(_) | OptionsError::Unexpected(_) => {
                format!("{}\n{self}\n", usage())
            }
            OptionsError::VertexAi | OptionsError::Collision(..) => format!("{self}\n"),
        }
    }
}

impl ServeOptions {
    /// `environment` looks up a variable: `|name| std::env::var_os(name)`.
    pub fn parse(
        arguments: &Arguments,
        environment: impl Fn(&str) -> Option<OsString>,
    ) -> Result<ServeOptions, OptionsError> {
        let mut options = ServeOptions::default();
        options.metrics.address.clear();
        let mut unexpected = None;
        for item in Items::new(&arguments.program, &arguments.words) {
            match item.map_err(OptionsError::Getopt)? {
                Item::Flag(flag, value) => options.apply(flag, value)?,
                Item::Word(word) => {
                    unexpected.get_or_insert(word);
                }
            }
        }
        if let Some(word) = unexpected {
            return Err(OptionsError::Unexpected(word.to_string_lossy().into_owned()));
        }
        options.complete(environment)?;
        options.check_ports()?;
        Ok(options)
    }

    fn apply(&mut self, flag: &'static Flag, value: Option<&OsStr>) -> Result<(), OptionsError> {
        let value = Value { flag: flag.name, raw: value.unwrap_or_default() };
        match flag.action {
            Action::Help => Err(OptionsError::Help),
            Action::Unbuilt => Err(OptionsError::Unbuilt(flag.name)),
            Action::Set(set) => set(self, value).map_err(|error| OptionsError::BadOption { flag: flag.name, error }),
        }
    }

    /// Values that depend on others, and the environment (cli.md section 4).
    fn complete(&mut self, environment: impl Fn(&str) -> Option<OsString>) -> Result<(), OptionsError> {
        if environment("AIP_MODE").is_some_and(|mode| mode == "PREDICTION") {
            return Err(OptionsError::VertexAi);
        }
        if self.model_repositories.is_empty() {
            let uri = environment("AIP_STORAGE_URI").filter(|uri| !uri.is_empty());
            self.model_repositories.extend(uri.map(PathBuf::from));
        }
        self.escape_log_messages = environment("TRITON_SERVER_ESCAPE_LOG_MESSAGES").is_none_or(|value| value != "0");
        if self.metrics.address.is_empty() {
            self.metrics.address = self.http.address.clone();
        }
        self.allow_cpu_metrics &= self.metrics.allowed;
        Ok(())
    }

    /// cli.md section 3. Addresses are compared as they are written.
    fn check_ports(&self) -> Result<(), OptionsError> {
        let services = [("HTTP", &self.http), ("GRPC", &self.grpc), ("metrics", &self.metrics)];
        let mut allowed = services.iter().filter(|(_, listen)| listen.allowed);
        while let Some((name, listen)) = allowed.next() {
            let same = |other: &Listen| (&other.address, other.port) == (&listen.address, listen.port);
            if let Some((other, _)) = allowed.clone().find(|(_, other)| same(other)) {
                return Err(OptionsError::Collision(name, other, listen.address.clone(), listen.port));
            }
        }
        Ok(())
    }
}

/// The text of `--help`.
pub fn usage() -> String {
    let mut text = "Usage: tritonserver [options]\n".to_owned();
    let mut group = "";
    // Writing to a String cannot fail.
    for flag in FLAGS.iter().filter(|flag| !matches!(flag.action, Action::Unbuilt)) {
        if flag.group != group {
            group = flag.group;
            let _ = writeln!(text, "\n{group}:");
        }
        let _ = match flag.value {
            Some(value) => writeln!(text, "  --{} <{value}>", flag.name),
            None => writeln!(text, "  --{}", flag.name),
        };
        let _ = writeln!(text, "        {}", flag.help);
    }
    text.push_str("\nFlags of Triton that this version of Nereid does not support:\n");
    for flag in FLAGS.iter().filter(|flag| matches!(flag.action, Action::Unbuilt)) {
        let _ = writeln!(text, "  --{}", flag.name);
    }
    text
}

#[cfg(test)]
mod tests;
