//! The body of `generate`: what of it becomes a tensor, what a parameter (contract/http.md section 7).
//!
//! Read in bounded steps, as inference requests are: a tensor may have millions of elements.

use std::ops::RangeInclusive;
use std::sync::Arc;

use smallvec::smallvec;

use crate::api::infer::http_request::{TEXT_BYTES_MAX, custom_parameter, data_error, element_of, parse_error};
use crate::api::infer::{AnswerForm, Decode, Progress};
use crate::api::steps::TOKENS_PER_STEP;
use nereid_memory::{BlockMut, Pool, Slice};
use nereid_protocol::json::{
    Builder, Document, DocumentError, Element, Kind, NumbersReader, StringsReader, TensorError, Value, ValueIndex,
};
use nereid_request::{DataType, InputTensor, Request, Shape, SharedMemory, Status, Text};
use nereid_scheduler::ServedModel;
use nereid_scheduler::validate::add_input;

/// Members that one step maps.
const MEMBERS_AT_ONCE: usize = 256;
/// Members of one request, nested ones included: far above what models have names for.
const MEMBERS_MAX: usize = 4096;
/// Bytes of a string that is read in one go.
const TEXT_AT_ONCE: usize = 64 * 1024;
/// The member whose own members follow the same rule.
const NESTED: &str = "parameters";

/// A request being read.
pub struct Reader {
    model: Arc<ServedModel>,
    form: AnswerForm,
    request: Box<Request>,
    stage: Stage,
    /// The members in the order in which they are mapped, last first.
    members: Vec<Member>,
    /// Bytes of names, and of what becomes parameters, so far.
    text_bytes: usize,
    /// Bytes of all inputs so far.
    input_bytes: usize,
    input_bytes_max: usize,
    /// What is made of the body is charged like it.
    pool: Option<Pool>,
}

struct Member {
    name: Text,
    what: What,
    is_nested: bool,
}

enum What {
    Value(ValueIndex),
    Refused(Status),
}

enum Stage {
    Parse(Box<Builder>),
    Members(Box<Document>),
    Numbers {
        document: Box<Document>,
        reader: NumbersReader,
        block: BlockMut,
        is_nested: bool,
    },
    /// The input is added once its size is known.
    Measure {
        document: Box<Document>,
        reader: Box<StringsReader>,
        input: Input,
    },
    Strings {
        document: Box<Document>,
        reader: Box<StringsReader>,
        block: BlockMut,
        is_nested: bool,
    },
    Done,
}

/// A tensor that a member names.
#[derive(Clone)]
struct Input {
    name: Text,
    datatype: DataType,
    /// Of the model, with the dimension of the batch.
    shape: Shape,
    /// What its value's outermost array has; 1 for a single value.
    len: usize,
    is_nested: bool,
}

impl Reader {
    pub fn new(
        model: Arc<ServedModel>,
        request: Box<Request>,
        form: AnswerForm,
        body: Slice,
        input_bytes_max: usize,
    ) -> Result<Reader, (Status, Box<Request>)> {
        let pool = body.pool();
        // An array that a member holds is a tensor or nothing.
        let builder = match Builder::new(body, |depth, _| depth <= 2) {
            Ok(builder) => builder,
            Err(error) => return Err((Status::internal(error.to_string()), request)),
        };
        let stage = Stage::Parse(Box::new(builder));
        let members = Vec::new();
        Ok(Reader { model, form, request, stage, members, text_bytes: 0, input_bytes: 0, input_bytes_max, pool })
    }

    /// Reads the id, and lists the members.
    fn begin(&mut self, document: &Document) -> Result<(), Status> {
        let root = document.root();
        let id = root.find("id");
        self.count_text(document.key_bytes() + id.map_or(0, |id| id.span().len()))?;
        if let Some(id) = id {
            self.request.id = id.as_str().map(|id| Text::new(&id)).map_err(parse_error("id"))?;
        }
        let has_input = self.model.spec.input_index(NESTED).is_some();
        self.members = members_of(root, has_input)?;
        self.members.reverse();
        Ok(())
    }

    /// Counts text that becomes no tensor, which is copied whole.
    fn count_text(&mut self, bytes: usize) -> Result<(), Status> {
        self.text_bytes = self.text_bytes.saturating_add(bytes);
        match self.text_bytes <= TEXT_BYTES_MAX {
            true => Ok(()),
            false => {
                let text = format!("request has more than {TEXT_BYTES_MAX} bytes of names and parameters");
                Err(Status::invalid(text))
            }
        }
    }

    /// Maps members until one of them needs steps of its own.
    fn map(&mut self, document: Box<Document>, pool: &Pool) -> Result<Stage, Status> {
        for _ in 0..MEMBERS_AT_ONCE {
            let Some(Member { name, what, is_nested }) = self.members.pop() else { return Ok(Stage::Done) };
            let place = match what {
                What::Value(place) => place,
                What::Refused(status) => return Err(status),
            };
            let value = document.at(place);
            let Some(input) = self.input_of(&name, value, is_nested).map_err(|error| within(is_nested, error))? else {
                self.count_text(value.span().len())?;
                let parameter = custom_parameter(name.as_bytes(), value).map_err(|error| within(is_nested, error))?;
                self.request.parameters.push(name, parameter);
                continue;
            };
            let begun = self.begin_input(input, value, pool).map_err(|error| within(is_nested, error))?;
            match begun {
                Begun::Complete => {}
                Begun::Numbers(reader, block) => {
                    return Ok(Stage::Numbers { document, reader, block, is_nested });
                }
                Begun::Strings(reader, input) => return Ok(Stage::Measure { document, reader, input }),
            }
        }
        Ok(Stage::Members(document))
    }

    /// What a member means as a tensor; none if the model has no input of that name.
    fn input_of(&self, name: &Text, value: Value<'_>, is_nested: bool) -> Result<Option<Input>, Status> {
        let spec = &self.model.spec;
        let index = std::str::from_utf8(name.as_bytes()).ok().and_then(|name| spec.input_index(name));
        let Some(config) = index.and_then(|index| spec.inputs.get(index)) else { return Ok(None) };
        let Some(datatype) = DataType::from_name(config.datatype.as_bytes()) else {
            return Err(Status::invalid(format!("input '{name}' has unsupported datatype {}", config.datatype)));
        };
        let shape = (spec.max_batch_size > 0).then_some(-1).into_iter().chain(config.dims.iter().copied()).collect();
        let len = if value.kind() == Kind::Array { value.len() } else { 1 };
        Ok(Some(Input { name: name.clone(), datatype, shape, len, is_nested }))
    }

    /// Begins to read a tensor, or reads it.
    fn begin_input(&mut self, input: Input, value: Value<'_>, pool: &Pool) -> Result<Begun, Status> {
        let is_array = value.kind() == Kind::Array;
        if input.datatype == DataType::Bytes {
            if is_array {
                return Ok(Begun::Strings(Box::new(StringsReader::new(value.span())), input));
            }
            if value.kind() == Kind::String && value.span().len() > TEXT_AT_ONCE {
                return Ok(Begun::Strings(Box::new(StringsReader::single(value.span())), input));
            }
            let text = value.as_str().map_err(|error| data_error(DataType::Bytes, error.into()))?;
            let len = u32::try_from(text.len()).unwrap_or(u32::MAX);
            let byte_size = text.len().saturating_add(4);
            self.add(&input, byte_size)?;
            let mut block = pool.get(byte_size)?;
            if let Some((head, body)) = block.split_first_chunk_mut() {
                *head = len.to_le_bytes();
                body.copy_from_slice(&text);
            }
            self.finish_input(block);
            return Ok(Begun::Complete);
        }
        let byte_size = input.len.saturating_mul(input.datatype.byte_size());
        self.add(&input, byte_size)?;
        if byte_size == 0 {
            return Ok(Begun::Complete);
        }
        let Some(element) = element_of(input.datatype) else {
            return Err(Status::invalid(format!(
                "receiving {} data via JSON is not supported. Please use the binary data format for input {}",
                input.datatype, input.name
            )));
        };
        let mut block = pool.get(byte_size)?;
        if is_array {
            return Ok(Begun::Numbers(NumbersReader::new(element, value.span()), block));
        }
        put_scalar(element, value, &mut block).map_err(|error| data_error(input.datatype, error))?;
        self.finish_input(block);
        Ok(Begun::Complete)
    }

    /// Adds an input of so many bytes to the request, its data to follow.
    fn add(&mut self, input: &Input, byte_size: usize) -> Result<(), Status> {
        let Input { name, datatype, .. } = input;
        let total = self.input_bytes.saturating_add(byte_size);
        if total > self.input_bytes_max {
            return Err(Status::invalid(format!(
                "request size of {} bytes with input '{name}' of size {byte_size} bytes exceeds the maximum allowed \
                 input size of {}. Use --http-max-input-size to increase the limit.",
                self.input_bytes, self.input_bytes_max
            )));
        }
        self.input_bytes = total;
        // Without data it has no shape either.
        let shape = match byte_size {
            0 => Shape::new(),
            _ => filled(&input.shape, input.len).ok_or_else(|| {
                let text = format!("The schema can not convert input '{name}' to tensor with proper shape");
                Status::invalid(text)
            })?,
        };
        add_input(&mut self.request, InputTensor::new(name.clone(), *datatype, shape))?;
        Ok(())
    }

    /// The data of the input that was added last.
    fn finish_input(&mut self, block: BlockMut) {
        if let Some(input) = self.request.inputs.last_mut() {
            input.data = smallvec![block.freeze()];
        }
    }

    fn advance(&mut self, stage: Stage, pool: &Pool) -> Result<Stage, Status> {
        Ok(match stage {
            Stage::Parse(mut builder) => {
                let done = builder.step(TOKENS_PER_STEP).map_err(|error| match error {
                    DocumentError::Syntax(_) => Status::internal(error.to_string()),
                    DocumentError::Exhausted(exhausted) => exhausted.into(),
                    _ => Status::invalid(error.to_string()),
                })?;
                match done {
                    false => Stage::Parse(builder),
                    true => {
                        let document = Box::new(builder.finish());
                        self.begin(&document)?;
                        Stage::Members(document)
                    }
                }
            }
            Stage::Members(document) => self.map(document, pool)?,
            Stage::Numbers { document, mut reader, mut block, is_nested } => {
                let read = reader.step(document.input(), &mut block, TOKENS_PER_STEP);
                let datatype = self.request.inputs.last().map_or(DataType::Bool, |input| input.datatype);
                match read.map_err(|error| within(is_nested, data_error(datatype, error)))? {
                    false => Stage::Numbers { document, reader, block, is_nested },
                    true => {
                        self.finish_input(block);
                        Stage::Members(document)
                    }
                }
            }
            Stage::Measure { document, mut reader, input } => {
                let is_nested = input.is_nested;
                let read = reader.measure(document.input(), TOKENS_PER_STEP);
                match read.map_err(|error| within(is_nested, data_error(DataType::Bytes, error)))? {
                    false => Stage::Measure { document, reader, input },
                    true => {
                        self.add(&input, reader.byte_size()).map_err(|error| within(is_nested, error))?;
                        let block = pool.get(reader.byte_size())?;
                        Stage::Strings { document, reader, block, is_nested }
                    }
                }
            }
            Stage::Strings { document, mut reader, mut block, is_nested } => {
                let read = reader.fill(document.input(), &mut block, TOKENS_PER_STEP);
                match read.map_err(|error| within(is_nested, data_error(DataType::Bytes, error)))? {
                    false => Stage::Strings { document, reader, block, is_nested },
                    true => {
                        self.finish_input(block);
                        Stage::Members(document)
                    }
                }
            }
            Stage::Done => Stage::Done,
        })
    }
}

/// How far the reading of a tensor got at once.
enum Begun {
    Complete,
    Numbers(NumbersReader, BlockMut),
    Strings(Box<StringsReader>, Input),
}

impl Decode for Reader {
    fn step(&mut self, pool: &Pool, _regions: &SharedMemory) -> Result<Progress, Status> {
        let before = std::mem::discriminant(&self.stage);
        let stage = std::mem::replace(&mut self.stage, Stage::Done);
        let own = self.pool.clone();
        self.stage = self.advance(stage, own.as_ref().unwrap_or(pool))?;
        // What stays in its stage has used its step up.
        let is_long = std::mem::discriminant(&self.stage) == before;
        Ok(if matches!(self.stage, Stage::Done) { Progress::Ready } else { Progress::More { is_long, steps: 1 } })
    }

    fn finish(self: Box<Self>) -> (Arc<ServedModel>, Box<Request>, AnswerForm) {
        (self.model, self.request, self.form)
    }
}

/// The members in body order, those of [`NESTED`] in its place. A name that comes again comes with its first value.
fn members_of(root: Value<'_>, nested_is_input: bool) -> Result<Vec<Member>, Status> {
    let mut members = Vec::new();
    for (name, value) in first_values(root)? {
        if *name != *NESTED.as_bytes() {
            members.push(Member { name: Text::new(&name), what: What::Value(value.value_index()), is_nested: false });
            continue;
        }
        let refused = match (nested_is_input, value.as_object()) {
            (true, _) => {
                let text = format!("Keyword '{NESTED}' for nested schema also given as input tensor name");
                Some(Status::invalid(text))
            }
            (false, Err(error)) => {
                Some(Status::internal(format!("Expected JSON object for keyword: '{NESTED}': {error}")))
            }
            (false, Ok(_)) => None,
        };
        if let Some(status) = refused {
            members.push(Member { name: Text::new(&name), what: What::Refused(status), is_nested: false });
            continue;
        }
        for (name, value) in first_values(value)? {
            members.push(Member { name: Text::new(&name), what: What::Value(value.value_index()), is_nested: true });
        }
        check_count(members.len())?;
    }
    Ok(members)
}

fn first_values(object: Value<'_>) -> Result<Vec<nereid_protocol::json::Member<'_>>, Status> {
    check_count(if object.kind() == Kind::Object { object.len() } else { 0 })?;
    object.members_with_first_values().map_err(|error| Status::internal(error.to_string()))
}

fn check_count(count: usize) -> Result<(), Status> {
    match count <= MEMBERS_MAX {
        true => Ok(()),
        false => Err(Status::invalid(format!("request has more than {MEMBERS_MAX} members"))),
    }
}

/// Says where an error arose.
fn within(is_nested: bool, error: Status) -> Status {
    if is_nested { error.prefixed(&format!("Converting keyword: '{NESTED}': ")) } else { error }
}

/// The shape of `len` elements: fixed dimensions take their part, the innermost open one what remains, the others 1.
fn filled(shape: &[i64], len: usize) -> Option<Shape> {
    let mut left = i64::try_from(len).ok()?;
    for &dim in shape.iter().filter(|dim| **dim != -1) {
        if left.checked_rem(dim)? != 0 {
            return None;
        }
        left = left.checked_div(dim)?;
    }
    let mut filled = Shape::from_slice(shape);
    for dim in filled.iter_mut().rev().filter(|dim| **dim == -1) {
        *dim = std::mem::replace(&mut left, 1);
    }
    (left == 1).then_some(filled)
}

/// One value that is no array, as its element's bytes. The rules are those of [`NumbersReader`].
fn put_scalar(element: Element, value: Value<'_>, out: &mut [u8]) -> Result<(), TensorError> {
    let put = |out: &mut [u8], bytes: &[u8]| out.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    let refused = |datatype, value: i128| TensorError::OutOfRange { datatype, value };
    // The low bytes, once the value is known to fit.
    let put_unsigned = |out: &mut [u8], max: u64, datatype| {
        let value = value.as_u64()?;
        if value > max {
            return Err(refused(datatype, value.into()));
        }
        put(out, &value.to_le_bytes());
        Ok(())
    };
    let put_signed = |out: &mut [u8], range: RangeInclusive<i64>, datatype| {
        let value = value.as_i64()?;
        if !range.contains(&value) {
            return Err(refused(datatype, value.into()));
        }
        put(out, &value.to_le_bytes());
        Ok(())
    };
    match element {
        Element::Bool => put(out, &[u8::from(value.as_bool()?)]),
        Element::U8 => put_unsigned(out, u8::MAX.into(), "UINT8")?,
        Element::U16 => put_unsigned(out, u16::MAX.into(), "UINT16")?,
        Element::U32 => put_unsigned(out, u32::MAX.into(), "UINT32")?,
        Element::U64 => put(out, &value.as_u64()?.to_le_bytes()),
        Element::I8 => put_signed(out, i8::MIN.into()..=i8::MAX.into(), "INT8")?,
        Element::I16 => put_signed(out, i16::MIN.into()..=i16::MAX.into(), "INT16")?,
        Element::I32 => put_signed(out, i32::MIN.into()..=i32::MAX.into(), "INT32")?,
        Element::I64 => put(out, &value.as_i64()?.to_le_bytes()),
        Element::F32 => put(out, &(value.as_f64()? as f32).to_le_bytes()),
        Element::F64 => put(out, &value.as_f64()?.to_le_bytes()),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nereid_protocol::json::AccessError;

    /// A model's shape, a number of elements, and what comes of them.
    type Filled<'a> = (&'a [i64], usize, Option<&'a [i64]>);
    /// An element's type, its text, and its bytes.
    type Scalar<'a> = (Element, &'a str, Result<&'a [u8], TensorError>);

    #[test]
    fn a_shape_is_filled_from_the_inside() {
        let table: &[Filled] = &[
            (&[-1], 1, Some(&[1])),
            (&[-1], 5, Some(&[5])),
            (&[4], 4, Some(&[4])),
            (&[4], 1, None),
            (&[4], 8, None),
            (&[-1, 4], 8, Some(&[2, 4])),
            (&[-1, 4], 6, None),
            (&[-1, 1], 1, Some(&[1, 1])),
            (&[-1, -1], 6, Some(&[1, 6])),
            (&[-1, 2, -1], 6, Some(&[1, 2, 3])),
            (&[2, -1, 3], 12, Some(&[2, 2, 3])),
            (&[], 1, Some(&[])),
            (&[], 2, None),
            (&[0], 1, None),
            (&[-1, 0], 3, None),
        ];
        for (shape, len, expected) in table {
            let found = filled(shape, *len);
            assert_eq!(found.as_deref(), *expected, "{shape:?} {len}");
        }
    }

    #[test]
    fn scalars_follow_the_rules_of_arrays() {
        let read = |element: Element, text: &str| {
            let document = Document::parse(Slice::copy_of(text.as_bytes())).unwrap();
            let mut out = vec![0xAA; element.byte_size()];
            put_scalar(element, document.root(), &mut out).map(|()| out)
        };
        let table: &[Scalar] = &[
            (Element::Bool, "true", Ok(&[1])),
            (Element::Bool, "1", Err(AccessError::NotBoolean.into())),
            (Element::U8, "255", Ok(&[255])),
            (Element::U8, "256", Err(TensorError::OutOfRange { datatype: "UINT8", value: 256 })),
            (Element::U16, "65536", Err(TensorError::OutOfRange { datatype: "UINT16", value: 65536 })),
            (Element::U32, "4294967296", Err(TensorError::OutOfRange { datatype: "UINT32", value: 1 << 32 })),
            (Element::I8, "-129", Err(TensorError::OutOfRange { datatype: "INT8", value: -129 })),
            (Element::I16, "32768", Err(TensorError::OutOfRange { datatype: "INT16", value: 32768 })),
            (Element::I32, "2147483648", Err(TensorError::OutOfRange { datatype: "INT32", value: 1 << 31 })),
            (Element::U16, "-1", Err(AccessError::NotUnsigned.into())),
            (Element::U32, "7", Ok(&[7, 0, 0, 0])),
            (Element::U64, "1.0", Err(AccessError::NotUnsigned.into())),
            (Element::I8, "-1", Ok(&[0xff])),
            (Element::I16, "true", Err(AccessError::NotSigned.into())),
            (Element::I32, "-2", Ok(&[0xfe, 0xff, 0xff, 0xff])),
            (Element::I64, "9223372036854775808", Err(AccessError::NotSigned.into())),
            (Element::F32, "1e39", Ok(&[0, 0, 0x80, 0x7f])),
            (Element::F32, "null", Err(AccessError::NotNumber.into())),
            (Element::F64, "3", Ok(&[0, 0, 0, 0, 0, 0, 8, 0x40])),
            (Element::F64, "{}", Err(AccessError::NotNumber.into())),
            (Element::F64, "\"3\"", Err(AccessError::NotNumber.into())),
        ];
        for (element, text, expected) in table {
            let found = read(*element, text);
            assert_eq!(found.as_deref(), expected.as_ref().map(|bytes| &**bytes), "{element:?} {text}");
            // The same value in an array.
            let array = format!("[{text}]");
            let mut out = vec![0; element.byte_size()];
            let read = NumbersReader::new(*element, 0..array.len()).step(array.as_bytes(), &mut out, 9);
            match expected {
                Ok(bytes) => assert_eq!((read, &out[..]), (Ok(true), *bytes), "{array}"),
                Err(error) => assert_eq!(read, Err(error.clone()), "{array}"),
            }
        }
    }

    fn names(text: &str, nested_is_input: bool) -> Result<Vec<String>, Status> {
        let document = Document::parse(Slice::copy_of(text.as_bytes())).unwrap();
        let members = members_of(document.root(), nested_is_input)?;
        let shown = |member: &Member| {
            let value = match &member.what {
                What::Value(place) => format!("{:?}", document.at(*place).as_i64().ok()),
                What::Refused(status) => status.to_string(),
            };
            format!("{}{}: {value}", if member.is_nested { "+" } else { "" }, member.name)
        };
        Ok(members.iter().map(shown).collect())
    }

    #[test]
    fn members_are_mapped_in_body_order_with_their_first_values() {
        let text = r#"{"b":1,"parameters":{"x":2,"parameters":{},"x":3},"a":4,"b":5,"parameters":{"y":6}}"#;
        let expected = [
            "b: Some(1)",
            "+x: Some(2)",
            "+parameters: None",
            "+x: Some(2)",
            "a: Some(4)",
            "b: Some(1)",
            "+x: Some(2)",
            "+parameters: None",
            "+x: Some(2)",
        ];
        assert_eq!(names(text, false).unwrap(), expected);
        assert!(names("{}", false).unwrap().is_empty());
        let conflict = "Keyword 'parameters' for nested schema also given as input tensor name";
        assert_eq!(names(text, true).unwrap()[1], format!("parameters: Invalid argument: {conflict}"));
        let wrong = "Expected JSON object for keyword: 'parameters': attempt to access JSON non-object as object";
        assert_eq!(names(r#"{"parameters":[]}"#, false).unwrap(), [format!("parameters: Internal: {wrong}")]);
        let error = names("[1]", false).unwrap_err();
        assert_eq!(error, Status::internal("attempt to get members for non-object"));
    }

    #[test]
    fn the_number_of_members_is_bounded() {
        let object = |count: usize| {
            let members: Vec<String> = (0..count).map(|at| format!("\"{at}\":0")).collect();
            format!("{{{}}}", members.join(","))
        };
        assert_eq!(names(&object(MEMBERS_MAX), false).unwrap().len(), MEMBERS_MAX);
        let refused = Status::invalid("request has more than 4096 members");
        assert_eq!(names(&object(MEMBERS_MAX + 1), false), Err(refused.clone()));
        let half = object(MEMBERS_MAX / 2 + 1);
        let text = format!("{{\"parameters\":{half},\"parameters\":{{}}}}");
        assert_eq!(names(&text, false), Err(refused), "twice the first value");
    }
}
