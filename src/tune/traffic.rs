//! The requests of each model: made from its metadata as `nereid perf` makes them, or those of a recording.
//!
//! Of a recording the contents, or where it has none made contents of the recorded shapes, the requested outputs and
//! the share of each model are used; not its times, headers and ids. So all candidates get the same requests in the
//! same order, at the load that the plan says.

use std::collections::BTreeMap;
use std::path::Path;

use super::TuneError;
use super::plan::{InputSource, Plan};
use nereid_memory::Slice;
use nereid_perf::data::{self, DataPlan, Source};
use nereid_perf::{
    Compression, Form, Input, ModelInfo, Parameter, Sequences, SharedMemory, Template, TensorFacts, Work,
};
use nereid_recording::{Infer, Protocol, Reader, Record, Tensor, made_contents};

/// Requests of a recording that are used, and bytes of their contents.
const REQUESTS_MAX: usize = 1 << 16;
const BYTES_MAX: u64 = 1 << 30;
/// Records that are read to find them.
const RECORDS_MAX: u64 = 1 << 20;
const STRING_LENGTH: usize = 16;
/// perf_analyzer's, as `nereid perf` has them.
const SEQUENCES_AT_ONCE: usize = 4;
const SEQUENCE_LENGTH: usize = 20;
const LENGTH_VARIATION_PERCENT: f64 = 20.0;
/// Parameters that the load generator sets itself, or that are of the recorded connection.
const OWN_PARAMETERS: [&str; 6] =
    ["sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "binary_data_output"];

/// What one model gets.
#[derive(Debug, Clone)]
pub struct Traffic {
    pub work: Work,
    /// Its part of all requests.
    pub share: f64,
    pub is_decoupled: bool,
}

/// The requests of all models, in the order of the plan.
pub fn make(plan: &Plan, models: &[ModelInfo]) -> Result<Vec<Traffic>, TuneError> {
    let usage = TuneError::Usage;
    let has_input = |name: &String| models.iter().any(|model| model.inputs.iter().any(|input| input.name == *name));
    if let Some(name) = plan.shapes.keys().find(|name| !has_input(name)) {
        let known = models.iter().flat_map(|model| &model.inputs).map(|input| input.name.as_str());
        let known: Vec<&str> = known.collect();
        return Err(usage(format!("--shape {name}: no model has this input; the inputs are {}", known.join(", "))));
    }
    let mut recorded = match &plan.recording {
        Some(path) => recorded(path, plan, models)?,
        None => BTreeMap::new(),
    };
    let all: usize = recorded.values().map(Vec::len).sum();
    let mut traffic = Vec::new();
    for model in models {
        let (streams, share) = match recorded.remove(&model.model) {
            Some(templates) => {
                let share = templates.len() as f64 / all.max(1) as f64;
                (vec![templates], share)
            }
            None if plan.recording.is_some() => {
                return Err(usage(format!("the recording has no request to model '{}' that can be sent", model.model)));
            }
            None => (synthetic(plan, model)?, 1.0 / models.len() as f64),
        };
        let is_made = plan.recording.is_none() && matches!(plan.input, InputSource::Random | InputSource::Zero);
        let sequences = model.sequences.then(|| Sequences {
            at_once: SEQUENCES_AT_ONCE,
            length: Some(SEQUENCE_LENGTH).filter(|_| is_made || plan.recording.is_some()),
            length_variation_percent: if is_made { LENGTH_VARIATION_PERCENT } else { 0.0 },
            first_id: 1,
            end_id: None,
        });
        let work = Work {
            streams,
            headers: Vec::new(),
            sequences,
            input_form: Form::Binary,
            output_form: Form::Binary,
            compression: Compression::None,
            shared_memory: SharedMemory::None,
            decoupled: model.decoupled,
            priority: 0,
            queue_timeout_us: None,
            recording: None,
        };
        traffic.push(Traffic { work, share, is_decoupled: model.decoupled });
    }
    Ok(traffic)
}

/// The dimensions of an input without the batch's.
fn declared<'a>(input: &'a TensorFacts, model: &ModelInfo) -> &'a [i64] {
    match model.max_batch_size > 0 && !input.is_shape_tensor {
        true => input.shape.get(1..).unwrap_or_default(),
        false => &input.shape,
    }
}

/// Names the dimensions that nothing gives a size.
fn missing(plan: &Plan, model: &ModelInfo) -> Option<String> {
    let mut missing = Vec::new();
    let mut flags = Vec::new();
    for input in model.inputs.iter().filter(|input| !plan.shapes.contains_key(&input.name)) {
        let dims = declared(input, model);
        let open: Vec<String> =
            dims.iter().enumerate().filter(|(_, dim)| **dim < 0).map(|(at, _)| at.to_string()).collect();
        if open.is_empty() {
            continue;
        }
        missing.push(format!("dimension {} of input '{}' ({dims:?})", open.join(", "), input.name));
        let sizes: Vec<String> =
            dims.iter().map(|dim| if *dim < 0 { "<size>".to_owned() } else { dim.to_string() }).collect();
        flags.push(format!("--shape {}:{}", input.name, sizes.join(",")));
    }
    (!missing.is_empty()).then(|| {
        format!(
            "model '{}' leaves sizes open: {}. Give them with {}, or requests with --input-data or --recording",
            model.model,
            missing.join("; "),
            flags.join(" ")
        )
    })
}

fn synthetic(plan: &Plan, model: &ModelInfo) -> Result<Vec<Vec<Template>>, TuneError> {
    let (source, is_made) = match &plan.input {
        InputSource::Random => (Source::Random, true),
        InputSource::Zero => (Source::Zero, true),
        InputSource::Directory(path) => (Source::Directory(path.clone()), false),
        InputSource::Json(paths) => (Source::Json(paths.clone()), false),
    };
    if is_made && let Some(text) = missing(plan, model) {
        return Err(TuneError::Usage(text));
    }
    let is_own = |name: &String| model.inputs.iter().any(|input| input.name == *name);
    let shapes = plan.shapes.iter().filter(|(name, _)| is_own(name));
    let data_plan = DataPlan {
        source,
        batch: 1,
        shapes: shapes.map(|(name, shape)| (name.clone(), shape.clone())).collect(),
        string_length: STRING_LENGTH,
        string: None,
        parameters: Vec::new(),
        seed: plan.seed,
    };
    let streams = data::streams(model, &data_plan);
    streams.map_err(|error| TuneError::Usage(format!("requests to model '{}': {error}", model.model)))
}

/// The requests of a file by their models.
fn recorded(path: &Path, plan: &Plan, models: &[ModelInfo]) -> Result<BTreeMap<String, Vec<Template>>, TuneError> {
    let wrong = |error: &dyn std::fmt::Display| TuneError::Usage(format!("{}: {error}", path.display()));
    let mut reader = Reader::open(path).map_err(|error| wrong(&error))?;
    let mut found: BTreeMap<String, Vec<Template>> = BTreeMap::new();
    let (mut count, mut bytes, mut records) = (0usize, 0u64, 0u64);
    while let Some(record) = reader.next_record().map_err(|error| wrong(&error))? {
        records += 1;
        if records > RECORDS_MAX || count >= REQUESTS_MAX || bytes >= BYTES_MAX {
            break;
        }
        let Some(model) = models.iter().find(|model| model.model == record.head.model) else { continue };
        let Some(template) = template(&record, plan.seed.wrapping_add(records), model, BYTES_MAX - bytes) else {
            continue;
        };
        count += 1;
        bytes += template.inputs.iter().map(|input| input.data.len() as u64).sum::<u64>();
        found.entry(model.model.clone()).or_default().push(template);
    }
    Ok(found)
}

/// A recorded request as it is sent again; none if it cannot be.
fn template(record: &Record, seed: u64, model: &ModelInfo, bytes_max: u64) -> Option<Template> {
    let head = &record.head;
    let facts = &head.request;
    if facts.malformed || facts.inputs.iter().any(|input| input.shared_memory) {
        return None;
    }
    let infer = match &record.request_body {
        Some(body) => {
            let json_len = facts.json_byte_size.and_then(|len| usize::try_from(len).ok());
            match head.protocol {
                Protocol::Http => Infer::from_http(body, json_len).ok()?,
                Protocol::Grpc => Infer::from_grpc(body.clone().into()).ok()?,
            }
        }
        None => {
            let mut inputs = Vec::new();
            let mut left = bytes_max;
            for input in &facts.inputs {
                let made = made_contents(&input.datatype, &input.shape, input.byte_size, Some(seed), left).ok()?;
                left = left.saturating_sub(made.len() as u64);
                inputs.push(Tensor {
                    name: input.name.clone(),
                    datatype: input.datatype.clone(),
                    shape: input.shape.clone(),
                    contents: Some(made),
                    ..Tensor::default()
                });
            }
            let outputs = facts.outputs.iter().map(|name| (name.clone(), Default::default())).collect();
            Infer { inputs, outputs, ..Infer::default() }
        }
    };
    let mut inputs = Vec::new();
    for input in infer.inputs {
        // What the model does not have would end the whole run.
        model.inputs.iter().find(|facts| facts.name == input.name && facts.datatype == input.datatype)?;
        let data = Slice::copy_of(&input.contents?);
        inputs.push(Input { name: input.name, datatype: input.datatype, shape: input.shape, data });
    }
    let outputs = infer.outputs.into_iter().map(|(name, _)| name);
    let outputs = outputs.filter(|name| model.outputs.iter().any(|facts| facts.name == *name)).collect();
    let kept = infer.parameters.into_iter().filter(|(name, _)| !OWN_PARAMETERS.contains(&name.as_str()));
    let parameters = kept.filter_map(|(name, value)| {
        use nereid_recording::Parameter as Recorded;
        let value = match value {
            Recorded::Bool(value) => Parameter::Bool(value),
            Recorded::Int(value) => Parameter::Int(value),
            Recorded::Uint(value) => Parameter::Int(i64::try_from(value).ok()?),
            Recorded::Double(value) => Parameter::Double(value).finite()?,
            Recorded::Text(value) => Parameter::String(value),
        };
        Some((name, value))
    });
    Some(Template { inputs, outputs, parameters: parameters.collect(), expected: None, body: None })
}

trait Finite: Sized {
    fn finite(self) -> Option<Self>;
}

impl Finite for Parameter {
    /// A number that can be sent.
    fn finite(self) -> Option<Parameter> {
        match self {
            Parameter::Double(value) if !value.is_finite() => None,
            value => Some(value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::goal::{Goal, Objective};
    use crate::plan::{LoadRule, Search};
    use nereid_recording::{RecordHead, RequestFacts};

    fn plan() -> Plan {
        Plan {
            models: vec!["m".to_owned()],
            repositories: Vec::new(),
            goal: Goal { objective: Objective::Throughput, slo: None, constraints: Vec::new(), weights: Vec::new() },
            load: LoadRule::Follows,
            search: Search::Race,
            settings: Vec::new(),
            input: InputSource::Random,
            shapes: BTreeMap::new(),
            recording: None,
            memory_max_bytes: None,
            budget: std::time::Duration::from_secs(1),
            seed: 1,
            server: Vec::new(),
            flags: Vec::new(),
            report: None,
            resume: None,
        }
    }

    fn model() -> ModelInfo {
        let input = |name: &str, shape: &[i64]| TensorFacts {
            name: name.to_owned(),
            datatype: "INT8".to_owned(),
            shape: shape.to_vec(),
            ..TensorFacts::default()
        };
        ModelInfo {
            model: "m".to_owned(),
            max_batch_size: 8,
            inputs: vec![input("A", &[-1, -1, 3, -1]), input("B", &[-1, 2])],
            outputs: vec![input("C", &[-1, 2])],
            ..ModelInfo::default()
        }
    }

    #[test]
    fn exactly_the_missing_dimensions_are_named() {
        let error = make(&plan(), &[model()]).unwrap_err().to_string();
        assert!(error.contains("dimension 0, 2 of input 'A' ([-1, 3, -1])"), "{error}");
        assert!(error.contains("--shape A:<size>,3,<size>") && !error.contains("'B'"), "{error}");
        let shapes = BTreeMap::from([("A".to_owned(), vec![1, 3, 2])]);
        let made = make(&Plan { shapes, ..plan() }, &[model()]).unwrap();
        assert_eq!(made[0].work.streams[0][0].inputs[0].shape, [1, 1, 3, 2]);
        let shapes = BTreeMap::from([("X".to_owned(), vec![1])]);
        let error = make(&Plan { shapes, ..plan() }, &[model()]).unwrap_err().to_string();
        assert!(error.contains("no model has this input; the inputs are A, B"), "{error}");
    }

    #[test]
    fn recorded_requests_are_sent_again() {
        let tensor = |name: &str, shape: &[i64]| nereid_recording::TensorFacts {
            name: name.to_owned(),
            datatype: "INT8".to_owned(),
            shape: shape.to_vec(),
            byte_size: Some(shape.iter().product::<i64>() as u64),
            shared_memory: false,
        };
        let facts = RequestFacts { inputs: vec![tensor("B", &[2, 2])], ..RequestFacts::default() };
        let head = RecordHead {
            at_ns: 0,
            took_ns: 0,
            protocol: Protocol::Http,
            model: "m".to_owned(),
            version: String::new(),
            request: facts,
            answer: None,
        };
        let mut record = Record { head, request_body: None, answer_body: None };
        let made = template(&record, 1, &model(), 1000).unwrap();
        assert_eq!((made.inputs[0].shape.as_slice(), made.inputs[0].data.len()), (&[2, 2][..], 4));
        let body =
            br#"{"inputs":[{"name":"B","datatype":"INT8","shape":[1,2],"data":[5,6]}],"outputs":[{"name":"C"}]}"#;
        record.request_body = Some(body.to_vec());
        let sent = template(&record, 1, &model(), 1000).unwrap();
        assert_eq!((&sent.inputs[0].data[..], sent.outputs.as_slice()), (&[5, 6][..], &["C".to_owned()][..]));
        record.head.request.inputs[0].shared_memory = true;
        assert!(template(&record, 1, &model(), 1000).is_none());
    }
}
