//! Ctrl-C at the terminal of a run: the first one ends it with reports and clean-up, the second one immediately.

use std::time::Instant;

use super::program::{Reports, Running, start};
use nereid_test_support::http::Peer;
use nereid_test_support::server::{PATIENCE, Server, signal};

const SIGINT: i32 = 2;

/// Requests that the server has answered.
fn answered(server: &Server) -> u64 {
    let answer = Peer::connect(server.http).get("/v2/models/text/stats");
    answer.json()["model_stats"][0]["inference_stats"]["success"]["count"].as_u64().expect("a count")
}

/// Until the client has counted some more answers: who has one request in flight sends the next one then.
fn wait_for_answers(server: &Server) {
    let (began, before) = (Instant::now(), answered(server));
    while answered(server) < before + 3 {
        assert!(began.elapsed() < PATIENCE, "no request comes any more");
        std::thread::yield_now();
    }
}

/// Sends SIGINT and waits until a thread has taken it.
fn interrupt(pid: u32) {
    signal(pid, "INT");
    let began = Instant::now();
    let is_pending = || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let pending = status.lines().filter_map(|line| line.strip_prefix("ShdPnd:").or(line.strip_prefix("SigPnd:")));
        let masks = pending.filter_map(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        masks.into_iter().any(|mask| mask & 1 << (SIGINT - 1) != 0)
    };
    while is_pending() {
        assert!(began.elapsed() < PATIENCE, "nobody takes the signal");
        std::thread::yield_now();
    }
}

#[test]
fn the_points_of_a_sweep_that_is_interrupted_are_reported() {
    let (_repository, server) = start();
    for protocol in ["http", "grpc"] {
        let reports = Reports::new();
        let address = if protocol == "http" { server.http } else { server.grpc };
        let (url, csv) = (address.to_string(), reports.at("run.csv"));
        // Anything agrees, and no end is in sight.
        let load = ["--concurrency-range=1:65536", "-p30", "-s1000000", "--shape=INPUT0:1"];
        let run = [&["-m", "text", "-i", protocol, "-u", &url, "-f", &csv][..], &load].concat();
        let mut running = Running::start(&run);
        running.wait_for("Request concurrency: 3: window");
        interrupt(running.pid());
        let outcome = running.finish();
        // The last point may have been cut off.
        assert!(matches!(outcome.code, Some(0 | 2 | 4)), "{outcome:#?}");
        let rows = reports.read("run.csv").lines().count() - 1;
        assert!(rows >= 2, "two points were measured: {outcome:#?}");
        for point in ["Request concurrency: 1\n", "Request concurrency: 2\n"] {
            assert!(outcome.stdout.contains(point), "{point:?}: {outcome:#?}");
        }
    }
    server.stop();
}

#[test]
fn what_a_point_has_until_it_is_interrupted_is_reported() {
    let (_repository, server) = start();
    let url = server.http.to_string();
    for goal in ["--request-count=1000000000", "--measurement-interval=3600000"] {
        let reports = Reports::new();
        let json = reports.at("run.json");
        let run = ["-m", "text", "-u", &url, "--shape=INPUT0:1", goal, "--json", &json];
        let mut running = Running::start(&run);
        running.wait_for("Request concurrency: 1: window 1");
        wait_for_answers(&server);
        interrupt(running.pid());
        let outcome = running.finish();
        // On a busy host the load generator may be the limit.
        let is_void = outcome.code == Some(4);
        assert!(is_void || outcome.code == Some(2), "{goal}: {outcome:#?}");
        let doubt = "WARNING: not stable: it ended too early to tell";
        assert!(is_void || outcome.stdout.contains(doubt), "{goal}: {outcome:#?}");
        let report: serde_json::Value = serde_json::from_str(&reports.read("run.json")).expect("JSON");
        let points = report["points"].as_array().expect("points");
        let completed = points[0]["completed"].as_u64().unwrap_or_else(|| panic!("{}", points[0]));
        assert!(points.len() == 1 && completed > 0, "{report}");
    }
    // Without anything there is nothing to report: the first request is due in an hour.
    let reports = Reports::new();
    let intervals = reports.write("intervals", "3600000000\n");
    let later = ["--request-count=2", "--request-intervals", &intervals];
    let mut running = Running::start(&[&["-m", "text", "-u", &url, "--shape=INPUT0:1"][..], &later].concat());
    running.wait_for("window 1");
    interrupt(running.pid());
    let outcome = running.finish();
    assert_eq!(outcome.code, Some(99), "{outcome:#?}");
    assert!(outcome.stderr.ends_with("error: the run was ended before anything was measured\n"), "{outcome:#?}");
    server.stop();
}

/// What takes its time behind the first one is here a server that stands still when it is asked for its statistics.
#[test]
fn the_second_interrupt_ends_the_process() {
    let (_repository, server) = start();
    let url = server.http.to_string();
    let mut running = Running::start(&["-m", "text", "-u", &url, "--shape=INPUT0:1", "--request-count=1000000000"]);
    running.wait_for("window 1");
    wait_for_answers(&server);
    signal(server.pid(), "STOP");
    interrupt(running.pid());
    signal(running.pid(), "INT");
    let outcome = running.finish();
    signal(server.pid(), "CONT");
    assert_eq!((outcome.code, outcome.signal), (None, Some(SIGINT)), "{outcome:#?}");
    server.stop();
}
