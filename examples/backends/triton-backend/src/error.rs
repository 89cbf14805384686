//! What goes wrong, in the terms of the interface.

use std::fmt;

/// `TRITONSERVER_Error_Code`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Code {
    Unknown = 0,
    Internal = 1,
    NotFound = 2,
    InvalidArg = 3,
    Unavailable = 4,
    Unsupported = 5,
    AlreadyExists = 6,
    Cancelled = 7,
}

impl Code {
    pub(crate) fn from_number(number: u32) -> Code {
        match number {
            1 => Code::Internal,
            2 => Code::NotFound,
            3 => Code::InvalidArg,
            4 => Code::Unavailable,
            5 => Code::Unsupported,
            6 => Code::AlreadyExists,
            7 => Code::Cancelled,
            _ => Code::Unknown,
        }
    }
}

/// An error that a client or an operator gets to see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    pub code: Code,
    pub message: String,
}

impl Error {
    pub fn new(code: Code, message: impl Into<String>) -> Error {
        Error { code, message: message.into() }
    }

    pub fn invalid(message: impl Into<String>) -> Error {
        Error::new(Code::InvalidArg, message)
    }

    pub fn internal(message: impl Into<String>) -> Error {
        Error::new(Code::Internal, message)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl std::error::Error for Error {}
