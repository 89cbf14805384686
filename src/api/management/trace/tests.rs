//! The texts of contract/http.md section 3 and contract/grpc.md section 6, without a server.

use super::*;
use nereid_request::Code;

fn json(body: &str) -> Result<Change, Status> {
    change_of_json(&Slice::copy_of(body.as_bytes()))
}

fn message(settings: &[(&str, &[&str])]) -> Result<Change, Status> {
    let entry = |(key, values): &(&str, &[&str])| {
        ((*key).to_owned(), Given { value: values.iter().map(|&value| value.to_owned()).collect() })
    };
    let settings = settings.iter().map(entry).collect();
    change_of_message(&wire::TraceSettingRequest { settings, model_name: String::new() })
}

/// Rows that both protocols share: key, text, and what comes of it.
#[test]
fn numbers_are_read_as_stoi_reads_them() {
    let rows: [(&str, &str, Result<i64, &str>); 18] = [
        ("trace_rate", "5", Ok(5)),
        ("trace_rate", " +5x", Ok(5)),
        ("trace_rate", "-5", Ok(4_294_967_291)),
        ("trace_rate", "0", Ok(0)),
        ("trace_rate", "2147483647", Ok(2_147_483_647)),
        (
            "trace_rate",
            "2147483648",
            Err("Unable to parse 'trace_rate', value is out of range [ 0, 4294967295 ], got: 2147483648"),
        ),
        (
            "log_frequency",
            "-2147483649",
            Err("Unable to parse 'log_frequency', value is out of range [ 0, 4294967295 ], got: -2147483649"),
        ),
        ("log_frequency", "7", Ok(7)),
        ("log_frequency", "x", Err("Unable to parse 'log_frequency', got: x")),
        ("trace_rate", "", Err("Unable to parse 'trace_rate', got: ")),
        ("trace_rate", "- 1", Err("Unable to parse 'trace_rate', got: - 1")),
        ("trace_count", "-1", Ok(-1)),
        ("trace_count", "0", Ok(0)),
        ("trace_count", "12", Ok(12)),
        ("trace_count", "x1", Err("Unable to parse 'trace_count', got: x1")),
        (
            "trace_count",
            "99999999999999999999",
            Err("Unable to parse 'trace_count', value is out of range [ -1, 2147483647 ], got: 99999999999999999999"),
        ),
        ("trace_count", "-2147483648", Err("<too low>")),
        ("trace_count", "-2", Err("<too low>")),
    ];
    for (key, text, expected) in rows {
        let by_json = json(&serde_json::json!({ key: text }).to_string());
        let by_message = message(&[(key, &[text])]);
        for (outcome, blank) in [(by_json, ""), (by_message, " ")] {
            let number = outcome.map(|change| match (change.rate, change.count, change.log_frequency) {
                (Field::Set(rate), ..) => i64::from(rate),
                (_, Field::Set(count), _) => i64::from(count),
                (.., Field::Set(frequency)) => i64::from(frequency),
                other => panic!("{key} {text}: {other:?}"),
            });
            let too_low = format!("Unable to parse 'trace_count'. Expecting value >= -1, got:{blank}{text}");
            let expected = expected.map_err(|text| if text == "<too low>" { &*too_low } else { text });
            assert_eq!(number.as_ref().map_err(|status| &*status.message), expected.as_ref().map_err(|text| *text));
            assert!(number.err().is_none_or(|status| status.code == Code::InvalidArg), "{key} {text}");
        }
    }
}

#[test]
fn levels_are_named() {
    let both = Levels::TIMESTAMPS.and(Levels::TENSORS);
    for (names, expected) in [
        (&["OFF"][..], Levels::OFF),
        (&["TIMESTAMPS"], Levels::TIMESTAMPS),
        (&["TENSORS", "TIMESTAMPS"], both),
        (&["TIMESTAMPS", "Unknown"], Levels::TIMESTAMPS),
        (&["timestamps"], Levels::OFF),
        (&["MAX"], Levels::OFF),
    ] {
        let expected = Change { levels: Field::Set(expected), ..Change::default() };
        assert_eq!(json(&serde_json::json!({ "trace_level": names }).to_string()), Ok(expected.clone()), "{names:?}");
        assert_eq!(message(&[("trace_level", names)]), Ok(expected), "{names:?}");
    }
    let text = "Expect only one trace level 'OFF' is specified";
    assert_eq!(json(r#"{"trace_level":["TIMESTAMPS","OFF"]}"#).unwrap_err().message, text);
    assert_eq!(message(&[("trace_level", &["OFF", "OFF"])]).unwrap_err().message, text);
}

#[test]
fn nothing_keeps_and_null_clears() {
    assert_eq!(json("{}"), Ok(Change::default()));
    assert_eq!(json(r#"{"other":1}"#), Ok(Change::default()));
    assert_eq!(message(&[]), Ok(Change::default()));
    let cleared = Change { levels: Field::Clear, rate: Field::Clear, count: Field::Clear, log_frequency: Field::Clear };
    let nulls = r#"{"trace_level":null,"trace_rate":null,"trace_count":null,"log_frequency":null}"#;
    assert_eq!(json(nulls), Ok(cleared.clone()));
    let empty = [("trace_level", &[][..]), ("trace_rate", &[]), ("trace_count", &[]), ("log_frequency", &[])];
    assert_eq!(message(&empty), Ok(cleared));
}

#[test]
fn what_is_no_setting_is_refused() {
    let file = "trace file location can not be updated through network protocol";
    for body in [r#"{"trace_file":"x"}"#, r#"{"trace_file":null,"trace_rate":"x"}"#] {
        assert_eq!(json(body).unwrap_err(), Status::unsupported(file), "{body}");
    }
    assert_eq!(message(&[("trace_file", &[])]).unwrap_err(), Status::unsupported(file));
    for key in ["trace_rate", "trace_count", "log_frequency"] {
        let text = format!("expect only 1 value for '{key}'");
        assert_eq!(message(&[(key, &["1", "2"])]).unwrap_err(), Status::invalid(text));
        assert_eq!(json(&format!("{{\"{key}\":5}}")).unwrap_err().code, Code::Internal, "no string");
    }
    for body in [r#"{"trace_level":"OFF"}"#, r#"{"trace_level":[1]}"#, "", "[]x"] {
        assert_eq!(json(body).unwrap_err().code, Code::Internal, "{body}");
    }
    let long = format!("{{\"a\":\"{}\"}}", "x".repeat(BODY_BYTES_MAX));
    assert_eq!(json(&long).unwrap_err().code, Code::InvalidArg);
}

#[test]
fn the_read_back_has_its_members_in_order() {
    let shown = SettingView {
        levels: vec!["TIMESTAMPS", "TENSORS"],
        rate: 1000,
        count: -1,
        files: Some((0, "f".to_owned())),
        mode: "triton",
        more: Vec::new(),
    };
    let pool = Pool::new(1 << 20);
    let text = |shown: &SettingView| String::from_utf8(to_json(shown, &pool).to_vec()).unwrap();
    let numbers = r#""trace_rate":"1000","trace_count":"-1""#;
    let levels = r#""trace_level":["TIMESTAMPS","TENSORS"]"#;
    let rest = r#""log_frequency":"0","trace_file":"f","trace_mode":"triton""#;
    let expected = format!("{{{levels},{numbers},{rest}}}");
    assert_eq!(text(&shown), expected);
    let more = vec![("url".to_owned(), "u".to_owned()), ("bsp_max_queue_size".to_owned(), "2048".to_owned())];
    let shown = SettingView { levels: vec!["OFF"], files: None, mode: "opentelemetry", more, ..shown };
    let rest = r#""trace_mode":"opentelemetry","url":"u","bsp_max_queue_size":"2048""#;
    let expected = format!("{{\"trace_level\":[\"OFF\"],{numbers},{rest}}}");
    assert_eq!(text(&shown), expected);
    let message = to_message(&shown);
    let keys: Vec<&str> = message.settings.keys().map(String::as_str).collect();
    assert_eq!(keys, ["bsp_max_queue_size", "trace_count", "trace_level", "trace_mode", "trace_rate", "url"]);
    assert_eq!(message.settings["trace_level"].value, ["OFF"]);
}
