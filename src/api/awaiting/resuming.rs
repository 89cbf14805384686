//! Begins calls once more whose loads have ended, by the parts of the service that took them in.

use super::ParkedCall;
use crate::api::Api;
use crate::api::grpc::inference::GrpcInfer;
use crate::api::grpc::streams::Streams;
use crate::api::http::generate::{self, GenerateCall};
use crate::api::http::inference::InferCall;
use crate::api::routes::Route;
use crate::repository::demand::Loaded;
use nereid_memory::Slice;
use nereid_protocol::service::{Replies, Token};

impl Api {
    /// Goes on with the call that waits under this key for a load.
    pub(in crate::api) fn resume(&mut self, key: u64, loaded: Loaded, replies: &mut Replies) {
        let Api { context, management, http, streams, openai, .. } = self;
        let token = Token(key);
        if context.calls.openai(token).is_some() {
            return openai.resume(context, token, loaded, replies);
        }
        match context.resume(key, loaded) {
            None => {}
            Some(ParkedCall::HttpInfer(parked, dialect)) => {
                let parked = *parked;
                let (target, head) = (parked.target.target(), &parked.head);
                let call =
                    InferCall { call: parked.call, target, head, body: parked.body, arrival: parked.arrival, dialect };
                http.infer().infer(context, call, replies);
            }
            Some(ParkedCall::Generate { http: parked, port, streams }) => {
                let parked = *parked;
                let (target, head) = (parked.target.target(), &parked.head);
                let call = GenerateCall {
                    call: parked.call,
                    port,
                    target,
                    head,
                    body: parked.body,
                    arrival: parked.arrival,
                    streams,
                };
                generate::generate(context, call, replies);
            }
            Some(ParkedCall::HttpQuery { call, target, is_config }) => {
                let target = target.target();
                let route = if is_config { Route::ModelConfig(target) } else { Route::ModelMetadata(target) };
                if context.await_route(call, &route, replies).is_none() {
                    context.calls.end_work(key);
                    management.http(call, route, false, &Slice::default(), replies);
                }
            }
            Some(ParkedCall::Grpc(parked)) => GrpcInfer::resume(context, management, token, *parked, replies),
            Some(ParkedCall::GrpcQuery { call, method, message }) => {
                let waits_again = context.await_rpc(Some(token), call, method, &message, replies).is_some();
                if !waits_again {
                    context.calls.end_work(key);
                    management.grpc(call, method, message, replies);
                }
            }
            Some(ParkedCall::Streamed { stream, message, arrival }) => {
                Streams::resume(streams, context, (stream, token), message, arrival, replies);
            }
        }
    }
}
