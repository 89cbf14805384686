//! `nereid perf compare`: two runs of a real server in one table, its exit codes, and the program behind the server in
//! the reports.

use serde_json::{Value, json};

use super::program::{Reports, measured, perf, start};

/// A report of the same load each time.
fn report(reports: &Reports, url: &str, name: &str, more: &[&str]) -> String {
    let path = reports.at(name);
    let windows = ["--measurement-mode=count_windows", "--measurement-request-count=30", "-s100000"];
    let run = ["-m", "numbers", "-u", url, "--shape", "INPUT1:3,4", "--json", &path];
    measured(&[&run[..], &windows, more].concat());
    path
}

#[test]
fn two_reports_stand_side_by_side() {
    let (_repository, server) = start();
    let reports = Reports::new();
    let (http, metrics) = (server.http.to_string(), server.metrics.to_string());
    let a = report(&reports, &http, "a.json", &["--concurrency-range=1:2"]);
    let b =
        report(&reports, &http, "b.json", &["--concurrency-range=2", "--collect-metrics", "--metrics-url", &metrics]);
    // The program behind the server is known from its metrics.
    let mut changed: Value = serde_json::from_str(&reports.read("b.json")).expect("JSON");
    let build = changed["server"]["build"].as_str().unwrap_or_default().to_owned();
    assert!(build.starts_with(concat!("Nereid ", env!("CARGO_PKG_VERSION"))), "{}", changed["server"]);
    let known: Value = serde_json::from_str(&reports.read("a.json")).expect("JSON");
    assert_eq!((&known["server"]["name"], &known["server"]["build"]), (&json!("harbour"), &Value::Null));

    let outcome = perf(&["compare", &a, &b]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    for part in [
        "concurrency 2  inferences/s",
        "concurrency 2  latency p99, us",
        "\nThe set-ups differ (A | B):\n",
        &format!("  server build: n/a | {build}\n"),
        "  concurrency 1 is in A only\n",
    ] {
        assert!(outcome.stdout.contains(part), "{part:?} in\n{}", outcome.stdout);
    }
    let head = outcome.stdout.lines().find(|line| line.starts_with("load ")).unwrap_or_default();
    assert_eq!(head.split_whitespace().collect::<Vec<_>>(), ["load", "figure", "A", "B", "B/A", "noise", "verdict"]);

    // A report against itself is not worse; with half of the rate it is.
    assert_eq!(perf(&["compare", &b, &b, "--fail-over=0"]).code, Some(0));
    let rate = changed["points"][0]["inferences_per_s"].as_f64().expect("a rate");
    changed["points"][0]["inferences_per_s"] = json!(rate / 2.0);
    let half = reports.write("half.json", &changed.to_string());
    let outcome = perf(&["compare", &b, &half, "--fail-over=49"]);
    assert_eq!(outcome.code, Some(3), "{outcome:?}");
    assert!(outcome.stderr.contains("B is worse by 50.0 % in inferences/s at concurrency 2"), "{}", outcome.stderr);
    assert_eq!(perf(&["compare", &b, &half, "--fail-over=51"]).code, Some(0));
    assert_eq!(perf(&["compare", &half, &b, "--fail-over=1"]).code, Some(0), "A is the worse one");
    server.stop();
}

#[test]
fn what_cannot_be_compared_has_an_exit_code_of_its_own() {
    let reports = Reports::new();
    let other = reports.write("other.json", "{\"points\": []}");
    let point = |value: u32| json!({"format": 1, "points": [{"load": {"kind": "concurrency", "value": value}}]});
    let (one, two) = (reports.write("1.json", &point(1).to_string()), reports.write("2.json", &point(2).to_string()));
    let absent = reports.at("absent.json");
    for (words, part) in [
        (vec![], "two reports are compared, and 0 are given"),
        (vec![one.as_str(), &absent], "absent.json: No such file"),
        (vec![&one, &other], "other.json: not a report of nereid perf --json"),
        (vec![&one, &two], "no load point is in both reports"),
        (vec![&one, &one, "--fail-over=much"], "--fail-over: 'much' is no number"),
    ] {
        let outcome = perf(&[&["compare"][..], &words].concat());
        assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(2), ""), "{words:?}: {outcome:?}");
        assert!(outcome.stderr.starts_with("error: ") && outcome.stderr.contains(part), "{words:?}: {outcome:?}");
    }
}
