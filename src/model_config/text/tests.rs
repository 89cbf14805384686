//! Tests of the text format: valid and invalid texts, and the positions of errors.

use std::collections::HashMap;

use prost_reflect::{FieldDescriptor, Kind, MapKey, Value};

use super::super::{descriptor, from_dynamic};
use super::*;
use nereid_wire::inference::ModelConfig;
use nereid_wire::inference::model_config::SchedulingChoice;

fn config(text: impl AsRef<[u8]>) -> Result<ModelConfig, String> {
    let document = parse("c.pbtxt", text.as_ref(), descriptor()).map_err(|error| error.to_string())?;
    Ok(from_dynamic(&document.message).unwrap())
}

fn name(text: impl AsRef<[u8]>) -> Result<String, String> {
    Ok(config(text)?.name)
}

/// One generator for all random tests, so that a failure repeats.
pub(in super::super) struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn pick<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())]
    }
}

#[test]
fn equal_ways_to_write_one_configuration() {
    let expected = config("max_batch_size: 8 input { name: \"A\" dims: 1 dims: 2 } input { name: \"B\" }").unwrap();
    assert_eq!((expected.max_batch_size, expected.input.len()), (8, 2));
    assert_eq!(expected.input[0].dims, [1, 2]);
    for text in [
        "max_batch_size:8 input{name:\"A\"dims:1 dims:2}input{name:\"B\"}",
        "max_batch_size: 8, input: { name: \"A\", dims: [1, 2] }, input: { name: \"B\" }",
        "max_batch_size: 8; input < name: \"A\"; dims: [ 1 ] dims: [ 2 ] >; input: < name: 'B' >",
        "input [ { name: \"A\" dims: [1,2], }, { name: \"B\" } ] max_batch_size: 0x8",
        "input: [ { name: \"A\" dims: [] dims: [1,2] }, < name: \"B\" > ] max_batch_size: 010",
        "input: [ { name: \"A\" dims: [1,2] } ] input [ ] input: { name: \"B\" } max_batch_size: 8",
        "# a comment: { [ \"\n max_batch_size # here\n : # and\r\n 8\n input { name: \"A\" dims: 1 dims: 2 }\n\
         input { name: \"B\" # '\n } # no newline",
        "\u{feff}max_batch_size\t:\u{b}8\u{c}input{name:'A'dims:[1,2]}input{name:'B'}",
        "input { name: \"A\" dims: [0x1, 02] } max_batch_size: 8 input { name: \"\" 'B' \"\" }",
    ] {
        assert_eq!(config(text).as_ref(), Ok(&expected), "{text}");
    }
    assert_eq!(config(""), Ok(ModelConfig::default()));
    assert_eq!(config(" \r\n\t# nothing"), Ok(ModelConfig::default()));
}

#[test]
fn strings() {
    let accepted: [(&str, &str); 22] = [
        (r#""plain""#, "plain"),
        (r#"'single "inside"'"#, "single \"inside\""),
        (r#""double 'inside'""#, "double 'inside'"),
        (r#""""#, ""),
        (r#""a" 'b' "c""#, "abc"),
        ("\"a\" # comment\n \"b\"", "ab"),
        (r#""\a\b\f\n\r\t\v\\\'\"\?""#, "\x07\x08\x0c\n\r\t\x0b\\'\"?"),
        (r#"'\''"#, "'"),
        (r#""\101\60\0a""#, "A0\0a"),
        (r#""\1011""#, "A1"),
        (r#""\x41\X6a\x4""#, "Aj\x04"),
        (r#""\x414""#, "A4"),
        (r#""\u00e9\u20AC""#, "é€"),
        (r#""\U0001F600""#, "😀"),
        (r#""\ud83d\ude00""#, "😀"),
        (r#""\303\251""#, "é"),
        (r#""\xc3" "\xa9""#, "é"),
        ("\"é€😀\"", "é€😀"),
        ("\"tab\tinside\"", "tab\tinside"),
        ("\"\r\"", "\r"),
        ("'# no comment'", "# no comment"),
        (r#""${HOME} $$X""#, "${HOME} $$X"),
    ];
    for (text, expected) in accepted {
        assert_eq!(name(format!("name: {text}")), Ok(expected.to_owned()), "{text}");
    }
    let rejected: [(&[u8], &str); 17] = [
        (br#""open"#, "1:7: string is not closed before the end of the file"),
        (br#""open\"#, "1:7: string is not closed before the end of the file"),
        (b"'open\"", "1:7: string is not closed before the end of the file"),
        (b"\"line\n\"", "1:7: string is not closed before the end of its line"),
        (b"\"line\\\n\"", "1:7: string is not closed before the end of its line"),
        (br#""\q""#, "1:7: unknown escape \\q"),
        (br#""\8""#, "1:7: unknown escape \\8"),
        (br#""\400""#, "1:7: octal escape \\400 is more than a byte"),
        (br#""\x""#, "1:7: \\x must be followed by hexadecimal digits"),
        (br#""\u12""#, "1:7: \\u must be followed by 4 hexadecimal digits"),
        (br#""\U0001F60""#, "1:7: \\U must be followed by 8 hexadecimal digits"),
        (br#""\ud83d""#, "1:7: U+D83D is not a Unicode character"),
        (br#""\ude00\ud83d""#, "1:7: U+DE00 is not a Unicode character"),
        (br#""\UFFFFFFFF""#, "1:7: U+FFFFFFFF is not a Unicode character"),
        (b"\"a\" \"\xff\"", "1:7: the value of name is not valid UTF-8"),
        (br#""\xff""#, "1:7: the value of name is not valid UTF-8"),
        (b"abc", "1:7: expected a quoted string for name, got \"abc\""),
    ];
    for (text, expected) in rejected {
        let text = [b"name: ", text].concat();
        assert_eq!(name(&text), Err(format!("c.pbtxt:{expected}")), "{}", text.escape_ascii());
    }
    // The second literal of a string has a place of its own.
    assert_eq!(name("name: \"a\"\n  '\\q'"), Err("c.pbtxt:2:3: unknown escape \\q".into()));
}

#[test]
fn integers() {
    let batch = |text: &str| config(format!("max_batch_size: {text}")).map(|config| config.max_batch_size);
    for (text, expected) in [
        ("0", 0),
        ("-0", 0),
        ("2147483647", i32::MAX),
        ("-2147483648", i32::MIN),
        ("- 5", -5),
        ("0x7FFFFFFF", i32::MAX),
        ("-0x80000000", i32::MIN),
        ("017", 15),
    ] {
        assert_eq!(batch(text), Ok(expected), "{text}");
    }
    let range = "must be in [-2147483648, 2147483647]";
    for (text, expected) in [
        ("2147483648", format!("1:17: max_batch_size: Integer out of range (2147483648), {range}")),
        ("-2147483649", format!("1:17: max_batch_size: Integer out of range (-2147483649), {range}")),
        ("99999999999999999999", "1:17: max_batch_size: Integer out of range (99999999999999999999)".into()),
        ("08", "1:17: max_batch_size: 08 has digits that are not octal".into()),
        ("1.0", "1:17: Expected integer, got: 1.0 (for max_batch_size)".into()),
        ("1e3", "1:17: Expected integer, got: 1e3 (for max_batch_size)".into()),
        ("\"8\"", "1:17: Expected integer, got: \"8\" (for max_batch_size)".into()),
        ("eight", "1:17: Expected integer, got: eight (for max_batch_size)".into()),
        ("+8", "1:17: Expected integer, got: + (for max_batch_size)".into()),
        ("--8", "1:18: Expected integer, got: - (for max_batch_size)".into()),
        ("", "1:17: Expected integer, got: the end of the file (for max_batch_size)".into()),
        ("0x", "1:17: \"0x\" must be followed by hexadecimal digits".into()),
        ("8b", "1:17: a number must be followed by a blank or punctuation".into()),
        ("1.2.3", "1:17: a number must be followed by a blank or punctuation".into()),
        ("1e", "1:17: the exponent of a number must have digits".into()),
        ("1e+", "1:17: the exponent of a number must have digits".into()),
        ("[8]", "1:17: expected one value, because max_batch_size is not repeated, got '['".into()),
        ("{}", "1:17: Expected integer, got: { (for max_batch_size)".into()),
    ] {
        assert_eq!(batch(text), Err(format!("c.pbtxt:{expected}")), "{text}");
    }
    let dims = |text: &str| config(format!("input {{ dims: {text} }}")).map(|config| config.input[0].dims.clone());
    assert_eq!(dims("[9223372036854775807, -9223372036854775808]"), Ok(vec![i64::MAX, i64::MIN]));
    assert!(dims("9223372036854775808").is_err());
    assert!(dims("-9223372036854775809").is_err());
    let queue = |text: &str| {
        let text = format!("dynamic_batching {{ max_queue_delay_microseconds: {text} }}");
        match config(text)?.scheduling_choice {
            Some(SchedulingChoice::DynamicBatching(dynamic)) => Ok(dynamic.max_queue_delay_microseconds),
            other => Err(format!("{other:?}")),
        }
    };
    assert_eq!(queue("18446744073709551615"), Ok(u64::MAX));
    assert!(queue("18446744073709551616").is_err());
    let negative = "Expected integer, got: - (for max_queue_delay_microseconds)";
    assert_eq!(queue("-1"), Err(format!("c.pbtxt:1:50: {negative}")));
}

#[test]
fn floats() {
    let slots = |text: &str| {
        let text = format!("sequence_batching {{ direct {{ minimum_slot_utilization: {text} }} }}");
        let document = parse("c.pbtxt", text.as_bytes(), descriptor()).map_err(|error| error.to_string())?;
        let sequence = document.message.get_field_by_name("sequence_batching").unwrap().into_owned();
        let direct = sequence.as_message().unwrap().get_field_by_name("direct").unwrap().into_owned();
        Ok::<f32, String>(
            direct.as_message().unwrap().get_field_by_name("minimum_slot_utilization").unwrap().as_f32().unwrap(),
        )
    };
    for (text, expected) in [
        ("0.5", 0.5),
        (".5", 0.5),
        ("1", 1.0),
        ("1.", 1.0),
        ("1.5f", 1.5),
        ("1F", 1.0),
        ("-1.5", -1.5),
        ("1e-3", 0.001),
        ("2E+2", 200.0),
        ("1e3f", 1000.0),
        ("inf", f32::INFINITY),
        ("-Infinity", f32::NEG_INFINITY),
        ("1e99", f32::INFINITY),
        // Once to the nearest float, not through a double: 2^24 + 1 and a little.
        ("16777217.000000000000001", 16777218.0),
    ] {
        assert_eq!(slots(text), Ok(expected), "{text}");
    }
    assert!(slots("nan").unwrap().is_nan());
    assert!(slots("-NaN").unwrap().is_nan());
    for text in ["0x1", "017", "half", "\"0.5\"", "- -1", "true"] {
        assert!(slots(text).is_err(), "{text}");
    }
}

#[test]
fn bools_and_enums() {
    let optional = |text: &str| config(format!("input {{ optional: {text} }}")).map(|config| config.input[0].optional);
    for text in ["true", "True", "t", "1", "0x1", "01"] {
        assert_eq!(optional(text), Ok(true), "{text}");
    }
    for text in ["false", "False", "f", "0", "0x0"] {
        assert_eq!(optional(text), Ok(false), "{text}");
    }
    for text in ["TRUE", "yes", "2", "-1", "\"true\"", "1.0", "99999999999999999999"] {
        let error = optional(text).unwrap_err();
        assert!(error.starts_with("c.pbtxt:1:19: expected true or false for optional, got "), "{text}: {error}");
    }
    let kind = |text: &str| config(format!("input {{ data_type: {text} }}")).map(|config| config.input[0].data_type);
    for (text, expected) in [("TYPE_FP32", 11), ("11", 11), ("0xB", 11), ("0", 0), ("-0", 0), ("TYPE_INVALID", 0)] {
        assert_eq!(kind(text), Ok(expected), "{text}");
    }
    for (text, expected) in [
        ("TYPE_FP31", "\"TYPE_FP31\" is not a value of DataType; did you mean \"TYPE_FP32\" or "),
        ("type_fp32", "\"type_fp32\" is not a value of DataType; did you mean \"TYPE_FP32\""),
        ("15", "15 is not a value of DataType"),
        ("-1", "-1 is not a value of DataType"),
        ("99999999999", "99999999999 is not a value of DataType"),
        ("\"TYPE_FP32\"", "expected a value of DataType for data_type, got \"TYPE_FP32\""),
    ] {
        let error = kind(text).unwrap_err();
        assert!(error.starts_with(&format!("c.pbtxt:1:20: {expected}")), "{text}: {error}");
    }
}

#[test]
fn maps() {
    let parameters = |text: &str| {
        config(text).map(|config| {
            let values = config.parameters.into_iter();
            values.map(|(key, parameter)| (key, parameter.string_value)).collect::<Vec<_>>()
        })
    };
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let entry = r#"{ key: "a" value: { string_value: "1" } }"#;
    for text in [
        format!("parameters {entry}"),
        format!("parameters: {entry}"),
        format!("parameters [ {entry} ]"),
        format!("parameters: [ {entry}, ]").replace(", ]", "]"),
        r#"parameters { value { string_value: "1" } key: "a" }"#.into(),
        r#"parameters < key: "a", value < string_value: "1" >, >"#.into(),
        format!(r#"parameters {{ key: "a" value {{ string_value: "0" }} }} parameters {entry}"#),
    ] {
        assert_eq!(parameters(&text), Ok(vec![pair("a", "1")]), "{text}");
    }
    let two = format!(r#"parameters: [ {entry}, {{ key: "b" }} ]"#);
    assert_eq!(parameters(&two), Ok(vec![pair("a", "1"), pair("b", "")]));
    assert_eq!(parameters("parameters { }"), Ok(vec![pair("", "")]));
    assert_eq!(parameters("parameters []"), Ok(vec![]));
    let numbers = r#"dynamic_batching { priority_queue_policy { key: 2 value { max_queue_size: 7 } } }"#;
    match config(numbers).unwrap().scheduling_choice {
        Some(SchedulingChoice::DynamicBatching(dynamic)) => {
            assert_eq!(dynamic.priority_queue_policy[&2].max_queue_size, 7);
        }
        other => panic!("{other:?}"),
    }
    for (text, expected) in [
        (r#"parameters { key: "a" key: "b" }"#, "1:23: key is already given at line 1 and cannot be repeated"),
        (r#"parameters { key: 1 }"#, "1:19: expected a quoted string for key, got \"1\""),
        (r#"parameters { name: "a" }"#, "1:14: unknown field \"name\" in ParametersEntry"),
        (r#"parameters: "a""#, "1:13: expected '{' to begin parameters, got \"a\""),
        (r#"parameters { key: "a" value: "1" }"#, "1:30: expected '{' to begin value, got \"1\""),
    ] {
        let error = parameters(text).unwrap_err();
        assert!(error.starts_with(&format!("c.pbtxt:{expected}")), "{text}: {error}");
    }
}

#[test]
fn errors_hold_position_and_text() {
    for (text, expected) in [
        (
            "name: \"x\"\n\n   \t  max_batchsize: 1",
            "3:7: unknown field \"max_batchsize\" in ModelConfig; did you mean \"max_batch_size\"?",
        ),
        ("inputs [ ]", "1:1: unknown field \"inputs\" in ModelConfig; did you mean \"input\"?"),
        ("maxBatchSize: 1", "1:1: unknown field \"maxBatchSize\" in ModelConfig; did you mean \"max_batch_size\"?"),
        ("zzzzzzzzz: 1", "1:1: unknown field \"zzzzzzzzz\" in ModelConfig"),
        ("input { dim: 1 }", "1:9: unknown field \"dim\" in ModelInput; did you mean \"dims\"?"),
        ("max_batch_size 8", "1:16: expected ':' after max_batch_size, got \"8\""),
        (
            "max_batch_size: 8 max_batch_size: 8",
            "1:19: max_batch_size is already given at line 1 and cannot be repeated",
        ),
        (
            "max_batch_size: 0\nmax_batch_size: 0",
            "2:1: max_batch_size is already given at line 1 and cannot be repeated",
        ),
        (
            "dynamic_batching { }\ndynamic_batching { }",
            "2:1: dynamic_batching is already given at line 1 and cannot be repeated",
        ),
        (
            "dynamic_batching { }\n\nsequence_batching { }",
            "3:1: sequence_batching excludes dynamic_batching, given at line 1: only one member of \
             scheduling_choice is allowed",
        ),
        (
            "version_policy { all { } latest { } }",
            "1:26: latest excludes all, given at line 1: only one member of policy_choice is allowed",
        ),
        (
            "model_warmup { inputs { key: \"a\" value { zero_data: false random_data: true } } }",
            "1:59: random_data excludes zero_data, given at line 1: only one member of input_data_type is allowed",
        ),
        ("input {", "1:8: expected a field name or '}', got the end of the file"),
        ("input { >", "1:9: expected a field name or '}', got '>'"),
        ("input <\n}", "2:1: expected a field name or '>', got '}'"),
        ("}", "1:1: expected a field name, got '}'"),
        ("input { } }", "1:11: expected a field name, got '}'"),
        ("input", "1:6: expected '{' to begin input, got the end of the file"),
        ("input: 5", "1:8: expected '{' to begin input, got \"5\""),
        ("input [ { } { } ]", "1:13: expected ',' or ']', got '{'"),
        ("input [ { }, ]", "1:14: expected '{' to begin input, got ']'"),
        ("input [ { }", "1:12: expected ',' or ']', got the end of the file"),
        ("input { dims: [ 1, 2 }", "1:22: expected ',' or ']', got '}'"),
        ("input { dims: [ 1, [2] ] }", "1:20: Expected integer, got: [ (for dims)"),
        ("name: \"a\";;", "1:11: expected a field name, got ';'"),
        (", name: \"a\"", "1:1: expected a field name, got ','"),
        ("optimization [ { } ]", "1:14: expected one value, because optimization is not repeated, got '['"),
        ("[type.googleapis.com/x] { }", "1:1: expected a field name (extensions and Any are not supported), got '['"),
        ("\"name\": \"a\"", "1:1: expected a field name, got \"name\""),
        ("{ \"name\": \"a\" }", "1:1: expected a field name, got '{'"),
        ("name: \"a\" @", "1:11: unexpected byte '@'"),
        ("name: \"é\" \0", "1:11: unexpected byte 0x00"),
        ("name: \"a\" é", "1:11: unexpected byte 0xc3"),
    ] {
        assert_eq!(config(text), Err(format!("c.pbtxt:{expected}")), "{text}");
    }
    let long = "x".repeat(10_000);
    let error = config(&long).unwrap_err();
    assert_eq!(error, format!("c.pbtxt:1:1: unknown field \"{}…\" in ModelConfig", "x".repeat(64)));
    let error = parse("a/b.pbtxt", b"\n x", descriptor()).unwrap_err();
    assert_eq!((error.file.as_str(), error.line, error.column), ("a/b.pbtxt", 2, 2));
}

#[test]
fn every_value_has_a_place() {
    let text = "name: \"m\"\n\
                input [\n  {\n    name: \"A\"\n    dims: [ 1,\n      2 ]\n  },\n  { dims: 3 dims: 4 }\n]\n\
                parameters { value { string_value: \"v\" } key: \"k\\n\" }\n\
                dynamic_batching { priority_queue_policy { key: 1 value: { max_queue_size: 2 } } }\n\
                input: { }\nversion_policy { all { } }\n\
                model_warmup { inputs { key: \"x\" value { dims: [ 5 ] } } }\n";
    let document = parse("c.pbtxt", text.as_bytes(), descriptor()).unwrap();
    let places: Vec<String> = document
        .positions
        .iter()
        .map(|(path, place)| {
            let FieldPosition { field, value } = place;
            format!("{path} {}:{} {}:{}", field.line, field.column, value.line, value.column)
        })
        .collect();
    assert_eq!(
        places,
        [
            "dynamic_batching 11:1 11:18",
            "dynamic_batching.priority_queue_policy 11:20 11:42",
            "dynamic_batching.priority_queue_policy[1] 11:20 11:42",
            "dynamic_batching.priority_queue_policy[1].key 11:44 11:49",
            "dynamic_batching.priority_queue_policy[1].max_queue_size 11:60 11:76",
            "input 2:1 2:7",
            "input[0] 3:3 3:3",
            "input[0].dims 5:5 5:11",
            "input[0].dims[0] 5:13 5:13",
            "input[0].dims[1] 6:7 6:7",
            "input[0].name 4:5 4:11",
            "input[1] 8:3 8:3",
            "input[1].dims 8:5 8:11",
            "input[1].dims[0] 8:5 8:11",
            "input[1].dims[1] 8:13 8:19",
            "input[2] 12:1 12:8",
            "model_warmup 14:1 14:14",
            "model_warmup[0] 14:1 14:14",
            "model_warmup[0].inputs 14:16 14:23",
            "model_warmup[0].inputs[\"x\"] 14:16 14:23",
            "model_warmup[0].inputs[\"x\"].dims 14:42 14:48",
            "model_warmup[0].inputs[\"x\"].dims[0] 14:50 14:50",
            "model_warmup[0].inputs[\"x\"].key 14:25 14:30",
            "name 1:1 1:7",
            "parameters 10:1 10:12",
            "parameters[\"k\\n\"] 10:1 10:12",
            "parameters[\"k\\n\"].key 10:42 10:47",
            "parameters[\"k\\n\"].string_value 10:22 10:36",
            "version_policy 13:1 13:16",
            "version_policy.all 13:18 13:22",
        ]
    );
    assert_eq!(document.positions.file(), "c.pbtxt");
    assert_eq!(document.positions.get("input[3]"), None);
    let nearest = |path: &str| document.positions.nearest(path);
    assert_eq!(nearest("max_batch_size"), document.positions.get("max_batch_size"));
    assert_eq!(nearest("input[3].reshape.shape[1]"), document.positions.get("input"));
    assert_eq!(nearest("version_policy.all.x"), document.positions.get("version_policy.all"));
    assert_eq!(nearest("runtime"), None);
    // Columns are characters, not bytes.
    let document = parse("c.pbtxt", "name: \"é😀\" backend: \"b\"".as_bytes(), descriptor()).unwrap();
    assert_eq!(document.positions.get("backend").unwrap().field, Position { line: 1, column: 12 });
}

#[test]
fn bounds() {
    let long = vec![b' '; MAX_FILE_BYTES];
    assert!(parse("c", &long, descriptor()).is_ok());
    let long = vec![b' '; MAX_FILE_BYTES + 1];
    let error = parse("c", &long, descriptor()).unwrap_err();
    assert_eq!(error.to_string(), "c:1:1: file of 16777217 bytes exceeds the maximum of 16777216 bytes");
    // `input`, `input[0]`, `input[0].dims` and the elements.
    let dims = |count: usize| format!("input {{ dims: [{}1] }}", "1,".repeat(count - 4));
    assert_eq!(config(dims(MAX_VALUES)).unwrap().input[0].dims.len(), MAX_VALUES - 3);
    let error = config(dims(MAX_VALUES + 1)).unwrap_err();
    assert!(error.ends_with(": more than 262144 values"), "{error}");
}

/// ModelConfig does not contain itself, so depth is tried on a message that does.
#[test]
fn nesting_is_bounded() {
    let file = prost_reflect::prost_types::FileDescriptorProto {
        name: Some("n.proto".into()),
        syntax: Some("proto3".into()),
        message_type: vec![prost_reflect::prost_types::DescriptorProto {
            name: Some("Nest".into()),
            field: vec![prost_reflect::prost_types::FieldDescriptorProto {
                name: Some("nest".into()),
                number: Some(1),
                label: Some(1),
                r#type: Some(11),
                type_name: Some(".Nest".into()),
                ..Default::default()
            }],
            ..Default::default()
        }],
        ..Default::default()
    };
    let set = prost_reflect::prost_types::FileDescriptorSet { file: vec![file] };
    let pool = prost_reflect::DescriptorPool::from_file_descriptor_set(set).unwrap();
    let nest = pool.get_message_by_name("Nest").unwrap();
    let text = |levels: usize| format!("{}{}", "nest{".repeat(levels), "}".repeat(levels));
    assert!(parse("n", text(MAX_DEPTH).as_bytes(), &nest).is_ok());
    let error = parse("n", text(MAX_DEPTH + 1).as_bytes(), &nest).unwrap_err();
    assert_eq!(error.message, "messages are nested deeper than 64 levels");
    assert!(parse("n", "nest{".repeat(500_000).as_bytes(), &nest).is_err());
    assert!(parse("n", "nest[".repeat(500_000).as_bytes(), &nest).is_err());
}

/// A random value for one element of a field.
fn random_value(random: &mut Random, kind: &Kind, depth: usize) -> Value {
    const FLOATS: [f64; 12] =
        [0.0, -0.0, 1.0, -1.5, 0.1, 1e-30, 3.4e38, 1e300, 123456789.0, f64::INFINITY, f64::NEG_INFINITY, 5e-324];
    const STRINGS: [&str; 9] = ["", "a", "é€😀", "\"'\\", "\n\r\t\0\x7f", "01\x017", "# {", "\u{feff}", "x y"];
    let bits = random.next() >> random.below(64);
    match kind {
        Kind::Message(descriptor) => Value::Message(random_message(random, descriptor, depth + 1)),
        Kind::Enum(descriptor) => {
            let numbers: Vec<i32> = descriptor.values().map(|value| value.number()).collect();
            Value::EnumNumber(random.pick(&numbers))
        }
        Kind::Bool => Value::Bool(random.below(2) == 0),
        Kind::Int32 => Value::I32(random.pick(&[0, 1, -1, i32::MIN, i32::MAX, bits as i32])),
        Kind::Int64 => Value::I64(random.pick(&[0, 1, -1, i64::MIN, i64::MAX, bits as i64])),
        Kind::Uint32 => Value::U32(random.pick(&[0, 1, u32::MAX, bits as u32])),
        Kind::Uint64 => Value::U64(random.pick(&[0, 1, u64::MAX, bits])),
        Kind::Float => Value::F32(random.pick(&FLOATS) as f32),
        Kind::Double => Value::F64(random.pick(&FLOATS)),
        Kind::String => Value::String(random.pick(&STRINGS).to_owned()),
        other => panic!("no {other:?} in a model configuration"),
    }
}

fn random_field(random: &mut Random, field: &FieldDescriptor, depth: usize) -> Value {
    if field.is_map() {
        let Kind::Message(entry) = field.kind() else { panic!("map") };
        let mut entries = HashMap::new();
        for _ in 0..random.below(3) {
            let key: MapKey =
                random_value(random, &entry.map_entry_key_field().kind(), depth).into_map_key().expect("a key");
            entries.insert(key, random_value(random, &entry.map_entry_value_field().kind(), depth));
        }
        return Value::Map(entries);
    }
    if field.is_list() {
        return Value::List((0..random.below(4)).map(|_| random_value(random, &field.kind(), depth)).collect());
    }
    random_value(random, &field.kind(), depth)
}

pub(in super::super) fn random_message(
    random: &mut Random,
    descriptor: &MessageDescriptor,
    depth: usize,
) -> DynamicMessage {
    let mut message = DynamicMessage::new(descriptor.clone());
    for field in descriptor.fields() {
        if random.below(2 + depth) == 0 {
            let value = random_field(random, &field, depth);
            message.set_field(&field, value);
        }
    }
    message
}

/// Equality as protobuf has it: a field that is set to its default is not set.
fn encoded(message: &DynamicMessage) -> ModelConfig {
    from_dynamic(message).unwrap()
}

#[test]
fn every_field_survives_printing_and_parsing() {
    let mut random = Random(1);
    let mut seen = std::collections::BTreeSet::new();
    for round in 0..1500 {
        let message = random_message(&mut random, descriptor(), 0);
        let text = print(&message);
        let parsed = parse("c", text.as_bytes(), descriptor()).unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert_eq!(encoded(&parsed.message), encoded(&message), "round {round}\n{text}");
        // A parsed print is printed the same again.
        assert_eq!(print(&parsed.message), text);
        for (path, _) in parsed.positions.iter() {
            let mut names = String::new();
            let mut inside = 0;
            for character in path.chars() {
                match character {
                    '[' => inside += 1,
                    ']' => inside -= 1,
                    _ if inside == 0 => names.push(character),
                    _ => {}
                }
            }
            seen.insert(names);
        }
    }
    // The test is worth something only if it came by every field there is.
    for name in ["model_warmup.inputs.random_data", "optimization.cuda.graph_spec.graph_lower_bound.input.dim"] {
        assert!(seen.contains(name), "{name}");
    }
    // Enums of one value: it is the default, which is never printed.
    let unprintable = ["instance_group.secondary_devices.kind", "batch_output.kind"];
    assert_eq!(missing(descriptor(), "", &seen), unprintable);
}

/// Fields, by path, that no round reached.
fn missing(descriptor: &MessageDescriptor, path: &str, seen: &std::collections::BTreeSet<String>) -> Vec<String> {
    let mut missing = Vec::new();
    for field in descriptor.fields() {
        let path = if path.is_empty() { field.name().to_owned() } else { format!("{path}.{}", field.name()) };
        if !seen.contains(&path) {
            missing.push(path.clone());
        }
        if let Kind::Message(inner) = field.kind() {
            let inner = if field.is_map() {
                match inner.map_entry_value_field().kind() {
                    Kind::Message(value) => value,
                    _ => continue,
                }
            } else {
                inner
            };
            missing.extend(self::missing(&inner, &path, seen));
        }
    }
    missing
}

#[test]
fn mutations_never_panic() {
    const BYTES: &[u8] = b"{}[]<>:,;-#\"'\\.0129xeEf_ \n\t\0\xff\xc3\xa9aT";
    let mut random = Random(2);
    let mut corpus = Vec::new();
    for _ in 0..20 {
        let mut text = print(&random_message(&mut random, descriptor(), 0)).into_bytes();
        text.truncate(1500);
        corpus.push(text);
    }
    corpus.push(b"input [ { name: 'A' dims: [ 1, -1 ] }, < data_type: 5 > ] parameters { key: \"\\u00e9\" }".to_vec());
    let mut accepted = 0;
    for round in 0..10_000 {
        let mut text = corpus[random.below(corpus.len())].clone();
        for _ in 0..=random.below(4) {
            let at = random.below(text.len() + 1);
            match random.below(5) {
                0 => text.truncate(at),
                1 => text.insert(at, random.pick(BYTES)),
                2 if at < text.len() => {
                    text.remove(at);
                }
                3 if at < text.len() => text[at] = random.pick(BYTES),
                _ => {
                    let end = (at + random.below(20)).min(text.len());
                    let piece = text[at..end].to_vec();
                    let to = random.below(text.len() + 1);
                    text.splice(to..to, piece);
                }
            }
        }
        match parse("c", &text, descriptor()) {
            Ok(document) => {
                accepted += 1;
                let again = print(&document.message);
                let parsed = parse("c", again.as_bytes(), descriptor()).unwrap();
                assert_eq!(print(&parsed.message), again, "round {round}: {}", text.escape_ascii());
            }
            Err(error) => assert!(error.line >= 1 && error.column >= 1 && error.message.len() < 1000, "{error}"),
        }
    }
    assert!(accepted > 100, "{accepted} of the mutations were still valid: too few to mean anything");
}

#[test]
fn every_prefix_is_handled() {
    let text = "name: \"m\\u00e9\\101\" input [ { dims: [ 1, -0x2 ] }, < optional: t > ] # end\n\
                dynamic_batching { priority_queue_policy { key: 1 value: { max_queue_size: 2 } } }"
        .as_bytes();
    for end in 0..=text.len() {
        if let Err(error) = parse("c", &text[..end], descriptor()) {
            let Position { line, column } = Position { line: error.line, column: error.column };
            assert!((line, column) <= (2, 90), "{error}");
        }
    }
    assert!(parse("c", text, descriptor()).is_ok());
}

#[test]
fn printing() {
    let text = "input { name: 'a\"\\001' dims: [1, -1] optional: true } max_batch_size: 4\n\
                version_policy { all { } } parameters { key: 'b' value { string_value: 'é' } } parameters { key: 'a' }";
    let printed = print(&parse("c", text.as_bytes(), descriptor()).unwrap().message);
    assert_eq!(
        printed,
        "version_policy {\n  all {\n  }\n}\nmax_batch_size: 4\n\
         input {\n  name: \"a\\\"\\001\"\n  dims: 1\n  dims: -1\n  optional: true\n}\n\
         parameters {\n  key: \"a\"\n  value {\n  }\n}\n\
         parameters {\n  key: \"b\"\n  value {\n    string_value: \"é\"\n  }\n}\n"
    );
}

#[test]
fn floats_print_so_that_they_read_back() {
    for value in [0.1f32, 1.0, 1e-7, 1e20, f32::MAX, f32::MIN_POSITIVE, 16777216.0, -0.0, 1e15, 123456.0] {
        let mut text = String::new();
        push_f32(value, &mut text);
        assert_eq!(text.parse::<f32>().unwrap().to_bits(), value.to_bits(), "{text}");
        assert!(text.len() < 20, "{text}");
    }
}
