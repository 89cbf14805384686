//! Instances of a simulated model: how they start, change and end.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Condvar;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use super::*;
use crate::{HostPolicy, Instance};
use nereid_gpu::Gpus;
use nereid_memory::{BlockMut, Exhausted, Pool};
use nereid_request::{Completion, Delivery, Request, Response, Sink};
use nereid_scheduler::{Next, Payload, WorkerInfo};
use nereid_wire::inference::model_config::SchedulingChoice;
use nereid_wire::inference::model_instance_group::Kind;
use nereid_wire::inference::{ModelConfig, ModelInstanceGroup};

mod devices;
mod run_to_completion;
mod stalls;

pub(super) type Behaviour = dyn Fn(&InstanceContext) -> Result<Box<dyn Instance>, Status> + Send + Sync;

/// A model with instances that a test defines.
pub(super) struct Pretended(pub Box<Behaviour>);

impl Model for Pretended {
    fn create_instance(self: Arc<Self>, context: InstanceContext) -> Result<Box<dyn Instance>, Status> {
        (self.0)(&context)
    }
}

pub(super) fn model_context(config: &ModelConfig) -> Arc<ModelContext> {
    model_context_on(Arc::default(), config)
}

pub(super) fn model_context_on(gpus: Arc<Gpus>, config: &ModelConfig) -> Arc<ModelContext> {
    Arc::new(ModelContext {
        name: config.name.clone(),
        version: 1,
        directory: PathBuf::new(),
        version_directory: PathBuf::new(),
        config: config.clone(),
        auto_complete: false,
        settings: Vec::new(),
        backend_directory: Default::default(),
        statistics: Arc::default(),
        metrics: Arc::default(),
        pool: Pool::new(1 << 20),
        worker_cpu_count: 1,
        host: Default::default(),
        load: Default::default(),
        gpus,
    })
}

fn group(name: &str, count: i32) -> ModelInstanceGroup {
    ModelInstanceGroup { name: name.into(), kind: Kind::Cpu.into(), count, ..Default::default() }
}

fn plan(groups: &[ModelInstanceGroup], create: impl Fn(&InstanceContext) -> Made + Send + Sync + 'static) -> Plan {
    let config = ModelConfig { name: "m".into(), instance_group: groups.to_vec(), ..Default::default() };
    Plan {
        context: model_context(&config),
        spec: Arc::new(ModelSpec::new(config).unwrap()),
        model: Arc::new(Pretended(Box::new(move |context| create(context).map(|made| made as Box<dyn Instance>)))),
        attributes: Attributes::default(),
        policies: Arc::default(),
        worker_cpus: Vec::new(),
        spin: Spin::default(),
        warmup: Vec::new(),
        run_to_completion: RunToCompletion::default(),
        stalls: None,
    }
}

/// The same model with other groups.
fn regrouped(plan: &Plan, groups: &[ModelInstanceGroup]) -> Plan {
    let config = ModelConfig { instance_group: groups.to_vec(), ..plan.spec.config.clone() };
    Plan {
        spec: Arc::new(ModelSpec::new(config).unwrap()),
        model: Arc::clone(&plan.model),
        context: Arc::clone(&plan.context),
        attributes: plan.attributes.clone(),
        policies: Arc::clone(&plan.policies),
        worker_cpus: Vec::new(),
        spin: Spin::default(),
        warmup: Vec::new(),
        run_to_completion: RunToCompletion::default(),
        stalls: None,
    }
}

type Made = Result<Box<Logged>, Status>;

/// Records which event happened on which thread.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn write(&self, what: &str, name: &str) {
        let thread = std::thread::current().name().unwrap_or_default().to_owned();
        lock(&self.0).push(format!("{what} {name} on {thread}"));
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.0))
    }

    /// Sorted, for what happens on several threads.
    fn sorted(&self) -> Vec<String> {
        let mut lines = self.take();
        lines.sort();
        lines
    }

    fn instance(&self, context: &InstanceContext, run: impl FnMut(&mut Payload) -> Outcome + Send + 'static) -> Made {
        self.write("create", &context.name);
        Ok(Box::new(Logged { name: context.name.clone(), log: self.clone(), run: Box::new(run) }))
    }
}

type Outcome = Result<(), Status>;

struct Logged {
    name: String,
    log: Log,
    run: Box<dyn FnMut(&mut Payload) -> Outcome + Send>,
}

impl Instance for Logged {
    fn execute(&mut self, payload: &mut Payload) -> Outcome {
        self.log.write("execute", &self.name);
        (self.run)(payload)
    }
}

impl Drop for Logged {
    fn drop(&mut self) {
        self.log.write("drop", &self.name);
    }
}

fn answer(payload: &mut Payload) -> Outcome {
    payload.take().into_iter().for_each(|request| request.finish(Response::default()));
    Ok(())
}

/// A scheduler of the simplest kind.
#[derive(Default)]
struct Source {
    state: Mutex<Desk>,
    changed: Condvar,
}

#[derive(Default)]
struct Desk {
    waiting: VecDeque<Payload>,
    joined: usize,
    dismissed: Vec<usize>,
    left: Vec<usize>,
    is_full: bool,
    is_stopped: bool,
}

impl Source {
    fn change(&self, change: impl FnOnce(&mut Desk)) {
        change(&mut lock(&self.state));
        self.changed.notify_all();
    }

    fn stop(&self) {
        self.change(|desk| desk.is_stopped = true);
    }

    /// Submits a request; the receiver gets its result.
    fn submit(&self) -> Receiver<Result<(), Status>> {
        let (tell, told) = channel();
        let mut payload = Payload::default();
        payload.push(Box::new(Request::new(Completion::new(Arc::new(Answer(tell)), 0))));
        self.change(|desk| desk.waiting.push_back(payload));
        told
    }

    fn until(&self, condition: impl Fn(&Desk) -> bool) {
        let state = lock(&self.state);
        drop(self.changed.wait_while(state, |desk| !condition(desk)).unwrap());
    }
}

impl PayloadSource for Source {
    fn join(&self, _info: WorkerInfo) -> Result<usize, Status> {
        let mut desk = lock(&self.state);
        if desk.is_full {
            return Err(Status::invalid("no more workers"));
        }
        desk.joined += 1;
        Ok(desk.joined - 1)
    }

    fn poll(&self, worker: usize, _now_ns: u64) -> Next {
        let idle = |desk: &mut Desk| desk.waiting.is_empty() && !desk.is_stopped && !desk.dismissed.contains(&worker);
        let mut desk = self.changed.wait_while(lock(&self.state), idle).unwrap();
        let payload = if desk.dismissed.contains(&worker) { None } else { desk.waiting.pop_front() };
        payload.map_or(Next::Leave, Next::Execute)
    }

    fn dismiss(&self, worker: usize) {
        self.change(|desk| desk.dismissed.push(worker));
    }

    fn left(&self, worker: usize) {
        self.change(|desk| desk.left.push(worker));
    }
}

struct Answer(Sender<Result<(), Status>>);

impl Sink for Answer {
    fn deliver(&self, _key: u64, delivery: Delivery) {
        let _ = self.0.send(delivery.response.and_then(|mut response| response.error.take()).map_or(Ok(()), Err));
    }

    fn allocate(&self, _key: u64, byte_size: usize) -> Result<BlockMut, Exhausted> {
        Ok(BlockMut::unpooled(byte_size))
    }
}

fn start(plan: &Plan) -> (Result<Instances, Status>, Arc<Source>) {
    let source = Arc::new(Source::default());
    let shared: Arc<dyn PayloadSource> = source.clone();
    (Instances::start(plan, &shared), source)
}

fn started(plan: &Plan) -> (Instances, Arc<Source>) {
    let (instances, source) = start(plan);
    (instances.unwrap(), source)
}

#[test]
fn an_instance_lives_on_its_own_thread() {
    let log = Log::default();
    let plan = plan(&[group("m_0", 2)], {
        let log = log.clone();
        move |context| log.instance(context, answer)
    });
    let (instances, source) = started(&plan);
    assert_eq!(instances.names(), ["m_0_0", "m_0_1"]);
    assert_eq!(log.take(), ["create m_0_0 on m_0_0", "create m_0_1 on m_0_1"], "one after the other");
    assert_eq!(source.submit().recv().unwrap(), Ok(()));
    let executed = log.take();
    assert!(["m_0_0", "m_0_1"].iter().any(|name| executed == [format!("execute {name} on {name}")]), "{executed:?}");
    source.stop();
    instances.join();
    assert_eq!(log.sorted(), ["drop m_0_0 on m_0_0", "drop m_0_1 on m_0_1"]);
    assert_eq!(lock(&source.state).left.len(), 2);
    assert!(instances.names().is_empty());
}

/// Three requests of which the second was cancelled after a worker took it: their results, and how many requests the
/// backend got in each execution.
fn with_a_cancelled_one(plan_of: impl FnOnce(&mut ModelConfig), cancelled: &[usize]) -> (Vec<bool>, Vec<usize>, u64) {
    let sizes = Arc::<Mutex<Vec<usize>>>::default();
    let mut plan = plan(&[group("m_0", 1)], {
        let sizes = Arc::clone(&sizes);
        move |context| {
            let sizes = Arc::clone(&sizes);
            Log::default().instance(context, move |payload| {
                lock(&sizes).push(payload.len());
                answer(payload)
            })
        }
    });
    let mut config = plan.spec.config.clone();
    plan_of(&mut config);
    plan.spec = Arc::new(ModelSpec::new(config).unwrap());
    let (instances, source) = started(&plan);
    let mut payload = Payload::default();
    let told: Vec<_> = (0..3)
        .map(|at| {
            let (tell, told) = channel();
            let request = Box::new(Request::new(Completion::new(Arc::new(Answer(tell)), 0)));
            request.admission().take();
            if cancelled.contains(&at) {
                assert!(!request.admission().cancel(), "a worker has it");
            }
            payload.push(request);
            told
        })
        .collect();
    source.change(|desk| desk.waiting.push_back(payload));
    let told = told.into_iter().map(|told| match told.recv().unwrap() {
        Ok(()) => true,
        Err(status) => {
            assert_eq!((status.code, &*status.message), (nereid_request::Code::Cancelled, ""));
            false
        }
    });
    let told = told.collect();
    source.stop();
    instances.join();
    let counted = plan.context.statistics.snapshot().failures.canceled;
    let sizes = std::mem::take(&mut *lock(&sizes));
    (told, sizes, counted)
}

/// The others are executed; a batch of cancelled requests alone never reaches the backend.
#[test]
fn cancelled_requests_are_left_out_right_before_the_backend() {
    let plain = |_: &mut ModelConfig| {};
    assert_eq!(with_a_cancelled_one(plain, &[1]), (vec![true, false, true], vec![2], 1));
    assert_eq!(with_a_cancelled_one(plain, &[0, 1, 2]), (vec![false; 3], vec![], 3));
    assert_eq!(with_a_cancelled_one(plain, &[]), (vec![true; 3], vec![3], 0));
    let batching = |config: &mut ModelConfig| {
        config.scheduling_choice = Some(SchedulingChoice::DynamicBatching(Default::default()));
    };
    assert_eq!(with_a_cancelled_one(batching, &[0]), (vec![false, true, true], vec![2], 1));
    // Rows are slots there.
    let sequences = |config: &mut ModelConfig| {
        config.scheduling_choice = Some(SchedulingChoice::SequenceBatching(Default::default()));
    };
    assert_eq!(with_a_cancelled_one(sequences, &[1]), (vec![true; 3], vec![3], 0));
}

#[test]
fn instances_load_side_by_side_where_the_backend_allows_it() {
    let meeting = Arc::new(std::sync::Barrier::new(3));
    let log = Log::default();
    let mut plan = plan(&[group("m_0", 3)], {
        let log = log.clone();
        move |context| {
            // A single thread does not get past.
            meeting.wait();
            log.instance(context, answer)
        }
    });
    plan.attributes.parallel_instance_loading = true;
    let (instances, source) = started(&plan);
    assert_eq!(instances.names(), ["m_0_0", "m_0_1", "m_0_2"], "the configuration's order");
    source.stop();
    instances.join();
}

#[test]
fn the_environment_outranks_the_backend() {
    for (attribute, variable, parallel) in [
        (false, None, false),
        (true, None, true),
        (true, Some(""), true),
        (false, Some(""), false),
        (false, Some("1"), true),
        (true, Some("0"), false),
        (true, Some("yes"), false),
        (true, Some("11"), false),
    ] {
        assert_eq!(loads_in_parallel(attribute, variable.map(OsStr::new)), parallel, "{attribute} {variable:?}");
    }
}

#[test]
fn one_that_fails_ends_all() {
    for parallel in [false, true] {
        let log = Log::default();
        let mut plan = plan(&[group("m_0", 3)], {
            let log = log.clone();
            move |context| match context.ordinal {
                1 => Err(Status::unavailable("not today")),
                _ => log.instance(context, answer),
            }
        });
        plan.attributes.parallel_instance_loading = parallel;
        let (outcome, source) = start(&plan);
        assert_eq!(outcome.unwrap_err(), Status::unavailable("not today"));
        let lines = log.sorted();
        let others = if parallel { &["m_0_0", "m_0_2"][..] } else { &["m_0_0"] };
        let expected = ["create", "drop"].map(|what| others.iter().map(move |it| format!("{what} {it} on {it}")));
        assert_eq!(lines, expected.into_iter().flatten().collect::<Vec<_>>());
        assert_eq!(lock(&source.state).joined, 0);
    }
}

#[test]
fn a_backend_that_panics_fails_its_instance() {
    let creating = plan(&[group("m_0", 1)], |_| panic!("while it was created"));
    let error = start(&creating).0.unwrap_err();
    assert_eq!(error, Status::internal("instance 'm_0_0' panicked while it was initialized"));

    let calls = AtomicUsize::new(0);
    let calls = Arc::new(calls);
    let executing = plan(&[group("m_0", 1)], move |context| {
        let calls = Arc::clone(&calls);
        Log::default().instance(context, move |payload| match calls.fetch_add(1, Ordering::SeqCst) {
            0 => panic!("while it executed"),
            1 => Ok(()),
            2 => Err(Status::unsupported("never")),
            _ => answer(payload),
        })
    });
    let (instances, source) = started(&executing);
    let outcomes: Vec<_> = (0..4).map(|_| source.submit().recv().unwrap()).collect();
    let expected = [
        Err(Status::internal("instance 'm_0_0' failed while it executed the request")),
        Err(Status::internal("instance 'm_0_0' left the request unanswered")),
        Err(Status::unsupported("never")),
        Ok(()),
    ];
    assert_eq!(outcomes, expected);
    source.stop();
    instances.join();
}

#[test]
fn passive_instances_are_kept_and_take_no_work() {
    let log = Log::default();
    let passive = ModelInstanceGroup { passive: true, ..group("p", 1) };
    let seen = Arc::new(Mutex::new(Vec::new()));
    let plan = plan(&[passive, group("a", 1)], {
        let (log, seen) = (log.clone(), Arc::clone(&seen));
        move |context| {
            lock(&seen).push((context.is_passive, context.ordinal));
            log.instance(context, answer)
        }
    });
    let (instances, source) = started(&plan);
    assert_eq!(instances.names(), ["p_0", "a_0"]);
    assert_eq!(*lock(&seen), [(true, 0), (false, 1)]);
    assert_eq!(lock(&source.state).joined, 1, "no place in the scheduler");
    (0..3).for_each(|_| assert_eq!(source.submit().recv().unwrap(), Ok(())));
    source.stop();
    instances.join();
    let lines = log.sorted();
    assert_eq!(lines.iter().filter(|line| *line == "execute a_0 on a_0").count(), 3);
    assert!(lines.contains(&"drop p_0 on p_0".to_owned()), "{lines:?}");
}

#[test]
fn an_update_keeps_what_it_can() {
    let log = Log::default();
    let first = plan(&[group("m_0", 2)], {
        let log = log.clone();
        move |context| log.instance(context, answer)
    });
    let (instances, source) = started(&first);
    log.take();
    let far = ModelInstanceGroup { host_policy: "far".into(), ..group("m_0", 1) };
    instances.update(&regrouped(&first, &[far.clone(), group("renamed", 3)])).unwrap();
    assert_eq!(instances.names(), ["m_0_0", "m_0_0", "m_0_1", "renamed_2"], "old names stay");
    assert_eq!(log.take(), ["create m_0_0 on m_0_0", "create renamed_2 on renamed_2"]);

    instances.update(&regrouped(&first, &[group("renamed", 1)])).unwrap();
    source.until(|desk| desk.left.len() == 3);
    assert_eq!(instances.names(), ["m_0_0"]);
    instances.update(&regrouped(&first, &[group("renamed", 1)])).unwrap();
    assert_eq!(instances.names(), ["m_0_0"], "nothing to do");
    assert_eq!(source.submit().recv().unwrap(), Ok(()));
    source.stop();
    instances.join();
    let dropped = log.take().iter().filter(|line| line.starts_with("drop")).count();
    assert_eq!(dropped, 4);
}

#[test]
fn an_update_that_fails_changes_nothing() {
    let log = Log::default();
    let first = plan(&[group("m_0", 1)], {
        let log = log.clone();
        move |context| match context.name.as_str() {
            "m_0_2" => Err(Status::unavailable("not today")),
            _ => log.instance(context, answer),
        }
    });
    let (instances, source) = started(&first);
    log.take();
    let more = regrouped(&first, &[group("m_0", 3)]);
    assert_eq!(instances.update(&more), Err(Status::unavailable("not today")));
    assert_eq!(instances.names(), ["m_0_0"]);
    assert_eq!(log.take(), ["create m_0_1 on m_0_1", "drop m_0_1 on m_0_1"]);
    source.change(|desk| desk.is_full = true);
    let two = regrouped(&first, &[group("m_0", 2)]);
    assert_eq!(instances.update(&two), Err(Status::invalid("no more workers")));
    assert_eq!(instances.names(), ["m_0_0"]);
    assert_eq!(source.submit().recv().unwrap(), Ok(()), "the old one serves");
    source.stop();
    instances.join();
}

#[test]
fn a_surplus_instance_finishes_its_work_and_is_not_waited_for() {
    let (go, gate) = channel::<()>();
    let gate = Arc::new(Mutex::new(gate));
    let (tell, busy) = channel();
    let log = Log::default();
    let plan = plan(&[ModelInstanceGroup { host_policy: "old".into(), ..group("m_0", 1) }], {
        let log = log.clone();
        move |context| {
            let (gate, tell, is_old) = (Arc::clone(&gate), tell.clone(), context.host_policy.name == "old");
            log.instance(context, move |payload| {
                if is_old {
                    tell.send(()).unwrap();
                    lock(&gate).recv().unwrap();
                }
                answer(payload)
            })
        }
    });
    let (instances, source) = started(&plan);
    let slow = source.submit();
    busy.recv().unwrap();
    instances.update(&regrouped(&plan, &[group("m_0", 1)])).unwrap();
    assert_eq!(source.submit().recv().unwrap(), Ok(()), "by the new one");
    assert!(slow.try_recv().is_err(), "the old one is still at it");
    go.send(()).unwrap();
    assert_eq!(slow.recv().unwrap(), Ok(()));
    source.stop();
    instances.join();
    assert_eq!(log.take().iter().filter(|line| line.starts_with("drop")).count(), 2);
}

#[test]
fn a_policy_that_cannot_be_met_fails_the_load() {
    let settings = [("far".to_owned(), "numa-node".to_owned(), "1023".to_owned())];
    let mut plan = plan(&[ModelInstanceGroup { host_policy: "far".into(), ..group("m_0", 1) }], |_| panic!("too far"));
    plan.policies = Arc::new(HostPolicies::new(&settings).unwrap());
    let error = start(&plan).0.unwrap_err();
    assert!(error.message.starts_with("host policy 'far': NUMA node 1023 is not on this host: "), "{error}");
}

#[test]
fn an_instance_knows_its_policy() {
    let settings = [("cpu".to_owned(), "colour".to_owned(), "red".to_owned())];
    let seen = Arc::new(Mutex::new(Arc::new(HostPolicy::default())));
    let mut plan = plan(&[group("m_0", 1)], {
        let seen = Arc::clone(&seen);
        move |context| {
            *lock(&seen) = Arc::clone(&context.host_policy);
            Log::default().instance(context, answer)
        }
    });
    plan.policies = Arc::new(HostPolicies::new(&settings).unwrap());
    let (instances, source) = started(&plan);
    assert_eq!(lock(&seen).json(), r#"{"cpu":{"colour":"red"}}"#);
    source.stop();
    instances.join();
}
