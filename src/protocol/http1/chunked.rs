//! The chunked transfer coding, read at any split (RFC 9112, section 7.1).
//!
//! Extensions and trailers are skipped, each within a bound. Line ends are CR LF and nothing else: tolerance here is
//! how two readers come to disagree about where a body ends.

/// Bytes of all extensions of a body, and of its trailers.
const SKIPPED_MAX: usize = 16 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum ChunkError {
    #[error("malformed chunked body")]
    Malformed,
    #[error("extensions or trailers of a chunked body exceed the maximum of 16384 bytes")]
    SkippedTooLong,
    #[error("Chunked request body exceeds maximum of {limit} non-empty chunks. Send fewer or larger HTTP chunks.")]
    TooManyChunks { limit: usize },
}

/// What a call found.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// A chunk is announced that has no room. No more of its size is read, whatever pieces it comes in.
    Beyond,
    /// The last bytes that were consumed are data, that many.
    Data(usize),
    /// All input is consumed.
    More,
    /// The body is complete.
    End,
}

#[derive(Debug)]
pub(super) struct Chunked {
    state: ChunkedState,
    /// Size of the chunk that is being announced, then bytes of it that are missing.
    left: u64,
    skipped: usize,
    chunks: usize,
    chunks_max: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChunkedState {
    FirstDigit,
    Size,
    Extension,
    SizeLf,
    Data,
    DataCr,
    DataLf,
    TrailerStart,
    Trailer,
    TrailerLf,
    EndLf,
    End,
}

impl Chunked {
    pub fn new(chunks_max: usize) -> Chunked {
        Chunked { state: ChunkedState::FirstDigit, left: 0, skipped: 0, chunks: 0, chunks_max }
    }

    /// Consumes up to the next piece of data, and returns how many bytes that were. `room`: bytes that the present
    /// chunk may have.
    pub fn decode(&mut self, input: &[u8], room: u64) -> Result<(usize, Piece), ChunkError> {
        let mut at = 0;
        while let Some(&byte) = input.get(at) {
            if self.state == ChunkedState::End {
                break;
            }
            if self.state == ChunkedState::Data {
                let n = usize::try_from(self.left).unwrap_or(usize::MAX).min(input.len() - at);
                self.left -= n as u64;
                if self.left == 0 {
                    self.state = ChunkedState::DataCr;
                }
                return Ok((at + n, Piece::Data(n)));
            }
            self.state = self.after(byte)?;
            at += 1;
            if self.state == ChunkedState::Size && self.left > room {
                return Ok((at, Piece::Beyond));
            }
        }
        Ok((at, if self.state == ChunkedState::End { Piece::End } else { Piece::More }))
    }

    fn after(&mut self, byte: u8) -> Result<ChunkedState, ChunkError> {
        Ok(match (self.state, byte) {
            (ChunkedState::FirstDigit | ChunkedState::Size, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => {
                let digit = char::from(byte).to_digit(16).ok_or(ChunkError::Malformed)?;
                let size = self.left.checked_mul(16).ok_or(ChunkError::Malformed)?;
                self.left = size | u64::from(digit);
                ChunkedState::Size
            }
            (ChunkedState::Size | ChunkedState::Extension, b'\r') => ChunkedState::SizeLf,
            (ChunkedState::Size, b';' | b' ' | b'\t') => self.skip(ChunkedState::Extension)?,
            (ChunkedState::Extension, b'\t' | b' '..=b'~' | 0x80..) => self.skip(ChunkedState::Extension)?,
            (ChunkedState::SizeLf, b'\n') if self.left == 0 => ChunkedState::TrailerStart,
            (ChunkedState::SizeLf, b'\n') => {
                if self.chunks >= self.chunks_max {
                    return Err(ChunkError::TooManyChunks { limit: self.chunks_max });
                }
                self.chunks += 1;
                ChunkedState::Data
            }
            (ChunkedState::DataCr, b'\r') => ChunkedState::DataLf,
            (ChunkedState::DataLf, b'\n') => ChunkedState::FirstDigit,
            (ChunkedState::TrailerStart, b'\r') => ChunkedState::EndLf,
            (ChunkedState::Trailer, b'\r') => ChunkedState::TrailerLf,
            (ChunkedState::TrailerStart | ChunkedState::Trailer, b'\t' | b' '..=b'~' | 0x80..) => {
                self.skip(ChunkedState::Trailer)?
            }
            (ChunkedState::TrailerLf, b'\n') => ChunkedState::TrailerStart,
            (ChunkedState::EndLf, b'\n') => ChunkedState::End,
            _ => return Err(ChunkError::Malformed),
        })
    }

    fn skip(&mut self, state: ChunkedState) -> Result<ChunkedState, ChunkError> {
        self.skipped += 1;
        if self.skipped > SKIPPED_MAX { Err(ChunkError::SkippedTooLong) } else { Ok(state) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes `input` in pieces that end at the given places; gives the data and what follows the body.
    fn decode(input: &[u8], cuts: &[usize]) -> Result<(Vec<u8>, Option<Vec<u8>>), ChunkError> {
        let mut chunked = Chunked::new(4);
        let (mut data, mut from) = (Vec::new(), 0);
        for &to in cuts.iter().chain([&input.len()]) {
            while from < to {
                let (used, piece) = chunked.decode(&input[from..to], u64::MAX)?;
                from += used;
                match piece {
                    Piece::Beyond => panic!("there is room for every size"),
                    Piece::Data(n) => data.extend_from_slice(&input[from - n..from]),
                    Piece::More => assert_eq!(from, to),
                    Piece::End => return Ok((data, Some(input[from..].to_vec()))),
                }
            }
        }
        Ok((data, None))
    }

    #[test]
    fn every_split_gives_the_same_body() {
        let body = b"3\r\nabc\r\n00a;x=\"y\" ; z\r\n0123456789\r\n1 \r\n!\r\n0;q\r\nX-T: 1\r\nY:\r\n\r\nGET";
        let expected = (b"abc0123456789!".to_vec(), Some(b"GET".to_vec()));
        for first in 0..=body.len() {
            for second in first..=body.len() {
                assert_eq!(decode(body, &[first, second]).unwrap(), expected);
            }
        }
        let each: Vec<_> = (0..body.len()).collect();
        assert_eq!(decode(body, &each).unwrap(), expected);
        for end in 0..body.len() - 3 {
            assert_eq!(decode(&body[..end], &[]).unwrap().1, None);
        }
    }

    #[test]
    fn a_size_without_room_is_read_no_further_at_any_split() {
        let size = b"1fffffffffffffffffffff\r\n";
        for cut in 0..size.len() {
            let mut chunked = Chunked::new(4);
            let (front, behind) = size.split_at(cut);
            let found = match chunked.decode(front, 0x1ff) {
                Ok((_, Piece::More)) => chunked.decode(behind, 0x1ff),
                found => found,
            };
            assert!(matches!(found, Ok((_, Piece::Beyond))), "cut at {cut}: {found:?}");
        }
        assert_eq!(Chunked::new(4).decode(b"1ff\r\n", 0x1ff), Ok((5, Piece::More)));
    }

    #[test]
    fn what_is_not_chunked_is_refused() {
        let malformed: [&[u8]; 13] = [
            b"\r\n",
            b"x\r\n",
            b" 3\r\nabc",
            b"-3\r\n",
            b"0x3\r\n",
            b"3\nabc",
            b"3\r\r\nabc",
            b"3\r\nabcd",
            b"3\r\nabc\n0\r\n\r\n",
            b"3;a\nb\r\nabc\r\n",
            b"10000000000000000\r\n",
            b"0\r\n\n",
            b"0\r\nX: \x01\r\n\r\n",
        ];
        for body in malformed {
            assert_eq!(decode(body, &[]), Err(ChunkError::Malformed), "{}", String::from_utf8_lossy(body));
        }
        let long = [b"1;".to_vec(), vec![b'x'; SKIPPED_MAX], b"\r\na\r\n".to_vec()].concat();
        assert_eq!(decode(&long, &[]), Err(ChunkError::SkippedTooLong));
        let trailers = [b"0\r\n".to_vec(), b"X: y\r\n".repeat(SKIPPED_MAX / 4 + 1)].concat();
        assert_eq!(decode(&trailers, &[]), Err(ChunkError::SkippedTooLong));
        assert!(decode(&b"1\r\na\r\n".repeat(4), &[]).is_ok());
        let error = decode(&b"1\r\na\r\n".repeat(5), &[]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "Chunked request body exceeds maximum of 4 non-empty chunks. Send fewer or larger HTTP chunks."
        );
        assert_eq!(
            Chunked::new(0).decode(b"ffffffffffffffff\r\n", u64::MAX),
            Err(ChunkError::TooManyChunks { limit: 0 })
        );
    }
}
