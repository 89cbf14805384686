//! `nereid replay` against servers that answer as recorded, that do not, and that are not there.

use std::path::{Path, PathBuf};
use std::time::Instant;

use super::{INFER, JSON, file, flag, identity, replay, traffic, wait_for};
use nereid_test_support::http::Peer;
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::{Server, free_port, run_to_end};
use nereid_test_support::variant::usual;

/// A recording of [`traffic`] with contents or without.
fn recorded(repository: &Repository, data: bool) -> PathBuf {
    let file = file(repository);
    let server = Server::start(usual(), repository.path(), &[&flag(&file), &format!("--record-data={data}")]);
    traffic(&server);
    wait_for(&server, "written", 4);
    server.stop();
    file
}

fn counts(report: &serde_json::Value) -> [u64; 4] {
    ["equal", "different", "failed", "skipped"].map(|name| report[name].as_u64().unwrap_or(u64::MAX))
}

#[test]
fn a_server_that_answers_the_same_is_equal() {
    let repository = identity();
    let file = recorded(&repository, true);
    let server = Server::start(usual(), repository.path(), &[]);
    for more in [&["--compare"][..], &["--compare", "--speed=max", "--concurrency-max=2"], &[]] {
        let (code, report, errors) = replay(&file, &server, more);
        assert_eq!((code, counts(&report)), (Some(0), [4, 0, 0, 0]), "{more:?}: {report:#} {errors}");
        assert!(report["latency_ms"]["replayed"]["p50"].as_f64().is_some_and(|ms| ms > 0.0), "{report:#}");
    }
    // Over one protocol whichever they came over: then only the errors differ in their codes.
    for protocol in ["http", "grpc"] {
        let address = if protocol == "http" { server.http } else { server.grpc };
        let (file, url) = (file.display().to_string(), format!("--url={address}"));
        let protocol = format!("--protocol={protocol}");
        let (status, out, errors) = run_to_end(&["replay", &file, &url, &protocol, "--compare"]);
        assert!(status.success() && out.contains("4 equal, 0 different"), "{protocol}: {out} {errors}");
    }
    server.stop();
}

#[test]
fn a_model_that_answers_otherwise_is_found() {
    let repository = identity();
    let file = recorded(&repository, true);
    let other = Repository::new();
    other.identity("m", 0, &[Pair::new("FP64", "-1")]);
    other.identity("n", 0, &[Pair::new("FP32", "-1")]);
    let server = Server::start(usual(), other.path(), &[]);
    let (code, report, errors) = replay(&file, &server, &["--compare"]);
    assert_eq!((code, counts(&report)), (Some(1), [1, 3, 0, 0]), "{report:#} {errors}");
    let differences = report["differences"].to_string();
    assert!(differences.contains("HTTP status 400, not HTTP status 200"), "{differences}");
    let (code, report, errors) = replay(&file, &server, &["--compare", "--model=m=n"]);
    assert_eq!((code, counts(&report)), (Some(0), [4, 0, 0, 0]), "{report:#} {errors}");
    server.stop();
}

/// Values differ: what is recorded is changed, because an identity model answers with what it gets.
#[test]
fn values_outside_of_the_tolerance_are_found() {
    let repository = identity();
    let file = recorded(&repository, true);
    let bytes = std::fs::read(&file).expect("the file");
    // The number of the answer in JSON, of the same length.
    let at = bytes.windows(9).rposition(|window| window == b"[0.5,7.0]").expect("the answer's numbers");
    let mut changed = bytes;
    changed[at + 3] = b'6';
    let changed_file = repository.path().join("changed");
    std::fs::write(&changed_file, changed).expect("write");
    let server = Server::start(usual(), repository.path(), &[]);
    let (code, report, errors) = replay(&changed_file, &server, &["--compare"]);
    assert_eq!((code, counts(&report)), (Some(1), [3, 1, 0, 0]), "{report:#} {errors}");
    let difference = report["differences"][0]["what"].as_str().expect("a difference");
    assert!(difference.starts_with("output 'OUTPUT0' has 0.5 at element 0, not 0.6"), "{difference}");
    for more in [&["--compare", "--tolerance=0.2"][..], &[]] {
        let (code, report, _) = replay(&changed_file, &server, more);
        assert_eq!(code, Some(0), "{report:#}");
    }
    server.stop();
}

#[test]
fn contents_that_were_not_recorded_are_made() {
    let repository = identity();
    let file = recorded(&repository, false);
    let server = Server::start(usual(), repository.path(), &[]);
    for more in ["--input-data=zero", "--input-data=random"] {
        let (code, report, errors) = replay(&file, &server, &["--compare", more]);
        assert_eq!((code, counts(&report)), (Some(0), [4, 0, 0, 0]), "{report:#} {errors}");
    }
    server.stop();
}

#[test]
fn requests_keep_their_times_or_go_faster() {
    let repository = identity();
    let file = file(&repository);
    let server = Server::start(usual(), repository.path(), &[&flag(&file)]);
    let mut peer = Peer::connect(server.http);
    let started = Instant::now();
    for _ in 0..3 {
        assert_eq!(peer.post(INFER, &[], JSON.as_bytes()).status, 200);
        std::thread::sleep(std::time::Duration::from_millis(500));
    }
    let lasted = started.elapsed().as_secs_f64();
    wait_for(&server, "written", 3);
    // The server records its replay too, behind what is being read; it is not read, because it comes later.
    let copy = repository.path().join("copy");
    std::fs::copy(&file, &copy).expect("a copy");
    let took = |speed: &str| {
        let (code, report, errors) = replay(&copy, &server, &[speed]);
        assert_eq!(code, Some(0), "{report:#} {errors}");
        report["took_s"].as_f64().expect("a time")
    };
    let same = took("--speed=1");
    // A busy machine may stop one replay for longer than the other takes.
    let faster = (0..20).map(|_| took("--speed=10")).find(|faster| *faster < same);
    let faster = faster.unwrap_or_else(|| panic!("none of 20 replays is faster than {same} s"));
    assert!(same >= 0.95 && same < lasted + 60.0, "{same} of {lasted}");
    assert!(faster >= 0.09, "{faster} of {same}");
    server.stop();
}

#[test]
fn a_file_or_server_of_no_use_has_its_error() {
    let repository = identity();
    let file = recorded(&repository, true);
    let error = |arguments: &[&str]| {
        let (status, _, errors) = run_to_end(&[&["replay"][..], arguments].concat());
        assert_eq!(status.code(), Some(2), "{errors}");
        errors
    };
    let path = |file: &Path| file.display().to_string();
    let nowhere = format!("--url=127.0.0.1:{}", free_port());
    assert!(error(&[&path(&file), &nowhere]).contains("no server answers at 127.0.0.1:"));
    assert!(error(&["/nowhere/file"]).contains("cannot open the recording"));
    assert!(error(&[&path(&repository.path().join("m/config.pbtxt"))]).contains("this is no recording"));
    assert!(error(&[]).contains("missing the file"));
    // A file that is cut short is replayed up to there.
    let bytes = std::fs::read(&file).expect("the file");
    let cut = repository.path().join("cut");
    std::fs::write(&cut, &bytes[..bytes.len() - 20]).expect("write");
    let server = Server::start(usual(), repository.path(), &[]);
    let (code, report, errors) = replay(&cut, &server, &["--compare"]);
    assert_eq!((code, counts(&report)), (Some(0), [3, 0, 0, 0]), "{report:#} {errors}");
    assert!(report["note"].as_str().is_some_and(|note| note.contains("inside of a record")), "{report:#}");
    server.stop();
}

/// An exit code of 0 says that answers are as they were; it must not come of a file that shows none.
#[test]
fn what_cannot_be_compared_is_not_equal() {
    let repository = identity();
    // Without contents a file is lines of text.
    let text = std::fs::read_to_string(recorded(&repository, false)).expect("the file");
    let server = Server::start(usual(), repository.path(), &[]);
    let run = |text: String| {
        let changed = repository.path().join("changed");
        std::fs::write(&changed, text).expect("write");
        replay(&changed, &server, &[])
    };
    for fact in ["\"malformed\":true", "\"inputs\":[{\"name\":\"x\",\"shared_memory\":true}]"] {
        let lines = text.lines().enumerate().map(|(at, line)| match at {
            0 => format!("{line}\n"),
            _ => {
                let mut record: serde_json::Value = serde_json::from_str(line).expect("a record");
                let fact: serde_json::Value = serde_json::from_str(&format!("{{{fact}}}")).expect("a fact");
                for (name, value) in fact.as_object().expect("members") {
                    record["request"][name] = value.clone();
                }
                format!("{record}\n")
            }
        });
        let (code, report, errors) = run(lines.collect());
        assert_eq!((code, counts(&report)), (Some(2), [0, 0, 0, 4]), "{report:#} {errors}");
        assert!(errors.contains("nothing could be compared"), "{errors}");
    }
    // What is behind the damage was not compared.
    let whole: String = text.lines().take(2).map(|line| format!("{line}\n")).collect();
    let (code, report, errors) = run(format!("{whole}damage\n"));
    assert_eq!((code, counts(&report)), (Some(1), [1, 0, 0, 0]), "{report:#} {errors}");
    assert!(report["note"].as_str().is_some_and(|note| note.contains("record 2 at byte")), "{report:#}");
    server.stop();
}
