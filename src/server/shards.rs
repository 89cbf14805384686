//! The shards of a server: their listeners, threads and mailboxes.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Sender, channel};

use tracing::{error, info, warn};

use super::Failure;
use super::budget;
use super::control::{ControlThread, Upkeep};
use super::drain::{EndReason, report_end_of_thread};
use super::inherited::{InheritedSockets, Origin};
use super::inspect::Inspect;
use super::listeners::{self, UnixFile};
use super::options::{IoEngine, Keepalive, Options};
use super::takeover::{OfferedSocket, OfferedSockets, Takeover};
use super::watchdog::PostJob;
use crate::api::{self, Api, Facts, RenderMetrics};
use crate::repository::{Attachment, Lifecycle, Publisher};
use nereid_memory::Pool;
use nereid_net::{Gauges, HandOver, IpcCounts, IpcSettings, Listener, Mail, Net, Secure, Shares};
use nereid_observe::load::Monitor;
use nereid_observe::metrics::Registry;
use nereid_observe::panics::ThreadKind;
use nereid_protocol::grpc;
use nereid_protocol::slow_peers::SlowPeers;
use nereid_request::{ShardSink, never_wait_here};
use nereid_scheduler::validate::tensors_looked_at_max;
use nereid_shard::engine::Limits;
use nereid_shard::listener::{self, SocketFile};
use nereid_shard::placement::Placement;
use nereid_shard::probe::{self, EngineRequest, Probe};
use nereid_shard::{
    self as shard, Core, EngineKind, Host, Load, MailOf, Mailbox, Running, StartError, Starting, mailbox,
};

/// Most timers of one shard.
const TIMERS_MAX: usize = 1 << 20;

type ShardMail = MailOf<Net<Api>>;

/// Parameters of [`Shards::start`].
pub struct Parts<'a> {
    pub options: &'a Options,
    pub placement: &'a Placement,
    pub pool: Pool,
    /// See [`Upkeep::owns_heap`].
    pub owns_heap: bool,
    pub facts: Arc<Facts>,
    pub lifecycle: Arc<Lifecycle>,
    pub render_metrics: RenderMetrics,
    /// Writes the snapshots of the inspect page.
    pub inspect: Option<Arc<Inspect>>,
    pub metrics: Arc<Registry>,
    /// Of clients of shared-memory rings, if the server takes such.
    pub ipc_counts: Option<Arc<IpcCounts>>,
    /// See [`load::monitor`](super::load::monitor).
    pub load: Option<Arc<Monitor>>,
    /// What the names of their threads begin with.
    pub thread_name: &'static str,
    pub host: Host,
    /// Receives a message when a shard ends without having been stopped.
    pub ends: Sender<EndReason>,
    /// See [`try_engine`].
    pub probe: Option<Probe>,
    pub tls: listeners::ServerTls,
    pub ports: Vec<listeners::ReservedPort>,
    /// Unix sockets that other processes opened.
    pub inherited: &'a mut InheritedSockets,
    pub takeover: Option<&'a Takeover>,
}

/// The running shards.
pub struct Shards {
    posts: Vec<Mailbox<ShardMail>>,
    gauges: Vec<Arc<Gauges>>,
    threads: Vec<Running>,
    /// By which changes of the models reach them.
    lifecycle: Arc<Lifecycle>,
    attachment: Attachment,
    control: ControlThread,
    /// Runs the private-key operations of TLS handshakes for the shards, where a port speaks TLS.
    signing: Option<ControlThread>,
    /// The log lines of the listening sockets.
    endpoints: Vec<String>,
    /// The ports that are bound.
    ports: Vec<u16>,
    /// Listening sockets that share their ports with other processes.
    shared: Vec<OwnedFd>,
    /// Files of Unix sockets, removed at the end.
    socket_files: Vec<(&'static str, SocketFile)>,
    /// Those of the running server until it has ended.
    inherited_files: Vec<(&'static str, PathBuf)>,
    /// The service of each listener, and who opened it.
    services: Vec<(&'static str, Origin)>,
    /// What another server may take over.
    offered: Option<Arc<OfferedSockets>>,
}

/// Starts the test of io_uring, where its outcome will matter. It takes milliseconds, in which models can load.
pub fn try_engine(options: &Options, host: Host) -> Option<Probe> {
    (options.io_engine != IoEngine::Epoll).then(|| Probe::of(host))
}

impl Shards {
    /// Listens on the ports, then starts the threads.
    pub fn start(parts: Parts<'_>) -> Result<Shards, Failure> {
        let options = parts.options;
        let tls = parts.tls;
        let opened = listeners::open(options, parts.ports, parts.inherited)?;
        let endpoints = opened.iter().map(|one| one.started.clone()).collect();
        let services = opened.iter().map(|one| (one.service, one.origin)).collect();
        let ports = opened.iter().filter_map(|one| one.port).collect();
        let offered = options.take_over.is_some().then(|| copies(&opened)).transpose();
        let offered = offered.map_err(|error| Failure::Start(format!("--take-over: {error}")))?;
        let (mut listeners, mut shared) = (Vec::new(), Vec::new());
        let (mut socket_files, mut inherited_files) = (Vec::new(), Vec::new());
        for listeners::ListeningSocket { service, socket, listener, file, is_shared, origin, .. } in opened {
            if is_shared {
                // Without it connections may be refused at the end.
                shared.extend(socket.try_clone().inspect_err(|error| warn!("cannot keep a listener: {error}")));
            }
            listeners.push((socket, listener));
            match file {
                Some(UnixFile::Own(file)) => socket_files.push((service, file)),
                Some(UnixFile::Inherited(path)) if !origin.is_managed() => {
                    inherited_files.push((service, path));
                }
                Some(UnixFile::Inherited(_)) | None => {}
            }
        }
        let mut listeners = Some(listeners);
        let engine = wanted(options.io_engine, parts.takeover.and_then(|takeover| takeover.engine));
        let choice = probe::choose(engine, || parts.probe.unwrap_or_else(|| Probe::of(parts.host)).outcome())
            .map_err(|error| Failure::Start(format!("--io-engine=io_uring: {error}")))?;
        info!("{}", choice.message);
        if let Some(takeover) = parts.takeover {
            let checked = takeover.check_engine(choice.engine);
            checked.map_err(|error| Failure::Start(format!("--take-over: {error}")))?;
        }
        let cannot = |error: io::Error| Failure::Start(format!("cannot start a thread: {error}"));
        let upkeep = Upkeep { pool: parts.pool.clone(), owns_heap: parts.owns_heap };
        let control = ControlThread::start("control", Some(upkeep)).map_err(cannot)?;
        // Signing for one client must not wait for another client's load of a model.
        let signing = tls.is_on().then(|| ControlThread::start("tls", None));
        let signing = signing.transpose().map_err(cannot)?;
        let count = parts.placement.shards.len();
        let shares = budget::shares(options, parts.pool.limit(), count);
        let of_model = budget::of_model(options, parts.pool.limit(), shares.waiting.saturating_mul(count));
        let loads = Load::new(count);
        let counted = loads.clone();
        parts.facts.shard_load.set(move || (counted.shards(), counted.total()));
        let (mut posts, mut inboxes) = (Vec::with_capacity(count), Vec::with_capacity(count));
        for _ in 0..count {
            let (post, inbox) = mailbox::<ShardMail>().map_err(cannot)?;
            posts.push(post);
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
        let ipc = parts.ipc_counts.map(|counts| super::ipc::settings(options, &parts.facts, &counts));
        // Before a port answers: a load that a client requests at once is complete when every shard serves the model.
        let attachment = parts.lifecycle.attach(publisher(posts.clone()));
        let mut shards = Shards {
            posts,
            gauges: Vec::new(),
            threads: Vec::new(),
            lifecycle: Arc::clone(&parts.lifecycle),
            attachment,
            control,
            signing,
            endpoints,
            ports,
            shared,
            socket_files,
            inherited_files,
            services,
            offered: offered.map(|sockets| Arc::new(OfferedSockets::new(sockets, choice.engine))),
        };
        // The shards that only take connections over start first, all at once: the accepting one may hand over soon.
        let mut starting = Vec::new();
        for (shard, inbox) in inboxes.into_iter().enumerate().rev() {
            let gauges: Arc<Gauges> = Arc::default();
            shards.gauges.push(Arc::clone(&gauges));
            let post = shards.posts[shard].clone();
            let secure = shards.signing.as_ref().map(|signing| {
                let post = post.clone();
                tls.secure(signing.handle(), Arc::new(move |handshaken| post.post(Mail::Handshaken(handshaken))))
            });
            let api = api::Parts {
                facts: Arc::clone(&parts.facts),
                models: parts.lifecycle.map(),
                lifecycle: Arc::clone(&parts.lifecycle),
                pool: parts.pool.clone(),
                sink: Arc::new(ShardSink::new(post.clone(), parts.pool.clone())),
                post: Arc::new(move |mail| post.post(shard::Mail::Actor(mail))),
                control: shards.control.handle(),
                render_metrics: Arc::clone(&parts.render_metrics),
                render_inspect: parts
                    .inspect
                    .clone()
                    .map(|inspect| -> api::RenderInspect { Arc::new(move |query| inspect.render(query)) }),
                metrics: Arc::clone(&parts.metrics),
                load: parts.load.clone(),
                call_bounds: api::CallBounds { requests_max: shares.waiting, of_model },
            };
            let seat = ShardParts {
                shard,
                // The first shard accepts for all.
                listeners: if shard == 0 { listeners.take().unwrap_or_default() } else { Vec::new() },
                loads: loads.clone(),
                secure,
                keepalive: options.grpc_keepalive,
                ipc: ipc.clone(),
                slow_peers: options.slow_peers,
                hand_over: Arc::clone(&hand_over),
                gauges,
                pool: parts.pool.clone(),
                shares: shares.clone(),
                grpc_message_bytes_max: options.grpc_max_receive_message_size as usize,
                api,
            };
            let options = nereid_shard::Options {
                name: format!("{}-{shard}", parts.thread_name),
                engine: choice.engine,
                host: parts.host,
                cpu: parts.placement.shards[shard],
                spin: parts.placement.shard_spin(),
                limits: Limits { connections: nereid_net::CONNECTIONS_MAX, ..Limits::default() },
                timers_max: TIMERS_MAX,
                pool: parts.pool.clone(),
            };
            let ends = parts.ends.clone();
            let begun = nereid_shard::begin(options, inbox, move |core| {
                report_end_of_thread(ends, shard);
                ThreadKind::Shard.set();
                seat.into_net(core)
            });
            let begun = begun.map(|one| starting.push(one));
            let waits = if shard <= 1 || begun.is_err() { shards.take_over(&mut starting) } else { Ok(()) };
            if let Err(error) = begun.and(waits) {
                shards.stop();
                return Err(Failure::Start(error.to_string()));
            }
        }
        if let Some(inspect) = &parts.inspect {
            inspect.set_shards(&loads, shards.gauges.iter().rev());
        }
        Ok(shards)
    }

    /// Waits until all of these run, or have failed to start; returns the first failure.
    fn take_over(&mut self, starting: &mut Vec<Starting>) -> Result<(), StartError> {
        let mut outcome = Ok(());
        for shard in starting.drain(..) {
            match shard.finish() {
                Ok(running) => self.threads.push(running),
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        outcome
    }

    /// What another server may take over, if `--take-over` allows it.
    pub fn offered(&self) -> Option<&Arc<OfferedSockets>> {
        self.offered.as_ref()
    }

    /// The services whose sockets the running server opened.
    pub fn taken_over(&self) -> Vec<String> {
        let is_taken = |(_, origin): &&(&str, Origin)| matches!(origin, Origin::RunningServer { .. });
        self.services.iter().filter(is_taken).map(|(service, _)| (*service).to_owned()).collect()
    }

    /// The running server has ended for these sockets: the files of those in the file system are this server's.
    pub fn own_files(&mut self) {
        for (service, path) in self.inherited_files.drain(..) {
            match SocketFile::at(&path) {
                Ok(file) => self.socket_files.push((service, file)),
                Err(error) => warn!("clients cannot find unix:{}: {error}", path.display()),
            }
        }
    }

    /// Another server answers at the sockets of these services: accepts no connection there, and leaves their files.
    pub fn hand_over(&mut self, services: &[String]) {
        let is_taken = |service: &str| services.iter().any(|taken| taken == service);
        self.offered = None;
        // What is held back for this server would be held back for the other one too.
        self.shared.clear();
        for (_, file) in self.socket_files.extract_if(.., |(service, _)| is_taken(service)) {
            file.keep();
        }
        self.stop_listening(|service, _| is_taken(service));
    }

    /// Leaves the connections that come from now on to the next server where a service manager keeps the socket open.
    pub fn leave_to_service_manager(&self) {
        self.stop_listening(|_, origin| origin.is_managed());
    }

    fn stop_listening(&self, is_meant: impl Fn(&str, Origin) -> bool) {
        let all = self.services.iter().enumerate();
        let listeners: Vec<_> =
            all.filter(|(_, (service, origin))| is_meant(service, *origin)).map(|(id, _)| id).collect();
        // The first shard accepts for all.
        if let (false, Some(post)) = (listeners.is_empty(), self.posts.first()) {
            post.post(Mail::StopListening(listeners));
        }
    }

    /// For each shard, a function that posts jobs to it.
    pub fn job_posts(&self) -> Vec<PostJob> {
        let post_of = |mailbox: &Mailbox<ShardMail>| -> PostJob {
            let mailbox = mailbox.clone();
            Box::new(move |job| {
                mailbox.post(shard::Mail::Actor(api::Mail::Home(job)));
                !mailbox.is_closed()
            })
        };
        self.posts.iter().map(post_of).collect()
    }

    /// The function that hands new keys to every shard.
    pub fn access_publisher(&self) -> impl Fn(Arc<api::Access>) + Send + 'static {
        let posts = self.posts.clone();
        move |access| {
            for post in &posts {
                post.post(shard::Mail::Actor(api::Mail::Access(Arc::clone(&access))));
            }
        }
    }

    /// The ports that are bound, in the order of their services.
    pub fn ports(&self) -> &[u16] {
        &self.ports
    }

    pub fn log_endpoints(&self) {
        self.endpoints.iter().for_each(|endpoint| info!("{endpoint}"));
    }

    /// Notifies clients to go elsewhere, and still serves them and new ones.
    pub fn leave(&self) {
        self.posts.iter().for_each(|post| post.post(Mail::Leave));
    }

    /// Stops accepting connections where other processes accept them, and notifies the last clients to go elsewhere.
    pub fn last_call(&self) {
        for listener in &self.shared {
            if let Err(error) = listener::hold_new(listener.as_fd()) {
                warn!("connections that come now may be reset: {error}");
            }
        }
        self.posts.iter().for_each(|post| post.post(Mail::LastCall));
    }

    pub fn drain(&mut self) {
        // A socket listens as long as any descriptor of it is open.
        self.shared.clear();
        if self.offered.take().is_some_and(|offered| offered.is_offered()) {
            // The server that is about to answer on the sockets needs their files.
            self.socket_files.drain(..).for_each(|(_, file)| file.keep());
        }
        // Until a shard has read this, its count is not of a drain.
        self.live().for_each(|gauges| gauges.busy.store(1, Ordering::Release));
        self.posts.iter().for_each(|post| post.post(Mail::Drain));
    }

    /// The gauges of the shards that run, the last one first. One that ended by itself reads nothing, and its gauges
    /// stay as they are.
    fn live(&self) -> impl Iterator<Item = &Arc<Gauges>> {
        let running = |(post, _): &(&Mailbox<ShardMail>, &Arc<Gauges>)| !post.is_closed();
        self.posts.iter().rev().zip(&self.gauges).filter(running).map(|(_, gauges)| gauges)
    }

    /// Answers unfinished requests with an error.
    pub fn give_up(&self) {
        self.posts.iter().for_each(|post| post.post(Mail::FailUnanswered));
    }

    /// gRPC connections with clients that may not have read yet that they should go elsewhere.
    pub fn unwarned(&self) -> usize {
        self.live().map(|gauges| gauges.unwarned.load(Ordering::Acquire)).sum()
    }

    /// Connections that are not idle.
    pub fn busy_connections(&self) -> usize {
        self.live().map(|gauges| gauges.busy.load(Ordering::Acquire)).sum()
    }

    pub fn http_connections(&self) -> usize {
        self.live().map(|gauges| gauges.http_connections.load(Ordering::Acquire)).sum()
    }

    pub fn grpc_connections(&self) -> usize {
        self.live().map(|gauges| gauges.grpc_connections.load(Ordering::Acquire)).sum()
    }

    /// Connections that are not idle, and requests in flight.
    pub fn busy(&self) -> usize {
        let of = |gauges: &Arc<Gauges>| gauges.busy.load(Ordering::Acquire) + gauges.in_flight.load(Ordering::Acquire);
        self.live().map(of).sum()
    }

    /// Closes everything and waits for the threads.
    pub fn stop(self) {
        self.lifecycle.detach(self.attachment);
        self.posts.iter().for_each(|post| post.post(Mail::Stop));
        for thread in self.threads {
            if let Err(error) = thread.join() {
                error!("a shard ended: {error}");
            }
        }
        drop(self.posts);
        self.control.join();
        if let Some(signing) = self.signing {
            signing.join();
        }
    }
}

/// Hands new maps of models to every shard. A shard drops its sender with the mail, once it uses the map.
fn publisher(posts: Vec<Mailbox<ShardMail>>) -> Publisher {
    Box::new(move |map| {
        let (acknowledge, acknowledged) = channel();
        for post in &posts {
            let (models, acknowledge) = (Arc::clone(map), acknowledge.clone());
            post.post(shard::Mail::Actor(api::Mail::Models { models, acknowledge }));
        }
        acknowledged
    })
}

/// Everything that moves to one shard's thread.
struct ShardParts {
    shard: usize,
    listeners: Vec<(OwnedFd, Listener)>,
    secure: Option<Secure>,
    keepalive: Keepalive,
    ipc: Option<IpcSettings>,
    slow_peers: SlowPeers,
    loads: Load,
    hand_over: HandOver,
    gauges: Arc<Gauges>,
    pool: Pool,
    shares: Shares,
    grpc_message_bytes_max: usize,
    api: api::Parts,
}

thread_local! {
    static IS_SHARD: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread is a shard, which must not wait for code of an application.
pub fn is_shard() -> bool {
    IS_SHARD.get()
}

impl ShardParts {
    fn into_net(self, core: &mut Core<u64>) -> io::Result<Net<Api>> {
        IS_SHARD.set(true);
        never_wait_here();
        let mut listeners = Vec::new();
        for (id, (socket, listener)) in self.listeners.into_iter().enumerate() {
            core.engine.listen(socket, id).map_err(io::Error::other)?;
            listeners.push(listener);
        }
        Ok(Net::new(nereid_net::Parts {
            pool: self.pool,
            shares: self.shares,
            grpc_limits: grpc::Limits {
                message_bytes_max: self.grpc_message_bytes_max,
                tensors_max: tensors_looked_at_max,
                ..grpc::Limits::default()
            },
            shard: self.shard,
            listeners,
            secure: self.secure,
            keepalive: self.keepalive,
            ipc: self.ipc,
            slow_peers: self.slow_peers,
            recognises_heads: self.api.facts.settings.request_plan_cache,
            service: Api::new(self.api),
            loads: self.loads,
            hand_over: self.hand_over,
            gauges: self.gauges,
        }))
    }
}

/// Copies of the descriptors, for another server.
fn copies(opened: &[listeners::ListeningSocket]) -> io::Result<Vec<OfferedSocket>> {
    let copy = |one: &listeners::ListeningSocket| {
        let (service, is_managed) = (one.service, one.origin.is_managed());
        Ok(OfferedSocket { service, is_managed, socket: one.socket.try_clone()? })
    };
    opened.iter().map(copy).collect()
}

/// `running`: the engine of the server whose sockets this one takes over.
fn wanted(engine: IoEngine, running: Option<EngineKind>) -> EngineRequest {
    match engine {
        IoEngine::Auto => running.map_or(EngineRequest::Auto, EngineRequest::Exactly),
        IoEngine::IoUring => EngineRequest::Exactly(EngineKind::IoUring),
        IoEngine::Epoll => EngineRequest::Exactly(EngineKind::Epoll),
    }
}
