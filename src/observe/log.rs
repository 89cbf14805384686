//! The log: `tracing` events in Triton's line format (contract/cli.md section 5), written by a thread of its own.
//!
//! Code logs with `tracing`'s macros and [`verbose!`]; only start-up and the logging API use the [`Logger`].

mod callback;
mod layer;
pub mod recent;
mod record;
mod switches;
mod table;
mod writer;

use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tracing_subscriber::layer::SubscriberExt;

pub use callback::{Function, Message, MessageKind};
pub use layer::LogLayer;
pub(super) use record::push_json_string;
pub use record::{LogFormat, MAX_MESSAGE_BYTES, MAX_OBJECT_BYTES, Severity};
pub use table::Table;
pub use writer::{BYTES_WAITING_MAX, CAPACITY};

use switches::Switches;
use writer::{Queue, Sinks};

/// Logs at a verbose level: `verbose!(2, "parsed {count} files")`. Nothing is formatted unless `--log-verbose` is that
/// high.
#[macro_export]
macro_rules! verbose {
    ($level:expr, $($message:tt)+) => {
        ::tracing::debug!(verbose = $level, $($message)+)
    };
}
pub use crate::verbose;

/// How long the end of the process waits for a log whose reader has stopped.
pub const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// What is logged, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogSettings {
    pub info: bool,
    pub warning: bool,
    pub error: bool,
    /// Verbose messages up to this level appear; 0 for none.
    pub verbose_level: u32,
    pub format: LogFormat,
    /// All severities go here instead of stdout and stderr.
    pub file: Option<PathBuf>,
}

impl Default for LogSettings {
    fn default() -> LogSettings {
        LogSettings { info: true, warning: true, error: true, verbose_level: 0, format: LogFormat::Default, file: None }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("failed to open log file '{}': {error}", path.display())]
    Open { path: PathBuf, error: io::Error },
    #[error("failed to write log file '{}': {error}", path.display())]
    Write { path: PathBuf, error: String },
    #[error("failed to start the log's thread: {0}")]
    Thread(io::Error),
    #[error("this process has a log already")]
    Installed,
}

static INSTALLED: OnceLock<Logger> = OnceLock::new();

/// The log is that of an application that links the server.
static IS_OF_APPLICATION: AtomicBool = AtomicBool::new(false);

/// The log of this process, once one was installed.
pub fn installed() -> Option<&'static Logger> {
    INSTALLED.get()
}

/// In an application that links the server: waits until the messages of this thread are written, because the
/// application may read its log file next. The server itself waits for no message.
pub fn flush_for_application() {
    if IS_OF_APPLICATION.load(Ordering::Relaxed)
        && let Some(logger) = installed()
    {
        logger.flush();
    }
}

/// The number of [`LogGuard`]s: while there are any the log keeps its thread, so that no thread is started for each
/// message.
static GUARDS: Mutex<usize> = Mutex::new(0);

/// Keeps the log's thread. Dropping the last guard ends the thread.
#[derive(Debug)]
pub struct LogGuard(());

impl LogGuard {
    pub fn new() -> LogGuard {
        *GUARDS.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        LogGuard(())
    }
}

impl Default for LogGuard {
    fn default() -> LogGuard {
        LogGuard::new()
    }
}

impl Drop for LogGuard {
    fn drop(&mut self) {
        let mut guards = GUARDS.lock().unwrap_or_else(PoisonError::into_inner);
        *guards = guards.saturating_sub(1);
        if let (0, Some(logger)) = (*guards, INSTALLED.get()) {
            logger.layer.queue.park(FLUSH_TIMEOUT);
        }
    }
}

/// The handle of the log, for start-up, exit and the logging API. Clones are the same log.
#[derive(Debug, Clone)]
pub struct Logger {
    layer: LogLayer,
    file: Arc<Mutex<Option<PathBuf>>>,
}

impl Logger {
    /// Opens the file, if one is named, and starts the writing thread. `escapes` is false where
    /// TRITON_SERVER_ESCAPE_LOG_MESSAGES is `0`.
    pub fn start(settings: &LogSettings, escapes: bool) -> Result<Logger, LogError> {
        Logger::with_sinks(settings, escapes, sinks(settings.file.as_deref())?, CAPACITY)
    }

    /// The log of a process that is not the server's own: an application that links the server has none until its
    /// options configure one, and then begins with Triton's defaults. Where the application has set a subscriber of its
    /// own, that one stays, and this fails.
    pub fn of_application() -> Result<&'static Logger, LogError> {
        static STARTING: Mutex<()> = Mutex::new(());
        let _starting = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(logger) = INSTALLED.get() {
            return Ok(logger);
        }
        if tracing::dispatcher::has_been_set() {
            return Err(LogError::Installed);
        }
        let escapes = std::env::var_os("TRITON_SERVER_ESCAPE_LOG_MESSAGES").is_none_or(|value| value != "0");
        Logger::start(&LogSettings::default(), escapes)?.install()?;
        IS_OF_APPLICATION.store(true, Ordering::Relaxed);
        INSTALLED.get().ok_or(LogError::Installed)
    }

    fn with_sinks(settings: &LogSettings, escapes: bool, sinks: Sinks, capacity: usize) -> Result<Logger, LogError> {
        let switches = Arc::new(Switches::new(escapes));
        let queue = Queue::start(Arc::clone(&switches), sinks, capacity).map_err(LogError::Thread)?;
        let file = Arc::new(Mutex::new(settings.file.clone()));
        let logger = Logger { layer: LogLayer { switches, queue, callback: Arc::default() }, file };
        logger.set_info(settings.info);
        logger.set_warning(settings.warning);
        logger.set_error(settings.error);
        logger.set_verbose_level(settings.verbose_level);
        logger.set_format(settings.format);
        Ok(logger)
    }

    /// Makes this the subscriber of the whole process.
    pub fn install(&self) -> Result<(), LogError> {
        let subscriber = tracing_subscriber::registry().with(self.layer());
        tracing::subscriber::set_global_default(subscriber).map_err(|_| LogError::Installed)?;
        INSTALLED.set(self.clone()).map_err(|_| LogError::Installed)
    }

    /// The layer, for a subscriber that the caller builds.
    pub fn layer(&self) -> LogLayer {
        self.layer.clone()
    }

    pub fn settings(&self) -> LogSettings {
        let switches = &self.layer.switches;
        LogSettings {
            info: switches.info.load(Ordering::Relaxed),
            warning: switches.warning.load(Ordering::Relaxed),
            error: switches.error.load(Ordering::Relaxed),
            verbose_level: switches.verbose_level.load(Ordering::Relaxed),
            format: switches.style().format,
            file: self.file(),
        }
    }

    pub fn set_info(&self, shows: bool) {
        self.change(|switches| switches.info.store(shows, Ordering::Relaxed));
    }

    pub fn set_warning(&self, shows: bool) {
        self.change(|switches| switches.warning.store(shows, Ordering::Relaxed));
    }

    pub fn set_error(&self, shows: bool) {
        self.change(|switches| switches.error.store(shows, Ordering::Relaxed));
    }

    pub fn set_verbose_level(&self, level: u32) {
        self.change(|switches| switches.verbose_level.store(level, Ordering::Relaxed));
    }

    pub fn set_format(&self, format: LogFormat) {
        self.change(|switches| switches.format.store(format.index(), Ordering::Relaxed));
    }

    /// Directs later messages to this file, or to stdout and stderr.
    pub fn set_file(&self, path: Option<&Path>) -> Result<(), LogError> {
        let sinks = sinks(path)?;
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        self.layer.queue.move_to(sinks);
        *file = path.map(Path::to_owned);
        Ok(())
    }

    fn file(&self) -> Option<PathBuf> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Messages lost since the start, because the queue was full or writing failed.
    pub fn dropped(&self) -> u64 {
        self.layer.queue.dropped()
    }

    /// Waits until everything logged so far is written, and returns the error of the file, if there is one. For the
    /// start: a file on a full disk can still be opened.
    pub fn check_file(&self) -> Result<(), LogError> {
        let Some(path) = self.file() else { return Ok(()) };
        self.flush();
        match self.layer.queue.failure() {
            Some(error) => Err(LogError::Write { path, error }),
            None => Ok(()),
        }
    }

    /// Waits until everything logged so far is written, at most for [`FLUSH_TIMEOUT`]. To be called before the process
    /// ends. False if messages may be missing.
    pub fn flush(&self) -> bool {
        self.layer.queue.flush(FLUSH_TIMEOUT)
    }

    /// Directs later messages that the switches let through to this function alone; `None`: to the streams again.
    pub fn set_function(&self, function: Option<Function>) {
        self.layer.callback.set(function);
    }

    fn change(&self, change: impl FnOnce(&Switches)) {
        change(&self.layer.switches);
        tracing::callsite::rebuild_interest_cache();
    }
}

/// Opens the sinks: the file, to append to, or stdout and stderr.
fn sinks(file: Option<&Path>) -> Result<Sinks, LogError> {
    let Some(path) = file else {
        return Ok(Sinks { plain: Box::new(io::stdout()), errors: Some(Box::new(io::stderr())), fallback: None });
    };
    match OpenOptions::new().append(true).create(true).open(path) {
        Ok(file) => Ok(Sinks { plain: Box::new(file), errors: None, fallback: Some(Box::new(io::stderr())) }),
        Err(error) => Err(LogError::Open { path: path.to_owned(), error }),
    }
}

#[cfg(test)]
mod tests;
