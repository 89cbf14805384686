//! The models of OpenAI's interface: the list, one of them, and their loading and unloading (contract/openai.md section
//! 1.9). What walks all models or reads files runs away from the shards.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::call::{HttpAnswer, JSON, refusal_body};
use super::settings::OpenAi;
use crate::api::mail::{Mail, Post};
use crate::repository::{Lifecycle, ModelMap};
use nereid_memory::{Gather, Pool};
use nereid_openai::error::Refusal;
use nereid_openai::json::Json;
use nereid_protocol::http1::Response;
use nereid_request::{Code, Status};
use nereid_scheduler::ServedModel;

const OWNER: &str = "Triton Inference Server";
/// How often a thread looks whether a model is gone.
const LOOKS_EVERY: Duration = Duration::from_millis(2);

/// Loads and unloads follow one another.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// An answer that another thread gives.
pub struct Elsewhere {
    pub http: HttpAnswer,
    pub pool: Pool,
    pub post: Post,
}

impl Elsewhere {
    pub fn answer(self, outcome: Result<String, Refusal>) {
        let Elsewhere { http, pool, post } = self;
        let response = whole(&http, &pool, outcome);
        post(Mail::Answered { call: http.call, response });
    }
}

/// An answer in one piece.
pub fn whole(http: &HttpAnswer, pool: &Pool, outcome: Result<String, Refusal>) -> Response {
    let (status, text, content_type) = match outcome {
        Ok(text) => (200, text, JSON),
        Err(refusal) => {
            let (text, content_type) = refusal_body(&refusal, http.compat);
            (refusal.status, text, content_type)
        }
    };
    let mut body = Gather::new();
    body.put(pool, text.as_bytes());
    Response::new(http.head(status, content_type), body)
}

fn text(text: &str) -> Json {
    Json::Text(text.to_owned())
}

fn object<const N: usize>(members: [(&str, Json); N]) -> Json {
    Json::Object(members.map(|(name, value)| (name.to_owned(), value)).into())
}

fn written(value: &Json) -> String {
    let mut out = String::new();
    value.compact(&mut out);
    out
}

fn model_object(id: &str, created: u64) -> Json {
    object([
        ("id", text(id)),
        ("created", Json::Int(created.into())),
        ("object", text("model")),
        ("owned_by", text(OWNER)),
    ])
}

/// The latest ready version of each name.
fn by_name(models: &ModelMap) -> BTreeMap<&str, &Arc<ServedModel>> {
    models.ready().map(|served| (&*served.name, served)).collect()
}

/// The list of the models that are ready, with the adapters of each where requests can name them.
pub fn list(openai: &OpenAi, models: &ModelMap, now_s: u64) -> String {
    let mut data = Vec::new();
    for (name, served) in by_name(models) {
        let created = openai.models.created(served, now_s);
        data.push(model_object(name, created));
        if let Some(separator) = openai.prepare.lora_separator.as_deref().filter(|separator| !separator.is_empty()) {
            let model = openai.models.read(served, &openai.prepare, now_s);
            let adapters = model.facts.loras().names().into_iter();
            data.extend(adapters.map(|adapter| model_object(&format!("{name}{separator}{adapter}"), created)));
        }
    }
    written(&object([("object", text("list")), ("data", Json::List(data))]))
}

/// One model, which may be an adapter of one.
pub fn one(openai: &OpenAi, models: &ModelMap, id: &str, now_s: u64) -> Result<String, Refusal> {
    let found = |name: &str| models.lookup(name.as_bytes(), None).ok();
    let adapted = || {
        let (name, adapter) =
            id.split_once(openai.prepare.lora_separator.as_deref().filter(|text| !text.is_empty())?)?;
        let served = found(name)?;
        let model = openai.models.read(served, &openai.prepare, now_s);
        model.facts.loras().names().contains(&adapter).then_some(served)
    };
    let served = found(id).or_else(adapted).ok_or_else(|| Refusal::model_not_found(id))?;
    Ok(written(&model_object(id, openai.models.created(served, now_s))))
}

/// Loads a model; returns when it serves.
pub fn load(openai: &OpenAi, lifecycle: &Arc<Lifecycle>, name: &str, now_s: u64) -> Result<String, Refusal> {
    check_explicit(openai)?;
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    if lifecycle.map().lookup(name.as_bytes(), None).is_ok() {
        return Err(Refusal::client(format!("Model '{name}' is already loaded")));
    }
    lifecycle.load(name, Vec::new()).map_err(|status| failed("load", name, &status))?;
    let map = lifecycle.map();
    let served = map.lookup(name.as_bytes(), None).map_err(|status| failed("load", name, &status))?;
    Ok(written(&model_object(name, openai.models.created(served, now_s))))
}

/// Unloads a model; returns when it is gone.
pub fn unload(openai: &OpenAi, lifecycle: &Arc<Lifecycle>, name: &str) -> Result<String, Refusal> {
    check_explicit(openai)?;
    let one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    // A strong reference would keep the model from being unloaded.
    let Ok(before) = lifecycle.map().lookup(name.as_bytes(), None).map(Arc::downgrade) else {
        return Err(Refusal::unknown_model(name));
    };
    lifecycle.unload(name, false).map_err(|status| failed("unload", name, &status))?;
    drop(one);
    // Another client may load it again before it is seen to be gone.
    let is_another =
        || lifecycle.map().lookup(name.as_bytes(), None).is_ok_and(|now| Arc::as_ptr(now) != before.as_ptr());
    while !lifecycle.is_unloaded(name) && !lifecycle.is_stopping() && !is_another() {
        std::thread::sleep(LOOKS_EVERY);
    }
    Ok(written(&object([("status", text("success")), ("model", text(name))])))
}

fn check_explicit(openai: &OpenAi) -> Result<(), Refusal> {
    match openai.is_explicit {
        true => Ok(()),
        false => Err(Refusal::client("Model load/unload requires --model-control-mode=explicit")),
    }
}

fn failed(what: &str, name: &str, status: &Status) -> Refusal {
    let text = format!("Failed to {what} model '{name}': {}", status.message);
    if status.code == Code::InvalidArg { Refusal::client(text) } else { Refusal::server(text) }
}
