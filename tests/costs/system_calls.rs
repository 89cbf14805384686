//! System calls for one request, on the thread that serves it: a shard gathers the output of a turn for a connection
//! into one send, polls the kernel only when necessary, and makes no other calls.

use std::path::Path;

use super::models::{Protocol, Row, SMALL, repository};
use crate::side::load::Load;
use nereid_test_support::grpc::frame_bytes;
use nereid_test_support::http2::{END_HEADERS, END_STREAM, RawPeer, call_fields, frame, kind};
use nereid_test_support::server::Server;
use nereid_test_support::strace::{Scope, Strace, name_of, thread_called};
use nereid_test_support::variant::{ALL, each};

const fn row(name: &'static str, protocol: Protocol, in_flight: usize) -> Row {
    Row { name, protocol, model: "identity", shape: SMALL, connections: 1, in_flight, requests: 800 }
}

/// What is received in one piece is answered in one piece, and the client asks again when it has read all that came: so
/// all that is in flight stays together. Were each answer sent alone, there would be more than one transfer a request.
/// The bounds leave room for some that come apart.
const ROWS: [(Row, Calls); 5] = [
    (row("gRPC, one in flight", Protocol::Grpc, 1), ONE_BY_ONE),
    (row("HTTP, one in flight", Protocol::Http, 1), ONE_BY_ONE),
    (row("gRPC, 16 in flight", Protocol::Grpc, 16), Calls { transfers: 0.3, turns: 0.3, others: 0.01 }),
    (row("gRPC, 64 in flight", Protocol::Grpc, 64), Calls { transfers: 0.15, turns: 0.15, others: 0.01 }),
    (row("stream, 16 in flight", Protocol::Stream, 16), Calls { transfers: 0.3, turns: 0.3, others: 0.01 }),
];

/// The request and its answer; the call that waits for the next request also sends the answer, or follows the send.
const ONE_BY_ONE: Calls = Calls { transfers: 2.1, turns: 1.2, others: 0.01 };

/// For one request.
#[derive(Clone, Copy, Debug)]
struct Calls {
    /// Receives and sends: calls of them, or operations given to the ring.
    transfers: f64,
    /// Calls that wait for events or only look for them, or give operations to the ring.
    turns: f64,
    others: f64,
}

impl Calls {
    fn counted(calls: &[String], answers: u64) -> Calls {
        let (mut transfers, mut turns, mut others) = (0, 0, 0);
        for call in calls {
            match name_of(call) {
                "recvfrom" | "recvmsg" | "sendto" | "sendmsg" => transfers += 1,
                "epoll_wait" | "epoll_pwait" | "epoll_pwait2" => turns += 1,
                "io_uring_enter" => {
                    turns += 1;
                    transfers += operations(call);
                }
                _ => others += 1,
            }
        }
        let [transfers, turns, others] = [transfers, turns, others].map(|count: u64| count as f64 / answers as f64);
        Calls { transfers, turns, others }
    }

    fn is_within(&self, bound: &Calls) -> bool {
        self.transfers <= bound.transfers && self.turns <= bound.turns && self.others <= bound.others
    }
}

/// `io_uring_enter(14, 2, 0, …` gives two operations to the ring.
fn operations(call: &str) -> u64 {
    call.split(", ").nth(1).and_then(|count| count.parse().ok()).unwrap_or_else(|| panic!("operations of {call:?}"))
}

/// The median of several windows, count by count: what comes apart because the machine is busy with others does so now
/// and then, what a request needs it needs always. None, visibly: there is no strace.
fn measure(row: &Row, server: &Server, repository: &Path) -> Option<Calls> {
    const WINDOWS: usize = 5;
    let mut load = Load::connect(row.peers(server).expect("peers")).expect("a connection");
    // What is learnt at first is not a request's.
    load.answer(row.requests).expect("answers");
    let shard = thread_called("shard-0", server.pid());
    let mut windows = Vec::new();
    for _ in 0..WINDOWS {
        let strace = Strace::attach(Scope::Thread(shard), &repository.join("trace.txt"))?;
        let answers = load.answer(row.requests).expect("answers");
        windows.push(Calls::counted(&strace.finish(), answers));
    }
    let median = |of: fn(&Calls) -> f64| {
        let mut counts: Vec<f64> = windows.iter().map(of).collect();
        counts.sort_by(f64::total_cmp);
        counts[WINDOWS / 2]
    };
    let (transfers, turns) = (median(|calls| calls.transfers), median(|calls| calls.turns));
    Some(Calls { transfers, turns, others: median(|calls| calls.others) })
}

/// One of so many does not come apart.
const CONNECTIONS: usize = 5;

#[test]
fn requests_keep_to_their_system_calls() {
    // Of one shard: which of several has a connection is not told.
    let variants: Vec<_> = ALL.into_iter().filter(|variant| variant.io_cores == "1").collect();
    each(&variants, |variant| {
        let repository = repository(false);
        // Who spins looks again and again, as many times as there is time.
        let server = Server::start(variant, repository.path(), &["--allow-metrics=false", "--spin-us=0"]);
        let mut beyond = Vec::new();
        for (row, bound) in ROWS {
            let (mut told, mut is_kept) = (Vec::new(), false);
            // What has come apart on a connection stays apart: on a busy machine, all of its windows may be so.
            while !is_kept && told.len() < CONNECTIONS {
                let Some(calls) = measure(&row, &server, repository.path()) else { return };
                let name = format!("{} on {}", row.name, variant.io_engine);
                told.push(format!("{name}: {calls:.3?} for a request, at most {bound:?}"));
                // None at all would be a trace of the wrong thread.
                is_kept = calls.is_within(&bound) && calls.transfers * row.in_flight as f64 > 1.0;
            }
            println!("{}", told.join("\n"));
            if !is_kept {
                beyond.append(&mut told);
            }
        }
        server.stop();
        assert!(beyond.is_empty(), "more system calls than allowed:\n{}", beyond.join("\n"));
    });
}

/// Bytes of a tensor, and of the frames in which many peers send it.
const UPLOAD: usize = 588 * 1024;
const FRAME: usize = 16 * 1024;

/// A call with one tensor, for a model that does not exist: all of it is received, and next to nothing is answered.
fn upload(stream: u32) -> Vec<u8> {
    // model_name; raw_input_contents of 602,112 bytes.
    let head = b"\x0a\x07nowhere\x3a\x80\xe0\x24";
    let message = frame_bytes(0, &[&head[..], &vec![7; UPLOAD]].concat());
    let path = "/inference.GRPCInferenceService/ModelInfer";
    let mut bytes = frame(kind::HEADERS, END_HEADERS, stream, &call_fields(path));
    let last = message.len().div_ceil(FRAME) - 1;
    for (at, payload) in message.chunks(FRAME).enumerate() {
        bytes.extend(frame(kind::DATA, if at == last { END_STREAM } else { 0 }, stream, payload));
    }
    bytes
}

/// Frames are received many at once. Alone each takes two receives, for its beginning and its rest: 74 for these.
#[test]
fn a_large_upload_in_small_frames_takes_few_receives() {
    const UPLOADS: u32 = 9;
    // A chunk, one receive for each half mebibyte, and the answer, if all of it is there. How much is there depends on
    // the system's buffers and on who runs when, so that the least of several uploads is only demanded to take half of
    // what the frames take alone.
    const MOST: f64 = 37.0;
    let variants: Vec<_> = ALL.into_iter().filter(|variant| variant.io_cores == "1").collect();
    each(&variants, |variant| {
        let repository = repository(false);
        let server = Server::start(variant, repository.path(), &["--allow-metrics=false", "--spin-us=0"]);
        let shard = thread_called("shard-0", server.pid());
        let mut peer = RawPeer::greet(server.grpc, &[]);
        let mut send = |stream: u32| {
            let bytes = upload(stream);
            peer.send(&bytes);
            let end = peer.expect(kind::HEADERS);
            assert!(end.stream == stream && end.has(END_STREAM), "{end:?}");
        };
        // The memory of the tensor grows as it comes, until some lies ready.
        (0..3).for_each(|upload| send(2 * upload + 1));
        let mut counts = Vec::new();
        for upload in 3..3 + UPLOADS {
            let Some(strace) = Strace::attach(Scope::Thread(shard), &repository.path().join("trace.txt")) else {
                return;
            };
            send(2 * upload + 1);
            counts.push(Calls::counted(&strace.finish(), 1));
        }
        println!("{}: {counts:.0?}", variant.io_engine);
        let least = counts.iter().map(|calls| calls.transfers).fold(f64::INFINITY, f64::min);
        assert!((2.0..=MOST).contains(&least), "{}: {counts:.0?} for an upload, at most {MOST}", variant.io_engine);
        drop(peer);
        server.stop();
    });
}
