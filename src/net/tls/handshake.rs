//! The part of a TLS session that a shard does not do itself.
//!
//! A server signs in its handshake, and where clients are verified it checks their signatures: up to milliseconds of
//! arithmetic. So the whole session, with the bytes that have come, goes to a control thread and comes back by mail
//! (decision 5 of the design). However a job ends, even unrun, there is mail: the shard counts what is out.

use std::panic::{AssertUnwindSafe, catch_unwind};

use rustls::Error;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, UnbufferedStatus};

use super::Post;
use nereid_memory::Key;

/// A session in the middle of its handshake, and what its peer has sent.
pub(crate) struct Handshake {
    pub(super) session: Box<UnbufferedServerConnection>,
    pub(super) incoming: Vec<u8>,
}

/// What became of it.
pub(super) struct HandshakeResult {
    pub session: Box<UnbufferedServerConnection>,
    /// Bytes that make no whole record yet.
    pub incoming: Vec<u8>,
    /// To be sent, an alert after an error included.
    pub outgoing: Vec<u8>,
    /// The peer's first bytes behind its handshake, where they came with the end of it.
    pub plain: Vec<u8>,
    pub outcome: Result<HandshakeStep, Error>,
}

/// Where a session stands when it has worked off what had come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HandshakeStep {
    Handshaking,
    Open,
    /// The peer has sent close_notify.
    PeerClosed,
}

/// Mail of a control thread to the shard. Without a result the job was not run.
pub struct Handshaken {
    pub(super) key: Key,
    pub(super) done: Option<HandshakeResult>,
}

impl Handshaken {
    /// The connection that it belongs to.
    pub fn connection(&self) -> Key {
        self.key
    }
}

impl Handshake {
    /// The job for the control thread.
    pub fn into_job(self, key: Key, post: Post) -> Box<dyn FnOnce() + Send> {
        let answer = Answer { key, done: None, post };
        Box::new(move || {
            // A panic over what one peer has sent is the end of its connection, not of the thread.
            if let Ok(done) = catch_unwind(AssertUnwindSafe(|| self.run())) {
                answer.give(done);
            }
        })
    }

    fn run(self) -> HandshakeResult {
        let Handshake { mut session, mut incoming } = self;
        let (mut outgoing, mut plain) = (Vec::new(), Vec::new());
        let outcome = advance(&mut session, &mut incoming, &mut outgoing, |bytes| plain.extend_from_slice(bytes));
        HandshakeResult { session, incoming, outgoing, plain, outcome }
    }
}

/// Posts the result when the job is over, also where it panics or is dropped.
struct Answer {
    key: Key,
    done: Option<HandshakeResult>,
    post: Post,
}

impl Answer {
    fn give(mut self, done: HandshakeResult) {
        self.done = Some(done);
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        (self.post)(Handshaken { key: self.key, done: self.done.take() });
    }
}

/// Works off `incoming`, of which only an unfinished record is left. Plain text goes to `plain`, what has to be sent to
/// `outgoing`; after an error that is the alert for the peer.
pub(super) fn advance(
    session: &mut UnbufferedServerConnection,
    incoming: &mut Vec<u8>,
    outgoing: &mut Vec<u8>,
    mut plain: impl FnMut(&[u8]),
) -> Result<HandshakeStep, Error> {
    let mut used = 0;
    let outcome = loop {
        let rest = incoming.get_mut(used..).unwrap_or_default();
        let UnbufferedStatus { mut discard, state } = session.process_tls_records(rest);
        let step = match state {
            Err(error) => Some(Err(error)),
            Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                let mut failure = None;
                while let Some(record) = traffic.next_record() {
                    match record {
                        Ok(record) => {
                            discard += record.discard;
                            plain(record.payload);
                        }
                        Err(error) => failure = Some(Err(error)),
                    }
                }
                failure
            }
            Ok(ConnectionState::EncodeTlsData(mut data)) => encode(&mut data, outgoing).err().map(Err),
            Ok(ConnectionState::TransmitTlsData(data)) => {
                // It is in `outgoing`, in front of everything else.
                data.done();
                None
            }
            Ok(ConnectionState::BlockedHandshake) => Some(Ok(HandshakeStep::Handshaking)),
            Ok(ConnectionState::WriteTraffic(_)) => Some(Ok(HandshakeStep::Open)),
            Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => Some(Ok(HandshakeStep::PeerClosed)),
            // Early data is not offered.
            Ok(_) => Some(Err(Error::General("an unexpected state of the session".to_owned()))),
        };
        used += discard;
        if let Some(outcome) = step {
            break outcome;
        }
    };
    incoming.drain(..used.min(incoming.len()));
    if outcome.is_err() {
        take_alert(session, incoming, outgoing);
    }
    outcome
}

/// The alert that a failed session leaves behind. Only the alert is taken from the session: it would judge its input
/// again.
fn take_alert(session: &mut UnbufferedServerConnection, incoming: &mut [u8], outgoing: &mut Vec<u8>) {
    while session.wants_write() {
        let Ok(ConnectionState::EncodeTlsData(mut data)) = session.process_tls_records(incoming).state else { return };
        if encode(&mut data, outgoing).is_err() {
            return;
        }
    }
}

pub(super) fn encode(
    data: &mut rustls::unbuffered::EncodeTlsData<'_, rustls::server::ServerConnectionData>,
    outgoing: &mut Vec<u8>,
) -> Result<(), Error> {
    use rustls::unbuffered::{EncodeError, InsufficientSizeError};
    let at = outgoing.len();
    // The error contains the length that is needed.
    let needed = match data.encode(&mut []) {
        Ok(_) => return Ok(()),
        Err(EncodeError::InsufficientSize(InsufficientSizeError { required_size })) => required_size,
        Err(error) => return Err(Error::General(error.to_string())),
    };
    outgoing.resize(at.saturating_add(needed), 0);
    let written = data.encode(outgoing.get_mut(at..).unwrap_or_default());
    let written = written.map_err(|error| Error::General(error.to_string()))?;
    outgoing.truncate(at + written);
    Ok(())
}
