//! Hostile traffic beside honest clients: shapes that are expensive to read, wrong lengths, and slow peers.
//!
//! `cargo test` sends a little of it and holds the server to right answers and to its memory. With
//! `NEREID_TEST_FLOOD_SECS=60` it goes on for so long at 100 MB/s, and the latency of the honest client is held to
//! twice its quiet value as well (`.ci/extra`): loopback only.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nereid_wire::inference::ModelInferRequest;
use nereid_wire::inference::model_infer_request::InferInputTensor;
use prost::Message;

use crate::hostile::{assert_healthy, http2_session, message, start};
use nereid_test_support::http::{Peer, request};
use nereid_test_support::server::Server;
use nereid_test_support::variant::usual;

const SECS: &str = "NEREID_TEST_FLOOD_SECS";
/// Bytes a second of all hostile peers together.
const RATE: u64 = 100_000_000;
const PEERS: usize = 4;
/// Rounds of each hostile peer where no time is given.
const ROUNDS: usize = 3;
/// Ends a peer whose test has failed.
const LONGEST: Duration = Duration::from_secs(600);
/// What the server may hold more than before: the requests under way, and what its pools keep for the next ones.
const GROWTH_MAX_KIB: u64 = 512 << 10;

/// One connection's bytes of each kind of hostility.
fn hostilities() -> Vec<(bool, Vec<u8>)> {
    let input = |at: usize| InferInputTensor {
        name: format!("I{at:06}"),
        datatype: "INT32".into(),
        shape: vec![1],
        ..Default::default()
    };
    let many = ModelInferRequest { inputs: (0..60_000).map(input).collect(), ..message(1) };
    let tensor = |at: usize| format!(r#"{{"name":"I{at}","datatype":"INT32","shape":[1],"data":[1]}}"#);
    let tensors: Vec<_> = (0..4_000).map(tensor).collect();
    let post = |body: &str| request("POST", "/v2/models/plain/infer", &[], body.as_bytes());
    let blanks = format!(r#"{{"inputs":{}[]}}"#, " ".repeat(4 << 20));
    let deep = format!(r#"{{"inputs":{}"#, "[".repeat(1 << 20));
    let lie = "POST /v2/models/plain/infer HTTP/1.1\r\nHost: t\r\nContent-Length: 60000000\r\n\r\n{";
    vec![
        (false, http2_session(&many.encode_to_vec())),
        (true, post(&format!(r#"{{"inputs":[{}]}}"#, tensors.join(",")))),
        (true, post(&blanks)),
        (true, post(&deep)),
        (true, lie.as_bytes().to_vec()),
        (true, b"POST /v2/models/plain/infer HTTP/1.1\r\nHost: t\r\nX-Long: ".to_vec()),
    ]
}

/// Sends hostile connections until told to stop, within its share of the rate.
fn attack(server: (SocketAddr, SocketAddr), rounds: usize, stop: &AtomicBool, sent: &AtomicU64) {
    let shapes = hostilities();
    let (started, mut own) = (Instant::now(), 0u64);
    let mut held: Vec<TcpStream> = Vec::new();
    for _ in 0..rounds {
        for (is_http, bytes) in &shapes {
            if stop.load(Ordering::Relaxed) || started.elapsed() > LONGEST {
                return;
            }
            let Ok(mut stream) = TcpStream::connect(if *is_http { server.0 } else { server.1 }) else { continue };
            let _ = stream.set_read_timeout(Some(Duration::from_millis(50)));
            // The server may end the connection before it has everything.
            let _ = stream.write_all(bytes);
            let _ = stream.read(&mut [0; 1024]);
            own += bytes.len() as u64;
            sent.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            // Half requests stay open for a while.
            held.push(stream);
            if held.len() == 64 {
                held.clear();
            }
            let due = Duration::from_secs_f64(own as f64 / (RATE / PEERS as u64) as f64);
            std::thread::sleep(due.saturating_sub(started.elapsed()));
        }
    }
}

/// Asks until `done`, checks each answer, and says how long each took.
fn honest(server: &Server, mut done: impl FnMut(usize) -> bool) -> Vec<Duration> {
    let mut peer = Peer::connect(server.http);
    let mut times = Vec::new();
    while !done(times.len()) {
        let number = times.len() % 1000;
        let body = format!(r#"{{"inputs":[{{"name":"INPUT0","datatype":"INT32","shape":[2],"data":[{number},7]}}]}}"#);
        let started = Instant::now();
        let answer = peer.post("/v2/models/plain/infer", &[], body.as_bytes());
        times.push(started.elapsed());
        assert_eq!(answer.json()["outputs"][0]["data"], serde_json::json!([number, 7]), "{}", answer.text());
    }
    times.sort_unstable();
    times
}

/// Takes what it is sent, for as long as the process lives: what the same traffic costs this machine.
fn sink() -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut buffer = vec![0; 256 << 10];
                // Its peers wait for an answer.
                let _ = stream.write_all(b".");
                while stream.read(&mut buffer).is_ok_and(|count| count > 0) {}
            });
        }
    });
    address
}

fn p99(times: &[Duration]) -> Duration {
    times.get(times.len() * 99 / 100).copied().unwrap_or_default()
}

/// What an honest client of a server met while hostile peers sent to an address for so long.
struct Met {
    times: Vec<Duration>,
    sent_mb_per_s: f64,
    resident_max_kib: u64,
}

fn beside(server: &Server, target: (SocketAddr, SocketAddr), secs: Option<u64>) -> Met {
    let (stop, sent, running) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(PEERS as u64));
    let rounds = if secs.is_some() { usize::MAX } else { ROUNDS };
    let (mut resident_max_kib, started) = (0, Instant::now());
    let times = std::thread::scope(|scope| {
        for _ in 0..PEERS {
            scope.spawn(|| {
                attack(target, rounds, &stop, &sent);
                running.fetch_sub(1, Ordering::Relaxed);
            });
        }
        honest(server, |asked| {
            if asked % 64 == 0 {
                resident_max_kib = resident_max_kib.max(server.resident_kib());
            }
            let is_over = secs.is_some_and(|secs| started.elapsed() >= Duration::from_secs(secs));
            stop.store(is_over, Ordering::Relaxed);
            is_over || running.load(Ordering::Relaxed) == 0
        })
    });
    let sent_mb_per_s = sent.load(Ordering::Relaxed) as f64 / started.elapsed().as_secs_f64() / 1e6;
    Met { times, sent_mb_per_s, resident_max_kib }
}

fn report(about: &str, times: &[Duration], more: &str) {
    let at = |quantile: f64| times.get((times.len() as f64 * quantile) as usize).copied().unwrap_or_default();
    println!("{about}: {} requests, p50 {:?}, p99 {:?}, p99.9 {:?}{more}", times.len(), at(0.5), at(0.99), at(0.999));
}

#[test]
fn hostile_traffic_leaves_others_their_answers() {
    let secs: Option<u64> = std::env::var(SECS).ok().map(|text| text.parse().expect("a number of seconds"));
    let (_repository, server) = start(usual());
    assert_healthy(&server);
    let quiet = honest(&server, |asked| asked == if secs.is_some() { 50_000 } else { 500 });
    report("quiet", &quiet, "");
    // What the peers themselves take from this machine, whoever reads what they send.
    let elsewhere = secs.map(|secs| beside(&server, (sink(), sink()), Some(secs.div_ceil(4))));
    if let Some(met) = &elsewhere {
        report("the same traffic sent elsewhere", &met.times, &format!(", {:.0} MB/s", met.sent_mb_per_s));
    }
    let before = server.resident_kib();
    let met = beside(&server, (server.http, server.grpc), secs);
    let most = met.resident_max_kib;
    let more = format!(", {:.0} MB/s; resident {before} KiB before, {most} KiB at most", met.sent_mb_per_s);
    report("hostile traffic", &met.times, &more);
    assert!(most < before + GROWTH_MAX_KIB, "{before} KiB before, {most} KiB under hostile traffic");
    assert_healthy(&server);
    server.stop();
    if let Some(elsewhere) = elsewhere {
        let (quiet, loud) = (p99(&quiet).max(p99(&elsewhere.times)), p99(&met.times));
        assert!(loud <= 2 * quiet, "p99 {loud:?}, {quiet:?} without hostile traffic to the server");
    }
}
