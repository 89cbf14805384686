//! A C++ exception from any export of a backend is an error of the current call only, and the server continues.

use std::process::Command;

use crate::border::compiler;
use crate::border::handles::ask;
use nereid_test_support::http::Peer;
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::Server;
use nereid_test_support::variant::usual;

#[test]
fn an_exception_while_a_model_loads_refuses_the_model() {
    let Some(directory) = compiler::backend("culprit.cc", &[]) else { return };
    for export in ["Initialize", "GetBackendAttribute", "ModelInitialize", "ModelInstanceInitialize"] {
        let repository = Repository::new();
        repository.identity_of("culprit", "m", 0, &[Pair::new("INT32", "-1")], "");
        repository.identity("other", 0, &[Pair::new("INT32", "-1")]);
        let flags = [
            &format!("--backend-directory={}", directory.display()),
            &format!("--backend-config=culprit,throw_in={export}"),
            "--exit-on-error=false",
        ];
        let environment = [("NEREID_CHECK_HANDLES", "1")];
        let server = Server::start_in(usual(), repository.path(), &flags, "/v2/health/live", &environment);
        let mut peer = Peer::connect(server.http);
        let index = peer.post("/v2/repository/index", &[], b"").json();
        let row = index.as_array().into_iter().flatten().find(|row| row["name"] == "m").cloned().unwrap_or_default();
        assert_eq!(row["state"], "UNAVAILABLE", "{export}: {index}");
        let expected = format!("Internal: the backend threw an exception: thrown in {export}");
        assert_eq!(row["reason"], expected.as_str(), "{export}: {index}");
        assert_eq!(peer.get("/v2/models/other/ready").status, 200, "{export}");
        let log = server.stop();
        assert!(log.contains("at the server's end all handles were given back"), "{export}: {log}");
    }
}

#[test]
fn an_exception_while_a_model_ends_is_logged() {
    let Some(directory) = compiler::backend("culprit.cc", &[]) else { return };
    for (export, line) in [
        ("ModelInstanceFinalize", "failed to finalize it: Internal: the backend threw an exception: thrown in"),
        (
            "ModelFinalize",
            "failed to finalize it: Internal: the backend threw an exception: an exception that is no std",
        ),
        ("Finalize", "backend 'culprit' failed to finalize: Internal: the backend threw an exception: thrown in"),
    ] {
        let repository = Repository::new();
        repository.identity_of("culprit", "m", 0, &[Pair::new("INT32", "-1")], "");
        let flags = [
            &format!("--backend-directory={}", directory.display()),
            &format!("--backend-config=culprit,throw_in={export}"),
        ];
        let server = Server::start(usual(), repository.path(), &[flags[0], flags[1]]);
        let mut peer = Peer::connect(server.http);
        assert_eq!(ask(&mut peer, "throw").status, 500, "{export}");
        assert_eq!(ask(&mut peer, "").status, 200, "{export}");
        let log = server.stop();
        assert!(log.contains(line), "{export}: {log}");
    }
}

/// Rounds of thrown.cc, in each of which every function throws.
const ROUNDS: usize = 3;

#[test]
fn exceptions_of_an_application_are_told_and_what_it_keeps_is_listed() {
    let source = compiler::root().join("tests/native_programs/thrown.cc");
    let program = compiler::workshop().join("thrown");
    if !compiler::program(&source, &program, &[]) {
        return;
    }
    let repository = Repository::new();
    repository.identity("m", 0, &[Pair::new("INT32", "-1")]);
    let left = "NEREID_CHECK_HANDLES: at the server's end these handles were not given back: \
                1 TRITONSERVER_Message from \
                TRITONSERVER_MessageNewFromSerializedJson";
    let nothing_left = "NEREID_CHECK_HANDLES: at the server's end all handles were given back";
    for (checks, how, expected) in
        [("0", "leaves", None), ("1", "leaves", Some(left)), ("1", "tidy", Some(nothing_left))]
    {
        let mut command = Command::new(&program);
        let command = command.arg(repository.path()).arg(how).env("NEREID_CHECK_HANDLES", checks);
        let output = command.output().expect("the program runs");
        let log = [&output.stderr, &output.stdout].map(|bytes| String::from_utf8_lossy(bytes)).concat();
        assert!(output.status.success(), "{}: {log}", output.status);
        // Those whose exception is no answer's. Activities of a trace are several a request.
        for (function, text) in [
            ("TRITONSERVER_ResponseAllocatorStartFn_t", "thrown on purpose"),
            ("TRITONSERVER_ResponseAllocatorReleaseFn_t", "thrown on purpose"),
            ("TRITONSERVER_InferenceResponseCompleteFn_t", "thrown on purpose"),
            ("TRITONSERVER_InferenceRequestReleaseFn_t", "an exception that is no std::exception"),
            ("TRITONSERVER_InferenceTraceReleaseFn_t", "thrown on purpose"),
        ] {
            let line = format!("the application threw an exception in {function}: {text}");
            assert_eq!(log.matches(&line).count(), ROUNDS, "{line}: {log}");
        }
        for (function, text) in [
            ("TRITONSERVER_InferenceTraceActivityFn_t", "thrown on purpose"),
            ("TRITONSERVER_InferenceTraceTensorActivityFn_t", "an exception that is no std::exception"),
        ] {
            let line = format!("the application threw an exception in {function}: {text}");
            assert!(log.matches(&line).count() >= ROUNDS, "{line}: {log}");
        }
        let found = log.find("NEREID_CHECK_HANDLES: at").map(|at| &log[at..]);
        let found = found.and_then(|found| found.split('"').next());
        assert_eq!(found, expected, "{log}");
    }
}
