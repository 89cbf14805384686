//! Hostile and dying peers: after any number of them the server responds, and has no more open descriptors and no more
//! memory than before.

mod flood;
mod injection;
mod memory;
mod panics;
mod probes;
mod slow;
mod turns;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use nereid_wire::inference::model_infer_request::InferInputTensor;
use nereid_wire::inference::{ModelInferRequest, ModelInferResponse};
use prost::Message;

use nereid_test_support::grpc::{Grpc, SERVICE, code, frame, frame_bytes};
use nereid_test_support::http::{Peer, infer_with_tail, request};
use nereid_test_support::random::Random;
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::{PATIENCE, Server};
use nereid_test_support::variant::{self, Variant, each, usual};

/// How many mutated requests each port gets, over all variants: `NEREID_TEST_MUTATIONS=1000000` for a long run.
const MUTATIONS: &str = "NEREID_TEST_MUTATIONS";
const MUTATIONS_DEFAULT: usize = 50_000;

fn mutations() -> usize {
    let wanted = std::env::var(MUTATIONS).ok();
    wanted.map_or(MUTATIONS_DEFAULT, |text| text.parse().unwrap_or_else(|_| panic!("{MUTATIONS}={text} is no number")))
}

fn start(variant: Variant) -> (Repository, Server) {
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("INT32", "-1"), Pair::new("BYTES", "-1").optional()]);
    repository.identity("batching", 8, &[Pair::new("FP32", "-1").labels()]).file("batching/labels.txt", "a\nb\n");
    let decoupled = "model_transaction_policy { decoupled: true }";
    repository.identity_of("identity", "decoupled", 0, &[Pair::new("INT32", "-1")], decoupled);
    let server = Server::start(variant, repository.path(), &["--log-info=false"]);
    (repository, server)
}

/// Fails unless both ports serve a plain request.
fn assert_healthy(server: &Server) {
    let mut peer = Peer::connect(server.http);
    assert_eq!(peer.get("/v2/health/ready").status, 200);
    let body =
        br#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[2],"data":[5,6]}],"outputs":[{"name":"OUTPUT0"}]}"#;
    let answer = peer.post("/v2/models/plain/infer", &[], body);
    assert_eq!(answer.json()["outputs"][0]["data"], serde_json::json!([5, 6]), "{}", answer.text());
    let mut grpc = Grpc::connect(server.grpc);
    let answer: ModelInferResponse = grpc.call("ModelInfer", &message(3)).expect("an answer");
    assert_eq!(answer.raw_output_contents[0].as_ref(), [7u8; 12]);
}

/// A valid request for model `plain` with `count` numbers.
fn message(count: i64) -> ModelInferRequest {
    ModelInferRequest {
        model_name: "plain".into(),
        id: "an id".into(),
        inputs: vec![InferInputTensor {
            name: "INPUT0".into(),
            datatype: "INT32".into(),
            shape: vec![count],
            ..Default::default()
        }],
        outputs: vec![nereid_wire::inference::model_infer_request::InferRequestedOutputTensor {
            name: "OUTPUT0".into(),
            ..Default::default()
        }],
        raw_input_contents: vec![vec![7u8; 4 * count as usize].into()],
        ..Default::default()
    }
}

/// Waits until the server has `expected` descriptors again. The server closes a dead connection when it detects its
/// end, at an unknown time, so this polls; only a leak makes it fail.
fn expect_descriptors(server: &Server, expected: usize) {
    let started = Instant::now();
    loop {
        let now = server.descriptors();
        if now <= expected {
            return;
        }
        assert!(started.elapsed() < PATIENCE, "{expected} descriptors before, {now} after");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn http_seeds() -> Vec<Vec<u8>> {
    let plain = r#"{"id":"a","parameters":{"x":1,"y":"z"},"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[3],"data":[1,-2,3]},{"name":"INPUT1","datatype":"BYTES","shape":[2],"data":["\u00e4","b\n"]}]}"#;
    let tail = r#"{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[2,2],"parameters":{"binary_data_size":16}}],"outputs":[{"name":"OUTPUT0","parameters":{"classification":2}}]}"#;
    let chunked = format!(
        "POST /v2/models/plain/infer HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{plain}\r\n0\r\n\r\n",
        plain.len()
    );
    vec![
        request("POST", "/v2/models/plain/infer", &[("X-Header", "value")], plain.as_bytes()),
        infer_with_tail("/v2/models/batching/infer", tail, b"0123456789abcdef"),
        chunked.into_bytes(),
        request("POST", "/v2/repository/index", &[], b"{\"ready\":true}"),
        request("GET", "/v2/models/plain/config", &[("Accept", "*/*")], b""),
        request("POST", "/v2/models/batching/infer", &[("Inference-Header-Content-Length", "0")], b"12345678"),
    ]
}

/// One of: bytes replaced, removed, repeated, inserted, swapped between two places; or cut short.
fn mutate(seed: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..=random.below(3) {
        if bytes.is_empty() {
            break;
        }
        let at = random.below(bytes.len());
        let len = 1 + random.below((bytes.len() - at).min(8));
        match random.below(6) {
            0 => bytes[at] = random.byte(),
            1 => bytes[at] ^= 1 << random.below(8),
            2 => drop(bytes.drain(at..at + len)),
            3 => {
                let copy = bytes[at..at + len].to_vec();
                bytes.splice(at..at, copy);
            }
            4 => {
                let noise = random.bytes(len);
                bytes.splice(at..at, noise);
            }
            _ => {
                // Numbers at their limits, in place of other bytes.
                let limits: [&[u8]; 6] = [
                    b"-1",
                    b"4294967296",
                    b"18446744073709551615",
                    b"99999999999999999999",
                    b"\xff\xff\xff\xff",
                    b"1e999",
                ];
                bytes.splice(at..at + len, limits[random.below(limits.len())].iter().copied());
            }
        }
    }
    bytes
}

/// Sends in two pieces, cut at `split`, ends the sending direction and reads until the server closes the connection.
fn throw_at(address: SocketAddr, bytes: &[u8], split: usize) -> Vec<u8> {
    let mut stream =
        TcpStream::connect(address).unwrap_or_else(|error| panic!("the server takes no connection: {error}"));
    stream.set_nodelay(true).expect("TCP_NODELAY");
    stream.set_read_timeout(Some(PATIENCE)).expect("a read timeout");
    let (first, second) = bytes.split_at(split.min(bytes.len()));
    // The server may have closed the connection already; then the rest cannot be sent.
    let _ = stream.write_all(first).and_then(|()| stream.write_all(second));
    let _ = stream.shutdown(Shutdown::Write);
    let mut answer = Vec::new();
    if let Err(error) = stream.read_to_end(&mut answer) {
        let hung = matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut);
        assert!(!hung, "the server neither answers nor closes after {:?}", String::from_utf8_lossy(bytes));
    }
    answer
}

#[test]
fn mutated_http_requests_in_every_split() {
    let share = mutations() / variant::ALL.len();
    each(&variant::ALL, |variant| {
        let (_repository, server) = start(variant);
        assert_healthy(&server);
        let descriptors = server.descriptors();
        let seeds = http_seeds();
        let mut random = Random::new(0x6874_7470);
        let mut answered = 0;
        for round in 0..share {
            let seed = &seeds[round % seeds.len()];
            let bytes = mutate(seed, &mut random);
            // Over the rounds, splits occur in the whole request.
            let answer = throw_at(server.http, &bytes, (round / seeds.len()) % (bytes.len() + 1));
            let starts = answer.is_empty() || answer.starts_with(b"HTTP/1.");
            answered += usize::from(!answer.is_empty());
            assert!(
                starts,
                "{:?} was answered {:?}",
                String::from_utf8_lossy(&bytes),
                String::from_utf8_lossy(&answer)
            );
        }
        // Those that end too early are not.
        assert!(answered > share / 2, "{answered} of {share} requests were answered");
        assert_healthy(&server);
        expect_descriptors(&server, descriptors);
        server.stop();
    });
}

/// What a client sends for one unary call, recorded from raw frames: preface, SETTINGS, HEADERS, DATA.
fn http2_session(message: &[u8]) -> Vec<u8> {
    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
        bytes.extend([kind, flags]);
        bytes.extend(stream.to_be_bytes());
        bytes.extend_from_slice(payload);
        bytes
    }
    // Literal header fields without indexing, no Huffman code (RFC 7541 section 6.2.2).
    fn field(name: &str, value: &str) -> Vec<u8> {
        let mut bytes = vec![0, name.len() as u8];
        bytes.extend_from_slice(name.as_bytes());
        bytes.push(value.len() as u8);
        bytes.extend_from_slice(value.as_bytes());
        bytes
    }
    let path = format!("{SERVICE}ModelInfer");
    let headers: Vec<u8> = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path.as_str()),
        (":authority", "t"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ]
    .into_iter()
    .flat_map(|(name, value)| field(name, value))
    .collect();
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(4, 0, 0, &[0, 4, 0, 1, 0, 0]));
    bytes.extend(frame(1, 4, 1, &headers));
    let framed = frame_bytes(0, message);
    let (first, second) = framed.split_at(framed.len() / 2);
    bytes.extend(frame(0, 0, 1, first));
    bytes.extend(frame(8, 0, 0, &1000u32.to_be_bytes()));
    bytes.extend(frame(0, 1, 1, second));
    bytes.extend(frame(6, 0, 0, b"pingpong"));
    bytes
}

#[test]
fn the_recorded_session_is_a_valid_one() {
    let (_repository, server) = start(usual());
    let mut stream = TcpStream::connect(server.grpc).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a read timeout");
    stream.write_all(&http2_session(&message(3).encode_to_vec())).expect("send");
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    while !answer.windows(12).any(|window| window == [7u8; 12]) {
        match stream.read(&mut buffer) {
            Ok(0) => panic!("the connection ends without a tensor: {answer:?}"),
            Ok(read) => answer.extend_from_slice(&buffer[..read]),
            // A signal to the process ends a read that has a timeout, whatever its handler asks for.
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => panic!("{error}; no tensor in {answer:?}"),
        }
    }
    server.stop();
}

#[test]
fn mutated_http2_sessions_in_every_split() {
    let share = mutations() / variant::ALL.len() / 2;
    each(&variant::ALL, |variant| {
        let (_repository, server) = start(variant);
        assert_healthy(&server);
        let descriptors = server.descriptors();
        let seed = http2_session(&message(3).encode_to_vec());
        let mut random = Random::new(0x6832);
        for round in 0..share {
            let bytes = mutate(&seed, &mut random);
            throw_at(server.grpc, &bytes, round % (bytes.len() + 1));
        }
        assert_healthy(&server);
        expect_descriptors(&server, descriptors);
        server.stop();
    });
}

/// Mutations inside valid HTTP/2 frames, so that they reach the scanner of messages.
#[test]
fn mutated_messages_over_one_connection() {
    let share = mutations() / variant::ALL.len() / 2;
    each(&variant::ALL, |variant| {
        let (_repository, server) = start(variant);
        let mut grpc = Grpc::connect(server.grpc);
        let seed = message(3).encode_to_vec();
        let path = format!("{SERVICE}ModelInfer");
        let mut random = Random::new(0x6770_6321);
        for round in 0..share {
            let framed = frame_bytes(0, &mutate(&seed, &mut random));
            let split = round % (framed.len() + 1);
            let reply = grpc.exchange(&path, &[], &[framed.slice(..split), framed.slice(split..)]);
            let known = matches!(
                reply.status.code,
                code::OK
                    | code::INVALID_ARGUMENT
                    | code::NOT_FOUND
                    | code::INTERNAL
                    | code::UNIMPLEMENTED
                    | code::UNAVAILABLE
            );
            assert!(known, "{framed:?}: {:?}", reply.status);
        }
        assert_healthy(&server);
        server.stop();
    });
}

/// Clients that die while they send; the server must release everything that it held for them.
fn die_mid_request(server: &Server, count: usize, random: &mut Random, descriptors: usize) {
    let large = infer_with_tail(
        "/v2/models/plain/infer",
        r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[65536],"parameters":{"binary_data_size":262144}}]}"#,
        &[1; 262_144],
    );
    let small = &http_seeds()[0];
    let grpc_large = http2_session(&message(4000).encode_to_vec());
    let mut held = Vec::new();
    for number in 0..count {
        let (address, bytes) = match number % 3 {
            0 => (server.http, &large),
            1 => (server.http, small),
            _ => (server.grpc, &grpc_large),
        };
        let mut stream = TcpStream::connect(address).unwrap_or_else(|error| panic!("client {number}: {error}"));
        let cut = random.below(bytes.len());
        stream.write_all(&bytes[..cut]).unwrap_or_else(|error| panic!("client {number}: {error}"));
        // Some stay open for a while, so that many die at the same time.
        held.push(stream);
        if held.len() == 100 {
            held.clear();
            // Bounds their number also on a slow machine, because the pool keeps the memory of the highest load.
            expect_descriptors(server, descriptors);
        }
    }
}

#[test]
fn a_thousand_clients_die_mid_request() {
    each(&variant::ALL, |variant| {
        let (_repository, server) = start(variant);
        let mut random = Random::new(1);
        assert_healthy(&server);
        let descriptors = server.descriptors();
        let round = |random: &mut Random| {
            die_mid_request(&server, 1000, random, descriptors);
            assert_healthy(&server);
            expect_descriptors(&server, descriptors);
        };
        // Round one fills the pools. Memory that each of nine more rounds adds is a leak; a heap that reaches its final
        // size later, because more clients waited at the same time, is not.
        round(&mut random);
        let mut resident_kib = vec![server.resident_kib()];
        let is_flat = (0..4).any(|_| {
            (1..10).for_each(|_| round(&mut random));
            // Unused memory is released within seconds, of a machine that is not busy.
            let most = resident_kib[resident_kib.len() - 1] + resident_kib[0] / 20;
            let returned = || server.resident_kib() <= most;
            let start = std::time::Instant::now();
            while !returned() && start.elapsed() < std::time::Duration::from_secs(60) {
                std::thread::sleep(std::time::Duration::from_millis(100));
            }
            resident_kib.push(server.resident_kib());
            returned()
        });
        assert!(is_flat, "every nine rounds of a thousand add memory: {resident_kib:?} KiB");
        server.stop();
    });
}

#[test]
fn calls_given_up_while_they_execute() {
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        let delay = "parameters { key: \"execute_delay_ms\" value { string_value: \"1\" } }";
        repository.identity("plain", 0, &[Pair::new("INT32", "-1"), Pair::new("BYTES", "-1").optional()]);
        repository.identity_of("identity", "slow", 0, &[Pair::new("INT32", "-1")], delay);
        let server = Server::start(variant, repository.path(), &[]);
        assert_healthy(&server);
        let descriptors = server.descriptors();
        let mut grpc = Grpc::connect(server.grpc);
        let slow = ModelInferRequest { model_name: "slow".into(), ..message(1000) };
        for rpc in ["ModelInfer", "ModelStreamInfer"] {
            for number in 0..300 {
                let mut exchange = grpc.open(&format!("{SERVICE}{rpc}"), &[]);
                grpc.send_bytes(&mut exchange, frame(&slow));
                // After the whole message was sent, after a part of it, and before it.
                if number % 3 > 0 {
                    grpc.flush();
                }
                grpc.cancel(exchange);
            }
        }
        for _ in 0..300 {
            let body = r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1],"data":[1]}]}"#;
            Peer::connect(server.http).send(&request("POST", "/v2/models/slow/infer", &[], body.as_bytes()));
        }
        assert_healthy(&server);
        drop(grpc);
        expect_descriptors(&server, descriptors);
        server.stop();
    });
}

#[test]
fn readers_that_do_not_read_hold_nobody_up() {
    each(&variant::ALL, |variant| {
        let (_repository, server) = start(variant);
        let descriptors = server.descriptors();
        let tail = vec![9u8; 4 << 20];
        let json = format!(
            r#"{{"inputs":[{{"name":"INPUT0","datatype":"INT32","shape":[{}],"parameters":{{"binary_data_size":{}}}}}],"parameters":{{"binary_data_output":true}}}}"#,
            tail.len() / 4,
            tail.len()
        );
        let bytes = infer_with_tail("/v2/models/plain/infer", &json, &tail);
        let mut deaf = Vec::new();
        for _ in 0..16 {
            let mut stream = TcpStream::connect(server.http).expect("a connection");
            stream.set_write_timeout(Some(PATIENCE)).expect("a write timeout");
            stream.write_all(&bytes).expect("the server takes the request");
            deaf.push(stream);
        }
        // 16 answers of 4 MiB wait for readers that never come; others are served meanwhile.
        assert_healthy(&server);
        drop(deaf);
        expect_descriptors(&server, descriptors);
        assert_healthy(&server);
        server.stop();
    });
}

#[test]
fn lengths_that_lie_cost_no_memory() {
    let (_repository, server) = start(usual());
    assert_healthy(&server);
    let before = server.resident_kib();
    let mut held = Vec::new();
    for _ in 0..200 {
        let mut stream = TcpStream::connect(server.http).expect("a connection");
        let head = "POST /v2/models/plain/infer HTTP/1.1\r\nHost: t\r\nContent-Length: 2000000000\r\n\r\n{";
        stream.write_all(head.as_bytes()).expect("send");
        held.push(stream);
        let mut stream = TcpStream::connect(server.grpc).expect("a connection");
        let mut bytes = http2_session(b"");
        // The DATA of the session, replaced by the prefix of a message of 2^31 - 1 bytes.
        let at = bytes.len() - 17 - 9 - 3 - 13 - 9 - 2;
        bytes.truncate(at);
        bytes.extend([0, 0, 5, 0, 0, 0, 0, 0, 1, 0, 0x7f, 0xff, 0xff, 0xff]);
        stream.write_all(&bytes).expect("send");
        held.push(stream);
    }
    assert_healthy(&server);
    let after = server.resident_kib();
    assert!(after < before + 100 * 1024, "{before} KiB before, {after} KiB with 400 requests that claim 2 GB each");
    drop(held);
    assert_healthy(&server);
    server.stop();
}
