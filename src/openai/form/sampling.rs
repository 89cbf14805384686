//! `sampling_parameters`, the JSON text that vLLM's models take (contract/openai.md section 3.2).

use super::{Generation, Guide, python_text};
use crate::error::Compat;
use crate::json::Json;

/// What vLLM's engine calls what a text is held to, by the members of requests to its server.
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
        members.push(("structured_outputs".to_owned(), Json::Text(python_text(&guide))));
    }
    python_text(&Json::Object(members))
}

/// Adds the extensions of the request. Names that are there already keep their checked values.
fn extend(members: &mut Vec<(String, Json)>, generation: &Generation<'_>) {
    let fixed = members.len();
    for (name, value) in &generation.sampling.extra {
        let is_guide = name == "structured_outputs" || name.starts_with("guided_");
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
    let extra =
        |wanted: &str| generation.sampling.extra.iter().find(|(name, _)| name == wanted).map(|(_, value)| value);
    if let Some(Json::Object(members)) = extra("structured_outputs") {
        return Some(Json::Object(members.clone()));
    }
    let (field, value) = GUIDES.iter().find_map(|(name, field)| Some((*field, extra(name)?)))?;
    let mut fields = vec![(field.to_owned(), value.clone())];
    fields.extend(extra("guided_whitespace_pattern").map(|value| ("whitespace_pattern".to_owned(), value.clone())));
    Some(Json::Object(fields))
}

fn integer(value: i64) -> Json {
    Json::Int(i128::from(value))
}

/// Upstream's defaults without a fraction are integers, and stay so.
fn number(value: f64, default: f64) -> Json {
    if value == default && value.fract() == 0.0 { Json::Int(value as i128) } else { Json::Float(value) }
}
