//! A compressed message becomes what it would have been if it had come plain, in bounded steps.
//!
//! The length of the output is not known before the end, and the scanner of inference requests needs it first. So a
//! message is unpacked into pieces, and these are scanned: tensors land aligned in blocks of their own as ever.

use std::collections::VecDeque;

use super::reader::ALWAYS_TAKEN_BYTES;
use super::{Encoding, InferScanner, Limits, MESSAGE_BYTES_MAX, Message, Mode, ReadError};
use crate::compression::{Framing, InflateError, Inflater, Joiner, STEP_BYTES, Step, UnpackError, Unpacker};
use nereid_memory::{Pool, Slice};

/// Unpacks a message that is no inference and short, packed and unpacked, in one go, and also when the memory for
/// requests is used up: probes of clients that pack everything. `None` for others, and for those that are wrong: a
/// [`MessageUnpacker`] unpacks them, or says what is wrong.
pub fn unpack_short(encoding: Encoding, packed: &[Slice], limits: &Limits, pool: &Pool) -> Option<Slice> {
    let format = encoding.format()?;
    let [piece] = packed else { return None };
    if piece.len() > ALWAYS_TAKEN_BYTES {
        return None;
    }
    let mut plain = [0; ALWAYS_TAKEN_BYTES];
    let bytes_max = limits.message_bytes_max.min(ALWAYS_TAKEN_BYTES);
    let mut inflater = Inflater::new(Framing::Only(format), bytes_max);
    let (mut taken, mut filled) = (0, 0);
    loop {
        let progress = inflater.read(piece.get(taken..)?, plain.get_mut(filled..)?).ok()?;
        (taken, filled) = (taken + progress.taken, filled + progress.written);
        if progress.ended && taken == piece.len() {
            break;
        }
        if progress.taken == 0 && progress.written == 0 {
            return None;
        }
    }
    // It is charged like what came.
    let mut block = piece.pool().as_ref().unwrap_or(pool).get_anyway(filled);
    block.copy_from_slice(plain.get(..filled)?);
    Some(block.freeze())
}

/// One message on its way.
pub struct MessageUnpacker {
    mode: Mode,
    encoding: Encoding,
    limits: Limits,
    stage: Stage,
}

enum Stage {
    /// Kept as it came.
    Plain(Vec<Slice>),
    /// No inference, and maybe short.
    Packed(Vec<Slice>),
    Unpacking(Unpacker),
    Joining(Joiner),
    Scanning {
        scanner: Box<InferScanner>,
        pieces: VecDeque<Slice>,
    },
    Over,
}

/// The outcome of a step.
#[derive(Debug)]
pub enum Unpacked {
    /// There is more; `is_long` if this step was as long as a step may be.
    More {
        is_long: bool,
    },
    Message(Message),
}

impl MessageUnpacker {
    pub fn new(mode: Mode, encoding: Encoding, limits: Limits, packed: Vec<Slice>) -> MessageUnpacker {
        if encoding == Encoding::Identity {
            return MessageUnpacker { mode, encoding, limits, stage: Stage::Plain(packed) };
        }
        let stage = match mode {
            Mode::Collect => Stage::Packed(packed),
            Mode::Infer | Mode::Kept => Stage::Unpacking(unpacker(encoding, &limits, packed)),
        };
        MessageUnpacker { mode, encoding, limits, stage }
    }

    /// Does a bounded amount of work. After an error, or the message, nothing follows.
    pub fn step(&mut self, pool: &Pool) -> Result<Unpacked, ReadError> {
        let mut is_long = false;
        self.stage = match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Unpacking(mut unpacker) => match unpacker.step(pool).map_err(|error| self.refused(error))? {
                Step::More { is_long: long } => {
                    is_long = long;
                    Stage::Unpacking(unpacker)
                }
                Step::Done => self.unpacked(unpacker.finish(), pool)?,
            },
            Stage::Plain(pieces) => self.unpacked(pieces, pool)?,
            Stage::Packed(packed) => match unpack_short(self.encoding, &packed, &self.limits, pool) {
                Some(message) => return Ok(Unpacked::Message(Message::Collected(message))),
                None => Stage::Unpacking(unpacker(self.encoding, &self.limits, packed)),
            },
            Stage::Joining(mut joiner) => {
                if joiner.step() {
                    return Ok(Unpacked::Message(Message::Collected(joiner.finish())));
                }
                is_long = true;
                Stage::Joining(joiner)
            }
            Stage::Scanning { mut scanner, mut pieces } => {
                is_long = scan(&mut scanner, &mut pieces).map_err(unpacked_error)?;
                if let Some(request) = scanner.take(None) {
                    return Ok(Unpacked::Message(Message::Infer(request)));
                }
                if pieces.is_empty() {
                    return Err(ReadError::Truncated);
                }
                Stage::Scanning { scanner, pieces }
            }
            Stage::Over => return Err(ReadError::Truncated),
        };
        Ok(Unpacked::More { is_long })
    }

    fn unpacked(&self, pieces: Vec<Slice>, pool: &Pool) -> Result<Stage, ReadError> {
        if self.mode == Mode::Collect {
            let joiner = Joiner::new(pieces, 0, pool).map_err(ReadError::UnpackedExhausted)?;
            return Ok(Stage::Joining(joiner));
        }
        let pool = pieces.first().and_then(Slice::pool).unwrap_or_else(|| pool.clone());
        let mut scanner = Box::new(InferScanner::new(pool, self.limits));
        scanner.begin(pieces.iter().map(|piece| piece.len()).sum())?;
        Ok(Stage::Scanning { scanner, pieces: pieces.into() })
    }

    fn refused(&self, error: UnpackError) -> ReadError {
        match error {
            UnpackError::Inflate(InflateError::TooLong { bytes_max }) => ReadError::UnpackedTooLarge { bytes_max },
            UnpackError::Inflate(_) => ReadError::Packed(self.encoding.header()),
            UnpackError::Exhausted(exhausted) => ReadError::UnpackedExhausted(exhausted),
        }
    }
}

fn unpacker(encoding: Encoding, limits: &Limits, packed: Vec<Slice>) -> Unpacker {
    let framing = encoding.format().map_or(Framing::Any, Framing::Only);
    Unpacker::new(packed, framing, limits.message_bytes_max.min(MESSAGE_BYTES_MAX), 0)
}

/// Where the tensors of a message that was small on its way have no room, that is the message's fault.
fn unpacked_error(error: ReadError) -> ReadError {
    match error {
        ReadError::Exhausted(exhausted) => ReadError::UnpackedExhausted(exhausted),
        other => other,
    }
}

/// Scans the next bytes; true if those were as many as a step may take.
fn scan(scanner: &mut InferScanner, pieces: &mut VecDeque<Slice>) -> Result<bool, ReadError> {
    let Some(piece) = pieces.front_mut() else { return Ok(false) };
    let part = piece.get(..piece.len().min(STEP_BYTES)).unwrap_or_default();
    let taken = scanner.feed(part)?;
    let is_long = taken == STEP_BYTES;
    if taken == 0 && !part.is_empty() {
        // All of the message was read, and the rest of it cannot be.
        return Err(ReadError::Truncated);
    }
    piece.advance(taken);
    if piece.is_empty() {
        pieces.pop_front();
    }
    Ok(is_long)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use bytes::Bytes;
    use flate2::Compression;
    use flate2::write::{GzEncoder, ZlibEncoder};
    use prost::Message as _;

    use super::*;
    use nereid_memory::ALIGNMENT;
    use nereid_wire::inference::ModelInferRequest;

    fn packed(encoding: Encoding, plain: &[u8]) -> Vec<Slice> {
        let bytes = match encoding {
            Encoding::Gzip => {
                let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
                encoder.write_all(plain).unwrap();
                encoder.finish().unwrap()
            }
            _ => {
                let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
                encoder.write_all(plain).unwrap();
                encoder.finish().unwrap()
            }
        };
        bytes.chunks(1000).map(Slice::copy_of).collect()
    }

    fn unpack(
        mode: Mode,
        encoding: Encoding,
        limits: Limits,
        pool: &Pool,
        pieces: Vec<Slice>,
    ) -> Result<Message, ReadError> {
        let mut unpacker = MessageUnpacker::new(mode, encoding, limits, pieces);
        loop {
            match unpacker.step(pool)? {
                Unpacked::More { .. } => {}
                Unpacked::Message(message) => return Ok(message),
            }
        }
    }

    #[test]
    fn requests_are_scanned_into_aligned_tensors() {
        let pool = Pool::new(1 << 26);
        let raw = |len: usize| Bytes::from((0..len).map(|at| (at / 3) as u8).collect::<Vec<_>>());
        let sent = ModelInferRequest {
            model_name: "m".into(),
            id: "i".into(),
            raw_input_contents: vec![raw(10), raw(500_000), raw(16_384)],
            ..Default::default()
        };
        for encoding in [Encoding::Gzip, Encoding::Deflate] {
            let pieces = packed(encoding, &sent.encode_to_vec());
            let message = unpack(Mode::Infer, encoding, Limits::default(), &pool, pieces).unwrap();
            let Message::Infer(request) = message else { panic!("{message:?}") };
            assert_eq!((request.model_name(), request.id()), ("m", "i"));
            assert_eq!(request.raw.len(), 3);
            for (got, sent) in request.raw.iter().zip(&sent.raw_input_contents) {
                assert!(**got == **sent && got.is_aligned_to(ALIGNMENT));
            }
            let empty = packed(encoding, b"");
            let message = unpack(Mode::Infer, encoding, Limits::default(), &pool, empty).unwrap();
            assert!(matches!(message, Message::Infer(request) if request.model_name().is_empty()));
        }
        assert_eq!(pool.bytes_in_use(), 0);
    }

    /// Messages that are kept as they come mean the same as those that are scanned at once.
    #[test]
    fn kept_messages_are_scanned_later() {
        let pool = Pool::new(1 << 26);
        let raw = |len: usize| Bytes::from(vec![7; len]);
        let message = |lens: &[usize]| ModelInferRequest {
            model_name: "m".into(),
            raw_input_contents: lens.iter().map(|len| raw(*len)).collect(),
            ..Default::default()
        };
        for sent in [message(&[]), message(&[10]), message(&[500_000, 3]), ModelInferRequest::default()] {
            let plain = sent.encode_to_vec();
            let mut reader = super::super::MessageReader::new(pool.clone(), Limits::default(), Mode::Kept);
            let frame = [&[0][..], &(plain.len() as u32).to_be_bytes(), &plain].concat();
            assert_eq!(reader.feed(&frame).unwrap(), frame.len());
            let Some(Message::Compressed(encoding, pieces, limits)) = reader.next_message() else {
                panic!("not kept");
            };
            assert_eq!(pieces.iter().flat_map(|piece| piece.to_vec()).collect::<Vec<_>>(), plain);
            let Message::Infer(request) = unpack(Mode::Kept, encoding, limits, &pool, pieces).unwrap() else {
                panic!("no request");
            };
            assert_eq!(request.model_name(), sent.model_name);
            assert!(
                request.raw.iter().map(|raw| raw.to_vec()).eq(sent.raw_input_contents.iter().map(|raw| raw.to_vec()))
            );
        }
        assert_eq!(pool.bytes_in_use(), 0);
    }

    #[test]
    fn other_messages_come_in_one_run() {
        let pool = Pool::new(1 << 26);
        for len in [0usize, 5, 1_000_000] {
            let plain: Vec<u8> = (0..len).map(|at| (at / 5) as u8).collect();
            for encoding in [Encoding::Gzip, Encoding::Deflate] {
                let pieces = packed(encoding, &plain);
                let message = unpack(Mode::Collect, encoding, Limits::default(), &pool, pieces).unwrap();
                assert!(matches!(message, Message::Collected(slice) if *slice == *plain));
            }
        }
    }

    /// Beside that memory, they are charged to the connection like what came.
    #[test]
    fn short_messages_that_are_no_inference_are_unpacked_when_the_memory_is_used_up() {
        let pool = Pool::new(1 << 20);
        let all = pool.get(1 << 20).unwrap();
        let charged = |encoding, plain: &[u8]| -> Vec<Slice> {
            let charge = |piece: &Slice| {
                let mut block = pool.get_anyway(piece.len());
                block.copy_from_slice(piece);
                block.freeze()
            };
            packed(encoding, plain).iter().map(charge).collect()
        };
        // Too varied to become much shorter, so that both bounds matter.
        let varied = |len: usize| -> Vec<u8> { (0..len).map(|at| (at * at / 7) as u8).collect() };
        for encoding in [Encoding::Gzip, Encoding::Deflate] {
            for plain in [Vec::new(), varied(1), varied(100), vec![0; ALWAYS_TAKEN_BYTES]] {
                let message = unpack(Mode::Collect, encoding, Limits::default(), &pool, charged(encoding, &plain));
                let Ok(Message::Collected(slice)) = message else { panic!("{}: {message:?}", plain.len()) };
                assert_eq!(*slice, *plain);
                assert!(plain.is_empty() || slice.pool().is_some_and(|own| own.is(&pool)));
                // Not what belongs to a model.
                let error = unpack(Mode::Infer, encoding, Limits::default(), &pool, charged(encoding, b"\x0a\x01m"));
                assert!(matches!(error, Err(ReadError::UnpackedExhausted(_))), "{error:?}");
            }
            for long in [vec![0; ALWAYS_TAKEN_BYTES + 1], varied(4 * ALWAYS_TAKEN_BYTES)] {
                let error = unpack(Mode::Collect, encoding, Limits::default(), &pool, charged(encoding, &long));
                assert!(matches!(error, Err(ReadError::UnpackedExhausted(_))), "{}: {error:?}", long.len());
            }
        }
        // What is wrong is reported as ever where there is memory, and the bound of the flag is kept.
        drop(all);
        let wrong = vec![Slice::from_static(b"no gzip")];
        let error = unpack(Mode::Collect, Encoding::Gzip, Limits::default(), &pool, wrong).unwrap_err();
        assert_eq!(error, ReadError::Packed("gzip"));
        let whole = packed(Encoding::Gzip, b"probe");
        let cut = vec![whole[0].window(0..whole[0].len() - 1)];
        let error = unpack(Mode::Collect, Encoding::Gzip, Limits::default(), &pool, cut).unwrap_err();
        assert_eq!(error, ReadError::Packed("gzip"));
        let limits = Limits { message_bytes_max: 4, ..Limits::default() };
        let error = unpack(Mode::Collect, Encoding::Gzip, limits, &pool, whole).unwrap_err();
        assert_eq!(error, ReadError::UnpackedTooLarge { bytes_max: 4 });
        assert_eq!(pool.bytes_in_use(), 0);
    }

    #[test]
    fn what_cannot_be_unpacked_is_an_error_with_its_code() {
        let pool = Pool::new(1 << 20);
        let limits = Limits { message_bytes_max: 100_000, ..Limits::default() };
        let error = |encoding, pieces| unpack(Mode::Infer, encoding, limits, &pool, pieces).unwrap_err();
        let garbage = vec![Slice::from_static(b"no gzip at all")];
        assert_eq!(error(Encoding::Gzip, garbage), ReadError::Packed("gzip"));
        assert_eq!(error(Encoding::Deflate, packed(Encoding::Gzip, b"x")), ReadError::Packed("deflate"));
        let mut half = packed(Encoding::Gzip, &[1; 5000]);
        let first = half[0].window(0..half[0].len() - 1);
        half[0] = first;
        assert_eq!(error(Encoding::Gzip, half), ReadError::Packed("gzip"));
        assert_eq!(error(Encoding::Gzip, Vec::new()), ReadError::Packed("gzip"));
        let bomb = error(Encoding::Gzip, packed(Encoding::Gzip, &vec![0; 200_000]));
        assert_eq!(bomb, ReadError::UnpackedTooLarge { bytes_max: 100_000 });
        let pieces = packed(Encoding::Deflate, &vec![0; 3 << 20]);
        let bomb = unpack(Mode::Collect, Encoding::Deflate, Limits::default(), &pool, pieces).unwrap_err();
        assert!(matches!(bomb, ReadError::UnpackedExhausted(_)), "{bomb:?}");
        assert_eq!(bomb.code(), crate::grpc::Code::ResourceExhausted);
        let malformed = error(Encoding::Gzip, packed(Encoding::Gzip, b"\x0a\x05ab"));
        assert!(matches!(malformed, ReadError::Malformed(_)), "{malformed:?}");
        assert_eq!(pool.bytes_in_use(), 0);
    }
}
