//! What messages mean: routes and RPCs become requests, responses become answers.
//!
//! One value a shard, called by its transport and never blocking. Everything that outlives a call lies in one slab
//! under generational tokens: a request being decoded, one that waits for its model, a stream. An answer whose token
//! is stale belongs to a client that left, and is dropped.

mod access;
mod calls;
mod checking;
mod chunked_reply;
mod classifying;
mod clouds;
mod copying;
mod delays;
mod dialect;
pub mod documents;
mod error;
mod events;
mod facts;
mod forwarding;
mod generate;
mod grpc_service;
mod http_infer;
mod http_log;
mod http_service;
pub mod infer;
mod int32;
mod mail;
mod management;
mod methods;
mod metrics_page;
mod packing;
mod plan_cache;
mod preparing;
mod reflection;
pub mod routes;
mod sagemaker;
mod sagemaker_models;
mod send_window;
mod steps;
mod stream;
mod timing;
mod unpacking;
mod vertex;
mod watch;

use std::sync::Arc;

use crate::repository::{Lifecycle, ModelMap, parse_version};
use calls::Calls;
use chunked_reply::ChunkedReplies;
use classifying::Classifier;
use management::Management;
use nereid_memory::{Pool, Slice};
use nereid_observe::metrics::Registry;
use nereid_protocol::service::{
    Arrived, CallKey, GrpcPlan, GrpcService, GrpcStatus, HttpReply, HttpService, Port, Recurring, Replies, Service,
    Token,
};
use nereid_protocol::{grpc, http1, http2};
use nereid_queue::Actor;
use nereid_request::{Delivery, Sink, Status, local_delivery};
use nereid_scheduler::ServedModel;
use plan_cache::{PlanCache, grpc_requests};
use reflection::Reflector;
use sagemaker::SageMakerPort;
use steps::UNPACKING_STEPS_A_TURN;
use vertex::VertexPort;
use watch::{Arrival, Watches};

pub use sagemaker::{Inference, SageMaker};
pub use vertex::Vertex;

pub use access::Restrictions;
pub use facts::{EXTENSIONS, Facts, SERVER_VERSION, ServerState, Settings};
pub use forwarding::HeaderPattern;
pub use mail::{Control, Mail, Post, RenderMetrics};

/// One shard's service.
pub struct Api {
    facts: Arc<Facts>,
    models: Arc<ModelMap>,
    pool: Pool,
    metrics_page: metrics_page::MetricsPage,
    management: Management,
    sagemaker: SageMakerPort,
    vertex: VertexPort,
    reflector: Reflector,
    chunked_replies: ChunkedReplies,
    grpc_encoder: grpc::Encoder,
    calls: Calls,
    classifier: Classifier,
    /// Empty, for answers to what this shard executes itself.
    answers: Vec<(u64, Delivery)>,
    watches: Watches,
    /// Of the settings, for this shard alone: what a pattern needs to search is not shared.
    http_forwarded: Option<HeaderPattern>,
    grpc_forwarded: Option<HeaderPattern>,
    /// Steps of unpacking and packing messages that this turn has left.
    unpacking_left: usize,
    plan_cache: PlanCache,
}

/// What a service is made of.
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
    /// Metrics of backends, some of which answers report.
    pub metrics: Arc<Registry>,
    /// Requests and streams at a time.
    pub waiting_max: usize,
}

impl Api {
    pub fn new(parts: Parts) -> Api {
        let Parts { facts, models, lifecycle, pool, sink, post, control, render_metrics, metrics, waiting_max } = parts;
        let (http_forwarded, grpc_forwarded) =
            (facts.settings.http_forwarded.clone(), facts.settings.grpc_forwarded.clone());
        let plan_cache = PlanCache::new(facts.settings.request_plan_cache);
        let metrics_page =
            metrics_page::MetricsPage { pool: pool.clone(), post: Arc::clone(&post), control, render: render_metrics };
        let management = Management::new(
            Arc::clone(&facts),
            Arc::clone(&models),
            Arc::clone(&lifecycle),
            pool.clone(),
            Arc::clone(&post),
        );
        let sagemaker =
            SageMakerPort::new(Arc::clone(&facts), Arc::clone(&models), lifecycle, pool.clone(), Arc::clone(&post));
        let vertex = VertexPort {
            facts: Arc::clone(&facts),
            models: Arc::clone(&models),
            pool: pool.clone(),
            post: Arc::clone(&post),
        };
        let reflector = Reflector::new(pool.clone());
        let chunked_replies = ChunkedReplies { pool: pool.clone(), metrics };
        let watches = Watches::new(Arc::clone(&facts.settings.traces));
        Api {
            facts,
            models,
            pool,
            metrics_page,
            management,
            sagemaker,
            vertex,
            reflector,
            chunked_replies,
            grpc_encoder: grpc::Encoder::default(),
            calls: Calls::new(waiting_max, sink, post),
            classifier: Classifier::default(),
            answers: Vec::new(),
            watches,
            http_forwarded,
            grpc_forwarded,
            unpacking_left: UNPACKING_STEPS_A_TURN,
            plan_cache,
        }
    }

    /// The model that a request names, by texts of the wire.
    fn find(&self, model: &[u8], version: &[u8]) -> Result<Arc<ServedModel>, Status> {
        self.models.lookup(model, parse_version(version)?).cloned()
    }
}

impl HttpService for Api {
    fn http_rules(&self, port: Port) -> http1::IntakeRules {
        self.rules_of(port)
    }

    fn refuse_http(&mut self, port: Port, head: &http1::Head) -> Option<http1::Response> {
        self.refuse_body(port, head)
    }

    #[inline]
    fn times_http(&self) -> bool {
        self.facts.settings.traces.is_on()
    }

    fn http(
        &mut self,
        call: CallKey,
        port: Port,
        head: &http1::Head,
        mut body: Slice,
        since_ns: Option<u64>,
        replies: &mut Replies,
    ) -> Option<Token> {
        let arrival = since_ns.filter(|_| self.watches.times_http(head)).map(Arrival::since);
        if port == Port::Http && arrival.is_none() {
            body = match self.infer_planned(call, head, body, replies) {
                Ok(token) => return Some(token),
                Err(body) => body,
            };
        }
        match port {
            Port::Metrics => {
                self.metrics_page.http(call, head, replies);
                None
            }
            Port::SageMaker => self.http_sagemaker(call, head, body, arrival, replies),
            Port::Vertex => self.http_vertex(call, head, body, arrival, replies),
            Port::Http | Port::Grpc => self.http_request(call, head, body, arrival, replies),
        }
    }
}

impl GrpcService for Api {
    type Noted = grpc_requests::RequestKey;

    fn grpc_plan(&mut self, headers: &http2::Headers) -> Result<GrpcPlan, GrpcStatus> {
        self.plan_call(headers)
    }

    /// Whether requests are traced can change at any time; everything else is in the headers.
    fn is_plan_current(&self, plan: &GrpcPlan) -> bool {
        self.plan_cache.is_on() && !plan.timed && !self.facts.settings.traces.is_on()
    }

    fn grpc_unary(
        &mut self,
        call: CallKey,
        plan: &GrpcPlan,
        message: grpc::Message,
        arrived: Arrived<grpc_requests::RequestKey>,
        replies: &mut Replies,
    ) -> Option<Token> {
        self.unary(call, plan, message, arrived, replies)
    }

    fn grpc_recurring(
        &mut self,
        call: CallKey,
        plan: &GrpcPlan,
        token: &mut Option<Token>,
        message: &[u8],
        replies: &mut Replies,
    ) -> Recurring<grpc_requests::RequestKey> {
        self.take_recurring(call, plan, token, message, replies)
    }

    fn grpc_stream(&mut self, call: CallKey, plan: &GrpcPlan, headers: &http2::Headers) -> Option<Token> {
        if plan.method == reflection::METHOD {
            return self.calls.new_work(calls::Work::Reflection(Box::new(reflection::Reflection::new(call)))).ok();
        }
        let error_ends = headers.get(b"triton_grpc_error") == Some(b"true");
        let packing = packing::Packing::of_grpc(plan.response_encoding, self.facts.settings.grpc_packing);
        let stream = stream::Stream::new(call, error_ends, plan.clone(), packing, self.calls.requests_max);
        self.calls.new_work(calls::Work::Stream(Box::new(stream))).ok()
    }

    fn grpc_stream_message(
        &mut self,
        stream: Token,
        plan: &GrpcPlan,
        message: grpc::Message,
        arrived: Arrived<grpc_requests::RequestKey>,
        replies: &mut Replies,
    ) {
        self.stream_message(stream, plan, message, arrived, replies);
    }

    fn grpc_stream_half_closed(&mut self, stream: Token, replies: &mut Replies) {
        self.stream_half_closed(stream, replies);
    }
}

impl Service for Api {
    fn stream_unsent(&mut self, stream: Token, unsent: usize) {
        if let Some(send_window) = self.calls.send_window(stream) {
            return send_window.took(unsent);
        }
        reflection::unsent(&mut self.calls, stream, unsent);
    }

    fn stream_waits(&mut self, stream: Token, replies: &mut Replies) {
        match self.calls.chunked(stream).is_some() {
            true => ChunkedReplies::waits(&mut self.calls, stream, replies),
            false => self.stream_waits(stream, replies),
        }
    }

    fn cancelled(&mut self, token: Token) {
        self.calls.log_cancellation(token.0);
        let by_ns = self.calls.delays.cancellation_ns;
        if by_ns > 0 && self.calls.is_grpc(token.0) {
            return self.calls.put_off(by_ns, delays::Late::Cancelled { key: token.0 });
        }
        self.calls.cancel(token.0);
    }

    fn in_flight(&self) -> usize {
        self.calls.in_flight()
    }
}

impl Actor for Api {
    type Mail = Mail;
    type Replies = Replies;

    fn mail(&mut self, mail: Mail, replies: &mut Replies) {
        match mail {
            Mail::Delivered { key, delivery } => self.delivered(key, delivery, replies),
            Mail::Home(job) => job.run(&mut self.calls),
            Mail::Late(late) => self.late(late, replies),
            Mail::Answered { call, response } => replies.push(call, HttpReply::Answer(response)),
            Mail::Metrics { call, page } => self.metrics_page.rendered(call, page, replies),
            Mail::Models { models, acknowledge } => {
                self.management.models = Arc::clone(&models);
                self.sagemaker.models = Arc::clone(&models);
                self.vertex.models = Arc::clone(&models);
                self.models = models;
                self.plan_cache.models_changed();
                drop(acknowledge);
            }
            Mail::Done { call, protocol, outcome } => self.management.done(call, protocol, outcome, replies),
        }
    }

    fn work(&mut self, replies: &mut Replies) {
        self.unpacking_left = UNPACKING_STEPS_A_TURN;
        // No more than this turn's requests have brought.
        let mut answers = std::mem::take(&mut self.answers);
        local_delivery::swap_answers(&mut answers);
        for (key, delivery) in answers.drain(..) {
            self.delivered(key, delivery, replies);
        }
        self.answers = answers;
        self.go_on(replies);
        self.classify_on(replies);
        self.calls.wake_all();
    }

    fn has_work(&self) -> bool {
        self.calls.has_unfinished() || !self.classifier.is_idle() || local_delivery::has_answers()
    }

    fn next_deadline_ns(&self) -> Option<u64> {
        self.calls.next_deadline_ns()
    }

    fn on_time(&mut self, now_ns: u64) {
        self.calls.on_time(now_ns);
    }
}
