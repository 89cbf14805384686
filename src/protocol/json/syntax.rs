//! What can be wrong with a document, and where.
//!
//! Reasons and offsets are those that Triton's clients see (contract/http.md section 2): its parser reports an
//! unfinished construct at the byte where it cannot go on, an escape at its backslash, and a number that is too big at
//! its start.

/// Why a text is not a document. The texts reach the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Reason {
    #[error("The document is empty.")]
    DocumentEmpty,
    #[error("The document root must not be followed by other values.")]
    RootNotSingular,
    #[error("Invalid value.")]
    ValueInvalid,
    #[error("Missing a name for object member.")]
    MissingName,
    #[error("Missing a colon after a name of object member.")]
    MissingColon,
    #[error("Missing a comma or }} after an object member.")]
    MissingCommaOrBrace,
    #[error("Missing a comma or ] after an array element.")]
    MissingCommaOrBracket,
    #[error("Incorrect hex digit after \\u escape in string.")]
    HexDigit,
    #[error("The surrogate pair in string is invalid.")]
    Surrogate,
    #[error("Invalid escape character in string.")]
    Escape,
    #[error("Missing a closing quotation mark in string.")]
    MissingQuote,
    /// A control character that is not escaped.
    #[error("Invalid encoding in string.")]
    Encoding,
    #[error("Number too big to be stored in double.")]
    NumberTooBig,
    #[error("Miss fraction part in number.")]
    MissingFraction,
    #[error("Miss exponent in number.")]
    MissingExponent,
    /// A caller's own bound ended the parse.
    #[error("Terminate parsing due to Handler error.")]
    Terminated,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("failed to parse the request JSON buffer: {reason} at {offset}")]
pub struct SyntaxError {
    pub reason: Reason,
    /// In bytes from the start of the text.
    pub offset: usize,
}

impl SyntaxError {
    pub(super) fn new(reason: Reason, offset: usize) -> SyntaxError {
        SyntaxError { reason, offset }
    }
}
