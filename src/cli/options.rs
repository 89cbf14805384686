//! The options of `nereid serve`: Triton's flags, parsed and checked against each other (contract/cli.md).

use std::ffi::{OsStr, OsString};
use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

use super::Arguments;
use super::flags::{Action, Flag, flags};
use super::getopt::{Item, Items};
use super::given::{ControlMode, Given};
use super::help;
use super::shown_flags::{flag_values, shown};
use super::values::{Value, ValueError};

use nereid_backend::check_key;
use nereid_request::Status;

pub use super::given::WithoutEffect;
pub use crate::server::inspect::FlagValue;
pub use crate::server::options::{
    BackendSetting, CacheSetting, Clouds, EngineMetrics, HostPolicySetting, IoCores, IoEngine, Listen, ModelControl,
    Options as ServeOptions, Orca, RateLimitResource, Restriction, RunToCompletion,
};

/// Variables that are set by supervisors which route clients by readiness.
pub(super) const SUPERVISORS: [&str; 2] = ["NOTIFY_SOCKET", "KUBERNETES_SERVICE_HOST"];
/// The default of `--drain-delay` under such a supervisor: a balancer needs a few seconds to see that a server is not
/// ready.
pub(super) const SUPERVISED_DRAIN_DELAY: Duration = Duration::from_secs(5);

/// Why the server does not start; [`OptionsError::report`] is the text for its user.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    #[error("")]
    Help,
    /// getopt's own line. The usage text, which Triton prints behind it, would hide it.
    #[error("{0}")]
    Getopt(String),
    #[error("Bad option: \"--{flag}\".\n{error}")]
    BadOption { flag: &'static str, error: ValueError },
    #[error("Bad option: \"--trace-config {setting}\".\n{error}")]
    TraceSetting { setting: String, error: ValueError },
    #[error("Bad option: \"{variable}\".\n{error}")]
    Variable { variable: &'static str, error: ValueError },
    /// AIP_HTTP_PORT, which has no name in its message.
    #[error("{0}")]
    VertexPort(ValueError),
    #[error("Unexpected argument: {0}")]
    Unexpected(String),
    #[error("Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well.")]
    LoadModel,
    #[error("Error: Use of '--{0}' requires setting '--model-load-on-demand=true' as well.")]
    NotOnDemand(&'static str),
    #[error(
        "Error: '--model-load-on-demand' does not go with '--model-control-mode=poll'; use the mode explicit or none."
    )]
    OnDemandPoll,
    #[error(
        "Error: Incompatible flags --response-cache-byte-size and --cache-config both provided. Please provide one or \
         the other."
    )]
    TwoCaches,
    #[error("The server cannot listen to {0} requests and {1} requests at the same address and port {2}:{3}")]
    Collision(&'static str, &'static str, String, i32),
    #[error("The server cannot listen to {name} requests at port {port}, allowed port range is [{low}, {high}]")]
    UnsafePort { name: &'static str, port: i32, low: i32, high: i32 },
    /// An option that Triton's core would refuse: the function, and the reason.
    #[error("Failed to build Triton option:\nerror: {what}: {} - {}", .status.code.name(), .status.message)]
    Build { what: &'static str, status: Status },
}

impl OptionsError {
    /// The whole text for stderr. The process exits with 1 after it, also after `--help`.
    pub fn report(&self) -> String {
        match self {
            OptionsError::Help => usage(),
            OptionsError::Getopt(line) => format!("{line}\n"),
            OptionsError::Build { .. } => format!("{self}\n"),
            _ => format!("{}\n{self}\n", usage()),
        }
    }

    /// The text for stderr where the program does not stand in Triton's place: the error, and where help is.
    pub fn brief(&self) -> String {
        let flag = match self {
            OptionsError::BadOption { flag, .. } => flags().find(|one| one.name == *flag),
            _ => None,
        };
        let explained = flag.map(|flag| format!("{}: {}\n", help::synopsis(flag), flag.help)).unwrap_or_default();
        format!("{self}\n{explained}`nereid help serve` explains the flags.\n")
    }
}

/// A command line that can be served.
#[derive(Debug, Clone, PartialEq)]
pub struct CommandLine {
    pub options: ServeOptions,
    /// For the log.
    pub without_effect: Vec<WithoutEffect>,
    /// Every flag with its value, for the inspect page.
    pub flags: Vec<FlagValue>,
}

impl ServeOptions {
    /// [`CommandLine::parse`] for callers that need only the options.
    pub fn parse(
        arguments: &Arguments,
        environment: impl Fn(&str) -> Option<OsString>,
    ) -> Result<ServeOptions, OptionsError> {
        CommandLine::parse(arguments, environment, |_| ()).map(|line| line.options)
    }
}

impl CommandLine {
    /// `environment` looks up a variable: `|name| std::env::var_os(name)`. `warn` gets lines for stderr, also where
    /// an error follows them.
    pub fn parse(
        arguments: &Arguments,
        environment: impl Fn(&str) -> Option<OsString>,
        warn: impl FnMut(&str),
    ) -> Result<CommandLine, OptionsError> {
        let mut given = Given::new();
        let read = given.read(arguments, &environment);
        given.warnings.iter().map(String::as_str).for_each(warn);
        let flags = flag_values(&given.shown, &environment);
        read.map(|()| CommandLine { options: given.options, without_effect: given.without_effect, flags })
    }
}

/// A command line that is read past its errors, for a report on all of it.
#[derive(Debug)]
pub struct Survey {
    /// As far as they could be read.
    pub options: ServeOptions,
    /// In the order of the command line.
    pub flags: Vec<SurveyedFlag>,
    /// What belongs to no flag: unknown flags, words, and flags that do not go together.
    pub errors: Vec<OptionsError>,
}

/// One use of a flag.
#[derive(Debug)]
pub struct SurveyedFlag {
    pub flag: &'static Flag,
    pub value: Option<OsString>,
    pub error: Option<OptionsError>,
}

impl Survey {
    /// As [`CommandLine::parse`], which stops at the first of these errors.
    pub fn of(arguments: &Arguments, environment: &dyn Fn(&str) -> Option<OsString>) -> Survey {
        let mut given = Given::new();
        let (mut flags, mut errors) = (Vec::new(), Vec::new());
        errors.extend(given.begin(environment).err());
        let mut items = Items::new(&arguments.program, &arguments.words);
        let mut follows_unknown = false;
        while let Some(item) = items.next() {
            let may_be_value = std::mem::take(&mut follows_unknown);
            match item {
                Ok(Item::Flag(flag, value)) => {
                    let error = given.apply(flag, value).err();
                    flags.push(SurveyedFlag { flag, value: value.map(OsStr::to_owned), error });
                }
                Ok(Item::Word(_)) if may_be_value => {}
                Ok(Item::Word(word)) => {
                    errors.push(OptionsError::Unexpected(word.to_string_lossy().into_owned()));
                }
                Err(line) => {
                    errors.push(OptionsError::Getopt(line));
                    follows_unknown = true;
                    items.go_on();
                }
            }
        }
        errors.extend(given.finish(environment).err());
        Survey { options: given.options, flags, errors }
    }
}

impl Given {
    fn read(
        &mut self,
        arguments: &Arguments,
        environment: &dyn Fn(&str) -> Option<OsString>,
    ) -> Result<(), OptionsError> {
        self.begin(environment)?;
        let mut unexpected = None;
        for item in Items::new(&arguments.program, &arguments.words) {
            match item.map_err(OptionsError::Getopt)? {
                Item::Flag(flag, value) => self.apply(flag, value)?,
                Item::Word(word) => {
                    unexpected.get_or_insert(word);
                }
            }
        }
        if let Some(word) = unexpected {
            return Err(OptionsError::Unexpected(word.to_string_lossy().into_owned()));
        }
        self.finish(environment)
    }

    /// What depends on all flags together.
    fn finish(&mut self, environment: &dyn Fn(&str) -> Option<OsString>) -> Result<(), OptionsError> {
        self.complete(environment)?;
        self.check_ports()?;
        self.check_as_the_core_does()
    }

    /// Defaults that the environment sets (contract/cli.md section 4).
    fn begin(&mut self, environment: &dyn Fn(&str) -> Option<OsString>) -> Result<(), OptionsError> {
        if environment("AIP_MODE").is_some_and(|mode| mode == "PREDICTION") {
            self.options.vertex.allowed = true;
            self.options.http.allowed = false;
            self.options.grpc.allowed = false;
        }
        if let Some(port) = environment("AIP_HTTP_PORT").filter(|port| !port.is_empty()) {
            let port = Value { flag: "vertex-ai-port", raw: &port }.int();
            self.options.vertex.port = port.map_err(OptionsError::VertexPort)?;
        }
        Ok(())
    }

    fn apply(&mut self, flag: &'static Flag, value: Option<&OsStr>) -> Result<(), OptionsError> {
        self.shown.push((flag.name, shown(flag.name, value.map(OsStr::to_string_lossy).as_deref())));
        let value = Value { flag: flag.name, raw: value.unwrap_or_default() };
        let done = match flag.action {
            Action::Help => return Err(OptionsError::Help),
            Action::Set(set) => set(self, value),
            Action::ForGpus(set) => {
                self.options.note_for_gpus(&format!("--{}", flag.name));
                set(self, value)
            }
            Action::Idle(check, reason) => check(self, value).map(|()| self.note_idle(flag.name, reason)),
        };
        done.map_err(|error| OptionsError::BadOption { flag: flag.name, error })
    }

    /// Values that depend on others, and the environment (contract/cli.md section 4).
    fn complete(&mut self, environment: &dyn Fn(&str) -> Option<OsString>) -> Result<(), OptionsError> {
        if self.cache_config && self.response_cache {
            return Err(OptionsError::TwoCaches);
        }
        let (traces, warnings) = self.trace.finish(environment)?;
        self.options.traces = traces;
        self.warnings.extend(warnings);
        self.complete_models(environment)?;
        let options = &mut self.options;
        let is_set = |name: &str| environment(name).is_some_and(|value| !value.is_empty());
        let is_supervised = SUPERVISORS.iter().any(|name| is_set(name));
        let drain_delay = if is_supervised { SUPERVISED_DRAIN_DELAY } else { Duration::ZERO };
        options.drain_delay = self.drain_delay.unwrap_or(drain_delay);
        options.openai.is_on_by_models = self.allow_openai.is_none();
        options.openai.listen.allowed = self.allow_openai.unwrap_or(self.has_openai_port);
        options.clouds = clouds(environment);
        options.escape_log_messages = environment("TRITON_SERVER_ESCAPE_LOG_MESSAGES").is_none_or(|value| value != "0");
        if options.metrics.address.is_empty() {
            options.metrics.address = options.http.address.clone();
        }
        options.allow_cpu_metrics &= options.metrics.allowed;
        options.allow_gpu_metrics &= options.metrics.allowed;
        Ok(())
    }

    /// Resolves the model repositories, the control mode and auto-completion.
    fn complete_models(&mut self, environment: &dyn Fn(&str) -> Option<OsString>) -> Result<(), OptionsError> {
        let is_strict = self.strict_model_config;
        if self.disables_auto_complete && is_strict == Some(false) {
            self.warn(
                "Overriding deprecated '--strict-model-config' from False to True in favor of \
                 '--disable-auto-complete-config'!",
            );
        }
        let options = &mut self.options;
        options.auto_complete_config = !(self.disables_auto_complete || is_strict == Some(true));
        options.model_control = match self.control_mode {
            ControlMode::None => ModelControl::None,
            ControlMode::Poll => ModelControl::Poll { period_secs: self.poll_secs },
            ControlMode::Explicit => ModelControl::Explicit,
        };
        if !options.startup_models.is_empty() && options.model_control != ModelControl::Explicit {
            return Err(OptionsError::LoadModel);
        }
        if options.residency.on_demand && matches!(options.model_control, ModelControl::Poll { .. }) {
            return Err(OptionsError::OnDemandPoll);
        }
        if let Some(flag) = options.residency.needs_on_demand().filter(|_| !options.residency.on_demand) {
            return Err(OptionsError::NotOnDemand(flag));
        }
        options.startup_models.sort();
        options.startup_models.dedup();
        if options.model_repositories.is_empty() {
            let uri = environment("AIP_STORAGE_URI").filter(|uri| !uri.is_empty());
            options.model_repositories.extend(uri.map(PathBuf::from));
        }
        Ok(())
    }

    /// contract/cli.md section 3. Addresses are compared as they are written.
    fn check_ports(&self) -> Result<(), OptionsError> {
        let services = [
            ("HTTP", &self.options.http),
            ("GRPC", &self.options.grpc),
            ("metrics", &self.options.metrics),
            ("SageMaker", &self.options.sagemaker),
            ("Vertex AI", &self.options.vertex),
            ("OpenAI", &self.options.openai.listen),
        ];
        let mut allowed = services.iter().filter(|(_, listen)| listen.allowed);
        while let Some((name, listen)) = allowed.next() {
            // Port 0 is any that is free.
            let same =
                |other: &Listen| other.port != 0 && (&other.address, other.port) == (&listen.address, listen.port);
            if let Some((other, _)) = allowed.clone().find(|(_, other)| same(other)) {
                return Err(OptionsError::Collision(name, other, listen.address.clone(), listen.port));
            }
        }
        let Some((low, high)) = self.safe_ports.filter(|_| self.options.sagemaker.allowed) else { return Ok(()) };
        let is_unsafe = |listen: &Listen| {
            listen.allowed && listen.address == self.options.sagemaker.address && !(low..=high).contains(&listen.port)
        };
        let others = services.iter().filter(|(name, _)| *name != "SageMaker");
        match others.into_iter().find(|(_, listen)| is_unsafe(listen)) {
            Some((name, listen)) => Err(OptionsError::UnsafePort { name, port: listen.port, low, high }),
            None => Ok(()),
        }
    }

    /// Values that parse and that Triton's core does not take.
    fn check_as_the_core_does(&mut self) -> Result<(), OptionsError> {
        const WHAT: &str = "setting model load GPU limit";
        for (device, fraction) in &self.gpu_limits {
            if *device < 0 {
                let text = format!("expects device ID >= 0, got {device}");
                return Err(OptionsError::Build { what: WHAT, status: Status::invalid(text) });
            }
            if !(0.0..=1.0).contains(fraction) {
                let text = format!("expects limit fraction to be in range [0.0, 1.0], got {fraction:.6}");
                return Err(OptionsError::Build { what: WHAT, status: Status::invalid(text) });
            }
            self.options.gpu_load_limits.insert(*device, *fraction);
        }
        for HostPolicySetting { key, .. } in &self.options.host_policies {
            check_key(key).map_err(|status| OptionsError::Build { what: "setting host policy", status })?;
        }
        Ok(())
    }
}

/// The ports of the clouds, from the environment.
fn clouds(environment: &dyn Fn(&str) -> Option<OsString>) -> Clouds {
    let text = |name: &str| environment(name).map(|value| value.to_string_lossy().into_owned()).unwrap_or_default();
    Clouds {
        ping_mode: text("SAGEMAKER_TRITON_PING_MODE"),
        default_model: text("SAGEMAKER_TRITON_DEFAULT_MODEL_NAME"),
        inference_type: text("SAGEMAKER_TRITON_INFERENCE_TYPE"),
        health_route: text("AIP_HEALTH_ROUTE"),
        predict_route: text("AIP_PREDICT_ROUTE"),
    }
}

/// The text of `--help`.
pub fn usage() -> String {
    let mut text = "Usage: tritonserver [options]\n".to_owned();
    let mut group = "";
    // Writing to a String cannot fail.
    for flag in flags() {
        if flag.group != group {
            group = flag.group;
            let _ = writeln!(text, "\n{group}:");
        }
        let _ = match flag.value {
            Some(value) if value.contains('<') => writeln!(text, "  --{} {value}", flag.name),
            Some(value) => writeln!(text, "  --{} <{value}>", flag.name),
            None => writeln!(text, "  --{}", flag.name),
        };
        let _ = writeln!(text, "        {}", flag.help);
        let _ = match flag.action {
            Action::Idle(_, reason) => writeln!(text, "        Without effect: {reason}."),
            Action::Help | Action::Set(_) | Action::ForGpus(_) => Ok(()),
        };
    }
    text
}

#[cfg(test)]
mod tests;
