//! Requests in perf_analyzer's JSON: `data`, a list of requests or of lists of them, one for each sequence, and
//! `validation_data` of the same form with what the answers have to be.
//!
//! Numbers go straight from the text into the tensor's bytes: a document of the file would be many times its size.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::encode::{Element, Elements, count_strings};
use super::{DataError, DataPlan, Step, TEMPLATES_MAX, Values, shapes};
use crate::{ModelInfo, TensorFacts};
use nereid_request::DataType;

/// The streams of one file; what they take is taken from `room`.
pub fn read(
    path: &Path,
    model_info: &ModelInfo,
    plan: &DataPlan,
    room: &mut usize,
) -> Result<Vec<Vec<Step>>, DataError> {
    let failed = |reason: String| DataError::File { file: path.to_owned(), reason };
    let file = File::open(path).map_err(|error| failed(error.to_string()))?;
    if !file.metadata().is_ok_and(|facts| facts.is_file()) {
        return Err(failed("it is not a file".into()));
    }
    parse(BufReader::new(file), model_info, plan, room).map_err(failed)
}

fn parse(from: impl Read, model_info: &ModelInfo, plan: &DataPlan, room: &mut usize) -> Result<Vec<Vec<Step>>, String> {
    let mut reader = serde_json::Deserializer::from_reader(from);
    let steps_left = TEMPLATES_MAX;
    let mut reading = Reading { room, steps_left };
    let file = FileSeed { model_info, plan, reading: &mut reading };
    let (data, expected) = file.deserialize(&mut reader).map_err(|error| error.to_string())?;
    reader.end().map_err(|error| error.to_string())?;
    let mut streams = data.ok_or("it has no member 'data'")?;
    if streams.iter().all(Vec::is_empty) {
        return Err("'data' has no requests".into());
    }
    if let Some(at) = streams.iter().position(Vec::is_empty) {
        return Err(format!("list {at} of 'data' has no requests"));
    }
    if let Some(expected) = expected {
        let lengths = |streams: &[Vec<Step>]| streams.iter().map(Vec::len).collect::<Vec<_>>();
        if lengths(&expected) != lengths(&streams) {
            return Err("'validation_data' does not have the same lists and lengths as 'data'".into());
        }
        for (step, outputs) in streams.iter_mut().flatten().zip(expected.into_iter().flatten()) {
            step.expected = Some(outputs.inputs);
        }
    }
    Ok(streams)
}

/// What all parts of a file share.
struct Reading<'a> {
    room: &'a mut usize,
    steps_left: usize,
}

struct FileSeed<'a, 'b> {
    model_info: &'a ModelInfo,
    plan: &'a DataPlan,
    reading: &'b mut Reading<'a>,
}

type Streams = Vec<Vec<Step>>;

impl<'de> DeserializeSeed<'de> for FileSeed<'_, '_> {
    type Value = (Option<Streams>, Option<Streams>);

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for FileSeed<'_, '_> {
    type Value = (Option<Streams>, Option<Streams>);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with the member 'data'")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut data, mut expected) = (None, None);
        while let Some(key) = map.next_key::<String>()? {
            let (is_input, place) = match key.as_str() {
                "data" => (true, &mut data),
                "validation_data" => (false, &mut expected),
                // Files may carry remarks and what other tools read.
                _ => {
                    map.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            if place.is_some() {
                return Err(A::Error::custom(format!("'{key}' is there twice")));
            }
            let part = Part { model_info: self.model_info, plan: self.plan, reading: &mut *self.reading, is_input };
            *place = Some(map.next_value_seed(StreamsSeed(part))?);
        }
        Ok((data, expected))
    }
}

/// `data` or `validation_data`.
struct Part<'a, 'b> {
    model_info: &'a ModelInfo,
    plan: &'a DataPlan,
    reading: &'b mut Reading<'a>,
    is_input: bool,
}

impl<'a> Part<'a, '_> {
    fn again(&mut self) -> Part<'a, '_> {
        Part { model_info: self.model_info, plan: self.plan, reading: self.reading, is_input: self.is_input }
    }

    fn tensors(&self) -> &'a [TensorFacts] {
        if self.is_input { &self.model_info.inputs } else { &self.model_info.outputs }
    }

    fn noun(&self) -> &'static str {
        if self.is_input { "input" } else { "output" }
    }
}

struct StreamsSeed<'a, 'b>(Part<'a, 'b>);

impl<'de> DeserializeSeed<'de> for StreamsSeed<'_, '_> {
    type Value = Streams;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Streams, D::Error> {
        from.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for StreamsSeed<'_, '_> {
    type Value = Streams;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of requests, or of lists of requests")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<Streams, A::Error> {
        let mut streams: Streams = Vec::new();
        let mut plain: Option<Vec<Step>> = None;
        while let Some(entry) = list.next_element_seed(EntrySeed(self.0.again()))? {
            match entry {
                Entry::Step(step) if streams.is_empty() => plain.get_or_insert_default().push(step),
                Entry::Stream(stream) if plain.is_none() => streams.push(stream),
                _ => return Err(A::Error::custom("a list of requests and lists of requests cannot be mixed")),
            }
        }
        streams.extend(plain);
        Ok(streams)
    }
}

enum Entry {
    Step(Step),
    Stream(Vec<Step>),
}

/// One request, or a list of them.
struct EntrySeed<'a, 'b>(Part<'a, 'b>);

impl<'de> DeserializeSeed<'de> for EntrySeed<'_, '_> {
    type Value = Entry;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Entry, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for EntrySeed<'_, '_> {
    type Value = Entry;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a request, which is an object of tensors, or a list of requests")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<Entry, A::Error> {
        let mut steps = Vec::new();
        while let Some(entry) = list.next_element_seed(EntrySeed(self.0.again()))? {
            match entry {
                Entry::Step(step) => steps.push(step),
                Entry::Stream(_) => return Err(A::Error::custom("lists of lists of requests have no meaning")),
            }
        }
        Ok(Entry::Stream(steps))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entry, A::Error> {
        let Part { model_info, plan, is_input, .. } = self.0;
        let left = self.0.reading.steps_left.checked_sub(1);
        self.0.reading.steps_left = left.ok_or_else(|| A::Error::custom("there are too many requests"))?;
        let mut found = BTreeMap::new();
        while let Some(name) = map.next_key::<String>()? {
            let noun = self.0.noun();
            let facts = self.0.tensors().iter().find(|facts| facts.name == name);
            let facts = facts.ok_or_else(|| A::Error::custom(format!("the model has no {noun} '{name}'")))?;
            let elements = Elements::of(facts).map_err(A::Error::custom)?;
            let tensor = TensorSeed { name: &name, elements, noun, room: self.0.reading.room };
            let tensor = map.next_value_seed(tensor)?;
            let values = if is_input {
                tensor.input(facts, model_info, plan).map_err(A::Error::custom)?
            } else {
                // What comes back has the shape that the model gives it.
                Values { shape: Vec::new(), bytes: tensor.bytes }
            };
            if found.insert(name, values).is_some() {
                return Err(A::Error::custom(format!("{noun} '{}' is there twice", facts.name)));
            }
        }
        let missing = |facts: &&TensorFacts| is_input && !facts.optional && !found.contains_key(&facts.name);
        if let Some(facts) = self.0.tensors().iter().find(missing) {
            return Err(A::Error::custom(format!("a request without input '{}'", facts.name)));
        }
        Ok(Entry::Step(Step { inputs: found, expected: None }))
    }
}

/// A tensor as it stands in the file.
struct Tensor {
    bytes: Vec<u8>,
    count: usize,
    shape: Option<Vec<i64>>,
}

impl Tensor {
    /// Checked against the model.
    fn input(self, facts: &TensorFacts, model_info: &ModelInfo, plan: &DataPlan) -> Result<Values, DataError> {
        let shape = match self.shape {
            None => shapes::of_count(facts, plan, model_info, self.count)?,
            Some(shape) => {
                let shape = shapes::fitting(facts, shapes::declared(facts, model_info), &shape)?;
                let expected = shapes::count(&facts.name, &shape)?;
                if expected != self.count {
                    let reason = format!("shape {shape:?} has {expected} elements, the data has {}", self.count);
                    return Err(DataError::input(&facts.name, reason));
                }
                shape
            }
        };
        Ok(Values { shape, bytes: self.bytes })
    }
}

struct TensorSeed<'a, 'b> {
    name: &'b str,
    elements: Elements,
    noun: &'static str,
    room: &'a mut usize,
}

impl TensorSeed<'_, '_> {
    fn again(&mut self) -> TensorSeed<'_, '_> {
        TensorSeed { name: self.name, elements: self.elements, noun: self.noun, room: self.room }
    }

    fn wrong<E: Error>(&self, reason: impl fmt::Display) -> E {
        E::custom(format!("{} '{}': {reason}", self.noun, self.name))
    }

    fn take_room<E: Error>(&mut self, bytes: usize) -> Result<(), E> {
        match self.room.checked_sub(bytes) {
            Some(left) => {
                *self.room = left;
                Ok(())
            }
            None => Err(self.wrong(DataError::TooLarge)),
        }
    }

    fn one<E: Error>(mut self, element: Element<'_>) -> Result<Tensor, E> {
        let mut tensor = Tensor { bytes: Vec::new(), count: 0, shape: None };
        self.append(&mut tensor, element)?;
        Ok(tensor)
    }

    fn append<E: Error>(&mut self, tensor: &mut Tensor, element: Element<'_>) -> Result<(), E> {
        let before = tensor.bytes.len();
        self.elements.put(&mut tensor.bytes, element).map_err(|reason| self.wrong::<E>(reason))?;
        tensor.count += 1;
        self.take_room(tensor.bytes.len() - before)
    }

    fn decode<E: Error>(&mut self, text: &str) -> Result<Tensor, E> {
        let bytes = STANDARD
            .decode(text.trim_end_matches('\n'))
            .map_err(|error| self.wrong::<E>(format!("its base64: {error}")))?;
        self.take_room(bytes.len())?;
        let size = self.elements.datatype.byte_size();
        let count = match self.elements.datatype {
            DataType::Bytes => count_strings(&bytes)
                .ok_or_else(|| self.wrong::<E>("strings in base64 have their length in four bytes before each"))?,
            _ if bytes.len() % size == 0 => bytes.len() / size,
            datatype => return Err(self.wrong(format!("{} bytes are no elements of {datatype}", bytes.len()))),
        };
        Ok(Tensor { bytes, count, shape: None })
    }
}

impl<'de> DeserializeSeed<'de> for TensorSeed<'_, '_> {
    type Value = Tensor;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Tensor, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for TensorSeed<'_, '_> {
    type Value = Tensor;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of elements for {} '{}', or an object with 'content' or 'b64'", self.noun, self.name)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Tensor, E> {
        self.one(Element::Bool(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Tensor, E> {
        self.one(Element::Unsigned(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Tensor, E> {
        self.one(Element::Signed(value))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Tensor, E> {
        self.one(Element::Float(value))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Tensor, E> {
        self.one(Element::Text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<Tensor, A::Error> {
        let mut tensor = Tensor { bytes: Vec::new(), count: 0, shape: None };
        while list.next_element_seed(ElementSeed { seed: self.again(), tensor: &mut tensor })?.is_some() {}
        Ok(tensor)
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Tensor, A::Error> {
        let (mut tensor, mut shape) = (None, None);
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "content" if tensor.is_none() => tensor = Some(map.next_value_seed(self.again())?),
                "b64" if tensor.is_none() => {
                    let text: String = map.next_value()?;
                    tensor = Some(self.decode(&text)?);
                }
                "shape" if shape.is_none() => shape = Some(map.next_value::<Vec<i64>>()?),
                "content" | "b64" | "shape" => return Err(self.wrong(format!("'{key}' comes too often"))),
                _ => return Err(self.wrong(format!("'{key}' is none of 'content', 'b64' and 'shape'"))),
            }
        }
        let mut tensor: Tensor = tensor.ok_or_else(|| self.wrong::<A::Error>("neither 'content' nor 'b64'"))?;
        tensor.shape = shape.or(tensor.shape);
        Ok(tensor)
    }
}

/// An element, or a list of them: the shape of the lists is ignored.
struct ElementSeed<'a, 'b, 'c> {
    seed: TensorSeed<'a, 'b>,
    tensor: &'c mut Tensor,
}

impl<'de> DeserializeSeed<'de> for ElementSeed<'_, '_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ElementSeed<'_, '_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an element of {} '{}', {}", self.seed.noun, self.seed.name, self.seed.elements.datatype)
    }

    fn visit_bool<E: Error>(mut self, value: bool) -> Result<(), E> {
        self.seed.append(self.tensor, Element::Bool(value))
    }

    fn visit_u64<E: Error>(mut self, value: u64) -> Result<(), E> {
        self.seed.append(self.tensor, Element::Unsigned(value))
    }

    fn visit_i64<E: Error>(mut self, value: i64) -> Result<(), E> {
        self.seed.append(self.tensor, Element::Signed(value))
    }

    fn visit_f64<E: Error>(mut self, value: f64) -> Result<(), E> {
        self.seed.append(self.tensor, Element::Float(value))
    }

    fn visit_str<E: Error>(mut self, value: &str) -> Result<(), E> {
        self.seed.append(self.tensor, Element::Text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<(), A::Error> {
        let tensor = self.tensor;
        while list.next_element_seed(ElementSeed { seed: self.seed.again(), tensor: &mut *tensor })?.is_some() {}
        Ok(())
    }
}
