//! The settings of `--backend-config=onnxruntime` and of a model's parameters, parsed once (contract/backends.md
//! section 4).

use ort::sys::GraphOptimizationLevel;
use tracing::{debug, info};

use super::providers::GpuProviders;
use super::runtime::{GlobalThreads, RuntimeOptions};
use crate::ModelContext;
use crate::parameters::{parse_boolean, parse_integer};
use nereid_request::Status;
use nereid_wire::inference::ModelInstanceGroup;
use nereid_wire::inference::model_instance_group::Kind;

/// The highest accepted thread count: far above any host's, far below the library's limits.
const THREADS_MAX: i32 = 4096;
/// Below this many CPUs no thread spins: the awaited thread may need the core (docs/design.md, Placement).
const SPIN_FROM_CPUS: usize = 4;
const SPINNING: [&str; 2] = ["session.intra_op.allow_spinning", "session.inter_op.allow_spinning"];

/// Settings of the backend, which hold for all its models.
#[derive(Debug, Clone, Copy)]
pub struct BackendSettings {
    pub default_max_batch_size: i32,
    pub runtime: RuntimeOptions,
}

impl BackendSettings {
    pub fn parse(context: &ModelContext) -> Result<BackendSettings, Status> {
        BackendSettings::parse_for(context, physical_core_count())
    }

    /// `library_threads` is the library's default count.
    fn parse_for(context: &ModelContext, library_threads: usize) -> Result<BackendSettings, Status> {
        let integer = |key: &str, default: i32| context.setting(key).map_or(Ok(default), parse_integer);
        let boolean = |key: &str| context.setting(key).map_or(Ok(false), parse_boolean);
        let default_max_batch_size = integer("default-max-batch-size", 4)?;
        let global = boolean("enable-global-threadpool")?;
        let (intra_op, inter_op) = (integer("intra_op_thread_count", 0)?, integer("inter_op_thread_count", 0)?);
        // In Triton it reports the use of device memory; here it has no effect, and only its spelling is checked.
        boolean("triton-backend-memory-tracker")?;
        let worker_cpus = context.worker_cpu_count;
        let threads = |given: i32| match given {
            1.. => given.min(THREADS_MAX),
            // 0 is the library's default.
            _ => threads_of_workers(worker_cpus, library_threads).map_or(0, |count| count as i32),
        };
        let global_threads = global.then(|| GlobalThreads {
            intra_op: threads(intra_op),
            inter_op: threads(inter_op),
            may_spin: !is_few(worker_cpus),
        });
        Ok(BackendSettings { default_max_batch_size, runtime: RuntimeOptions { global_threads } })
    }
}

/// The run option that gives memory back to the system after a run. A model's parameter of the same name sets it.
const SHRINKAGE: &str = "memory.enable_memory_arena_shrinkage";

/// How far graphs are optimised when they are loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Optimization {
    None,
    Basic,
    Extended,
    All,
}

impl From<Optimization> for GraphOptimizationLevel {
    fn from(optimization: Optimization) -> GraphOptimizationLevel {
        match optimization {
            Optimization::None => GraphOptimizationLevel::ORT_DISABLE_ALL,
            Optimization::Basic => GraphOptimizationLevel::ORT_ENABLE_BASIC,
            Optimization::Extended => GraphOptimizationLevel::ORT_ENABLE_EXTENDED,
            Optimization::All => GraphOptimizationLevel::ORT_ENABLE_ALL,
        }
    }
}

/// The parameter of a model whose instances share a session.
const SHARES_SESSIONS: &str = "share_session_between_instances";

/// The run option for a return before the work on a device is complete. A model's parameter of the same name sets it.
pub const RETURNS_EARLY: &str = "disable_synchronize_execution_providers";

/// How the sessions of one model are made and run. `None` leaves the library's default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionSettings {
    pub parallel: bool,
    pub intra_op_threads: Option<u32>,
    pub inter_op_threads: Option<u32>,
    pub memory_arena: Option<bool>,
    pub memory_pattern: Option<bool>,
    pub session_entries: Vec<(String, String)>,
    pub run_entries: Vec<(String, String)>,
    pub optimization: Optimization,
    pub custom_op_libraries: Vec<String>,
    pub openvino: bool,
    /// Whether the instances of a group share a session.
    pub shares_sessions: bool,
    /// Settings of instances on GPUs.
    pub gpu: GpuProviders,
    /// Whether runs return before their work on a device is complete; `None`: if no node of the model is on the CPU.
    pub returns_early: Option<bool>,
}

impl SessionSettings {
    /// Whether a run on the host has no thread but that which begins it, as far as the library decides.
    pub fn has_one_thread(&self) -> bool {
        !self.parallel && self.intra_op_threads == Some(1) && !self.openvino && self.custom_op_libraries.is_empty()
    }

    pub fn parse(context: &ModelContext) -> Result<SessionSettings, Status> {
        SessionSettings::parse_for(context, context.worker_cpu_count, physical_core_count())
    }

    /// `worker_cpus` (0: unknown) is the number of cores for workers; `library_threads` is the library's default count.
    fn parse_for(
        context: &ModelContext,
        worker_cpus: usize,
        library_threads: usize,
    ) -> Result<SessionSettings, Status> {
        let integer = |key: &str| context.parameter(key).map_or(Ok(0), parse_integer);
        let boolean = |key: &str| context.parameter(key).map(parse_boolean).transpose();
        let parallel = match integer("execution_mode")? {
            0 => false,
            1 => true,
            other => {
                return Err(Status::invalid(format!(
                    "Invalid configuration value provided. Expected values for  execution_mode are 0 or 1 but got \
                     {other} ."
                )));
            }
        };
        let sized = threads_of_workers(worker_cpus, library_threads);
        let threads = |given: i32| match given {
            1.. => Some(given.min(THREADS_MAX).unsigned_abs()),
            _ => sized,
        };
        let intra_op_threads = threads(integer("intra_op_thread_count")?);
        let inter_op_threads = threads(integer("inter_op_thread_count")?).filter(|_| parallel);
        let mut session_entries: Vec<(String, String)> = context
            .config
            .parameters
            .iter()
            .filter(|(key, _)| key.starts_with("session."))
            .map(|(key, value)| (key.clone(), value.string_value.clone()))
            .collect();
        session_entries.sort();
        if is_few(worker_cpus) {
            for key in SPINNING {
                if !session_entries.iter().any(|(given, _)| given == key) {
                    session_entries.push((key.to_owned(), "0".to_owned()));
                }
            }
        }
        let shrinkage = context.parameter(SHRINKAGE).map(|devices| (SHRINKAGE.to_owned(), devices.to_owned()));
        let run_entries = shrinkage.into_iter().collect();
        let operations = context.config.model_operations.as_ref();
        Ok(SessionSettings {
            parallel,
            intra_op_threads,
            inter_op_threads,
            memory_arena: boolean("enable_mem_arena")?,
            memory_pattern: boolean("enable_mem_pattern")?,
            session_entries,
            run_entries,
            optimization: optimization(context),
            custom_op_libraries: operations
                .map_or(&[][..], |given| &given.op_library_filename)
                .iter()
                .map(|given| library_path(context, given))
                .collect(),
            openvino: accelerators(context)?,
            shares_sessions: boolean(SHARES_SESSIONS)?.unwrap_or(false),
            gpu: gpu_providers(context)?,
            returns_early: boolean(RETURNS_EARLY)?,
        })
    }

    /// Logs the settings of the model's parameters, in Triton's words.
    pub fn log(&self, context: &ModelContext) {
        for key in ["enable_mem_arena", "enable_mem_pattern", SHRINKAGE] {
            if let Some(value) = context.parameter(key) {
                debug!("Configuring {key} to {value}");
            }
        }
        for (key, value) in self.session_entries.iter().filter(|(key, _)| context.parameter(key).is_some()) {
            debug!("Configuring '{key}' to '{value}' for '{}'", context.name);
        }
        if self.shares_sessions && context.config.instance_group.iter().any(is_for_gpu) {
            info!(
                "instances of model '{}' on GPUs have sessions of their own, because each computes on a stream of its \
                 own",
                context.name
            );
        }
    }

    /// The same, for a session that fails if a node of the model would be on the CPU.
    pub fn without_cpu(&self) -> SessionSettings {
        let mut settings = self.clone();
        settings.session_entries.push(("session.disable_cpu_ep_fallback".to_owned(), "1".to_owned()));
        settings
    }
}

/// The count of threads for `cpus` cores of workers (0: unknown) if it is below the library's default: that includes
/// the cores of I/O shards, to which the library would pin threads.
fn threads_of_workers(cpus: usize, library_threads: usize) -> Option<u32> {
    let count = || u32::try_from(cpus).unwrap_or(u32::MAX).clamp(1, THREADS_MAX.unsigned_abs());
    (cpus > 0 && cpus < library_threads).then(count)
}

fn is_few(cpus: usize) -> bool {
    cpus > 0 && cpus < SPIN_FROM_CPUS
}

/// `optimization { graph { level } }`: -1 basic, 1 extended, 2 none, everything else all.
fn optimization(context: &ModelContext) -> Optimization {
    let graph = context.config.optimization.as_ref().and_then(|optimization| optimization.graph.as_ref());
    match graph.map_or(0, |graph| graph.level) {
        -1 => Optimization::Basic,
        1 => Optimization::Extended,
        2 => Optimization::None,
        _ => Optimization::All,
    }
}

/// The path of a library of custom operators: beside the model's file or its versions if a file has that name there, so
/// that it may come from a bucket with its model; else the one that the loader finds.
fn library_path(context: &ModelContext, given: &str) -> String {
    let folders = [&context.version_directory, &context.directory];
    let beside = folders.into_iter().map(|folder| folder.join(given)).find(|path| path.is_file());
    beside.map_or_else(|| given.to_owned(), |path| path.to_string_lossy().into_owned())
}

/// Whether instances of the group may be on GPUs.
pub fn is_for_gpu(group: &ModelInstanceGroup) -> bool {
    matches!(group.kind(), Kind::Gpu | Kind::Auto)
}

/// Reads the settings for GPUs, only if an instance may run on one.
fn gpu_providers(context: &ModelContext) -> Result<GpuProviders, Status> {
    match (GpuProviders::parse(context), context.config.instance_group.iter().any(is_for_gpu)) {
        (Err(status), true) => Err(status),
        // A later instance may be on a GPU; the error is reported then.
        (parsed, _) => Ok(parsed.unwrap_or_default()),
    }
}

/// True if OpenVINO is requested; any other CPU accelerator does not exist.
fn accelerators(context: &ModelContext) -> Result<bool, Status> {
    let optimization = context.config.optimization.as_ref();
    let Some(given) = optimization.and_then(|optimization| optimization.execution_accelerators.as_ref()) else {
        return Ok(false);
    };
    match given.cpu_execution_accelerator.iter().find(|accelerator| accelerator.name != "openvino") {
        Some(other) => Err(Status::invalid(format!("unknown Execution Accelerator '{}' is requested", other.name))),
        None => Ok(!given.cpu_execution_accelerator.is_empty()),
    }
}

/// Cores without hyper-threads: the library's default count of threads.
fn physical_core_count() -> usize {
    let cores: std::collections::BTreeSet<String> = std::fs::read_dir("/sys/devices/system/cpu")
        .into_iter()
        .flatten()
        .filter_map(|entry| std::fs::read_to_string(entry.ok()?.path().join("topology/thread_siblings_list")).ok())
        .collect();
    match cores.len() {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        count => count,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onnxruntime::fixtures::{context, with_parameters};
    use nereid_request::Code;

    #[test]
    fn model_parameters_become_session_settings() {
        let context = with_parameters(&[
            ("execution_mode", "1"),
            ("intra_op_thread_count", "3"),
            ("inter_op_thread_count", "2"),
            ("enable_mem_arena", "off"),
            ("enable_mem_pattern", "TRUE"),
            ("session.use_device_allocator_for_initializers", "1"),
            ("memory.enable_memory_arena_shrinkage", "cpu:0"),
            ("share_session_between_instances", "1"),
            ("unrelated", "x"),
        ]);
        let settings = SessionSettings::parse_for(&context, 64, 32).unwrap();
        assert!(settings.parallel);
        assert_eq!((settings.intra_op_threads, settings.inter_op_threads), (Some(3), Some(2)));
        assert_eq!((settings.memory_arena, settings.memory_pattern), (Some(false), Some(true)));
        let entry = ("session.use_device_allocator_for_initializers".to_owned(), "1".to_owned());
        assert_eq!(settings.session_entries, [entry]);
        let entry = ("memory.enable_memory_arena_shrinkage".to_owned(), "cpu:0".to_owned());
        assert_eq!(settings.run_entries, [entry]);
        assert_eq!((settings.optimization, settings.returns_early), (Optimization::All, None));
        assert!(settings.shares_sessions);
        for (given, returns_early) in [("1", true), ("0", false)] {
            let settings = SessionSettings::parse(&with_parameters(&[(RETURNS_EARLY, given)])).unwrap();
            assert_eq!(settings.returns_early, Some(returns_early));
        }
    }

    #[test]
    fn thread_counts_stay_within_the_workers_cores() {
        let context = with_parameters(&[]);
        let counts = |workers, library| {
            let settings = SessionSettings::parse_for(&context, workers, library).unwrap();
            (settings.intra_op_threads, settings.inter_op_threads)
        };
        assert_eq!(counts(12, 16), (Some(12), None), "inter-op threads are for parallel mode only");
        assert_eq!(counts(16, 16), (None, None));
        assert_eq!(counts(0, 16), (None, None));
        let asked = with_parameters(&[("intra_op_thread_count", "20")]);
        assert_eq!(SessionSettings::parse_for(&asked, 12, 16).unwrap().intra_op_threads, Some(20));
        let parallel = with_parameters(&[("execution_mode", "1")]);
        assert_eq!(SessionSettings::parse_for(&parallel, 12, 16).unwrap().inter_op_threads, Some(12));
    }

    #[test]
    fn what_runs_on_one_thread_waits_for_no_other() {
        let has_one_thread = |parameters: &[(&str, &str)], workers| {
            SessionSettings::parse_for(&with_parameters(parameters), workers, 16).unwrap().has_one_thread()
        };
        let one = ("intra_op_thread_count", "1");
        assert!(has_one_thread(&[one], 8) && has_one_thread(&[], 1));
        assert!(
            !has_one_thread(&[], 8) && !has_one_thread(&[], 0) && !has_one_thread(&[one, ("execution_mode", "1")], 8)
        );
    }

    #[test]
    fn few_cores_do_not_spin_unless_told_to() {
        let spinning = |context: &ModelContext, cpus| {
            let settings = SessionSettings::parse_for(context, cpus, 8).unwrap();
            let entry = settings.session_entries.iter().find(|(key, _)| key == SPINNING[0]);
            entry.map(|(_, value)| value.clone())
        };
        let context = with_parameters(&[]);
        assert_eq!(spinning(&context, 2).as_deref(), Some("0"));
        assert_eq!(spinning(&context, 4), None);
        assert_eq!(spinning(&with_parameters(&[(SPINNING[0], "1")]), 2).as_deref(), Some("1"));
    }

    #[test]
    fn wrong_values_are_refused_by_their_texts() {
        for (key, value, text) in [
            (
                "execution_mode",
                "2",
                "Invalid configuration value provided. Expected values for  execution_mode are 0 or 1 but got 2 .",
            ),
            ("execution_mode", "fast", "failed to convert 'fast' to integral number"),
            ("intra_op_thread_count", "many", "failed to convert 'many' to integral number"),
            ("enable_mem_arena", "2", "failed to convert '2' to boolean"),
            ("enable_mem_pattern", "", "failed to convert '' to boolean"),
            ("share_session_between_instances", "maybe", "failed to convert 'maybe' to boolean"),
        ] {
            let error = SessionSettings::parse_for(&with_parameters(&[(key, value)]), 4, 4).unwrap_err();
            assert_eq!((error.code, &*error.message), (Code::InvalidArg, text));
        }
    }

    #[test]
    fn backend_settings_count_the_last_value() {
        let mut context = context("m", nereid_wire::inference::ModelConfig::default());
        let settings = BackendSettings::parse(&context).unwrap();
        assert_eq!(settings.default_max_batch_size, 4);
        assert!(settings.runtime.global_threads.is_none());
        let given = [
            ("default-max-batch-size", "8"),
            ("enable-global-threadpool", "on"),
            ("intra_op_thread_count", "3"),
            ("default-max-batch-size", "16"),
        ];
        context.settings = given.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec();
        let of = |context: &ModelContext| BackendSettings::parse_for(context, 8).unwrap();
        assert_eq!(of(&context).default_max_batch_size, 16);
        // A pool gets as many threads as there are cores for workers, and spins only where there are several.
        for (worker_cpu_count, inter_op, may_spin) in [(1, 1, false), (6, 6, true), (8, 0, true), (0, 0, true)] {
            context.worker_cpu_count = worker_cpu_count;
            let expected = GlobalThreads { intra_op: 3, inter_op, may_spin };
            assert_eq!(of(&context).runtime.global_threads, Some(expected), "{worker_cpu_count}");
        }
        context.settings.push(("enable-global-threadpool".to_owned(), "maybe".to_owned()));
        assert_eq!(BackendSettings::parse(&context).unwrap_err().message, "failed to convert 'maybe' to boolean");
    }

    #[test]
    fn graph_levels_and_accelerators() {
        use nereid_wire::inference::model_optimization_policy::execution_accelerators::Accelerator;
        use nereid_wire::inference::model_optimization_policy::{ExecutionAccelerators, Graph};
        use nereid_wire::inference::{ModelConfig, ModelOptimizationPolicy};
        let with = |policy| context("m", ModelConfig { optimization: Some(policy), ..ModelConfig::default() });
        let levels = [(-1, Optimization::Basic), (0, Optimization::All), (1, Optimization::Extended)];
        for (level, expected) in levels.into_iter().chain([(2, Optimization::None), (7, Optimization::All)]) {
            let policy = ModelOptimizationPolicy { graph: Some(Graph { level }), ..Default::default() };
            assert_eq!(SessionSettings::parse(&with(policy)).unwrap().optimization, expected, "{level}");
        }
        let accelerated = |name: &str| {
            let accelerator = Accelerator { name: name.to_owned(), ..Default::default() };
            let given = ExecutionAccelerators { cpu_execution_accelerator: vec![accelerator], ..Default::default() };
            let policy = ModelOptimizationPolicy { execution_accelerators: Some(given), ..Default::default() };
            SessionSettings::parse(&with(policy)).map(|settings| settings.openvino)
        };
        assert_eq!(accelerated("openvino"), Ok(true));
        assert_eq!(accelerated("magic").unwrap_err().message, "unknown Execution Accelerator 'magic' is requested");
    }
}
