//! Random ModelInferRequests, and random ways to write them.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::Message;

use crate::grpc::varint;
use nereid_wire::inference::infer_parameter::ParameterChoice;
use nereid_wire::inference::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use nereid_wire::inference::{InferParameter, InferTensorContents, ModelInferRequest};

/// SplitMix64: the same numbers on every run.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    pub fn chance(&mut self, of: usize) -> bool {
        self.below(of) == 0
    }

    /// A number with a random count of significant bits, so that varints of all lengths appear.
    fn number(&mut self) -> u64 {
        let bits = self.below(65) as u32;
        self.next().checked_shr(64 - bits).unwrap_or(0)
    }

    fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.next() as u8).collect()
    }

    fn text(&mut self) -> String {
        const ALPHABET: [char; 8] = ['a', 'b', 'Z', '_', 'ß', '日', '🦀', '\0'];
        (0..self.below(7)).map(|_| ALPHABET[self.below(ALPHABET.len())]).collect()
    }

    fn many<T>(&mut self, at_most: usize, mut one: impl FnMut(&mut Random) -> T) -> Vec<T> {
        (0..self.below(at_most + 1)).map(|_| one(self)).collect()
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            items.swap(at, self.below(at + 1));
        }
    }
}

pub fn request(random: &mut Random) -> ModelInferRequest {
    ModelInferRequest {
        model_name: random.text(),
        model_version: random.text(),
        id: random.text(),
        parameters: parameters(random),
        inputs: random.many(3, |random| InferInputTensor {
            name: random.text(),
            datatype: random.text(),
            shape: random.many(8, |random| random.number() as i64),
            parameters: parameters(random),
            contents: (random.below(2) == 0).then(|| contents(random)),
        }),
        outputs: random
            .many(2, |random| InferRequestedOutputTensor { name: random.text(), parameters: parameters(random) }),
        raw_input_contents: random.many(3, |random| {
            let n = if random.chance(3) { 0 } else { random.below(150) };
            Bytes::from(random.bytes(n))
        }),
    }
}

fn parameters(random: &mut Random) -> BTreeMap<String, InferParameter> {
    random.many(3, |random| (random.text(), InferParameter { parameter_choice: choice(random) })).into_iter().collect()
}

fn choice(random: &mut Random) -> Option<ParameterChoice> {
    match random.below(6) {
        0 => None,
        1 => Some(ParameterChoice::BoolParam(random.chance(2))),
        2 => Some(ParameterChoice::Int64Param(random.number() as i64)),
        3 => Some(ParameterChoice::StringParam(random.text())),
        4 => Some(ParameterChoice::DoubleParam(f64::from_bits(random.next()))),
        _ => Some(ParameterChoice::Uint64Param(random.number())),
    }
}

fn contents(random: &mut Random) -> InferTensorContents {
    let mut contents = InferTensorContents::default();
    // Mostly one list, as in requests that make sense; sometimes none or two.
    for _ in 0..[1, 1, 1, 1, 0, 2][random.below(6)] {
        match random.below(8) {
            0 => contents.bool_contents = random.many(9, |random| random.chance(2)),
            1 => contents.int_contents = random.many(9, |random| random.number() as i32),
            2 => contents.int64_contents = random.many(9, |random| random.number() as i64),
            3 => contents.uint_contents = random.many(9, |random| random.number() as u32),
            4 => contents.uint64_contents = random.many(9, Random::number),
            5 => contents.fp32_contents = random.many(9, |random| f32::from_bits(random.next() as u32)),
            6 => contents.fp64_contents = random.many(9, |random| f64::from_bits(random.next())),
            _ => {
                contents.bytes_contents = random.many(4, |random| {
                    let n = random.below(20);
                    Bytes::from(random.bytes(n))
                })
            }
        }
    }
    contents
}

/// One field, key included.
type Written = Vec<u8>;

/// Writes `request` in some legal way that no encoder chooses: fields in any order, messages in parts that merge, lists
/// packed, unpacked or both, unknown fields, scalars given twice, lengths and numbers padded.
pub fn respelled(request: &ModelInferRequest, random: &mut Random) -> Vec<u8> {
    let mut fields = Vec::new();
    strings(&mut fields, &[(1, &request.model_name), (2, &request.model_version), (3, &request.id)], random);
    entries(&mut fields, 4, &request.parameters, random);
    for input in &request.inputs {
        let mut inner = Vec::new();
        strings(&mut inner, &[(1, &input.name), (2, &input.datatype)], random);
        varints(&mut inner, 3, &input.shape.iter().map(|&dim| dim as u64).collect::<Vec<_>>(), random);
        entries(&mut inner, 4, &input.parameters, random);
        if let Some(contents) = &input.contents {
            let (mut first, mut second) = (contents_fields(contents, random), Vec::new());
            while random.chance(2)
                && let Some(field) = first.pop()
            {
                second.push(field);
            }
            inner.push(held(5, &joined(first, random), random));
            if !second.is_empty() {
                inner.push(held(5, &joined(second, random), random));
            }
        }
        fields.push(held(5, &joined(inner, random), random));
    }
    for output in &request.outputs {
        let mut inner = Vec::new();
        strings(&mut inner, &[(1, &output.name)], random);
        entries(&mut inner, 2, &output.parameters, random);
        fields.push(held(6, &joined(inner, random), random));
    }
    for raw in &request.raw_input_contents {
        fields.push(held(7, raw, random));
    }
    joined(fields, random)
}

fn contents_fields(contents: &InferTensorContents, random: &mut Random) -> Vec<Written> {
    let mut fields = Vec::new();
    let bools: Vec<u64> = contents.bool_contents.iter().map(|&value| u64::from(value)).collect();
    let ints: Vec<u64> = contents.int_contents.iter().map(|&value| value as u64).collect();
    let int64s: Vec<u64> = contents.int64_contents.iter().map(|&value| value as u64).collect();
    let uints: Vec<u64> = contents.uint_contents.iter().map(|&value| u64::from(value)).collect();
    for (number, values) in [(1, &bools), (2, &ints), (3, &int64s), (4, &uints), (5, &contents.uint64_contents)] {
        varints(&mut fields, number, values, random);
    }
    let fp32: Vec<Vec<u8>> = contents.fp32_contents.iter().map(|value| value.to_le_bytes().to_vec()).collect();
    let fp64: Vec<Vec<u8>> = contents.fp64_contents.iter().map(|value| value.to_le_bytes().to_vec()).collect();
    pieces(&mut fields, 6, 5, &fp32, random);
    pieces(&mut fields, 7, 1, &fp64, random);
    fields.extend(contents.bytes_contents.iter().map(|bytes| held(8, bytes, random)));
    fields
}

fn strings(fields: &mut Vec<Written>, strings: &[(u32, &String)], random: &mut Random) {
    for &(number, text) in strings {
        if random.chance(8) {
            fields.push(held(number, random.text().as_bytes(), random));
        }
        if !text.is_empty() || random.chance(4) {
            fields.push(held(number, text.as_bytes(), random));
        }
    }
}

fn entries(fields: &mut Vec<Written>, number: u32, map: &BTreeMap<String, InferParameter>, random: &mut Random) {
    for (key, value) in map {
        let mut inner = Vec::new();
        strings(&mut inner, &[(1, key)], random);
        if value.parameter_choice.is_some() || random.chance(2) {
            let encoded = value.encode_to_vec();
            inner.push(held(2, &joined(vec![encoded], random), random));
        }
        if random.chance(5) {
            inner.push(held(2, &InferParameter { parameter_choice: choice(random) }.encode_to_vec(), random));
        }
        fields.push(held(number, &joined(inner, random), random));
        if random.chance(6) {
            let again = InferParameter { parameter_choice: choice(random) }.encode_to_vec();
            let inner = vec![held(1, key.as_bytes(), random), held(2, &again, random)];
            fields.push(held(number, &joined(inner, random), random));
        }
    }
}

/// A list of varints.
fn varints(fields: &mut Vec<Written>, number: u32, values: &[u64], random: &mut Random) {
    let values: Vec<Vec<u8>> = values.iter().map(|&value| padded(value, random)).collect();
    pieces(fields, number, 0, &values, random);
}

/// A list of written values, in runs that are packed or not.
fn pieces(fields: &mut Vec<Written>, number: u32, wire: u32, mut values: &[Vec<u8>], random: &mut Random) {
    while !values.is_empty() {
        let (run, rest) = values.split_at(1 + random.below(values.len()));
        values = rest;
        if random.chance(2) {
            fields.push(held(number, &run.concat(), random));
        } else {
            // One by one, but as one unit: a shuffle must not tell them apart from a packed run.
            fields.push(run.iter().flat_map(|value| [key(number, wire), value.clone()].concat()).collect());
        }
    }
    if random.chance(10) {
        fields.push(held(number, &[], random));
    }
}

fn key(number: u32, wire: u32) -> Vec<u8> {
    let mut key = Vec::new();
    varint::put(u64::from(number << 3 | wire), &mut key);
    key
}

pub fn held(number: u32, bytes: &[u8], random: &mut Random) -> Written {
    [key(number, 2), padded(bytes.len() as u64, random), bytes.to_vec()].concat()
}

/// A varint, now and then longer than it must be.
fn padded(value: u64, random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::new();
    varint::put(value, &mut bytes);
    if bytes.len() < 9
        && random.chance(6)
        && let Some(last) = bytes.last_mut()
    {
        *last |= 0x80;
        bytes.push(0);
    }
    bytes
}

fn joined(mut fields: Vec<Written>, random: &mut Random) -> Vec<u8> {
    random.shuffle(&mut fields);
    while random.chance(3) {
        let unknown = unknown(random, 3);
        let at = random.below(fields.len() + 1);
        fields.insert(at, unknown);
    }
    fields.concat()
}

/// A field that nobody knows.
fn unknown(random: &mut Random, depth: usize) -> Written {
    let number = 9 + random.below(4000) as u32;
    match random.below(if depth > 0 { 5 } else { 4 }) {
        0 => [key(number, 0), padded(random.number(), random)].concat(),
        1 => [key(number, 1), random.bytes(8)].concat(),
        2 => [key(number, 5), random.bytes(4)].concat(),
        3 => {
            let n = random.below(12);
            let bytes = random.bytes(n);
            held(number, &bytes, random)
        }
        _ => {
            let inner: Vec<u8> = random.many(3, |random| unknown(random, depth - 1)).concat();
            [key(number, 3), inner, key(number, 4)].concat()
        }
    }
}

/// Breaks `bytes` somewhere, or not at all.
pub fn mutated(bytes: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..1 + random.below(3) {
        let at = random.below(bytes.len().max(1)).min(bytes.len());
        let to = (at + random.below(12)).min(bytes.len());
        match random.below(7) {
            0 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            1 if at < bytes.len() => bytes[at] = random.next() as u8,
            2 => bytes.truncate(at),
            3 => drop(bytes.drain(at..to)),
            4 => drop(bytes.splice(at..at, random.bytes(3))),
            5 => {
                let copy = bytes[at..to].to_vec();
                let into = random.below(bytes.len() + 1);
                drop(bytes.splice(into..into, copy));
            }
            _ => drop(bytes.splice(at..at, [0xff; 5])),
        }
    }
    bytes
}
