//! What the ports of the clouds share with the HTTP port: which groups are restricted, and generation.

use super::Api;
use super::generate::GenerateCall;
use super::http_infer::InferCall;
use super::routes::Category;
use crate::protocol::http1::{Head, Response};
use crate::protocol::service::{Port, Replies, Token};

impl Api {
    /// Whether `--http-restricted-api` lets the request through (contract/http.md sections 8 and 9); Err is the answer
    /// if not.
    pub(super) fn cloud_restricted(&self, category: Category, head: &Head) -> Result<(), Box<Response>> {
        self.facts.settings.http_restrictions.allow_http(category, head, &self.pool)
    }

    /// Generation through a port of the clouds, as a stream or as one answer.
    pub(super) fn cloud_generate(
        &mut self,
        call: InferCall<'_>,
        streams: bool,
        replies: &mut Replies,
    ) -> Option<Token> {
        let InferCall { call, target, head, body, .. } = call;
        self.generate_http(GenerateCall { call, port: Port::SageMaker, target, head, body, streams }, replies)
    }
}
