//! Takes the messages of one call out of its bytes: five bytes of prefix, then the message, and again.
//!
//! One message is held at a time: until it is taken, nothing more is accepted, which is what pushes back on the peer.

use super::scan::{Direct, InferScanner, Limits};
use super::{Encoding, InferRequest, MESSAGE_BYTES_MAX, PREFIX_BYTES, ReadError};
use crate::memory::{BlockMut, Pool, Slice};

/// A collected message gets no more room than this before its bytes are here; then it grows with them.
const TRUSTED_BYTES: usize = 64 * 1024;

/// What becomes of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Each is one contiguous slice.
    Collect,
    /// Each is a ModelInferRequest, scanned as it arrives.
    Infer,
}

/// A message that arrived whole.
#[derive(Debug)]
pub enum Message {
    Infer(Box<InferRequest>),
    Collected(Slice),
    /// Packed with the call's encoding. What comes out of it goes through [`MessageReader::scan`], or to
    /// [`super::decode`].
    Compressed(Slice),
}

enum State {
    Prefix { bytes: [u8; PREFIX_BYTES], len: usize },
    Scanning { left: usize },
    Collecting { block: BlockMut, left: usize, compressed: bool },
    Ready(Ready),
    Failed(ReadError),
}

enum Ready {
    Scanned,
    Collected { message: Slice, compressed: bool },
}

const BEGINNING: State = State::Prefix { bytes: [0; PREFIX_BYTES], len: 0 };

/// The reader of one call, and after [`MessageReader::reset`] of the next.
pub struct MessageReader {
    pool: Pool,
    limits: Limits,
    mode: Mode,
    encoding: Encoding,
    state: State,
    /// Made with the first message that needs it.
    scanner: Option<Box<InferScanner>>,
    spare: Option<Box<InferRequest>>,
}

impl MessageReader {
    pub fn new(pool: Pool, limits: Limits, mode: Mode) -> MessageReader {
        MessageReader { pool, limits, mode, encoding: Encoding::Identity, state: BEGINNING, scanner: None, spare: None }
    }

    /// Drops whatever was read and begins anew, for another call.
    pub fn reset(&mut self, mode: Mode, encoding: Encoding) {
        (self.mode, self.encoding, self.state) = (mode, encoding, BEGINNING);
        if let Some(scanner) = &mut self.scanner {
            // A message of no bytes: frees the last one's memory and cannot exceed a limit.
            let _ = scanner.begin(0);
        }
    }

    /// Says how messages with the compressed flag are packed: the call's `grpc-encoding`.
    pub fn set_encoding(&mut self, encoding: Encoding) {
        self.encoding = encoding;
    }

    /// Reads on. Says how many bytes were taken; fewer than all of them mean that a message is ready to be taken, or
    /// that a direct window is out. Errors stay.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<usize, ReadError> {
        let mut taken = 0;
        while let Some(rest) = bytes.get(taken..).filter(|rest| !rest.is_empty()) {
            match self.advance(rest) {
                Ok(0) => break,
                Ok(n) => taken += n,
                Err(error) => {
                    self.state = State::Failed(error.clone());
                    return Err(error);
                }
            }
        }
        match &self.state {
            State::Failed(error) => Err(error.clone()),
            _ => Ok(taken),
        }
    }

    /// The window that the next bytes belong to, if the transport can receive straight into it.
    pub fn take_direct(&mut self) -> Option<Direct> {
        match self.state {
            State::Scanning { .. } => self.scanner.as_mut()?.take_direct(),
            _ => None,
        }
    }

    /// Takes a window back whose first `n` bytes were received.
    pub fn direct_received(&mut self, direct: Direct, n: usize) {
        let (State::Scanning { left }, Some(scanner)) = (&mut self.state, &mut self.scanner) else { return };
        let n = n.min(direct.len());
        if scanner.direct_received(direct, n) {
            *left = left.saturating_sub(n);
            self.end_scan();
        }
    }

    /// True if a message can be taken.
    pub fn is_ready(&self) -> bool {
        matches!(self.state, State::Ready(_))
    }

    /// The message, once it arrived whole.
    pub fn next_message(&mut self) -> Option<Message> {
        match std::mem::replace(&mut self.state, BEGINNING) {
            State::Ready(Ready::Scanned) => {
                let spare = self.spare.take();
                Some(Message::Infer(self.scanner.as_mut()?.take(spare)?))
            }
            State::Ready(Ready::Collected { message, compressed: true }) => Some(Message::Compressed(message)),
            State::Ready(Ready::Collected { message, compressed: false }) => Some(Message::Collected(message)),
            other => {
                self.state = other;
                None
            }
        }
    }

    /// Takes the storage of a request back for a later one.
    pub fn recycle(&mut self, mut request: Box<InferRequest>) {
        request.clear();
        self.spare = Some(request);
    }

    /// The peer ended its stream: an error if it did so within a message.
    pub fn end_of_stream(&self) -> Result<(), ReadError> {
        match &self.state {
            State::Failed(error) => Err(error.clone()),
            State::Prefix { len: 0, .. } | State::Ready(_) => Ok(()),
            State::Prefix { .. } | State::Scanning { .. } | State::Collecting { .. } => Err(ReadError::Truncated),
        }
    }

    /// Scans a ModelInferRequest that came by another way: unpacked from a [`Message::Compressed`].
    pub fn scan(&self, message: &[u8]) -> Result<Box<InferRequest>, ReadError> {
        let mut scanner = InferScanner::new(self.pool.clone(), self.limits);
        scanner.begin(message.len())?;
        scanner.feed(message)?;
        scanner.take(None).ok_or(ReadError::Truncated)
    }

    fn advance(&mut self, rest: &[u8]) -> Result<usize, ReadError> {
        match &mut self.state {
            State::Prefix { bytes, len } => {
                let n = rest.len().min(PREFIX_BYTES - *len);
                bytes[*len..*len + n].copy_from_slice(&rest[..n]);
                *len += n;
                if *len == PREFIX_BYTES {
                    let prefix = *bytes;
                    self.begin(prefix)?;
                }
                Ok(n)
            }
            State::Scanning { left } => {
                let Some(scanner) = &mut self.scanner else { return Ok(0) };
                let n = scanner.feed(&rest[..rest.len().min(*left)])?;
                *left -= n;
                self.end_scan();
                Ok(n)
            }
            State::Collecting { block, left, .. } => {
                let chunk = &rest[..rest.len().min(*left)];
                if block.spare() < chunk.len() {
                    let whole = block.len() + *left;
                    let mut larger = self.pool.get((2 * block.len()).max(block.len() + chunk.len()).min(whole))?;
                    larger.set_len(0);
                    larger.append(block);
                    *block = larger;
                }
                block.append(chunk);
                *left -= chunk.len();
                self.end_collection();
                Ok(chunk.len())
            }
            State::Ready(_) | State::Failed(_) => Ok(0),
        }
    }

    fn begin(&mut self, [flag, length @ ..]: [u8; PREFIX_BYTES]) -> Result<(), ReadError> {
        let compressed = match flag {
            0 => false,
            1 if self.encoding == Encoding::Identity => return Err(ReadError::NotCompressed),
            1 => true,
            _ => return Err(ReadError::FrameType(flag)),
        };
        let len = u32::from_be_bytes(length) as usize;
        let bytes_max = self.limits.message_bytes_max.min(MESSAGE_BYTES_MAX);
        if len > bytes_max {
            return Err(ReadError::TooLarge { bytes: len, bytes_max });
        }
        if self.mode == Mode::Infer && !compressed {
            let (pool, limits) = (&self.pool, self.limits);
            self.scanner.get_or_insert_with(|| Box::new(InferScanner::new(pool.clone(), limits))).begin(len)?;
            self.state = State::Scanning { left: len };
            self.end_scan();
        } else {
            let mut block = self.pool.get(len.min(TRUSTED_BYTES))?;
            block.set_len(0);
            self.state = State::Collecting { block, left: len, compressed };
            self.end_collection();
        }
        Ok(())
    }

    fn end_scan(&mut self) {
        if matches!(self.state, State::Scanning { left: 0 }) {
            self.state = State::Ready(Ready::Scanned);
        }
    }

    fn end_collection(&mut self) {
        if !matches!(self.state, State::Collecting { left: 0, .. }) {
            return;
        }
        if let State::Collecting { block, compressed, .. } = std::mem::replace(&mut self.state, BEGINNING) {
            self.state = State::Ready(Ready::Collected { message: block.freeze(), compressed });
        }
    }
}
