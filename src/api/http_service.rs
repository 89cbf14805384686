//! The routes of the HTTP port and of the metrics port (contract/http.md).

use std::sync::Arc;

use super::dialect::Dialect;
use super::generate::GenerateCall;
use super::health::Probe;
use super::http_infer::InferCall;
use super::repository::{Ask, not_ours};
use super::routes::{Method, Route, Target, route};
use super::{Api, Protocol, error, statistics};
use crate::memory::{Gather, Slice};
use crate::model_config::json as config_json;
use crate::observe::log::verbose;
use crate::protocol::http1::{self, Response};
use crate::protocol::service::{CallKey, Port, Replies, Reply, Token};
use crate::repository::parse_version;
use crate::request::Status;

pub(super) fn method_of(method: http1::Method) -> Method {
    match method {
        http1::Method::Get => Method::Get,
        http1::Method::Post => Method::Post,
        _ => Method::Other,
    }
}

/// How Triton's log shows a method (contract/cli.md section 5).
pub(super) fn method_number(method: http1::Method) -> u8 {
    match method {
        http1::Method::Get => 0,
        http1::Method::Head => 1,
        http1::Method::Post => 2,
        http1::Method::Put => 3,
        http1::Method::Delete => 4,
        _ => 5,
    }
}

/// Says that the request is there, to who wants to know.
pub(super) fn log_request(head: &http1::Head) {
    verbose!(1, "HTTP request: {} {}", method_number(head.method()), head.path());
}

/// A request whose route may be served.
pub(super) struct RouteCall<'a> {
    pub call: CallKey,
    pub head: &'a http1::Head,
    pub body: Slice,
    pub dialect: Dialect,
    /// Of the routes that answer to two methods, to the other one.
    pub is_post: bool,
}

fn json(body: Gather) -> Response {
    error::reply(200, error::JSON, body)
}

impl Api {
    pub(super) fn http_request(
        &mut self,
        call: CallKey,
        head: &http1::Head,
        body: Slice,
        replies: &mut Replies,
    ) -> Option<Token> {
        let is_post = head.method() == http1::Method::Post;
        log_request(head);
        let Some(found) = route(head.path().as_bytes()) else {
            let reply = error::error_body(&self.pool, 404, "Not Found", None);
            replies.push(call, Reply::Http(reply));
            return None;
        };
        if !found.methods().contains(&method_of(head.method())) {
            let reply = error::error_body(&self.pool, 405, "Method Not Allowed", found.content_type());
            replies.push(call, Reply::Http(reply));
            return None;
        }
        self.serve_route(RouteCall { call, head, body, dialect: Dialect::Kserve, is_post }, found, replies)
    }

    /// Does what a route asks for, whichever port it came through.
    pub(super) fn serve_route(
        &mut self,
        asked: RouteCall<'_>,
        found: Route<'_>,
        replies: &mut Replies,
    ) -> Option<Token> {
        let RouteCall { call, head, body, dialect, is_post } = asked;
        if let Route::Infer(target) = found {
            return self.infer_http(InferCall { call, target, head, body, dialect }, replies);
        }
        if let Route::SharedMemory(kind, action, name) = found {
            self.regions_http(call, (kind, action, name), &body, replies);
            return None;
        }
        if let Route::Generate(target) | Route::GenerateStream(target) = found {
            let streams = matches!(found, Route::GenerateStream(_));
            let call = GenerateCall { call, port: Port::Http, target, head, body, streams };
            return self.generate_http(call, replies);
        }
        if let Some(ask) = ask_of(found, &body) {
            match ask {
                Ok(ask) => self.ask_repository(call, ask, replies),
                Err(status) => {
                    replies.push(call, Reply::Http(error::http_error(&self.pool, &status, found.content_type())));
                }
            }
            return None;
        }
        let (probe, checks) = match found {
            Route::Ready => (Probe::Server, self.checks_of_server()),
            Route::ModelReady(target) => {
                (Probe::Model, self.checks_of_model(target.model, target.version.unwrap_or_default()))
            }
            _ => (Probe::Server, Vec::new()),
        };
        if !checks.is_empty() {
            self.ask_instances(call, Protocol::Http, probe, &checks);
            return None;
        }
        let answer = match found {
            Route::Logging => self.logging_http(is_post.then_some(&body)),
            Route::TraceSetting(model) => self.trace_http(model, is_post.then_some(&body)),
            _ => self.manage_http(found),
        };
        let reply = answer.unwrap_or_else(|status| error::http_error(&self.pool, &status, found.content_type()));
        replies.push(call, Reply::Http(reply));
        None
    }

    /// The routes that are answered at once.
    fn manage_http(&mut self, route: Route<'_>) -> Result<Response, Status> {
        let version = |target: &Target<'_>| parse_version(target.version.unwrap_or_default());
        match route {
            Route::ServerMetadata => Ok(json(self.server_json())),
            Route::Live => Ok(Response::empty(if self.is_live()? { 200 } else { 400 })),
            Route::Ready => Ok(Response::empty(if self.is_ready()? { 200 } else { 400 })),
            Route::ModelReady(target) => {
                let ready = self.is_model_ready(target.model, target.version.unwrap_or_default())?;
                Ok(self.probe_reply(Probe::Model, ready))
            }
            Route::ModelMetadata(target) => {
                let facts = self.model_facts(target.model, target.version.unwrap_or_default())?;
                Ok(json(facts.to_json(&self.pool)))
            }
            Route::ModelConfig(target) => {
                let model = Arc::clone(self.models.lookup(target.model, version(&target)?)?);
                let mut text = Gather::new();
                text.put(&self.pool, config_json::write(&model.spec.config, 1)?.as_bytes());
                Ok(json(text))
            }
            Route::ModelStatistics(target) => {
                self.check_not_exiting()?;
                let models = self.models.statistics_of(target.model, version(&target)?)?;
                Ok(json(statistics::to_json(&models, &self.pool)))
            }
            Route::AllStatistics => {
                self.check_not_exiting()?;
                Ok(json(statistics::to_json(&self.models.ready().collect::<Vec<_>>(), &self.pool)))
            }
            Route::SharedMemory(..)
            | Route::Infer(_)
            | Route::Generate(_)
            | Route::GenerateStream(_)
            | Route::RepositoryIndex
            | Route::Load(..)
            | Route::Unload(..)
            | Route::Logging
            | Route::TraceSetting(_) => Err(Status::internal("this route has its own way in")),
        }
    }
}

/// What a route asks of the repository, if it does.
fn ask_of(route: Route<'_>, body: &Slice) -> Option<Result<Ask, Status>> {
    let body = body.clone();
    let named = |repository: &[u8], model: &[u8]| {
        not_ours(&String::from_utf8_lossy(repository))?;
        Ok(String::from_utf8_lossy(model).into_owned())
    };
    Some(match route {
        Route::RepositoryIndex => Ok(Ask::HttpIndex { body }),
        Route::Load(repository, model) => named(repository, model).map(|model| Ask::HttpLoad { model, body }),
        Route::Unload(repository, model) => named(repository, model).map(|model| Ask::HttpUnload { model, body }),
        _ => return None,
    })
}

impl Route<'_> {
    /// The label of error bodies of this route (contract/http.md section 1).
    fn content_type(&self) -> Option<&'static str> {
        match self {
            Route::Live | Route::Ready | Route::ModelReady(_) | Route::Infer(_) => None,
            _ => error::JSON,
        }
    }
}
