//! Measures the C interface against the trait that it implements: `cargo bench --bench plugin`.
//!
//! The same tiny backend twice, in C through the interface and in Rust behind the trait, each as one instance that is
//! executed by hand, in turns. It reads its input's properties and buffer, makes an output, copies, reports and
//! releases. With `-- --only=c|rust --rounds=N` for an instruction counter (`valgrind --tool=callgrind`).

use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Instant;

use nereid_backend::plugin::{PluginSettings, Plugins};
use nereid_backend::{Instance, InstanceContext, ModelContext};
use nereid_clock::now_ns;
use nereid_memory::{BlockMut, Exhausted, Pool, Slice};
use nereid_model_config::ModelSpec;
use nereid_observe::statistics::Execution;
use nereid_request::{
    Completion, DataType, Delivery, InputTensor, OutputTensor, Request, Response, Shape, Sink, Status, Text,
};
use nereid_scheduler::Payload;
use nereid_wire::inference::ModelConfig;
use tritonserver::abi::plugin::loader;

/// Requests of one measurement, and measurements of a row.
const REQUESTS: usize = 16_384;
const ROUNDS: usize = 41;
/// The bound that the interface has to keep, in ns a request.
const BOUND_NS: f64 = 1000.0;

struct Nowhere {
    pool: Pool,
}

impl Sink for Nowhere {
    fn deliver(&self, _key: u64, _delivery: Delivery) {}

    fn allocate(&self, _key: u64, byte_size: usize) -> Result<BlockMut, Exhausted> {
        self.pool.get(byte_size)
    }
}

/// The backend of tiny.c.
struct Tiny(InstanceContext);

impl Tiny {
    fn answer(request: &Request) -> Result<Response, Status> {
        let input = request.inputs.first().ok_or_else(|| Status::internal("no input"))?;
        let piece = input.data.first().ok_or_else(|| Status::internal("no data"))?;
        let name = Text::from("OUTPUT0");
        let mut block = request.allocate(piece.len())?;
        block.copy_from_slice(piece);
        let mut response = Response::new(request.id.clone());
        response.outputs.push(OutputTensor {
            name,
            datatype: input.datatype,
            shape: input.model_shape.clone(),
            data: [block.freeze()].into_iter().collect(),
            index: 0,
            on_device: None,
        });
        Ok(response)
    }
}

impl Instance for Tiny {
    fn execute(&mut self, payload: &mut Payload) -> Result<(), Status> {
        let execution = Execution { exec_start_ns: 1, compute_start_ns: 2, compute_end_ns: 3, exec_end_ns: 4 };
        let requests = payload.take();
        let count = requests.len() as u64;
        for request in requests {
            match Tiny::answer(&request) {
                Ok(response) => self.0.succeed(request, response, &execution),
                Err(status) => self.0.fail(request, status),
            }
        }
        self.0.report_batch(count, &execution);
        Ok(())
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if !arguments.iter().any(|argument| argument == "--bench") {
        println!("skipped: the cost of the C interface is measured by `cargo bench --bench plugin`");
        return ExitCode::SUCCESS;
    }
    let value = |name: &str| arguments.iter().find_map(|argument| argument.strip_prefix(name));
    let only = value("--only=");
    let rounds = value("--rounds=").and_then(|rounds| rounds.parse().ok()).unwrap_or(ROUNDS);
    match measure(only, rounds) {
        Ok(is_kept) if is_kept => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether the bound was kept.
fn measure(only: Option<&str>, rounds: usize) -> Result<bool, Box<dyn std::error::Error>> {
    let pool = Pool::new(64 << 20);
    let directory = std::env::temp_dir().join(format!("nereid-bench-plugin-{}", std::process::id()));
    let context = Arc::new(context(&pool, &directory));
    let spec = Arc::new(ModelSpec::new(context.config.clone())?);
    compile(&directory)?;
    let plugins = Plugins::new(
        PluginSettings {
            directory: directory.clone(),
            auto_complete: false,
            min_compute_capability: 0.0,
            pool: pool.clone(),
            gpus: Default::default(),
        },
        loader,
    );
    let backend = plugins.loader().load("tiny", &directory, &directory.join("libtriton_tiny.so"), &[])?;
    let model = backend.create_model(Arc::clone(&context))?;
    let at = InstanceContext::new("m_0_0", spec, Arc::clone(&context));
    let mut c = model.create_instance(at.clone())?;
    let mut rust: Box<dyn Instance> = Box::new(Tiny(at));
    let sink = Arc::new(Nowhere { pool });
    println!("{REQUESTS} requests a measurement, {rounds} measurements, ns a request\n");
    println!("| batch | side | least | median | most |\n|---|---|---|---|---|");
    let mut is_kept = true;
    for batch in [1, 8] {
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..rounds {
            for (times, (name, side)) in times.iter_mut().zip([("c", &mut c), ("rust", &mut rust)]) {
                if only.is_none_or(|only| only == name) {
                    times.push(run(side, &sink, batch)?);
                }
            }
        }
        let mut medians = Vec::new();
        for (times, name) in times.iter_mut().zip(["C interface", "trait"]) {
            times.sort_by(f64::total_cmp);
            let (Some(least), Some(median), Some(most)) = (times.first(), times.get(times.len() / 2), times.last())
            else {
                continue;
            };
            println!("| {batch} | {name} | {least:.0} | {median:.0} | {most:.0} |");
            medians.push(*median);
        }
        if let [c, rust] = medians[..] {
            println!("| {batch} | the interface's own | | {:.0} | |", c - rust);
            is_kept &= c - rust <= BOUND_NS;
        }
    }
    let _ = std::fs::remove_dir_all(&directory);
    Ok(is_kept)
}

/// Nanoseconds a request.
fn run(side: &mut Box<dyn Instance>, sink: &Arc<Nowhere>, batch: usize) -> Result<f64, Status> {
    let mut requests: Vec<Box<Request>> = (0..REQUESTS).map(|key| request(sink, key)).collect();
    let started = Instant::now();
    while !requests.is_empty() {
        let mut payload = Payload::default();
        requests.drain(requests.len().saturating_sub(batch)..).for_each(|request| payload.push(request));
        side.execute(&mut payload)?;
    }
    Ok(started.elapsed().as_nanos() as f64 / REQUESTS as f64)
}

fn request(sink: &Arc<Nowhere>, key: usize) -> Box<Request> {
    let mut request = Box::new(Request::new(Completion::new(sink.clone(), key as u64)));
    let shape = Shape::from_slice(&[16]);
    let mut input = InputTensor::new(Text::from("INPUT0"), DataType::Int32, shape.clone());
    input.model_shape = shape;
    input.data.push(Slice::copy_of(&[7; 64]));
    request.inputs.push(input);
    request.stamps.queued_ns = now_ns();
    request
}

fn context(pool: &Pool, directory: &Path) -> ModelContext {
    ModelContext {
        name: "m".to_owned(),
        version: 1,
        directory: directory.to_owned(),
        version_directory: directory.to_owned(),
        config: ModelConfig { name: "m".to_owned(), backend: "tiny".to_owned(), ..ModelConfig::default() },
        auto_complete: false,
        settings: Vec::new(),
        backend_directory: Default::default(),
        statistics: Arc::default(),
        metrics: Arc::default(),
        pool: pool.clone(),
        worker_cpu_count: 1,
        host: Default::default(),
        load: Default::default(),
        gpus: Default::default(),
    }
}

/// `libtriton_tiny.so` in `directory`.
fn compile(directory: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    std::fs::create_dir_all(directory)?;
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-shared", "-fPIC", "-o"]).arg(directory.join("libtriton_tiny.so"));
    let status = compiler.arg(root.join("benches/plugin/tiny.c")).arg("-I").arg(root.join("include")).status()?;
    if status.success() { Ok(()) } else { Err("cc fails on benches/plugin/tiny.c".into()) }
}
