//! Marshalled values, and the answers that they are.
//!
//! What is read is what a second reader of Python's format reads, and what is written of it is read as the same. An
//! answer has outputs of the length that their types and shapes state, in no memory but their own.

use std::sync::Arc;

use nereid_backend::python::fuzzing::{Answer, Bounds, Link, Malformed, Value, Writer};
use nereid_memory::{BlockMut, Exhausted};
use nereid_request::{Completion, Delivery, Request, RequestedOutput, Sink, element_count};

use crate::{Target, split};

pub const TARGET: Target = Target {
    name: "marshal",
    run,
    runs: 8_000,
    words: &[
        "N",
        "T",
        "F",
        "i\x01\0\0\0",
        "i\0\0\x01\0",
        "l\x02\0\0\0\u{1}\0\x01\0",
        "g\0\0\0\0\0\0\0\0",
        "s\x03\0\0\0abc",
        "u\x04\0\0\0DONE",
        "(\x03\0\0\0",
        "(\x04\0\0\0",
        "(\0\0\0\0",
        "[\x01\0\0\0",
        "[\0\0\0\0",
        "{",
        "0",
        "\0\0\0\0",
        "\x7f",
    ],
    seeds,
};

struct NullSink;

impl Sink for NullSink {
    fn deliver(&self, _key: u64, _delivery: Delivery) {}

    fn allocate(&self, _key: u64, byte_size: usize) -> Result<BlockMut, Exhausted> {
        assert!(byte_size < 1 << 16, "{byte_size} bytes, of which no input has as many");
        Ok(BlockMut::unpooled(byte_size))
    }
}

const BOUNDS: Bounds = Bounds { first_bytes: 4096, growth_bytes: 4096, max_bytes: 1 << 16 };
/// What bytes of memory are that the server gave the worker.
const GIVEN: u8 = 0x5a;

fn run(data: &[u8]) -> bool {
    let (_, bytes) = split(data);
    let read = Value::read(bytes);
    let mut left = bytes;
    let reference = reference(&mut left, 0).filter(|_| left.is_empty());
    match (&read, &reference) {
        (Ok(value), Some(reference)) => assert_eq!(&shown(value), reference, "{}", bytes.escape_ascii()),
        (Ok(value), None) => panic!("{value:?} of {}", bytes.escape_ascii()),
        // Bounds that the format does not have.
        (Err(Malformed::Deep | Malformed::Many), _) | (Err(_), None) => {}
        (Err(Malformed::Large), Some(_)) if bytes.contains(&b'l') => {}
        (Err(error), Some(reference)) => panic!("{error}, but {reference}: {}", bytes.escape_ascii()),
    }
    let Ok(value) = read else { return false };
    let mut writer = Writer::default();
    if write(&value, &mut writer) {
        let again = Value::read(writer.bytes());
        assert_eq!(again.as_ref().map(shown), Ok(lossy(&value)), "{}", bytes.escape_ascii());
    }
    answer(&value, bytes);
    true
}

/// The response that the value is, if it is one.
fn answer(value: &Value<'_>, bytes: &[u8]) {
    let Ok(answer) = Answer::read(value) else { return };
    let (link, _socket) = Link::new(BOUNDS, 0, false, Default::default()).expect("a link");
    link.grow(5000, &[]).expect("memory for its outputs");
    let (range, segment) = link.reserve(500).expect("memory").expect("memory within its bound");
    assert!(segment.write(range.offset as usize, &[GIVEN; 500]));
    let mut request = Request::new(Completion::new(Arc::new(NullSink), 0));
    let output = |name: &str| RequestedOutput { name: name.into(), index: 0 };
    request.outputs = ["DONE", "x", ""].into_iter().map(output).collect();
    let Ok(response) = answer.into_response_to(&link, &request) else { return };
    assert!(response.error.is_none() || response.outputs.is_empty(), "outputs beside an error");
    for output in &response.outputs {
        let len: usize = output.data.iter().map(|piece| piece.len()).sum();
        if output.datatype.byte_size() > 0 {
            let expected = element_count(&output.shape).map(|count| count as usize * output.datatype.byte_size());
            assert_eq!(Some(len), expected, "{:?}: {}", output.shape, bytes.escape_ascii());
        }
        for piece in output.data.iter().filter(|piece| piece.is_lent() || piece.is_foreign() || piece.is_in_region()) {
            // Memory of the worker is empty, and that of the server has its mark, up to what it is rounded to.
            assert!(piece.iter().all(|byte| *byte == 0 || *byte == GIVEN), "{}", bytes.escape_ascii());
        }
    }
}

/// A value of the format's second version, read as Python describes it.
fn reference(rest: &mut &[u8], depth: u32) -> Option<String> {
    fn take<'a>(rest: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
        let (front, behind) = rest.split_at_checked(len)?;
        *rest = behind;
        Some(front)
    }
    fn long(rest: &mut &[u8]) -> Option<i32> {
        Some(i32::from_le_bytes(take(rest, 4)?.try_into().ok()?))
    }
    // Deeper values are refused; this must not recurse without a bound.
    if depth > 40 {
        return None;
    }
    Some(match take(rest, 1)?[0] {
        b'N' => "None".to_owned(),
        b'T' => "True".to_owned(),
        b'F' => "False".to_owned(),
        b'i' => format!("int {}", long(rest)?),
        b'l' => {
            let count = long(rest)?;
            let digits = take(rest, count.unsigned_abs() as usize * 2)?;
            let mut value = 0i128;
            for digit in digits.as_chunks::<2>().0.iter().rev() {
                let digit = u16::from_le_bytes(*digit);
                if digit >> 15 != 0 {
                    return None;
                }
                value = value.checked_mul(1 << 15)?.checked_add(digit.into())?;
            }
            // Python ends a number with a digit that counts.
            format!("int {}", if count < 0 { -value } else { value })
        }
        b'g' => format!("float {}", u64::from_le_bytes(take(rest, 8)?.try_into().ok()?)),
        kind @ (b's' | b'u') => {
            let len = usize::try_from(long(rest)?).ok()?;
            format!("{} {}", char::from(kind), take(rest, len)?.escape_ascii())
        }
        kind @ (b'(' | b'[') => {
            let len = usize::try_from(long(rest)?).ok()?;
            let mut values = Vec::new();
            for _ in 0..len {
                values.push(reference(rest, depth + 1)?);
            }
            format!("{}{}", char::from(kind), values.join(", "))
        }
        b'{' => {
            let mut pairs = Vec::new();
            while rest.first() != Some(&b'0') {
                pairs.push(format!("{}: {}", reference(rest, depth + 1)?, reference(rest, depth + 1)?));
            }
            take(rest, 1)?;
            format!("{{{}", pairs.join(", "))
        }
        _ => return None,
    })
}

fn shown(value: &Value<'_>) -> String {
    let all = |values: &[Value<'_>]| values.iter().map(shown).collect::<Vec<_>>().join(", ");
    match value {
        Value::None => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Int(value) => format!("int {value}"),
        Value::Float(value) => format!("float {}", value.to_bits()),
        Value::Bytes(bytes) => format!("s {}", bytes.escape_ascii()),
        Value::Str(bytes) => format!("u {}", bytes.escape_ascii()),
        Value::Tuple(values) => format!("({}", all(values)),
        Value::List(values) => format!("[{}", all(values)),
        Value::Dict(pairs) => {
            let pairs: Vec<_> = pairs.iter().map(|(key, value)| format!("{}: {}", shown(key), shown(value))).collect();
            format!("{{{}", pairs.join(", "))
        }
    }
}

/// The same as it is written: text is UTF-8.
fn lossy(value: &Value<'_>) -> String {
    let all = |values: &[Value<'_>]| values.iter().map(lossy).collect::<Vec<_>>().join(", ");
    match value {
        Value::Str(bytes) => format!("u {}", String::from_utf8_lossy(bytes).as_bytes().escape_ascii()),
        Value::Tuple(values) => format!("({}", all(values)),
        Value::List(values) => format!("[{}", all(values)),
        value => shown(value),
    }
}

/// False for what the server never writes.
fn write(value: &Value<'_>, writer: &mut Writer) -> bool {
    match value {
        Value::None => writer.none(),
        Value::Bool(value) => writer.bool(*value),
        Value::Int(value) => writer.int(*value),
        Value::Float(value) => writer.float(*value),
        Value::Bytes(bytes) => {
            writer.bytes_head(bytes.len());
            let appended: Result<(), ()> = writer.append(|to| {
                to.extend_from_slice(bytes);
                Ok(())
            });
            return appended.is_ok();
        }
        Value::Str(bytes) => writer.text(bytes),
        Value::Tuple(values) => {
            writer.tuple(values.len());
            return values.iter().all(|value| write(value, writer));
        }
        Value::List(values) => {
            writer.list(values.len());
            return values.iter().all(|value| write(value, writer));
        }
        Value::Dict(_) => return false,
    }
    true
}

fn seeds() -> Vec<Vec<u8>> {
    // An answer with an output in the message, in memory of the worker, and in memory that it was given.
    let output = |writer: &mut Writer, name: &str, datatype: u32, shape: &[i64], place: &[i128]| {
        writer.tuple(4);
        writer.text(name.as_bytes());
        writer.int(datatype);
        writer.tuple(shape.len());
        shape.iter().for_each(|dim| writer.int(*dim));
        if place.is_empty() {
            writer.bytes_head(8);
            let _: Result<(), ()> = writer.append(|to| {
                to.extend_from_slice(b"12345678");
                Ok(())
            });
        } else {
            writer.tuple(place.len());
            place.iter().for_each(|number| writer.int(*number));
        }
    };
    let mut seeds = Vec::new();
    // The number of UINT8 and of FP32, whatever those are, and of what lies around them.
    for datatype in 0..15 {
        let mut writer = Writer::default();
        writer.tuple(3);
        writer.tuple(3);
        output(&mut writer, "DONE", datatype, &[2], &[]);
        output(&mut writer, "x", datatype, &[4, 2], &[1, 64, 8]);
        output(&mut writer, "", datatype, &[2], &[2, 0, 8, 0]);
        writer.tuple(1);
        writer.tuple(2);
        writer.text(b"key");
        writer.int(1i128 << 40);
        writer.none();
        seeds.push(writer.finish());
    }
    let mut refused = Writer::default();
    refused.tuple(3);
    refused.tuple(0);
    refused.tuple(0);
    refused.tuple(2);
    refused.int(3);
    refused.text("ä\u{fffd}".as_bytes());
    seeds.push(refused.finish());
    // Bytes that Python 3.11 wrote.
    seeds.push(b"{u\x01\0\0\0a[\x02\0\0\0l\xfd\xff\xff\xff\0\0\0\0\x04\0g\0\0\0\0\0\0\xf8?0".to_vec());
    seeds.into_iter().map(|seed| [&[0; 4][..], &seed].concat()).collect()
}
