//! What runs models, and the contract between it and the server.
//!
//! The traits have the shape of Triton's backend C interface, so that a library loaded through it and a native
//! backend stand behind the same calls: `execute` owns what it takes, may answer later and from any thread, and the
//! instance is free as soon as it returns.

pub mod affine;
pub mod device_outputs;
pub mod dynamic_symbols;
pub mod elf;
#[cfg(any(test, feature = "testing"))]
pub mod fixtures;
mod host_policy;
pub mod identity;
pub mod instance;
pub mod model_file;
pub mod needed_libraries;
pub mod onnxruntime;
pub mod parameters;
pub mod pipeline;
pub mod plugin;
pub mod python;
pub mod repeat;
mod responders;
pub mod rows;
pub mod runtime_search;
#[cfg(any(test, feature = "testing"))]
pub mod scratch;
pub mod square;
mod vectors;

use std::any::Any;
use std::cell::Cell;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use nereid_clock::now_ns;
use nereid_gpu::{Gpu, Gpus};
use nereid_memory::Pool;
use nereid_model_config::ModelSpec;
use nereid_model_config::normalize::PreferredGroup;
use nereid_mutants::{self as mutants, Mutant};
use nereid_observe::metrics::Registry;
use nereid_observe::statistics::{Execution, FailureReason, ModelStatistics};
use nereid_queue::Spin;
use nereid_request::{Control, LoadUnderWay, Request, Response, Status, Submit, TimeSums};
use nereid_scheduler::{Payload, Readiness};
use nereid_wire::inference::model_instance_group::Kind;
use nereid_wire::inference::{ModelConfig, ModelInstanceGroup};

pub use host_policy::{HostPolicies, HostPolicy, check_key};

/// How a backend wants the instances of its models to be made and driven.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Attributes {
    /// What a model gets whose configuration leaves its groups open, the best first.
    pub preferred_groups: Vec<PreferredGroup>,
    /// Instances of one model may be initialised at the same time.
    pub parallel_instance_loading: bool,
    pub execution_policy: ExecutionPolicy,
}

/// Who drives an instance (contract/c_api.md section 5, "Threads").
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ExecutionPolicy {
    /// A thread of its own.
    #[default]
    Blocking,
    /// The one thread of its device.
    DeviceBlocking,
}

/// A kind of model runtime. One value serves the process.
pub trait Backend: Send + Sync {
    fn name(&self) -> &str;

    fn attributes(&self) -> Attributes {
        Attributes::default()
    }

    /// Holds a model version against what can be known of it without opening it: nothing is loaded, nothing runs. What
    /// passes may still fail to open.
    fn examine(&self, _context: &ModelContext) -> Result<(), Status> {
        Ok(())
    }

    /// Opens one model version. May block: it runs on a control thread.
    fn create_model(&self, context: Arc<ModelContext>) -> Result<Arc<dyn Model>, Status>;
}

/// The server that runs a model: to backends a handle that models call and control other models by, kept alive by who
/// has it.
#[derive(Clone, Default)]
pub struct Host(Option<Arc<dyn Server>>);

/// All that a host can do.
trait Server: Send + Sync {
    fn submit(self: Arc<Self>) -> Arc<dyn Submit>;

    fn control(self: Arc<Self>) -> Arc<dyn Control>;
}

impl<S: Submit + Control + 'static> Server for S {
    fn submit(self: Arc<Self>) -> Arc<dyn Submit> {
        self
    }

    fn control(self: Arc<Self>) -> Arc<dyn Control> {
        self
    }
}

impl Host {
    pub fn new(server: Arc<impl Submit + Control + 'static>) -> Host {
        Host(Some(server))
    }

    /// The way to call other models; none where no server is.
    pub fn submit(&self) -> Option<Arc<dyn Submit>> {
        self.0.clone().map(Server::submit)
    }

    /// The way to load and unload models; none where no server is.
    pub fn control(&self) -> Option<Arc<dyn Control>> {
        self.0.clone().map(Server::control)
    }

    /// Where the server's own value lies; null where no server is.
    pub fn as_ptr(&self) -> *const () {
        self.0.as_ref().map_or(std::ptr::null(), |server| Arc::as_ptr(server).cast())
    }
}

/// What a backend learns about the model it shall open.
pub struct ModelContext {
    pub name: String,
    pub version: i64,
    /// The model's directory in the repository.
    pub directory: PathBuf,
    /// The directory of this version.
    pub version_directory: PathBuf,
    /// The normalised configuration, before auto-completion.
    pub config: ModelConfig,
    pub auto_complete: bool,
    /// `--backend-config` of this backend, global settings first; a later setting wins.
    pub settings: Vec<(String, String)>,
    /// `--backend-directory`.
    pub backend_directory: PathBuf,
    pub statistics: Arc<ModelStatistics>,
    pub metrics: Arc<Registry>,
    pub pool: Pool,
    /// CPUs that workers may run on: runtimes size their thread pools by it.
    pub worker_cpu_count: usize,
    /// The server that it runs in.
    pub host: Host,
    /// Whether it is being loaded, for what it asks of its host.
    pub load: LoadUnderWay,
    /// The devices that it may use.
    pub gpus: Arc<Gpus>,
}

impl ModelContext {
    /// The last value given for `key` on the command line.
    pub fn setting(&self, key: &str) -> Option<&str> {
        self.settings.iter().rev().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    /// `parameters { key: … }` of the model's configuration.
    pub fn parameter(&self, key: &str) -> Option<&str> {
        self.config.parameters.get(key).map(|parameter| parameter.string_value.as_str())
    }
}

/// One opened model version.
pub trait Model: Send + Sync {
    /// The configuration as auto-completion changed it; `None`: unchanged.
    fn completed_config(&self) -> Option<ModelConfig> {
        None
    }

    /// What C sees of the model, where it has been shown to C.
    fn handle(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        None
    }

    /// Makes one instance. Called with the final configuration, on the thread that will drive the instance.
    fn create_instance(self: Arc<Self>, context: InstanceContext) -> Result<Box<dyn Instance>, Status>;
}

/// How an instance reports that it has lost what it kept of earlier requests, while it goes on working: sequences that
/// it had begun must not go on as if nothing had happened. Without a scheduler behind it nothing follows.
#[derive(Clone, Default)]
pub struct StateLoss(Arc<OnceLock<LossReport>>);

type LossReport = Box<dyn Fn() + Send + Sync>;

impl StateLoss {
    /// From now on `report` is called for each loss; the first one given counts.
    pub fn connect(&self, report: impl Fn() + Send + Sync + 'static) {
        let _ = self.0.set(Box::new(report));
    }

    /// The instance has lost its state. To be called before anything is executed without it.
    pub fn report(&self) {
        if let Some(report) = self.0.get() {
            report();
        }
    }
}

/// What an instance is told about itself.
#[derive(Clone)]
pub struct InstanceContext {
    pub name: String,
    /// Order of creation within the model version, from 0.
    pub ordinal: usize,
    pub kind: Kind,
    /// Of its kind; 0 where there is only the host.
    pub device: i32,
    /// Its device, if that is one.
    pub gpu: Option<Gpu>,
    /// Where its executions count: on a device those of the model that ran there.
    pub statistics: Arc<ModelStatistics>,
    /// It is created and kept, and never executes.
    pub is_passive: bool,
    /// What it executes now is warm-up, which is not counted.
    pub is_warming: Arc<AtomicBool>,
    /// Where it reports that its state is lost.
    pub state_loss: StateLoss,
    /// Whether its thread, and processes of its own, may look for what they wait for.
    pub spin: Spin,
    pub host_policy: Arc<HostPolicy>,
    /// The group of the configuration that asks for it, without name and count.
    pub group: Arc<ModelInstanceGroup>,
    /// The final configuration.
    pub spec: Arc<ModelSpec>,
    pub model: Arc<ModelContext>,
}

impl InstanceContext {
    /// The first instance, on the CPU, of which nothing special is known.
    pub fn new(name: impl Into<String>, spec: Arc<ModelSpec>, model: Arc<ModelContext>) -> InstanceContext {
        InstanceContext {
            name: name.into(),
            ordinal: 0,
            kind: Kind::Cpu,
            device: 0,
            gpu: None,
            statistics: Arc::clone(&model.statistics),
            is_passive: false,
            is_warming: Arc::default(),
            state_loss: StateLoss::default(),
            spin: Spin::default(),
            host_policy: Arc::default(),
            group: Arc::default(),
            spec,
            model,
        }
    }

    /// The model's file of an instance on a device of this compute capability, if the configuration has one of its own
    /// for it (`cc_model_filenames`); on any other the default one is meant.
    pub fn filename_for_device(&self) -> Option<&str> {
        let (major, minor) = self.gpu.as_ref()?.description().compute_capability;
        self.spec.config.cc_model_filenames.get(&format!("{major}.{minor}")).map(String::as_str)
    }

    /// Counts a success of `request`. To be called before its response leaves, so that whoever has the answer also
    /// sees it counted.
    pub fn report_success(&self, request: &Request, execution: &Execution) {
        SUCCESSES.set(SUCCESSES.get().wrapping_add(1));
        tell_executed(request, execution);
        if !request.is_counted() || mutants::is(Mutant::SuccessUncounted) {
            return;
        }
        let stamps = &request.stamps;
        self.statistics.request_succeeded(stamps.started_ns, stamps.queued_ns, request.batch_size, execution);
        if let Some(times) = &request.links.times {
            times.add(&TimeSums {
                queue_ns: execution.exec_start_ns.saturating_sub(stamps.queued_ns),
                compute_input_ns: execution.compute_input_ns(),
                compute_infer_ns: execution.compute_infer_ns(),
                compute_output_ns: execution.compute_output_ns(),
            });
        }
    }

    /// Counts an execution that ran, of `rows` items of batches.
    pub fn report_batch(&self, rows: u64, execution: &Execution) {
        if !self.is_warming.load(Ordering::Acquire) {
            self.statistics.batch_executed(rows, execution);
        }
    }

    /// Answers `request` with an error, and counts it.
    pub fn fail(&self, request: Box<Request>, status: Status) {
        fail(&self.statistics, request, status);
    }

    /// Counts a success and answers with the one and last response.
    pub fn succeed(&self, request: Box<Request>, response: Response, execution: &Execution) {
        self.report_success(&request, execution);
        request.finish(response);
        request.retire();
    }
}

/// Tells who watches `request` of its execution, successful or not.
pub fn tell_executed(request: &Request, execution: &Execution) {
    if let Some(observer) = &request.observer {
        let Execution { exec_start_ns, compute_start_ns, compute_end_ns, exec_end_ns } = *execution;
        observer.executed([exec_start_ns, compute_start_ns, compute_end_ns, exec_end_ns]);
    }
}

/// Answers `request` with an error of its backend, and counts it.
pub fn fail(statistics: &ModelStatistics, request: Box<Request>, status: Status) {
    report_failure(statistics, &request);
    request.fail(status);
}

/// Counts a failure of the backend.
pub fn report_failure(statistics: &ModelStatistics, request: &Request) {
    if request.is_counted() {
        statistics.request_failed(request.stamps.started_ns, now_ns(), FailureReason::Backend);
    }
}

thread_local! {
    static SUCCESSES: Cell<u64> = const { Cell::new(0) };
}

/// How many requests this thread has reported as executed with success.
fn successes() -> u64 {
    SUCCESSES.get()
}

/// Which threads may run an instance beside the one that made it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mobility {
    #[default]
    Bound,
    /// Any thread, one at a time; but a run may wait for other threads, or take longer than earlier runs with inputs of
    /// the same size. Shards run it only if the operator asks for that (`--run-to-completion=measured`), and while its
    /// runs are short.
    FreeIfAsked,
    /// Any thread, one at a time. A run computes on its thread alone and waits for no other one, and the bytes of its
    /// inputs bound its time. Shards run it while its runs are short.
    FreeIfShort,
    /// Any thread, one at a time, even one that must not block: it computes a few microseconds and waits for nothing.
    Free,
}

/// One execution resource of a model, driven by one thread at a time.
pub trait Instance: Send {
    fn mobility(&self) -> Mobility {
        Mobility::Bound
    }

    /// Inputs that lie on a device may be given to it as they are, and it heeds where its outputs are wanted
    /// ([`Request::destination_of`]). Others get inputs on the host, and their outputs are brought where they belong.
    fn takes_device_tensors(&self) -> bool {
        false
    }

    /// An execution returns as soon as it has sent its last response: it neither computes nor waits behind it. Then the
    /// next step of an ensemble may wait for the return, and its request need not go home first. Not for instances that
    /// run the code of others, which may do anything behind an answer.
    fn answers_last(&self) -> bool {
        false
    }

    /// Who says, beside the server's own state, whether it could serve; `None` for one that always can.
    fn readiness(&self) -> Option<Arc<dyn Readiness>> {
        None
    }

    /// Runs the requests of `payload`. `Ok`: the instance took all of them and answers each, now or later, from any
    /// thread. `Err`: it took none; the caller answers them all with the error.
    fn execute(&mut self, payload: &mut Payload) -> Result<(), Status>;
}
