//! The same requests to both servers, on models of the same backend library: status, content type and body must be
//! equal, over HTTP and over gRPC.

use std::collections::BTreeMap;

use bytes::Bytes;
use nereid_wire::health::{HealthCheckRequest, HealthCheckResponse};
use nereid_wire::inference::infer_parameter::ParameterChoice::{
    self, BoolParam, DoubleParam, Int64Param, StringParam, Uint64Param,
};
use nereid_wire::inference::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use nereid_wire::inference::*;
use prost::Message;
use serde_json::json;

use crate::repository::judge::differences::{Known, Line, compare};
use nereid_test_support::backend;
use nereid_test_support::grpc::{Grpc, SERVICE, code, frame};
use nereid_test_support::http::{Answer, Peer, infer_with_tail, request};
use nereid_test_support::original::original;
use nereid_test_support::repository::{Pair, Repository, TYPES};
use nereid_test_support::server::Server;
use nereid_test_support::steadily::steadily;
use nereid_test_support::variant::usual;

fn repository() -> Repository {
    let repository = Repository::new();
    let model = |name: &str, batch, pairs: &[Pair]| {
        repository.identity_of("copycat", name, batch, pairs, "");
    };
    model("two", 0, &[Pair::new("INT32", "2"), Pair::new("FP32", "-1").optional()]);
    model("good", 0, &[Pair::new("INT32", "2")]);
    model("three", 0, &[Pair::new("INT32", "2"), Pair::new("INT32", "2"), Pair::new("INT32", "2")]);
    model("batching", 4, &[Pair::new("INT32", "2"), Pair::new("INT32", "2").optional()]);
    model("wild", 0, &[Pair::new("INT8", "-1, -1")]);
    model("string", 0, &[Pair::new("BYTES", "2")]);
    model("single", 0, &[Pair::new("BYTES", "1")]);
    model("fixed", 2, &[Pair::new("INT16", "2, 3")]);
    // Only asked for its metadata; a foreign library cannot be reshaped for.
    repository.identity("reshaped", 4, &[Pair::new("FP32", "1").reshape("reshape { shape: [ ] }")]);
    model("labelled", 0, &[Pair::new("FP32", "-1").labels()]);
    model("stats", 0, &[Pair::new("INT32", "2")]);
    repository.file("labelled/labels.txt", "ant\nbee\n\ncow");
    for datatype in TYPES {
        let lower = datatype.name.to_lowercase();
        model(&format!("of_{lower}"), 0, &[Pair::new(datatype.name, "-1")]);
    }
    let pairs = [Pair::new("INT32", "2")];
    let decoupled = "model_transaction_policy { decoupled: true }";
    repository.identity_of("copycat", "decoupled", 0, &pairs, decoupled);
    repository.identity_of("copycat", "versions", 0, &pairs, "version_policy { all { } }").version("versions", "12");
    repository
}

/// A server of ours or theirs with the models.
fn start(words: &[String], repository: &Repository) -> Option<Server> {
    let directory = format!("--backend-directory={}", backend::directory()?.display());
    Some(Server::start_under(words, usual(), repository.path(), &[&directory], "/v2/health/ready"))
}

/// One request over HTTP as it is sent, behind what it is called.
fn http_requests() -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    let mut plain = |method: &str, path: &str, body: &str| {
        all.push((format!("{method} {path} {body}"), request(method, path, &[], body.as_bytes())));
    };
    for path in [
        "/v2",
        "/v2/",
        "/",
        "/V2",
        "/v2?query=1",
        "/v2/health/live",
        "/v2/health/ready",
        "/v2/health/ready?x",
        "/v2/health/nothing",
        "/v2/models",
        "/v2/models/",
        "/v2/models/two",
        "/v2/models/t%77o",
        "/v2/models/two/",
        "/v2/models/two/versions",
        "/v2/models/two/versions/1",
        "/v2/models/two/versions/01",
        "/v2/models/two/versions/0",
        "/v2/models/two/versions/2",
        "/v2/models/two/versions/-1",
        "/v2/models/two/versions/1.0",
        "/v2/models/two/versions/9223372036854775807",
        "/v2/models/two/versions/9223372036854775808",
        "/v2/models/two/versions/99999999999999999999",
        "/v2/models/two/nothing",
        "/v2/models/two/infer",
        "/v2/models/two/ready",
        "/v2/models/two/versions/1/ready",
        "/v2/models/two/config",
        "/v2/models/two/versions/1/config",
        "/v2/models/two/versions/7/config",
        "/v2/models/two/versions/1/trace/setting",
        "/v2/models/absent",
        "/v2/models/absent/versions/3",
        "/v2/models/absent/config",
        "/v2/models/absent/stats",
        "/v2/models/two/versions/7/stats",
        "/v2/models/versions",
        "/v2/models/versions/versions/1",
        "/v2/models/versions/versions/12",
        "/v2/models/batching",
        "/v2/models/reshaped",
        "/v2/models/reshaped/config",
        "/v2/models/labelled/config",
        "/v2/models/versions/config",
        "/v2/models/stats/versions/1",
        "/v2/models/stats/config",
        "/v2/logging/",
        "/v2/repository/index",
        "/v2/repository/models/two/load",
        "/metrics",
    ] {
        plain("GET", path, "");
    }
    for (method, path) in [
        ("POST", "/v2"),
        ("PUT", "/v2"),
        ("DELETE", "/v2/health/live"),
        ("POST", "/v2/health/ready"),
        ("POST", "/v2/models/two"),
        ("POST", "/v2/models/two/ready"),
        ("POST", "/v2/models/two/config"),
        ("POST", "/v2/models/two/stats"),
        ("POST", "/v2/models/stats"),
        ("PUT", "/v2/models/two/infer"),
        ("PUT", "/v2/logging"),
        ("PUT", "/v2/repository/index"),
        ("GET", "/v2/repository/models/two/unload"),
        ("POST", "/nowhere"),
        ("POST", "/v2/models/absent"),
    ] {
        plain(method, path, "");
    }
    for (path, body) in [
        ("/v2/repository/models/two/load", ""),
        ("/v2/repository/models/two/unload", ""),
        ("/v2/repository/x/models/two/load", ""),
        ("/v2/repository/x/models/two/unload", ""),
        ("/v2/logging", ""),
        ("/v2/logging", "{"),
        ("/v2/logging", "[]"),
        ("/v2/logging", "{\"log_info\":1}"),
        ("/v2/logging", "{\"log_verbose_level\":-1}"),
        ("/v2/logging", "{\"log_format\":\"x\"}"),
        ("/v2/logging", "{\"log_file\":\"x\"}"),
        ("/v2/repository/index", "{"),
        ("/v2/repository/index", "[1]"),
    ] {
        plain("POST", path, body);
    }
    for (model, body) in infer_bodies() {
        plain("POST", &format!("/v2/models/{model}/infer"), body);
    }
    plain("POST", "/v2/models/good/versions/1/infer", GOOD);
    plain("POST", "/v2/models/good/versions/9/infer", GOOD);
    plain("POST", "/v2/models/good/versions/99999999999999999999/infer", GOOD);
    plain("POST", "/v2/models/versions/infer", GOOD);
    plain("POST", "/v2/models/absent/infer", "nonsense");
    for data in DATA {
        let (datatype, data) = data;
        let count = data.split(',').count();
        let model = format!("of_{}", datatype.to_lowercase());
        let body =
            format!(r#"{{"inputs":[{{"name":"INPUT0","datatype":"{datatype}","shape":[{count}],"data":{data}}}]}}"#);
        plain("POST", &format!("/v2/models/{model}/infer"), &body);
    }
    all.extend(binary_requests());
    all
}

const GOOD: &str = r#"{"id":"g","inputs":[{"name":"INPUT0","datatype":"INT32","shape":[2],"data":[1,2]}]}"#;

/// Without the shapes that are too large for any tensor: the official server ends with an exception of its standard
/// library at those.
fn infer_bodies() -> Vec<(&'static str, &'static str)> {
    vec![
        ("good", GOOD),
        ("two", GOOD),
        ("two", ""),
        ("two", " "),
        ("two", "null"),
        ("two", "[]"),
        ("two", "7"),
        ("two", "{}"),
        ("two", "{} {}"),
        ("two", r#"{"inputs":null}"#),
        ("two", r#"{"inputs":[]}"#),
        ("two", r#"{"inputs":[7]}"#),
        ("two", r#"{"inputs":[[]]}"#),
        ("two", r#"{"inputs":[{}]}"#),
        ("two", r#"{"id":7,"parameters":7,"inputs":7,"outputs":7}"#),
        ("two", r#"{"id":"x","parameters":7,"inputs":7,"outputs":7}"#),
        ("two", r#"{"parameters":{"sequence_id":1.5},"inputs":7,"outputs":7}"#),
        ("two", r#"{"inputs":7,"outputs":7}"#),
        ("two", r#"{"outputs":7,"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[2],"data":[1,2]}]}"#),
        ("two", r#"{"outputs":[7],"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[2],"data":[1,2]}]}"#),
        ("two", r#"{"outputs":[{}],"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[2],"data":[1,2]}]}"#),
        ("two", r#"{"outputs":[{"name":3}],"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[2],"data":[1,2]}]}"#),
        (
            "two",
            r#"{"outputs":[{"name":"OUTPUT0","parameters":{"binary_data":1}}],"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[2],"data":[1,2]}]}"#,
        ),
        (
            "two",
            r#"{"outputs":[{"name":"OUTPUT0","parameters":7}],"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[2],"data":[1,2]}]}"#,
        ),
        (
            "two",
            r#"{"outputs":[{"name":"OUTPUT9"}],"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[2],"data":[1,2]}]}"#,
        ),
        ("two", r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[2],"data":7}]}"#),
        ("two", r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[2],"data":null}]}"#),
        ("two", r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[2],"data":{}}]}"#),
        ("two", r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[2],"data":[]}]}"#),
        ("two", r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[2],"data":[[1],[2]]}]}"#),
        ("two", r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[2],"data":[[[[1]],2]]}]}"#),
        ("two", r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[2],"data":[1,null]}]}"#),
        ("two", r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[2],"data":[1,1e2]}]}"#),
        ("two", r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[2],"data":[1,99999999999999999999]}]}"#),
        ("two", r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[2],"data":[1,9223372036854775807]}]}"#),
        ("two", r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":["2"],"data":[1,2]}]}"#),
        ("two", r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[2,-1],"data":[1,2]}]}"#),
        ("two", r#"{"inputs":[{"name":"INPUT0","datatype":"int32","shape":[2],"data":[1,2]}]}"#),
        ("two", r#"{"inputs":[{"name":"INPUT0","datatype":7,"shape":[2],"data":[1,2]}]}"#),
        ("two", r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[2],"data":[1,2],"parameters":7}]}"#),
        (
            "two",
            r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[2],"parameters":{"binary_data_size":"8"}}]}"#,
        ),
        ("two", r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[2],"parameters":{"binary_data_size":8}}]}"#),
        ("two", r#"{"inputs":[{"name":"INPUT1","datatype":"FP32","shape":[1],"data":[1]}]}"#),
        (
            "two",
            r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[2],"data":[1,2]},{"name":"INPUT1","datatype":"FP32","shape":[0],"data":[]}]}"#,
        ),
        (
            "two",
            r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[2],"data":[1,2]},{"name":"INPUT1","datatype":"FP32","shape":[1],"data":[1]},{"name":"INPUT2","datatype":"FP32","shape":[1],"data":[1]}]}"#,
        ),
        ("three", r#"{"inputs":[{"name":"INPUT1","datatype":"INT32","shape":[2],"data":[1,2]}]}"#),
        (
            "three",
            r#"{"id":"4","inputs":[{"name":"INPUT0","datatype":"INT32","shape":[2],"data":[1,2]},{"name":"INPUT1","datatype":"INT32","shape":[2],"data":[1,2]},{"name":"INPUT2","datatype":"INT32","shape":[2],"data":[1,2]},{"name":"INPUT3","datatype":"INT32","shape":[2],"data":[1,2]}]}"#,
        ),
        (
            "three",
            r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[2],"data":[1,2]},{"name":"INPUT1","datatype":"INT32","shape":[2],"data":[1,2]},{"name":"INPUT9","datatype":"INT32","shape":[2],"data":[1,2]}]}"#,
        ),
        ("batching", r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1,2],"data":[1,2]}]}"#),
        ("batching", r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[2],"data":[1,2]}]}"#),
        ("batching", r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1,3],"data":[1,2,3]}]}"#),
        ("batching", r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[],"data":[1]}]}"#),
        ("batching", r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[0,2],"data":[]}]}"#),
        (
            "batching",
            r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[5,2],"data":[1,2,3,4,5,6,7,8,9,10]}]}"#,
        ),
        ("wild", r#"{"inputs":[{"name":"INPUT0","datatype":"INT8","shape":[],"data":["ignored"]}]}"#),
        ("wild", r#"{"inputs":[{"name":"INPUT0","datatype":"INT8","shape":[0,3],"data":["ignored"]}]}"#),
        ("wild", r#"{"inputs":[{"name":"INPUT0","datatype":"INT8","shape":[2,2],"data":[1,2,3]}]}"#),
        ("wild", r#"{"inputs":[{"name":"INPUT0","datatype":"INT8","shape":[2,2],"data":[1,2,3,4,5]}]}"#),
        ("string", r#"{"inputs":[{"name":"INPUT0","datatype":"BYTES","shape":[2],"data":["a"]}]}"#),
        ("string", r#"{"inputs":[{"name":"INPUT0","datatype":"BYTES","shape":[2],"data":["a","b","c"]}]}"#),
        ("string", r#"{"inputs":[{"name":"INPUT0","datatype":"BYTES","shape":[2],"data":["a",1]}]}"#),
        ("string", r#"{"inputs":[{"name":"INPUT0","datatype":"BYTES","shape":[2],"data":[["a"],["b"]]}]}"#),
        ("of_fp16", r#"{"inputs":[{"name":"INPUT0","datatype":"FP16","shape":[1],"data":[1]}]}"#),
        ("of_bf16", r#"{"inputs":[{"name":"INPUT0","datatype":"BF16","shape":[1],"data":[1]}]}"#),
        ("of_bool", r#"{"inputs":[{"name":"INPUT0","datatype":"BOOL","shape":[1],"data":[1]}]}"#),
        ("of_uint8", r#"{"inputs":[{"name":"INPUT0","datatype":"UINT8","shape":[1],"data":[-1]}]}"#),
        ("of_fp64", r#"{"inputs":[{"name":"INPUT0","datatype":"FP64","shape":[1],"data":["1"]}]}"#),
        ("decoupled", GOOD),
        ("decoupled", "nonsense"),
        (
            "labelled",
            r#"{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[5],"data":[0.5,2.25,-1,2,0.125]}],"outputs":[{"name":"OUTPUT0","parameters":{"classification":4}}]}"#,
        ),
        (
            "labelled",
            r#"{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[2],"data":[1,2]}],"outputs":[{"name":"OUTPUT0","parameters":{"classification":0}}]}"#,
        ),
        (
            "of_bool",
            r#"{"inputs":[{"name":"INPUT0","datatype":"BOOL","shape":[1],"data":[true]}],"outputs":[{"name":"OUTPUT0","parameters":{"classification":1}}]}"#,
        ),
        (
            "good",
            r#"{"parameters":{"fail":"as told: \"é\"\n"},"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[2],"data":[1,2]}]}"#,
        ),
        (
            "good",
            r#"{"parameters":{"refuse":"not now"},"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[2],"data":[1,2]}]}"#,
        ),
        ("two", r#"{"parameters":{"triton_x":1},"inputs":[]}"#),
        ("two", r#"{"parameters":{"x":null},"inputs":[]}"#),
        ("two", r#"{"parameters":{"x":[1]},"inputs":[]}"#),
        ("two", r#"{"parameters":{"priority":-1},"inputs":[]}"#),
        ("two", r#"{"parameters":{"timeout":1.0},"inputs":[]}"#),
        ("two", r#"{"parameters":{"sequence_start":"true"},"inputs":[]}"#),
        ("two", r#"{"parameters":{"sequence_id":true},"inputs":[]}"#),
        ("two", r#"{"parameters":{"binary_data_output":1},"inputs":[]}"#),
        (
            "good",
            r#"{"id":"first","id":"second","inputs":[{"name":"INPUT0","datatype":"INT32","shape":[2],"shape":[3],"data":[1,2],"data":[3,4,5]}]}"#,
        ),
    ]
}

/// Numbers and strings in, as a model of the type answers them.
const DATA: [(&str, &str); 18] = [
    ("FP64", "[-0,1e2,18446744073709551616,-9223372036854775809]"),
    ("FP32", "[9999999999999999999999,0.1e-3,-1e-7]"),
    ("FP32", "[NaN,Infinity,-Infinity,Inf,-Inf,-NaN]"),
    ("FP64", "[NaN,Infinity,-Infinity,Inf,-Inf,-NaN]"),
    ("FP32", "[1e39,-1e39,-0.0,0,1E2,0.1,1e-46]"),
    ("FP64", "[3.5e30,1.5e-7,1e21,0.000001,1e20,123456789012345678,5e-324,1.7976931348623157e308]"),
    ("FP64", "[0.1,1.0,-2,100,1e5,1234567.25]"),
    ("FP32", "[16777217,3.4028235e38,1.17549435e-38]"),
    ("UINT8", "[0,255,256,257]"),
    ("INT8", "[127,128,-128,-129]"),
    ("UINT16", "[65535,65536]"),
    ("INT16", "[32767,32768]"),
    ("UINT32", "[4294967295,4294967296]"),
    ("UINT64", "[18446744073709551615,0]"),
    ("INT64", "[-9223372036854775808,9223372036854775807]"),
    ("BOOL", "[true,false]"),
    ("BYTES", r#"["","a\u0000b","\"\\\/\b\f\n\r\t","\u00e9\u20ac","é€","\u0001\u001f"]"#),
    ("BYTES", r#"["\ud83d\ude00","😀"]"#),
];

fn binary_requests() -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    let one = |size: usize, more: &str| {
        format!(
            r#"{{"inputs":[{{"name":"INPUT0","datatype":"INT32","shape":[2],"parameters":{{"binary_data_size":{size}}}}}]{more}}}"#
        )
    };
    let binary = r#","parameters":{"binary_data_output":true}"#;
    let path = "/v2/models/good/infer";
    for (json, tail) in [
        (one(8, ""), &b"12345678"[..]),
        (one(8, binary), b"12345678"),
        (one(8, r#","outputs":[{"name":"OUTPUT0","parameters":{"binary_data":true}}]"#), b"12345678"),
        (one(8, binary), b"1234567"),
        (one(8, binary), b"123456789"),
        (one(7, binary), b"1234567"),
        (one(0, binary), b""),
        (one(12, binary), b"123456789012"),
    ] {
        all.push((format!("POST {path} {json} and {} bytes", tail.len()), infer_with_tail(path, &json, tail)));
    }
    let with = |value: &str| request("POST", path, &[("Inference-Header-Content-Length", value)], GOOD.as_bytes());
    let exact = GOOD.len().to_string();
    for value in [&exact, "1000", "-1", "many", "", "7x", " 7", "2147483648", "-2147483649"] {
        all.push((format!("POST {path} with a header length of {value:?}"), with(value)));
    }
    // Two faults at once show which is looked for first.
    for (model, headers) in [
        ("absent", &[("Content-Encoding", "br")][..]),
        ("absent", &[("Inference-Header-Content-Length", "1000")]),
        ("absent/versions/99999999999999999999", &[("Content-Encoding", "br")]),
        ("decoupled", &[("Content-Encoding", "br")]),
        ("decoupled", &[("Inference-Header-Content-Length", "1000")]),
        ("good", &[("Content-Encoding", "br")]),
        ("good", &[("Content-Encoding", "br"), ("Inference-Header-Content-Length", "1000")]),
        ("good", &[("Content-Encoding", "identity"), ("Inference-Header-Content-Length", "1000")]),
        ("good", &[("Content-Encoding", ""), ("Inference-Header-Content-Length", "83")]),
        ("good", &[("inference-header-content-length", "84")]),
        ("good", &[("Content-Type", "text/html")]),
        ("good", &[("Content-Type", "application/octet-stream"), ("Accept", "image/png")]),
    ] {
        for body in [GOOD, "nonsense"] {
            let bytes = request("POST", &format!("/v2/models/{model}/infer"), headers, body.as_bytes());
            all.push((format!("POST {model} with {headers:?} {body}"), bytes));
        }
    }
    let raw = [("Inference-Header-Content-Length", "0")];
    for (model, body) in [
        ("two", &b"12345678"[..]),
        ("wild", b"1234"),
        ("string", b"1234"),
        ("single", b"a picture"),
        ("single", b""),
        ("of_int32", b"12345678"),
        ("of_int32", b"1234567"),
        ("of_int32", b""),
        ("fixed", b"123456789012"),
        ("fixed", b"1234"),
        ("of_fp16", b"12"),
        ("stats", b"12345678"),
    ] {
        let path = format!("/v2/models/{model}/infer");
        all.push((format!("POST {path} with {} raw bytes", body.len()), request("POST", &path, &raw, body)));
    }
    let path = "/v2/models/of_fp16/infer";
    let json = r#"{"inputs":[{"name":"INPUT0","datatype":"FP16","shape":[1],"parameters":{"binary_data_size":2}}]}"#;
    all.push((format!("POST {path} for JSON of FP16"), infer_with_tail(path, json, b"ab")));
    let path = "/v2/models/string/infer";
    for tail in [&b"\x01\0\0\0a\x02\0\0\0bc"[..], b"\x01\0\0\0a\x02\0\0", b"\x01\0\0\0a\x02\0\0\0b", b"\x01\0\0\0a"] {
        let json = format!(
            r#"{{"inputs":[{{"name":"INPUT0","datatype":"BYTES","shape":[2],"parameters":{{"binary_data_size":{}}}}}]}}"#,
            tail.len()
        );
        all.push((format!("POST {path} with {tail:?}"), infer_with_tail(path, &json, tail)));
    }
    all
}

/// Status, content type, length of the JSON and body. The connection is a new one each time: after some errors it is
/// closed by one server and kept by the other.
fn ask_http(server: &Server, bytes: &[u8]) -> String {
    let answer = Peer::connect(server.http).send(bytes).try_answer();
    let Ok(answer) = answer else { return "no answer".into() };
    let header = |name: &str| answer.header(name).map(str::to_string);
    let (kind, json) = (header("content-type"), header("inference-header-content-length"));
    format!("{} {kind:?} {json:?} {}", answer.status, comparable(&answer))
}

/// The body without what cannot be equal: the version of the server, and the order in which rows are listed.
fn comparable(answer: &Answer) -> String {
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    match serde_json::from_slice::<serde_json::Value>(&answer.body) {
        Ok(value) if value.get("extensions").is_some() => json!([value["name"], value["extensions"]]).to_string(),
        Ok(value) if value.get("instance_group").is_some() => value.to_string(),
        _ => text,
    }
}

const KNOWN_HTTP: [Known; 9] = [
    OUT_OF_RANGE,
    Known {
        name: "An empty content encoding",
        is: |difference| {
            difference.question.contains("(\"Content-Encoding\", \"\")")
                && ["200 ", "400 "].iter().any(|status| difference.ours.starts_with(status))
                && difference.theirs == r#"501 Some("text/plain") None {"error":"Unsupported compression type"}"#
        },
    },
    Known {
        name: "Too few numbers",
        is: |difference| {
            difference.ours.contains("Failed to parse 'data' field: shape does not match true shape")
                && difference.theirs.contains("Shape does not match true shape of 'data' field")
        },
    },
    Known {
        name: "The order of the inputs in a complaint",
        is: |difference| {
            let sorted = |text: &str| {
                let mut bytes = text.as_bytes().to_vec();
                bytes.sort_unstable();
                bytes
            };
            difference.ours.contains("Got input(s) [") && sorted(difference.ours) == sorted(difference.theirs)
        },
    },
    NO_ROWS,
    Known {
        name: "The last digits of a double",
        is: |difference| {
            let numbers = |text: &str| -> Vec<f64> {
                let data = text.split("\"data\":[").nth(1).and_then(|data| data.split(']').next()).unwrap_or_default();
                data.split(',').filter_map(|number| number.parse().ok()).collect()
            };
            let (ours, theirs) = (numbers(difference.ours), numbers(difference.theirs));
            let near = |(ours, theirs): (&f64, &f64)| (ours - theirs).abs() <= ours.abs() * f64::EPSILON;
            // Beside the numbers nothing differs.
            let rest = |text: &str| -> Option<(String, String)> {
                let (before, data) = text.split_once("\"data\":[")?;
                Some((before.to_owned(), data.split_once(']')?.1.to_owned()))
            };
            rest(difference.ours) == rest(difference.theirs)
                && !ours.is_empty()
                && ours.len() == theirs.len()
                && ours.iter().zip(&theirs).all(near)
        },
    },
    Known {
        name: "A length that is no number",
        is: |difference| {
            difference.question.contains("with a header length of")
                && difference.ours.contains("Unable to parse Inference-Header-Content-Length")
        },
    },
    Known {
        name: "The name of a raw input",
        is: |difference| difference.ours == difference.theirs.replace("'raw_input'", "'INPUT0'"),
    },
    Known {
        name: "A string that ends early",
        is: |difference| {
            difference.question == "POST /v2/models/string/infer with [1, 0, 0, 0, 97, 2, 0, 0, 0, 98]"
                && difference.ours.contains("incomplete string data for inference input 'INPUT0' for model 'string'")
                && difference.theirs.contains("output tensor shape does not match size of output for 'OUTPUT0'")
        },
    },
];

#[test]
fn both_servers_answer_the_same_over_http() {
    let Some(original) = original() else { return };
    steadily(|| {
        let repository = repository();
        let (Some(ours), Some(theirs)) = (start(&[], &repository), start(&original, &repository)) else { return };
        let lines = |server: &Server| -> Vec<Line> {
            let all = http_requests();
            all.into_iter().map(|(what, bytes)| (what, ask_http(server, &bytes))).collect()
        };
        compare(&lines(&ours), &lines(&theirs), &KNOWN_HTTP);
        ours.stop();
    });
}

fn input(name: &str, datatype: &str, shape: &[i64]) -> InferInputTensor {
    InferInputTensor { name: name.into(), datatype: datatype.into(), shape: shape.to_vec(), ..Default::default() }
}

fn good(raw: &'static [u8]) -> ModelInferRequest {
    ModelInferRequest {
        model_name: "good".into(),
        id: "7".into(),
        inputs: vec![input("INPUT0", "INT32", &[2])],
        raw_input_contents: vec![Bytes::from_static(raw)],
        ..Default::default()
    }
}

fn with_parameter(key: &str, choice: ParameterChoice) -> ModelInferRequest {
    let parameter = InferParameter { parameter_choice: Some(choice) };
    ModelInferRequest { parameters: BTreeMap::from([(key.to_string(), parameter)]), ..good(b"12345678") }
}

fn with_contents(datatype: &str, contents: InferTensorContents) -> ModelInferRequest {
    let tensor = InferInputTensor { contents: Some(contents), ..input("INPUT0", datatype, &[2]) };
    ModelInferRequest { inputs: vec![tensor], raw_input_contents: vec![], ..good(b"") }
}

fn with_output(name: &str, parameters: &[(&str, ParameterChoice)]) -> ModelInferRequest {
    let parameters = parameters.iter().cloned();
    let parameters = parameters.map(|(key, choice)| (key.into(), InferParameter { parameter_choice: Some(choice) }));
    let output = InferRequestedOutputTensor { name: name.into(), parameters: parameters.collect() };
    ModelInferRequest { outputs: vec![output], ..good(b"12345678") }
}

fn infer_messages() -> Vec<ModelInferRequest> {
    let text = |text: &str| StringParam(text.to_string());
    let named = |model: &str, version: &str| ModelInferRequest {
        model_name: model.into(),
        model_version: version.into(),
        ..good(b"12345678")
    };
    let ints = |values: &[i32]| InferTensorContents { int_contents: values.to_vec(), ..Default::default() };
    let floats = InferTensorContents { fp32_contents: vec![1.0, 2.0], ..Default::default() };
    let shaped = |datatype: &str, shape: &[i64], raw: &'static [u8]| ModelInferRequest {
        inputs: vec![input("INPUT0", datatype, shape)],
        ..good(raw)
    };
    let batching = |shape: &[i64], raw: &'static [u8]| ModelInferRequest {
        model_name: "batching".into(),
        ..shaped("INT32", shape, raw)
    };
    vec![
        good(b"12345678"),
        named("absent", ""),
        named("", ""),
        named("good", "1"),
        named("good", "01"),
        named("good", "2"),
        named("good", "0"),
        named("good", "-1"),
        named("good", "-3"),
        named("good", "one"),
        named("good", "1x"),
        named("good", " 1"),
        named("good", "99999999999999999999"),
        named("versions", ""),
        named("versions", "1"),
        named("decoupled", ""),
        with_parameter("sequence_id", BoolParam(true)),
        with_parameter("sequence_start", Int64Param(1)),
        with_parameter("sequence_end", text("x")),
        with_parameter("priority", Int64Param(-1)),
        with_parameter("priority", text("x")),
        with_parameter("timeout", Uint64Param(1)),
        with_parameter("timeout", text("x")),
        with_parameter("timeout", Int64Param(-1)),
        with_parameter("sequence_id", Int64Param(-1)),
        with_parameter("triton_enable_empty_final_response", Int64Param(1)),
        with_parameter("triton_enable_empty_final_response", BoolParam(true)),
        with_parameter("triton_x", BoolParam(true)),
        with_parameter("mine", Uint64Param(1)),
        with_parameter("mine", DoubleParam(0.5)),
        with_parameter("binary_data_output", Int64Param(3)),
        with_parameter("headers", text("x")),
        with_parameter("fail", text("as told: é")),
        with_parameter("refuse", text("not now")),
        with_contents("INT32", ints(&[1, 2])),
        with_contents("INT32", ints(&[1])),
        with_contents("INT32", ints(&[1, 2, 3])),
        with_contents("INT32", InferTensorContents::default()),
        with_contents("INT32", floats.clone()),
        with_contents("FP32", ints(&[1, 2])),
        with_contents("FP32", floats.clone()),
        with_contents("FP16", floats.clone()),
        with_contents("INT32", InferTensorContents { uint_contents: vec![1, 2], ..Default::default() }),
        with_contents("INT32", InferTensorContents { int_contents: vec![1, 2], ..floats.clone() }),
        with_contents(
            "INT32",
            InferTensorContents { bytes_contents: vec![Bytes::from_static(b"a")], ..Default::default() },
        ),
        ModelInferRequest {
            raw_input_contents: vec![Bytes::from_static(b"12345678")],
            ..with_contents("INT32", ints(&[1, 2]))
        },
        ModelInferRequest { raw_input_contents: vec![], ..good(b"") },
        ModelInferRequest { raw_input_contents: vec![Bytes::from_static(b"12345678"); 3], ..good(b"") },
        ModelInferRequest { inputs: vec![], raw_input_contents: vec![], ..good(b"") },
        ModelInferRequest { inputs: vec![input("INPUT9", "INT32", &[2])], ..good(b"12345678") },
        ModelInferRequest { inputs: vec![input("INPUT0", "INT32", &[2]); 2], ..good(b"12345678") },
        shaped("INT32", &[2], b"1234567"),
        shaped("INT32", &[3], b"123456789012"),
        shaped("INT32", &[1, 2], b"12345678"),
        shaped("INT32", &[], b"1234"),
        shaped("INT32", &[-1], b"12345678"),
        shaped("INT32", &[-2], b"12345678"),
        shaped("INT31", &[2], b"12345678"),
        shaped("", &[2], b"12345678"),
        shaped("FP32", &[2], b"12345678"),
        batching(&[1, 2], b"12345678"),
        batching(&[2], b"12345678"),
        batching(&[0, 2], b""),
        batching(&[5, 2], b"1234567812345678123456781234567812345678"),
        batching(&[1, 3], b"123456789012"),
        batching(&[-1, 2], b"12345678"),
        batching(&[1, -1], b"12345678"),
        with_output("OUTPUT0", &[]),
        with_output("OUTPUT1", &[]),
        with_output("OUTPUT9", &[]),
        with_output("OUTPUT0", &[("classification", Int64Param(1))]),
        with_output("OUTPUT0", &[("classification", Int64Param(0))]),
        with_output("OUTPUT0", &[("classification", BoolParam(true))]),
        with_output("OUTPUT0", &[("unknown", BoolParam(true))]),
        with_output("OUTPUT0", &[("binary_data", Int64Param(1))]),
    ]
}

/// One call's status and messages.
fn ask_grpc(grpc: &mut Grpc, path: &str, message: &Bytes) -> (u32, String, Vec<Bytes>) {
    let reply = grpc.exchange(path, &[], std::slice::from_ref(message));
    (reply.status.code, reply.status.message, reply.messages)
}

fn shown<M: Message + Default + std::fmt::Debug>(answered: (u32, String, Vec<Bytes>)) -> String {
    let (status, text, messages) = answered;
    let messages: Vec<_> = messages.iter().map(|message| format!("{:?}", M::decode(message.clone()))).collect();
    format!("{status} {text:?} {}", messages.join(" "))
}

fn grpc_lines(server: &Server) -> Vec<Line> {
    let mut grpc = Grpc::connect(server.grpc);
    let mut lines = Vec::new();
    for (number, message) in infer_messages().into_iter().enumerate() {
        let answered = ask_grpc(&mut grpc, &format!("{SERVICE}ModelInfer"), &frame(&message));
        lines.push((format!("ModelInfer {number}: {message:?}"), shown::<ModelInferResponse>(answered)));
        // The same on a stream: the error moves into the message.
        let answered = ask_grpc(&mut grpc, &format!("{SERVICE}ModelStreamInfer"), &frame(&message));
        let line = shown::<ModelStreamInferResponse>(answered);
        lines.push((format!("ModelStreamInfer {number}: {message:?}"), line));
    }
    macro_rules! ask {
        ($rpc:literal, $answer:ty, $($message:expr),* $(,)?) => {$({
            let message = $message;
            let answered = ask_grpc(&mut grpc, &format!("{SERVICE}{}", $rpc), &frame(&message));
            lines.push((format!("{}: {message:?}", $rpc), shown::<$answer>(answered)));
        })*};
    }
    let (name, version) = (|name: &str| name.to_string(), |version: &str| version.to_string());
    ask!("ServerLive", ServerLiveResponse, ServerLiveRequest {});
    ask!("ServerReady", ServerReadyResponse, ServerReadyRequest {});
    for (model, number) in
        [("two", ""), ("two", "1"), ("two", "9"), ("two", "x"), ("absent", ""), ("", ""), ("stats", "")]
    {
        ask!("ModelReady", ModelReadyResponse, ModelReadyRequest { name: name(model), version: version(number) });
        ask!(
            "ModelMetadata",
            ModelMetadataResponse,
            ModelMetadataRequest { name: name(model), version: version(number) }
        );
        ask!("ModelConfig", ModelConfigResponse, ModelConfigRequest { name: name(model), version: version(number) });
    }
    for model in ["batching", "reshaped", "versions", "labelled", "decoupled"] {
        ask!("ModelMetadata", ModelMetadataResponse, ModelMetadataRequest { name: name(model), version: version("") });
        ask!("ModelConfig", ModelConfigResponse, ModelConfigRequest { name: name(model), version: version("") });
    }
    for (model, number) in [("two", "9"), ("two", "x"), ("absent", "")] {
        let message = ModelStatisticsRequest { name: name(model), version: version(number) };
        ask!("ModelStatistics", ModelStatisticsResponse, message);
    }
    ask!(
        "RepositoryIndex",
        RepositoryIndexResponse,
        RepositoryIndexRequest { repository_name: name("x"), ready: true }
    );
    let load = |repository: &str| RepositoryModelLoadRequest {
        repository_name: name(repository),
        model_name: name("two"),
        ..Default::default()
    };
    ask!("RepositoryModelLoad", RepositoryModelLoadResponse, load(""), load("x"));
    let unload = |repository: &str| RepositoryModelUnloadRequest {
        repository_name: name(repository),
        model_name: name("two"),
        ..Default::default()
    };
    ask!("RepositoryModelUnload", RepositoryModelUnloadResponse, unload(""), unload("x"));
    let settings = |key: &str, choice| LogSettingsRequest {
        settings: BTreeMap::from([(
            key.to_string(),
            log_settings_request::SettingValue { parameter_choice: Some(choice) },
        )]),
    };
    use log_settings_request::setting_value::ParameterChoice as Setting;
    ask!(
        "LogSettings",
        LogSettingsResponse,
        settings("log_info", Setting::Uint32Param(1)),
        settings("log_verbose_level", Setting::BoolParam(true)),
        settings("log_format", Setting::BoolParam(true)),
        settings("log_format", Setting::StringParam("x".into())),
        settings("log_file", Setting::StringParam("x".into())),
    );
    for service in ["", "x"] {
        let message = HealthCheckRequest { service: service.into() };
        let answered = ask_grpc(&mut grpc, "/grpc.health.v1.Health/Check", &frame(&message));
        lines.push((format!("Check {service:?}"), shown::<HealthCheckResponse>(answered)));
    }
    for path in ["/inference.GRPCInferenceService/Nothing", "/nothing.Nothing/ModelInfer"] {
        let (status, _, messages) = ask_grpc(&mut grpc, path, &frame(&ServerLiveRequest {}));
        lines.push((path.to_string(), format!("{status} {messages:?}")));
    }
    assert!(lines.iter().any(|(_, answer)| answer.starts_with(&format!("{} \"\" ", code::OK))));
    lines
}

const OUT_OF_RANGE: Known = Known {
    name: "Integers that their type has no room for",
    is: |difference| {
        let said =
            difference.ours.split_once(" data value ").and_then(|(_, rest)| rest.split_once(" is out of range\"}"));
        // The value is one of the request's, which the model got there, and worked on or not.
        said.is_some_and(|(value, _)| difference.question.contains(value))
            && difference.ours.starts_with("400 ")
            && (difference.theirs.starts_with("200 ") || difference.question.starts_with("POST /v2/models/two/infer "))
    },
};
const NO_ROWS: Known = Known {
    name: "A batch of no rows",
    is: |difference| {
        (difference.question.contains("[0, 2]") || difference.question.contains("[0,2]"))
            && difference.ours.contains("failed to get input 'INPUT1'")
            && difference.theirs.contains("Expected 8, got 0")
    },
};
const FEWER_ROWS: Known = Known {
    name: "A batch of less than no rows",
    is: |difference| {
        difference.question.contains("[-1, 2]")
            && difference.ours.contains("All input dimensions should be specified for input 'INPUT0'")
            && difference.theirs.contains("Expected 34359738360")
    },
};

#[test]
fn both_servers_answer_the_same_over_grpc() {
    let Some(original) = original() else { return };
    steadily(|| {
        let repository = repository();
        let (Some(ours), Some(theirs)) = (start(&[], &repository), start(&original, &repository)) else { return };
        compare(&grpc_lines(&ours), &grpc_lines(&theirs), &[NO_ROWS, FEWER_ROWS]);
        ours.stop();
    });
}
