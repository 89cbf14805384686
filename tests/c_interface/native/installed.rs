//! The files of `nereid install` suffice to build programs: the example program, compiled by the line in its head and
//! also run under valgrind, and a backend, which the installed server loads.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

use super::program::library_directory;
use super::valgrind;
use nereid_test_support::http::Peer;
use nereid_test_support::repository::Repository;
use nereid_test_support::server::Server;
use nereid_test_support::skip::skip;
use nereid_test_support::variant::usual;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn install(prefix: &Path, further: &[&str]) -> Output {
    let library = format!("--library={}", library_directory().join("libtritonserver.so").display());
    let mut command = Command::new(env!("CARGO_BIN_EXE_nereid"));
    command.arg("install").arg(format!("--prefix={}", prefix.display())).arg(library).args(further);
    command.output().expect("the program starts")
}

fn succeeded(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a directory");
    folder
}

/// One installation for all tests of this process.
static PREFIX: LazyLock<PathBuf> = LazyLock::new(|| {
    let prefix = folder("installed");
    succeeded(&install(&prefix, &[]));
    prefix
});

/// The example, compiled by the command in its head. None, after a visible skip, without a C compiler.
fn example() -> Option<PathBuf> {
    static MADE: LazyLock<Result<PathBuf, String>> = LazyLock::new(|| {
        if let Err(error) = Command::new("cc").arg("--version").output() {
            return Err(format!("no compiler 'cc': {error}"));
        }
        let folder = folder("example");
        let source = root().join("examples/c/in_process.c");
        std::fs::copy(&source, folder.join("in_process.c")).expect("a copy of the example");
        let text = std::fs::read_to_string(&source).expect("the example");
        let command = text.lines().find_map(|line| line.trim_start_matches(" *").trim().strip_prefix("cc "));
        let command = format!("cc -Wall -Wextra -Werror {}", command.expect("a command to build it with"));
        let mut shell = Command::new("sh");
        let output = shell.args(["-c", &command]).env("PREFIX", &*PREFIX).current_dir(&folder).output();
        succeeded(&output.expect("a shell"));
        Ok(folder.join("in_process"))
    });
    MADE.as_ref().map_err(|reason| skip(reason)).ok().cloned()
}

/// The repositories that the head of the example names.
const REPOSITORIES: [&str; 2] = ["model_repository", "examples/c/models"];

/// What the example says when all went well.
fn check_result(said: &str) {
    let lines: Vec<_> = said.lines().collect();
    let begins = |line: &str| assert!(lines.iter().any(|found| found.starts_with(line)), "{line:?} in:\n{said}");
    begins("server: {\"name\":\"triton\",\"version\":");
    begins("model: {\"name\":\"identity\",\"versions\":[\"1\"],\"platform\":");
    begins("statistics: {\"model_stats\":[{\"name\":\"identity\",\"version\":\"1\"");
    let answers: Vec<_> =
        lines.iter().copied().filter(|line| line.starts_with("  ") && !line.contains("IDX")).collect();
    let expected = [
        "  identity version 1: OUTPUT0 FP32 [3]: 1.5 -2 3.25",
        "  responses: 1",
        "  repeat version 1: OUT INT32 [1]: 4",
        "  repeat version 1: OUT INT32 [1]: 5",
        "  repeat version 1: OUT INT32 [1]: 6",
        "  responses: 3",
    ];
    assert_eq!(answers, expected);
    assert_eq!(lines.last(), Some(&"stopped"));
}

#[test]
fn the_example_asks_its_own_server() {
    let Some(program) = example() else { return };
    let output = Command::new(program).args(REPOSITORIES).current_dir(root()).output();
    check_result(&succeeded(&output.expect("the example starts")));
}

#[test]
fn the_example_leaks_nothing_and_touches_no_foreign_memory() {
    let Some(program) = example() else { return };
    valgrind::run(&program, &REPOSITORIES).into_iter().for_each(|said| check_result(&said));
}

#[test]
fn an_installed_server_loads_a_backend_that_was_built_against_it() {
    if let Err(error) = Command::new("cc").arg("--version").output() {
        return skip(&format!("no compiler 'cc': {error}"));
    }
    let backends = PREFIX.join("backends/greeting");
    std::fs::create_dir_all(&backends).expect("a directory");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror"]);
    compiler.arg(root().join("tests/backends/greeting.c")).arg("-I").arg(PREFIX.join("include"));
    compiler.arg("-o").arg(backends.join("libtriton_greeting.so"));
    succeeded(&compiler.output().expect("the compiler starts"));

    let repository = Repository::new();
    repository.model(
        "greeting",
        "backend: \"greeting\"\n\
         input [ { name: \"INPUT0\" data_type: TYPE_INT32 dims: [ 1 ] } ]\n\
         output [ { name: \"OUTPUT0\" data_type: TYPE_STRING dims: [ 1 ] } ]\n",
    );
    let program = PREFIX.join("bin/tritonserver").into_os_string().into_string().expect("a path that is UTF-8");
    let flag = format!("--backend-directory={}", PREFIX.join("backends").display());
    let server = Server::start_under(&[program], usual(), repository.path(), &[&flag], "/v2/health/ready");
    let body = r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1],"data":[7]}]}"#;
    let answer = Peer::connect(server.http).post("/v2/models/greeting/infer", &[], body.as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.json()["outputs"][0]["data"][0], "hello");
    server.stop();
}

#[test]
fn an_installation_says_what_is_where_and_is_not_repeated_by_accident() {
    let prefix = folder("twice");
    let told = succeeded(&install(&prefix, &[]));
    for place in ["bin/nereid", "bin/tritonserver", "lib/libtritonserver.so", "include/triton/core/tritonserver.h"] {
        assert!(told.contains(&prefix.join(place).display().to_string()), "{place}: {told}");
    }
    let again = install(&prefix, &[]);
    assert_eq!(again.status.code(), Some(1));
    let text = String::from_utf8_lossy(&again.stderr);
    assert!(text.starts_with("error: there already, nothing was changed (--force replaces): "), "{text}");
    succeeded(&install(&prefix, &["--force"]));
    // An installed program installs itself: its library is in `lib` beside its own directory.
    let copy = prefix.join("copy");
    let mut command = Command::new(prefix.join("bin/tritonserver"));
    succeeded(&command.arg("install").arg(format!("--prefix={}", copy.display())).output().expect("it starts"));
    assert!(copy.join("lib/libtritonserver.so").is_file());
    let broken = Command::new(prefix.join("bin/nereid")).args(["install", "--prefix"]).output().expect("it starts");
    assert_eq!(broken.status.code(), Some(1));
}
