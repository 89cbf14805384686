//! One connection: its protocol, TLS where the target has it, and the state of its socket.

use std::io::{Read, Write};
use std::sync::Arc;

use rustls::ClientConnection;

use super::exchange::{Exchange, Flight, NotBegun, Outcomes, RequestSet, Traffic};
use nereid_ipc::ClientEnd;
use nereid_memory::{BlockMut, Pool, Slice};

/// Pieces of one gathered send; the system's limit is 1024.
const PIECES_MAX: usize = 256;
/// Of one read of plain bytes from a TLS session.
const PLAIN_BYTES: usize = 16 * 1024;

pub struct Connection {
    exchange: Exchange,
    tls: Option<Box<ClientConnection>>,
    /// On the list of connections that may have bytes to send.
    pub dirty: bool,
    pub sending: bool,
    /// The engine was ordered to close it.
    pub closing: bool,
    /// Requests that may begin here, but only once others have ended.
    pub withheld: usize,
    /// Requests that may be in flight here; so many slots are among the free ones or in flight or withheld.
    pub capacity: usize,
    /// What received last was as much as a receive can bring: the next one goes into a larger block.
    pub bulky: bool,
    /// That block, while no receive has it.
    pub block: Option<BlockMut>,
    pieces: Vec<Slice>,
    plain: Vec<u8>,
}

impl Connection {
    pub fn new(request_set: &Arc<RequestSet>, pool: &Pool, tls: Option<ClientConnection>) -> Connection {
        let tls = tls.map(|mut session| {
            // What waits to be sent is bounded by what is in flight.
            session.set_buffer_limit(None);
            Box::new(session)
        });
        Connection::of(Exchange::new(request_set, pool), tls)
    }

    /// Over rings, whose bell is the socket.
    pub fn over_ring(request_set: &Arc<RequestSet>, end: ClientEnd) -> Result<Connection, String> {
        Ok(Connection::of(Exchange::ring(request_set, end)?, None))
    }

    fn of(exchange: Exchange, tls: Option<Box<ClientConnection>>) -> Connection {
        Connection {
            exchange,
            tls,
            dirty: false,
            sending: false,
            closing: false,
            withheld: 0,
            capacity: 0,
            bulky: false,
            block: None,
            pieces: Vec::new(),
            plain: Vec::new(),
        }
    }

    pub fn begin(&mut self, flight: Flight) -> Result<(), NotBegun> {
        self.exchange.begin(flight)
    }

    pub fn in_flight(&self) -> usize {
        self.exchange.in_flight()
    }

    pub fn is_over(&self) -> bool {
        self.exchange.is_over()
    }

    /// Takes received bytes; an error is the connection's end.
    pub fn receive(&mut self, mut bytes: &[u8], now_ns: u64, outcomes: &mut Outcomes) -> Result<(), String> {
        let Some(tls) = &mut self.tls else { return self.exchange.receive(bytes, now_ns, outcomes) };
        self.plain.resize(PLAIN_BYTES, 0);
        while !bytes.is_empty() {
            tls.read_tls(&mut bytes).map_err(|error| format!("TLS: {error}"))?;
            let state = tls.process_new_packets().map_err(|error| format!("TLS: {error}"))?;
            let mut left = state.plaintext_bytes_to_read();
            while left > 0 {
                let n = tls.reader().read(&mut self.plain).map_err(|error| format!("TLS: {error}"))?;
                if n == 0 {
                    break;
                }
                left = left.saturating_sub(n);
                self.exchange.receive(self.plain.get(..n).unwrap_or_default(), now_ns, outcomes)?;
            }
            if state.peer_has_closed() {
                // No request would be answered, and no byte behind its goodbye would ever be taken.
                return Err("the server closed the connection".to_owned());
            }
        }
        Ok(())
    }

    /// The pieces of the next send; `pieces` is an empty vector to be used again.
    pub fn take_output(&mut self, mut pieces: Vec<Slice>) -> Result<Vec<Slice>, String> {
        let Some(tls) = &mut self.tls else {
            self.exchange.take_output(PIECES_MAX, &mut pieces);
            return Ok(pieces);
        };
        if !tls.is_handshaking() {
            self.exchange.take_output(PIECES_MAX, &mut self.pieces);
            for piece in self.pieces.drain(..) {
                tls.writer().write_all(&piece).map_err(|error| format!("TLS: {error}"))?;
            }
        }
        let mut sealed = Vec::new();
        while tls.wants_write() {
            tls.write_tls(&mut sealed).map_err(|error| format!("TLS: {error}"))?;
        }
        if !sealed.is_empty() {
            pieces.push(Slice::copy_of(&sealed));
        }
        Ok(pieces)
    }

    pub fn expire(&mut self, before_ns: u64, now_ns: u64, outcomes: &mut Outcomes) -> Result<(), String> {
        self.exchange.expire(before_ns, now_ns, outcomes)
    }

    pub fn fail(&mut self, reason: &str, now_ns: u64, outcomes: &mut Outcomes) {
        self.exchange.fail(reason, now_ns, outcomes);
    }

    pub fn part(&mut self) -> bool {
        self.exchange.part()
    }

    /// Its socket carries bells, which are no bytes of messages.
    pub fn is_ring(&self) -> bool {
        matches!(self.exchange, Exchange::Ring(_))
    }

    /// True if a ring has to be polled.
    pub fn has_work(&self) -> bool {
        matches!(&self.exchange, Exchange::Ring(ring) if ring.has_work())
    }

    /// True if the server has written frames to a ring.
    pub fn has_frames(&self) -> bool {
        matches!(&self.exchange, Exchange::Ring(ring) if ring.has_frames())
    }

    /// Takes what has come through a ring; an error is the connection's end.
    pub fn poll(&mut self, now_ns: u64, outcomes: &mut Outcomes) -> Result<(), String> {
        match &mut self.exchange {
            Exchange::Ring(ring) => ring.poll(now_ns, outcomes),
            _ => Ok(()),
        }
    }

    /// The thread is about to sleep. False: a ring has to be polled.
    pub fn park(&mut self) -> bool {
        match &mut self.exchange {
            Exchange::Ring(ring) => ring.park(),
            _ => true,
        }
    }

    pub fn unpark(&mut self) {
        if let Exchange::Ring(ring) = &mut self.exchange {
            ring.unpark();
        }
    }

    /// Bytes of messages through a ring, since they were counted last.
    pub fn take_traffic(&mut self) -> Traffic {
        match &mut self.exchange {
            Exchange::Ring(ring) => ring.take_traffic(),
            _ => Traffic::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::mpsc;
    use std::time::Duration;

    use rustls::crypto::ring;
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use rustls::{ServerConfig, ServerConnection};

    use super::*;
    use crate::plan::tests::plan;
    use crate::plan::{Endpoint, Protocol, Target, Tls};

    fn server() -> ServerConnection {
        let file = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/tls").join(name);
        let certificate = CertificateDer::from_pem_file(file("certificate.pem")).unwrap();
        let key = PrivateKeyDer::from_pem_file(file("key.pem")).unwrap();
        let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        let mut config = builder.with_single_cert(vec![certificate], key).unwrap();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        ServerConnection::new(Arc::new(config)).unwrap()
    }

    /// What the server has to say.
    fn words(server: &mut ServerConnection) -> Vec<u8> {
        let mut words = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut words).unwrap();
        }
        words
    }

    /// With so many bytes behind it.
    fn goodbye(more: usize) -> Result<(), String> {
        let tls = Some(Tls { accept_any_certificate: true, ..Tls::default() });
        let target = Target { endpoint: Endpoint::Unix("/".into()), tls, protocol: Protocol::Http };
        let session = target.security()?.unwrap().session()?;
        let request_set = Arc::new(RequestSet::new(&plan(target), Vec::new(), Vec::new()));
        let mut connection = Connection::new(&request_set, &Pool::new(1 << 20), Some(session));
        let (mut server, mut outcomes) = (server(), Outcomes::default());
        while server.is_handshaking() {
            for piece in connection.take_output(Vec::new())? {
                server.read_tls(&mut &piece[..]).unwrap();
                server.process_new_packets().unwrap();
            }
            connection.receive(&words(&mut server), 0, &mut outcomes)?;
        }
        server.send_close_notify();
        let mut last = words(&mut server);
        last.resize(last.len() + more, 0);
        connection.receive(&last, 0, &mut outcomes)
    }

    #[test]
    fn a_goodbye_ends_the_line() {
        // More than one look at the bytes takes in.
        for more in [0, 100_000] {
            let (said, outcome) = mpsc::channel();
            std::thread::spawn(move || said.send(goodbye(more)));
            // A connection that waits for a reader of the rest would wait for ever.
            let outcome = outcome.recv_timeout(Duration::from_secs(300)).expect("an outcome");
            assert_eq!(outcome, Err("the server closed the connection".to_owned()));
        }
    }
}
