//! Rules with versions behind them: which one gets a request, and what becomes of its copy. The versions are schedulers
//! that answer at once, or not at all.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use smallvec::smallvec;

use super::super::choice::number_of;
use super::super::counts::ShadowResult;
use super::super::shadow::SHADOWS_MAX;
use super::*;
use nereid_memory::{BlockMut, Exhausted, Slice};
use nereid_model_config::ModelSpec;
use nereid_request::{
    Completion, CorrelationId, DataType, Delivery, InputTensor, OutputTensor, Request, Response, Shape, Sink, Text,
    Ticket, Value, WakeUp,
};
use nereid_scheduler::{Accepted, Checks, Refused, Scheduler, ServedModel};

/// What a version does with a request.
#[derive(Clone, Copy, PartialEq)]
enum Act {
    /// Answers with its input and so much more.
    Add(u8),
    Fail,
    /// Drops the request, as a process that dies.
    Drop,
    Refuse,
    Keep,
}

struct Version {
    act: Act,
    kept: Mutex<Vec<Request>>,
}

impl Version {
    fn answer(request: &Request, more: u8) {
        let input = &request.inputs[0];
        let bytes: Vec<u8> = input.data[0].iter().map(|byte| byte + more).collect();
        let mut response = Response::new(request.id.clone());
        response.outputs.push(OutputTensor {
            name: Text::from("OUT"),
            datatype: DataType::Uint8,
            shape: input.shape.clone(),
            data: smallvec![Slice::copy_of(&bytes)],
            index: 0,
            on_device: None,
        });
        request.finish(response);
    }
}

impl Scheduler for Version {
    fn enqueue(&self, request: Box<Request>) -> Result<Accepted, Refused> {
        let ticket = request.ticket();
        match self.act {
            Act::Add(more) => Version::answer(&request, more),
            Act::Fail => request.fail(Status::internal("a fault")),
            Act::Drop => drop(request),
            Act::Refuse => return Err(Refused { status: Status::unavailable("full"), request }),
            Act::Keep => self.kept.lock().unwrap().push(*request),
        }
        Ok(Accepted { wake_up: WakeUp::needless(), ticket, expires_at_ns: None })
    }

    fn cancel(&self, _ticket: &Ticket) -> WakeUp {
        WakeUp::needless()
    }

    fn expire(&self, _ticket: &Ticket) -> WakeUp {
        WakeUp::needless()
    }

    fn stop(&self) {}
}

/// Where clients' answers go.
#[derive(Default)]
struct Client(Mutex<Vec<Delivery>>);

impl Sink for Client {
    fn deliver(&self, _key: u64, delivery: Delivery) {
        self.0.lock().unwrap().push(delivery);
    }

    fn allocate(&self, _key: u64, byte_size: usize) -> Result<BlockMut, Exhausted> {
        BlockMut::try_unpooled(byte_size)
    }
}

struct World {
    ruled: Arc<RuledModel>,
    versions: Vec<Arc<Version>>,
    client: Arc<Client>,
}

const CONFIG: &str = r#"name: "m" input { name: "IN" data_type: TYPE_UINT8 dims: -1 }
    output { name: "OUT" data_type: TYPE_UINT8 dims: -1 }"#;

impl World {
    /// Versions 1, 2 and 3 that do the acts; none: not ready.
    fn new(rule: &[(&str, &str)], acts: [Option<Act>; 3]) -> World {
        let config = nereid_model_config::parse("config", CONFIG.as_bytes()).unwrap();
        let config: ModelConfig = nereid_model_config::from_dynamic(&config.message).unwrap();
        let spec = Arc::new(ModelSpec::new(config).unwrap());
        let (mut versions, mut ready) = (Vec::new(), Vec::new());
        for (act, version) in acts.into_iter().zip(1..) {
            let Some(act) = act else { continue };
            let scheduler = Arc::new(Version { act, kept: Mutex::default() });
            versions.push(Arc::clone(&scheduler));
            ready.push(Arc::new(ServedModel {
                name: "m".to_owned(),
                namespace: String::new(),
                version,
                spec: Arc::clone(&spec),
                statistics: Arc::default(),
                scheduler,
                checks: Checks::new("m", version),
                labels: BTreeMap::new(),
                load_duration_secs: 0.0,
                load: Arc::default(),
                pins: AtomicUsize::new(0),
                provenance: None,
            }));
        }
        World { ruled: Arc::new(RuledModel { traffic: traffic(rule), ready }), versions, client: Arc::default() }
    }

    fn request(&self) -> Box<Request> {
        let mut request = Box::new(Request::new(Completion::new(self.client.clone(), 0)));
        let mut input = InputTensor::new(Text::from("IN"), DataType::Uint8, Shape::from_slice(&[2]));
        input.data.push(Slice::copy_of(&[1, 2]));
        request.inputs.push(input);
        request
    }

    /// The version that gets the request, without the request itself.
    fn chosen(&self, mut request: Box<Request>, fields: Fields<'_>) -> i64 {
        let latest = self.ruled.ready.last().unwrap();
        let version = Route::open(&self.ruled, fields).settle(&mut request, latest).version;
        request.withdraw();
        version
    }

    /// Sends a request and returns the answer's bytes, which are there when this returns.
    fn send(&self) -> Result<Vec<u8>, Status> {
        let mut request = self.request();
        let latest = self.ruled.ready.last().unwrap();
        let model = Route::open(&self.ruled, &|_| None).settle(&mut request, latest);
        model.submit(request).map(drop).map_err(|refused| {
            refused.request.withdraw();
            refused.status
        })?;
        let delivery = self.client.0.lock().unwrap().pop().expect("an answer");
        let response = delivery.response.expect("a response");
        match &response.error {
            Some(status) => Err(status.clone()),
            None => Ok(response.outputs[0].data[0].to_vec()),
        }
    }

    fn shadow(&self) -> &Shadow {
        self.ruled.traffic.shadow.as_ref().unwrap()
    }

    fn results(&self, wanted: ShadowResult) -> u64 {
        self.shadow().counts().find(|(result, _)| *result == wanted).unwrap().1
    }

    fn wait(&self, what: &str, holds: impl Fn() -> bool) {
        let begun = Instant::now();
        while !holds() {
            assert!(begun.elapsed() < Duration::from_secs(300), "{what}");
            std::thread::yield_now();
        }
    }
}

const FINE: Option<Act> = Some(Act::Add(0));

#[test]
fn weights_of_versions_that_are_not_ready_go_to_the_others() {
    let rule = [("weights", "1:40,2:40,3:20")];
    let counted = |acts| {
        let world = World::new(&rule, acts);
        let mut counts = [0; 4];
        (0..3000).for_each(|_| counts[world.chosen(world.request(), &|_| None) as usize] += 1);
        counts
    };
    // Six standard deviations of 3,000 draws are at most 165.
    let is_near = |counts: [i32; 4], expected: [i32; 4]| {
        counts
            .iter()
            .zip(expected)
            .all(|(count, expected)| (count - expected).abs() <= if expected == 0 { 0 } else { 165 })
    };
    assert!(is_near(counted([FINE, FINE, FINE]), [0, 1200, 1200, 600]));
    assert!(is_near(counted([FINE, None, FINE]), [0, 2000, 0, 1000]));
    let world = World::new(&[("weights", "1:100")], [None, FINE, FINE]);
    assert_eq!(world.chosen(world.request(), &|_| None), 3, "the highest, if none has weight");
}

#[test]
fn keys_and_sequences_decide() {
    let acts = [FINE, FINE, FINE];
    let by_header = World::new(&[("weights", "1:50,2:50"), ("sticky", "header:User")], acts);
    let by_parameter = World::new(&[("weights", "1:50,2:50"), ("sticky", "parameter:user")], acts);
    let mut seen = [0; 3];
    for user in 0..100 {
        let user = format!("user-{user}");
        let expected = if number_of(user.as_bytes()) < 1 << 63 { 1 } else { 2 };
        let fields = |name: &str| (name == "user").then_some(user.as_bytes());
        assert_eq!(by_header.chosen(by_header.request(), &fields), expected);
        let mut request = by_parameter.request();
        request.parameters.push(Text::from("user"), Value::String(Text::from(&*user)));
        assert_eq!(by_parameter.chosen(request, &|_| None), expected);
        // A sequence counts more than a key.
        let mut request = by_header.request();
        request.correlation_id = CorrelationId::Text(Text::from(&*user));
        assert_eq!(by_header.chosen(request, &|name| (name == "user").then_some(&b"other"[..])), expected);
        seen[expected as usize] += 1;
    }
    assert!(seen[1] > 20 && seen[2] > 20, "{seen:?}");
    let counted: Vec<_> = by_header.ruled.traffic.versions()[0].counts().map(|(_, count)| count).collect();
    assert_eq!(counted, [0, 0, 2 * seen[1], 0], "by the reason 'sticky'");
}

#[test]
fn copies_are_compared_and_never_seen_by_the_client() {
    for (act, result) in [
        (Act::Add(0), ShadowResult::Equal),
        (Act::Add(1), ShadowResult::Different),
        (Act::Fail, ShadowResult::Error),
        (Act::Drop, ShadowResult::Error),
        (Act::Refuse, ShadowResult::Error),
    ] {
        let world = World::new(&[("weights", "1:100"), ("shadow", "2:1")], [FINE, Some(act), FINE]);
        (0..20).for_each(|_| assert_eq!(world.send(), Ok(vec![1, 2])));
        world.wait("every copy is counted", || world.results(result) == 20);
        world.wait("no place is taken", || world.shadow().in_flight() == 0);
        assert!(world.client.0.lock().unwrap().is_empty(), "an answer of a copy went to the client");
        // Nothing holds the version any more.
        let version = Arc::downgrade(&world.ruled.ready[1]);
        world.wait("only the map holds it", || version.strong_count() == 1);
        drop(world);
        assert!(version.upgrade().is_none());
    }
}

#[test]
fn a_stuck_shadow_takes_all_places_and_nothing_else() {
    let world = World::new(&[("weights", "1:100"), ("shadow", "2:1")], [FINE, Some(Act::Keep), FINE]);
    (0..100).for_each(|_| assert_eq!(world.send(), Ok(vec![1, 2])));
    assert_eq!(world.shadow().in_flight(), SHADOWS_MAX);
    assert_eq!(world.results(ShadowResult::Busy), 100 - SHADOWS_MAX as u64);
    let kept = || world.versions[1].kept.lock().unwrap();
    world.wait("the version has all copies", || kept().len() == SHADOWS_MAX);
    // The server's end does not wait for copies.
    let version = &world.ruled.ready[1];
    world.wait("each copy is a pin", || version.pins.load(Ordering::SeqCst) == SHADOWS_MAX);
    for request in kept().drain(..) {
        Version::answer(&request, 0);
    }
    world.wait("every copy is counted", || world.results(ShadowResult::Equal) == SHADOWS_MAX as u64);
    world.wait("no place is taken", || world.shadow().in_flight() == 0);
}

#[test]
fn some_requests_have_no_copy() {
    let rule = [("weights", "1:100"), ("shadow", "2:1")];
    let world = World::new(&rule, [FINE, None, FINE]);
    assert!(world.send().is_ok());
    assert_eq!(world.results(ShadowResult::Skipped), 1, "the version is not ready");
    let world = World::new(&rule, [Some(Act::Fail), FINE, FINE]);
    assert!(world.send().is_err());
    assert_eq!((world.results(ShadowResult::Skipped), world.shadow().in_flight()), (1, 0), "there is no answer");
    let world = World::new(&rule, [Some(Act::Refuse), FINE, FINE]);
    assert!(world.send().is_err());
    assert_eq!(world.shadow().in_flight(), 0, "it was refused");
    let world = World::new(&rule, [FINE, FINE, FINE]);
    let mut request = world.request();
    request.correlation_id = CorrelationId::Number(1);
    world.chosen(request, &|_| None);
    assert_eq!(world.results(ShadowResult::Skipped), 1, "a sequence");
    world.ruled.traffic.promote("2").unwrap();
    assert!(world.send().is_ok());
    assert_eq!(ShadowResult::ALL.map(|result| world.results(result)), [0, 0, 0, 0, 0, 1], "the shadow itself");
}

#[test]
fn a_canary_that_fails_loses_its_requests() {
    let rule = [("weights", "1:50,2:50"), ("rollback", "2 error_rate>0.5 min_requests=8 window_secs=3600")];
    for (act, failures) in [(Act::Fail, 8), (Act::Drop, 8)] {
        let world = World::new(&rule, [FINE, Some(act), FINE]);
        assert_eq!((0..200).filter(|_| world.send().is_err()).count(), failures);
        assert_eq!(weights(&world.ruled.traffic), [100, 0, 0]);
    }
}
