//! Requests from inside the process, as Rust code makes them, to a scheduler scripted by the test.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{Receiver, Sender, channel};

use super::*;
use nereid_model_config::normalize;
use nereid_request::{DataType, InputTensor, NeverWaits, Response, Shape, Text, WakeUp};
use nereid_scheduler::Scheduler;

/// A scheduler that keeps its requests.
#[derive(Default)]
struct ScriptedScheduler {
    #[expect(clippy::vec_box, reason = "as they came")]
    requests: Mutex<Vec<Box<Request>>>,
    expires_at_ns: Option<u64>,
    refuses: bool,
    answers_at_once: bool,
    takes_at_once: bool,
}

impl Scheduler for ScriptedScheduler {
    fn enqueue(&self, request: Box<Request>) -> Result<Accepted, Refused> {
        if self.refuses {
            return Err(Refused { status: Status::unavailable("full"), request });
        }
        let ticket = request.ticket();
        if self.takes_at_once {
            request.admission().take();
            let is_cancelled = request.admission().is_cancelled();
            request.fail(Status::internal(if is_cancelled { "called off" } else { "nothing said" }));
        } else if self.answers_at_once {
            request.finish(Response::new(Text::default()));
        } else {
            self.requests.lock().unwrap().push(request);
        }
        Ok(Accepted { wake_up: WakeUp::needless(), ticket, expires_at_ns: self.expires_at_ns })
    }

    fn cancel(&self, ticket: &Ticket) -> WakeUp {
        if ticket.admission().cancel() {
            ticket.fail(Status::cancelled("called back"));
        }
        WakeUp::needless()
    }

    fn expire(&self, ticket: &Ticket) -> WakeUp {
        if ticket.admission().expire() {
            ticket.fail(Status::unavailable("too late"));
        }
        WakeUp::needless()
    }

    fn stop(&self) {}
}

/// A sink that reports each event, and whether it came on the executor's thread.
struct RecordingSink {
    events: Mutex<Sender<(String, bool)>>,
    executor: Arc<InprocExecutor>,
}

impl Sink for RecordingSink {
    fn deliver(&self, _key: u64, delivery: Delivery) {
        let what = match delivery.response {
            None => "end".to_owned(),
            Some(response) => {
                response.into_parts().error.map_or("answer".to_owned(), |error| error.message.into_owned())
            }
        };
        let last = if delivery.last { "!" } else { "" };
        let _ = self.events.lock().unwrap().send((format!("{what}{last}"), self.executor.is_here()));
    }

    fn allocate(&self, _key: u64, byte_size: usize) -> Result<BlockMut, Exhausted> {
        Ok(BlockMut::unpooled(byte_size))
    }
}

struct InprocCall {
    scheduler: Arc<ScriptedScheduler>,
    model: Arc<ServedModel>,
    callee: InprocCallee,
    events: Receiver<(String, bool)>,
    request: Box<Request>,
    call: Arc<dyn Call>,
}

fn rig(scheduler: ScriptedScheduler) -> InprocCall {
    let text = "name: \"m\" backend: \"identity\" input { name: \"I\" data_type: TYPE_UINT8 dims: [ 1 ] } output { \
                name: \"O\" data_type: TYPE_UINT8 dims: [ 1 ] }";
    let document = nereid_model_config::parse("m/config.pbtxt", text.as_bytes()).unwrap();
    let mut config = nereid_model_config::from_dynamic(&document.message).unwrap();
    normalize::fill_defaults(&mut config);
    let scheduler = Arc::new(scheduler);
    let model = Arc::new(ServedModel {
        name: "m".to_owned(),
        namespace: String::new(),
        version: 3,
        spec: Arc::new(ModelSpec::new(config).unwrap()),
        statistics: Arc::default(),
        scheduler: Arc::clone(&scheduler) as Arc<_>,
        labels: BTreeMap::new(),
        load_duration_secs: 0.0,
        provenance: None,
        checks: nereid_scheduler::Checks::new("m", 3),
        load: Arc::default(),
        pins: AtomicUsize::new(0),
    });
    let executor: Arc<InprocExecutor> = Arc::default();
    let pin = ModelPin::of(Arc::clone(&model));
    let chosen = ChosenModel {
        name: c"m".to_owned(),
        pin,
        executor: Arc::clone(&executor),
        pool: Pool::new(1 << 20),
        gpus: Arc::default(),
    };
    let callee = InprocCallee(Arc::new(chosen));
    let (sender, events) = channel();
    let (mut request, call) = callee.request(Arc::new(RecordingSink { events: Mutex::new(sender), executor }));
    let mut input = InputTensor::new(Text::from("I"), DataType::Uint8, Shape::from_slice(&[1]));
    input.data.push(nereid_memory::Slice::from_static(b"x"));
    request.inputs.push(input);
    callee.check(&mut request).unwrap();
    InprocCall { scheduler, model, callee, events, request, call }
}

#[test]
fn answers_come_on_the_thread_that_brings_them() {
    let InprocCall { scheduler, events, request, call, callee, .. } = rig(ScriptedScheduler::default());
    assert_eq!((callee.name(), callee.version(), &*callee.spec().name), (c"m", 3, "m"));
    call.submit(request).unwrap();
    let factory = scheduler.requests.lock().unwrap().remove(0).responses();
    factory.send(Response::default(), false);
    factory.send_end();
    assert_eq!(events.try_iter().collect::<Vec<_>>(), [("answer".to_owned(), false), ("end!".to_owned(), false)]);
}

#[test]
fn answers_of_a_shard_go_to_the_executor_and_later_ones_follow() {
    let rig = rig(ScriptedScheduler::default());
    let call = Arc::clone(&rig.call);
    call.submit(rig.request).unwrap();
    let factory = rig.scheduler.requests.lock().unwrap().remove(0).responses();
    // The executor is busy, so the next answer could overtake.
    let (go, gate) = channel::<()>();
    rig.callee.0.executor.post(Box::new(move |_: &mut dyn nereid_request::Home| gate.recv().unwrap_or_default()));
    {
        let _shard = NeverWaits::here();
        factory.send(Response::default(), false);
    }
    factory.send_end();
    assert!(rig.events.try_recv().is_err());
    drop(go);
    let events: Vec<_> = rig.events.iter().take(2).collect();
    assert_eq!(events, [("answer".to_owned(), true), ("end!".to_owned(), true)]);
    let runs_at_home = |is_fine_here| {
        let (sender, ran) = channel();
        let chosen = Arc::clone(&rig.callee.0);
        call.run_foreign(Box::new(move || sender.send(chosen.executor.is_here()).unwrap_or_default()), is_fine_here);
        ran.recv().unwrap()
    };
    assert!(!runs_at_home(true) && runs_at_home(false));
    let _shard = NeverWaits::here();
    assert!(runs_at_home(true));
}

#[test]
fn requests_expire_and_are_cancelled_on_the_executor() {
    let expiring = rig(ScriptedScheduler { expires_at_ns: Some(1), ..ScriptedScheduler::default() });
    expiring.call.submit(expiring.request).unwrap();
    assert_eq!(expiring.events.recv().unwrap(), ("too late!".to_owned(), true));

    let later = now_ns() + 3_600_000_000_000;
    let cancelled = rig(ScriptedScheduler { expires_at_ns: Some(later), ..ScriptedScheduler::default() });
    cancelled.call.submit(cancelled.request).unwrap();
    assert!(!cancelled.call.is_cancelled());
    cancelled.call.cancel();
    cancelled.call.cancel();
    assert!(cancelled.call.is_cancelled());
    assert_eq!(cancelled.events.recv().unwrap(), ("called back!".to_owned(), true));

    // Before the submission: the cancellation is not lost.
    let early = rig(ScriptedScheduler::default());
    early.call.cancel();
    early.call.submit(early.request).unwrap();
    assert_eq!(early.events.recv().unwrap(), ("called back!".to_owned(), true));
    // Nor by a worker that takes it before it can be cancelled.
    let taken = rig(ScriptedScheduler { takes_at_once: true, ..ScriptedScheduler::default() });
    taken.call.cancel();
    taken.call.submit(taken.request).unwrap();
    assert_eq!(taken.events.recv().unwrap().0, "called off!");
    // Nor one that takes it before the executor, which is busy, comes to it.
    let queued = rig(ScriptedScheduler::default());
    queued.call.submit(queued.request).unwrap();
    let (release, released) = channel::<()>();
    queued.callee.0.executor.post(Box::new(move |_: &mut dyn nereid_request::Home| {
        let _ = released.recv();
    }));
    queued.call.cancel();
    let request = queued.scheduler.requests.lock().unwrap().remove(0);
    assert!(request.admission().take() && request.admission().is_cancelled());
    request.fail(Status::cancelled("by its worker"));
    drop(release);
    assert_eq!(queued.events.recv().unwrap().0, "by its worker!");
}

#[test]
fn an_answer_may_be_there_before_the_ticket() {
    let later = now_ns() + 3_600_000_000_000;
    let rig =
        rig(ScriptedScheduler { answers_at_once: true, expires_at_ns: Some(later), ..ScriptedScheduler::default() });
    let submission = Arc::downgrade(&rig.call);
    rig.call.submit(rig.request).unwrap();
    assert_eq!(rig.events.try_recv().unwrap().0, "answer!");
    drop(rig.call);
    assert!(submission.upgrade().is_none(), "neither a ticket nor a timer keeps it");
}

#[test]
fn a_refused_request_comes_back_and_holds_nothing() {
    let rig = rig(ScriptedScheduler { refuses: true, ..ScriptedScheduler::default() });
    let (status, request) = rig.call.submit(rig.request).unwrap_err();
    assert_eq!(status, Status::unavailable("full"));
    request.withdraw();
    assert!(rig.events.try_recv().is_err());
    assert_eq!((Arc::strong_count(&rig.model), rig.model.pins.load(Ordering::SeqCst)), (2, 1), "one pin");
    drop((rig.call, rig.callee));
    assert_eq!((Arc::strong_count(&rig.model), rig.model.pins.load(Ordering::SeqCst)), (1, 0));
}

#[test]
fn what_is_under_way_is_no_pin() {
    let rig = rig(ScriptedScheduler::default());
    let call = Arc::clone(&rig.call);
    assert_eq!(Arc::strong_count(&rig.model) - rig.model.pins.load(Ordering::SeqCst), 1);
    call.submit(rig.request).unwrap();
    assert_eq!(Arc::strong_count(&rig.model) - rig.model.pins.load(Ordering::SeqCst), 2, "a server would wait for it");
    let request = rig.scheduler.requests.lock().unwrap().remove(0);
    request.finish(Response::default());
    assert_eq!(rig.events.try_recv().unwrap().0, "answer!");
    assert_eq!(Arc::strong_count(&rig.model) - rig.model.pins.load(Ordering::SeqCst), 1);
}

#[test]
fn without_models_there_is_no_server() {
    let access = Access::new();
    let error = access.find(b"m", -1).err();
    assert_eq!(error, Some(Status::unavailable("Server not ready")));
}
