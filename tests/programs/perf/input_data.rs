//! Input data from files, sent to a model that returns it.

use super::program::{Reports, measured, perf, start};

#[test]
fn answers_are_compared_with_what_a_file_expects() {
    let (_repository, server) = start();
    let reports = Reports::new();
    let good = reports.write(
        "good.json",
        r#"{"data": [{"INPUT0": ["a", "bc"]}, {"INPUT0": {"content": ["d"], "shape": [1]}}],
            "validation_data": [{"OUTPUT0": ["a", "bc"]}, {"OUTPUT0": ["d"]}]}"#,
    );
    let bad = reports.write("bad.json", r#"{"data": [{"INPUT0": ["a"]}], "validation_data": [{"OUTPUT0": ["b"]}]}"#);
    for (protocol, address) in [("http", server.http), ("grpc", server.grpc)] {
        let url = address.to_string();
        let run = ["-m", "text", "-i", protocol, "-u", &url, "--request-count=40", "--input-data"];
        let outcome = measured(&[&run[..], &[&good]].concat());
        assert!(outcome.stdout.contains("2 different requests"), "{}", outcome.stdout);
        let outcome = perf(&[&run[..], &[&bad]].concat());
        assert_eq!(outcome.code, Some(1), "{outcome:#?}");
        assert!(outcome.stdout.contains("requests failed"), "{}", outcome.stdout);
        // Several files are one after the other.
        let outcome = perf(&[&run[..], &[&good, "--input-data", &bad]].concat());
        assert!(outcome.stdout.contains("3 different requests"), "{}", outcome.stdout);
    }
    server.stop();
}

#[test]
fn directories_and_strings() {
    let (_repository, server) = start();
    let reports = Reports::new();
    let url = server.http.to_string();
    reports.write("INPUT0", "one\ntwo\nthree\n");
    let directory = reports.at(".");
    let run = ["-m", "text", "-u", &url, "--request-count=20"];
    for more in [
        &["--input-data", &directory, "-b4"][..],
        &["--data-directory", &directory],
        &["-z", "--shape", "INPUT0:5"],
        &["--shape", "INPUT0:5", "--string-length=300"],
        &["--shape", "INPUT0:5", "--string-data=x", "--shared-memory=system"],
        &["--shape", "INPUT0:5", "--input-tensor-format=json", "--output-tensor-format=json"],
    ] {
        measured(&[&run[..], more].concat());
    }
    server.stop();
}

#[test]
fn mistakes_name_the_tensor_before_anything_is_sent() {
    let (_repository, server) = start();
    let reports = Reports::new();
    let url = server.http.to_string();
    let wrong = reports.write("wrong.json", r#"{"data": [{"INPUT0": [1]}]}"#);
    let run = ["-u", &url, "--request-count=20"];
    for (more, part) in [
        (&["-m", "numbers"][..], "input 'INPUT1': its shape is [-1, 4] to the model; say it with --shape INPUT1:"),
        (&["-m", "numbers", "--shape", "INPUT1:3,5"], "input 'INPUT1': shape [3, 5] does not fit"),
        (&["-m", "numbers", "--shape", "INPUT9:3"], "the model has no input 'INPUT9'; it has 'INPUT0', 'INPUT1'"),
        (&["-m", "numbers", "--shape", "INPUT1:3,4", "-b9"], "batches of at most 8, not 9"),
        (&["-m", "text", "--input-data", &wrong], "input 'INPUT0': 1 is no BYTES at line 1"),
        (&["-m", "text", "--input-data", "/nowhere.json"], "/nowhere.json: No such file"),
        (&["-m", "text", "--shape", "INPUT0:2000000000", "--string-length=100"], "beyond 4 GiB"),
    ] {
        let outcome = perf(&[&run[..], more].concat());
        assert_eq!(outcome.code, Some(99), "{more:?}: {outcome:#?}");
        assert!(outcome.stderr.contains(part), "{part:?} in {}", outcome.stderr);
    }
    let stats = nereid_test_support::http::Peer::connect(server.http).get("/v2/models/text/stats").json();
    assert_eq!(stats["model_stats"][0]["inference_count"], 0, "{stats}");
    server.stop();
}
