//! Measures a scheduler's time for a request, without threads, network and backend: `cargo bench --bench batching`.
//!
//! The bench polls one worker itself: requests go in, and come out as one payload. The time of a request is that of its
//! `enqueue` and its share of the `poll`, of the answer and of dropping it, without the time of making it.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use nereid_clock::now_ns;
use nereid_memory::{BlockMut, Exhausted};
use nereid_model_config::{ModelSpec, normalize};
use nereid_request::{Completion, DataType, Delivery, InputTensor, Request, Response, Shape, Sink, Text, Waker};
use nereid_scheduler::{Next, Purpose, Scheduling, Services, WorkerInfo, create};

/// Requests of one measurement, and measurements of a row.
const REQUESTS: usize = 32_768;
const ROUNDS: usize = 41;

struct Row {
    name: &'static str,
    batching: &'static str,
    dims: &'static str,
    batch: usize,
}

#[rustfmt::skip]
const ROWS: [Row; 9] = [
    Row { name: "default", batching: "", dims: "16", batch: 1 },
    Row { name: "dynamic", batching: "dynamic_batching { }", dims: "16", batch: 1 },
    Row { name: "dynamic", batching: "dynamic_batching { }", dims: "16", batch: 8 },
    Row { name: "dynamic", batching: "dynamic_batching { }", dims: "16", batch: 32 },
    Row { name: "dynamic, variable size", batching: "dynamic_batching { }", dims: "-1", batch: 8 },
    Row { name: "dynamic, variable size", batching: "dynamic_batching { }", dims: "-1", batch: 32 },
    Row { name: "dynamic, preserve_ordering", batching: "dynamic_batching { preserve_ordering: true }", dims: "16",
          batch: 8 },
    Row { name: "dynamic, preserve_ordering", batching: "dynamic_batching { preserve_ordering: true }", dims: "16",
          batch: 32 },
    Row { name: "dynamic, 3 levels with bounds and timeouts",
          batching: "dynamic_batching { priority_levels: 3 default_priority_level: 2 default_queue_policy { \
                     max_queue_size: 1000 default_timeout_microseconds: 10000000 } }",
          dims: "16", batch: 32 },
];

struct Nowhere;

impl Sink for Nowhere {
    fn deliver(&self, _key: u64, _delivery: Delivery) {}

    fn allocate(&self, _key: u64, byte_size: usize) -> Result<BlockMut, Exhausted> {
        Ok(BlockMut::unpooled(byte_size))
    }
}

fn main() -> ExitCode {
    if !std::env::args().any(|argument| argument == "--bench") {
        println!("skipped: the cost of scheduling is measured by `cargo bench --bench batching`");
        return ExitCode::SUCCESS;
    }
    println!("{REQUESTS} requests a measurement, {ROUNDS} measurements, ns a request\n");
    println!("| scheduler | batch | least | median | most |\n|---|---|---|---|---|");
    for row in &ROWS {
        let mut times = match measure(row) {
            Ok(times) => times,
            Err(error) => {
                eprintln!("{}: {error}", row.name);
                return ExitCode::FAILURE;
            }
        };
        times.sort_by(f64::total_cmp);
        let (least, median, most) = (times[0], times[times.len() / 2], times[times.len() - 1]);
        println!("| {} | {} | {least:.0} | {median:.0} | {most:.0} |", row.name, row.batch);
    }
    ExitCode::SUCCESS
}

fn measure(row: &Row) -> Result<Vec<f64>, Box<dyn std::error::Error>> {
    let text = format!(
        "name: \"m\" backend: \"b\" max_batch_size: 32 \
         input {{ name: \"INPUT0\" data_type: TYPE_INT32 dims: [ {} ] }} {}",
        row.dims, row.batching
    );
    let mut config =
        nereid_model_config::from_dynamic(&nereid_model_config::parse("config.pbtxt", text.as_bytes())?.message)?;
    normalize::fill_defaults(&mut config);
    let spec = Arc::new(ModelSpec::new(config)?);
    let purpose = Purpose {
        spec: Arc::clone(&spec),
        version: 1,
        statistics: Arc::default(),
        directory: Default::default(),
        pool: nereid_memory::Pool::new(1 << 24),
        strategy: None,
    };
    let Scheduling { scheduler, source } = create(&purpose, &Services::default())?;
    let waker = Waker::new(|| {});
    let worker = source.join(WorkerInfo { waker, name: "m".to_owned(), device: 0, rate_limiter: None })?;
    let sink = Arc::new(Nowhere);
    let mut times = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let mut requests: Vec<Box<Request>> = (0..REQUESTS).map(|key| request(&sink, key, &spec)).collect();
        let started = Instant::now();
        let mut executed = 0;
        while !requests.is_empty() {
            for request in requests.drain(requests.len().saturating_sub(row.batch)..) {
                let accepted = scheduler.enqueue(request).map_err(|refused| {
                    let status = refused.status.to_string();
                    refused.request.withdraw();
                    status
                })?;
                accepted.wake_up.now();
            }
            while let Next::Execute(mut payload) = source.poll(worker, now_ns()) {
                executed += payload.len();
                payload.take().into_iter().for_each(|request| request.finish(Response::default()));
                source.executed(worker);
            }
        }
        times.push(started.elapsed().as_nanos() as f64 / REQUESTS as f64);
        if executed != REQUESTS {
            return Err(format!("{executed} of {REQUESTS} requests were executed").into());
        }
    }
    Ok(times)
}

fn request(sink: &Arc<Nowhere>, key: usize, spec: &ModelSpec) -> Box<Request> {
    let mut request = Box::new(Request::new(Completion::new(sink.clone(), key as u64)));
    let shape = Shape::from_slice(&[1, 16]);
    let mut input = InputTensor::new(Text::from("INPUT0"), DataType::Int32, shape.clone());
    input.model_shape = shape;
    request.inputs.push(input);
    request.queueing.priority = spec.priority(1 + key as u64 % 3);
    request.stamps.queued_ns = now_ns();
    request
}
