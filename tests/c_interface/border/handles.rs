//! Calls with released handles or with handles of another type: with `NEREID_CHECK_HANDLES=1` each call fails with the
//! name of the function, and the server continues.

use std::path::Path;

use crate::border::compiler;
use nereid_test_support::http::{Answer, Peer};
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::Server;
use nereid_test_support::variant::{Variant, usual};

/// A server with culprit.cc as the backend of model `m`, which checks handles.
pub fn start(variant: Variant, directory: &Path, flags: &[&str]) -> (Repository, Server) {
    let repository = Repository::new();
    repository.identity_of("culprit", "m", 0, &[Pair::new("INT32", "-1")], "");
    let backends = format!("--backend-directory={}", directory.display());
    let flags = [&[backends.as_str()], flags].concat();
    let environment = [("NEREID_CHECK_HANDLES", "1")];
    let server = Server::start_in(variant, repository.path(), &flags, "/v2/health/ready", &environment);
    (repository, server)
}

pub fn ask(peer: &mut Peer, what: &str) -> Answer {
    let body = format!(
        r#"{{"parameters":{{"do":"{what}"}},"inputs":[{{"name":"INPUT0","datatype":"INT32","shape":[1],"data":[1]}}]}}"#
    );
    peer.post("/v2/models/m/infer", &[], body.as_bytes())
}

/// What a deed told, line by line.
pub fn told(answer: &Answer) -> Vec<String> {
    assert_eq!(answer.status, 200, "{}", answer.text());
    let text = answer.json()["parameters"]["told"].as_str().unwrap_or_default().to_owned();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn a_call_with_a_dead_handle_fails_with_its_name() {
    let Some(directory) = compiler::backend("culprit.cc", &[]) else { return };
    let (_repository, server) = start(usual(), &directory, &[]);
    let mut peer = Peer::connect(server.http);
    let cases: [(&str, &[&str]); 5] = [
        (
            "request after release",
            &[
                "Invalid argument: TRITONBACKEND_RequestInputCount: request is a TRITONBACKEND_Request that was given up in TRITONBACKEND_RequestRelease",
                "Invalid argument: TRITONBACKEND_RequestRelease: request is a TRITONBACKEND_Request that was given up in TRITONBACKEND_RequestRelease",
                "Invalid argument: TRITONBACKEND_InputProperties: input is a TRITONBACKEND_Input that was given up in TRITONBACKEND_RequestRelease",
            ],
        ),
        (
            "response after send",
            &[
                "Invalid argument: TRITONBACKEND_ResponseSetIntParameter: response is a TRITONBACKEND_Response that was given up in TRITONBACKEND_ResponseSend",
                "Invalid argument: TRITONBACKEND_ResponseSend: response is a TRITONBACKEND_Response that was given up in TRITONBACKEND_ResponseSend",
                "Invalid argument: TRITONBACKEND_ResponseDelete: response is a TRITONBACKEND_Response that was given up in TRITONBACKEND_ResponseSend",
                "Invalid argument: TRITONBACKEND_OutputBuffer: output is a TRITONBACKEND_Output that was given up in TRITONBACKEND_ResponseSend",
            ],
        ),
        (
            "factory after delete",
            &[
                "Invalid argument: TRITONBACKEND_ResponseNewFromFactory: factory is a TRITONBACKEND_ResponseFactory that was given up in TRITONBACKEND_ResponseFactoryDelete",
                "Invalid argument: TRITONBACKEND_ResponseFactorySendFlags: factory is a TRITONBACKEND_ResponseFactory that was given up in TRITONBACKEND_ResponseFactoryDelete",
                "Invalid argument: TRITONBACKEND_ResponseFactoryIsCancelled: factory is a TRITONBACKEND_ResponseFactory that was given up in TRITONBACKEND_ResponseFactoryDelete",
                "Invalid argument: TRITONBACKEND_ResponseFactoryDelete: factory is a TRITONBACKEND_ResponseFactory that was given up in TRITONBACKEND_ResponseFactoryDelete",
            ],
        ),
        (
            "errors and messages",
            &[
                "|Unknown",
                "Invalid argument: TRITONSERVER_MessageSerializeToJson: message is a TRITONSERVER_Message that was given up in TRITONSERVER_MessageDelete",
                "Invalid argument: TRITONSERVER_MessageDelete: message is a TRITONSERVER_Message that was given up in TRITONSERVER_MessageDelete",
                "Invalid argument: TRITONSERVER_BufferAttributesSetByteSize: buffer_attributes is a TRITONSERVER_BufferAttributes that was given up in TRITONSERVER_BufferAttributesDelete",
                "Invalid argument: TRITONSERVER_MetricNewWithArgs: args is a TRITONSERVER_MetricArgs that was given up in TRITONSERVER_MetricArgsDelete",
                "Invalid argument: TRITONBACKEND_ResponseSend: error is a TRITONSERVER_Error that was given up in TRITONSERVER_ErrorDelete",
            ],
        ),
        (
            "other kinds",
            &[
                "Invalid argument: TRITONBACKEND_ModelName: the handle is a TRITONBACKEND_ModelInstance, not a TRITONBACKEND_Model",
                "Invalid argument: TRITONBACKEND_RequestInputCount: request is a TRITONBACKEND_ModelInstance, not a TRITONBACKEND_Request",
                "Invalid argument: TRITONBACKEND_ResponseDelete: response is a TRITONBACKEND_Request, not a TRITONBACKEND_Response",
                "Invalid argument: TRITONBACKEND_ModelInstanceName: the handle is no TRITONBACKEND_ModelInstance of this server",
                "Invalid argument: TRITONBACKEND_RequestRelease: request is no TRITONBACKEND_Request of this server",
            ],
        ),
    ];
    for (deed, expected) in cases {
        let answer = ask(&mut peer, deed);
        assert_eq!(answer.status, 200, "{deed}: {}", answer.text());
        assert_eq!(told(&ask(&mut peer, "tell")), expected, "{deed}");
        // The same once more: what is wrong does not change, and is logged no second time.
        ask(&mut peer, deed);
        assert_eq!(told(&ask(&mut peer, "tell")), expected, "{deed}");
    }
    assert_eq!(told(&ask(&mut peer, "not its own")), ["m"], "what is right stays right");
    let log = server.stop();
    let line = "NEREID_CHECK_HANDLES: TRITONBACKEND_ResponseDelete: response is a TRITONBACKEND_Request, not a \
                TRITONBACKEND_Response (by backend 'culprit', model 'm', instance 'm_0_0', in \
                TRITONBACKEND_ModelInstanceExecute)";
    assert_eq!(log.matches(line).count(), 1, "{log}");
    assert!(log.contains("TRITONSERVER_ErrorDelete: error is a TRITONSERVER_Error that was given up in"), "{log}");
    assert!(log.contains("at the end of backend 'culprit' all handles were given back"), "{log}");
    assert!(log.contains("at the server's end all handles were given back"), "{log}");
}

#[test]
fn what_a_backend_leaves_behind_is_told_with_its_name() {
    let Some(directory) = compiler::backend("culprit.cc", &[]) else { return };
    let (_repository, server) = start(usual(), &directory, &[]);
    let mut peer = Peer::connect(server.http);
    for _ in 0..3 {
        ask(&mut peer, "leak");
    }
    let log = server.stop();
    let line = "at the end of backend 'culprit' these handles were not given back: 3 TRITONBACKEND_Response from \
                TRITONBACKEND_ResponseNew, 3 TRITONBACKEND_ResponseFactory from TRITONBACKEND_ResponseFactoryNew, 3 \
                TRITONSERVER_Error from TRITONSERVER_ErrorNew, 3 TRITONSERVER_Message from \
                TRITONSERVER_MessageNewFromSerializedJson";
    assert!(log.contains(line), "{log}");
}

#[test]
fn nothing_is_checked_unless_it_is_asked_for() {
    let Some(directory) = compiler::backend("culprit.cc", &[]) else { return };
    let repository = Repository::new();
    repository.identity_of("culprit", "m", 0, &[Pair::new("INT32", "-1")], "");
    let backends = format!("--backend-directory={}", directory.display());
    let environment = [("NEREID_CHECK_HANDLES", "0")];
    let server = Server::start_in(usual(), repository.path(), &[&backends], "/v2/health/ready", &environment);
    ask(&mut Peer::connect(server.http), "leak");
    assert!(!server.stop().contains("NEREID_CHECK_HANDLES"));
}

/// Numbers that no enum has, indices behind the end, sizes beyond any memory: defined with and without the registry.
#[test]
fn numbers_out_of_range_are_refused() {
    let Some(directory) = compiler::backend("culprit.cc", &[]) else { return };
    for checks in ["0", "1"] {
        let repository = Repository::new();
        repository.identity_of("culprit", "m", 0, &[Pair::new("INT32", "-1")], "");
        let backends = format!("--backend-directory={}", directory.display());
        let environment = [("NEREID_CHECK_HANDLES", checks)];
        let server = Server::start_in(usual(), repository.path(), &[&backends], "/v2/health/ready", &environment);
        let mut peer = Peer::connect(server.http);
        let told = told(&ask(&mut peer, "numbers"));
        assert_eq!(told.len(), 4 * 11 + 5, "{told:?}");
        let accepted: Vec<_> = told.iter().enumerate().filter(|(_, line)| *line == "fine").collect();
        assert!(accepted.is_empty(), "{accepted:?} of {told:?}");
        let (numbers, sizes) = told.split_at(44);
        assert!(numbers.iter().all(|line| line.starts_with("Invalid argument: ")), "{numbers:?}");
        for line in sizes {
            assert!(line.starts_with("Invalid argument: ") || line.starts_with("Unavailable: "), "{line}");
        }
        ask(&mut peer, "late final");
        assert_eq!(super::handles::told(&ask(&mut peer, "tell")).len(), 5, "what comes late ends nothing");
        server.stop();
    }
}
