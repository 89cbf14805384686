//! Builds the inputs of a request, in the datatypes and ranks that the model declares.
//!
//! A configuration may declare an input otherwise than upstream sends it: with a batch dimension or without, a seed as
//! INT64. What fits is sent so. Inputs that the configuration does not declare are left out, except the prompt, for
//! which the core's refusal is the right answer.

use super::ModelFacts;
use crate::error::{Compat, Refusal};
use crate::plan::Input;
use nereid_request::{DataType, Shape};

/// The inputs so far.
pub(super) struct Tensors<'a> {
    facts: &'a ModelFacts,
    compat: Compat,
    /// Of an input that is not declared.
    rank: usize,
    inputs: Vec<Input>,
}

impl<'a> Tensors<'a> {
    pub(super) fn new(facts: &'a ModelFacts, compat: Compat, rank: usize) -> Tensors<'a> {
        Tensors { facts, compat, rank, inputs: Vec::with_capacity(16) }
    }

    pub(super) fn into_inputs(self) -> Vec<Input> {
        self.inputs
    }

    /// The input that takes the text, also if it is not declared.
    pub(super) fn prompt(&mut self, name: &str, text: &str) -> Result<(), Refusal> {
        let rank = self.declared(name).map_or(self.rank, |(_, rank)| rank);
        self.push(name, DataType::Bytes, shape(rank, 1), strings(&[text])?);
        Ok(())
    }

    pub(super) fn text(&mut self, name: &str, text: &str) -> Result<(), Refusal> {
        self.texts(name, &[text])
    }

    pub(super) fn texts<T: AsRef<str>>(&mut self, name: &str, texts: &[T]) -> Result<(), Refusal> {
        if let Some((_, rank)) = self.declared(name) {
            let data = strings(texts)?;
            self.push(name, DataType::Bytes, shape(rank, texts.len()), data);
        }
        Ok(())
    }

    pub(super) fn flag(&mut self, name: &str, value: bool) {
        if let Some((_, rank)) = self.declared(name) {
            self.push(name, DataType::Bool, shape(rank, 1), vec![u8::from(value)]);
        }
    }

    pub(super) fn float(&mut self, name: &str, value: f64) {
        let Some((declared, rank)) = self.declared(name) else { return };
        let (datatype, data) = match declared {
            DataType::Fp64 => (DataType::Fp64, value.to_le_bytes().to_vec()),
            _ => (DataType::Fp32, (value as f32).to_le_bytes().to_vec()),
        };
        self.push(name, datatype, shape(rank, 1), data);
    }

    /// `member`: what the request calls it. `usual`: its datatype, unless the model declares another for integers.
    pub(super) fn integer(&mut self, name: &str, member: &str, value: i64, usual: DataType) -> Result<(), Refusal> {
        let Some((declared, rank)) = self.declared(name) else { return Ok(()) };
        let datatype = if is_integer(declared) { declared } else { usual };
        let data = match datatype {
            DataType::Int32 => i32::try_from(value).ok().map(|value| value.to_le_bytes().to_vec()),
            DataType::Uint32 => u32::try_from(value).ok().map(|value| value.to_le_bytes().to_vec()),
            DataType::Uint64 => u64::try_from(value).ok().map(|value| value.to_le_bytes().to_vec()),
            _ => Some(value.to_le_bytes().to_vec()),
        };
        let data = data.ok_or_else(|| self.out_of_bounds(member, value, datatype))?;
        self.push(name, datatype, shape(rank, 1), data);
        Ok(())
    }

    /// A tensor with its own shape.
    pub(super) fn push(&mut self, name: &str, datatype: DataType, shape: Shape, data: Vec<u8>) {
        self.inputs.push(Input { name: name.to_owned(), datatype, shape, data });
    }

    /// The datatype and the rank of an input with its batch dimension.
    pub(super) fn declared(&self, name: &str) -> Option<(DataType, usize)> {
        let input = self.facts.input(name)?;
        let rank = input.dims.len().saturating_add(usize::from(self.facts.is_batching)).max(1);
        Some((input.datatype, rank))
    }

    fn out_of_bounds(&self, member: &str, value: i64, datatype: DataType) -> Refusal {
        let kind = datatype.name();
        if self.compat == Compat::Triton {
            return Refusal::server(format!("Python integer {value} out of bounds for {}", kind.to_lowercase()));
        }
        let model = &self.facts.name;
        let range = match datatype {
            DataType::Int32 => format!("{} to {}", i32::MIN, i32::MAX),
            DataType::Uint32 => format!("0 to {}", u32::MAX),
            _ => format!("0 to {}", i64::MAX),
        };
        Refusal::client(format!("`{member}` is {value}, but model '{model}' takes {kind}: {range}"))
    }
}

fn is_integer(datatype: DataType) -> bool {
    matches!(datatype, DataType::Int32 | DataType::Uint32 | DataType::Int64 | DataType::Uint64)
}

/// `count` elements in the last dimension, behind ones.
pub(super) fn shape(rank: usize, count: usize) -> Shape {
    let mut shape = Shape::from_elem(1, rank.max(1));
    if let Some(last) = shape.last_mut() {
        *last = i64::try_from(count).unwrap_or(i64::MAX);
    }
    shape
}

/// Triton's binary form: each behind its length.
pub(super) fn strings<T: AsRef<str>>(texts: &[T]) -> Result<Vec<u8>, Refusal> {
    let size = texts.iter().fold(0usize, |size, text| size.saturating_add(text.as_ref().len()).saturating_add(4));
    let mut data = Vec::with_capacity(size);
    for text in texts {
        let text = text.as_ref();
        let length = u32::try_from(text.len())
            .map_err(|_| Refusal::client("a text of the request is longer than 4 GiB; shorten it"))?;
        data.extend_from_slice(&length.to_le_bytes());
        data.extend_from_slice(text.as_bytes());
    }
    Ok(data)
}
