//! The log of the process: what backends and applications write to it, and what options of a server say of it.
//!
//! It is the process's, as in Triton: options change it when they are set, whichever server they are for. Before that
//! an application has none; a subscriber of its own is left alone.

use std::ffi::{c_char, c_int};
use std::path::Path;

use super::super::border::{entry, text};
use super::Error;
use crate::observe::log::{LogError, LogFormat, Logger};
use crate::request::Status;

/// `TRITONSERVER_LogLevel`.
const INFO: u32 = 0;
const WARN: u32 = 1;
const ERROR: u32 = 2;
const VERBOSE: u32 = 3;

/// `TRITONSERVER_LogFormat`.
const FORMATS: [LogFormat; 2] = [LogFormat::Default, LogFormat::Iso8601];

/// What options say of the log.
#[derive(Debug)]
pub enum Wish<'a> {
    Info(bool),
    Warning(bool),
    Error(bool),
    /// A negative level is none.
    Verbose(i32),
    Format(u32),
    /// An empty path: stdout and stderr.
    File(&'a str),
}

/// Does what an option says.
pub fn grant(wish: &Wish<'_>) -> Result<(), Status> {
    let format = match wish {
        Wish::Format(number) => {
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
    match wish {
        Wish::Info(shows) => logger.set_info(*shows),
        Wish::Warning(shows) => logger.set_warning(*shows),
        Wish::Error(shows) => logger.set_error(*shows),
        Wish::Verbose(level) => logger.set_verbose_level((*level).max(0).unsigned_abs()),
        Wish::Format(_) => format.into_iter().for_each(|format| logger.set_format(format)),
        Wish::File(path) => {
            let path = Some(Path::new(*path)).filter(|path| !path.as_os_str().is_empty());
            logger.set_file(path).map_err(|error| Status::internal(error.to_string()))?;
        }
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
        // SAFETY: the caller's promises are passed on.
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
            _ => return Err(Status::invalid(format!("unknown log level {level}"))),
        }
        Ok(())
    })
}
