//! How a shard takes clients of shared-memory rings, polls their rings while it is awake, and has them wake it when it
//! is about to sleep.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use rustix::net::sockopt::socket_peercred;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tracing::debug;

use super::IpcWire;
use crate::connection::{ClosePhase, Connection, Wire};
use crate::{Listener, Net};
use nereid_ipc::{Hello, ServerEnd, Sizes};
use nereid_memory::regions::{LENT_PREFIX, LentRegion};
use nereid_memory::{CallLedger, Key, Segment, random_bytes};
use nereid_protocol::grpc::Code;
use nereid_protocol::http2::IdHash;
use nereid_protocol::service::Service;
use nereid_shard::{Core, LoadGuard};

/// Turns without a frame after which a ring is polled no more: its client has to ring.
const QUIET_TURNS_MAX: u32 = 64;

/// Calls that one client may have open.
const CALLS_MAX: usize = 4096;

/// Who may connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IpcUsers {
    /// Whoever can open the socket's file.
    Any,
    /// The server's own user, root, and these.
    Also(Vec<u32>),
}

/// Makes a part of a segment known to requests under a name.
pub type Lend = Arc<dyn Fn(&[u8], Arc<Segment>, usize, usize) -> Option<LentRegion> + Send + Sync>;

/// What the clients of shared-memory rings get.
#[derive(Clone)]
pub struct IpcSettings {
    pub sizes: Sizes,
    pub users: IpcUsers,
    /// Clients at a time.
    pub clients_max: usize,
    pub counts: Arc<IpcCounts>,
    pub lend: Lend,
}

/// Why a client is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusedClient {
    User = 0,
    Clients = 1,
    /// The system has no memory or no descriptor for it, or something else is wrong.
    Failure = 2,
}

impl RefusedClient {
    /// By their numbers.
    pub const ALL: [RefusedClient; 3] = [RefusedClient::User, RefusedClient::Clients, RefusedClient::Failure];

    pub fn name(self) -> &'static str {
        match self {
            RefusedClient::User => "user",
            RefusedClient::Clients => "clients",
            RefusedClient::Failure => "failure",
        }
    }

    fn code(self) -> Code {
        match self {
            RefusedClient::User => Code::PermissionDenied,
            RefusedClient::Clients => Code::ResourceExhausted,
            RefusedClient::Failure => Code::Internal,
        }
    }
}

/// The clients of the rings of all shards.
#[derive(Debug, Default)]
pub struct IpcCounts {
    clients: AtomicUsize,
    refused: [AtomicU64; RefusedClient::ALL.len()],
}

impl IpcCounts {
    /// Clients that have memory of the server. One that has left counts until no model uses its arena.
    pub fn clients(&self) -> usize {
        self.clients.load(Ordering::Acquire)
    }

    pub fn refused(&self, reason: RefusedClient) -> u64 {
        self.refused[reason as usize].load(Ordering::Relaxed)
    }
}

/// A place among the clients that the server takes. The memory of the client goes with it.
#[derive(Debug)]
struct ClientPlace(Arc<IpcCounts>);

impl ClientPlace {
    /// `None`: there are so many already.
    fn take(counts: &Arc<IpcCounts>, most: usize) -> Option<ClientPlace> {
        let place = ClientPlace(Arc::clone(counts));
        (counts.clients.fetch_add(1, Ordering::AcqRel) < most).then_some(place)
    }
}

impl Drop for ClientPlace {
    fn drop(&mut self) {
        self.0.clients.fetch_sub(1, Ordering::AcqRel);
    }
}

impl IpcSettings {
    fn lets_in(&self, user: u32) -> bool {
        match &self.users {
            IpcUsers::Any => true,
            IpcUsers::Also(users) => user == 0 || user == rustix::process::geteuid().as_raw() || users.contains(&user),
        }
    }
}

/// Whether a ring is polled.
#[derive(Debug, Default)]
pub(crate) struct RingState {
    pub is_polled: bool,
    /// It is not, and its client has to ring when there is room.
    pub wants_room: bool,
    quiet_turns: u32,
}

/// The rings that the shard polls in each turn.
#[derive(Debug, Default)]
pub(crate) struct PolledRings {
    keys: Vec<Key>,
    /// Scratch for the list while it is worked through.
    spare: Vec<Key>,
    /// There were frames in this turn, so that the next may bring more.
    pub have_moved: bool,
}

/// A name for an arena that cannot be guessed: 128 random bits of the system.
fn random_name() -> std::io::Result<Vec<u8>> {
    let random = u128::from_le_bytes(random_bytes()?);
    Ok([LENT_PREFIX, format!("{random:032x}").as_bytes()].concat())
}

/// A hash for the numbers of calls, which the client chooses.
fn random_hash() -> std::io::Result<IdHash> {
    let random = u128::from_le_bytes(random_bytes()?);
    Ok(IdHash::keyed([random as u64, (random >> 64) as u64]))
}

impl<S: Service> Net<S> {
    /// Takes a new client of a shared-memory ring, or sends it the reason why not.
    pub(crate) fn adopt_ipc(&mut self, fd: OwnedFd, listener: Listener, load_guard: LoadGuard, core: &mut Core<u64>) {
        let (wire, object) = match self.new_ring(&fd) {
            Ok(made) => made,
            Err((reason, text)) => {
                debug!("a client of the shared-memory ring is refused: {text}");
                if let Some(settings) = &self.ipc {
                    settings.counts.refused[reason as usize].fetch_add(1, Ordering::Relaxed);
                }
                let hello = Hello::refusal(reason.code() as u32, &text);
                // It goes with the socket that is closed now; there is room in a new one.
                let _ = send_hello(&fd, &hello, None);
                return;
            }
        };
        if let Err(error) = send_hello(&fd, &wire.end.hello(), Some(&object)) {
            return debug!("a client of the shared-memory ring is gone: {error}");
        }
        drop(object);
        let tally = self.shared.pool.tally();
        let connection = Connection::new(Wire::Ipc(Box::new(wire)), (listener.port, None), load_guard, None, tally);
        self.insert(fd, connection, core);
    }

    /// The wire of a new client, and the only descriptor of its memory.
    fn new_ring(&self, fd: &OwnedFd) -> Result<(IpcWire, OwnedFd), (RefusedClient, String)> {
        let failure = |text: String| (RefusedClient::Failure, format!("the server cannot make a ring: {text}"));
        let internal = |error: std::io::Error| failure(error.to_string());
        let settings = self.ipc.as_ref().ok_or_else(|| failure("none is configured".to_owned()))?;
        let peer = socket_peercred(fd).map_err(|error| internal(error.into()))?;
        let user = peer.uid.as_raw();
        if !settings.lets_in(user) {
            let text = format!("user {user} may not connect: the server's --ipc-users does not list it");
            return Err((RefusedClient::User, text));
        }
        let Some(place) = ClientPlace::take(&settings.counts, settings.clients_max) else {
            let text = format!("{} clients are connected, as many as --ipc-connections allows", settings.clients_max);
            return Err((RefusedClient::Clients, text));
        };
        let name = random_name().map_err(internal)?;
        let (end, object) = ServerEnd::create(settings.sizes, &name, Box::new(place)).map_err(internal)?;
        let (at, len) = end.arena();
        // An empty arena is lent too: its registry unmaps the object on a thread that may wait.
        let lent = (settings.lend)(&name, Arc::clone(end.segment()), at, len);
        let lent = lent.ok_or_else(|| failure("its arena cannot be lent".to_owned()))?;
        // A client of a Unix socket has no address.
        let pool = self.shared.pool.share(self.shares.connection, None);
        let ledger = CallLedger::new(self.shares.connection_calls.min(CALLS_MAX), None);
        let hash = random_hash().map_err(internal)?;
        Ok((IpcWire::new(end, (pool, ledger), hash, lent), object))
    }

    /// The client has rung, or its ring is new: it is polled from now on.
    pub(crate) fn poll_from_now(&mut self, key: Key) {
        if let Some(connection) = self.connections.get_mut(key)
            && let Wire::Ipc(wire) = &mut connection.wire
            && connection.phase == ClosePhase::Open
            && !std::mem::replace(&mut wire.state.is_polled, true)
        {
            wire.state.quiet_turns = 0;
            wire.unpark();
            self.polled.keys.push(key);
        }
    }

    /// Takes the frames that have come since the last turn.
    pub(crate) fn poll_rings(&mut self) {
        self.polled.have_moved = false;
        if self.polled.keys.is_empty() {
            return;
        }
        self.shared.service.set_peer(None);
        let mut keys = std::mem::take(&mut self.polled.spare);
        std::mem::swap(&mut keys, &mut self.polled.keys);
        for key in keys.drain(..) {
            self.contain(key, |net| net.poll_ring(key));
        }
        self.polled.spare = keys;
    }

    fn poll_ring(&mut self, key: Key) {
        let Some(connection) = self.connections.get_mut(key).filter(|one| !one.has_panicked) else { return };
        let Wire::Ipc(wire) = &mut connection.wire else { return };
        if connection.phase != ClosePhase::Open {
            wire.state.is_polled = false;
            return;
        }
        let has_taken = wire.take_frames(key, &mut self.shared);
        if wire.failed {
            wire.state.is_polled = false;
            return self.touch(key);
        }
        let is_waiting = wire.is_waiting();
        if has_taken {
            wire.state.quiet_turns = 0;
            self.polled.have_moved = true;
        } else {
            wire.state.quiet_turns += 1;
        }
        if wire.state.quiet_turns > QUIET_TURNS_MAX && wire.park() {
            wire.state.is_polled = false;
        } else {
            self.polled.keys.push(key);
        }
        if has_taken || is_waiting {
            self.touch(key);
        }
    }

    /// A ring was settled: it is polled if nothing else would go on with it.
    pub(crate) fn keep_ring(&mut self, key: Key, copies_more: bool, core: &mut Core<u64>) {
        let Some(connection) = self.connections.get(key) else { return };
        let holds_foreign = connection.timer.is_none() && connection.holds_foreign();
        if connection.needs_poll() {
            self.poll_from_now(key);
        }
        if holds_foreign {
            self.watch(key, core);
        }
        if copies_more {
            self.touch(key);
        }
    }

    /// The shard is about to sleep: the clients have to ring. False: there is something in a ring.
    pub(crate) fn park_rings(&mut self) -> bool {
        let Net { polled, connections, .. } = self;
        polled.keys.retain(|key| {
            let Some(connection) = connections.get_mut(*key).filter(|one| !one.has_panicked) else { return false };
            let Wire::Ipc(wire) = &mut connection.wire else { return false };
            let is_parked = connection.phase != ClosePhase::Open || wire.park();
            wire.state.is_polled = !is_parked;
            !is_parked
        });
        self.polled.keys.is_empty()
    }
}

/// Sends the greeting, with the object of an accepted client. A new socket has room for it.
fn send_hello(fd: &OwnedFd, hello: &Hello, object: Option<&OwnedFd>) -> std::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let object = object.map(|object| [object.as_fd()]);
    if let Some(object) = &object
        && !ancillary.push(SendAncillaryMessage::ScmRights(object))
    {
        return Err(std::io::ErrorKind::InvalidInput.into());
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let sent = sendmsg(fd.as_fd(), &[IoSlice::new(&hello.0)], &mut ancillary, flags)?;
    if sent < hello.0.len() {
        return Err(std::io::ErrorKind::WriteZero.into());
    }
    Ok(())
}
