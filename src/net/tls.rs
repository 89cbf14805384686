//! TLS between a connection's socket and its codec, without a socket of its own.
//!
//! Received bytes go in and plain ones come out, straight into the codec; the output of the codec is encrypted into a
//! block that is sent: one copy each way, which is the decryption or encryption itself, and one for records that arrive
//! in pieces. A session is on the shard but for its handshake ([`handshake`]). Both directions are bounded: a turn
//! decrypts one received chunk and encrypts [`SEALED_PER_TURN`] bytes; the rest waits in plain text, where it is
//! bounded as without TLS, and memory that is not ours is copied after 10 ms as there (decision 6 of the design).

mod credentials;
mod handshake;
mod version_1;

use std::collections::VecDeque;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncryptError, UnbufferedStatus, WriteTraffic};
use tracing::debug;

use super::connection::Connection;
use super::timeouts::{COPIED_PER_TURN, copy_portion};
use super::{Net, ShardContext};
use nereid_memory::{BlockMut, Charge, Exhausted, Key, Pool, Slice};
use nereid_protocol::service::{Port, Service};

pub use credentials::{Credentials, CredentialsError};
pub(crate) use handshake::Handshake;
pub use handshake::Handshaken;
use handshake::{HandshakeResult, HandshakeStep, advance};

/// Bytes that one turn encrypts for a connection: some 50 µs.
const SEALED_PER_TURN: usize = 128 << 10;
/// The longest plain text of one record (RFC 8446 section 5.1).
const RECORD: usize = 16 << 10;
/// What a record is longer than its plain text, in any version, generously.
const RECORD_EXTRA: usize = 64;
/// Received bytes that may wait for the rest of a record or handshake message. rustls takes messages of 64 KiB.
const INCOMING_MAX: usize = 256 << 10;
/// Of these, bytes of a handshake that are not charged to the connection.
const HANDSHAKE_FREE: usize = 16 << 10;
/// Handshakes of one shard that may be with the control thread.
const HANDSHAKES_MAX: usize = 512;
/// Seconds that a peer has for its part of the handshake.
const HANDSHAKE_S: u32 = 10;

/// Runs a job on a control thread; a job that cannot be run is dropped.
pub type Run = Arc<dyn Fn(Box<dyn FnOnce() + Send>) + Send + Sync>;
/// Posts mail of a control thread to the shard.
pub type Post = Arc<dyn Fn(Handshaken) + Send + Sync>;

/// What the connections of one shard need for TLS.
#[derive(Clone)]
pub struct Secure {
    pub http: Option<Arc<ServerConfig>>,
    pub grpc: Option<Arc<ServerConfig>>,
    pub run: Run,
    pub post: Post,
}

/// The sessions that are out with the control thread.
pub(super) struct Handshakes {
    secure: Option<Secure>,
    out: usize,
    pub(super) out_max: usize,
}

/// One connection's session.
pub(super) struct Tls {
    state: SessionState,
    /// Received bytes that make no whole record yet.
    incoming: Vec<u8>,
    /// To be sent before anything else.
    outgoing: Vec<u8>,
    /// Output of the codec that is not encrypted yet.
    backlog: VecDeque<Slice>,
    /// The backlog holds foreign memory for too long and is copied.
    copies_backlog: bool,
    /// Small pieces collect here to fill a record.
    record: Vec<u8>,
    close_notify_queued: bool,
    handshake_s: u32,
    pool: Pool,
    /// What a long handshake is charged with.
    held: Option<Charge>,
}

enum SessionState {
    Handshaking(Box<UnbufferedServerConnection>),
    /// With the control thread.
    InControlThread,
    Open(Box<UnbufferedServerConnection>),
    Failed,
}

/// What received bytes have led to in a session.
pub(super) enum TlsOutcome {
    Nothing,
    /// A control thread has to go on.
    Handshake(Handshake),
    /// The peer sends no more.
    Closed,
    /// The session is of no use any more; an alert may have to be sent.
    Failed,
}

impl Handshakes {
    pub fn new(secure: Option<Secure>) -> Handshakes {
        Handshakes { secure, out: 0, out_max: HANDSHAKES_MAX }
    }

    /// A session for a new connection; `None`: the port has no TLS.
    pub fn begin(&self, port: Port, pool: &Pool) -> Option<Tls> {
        let secure = self.secure.as_ref()?;
        let config = match port {
            Port::Http | Port::OpenAi => secure.http.as_ref()?,
            Port::Grpc => secure.grpc.as_ref()?,
            Port::Metrics | Port::SageMaker | Port::Vertex | Port::Ipc => return None,
        };
        Tls::new(config, pool.clone()).map_err(|error| debug!("a connection gets no TLS session: {error}")).ok()
    }

    /// Hands a session to the control thread; false if too many are there.
    fn hand_out(&mut self, key: Key, handshake: Handshake) -> bool {
        let Some(secure) = self.secure.as_ref().filter(|_| self.out < self.out_max) else { return false };
        self.out += 1;
        (secure.run)(handshake.into_job(key, Arc::clone(&secure.post)));
        true
    }
}

impl<S: Service> Net<S> {
    /// A session has to be worked on where a shard may not.
    pub(super) fn hand_out(&mut self, key: Key, handshake: Handshake) {
        if !self.handshakes.hand_out(key, handshake)
            && let Some(connection) = self.connections.get_mut(key)
        {
            debug!("a connection is closed: too many TLS handshakes wait");
            connection.phase.fail();
        }
    }

    /// A session is back.
    pub(super) fn handshaken(&mut self, Handshaken { key, done }: Handshaken) {
        self.handshakes.out = self.handshakes.out.saturating_sub(1);
        // The connection may be gone.
        let Some(connection) = self.connections.get_mut(key).filter(|one| !one.has_panicked) else { return };
        let taken = connection.handshaken(key, done, &mut self.shared);
        self.route_replies();
        if matches!(taken, TlsOutcome::Closed) {
            self.end_of_session(key);
        }
        self.touch(key);
    }

    /// The peer has ended its TLS session: what it requested before has its answer by now, if that needed no wait.
    pub(super) fn end_of_session(&mut self, key: Key) {
        if let Some(connection) = self.connections.get_mut(key) {
            connection.peer_left(key, &mut self.shared);
            self.route_replies();
        }
    }
}

impl Connection {
    /// Takes a session back.
    fn handshaken<S: Service>(
        &mut self,
        key: Key,
        done: Option<HandshakeResult>,
        shared: &mut ShardContext<S>,
    ) -> TlsOutcome {
        let Some(mut tls) = self.tls.take() else { return TlsOutcome::Nothing };
        let mut first_bytes = Vec::new();
        let taken = tls.come_back(done, &mut first_bytes);
        self.tls = Some(tls);
        if !first_bytes.is_empty() && !self.phase.drops_input() {
            self.receive(key, &first_bytes, shared);
        }
        self.settle_outcome(taken, shared)
    }

    /// Feeds received bytes through the session.
    pub fn receive_tls<S: Service>(&mut self, key: Key, bytes: &[u8], shared: &mut ShardContext<S>) -> TlsOutcome {
        let Some(mut tls) = self.tls.take() else { return TlsOutcome::Nothing };
        let taken = tls.receive(bytes, |plain| self.receive(key, plain, shared));
        self.tls = Some(tls);
        self.settle_outcome(taken, shared)
    }

    fn settle_outcome<S: Service>(&mut self, taken: TlsOutcome, shared: &mut ShardContext<S>) -> TlsOutcome {
        if matches!(taken, TlsOutcome::Failed) {
            self.abandon(shared);
        }
        taken
    }
}

impl Tls {
    fn new(config: &Arc<ServerConfig>, pool: Pool) -> Result<Tls, rustls::Error> {
        let session = Box::new(UnbufferedServerConnection::new(Arc::clone(config))?);
        Ok(Tls {
            state: SessionState::Handshaking(session),
            incoming: Vec::new(),
            outgoing: Vec::new(),
            backlog: VecDeque::new(),
            copies_backlog: false,
            record: Vec::new(),
            close_notify_queued: false,
            handshake_s: 0,
            pool,
            held: None,
        })
    }

    /// Takes received bytes. During the handshake they only collect.
    fn receive(&mut self, bytes: &[u8], plain: impl FnMut(&[u8])) -> TlsOutcome {
        if matches!(self.state, SessionState::Failed) {
            return TlsOutcome::Nothing;
        }
        let collected = self.incoming.len().saturating_add(bytes.len());
        if collected > INCOMING_MAX {
            debug!("a connection is closed: its TLS messages are too long");
            self.state = SessionState::Failed;
            return TlsOutcome::Failed;
        }
        if matches!(self.state, SessionState::Handshaking(_)) && collected > HANDSHAKE_FREE && self.held.is_none() {
            match self.pool.hold(INCOMING_MAX) {
                Ok(held) => self.held = Some(held),
                Err(exhausted) => {
                    debug!("a connection is closed: no memory for its TLS handshake: {exhausted}");
                    (self.state, self.incoming) = (SessionState::Failed, Vec::new());
                    return TlsOutcome::Failed;
                }
            }
        }
        self.incoming.extend_from_slice(bytes);
        match std::mem::replace(&mut self.state, SessionState::Failed) {
            SessionState::Handshaking(session) => {
                self.state = SessionState::InControlThread;
                TlsOutcome::Handshake(Handshake { session, incoming: std::mem::take(&mut self.incoming) })
            }
            SessionState::Open(mut session) => {
                let step = advance(&mut session, &mut self.incoming, &mut self.outgoing, plain);
                if self.incoming.is_empty() {
                    // A connection that is quiet holds no memory for it.
                    self.incoming = Vec::new();
                }
                self.after_step(session, step)
            }
            state @ (SessionState::InControlThread | SessionState::Failed) => {
                self.state = state;
                TlsOutcome::Nothing
            }
        }
    }

    fn come_back(&mut self, done: Option<HandshakeResult>, first_bytes: &mut Vec<u8>) -> TlsOutcome {
        let Some(HandshakeResult { session, incoming, mut outgoing, plain, outcome }) = done else {
            debug!("a connection is closed: no control thread could go on with its TLS handshake");
            self.state = SessionState::Failed;
            return TlsOutcome::Failed;
        };
        self.outgoing.append(&mut outgoing);
        *first_bytes = plain;
        // Nothing was read meanwhile.
        self.incoming = incoming;
        self.after_step(session, outcome)
    }

    fn after_step(
        &mut self,
        session: Box<UnbufferedServerConnection>,
        step: Result<HandshakeStep, rustls::Error>,
    ) -> TlsOutcome {
        match step {
            Ok(HandshakeStep::Handshaking) => self.state = SessionState::Handshaking(session),
            Ok(HandshakeStep::Open) => (self.state, self.held) = (SessionState::Open(session), None),
            Ok(HandshakeStep::PeerClosed) => {
                self.state = SessionState::Open(session);
                return TlsOutcome::Closed;
            }
            Err(error) => {
                debug!("a connection is closed: TLS: {error}");
                self.state = SessionState::Failed;
                self.backlog.clear();
                return TlsOutcome::Failed;
            }
        }
        TlsOutcome::Nothing
    }

    /// Appends what is sent next to `pieces`; `take_pieces` takes the output of the codec. An error: the session is of
    /// no use any more.
    pub fn seal(
        &mut self,
        pool: &Pool,
        pieces: &mut Vec<Slice>,
        take_pieces: impl FnOnce(&mut Vec<Slice>),
    ) -> Result<(), rustls::Error> {
        if let SessionState::Open(session) = &mut self.state {
            if self.backlog.is_empty() && !self.close_notify_queued {
                let mut taken = Vec::new();
                take_pieces(&mut taken);
                self.backlog.extend(taken);
            }
            if !self.backlog.is_empty() {
                let total: usize = self.backlog.iter().map(|piece| piece.len()).sum();
                let total = total.min(SEALED_PER_TURN);
                let mut sealed = Sealed::of(pool, total);
                let (backlog, record) = (&mut self.backlog, &mut self.record);
                with_traffic(session, &mut self.incoming, &mut self.outgoing, |traffic| {
                    seal_portion(traffic, backlog, record, &mut sealed)
                })?;
                self.put_outgoing(pieces);
                pieces.push(sealed.finish());
                return Ok(());
            }
        }
        self.put_outgoing(pieces);
        Ok(())
    }

    fn put_outgoing(&mut self, pieces: &mut Vec<Slice>) {
        if !self.outgoing.is_empty() {
            pieces.push(Slice::copy_of(&self.outgoing));
            self.outgoing = Vec::new();
        }
    }

    /// Notifies the peer that nothing follows (RFC 8446 section 6.1); true if that has still to be sent.
    pub fn queue_close_notify(&mut self) -> bool {
        let SessionState::Open(session) = &mut self.state else { return false };
        if std::mem::replace(&mut self.close_notify_queued, true) {
            return false;
        }
        let mut notify = vec![0; RECORD_EXTRA * 2];
        let written = with_traffic(session, &mut self.incoming, &mut self.outgoing, |mut traffic| {
            traffic.queue_close_notify(&mut notify).map_err(|error| rustls::Error::General(error.to_string()))
        });
        match written {
            Ok(n) => self.outgoing.extend_from_slice(notify.get(..n).unwrap_or_default()),
            Err(error) => debug!("a TLS session ends without a word: {error}"),
        }
        !self.outgoing.is_empty()
    }

    /// All output of the codec is with the engine.
    pub fn is_flushed(&self) -> bool {
        self.outgoing.is_empty() && self.backlog.is_empty()
    }

    pub fn has_failed(&self) -> bool {
        matches!(self.state, SessionState::Failed)
    }

    /// The handshake is over.
    pub fn is_open(&self) -> bool {
        matches!(self.state, SessionState::Open(_))
    }

    /// Bytes may come: the session is here.
    pub fn wants_read(&self) -> bool {
        matches!(self.state, SessionState::Handshaking(_) | SessionState::Open(_))
    }

    /// The peer owes the rest of a record.
    pub fn is_half_received(&self) -> bool {
        !self.incoming.is_empty()
    }

    /// A second has passed; true if the peer has had its time for the handshake.
    pub fn second_passed(&mut self) -> bool {
        self.handshake_s =
            self.handshake_s.saturating_add(u32::from(matches!(self.state, SessionState::Handshaking(_))));
        self.handshake_s >= HANDSHAKE_S && !self.is_open()
    }

    /// Memory of others waits to be encrypted.
    pub fn holds_foreign(&self) -> bool {
        self.backlog.iter().any(Slice::is_foreign)
    }

    /// From now on the backlog is copied.
    pub fn let_go(&mut self) {
        self.copies_backlog = true;
    }

    /// Copies a portion of the backlog if it is time to; true if there is more to copy.
    pub fn copy_backlog(&mut self, pool: &Pool) -> Result<bool, Exhausted> {
        if !self.copies_backlog {
            return Ok(false);
        }
        let mut copied = Vec::new();
        copy_portion(&mut self.backlog, &mut copied, pool, &mut { COPIED_PER_TURN })?;
        let uncopied = self.holds_foreign();
        for piece in copied.into_iter().rev() {
            self.backlog.push_front(piece);
        }
        self.copies_backlog = uncopied;
        Ok(uncopied)
    }
}

/// A block that fills with records.
struct Sealed {
    block: BlockMut,
    at: usize,
}

impl Sealed {
    /// With room for the records of `total` bytes.
    fn of(pool: &Pool, total: usize) -> Sealed {
        // A record that is not full may stand in front of each full one and at the end.
        let records = (total / RECORD + 1) * 2;
        let len = total + (records + 1) * RECORD_EXTRA;
        Sealed { block: pool.get_anyway(len), at: 0 }
    }

    fn put<D>(&mut self, traffic: &mut WriteTraffic<'_, D>, plain: &[u8]) -> Result<(), rustls::Error> {
        let room = self.block.get_mut(self.at..).unwrap_or_default();
        match traffic.encrypt(plain, room) {
            Ok(n) => self.at += n,
            Err(EncryptError::EncryptExhausted) => return Err(rustls::Error::EncryptError),
            Err(error) => return Err(rustls::Error::General(error.to_string())),
        }
        Ok(())
    }

    fn finish(mut self) -> Slice {
        self.block.set_len(self.at);
        self.block.freeze()
    }
}

/// Encrypts from the front of `backlog`, at most [`SEALED_PER_TURN`] bytes. Short pieces share records.
fn seal_portion<D>(
    mut traffic: WriteTraffic<'_, D>,
    backlog: &mut VecDeque<Slice>,
    record: &mut Vec<u8>,
    sealed: &mut Sealed,
) -> Result<(), rustls::Error> {
    let mut budget = SEALED_PER_TURN;
    record.clear();
    while budget > 0
        && let Some(piece) = backlog.front_mut()
    {
        let alone = record.is_empty() && piece.len() >= RECORD;
        // Whole records of a long piece, or what fits into the shared one.
        let room = if alone { budget } else { (RECORD - record.len()).min(budget) };
        let n = piece.len().min(room);
        budget -= n;
        match (alone, piece.shared()) {
            // A reference is what the session takes: of memory that another process may write to, a copy of this part.
            (true, Some(_)) => sealed.put(&mut traffic, &piece.window(0..n))?,
            (true, None) => sealed.put(&mut traffic, piece.get(..n).unwrap_or_default())?,
            (false, None) => record.extend_from_slice(piece.get(..n).unwrap_or_default()),
            (false, Some(_)) => {
                let filled = record.len();
                record.resize(filled + n, 0);
                piece.copy_to(0, record.get_mut(filled..).unwrap_or_default());
            }
        }
        piece.advance(n);
        if piece.is_empty() {
            backlog.pop_front();
        }
        if record.len() == RECORD {
            sealed.put(&mut traffic, record)?;
            record.clear();
        }
    }
    if !record.is_empty() {
        sealed.put(&mut traffic, record)?;
    }
    *record = Vec::new();
    Ok(())
}

/// Lets `run` write; the session's own records go to `outgoing` first. The session is given the bytes that it has seen
/// already, because it keeps places in them.
fn with_traffic<R>(
    session: &mut UnbufferedServerConnection,
    incoming: &mut [u8],
    outgoing: &mut Vec<u8>,
    run: impl FnOnce(WriteTraffic<'_, rustls::server::ServerConnectionData>) -> Result<R, rustls::Error>,
) -> Result<R, rustls::Error> {
    loop {
        let UnbufferedStatus { discard, state } = session.process_tls_records(incoming);
        if discard > 0 {
            // What had come was worked off as it came.
            return Err(rustls::Error::General("bytes were left over".to_owned()));
        }
        match state? {
            ConnectionState::WriteTraffic(traffic) => return run(traffic),
            ConnectionState::EncodeTlsData(mut data) => handshake::encode(&mut data, outgoing)?,
            ConnectionState::TransmitTlsData(data) => data.done(),
            ConnectionState::PeerClosed => {}
            _ => return Err(rustls::Error::HandshakeNotComplete),
        }
    }
}
