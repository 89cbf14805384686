//! The schemas of completions and of embeddings (contract/openai.md sections 1.3 and 1.8).

use super::Rules;
use super::errors::{Errors, Step};
use super::fields::{self, Fields};
use super::scalars::{ANY, between, boolean, integer, text};
use super::{extensions, sampling};
use crate::json::Json;
use crate::request::{Completions, EmbeddingInput, Embeddings, Prompt, Sampling};

pub fn completions(body: &Json, rules: &Rules, errors: &mut Errors) -> Option<Completions> {
    let fields = &mut Fields::tracked(body, errors)?;
    let mut shared = Sampling::default();
    let known = sampling::MODELS_OF_COMPLETIONS;
    let model = fields.required("model", errors, |value, errors| sampling::model(value, known, errors));
    let prompt = fields.required("prompt", errors, prompt);
    let best_of = fields.get("best_of").map(|value| {
        let best_of = |errors: &mut Errors| integer(value, between(0, 20), errors);
        if value.is_null() { None } else { errors.within(Step::Name("best_of"), best_of) }
    });
    let echo = fields.optional("echo", errors, boolean);
    sampling::frequency(&mut shared, fields, errors);
    let logprobs = fields.optional("logprobs", errors, |value, errors| integer(value, between(0, 5), errors));
    sampling::counts(&mut shared, fields, errors);
    sampling::stream(&mut shared, rules, fields, errors);
    let has_suffix = fields.optional("suffix", errors, text).is_some();
    sampling::randomness(&mut shared, 1.0, fields, errors);
    shared.user = fields.optional("user", errors, text);
    extensions::others(&mut shared, rules, fields, errors);
    Some(Completions { model: model?, prompt: prompt?, sampling: shared, logprobs, echo, has_suffix, best_of })
}

/// Lists are only told from what is none: a prompt that runs is a string.
fn prompt(value: &Json, errors: &mut Errors) -> Option<Prompt> {
    if let Json::Text(text) = value {
        return Some(Prompt::Text(text.clone()));
    }
    let before = errors.mark();
    errors.within(Step::Name("str"), |errors| text(value, errors));
    let readers: [(&'static str, Reader); 3] = [
        ("list[str]", |value, errors| text(value, errors).map(|_| ())),
        ("list[int]", |value, errors| integer(value, ANY, errors).map(|_| ())),
        ("list[PromptItem]", |value, errors| {
            if value.as_list().is_none() {
                errors.add("list_type", "Input should be a valid list", value);
            }
            value.as_list().map(|_| ())
        }),
    ];
    for (tag, read) in readers {
        let items = errors.within(Step::Name(tag), |errors| fields::list(value, errors, read));
        if let Some(items) = items {
            errors.forget(before);
            return Some(Prompt::List { is_empty: items.is_empty() });
        }
    }
    None
}

type Reader = fn(&Json, &mut Errors) -> Option<()>;

pub fn embeddings(body: &Json, rules: &Rules, errors: &mut Errors) -> Option<Embeddings> {
    let fields = &mut Fields::tracked(body, errors)?;
    let known = sampling::MODELS_OF_CHAT;
    let model = fields.required("model", errors, |value, errors| sampling::model(value, known, errors));
    let input = fields.required("input", errors, |value, errors| input(value, rules, errors));
    let dimensions = fields.optional("dimensions", errors, |value, errors| integer(value, ANY, errors));
    let formats = ["float", "base64"];
    // Null is base64, too.
    let format = |value: &Json, errors: &mut Errors| fields::one_of(value, &formats, errors);
    let format = fields.defaulted("encoding_format", 0, errors, format).unwrap_or(1);
    let user = fields.optional("user", errors, text);
    extensions::forbid(fields, errors);
    Some(Embeddings { model: model?, input: input?, dimensions, base64: format == 1, user })
}

fn input(value: &Json, rules: &Rules, errors: &mut Errors) -> Option<EmbeddingInput> {
    match value {
        Json::Text(text) if text.is_empty() => {
            fields::too_short("Value", value, errors);
            return None;
        }
        Json::Text(text) => return Some(EmbeddingInput::Text(text.clone())),
        Json::List(items) if items.is_empty() => {
            fields::too_short("Value", value, errors);
            return None;
        }
        Json::List(items) if rules.extensions && items.iter().all(|item| item.as_str().is_some()) => {
            return fields::list(value, errors, text).map(EmbeddingInput::Texts);
        }
        Json::List(items) if rules.extensions && items.iter().all(|item| item.as_list().is_some()) => {
            return fields::list(value, errors, token_list).map(EmbeddingInput::TokenLists);
        }
        _ => {}
    }
    let before = errors.mark();
    errors.within(Step::Name("str"), |errors| text(value, errors));
    let tag = Step::Name("list[int]");
    let token = |value: &Json, errors: &mut Errors| integer(value, ANY, errors);
    let tokens = errors.within(tag, |errors| fields::list(value, errors, token))?;
    errors.forget(before);
    Some(EmbeddingInput::Tokens(tokens))
}

fn token_list(value: &Json, errors: &mut Errors) -> Option<Vec<i64>> {
    let tokens = fields::list(value, errors, |value, errors| integer(value, ANY, errors))?;
    if tokens.is_empty() {
        fields::too_short("List", value, errors);
        return None;
    }
    Some(tokens)
}
