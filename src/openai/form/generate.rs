//! The inputs of a request for a text, in each convention (contract/openai.md sections 3.2 and 3.3).

use super::tensors::Tensors;
use super::{Form, Generation, Guide, ModelFacts, sampling};
use crate::error::{Compat, Refusal};
use crate::json::Json;
use crate::plan::Input;
use nereid_request::DataType;

/// Extensions that TensorRT-LLM's models know as inputs of their own. No other input of a model may be set by name.
const EXTENSIONS: [&str; 4] = ["top_k", "min_p", "repetition_penalty", "length_penalty"];

pub(super) fn inputs(
    facts: &ModelFacts,
    generation: &Generation<'_>,
    form: Form,
    compat: Compat,
) -> Result<Vec<Input>, Refusal> {
    let rank = if form == Form::TensorRtLlm { 2 } else { 1 };
    let mut tensors = Tensors::new(facts, compat, rank);
    tensors.prompt(facts.prompt_input(), generation.prompt)?;
    match form {
        Form::Vllm => vllm(&mut tensors, facts, generation, compat)?,
        Form::TensorRtLlm => tensorrt_llm(&mut tensors, facts, generation, compat)?,
        Form::LlmApi => llm_api(&mut tensors, facts, generation, compat)?,
    }
    if facts.reports_finish_reason(compat) {
        tensors.flag("return_finish_reason", true);
    }
    Ok(tensors.into_inputs())
}

fn vllm(
    tensors: &mut Tensors<'_>,
    facts: &ModelFacts,
    generation: &Generation<'_>,
    compat: Compat,
) -> Result<(), Refusal> {
    tensors.flag("stream", generation.sampling.stream);
    if let Some(name) = facts.echo_input() {
        tensors.flag(name, !generation.echo.unwrap_or(false));
    }
    tensors.text("sampling_parameters", &sampling::text(generation, compat))?;
    tensors.flag("return_num_input_tokens", true);
    tensors.flag("return_num_output_tokens", true);
    tensors.flag("return_logprobs", generation.logprobs.is_some());
    Ok(())
}

fn tensorrt_llm(
    tensors: &mut Tensors<'_>,
    facts: &ModelFacts,
    generation: &Generation<'_>,
    compat: Compat,
) -> Result<(), Refusal> {
    let sampling = generation.sampling;
    tensors.flag("stream", sampling.stream);
    tensors.integer("max_tokens", "max_tokens", generation.max_tokens, DataType::Int32)?;
    if let Some(stop) = sampling.stop.as_deref().filter(|stop| !stop.is_empty()) {
        tensors.texts("stop_words", stop)?;
    }
    numbers(tensors, generation, compat, "")?;
    if let (Some(echo), Some(name)) = (generation.echo, facts.echo_input()) {
        tensors.flag(name, !echo);
    }
    guide(tensors, generation)?;
    if let Some(lora) = generation.lora.and_then(|name| facts.loras.get(name)) {
        tensors.integer("lora_task_id", "model", lora.task_id(), DataType::Uint64)?;
        if !lora.is_known() {
            for (name, array) in lora.arrays()? {
                if let Some((declared, _)) = tensors.declared(name) {
                    let datatype = array.datatype(declared);
                    tensors.push(name, datatype, array.shape, array.data);
                }
            }
        }
    }
    tensors.flag("return_num_input_tokens", true);
    tensors.flag("return_num_output_tokens", true);
    Ok(())
}

fn llm_api(
    tensors: &mut Tensors<'_>,
    facts: &ModelFacts,
    generation: &Generation<'_>,
    compat: Compat,
) -> Result<(), Refusal> {
    let sampling = generation.sampling;
    tensors.flag("streaming", sampling.stream);
    tensors.integer("sampling_param_max_tokens", "max_tokens", generation.max_tokens, DataType::Int32)?;
    if let Some(stop) = sampling.stop.as_deref().filter(|stop| !stop.is_empty()) {
        tensors.texts("sampling_param_stop", stop)?;
    }
    numbers(tensors, generation, compat, "sampling_param_")?;
    // Its default is to repeat the prompt.
    if let Some(name) = facts.echo_input() {
        tensors.flag(name, !generation.echo.unwrap_or(false));
    }
    guide(tensors, generation)?;
    if let Some(lora) = generation.lora.and_then(|name| facts.loras.get(name)) {
        tensors.integer("lora_id", "model", lora.task_id(), DataType::Int32)?;
        tensors.text("lora_name", lora.name())?;
        tensors.text("lora_path", &lora.folder().to_string_lossy())?;
    }
    tensors.flag("return_num_input_tokens", true);
    tensors.flag("return_num_output_tokens", true);
    Ok(())
}

/// How tokens are drawn. `prefix`: of the inputs' names.
fn numbers(
    tensors: &mut Tensors<'_>,
    generation: &Generation<'_>,
    compat: Compat,
    prefix: &str,
) -> Result<(), Refusal> {
    let sampling = generation.sampling;
    let name = |member: &str| format!("{prefix}{member}");
    let floats = [
        ("top_p", sampling.top_p),
        ("frequency_penalty", sampling.frequency_penalty),
        ("presence_penalty", sampling.presence_penalty),
    ];
    for (member, value) in floats {
        if let Some(value) = value {
            tensors.float(&name(member), value);
        }
    }
    if let Some(seed) = sampling.seed {
        tensors.integer(&name("seed"), "seed", seed, DataType::Uint64)?;
    }
    if let Some(temperature) = sampling.temperature {
        tensors.float(&name("temperature"), temperature);
    }
    if compat == Compat::Triton {
        return Ok(());
    }
    for (member, value) in sampling.extra.iter().filter(|(member, _)| EXTENSIONS.contains(&member.as_str())) {
        match value {
            Json::Int(value) if member == "top_k" => {
                let value = i64::try_from(*value)
                    .map_err(|_| Refusal::client(format!("`{member}` is {value}, which is not of 64 bits")))?;
                tensors.integer(&name(member), member, value, DataType::Int32)?;
            }
            Json::Int(value) => tensors.float(&name(member), *value as f64),
            Json::Float(value) => tensors.float(&name(member), *value),
            _ => {}
        }
    }
    Ok(())
}

fn guide(tensors: &mut Tensors<'_>, generation: &Generation<'_>) -> Result<(), Refusal> {
    match generation.guide {
        None => Ok(()),
        Some(Guide::Schema(schema)) => {
            tensors.text("guided_decoding_guide_type", "json_schema")?;
            tensors.text("guided_decoding_guide", schema)
        }
        Some(Guide::JsonObject) => tensors.text("guided_decoding_guide_type", "json"),
    }
}
