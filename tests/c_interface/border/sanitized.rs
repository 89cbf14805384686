//! The same wrong calls under AddressSanitizer: memory that C code gets has the stated size and lifetime.
//!
//! Backends and programs are compiled with it, and the server's own allocations go through it too, because its library
//! is the first of the process.

use std::path::PathBuf;
use std::process::Command;

use crate::border::compiler;
use crate::border::handles::ask;
use nereid_test_support::http::{Peer, request};
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::Server;
use nereid_test_support::skip::skip;
use nereid_test_support::variant::usual;

const FLAGS: [&str; 2] = ["-fsanitize=address", "-fno-omit-frame-pointer"];

/// The sanitizer's library. None, after a visible skip, where the compiler has none.
fn sanitizer() -> Option<PathBuf> {
    let output = Command::new("cc").arg("-print-file-name=libasan.so").output();
    let found = output.ok().map(|output| PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()));
    let found = found.filter(|path| path.is_absolute()).and_then(|path| path.canonicalize().ok());
    if found.is_none() {
        skip("the C compiler has no AddressSanitizer");
    }
    found
}

/// A server whose backend and allocations are watched. None, after a visible skip, without the sanitizer.
fn start(flags: &[&str], environment: &[(&str, &str)]) -> Option<(Repository, Server)> {
    let preloaded = sanitizer()?.display().to_string();
    let directory = compiler::backend("culprit.cc", &FLAGS)?;
    let repository = Repository::new();
    repository.identity_of("culprit", "m", 0, &[Pair::new("INT32", "-1")], "");
    let backends = format!("--backend-directory={}", directory.display());
    // Signals stay the server's, and what it keeps until the end of the process is no leak.
    let options = "detect_leaks=0:handle_segv=0:handle_abort=0:handle_sigbus=0:handle_sigfpe=0:handle_sigill=0";
    let watched = [("LD_PRELOAD", preloaded.as_str()), ("ASAN_OPTIONS", options)];
    let environment = [&watched[..], environment].concat();
    let flags = [&[backends.as_str()], flags].concat();
    let server = Server::start_in(usual(), repository.path(), &flags, "/v2/health/ready", &environment);
    Some((repository, server))
}

#[test]
fn misuse_that_is_defined_touches_no_memory_that_is_not_there() {
    for checks in ["0", "1"] {
        let Some((_repository, server)) = start(&[], &[("NEREID_CHECK_HANDLES", checks)]) else { return };
        let mut peer = Peer::connect(server.http);
        for _ in 0..20 {
            for deed in ["", "throw", "error", "refuse", "numbers", "late final", "not its own"] {
                ask(&mut peer, deed);
            }
        }
        let log = server.stop();
        assert!(!log.contains("AddressSanitizer"), "{log}");
    }
}

#[test]
fn abuse_of_handles_touches_no_memory_that_is_not_there() {
    let Some((_repository, server)) = start(&[], &[("NEREID_CHECK_HANDLES", "1")]) else { return };
    let mut peer = Peer::connect(server.http);
    for deed in ["request after release", "response after send", "factory after delete", "errors and messages"] {
        ask(&mut peer, deed);
        ask(&mut peer, "tell");
    }
    ask(&mut peer, "other kinds");
    let log = server.stop();
    assert!(!log.contains("AddressSanitizer"), "{log}");
}

/// That the sanitizer sees what it is there for: a text of a request that was released.
#[test]
fn a_text_that_is_read_too_late_is_found() {
    let Some((_repository, server)) = start(&[], &[]) else { return };
    let body =
        br#"{"parameters":{"do":"stale text"},"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1],"data":[1]}]}"#;
    let mut peer = Peer::connect(server.http);
    peer.send(&request("POST", "/v2/models/m/infer", &[], body));
    let (status, log) = server.wait();
    assert!(!status.success() && log.contains("AddressSanitizer: heap-use-after-free"), "{status}: {log}");
}

#[test]
fn a_program_leaves_nothing_behind() {
    if sanitizer().is_none() {
        return;
    }
    let source = compiler::root().join("tests/native_programs/objects.c");
    let program = compiler::workshop().join("objects");
    if !compiler::program(&source, &program, &FLAGS) {
        return;
    }
    for checks in ["0", "1"] {
        let output = Command::new(&program).env("NEREID_CHECK_HANDLES", checks).output().expect("the program runs");
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {log}", output.status);
        assert!(!log.contains("Sanitizer"), "{log}");
    }
}
