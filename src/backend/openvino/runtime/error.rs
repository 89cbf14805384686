//! Errors of the library, with the step that failed, as clients see them.

use nereid_request::Status;

/// Why a call of the library failed (contract/frameworks.md section 3, "library errors").
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenVinoError {
    #[error("openvino error in {step} : {text}")]
    Library {
        /// `reading model`, `setting tensor data`, …
        step: String,
        text: String,
    },
    #[error("expected {expected} bytes of data in input buffer, got {found} bytes.")]
    ByteSize { expected: usize, found: usize },
}

impl OpenVinoError {
    pub fn new(step: &str, text: impl Into<String>) -> OpenVinoError {
        OpenVinoError::Library { step: step.to_owned(), text: text.into() }
    }
}

impl From<OpenVinoError> for Status {
    fn from(error: OpenVinoError) -> Status {
        let text = error.to_string();
        match error {
            OpenVinoError::Library { .. } => Status::internal(text),
            OpenVinoError::ByteSize { .. } => Status::unsupported(text),
        }
    }
}
