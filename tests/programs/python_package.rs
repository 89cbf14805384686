//! The Python package: a wheel of this build, installed into a fresh environment, and Python programs that use it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};

use nereid_test_support::certificates::Certificates;
use nereid_test_support::paths;
use nereid_test_support::prepared::step;
use nereid_test_support::python::Python;
use nereid_test_support::skip::skip;

/// The environment with the wheel, for as many tests as use it at a time.
#[derive(Debug, Default)]
struct Shared {
    users: usize,
    installed: Option<Installed>,
}

static SHARED: Mutex<Shared> = Mutex::new(Shared { users: 0, installed: None });

/// An environment, in a path with a blank, which programs of all kinds must bear.
#[derive(Debug)]
struct Installed {
    root: PathBuf,
}

impl Drop for Installed {
    fn drop(&mut self) {
        // The program and the library are large.
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// A use of the environment.
pub(crate) struct Package {
    pub(crate) python: Python,
}

impl Drop for Package {
    fn drop(&mut self) {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        shared.users -= 1;
        if shared.users == 0 {
            shared.installed = None;
        }
    }
}

impl Package {
    /// None, after a visible skip, if Python or what the package is built from cannot be had.
    pub(crate) fn get() -> Option<Package> {
        let needed = Python::with("python_package.txt")?;
        if let Err(reason) = fetched() {
            skip(&format!("the extension's crates cannot be had: {reason}"));
            return None;
        }
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        let installed = shared.installed.get_or_insert_with(|| install(&needed));
        let python = Python::at(&installed.root.join("with a blank"));
        shared.users += 1;
        Some(Package { python })
    }
}

/// Downloads the crates of the extension, unless they are there.
fn fetched() -> Result<(), String> {
    static FETCHED: OnceLock<Result<(), String>> = OnceLock::new();
    let fetch = || {
        let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
        let mut fetch = Command::new(env!("CARGO"));
        step(fetch.args(["fetch", "--locked", "--target", &target]).current_dir(paths::root())).map(drop)
    };
    FETCHED.get_or_init(fetch).clone()
}

fn install(needed: &Python) -> Installed {
    let root = paths::temporary().join(format!("python-package-{}", std::process::id()));
    let _ = fs::remove_dir_all(&root);
    fs::create_dir_all(&root).expect("a folder for the wheel");
    let installed = Installed { root };
    let program = Path::new(env!("CARGO_BIN_EXE_nereid"));
    let library = program.with_file_name("deps").join("libtritonserver.so");
    let mut build = Command::new("python3");
    build.arg(paths::root().join("python/build")).arg("--profile=dev").arg("--out").arg(&installed.root);
    build.arg("--program").arg(program).arg("--library").arg(library).env("CARGO_TARGET_DIR", paths::target());
    let out = step(&mut build).expect("the wheel is built");
    let wheel = PathBuf::from(out.lines().last().expect("the path of the wheel"));

    let environment = installed.root.join("with a blank");
    step(Command::new(needed.interpreter()).args(["-m", "venv"]).arg(&environment)).expect("an environment");
    let python = Python::at(&environment);
    // What it needs is there already, and the official client.
    for (name, packages) in [("needed.pth", Some(needed.clone())), ("tritonclient.pth", Python::get())] {
        let Some(packages) = packages else { continue };
        let link = python.packages().join(name);
        fs::write(link, packages.packages().as_os_str().as_encoded_bytes()).expect("a path of packages");
    }
    let mut install = Command::new(python.interpreter());
    install.args(["-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check", "--no-index"]);
    step(install.arg(&wheel)).expect("the wheel is installed");
    fs::remove_file(&wheel).expect("the wheel is there");
    installed
}

/// Runs cases of tests/python/`script`, all if none are named. Each must have held.
fn all_hold(script: &str, cases: &[&str]) {
    let Some(package) = Package::get() else { return };
    all_hold_with(&package, script, cases, |_| {});
}

/// The same with a change of the command.
pub(crate) fn all_hold_with(package: &Package, script: &str, cases: &[&str], change: impl FnOnce(&mut Command)) {
    let python = &package.python;
    let mut command = python.command(script);
    change(&mut command);
    hold(command, python.script(script), cases);
}

/// The same with a command that runs the script.
pub(crate) fn hold(mut command: Command, script: PathBuf, cases: &[&str]) {
    let output = command.args(cases).output();
    let script = script.display();
    let output = output.unwrap_or_else(|error| panic!("{script} does not start: {error}"));
    let [out, err] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert!(output.status.success(), "{script}: {}\n{out}\n{err}", output.status);
    let source = fs::read_to_string(script.to_string()).expect("the script");
    let names = source.split("\n@case\ndef ").skip(1).filter_map(|rest| rest.split_once('(')).map(|(name, _)| name);
    let missing: Vec<&str> = names
        .filter(|name| cases.is_empty() || cases.contains(name))
        .filter(|name| !out.lines().any(|line| line == format!("held {name}")))
        .collect();
    assert!(missing.is_empty() && out.contains("held "), "{missing:?} did not hold:\n{out}\n{err}");
}

#[test]
fn the_package_is_complete() {
    all_hold("api_package.py", &[]);
}

#[test]
fn every_member_of_the_package_has_a_case() {
    all_hold("api_members.py", &[]);
}

#[test]
fn servers_and_models_are_what_programs_expect() {
    all_hold("api_servers.py", &[]);
}

#[test]
fn tensors_come_and_go_without_copies() {
    all_hold("api_tensors.py", &[]);
}

#[test]
fn requests_are_answered_refused_and_cancelled() {
    all_hold("api_requests.py", &[]);
}

#[test]
fn a_program_between_two_topics_serializes_responses() {
    all_hold("api_kafka.py", &[]);
}

/// HTTP, gRPC and metrics of a server in a Python process, for the official clients.
#[test]
fn ports_of_a_server_in_a_process_answer_clients() {
    if Python::get().is_none() {
        return;
    }
    let certificates = Certificates::make();
    let Some(package) = Package::get() else { return };
    all_hold_with(&package, "frontend_ports.py", &[], |command| {
        if let Some(certificates) = &certificates {
            command.env("NEREID_CERTIFICATES", certificates.path(""));
        }
    });
}

#[test]
fn ports_of_a_server_in_a_process_open_and_close() {
    if Python::get().is_none() {
        return;
    }
    all_hold("frontend_life.py", &[]);
}

/// The cases that hold for NVIDIA's own binding.
#[test]
fn the_binding_is_that_of_nvidia() {
    all_hold("bindings.py", &[]);
}

/// The cases that hold for NVIDIA's own in-process API.
#[test]
fn the_api_is_that_of_nvidia() {
    let cases = [
        "what_is_wrong_with_options_is_said",
        "models_are_listed_and_described",
        "tensors_of_each_kind_come_back",
        "parameters_reach_the_model",
        "responses_come_to_queues_and_iterators",
        "inference_leaks_nothing",
    ];
    all_hold("in_process.py", &cases);
}
