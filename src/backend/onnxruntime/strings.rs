//! BYTES tensors: length-prefixed on the wire, C strings inside the library (contract/backends.md section 4).
//!
//! The library's interface takes NUL-terminated strings, so a string with a zero byte inside ends there; its outputs
//! have lengths, so they are complete.

use std::ffi::CStr;

use nereid_memory::{Exhausted, Pool, Slice};

/// Bytes that a scratch buffer keeps between runs.
const KEPT: usize = 1 << 20;

/// The elements do not match the shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

/// Elements of all requests, each with a NUL behind it.
#[derive(Debug, Default)]
pub struct Strings {
    bytes: Vec<u8>,
    starts: Vec<usize>,
}

impl Strings {
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.starts.clear();
        self.bytes.shrink_to(KEPT);
        self.starts.shrink_to(KEPT / size_of::<usize>());
    }

    /// Appends the `count` elements of `data`, which may be cut into pieces anywhere; on error nothing is appended.
    pub fn append(&mut self, data: &[Slice], count: usize) -> Result<(), Malformed> {
        let before = (self.bytes.len(), self.starts.len());
        let result = self.append_elements(data, count);
        if result.is_err() {
            self.bytes.truncate(before.0);
            self.starts.truncate(before.1);
        }
        result
    }

    fn append_elements(&mut self, data: &[Slice], count: usize) -> Result<(), Malformed> {
        let mut reader = Reader { pieces: data.iter(), piece: &[], left: data.iter().map(|piece| piece.len()).sum() };
        for _ in 0..count {
            let mut prefix = [0; 4];
            reader.read(4, |at, part| {
                if let Some(place) = prefix.get_mut(at..at + part.len()) {
                    place.copy_from_slice(part);
                }
            })?;
            let len = usize::try_from(u32::from_le_bytes(prefix)).map_err(|_| Malformed)?;
            self.starts.push(self.bytes.len());
            reader.read(len, |_, part| self.bytes.extend_from_slice(part))?;
            self.bytes.push(0);
        }
        if reader.left == 0 { Ok(()) } else { Err(Malformed) }
    }

    /// Each element up to its first NUL.
    pub fn as_c_strs(&self) -> Vec<&CStr> {
        let at = |start: &usize| self.bytes.get(*start..).and_then(|rest| CStr::from_bytes_until_nul(rest).ok());
        self.starts.iter().map(|start| at(start).unwrap_or_default()).collect()
    }
}

/// Reads across the cuts of a tensor's data.
struct Reader<'a> {
    pieces: std::slice::Iter<'a, Slice>,
    piece: &'a [u8],
    left: usize,
}

impl Reader<'_> {
    /// Passes `len` bytes to `take`, each part with its offset.
    fn read(&mut self, len: usize, mut take: impl FnMut(usize, &[u8])) -> Result<(), Malformed> {
        self.left = self.left.checked_sub(len).ok_or(Malformed)?;
        let mut done = 0;
        while done < len {
            if self.piece.is_empty() {
                self.piece = self.pieces.next().ok_or(Malformed)?;
                continue;
            }
            let (part, rest) = self.piece.split_at(self.piece.len().min(len - done));
            take(done, part);
            done += part.len();
            self.piece = rest;
        }
        Ok(())
    }
}

/// The content of a string tensor: all bytes one behind the other, and the offset of each element. Scratch memory that
/// is filled again for each tensor.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Content {
    pub bytes: Vec<u8>,
    pub starts: Vec<usize>,
}

/// An encoded tensor that can be cut between elements.
#[derive(Debug, Clone)]
pub struct Encoded {
    data: Slice,
    /// The offset of each element's prefix, and the end.
    offsets: Vec<usize>,
}

/// Why a string tensor cannot be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    #[error(transparent)]
    Exhausted(#[from] Exhausted),
    #[error("a string is longer than its length prefix can say")]
    TooLong,
}

impl Content {
    /// The wire form, in a block of `pool`.
    pub fn encode(&self, pool: &Pool) -> Result<Encoded, EncodeError> {
        let ends = self.starts.iter().copied().skip(1).chain([self.bytes.len()]);
        let mut block = pool.get(self.bytes.len().saturating_add(self.starts.len().saturating_mul(4)))?;
        block.set_len(0);
        let mut offsets = Vec::with_capacity(self.starts.len() + 1);
        for (&start, end) in self.starts.iter().zip(ends) {
            let element = self.bytes.get(start..end).unwrap_or_default();
            let len = u32::try_from(element.len()).map_err(|_| EncodeError::TooLong)?;
            offsets.push(block.len());
            block.append(&len.to_le_bytes());
            block.append(element);
        }
        offsets.push(block.len());
        Ok(Encoded { data: block.freeze(), offsets })
    }

    /// Appends the elements of another tensor.
    pub fn append(&mut self, other: &Content) {
        let end = self.bytes.len();
        self.starts.extend(other.starts.iter().map(|start| end + start));
        self.bytes.extend_from_slice(&other.bytes);
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
        self.starts.clear();
        self.bytes.shrink_to(KEPT);
        self.starts.shrink_to(KEPT / size_of::<usize>());
    }
}

impl Encoded {
    /// Elements `from..to`; `None` if there are fewer.
    pub fn window(&self, from: usize, to: usize) -> Option<Slice> {
        let (start, end) = (*self.offsets.get(from)?, *self.offsets.get(to)?);
        (start <= end).then(|| self.data.window(start..end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wire(elements: &[&[u8]]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for element in elements {
            bytes.extend_from_slice(&u32::try_from(element.len()).unwrap().to_le_bytes());
            bytes.extend_from_slice(element);
        }
        bytes
    }

    fn parsed(pieces: &[Slice], count: usize) -> Result<Vec<Vec<u8>>, Malformed> {
        let mut strings = Strings::default();
        strings.append(pieces, count)?;
        Ok(strings.as_c_strs().iter().map(|string| string.to_bytes().to_vec()).collect())
    }

    #[test]
    fn elements_are_found_across_every_cut() {
        let elements: [&[u8]; 4] = [b"abc", b"", b"a\0b", b"\xff\xfe"];
        let bytes = wire(&elements);
        let expected: Vec<Vec<u8>> = [&b"abc"[..], b"", b"a", b"\xff\xfe"].map(<[u8]>::to_vec).to_vec();
        for first in 0..=bytes.len() {
            for second in first..=bytes.len() {
                let cut = [&bytes[..first], &bytes[first..second], &bytes[second..]].map(Slice::copy_of);
                assert_eq!(parsed(&cut, 4), Ok(expected.clone()), "{first} {second}");
            }
        }
    }

    #[test]
    fn every_truncation_and_every_wrong_count_is_malformed() {
        let bytes = wire(&[b"abc", b"de"]);
        for len in 0..bytes.len() {
            assert_eq!(parsed(&[Slice::copy_of(&bytes[..len])], 2), Err(Malformed), "{len}");
        }
        for count in [0, 1, 3, usize::MAX] {
            assert_eq!(parsed(&[Slice::copy_of(&bytes)], count), Err(Malformed), "{count}");
        }
        assert_eq!(parsed(&[Slice::copy_of(&[0xff; 8])], 1), Err(Malformed));
        assert_eq!(parsed(&[], 0), Ok(vec![]));
    }

    #[test]
    fn a_malformed_tensor_leaves_its_predecessors_alone() {
        let mut strings = Strings::default();
        strings.append(&[Slice::copy_of(&wire(&[b"kept"]))], 1).unwrap();
        let mut bad = wire(&[b"x"]);
        bad.extend_from_slice(&[9, 0, 0, 0]);
        assert_eq!(strings.append(&[Slice::copy_of(&bad)], 2), Err(Malformed));
        strings.append(&[Slice::copy_of(&wire(&[b"next"]))], 1).unwrap();
        assert_eq!(strings.as_c_strs(), [c"kept", c"next"]);
    }

    #[test]
    fn content_is_encoded_and_cut_between_elements() {
        let pool = Pool::new(1 << 20);
        let content = Content { bytes: b"abcde\0f".to_vec(), starts: vec![0, 3, 3, 5] };
        let encoded = content.encode(&pool).unwrap();
        assert_eq!(*encoded.window(0, 4).unwrap(), *wire(&[b"abc", b"", b"de", b"\0f"]));
        assert_eq!(*encoded.window(1, 3).unwrap(), *wire(&[b"", b"de"]));
        assert_eq!(*encoded.window(4, 4).unwrap(), *b"");
        assert!(encoded.window(3, 5).is_none() && encoded.window(3, 2).is_none());
        assert_eq!(*Content::default().encode(&pool).unwrap().window(0, 0).unwrap(), *b"");
        let small = Pool::new(0);
        assert!(matches!(content.encode(&small), Err(EncodeError::Exhausted(_))));
    }
}
