//! Errors of models: as answers before a stream has begun, as events in it (contract/openai.md sections 1.1 and 1.5).

use nereid_request::{Code, Status};

use super::text::{put_number, put_string};
use crate::error::{Compat, Detail, Refusal};

/// What a model's error is to a client that has no byte of an answer yet.
pub(super) fn refusal(status: &Status, compat: Compat) -> Refusal {
    let number = match (compat, status.code) {
        (Compat::Triton, _) => 500,
        (Compat::OpenAi, Code::InvalidArg) => 400,
        (Compat::OpenAi, Code::NotFound) => 404,
        // A client that is gone reads it never; one behind a proxy learns who ended it.
        (Compat::OpenAi, Code::Cancelled) => 499,
        (Compat::OpenAi, Code::Unavailable) => 503,
        (Compat::OpenAi, _) => 500,
    };
    Refusal { status: number, detail: Detail::Text(status.message.clone().into_owned()) }
}

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
