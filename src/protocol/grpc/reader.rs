//! Takes the messages of one call out of its bytes: five bytes of prefix, then the message, and again.
//!
//! One message is held at a time: until it is taken, nothing more is accepted, which is what pushes back on the peer.

use super::scan::{Direct, InferScanner, Limits};
use super::{Encoding, InferRequest, MESSAGE_BYTES_MAX, PREFIX_BYTES, ReadError};
use nereid_memory::{BlockMut, Pool, Slice, TRUSTED_BYTES};

/// Of the blocks of a compressed message behind the first.
const PACKED_BLOCK_BYTES: usize = 256 * 1024;

/// The first message of a call that is no inference, if it is not longer than this, is taken also when the memory for
/// requests is used up: health checks and the readiness of a model. The bound of such calls bounds how much that is.
pub(super) const ALWAYS_TAKEN_BYTES: usize = 512;

/// What becomes of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Each is one contiguous slice.
    Collect,
    /// Each is a ModelInferRequest, scanned as it arrives.
    Infer,
    /// Each is a ModelInferRequest that is kept in pieces as it came, and scanned by a [`super::MessageUnpacker`]; but
    /// a large one, which would need its memory twice, is scanned as it arrives.
    Kept,
}

/// A longer message is not kept ([`Mode::Kept`]).
const KEPT_BYTES_MAX: usize = 1 << 20;

/// A message that arrived whole.
#[derive(Debug)]
pub enum Message {
    Infer(Box<InferRequest>),
    Collected(Slice),
    /// Packed with the call's encoding, or plain where it is kept, for [`super::MessageUnpacker`], with the bounds of
    /// what comes out.
    Compressed(Encoding, Vec<Slice>, Limits),
}

enum MessageReaderState {
    Prefix {
        bytes: [u8; PREFIX_BYTES],
        len: usize,
    },
    Scanning {
        left: usize,
    },
    Collecting {
        block: BlockMut,
        left: usize,
    },
    /// A compressed message is kept in pieces: unpacking needs no more.
    Packed {
        encoding: Encoding,
        pieces: Vec<Slice>,
        open: BlockMut,
        left: usize,
    },
    Ready(Ready),
    Failed(ReadError),
}

enum Ready {
    Scanned,
    Collected(Slice),
    Packed(Encoding, Vec<Slice>),
}

const BEGINNING: MessageReaderState = MessageReaderState::Prefix { bytes: [0; PREFIX_BYTES], len: 0 };

/// The reader of one call, and after [`MessageReader::reset`] of the next.
pub struct MessageReader {
    pool: Pool,
    limits: Limits,
    mode: Mode,
    encoding: Encoding,
    state: MessageReaderState,
    /// A message of the call has begun.
    has_begun: bool,
    /// Made with the first message that needs it.
    scanner: Option<Box<InferScanner>>,
    spare: Option<Box<InferRequest>>,
}

impl MessageReader {
    pub fn new(pool: Pool, limits: Limits, mode: Mode) -> MessageReader {
        MessageReader {
            pool,
            limits,
            mode,
            encoding: Encoding::Identity,
            state: BEGINNING,
            has_begun: false,
            scanner: None,
            spare: None,
        }
    }

    /// Takes memory from `pool` from now on. To be called between messages.
    pub fn set_pool(&mut self, pool: &Pool) {
        if !self.pool.is(pool) {
            self.pool = pool.clone();
            if let Some(scanner) = &mut self.scanner {
                scanner.set_pool(pool);
            }
        }
    }

    /// Drops whatever was read and begins anew, for another call.
    pub fn reset(&mut self, mode: Mode, encoding: Encoding) {
        (self.mode, self.encoding, self.has_begun) = (mode, encoding, false);
        match &mut self.state {
            // Most calls leave it so. The scanner holds nothing as long as no message has begun.
            MessageReaderState::Prefix { len, .. } => *len = 0,
            _ => {
                self.state = BEGINNING;
                self.drop_message();
            }
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
                    self.drop_message();
                    self.state = MessageReaderState::Failed(error.clone());
                    return Err(error);
                }
            }
        }
        match &self.state {
            MessageReaderState::Failed(error) => Err(error.clone()),
            _ => Ok(taken),
        }
    }

    /// The next message, if it is here from its first byte to its last, and would be scanned.
    pub fn whole_message<'a>(&self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        if self.mode != Mode::Infer || !matches!(self.state, MessageReaderState::Prefix { len: 0, .. }) {
            return None;
        }
        match bytes.split_first_chunk::<PREFIX_BYTES>() {
            Some(([0, length @ ..], rest)) => rest.get(..u32::from_be_bytes(*length) as usize),
            _ => None,
        }
    }

    /// The window that the next bytes belong to, if the transport can receive straight into it.
    pub fn take_direct(&mut self) -> Option<Direct> {
        match self.state {
            MessageReaderState::Scanning { .. } => self.scanner.as_mut()?.take_direct(),
            _ => None,
        }
    }

    /// Takes a window back whose first `n` bytes were received.
    pub fn direct_received(&mut self, direct: Direct, n: usize) {
        let (MessageReaderState::Scanning { left }, Some(scanner)) = (&mut self.state, &mut self.scanner) else {
            return;
        };
        let n = n.min(direct.len());
        if scanner.direct_received(direct, n) {
            *left = left.saturating_sub(n);
            self.end_scan();
        }
    }

    /// True if a message can be taken.
    pub fn is_ready(&self) -> bool {
        matches!(self.state, MessageReaderState::Ready(_))
    }

    /// The message, once it arrived whole.
    pub fn next_message(&mut self) -> Option<Message> {
        if !self.is_ready() {
            return None;
        }
        match std::mem::replace(&mut self.state, BEGINNING) {
            MessageReaderState::Ready(Ready::Scanned) => {
                let spare = self.spare.take();
                Some(Message::Infer(self.scanner.as_mut()?.take(spare)?))
            }
            MessageReaderState::Ready(Ready::Collected(message)) => Some(Message::Collected(message)),
            MessageReaderState::Ready(Ready::Packed(encoding, pieces)) => {
                Some(Message::Compressed(encoding, pieces, self.limits))
            }
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
            MessageReaderState::Failed(error) => Err(error.clone()),
            MessageReaderState::Prefix { len: 0, .. } | MessageReaderState::Ready(_) => Ok(()),
            MessageReaderState::Prefix { .. }
            | MessageReaderState::Scanning { .. }
            | MessageReaderState::Collecting { .. }
            | MessageReaderState::Packed { .. } => Err(ReadError::Truncated),
        }
    }

    /// Gives the memory of a request back that will not be complete.
    fn drop_message(&mut self) {
        if let Some(scanner) = &mut self.scanner {
            // A message of no bytes takes nothing and exceeds no limit.
            let _ = scanner.begin(0);
        }
    }

    fn advance(&mut self, rest: &[u8]) -> Result<usize, ReadError> {
        match &mut self.state {
            MessageReaderState::Prefix { bytes, len } => {
                let n = rest.len().min(PREFIX_BYTES - *len);
                bytes[*len..*len + n].copy_from_slice(&rest[..n]);
                *len += n;
                if *len == PREFIX_BYTES {
                    let prefix = *bytes;
                    self.begin(prefix)?;
                }
                Ok(n)
            }
            MessageReaderState::Scanning { left } => {
                let Some(scanner) = &mut self.scanner else { return Ok(0) };
                let n = scanner.feed(&rest[..rest.len().min(*left)])?;
                *left -= n;
                self.end_scan();
                Ok(n)
            }
            MessageReaderState::Collecting { block, left } => {
                let chunk = &rest[..rest.len().min(*left)];
                if block.spare() < chunk.len() {
                    let (filled, whole) = (block.len(), block.len() + *left);
                    self.pool.grow(block, filled + chunk.len(), whole)?;
                    block.set_len(filled);
                }
                block.append(chunk);
                *left -= chunk.len();
                self.end_collection();
                Ok(chunk.len())
            }
            MessageReaderState::Packed { pieces, open, left, .. } => {
                if open.spare() == 0 {
                    let mut next = self.pool.get((*left).min(PACKED_BLOCK_BYTES))?;
                    next.set_len(0);
                    pieces.push(std::mem::replace(open, next).freeze());
                }
                let n = open.append(&rest[..rest.len().min(*left)]);
                *left -= n;
                self.end_collection();
                Ok(n)
            }
            MessageReaderState::Ready(_) | MessageReaderState::Failed(_) => Ok(0),
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
        let is_scanned = self.mode == Mode::Infer || self.mode == Mode::Kept && len > KEPT_BYTES_MAX;
        if is_scanned && !compressed {
            let (pool, limits) = (&self.pool, self.limits);
            self.scanner.get_or_insert_with(|| Box::new(InferScanner::new(pool.clone(), limits))).begin(len)?;
            self.state = MessageReaderState::Scanning { left: len };
            self.end_scan();
        } else {
            let is_kept = compressed || self.mode == Mode::Kept;
            let is_first = !std::mem::replace(&mut self.has_begun, true);
            let mut block = match self.mode {
                Mode::Collect if is_first && len <= ALWAYS_TAKEN_BYTES => self.pool.get_anyway(len),
                _ if is_kept => self.pool.get(len.min(TRUSTED_BYTES))?,
                _ => self.pool.begin(len)?,
            };
            block.set_len(0);
            let encoding = if compressed { self.encoding } else { Encoding::Identity };
            self.state = match is_kept {
                true => MessageReaderState::Packed { encoding, pieces: Vec::new(), open: block, left: len },
                false => MessageReaderState::Collecting { block, left: len },
            };
            self.end_collection();
        }
        Ok(())
    }

    fn end_scan(&mut self) {
        if matches!(self.state, MessageReaderState::Scanning { left: 0 }) {
            self.state = MessageReaderState::Ready(Ready::Scanned);
        }
    }

    fn end_collection(&mut self) {
        if !matches!(
            self.state,
            MessageReaderState::Collecting { left: 0, .. } | MessageReaderState::Packed { left: 0, .. }
        ) {
            return;
        }
        self.state = match std::mem::replace(&mut self.state, BEGINNING) {
            MessageReaderState::Collecting { block, .. } => MessageReaderState::Ready(Ready::Collected(block.freeze())),
            MessageReaderState::Packed { encoding, mut pieces, open, .. } => {
                pieces.push(open.freeze());
                MessageReaderState::Ready(Ready::Packed(encoding, pieces))
            }
            other => other,
        };
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use prost::Message as _;

    use super::*;
    use nereid_memory::Exhausted;
    use nereid_wire::inference::{ModelInferRequest, ModelReadyRequest};

    fn framed(flag: u8, message: &[u8]) -> Vec<u8> {
        [&[flag][..], &(message.len() as u32).to_be_bytes(), message].concat()
    }

    fn reader(mode: Mode) -> MessageReader {
        MessageReader::new(Pool::new(1 << 26), Limits::default(), mode)
    }

    /// Feeds `bytes` in chunks of `next` bytes and collects the messages.
    fn read(reader: &mut MessageReader, bytes: &[u8], mut next: impl FnMut() -> usize) -> Vec<Message> {
        let (mut messages, mut rest) = (Vec::new(), bytes);
        while !rest.is_empty() {
            let (mut chunk, behind) = rest.split_at(next().clamp(1, rest.len()));
            rest = behind;
            while !chunk.is_empty() {
                let mut taken = 0;
                if let Some(mut window) = reader.take_direct() {
                    taken = chunk.len().min(window.len());
                    window.window()[..taken].copy_from_slice(&chunk[..taken]);
                    reader.direct_received(window, taken);
                }
                chunk = &chunk[taken..];
                taken = reader.feed(chunk).unwrap();
                chunk = &chunk[taken..];
                messages.extend(reader.next_message());
            }
        }
        messages
    }

    fn infer_messages() -> Vec<ModelInferRequest> {
        let raw = |n: usize| Bytes::from((0..n).map(|at| at as u8).collect::<Vec<_>>());
        vec![
            ModelInferRequest { model_name: "first".into(), raw_input_contents: vec![raw(10)], ..Default::default() },
            ModelInferRequest::default(),
            ModelInferRequest { raw_input_contents: vec![raw(40_000), raw(16_384)], ..Default::default() },
            ModelInferRequest { id: "last".into(), ..Default::default() },
        ]
    }

    fn assert_infer(messages: &[Message]) {
        let expected = infer_messages();
        assert_eq!(messages.len(), expected.len());
        for (message, expected) in messages.iter().zip(&expected) {
            let Message::Infer(request) = message else { panic!("{message:?}") };
            assert_eq!((request.model_name(), request.id()), (&*expected.model_name, &*expected.id));
            assert!(request.raw.iter().map(|raw| &**raw).eq(expected.raw_input_contents.iter().map(|raw| &**raw)));
        }
    }

    #[test]
    fn streams_of_requests_in_any_chunks() {
        let bytes: Vec<u8> = infer_messages().iter().flat_map(|message| framed(0, &message.encode_to_vec())).collect();
        for chunk in [1, 2, 3, 4, 5, 6, 7, 100, 16_383, 30_000, usize::MAX] {
            assert_infer(&read(&mut reader(Mode::Infer), &bytes, || chunk));
        }
        for cut in (0..60).chain(bytes.len() - 30..bytes.len()) {
            let mut pieces = [cut, usize::MAX].into_iter();
            assert_infer(&read(&mut reader(Mode::Infer), &bytes, || pieces.next().unwrap_or(usize::MAX)));
        }
    }

    #[test]
    fn streams_of_collected_messages_in_any_chunks() {
        let messages = [vec![7; 5], Vec::new(), (0..300_000u32).map(|at| at as u8).collect(), vec![1]];
        let bytes: Vec<u8> = messages.iter().flat_map(|message| framed(0, message)).collect();
        for chunk in [1, 2, 4, 5, 6, 1000, 65_536, 70_000, usize::MAX] {
            let read = read(&mut reader(Mode::Collect), &bytes, || chunk);
            assert_eq!(read.len(), messages.len());
            for (read, message) in read.iter().zip(&messages) {
                assert!(matches!(read, Message::Collected(slice) if **slice == **message));
            }
        }
    }

    #[test]
    fn one_message_is_held_at_a_time() {
        let mut reader = reader(Mode::Collect);
        let bytes = [framed(0, b"one"), framed(0, b"two")].concat();
        assert_eq!(reader.feed(&bytes), Ok(8));
        assert!(reader.is_ready());
        assert_eq!(reader.feed(&bytes[8..]), Ok(0), "until the first is taken");
        assert!(matches!(reader.next_message(), Some(Message::Collected(slice)) if *slice == *b"one"));
        assert!(reader.next_message().is_none());
        assert_eq!(reader.feed(&bytes[8..]), Ok(8));
        assert!(reader.next_message().is_some());
        assert_eq!(reader.end_of_stream(), Ok(()));
    }

    #[test]
    fn the_end_of_the_stream_is_no_place_within_a_message() {
        for (mode, message) in [(Mode::Infer, b"\x0a\x03abc"), (Mode::Collect, b"whole")] {
            let bytes = framed(0, message);
            for cut in 0..=bytes.len() {
                let mut reader = reader(mode);
                reader.feed(&bytes[..cut]).unwrap();
                let truncated = cut != 0 && cut != bytes.len();
                assert_eq!(reader.end_of_stream(), if truncated { Err(ReadError::Truncated) } else { Ok(()) }, "{cut}");
            }
        }
    }

    #[test]
    fn prefixes_that_cannot_be() {
        for mode in [Mode::Infer, Mode::Collect] {
            let cases: [(&[u8], ReadError); 4] = [
                (b"\x02\0\0\0\0", ReadError::FrameType(2)),
                (b"\xff\0\0\0\0", ReadError::FrameType(255)),
                (b"\x01\0\0\0\0", ReadError::NotCompressed),
                (b"\0\x80\0\0\0", ReadError::TooLarge { bytes: 1 << 31, bytes_max: MESSAGE_BYTES_MAX }),
            ];
            for (bytes, error) in cases {
                let mut reader = reader(mode);
                assert_eq!(reader.feed(&bytes[..3]), Ok(3));
                assert_eq!(reader.feed(&bytes[3..]), Err(error.clone()));
                assert_eq!(reader.feed(b"more"), Err(error.clone()), "errors stay");
                assert_eq!(reader.feed(b""), Err(error.clone()));
                assert_eq!(reader.end_of_stream(), Err(error));
                assert!(reader.next_message().is_none());
                reader.reset(mode, Encoding::Identity);
                assert_eq!(reader.feed(b"\0\0\0\0\0"), Ok(5), "until the next call");
                assert!(reader.next_message().is_some());
            }
        }
    }

    #[test]
    fn a_malformed_request_ends_the_reader() {
        let mut reader = reader(Mode::Infer);
        let error = reader.feed(&framed(0, b"\x0a\x01\xff")).unwrap_err();
        assert_eq!(
            (error.code(), error.to_string().as_str()),
            (super::super::Code::Internal, "Unable to parse request")
        );
        assert_eq!(reader.feed(&framed(0, b"")), Err(error));
    }

    #[test]
    fn compressed_messages_come_as_they_are_in_pieces() {
        for mode in [Mode::Infer, Mode::Collect] {
            for len in [0, 6, TRUSTED_BYTES, TRUSTED_BYTES + 1, 700_000] {
                let packed: Vec<u8> = (0..len).map(|at| (at / 3) as u8).collect();
                for chunk in [4, 70_000] {
                    let mut reader = reader(mode);
                    reader.set_encoding(Encoding::Gzip);
                    let bytes = [framed(1, &packed), framed(0, b"\x0a\x01m")].concat();
                    let messages = read(&mut reader, &bytes, || chunk);
                    let Message::Compressed(Encoding::Gzip, pieces, _) = &messages[0] else { panic!("{messages:?}") };
                    assert_eq!(pieces.iter().flat_map(|piece| piece.to_vec()).collect::<Vec<u8>>(), packed);
                    assert!(pieces.len() <= 2 + len / PACKED_BLOCK_BYTES);
                    match &messages[1] {
                        Message::Infer(request) => assert_eq!(request.model_name(), "m"),
                        Message::Collected(plain) => assert_eq!(**plain, *b"\x0a\x01m"),
                        other => panic!("{other:?}"),
                    }
                }
            }
        }
    }

    #[test]
    fn lengths_that_lie_take_little_and_the_pool_bounds_the_rest() {
        let pool = Pool::new(1 << 20);
        let mut reader = MessageReader::new(pool.clone(), Limits::default(), Mode::Collect);
        reader.feed(b"\0\x7f\xff\xff\xffsome").unwrap();
        assert_eq!(pool.bytes_in_use(), TRUSTED_BYTES);
        reader.feed(&vec![0; 2 * TRUSTED_BYTES]).unwrap();
        assert!(pool.bytes_in_use() <= 4 * TRUSTED_BYTES, "grows with what is received");
        let error = reader.feed(&vec![0; 2 << 20]).unwrap_err();
        assert!(matches!(error, ReadError::Exhausted(Exhausted { .. })));
        reader.reset(Mode::Collect, Encoding::Identity);
        assert_eq!(pool.bytes_in_use(), 0);
        let mut reader = MessageReader::new(pool.clone(), Limits::default(), Mode::Infer);
        let lying = b"\0\x7f\xff\xff\xff\x3a\x80\x80\x01";
        reader.feed(&[&lying[..], &[0; 16_384], b"\x3a\xf0\xff\xbf\xff\x07"].concat()).unwrap();
        assert!(pool.bytes_in_use() <= 2 * TRUSTED_BYTES, "what is announced takes little");
        reader.feed(&vec![0; 2 << 20]).unwrap_err();
        assert_eq!(pool.bytes_in_use(), 0, "an error frees what there was");
        reader.reset(Mode::Infer, Encoding::Identity);
        reader.feed(b"\0\x7f\xff\xff\xff\x3a\xf0\xff\xff\xff\x07some").unwrap();
        assert_eq!(pool.bytes_in_use(), TRUSTED_BYTES);
        let error = reader.feed(&vec![0; 2 << 20]).unwrap_err();
        assert!(matches!(error, ReadError::Exhausted(Exhausted { .. })));
        assert_eq!(pool.bytes_in_use(), 0);
    }

    #[test]
    fn short_messages_that_are_no_inference_are_taken_when_the_memory_is_used_up() {
        let pool = Pool::new(1 << 20);
        let all = pool.get(1 << 20).unwrap();
        let mut reader = MessageReader::new(pool.clone(), Limits::default(), Mode::Collect);
        for len in [0, 1, ALWAYS_TAKEN_BYTES] {
            let read = read(&mut reader, &framed(0, &vec![7; len]), || usize::MAX);
            assert!(matches!(&read[..], [Message::Collected(slice)] if **slice == vec![7; len]), "{len}");
            // A stream has many messages.
            let error = reader.feed(&framed(0, b"")).unwrap_err();
            assert!(matches!(error, ReadError::Exhausted(_)));
            reader.reset(Mode::Collect, Encoding::Identity);
        }
        let error = reader.feed(&framed(0, &[7; ALWAYS_TAKEN_BYTES + 1])).unwrap_err();
        assert!(matches!(error, ReadError::Exhausted(_)));
        let mut reader = MessageReader::new(pool.clone(), Limits::default(), Mode::Infer);
        let request = ModelInferRequest { raw_input_contents: vec![Bytes::from(vec![7; 64])], ..Default::default() };
        let error = reader.feed(&framed(0, &request.encode_to_vec())).unwrap_err();
        assert!(matches!(error, ReadError::Exhausted(_)));
        drop((all, reader));
        assert_eq!(pool.bytes_in_use(), 0);
    }

    #[test]
    fn a_reset_forgets_a_message_whose_window_is_out() {
        let pool = Pool::new(1 << 20);
        let mut reader = MessageReader::new(pool.clone(), Limits::default(), Mode::Infer);
        reader.feed(b"\0\0\x01\0\0\x3a\x80\x80\x01").unwrap();
        let window = reader.take_direct().unwrap();
        assert!(reader.take_direct().is_none());
        assert_eq!(reader.feed(b"x"), Ok(0));
        reader.reset(Mode::Infer, Encoding::Identity);
        let bytes = framed(0, b"\x0a\x01m");
        reader.feed(&bytes[..6]).unwrap();
        reader.direct_received(window, 5);
        reader.feed(&bytes[6..]).unwrap();
        let Some(Message::Infer(request)) = reader.next_message() else { panic!() };
        assert_eq!(request.model_name(), "m");
        assert_eq!(pool.bytes_in_use(), 0);
    }

    #[test]
    fn storage_comes_back() {
        let mut reader = reader(Mode::Infer);
        let bytes = framed(0, b"\x0a\x05model");
        reader.feed(&bytes).unwrap();
        let Some(Message::Infer(first)) = reader.next_message() else { panic!() };
        let place = std::ptr::from_ref(&*first);
        reader.recycle(first);
        reader.feed(&bytes).unwrap();
        // The recycled storage goes into the scanner in exchange for the second message.
        let Some(Message::Infer(_second)) = reader.next_message() else { panic!() };
        reader.feed(&bytes).unwrap();
        let Some(Message::Infer(third)) = reader.next_message() else { panic!() };
        assert!(std::ptr::eq(place, &*third));
        assert_eq!(third.model_name(), "model");
    }

    #[test]
    fn collected_messages_are_decoded_in_place() {
        let expected = ModelReadyRequest { name: "n".into(), version: "1".into() };
        let mut reader = reader(Mode::Collect);
        reader.feed(&framed(0, &expected.encode_to_vec())).unwrap();
        let Some(Message::Collected(slice)) = reader.next_message() else { panic!() };
        assert_eq!(super::super::decode::<ModelReadyRequest>(slice), Ok(expected));
    }
}
