//! NVIDIA's Python API and its front ends, in one process with the server's library: programs that were built for
//! Triton's own.

use std::path::Path;

use nereid_test_support::in_process::python;

/// Runs all cases of tests/python/`script`. Each must have held.
fn all_hold(script: &str) {
    let Some((python, preloaded)) = python() else { return };
    let mut command = python.command(script);
    let library = Path::new(env!("CARGO_BIN_EXE_nereid")).with_file_name("deps");
    assert!(library.join("libtritonserver.so").is_file(), "no library in {library:?}");
    command.env("LD_LIBRARY_PATH", &library);
    if let Some(preloaded) = preloaded {
        command.env("LD_PRELOAD", preloaded);
    }
    let output = command.output().unwrap_or_else(|error| panic!("{script} does not start: {error}"));
    let [out, err] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert!(output.status.success(), "{script}: {}\n{out}\n{err}", output.status);
    let source = std::fs::read_to_string(python.script(script)).expect("the script");
    let names = source.split("\n@case\ndef ").skip(1).filter_map(|rest| rest.split_once('('));
    let missing: Vec<&str> =
        names.map(|(name, _)| name).filter(|name| !out.lines().any(|line| line == format!("held {name}"))).collect();
    assert!(missing.is_empty() && out.contains("held "), "{missing:?} did not hold:\n{out}\n{err}");
}

/// Case by case what the binding's own tests ask of it.
#[test]
fn the_binding_of_the_c_interface_holds() {
    all_hold("bindings.py");
}

/// What the API's own tests ask of it, and HTTP, metrics and gRPC as NVIDIA's front ends speak them.
#[test]
fn the_api_and_its_front_ends_hold() {
    all_hold("in_process.py");
}
