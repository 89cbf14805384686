//! Opening one version of a model: its file, its configuration, its compilation, its instances.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use nereid_backend::model_file::model_file;
use nereid_backend::{Instance, InstanceContext, Model, ModelContext};
use nereid_model_config::ModelSpec;
use nereid_request::{Status, format_shape};
use nereid_wire::inference::ModelConfig;

use super::checks::{self, Comparison, Matched};
use super::completion::{Described, Filled, complete};
use super::instance::OpenVinoInstance;
use super::layout;
use super::plan::{Plan, Rows};
use super::runtime::{Compiled, Conversion, Core, Dimension, Network, OpenVinoError, Port, Runtime};
use super::settings::{ModelSettings, default_max_batch_size};

const DEFAULT_FILE: &str = "model.xml";
const CPU: &str = "CPU";
const SETTING_BATCH: &str = "setting max batch size";

/// A model version.
pub struct OpenVinoModel {
    context: Arc<ModelContext>,
    settings: ModelSettings,
    path: PathBuf,
    completed: Option<ModelConfig>,
    filled: Filled,
    loading: Mutex<Loading>,
}

/// The first instance compiles the model; the others share the result.
struct Loading {
    core: Core,
    /// What auto-completion read.
    network: Option<Network>,
    prepared: Option<Arc<Prepared>>,
}

/// A compiled model and its plan, shared by all instances.
pub struct Prepared {
    pub compiled: Compiled,
    pub plan: Plan,
    /// The outputs of the compiled model.
    pub outputs: Vec<Port>,
    /// The CPU's plug-in alone runs it.
    pub is_for_cpu: bool,
}

impl OpenVinoModel {
    pub fn open(runtime: &'static Runtime, context: Arc<ModelContext>) -> Result<OpenVinoModel, Status> {
        let settings = ModelSettings::parse(&context)?;
        let default_max_batch_size = default_max_batch_size(&context)?;
        let path = model_path(&context)?;
        let core = Core::new(runtime)?;
        configure(&core, &settings, &context.name)?;
        let loading = Mutex::new(Loading { core, network: None, prepared: None });
        let (completed, filled) = (None, Filled::default());
        let mut model = OpenVinoModel { context, settings, path, completed, filled, loading };
        if model.context.auto_complete {
            model.complete(default_max_batch_size)?;
        }
        Ok(model)
    }

    /// The rows of one run, once an instance exists.
    #[cfg(test)]
    pub fn plan_rows(&self) -> Rows {
        self.loading.lock().unwrap().prepared.as_ref().unwrap().plan.rows
    }

    fn complete(&mut self, default_max_batch_size: i32) -> Result<(), Status> {
        let loading = self.loading.get_mut().unwrap_or_else(PoisonError::into_inner);
        let network = loading.core.read(&self.path)?;
        let described =
            Described { inputs: network.inputs()?, outputs: network.outputs()?, batches: has_batch(&self.path) };
        let mut config = self.context.config.clone();
        self.filled = complete(&mut config, &described, default_max_batch_size)?;
        self.completed = Some(config);
        loading.network = Some(network);
        Ok(())
    }

    /// Checks the final configuration against the model and compiles it, once.
    fn prepared(&self, spec: &ModelSpec) -> Result<Arc<Prepared>, Status> {
        let mut loading = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(prepared) = &loading.prepared {
            return Ok(Arc::clone(prepared));
        }
        let network = match loading.network.take() {
            Some(network) => network,
            None => loading.core.read(&self.path)?,
        };
        let prepared = Arc::new(self.prepare(&loading.core, network, spec)?);
        loading.prepared = Some(Arc::clone(&prepared));
        Ok(prepared)
    }

    fn prepare(&self, core: &Core, network: Network, spec: &ModelSpec) -> Result<Prepared, Status> {
        checks::check_features(&spec.config)?;
        let ports = network.inputs()?;
        let inputs = checks::match_inputs(spec, &ports)?;
        for matched in &inputs {
            self.check_input(spec, matched, &ports)?;
        }
        let output_ports = network.outputs()?;
        let outputs = checks::match_outputs(spec, &output_ports)?;
        let network = network.convert_inputs(&conversions(&inputs, &ports))?;
        let network = network.convert_outputs(&conversions(&outputs, &output_ports))?;
        let shapes = |first: Option<Dimension>| self.input_shapes(spec, &inputs, &ports, first);
        let (rows, dims, compiled) = self.compile(core, network, spec, &outputs, shapes)?;
        let output_ports = compiled.outputs()?;
        let plan = Plan::new(spec, rows, &inputs, &dims, &outputs, &output_ports);
        Ok(Prepared { compiled, plan, outputs: output_ports, is_for_cpu: self.settings.is_for_cpu() })
    }

    fn check_input(&self, spec: &ModelSpec, matched: &Matched<'_>, ports: &[Port]) -> Result<(), Status> {
        // Dims that the model itself gave need no comparison, and open ones would not pass it.
        let is_completed = self.filled.inputs && spec.inputs.iter().any(|input| input.name == matched.spec.name);
        let Some(port) = ports.get(matched.port).filter(|_| !self.settings.reshapes_inputs) else { return Ok(()) };
        let dims = checks::known_dims(&spec.name, port)?;
        let comparison = if spec.is_batching() { Comparison::BatchedInput } else { Comparison::Whole };
        if is_completed { Ok(()) } else { checks::check_dims(&spec.name, matched.spec, dims, comparison) }
    }

    /// The shapes for the model's inputs, in its order; `first`: with this batch dimension.
    fn input_shapes(
        &self,
        spec: &ModelSpec,
        inputs: &[Matched<'_>],
        ports: &[Port],
        first: Option<Dimension>,
    ) -> Result<Vec<Vec<Dimension>>, Status> {
        let shape = |(index, port): (usize, &Port)| {
            let configured = inputs.iter().find(|matched| matched.port == index);
            let items = match configured.filter(|_| self.settings.reshapes_inputs) {
                Some(matched) => checks::reshaped(matched.spec)?,
                None => checks::known_dims(&spec.name, port)?
                    .get(usize::from(first.is_some())..)
                    .unwrap_or_default()
                    .to_vec(),
            };
            Ok(first.into_iter().chain(items).collect())
        };
        ports.iter().enumerate().map(shape).collect()
    }

    /// Compiles for batches of every size up to the maximum; if the model or the library does not allow that, for
    /// batches of exactly the maximum, to which smaller ones are padded.
    fn compile(
        &self,
        core: &Core,
        mut network: Network,
        spec: &ModelSpec,
        outputs: &[Matched<'_>],
        shapes: impl Fn(Option<Dimension>) -> Result<Vec<Vec<Dimension>>, Status>,
    ) -> Result<(Rows, Vec<Vec<Dimension>>, Compiled), Status> {
        let rows = i64::from(spec.max_batch_size);
        if rows == 0 {
            let dims = shapes(None)?;
            if self.settings.reshapes_inputs {
                let names: Vec<&str> = spec.inputs.iter().map(|input| input.name.as_str()).collect();
                network.reshape(&dims, &format!("setting shape for {}", names.join(", ")))?;
            }
            self.check_outputs(spec, outputs, &network.outputs()?)?;
            return Ok((Rows::Unbatched, dims, self.compile_for_device(core, &network, false)?));
        }
        if rows > 1 {
            let dims = shapes(Some(Dimension::OPEN))?;
            match self.compile_open(core, &mut network, spec, outputs, &dims)? {
                Ok(compiled) => return Ok((Rows::Any, dims, compiled)),
                Err(why) => {
                    tracing::info!("model '{}' runs batches of {rows} rows, padded if needed: {why}", spec.name)
                }
            }
        }
        let dims = shapes(Some(Dimension::of(rows)))?;
        network.reshape(&dims, SETTING_BATCH)?;
        let ports = network.outputs()?;
        check_rows(spec, outputs, &ports, rows)?;
        self.check_outputs(spec, outputs, &ports)?;
        let compiled = self.compile_for_device(core, &network, true)?;
        Ok((Rows::Exactly(spec.max_batch_size.into()), dims, compiled))
    }

    /// The inner error is the reason why the model cannot have an open batch dimension.
    fn compile_open(
        &self,
        core: &Core,
        network: &mut Network,
        spec: &ModelSpec,
        outputs: &[Matched<'_>],
        dims: &[Vec<Dimension>],
    ) -> Result<Result<Compiled, String>, Status> {
        if let Err(error) = network.reshape(dims, SETTING_BATCH) {
            return Ok(Err(error.to_string()));
        }
        let ports = network.outputs()?;
        let is_open =
            |port: &Port| port.dims.as_ref().and_then(|dims| dims.first()).is_some_and(|dim| dim.fixed().is_none());
        let closed = outputs.iter().filter_map(|matched| ports.get(matched.port)).find(|port| !is_open(port));
        if let Some(port) = closed {
            let shape = port.shape().unwrap_or_default();
            return Ok(Err(format!("its output '{}' has the shape {}", port.name, format_shape(&shape))));
        }
        self.check_outputs(spec, outputs, &ports)?;
        Ok(self.compile_for_device(core, network, true).map_err(|error| error.to_string()))
    }

    fn check_outputs(&self, spec: &ModelSpec, outputs: &[Matched<'_>], ports: &[Port]) -> Result<(), Status> {
        for matched in outputs {
            let Some(port) = ports.get(matched.port) else { continue };
            let mut dims = checks::known_dims(&spec.name, port)?.to_vec();
            let comparison = if spec.is_batching() { Comparison::BatchedOutput } else { Comparison::Whole };
            if let Some(first) = dims.first_mut().filter(|_| spec.is_batching()) {
                *first = Dimension::of(spec.max_batch_size.into());
            }
            let is_completed =
                self.filled.outputs && spec.outputs.iter().any(|output| output.name == matched.spec.name);
            if !is_completed {
                checks::check_dims(&spec.name, matched.spec, &dims, comparison)?;
            }
        }
        Ok(())
    }

    fn compile_for_device(&self, core: &Core, network: &Network, batches: bool) -> Result<Compiled, OpenVinoError> {
        let settings = &self.settings;
        if !settings.is_for_cpu() {
            return core.compile(network, &settings.device, &settings.of_other_device(batches));
        }
        let compiled = core.compile(network, CPU, &[])?;
        let is_single = compiled.property("INFERENCE_NUM_THREADS").as_deref() == Some("1");
        if !is_single || compiled.property("NUM_STREAMS").as_deref() == Some("0") {
            return Ok(compiled);
        }
        // The host has one CPU. The library's only thread loses errors (contract/frameworks.md section 11, trap 2);
        // without streams it computes on the caller's thread, which does not.
        core.set_properties(CPU, &[("NUM_STREAMS", "0".to_owned())])?;
        core.compile(network, CPU, &[])
    }
}

impl Model for OpenVinoModel {
    fn completed_config(&self) -> Option<ModelConfig> {
        self.completed.clone()
    }

    fn create_instance(self: Arc<Self>, context: InstanceContext) -> Result<Box<dyn Instance>, Status> {
        checks::check_kind(&self.context.name, context.kind)?;
        let prepared = self.prepared(&context.spec)?;
        Ok(Box::new(OpenVinoInstance::new(context, prepared)?))
    }
}

/// Applies the parameters to the model's own core.
fn configure(core: &Core, settings: &ModelSettings, model: &str) -> Result<(), Status> {
    if let Some(path) = &settings.extension {
        core.add_extension(path)?;
        tracing::info!("model '{model}': the OpenVINO extension {path} is loaded");
    }
    if settings.uses_cpu() {
        core.set_properties(CPU, &settings.of_cpu())?;
    }
    if let Some(threads) = settings.compilation_threads {
        let device = &settings.device;
        let supported = core.property(device, "SUPPORTED_PROPERTIES").unwrap_or_default();
        match supported.contains("COMPILATION_NUM_THREADS") {
            true => core.set_properties(device, &[("COMPILATION_NUM_THREADS", threads.to_string())])?,
            false => tracing::warn!(
                "model '{model}': COMPILATION_NUM_THREADS is ignored: OpenVINO has no such property for {device}"
            ),
        }
    }
    Ok(())
}

/// The tensors whose type in the configuration is not that of the model.
fn conversions<'a>(matched: &[Matched<'a>], ports: &[Port]) -> Vec<Conversion<'a>> {
    let differs =
        |matched: &&Matched<'_>| ports.get(matched.port).is_some_and(|port| port.datatype != Some(matched.datatype));
    let conversion = |matched: &Matched<'a>| Conversion {
        index: matched.port,
        name: &matched.spec.name,
        datatype: matched.datatype,
    };
    matched.iter().filter(differs).map(conversion).collect()
}

/// Refuses a model that makes other numbers of rows than it is given.
fn check_rows(spec: &ModelSpec, outputs: &[Matched<'_>], ports: &[Port], rows: i64) -> Result<(), Status> {
    for port in outputs.iter().filter_map(|matched| ports.get(matched.port)) {
        let first = port.dims.as_ref().and_then(|dims| dims.first());
        if !first.is_some_and(|first| first.admits(rows)) {
            return Err(Status::invalid(format!(
                "model '{}' cannot be batched: its output '{}' has the shape {} for a batch of {rows}; set \
                 max_batch_size to 0",
                spec.name,
                port.name,
                format_shape(&port.shape().unwrap_or_default())
            )));
        }
    }
    Ok(())
}

fn has_batch(path: &Path) -> bool {
    if path.extension().is_none_or(|extension| extension != "xml") {
        return false;
    }
    layout::batches(path).unwrap_or_else(|error| {
        tracing::warn!("the layouts of {} cannot be read: {error}", path.display());
        false
    })
}

/// `<version>/<default_model_filename>`, or `model.xml`.
pub fn model_path(context: &ModelContext) -> Result<PathBuf, Status> {
    let path = model_file(context, None, DEFAULT_FILE)?;
    match path.exists() {
        true => Ok(path),
        false => Err(Status::unavailable(format!("unable to find '{}' for model '{}'", path.display(), context.name))),
    }
}

#[cfg(test)]
mod tests;
