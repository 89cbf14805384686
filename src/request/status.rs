//! Errors as Triton's clients know them: one of eight codes and a message.

use std::borrow::Cow;

use nereid_gpu::DriverError;
use nereid_memory::RefusalReason;

/// `TRITONSERVER_Error_Code`, in its numeric order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
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
    /// The name that precedes a message in reasons and logs (contract/c_api.md section 2).
    pub fn name(self) -> &'static str {
        match self {
            Code::Unknown => "Unknown",
            Code::Internal => "Internal",
            Code::NotFound => "Not found",
            Code::InvalidArg => "Invalid argument",
            Code::Unavailable => "Unavailable",
            Code::Unsupported => "Unsupported",
            Code::AlreadyExists => "Already exists",
            Code::Cancelled => "<invalid code>",
        }
    }

    pub fn from_number(number: u32) -> Code {
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

/// An error on its way to a client; only `api` turns the code into one of HTTP or gRPC.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {message}", code.name())]
pub struct Status {
    pub code: Code,
    /// What the server lacked: set on a refusal of what could be served at another time.
    pub refusal: Option<RefusalReason>,
    pub message: Cow<'static, str>,
}

impl From<nereid_model_config::Error> for Status {
    fn from(error: nereid_model_config::Error) -> Status {
        use nereid_model_config::Error;
        let message = error.to_string();
        match error {
            Error::Invalid { .. } => Status::invalid(message),
            Error::NotFound { .. } => Status::not_found(message),
            Error::Unsupported { .. } => Status::unsupported(message),
            Error::Internal { .. } => Status::internal(message),
        }
    }
}

impl From<DriverError> for Status {
    fn from(error: DriverError) -> Status {
        let full = error.code == DriverError::OUT_OF_MEMORY;
        if full { Status::unavailable(error.to_string()) } else { Status::internal(error.to_string()) }
    }
}

macro_rules! constructors {
    ($($name:ident $code:ident)*) => {$(
        pub fn $name(message: impl Into<Cow<'static, str>>) -> Status {
            Status { code: Code::$code, refusal: None, message: message.into() }
        }
    )*};
}

impl Status {
    constructors! {
        unknown Unknown
        internal Internal
        not_found NotFound
        invalid InvalidArg
        unavailable Unavailable
        unsupported Unsupported
        already_exists AlreadyExists
        cancelled Cancelled
    }

    /// A refusal of what could be served at another time, or by another server.
    pub fn refused(reason: RefusalReason, message: impl Into<Cow<'static, str>>) -> Status {
        Status { refusal: Some(reason), ..Status::unavailable(message) }
    }

    /// A request goes on with a sequence that its instance does not hold any more.
    pub fn sequence_lost() -> Status {
        Status::unavailable(
            "the instance that executed the sequence lost its state; begin the sequence again with the START flag",
        )
    }

    /// The same error with `prefix` before its message.
    pub fn prefixed(self, prefix: &str) -> Status {
        Status { message: format!("{prefix}{}", self.message).into(), ..self }
    }
}

impl From<nereid_memory::Exhausted> for Status {
    fn from(error: nereid_memory::Exhausted) -> Status {
        Status::refused(error.reason(), error.to_string())
    }
}
