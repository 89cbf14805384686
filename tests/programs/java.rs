//! The server inside a Java program: the jar of this build, and the programs of tests/java on it, with a small heap and
//! the checks of the JVM and of the server's handles.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use nereid_test_support::prepared::step;
use nereid_test_support::repository::Repository;
use nereid_test_support::skip::skip;
use nereid_test_support::{backend, paths};
use tritonserver::abi::interface::Table;

/// The jar and the compiled programs.
struct Built {
    jar: PathBuf,
    classes: PathBuf,
}

/// None, after a visible skip, without a JDK or a C compiler.
fn built() -> Option<&'static Built> {
    static BUILT: OnceLock<Built> = OnceLock::new();
    for tool in ["javac", "cc"] {
        if let Err(error) = Command::new(tool).arg("--version").output() {
            skip(&format!("no compiler '{tool}': {error}"));
            return None;
        }
    }
    Some(BUILT.get_or_init(build))
}

/// What is there and does not compile is a failure, not a reason to skip.
fn build() -> Built {
    // A path with a blank, which nothing may stumble over.
    let root = paths::temporary().join(format!("java {}", std::process::id()));
    let _ = fs::remove_dir_all(&root);
    step(Command::new("python3").arg(paths::root().join("java/build")).arg("--out").arg(&root)).expect("the jar");
    let (jar, classes) = (root.join("nereid.jar"), root.join("classes"));
    let mut compile = Command::new("javac");
    // A program that closes a server in a callback, which the compiler takes for a mistake, tests that it is refused.
    compile.args(["-Xlint:all,-try", "-Werror", "-encoding", "UTF-8", "-cp"]).arg(&jar).arg("-d").arg(&classes);
    let sources = fs::read_dir(paths::root().join("tests/java")).expect("the programs").flatten();
    compile.args(sources.map(|entry| entry.path()).filter(|path| path.extension() == Some(OsStr::new("java"))));
    step(&mut compile).expect("the programs are compiled");
    Built { jar, classes }
}

/// A name and a configuration for each model that the programs use.
const MODELS: [(&str, &str); 7] = [
    (
        "echo",
        r#"backend: "identity"
           input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1, -1 ] optional: true },
                   { name: "INPUT1" data_type: TYPE_INT64 dims: -1 optional: true },
                   { name: "INPUT2" data_type: TYPE_STRING dims: -1 optional: true } ]
           output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1, -1 ] label_filename: "labels" },
                    { name: "OUTPUT1" data_type: TYPE_INT64 dims: -1 },
                    { name: "OUTPUT2" data_type: TYPE_STRING dims: -1 } ]"#,
    ),
    (
        "slow",
        r#"backend: "identity" instance_group { count: 1 }
           input { name: "INPUT0" data_type: TYPE_INT32 dims: -1 }
           output { name: "OUTPUT0" data_type: TYPE_INT32 dims: -1 }
           parameters { key: "execute_delay_ms" value { string_value: "400" } }"#,
    ),
    (
        "copy",
        r#"backend: "copycat"
           input { name: "INPUT0" data_type: TYPE_INT32 dims: -1 }
           output { name: "OUTPUT0" data_type: TYPE_INT32 dims: -1 }"#,
    ),
    (
        "addresses",
        r#"backend: "addresses" instance_group { count: 8 }
           input { name: "IN" data_type: TYPE_UINT8 dims: -1 } output { name: "OUT" data_type: TYPE_UINT8 dims: -1 }"#,
    ),
    (
        "gate",
        r#"backend: "addresses" instance_group { count: 1 }
           input { name: "IN" data_type: TYPE_UINT8 dims: -1 } output { name: "OUT" data_type: TYPE_UINT8 dims: -1 }"#,
    ),
    (
        "pair",
        r#"platform: "ensemble"
           input { name: "I" data_type: TYPE_FP32 dims: [ -1, -1 ] }
           output { name: "O" data_type: TYPE_FP32 dims: [ -1, -1 ] }
           ensemble_scheduling { step { model_name: "echo" model_version: -1
             input_map { key: "INPUT0" value: "I" } output_map { key: "OUTPUT0" value: "O" } } }"#,
    ),
    (
        "repeat",
        r#"backend: "repeat" model_transaction_policy { decoupled: true }
           input [ { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] },
                   { name: "DELAY" data_type: TYPE_UINT32 dims: [ -1 ] },
                   { name: "WAIT" data_type: TYPE_UINT32 dims: [ 1 ] } ]
           output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] },
                    { name: "IDX" data_type: TYPE_UINT32 dims: [ 1 ] } ]"#,
    ),
];

fn models() -> Repository {
    let repository = Repository::new();
    for (name, config) in MODELS {
        repository.model(name, config);
    }
    repository.file("echo/labels", "first\nsecond\n");
    repository
}

/// The folder of the library of this build.
fn library() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_nereid")).with_file_name("deps")
}

/// A JVM with a small heap, in which every call over the border is checked on both sides.
fn java(built: &Built) -> Command {
    let mut java = Command::new("java");
    let classes = [built.jar.as_os_str(), built.classes.as_os_str()].join(OsStr::new(":"));
    // Later versions warn of a program that loads a library without it.
    java.args(["--enable-native-access=ALL-UNNAMED", "-Xmx64m", "-Xcheck:jni", "-cp"]).arg(classes);
    java.env("NEREID_CHECK_HANDLES", "1").env_remove("NEREID_LIBRARY").env_remove("LD_LIBRARY_PATH");
    java
}

fn texts(output: &Output) -> (String, String) {
    let [out, err] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    (out, err)
}

/// Runs a program of tests/java, and returns its output. All its cases must have held, and no check found anything.
fn all_hold(program: &str, arguments: &[&OsStr]) -> Option<String> {
    let built = built()?;
    let (addresses, copies) = backend::compiled("addresses.c").zip(backend::directory())?;
    // Both backends in one directory.
    let backends = Repository::new();
    for (directory, name) in [(addresses, "addresses"), (copies, "copycat")] {
        let file = format!("{name}/libtriton_{name}.so");
        backends.file(&file, fs::read(directory.join(&file)).expect("a backend"));
    }
    let repository = models();
    let mut command = java(built);
    command.arg(format!("-Dnereid.library={}", library().display())).arg(program);
    let output = command.arg(repository.path()).arg(backends.path()).args(arguments).output().expect("a JVM");
    let (out, err) = texts(&output);
    assert!(output.status.success(), "{program}: {}\n{out}\n{err}", output.status);
    let source = fs::read_to_string(paths::root().join(format!("tests/java/{program}.java"))).expect("the source");
    let names = source.lines().filter_map(|line| line.strip_prefix("    public static void ")?.split_once("() "));
    let missing: Vec<&str> =
        names.map(|(name, _)| name).filter(|name| !out.lines().any(|line| line == format!("held {name}"))).collect();
    assert!(missing.is_empty() && out.contains("held "), "{missing:?} did not hold:\n{out}\n{err}");
    assert!(out.lines().any(|line| line == "all handles were given back"), "{out}\n{err}");
    // The JVM's checks write to stdout, those of the handles to the log.
    let blame = ["WARNING", "Warning:", "FATAL ERROR", "given up", "the handle is", "is no TRITON"];
    let blamed = out.lines().chain(err.lines()).find(|line| blame.iter().any(|sign| line.contains(sign)));
    assert_eq!(blamed, None, "{out}\n{err}");
    Some(out)
}

/// Every function of the table is a method, but for those that Java has no use for, which docs/java.md lists.
#[test]
fn the_functions_are_those_of_the_c_interface() {
    let Some(out) = all_hold("Interface", &[]) else { return };
    let methods: BTreeSet<&str> = out.lines().filter_map(|line| line.strip_prefix("method ")).collect();
    let table = Table::own().unwrap_or_else(|error| panic!("{error}"));
    let page = fs::read_to_string(paths::root().join("docs/java.md")).expect("the page");
    let mut left_out = 0;
    for function in table.offered().filter(|function| function.name.starts_with("TRITONSERVER_")) {
        let name = function.name.as_str();
        let is_listed = page.contains(&format!("`{}`", name.trim_start_matches("TRITONSERVER_")));
        assert_ne!(methods.contains(name), is_listed, "{name}");
        left_out += usize::from(is_listed);
    }
    assert_eq!((methods.len() + left_out, left_out), (173, 5));
}

#[test]
fn requests_are_answered_refused_and_cancelled() {
    all_hold("Inference", &[]);
}

#[test]
fn nothing_is_used_behind_its_end() {
    all_hold("Lifetimes", &[]);
}

#[test]
fn models_come_and_go() {
    let other = Repository::new();
    // Without a name: it is the one that the registration gives.
    let config = "backend: \"identity\" input { name: \"INPUT0\" data_type: TYPE_INT8 dims: 1 }\n\
                  output { name: \"OUTPUT0\" data_type: TYPE_INT8 dims: 1 }";
    other.model("folder", config);
    all_hold("Management", &[other.path().as_os_str()]);
}

#[test]
fn eight_threads_send_ten_thousand_requests() {
    let Some(out) = all_hold("Load", &["10000", "8"].map(OsStr::new)) else { return };
    assert!(!out.contains("were not given back"), "{out}");
}

/// A program whose main ends, or that exits, while its server runs, threads of which are in Java.
#[test]
fn a_program_may_end_with_a_running_server() {
    all_hold("Ending", &[]);
    for ending in ["return", "exit"] {
        let Some(built) = built() else { return };
        let repository = models();
        let mut command = java(built);
        command.arg(format!("-Dnereid.library={}", library().display())).arg("Ending");
        let output = command.arg(repository.path()).arg("/nonexistent").arg(ending).output().expect("a JVM");
        let (out, err) = texts(&output);
        assert_eq!(output.status.code(), Some(if ending == "exit" { 3 } else { 0 }), "{ending}: {out}\n{err}");
        assert!(out.contains("ends with a running server") && !out.contains("WARNING"), "{ending}: {out}\n{err}");
    }
}

/// By property, variable, beside the jar, and by the loader's path; and what is said where it is not.
#[test]
fn the_library_is_found() {
    let Some(built) = built() else { return };
    let file = library().join("libtritonserver.so");
    let place = Repository::new();
    let beside = place.path().join("nereid.jar");
    let run = |set: &dyn Fn(&mut Command)| {
        let mut command = Command::new("java");
        command.env_remove("NEREID_LIBRARY").env_remove("LD_LIBRARY_PATH");
        set(&mut command);
        // Files in this folder are what the library leaves behind.
        command.arg(format!("-Djava.io.tmpdir={}", place.path().display())).arg("-cp");
        let classes = [beside.as_os_str(), built.classes.as_os_str()].join(OsStr::new(":"));
        texts(&command.arg(classes).arg("Found").output().expect("a JVM"))
    };
    fs::copy(&built.jar, &beside).expect("a jar without a library beside it");
    let (out, _) = run(&|java| _ = java.arg(format!("-Dnereid.library={}", file.display())));
    assert_eq!(out, "1.34\n");
    assert_eq!(run(&|java| _ = java.env("NEREID_LIBRARY", library())).0, "1.34\n");
    assert_eq!(run(&|java| _ = java.env("LD_LIBRARY_PATH", library())).0, "1.34\n");
    let (out, err) = run(&|_| ());
    assert!(out.is_empty() && err.contains("libtritonserver.so was not found: name it with"), "{out}{err}");
    let (_, err) = run(&|java| _ = java.env("NEREID_LIBRARY", "/nonexistent/library.so"));
    assert!(err.contains("there is no /nonexistent/library.so, which nereid.library or NEREID_LIBRARY names"), "{err}");
    std::os::unix::fs::symlink(&file, place.path().join("libtritonserver.so")).expect("a link beside the jar");
    assert_eq!(run(&|_| ()).0, "1.34\n");
    let left = fs::read_dir(place.path()).expect("the folder").flatten();
    let left: Vec<_> = left.map(|entry| entry.file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().starts_with("nereid-")), "{left:?}");
}
