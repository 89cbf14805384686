//! The JSON that this port accepts and writes, with its extensions and restrictions of RFC 8259 (contract/http.md
//! section 2, "JSON dialect").

use serde_json::json;

use nereid_test_support::http::{Answer, Peer, request};
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::Server;
use nereid_test_support::variant::{self, each, usual};

fn start(variant: variant::Variant) -> (Repository, Server) {
    let repository = Repository::new();
    repository.identity("text", 0, &[Pair::new("BYTES", "-1")]);
    repository.identity("int64", 0, &[Pair::new("INT64", "-1")]);
    repository.identity("uint64", 0, &[Pair::new("UINT64", "-1")]);
    repository.identity("fp64", 0, &[Pair::new("FP64", "-1")]);
    let server = Server::start(variant, repository.path(), &[]);
    (repository, server)
}

fn infer(peer: &mut Peer, model: &str, datatype: &str, count: usize, data: &[u8]) -> Answer {
    let head = format!(r#"{{"inputs":[{{"name":"INPUT0","datatype":"{datatype}","shape":[{count}],"data":"#);
    let body = [head.as_bytes(), data, b"}]}"].concat();
    peer.send(&request("POST", &format!("/v2/models/{model}/infer"), &[], &body)).answer()
}

fn data_of(answer: &Answer) -> &[u8] {
    assert_eq!(answer.status, 200, "{}", answer.text());
    let at = answer.body.windows(7).position(|window| window == b"\"data\":").expect("data");
    answer.body[at + 7..].strip_suffix(b"}]}").expect("the end of the only output")
}

/// Bytes are passed on unchanged in both directions: UTF-8 is not checked, and only necessary escapes are written.
#[test]
fn strings_are_bytes() {
    each(&variant::ALL, |variant| {
        let (_repository, server) = start(variant);
        let mut peer = Peer::connect(server.http);
        for (given, expected) in [
            (&b"\"a/b\""[..], &b"\"a/b\""[..]),
            (b"\"a\\/b\"", b"\"a/b\""),
            (b"\"\\\"\\\\\"", b"\"\\\"\\\\\""),
            (b"\"\\b\\f\\n\\r\\t\"", b"\"\\b\\f\\n\\r\\t\""),
            (b"\"\\u0000\\u0001\\u001f\\u007f\"", b"\"\\u0000\\u0001\\u001F\x7f\""),
            (b"\"\\u00e9\\u20ac\"", "\"é€\"".as_bytes()),
            (b"\"\\ud83d\\ude00\"", "\"😀\"".as_bytes()),
            ("\"é€😀\"".as_bytes(), "\"é€😀\"".as_bytes()),
            (b"\"\xff\xfe\x80\xc3\"", b"\"\xff\xfe\x80\xc3\""),
            (b"\"\"", b"\"\""),
        ] {
            let answer = infer(&mut peer, "text", "BYTES", 1, &[b"[", given, b"]"].concat());
            let got = data_of(&answer);
            let wanted = [b"[", expected, b"]"].concat();
            assert_eq!(got, wanted, "{:?}: {:?}", String::from_utf8_lossy(given), String::from_utf8_lossy(got));
        }
        server.stop();
    });
}

#[test]
fn names_beyond_the_standard_and_its_own_limits() {
    let (_repository, server) = start(usual());
    let mut peer = Peer::connect(server.http);
    for (given, expected) in [
        ("[NaN,-NaN,Inf,-Inf]", "[NaN,NaN,Infinity,-Infinity]"),
        ("[Infinity,-Infinity,1,-0]", "[Infinity,-Infinity,1.0,0.0]"),
        ("[-0.0,0.5e1,5E-1,1e0]", "[-0.0,5.0,0.5,1.0]"),
        ("[1e21,999999999999999999999,1e-6,9.99e-7]", "[1e21,1e21,0.000001,9.99e-7]"),
        (
            "[18446744073709551615,18446744073709551616,-9223372036854775808,-9223372036854775809]",
            "[18446744073709552000.0,18446744073709552000.0,-9223372036854775808.0,-9223372036854775808.0]",
        ),
    ] {
        let answer = infer(&mut peer, "fp64", "FP64", 4, given.as_bytes());
        let numbers = |text: &str| text.trim_matches(['[', ']']).split(',').map(str::to_string).collect::<Vec<_>>();
        let got = numbers(&String::from_utf8_lossy(data_of(&answer)));
        for (at, (got, wanted)) in got.iter().zip(numbers(expected)).enumerate() {
            // Long whole numbers are compared by value, not by their trailing zeros.
            let same = *got == wanted || (wanted.len() > 18 && got.parse::<f64>() == wanted.parse::<f64>());
            assert!(same, "{given}, number {at}: expected {wanted}, got {got}");
        }
    }
    for bad in [
        "[+1]",
        "[+NaN]",
        "[+Infinity]",
        "[nan]",
        "[infinity]",
        "[.5]",
        "[1.]",
        "[01]",
        "[1e]",
        "[0x1]",
        "[1_0]",
        "['a']",
        "[1,]",
        "[,1]",
    ] {
        let answer = infer(&mut peer, "fp64", "FP64", 1, bad.as_bytes());
        let text = answer.error();
        assert!(answer.status == 500 && text.starts_with("failed to parse the request JSON buffer: "), "{bad}: {text}");
        assert!(text.rsplit(" at ").next().is_some_and(|at| at.parse::<u32>().is_ok()), "{bad}: {text}");
    }
    server.stop();
}

/// A number is an integer if it has neither fraction nor exponent and fits the type.
#[test]
fn whole_numbers() {
    let (_repository, server) = start(usual());
    let mut peer = Peer::connect(server.http);
    for (model, datatype, good, bad, kind) in [
        (
            "int64",
            "INT64",
            &["-9223372036854775808", "9223372036854775807", "-0", "0"][..],
            &["9223372036854775808", "-9223372036854775809", "1.0", "1e2", "true", "null", "NaN", "\"1\""][..],
            "signed-integer",
        ),
        (
            "uint64",
            "UINT64",
            &["18446744073709551615", "0", "-0"],
            &["18446744073709551616", "-1", "1.0", "1e2", "false", "[]", "{}"],
            "unsigned-integer",
        ),
    ] {
        for number in good {
            let answer = infer(&mut peer, model, datatype, 1, format!("[{number}]").as_bytes());
            let expected = number.strip_prefix("-0").map_or(*number, |_| "0");
            assert_eq!(data_of(&answer), format!("[{expected}]").as_bytes(), "{number}");
        }
        for number in bad {
            let answer = infer(&mut peer, model, datatype, 1, format!("[{number}]").as_bytes());
            let accessor = format!("Unable to parse 'data': attempt to access JSON non-{kind} as {kind}");
            // A nested array is read: an empty one has too few elements.
            let shortage = "Failed to parse 'data' field: shape does not match true shape";
            let expected = if *number == "[]" { shortage } else { &accessor };
            assert_eq!((answer.status, answer.error().as_str()), (500, expected), "{datatype} {number}");
        }
    }
    server.stop();
}

#[test]
fn of_equal_names_the_first_wins() {
    let (_repository, server) = start(usual());
    let mut peer = Peer::connect(server.http);
    let body = r#"{"id":"first","id":7,"inputs":[{"name":"INPUT0","name":"x","datatype":"INT64","datatype":7,
        "shape":[1],"shape":[9],"data":[5],"data":"x"}],"inputs":7,"outputs":[{"name":"OUTPUT0","name":7}],"outputs":7,
        "parameters":{"priority":1,"priority":"x","sequence_start":false,"sequence_start":7},"parameters":7}"#;
    let answer = peer.post("/v2/models/int64/infer", &[], body.as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text());
    let json = answer.json();
    assert_eq!((&json["id"], &json["outputs"][0]["data"]), (&json!("first"), &json!([5])));
    // When all members are enumerated, each occurrence of a name has the value of the first: here the reserved name is
    // second.
    let body = r#"{"parameters":{"mine":null,"mine":1},"inputs":[]}"#;
    let answer = peer.post("/v2/models/int64/infer", &[], body.as_bytes());
    let text = "parameter 'mine' has invalid type. It should be either 'int', 'bool', or 'string'.";
    assert_eq!((answer.status, answer.error().as_str()), (400, text));
    server.stop();
}

/// Nesting uses no stack: 30,000 levels are parsed, and then refused as inputs.
#[test]
fn depth_without_end() {
    each(&variant::ALL, |variant| {
        let (_repository, server) = start(variant);
        let mut peer = Peer::connect(server.http);
        for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
            let innermost = if open == "[" { "" } else { "1" };
            let deep = format!("{}{innermost}{}", open.repeat(30_000), close.repeat(30_000));
            for body in [
                format!(r#"{{"x":{deep}}}"#),
                format!(r#"{{"inputs":[{{"name":"INPUT0","datatype":"INT64","shape":[1],"x":{deep},"data":[1]}}]}}"#),
            ] {
                let answer = peer.post("/v2/models/int64/infer", &[], body.as_bytes());
                let expected = if body.starts_with("{\"x\"") {
                    (500, "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'".to_string())
                } else {
                    (200, String::new())
                };
                let text = if answer.status == 200 { String::new() } else { answer.error() };
                assert_eq!((answer.status, text), expected);
            }
            let open_only = format!(r#"{{"x":{}"#, open.repeat(30_000));
            let answer = peer.post("/v2/models/int64/infer", &[], open_only.as_bytes());
            assert_eq!(answer.status, 500, "{}", answer.text());
        }
        server.stop();
    });
}
