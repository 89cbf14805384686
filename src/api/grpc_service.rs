//! The RPCs of GRPCInferenceService and of the health protocol (contract/grpc.md sections 1 to 6): inference, and the
//! way to management.

use std::rc::Rc;
use std::sync::Arc;

use super::calls::{Peer, Work};
use super::checking::has_many_strings;
use super::facts::ServerState;
use super::infer::{AnswerForm, grpc_request};
use super::methods::{Method, method_of};
use super::packing::Packing;
use super::plan_cache::grpc_requests::RequestKey;
use super::unpacking::PackedCall;
use super::watch::Arrival;
use super::{Api, error, reflection};
use nereid_protocol::grpc::{Code, Encoding, InferRequest, Message, MessageUnpacker, Mode, Outline};
use nereid_protocol::http2::Headers;
use nereid_protocol::service::{Arrived, CallKey, GrpcPlan, GrpcReply, GrpcStatus, Recurring, Replies, Token};
use nereid_request::{Request, Status};
use nereid_scheduler::ServedModel;

/// What gRPC answers for a method that the service does not have: no text.
fn unimplemented() -> GrpcStatus {
    GrpcStatus::new(Code::Unimplemented, "")
}

/// What new inference requests meet while the server is exiting.
pub(super) fn stopping() -> Status {
    Status::unavailable("GRPC server is shutting down and has stopped accepting new requests.")
}

/// A unary call whose message is there.
pub(super) struct UnaryCall<'a> {
    pub call: CallKey,
    pub plan: &'a GrpcPlan,
    /// The head of the message, if it is to be learnt.
    pub noted: Option<RequestKey>,
    pub arrival: Option<Arrival>,
}

impl Api {
    /// How the call takes its requests.
    pub(super) fn plan_call(&mut self, headers: &Headers) -> Result<GrpcPlan, GrpcStatus> {
        let path = headers.path().unwrap_or_default();
        let Some(method) = method_of(path) else { return reflection::plan(path).ok_or_else(unimplemented) };
        self.facts.settings.grpc_restrictions.allow_grpc(method.category(), headers)?;
        let infers = matches!(method, Method::ModelInfer | Method::ModelStreamInfer);
        let mut plan = GrpcPlan::new(method as u8, if infers { Mode::Infer } else { Mode::Collect });
        plan.streaming = method == Method::ModelStreamInfer;
        if infers {
            self.watches.plan_call(headers, &mut plan);
            if let Some(pattern) = &self.grpc_forwarded {
                plan.kept = pattern.of_metadata(headers);
            }
            if self.facts.settings.grpc_packing.is_some() {
                plan.response_encoding = Encoding::accepted(headers.get(b"grpc-accept-encoding").unwrap_or_default());
            }
        }
        Ok(plan)
    }

    pub(super) fn unary(
        &mut self,
        call: CallKey,
        plan: &GrpcPlan,
        message: Message,
        arrived: Arrived<RequestKey>,
        replies: &mut Replies,
    ) -> Option<Token> {
        let arrival = arrived.since_ns.map(Arrival::since);
        let Message::Compressed(encoding, packed, limits) = message else {
            let call = UnaryCall { call, plan, noted: arrived.noted, arrival };
            return self.answer_unary(None, call, message, replies);
        };
        match self.calls.new_work(Work::Reserved) {
            Ok(token) => {
                self.unpack_call(
                    token.0,
                    Box::new(PackedCall {
                        call,
                        plan: plan.clone(),
                        arrival,
                        message: MessageUnpacker::new(plan.mode, encoding, limits, packed),
                    }),
                    replies,
                );
                Some(token)
            }
            Err(status) => {
                replies.push(call, GrpcReply::End(error::grpc_status(status)));
                None
            }
        }
    }

    /// `token`: what was given out for the call before its message was unpacked.
    pub(super) fn answer_unary(
        &mut self,
        token: Option<Token>,
        unary: UnaryCall<'_>,
        message: Message,
        replies: &mut Replies,
    ) -> Option<Token> {
        let UnaryCall { call, plan, .. } = unary;
        let method = Method::from_number(plan.method);
        if method != Some(Method::ModelInfer) {
            // The others have no work of their own.
            token.and_then(|token| self.calls.end_work(token.0));
        }
        match (method, message) {
            (Some(Method::ModelInfer), Message::Infer(message)) => {
                return match self.model_infer(token, unary, &message) {
                    Ok(token) => Some(token),
                    Err(status) => {
                        replies.push(call, GrpcReply::End(error::grpc_status(status)));
                        None
                    }
                };
            }
            (Some(method), Message::Collected(message)) => self.management.grpc(call, method, message, replies),
            // Messages come in the form that the plan asks for.
            _ => {
                let status = Status::internal("Unable to parse request");
                replies.push(call, GrpcReply::End(error::grpc_status(status)));
            }
        }
        None
    }

    /// Of a token that was given out before, nothing is left after an error.
    fn model_infer(
        &mut self,
        token: Option<Token>,
        unary: UnaryCall<'_>,
        message: &InferRequest,
    ) -> Result<Token, Status> {
        let outcome = self.submit_infer(token, unary, message);
        if let (Err(_), Some(token)) = (&outcome, token) {
            self.calls.end_work(token.0);
        }
        outcome
    }

    fn submit_infer(
        &mut self,
        token: Option<Token>,
        unary: UnaryCall<'_>,
        message: &InferRequest,
    ) -> Result<Token, Status> {
        let UnaryCall { call, plan, noted, arrival } = unary;
        if self.facts.state() == ServerState::Exiting {
            return Err(stopping());
        }
        let model = self.find(message.model_name().as_bytes(), message.model_version().as_bytes())?;
        if model.spec.decoupled {
            let text = "ModelInfer RPC doesn't support models with decoupled transaction policy";
            return Err(Status::unsupported(text));
        }
        let (token, mut request) = match token {
            Some(token) => (token, self.calls.request_of(token)),
            None => self.calls.new_request()?,
        };
        let (pool, regions) = (&self.pool, &self.facts.regions);
        let mut form = match grpc_request::read(message, &model, &mut request, &plan.kept, pool, regions) {
            Ok(mut form) => {
                self.learn(noted, plan, &model, &mut request, &form);
                form.packing = Packing::of_grpc(plan.response_encoding, self.facts.settings.grpc_packing);
                form
            }
            Err(status) => {
                self.calls.give_up(token, request);
                return Err(status);
            }
        };
        if plan.timed {
            form.watch = self.watches.of_grpc(&model.name, plan, arrival);
            form.watch.as_ref().inspect(|watch| watch.attach(&mut request));
        }
        let form = self.plan_cache.share(form);
        match self.submit(token, Peer::Grpc(call), model, request, form) {
            Ok(()) => Ok(token),
            Err(status) => {
                self.calls.end_work(token.0);
                Err(status)
            }
        }
    }

    /// Remembers a request that comes again and again, if this is one: then its head was noted.
    pub(super) fn learn(
        &mut self,
        noted: Option<RequestKey>,
        plan: &GrpcPlan,
        model: &Arc<ServedModel>,
        request: &mut Request,
        form: &AnswerForm,
    ) {
        let Some(head) = noted else { return };
        let Some(requests) = self.plan_cache.grpc_requests() else { return };
        // What fails here fails again where it is told.
        let is_plain = !plan.timed && plan.kept.is_empty() && request.shared.is_none() && !has_many_strings(request);
        if is_plain && model.check(request).is_ok() {
            request.is_checked = true;
            requests.learn(head, model, request, form);
        }
    }

    /// Takes a request whose like has passed before. It is to come as a message if none is known, or
    /// something is wrong that is told there.
    pub(super) fn take_recurring(
        &mut self,
        call: CallKey,
        plan: &GrpcPlan,
        token: &mut Option<Token>,
        message: &[u8],
        replies: &mut Replies,
    ) -> Recurring<RequestKey> {
        if !plan.kept.is_empty() || self.facts.state() == ServerState::Exiting {
            return Recurring::Unknown(None);
        }
        let Some(requests) = self.plan_cache.grpc_requests() else { return Recurring::Unknown(None) };
        let Some(outline) = Outline::of(message) else { return Recurring::Unknown(None) };
        let prototype = match requests.recognise(&outline) {
            Ok(prototype) => prototype,
            Err(noted) => return Recurring::Unknown(noted),
        };
        let Some(model) = prototype.model() else { return Recurring::Unknown(None) };
        if std::str::from_utf8(outline.id).is_err() || (!plan.streaming && model.spec.decoupled) {
            return Recurring::Unknown(None);
        }
        if plan.streaming
            && !token.is_some_and(|token| self.calls.stream(token).is_some_and(|stream| stream.takes_at_once()))
        {
            return Recurring::Unknown(None);
        }
        if !prototype.fits(&outline) {
            return Recurring::Unknown(None);
        }
        let Ok((work, mut request)) = self.calls.new_request() else { return Recurring::Unknown(None) };
        if self.plan_cache.fill_grpc(&prototype, &mut request, &outline, &self.pool).is_err() {
            self.calls.give_up(work, request);
            return Recurring::Unknown(None);
        }
        let mut form = Rc::clone(&prototype.form);
        if let Some(stream) = token.filter(|_| plan.streaming) {
            self.submit_streamed(stream, work, model, request, form, replies);
            return Recurring::Taken;
        }
        let packing = Packing::of_grpc(plan.response_encoding, self.facts.settings.grpc_packing);
        if form.packing != packing {
            Rc::make_mut(&mut form).packing = packing;
        }
        match self.submit(work, Peer::Grpc(call), model, request, form) {
            Ok(()) => *token = Some(work),
            Err(status) => {
                self.calls.end_work(work.0);
                replies.push(call, GrpcReply::End(error::grpc_status(status)));
            }
        }
        Recurring::Taken
    }
}
