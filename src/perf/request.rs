//! Requests, ready to send: everything that can be made before the first request is made then.
//!
//! What differs from one request to the next is its id and the marks of its sequence. They go between two parts that
//! never change, so a request costs a copy of its small parts; a large tensor is sent from where it lies. Where an HTTP
//! body has such marks they take the same room each time, so that its length, which the head states, is the same too.

pub mod json;
mod openai;

use std::collections::BTreeMap;
use std::io::Write;

use flate2::Compression as Effort;
use flate2::write::{GzEncoder, ZlibEncoder};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use prost::Message;
use prost::bytes::Bytes;
use serde_json::{Map, Value, json};

use super::PerfError;
use super::plan::{Compression, Form, Input, Parameter, Plan, Protocol, Template};
use nereid_memory::{Key, Slice};
use nereid_protocol::grpc::PREFIX_BYTES;
use nereid_protocol::http1::{RequestBody, RequestHead};
use nereid_wire::inference::infer_parameter::ParameterChoice;
use nereid_wire::inference::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use nereid_wire::inference::{InferParameter, ModelInferRequest};

/// Tails shorter than this are copied behind the rest: cheaper than another piece of a gathered send.
const COPY_BELOW: usize = 16 * 1024;
/// Says where the JSON of a body ends (contract/http.md section 5).
pub const JSON_LENGTH: &str = "Inference-Header-Content-Length";
/// What stands for the marks of a sequence in an HTTP body: `"sequence_id":` and 20 digits, and two booleans.
const HTTP_MARKS: usize = 78;

/// What differs between requests of one template.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Marks {
    /// Of a request on a stream.
    pub id: Option<Key>,
    pub sequence: Option<SequenceMark>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SequenceMark {
    pub id: u64,
    pub start: bool,
    pub end: bool,
}

/// Where the tensors of a template lie, if that is shared memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    pub region: String,
    /// Of each input, in order.
    pub inputs: Vec<u64>,
    /// Name, offset and room of each output.
    pub outputs: Vec<(String, u64, u64)>,
}

/// A template in the form of its protocol.
#[derive(Debug)]
pub struct Prepared {
    layout: Layout,
    /// Comes first; of HTTP with its head, unless that can only be made with the body.
    before: Vec<u8>,
    after: Slice,
    packing: Compression,
}

#[derive(Debug)]
enum Layout {
    /// Nothing differs.
    Fixed,
    /// A message, framed as it is sent.
    Grpc,
    /// An HTTP body with marks in it, behind its head.
    Http,
    /// An HTTP body that is packed when it is sent, and the parts of its head before and behind the length.
    PackedHttp { head: Vec<u8> },
}

impl Prepared {
    pub fn new(plan: &Plan, template: &Template, placement: Option<&Placement>) -> Result<Prepared, PerfError> {
        let in_sequence = plan.work.sequences.is_some();
        if let Some(openai) = plan.service.openai() {
            return openai::prepare(plan, openai, template);
        }
        match plan.target.protocol {
            Protocol::Http => http(plan, template, placement, in_sequence),
            Protocol::GrpcUnary | Protocol::Ipc => Ok(grpc(plan, template, placement, in_sequence)),
            Protocol::GrpcStream => Ok(grpc(plan, template, placement, true)),
        }
    }

    /// Writes one request into `scratch`; what is returned follows it.
    pub fn write(&self, marks: &Marks, scratch: &mut Vec<u8>) -> Option<&Slice> {
        scratch.clear();
        let tail = (!self.after.is_empty()).then_some(&self.after);
        match &self.layout {
            Layout::Fixed => scratch.extend_from_slice(&self.before),
            Layout::Grpc => return self.write_message(marks, scratch),
            Layout::Http => {
                scratch.extend_from_slice(&self.before);
                put_http_marks(marks.sequence, scratch);
            }
            Layout::PackedHttp { head } => {
                let mut body = self.before.clone();
                put_http_marks(marks.sequence, &mut body);
                body.extend_from_slice(&self.after);
                let body = pack(self.packing, &body);
                scratch.extend_from_slice(head);
                let _ = write!(scratch, "Content-Length: {}\r\n\r\n", body.len());
                scratch.extend_from_slice(&body);
                return None;
            }
        }
        if let Some(tail) = tail.filter(|tail| tail.len() < COPY_BELOW) {
            scratch.extend_from_slice(tail);
            return None;
        }
        tail
    }

    fn write_message(&self, marks: &Marks, scratch: &mut Vec<u8>) -> Option<&Slice> {
        scratch.extend_from_slice(&[0; PREFIX_BYTES]);
        scratch.extend_from_slice(&self.before);
        put_grpc_marks(marks, scratch);
        let packed = self.packing != Compression::None;
        let apart = !packed && self.after.len() >= COPY_BELOW;
        if !apart {
            scratch.extend_from_slice(&self.after);
        }
        if packed {
            let body = pack(self.packing, scratch.get(PREFIX_BYTES..).unwrap_or_default());
            scratch.truncate(PREFIX_BYTES);
            scratch.extend_from_slice(&body);
        }
        let len = scratch.len() - PREFIX_BYTES + if apart { self.after.len() } else { 0 };
        set_prefix(scratch, packed, len);
        apart.then_some(&self.after)
    }
}

fn set_prefix(frame: &mut [u8], packed: bool, len: usize) {
    if let Some(prefix) = frame.first_chunk_mut::<PREFIX_BYTES>() {
        let [a, b, c, d] = u32::try_from(len).unwrap_or(u32::MAX).to_be_bytes();
        *prefix = [u8::from(packed), a, b, c, d];
    }
}

fn pack(packing: Compression, plain: &[u8]) -> Vec<u8> {
    // Writing to memory does not fail.
    match packing {
        Compression::None => plain.to_vec(),
        Compression::Gzip => {
            let mut encoder = GzEncoder::new(Vec::new(), Effort::default());
            encoder.write_all(plain).and_then(|()| encoder.finish()).unwrap_or_default()
        }
        Compression::Deflate => {
            let mut encoder = ZlibEncoder::new(Vec::new(), Effort::default());
            encoder.write_all(plain).and_then(|()| encoder.finish()).unwrap_or_default()
        }
    }
}

/// Fields 3 and 4 of ModelInferRequest. No part is longer than 127 bytes, so every length is one byte.
fn put_grpc_marks(marks: &Marks, into: &mut Vec<u8>) {
    if let Some(id) = marks.id {
        into.extend_from_slice(&[3 << 3 | 2, 16]);
        put_id(id, into);
    }
    let Some(mark) = marks.sequence else { return };
    let mut number = [0; 11];
    number[0] = 2 << 3;
    let mut len = 1;
    let mut left = mark.id;
    loop {
        let more = left > 0x7F;
        if let Some(byte) = number.get_mut(len) {
            *byte = (left & 0x7F) as u8 | if more { 0x80 } else { 0 };
        }
        len += 1;
        left >>= 7;
        if !more {
            break;
        }
    }
    put_entry(b"sequence_id", number.get(..len).unwrap_or_default(), into);
    put_entry(b"sequence_start", &[1 << 3, u8::from(mark.start)], into);
    put_entry(b"sequence_end", &[1 << 3, u8::from(mark.end)], into);
}

fn put_entry(key: &[u8], value: &[u8], into: &mut Vec<u8>) {
    into.extend_from_slice(&[4 << 3 | 2, (key.len() + value.len() + 4) as u8, 1 << 3 | 2, key.len() as u8]);
    into.extend_from_slice(key);
    into.extend_from_slice(&[2 << 3 | 2, value.len() as u8]);
    into.extend_from_slice(value);
}

/// The id of a request on a stream: 16 hexadecimal digits.
pub fn put_id(id: Key, into: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let number = id.to_u64();
    for shift in (0..16).rev() {
        into.push(DIGITS[(number >> (4 * shift) & 0xF) as usize]);
    }
}

/// The key that [`put_id`] wrote.
pub fn read_id(text: &[u8]) -> Option<Key> {
    let digits = text.first_chunk::<16>().filter(|_| text.len() == 16)?;
    let mut number = 0;
    for digit in digits {
        number = number << 4 | u64::from(char::from(*digit).to_digit(16)?);
    }
    Key::from_u64(number)
}

fn put_http_marks(mark: Option<SequenceMark>, into: &mut Vec<u8>) {
    let Some(SequenceMark { id, start, end }) = mark else { return };
    // Blanks behind a value are JSON too.
    let _ = write!(into, "\"sequence_id\":{id:<20},\"sequence_start\":{start:<5},\"sequence_end\":{end:<5}");
}

fn grpc(plan: &Plan, template: &Template, placement: Option<&Placement>, differs: bool) -> Prepared {
    let work = &plan.work;
    let begin = ModelInferRequest {
        model_name: plan.model.clone(),
        model_version: plan.version.clone(),
        ..ModelInferRequest::default()
    };
    let mut parameters: BTreeMap<String, InferParameter> =
        template.parameters.iter().map(|(name, value)| (name.clone(), grpc_parameter(value))).collect();
    if work.priority > 0 {
        parameters.insert("priority".to_owned(), choice(ParameterChoice::Uint64Param(work.priority)));
    }
    if let Some(timeout_us) = work.queue_timeout_us {
        let timeout_us = i64::try_from(timeout_us).unwrap_or(i64::MAX);
        parameters.insert("timeout".to_owned(), choice(ParameterChoice::Int64Param(timeout_us)));
    }
    if work.decoupled {
        let name = "triton_enable_empty_final_response";
        parameters.insert(name.to_owned(), choice(ParameterChoice::BoolParam(true)));
    }
    let place = |offset: u64, size: u64| -> BTreeMap<String, InferParameter> {
        let Some(placement) = placement else { return BTreeMap::new() };
        let number = |value| choice(ParameterChoice::Int64Param(i64::try_from(value).unwrap_or(i64::MAX)));
        BTreeMap::from([
            ("shared_memory_region".to_owned(), choice(ParameterChoice::StringParam(placement.region.clone()))),
            ("shared_memory_offset".to_owned(), number(offset)),
            ("shared_memory_byte_size".to_owned(), number(size)),
        ])
    };
    let inputs = template.inputs.iter().enumerate().map(|(at, input)| InferInputTensor {
        name: input.name.clone(),
        datatype: input.datatype.clone(),
        shape: input.shape.clone(),
        parameters: placement
            .and_then(|placement| placement.inputs.get(at))
            .map_or_else(BTreeMap::new, |offset| place(*offset, input.data.len() as u64)),
        contents: None,
    });
    let outputs: Vec<InferRequestedOutputTensor> = match placement {
        Some(placement) => {
            let output = |(name, offset, room): &(String, u64, u64)| InferRequestedOutputTensor {
                name: name.clone(),
                parameters: place(*offset, *room),
            };
            placement.outputs.iter().map(output).collect()
        }
        None => {
            let output = |name: &String| InferRequestedOutputTensor { name: name.clone(), parameters: BTreeMap::new() };
            template.outputs.iter().map(output).collect()
        }
    };
    let raw = template.inputs.iter().filter(|_| placement.is_none());
    let rest = ModelInferRequest {
        parameters,
        inputs: inputs.collect(),
        outputs,
        raw_input_contents: raw.map(|input| Bytes::copy_from_slice(&input.data)).collect(),
        ..ModelInferRequest::default()
    };
    let prepared = Prepared {
        layout: Layout::Grpc,
        before: begin.encode_to_vec(),
        after: Slice::copy_of(&rest.encode_to_vec()),
        packing: work.compression,
    };
    if differs { prepared } else { prepared.fixed() }
}

impl Prepared {
    /// The same where nothing differs: written once.
    fn fixed(self) -> Prepared {
        let mut before = Vec::new();
        let tail = self.write(&Marks::default(), &mut before).cloned();
        let empty = || Slice::from_static(b"");
        Prepared { layout: Layout::Fixed, before, after: tail.unwrap_or_else(empty), packing: Compression::None }
    }
}

fn choice(choice: ParameterChoice) -> InferParameter {
    InferParameter { parameter_choice: Some(choice) }
}

fn grpc_parameter(value: &Parameter) -> InferParameter {
    choice(match value {
        Parameter::Bool(value) => ParameterChoice::BoolParam(*value),
        Parameter::Int(value) => ParameterChoice::Int64Param(*value),
        Parameter::Uint(value) => ParameterChoice::Uint64Param(*value),
        Parameter::Double(value) => ParameterChoice::DoubleParam(*value),
        Parameter::String(value) => ParameterChoice::StringParam(value.clone()),
    })
}

fn http(plan: &Plan, template: &Template, placement: Option<&Placement>, differs: bool) -> Result<Prepared, PerfError> {
    let work = &plan.work;
    let mut parameters: Map<String, Value> =
        template.parameters.iter().map(|(name, value)| (name.clone(), http_parameter(value))).collect();
    if work.priority > 0 {
        parameters.insert("priority".to_owned(), json!(work.priority));
    }
    if let Some(timeout_us) = work.queue_timeout_us {
        parameters.insert("timeout".to_owned(), json!(timeout_us));
    }
    let binary_in = work.input_form == Form::Binary && placement.is_none();
    let binary_out = work.output_form == Form::Binary && placement.is_none();
    if binary_out && template.outputs.is_empty() {
        parameters.insert("binary_data_output".to_owned(), json!(true));
    }
    let mut inputs = Vec::with_capacity(template.inputs.len());
    for (at, input) in template.inputs.iter().enumerate() {
        inputs.push(http_input(input, at, placement, binary_in)?);
    }
    let outputs: Vec<Value> = match placement {
        Some(placement) => {
            let output = |(name, offset, room): &(String, u64, u64)| {
                let place = http_place(&placement.region, *offset, *room);
                json!({"name": name, "parameters": place})
            };
            placement.outputs.iter().map(output).collect()
        }
        None => {
            let output = |name: &String| json!({"name": name, "parameters": {"binary_data": binary_out}});
            template.outputs.iter().map(output).collect()
        }
    };
    let parameters = Value::Object(parameters).to_string();
    // The marks go in front of the closing brace.
    let open = parameters.strip_suffix('}').unwrap_or_default();
    let comma = if differs && open.len() > 1 { "," } else { "" };
    let before = format!("{{\"parameters\":{open}{comma}").into_bytes();
    let mut after = format!("}},\"inputs\":{}", Value::Array(inputs)).into_bytes();
    if !outputs.is_empty() {
        let _ = write!(after, ",\"outputs\":{}", Value::Array(outputs));
    }
    after.push(b'}');
    let marks = if differs { HTTP_MARKS } else { 0 };
    let json_length = binary_in.then_some(before.len() + marks + after.len());
    if binary_in {
        template.inputs.iter().for_each(|input| after.extend_from_slice(&input.data));
    }
    let body_length = before.len() + marks + after.len();
    let after = Slice::copy_of(&after);
    Ok(match (work.compression, differs) {
        (Compression::None, _) => {
            let mut whole = head(plan, json_length, RequestBody::Length(body_length));
            whole.extend_from_slice(&before);
            let layout = if differs { Layout::Http } else { Layout::Fixed };
            Prepared { layout, before: whole, after, packing: Compression::None }
        }
        (packing, _) => {
            let mut head = head(plan, json_length, RequestBody::None);
            // Its empty line stands behind the length of the packed body.
            head.truncate(head.len().saturating_sub(2));
            let prepared = Prepared { layout: Layout::PackedHttp { head }, before, after, packing };
            if differs { prepared } else { prepared.fixed() }
        }
    })
}

fn head(plan: &Plan, json_length: Option<usize>, body: RequestBody) -> Vec<u8> {
    let json_length = json_length.map(|length| length.to_string());
    let kind = if json_length.is_some() { "application/octet-stream" } else { "application/json" };
    let mut fields = vec![("Content-Type", kind)];
    fields.extend(json_length.as_deref().map(|length| (JSON_LENGTH, length)));
    match plan.work.compression {
        Compression::None => {}
        Compression::Gzip => fields.push(("Content-Encoding", "gzip")),
        Compression::Deflate => fields.push(("Content-Encoding", "deflate")),
    }
    fields.extend(plan.work.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    let version = match plan.version.as_str() {
        "" => String::new(),
        version => format!("/versions/{}", escape(version)),
    };
    let head = RequestHead {
        method: "POST",
        target: &format!("/v2/models/{}{version}/infer", escape(&plan.model)),
        host: &plan.target.endpoint.authority(),
        headers: &fields,
        body,
    };
    let mut bytes = Vec::new();
    head.encode(&mut bytes);
    bytes
}

/// What is plain in a segment of a path (RFC 3986 section 2.3, "unreserved").
const PLAIN: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A segment of a path: what is not plain there is percent-encoded.
pub fn escape(name: &str) -> String {
    utf8_percent_encode(name, &PLAIN).to_string()
}

fn http_input(input: &Input, at: usize, placement: Option<&Placement>, binary: bool) -> Result<Value, PerfError> {
    let mut value = json!({"name": input.name, "datatype": input.datatype, "shape": input.shape});
    match (placement, placement.and_then(|placement| placement.inputs.get(at))) {
        (Some(placement), Some(offset)) => {
            value["parameters"] = http_place(&placement.region, *offset, input.data.len() as u64);
        }
        _ if binary => value["parameters"] = json!({"binary_data_size": input.data.len()}),
        _ => {
            let data = json::values(&input.datatype, &input.data).map_err(|reason| {
                let next = "send it with --input-tensor-format=binary";
                PerfError::Plan(format!("input '{}' cannot be sent as JSON: {reason}; {next}", input.name))
            })?;
            value["data"] = Value::Array(data);
        }
    }
    Ok(value)
}

fn http_place(region: &str, offset: u64, size: u64) -> Value {
    json!({"shared_memory_region": region, "shared_memory_offset": offset, "shared_memory_byte_size": size})
}

fn http_parameter(value: &Parameter) -> Value {
    match value {
        Parameter::Bool(value) => json!(value),
        Parameter::Int(value) => json!(value),
        Parameter::Uint(value) => json!(value),
        Parameter::Double(value) => json!(value),
        Parameter::String(value) => json!(value),
    }
}

#[cfg(test)]
mod tests;
