//! The checks and parameters of an identity model.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::{IdentityInstance, example_parameters};
use crate::{Instance, InstanceContext, Model, ModelContext};
use nereid_clock::now_ns;
use nereid_observe::metrics::{self, Counter};
use nereid_request::{DataType, OutputShape, Request, Shape, Status, Text, format_shape};
use nereid_wire::inference::ModelInstanceGroup;
use nereid_wire::inference::model_instance_group::Kind;

const COUNTER: &str = "input_byte_size_counter";
const COUNTER_HELP: &str = "Cumulative input byte size of all requests received by the model";
/// A day: more is a mistake in the configuration, and would block a worker or a load for good.
const DELAY_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// `INPUT<i>` and `OUTPUT<i>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TensorPair {
    pub input_name: String,
    pub input_index: usize,
    pub optional: bool,
    pub output_name: Text,
    pub output_index: usize,
    pub datatype: DataType,
    pub output_shape: OutputShape,
}

pub(super) struct IdentityModel {
    pairs: Arc<[TensorPair]>,
    batching: bool,
    delays: Delays,
    activities: Option<Activities>,
    input_bytes: Counter,
}

impl IdentityModel {
    /// Checks that the model can be served; returns its tensors and delays.
    pub fn check(context: &ModelContext) -> Result<(Arc<[TensorPair]>, Delays), Status> {
        let pairs = pairs(context)?;
        // With a driver the server behaves as Triton's build for GPUs, which accepts all kinds.
        let is_elsewhere = |group: &ModelInstanceGroup| matches!(group.kind(), Kind::Gpu | Kind::Model);
        if !context.gpus.is_supported() && context.config.instance_group.iter().any(is_elsewhere) {
            return Err(Status::invalid("'identity' backend only supports CPU instances"));
        }
        let delays = Delays::parse(context)?;
        Activities::parse(context)?;
        Ok((pairs, delays))
    }

    /// Opens the model; `sleep` is called for `creation_delay_sec` after all checks.
    pub fn open(context: &ModelContext, sleep: impl FnOnce(Duration)) -> Result<IdentityModel, Status> {
        let (pairs, delays) = IdentityModel::check(context)?;
        let version = context.version.to_string();
        let labels = [("model", context.name.as_str()), ("version", version.as_str())];
        let family = context.metrics.own_family(COUNTER, COUNTER_HELP, metrics::Kind::Counter);
        let input_bytes = family.and_then(|family| family.counter(&labels));
        let input_bytes = input_bytes.map_err(|error| Status::internal(error.to_string()))?;
        if !delays.creation.is_zero() {
            sleep(delays.creation);
        }
        let batching = context.config.max_batch_size > 0;
        Ok(IdentityModel { pairs, batching, delays, activities: Activities::parse(context)?, input_bytes })
    }
}

impl Model for IdentityModel {
    fn create_instance(self: Arc<Self>, context: InstanceContext) -> Result<Box<dyn Instance>, Status> {
        Ok(Box::new(IdentityInstance {
            pairs: Arc::clone(&self.pairs),
            batching: self.batching,
            delay: self.delays.of_instance(context.ordinal),
            activities: self.activities,
            input_bytes: self.input_bytes.clone(),
            parameters: example_parameters(),
            context,
        }))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Delays {
    execute_ms: u64,
    multiplier: u64,
    creation: Duration,
}

impl Delays {
    pub fn parse(context: &ModelContext) -> Result<Delays, Status> {
        let execute_ms = number(context, "execute_delay_ms")?;
        let multiplier = match execute_ms {
            None => None,
            Some(_) => number(context, "instance_wise_delay_multiplier")?,
        };
        let creation = Duration::from_secs(number(context, "creation_delay_sec")?.unwrap_or(0)).min(DELAY_MAX);
        Ok(Delays { execute_ms: execute_ms.unwrap_or(0), multiplier: multiplier.unwrap_or(0), creation })
    }

    /// The delay of an instance: the first sleeps the plain delay, the second `multiplier` times it, the third twice
    /// that, and so on.
    pub fn of_instance(&self, ordinal: usize) -> Duration {
        let factor = self.multiplier.saturating_mul(ordinal as u64).max(1);
        Duration::from_millis(self.execute_ms.saturating_mul(factor)).min(DELAY_MAX)
    }
}

/// Example activities that are reported for a traced request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Activities {
    /// Activities inside the first one, each inside the one before.
    nested: u64,
    /// A single activity follows each time this many nested ones were reported.
    single_every: u64,
}

/// How long each of the example activities takes.
const ACTIVITY: Duration = Duration::from_millis(100);
/// Each takes a tenth of a second, in which the worker sleeps.
const NESTED_MAX: u64 = 1000;

impl Activities {
    pub fn parse(context: &ModelContext) -> Result<Option<Activities>, Status> {
        if context.parameter("enable_custom_tracing") != Some("true") {
            return Ok(None);
        }
        let nested = number(context, "nested_span_count")?;
        let single_every = match nested {
            None => None,
            Some(_) => number(context, "single_activity_frequency")?,
        };
        let (nested, single_every) = (nested.unwrap_or(0), single_every.unwrap_or(1));
        if nested > NESTED_MAX {
            let text = format!("parameter 'nested_span_count' must be at most {NESTED_MAX}, got '{nested}'");
            return Err(Status::invalid(text));
        }
        if single_every == 0 {
            return Err(Status::invalid("parameter 'single_activity_frequency' must be positive, got '0'"));
        }
        Ok(Some(Activities { nested, single_every }))
    }

    /// Reports them for a request that is traced.
    pub fn report(&self, request: &Request) {
        let Some(observer) = request.observer.as_ref().filter(|observer| observer.trace().is_some()) else { return };
        let tell = |name: &str| observer.activity(name, now_ns());
        tell("CUSTOM_ACTIVITY_START");
        std::thread::sleep(ACTIVITY);
        for k in 0..self.nested {
            tell(&format!("CUSTOM_ACTIVITY{k}_START"));
            std::thread::sleep(ACTIVITY);
            if k % self.single_every == 0 {
                tell("CUSTOM_SINGLE_ACTIVITY");
            }
        }
        for k in (0..self.nested).rev() {
            tell(&format!("CUSTOM_ACTIVITY{k}_END"));
        }
        tell("CUSTOM_ACTIVITY_END");
        tell("CUSTOM_SINGLE_ACTIVITY");
    }
}

/// Reads a plain integer; anything else fails the load, where Triton's backend crashes.
fn number(context: &ModelContext, key: &str) -> Result<Option<u64>, Status> {
    let Some(text) = context.parameter(key) else { return Ok(None) };
    match text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse()) {
        Some(Ok(number)) => Ok(Some(number)),
        _ => Err(Status::invalid(format!("parameter '{key}' must be a non-negative integer, got '{text}'"))),
    }
}

/// One side of the configuration.
struct Side<'a> {
    name: &'a str,
    position: usize,
    data_type: i32,
    dims: &'a [i64],
    reshape: Option<&'a [i64]>,
}

impl Side<'_> {
    fn model_dims(&self) -> &[i64] {
        self.reshape.unwrap_or(self.dims)
    }
}

fn pairs(context: &ModelContext) -> Result<Arc<[TensorPair]>, Status> {
    let config = &context.config;
    if config.input.len() != config.output.len() {
        return Err(Status::invalid("model configuration must have equal input/output pairs"));
    }
    let mut inputs = BTreeMap::new();
    for (position, input) in config.input.iter().enumerate() {
        let index = index_of(&input.name, "INPUT").ok_or_else(|| {
            Status::invalid(format!("expected input name to follow INPUT<index> pattern, got '{}'", input.name))
        })?;
        let side = Side {
            name: &input.name,
            position,
            data_type: input.data_type,
            dims: &input.dims,
            reshape: input.reshape.as_ref().map(|reshape| reshape.shape.as_slice()),
        };
        inputs.insert(index, (side, input.optional));
    }
    let mut outputs = BTreeMap::new();
    for (position, output) in config.output.iter().enumerate() {
        let index = index_of(&output.name, "OUTPUT").ok_or_else(|| {
            Status::invalid(format!("expected output name to follow OUTPUT<index> pattern, got '{}'", output.name))
        })?;
        let side = Side {
            name: &output.name,
            position,
            data_type: output.data_type,
            dims: &output.dims,
            reshape: output.reshape.as_ref().map(|reshape| reshape.shape.as_slice()),
        };
        outputs.insert(index, side);
    }
    // Two spellings of one index (`INPUT1`, `INPUT01`) would leave a tensor without its other half.
    if inputs.len() != config.input.len() || !inputs.keys().eq(outputs.keys()) {
        return Err(Status::invalid("expected input and output indices to match"));
    }
    let pairs = inputs.into_values().zip(outputs.into_values());
    let pairs = pairs.map(|((input, optional), output)| pair(input, optional, output));
    let mut pairs = pairs.collect::<Result<Vec<_>, _>>()?;
    // Every output is in one pair, so that each stands at the number of its output.
    pairs.sort_unstable_by_key(|pair| pair.output_index);
    Ok(pairs.into())
}

fn pair(input: Side<'_>, optional: bool, output: Side<'_>) -> Result<TensorPair, Status> {
    if input.data_type != output.data_type {
        return Err(Status::invalid(format!(
            "expected input and output datatype to match, got {} and {}",
            type_name(input.data_type),
            type_name(output.data_type)
        )));
    }
    if input.model_dims() != output.model_dims() {
        return Err(Status::invalid(format!(
            "expected input and output shape to match, got {} and {}",
            format_shape(input.model_dims()),
            format_shape(output.model_dims())
        )));
    }
    let datatype = u32::try_from(input.data_type).ok().and_then(DataType::from_number);
    let datatype =
        datatype.ok_or_else(|| Status::invalid(format!("model input '{}' must specify 'data_type'", input.name)))?;
    Ok(TensorPair {
        input_name: input.name.to_owned(),
        input_index: input.position,
        optional,
        output_name: Text::from(output.name),
        output_index: output.position,
        datatype,
        output_shape: OutputShape {
            dims: Shape::from_slice(output.dims),
            reshape: output.reshape.map(Shape::from_slice),
        },
    })
}

fn type_name(number: i32) -> &'static str {
    u32::try_from(number).ok().and_then(DataType::from_number).map_or("TYPE_INVALID", DataType::config_name)
}

/// The number behind `prefix`.
fn index_of(name: &str, prefix: &str) -> Option<u64> {
    let digits = name.strip_prefix(prefix)?;
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
}
