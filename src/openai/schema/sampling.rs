//! Members that chat and completions share, in groups that stand together in both schemas.

use super::Rules;
use super::errors::{Errors, Step};
use super::fields::{self, Fields};
use super::scalars::{self, ANY, COUNT, between, boolean, float, integer, text};
use crate::json::Json;
use crate::request::{Sampling, StreamOptions};

pub const MODELS_OF_COMPLETIONS: (&str, &[&str]) =
    ("enum[Model1]", &["gpt-3.5-turbo-instruct", "davinci-002", "babbage-002"]);
pub const MODELS_OF_CHAT: (&str, &[&str]) = (
    "enum[Model2]",
    &[
        "gpt-4-turbo",
        "gpt-4-turbo-2024-04-09",
        "gpt-4-0125-preview",
        "gpt-4-turbo-preview",
        "gpt-4-1106-preview",
        "gpt-4-vision-preview",
        "gpt-4",
        "gpt-4-0314",
        "gpt-4-0613",
        "gpt-4-32k",
        "gpt-4-32k-0314",
        "gpt-4-32k-0613",
        "gpt-3.5-turbo",
        "gpt-3.5-turbo-16k",
        "gpt-3.5-turbo-0301",
        "gpt-3.5-turbo-0613",
        "gpt-3.5-turbo-1106",
        "gpt-3.5-turbo-0125",
        "gpt-3.5-turbo-16k-0613",
    ],
);

/// Any string: the known names are only told to who sends something else.
pub fn model(value: &Json, known: (&'static str, &[&str]), errors: &mut Errors) -> Option<String> {
    if let Json::Text(name) = value {
        return Some(name.clone());
    }
    errors.within(Step::Name("str"), |errors| text(value, errors));
    errors.within(Step::Name(known.0), |errors| errors.add_choice("enum", known.1, value));
    None
}

fn penalty(name: &'static str, fields: &mut Fields<'_>, errors: &mut Errors) -> Option<f64> {
    fields.defaulted(name, 0.0, errors, |value, errors| float(value, -2.0, 2.0, errors))
}

fn count(name: &'static str, fields: &mut Fields<'_>, errors: &mut Errors) -> Option<i64> {
    fields.optional(name, errors, |value, errors| integer(value, COUNT, errors))
}

/// From `frequency_penalty` to `logit_bias`.
pub fn frequency(sampling: &mut Sampling, fields: &mut Fields<'_>, errors: &mut Errors) {
    sampling.frequency_penalty = penalty("frequency_penalty", fields, errors);
    sampling.ignore_eos = fields.optional("ignore_eos", errors, boolean).unwrap_or(false);
    sampling.has_logit_bias = fields.optional("logit_bias", errors, logit_bias).is_some();
}

fn logit_bias(value: &Json, errors: &mut Errors) -> Option<()> {
    let Json::Object(members) = value else {
        errors.add("dict_type", "Input should be a valid dictionary", value);
        return None;
    };
    for (name, value) in members {
        // The way is only needed where there is something to tell.
        if !matches!(value, Json::Int(_)) {
            errors.within(Step::Member(name.clone()), |errors| integer(value, ANY, errors));
        }
    }
    Some(())
}

pub fn max_completion_tokens(sampling: &mut Sampling, fields: &mut Fields<'_>, errors: &mut Errors) {
    sampling.max_completion_tokens = count("max_completion_tokens", fields, errors);
}

/// From `max_tokens` to `presence_penalty`.
pub fn counts(sampling: &mut Sampling, fields: &mut Fields<'_>, errors: &mut Errors) {
    sampling.max_tokens = count("max_tokens", fields, errors);
    sampling.min_tokens = count("min_tokens", fields, errors);
    let n = fields.optional("n", errors, |value, errors| integer(value, between(1, 128), errors));
    sampling.n = n.unwrap_or(1);
    sampling.presence_penalty = penalty("presence_penalty", fields, errors);
}

/// From `seed` to `stream_options`.
pub fn stream(sampling: &mut Sampling, rules: &Rules, fields: &mut Fields<'_>, errors: &mut Errors) {
    let limits = between(i64::MIN, i64::MAX);
    sampling.seed = fields.optional("seed", errors, |value, errors| integer(value, limits, errors));
    sampling.stop = fields.optional("stop", errors, fields::texts);
    sampling.stream = fields.optional("stream", errors, boolean).unwrap_or(false);
    sampling.stream_options = fields.optional("stream_options", errors, |value, errors| {
        let mut fields = Fields::of(value, errors)?;
        let include_usage = fields.optional("include_usage", errors, boolean).unwrap_or(false);
        let continuous = match rules.extensions {
            true => fields.optional("continuous_usage_stats", errors, boolean),
            false => None,
        };
        Some(StreamOptions { include_usage, continuous_usage_stats: continuous.unwrap_or(false) })
    });
}

/// `temperature` and `top_p`.
pub fn randomness(sampling: &mut Sampling, temperature: f64, fields: &mut Fields<'_>, errors: &mut Errors) {
    let read = |value: &Json, errors: &mut Errors| scalars::float(value, 0.0, 2.0, errors);
    sampling.temperature = fields.defaulted("temperature", temperature, errors, read);
    sampling.top_p = fields.defaulted("top_p", 1.0, errors, |value, errors| float(value, 0.0, 1.0, errors));
}
