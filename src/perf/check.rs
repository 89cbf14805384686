//! What a plan must be before anything is sent: possible by itself, and fit for the model.

use std::collections::BTreeSet;
use std::time::Duration;

use super::PerfError;
use super::model_info::{ModelInfo, TensorFacts};
use super::openai::OpenAi;
use super::plan::{
    Compression, Endpoint, Form, Input, Load, Parameter, Plan, Protocol, SharedMemory, Sweep, Template, Window,
};
use super::request::json::strings;
use super::threads::{CONNECTIONS_MAX, one_each};
use nereid_request::DataType;

const LOAD_MAX: usize = 1 << 20;
const RATE_MAX: f64 = 1e8;
/// Parameters that have a place of their own in the plan; in one with a recording, only those of sequences.
const TAKEN: [&str; 5] = ["sequence_id", "sequence_start", "sequence_end", "priority", "timeout"];
pub const OF_SEQUENCES: [&str; 3] = ["sequence_id", "sequence_start", "sequence_end"];

/// Without a call to the server.
pub fn check_plan(plan: &Plan) -> Result<(), PerfError> {
    let refuse = |text: String| Err(PerfError::Plan(text));
    check_load(plan)?;
    check_rules(plan)?;
    let (work, client) = (&plan.work, &plan.client);
    if work.streams.iter().all(Vec::is_empty) {
        return refuse("there is no request to send".to_owned());
    }
    for (name, value) in &work.headers {
        let good_name =
            !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
        if !good_name || value.bytes().any(|byte| byte < b' ' || byte == 0x7F) {
            return refuse(format!("header '{name}' has a name or a value that cannot be sent"));
        }
    }
    if work.decoupled && plan.target.protocol != Protocol::GrpcStream {
        return refuse("a decoupled model answers on gRPC streams only".to_owned());
    }
    let expects = work.streams.iter().flatten().any(|template| template.expected.is_some());
    if work.decoupled && expects {
        return refuse("answers of a decoupled model cannot be compared with expected outputs".to_owned());
    }
    check_ring(plan)?;
    if work.shared_memory != SharedMemory::None
        && plan.target.protocol == Protocol::Http
        && work.input_form == Form::Json
    {
        return refuse("tensors lie in shared memory or in JSON, not in both".to_owned());
    }
    if client.threads == 0 || client.threads > 1024 {
        return refuse(format!("{} threads are not between 1 and 1024", client.threads));
    }
    if client.outstanding_max == 0 || client.request_timeout.is_zero() {
        return refuse("at least one request has to be allowed to be outstanding, for some time".to_owned());
    }
    if let Some(connections) = client.connections
        && (connections < client.threads || connections > CONNECTIONS_MAX.saturating_mul(client.threads))
    {
        return refuse(format!("{} threads cannot share {connections} connections", client.threads));
    }
    if let Some(openai) = plan.service.openai() {
        check_openai(plan, openai)?;
    }
    check_sequences(plan)
}

/// What a ring of shared memory has, and what it has not.
fn check_ring(plan: &Plan) -> Result<(), PerfError> {
    let refuse = |text: &str| Err(PerfError::Plan(text.to_owned()));
    let has_arena = matches!(plan.work.shared_memory, SharedMemory::Arena { .. });
    if plan.target.protocol != Protocol::Ipc {
        if has_arena {
            return refuse("tensors lie in an arena only with a shared-memory ring");
        }
        return match plan.client.ring_spin.is_zero() {
            true => Ok(()),
            false => refuse("threads poll shared-memory rings alone"),
        };
    }
    if !matches!(plan.target.endpoint, Endpoint::Unix(_)) {
        return refuse("a shared-memory ring is reached through the Unix socket of the server's --ipc-path");
    }
    if plan.target.tls.is_some() {
        return refuse("a shared-memory ring has no TLS: it is memory of this host");
    }
    if plan.work.compression != Compression::None {
        return refuse("messages in a shared-memory ring are not packed");
    }
    Ok(())
}

/// OpenAI's interface knows nothing of tensors and sequences.
fn check_openai(plan: &Plan, openai: &OpenAi) -> Result<(), PerfError> {
    let refuse = |text: &str| Err(PerfError::Plan(text.to_owned()));
    if plan.target.protocol != Protocol::Http {
        return refuse("OpenAI's interface is spoken over HTTP");
    }
    if !openai.path.starts_with('/') || !openai.path.bytes().all(|byte| byte.is_ascii_graphic()) {
        return refuse("the path of the requests does not begin with '/', or has letters that cannot be sent");
    }
    if plan.work.streams.iter().flatten().any(|template| template.body.is_none()) {
        return refuse("a request to OpenAI's interface has no body");
    }
    if plan.work.sequences.is_some() || plan.work.shared_memory != SharedMemory::None {
        return refuse("OpenAI's interface has neither sequences nor shared memory");
    }
    if plan.server_statistics {
        return refuse("OpenAI's interface has no statistics of models");
    }
    let needs_stream = openai.goals.first_token.is_some() || openai.goals.between_tokens.is_some();
    if needs_stream && !openai.streaming {
        return refuse("times of tokens are known of streamed answers only");
    }
    Ok(())
}

fn check_load(plan: &Plan) -> Result<(), PerfError> {
    let refuse = |text: String| Err(PerfError::Plan(text));
    let has_threshold = plan.rules.latency_threshold.is_some();
    let endless = match &plan.load {
        Load::Concurrency(Sweep { start, end, step }) => {
            let most = end.unwrap_or(*start);
            if *start == 0 || *step == 0 || most < *start || most > LOAD_MAX {
                return refuse(format!("no sweep of concurrencies goes from {start} to {most} by {step}"));
            }
            if let Some(connections) = plan.client.connections.filter(|connections| *connections < most)
                && one_each(plan)
            {
                return refuse(format!(
                    "{connections} connections with one request at a time cannot keep {most} requests in flight"
                ));
            }
            end.is_none()
        }
        Load::Rate { sweep: Sweep { start, end, step }, .. } => {
            let most = end.unwrap_or(*start);
            let good = |rate: f64| rate > 0.0 && rate <= RATE_MAX;
            if !good(*start) || !good(*step) || !good(most) || most < *start {
                return refuse(format!("no sweep of rates goes from {start} to {most} by {step}"));
            }
            end.is_none()
        }
        Load::Intervals(intervals) => {
            if intervals.iter().all(|interval| interval.is_zero()) {
                return refuse("intervals of nothing but zeros send everything at once, for ever".to_owned());
            }
            false
        }
        Load::Recorded(times) => {
            if times.offsets.len() != plan.work.streams.iter().map(Vec::len).sum::<usize>() {
                return refuse("the times of a recording are not those of the requests".to_owned());
            }
            if !(times.speed.is_finite() && times.speed > 0.0) {
                return refuse(format!(
                    "a recording cannot be sent {} times as fast; give --speed above 0",
                    times.speed
                ));
            }
            if times.offsets.iter().all(Duration::is_zero) {
                let reason = "the recording has no times to follow, because it has one request for this model or all \
                              came at once; give --concurrency-range or --request-rate-range";
                return refuse(reason.to_owned());
            }
            if times.round_ns().is_none() {
                let reason = "at this speed all requests are due at once; give a lower --speed or --concurrency-range";
                return refuse(reason.to_owned());
            }
            false
        }
    };
    if endless && !has_threshold {
        return refuse("a sweep without an end needs a latency threshold".to_owned());
    }
    if plan.rules.binary_search && (endless || !has_threshold) {
        return refuse("a binary search needs an end and a latency threshold".to_owned());
    }
    Ok(())
}

fn check_rules(plan: &Plan) -> Result<(), PerfError> {
    let refuse = |text: &str| Err(PerfError::Plan(text.to_owned()));
    let rules = &plan.rules;
    let empty = match rules.window {
        Window::Time(time) => time.is_zero(),
        Window::Count(count) => count == 0,
    };
    if empty || rules.request_count == Some(0) {
        return refuse("a window of nothing measures nothing");
    }
    if rules.trials_max == 0 {
        return refuse("at least one window has to be tried");
    }
    if rules.stability_percent.is_nan()
        || rules.stability_percent < 0.0
        || rules.percentile.is_some_and(|percentile| !(0.0..=100.0).contains(&percentile))
    {
        return refuse("a percentage is not one");
    }
    if plan.metrics.as_ref().is_some_and(|metrics| metrics.interval.is_zero()) {
        return refuse("metrics cannot be read all the time");
    }
    Ok(())
}

fn check_sequences(plan: &Plan) -> Result<(), PerfError> {
    let refuse = |text: String| Err(PerfError::Plan(text));
    let Some(sequences) = &plan.work.sequences else { return Ok(()) };
    let at_once = match &plan.load {
        Load::Concurrency(Sweep { start, end, .. }) => end.unwrap_or(*start),
        _ => sequences.at_once,
    };
    if at_once == 0 || sequences.length == Some(0) {
        return refuse("sequences of nothing measure nothing".to_owned());
    }
    if !(0.0..=100.0).contains(&sequences.length_variation_percent) {
        return refuse(format!("lengths cannot vary by {} percent", sequences.length_variation_percent));
    }
    let threads = plan.client.threads.max(1);
    let ids = sequences.end_id.map(|end| end.saturating_sub(sequences.first_id));
    // Threads have ids to themselves, so that nothing is shared while requests run.
    let needed = at_once.div_ceil(threads).saturating_mul(threads) as u64;
    if sequences.first_id == 0 || ids.is_some_and(|ids| ids < needed) {
        let ids = ids.map_or_else(String::new, |ids| format!(" out of {ids}"));
        return refuse(format!("{at_once} sequences at a time need {needed} ids above 0{ids}"));
    }
    Ok(())
}

/// Against the server's description of the model.
pub fn check_against(plan: &Plan, model_info: &ModelInfo) -> Result<(), PerfError> {
    let refuse = |text: String| Err(PerfError::Plan(text));
    if plan.service.openai().is_some() {
        return Ok(());
    }
    let model = &model_info.model;
    if model_info.decoupled && !plan.work.decoupled {
        return refuse(format!("model '{model}' is decoupled: it answers on gRPC streams only"));
    }
    if model_info.sequences && plan.work.sequences.is_none() {
        return refuse(format!("model '{model}' is scheduled by sequences, and the plan has none"));
    }
    let taken = if plan.work.recording.is_some() { &OF_SEQUENCES[..] } else { &TAKEN };
    for (number, template) in plan.work.streams.iter().flatten().enumerate() {
        check_template(template, model_info, taken)
            .map_err(|text| PerfError::Plan(format!("request {number}: {text}")))?;
    }
    Ok(())
}

/// `taken`: names of parameters that a template may not have.
pub fn check_template(template: &Template, model_info: &ModelInfo, taken: &[&str]) -> Result<(), String> {
    let model = &model_info.model;
    for (at, input) in template.inputs.iter().enumerate() {
        let elements = check_form(&input.name, &input.datatype, &input.shape, model_info)?;
        if template.inputs.iter().take(at).any(|other| other.name == input.name) {
            return Err(format!("input '{}' is there twice", input.name));
        }
        check_contents(input, elements).map_err(|text| format!("input '{}': {text}", input.name))?;
    }
    let missing = |facts: &&TensorFacts| !template.inputs.iter().any(|input| input.name == facts.name);
    if let Some(facts) = model_info.inputs.iter().filter(|facts| !facts.optional).find(missing) {
        return Err(format!("input '{}' of model '{model}' is missing", facts.name));
    }
    let expected = template.expected.iter().flatten().map(|expected| &expected.name);
    for name in template.outputs.iter().chain(expected) {
        if !model_info.outputs.iter().any(|facts| facts.name == *name) {
            return Err(format!("model '{model}' has no output '{name}'"));
        }
    }
    if let Some(name) = repeated(&template.outputs) {
        return Err(format!("output '{name}' is requested twice"));
    }
    for (name, value) in &template.parameters {
        if taken.contains(&name.as_str()) {
            return Err(format!("parameter '{name}' has a place of its own in the plan"));
        }
        if matches!(value, Parameter::Double(value) if !value.is_finite()) {
            return Err(format!("parameter '{name}' is no number that can be sent"));
        }
    }
    Ok(())
}

/// The first name that was there before.
fn repeated(names: &[String]) -> Option<&String> {
    let mut seen = BTreeSet::new();
    names.iter().find(|name| !seen.insert(*name))
}

/// Whether the model takes an input of that form, whatever its contents, and the number of its elements.
pub fn check_form(name: &str, datatype: &str, shape: &[i64], model_info: &ModelInfo) -> Result<u64, String> {
    let facts = model_info.inputs.iter().find(|facts| facts.name == name);
    let facts = facts.ok_or_else(|| format!("model '{}' has no input '{name}'", model_info.model))?;
    fitting(datatype, shape, facts, model_info).map_err(|text| format!("input '{name}': {text}"))
}

fn fitting(datatype: &str, shape: &[i64], facts: &TensorFacts, model_info: &ModelInfo) -> Result<u64, String> {
    if datatype != facts.datatype {
        return Err(format!("the model takes {}, not {datatype}", facts.datatype));
    }
    let fits = shape.len() == facts.shape.len()
        && shape.iter().zip(&facts.shape).all(|(dim, wanted)| *dim >= 0 && (*wanted < 0 || dim == wanted));
    if !fits {
        return Err(format!("the shape {shape:?} does not fit the model's {:?}", facts.shape));
    }
    let batch = shape.first().and_then(|batch| u64::try_from(*batch).ok()).unwrap_or(0);
    if model_info.max_batch_size > 0 && !facts.is_shape_tensor && batch > model_info.max_batch_size {
        return Err(format!("a batch of {batch} is more than the model's {}", model_info.max_batch_size));
    }
    let elements = shape.iter().try_fold(1u64, |count, dim| count.checked_mul(u64::try_from(*dim).ok()?));
    elements.ok_or_else(|| format!("the shape {shape:?} has too many elements"))
}

/// Whether contents have so many elements.
fn check_contents(input: &Input, elements: u64) -> Result<(), String> {
    let Some(datatype) = DataType::from_name(input.datatype.as_bytes()) else {
        return Err(format!("no datatype is named '{}'", input.datatype));
    };
    let found = match datatype {
        DataType::Bytes => strings(&input.data)?.len() as u64,
        datatype => {
            let size = datatype.byte_size() as u64;
            let bytes = input.data.len() as u64;
            if !bytes.is_multiple_of(size) {
                return Err(format!("{bytes} bytes are no whole number of elements of {size} bytes"));
            }
            bytes / size
        }
    };
    match found == elements {
        true => Ok(()),
        false => Err(format!("{found} elements do not fill the shape {:?} of {elements}", input.shape)),
    }
}

#[cfg(test)]
mod tests;
