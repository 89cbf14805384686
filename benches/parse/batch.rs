//! A dynamic batcher: requests go in one by one and come out as one payload of eight.

use std::sync::Arc;

use nereid_clock::now_ns;
use nereid_memory::{BlockMut, Exhausted, Pool};
use nereid_model_config::{ModelSpec, normalize};
use nereid_request::{Completion, DataType, Delivery, InputTensor, Request, Response, Shape, Sink, Text, Waker};
use nereid_scheduler::{Next, PayloadSource, Purpose, Scheduler, Scheduling, Services, WorkerInfo, create};

use super::operation::Operation;

const BATCH: usize = 8;
const CONFIG: &str = "name: \"m\" backend: \"b\" max_batch_size: 8 \
                      input { name: \"INPUT0\" data_type: TYPE_INT32 dims: [ 16 ] } \
                      dynamic_batching { preferred_batch_size: [ 8 ] max_queue_delay_microseconds: 1000000 }";

struct Nowhere;

impl Sink for Nowhere {
    fn deliver(&self, _key: u64, _delivery: Delivery) {}

    fn allocate(&self, _key: u64, byte_size: usize) -> Result<BlockMut, Exhausted> {
        Ok(BlockMut::unpooled(byte_size))
    }
}

struct Cut {
    scheduler: Arc<dyn Scheduler>,
    source: Arc<dyn PayloadSource>,
    worker: usize,
    sink: Arc<Nowhere>,
    #[expect(clippy::vec_box, reason = "requests travel in boxes")]
    waiting: Vec<Box<Request>>,
    #[expect(clippy::vec_box, reason = "requests travel in boxes")]
    executed: Vec<Box<Request>>,
}

/// Eight requests enqueued, and the batch of them cut; their making and their answers are not in it.
pub fn cut() -> Box<dyn Operation> {
    let parsed = nereid_model_config::parse("config.pbtxt", CONFIG.as_bytes()).expect("a good configuration");
    let mut config = nereid_model_config::from_dynamic(&parsed.message).expect("a model's configuration");
    normalize::fill_defaults(&mut config);
    let purpose = Purpose {
        spec: Arc::new(ModelSpec::new(config).expect("a model")),
        version: 1,
        statistics: Arc::default(),
        directory: Default::default(),
        pool: Pool::new(1 << 24),
        strategy: None,
    };
    let Scheduling { scheduler, source } = create(&purpose, &Services::default()).expect("a scheduler");
    let info = WorkerInfo { waker: Waker::new(|| {}), name: "m".to_owned(), device: 0, rate_limiter: None };
    let worker = source.join(info).expect("a place for a worker");
    let sink = Arc::new(Nowhere);
    Box::new(Cut { scheduler, source, worker, sink, waiting: Vec::new(), executed: Vec::new() })
}

impl Operation for Cut {
    fn prepare(&mut self) {
        for key in 0..BATCH as u64 {
            let mut request = Box::new(Request::new(Completion::new(self.sink.clone(), key)));
            let shape = Shape::from_slice(&[1, 16]);
            let mut input = InputTensor::new(Text::from("INPUT0"), DataType::Int32, shape.clone());
            input.model_shape = shape;
            request.inputs.push(input);
            request.stamps.queued_ns = now_ns();
            self.waiting.push(request);
        }
        self.executed.reserve(BATCH);
    }

    fn perform(&mut self) {
        for request in self.waiting.drain(..) {
            match self.scheduler.enqueue(request) {
                Ok(accepted) => accepted.wake_up.now(),
                Err(refused) => panic!("a request is refused: {}", refused.status),
            }
        }
        while let Next::Execute(mut payload) = self.source.poll(self.worker, now_ns()) {
            self.executed.extend(payload.take());
            self.source.executed(self.worker);
        }
    }

    fn settle(&mut self) {
        assert_eq!(self.executed.len(), BATCH, "the batch is not cut at its preferred size");
        self.executed.drain(..).for_each(|request| request.finish(Response::default()));
    }
}
