//! Messages to bytes: gRPC prefix and protobuf, with tensors by reference.
//!
//! The size of a message is computed first, because its prefix and gRPC's limit need it before the first byte; then the
//! small parts are written into one reused buffer and each tensor of a kilobyte or more joins the gather list as the
//! slice that it is. Nothing is allocated for a message once the buffer has grown.

use bytes::Bytes;
use prost::Message;

use super::{Code, MESSAGE_BYTES_MAX, PREFIX_BYTES, Value, varint};
use nereid_memory::{BlockMut, Gather, Pool, Slice};

/// Tensors shorter than this are copied behind the head: [`Gather`] would do the same, one by one.
const COPY_BELOW: usize = 1024;
/// Capacity of the buffer that is kept from one message to the next.
const KEPT_BYTES: usize = 64 * 1024;

/// Longer messages, or fronts of messages, are written to memory of their own.
const SHARED_MAX: usize = 1024;
const SHARED_BLOCK_BYTES: usize = 16 * 1024;

/// The message cannot be sent, because gRPC's limit ends before it (contract/grpc.md section 4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("Response has byte size {bytes} which exceeds gRPC's byte size limit {MESSAGE_BYTES_MAX}.")]
pub struct TooLarge {
    pub bytes: usize,
}

impl TooLarge {
    pub const CODE: Code = Code::InvalidArgument;
}

/// The contents of ModelInferResponse. The iterators are walked twice: to measure and to write.
#[derive(Debug, Clone)]
pub struct InferResponse<'a, P, O> {
    pub model_name: &'a str,
    pub model_version: &'a str,
    pub id: &'a str,
    /// `Iterator<Item = (&str, Value)>`, each key once.
    pub parameters: P,
    /// `Iterator<Item = OutputTensor>`.
    pub outputs: O,
}

/// One output, with its data as one raw_output_contents entry: empty where the data is in shared memory.
#[derive(Debug, Clone, Copy)]
pub struct OutputTensor<'a> {
    pub name: &'a str,
    pub datatype: &'a str,
    pub shape: &'a [i64],
    pub data: &'a Slice,
}

/// The contents of ModelInferRequest, for the client's role.
#[derive(Debug, Clone)]
pub struct InferRequestParts<'a, P, I, O> {
    pub model_name: &'a str,
    pub model_version: &'a str,
    pub id: &'a str,
    /// `Iterator<Item = (&str, Value)>`, each key once.
    pub parameters: P,
    /// `Iterator<Item = InputTensor>`.
    pub inputs: I,
    /// `Iterator<Item = RequestedOutput>`.
    pub outputs: O,
}

#[derive(Debug, Clone, Copy)]
pub struct InputTensor<'a> {
    pub name: &'a str,
    pub datatype: &'a str,
    pub shape: &'a [i64],
    pub parameters: &'a [(&'a str, Value<'a>)],
    /// One raw_input_contents entry; none where the data is in shared memory.
    pub data: Option<&'a Slice>,
}

#[derive(Debug, Clone, Copy)]
pub struct RequestedOutput<'a> {
    pub name: &'a str,
    pub parameters: &'a [(&'a str, Value<'a>)],
}

/// Writes messages; keeps its buffer from one to the next.
#[derive(Debug, Default)]
pub struct Encoder {
    head: Vec<u8>,
    /// What short messages are written to, one behind the other.
    block: Option<BlockMut>,
}

/// What responses of one model with the same parameters and the same kinds of outputs have in common, as bytes.
#[derive(Debug, Clone, Default)]
pub struct ResponseHead {
    /// The model's name and version, before the id.
    model: Vec<u8>,
    parameters: Vec<u8>,
    outputs: Vec<u8>,
}

impl ResponseHead {
    /// Its bytes.
    pub fn len(&self) -> usize {
        self.model.len() + self.parameters.len() + self.outputs.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The parameter with which streams state whether another response follows.
pub const FINAL: &str = "triton_final_response";

impl Encoder {
    pub fn new() -> Encoder {
        Encoder::default()
    }

    /// Appends any message, prefix included.
    pub fn message(&mut self, message: &impl Message, pool: &Pool, into: &mut Gather) -> Result<(), TooLarge> {
        self.prefix(message.encoded_len())?;
        message.encode_raw(&mut self.head);
        self.flush(pool, into);
        Ok(())
    }

    /// Appends a ModelInferResponse, prefix included.
    pub fn infer_response<'a, P, O>(
        &mut self,
        response: &InferResponse<'a, P, O>,
        pool: &Pool,
        into: &mut Gather,
    ) -> Result<(), TooLarge>
    where
        P: Iterator<Item = (&'a str, Value<'a>)> + Clone,
        O: Iterator<Item = OutputTensor<'a>> + Clone,
    {
        self.prefix(response.len())?;
        self.write_response(response, pool, into);
        self.flush(pool, into);
        Ok(())
    }

    /// Appends a ModelStreamInferResponse, prefix included. `error_message` is empty on success.
    pub fn stream_response<'a, P, O>(
        &mut self,
        error_message: &str,
        response: &InferResponse<'a, P, O>,
        pool: &Pool,
        into: &mut Gather,
    ) -> Result<(), TooLarge>
    where
        P: Iterator<Item = (&'a str, Value<'a>)> + Clone,
        O: Iterator<Item = OutputTensor<'a>> + Clone,
    {
        let len = response.len();
        self.prefix(text_len(error_message) + field_len(len))?;
        self.text(1, error_message);
        self.length(2, len);
        self.write_response(response, pool, into);
        self.flush(pool, into);
        Ok(())
    }

    /// What responses like this one have in common: all but id and contents.
    pub fn response_head<'a, P, O>(&mut self, response: &InferResponse<'a, P, O>) -> ResponseHead
    where
        P: Iterator<Item = (&'a str, Value<'a>)> + Clone,
        O: Iterator<Item = OutputTensor<'a>> + Clone,
    {
        self.head.clear();
        self.text(1, response.model_name);
        self.text(2, response.model_version);
        let model = self.head.len();
        self.parameters(4, response.parameters.clone());
        let parameters = self.head.len();
        for output in response.outputs.clone() {
            self.length(5, tensor_len(output.name, output.datatype, output.shape));
            self.tensor(output.name, output.datatype, output.shape);
        }
        let part = |range: std::ops::Range<usize>| self.head.get(range).unwrap_or_default().to_vec();
        let head = ResponseHead {
            model: part(0..model),
            parameters: part(model..parameters),
            outputs: part(parameters..self.head.len()),
        };
        self.head.clear();
        head
    }

    /// Appends a response whose head is known, prefix included: with `is_final` a ModelStreamInferResponse that says
    /// so, else a ModelInferResponse. `contents` has an item for each output.
    pub fn known_response<'a>(
        &mut self,
        head: &ResponseHead,
        id: &str,
        is_final: Option<bool>,
        contents: impl Iterator<Item = &'a Slice> + Clone,
        pool: &Pool,
        into: &mut Gather,
    ) -> Result<(), TooLarge> {
        let flag = is_final.map(Value::Bool);
        let flag_len = flag.map_or(0, |flag| field_len(entry_len(FINAL, flag)));
        let contents_len: usize = contents.clone().map(|data| field_len(data.len())).sum();
        let len = head.len() + text_len(id) + flag_len + contents_len;
        match flag {
            None => self.prefix(len)?,
            Some(_) => {
                self.prefix(field_len(len))?;
                self.length(2, len);
            }
        }
        self.head.extend_from_slice(&head.model);
        self.text(3, id);
        self.head.extend_from_slice(&head.parameters);
        if let Some(flag) = flag {
            self.parameters(4, std::iter::once((FINAL, flag)));
        }
        self.head.extend_from_slice(&head.outputs);
        for data in contents {
            self.length(6, data.len());
            self.data(data, pool, into);
        }
        self.flush(pool, into);
        Ok(())
    }

    /// Appends a ModelInferRequest, prefix included.
    pub fn infer_request<'a, P, I, O>(
        &mut self,
        request: &InferRequestParts<'a, P, I, O>,
        pool: &Pool,
        into: &mut Gather,
    ) -> Result<(), TooLarge>
    where
        P: Iterator<Item = (&'a str, Value<'a>)> + Clone,
        I: Iterator<Item = InputTensor<'a>> + Clone,
        O: Iterator<Item = RequestedOutput<'a>> + Clone,
    {
        self.prefix(request.len())?;
        self.text(1, request.model_name);
        self.text(2, request.model_version);
        self.text(3, request.id);
        self.parameters(4, request.parameters.clone());
        for input in request.inputs.clone() {
            self.length(5, tensor_len(input.name, input.datatype, input.shape) + parameters_len(input.parameters));
            self.tensor(input.name, input.datatype, input.shape);
            self.parameters(4, input.parameters.iter().copied());
        }
        for output in request.outputs.clone() {
            self.length(6, text_len(output.name) + parameters_len(output.parameters));
            self.text(1, output.name);
            self.parameters(2, output.parameters.iter().copied());
        }
        for data in request.inputs.clone().filter_map(|input| input.data) {
            self.length(7, data.len());
            self.data(data, pool, into);
        }
        self.flush(pool, into);
        Ok(())
    }

    /// Begins a message of `len` bytes, uncompressed.
    fn prefix(&mut self, len: usize) -> Result<(), TooLarge> {
        if len > MESSAGE_BYTES_MAX {
            return Err(TooLarge { bytes: len });
        }
        self.head.clear();
        self.head.shrink_to(KEPT_BYTES);
        self.head.reserve(PREFIX_BYTES);
        self.head.push(0);
        self.head.extend_from_slice(&(len as u32).to_be_bytes());
        Ok(())
    }

    fn write_response<'a, P, O>(&mut self, response: &InferResponse<'a, P, O>, pool: &Pool, into: &mut Gather)
    where
        P: Iterator<Item = (&'a str, Value<'a>)> + Clone,
        O: Iterator<Item = OutputTensor<'a>> + Clone,
    {
        self.text(1, response.model_name);
        self.text(2, response.model_version);
        self.text(3, response.id);
        self.parameters(4, response.parameters.clone());
        for output in response.outputs.clone() {
            self.length(5, tensor_len(output.name, output.datatype, output.shape));
            self.tensor(output.name, output.datatype, output.shape);
        }
        for output in response.outputs.clone() {
            self.length(6, output.data.len());
            self.data(output.data, pool, into);
        }
    }

    /// Fields 1 to 3 of InferInputTensor and InferOutputTensor.
    fn tensor(&mut self, name: &str, datatype: &str, shape: &[i64]) {
        self.text(1, name);
        self.text(2, datatype);
        if !shape.is_empty() {
            self.length(3, shape_len(shape));
            shape.iter().for_each(|&dim| varint::put(dim as u64, &mut self.head));
        }
    }

    fn parameters<'a>(&mut self, number: u8, parameters: impl Iterator<Item = (&'a str, Value<'a>)>) {
        for (key, value) in parameters {
            self.length(number, entry_len(key, value));
            self.text(1, key);
            self.length(2, value_len(value));
            match value {
                Value::Unset => {}
                Value::Bool(value) => self.head.extend_from_slice(&[1 << 3, u8::from(value)]),
                Value::Int64(value) => self.varint(2, value as u64),
                // The choice itself is the message, so an empty string is written too.
                Value::String(value) => {
                    self.length(3, value.len());
                    self.head.extend_from_slice(value.as_bytes());
                }
                Value::Double(value) => {
                    self.head.push(4 << 3 | 1);
                    self.head.extend_from_slice(&value.to_le_bytes());
                }
                Value::Uint64(value) => self.varint(5, value),
            }
        }
    }

    fn data(&mut self, data: &Slice, pool: &Pool, into: &mut Gather) {
        if data.len() < COPY_BELOW {
            data.append_to(&mut self.head);
        } else {
            self.flush(pool, into);
            into.push(pool, data.clone());
        }
    }

    /// Puts what is written behind what there is. A short message alone lies in one piece of a block that others share.
    fn flush(&mut self, pool: &Pool, into: &mut Gather) {
        if into.is_empty() && self.head.len() <= SHARED_MAX {
            if self.block.as_ref().is_none_or(|block| block.spare() < self.head.len()) {
                self.block = pool.get(SHARED_BLOCK_BYTES).ok();
                self.block.iter_mut().for_each(|block| block.set_len(0));
            }
            if let Some(block) = &mut self.block {
                let len = block.append(&self.head);
                into.push_whole(block.split_to(len));
                return self.head.clear();
            }
        }
        into.put(pool, &self.head);
        self.head.clear();
    }

    /// A string field; proto3 leaves empty ones out.
    fn text(&mut self, number: u8, text: &str) {
        if !text.is_empty() {
            self.length(number, text.len());
            self.head.extend_from_slice(text.as_bytes());
        }
    }

    /// Key and length of a field that holds `len` bytes. All numbers here are below 16: their key is one byte.
    #[inline]
    fn length(&mut self, number: u8, len: usize) {
        self.head.push(number << 3 | 2);
        varint::put(len as u64, &mut self.head);
    }

    fn varint(&mut self, number: u8, value: u64) {
        self.head.push(number << 3);
        varint::put(value, &mut self.head);
    }
}

/// Decodes a collected message. Its `bytes` fields share the memory of `message`.
pub fn decode<M: Message + Default>(message: Slice) -> Result<M, prost::DecodeError> {
    struct Owner(Slice);
    impl AsRef<[u8]> for Owner {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    M::decode(Bytes::from_owner(Owner(message)))
}

impl<'a, P, O> InferResponse<'a, P, O>
where
    P: Iterator<Item = (&'a str, Value<'a>)> + Clone,
    O: Iterator<Item = OutputTensor<'a>> + Clone,
{
    /// Bytes of the message without its prefix.
    fn len(&self) -> usize {
        let head = text_len(self.model_name) + text_len(self.model_version) + text_len(self.id);
        let parameters = self.parameters.clone().map(|(key, value)| field_len(entry_len(key, value)));
        let outputs = self.outputs.clone().map(|output| {
            field_len(tensor_len(output.name, output.datatype, output.shape)) + field_len(output.data.len())
        });
        head + parameters.sum::<usize>() + outputs.sum::<usize>()
    }
}

impl<'a, P, I, O> InferRequestParts<'a, P, I, O>
where
    P: Iterator<Item = (&'a str, Value<'a>)> + Clone,
    I: Iterator<Item = InputTensor<'a>> + Clone,
    O: Iterator<Item = RequestedOutput<'a>> + Clone,
{
    fn len(&self) -> usize {
        let head = text_len(self.model_name) + text_len(self.model_version) + text_len(self.id);
        let parameters = self.parameters.clone().map(|(key, value)| field_len(entry_len(key, value)));
        let inputs = self.inputs.clone().map(|input| {
            let tensor = tensor_len(input.name, input.datatype, input.shape) + parameters_len(input.parameters);
            field_len(tensor) + input.data.map_or(0, |data| field_len(data.len()))
        });
        let outputs =
            self.outputs.clone().map(|output| field_len(text_len(output.name) + parameters_len(output.parameters)));
        head + parameters.sum::<usize>() + inputs.sum::<usize>() + outputs.sum::<usize>()
    }
}

/// A field of one byte of key, a length, and `len` bytes.
#[inline]
fn field_len(len: usize) -> usize {
    1 + varint::len(len as u64) + len
}

#[inline]
fn text_len(text: &str) -> usize {
    if text.is_empty() { 0 } else { field_len(text.len()) }
}

fn shape_len(shape: &[i64]) -> usize {
    shape.iter().map(|&dim| varint::len(dim as u64)).sum()
}

fn tensor_len(name: &str, datatype: &str, shape: &[i64]) -> usize {
    let shape = if shape.is_empty() { 0 } else { field_len(shape_len(shape)) };
    text_len(name) + text_len(datatype) + shape
}

fn value_len(value: Value<'_>) -> usize {
    match value {
        Value::Unset => 0,
        Value::Bool(_) => 2,
        Value::Int64(value) => 1 + varint::len(value as u64),
        Value::String(value) => field_len(value.len()),
        Value::Double(_) => 9,
        Value::Uint64(value) => 1 + varint::len(value),
    }
}

#[inline]
fn entry_len(key: &str, value: Value<'_>) -> usize {
    text_len(key) + field_len(value_len(value))
}

fn parameters_len(parameters: &[(&str, Value<'_>)]) -> usize {
    parameters.iter().map(|&(key, value)| field_len(entry_len(key, value))).sum()
}

#[cfg(test)]
mod tests;
