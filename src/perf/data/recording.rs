//! Requests of a recording: those of one model, in the order and with the times in which they came.
//!
//! What this client cannot send as it came is left out and counted by its reason: a load that quietly lacks a part of
//! its requests is another load.

use std::collections::BTreeSet;
use std::io::BufRead;
use std::path::PathBuf;
use std::time::Duration;

use super::{DATA_BYTES_MAX, DataError, Room, TEMPLATES_MAX};
use crate::check::{OF_SEQUENCES, check_form, check_template};
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
        record.check_resend()?;
        if record.request_body.is_none() {
            self.check_made(record)?;
        }
        let template = self.template(record, number)?;
        check_template(&template, self.model_info, &OF_SEQUENCES).map_err(Unsent::Model)?;
        match (self.room.bytes.checked_sub(held(&template)), self.room.templates.checked_sub(1)) {
            (Some(bytes), Some(templates)) => self.room = Room { bytes, templates },
            _ => return Err(self.full()),
        }
        Ok(template)
    }

    /// A line of a file may state any inputs: those that are not sent are not made.
    fn check_made(&mut self, record: &Record) -> Result<(), Unsent> {
        for input in &record.head.request.inputs {
            check_form(&input.name, &input.datatype, &input.shape, self.model_info).map_err(Unsent::Model)?;
        }
        let bytes = record.made_bytes()?;
        match usize::try_from(bytes).is_ok_and(|bytes| bytes <= self.room.bytes) {
            true => Ok(()),
            false => Err(self.full()),
        }
    }

    fn full(&mut self) -> Unsent {
        self.is_full = true;
        Unsent::Full
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

/// Bytes that a template takes.
fn held(template: &Template) -> usize {
    let inputs = template.inputs.iter().map(|input| {
        let names = input.name.len() + input.datatype.len();
        size_of::<Input>() + names + size_of_val(input.shape.as_slice()) + input.data.len()
    });
    let outputs = template.outputs.iter().map(|name| size_of::<String>() + name.len());
    let parameters = template.parameters.iter().map(|(name, value)| {
        let text = if let Parameter::String(text) = value { text.len() } else { 0 };
        size_of::<(String, Parameter)>() + name.len() + text
    });
    size_of::<Template>() + inputs.chain(outputs).chain(parameters).sum::<usize>()
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

    const ROOMY: usize = 1 << 20;

    fn read_with(file: &[u8], bytes: usize) -> Result<Recorded, DataError> {
        read(Reader::new(file)?, &model_info(), &plan(), Room { bytes, templates: 100 })
    }

    #[test]
    fn requests_come_in_their_order_with_their_times_and_contents() {
        let json = r#"{"id":"7","parameters":{"given":7,"priority":2,"big":18446744073709551615,"a":"b"},
            "inputs":[{"name":"x","datatype":"INT8","shape":[2],"data":[1,2]}],"outputs":[]}"#;
        let found = read_with(&file([record(900, 3), with_body(100, json), record(400, 1)]), ROOMY).unwrap();
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
        let found = read_with(&file(all.clone().into_iter().chain([record(2, 2)])), ROOMY).unwrap();
        assert_eq!((found.recording.used, found.recording.left_out.total()), (1, 5));
        let reasons: String = found.recording.left_out.counts.keys().map(|reason| format!("{reason}\n")).collect();
        for part in ["another model", "a sequence", "in shared memory", "no input 'y'", "has parameters"] {
            assert!(reasons.contains(part), "{part}: {reasons}");
        }
        let error = |records: &[Record]| read_with(&file(records.iter().cloned()), ROOMY).unwrap_err().to_string();
        let nothing = error(&all);
        assert!(nothing.starts_with("f: no recorded request can be sent to model 'm'"), "{nothing}");
        assert!(nothing.ends_with("with -m: 'n'"), "{nothing}");
        assert!(error(&[]).contains("the recording has no requests; record others"));
        let sequences = ModelInfo { sequences: true, ..model_info() };
        let whole = file([record(1, 2)]);
        let room = Room { bytes: ROOMY, templates: 100 };
        let refused = read(Reader::new(&whole[..]).unwrap(), &sequences, &plan(), room).unwrap_err();
        assert!(refused.to_string().contains("nereid replay"), "{refused}");
    }

    #[test]
    fn what_finds_no_room_is_left_out() {
        let held_by = |record: Record| held(&read_with(&file([record]), ROOMY).unwrap().templates[0]);
        let left = |second: Record, bytes| {
            let found = read_with(&file([record(1, 6), second, record(3, 1)]), bytes).unwrap();
            assert!(found.recording.left_out.counts.keys().all(|reason| reason.contains("no room")));
            found.recording.left_out.total()
        };
        let two = held_by(record(1, 6)) + held_by(record(2, 5));
        assert_eq!((left(record(2, 5), two), left(record(2, 5), two - 1)), (1, 2));
        assert_eq!(left(record(2, 1 << 29), two), 2, "contents for which there is no room are not made");
        let json = |parameters: &str| {
            let input = r#""inputs":[{"name":"x","datatype":"INT8","shape":[1],"data":[1]}]"#;
            with_body(2, &format!(r#"{{{input}{parameters}}}"#))
        };
        let long = json(r#","parameters":{"name":"a text"}"#);
        let parameter_bytes = size_of::<(String, Parameter)>() + "name".len() + "a text".len();
        assert_eq!(held_by(long), held_by(json("")) + parameter_bytes);
    }

    #[test]
    fn contents_that_the_model_does_not_take_are_not_made() {
        let mut other_type = record(1, 2);
        other_type.head.request.inputs[0].datatype = "INT64".into();
        let mut other_rank = record(1, 2);
        other_rank.head.request.inputs[0].shape = vec![1 << 20, 1 << 20];
        let found = read_with(&file([other_type, other_rank, record(2, 2)]), ROOMY).unwrap();
        assert_eq!((found.recording.used, found.recording.left_out.total()), (1, 2));
        let reasons: String = found.recording.left_out.counts.keys().map(|reason| format!("{reason}\n")).collect();
        for part in ["takes INT8, not INT64", "does not fit the model's [-1]"] {
            assert!(reasons.contains(part), "{part}: {reasons}");
        }
    }

    #[test]
    fn a_file_is_read_up_to_where_it_is_cut_and_not_beyond_damage() {
        let mut whole = file([record(1, 1), record(2, 1)]);
        whole.truncate(whole.len() - 5);
        let found = read_with(&whole, ROOMY).unwrap();
        assert_eq!(found.recording.used, 1);
        assert!(found.recording.note.is_some_and(|note| note.contains("inside of a record")));
        let mut damaged = file([record(1, 1)]);
        damaged.extend_from_slice(b"nonsense\n");
        let error = read_with(&damaged, ROOMY).unwrap_err().to_string();
        assert!(error.starts_with("--input-recording: record 2 at byte"), "{error}");
        assert!(matches!(read_with(b"{}\n", ROOMY), Err(DataError::Recording(_))));
    }
}
