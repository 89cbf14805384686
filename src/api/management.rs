//! Management: what clients query and change of the server itself, over either protocol. Health, metadata,
//! configurations, statistics, the model repository, shared memory, and the settings of traces and of the log.
//!
//! A shard answers at once what it can answer from memory. What takes longer runs on another thread, and its
//! [outcome](outcome::Outcome) comes back by mail.

mod base;
mod generations;
pub(super) mod health;
mod logging;
pub(super) mod metadata;
pub mod outcome;
pub(super) mod repository;
mod shared_memory;
pub(super) mod statistics;
mod trace;
mod traffic;

use super::error;
pub use base::Management;

use super::grpc::methods::Method;
use super::routes::{Route, Target};
use base::decode_short;
use health::{check_instances, probe_reply, ready_model};
use metadata::ModelFacts;
use nereid_memory::{Gather, Slice};
use nereid_model_config::json as config_json;
use nereid_protocol::http1::Response;
use nereid_protocol::service::{CallKey, GrpcReply, GrpcStatus, HttpReply, Replies};
use nereid_request::Status;
use nereid_wire::health::HealthCheckRequest;
use nereid_wire::inference as wire;
use outcome::{Probe, Protocol};
use repository::{RepositoryRequest, not_ours};

fn json(body: Gather) -> Response {
    error::reply(200, error::JSON, body)
}

impl Management {
    /// Answers a call to a route other than inference, now or by mail. `is_post`: of the routes that answer to two
    /// methods, to the other one.
    pub fn http(&mut self, call: CallKey, route: Route<'_>, is_post: bool, body: &Slice, replies: &mut Replies) {
        if let Route::SharedMemory(kind, action, name) = route {
            return self.regions_http(call, (kind, action, name), body, replies);
        }
        if let Some(request) = repository_request(route, body) {
            return match request {
                Ok(request) => self.run_on_repository(call, request, replies),
                Err(status) => {
                    replies.push(call, HttpReply::Answer(error::http_error(&self.pool, &status, route.content_type())));
                }
            };
        }
        let (probe, checks) = match route {
            Route::Ready => (Probe::Server, self.facts.checks(&self.models)),
            Route::ModelReady(target) => {
                (Probe::Model, self.checks_of_model(target.model, target.version.unwrap_or_default()))
            }
            _ => (Probe::Server, Vec::new()),
        };
        if !checks.is_empty() {
            return check_instances(&self.post, call, Protocol::Http, probe, &checks);
        }
        let answer = match route {
            Route::Logging => logging::http(is_post.then_some(body), &self.pool),
            Route::TraceSetting(model) => {
                let traces = &self.facts.settings.traces;
                trace::http(traces, &self.models, model, is_post.then_some(body), &self.pool)
            }
            _ => self.http_at_once(route),
        };
        let reply = answer.unwrap_or_else(|status| error::http_error(&self.pool, &status, route.content_type()));
        replies.push(call, HttpReply::Answer(reply));
    }

    /// The routes that are answered at once.
    fn http_at_once(&self, route: Route<'_>) -> Result<Response, Status> {
        let Management { facts, models, pool, .. } = self;
        let version = |target: &Target<'_>| models.version(target.model, target.version.unwrap_or_default());
        match route {
            Route::ServerMetadata => Ok(json(metadata::server_json(&facts.settings.id, pool))),
            Route::Live => Ok(Response::empty(if facts.is_live()? { 200 } else { 400 })),
            Route::Ready => Ok(Response::empty(if facts.is_ready(models)? { 200 } else { 400 })),
            Route::ModelReady(target) => {
                let found = ready_model(facts, models, target.model, target.version.unwrap_or_default())?;
                Ok(probe_reply(Probe::Model, found.is_some(), pool))
            }
            Route::ModelMetadata(target) => {
                facts.check_not_exiting()?;
                Ok(json(ModelFacts::of(models, target.model, version(&target)?)?.to_json(pool)))
            }
            Route::ModelConfig(target) => {
                let model = models.lookup(target.model, version(&target)?)?;
                let mut text = Gather::new();
                text.put(pool, config_json::write(&model.spec.config, 1)?.as_bytes());
                Ok(json(text))
            }
            Route::ModelStatistics(target) => {
                facts.check_not_exiting()?;
                let models = models.statistics_of(target.model, version(&target)?)?;
                Ok(json(statistics::to_json(&models, pool)))
            }
            Route::AllStatistics => {
                facts.check_not_exiting()?;
                Ok(json(statistics::to_json(&models.ready().collect::<Vec<_>>(), pool)))
            }
            Route::Generations(model) => {
                facts.check_not_exiting()?;
                Ok(json(generations::to_json(&String::from_utf8_lossy(model), models.generations(model)?, pool)))
            }
            Route::SharedMemory(..)
            | Route::Metrics
            | Route::Health
            | Route::Infer(_)
            | Route::Generate(_)
            | Route::GenerateStream(_)
            | Route::RepositoryIndex
            | Route::Load(..)
            | Route::Unload(..)
            | Route::Logging
            | Route::Traffic(..)
            | Route::Activate(..)
            | Route::TraceSetting(_) => Err(Status::internal("this route has its own way in")),
        }
    }

    /// Answers a call of a method other than inference, now or by mail.
    pub fn grpc(&mut self, call: CallKey, method: Method, message: Slice, replies: &mut Replies) {
        if let Some(audit) = &mut self.audit {
            audit.name(call, method, &message);
        }
        let answer = match method {
            Method::RepositoryIndex => {
                return self.run_on_repository(call, RepositoryRequest::GrpcIndex { message }, replies);
            }
            Method::RepositoryModelLoad => {
                return self.run_on_repository(call, RepositoryRequest::GrpcLoad { message }, replies);
            }
            Method::RepositoryModelUnload => {
                return self.run_on_repository(call, RepositoryRequest::GrpcUnload { message }, replies);
            }
            method => match method.of_regions() {
                Some(asked) => return self.regions_grpc(call, asked, &message, replies),
                None if self.probes_instances(call, method, &message) => return,
                None => self.grpc_at_once(method, &message),
            },
        };
        match answer {
            Ok(message) => {
                replies.push(call, GrpcReply::Message(message));
                replies.push(call, GrpcReply::End(GrpcStatus::ok()));
            }
            Err(status) => replies.push(call, GrpcReply::End(error::grpc_status(status))),
        }
    }

    /// Has instances checked, where the call is about readiness and some of them decide it. Errors of the call are
    /// found by the functions that answer it at once.
    fn probes_instances(&self, call: CallKey, method: Method, message: &Slice) -> bool {
        let (probe, checks) = match method {
            Method::ServerReady => (Probe::Server, self.facts.checks(&self.models)),
            Method::Check => (Probe::Serving, self.facts.checks(&self.models)),
            Method::ModelReady => match decode_short::<wire::ModelReadyRequest>(message) {
                Ok(asked) => (Probe::Model, self.checks_of_model(asked.name.as_bytes(), asked.version.as_bytes())),
                Err(_) => return false,
            },
            _ => return false,
        };
        if checks.is_empty() {
            return false;
        }
        check_instances(&self.post, call, Protocol::Grpc, probe, &checks);
        true
    }

    /// The RPCs that are answered at once.
    fn grpc_at_once(&mut self, method: Method, message: &Slice) -> Result<Gather, Status> {
        match method {
            Method::ServerLive => {
                decode_short::<wire::ServerLiveRequest>(message)?;
                let live = self.facts.is_live()?;
                self.frame(&wire::ServerLiveResponse { live })
            }
            Method::ServerReady => {
                decode_short::<wire::ServerReadyRequest>(message)?;
                let ready = self.facts.is_ready(&self.models)?;
                self.probe_message(Probe::Server, ready)
            }
            Method::Check => {
                decode_short::<HealthCheckRequest>(message)?;
                let ready = self.facts.is_ready(&self.models)?;
                self.probe_message(Probe::Serving, ready)
            }
            Method::ModelReady => {
                let request: wire::ModelReadyRequest = decode_short(message)?;
                let (name, version) = (request.name.as_bytes(), request.version.as_bytes());
                let ready = ready_model(&self.facts, &self.models, name, version)?.is_some();
                self.probe_message(Probe::Model, ready)
            }
            Method::ServerMetadata => {
                decode_short::<wire::ServerMetadataRequest>(message)?;
                let metadata = metadata::server_message(&self.facts.settings.id);
                self.frame(&metadata)
            }
            Method::ModelMetadata => {
                let request: wire::ModelMetadataRequest = decode_short(message)?;
                self.facts.check_not_exiting()?;
                let version = self.models.version(request.name.as_bytes(), request.version.as_bytes())?;
                let facts = ModelFacts::of(&self.models, request.name.as_bytes(), version)?;
                self.frame(&facts.to_message())
            }
            Method::ModelConfig => {
                let request: wire::ModelConfigRequest = decode_short(message)?;
                let version = self.models.version(request.name.as_bytes(), request.version.as_bytes())?;
                let config = self.models.lookup(request.name.as_bytes(), version)?.spec.config.clone();
                self.frame(&wire::ModelConfigResponse { config: Some(config) })
            }
            Method::ModelStatistics => {
                let request: wire::ModelStatisticsRequest = decode_short(message)?;
                self.facts.check_not_exiting()?;
                let version = self.models.version(request.name.as_bytes(), request.version.as_bytes())?;
                let models = self.models.statistics_of(request.name.as_bytes(), version)?;
                let response = statistics::to_message(&models);
                self.frame(&response)
            }
            Method::TraceSetting => {
                let traces = &self.facts.settings.traces;
                let response = trace::grpc(traces, &self.models, &decode_short(message)?)?;
                self.frame(&response)
            }
            Method::LogSettings => {
                let response = logging::grpc(&decode_short(message)?)?;
                self.frame(&response)
            }
            // These have their own ways in.
            Method::ModelInfer
            | Method::ModelStreamInfer
            | Method::RepositoryIndex
            | Method::RepositoryModelLoad
            | Method::RepositoryModelUnload
            | Method::SystemSharedMemoryStatus
            | Method::SystemSharedMemoryRegister
            | Method::SystemSharedMemoryUnregister
            | Method::CudaSharedMemoryStatus
            | Method::CudaSharedMemoryRegister
            | Method::CudaSharedMemoryUnregister => Err(Status::internal("Unable to parse request")),
        }
    }
}

/// The model that an RPC about one model names; none for the others, and where the message is not one of it.
pub fn model_of_query(method: Method, message: &Slice) -> Option<String> {
    match method {
        Method::ModelMetadata => decode_short::<wire::ModelMetadataRequest>(message).ok().map(|asked| asked.name),
        Method::ModelConfig => decode_short::<wire::ModelConfigRequest>(message).ok().map(|asked| asked.name),
        _ => None,
    }
}

/// The request to the repository behind a route, if there is one.
fn repository_request(route: Route<'_>, body: &Slice) -> Option<Result<RepositoryRequest, Status>> {
    let body = body.clone();
    let named = |repository: &[u8], model: &[u8]| {
        not_ours(&String::from_utf8_lossy(repository))?;
        Ok(String::from_utf8_lossy(model).into_owned())
    };
    Some(match route {
        Route::RepositoryIndex => Ok(RepositoryRequest::HttpIndex { body }),
        Route::Load(repository, model) => {
            named(repository, model).map(|model| RepositoryRequest::HttpLoad { model, body })
        }
        Route::Unload(repository, model) => {
            named(repository, model).map(|model| RepositoryRequest::HttpUnload { model, body })
        }
        Route::Activate(model, generation) => {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            Ok(RepositoryRequest::HttpActivate { model: text(model), generation: text(generation) })
        }
        _ => return None,
    })
}
