//! BYTES tensors: each element is a length of four bytes, little-endian, and as many bytes. Joins those of requests and
//! encodes those of a result.

use std::ops::Range;

use smallvec::SmallVec;

use super::{Failure, Input, contiguous, elements, model_shape};
use nereid_memory::{Pool, Slice};
use nereid_request::{InputTensor, Shape, Status};

const PREFIX: usize = size_of::<u32>();

/// The elements of one BYTES input of all requests.
#[derive(Debug, Clone)]
pub struct JoinedStrings {
    pub shape: Shape,
    /// The requests' tensors, each in one piece.
    tensors: SmallVec<[Slice; 4]>,
    /// For each element its tensor and the place of its bytes there.
    elements: Vec<(usize, Range<usize>)>,
}

impl JoinedStrings {
    pub fn len(&self) -> usize {
        self.elements.len()
    }

    pub fn is_empty(&self) -> bool {
        self.elements.is_empty()
    }

    /// The elements in their order, without their lengths; they may contain zero bytes.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.elements.iter().map(|(at, range)| {
            let tensor = self.tensors.get(*at);
            tensor.and_then(|tensor| tensor.get(range.clone())).unwrap_or_default()
        })
    }
}

/// Walks the elements of `tensors`, which have `count` elements in all according to their shapes.
pub(super) fn join(
    tensors: &[&InputTensor],
    input: &Input,
    shape: Shape,
    count: usize,
    pool: &Pool,
) -> Result<JoinedStrings, Failure> {
    let mut joined = JoinedStrings { shape, tensors: SmallVec::new(), elements: Vec::new() };
    // The bytes bound the elements, whatever the shapes say: no more memory than that is taken.
    let most = tensors.iter().map(|tensor| tensor.byte_size() / PREFIX).fold(0, usize::saturating_add).min(count);
    joined.elements.try_reserve(most).map_err(|_| out_of_memory(input))?;
    for (at, tensor) in tensors.iter().enumerate() {
        let pieces = tensor.data.iter().filter(|piece| !piece.is_empty());
        let bytes = contiguous(pieces, tensor.byte_size(), 1, pool)?;
        let expected = elements(model_shape(tensor)).unwrap_or(usize::MAX);
        walk(&bytes, expected, &input.name, |range| joined.elements.push((at, range)))
            .map_err(|status| Failure::One(at, status))?;
        joined.tensors.push(bytes);
    }
    Ok(joined)
}

fn out_of_memory(input: &Input) -> Status {
    Status::unavailable(format!("no memory for the elements of input '{}'", input.name))
}

/// Passes the place of each of the `expected` elements of `bytes` to `element`; the errors are those of
/// contract/frameworks.md section 1.
fn walk(bytes: &[u8], expected: usize, name: &str, mut element: impl FnMut(Range<usize>)) -> Result<(), Status> {
    let (mut at, mut found) = (0, 0);
    while let Some((prefix, rest)) = bytes.get(at..).and_then(<[u8]>::split_first_chunk::<PREFIX>) {
        if found == expected {
            let text = format!(
                "unexpected number of string elements {} for inference input '{name}', expecting {expected}",
                found + 1
            );
            return Err(Status::invalid(text));
        }
        let len = u32::from_le_bytes(*prefix) as usize;
        if len > rest.len() {
            let left = rest.len();
            return Err(Status::invalid(format!(
                "incomplete string data for inference input '{name}', expecting string of length {len} but only {left} \
                 bytes available"
            )));
        }
        let start = at + PREFIX;
        at = start + len;
        found += 1;
        element(start..at);
    }
    if found != expected || at != bytes.len() {
        return Err(Status::invalid(format!("expected {expected} strings for inference input '{name}', got {found}")));
    }
    Ok(())
}

/// The strings of a result in wire form, which can be cut between elements.
#[derive(Debug, Clone)]
pub struct EncodedStrings {
    data: Slice,
    /// The offset of each element's length, and the end.
    offsets: Vec<usize>,
}

impl EncodedStrings {
    /// Encodes `strings` of the output `name`; the memory comes from `pool`.
    pub fn encode<'a>(
        strings: impl ExactSizeIterator<Item = &'a [u8]> + Clone,
        name: &str,
        pool: &Pool,
    ) -> Result<EncodedStrings, Status> {
        let too_large = || Status::internal(format!("the strings of output '{name}' are too large"));
        let mut offsets = Vec::new();
        let places = strings.len().checked_add(1).ok_or_else(too_large)?;
        offsets.try_reserve_exact(places).map_err(|_| too_large())?;
        let total = strings.clone().try_fold(0usize, |sum, string| sum.checked_add(string.len())?.checked_add(PREFIX));
        let mut block = pool.get(total.ok_or_else(too_large)?)?;
        block.set_len(0);
        for string in strings {
            let len = u32::try_from(string.len()).map_err(|_| too_large())?;
            offsets.push(block.len());
            block.append(&len.to_le_bytes());
            block.append(string);
        }
        offsets.push(block.len());
        Ok(EncodedStrings { data: block.freeze(), offsets })
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The wire form of some elements; `None` if there are fewer.
    pub(super) fn window(&self, elements: Range<usize>) -> Option<Slice> {
        let (start, end) = (*self.offsets.get(elements.start)?, *self.offsets.get(elements.end)?);
        (start <= end).then(|| self.data.window(start..end))
    }
}
