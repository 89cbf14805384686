//! Checks that a configuration fits the engine, when an instance is created (contract/frameworks.md section 2,
//! "Loading").

use std::collections::BTreeSet;

use nereid_model_config::{ModelSpec, TensorSpec};
use nereid_request::{DataType, Status, format_shape};
use nereid_wire::inference::ModelConfig;
use nereid_wire::inference::model_instance_group::Kind;

use super::described::{Described, Tensor, Violation};
use super::settings::NamedProfile;

/// Plans run on GPUs alone. `host` explains a host without one.
pub fn check_kind(model: &str, kind: Kind, host: Option<&str>) -> Result<(), Status> {
    let text = format!("unable to load model '{model}', TensorRT backend supports only GPU device");
    match (kind, host) {
        (_, Some(host)) => Err(Status::invalid(format!("{text}: {host}"))),
        (Kind::Gpu, None) => Ok(()),
        (_, None) => Err(Status::invalid(text)),
    }
}

/// Refuses what the backend does not support.
pub fn check_features(config: &ModelConfig) -> Result<(), Status> {
    let refused = |what: String| {
        let model = &config.name;
        Err(Status::unsupported(format!(
            "unable to load model '{model}', the tensorrt backend does not support {what}"
        )))
    };
    for input in &config.input {
        if input.allow_ragged_batch {
            return refused(format!("ragged input '{}'", input.name));
        }
        if input.optional {
            return refused(format!("optional input '{}'", input.name));
        }
        if input.is_shape_tensor && config.max_batch_size > 0 {
            return refused(format!("batches with the shape tensor '{}': set max_batch_size to 0", input.name));
        }
    }
    match (config.batch_input.is_empty(), config.batch_output.is_empty()) {
        (false, _) => refused("batch_input".to_owned()),
        (_, false) => refused("batch_output".to_owned()),
        (true, true) => Ok(()),
    }
}

/// A tensor of the configuration, and the position of the engine's tensor.
#[derive(Debug)]
pub struct Matched<'a> {
    pub spec: &'a TensorSpec,
    pub tensor: usize,
    pub datatype: DataType,
}

/// Which side of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Input,
    Output,
}

impl Side {
    fn name(self) -> &'static str {
        match self {
            Side::Input => "input",
            Side::Output => "output",
        }
    }
}

/// What the checks of one instance need.
pub struct Checks<'a> {
    pub spec: &'a ModelSpec,
    pub engine: &'a Described,
    pub instance: &'a str,
    pub profiles: &'a [NamedProfile],
}

impl<'a> Checks<'a> {
    /// Refuses profiles that the engine does not have.
    pub fn check_profiles(&self) -> Result<(), Status> {
        let last = self.engine.profiles.saturating_sub(1);
        match self.profiles.iter().find(|profile| profile.index > last) {
            None => Ok(()),
            Some(NamedProfile { name, index }) => Err(Status::invalid(format!(
                "Can not set the specified optimization profile {name}[{index}] for {}. Expected optimization profile \
                 index range 0-{last}",
                self.instance
            ))),
        }
    }

    /// The inputs, then those that the server adds, with the engine's tensors.
    pub fn inputs(&self) -> Result<Vec<Matched<'a>>, Status> {
        let (spec, engine) = (self.spec, self.engine);
        let count = spec.inputs.len() + spec.hidden_inputs.len();
        if count > engine.inputs.len() {
            return Err(Status::invalid(format!(
                "unable to load model '{}', configuration expects {count} inputs, model provides at most {}",
                spec.name,
                engine.inputs.len()
            )));
        }
        let tensors: Vec<&TensorSpec> = spec.inputs.iter().chain(&spec.hidden_inputs).collect();
        let matched = self.matched(&tensors, &engine.inputs, Side::Input)?;
        for (at, left_out) in engine.inputs.iter().enumerate() {
            if matched.iter().all(|matched| matched.tensor != at) {
                return Err(self.left_out(left_out, Side::Input));
            }
        }
        for one in &matched {
            self.check_bounds(one)?;
        }
        Ok(matched)
    }

    /// The outputs, then the states that are no outputs, with the engine's tensors.
    pub fn outputs(&self) -> Result<Vec<Matched<'a>>, Status> {
        let tensors: Vec<&TensorSpec> = self.spec.outputs.iter().chain(&self.spec.hidden_outputs).collect();
        let matched = self.matched(&tensors, &self.engine.outputs, Side::Output)?;
        for (at, left_out) in self.engine.outputs.iter().enumerate() {
            if matched.iter().all(|matched| matched.tensor != at) {
                return Err(self.left_out(left_out, Side::Output));
            }
        }
        Ok(matched)
    }

    /// The batch size of the configuration against that of the profiles.
    pub fn check_batch_size(&self) -> Result<(), Status> {
        let most = self.profiles.iter().map(|profile| self.engine.batch_size_max(profile.index)).max().unwrap_or(0);
        match i64::from(self.spec.max_batch_size) > most.max(0) && self.spec.is_batching() {
            false => Ok(()),
            true => Err(Status::invalid(format!(
                "unexpected configuration maximum batch size {} for '{}', model maximum is {most}",
                self.spec.max_batch_size, self.instance
            ))),
        }
    }

    fn left_out(&self, tensor: &Tensor, side: Side) -> Status {
        if side == Side::Input && (tensor.is_shape_tensor || tensor.shape.contains(&-1)) {
            let text = "failed to specify the dimensions of all input tensors or values of all input shape tensors";
            return Status::internal(text);
        }
        Status::invalid(format!("expected configuration for {} '{}' for {}", side.name(), tensor.name, self.instance))
    }

    fn matched(&self, specs: &[&'a TensorSpec], tensors: &[Tensor], side: Side) -> Result<Vec<Matched<'a>>, Status> {
        specs.iter().map(|spec| self.one(spec, tensors, side)).collect()
    }

    fn one(&self, spec: &'a TensorSpec, tensors: &[Tensor], side: Side) -> Result<Matched<'a>, Status> {
        let (model, name, side_name) = (&self.spec.name, &spec.name, side.name());
        let found = tensors.iter().enumerate().find(|(_, tensor)| tensor.name == *name);
        let Some((at, tensor)) = found else {
            let names: BTreeSet<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
            let names: Vec<&str> = names.into_iter().collect();
            return Err(Status::invalid(format!(
                "unexpected inference {side_name} '{name}', allowed {side_name}s are: {}",
                names.join(", ")
            )));
        };
        let number = u32::try_from(spec.wire_number()).ok();
        let datatype = number.and_then(DataType::from_number).filter(|datatype| is_supported(*datatype));
        let datatype = datatype.ok_or_else(|| {
            let datatype = spec.data_type.as_str_name();
            Status::internal(format!("unsupported datatype {datatype} for {side_name} '{name}' for model '{model}'"))
        })?;
        if tensor.datatype != Some(datatype) {
            let provided = tensor.datatype.map_or("TYPE_INVALID", DataType::config_name);
            return Err(Status::invalid(format!(
                "unexpected datatype {provided} for inference {side_name} '{name}', expecting {} for {}",
                spec.data_type.as_str_name(),
                self.instance
            )));
        }
        if !tensor.is_linear {
            return Err(Status::unsupported(format!(
                "unable to load model '{model}', {side_name} '{name}' of the engine has a format that is not linear, \
                 which this server does not support"
            )));
        }
        self.check_shape_tensor(spec, tensor, side)?;
        if !tensor.is_shape_tensor {
            self.check_dims(spec, tensor)?;
        }
        Ok(Matched { spec, tensor: at, datatype })
    }

    fn check_shape_tensor(&self, spec: &TensorSpec, tensor: &Tensor, side: Side) -> Result<(), Status> {
        let config = &self.spec.config;
        let is_declared = match side {
            Side::Input => config.input.iter().any(|input| input.name == spec.name && input.is_shape_tensor),
            Side::Output => config.output.iter().any(|output| output.name == spec.name && output.is_shape_tensor),
        };
        let (model, name) = (&self.spec.name, &spec.name);
        match (is_declared, tensor.is_shape_tensor) {
            (true, false) => Err(Status::invalid(format!("'{name}' is incorrectly specified as a shape tensor."))),
            (false, true) if side == Side::Input => Err(Status::invalid(format!(
                "unable to load model '{model}', input '{name}' of the engine is a shape tensor: set is_shape_tensor"
            ))),
            (_, true) if self.spec.is_batching() => Err(Status::unsupported(format!(
                "unable to load model '{model}', the tensorrt backend does not support batches with the shape tensor \
                 '{name}': set max_batch_size to 0"
            ))),
            _ => Ok(()),
        }
    }

    /// Compares the dims of the configuration with those of the engine. A dimension that the engine leaves open takes
    /// any.
    fn check_dims(&self, spec: &TensorSpec, tensor: &Tensor) -> Result<(), Status> {
        let batches = self.spec.is_batching();
        let given = spec.backend_dims();
        let full: Vec<i64> = batches.then_some(-1).into_iter().chain(given.iter().copied()).collect();
        let fits = |(at, (dim, given)): (usize, (&i64, &i64))| (batches && at == 0) || *dim == -1 || dim == given;
        if full.len() == tensor.shape.len() && tensor.shape.iter().zip(&full).enumerate().all(fits) {
            return Ok(());
        }
        let expects = format!(
            "model '{}', tensor '{}': the model expects {} dimensions (shape {}) but the model configuration specifies \
             {} dimensions",
            self.spec.name,
            spec.name,
            tensor.shape.len(),
            format_shape(&tensor.shape),
            full.len()
        );
        let full = format_shape(&full);
        Err(Status::invalid(match batches {
            true => format!(
                "{expects} (an initial batch dimension because max_batch_size > 0 followed by the explicit tensor \
                 shape, making complete shape {full})"
            ),
            false => format!("{expects} (shape {full})"),
        }))
    }

    /// The dims of an input must lie in the bounds of each profile that is used.
    fn check_bounds(&self, matched: &Matched<'_>) -> Result<(), Status> {
        let Some(tensor) = self.engine.inputs.get(matched.tensor).filter(|tensor| !tensor.is_shape_tensor) else {
            return Ok(());
        };
        let first = usize::from(self.spec.is_batching());
        let dims: Vec<i64> =
            std::iter::repeat_n(-1, first).chain(matched.spec.backend_dims().iter().copied()).collect();
        for profile in self.profiles {
            let Some(bounds) = tensor.bounds(profile.index) else { continue };
            let open = |violation: &Violation| dims.get(violation.at) == Some(&-1);
            let violation =
                (first..dims.len()).find_map(|at| bounds.violation(&dims, at..at + 1).filter(|one| !open(one)));
            if let Some(violation) = violation {
                return Err(Status::invalid(format!(
                    "model configuration specified invalid shape for input '{}' for model {}. {}",
                    matched.spec.name,
                    self.spec.name,
                    violation.details()
                )));
            }
        }
        Ok(())
    }
}

fn is_supported(datatype: DataType) -> bool {
    use DataType::{Bf16, Bool, Fp16, Fp32, Int8, Int32, Int64, Uint8};
    matches!(datatype, Fp32 | Fp16 | Bf16 | Int8 | Uint8 | Int32 | Int64 | Bool)
}
