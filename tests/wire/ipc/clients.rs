//! The clients in C (`examples/ipc`) and in Python (`python/ipc`), and one that is killed in the middle of its calls.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use super::*;
use crate::grpc::message::numbers;
use crate::surface::http_streaming::repeat_config;
use nereid_test_support::paths;
use nereid_test_support::server::signal;
use nereid_test_support::skip::skip;
use nereid_test_support::variant::{self, each};

#[test]
fn the_client_in_c_calls_a_model() {
    let directory = paths::root().join("examples/ipc");
    let program = std::env::temp_dir().join(format!("nereid-ipc-example-{}", std::process::id()));
    let mut compiler = Command::new("cc");
    compiler.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-o"]).arg(&program);
    compiler.args([directory.join("example.c"), directory.join("nereid_ipc.c")]);
    match compiler.status() {
        Ok(status) => assert!(status.success(), "{compiler:?}"),
        Err(error) => return skip(&format!("cc: {error}")),
    }
    each(&variant::ALL, |variant| {
        let (server, path) = start(variant, &plain(), &[]);
        let output = Command::new(&program).arg(&path.0).args(["plain", "1", "-2", "3"]).output().expect("to run it");
        let (shown, wrong) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{wrong}");
        assert!(shown.starts_with("in the message: ") && shown.ends_with("in the arena: 1 -2 3\n"), "{shown}");
        let output = Command::new(&program).arg(&path.0).args(["absent", "1"]).output().expect("to run it");
        let wrong = String::from_utf8_lossy(&output.stderr);
        assert_eq!(wrong, "status 5: Request for unknown model: 'absent' is not found\n");
        server.stop();
    });
    let _ = std::fs::remove_file(&program);
}

/// What no server shows: a clock that is moved by hand, and no memory.
#[test]
fn the_client_in_c_keeps_its_deadline_and_its_errors() {
    let program = std::env::temp_dir().join(format!("nereid-ipc-client-{}", std::process::id()));
    let mut compiler = Command::new("cc");
    compiler.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-o"]).arg(&program);
    compiler.arg("-I").arg(paths::root().join("examples/ipc")).arg(paths::root().join("tests/wire/ipc/client.c"));
    match compiler.status() {
        Ok(status) => assert!(status.success(), "{compiler:?}"),
        Err(error) => return skip(&format!("cc: {error}")),
    }
    let output = Command::new(&program).output().expect("to run it");
    let _ = std::fs::remove_file(&program);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_client_in_python_calls_models() {
    if python().output().is_err() {
        return skip("there is no python3");
    }
    each(&variant::ALL, |variant| {
        let repository = plain();
        repository.model("repeat", &repeat_config());
        let (server, path) = start(variant, &repository, &["--ipc-ring-bytes=65536"]);
        let output = python().arg(&path.0).output().expect("to run Python");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "done\n", "{}", String::from_utf8_lossy(&output.stderr));
        server.stop();
    });
}

/// What no server shows: copies, descriptors and memory of the client.
#[test]
fn the_client_in_python_keeps_nothing_and_copies_once() {
    if python().output().is_err() {
        return skip("there is no python3");
    }
    let mut command = Command::new("python3");
    command.arg("-B").arg(paths::root().join("tests/python/ipc_client_test.py"));
    let output = command.output().expect("to run Python");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The system's Python with the script that calls models: the client needs no package.
fn python() -> Command {
    let mut command = Command::new("python3");
    command.arg("-B").arg(paths::root().join("tests/python/ipc_calls.py"));
    command
}

/// SIGKILL while calls are executed, wait, and write their answers.
#[test]
fn a_client_that_is_killed_leaves_nothing_behind() {
    if python().output().is_err() {
        return skip("there is no python3");
    }
    each(&variant::ALL, |variant| {
        let repository = plain();
        let (server, path) = start(variant, &repository, &["--ipc-connections=1"]);
        let mut command = python();
        command.arg(&path.0).arg("for ever").stdout(Stdio::piped());
        let mut child = command.spawn().expect("to start Python");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
        assert_eq!(line, "calling\n");
        signal(child.id(), "KILL");
        child.wait().expect("its end");
        server.wait_until("its place is free", || Client::connect(&path.0).is_ok());
        server.wait_until("another client is served", || {
            let Ok(mut client) = Client::connect(&path.0) else { return false };
            let route = client.route(INFER, &[]).expect("a route");
            infer(&mut client, route, &numbers("plain", "later", &[5])).is_ok()
        });
        server.stop();
    });
}
