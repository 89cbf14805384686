//! The server under the simulation: shards with their transports and services, as `server::shards` assembles them, in
//! one thread.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, OnceLock};

use nereid_memory::{Peers, Pool};
use nereid_net::{Gauges, HandOver, Keepalive, Listener, Mail, Net, Shares};
use nereid_observe::trace::{TraceOptions, Traces};
use nereid_protocol::grpc;
use nereid_protocol::service::Port;
use nereid_protocol::slow_peers::SlowPeers;
use nereid_queue::{Post, Spin};
use nereid_request::{Delivery, Job, ShardSink, local_delivery};
use nereid_scheduler::ModelBounds;
use nereid_scheduler::validate::tensors_looked_at_max;
use nereid_shard::{Core, Load, MailOf, Mailbox, Monotonic, Shard, mailbox};
use tritonserver::api::{self, Api, Facts};
use tritonserver::repository::{ControlMode, Lifecycle, ModelMap, Settings};

use crate::engine::{EngineState, Simulated};
use crate::network::Network;
use crate::random::Random;

pub const SHARDS: usize = 2;
/// The listeners, by the engine's number of each.
pub const HTTP: usize = 0;
pub const GRPC: usize = 1;
const TIMERS_MAX: usize = 1 << 16;

type ShardMail = MailOf<Net<Api>>;

/// The bounds of a run.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    pub pool_bytes: usize,
    pub connection_bytes: usize,
    pub connections: usize,
    pub waiting: usize,
    pub chunks: usize,
    pub responses: u32,
    pub slow_peer_s: u32,
}

/// Posts to a shard, and notes that it has mail.
struct Posts {
    mailbox: Mailbox<ShardMail>,
    has_mail: Arc<AtomicBool>,
}

impl Clone for Posts {
    fn clone(&self) -> Posts {
        Posts { mailbox: self.mailbox.clone(), has_mail: Arc::clone(&self.has_mail) }
    }
}

impl Posts {
    fn post(&self, mail: impl Into<ShardMail>) {
        self.has_mail.store(true, Ordering::Relaxed);
        self.mailbox.post(mail);
    }
}

impl Post<(u64, Delivery)> for Posts {
    fn post(&self, mail: (u64, Delivery)) {
        Posts::post(self, nereid_shard::Mail::Actor(mail.into()));
    }
}

impl Post<Box<dyn Job>> for Posts {
    fn post(&self, mail: Box<dyn Job>) {
        Posts::post(self, nereid_shard::Mail::Actor(mail.into()));
    }
}

/// Jobs for the control thread.
type Jobs = Arc<Mutex<VecDeque<Box<dyn FnOnce() + Send>>>>;

pub struct Server {
    shards: Vec<Shard<Net<Api>>>,
    posts: Vec<Posts>,
    pub engines: Vec<Rc<EngineState>>,
    pub gauges: Vec<Arc<Gauges>>,
    pub pool: Pool,
    pub loads: Load,
    pub jobs: Jobs,
    /// What each shard has put aside for itself (`local_delivery`), while it is not its turn.
    aside: Vec<Vec<(u64, Delivery)>>,
}

/// It has no repository: routes of the life cycle answer that there is none.
fn lifecycle() -> Arc<Lifecycle> {
    static LIFECYCLE: OnceLock<Arc<Lifecycle>> = OnceLock::new();
    let new = || {
        Lifecycle::new(Settings {
            scheduling: Default::default(),
            stalls: None,
            host: Default::default(),
            gpus: Arc::default(),
            plugins: nereid_backend::plugin::no_libraries,
            agents: Default::default(),
            residency: Default::default(),
            keep_generations: 0,
            keeps_provenance: false,
            stores: Vec::new(),
            mode: ControlMode::None,
            startup_models: Vec::new(),
            auto_complete: false,
            config_name: None,
            namespacing: false,
            load_thread_count: 1,
            load_retry_count: 0,
            backend_directory: "/nowhere".into(),
            min_compute_capability: 0.0,
            backend_settings: Arc::new(|_| Vec::new()),
            worker_cpus: Vec::new(),
            worker_cpu_count: 1,
            worker_spin: Spin::default(),
            host_policies: Default::default(),
            pool: Pool::new(1 << 20),
            metrics: Default::default(),
            metrics_config: Default::default(),
        })
    };
    Arc::clone(LIFECYCLE.get_or_init(new))
}

fn facts(bounds: &Bounds) -> Arc<Facts> {
    static TRACES: OnceLock<Arc<Traces>> = OnceLock::new();
    let traces = TRACES.get_or_init(|| Arc::new(Traces::new(TraceOptions::default()).expect("no thread is started")));
    let facts = Facts::new(api::Settings {
        traces: Arc::clone(traces),
        id: "simulated".to_owned(),
        strict_readiness: true,
        strict_device_liveness: false,
        http_input_bytes_max: 64 << 20,
        grpc_responses_max: bounds.responses,
        allow_client_shm: false,
        gpus: Arc::default(),
        sagemaker: api::SageMaker::read("", "", "").expect("the defaults"),
        vertex: None,
        openai: None,
        access: Default::default(),
        records: Default::default(),
        http_forwarded: None,
        grpc_forwarded: None,
        grpc_packing: None,
        request_plan_cache: true,
        orca: Default::default(),
        probes: Default::default(),
        ui: false,
    });
    facts.set_state(api::ServerState::Ready);
    Arc::new(facts)
}

impl Server {
    pub fn new(
        (bounds, pool): (Bounds, Pool),
        models: &Arc<ModelMap>,
        network: &Rc<RefCell<Network>>,
        random: &mut Random,
    ) -> Server {
        let (loads, jobs, facts) = (Load::new(SHARDS), Jobs::default(), facts(&bounds));
        let (mut posts, mut inboxes) = (Vec::new(), Vec::new());
        for _ in 0..SHARDS {
            let (mailbox, inbox) = mailbox::<ShardMail>().expect("a waker");
            posts.push(Posts { mailbox, has_mail: Arc::default() });
            inboxes.push(inbox);
        }
        let hand_over: HandOver = {
            let posts = posts.clone();
            Arc::new(move |fd, listener, load_guard| {
                if let Some(post) = posts.get(load_guard.shard()) {
                    post.post(Mail::Accepted { fd, listener, load_guard });
                }
            })
        };
        let mut server = Server {
            shards: Vec::new(),
            posts: posts.clone(),
            engines: Vec::new(),
            gauges: Vec::new(),
            pool: pool.clone(),
            loads: loads.clone(),
            jobs: Arc::clone(&jobs),
            aside: (0..SHARDS).map(|_| Vec::new()).collect(),
        };
        // As by default: a client and a model have three quarters, a connection half of its shard's calls.
        let part = |whole: usize| whole - whole / 4;
        let of_model = ModelBounds { calls: part(bounds.waiting * SHARDS), bytes: part(bounds.pool_bytes) };
        for (shard, inbox) in inboxes.into_iter().enumerate() {
            let (state, gauges): (Rc<EngineState>, Arc<Gauges>) = Default::default();
            let of_network = (Rc::clone(network), Rc::clone(&state));
            let sizes = (nereid_net::CONNECTIONS_MAX, bounds.chunks);
            let engine = Simulated::new(shard, of_network, sizes, inbox.waker(), Random::new(random.next()));
            let mut core = Core::new(Box::new(engine), Rc::new(Monotonic), pool.clone(), TIMERS_MAX);
            let mut listeners = Vec::new();
            if shard == 0 {
                for (id, port) in [Port::Http, Port::Grpc].into_iter().enumerate() {
                    let socket: OwnedFd = std::fs::File::open("/dev/null").expect("a descriptor").into();
                    core.engine.listen(socket, id).expect("an unused listener");
                    listeners.push(Listener { port, tls: false });
                }
            }
            let (post, control) = (posts[shard].clone(), Arc::clone(&jobs));
            let service = Api::new(api::Parts {
                facts: Arc::clone(&facts),
                models: Arc::clone(models),
                lifecycle: lifecycle(),
                pool: pool.clone(),
                sink: Arc::new(ShardSink::new(post.clone(), pool.clone())),
                post: Arc::new(move |mail| post.post(nereid_shard::Mail::Actor(mail))),
                control: Arc::new(move |job| control.lock().expect("one thread").push_back(job)),
                render_metrics: Arc::new(|_| Vec::new()),
                render_inspect: None,
                metrics: Default::default(),
                load: None,
                call_bounds: api::CallBounds { requests_max: bounds.waiting, of_model },
            });
            let net = Net::new(nereid_net::Parts {
                service,
                pool: pool.clone(),
                shares: Shares {
                    connection: bounds.connection_bytes,
                    connection_calls: bounds.waiting / 2,
                    clients: Arc::new(Peers::new(bounds.pool_bytes, part(bounds.waiting * SHARDS))),
                    connections: bounds.connections,
                    waiting: bounds.waiting,
                },
                grpc_limits: grpc::Limits { tensors_max: tensors_looked_at_max, ..grpc::Limits::default() },
                shard,
                listeners,
                secure: None,
                ipc: None,
                keepalive: Keepalive { time_ms: 60_000, timeout_ms: 5_000, ..Keepalive::default() },
                slow_peers: SlowPeers { window_s: bounds.slow_peer_s, rate_min: 1, request_s: 600 },
                recognises_heads: true,
                loads: loads.clone(),
                hand_over: Arc::clone(&hand_over),
                gauges: Arc::clone(&gauges),
            });
            server.shards.push(Shard::new(net, core, inbox));
            server.engines.push(state);
            server.gauges.push(gauges);
        }
        server
    }

    /// One turn of a shard; true if there may be more to do at once.
    pub fn turn(&mut self, shard: usize, may_park: bool) -> bool {
        self.posts[shard].has_mail.store(false, Ordering::Relaxed);
        local_delivery::swap_answers(&mut self.aside[shard]);
        let moved = self.shards[shard].turn(may_park).expect("the simulated engine has no errors of its own");
        local_delivery::swap_answers(&mut self.aside[shard]);
        moved
    }

    pub fn has_mail(&self, shard: usize) -> bool {
        self.posts[shard].has_mail.load(Ordering::Relaxed)
    }

    pub fn run_job(&mut self) -> bool {
        let job = self.jobs.lock().expect("one thread").pop_front();
        job.map(|job| job()).is_some()
    }

    /// Hands a map of models to every shard; the receiver is disconnected once all use it.
    pub fn publish(&self, map: &Arc<ModelMap>) -> Receiver<()> {
        let (acknowledge, acknowledged) = channel();
        for post in &self.posts {
            let (models, acknowledge) = (Arc::clone(map), acknowledge.clone());
            post.post(nereid_shard::Mail::Actor(api::Mail::Models { models, acknowledge }));
        }
        acknowledged
    }

    pub fn tell(&self, mail: impl Fn() -> Mail) {
        self.posts.iter().for_each(|post| post.post(mail()));
    }

    pub fn next_deadline_ns(&self, shard: usize) -> Option<u64> {
        use nereid_shard::Handler as _;
        let shard = &self.shards[shard];
        [shard.core.timers.next_deadline(), shard.handler.next_deadline_ns()].into_iter().flatten().min()
    }

    /// Connections of a shard that sleeps which wait for what does not wake it.
    pub fn forgotten_sends(&self, shard: usize) -> usize {
        self.shards[shard].handler.forgotten_sends()
    }

    pub fn is_busy(&self) -> bool {
        let busy =
            |gauges: &Arc<Gauges>| gauges.busy.load(Ordering::Acquire) + gauges.in_flight.load(Ordering::Acquire) > 0;
        self.gauges.iter().any(busy)
    }

    pub fn has_stopped(&self) -> bool {
        use nereid_shard::Handler as _;
        self.shards.iter().all(|shard| shard.handler.stopped())
    }

    /// Checks that nothing is left of any connection, call or request.
    pub fn check_rest(&self) -> Result<(), String> {
        for (number, shard) in self.shards.iter().enumerate() {
            let (connections, calls) = shard.handler.remaining();
            let gauges = &self.gauges[number];
            let counts = [
                ("connections", connections),
                ("calls", calls),
                ("timers", shard.core.timers.len()),
                ("HTTP connections in the gauge", gauges.http_connections.load(Ordering::Acquire)),
                ("gRPC connections in the gauge", gauges.grpc_connections.load(Ordering::Acquire)),
                ("requests in flight in the gauge", gauges.in_flight.load(Ordering::Acquire)),
                ("chunks that are lent", self.engines[number].lent.get()),
                ("sockets of the engine", self.engines[number].sockets.get()),
                ("answers put aside", self.aside[number].len()),
            ];
            for (what, count) in counts {
                if count != 0 {
                    return Err(format!("shard {number} has {count} {what} left at its end"));
                }
            }
        }
        if self.loads.total() != 0 {
            return Err(format!("{} connections are counted for the balance of shards", self.loads.total()));
        }
        Ok(())
    }
}
