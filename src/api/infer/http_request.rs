//! An inference request of the HTTP protocol: JSON header, binary tail, raw-binary mode (contract/http.md section 5).
//!
//! Decoding is a sequence of bounded steps, because the JSON may hold millions of numbers: they go straight from the
//! text into the tensor's buffer, a few thousand a turn.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::regions::RegionRange;
use super::{AnswerForm, Decode, Manner, OutputForm, Progress};
use crate::api::forwarding::Forwarded;
use crate::api::http::dialect::Dialect;
use crate::api::steps::TOKENS_PER_STEP;
use crate::api::timing::PARAMETER;
use nereid_memory::{ALIGNMENT, BlockMut, PORTION_BYTES_MAX, Pool, Portions, Slice};
use nereid_protocol::json::{
    AccessError, Builder, Document, DocumentError, Element, Kind, NumbersReader, Paused, StringsReader, TensorError,
    Value,
};
use nereid_request::{
    CorrelationId, DataType, InputTensor, Request, SEQUENCE_END, SEQUENCE_START, Shape, SharedMemory, Status, Text,
};
use nereid_request::{Value as Parameter, format_shape};
use nereid_scheduler::ServedModel;
use nereid_scheduler::next_step::unexpected_input;
use nereid_scheduler::validate::{
    self, NamedTensors, RawInput, add_named_input, add_named_output, check_input_count, check_output_count,
    check_parameter_count,
};

/// Bytes of text beyond which a step is a long one although it came to its end.
const LONG_BYTES: usize = 8 * 1024;

/// Bytes that one step copies.
const COPIED_AT_ONCE: usize = 64 * 1024;

/// Names, ids and parameters of one request, in bytes. A gRPC message has the same bound.
pub(in crate::api) const TEXT_BYTES_MAX: usize = nereid_protocol::grpc::TEXT_BYTES_MAX;

/// Arrays of numbers that one step begins with.
const OPENED_AT_ONCE: usize = 4;

/// Inputs that one step reads whose data is there already, and outputs.
const INPUTS_AT_ONCE: usize = 4;
const OUTPUTS_AT_ONCE: usize = 8;

/// A request being decoded.
pub struct Decoder {
    pub model: Arc<ServedModel>,
    pub form: AnswerForm,
    /// Headers that become parameters, once the body is read.
    pub forwarded: Forwarded,
    request: Box<Request>,
    body: Slice,
    /// Where the binary tail begins.
    tail: usize,
    stage: Stage,
    /// The inputs that are still to be read, then the outputs.
    rest: Paused,
    /// Those of them that were.
    named: NamedTensors,
    /// Of short tensors that are copied to where they are aligned.
    portions: Portions,
    input_bytes_max: usize,
}

enum Stage {
    Parse(Box<Builder>),
    /// The document is there; this many inputs are done.
    Inputs {
        document: Box<Document>,
        done: usize,
    },
    /// The `data` of input `index` is being read.
    Numbers {
        document: Box<Document>,
        index: usize,
        reader: NumbersReader,
        block: BlockMut,
    },
    Measure {
        document: Box<Document>,
        index: usize,
        reader: Box<StringsReader>,
    },
    Strings {
        document: Box<Document>,
        index: usize,
        reader: Box<StringsReader>,
        block: BlockMut,
    },
    /// Some of the outputs are read.
    Outputs {
        document: Box<Document>,
    },
    /// The body is one string, which gets its length before it.
    RawString {
        length: u32,
    },
    /// The next bytes of the body's end are copied to where they are aligned: the data of input `index`, after which
    /// the document goes on, if there is one.
    Copy {
        document: Option<Box<Document>>,
        index: usize,
        from: Slice,
        block: BlockMut,
    },
    Done,
}

pub(in crate::api) fn parse_error(member: &str) -> impl Fn(AccessError) -> Status + '_ {
    move |error| Status::internal(format!("Unable to parse '{member}': {error}"))
}

/// A member that has to be there.
fn given<'d>(member: Option<Value<'d>>, name: &str) -> Result<Value<'d>, AccessError> {
    member.ok_or_else(|| AccessError::NoMember(name.to_owned()))
}

fn text(value: Value<'_>) -> Result<Text, AccessError> {
    Ok(Text::new(&value.as_str()?))
}

impl Decoder {
    /// `header_len` is the length of the leading JSON; the rest of `body` are binary tensors.
    pub fn new(
        model: Arc<ServedModel>,
        request: Box<Request>,
        body: Slice,
        header_len: usize,
        input_bytes_max: usize,
    ) -> Result<Decoder, (Status, Box<Request>)> {
        let builder = match Builder::new(body.window(0..header_len), |depth, key| depth == 3 && key == b"data") {
            Ok(builder) => builder,
            Err(error) => return Err((Status::internal(error.to_string()), request)),
        };
        let (stage, form) = (Stage::Parse(Box::new(builder)), AnswerForm::default());
        let forwarded = Forwarded::default();
        let (rest, named, portions) = (Paused::default(), NamedTensors::default(), Portions::default());
        let tail = header_len;
        Ok(Decoder { model, form, forwarded, request, body, tail, stage, rest, named, portions, input_bytes_max })
    }

    /// A request whose whole body is its one tensor (contract/http.md section 5, "Raw-binary mode").
    pub fn raw_binary(
        model: Arc<ServedModel>,
        mut request: Box<Request>,
        body: Slice,
        input_bytes_max: usize,
    ) -> Result<Decoder, (Status, Box<Request>)> {
        let got = body.len();
        if got > input_bytes_max {
            let status = Status::invalid(format!(
                "Raw input has a byte_size ({got} bytes) that exceeds the maximum allowed value of {input_bytes_max} \
                 bytes. Use --http-max-input-size to increase the limit."
            ));
            return Err((status, request));
        }
        let (mut input, length) = match raw_input(&model, &request, &body) {
            Ok(input) => input,
            Err(status) => return Err((status, request)),
        };
        let (stage, body) = match length {
            Some(length) => (Stage::RawString { length }, body),
            None => {
                input.data = smallvec![body];
                (Stage::Done, Slice::empty())
            }
        };
        request.inputs.push(input);
        let form = AnswerForm { binary_by_default: true, ..AnswerForm::default() };
        let (rest, named, forwarded) = (Paused::default(), NamedTensors::default(), Forwarded::default());
        let (tail, portions) = (0, Portions::default());
        Ok(Decoder { model, form, forwarded, request, body, tail, stage, rest, named, portions, input_bytes_max })
    }

    /// Does a bounded amount of work.
    pub fn step(&mut self, pool: &Pool, regions: &SharedMemory) -> Result<Progress, Status> {
        let (before, done_before) = (std::mem::discriminant(&self.stage), self.tensors_done());
        // Text that the step read, where it reads elements.
        let mut read_bytes = 0;
        self.stage = match std::mem::replace(&mut self.stage, Stage::Done) {
            Stage::Parse(mut builder) => {
                let done = self.parse(&mut builder, pool)?;
                match done {
                    false => Stage::Parse(builder),
                    true => {
                        let document = Box::new(builder.finish());
                        self.read_head(&document)?;
                        Stage::Inputs { document, done: 0 }
                    }
                }
            }
            Stage::Inputs { document, done } => self.read_inputs(document, done, pool, regions)?,
            Stage::Numbers { document, index, mut reader, mut block } => {
                let from = reader.position();
                let done = reader
                    .step(document.input(), &mut block, TOKENS_PER_STEP)
                    .map_err(|error| self.data_error(index, error))?;
                read_bytes = reader.position() - from;
                match done {
                    false => Stage::Numbers { document, index, reader, block },
                    true => self.finish_data(document, index, block),
                }
            }
            Stage::Measure { document, index, mut reader } => {
                let from = reader.position();
                let done =
                    reader.measure(document.input(), TOKENS_PER_STEP).map_err(|error| self.data_error(index, error))?;
                read_bytes = if done { reader.byte_size() } else { reader.position() - from };
                match done {
                    false => Stage::Measure { document, index, reader },
                    true => {
                        let name = &self.request.inputs[index].name;
                        self.check_json_size(name, reader.byte_size())?;
                        let block = pool.get(reader.byte_size())?;
                        Stage::Strings { document, index, reader, block }
                    }
                }
            }
            Stage::Strings { document, index, mut reader, mut block } => {
                let done = reader
                    .fill(document.input(), &mut block, TOKENS_PER_STEP)
                    .map_err(|error| self.data_error(index, error))?;
                read_bytes = if done { reader.byte_size() } else { 0 };
                match done {
                    false => Stage::Strings { document, index, reader, block },
                    true => self.finish_data(document, index, block),
                }
            }
            Stage::Outputs { document } => self.read_outputs(document, regions)?,
            Stage::RawString { length } => {
                // One piece, because a reader may expect the length indicator and its string together.
                let head = length.to_le_bytes();
                let mut block = pool.get(head.len() + self.body.len())?;
                block.set_len(0);
                block.append(&head);
                Stage::Copy { document: None, index: 0, from: std::mem::take(&mut self.body), block }
            }
            Stage::Copy { document, index, mut from, mut block } => {
                let portion = from.get(..from.len().min(COPIED_AT_ONCE)).unwrap_or_default();
                read_bytes = block.append(portion);
                from.advance(read_bytes);
                match (from.is_empty(), document) {
                    (false, document) => Stage::Copy { document, index, from, block },
                    (true, Some(document)) => self.finish_data(document, index, block),
                    (true, None) => {
                        self.request.inputs[index].data = smallvec![block.freeze()];
                        Stage::Done
                    }
                }
            }
            Stage::Done => Stage::Done,
        };
        // What stays in its stage has used its step up, except for the walk from input to input, or output to output.
        let walks = matches!(self.stage, Stage::Inputs { .. } | Stage::Outputs { .. });
        let stays = std::mem::discriminant(&self.stage) == before && !walks;
        let is_long = stays || read_bytes >= LONG_BYTES;
        if !matches!(self.stage, Stage::Done) {
            return Ok(Progress::More { is_long, steps: (self.tensors_done() - done_before).max(1) });
        }
        std::mem::take(&mut self.forwarded).put(&mut self.request)?;
        Ok(Progress::Ready)
    }

    /// The request, once a step has returned `Ready`.
    pub fn finish(self) -> (Arc<ServedModel>, Box<Request>, AnswerForm) {
        (self.model, self.request, self.form)
    }

    /// Inputs and outputs that were read, or begun. Each counts as a step: it may copy a portion, or map memory.
    fn tensors_done(&self) -> usize {
        self.request.inputs.len() + self.form.outputs.len()
    }

    /// Reads a portion of the JSON. The numbers of a tensor whose type and shape stand before them are read as they
    /// pass.
    fn parse(&self, builder: &mut Builder, pool: &Pool) -> Result<bool, Status> {
        for _ in 0..OPENED_AT_ONCE {
            let done = builder.step_to_array(TOKENS_PER_STEP).map_err(|error| match error {
                DocumentError::Syntax(_) => Status::internal(error.to_string()),
                DocumentError::Exhausted(exhausted) => exhausted.into(),
                _ => Status::invalid(error.to_string()),
            })?;
            match self.room_for_opened(builder, pool) {
                Some((element, room)) => builder.read_into(element, room),
                None => return Ok(done),
            }
        }
        Ok(false)
    }

    /// What the array holds that was opened just now, and memory for it. Whatever seems wrong is left for later, when
    /// the words for it are found in their order.
    fn room_for_opened(&self, builder: &Builder, pool: &Pool) -> Option<(Element, BlockMut)> {
        let datatype = DataType::from_name(&builder.opened("datatype")?.as_str().ok()?)?;
        let element = element_of(datatype)?;
        let shape = read_shape(builder.opened("shape")?, &Text::default()).ok()?;
        let byte_size = json_byte_size(&Text::default(), datatype, &shape).ok()??;
        // As in `begin_json`.
        let has_text = byte_size / element.byte_size() <= builder.unread();
        if byte_size == 0 || byte_size > self.input_bytes_max || !has_text {
            return None;
        }
        Some((element, pool.get(byte_size).ok()?))
    }

    fn finish_data(&mut self, document: Box<Document>, index: usize, block: BlockMut) -> Stage {
        self.request.inputs[index].data = smallvec![block.freeze()];
        Stage::Inputs { document, done: index + 1 }
    }

    fn data_error(&self, index: usize, error: TensorError) -> Status {
        data_error(self.request.inputs[index].datatype, error)
    }

    fn check_json_size(&self, name: &Text, byte_size: usize) -> Result<(), Status> {
        if byte_size <= self.input_bytes_max {
            return Ok(());
        }
        Err(Status::invalid(format!(
            "JSON input '{name}' has a byte_size ({byte_size} bytes) that exceeds the maximum allowed value of {} \
             bytes. Use --http-max-input-size to increase the limit.",
            self.input_bytes_max
        )))
    }

    fn read_head(&mut self, document: &Document) -> Result<(), Status> {
        if document.text_bytes() > TEXT_BYTES_MAX {
            let text = format!("request has more than {TEXT_BYTES_MAX} bytes of names and parameters");
            return Err(Status::invalid(text));
        }
        let root = document.root();
        if let Some(id) = root.find("id") {
            self.request.id = text(id).map_err(parse_error("id"))?;
        }
        if let Some(parameters) = root.find("parameters") {
            self.read_parameters(parameters)?;
        }
        let inputs = root.member("inputs").and_then(Value::as_array).map_err(parse_error("inputs"))?;
        check_input_count(inputs.len(), &self.request, &self.model.spec)?;
        self.rest = inputs.elements().map_err(parse_error("inputs"))?.pause();
        self.request.inputs.reserve(inputs.len().min(self.model.spec.inputs.len()));
        Ok(())
    }

    fn read_parameters(&mut self, parameters: Value<'_>) -> Result<(), Status> {
        let request = &mut self.request;
        check_parameter_count(if parameters.kind() == Kind::Object { parameters.len() } else { 0 })?;
        let members = parameters
            .members_with_first_values()
            .map_err(|error| Status::internal(format!("failed to get request params.: {error}")))?;
        for (key, value) in members {
            match &*key {
                b"sequence_id" => {
                    request.correlation_id = match value.as_u64() {
                        Ok(id) => CorrelationId::Number(id),
                        Err(_) => CorrelationId::of_text(text(value).map_err(parse_error("sequence_id"))?)?,
                    }
                }
                b"sequence_start" => set_flag(request, SEQUENCE_START, value, "sequence_start")?,
                b"sequence_end" => set_flag(request, SEQUENCE_END, value, "sequence_end")?,
                b"priority" => request.queueing.priority = value.as_u64().map_err(parse_error("priority"))?,
                b"timeout" => request.queueing.timeout_us = value.as_u64().map_err(parse_error("timeout"))?,
                b"binary_data_output" => {
                    self.form.binary_by_default = value.as_bool().map_err(parse_error("binary_data_output"))?;
                    if self.form.binary_by_default && self.form.manner == Manner::Events {
                        return Err(not_in_events("'binary_data_output' of the request"));
                    }
                }
                b"triton_enable_empty_final_response" if self.form.manner == Manner::Events => {
                    let wanted = value.as_bool().map_err(parse_error("triton_enable_empty_final_response"))?;
                    self.form.empty_final_response = wanted;
                }
                key if key == PARAMETER.as_bytes() => {
                    self.form.wants_timing = value.as_bool().map_err(parse_error(PARAMETER))?;
                }
                key if key.starts_with(b"triton_") => {
                    let text = "parameter keys starting with 'triton_' are reserved for Triton usage and should not be \
                                specified.";
                    return Err(Status::invalid(text));
                }
                key => request.parameters.push(Text::new(key), custom_parameter(key, value)?),
            }
        }
        Ok(())
    }

    /// Reads the inputs after the first `done`: a few of those whose data is there already, or one that takes steps of
    /// its own. A request may have thousands of them.
    fn read_inputs(
        &mut self,
        document: Box<Document>,
        done: usize,
        pool: &Pool,
        regions: &SharedMemory,
    ) -> Result<Stage, Status> {
        let mut stage = self.read_input(document, done, pool, regions)?;
        for _ in 1..INPUTS_AT_ONCE {
            let Stage::Inputs { document, done } = stage else { break };
            stage = self.read_input(document, done, pool, regions)?;
        }
        Ok(stage)
    }

    /// Reads the input after the first `done`, or, behind the last one, the outputs.
    fn read_input(
        &mut self,
        document: Box<Document>,
        done: usize,
        pool: &Pool,
        regions: &SharedMemory,
    ) -> Result<Stage, Status> {
        let mut inputs = document.resume(self.rest);
        let next = inputs.next();
        self.rest = inputs.pause();
        let Some(value) = next else { return self.begin_outputs(document, regions) };
        // Whether there is one source of data is checked before anything else about the input.
        let [data, parameters, name, datatype, shape] =
            value.find_each(["data", "parameters", "name", "datatype", "shape"]);
        let source = Source::of(data, parameters)?;
        let name = given(name, "name").and_then(text).map_err(parse_error("name"))?;
        let datatype_name = given(datatype, "datatype").and_then(Value::as_str).map_err(parse_error("datatype"))?;
        let datatype = DataType::from_name(&datatype_name);
        let shape = read_shape(given(shape, "shape").map_err(parse_error("shape"))?, &name)?;
        let Some(datatype) = datatype else {
            return Err(match source {
                Source::Json(_) => Status::invalid(format!("invalid datatype for input {name}")),
                _ => self.unknown_datatype(&name),
            });
        };
        let bytes = match source {
            Source::Json(_) => json_byte_size(&name, datatype, &shape)?,
            Source::Binary(_) | Source::Shared(_) => None,
        };
        add_named_input(&mut self.request, InputTensor::new(name, datatype, shape), &self.model.spec, &mut self.named)?;
        match source {
            Source::Binary(byte_size) => {
                let data = self.take_tail(done, byte_size)?;
                if data.is_aligned_to(ALIGNMENT) || data.is_empty() {
                    self.request.inputs[done].data = smallvec![data];
                    return Ok(Stage::Inputs { document, done: done + 1 });
                }
                // Only a tensor behind another one of odd size comes here: models are owed alignment. A request may
                // have thousands of them, which are short then.
                if data.len() <= PORTION_BYTES_MAX {
                    self.request.inputs[done].data = smallvec![self.portions.copy(pool, &data)?];
                    return Ok(Stage::Inputs { document, done: done + 1 });
                }
                let mut block = pool.get(data.len())?;
                block.set_len(0);
                Ok(Stage::Copy { document: Some(document), index: done, from: data, block })
            }
            Source::Shared(place) => {
                let elements = place.use_as_input(regions, &mut self.request)?;
                elements.give_to(&mut self.request.inputs[done]);
                Ok(Stage::Inputs { document, done: done + 1 })
            }
            // A tensor without elements has no bytes, whatever `data` contains.
            Source::Json(_) if bytes == Some(0) => Ok(Stage::Inputs { document, done: done + 1 }),
            Source::Json(data) => {
                let span = json_array(data)?;
                let index = data.value_index();
                let mut document = document;
                if let Some(block) = document.take_read(index).filter(|block| Some(block.len()) == bytes) {
                    return Ok(self.finish_data(document, done, block));
                }
                self.begin_json(document, done, datatype, bytes, span, pool)
            }
        }
    }

    fn begin_json(
        &self,
        document: Box<Document>,
        index: usize,
        datatype: DataType,
        bytes: Option<usize>,
        span: std::ops::Range<usize>,
        pool: &Pool,
    ) -> Result<Stage, Status> {
        let name = &self.request.inputs[index].name;
        let Some(element) = element_of(datatype) else {
            if datatype == DataType::Bytes {
                return Ok(Stage::Measure { document, index, reader: Box::new(StringsReader::new(span)) });
            }
            return Err(Status::invalid(format!(
                "receiving {datatype} data via JSON is not supported. Please use the binary data format for input \
                 {name}"
            )));
        };
        let byte_size = bytes.unwrap_or(0);
        self.check_json_size(name, byte_size)?;
        // An element takes at least two bytes of text, which bounds the buffer by what has really arrived.
        if byte_size / element.byte_size() > span.len() {
            return Err(Status::internal(TensorError::Shortage.to_string()));
        }
        Ok(Stage::Numbers { document, index, reader: NumbersReader::new(element, span), block: pool.get(byte_size)? })
    }

    fn unknown_datatype(&self, name: &Text) -> Status {
        let spec = &self.model.spec;
        let expected = spec.input_index(&name.to_str_lossy()).and_then(|index| spec.inputs.get(index));
        let Some(expected) = expected.map(|input| input.datatype) else {
            return unexpected_input(name, spec);
        };
        Status::invalid(format!(
            "{}inference input '{name}' data-type is '<invalid>', but model '{}' expects '{expected}'",
            self.request.log_id(),
            spec.name
        ))
    }

    /// The next `byte_size` bytes of the binary tail.
    fn take_tail(&mut self, index: usize, byte_size: u64) -> Result<Slice, Status> {
        let left = self.body.len() - self.tail;
        let wanted = usize::try_from(byte_size).unwrap_or(usize::MAX);
        if wanted > left {
            return Err(Status::invalid(format!(
                "unexpected size for input '{}', expecting {} additional bytes for model '{}'",
                self.request.inputs[index].name,
                wanted - left,
                self.model.name
            )));
        }
        let data = self.body.window(self.tail..self.tail + wanted);
        self.tail += wanted;
        Ok(data)
    }

    fn check_tail(&self) -> Result<(), Status> {
        match self.tail == self.body.len() {
            true => Ok(()),
            false => Err(Status::invalid(format!("unexpected additional input data for model '{}'", self.model.name))),
        }
    }

    /// Reads the first outputs, if any are requested by name.
    fn begin_outputs(&mut self, document: Box<Document>, regions: &SharedMemory) -> Result<Stage, Status> {
        let Some(outputs) = document.root().find("outputs") else {
            self.check_tail()?;
            return Ok(Stage::Done);
        };
        check_output_count(outputs.len(), &self.request, &self.model.spec)?;
        self.rest = outputs.elements().map_err(parse_error("outputs"))?.pause();
        self.named = NamedTensors::default();
        let count = outputs.len().min(self.model.spec.outputs.len());
        self.request.outputs.reserve(count);
        self.form.outputs.reserve(count);
        self.read_outputs(document, regions)
    }

    fn read_outputs(&mut self, document: Box<Document>, regions: &SharedMemory) -> Result<Stage, Status> {
        let mut outputs = document.resume(self.rest);
        for _ in 0..OUTPUTS_AT_ONCE {
            let Some(output) = outputs.next() else {
                self.check_tail()?;
                return Ok(Stage::Done);
            };
            self.read_output(output, regions)?;
        }
        self.rest = outputs.pause();
        Ok(Stage::Outputs { document })
    }

    fn read_output(&mut self, output: Value<'_>, regions: &SharedMemory) -> Result<(), Status> {
        let name = output.member("name").and_then(text).map_err(parse_error("name"))?;
        add_named_output(&mut self.request, name.clone(), &self.model.spec, &mut self.named)?;
        let mut form = OutputForm { name, binary: false, class_count: 0, is_shared: false };
        if let Some(parameters) = output.find("parameters") {
            if let Some(count) = parameters.find("classification") {
                let count = count
                    .as_u64()
                    .map_err(|error| Status::internal(format!("Unable to set 'classification': {error}")))?;
                form.class_count = u32::try_from(count).unwrap_or(u32::MAX);
            }
            let place = region_range(parameters)?;
            if place.is_some() && form.class_count > 0 {
                let text = "Output can't set both 'shared_memory_region' and 'classification'";
                return Err(Status::invalid(text));
            }
            if let Some(binary) = parameters.find("binary_data") {
                form.binary = binary.as_bool().map_err(parse_error("binary_data"))?;
            }
            if self.form.manner == Manner::Events && (form.binary || place.is_some()) {
                let what = if form.binary { "binary_data" } else { "shared_memory_region" };
                return Err(not_in_events(&format!("'{what}' of output '{}'", form.name)));
            }
            if let Some(place) = place {
                if form.binary {
                    let text = "Output can't set both 'shared_memory_region' and 'binary_data'";
                    return Err(Status::invalid(text));
                }
                place.set_aside(form.name.clone(), regions, &mut self.request)?;
                form.is_shared = true;
            }
        }
        self.form.outputs.push(form);
        Ok(())
    }
}

impl Decode for Decoder {
    fn step(&mut self, pool: &Pool, regions: &SharedMemory) -> Result<Progress, Status> {
        // What is made of a body is charged like it.
        let own = self.body.pool();
        self.step(own.as_ref().unwrap_or(pool), regions)
    }

    fn dialect(&self) -> Dialect {
        self.form.dialect
    }

    fn finish(self: Box<Self>) -> (Arc<ServedModel>, Box<Request>, AnswerForm) {
        (*self).finish()
    }
}

/// What is wrong with the `data` of a tensor.
pub(in crate::api) fn data_error(datatype: DataType, error: TensorError) -> Status {
    let is_bytes = datatype == DataType::Bytes;
    match error {
        TensorError::Shortage => Status::internal(error.to_string()),
        TensorError::OutOfRange { .. } => Status::invalid(error.to_string()),
        TensorError::TooDeep if is_bytes => Status::invalid(error.to_string()),
        TensorError::TooDeep => Status::invalid(format!("Unable to parse 'data': {error}")),
        _ if is_bytes => Status::internal(format!("Unable to parse JSON bytes array: {error}")),
        _ => Status::internal(format!("Unable to parse 'data': {error}")),
    }
}

/// Events are text.
fn not_in_events(what: &str) -> Status {
    Status::invalid(format!("{what} is true, but an event stream carries no binary data"))
}

/// The region that `parameters` name, if they do. Without offset and size both are 0 (contract/http.md section 5).
fn region_range(parameters: Value<'_>) -> Result<Option<RegionRange>, Status> {
    let region = parameters.find("shared_memory_region").map(Value::as_str).transpose();
    let region = region.map_err(parse_error("shared_memory_region"))?;
    let number = |key: &'static str| parameters.find(key).map_or(Ok(0), Value::as_u64).map_err(parse_error(key));
    let (offset, byte_size) = (number("shared_memory_offset")?, number("shared_memory_byte_size")?);
    Ok(region.map(|region| RegionRange { region: region.into_owned().into(), offset, byte_size }))
}

fn set_flag(request: &mut Request, flag: u32, value: Value<'_>, member: &str) -> Result<(), Status> {
    match value.as_bool().map_err(parse_error(member))? {
        true => request.flags |= flag,
        false => request.flags &= !flag,
    }
    Ok(())
}

pub(in crate::api) fn custom_parameter(key: &[u8], value: Value<'_>) -> Result<Parameter, Status> {
    let read = match value.kind() {
        Kind::String => text(value).map(Parameter::String),
        Kind::Bool => value.as_bool().map(Parameter::Bool),
        Kind::Int => value.as_i64().map(Parameter::Int),
        // Beyond what an int64 holds, it travels as a double.
        Kind::Uint => value.as_i64().map(Parameter::Int).or_else(|_| value.as_f64().map(Parameter::Double)),
        Kind::Double => value.as_f64().map(Parameter::Double),
        Kind::Object | Kind::Array | Kind::Null => {
            let key = String::from_utf8_lossy(key);
            return Err(Status::invalid(format!(
                "parameter '{key}' has invalid type. It should be either 'int', 'bool', or 'string'."
            )));
        }
    };
    read.map_err(|error| Status::internal(format!("Unable to parse '{}': {error}", String::from_utf8_lossy(key))))
}

/// Where the data of an input is.
enum Source<'d> {
    Json(Value<'d>),
    Binary(u64),
    Shared(RegionRange),
}

impl<'d> Source<'d> {
    /// Of an input with these members.
    fn of(data: Option<Value<'d>>, parameters: Option<Value<'d>>) -> Result<Source<'d>, Status> {
        let [binary, shared] = parameters
            .map_or([None; 2], |parameters| parameters.find_each(["binary_data_size", "shared_memory_region"]));
        // Nearly all of many have their data behind the JSON.
        if let (None, Some(size), None) = (data, binary, shared) {
            return Ok(Source::Binary(size.as_u64().map_err(parse_error("binary_data_size"))?));
        }
        let rule = "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', \
                    'shared_memory_region' in 'parameters'. But";
        let set = [
            ("data", data.is_some()),
            ("binary_data_size", binary.is_some()),
            ("shared_memory_region", shared.is_some()),
        ];
        let set: SmallVec<[&str; 3]> = set.into_iter().filter(|(_, is_set)| *is_set).map(|(name, _)| name).collect();
        match (&set[..], data, binary) {
            ([], ..) => Err(Status::invalid(format!("{rule} no field is set"))),
            ([_], Some(data), _) => Ok(Source::Json(data)),
            ([_], _, Some(size)) => Ok(Source::Binary(size.as_u64().map_err(parse_error("binary_data_size"))?)),
            ([_], None, None) => {
                let place = parameters.map(region_range).transpose()?.flatten();
                place.map(Source::Shared).ok_or_else(|| Status::invalid(format!("{rule} no field is set")))
            }
            (several, ..) => {
                let names: Vec<String> = several.iter().map(|name| format!("'{name}'")).collect();
                Err(Status::invalid(format!("{rule} set {}", names.join(" "))))
            }
        }
    }
}

fn read_shape(value: Value<'_>, name: &Text) -> Result<Shape, Status> {
    let mut shape = Shape::new();
    for dim in value.elements().map_err(parse_error("shape"))? {
        let dim = dim.as_u64().map_err(parse_error("shape"))?;
        if shape.len() >= DIMS_MAX {
            return Err(Status::invalid(format!("input '{name}' has more than {DIMS_MAX} dimensions")));
        }
        let fits = i64::try_from(dim).map_err(|_| {
            let dims: Vec<String> = value.elements().map_or_else(
                |_| Vec::new(),
                |dims| dims.map(|dim| dim.as_u64().map_or_else(|_| "?".to_owned(), |dim| dim.to_string())).collect(),
            );
            Status::invalid(format!(
                "invalid shape for input '{name}': shape [{}] contains one or more invalid dimensions",
                dims.join(",")
            ))
        })?;
        shape.push(fits);
    }
    Ok(shape)
}

/// More dimensions than any tensor library supports.
pub(super) const DIMS_MAX: usize = 256;

/// Bytes of a tensor given as JSON; `None` for strings, whose size the text decides, unless there are none.
pub(in crate::api) fn json_byte_size(name: &Text, datatype: DataType, shape: &[i64]) -> Result<Option<usize>, Status> {
    if shape.is_empty() || shape.contains(&0) {
        return Ok(Some(0));
    }
    let most = i64::MAX;
    let Some(count) = shape.iter().try_fold(1i64, |count, &dim| count.checked_mul(dim)) else {
        return Err(Status::invalid(format!(
            "invalid shape for input '{name}': shape {} causes total element count to exceed maximum size of {most}",
            format_shape(shape)
        )));
    };
    if datatype == DataType::Bytes {
        return Ok(None);
    }
    let size = datatype.byte_size();
    let Some(bytes) = count.checked_mul(size as i64) else {
        return Err(Status::invalid(format!(
            "byte size overflow for input '{name}': element count ({count}) * data type size ({size}) exceeds maximum \
             allowed size ({most})"
        )));
    };
    Ok(Some(bytes as usize))
}

fn json_array(data: Value<'_>) -> Result<std::ops::Range<usize>, Status> {
    match data.kind() {
        Kind::Array => Ok(data.span()),
        _ => Err(parse_error("data")(AccessError::NotArray)),
    }
}

/// The JSON form of a data type; `None` for those without one and for BYTES.
pub fn element_of(datatype: DataType) -> Option<Element> {
    Some(match datatype {
        DataType::Bool => Element::Bool,
        DataType::Uint8 => Element::U8,
        DataType::Uint16 => Element::U16,
        DataType::Uint32 => Element::U32,
        DataType::Uint64 => Element::U64,
        DataType::Int8 => Element::I8,
        DataType::Int16 => Element::I16,
        DataType::Int32 => Element::I32,
        DataType::Int64 => Element::I64,
        DataType::Fp32 => Element::F32,
        DataType::Fp64 => Element::F64,
        DataType::Fp16 | DataType::Bf16 | DataType::Bytes => return None,
    })
}

/// The one input of a raw request, its shape deduced from the number of bytes, and the length to put before them.
fn raw_input(model: &ServedModel, request: &Request, body: &Slice) -> Result<(InputTensor, Option<u32>), Status> {
    let RawInput { datatype, shape, length } = validate::raw_input(&model.spec, &request.log_id(), body.len())?;
    let name = model.spec.inputs.first().map(|input| Text::from(&*input.name)).unwrap_or_default();
    Ok((InputTensor::new(name, datatype, shape), length))
}
