//! The reports of a run: text, CSV as perf_analyzer writes it, JSON that can be read back, times of requests, and a
//! page that every browser can read.

use std::process::Command;

use serde_json::Value;

use super::program::{Reports, measured, start};
use nereid_test_support::perf_analyzer;
use nereid_test_support::python::Python;
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::Server;
use nereid_test_support::variant::usual;

const SHAPE: [&str; 2] = ["--shape", "INPUT1:3,4"];

#[test]
fn the_text_tells_of_client_and_server() {
    let (_repository, server) = start();
    for (protocol, address) in [("http", server.http), ("grpc", server.grpc)] {
        let url = address.to_string();
        let run =
            ["-m", "numbers", "-i", protocol, "-u", &url, "--concurrency-range=1:3:2", "--request-count=200", "-b2"];
        let outcome = measured(&[&run[..], &SHAPE].concat());
        for part in [
            "Model numbers, version 1 at 127.0.0.1:",
            "  Server harbour, version 2.",
            "Batch size 2, 1 different request\n",
            "Closed loop, in flight: 1 to 3 by 2",
            "Request concurrency: 1\n",
            "Request concurrency: 3\n",
            "    Request count: 200\n",
            "    Inference count: 400\n",
            "    Successful request count: 200\n",
            "Avg request latency: ",
            "p99.9 latency: ",
            "Client CPU: ",
        ] {
            assert!(outcome.stdout.contains(part), "{part:?} in\n{}", outcome.stdout);
        }
        let table: Vec<&str> = outcome.stdout.lines().skip_while(|line| !line.starts_with("Concurrency  ")).collect();
        assert!(table[1].trim_start().starts_with("1 ") && table[2].trim_start().starts_with("3 "), "{table:?}");
        assert!(table[5].starts_with("Concurrency: 1, throughput: "), "{table:?}");
        assert!(outcome.stderr.contains("Request concurrency: 3: "), "{}", outcome.stderr);
    }
    server.stop();
}

/// Answers once for each element of `IN`.
const REPEAT: &str = r#"backend: "repeat"
    input [ { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] }, { name: "DELAY" data_type: TYPE_UINT32 dims: [ -1 ] },
            { name: "WAIT" data_type: TYPE_UINT32 dims: [ 1 ] } ]
    output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }, { name: "IDX" data_type: TYPE_UINT32 dims: [ 1 ] } ]
    instance_group [ { kind: KIND_CPU count: 1 } ] model_transaction_policy { decoupled: true }"#;

/// Both programs measure the same; their columns have to be the same.
#[test]
fn columns_are_those_that_perf_analyzer_writes() {
    let Some(root) = perf_analyzer::program() else { return };
    let repository = Repository::new();
    let pairs = [Pair::new("INT32", "16"), Pair::new("FP32", "-1, 4")];
    repository.identity("numbers", 8, &pairs).model("repeat", REPEAT);
    repository.identity_of("identity", "cached", 8, &pairs, "response_cache { enable: true }");
    let server = Server::start(usual(), repository.path(), &["--cache-config=local,size=1048576"]);
    let reports = Reports::new();
    let input = r#"{"data": [{"IN": {"content": [1, 2], "shape": [2]}, "DELAY": {"content": [0, 0], "shape": [2]},
        "WAIT": [0]}]}"#;
    let input = reports.write("input.json", input);
    let metrics = format!("http://{}/metrics", server.metrics);
    let (http, grpc) = (server.http.to_string(), server.grpc.to_string());
    let numbers = [&["-m", "numbers"][..], &SHAPE].concat();
    let http = [&numbers[..], &["-i", "http", "-u", &http]].concat();
    for (at, more) in [
        [&numbers[..], &["-i", "grpc", "-u", &grpc, "--concurrency-range=2"]].concat(),
        [&http[..], &["--verbose-csv"]].concat(),
        [&http[..], &["--percentile=85", "--verbose-csv"]].concat(),
        [&http[..], &["--request-rate-range=200"]].concat(),
        [&http[..], &["--verbose-csv", "--collect-metrics", "--metrics-url", &metrics]].concat(),
        [&["-m", "cached", "-i", "grpc", "-u", &grpc][..], &SHAPE].concat(),
        vec!["-m", "repeat", "-i", "grpc", "-u", &grpc, "--streaming", "--async", "--input-data", &input],
    ]
    .into_iter()
    .enumerate()
    {
        let (theirs, ours) = (format!("{at}-theirs.csv"), format!("{at}-ours.csv"));
        let shared = ["--measurement-mode=count_windows", "--measurement-request-count=50", "-p100", "-s100000"];
        let shared = [&shared[..], &more].concat();
        let output = perf_analyzer::command(root).args(&shared).args(["-f", &reports.at(&theirs)]).output();
        let output = output.unwrap_or_else(|error| panic!("perf_analyzer does not start: {error}"));
        assert!(output.status.success(), "{more:?}: {output:?}");
        measured(&[&shared[..], &["-f", &reports.at(&ours)]].concat());
        let (theirs, ours) = (reports.read(&theirs), reports.read(&ours));
        let (theirs, ours): (Vec<&str>, Vec<&str>) = (theirs.lines().collect(), ours.lines().collect());
        assert_eq!((ours[0], ours.len()), (theirs[0], theirs.len()), "{more:?}");
        let cells = |line: &str| line.split(',').map(str::to_owned).collect::<Vec<_>>();
        for (column, (own, their)) in cells(ours[0]).iter().zip(cells(ours[1]).iter().zip(cells(theirs[1]))) {
            let is_number = |cell: &str| cell.parse::<f64>().is_ok();
            assert_eq!(is_number(own), is_number(&their), "{column}: {own:?}, {their:?}");
        }
        assert_eq!(cells(ours[1])[0], cells(theirs[1])[0], "{more:?}: the load");
    }
    server.stop();
}

#[test]
fn json_holds_all_that_was_measured() {
    let (_repository, server) = start();
    let reports = Reports::new();
    let (grpc, path) = (server.grpc.to_string(), reports.at("run.json"));
    let run = ["-m", "numbers", "-i", "grpc", "-u", &grpc, "--request-rate-range=50:100:50", "--request-count=120"];
    let more = ["--json", &path, "-H", "authorization: secret", "--request-parameter", "a:7:int", "--seed=9"];
    measured(&[&run[..], &SHAPE, &more].concat());
    let text = reports.read("run.json");
    assert!(!text.contains("secret"), "{text}");
    let value: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(value["plan"]["headers"][0], "authorization");
    assert_eq!(value["server"]["name"], "harbour");
    assert_eq!((&value["plan"]["rules"]["seed"], &value["model"]["name"]), (&9.into(), &"numbers".into()));
    assert_eq!(value["plan"]["first_request"][0]["shape"], serde_json::json!([1, 16]));
    let points = value["points"].as_array().expect("points");
    assert_eq!(points.iter().map(|point| &point["load"]["value"]).collect::<Vec<_>>(), [50.0, 100.0]);
    for point in points {
        assert_eq!((&point["completed"], &point["failed"]), (&120.into(), &0.into()), "{point}");
        assert_eq!(point["server"]["success"]["count"], 120, "{point}");
        let buckets = point["latency"]["buckets_ns"].as_array().expect("buckets");
        let counted: u64 = buckets.iter().filter_map(|bucket| bucket[1].as_u64()).sum();
        assert_eq!(counted, 120);
        let figure = |name: &str| point["latency"]["percentiles_us"][name].as_f64().expect("a percentile");
        assert!(figure("p50") > 0.0 && figure("p50") <= figure("p99"), "{point}");
        assert!(figure("p99") <= point["latency"]["max_us"].as_f64().expect("a maximum"), "{point}");
        let shown: f64 = point["breakdown_us"].as_object().expect("parts").values().filter_map(Value::as_f64).sum();
        let mean = point["latency"]["mean_us"].as_f64().expect("a mean");
        // The server's and the client's clocks need not agree to the microsecond.
        assert!(shown >= mean * 0.99, "{shown} of {mean}");
    }
    server.stop();
}

/// The page is parsed tag by tag, and must not fetch or run anything.
#[test]
fn the_page_is_well_formed_and_stands_alone() {
    let Some(python) = Python::get() else { return };
    let repository = Repository::new();
    let name = "a<i>&b";
    repository.identity(name, 8, &[Pair::new("INT32", "16")]);
    let server = Server::start(usual(), repository.path(), &[]);
    let reports = Reports::new();
    let (grpc, path) = (server.grpc.to_string(), reports.at("run.html"));
    let metrics = server.metrics.to_string();
    let run =
        ["-m", name, "-i", "grpc", "-u", &grpc, "--concurrency-range=1:12", "--request-count=60", "--html", &path];
    measured(&[&run[..], &["--collect-metrics", "--metrics-url", &metrics]].concat());
    let said = python.run("report.py", &[&path]);
    assert!(said.contains("6 plots") && said.contains("12 details"), "{said}");
    assert!(reports.read("run.html").contains("a&lt;i&gt;&amp;b"));
    server.stop();
}

#[test]
fn times_of_requests_are_written_as_perf_analyzer_does() {
    let (_repository, server) = start();
    let reports = Reports::new();
    let (http, path) = (server.http.to_string(), reports.at("profile.json"));
    let run = ["-m", "numbers", "-u", &http, "--concurrency-range=2", "--request-count=100"];
    measured(&[&run[..], &SHAPE, &["--profile-export-file", &path]].concat());
    let value: Value = serde_json::from_str(&reports.read("profile.json")).expect("JSON");
    let experiment = &value["experiments"][0];
    assert_eq!(experiment["experiment"], serde_json::json!({ "mode": "concurrency", "value": 2 }));
    let requests = experiment["requests"].as_array().expect("requests");
    assert_eq!(requests.len(), 100);
    for request in requests {
        let sent = request["timestamp"].as_u64().expect("a time");
        let responses = request["response_timestamps"].as_array().expect("times");
        assert_eq!(responses.len(), 1, "{request}");
        assert!(responses[0].as_u64() > Some(sent), "{request}");
    }
    // Wall clock: within the last hour, whatever the machine is busy with.
    let now = Command::new("date").arg("+%s").output().expect("date");
    let now: u64 = String::from_utf8_lossy(&now.stdout).trim().parse().expect("seconds");
    let first = requests[0]["timestamp"].as_u64().expect("a time") / 1_000_000_000;
    assert!((now - 3600..=now).contains(&first), "{first} {now}");
    assert!(value["version"].as_str().is_some_and(|version| version.starts_with("nereid ")));
    assert!(experiment["window_boundaries"].as_array().is_some_and(|boundaries| boundaries.len() >= 2));
    server.stop();
}
