//! The dynamic batcher under a virtual clock: the batches that form at each time, row by row of the specification.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::mutants::{self, Mutant};
use crate::{Parker, next_payload};
use nereid_clock::now_ns;
use nereid_memory::{BlockMut, Exhausted};
use nereid_model_config::{ModelSpec, from_dynamic, normalize, parse};
use nereid_observe::statistics::ModelStatistics;
use nereid_queue::Spin;
use nereid_request::{Code, Completion, DataType, Delivery, InputTensor, Response, Shape, Sink, Text, Waker};
use nereid_wire::inference::model_config::SchedulingChoice;

/// Answers by request: `None` is a success.
#[derive(Default)]
struct Answers(Mutex<Vec<(u64, Option<Status>)>>);

impl Sink for Answers {
    fn deliver(&self, key: u64, delivery: Delivery) {
        assert!(delivery.last);
        self.0.lock().unwrap().push((key, delivery.response.and_then(|mut response| response.error.take())));
    }

    fn allocate(&self, _key: u64, byte_size: usize) -> Result<BlockMut, Exhausted> {
        Ok(BlockMut::unpooled(byte_size))
    }
}

/// A batcher, one worker that is polled by hand, and the time.
struct Bench {
    batcher: Dynamic,
    answers: Arc<Answers>,
    statistics: Arc<ModelStatistics>,
    worker: usize,
    wake_ups: Arc<AtomicUsize>,
    now_us: u64,
    sent: u64,
}

fn spec(max_batch_size: u32, dims: &str, batching: &str) -> Arc<ModelSpec> {
    let text = format!(
        "name: 'm' backend: 'b' max_batch_size: {max_batch_size} \
         input {{ name: 'INPUT0' data_type: TYPE_INT32 dims: [ {dims} ] }} dynamic_batching {{ {batching} }}"
    );
    let mut config = from_dynamic(&parse("c", text.replace('\'', "\"").as_bytes()).unwrap().message).unwrap();
    normalize::fill_defaults(&mut config);
    Arc::new(ModelSpec::new(config).unwrap())
}

fn batcher(spec: &Arc<ModelSpec>, services: &Services) -> (Dynamic, Arc<ModelStatistics>) {
    let purpose = Purpose::of(Arc::clone(spec));
    let statistics = Arc::clone(&purpose.statistics);
    let Some(SchedulingChoice::DynamicBatching(config)) = &spec.config.scheduling_choice else { unreachable!() };
    (Dynamic::new(config, &purpose, services), statistics)
}

impl Bench {
    fn new(max_batch_size: u32, batching: &str) -> Bench {
        Bench::of(&spec(max_batch_size, "4", batching), &Services::default())
    }

    fn of(spec: &Arc<ModelSpec>, services: &Services) -> Bench {
        let (batcher, statistics) = batcher(spec, services);
        let wake_ups: Arc<AtomicUsize> = Arc::default();
        let count = Arc::clone(&wake_ups);
        let waker = Waker::new(move || _ = count.fetch_add(1, Ordering::SeqCst));
        let worker = batcher.join(WorkerInfo { waker, name: "m".into(), device: 0, rate_limiter: None }).unwrap();
        Bench { batcher, answers: Arc::default(), statistics, worker, wake_ups, now_us: 1_000, sent: 0 }
    }

    fn request(&mut self, rows: u64) -> Box<Request> {
        let mut request = Request::new(Completion::new(self.answers.clone(), self.sent));
        self.sent += 1;
        let shape = Shape::from_slice(&[rows as i64, 4]);
        let mut input = InputTensor::new(Text::from("INPUT0"), DataType::Int32, shape.clone());
        input.model_shape = shape;
        request.inputs.push(input);
        request.batch_size = rows;
        request.stamps.queued_ns = self.now_us * 1_000;
        Box::new(request)
    }

    /// A request of one row, changed.
    fn send_with(&mut self, change: impl FnOnce(&mut Request)) -> Result<Accepted, Refused> {
        let mut request = self.request(1);
        change(&mut request);
        self.batcher.enqueue(request)
    }

    fn send(&mut self, rows: &[u64]) -> Vec<Accepted> {
        let send = |&rows: &u64| {
            let request = self.request(rows);
            self.batcher.enqueue(request).unwrap()
        };
        rows.iter().map(send).collect()
    }

    fn wake(&self, accepted: impl IntoIterator<Item = Accepted>) {
        accepted.into_iter().for_each(|accepted| accepted.wake_up.now());
    }

    fn woken(&self) -> usize {
        self.wake_ups.swap(0, Ordering::SeqCst)
    }

    /// Polls as an idle worker does: the requests of the payload, which is answered.
    fn poll(&mut self) -> Result<Vec<u64>, Option<u64>> {
        match self.batcher.poll(self.worker, self.now_us * 1_000) {
            Next::Execute(mut payload) => {
                let before = self.answers.0.lock().unwrap().len();
                payload.take().into_iter().for_each(|request| request.finish(Response::default()));
                self.batcher.executed(self.worker);
                Ok(self.answers.0.lock().unwrap()[before..].iter().map(|(key, _)| *key).collect())
            }
            Next::Sleep { until_ns } => Err(until_ns.map(|ns| ns / 1_000)),
            Next::Leave => Ok(Vec::new()),
        }
    }

    /// Sizes in rows of the batches that are ready.
    fn batches(&mut self) -> Vec<u64> {
        let mut sizes = Vec::new();
        while let Next::Execute(mut payload) = self.batcher.poll(self.worker, self.now_us * 1_000) {
            sizes.push(payload.requests().iter().map(|request| request.batch_size).sum());
            payload.take().into_iter().for_each(|request| request.finish(Response::default()));
            self.batcher.executed(self.worker);
        }
        sizes
    }

    fn errors(&self) -> Vec<(u64, Code, String)> {
        let answers = self.answers.0.lock().unwrap();
        let error = |(key, status): &(u64, Option<Status>)| {
            status.as_ref().map(|status| (*key, status.code, status.message.to_string()))
        };
        answers.iter().filter_map(error).collect()
    }
}

/// Configuration, rows of the requests in the queue, their age: what is executed, and if requests are left, when to
/// check again (in microseconds from the arrival) and how many rows more wake the worker.
struct Row {
    max: u32,
    batching: &'static str,
    requests: &'static [u64],
    age_us: u64,
    batches: &'static [u64],
    left: Option<(u64, usize)>,
}

const fn row(
    max: u32,
    batching: &'static str,
    requests: &'static [u64],
    age_us: u64,
    batches: &'static [u64],
    left: Option<(u64, usize)>,
) -> Row {
    Row { max, batching, requests, age_us, batches, left }
}

const PREFERRED: &str = "preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 500";
const TWO_SIZES: &str = "preferred_batch_size: [ 2, 6 ] max_queue_delay_microseconds: 500";

#[rustfmt::skip]
const FORMING: &[Row] = &[
    // Plain: all that wait.
    row(8, "", &[1, 1, 1], 0, &[3], None),
    row(8, "", &[1; 19], 0, &[8, 8, 3], None),
    row(8, "", &[3, 3, 3, 3], 0, &[6, 6], None),
    row(8, "", &[8, 1], 0, &[8, 1], None),
    // Zero rows still take a place.
    row(2, "", &[0, 0, 0], 0, &[0, 0], None),
    // No batching: each request on its own.
    row(0, "", &[1, 1, 1], 0, &[1, 1, 1], None),
    // Preferred sizes without a delay: the largest one that is met, then the rest.
    row(8, "preferred_batch_size: [ 4 ]", &[1; 6], 0, &[4, 2], None),
    row(8, "preferred_batch_size: [ 2, 4 ]", &[1; 7], 0, &[4, 2, 1], None),
    row(8, "preferred_batch_size: [ 4, 2 ]", &[1; 3], 0, &[2, 1], None),
    // With a delay: preferred sizes at once, everything when the time is up.
    row(8, PREFERRED, &[1; 3], 0, &[], Some((500, 1))),
    row(8, PREFERRED, &[1; 3], 499, &[], Some((500, 1))),
    row(8, PREFERRED, &[1; 3], 500, &[3], None),
    row(8, PREFERRED, &[1; 4], 0, &[4], None),
    row(8, PREFERRED, &[1; 5], 0, &[4], Some((500, 3))),
    row(8, PREFERRED, &[1; 6], 500, &[6], None),
    row(8, PREFERRED, &[1; 20], 500, &[8, 8, 4], None),
    row(8, TWO_SIZES, &[1], 0, &[], Some((500, 1))),
    row(8, TWO_SIZES, &[1, 1], 0, &[2], None),
    row(8, TWO_SIZES, &[3], 0, &[], Some((500, 3))),
    row(8, TWO_SIZES, &[3, 3], 0, &[6], None),
    // The next one would exceed every preferred size, and none was met: the batch ends before it.
    row(8, PREFERRED, &[3, 3], 0, &[3], Some((500, 1))),
    row(8, PREFERRED, &[3, 3], 500, &[6], None),
    row(8, PREFERRED, &[3, 6], 0, &[3, 6], None),
    // The next one does not fit.
    row(8, "preferred_batch_size: [ 8 ]", &[5, 5], 0, &[5, 5], None),
    // From the largest preferred size on there is no wait.
    row(8, PREFERRED, &[5], 0, &[5], None),
    row(8, "max_queue_delay_microseconds: 500", &[1; 7], 0, &[], Some((500, 1))),
    row(8, "max_queue_delay_microseconds: 500", &[1; 8], 0, &[8], None),
];

fn forming() {
    for (number, row) in FORMING.iter().enumerate() {
        let mut bench = Bench::new(row.max, row.batching);
        let arrived_us = bench.now_us;
        drop(bench.send(row.requests));
        bench.now_us += row.age_us;
        assert_eq!(bench.batches(), row.batches, "row {number}");
        let Some((until_us, rows)) = row.left else {
            assert_eq!(bench.poll(), Err(None), "row {number}");
            continue;
        };
        assert_eq!(bench.poll(), Err(Some(arrived_us + until_us)), "row {number}");
        let accepted = bench.send(&vec![1; rows - 1]);
        bench.wake(accepted);
        assert_eq!(bench.woken(), 0, "row {number}: woken too early");
        let accepted = bench.send(&[1]);
        bench.wake(accepted);
        assert_eq!(bench.woken(), 1, "row {number}: not woken");
        assert!(bench.poll().is_ok(), "row {number}: woken for nothing");
    }
}

#[test]
fn batches_form_as_the_specification_says() {
    forming();
}

#[test]
fn a_batch_grows_until_a_worker_takes_it() {
    let mut bench = Bench::new(4, "");
    let first = bench.send(&[1]);
    assert_eq!(first.len(), 1);
    drop(bench.send(&[1, 1]));
    assert_eq!(bench.batches(), [3], "one execution for all that came meanwhile");
}

#[test]
fn the_delay_is_measured_by_the_request_that_waits_longest() {
    let mut bench = Bench::new(8, PREFERRED);
    drop(bench.send(&[1]));
    let oldest_us = bench.now_us;
    assert_eq!(bench.poll(), Err(Some(oldest_us + 500)));
    bench.now_us += 400;
    drop(bench.send(&[1]));
    assert_eq!(bench.poll(), Err(Some(oldest_us + 500)));
    bench.now_us += 100;
    assert_eq!(bench.poll(), Ok(vec![0, 1]));
}

fn level_of(priority: u64) -> impl FnOnce(&mut Request) {
    move |request| request.queueing.priority = priority
}

const LEVELS: &str = "priority_levels: 3 default_priority_level: 2";

fn priorities() {
    let mut bench = Bench::new(2, LEVELS);
    for priority in [3, 2, 1, 2, 1] {
        let _ = bench.send_with(level_of(priority)).unwrap();
    }
    assert_eq!(bench.poll(), Ok(vec![2, 4]));
    // A request of a higher level comes before those that wait.
    let _ = bench.send_with(level_of(1)).unwrap();
    assert_eq!(bench.poll(), Ok(vec![5, 1]));
    assert_eq!(bench.poll(), Ok(vec![3, 0]), "levels share a batch");
    assert_eq!(bench.poll(), Err(None));
}

#[test]
fn higher_levels_come_first_and_each_is_served_in_its_order() {
    priorities();
}

#[test]
fn a_level_is_only_a_number() {
    let mut bench = Bench::new(1, "priority_levels: 18446744073709551615 default_priority_level: 7");
    for priority in (1..=1_000).map(|n| u64::MAX - n).chain([1, u64::MAX]) {
        let _ = bench.send_with(level_of(priority)).unwrap();
    }
    assert_eq!(bench.poll(), Ok(vec![1_000]), "level 1");
    for expected in (0..1_000).rev() {
        assert_eq!(bench.poll(), Ok(vec![expected]));
    }
    assert_eq!(bench.poll(), Ok(vec![1_001]), "the last level");
    assert_eq!(bench.poll(), Err(None));
}

fn bounds() {
    let policy =
        "default_queue_policy { max_queue_size: 2 } priority_queue_policy { key: 3 value { max_queue_size: 1 } }";
    let mut bench = Bench::new(8, &format!("{LEVELS} {policy}"));
    let refused = |bench: &mut Bench, priority: u64, id: &str| {
        let refused = bench.send_with(|request| (request.queueing.priority, request.id) = (priority, Text::from(id)));
        let Refused { status, request } = refused.map(drop).unwrap_err();
        request.withdraw();
        (status.code, status.message.to_string())
    };
    let first = bench.send_with(level_of(2)).unwrap();
    let _ = bench.send_with(level_of(2)).unwrap();
    let full = |id: &str| (Code::Unavailable, format!("[request id: {id}] Exceeds maximum queue size"));
    assert_eq!(refused(&mut bench, 2, "seven"), full("seven"));
    assert_eq!(refused(&mut bench, 2, ""), full("<id_unknown>"));
    let _ = bench.send_with(level_of(3)).unwrap();
    assert_eq!(refused(&mut bench, 3, "x"), full("x"));
    assert_eq!(bench.statistics.snapshot().fail.count, 0, "refusals are no failures");
    // A cancelled request makes room at once, although no worker has polled.
    bench.batcher.cancel(&first.ticket).now();
    let _ = bench.send_with(level_of(2)).unwrap();
    assert_eq!(refused(&mut bench, 2, "y"), full("y"));
    assert_eq!(bench.batches(), [3]);
    assert_eq!(bench.statistics.snapshot().pending, 0);
    let _ = (bench.send_with(level_of(2)).unwrap(), bench.send_with(level_of(2)).unwrap());
    assert_eq!(refused(&mut bench, 2, "z"), full("z"));
}

#[test]
fn a_full_level_refuses_with_the_text_of_the_specification() {
    bounds();
}

const REJECT: &str = "max_queue_delay_microseconds: 10000 default_queue_policy { timeout_action: REJECT \
                      default_timeout_microseconds: 100 allow_timeout_override: true max_queue_size: 3 }";
const DELAY: &str = "default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 100 \
                     allow_timeout_override: true }";

#[test]
fn what_waited_too_long_is_rejected_by_its_home() {
    let mut bench = Bench::new(8, REJECT);
    let accepted = bench.send(&[1]).remove(0);
    assert_eq!(accepted.expires_at_ns, Some((bench.now_us + 100) * 1_000 + 1), "strictly later than the stamp");
    let own = bench.send_with(|request| request.queueing.timeout_us = 30).unwrap();
    assert_eq!(own.expires_at_ns, Some((bench.now_us + 30) * 1_000 + 1));
    let longer = bench.send_with(|request| request.queueing.timeout_us = 300).unwrap();
    assert_eq!(longer.expires_at_ns, accepted.expires_at_ns);
    // Every worker is busy, and the request is answered all the same.
    bench.batcher.expire(&own.ticket).now();
    assert_eq!(bench.errors(), [(1, Code::Unavailable, EXPIRED.to_owned())]);
    assert_eq!(EXPIRED, "Request timeout expired");
    let snapshot = bench.statistics.snapshot();
    assert_eq!((snapshot.failures.rejected, snapshot.pending), (1, 2));
    let _ = bench.send_with(|_| {}).unwrap();
    bench.now_us += 99;
    bench.batcher.stop();
    assert_eq!(bench.batches(), [3], "it counts neither for the batch nor for the queue");
}

#[test]
fn a_worker_that_comes_across_it_rejects_it_as_well() {
    let mut bench = Bench::new(8, REJECT);
    drop(bench.send(&[1, 1]));
    bench.now_us += 60;
    drop(bench.send(&[1]));
    let closest_us = bench.now_us + 40;
    let Err(Some(until_us)) = bench.poll() else { panic!("nothing is ready") };
    assert_eq!(until_us, closest_us, "not after the next one expires");
    bench.now_us += 40;
    assert!(bench.poll().is_err());
    assert!(bench.errors().is_empty(), "expired is what is strictly later");
    bench.now_us += 1;
    assert!(bench.poll().is_err());
    let expected = [0, 1].map(|key| (key, Code::Unavailable, EXPIRED.to_owned()));
    assert_eq!(bench.errors(), expected);
    let snapshot = bench.statistics.snapshot();
    assert_eq!((snapshot.failures.rejected, snapshot.pending), (2, 1));
    assert_eq!(bench.send(&[1, 1]).len(), 2, "their places are free");
}

#[test]
fn delayed_ones_run_after_all_others_of_their_level() {
    let mut bench = Bench::new(2, &format!("{LEVELS} {DELAY}"));
    let early = bench.send_with(level_of(2)).unwrap();
    assert_eq!(early.expires_at_ns, None, "nothing for its home to do");
    let _ = bench.send_with(level_of(2)).unwrap();
    let _ = bench.send_with(level_of(3)).unwrap();
    bench.now_us += 101;
    for _ in 0..3 {
        let _ = bench.send_with(level_of(2)).unwrap();
    }
    assert_eq!(bench.poll(), Ok(vec![3, 4]));
    assert_eq!(bench.poll(), Ok(vec![5, 0]), "joins a batch with others");
    bench.now_us += 1_000_000;
    assert_eq!(bench.poll(), Ok(vec![1, 2]), "before the next level, and never rejected");
    assert!(bench.errors().is_empty());
}

fn removals() {
    let mut bench = Bench::new(8, TWO_SIZES);
    let accepted = bench.send(&[1, 2]);
    assert!(bench.poll().is_err(), "neither 1 nor 3 is a preferred size");
    bench.batcher.cancel(&accepted[0].ticket).now();
    assert_eq!(bench.woken(), 1, "and 2 is one");
    assert_eq!(bench.poll(), Ok(vec![1]));
}

#[test]
fn a_batch_that_is_ready_without_one_that_left_is_not_kept_waiting() {
    removals();
}

fn tombstones() {
    let mut bench = Bench::new(8, PREFERRED);
    let accepted = bench.send(&[1, 1, 1]);
    assert!(bench.poll().is_err());
    for accepted in &accepted[..2] {
        bench.batcher.cancel(&accepted.ticket).now();
    }
    assert_eq!(bench.errors(), [(0, Code::Cancelled, String::new()), (1, Code::Cancelled, String::new())]);
    let snapshot = bench.statistics.snapshot();
    assert_eq!((snapshot.failures.canceled, snapshot.pending), (2, 1));
    let more = bench.send(&[1, 1]);
    bench.wake(more);
    assert!(bench.poll().is_err(), "three wait, not five");
    let more = bench.send(&[1]);
    bench.wake(more);
    assert_eq!(bench.poll(), Ok(vec![2, 3, 4, 5]));
    assert_eq!(bench.batcher.queue.waiting(), 0);
}

#[test]
fn tombstones_count_for_nothing() {
    tombstones();
}

#[test]
fn tombstones_are_swept_while_all_workers_are_busy() {
    let mut bench = Bench::new(8, "default_queue_policy { max_queue_size: 4 }");
    drop(bench.send(&[1, 1]));
    for _ in 0..5_000 {
        let accepted = bench.send(&[1]).remove(0);
        bench.batcher.cancel(&accepted.ticket).now();
        assert!(bench.batcher.queue.waiting() < 1_000, "tombstones are kept");
    }
    assert_eq!(bench.batches(), [2]);
    assert_eq!(bench.statistics.snapshot().pending, 0);
}

#[test]
fn requests_of_other_shapes_wait_for_the_next_batch() {
    let spec = spec(8, "-1", "max_queue_delay_microseconds: 500");
    let mut bench = Bench::of(&spec, &Services::default());
    let shaped = |size: i64| move |request: &mut Request| request.inputs[0].model_shape[1] = size;
    let first = bench.send_with(shaped(3)).unwrap();
    bench.wake([first]);
    assert!(bench.poll().is_err());
    bench.send_with(shaped(3)).unwrap().wake_up.now();
    assert_eq!(bench.woken(), 1, "each is looked at");
    assert!(bench.poll().is_err(), "and this one fits");
    bench.send_with(shaped(5)).unwrap().wake_up.now();
    assert_eq!(bench.woken(), 1);
    assert_eq!(bench.poll(), Ok(vec![0, 1]), "a batch that cannot grow is not kept waiting");
    bench.now_us += 500;
    assert_eq!(bench.poll(), Ok(vec![2]));
}

#[test]
fn nothing_is_formed_before_enough_are_queued() {
    let services = Services { delayed_until: 3, ..Default::default() };
    let mut bench = Bench::of(&spec(8, "4", ""), &services);
    assert_eq!(bench.poll(), Err(None));
    let accepted = bench.send(&[1, 1]);
    bench.wake(accepted);
    assert_eq!((bench.woken(), bench.poll()), (0, Err(None)));
    let accepted = bench.send(&[1]);
    bench.wake(accepted);
    assert_eq!(bench.woken(), 1);
    assert_eq!(bench.poll(), Ok(vec![0, 1, 2]));
    drop(bench.send(&[1]));
    assert_eq!(bench.poll(), Ok(vec![3]), "only the first time");
    let mut bench = Bench::of(&spec(8, "4", ""), &services);
    drop(bench.send(&[1]));
    bench.batcher.stop();
    assert_eq!(bench.batches(), [1], "a stopped batcher waits for no more requests");
}

#[test]
fn a_stopped_batcher_executes_what_it_accepted() {
    let mut bench = Bench::new(8, PREFERRED);
    drop(bench.send(&[1; 3]));
    assert!(bench.poll().is_err());
    bench.batcher.stop();
    assert_eq!(bench.woken(), 1);
    let Refused { status, request } = bench.send_with(|request| request.id = Text::from("a")).map(drop).unwrap_err();
    request.withdraw();
    assert_eq!(status.code, Code::Unavailable);
    assert_eq!(
        status.message,
        "[request id: a] Server is stopping, scheduler for model has stopped accepting new inference requests"
    );
    assert_eq!(bench.poll(), Ok(vec![0, 1, 2]));
    assert_eq!(bench.poll(), Ok(vec![]), "and the worker leaves");
    assert_eq!(bench.statistics.snapshot().pending, 0);
}

#[test]
fn the_last_worker_that_is_dismissed_leaves_nothing_behind() {
    let mut bench = Bench::new(8, PREFERRED);
    drop(bench.send(&[1; 3]));
    assert!(bench.poll().is_err());
    bench.batcher.dismiss(bench.worker);
    assert_eq!(bench.poll(), Ok(vec![0, 1, 2]), "the time is not up, but no other worker would take them");
    let mut bench = Bench::new(8, PREFERRED);
    drop(bench.send(&[1; 3]));
    bench.batcher.left(bench.worker);
    assert_eq!(bench.errors().len(), 3, "it left without asking");
    assert_eq!(bench.statistics.snapshot().pending, 0);
}

#[test]
fn each_mistake_is_noticed() {
    let scenarios: [(Mutant, fn()); 8] = [
        (Mutant::LostWake, forming),
        (Mutant::PreferredOffByOne, forming),
        (Mutant::MaxBatchIgnored, forming),
        (Mutant::DelayForgotten, forming),
        (Mutant::PriorityInverted, priorities),
        (Mutant::PlaceKept, bounds),
        (Mutant::TombstoneCounted, tombstones),
        (Mutant::RemovalUnseen, removals),
    ];
    for (mutant, scenario) in scenarios {
        let noticed = mutants::with(Some(mutant), || catch_unwind(AssertUnwindSafe(scenario)).is_err());
        assert!(noticed, "{mutant:?}");
    }
}

/// Threads: clients that send, cancel and leave, workers that join and leave. Each request is answered once.
#[test]
fn nothing_is_lost_or_answered_twice() {
    const EACH: u64 = 4_000;
    let batching = "preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 50 priority_levels: 3 \
                    default_priority_level: 2 default_queue_policy { default_timeout_microseconds: 20000 \
                    max_queue_size: 64 }";
    let (batcher, statistics) = batcher(&spec(8, "4", batching), &Services::default());
    let answers: Arc<Answers> = Arc::default();
    let started = std::sync::Barrier::new(3);
    let refused = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let work = || {
            let mut parker = Parker::new(std::thread::current(), Spin::new(Spin::BUDGET_NS, 1));
            let worker = batcher
                .join(WorkerInfo { waker: parker.waker(), name: "m".into(), device: 0, rate_limiter: None })
                .unwrap();
            started.wait();
            while let Some(mut payload) = next_payload(&batcher, worker, &mut parker, || false) {
                assert!((1..=8).contains(&payload.len()));
                payload.take().into_iter().for_each(|request| request.finish(Response::default()));
                batcher.executed(worker);
            }
            batcher.left(worker);
        };
        let workers = [scope.spawn(work), scope.spawn(work)];
        started.wait();
        let client = |client: u64| {
            let (batcher, answers, refused) = (&batcher, &answers, &refused);
            move || {
                for number in 0..EACH {
                    let mut request = Box::new(Request::new(Completion::new(answers.clone(), client * EACH + number)));
                    request.queueing.priority = 1 + number % 3;
                    request.stamps.queued_ns = now_ns();
                    match batcher.enqueue(request) {
                        Ok(accepted) => {
                            accepted.wake_up.now();
                            match number % 7 {
                                0 => batcher.cancel(&accepted.ticket).now(),
                                1 => batcher.expire(&accepted.ticket).now(),
                                _ => {}
                            }
                        }
                        Err(Refused { request, .. }) => {
                            request.withdraw();
                            refused.fetch_add(1, Ordering::SeqCst);
                            std::thread::yield_now();
                        }
                    }
                }
            }
        };
        let clients = [scope.spawn(client(0)), scope.spawn(client(1))];
        clients.into_iter().for_each(|client| client.join().unwrap());
        batcher.stop();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    });
    let mut keys: Vec<u64> = answers.0.lock().unwrap().iter().map(|(key, _)| *key).collect();
    let answered = keys.len();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), answered, "answered twice");
    assert_eq!(answered + refused.load(Ordering::SeqCst), 2 * EACH as usize);
    assert_eq!((statistics.snapshot().pending, batcher.queue.waiting()), (0, 0));
}
