//! Python's texts, positions and floats: what `json.loads` and `json.dumps` of Python 3.11 gave.

use super::*;

fn parse(text: &str) -> Result<Json, ParseError> {
    Json::parse(text.as_bytes(), &Bounds::default())
}

fn dumps(text: &str, ensure_ascii: bool) -> String {
    let mut out = String::new();
    parse(text).unwrap().python(&mut out, ensure_ascii);
    out
}

fn compact(text: &str) -> String {
    let mut out = String::new();
    parse(text).unwrap().compact(&mut out);
    out
}

#[test]
fn errors_have_the_texts_and_positions_of_python() {
    let cases = [
        ("", "Expecting value", 0),
        ("  ", "Expecting value", 2),
        ("nul", "Expecting value", 0),
        ("-", "Expecting value", 0),
        ("-Infinit", "Expecting value", 0),
        ("01", "Extra data", 1),
        ("1.", "Extra data", 1),
        ("1e", "Extra data", 1),
        ("1 2", "Extra data", 2),
        ("\u{b}1", "Expecting value", 0),
        ("[", "Expecting value", 1),
        ("[1,", "Expecting value", 3),
        ("[1,]", "Expecting value", 3),
        ("[1 2]", "Expecting ',' delimiter", 3),
        ("{", "Expecting property name enclosed in double quotes", 1),
        ("{1:2}", "Expecting property name enclosed in double quotes", 1),
        ("{\"a\":1,}", "Expecting property name enclosed in double quotes", 7),
        ("{\"a\" 1}", "Expecting ':' delimiter", 5),
        ("{\"a\"", "Expecting ':' delimiter", 4),
        ("{\"a\":}", "Expecting value", 5),
        ("{\"a\":1 \"b\"", "Expecting ',' delimiter", 7),
        ("\"abc", "Unterminated string starting at", 0),
        ("[\"abc\\", "Unterminated string starting at", 1),
        ("\"\\x\"", "Invalid \\escape", 1),
        ("\"\\u12\"", "Invalid \\uXXXX escape", 2),
        ("\"\\u12g4\"", "Invalid \\uXXXX escape", 2),
        ("\"\\u1234", "Invalid \\uXXXX escape", 2),
        ("\"\\ud83d\\u12g4\"", "Invalid \\uXXXX escape", 8),
        ("\"a\nb\"", "Invalid control character at", 2),
        // Characters are counted, not bytes.
        ("\"é😀\u{1}\"", "Invalid control character at", 3),
        ("\u{feff}[é", "Expecting value", 1),
    ];
    for (text, message, position) in cases {
        assert_eq!(parse(text), Err(ParseError::Syntax { message, position }), "{text:?}");
    }
}

#[test]
fn values_are_those_of_python() {
    let cases = [
        ("[null, true, false, NaN, Infinity, -Infinity]", "[null, true, false, NaN, Infinity, -Infinity]"),
        ("[1, -0, -0.0, 1.0, 1E2, 0.1, 1e-4, 1e-5]", "[1, 0, -0.0, 1.0, 100.0, 0.1, 0.0001, 1e-05]"),
        (
            "[1e15, 1e16, 123456789012345678.0, 1e20, 1e-7]",
            "[1000000000000000.0, 1e+16, 1.2345678901234568e+17, 1e+20, 1e-07]",
        ),
        ("[811376019104808.25, 9999999999999998.0]", "[811376019104808.2, 9999999999999998.0]"),
        ("[1.5e300, 5e-324, 1e400, 9007199254740993]", "[1.5e+300, 5e-324, Infinity, 9007199254740993]"),
        // Beyond 128 bits an integer is a float.
        ("170141183460469231731687303715884105727", "170141183460469231731687303715884105727"),
        ("170141183460469231731687303715884105728", "1.7014118346046923e+38"),
        ("{\"a\": 1, \"b\": 2, \"a\": 3}", "{\"a\": 3, \"b\": 2}"),
        ("{}", "{}"),
        ("[]", "[]"),
    ];
    for (text, expected) in cases {
        assert_eq!(dumps(text, true), expected, "{text}");
    }
}

#[test]
fn strings_are_escaped_as_python_does() {
    let text = "\"\\u0000\\u001f\\n\\r\\t\\b\\f\\\"\\\\\\/\u{7f}é\u{2028}\\ud83d\\ude00\"";
    let escaped = "\"\\u0000\\u001f\\n\\r\\t\\b\\f\\\"\\\\/\\u007f\\u00e9\\u2028\\ud83d\\ude00\"";
    let kept = "\"\\u0000\\u001f\\n\\r\\t\\b\\f\\\"\\\\/\u{7f}é\u{2028}😀\"";
    assert_eq!(dumps(text, true), escaped);
    assert_eq!(dumps(text, false), kept);
    assert_eq!(compact(text), kept);
    let mut bytes = Vec::new();
    escape_into(parse(text).unwrap().as_str().unwrap(), &mut bytes);
    assert_eq!(format!("\"{}\"", String::from_utf8(bytes).unwrap()), kept);
}

#[test]
fn halves_of_pairs_become_the_replacement_character() {
    for (text, expected) in [
        ("\"\\ud83d\"", "\u{fffd}"),
        ("\"\\ud83d\\u0041\"", "\u{fffd}A"),
        ("\"\\ude00\\ud83d\"", "\u{fffd}\u{fffd}"),
        ("\"\\ud83d\\ud83d\\ude00\"", "\u{fffd}😀"),
    ] {
        assert_eq!(parse(text), Ok(Json::from(expected)), "{text}");
    }
}

#[test]
fn special_bytes_are_found_wherever_they_are() {
    for len in 0..70 {
        for at in 0..len {
            let mut text = vec![b'a'; len];
            text[at] = b'"';
            let text = String::from_utf8(text).unwrap();
            let mut out = Vec::new();
            escape_into(&text, &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), text.replace('"', "\\\""));
        }
    }
}

#[test]
fn compact_has_no_blanks_and_no_literals_beyond_json() {
    let text = "{\"a\": [1, 2.0, {\"b\": NaN}], \"é\": -Infinity, \"c\": 1e20}";
    assert_eq!(compact(text), "{\"a\":[1,2.0,{\"b\":null}],\"é\":null,\"c\":1e+20}");
    assert!(!parse(text).unwrap().is_finite());
    assert!(parse("[1, [2.5, {\"a\": \"NaN\"}]]").unwrap().is_finite());
}

#[test]
fn bodies_that_are_not_utf8_are_refused() {
    assert_eq!(Json::parse(b"[\"a\xff\"]", &Bounds::default()), Err(ParseError::NotUtf8(3)));
}

#[test]
fn nesting_is_bounded() {
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert!(parse(&nested(200)).is_ok());
    assert_eq!(parse(&nested(201)), Err(ParseError::TooDeep(200)));
    assert_eq!(parse(&"{\"a\":".repeat(1_000_000)), Err(ParseError::TooDeep(200)));
}

#[test]
fn values_and_names_are_bounded() {
    let bounds = Bounds { depth_max: 3, values_max: 4, names_max: 2 };
    let parse = |text: &str| Json::parse(text.as_bytes(), &bounds);
    assert!(parse("[1,2,3]").is_ok());
    assert_eq!(parse("[1,2,3,4]"), Err(ParseError::TooManyValues(4)));
    assert!(parse("{\"a\":1,\"a\":1}").is_ok());
    assert_eq!(parse("{\"a\":1,\"b\":{\"c\":1}}"), Err(ParseError::TooManyNames(2)));
}

#[test]
fn members_with_one_name_are_one_also_among_many() {
    let mut text = String::from("{");
    for round in 0..3 {
        for index in 0..100 {
            text.push_str(&format!("\"n{index}\":{},", round * 1000 + index));
        }
    }
    text.push_str("\"n7\":-1}");
    let json = parse(&text).unwrap();
    let members = json.as_object().unwrap();
    assert_eq!(members.len(), 100);
    for (index, (name, value)) in members.iter().enumerate() {
        assert_eq!(*name, format!("n{index}"));
        assert_eq!(value.as_i64(), Some(if index == 7 { -1 } else { 2000 + index as i64 }));
    }
}

#[test]
fn accessors_tell_kinds_apart() {
    let json = parse("{\"a\": 1, \"b\": 1.0, \"c\": [true], \"d\": \"x\", \"e\": 18446744073709551616}").unwrap();
    assert_eq!(json.get("a").and_then(Json::as_i64), Some(1));
    assert_eq!(json.get("b").and_then(Json::as_i64), None);
    assert_eq!(json.get("b").and_then(Json::as_f64), Some(1.0));
    assert_eq!(json.get("e").and_then(Json::as_i64), None);
    assert_eq!(json.get("c").and_then(Json::as_list).map(|items| items[0].as_bool()), Some(Some(true)));
    assert_eq!(json.get("d").and_then(Json::as_str), Some("x"));
    assert_eq!(json.get("f"), None);
    assert_eq!(Json::Null.get("a"), None);
}
