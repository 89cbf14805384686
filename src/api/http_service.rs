//! The routes of the HTTP port and of the metrics port (contract/http.md).

use super::dialect::Dialect;
use super::generate::GenerateCall;
use super::http_infer::InferCall;
use super::routes::{Method, Route, route};
use super::{Api, error};
use crate::memory::Slice;
use crate::observe::log::verbose;
use crate::protocol::http1;
use crate::protocol::service::{CallKey, Port, Replies, Reply, Token};

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
        if let Route::Generate(target) | Route::GenerateStream(target) = found {
            let streams = matches!(found, Route::GenerateStream(_));
            let call = GenerateCall { call, port: Port::Http, target, head, body, streams };
            return self.generate_http(call, replies);
        }
        self.management.http(call, found, is_post, &body, replies);
        None
    }
}

impl Route<'_> {
    /// The label of error bodies of this route (contract/http.md section 1).
    pub(super) fn content_type(&self) -> Option<&'static str> {
        match self {
            Route::Live | Route::Ready | Route::ModelReady(_) | Route::Infer(_) => None,
            _ => error::JSON,
        }
    }
}
