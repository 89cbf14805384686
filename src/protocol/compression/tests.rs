//! What comes back, what cannot, and how much at a time, held against the plain encoder and decoder of flate2.

use std::io::{Read, Write};

use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};

use super::*;
use nereid_memory::{ALIGNMENT, Pool, Slice};

fn packed(format: Format, plain: &[u8]) -> Vec<u8> {
    match format {
        Format::Gzip => {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
            encoder.write_all(plain).unwrap();
            encoder.finish().unwrap()
        }
        Format::Deflate => {
            let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
            encoder.write_all(plain).unwrap();
            encoder.finish().unwrap()
        }
    }
}

/// Text, noise, and zeroes: what packs well, badly, and absurdly well.
fn samples() -> Vec<Vec<u8>> {
    let mut state = 0x2545_f491_4f6c_dd1du64;
    let mut noise = |len: usize| -> Vec<u8> {
        let next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        };
        std::iter::repeat_with(next).take(len).collect()
    };
    let text: Vec<u8> = (0..20_000u32).flat_map(|at| format!("{},", at % 997).into_bytes()).collect();
    vec![Vec::new(), vec![7], text, noise(1000), noise(70_000), vec![0; 3_000_000]]
}

fn cut(bytes: &[u8], every: usize) -> Vec<Slice> {
    bytes.chunks(every.max(1)).map(Slice::copy_of).collect()
}

fn unpack_with(
    pool: &Pool,
    input: Vec<Slice>,
    framing: Framing,
    bytes_max: usize,
    align_at: usize,
) -> Result<Slice, UnpackError> {
    let mut unpacker = Unpacker::new(input, framing, bytes_max, align_at);
    while unpacker.step(pool)? != Step::Done {}
    let mut joiner = Joiner::new(unpacker.finish(), align_at, pool)?;
    while !joiner.step() {}
    Ok(joiner.finish())
}

fn unpack(bytes: &[u8], framing: Framing, bytes_max: usize) -> Result<Vec<u8>, UnpackError> {
    unpack_with(&Pool::new(1 << 28), cut(bytes, usize::MAX), framing, bytes_max, 0).map(|slice| slice.to_vec())
}

#[test]
fn what_was_packed_comes_back_whatever_the_cuts() {
    let pool = Pool::new(1 << 28);
    for plain in samples() {
        for format in [Format::Gzip, Format::Deflate] {
            let bytes = packed(format, &plain);
            for framing in [Framing::Any, Framing::Only(format)] {
                for every in [1, 7, 4096, STEP_BYTES, STEP_BYTES + 1, usize::MAX] {
                    if every < 100 && bytes.len() > 100_000 {
                        continue;
                    }
                    let got = unpack_with(&pool, cut(&bytes, every), framing, plain.len(), 0).unwrap();
                    assert!(*got == *plain, "{format:?} of {} in pieces of {every}", plain.len());
                }
            }
        }
    }
    assert_eq!(pool.bytes_in_use(), 0);
}

#[test]
fn the_inflater_goes_on_at_any_byte_with_any_room() {
    let plain: Vec<u8> = (0..600u32).flat_map(|at| (at * at).to_le_bytes()).collect();
    for format in [Format::Gzip, Format::Deflate] {
        let bytes = packed(format, &plain);
        for at in 0..=bytes.len() {
            for room in [1, 3, 1000] {
                let mut inflater = Inflater::new(Framing::Any, plain.len());
                let mut got = Vec::new();
                for mut part in [&bytes[..at], &bytes[at..]] {
                    loop {
                        let mut output = vec![0; room];
                        let progress = inflater.read(part, &mut output).unwrap();
                        part = &part[progress.taken..];
                        got.extend_from_slice(&output[..progress.written]);
                        if progress.taken == 0 && progress.written == 0 {
                            break;
                        }
                    }
                    assert!(part.is_empty());
                }
                assert_eq!(inflater.finish(), Ok(()));
                assert_eq!(got, plain, "{format:?} cut at {at}");
            }
        }
    }
}

#[test]
fn an_end_before_the_end_is_seen_at_every_byte() {
    let plain: Vec<u8> = (0..200u32).flat_map(u32::to_le_bytes).collect();
    for format in [Format::Gzip, Format::Deflate] {
        let bytes = packed(format, &plain);
        for len in 0..bytes.len() {
            assert_eq!(
                unpack(&bytes[..len], Framing::Any, usize::MAX),
                Err(UnpackError::Inflate(InflateError::Truncated)),
                "{format:?} after {len}"
            );
        }
    }
}

#[test]
fn damage_is_seen() {
    let plain = b"a text that says something, and says something again";
    for format in [Format::Gzip, Format::Deflate] {
        let bytes = packed(format, plain);
        for at in 0..bytes.len() {
            // Time, extra flags and system of a gzip header mean nothing.
            if format == Format::Gzip && (4..10).contains(&at) {
                continue;
            }
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x55;
            let outcome = unpack(&damaged, Framing::Only(format), 1 << 20);
            assert!(outcome.is_err(), "{format:?} with byte {at} changed gave {outcome:?}");
        }
    }
    let not_packed = unpack(b"{\"inputs\":[]}", Framing::Any, 1 << 20);
    assert_eq!(not_packed, Err(UnpackError::Inflate(InflateError::Corrupt("deflate"))));
    let other = unpack(&packed(Format::Deflate, plain), Framing::Only(Format::Gzip), 1 << 20);
    assert_eq!(other, Err(UnpackError::Inflate(InflateError::Corrupt("gzip"))));
    let other = unpack(&packed(Format::Gzip, plain), Framing::Only(Format::Deflate), 1 << 20);
    assert_eq!(other, Err(UnpackError::Inflate(InflateError::Corrupt("deflate"))));
}

#[test]
fn members_follow_each_other_and_nothing_else_does() {
    let (one, two) = (packed(Format::Gzip, b"one, "), packed(Format::Gzip, b"two"));
    let empty = packed(Format::Gzip, b"");
    let both = [&one[..], &empty, &two].concat();
    assert_eq!(unpack(&both, Framing::Any, 8).unwrap(), b"one, two");
    let trailing = Err(UnpackError::Inflate(InflateError::Trailing));
    assert_eq!(unpack(&[&one[..], b"\0"].concat(), Framing::Any, 100), trailing);
    assert_eq!(unpack(&[&one[..], b"\r\n"].concat(), Framing::Any, 100), trailing);
    let zlib = packed(Format::Deflate, b"one");
    assert_eq!(unpack(&[&zlib[..], &zlib].concat(), Framing::Any, 100), trailing);
    let half = [&one[..], &two[..5]].concat();
    assert_eq!(unpack(&half, Framing::Any, 100), Err(UnpackError::Inflate(InflateError::Truncated)));
}

#[test]
fn members_without_number_take_steps_without_number() {
    let bytes = packed(Format::Gzip, b"").repeat(1000);
    let pool = Pool::new(1 << 20);
    let mut unpacker = Unpacker::new([Slice::copy_of(&bytes)], Framing::Any, 100, 0);
    let mut long = 0;
    while let Step::More { is_long } = unpacker.step(&pool).unwrap() {
        long += usize::from(is_long);
    }
    assert_eq!(long, 999, "each but the last is a step of its own");
}

#[test]
fn blocks_without_content_take_steps_without_number() {
    // A stored block of no bytes, again and again, behind the header of gzip.
    let mut bytes = packed(Format::Gzip, b"")[..10].to_vec();
    bytes.extend(b"\0\0\0\xff\xff".repeat(10_000));
    let pool = Pool::new(1 << 20);
    let mut unpacker = Unpacker::new([Slice::copy_of(&bytes)], Framing::Any, 100, 0);
    let mut steps = 0;
    let error = loop {
        match unpacker.step(&pool) {
            Ok(Step::More { is_long }) => steps += usize::from(is_long),
            Ok(Step::Done) => panic!("it has no end"),
            Err(error) => break error,
        }
    };
    assert_eq!(error, UnpackError::Inflate(InflateError::Truncated));
    assert!(steps > 90, "{steps} steps of {} bytes", bytes.len());
}

#[test]
fn more_than_the_bound_is_an_error_before_it_is_stored() {
    let plain = vec![0; 100_000];
    for format in [Format::Gzip, Format::Deflate] {
        let bytes = packed(format, &plain);
        assert_eq!(unpack(&bytes, Framing::Any, 100_000).unwrap().len(), 100_000);
        for bytes_max in [0, 1, 99_999] {
            let pool = Pool::new(1 << 20);
            let got = unpack_with(&pool, cut(&bytes, usize::MAX), Framing::Any, bytes_max, 0);
            assert_eq!(got.unwrap_err(), UnpackError::Inflate(InflateError::TooLong { bytes_max }));
        }
    }
    assert_eq!(unpack(&packed(Format::Gzip, b""), Framing::Any, 0).unwrap(), b"");
}

#[test]
fn the_pool_bounds_what_comes_out_and_gets_it_back() {
    let pool = Pool::new(1 << 20);
    for format in [Format::Gzip, Format::Deflate] {
        let bytes = packed(format, &vec![0; 2 << 20]);
        let got = unpack_with(&pool, cut(&bytes, usize::MAX), Framing::Any, usize::MAX, 0);
        assert!(matches!(got, Err(UnpackError::Exhausted(_))), "{format:?}: {got:?}");
        assert_eq!(pool.bytes_in_use(), 0);
    }
    // A length that lies takes no more than its bytes could make, and does not matter otherwise.
    let mut lying = packed(Format::Gzip, b"short");
    let len = lying.len();
    lying[len - 4..].copy_from_slice(&u32::MAX.to_le_bytes());
    let mut unpacker = Unpacker::new([Slice::copy_of(&lying)], Framing::Any, usize::MAX, 0);
    let error = loop {
        match unpacker.step(&pool) {
            Ok(Step::Done) => panic!("a wrong length is an error"),
            Ok(_) => assert!(pool.bytes_in_use() <= 64 << 10),
            Err(error) => break error,
        }
    };
    assert_eq!(error, UnpackError::Inflate(InflateError::Corrupt("gzip")));
}

#[test]
fn the_asked_byte_is_aligned_in_one_block_and_in_many() {
    let pool = Pool::new(1 << 28);
    for len in [100usize, 300_000, 2_000_000] {
        let plain: Vec<u8> = (0..len).map(|at| (at / 7) as u8).collect();
        for format in [Format::Gzip, Format::Deflate] {
            for align_at in [0, 1, 63, 64, 77] {
                let bytes = packed(format, &plain);
                let got = unpack_with(&pool, cut(&bytes, usize::MAX), Framing::Any, usize::MAX, align_at).unwrap();
                assert!(*got == *plain);
                assert!(got.window(align_at..len).is_aligned_to(ALIGNMENT), "{len} {format:?} at {align_at}");
            }
        }
    }
}

#[test]
fn what_is_packed_here_is_unpacked_elsewhere() {
    let pool = Pool::new(1 << 28);
    for plain in samples() {
        for format in [Format::Gzip, Format::Deflate] {
            for level in [Level::Low, Level::Medium, Level::High] {
                let mut packer = Packer::new(format, level, cut(&plain, 5000));
                let mut steps = 0;
                while !packer.step(&pool) {
                    steps += 1;
                }
                assert!(steps >= plain.len() / 8192, "{steps} steps for {}", plain.len());
                let Outcome::Packed(pieces) = packer.finish() else { panic!("it cannot fail") };
                let bytes: Vec<u8> = pieces.iter().flat_map(|piece| piece.to_vec()).collect();
                let mut got = Vec::new();
                match format {
                    Format::Gzip => flate2::read::GzDecoder::new(&bytes[..]).read_to_end(&mut got).unwrap(),
                    Format::Deflate => flate2::read::ZlibDecoder::new(&bytes[..]).read_to_end(&mut got).unwrap(),
                };
                assert!(got == plain, "{format:?} {level:?} of {}", plain.len());
            }
        }
    }
    assert_eq!(pool.bytes_in_use(), 0);
}

#[test]
fn what_grows_can_be_had_as_it_was() {
    let pool = Pool::new(1 << 20);
    let mut packer = Packer::new(Format::Gzip, Level::Medium, vec![Slice::from_static(b"abc")]);
    while !packer.step(&pool) {}
    assert!(packer.grows());
    let Outcome::Plain(pieces) = packer.give_up() else { panic!() };
    assert_eq!(*pieces[0], *b"abc");
}
