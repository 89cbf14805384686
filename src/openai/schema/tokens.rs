//! The schemas of tokenizing and its reverse, in vLLM's form (contract/openai.md section 5). Unknown members are passed
//! over.

use super::errors::Errors;
use super::fields::{self, Fields};
use super::scalars::{COUNT, boolean, integer, text};
use super::{Rules, chat, messages};
use crate::json::Json;
use crate::request::{Detokenize, Tokenize, TokenizeSource};

pub fn tokenize(body: &Json, rules: &Rules, errors: &mut Errors) -> Option<Tokenize> {
    let fields = &mut Fields::of(body, errors)?;
    let model = fields.optional("model", errors, text);
    let source = if fields.get("messages").is_some() {
        let read = |value: &Json, errors: &mut Errors| messages::messages(value, rules, errors);
        let messages = fields.required("messages", errors, read);
        let tools = fields.optional("tools", errors, chat::tools);
        let add_generation_prompt = fields.optional("add_generation_prompt", errors, boolean).unwrap_or(true);
        messages.map(|messages| TokenizeSource::Chat { messages, tools, add_generation_prompt })
    } else {
        fields.required("prompt", errors, text).map(TokenizeSource::Prompt)
    };
    let add_special_tokens = fields.optional("add_special_tokens", errors, boolean);
    let return_token_strs = fields.optional("return_token_strs", errors, boolean).unwrap_or(false);
    Some(Tokenize { model, source: source?, add_special_tokens, return_token_strs })
}

pub fn detokenize(body: &Json, errors: &mut Errors) -> Option<Detokenize> {
    let fields = &mut Fields::of(body, errors)?;
    let model = fields.optional("model", errors, text);
    let token = |value: &Json, errors: &mut Errors| integer(value, COUNT, errors);
    let tokens = fields.required("tokens", errors, |value, errors| fields::list(value, errors, token));
    Some(Detokenize { model, tokens: tokens? })
}
