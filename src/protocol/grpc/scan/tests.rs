//! Holds the scanner against prost, byte by byte.

mod generate;

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::Message;

use self::generate::{Random, held};
use super::*;
use crate::grpc::{Bound, Contents, List, Parameters, Value, varint};
use nereid_memory::ALIGNMENT;
use nereid_wire::inference::infer_parameter::ParameterChoice;
use nereid_wire::inference::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use nereid_wire::inference::{InferParameter, InferTensorContents, ModelInferRequest};

fn scanner() -> InferScanner {
    InferScanner::new(Pool::new(1 << 30), Limits::default())
}

/// Scans `bytes` in chunks of the lengths that `next` names, through the direct window wherever there is one and
/// `direct` says so.
fn scan(
    scanner: &mut InferScanner,
    bytes: &[u8],
    mut next: impl FnMut() -> usize,
    direct: bool,
) -> Result<Box<InferRequest>, ReadError> {
    scanner.begin(bytes.len())?;
    let mut rest = bytes;
    // An empty message is never fed.
    while !rest.is_empty() {
        let (chunk, _) = rest.split_at(next().clamp(1, rest.len()));
        let mut taken = 0;
        if let Some(mut window) = direct.then(|| scanner.take_direct()).flatten() {
            assert_eq!(scanner.feed(chunk), Ok(0), "nothing is taken while the window is out");
            taken = chunk.len().min(window.len());
            window.window()[..taken].copy_from_slice(&chunk[..taken]);
            assert!(scanner.direct_received(window, taken));
        } else {
            taken += scanner.feed(chunk)?;
        }
        assert!(taken > 0, "progress");
        rest = &rest[taken..];
    }
    Ok(scanner.take(None).expect("all bytes are read, so the message is complete"))
}

fn at_once(bytes: &[u8]) -> Result<Box<InferRequest>, ReadError> {
    scan(&mut scanner(), bytes, || usize::MAX, false)
}

#[track_caller]
fn assert_same(request: &InferRequest, expected: &ModelInferRequest) {
    assert_eq!(request.model_name(), expected.model_name);
    assert_eq!(request.model_version(), expected.model_version);
    assert_eq!(request.id(), expected.id);
    assert_parameters(request.parameters(), &expected.parameters);
    assert_eq!(request.inputs().len(), expected.inputs.len());
    for (input, expected) in request.inputs().zip(&expected.inputs) {
        assert_eq!((input.name(), input.datatype()), (&*expected.name, &*expected.datatype));
        assert_eq!(input.shape(), expected.shape);
        assert_parameters(input.parameters(), &expected.parameters);
        assert_eq!(input.contents().is_some(), expected.contents.is_some());
        if let (Some(contents), Some(expected)) = (input.contents(), &expected.contents) {
            assert_contents(contents, expected);
        }
    }
    assert_eq!(request.outputs().len(), expected.outputs.len());
    for (output, expected) in request.outputs().zip(&expected.outputs) {
        assert_eq!(output.name(), expected.name);
        assert_parameters(output.parameters(), &expected.parameters);
    }
    assert_eq!(request.raw.len(), expected.raw_input_contents.len());
    for (raw, expected) in request.raw.iter().zip(&expected.raw_input_contents) {
        assert_eq!(**raw, **expected);
        assert!(raw.is_aligned_to(ALIGNMENT));
    }
}

#[track_caller]
fn assert_parameters(parameters: Parameters<'_>, expected: &BTreeMap<String, InferParameter>) {
    assert_eq!(parameters.len(), expected.len());
    for ((key, value), (expected_key, expected)) in parameters.iter().zip(expected) {
        assert_eq!(key, expected_key);
        match (value, &expected.parameter_choice) {
            (Value::Unset, None) => {}
            (Value::Bool(a), Some(ParameterChoice::BoolParam(b))) => assert_eq!(a, *b),
            (Value::Int64(a), Some(ParameterChoice::Int64Param(b))) => assert_eq!(a, *b),
            (Value::String(a), Some(ParameterChoice::StringParam(b))) => assert_eq!(a, *b),
            (Value::Double(a), Some(ParameterChoice::DoubleParam(b))) => assert_eq!(a.to_bits(), b.to_bits()),
            (Value::Uint64(a), Some(ParameterChoice::Uint64Param(b))) => assert_eq!(a, *b),
            (value, expected) => panic!("{value:?} is not {expected:?}"),
        }
    }
}

#[track_caller]
fn assert_contents(contents: &Contents, expected: &InferTensorContents) {
    let lists: [(usize, Vec<u8>); 8] = [
        (expected.bool_contents.len(), expected.bool_contents.iter().map(|&value| u8::from(value)).collect()),
        (expected.int_contents.len(), expected.int_contents.iter().flat_map(|value| value.to_le_bytes()).collect()),
        (expected.int64_contents.len(), expected.int64_contents.iter().flat_map(|value| value.to_le_bytes()).collect()),
        (expected.uint_contents.len(), expected.uint_contents.iter().flat_map(|value| value.to_le_bytes()).collect()),
        (
            expected.uint64_contents.len(),
            expected.uint64_contents.iter().flat_map(|value| value.to_le_bytes()).collect(),
        ),
        (expected.fp32_contents.len(), expected.fp32_contents.iter().flat_map(|value| value.to_le_bytes()).collect()),
        (expected.fp64_contents.len(), expected.fp64_contents.iter().flat_map(|value| value.to_le_bytes()).collect()),
        (
            expected.bytes_contents.len(),
            expected
                .bytes_contents
                .iter()
                .flat_map(|bytes| [&(bytes.len() as u32).to_le_bytes()[..], bytes].concat())
                .collect(),
        ),
    ];
    let filled: Vec<List> = List::ALL.into_iter().filter(|&list| lists[list as usize].0 > 0).collect();
    assert_eq!(contents.lists().collect::<Vec<_>>(), filled);
    assert!(contents.data().is_aligned_to(ALIGNMENT));
    // The one that keeps its elements is the first on the wire, which the decoded message does not tell.
    let kept = |(elements, bytes): &(usize, Vec<u8>)| contents.elements() == *elements && **contents.data() == **bytes;
    match filled.as_slice() {
        [] => assert!(contents.data().is_empty() && contents.elements() == 0),
        some => assert!(some.iter().any(|&list| kept(&lists[list as usize])), "{contents:?} of {expected:?}"),
    }
}

/// Agrees with prost on whether the bytes are a message and, if so, on which.
#[track_caller]
fn assert_agrees(bytes: &[u8], scanned: Result<Box<InferRequest>, ReadError>) -> bool {
    match (scanned, ModelInferRequest::decode(bytes)) {
        (Ok(request), Ok(expected)) => {
            assert_same(&request, &expected);
            true
        }
        (Err(ReadError::Malformed(_)), Err(_)) => false,
        (Err(ReadError::Malformed(Malformed::WireType(_))), Ok(_)) if has_misspelled_map(bytes, Kind::Request) => false,
        (Ok(_), Err(error)) => panic!("accepted what prost refuses ({error}): {}", bytes.escape_ascii()),
        (Err(error), expected) => panic!("{error:?}, but prost says {expected:?}: {}", bytes.escape_ascii()),
    }
}

/// Prost takes a map's entry for one whatever its wire type, where others see an error or an unknown field. True if
/// `bytes`, well formed up to there, have such an entry.
fn has_misspelled_map(mut bytes: &[u8], inside: Kind) -> bool {
    let varint = |bytes: &mut &[u8]| match varint::decode(bytes) {
        varint::Decoded::Value(value, len) => {
            *bytes = &bytes[len..];
            value as usize
        }
        other => panic!("{other:?} before the entry that prost takes"),
    };
    let mut groups = 0;
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let field = fields::field(inside, (key >> 3) as u32);
        if groups == 0 && field == Field::Message(Kind::Entry) && key & 7 != 2 {
            return true;
        }
        match key & 7 {
            0 => _ = varint(&mut bytes),
            1 => bytes = &bytes[8..],
            5 => bytes = &bytes[4..],
            3 => groups += 1,
            4 => groups -= 1,
            _ => {
                let len = varint(&mut bytes);
                let (held, rest) = bytes.split_at(len);
                bytes = rest;
                match field {
                    Field::Message(kind) if groups == 0 && has_misspelled_map(held, kind) => return true,
                    _ => {}
                }
            }
        }
    }
    false
}

#[test]
fn tensors_beyond_any_model_s_are_counted_and_not_kept() {
    let input = |at: usize| InferInputTensor { name: format!("I{at}"), datatype: "FP32".into(), ..Default::default() };
    let output = |at: usize| InferRequestedOutputTensor { name: format!("O{at}"), ..Default::default() };
    let sent = ModelInferRequest {
        model_name: "m".into(),
        inputs: (0..5000).map(input).collect(),
        outputs: (0..3000).map(output).collect(),
        raw_input_contents: (0..40_000).map(|_| Bytes::from_static(b"raw")).collect(),
        ..Default::default()
    };
    let bytes = sent.encode_to_vec();
    let limits = Limits { tensors_max: || 20, ..Limits::default() };
    let mut scanner = InferScanner::new(Pool::new(1 << 30), limits);
    for step in [1, 7, 4096] {
        let request = scan(&mut scanner, &bytes, || step, true).unwrap();
        assert_eq!((request.inputs().len(), request.outputs().len(), request.raw.len()), (20, 20, 20));
        assert_eq!((request.input_count(), request.output_count(), request.items()), (5000, 3000, 48_000));
        assert_eq!(request.inputs().last().unwrap().name(), "I19");
        assert!(request.text_bytes() < 1024, "names of what is passed over are not kept");
    }
    // The bound of a message holds for what is passed over as well.
    let limits = Limits { items_max: 47_999, ..limits };
    let mut scanner = InferScanner::new(Pool::new(1 << 30), limits);
    let refused = scan(&mut scanner, &bytes, || usize::MAX, false).unwrap_err();
    assert_eq!(refused, ReadError::Bound { bound: Bound::Items, max: 47_999 });
    // The next message is not taken for this one.
    let small = ModelInferRequest { inputs: vec![input(0)], ..Default::default() };
    let request = scan(&mut scanner, &small.encode_to_vec(), || usize::MAX, false).unwrap();
    assert_eq!((request.input_count(), request.output_count()), (1, 0));
}

#[test]
fn a_map_of_numbers_is_refused() {
    assert_eq!(at_once(b"\x20\x00").unwrap_err(), ReadError::Malformed(Malformed::WireType(0)));
    assert!(has_misspelled_map(b"\x0a\x01a\x2a\x04\x0a\x00\x20\x00", Kind::Request));
    assert!(!has_misspelled_map(b"\x0a\x01a\x2a\x04\x0a\x00\x22\x00", Kind::Request));
}

#[test]
fn what_prost_writes_is_read() {
    let mut random = Random(1);
    let mut scanner = scanner();
    for _ in 0..2000 {
        let message = generate::request(&mut random);
        let bytes = message.encode_to_vec();
        let request = scan(&mut scanner, &bytes, || usize::MAX, false).unwrap();
        assert_same(&request, &message);
    }
}

#[test]
fn every_spelling_in_every_two_pieces() {
    let mut random = Random(2);
    let mut scanner = scanner();
    for _ in 0..150 {
        let message = generate::request(&mut random);
        let bytes = generate::respelled(&message, &mut random);
        for cut in 0..bytes.len() {
            let mut pieces = [cut, usize::MAX].into_iter();
            let scanned = scan(&mut scanner, &bytes, || pieces.next().unwrap_or(usize::MAX), false);
            assert!(assert_agrees(&bytes, scanned));
        }
    }
}

#[test]
fn every_spelling_byte_by_byte_and_in_random_pieces() {
    let mut random = Random(3);
    let mut scanner = scanner();
    for round in 0..2000 {
        let message = generate::request(&mut random);
        let bytes = generate::respelled(&message, &mut random);
        assert!(assert_agrees(&bytes, scan(&mut scanner, &bytes, || 1, false)));
        let mut pieces = Random(round);
        let scanned = scan(&mut scanner, &bytes, || pieces.below(40), false);
        assert!(assert_agrees(&bytes, scanned));
    }
}

#[test]
fn mutations_are_accepted_and_refused_as_by_prost() {
    let mut random = Random(4);
    let mut scanner = scanner();
    let (mut accepted, mut refused) = (0, 0);
    for round in 0..20_000 {
        let message = generate::request(&mut random);
        let bytes = generate::respelled(&message, &mut random);
        let bytes = generate::mutated(&bytes, &mut random);
        let whole = assert_agrees(&bytes, scan(&mut scanner, &bytes, || usize::MAX, false));
        let mut pieces = Random(round);
        let cut = assert_agrees(&bytes, scan(&mut scanner, &bytes, || pieces.below(20), true));
        assert_eq!(whole, cut);
        *(if whole { &mut accepted } else { &mut refused }) += 1;
    }
    assert!(accepted > 1000 && refused > 1000, "{accepted} accepted, {refused} refused: both sides are tried");
}

#[test]
fn garbage_is_accepted_and_refused_as_by_prost() {
    let mut random = Random(5);
    let mut scanner = scanner();
    for _ in 0..20_000 {
        let n = random.below(12);
        // Mostly keys of known fields and short lengths, so that some of it makes sense.
        let bytes: Vec<u8> =
            (0..n)
                .map(|_| {
                    if random.chance(2) {
                        (random.below(9) << 3 | random.below(6)) as u8
                    } else {
                        random.below(5) as u8
                    }
                })
                .collect();
        assert_agrees(&bytes, scan(&mut scanner, &bytes, || 1, false));
        assert_agrees(&bytes, scan(&mut scanner, &bytes, || usize::MAX, false));
    }
}

#[test]
fn malformed_messages_by_name() {
    let cases: [(&[u8], Malformed); 15] = [
        (b"\x0a\x05ab", Malformed::Overrun),
        (b"\x0a", Malformed::Overrun),
        (b"\x0a\x01\xff", Malformed::Utf8),
        (b"\x08\x01", Malformed::WireType(0)),
        (b"\x0f\x00", Malformed::WireType(7)),
        (b"\x00\x00", Malformed::Key),
        (b"\xf8\xff\xff\xff\x1f\x00", Malformed::Key),
        (b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x02", Malformed::Varint),
        (b"\x7c", Malformed::GroupEnd),
        (b"\x7b\x74", Malformed::GroupEnd),
        (b"\x7b", Malformed::Overrun),
        // An input whose last field reaches beyond it, but not beyond the request.
        (b"\x2a\x02\x0a\x03abc", Malformed::Overrun),
        // A packed shape whose last number is cut by the list's end.
        (b"\x2a\x04\x1a\x01\x80\x01", Malformed::Overrun),
        // Five bytes of packed fp32.
        (b"\x2a\x09\x2a\x07\x32\x05\0\0\0\0\0", Malformed::Overrun),
        // A map's key that is not UTF-8.
        (b"\x22\x03\x0a\x01\xc0", Malformed::Utf8),
    ];
    for (bytes, malformed) in cases {
        for chunk in [1, usize::MAX] {
            let error = scan(&mut scanner(), bytes, || chunk, false).unwrap_err();
            assert_eq!(error, ReadError::Malformed(malformed), "{}", bytes.escape_ascii());
        }
        assert!(ModelInferRequest::decode(bytes).is_err(), "{}", bytes.escape_ascii());
    }
}

#[test]
fn a_character_may_be_cut() {
    let bytes = ModelInferRequest { model_name: "🦀ß".into(), ..Default::default() }.encode_to_vec();
    let request = scan(&mut scanner(), &bytes, || 1, false).unwrap();
    assert_eq!(request.model_name(), "🦀ß");
}

#[test]
fn groups_are_skipped_to_the_same_depth_as_by_prost() {
    let nested = |depth: usize, inner: &[u8]| [vec![0x7b; depth], inner.to_vec(), vec![0x7c; depth]].concat();
    for depth in [1, 98, 99, 100, 101, 5000] {
        for inner in [&b""[..], b"\x78\x01"] {
            let top = nested(depth, inner);
            let accepted = assert_agrees(&top, at_once(&top));
            assert_eq!(accepted, depth < 100 || (depth == 100 && inner.is_empty()));
            let mut random = Random(0);
            let in_input = held(5, &nested(depth, inner), &mut random);
            assert_agrees(&in_input, at_once(&in_input));
            let in_parameter =
                held(5, &held(4, &held(2, &nested(depth, inner), &mut random), &mut random), &mut random);
            assert_agrees(&in_parameter, at_once(&in_parameter));
        }
    }
}

fn large() -> ModelInferRequest {
    let tensor = |n: usize, seed: usize| Bytes::from((0..n).map(|at| (at * 31 + seed) as u8).collect::<Vec<_>>());
    ModelInferRequest {
        model_name: "m".into(),
        inputs: vec![InferInputTensor { name: "i".into(), shape: vec![1, 2], ..Default::default() }],
        raw_input_contents: [DIRECT_BYTES, 100, DIRECT_BYTES - 1, 70_001, 0, 7, DIRECT_BYTES + 1]
            .into_iter()
            .enumerate()
            .map(|(seed, n)| tensor(n, seed))
            .collect(),
        ..Default::default()
    }
}

#[test]
fn large_tensors_are_received_directly_whatever_the_chunks() {
    let message = large();
    let bytes = message.encode_to_vec();
    for direct in [false, true] {
        for chunk in [1, 2, 9, 1000, DIRECT_BYTES - 1, DIRECT_BYTES, 65_536, usize::MAX] {
            assert_same(&scan(&mut scanner(), &bytes, || chunk, direct).unwrap(), &message);
        }
        let mut random = Random(6);
        for _ in 0..50 {
            let scanned = scan(&mut scanner(), &bytes, || random.below(30_000), direct);
            assert_same(&scanned.unwrap(), &message);
        }
    }
}

#[test]
fn raw_contents_may_come_first() {
    let message = large();
    let mut bytes = Vec::new();
    let head = ModelInferRequest { raw_input_contents: Vec::new(), ..message.clone() };
    ModelInferRequest { raw_input_contents: message.raw_input_contents.clone(), ..Default::default() }
        .encode(&mut bytes)
        .unwrap();
    head.encode(&mut bytes).unwrap();
    assert_same(&scan(&mut scanner(), &bytes, || 5000, true).unwrap(), &message);
}

#[test]
fn a_direct_window_is_the_tensor() {
    let bytes = large().encode_to_vec();
    let mut scanner = scanner();
    scanner.begin(bytes.len()).unwrap();
    let mut fed = 0;
    let mut window = loop {
        fed += scanner.feed(&bytes[fed..fed + 1]).unwrap();
        if let Some(window) = scanner.take_direct() {
            break window;
        }
    };
    assert_eq!(window.len(), DIRECT_BYTES);
    assert!(scanner.take_direct().is_none(), "there is one window");
    let place = window.window().as_ptr();
    window.window().copy_from_slice(&bytes[fed..fed + DIRECT_BYTES]);
    assert!(scanner.direct_received(window, DIRECT_BYTES));
    fed += DIRECT_BYTES;
    assert_eq!(scanner.feed(&bytes[fed..]), Ok(bytes.len() - fed));
    let request = scanner.take(None).unwrap();
    assert_eq!(request.raw[0].as_ptr(), place, "received where it is used");
}

#[test]
fn a_window_of_a_message_that_was_given_up_is_dropped() {
    let pool = Pool::new(1 << 20);
    let mut scanner = InferScanner::new(pool.clone(), Limits::default());
    let bytes = [&b"\x3a\x80\x80\x01"[..], &[1; 16 * 1024]].concat();
    scanner.begin(bytes.len()).unwrap();
    scanner.feed(&bytes[..4]).unwrap();
    let mut old = scanner.take_direct().unwrap();
    scanner.begin(bytes.len()).unwrap();
    scanner.feed(&bytes[..4]).unwrap();
    let new = scanner.take_direct().unwrap();
    old.window().fill(9);
    assert!(!scanner.direct_received(old, 100));
    assert!(scanner.direct_received(new, 0));
    assert_eq!(scanner.feed(&bytes[4..]), Ok(bytes.len() - 4));
    let request = scanner.take(None).unwrap();
    assert_eq!(*request.raw[0], bytes[4..]);
    drop((request, scanner));
    assert_eq!(pool.bytes_in_use(), 0);
}

#[test]
fn a_message_that_is_given_up_keeps_no_memory() {
    let pool = Pool::new(1 << 20);
    let mut scanner = InferScanner::new(pool.clone(), Limits::default());
    scanner.begin(1 << 20).unwrap();
    scanner.feed(b"\x3a\x03abc\x3a\x80\x80\x01abc").unwrap();
    assert!(pool.bytes_in_use() > 16 * 1024);
    scanner.begin(0).unwrap();
    assert_eq!(pool.bytes_in_use(), 0);
}

#[test]
fn lengths_that_lie_allocate_nothing() {
    let pool = Pool::new(4 << 30);
    let limits = Limits { text_bytes_max: 64 << 20, ..Limits::default() };
    let mut scanner = InferScanner::new(pool.clone(), limits);
    for field in [&b"\x0a"[..], b"\x3a", b"\x2a", b"\x22", b"\x2a\x0e\x2a\x0c\x42", b"\x2a\x0e\x2a\x0c\x32"] {
        let bytes = [field, &b"\xf0\xff\xff\xff\x07"[..], &[0; 34]].concat();
        scanner.begin(bytes.len()).unwrap();
        assert_eq!(scanner.feed(&bytes), Err(ReadError::Malformed(Malformed::Overrun)), "{}", field.escape_ascii());
        assert_eq!(pool.bytes_in_use(), 0);
    }
    // Typed contents and strings whose lengths fit the message get room as their bytes come.
    for field in
        [&b"\x0a"[..], b"\x2a\xff\xff\xff\x7f\x2a\xf0\xff\xff\x7f\x32", b"\x2a\xff\xff\xff\x7f\x2a\xf0\xff\xff\x7f\x42"]
    {
        scanner.begin(1 << 30).unwrap();
        scanner.feed(field).unwrap();
        scanner.feed(b"\x80\xff\xff\x0f\0\0\0").unwrap();
        assert!(pool.bytes_in_use() <= 2 * nereid_memory::TRUSTED_BYTES, "{} bytes", pool.bytes_in_use());
    }
}

#[test]
fn the_pool_bounds_large_tensors() {
    let mut scanner = InferScanner::new(Pool::new(1 << 20), Limits::default());
    scanner.begin(1 << 30).unwrap();
    scanner.feed(b"\x3a\x80\x80\x80\x80\x02").unwrap();
    // By its own window, and by bytes that come another way.
    let direct = scanner.take_direct().unwrap();
    assert_eq!(direct.len(), nereid_memory::TRUSTED_BYTES, "room for what has come, and a little more");
    assert!(scanner.direct_received(direct, nereid_memory::TRUSTED_BYTES));
    let error = scanner.feed(&vec![0; 2 << 20]).unwrap_err();
    assert!(matches!(error, ReadError::Exhausted(_)));
    scanner.begin(0).unwrap();
    assert!(scanner.take(None).is_some(), "the next message is not harmed");
}

#[test]
fn items_text_and_message_are_bounded() {
    let limits = Limits { message_bytes_max: 1000, text_bytes_max: 100, items_max: 5, ..Limits::default() };
    let mut scanner = InferScanner::new(Pool::new(1 << 20), limits);
    assert_eq!(scanner.begin(1001), Err(ReadError::TooLarge { bytes: 1001, bytes_max: 1000 }));
    for item in [&b"\x2a\0"[..], b"\x32\0", b"\x3a\0", b"\x22\0", b"\x3a\x01x"] {
        assert!(scan(&mut scanner, &item.repeat(5), || 1, false).is_ok());
        let error = scan(&mut scanner, &item.repeat(6), || 1, false).unwrap_err();
        assert_eq!(error, ReadError::Bound { bound: Bound::Items, max: 5 });
    }
    let in_input = [&b"\x2a\x0c"[..], &b"\x22\0".repeat(6)].concat();
    assert!(matches!(scan(&mut scanner, &in_input, || 9, false), Err(ReadError::Bound { bound: Bound::Items, .. })));
    // A hundred bytes take 99 characters and their NUL, or 12 dimensions.
    let name = |n: u8| [&[0x0a, n][..], &vec![b'x'; n.into()]].concat();
    assert!(scan(&mut scanner, &name(99), || 7, false).is_ok());
    let text = Err(ReadError::Bound { bound: Bound::TextBytes, max: 100 });
    assert_eq!(scan(&mut scanner, &name(100), || 7, false).map(drop), text);
    assert_eq!(scan(&mut scanner, &[name(60), name(60)].concat(), || 7, false).map(drop), text);
    let shape = |n: u8| [&[0x2a, n + 2, 0x1a, n][..], &vec![1; n.into()]].concat();
    assert!(scan(&mut scanner, &shape(12), || 7, false).is_ok());
    assert_eq!(scan(&mut scanner, &shape(13), || 7, false).map(drop), text);
}

#[test]
fn storage_is_reused() {
    let mut random = Random(7);
    let mut scanner = scanner();
    let mut spare = None;
    for _ in 0..300 {
        let message = generate::request(&mut random);
        let bytes = message.encode_to_vec();
        scanner.begin(bytes.len()).unwrap();
        scanner.feed(&bytes).unwrap();
        let mut request = scanner.take(spare.take()).unwrap();
        assert_same(&request, &message);
        request.clear();
        spare = Some(request);
    }
}

#[test]
fn a_small_request_takes_a_small_block_and_returns_it() {
    let pool = Pool::new(1 << 20);
    let mut scanner = InferScanner::new(pool.clone(), Limits::default());
    let raw = vec![Bytes::from_static(&[1; 64]), Bytes::from_static(&[2; 64])];
    let bytes = ModelInferRequest { raw_input_contents: raw, ..Default::default() }.encode_to_vec();
    let request = scan(&mut scanner, &bytes, || usize::MAX, false).unwrap();
    assert_eq!(pool.bytes_in_use(), 512);
    drop(request);
    assert_eq!(pool.bytes_in_use(), 0, "the scanner keeps nothing of a message that was taken");
}
