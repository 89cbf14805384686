//! Health, metadata, configuration, statistics, index and metrics, and the routes that lead there
//! (contract/http.md sections 1 to 3, contract/metrics.md sections 1 to 3).

use serde_json::{Value, json};

use nereid_test_support::http::Peer;
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::Server;
use nereid_test_support::variant::{self, each, usual};

/// The order in which extensions are listed (contract/http.md section 3).
const EXTENSIONS: [&str; 13] = [
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "cuda_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
];

#[test]
fn health_is_told_without_a_body() {
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        repository.identity("plain", 0, &[Pair::new("FP32", "-1")]);
        let server = Server::start(variant, repository.path(), &[]);
        let mut peer = Peer::connect(server.http);
        for path in
            ["/v2/health/live", "/v2/health/ready", "/v2/models/plain/ready", "/v2/models/plain/versions/1/ready"]
        {
            let answer = peer.get(path);
            assert_eq!((answer.status, answer.text()), (200, String::new()), "{path}");
        }
        server.stop();
    });
}

#[test]
fn metadata_names_server_and_models() {
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("FP32", "-1"), Pair::new("BYTES", "2, -1")]);
    repository.identity("batching", 8, &[Pair::new("INT64", "3")]);
    repository.identity("reshaped", 4, &[Pair::new("FP32", "1").reshape("reshape { shape: [ ] }")]);
    let server = Server::start(usual(), repository.path(), &["--id=harbour"]);
    let mut peer = Peer::connect(server.http);

    let answer = peer.get("/v2");
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let metadata = answer.json();
    assert_eq!(metadata["name"], "harbour");
    assert!(metadata["version"].as_str().is_some_and(|version| !version.is_empty()), "{metadata}");
    let listed: Vec<&str> = metadata["extensions"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let mut known = EXTENSIONS.iter();
    assert!(listed.iter().all(|name| known.any(|next| next == name)), "not in the order of the contract: {listed:?}");
    for needed in ["classification", "model_configuration", "binary_tensor_data", "parameters", "statistics"] {
        assert!(listed.contains(&needed), "{needed} is missing in {listed:?}");
    }

    let expected = json!({
        "name": "plain", "versions": ["1"], "platform": "identity",
        "inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [-1]},
                   {"name": "INPUT1", "datatype": "BYTES", "shape": [2, -1]}],
        "outputs": [{"name": "OUTPUT0", "datatype": "FP32", "shape": [-1]},
                    {"name": "OUTPUT1", "datatype": "BYTES", "shape": [2, -1]}],
    });
    for path in ["/v2/models/plain", "/v2/models/plain/versions/1", "/v2/models/plain?query=ignored"] {
        let answer = peer.get(path);
        assert_eq!((answer.status, answer.json()), (200, expected.clone()), "{path}");
    }
    // A leading -1 is the batch dimension, and the dims are those before the reshape.
    assert_eq!(peer.get("/v2/models/batching").json()["inputs"][0]["shape"], json!([-1, 3]));
    assert_eq!(peer.get("/v2/models/reshaped").json()["inputs"][0]["shape"], json!([-1, 1]));
    server.stop();
}

#[test]
fn versions_follow_the_policy() {
    let repository = Repository::new();
    let pairs = [Pair::new("FP32", "-1")];
    repository.identity("latest", 0, &pairs).version("latest", "3").version("latest", "2").version("latest", "010");
    repository.identity_of("identity", "all", 0, &pairs, "version_policy { all { } }").version("all", "12");
    let specific = "version_policy { specific { versions: [ 1, 4 ] } }";
    repository
        .identity_of("identity", "specific", 0, &pairs, specific)
        .version("specific", "4")
        .version("specific", "7");
    let server = Server::start(usual(), repository.path(), &[]);
    let mut peer = Peer::connect(server.http);

    for (model, versions) in [("latest", json!(["3"])), ("all", json!(["1", "12"])), ("specific", json!(["1", "4"]))] {
        assert_eq!(peer.get(&format!("/v2/models/{model}")).json()["versions"], versions, "{model}");
    }
    assert_eq!(peer.get("/v2/models/all/versions/12").json()["versions"], json!(["12"]));

    let body = br#"{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1],"data":[1]}]}"#;
    for (path, version) in [
        ("/v2/models/all/infer", "12"),
        ("/v2/models/all/versions/1/infer", "1"),
        ("/v2/models/latest/infer", "3"),
        ("/v2/models/specific/infer", "4"),
    ] {
        let answer = peer.post(path, &[], body);
        assert_eq!((answer.status, &answer.json()["model_version"]), (200, &json!(version)), "{path}");
    }
    let absent = peer.post("/v2/models/specific/versions/7/infer", &[], body);
    let text = "Request for unknown model: 'specific' version 7 is not found";
    assert_eq!((absent.status, absent.error().as_str()), (404, text));
    server.stop();
}

#[test]
fn configuration_is_served_with_its_defaults() {
    let repository = Repository::new();
    repository.identity("plain", 8, &[Pair::new("INT32", "2, -1")]);
    let server = Server::start(usual(), repository.path(), &[]);
    let mut peer = Peer::connect(server.http);
    for path in ["/v2/models/plain/config", "/v2/models/plain/versions/1/config"] {
        let answer = peer.get(path);
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        let config = answer.json();
        assert_eq!(config["name"], "plain");
        assert_eq!(config["platform"], "", "default fields are printed");
        assert_eq!(config["backend"], "identity");
        assert_eq!(config["max_batch_size"], 8);
        assert_eq!(config["version_policy"], json!({"latest": {"num_versions": 1}}));
        // 64-bit integers are numbers in these fields, not strings as in protobuf's JSON.
        assert_eq!(config["input"][0]["dims"], json!([2, -1]));
        assert_eq!(config["input"][0]["data_type"], "TYPE_INT32");
        assert_eq!(config["input"][0]["optional"], false);
        assert_eq!(config["output"][0]["label_filename"], "");
        let group = &config["instance_group"][0];
        assert_eq!(
            (&group["name"], &group["kind"], &group["count"]),
            (&json!("plain_0"), &json!("KIND_CPU"), &json!(1))
        );
        assert_eq!(config["optimization"]["input_pinned_memory"]["enable"], true);
    }
    server.stop();
}

#[test]
fn statistics_and_metrics_count_what_happened() {
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        repository.identity("batching", 8, &[Pair::new("INT32", "1")]);
        repository.identity("idle", 0, &[Pair::new("INT32", "1")]);
        let server = Server::start(variant, repository.path(), &[]);
        let mut peer = Peer::connect(server.http);
        let body = br#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[3,1],"data":[1,2,3]}]}"#;
        for _ in 0..5 {
            assert_eq!(peer.post("/v2/models/batching/infer", &[], body).status, 200);
        }
        // Refused before the scheduler accepts it: no statistic changes.
        let refused = br#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[9,1],"data":[1,2,3,4,5,6,7,8,9]}]}"#;
        assert_eq!(peer.post("/v2/models/batching/infer", &[], refused).status, 400);

        for path in ["/v2/models/batching/stats", "/v2/models/batching/versions/1/stats"] {
            let answer = peer.get(path);
            assert_eq!(answer.status, 200, "{path}: {}", answer.text());
            let statistics = answer.json();
            assert_eq!(statistics["model_stats"].as_array().map(Vec::len), Some(1), "{statistics}");
            let model = &statistics["model_stats"][0];
            assert_eq!((&model["name"], &model["version"]), (&json!("batching"), &json!("1")));
            assert_eq!(model["inference_count"], 15, "five requests of three rows: {model}");
            assert_eq!(model["execution_count"], 5, "{model}");
            let inference = &model["inference_stats"];
            assert_eq!(inference["success"]["count"], 5, "{model}");
            assert_eq!(inference["fail"]["count"], 0, "{model}");
            let of = |what: &str| inference[what]["ns"].as_u64().unwrap_or(u64::MAX);
            let parts = of("queue") + of("compute_input") + of("compute_infer") + of("compute_output");
            assert!(parts <= of("success"), "the parts of a request's time exceed the whole: {inference}");
            assert!(model["last_inference"].as_u64().is_some_and(|ms| ms > 1_600_000_000_000), "{model}");
            assert_eq!(model["batch_stats"][0]["batch_size"], 3, "{model}");
            assert_eq!(model["batch_stats"][0]["compute_infer"]["count"], 5, "{model}");
            assert_eq!(model["response_stats"], json!({}), "{model}");
        }
        let all = peer.get("/v2/models/stats").json();
        let mut names: Vec<_> =
            all["model_stats"].as_array().into_iter().flatten().map(|m| m["name"].clone()).collect();
        names.sort_by_key(Value::to_string);
        assert_eq!(names, [json!("batching"), json!("idle")]);

        let mut metrics = Peer::connect(server.metrics);
        for path in ["/metrics", "/metrics/"] {
            let answer = metrics.get(path);
            assert_eq!(
                (answer.status, answer.header("content-type")),
                (200, Some("text/plain; charset=utf-8")),
                "{path}"
            );
            let text = answer.text();
            for (family, value) in [
                ("nv_inference_request_success", "5"),
                ("nv_inference_count", "15"),
                ("nv_inference_exec_count", "5"),
                ("nv_inference_pending_request_count", "0"),
            ] {
                assert_eq!(
                    sample(&text, family, &["model=\"batching\"", "version=\"1\""]),
                    [value],
                    "{family}: {text}"
                );
                assert_eq!(sample(&text, family, &["model=\"idle\"", "version=\"1\""]), ["0"], "{family}: {text}");
                assert!(text.contains(&format!("# TYPE {family} ")), "{family} has no TYPE line");
            }
            for reason in ["REJECTED", "CANCELED", "BACKEND", "OTHER"] {
                let labels = ["model=\"batching\"".to_string(), format!("reason=\"{reason}\"")];
                let labels = [labels[0].as_str(), labels[1].as_str()];
                assert_eq!(sample(&text, "nv_inference_request_failure", &labels), ["0"], "{reason}");
            }
        }
        server.stop();
    });
}

/// The values of the samples of `family` that carry all the `labels`.
fn sample<'a>(exposition: &'a str, family: &str, labels: &[&str]) -> Vec<&'a str> {
    exposition
        .lines()
        .filter_map(|line| line.strip_prefix(family)?.strip_prefix('{')?.split_once("} "))
        .filter(|(found, _)| labels.iter().all(|label| found.split(',').any(|one| one == *label)))
        .map(|(_, value)| value)
        .collect()
}

#[test]
fn the_metrics_port_serves_nothing_else() {
    let repository = Repository::new();
    let server = Server::start(usual(), repository.path(), &[]);
    let mut peer = Peer::connect(server.metrics);
    let other = peer.get("/anything");
    assert_eq!((other.status, other.text()), (200, String::new()));
    let post = peer.post("/metrics", &[], b"");
    assert_eq!((post.status, post.error().as_str()), (405, "Method Not Allowed"));
    server.stop();
}

#[test]
fn the_index_lists_every_model() {
    let repository = Repository::new();
    repository.identity("one", 0, &[Pair::new("FP32", "-1")]);
    repository.identity("two", 0, &[Pair::new("FP32", "-1")]).version("two", "5");
    let server = Server::start(usual(), repository.path(), &[]);
    let mut peer = Peer::connect(server.http);
    for (path, body) in [
        ("/v2/repository/index", ""),
        ("/v2/repository/index", "{}"),
        ("/v2/repository/index", "{\"ready\":true}"),
        ("/v2/repository/ignored/index", ""),
    ] {
        let answer = peer.post(path, &[], body.as_bytes());
        assert_eq!(answer.status, 200, "{path} {body}: {}", answer.text());
        let mut models = answer.json().as_array().cloned().unwrap_or_default();
        models.sort_by_key(|model| model["name"].to_string());
        assert_eq!(models.len(), 2, "{models:?}");
        assert_eq!((&models[0]["name"], &models[0]["version"]), (&json!("one"), &json!("1")));
        assert_eq!((&models[1]["name"], &models[1]["version"]), (&json!("two"), &json!("5")));
        assert!(models.iter().all(|model| model["state"] == "READY"), "{models:?}");
    }
    let wrong = peer.post("/v2/repository/index", &[], b"{\"ready\":1}");
    assert_eq!((wrong.status, wrong.error().as_str()), (400, "Invalid value for 'ready': expected a boolean"));
    server.stop();
}

#[test]
fn unknown_routes_models_and_methods_are_told_apart() {
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("FP32", "-1")]);
    let server = Server::start(usual(), repository.path(), &[]);
    let mut peer = Peer::connect(server.http);

    for path in [
        "/",
        "/v1",
        "/v2/",
        "/V2",
        "/v2/health",
        "/v2/health/live/",
        "/v2/models",
        "/v2/models/plain/",
        "/v2/models/plain/versions/one",
        "/v2/models/plain/versions/-1",
        "/v2/models/plain/nothing",
        "/v2/models/pl/ain",
    ] {
        let answer = peer.get(path);
        assert_eq!((answer.status, answer.error().as_str()), (404, "Not Found"), "{path}");
    }
    for (method, path) in [
        ("POST", "/v2"),
        ("POST", "/v2/health/live"),
        ("PUT", "/v2/health/ready"),
        ("POST", "/v2/models/plain"),
        ("DELETE", "/v2/models/plain/ready"),
        ("POST", "/v2/models/plain/config"),
        ("POST", "/v2/models/stats"),
        ("GET", "/v2/models/plain/infer"),
        ("GET", "/v2/repository/index"),
    ] {
        let answer = peer.send(&nereid_test_support::http::request(method, path, &[], b"")).answer();
        assert_eq!((answer.status, answer.error().as_str()), (405, "Method Not Allowed"), "{method} {path}");
    }
    let unknown = "Request for unknown model: 'absent' is not found";
    let no_version = "Request for unknown model: 'plain' version 9 is not found";
    let not_ready = "Model version not ready";
    let too_large = "failed to get model version from specified version string '99999999999999999999' (details: stol), \
                     version should be an integral value > 0";
    for (path, status, text) in [
        ("/v2/models/absent", 404, unknown),
        ("/v2/models/absent/ready", 400, not_ready),
        ("/v2/models/absent/config", 404, unknown),
        ("/v2/models/absent/stats", 400, "requested model 'absent' is not available"),
        ("/v2/models/plain/versions/9", 404, no_version),
        ("/v2/models/plain/versions/9/ready", 400, not_ready),
        ("/v2/models/plain/versions/9/config", 404, no_version),
        ("/v2/models/plain/versions/99999999999999999999", 400, too_large),
        ("/v2/models/plain/versions/99999999999999999999/ready", 400, too_large),
    ] {
        let answer = peer.get(path);
        assert_eq!((answer.status, answer.error().as_str()), (status, text), "{path}");
    }
    server.stop();
}
