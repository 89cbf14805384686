//! The JSON of a plain request, read in one pass, and put into all requests that equal it.
//!
//! Most requests use a few members in a simple way. Those are read here without a document in between. JSON that a
//! client sends once more, perhaps with another id, is compared instead of read. Whatever is out of the ordinary, wrong
//! above all, yields nothing here: then [`Decoder`](crate::api::infer::http_request::Decoder) reads it, which knows
//! every rule and finds the words.

use std::ops::Range;
use std::rc::Rc;

use smallvec::{SmallVec, smallvec};

use crate::api::infer::http_request::{element_of, json_byte_size};
use crate::api::infer::regions::RegionRange;
use crate::api::infer::{AnswerForm, OutputForm};
use crate::api::timing::PARAMETER;
use nereid_memory::{ALIGNMENT, Pool, Portions, Slice};
use nereid_protocol::json::Cursor;
use nereid_request::{
    CorrelationId, DataType, InputTensor, Parameters, Queueing, Request, SEQUENCE_END, SEQUENCE_START, Shape,
    SharedMemory, Text, Value,
};
use nereid_scheduler::validate::{add_input, add_output};

/// Longest text that is read in one go: what a turn has time for.
const TEXT_MAX: usize = 32 * 1024;
/// Inputs, outputs or parameters of a plain request; more are looked for in a document.
const INPUTS_MAX: usize = 64;
/// Bytes that are copied to where models are owed them. A longer copy is made in steps, on the way without it.
const COPIED_MAX: usize = 1 << 20;
/// Dimensions that fit in place.
const DIMS_MAX: usize = 6;

/// See the [module](self).
#[derive(Debug, Default)]
pub struct JsonRequest {
    /// Where the id is in the text.
    id: Option<Range<usize>>,
    inputs: SmallVec<[Input; 2]>,
    outputs: SmallVec<[(OutputForm, Option<RegionRange>); 2]>,
    parameters: Parameters,
    correlation_id: CorrelationId,
    flags: u32,
    queueing: Queueing,
    binary_by_default: bool,
    wants_timing: bool,
    /// How requests of this text are answered, once it is read.
    form: Option<Rc<AnswerForm>>,
    /// Members of the root, and parameters, that were read.
    seen: u32,
}

#[derive(Debug)]
struct Input {
    name: Text,
    datatype: DataType,
    shape: Shape,
    source: Source,
}

#[derive(Debug)]
enum Source {
    /// So many bytes of the binary tail.
    Tail(usize),
    Region(RegionRange),
    /// It stood in the JSON.
    Given(Slice),
}

/// What reading JSON needs.
#[derive(Clone, Copy)]
pub struct Bounds<'a> {
    pub pool: &'a Pool,
    /// Bytes of a tensor that is given in JSON.
    pub input_bytes_max: usize,
}

/// Members of which there may be one.
#[derive(Clone, Copy)]
enum Once {
    Id,
    Inputs,
    Outputs,
    Parameters,
    SequenceId,
    SequenceStart,
    SequenceEnd,
    Priority,
    Timeout,
    Binary,
    Timing,
}

/// The parameters of an input or output that the protocol knows.
#[derive(Default)]
struct TensorParameters {
    binary_size: Option<u64>,
    binary: Option<bool>,
    classes: Option<u64>,
    region: Option<Box<[u8]>>,
    offset: Option<u64>,
    size: Option<u64>,
}

impl JsonRequest {
    /// Reads `text`; `None` if it is not as plain as that.
    pub fn read(&mut self, text: &[u8], bounds: Bounds<'_>) -> Option<()> {
        self.let_go();
        if text.len() > TEXT_MAX {
            return None;
        }
        let mut cursor = Cursor::new(text);
        cursor.expect(b'{')?;
        let mut is_first = true;
        while let Some(key) = cursor.key(std::mem::take(&mut is_first))? {
            match key {
                b"id" => {
                    self.once(Once::Id)?;
                    self.id = Some(cursor.string_span()?);
                }
                b"inputs" => self.read_inputs(&mut cursor, bounds)?,
                b"outputs" => self.read_outputs(&mut cursor)?,
                b"parameters" => self.read_parameters(&mut cursor)?,
                _ => return None,
            }
        }
        // Texts that differ in their numbers only are answered as the last one was.
        self.form = self.form.take().filter(|form| self.is_answered_as(form)).or_else(|| {
            Some(Rc::new(AnswerForm {
                outputs: self.outputs.iter().map(|(output, _)| output.clone()).collect(),
                binary_by_default: self.binary_by_default,
                wants_timing: self.wants_timing,
                ..AnswerForm::default()
            }))
        });
        (cursor.is_at_end() && self.seen & (1 << Once::Inputs as u32) != 0).then_some(())
    }

    /// Whether `form`, which was made of such a text, would come of this one.
    fn is_answered_as(&self, form: &AnswerForm) -> bool {
        form.binary_by_default == self.binary_by_default
            && form.wants_timing == self.wants_timing
            && form.outputs.len() == self.outputs.len()
            && form.outputs.iter().zip(&self.outputs).all(|(ours, (theirs, _))| ours == theirs)
    }

    /// Gives up what was read, but for how such texts are answered.
    pub fn let_go(&mut self) {
        *self = JsonRequest { form: self.form.take(), ..JsonRequest::default() };
    }

    /// False if the JSON holds tensors themselves: it will hardly come again.
    pub fn is_reusable(&self) -> bool {
        !self.inputs.iter().any(|input| matches!(input.source, Source::Given(_)))
    }

    /// Where the id is in the text, if there is one.
    pub fn id(&self) -> Option<Range<usize>> {
        self.id.clone()
    }

    /// Makes `request` what the text says, with `id` in place of the one that it says. `tail` are the bytes behind the
    /// JSON. `None`: something is wrong with it, and the request is unusable.
    pub fn put(
        &self,
        id: &[u8],
        request: &mut Request,
        tail: &Slice,
        (portions, pool): (&mut Portions, &Pool),
        regions: &SharedMemory,
    ) -> Option<Rc<AnswerForm>> {
        request.id = Text::new(id);
        request.correlation_id.clone_from(&self.correlation_id);
        (request.flags, request.queueing) = (self.flags, self.queueing);
        if !self.parameters.is_empty() {
            request.parameters.clone_from(&self.parameters);
        }
        request.inputs.reserve(self.inputs.len());
        let (mut at, mut copied) = (0usize, 0);
        for input in &self.inputs {
            let shape = Shape::from_slice(&input.shape);
            let mut tensor = InputTensor::new(input.name.clone(), input.datatype, shape);
            match &input.source {
                Source::Tail(len) => {
                    let end = at.checked_add(*len)?;
                    let bytes = tail.get(at..end)?;
                    // Models are owed alignment: a tensor behind another one of odd size is copied.
                    let is_fine = bytes.is_empty() || bytes.as_ptr().addr().is_multiple_of(ALIGNMENT);
                    let data = if is_fine {
                        tail.window(at..end)
                    } else {
                        copied += bytes.len();
                        if copied > COPIED_MAX {
                            return None;
                        }
                        portions.copy(pool, bytes).ok()?
                    };
                    tensor.data.push(data);
                    at = end;
                }
                Source::Region(place) => place.use_as_input(regions, request).ok()?.give_to(&mut tensor),
                Source::Given(data) => tensor.data = smallvec![data.clone()],
            }
            add_input(request, tensor).ok()?;
        }
        if at != tail.len() {
            return None;
        }
        for (output, place) in &self.outputs {
            add_output(request, output.name.clone()).ok()?;
            if let Some(place) = place {
                place.set_aside(output.name.clone(), regions, request).ok()?;
            }
        }
        self.form.clone()
    }

    /// Says that a member is read now; `None` if it was before.
    fn once(&mut self, member: Once) -> Option<()> {
        let bit = 1 << member as u32;
        let is_new = self.seen & bit == 0;
        self.seen |= bit;
        is_new.then_some(())
    }

    fn read_inputs(&mut self, cursor: &mut Cursor<'_>, bounds: Bounds<'_>) -> Option<()> {
        self.once(Once::Inputs)?;
        cursor.expect(b'[')?;
        while cursor.element(self.inputs.is_empty())? {
            if self.inputs.len() == INPUTS_MAX {
                return None;
            }
            self.inputs.push(Input::read(cursor, bounds)?);
        }
        Some(())
    }

    fn read_outputs(&mut self, cursor: &mut Cursor<'_>) -> Option<()> {
        self.once(Once::Outputs)?;
        cursor.expect(b'[')?;
        while cursor.element(self.outputs.is_empty())? {
            if self.outputs.len() == INPUTS_MAX {
                return None;
            }
            self.outputs.push(read_output(cursor)?);
        }
        Some(())
    }

    fn read_parameters(&mut self, cursor: &mut Cursor<'_>) -> Option<()> {
        self.once(Once::Parameters)?;
        cursor.expect(b'{')?;
        let mut is_first = true;
        while let Some(key) = cursor.key(std::mem::take(&mut is_first))? {
            match key {
                b"sequence_id" => {
                    self.once(Once::SequenceId)?;
                    self.correlation_id = match cursor.peek() {
                        // One that is refused is read again in the general way, which says why.
                        b'"' => CorrelationId::of_text(Text::new(cursor.string()?)).ok()?,
                        _ => CorrelationId::Number(cursor.uint()?),
                    };
                }
                b"sequence_start" => self.read_flag(cursor, Once::SequenceStart, SEQUENCE_START)?,
                b"sequence_end" => self.read_flag(cursor, Once::SequenceEnd, SEQUENCE_END)?,
                b"priority" => {
                    self.once(Once::Priority)?;
                    self.queueing.priority = cursor.uint()?;
                }
                b"timeout" => {
                    self.once(Once::Timeout)?;
                    self.queueing.timeout_us = cursor.uint()?;
                }
                b"binary_data_output" => {
                    self.once(Once::Binary)?;
                    self.binary_by_default = cursor.bool()?;
                }
                key if key == PARAMETER.as_bytes() => {
                    self.once(Once::Timing)?;
                    self.wants_timing = cursor.bool()?;
                }
                key if key.starts_with(b"triton_") => return None,
                key => self.read_custom(key, cursor)?,
            }
        }
        Some(())
    }

    fn read_flag(&mut self, cursor: &mut Cursor<'_>, member: Once, flag: u32) -> Option<()> {
        self.once(member)?;
        self.flags |= if cursor.bool()? { flag } else { 0 };
        Some(())
    }

    fn read_custom(&mut self, key: &[u8], cursor: &mut Cursor<'_>) -> Option<()> {
        let is_known = self.parameters.iter().any(|other| other.name.as_bytes() == key);
        if is_known || self.parameters.len() == INPUTS_MAX {
            return None;
        }
        let value = match cursor.peek() {
            b'"' => Value::String(Text::new(cursor.string()?)),
            b't' | b'f' => Value::Bool(cursor.bool()?),
            _ => Value::Int(i64::try_from(cursor.uint()?).ok()?),
        };
        self.parameters.push(Text::new(key), value);
        Some(())
    }
}

impl Input {
    fn read(cursor: &mut Cursor<'_>, bounds: Bounds<'_>) -> Option<Input> {
        let (mut name, mut datatype, mut shape, mut known, mut given) = (None, None, None, None, None);
        cursor.expect(b'{')?;
        let mut is_first = true;
        while let Some(key) = cursor.key(std::mem::take(&mut is_first))? {
            let is_new = match key {
                b"name" => name.replace(Text::new(cursor.string()?)).is_none(),
                b"datatype" => datatype.replace(DataType::from_name(cursor.string()?)?).is_none(),
                b"shape" => shape.replace(read_shape(cursor)?).is_none(),
                b"parameters" => known.replace(TensorParameters::read(cursor)?).is_none(),
                // Where the type and the shape come later, it has to wait for them.
                b"data" => {
                    let data = read_data(cursor, name.as_ref()?, datatype?, shape.as_ref()?, bounds)?;
                    given.replace(data).is_none()
                }
                _ => false,
            };
            if !is_new {
                return None;
            }
        }
        let mut known = known.unwrap_or_default();
        let place = known.take_region_range()?;
        let source = match (given, known, place) {
            (Some(data), TensorParameters { binary_size: None, .. }, None) => Source::Given(data),
            (None, TensorParameters { binary_size: Some(size), .. }, None) => Source::Tail(usize::try_from(size).ok()?),
            (None, TensorParameters { binary_size: None, .. }, Some(place)) => Source::Region(place),
            _ => return None,
        };
        Some(Input { name: name?, datatype: datatype?, shape: shape?, source })
    }
}

fn read_shape(cursor: &mut Cursor<'_>) -> Option<Shape> {
    let mut shape = Shape::new();
    cursor.expect(b'[')?;
    while cursor.element(shape.is_empty())? {
        if shape.len() == DIMS_MAX {
            return None;
        }
        shape.push(i64::try_from(cursor.uint()?).ok()?);
    }
    Some(shape)
}

/// The elements of a tensor of numbers.
fn read_data(
    cursor: &mut Cursor<'_>,
    name: &Text,
    datatype: DataType,
    shape: &Shape,
    bounds: Bounds<'_>,
) -> Option<Slice> {
    let element = element_of(datatype)?;
    let byte_size = json_byte_size(name, datatype, shape).ok()??;
    // An element takes at least two bytes of text.
    if byte_size == 0 || byte_size > bounds.input_bytes_max || byte_size / element.byte_size() > TEXT_MAX / 2 {
        return None;
    }
    let mut block = bounds.pool.get(byte_size).ok()?;
    cursor.numbers(element, &mut block)?;
    Some(block.freeze())
}

fn read_output(cursor: &mut Cursor<'_>) -> Option<(OutputForm, Option<RegionRange>)> {
    let (mut name, mut known) = (None, None);
    cursor.expect(b'{')?;
    let mut is_first = true;
    while let Some(key) = cursor.key(std::mem::take(&mut is_first))? {
        let is_new = match key {
            b"name" => name.replace(Text::new(cursor.string()?)).is_none(),
            b"parameters" => known.replace(TensorParameters::read(cursor)?).is_none(),
            _ => false,
        };
        if !is_new {
            return None;
        }
    }
    let mut known = known.unwrap_or_default();
    let place = known.take_region_range()?;
    let binary = known.binary.unwrap_or(false);
    let class_count = u32::try_from(known.classes.unwrap_or(0)).ok()?;
    if known.binary_size.is_some() || place.is_some() && (binary || class_count > 0) {
        return None;
    }
    Some((OutputForm { name: name?, binary, class_count, is_shared: place.is_some() }, place))
}

impl TensorParameters {
    fn read(cursor: &mut Cursor<'_>) -> Option<TensorParameters> {
        let mut known = TensorParameters::default();
        cursor.expect(b'{')?;
        let mut is_first = true;
        while let Some(key) = cursor.key(std::mem::take(&mut is_first))? {
            let is_new = match key {
                b"binary_data_size" => known.binary_size.replace(cursor.uint()?).is_none(),
                b"binary_data" => known.binary.replace(cursor.bool()?).is_none(),
                b"classification" => known.classes.replace(cursor.uint()?).is_none(),
                b"shared_memory_region" => known.region.replace(cursor.string()?.into()).is_none(),
                b"shared_memory_offset" => known.offset.replace(cursor.uint()?).is_none(),
                b"shared_memory_byte_size" => known.size.replace(cursor.uint()?).is_none(),
                _ => false,
            };
            if !is_new {
                return None;
            }
        }
        Some(known)
    }

    /// The place in shared memory, if one is meant; `None` for the numbers of one without its name.
    fn take_region_range(&mut self) -> Option<Option<RegionRange>> {
        let (offset, byte_size) = (self.offset.take(), self.size.take());
        let Some(region) = self.region.take() else {
            return (offset.is_none() && byte_size.is_none()).then_some(None);
        };
        Some(Some(RegionRange { region, offset: offset.unwrap_or(0), byte_size: byte_size.unwrap_or(0) }))
    }
}

#[cfg(test)]
mod tests;
