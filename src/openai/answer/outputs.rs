//! What a model's response has for an answer (contract/openai.md section 3.4): found once, where the response arrives,
//! and left where it lies. The text is read from there in runs of a bounded length.

use nereid_memory::Slice;
use nereid_request::{DataType, OutputTensor, Response, element_count};

use super::finish::Finish;
use crate::error::Refusal;
use crate::plan::Plan;
use crate::request::Operation;

/// Bytes of a text that one step reads.
pub(super) const RUN_BYTES_MAX: usize = 64 * 1024;

const LENGTH_BYTES: usize = 4;

/// A response, and how far its text has been read.
pub(super) struct Arrived {
    response: Response,
    text: TextPlace,
    /// The output with numbers.
    numbers: Option<usize>,
    logprobs: Option<usize>,
    pub prompt_tokens: Option<u64>,
    pub completion_tokens: Option<u64>,
    pub finish: Option<Finish>,
    pub is_last: bool,
}

/// Where the rest of the text lies among the outputs. All zero: there is none.
#[derive(Clone, Copy, Default)]
struct TextPlace {
    output: usize,
    piece: usize,
    at: usize,
    left: usize,
}

impl Arrived {
    /// Finds what `plan` is about among the outputs of `response`.
    pub fn new(plan: &Plan, response: Response, is_last: bool) -> Result<Arrived, Refusal> {
        let mut arrived = Arrived {
            text: TextPlace::default(),
            numbers: None,
            logprobs: None,
            prompt_tokens: None,
            completion_tokens: None,
            finish: None,
            is_last,
            response,
        };
        let wanted = plan.output_name.as_ref().map_or(&b"text_output"[..], |name| name.as_bytes());
        let is_vector = !matches!(plan.operation, Operation::Chat | Operation::Completions | Operation::Responses);
        for (index, output) in arrived.response.outputs.iter().enumerate() {
            let name = output.name.as_bytes();
            if name == wanted && (!is_vector || output.datatype == DataType::Bytes) {
                arrived.text = find_text(output, index)?;
                continue;
            }
            match name {
                b"num_input_tokens" => arrived.prompt_tokens = count_of(output),
                b"num_output_tokens" => arrived.completion_tokens = count_of(output),
                b"logprobs" => arrived.logprobs = Some(index),
                b"finish_reason" if plan.outputs.has_finish_reason => {
                    arrived.finish = string_of(output).and_then(|text| Finish::reported(&text));
                }
                _ => {}
            }
            let is_named = || plan.output_name.is_none() || name == wanted;
            if is_vector && output.datatype == DataType::Fp32 && arrived.numbers.is_none() && is_named() {
                arrived.numbers = Some(index);
            }
        }
        Ok(arrived)
    }

    /// Bytes of the text that have not been read.
    pub fn text_left(&self) -> usize {
        self.text.left
    }

    /// All of the text that has not been read.
    pub fn whole_text(&mut self) -> Vec<u8> {
        let mut text = Vec::with_capacity(self.text.left);
        while let Some((run, _)) = self.next_run() {
            text.extend_from_slice(run);
        }
        text
    }

    /// The next bytes of the text that lie together, and whether they are the last; `None` at its end.
    pub fn next_run(&mut self) -> Option<(&[u8], bool)> {
        let taken = self.run(RUN_BYTES_MAX);
        if taken == 0 {
            return None;
        }
        let TextPlace { output, piece, at, left } = self.text;
        let bytes: &[u8] = self.response.outputs.get(output)?.data.get(piece)?;
        Some((bytes.get(at.checked_sub(taken)?..at)?, left == 0))
    }

    /// Moves behind a run of at most `bytes_max` bytes, and returns how long it is.
    fn run(&mut self, bytes_max: usize) -> usize {
        let place = &mut self.text;
        let Some(output) = self.response.outputs.get(place.output) else { return 0 };
        while place.left > 0
            && let Some(piece) = output.data.get(place.piece)
        {
            let taken = piece.len().saturating_sub(place.at).min(place.left).min(bytes_max);
            if taken > 0 {
                place.at += taken;
                place.left -= taken;
                return taken;
            }
            (place.piece, place.at) = (place.piece + 1, 0);
        }
        0
    }

    /// The text of the output `logprobs`, if it has one.
    pub fn logprobs(&self) -> Option<Vec<u8>> {
        string_of(self.response.outputs.get(self.logprobs?)?)
    }

    /// The pieces of the output with 32-bit floats.
    pub fn floats(&self) -> Option<&[Slice]> {
        Some(&self.response.outputs.get(self.numbers?)?.data)
    }
}

fn find_text(output: &OutputTensor, index: usize) -> Result<TextPlace, Refusal> {
    if output.datatype != DataType::Bytes {
        return Err(Refusal::server(format!(
            "The output '{}' has the datatype {}; a text has to be BYTES.",
            output.name.to_str_lossy(),
            output.datatype.name()
        )));
    }
    let elements = element_count(&output.shape).unwrap_or(0);
    if elements != 1 {
        return Err(Refusal::server(format!("Expected to find 1 string in the output, found {elements} instead.")));
    }
    let bytes = output.byte_size();
    let Some(length) = string_length(output) else {
        return Err(Refusal::server(format!(
            "Expected string buffer to contain its serialized byte size, but found size of {bytes}."
        )));
    };
    let mut place = TextPlace { output: index, piece: 0, at: 0, left: length };
    let mut ahead = LENGTH_BYTES;
    for (piece, slice) in output.data.iter().enumerate() {
        if ahead < slice.len() {
            (place.piece, place.at) = (piece, ahead);
            break;
        }
        ahead -= slice.len();
    }
    Ok(place)
}

/// The length of the one string of an output; `None`: its bytes have none.
fn string_length(output: &OutputTensor) -> Option<usize> {
    let mut length = [0; LENGTH_BYTES];
    let behind = output.byte_size().checked_sub(LENGTH_BYTES)?;
    if read(&output.data, &mut length) < LENGTH_BYTES {
        return None;
    }
    Some((u32::from_le_bytes(length) as usize).min(behind))
}

/// The first string of an output.
fn string_of(output: &OutputTensor) -> Option<Vec<u8>> {
    if output.datatype != DataType::Bytes {
        return None;
    }
    let length = string_length(output)?;
    let mut bytes = Vec::with_capacity(output.byte_size());
    output.data.iter().for_each(|piece| piece.append_to(&mut bytes));
    Some(bytes.get(LENGTH_BYTES..LENGTH_BYTES + length)?.to_vec())
}

/// The first element, where it is a count.
fn count_of(output: &OutputTensor) -> Option<u64> {
    let mut bytes = [0; 4];
    if read(&output.data, &mut bytes) < bytes.len() {
        return None;
    }
    match output.datatype {
        DataType::Uint32 => Some(u64::from(u32::from_le_bytes(bytes))),
        DataType::Int32 => u64::try_from(i32::from_le_bytes(bytes)).ok(),
        _ => None,
    }
}

/// Fills `to` from the beginning of the data, and returns how many bytes there were.
fn read(data: &[Slice], to: &mut [u8]) -> usize {
    let mut filled = 0;
    for piece in data {
        match to.get_mut(filled..) {
            Some(rest) if !rest.is_empty() => filled += piece.copy_to(0, rest),
            _ => break,
        }
    }
    filled
}
