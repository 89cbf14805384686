//! The log of the process: what backends and applications write to it, and the settings of it in a server's options.
//!
//! It belongs to the process, as in Triton: options change it when they are set, whichever server they are for. Before
//! that an application has no log; a subscriber that it installed itself is left alone.

mod forwarding;

use std::ffi::{CString, c_char, c_int, c_void};
use std::path::Path;
use std::sync::Arc;

use super::super::border::{entry, text};
use super::Error;
use crate::abi::guard::{ForeignCode, guarded};
use nereid_observe::log::{self, LogError, LogFormat, Logger, Message, MessageKind};
use nereid_request::Status;

use crate::server::is_shard;
use forwarding::{Forwarding, is_forwarding};

/// `TRITONSERVER_LogLevel`.
const INFO: u32 = 0;
const WARN: u32 = 1;
const ERROR: u32 = 2;
const VERBOSE: u32 = 3;

/// `TRITONSERVER_LogFormat`.
const FORMATS: [LogFormat; 2] = [LogFormat::Default, LogFormat::Iso8601];

/// One setting of the log in a server's options.
#[derive(Debug)]
pub enum LogSetting<'a> {
    Info(bool),
    Warning(bool),
    Error(bool),
    /// A negative level counts as 0.
    Verbose(i32),
    Format(u32),
    /// A path; an empty one is stdout and stderr.
    File(&'a str),
}

/// Applies a setting to the log.
pub fn apply(setting: &LogSetting<'_>) -> Result<(), Status> {
    let format = match setting {
        LogSetting::Format(number) => {
            let known = usize::try_from(*number).ok().and_then(|number| FORMATS.get(number).copied());
            Some(known.ok_or_else(|| Status::invalid(format!("unknown log format {number}")))?)
        }
        _ => None,
    };
    let logger = match Logger::of_application() {
        Ok(logger) => logger,
        // The application's own subscriber decides.
        Err(LogError::Installed) => return Ok(()),
        Err(error) => return Err(Status::internal(error.to_string())),
    };
    match setting {
        LogSetting::Info(shows) => logger.set_info(*shows),
        LogSetting::Warning(shows) => logger.set_warning(*shows),
        LogSetting::Error(shows) => logger.set_error(*shows),
        LogSetting::Verbose(level) => logger.set_verbose_level((*level).max(0).unsigned_abs()),
        LogSetting::Format(_) => format.into_iter().for_each(|format| logger.set_format(format)),
        LogSetting::File(path) => {
            let path = Some(Path::new(*path)).filter(|path| !path.as_os_str().is_empty());
            logger.set_file(path).map_err(|error| Status::internal(error.to_string()))?;
        }
    }
    Ok(())
}

/// `TRITONSERVER_LogCallbackFn_t`.
pub type LogFn = unsafe extern "C-unwind" fn(u32, *const c_char, c_int, u64, *const c_char, *mut c_void);

/// A function of an application for messages, and the pointer that it gets back.
#[derive(Debug, Clone, Copy)]
pub struct LogCallback {
    pub function: LogFn,
    pub userp: *mut c_void,
}

// SAFETY: the pointer is only handed back to the application, whose function takes it on any thread.
unsafe impl Send for LogCallback {}
// SAFETY: the function is called by several threads at a time, which the interface requires it to support.
unsafe impl Sync for LogCallback {}

impl LogCallback {
    fn call(&self, message: &Message<'_>) {
        let plain = |text: &str| CString::new(text.replace('\0', "")).unwrap_or_default();
        let (file, text) = (plain(message.file), plain(message.text));
        let level = match message.kind {
            MessageKind::Info => INFO,
            MessageKind::Warning => WARN,
            MessageKind::Error => ERROR,
            MessageKind::Verbose => VERBOSE,
        };
        let line = c_int::try_from(message.line).unwrap_or(0);
        let at_us = u64::try_from(message.at.as_micros()).unwrap_or(u64::MAX);
        let work = ForeignCode { kind: "application", call: "TRITONSERVER_LogCallbackFn_t", ..ForeignCode::default() };
        // SAFETY: the texts are C strings that live through the call; the rest is as it was registered.
        let outcome =
            guarded(&work, || unsafe { (self.function)(level, file.as_ptr(), line, at_us, text.as_ptr(), self.userp) });
        // An exception is dropped: logging it would call the function again.
        drop(outcome);
    }
}

/// Installs the callback of options. It replaces the one before, also if it is none.
pub fn install(callback: Option<LogCallback>) -> Result<(), Status> {
    let Some(callback) = callback else {
        if let Some(logger) = log::installed() {
            logger.set_function(None);
        }
        return Ok(());
    };
    match Logger::of_application() {
        Ok(logger) => {
            let forwarding = Forwarding::default();
            logger.set_function(Some(Arc::new(move |message: &Message<'_>| match is_shard() {
                true => forwarding.push(callback, message),
                // What the function itself logs would call it again, without end.
                false if is_forwarding() => {}
                false => callback.call(message),
            })));
        }
        // The application's own subscriber decides.
        Err(LogError::Installed) => {}
        Err(error) => return Err(Status::internal(error.to_string())),
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub extern "C" fn TRITONSERVER_LogIsEnabled(level: u32) -> bool {
    match level {
        INFO => tracing::enabled!(tracing::Level::INFO),
        WARN => tracing::enabled!(tracing::Level::WARN),
        ERROR => tracing::enabled!(tracing::Level::ERROR),
        VERBOSE => tracing::enabled!(tracing::Level::DEBUG),
        _ => false,
    }
}

/// # Safety
/// `filename` and `message` are C strings or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_LogMessage(
    level: u32,
    filename: *const c_char,
    line: c_int,
    message: *const c_char,
) -> *mut Error {
    entry(|| {
        // SAFETY: `filename` and `message` are NULL or a C string: this function requires that of its caller.
        let (file, message) = unsafe { (text(filename, "filename")?, text(message, "msg")?) };
        let (file, message) = (file.to_string_lossy(), message.to_string_lossy());
        let line = u64::try_from(line).unwrap_or(0);
        macro_rules! log {
            ($level:ident) => {
                tracing::event!(tracing::Level::$level, log.file = &*file, log.line = line, "{message}")
            };
        }
        match level {
            INFO => log!(INFO),
            WARN => log!(WARN),
            ERROR => log!(ERROR),
            VERBOSE => log!(DEBUG),
            _ => return Err(Status::invalid(format!("unknown logging level '{level}'"))),
        }
        if TRITONSERVER_LogIsEnabled(level) {
            log::flush_for_application();
        }
        Ok(())
    })
}
