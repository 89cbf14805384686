//! Calls without a worker: a link without a process, and a server with the behaviour that the test defines.

use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use smallvec::smallvec;

use super::super::link::Bounds;
use super::super::message::{ANSWER, FAR};
use super::*;
use nereid_memory::Slice;
use nereid_model_config::{ModelSpec, normalize};
use nereid_request::{
    Code, Control, CorrelationId, DataType, LoadUnderWay, OutputTensor, Replacement, ResourceLease, Shape, Submit,
};
use nereid_scheduler::validate;

/// A worker without a process.
struct Bare {
    link: Link,
    _socket: OwnedFd,
    killed: Mutex<Vec<String>>,
}

impl Caller for Bare {
    fn link(&self) -> &Link {
        &self.link
    }

    fn kill(&self, reason: &str) {
        self.killed.lock().unwrap().push(reason.to_owned());
    }

    fn observer(&self, _token: u64) -> Option<Arc<dyn Observer>> {
        None
    }
}

/// A server with one model; the test answers its requests.
#[derive(Default)]
struct Server {
    spec: OnceLock<Arc<ModelSpec>>,
    /// The submitted requests.
    #[expect(clippy::vec_box, reason = "as they came")]
    requests: Mutex<Vec<Box<Request>>>,
    refusal: Mutex<Option<Status>>,
    cancelled: Arc<AtomicUsize>,
    me: OnceLock<std::sync::Weak<Server>>,
}

impl Submit for Server {
    fn find(&self, model: &[u8], version: i64) -> Result<Arc<dyn Callee>, Status> {
        if model != b"m" || version > 1 {
            return Err(Status::not_found("Request for unknown model"));
        }
        Ok(Arc::new(Found(self.me.get().and_then(std::sync::Weak::upgrade).unwrap())))
    }
}

impl Control for Server {
    fn load(&self, _asker: &LoadUnderWay, _model: &str, _replacement: Replacement) -> Result<(), Status> {
        Ok(())
    }

    fn unload(&self, _asker: &LoadUnderWay, _model: &str, _with_dependents: bool) -> Result<(), Status> {
        Ok(())
    }

    fn is_ready(&self, _model: &str, _version: Option<i64>) -> Result<bool, Status> {
        Ok(true)
    }
}

struct Found(Arc<Server>);

impl Callee for Found {
    fn name(&self) -> &CStr {
        c"m"
    }

    fn version(&self) -> i64 {
        1
    }

    fn spec(&self) -> &ModelSpec {
        self.0.spec.get().unwrap()
    }

    fn label(&self, _output: &[u8], _class: usize) -> Option<&[u8]> {
        None
    }

    fn request(&self, answers: Arc<dyn Sink>) -> (Box<Request>, Arc<dyn nereid_request::Call>) {
        let request = Request::new(nereid_request::Completion::new(Arc::clone(&answers), 0));
        let going = Going { server: Arc::clone(&self.0), _answers: answers, is_cancelled: AtomicBool::new(false) };
        (Box::new(request), Arc::new(going))
    }

    fn check(&self, request: &mut Request) -> Result<(), Status> {
        validate::validate(request, self.spec())
    }
}

struct Going {
    server: Arc<Server>,
    /// As the server's own.
    _answers: Arc<dyn Sink>,
    is_cancelled: AtomicBool,
}

impl nereid_request::Call for Going {
    fn submit(&self, request: Box<Request>) -> Result<(), (Status, Box<Request>)> {
        match self.server.refusal.lock().unwrap().take() {
            Some(status) => Err((status, request)),
            None => {
                self.server.requests.lock().unwrap().push(request);
                Ok(())
            }
        }
    }

    fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::SeqCst);
        self.server.cancelled.fetch_add(1, Ordering::SeqCst);
    }

    fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::SeqCst)
    }

    fn run_foreign(&self, job: Box<dyn FnOnce() + Send>, _is_fine_here: bool) {
        job();
    }
}

struct Rig {
    server: Arc<Server>,
    worker: Arc<Bare>,
    caller: Arc<dyn Caller>,
    calls: Arc<Calls>,
}

fn rig_with(is_decoupled: bool, max_bytes: usize) -> Rig {
    let text = format!(
        "name: \"m\" backend: \"python\" \
         input {{ name: \"I\" data_type: TYPE_INT32 dims: [ -1 ] }} \
         input {{ name: \"S\" data_type: TYPE_STRING dims: [ -1 ] optional: true }} \
         output {{ name: \"O\" data_type: TYPE_INT32 dims: [ -1 ] }} \
         model_transaction_policy {{ decoupled: {is_decoupled} }}"
    );
    let document = nereid_model_config::parse("m/config.pbtxt", text.as_bytes()).unwrap();
    let mut config = nereid_model_config::from_dynamic(&document.message).unwrap();
    normalize::fill_defaults(&mut config);
    let server = Arc::new(Server::default());
    server.spec.set(Arc::new(ModelSpec::new(config).unwrap())).unwrap();
    server.me.set(Arc::downgrade(&server)).unwrap();
    let (link, socket) =
        Link::new(Bounds { first_bytes: 4096, growth_bytes: 4096, max_bytes }, 0, false, Default::default()).unwrap();
    link.add_slots().unwrap();
    let worker = Arc::new(Bare { link, _socket: socket, killed: Mutex::default() });
    let caller = Arc::clone(&worker) as Arc<dyn Caller>;
    let calls = Arc::new(Calls::new(Host::new(Arc::clone(&server)), Pool::new(1 << 20), Arc::default()));
    Rig { server, worker, caller, calls }
}

fn rig(is_decoupled: bool) -> Rig {
    rig_with(is_decoupled, 1 << 20)
}

fn int(value: impl Into<i128>) -> Value<'static> {
    Value::Int(value.into())
}

fn text(value: &'static str) -> Value<'static> {
    Value::Str(value.as_bytes())
}

fn numbers(name: &'static str, values: &'static [u8]) -> Value<'static> {
    let shape = Value::Tuple(vec![int((values.len() / 4) as i64)]);
    Value::Tuple(vec![text(name), int(8), shape, Value::Bytes(values)])
}

/// A call of `m`: its number is that of its slot and 100.
fn question(slot: u32, is_decoupled: bool) -> Vec<Value<'static>> {
    vec![
        int(100 + slot),
        int(slot),
        text("m"),
        int(-1),
        text("id"),
        int(0),
        int(0),
        int(0),
        Value::Tuple(vec![]),
        Value::Tuple(vec![]),
        Value::Tuple(vec![numbers("I", b"\x01\0\0\0\x02\0\0\0")]),
        Value::None,
        Value::Bool(is_decoupled),
        Value::None,
    ]
}

/// The responses as the worker reads them: outputs as their names and first bytes, or code and text of an error;
/// `None`: a bare end. And whether it is the last.
type Seen = (Content, bool);

impl Rig {
    fn begin(&self, question: &[Value<'_>]) {
        self.calls.begin(&self.caller, question).unwrap();
    }

    fn taken(&self) -> Box<Request> {
        self.server.requests.lock().unwrap().remove(0)
    }

    /// All responses in a slot.
    fn seen(&self, slot: u32) -> Vec<Seen> {
        self.seen_from(&mut self.worker.link.slot(slot))
    }

    fn seen_from(&self, slot: &mut nereid_queue::frames::Consumer<impl nereid_queue::frames::Memory>) -> Vec<Seen> {
        let (mut seen, mut payload) = (Vec::new(), Vec::new());
        while let Some(kind) = slot.pop(&mut payload).unwrap() {
            assert_eq!(kind & !FAR, ANSWER);
            if kind & FAR != 0 {
                payload = self.fetched(&Value::read(&payload).unwrap());
            }
            seen.push(self.read(&Value::read(&payload).unwrap()));
        }
        seen
    }

    fn fetched(&self, place: &Value<'_>) -> Vec<u8> {
        let data = self.worker.link.data(place).unwrap().to_vec();
        let key = place.as_sequence().unwrap()[3].as_int().unwrap();
        self.worker.link.inbound.release(std::iter::once(key));
        data
    }

    fn read(&self, value: &Value<'_>) -> Seen {
        let [response, last] = value.as_tuple().unwrap();
        let response = response.optional(|response| {
            let [outputs, _parameters, error] = response.as_tuple()?;
            if let Value::Tuple(error) = error {
                return Ok(Err((error[0].as_int()?, error[1].as_text()?.into_owned())));
            }
            let output = |output: &Value<'_>| {
                let [name, _, _, data] = output.as_tuple().unwrap();
                let data = data.as_bytes().map_or_else(|_| self.fetched(data), <[u8]>::to_vec);
                (name.as_text().unwrap().into_owned(), data)
            };
            Ok(Ok(outputs.as_sequence()?.iter().map(output).collect()))
        });
        (response.unwrap(), last.as_bool().unwrap())
    }
}

fn response(bytes: &[u8]) -> Response {
    let mut response = Response::new(Text::from("id"));
    let shape = Shape::from_slice(&[(bytes.len() / 4) as i64]);
    let (name, data) = (Text::from("O"), smallvec![Slice::copy_of(bytes)]);
    response.outputs.push(OutputTensor { name, datatype: DataType::Int32, shape, data, index: 0, on_device: None });
    response
}

/// Outputs with their bytes, or code and text of an error.
type Content = Option<Result<Vec<(String, Vec<u8>)>, (u32, String)>>;

fn seen(bytes: &[u8]) -> Content {
    Some(Ok(vec![("O".to_owned(), bytes.to_vec())]))
}

fn error(code: Code, text: &str) -> Content {
    Some(Err((code as u32, text.to_owned())))
}

#[test]
fn a_call_is_a_request_and_its_answer_comes_to_the_slot() {
    let rig = rig(false);
    let mut question = question(3, false);
    question[5] = text("sequence");
    question[6] = int(3);
    question[7] = int(5_000_000_000u64);
    let pairs = [("a", Value::Bool(true)), ("b", int(-7)), ("c", text("x")), ("d", Value::Float(0.5))];
    let pairs = pairs.map(|(name, value)| Value::Tuple(vec![text(name), value]));
    question[8] = Value::Tuple(pairs.to_vec());
    // To a model they are a set.
    question[9] = Value::Tuple(vec![text("O"), text("O")]);
    let strings = Value::Tuple(vec![
        text("S"),
        int(13),
        Value::Tuple(vec![int(2)]),
        Value::Bytes(b"[\x02\0\0\0s\x01\0\0\0au\x02\0\0\0bc"),
    ]);
    question[10] = Value::Tuple(vec![numbers("I", b"\x01\0\0\0\x02\0\0\0"), strings]);
    rig.begin(&question);
    let request = rig.taken();
    assert_eq!((&request.id, request.flags, request.queueing.timeout_us), (&Text::from("id"), 3, 5_000_000_000));
    assert_eq!(request.correlation_id, CorrelationId::Text(Text::from("sequence")));
    assert_eq!(request.inputs[0].data[0][..], *b"\x01\0\0\0\x02\0\0\0");
    assert_eq!(request.inputs[1].data[0][..], *b"\x01\0\0\0a\x02\0\0\0bc");
    assert_eq!((request.outputs.len(), request.queueing.priority, request.limit_of_responses()), (1, 0, None));
    let parameters: Vec<String> = request.parameters.iter().map(|parameter| format!("{parameter:?}")).collect();
    assert_eq!(parameters.len(), 4);
    assert!(parameters[1].contains("Int(-7)") && parameters[3].contains("Double(0.5)"), "{parameters:?}");
    assert_eq!(rig.calls.len(), 1);
    request.finish(response(b"\x09\0\0\0"));
    assert_eq!(rig.seen(3), [(seen(b"\x09\0\0\0"), true)]);
    drop(request);
    assert_eq!((rig.calls.len(), Arc::strong_count(&rig.calls)), (0, 1), "something holds them");
}

/// contract/python_backend.md section 4, "errors of the call", and what Triton 2.51 answers.
#[test]
fn what_goes_wrong_is_an_answer() {
    type Change = fn(&mut Vec<Value<'static>>, &Rig);
    let missing = "expected number of inputs between 1 and 2 but got 0 inputs for model 'm'. Got input(s) [], but \
                   missing required input(s) ['I']. Please provide all required input(s).";
    let missing = format!("[request id: id] {missing}");
    let cases: [(Change, Code, &str, &str); 11] = [
        (
            |question, _| question[2] = text("other"),
            Code::Internal,
            "other",
            "Failed for execute the inference request. Model 'other' is not ready.",
        ),
        (
            |question, _| question[3] = int(2),
            Code::Internal,
            "m",
            "Failed for execute the inference request. Model 'm' is not ready.",
        ),
        (|question, _| question[10] = Value::Tuple(vec![]), Code::Internal, "m", &missing),
        (
            |question, _| question[10] = Value::Tuple(vec![numbers("I", b""), numbers("I", b"")]),
            Code::Internal,
            "m",
            "[request id: id] input 'I' already exists in request",
        ),
        (
            |question, _| question[9] = Value::Tuple(vec![text("X")]),
            Code::Internal,
            "m",
            "unexpected inference output 'X' for model 'm'",
        ),
        (
            |question, _| question[10] = Value::Tuple(vec![numbers("I", b"abc")]),
            Code::Internal,
            "m",
            "tensor 'I' has bytes that do not fit its shape [0]",
        ),
        (|question, _| question[6] = int(-1), Code::Internal, "m", "the value of the request's flags is out of range"),
        (|question, _| question[7] = int(-1), Code::Internal, "m", "the request's timeout is out of range"),
        (|question, _| question[5] = int(-1), Code::Internal, "m", "the request's correlation id is out of range"),
        (
            |_, rig| *rig.server.refusal.lock().unwrap() = Some(Status::unavailable("Exceeds maximum queue size")),
            Code::Unavailable,
            "m",
            "Exceeds maximum queue size",
        ),
        (
            |_, rig| *rig.server.refusal.lock().unwrap() = Some(Status::invalid("no such sequence")),
            Code::Internal,
            "m",
            "no such sequence",
        ),
    ];
    let rig = rig(false);
    for (slot, (change, code, model, detail)) in (0..).zip(cases) {
        for is_decoupled in [false, true] {
            let slot = 2 * slot + u32::from(is_decoupled);
            let mut question = question(slot, is_decoupled);
            change(&mut question, &rig);
            rig.begin(&question);
            let text = format!("Model {model} - Error when running inference: {detail}");
            assert_eq!(rig.seen(slot), [(error(code, &text), true)], "{detail}");
        }
    }
    assert!(rig.calls.len() == 0 && rig.server.requests.lock().unwrap().is_empty());
    assert!(rig.worker.killed.lock().unwrap().is_empty());
}

#[test]
fn without_a_server_there_is_nobody_to_call() {
    let rig = Rig { calls: Arc::new(Calls::new(Host::default(), Pool::new(1 << 20), Arc::default())), ..rig(false) };
    rig.begin(&question(0, false));
    let text = "Model m - Error when running inference: An error occurred while performing BLS request.";
    assert_eq!(rig.seen(0), [(error(Code::Internal, text), true)]);
}

#[test]
fn a_decoupled_callee_has_to_be_asked_for_as_such() {
    let rig = rig(true);
    rig.begin(&question(0, false));
    let text = "Model m - Error when running inference: Model m is using the decoupled. The current BLS request call \
                doesn't support models using the decoupled transaction policy. Please use 'decoupled=True' argument to \
                the 'exec' or 'async_exec' calls for decoupled models.'";
    assert_eq!(rig.seen(0), [(error(Code::Internal, text), true)]);
    // The other way round is fine.
    let rig = self::rig(false);
    rig.begin(&question(0, true));
    rig.taken().finish(response(b"\x01\0\0\0"));
    assert_eq!(rig.seen(0), [(seen(b"\x01\0\0\0"), true)]);
}

#[test]
fn an_answer_of_the_callee_keeps_its_code_and_an_empty_one_is_an_error() {
    let rig = rig(false);
    rig.begin(&question(0, false));
    rig.taken().fail(Status::not_found("nowhere"));
    assert_eq!(rig.seen(0), [(error(Code::NotFound, "nowhere"), true)]);
    rig.begin(&question(1, false));
    rig.taken().responses().send_end();
    assert_eq!(rig.seen(1), [(error(Code::Internal, "Unexpected empty response."), true)]);
    // A response and its end apart.
    rig.begin(&question(2, false));
    let factory = rig.taken().responses();
    factory.send(response(b"\x01\0\0\0"), false);
    factory.send_end();
    assert_eq!(rig.seen(2), [(seen(b"\x01\0\0\0"), true)]);
    // Parameters: a double passes, bytes cannot.
    rig.begin(&question(3, false));
    let mut answer = response(b"\x01\0\0\0");
    answer.parameters.push(Text::from("p"), nereid_request::Value::Double(0.5));
    answer.parameters.push(Text::from("q"), nereid_request::Value::Bytes(Slice::from_static(b"x")));
    rig.taken().finish(answer);
    let text = "Unsupported parameter type for parameter 'q'.";
    assert_eq!(rig.seen(3), [(error(Code::Internal, text), true)]);
}

/// Responses beyond the window are held back, and arrive in order.
#[test]
fn no_more_is_written_ahead_than_the_window_is_wide() {
    let rig = rig(true);
    rig.begin(&question(0, true));
    let request = rig.taken();
    assert_eq!(request.limit_of_responses(), Some(16));
    let mut slot = rig.worker.link.slot(0);
    // Sizes for every path: in the slot, in a message in shared memory, in ranges of their own.
    let sizes = |at: usize| [4, 40, 400, 40_000][at % 4];
    let answer = move |at: usize| vec![at as u8; sizes(at)];
    let factory = request.responses();
    drop(request);
    let sender = std::thread::spawn(move || {
        (0..100).for_each(|at| factory.send(response(&answer(at)), false));
        factory.send_end();
    });
    let mut got: Vec<Seen> = Vec::new();
    while got.last().is_none_or(|(_, last)| !last) {
        let new = rig.seen_from(&mut slot);
        assert!(new.len() <= 16, "{}", new.len());
        if new.is_empty() {
            std::thread::yield_now();
            continue;
        }
        rig.calls.took(&[int(100), int(new.len() as i64)]).unwrap();
        got.extend(new);
    }
    sender.join().unwrap();
    assert_eq!(got.len(), 101);
    for (at, (response, _)) in got[..100].iter().enumerate() {
        assert_eq!(*response, seen(&answer(at)), "{at}");
    }
    assert_eq!(got[100], (None, true));
    assert_eq!(rig.calls.len(), 0);
    assert!(rig.worker.killed.lock().unwrap().is_empty());
}

#[test]
fn who_must_not_wait_fills_what_waits_and_not_the_slot() {
    let rig = rig(true);
    rig.begin(&question(0, true));
    let factory = rig.taken().responses();
    let _never_waits = nereid_request::NeverWaits::here();
    (0..40u8).for_each(|at| factory.send(response(&[at; 8]), false));
    factory.send(response(&[40; 8]), true);
    let mut slot = rig.worker.link.slot(0);
    assert_eq!(rig.seen_from(&mut slot).len(), 16);
    rig.calls.took(&[int(100), int(10)]).unwrap();
    assert_eq!(rig.seen_from(&mut slot).len(), 10);
    // A count beyond the responses in the slot counts as all of them.
    rig.calls.took(&[int(100), int(u32::MAX)]).unwrap();
    let rest = rig.seen_from(&mut slot);
    assert_eq!((rest.len(), rest.last()), (15, Some(&(seen(&[40; 8]), true))));
    assert_eq!(rig.calls.len(), 0);
}

#[test]
fn dropped_answers_drain_and_end() {
    for is_waiting in [false, true] {
        let rig = rig(true);
        rig.begin(&question(0, true));
        let factory = rig.taken().responses();
        let mut slot = rig.worker.link.slot(0);
        let drop_answers = || rig.calls.drop_answers(&[int(100)]).unwrap();
        if is_waiting {
            let _never_waits = nereid_request::NeverWaits::here();
            (0..40u8).for_each(|at| factory.send(response(&[at; 8]), at == 39));
            drop_answers();
        } else {
            (0..10u8).for_each(|at| factory.send(response(&[at; 8]), false));
            drop_answers();
            // The callee continues although the worker takes no response.
            (0..100u8).for_each(|at| factory.send(response(&[at; 8]), at == 99));
        }
        let got = rig.seen_from(&mut slot);
        assert_eq!(got.len(), if is_waiting { 17 } else { 11 });
        assert_eq!(got.last(), Some(&(None, true)));
        assert_eq!((rig.calls.len(), rig.server.cancelled.load(Ordering::SeqCst)), (0, 0), "nothing is cancelled");
    }
}

/// A full window of the largest responses inside the slot, and a final flag.
#[test]
fn a_full_window_and_an_end_fit_into_a_slot_wherever_it_begins() {
    for shift in 0..40 {
        let rig = rig(true);
        let mut slot = rig.worker.link.slot(0);
        // Earlier frames shift the position.
        for _ in 0..shift {
            rig.worker.link.answer(0, ANSWER, &[b'N'; 40]).unwrap();
            slot.pop(&mut Vec::new()).unwrap();
        }
        rig.begin(&question(0, true));
        let factory = rig.taken().responses();
        (0..16).for_each(|_| factory.send(response(&[7; 32]), false));
        rig.calls.drop_answers(&[int(100)]).unwrap();
        factory.send_end();
        assert_eq!(rig.seen_from(&mut slot).len(), 17);
        assert!(rig.worker.killed.lock().unwrap().is_empty(), "{shift}");
    }
}

#[test]
fn a_worker_without_memory_gets_an_error_and_lives() {
    let rig = rig_with(false, 8192);
    let full = error(Code::Unavailable, "no memory for the response ('shm-max-byte-size')");
    rig.begin(&question(0, false));
    rig.taken().finish(response(&[0; 40_000]));
    assert_eq!(rig.seen(0), [(full, true)]);
    // A text without shared memory is cut.
    let held: Vec<_> = std::iter::from_fn(|| rig.worker.link.reserve(4096).unwrap()).collect();
    assert!(!held.is_empty());
    rig.begin(&question(1, false));
    rig.taken().fail(Status::internal("é".repeat(2000)));
    assert_eq!(rig.seen(1), [(error(Code::Internal, &"é".repeat(28)), true)]);
    assert!(rig.worker.killed.lock().unwrap().is_empty());
    // The memory for a response that could not be written was released.
    let keys = held.iter().map(|(range, _)| range.key);
    rig.worker.link.inbound.release(keys);
    rig.begin(&question(2, false));
    rig.taken().finish(response(&[5; 6000]));
    assert_eq!(rig.seen(2).len(), 1);
}

#[test]
fn cancellation_goes_to_the_callee_and_answers_go_on() {
    let rig = rig(true);
    rig.begin(&question(0, true));
    rig.calls.cancel(&[int(100)]).unwrap();
    rig.calls.cancel(&[int(999)]).unwrap();
    assert_eq!(rig.server.cancelled.load(Ordering::SeqCst), 1);
    rig.taken().fail(Status::cancelled("it was called back"));
    assert_eq!(rig.seen(0), [(error(Code::Cancelled, "it was called back"), true)]);
}

#[test]
fn the_end_of_a_worker_calls_everything_back_and_leaves_nothing() {
    let rig = rig(true);
    (0..3).for_each(|slot| rig.begin(&question(slot, true)));
    let requests: Vec<_> = (0..3).map(|_| rig.taken()).collect();
    {
        let _never_waits = nereid_request::NeverWaits::here();
        (0..20u8).for_each(|at| requests[0].responses().send(response(&[at; 8]), false));
    }
    rig.calls.end();
    assert_eq!((rig.calls.len(), rig.server.cancelled.load(Ordering::SeqCst)), (0, 3));
    requests.iter().for_each(|request| request.finish(response(&[0; 4])));
    assert_eq!(rig.seen(1).len(), 0, "nobody is there to read it");
    // A message that was sent before the end and is read after it.
    rig.begin(&question(7, true));
    assert!(rig.server.requests.lock().unwrap().is_empty());
    drop(requests);
    let Rig { worker, caller, calls, .. } = rig;
    drop(caller);
    assert_eq!((Arc::strong_count(&worker), Arc::strong_count(&calls)), (1, 1), "something holds them");
}

#[test]
fn malformed_calls_are_the_workers_fault() {
    let rig = rig(false);
    let refused = |question: &[Value<'_>]| rig.calls.begin(&rig.caller, question).is_err();
    assert!(refused(&question(0, false)[..13]));
    for (at, value) in [(0, text("x")), (1, int(-1)), (2, int(1)), (9, int(1)), (11, text("x")), (12, int(1))] {
        let mut question = question(0, false);
        question[at] = value;
        assert!(refused(&question), "{at}");
    }
    rig.begin(&question(0, false));
    assert!(refused(&question(0, false)), "a number that is in use");
    assert!(rig.calls.cancel(&[]).is_err() && rig.calls.took(&[int(100), int(-1)]).is_err());
    // A slot that does not exist.
    let mut question = question(0, false);
    (question[0], question[1]) = (int(7), int(4000));
    question[2] = text("other");
    rig.begin(&question);
    assert_eq!(rig.worker.killed.lock().unwrap().len(), 1);
}

/// A model that calls while it holds resources lends them (contract/schedulers.md section 6).
#[test]
fn calls_carry_the_grant_of_the_execution() {
    struct Lends;
    impl nereid_request::Lender for Lends {
        fn lend(&self, _model: &str) -> Result<Option<ResourceLease>, Status> {
            Ok(None)
        }
    }
    let rig = rig(false);
    rig.calls.set_grant(Some(Grant::new(Arc::new(Lends))));
    rig.begin(&question(0, false));
    assert!(rig.taken().links.grant.is_some());
    rig.calls.set_grant(None);
    rig.begin(&question(1, false));
    assert!(rig.taken().links.grant.is_none());
}
