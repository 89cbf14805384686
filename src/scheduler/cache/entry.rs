//! An answer as the response cache stores it: in memory of its own, which pins neither a request nor a runtime's
//! memory.
//!
//! The encoding for stores outside the process carries a version, and all of it is checked when it is read: anyone with
//! access to the store can write anything.

use std::collections::HashSet;
use std::sync::Arc;

use smallvec::SmallVec;

use super::key::Key;
use nereid_memory::{BlockMut, Slice};
use nereid_model_config::ModelSpec;
use nereid_request::{ByNumber, DataType, OutputTensor, Request, Response, Shape, Text, element_count};

#[derive(Debug)]
pub struct Entry {
    pub seal: u64,
    outputs: Vec<OutputTensor>,
    byte_size: usize,
}

/// Bytes of an entry beside its tensors: its place in the store and its own structures.
const ENTRY_BYTES: usize = 256;
/// Bytes of a tensor beside its data.
const OUTPUT_BYTES: usize = size_of::<OutputTensor>() + 64;

/// First bytes of an encoded entry: name and version of the encoding.
const MAGIC: [u8; 4] = *b"NRC\x01";
const OUTPUTS_MAX: usize = 4096;
const DIMS_MAX: usize = 64;

impl Entry {
    /// Copies the outputs of a successful response.
    pub fn of(response: &Response, key: Key) -> Arc<Entry> {
        let outputs = response.outputs.iter().map(|output| OutputTensor {
            name: output.name.clone(),
            datatype: output.datatype,
            shape: output.shape.clone(),
            data: SmallVec::from_elem(joined(&output.data), 1),
            index: output.index,
            on_device: None,
        });
        Arc::new(Entry::new(key.seal, outputs.collect()))
    }

    fn new(seal: u64, outputs: Vec<OutputTensor>) -> Entry {
        let tensors = outputs.iter().map(|output| output.byte_size() + output.name.as_bytes().len() + OUTPUT_BYTES);
        let byte_size = tensors.sum::<usize>() + ENTRY_BYTES;
        Entry { seal, outputs, byte_size }
    }

    /// Bytes of the whole entry.
    pub fn byte_size(&self) -> usize {
        self.byte_size
    }

    /// Whether it answers `request`: it has all outputs that the request names.
    pub fn answers(&self, request: &Request) -> bool {
        let outputs = ByNumber::new(&self.outputs);
        request.outputs.iter().all(|wanted| outputs.get(wanted.index).is_some())
    }

    /// The answer to another request with the same inputs: all outputs of the first one.
    pub fn response(&self, id: Text) -> Response {
        let mut response = Response::new(id);
        response.outputs.extend(self.outputs.iter().cloned());
        response
    }

    /// Encodes the entry for a store outside the process; `None` where a number does not fit.
    pub fn encode(&self) -> Option<Vec<u8>> {
        let mut bytes = Vec::with_capacity(self.byte_size);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&self.seal.to_le_bytes());
        bytes.extend_from_slice(&u16::try_from(self.outputs.len()).ok()?.to_le_bytes());
        for output in &self.outputs {
            let name = output.name.as_bytes();
            bytes.extend_from_slice(&u16::try_from(name.len()).ok()?.to_le_bytes());
            bytes.extend_from_slice(name);
            bytes.push(u8::try_from(output.datatype as u32).ok()?);
            bytes.push(u8::try_from(output.shape.len()).ok()?);
            output.shape.iter().for_each(|dim| bytes.extend_from_slice(&dim.to_le_bytes()));
            bytes.extend_from_slice(&(output.byte_size() as u64).to_le_bytes());
            output.data.iter().for_each(|piece| piece.append_to(&mut bytes));
        }
        Some(bytes)
    }

    /// Decodes an entry for a model; `None` if the bytes are no entry, or one that this model could not have made.
    pub fn decode(bytes: &[u8], spec: &ModelSpec) -> Option<Arc<Entry>> {
        let mut reader = Reader(bytes);
        if reader.array()? != MAGIC {
            return None;
        }
        let seal = u64::from_le_bytes(reader.array()?);
        let count = usize::from(u16::from_le_bytes(reader.array()?));
        if count > OUTPUTS_MAX {
            return None;
        }
        let (mut outputs, mut seen): (Vec<OutputTensor>, _) = (Vec::new(), HashSet::new());
        for _ in 0..count {
            let output = reader.output(spec)?;
            if !seen.insert(output.index) {
                return None;
            }
            outputs.push(output);
        }
        reader.0.is_empty().then(|| Arc::new(Entry::new(seal, outputs)))
    }
}

/// The pieces of a tensor copied into one block.
fn joined(pieces: &[Slice]) -> Slice {
    let mut block = BlockMut::unpooled(pieces.iter().map(|piece| piece.len()).sum());
    block.set_len(0);
    for piece in pieces {
        block.append_slice(piece, 0, piece.len());
    }
    block.freeze()
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    fn output(&mut self, spec: &ModelSpec) -> Option<OutputTensor> {
        let name_len = usize::from(u16::from_le_bytes(self.array()?));
        let name = self.take(name_len)?;
        let index = spec.outputs.iter().position(|output| output.name.as_bytes() == name)?;
        let [datatype, dims] = self.array()?;
        let datatype = DataType::from_number(u32::from(datatype))?;
        if usize::from(dims) > DIMS_MAX {
            return None;
        }
        let mut shape = Shape::new();
        for _ in 0..dims {
            shape.push(i64::from_le_bytes(self.array()?));
        }
        let len = usize::try_from(u64::from_le_bytes(self.array()?)).ok()?;
        let data = self.take(len)?;
        if !is_tensor(datatype, &shape, data) {
            return None;
        }
        let data = SmallVec::from_elem(Slice::copy_of(data), 1);
        Some(OutputTensor { name: Text::new(name), datatype, shape, data, index, on_device: None })
    }
}

/// Whether `data` fits a tensor of this type and shape.
fn is_tensor(datatype: DataType, shape: &[i64], data: &[u8]) -> bool {
    let Some(count) = element_count(shape).and_then(|count| usize::try_from(count).ok()) else { return false };
    if datatype != DataType::Bytes {
        return count.checked_mul(datatype.byte_size()) == Some(data.len());
    }
    let mut reader = Reader(data);
    let mut strings = 0usize;
    while !reader.0.is_empty() {
        let string = reader.array().and_then(|len| reader.take(u32::from_le_bytes(len) as usize));
        if string.is_none() {
            return false;
        }
        strings += 1;
    }
    strings == count
}

#[cfg(test)]
mod tests;
