//! The routes of the HTTP port, and the parts that answer them (contract/http.md).

use super::clouds::{Passed, PassedOn};
use super::dialect::Dialect;
use super::generate::GenerateCall;
use super::http_infer::InferCall;
use super::http_log::log_request;
use super::routes::{Method, Route, Target, route};
use super::vertex::redirect_path;
use super::watch::Arrival;
use super::{Api, error};
use nereid_memory::Slice;
use nereid_protocol::http1;
use nereid_protocol::service::{CallKey, HttpReply, Port, Replies, Token};

/// A request whose route may be served.
struct RouteCall<'a> {
    call: CallKey,
    head: &'a http1::Head,
    body: Slice,
    arrival: Option<Arrival>,
    dialect: Dialect,
    /// Of the routes that answer to two methods, to the other one.
    is_post: bool,
}

impl Api {
    pub(super) fn http_request(
        &mut self,
        call: CallKey,
        head: &http1::Head,
        body: Slice,
        arrival: Option<Arrival>,
        replies: &mut Replies,
    ) -> Option<Token> {
        let is_post = head.method() == http1::Method::Post;
        log_request(head);
        let Some(found) = route(head.path().as_bytes()) else {
            let reply = error::error_body(&self.pool, 404, "Not Found", None);
            replies.push(call, HttpReply::Answer(reply));
            return None;
        };
        if !found.methods().contains(&Method::from(head.method())) {
            let reply = error::error_body(&self.pool, 405, "Method Not Allowed", found.content_type());
            replies.push(call, HttpReply::Answer(reply));
            return None;
        }
        self.serve_route(RouteCall { call, head, body, arrival, dialect: Dialect::Kserve, is_post }, found, replies)
    }

    /// Does what a route asks for, whichever port it came through.
    fn serve_route(&mut self, asked: RouteCall<'_>, found: Route<'_>, replies: &mut Replies) -> Option<Token> {
        let RouteCall { call, head, body, arrival, dialect, is_post } = asked;
        if let Route::Infer(target) = found {
            return self.infer_http(InferCall { call, target, head, body, arrival, dialect }, replies);
        }
        if let Route::Generate(target) | Route::GenerateStream(target) = found {
            let streams = matches!(found, Route::GenerateStream(_));
            let call = GenerateCall { call, port: Port::Http, target, head, body, arrival, streams };
            return self.generate_http(call, replies);
        }
        self.management.http(call, found, is_post, &body, replies);
        None
    }

    pub(super) fn http_sagemaker(
        &mut self,
        call: CallKey,
        head: &http1::Head,
        body: Slice,
        arrival: Option<Arrival>,
        replies: &mut Replies,
    ) -> Option<Token> {
        let passed = self.sagemaker.http(call, head, &body);
        self.pass_on(passed, call, head, body, arrival, replies)
    }

    pub(super) fn http_vertex(
        &mut self,
        call: CallKey,
        head: &http1::Head,
        body: Slice,
        arrival: Option<Arrival>,
        replies: &mut Replies,
    ) -> Option<Token> {
        let path = redirect_path(head);
        let passed = self.vertex.http(call, head, path.as_deref());
        self.pass_on(passed, call, head, body, arrival, replies)
    }

    /// Does what a port of the clouds does not do itself.
    fn pass_on(
        &mut self,
        passed: Passed<'_>,
        call: CallKey,
        head: &http1::Head,
        body: Slice,
        arrival: Option<Arrival>,
        replies: &mut Replies,
    ) -> Option<Token> {
        match passed {
            Err(reply) => {
                replies.push(call, HttpReply::Answer(*reply));
                None
            }
            Ok(PassedOn::Nowhere) => None,
            Ok(PassedOn::Metrics) => {
                self.metrics_page.ask(call);
                None
            }
            Ok(PassedOn::Infer { model, dialect }) => {
                let target = Target { model: model.as_bytes(), version: None };
                self.infer_http(InferCall { call, target, head, body, arrival, dialect }, replies)
            }
            Ok(PassedOn::Generate { model, streams }) => {
                let target = Target { model: model.as_bytes(), version: None };
                self.generate_http(
                    GenerateCall { call, port: Port::SageMaker, target, head, body, arrival, streams },
                    replies,
                )
            }
            Ok(PassedOn::Route(route)) => {
                let dialect = Dialect::Vertex;
                self.serve_route(RouteCall { call, head, body, arrival, dialect, is_post: false }, route, replies)
            }
        }
    }
}
