//! The settings of traces, from `--trace-config` and from the five flags that came before it (cli.md section 2).
//!
//! There are no traces yet: what counts is whether a level is on, and that everything is checked all the same.

use std::ffi::OsString;

use super::options::OptionsError;
use super::values::{Value, ValueError};

/// What the flags said, in their order.
#[derive(Debug, Default)]
pub struct TraceSettings {
    settings: Vec<Setting>,
    pub old: OldFlags,
    /// Every level named, as bits.
    levels: u8,
    /// `--trace-level=off` was given, which nothing undoes.
    forces_off: bool,
}

/// Which of the flags that came before `--trace-config` were used.
#[derive(Debug, Default)]
pub struct OldFlags {
    pub file: bool,
    pub level: bool,
    pub rate: bool,
    pub count: bool,
    pub log_frequency: bool,
}

#[derive(Debug)]
struct Setting {
    /// `None`: for all modes.
    mode: Option<Mode>,
    key: String,
    value: String,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Mode {
    #[default]
    Triton,
    OpenTelemetry,
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Mode::Triton => "triton",
            Mode::OpenTelemetry => "opentelemetry",
        }
    }
}

const OFF: u8 = 0;
const TIMESTAMPS: u8 = 1;
const TENSORS: u8 = 2;

/// The numbers of the span processor, whose defaults the environment has.
const BSP_VARIABLES: [&str; 3] =
    ["OTEL_BSP_MAX_QUEUE_SIZE", "OTEL_BSP_SCHEDULE_DELAY", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE"];
const BSP_SETTINGS: [&str; 3] = ["bsp_max_queue_size", "bsp_schedule_delay", "bsp_max_export_batch_size"];

impl TraceSettings {
    /// A use of `--trace-config`. What its setting means is looked at in [`TraceSettings::finish`].
    pub fn add(&mut self, value: Value<'_>) -> Result<(), ValueError> {
        let (mode, key, value) = value.optional_name(
            "trace mode",
            "<trace mode>,<setting>=<value> or <setting>=<value>",
            "<trace mode>,<setting>=<value>",
        )?;
        let mode = mode.map(|mode| mode_of(&mode)).transpose()?;
        self.settings.push(Setting { mode, key, value });
        Ok(())
    }

    /// A use of `--trace-level`.
    pub fn add_old_level(&mut self, value: Value<'_>) -> Result<(), ValueError> {
        self.old.level = true;
        let level = level_of(&value.text())?;
        self.forces_off |= level == OFF;
        self.levels |= level;
        Ok(())
    }

    /// Whether requests would be traced.
    pub fn is_on(&self) -> bool {
        self.levels != OFF && !self.forces_off
    }

    /// Reads the settings: those of all modes, then those of the mode that was chosen. Returns the warnings.
    pub fn finish(&mut self, environment: &dyn Fn(&str) -> Option<OsString>) -> Result<Vec<String>, OptionsError> {
        let mut warnings = Vec::new();
        let mut overrides = |is_old: bool, flag: &str, what: &str| {
            let text = format!(
                "Warning: Overriding deprecated '--trace-{flag}' in favor of provided {what} in --trace-config!"
            );
            if is_old && !warnings.contains(&text) {
                warnings.push(text);
            }
        };
        let (mut mode, mut levels) = (Mode::default(), self.levels);
        for setting in self.settings.iter().filter(|setting| setting.mode.is_none()) {
            let read = match setting.key.as_str() {
                "rate" => {
                    overrides(self.old.rate, "rate", "rate value");
                    number(&setting.value)
                }
                "count" => {
                    overrides(self.old.count, "count", "count");
                    number(&setting.value)
                }
                "level" => {
                    overrides(self.old.level, "level", "level");
                    level_of(&setting.value).map(|level| levels |= level)
                }
                "mode" => mode_of(&setting.value).map(|given| mode = given),
                _ => Ok(()),
            };
            read.map_err(|error| OptionsError::TraceSetting { setting: setting.key.clone(), error })?;
        }
        let of_mode: Vec<&Setting> = self.settings.iter().filter(|setting| setting.mode == Some(mode)).collect();
        for setting in &of_mode {
            let read = match (mode, setting.key.as_str()) {
                (Mode::Triton, "file") => {
                    overrides(self.old.file, "file", "file");
                    Ok(())
                }
                (Mode::Triton, "log-frequency") => {
                    overrides(self.old.log_frequency, "log-frequency", "log-frequency");
                    number(&setting.value)
                }
                (Mode::OpenTelemetry, key) if BSP_SETTINGS.contains(&key) => number(&setting.value),
                _ => Ok(()),
            };
            let name = || format!("{},{}", mode.name(), setting.key);
            read.map_err(|error| OptionsError::TraceSetting { setting: name(), error })?;
        }
        if mode == Mode::OpenTelemetry {
            check_environment(environment)?;
            let ignored = [(self.old.file, "file"), (self.old.log_frequency, "log-frequency")];
            warnings.extend(ignored.into_iter().filter(|(is_old, _)| *is_old).map(|(_, flag)| {
                format!("Warning: '--trace-{flag}' is deprecated and will be ignored with opentelemetry tracing mode.")
            }));
        }
        self.levels = levels;
        Ok(warnings)
    }
}

fn check_environment(environment: &dyn Fn(&str) -> Option<OsString>) -> Result<(), OptionsError> {
    for variable in BSP_VARIABLES {
        let value = environment(variable).filter(|value| !value.is_empty());
        if let Some(value) = value {
            number(&value.to_string_lossy()).map_err(|error| OptionsError::Variable { variable, error })?;
        }
    }
    Ok(())
}

fn number(text: &str) -> Result<(), ValueError> {
    Value { flag: "trace-config", raw: text.as_ref() }.int().map(|_| ())
}

fn level_of(text: &str) -> Result<u8, ValueError> {
    let word = text.to_ascii_lowercase();
    match word.as_str() {
        "off" | "false" => Ok(OFF),
        "true" | "on" | "min" | "max" | "timestamps" => Ok(TIMESTAMPS),
        "tensors" => Ok(TENSORS),
        _ => Err(ValueError::TraceLevel(word)),
    }
}

fn mode_of(text: &str) -> Result<Mode, ValueError> {
    let word = text.to_ascii_lowercase();
    let modes = [Mode::Triton, Mode::OpenTelemetry];
    modes.into_iter().find(|mode| mode.name() == word).ok_or(ValueError::TraceMode(word))
}
