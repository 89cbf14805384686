//! The classes that models see, without a server: unit tests in Python, with every available interpreter.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::models;

/// `python3.<n>` of the PATH, the first of each name, if it has numpy.
fn others() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let names = (8..40).map(|minor| format!("python3.{minor}"));
    let has_numpy = |python: &Path| {
        let output = Command::new(python).args(["-c", "import numpy"]).output();
        output.is_ok_and(|output| output.status.success())
    };
    let found = |name: String| directories.iter().map(|directory| directory.join(&name)).find(|path| has_numpy(path));
    names.filter_map(found).collect()
}

fn text_of(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn the_modules_of_workers_pass_their_own_tests_in_every_interpreter() {
    let Some(own) = models::interpreter() else { return };
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/pb_utils");
    for python in std::iter::once(own).chain(others()) {
        let mut command = Command::new(&python);
        // -B: no byte code next to the sources.
        command.args(["-B", "-m", "unittest", "discover", "-p", "*_test.py", "-s"]).arg(&tests);
        let output = command.output().unwrap_or_else(|error| panic!("{}: {error}", python.display()));
        let text = text_of(&output);
        assert!(output.status.success(), "{}: {}\n{text}", python.display(), output.status);
        // An interpreter that finds no tests ends well, too.
        let summary = text.lines().find(|line| line.starts_with("Ran ")).unwrap_or_default();
        let count = summary.split(' ').nth(1).and_then(|count| count.parse().ok()).unwrap_or(0);
        assert!(count > 100, "{}: {summary}\n{text}", python.display());
        println!("{}: {summary}", python.display());
    }
}
