//! The ports for HTTP/1.1: their routes, and the parts that answer them (contract/http.md).

use std::sync::Arc;

use super::dialect::Dialect;
use super::generate::{self, GenerateCall};
use super::inference::{HttpInfer, InferCall};
use super::inspect_page::InspectPage;
use super::log::log_request;
use super::metrics_page::MetricsPage;
use crate::api::access::Access;
use crate::api::clouds::sagemaker::SageMakerPort;
use crate::api::clouds::vertex::{VertexPort, redirect_path};
use crate::api::clouds::{CloudRoute, CloudRouting};
use crate::api::error;
use crate::api::infer_context::InferContext;
use crate::api::management::Management;
use crate::api::routes::{Method, Route, Target};
use crate::api::watch::Arrival;
use crate::repository::ModelMap;
use nereid_memory::{Gather, Slice};
use nereid_observe::metrics::PageFormat;
use nereid_protocol::http1;
use nereid_protocol::service::{CallKey, HttpReply, Port, Replies, Token};

/// A request whose body is complete.
pub struct HttpRequest<'a> {
    pub call: CallKey,
    pub head: &'a http1::Head,
    pub body: Slice,
    /// Where its times are recorded.
    pub arrival: Option<Arrival>,
}

/// A request whose route may be served.
struct RouteCall<'a> {
    request: HttpRequest<'a>,
    dialect: Dialect,
    /// Of the routes that answer to two methods, to the other one.
    is_post: bool,
}

/// The part of one shard's service that answers requests over HTTP/1.1.
pub struct HttpPorts {
    infer: HttpInfer,
    metrics_page: MetricsPage,
    inspect_page: InspectPage,
    sagemaker: SageMakerPort,
    vertex: VertexPort,
}

impl HttpPorts {
    pub fn new(
        infer: HttpInfer,
        (metrics_page, inspect_page): (MetricsPage, InspectPage),
        sagemaker: SageMakerPort,
        vertex: VertexPort,
    ) -> HttpPorts {
        HttpPorts { infer, metrics_page, inspect_page, sagemaker, vertex }
    }

    pub fn infer(&self) -> &HttpInfer {
        &self.infer
    }

    /// Models came or went.
    pub fn models_changed(&mut self, models: &Arc<ModelMap>) {
        self.sagemaker.models_changed(models);
        self.vertex.models_changed(models);
    }

    /// Other keys are valid.
    pub fn access_changed(&mut self, access: &Arc<Access>) {
        self.sagemaker.access_changed(access);
        self.vertex.access_changed(access);
    }

    /// Answers a call with the metrics page that was posted.
    pub fn metrics_rendered(&self, call: CallKey, format: PageFormat, page: Option<Gather>, replies: &mut Replies) {
        self.metrics_page.rendered(call, format, page, replies);
    }

    pub fn metrics_page(&self) -> &MetricsPage {
        &self.metrics_page
    }

    /// A request through the HTTP port itself.
    pub fn request(
        &mut self,
        context: &mut InferContext,
        management: &mut Management,
        request: HttpRequest<'_>,
        replies: &mut Replies,
    ) -> Option<Token> {
        let HttpRequest { call, head, .. } = request;
        let is_post = head.method() == http1::Method::Post;
        log_request(head);
        let path = head.path().as_bytes();
        let known = context.facts.settings.route(path).map_or_else(|| labelled(context, head), |found| Ok(Some(found)));
        let found = match known {
            Ok(found) => found,
            Err(refusal) => {
                replies.push(call, HttpReply::Answer(*refusal));
                return None;
            }
        };
        let Some(found) = found else {
            let reply = error::error_body(&context.pool, 404, "Not Found", None);
            replies.push(call, HttpReply::Answer(reply));
            return None;
        };
        if !found.methods().contains(&Method::from(head.method())) {
            let reply = error::error_body(&context.pool, 405, "Method Not Allowed", found.content_type());
            replies.push(call, HttpReply::Answer(reply));
            return None;
        }
        let call = RouteCall { request, dialect: Dialect::Kserve, is_post };
        self.serve_route(context, management, call, found, replies)
    }

    /// A request through another port.
    pub fn request_to_port(
        &mut self,
        context: &mut InferContext,
        management: &mut Management,
        port: Port,
        request: HttpRequest<'_>,
        replies: &mut Replies,
    ) -> Option<Token> {
        let HttpRequest { call, head, .. } = request;
        match port {
            Port::Metrics => {
                if !self.inspect_page.http(context, management, call, (head, &request.body), replies) {
                    self.metrics_page.http(call, head, replies);
                }
                None
            }
            Port::SageMaker => {
                let routing = self.sagemaker.http(call, head, &request.body);
                self.follow(context, management, routing, request, replies)
            }
            Port::Vertex => {
                let path = redirect_path(head);
                let routing = self.vertex.http(call, head, path.as_deref());
                self.follow(context, management, routing, request, replies)
            }
            Port::Http | Port::Grpc | Port::OpenAi | Port::Ipc => self.request(context, management, request, replies),
        }
    }

    /// Serves a route, whichever port its request came through.
    fn serve_route(
        &mut self,
        context: &mut InferContext,
        management: &mut Management,
        route_call: RouteCall<'_>,
        found: Route<'_>,
        replies: &mut Replies,
    ) -> Option<Token> {
        let RouteCall { request: HttpRequest { call, head, body, arrival }, dialect, is_post } = route_call;
        if let Route::Infer(target) = found {
            context.load_reports.expect(call, head);
            return self.infer.infer(context, InferCall { call, target, head, body, arrival, dialect }, replies);
        }
        if let Route::Generate(target) | Route::GenerateStream(target) = found {
            let streams = matches!(found, Route::GenerateStream(_));
            context.load_reports.expect_of_generate(call, head);
            let call = GenerateCall { call, port: Port::Http, target, head, body, arrival, streams };
            return generate::generate(context, call, replies);
        }
        if context.demand.is_some()
            && let Some(token) = context.await_route(call, &found, replies)
        {
            return token;
        }
        match found {
            Route::Metrics => self.metrics_page.render_for(call, head),
            Route::Health => management.http(call, Route::Ready, is_post, &body, replies),
            Route::Traffic(model, action) => {
                let body = is_post.then_some(&body);
                management.traffic(call, model, action, body, replies);
            }
            found => management.http(call, found, is_post, &body, replies),
        }
        None
    }

    /// Serves the route that a port of the clouds has returned.
    fn follow(
        &mut self,
        context: &mut InferContext,
        management: &mut Management,
        routing: CloudRouting<'_>,
        request: HttpRequest<'_>,
        replies: &mut Replies,
    ) -> Option<Token> {
        let HttpRequest { call, head, .. } = request;
        match routing {
            Err(reply) => {
                replies.push(call, HttpReply::Answer(*reply));
                None
            }
            Ok(CloudRoute::Answered) => None,
            Ok(CloudRoute::Metrics) => {
                self.metrics_page.render_for(call, head);
                None
            }
            Ok(CloudRoute::Infer { model, dialect }) => {
                let HttpRequest { body, arrival, .. } = request;
                let target = Target { model: model.as_bytes(), version: None };
                context.load_reports.expect(call, head);
                self.infer.infer(context, InferCall { call, target, head, body, arrival, dialect }, replies)
            }
            Ok(CloudRoute::Generate { model, streams }) => {
                let HttpRequest { body, arrival, .. } = request;
                let target = Target { model: model.as_bytes(), version: None };
                context.load_reports.expect_of_generate(call, head);
                let call = GenerateCall { call, port: Port::SageMaker, target, head, body, arrival, streams };
                generate::generate(context, call, replies)
            }
            Ok(CloudRoute::Route(route)) => {
                let call = RouteCall { request, dialect: Dialect::Vertex, is_post: false };
                self.serve_route(context, management, call, route, replies)
            }
        }
    }
}

/// The route of a path with a label of its model, if the client may use it. Its keys are checked here too: the label
/// may be newer than the head's first check.
fn labelled<'a>(context: &InferContext, head: &'a http1::Head) -> Result<Option<Route<'a>>, Box<http1::Response>> {
    let Some(found) = context.labelled_route(head.path().as_bytes()) else { return Ok(None) };
    context.access.http.allow_http(found.category(), head, &context.pool)?;
    Ok(Some(found))
}
