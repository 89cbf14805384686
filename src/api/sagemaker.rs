//! The SageMaker port: `/ping`, `/invocations`, and the models of a multi-model endpoint (contract/http.md section 8).

use std::sync::Arc;

use tracing::info;

use super::dialect::Dialect;
use super::health::{Probe, ask_instances};
use super::http_infer::{InferCall, too_long};
use super::management::Protocol;
use super::routes::{Category, Target};
use super::sagemaker_models::{Load, SageMakerModel, Table, load_status};
use super::{Api, Mail, error};
use crate::memory::{Gather, Pool, Slice};
use crate::observe::log::verbose;
use crate::protocol::http1::{Head, Method, Response};
use crate::protocol::json::{GatherSink, Writer};
use crate::protocol::service::{CallKey, Replies, Reply, Token};
use crate::repository::ModelMap;
use crate::request::Status;

/// Names the model of a load, where it is not that of the hash; elsewhere it must agree with the path.
const TARGET_MODEL: &str = "X-Amzn-SageMaker-Target-Model";

/// What the environment says to the port (contract/cli.md section 4).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SageMaker {
    /// `/ping` asks whether the server lives, and not whether it is ready.
    pub pings_liveness: bool,
    /// The model behind `/invocations`.
    pub default_model: String,
    pub inference: Inference,
}

/// What `/invocations` does (SAGEMAKER_TRITON_INFERENCE_TYPE).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inference {
    Infer,
    Generate,
    GenerateStream,
}

impl SageMaker {
    /// From the variables' values, empty where there are none; Err is why the port cannot start.
    pub fn read(ping_mode: &str, default_model: &str, inference_type: &str) -> Result<SageMaker, Status> {
        let inference = match inference_type {
            "" | "infer" => Inference::Infer,
            "generate" => Inference::Generate,
            "generate_stream" => Inference::GenerateStream,
            other => {
                return Err(Status::invalid(format!(
                    "invalid value for SAGEMAKER_TRITON_INFERENCE_TYPE: '{other}'. Expected 'infer', 'generate' or \
                     'generate_stream'"
                )));
            }
        };
        let default_model = match default_model {
            "" => "unspecified_SAGEMAKER_TRITON_DEFAULT_MODEL_NAME",
            given => given,
        };
        Ok(SageMaker { pings_liveness: ping_mode == "live", default_model: default_model.to_owned(), inference })
    }
}

/// What a path asks for.
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

impl Api {
    pub(super) fn http_sagemaker(
        &mut self,
        call: CallKey,
        head: &Head,
        body: Slice,
        replies: &mut Replies,
    ) -> Option<Token> {
        verbose!(1, "SageMaker request: {} {}", super::http_service::method_number(head.method()), head.path());
        let (category, outcome) = match (route(head.path()), head.method()) {
            (Some(Route::Ping), method) => (Category::Health, Ok((Route::Ping, method == Method::Get))),
            (Some(Route::Invocations), method) => {
                (Category::Inference, Ok((Route::Invocations, method == Method::Post)))
            }
            (Some(route @ Route::Models), Method::Get | Method::Post) => (Category::ModelRepository, Ok((route, true))),
            (Some(route @ Route::Model(_)), Method::Get | Method::Delete) => {
                (Category::ModelRepository, Ok((route, true)))
            }
            (Some(route @ Route::Invoke(_)), Method::Post) => (Category::Inference, Ok((route, true))),
            // What this port does not know is a bad request, and nobody says why.
            _ => (Category::Health, Err(Box::new(Response::empty(400)))),
        };
        let allowed = outcome.and_then(|(route, is_fit)| {
            self.cloud_restricted(category, head)?;
            let wrong = || Box::new(error::error_body(&self.pool, 405, "Method Not Allowed", None));
            if is_fit { Ok(route) } else { Err(wrong()) }
        });
        match allowed {
            Ok(route) => self.sagemaker_route(call, route, head, body, replies),
            Err(reply) => {
                replies.push(call, Reply::Http(*reply));
                None
            }
        }
    }

    fn sagemaker_route(
        &mut self,
        call: CallKey,
        route: Route<'_>,
        head: &Head,
        body: Slice,
        replies: &mut Replies,
    ) -> Option<Token> {
        let reply = match route {
            Route::Ping => {
                let pings_liveness = self.facts.settings.sagemaker.pings_liveness;
                let checks = if pings_liveness { Vec::new() } else { self.facts.checks(&self.models) };
                if !checks.is_empty() {
                    ask_instances(&self.post, call, Protocol::Http, Probe::Server, &checks);
                    return None;
                }
                self.ping()
            }
            Route::Invocations => return self.invocations(call, head, body, replies),
            Route::Models if head.method() == Method::Get => return self.list_hosted(call, replies),
            Route::Models => return self.load_hosted(call, head, body, replies),
            Route::Model(hash) if head.method() == Method::Get => self.hosted_json(hash),
            Route::Model(hash) => return self.unload_hosted(call, hash, head, replies),
            Route::Invoke(hash) => match self.facts.sagemaker_models.table().get(hash) {
                Some(model) => match self.check_target(head, model) {
                    Ok(()) => {
                        info!("Invoking SageMaker TargetModel: {}", model.name);
                        let target = Target { model: model.name.as_bytes(), version: None };
                        let dialect = Dialect::SageMakerInvoke;
                        return self.infer_http(InferCall { call, target, head, body, dialect }, replies);
                    }
                    Err(reply) => *reply,
                },
                None => Response::empty(404),
            },
        };
        replies.push(call, Reply::Http(reply));
        None
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

    fn ping(&self) -> Response {
        let is_well = match self.facts.settings.sagemaker.pings_liveness {
            true => self.facts.is_live(),
            false => self.facts.is_ready(&self.models),
        };
        match is_well {
            Ok(is_well) => Response::empty(if is_well { 200 } else { 400 }),
            Err(status) => error::http_error(&self.pool, &status, None),
        }
    }

    fn invocations(&mut self, call: CallKey, head: &Head, body: Slice, replies: &mut Replies) -> Option<Token> {
        let facts = Arc::clone(&self.facts);
        let SageMaker { default_model, inference, .. } = &facts.settings.sagemaker;
        let target = Target { model: default_model.as_bytes(), version: None };
        let call = InferCall { call, target, head, body, dialect: Dialect::SageMaker };
        match inference {
            Inference::Infer => self.infer_http(call, replies),
            Inference::Generate => self.cloud_generate(call, false, replies),
            Inference::GenerateStream => self.cloud_generate(call, true, replies),
        }
    }

    /// Has a control thread do what SageMaker asks for. What it returns, if anything, is the answer.
    fn on_control(
        &mut self,
        call: CallKey,
        replies: &mut Replies,
        job: impl FnOnce(&Pool, &Arc<crate::repository::Lifecycle>) -> Option<Response> + Send + 'static,
    ) -> Option<Token> {
        let (post, pool) = (Arc::clone(&self.post), self.pool.clone());
        let begun = self.facts.check_not_exiting().and_then(|()| {
            self.lifecycle.spawn(move |lifecycle| {
                if let Some(response) = job(&pool, lifecycle) {
                    post(Mail::Answered { call, response });
                }
            })
        });
        if let Err(status) = begun {
            replies.push(call, Reply::Http(error::error_body(&self.pool, 400, &status.message, None)));
        }
        None
    }

    fn load_hosted(&mut self, call: CallKey, head: &Head, body: Slice, replies: &mut Replies) -> Option<Token> {
        let most = self.facts.settings.http_input_bytes_max;
        if body.len() > most {
            let reply = error::http_error(&self.pool, &too_long(body.len() as u64, most), None);
            replies.push(call, Reply::Http(reply));
            return None;
        }
        let target = head.header(TARGET_MODEL).map(|name| String::from_utf8_lossy(name).into_owned());
        let sagemaker_models = Arc::clone(&self.facts.sagemaker_models);
        self.on_control(call, replies, move |pool, lifecycle| {
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

    fn unload_hosted(&mut self, call: CallKey, hash: &str, head: &Head, replies: &mut Replies) -> Option<Token> {
        let allowed = match self.facts.sagemaker_models.table().get(hash) {
            Some(model) => self.check_target(head, model),
            None => Err(Box::new(Response::empty(404))),
        };
        if let Err(reply) = allowed {
            replies.push(call, Reply::Http(*reply));
            return None;
        }
        let (sagemaker_models, hash) = (Arc::clone(&self.facts.sagemaker_models), hash.to_owned());
        let (post, pool) = (Arc::clone(&self.post), self.pool.clone());
        self.on_control(call, replies, move |_, lifecycle| {
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
    fn list_hosted(&mut self, call: CallKey, replies: &mut Replies) -> Option<Token> {
        let (table, models) = (self.facts.sagemaker_models.table(), Arc::clone(&self.models));
        self.on_control(call, replies, move |pool, _| Some(error::reply(200, None, list(&table, &models, pool))))
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

/// Whoever asked is answered even if the operation panics.
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
