//! Peers that try to exhaust the server's memory: with announced lengths, with data on open requests, with compressed
//! data, and with responses that they do not read. The kernel limits the memory of the process, which must keep serving
//! other clients.

use std::io::Write;

use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use nereid_wire::inference::InferParameter;
use nereid_wire::inference::infer_parameter::ParameterChoice;
use prost::Message;

use crate::hostile::{assert_healthy, expect_descriptors, message, variant};
use nereid_test_support::grpc::{Grpc, SERVICE, code, frame_bytes};
use nereid_test_support::http::{Peer, infer_with_tail, request};
use nereid_test_support::http2::{RawPeer, frame, kind};
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::{Server, binary, run_to_end_under};
use nereid_test_support::variant::{Variant, each, usual};

const MIB: usize = 1 << 20;
const INFER: &str = "/v2/models/plain/infer";
/// What the kernel lets the process have: `memory allocation failed` is the end of one that asks for more.
const ADDRESSES_KIB: usize = 3_000_000;

/// The words before the flags of a server that may have so many addresses.
fn limited_to(kib: usize) -> [String; 4] {
    let limited = format!("ulimit -c 0; ulimit -v {kib}; exec \"$0\" \"$@\"");
    ["sh".to_owned(), "-c".to_owned(), limited, binary().to_string_lossy().into_owned()]
}

fn start(variant: Variant, flags: &[&str]) -> (Repository, Server) {
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("INT32", "-1"), Pair::new("BYTES", "-1").optional()]);
    let words = limited_to(ADDRESSES_KIB);
    let flags: Vec<&str> = flags.iter().copied().chain(["--log-info=false"]).collect();
    let server = Server::start_under(&words, variant, repository.path(), &flags, "/v2/health/ready");
    (repository, server)
}

/// Bytes of request data that the server holds now.
fn bytes_in_use(server: &Server) -> usize {
    let page = Peer::connect(server.metrics).get("/metrics").text();
    let line = page.lines().find(|line| line.starts_with("nereid_pool_bytes_in_use "));
    let number = line.and_then(|line| line.split(' ').nth(1)).unwrap_or_else(|| panic!("no gauge in {page}"));
    number.parse::<f64>().unwrap_or_else(|error| panic!("{number}: {error}")) as usize
}

/// A request with `tail` as its input.
fn upload(tail: &[u8]) -> Vec<u8> {
    let json = format!(
        r#"{{"inputs":[{{"name":"INPUT0","datatype":"INT32","shape":[{}],"parameters":{{"binary_data_size":{}}}}}],"parameters":{{"binary_data_output":true}}}}"#,
        tail.len() / 4,
        tail.len()
    );
    infer_with_tail(INFER, &json, tail)
}

/// 5 KB of heads, and as little of messages, announce many times what there is.
#[test]
fn announced_lengths_take_no_memory() {
    each(&variant::ALL, |variant| {
        let (_repository, server) = start(variant, &[]);
        assert_healthy(&server);
        let mut held = Vec::new();
        for _ in 0..100 {
            let mut peer = Peer::connect(server.http);
            let head = format!("POST {INFER} HTTP/1.1\r\nHost: t\r\nContent-Length: 67108864\r\n\r\n{{");
            peer.send(head.as_bytes());
            held.push(peer);
        }
        // A message of 2 GiB less a little, whose one tensor is nearly as long, on each of many streams.
        let mut message = message(1).encode_to_vec();
        message.truncate(message.len() - 6);
        message.extend([0x3a, 0x80, 0x80, 0x80, 0xf0, 0x07, 1, 2, 3]);
        let mut framed = vec![0, 0x7f, 0xff, 0xff, 0xff];
        framed.extend(&message);
        let mut many = RawPeer::greet(server.grpc, &[]);
        for stream in (1..200).step_by(2) {
            many.open(stream, &format!("{SERVICE}ModelInfer"));
            many.send(&frame(kind::DATA, 0, stream, &framed));
        }
        // All of it was read when the connection answers a ping behind it.
        many.send(&frame(kind::PING, 0, 0, b"12345678")).expect(kind::PING);
        let answer = Peer::connect(server.http).send(&upload(&vec![7; 4 * MIB])).answer();
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_healthy(&server);
        let used = bytes_in_use(&server);
        assert!(used < 64 * MIB, "{used} bytes for 200 requests of which some bytes have come");
        drop((held, many));
        server.stop();
    });
}

/// Bodies of 64 MiB that stop one byte before their end, many more than fit.
#[test]
fn uploads_that_are_held_open_are_refused_beyond_the_budget() {
    each(&variant::ALL, |variant| {
        let (_repository, server) = start(variant, &["--request-memory-byte-size=100000000"]);
        let whole = upload(&vec![1; 24 * MIB]);
        let mut held = Vec::new();
        for _ in 0..8 {
            let mut peer = Peer::connect(server.http);
            // The server may answer and close before all of it is sent.
            peer.try_send(&whole[..whole.len() - 1]);
            held.push(peer);
            assert_healthy(&server);
        }
        let used = bytes_in_use(&server);
        assert!(used <= 100_000_000, "{used} bytes");
        // One that was taken is served when its last byte comes; those that did not fit were told so.
        let statuses: Vec<u16> = held
            .into_iter()
            .map(|mut peer| {
                peer.try_send(&whole[whole.len() - 1..]);
                peer.try_answer().map_or(0, |answer| answer.status)
            })
            .collect();
        assert!(statuses.contains(&200), "{statuses:?}");
        assert!(statuses.contains(&503), "{statuses:?}");
        assert!(statuses.iter().all(|status| [0, 200, 503].contains(status)), "{statuses:?}");
        assert_healthy(&server);
        server.stop();
    });
}

/// Zeros, packed: `count` members of `len` bytes each make one text of gzip.
fn gzip_bomb(len: usize, count: usize) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(&vec![0; len]).expect("a vector takes everything");
    encoder.finish().expect("a vector takes everything").repeat(count)
}

/// Eight messages that become gigabytes, and a hundred bodies that become 64 MiB each.
#[test]
fn packed_bombs_are_refused_and_others_served() {
    let (_repository, server) = start(usual(), &["--request-memory-byte-size=100000000"]);
    let bomb = frame_bytes(1, &gzip_bomb(4 * MIB, 300));
    let mut messages = RawPeer::greet(server.grpc, &[]);
    let mut grpc = Grpc::connect(server.grpc);
    let exchanges: Vec<_> = (0..8)
        .map(|_| {
            let mut exchange = grpc.open(&format!("{SERVICE}ModelInfer"), &[("grpc-encoding", "gzip")]);
            grpc.send_bytes(&mut exchange, bomb.clone());
            grpc.half_close(&mut exchange);
            exchange
        })
        .collect();
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(&vec![b' '; 40 * MIB]).expect("a vector takes everything");
    let packed = encoder.finish().expect("a vector takes everything");
    let body = request("POST", INFER, &[("Content-Encoding", "deflate")], &packed);
    let mut posts: Vec<Peer> = (0..20)
        .map(|_| {
            let mut peer = Peer::connect(server.http);
            peer.send(&body);
            peer
        })
        .collect();
    assert_healthy(&server);
    for exchange in exchanges {
        let status = grpc.finish(exchange).status;
        assert_eq!(status.code, code::RESOURCE_EXHAUSTED, "{status:?}");
    }
    for post in &mut posts {
        // What fits is no JSON; what does not fit is told so.
        let answer = post.answer();
        assert!([400, 503].contains(&answer.status), "{}: {}", answer.status, answer.text());
    }
    assert_healthy(&server);
    messages.send(&frame(kind::PING, 0, 0, b"12345678")).expect(kind::PING);
    // What the requests held goes after their answers.
    server.wait_until("nothing is held when all is over", || bytes_in_use(&server) < 20_000_000);
    server.stop();
}

/// A client whose window is 0 takes none of its answers: they are bounded, and the calls beyond them end.
#[test]
fn answers_to_a_closed_window_are_bounded() {
    each(&variant::ALL, |variant| {
        let (_repository, server) = start(variant, &["--request-memory-byte-size=100000000"]);
        // SETTINGS_INITIAL_WINDOW_SIZE.
        let mut deaf = RawPeer::greet(server.grpc, &[(4, 0)]);
        let message = message(MIB as i64 / 4).encode_to_vec();
        let framed = frame_bytes(0, &message);
        let mut refused = 0;
        for stream in (1..400).step_by(2) {
            deaf.open(stream, &format!("{SERVICE}ModelInfer"));
            for (at, part) in framed.chunks(16_384).enumerate() {
                let ends = (at + 1) * 16_384 >= framed.len();
                deaf.send(&frame(kind::DATA, u8::from(ends), stream, part));
            }
            deaf.send(&frame(kind::PING, 0, 0, b"12345678"));
            // The end of a call that is refused comes as headers; one that has an answer sends its head.
            loop {
                let frame = deaf.next().expect("the connection stays");
                refused += usize::from(frame.kind == kind::HEADERS && frame.flags & 1 == 1);
                if frame.kind == kind::PING {
                    break;
                }
            }
            if refused >= 5 {
                break;
            }
        }
        assert!(refused >= 5, "200 MiB of answers wait for a client that takes none");
        assert_healthy(&server);
        let used = bytes_in_use(&server);
        assert!(used <= 100_000_000, "{used} bytes");
        drop(deaf);
        server.stop();
    });
}

/// Limits that are settable: of a message, and of one connection's share.
#[test]
fn limits_are_what_their_flags_say() {
    let flags = [
        "--grpc-max-receive-message-size=1000",
        "--request-memory-byte-size=100000000",
        "--request-memory-connection-share=0.02",
    ];
    let (_repository, server) = start(usual(), &flags);
    assert_healthy(&server);
    let mut grpc = Grpc::connect(server.grpc);
    let path = format!("{SERVICE}ModelInfer");
    let reply = grpc.exchange(&path, &[], &[frame_bytes(0, &message(1000).encode_to_vec())]);
    assert_eq!(reply.status.code, code::RESOURCE_EXHAUSTED, "{:?}", reply.status);
    assert!(reply.status.message.starts_with("Received message larger than max ("), "{:?}", reply.status);
    let packed = frame_bytes(1, &gzip_bomb(100_000, 1));
    let reply = grpc.exchange(&path, &[("grpc-encoding", "gzip")], &[packed]);
    assert_eq!(reply.status.code, code::RESOURCE_EXHAUSTED, "{:?}", reply.status);
    let mut peer = Peer::connect(server.http);
    peer.try_send(&upload(&vec![1; 4 * MIB]));
    let answer = peer.answer();
    assert_eq!(answer.status, 503, "{}", answer.text());
    assert!(answer.error().contains("this connection's 2000000 bytes"), "{}", answer.error());
    assert_healthy(&server);
    server.stop();
}

fn refusals(server: &Server) -> f64 {
    let page = Peer::connect(server.metrics).get("/metrics").text();
    let samples = page.lines().filter(|line| line.starts_with("nereid_refused_requests_total{"));
    samples.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

/// Requests that wait hold their parameters, when the messages that those came in are long gone.
#[test]
fn parameters_of_requests_that_wait_are_bounded() {
    let repository = Repository::new();
    // Nothing is executed before all of 64 are there.
    let waits = "dynamic_batching { preferred_batch_size: [ 64 ] max_queue_delay_microseconds: 600000000 }";
    repository.identity_of("identity", "late", 64, &[Pair::new("INT32", "-1")], waits);
    repository.identity("plain", 0, &[Pair::new("INT32", "-1"), Pair::new("BYTES", "-1").optional()]);
    let flags = [
        "--request-memory-byte-size=40000000",
        "--request-memory-connection-share=1",
        "--request-memory-client-share=1",
        "--log-info=false",
    ];
    let server = Server::start(usual(), repository.path(), &flags);
    let mut request = message(1);
    request.model_name = "late".into();
    request.inputs[0].shape = vec![1, 1];
    let text = ParameterChoice::StringParam("x".repeat(2 * MIB));
    request.parameters.insert("text".into(), InferParameter { parameter_choice: Some(text) });
    let framed = frame_bytes(0, &request.encode_to_vec());
    let mut grpc = Grpc::connect(server.grpc);
    let path = format!("{SERVICE}ModelInfer");
    let mut sent = Vec::new();
    for _ in 0..30 {
        let mut exchange = grpc.open(&path, &[]);
        grpc.send_bytes(&mut exchange, framed.clone());
        grpc.half_close(&mut exchange);
        sent.push(exchange);
        // Requests of a connection are read in their order: when this one is answered, the other one waits.
        let answer = grpc.exchange(&path, &[], &[frame_bytes(0, &message(1).encode_to_vec())]);
        let known = [code::OK, code::UNAVAILABLE, code::RESOURCE_EXHAUSTED];
        assert!(known.contains(&answer.status.code), "{:?}", answer.status);
    }
    // Which ones is not certain: a message that is received takes memory beside those that wait.
    server.wait_until("requests are refused", || {
        grpc.flush();
        refusals(&server) > 0.0
    });
    let used = bytes_in_use(&server);
    assert!((20_000_000..=40_000_000).contains(&used), "{used} bytes for 60 MiB of parameters");
    drop((grpc, sent));
    while bytes_in_use(&server) > MIB {
        std::thread::yield_now();
    }
    assert_healthy(&server);
    server.stop();
}

/// A body that becomes a string takes its size again.
#[test]
fn a_string_as_the_body_is_held_to_the_budget() {
    let repository = Repository::new();
    repository.identity("text", 0, &[Pair::new("BYTES", "1")]);
    repository.identity("plain", 0, &[Pair::new("INT32", "-1"), Pair::new("BYTES", "-1").optional()]);
    let flags = ["--request-memory-byte-size=40000000", "--request-memory-connection-share=1", "--log-info=false"];
    let server = Server::start(usual(), repository.path(), &flags);
    let headers = [("Inference-Header-Content-Length", "0")];
    for (len, status) in [(4 * MIB, 200), (24 * MIB, 503)] {
        let mut peer = Peer::connect(server.http);
        peer.try_send(&request("POST", "/v2/models/text/infer", &headers, &vec![b's'; len]));
        let answer = peer.answer();
        assert_eq!(answer.status, status, "{len} bytes: {} bytes came", answer.text().len());
    }
    assert_healthy(&server);
    server.stop();
}

/// Connections at rest take memory beside the budget: they are as many as a part of it would hold.
#[test]
fn connections_at_rest_are_bounded_by_the_budget() {
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("INT32", "-1"), Pair::new("BYTES", "-1").optional()]);
    let server = Server::start(usual(), repository.path(), &["--request-memory-byte-size=25000000"]);
    let before = server.descriptors();
    let mut held = Vec::new();
    for _ in 0..600 {
        held.push(std::net::TcpStream::connect(server.http).expect("the system takes connections for the server"));
    }
    // Whoever asks now is answered all the same, and behind those before it.
    for _ in 0..5 {
        assert_eq!(Peer::connect(server.http).get("/v2/health/ready").status, 200);
    }
    // One for each 80 KiB.
    expect_descriptors(&server, before + 25_000_000 / 81_920);
    drop(held);
    // Until the last of them is gone, another connection is one too many, and may be closed.
    expect_descriptors(&server, before);
    assert_healthy(&server);
    server.stop();
}

/// However many requests wait: no stream takes all places of its shard, and those who ask whether the server is live
/// are answered when inference is refused.
#[test]
fn a_server_that_is_full_of_requests_answers_probes() {
    let repository = Repository::new();
    let waits = "dynamic_batching { preferred_batch_size: [ 1024 ] max_queue_delay_microseconds: 600000000 }";
    repository.identity_of("identity", "late", 1024, &[Pair::new("INT32", "-1")], waits);
    repository.identity("plain", 0, &[Pair::new("INT32", "-1"), Pair::new("BYTES", "-1").optional()]);
    let flags = [
        "--request-memory-byte-size=12000000",
        "--request-memory-connection-share=1",
        "--request-memory-client-share=1",
        "--request-count-connection-share=1",
        "--request-count-client-share=1",
        "--request-count-model-share=1",
        "--log-info=false",
    ];
    let server = Server::start(usual(), repository.path(), &flags);
    let mut request = message(1);
    request.model_name = "late".into();
    request.inputs[0].shape = vec![1, 1];
    let framed = frame_bytes(0, &request.encode_to_vec());
    // A shard takes one for each 16 KiB, a stream an eighth of them.
    let (of_shard, of_stream) = (12_000_000 / 16_384, 12_000_000 / 16_384 / 8);
    let mut grpc = Grpc::connect(server.grpc);
    let mut stream = grpc.open(&format!("{SERVICE}ModelStreamInfer"), &[]);
    for _ in 0..=of_stream {
        grpc.send_bytes(&mut stream, framed.clone());
    }
    let end = grpc.finish(stream).status;
    let text = format!("more than {of_stream} requests of the stream wait");
    assert!(end.code == code::UNAVAILABLE && end.message.contains(&text), "{end:?}");
    let mut sent = Vec::new();
    for _ in 0..of_shard + 50 {
        let mut exchange = grpc.open(&format!("{SERVICE}ModelInfer"), &[]);
        grpc.send_bytes(&mut exchange, framed.clone());
        grpc.half_close(&mut exchange);
        sent.push(exchange);
    }
    let last = grpc.finish(sent.pop().expect("the last of them")).status;
    assert!(last.code == code::UNAVAILABLE && last.message.contains("too many requests"), "{last:?}");
    for path in ["/v2/health/live", "/v2/health/ready"] {
        assert_eq!(Peer::connect(server.http).get(path).status, 200, "{path}");
    }
    let live = Grpc::connect(server.grpc).exchange(&format!("{SERVICE}ServerLive"), &[], &[frame_bytes(0, b"")]);
    assert_eq!(live.status.code, code::OK, "{:?}", live.status);
    drop((grpc, sent));
    while bytes_in_use(&server) > MIB {
        std::thread::yield_now();
    }
    assert_healthy(&server);
    server.stop();
}

/// A limit on addresses bounds what the allocator reserves, so that the server starts and serves within it.
#[test]
fn a_small_limit_on_addresses_is_enough_to_start() {
    each(&variant::ALL, |variant| {
        for kib in [300_000, 400_000, 500_000] {
            let repository = Repository::new();
            repository.identity("plain", 0, &[Pair::new("INT32", "-1"), Pair::new("BYTES", "-1").optional()]);
            let flags = ["--log-info=false"];
            let server = Server::start_under(&limited_to(kib), variant, repository.path(), &flags, "/v2/health/ready");
            let answer = Peer::connect(server.http).send(&upload(&vec![7; MIB])).answer();
            assert_eq!(answer.status, 200, "{kib} KiB: {}", answer.text());
            assert_healthy(&server);
            server.stop();
        }
    });
}

/// Bytes that a start with one I/O thread needs in any case, and with which it has to succeed (docs/overload.md).
const LEAST_START: usize = 12 * MIB;
const USUAL_START: usize = 48 * MIB;
/// More than what is in use differs between starts, by stacks of threads, and less than an arena of the allocator.
const DIFFERENCE: usize = 16 * MIB;

/// What a server says whose limit cannot hold so many bytes for requests: the bytes in use and those for its start.
fn refused_start(kib: usize, request_bytes: usize) -> [usize; 2] {
    let repository = Repository::new();
    let variant = usual();
    let flags = [
        "serve".to_owned(),
        format!("--model-repository={}", repository.path().display()),
        "--http-port=0".to_owned(),
        "--grpc-port=0".to_owned(),
        "--metrics-port=0".to_owned(),
        "--io-cores=1".to_owned(),
        format!("--io-engine={}", variant.io_engine),
        format!("--request-memory-byte-size={request_bytes}"),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let (status, out, err) = run_to_end_under(&limited_to(kib), &flags);
    assert_eq!(status.code(), Some(1), "{status}: {out}{err}");
    let limit = format!("the limit RLIMIT_AS (ulimit -v) of the process is {} bytes, of which ", kib * 1024);
    let threads = " more are needed to start 1 I/O thread, and ";
    let budget = format!("{threads}{request_bytes} for requests (--request-memory-byte-size)");
    let step = "next step: raise the limit (`ulimit -v unlimited`, `LimitAS=infinity`), or start with a smaller \
                --request-memory-byte-size";
    for part in [limit.as_str(), &budget, step] {
        assert!(err.contains(part), "{part}: {out}{err}");
    }
    let numbers = err.split_once(&limit).and_then(|(_, rest)| rest.split_once(threads));
    let numbers = numbers.and_then(|(numbers, _)| numbers.split_once(" are in use; "));
    let (used, start) = numbers.unwrap_or_else(|| panic!("no numbers in {err}"));
    [used, start].map(|number| number.parse().unwrap_or_else(|error| panic!("{number}: {error}")))
}

/// What a flag promises and the limit does not leave is an error of the start, which names both and what to do.
#[test]
fn a_limit_on_addresses_below_the_memory_of_requests_is_named() {
    for kib in [300_000, 1_000_000] {
        let [used, start] = refused_start(kib, kib * 1024);
        assert_eq!(start, LEAST_START);
        // What is in use and what the start needs count too.
        refused_start(kib, kib * 1024 - used - start + DIFFERENCE);
    }
}

/// The log has the first thread. Had it an arena of its own before the allocator is bounded, some of these starts would
/// fail: the arena takes 64 MiB.
#[test]
fn each_start_with_as_much_as_is_usual_succeeds() {
    let [used, _] = refused_start(300_000, 300_000 * 1024);
    let kib = (used + USUAL_START + DIFFERENCE).div_ceil(1024);
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("INT32", "-1"), Pair::new("BYTES", "-1").optional()]);
    for _ in 0..20 {
        let (words, flags) = (limited_to(kib), ["--log-info=false", "--io-cores=1"]);
        let server = Server::start_under(&words, usual(), repository.path(), &flags, "/v2/health/ready");
        let answer = Peer::connect(server.http).send(&upload(&[7; 4])).answer();
        assert_eq!(answer.status, 200, "{kib} KiB: {}", answer.text());
        assert!(!server.log().contains("the limit RLIMIT_AS"), "{}", server.log());
        server.stop();
    }
}

/// Rings are addresses: with the default number of clients, 4 GiB.
#[test]
fn a_limit_on_addresses_bounds_the_clients_of_rings() {
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("INT32", "-1"), Pair::new("BYTES", "-1").optional()]);
    let flags = [format!("--ipc-path={}", repository.path().join("ring").display()), "--log-info=false".to_owned()];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let words = limited_to(ADDRESSES_KIB);
    let server = Server::start_under(&words, usual(), repository.path(), &flags, "/v2/health/ready");
    server.wait_for_log("clients of shared-memory rings with");
    let page = Peer::connect(server.metrics).get("/metrics").text();
    let line = page.lines().find_map(|line| line.strip_prefix("nereid_ipc_bytes_limit "));
    let most: f64 = line.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("no limit in {page}"));
    // One client has 64 MiB and more.
    let (one, all) = ((64 * MIB) as f64, (ADDRESSES_KIB * 1024 / 4) as f64);
    assert!((one..=all).contains(&most), "{most}");
    assert_healthy(&server);
    server.stop();
}
