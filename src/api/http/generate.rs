//! `generate` and `generate_stream`: plain JSON objects in and out, which the model's own names map to tensors
//! (contract/http.md section 7).

pub mod load;
pub mod reply;
pub mod request;

use std::sync::Arc;

use super::decode;
use super::routed::Routed;
use crate::api::awaiting::{HttpCall, OwnedTarget, ParkedCall};
use crate::api::error;
use crate::api::infer::{AnswerForm, Manner};
use crate::api::infer_context::InferContext;
use crate::api::routes::Target;
use crate::api::watch::Arrival;
use crate::repository::Choice;
use nereid_memory::Slice;
use nereid_protocol::http1;
use nereid_protocol::service::{CallKey, HttpReply, Port, Replies, Token};
use nereid_request::Status;
use request::Reader;

/// A request as it came.
pub struct GenerateCall<'a> {
    pub call: CallKey,
    /// The ports of the clouds ignore `Content-Encoding` (contract/http.md section 8).
    pub port: Port,
    pub target: Target<'a>,
    pub head: &'a http1::Head,
    pub body: Slice,
    /// Where the time is wanted.
    pub arrival: Option<Arrival>,
    /// Each response is an event of its own.
    pub streams: bool,
}

/// Takes a request in, or answers why not. Whatever happens before a model has it is answered with plain JSON.
pub fn generate(context: &mut InferContext, call: GenerateCall<'_>, replies: &mut Replies) -> Option<Token> {
    let (key, token) = (call.call, context.resumed_token());
    match begin_generate(context, token, call, replies) {
        Ok(token) => Some(token),
        Err(status) => {
            token.and_then(|token| context.calls.end_work(token.0));
            replies.push(key, HttpReply::Answer(error::http_error(&context.pool, &status, error::JSON)));
            None
        }
    }
}

/// The checks in their order, then the first steps of reading the body.
fn begin_generate(
    context: &mut InferContext,
    token: Option<Token>,
    call: GenerateCall<'_>,
    replies: &mut Replies,
) -> Result<Token, Status> {
    let GenerateCall { call, port, target, head, body, arrival, streams } = call;
    let found = context.find(target.model, target.version.unwrap_or_default(), &|name| head.header(name));
    let Choice { model, route } = match found {
        Ok(choice) => choice,
        Err(status) => {
            return context.await_model(token, target.model, status, || {
                let target = OwnedTarget::of(&target);
                let http = Box::new(HttpCall { call, target, head: head.clone(), body, arrival });
                ParkedCall::Generate { http, port, streams }
            });
        }
    };
    let watch = context.watches.of_http(&model.name, head, arrival);
    if port == Port::Http {
        check_encoding(head)?;
    }
    let (token, mut request) = match token {
        Some(token) => (token, context.calls.request_of(token)),
        None => context.calls.new_request()?,
    };
    if let Some(watch) = &watch {
        watch.attach(&mut request);
    }
    let most = context.facts.settings.http_input_bytes_max;
    let form = AnswerForm {
        manner: if streams { Manner::GenerateEvents } else { Manner::Generate },
        load_report: context.load_reports.of_generate(head),
        watch,
        ..AnswerForm::default()
    };
    let reader = match body.len() > most {
        true => Err((error::json_too_long(body.len() as u64, most), request)),
        false => Reader::new(Arc::clone(&model), request, form, body, most),
    };
    match reader {
        Ok(reader) => {
            decode::decode(context, token.0, call, Routed::around(Box::new(reader), route), replies);
            Ok(token)
        }
        Err((status, request)) => {
            context.calls.give_up(token, request);
            Err(status)
        }
    }
}

fn check_encoding(head: &http1::Head) -> Result<(), Status> {
    match head.header("Content-Encoding") {
        None | Some(b"" | b"identity") => Ok(()),
        Some(_) => Err(Status::invalid("Unsupported content-encoding, only 'identity' is supported.")),
    }
}
