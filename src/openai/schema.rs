//! Bodies of requests against the schema of contract/openai.md section 1.2.
//!
//! Triton's front end has pydantic read them, and clients see what pydantic says: every wrong member in the order of
//! the schema, each with its way, its text and what it was. So each schema is read here by hand, in that order, and
//! with `errors` at hand for what is wrong.

mod chat;
mod errors;
mod extensions;
mod fields;
mod messages;
mod rank;
mod responses;
mod sampling;
mod scalars;
mod text;
mod tokens;

use crate::error::{Compat, Refusal, SchemaError};
use crate::json::{Bounds, Json, ParseError};
use crate::request::{Operation, Request};
use errors::Errors;

/// How bodies are read.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    pub compat: Compat,
    /// Members of OpenAI's present interface and of engines that Triton's front end does not know are let through.
    pub extensions: bool,
}

/// Reads a body. `is_json`: its content type is absent or JSON.
pub fn read(operation: Operation, body: &[u8], is_json: bool, rules: &Rules) -> Result<Request, Refusal> {
    let body = match (body, is_json) {
        ([], _) => Json::Null,
        (_, true) => Json::parse(body, &Bounds::default()).map_err(|error| unreadable(&error, rules))?,
        // One string, which fits no schema.
        (_, false) => Json::Text(String::from_utf8_lossy(body).into_owned()),
    };
    let mut errors = Errors::new();
    if body.is_null() {
        errors.add("missing", "Field required", &body);
        return Err(Refusal::schema(errors.into_list(), rules.compat));
    }
    let request = request(operation, &body, rules, &mut errors);
    match request.filter(|_| errors.is_empty()) {
        Some(request) => Ok(request),
        None => Err(Refusal::schema(errors.into_list(), rules.compat)),
    }
}

fn request(operation: Operation, body: &Json, rules: &Rules, errors: &mut Errors) -> Option<Request> {
    Some(match operation {
        Operation::Chat => Request::Chat(Box::new(chat::read(body, rules, errors)?)),
        Operation::Completions => Request::Completions(Box::new(text::completions(body, rules, errors)?)),
        Operation::Embeddings => Request::Embeddings(Box::new(text::embeddings(body, rules, errors)?)),
        Operation::Responses => Request::Responses(Box::new(responses::read(body, errors)?)),
        Operation::Rerank => Request::Rerank(Box::new(rank::rerank(body, errors)?)),
        Operation::Score => Request::Score(Box::new(rank::score(body, errors)?)),
        Operation::Tokenize => Request::Tokenize(Box::new(tokens::tokenize(body, rules, errors)?)),
        Operation::Detokenize => Request::Detokenize(Box::new(tokens::detokenize(body, errors)?)),
    })
}

fn unreadable(error: &ParseError, rules: &Rules) -> Refusal {
    const UNREADABLE: &str = "There was an error parsing the body";
    match error {
        ParseError::Syntax { message, position } => {
            let error = SchemaError {
                kind: "json_invalid",
                loc: vec![Json::from("body"), Json::Int(*position as i128)],
                msg: "JSON decode error".to_owned(),
                input: Json::Object(Vec::new()),
                ctx: Some(Json::Object(vec![("error".to_owned(), Json::from(*message))])),
            };
            Refusal::schema(vec![error], rules.compat)
        }
        _ if rules.compat == Compat::Triton => Refusal::client(UNREADABLE),
        error => Refusal::client(format!("{UNREADABLE}: {error}")),
    }
}

#[cfg(test)]
mod tests;
