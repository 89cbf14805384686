//! Refusals for reasons of the server: errors of models, keys, rates.

use nereid_request::{Code, Status};

use super::{Compat, Detail, INVALID_REQUEST, Refusal};

impl Refusal {
    /// An error of the server or of a model, for a client that has no byte of an answer yet.
    pub fn of_status(status: &Status, compat: Compat) -> Refusal {
        let number = match (compat, status.code) {
            // The server has no room: clients may come again.
            _ if status.refusal.is_some() => 503,
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

    /// The key of the request has no room for it; `seconds`: after which it has.
    pub fn rate_limited(seconds: u64) -> Refusal {
        let message = format!("Rate limit reached. Please try again in {seconds}s.");
        Refusal { status: 429, detail: Detail::Error { message, kind: "requests", code: "rate_limit_exceeded" } }
    }

    pub fn no_key() -> Refusal {
        let message = "You didn't provide an API key. Send it in the header 'Authorization: Bearer KEY'.".to_owned();
        Refusal { status: 401, detail: Detail::Error { message, kind: INVALID_REQUEST, code: "invalid_api_key" } }
    }

    /// The key is a secret, also where it is wrong: it is not repeated.
    pub fn wrong_key() -> Refusal {
        let message = "Incorrect API key provided.".to_owned();
        Refusal { status: 401, detail: Detail::Error { message, kind: INVALID_REQUEST, code: "invalid_api_key" } }
    }
}
