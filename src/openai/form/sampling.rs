//! `sampling_parameters`, the JSON text that vLLM's models take (contract/openai.md section 3.2).

use super::json_text;
use super::{Generation, Guide};
use crate::error::Compat;
use crate::json::Json;

/// What vLLM calls what a text is held to, by the members that its own server takes.
const GUIDES: [(&str, &str); 4] =
    [("guided_json", "json"), ("guided_regex", "regex"), ("guided_choice", "choice"), ("guided_grammar", "grammar")];

/// Members as Python would write them: in upstream's order, nulls left out.
pub(super) fn text(generation: &Generation<'_>, compat: Compat) -> String {
    let sampling = generation.sampling;
    let temperature = if generation.is_chat { 0.7 } else { 1.0 };
    let stop = sampling.stop.as_ref().map(|stop| Json::List(stop.iter().cloned().map(Json::Text).collect()));
    let members = [
        ("frequency_penalty", sampling.frequency_penalty.map(|value| number(value, 0.0))),
        ("ignore_eos", Some(Json::Bool(sampling.ignore_eos))),
        ("min_tokens", sampling.min_tokens.map(integer)),
        ("n", Some(integer(sampling.n))),
        ("presence_penalty", sampling.presence_penalty.map(|value| number(value, 0.0))),
        ("seed", sampling.seed.map(integer)),
        ("stop", stop),
        ("temperature", sampling.temperature.map(|value| number(value, temperature))),
        ("top_p", sampling.top_p.map(|value| number(value, 1.0))),
        ("max_tokens", Some(integer(generation.max_tokens))),
        ("logprobs", generation.logprobs.map(integer)),
        ("lora_name", generation.lora.map(|name| Json::Text(name.to_owned()))),
    ];
    let mut members: Vec<(String, Json)> =
        members.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect();
    if compat == Compat::OpenAi {
        extend(&mut members, generation);
    }
    if let Some(guide) = structured_outputs(generation, compat) {
        // vLLM's backend reads a text that holds JSON.
        members.push(("structured_outputs".to_owned(), Json::Text(json_text::python(&guide))));
    }
    json_text::python(&Json::Object(members))
}

/// Adds the extensions of the request. Names that are there already keep their checked values.
fn extend(members: &mut Vec<(String, Json)>, generation: &Generation<'_>) {
    let fixed = members.len();
    for (name, value) in &generation.sampling.extra {
        let is_guide = name == "structured_outputs" || GUIDES.iter().any(|(guide, _)| guide == name);
        let is_set = members.iter().take(fixed).any(|(member, _)| member == name);
        if !is_guide && !is_set && *value != Json::Null {
            members.push((name.clone(), value.clone()));
        }
    }
}

/// The fields of vLLM's StructuredOutputsParams.
fn structured_outputs(generation: &Generation<'_>, compat: Compat) -> Option<Json> {
    let field = |name: &str, value: Json| Some(Json::Object(vec![(name.to_owned(), value)]));
    match generation.guide {
        Some(Guide::Schema(schema)) => return field("json", Json::Text(schema.clone())),
        Some(Guide::JsonObject) => return field("json_object", Json::Bool(true)),
        None => {}
    }
    if compat == Compat::Triton {
        return None;
    }
    generation.sampling.extra.iter().find_map(|(name, value)| match (name.as_str(), value) {
        (_, Json::Null) => None,
        ("structured_outputs", Json::Object(_)) => Some(value.clone()),
        (name, value) => {
            let (_, guide) = GUIDES.iter().find(|(guide, _)| *guide == name)?;
            field(guide, value.clone())
        }
    })
}

fn integer(value: i64) -> Json {
    Json::Int(i128::from(value))
}

/// Upstream's defaults without a fraction are integers, and stay so.
fn number(value: f64, default: f64) -> Json {
    if value == default && value.fract() == 0.0 { Json::Int(value as i128) } else { Json::Float(value) }
}
