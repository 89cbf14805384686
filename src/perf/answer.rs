//! What an answer must hold, where a template states it, and where the fields of one are.
//!
//! Most runs expect nothing of an answer but that it is one. Then its bytes are only counted, and messages on a stream
//! are walked for their id and their end; nothing is decoded, and nothing is allocated.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, OnceLock};

use prost::Message;
use serde_json::Value;

use super::plan::Expected;
use super::request::{Placement, json};
use nereid_wire::inference::ModelInferResponse;

/// Deeper or stranger values of `triton_final_response` than a boolean are no end.
const FINAL: &[u8] = b"triton_final_response";

/// Longer answers are read each time.
const KNOWN_BYTES_MAX: usize = 4 << 20;

/// Outputs that an answer is compared with.
#[derive(Debug)]
pub struct Expectation {
    outputs: Vec<Expected>,
    /// Where outputs are that do not come in the answer.
    region: Option<(Arc<File>, Placement)>,
    /// An answer that was good: the same request mostly has the same one, and comparing is cheaper than decoding.
    known: OnceLock<Vec<u8>>,
}

impl Expectation {
    pub fn new(outputs: Vec<Expected>, region: Option<(Arc<File>, Placement)>) -> Expectation {
        Expectation { outputs, region, known: OnceLock::new() }
    }

    /// A ModelInferResponse.
    pub fn check_message(&self, message: &[u8]) -> Result<(), String> {
        self.check(message, || self.check_outputs(message))
    }

    /// The body of an HTTP answer, and where its JSON ends if something follows.
    pub fn check_http(&self, body: &[u8], json_length: Option<usize>) -> Result<(), String> {
        self.check(body, || self.check_body(body, json_length))
    }

    fn check(&self, answer: &[u8], read: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
        if self.region.is_some() {
            return self.check_region();
        }
        if self.known.get().is_some_and(|known| known == answer) {
            return Ok(());
        }
        read()?;
        if answer.len() <= KNOWN_BYTES_MAX {
            self.known.get_or_init(|| answer.to_vec());
        }
        Ok(())
    }

    fn check_outputs(&self, message: &[u8]) -> Result<(), String> {
        let response = ModelInferResponse::decode(message).map_err(|error| format!("a broken answer: {error}"))?;
        self.outputs.iter().try_for_each(|expected| {
            let at = response.outputs.iter().position(|output| output.name == expected.name);
            let data = at.and_then(|at| response.raw_output_contents.get(at));
            match data {
                Some(data) if data[..] == expected.data[..] => Ok(()),
                Some(_) => Err(differs(&expected.name)),
                None => Err(missing(&expected.name)),
            }
        })
    }

    fn check_body(&self, body: &[u8], json_length: Option<usize>) -> Result<(), String> {
        let length = json_length.unwrap_or(body.len());
        let (header, mut tail) = body.split_at_checked(length).ok_or("an answer that ends inside of its JSON")?;
        let answer: Value =
            serde_json::from_slice(header).map_err(|error| format!("an answer without good JSON: {error}"))?;
        let outputs = answer["outputs"].as_array().map(Vec::as_slice).unwrap_or_default();
        let mut found = 0;
        for output in outputs {
            let name = output["name"].as_str().unwrap_or_default();
            let expected = self.outputs.iter().find(|expected| expected.name == name);
            found += usize::from(expected.is_some());
            let same = match output["parameters"]["binary_data_size"].as_u64() {
                Some(size) => {
                    let size = usize::try_from(size).unwrap_or(usize::MAX);
                    let (data, rest) = tail.split_at_checked(size).ok_or("an answer that ends inside of a tensor")?;
                    tail = rest;
                    expected.is_none_or(|expected| expected.data[..] == *data)
                }
                None => expected.is_none_or(|expected| same_values(output, &expected.data)),
            };
            if !same {
                return Err(differs(name));
            }
        }
        if found < self.outputs.len() {
            let absent = |expected: &&Expected| !outputs.iter().any(|output| output["name"] == expected.name.as_str());
            return Err(missing(self.outputs.iter().find(absent).map_or("", |expected| &expected.name)));
        }
        Ok(())
    }

    fn check_region(&self) -> Result<(), String> {
        let Some((file, placement)) = &self.region else { return Ok(()) };
        self.check_placed(placement, |at, len| {
            let mut found = vec![0; len];
            file.read_exact_at(&mut found, at).map_err(|error| error.to_string()).map(|()| found)
        })
    }

    /// Outputs in memory, of which `read` copies bytes from an offset on.
    pub fn check_placed(
        &self,
        placement: &Placement,
        read: impl Fn(u64, usize) -> Result<Vec<u8>, String>,
    ) -> Result<(), String> {
        for expected in &self.outputs {
            let place = placement.outputs.iter().find(|(name, ..)| *name == expected.name);
            let (_, offset, _) = place.ok_or_else(|| missing(&expected.name))?;
            let found = read(*offset, expected.data.len()).map_err(|error| format!("shared memory: {error}"))?;
            if found[..] != expected.data[..] {
                return Err(differs(&expected.name));
            }
        }
        Ok(())
    }
}

fn same_values(output: &Value, data: &[u8]) -> bool {
    let Ok(expected) = json::values(output["datatype"].as_str().unwrap_or_default(), data) else { return false };
    let mut values = Vec::new();
    json::flatten(&output["data"], &mut values);
    // A number that came as 1 is the one that is expected as 1.0.
    let same = |(a, b): (&Value, &Value)| a == b || (a.as_f64().is_some() && a.as_f64() == b.as_f64());
    expected.len() == values.len() && expected.iter().zip(values).all(same)
}

fn differs(name: &str) -> String {
    format!("output '{name}' is not what was expected")
}

fn missing(name: &str) -> String {
    format!("output '{name}' is not in the answer")
}

/// The parts of a ModelStreamInferResponse that a client needs.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Streamed<'a> {
    pub error: &'a [u8],
    pub id: &'a [u8],
    /// The value of `triton_final_response`, if it is there.
    pub is_final: Option<bool>,
    pub has_outputs: bool,
    /// The ModelInferResponse.
    pub response: &'a [u8],
}

/// Walks a message; None if it is none.
pub fn read_streamed(message: &[u8]) -> Option<Streamed<'_>> {
    let mut streamed = Streamed::default();
    for field in Fields(message) {
        match field? {
            (1, Content::Bytes(error)) => streamed.error = error,
            (2, Content::Bytes(response)) => streamed.response = response,
            _ => {}
        }
    }
    for field in Fields(streamed.response) {
        match field? {
            (3, Content::Bytes(id)) => streamed.id = id,
            (4, Content::Bytes(entry)) => streamed.is_final = read_final(entry).or(streamed.is_final),
            (5, _) => streamed.has_outputs = true,
            _ => {}
        }
    }
    Some(streamed)
}

/// Whether an entry of the parameters is the one that marks the end, and its value.
fn read_final(entry: &[u8]) -> Option<bool> {
    let (mut named, mut value) = (false, &b""[..]);
    for field in Fields(entry) {
        match field? {
            (1, Content::Bytes(key)) => named = key == FINAL,
            (2, Content::Bytes(parameter)) => value = parameter,
            _ => {}
        }
    }
    if !named {
        return None;
    }
    let last = Fields(value).map_while(|field| field).last();
    Some(matches!(last, Some((1, Content::Number(1..)))))
}

/// The fields of a protobuf message; None in place of a field ends a message that is none.
struct Fields<'a>(&'a [u8]);

enum Content<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    Fixed,
}

impl<'a> Iterator for Fields<'a> {
    type Item = Option<(u64, Content<'a>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.read();
        if field.is_none() {
            self.0 = &[];
        }
        Some(field)
    }
}

impl<'a> Fields<'a> {
    fn read(&mut self) -> Option<(u64, Content<'a>)> {
        let key = self.number()?;
        let value = match key & 7 {
            0 => Content::Number(self.number()?),
            1 => self.take(8).map(|_| Content::Fixed)?,
            2 => {
                let len = usize::try_from(self.number()?).ok()?;
                Content::Bytes(self.take(len)?)
            }
            5 => self.take(4).map(|_| Content::Fixed)?,
            _ => return None,
        };
        Some((key >> 3, value))
    }

    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            number |= u64::from(byte & 0x7F) << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests;
