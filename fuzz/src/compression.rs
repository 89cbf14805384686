//! Packed bytes, against a second implementation of deflate.
//!
//! The unpacker takes what libflate takes, with the same content, however the bytes are cut; a stream that ends early
//! is refused, and no more than the bound comes out or stays in memory. What is packed is unpacked again by both.

use std::io::Read;

use libflate::{gzip, zlib};
use nereid_memory::{Pool, Slice};
use nereid_protocol::compression::{
    Format, Framing, InflateError, Joiner, Level, Outcome, Packer, Step, UnpackError, Unpacker,
};

use crate::{Dice, Target, pool, split};

pub const TARGET: Target = Target {
    name: "compression",
    run,
    runs: 5_000,
    words: &["\x1f", "\x08\x00", "x", "\x00\x00", "\x01\x00\x00", "\x03\x00", "\x04", "\x1c", "name\0", "\x02"],
    seeds,
};

/// Bytes of a packed input and of what may come out of it, beyond which nothing may be held.
const SLACK: usize = 1 << 20;

fn run(data: &[u8]) -> bool {
    let (mut dice, bytes) = split(data);
    packed_again(bytes, &mut dice);
    let bytes_max = *dice.pick(&[0, 1, 100, 5000, 1 << 20]);
    let align_at = dice.below(70);
    let framing = *dice.pick(&[Framing::Any, Framing::Only(Format::Gzip), Framing::Only(Format::Deflate)]);
    let pieces = dice.cut(bytes);
    let ours = unpack(&pieces, framing, bytes_max, align_at);
    let whole = unpack(&[bytes], framing, bytes_max, align_at);
    // Of what is too long and broken too, the pieces decide which of both is found first.
    assert_eq!(ours.as_ref().ok(), whole.as_ref().ok(), "in pieces: {}", bytes.escape_ascii());
    let is_gzip = match framing {
        Framing::Any => bytes.first() == Some(&0x1f),
        Framing::Only(format) => format == Format::Gzip,
    };
    let theirs = if is_gzip { by_libflate_gzip(bytes, bytes_max) } else { by_libflate_zlib(bytes, bytes_max) };
    match (&ours, &theirs) {
        (Ok(ours), Ok((theirs, rest))) => {
            assert_eq!(ours, theirs, "{}", bytes.escape_ascii());
            assert_eq!(*rest, 0, "{rest} bytes behind the end: {}", bytes.escape_ascii());
        }
        (Err(UnpackError::Inflate(InflateError::TooLong { .. })), Ok((theirs, _))) => {
            assert!(theirs.len() > bytes_max, "{} bytes: {}", theirs.len(), bytes.escape_ascii());
        }
        (Err(UnpackError::Inflate(InflateError::Trailing)), Ok((_, rest))) => {
            assert!(*rest > 0, "{}", bytes.escape_ascii());
        }
        // libflate checks no length of a gzip member, no check sum of a head, and no window.
        (Err(UnpackError::Inflate(InflateError::Corrupt(_))), Ok(_)) => {}
        (Err(UnpackError::Inflate(InflateError::Truncated)), Ok((theirs, rest))) => {
            assert!(bytes.is_empty() || *rest > 0 || is_gzip, "{theirs:?}: {}", bytes.escape_ascii());
        }
        (Ok(ours), Err(error)) => panic!("{error}, but we find {}: {}", ours.escape_ascii(), bytes.escape_ascii()),
        (Err(UnpackError::Exhausted(error)), _) => panic!("{error}"),
        (Err(_), Err(_)) => {}
    }
    if let Ok(content) = &ours {
        // Without its last byte it is no whole, whatever it was.
        for end in [bytes.len() - 1, dice.below(bytes.len())] {
            let cut = unpack(&[&bytes[..end]], framing, bytes_max, align_at);
            let is_member = is_gzip && end > 0 && matches!(&cut, Ok(first) if content.starts_with(first));
            assert!(cut.is_err() || is_member, "{end} of {}", bytes.escape_ascii());
        }
    }
    ours.is_ok()
}

/// The content, joined to one run, with the memory that it takes checked at every step.
fn unpack(pieces: &[&[u8]], framing: Framing, bytes_max: usize, align_at: usize) -> Result<Vec<u8>, UnpackError> {
    let pool = pool();
    let packed: usize = pieces.iter().map(|piece| piece.len()).sum();
    let mut unpacker = Unpacker::new(pieces.iter().map(|piece| Slice::copy_of(piece)), framing, bytes_max, align_at);
    loop {
        let step = unpacker.step(&pool)?;
        assert!(pool.bytes_in_use() <= 4 * bytes_max + SLACK, "{} bytes of {packed}", pool.bytes_in_use());
        if step == Step::Done {
            break;
        }
    }
    let pieces = unpacker.finish();
    let is_one = pieces.len() == 1;
    let mut joiner = Joiner::new(pieces, align_at, &pool).map_err(UnpackError::Exhausted)?;
    while !joiner.step() {}
    let content = joiner.finish();
    assert!(content.len() <= bytes_max, "{} bytes", content.len());
    if align_at < content.len() && (is_one || content.len() > 1) {
        assert!(content.window(align_at..content.len()).is_aligned_to(64), "byte {align_at} is not aligned");
    }
    Ok(content.to_vec())
}

type Read2 = std::io::Result<(Vec<u8>, usize)>;

/// The content, one byte beyond the bound at most, and the bytes behind its end.
fn by_libflate_zlib(bytes: &[u8], bytes_max: usize) -> Read2 {
    let mut rest = bytes;
    let mut content = Vec::new();
    let mut decoder = zlib::Decoder::new(&mut rest)?;
    decoder.by_ref().take(bytes_max as u64 + 1).read_to_end(&mut content)?;
    drop(decoder);
    Ok((content, rest.len()))
}

fn by_libflate_gzip(bytes: &[u8], bytes_max: usize) -> Read2 {
    let mut rest = bytes;
    let mut content = Vec::new();
    // Members follow each other; what else stands behind one is of no member.
    while rest.first() == Some(&0x1f) || content.is_empty() {
        let mut decoder = gzip::Decoder::new(&mut rest)?;
        let left = bytes_max.saturating_sub(content.len()) as u64 + 1;
        let read = decoder.by_ref().take(left).read_to_end(&mut content)?;
        drop(decoder);
        if read == 0 && rest.first() != Some(&0x1f) || content.len() > bytes_max {
            break;
        }
    }
    Ok((content, rest.len()))
}

/// What the packer makes of the bytes both read as these bytes.
fn packed_again(bytes: &[u8], dice: &mut Dice) {
    for format in [Format::Gzip, Format::Deflate] {
        let level = *dice.pick(&[Level::Low, Level::Medium, Level::High]);
        let pieces: Vec<Slice> = dice.cut(bytes).into_iter().map(Slice::copy_of).collect();
        let pool = pool();
        let mut packer = Packer::new(format, level, pieces);
        while !packer.step(&pool) {}
        let packed: Vec<u8> = match packer.finish() {
            Outcome::Packed(pieces) => pieces.iter().flat_map(|piece| piece.to_vec()).collect(),
            Outcome::Plain(_) => panic!("nothing was packed"),
        };
        drop(pool);
        let ours = unpack(&[&packed], Framing::Only(format), bytes.len(), 0);
        assert_eq!(ours.as_deref(), Ok(bytes), "{format:?}");
        let theirs = match format {
            Format::Gzip => by_libflate_gzip(&packed, bytes.len()),
            Format::Deflate => by_libflate_zlib(&packed, bytes.len()),
        };
        match theirs {
            Ok((theirs, rest)) => assert_eq!((&theirs[..], rest), (bytes, 0), "{format:?}"),
            Err(error) => panic!("{format:?}: {error}"),
        }
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let text = br#"{"inputs":[{"name":"I","shape":[4],"datatype":"FP32","data":[1,2,3,4]}]}"#;
    let zeros = vec![0; 40_000];
    let mut seeds = Vec::new();
    let pool = Pool::new(1 << 26);
    for content in [&b""[..], b"a", text, &text.repeat(40), &zeros] {
        for format in [Format::Gzip, Format::Deflate] {
            let mut packer = Packer::new(format, Level::Medium, vec![Slice::copy_of(content)]);
            while !packer.step(&pool) {}
            if let Outcome::Packed(pieces) = packer.finish() {
                seeds.push(pieces.iter().flat_map(|piece| piece.to_vec()).collect::<Vec<u8>>());
            }
        }
    }
    // Two members, and blocks that are stored.
    seeds.push([&seeds[2][..], &seeds[4][..]].concat());
    seeds.push(b"\x78\x01\x01\x05\x00\xfa\xffhello\x06\x2c\x02\x15".to_vec());
    seeds.into_iter().zip(0u32..).map(|(seed, number)| [&number.to_be_bytes()[..], &seed].concat()).collect()
}
