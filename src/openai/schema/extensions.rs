//! Members beside the schema: of OpenAI's present interface and of engines, where they are let through
//! (contract/openai.md section 5); else, and of any other name, they are refused.

use super::Rules;
use super::errors::{Errors, Step};
use super::fields::{self, Fields};
use super::scalars::{ANY, boolean, integer, number, text};
use crate::json::Json;
use crate::request::Sampling;

/// Reads what of the request nobody has asked for.
pub fn others(sampling: &mut Sampling, rules: &Rules, fields: &Fields<'_>, errors: &mut Errors) {
    for (name, value) in fields.others() {
        errors.within(Step::Member(name.to_owned()), |errors| {
            if !rules.extensions || !member(sampling, name, value, errors) {
                forbidden(value, errors);
            }
        });
    }
}

/// The same, but names that are not known are passed over.
pub fn known(sampling: &mut Sampling, fields: &Fields<'_>, errors: &mut Errors) {
    for (name, value) in fields.others() {
        errors.within(Step::Member(name.to_owned()), |errors| member(sampling, name, value, errors));
    }
}

/// Refuses what of the request nobody has asked for.
pub fn forbid(fields: &Fields<'_>, errors: &mut Errors) {
    for (name, value) in fields.others() {
        errors.within(Step::Member(name.to_owned()), |errors| forbidden(value, errors));
    }
}

fn forbidden(value: &Json, errors: &mut Errors) {
    errors.add("extra_forbidden", "Extra inputs are not permitted", value);
}

/// False: no such member is known.
fn member(sampling: &mut Sampling, name: &str, value: &Json, errors: &mut Errors) -> bool {
    let kind = match name {
        // They tell the service that runs a model what a server of models has no part in.
        "parallel_tool_calls" | "store" | "metadata" | "service_tier" | "prompt_cache_key" | "safety_identifier" => {
            return true;
        }
        "priority" | "top_k" => Kind::Integer,
        "min_p" | "repetition_penalty" | "length_penalty" => Kind::Number,
        "include_stop_str_in_output" | "skip_special_tokens" | "spaces_between_special_tokens" => Kind::Boolean,
        "stop_token_ids" | "allowed_token_ids" => Kind::Integers,
        "bad_words" => Kind::Texts,
        "structured_outputs"
        | "guided_json"
        | "guided_regex"
        | "guided_choice"
        | "guided_grammar"
        | "guided_decoding_backend"
        | "guided_whitespace_pattern" => Kind::Any,
        _ => return false,
    };
    if value.is_null() {
        return true;
    }
    match (name, kind.read(value, errors)) {
        (_, None) => {}
        ("priority", Some(priority)) => sampling.priority = priority.as_i64(),
        (_, Some(value)) => sampling.extra.push((name.to_owned(), value)),
    }
    true
}

/// What a member of an engine must be.
enum Kind {
    Integer,
    Number,
    Boolean,
    Integers,
    Texts,
    Any,
}

impl Kind {
    fn read(&self, value: &Json, errors: &mut Errors) -> Option<Json> {
        let one = |value: &Json, errors: &mut Errors| integer(value, ANY, errors).map(Json::from);
        match self {
            Kind::Integer => one(value, errors),
            Kind::Number => finite(value, errors),
            Kind::Boolean => boolean(value, errors).map(Json::Bool),
            Kind::Integers => fields::list(value, errors, one).map(Json::List),
            Kind::Texts => {
                let texts = fields::list(value, errors, |value, errors| text(value, errors).map(Json::Text));
                texts.map(Json::List)
            }
            Kind::Any if value.is_finite() => Some(value.clone()),
            Kind::Any => {
                errors.add("finite_number", "Input should be a finite number", value);
                None
            }
        }
    }
}

fn finite(value: &Json, errors: &mut Errors) -> Option<Json> {
    let number = number(value, errors)?;
    if !number.is_finite() {
        errors.add("finite_number", "Input should be a finite number", value);
        return None;
    }
    Some(Json::Float(number))
}
