//! The Vertex AI port: a health route and a predict route, behind which a header leads to some of the routes of the
//! HTTP port (contract/http.md section 9).

pub mod settings;

use std::sync::Arc;

use super::{CloudRoute, CloudRouting};
use crate::api::access::Access;
use crate::api::error;
use crate::api::facts::Facts;
use crate::api::http::dialect::Dialect;
use crate::api::http::log::method_number;
use crate::api::mail::Post;
use crate::api::management::health::check_instances;
use crate::api::management::outcome::{Probe, Protocol};
use crate::api::routes::{self, Category, RegionAction};
use crate::repository::ModelMap;
use nereid_memory::Pool;
use nereid_observe::log::verbose;
use nereid_protocol::http1::{Head, Method, Response};
use nereid_protocol::service::CallKey;
use settings::{Route, Vertex};

/// The header that names a route of the HTTP port, without its leading slash.
const REDIRECT: &str = "X-Vertex-Ai-Triton-Redirect";

/// Where the header leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Redirect<'a> {
    Metrics,
    Route(routes::Route<'a>),
}

/// The route behind a header's value, given as a path; Err is the status of a refusal without a body.
fn redirect(path: &[u8]) -> Result<Redirect<'_>, u16> {
    use routes::Route::*;
    if path == b"/metrics" {
        return Ok(Redirect::Metrics);
    }
    let route = routes::route(path).ok_or(400u16)?;
    match route {
        ServerMetadata
        | Live
        | Ready
        | ModelMetadata(_)
        | ModelReady(_)
        | Infer(_)
        | ModelConfig(_)
        | ModelStatistics(_)
        | AllStatistics
        | RepositoryIndex
        | SharedMemory(_, RegionAction::Status, _) => Ok(Redirect::Route(route)),
        Load(..) | Unload(..) | Traffic(..) | Generations(_) | Activate(..) | SharedMemory(..) => Err(403),
        Metrics | Health | Logging | Generate(_) | GenerateStream(_) | TraceSetting(_) => Err(400),
    }
}

/// The path behind the header that leads to another route, if the request has it.
pub fn redirect_path(head: &Head) -> Option<Vec<u8>> {
    head.header(REDIRECT).map(|target| [b"/", target].concat())
}

/// The part of one shard's service that answers the port.
pub struct VertexPort {
    facts: Arc<Facts>,
    access: Arc<Access>,
    models: Arc<ModelMap>,
    pool: Pool,
    post: Post,
}

impl VertexPort {
    pub fn new(facts: Arc<Facts>, models: Arc<ModelMap>, pool: Pool, post: Post) -> VertexPort {
        let access = Arc::clone(&facts.settings.access);
        VertexPort { facts, access, models, pool, post }
    }

    /// Other keys are valid.
    pub fn access_changed(&mut self, access: &Arc<Access>) {
        self.access = Arc::clone(access);
    }

    /// Models came or went.
    pub fn models_changed(&mut self, models: &Arc<ModelMap>) {
        self.models = Arc::clone(models);
    }

    /// `path`: the [redirect_path] of the request.
    pub fn http<'p>(&self, call: CallKey, head: &Head, path: Option<&'p [u8]>) -> CloudRouting<'p> {
        verbose!(1, "Vertex AI request: {} {}", method_number(head.method()), head.path());
        let vertex = self.facts.settings.vertex.as_ref().ok_or_else(|| Box::new(Response::empty(400)))?;
        match (vertex.route(head), path) {
            (Ok(Route::Health), _) => self.health(call, head),
            (Ok(Route::Predict), None) => self.predict(vertex, head),
            (Ok(Route::Predict), Some(_)) if head.method() != Method::Post => Err(Box::new(Response::empty(405))),
            (Ok(Route::Predict), Some(path)) => self.redirected(head, path),
            (Err(405), _) => Err(self.wrong_method()),
            (Err(status), _) => Err(Box::new(Response::empty(status))),
        }
    }

    fn wrong_method(&self) -> Box<Response> {
        Box::new(error::error_body(&self.pool, 405, "Method Not Allowed", None))
    }

    /// Whether the keys of HTTP let the request through.
    fn allow(&self, category: Category, head: &Head) -> Result<(), Box<Response>> {
        self.access.http.allow_http(category, head, &self.pool).map(drop)
    }

    fn health<'p>(&self, call: CallKey, head: &Head) -> CloudRouting<'p> {
        self.allow(Category::Health, head)?;
        let checks = self.facts.checks(&self.models);
        if !checks.is_empty() {
            check_instances(&self.post, call, Protocol::Http, Probe::Server, &checks);
            return Ok(CloudRoute::Answered);
        }
        Err(Box::new(match self.facts.is_ready(&self.models) {
            Ok(is_ready) => Response::empty(if is_ready { 200 } else { 400 }),
            Err(status) => error::http_error(&self.pool, &status, None),
        }))
    }

    /// Inference on the default model.
    fn predict<'p>(&self, vertex: &Vertex, head: &Head) -> CloudRouting<'p> {
        self.allow(Category::Inference, head)?;
        if head.method() != Method::Post {
            return Err(self.wrong_method());
        }
        Ok(CloudRoute::Infer { model: Arc::clone(&vertex.default_model), dialect: Dialect::Vertex })
    }

    fn redirected<'p>(&self, head: &Head, path: &'p [u8]) -> CloudRouting<'p> {
        let found = redirect(path).map_err(|status| {
            verbose!(1, "Vertex AI redirect blocked: {}", String::from_utf8_lossy(path));
            Box::new(Response::empty(status))
        })?;
        verbose!(1, "Redirecting Vertex AI request: {}", String::from_utf8_lossy(path));
        match found {
            Redirect::Metrics => Ok(CloudRoute::Metrics),
            Redirect::Route(route) => {
                self.allow(route.category(), head)?;
                Ok(CloudRoute::Route(route))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nereid_request::Status;

    #[test]
    fn where_the_header_leads() {
        let table: &[(u16, &[&str])] = &[
            (
                200,
                &[
                    "metrics",
                    "v2",
                    "v2/health/live",
                    "v2/health/ready",
                    "v2/models/m",
                    "v2/models/m/versions/1",
                    "v2/models/m/ready",
                    "v2/models/m/infer",
                    "v2/models/m/versions/3/infer",
                    "v2/models/m/config",
                    "v2/models/m/stats",
                    "v2/models/stats",
                    "v2/systemsharedmemory/status",
                    "v2/systemsharedmemory/region/r/status",
                    "v2/cudasharedmemory/status",
                    "v2/repository/index",
                ],
            ),
            (
                403,
                &[
                    "v2/systemsharedmemory/region/r/register",
                    "v2/systemsharedmemory/region/r/unregister",
                    "v2/systemsharedmemory/unregister",
                    "v2/cudasharedmemory/region/r/register",
                    "v2/cudasharedmemory/unregister",
                    "v2/repository/models/m/load",
                    "v2/repository/models/m/unload",
                    "v2/repository/any/models/m/load",
                ],
            ),
            (
                400,
                &[
                    "",
                    "/v2",
                    "/metrics",
                    "metrics/",
                    "v2/",
                    "V2",
                    "v1",
                    "v2/logging",
                    "v2/trace/setting",
                    "v2/models/m/trace/setting",
                    "v2/models/m/generate",
                    "v2/models/m/generate_stream",
                    "v2/models/m/nothing",
                ],
            ),
        ];
        for (status, targets) in table {
            for target in *targets {
                let path = format!("/{target}");
                assert_eq!(redirect(path.as_bytes()).err().unwrap_or(200), *status, "{target}");
            }
        }
    }

    #[test]
    fn starts_that_fail() {
        let none = ModelMap::default();
        for (health, predict, model, text) in [
            ("/h", "", "", "API_PREDICT_ROUTE is not defined for Vertex AI endpoint"),
            ("", "/p", "", "AIP_HEALTH_ROUTE is not defined for Vertex AI endpoint"),
            ("", "", "m", "API_PREDICT_ROUTE is not defined for Vertex AI endpoint"),
            (
                "/h",
                "/p",
                "",
                "Expect the model repository contains only a single model if default model is not specified",
            ),
            ("/h", "/p", "m", "Expect the default model 'm' is loaded"),
        ] {
            let error = Vertex::read(health, predict, model, &none).unwrap_err();
            assert_eq!(error, Status::invalid(text), "{health} {predict} {model}");
        }
    }
}
