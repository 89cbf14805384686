//! The errors of a command line of `nereid perf`, with the flag's name as it was written.

/// Why nothing is measured.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Mistake {
    #[error("there is no {0}")]
    Unknown(String),
    #[error("{given} could be {names}")]
    Ambiguous { given: String, names: String },
    #[error("{0} needs a value")]
    NeedsValue(String),
    #[error("{0} takes no value")]
    TakesNoValue(String),
    #[error("'{0}' is neither a flag nor the value of one")]
    Word(String),
    #[error("{flag}: '{given}' is not {expected}")]
    Value { flag: String, given: String, expected: String },
    /// One of perf_analyzer's that has no meaning here.
    #[error("--{flag} is not supported: {reason}")]
    Refused { flag: &'static str, reason: &'static str },
    #[error("{0} and {1} contradict each other{2}")]
    Conflict(&'static str, &'static str, &'static str),
    #[error("{flag} needs {needs}")]
    Without { flag: &'static str, needs: &'static str },
    #[error("{0}")]
    Other(String),
}
