//! Errors of models: as answers before a stream has begun, as events in it (contract/openai.md sections 1.1 and 1.5).

use crate::error::{Detail, Refusal, error_event};

/// The text of a refusal.
pub(super) fn message_of(refusal: &Refusal) -> &str {
    match &refusal.detail {
        Detail::Text(text) => text,
        Detail::Error { message, .. } => message,
        Detail::Plain(text) => text,
        Detail::Schema(_) => "The request does not fit its schema.",
    }
}

/// The event of an error in a stream.
pub(super) fn put_error_event(out: &mut Vec<u8>, refusal: &Refusal) {
    out.extend_from_slice(b"data: ");
    out.extend_from_slice(error_event(message_of(refusal), refusal.status).as_bytes());
    out.extend_from_slice(b"\n\n");
}
