//! Why a runtime cannot be used.

use nereid_request::Status;

/// Why a file is unusable as the library of a runtime.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LibraryError {
    #[error("cannot be opened: {0}")]
    Open(String),
    #[error("is not {title}: it has no {symbol}")]
    Foreign { title: &'static str, symbol: &'static str },
    #[error("is not a usable {title}: {reason}")]
    Unusable { title: &'static str, reason: String },
    #[error("is {title} {version}, but {needed} or newer is needed")]
    TooOld { title: &'static str, version: String, needed: String },
    #[error("was not accepted: {0}")]
    Refused(String),
    #[error("does not start: {0}")]
    Start(String),
}

impl LibraryError {
    /// The loader's own text, where it has one.
    pub fn opening(error: &libloading::Error) -> LibraryError {
        LibraryError::Open(match std::error::Error::source(error) {
            Some(source) => source.to_string(),
            None => error.to_string(),
        })
    }
}

/// Why there is no library of a runtime in this process.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{title} is not available ({searched}). Install it with: {command}")]
pub struct Missing {
    pub title: &'static str,
    /// The command that installs it.
    pub command: String,
    /// Each location and the result of trying it.
    pub searched: String,
}

impl From<Missing> for Status {
    fn from(missing: Missing) -> Status {
        Status::unavailable(missing.to_string())
    }
}
