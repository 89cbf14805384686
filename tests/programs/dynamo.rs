//! The worker of NVIDIA Dynamo (`python -m dynamo.triton` of PyPI's ai-dynamo), unmodified, over the Python package.
//! Its packages are large: the tests run if NEREID_TEST_LARGE_RUNTIMES is 1 or dynamo.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use nereid_test_support::large_runtimes::is_large_runtime_wanted;
use nereid_test_support::paths;
use nereid_test_support::python::Python;
use nereid_test_support::skip::skip_for_want_of;

use crate::python_package::{Package, all_hold_with};

/// How dynamo_system.py ends where it gets no network of its own.
const NO_NETWORK: i32 = 77;

#[test]
#[ignore = ".ci/run calls it, and leaves out the other tests of Dynamo if it fails"]
fn its_packages_are_installed() {
    assert!(Python::with("dynamo.txt").is_some());
}

/// The environment with the wheel, and the folder of Dynamo's packages; `None`, after a note, if the calling test does
/// not run.
fn dynamo() -> Option<(Package, PathBuf)> {
    if !is_large_runtime_wanted("dynamo") {
        return None;
    }
    let packages = Python::with("dynamo.txt")?.packages();
    Some((Package::get()?, packages))
}

/// Runs all cases of tests/python/`script`, in a network of their own.
fn all_cases_hold(script: &str) {
    let Some((package, packages)) = dynamo() else { return };
    let probe = package.python.command("dynamo_system.py").output().expect("Python starts");
    if probe.status.code() == Some(NO_NETWORK) {
        return skip_for_want_of("network namespaces for its users, and Dynamo listens on every address");
    }
    assert!(probe.status.success(), "{probe:?}");
    all_hold_with(&package, script, &[], |command| {
        command.env("PYTHONPATH", &packages);
    });
}

#[test]
fn the_worker_serves_every_kind_of_model() {
    all_cases_hold("dynamo_models.py");
}

#[test]
fn workers_come_and_go_under_load() {
    all_cases_hold("dynamo_workers.py");
}

/// The tests that ai-dynamo brings, over the package.
#[test]
fn the_workers_own_tests_pass() {
    let Some((package, packages)) = dynamo() else { return };
    let folder = paths::temporary().join(format!("dynamo-own-tests-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a folder");
    let shipped = fs::read_dir(packages.join("dynamo/triton/tests")).expect("the tests");
    for file in shipped.map(|entry| entry.expect("an entry").path()) {
        if file.extension().is_some_and(|extension| extension == "py") {
            fs::copy(&file, folder.join(file.file_name().expect("a name"))).expect("a copy");
        }
    }
    let mut pytest = Command::new(package.python.interpreter());
    pytest.args(["-B", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", "."]);
    // Two use this folder of NVIDIA's container as a directory that exists.
    if !PathBuf::from("/opt/tritonserver/include").is_dir() {
        let tests = ["config_options_passed_to_server", "argv_flows_through_parse_args_into_server[backend-directory]"];
        for test in tests {
            pytest.arg(format!("--deselect=test_triton_unit.py::test_{test}"));
        }
    }
    let output = pytest.current_dir(&folder).env("PYTHONPATH", &packages).output().expect("pytest starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    let passed = text.lines().rev().find_map(|line| line.split_once(" passed").map(|(before, _)| before.to_owned()));
    let passed: u32 = passed.and_then(|count| count.split(' ').next_back()?.parse().ok()).unwrap_or(0);
    assert!(output.status.success() && passed >= 202, "{passed} passed:\n{text}");
    let _ = fs::remove_dir_all(&folder);
}
