//! The dialect as a whole: tokens, errors and their offsets, documents, tensors, and a second parser as the judge.

use super::*;
use nereid_memory::{BlockMut, Gather, Pool, Slice};

fn tokens(text: &[u8]) -> Result<Vec<String>, SyntaxError> {
    let mut reader = Reader::new();
    let mut all = Vec::new();
    while let Some(token) = reader.next(text)? {
        all.push(match token {
            Token::Key(name) => format!("key {}", String::from_utf8_lossy(name)),
            Token::String(value) => format!("string {}", String::from_utf8_lossy(value)),
            other => format!("{other:?}"),
        });
    }
    Ok(all)
}

fn document(text: &str) -> Document {
    Document::parse(Slice::copy_of(text.as_bytes())).unwrap()
}

#[test]
fn tokens_come_in_order() {
    let text = br#" {"a" : [1, -2, 3.5, true, false, null, "x\ty", {}, []], "b":{"c":NaN}} "#;
    let expected = [
        "ObjectStart",
        "key a",
        "ArrayStart",
        "Uint(1)",
        "Int(-2)",
        "Double(3.5)",
        "Bool(true)",
        "Bool(false)",
        "Null",
        "string x\ty",
        "ObjectStart",
        "ObjectEnd",
        "ArrayStart",
        "ArrayEnd",
        "ArrayEnd",
        "key b",
        "ObjectStart",
        "key c",
        "Double(NaN)",
        "ObjectEnd",
        "ObjectEnd",
    ];
    assert_eq!(tokens(text).unwrap(), expected);
}

#[test]
fn errors_say_what_and_where() {
    let cases: [(&str, &str); 40] = [
        ("", "The document is empty. at 0"),
        ("  ", "The document is empty. at 2"),
        ("]", "The document is empty. at 0"),
        (":", "The document is empty. at 0"),
        ("{} {}", "The document root must not be followed by other values. at 3"),
        ("1 x", "The document root must not be followed by other values. at 2"),
        ("01", "The document root must not be followed by other values. at 1"),
        ("x", "Invalid value. at 0"),
        ("+1", "Invalid value. at 0"),
        ("nul", "Invalid value. at 3"),
        ("trve", "Invalid value. at 2"),
        ("falsy", "Invalid value. at 4"),
        ("-Nax", "Invalid value. at 3"),
        ("[", "Invalid value. at 1"),
        ("[,1]", "Invalid value. at 1"),
        ("[1,]", "Invalid value. at 3"),
        ("[1,", "Invalid value. at 3"),
        ("[}", "Invalid value. at 1"),
        ("[1 2]", "Missing a comma or ] after an array element. at 3"),
        ("[1", "Missing a comma or ] after an array element. at 2"),
        ("[1}", "Missing a comma or ] after an array element. at 2"),
        ("[01]", "Missing a comma or ] after an array element. at 2"),
        ("{", "Missing a name for object member. at 1"),
        ("{1:2}", "Missing a name for object member. at 1"),
        ("{]", "Missing a name for object member. at 1"),
        (r#"{"a":1,}"#, "Missing a name for object member. at 7"),
        (r#"{"a":1,"#, "Missing a name for object member. at 7"),
        (r#"{"a" 1}"#, "Missing a colon after a name of object member. at 5"),
        (r#"{"a""#, "Missing a colon after a name of object member. at 4"),
        (r#"{"a":}"#, "Invalid value. at 5"),
        (r#"{"a":"#, "Invalid value. at 5"),
        (r#"{"a":1"#, "Missing a comma or } after an object member. at 6"),
        (r#"{"a":1]"#, "Missing a comma or } after an object member. at 6"),
        (r#"{"a":1 "b""#, "Missing a comma or } after an object member. at 7"),
        (r#"["ab"#, "Missing a closing quotation mark in string. at 4"),
        (r#"["\q"]"#, "Invalid escape character in string. at 2"),
        (r#"["\u00g0"]"#, "Incorrect hex digit after \\u escape in string. at 2"),
        (r#"["\ud83d"]"#, "The surrogate pair in string is invalid. at 2"),
        ("[1, 1e400]", "Number too big to be stored in double. at 4"),
        ("[1.]", "Miss fraction part in number. at 3"),
    ];
    for (text, expected) in cases {
        let error = tokens(text.as_bytes()).unwrap_err().to_string();
        assert_eq!(error, format!("failed to parse the request JSON buffer: {expected}"), "{text}");
        let of_document = Document::parse(Slice::copy_of(text.as_bytes())).unwrap_err().to_string();
        assert_eq!(of_document, error);
    }
    assert_eq!(tokens(b"[1ex]").unwrap_err(), SyntaxError { reason: Reason::MissingExponent, offset: 3 });
    assert_eq!(tokens(b"[\"a\x01\"]").unwrap_err(), SyntaxError { reason: Reason::Encoding, offset: 3 });
}

#[test]
fn an_error_stays() {
    let mut reader = Reader::new();
    assert_eq!(reader.next(b"[1 2]"), Ok(Some(Token::ArrayStart)));
    assert_eq!(reader.next(b"[1 2]"), Ok(Some(Token::Uint(1))));
    let error = reader.next(b"[1 2]").unwrap_err();
    assert_eq!(reader.next(b"[1 2]"), Err(error));
}

#[test]
fn a_nul_byte_ends_the_text_and_a_byte_order_mark_is_skipped() {
    assert_eq!(tokens(b"1\0garbage").unwrap(), ["Uint(1)"]);
    assert_eq!(tokens(b"[1\0]").unwrap_err().offset, 2);
    assert_eq!(tokens(b"\xEF\xBB\xBF[]").unwrap(), ["ArrayStart", "ArrayEnd"]);
    assert_eq!(tokens(b"\xEF\xBB\xBF").unwrap_err().offset, 3);
}

#[test]
fn bytes_of_strings_pass_through() {
    let text = b"[\"\xFF\xC0\x80 \x7F\"]";
    let mut reader = Reader::new();
    reader.next(text).unwrap();
    assert_eq!(reader.next(text), Ok(Some(Token::String(b"\xFF\xC0\x80 \x7F"))));
}

#[test]
fn deep_nesting_costs_no_stack() {
    const DEPTH: usize = 30_000;
    let arrays = "[".repeat(DEPTH) + &"]".repeat(DEPTH);
    assert_eq!(document(&arrays).root().len(), 1);
    let objects = "{\"a\":".repeat(DEPTH) + "1" + &"}".repeat(DEPTH);
    let deep = document(&objects);
    let mut value = deep.root();
    for _ in 0..DEPTH {
        value = value.member("a").unwrap();
    }
    assert_eq!(value.as_u64(), Ok(1));
    assert_eq!(Reader::new().skip_value(arrays.as_bytes()), Ok(0..2 * DEPTH));
    let mixed = "[{\"a\":".repeat(1000) + "1" + &"}]".repeat(999) + "]}";
    assert_eq!(tokens(mixed.as_bytes()).unwrap_err().reason, Reason::MissingCommaOrBrace);
}

/// However few its tokens are: blanks, strings and numbers take time by their length.
#[test]
fn a_step_reads_a_bounded_number_of_bytes() {
    let steps = |text: &str| {
        let mut builder = Builder::new(Slice::copy_of(text.as_bytes()), |_, key| key == b"data").unwrap();
        let mut steps = 1;
        while !builder.step(usize::MAX).unwrap() {
            steps += 1;
        }
        (steps, builder.finish())
    };
    let long = 10 * STEP_BYTES;
    let (blank, letters, escapes) = (" ".repeat(long), "s".repeat(long), r"\u0041".repeat(long / 6));
    for text in [
        format!("[{blank}1]"),
        format!("[1{blank},2]"),
        format!(r#"["{letters}"]"#),
        format!(r#"{{"{letters}":1}}"#),
        format!(r#"["{escapes}"]"#),
        format!(r#"{{"data":[{}1]}}"#, "1,".repeat(long / 2)),
        format!(r#"{{"data":["{letters}"]}}"#),
    ] {
        let (steps, document) = steps(&text);
        assert!((5..=12).contains(&steps), "{steps} steps for {}", &text[..40]);
        assert_eq!(document.root().len(), if text.starts_with("[1") { 2 } else { 1 });
    }
    let (_, document) = steps(&format!(r#"["{escapes}"]"#));
    assert_eq!(document.root().index(0).unwrap().as_str().unwrap().len(), long / 6);
    assert_eq!(steps(&format!(r#"{{"a":"{letters}","b":"c"}}"#)).1.text_bytes(), long + 3);
}

/// A string longer than a step, cut within an escape too, means the same as in one go.
#[test]
fn long_strings_of_a_tensor_are_read_in_pieces() {
    let unit = r"a\n\u00e9\ud83d\ude00é";
    for shift in 0..unit.len() {
        let string = format!("{}{}", "-".repeat(shift), unit.repeat(3 * STEP_BYTES / unit.len()));
        let text = format!(r#"["{string}","","b"]"#);
        let mut reader = StringsReader::new(0..text.len());
        let mut steps = 0;
        while !reader.measure(text.as_bytes(), 1000).unwrap() {
            steps += 1;
        }
        let mut out = vec![0; reader.byte_size()];
        while !reader.fill(text.as_bytes(), &mut out, 1000).unwrap() {
            steps += 1;
        }
        assert!(steps >= 4, "{steps}");
        let decoded = string.replace(r"\n", "\n").replace(r"\u00e9", "é").replace(r"\ud83d\ude00", "😀");
        let expected: Vec<u8> = [decoded.as_bytes(), b"", b"b"]
            .into_iter()
            .flat_map(|bytes| [&(bytes.len() as u32).to_le_bytes()[..], bytes].concat())
            .collect();
        assert!(out == expected, "shifted by {shift}");
        assert_eq!(reader.count(), 3);
    }
}

#[test]
fn values_are_skipped_whole() {
    let text = br#"{"a":[1,{"b":[]},"]"],"c":2}"#;
    let mut reader = Reader::new();
    reader.next(text).unwrap();
    reader.next(text).unwrap();
    assert_eq!(reader.skip_value(text), Ok(5..21));
    assert_eq!(reader.next(text), Ok(Some(Token::Key(b"c"))));
    assert_eq!(reader.skip_value(text), Ok(26..27));
    assert_eq!(reader.next(text), Ok(Some(Token::ObjectEnd)));
    assert_eq!(reader.next(text), Ok(None));
    assert!(Reader::new().skip_value(b"[1").is_err());
}

#[test]
fn accessors_complain_as_triton_does() {
    let doc =
        document(r#"{"s":"x","n":-1,"d":1.0,"big":9223372036854775808,"a":[1,"\u0041"],"o":{},"b":true,"z":null}"#);
    let root = doc.root();
    let member = |name| root.member(name).unwrap();
    let text = |error: AccessError| error.to_string();
    assert_eq!(text(member("n").as_str().unwrap_err()), "attempt to access JSON non-string as string");
    assert_eq!(text(member("s").as_bool().unwrap_err()), "attempt to access JSON non-boolean as boolean");
    assert_eq!(text(member("s").as_f64().unwrap_err()), "attempt to access JSON non-number as double");
    assert_eq!(text(member("s").elements().unwrap_err()), "attempt to access JSON non-array as array");
    assert_eq!(text(member("s").as_array().unwrap_err()), "attempt to access JSON non-array as array");
    assert_eq!(text(member("s").as_object().unwrap_err()), "attempt to access JSON non-object as object");
    assert_eq!(text(member("a").members().unwrap_err()), "attempt to get members for non-object");
    let unsigned = "attempt to access JSON non-unsigned-integer as unsigned-integer";
    let signed = "attempt to access JSON non-signed-integer as signed-integer";
    for name in ["n", "d", "s", "z"] {
        assert_eq!(text(member(name).as_u64().unwrap_err()), unsigned);
    }
    for name in ["d", "big", "b"] {
        assert_eq!(text(member(name).as_i64().unwrap_err()), signed);
    }
    assert_eq!(text(root.member("q").unwrap_err()), "attempt to access non-existing object member 'q'");
    assert_eq!(text(member("a").member("q").unwrap_err()), "attempt to access non-existing object member 'q'");
    assert_eq!(text(member("a").index(2).unwrap_err()), "attempt to access non-existing array index '2'");
    assert_eq!(member("a").index(1).unwrap().as_str().unwrap(), &b"A"[..]);
    assert_eq!((member("n").as_i64(), member("n").as_f64()), (Ok(-1), Ok(-1.0)));
    assert_eq!((member("big").as_u64(), member("big").as_f64()), (Ok(1 << 63), Ok(9_223_372_036_854_775_808.0)));
    assert_eq!((member("b").as_bool(), member("z").is_null(), member("o").is_empty()), (Ok(true), true, true));
    assert_eq!((root.len(), member("a").len()), (8, 2));
    assert_eq!(&doc.input()[member("d").span()], b"1.0");
}

#[test]
fn the_first_of_equal_names_wins() {
    for count in [3, 40] {
        let mut text = String::from(r#"{"a":1,"\u0061":2,"b":3"#);
        (0..count).for_each(|i| text += &format!(r#","x{}":{i}"#, i % 2));
        let doc = document(&(text + "}"));
        assert_eq!(doc.root().member("a").unwrap().as_u64(), Ok(1));
        let own: Vec<_> = doc.root().members().unwrap().map(|(_, value)| value.as_u64().unwrap()).collect();
        assert_eq!(own[..3], [1, 2, 3]);
        let first = doc.root().members_with_first_values().unwrap();
        let first: Vec<_> = first.iter().map(|(name, value)| (name.as_ref(), value.as_u64().unwrap())).collect();
        assert_eq!(first[..5], [(&b"a"[..], 1), (b"a", 1), (b"b", 3), (b"x0", 0), (b"x1", 1)]);
        assert!(first[5..].iter().all(|(name, value)| *value == u64::from(*name == b"x1")));
        assert_eq!(first.len(), 3 + count);
    }
}

#[test]
fn an_escaped_key_is_found_by_its_meaning() {
    let doc = document(r#"{"d\u0061ta":1,"e":2}"#);
    assert_eq!(doc.root().member("data").unwrap().as_u64(), Ok(1));
}

#[test]
fn named_arrays_become_one_node() {
    let data = format!("[{}[1,[2]],\"x\",{{\"data\":[1]}}]", "1.5, ".repeat(10_000));
    let text = format!(r#"{{"inputs":[{{"name":"i","d\u0061ta":{data},"shape":[2]}}],"data":[3],"n":{{"data":7}}}}"#);
    let raw: RawMembers = |depth, key| depth == 3 && key == b"data";
    for steps in [1, 7, 1000, usize::MAX] {
        let mut builder = Builder::new(Slice::copy_of(text.as_bytes()), raw).unwrap();
        let mut calls = 0;
        while !builder.step(steps).unwrap() {
            calls += 1;
        }
        assert!(steps == usize::MAX || calls >= 10_000 / steps);
        let doc = builder.finish();
        let input = doc.root().member("inputs").unwrap().index(0).unwrap();
        let value = input.member("data").unwrap();
        assert!(value.is_raw());
        assert_eq!(value.len(), 10_003);
        assert_eq!(&doc.input()[value.span()], data.as_bytes());
        assert_eq!(value.elements().unwrap().count(), 0);
        assert_eq!(input.member("shape").unwrap().index(0).unwrap().as_u64(), Ok(2));
        assert_eq!(doc.root().member("data").unwrap().index(0).unwrap().as_u64(), Ok(3));
    }
    for (data, len) in [("[]", 0), ("[[1,2],[3]]", 2), ("[1,[2,3],{\"a\":[4]},5]", 4), ("[ -1 , 0.5 ]", 2)] {
        let text = format!("{{\"x\":{data},\"y\":1}}");
        let mut builder = Builder::new(Slice::copy_of(text.as_bytes()), |_, key| key == b"x").unwrap();
        while !builder.step(1).unwrap() {}
        let x = builder.document().root().member("x").unwrap();
        assert_eq!((x.len(), x.span()), (len, 5..5 + data.len()));
        builder.restart(Slice::from_static(b"[1,2]"), |_, _| false).unwrap();
        assert!(builder.step(100).unwrap());
        assert_eq!(builder.document().root().index(1).unwrap().as_u64(), Ok(2));
    }
    for (data, offset) in [("[1 2]", 8), ("[1,]", 8), ("[1.]", 8), ("[01]", 7), ("[-]", 7), ("[1", 7)] {
        let text = format!("{{\"x\":{data}");
        let mut builder = Builder::new(Slice::copy_of(text.as_bytes()), |_, _| true).unwrap();
        let Err(DocumentError::Syntax(error)) = builder.step(100) else { panic!("{data}") };
        assert_eq!((error.offset, builder.step(100)), (offset, Err(error.into())), "{data}");
        assert_eq!(tokens(text.as_bytes()), Err(error));
    }
    let mut builder = Builder::new(Slice::from_static(br#"{"a":[1,[2}"#), |_, _| true).unwrap();
    let error = DocumentError::Syntax(SyntaxError { reason: Reason::MissingCommaOrBracket, offset: 10 });
    assert_eq!(builder.step(100), Err(error));
}

fn numbers(element: Element, text: &str, len: usize) -> Result<Vec<u8>, TensorError> {
    let read = |steps| {
        let (mut out, mut reader) = (vec![0; len], NumbersReader::new(element, 0..text.len()));
        loop {
            match reader.step(text.as_bytes(), &mut out, steps) {
                Ok(false) => {}
                other => break (other, out),
            }
        }
    };
    // Without a limit a step still ends where it has read its bytes.
    let (expected, whole) = read(usize::MAX);
    for steps in [1, 2, 5] {
        assert_eq!(read(steps), (expected.clone(), whole.clone()), "{}", text.get(..80).unwrap_or(text));
    }
    assert_ne!(expected, Ok(false));
    expected.map(|_| whole)
}

#[test]
fn arrays_become_tensors() {
    let cases: [(Element, &str, &[u8]); 13] = [
        (Element::Bool, "[true, [false], true]", &[1, 0, 1]),
        (Element::U8, "[0,255,7,44]", &[0, 255, 7, 44]),
        (Element::I8, "[ -1 , 127, -128, 0 ]", &[255, 127, 128, 0]),
        (Element::U16, "[[1],[65535]]", &[1, 0, 255, 255]),
        (Element::I16, "[-2]", &[254, 255]),
        (Element::U32, "[4294967295]", &[255; 4]),
        (Element::I32, "[[[-1]]]", &[255; 4]),
        (Element::U64, "[18446744073709551615]", &[255; 8]),
        (Element::I64, "[-9223372036854775808]", &[0, 0, 0, 0, 0, 0, 0, 128]),
        (Element::F32, "[1e39]", &[0, 0, 0x80, 0x7F]),
        (Element::F32, "[-Inf]", &[0, 0, 0x80, 0xFF]),
        (Element::F64, "[1, 2.5]", &[0, 0, 0, 0, 0, 0, 0xF0, 0x3F, 0, 0, 0, 0, 0, 0, 4, 0x40]),
        (Element::I32, "[[],[ ]]", &[]),
    ];
    for (element, text, bytes) in cases {
        assert_eq!(numbers(element, text, bytes.len()).unwrap(), bytes, "{text}");
    }
    let nan = numbers(Element::F32, "[NaN]", 4).unwrap();
    assert!(f32::from_le_bytes(nan.try_into().unwrap()).is_nan());
}

#[test]
fn arrays_that_do_not_fit_say_why() {
    let text = |element, text: &str, len| numbers(element, text, len).unwrap_err().to_string();
    assert_eq!(text(Element::I32, "[1,2]", 4), "Shape does not match true shape of 'data' field");
    assert_eq!(text(Element::I32, "[1,\"x\"]", 4), "Shape does not match true shape of 'data' field");
    assert_eq!(text(Element::I32, "[1]", 8), "Failed to parse 'data' field: shape does not match true shape");
    assert_eq!(text(Element::I32, "[]", 8), "Failed to parse 'data' field: shape does not match true shape");
    for wrong in ["[\"1\"]", "[null]", "[{}]", "[true]"] {
        assert_eq!(text(Element::F32, wrong, 4), "attempt to access JSON non-number as double");
    }
    for wrong in ["[1.0]", "[1e2]", "[true]", "[9223372036854775808]"] {
        assert_eq!(text(Element::I64, wrong, 8), "attempt to access JSON non-signed-integer as signed-integer");
    }
    for wrong in ["[1.0]", "[-1]", "[null]", "[18446744073709551616]"] {
        assert_eq!(text(Element::U8, wrong, 1), "attempt to access JSON non-unsigned-integer as unsigned-integer");
    }
    for (element, number, datatype) in [
        (Element::U8, "256", "UINT8"),
        (Element::U16, "65536", "UINT16"),
        (Element::U32, "4294967296", "UINT32"),
        (Element::U32, "18446744073709551615", "UINT32"),
        (Element::I8, "128", "INT8"),
        (Element::I8, "-129", "INT8"),
        (Element::I16, "32768", "INT16"),
        (Element::I16, "-32769", "INT16"),
        (Element::I32, "2147483648", "INT32"),
        (Element::I32, "-2147483649", "INT32"),
        (Element::I32, "-9223372036854775808", "INT32"),
    ] {
        let expected = format!("{datatype} data value {number} is out of range");
        assert_eq!(text(element, &format!("[{number}]"), 4), expected);
    }
    for wrong in ["[1]", "[\"true\"]", "[null]"] {
        assert_eq!(text(Element::Bool, wrong, 1), "attempt to access JSON non-boolean as boolean");
    }
    assert_eq!(text(Element::U8, "7", 1), "attempt to access JSON non-array as array");
    let nested = |levels| "[".repeat(levels) + "1" + &"]".repeat(levels);
    assert_eq!(numbers(Element::U8, &nested(99), 1).unwrap(), [1]);
    assert_eq!(text(Element::U8, &nested(100), 1), "JSON nesting depth exceeds maximum allowed limit (100)");
    assert_eq!(text(Element::U8, &nested(5000), 1), "JSON nesting depth exceeds maximum allowed limit (100)");
    for unchecked in ["[1", "[", "", "[x]"] {
        assert!(matches!(numbers(Element::U8, unchecked, 1), Err(TensorError::Syntax(_))), "{unchecked}");
    }
}

#[test]
fn strings_become_length_prefixed_bytes() {
    let text = "[\"a\",[\"\",\"\\u20ac\\n\"], \"x\\\"y\" ]";
    let expected = b"\x01\0\0\0a\0\0\0\0\x04\0\0\0\xe2\x82\xac\n\x03\0\0\0x\"y";
    for steps in [1, 2, 3, usize::MAX] {
        let mut reader = StringsReader::new(0..text.len());
        while !reader.measure(text.as_bytes(), steps).unwrap() {}
        assert_eq!((reader.byte_size(), reader.count()), (expected.len(), 4));
        let mut out = vec![0; reader.byte_size()];
        while !reader.fill(text.as_bytes(), &mut out, steps).unwrap() {}
        assert_eq!(out, expected);
    }
    let mut short = StringsReader::new(0..text.len());
    assert_eq!(short.fill(text.as_bytes(), &mut [0; 10], usize::MAX), Err(TensorError::Excess));
    let mut long = StringsReader::new(0..text.len());
    assert_eq!(long.fill(text.as_bytes(), &mut [0; 100], usize::MAX), Err(TensorError::Shortage));
    for (text, error) in [
        ("[1]", TensorError::Access(AccessError::NotString)),
        ("[null]", TensorError::Access(AccessError::NotString)),
        (&("[".repeat(100) + "\"x\"" + &"]".repeat(100)), TensorError::TooDeep),
    ] {
        assert_eq!(StringsReader::new(0..text.len()).measure(text.as_bytes(), usize::MAX), Err(error));
    }
    assert!(StringsReader::new(0..3).measure(b"[\"x", usize::MAX).is_err());
}

#[test]
fn the_writer_writes_what_triton_writes() {
    let mut writer = Writer::new(Vec::new());
    writer.begin_object();
    writer.key("a\"b");
    writer.begin_array();
    writer.uint(u64::MAX);
    writer.int(i64::MIN);
    writer.double(1.0);
    writer.bool(false);
    writer.null();
    writer.begin_object();
    writer.end_object();
    writer.string(b"\x00\x1f\x08\x0c\n\r\t\\\"/\x7f\xff\xc3\xa9");
    writer.raw_value().put(b"[1]");
    writer.end_array();
    writer.key("c");
    writer.bool(true);
    writer.end_object();
    let expected = b"{\"a\\\"b\":[18446744073709551615,-9223372036854775808,1.0,false,null,{},\
        \"\\u0000\\u001F\\b\\f\\n\\r\\t\\\\\\\"/\x7f\xff\xc3\xa9\",[1]],\"c\":true}";
    assert_eq!(writer.into_inner(), expected);
}

fn array(mut writer: ArrayWriter, data: &[u8], steps: usize) -> Result<String, MalformedTensor> {
    let pool = Pool::new(1 << 20);
    let mut gather = Gather::new();
    let mut sink = GatherSink { gather: &mut gather, pool: &pool };
    while !writer.step(data, &mut sink, steps)? {}
    assert_eq!(writer.step(data, &mut sink, steps), Ok(true));
    Ok(String::from_utf8(gather.to_vec()).unwrap())
}

#[test]
fn tensors_become_arrays() {
    let cases: [(Element, &[u8], &str); 12] = [
        (Element::Bool, &[0, 1, 2], "[false,true,true]"),
        (Element::U8, &[0, 255], "[0,255]"),
        (Element::I8, &[127, 128], "[127,-128]"),
        (Element::U16, &[255, 255], "[65535]"),
        (Element::I16, &[254, 255], "[-2]"),
        (Element::U32, &[255; 4], "[4294967295]"),
        (Element::I32, &[0, 0, 0, 128], "[-2147483648]"),
        (Element::U64, &[255; 8], "[18446744073709551615]"),
        (Element::I64, &[255; 8], "[-1]"),
        (Element::F32, &0.1f32.to_le_bytes(), "[0.10000000149011612]"),
        (Element::F64, &3.5e30f64.to_le_bytes(), "[3.5e30]"),
        (Element::I64, &[], "[]"),
    ];
    for (element, data, expected) in cases {
        for steps in [1, usize::MAX] {
            assert_eq!(array(ArrayWriter::numbers(element), data, steps).unwrap(), expected);
        }
    }
    for steps in [1, 2, usize::MAX] {
        let strings = array(ArrayWriter::strings(), b"\x01\0\0\0\"\0\0\0\0\x02\0\0\0ab", steps);
        assert_eq!(strings.unwrap(), r#"["\"","","ab"]"#);
    }
    assert_eq!(array(ArrayWriter::strings(), b"", 9).unwrap(), "[]");
    let incomplete = |at, len| Err(MalformedTensor::IncompleteString { at, len });
    assert_eq!(array(ArrayWriter::strings(), b"\x01\0\0", 9), incomplete(0, 3));
    assert_eq!(array(ArrayWriter::strings(), b"\0\0\0\0\xff\xff\xff\xffab", 9), incomplete(4, 10));
    let long = "é\n".repeat(100_000);
    let tensor = [&(long.len() as u32).to_le_bytes(), long.as_bytes(), b"\x01\0\0\0x"].concat();
    let written = array(ArrayWriter::strings(), &tensor, usize::MAX).unwrap();
    assert_eq!(written, format!(r#"["{}","x"]"#, r"é\n".repeat(100_000)));
    let mut portion = Vec::new();
    assert_eq!(ArrayWriter::strings().step(&tensor, &mut portion, usize::MAX), Ok(false));
    assert!(portion.len() < 100_000, "a step writes a bounded part of a string: {}", portion.len());
    // By the shape: more or less than there is.
    assert_eq!(array(ArrayWriter::strings().of(1).bare(), b"\x01\0\0\0a\x01\0\0\0b", 9).unwrap(), r#""a""#);
    assert_eq!(array(ArrayWriter::strings().of(2), b"\x01\0\0\0a", 9), incomplete(5, 5));
    assert_eq!(array(ArrayWriter::numbers(Element::U8).of(1).bare(), &[7], 9).unwrap(), "7");
    let wrong = Err(MalformedTensor::WrongSize { len: 2, count: 3, element_size: 1 });
    assert_eq!(array(ArrayWriter::numbers(Element::U8).of(3), &[7, 8], 9), wrong);
    let partial = Err(MalformedTensor::PartialElement { len: 5, element_size: 4 });
    assert_eq!(array(ArrayWriter::numbers(Element::F32), &[0; 5], 9), partial);
}

#[test]
fn tensors_survive_the_way_there_and_back() {
    let values: Vec<f32> = (0..5000u32).map(|i| f32::from_bits(i.wrapping_mul(2_654_435_761))).collect();
    let data: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let text = array(ArrayWriter::numbers(Element::F32), &data, 100).unwrap();
    let back = numbers(Element::F32, &text, data.len()).unwrap();
    for (value, back) in values.iter().zip(back.chunks_exact(4)) {
        let back = f32::from_le_bytes(back.try_into().unwrap());
        assert!(value.to_bits() == back.to_bits() || value.is_nan() && back.is_nan());
    }
}

/// A small generator of pseudo-random numbers; tests repeat exactly.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    fn value(&mut self, depth: u32) -> serde_json::Value {
        use serde_json::{Map, Number, Value};
        match self.below(if depth == 0 { 6 } else { 8 }) {
            0 => Value::Null,
            1 => Value::Bool(self.below(2) == 0),
            2 => Value::Number(Number::from(self.0)),
            3 => Value::Number(Number::from(-((self.0 >> 12) as i64))),
            // The judge rounds doubles of many digits a little off, so these have few.
            4 => Number::from_f64((self.0 >> 24) as f64 / 8.0).map_or(Value::Null, Value::Number),
            5 => Value::String(self.text()),
            6 => (0..self.below(6)).map(|_| self.value(depth - 1)).collect(),
            _ => Value::Object((0..self.below(6)).map(|_| (self.text(), self.value(depth - 1))).collect::<Map<_, _>>()),
        }
    }

    fn text(&mut self) -> String {
        let choices = ['a', 'Z', '"', '\\', '/', '\n', '\u{1}', 'é', '€', '😀', ' ', '\u{7f}'];
        (0..self.below(12)).map(|_| choices[self.below(choices.len() as u64) as usize]).collect()
    }
}

fn to_serde(value: Value<'_>) -> serde_json::Value {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    match value.kind() {
        Kind::Null => serde_json::Value::Null,
        Kind::Bool => value.as_bool().unwrap().into(),
        Kind::Uint => value.as_u64().unwrap().into(),
        Kind::Int => value.as_i64().unwrap().into(),
        Kind::Double => value.as_f64().unwrap().into(),
        Kind::String => text(&value.as_str().unwrap()).into(),
        Kind::Array => value.elements().unwrap().map(to_serde).collect(),
        Kind::Object => value
            .members()
            .unwrap()
            .map(|(name, value)| (text(&name), to_serde(value)))
            .collect::<serde_json::Map<_, _>>()
            .into(),
    }
}

fn write(writer: &mut Writer<Vec<u8>>, value: &serde_json::Value) {
    use serde_json::Value;
    match value {
        Value::Null => writer.null(),
        Value::Bool(value) => writer.bool(*value),
        Value::Number(number) if number.is_u64() => writer.uint(number.as_u64().unwrap()),
        Value::Number(number) if number.is_i64() => writer.int(number.as_i64().unwrap()),
        Value::Number(number) => writer.double(number.as_f64().unwrap()),
        Value::String(text) => writer.string(text),
        Value::Array(elements) => {
            writer.begin_array();
            elements.iter().for_each(|element| write(writer, element));
            writer.end_array();
        }
        Value::Object(members) => {
            writer.begin_object();
            for (name, value) in members {
                writer.key(name);
                write(writer, value);
            }
            writer.end_object();
        }
    }
}

#[test]
fn another_parser_agrees_about_random_documents() {
    let mut random = Random(0x1234_5678_9ABC_DEF1);
    for round in 0..3000 {
        let value = random.value(4);
        let text = if round % 2 == 0 { value.to_string() } else { serde_json::to_string_pretty(&value).unwrap() };
        assert_eq!(to_serde(document(&text).root()), value, "{text}");
        let mut writer = Writer::new(Vec::new());
        write(&mut writer, &value);
        let written = writer.into_inner();
        assert_eq!(serde_json::from_slice::<serde_json::Value>(&written).unwrap(), value);
        // Cut anywhere, a document whose root is a container is no document.
        if value.is_object() || value.is_array() {
            let cut = random.below(written.len() as u64) as usize;
            assert!(tokens(&written[..cut]).is_err());
        }
    }
}

#[test]
fn mutated_documents_never_panic_and_errors_lie_inside() {
    let seed = br#"{"id":"x\u00e9","inputs":[{"name":"a","shape":[1,2],"data":[1.5e3,-2,[NaN,true]]}],"p":{"q":null}}"#;
    let alphabet = b"{}[]:,\"\\u01e-+.NaIntrfl \n\0\xff";
    let mut random = Random(0xABCD_EF12_3456_789B);
    for _ in 0..10_000 {
        let mut text = seed.to_vec();
        for _ in 0..=random.below(4) {
            let at = random.below(text.len() as u64) as usize;
            let byte = alphabet[random.below(alphabet.len() as u64) as usize];
            match random.below(3) {
                0 => text[at] = byte,
                1 => text.insert(at, byte),
                _ => drop(text.remove(at)),
            }
        }
        match tokens(&text) {
            Err(error) => assert!(error.offset <= text.len()),
            Ok(_) => assert!(Document::parse(Slice::copy_of(&text)).is_ok()),
        }
        let mut out = [0; 64];
        let _ = NumbersReader::new(Element::F32, 0..text.len()).step(&text, &mut out, usize::MAX);
        let _ = StringsReader::new(40..text.len()).measure(&text, usize::MAX);
        // Where serde_json reads a document, so must we, unless it holds what only one of the dialects has.
        if serde_json::from_slice::<serde_json::Value>(&text).is_ok() {
            assert!(tokens(&text).is_ok(), "{}", String::from_utf8_lossy(&text));
        }
    }
}

/// What is read of `data` while the document passes, in steps; and the document.
fn read_passing(text: &str, element: Element, len: usize, steps: usize) -> (Option<Vec<u8>>, Document) {
    let mut builder = Builder::new(Slice::copy_of(text.as_bytes()), |depth, key| depth == 3 && key == b"data").unwrap();
    while !builder.step_to_array(steps).unwrap() {
        if builder.opened("shape").is_some() {
            assert!(builder.opened("data").is_some_and(|data| data.is_raw()) && builder.opened("none").is_none());
            builder.read_into(element, BlockMut::unpooled(len));
        }
    }
    let mut document = builder.finish();
    let data = document.root().find("inputs").and_then(|inputs| inputs.index(0).ok()?.find("data"));
    let place = data.map(Value::value_index);
    let read = place.and_then(|place| document.take_read(place)).map(|block| block.to_vec());
    (read, document)
}

#[test]
fn arrays_that_were_read_are_taken_once_in_any_order() {
    let inputs: Vec<String> = (0..300).map(|at| format!("{{\"data\":[{at}]}}")).collect();
    let text = format!("{{\"inputs\":[{}]}}", inputs.join(","));
    let mut builder = Builder::new(Slice::copy_of(text.as_bytes()), |depth, key| depth == 3 && key == b"data").unwrap();
    while !builder.step_to_array(100).unwrap() {
        if builder.opened("data").is_some() {
            builder.read_into(Element::I32, BlockMut::unpooled(4));
        }
    }
    let mut document = builder.finish();
    let elements = document.root().member("inputs").and_then(Value::elements).unwrap();
    let places: Vec<_> = elements.map(|input| input.find("data").unwrap().value_index()).collect();
    let (even, odd): (Vec<_>, Vec<_>) = (0..300).partition(|at| at % 2 == 0);
    for at in even.into_iter().chain(odd.into_iter().rev()) {
        let read = document.take_read(places[at]).map(|block| block.to_vec());
        assert_eq!(read, Some((at as i32).to_le_bytes().to_vec()));
        assert!(document.take_read(places[at]).is_none());
    }
}

#[test]
fn numbers_are_read_as_they_pass() {
    // Elements, and whether they are four numbers of 32 bits that pass.
    let table = [
        ("[1,2,3,4]", true),
        (" [ [ 1 , -2 ] , [ 3 , 4 ] ] ", true),
        ("[[[1]],[],[2,3,4]]", true),
        ("[1,2,3]", false),
        ("[1,2,3,4,5]", false),
        ("[1,2,3,4,\"x\"]", false),
        ("[1,2,3,{},4]", false),
        ("[1,2,3,4,true]", false),
        ("[1,2,3.5,4]", false),
        ("[]", false),
        ("{}", false),
        ("5", false),
    ];
    for (data, is_read) in table {
        let text = format!("{{\"inputs\":[{{\"shape\":[4],\"data\":{data},\"name\":\"I\"}},{{\"data\":[7]}}]}}");
        let plain = Document::parse(Slice::copy_of(text.as_bytes())).unwrap();
        let inputs = plain.root().member("inputs").unwrap();
        for steps in [1, 2, 3, 100] {
            let (read, document) = read_passing(&text, Element::I32, 16, steps);
            assert_eq!(read.is_some(), is_read, "{data}");
            let found = document.root().member("inputs").unwrap();
            for at in 0..2 {
                let (found, plain) = (found.index(at).unwrap(), inputs.index(at).unwrap());
                let (found, plain) = (found.find("data").unwrap(), plain.find("data").unwrap());
                assert_eq!(
                    (found.kind(), found.len(), found.span()),
                    (plain.kind(), plain.len(), plain.span()),
                    "{data}"
                );
            }
            if let Some(read) = read {
                let span = found.index(0).unwrap().find("data").unwrap().span();
                let mut expected = vec![0; 16];
                assert_eq!(NumbersReader::new(Element::I32, span).step(text.as_bytes(), &mut expected, 99), Ok(true));
                assert_eq!(read, expected);
            }
        }
    }
    let floats = "{\"inputs\":[{\"shape\":[3],\"data\":[1.5e3,-0.1,12345678901234567890123]}]}";
    let (read, _) = read_passing(floats, Element::F64, 24, 100);
    let bits = [1.5e3, -0.1, 1.234_567_890_123_456_8e22].map(f64::to_le_bytes).concat();
    assert_eq!(read, Some(bits));
    let late = "{\"inputs\":[{\"data\":[1,2],\"shape\":[2]}]}";
    assert_eq!(read_passing(late, Element::U8, 2, 100).0, None, "nobody knows what they are");
}

#[test]
fn a_cursor_reads_what_is_plain() {
    let mut cursor = Cursor::new(b" { \"a\" : 12 , \"b\":[true,false], \"c\":\"x\", \"d\":[[1.5,-2],[3e1,0.25]] } \n");
    let mut read = String::new();
    let mut floats = [0; 16];
    cursor.expect(b'{').unwrap();
    let mut is_first = true;
    while let Some(key) = cursor.key(std::mem::take(&mut is_first)).unwrap() {
        match key {
            b"a" => read += &format!("{} ", cursor.uint().unwrap()),
            b"b" => {
                cursor.expect(b'[').unwrap();
                let mut count = 0;
                while cursor.element(count == 0).unwrap() {
                    count += 1;
                    read += &format!("{} ", cursor.bool().unwrap());
                }
            }
            b"c" => read += &String::from_utf8_lossy(cursor.string().unwrap()),
            _ => cursor.numbers(Element::F32, &mut floats).unwrap(),
        }
    }
    assert!(cursor.is_at_end());
    assert_eq!(read, "12 true false x");
    assert_eq!(floats, [1.5f32, -2.0, 30.0, 0.25].map(f32::to_le_bytes).concat()[..]);
    for text in ["", "01", "-1", "1.0", "1e3", "1234567890123456789", "x"] {
        assert_eq!(Cursor::new(text.as_bytes()).uint(), None, "{text}");
    }
    for text in ["\"", "\"a", "\"a\\n\"", "\"a\nb\"", "a\""] {
        assert_eq!(Cursor::new(text.as_bytes()).string(), None, "{text}");
    }
    for text in
        ["[1,2", "[1]", "[1,2,3]", "[1,,2]", "[1,2,]", "[,1,2]", "[1 2]", "1,2", "[[1],2]]", "[1,[]2]", "[1,NaN]"]
    {
        let taken = Cursor::new(text.as_bytes()).numbers(Element::U8, &mut [0; 2]);
        assert_eq!(taken.is_some(), text == "[[1],2]]", "{text}: what follows is not looked at");
    }
    assert_eq!(Cursor::new(b",]").element(false), None, "an element stands behind a comma");
}

/// Members that are looked for together are those that are looked for one by one.
#[test]
fn members_are_found_together() {
    let names = ["name", "data", "shape", "none"];
    for text in [
        r#"{"name":"a","shape":[1,[2]],"data":{"name":"inner"},"shape":2,"other":0}"#,
        r#"{"n\u0061me":"escaped","name":"plain","dat":1,"datas":2}"#,
        r#"{}"#,
        r#"[{"name":1}]"#,
        r#""name""#,
    ] {
        let document = Document::parse(Slice::copy_of(text.as_bytes())).unwrap();
        let root = document.root();
        let together = root.find_each(names).map(|value| value.map(Value::span));
        assert_eq!(together, names.map(|name| root.find(name).map(Value::span)), "{text}");
    }
}
