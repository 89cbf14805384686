//! The RPCs of GRPCInferenceService and of the health protocol (contract/grpc.md sections 1 to 6).

use std::rc::Rc;
use std::sync::Arc;

use super::calls::{Peer, Work};
use super::checking::has_many_strings;
use super::health::Probe;
use super::infer::{AnswerForm, grpc_request};
use super::methods::{Method, method_of};
use super::packing::Packing;
use super::repository::Ask;
use super::unpacking::PackedCall;
use super::{Api, Protocol, ServerState, error, logging, reflection, statistics};
use crate::memory::{Gather, Slice};
use crate::protocol::grpc::{self, Code, Encoding, InferRequest, Message, MessageUnpacker, Mode, Outline};
use crate::protocol::http2::Headers;
use crate::protocol::service::{CallKey, GrpcPlan, GrpcStatus, Replies, Reply, Token};
use crate::repository::ServedModel;
use crate::request::{Code as StatusCode, Request, Status};
use crate::wire::health::HealthCheckRequest;
use crate::wire::inference as wire;

/// What gRPC answers for a method that the service does not have: no text.
fn unimplemented() -> GrpcStatus {
    GrpcStatus::new(Code::Unimplemented, "")
}

/// What new inference requests meet while the server is exiting.
pub(super) fn stopping() -> Status {
    Status::unavailable("GRPC server is shutting down and has stopped accepting new requests.")
}

/// Bytes of a message that a shard reads itself: the longest that means something are names and settings.
const SHORT_BYTES_MAX: usize = 64 * 1024;
/// Messages of so many bytes are read without a charge.
const UNCHARGED_BYTES: usize = 4096;
/// Bytes that an entry of a list or map takes, roughly.
const FIELD_BYTES: usize = 160;

/// Reads a message other than inference. What it becomes is charged while it is read: a few bytes of protobuf can make
/// an entry of a list or map.
pub(super) fn decode<M: prost::Message + Default>(message: &Slice) -> Result<M, Status> {
    let pool = message.pool().filter(|_| message.len() > UNCHARGED_BYTES);
    let bytes = || message.len().saturating_add(grpc::count_fields(message).saturating_mul(FIELD_BYTES));
    let _held = pool.map(|pool| pool.hold(bytes())).transpose()?;
    M::decode(&**message).map_err(|_| Status::internal("Unable to parse request"))
}

/// Reads a message on a shard, which a long one would keep.
fn decode_short<M: prost::Message + Default>(message: &Slice) -> Result<M, Status> {
    match message.len() <= SHORT_BYTES_MAX {
        true => decode(message),
        false => Err(Status::invalid(format!(
            "the request message has {} bytes, at most {SHORT_BYTES_MAX} are read",
            message.len()
        ))),
    }
}

impl Api {
    /// How the call takes its requests.
    pub(super) fn plan_call(&mut self, headers: &Headers) -> Result<GrpcPlan, GrpcStatus> {
        let path = headers.path().unwrap_or_default();
        let Some(method) = method_of(path) else { return reflection::plan(path).ok_or_else(unimplemented) };
        self.is_call_allowed(method.category(), headers)?;
        let infers = matches!(method, Method::ModelInfer | Method::ModelStreamInfer);
        let mut plan = GrpcPlan::new(method as u8, if infers { Mode::Infer } else { Mode::Collect });
        plan.streaming = method == Method::ModelStreamInfer;
        if infers {
            self.plan_watch(headers, &mut plan);
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
        replies: &mut Replies,
    ) -> Option<Token> {
        let Message::Compressed(encoding, packed, limits) = message else {
            return self.answer_unary(None, call, plan, message, replies);
        };
        match self.new_work(Work::Reserved) {
            Ok(token) => {
                self.unpack_call(
                    token.0,
                    Box::new(PackedCall::new(call, plan, MessageUnpacker::new(plan.mode, encoding, limits, packed))),
                    replies,
                );
                Some(token)
            }
            Err(status) => {
                replies.push(call, Reply::GrpcEnd(error::grpc_status(status)));
                None
            }
        }
    }

    /// `token`: what was given out for the call before its message was unpacked.
    pub(super) fn answer_unary(
        &mut self,
        token: Option<Token>,
        call: CallKey,
        plan: &GrpcPlan,
        message: Message,
        replies: &mut Replies,
    ) -> Option<Token> {
        let method = Method::from_number(plan.method);
        if method != Some(Method::ModelInfer) {
            // The others have no work of their own.
            token.and_then(|token| self.end_work(token.0));
        }
        let message = match (method, message) {
            (Some(Method::ModelInfer), Message::Infer(message)) => {
                return match self.model_infer(token, call, plan, &message) {
                    Ok(token) => Some(token),
                    Err(status) => {
                        replies.push(call, Reply::GrpcEnd(error::grpc_status(status)));
                        None
                    }
                };
            }
            (Some(Method::RepositoryIndex), Message::Collected(message)) => {
                self.ask_repository(call, Ask::GrpcIndex { message }, replies);
                return None;
            }
            (Some(Method::RepositoryModelLoad), Message::Collected(message)) => {
                self.ask_repository(call, Ask::GrpcLoad { message }, replies);
                return None;
            }
            (Some(Method::RepositoryModelUnload), Message::Collected(message)) => {
                self.ask_repository(call, Ask::GrpcUnload { message }, replies);
                return None;
            }
            (Some(method), Message::Collected(message)) => match method.of_regions() {
                Some(asked) => {
                    self.regions_grpc(call, asked, &message, replies);
                    return None;
                }
                None if self.probes_instances(call, method, &message) => return None,
                None => self.manage(method, &message),
            },
            // Messages come in the form that the plan asks for.
            _ => Err(Status::internal("Unable to parse request")),
        };
        match message {
            Ok(message) => {
                replies.push(call, Reply::GrpcMessage(message));
                replies.push(call, Reply::GrpcEnd(GrpcStatus::ok()));
            }
            Err(status) => replies.push(call, Reply::GrpcEnd(error::grpc_status(status))),
        }
        None
    }

    /// Of a token that was given out before, nothing is left after an error.
    fn model_infer(
        &mut self,
        token: Option<Token>,
        call: CallKey,
        plan: &GrpcPlan,
        message: &InferRequest,
    ) -> Result<Token, Status> {
        let outcome = self.submit_infer(token, call, plan, message);
        if let (Err(_), Some(token)) = (&outcome, token) {
            self.end_work(token.0);
        }
        outcome
    }

    fn submit_infer(
        &mut self,
        token: Option<Token>,
        call: CallKey,
        plan: &GrpcPlan,
        message: &InferRequest,
    ) -> Result<Token, Status> {
        if self.facts.state() == ServerState::Exiting {
            return Err(stopping());
        }
        let model = self.find(message.model_name().as_bytes(), message.model_version().as_bytes())?;
        if model.spec.decoupled {
            let text = "ModelInfer RPC doesn't support models with decoupled transaction policy";
            return Err(Status::unsupported(text));
        }
        let (token, mut request) = match token {
            Some(token) => (token, self.request_of(token)),
            None => self.new_request()?,
        };
        let (pool, regions) = (&self.pool, &self.facts.regions);
        let mut form = match grpc_request::read(message, &model, &mut request, &plan.kept, pool, regions) {
            Ok(mut form) => {
                self.learn(call, plan, &model, &mut request, &form);
                form.packing = Packing::of_grpc(plan.response_encoding, self.facts.settings.grpc_packing);
                form
            }
            Err(status) => {
                self.give_up(token, request);
                return Err(status);
            }
        };
        if plan.timed {
            form.watch = self.watch_grpc(&model.name, plan);
            form.watch.as_ref().inspect(|watch| watch.attach(&mut request));
        }
        let form = self.plan_cache.share(form);
        match self.submit(token, Peer::Grpc(call), model, request, form) {
            Ok(()) => Ok(token),
            Err(status) => {
                self.end_work(token.0);
                Err(status)
            }
        }
    }

    /// Remembers a request that comes again and again, if this is one.
    pub(super) fn learn(
        &mut self,
        call: CallKey,
        plan: &GrpcPlan,
        model: &Arc<ServedModel>,
        request: &mut Request,
        form: &AnswerForm,
    ) {
        let Some(head) = self.recurring.take_due(call) else { return };
        // What fails here fails again where it is told.
        let is_plain = !plan.timed && plan.kept.is_empty() && request.shared.is_none() && !has_many_strings(request);
        if is_plain && model.check(request).is_ok() {
            request.is_checked = true;
            self.recurring.learn(head, model, request, form);
        }
    }

    /// Takes a request whose like has passed before. False if it is to come as a message: none is known, or something
    /// is wrong that is told there.
    pub(super) fn take_recurring(
        &mut self,
        call: CallKey,
        plan: &GrpcPlan,
        token: &mut Option<Token>,
        message: &[u8],
        replies: &mut Replies,
    ) -> bool {
        if !self.plan_cache.is_on || !plan.kept.is_empty() || self.facts.state() == ServerState::Exiting {
            return false;
        }
        let Some(outline) = Outline::of(message) else { return false };
        let Some(prototype) = self.recurring.recognise(call, &outline) else { return false };
        let Some(model) = prototype.model() else { return false };
        if std::str::from_utf8(outline.id).is_err() || (!plan.streaming && model.spec.decoupled) {
            return false;
        }
        if plan.streaming && !token.is_some_and(|token| self.takes_at_once(token)) {
            return false;
        }
        if !prototype.fits(&outline) {
            return false;
        }
        let Ok((work, mut request)) = self.new_request() else { return false };
        if prototype.fill(&mut request, &outline, &mut self.portions, &self.pool).is_err() {
            self.give_up(work, request);
            return false;
        }
        self.plan_cache.hits.messages += 1;
        let mut form = Rc::clone(&prototype.form);
        if let Some(stream) = token.filter(|_| plan.streaming) {
            self.submit_streamed(stream, work, model, request, form, replies);
            return true;
        }
        let packing = Packing::of_grpc(plan.response_encoding, self.facts.settings.grpc_packing);
        if form.packing != packing {
            Rc::make_mut(&mut form).packing = packing;
        }
        match self.submit(work, Peer::Grpc(call), model, request, form) {
            Ok(()) => *token = Some(work),
            Err(status) => {
                self.end_work(work.0);
                replies.push(call, Reply::GrpcEnd(error::grpc_status(status)));
            }
        }
        true
    }

    pub(super) fn frame(&mut self, message: &impl prost::Message) -> Result<Gather, Status> {
        let mut framed = Gather::new();
        self.writer.encoder.message(message, &self.pool, &mut framed)?;
        Ok(framed)
    }

    /// Has instances asked, where the call is about readiness and some have a say. What is wrong with the call is found
    /// by those who answer it at once.
    fn probes_instances(&self, call: CallKey, method: Method, message: &Slice) -> bool {
        let (probe, checks) = match method {
            Method::ServerReady => (Probe::Server, self.checks_of_server()),
            Method::Check => (Probe::Serving, self.checks_of_server()),
            Method::ModelReady => match decode_short::<wire::ModelReadyRequest>(message) {
                Ok(asked) => (Probe::Model, self.checks_of_model(asked.name.as_bytes(), asked.version.as_bytes())),
                Err(_) => return false,
            },
            _ => return false,
        };
        if checks.is_empty() {
            return false;
        }
        self.ask_instances(call, Protocol::Grpc, probe, &checks);
        true
    }

    /// The RPCs that are answered at once.
    fn manage(&mut self, method: Method, message: &Slice) -> Result<Gather, Status> {
        match method {
            Method::ServerLive => {
                decode_short::<wire::ServerLiveRequest>(message)?;
                let live = self.is_live()?;
                self.frame(&wire::ServerLiveResponse { live })
            }
            Method::ServerReady => {
                decode_short::<wire::ServerReadyRequest>(message)?;
                let ready = self.is_ready()?;
                self.probe_message(Probe::Server, ready)
            }
            Method::Check => {
                decode_short::<HealthCheckRequest>(message)?;
                let ready = self.is_ready()?;
                self.probe_message(Probe::Serving, ready)
            }
            Method::ModelReady => {
                let request: wire::ModelReadyRequest = decode_short(message)?;
                let ready = self.is_model_ready(request.name.as_bytes(), request.version.as_bytes())?;
                self.probe_message(Probe::Model, ready)
            }
            Method::ServerMetadata => {
                decode_short::<wire::ServerMetadataRequest>(message)?;
                let metadata = self.server_message();
                self.frame(&metadata)
            }
            Method::ModelMetadata => {
                let request: wire::ModelMetadataRequest = decode_short(message)?;
                let facts = self.model_facts(request.name.as_bytes(), request.version.as_bytes())?;
                self.frame(&facts.to_message())
            }
            Method::ModelConfig => {
                let request: wire::ModelConfigRequest = decode_short(message)?;
                let model = self.find(request.name.as_bytes(), request.version.as_bytes())?;
                self.frame(&wire::ModelConfigResponse { config: Some(model.spec.config.clone()) })
            }
            Method::ModelStatistics => {
                let request: wire::ModelStatisticsRequest = decode_short(message)?;
                self.check_not_exiting()?;
                let version = crate::repository::parse_version(request.version.as_bytes())?;
                let models = self.models.statistics_of(request.name.as_bytes(), version)?;
                let response = statistics::to_message(&models);
                self.frame(&response)
            }
            Method::TraceSetting => {
                let response = self.trace_setting(&decode_short(message)?)?;
                self.frame(&response)
            }
            Method::LogSettings => {
                let response = logging::log_settings(&decode_short(message)?)?;
                self.frame(&response)
            }
            // These have their own ways in.
            Method::ModelInfer
            | Method::ModelStreamInfer
            | Method::RepositoryIndex
            | Method::RepositoryModelLoad
            | Method::RepositoryModelUnload
            | Method::SystemSharedMemoryStatus
            | Method::SystemSharedMemoryRegister
            | Method::SystemSharedMemoryUnregister
            | Method::CudaSharedMemoryStatus
            | Method::CudaSharedMemoryRegister
            | Method::CudaSharedMemoryUnregister => {
                Err(Status { code: StatusCode::Internal, message: "Unable to parse request".into() })
            }
        }
    }
}
