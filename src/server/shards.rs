//! The shards of a server: listeners bound, one thread each, a mailbox to reach every one of them.

use std::io;
use std::net::ToSocketAddrs;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use rustix::net::sockopt::{set_socket_reuseaddr, set_socket_reuseport};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with};
use tracing::{error, info};

use super::Failure;
use super::control::ControlThread;
use super::options::{IoEngine, Listen, Options};
use crate::api::{self, Api, Facts, RenderMetrics};
use crate::memory::{BlockMut, Exhausted, Pool};
use crate::net::{self, Gauges, HandOver, Mail, Net};
use crate::protocol::service::Port;
use crate::repository::ModelMap;
use crate::request::{Delivery, Sink};
use crate::shard::clock::{Clock, Monotonic};
use crate::shard::engine::{Engine, Epoll, Limits, Uring, Waker};
use crate::shard::mailbox::{Mailbox, Post};
use crate::shard::placement::{Load, Placement};
use crate::shard::timer::Timers;
use crate::shard::{Core, Turn};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 4096;
/// Deadlines that one shard keeps.
const TIMERS_MAX: usize = 1 << 20;

type ShardMail = Mail<api::Mail>;

/// What shards are made of.
pub struct Parts<'a> {
    pub options: &'a Options,
    pub placement: &'a Placement,
    pub pool: Pool,
    pub facts: Arc<Facts>,
    pub models: Arc<ModelMap>,
    pub render_metrics: RenderMetrics,
}

/// The running shards.
pub struct Shards {
    posts: Vec<Post<ShardMail>>,
    gauges: Vec<Arc<Gauges>>,
    threads: Vec<JoinHandle<()>>,
    control: ControlThread,
}

/// Answers of models on their way to one shard.
struct ShardSink {
    post: Post<ShardMail>,
    pool: Pool,
}

impl Sink for ShardSink {
    fn deliver(&self, key: u64, delivery: Delivery) {
        self.post.post(Mail::Service(api::Mail::Delivered { key, delivery }));
    }

    fn allocate(&self, _key: u64, byte_size: usize) -> Result<BlockMut, Exhausted> {
        self.pool.get(byte_size)
    }
}

/// A listening socket and the service behind it.
struct Listener {
    socket: OwnedFd,
    port: Port,
}

impl Shards {
    /// Binds the ports, then starts the threads.
    pub fn start(parts: Parts<'_>) -> Result<Shards, Failure> {
        let options = parts.options;
        let services = [
            (&options.grpc, Port::Grpc, "GRPC"),
            (&options.http, Port::Http, "HTTP"),
            (&options.metrics, Port::Metrics, "Metrics"),
        ];
        let mut listeners = Vec::new();
        for (listen, port, name) in services.into_iter().filter(|(listen, ..)| listen.allowed) {
            let socket =
                bind_to(listen).map_err(|error| Failure::Start(format!("failed to start {name} service: {error}")))?;
            listeners.push(Listener { socket, port });
        }
        let cannot = |error: io::Error| Failure::Start(format!("cannot start a thread: {error}"));
        let control = ControlThread::start().map_err(cannot)?;
        let count = parts.placement.shards().len();
        let loads = Arc::new(Load::new(count));
        let mut mailboxes = Vec::with_capacity(count);
        for _ in 0..count {
            let waker = Waker::new().map_err(cannot)?;
            mailboxes.push((Mailbox::<ShardMail>::new(waker.clone()), waker));
        }
        let posts: Vec<_> = mailboxes.iter().map(|(mailbox, _)| mailbox.post()).collect();
        let hand_over: HandOver = {
            let posts = posts.clone();
            Arc::new(move |shard, fd, port| {
                if let Some(post) = posts.get(shard) {
                    post.post(Mail::Accepted { fd, port });
                }
            })
        };
        let mut shards = Shards { posts, gauges: Vec::new(), threads: Vec::new(), control };
        let mut listeners = Some(listeners);
        for (shard, (mailbox, waker)) in mailboxes.into_iter().enumerate() {
            let gauges: Arc<Gauges> = Arc::default();
            shards.gauges.push(Arc::clone(&gauges));
            let post = mailbox.post();
            let seat = Seat {
                shard,
                mailbox,
                waker,
                cpu: parts.placement.shards().get(shard).copied().flatten(),
                spin_ns: parts.placement.spin_ns(),
                engine: options.io_engine,
                // The first shard accepts for all.
                listeners: listeners.take().unwrap_or_default(),
                loads: Arc::clone(&loads),
                hand_over: Arc::clone(&hand_over),
                gauges,
                pool: parts.pool.clone(),
                api: api::Parts {
                    facts: Arc::clone(&parts.facts),
                    models: Arc::clone(&parts.models),
                    pool: parts.pool.clone(),
                    sink: Arc::new(ShardSink { post: post.clone(), pool: parts.pool.clone() }),
                    post: Arc::new(move |mail| post.post(Mail::Service(mail))),
                    control: shards.control.handle(),
                    render_metrics: Arc::clone(&parts.render_metrics),
                },
            };
            let thread = std::thread::Builder::new().name(format!("shard-{shard}")).spawn(move || seat.run());
            shards.threads.push(thread.map_err(cannot)?);
        }
        Ok(shards)
    }

    pub fn log_endpoints(&self, options: &Options) {
        let services = [
            (&options.grpc, "GRPCInferenceService"),
            (&options.http, "HTTPService"),
            (&options.metrics, "Metrics Service"),
        ];
        for (listen, name) in services.into_iter().filter(|(listen, _)| listen.allowed) {
            info!("Started {name} at {}:{}", listen.address, listen.port);
        }
    }

    pub fn drain(&self) {
        self.posts.iter().for_each(|post| post.post(Mail::Drain));
    }

    pub fn connections(&self) -> usize {
        self.gauges.iter().map(|gauges| gauges.connections.load(Ordering::Acquire)).sum()
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
            if thread.join().is_err() {
                error!("a shard ended by a panic");
            }
        }
        drop(self.posts);
        self.control.join();
    }
}

/// Everything that one shard takes to its thread.
struct Seat {
    shard: usize,
    mailbox: Mailbox<ShardMail>,
    waker: Waker,
    cpu: Option<usize>,
    spin_ns: u64,
    engine: IoEngine,
    listeners: Vec<Listener>,
    loads: Arc<Load>,
    hand_over: HandOver,
    gauges: Arc<Gauges>,
    pool: Pool,
    api: api::Parts,
}

impl Seat {
    fn run(self) {
        let shard = self.shard;
        if let Some(id) = self.cpu {
            core_affinity::set_for_current(core_affinity::CoreId { id });
        }
        if let Err(error) = self.serve() {
            error!("shard {shard} ends: {error}");
            // Without a shard there is no service: better a visible end than connections that nobody answers.
            std::process::exit(1);
        }
    }

    fn serve(self) -> io::Result<()> {
        let clock: Rc<dyn Clock> = Rc::new(Monotonic);
        let limits = Limits { connections: net::CONNECTIONS_MAX, ..Limits::default() };
        let (mut engine, name): (Box<dyn Engine>, _) = match self.engine {
            IoEngine::Epoll => (Box::new(Epoll::new(limits, Rc::clone(&clock), self.waker)?), "epoll"),
            IoEngine::IoUring | IoEngine::Auto => {
                let uring = Uring::new(limits, Rc::clone(&clock), self.waker).map_err(io::Error::other)?;
                (Box::new(uring), "io_uring")
            }
        };
        if self.shard == 0 {
            info!("I/O engine: {name}");
        }
        let mut ports = Vec::new();
        for (id, listener) in self.listeners.into_iter().enumerate() {
            engine.listen(listener.socket, id).map_err(io::Error::other)?;
            ports.push(listener.port);
        }
        let mut net = Net::new(net::Parts {
            service: Api::new(self.api),
            pool: self.pool,
            shard: self.shard,
            listeners: ports,
            loads: self.loads,
            hand_over: self.hand_over,
            gauges: self.gauges,
        });
        let mut timers = Timers::new(TIMERS_MAX, clock.now_ns());
        let mut core = Core { engine: &mut *engine, timers: &mut timers, clock: &*clock };
        Turn::new(self.mailbox, self.spin_ns).run(&mut net, &mut core)
    }
}

/// Binds and listens; a second server on the same port fails unless it was told to share it.
fn bind_to(listen_at: &Listen) -> Result<OwnedFd, String> {
    let shown = format!("{}:{}", listen_at.address, listen_at.port);
    let port = u16::try_from(listen_at.port).map_err(|_| format!("port {} is out of range", listen_at.port))?;
    let address = (&*listen_at.address, port)
        .to_socket_addrs()
        .map_err(|error| format!("cannot resolve '{shown}': {error}"))?
        .next()
        .ok_or_else(|| format!("'{shown}' has no address"))?;
    let open = || -> io::Result<OwnedFd> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        set_socket_reuseaddr(&socket, true)?;
        if listen_at.reuse_port {
            set_socket_reuseport(&socket, true)?;
        }
        bind(&socket, &address)?;
        listen(&socket, BACKLOG)?;
        Ok(socket)
    };
    open().map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => format!("Unavailable - Socket '{shown}' already in use "),
        _ => format!("Unavailable - cannot listen at '{shown}': {error}"),
    })
}
