//! What `nereid serve` was asked to do: Triton's flags, parsed and checked against each other (cli.md).

use std::ffi::{OsStr, OsString};
use std::fmt::Write;
use std::path::PathBuf;

use super::Arguments;
use super::flags::{Action, FLAGS, Flag};
use super::getopt::{Item, Items};
use super::values::{Value, ValueError};
use crate::observe::log::LogSettings;

/// One listening service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listen {
    pub allowed: bool,
    pub address: String,
    /// Not checked for its range: binding does that (cli.md section 3).
    pub port: i32,
    /// SO_REUSEPORT.
    pub reuse_port: bool,
}

/// A `--backend-config`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendSetting {
    /// `None`: for every backend.
    pub backend: Option<String>,
    pub key: String,
    pub value: String,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum IoEngine {
    /// io_uring where the kernel has what it takes, else epoll.
    #[default]
    Auto,
    IoUring,
    Epoll,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServeOptions {
    pub server_id: String,
    pub exit_timeout_secs: u32,
    pub log: LogSettings,
    /// False where TRITON_SERVER_ESCAPE_LOG_MESSAGES is `0`.
    pub escape_log_messages: bool,
    /// May be empty: creating the server fails then, with `--model-repository must be specified`.
    pub model_repositories: Vec<PathBuf>,
    pub exit_on_error: bool,
    pub auto_complete_config: bool,
    pub strict_readiness: bool,
    pub http: Listen,
    /// Bytes; at least 1.
    pub http_max_input_size: u64,
    pub grpc: Listen,
    pub metrics: Listen,
    /// False where there are no metrics at all.
    pub allow_cpu_metrics: bool,
    pub metrics_interval_ms: u32,
    pub backend_directory: PathBuf,
    /// In the order of the command line.
    pub backend_settings: Vec<BackendSetting>,
    /// `None`: by the number of cores.
    pub io_cores: Option<usize>,
    pub io_engine: IoEngine,
}

impl Default for ServeOptions {
    fn default() -> ServeOptions {
        let listen = |port| Listen { allowed: true, address: "0.0.0.0".to_owned(), port, reuse_port: false };
        ServeOptions {
            server_id: "triton".to_owned(),
            exit_timeout_secs: 30,
            log: LogSettings::default(),
            escape_log_messages: true,
            model_repositories: Vec::new(),
            exit_on_error: true,
            auto_complete_config: true,
            strict_readiness: true,
            http: listen(8000),
            http_max_input_size: 64 << 20,
            grpc: listen(8001),
            metrics: listen(8002),
            allow_cpu_metrics: true,
            metrics_interval_ms: 2000,
            backend_directory: "/opt/tritonserver/backends".into(),
            backend_settings: Vec::new(),
            io_cores: None,
            io_engine: IoEngine::Auto,
        }
    }
}

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

    /// What `--backend-config` says to one backend: global settings first, so that a later one wins.
    pub fn settings_of(&self, backend: &str) -> Vec<(String, String)> {
        let of = |whose: Option<&str>| {
            let fitting = self.backend_settings.iter().filter(move |setting| setting.backend.as_deref() == whose);
            fitting.map(|setting| (setting.key.clone(), setting.value.clone())).collect::<Vec<_>>()
        };
        let mut settings = of(None);
        settings.extend(of(Some(backend)));
        settings
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
