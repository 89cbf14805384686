//! The service of one shard: it turns routes and RPCs into requests, and responses into answers.
//!
//! [`Api`] exists once per shard; its transport calls it, and it never blocks. [`Api`] hands each call to the part that
//! it concerns. Everything that outlives a call lies in one slab under generational tokens ([`calls`]): a request being
//! decoded, one that waits for its model, a stream. An answer whose token is stale belongs to a client that left, and
//! is dropped.

mod access;
mod audit;
mod awaiting;
mod calls;
mod clouds;
mod coding;
mod containment;
pub mod documents;
mod error;
mod facts;
mod forwarding;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod grpc;
mod http;
pub mod infer;
mod infer_context;
mod load_reports;
mod mail;
mod management;
mod openai;
mod plan_cache;
mod preparing;
mod recording;
mod response_router;
pub mod routes;
mod send_window;
mod steps;
mod timing;
mod watch;

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use crate::repository::{Lifecycle, ModelMap};
use calls::Calls;
use calls::delays::DelayedStep;
use calls::work::Work;
use clouds::sagemaker::SageMakerPort;
use clouds::vertex::VertexPort;
use coding::packing::Packing;
use containment::contained;
use grpc::inference::{GrpcInfer, RecurringCall};
use grpc::reflection;
use grpc::reflection::Reflector;
use grpc::reflection::stream::ReflectionStream;
use grpc::streams::Streams;
use grpc::streams::stream::Stream;
use http::chunked_replies::ChunkedReplies;
use http::inference::HttpInfer;
use http::inspect_page::InspectPage;
use http::metrics_page::MetricsPage;
use http::ports::{HttpPorts, HttpRequest};
use infer_context::InferContext;
use load_reports::LoadReports;
use load_reports::streams::{self as load_streams, LoadStreams};
use management::Management;
use nereid_memory::{CallLedger, Pool, Slice};
use nereid_mutants::{self as mutants, Mutant};
use nereid_observe::load::Monitor;
use nereid_observe::metrics::Registry;
use nereid_protocol::grpc::{Code, Message, Outline};
use nereid_protocol::service::{
    Arrived, CallKey, GrpcPlan, GrpcService, GrpcStatus, HttpReply, HttpService, MetadataEntry, Panicked, Port,
    Recurring, Replies, Service, Token,
};
use nereid_protocol::{http1, http2};
use nereid_queue::Actor;
use nereid_request::{Sink, local_delivery};
use openai::port::OpenAiPort;
use plan_cache::{PlanCache, grpc_requests};
use preparing::end_preparing;
use recording::RequestRecorder;
use response_router::ResponseRouter;
use steps::PackingBudget;
use watch::{Arrival, Watches};

pub use access::{Access, GivenKey, Restrictions};
pub use calls::CallBounds;
pub use clouds::sagemaker::settings::{Inference, SageMaker};
pub use clouds::vertex::settings::Vertex;
pub use facts::{EXTENSIONS, Facts, Probes, Records, SERVER_VERSION, ServerState, Settings};
pub use forwarding::HeaderPattern;
pub use http::inspect_page::{InspectQuery, RenderInspect};
pub use load_reports::Orca;
pub use mail::{Control, Mail, Post, RenderMetrics};
pub use openai::OpenAi;
pub use openai::access::{ApiKey, GROUPS as OPENAI_GROUPS, Gate, RestrictedGroups};
pub use openai::limits::{Bucket, RateLimit};
pub use openai::metrics::Metrics as OpenAiMetrics;
pub use openai::models::{Models as OpenAiModels, load_language};
pub use openai::threads::Threads as OpenAiThreads;

/// One shard's service.
pub struct Api {
    context: InferContext,
    http: HttpPorts,
    grpc: GrpcInfer,
    streams: Streams,
    responses: ResponseRouter,
    management: Management,
    reflector: Reflector,
    load_streams: LoadStreams,
    openai: OpenAiPort,
    /// Where requests are recorded.
    recorder: Option<Box<RequestRecorder>>,
}

/// What a service is created from.
pub struct Parts {
    pub facts: Arc<Facts>,
    pub models: Arc<ModelMap>,
    pub lifecycle: Arc<Lifecycle>,
    pub pool: Pool,
    /// Where models send answers to requests of this shard.
    pub sink: Arc<dyn Sink>,
    pub post: Post,
    pub control: Control,
    pub render_metrics: RenderMetrics,
    /// Writes the snapshot of the inspect page; none: the metrics port has no such page.
    pub render_inspect: Option<RenderInspect>,
    /// Metrics of backends, some of which answers report.
    pub metrics: Arc<Registry>,
    /// The load that others report; none: they report none.
    pub load: Option<Arc<Monitor>>,
    pub call_bounds: CallBounds,
}

impl Api {
    pub fn new(parts: Parts) -> Api {
        let Parts { facts, models, lifecycle, pool, sink, post, .. } = parts;
        let Parts { control, render_metrics, render_inspect, metrics, load, call_bounds, .. } = parts;
        let settings = &facts.settings;
        let demand = lifecycle.demand().cloned();
        let render_inspect = render_inspect.filter(|_| settings.ui);
        let inspect_page = InspectPage::new(pool.clone(), Arc::clone(&post), Arc::clone(&control), render_inspect);
        let metrics_page = MetricsPage { pool: pool.clone(), post: Arc::clone(&post), control, render: render_metrics };
        let management = Management::new(
            Arc::clone(&facts),
            Arc::clone(&models),
            Arc::clone(&lifecycle),
            pool.clone(),
            Arc::clone(&post),
        );
        let openai = OpenAiPort::new(settings.openai.clone(), Arc::clone(&lifecycle), Arc::clone(&post));
        let sagemaker =
            SageMakerPort::new(Arc::clone(&facts), Arc::clone(&models), lifecycle, pool.clone(), Arc::clone(&post));
        let vertex = VertexPort::new(Arc::clone(&facts), Arc::clone(&models), pool.clone(), Arc::clone(&post));
        Api {
            http: HttpPorts::new(
                HttpInfer::new(settings.http_forwarded.clone()),
                (metrics_page, inspect_page),
                sagemaker,
                vertex,
            ),
            grpc: GrpcInfer::new(settings.grpc_forwarded.clone()),
            streams: Streams::default(),
            responses: ResponseRouter::new(pool.clone(), metrics),
            management,
            reflector: Reflector::new(pool.clone(), settings.orca != Orca::Off),
            load_streams: LoadStreams::default(),
            openai,
            recorder: settings
                .records
                .requests
                .as_ref()
                .map(|recorder| Box::new(RequestRecorder::new(Arc::clone(recorder), &pool))),
            context: InferContext {
                models,
                calls: Calls::new(call_bounds, settings.grpc_responses_max, sink, post, pool.clone()),
                watches: Watches::new(Arc::clone(&settings.traces)),
                plan_cache: PlanCache::new(settings.request_plan_cache),
                packing_budget: PackingBudget::of_turn(),
                load_reports: LoadReports::new(settings.orca, load),
                demand,
                resumed: None,
                access: Arc::clone(&settings.access),
                pool,
                facts,
            },
        }
    }

    /// Records the requests and the changes that were answered after the mark, and adds the load reports to the answers
    /// that get one.
    #[inline]
    fn settle(&mut self, replies: &mut Replies, mark: (usize, usize)) {
        if let Some(recorder) = &mut self.recorder {
            recorder.settle(replies, mark);
        }
        if !self.context.load_reports.is_idle() {
            self.context.load_reports.settle(replies, mark, &self.context.pool);
        }
        if let Some(audit) = &mut self.management.audit {
            audit.settle(replies, mark);
        }
    }

    /// Does one portion of the work that was put off.
    fn go_on(&mut self, replies: &mut Replies) {
        let Some(key) = self.context.calls.next_unfinished() else { return };
        self.contain_work(key, replies, |api, replies| api.go_on_with(key, replies));
    }

    /// Runs a part of the work with this key, which a panic ends.
    fn contain_work(&mut self, key: u64, replies: &mut Replies, run: impl FnOnce(&mut Api, &mut Replies)) {
        let waits_for = self.context.calls.waits_for(key);
        if contained(|| run(self, replies)).is_none() {
            self.context.resumed = None;
            self.context.calls.abandon(key, false);
            waits_for.into_iter().for_each(|one| replies.push_panicked(one));
        }
    }

    /// Runs what a call begins with, which a panic ends.
    #[inline]
    fn contain_call<R>(
        &mut self,
        panicked: Panicked,
        replies: &mut Replies,
        run: impl FnOnce(&mut Api, &mut Replies) -> R,
    ) -> Option<R> {
        let done = contained(|| run(self, replies));
        if done.is_none() {
            self.context.calls.end_issued();
            replies.push_panicked(panicked);
        }
        done
    }

    fn go_on_with(&mut self, key: u64, replies: &mut Replies) {
        let Api { context, streams, .. } = self;
        let Some(place) = context.calls.work_mut(key) else { return };
        if matches!(place, Work::Waiting(_) | Work::ChunkedReply(_)) {
            return self.responses.write_on(context, key, replies);
        }
        match std::mem::replace(place, Work::Reserved) {
            Work::Decoding { call, decoder } => http::decode::decode(context, key, call, decoder, replies),
            Work::Encoding { call, encoder } => http::answer::encode(context, Some(key), call, encoder, replies),
            Work::Copying(copying) => {
                if let Some((prepared, outcome)) = context.calls.copy_on(key, copying) {
                    end_preparing(context, streams, key, &prepared, outcome, replies);
                }
            }
            Work::Checking(checking) => {
                if let Some((prepared, outcome)) = context.calls.check_on(key, checking) {
                    end_preparing(context, streams, key, &prepared, outcome, replies);
                }
            }
            call @ Work::OpenAi(_) => {
                *place = call;
                self.openai.go_on(context, key, replies);
            }
            stream @ Work::LoadStream(_) => {
                *place = stream;
                self.load_streams.go_on(context, key, replies);
            }
            Work::AwaitingModel(awaiting) => {
                let late = awaiting.is_late();
                *place = Work::AwaitingModel(awaiting);
                if let Some(loaded) = late {
                    self.resume(key, loaded, replies);
                    self.context.resumed = None;
                }
            }
            Work::Reflection(reflection) => self.reflector.go_on(&mut context.calls, key, reflection, replies),
            Work::UnpackingBody(packed) => HttpInfer::unpack_body(context, key, packed, replies),
            Work::UnpackingCall(packed) => GrpcInfer::unpack_call(context, &mut self.management, key, packed, replies),
            Work::Packing(answer) => context.calls.pack(Some(key), answer, replies),
            stream @ Work::Stream(_) => {
                *place = stream;
                streams.go_on(context, Token(key), None, replies);
            }
            other => *place = other,
        }
    }

    /// Does what a debug variable has delayed.
    fn go_on_delayed(&mut self, step: DelayedStep, replies: &mut Replies) {
        let Api { context, streams, .. } = self;
        match step {
            DelayedStep::Delivered { key, delivery } => {
                self.responses.delivered_now(context, streams, key, *delivery, replies);
            }
            DelayedStep::Cancelled { key } => context.calls.cancel(key),
            DelayedStep::Submit { key } => {
                if let Some((prepared, status)) = context.calls.submit_delayed(key) {
                    end_preparing(context, streams, key, &prepared, Err(status), replies);
                }
            }
        }
    }
}

impl HttpService for Api {
    fn http_rules(&self, port: Port) -> http1::IntakeRules {
        HttpInfer::intake_rules(&self.context, port)
    }

    fn refuse_http(&mut self, port: Port, head: &http1::Head) -> Option<http1::Response> {
        if port == Port::OpenAi || (port == Port::Http && self.openai.is_beside(head.path())) {
            let refusal = self.openai.refuse(&self.context, port, head);
            if let (Some(refusal), Some(audit)) = (&refusal, &self.management.audit) {
                audit.refused_http(Port::OpenAi, head, &self.context.access, refusal.head.status);
            }
            return refusal;
        }
        let refusal = HttpInfer::refuse_body(&self.context, port, head);
        if let (Some(refusal), Some(audit)) = (&refusal, &self.management.audit) {
            audit.refused_http(port, head, &self.context.access, refusal.head.status);
        }
        refusal
    }

    #[inline]
    fn times_http(&self) -> bool {
        self.context.facts.settings.traces.is_on()
    }

    fn http(
        &mut self,
        call: CallKey,
        port: Port,
        head: &http1::Head,
        body: Slice,
        since_ns: Option<u64>,
        replies: &mut Replies,
    ) -> Option<Token> {
        let mark = replies.mark();
        if let Some(recorder) = &mut self.recorder
            && port == Port::Http
        {
            recorder.begin_http(call, head, &body, &self.context.access);
        }
        let token = self.contain_call(Panicked::Call(call), replies, |api, replies| {
            let Api { context, management, http, openai, .. } = api;
            let arrival = since_ns.filter(|_| context.watches.times_http(head)).map(Arrival::since);
            if port == Port::OpenAi || (port == Port::Http && openai.is_beside(head.path())) {
                if let Some(audit) = &mut management.audit {
                    let request = audit::HttpRequest { port: Port::OpenAi, head, body: None };
                    audit.begin_http(call, request, &context.access);
                }
                let request = HttpRequest { call, head, body, arrival };
                return openai.request(context, http.metrics_page(), request, replies);
            }
            let mut body = body;
            if port == Port::Http && arrival.is_none() {
                body = match HttpInfer::infer_planned(context, call, head, body, replies) {
                    Ok(token) => {
                        context.load_reports.expect_unasked(call);
                        return Some(token);
                    }
                    Err(body) => body,
                };
            }
            if let Some(audit) = &mut management.audit {
                let request = audit::HttpRequest { port, head, body: Some(&body) };
                audit.begin_http(call, request, &context.access);
            }
            let request = HttpRequest { call, head, body, arrival };
            match port {
                Port::Http | Port::Grpc => http.request(context, management, request, replies),
                port => http.request_to_port(context, management, port, request, replies),
            }
        });
        if !self.context.load_reports.is_idle()
            && let Some(token) = token.flatten()
        {
            self.context.load_reports.began(call, token);
        }
        if let (Some(recorder), Some(token)) = (&mut self.recorder, token.flatten()) {
            recorder.began(call, token);
        }
        self.settle(replies, mark);
        token.flatten()
    }
}

impl GrpcService for Api {
    type Noted = grpc_requests::RequestKey;

    fn grpc_plan(&mut self, headers: &http2::Headers) -> Result<GrpcPlan, GrpcStatus> {
        let panicked = || Err(GrpcStatus::new(Code::Internal, "an internal error ended this call"));
        let mut plan = contained(|| self.grpc.plan_call(&self.context, headers)).unwrap_or_else(panicked);
        if let (Some(recorder), Ok(plan)) = (&mut self.recorder, &mut plan) {
            recorder.plan_call(headers, plan, &self.context.access);
        }
        plan.inspect_err(|refusal| {
            if let Some(audit) = &self.management.audit {
                audit.refused_grpc(headers, refusal.code);
            }
        })
    }

    /// Whether requests are traced, and which keys are valid, can change at any time, and which calls are recorded is
    /// decided for each; everything else is in the headers.
    fn is_plan_current(&self, plan: &GrpcPlan) -> bool {
        let InferContext { access, plan_cache, facts, models, .. } = &self.context;
        let is_same = plan.access == access.number && plan.routing_number == models.routing_number();
        let may_be_recorded = self.recorder.as_ref().is_some_and(|recorder| !recorder.is_over());
        let is_new = may_be_recorded || plan.mode == nereid_protocol::grpc::Mode::Kept;
        plan_cache.is_on() && !is_new && is_same && !plan.timed && !facts.settings.traces.is_on()
    }

    fn grpc_unary(
        &mut self,
        call: CallKey,
        plan: &GrpcPlan,
        message: Message,
        arrived: Arrived<grpc_requests::RequestKey>,
        replies: &mut Replies,
    ) -> Option<Token> {
        if let Some(audit) = &mut self.management.audit {
            audit.begin_grpc(call, plan);
        }
        if let Some(recorder) = &mut self.recorder {
            recorder.begin_grpc(call, plan, &message);
        }
        let mark = replies.mark();
        let run = |api: &mut Api, replies: &mut Replies| {
            GrpcInfer::unary(&mut api.context, &mut api.management, call, plan, message, arrived, replies)
        };
        let token = self.contain_call(Panicked::Call(call), replies, run);
        if let (Some(recorder), Some(token)) = (&mut self.recorder, token.flatten()) {
            recorder.began(call, token);
        }
        self.settle(replies, mark);
        token.flatten()
    }

    fn grpc_recurring(
        &mut self,
        call: CallKey,
        plan: &GrpcPlan,
        token: &mut Option<Token>,
        deadline_ns: Option<u64>,
        outline: &Outline<'_>,
        replies: &mut Replies,
    ) -> Recurring<grpc_requests::RequestKey> {
        let one = RecurringCall { call, plan, token, deadline_ns };
        let run = |api: &mut Api, replies: &mut Replies| {
            GrpcInfer::take_recurring(&mut api.context, &mut api.streams, one, outline, replies)
        };
        self.contain_call(Panicked::Call(call), replies, run).unwrap_or(Recurring::Taken)
    }

    fn grpc_stream(
        &mut self,
        call: CallKey,
        plan: &GrpcPlan,
        headers: &http2::Headers,
        ledger: &Rc<CallLedger>,
    ) -> Option<Token> {
        if plan.method == reflection::METHOD {
            return self.context.calls.new_work(Work::Reflection(Box::new(ReflectionStream::new(call)))).ok();
        }
        if plan.method == load_streams::METHOD {
            return self.load_streams.begin(&mut self.context.calls, call);
        }
        let error_ends = headers.get(b"triton_grpc_error") == Some(b"true");
        let packing = Packing::of_grpc(plan.response_encoding, self.context.facts.settings.grpc_packing);
        let (requests_max, ledger) = (self.context.calls.requests_max, Rc::clone(ledger));
        let stream = Stream::new(call, error_ends, plan.clone(), packing, requests_max, ledger);
        self.context.calls.new_work(Work::Stream(Box::new(stream))).ok()
    }

    fn grpc_stream_message(
        &mut self,
        stream: Token,
        plan: &GrpcPlan,
        message: Message,
        arrived: Arrived<grpc_requests::RequestKey>,
        replies: &mut Replies,
    ) {
        self.contain_call(Panicked::Work(stream), replies, |api, replies| {
            if plan.method == load_streams::METHOD {
                return api.load_streams.message(&mut api.context, stream, message, replies);
            }
            api.streams.message(&mut api.context, stream, plan, message, arrived, replies);
        });
    }

    fn load_trailer(&mut self) -> Option<MetadataEntry> {
        self.context.load_reports.trailer()
    }

    fn grpc_stream_half_closed(&mut self, stream: Token, replies: &mut Replies) {
        self.contain_call(Panicked::Work(stream), replies, |api, replies| {
            Streams::half_closed(&mut api.context, stream, replies);
        });
    }
}

impl Service for Api {
    #[inline]
    fn set_peer(&mut self, peer: Option<SocketAddr>) {
        if let Some(audit) = &mut self.management.audit {
            audit.set_peer(peer);
        }
    }

    fn stream_unsent(&mut self, stream: Token, unsent: usize) {
        if let Some(send_window) = self.context.calls.send_window(stream) {
            return send_window.acknowledge(unsent);
        }
        load_streams::unsent(&mut self.context.calls, stream, unsent);
        reflection::unsent(&mut self.context.calls, stream, unsent);
    }

    fn stream_waits(&mut self, stream: Token, replies: &mut Replies) {
        self.contain_work(stream.0, replies, |api, replies| {
            let Api { context, streams, .. } = api;
            if context.calls.openai(stream).is_some() {
                openai::answering::waits(context, stream, replies);
            } else if context.calls.chunked(stream).is_some() {
                ChunkedReplies::waits(&mut context.calls, stream, replies);
            } else {
                streams.waits(context, stream, replies);
            }
        });
    }

    fn cancelled(&mut self, token: Token) {
        if mutants::is(Mutant::CancellationUnheard) {
            return;
        }
        if !self.context.load_reports.is_idle() {
            self.context.load_reports.cancelled(token);
        }
        if let Some(recorder) = &mut self.recorder {
            recorder.cancelled(token);
        }
        self.context.calls.log_cancellation(token.0);
        let by_ns = self.context.calls.delays.cancellation_ns;
        if by_ns > 0 && self.context.calls.is_grpc(token.0) {
            return self.context.calls.delay(by_ns, DelayedStep::Cancelled { key: token.0 });
        }
        self.context.calls.cancel(token.0);
    }

    fn in_flight(&self) -> usize {
        self.context.calls.in_flight()
    }
}

impl Actor for Api {
    type Mail = Mail;
    type Replies = Replies;

    fn mail(&mut self, mail: Mail, replies: &mut Replies) {
        let mark = replies.mark();
        match mail {
            Mail::Delivered { key, delivery } => {
                self.responses.delivered(&mut self.context, &mut self.streams, key, delivery, replies);
            }
            // A job that panics is dropped, and with it its request, which then has an error for an answer.
            Mail::Home(job) => drop(contained(|| job.run(&mut self.context.calls))),
            Mail::Delayed(step) => {
                let key = step.key();
                self.contain_work(key, replies, |api, replies| api.go_on_delayed(step, replies));
            }
            Mail::OpenAi { key, prepared } => {
                self.contain_work(key, replies, |api, replies| {
                    api.openai.prepared(&mut api.context, key, *prepared, replies);
                });
            }
            Mail::ModelLoaded { key, loaded } => {
                self.contain_work(key, replies, |api, replies| api.resume(key, loaded, replies));
                self.context.resumed = None;
            }
            Mail::Answered { call, response } => replies.push(call, HttpReply::Answer(response)),
            Mail::Metrics { call, format, page } => {
                self.contain_call(Panicked::Call(call), replies, |api, replies| {
                    api.http.metrics_rendered(call, format, page, replies);
                });
            }
            Mail::Models { .. } if mutants::is(Mutant::MapKept) => {}
            // A panic here ends the server: this shard would go on with the models of before.
            Mail::Models { models, acknowledge } => {
                self.management.models_changed(&models);
                self.http.models_changed(&models);
                self.context.models = models;
                if !mutants::is(Mutant::PlansKept) {
                    self.context.plan_cache.models_changed();
                }
                drop(acknowledge);
            }
            Mail::Access(access) => {
                self.http.access_changed(&access);
                self.context.plan_cache.access_changed();
                self.context.access = access;
            }
            Mail::Done { call, protocol, outcome } => {
                self.contain_call(Panicked::Call(call), replies, |api, replies| {
                    api.management.done(call, protocol, outcome, replies);
                });
            }
        }
        self.settle(replies, mark);
    }

    fn work(&mut self, replies: &mut Replies) {
        self.context.packing_budget = PackingBudget::of_turn();
        self.context.calls.begin_turn();
        self.work_on(replies);
    }

    fn work_on(&mut self, replies: &mut Replies) {
        let mark = replies.mark();
        let Api { context, streams, responses, .. } = self;
        responses.deliver_local(context, streams, replies);
        self.go_on(replies);
        self.responses.classify_on(&mut self.context, &mut self.streams, replies);
        self.settle(replies, mark);
        self.context.calls.wake_all();
    }

    fn has_work(&self) -> bool {
        self.context.calls.has_unfinished() || !self.responses.is_idle() || local_delivery::has_answers()
    }

    fn next_deadline_ns(&self) -> Option<u64> {
        self.context.calls.next_deadline_ns()
    }

    fn on_time(&mut self, now_ns: u64) {
        self.context.calls.on_time(now_ns);
    }
}
