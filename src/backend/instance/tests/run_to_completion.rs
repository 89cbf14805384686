//! Shards that run requests themselves, at the instances of an identity model.

use std::path::PathBuf;

use super::*;
use crate::{Backend, identity::IdentityBackend};
use nereid_memory::{BlockMut, Exhausted, Pool};
use nereid_model_config::{from_dynamic, normalize, parse};
use nereid_observe::statistics::ModelStatistics;
use nereid_request::{Completion, DataType, Delivery, InputTensor, Request, Shape, Sink, Text};
use nereid_scheduler::validate::{add_output, validate};
use nereid_scheduler::{Purpose, Scheduler, Services};

/// Where answers came, by thread.
#[derive(Default)]
struct Answers(Mutex<Vec<(u64, Option<Status>, std::thread::ThreadId)>>);

impl Sink for Answers {
    fn deliver(&self, key: u64, delivery: Delivery) {
        let error = delivery.response.and_then(|mut response| response.error.take());
        self.0.lock().unwrap().push((key, error, std::thread::current().id()));
    }

    fn allocate(&self, _key: u64, byte_size: usize) -> Result<BlockMut, Exhausted> {
        Ok(BlockMut::unpooled(byte_size))
    }
}

/// An identity model on threads of its own.
struct Identity {
    scheduler: Arc<dyn Scheduler>,
    spec: Arc<ModelSpec>,
    statistics: Arc<ModelStatistics>,
    instances: Instances,
    answers: Arc<Answers>,
}

fn identity(more: &str, run_to_completion: RunToCompletion) -> Identity {
    let text = format!(
        "name: 'm' backend: 'identity' max_batch_size: 4 input {{ name: 'INPUT0' data_type: TYPE_INT32 dims: [ 1 ] }} \
         output {{ name: 'OUTPUT0' data_type: TYPE_INT32 dims: [ 1 ] }} {more} \
         instance_group {{ name: 'm' kind: KIND_CPU count: 2 }}"
    );
    let mut config = from_dynamic(&parse("c", text.replace('\'', "\"").as_bytes()).unwrap().message).unwrap();
    normalize::fill_defaults(&mut config);
    let purpose = Purpose {
        spec: Arc::new(ModelSpec::new(config.clone()).unwrap()),
        version: 1,
        directory: PathBuf::new(),
        statistics: Arc::default(),
        pool: Pool::new(1 << 24),
        strategy: None,
    };
    let services = Services { run_to_completion, ..Default::default() };
    let scheduling = nereid_scheduler::create(&purpose, &services).unwrap();
    let context = Arc::new(ModelContext {
        name: "m".into(),
        version: 1,
        directory: PathBuf::new(),
        version_directory: PathBuf::new(),
        config,
        auto_complete: false,
        settings: Vec::new(),
        backend_directory: Default::default(),
        statistics: Arc::clone(&purpose.statistics),
        metrics: Arc::default(),
        pool: Pool::new(1 << 20),
        worker_cpu_count: 1,
        host: Default::default(),
        load: Default::default(),
        gpus: Arc::default(),
    });
    let plan = Plan {
        spec: Arc::clone(&purpose.spec),
        model: IdentityBackend.create_model(Arc::clone(&context)).unwrap(),
        context,
        attributes: IdentityBackend.attributes(),
        policies: Arc::default(),
        worker_cpus: Vec::new(),
        spin: Default::default(),
        warmup: Vec::new(),
        run_to_completion,
        stalls: None,
    };
    let instances = Instances::start(&plan, &scheduling.source).unwrap();
    let Purpose { spec, statistics, .. } = purpose;
    Identity { scheduler: scheduling.scheduler, spec, statistics, instances, answers: Arc::default() }
}

impl Identity {
    fn request(&self, key: u64, is_on_shard: bool) -> Box<Request> {
        let mut request = Box::new(Request::new(Completion::new(self.answers.clone(), key)));
        let mut input = InputTensor::new(Text::from("INPUT0"), DataType::Int32, Shape::from_slice(&[1, 1]));
        let mut block = BlockMut::unpooled(4);
        block.fill(7);
        input.data.push(block.freeze());
        request.inputs.push(input);
        request.ingress.is_on_shard = is_on_shard;
        add_output(&mut request, Text::from("OUTPUT0")).unwrap();
        validate(&mut request, &self.spec).unwrap();
        request
    }

    /// Sends one and waits for its answer; true if the calling thread gave it.
    fn runs_here(&self, is_on_shard: bool) -> bool {
        let before = self.answers.0.lock().unwrap().len();
        self.scheduler.enqueue(self.request(0, is_on_shard)).unwrap().wake_up.now();
        loop {
            if let Some((_, error, thread)) = self.answers.0.lock().unwrap().get(before) {
                assert_eq!(*error, None);
                return *thread == std::thread::current().id();
            }
            std::thread::yield_now();
        }
    }

    fn end(self) {
        self.scheduler.stop();
        self.instances.join();
        assert_eq!(self.statistics.snapshot().pending, 0);
    }
}

#[test]
fn a_shard_runs_what_cannot_block() {
    for batching in ["", "dynamic_batching { }", "dynamic_batching { preserve_ordering: true }"] {
        let identity = identity(batching, RunToCompletion::Declared);
        for _ in 0..10 {
            assert!(identity.runs_here(true), "{batching}");
        }
        assert!(!identity.runs_here(false), "a request from another thread is answered by a worker");
        let snapshot = identity.statistics.snapshot();
        assert_eq!((snapshot.success.count, snapshot.execution_count), (11, 11), "and all are counted");
        identity.end();
    }
}

#[test]
fn a_shard_leaves_to_workers_what_may_take_time() {
    let delay = "parameters { key: 'execute_delay_ms' value { string_value: '1' } }";
    for (more, run_to_completion) in [
        ("", RunToCompletion::Off),
        (delay, RunToCompletion::Declared),
        (delay, RunToCompletion::Measured),
        ("dynamic_batching { max_queue_delay_microseconds: 100 }", RunToCompletion::Declared),
    ] {
        let identity = identity(more, run_to_completion);
        assert!(!identity.runs_here(true), "{more} {run_to_completion:?}");
        identity.end();
    }
}

/// Two shards and two workers at the same instances, and requests from elsewhere between them.
#[test]
fn borrowers_and_workers_answer_each_request_once() {
    const EACH: u64 = 3_000;
    for batching in ["", "dynamic_batching { }"] {
        let identity = identity(batching, RunToCompletion::Declared);
        std::thread::scope(|scope| {
            for client in 0..3 {
                let identity = &identity;
                scope.spawn(move || {
                    for number in 0..EACH {
                        let request = identity.request(client * EACH + number, client < 2);
                        let accepted = identity.scheduler.enqueue(request).unwrap();
                        accepted.wake_up.now();
                        // Too late for most, and no harm to any.
                        if number % 5 == 0 {
                            identity.scheduler.cancel(&accepted.ticket).now();
                        }
                    }
                });
            }
        });
        let (answers, statistics) = (Arc::clone(&identity.answers), Arc::clone(&identity.statistics));
        identity.end();
        let mut keys: Vec<u64> = answers.0.lock().unwrap().iter().map(|(key, ..)| *key).collect();
        keys.sort_unstable();
        assert!(keys.into_iter().eq(0..3 * EACH), "{batching}: each once");
        let snapshot = statistics.snapshot();
        assert_eq!(snapshot.success.count + snapshot.failures.canceled, 3 * EACH);
    }
}
