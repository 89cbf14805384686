//! Inference requests of gRPC, scanned as they arrive, against prost.
//!
//! What the scanner accepts prost accepts, as the same request, and the other way round; a message that is cut
//! anywhere, received into its tensors' own memory, or framed and compressed is what it is in one piece. Requests that
//! the plan cache holds for equal but for id and contents are.

use std::collections::BTreeMap;
use std::io::Write;

use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use nereid_memory::Pool;
use nereid_protocol::grpc::{
    Contents, Encoding, InferRequest, InferScanner, Limits, List, Malformed, Message, MessageReader, MessageUnpacker,
    Mode, Outline, PREFIX_BYTES, Parameters, ReadError, Unpacked, Value,
};
use nereid_wire::inference::infer_parameter::ParameterChoice;
use nereid_wire::inference::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use nereid_wire::inference::{InferParameter, InferTensorContents, ModelInferRequest};
use prost::Message as _;

use crate::{Dice, Target, pool, split};

pub const TARGET: Target = Target {
    name: "grpc",
    run,
    runs: 6_000,
    // Keys of the fields, and short lengths behind them.
    words: &[
        "\x0a\x01m",
        "\x12\x011",
        "\x1a\x02id",
        "\x22\x00",
        "\x22\x07\x0a\x01k\x12\x02\x08\x01",
        "\x2a\x00",
        "\x2a\x03\x0a\x01I",
        "\x32\x00",
        "\x32\x03\x0a\x01O",
        "\x3a\x00",
        "\x3a\x04abcd",
        "\x1a\x02\x01\x02",
        "\x2a\x02\x10\x07",
        "\x08\x01",
        "\x10\x7f",
        "\x21aaaaaaaa",
        "\x35aaaa",
        "\x42\x01x",
        "\x0b\x0c",
        "\x7b\x7c",
        "\x7f",
        "\x01",
    ],
    seeds,
};

fn run(data: &[u8]) -> bool {
    let (mut dice, bytes) = split(data);
    let expected = ModelInferRequest::decode(bytes);
    let pool = pool();
    let mut scanner = InferScanner::new(pool.clone(), Limits::default());
    let whole = scan(&mut scanner, &[bytes], false).map(|request| check(&request, bytes, &expected));
    let pieces = dice.cut(bytes);
    let takes_direct = dice.one_in(2);
    let cut = scan(&mut scanner, &pieces, takes_direct).map(|request| check(&request, bytes, &expected));
    assert_eq!(cut, whole, "in pieces: {}", bytes.escape_ascii());
    if let Err(error) = &whole {
        refused(error, bytes, &expected);
    }
    for encoding in [Encoding::Identity, Encoding::Gzip, Encoding::Deflate] {
        let framed = framed(encoding, bytes, &pool).map(|request| check(&request, bytes, &expected));
        assert_eq!(framed, whole, "{encoding:?}: {}", bytes.escape_ascii());
    }
    outlines(bytes, &expected, &mut dice);
    whole.is_ok()
}

fn scan(scanner: &mut InferScanner, pieces: &[&[u8]], takes_direct: bool) -> Result<Box<InferRequest>, ReadError> {
    scanner.begin(pieces.iter().map(|piece| piece.len()).sum())?;
    for piece in pieces {
        let mut rest = *piece;
        while !rest.is_empty() {
            let direct = if takes_direct { scanner.take_direct() } else { None };
            let taken = match direct {
                None => scanner.feed(rest)?,
                Some(mut direct) => {
                    let n = rest.len().min(direct.len());
                    direct.window()[..n].copy_from_slice(&rest[..n]);
                    assert!(scanner.direct_received(direct, n), "a window of this message");
                    n
                }
            };
            assert!(taken > 0, "no progress");
            rest = &rest[taken..];
        }
    }
    // A message that ends before its end is refused where its last byte is read.
    Ok(scanner.take(None).expect("all bytes of the message were read"))
}

/// The message behind its prefix, through the reader of a call, compressed or not.
fn framed(encoding: Encoding, bytes: &[u8], pool: &Pool) -> Result<Box<InferRequest>, ReadError> {
    let packed = match encoding {
        Encoding::Gzip => {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(bytes).and_then(|()| encoder.finish()).expect("memory takes every byte")
        }
        Encoding::Deflate => {
            let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(bytes).and_then(|()| encoder.finish()).expect("memory takes every byte")
        }
        Encoding::Identity => bytes.to_vec(),
    };
    let flag = u8::from(encoding != Encoding::Identity);
    let stream = [&[flag][..], &(packed.len() as u32).to_be_bytes(), &packed].concat();
    let mut reader = MessageReader::new(pool.clone(), Limits::default(), Mode::Infer);
    reader.set_encoding(encoding);
    let (front, behind) = stream.split_at(stream.len().min(PREFIX_BYTES + 7));
    for part in [front, behind] {
        let taken = reader.feed(part)?;
        assert!(taken == part.len() || reader.is_ready(), "{taken} of {}", part.len());
    }
    reader.end_of_stream()?;
    match reader.next_message().expect("the message is whole") {
        Message::Infer(request) => Ok(request),
        Message::Collected(_) => panic!("a message to be scanned was collected"),
        Message::Compressed(encoding, pieces, limits) => {
            let mut unpacker = MessageUnpacker::new(Mode::Infer, encoding, limits, pieces);
            loop {
                match unpacker.step(pool)? {
                    Unpacked::More { .. } => {}
                    Unpacked::Message(Message::Infer(request)) => return Ok(request),
                    Unpacked::Message(other) => panic!("{other:?} is no request"),
                }
            }
        }
    }
}

/// The request is that of prost.
fn check(request: &InferRequest, bytes: &[u8], expected: &Result<ModelInferRequest, prost::DecodeError>) {
    let shown = || bytes.escape_ascii();
    let expected = match expected {
        Ok(expected) => expected,
        Err(error) => panic!("accepted what prost refuses ({error}): {}", shown()),
    };
    assert_eq!(request.model_name(), expected.model_name, "{}", shown());
    assert_eq!(request.model_version(), expected.model_version, "{}", shown());
    assert_eq!(request.id(), expected.id, "{}", shown());
    assert_eq!(parameters(request.parameters()), choices(&expected.parameters), "{}", shown());
    assert_eq!(request.inputs().len(), expected.inputs.len(), "{}", shown());
    for (input, expected) in request.inputs().zip(&expected.inputs) {
        assert_eq!((input.name(), input.datatype()), (&*expected.name, &*expected.datatype), "{}", shown());
        assert_eq!(input.shape(), expected.shape, "{}", shown());
        assert_eq!(parameters(input.parameters()), choices(&expected.parameters), "{}", shown());
        match (input.contents(), &expected.contents) {
            (Some(contents), Some(expected)) => check_contents(contents, expected),
            (contents, expected) => assert_eq!(contents.is_some(), expected.is_some(), "{}", shown()),
        }
    }
    let outputs: Vec<_> =
        request.outputs().map(|output| (output.name().to_owned(), parameters(output.parameters()))).collect();
    let theirs: Vec<_> =
        expected.outputs.iter().map(|output| (output.name.clone(), choices(&output.parameters))).collect();
    assert_eq!(outputs, theirs, "{}", shown());
    let raw: Vec<&[u8]> = request.raw.iter().map(|raw| &raw[..]).collect();
    assert!(raw.iter().eq(expected.raw_input_contents.iter()), "{}", shown());
    assert!(request.raw.iter().all(|raw| raw.is_aligned_to(64)), "{}", shown());
}

fn parameters(parameters: Parameters<'_>) -> Vec<(String, String)> {
    parameters
        .iter()
        .map(|(key, value)| {
            let value = match value {
                Value::Unset => "unset".to_owned(),
                Value::Bool(value) => format!("bool {value}"),
                Value::Int64(value) => format!("int {value}"),
                Value::String(value) => format!("string {value}"),
                Value::Double(value) => format!("double {}", value.to_bits()),
                Value::Uint64(value) => format!("uint {value}"),
            };
            (key.to_owned(), value)
        })
        .collect()
}

fn choices(parameters: &BTreeMap<String, InferParameter>) -> Vec<(String, String)> {
    parameters
        .iter()
        .map(|(key, value)| {
            let value = match &value.parameter_choice {
                None => "unset".to_owned(),
                Some(ParameterChoice::BoolParam(value)) => format!("bool {value}"),
                Some(ParameterChoice::Int64Param(value)) => format!("int {value}"),
                Some(ParameterChoice::StringParam(value)) => format!("string {value}"),
                Some(ParameterChoice::DoubleParam(value)) => format!("double {}", value.to_bits()),
                Some(ParameterChoice::Uint64Param(value)) => format!("uint {value}"),
            };
            (key.clone(), value)
        })
        .collect()
}

/// The lists that hold something are the same, and one of them is the one that was kept.
fn check_contents(contents: &Contents, expected: &InferTensorContents) {
    fn wire<T: Copy, const N: usize>(list: &[T], bytes: impl Fn(T) -> [u8; N], kept: usize) -> (usize, Vec<u8>) {
        (list.len(), list.iter().flat_map(|value| bytes(*value)[..kept.min(N)].to_vec()).collect())
    }
    let int = contents.int_bytes();
    let strings =
        expected.bytes_contents.iter().flat_map(|bytes| [&(bytes.len() as u32).to_le_bytes()[..], bytes].concat());
    let lists = [
        wire(&expected.bool_contents, |value| [u8::from(value)], 1),
        wire(&expected.int_contents, i32::to_le_bytes, int),
        wire(&expected.int64_contents, i64::to_le_bytes, 8),
        wire(&expected.uint_contents, u32::to_le_bytes, int),
        wire(&expected.uint64_contents, u64::to_le_bytes, 8),
        wire(&expected.fp32_contents, f32::to_le_bytes, 4),
        wire(&expected.fp64_contents, f64::to_le_bytes, 8),
        (expected.bytes_contents.len(), strings.collect()),
    ];
    let filled: Vec<List> = List::ALL.into_iter().filter(|list| lists[*list as usize].0 > 0).collect();
    assert_eq!(contents.lists().collect::<Vec<_>>(), filled);
    assert!(contents.data().is_aligned_to(64));
    let is_kept =
        |(elements, bytes): &(usize, Vec<u8>)| contents.elements() == *elements && contents.data()[..] == bytes[..];
    match &filled[..] {
        [] => assert!(contents.data().is_empty() && contents.elements() == 0),
        some => assert!(some.iter().any(|list| is_kept(&lists[*list as usize])), "{contents:?} of {expected:?}"),
    }
}

/// The scanner refuses what prost refuses, and entries of maps that are written as something else.
fn refused(error: &ReadError, bytes: &[u8], expected: &Result<ModelInferRequest, prost::DecodeError>) {
    let is_malformed = matches!(error, ReadError::Malformed(_));
    assert!(is_malformed || matches!(error, ReadError::Bound { .. }), "{error}: {}", bytes.escape_ascii());
    if let (Ok(expected), true) = (expected, is_malformed) {
        let is_known = *error == ReadError::Malformed(Malformed::WireType(0))
            || matches!(error, ReadError::Malformed(Malformed::WireType(_)));
        let has_entry = has_misspelled_entry(bytes, Place::Request);
        assert!(is_known && has_entry, "{error}, but prost says {expected:?}: {}", bytes.escape_ascii());
    }
}

/// What maps of parameters occur in.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    Request,
    Input,
    Output,
}

/// Prost takes an entry of a map for one whatever its wire type. True if `bytes`, well formed up to there, have one
/// that is no message.
fn has_misspelled_entry(mut bytes: &[u8], place: Place) -> bool {
    let map = match place {
        Place::Request | Place::Input => 4,
        Place::Output => 2,
    };
    let mut groups = 0u32;
    while !bytes.is_empty() {
        let Ok(key) = prost::decode_length_delimiter(&mut bytes) else { return false };
        let (number, wire) = (key >> 3, key & 7);
        if groups == 0 && number == map && wire != 2 {
            return true;
        }
        let skipped = match wire {
            0 => prost::decode_length_delimiter(&mut bytes).ok().map(|_| 0),
            1 => Some(8),
            5 => Some(4),
            3 => {
                groups += 1;
                Some(0)
            }
            4 => {
                groups = groups.saturating_sub(1);
                Some(0)
            }
            _ => prost::decode_length_delimiter(&mut bytes).ok(),
        };
        let Some((value, behind)) = skipped.and_then(|len| bytes.split_at_checked(len)) else { return false };
        bytes = behind;
        let inner = match (place, number, wire) {
            (Place::Request, 5, 2) => Place::Input,
            (Place::Request, 6, 2) => Place::Output,
            _ => continue,
        };
        if groups == 0 && has_misspelled_entry(value, inner) {
            return true;
        }
    }
    false
}

/// A message of which an outline is known, with another id and other contents, is recognised and is what prost says.
fn outlines(bytes: &[u8], expected: &Result<ModelInferRequest, prost::DecodeError>, dice: &mut Dice) {
    let (Some(outline), Ok(expected)) = (Outline::of(bytes), expected) else { return };
    let shown = || bytes.escape_ascii();
    assert_eq!(outline.id, expected.id.as_bytes(), "{}", shown());
    assert!(outline.contents().eq(expected.raw_input_contents.iter().map(|raw| &raw[..])), "{}", shown());
    let mut other = expected.clone();
    other.id = format!("{}", dice.number());
    other.raw_input_contents = (0..dice.below(4)).map(|n| vec![n as u8; dice.below(300)].into()).collect();
    // Only what an encoder writes is written the same way again.
    let (first, second) = (expected.encode_to_vec(), other.encode_to_vec());
    if first == bytes {
        let second = Outline::of(&second).expect("what an encoder writes has an outline");
        assert_eq!((second.model, second.tensors), (outline.model, outline.tensors), "{}", shown());
        assert_eq!((second.hash(), second.head_len()), (outline.hash(), outline.head_len()), "{}", shown());
    }
    // The model and the tensors of one and the id and contents of another are one message.
    let joined = [outline.model, outline.tensors].concat();
    let decoded = ModelInferRequest::decode(&joined[..]).expect("parts of a message");
    let mut without = expected.clone();
    (without.id, without.raw_input_contents) = Default::default();
    assert_eq!(decoded.encode_to_vec(), without.encode_to_vec(), "{}", shown());
}

fn seeds() -> Vec<Vec<u8>> {
    let parameter = |choice| InferParameter { parameter_choice: Some(choice) };
    let parameters = BTreeMap::from([
        ("sequence_id".to_owned(), parameter(ParameterChoice::Uint64Param(7))),
        ("sequence_start".to_owned(), parameter(ParameterChoice::BoolParam(true))),
        ("text".to_owned(), parameter(ParameterChoice::StringParam("some text".to_owned()))),
        ("low".to_owned(), parameter(ParameterChoice::Int64Param(-3))),
        ("ratio".to_owned(), parameter(ParameterChoice::DoubleParam(0.5))),
        ("none".to_owned(), InferParameter::default()),
    ]);
    let input = |datatype: &str, contents| InferInputTensor {
        name: "INPUT0".to_owned(),
        datatype: datatype.to_owned(),
        shape: vec![1, 300],
        parameters: parameters.clone(),
        contents,
    };
    let output = InferRequestedOutputTensor { name: "OUTPUT0".to_owned(), parameters: parameters.clone() };
    let plain = ModelInferRequest {
        model_name: "identity".to_owned(),
        model_version: "1".to_owned(),
        id: "some id".to_owned(),
        parameters: BTreeMap::new(),
        inputs: vec![input("FP32", None)],
        outputs: vec![output.clone()],
        raw_input_contents: vec![vec![7; 64].into(), vec![1; 3].into()],
    };
    let typed = |contents, datatype: &str| ModelInferRequest {
        inputs: vec![input(datatype, Some(contents))],
        raw_input_contents: Vec::new(),
        ..plain.clone()
    };
    let large = ModelInferRequest { raw_input_contents: vec![vec![9; 17_000].into()], ..plain.clone() };
    let none = InferTensorContents::default;
    let messages = [
        plain.clone(),
        ModelInferRequest { parameters: parameters.clone(), ..plain.clone() },
        typed(InferTensorContents { bool_contents: vec![true, false], ..none() }, "BOOL"),
        typed(InferTensorContents { int_contents: vec![1, -1, 300], ..none() }, "INT16"),
        typed(InferTensorContents { int64_contents: vec![1, -1, i64::MIN], ..none() }, "INT64"),
        typed(InferTensorContents { uint_contents: vec![1, 255], ..none() }, "UINT8"),
        typed(InferTensorContents { uint64_contents: vec![u64::MAX], ..none() }, "UINT64"),
        typed(InferTensorContents { fp32_contents: vec![0.5, -1.0], ..none() }, "FP32"),
        typed(InferTensorContents { fp64_contents: vec![0.25], ..none() }, "FP64"),
        typed(InferTensorContents { bytes_contents: vec![b"ab"[..].into(), b""[..].into()], ..none() }, "BYTES"),
        large,
    ];
    messages.iter().zip(1u32..).map(|(message, n)| [&n.to_be_bytes()[..], &message.encode_to_vec()].concat()).collect()
}
