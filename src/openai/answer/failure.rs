//! Errors of models: as answers before a stream has begun, as events in it (contract/openai.md sections 1.1 and 1.5).

use super::text::{put_number, put_string};
use crate::error::{Detail, Refusal};

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
    let kind = if (400..500).contains(&refusal.status) { "invalid_request_error" } else { "server_error" };
    out.extend_from_slice(b"data: {\"error\":{\"message\":");
    put_string(out, message_of(refusal));
    out.extend_from_slice(b",\"type\":");
    put_string(out, kind);
    out.extend_from_slice(b",\"param\":null,\"code\":");
    put_number(out, u64::from(refusal.status));
    out.extend_from_slice(b"}}\n\n");
}
