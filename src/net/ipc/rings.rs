//! How a shard takes clients of shared-memory rings, polls their rings while it is awake, and has them wake it when it
//! is about to sleep.

use std::hash::{BuildHasher, RandomState};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use rustix::net::sockopt::socket_peercred;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tracing::{debug, warn};

use super::{ClientPlace, IpcWire};
use crate::connection::{ClosePhase, Connection, Wire};
use crate::{Listener, Net};
use nereid_ipc::{Hello, ServerEnd, Sizes};
use nereid_memory::regions::{LENT_PREFIX, LentRegion};
use nereid_memory::{CallLedger, Key, Segment};
use nereid_protocol::grpc::Code;
use nereid_protocol::service::Service;
use nereid_shard::{Core, LoadGuard};

/// Turns without a frame after which a ring is polled no more: its client has to ring.
const QUIET_TURNS_MAX: u32 = 64;

/// Calls that one client may have open. The numbers of calls are the client's choice, which could make look-ups slow.
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
    /// Clients at a time, and how many there are on all shards.
    pub clients_max: usize,
    pub clients: Arc<AtomicUsize>,
    pub lend: Lend,
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

/// A name for an arena that cannot be guessed: 128 bits of hashes under keys that the system made.
fn random_name() -> Vec<u8> {
    let random = || RandomState::new().hash_one(0);
    [LENT_PREFIX, format!("{:016x}{:016x}", random(), random()).as_bytes()].concat()
}

impl<S: Service> Net<S> {
    /// Takes a new client of a shared-memory ring, or sends it the reason why not.
    pub(crate) fn adopt_ipc(&mut self, fd: OwnedFd, listener: Listener, load_guard: LoadGuard, core: &mut Core<u64>) {
        let (wire, hello) = match self.new_ring(&fd) {
            Ok(made) => made,
            Err((code, text)) => {
                debug!("a client of the shared-memory ring is refused: {text}");
                let hello = Hello::refusal(code as u32, &text);
                // It goes with the socket that is closed now; there is room in a new one.
                let _ = send_hello(&fd, &hello, None);
                return;
            }
        };
        if let Err(error) = send_hello(&fd, &hello, Some(&wire.end)) {
            return debug!("a client of the shared-memory ring is gone: {error}");
        }
        let tally = self.shared.pool.tally();
        let connection = Connection::new(Wire::Ipc(Box::new(wire)), (listener.port, None), load_guard, None, tally);
        self.insert(fd, connection, core);
    }

    fn new_ring(&self, fd: &OwnedFd) -> Result<(IpcWire, Hello), (Code, String)> {
        let Some(settings) = &self.ipc else { return Err((Code::Internal, "no ring is configured".to_owned())) };
        let internal = |error: std::io::Error| (Code::Internal, format!("the server cannot make a ring: {error}"));
        let peer = socket_peercred(fd).map_err(|error| internal(error.into()))?;
        let user = peer.uid.as_raw();
        if !settings.lets_in(user) {
            let text = format!("user {user} may not connect: the server's --ipc-users does not list it");
            return Err((Code::PermissionDenied, text));
        }
        let Some(place) = ClientPlace::take(&settings.clients, settings.clients_max) else {
            let text = format!("{} clients are connected, as many as --ipc-connections allows", settings.clients_max);
            return Err((Code::ResourceExhausted, text));
        };
        let name = random_name();
        let end = ServerEnd::create(settings.sizes, &name).map_err(internal)?;
        let (at, len) = end.arena();
        let lent = if len > 0 { (settings.lend)(&name, Arc::clone(end.segment()), at, len) } else { None };
        if len > 0 && lent.is_none() {
            warn!("the arena of a client of the shared-memory ring cannot be used");
        }
        // A client of a Unix socket has no address.
        let pool = self.shared.pool.share(self.shares.connection, None);
        let ledger = CallLedger::new(self.shares.connection_calls.min(CALLS_MAX), None);
        let hello = end.hello();
        Ok((IpcWire::new(end, (pool, ledger), lent, place), hello))
    }

    /// The client has rung, or its ring is new: it is polled from now on.
    pub(crate) fn poll_from_now(&mut self, key: Key) {
        if let Some(connection) = self.connections.get_mut(key)
            && let Wire::Ipc(wire) = &mut connection.wire
            && connection.phase == ClosePhase::Open
            && !std::mem::replace(&mut wire.state.is_polled, true)
        {
            wire.state.quiet_turns = 0;
            wire.end.unpark();
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
fn send_hello(fd: &OwnedFd, hello: &Hello, end: Option<&ServerEnd>) -> std::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let object = end.map(|end| [end.object()]);
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
