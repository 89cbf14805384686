//! Compiles a C program of this directory against the header and the library of this build, and runs it.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::valgrind;
use nereid_test_support::skip::skip;
use nereid_test_support::steadily::ATTEMPTS_IN_TIME;

/// What a source checks: the sign and the name of each function.
pub type Checks = BTreeSet<(char, String)>;

/// The macros of check.h that name a function, and the sign that they tell.
const MACROS: [(&str, char); 4] = [("succeeds(", '+'), ("holds(", '+'), ("fails(", '-'), ("refuses(", '-')];

pub struct Program {
    path: PathBuf,
    declared: Checks,
}

/// The directory that holds the library of this build.
pub fn library_directory() -> PathBuf {
    let program = Path::new(env!("CARGO_BIN_EXE_nereid"));
    program.parent().expect("a program in a directory").join("deps")
}

/// What the text of a source says that it checks.
pub fn declared(source: &str) -> Checks {
    let mut checks = Checks::new();
    for (text, sign) in MACROS {
        for (at, _) in source.match_indices(text) {
            let rest = source[at + text.len()..].trim_start();
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
            if is_function(rest) {
                checks.insert((sign, rest[..end].to_owned()));
            }
        }
    }
    checks
}

/// What a program told that it checked.
pub fn told(stdout: &str) -> Checks {
    let lines = stdout.lines().filter_map(|line| line.split_once(' '));
    lines.filter_map(|(sign, name)| Some((sign.parse().ok()?, name.to_owned()))).filter(is_check).collect()
}

/// The prefixes of the interface's functions.
fn is_function(name: &str) -> bool {
    name.starts_with("TRITON") || name.starts_with("NEREID")
}

fn is_check((sign, name): &(char, String)) -> bool {
    matches!(sign, '+' | '-') && is_function(name)
}

/// Runs a program to its end, again if it says that it was not run in time for what it checks (check.h).
pub fn in_time(command: &mut Command) -> Output {
    const LATE: i32 = 75;
    let mut output = command.output().expect("the program starts");
    for _ in 1..ATTEMPTS_IN_TIME {
        if output.status.code() != Some(LATE) {
            break;
        }
        output = command.output().expect("the program starts");
    }
    output
}

impl Program {
    /// The program of `file`. None, after a visible skip, without a C compiler.
    pub fn compiled(file: &str) -> Option<Program> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let source = root.join("tests/native_programs").join(file);
        // A directory for each: another test may be about to run the same program, and a file that is being written
        // cannot be run.
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let name = format!("native-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&directory).expect("a directory for programs");
        let path = directory.join(file.trim_end_matches(".c"));
        let library = library_directory();
        let mut compiler = Command::new("cc");
        compiler.args(["-std=c11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"]).arg(&path);
        compiler.arg(&source).arg("-I").arg(root.join("include")).arg("-I").arg(root.join("tests/native_programs"));
        compiler.arg("-L").arg(&library).arg("-ltritonserver").arg(format!("-Wl,-rpath,{}", library.display()));
        match compiler.output() {
            Err(error) => {
                skip(&format!("no compiler 'cc': {error}"));
                None
            }
            Ok(output) => {
                assert!(output.status.success(), "{source:?}: {}", String::from_utf8_lossy(&output.stderr));
                let text = std::fs::read_to_string(&source).expect("the source");
                Some(Program { path, declared: declared(&text) })
            }
        }
    }

    /// Runs it to its successful end. All that its source checks must have been checked.
    pub fn run<A: AsRef<OsStr>>(&self, arguments: &[A]) -> String {
        self.finish(Command::new(&self.path).args(arguments))
    }

    /// The same where every handle is checked: a program that uses none wrongly is told nothing else.
    pub fn run_checked<A: AsRef<OsStr>>(&self, arguments: &[A]) -> String {
        self.finish(Command::new(&self.path).args(arguments).env("NEREID_CHECK_HANDLES", "1"))
    }

    /// The same of a program that the checks have nothing to say of.
    pub fn run_blameless<A: AsRef<OsStr>>(&self, arguments: &[A]) {
        let output = in_time(Command::new(&self.path).args(arguments).env("NEREID_CHECK_HANDLES", "1"));
        let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{:?}: {}\n{stderr}", self.path, output.status);
        // Its own checks are on stdout, one to a line, and so is what the log says below a warning.
        let blame = stderr.lines().chain(stdout.lines()).find(|line| line.contains("NEREID_CHECK_HANDLES"));
        assert_eq!(blame, None);
        self.check(&stdout);
    }

    fn finish(&self, command: &mut Command) -> String {
        let output = in_time(command);
        let (stdout, stderr) =
            (String::from_utf8_lossy(&output.stdout).into_owned(), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{:?}: {}\n{stderr}", self.path, output.status);
        self.check(&stdout);
        stdout
    }

    /// The same under valgrind, where it is there.
    pub fn run_watched<A: AsRef<OsStr>>(&self, arguments: &[A]) {
        valgrind::run(&self.path, arguments).into_iter().for_each(|stdout| self.check(&stdout));
    }

    fn check(&self, stdout: &str) {
        let told = told(stdout);
        let missing: Vec<_> = self.declared.difference(&told).collect();
        assert!(missing.is_empty(), "{:?} did not get to check {missing:?}", self.path);
    }
}
