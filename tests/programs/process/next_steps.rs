//! What to do behind an error: it is in the log, and the texts that clients receive stay Triton's.

use std::time::Instant;

use nereid_test_support::http::Peer;
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::{PATIENCE, Server};
use nereid_test_support::variant::usual;

/// Sends the request until its next step is in the log: at most one such message a second is written.
fn refused(server: &Server, peer: &mut Peer, (path, body): (&str, &str), error: &str, step: &str) {
    let started = Instant::now();
    loop {
        let answer = peer.post(path, &[], body.as_bytes());
        assert_eq!(answer.error(), error);
        if server.log().replace("\\\"", "\"").contains(step) {
            return;
        }
        assert!(started.elapsed() < PATIENCE, "the log never says {step:?}:\n{}", server.log());
    }
}

#[test]
fn a_refused_request_has_its_next_step_in_the_log() {
    let repository = Repository::new();
    repository.identity("m", 4, &[Pair::new("INT32", "-1, 2")]);
    let server = Server::start(usual(), repository.path(), &[]);
    let mut peer = Peer::connect(server.http);
    let request = |name: &str, shape: &str| {
        format!("{{\"inputs\":[{{\"name\":\"{name}\",\"datatype\":\"INT32\",\"shape\":{shape},\"data\":[1,2]}}]}}")
    };
    let infer = "/v2/models/m/infer";
    refused(
        &server,
        &mut peer,
        (infer, &request("INPUT00", "[1,1,2]")),
        "unexpected inference input 'INPUT00' for model 'm'",
        "next step: model 'm' has the inputs INPUT0 (INT32 [-1,-1,2]); did you mean \"INPUT0\"?",
    );
    let output = request("INPUT0", "[1,1,2]").replace("]}]}", "]}],\"outputs\":[{\"name\":\"OUTPUT9\"}]}");
    refused(
        &server,
        &mut peer,
        (infer, &output),
        "unexpected inference output 'OUTPUT9' for model 'm'",
        "next step: model 'm' has the outputs OUTPUT0 (INT32 [-1,-1,2]); did you mean \"OUTPUT0\"?",
    );
    refused(
        &server,
        &mut peer,
        ("/v2/models/mm/infer", &request("INPUT0", "[1,1,2]")),
        "Request for unknown model: 'mm' is not found",
        "next step: no model is called 'mm'; did you mean \"m\"?",
    );
    let shape = "input 'INPUT0' of model 'm' takes for example the shape [1,1,2], where the first dimension is the \
                 batch, 1 to 4";
    let started = Instant::now();
    while !server.log().contains(shape) {
        let answer = peer.post(infer, &[], request("INPUT0", "[1,2,1]").as_bytes());
        let error = answer.error();
        // Triton's text, to its end.
        assert!(error.contains("unexpected shape for input 'INPUT0' for model 'm'. Expected [-1,-1,2], got [1,2,1]. "));
        assert!(error.ends_with("See the model configuration docs for more info on max_batch_size."), "{error}");
        assert!(started.elapsed() < PATIENCE, "{}", server.log());
    }
    server.stop();
}

#[test]
fn a_failed_load_has_its_next_step_in_the_log() {
    let repository = Repository::new();
    repository.identity_of("identiti", "typo", 0, &[Pair::new("INT32", "-1")], "");
    repository.file("unversioned/config.pbtxt", "backend: \"identity\"\n");
    let flags = ["--model-control-mode=explicit"];
    let server = Server::start_with(usual(), repository.path(), &flags, "/v2/health/live");
    let mut peer = Peer::connect(server.http);
    let mut load = |name: &str| peer.post(&format!("/v2/repository/models/{name}/load"), &[], b"{}").error();
    assert_eq!(
        load("typo"),
        "load failed for model 'typo': version 1 is at UNAVAILABLE state: Invalid argument: unable to find backend \
         library for backend 'identiti', try specifying runtime on the model configuration.;\n"
    );
    let unversioned = load("unversioned");
    assert!(!unversioned.contains("next step"), "{unversioned}");
    assert_eq!(load("typu"), "failed to load 'typu', failed to poll from model repository");
    for step in [
        "next step for model 'typo': no backend is called \\\"identiti\\\"; did you mean \\\"identity\\\"?",
        "next step for model 'unversioned': make a version directory, ",
        "next step for model 'typu': no repository has a directory 'typu'; did you mean \\\"typo\\\"?",
    ] {
        server.wait_for_log(step);
    }
    // The state of a version that is not ready, for a request to it.
    let started = Instant::now();
    let state = "next step: model 'typo': version 1 is UNAVAILABLE: Invalid argument: unable to find backend library";
    while !server.log().contains(state) {
        let answer = peer.post("/v2/models/typo/infer", &[], b"{\"inputs\":[]}");
        assert_eq!(answer.error(), "Request for unknown model: 'typo' has no available versions");
        assert!(started.elapsed() < PATIENCE, "{}", server.log());
    }
    server.stop();
}
