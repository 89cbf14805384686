//! The SageMaker port: `/ping`, `/invocations`, and the models of a multi-model endpoint (contract/http.md section 8).

pub mod settings;

use std::sync::Arc;

use tracing::info;

use super::sagemaker_models::{Load, SageMakerModel, Table, load_status};
use super::{CloudRoute, CloudRouting};
use crate::api::access::Access;
use crate::api::audit::Audited;
use crate::api::error;
use crate::api::facts::Facts;
use crate::api::http::dialect::Dialect;
use crate::api::http::log::method_number;
use crate::api::mail::{Mail, Post};
use crate::api::management::health::check_instances;
use crate::api::management::outcome::{Probe, Protocol};
use crate::api::routes::Category;
use crate::repository::{Lifecycle, ModelMap};
use nereid_memory::{Gather, Pool, Slice};
use nereid_observe::log::verbose;
use nereid_protocol::http1::{Head, Method, Response};
use nereid_protocol::json::{GatherSink, Writer};
use nereid_protocol::service::CallKey;
use nereid_request::Status;
use settings::Inference;

/// Names the model of a load, where it is not that of the hash; elsewhere it must agree with the path.
const TARGET_MODEL: &str = "X-Amzn-SageMaker-Target-Model";

/// A body of so many bytes is read for the audit log.
const AUDITED_BYTES_MAX: usize = 16 * 1024;

/// The meaning of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Route<'a> {
    Ping,
    Invocations,
    Models,
    /// By its hash.
    Model(&'a str),
    Invoke(&'a str),
}

fn route(path: &str) -> Option<Route<'_>> {
    Some(match path {
        "/ping" => Route::Ping,
        "/invocations" => Route::Invocations,
        "/models" | "/models/" => Route::Models,
        _ => {
            let mut parts = path.strip_prefix("/models/")?.split('/');
            let hash = parts.next().filter(|hash| !hash.is_empty())?;
            match (parts.next(), parts.next()) {
                (None, _) => Route::Model(hash),
                (Some("invoke"), None) => Route::Invoke(hash),
                _ => return None,
            }
        }
    })
}

/// The change that a request asks for, if it is one.
pub fn audited(head: &Head, body: Option<&Slice>) -> Option<Audited> {
    let (action, subject) = match (route(head.path())?, head.method()) {
        (Route::Models, Method::Post) => {
            // Shards read no long bodies.
            let load = body.filter(|body| body.len() <= AUDITED_BYTES_MAX).and_then(|body| Load::read(body).ok());
            ("register-and-load", load.map(|load| load.describe()).unwrap_or_default())
        }
        (Route::Model(hash), Method::Delete) => ("unload", hash.to_owned()),
        _ => return None,
    };
    Some(Audited { category: Category::ModelRepository, action, subject })
}

/// The part of one shard's service that answers the port.
pub struct SageMakerPort {
    facts: Arc<Facts>,
    access: Arc<Access>,
    models: Arc<ModelMap>,
    lifecycle: Arc<Lifecycle>,
    pool: Pool,
    post: Post,
    default_model: Arc<str>,
}

impl SageMakerPort {
    pub fn new(
        facts: Arc<Facts>,
        models: Arc<ModelMap>,
        lifecycle: Arc<Lifecycle>,
        pool: Pool,
        post: Post,
    ) -> SageMakerPort {
        let default_model = Arc::from(&*facts.settings.sagemaker.default_model);
        let access = Arc::clone(&facts.settings.access);
        SageMakerPort { facts, access, models, lifecycle, pool, post, default_model }
    }

    /// Other keys are valid.
    pub fn access_changed(&mut self, access: &Arc<Access>) {
        self.access = Arc::clone(access);
    }

    /// Models came or went.
    pub fn models_changed(&mut self, models: &Arc<ModelMap>) {
        self.models = Arc::clone(models);
    }

    pub fn http<'p>(&self, call: CallKey, head: &Head, body: &Slice) -> CloudRouting<'p> {
        verbose!(1, "SageMaker request: {} {}", method_number(head.method()), head.path());
        let (category, route, is_fit) = match (route(head.path()), head.method()) {
            (Some(Route::Ping), method) => (Category::Health, Route::Ping, method == Method::Get),
            (Some(Route::Invocations), method) => (Category::Inference, Route::Invocations, method == Method::Post),
            (Some(route @ Route::Models), Method::Get | Method::Post) => (Category::ModelRepository, route, true),
            (Some(route @ Route::Model(_)), Method::Get | Method::Delete) => (Category::ModelRepository, route, true),
            (Some(route @ Route::Invoke(_)), Method::Post) => (Category::Inference, route, true),
            // A path that this port does not have is a bad request, without a reason.
            _ => return Err(Box::new(Response::empty(400))),
        };
        self.access.http.allow_http(category, head, &self.pool)?;
        if !is_fit {
            return Err(Box::new(error::error_body(&self.pool, 405, "Method Not Allowed", None)));
        }
        match route {
            Route::Ping => self.ping(call),
            Route::Invocations => Ok(self.invocations()),
            Route::Models if head.method() == Method::Get => self.list_hosted(call),
            Route::Models => self.load_hosted(call, head, body.clone()),
            Route::Model(hash) if head.method() == Method::Get => Err(Box::new(self.hosted_json(hash))),
            Route::Model(hash) => self.unload_hosted(call, hash, head),
            Route::Invoke(hash) => {
                let table = self.facts.sagemaker_models.table();
                let model = table.get(hash).ok_or_else(|| Box::new(Response::empty(404)))?;
                self.check_target(head, model)?;
                info!("Invoking SageMaker TargetModel: {}", model.name);
                Ok(CloudRoute::Infer { model: Arc::from(&*model.name), dialect: Dialect::SageMakerInvoke })
            }
        }
    }

    /// The header may name only the model that was loaded under the path's hash (contract/http.md, H5).
    fn check_target(&self, head: &Head, model: &SageMakerModel) -> Result<(), Box<Response>> {
        match head.header(TARGET_MODEL) {
            Some(named) if named != model.name.as_bytes() => {
                let text = "X-Amzn-SageMaker-Target-Model header does not match the model requested in the URL";
                Err(Box::new(error::error_body(&self.pool, 400, text, None)))
            }
            _ => Ok(()),
        }
    }

    fn ping<'p>(&self, call: CallKey) -> CloudRouting<'p> {
        let is_well = if self.facts.settings.sagemaker.pings_liveness {
            self.facts.is_live()
        } else {
            let checks = self.facts.checks(&self.models);
            if !checks.is_empty() {
                check_instances(&self.post, call, Protocol::Http, Probe::Server, &checks);
                return Ok(CloudRoute::Answered);
            }
            self.facts.is_ready(&self.models)
        };
        Err(Box::new(match is_well {
            Ok(is_well) => Response::empty(if is_well { 200 } else { 400 }),
            Err(status) => error::http_error(&self.pool, &status, None),
        }))
    }

    fn invocations<'p>(&self) -> CloudRoute<'p> {
        let model = Arc::clone(&self.default_model);
        match self.facts.settings.sagemaker.inference {
            Inference::Infer => CloudRoute::Infer { model, dialect: Dialect::SageMaker },
            Inference::Generate => CloudRoute::Generate { model, streams: false },
            Inference::GenerateStream => CloudRoute::Generate { model, streams: true },
        }
    }

    /// Has a control thread carry out a request of SageMaker. The result, if any, is the answer.
    fn on_control<'p>(
        &self,
        call: CallKey,
        job: impl FnOnce(&Pool, &Arc<Lifecycle>) -> Option<Response> + Send + 'static,
    ) -> CloudRouting<'p> {
        let (post, pool) = (Arc::clone(&self.post), self.pool.clone());
        let begun = self.facts.check_not_exiting().and_then(|()| {
            self.lifecycle.spawn(move |lifecycle| {
                if let Some(response) = job(&pool, lifecycle) {
                    post(Mail::Answered { call, response });
                }
            })
        });
        match begun {
            Ok(()) => Ok(CloudRoute::Answered),
            Err(status) => Err(Box::new(error::error_body(&self.pool, 400, &status.message, None))),
        }
    }

    fn load_hosted<'p>(&self, call: CallKey, head: &Head, body: Slice) -> CloudRouting<'p> {
        let most = self.facts.settings.http_input_bytes_max;
        if body.len() > most {
            return Err(Box::new(error::http_error(&self.pool, &error::json_too_long(body.len() as u64, most), None)));
        }
        let target = head.header(TARGET_MODEL).map(|name| String::from_utf8_lossy(name).into_owned());
        let sagemaker_models = Arc::clone(&self.facts.sagemaker_models);
        self.on_control(call, move |pool, lifecycle| {
            let outcome =
                guarded(|| Load::read(&body).and_then(|load| sagemaker_models.load(lifecycle, &load, target)));
            Some(match outcome {
                Ok(()) => Response::empty(200),
                Err(status) => {
                    let code = load_status(&status);
                    if code == 507 {
                        tracing::error!("Received an OOM error during LOAD MODEL. Returning a 507.");
                    }
                    error::error_body(pool, code, &status.message, None)
                }
            })
        })
    }

    fn unload_hosted<'p>(&self, call: CallKey, hash: &str, head: &Head) -> CloudRouting<'p> {
        match self.facts.sagemaker_models.table().get(hash) {
            Some(model) => self.check_target(head, model)?,
            None => return Err(Box::new(Response::empty(404))),
        }
        let (sagemaker_models, hash) = (Arc::clone(&self.facts.sagemaker_models), hash.to_owned());
        let (post, pool) = (Arc::clone(&self.post), self.pool.clone());
        self.on_control(call, move |_, lifecycle| {
            let answer = move |outcome: Result<(), Option<Status>>| {
                let response = match outcome {
                    Ok(()) => Response::empty(200),
                    Err(None) => Response::empty(404),
                    Err(Some(status)) => error::http_error(&pool, &status, None),
                };
                post(Mail::Answered { call, response });
            };
            sagemaker_models.unload(lifecycle, &hash, Box::new(answer));
            None
        })
    }

    /// Writing the list walks all models, so it is done elsewhere.
    fn list_hosted<'p>(&self, call: CallKey) -> CloudRouting<'p> {
        let (table, models) = (self.facts.sagemaker_models.table(), Arc::clone(&self.models));
        self.on_control(call, move |pool, _| Some(error::reply(200, None, list(&table, &models, pool))))
    }

    fn hosted_json(&self, hash: &str) -> Response {
        let table = self.facts.sagemaker_models.table();
        let Some(model) = table.get(hash) else { return Response::empty(404) };
        let mut body = Gather::new();
        let mut writer = Writer::new(GatherSink { gather: &mut body, pool: &self.pool });
        writer.begin_object();
        describe(&mut writer, hash, &model.repository);
        writer.end_object();
        error::reply(200, None, body)
    }
}

/// The call is answered even if the operation panics.
fn guarded(operation: impl FnOnce() -> Result<(), Status>) -> Result<(), Status> {
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(operation));
    caught.unwrap_or_else(|_| Err(Status::internal("the operation on the model repository panicked")))
}

fn describe(writer: &mut Writer<GatherSink<'_>>, hash: &str, repository: &str) {
    for (key, value) in [("modelName", hash), ("modelUrl", repository)] {
        writer.key(key);
        writer.string(value);
    }
}

/// An entry whose hash is not the name of a ready model with version 1 is an empty object.
fn list(table: &Table, models: &ModelMap, pool: &Pool) -> Gather {
    let mut body = Gather::new();
    let mut writer = Writer::new(GatherSink { gather: &mut body, pool });
    writer.begin_object();
    writer.key("models");
    writer.begin_array();
    for (hash, model) in table {
        writer.begin_object();
        if models.lookup(hash.as_bytes(), Some(1)).is_ok() {
            describe(&mut writer, hash, &model.repository);
        }
        writer.end_object();
    }
    writer.end_array();
    writer.end_object();
    body
}

#[cfg(test)]
mod tests {
    use super::settings::SageMaker;
    use super::*;

    #[test]
    fn paths() {
        for (path, expected) in [
            ("/ping", Some(Route::Ping)),
            ("/ping/", None),
            ("/PING", None),
            ("/invocations", Some(Route::Invocations)),
            ("/invocations/x", None),
            ("/models", Some(Route::Models)),
            ("/models/", Some(Route::Models)),
            ("/modelsx", None),
            ("/models//", None),
            ("/models/h", Some(Route::Model("h"))),
            ("/models/h/", None),
            ("/models/h/invoke", Some(Route::Invoke("h"))),
            ("/models/h/invoke/", None),
            ("/models/h/load", None),
            ("/models//invoke", None),
            ("/models/invoke", Some(Route::Model("invoke"))),
            ("/v2/health/ready", None),
            ("/", None),
        ] {
            assert_eq!(route(path), expected, "{path}");
        }
    }

    #[test]
    fn the_environment_is_read() {
        let usual = SageMaker::read("", "", "").unwrap();
        let default_model = "unspecified_SAGEMAKER_TRITON_DEFAULT_MODEL_NAME".to_owned();
        assert_eq!(usual, SageMaker { pings_liveness: false, default_model, inference: Inference::Infer });
        for (mode, expected) in [("live", true), ("ready", false), ("LIVE", false), ("x", false)] {
            assert_eq!(SageMaker::read(mode, "", "").unwrap().pings_liveness, expected, "{mode}");
        }
        for (text, expected) in [
            ("infer", Inference::Infer),
            ("generate", Inference::Generate),
            ("generate_stream", Inference::GenerateStream),
        ] {
            let read = SageMaker::read("", "m", text).unwrap();
            assert_eq!((read.inference, read.default_model.as_str()), (expected, "m"));
        }
        for text in ["Infer", "stream", " infer"] {
            let error = SageMaker::read("", "", text).unwrap_err();
            assert!(error.message.contains(&format!("SAGEMAKER_TRITON_INFERENCE_TYPE: '{text}'")), "{error}");
        }
    }
}
