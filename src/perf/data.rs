//! What requests hold: zeros, seeded random values, or the contents of files, in the shapes that the model and its user
//! agree on; or what a recording has.
//!
//! Made once, before the first request, and bounded: a file or a model that would fill the memory is refused. Names of
//! inputs come from the server; what they could do to a path is looked at before anything is opened.

mod directory;
mod encode;
mod json;
mod random;
mod recording;
mod shapes;

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::{Expected, Input, ModelInfo, Parameter, Template, TensorFacts};
use encode::Elements;
use nereid_memory::Slice;
use nereid_recording::ReadError;
use nereid_request::DataType;
use random::Random;

pub use recording::{Recorded, RecordingPlan, recorded};

/// All templates of a run together.
pub const DATA_BYTES_MAX: usize = 4 << 30;
/// Requests of all streams together.
pub const TEMPLATES_MAX: usize = 1 << 20;

/// The contents that the user chose.
#[derive(Debug, Clone)]
pub struct DataPlan {
    pub source: Source,
    /// Elements of the batch dimension in each request, from 1.
    pub batch: u32,
    /// Of inputs by name, without the batch dimension.
    pub shapes: BTreeMap<String, Vec<i64>>,
    /// Of random strings.
    pub string_length: usize,
    /// Stands in the place of random strings and empty ones.
    pub string: Option<String>,
    /// Of every request.
    pub parameters: Vec<(String, Parameter)>,
    pub seed: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    Zero,
    Random,
    /// A file for each input, named like it.
    Directory(PathBuf),
    /// Streams of requests in perf_analyzer's form, file after file.
    Json(Vec<PathBuf>),
}

/// Why there is nothing to send.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    #[error("the model has no input '{name}'; it has {known}")]
    NoSuchInput { name: String, known: String },
    #[error("the model does not take batches, so the batch size is 1, not {0}")]
    NoBatches(u32),
    #[error("the model takes batches of at most {most}, not {given}")]
    BatchTooLarge { given: u32, most: u64 },
    #[error("input '{input}': {reason}")]
    Input { input: String, reason: String },
    #[error("{}: {reason}", .file.display())]
    File { file: PathBuf, reason: String },
    #[error("the contents of all requests together are beyond {} GiB", DATA_BYTES_MAX >> 30)]
    TooLarge,
    #[error("{0} requests are more than {TEMPLATES_MAX}")]
    TooMany(usize),
    #[error("--input-recording: {0}")]
    Recording(#[from] ReadError),
    #[error(
        "model '{0}' is scheduled by sequences, and recorded requests are sent without theirs; send them with `nereid \
         replay <file> --speed=max --concurrency-max=1`, or give --input-data"
    )]
    RecordedSequences(String),
}

impl DataError {
    fn input(input: &str, reason: impl Into<String>) -> DataError {
        DataError::Input { input: input.to_owned(), reason: reason.into() }
    }
}

/// What one request without a batch holds: an input is here unless it is left out.
#[derive(Debug, Clone, Default)]
struct Step {
    inputs: BTreeMap<String, Values>,
    expected: Option<BTreeMap<String, Values>>,
}

/// Elements of a tensor, little-endian, strings with their lengths before them; the shape has no batch dimension.
#[derive(Debug, Clone, PartialEq)]
struct Values {
    shape: Vec<i64>,
    bytes: Vec<u8>,
}

/// The streams of templates that a plan sends ([`super::Work::streams`]).
pub fn streams(model_info: &ModelInfo, plan: &DataPlan) -> Result<Vec<Vec<Template>>, DataError> {
    let known =
        || match model_info.inputs.iter().map(|input| format!("'{}'", input.name)).collect::<Vec<_>>().join(", ") {
            names if names.is_empty() => "none".to_owned(),
            names => names,
        };
    let unknown = plan.shapes.keys().find(|name| model_info.inputs.iter().all(|input| input.name != **name));
    if let Some(name) = unknown {
        return Err(DataError::NoSuchInput { name: name.clone(), known: known() });
    }
    match model_info.max_batch_size {
        0 if plan.batch > 1 => return Err(DataError::NoBatches(plan.batch)),
        0 => {}
        most if u64::from(plan.batch) > most => return Err(DataError::BatchTooLarge { given: plan.batch, most }),
        _ => {}
    }
    let streams = match &plan.source {
        Source::Zero | Source::Random => vec![generated(model_info, plan)?],
        Source::Directory(directory) => vec![vec![directory::read(directory, model_info, plan)?]],
        Source::Json(files) => {
            let mut streams = Vec::new();
            let mut room = DATA_BYTES_MAX;
            for file in files {
                streams.extend(json::read(file, model_info, plan, &mut room)?);
            }
            // Lists of lists are sequences; elsewhere their requests follow each other.
            if model_info.sequences { streams } else { vec![streams.into_iter().flatten().collect()] }
        }
    };
    let batches = Batches { model_info, plan };
    let mut room = Room { bytes: DATA_BYTES_MAX, templates: TEMPLATES_MAX };
    streams.iter().map(|steps| batches.templates(steps, &mut room)).collect()
}

/// As many steps as a batch has elements, so that a batch is not one element again and again.
fn generated(model_info: &ModelInfo, plan: &DataPlan) -> Result<Vec<Step>, DataError> {
    let mut random = Random::new(plan.seed);
    let mut room = DATA_BYTES_MAX;
    let is_random = plan.source == Source::Random;
    let mut steps = Vec::new();
    for _ in 0..plan.batch {
        let mut step = Step::default();
        for input in &model_info.inputs {
            if is_random && input.is_shape_tensor {
                let reason = "it is a tensor of shapes, whose values cannot be made up; give them with --input-data";
                return Err(DataError::input(&input.name, reason));
            }
            let shape = shapes::of(input, plan, model_info)?;
            let count = shapes::count(&input.name, &shape)?;
            let values = Elements::of(input)?.generate(count, is_random.then_some(&mut random), plan, &mut room)?;
            step.inputs.insert(input.name.clone(), Values { shape, bytes: values });
        }
        steps.push(step);
    }
    Ok(steps)
}

struct Room {
    bytes: usize,
    templates: usize,
}

/// Puts steps together to requests.
struct Batches<'a> {
    model_info: &'a ModelInfo,
    plan: &'a DataPlan,
}

impl Batches<'_> {
    /// A batch takes the steps that follow each other, and goes on with the first after the last, until that comes out
    /// even.
    fn templates(&self, steps: &[Step], room: &mut Room) -> Result<Vec<Template>, DataError> {
        let batch = usize::try_from(self.plan.batch.max(1)).unwrap_or(usize::MAX);
        if steps.is_empty() {
            return Ok(Vec::new());
        }
        let is_generated = matches!(self.plan.source, Source::Zero | Source::Random);
        let count = if is_generated { 1 } else { steps.len() / gcd(steps.len(), batch) };
        room.templates = room.templates.checked_sub(count).ok_or(DataError::TooMany(count))?;
        let mut templates = Vec::with_capacity(count);
        for request in 0..count {
            let first = request.wrapping_mul(batch) % steps.len();
            let members: Vec<&Step> = steps.iter().cycle().skip(first).take(batch).collect();
            templates.push(self.template(&members, room)?);
        }
        Ok(templates)
    }

    fn template(&self, members: &[&Step], room: &mut Room) -> Result<Template, DataError> {
        let mut inputs = Vec::new();
        for facts in &self.model_info.inputs {
            let values: Vec<Option<&Values>> = members.iter().map(|step| step.inputs.get(&facts.name)).collect();
            if let Some((shape, data)) = self.gather(facts, &values, room)? {
                let datatype = facts.datatype.clone();
                inputs.push(Input { name: facts.name.clone(), datatype, shape, data });
            }
        }
        let is_checked = members.iter().all(|step| step.expected.is_some());
        let mut expected = Vec::new();
        for facts in self.model_info.outputs.iter().filter(|_| is_checked) {
            let of_step = |step: &&Step| step.expected.as_ref().and_then(|outputs| outputs.get(&facts.name)).cloned();
            let values: Vec<Option<Values>> = members.iter().map(of_step).collect();
            let values: Vec<Option<&Values>> = values.iter().map(Option::as_ref).collect();
            if let Some((_, data)) = self.gather(facts, &values, room)? {
                expected.push(Expected { name: facts.name.clone(), data });
            }
        }
        Ok(Template {
            inputs,
            outputs: Vec::new(),
            parameters: self.plan.parameters.clone(),
            expected: is_checked.then_some(expected),
            body: None,
        })
    }

    /// One tensor of a batch. None: all its elements leave it out.
    fn gather(
        &self,
        facts: &TensorFacts,
        values: &[Option<&Values>],
        room: &mut Room,
    ) -> Result<Option<(Vec<i64>, Slice)>, DataError> {
        let Some(first) = values.iter().flatten().next() else { return Ok(None) };
        if values.iter().any(Option::is_none) {
            return Err(DataError::input(&facts.name, "some requests of one batch have it and some do not"));
        }
        let has_batch = self.model_info.max_batch_size > 0 && !facts.is_shape_tensor;
        // A shape tensor holds for the whole batch.
        let members = if has_batch { values } else { values.get(..1).unwrap_or_default() };
        let mut bytes = Vec::new();
        for values in members.iter().flatten() {
            if values.shape != first.shape {
                let reason = format!("one batch cannot hold shapes {:?} and {:?}", first.shape, values.shape);
                return Err(DataError::input(&facts.name, reason));
            }
            room.bytes = room.bytes.checked_sub(values.bytes.len()).ok_or(DataError::TooLarge)?;
            bytes.extend_from_slice(&values.bytes);
        }
        let batch = has_batch.then_some(i64::from(self.plan.batch));
        let shape = batch.into_iter().chain(first.shape.iter().copied()).collect();
        Ok(Some((shape, Slice::copy_of(&bytes))))
    }
}

fn gcd(one: usize, other: usize) -> usize {
    if other == 0 { one.max(1) } else { gcd(other, one % other) }
}

/// The element type that metadata names.
fn datatype(facts: &TensorFacts) -> Result<DataType, DataError> {
    DataType::from_name(facts.datatype.as_bytes())
        .ok_or_else(|| DataError::input(&facts.name, format!("'{}' is no datatype", facts.datatype)))
}

#[cfg(test)]
mod tests;
