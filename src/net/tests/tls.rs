//! TLS on a Net, against rustls's own client; the control thread is a list of jobs that the test runs. The key in
//! tests/fixtures/tls is good for these tests and for nothing else.

use std::io::{ErrorKind, Read, Write};
use std::path::Path;
use std::sync::Mutex;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, HandshakeKind, RootCertStore, SupportedProtocolVersion, version};

use super::super::*;
use super::peers::{Socket, World, foreign_response, ok_text};
use super::{SECOND_NS, patient};
use nereid_protocol::http1::{Response, ResponseHead};
use nereid_protocol::service::HttpReply;

with_parking_shards! {
    a_request_passes_in_either_version_and_clients_come_back_quicker
    a_shard_waits_for_the_control_thread_in_the_handshake
    any_cut_of_the_records_is_the_same_to_the_codec
    long_bodies_arrive_whole_in_both_directions
    short_pieces_share_a_record
    both_sides_say_goodbye
    a_session_that_nobody_goes_on_with_ends_its_connection
    who_does_not_finish_the_handshake_is_given_up
    who_stops_inside_a_record_is_given_up
    plain_text_and_garbage_end_their_connection
    damaged_records_end_the_connection
    drains_and_the_end_take_sessions_with_them
}

type Jobs = Arc<Mutex<Vec<Box<dyn FnOnce() + Send>>>>;

fn fixture(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/tls").join(name)
}

fn credentials() -> Credentials {
    Credentials { certificate: fixture("certificate.pem"), key: fixture("key.pem"), ..Credentials::default() }
}

/// A world whose HTTP listener speaks TLS, and the jobs of its control thread.
fn world(seed: u64) -> (World, Jobs) {
    let jobs = Jobs::default();
    let waiting = Arc::clone(&jobs);
    let world = World::of(seed, 1000, Keepalive::default(), |post| {
        let http = Some(credentials().load("http", b"http/1.1").unwrap());
        Some(Secure { http, grpc: None, run: Arc::new(move |job| waiting.lock().unwrap().push(job)), post })
    });
    (world, jobs)
}

fn run(jobs: &Jobs) -> usize {
    let due = std::mem::take(&mut *jobs.lock().unwrap());
    due.into_iter().map(|job| job()).count()
}

fn client_config(versions: &[&'static SupportedProtocolVersion]) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(fixture("certificate.pem")).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_protocol_versions(versions).unwrap();
    Arc::new(builder.with_root_certificates(roots).with_no_client_auth())
}

const LISTENER: Listener = Listener { port: Port::Http, tls: true };
const BOTH: [&SupportedProtocolVersion; 2] = [&version::TLS13, &version::TLS12];

struct Client {
    session: ClientConnection,
    socket: Socket,
    /// Bytes that the socket did not take yet.
    unsent: Vec<u8>,
    got: Vec<u8>,
    /// The peer said that it sends no more.
    ended: bool,
    /// Bytes that one turn carries to the server.
    portion: usize,
    /// Bytes of records that came.
    received: usize,
}

impl Client {
    fn new(world: &mut World, config: &Arc<ClientConfig>) -> Client {
        let name = ServerName::try_from("localhost").unwrap();
        let session = ClientConnection::new(Arc::clone(config), name).unwrap();
        let socket = world.enter(LISTENER);
        Client { session, socket, unsent: Vec::new(), got: Vec::new(), ended: false, portion: usize::MAX, received: 0 }
    }

    fn say(&mut self, text: &[u8]) {
        self.session.writer().write_all(text).unwrap();
    }

    /// Sends and receives once. An error is one of the session, or the end of the socket.
    fn step(&mut self) -> Result<(), String> {
        while self.session.wants_write() {
            self.session.write_tls(&mut self.unsent).unwrap();
        }
        let n = self.unsent.len().min(self.portion);
        if let Ok(n) = self.socket.write(&self.unsent[..n]) {
            self.unsent.drain(..n);
        }
        match self.session.read_tls(&mut *self.socket) {
            Ok(0) => return Err("the socket has ended".to_owned()),
            Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error.to_string()),
            Ok(n) => self.received += n,
            Err(_) => {}
        }
        let state = self.session.process_new_packets().map_err(|error| error.to_string())?;
        self.ended |= state.peer_has_closed();
        let mut plain = vec![0; state.plaintext_bytes_to_read()];
        self.session.reader().read_exact(&mut plain).map_err(|error| error.to_string())?;
        self.got.extend_from_slice(&plain);
        Ok(())
    }

    fn go(&mut self, world: &mut World, jobs: &Jobs, turns: usize) -> Result<(), String> {
        for _ in 0..turns {
            self.step()?;
            world.turns(1);
            run(jobs);
        }
        Ok(())
    }
}

#[test]
fn a_request_passes_in_either_version_and_clients_come_back_quicker() {
    for versions in [&BOTH[..1], &BOTH[1..]] {
        let (mut world, jobs) = world(1);
        let config = client_config(versions);
        for kind in [HandshakeKind::Full, HandshakeKind::Resumed] {
            let mut client = Client::new(&mut world, &config);
            client.say(b"GET /now HTTP/1.1\r\n\r\n");
            client.go(&mut world, &jobs, 60).unwrap();
            assert!(client.got.starts_with(b"HTTP/1.1 200"), "{:?}", String::from_utf8_lossy(&client.got));
            assert_eq!(client.session.handshake_kind(), Some(kind), "{versions:?}");
            drop(client);
            world.turns(60);
        }
        world.end();
    }
}

#[test]
fn a_shard_waits_for_the_control_thread_in_the_handshake() {
    let (mut world, jobs) = world(2);
    let mut client = Client::new(&mut world, &client_config(&BOTH));
    let mut other = world.connect(Port::Http);
    for _ in 0..60 {
        client.step().unwrap();
        world.turns(1);
    }
    assert!(client.session.is_handshaking());
    assert_eq!(jobs.lock().unwrap().len(), 1, "one job at a time");
    other.write_all(b"GET /now HTTP/1.1\r\n\r\n").unwrap();
    assert!(world.read(&mut other).starts_with("HTTP/1.1 200"), "others go on");
    client.say(b"GET /now HTTP/1.1\r\n\r\n");
    client.go(&mut world, &jobs, 60).unwrap();
    assert!(client.got.starts_with(b"HTTP/1.1 200"));
    drop((client, other));
    world.end();
}

#[test]
fn any_cut_of_the_records_is_the_same_to_the_codec() {
    for portion in [1, 7, 1000] {
        let (mut world, jobs) = world(3);
        let mut client = Client::new(&mut world, &client_config(&BOTH));
        client.portion = portion;
        client.say(b"GET /now HTTP/1.1\r\n\r\n");
        client.go(&mut world, &jobs, 4000 / portion + 200).unwrap();
        assert!(client.got.starts_with(b"HTTP/1.1 200"), "{portion}");
        client.session.refresh_traffic_keys().unwrap();
        client.say(b"POST /wait HTTP/1.1\r\nContent-Length: 2\r\n\r\nhi");
        client.go(&mut world, &jobs, 2000 / portion + 200).unwrap();
        let (call, body) = world.script.borrow().http[0].clone();
        assert_eq!(body, "hi", "behind new keys");
        client.got.clear();
        world.mail(call, HttpReply::Answer(ok_text("there")));
        client.go(&mut world, &jobs, 60).unwrap();
        assert!(client.got.ends_with(b"there"));
        drop(client);
        world.end();
    }
}

#[test]
fn long_bodies_arrive_whole_in_both_directions() {
    for seed in 0..4 {
        let (mut world, jobs) = world(seed);
        let mut client = Client::new(&mut world, &client_config(&BOTH));
        client.session.set_buffer_limit(None);
        client.say(b"POST /wait HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n");
        client.say(&[b'x'; 1_000_000]);
        client.go(&mut world, &jobs, 600).unwrap();
        let (call, body) = world.script.borrow().http[0].clone();
        assert_eq!(body.len(), 1_000_000, "seed {seed}");
        let (response, owner) = foreign_response(&world.pool, 3 << 20);
        world.mail(call, HttpReply::Answer(response));
        world.turns(60);
        assert!(Arc::strong_count(&owner) > 1, "it waits to be encrypted");
        world.clock.advance(11_000_000);
        world.turns(200);
        assert_eq!(Arc::strong_count(&owner), 1, "seed {seed}: the model has its memory back");
        client.go(&mut world, &jobs, 2000).unwrap();
        assert!(client.got.ends_with(&owner[..]), "seed {seed}: {} bytes", client.got.len());
        drop(client);
        world.end();
    }
}

/// Each record costs its header, a type and a tag: 22 bytes in TLS 1.3.
#[test]
fn short_pieces_share_a_record() {
    let (mut world, jobs) = world(5);
    let mut client = Client::new(&mut world, &client_config(&BOTH[..1]));
    client.say(b"POST /wait HTTP/1.1\r\nContent-Length: 0\r\n\r\n");
    client.go(&mut world, &jobs, 60).unwrap();
    let call = world.script.borrow().http[0].0;
    (client.received, client.got) = (0, Vec::new());
    let mut body = nereid_memory::Gather::new();
    // Too long to be copied together, and all of them shorter than one record.
    for _ in 0..5 {
        body.push(&world.pool, Slice::foreign_vec(&Arc::new(vec![b'x'; 3000])));
    }
    world.mail(call, HttpReply::Answer(Response::new(ResponseHead::new(200), body)));
    client.go(&mut world, &jobs, 60).unwrap();
    assert!(client.got.ends_with(&[b'x'; 15_000]));
    let records = client.received - client.got.len();
    assert!(records <= 2 * 22, "{records} bytes more than the answer of 5 pieces");
    drop(client);
    world.end();
}

#[test]
fn both_sides_say_goodbye() {
    let (mut world, jobs) = world(5);
    let mut client = Client::new(&mut world, &client_config(&BOTH));
    client.say(b"GET /now HTTP/1.1\r\nConnection: close\r\n\r\n");
    let ended = client.go(&mut world, &jobs, 100);
    assert_eq!(ended, Err("the socket has ended".to_owned()));
    assert!(client.ended && client.got.starts_with(b"HTTP/1.1 200"), "the server has said it");
    drop(client);
    let mut client = Client::new(&mut world, &client_config(&BOTH));
    client.go(&mut world, &jobs, 40).unwrap();
    client.say(b"GET /now HTTP/1.1\r\n\r\n");
    client.session.send_close_notify();
    let _ = client.go(&mut world, &jobs, 100);
    assert!(client.ended && client.got.starts_with(b"HTTP/1.1 200"), "what was asked before is answered");
    drop(client);
    world.end();
}

#[test]
fn a_session_that_nobody_goes_on_with_ends_its_connection() {
    let (mut world, jobs) = world(6);
    let mut client = Client::new(&mut world, &client_config(&BOTH));
    for _ in 0..20 {
        client.step().unwrap();
        world.turns(1);
    }
    jobs.lock().unwrap().clear();
    assert!(client.go(&mut world, &jobs, 60).is_err(), "the job was dropped");
    drop(client);
    // The peer leaves while its session is away.
    let mut client = Client::new(&mut world, &client_config(&BOTH));
    for _ in 0..20 {
        client.step().unwrap();
        world.turns(1);
    }
    drop(client);
    world.turns(20);
    assert_eq!(run(&jobs), 1);
    world.turns(20);
    // More than may be away.
    world.shard.handler.handshakes.out_max = 1;
    let mut first = Client::new(&mut world, &client_config(&BOTH));
    let mut second = Client::new(&mut world, &client_config(&BOTH));
    let mut refused = 0;
    for _ in 0..60 {
        refused += [first.step(), second.step()].iter().filter(|step| step.is_err()).count();
        world.turns(1);
    }
    assert!(refused > 0, "one is closed");
    assert_eq!(jobs.lock().unwrap().len(), 1);
    run(&jobs);
    drop((first, second));
    world.end();
}

#[test]
fn who_does_not_finish_the_handshake_is_given_up() {
    let (mut world, jobs) = world(7);
    let silent = world.enter(LISTENER);
    let mut half = world.enter(LISTENER);
    half.write_all(&[0x16, 3, 1, 2, 0, 1]).unwrap();
    world.turns(20);
    for second in 0..12 {
        let left = world.shard.handler.connections.len();
        assert!(second >= 10 || left == 2, "{second}: {left}");
        world.clock.advance(SECOND_NS);
        world.turns(20);
        run(&jobs);
        world.turns(20);
    }
    assert_eq!(world.shard.handler.connections.len(), 0);
    drop((silent, half));
    world.end();
}

#[test]
fn who_stops_inside_a_record_is_given_up() {
    let (mut world, jobs) = world(11);
    world.shard.handler.slow_peers = patient(3);
    let config = client_config(&BOTH);
    let mut idle = Client::new(&mut world, &config);
    let mut half = Client::new(&mut world, &config);
    idle.go(&mut world, &jobs, 40).unwrap();
    half.go(&mut world, &jobs, 40).unwrap();
    half.say(b"GET /now HTTP/1.1\r\n\r\n");
    half.portion = 10;
    half.step().unwrap();
    for _ in 0..6 {
        world.turns(20);
        world.clock.advance(SECOND_NS);
    }
    world.turns(20);
    assert_eq!(world.shard.handler.connections.len(), 1, "the idle one stays");
    drop((idle, half));
    world.end();
}

#[test]
fn plain_text_and_garbage_end_their_connection() {
    let cases: [(&[u8], bool); 5] = [
        (b"GET /now HTTP/1.1\r\n\r\n", true),
        (&[0; 100], true),
        (&[0xff; 20_000], true),
        (b"\x16\x03\x01\x00\x05hello", false),
        (&[0x16, 3, 1, 0, 5, 1, 0, 0, 1, 0], false),
    ];
    for (sent, is_alerted) in cases {
        let (mut world, jobs) = world(8);
        let mut peer = world.enter(LISTENER);
        peer.write_all(sent).unwrap();
        for _ in 0..40 {
            world.turns(2);
            run(&jobs);
        }
        let got = world.read_bytes(&mut peer);
        assert!(got.is_empty() && !is_alerted || got.first() == Some(&0x15), "{sent:02x?} was answered {got:02x?}");
        assert_eq!(peer.read(&mut [0]).unwrap(), 0, "and then the end");
        assert!(world.script.borrow().http.is_empty());
        drop(peer);
        world.end();
    }
}

/// Bytes of a session's peer that change on the way: an alert or an end, never a panic or a wrong request.
#[test]
fn damaged_records_end_the_connection() {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for round in 0..120 {
        let (mut world, jobs) = world(9);
        let mut client = Client::new(&mut world, &client_config(&BOTH));
        if round % 3 > 0 {
            client.go(&mut world, &jobs, 40).unwrap();
        }
        client.say(b"POST /wait HTTP/1.1\r\nContent-Length: 2\r\n\r\nhi");
        if round % 3 == 2 {
            client.session.refresh_traffic_keys().unwrap();
        }
        while client.session.wants_write() {
            client.session.write_tls(&mut client.unsent).unwrap();
        }
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let at = random as usize % client.unsent.len();
        client.unsent[at] ^= 1 << (random >> 32 & 7);
        let _ = client.go(&mut world, &jobs, 60);
        assert!(world.script.borrow().http.iter().all(|(_, body)| body == "hi"));
        drop(client);
        run(&jobs);
        world.turns(60);
        world.end();
    }
}

#[test]
fn drains_and_the_end_take_sessions_with_them() {
    let (mut world, jobs) = world(10);
    let config = client_config(&BOTH);
    let mut shaking = Client::new(&mut world, &config);
    let mut idle = Client::new(&mut world, &config);
    idle.say(b"GET /now HTTP/1.1\r\n\r\n");
    idle.go(&mut world, &jobs, 60).unwrap();
    shaking.step().unwrap();
    world.turns(20);
    world.drain();
    world.turns(40);
    assert_eq!(idle.go(&mut world, &jobs, 5), Err("the socket has ended".to_owned()));
    assert!(idle.ended, "with a goodbye");
    drop((shaking, idle));
    run(&jobs);
    world.end();
}

#[test]
fn files_that_are_no_good_are_named() {
    let good = credentials();
    let cases: [(Credentials, &str); 6] = [
        (Credentials::default(), "TLS needs a value for --grpc-server-cert"),
        (Credentials { key: "".into(), ..good.clone() }, "TLS needs a value for --grpc-server-key"),
        (
            Credentials { certificate: "/none.pem".into(), ..good.clone() },
            "cannot read --grpc-server-cert '/none.pem': No such file or directory (os error 2)",
        ),
        (
            Credentials { certificate: fixture("key.pem"), ..good.clone() },
            &format!(
                "cannot read --grpc-server-cert '{}': it holds no certificate in PEM form",
                fixture("key.pem").display()
            ),
        ),
        (
            Credentials { key: fixture("certificate.pem"), ..good.clone() },
            &format!(
                "cannot read --grpc-server-key '{}': it holds no private key in PEM form",
                fixture("certificate.pem").display()
            ),
        ),
        (Credentials { mutual: true, ..good.clone() }, "TLS needs a value for --grpc-root-cert"),
    ];
    for (credentials, expected) in cases {
        assert_eq!(credentials.load("grpc", b"h2").unwrap_err().to_string(), expected);
    }
    assert_eq!(good.load("grpc", b"h2").unwrap().alpn_protocols, [b"h2"]);
}
