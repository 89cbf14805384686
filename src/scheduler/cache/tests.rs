//! The cache around a scheduler, with lookups on the spot and elsewhere (contract/schedulers.md section 8).

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};

use super::*;
use nereid_memory::{BlockMut, Exhausted, Slice};
use nereid_model_config::normalize;
use nereid_request::{
    CancelToken, Code, DataType, Delivery, Home, InputTensor, Job, OutputTensor, Response, Shape, Sink, Text,
};

/// A home that runs its jobs when the test calls it.
struct House {
    deliveries: Sender<(u64, Delivery)>,
    jobs: Sender<Box<dyn Job>>,
}

impl Sink for House {
    fn deliver(&self, key: u64, delivery: Delivery) {
        let _ = self.deliveries.send((key, delivery));
    }

    fn allocate(&self, _key: u64, byte_size: usize) -> Result<BlockMut, Exhausted> {
        Ok(BlockMut::unpooled(byte_size))
    }

    fn at_home(&self, job: Box<dyn Job>) {
        let _ = self.jobs.send(job);
    }
}

#[derive(Default)]
struct Host {
    timers: Vec<(u64, Box<dyn Job>)>,
}

impl Home for Host {
    fn wake(&mut self, wake_up: WakeUp) {
        wake_up.now();
    }

    fn run_at(&mut self, at_ns: u64, job: Box<dyn Job>) {
        self.timers.push((at_ns, job));
    }
}

/// A scheduler that keeps its requests.
#[derive(Default)]
struct Kept {
    #[expect(clippy::vec_box, reason = "as they came")]
    requests: Mutex<Vec<Box<Request>>>,
    expires_at_ns: Option<u64>,
    refuses: bool,
    calls: Mutex<Vec<&'static str>>,
}

impl Kept {
    fn take(&self) -> Box<Request> {
        self.requests.lock().unwrap().pop().expect("a request")
    }

    fn count(&self) -> usize {
        self.requests.lock().unwrap().len()
    }

    fn called(&self, what: &'static str) -> WakeUp {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).push(what);
        WakeUp::needless()
    }
}

impl Scheduler for Kept {
    fn enqueue(&self, request: Box<Request>) -> Result<Accepted, Refused> {
        if self.refuses {
            return Err(Refused { status: Status::unavailable("full"), request });
        }
        let ticket = request.ticket();
        self.requests.lock().unwrap().push(request);
        Ok(Accepted { wake_up: WakeUp::needless(), ticket, expires_at_ns: self.expires_at_ns })
    }

    fn cancel(&self, ticket: &Ticket) -> WakeUp {
        assert!(AsyncLookup::of(ticket).is_none(), "it gets its own ticket");
        if ticket.admission().cancel() {
            ticket.fail(Status::cancelled(""));
        }
        self.called("cancel")
    }

    fn expire(&self, ticket: &Ticket) -> WakeUp {
        if ticket.admission().expire() {
            ticket.fail(Status::unavailable("late"));
        }
        self.called("expire")
    }

    fn stop(&self) {
        let _ = self.called("stop");
    }
}

/// A store that stands in for another process, as slow as the test sets it.
#[derive(Default)]
struct Far {
    entries: Mutex<BTreeMap<u64, Arc<Entry>>>,
    gate: Mutex<()>,
    is_unavailable: std::sync::atomic::AtomicBool,
}

impl Store for Arc<Far> {
    fn lookup(&self, key: Key, _spec: &ModelSpec) -> Option<Arc<Entry>> {
        let _open = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        self.entries.lock().unwrap().get(&key.hash).cloned()
    }

    fn insert(&self, key: Key, entry: Arc<Entry>, _replaces: bool) -> Inserted {
        match self.entries.lock().unwrap().insert(key.hash, entry) {
            Some(_) => Inserted::Present,
            None => Inserted::Kept,
        }
    }

    fn is_quick(&self) -> bool {
        false
    }

    fn is_unavailable(&self) -> bool {
        self.is_unavailable.load(Ordering::SeqCst)
    }
}

struct Scene {
    cached: Cached,
    inner: Arc<Kept>,
    statistics: Arc<ModelStatistics>,
    house: Arc<House>,
    deliveries: Receiver<(u64, Delivery)>,
    jobs: Receiver<Box<dyn Job>>,
    host: Host,
}

fn spec() -> Arc<ModelSpec> {
    let text = "name: \"m\" backend: \"identity\" response_cache { enable: true }
        input { name: \"I\" data_type: TYPE_UINT8 dims: [ -1 ] }
        output { name: \"O\" data_type: TYPE_UINT8 dims: [ -1 ] }";
    let document = nereid_model_config::parse("m/config.pbtxt", text.as_bytes()).unwrap();
    let mut config = nereid_model_config::from_dynamic(&document.message).unwrap();
    normalize::fill_defaults(&mut config);
    Arc::new(ModelSpec::new(config).unwrap())
}

impl Scene {
    fn new(store: Box<dyn Store>) -> Scene {
        Scene::over(store, Kept::default())
    }

    fn over(store: Box<dyn Store>, inner: Kept) -> Scene {
        let statistics: Arc<ModelStatistics> = Arc::default();
        let purpose = Purpose { statistics: Arc::clone(&statistics), ..Purpose::of(spec()) };
        let inner = Arc::new(inner);
        let cache = Arc::new(Cache::over(store, HashSecret::SHARED, KeyForm::default()).unwrap());
        let cached = Cached::new(inner.clone(), &purpose, &cache);
        let ((send, deliveries), (jobs, todo)) = (channel(), channel());
        let house = Arc::new(House { deliveries: send, jobs });
        Scene { cached, inner, statistics, house, deliveries, jobs: todo, host: Host::default() }
    }

    fn local() -> Scene {
        Scene::new(Box::new(LocalCache::new(1 << 20)))
    }

    fn request(&self, key: u64, bytes: &[u8]) -> Box<Request> {
        let mut request = Box::new(Request::new(Completion::new(self.house.clone(), key)));
        let mut input = InputTensor::new(Text::from("I"), DataType::Uint8, Shape::new());
        input.data.push(Slice::copy_of(bytes));
        request.inputs.push(input);
        request.stamps.started_ns = now_ns();
        request.stamps.queued_ns = now_ns();
        request
    }

    fn send(&self, key: u64, bytes: &[u8]) -> Ticket {
        let Accepted { ticket, .. } = self.cached.enqueue(self.request(key, bytes)).expect("accepted");
        ticket
    }

    /// Runs the next job that was posted to the home.
    fn work(&mut self) {
        self.jobs.recv().unwrap().run(&mut self.host);
    }

    fn answer(&self) -> (u64, Delivery) {
        self.deliveries.recv().unwrap()
    }

    /// Key and bytes of the next answer, which is the whole and only one.
    fn success(&self) -> (u64, Vec<u8>) {
        let (key, delivery) = self.answer();
        assert!(delivery.last);
        let response = delivery.response.unwrap();
        assert_eq!(response.error, None);
        (key, response.outputs[0].data[0].to_vec())
    }

    /// Hits, misses, successes, pending.
    fn counts(&self) -> [u64; 4] {
        let snapshot = self.statistics.snapshot();
        [snapshot.cache_hit.count, snapshot.cache_miss.count, snapshot.success.count, snapshot.pending]
    }
}

fn output(bytes: &[u8]) -> Response {
    let mut response = Response::default();
    response.outputs.push(OutputTensor {
        name: Text::from("O"),
        datatype: DataType::Uint8,
        shape: Shape::from_slice(&[bytes.len() as i64]),
        data: [Slice::copy_of(bytes)].into_iter().collect(),
        index: 0,
        on_device: None,
    });
    response
}

#[test]
fn equal_requests_are_answered_without_the_model() {
    let scene = Scene::local();
    scene.send(1, b"a");
    scene.inner.take().finish(output(b"A"));
    assert_eq!(scene.success(), (1, b"A".to_vec()));
    assert_eq!(scene.counts(), [0, 1, 0, 0], "the backend counts its successes itself");
    let late = scene.send(2, b"a");
    assert_eq!(scene.success(), (2, b"A".to_vec()));
    assert_eq!((scene.counts(), scene.inner.count()), ([1, 1, 1, 0], 0));
    let _ = scene.cached.cancel(&late);
    assert!(scene.deliveries.try_recv().is_err(), "it is answered once");
    scene.send(3, b"b");
    assert_eq!(scene.inner.count(), 1);
}

#[test]
fn failures_are_not_kept() {
    let scene = Scene::local();
    scene.send(1, b"a");
    scene.inner.take().fail(Status::internal("no"));
    assert!(scene.answer().1.response.unwrap().error.is_some());
    scene.send(2, b"a");
    drop(scene.inner.take());
    assert!(scene.answer().1.response.unwrap().error.is_some(), "nor what was forgotten");
    scene.send(3, b"a");
    assert_eq!((scene.inner.count(), scene.counts()), (1, [0, 0, 0, 0]));
}

#[test]
fn only_one_response_is_an_answer() {
    let scene = Scene::local();
    // The end comes apart: the response is held until the end arrives, and delivered in the form that its client
    // expects.
    scene.send(1, b"a");
    let request = scene.inner.take();
    let factory = request.responses();
    drop(request);
    factory.send(output(b"A"), false);
    assert!(scene.deliveries.try_recv().is_err());
    factory.send_end();
    assert!(matches!(scene.answer().1, Delivery { response: Some(_), last: false }));
    assert!(matches!(scene.answer().1, Delivery { response: None, last: true }));
    scene.send(2, b"a");
    assert_eq!(scene.success().0, 2);
    // Several responses are passed on and not inserted.
    scene.send(3, b"b");
    let request = scene.inner.take();
    let factory = request.responses();
    factory.send(output(b"B"), false);
    factory.send(output(b"C"), true);
    assert!(matches!(scene.answer().1, Delivery { response: Some(_), last: false }));
    assert!(matches!(scene.answer().1, Delivery { response: Some(_), last: true }));
    scene.send(4, b"b");
    assert_eq!(scene.inner.count(), 1);
    // No response at all.
    scene.inner.take().responses().send_end();
    assert!(matches!(scene.answer().1, Delivery { response: None, last: true }));
}

#[test]
fn an_answer_that_lacks_an_output_is_none() {
    let scene = Scene::local();
    scene.send(1, b"a");
    scene.inner.take().finish(Response::default());
    scene.answer();
    let mut request = scene.request(2, b"a");
    request.outputs.push(nereid_request::RequestedOutput { name: Text::from("O"), index: 0 });
    let _ = scene.cached.enqueue(request).unwrap();
    scene.inner.take().finish(output(b"A"));
    scene.answer();
    let mut request = scene.request(3, b"a");
    request.outputs.push(nereid_request::RequestedOutput { name: Text::from("O"), index: 0 });
    let _ = scene.cached.enqueue(request).unwrap();
    assert_eq!(scene.inner.count(), 0, "the fuller answer took its place");
}

#[test]
fn equal_requests_at_the_same_time_count_one_miss() {
    let scene = Scene::local();
    scene.send(1, b"a");
    scene.send(2, b"a");
    let (second, first) = (scene.inner.take(), scene.inner.take());
    first.finish(output(b"A"));
    second.finish(output(b"A"));
    assert_eq!(scene.counts(), [0, 1, 0, 0], "what was there already is no miss");
}

#[test]
fn requests_of_the_server_itself_are_not_counted() {
    let scene = Scene::local();
    for key in 0..2 {
        let mut request = scene.request(key, b"a");
        request.ingress.origin = nereid_request::Origin::WarmUp;
        let _ = scene.cached.enqueue(request).unwrap();
        if key == 0 {
            scene.inner.take().finish(output(b"A"));
        }
        scene.answer();
    }
    assert_eq!(scene.counts(), [0, 0, 0, 0]);
}

/// Large inputs are hashed elsewhere, large answers copied elsewhere, with the same result.
#[test]
fn size_makes_no_difference_but_where() {
    let mut scene = Scene::local();
    let (large_in, large_out) = (vec![1; HASHED_AT_ONCE + 1], vec![2; COPIED_AT_ONCE + 1]);
    scene.send(1, &large_in);
    assert_eq!(scene.counts()[3], 1, "it waits in the scheduler");
    scene.work();
    scene.inner.take().finish(output(&large_out));
    assert_eq!(scene.success(), (1, large_out.clone()));
    assert_eq!(scene.counts(), [0, 1, 0, 0]);
    scene.send(2, &large_in);
    assert_eq!(scene.success(), (2, large_out));
    assert_eq!(scene.counts(), [1, 1, 1, 0]);
}

#[test]
fn what_is_called_back_during_the_lookup_never_runs() {
    let far = Arc::new(Far::default());
    let mut scene = Scene::new(Box::new(Arc::clone(&far)));
    let closed = far.gate.lock().unwrap();
    let ticket = scene.send(1, b"a");
    let _ = scene.cached.cancel(&ticket);
    let _ = scene.cached.cancel(&ticket);
    let (key, delivery) = scene.answer();
    assert_eq!((key, delivery.response.unwrap().into_parts().error.unwrap().code), (1, Code::Cancelled));
    assert_eq!(scene.statistics.snapshot().failures.canceled, 1);
    drop(closed);
    scene.work();
    assert_eq!((scene.inner.count(), scene.counts()), (0, [0, 0, 0, 0]));
    assert!(scene.deliveries.try_recv().is_err());
}

#[test]
fn what_is_called_back_later_is_the_schedulers() {
    let inner = Kept { expires_at_ns: Some(77), ..Kept::default() };
    let mut scene = Scene::over(Box::new(Arc::new(Far::default())), inner);
    let ticket = scene.send(1, b"a");
    scene.work();
    assert_eq!(scene.inner.count(), 1);
    // Its expiry is a timer at its home.
    let (at_ns, expire) = scene.host.timers.pop().unwrap();
    assert_eq!(at_ns, 77);
    expire.run(&mut scene.host);
    assert_eq!(scene.answer().1.response.unwrap().into_parts().error.unwrap().message, "late");
    let _ = scene.cached.cancel(&ticket);
    assert_eq!(*scene.inner.calls.lock().unwrap(), ["expire", "cancel"]);
    // The timer of a request that is over does nothing.
    let ticket = scene.send(2, b"b");
    scene.work();
    drop(ticket);
    let (_, expire) = scene.host.timers.pop().unwrap();
    expire.run(&mut scene.host);
    assert_eq!(scene.inner.calls.lock().unwrap().len(), 2);
    let token: CancelToken = scene.inner.take().cancel_token();
    assert!(!token.is_cancelled(), "its client is still there");
}

#[test]
fn a_refusal_after_the_lookup_is_an_answer() {
    let inner = Kept { refuses: true, ..Kept::default() };
    let mut scene = Scene::over(Box::new(Arc::new(Far::default())), inner);
    scene.send(1, b"a");
    scene.work();
    assert_eq!(scene.answer().1.response.unwrap().into_parts().error.unwrap().message, "full");
    assert_eq!(scene.counts(), [0, 0, 0, 0]);
}

#[test]
fn a_store_that_does_not_answer_is_a_miss() {
    let far = Arc::new(Far::default());
    far.is_unavailable.store(true, Ordering::SeqCst);
    let scene = Scene::new(Box::new(Arc::clone(&far)));
    scene.send(1, b"a");
    scene.inner.take().finish(output(b"A"));
    assert_eq!(scene.success(), (1, b"A".to_vec()));
    assert_eq!(scene.counts(), [0, 1, 0, 0]);
    assert!(far.entries.lock().unwrap().is_empty());
}

#[test]
fn requests_beyond_the_room_for_lookups_do_without() {
    let far = Arc::new(Far::default());
    let scene = Scene::new(Box::new(Arc::clone(&far)));
    let closed = far.gate.lock().unwrap();
    let mut sent = 0;
    while scene.inner.count() == 0 {
        sent += 1;
        assert!(sent <= cache_pool::JOBS_MAX as u64 + 16, "there is no end of it");
        scene.send(sent, b"a");
    }
    drop(closed);
    for _ in 1..sent {
        let Ok(job) = scene.jobs.recv() else { panic!("a request is lost") };
        job.run(&mut Host::default());
    }
    assert_eq!(scene.inner.count() as u64, sent);
}

/// Accepted requests are handed on before the scheduler behind the cache is stopped.
#[test]
fn the_end_waits_for_those_on_their_way() {
    let far = Arc::new(Far::default());
    let mut scene = Scene::new(Box::new(Arc::clone(&far)));
    let closed = far.gate.lock().unwrap();
    scene.send(1, b"a");
    scene.cached.stop();
    let refused = scene.cached.enqueue(scene.request(2, b"b")).expect_err("stopping");
    assert!(refused.status.message.ends_with(&*stopping().message), "{}", refused.status);
    refused.request.withdraw();
    assert!(scene.inner.calls.lock().unwrap().is_empty());
    drop(closed);
    scene.work();
    assert_eq!((scene.inner.count(), &**scene.inner.calls.lock().unwrap()), (1, &["stop"][..]));
    let idle = Scene::local();
    idle.cached.stop();
    assert_eq!(*idle.inner.calls.lock().unwrap(), ["stop"]);
}
