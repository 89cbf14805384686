//! What a server records, and what it does not.

use std::os::unix::fs::PermissionsExt;

use super::{INFER, JSON, file, flag, identity, records, traffic, wait_for};
use nereid_recording::Protocol;
use nereid_test_support::http::{Peer, request};
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::{Server, free_port, run_to_end, signal};
use nereid_test_support::variant::{self, each, usual};

#[test]
fn shapes_and_times_are_recorded_and_contents_are_not() {
    each(&variant::ALL, |variant| {
        let repository = identity();
        let file = file(&repository);
        let server = Server::start(variant, repository.path(), &[&flag(&file)]);
        traffic(&server);
        wait_for(&server, "written", 4);
        assert_eq!(std::fs::metadata(&file).expect("the file").permissions().mode() & 0o777, 0o600);
        server.stop();
        let text = std::fs::read_to_string(&file).expect("lines of JSON");
        assert_eq!(text.lines().count(), 5, "{text}");
        for secret in ["eve", "0.5", "X-Plain", "headers"] {
            assert!(!text.contains(secret), "{secret}: {text}");
        }
        let mut records = records(&file);
        records.sort_by_key(|record| record.head.at_ns);
        let shown: Vec<_> = records
            .iter()
            .map(|record| {
                (record.head.protocol, &*record.head.model, record.head.answer.as_ref().map(|answer| answer.status))
            })
            .collect();
        let (http, grpc) = (Protocol::Http, Protocol::Grpc);
        assert_eq!(
            shown,
            [(http, "m", Some(200)), (http, "m", Some(200)), (http, "absent", Some(404)), (grpc, "m", Some(0))]
        );
        assert_eq!(records[0].head.request.parameters, ["customer"]);
        assert_eq!(records[0].head.request.byte_size, JSON.len() as u64);
        assert_eq!(records[1].head.request.inputs[0].byte_size, Some(4));
        assert_eq!(records[1].head.answer.as_ref().map(|answer| answer.outputs[0].byte_size), Some(Some(4)));
        assert_eq!(records[3].head.request.inputs[0].shape, [3]);
        assert!(records.iter().all(|record| record.head.took_ns > 0 && record.request_body.is_none()));
    });
}

#[test]
fn contents_are_recorded_where_they_are_wanted_and_secrets_never() {
    each(&variant::ALL, |variant| {
        let repository = identity();
        let file = file(&repository);
        let record = flag(&file);
        let flags = [&*record, "--record-data=true", "--record-redact=Customer"];
        let server = Server::start(variant, repository.path(), &flags);
        traffic(&server);
        wait_for(&server, "written", 4);
        server.stop();
        let bytes = std::fs::read(&file).expect("the file");
        assert!(!String::from_utf8_lossy(&bytes).contains("eve"));
        let mut records = records(&file);
        records.sort_by_key(|record| record.head.at_ns);
        let body =
            |at: usize| String::from_utf8_lossy(records[at].request_body.as_deref().unwrap_or_default()).into_owned();
        assert!(body(0).contains(r#""customer":"<redacted>""#) && body(0).contains("[0.5,7]"), "{}", body(0));
        let header = |at: usize, wanted: &str| {
            let headers = &records[at].head.request.headers;
            headers.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.clone())
        };
        assert_eq!(header(0, "Cookie").as_deref(), Some("<redacted>"));
        assert_eq!(header(1, "Authorization").as_deref(), Some("<redacted>"));
        assert_eq!(header(1, "X-Plain").as_deref(), Some("p"));
        assert!(records[1].request_body.as_ref().is_some_and(|body| body.ends_with(&2.5f32.to_le_bytes())));
        assert!(records[1].answer_body.as_ref().is_some_and(|body| body.ends_with(&2.5f32.to_le_bytes())));
        assert!(records[3].request_body.is_some() && records[3].answer_body.is_some());
    });
}

/// A key of the server has a name that only its flags know.
#[test]
fn keys_of_the_server_are_not_recorded() {
    let repository = identity();
    let file = file(&repository);
    let record = flag(&file);
    let flags = [&*record, "--record-data=true", "--http-restricted-api=inference:knock=of-eve"];
    let server = Server::start(usual(), repository.path(), &flags);
    let answer = Peer::connect(server.http).post(INFER, &[("knock", "of-eve")], b"{\"inputs\":[]}");
    assert_ne!(answer.status, 403, "{}", answer.text());
    wait_for(&server, "written", 1);
    server.stop();
    let text = String::from_utf8_lossy(&std::fs::read(&file).expect("the file")).into_owned();
    assert!(text.contains("knock") && !text.contains("of-eve"), "{text}");
}

#[test]
fn a_file_that_is_there_ends_the_start() {
    let repository = identity();
    let file = file(&repository);
    std::fs::write(&file, "before").expect("write");
    let location = format!("--model-repository={}", repository.path().display());
    let ports = ["http", "grpc", "metrics"].map(|port| format!("--{port}-port={}", free_port()));
    let (status, out, errors) = run_to_end(&["serve", &location, &flag(&file), &ports[0], &ports[1], &ports[2]]);
    let errors = errors + &out;
    assert!(!status.success() && errors.contains("exists already") && errors.contains("--record"), "{errors}");
    assert_eq!(std::fs::read(&file).expect("the file"), b"before");
}

#[test]
fn one_of_so_many_is_recorded_up_to_the_bound() {
    let repository = identity();
    let file = file(&repository);
    let record = flag(&file);
    let flags = [&*record, "--record-rate=3", "--record-data=true", "--record-byte-size=3000", "--io-cores=1"];
    let server = Server::start(usual(), repository.path(), &flags);
    let mut peer = Peer::connect(server.http);
    for _ in 0..7 {
        assert_eq!(peer.post(INFER, &[], JSON.as_bytes()).status, 200);
    }
    wait_for(&server, "written", 3);
    for _ in 0..60 {
        assert_eq!(peer.post(INFER, &[], JSON.as_bytes()).status, 200);
    }
    server.wait_for_log("recording ends, because");
    let length = std::fs::metadata(&file).expect("the file").len();
    assert!((1500..=3000).contains(&length), "{length}");
    assert!(records(&file).len() >= 3);
    let page = Peer::connect(server.metrics).get("/metrics").text();
    assert!(page.contains(&format!("nereid_recorded_bytes_total {length}\n")), "{page}");
    server.stop();
}

#[test]
fn the_file_of_a_killed_server_can_be_read() {
    let repository = identity();
    let file = file(&repository);
    let server = Server::start(usual(), repository.path(), &[&flag(&file), "--record-data=true"]);
    traffic(&server);
    wait_for(&server, "written", 4);
    signal(server.pid(), "KILL");
    let _ = server.wait();
    // The thread writes a record as a whole before it waits again.
    assert!(records(&file).len() >= 3);
}

#[test]
fn a_client_that_leaves_has_a_record_without_an_answer() {
    let repository = Repository::new();
    let slow = "parameters { key: \"execute_delay_ms\" value { string_value: \"60000\" } }";
    repository.identity_of("identity", "m", 0, &[Pair::new("FP32", "-1")], slow);
    let file = file(&repository);
    let server = Server::start(usual(), repository.path(), &[&flag(&file)]);
    let mut peer = Peer::connect(server.http);
    peer.send(&request("POST", INFER, &[], JSON.as_bytes()));
    drop(peer);
    wait_for(&server, "written", 1);
    assert!(records(&file).iter().all(|record| record.head.answer.is_none()));
    signal(server.pid(), "KILL");
    let _ = server.wait();
}
