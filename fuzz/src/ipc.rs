//! What a client of a shared-memory ring may write, where the client lies: frames, their payloads, and the words of the
//! object.
//!
//! An honest client's frames come out whole, in order, and as its encoder meant them; and every payload, whoever wrote
//! it, says the same to a second reader that was written after docs/ipc.md. Where the client overwrites words and frames
//! each step ends, a frame is never longer than any may be, and the server writes to nothing but its own ring.

use std::collections::VecDeque;
use std::sync::Arc;

use nereid_ipc::{
    ClientFrame, DATA_HEAD, HEADER_BYTES, Layout, RING_BYTES_MIN, Ring, ServerEnd, ServerFrame, Sizes, encode,
    from_client,
};
use nereid_memory::Segment;
use nereid_queue::frames::{Consumer, Corrupt, HEAD, Producer, payload_max};

use crate::{Dice, Target, split};

pub const TARGET: Target = Target {
    name: "ipc",
    run,
    runs: 20_000,
    words: &["\x05\x01", "\x05\x02", "\x05\x03", "\0\0\0\0", "\x01\0\0\0", "\x40\0\0\0", "\x04"],
    seeds,
};

/// Frames of a ring that is full of the shortest.
const FRAMES_MAX: usize = RING_BYTES_MIN / HEAD;
/// Places of the words that a client may write.
const WORDS: [usize; 6] = [512, 640, 768, 896, 1024, 1152];
const ARENA_BYTES: usize = 4096;

/// What a frame says.
#[derive(Debug, PartialEq, Eq)]
enum Meaning {
    Route { route: u64, strings: Vec<Vec<u8>> },
    Call { call: u32, route: u64, ends: bool, timeout_ns: u64, bytes: Vec<u8> },
    Data { call: u32, ends: bool, bytes: Vec<u8> },
    Cancel { call: u32 },
}

/// As the server reads it.
fn meaning(kind: u32, payload: &[u8]) -> Option<Meaning> {
    Some(match ClientFrame::read(kind, payload).ok()? {
        ClientFrame::Route { route, path, metadata } => {
            let strings = [Ok(path)].into_iter().chain(metadata).map(|string| string.map(<[u8]>::to_vec));
            Meaning::Route { route: route as u64, strings: strings.collect::<Result<_, _>>().ok()? }
        }
        ClientFrame::Call { call, route, ends, timeout_ns, bytes } => {
            Meaning::Call { call, route: route as u64, ends, timeout_ns, bytes: bytes.to_vec() }
        }
        ClientFrame::Data { call, ends, bytes } => Meaning::Data { call, ends, bytes: bytes.to_vec() },
        ClientFrame::Cancel { call } => Meaning::Cancel { call },
    })
}

/// As the contract says.
fn by_the_contract(kind: u32, payload: &[u8]) -> Option<Meaning> {
    let number = |at: usize, len: usize| {
        let bytes = payload.get(at..at.checked_add(len)?)?;
        Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    };
    let word = |at: usize| number(at, 4).map(|word| word as u32);
    match kind {
        1 => {
            let route = number(0, 4)?;
            let (mut strings, mut at) = (Vec::new(), 4);
            while at < payload.len() {
                let len = number(at, 4)? as usize;
                strings.push(payload.get(at + 4..at + 4 + len)?.to_vec());
                at += 4 + len;
            }
            (route < 64 && !strings.is_empty() && payload.len() <= 20 * 1024)
                .then_some(Meaning::Route { route, strings })
        }
        2 => {
            let (call, route, flags) = (word(0)?, number(4, 2)?, number(6, 2)?);
            let (timeout_ns, bytes) = (number(8, 8)?, payload[16..].to_vec());
            (flags < 2).then_some(Meaning::Call { call, route, ends: flags == 1, timeout_ns, bytes })
        }
        3 | 4 => {
            let (call, flags) = (word(0)?, word(4)?);
            let bytes = payload[8..].to_vec();
            let meaning =
                if kind == 3 { Meaning::Data { call, ends: flags == 1, bytes } } else { Meaning::Cancel { call } };
            (flags < 2).then_some(meaning)
        }
        _ => None,
    }
}

/// The client's end, and what it knows.
struct Client {
    segment: Arc<Segment>,
    layout: Layout,
    requests: Producer<Ring>,
    responses: Consumer<Ring>,
    /// Frames that the server has not taken, and what they mean where an encoder wrote them.
    sent: VecDeque<(u32, Vec<u8>, Option<Meaning>)>,
    /// Lengths of what the server has written.
    written: VecDeque<usize>,
    is_honest: bool,
}

impl Client {
    fn push(&mut self, kind: u32, payload: Vec<u8>, meant: Option<Meaning>) {
        let pushed = self.requests.push(kind, &payload);
        assert!(!self.is_honest || pushed.is_ok(), "an honest ring is corrupt");
        if pushed == Ok(true) {
            self.sent.push_back((kind, payload, meant));
        }
    }

    /// A frame of the next bytes, by the encoders.
    fn encode(&mut self, step: u8, bytes: &[u8], dice: &mut Dice) {
        let (call, ends) = (dice.number() as u32, dice.one_in(2));
        let (head, tail) = bytes.split_at(dice.below(bytes.len() + 1));
        let value = &head[..head.len().min(16)];
        match step {
            0 => {
                let route = dice.below(64) as u16;
                let pairs: Vec<(&[u8], &[u8])> = dice.cut(tail).into_iter().map(|name| (name, value)).collect();
                let strings = pairs.iter().flat_map(|(name, value)| [name.to_vec(), value.to_vec()]);
                let strings = [head.to_vec()].into_iter().chain(strings).collect();
                let payload = encode::route(route, head, &pairs);
                let meant = Some(Meaning::Route { route: u64::from(route), strings });
                // One that is too long is refused.
                let meant = meant.filter(|_| payload.len() <= 20 * 1024);
                self.push(from_client::ROUTE, payload, meant);
            }
            1 => {
                let (route, timeout_ns) = (dice.number() as u16, dice.number());
                let payload = [&encode::call(call, route, ends, timeout_ns)[..], bytes].concat();
                let meant = Meaning::Call { call, route: u64::from(route), ends, timeout_ns, bytes: bytes.to_vec() };
                self.push(from_client::CALL, payload, Some(meant));
            }
            2 => {
                let payload = [&encode::data(call, ends)[..], bytes].concat();
                self.push(from_client::DATA, payload, Some(Meaning::Data { call, ends, bytes: bytes.to_vec() }));
            }
            _ => self.push(from_client::CANCEL, encode::data(call, false).to_vec(), Some(Meaning::Cancel { call })),
        }
    }

    /// Overwrites a word or a frame.
    fn lie(&mut self, dice: &mut Dice) {
        self.is_honest = false;
        let (in_ring, word) = (HEADER_BYTES + (dice.below(2 * RING_BYTES_MIN - 8) & !3), *dice.pick(&WORDS));
        let at = *dice.pick(&[word, in_ring, HEADER_BYTES]);
        let (most, any) = (RING_BYTES_MIN as u64, dice.number());
        let value = *dice.pick(&[0, any, u64::from(u32::MAX), most, most / 2, any % most]);
        assert!(self.segment.write(at, &value.to_le_bytes()));
    }

    /// Reads what the server has written.
    fn read(&mut self) {
        let mut payload = Vec::new();
        for _ in 0..FRAMES_MAX {
            match self.responses.pop(&mut payload) {
                Ok(Some(kind)) if self.is_honest => {
                    let Ok(ServerFrame::Data { bytes, .. }) = ServerFrame::read(kind, &payload) else {
                        panic!("a frame of kind {kind}")
                    };
                    assert_eq!(Some(bytes.len()), self.written.pop_front());
                    assert!(bytes.iter().all(|byte| *byte == 7));
                }
                Ok(Some(_)) => {}
                Ok(None) => return assert!(!self.is_honest || self.written.is_empty(), "frames were lost"),
                Err(Corrupt) => return assert!(!self.is_honest, "an honest ring is corrupt"),
            }
        }
    }
}

/// The server takes all frames; returns how many.
fn take(end: &mut ServerEnd, client: &mut Client) -> usize {
    let mut payload = Vec::new();
    for taken in 0.. {
        assert!(taken <= FRAMES_MAX, "frames without end");
        match end.take(&mut payload) {
            Ok(Some(kind)) => {
                assert!(payload.len() <= payload_max(RING_BYTES_MIN), "{} bytes", payload.len());
                let seen = meaning(kind, &payload);
                assert_eq!(seen, by_the_contract(kind, &payload), "{kind} {}", payload.escape_ascii());
                if client.is_honest {
                    let (sent, bytes, meant) = client.sent.pop_front().expect("a frame that was sent");
                    assert_eq!((kind, &payload), (sent, &bytes));
                    assert!(meant.is_none() || seen == meant, "{meant:?}");
                }
            }
            Ok(None) => {
                assert!(!client.is_honest || client.sent.is_empty(), "{} frames were lost", client.sent.len());
                return taken;
            }
            Err(Corrupt) => {
                assert!(!client.is_honest, "an honest ring is corrupt");
                return taken;
            }
        }
    }
    0
}

fn run(data: &[u8]) -> bool {
    let (mut dice, mut steps) = split(data);
    let sizes = Sizes { ring_bytes: RING_BYTES_MIN, arena_bytes: ARENA_BYTES };
    let (mut end, object) = ServerEnd::create(sizes, b"nereid-ipc/0", Box::new(())).expect("an object");
    let segment = Arc::new(Segment::open(object, end.segment().len()).expect("the object"));
    let layout = Layout::read(&segment).expect("a layout");
    let mut client = Client {
        requests: Producer::new(layout.request_ring(&segment)),
        responses: Consumer::new(layout.response_ring(&segment)),
        segment,
        layout,
        sent: VecDeque::new(),
        written: VecDeque::new(),
        is_honest: true,
    };
    let (arena, _) = client.layout.arena;
    assert!(client.segment.write(arena, &[5; ARENA_BYTES]));
    let mut taken = 0;
    while let Some((&step, rest)) = steps.split_first() {
        let (&len, rest) = rest.split_first().unwrap_or((&0, &[]));
        // Most are short, and some as long as a frame may be.
        let len = if len == u8::MAX { payload_max(RING_BYTES_MIN) } else { usize::from(len) };
        let (bytes, behind) = rest.split_at(rest.len().min(len));
        match step % 8 {
            kind @ 0..4 => {
                client.encode(kind, bytes, &mut dice);
                steps = behind;
            }
            4 => {
                taken += take(&mut end, &mut client);
                steps = rest;
            }
            // Of any kind, with any payload.
            5 => {
                let (&kind, payload) = bytes.split_first().unwrap_or((&0, &[]));
                client.push(u32::from(kind % 6), payload.to_vec(), None);
                steps = behind;
            }
            6 => {
                let len = dice.below(end.data_max() + 2);
                let pushed = end.push_data(1, false, len, |to| to.write(&vec![7; len]));
                assert!(!client.is_honest || pushed.is_ok(), "an honest ring is corrupt");
                assert!(len <= payload_max(RING_BYTES_MIN) - DATA_HEAD || pushed != Ok(true), "{len} bytes");
                if pushed == Ok(true) {
                    client.written.push_back(len);
                }
                client.read();
                steps = rest;
            }
            _ => {
                client.lie(&mut dice);
                // A sleep of the server ends in any case.
                let _ = (end.is_bell_due(), end.park(true, dice.one_in(2)));
                steps = rest;
            }
        }
    }
    taken += take(&mut end, &mut client);
    let mut bytes = Vec::new();
    assert!(client.segment.read(arena, ARENA_BYTES, &mut bytes) && bytes == [5; ARENA_BYTES], "written to the arena");
    taken > 0
}

fn seeds() -> Vec<Vec<u8>> {
    let seeds: [&[u8]; 6] = [
        b"\0\0\0\x01\0\x18/a/b/method key and value\x01\x08\0\0\0\0\x03abc\x04\0",
        b"\0\0\0\x02\x01\x04\0\0\0\0\x02\x05hello\x03\0\x04\0\x06\0\x06\0",
        b"\0\0\0\x03\x05\x09\x01\x03\0\0\0\x01\0\0\0a\x04\0\x05\x11\x02\x01\0\0\0\x03\0\x01\0\0\0\0\0\0\0\0\0\x04\0",
        b"\0\0\0\x04\x05\x0a\x03\x07\0\0\0\x01\0\0\0!\x05\x09\x04\x07\0\0\0\0\0\0\0\x04\0",
        b"\0\0\0\x05\x01\x04abcd\x07\0\x04\0\x02\x02xy\x07\0\x07\0\x04\0\x06\0\x07\0\x06\0",
        b"\0\0\0\x06\x06\0\x06\0\x06\0\x06\0\x06\0\x01\0\x04\0\x06\0\x06\0",
    ];
    seeds.iter().map(|seed| seed.to_vec()).collect()
}
