//! What a request is refused with (contract/openai.md section 1.1).
//!
//! Triton's front end answers `{"detail":..}`; OpenAI's clients look for `{"error":{..}}`. By default a body has both,
//! so that programs written for either find what they know.

mod server;

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

/// How the text begins that refuses a model that is not there.
const UNKNOWN_MODEL: &str = "Unknown model: ";
const INVALID_REQUEST: &str = "invalid_request_error";
const SERVER_ERROR: &str = "server_error";

impl Refusal {
    pub fn client(text: impl Into<String>) -> Refusal {
        Refusal { status: 400, detail: Detail::Text(text.into()) }
    }

    pub fn server(text: impl Into<String>) -> Refusal {
        Refusal { status: 500, detail: Detail::Text(text.into()) }
    }

    /// A body that does not fit the schema. Entries that repeat NaN or an infinity cannot be said in JSON: upstream
    /// answers a plain 500, which clients would send again; OpenAI's form has null in their place.
    pub fn schema(errors: Vec<SchemaError>, compat: Compat) -> Refusal {
        if compat == Compat::OpenAi || errors.iter().all(|error| error.input.is_finite()) {
            Refusal { status: 422, detail: Detail::Schema(errors) }
        } else {
            Refusal::internal()
        }
    }

    /// A 500 that says nothing.
    pub fn internal() -> Refusal {
        Refusal { status: 500, detail: Detail::Plain("Internal Server Error") }
    }

    /// `header`: the one that a valid value is expected of.
    pub fn restricted(header: &str) -> Refusal {
        let message = format!("This API is restricted, expecting header '{header}' with valid value");
        Refusal { status: 401, detail: Detail::Error { message, kind: "authentication_error", code: "invalid_auth" } }
    }

    /// `bytes`: how long the body is, or how much of it has come.
    pub fn too_large(bytes: u64, bytes_max: u64) -> Refusal {
        let message = format!(
            "Request size of {bytes} bytes exceeds the maximum allowed input size of {bytes_max} bytes. Use \
             --http-max-input-size to increase the limit."
        );
        Refusal { status: 413, detail: Detail::Error { message, kind: INVALID_REQUEST, code: "content_too_large" } }
    }

    pub fn content_length_not_integer() -> Refusal {
        Refusal::content_length("Invalid Content-Length header: not an integer.")
    }

    pub fn content_length_negative() -> Refusal {
        Refusal::content_length("Invalid Content-Length header: must be non-negative.")
    }

    fn content_length(message: &str) -> Refusal {
        let message = message.to_owned();
        Refusal {
            status: 400,
            detail: Detail::Error { message, kind: INVALID_REQUEST, code: "invalid_content_length" },
        }
    }

    pub fn path_not_found() -> Refusal {
        Refusal { status: 404, detail: Detail::Text("Not Found".to_owned()) }
    }

    pub fn method_not_allowed() -> Refusal {
        Refusal { status: 405, detail: Detail::Text("Method Not Allowed".to_owned()) }
    }

    pub fn not_ready() -> Refusal {
        Refusal::client("Attached inference engine is not ready for inference requests.")
    }

    /// The model that an inference or a change of models names is not there.
    pub fn unknown_model(name: &str) -> Refusal {
        Refusal::client(format!("{UNKNOWN_MODEL}{name}"))
    }

    /// The model that is looked up is not there.
    pub fn model_not_found(name: &str) -> Refusal {
        Refusal { status: 404, ..Refusal::unknown_model(name) }
    }

    pub fn content_type(&self) -> &'static str {
        match self.detail {
            Detail::Plain(_) => "text/plain; charset=utf-8",
            _ => "application/json",
        }
    }

    /// Appends the body.
    pub fn body(&self, compat: Compat, out: &mut String) {
        match &self.detail {
            Detail::Plain(text) => out.push_str(text),
            Detail::Error { message, kind, code } => {
                let error = [("message", message.as_str().into()), ("type", (*kind).into()), ("code", (*code).into())];
                object([("error", object(error))]).compact(out);
            }
            Detail::Text(text) => {
                out.push_str("{\"detail\":");
                Json::from(text.as_str()).compact(out);
                self.close(compat, text, None, out);
            }
            Detail::Schema(errors) => {
                out.push_str("{\"detail\":[");
                for (index, error) in errors.iter().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    error.write(out);
                }
                out.push(']');
                self.close(compat, &summary(errors), errors.first().and_then(SchemaError::field), out);
            }
        }
    }

    /// Ends a body with `detail`, by OpenAI's member beside it unless it is to be Triton's.
    fn close(&self, compat: Compat, message: &str, param: Option<&str>, out: &mut String) {
        if compat == Compat::OpenAi {
            let code = if message.starts_with(UNKNOWN_MODEL) { Some("model_not_found") } else { code(self.status) };
            let error = object([
                ("message", message.into()),
                ("type", kind(self.status).into()),
                ("param", param.map_or(Json::Null, Json::from)),
                ("code", code.map_or(Json::Null, Json::from)),
            ]);
            out.push_str(",\"error\":");
            error.compact(out);
        }
        out.push('}');
    }
}

/// The JSON of the event that tells of an error within a stream (contract/openai.md section 1.5), without `data: `.
pub fn error_event(message: &str, code: u16) -> String {
    let error = object([
        ("message", message.into()),
        ("type", SERVER_ERROR.into()),
        ("param", Json::Null),
        ("code", Json::Int(code.into())),
    ]);
    let mut out = String::new();
    object([("error", error)]).compact(&mut out);
    out
}

/// OpenAI's `type` of errors with that status.
fn kind(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        403 => "permission_error",
        429 => "rate_limit_exceeded",
        500.. => SERVER_ERROR,
        _ => INVALID_REQUEST,
    }
}

/// OpenAI's `code`, where a status has one.
fn code(status: u16) -> Option<&'static str> {
    match status {
        413 => Some("content_too_large"),
        429 => Some("rate_limit_exceeded"),
        503 => Some("service_unavailable"),
        _ => None,
    }
}

/// The first entry as a sentence, and how many there are.
fn summary(errors: &[SchemaError]) -> String {
    let Some(first) = errors.first() else { return String::new() };
    let mut text = String::new();
    for (index, step) in first.loc.iter().skip(1).enumerate() {
        if index > 0 {
            text.push('.');
        }
        match step {
            Json::Text(step) => text.push_str(step),
            step => step.compact(&mut text),
        }
    }
    if !text.is_empty() {
        text.push_str(": ");
    }
    text.push_str(&first.msg);
    if let Some(Json::Text(reason)) = first.ctx.as_ref().and_then(|ctx| ctx.get("error"))
        && !first.msg.contains(reason)
    {
        text.push_str(": ");
        text.push_str(reason);
    }
    if errors.len() > 1 {
        text.push_str(&format!(" (the first of {} errors, see `detail`)", errors.len()));
    }
    text
}

impl SchemaError {
    /// The member of the body that it is about.
    fn field(&self) -> Option<&str> {
        self.loc.get(1)?.as_str()
    }

    fn write(&self, out: &mut String) {
        out.push_str("{\"type\":");
        Json::from(self.kind).compact(out);
        out.push_str(",\"loc\":[");
        for (index, step) in self.loc.iter().enumerate() {
            if index > 0 {
                out.push(',');
            }
            step.compact(out);
        }
        out.push_str("],\"msg\":");
        Json::from(self.msg.as_str()).compact(out);
        out.push_str(",\"input\":");
        self.input.compact(out);
        if let Some(ctx) = &self.ctx {
            out.push_str(",\"ctx\":");
            ctx.compact(out);
        }
        out.push('}');
    }
}

fn object<const N: usize>(members: [(&str, Json); N]) -> Json {
    Json::Object(members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

#[cfg(test)]
mod tests;
