//! Exit codes of runs that cannot begin, or whose figures are not valid.

use super::program::{Reports, measured, perf, start};

#[test]
fn help_and_version_need_no_server() {
    let help = measured(&["--help"]);
    assert!(help.stdout.starts_with("Usage: nereid perf -m <model>") && help.stdout.contains("--concurrency-range"));
    assert_eq!(measured(&["-h"]).stdout, help.stdout);
    assert!(measured(&["-m", "x", "--version"]).stdout.starts_with("nereid "));
}

#[test]
fn command_lines_that_are_not_understood() {
    for (arguments, part) in [
        (&[][..], "which model? -m names it"),
        (&["-m", "x", "--nonsense"], "there is no --nonsense"),
        (&["-m", "x", "--concurrency-range=8:1"], "--concurrency-range: '8:1' is not a range"),
        (&["-m", "x", "--periodic-concurrency-range=1:2:3"], "--periodic-concurrency-range is not supported: "),
        (&["-m", "x", "--enable-mpi"], "--enable-mpi is not supported: "),
        (&["-m", "x", "--service-kind=tfserving"], "--service-kind: 'tfserving' is not triton or openai"),
        (&["-m", "x", "-u", "ftp://x"], "-u: 'ftp://x' is not "),
        (&["-m", "x", "--html", "/nowhere/report.html"], "/nowhere/report.html: No such file"),
        (&["-m", "x", "--json", "/"], "/: is a directory"),
    ] {
        let outcome = perf(arguments);
        assert_eq!(outcome.code, Some(99), "{arguments:?}: {outcome:#?}");
        assert!(outcome.stderr.starts_with("error: ") && outcome.stderr.contains(part), "{part:?}: {}", outcome.stderr);
        assert!(outcome.stdout.is_empty(), "{}", outcome.stdout);
    }
}

#[test]
fn servers_that_are_away_and_models_that_are_absent() {
    let (_repository, server) = start();
    for (protocol, address) in [("http", server.http), ("grpc", server.grpc)] {
        let outcome = perf(&["-m", "absent", "-i", protocol, "-u", &address.to_string()]);
        assert_eq!(outcome.code, Some(99), "{outcome:#?}");
        assert!(outcome.stderr.contains("Request for unknown model: 'absent' is not found"), "{}", outcome.stderr);
    }
    let address = server.http.to_string();
    server.stop();
    let outcome = perf(&["-m", "numbers", "-u", &address]);
    assert_eq!(outcome.code, Some(99), "{outcome:#?}");
    assert!(outcome.stderr.contains(&address), "{}", outcome.stderr);
}

#[test]
fn figures_that_are_not_stable_are_told_with_a_code() {
    let (_repository, server) = start();
    let reports = Reports::new();
    let (url, csv) = (server.http.to_string(), reports.at("run.csv"));
    // No two windows are that alike.
    let run = ["-m", "text", "-u", &url, "--shape", "INPUT0:1", "-p30", "-r3", "-s0.000001", "-f", &csv];
    let outcome = perf(&run);
    // On a busy host the load generator may be the limit; then there are no figures that could be stable.
    let is_void = outcome.code == Some(4);
    assert!(is_void || outcome.code == Some(2), "{outcome:#?}");
    assert!(is_void || outcome.stdout.contains("WARNING: not stable"), "{}", outcome.stdout);
    assert_eq!(reports.read("run.csv").lines().count(), 2, "what was measured is reported all the same");
    server.stop();
}
