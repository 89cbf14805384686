//! The settings of traces, from `--trace-config` and from the five flags that came before it
//! (contract/cli.md section 2).
//!
//! Values are read in two passes: those of all modes, among them which mode it is, then those of that mode. A value of
//! an old flag stands until the same is given the new way.

use std::ffi::OsString;

use super::options::OptionsError;
use super::values::{Value, ValueError};
use nereid_observe::trace::{Levels, Mode, SpanProcessor, TraceOptions};

/// The values of the flags, in their order.
#[derive(Debug, Default)]
pub struct TraceSettings {
    settings: Vec<Setting>,
    pub old: OldFlags,
    /// Every level named.
    levels: Levels,
    /// `--trace-level=off` was given, which nothing undoes.
    forces_off: bool,
}

/// The values of the five old flags.
#[derive(Debug, Default)]
pub struct OldFlags {
    pub file: Option<String>,
    pub level: bool,
    pub rate: Option<i32>,
    pub count: Option<i32>,
    pub log_frequency: Option<i32>,
}

#[derive(Debug)]
struct Setting {
    /// `None`: for all modes.
    mode: Option<Mode>,
    key: String,
    value: String,
}

/// The numbers of the span processor, whose defaults the environment has.
const BSP_VARIABLES: [&str; 3] =
    ["OTEL_BSP_MAX_QUEUE_SIZE", "OTEL_BSP_SCHEDULE_DELAY", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE"];
const BSP_SETTINGS: [&str; 3] = ["bsp_max_queue_size", "bsp_schedule_delay", "bsp_max_export_batch_size"];

impl TraceSettings {
    /// A use of `--trace-config`. [`TraceSettings::finish`] checks the setting.
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
        self.forces_off |= level.is_off();
        self.levels = self.levels.and(level);
        Ok(())
    }

    /// Reads the settings: those of all modes, then those of the mode that was chosen. Returns them and the warnings.
    pub fn finish(
        &self,
        environment: &dyn Fn(&str) -> Option<OsString>,
    ) -> Result<(TraceOptions, Vec<String>), OptionsError> {
        let mut warnings = Warnings::default();
        let mut options = self.of_old_flags();
        options.levels = self.levels;
        for Setting { key, value, .. } in self.settings.iter().filter(|setting| setting.mode.is_none()) {
            let old = &self.old;
            let read = match key.as_str() {
                "rate" => {
                    warnings.overrides(old.rate.is_some(), "rate", "rate value");
                    number(value).map(|rate| options.rate = rate as u32)
                }
                "count" => {
                    warnings.overrides(old.count.is_some(), "count", "count");
                    number(value).map(|count| options.count = count)
                }
                "level" => {
                    warnings.overrides(old.level, "level", "level");
                    level_of(value).map(|level| options.levels = options.levels.and(level))
                }
                "mode" => mode_of(value).map(|mode| options.mode = mode),
                _ => Ok(()),
            };
            read.map_err(|error| OptionsError::TraceSetting { setting: key.clone(), error })?;
        }
        if self.forces_off {
            options.levels = Levels::OFF;
        }
        match options.mode {
            Mode::Triton => self.read_files(&mut options, &mut warnings)?,
            Mode::OpenTelemetry => self.read_collector(&mut options, &mut warnings, environment)?,
        }
        Ok((options, warnings.0))
    }

    fn of_old_flags(&self) -> TraceOptions {
        let default = TraceOptions::default();
        let old = &self.old;
        TraceOptions {
            // As unsigned numbers, whatever the sign: so does Triton.
            rate: old.rate.map_or(default.rate, |rate| rate as u32),
            count: old.count.unwrap_or(default.count),
            log_frequency: old.log_frequency.map_or(default.log_frequency, |frequency| frequency as u32),
            file: old.file.clone().unwrap_or_default(),
            ..default
        }
    }

    fn of_mode(&self, mode: Mode) -> impl Iterator<Item = &Setting> {
        self.settings.iter().filter(move |setting| setting.mode == Some(mode))
    }

    /// Settings of the mode that writes files.
    fn read_files(&self, options: &mut TraceOptions, warnings: &mut Warnings) -> Result<(), OptionsError> {
        for Setting { key, value, .. } in self.of_mode(Mode::Triton) {
            let read = match key.as_str() {
                "file" => {
                    warnings.overrides(self.old.file.is_some(), "file", "file");
                    options.file.clone_from(value);
                    Ok(())
                }
                "log-frequency" => {
                    warnings.overrides(self.old.log_frequency.is_some(), "log-frequency", "log-frequency");
                    number(value).map(|frequency| options.log_frequency = frequency as u32)
                }
                _ => {
                    echo(&mut options.echoed, key, value);
                    Ok(())
                }
            };
            read.map_err(|error| wrong(Mode::Triton, key, error))?;
        }
        Ok(())
    }

    /// Settings of the mode that sends spans. The environment has defaults.
    fn read_collector(
        &self,
        options: &mut TraceOptions,
        warnings: &mut Warnings,
        environment: &dyn Fn(&str) -> Option<OsString>,
    ) -> Result<(), OptionsError> {
        let mut numbers = [None; BSP_SETTINGS.len()];
        for Setting { key, value, .. } in self.of_mode(Mode::OpenTelemetry) {
            if let Some(at) = BSP_SETTINGS.iter().position(|name| name == key) {
                numbers[at] = Some(number(value).map_err(|error| wrong(Mode::OpenTelemetry, key, error))?);
            }
            match key.as_str() {
                "url" => options.url.clone_from(value),
                "resource" => {
                    let (name, given) = value.split_once('=').unwrap_or((value, ""));
                    options.resources.push((name.to_owned(), given.to_owned()));
                }
                _ => {}
            }
            echo(&mut options.echoed, key, value);
        }
        let defaults =
            [options.processor.queue_max as u64, options.processor.delay_ms, options.processor.batch_max as u64];
        let mut values = [0u64; BSP_SETTINGS.len()];
        for (at, variable) in BSP_VARIABLES.into_iter().enumerate() {
            let given = environment(variable).filter(|value| !value.is_empty());
            let of_environment = match given {
                None => None,
                Some(value) => {
                    Some(number(&value.to_string_lossy()).map_err(|error| OptionsError::Variable { variable, error })?)
                }
            };
            let chosen = numbers[at].or(of_environment);
            values[at] = chosen.map_or(defaults[at], |number| u64::try_from(number).unwrap_or(0));
            if numbers[at].is_none() {
                echo(
                    &mut options.echoed,
                    BSP_SETTINGS[at],
                    &chosen.map_or(defaults[at].to_string(), |n| n.to_string()),
                );
            }
        }
        let [queue_max, delay_ms, batch_max] = values;
        let size = |number: u64| usize::try_from(number).unwrap_or(usize::MAX).max(1);
        options.processor = SpanProcessor { queue_max: size(queue_max), delay_ms, batch_max: size(batch_max) };
        warnings.ignores(self.old.file.is_some(), "file");
        warnings.ignores(self.old.log_frequency.is_some(), "log-frequency");
        Ok(())
    }
}

#[derive(Default)]
struct Warnings(Vec<String>);

impl Warnings {
    fn overrides(&mut self, is_old: bool, flag: &str, what: &str) {
        let text =
            format!("Warning: Overriding deprecated '--trace-{flag}' in favor of provided {what} in --trace-config!");
        if is_old && !self.0.contains(&text) {
            self.0.push(text);
        }
    }

    fn ignores(&mut self, is_old: bool, flag: &str) {
        if is_old {
            self.0.push(format!(
                "Warning: '--trace-{flag}' is deprecated and will be ignored with opentelemetry tracing mode."
            ));
        }
    }
}

/// Adds a setting to the read-back: one member for each name, repeated values joined.
fn echo(echoed: &mut Vec<(String, String)>, key: &str, value: &str) {
    match echoed.iter_mut().find(|(known, _)| known == key) {
        Some((_, values)) if key == "resource" => {
            values.push(',');
            values.push_str(value);
        }
        Some((_, given)) => value.clone_into(given),
        None => echoed.push((key.to_owned(), value.to_owned())),
    }
}

fn wrong(mode: Mode, key: &str, error: ValueError) -> OptionsError {
    OptionsError::TraceSetting { setting: format!("{},{key}", mode.name()), error }
}

fn number(text: &str) -> Result<i32, ValueError> {
    Value { flag: "trace-config", raw: text.as_ref() }.int()
}

fn level_of(text: &str) -> Result<Levels, ValueError> {
    let word = text.to_ascii_lowercase();
    match word.as_str() {
        "off" | "false" => Ok(Levels::OFF),
        "true" | "on" | "min" | "max" | "timestamps" => Ok(Levels::TIMESTAMPS),
        "tensors" => Ok(Levels::TENSORS),
        _ => Err(ValueError::TraceLevel(word)),
    }
}

fn mode_of(text: &str) -> Result<Mode, ValueError> {
    let word = text.to_ascii_lowercase();
    let modes = [Mode::Triton, Mode::OpenTelemetry];
    modes.into_iter().find(|mode| mode.name() == word).ok_or(ValueError::TraceMode(word))
}
