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
mod forwarding;
mod generate;
mod grpc_service;
mod http_infer;
mod http_service;
pub mod infer;
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
mod stream;
mod timing;
mod unpacking;
mod vertex;
mod watch;

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::Sender;

use crate::repository::{Lifecycle, ModelMap, parse_version};
use calls::Calls;
use chunked_reply::ChunkedReplies;
use classifying::Classifier;
use management::Management;
use nereid_gpu::Gpus;
use nereid_memory::{Gather, Pool, Slice};
use nereid_observe::metrics::Registry;
use nereid_observe::trace::Traces;
use nereid_protocol::compression::Level;
use nereid_protocol::service::{
    Arrived, CallKey, GrpcPlan, GrpcService, GrpcStatus, HttpReply, HttpService, Port, Recurring, Replies, Service,
    Token,
};
use nereid_protocol::{grpc, http1, http2};
use nereid_queue::Actor;
use nereid_request::{Delivery, Job, SharedMemory, Sink, Status, local_delivery};
use nereid_scheduler::ServedModel;
use plan_cache::{PlanCache, grpc_requests};
use reflection::Reflector;
use sagemaker::SageMakerPort;
use vertex::VertexPort;
use watch::{Arrival, Watches};

pub use sagemaker::{Inference, SageMaker};
pub use vertex::Vertex;

pub use access::Restrictions;
pub use forwarding::HeaderPattern;

/// Version that this server answers to: the release whose contract it keeps.
pub const SERVER_VERSION: &str = "2.75.0";

/// The extensions (contract/http.md section 3 has the order).
pub const EXTENSIONS: [&str; 13] = [
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "cuda_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ServerState {
    Starting = 0,
    Ready = 1,
    /// Everything is served, and clients are asked to go elsewhere: not ready.
    Leaving = 2,
    Exiting = 3,
    /// It could not start and was told to stay all the same: it answers that it is neither live nor ready.
    Failed = 4,
}

/// What the command line says to those who speak with clients.
#[derive(Debug)]
pub struct Settings {
    pub id: String,
    pub strict_readiness: bool,
    /// The server is live as long as no device is broken for good.
    pub strict_device_liveness: bool,
    /// `--http-max-input-size`.
    pub http_input_bytes_max: usize,
    /// `--grpc-max-response-pool-size`.
    pub grpc_responses_max: u32,
    /// `--allow-client-shm`.
    pub allow_client_shm: bool,
    /// The devices whose memory clients may register.
    pub gpus: Arc<Gpus>,
    pub traces: Arc<Traces>,
    pub sagemaker: SageMaker,
    /// `None`: the port is off.
    pub vertex: Option<Vertex>,
    /// `--http-restricted-api` and `--grpc-restricted-protocol`.
    pub http_restrictions: Restrictions,
    pub grpc_restrictions: Restrictions,
    /// `--http-header-forward-pattern` and `--grpc-header-forward-pattern`.
    pub http_forwarded: Option<HeaderPattern>,
    pub grpc_forwarded: Option<HeaderPattern>,
    /// `--grpc-infer-response-compression-level`.
    pub grpc_packing: Option<Level>,
    /// `--request-plan-cache`.
    pub request_plan_cache: bool,
}

/// What all shards know of the server.
#[derive(Debug)]
pub struct Facts {
    pub settings: Settings,
    /// What SageMaker brought.
    sagemaker_models: Arc<sagemaker_models::SageMakerModels>,
    state: AtomicU8,
    /// Answers that came for clients who had left.
    pub stale_deliveries: AtomicU64,
    /// Shared memory that clients have registered.
    pub regions: SharedMemory,
}

impl Facts {
    pub fn new(settings: Settings) -> Facts {
        let state = AtomicU8::new(ServerState::Starting as u8);
        let regions = SharedMemory::new(Arc::clone(&settings.gpus));
        Facts { settings, sagemaker_models: Arc::default(), state, stale_deliveries: AtomicU64::new(0), regions }
    }

    pub fn state(&self) -> ServerState {
        match self.state.load(Ordering::Acquire) {
            0 => ServerState::Starting,
            1 => ServerState::Ready,
            2 => ServerState::Leaving,
            3 => ServerState::Exiting,
            _ => ServerState::Failed,
        }
    }

    pub fn set_state(&self, state: ServerState) {
        self.state.store(state as u8, Ordering::Release);
    }
}

/// What other threads post to a shard's service.
pub enum Mail {
    /// A model answered.
    Delivered { key: u64, delivery: Delivery },
    /// Something about a request whose home is this shard.
    Home(Box<dyn Job>),
    /// Something that was put off.
    Late(delays::Late),
    /// The metrics page that a call asked for; none where nobody could make it.
    Metrics { call: CallKey, page: Option<Gather> },
    /// What a control thread answers to a call.
    Answered { call: CallKey, response: http1::Response },
    /// Models came or went. The sender is dropped once this shard uses the new map.
    Models { models: Arc<ModelMap>, acknowledge: Sender<()> },
    /// A control thread has done what a call asked for.
    Done { call: CallKey, protocol: management::Protocol, outcome: Result<management::Outcome, Status> },
}

impl From<(u64, Delivery)> for Mail {
    #[inline]
    fn from((key, delivery): (u64, Delivery)) -> Mail {
        Mail::Delivered { key, delivery }
    }
}

impl From<Box<dyn Job>> for Mail {
    #[inline]
    fn from(job: Box<dyn Job>) -> Mail {
        Mail::Home(job)
    }
}

/// Steps of unpacking and packing in one turn, most of them of a few microseconds: long ones are counted apart.
const UNPACKING_STEPS_A_TURN: usize = 48;

/// Runs a job away from the shards.
pub type Control = Arc<dyn Fn(Box<dyn FnOnce() + Send>) + Send + Sync>;
/// Posts to this shard from anywhere.
pub type Post = Arc<dyn Fn(Mail) + Send + Sync>;
/// Renders the metrics page; slow, so it runs on a control thread.
pub type RenderMetrics = Arc<dyn Fn() -> String + Send + Sync>;

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
