//! The JSON of OpenAI's interface: its parser against serde_json, and its writers against its parser.
//!
//! What serde_json accepts is accepted, as the same value; what only the parser accepts is of Python's dialect. What is
//! written is read again as the same value. Strings and floats have one text, whichever writer writes them.

use nereid_openai::json::{Bounds, Json, ParseError, escape_into};
use nereid_openai::python_json::{self, Escapes};

use crate::json::Tree;
use crate::{Dice, Target, split};

pub const TARGET: Target = Target {
    name: "openai_json",
    run,
    runs: 30_000,
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
        "\\/",
        "\\u0041",
        "\\ud83d\\ude00",
        "\\ud800",
        "\\udc00",
        "\u{2028}",
        "\u{7f}",
        "\u{feff}",
        "true",
        "false",
        "null",
        "NaN",
        "Infinity",
        "-Infinity",
        "-0",
        "-0.0",
        "1e15",
        "1e16",
        "9999999999999998.0",
        "1e-4",
        "0.00001",
        "1e308",
        "1e309",
        "5e-324",
        "1E+2",
        "170141183460469231731687303715884105727",
        "170141183460469231731687303715884105728",
        "{\"a\":1,\"b\":2,\"a\":3}",
        "\"a\":",
    ],
    seeds,
};

fn run(data: &[u8]) -> bool {
    let (mut dice, text) = split(data);
    let shown = || text.escape_ascii();
    let read = Json::parse(text, &Bounds::default());
    if let Err(ParseError::Syntax { position, .. }) = &read {
        let characters = String::from_utf8_lossy(text).chars().count();
        assert!(*position <= characters, "an error at character {position} of {characters}: {}", shown());
    }
    in_bounds(text, &read, &mut dice);
    against_serde(text, &read);
    let Ok(value) = read else { return false };
    written(&value);
    true
}

/// Lower bounds refuse more, and change nothing of what they let through.
fn in_bounds(text: &[u8], read: &Result<Json, ParseError>, dice: &mut Dice) {
    let bounds = Bounds { depth_max: dice.below(6), values_max: dice.below(40), names_max: dice.below(20) };
    match Json::parse(text, &bounds) {
        Err(ParseError::TooDeep(max)) => assert_eq!(max, bounds.depth_max),
        Err(ParseError::TooManyValues(max)) => assert_eq!(max, bounds.values_max),
        Err(ParseError::TooManyNames(max)) => assert_eq!(max, bounds.names_max),
        Err(error) => assert_eq!(Err(error), read.clone(), "{}", text.escape_ascii()),
        Ok(value) => match read {
            Ok(other) => assert!(is_same(&value, other), "{value:?}, {other:?}"),
            Err(error) => panic!("{error}, but {value:?} in bounds: {}", text.escape_ascii()),
        },
    }
}

fn against_serde(text: &[u8], ours: &Result<Json, ParseError>) {
    let shown = || text.escape_ascii();
    match (serde_json::from_slice::<Tree>(text), ours) {
        (Ok(theirs), Ok(ours)) => assert!(means(ours, &theirs), "{ours:?} is {theirs:?}: {}", shown()),
        (Ok(theirs), Err(error)) => panic!("{error}, but serde_json finds {theirs:?}: {}", shown()),
        (Err(error), Ok(ours)) => assert!(is_of_dialect(text, &error), "{error}, but {ours:?}: {}", shown()),
        (Err(_), Err(_)) => {}
    }
}

/// Equal but for integers, which serde_json has only in 64 bits and with no negative zero among them, and for members
/// of the same name.
fn means(ours: &Json, theirs: &Tree) -> bool {
    match (ours, theirs) {
        (Json::Null, Tree::Null) => true,
        (Json::Bool(a), Tree::Bool(b)) => a == b,
        (Json::Int(a), Tree::Uint(b)) => *a == i128::from(*b),
        (Json::Int(a), Tree::Int(b)) => *a == i128::from(*b),
        (Json::Int(a), Tree::Double(b)) => *a as f64 == *b,
        (Json::Float(a), Tree::Double(b)) => a.to_bits() == b.to_bits(),
        (Json::Text(a), Tree::String(b)) => a.as_bytes() == b,
        (Json::List(a), Tree::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| means(a, b)),
        (Json::Object(a), Tree::Object(b)) => {
            let b = unique(b);
            let are_same =
                |((name, a), (other, b)): (&(String, Json), (&[u8], &Tree))| name.as_bytes() == other && means(a, b);
            a.len() == b.len() && a.iter().zip(b).all(are_same)
        }
        _ => false,
    }
}

/// As a dictionary of Python: the last value, at the place of the first.
fn unique(members: &[(Vec<u8>, Tree)]) -> Vec<(&[u8], &Tree)> {
    let mut unique: Vec<(&[u8], &Tree)> = Vec::new();
    for (name, value) in members {
        match unique.iter_mut().find(|(other, _)| other == name) {
            Some(member) => member.1 = value,
            None => unique.push((name, value)),
        }
    }
    unique
}

/// True if `text` has what Python takes and serde_json does not: numbers that are words or beyond the range, halves of
/// pairs of surrogates, a byte order mark, and more depth.
fn is_of_dialect(text: &[u8], error: &serde_json::Error) -> bool {
    let error = error.to_string();
    let has = |word: &[u8]| text.windows(word.len()).any(|window| window == word);
    has(b"NaN")
        || has(b"Infinity")
        || error.contains("out of range")
        || text.starts_with("\u{feff}".as_bytes())
        || error.contains("surrogate")
        || error.contains("hex escape")
        || error.contains("recursion limit")
}

/// Equal, and the same bits of floats.
fn is_same(a: &Json, b: &Json) -> bool {
    match (a, b) {
        (Json::Float(a), Json::Float(b)) => a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()),
        (Json::List(a), Json::List(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_same(a, b)),
        (Json::Object(a), Json::Object(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|((name, a), (other, b))| name == other && is_same(a, b))
        }
        (a, b) => a == b,
    }
}

/// What is written of a value is the value.
pub fn written(value: &Json) {
    for ensure_ascii in [false, true] {
        let mut text = String::new();
        value.python(&mut text, ensure_ascii);
        assert!(!ensure_ascii || text.is_ascii(), "{text}");
        assert!(is_same(&reread(&text), value), "{value:?} became {text}");
    }
    let mut text = String::new();
    value.compact(&mut text);
    let mut expected = value.clone();
    without_infinities(&mut expected);
    assert!(is_same(&reread(&text), &expected), "{value:?} became {text}");
    if let Err(error) = serde_json::from_str::<serde::de::IgnoredAny>(&text) {
        assert!(error.to_string().contains("recursion limit"), "{error}: {text}");
    }
    scalars(value);
}

fn reread(text: &str) -> Json {
    Json::parse(text.as_bytes(), &Bounds::default()).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// JSON has no text for them, so that null is written.
fn without_infinities(value: &mut Json) {
    match value {
        Json::Float(number) if !number.is_finite() => *value = Json::Null,
        Json::List(items) => items.iter_mut().for_each(without_infinities),
        Json::Object(members) => members.iter_mut().for_each(|(_, value)| without_infinities(value)),
        _ => {}
    }
}

/// Strings and floats are written in more than one place.
fn scalars(value: &Json) {
    match value {
        Json::Text(text) => texts(text),
        Json::Float(number) if number.is_finite() => {
            let (mut one, mut other) = (String::new(), String::new());
            value.python(&mut one, true);
            python_json::push_float(&mut other, *number);
            assert_eq!(one, other);
        }
        Json::List(items) => items.iter().for_each(scalars),
        Json::Object(members) => members.iter().for_each(|(name, value)| {
            texts(name);
            scalars(value);
        }),
        _ => {}
    }
}

fn texts(text: &str) {
    let value = Json::from(text);
    for (ensure_ascii, escapes) in [(true, Escapes::Ascii), (false, Escapes::Kept)] {
        let (mut one, mut other) = (String::new(), String::new());
        value.python(&mut one, ensure_ascii);
        python_json::push_string(&mut other, text, escapes);
        assert_eq!(one, other);
    }
    let (mut one, mut inside) = (String::new(), b"\"".to_vec());
    value.compact(&mut one);
    escape_into(text, &mut inside);
    inside.push(b'"');
    assert_eq!(one.as_bytes(), inside);
}

fn seeds() -> Vec<Vec<u8>> {
    [
        r#"{"model":"m","messages":[{"role":"user","content":"hi ß\n\u00e9\ud83d\ude00"}],"temperature":0.7,"stop":null}"#,
        "[0,-0,-0.0,1.5,1e15,1e16,123456789012345680.0,0.0001,1e-5,5e-324,1.7976931348623157e308]",
        "[9223372036854775808,-170141183460469231731687303715884105728,340282366920938463463374607431768211456]",
        "[NaN,Infinity,-Infinity,1e999,\"\\ud83d\",\"\\ude00\\ud83d x\"]",
        " { \"a\" : [ ] , \"b\" : { } , \"a\" : [ true , false , null ] } ",
        "{\"a\":1,\"b\":2,\"c\":3,\"d\":4,\"e\":5,\"f\":6,\"g\":7,\"h\":8,\"i\":9,\"j\":0,\"k\":1,\"l\":2,\"m\":3,\"n\":4,\"o\":5,\"p\":6,\"a\":7,\"b\":8}",
        "[[[[[[[[{\"a\":[{\"b\":[[\"deep\"]]}]}]]]]]]]]",
        "\u{feff}\"a\\\"\\\\\\/\\b\\f\\n\\r\\t\u{7f}\u{2028}\"",
    ]
    .iter()
    .zip(1u32..)
    .map(|(text, number)| [&number.to_be_bytes()[..], text.as_bytes()].concat())
    .collect()
}
