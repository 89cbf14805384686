//! Every datatype in every form of a tensor in HTTP requests and responses (contract/http.md section 5).

use serde_json::{Value, json};

use nereid_test_support::http::{Answer, Peer, infer_with_tail, request};
use nereid_test_support::repository::{Pair, Repository, TYPES};
use nereid_test_support::server::Server;
use nereid_test_support::variant::{self, each, usual};

/// The parameters that the identity backend adds to each response (contract/backends.md section 1).
fn identity_parameters() -> Value {
    json!({"param0": "an example string parameter", "param1": 42, "param2": false, "param3": 123.123})
}

/// Sends `json` and `tail` to `model`; the response must be a success.
fn infer(peer: &mut Peer, model: &str, json: &str, tail: Option<&[u8]>) -> Answer {
    let path = format!("/v2/models/{model}/infer");
    let bytes = match tail {
        Some(tail) => infer_with_tail(&path, json, tail),
        None => request("POST", &path, &[], json.as_bytes()),
    };
    let answer = peer.send(&bytes).answer();
    assert_eq!(answer.status, 200, "{model} {json}: {}", answer.text());
    answer
}

/// Two elements of each datatype: as JSON of a request, as JSON of a response, and as bytes; FP16 and BF16 have no JSON
/// form.
const SAMPLES: [(&str, &str, &str, &[u8]); 14] = [
    ("BOOL", "[true,false]", "[true,false]", &[1, 0]),
    ("UINT8", "[0,255]", "[0,255]", &[0, 255]),
    ("UINT16", "[1,65535]", "[1,65535]", &[1, 0, 255, 255]),
    ("UINT32", "[1,4294967295]", "[1,4294967295]", &[1, 0, 0, 0, 255, 255, 255, 255]),
    (
        "UINT64",
        "[1,18446744073709551615]",
        "[1,18446744073709551615]",
        &[1, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255],
    ),
    ("INT8", "[-128,127]", "[-128,127]", &[128, 127]),
    ("INT16", "[-32768,5]", "[-32768,5]", &[0, 128, 5, 0]),
    ("INT32", "[-2147483648,7]", "[-2147483648,7]", &[0, 0, 0, 128, 7, 0, 0, 0]),
    (
        "INT64",
        "[-9223372036854775808,-1]",
        "[-9223372036854775808,-1]",
        &[0, 0, 0, 0, 0, 0, 0, 128, 255, 255, 255, 255, 255, 255, 255, 255],
    ),
    ("FP16", "", "", &[0, 0x3c, 0, 0xc0]),
    ("BF16", "", "", &[0x80, 0x3f, 0, 0xc0]),
    ("FP32", "[0.1,-2]", "[0.10000000149011612,-2.0]", &[0xcd, 0xcc, 0xcc, 0x3d, 0, 0, 0, 0xc0]),
    (
        "FP64",
        "[0.1,1e300]",
        "[0.1,1e300]",
        &[0x9a, 0x99, 0x99, 0x99, 0x99, 0x99, 0xb9, 0x3f, 0x9c, 0x75, 0x00, 0x88, 0x3c, 0xe4, 0x37, 0x7e],
    ),
    ("BYTES", r#"["a\n","ü"]"#, r#"["a\n","ü"]"#, &[2, 0, 0, 0, b'a', b'\n', 2, 0, 0, 0, 0xc3, 0xbc]),
];

#[test]
fn every_datatype_in_json_and_binary() {
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        repository.every_datatype();
        let server = Server::start(variant, repository.path(), &[]);
        let mut peer = Peer::connect(server.http);
        for (datatype, json_in, json_out, bytes) in SAMPLES {
            let lower = datatype.to_lowercase();
            for (model, shape) in [(format!("identity_{lower}"), "[1,2]"), (format!("batch_{lower}"), "[2,1]")] {
                let tensor = format!(r#""name":"INPUT0","datatype":"{datatype}","shape":{shape}"#);
                let size = bytes.len();
                let binary = format!(r#""inputs":[{{{tensor},"parameters":{{"binary_data_size":{size}}}}}]"#);
                let binary_out = r#""outputs":[{"name":"OUTPUT0","parameters":{"binary_data":true}}]"#;
                let meta = json!({"name": "OUTPUT0", "datatype": datatype, "shape": json_of(shape)});

                // Binary in, binary out.
                let sent = format!("{{{binary},{binary_out}}}");
                let answer = infer(&mut peer, &model, &sent, Some(bytes));
                assert_eq!(answer.header("content-type"), Some("application/octet-stream"), "{model}");
                check_binary(&answer, &meta, bytes, &model);

                if json_in.is_empty() {
                    continue;
                }
                // Binary in, JSON out.
                let answer = infer(&mut peer, &model, &format!("{{{binary}}}"), Some(bytes));
                check_json(&answer, &meta, json_out, &model);
                // JSON in, JSON out.
                let json_input = format!(r#""inputs":[{{{tensor},"data":{json_in}}}]"#);
                let answer = infer(&mut peer, &model, &format!("{{{json_input}}}"), None);
                assert_eq!(answer.header("content-type"), Some("application/json"), "{model}");
                check_json(&answer, &meta, json_out, &model);
                // JSON in, binary out; then the same by the default for all outputs.
                let answer = infer(&mut peer, &model, &format!("{{{json_input},{binary_out}}}"), None);
                check_binary(&answer, &meta, bytes, &model);
                let default = r#""parameters":{"binary_data_output":true}"#;
                let answer = infer(&mut peer, &model, &format!("{{{json_input},{default}}}"), None);
                check_binary(&answer, &meta, bytes, &model);
            }
        }
        server.stop();
    });
}

fn json_of(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON of the test's own")
}

/// The response has one output with these properties and this binary data, and no further bytes.
fn check_binary(answer: &Answer, meta: &Value, bytes: &[u8], what: &str) {
    let (json, tail) = answer.split();
    let mut expected = meta.clone();
    expected["parameters"] = json!({"binary_data_size": bytes.len()});
    assert_eq!(json["outputs"], json!([expected]), "{what}");
    assert_eq!(json["parameters"], identity_parameters(), "{what}");
    assert_eq!(tail, bytes, "{what}: the binary tail");
}

/// The response has one output with these properties and, letter for letter, this JSON data.
fn check_json(answer: &Answer, meta: &Value, data: &str, what: &str) {
    assert_eq!(answer.header("inference-header-content-length"), None, "{what}");
    let text = answer.text();
    let wanted = format!("\"data\":{data}");
    assert!(text.contains(&wanted), "{what}: expected {wanted} in {text}");
    let json = answer.json();
    let output = &json["outputs"][0];
    for member in ["name", "datatype", "shape"] {
        assert_eq!(output[member], meta[member], "{what}: {member}");
    }
}

#[test]
fn raw_binary_requests_need_no_json() {
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        repository.identity("vector", 0, &[Pair::new("FP32", "-1")]);
        repository.identity("batching", 4, &[Pair::new("INT16", "2, -1")]);
        repository.identity("string", 0, &[Pair::new("BYTES", "1")]);
        let server = Server::start(variant, repository.path(), &[]);
        let mut peer = Peer::connect(server.http);
        for (model, body, datatype, shape, bytes) in [
            (
                "vector",
                &b"\x00\x00\x80\x3f\x00\x00\x00\x40"[..],
                "FP32",
                json!([2]),
                &b"\x00\x00\x80\x3f\x00\x00\x00\x40"[..],
            ),
            ("batching", b"abcdefghijkl", "INT16", json!([1, 2, 3]), b"abcdefghijkl"),
            ("string", b"a picture", "BYTES", json!([1]), b"\x09\x00\x00\x00a picture"),
        ] {
            let path = format!("/v2/models/{model}/infer");
            let answer = peer.post(&path, &[("Inference-Header-Content-Length", "0")], body);
            assert_eq!(answer.status, 200, "{model}: {}", answer.text());
            let meta = json!({"name": "OUTPUT0", "datatype": datatype, "shape": shape});
            check_binary(&answer, &meta, bytes, model);
        }
        server.stop();
    });
}

#[test]
fn floats_keep_their_last_digit_and_their_infinities() {
    let repository = Repository::new();
    repository.every_datatype();
    let server = Server::start(usual(), repository.path(), &[]);
    let mut peer = Peer::connect(server.http);
    for (datatype, given, expected) in [
        ("FP32", "[NaN,Infinity,-Infinity,Inf,-Inf]", "[NaN,Infinity,-Infinity,Infinity,-Infinity]"),
        ("FP64", "[NaN,Infinity,-Infinity,Inf,-Inf]", "[NaN,Infinity,-Infinity,Infinity,-Infinity]"),
        ("FP32", "[1e39,-1e39,-0.0,0]", "[Infinity,-Infinity,-0.0,0.0]"),
        ("FP64", "[3.5e30,1.5e-7,1e21,0.000001]", "[3.5e30,1.5e-7,1e21,0.000001]"),
        ("FP32", "[1e20,16777217,1.5]", "[100000002004087730000.0,16777216.0,1.5]"),
        ("FP64", "[123456789012345678,-1.0]", "[123456789012345680.0,-1.0]"),
    ] {
        let count = given.split(',').count();
        let model = format!("identity_{}", datatype.to_lowercase());
        let sent =
            format!(r#"{{"inputs":[{{"name":"INPUT0","datatype":"{datatype}","shape":[1,{count}],"data":{given}}}]}}"#);
        let text = infer(&mut peer, &model, &sent, None).text();
        let wanted = format!("\"data\":{expected}");
        assert!(text.contains(&wanted), "{datatype} {given}: expected {wanted} in {text}");
    }
    server.stop();
}

/// As the only input and after one that fits, over both routes that accept JSON.
#[test]
fn integers_that_their_type_has_no_room_for_are_refused() {
    let repository = Repository::new();
    repository.every_datatype();
    let server = Server::start(usual(), repository.path(), &[]);
    let mut peer = Peer::connect(server.http);
    for (datatype, fits, too_large) in [
        ("UINT8", "255", "256"),
        ("UINT16", "65535", "65536"),
        ("UINT32", "4294967295", "4294967296"),
        ("INT8", "-128", "-129"),
        ("INT8", "127", "128"),
        ("INT16", "-32768", "-32769"),
        ("INT32", "2147483647", "2147483648"),
    ] {
        let model = format!("identity_{}", datatype.to_lowercase());
        let text = format!("{datatype} data value {too_large} is out of range");
        for number in [fits, too_large, fits, too_large] {
            let sent = format!(
                r#"{{"inputs":[{{"name":"INPUT0","datatype":"{datatype}","shape":[1,2],"data":[7,{number}]}}]}}"#
            );
            let answer = peer.post(&format!("/v2/models/{model}/infer"), &[], sent.as_bytes());
            match number == fits {
                true => assert!(answer.text().contains(&format!("\"data\":[7,{fits}]")), "{}", answer.text()),
                false => assert_eq!((answer.status, answer.error()), (400, text.clone())),
            }
        }
        for data in [too_large.to_owned(), format!("[7,{too_large}]")] {
            let path = format!("/v2/models/{model}/generate");
            let answer = peer.post(&path, &[], format!(r#"{{"INPUT0":{data}}}"#).as_bytes());
            assert_eq!((answer.status, answer.error()), (400, text.clone()), "{data}");
        }
    }
    server.stop();
}

#[test]
fn nested_and_flat_arrays_mean_the_same() {
    let repository = Repository::new();
    repository.identity("cube", 0, &[Pair::new("INT32", "-1, -1, -1")]);
    let server = Server::start(usual(), repository.path(), &[]);
    let mut peer = Peer::connect(server.http);
    for data in
        ["[1,2,3,4,5,6,7,8]", "[[[1,2],[3,4]],[[5,6],[7,8]]]", "[[1,2,3,4],[5,6],[7],[8]]", "[ 1 , 2,3,4,\n5,6,7,8]"]
    {
        let sent = format!(r#"{{"inputs":[{{"name":"INPUT0","datatype":"INT32","shape":[2,2,2],"data":{data}}}]}}"#);
        let answer = infer(&mut peer, "cube", &sent, None);
        assert!(answer.text().contains("\"data\":[1,2,3,4,5,6,7,8]"), "{data}: {}", answer.text());
    }
    // 99 array levels around an element are the maximum.
    let deep = |levels: usize| format!("{}1{}", "[".repeat(levels), "]".repeat(levels));
    let sent = |levels| {
        format!(r#"{{"inputs":[{{"name":"INPUT0","datatype":"INT32","shape":[1,1,1],"data":{}}}]}}"#, deep(levels))
    };
    let answer = infer(&mut peer, "cube", &sent(99), None);
    assert!(answer.text().contains("\"data\":[1]"), "{}", answer.text());
    let answer = peer.post("/v2/models/cube/infer", &[], sent(100).as_bytes());
    let text = "Unable to parse 'data': JSON nesting depth exceeds maximum allowed limit (100)";
    assert_eq!((answer.status, answer.error().as_str()), (400, text));
    server.stop();
}

#[test]
fn tensors_without_elements_pass() {
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        repository.every_datatype();
        let server = Server::start(variant, repository.path(), &[]);
        let mut peer = Peer::connect(server.http);
        for datatype in TYPES.map(|datatype| datatype.name) {
            let model = format!("identity_{}", datatype.to_lowercase());
            let tensor = format!(r#""name":"INPUT0","datatype":"{datatype}","shape":[0,3]"#);
            let meta = json!({"name": "OUTPUT0", "datatype": datatype, "shape": [0, 3]});
            if !matches!(datatype, "FP16" | "BF16") {
                let answer = infer(&mut peer, &model, &format!(r#"{{"inputs":[{{{tensor},"data":[]}}]}}"#), None);
                check_json(&answer, &meta, "[]", datatype);
            }
            // A binary output of no bytes alone gives the JSON content type and no length header.
            let sent = format!(
                r#"{{"inputs":[{{{tensor},"parameters":{{"binary_data_size":0}}}}],"parameters":{{"binary_data_output":true}}}}"#
            );
            let answer = infer(&mut peer, &model, &sent, Some(b""));
            assert_eq!(answer.header("content-type"), Some("application/json"), "{datatype}");
            assert_eq!(answer.header("inference-header-content-length"), None, "{datatype}");
            let json = answer.json();
            let expected = json!([{"name": "OUTPUT0", "datatype": datatype, "shape": [0, 3],
                                   "parameters": {"binary_data_size": 0}}]);
            assert_eq!(json["outputs"], expected, "{datatype}");
        }
        server.stop();
    });
}

#[test]
fn requested_outputs_ids_and_parameters() {
    let repository = Repository::new();
    repository.identity("three", 0, &[Pair::new("INT32", "-1"), Pair::new("BYTES", "-1"), Pair::new("FP64", "2")]);
    let server = Server::start(usual(), repository.path(), &[]);
    let mut peer = Peer::connect(server.http);
    let inputs = r#""inputs":[
        {"name":"INPUT0","datatype":"INT32","shape":[2],"parameters":{"binary_data_size":8}},
        {"name":"INPUT1","datatype":"BYTES","shape":[1],"data":["one"]},
        {"name":"INPUT2","datatype":"FP64","shape":[2],"parameters":{"binary_data_size":16}}]"#;
    let tail: Vec<u8> = (0..24).collect();

    // Without requested outputs all are returned, in the order of the configuration; without an id there is no "id"
    // member.
    let answer = infer(&mut peer, "three", &format!("{{{inputs}}}"), Some(&tail));
    let json = answer.json();
    assert_eq!(json.get("id"), None);
    assert_eq!((&json["model_name"], &json["model_version"]), (&json!("three"), &json!("1")));
    let names: Vec<_> = json["outputs"].as_array().into_iter().flatten().map(|output| output["name"].clone()).collect();
    assert_eq!(names, [json!("OUTPUT0"), json!("OUTPUT1"), json!("OUTPUT2")]);
    assert_eq!(json["outputs"][1]["data"], json!(["one"]));

    // Only the listed ones are returned, each in its own form; listed outputs ignore binary_data_output.
    let sent = format!(
        r#"{{"id":"my id","parameters":{{"binary_data_output":true,"custom":"x","number":5}},{inputs},
            "outputs":[{{"name":"OUTPUT2","parameters":{{"binary_data":true}}}},{{"name":"OUTPUT0"}}]}}"#
    );
    let answer = infer(&mut peer, "three", &sent, Some(&tail));
    let (json, rest) = answer.split();
    assert_eq!(json["id"], "my id");
    let outputs = json["outputs"].as_array().cloned().unwrap_or_default();
    let by_name = |name: &str| outputs.iter().find(|output| output["name"] == name).cloned().unwrap_or_default();
    assert_eq!(outputs.len(), 2, "{json}");
    assert_eq!(by_name("OUTPUT0")["data"], json!([0x0302_0100, 0x0706_0504]));
    assert_eq!(by_name("OUTPUT2")["parameters"], json!({"binary_data_size": 16}));
    assert_eq!(rest, &tail[8..]);
    server.stop();
}

#[test]
fn optional_inputs_may_be_absent() {
    let repository = Repository::new();
    repository.identity("maybe", 0, &[Pair::new("INT32", "-1"), Pair::new("FP32", "-1, 3").optional()]);
    let server = Server::start(usual(), repository.path(), &[]);
    let mut peer = Peer::connect(server.http);
    let one = r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[2],"data":[5,6]}]"#;
    let json = infer(&mut peer, "maybe", &format!("{one}}}"), None).json();
    assert_eq!(json["outputs"][0]["data"], json!([5, 6]));
    // An absent input reads as zeros in the config's shape, each -1 taken as 1 (contract/backends.md section 1).
    assert_eq!(json["outputs"][1]["shape"], json!([1, 3]));
    assert_eq!(json["outputs"][1]["data"], json!([0.0, 0.0, 0.0]));
    let json = infer(&mut peer, "maybe", &format!(r#"{one},"outputs":[{{"name":"OUTPUT0"}}]}}"#), None).json();
    assert_eq!(json["outputs"].as_array().map(Vec::len), Some(1));
    server.stop();
}

#[test]
fn large_tensors_arrive_unchanged() {
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        repository.identity("pictures", 8, &[Pair::new("FP32", "3, 224, 224")]);
        repository.identity("two", 0, &[Pair::new("UINT8", "-1"), Pair::new("INT64", "-1")]);
        let server = Server::start(variant, repository.path(), &[]);
        let mut peer = Peer::connect(server.http);
        let picture: Vec<u8> = (0..3 * 224 * 224 * 4 * 2u32).map(|i| (i ^ (i >> 11)) as u8).collect();
        let size = picture.len();
        let sent = format!(
            r#"{{"inputs":[{{"name":"INPUT0","datatype":"FP32","shape":[2,3,224,224],"parameters":{{"binary_data_size":{size}}}}}],"parameters":{{"binary_data_output":true}}}}"#
        );
        for _ in 0..3 {
            let answer = infer(&mut peer, "pictures", &sent, Some(&picture));
            assert!(answer.split().1 == picture, "the picture changed on its way");
        }
        // An odd number of bytes first, so that the second tensor is unaligned in the binary data; the bound is on JSON
        // only, so 70 MB are accepted.
        let (odd, even) = (30_000_001usize, 40_000_000usize);
        let tail: Vec<u8> = (0..odd + even).map(|i| (i ^ (i >> 9)) as u8).collect();
        let sent = format!(
            r#"{{"inputs":[{{"name":"INPUT0","datatype":"UINT8","shape":[{odd}],"parameters":{{"binary_data_size":{odd}}}}},
                {{"name":"INPUT1","datatype":"INT64","shape":[{}],"parameters":{{"binary_data_size":{even}}}}}],
                "parameters":{{"binary_data_output":true}}}}"#,
            even / 8
        );
        let answer = infer(&mut peer, "two", &sent, Some(&tail));
        assert!(answer.split().1 == tail, "70 MB changed on their way");
        server.stop();
    });
}
