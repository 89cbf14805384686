//! What a request is refused with (contract/openai.md section 1.1).

use crate::json::Json;

/// The bytes of answers: OpenAI's where both differ, or those of Triton's front end (`--openai-compat`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compat {
    #[default]
    OpenAi,
    Triton,
}

/// A refusal, with the status of HTTP.
#[derive(Debug, Clone, PartialEq)]
pub struct Refusal {
    pub status: u16,
    pub detail: Detail,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Detail {
    /// A text for the client.
    Text(String),
    /// The entries of a body that does not fit the schema (422).
    Schema(Vec<SchemaError>),
    /// `{"error":{"message","type","code"}}` and nothing beside it.
    Error { message: String, kind: &'static str, code: &'static str },
    /// text/plain.
    Plain(&'static str),
}

/// One entry of a 422 (contract/openai.md section 1.2).
#[derive(Debug, Clone, PartialEq)]
pub struct SchemaError {
    pub kind: &'static str,
    /// Texts and integers.
    pub loc: Vec<Json>,
    pub msg: String,
    pub input: Json,
    pub ctx: Option<Json>,
}

impl Refusal {
    pub fn client(text: impl Into<String>) -> Refusal {
        Refusal { status: 400, detail: Detail::Text(text.into()) }
    }

    pub fn server(text: impl Into<String>) -> Refusal {
        Refusal { status: 500, detail: Detail::Text(text.into()) }
    }
}
