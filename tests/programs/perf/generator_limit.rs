//! Load points at which the load generator itself is the limit: none of its figures is reported as one of the server.
//!
//! A hundred million requests a second are more than any thread can send: whenever it has sent one, the next is due.

use serde_json::{Value, json};

use super::program::{Reports, perf, start};

const REASON: &str = "the load generator was the limit: more requests were due than its threads could send";

fn report(reports: &Reports, name: &str) -> Value {
    serde_json::from_str(&reports.read(name)).expect("JSON")
}

#[test]
fn a_rate_that_no_generator_reaches_is_void() {
    let (_repository, server) = start();
    for (protocol, address) in [("http", server.http), ("grpc", server.grpc)] {
        let reports = Reports::new();
        let url = address.to_string();
        let [csv, json, html] = ["run.csv", "run.json", "run.html"].map(|name| reports.at(name));
        let run = ["-m", "text", "-i", protocol, "-u", &url, "--shape=INPUT0:1", "--request-rate-range=100000000"];
        let outcome = perf(&[&run[..], &["-f", &csv, "--json", &json, "--html", &html]].concat());
        assert_eq!(outcome.code, Some(4), "{outcome:#?}");
        for part in [
            &format!("  VOID: {REASON}"),
            "Next: lower the rate",
            "  Transport: HTTP/",
            "    Throughput: n/a infer/sec\n",
            "    p99 latency: n/a\n",
            "    Client CPU: ",
            "    Of that, the client's own delay: ",
            "Request Rate: 100000000, throughput: n/a infer/sec, latency n/a\n",
        ] {
            assert!(outcome.stdout.contains(part), "{part:?} in\n{}", outcome.stdout);
        }
        assert!(!outcome.stdout.contains("not sustainable"), "the server is not to blame: {}", outcome.stdout);

        let lines = reports.read("run.csv");
        let lines: Vec<&str> = lines.lines().collect();
        assert!(lines.len() == 2 && lines[0].ends_with(",Void") && lines[1].ends_with(",outrun"), "{lines:?}");
        assert!(lines[1].starts_with("100000000,n/a,"), "{lines:?}");
        assert!(reports.read("run.html").contains(&format!("void: {REASON}")));

        let whole = report(&reports, "run.json");
        let point = &whole["points"][0];
        assert_eq!((&point["void"], &point["generator_limit"]["kind"]), (&json!(true), &json!("outrun")), "{point}");
        assert_eq!((&point["sustainable"], &point["client_is_bottleneck"]), (&json!(false), &json!(true)), "{point}");
        let client = &whole["plan"]["client"];
        assert_eq!(client["spin"], json!(false));
        let frames = if protocol == "grpc" { json!(1 << 20) } else { Value::Null };
        assert_eq!(client["http2"]["frame_bytes_max"], frames, "{client}");
        assert!(["io_uring", "epoll"].iter().any(|engine| point["client"]["engine"] == *engine), "{point}");

        let outcome = perf(&["compare", &json, &json]);
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        for part in ["not comparable", "A is void, because the load generator was the limit: more requests"] {
            assert!(outcome.stdout.contains(part), "{part:?} in\n{}", outcome.stdout);
        }
        let outcome = perf(&["compare", &json, &json, "--fail-over=10"]);
        assert_eq!(outcome.code, Some(3), "{outcome:?}");
    }
    server.stop();
}
