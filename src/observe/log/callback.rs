//! The function of an application that gets the log's messages in place of stdout, stderr and the file.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use super::record::{Record, Severity};

/// The kind of a message: one of the three severities, or verbose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageKind {
    Info,
    Warning,
    Error,
    Verbose,
}

/// One message, as it was logged.
#[derive(Debug, Clone, Copy)]
pub struct Message<'a> {
    pub kind: MessageKind,
    /// Basename of the source file.
    pub file: &'a str,
    pub line: u32,
    /// The time since the epoch.
    pub at: Duration,
    /// Not escaped; a table follows its heading on a line of its own.
    pub text: &'a str,
}

/// Called on the thread that logs, and by several threads at a time.
pub type Function = Arc<dyn Fn(&Message<'_>) + Send + Sync>;

/// Holds the function, if the application set one.
#[derive(Default)]
pub struct Callback {
    is_set: AtomicBool,
    function: RwLock<Option<Function>>,
}

impl std::fmt::Debug for Callback {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Callback({})", self.is_set())
    }
}

thread_local! {
    /// True while the thread is in the function. Messages that the function logs would call it again, without end: they
    /// are dropped.
    static IS_CALLING: Cell<bool> = const { Cell::new(false) };
}

impl Callback {
    pub fn set(&self, function: Option<Function>) {
        let mut present = self.function.write().unwrap_or_else(PoisonError::into_inner);
        self.is_set.store(function.is_some(), Ordering::Release);
        *present = function;
    }

    pub fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Acquire)
    }

    /// Hands the record to the function, outside every lock. The record comes back where there is none.
    pub fn take(&self, record: Record, is_verbose: bool) -> Option<Record> {
        let function = self.function.read().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(function) = function else { return Some(record) };
        if IS_CALLING.replace(true) {
            return None;
        }
        let kind = match record.severity {
            _ if is_verbose => MessageKind::Verbose,
            Severity::Info => MessageKind::Info,
            Severity::Warning => MessageKind::Warning,
            Severity::Error => MessageKind::Error,
        };
        let joined = record.object.as_ref().map(|object| format!("{}\n{object}", record.message));
        let text = joined.as_ref().unwrap_or(&record.message);
        function(&Message { kind, file: &record.file, line: record.line, at: record.at, text });
        IS_CALLING.set(false);
        None
    }
}
