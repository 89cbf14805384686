//! The resolved configuration of a model, in the form that the rest of the server uses.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::shape_match::full_dims;
use super::{Error, VersionPolicy, datatype, states};
use nereid_wire::inference::model_config::SchedulingChoice;
use nereid_wire::inference::model_instance_group::Kind;
use nereid_wire::inference::model_sequence_batching::control::Kind as ControlKind;
use nereid_wire::inference::{DataType, ModelConfig, ModelTensorReshape};

/// Most instances of one model: each is a thread, and often a session of a runtime.
pub const MAX_INSTANCES: usize = 1024;

/// The most inputs, or outputs, that any model of this process has had: of more of them in one request, the number is
/// all that counts. It never falls, so that a reader may use an old value.
static TENSORS_MAX: AtomicUsize = AtomicUsize::new(0);

/// See [`TENSORS_MAX`].
pub fn tensors_max() -> usize {
    TENSORS_MAX.load(Ordering::Relaxed)
}

/// A model's configuration after every default, completion and check.
#[derive(Debug, Clone)]
pub struct ModelSpec {
    pub name: String,
    /// Empty for an ensemble.
    pub backend: String,
    pub platform: String,
    /// Library that a plug-in backend is loaded from; empty for the usual one.
    pub runtime: String,
    /// 0: the model has no batch dimension.
    pub max_batch_size: u32,
    /// In the order of the configuration.
    pub inputs: Vec<TensorSpec>,
    /// In the order of the configuration.
    pub outputs: Vec<TensorSpec>,
    /// One for each instance to be created.
    pub instances: Vec<Instance>,
    pub version_policy: VersionPolicy,
    /// Name of the model's file or directory inside a version's directory; may be empty.
    pub default_model_filename: String,
    pub parameters: BTreeMap<String, String>,
    /// Any number of responses to a request.
    pub decoupled: bool,
    /// The normalised message, for the API.
    pub config: ModelConfig,
    /// Inputs that the server itself adds to requests: sequence controls, then states. In [`InputTensor::index`] they
    /// follow the inputs.
    ///
    /// [`InputTensor::index`]: nereid_request::InputTensor::index
    pub hidden_inputs: Vec<TensorSpec>,
    /// State outputs that are no outputs of the model as well.
    pub hidden_outputs: Vec<TensorSpec>,
    /// The input that carries a sequence's id, and its type by the protocol's name.
    pub correlation_id_control: Option<(String, &'static str)>,
    input_names: NameIndex,
    output_names: NameIndex,
    required_inputs: usize,
}

/// One input or output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    pub name: String,
    pub data_type: DataType,
    /// The protocol's name of the type: `FP32`, `BYTES`.
    pub datatype: &'static str,
    /// The dimensions that clients send and see, without the batch dimension; -1 is any size.
    pub dims: Vec<i64>,
    /// The dimensions for the backend, if they differ; empty for a scalar of each batch item.
    pub reshape: Option<Vec<i64>>,
    /// A request may leave it out. Never true of an output.
    pub optional: bool,
    /// File with class labels, relative to the model's directory; empty for none. Always empty for an input.
    pub label_filename: String,
}

/// One instance of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instance {
    /// `<group>_<i>`; of a group on several GPUs each has one of that name.
    pub name: String,
    pub kind: InstanceKind,
    /// Position of its group in the configuration.
    pub group: usize,
}

/// The kind of device that an instance runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InstanceKind {
    Cpu,
    /// On the device of this number.
    Gpu(i32),
    /// The model itself chooses.
    Model,
}

/// The inputs that a sequence batcher adds to requests.
fn hidden_inputs(config: &ModelConfig) -> Vec<TensorSpec> {
    let Some(SchedulingChoice::SequenceBatching(sequence)) = &config.scheduling_choice else { return Vec::new() };
    let controls = sequence.control_input.iter().map(|input| {
        let control = input.control.first();
        let data_type = match control {
            Some(control) if !control.int32_false_true.is_empty() => DataType::TypeInt32,
            Some(control) if !control.fp32_false_true.is_empty() => DataType::TypeFp32,
            Some(control) if !control.bool_false_true.is_empty() => DataType::TypeBool,
            Some(control) => control.data_type(),
            None => DataType::TypeInvalid,
        };
        tensor(&input.name, data_type, &[1], None)
    });
    let states = states(sequence);
    let states = states.into_iter().map(|state| tensor(&state.input_name, state.data_type(), &state.dims, None));
    controls.chain(states).collect()
}

fn correlation_id_control(config: &ModelConfig) -> Option<(String, &'static str)> {
    let Some(SchedulingChoice::SequenceBatching(sequence)) = &config.scheduling_choice else { return None };
    sequence.control_input.iter().find_map(|input| {
        let control = input.control.first().filter(|control| control.kind() == ControlKind::ControlSequenceCorrid)?;
        Some((input.name.clone(), datatype::protocol_name(control.data_type())))
    })
}

fn hidden_outputs(config: &ModelConfig) -> Vec<TensorSpec> {
    let Some(SchedulingChoice::SequenceBatching(sequence)) = &config.scheduling_choice else { return Vec::new() };
    let is_hidden = |name: &str| config.output.iter().all(|output| output.name != name);
    let states = states(sequence).into_iter().filter(|state| is_hidden(&state.output_name));
    states.map(|state| tensor(&state.output_name, state.data_type(), &state.dims, None)).collect()
}

impl ModelSpec {
    /// The priority level of a request with priority `wanted` (contract/schedulers.md section 1).
    pub fn priority(&self, wanted: u64) -> u64 {
        match &self.config.scheduling_choice {
            Some(SchedulingChoice::DynamicBatching(batching)) => match wanted {
                wanted if wanted == 0 || wanted > batching.priority_levels => batching.default_priority_level,
                wanted => wanted,
            },
            // The steps decide.
            Some(SchedulingChoice::EnsembleScheduling(_)) => wanted,
            _ => 0,
        }
    }

    /// Resolves a configuration that is normalised, completed and checked ([`super::validate::at_load`]).
    pub fn new(config: ModelConfig) -> Result<ModelSpec, Error> {
        let name = config.name.clone();
        let inputs: Vec<TensorSpec> = config
            .input
            .iter()
            .map(|input| TensorSpec {
                optional: input.optional,
                ..tensor(&input.name, input.data_type(), &input.dims, input.reshape.as_ref())
            })
            .collect();
        let outputs: Vec<TensorSpec> = config
            .output
            .iter()
            .map(|output| TensorSpec {
                label_filename: output.label_filename.clone(),
                ..tensor(&output.name, output.data_type(), &output.dims, output.reshape.as_ref())
            })
            .collect();
        TENSORS_MAX.fetch_max(inputs.len().max(outputs.len()), Ordering::Relaxed);
        let max_batch_size = u32::try_from(config.max_batch_size)
            .map_err(|_| Error::invalid(format!("'max_batch_size' must be non-negative value for {name}")))?;
        Ok(ModelSpec {
            backend: config.backend.clone(),
            platform: config.platform.clone(),
            runtime: config.runtime.clone(),
            max_batch_size,
            input_names: NameIndex::new(&inputs).map_err(|input| {
                // No request could ever satisfy it.
                Error::invalid(format!("model input '{input}' is specified more than once for {name}"))
            })?,
            output_names: NameIndex::new(&outputs).map_err(|output| {
                Error::invalid(format!("model output '{output}' is specified more than once for {name}"))
            })?,
            required_inputs: inputs.iter().filter(|input| !input.optional).count(),
            hidden_inputs: hidden_inputs(&config),
            hidden_outputs: hidden_outputs(&config),
            correlation_id_control: correlation_id_control(&config),
            inputs,
            outputs,
            instances: resolve_instances(&config)?,
            version_policy: VersionPolicy::from_config(config.version_policy.as_ref()),
            default_model_filename: config.default_model_filename.clone(),
            parameters: config
                .parameters
                .iter()
                .map(|(key, parameter)| (key.clone(), parameter.string_value.clone()))
                .collect(),
            decoupled: config.model_transaction_policy.is_some_and(|policy| policy.decoupled),
            name,
            config,
        })
    }

    /// Does the first dimension of every tensor count requests?
    pub fn is_batching(&self) -> bool {
        self.max_batch_size > 0
    }

    /// Position of an input by its name.
    pub fn input_index(&self, name: &str) -> Option<usize> {
        self.input_names.find(name)
    }

    /// Position of an output by its name.
    pub fn output_index(&self, name: &str) -> Option<usize> {
        self.output_names.find(name)
    }

    /// How many inputs every request must give.
    pub fn required_inputs(&self) -> usize {
        self.required_inputs
    }

    /// The tensor's shape as the metadata show it: -1 in front where the model batches.
    pub fn full_shape(&self, tensor: &TensorSpec) -> Vec<i64> {
        full_dims(&tensor.dims, self.is_batching())
    }

    /// What the metadata call the platform: the backend where the configuration names none
    /// (contract/http.md section 3).
    pub fn metadata_platform(&self) -> &str {
        if self.platform.is_empty() { &self.backend } else { &self.platform }
    }
}

impl TensorSpec {
    /// The shape that the backend works with, without the batch dimension.
    pub fn backend_dims(&self) -> &[i64] {
        self.reshape.as_deref().unwrap_or(&self.dims)
    }

    /// The number of the data type in protobuf.
    pub fn wire_number(&self) -> i32 {
        self.data_type.into()
    }
}

fn tensor(name: &str, data_type: DataType, dims: &[i64], reshape: Option<&ModelTensorReshape>) -> TensorSpec {
    TensorSpec {
        name: name.to_owned(),
        data_type,
        datatype: datatype::protocol_name(data_type),
        dims: dims.to_vec(),
        reshape: reshape.map(|reshape| reshape.shape.clone()),
        optional: false,
        label_filename: String::new(),
    }
}

fn resolve_instances(config: &ModelConfig) -> Result<Vec<Instance>, Error> {
    let mut instances = Vec::new();
    if matches!(config.scheduling_choice, Some(SchedulingChoice::EnsembleScheduling(_))) {
        return Ok(instances);
    }
    for (index, group) in config.instance_group.iter().enumerate() {
        let kinds: Vec<InstanceKind> = match group.kind() {
            Kind::Cpu => vec![InstanceKind::Cpu],
            Kind::Model => vec![InstanceKind::Model],
            Kind::Gpu if !group.gpus.is_empty() => group.gpus.iter().copied().map(InstanceKind::Gpu).collect(),
            Kind::Gpu | Kind::Auto => {
                return Err(Error::internal(format!(
                    "instance group {} of model {} has kind {} after normalisation",
                    group.name,
                    config.name,
                    group.kind().as_str_name()
                )));
            }
        };
        let count = usize::try_from(group.count).unwrap_or_default();
        if count.saturating_mul(kinds.len()) > MAX_INSTANCES.saturating_sub(instances.len()) {
            return Err(Error::invalid(format!(
                "instance group {} of model {} has count {count}, but a model can have at most {MAX_INSTANCES} \
                 instances",
                group.name, config.name
            )));
        }
        // All devices of one number share the name.
        instances.extend((0..count).flat_map(|i| {
            let name = format!("{}_{i}", group.name);
            kinds.iter().map(move |&kind| Instance { name: name.clone(), kind, group: index })
        }));
    }
    Ok(instances)
}

/// From a name to a position.
#[derive(Debug, Clone, Default)]
struct NameIndex(HashMap<Box<str>, usize, BuildHasherDefault<NameHasher>>);

impl NameIndex {
    /// Fails with a name that occurs twice.
    fn new(tensors: &[TensorSpec]) -> Result<NameIndex, String> {
        let mut index = NameIndex::default();
        for (position, tensor) in tensors.iter().enumerate() {
            if index.0.insert(tensor.name.as_str().into(), position).is_some() {
                return Err(tensor.name.clone());
            }
        }
        Ok(index)
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.0.get(name).copied()
    }
}

/// FNV-1a. The table's names are the operator's, and clients cannot add any, so that no client can make names collide.
/// A request looks several of them up, and the standard hasher costs more than the rest of the look-up.
#[derive(Debug, Clone)]
struct NameHasher(u64);

impl Default for NameHasher {
    fn default() -> NameHasher {
        NameHasher(0xcbf2_9ce4_8422_2325)
    }
}

impl Hasher for NameHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nereid_wire::inference::{ModelInput, ModelInstanceGroup, ModelOutput, ModelParameter, ModelTransactionPolicy};

    fn group(name: &str, kind: Kind, count: i32) -> ModelInstanceGroup {
        ModelInstanceGroup { name: name.into(), kind: kind.into(), count, ..Default::default() }
    }

    fn input(name: &str, optional: bool) -> ModelInput {
        let mut input = ModelInput { name: name.into(), dims: vec![16], optional, ..Default::default() };
        input.set_data_type(DataType::TypeFp32);
        input
    }

    #[test]
    fn a_configuration_is_resolved() {
        let mut output = ModelOutput {
            name: "OUT".into(),
            dims: vec![-1, 2],
            reshape: Some(ModelTensorReshape { shape: vec![2, -1] }),
            label_filename: "labels.txt".into(),
            ..Default::default()
        };
        output.set_data_type(DataType::TypeString);
        let config = ModelConfig {
            name: "m".into(),
            backend: "identity".into(),
            max_batch_size: 8,
            input: vec![input("A", false), input("B", true), input("C", false)],
            output: vec![output],
            instance_group: vec![group("m_0", Kind::Cpu, 2), group("named", Kind::Model, 1)],
            parameters: [("k".into(), ModelParameter { string_value: "v".into() })].into(),
            model_transaction_policy: Some(ModelTransactionPolicy { decoupled: true }),
            ..Default::default()
        };
        let spec = ModelSpec::new(config.clone()).unwrap();
        assert_eq!(spec.config, config);
        assert_eq!((spec.max_batch_size, spec.is_batching(), spec.required_inputs()), (8, true, 2));
        assert_eq!(
            ["A", "B", "C", "D", ""].map(|name| spec.input_index(name)),
            [Some(0), Some(1), Some(2), None, None]
        );
        assert_eq!((spec.output_index("OUT"), spec.output_index("A")), (Some(0), None));
        assert_eq!(spec.full_shape(&spec.inputs[0]), [-1, 16]);
        assert_eq!(
            (spec.inputs[1].optional, spec.inputs[0].datatype, spec.inputs[0].wire_number()),
            (true, "FP32", 11)
        );
        let output = &spec.outputs[0];
        assert_eq!((output.datatype, output.label_filename.as_str()), ("BYTES", "labels.txt"));
        assert_eq!((output.dims.as_slice(), output.backend_dims()), (&[-1, 2][..], &[2, -1][..]));
        assert_eq!(spec.inputs[0].backend_dims(), [16]);
        let instances: Vec<_> = spec.instances.iter().map(|i| (i.name.as_str(), i.kind, i.group)).collect();
        assert_eq!(
            instances,
            [("m_0_0", InstanceKind::Cpu, 0), ("m_0_1", InstanceKind::Cpu, 0), ("named_0", InstanceKind::Model, 1)]
        );
        assert_eq!(spec.parameters["k"], "v");
        assert!(spec.decoupled);
        assert_eq!(spec.metadata_platform(), "identity");
    }

    /// contract/model_config.md section 5: one for each listed GPU and number, which share the name.
    #[test]
    fn a_group_on_gpus_has_its_count_on_each() {
        let gpus = ModelInstanceGroup { gpus: vec![2, 0], ..group("g", Kind::Gpu, 2) };
        let groups = vec![group("c", Kind::Cpu, 1), gpus];
        let config = ModelConfig { name: "m".into(), instance_group: groups, ..Default::default() };
        let spec = ModelSpec::new(config).unwrap();
        let instances: Vec<_> = spec.instances.iter().map(|i| (i.name.as_str(), i.kind, i.group)).collect();
        let on = InstanceKind::Gpu;
        let expected = [("c_0", InstanceKind::Cpu, 0), ("g_0", on(2), 1), ("g_0", on(0), 1), ("g_1", on(2), 1)];
        assert_eq!(instances[..4], expected);
        assert_eq!(instances[4..], [("g_1", on(0), 1)]);
        let many = ModelInstanceGroup { gpus: vec![0, 1], ..group("g", Kind::Gpu, 513) };
        let config = ModelConfig { name: "m".into(), instance_group: vec![many], ..Default::default() };
        let text = "instance group g of model m has count 513, but a model can have at most 1024 instances";
        assert_eq!(ModelSpec::new(config).unwrap_err().to_string(), text);
        let nowhere = ModelConfig { instance_group: vec![group("g", Kind::Gpu, 1)], ..Default::default() };
        assert!(matches!(ModelSpec::new(nowhere), Err(Error::Internal { .. })));
    }

    #[test]
    fn a_platform_outranks_the_backend_in_metadata() {
        let config = ModelConfig { backend: "b".into(), platform: "p".into(), ..Default::default() };
        assert_eq!(ModelSpec::new(config).unwrap().metadata_platform(), "p");
    }

    #[test]
    fn an_empty_reshape_is_not_an_absent_one() {
        let mut scalar = input("A", false);
        scalar.reshape = Some(ModelTensorReshape::default());
        let spec = ModelSpec::new(ModelConfig { input: vec![scalar], ..Default::default() }).unwrap();
        assert!(spec.inputs[0].backend_dims().is_empty());
    }

    #[test]
    fn what_cannot_be_resolved_is_refused() {
        let message = |config| ModelSpec::new(config).unwrap_err().to_string();
        let named = ModelConfig { name: "m".into(), ..Default::default() };
        let twice = ModelConfig { input: vec![input("A", false), input("A", true)], ..named.clone() };
        assert_eq!(message(twice), "model input 'A' is specified more than once for m");
        let output = ModelOutput { name: "O".into(), ..Default::default() };
        let twice = ModelConfig { output: vec![output.clone(), output], ..named.clone() };
        assert_eq!(message(twice), "model output 'O' is specified more than once for m");
        let negative = ModelConfig { max_batch_size: -1, ..named.clone() };
        assert_eq!(message(negative), "'max_batch_size' must be non-negative value for m");
        for groups in [
            vec![group("g", Kind::Cpu, 1025)],
            vec![group("f", Kind::Cpu, 1000), group("g", Kind::Cpu, 25)],
            vec![group("g", Kind::Cpu, i32::MAX)],
        ] {
            let count = groups.last().unwrap().count;
            let config = ModelConfig { instance_group: groups, ..named.clone() };
            assert_eq!(
                message(config),
                format!("instance group g of model m has count {count}, but a model can have at most 1024 instances")
            );
        }
        let most = ModelConfig { instance_group: vec![group("g", Kind::Cpu, 1024)], ..named.clone() };
        assert_eq!(ModelSpec::new(most).unwrap().instances.len(), 1024);
        let unresolved = ModelConfig { instance_group: vec![group("g", Kind::Auto, 1)], ..named };
        assert!(message(unresolved).contains("KIND_AUTO"));
    }
}
