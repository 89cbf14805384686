//! The values of a command line, flag by flag, before they are checked against each other.

use std::time::Duration;

use super::options::{Restriction, ServeOptions};
use super::trace::TraceSettings;
use super::values::{Value, ValueError};

/// Fills up while flags are read.
#[derive(Debug, Default)]
pub struct Given {
    pub options: ServeOptions,
    pub control_mode: ControlMode,
    pub poll_secs: u32,
    pub disables_auto_complete: bool,
    pub strict_model_config: Option<bool>,
    /// Device, and the share of its memory.
    pub gpu_limits: Vec<(i32, f64)>,
    /// The lowest and the highest port that services beside SageMaker's may have.
    pub safe_ports: Option<(i32, i32)>,
    pub drain_delay: Option<Duration>,
    pub cache_config: bool,
    pub response_cache: bool,
    pub trace: TraceSettings,
    /// `--allow-openai`.
    pub allow_openai: Option<bool>,
    pub has_openai_port: bool,
    pub without_effect: Vec<WithoutEffect>,
    /// The flags of the command line, with their values as other people may see them.
    pub shown: Vec<(&'static str, String)>,
    /// Lines for stderr, in the order in which they arose.
    pub warnings: Vec<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ControlMode {
    #[default]
    None,
    Poll,
    Explicit,
}

/// A flag that was checked and accepted, and has no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WithoutEffect {
    pub flag: &'static str,
    pub reason: &'static str,
}

/// The default seconds between two polls of the repository.
const POLL_SECS: u32 = 15;

impl Given {
    pub fn new() -> Given {
        let mut given = Given { poll_secs: POLL_SECS, ..Given::default() };
        // Empty: that of HTTP, whatever a flag sets it to.
        given.options.metrics.address.clear();
        given
    }

    pub fn warn(&mut self, text: &str) {
        self.warnings.push(format!("Warning: {text}"));
    }

    /// Records, once, that `flag` has no effect.
    pub fn note_idle(&mut self, flag: &'static str, reason: &'static str) {
        if !self.without_effect.iter().any(|noted| noted.flag == flag) {
            self.without_effect.push(WithoutEffect { flag, reason });
        }
    }
}

/// The name of a group in error texts.
pub const HTTP_API: &str = "api";
pub const GRPC_PROTOCOL: &str = "protocol";

/// contract/cli.md section 3.
pub const GROUPS: [&str; 9] = [
    "health",
    "metadata",
    "inference",
    "shared-memory",
    "model-config",
    "model-repository",
    "statistics",
    "trace",
    "logging",
];

/// Adds `<groups>:<key>=<value>` to the restrictions of earlier flags. A group may be named once in all.
pub fn restrict(given: &mut Vec<Restriction>, value: Value<'_>, kind: &'static str) -> Result<(), ValueError> {
    let [groups, key, secret] = value.named_setting(':', "<config name>:<setting>=<value>")?;
    for group in groups.split(',').map(str::to_owned) {
        if !GROUPS.contains(&group.as_str()) {
            return Err(ValueError::UnknownGroup { kind, group });
        }
        if given.iter().any(|restriction| restriction.group == group) {
            return Err(ValueError::GroupTwice { kind, group });
        }
        given.push(Restriction { group, key: key.clone(), value: secret.clone() });
    }
    Ok(())
}
