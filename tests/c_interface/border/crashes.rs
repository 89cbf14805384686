//! A crash in a backend ends the process, after a report that names the code.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use crate::border::compiler;
use nereid_test_support::http::{Peer, request};
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::{Server, binary, free_port};
use nereid_test_support::variant::usual;

fn repository() -> Repository {
    let repository = Repository::new();
    repository.identity_of("culprit", "m", 0, &[Pair::new("INT32", "-1")], "");
    repository
}

#[test]
fn a_crash_in_execute_names_backend_model_and_instance() {
    let Some(directory) = compiler::backend("culprit.cc", &[]) else { return };
    let whole = "The thread ran backend 'culprit', model 'm', instance 'm_0_0', in TRITONBACKEND_ModelInstanceExecute.";
    let own = "The stack goes through backend 'culprit', on a thread that the server did not call.";
    let cases = [
        ("crash", "segv", 11, whole),
        ("crash", "abort", 6, whole),
        ("crash", "bus", 7, whole),
        ("crash", "fpe", 8, whole),
        ("crash", "ill", 4, whole),
        ("crash", "trap", 5, whole),
        ("crash elsewhere", "segv", 11, own),
        ("crash elsewhere", "abort", 6, own),
    ];
    for (deed, by, number, line) in cases {
        let repository = repository();
        let flags = [
            &format!("--backend-directory={}", directory.display()),
            &format!("--backend-config=culprit,crash_by={by}"),
        ];
        let server = Server::start(usual(), repository.path(), &[flags[0], flags[1]]);
        let body = format!(
            r#"{{"parameters":{{"do":"{deed}"}},"inputs":[{{"name":"INPUT0","datatype":"INT32","shape":[1],"data":[1]}}]}}"#
        );
        let mut peer = Peer::connect(server.http);
        peer.send(&request("POST", "/v2/models/m/infer", &[], body.as_bytes()));
        let (status, log) = server.wait();
        assert_eq!(status.signal(), Some(number), "{deed} by {by}: {log}");
        assert!(log.contains(&format!("Signal ({number}) received.\n")), "{deed} by {by}: {log}");
        assert!(log.contains(line), "{deed} by {by}: {log}");
    }
}

#[test]
fn a_crash_while_a_model_loads_names_the_export() {
    let Some(directory) = compiler::backend("culprit.cc", &[]) else { return };
    for (export, line) in [
        ("Initialize", "The thread ran backend 'culprit', in TRITONBACKEND_Initialize."),
        ("GetBackendAttribute", "The thread ran backend 'culprit', in TRITONBACKEND_GetBackendAttribute."),
        ("ModelInitialize", "The thread ran backend 'culprit', model 'm', in TRITONBACKEND_ModelInitialize."),
        (
            "ModelInstanceInitialize",
            "The thread ran backend 'culprit', model 'm', instance 'm_0_0', in TRITONBACKEND_ModelInstanceInitialize.",
        ),
    ] {
        let repository = repository();
        let output = Command::new(binary())
            .arg(format!("--model-repository={}", repository.path().display()))
            .arg(format!("--backend-directory={}", directory.display()))
            .arg(format!("--backend-config=culprit,crash_in={export}"))
            .args([format!("--http-port={}", free_port()), format!("--grpc-port={}", free_port())])
            .args([format!("--metrics-port={}", free_port()), "--http-address=127.0.0.1".to_owned()])
            .output()
            .expect("the server runs");
        let log = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.signal(), Some(11), "{export}: {log}");
        assert!(log.contains(line), "{export}: {log}");
    }
}

#[test]
fn a_crash_in_a_cache_or_an_agent_names_it() {
    let workshop = compiler::workshop().join("crashing");
    for (how, more, cache_line, agent_line) in [
        (
            "call",
            &[][..],
            "The thread ran cache 'crashing', in TRITONCACHE_CacheInitialize.",
            "The thread ran repository agent 'crashing', model 'm', in TRITONREPOAGENT_ModelAction.",
        ),
        (
            "own",
            &["-DOWN"][..],
            "The stack goes through cache 'crashing', on a thread that the server did not call.",
            "The stack goes through repository agent 'crashing', on a thread that the server did not call.",
        ),
    ] {
        let directory = workshop.join(how);
        let source = compiler::root().join("tests/backends/crashing.c");
        for file in ["libtritoncache_crashing.so", "libtritonrepoagent_crashing.so"] {
            if !compiler::library(&source, &directory.join("crashing").join(file), more) {
                return;
            }
        }
        let agents = "model_repository_agents { agents [ { name: \"crashing\" } ] }";
        for (more, flags, line) in
            [("", &["--cache-config=crashing,size=1"][..], cache_line), (agents, &[], agent_line)]
        {
            let repository = Repository::new();
            repository.identity_of("identity", "m", 0, &[Pair::new("INT32", "-1")], more);
            let output = Command::new(binary())
                .arg(format!("--model-repository={}", repository.path().display()))
                .arg(format!("--cache-directory={}", directory.display()))
                .arg(format!("--repoagent-directory={}", directory.display()))
                .args(flags)
                .args([format!("--http-port={}", free_port()), format!("--grpc-port={}", free_port())])
                .args([format!("--metrics-port={}", free_port()), "--http-address=127.0.0.1".to_owned()])
                .output()
                .expect("the server runs");
            let log = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.signal(), Some(11), "{how}: {log}");
            assert!(log.contains(line), "{how}: {log}");
        }
    }
}
