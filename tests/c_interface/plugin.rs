//! A backend library in C, loaded through Triton's C interface: it must answer exactly as the built-in identity
//! (contract/c_api.md section 5, contract/backends.md section 1).

mod trouble;

use serde_json::{Value, json};

use nereid_test_support::http::{Answer, Peer, infer_with_tail, request};
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::Server;
use nereid_test_support::variant::{self, Variant, each, usual};

/// The same models twice: `foreign_<x>` on the C library, `native_<x>` built in.
fn start(variant: Variant, directory: &std::path::Path) -> (Repository, Server) {
    let repository = Repository::new();
    for (prefix, backend) in [("foreign", "copycat"), ("native", "identity")] {
        let three = [Pair::new("FP32", "-1, 2"), Pair::new("BYTES", "-1"), Pair::new("INT64", "1")];
        let count = "instance_group [ { kind: KIND_CPU count: 2 } ]";
        repository.model(
            &format!("{prefix}_three"),
            &nereid_test_support::repository::identity_config(backend, &format!("{prefix}_three"), 0, &three, "")
                .replace("instance_group [ { kind: KIND_CPU count: 1 } ]", count),
        );
        repository.identity_of(backend, &format!("{prefix}_batching"), 8, &[Pair::new("UINT16", "-1").labels()], "");
        repository.file(&format!("{prefix}_batching/labels.txt"), "left\nright\n");
        repository.identity_of(backend, &format!("{prefix}_half"), 0, &[Pair::new("BF16", "-1")], "");
        let reshaped = [
            Pair::new("INT32", "4").reshape("reshape { shape: [ 2, 2 ] }"),
            Pair::new("UINT8", "-1, 4").reshape("reshape { shape: [ -1, 2, 2 ] }"),
            Pair::new("INT64", "1").reshape("reshape { shape: [ ] }"),
        ];
        repository.identity_of(backend, &format!("{prefix}_reshaped"), 8, &reshaped, "");
    }
    let server =
        Server::start(variant, repository.path(), &[&backend_flag(directory), "--backend-config=copycat,colour=green"]);
    (repository, server)
}

fn backend_flag(directory: &std::path::Path) -> String {
    format!("--backend-directory={}", directory.display())
}

/// What may differ between the two answers, made equal: the model's name.
fn comparable(answer: &Answer, model: &str) -> (u16, Value, Vec<u8>, Option<String>) {
    let kind = answer.header("content-type").map(str::to_string);
    if answer.status != 200 {
        let text = answer.error().replace(model, "<model>");
        return (answer.status, json!({ "error": text }), Vec::new(), kind);
    }
    let (mut json, tail) = answer.split();
    assert_eq!(json["model_name"], model);
    json["model_name"] = json!("<model>");
    (answer.status, json, tail.to_vec(), kind)
}

#[test]
fn a_c_backend_answers_as_the_built_in_identity() {
    let Some(directory) = nereid_test_support::backend::directory() else { return };
    each(&variant::ALL, |variant| {
        let (_repository, server) = start(variant, &directory);
        let mut peer = Peer::connect(server.http);
        let three = r#""inputs":[
            {"name":"INPUT0","datatype":"FP32","shape":[2,2],"parameters":{"binary_data_size":16}},
            {"name":"INPUT1","datatype":"BYTES","shape":[3],"data":["","ein","Wörter mit \u0000 und \n"]},
            {"name":"INPUT2","datatype":"INT64","shape":[1],"data":[-9007199254740993]}]"#;
        let no_rows = three.replace("\"shape\":[2,2]", "\"shape\":[0,2]").replace("size\":16", "size\":0");
        let cases: Vec<(&str, String, &[u8])> = vec![
            ("three", format!("{{{three}}}"), b"0123456789abcdef"),
            ("three", format!("{{\"id\":\"n° 5\",{three},\"parameters\":{{\"binary_data_output\":true,\"x\":1}}}}"), b"0123456789abcdef"),
            ("three", format!("{{{three},\"outputs\":[{{\"name\":\"OUTPUT2\"}}]}}"), b"0123456789abcdef"),
            ("three", format!("{{{no_rows}}}"), b""),
            ("three", format!("{{{three},\"outputs\":[{{\"name\":\"OUTPUT7\"}}]}}"), b"0123456789abcdef"),
            ("three", format!("{{{three}}}"), b"short"),
            ("three", "{\"inputs\":[]}".to_string(), b""),
            ("batching", r#"{"inputs":[{"name":"INPUT0","datatype":"UINT16","shape":[2,3],"data":[1,2,3,4,5,65535]}]}"#.to_string(), b""),
            ("batching", r#"{"inputs":[{"name":"INPUT0","datatype":"UINT16","shape":[9,1],"data":[1,2,3,4,5,6,7,8,9]}]}"#.to_string(), b""),
            ("batching", r#"{"inputs":[{"name":"INPUT0","datatype":"UINT16","shape":[2,2],"data":[7,9,4,2]}],"outputs":[{"name":"OUTPUT0","parameters":{"classification":1}}]}"#.to_string(), b""),
            ("half", r#"{"inputs":[{"name":"INPUT0","datatype":"BF16","shape":[2],"parameters":{"binary_data_size":4}}],"parameters":{"binary_data_output":true}}"#.to_string(), b"\x80\x3f\x00\xc0"),
            ("half", r#"{"inputs":[{"name":"INPUT0","datatype":"BF16","shape":[1],"parameters":{"binary_data_size":2}}]}"#.to_string(), b"\x80\x3f"),
        ];
        let reshaped = r#"{"inputs":[
            {"name":"INPUT0","datatype":"INT32","shape":[2,4],"data":[1,2,3,4,5,6,7,8]},
            {"name":"INPUT1","datatype":"UINT8","shape":[2,1,4],"data":[1,2,3,4,5,6,7,8]},
            {"name":"INPUT2","datatype":"INT64","shape":[2,1],"data":[-1,-2]}]}"#;
        let cases: Vec<_> = cases.into_iter().chain([("reshaped", reshaped.to_string(), &b""[..])]).collect();
        for (model, json, tail) in &cases {
            let mut ask = |model: String| {
                let path = format!("/v2/models/{model}/infer");
                let answer = peer.send(&infer_with_tail(&path, json, tail)).answer();
                comparable(&answer, &model)
            };
            let native = ask(format!("native_{model}"));
            let foreign = ask(format!("foreign_{model}"));
            assert_eq!(foreign, native, "{model} {json}: the C backend (left) and the built-in one (right) differ");
        }
        server.stop();
    });
}

fn infer(peer: &mut Peer, parameters: &str) -> Answer {
    let body = format!(
        r#"{{"id":"r1","parameters":{parameters},"inputs":[{{"name":"INPUT0","datatype":"UINT16","shape":[2,1],"data":[1,2]}}]}}"#
    );
    peer.send(&request("POST", "/v2/models/foreign_batching/infer", &[], body.as_bytes())).answer()
}

#[test]
fn the_interface_tells_the_backend_what_it_asks_for() {
    let Some(directory) = nereid_test_support::backend::directory() else { return };
    let (_repository, server) = start(usual(), &directory);
    let mut peer = Peer::connect(server.http);
    let answer = infer(&mut peer, r#"{"report":true,"word":"w","number":-5,"flag":false,"share":0.25}"#);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let json = answer.json();
    let told = &json["parameters"];
    for (key, expected) in [
        ("request_id", json!("r1")),
        ("inputs", json!("INPUT0:UINT16")),
        ("output_count", json!(1)),
        ("backend", json!("copycat")),
        ("api_major", json!(1)),
        ("model", json!("foreign_batching")),
        ("version", json!(1)),
        ("instance", json!("foreign_batching_0_0")),
        ("is_cpu", json!(true)),
        ("echo_word", json!("w")),
        ("echo_number", json!(-5)),
        ("echo_flag", json!(false)),
        ("echo_share", json!(0.25)),
    ] {
        assert_eq!(told[key], expected, "{key} in {told}");
    }
    let parse = |text: &Value| -> Value { serde_json::from_str(text.as_str().unwrap_or_default()).unwrap_or_default() };
    let config = parse(&told["model_config"]);
    assert_eq!((&config["name"], &config["max_batch_size"]), (&json!("foreign_batching"), &json!(8)));
    assert_eq!(config["input"][0]["dims"], json!([-1]), "{config}");
    let backend_config = parse(&told["backend_config"]);
    let line = &backend_config["cmdline"];
    assert_eq!(line["colour"], "green", "{backend_config}");
    assert_eq!(line["backend-directory"], directory.display().to_string(), "{backend_config}");
    assert_eq!(line["auto-complete-config"], "true", "{backend_config}");
    assert_eq!(line["default-max-batch-size"], "4", "{backend_config}");
    server.stop();
}

#[test]
fn errors_of_a_backend_reach_the_client() {
    let Some(directory) = nereid_test_support::backend::directory() else { return };
    let (_repository, server) = start(usual(), &directory);
    let mut peer = Peer::connect(server.http);
    for _ in 0..3 {
        let failed = infer(&mut peer, r#"{"fail":"this one is wrong: \"quoted\""}"#);
        assert_eq!((failed.status, failed.error().as_str()), (400, "this one is wrong: \"quoted\""));
        let refused = infer(&mut peer, r#"{"refuse":"not today"}"#);
        assert_eq!((refused.status, refused.error().as_str()), (503, "not today"));
        assert_eq!(infer(&mut peer, "{}").status, 200, "the instance serves on after errors");
    }
    // The library reports a success after it has sent the answer.
    let mut model = Value::Null;
    server.wait_until("all are counted", || {
        model = peer.get("/v2/models/foreign_batching/stats").json()["model_stats"][0].clone();
        // The batch is the last that it tells of.
        model["inference_stats"]["success"]["count"].as_u64() >= Some(3) && model["execution_count"].as_u64() >= Some(6)
    });
    let inference = &model["inference_stats"];
    assert_eq!(inference["success"]["count"], 3, "{model}");
    // What the backend failed counts; so does what it refused to take.
    assert_eq!(inference["fail"]["count"], 6, "{model}");
    assert_eq!(model["inference_count"], 6, "three successes of two rows: {model}");
    server.stop();
}

#[test]
fn the_life_of_backend_model_and_instance() {
    let Some(directory) = nereid_test_support::backend::directory() else { return };
    let (_repository, server) = start(usual(), &directory);
    let log = server.stop();
    if std::env::var_os(nereid_test_support::server::OTHER_SERVER).is_some() {
        return;
    }
    let position = |what: &str| log.find(what).unwrap_or_else(|| panic!("the log never says {what:?}:\n{log}"));
    let order = [
        "identity.c: initialize: copycat",
        "identity.c: model initialize: foreign_three",
        "identity.c: instance initialize: foreign_three_0_1",
        "identity.c: instance finalize: foreign_three_0_1",
        "identity.c: model finalize: foreign_three",
        "identity.c: finalize: copycat",
    ];
    for pair in order.windows(2) {
        assert!(position(pair[0]) < position(pair[1]), "{:?} comes after {:?}:\n{log}", pair[0], pair[1]);
    }
    let count = |what: &str| log.matches(what).count();
    assert_eq!((count("identity.c: initialize:"), count("identity.c: finalize:")), (1, 1), "one backend, four models");
    assert_eq!((count(": model initialize:"), count(": model finalize:")), (4, 4));
    assert_eq!((count(": instance initialize:"), count(": instance finalize:")), (5, 5));
    assert_eq!(count("identity.c: unexpected error"), 0, "{log}");
}

#[test]
fn a_runtime_named_by_the_config_beats_the_built_in_backend() {
    let Some(directory) = nereid_test_support::backend::directory() else { return };
    let repository = Repository::new();
    repository.identity_of("identity", "named", 0, &[Pair::new("INT8", "-1")], "runtime: \"libtriton_foreign.so\"");
    let server = Server::start(usual(), repository.path(), &[&backend_flag(&directory)]);
    let body =
        br#"{"parameters":{"report":true},"inputs":[{"name":"INPUT0","datatype":"INT8","shape":[1],"data":[1]}]}"#;
    let answer = Peer::connect(server.http).post("/v2/models/named/infer", &[], body);
    assert_eq!(answer.json()["parameters"]["model"], "named", "only the C library reports: {}", answer.text());
    server.stop();
}

#[test]
fn a_model_that_the_backend_refuses_is_not_loaded() {
    let Some(directory) = nereid_test_support::backend::directory() else { return };
    let repository = Repository::new();
    let fail = "parameters { key: \"fail_load\" value { string_value: \"I will not\" } }";
    repository.identity_of("copycat", "refused", 0, &[Pair::new("INT8", "-1")], fail);
    repository.identity_of("nowhere", "orphan", 0, &[Pair::new("INT8", "-1")], "");
    let flags = [&backend_flag(&directory), "--exit-on-error=false"];
    let server = Server::start_with(usual(), repository.path(), &flags, "/v2/health/live");
    let mut peer = Peer::connect(server.http);
    assert_eq!(peer.get("/v2/health/ready").status, 400);
    let index = peer.post("/v2/repository/index", &[], b"").json();
    let row = |name: &str| {
        index.as_array().into_iter().flatten().find(|row| row["name"] == name).cloned().unwrap_or_default()
    };
    assert_eq!(row("refused")["state"], "UNAVAILABLE", "{index}");
    assert_eq!(row("refused")["reason"], "Invalid argument: I will not", "{index}");
    assert_eq!(row("orphan")["state"], "UNAVAILABLE", "{index}");
    assert!(row("orphan")["reason"].as_str().is_some_and(|text| text.contains("nowhere")), "{index}");
    server.stop();
}
