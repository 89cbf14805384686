//! Shared by the tests: the stand-in for TensorRT, simulated devices, plans, models.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use nereid_backend::fixtures::{self, Answers, Draft};
use nereid_backend::runtime_search::OpenedLibrary;
use nereid_backend::scratch::Scratch;
use nereid_backend::{Instance, InstanceContext, Model, ModelContext};
use nereid_gpu::simulated::{Simulated, Spec};
use nereid_gpu::{Gpus, Settings};
use nereid_model_config::ModelSpec;
use nereid_request::{Request, Response, Status};
use nereid_scheduler::Payload;
use nereid_test_support::backend::compiled_as;
use nereid_wire::inference::model_instance_group::Kind;
use nereid_wire::inference::{ModelConfig, ModelInstanceGroup};

use crate::api::Library;
use crate::model::TensorRtModel;

/// The sum and the difference of two tensors of up to 8 rows.
pub const ADD_SUB: &str = "nereid-plan 1\n\
    input IN0 0 -1 4\ninput IN1 0 -1 4\noutput SUM 0 -1 4\noutput DIFF 0 -1 4\n\
    bounds 0 IN0 1 4 / 4 4 / 8 4\nbounds 0 IN1 1 4 / 4 4 / 8 4\n\
    add SUM IN0 IN1\nsub DIFF IN0 IN1\n";

/// The stand-in under a path below one folder: its version and behaviour depend on the path. `None` after a message
/// that there is no compiler.
pub fn stand_in(path: &str) -> Option<PathBuf> {
    static COPYING: Mutex<()> = Mutex::new(());
    let folder = compiled_as("nvinfer.cc", &["libnvinfer.so"])?;
    let copy = folder.join(path);
    let _one = COPYING.lock().unwrap();
    if !copy.exists() {
        std::fs::create_dir_all(copy.parent().unwrap()).unwrap();
        std::fs::copy(folder.join("libnvinfer.so"), &copy).unwrap();
    }
    Some(copy)
}

/// The stand-in of a major version.
pub fn library(major: u32) -> Option<&'static Library> {
    Some(Library::opened_at(&stand_in(&format!("full/libnvinfer.so.{major}"))?))
}

/// Two simulated devices.
pub struct Devices {
    pub simulated: Arc<Simulated>,
    pub gpus: Arc<Gpus>,
}

impl Devices {
    pub fn new(seed: u64) -> Devices {
        let simulated = Arc::new(Simulated::new(Spec { delay_us_max: 30, ..Spec::prompt(2, seed) }));
        let settings = Settings { pinned_pool_bytes: 4 << 20, ..Settings::default() };
        let gpus = Gpus::with(simulated.clone(), &settings);
        Devices { simulated, gpus }
    }
}

/// Groups of one instance on each device, with these profiles.
pub fn on_gpus(gpus: &[i32], profile: &[&str]) -> Vec<ModelInstanceGroup> {
    let profile = profile.iter().map(|name| (*name).to_owned()).collect();
    let mut group = ModelInstanceGroup { count: 1, gpus: gpus.to_vec(), profile, ..Default::default() };
    group.set_kind(Kind::Gpu);
    vec![group]
}

pub fn named(config: ModelConfig) -> ModelConfig {
    ModelConfig { name: "m".to_owned(), ..config }
}

/// A model with an instance.
pub struct Opened {
    pub config: ModelConfig,
    pub context: InstanceContext,
    pub instance: Box<dyn Instance>,
    pub answers: Arc<Answers>,
    pub devices: Devices,
    _scratch: Scratch,
}

/// Opens a model of a plan as the server does, with its first instance on device 0. `case` is unique.
pub fn open(library: &'static Library, case: &str, plan: &str, config: ModelConfig) -> Result<Opened, Status> {
    open_with(library, case, plan, config, |_| {})
}

pub fn open_with(
    library: &'static Library,
    case: &str,
    plan: &str,
    config: ModelConfig,
    change: impl FnOnce(&mut ModelContext),
) -> Result<Opened, Status> {
    let scratch = Scratch::new(&format!("tensorrt-{case}-{}", library.version()));
    scratch.write("model.plan", plan.as_bytes());
    let devices = Devices::new(7);
    let config = named(config);
    let mut context = fixtures::context("m", scratch.path(""), config);
    context.gpus = Arc::clone(&devices.gpus);
    change(&mut context);
    let context = Arc::new(context);
    let model = Arc::new(TensorRtModel::open(library, Arc::clone(&context))?);
    let mut config = model.completed_config().unwrap_or_else(|| context.config.clone());
    // As the server does when the configuration is complete.
    if config.instance_group.is_empty() {
        config.instance_group = on_gpus(&[0], &[]);
    }
    let spec = Arc::new(ModelSpec::new(config.clone()).map_err(Status::from)?);
    let mut own = InstanceContext::new("m_0_0", spec, context);
    (own.kind, own.gpu) = (Kind::Gpu, devices.gpus.get(0).cloned());
    own.group = Arc::new(config.instance_group[0].clone());
    let instance = Arc::clone(&model).create_instance(own.clone())?;
    Ok(Opened { config, context: own, instance, answers: Arc::default(), devices, _scratch: scratch })
}

impl Opened {
    pub fn draft(&self, key: u64) -> Draft {
        Draft::new(&self.answers, key)
    }

    pub fn execute(&mut self, requests: impl IntoIterator<Item = Box<Request>>) -> Vec<Result<Response, Status>> {
        let mut payload = Payload::default();
        requests.into_iter().for_each(|request| payload.push(request));
        self.instance.execute(&mut payload).unwrap();
        let mut answers = self.answers.take();
        answers.sort_by_key(|(key, _)| *key);
        assert_eq!(self.devices.simulated.violations(), Vec::<String>::new());
        answers.into_iter().map(|(_, answer)| answer).collect()
    }
}

pub fn error_of<T>(result: Result<T, Status>) -> String {
    match result {
        Ok(_) => panic!("no error"),
        Err(status) => status.message.into_owned(),
    }
}
