//! The sequence batcher in small steps: texts, order, idleness, late calls.

use std::cell::Cell;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::fixture::{Answers, model, request_to};
use super::*;
use crate::{Gate, Next, Payload, PayloadSource, Registration, WorkerInfo};
use nereid_memory::{Pool, Slice};
use nereid_request::{DataType, InputTensor, Origin, Response, SEQUENCE_END, Shape, Text, Waker};
use nereid_wire::inference::ModelInstanceGroup;

const MS: u64 = 1_000_000;
const START: u32 = SEQUENCE_START;
const END: u32 = SEQUENCE_END;

thread_local! {
    static NOW_NS: Cell<u64> = const { Cell::new(0) };
}

/// A batcher, its workers, its clients' mailbox and its clock.
struct World {
    batcher: SequenceBatcher,
    workers: Vec<usize>,
    answers: Arc<Answers>,
    wakes: Arc<AtomicUsize>,
}

fn worker_info(wakes: &Arc<AtomicUsize>) -> WorkerInfo {
    let wakes = Arc::clone(wakes);
    let waker = Waker::new(move || {
        wakes.fetch_add(1, Ordering::SeqCst);
    });
    WorkerInfo { waker, name: String::new(), device: 0, rate_limiter: None }
}

impl World {
    fn new(workers: usize, text: &str) -> World {
        World::with(workers, text, StartDelay { requests: 0, backlog: 0 }, &Services::default())
    }

    fn with(workers: usize, text: &str, hold: StartDelay, services: &Services) -> World {
        NOW_NS.set(1_000 * MS);
        let (spec, config) = model(text);
        let purpose = Purpose {
            spec,
            version: 1,
            statistics: Arc::default(),
            directory: PathBuf::new(),
            pool: Pool::new(1 << 20),
            strategy: None,
        };
        let batcher = SequenceBatcher::with(&purpose, services, &config, hold, || NOW_NS.get()).unwrap();
        let mut world = World { batcher, workers: Vec::new(), answers: Arc::default(), wakes: Arc::default() };
        for _ in 0..workers {
            world.hire();
        }
        world
    }

    fn hire(&mut self) -> usize {
        let worker = self.batcher.join(worker_info(&self.wakes)).unwrap();
        self.workers.push(worker);
        worker
    }

    fn pass(&self, by_ms: u64) {
        NOW_NS.set(NOW_NS.get() + by_ms * MS);
    }

    /// Hands in request `key` of sequence `id`.
    fn try_send(
        &self,
        key: u64,
        id: impl Into<Id>,
        flags: u32,
        change: impl FnOnce(&mut Request),
    ) -> Result<Accepted, Status> {
        let mut request = request_to(&self.answers, key);
        request.correlation_id = id.into().0;
        request.flags = flags;
        (request.stamps.started_ns, request.stamps.queued_ns) = (NOW_NS.get(), NOW_NS.get());
        change(&mut request);
        self.batcher.enqueue(request).map_err(|Refused { status, request }| {
            request.withdraw();
            status
        })
    }

    fn send(&self, key: u64, id: impl Into<Id>, flags: u32) -> Ticket {
        let accepted = self.try_send(key, id, flags, |_| ()).unwrap();
        accepted.wake_up.now();
        accepted.ticket
    }

    fn refusal(&self, id: impl Into<Id>, flags: u32) -> Status {
        self.try_send(99, id, flags, |_| ()).err().unwrap()
    }

    fn poll(&self, worker: usize) -> Next {
        self.batcher.poll(self.workers[worker], NOW_NS.get())
    }

    fn payload(&self, worker: usize) -> Payload {
        match self.poll(worker) {
            Next::Execute(payload) => payload,
            other => panic!("no payload: {other:?}"),
        }
    }

    /// Ids of the requests that a worker takes, `-` for null requests; executed and answered at once.
    fn run(&self, worker: usize) -> String {
        let mut payload = self.payload(worker);
        let ids = keys(&payload);
        payload.take().into_iter().for_each(|request| request.finish(Response::default()));
        self.batcher.executed(self.workers[worker]);
        ids
    }

    fn sleeps_until(&self, worker: usize) -> Option<u64> {
        match self.poll(worker) {
            Next::Sleep { until_ns } => until_ns,
            other => panic!("no sleep: {other:?}"),
        }
    }

    fn counts(&self) -> (u64, u64) {
        let snapshot = self.batcher.statistics.snapshot();
        (snapshot.pending, snapshot.failures.canceled + snapshot.failures.rejected)
    }
}

fn keys(payload: &Payload) -> String {
    let name = |request: &Request| match request.ingress.origin {
        Origin::Null => "-".to_owned(),
        _ => request.id.to_string(),
    };
    payload.requests().iter().map(|request| name(request)).collect::<Vec<_>>().join(" ")
}

struct Id(CorrelationId);

impl From<u64> for Id {
    fn from(id: u64) -> Id {
        Id(CorrelationId::Number(id))
    }
}

impl From<&str> for Id {
    fn from(id: &str) -> Id {
        Id(CorrelationId::Text(Text::from(id)))
    }
}

fn unknown(id: &str) -> Status {
    Status::invalid(format!(
        "inference request for sequence {id} to model 'm' must specify the START flag on the first request of the \
         sequence"
    ))
}

#[test]
fn what_is_refused_says_why() {
    let world = World::new(1, "max_batch_size: 2 sequence_batching { }");
    let two_rows = world.try_send(1, 1, START, |request| request.batch_size = 2).err().unwrap();
    let text = "inference request to model 'm' must specify batch-size 1 due to requirements of sequence batcher";
    assert_eq!(two_rows, Status::invalid(text));
    let unnamed = Status::invalid("inference request to model 'm' must specify a non-zero or non-empty correlation ID");
    assert_eq!(world.refusal(0, START), unnamed);
    assert_eq!(world.refusal("", START), unnamed);
    assert_eq!(world.refusal(7, 0), unknown("7"));
    assert_eq!(world.refusal("seven", END), unknown("seven"));
    world.send(1, 7, START);
    assert_eq!(world.refusal("7", 0), unknown("7"), "a text is no number");
    world.batcher.stop();
    let stopping = "Server is stopping, scheduler for model has stopped accepting new inference requests";
    let stopping = Status::refused(RefusalReason::ModelUnavailable, stopping);
    assert_eq!(world.refusal(8, START), stopping, "without the request's id");
    assert_eq!(world.refusal(7, START), stopping);
    world.send(2, 7, END);
    assert_eq!(world.refusal(7, 0), unknown("7"));
    let deserted = World::new(0, "sequence_batching { }");
    let text = "[request id: 99] all instances of the model are passive and take no requests";
    assert_eq!(deserted.refusal(1, START), Status::refused(RefusalReason::ModelUnavailable, text));
    assert_eq!((world.counts().1, deserted.counts()), (0, (0, 0)), "none of them is counted");
}

#[test]
fn sequences_take_the_lowest_slots_of_all_instances() {
    let world = World::new(2, "max_batch_size: 2 sequence_batching { }");
    (1..=5).for_each(|id| drop(world.send(id, id, START)));
    assert_eq!([world.run(0), world.run(1)], ["1 3", "2 4"]);
    world.send(13, 3, 0);
    world.send(12, 2, END);
    assert_eq!(world.run(0), "- 13", "every sequence keeps its row");
    assert_eq!(world.run(1), "12");
    assert_eq!(world.run(1), "5", "the sequence that waited has the slot from the next batch on");
    assert_eq!(world.answers.take().len(), 7, "answers of null requests are discarded");
    assert_eq!(world.counts(), (0, 0));
}

#[test]
fn the_backlog_is_served_in_order() {
    let world = World::new(1, "sequence_batching { }");
    for (key, id, flags) in [(1, 1, START), (2, 2, START), (3, 3, START | END), (4, 2, 0), (5, 4, START), (6, 1, END)] {
        world.send(key, id, flags);
    }
    // The id is free as soon as the end is accepted: the new sequence waits at the end of the backlog.
    world.send(7, 3, START);
    assert_eq!([world.run(0), world.run(0), world.run(0), world.run(0)], ["1", "6", "2", "4"]);
    assert!(world.sleeps_until(0).is_some(), "sequence 2 has the slot");
    world.send(8, 2, END);
    assert_eq!([world.run(0), world.run(0), world.run(0)], ["8", "3", "5"]);
    world.send(9, 4, END);
    assert_eq!([world.run(0), world.run(0)], ["9", "7"]);
}

#[test]
fn a_start_in_the_middle_goes_on_with_new_states() {
    let state = "state { input_name: \"I\" output_name: \"O\" data_type: TYPE_UINT8 dims: [ 1 ] }";
    let world = World::new(1, &format!("sequence_batching {{ {state} }}"));
    let number = |request: &Request| request.input(b"I").unwrap().data[0][0];
    let step = |key, flags, value: u8| {
        world.send(key, 1, flags);
        let mut payload = world.payload(0);
        let request = payload.take().remove(0);
        let before = number(&request);
        let states = request.states.as_ref().unwrap();
        states.update("O", DataType::Uint8, Shape::from_slice(&[1]), Slice::copy_of(&[value])).unwrap();
        request.finish(Response::default());
        before
    };
    let seen = [step(1, START, 5), step(2, 0, 6), step(3, START, 7), step(4, END, 8), step(5, START, 9)];
    assert_eq!(seen, [0, 5, 0, 7, 0]);
    // Server issue 7117: the state that a client left is not found by the next one with its id, or in its slot.
    world.send(6, 1, END);
    world.run(0);
    world.send(7, 2, START);
    assert_eq!(number(&world.payload(0).requests()[0]), 0);
}

#[test]
fn idle_sequences_lose_their_id_and_then_their_slot() {
    let world = World::new(1, "sequence_batching { max_sequence_idle_microseconds: 100000 }");
    world.send(1, 1, START);
    world.send(2, 2, START);
    assert_eq!(world.run(0), "1");
    let deadline_ns = NOW_NS.get() + 100 * MS;
    assert_eq!(world.sleeps_until(0), Some(deadline_ns), "the worker keeps the time");
    world.pass(99);
    world.send(3, 1, 0);
    world.pass(99);
    assert_eq!(world.run(0), "3");
    world.send(4, 1, 0);
    world.pass(100);
    // Its worker was busy elsewhere, for example, and no thread checked: it is over all the same, but its requests are
    // executed.
    assert_eq!(world.refusal(1, 0), unknown("1"));
    assert_eq!([world.run(0), world.run(0)], ["4", "2"]);
    // A sequence that waited in the backlog for longer is checked 50 ms after it got its slot.
    world.pass(49);
    world.send(5, 2, 0);
    assert_eq!(world.run(0), "5");
    world.send(6, 3, START);
    world.pass(101);
    assert_eq!(world.run(0), "6");
    let defaults = World::new(1, "sequence_batching { }");
    defaults.send(1, 1, START);
    defaults.run(0);
    assert_eq!(defaults.sleeps_until(0), Some(NOW_NS.get() + 1_000 * MS));
}

/// Server issue 8449: its reaper checked the same sequence for ever and the model was dead.
#[test]
fn reaping_comes_to_an_end_and_the_slots_are_free() {
    let world = World::new(2, "max_batch_size: 64 sequence_batching { max_sequence_idle_microseconds: 1000 }");
    for id in 1..=300 {
        world.send(id, id, START);
        if id % 3 == 0 {
            world.send(1_000 + id, id, END);
        }
    }
    let mut executed = 0;
    for _ in 0..1_000 {
        world.pass(1);
        for worker in [0, 1] {
            match world.poll(worker) {
                Next::Execute(mut payload) => {
                    executed += payload.requests().iter().filter(|request| request.is_counted()).count();
                    payload.take().into_iter().for_each(|request| request.finish(Response::default()));
                }
                Next::Sleep { until_ns } => assert!(until_ns.is_none_or(|at_ns| at_ns > NOW_NS.get())),
                Next::Leave => panic!("it was not stopped"),
            }
        }
    }
    assert_eq!(executed, 400);
    assert_eq!(world.sleeps_until(0), None, "no sequence is left");
    assert_eq!(world.batcher.unfinished(), 0);
    assert_eq!(world.batcher.tables().ids.len(), 0);
    (1..=128).for_each(|id| drop(world.send(id, id, START)));
    assert_eq!(world.run(0).split(' ').count(), 64, "every slot");
}

#[test]
fn the_backlog_has_a_timeout_for_whole_sequences() {
    let world = World::new(1, "sequence_batching { max_sequence_idle_microseconds: 100000 }");
    let timed =
        |key, id: u64, flags, us| world.try_send(key, id, flags, |request| request.queueing.timeout_us = us).unwrap();
    assert_eq!(timed(1, 1, START, 10).expires_at_ns, None, "it has a slot");
    let first = timed(2, 2, START, 0);
    assert_eq!(first.expires_at_ns, None);
    let second = timed(3, 2, 0, 2_000);
    assert_eq!(second.expires_at_ns, Some(NOW_NS.get() + 2 * MS));
    assert_eq!(world.run(0), "1");
    world.answers.take();
    world.pass(2);
    world.batcher.expire(&second.ticket).now();
    let text = Some("Unavailable: timeout of the corresponding sequence has been expired".to_owned());
    assert_eq!(world.answers.take(), [(2, text.clone()), (3, text)]);
    assert_eq!(world.counts(), (0, 2));
    assert_eq!(world.refusal(2, 0), unknown("2"));
    // A sequence that got its slot in time has no timeout any more, nor has one for which a slot was free.
    let third = timed(4, 3, START, 150_000);
    world.pass(150);
    world.batcher.expire(&third.ticket).now();
    assert_eq!(world.answers.take(), []);
    assert_eq!(world.run(0), "4");
}

#[test]
fn a_cancelled_first_request_takes_its_sequence_along() {
    let world = World::new(1, "sequence_batching { }");
    let first = world.send(1, 1, START);
    let second = world.send(2, 1, 0);
    world.send(3, 1, 0);
    world.send(4, 2, START);
    let waiting = world.send(5, 2, 0);
    world.send(6, 3, START);
    let cancelled =
        |keys: &[u64]| keys.iter().map(|key| (*key, Some("<invalid code>: ".to_owned()))).collect::<Vec<_>>();
    world.batcher.cancel(&second).now();
    assert_eq!(world.answers.take(), cancelled(&[2]), "not the first: the others go on for now");
    assert_eq!(world.run(0), "1");
    world.answers.take();
    // In the backlog any request is enough.
    world.batcher.cancel(&waiting).now();
    let mut gone = world.answers.take();
    gone.sort();
    assert_eq!(gone, cancelled(&[4, 5]));
    assert_eq!(world.run(0), "6", "the one behind has the slot");
    let mut ends = world.answers.take();
    ends.sort();
    assert_eq!(ends[0], cancelled(&[3])[0]);
    assert_eq!(world.refusal(1, 0), unknown("1"));
    world.batcher.cancel(&first).now();
    assert_eq!(world.answers.take(), [], "too late: a backend had it");
    assert_eq!(world.counts(), (0, 4));
    let next = world.send(7, 3, 0);
    world.batcher.cancel(&next).now();
    assert_eq!(world.answers.take(), cancelled(&[7]));
    assert_eq!(world.refusal(3, 0), unknown("3"));
}

#[test]
fn what_comes_late_finds_no_stranger() {
    let world = World::new(1, "sequence_batching { oldest { } }");
    let timed = world.try_send(1, 1, START, |request| request.queueing.timeout_us = 1).unwrap().ticket;
    world.send(2, 1, END);
    let mut first = world.payload(0);
    world.batcher.executed(world.workers[0]);
    world.send(3, 2, START);
    let kept = first.take().remove(0);
    assert_eq!(world.sleeps_until(0), None, "nothing goes before the release");
    drop(kept);
    assert_eq!(world.run(0), "2");
    // Sequence 1 is over, and sequence 2 has its slot.
    world.batcher.expire(&timed).now();
    world.batcher.cancel(&timed).now();
    assert_eq!(world.run(0), "3");
    let ends: Vec<_> = world.answers.take().into_iter().map(|(key, _)| key).collect();
    assert_eq!(ends, [1, 2, 3]);
    world.send(4, 2, 0);
    assert_eq!(world.run(0), "4", "it lives");
}

#[test]
fn the_direct_strategy_waits_for_enough_slots_or_long_enough() {
    let text = "max_batch_size: 4 sequence_batching { direct { max_queue_delay_microseconds: 2000 \
                minimum_slot_utilization: 0.5 } }";
    let world = World::new(1, text);
    world.send(1, 1, START);
    let until_ns = NOW_NS.get() + 2 * MS + 1;
    assert_eq!(world.sleeps_until(0), Some(until_ns));
    let before = world.wakes.load(Ordering::SeqCst);
    world.send(2, 1, 0);
    assert_eq!(world.wakes.load(Ordering::SeqCst), before, "the same slot is not one more");
    world.send(3, 2, START);
    assert_eq!(world.wakes.load(Ordering::SeqCst), before + 1);
    assert_eq!(world.run(0), "1 3");
    world.pass(2);
    assert!(world.sleeps_until(0).is_some(), "not later than the delay yet");
    NOW_NS.set(NOW_NS.get() + 1);
    assert_eq!(world.run(0), "2");
}

#[test]
fn rows_that_differ_wait_and_are_filled() {
    let more = "input { name: \"MORE\" data_type: TYPE_STRING dims: [ -1 ] }";
    let world = World::new(1, &format!("max_batch_size: 4 {more} sequence_batching {{ }}"));
    let send = |key, id: u64, flags, columns: i64| {
        let add = |request: &mut Request| {
            let mut input = InputTensor::new(Text::from("MORE"), DataType::Bytes, Shape::from_slice(&[1, columns]));
            input.index = 1;
            input.data.push(Slice::copy_of(&b"\x01\0\0\0x".repeat(columns as usize)));
            request.inputs.push(input);
        };
        world.try_send(key, id, flags, add).unwrap().wake_up.now();
    };
    send(1, 1, START, 2);
    send(2, 2, START, 3);
    send(3, 3, START, 2);
    let mut payload = world.payload(0);
    assert_eq!(keys(&payload), "1 - 3");
    let null = &payload.requests()[1];
    let input = null.input(b"MORE").unwrap();
    assert_eq!((&input.shape[..], &input.data[0][..]), (&[1, 2][..], &[0; 8][..]), "well-formed strings");
    assert_eq!(null.input(b"INPUT0").unwrap().data[0].len(), 1);
    assert!(null.outputs.is_empty() && !null.is_counted() && null.flags == 0);
    null.finish(Response::default());
    payload.take().into_iter().for_each(|request| request.finish(Response::default()));
    assert_eq!(world.run(0), "- 2");
}

#[test]
fn requests_are_stamped_when_they_enter_their_batcher() {
    let stamps = |text: &str| {
        let world = World::new(1, text);
        world.send(1, 1, START);
        world.send(2, 1, END);
        world.send(3, 2, START);
        let stamp = || {
            world.pass(10);
            let mut payload = world.payload(0);
            let request = payload.take().remove(0);
            (request.stamps.queued_ns - request.stamps.started_ns) / MS
        };
        [stamp(), stamp(), stamp()]
    };
    assert_eq!(stamps("sequence_batching { }"), [0, 0, 20], "the third came into its slot with the end");
    assert_eq!(stamps("sequence_batching { oldest { } }"), [0, 10, 20], "each one with the release before it");
}

#[test]
fn the_oldest_strategy_takes_one_request_of_each_sequence() {
    let text = "max_batch_size: 4 sequence_batching { oldest { max_candidate_sequences: 3 preserve_ordering: true } }";
    let world = World::new(1, text);
    for (key, id, flags) in [(1, 1, START), (2, 1, END), (3, 2, START), (4, 3, START), (5, 4, START)] {
        world.send(key, id, flags);
    }
    let mut payload = world.payload(0);
    assert_eq!(keys(&payload), "1 3 4");
    world.batcher.executed(world.workers[0]);
    assert!(matches!(world.poll(0), Next::Sleep { .. }), "all are in flight");
    let mut requests = payload.take();
    requests.remove(2).finish(Response::default());
    assert!(world.answers.keys().is_empty(), "its response waits for those before it");
    world.send(6, 3, 0);
    assert_eq!(world.run(0), "6");
    requests.remove(0).finish(Response::default());
    assert_eq!(world.answers.keys(), [1]);
    assert_eq!(world.run(0), "2", "and with it ends sequence 1");
    assert_eq!(world.run(0), "5");
    requests.remove(0).fail(Status::internal("no"));
    assert_eq!(world.answers.keys(), [1, 3, 4, 6, 2, 5]);
}

#[test]
fn iterative_sequences_come_back_until_they_are_released() {
    for strategy in ["direct { }", "oldest { }"] {
        let world =
            World::new(1, &format!("max_batch_size: 2 sequence_batching {{ iterative_sequence: true {strategy} }}"));
        world.send(1, 0, 0);
        world.send(2, 0, 0);
        let mut payload = world.payload(0);
        assert_eq!(keys(&payload), "1 2");
        let seen: Vec<_> = payload.requests().iter().map(|it| (it.correlation_id.clone(), it.flags)).collect();
        assert_eq!(seen, [(CorrelationId::Number(1), START), (CorrelationId::Number(2), START)]);
        let mut requests = payload.take();
        // The server's stop does not stop them.
        world.batcher.stop();
        requests.remove(0).reschedule().unwrap();
        assert_eq!(world.counts().0, 1);
        requests.remove(0).finish(Response::default());
        let mut payload = world.payload(0);
        assert_eq!(keys(&payload), "1", "{strategy}");
        let again = payload.take().remove(0);
        assert_eq!((&again.correlation_id, again.flags, again.inputs.len()), (&CorrelationId::Number(1), 0, 1));
        assert_eq!(world.batcher.unfinished(), 1, "the other one ended with its request");
        again.finish(Response::default());
        drop(again);
        assert_eq!(world.batcher.unfinished(), 0);
        assert!(matches!(world.poll(0), Next::Leave));
        assert_eq!(world.answers.take(), [(2, None), (1, None)]);
    }
}

/// Even with an id from the client: the slot is free for the next one, and the queued requests of the sequence run
/// before.
#[test]
fn the_last_release_ends_an_iterative_sequence() {
    let world = World::new(1, "sequence_batching { iterative_sequence: true }");
    world.send(1, 7, START);
    world.send(2, 7, 0);
    world.send(3, 8, START);
    let first = world.payload(0).take().remove(0);
    first.reschedule().unwrap();
    let second = world.payload(0).take().remove(0);
    second.finish(Response::default());
    drop(second);
    assert_eq!(world.refusal(7, 0), unknown("7"));
    let first = world.payload(0).take().remove(0);
    let (status, first) = first.reschedule().unwrap_err();
    first.fail(status);
    assert_eq!(world.run(0), "3", "the slot went to the sequence that waited for it");
    assert_eq!(world.batcher.unfinished(), 0);
    assert_eq!(world.answers.keys(), [2, 1, 3]);
}

#[test]
fn one_that_comes_back_too_late_stays_with_its_backend() {
    let text = "sequence_batching { iterative_sequence: true max_sequence_idle_microseconds: 1000 }";
    let world = World::new(1, text);
    world.send(1, 0, 0);
    let request = world.payload(0).take().remove(0);
    let inputs = request.inputs.len();
    world.pass(1);
    let (status, request) = request.reschedule().unwrap_err();
    assert_eq!((status.clone(), request.inputs.len()), (unknown("1"), inputs));
    request.fail(status);
    assert_eq!(world.answers.take()[0].0, 1);
    // Cancelled while its backend had it: noticed when its turn comes.
    let ticket = world.send(2, 0, 0);
    let request = world.payload(0).take().remove(0);
    world.batcher.cancel(&ticket).now();
    request.reschedule().unwrap();
    assert!(matches!(world.poll(0), Next::Sleep { .. }));
    assert_eq!(world.answers.take(), [(2, Some("<invalid code>: ".to_owned()))]);
    assert_eq!(world.batcher.unfinished(), 0);
    // Only where the model's configuration enables it.
    let plain = World::new(1, "sequence_batching { oldest { } }");
    plain.send(1, 1, START);
    plain.send(2, 1, 0);
    let request = plain.payload(0).take().remove(0);
    let (status, request) = request.reschedule().unwrap_err();
    assert!(status.message.ends_with("while the model is not configured to handle such a flag."), "{status}");
    request.finish(Response::default());
    drop(request);
    assert_eq!(plain.run(0), "2", "its release was reported all the same");
}

#[test]
fn instances_come_and_go_while_sequences_live() {
    let mut world = World::new(1, "sequence_batching { }");
    world.send(1, 1, START);
    world.send(2, 2, START);
    world.hire();
    assert_eq!([world.run(0), world.run(1)], ["1", "2"], "the new one takes the backlog");
    world.batcher.dismiss(world.workers[0]);
    world.send(3, 1, 0);
    world.send(4, 3, START);
    assert_eq!(world.run(0), "3", "its sequence stays to its end");
    assert!(matches!(world.poll(0), Next::Sleep { .. }));
    world.send(5, 1, END);
    assert_eq!(world.run(0), "5");
    assert!(matches!(world.poll(0), Next::Leave));
    world.batcher.left(world.workers[0]);
    world.send(6, 2, END);
    assert_eq!([world.run(1), world.run(1)], ["6", "4"]);
    // The last one ends in the middle.
    world.send(7, 3, 0);
    world.send(8, 4, START);
    world.answers.take();
    world.batcher.left(world.workers[1]);
    let text = |key| {
        format!("Unavailable: [request id: {key}] the last instance of the model left before it took the request")
    };
    let mut ends = world.answers.take();
    ends.sort();
    assert_eq!(ends, [(7, Some(text(7))), (8, Some(text(8)))]);
    assert_eq!(world.counts().0, 0);
    assert!(world.refusal(3, START).message.contains("passive"));
}

/// Begun sequences are over, for their queued requests and for later ones; those that have still to begin are not.
#[test]
fn an_instance_that_lost_its_state_goes_on_with_no_sequence() {
    for strategy in ["", "oldest { max_candidate_sequences: 3 }"] {
        let world = World::new(1, &format!("max_batch_size: 3 sequence_batching {{ {strategy} }}"));
        for (key, id) in [(1, 1), (2, 2), (3, 3)] {
            world.send(key, id, START);
        }
        assert_eq!(world.run(0), "1 2 3");
        // One is idle, one has a queued request, one another start; one waits for a slot.
        world.send(4, 2, 0);
        world.send(5, 3, 0);
        world.send(6, 3, START);
        world.send(7, 3, END);
        world.send(8, 4, START);
        world.answers.take();
        world.batcher.lost(world.workers[0]);
        let text = |key: u64| Some(format!("Unavailable: [request id: {key}] {}", Status::sequence_lost().message));
        assert_eq!(world.answers.take(), [(4, text(4)), (5, text(5))]);
        for id in [1, 2] {
            assert!(world.refusal(id, 0).message.contains("must specify the START flag"));
        }
        let mut executed = [world.run(0), world.run(0)].join(" ").replace("- ", "");
        executed.retain(|c| c != ' ');
        assert!(["867", "687"].contains(&executed.as_str()), "{executed}");
        assert_eq!(world.counts().0, 0);
        // A second loss ends only the new sequence, which has begun.
        world.batcher.lost(world.workers[0]);
        assert!(world.refusal(4, 0).message.contains("must specify the START flag"));
        world.send(9, 1, START);
        world.send(10, 1, END);
        assert_eq!([world.run(0), world.run(0)], ["9", "10"]);
    }
}

#[test]
fn a_stopped_batcher_goes_on_with_what_has_begun() {
    let world = World::new(1, "sequence_batching { }");
    world.send(1, 1, START);
    world.send(2, 2, START);
    world.batcher.stop();
    assert_eq!(world.run(0), "1");
    assert!(matches!(world.poll(0), Next::Sleep { .. }));
    assert_eq!(world.batcher.unfinished(), 2);
    world.send(3, 1, END);
    assert_eq!([world.run(0), world.run(0)], ["3", "2"]);
    assert!(matches!(world.poll(0), Next::Sleep { .. }));
    world.send(4, 2, 0);
    // No client can send any more.
    world.batcher.close();
    assert_eq!(world.run(0), "4", "what was accepted is executed");
    assert!(matches!(world.poll(0), Next::Leave));
    assert_eq!(world.batcher.unfinished(), 0);
}

#[test]
fn executions_may_be_held_until_enough_has_come() {
    let world = World::with(1, "sequence_batching { }", StartDelay { requests: 2, backlog: 1 }, &Services::default());
    world.send(1, 1, START);
    world.send(2, 2, START);
    assert!(matches!(world.poll(0), Next::Sleep { .. }));
    let before = world.wakes.load(Ordering::SeqCst);
    world.send(3, 1, END);
    assert_eq!(world.wakes.load(Ordering::SeqCst), before + 1);
    assert_eq!([world.run(0), world.run(0), world.run(0)], ["1", "3", "2"]);
}

/// A gate that is closed at first, and the calls to it.
#[derive(Default)]
struct Doors(Mutex<Vec<&'static str>>, std::sync::atomic::AtomicBool);

impl Gate for Doors {
    fn enter(&self) -> bool {
        let is_open = self.1.load(Ordering::SeqCst);
        self.0.lock().unwrap().push(if is_open { "in" } else { "wait" });
        is_open
    }

    fn executed(&self) {
        self.0.lock().unwrap().push("done");
    }

    fn leave(&self) {
        self.0.lock().unwrap().push("out");
    }
}

struct Limits(Arc<Doors>);

impl Limiter for Limits {
    fn register(&self, _groups: &[ModelInstanceGroup]) -> Result<Registration, Status> {
        unreachable!("only instances come here")
    }

    fn change(&self, _registration: &Registration, _groups: &[ModelInstanceGroup]) -> Result<(), Status> {
        unreachable!("only instances come here")
    }

    fn admit(&self, model: &str, _info: &WorkerInfo) -> Result<Arc<dyn Gate>, Status> {
        assert_eq!(model, "m");
        Ok(self.0.clone())
    }
}

#[test]
fn resources_are_requested_when_there_is_something_to_execute() {
    let doors = Arc::new(Doors::default());
    let services = Services { limiter: Some(Arc::new(Limits(Arc::clone(&doors)))), ..Services::default() };
    let world = World::with(1, "sequence_batching { }", StartDelay { requests: 0, backlog: 0 }, &services);
    let log = || std::mem::take(&mut *doors.0.lock().unwrap());
    assert!(matches!(world.poll(0), Next::Sleep { .. }));
    assert_eq!(log(), [] as [&str; 0]);
    let ticket = world.send(1, 1, START);
    assert!(matches!(world.poll(0), Next::Sleep { .. }));
    world.batcher.cancel(&ticket).now();
    assert!(matches!(world.poll(0), Next::Sleep { .. }));
    assert_eq!(log(), ["wait", "out"], "there is nothing to execute after all");
    doors.1.store(true, Ordering::SeqCst);
    world.send(2, 2, START);
    world.run(0);
    assert_eq!(log(), ["in", "done"]);
    assert!(matches!(world.poll(0), Next::Sleep { .. }));
    assert_eq!(log(), ["out"], "nothing more to execute");
}

/// A batcher with `--deadline-admission`, of which executions take 16 ms, 17 with the allowance of an estimate.
/// Sequence 1 has a slot.
fn measured(text: &str) -> World {
    let services = Services { deadline_admission: true, ..Services::default() };
    let world = World::with(1, text, StartDelay { requests: 0, backlog: 0 }, &services);
    world.send(1, 1, START);
    assert_eq!(world.run(0), "1");
    world.pass(16);
    assert!(matches!(world.poll(0), Next::Sleep { .. }));
    world
}

impl World {
    /// Hands in a request that may wait for so long; false: it is refused because it would be late.
    fn accepts(&self, key: u64, id: u64, flags: u32, timeout_us: u64) -> bool {
        self.is_in_time(self.try_send(key, id, flags, |request| request.queueing.timeout_us = timeout_us))
    }

    fn is_in_time(&self, outcome: Result<Accepted, Status>) -> bool {
        match outcome {
            Ok(accepted) => {
                accepted.wake_up.now();
                true
            }
            Err(status) => {
                assert_eq!(status.refusal, Some(RefusalReason::Deadline), "{status}");
                false
            }
        }
    }

    fn refused(&self) -> u64 {
        self.batcher.statistics.snapshot().refused.iter().sum()
    }
}

#[test]
fn late_requests_of_sequences_with_rows_of_their_own_are_refused() {
    let world = measured("max_batch_size: 2 sequence_batching { }");
    assert!(world.accepts(2, 1, 0, 1), "nothing waits");
    // Behind the execution that may run, and the one of the request in front.
    assert!(!world.accepts(90, 1, 0, 33_999));
    let answered_by = |id: u64, flags, ms: u64| {
        let by_ns = NOW_NS.get() + ms * MS;
        world.is_in_time(world.try_send(91, id, flags, |request| request.queueing.answer_by_ns = by_ns))
    };
    assert!(!answered_by(1, 0, 50));
    assert!(world.accepts(3, 1, 0, 34_000));
    // Another sequence has a row of its own in the next batch. One that is refused has not begun.
    assert!(!world.accepts(92, 2, START, 16_999));
    assert!(!answered_by(2, START, 33));
    assert_eq!(world.refusal(2, 0), unknown("2"));
    assert!(world.accepts(4, 2, START, 17_000));
    assert!(!world.accepts(93, 2, START, 1), "another start is one more request of its sequence");
    assert!(world.accepts(5, 1, END, 1), "its execution frees the slot");
    assert_eq!((world.refused(), world.counts()), (5, (4, 0)));
    assert_eq!([world.run(0), world.run(0), world.run(0)], ["2 4", "3", "5"], "without those that were refused");
    world.send(6, 2, END);
    assert_eq!(world.run(0), "- 6", "the sequence lives");
    assert_eq!(world.answers.keys().len(), 6);
    // Without the flag nothing is refused.
    let plain = World::new(1, "sequence_batching { }");
    plain.send(1, 1, START);
    plain.run(0);
    plain.pass(16);
    assert!((2..5).all(|key| plain.accepts(key, 1, 0, 1)));
}

#[test]
fn late_requests_of_the_oldest_strategy_are_refused() {
    let world = measured("max_batch_size: 2 sequence_batching { oldest { max_candidate_sequences: 4 } }");
    for (key, id, flags) in [(2, 1, 0), (3, 2, START), (4, 3, START)] {
        assert!(world.accepts(key, id, flags, 1_000_000));
    }
    // Behind a batch of two and the execution that may run.
    assert!(!world.accepts(90, 4, START, 33_999));
    // Behind that, with the request in front of it, and once more behind the others for itself.
    assert!(!world.accepts(91, 1, 0, 67_999));
    assert!(world.accepts(5, 1, 0, 68_000));
    assert!(world.accepts(6, 4, START, 34_000));
    assert_eq!([world.run(0), world.run(0), world.run(0)], ["2 3", "4 6", "5"]);
    assert_eq!((world.refused(), world.counts()), (2, (0, 0)));
}

#[test]
fn late_sequences_do_not_enter_the_backlog() {
    let world = measured("sequence_batching { }");
    world.pass(64);
    world.send(2, 1, END);
    assert_eq!(world.run(0), "2");
    world.pass(16);
    assert!(matches!(world.poll(0), Next::Sleep { .. }));
    // A sequence has its slot for 80 ms, 85 with the allowance.
    assert!(world.accepts(3, 2, START, 1));
    assert!(world.accepts(4, 3, START, 1), "none waits for the slot");
    assert!(world.accepts(5, 3, 0, 1), "the time-out of the backlog applies to what follows");
    assert!(!world.accepts(90, 4, START, 169_999));
    let answered_by = |us: u64| {
        let by_ns = NOW_NS.get() + us * 1_000;
        world.is_in_time(world.try_send(6, 4, START, |request| request.queueing.answer_by_ns = by_ns))
    };
    assert!(!answered_by(186_999));
    assert!(answered_by(187_000));
    assert!(!world.accepts(91, 5, START, 254_999), "one more waits");
    // An idle sequence is found to be over before a new one would have to wait.
    world.run(0);
    world.pass(1_000);
    assert!(world.accepts(7, 5, START, 170_000));
    assert_eq!(world.refused(), 3);
}

#[test]
fn a_refused_request_keeps_its_sequence_alive() {
    let world = measured("sequence_batching { max_sequence_idle_microseconds: 100000 }");
    world.send(2, 1, 0);
    world.pass(99);
    assert!(!world.accepts(90, 1, 0, 1));
    world.pass(99);
    world.send(3, 1, 0);
    assert_eq!([world.run(0), world.run(0)], ["2", "3"]);
}

/// The models of the other steps may have executed theirs, so a client could not repeat it.
#[test]
fn a_step_of_an_ensemble_that_continues_a_sequence_is_not_refused() {
    let world = measured("max_batch_size: 2 sequence_batching { }");
    world.send(2, 1, 0);
    let step = |key, id: u64, flags, continues_sequence| {
        world.is_in_time(world.try_send(key, id, flags, |request| {
            request.queueing.timeout_us = 1;
            request.links.times = Some(Arc::default());
            request.ingress.continues_sequence = continues_sequence;
        }))
    };
    assert!(step(3, 1, 0, true));
    assert!(!step(90, 1, START, false), "a start can be repeated");
    assert!(!step(91, 2, START, false));
    assert!(step(4, 2, START, true), "the models of other steps have begun the sequence");
    assert_eq!([world.run(0), world.run(0)], ["2 4", "3"]);
    assert_eq!(world.refused(), 2);
}
