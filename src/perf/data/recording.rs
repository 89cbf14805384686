//! Requests of a recording: those of one model, in the order and with the times in which they came.
//!
//! What this client cannot send as it came is left out and counted by its reason: a load that quietly lacks a part of
//! its requests is another load.

use std::collections::BTreeSet;
use std::io::BufRead;
use std::path::PathBuf;
use std::time::Duration;

use super::{DATA_BYTES_MAX, DataError, Room, TEMPLATES_MAX};
use crate::check::{OF_SEQUENCES, check_template};
use crate::{ErrorTexts, Input, ModelInfo, Parameter, Recording, Template};
use nereid_memory::Slice;
use nereid_recording::{Contents, Reader, Record, ResendError};

/// Letters of a reason, which may have texts of the file in it.
const REASON_LETTERS_MAX: usize = 200;
/// Names of the recording's models in an error.
const NAMES_MAX: usize = 8;

/// What is taken from a file.
#[derive(Debug, Clone)]
pub struct RecordingPlan {
    pub file: PathBuf,
    /// The requests of this model.
    pub model: String,
    /// What stands in for contents that were not recorded.
    pub contents: Contents,
    /// Of every request, in the place of recorded ones of the same name.
    pub parameters: Vec<(String, Parameter)>,
}

/// What was taken from it.
#[derive(Debug)]
pub struct Recorded {
    pub templates: Vec<Template>,
    /// When each of them came, since the first.
    pub offsets: Vec<Duration>,
    pub recording: Recording,
}

/// Why a recorded request is not sent.
#[derive(Debug, thiserror::Error)]
enum Unsent {
    #[error("it is of another model")]
    OtherModel,
    #[error("it belongs to a sequence, and this client makes sequences of its own")]
    Sequence,
    #[error("one of its tensors has parameters, which this client does not send")]
    TensorParameters,
    #[error("there is no room for it: at most {TEMPLATES_MAX} requests and {} GiB are kept", DATA_BYTES_MAX >> 30)]
    Full,
    #[error(transparent)]
    Resend(#[from] ResendError),
    #[error("{0}")]
    Model(String),
}

/// Reads the requests of a file.
pub fn recorded(model_info: &ModelInfo, plan: &RecordingPlan) -> Result<Recorded, DataError> {
    let room = Room { bytes: DATA_BYTES_MAX, templates: TEMPLATES_MAX };
    read(Reader::open(&plan.file)?, model_info, plan, room)
}

fn read<R: BufRead>(
    mut reader: Reader<R>,
    model_info: &ModelInfo,
    plan: &RecordingPlan,
    room: Room,
) -> Result<Recorded, DataError> {
    if model_info.sequences {
        return Err(DataError::RecordedSequences(plan.model.clone()));
    }
    let mut taking = Taking { model_info, plan, room, is_full: false };
    let (mut kept, mut left_out, mut made, mut number) = (Vec::new(), ErrorTexts::default(), 0, 0);
    let mut others = BTreeSet::new();
    while let Some(record) = reader.next_record()? {
        number += 1;
        let reason = match taking.take(&record, number) {
            Ok(template) => {
                made += u64::from(record.request_body.is_none());
                kept.push((record.head.at_ns, template));
                continue;
            }
            Err(reason) => reason,
        };
        if matches!(reason, Unsent::OtherModel) && others.len() < NAMES_MAX {
            others.insert(shortened(&record.head.model));
        }
        left_out.count_many(&shortened(&reason.to_string()), 1);
    }
    let note = reader.is_cut_short().then(|| "the file ends inside of a record, which is left out".to_owned());
    if kept.is_empty() {
        let reason = nothing(plan, &left_out, &others);
        return Err(DataError::File { file: plan.file.clone(), reason });
    }
    // A file has them in the order of their answers.
    kept.sort_by_key(|(at_ns, _)| *at_ns);
    let first_ns = kept.first().map_or(0, |(at_ns, _)| *at_ns);
    let offset = |(at_ns, _): &(u64, Template)| Duration::from_nanos(at_ns.saturating_sub(first_ns));
    let offsets = kept.iter().map(offset).collect();
    let (file, used) = (plan.file.clone(), kept.len() as u64);
    let recording = Recording { file, used, made, contents: plan.contents, left_out, note };
    Ok(Recorded { templates: kept.into_iter().map(|(_, template)| template).collect(), offsets, recording })
}

/// Why nothing of a file is sent, and what to do.
fn nothing(plan: &RecordingPlan, left_out: &ErrorTexts, others: &BTreeSet<String>) -> String {
    let mut reasons: Vec<String> = left_out.counts.iter().map(|(reason, count)| format!("{count}: {reason}")).collect();
    if left_out.other > 0 {
        reasons.push(format!("{}: other reasons", left_out.other));
    }
    let next = match others.is_empty() {
        true => "record others with `nereid serve --record=<file>`".to_owned(),
        false => {
            let names: Vec<String> = others.iter().map(|name| format!("'{name}'")).collect();
            format!("name the model of a recorded request with -m: {}", names.join(", "))
        }
    };
    match reasons.is_empty() {
        true => format!("the recording has no requests; {next}"),
        false => {
            format!("no recorded request can be sent to model '{}' ({}); {next}", plan.model, reasons.join("; "))
        }
    }
}

fn shortened(text: &str) -> String {
    text.chars().take(REASON_LETTERS_MAX).collect()
}

struct Taking<'a> {
    model_info: &'a ModelInfo,
    plan: &'a RecordingPlan,
    room: Room,
    /// What comes later is left out whatever its size, so that what is sent is the begin of the recording.
    is_full: bool,
}

impl Taking<'_> {
    fn take(&mut self, record: &Record, number: u64) -> Result<Template, Unsent> {
        let head = &record.head;
        if head.model != self.plan.model {
            return Err(Unsent::OtherModel);
        }
        if head.request.parameters.iter().any(|name| OF_SEQUENCES.contains(&name.as_str())) {
            return Err(Unsent::Sequence);
        }
        if self.is_full {
            return Err(Unsent::Full);
        }
        let template = self.template(record, number)?;
        check_template(&template, self.model_info, &OF_SEQUENCES).map_err(Unsent::Model)?;
        let bytes: usize = template.inputs.iter().map(|input| input.data.len()).sum();
        match (self.room.bytes.checked_sub(bytes), self.room.templates.checked_sub(1)) {
            (Some(bytes), Some(templates)) => self.room = Room { bytes, templates },
            _ => {
                self.is_full = true;
                return Err(Unsent::Full);
            }
        }
        Ok(template)
    }

    fn template(&self, record: &Record, number: u64) -> Result<Template, Unsent> {
        let infer = record.infer(number, self.plan.contents)?;
        let mut inputs = Vec::with_capacity(infer.inputs.len());
        for tensor in infer.inputs {
            if !tensor.parameters.is_empty() {
                return Err(Unsent::TensorParameters);
            }
            let Some(contents) = tensor.contents else { return Err(ResendError::SharedMemory(tensor.name).into()) };
            let (name, datatype, shape) = (tensor.name, tensor.datatype, tensor.shape);
            inputs.push(Input { name, datatype, shape, data: Slice::copy_of(&contents) });
        }
        let mut outputs = Vec::with_capacity(infer.outputs.len());
        for (name, parameters) in infer.outputs {
            if !parameters.is_empty() {
                return Err(Unsent::TensorParameters);
            }
            outputs.push(name);
        }
        let given = &self.plan.parameters;
        let recorded = infer.parameters.into_iter().filter(|(name, _)| given.iter().all(|(other, _)| other != name));
        let recorded = recorded.map(|(name, value)| (name, parameter(value)));
        let parameters = recorded.chain(given.iter().cloned()).collect();
        Ok(Template { inputs, outputs, parameters, ..Template::default() })
    }
}

fn parameter(recorded: nereid_recording::Parameter) -> Parameter {
    match recorded {
        nereid_recording::Parameter::Bool(value) => Parameter::Bool(value),
        nereid_recording::Parameter::Int(value) => Parameter::Int(value),
        nereid_recording::Parameter::Uint(value) => Parameter::Uint(value),
        nereid_recording::Parameter::Double(value) => Parameter::Double(value),
        nereid_recording::Parameter::Text(value) => Parameter::String(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TensorFacts;
    use nereid_recording::{FileHead, Protocol, RecordHead, RequestFacts, VERSION, write_head, write_record};

    fn model_info() -> ModelInfo {
        let input =
            TensorFacts { name: "x".into(), datatype: "INT8".into(), shape: vec![-1], ..TensorFacts::default() };
        ModelInfo { inputs: vec![input], ..ModelInfo::named("m") }
    }

    fn plan() -> RecordingPlan {
        let parameters = vec![("given".to_owned(), Parameter::Bool(true))];
        RecordingPlan { file: "f".into(), model: "m".into(), contents: Contents::Zero, parameters }
    }

    fn record(at_ns: u64, elements: i64) -> Record {
        let input = nereid_recording::TensorFacts {
            name: "x".into(),
            datatype: "INT8".into(),
            shape: vec![elements],
            ..Default::default()
        };
        let request = RequestFacts { inputs: vec![input], ..RequestFacts::default() };
        let (protocol, model, version) = (Protocol::Http, "m".to_owned(), String::new());
        let head = RecordHead { at_ns, took_ns: 0, protocol, model, version, request, answer: None };
        Record { head, request_body: None, answer_body: None }
    }

    fn with_body(at_ns: u64, body: &str) -> Record {
        Record { request_body: Some(body.as_bytes().to_vec()), ..record(at_ns, 2) }
    }

    fn file(records: impl IntoIterator<Item = Record>) -> Vec<u8> {
        let head = FileHead {
            format: "nereid-recording".to_owned(),
            version: VERSION,
            server: String::new(),
            started_unix_ms: 0,
            data: false,
            rate: 1,
            redacted: Vec::new(),
        };
        let mut file = Vec::new();
        write_head(&head, &mut file).unwrap();
        for mut record in records {
            write_record(&mut record, u64::MAX, &mut file).unwrap();
        }
        file
    }

    fn read_with(file: &[u8], bytes: usize) -> Result<Recorded, DataError> {
        read(Reader::new(file)?, &model_info(), &plan(), Room { bytes, templates: 100 })
    }

    #[test]
    fn requests_come_in_their_order_with_their_times_and_contents() {
        let json = r#"{"id":"7","parameters":{"given":7,"priority":2,"big":18446744073709551615,"a":"b"},
            "inputs":[{"name":"x","datatype":"INT8","shape":[2],"data":[1,2]}],"outputs":[]}"#;
        let found = read_with(&file([record(900, 3), with_body(100, json), record(400, 1)]), 1000).unwrap();
        assert_eq!(found.offsets, [0, 300, 800].map(Duration::from_nanos));
        let shapes: Vec<_> = found.templates.iter().map(|template| template.inputs[0].shape[0]).collect();
        assert_eq!(shapes, [2, 1, 3]);
        assert_eq!(&found.templates[0].inputs[0].data[..], &[1, 2]);
        assert_eq!(&found.templates[2].inputs[0].data[..], &[0, 0, 0]);
        let expected = [
            ("a", Parameter::String("b".into())),
            ("big", Parameter::Uint(u64::MAX)),
            ("priority", Parameter::Int(2)),
            ("given", Parameter::Bool(true)),
        ];
        assert_eq!(found.templates[0].parameters, expected.map(|(name, value)| (name.to_owned(), value)));
        assert_eq!((found.recording.used, found.recording.made, found.recording.left_out.total()), (3, 2, 0));
        assert_eq!(found.recording.note, None);
    }

    #[test]
    fn what_is_not_sent_is_counted_by_its_reason() {
        let mut of_sequence = record(1, 2);
        of_sequence.head.request.parameters = vec!["sequence_id".into()];
        let mut shared = record(1, 2);
        shared.head.request.inputs[0].shared_memory = true;
        let mut foreign = record(1, 2);
        foreign.head.request.inputs[0].name = "y".into();
        let mut other = record(1, 2);
        other.head.model = "n".into();
        let classified = r#"{"inputs":[{"name":"x","datatype":"INT8","shape":[1],"data":[1]}],
            "outputs":[{"name":"o","parameters":{"classification":3}}]}"#;
        let classified = with_body(1, classified);
        let all = [of_sequence, shared, foreign, other, classified];
        let found = read_with(&file(all.clone().into_iter().chain([record(2, 2)])), 1000).unwrap();
        assert_eq!((found.recording.used, found.recording.left_out.total()), (1, 5));
        let reasons: String = found.recording.left_out.counts.keys().map(|reason| format!("{reason}\n")).collect();
        for part in ["another model", "a sequence", "in shared memory", "no input 'y'", "has parameters"] {
            assert!(reasons.contains(part), "{part}: {reasons}");
        }
        let error = |records: &[Record]| read_with(&file(records.iter().cloned()), 1000).unwrap_err().to_string();
        let nothing = error(&all);
        assert!(nothing.starts_with("f: no recorded request can be sent to model 'm'"), "{nothing}");
        assert!(nothing.ends_with("with -m: 'n'"), "{nothing}");
        assert!(error(&[]).contains("the recording has no requests; record others"));
        let sequences = ModelInfo { sequences: true, ..model_info() };
        let whole = file([record(1, 2)]);
        let room = Room { bytes: 1000, templates: 100 };
        let refused = read(Reader::new(&whole[..]).unwrap(), &sequences, &plan(), room).unwrap_err();
        assert!(refused.to_string().contains("nereid replay"), "{refused}");
    }

    #[test]
    fn what_finds_no_room_is_left_out() {
        let found = read_with(&file([record(1, 6), record(2, 5), record(3, 1)]), 10).unwrap();
        assert_eq!((found.recording.used, found.recording.left_out.total()), (1, 2));
        assert!(found.recording.left_out.counts.keys().all(|reason| reason.contains("no room")));
    }

    #[test]
    fn a_file_is_read_up_to_where_it_is_cut_and_not_beyond_damage() {
        let mut whole = file([record(1, 1), record(2, 1)]);
        whole.truncate(whole.len() - 5);
        let found = read_with(&whole, 1000).unwrap();
        assert_eq!(found.recording.used, 1);
        assert!(found.recording.note.is_some_and(|note| note.contains("inside of a record")));
        let mut damaged = file([record(1, 1)]);
        damaged.extend_from_slice(b"nonsense\n");
        let error = read_with(&damaged, 1000).unwrap_err().to_string();
        assert!(error.starts_with("--input-recording: record 2 at byte"), "{error}");
        assert!(matches!(read_with(b"{}\n", 1000), Err(DataError::Recording(_))));
    }
}
