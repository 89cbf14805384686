//! The RPCs of GRPCInferenceService and of the health protocol (contract/grpc.md sections 1 to 6): inference, and the
//! way to management.

use std::rc::Rc;

use super::methods::{Method, method_of};
use super::reflection;
use super::streams::Streams;
use crate::api::awaiting::{GrpcCall, ParkedCall};
use crate::api::calls::pending_submit::PendingSubmit;
use crate::api::calls::reply_to::ReplyTo;
use crate::api::calls::work::Work;
use crate::api::coding::packing::Packing;
use crate::api::coding::unpacking::PackedCall;
use crate::api::error;
use crate::api::facts::ServerState;
use crate::api::forwarding::HeaderPattern;
use crate::api::infer::grpc_request;
use crate::api::infer_context::{InferContext, kept_field};
use crate::api::management::Management;
use crate::api::plan_cache::grpc_requests::RequestKey;
use crate::api::routes::Category;
use crate::api::steps::LONG_STEPS_AT_ONCE;
use crate::api::watch::Arrival;
use crate::repository::Choice;
use nereid_protocol::grpc::{
    Code, Encoding, InferRequest, Message, MessageUnpacker, Mode, Outline, Unpacked, unpack_short,
};
use nereid_protocol::http2::Headers;
use nereid_protocol::service::{Arrived, CallKey, GrpcPlan, GrpcReply, GrpcStatus, Recurring, Replies, Token};
use nereid_request::Status;

/// What gRPC answers for a method that the service does not have: no text.
fn unimplemented() -> GrpcStatus {
    GrpcStatus::new(Code::Unimplemented, "")
}

/// A unary call whose message is complete.
struct UnaryCall<'a> {
    pub call: CallKey,
    pub plan: &'a GrpcPlan,
    /// The head of the message, if the plan cache shall learn it.
    pub noted: Option<RequestKey>,
    pub arrival: Option<Arrival>,
    /// When its client stops waiting.
    pub deadline_ns: Option<u64>,
}

/// A call whose request is here as a whole; `token` is that of the call, and of a unary call becomes it.
pub struct RecurringCall<'a> {
    pub call: CallKey,
    pub plan: &'a GrpcPlan,
    pub token: &'a mut Option<Token>,
    pub deadline_ns: Option<u64>,
}

/// The part of one shard's service that takes inference requests of unary calls in.
pub struct GrpcInfer {
    /// `--grpc-header-forward-pattern`, for this shard alone: what a pattern needs to search is not shared.
    forwarded: Option<HeaderPattern>,
}

impl GrpcInfer {
    pub fn new(forwarded: Option<HeaderPattern>) -> GrpcInfer {
        GrpcInfer { forwarded }
    }

    /// The plan of a call: how its messages are read.
    pub fn plan_call(&self, context: &InferContext, headers: &Headers) -> Result<GrpcPlan, GrpcStatus> {
        let path = headers.path().unwrap_or_default();
        let Some(method) = method_of(path) else {
            if let Some(plan) = context.load_reports.plan_stream(path) {
                context.access.grpc.allow_grpc(Category::Statistics, headers)?;
                return Ok(plan);
            }
            return reflection::plan(path).ok_or_else(unimplemented);
        };
        let key = context.access.grpc.allow_grpc(method.category(), headers)?;
        let infers = matches!(method, Method::ModelInfer | Method::ModelStreamInfer);
        let mut plan = GrpcPlan::new(method as u8, if infers { Mode::Infer } else { Mode::Collect });
        plan.streaming = method == Method::ModelStreamInfer;
        (plan.access, plan.key) = (context.access.number, key);
        if infers {
            context.watches.plan_call(headers, &mut plan);
            plan.reports_load = context.load_reports.is_wanted(headers);
            if let Some(pattern) = &self.forwarded {
                plan.kept = pattern.of_metadata(headers);
            }
            plan.routing_number = context.models.routing_number();
            if plan.routing_number != 0 {
                plan.routing = context.routing_of(|name| headers.get(name));
            }
            if context.facts.settings.grpc_packing.is_some() {
                plan.response_encoding = Encoding::accepted(headers.get(b"grpc-accept-encoding").unwrap_or_default());
            }
        }
        Ok(plan)
    }

    pub fn unary(
        context: &mut InferContext,
        management: &mut Management,
        call: CallKey,
        plan: &GrpcPlan,
        mut message: Message,
        arrived: Arrived<RequestKey>,
        replies: &mut Replies,
    ) -> Option<Token> {
        let arrival = arrived.since_ns.map(Arrival::since);
        // A probe takes no place among the calls that wait. Where there is none, a turn that has unpacked enough
        // unpacks it too: it is short.
        if let Message::Compressed(encoding, packed, limits) = &message
            && plan.mode == Mode::Collect
            && (context.packing_budget.take_step() || context.calls.is_full())
            && let Some(plain) = unpack_short(*encoding, packed, limits, &context.pool)
        {
            message = Message::Collected(plain);
        }
        let Message::Compressed(encoding, packed, limits) = message else {
            let call = UnaryCall { call, plan, noted: arrived.noted, arrival, deadline_ns: arrived.deadline_ns };
            return GrpcInfer::answer_unary(context, management, None, call, message, replies);
        };
        match context.calls.new_work(Work::Reserved) {
            Ok(token) => {
                GrpcInfer::unpack_call(
                    context,
                    management,
                    token.0,
                    Box::new(PackedCall {
                        call,
                        plan: plan.clone(),
                        arrival,
                        deadline_ns: arrived.deadline_ns,
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

    /// `token`: issued for the call before its message was unpacked.
    fn answer_unary(
        context: &mut InferContext,
        management: &mut Management,
        token: Option<Token>,
        unary: UnaryCall<'_>,
        message: Message,
        replies: &mut Replies,
    ) -> Option<Token> {
        let UnaryCall { call, plan, .. } = unary;
        let method = Method::from_number(plan.method);
        if context.demand.is_some()
            && let (Some(method), Message::Collected(message)) = (method, &message)
            && let Some(token) = context.await_rpc(token, call, method, message, replies)
        {
            return token;
        }
        if method != Some(Method::ModelInfer) {
            // The others have no work of their own.
            token.and_then(|token| context.calls.end_work(token.0));
        }
        match (method, message) {
            (Some(Method::ModelInfer), Message::Infer(message)) => {
                return match GrpcInfer::model_infer(context, token, unary, message) {
                    Ok(token) => Some(token),
                    Err(status) => {
                        replies.push(call, GrpcReply::End(error::grpc_status(status)));
                        None
                    }
                };
            }
            (Some(method), Message::Collected(message)) => management.grpc(call, method, message, replies),
            // Messages come in the form that the plan specifies.
            _ => {
                let status = Status::internal("Unable to parse request");
                replies.push(call, GrpcReply::End(error::grpc_status(status)));
            }
        }
        None
    }

    /// After an error, the work of a token that was issued before is ended.
    fn model_infer(
        context: &mut InferContext,
        token: Option<Token>,
        unary: UnaryCall<'_>,
        message: Box<InferRequest>,
    ) -> Result<Token, Status> {
        let UnaryCall { call, plan, arrival, deadline_ns, .. } = unary;
        let mut outcome = GrpcInfer::submit_infer(context, token, unary, &message);
        if context.demand.is_some()
            && let Err(status) = outcome
        {
            let name: Box<[u8]> = message.model_name().as_bytes().into();
            outcome = context.await_model(token, &name, status, || {
                ParkedCall::Grpc(Box::new(GrpcCall { call, plan: plan.clone(), message, arrival, deadline_ns }))
            });
        }
        if let (Err(_), Some(token)) = (&outcome, token) {
            context.calls.end_work(token.0);
        }
        outcome
    }

    /// Begins a call once more whose model was loaded for it.
    pub fn resume(
        context: &mut InferContext,
        management: &mut Management,
        token: Token,
        parked: GrpcCall,
        replies: &mut Replies,
    ) {
        let GrpcCall { call, plan, message, arrival, deadline_ns } = parked;
        let unary = UnaryCall { call, plan: &plan, noted: None, arrival, deadline_ns };
        GrpcInfer::answer_unary(context, management, Some(token), unary, Message::Infer(message), replies);
    }

    fn submit_infer(
        context: &mut InferContext,
        token: Option<Token>,
        unary: UnaryCall<'_>,
        message: &InferRequest,
    ) -> Result<Token, Status> {
        let UnaryCall { call, plan, noted, arrival, deadline_ns } = unary;
        if context.facts.state() == ServerState::Exiting {
            return Err(error::grpc_stopping());
        }
        let (name, version) = (message.model_name().as_bytes(), message.model_version().as_bytes());
        let Choice { mut model, route } = context.find(name, version, &|name| kept_field(&plan.routing, name))?;
        if model.spec.decoupled {
            let text = "ModelInfer RPC doesn't support models with decoupled transaction policy";
            return Err(Status::unsupported(text));
        }
        let (token, mut request) = match token {
            Some(token) => (token, context.calls.request_of(token)),
            None => context.calls.new_request()?,
        };
        let (pool, regions) = (&context.pool, &context.facts.regions);
        let mut form = match grpc_request::read(message, &model, &mut request, &plan.kept, pool, regions) {
            Ok(mut form) => {
                match route {
                    None => context.plan_cache.learn_grpc(noted, plan, &model, &mut request, &form),
                    Some(route) => model = route.settle(&mut request, &model),
                }
                form.packing = Packing::of_grpc(plan.response_encoding, context.facts.settings.grpc_packing);
                form
            }
            Err(status) => {
                context.calls.give_up(token, request);
                return Err(status);
            }
        };
        if plan.timed {
            form.watch = context.watches.of_grpc(&model.name, plan, arrival);
            form.watch.as_ref().inspect(|watch| watch.attach(&mut request));
        }
        request.queueing.answer_by_ns = deadline_ns.unwrap_or(0);
        let form = context.plan_cache.share(form);
        match context.calls.submit(token, ReplyTo::Grpc(call), model, request, form) {
            Ok(()) => Ok(token),
            Err(status) => {
                context.calls.end_work(token.0);
                Err(status)
            }
        }
    }

    /// Takes a request that equals an earlier one but for id and contents. `Unknown`: the request has to come as a
    /// message, because it is new, or because that path reports what is wrong with it.
    #[inline]
    pub fn take_recurring(
        context: &mut InferContext,
        streams: &mut Streams,
        call: RecurringCall<'_>,
        outline: &Outline<'_>,
        replies: &mut Replies,
    ) -> Recurring<RequestKey> {
        let RecurringCall { call, plan, token, deadline_ns } = call;
        if context.facts.state() == ServerState::Exiting {
            return Recurring::Unknown(None);
        }
        let Some(requests) = context.plan_cache.grpc_requests() else { return Recurring::Unknown(None) };
        let prototype = match requests.recognise(outline) {
            Ok(prototype) => prototype,
            Err(noted) => return Recurring::Unknown(noted),
        };
        let Some(model) = prototype.model() else { return Recurring::Unknown(None) };
        if std::str::from_utf8(outline.id).is_err() || (!plan.streaming && model.spec.decoupled) {
            return Recurring::Unknown(None);
        }
        if plan.streaming
            && !token.is_some_and(|token| context.calls.stream(token).is_some_and(|stream| stream.takes_at_once()))
        {
            return Recurring::Unknown(None);
        }
        if !prototype.fits(outline) {
            return Recurring::Unknown(None);
        }
        let Ok((work, mut request)) = context.calls.new_request() else { return Recurring::Unknown(None) };
        if context.plan_cache.fill_grpc(&prototype, &mut request, outline, &context.pool).is_err() {
            context.calls.give_up(work, request);
            return Recurring::Unknown(None);
        }
        let mut form = Rc::clone(&prototype.form);
        if let Some(deadline_ns) = deadline_ns {
            request.queueing.answer_by_ns = deadline_ns;
        }
        if let Some(stream) = token.filter(|_| plan.streaming) {
            let pending = PendingSubmit { reply_to: ReplyTo::Stream(stream), model, request, form };
            streams.submit(context, stream, work, pending, replies);
            return Recurring::Taken;
        }
        let packing = Packing::of_grpc(plan.response_encoding, context.facts.settings.grpc_packing);
        if form.packing != packing {
            Rc::make_mut(&mut form).packing = packing;
        }
        match context.calls.submit(work, ReplyTo::Grpc(call), model, request, form) {
            Ok(()) => *token = Some(work),
            Err(status) => {
                context.calls.end_work(work.0);
                replies.push(call, GrpcReply::End(error::grpc_status(status)));
            }
        }
        Recurring::Taken
    }

    /// Unpacks on; what does not fit into this turn is put off.
    pub fn unpack_call(
        context: &mut InferContext,
        management: &mut Management,
        key: u64,
        mut packed: Box<PackedCall>,
        replies: &mut Replies,
    ) {
        let mut long_steps = 0;
        while long_steps < LONG_STEPS_AT_ONCE && context.packing_budget.take_step() {
            match packed.message.step(&context.pool) {
                Ok(Unpacked::More { is_long }) => long_steps += usize::from(is_long),
                Ok(Unpacked::Message(message)) => {
                    let arrival = packed.plan.timed.then(|| packed.arrival.unwrap_or_else(Arrival::now));
                    let PackedCall { call, plan, deadline_ns, .. } = &*packed;
                    let call = UnaryCall { call: *call, plan, noted: None, arrival, deadline_ns: *deadline_ns };
                    GrpcInfer::answer_unary(context, management, Some(Token(key)), call, message, replies);
                    return;
                }
                Err(error) => {
                    context.calls.end_work(key);
                    return replies.push(packed.call, GrpcReply::End(error.into()));
                }
            }
        }
        packed.arrival = None;
        context.calls.defer(key, Work::UnpackingCall(packed));
    }
}
