//! A setting and its sampler. A change makes a new setting; the old one lives until its last trace is complete, and
//! then has its traces written.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use super::options::{Levels, Mode, TraceOptions};
use super::writer::Queue;

/// The values of a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Values {
    levels: Levels,
    rate: u32,
    /// Remaining traces; -1: any number.
    count: i64,
    log_frequency: u32,
    /// True if the rate is 0 by the command line, which has a meaning in one of the modes.
    is_rate_of_start: bool,
}

/// One value in a change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Field<T> {
    #[default]
    Keep,
    /// Back to the value without this setting.
    Clear,
    Set(T),
}

impl<T: Copy> Field<T> {
    fn over(self, present: T, origin: T) -> T {
        match self {
            Field::Keep => present,
            Field::Clear => origin,
            Field::Set(value) => value,
        }
    }

    /// Whether the value is the model's own afterwards.
    fn follow(self, is_own: &mut bool) {
        match self {
            Field::Keep => {}
            Field::Clear => *is_own = false,
            Field::Set(_) => *is_own = true,
        }
    }
}

/// A client's change of the settings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Change {
    pub levels: Field<Levels>,
    pub rate: Field<u32>,
    pub count: Field<i32>,
    pub log_frequency: Field<u32>,
}

impl Change {
    pub fn is_empty(&self) -> bool {
        *self == Change::default()
    }
}

/// Why a change is not made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("Attempting to set invalid trace setting :{0}")]
    Invalid(&'static str),
    #[error("more than {0} models have trace settings of their own")]
    TooMany(usize),
    #[error("cannot start the thread that writes traces: {0}")]
    Thread(String),
}

/// The settings that clients are shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingView {
    pub levels: Vec<&'static str>,
    pub rate: u32,
    pub count: i64,
    /// The log frequency and the path, in the mode that has files.
    pub files: Option<(u32, String)>,
    pub mode: &'static str,
    /// Further settings of the mode.
    pub more: Vec<(String, String)>,
}

/// Which values a model does not take from the global setting.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct OwnValues {
    levels: bool,
    rate: bool,
    count: bool,
    log_frequency: bool,
}

impl OwnValues {
    pub fn follow(&mut self, change: &Change) {
        change.levels.follow(&mut self.levels);
        change.rate.follow(&mut self.rate);
        change.count.follow(&mut self.count);
        change.log_frequency.follow(&mut self.log_frequency);
    }

    fn all(&self) -> [bool; 4] {
        [self.levels, self.rate, self.count, self.log_frequency]
    }

    pub fn is_empty(&self) -> bool {
        !self.all().contains(&true)
    }

    pub fn is_complete(&self) -> bool {
        !self.all().contains(&false)
    }

    /// The model's own values, and the others from the global setting.
    pub fn over(&self, own: &Values, global: &Values) -> Values {
        Values {
            levels: if self.levels { own.levels } else { global.levels },
            rate: if self.rate { own.rate } else { global.rate },
            count: if self.count { own.count } else { global.count },
            log_frequency: if self.log_frequency { own.log_frequency } else { global.log_frequency },
            is_rate_of_start: if self.rate { own.is_rate_of_start } else { global.is_rate_of_start },
        }
    }
}

impl Values {
    pub fn of_start(options: &TraceOptions) -> Values {
        let TraceOptions { levels, rate, count, log_frequency, .. } = *options;
        Values { levels, rate, count: i64::from(count), log_frequency, is_rate_of_start: true }
    }

    /// `origin` holds the values that cleared ones go back to.
    pub fn changed(&self, change: &Change, origin: &Values) -> Values {
        let count = match change.count {
            Field::Set(count) => i64::from(count),
            Field::Keep => self.count,
            Field::Clear => origin.count,
        };
        Values {
            levels: change.levels.over(self.levels, origin.levels),
            rate: change.rate.over(self.rate, origin.rate),
            count,
            log_frequency: change.log_frequency.over(self.log_frequency, origin.log_frequency),
            is_rate_of_start: match change.rate {
                Field::Keep => self.is_rate_of_start,
                Field::Clear => origin.is_rate_of_start,
                Field::Set(_) => false,
            },
        }
    }
}

/// Samples requests, and owns their traces.
pub(super) struct Setting {
    values: Values,
    /// Why it samples no request although a level is on.
    flaw: Option<&'static str>,
    count: AtomicI64,
    /// Requests that were counted.
    seen: AtomicU64,
    queue: Queue,
    pub id: u64,
}

impl Setting {
    pub fn new(values: Values, options: &TraceOptions, queue: &Queue) -> Setting {
        let needs_file = options.mode == Mode::Triton && options.file.is_empty();
        let is_rate_wrong = values.rate == 0 && !(options.mode == Mode::OpenTelemetry && values.is_rate_of_start);
        let flaw = match values {
            _ if is_rate_wrong => Some("sample rate must be non-zero"),
            _ if needs_file => Some("trace file name is not given"),
            Values { count: 0, .. } => Some(""),
            _ => None,
        };
        let count = AtomicI64::new(values.count);
        Setting { values, flaw, count, seen: AtomicU64::new(0), queue: queue.clone(), id: queue.next_setting() }
    }

    /// A setting that cannot sample is allowed only if it is off.
    pub fn check(&self) -> Result<(), Refused> {
        match self.flaw {
            Some(flaw) if !self.values.levels.is_off() => Err(Refused::Invalid(flaw)),
            _ => Ok(()),
        }
    }

    pub fn can_sample(&self) -> bool {
        self.flaw.is_none() && !self.values.levels.is_off()
    }

    /// The present values: the count is what remains.
    pub fn values(&self) -> Values {
        Values { count: self.count.load(Ordering::Relaxed), ..self.values }
    }

    pub fn levels(&self) -> Levels {
        self.values.levels
    }

    pub fn log_frequency(&self) -> u32 {
        self.values.log_frequency
    }

    /// Counts a request; true: trace it.
    pub fn sample(&self, is_forced: bool) -> bool {
        if !self.can_sample() {
            return false;
        }
        if is_forced {
            return true;
        }
        let rate = u64::from(self.values.rate);
        if rate == 0 || self.count.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let number = self.seen.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        if !number.is_multiple_of(rate) {
            return false;
        }
        let taken = self.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| match count {
            0 => None,
            count if count > 0 => Some(count - 1),
            count => Some(count),
        });
        taken.is_ok()
    }

    /// True if no further trace will come after `completed` complete ones. Only exact where every request is traced, as
    /// with Triton.
    pub fn is_exhausted(&self, completed: u64) -> bool {
        self.count.load(Ordering::Relaxed) == 0 && self.seen.load(Ordering::Relaxed) == completed
    }

    pub fn shown(&self, options: &TraceOptions) -> SettingView {
        let values = self.values();
        SettingView {
            levels: values.levels.names(),
            rate: values.rate,
            count: values.count,
            files: (options.mode == Mode::Triton).then(|| (values.log_frequency, options.file.clone())),
            mode: options.mode.name(),
            more: options.echoed.clone(),
        }
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        if self.seen.load(Ordering::Relaxed) > 0 {
            self.queue.setting_ended(self.id);
        }
    }
}
