//! The readers and writers of JSON, each against the others and against serde_json.
//!
//! The pull reader, the index that is built at once and the one that is built in steps find the same values or the same
//! error. What serde_json accepts they accept, with the same values; what they accept and serde_json does not is of the
//! dialect (contract/http.md section 2). Numbers and strings of an array become the same tensor by every way, and what
//! the writers write is read again.

use std::fmt;

use nereid_memory::{BlockMut, Slice};
use nereid_protocol::json::{
    ArrayWriter, Builder, Cursor, Document, DocumentError, Element, Kind, NumbersReader, Reader, StringsReader,
    SyntaxError, TensorError, Token, Value, Writer,
};
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use crate::{Dice, Target, pool, split};

pub const TARGET: Target = Target {
    name: "json",
    run,
    runs: 20_000,
    words: &[
        "[",
        "]",
        "{",
        "}",
        "\"",
        ":",
        ",",
        "\\",
        "\\\"",
        "\\n",
        "\\u0041",
        "\\ud83d\\ude00",
        "\\ud800",
        "true",
        "false",
        "null",
        "NaN",
        "Inf",
        "-Infinity",
        "1e308",
        "1e309",
        "-0",
        "-0.0",
        "1E-400",
        "0.1",
        "\"data\":[",
        "{\"datatype\":\"FP32\",\"shape\":[2],\"data\":[1,2]}",
        "\u{feff}",
        "\0",
        "9007199254740993",
        "1.7976931348623157e308",
        "4.9e-324",
        "123456789012345678901234567890",
    ],
    seeds,
};

const ELEMENTS: [Element; 11] = [
    Element::Bool,
    Element::U8,
    Element::U16,
    Element::U32,
    Element::U64,
    Element::I8,
    Element::I16,
    Element::I32,
    Element::I64,
    Element::F32,
    Element::F64,
];

fn run(data: &[u8]) -> bool {
    let (mut dice, text) = split(data);
    let element = *dice.pick(&ELEMENTS);
    writers(element, text);
    if text.iter().filter(|byte| matches!(byte, b'[' | b'{')).count() > DEPTH_MAX {
        return only_syntax(text);
    }
    let by_reader = by_reader(text);
    let input = Slice::copy_of(text);
    let shown = || text.escape_ascii();
    match (Document::parse(input.clone()), &by_reader) {
        (Ok(document), Ok(tree)) => assert_eq!(&of_value(document.root()), tree, "{}", shown()),
        (Err(DocumentError::Syntax(error)), Err(other)) => assert_eq!(error, *other, "{}", shown()),
        // The index has a bound that the reader has not.
        (Err(DocumentError::TooManyValues { .. }), Ok(_)) => return true,
        (document, tree) => panic!("{document:?}, but the reader finds {tree:?}: {}", shown()),
    }
    match (in_steps(input.clone(), &mut dice), &by_reader) {
        (Ok(document), Ok(tree)) => assert_eq!(&of_value(document.root()), tree, "in steps: {}", shown()),
        (Err(DocumentError::Syntax(error)), Err(other)) => assert_eq!(error, *other, "in steps: {}", shown()),
        (document, tree) => panic!("{document:?} in steps, but the reader finds {tree:?}: {}", shown()),
    }
    against_serde(text, &by_reader);
    let Ok(tree) = by_reader else {
        // The short way takes nothing that the others refuse.
        let mut out = [0; 8];
        let mut cursor = Cursor::new(text);
        assert!(cursor.numbers(element, &mut out[..element.byte_size()]).is_none() || !cursor.is_at_end());
        return false;
    };
    written_again(&tree);
    tensors(&tree, text, element, &mut dice);
    kept_as_ranges(input, &mut dice);
    true
}

/// A value and everything in it. Members keep their order and all their values.
#[derive(Debug, Clone)]
pub enum Tree {
    Null,
    Bool(bool),
    Uint(u64),
    Int(i64),
    Double(f64),
    String(Vec<u8>),
    Array(Vec<Tree>),
    Object(Vec<(Vec<u8>, Tree)>),
}

impl PartialEq for Tree {
    fn eq(&self, other: &Tree) -> bool {
        match (self, other) {
            (Tree::Null, Tree::Null) => true,
            (Tree::Bool(a), Tree::Bool(b)) => a == b,
            (Tree::Uint(a), Tree::Uint(b)) => a == b,
            (Tree::Int(a), Tree::Int(b)) => a == b,
            (Tree::Double(a), Tree::Double(b)) => a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()),
            (Tree::String(a), Tree::String(b)) => a == b,
            (Tree::Array(a), Tree::Array(b)) => a == b,
            (Tree::Object(a), Tree::Object(b)) => a == b,
            _ => false,
        }
    }
}

/// What stands where a tree is built from tokens.
enum Open {
    Array(Vec<Tree>),
    Object(Vec<(Vec<u8>, Tree)>, Vec<u8>),
}

fn by_reader(text: &[u8]) -> Result<Tree, SyntaxError> {
    let mut reader = Reader::new();
    let mut open: Vec<Open> = Vec::new();
    let mut root = None;
    while let Some(token) = reader.next(text)? {
        let value = match token {
            Token::ObjectStart => {
                open.push(Open::Object(Vec::new(), Vec::new()));
                continue;
            }
            Token::ArrayStart => {
                open.push(Open::Array(Vec::new()));
                continue;
            }
            Token::Key(name) => {
                let Some(Open::Object(_, key)) = open.last_mut() else { panic!("a key outside of an object") };
                *key = name.to_vec();
                continue;
            }
            Token::ObjectEnd | Token::ArrayEnd => match open.pop() {
                Some(Open::Array(elements)) => Tree::Array(elements),
                Some(Open::Object(members, _)) => Tree::Object(members),
                None => panic!("an end without a beginning"),
            },
            Token::String(value) => Tree::String(value.to_vec()),
            Token::Int(value) => Tree::Int(value),
            Token::Uint(value) => Tree::Uint(value),
            Token::Double(value) => Tree::Double(value),
            Token::Bool(value) => Tree::Bool(value),
            Token::Null => Tree::Null,
        };
        match open.last_mut() {
            Some(Open::Array(elements)) => elements.push(value),
            Some(Open::Object(members, key)) => members.push((std::mem::take(key), value)),
            None => assert!(root.replace(value).is_none(), "two roots"),
        }
    }
    Ok(root.expect("a document without an error has a root"))
}

/// Documents that may nest deeper are not made trees of: that recurses here, which the server does not.
const DEPTH_MAX: usize = 500;

/// The reader and the index agree on whether a text is a document.
fn only_syntax(text: &[u8]) -> bool {
    let mut reader = Reader::new();
    let read = loop {
        match reader.next(text) {
            Ok(Some(_)) => {}
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    match (Document::parse(Slice::copy_of(text)).map(drop), read) {
        (Err(DocumentError::Syntax(error)), read) => assert_eq!(Err(error), read, "{}", text.escape_ascii()),
        (document, read) => assert_eq!(document.is_ok(), read.is_ok(), "{}", text.escape_ascii()),
    }
    read.is_ok()
}

fn of_value(value: Value<'_>) -> Tree {
    match value.kind() {
        Kind::Null => Tree::Null,
        Kind::Bool => Tree::Bool(value.as_bool().unwrap()),
        Kind::Uint => Tree::Uint(value.as_u64().unwrap()),
        Kind::Int => Tree::Int(value.as_i64().unwrap()),
        Kind::Double => Tree::Double(value.as_f64().unwrap()),
        Kind::String => Tree::String(value.as_str().unwrap().into_owned()),
        Kind::Array => {
            let elements: Vec<Tree> = value.elements().unwrap().map(of_value).collect();
            assert_eq!(elements.len(), value.len());
            Tree::Array(elements)
        }
        Kind::Object => {
            let members: Vec<_> = value.members().unwrap().map(|(key, value)| (key.into_owned(), value)).collect();
            for (key, _) in &members {
                let Ok(name) = std::str::from_utf8(key) else { continue };
                let first = members.iter().find(|(other, _)| other == key).map(|(_, value)| value.value_index());
                assert_eq!(value.find(name).map(Value::value_index), first, "{name}");
            }
            Tree::Object(members.into_iter().map(|(key, value)| (key, of_value(value))).collect())
        }
    }
}

fn in_steps(input: Slice, dice: &mut Dice) -> Result<Document, DocumentError> {
    let mut builder = Builder::new(input, |_, _| false)?;
    loop {
        let tokens = 1 + dice.below(5);
        if builder.step(tokens)? {
            return Ok(builder.finish());
        }
    }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Tree, D::Error> {
        struct Builder;
        impl<'de> Visitor<'de> for Builder {
            type Value = Tree;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("any value")
            }

            fn visit_unit<E: Error>(self) -> Result<Tree, E> {
                Ok(Tree::Null)
            }

            fn visit_bool<E: Error>(self, value: bool) -> Result<Tree, E> {
                Ok(Tree::Bool(value))
            }

            fn visit_u64<E: Error>(self, value: u64) -> Result<Tree, E> {
                Ok(Tree::Uint(value))
            }

            fn visit_i64<E: Error>(self, value: i64) -> Result<Tree, E> {
                Ok(Tree::Int(value))
            }

            fn visit_f64<E: Error>(self, value: f64) -> Result<Tree, E> {
                Ok(Tree::Double(value))
            }

            fn visit_str<E: Error>(self, value: &str) -> Result<Tree, E> {
                Ok(Tree::String(value.as_bytes().to_vec()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Tree, A::Error> {
                let mut all = Vec::new();
                while let Some(element) = elements.next_element()? {
                    all.push(element);
                }
                Ok(Tree::Array(all))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Tree, A::Error> {
                let mut all = Vec::new();
                while let Some((key, value)) = members.next_entry::<String, Tree>()? {
                    all.push((key.into_bytes(), value));
                }
                Ok(Tree::Object(all))
            }
        }
        deserializer.deserialize_any(Builder)
    }
}

fn against_serde(text: &[u8], ours: &Result<Tree, SyntaxError>) {
    match (serde_json::from_slice::<Tree>(text), ours) {
        (Ok(theirs), Ok(ours)) => assert!(means(ours, &theirs), "{ours:?} is {theirs:?}: {}", text.escape_ascii()),
        (Ok(theirs), Err(error)) => panic!("{error}, but serde_json finds {theirs:?}: {}", text.escape_ascii()),
        (Err(error), Ok(ours)) => assert!(of_dialect(text, &error), "{error}, but {ours:?}: {}", text.escape_ascii()),
        (Err(_), Err(_)) => {}
    }
}

/// Equal but for `-0`, which is an integer here (contract/http.md section 2).
fn means(ours: &Tree, theirs: &Tree) -> bool {
    match (ours, theirs) {
        (Tree::Int(0), Tree::Double(zero)) => *zero == 0.0,
        (Tree::Array(a), Tree::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| means(a, b)),
        (Tree::Object(a), Tree::Object(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|((key, a), (other, b))| key == other && means(a, b))
        }
        (ours, theirs) => ours == theirs,
    }
}

/// True if `text` has what the dialect adds: numbers that are words, bytes of strings that are no UTF-8, a byte order
/// mark, an end before the end, and any depth.
fn of_dialect(text: &[u8], error: &serde_json::Error) -> bool {
    let has = |word: &[u8]| text.windows(word.len()).any(|window| window == word);
    let has_word = has(b"NaN") || has(b"Inf");
    let has_mark = text.iter().take(3).any(|byte| [0xef, 0xbb, 0xbf].contains(byte));
    // A NUL byte ends the text.
    has_word
        || has_mark
        || text.contains(&0)
        || std::str::from_utf8(text).is_err()
        || error.to_string().contains("recursion limit")
}

/// What is written of the tree is the same tree.
fn written_again(tree: &Tree) {
    let mut writer = Writer::new(Vec::new());
    write(tree, &mut writer);
    let text = writer.into_inner();
    match by_reader(&text) {
        Ok(read) => assert!(same_but_for_form(tree, &read), "{tree:?} became {}", text.escape_ascii()),
        Err(error) => panic!("{error}: {}", text.escape_ascii()),
    }
}

fn write(tree: &Tree, writer: &mut Writer<Vec<u8>>) {
    match tree {
        Tree::Null => writer.null(),
        Tree::Bool(value) => writer.bool(*value),
        Tree::Uint(value) => writer.uint(*value),
        Tree::Int(value) => writer.int(*value),
        Tree::Double(value) => writer.double(*value),
        Tree::String(value) => writer.string(value),
        Tree::Array(elements) => {
            writer.begin_array();
            elements.iter().for_each(|element| write(element, writer));
            writer.end_array();
        }
        Tree::Object(members) => {
            writer.begin_object();
            for (key, value) in members {
                writer.key(key);
                write(value, writer);
            }
            writer.end_object();
        }
    }
}

/// Equal but for what numbers are written as: `-0` as 0, and doubles that are integers perhaps without a fraction.
fn same_but_for_form(a: &Tree, b: &Tree) -> bool {
    let number = |tree: &Tree| match *tree {
        Tree::Uint(value) => Some((Some(i128::from(value)), value as f64)),
        Tree::Int(value) => Some((Some(i128::from(value)), value as f64)),
        Tree::Double(value) => Some((None, value)),
        _ => None,
    };
    match (a, b) {
        (Tree::Array(a), Tree::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same_but_for_form(a, b)),
        (Tree::Object(a), Tree::Object(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|((key, a), (other, b))| key == other && same_but_for_form(a, b))
        }
        _ => match (number(a), number(b)) {
            (Some((Some(a), _)), Some((Some(b), _))) => a == b,
            (Some((_, a)), Some((_, b))) => a == b || (a.is_nan() && b.is_nan()),
            _ => a == b,
        },
    }
}

/// The scalars of nested arrays in their order; `None` where something else is in them.
pub fn flat<'t>(tree: &'t Tree, into: &mut Vec<&'t Tree>) -> Option<()> {
    let Tree::Array(elements) = tree else { return None };
    for element in elements {
        match element {
            Tree::Array(_) => flat(element, into)?,
            Tree::Object(_) => return None,
            scalar => into.push(scalar),
        }
    }
    Some(())
}

/// The kind of a type's elements; `None` for those that JSON has no form for.
pub fn element_named(datatype: &str) -> Option<Element> {
    let names = ["BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP32", "FP64"];
    names.iter().zip(ELEMENTS).find(|(name, _)| **name == datatype).map(|(_, element)| element)
}

/// The bytes of an element of that kind; `None` where the value is none.
pub fn bytes_of(tree: &Tree, element: Element) -> Option<Vec<u8>> {
    let integer = match *tree {
        Tree::Uint(value) => Some(i128::from(value)),
        Tree::Int(value) => Some(i128::from(value)),
        _ => None,
    };
    let double = match *tree {
        Tree::Uint(value) => Some(value as f64),
        Tree::Int(value) => Some(value as f64),
        Tree::Double(value) => Some(value),
        _ => None,
    };
    macro_rules! fit {
        ($type:ty) => {
            <$type>::try_from(integer?).ok().map(|value| value.to_le_bytes().to_vec())
        };
    }
    match element {
        Element::Bool => match tree {
            Tree::Bool(value) => Some(vec![u8::from(*value)]),
            _ => None,
        },
        Element::U8 => fit!(u8),
        Element::U16 => fit!(u16),
        Element::U32 => fit!(u32),
        Element::U64 => fit!(u64),
        Element::I8 => fit!(i8),
        Element::I16 => fit!(i16),
        Element::I32 => fit!(i32),
        Element::I64 => fit!(i64),
        Element::F32 => double.map(|value| (value as f32).to_le_bytes().to_vec()),
        Element::F64 => double.map(|value| value.to_le_bytes().to_vec()),
    }
}

/// The tensor that the root is, by every way that leads to one.
fn tensors(tree: &Tree, text: &[u8], element: Element, dice: &mut Dice) {
    let Tree::Array(_) = tree else { return };
    let document = Document::parse(Slice::copy_of(text)).expect("it was parsed before");
    let span = document.root().span();
    let mut scalars = Vec::new();
    let is_plain = flat(tree, &mut scalars).is_some();
    let expected: Option<Vec<u8>> = if is_plain {
        scalars.iter().map(|scalar| bytes_of(scalar, element)).collect::<Option<Vec<_>>>().map(|all| all.concat())
    } else {
        None
    };
    let mut out = vec![0; scalars.len() * element.byte_size()];
    let read = numbers(text, span.clone(), element, &mut out, || usize::MAX);
    let shown = || text.escape_ascii();
    match (&read, &expected) {
        (Ok(()), Some(expected)) => {
            assert!(same_numbers(&out, expected, element), "{out:?}, {expected:?}: {}", shown())
        }
        // Deeply nested arrays are no tensors.
        (Err(TensorError::TooDeep), _) | (Err(_), None) => {}
        (read, expected) => panic!("{read:?}, but {expected:?} as {element:?}: {}", shown()),
    }
    let mut again = vec![0; out.len()];
    let stepped = numbers(text, span.clone(), element, &mut again, || 1 + dice.below(3));
    assert_eq!(stepped, read, "{}", shown());
    assert!(read.is_err() || again == out, "in steps: {}", shown());
    let mut short = vec![0; out.len()];
    let mut cursor = Cursor::new(text);
    if cursor.numbers(element, &mut short).is_some() && cursor.is_at_end() {
        assert!(read.is_ok() && short == out, "the short way took {short:?}: {}", shown());
    }
    // One element more or less than there are.
    for len in [out.len() + element.byte_size(), out.len().saturating_sub(element.byte_size())] {
        let mut out = vec![0; len];
        let fits = numbers(text, span.clone(), element, &mut out, || usize::MAX).is_ok();
        assert!(!fits || (len == 0 && scalars.is_empty()), "{len} bytes: {}", shown());
        let mut cursor = Cursor::new(text);
        assert!(cursor.numbers(element, &mut out).is_none() || (len == 0 && scalars.is_empty()), "{}", shown());
    }
    strings(text, span, is_plain.then_some(&scalars), dice);
}

fn same_numbers(ours: &[u8], expected: &[u8], element: Element) -> bool {
    let are_nan = |a: &[u8], b: &[u8]| match element {
        Element::F32 => {
            f32::from_le_bytes(a.try_into().unwrap()).is_nan() && f32::from_le_bytes(b.try_into().unwrap()).is_nan()
        }
        Element::F64 => {
            f64::from_le_bytes(a.try_into().unwrap()).is_nan() && f64::from_le_bytes(b.try_into().unwrap()).is_nan()
        }
        _ => false,
    };
    let size = element.byte_size();
    ours.len() == expected.len() && ours.chunks(size).zip(expected.chunks(size)).all(|(a, b)| a == b || are_nan(a, b))
}

fn numbers(
    text: &[u8],
    span: std::ops::Range<usize>,
    element: Element,
    out: &mut [u8],
    mut steps: impl FnMut() -> usize,
) -> Result<(), TensorError> {
    let mut reader = NumbersReader::new(element, span);
    while !reader.step(text, out, steps())? {}
    Ok(())
}

fn strings(text: &[u8], span: std::ops::Range<usize>, scalars: Option<&Vec<&Tree>>, dice: &mut Dice) {
    let expected: Option<Vec<u8>> = scalars.and_then(|scalars| {
        let mut bytes = Vec::new();
        for scalar in scalars {
            let Tree::String(value) = scalar else { return None };
            bytes.extend_from_slice(&(value.len() as u32).to_le_bytes());
            bytes.extend_from_slice(value);
        }
        Some(bytes)
    });
    let read = read_strings(text, span, dice);
    match (&read, &expected) {
        (Ok(bytes), Some(expected)) => assert_eq!(bytes, expected, "{}", text.escape_ascii()),
        (Err(TensorError::TooDeep), _) | (Err(_), None) => {}
        (read, expected) => panic!("{read:?}, but {expected:?}: {}", text.escape_ascii()),
    }
}

fn read_strings(text: &[u8], span: std::ops::Range<usize>, dice: &mut Dice) -> Result<Vec<u8>, TensorError> {
    let mut reader = StringsReader::new(span);
    while !reader.measure(text, 1 + dice.below(4))? {}
    let mut out = vec![0; reader.byte_size()];
    while !reader.fill(text, &mut out, 1 + dice.below(4))? {}
    Ok(out)
}

/// Arrays that are kept as byte ranges, and read as they pass, are the tensors that they are when they are read later.
fn kept_as_ranges(input: Slice, dice: &mut Dice) {
    let pool = pool();
    let Ok(mut builder) = Builder::new(input.clone(), |_, key| key == b"data") else { return };
    loop {
        match builder.step_to_array(1 + dice.below(6)) {
            Ok(true) => break,
            Ok(false) => {}
            Err(error) => panic!("{error}: {}", input.escape_ascii()),
        }
        if builder.opened("").is_some() || builder.opened("shape").is_some() || dice.one_in(2) {
            let element = ELEMENTS[builder.unread() % ELEMENTS.len()];
            let count = builder.opened("shape").map_or(2, Value::len);
            builder.read_into(element, pool.get(count * element.byte_size()).expect("a small tensor"));
        }
    }
    let mut document = builder.finish();
    let mut ranges = Vec::new();
    find_ranges(document.root(), &mut ranges);
    for (index, span) in ranges {
        if let Some(block) = document.take_read(index) {
            let fits = |element: &Element| {
                let mut out = BlockMut::unpooled(block.len());
                numbers(&input, span.clone(), *element, &mut out, || usize::MAX).is_ok() && out[..] == block[..]
            };
            assert!(ELEMENTS.iter().any(fits), "{:?} of {}", &block[..], input.escape_ascii());
        }
    }
}

type Ranges = Vec<(nereid_protocol::json::ValueIndex, std::ops::Range<usize>)>;

fn find_ranges(value: Value<'_>, into: &mut Ranges) {
    if value.is_raw() {
        into.push((value.value_index(), value.span()));
    } else if let Ok(elements) = value.elements() {
        elements.for_each(|element| find_ranges(element, into));
    } else if let Ok(members) = value.members() {
        members.for_each(|(_, value)| find_ranges(value, into));
    }
}

/// Bytes of a tensor, written as an array and read again, are the same bytes.
fn writers(element: Element, bytes: &[u8]) {
    let data = &bytes[..bytes.len() / element.byte_size() * element.byte_size()];
    let mut text = Vec::new();
    ArrayWriter::write(element, data, &mut text).expect("a whole number of elements");
    let mut pieces = Vec::new();
    let mut writer = ArrayWriter::numbers(element);
    while !writer.step(data, &mut pieces, 3).expect("the same elements") {}
    assert_eq!(pieces, text, "in steps: {}", data.escape_ascii());
    let mut out = vec![0; data.len()];
    if let Err(error) = numbers(&text, 0..text.len(), element, &mut out, || usize::MAX) {
        panic!("{error}: {}", text.escape_ascii());
    }
    let same = match element {
        Element::Bool => data.iter().zip(&out).all(|(a, b)| (*a != 0) == (*b != 0)),
        _ => same_numbers(data, &out, element),
    };
    assert!(same, "{} became {}", data.escape_ascii(), text.escape_ascii());
    let wire = [&(bytes.len() as u32).to_le_bytes()[..], bytes, &[0; 4]].concat();
    let mut text = Vec::new();
    let mut writer = ArrayWriter::strings();
    while !writer.step(&wire, &mut text, 1).expect("two strings") {}
    let mut dice = Dice::new(0);
    match read_strings(&text, 0..text.len(), &mut dice) {
        Ok(read) => assert_eq!(read, wire, "{}", text.escape_ascii()),
        Err(error) => panic!("{error}: {}", text.escape_ascii()),
    }
}

fn seeds() -> Vec<Vec<u8>> {
    [
        r#"{"id":"a","inputs":[{"name":"I","shape":[2,2],"datatype":"FP32","data":[[1,2.5],[-3e2,0.1]]}]}"#,
        r#"{"inputs":[{"name":"S","shape":[2],"datatype":"BYTES","data":["a\n\u0041","\ud83d\ude00"]}],"outputs":[]}"#,
        r#"{"text_input":"hello","parameters":{"stream":false,"max_tokens":16,"temperature":0.7,"x":null}}"#,
        "[1,2,3,4,5,6,7,8,255,0]",
        "[[1.5,-2.5],[3e10,4E-3],[NaN,-Inf]]",
        "[-1,-128,127,9223372036854775807,-9223372036854775808,18446744073709551615]",
        "[true,false,[true]]",
        r#"["","a","\"\\\/\b\f\n\r\t","ß日🦀"]"#,
        " { \"a\" : [ ] , \"a\" : { } , \"b\\u0063\" : [ { } , [ [ ] ] ] } ",
    ]
    .iter()
    .zip(1u32..)
    .map(|(text, number)| [&number.to_be_bytes()[..], text.as_bytes()].concat())
    .collect()
}
