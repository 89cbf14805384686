//! The shards of a server: listeners bound, one thread each, a mailbox to reach every one of them.

use std::io;
use std::net::ToSocketAddrs;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Sender, channel};

use tracing::{error, info};

use super::Failure;
use super::clouds;
use super::control::ControlThread;
use super::drain::{End, tell_of_end};
use super::options::{IoEngine, Listen, Options};
use crate::api::{self, Api, Facts, RenderMetrics};
use crate::memory::{BlockMut, Exhausted, Pool};
use crate::net::{self, Gauges, HandOver, Mail, Net};
use crate::observe::metrics::Registry;
use crate::protocol::service::Port;
use crate::repository::{Lifecycle, Publisher};
use crate::request::{Delivery, Job, Sink, never_wait_here};
use crate::shard::engine::Limits;
use crate::shard::placement::Placement;
use crate::shard::probe::{self, Wanted};
use crate::shard::{self, Core, EngineKind, Load, Mailbox, Running, listener, mailbox};

/// Deadlines that one shard keeps.
const TIMERS_MAX: usize = 1 << 20;

type ShardMail = Mail<api::Mail>;

/// What shards are made of.
pub struct Parts<'a> {
    pub options: &'a Options,
    pub placement: &'a Placement,
    pub pool: Pool,
    pub facts: Arc<Facts>,
    pub lifecycle: Arc<Lifecycle>,
    pub render_metrics: RenderMetrics,
    pub metrics: Arc<Registry>,
    /// Told when a shard ends that was not asked to.
    pub ends: Sender<End>,
}

/// The running shards.
pub struct Shards {
    posts: Vec<Mailbox<ShardMail>>,
    gauges: Vec<Arc<Gauges>>,
    threads: Vec<Running>,
    control: ControlThread,
    /// What listens where, for the log.
    endpoints: Vec<String>,
}

/// Answers of models on their way to one shard.
struct ShardSink {
    post: Mailbox<ShardMail>,
    pool: Pool,
}

impl Sink for ShardSink {
    fn deliver(&self, key: u64, delivery: Delivery) {
        self.post.post(Mail::Service(api::Mail::Delivered { key, delivery }));
    }

    fn allocate(&self, _key: u64, byte_size: usize) -> Result<BlockMut, Exhausted> {
        self.pool.get(byte_size)
    }

    fn at_home(&self, job: Box<dyn Job>) {
        self.post.post(Mail::Service(api::Mail::Home(job)));
    }
}

/// A listening socket and the service behind it.
struct Listener {
    socket: OwnedFd,
    port: Port,
    /// The line of the log that tells of it.
    started: String,
}

impl Shards {
    /// Binds the ports, then starts the threads.
    pub fn start(parts: Parts<'_>) -> Result<Shards, Failure> {
        let options = parts.options;
        let listeners = bind_all(options)?;
        let endpoints = listeners.iter().map(|listener| listener.started.clone()).collect();
        let mut listeners = Some(listeners);
        let choice = probe::choose(wanted(options.io_engine), probe::probe)
            .map_err(|error| Failure::Start(format!("--io-engine=io_uring: {error}")))?;
        info!("{}", choice.message);
        let cannot = |error: io::Error| Failure::Start(format!("cannot start a thread: {error}"));
        let control = ControlThread::start(parts.pool.clone()).map_err(cannot)?;
        let count = parts.placement.shards.len();
        let loads = Load::new(count);
        let (mut posts, mut inboxes) = (Vec::with_capacity(count), Vec::with_capacity(count));
        for _ in 0..count {
            let (post, inbox) = mailbox::<ShardMail>().map_err(cannot)?;
            posts.push(post);
            inboxes.push(inbox);
        }
        let hand_over: HandOver = {
            let posts = posts.clone();
            Arc::new(move |fd, port, seat| {
                if let Some(post) = posts.get(seat.shard()) {
                    post.post(Mail::Accepted { fd, port, seat });
                }
            })
        };
        let mut shards = Shards { posts, gauges: Vec::new(), threads: Vec::new(), control, endpoints };
        // The shards that only take connections over come first: the one that accepts may hand over at once.
        for (shard, inbox) in inboxes.into_iter().enumerate().rev() {
            let gauges: Arc<Gauges> = Arc::default();
            shards.gauges.push(Arc::clone(&gauges));
            let post = shards.posts[shard].clone();
            let api = api::Parts {
                facts: Arc::clone(&parts.facts),
                models: parts.lifecycle.map(),
                lifecycle: Arc::clone(&parts.lifecycle),
                pool: parts.pool.clone(),
                sink: Arc::new(ShardSink { post: post.clone(), pool: parts.pool.clone() }),
                post: Arc::new(move |mail| post.post(Mail::Service(mail))),
                control: shards.control.handle(),
                render_metrics: Arc::clone(&parts.render_metrics),
                metrics: Arc::clone(&parts.metrics),
            };
            let seat = ShardParts {
                shard,
                // The first shard accepts for all.
                listeners: if shard == 0 { listeners.take().unwrap_or_default() } else { Vec::new() },
                loads: loads.clone(),
                hand_over: Arc::clone(&hand_over),
                gauges,
                pool: parts.pool.clone(),
                api,
            };
            let options = shard::Options {
                name: format!("shard-{shard}"),
                engine: choice.engine,
                cpu: parts.placement.shards[shard],
                spin: parts.placement.spin,
                limits: Limits { connections: net::CONNECTIONS_MAX, ..Limits::default() },
                timers_max: TIMERS_MAX,
                pool: parts.pool.clone(),
            };
            let ends = parts.ends.clone();
            let running = shard::start(options, inbox, move |core| {
                tell_of_end(ends, shard);
                seat.into_net(core)
            });
            match running {
                Ok(running) => shards.threads.push(running),
                Err(error) => {
                    shards.stop();
                    return Err(Failure::Start(error.to_string()));
                }
            }
        }
        Ok(shards)
    }

    /// Hands new maps of models to every shard. A shard drops its sender with the mail, once it uses the map.
    pub fn publisher(&self) -> Publisher {
        let posts = self.posts.clone();
        Box::new(move |map| {
            let (acknowledge, acknowledged) = channel();
            for post in &posts {
                let (models, acknowledge) = (Arc::clone(map), acknowledge.clone());
                post.post(Mail::Service(api::Mail::Models { models, acknowledge }));
            }
            acknowledged
        })
    }

    pub fn log_endpoints(&self) {
        self.endpoints.iter().for_each(|endpoint| info!("{endpoint}"));
    }

    pub fn drain(&self) {
        self.posts.iter().for_each(|post| post.post(Mail::Drain));
    }

    pub fn http_connections(&self) -> usize {
        self.gauges.iter().map(|gauges| gauges.http_connections.load(Ordering::Acquire)).sum()
    }

    pub fn grpc_connections(&self) -> usize {
        self.gauges.iter().map(|gauges| gauges.grpc_connections.load(Ordering::Acquire)).sum()
    }

    /// Connections and requests that are in the middle of something.
    pub fn busy(&self) -> usize {
        let of = |gauges: &Arc<Gauges>| gauges.busy.load(Ordering::Acquire) + gauges.in_flight.load(Ordering::Acquire);
        self.gauges.iter().map(of).sum()
    }

    /// Closes everything and waits for the threads.
    pub fn stop(self) {
        self.posts.iter().for_each(|post| post.post(Mail::Stop));
        for thread in self.threads {
            if let Err(error) = thread.join() {
                error!("a shard ended: {error}");
            }
        }
        drop(self.posts);
        self.control.join();
    }
}

/// Everything that one shard takes to its thread.
struct ShardParts {
    shard: usize,
    listeners: Vec<Listener>,
    loads: Load,
    hand_over: HandOver,
    gauges: Arc<Gauges>,
    pool: Pool,
    api: api::Parts,
}

impl ShardParts {
    fn into_net(self, core: &mut Core<u64>) -> io::Result<Net<Api>> {
        never_wait_here();
        let mut ports = Vec::new();
        for (id, listener) in self.listeners.into_iter().enumerate() {
            core.engine.listen(listener.socket, id).map_err(io::Error::other)?;
            ports.push(listener.port);
        }
        Ok(Net::new(net::Parts {
            service: Api::new(self.api),
            pool: self.pool,
            shard: self.shard,
            listeners: ports,
            loads: self.loads,
            hand_over: self.hand_over,
            gauges: self.gauges,
        }))
    }
}

fn wanted(engine: IoEngine) -> Wanted {
    match engine {
        IoEngine::Auto => Wanted::Auto,
        IoEngine::IoUring => Wanted::Exactly(EngineKind::IoUring),
        IoEngine::Epoll => Wanted::Exactly(EngineKind::Epoll),
    }
}

fn bind_all(options: &Options) -> Result<Vec<Listener>, Failure> {
    let services = [
        (&options.grpc, Port::Grpc, "GRPC", "GRPCInferenceService"),
        (&options.http, Port::Http, "HTTP", "HTTPService"),
        (&options.sagemaker, Port::SageMaker, clouds::SAGEMAKER, "Sagemaker HTTPService"),
        (&options.vertex, Port::Vertex, clouds::VERTEX, "Vertex AI HTTPService"),
        (&options.metrics, Port::Metrics, "Metrics", "Metrics Service"),
    ];
    let mut listeners = Vec::new();
    for (listen, port, name, service) in services.into_iter().filter(|(listen, ..)| listen.allowed) {
        let (socket, bound) =
            bind_to(listen).map_err(|error| Failure::Start(format!("failed to start {name} service: {error}")))?;
        let started = format!("Started {service} at {}:{bound}", listen.address);
        listeners.push(Listener { socket, port, started });
    }
    Ok(listeners)
}

/// Binds and listens; a second server on the same port fails unless it was told to share it. Says which port it got:
/// the one that was asked for may be 0, any.
fn bind_to(listen_at: &Listen) -> Result<(OwnedFd, u16), String> {
    let shown = format!("{}:{}", listen_at.address, listen_at.port);
    let port = u16::try_from(listen_at.port).map_err(|_| format!("port {} is out of range", listen_at.port))?;
    let address = (&*listen_at.address, port)
        .to_socket_addrs()
        .map_err(|error| format!("cannot resolve '{shown}': {error}"))?
        .next()
        .ok_or_else(|| format!("'{shown}' has no address"))?;
    let bound = listener::tcp(&address, listen_at.reuse_port).and_then(|listener| {
        let port = listener.local_addr()?.port();
        Ok((OwnedFd::from(listener), port))
    });
    bound.map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => format!("Unavailable - Socket '{shown}' already in use "),
        _ => format!("Unavailable - cannot listen at '{shown}': {error}"),
    })
}
