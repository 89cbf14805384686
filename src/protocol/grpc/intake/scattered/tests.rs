//! Frames that are received many at once, against the same frames that are read as they come.

use super::super::tests::Ends;
use super::*;
use crate::grpc::{Code, varint};
use crate::http2::{Config, ErrorCode, Handler, PREFACE};
use crate::service::{CallKey, Token};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const PING: u8 = 6;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// What a client says before its calls.
fn greeting() -> Vec<u8> {
    [PREFACE, &frame(4, 0, 0, b""), &frame(4, 1, 0, b"")].concat()
}

/// POST /infer of gRPC, without a change of the table.
fn call(stream: u32) -> Vec<u8> {
    let literal = |text: &[u8]| [&[u8::try_from(text.len()).unwrap()], text].concat();
    let path = [&[0x04][..], &literal(b"/infer")].concat();
    let content_type = [&[0x0f, 0x10][..], &literal(b"application/grpc")].concat();
    frame(HEADERS, END_HEADERS, stream, &[&[0x83, 0x86][..], &path, &content_type].concat())
}

/// Bytes that differ from their neighbours, and from those of other seeds.
fn tensor(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(31) ^ (at >> 7) ^ seed.wrapping_mul(97)) as u8).collect()
}

/// A framed message with these raw contents.
fn message(tensors: &[Vec<u8>]) -> Vec<u8> {
    let mut body = b"\x0a\x01m\x1a\x03new".to_vec();
    for tensor in tensors {
        // raw_input_contents
        body.push(0x3a);
        varint::put(tensor.len() as u64, &mut body);
        body.extend_from_slice(tensor);
    }
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    [&[0][..], &length, &body].concat()
}

/// `bytes` as DATA of the sizes that `next` names; the last frame ends the stream.
fn data(stream: u32, bytes: &[u8], mut next: impl FnMut() -> usize) -> Vec<Vec<u8>> {
    let (mut frames, mut rest) = (Vec::new(), bytes);
    while !rest.is_empty() {
        let (now, behind) = rest.split_at(next().clamp(1, rest.len()));
        frames.push(frame(DATA, if behind.is_empty() { END_STREAM } else { 0 }, stream, now));
        rest = behind;
    }
    frames
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }
}

/// Windows that a few frames fill, so that bytes for which no credit is given are missed soon. Half of one holds any
/// frame that is taken, because it depends on the portions in which bytes come how much of the other half is open.
fn small_windows() -> Config {
    const WINDOW: u32 = 160 << 10;
    let (stream_window, connection_window, max_frame_size) = (WINDOW, WINDOW, WINDOW / 2);
    Config { stream_window, connection_window, max_frame_size, ..Config::default() }
}

/// What came of the bytes of a connection.
#[derive(Debug, PartialEq)]
struct Outcome {
    contents: Vec<(CallKey, Vec<Vec<u8>>)>,
    ends: Vec<(CallKey, Code)>,
    cancelled: Vec<Token>,
    result: Result<(), ConnectionError>,
    open: usize,
}

#[derive(Debug, Default, Clone, Copy)]
struct Receives {
    chunks: usize,
    blocks: usize,
    scattered: usize,
    mispredictions: u64,
    /// Portions of kept bytes that were read, and the most bytes that any of them had for the peer.
    kept: usize,
    longest_output: usize,
}

/// Receives `bytes` as a transport does: at most as much at once as `available` says, with windows or without. Output
/// leaves at once.
fn receive(bytes: &[u8], takes_windows: bool, available: impl FnMut(usize) -> usize) -> (Outcome, Receives) {
    receive_by(small_windows(), bytes, takes_windows, available)
}

fn receive_by(
    config: Config,
    bytes: &[u8],
    takes_windows: bool,
    mut available: impl FnMut(usize) -> usize,
) -> (Outcome, Receives) {
    let mut ends = Ends::of(config);
    let (mut receives, mut rest, mut result) = (Receives::default(), bytes, Ok(()));
    while !rest.is_empty() && result.is_ok() {
        let most = available(rest.len()).clamp(1, rest.len());
        let window = if takes_windows { ends.state.take_window(&ends.server) } else { None };
        let taken;
        result = match window {
            None => {
                taken = most.min(16 * 1024);
                receives.chunks += 1;
                ends.with_intake(|server, intake| server.receive(&rest[..taken], intake))
            }
            Some(Window::Block { mut block, at, len }) => {
                taken = most.min(len);
                receives.blocks += 1;
                block[at..at + taken].copy_from_slice(&rest[..taken]);
                ends.with_intake(|server, intake| intake.direct_received(server, block, taken))
            }
            Some(Window::Frames(mut scatter)) => {
                taken = scatter.fill(&rest[..most]);
                receives.scattered += 1;
                ends.with_intake(|server, intake| intake.scattered_received(server, scatter, taken))
            }
        };
        rest = &rest[taken..];
        ends.server.output().clear();
        while result.is_ok() && ends.state.has_input() {
            result = ends.with_intake(|server, intake| intake.read_kept(server));
            receives.kept += 1;
            receives.longest_output = receives.longest_output.max(ends.server.output().len());
            ends.server.output().clear();
        }
    }
    receives.mispredictions = ends.server.counters().mispredictions;
    let outcome = Outcome {
        contents: std::mem::take(&mut ends.service.contents),
        ends: first_of_each(ends.ends()),
        cancelled: std::mem::take(&mut ends.service.cancelled),
        result,
        open: ends.server.open_streams(),
    };
    (outcome, receives)
}

/// A call that failed says so with each further piece, until its transport ends it.
fn first_of_each(ends: Vec<(CallKey, Code)>) -> Vec<(CallKey, Code)> {
    let mut seen = Vec::new();
    ends.into_iter()
        .filter(|(call, _)| {
            !seen.contains(call) && {
                seen.push(*call);
                true
            }
        })
        .collect()
}

#[track_caller]
fn assert_same(bytes: &[u8], random: &mut Random) -> Receives {
    let plain = receive(bytes, false, |left| left).0;
    let shortest = [1, 100, 10_000, bytes.len()][random.below(4)];
    let (scattered, receives) = receive(bytes, true, |left| match random.below(3) {
        0 => shortest,
        1 => 1 + random.below(40_000),
        _ => left,
    });
    assert!(scattered == plain, "{receives:?}");
    receives
}

/// An upload of 588 KiB in frames of 16 KiB takes a chunk, and one receive for each half mebibyte. The memory of the
/// first one grows as its bytes come: 64 KiB, 256 KiB, all.
#[test]
fn a_large_upload_in_small_frames_takes_few_receives() {
    let tensor = tensor(602_112, 1);
    let (mut bytes, mut ends_at) = (greeting(), Vec::new());
    for (stream, expected) in [(1, [1, 0, 3]), (3, [2, 0, 5]), (5, [3, 0, 7])] {
        bytes.extend(call(stream));
        bytes.extend(data(stream, &message(std::slice::from_ref(&tensor)), || 16_384).concat());
        ends_at.push(bytes.len());
        // The next one comes when its client has the answer.
        let available = |left: usize| {
            let came = bytes.len() - left;
            ends_at.iter().find(|end| **end > came).map_or(left, |end| end - came)
        };
        let (outcome, receives) = receive(&bytes, true, available);
        assert_eq!(outcome.contents.len(), ends_at.len());
        assert!(outcome.contents.iter().all(|(_, raw)| raw[..] == [tensor.clone()]));
        assert_eq!(outcome, receive(&bytes, false, |left| left).0);
        assert_eq!([receives.chunks, receives.blocks, receives.scattered], expected, "{receives:?}");
        assert_eq!(receives.mispredictions, 0);
    }
}

#[test]
fn frames_that_come_one_by_one_are_received_to_where_they_belong() {
    for (size, head) in [(16_384, 0), (16_384, 5), (8_192, 9), (65_536, 3)] {
        let tensor = tensor(500_000, size);
        let frames = data(1, &message(std::slice::from_ref(&tensor)), || size).concat();
        let bytes = [greeting(), call(1), frames].concat();
        // Each receive ends with a frame, or within the head of the next.
        let first = greeting().len() + call(1).len();
        let mut came = 0;
        let available = |left: usize| {
            came = bytes.len() - left;
            let behind = came.saturating_sub(first + head) % (size + 9);
            if came < first { first - came } else { size + 9 - behind }
        };
        let (outcome, receives) = receive(&bytes, true, available);
        assert_eq!(outcome.contents, [(CallKey(1), vec![tensor])], "{size} {head}");
        assert!(receives.mispredictions == 0 && receives.scattered > 2, "{size} {head}: {receives:?}");
    }
}

#[test]
fn frames_of_any_sizes_cut_anywhere_are_those_that_are_read_as_they_come() {
    let mut random = Random(0x5eed_5eed);
    let mut all = Receives::default();
    for round in 0..60 {
        let usual = [4096, 8192, 16_384, 16_384, 40_000][random.below(5)];
        let mut bytes = greeting();
        for stream in [1, 3, 5] {
            let tensors: Vec<_> = (0..1 + random.below(3)).map(|n| tensor(1 + random.below(150_000), n)).collect();
            let odd_one_in = [1000, 20, 3][random.below(3)];
            let frames = data(stream, &message(&tensors), || match random.below(odd_one_in) {
                0 => 1 + random.below(50_000),
                _ => usual,
            });
            bytes.extend(call(stream));
            for frame_of_data in frames {
                bytes.extend(frame_of_data);
                match random.below(odd_one_in * 4) {
                    0 => bytes.extend(frame(PING, 0, 0, b"12345678")),
                    1 => bytes.extend(frame(DATA, PADDED, stream, &[3, 0, 0, 0])),
                    2 => bytes.extend(frame(0x42, 0, 0, &[9; 30])),
                    3 => bytes.extend(frame(DATA, 0, stream, b"")),
                    _ => {}
                }
            }
        }
        if round % 3 == 0 {
            // A head or a payload of any of the frames is damaged.
            let at = random.below(bytes.len());
            bytes[at] ^= 1 << random.below(8);
        }
        let receives = assert_same(&bytes, &mut random);
        all.scattered += receives.scattered;
        all.mispredictions += receives.mispredictions;
    }
    assert!(all.scattered > 200 && all.mispredictions > 20, "{all:?}");
}

/// The reader takes nothing while its memory is away: bytes that come to it nevertheless end the call.
#[test]
fn bytes_for_a_reader_without_its_memory_end_the_call() {
    let frames = data(1, &message(&[tensor(300_000, 3)]), || 16_384);
    let bytes = [greeting(), call(1), frames[..2].concat()].concat();
    let mut ends = Ends::new();
    ends.with_intake(|server, intake| server.receive(&bytes, intake)).unwrap();
    assert!(ends.state.take_window(&ends.server).is_some());
    let id = StreamId::of_call(1);
    assert_eq!(ends.with_intake(|_, intake| Handler::data(intake, id, &[1; 100], false)), 100);
    assert_eq!(ends.ends(), [(CallKey(1), Code::Internal)]);
}

/// Without memory for what a receive of frames takes beside the tensor, they come one at a time.
#[test]
fn without_memory_beside_the_tensor_frames_come_one_by_one() {
    let frames = data(1, &message(&[tensor(300_000, 3)]), || 16_384);
    let bytes = [greeting(), call(1), frames[..2].concat()].concat();
    for missing in [0, 100] {
        let mut ends = Ends::new();
        let begun = &bytes[..bytes.len() - missing];
        ends.with_intake(|server, intake| server.receive(begun, intake)).unwrap();
        let free = (64 << 20) - ends.state.pool.bytes_in_use();
        let held = ends.state.pool.hold(free).unwrap();
        match ends.state.take_window(&ends.server) {
            None => assert_eq!(missing, 0, "there is nothing between two frames"),
            Some(Window::Block { block, len, .. }) => {
                assert_eq!(len, missing);
                ends.state.take_back(block);
            }
            Some(Window::Frames(_)) => panic!("{missing}: a receive of frames"),
        }
        assert!(ends.state.lent.is_none());
        drop(held);
        assert!(matches!(ends.state.take_window(&ends.server), Some(Window::Frames(_))), "the reader has its memory");
    }
}

/// Half a mebibyte of pings where frames were expected: they are read a portion at a time, as they would be otherwise,
/// and their answers leave in between. All at once would be a flood.
#[test]
fn what_a_wrong_guess_brings_is_read_in_portions() {
    let tensor = tensor(602_112, 9);
    let upload = |stream| data(stream, &message(std::slice::from_ref(&tensor)), || 16_384);
    let (whole, begun) = (upload(1).concat(), upload(3)[..2].concat());
    let pings = frame(PING, 0, 0, b"12345678").repeat(40_000);
    // The first upload leaves memory behind, so that the second one has all of its own at once.
    let first_end = greeting().len() + call(1).len() + whole.len();
    let bytes = [greeting(), call(1), whole, call(3), begun, pings].concat();
    let available = |left: usize| match bytes.len() - left {
        came if came < first_end => first_end - came,
        _ => left,
    };
    let (outcome, receives) = receive(&bytes, true, available);
    assert_eq!(outcome, receive(&bytes, false, |left| left).0);
    assert_eq!((outcome.result, receives.mispredictions), (Ok(()), 1), "{receives:?}");
    assert!(receives.kept >= 16, "{receives:?}");
    // As many pings as a portion has room for, one that was cut in front of it, and their answers.
    assert!(receives.longest_output <= KEPT_PER_TURN + 17, "{receives:?}");
}

/// Two streams take turns, frame by frame: the first guess is wrong, and no other is made before an upload has the
/// connection for itself.
#[test]
fn uploads_that_take_turns_are_not_guessed_and_one_behind_them_is() {
    let tensors = [tensor(1_000_000, 1), tensor(1_000_000, 2)];
    let [first, second] = [(1, &tensors[0]), (3, &tensors[1])]
        .map(|(stream, tensor)| data(stream, &message(std::slice::from_ref(tensor)), || 16_384));
    let frames: Vec<u8> = first.into_iter().zip(second).flat_map(|(one, other)| [one, other].concat()).collect();
    let turns = [greeting(), call(1), call(3), frames].concat();
    let (outcome, of_turns) = receive(&turns, true, |left| left);
    assert_eq!(outcome, receive(&turns, false, |left| left).0);
    assert_eq!((outcome.contents.len(), of_turns.mispredictions, of_turns.scattered), (2, 1, 1), "{of_turns:?}");
    let alone = data(5, &message(&[tensor(602_112, 3)]), || 16_384).concat();
    let bytes = [turns, call(5), alone].concat();
    let (outcome, receives) = receive(&bytes, true, |left| left);
    assert_eq!(outcome, receive(&bytes, false, |left| left).0);
    assert_eq!((outcome.contents.len(), receives.mispredictions), (3, 1), "{receives:?}");
    // The last one has 37 frames, of which the first four come alone.
    assert!(receives.scattered > 1 && receives.blocks < of_turns.blocks + 10, "{receives:?}");
}

/// A peer that is right most of the time keeps its guesses.
#[test]
fn a_ping_now_and_then_ends_no_guesses() {
    let mut bytes = greeting();
    let tensor = tensor(602_112, 7);
    for stream in (1..60).step_by(2) {
        let mut frames = data(stream, &message(std::slice::from_ref(&tensor)), || 16_384);
        frames.insert(20, frame(PING, 0, 0, b"12345678"));
        bytes.extend(call(stream));
        bytes.extend(frames.concat());
    }
    // Four frames at a time.
    let (outcome, receives) = receive(&bytes, true, |_| 65_600);
    assert_eq!(outcome.contents.len(), 30);
    assert!(outcome.contents.iter().all(|(_, raw)| raw[..] == [tensor.clone()]));
    assert!(receives.mispredictions >= 20 && receives.scattered >= 150, "{receives:?}");
}

/// The call ends here while its frames are with the engine.
#[test]
fn frames_of_a_call_that_is_over_are_dropped() {
    for resets in [false, true] {
        let tensor = tensor(300_000, 3);
        let frames = data(1, &message(std::slice::from_ref(&tensor)), || 16_384).concat();
        let next = data(3, &message(&[vec![7; 20_000]]), || 16_384).concat();
        let bytes = [greeting(), call(1), frames, call(3), next].concat();
        let mut ends = Ends::new();
        let (first, mut rest) = bytes.split_at(20_000);
        ends.with_intake(|server, intake| server.receive(first, intake)).unwrap();
        let Some(Window::Frames(mut scatter)) = ends.state.take_window(&ends.server) else { panic!("no frames") };
        let id = StreamId::of_call(1);
        ends.with_intake(|_, intake| intake.drop_call(id));
        if resets {
            ends.server.reset(id, ErrorCode::CANCEL);
        }
        let taken = scatter.fill(rest);
        ends.with_intake(|server, intake| intake.scattered_received(server, scatter, taken)).unwrap();
        while ends.state.has_input() {
            ends.with_intake(|server, intake| intake.read_kept(server)).unwrap();
        }
        rest = &rest[taken..];
        ends.with_intake(|server, intake| server.receive(rest, intake)).unwrap();
        assert_eq!(ends.service.contents, [(CallKey(3), vec![vec![7; 20_000]])]);
        assert_eq!(ends.server.counters().mispredictions, 0, "that was no fault of the peer");
    }
}

#[test]
fn what_ends_a_stream_amid_its_frames_ends_its_call() {
    let tensor = tensor(300_000, 3);
    let frames = data(1, &message(std::slice::from_ref(&tensor)), || 16_384);
    let ends: [Vec<u8>; 3] = [
        frame(RST_STREAM, 0, 1, &[0, 0, 0, 8]),
        frame(DATA, END_STREAM, 1, b""),
        frame(DATA, END_STREAM, 1, &[1; 16_384]),
    ];
    for end in ends {
        let bytes = [greeting(), call(1), frames[..6].concat(), end, call(3)].concat();
        let (scattered, receives) = receive(&bytes, true, |left| left);
        assert_eq!(scattered, receive(&bytes, false, |left| left).0);
        assert!(scattered.contents.is_empty() && receives.scattered > 0, "{receives:?}");
    }
}

/// Whatever stands where a frame of the upload was expected, also where its head is all there is of it.
#[test]
fn frames_of_any_kind_amid_an_upload_are_read_as_they_come() {
    const PUSH_PROMISE: u8 = 5;
    const GOAWAY: u8 = 7;
    const WINDOW_UPDATE: u8 = 8;
    const CONTINUATION: u8 = 9;
    let frames = data(1, &message(&[tensor(300_000, 11)]), || 16_384);
    let last = data(7, &message(&[vec![7; 20_000]]), || 16_384).concat();
    let head = call(5);
    let (beginning, end) = head[9..].split_at(4);
    let in_two = [frame(HEADERS, 0, 5, beginning), frame(CONTINUATION, END_HEADERS, 5, end)].concat();
    let table: Vec<(&str, Vec<u8>)> = vec![
        ("no DATA", frame(DATA, 0, 1, b"")),
        ("no DATA of another stream", frame(DATA, 0, 3, b"")),
        ("the end of another stream", frame(DATA, END_STREAM, 3, b"")),
        ("DATA without its pad length", frame(DATA, PADDED, 1, b"")),
        ("DATA of another stream", frame(DATA, 0, 3, &[1; 16_384])),
        ("DATA of no stream", frame(DATA, 0, 0, &[1; 16_384])),
        ("DATA of a stream that was never opened", frame(DATA, 0, 99, &[1; 16_384])),
        ("DATA beyond the largest frame", frame(DATA, 0, 1, &vec![1; 90_000])),
        ("no trailers", frame(HEADERS, END_HEADERS | END_STREAM, 1, b"")),
        ("no headers", frame(HEADERS, END_HEADERS, 3, b"")),
        ("a block that goes on", in_two),
        ("a block that does not go on", frame(HEADERS, 0, 5, beginning)),
        ("CONTINUATION of no block", frame(CONTINUATION, END_HEADERS, 1, b"")),
        ("a reset of another stream", frame(RST_STREAM, 0, 3, &[0, 0, 0, 8])),
        ("a reset that is too short", frame(RST_STREAM, 0, 1, &[0, 0, 0])),
        ("no settings", frame(4, 0, 0, b"")),
        ("a ping that is too short", frame(PING, 0, 0, b"1234567")),
        ("a window that opens by nothing", frame(WINDOW_UPDATE, 0, 1, &[0; 4])),
        ("GOAWAY", frame(GOAWAY, 0, 0, &[0; 8])),
        ("PUSH_PROMISE", frame(PUSH_PROMISE, 0, 1, &[0; 4])),
        ("nothing of an unknown kind", frame(0x42, 0, 1, b"")),
    ];
    for (name, odd) in table {
        let calls = [greeting(), call(1), call(3)].concat();
        let upload = [frames[..3].concat(), odd, frames[3..].concat()].concat();
        let bytes = [calls, upload, call(7), last.clone()].concat();
        let plain = receive(&bytes, false, |left| left).0;
        for most in [usize::MAX, 20_000, 16_393] {
            let (scattered, receives) = receive(&bytes, true, |left| left.min(most));
            assert!(scattered == plain, "{name}, {most} bytes at once: {receives:?}");
            assert!(receives.scattered > 0, "{name}, {most} bytes at once: {receives:?}");
        }
    }
}

/// A head in the place of an expected one may announce more than the stream's window has room for.
#[test]
fn a_frame_beyond_the_window_amid_an_upload_ends_its_stream() {
    let config = Config { stream_window: 100 << 10, ..Config::default() };
    let frames = data(1, &message(&[tensor(300_000, 11)]), || 16_384);
    let upload = [frames[..3].concat(), frame(DATA, 0, 1, &vec![1; 110_000]), frames[3..].concat()].concat();
    let next = data(3, &message(&[vec![7; 20_000]]), || 16_384).concat();
    let bytes = [greeting(), call(1), upload, call(3), next].concat();
    let plain = receive_by(config, &bytes, false, |left| left).0;
    let (scattered, receives) = receive_by(config, &bytes, true, |left| left);
    assert_eq!(scattered, plain);
    assert_eq!((scattered.result, scattered.contents.len()), (Ok(()), 1), "{receives:?}");
    assert!(receives.scattered > 0 && receives.mispredictions == 0, "{receives:?}");
}
