//! The answer to an HTTP inference request: JSON header, binary tail (contract/http.md section 5).
//!
//! Written in bounded steps for the same reason as requests are read in steps.

use std::rc::Rc;
use std::sync::Arc;

use smallvec::SmallVec;

use super::AnswerForm;
use super::contiguous::contiguous;
use super::http_request::element_of;
use crate::api::coding::packing::Packing;
use crate::api::error::{self, JSON};
use crate::api::http::dialect::Dialect;
use crate::api::plan_cache::http_answers::{HttpAnswers, is_all_binary};
use crate::api::plan_cache::texts::Texts;
use crate::api::watch::Watch;
use nereid_memory::{Gather, Pool, Slice};
use nereid_protocol::http1;
use nereid_protocol::json::{ArrayWriter, Element, GatherSink, Sink, Writer};
use nereid_request::{DataType, OutputTensor, Response, Status, Text, Value, element_count, format_shape};
use nereid_scheduler::ServedModel;

/// Elements that one step writes.
const STEP: usize = 4096;
/// Elements that take as long as the description of an output.
const DESCRIBED: usize = 32;
/// Bytes of descriptions that are collected before they are put behind each other.
const TEXT_BYTES: usize = 8 * 1024;

/// Outputs of a plain answer.
const PLAIN_OUTPUTS_MAX: usize = 64;

/// Writes the answer in one go and takes the tensors behind it, if it is one that needs no steps, no words and no
/// other head than most; else nothing has happened to the response.
pub fn write_plainly(
    response: &mut Response,
    model: &ServedModel,
    form: &AnswerForm,
    (answers, texts): (&mut HttpAnswers, &mut Texts),
    pool: &Pool,
) -> Option<http1::PlainResponse> {
    let is_usual = form.packing.is_none() && form.watch.is_none() && form.dialect == Dialect::Kserve;
    if !is_usual || response.outputs.len().max(response.parameters.len()) > PLAIN_OUTPUTS_MAX {
        return None;
    }
    let text = texts.begin();
    put_id(&response.id, text);
    // Everything but the id is an object by itself, which is what is kept.
    let start = text.len();
    let is_all_binary = is_all_binary(response, form);
    match answers.find(response, model, form).filter(|_| is_all_binary) {
        Some(known) => {
            text.extend_from_slice(known.get(usize::from(start > 0)..).unwrap_or_default());
            answers.hits += 1;
        }
        None => {
            write_json(response, model, form, text)?;
            if is_all_binary {
                answers.keep(response, model, form, text.get(start..).unwrap_or_default());
            }
            if start > 0 {
                text.remove(start);
            }
        }
    }
    let mut tail = SmallVec::new();
    for (at, output) in response.outputs.iter_mut().enumerate() {
        if form.of(at, &output.name).0 && !form.is_shared(at, &output.name) {
            tail.extend(output.data.drain(..).filter(|piece| !piece.is_empty()));
        }
    }
    let is_binary = !tail.is_empty();
    Some(http1::PlainResponse { json: texts.cut(pool), tail, is_binary })
}

/// Begins the JSON of an answer with its id, if it has one; the other members follow.
fn put_id(id: &Text, out: &mut Vec<u8>) {
    if id.is_empty() {
        return;
    }
    let mut writer = Writer::new(&mut *out);
    writer.begin_object();
    writer.key("id");
    writer.string(id.as_bytes());
    out.push(b',');
}

/// Writes the JSON of a plain answer but for its id; `None` if it is none.
fn write_json(response: &Response, model: &ServedModel, form: &AnswerForm, text: &mut Vec<u8>) -> Option<()> {
    let mut writer = Writer::new(text);
    writer.begin_object();
    writer.key("model_name");
    writer.string(&model.name);
    writer.key("model_version");
    writer.string(itoa::Buffer::new().format(model.version));
    write_parameters(&mut writer, response).ok()?;
    writer.key("outputs");
    writer.begin_array();
    let mut elements_left = STEP;
    for (at, output) in response.outputs.iter().enumerate() {
        writer.begin_object();
        describe(&mut writer, output);
        match form.of(at, &output.name) {
            _ if form.is_shared(at, &output.name) => {}
            (true, _) => {
                writer.key("parameters");
                writer.begin_object();
                writer.key("binary_data_size");
                writer.uint(output.byte_size() as u64);
                writer.end_object();
            }
            (false, _) => {
                let element = element_of(output.datatype)?;
                let [data] = &output.data[..] else { return None };
                let count = data.len() / element.byte_size();
                if element_count(&output.shape).is_none_or(|expected| expected as u64 != count as u64) {
                    return None;
                }
                elements_left = elements_left.checked_sub(count)?;
                writer.key("data");
                ArrayWriter::write(element, data, writer.raw_value()).ok()?;
            }
        }
        writer.end_object();
    }
    writer.end_array();
    writer.end_object();
    Some(())
}

/// An answer being written.
pub struct Encoder {
    response: Response,
    form: Rc<AnswerForm>,
    json: Gather,
    /// JSON that belongs behind `json`: a description is some dozen pieces, which are cheaper to put here.
    text: Vec<u8>,
    tail: Gather,
    /// Outputs written.
    done: usize,
    /// The array of output `done` is being written.
    array: Option<(ArrayWriter, Slice)>,
    finished: bool,
}

impl Encoder {
    pub fn new(
        response: Response,
        model: &Arc<ServedModel>,
        form: Rc<AnswerForm>,
        pool: &Pool,
    ) -> Result<Encoder, Status> {
        let (json, text, tail) = (Gather::new(), Vec::new(), Gather::new());
        let mut encoder = Encoder { response, form, json, text, tail, done: 0, array: None, finished: false };
        encoder.write_head(model, pool)?;
        Ok(encoder)
    }

    /// Straight to where it stays: parameters may be as long as a model makes them.
    fn write_head(&mut self, model: &Arc<ServedModel>, pool: &Pool) -> Result<(), Status> {
        let mut writer = Writer::new(GatherSink { gather: &mut self.json, pool });
        writer.begin_object();
        if !self.response.id.is_empty() {
            writer.key("id");
            writer.string(self.response.id.as_bytes());
        }
        writer.key("model_name");
        writer.string(&model.name);
        writer.key("model_version");
        writer.string(itoa::Buffer::new().format(model.version));
        write_parameters(&mut writer, &self.response)?;
        writer.key("outputs");
        writer.begin_array();
        Ok(())
    }

    /// Who watches the request.
    pub fn watch(&self) -> Option<Arc<Watch>> {
        self.form.watch.clone()
    }

    pub fn dialect(&self) -> Dialect {
        self.form.dialect
    }

    /// Writes a bounded part; true when the answer is complete.
    pub fn step(&mut self, pool: &Pool) -> Result<bool, Status> {
        pool.check()?;
        let is_complete = self.write_part(pool)?;
        self.put_text(pool);
        Ok(is_complete)
    }

    fn put_text(&mut self, pool: &Pool) {
        self.json.put(pool, &self.text);
        self.text.clear();
        // The name of an output may be of any length.
        self.text.shrink_to(2 * TEXT_BYTES);
    }

    fn write_part(&mut self, pool: &Pool) -> Result<bool, Status> {
        let mut budget = STEP;
        while budget > 0 {
            if let Some((array, data)) = &mut self.array {
                let mut sink = GatherSink { gather: &mut self.json, pool };
                let name = self.response.outputs.get(self.done).map(|output| &output.name);
                if !array.step(data, &mut sink, budget).map_err(|_| misfit(array, name))? {
                    return Ok(false);
                }
                budget = budget.saturating_sub(1 + data.len() / 8);
                self.array = None;
                self.text.push(b'}');
                self.done += 1;
                continue;
            }
            if self.done == self.response.outputs.len() {
                if !self.finished {
                    self.finished = true;
                    self.text.extend_from_slice(b"]}");
                }
                return Ok(true);
            }
            self.begin_output(pool)?;
            budget = budget.saturating_sub(DESCRIBED);
        }
        Ok(false)
    }

    /// Writes everything of the next output but its elements.
    fn begin_output(&mut self, pool: &Pool) -> Result<(), Status> {
        if self.text.len() >= TEXT_BYTES {
            self.put_text(pool);
        }
        let Some(output) = self.response.outputs.get_mut(self.done) else { return Ok(()) };
        let (binary, _) = self.form.of(self.done, &output.name);
        if self.done > 0 {
            self.text.push(b',');
        }
        let mut writer = Writer::new(&mut self.text);
        writer.begin_object();
        describe(&mut writer, output);
        if self.form.is_shared(self.done, &output.name) {
            writer.end_object();
            self.done += 1;
            return Ok(());
        }
        if binary {
            writer.key("parameters");
            writer.begin_object();
            writer.key("binary_data_size");
            writer.uint(output.byte_size() as u64);
            writer.end_object();
            writer.end_object();
            for piece in output.data.drain(..) {
                self.tail.push(pool, piece);
            }
            self.done += 1;
            return Ok(());
        }
        let array = array_of(output)?;
        writer.key("data");
        self.array = Some((array, contiguous(output, pool)?));
        // The elements go behind it.
        self.put_text(pool);
        Ok(())
    }

    /// The JSON alone, once a step has returned true: of answers without binary outputs.
    pub fn into_json(self) -> Gather {
        self.json
    }

    /// How the reply is to be packed.
    pub fn packing(&self) -> Option<Packing> {
        self.form.packing
    }

    /// The reply, once a step has returned true.
    pub fn finish(self) -> http1::Response {
        let Encoder { response, form, mut json, mut tail, .. } = self;
        response.retire();
        let header_len = json.len();
        if tail.is_empty() {
            return error::reply(200, JSON, json);
        }
        json.append(&mut tail);
        form.dialect.binary_answer(header_len, json)
    }
}

/// The writer of an output's elements.
pub(in crate::api) fn array_of(output: &OutputTensor) -> Result<ArrayWriter, Status> {
    let array = match (element_of(output.datatype), output.datatype) {
        (Some(element), _) => ArrayWriter::numbers(element),
        (None, DataType::Bytes) => ArrayWriter::strings(),
        (None, datatype) => {
            return Err(Status::invalid(format!(
                "sending {datatype} data via JSON is not supported. Please use the binary data format for output"
            )));
        }
    };
    let count = element_count(&output.shape).and_then(|count| usize::try_from(count).ok());
    count.map(|count| array.of(count)).ok_or_else(|| {
        let text = format!("output '{}' has the shape {}", output.name, format_shape(&output.shape));
        Status::internal(text)
    })
}

/// The error of an output whose bytes do not match its shape.
pub(in crate::api) fn misfit(array: &ArrayWriter, name: Option<&Text>) -> Status {
    let name = name.map(Text::to_str_lossy).unwrap_or_default();
    let place =
        if matches!(array.element(), None | Some(Element::Bool)) { "" } else { "Failed to write 'data' field: " };
    Status::internal(format!("{place}output tensor shape does not match size of output for '{name}'"))
}

fn write_parameters(writer: &mut Writer<impl Sink>, response: &Response) -> Result<(), Status> {
    if response.parameters.is_empty() {
        return Ok(());
    }
    writer.key("parameters");
    writer.begin_object();
    for parameter in response.parameters.iter() {
        writer.key(parameter.name.as_bytes());
        match &parameter.value {
            Value::String(text) => writer.string(text.as_bytes()),
            Value::Int(int) => writer.int(*int),
            Value::Bool(bool) => writer.bool(*bool),
            Value::Double(double) => writer.double(*double),
            Value::Bytes(_) => {
                let text = "Response parameter of type 'TRITONSERVER_PARAMETER_BYTES' is not currently supported";
                return Err(Status::unsupported(text));
            }
        }
    }
    writer.end_object();
    Ok(())
}

fn describe(writer: &mut Writer<impl Sink>, output: &OutputTensor) {
    writer.key("name");
    writer.string(output.name.as_bytes());
    writer.key("datatype");
    writer.string(output.datatype.name());
    writer.key("shape");
    writer.begin_array();
    output.shape.iter().for_each(|&dim| writer.int(dim));
    writer.end_array();
}

#[cfg(test)]
mod tests;
