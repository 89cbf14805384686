//! Workers that send arbitrary messages: the server refuses them, and does not panic, hang or grow.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use super::answers::Answer;
use super::dispatch::Dispatch;
use super::fixtures::TestDirectory;
use super::link::{Bounds, Link};
use super::marshal::{Value, Writer};
use super::message::{self, from_worker, to_worker};
use super::worker::{Ended, MessageHandler, Plan, Wait, Worker};
use nereid_memory::{BlockMut, Exhausted};
use nereid_request::{Completion, Delivery, Request, RequestedOutput, Sink};

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// A number; boundary values are more frequent than others.
    fn number(&mut self) -> i128 {
        match self.below(8) {
            0 => i128::from(self.next()),
            1 => -i128::from(self.next()),
            2 => 1 << self.below(80),
            3 => (1 << self.below(80)) - 1,
            _ => i128::from(self.below(70)),
        }
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }

    /// Any value, with tuples inside tuples up to that depth.
    fn write(&mut self, writer: &mut Writer, depth: u32) {
        match self.below(if depth == 0 { 6 } else { 9 }) {
            0 => writer.none(),
            1 => writer.bool(self.below(2) == 0),
            2 => {
                let number = self.number();
                writer.int(number);
            }
            3 => writer.float(f64::from_bits(self.next())),
            4 => {
                let text = ["", "DONE", "x", "file:1/model.py", "\u{fffd}"][self.below(5) as usize];
                writer.text(text.as_bytes());
            }
            5 => {
                let len = self.below(24) as usize;
                let bytes = self.bytes(len);
                writer.bytes_head(len);
                let _ = writer.append(|to| {
                    to.extend_from_slice(&bytes);
                    Ok::<(), ()>(())
                });
            }
            _ => {
                let len = self.below(7) as usize;
                writer.tuple(len);
                (0..len).for_each(|_| self.write(writer, depth - 1));
            }
        }
    }

    fn value(&mut self, len: usize, depth: u32) -> Writer {
        let mut writer = Writer::default();
        writer.tuple(len);
        (0..len).for_each(|_| self.write(&mut writer, depth));
        writer
    }
}

struct NullSink;

impl Sink for NullSink {
    fn deliver(&self, _key: u64, _delivery: Delivery) {}

    fn allocate(&self, _key: u64, byte_size: usize) -> Result<BlockMut, Exhausted> {
        assert!(byte_size < 1 << 16, "no message of this test has as much");
        Ok(BlockMut::unpooled(byte_size))
    }
}

const BOUNDS: Bounds = Bounds { first_bytes: 4096, growth_bytes: 4096, max_bytes: 1 << 20 };

/// A worker whose process only sleeps: the test writes its messages.
fn worker(handler: Arc<dyn MessageHandler>) -> Arc<Worker> {
    let mut command = Command::new("sleep");
    command.arg("3600");
    let (name, model) = ("m_0_0".to_owned(), "m".to_owned());
    let (archive, spin) = (super::program::archive().unwrap(), Default::default());
    let ended = Box::new(|_| ());
    Worker::start(Plan {
        name,
        model,
        command,
        archive,
        bounds: BOUNDS,
        fences: false,
        spin,
        handler,
        ended,
        gpus: Arc::default(),
    })
    .unwrap()
}

#[test]
fn bytes_of_any_kind_are_values_or_errors() {
    let mut random = Random(1);
    for round in 0..20_000 {
        let mut bytes = random.value(3, 4).finish();
        // Most of them with one byte or the end changed.
        match round % 4 {
            0 => bytes = random.bytes(round % 97),
            1 => bytes.truncate(random.below(bytes.len() as u64 + 1) as usize),
            2 => {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] = random.next() as u8;
            }
            _ => assert!(Value::read(&bytes).is_ok()),
        }
        let _ = Value::read(&bytes);
    }
}

#[test]
fn messages_of_every_kind_may_hold_anything() {
    let place = TestDirectory::new();
    let context = place.context("m");
    let mut random = Random(2);
    let dispatch = Arc::new(Dispatch::new(&context));
    let mut sleeper = worker(Arc::clone(&dispatch) as Arc<_>);
    let kinds = [32, 33, 34, 35, 36, 37, 38, 40, 41, 42, 48, 49, 50, 51, 56, 99];
    for round in 0..6_000 {
        let kind = kinds[round % kinds.len()];
        let len = random.below(16) as usize;
        let message = random.value(len, 4).finish();
        let value = Value::read(&message).unwrap();
        let _ = dispatch.handle(&sleeper, kind, &value);
        if !sleeper.is_fit() {
            sleeper.join();
            sleeper = worker(Arc::clone(&dispatch) as Arc<_>);
        }
    }
    sleeper.kill("is done");
    sleeper.join();
}

#[test]
fn answers_may_hold_anything_and_name_any_memory() {
    let (link, _socket) = Link::new(BOUNDS, 0, false, Default::default()).unwrap();
    link.grow(5000, &[]).unwrap();
    let mut random = Random(3);
    let mut request = Request::new(Completion::new(Arc::new(NullSink), 0));
    let output = |name: &str| RequestedOutput { name: name.into(), index: 0 };
    request.outputs = ["DONE", "x", ""].into_iter().map(output).collect();
    for _ in 0..20_000 {
        let message = random.value(3, 5).finish();
        let value = Value::read(&message).unwrap();
        if let Ok(answer) = Answer::read(&value) {
            let _ = answer.into_response_to(&link, &request);
        }
        let _ = link.data(&value);
    }
    // Well-formed but for the numbers: the type, the shape, and the address.
    for _ in 0..20_000 {
        let mut writer = Writer::default();
        writer.tuple(3);
        writer.tuple(1);
        writer.tuple(4);
        writer.text(b"DONE");
        writer.int(random.below(16) as u32);
        let dims = random.below(4) as usize;
        writer.tuple(dims);
        (0..dims).for_each(|_| writer.int(random.number()));
        let len = 3 + random.below(2) as usize;
        writer.tuple(len);
        (0..len).for_each(|_| writer.int(random.number()));
        writer.tuple(0);
        writer.none();
        let message = writer.finish();
        let value = Value::read(&message).unwrap();
        if let Ok(answer) = Answer::read(&value) {
            let _ = answer.into_response_to(&link, &request);
        }
    }
}

#[test]
fn whatever_stands_in_shared_memory_a_stream_ends_or_goes_on() {
    let mut random = Random(4);
    let mut refused = 0;
    for _ in 0..300 {
        let (link, _socket) = Link::new(BOUNDS, 0, false, Default::default()).unwrap();
        let mut payload = Vec::new();
        for _ in 0..20 {
            let (at, len) = (random.below(1 << 20) as usize, random.below(64) as usize);
            let bytes = random.bytes(len);
            link.overwrite(at, &bytes);
            // Positions by small steps too, so that frames are read.
            let word = [128, 192, 256, 320, 64][random.below(5) as usize];
            link.overwrite(word, &random.below(600).to_le_bytes());
            let bell_word = [message::INPUT_BELL, message::OUTPUT_BELL, message::ASIDE_BELL][random.below(3) as usize];
            link.overwrite(bell_word, &random.next().to_le_bytes());
            link.ring();
            let _ = (link.park(), link.park_aside());
            let seen = [link.receive(&mut payload).is_err(), link.receive_aside(&mut payload).is_err()];
            let sent = link.push(200, &bytes).is_err();
            refused += usize::from(seen[0] || seen[1] || sent);
        }
    }
    assert!(refused > 0);
}

#[test]
fn a_worker_that_sends_nonsense_is_ended_by_whoever_waits_for_it() {
    let place = TestDirectory::new();
    let sleeper = worker(Arc::new(Dispatch::new(&place.context("m"))));
    sleeper.link.overwrite(128, &u64::MAX.to_le_bytes());
    sleeper.link.output_bell.ring();
    let served = sleeper.serve(&[from_worker::DONE], &mut Vec::new(), Wait::default());
    let text = "was ended because the other side's position in a stream of frames cannot be";
    assert_eq!(served, Err(Ended::Died(text.to_owned())));
    sleeper.join();
    // The monitor thread reads the other stream, and no thread waits for it.
    let sleeper = worker(Arc::new(Dispatch::new(&place.context("m"))));
    sleeper.link.overwrite(256, &u64::MAX.to_le_bytes());
    sleeper.link.aside_bell.ring();
    sleeper.join();
    assert_eq!((sleeper.ending().as_str(), sleeper.is_fit()), (text, false));
    // A worker that sends no message is killed at its time limit.
    let sleeper = worker(Arc::new(Dispatch::new(&place.context("m"))));
    let limit = Duration::from_millis(20);
    assert_eq!(
        sleeper.serve(&[from_worker::DONE], &mut Vec::new(), Wait::within(Some(limit))),
        Err(Ended::Late(limit))
    );
    assert!(!sleeper.is_fit());
    sleeper.join();
    assert_eq!(sleeper.ending(), "was ended because it took more than 0.02 s");
}

/// It asks for no bell, for all of them, or for nonsense, and never rings: no thread of the server waits longer than
/// for a worker that sends nothing, and one that waits without a limit sees the end of its process.
#[test]
fn whatever_a_worker_writes_to_bell_words_only_itself_waits_for_it() {
    let place = TestDirectory::new();
    for word in [0, 1, u64::MAX] {
        let sleeper = worker(Arc::new(Dispatch::new(&place.context("m"))));
        let overwrite = || {
            let bell_words = [message::INPUT_BELL, message::OUTPUT_BELL, message::ASIDE_BELL];
            bell_words.into_iter().for_each(|at| sleeper.link.overwrite(at, &u64::to_le_bytes(word)));
        };
        for _ in 0..100 {
            overwrite();
            sleeper.send(to_worker::SWEEP, b"message").unwrap();
        }
        let process = rustix::process::Pid::from_raw(sleeper.process_id().unwrap() as i32).unwrap();
        let served = std::thread::scope(|scope| {
            let served = scope.spawn(|| sleeper.serve(&[from_worker::DONE], &mut Vec::new(), Wait::default()));
            let mut rounds = 0;
            while !served.is_finished() {
                overwrite();
                rounds += 1;
                // By then the server's thread may sleep or not.
                if rounds == 1000 {
                    rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
                }
                std::thread::yield_now();
            }
            served.join().unwrap()
        });
        assert_eq!(served, Err(Ended::Died("was ended by signal 9 (SIGKILL)".to_owned())));
        sleeper.join();
    }
}
