//! The switches of the log: read by every thread at every message, changed by the logging API.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};

use tracing::Level;
use tracing::level_filters::LevelFilter;

use super::record::{LogFormat, Severity, Style};

#[derive(Debug)]
pub struct Switches {
    pub info: AtomicBool,
    pub warning: AtomicBool,
    pub error: AtomicBool,
    pub verbose_level: AtomicU32,
    /// [`LogFormat::index`].
    pub format: AtomicU8,
    escapes: bool,
    pid: u32,
}

impl Switches {
    pub fn new(escapes: bool) -> Switches {
        Switches {
            info: AtomicBool::new(true),
            warning: AtomicBool::new(true),
            error: AtomicBool::new(true),
            verbose_level: AtomicU32::new(0),
            format: AtomicU8::new(LogFormat::Default.index()),
            escapes,
            pid: std::process::id(),
        }
    }

    pub fn shows(&self, severity: Severity) -> bool {
        let switch = match severity {
            Severity::Error => &self.error,
            Severity::Warning => &self.warning,
            Severity::Info => &self.info,
        };
        switch.load(Ordering::Relaxed)
    }

    pub fn shows_verbose(&self, level: u64) -> bool {
        level <= u64::from(self.verbose_level.load(Ordering::Relaxed))
    }

    /// Whether messages of this level can appear at all.
    pub fn may_show(&self, level: Level) -> bool {
        match severity_of(level) {
            Some(severity) => self.shows(severity),
            None => self.shows_verbose(1),
        }
    }

    /// The most verbose level that can appear.
    pub fn most_verbose(&self) -> LevelFilter {
        let levels = [Level::TRACE, Level::DEBUG, Level::INFO, Level::WARN, Level::ERROR];
        levels.into_iter().find(|level| self.may_show(*level)).map_or(LevelFilter::OFF, LevelFilter::from_level)
    }

    pub fn style(&self) -> Style {
        Style {
            format: LogFormat::from_index(self.format.load(Ordering::Relaxed)),
            escapes: self.escapes,
            pid: self.pid,
        }
    }
}

/// `None` for levels that the verbose level governs.
pub fn severity_of(level: Level) -> Option<Severity> {
    match level {
        Level::ERROR => Some(Severity::Error),
        Level::WARN => Some(Severity::Warning),
        Level::INFO => Some(Severity::Info),
        _ => None,
    }
}
