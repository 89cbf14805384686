//! Compiles the libraries and programs of these tests with the headers and the library of this build.

use std::path::{Path, PathBuf};
use std::process::Command;

use nereid_test_support::skip::skip;

/// Where this test binary puts what it compiles.
pub fn workshop() -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("border-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory for what is compiled");
    directory
}

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The library of `source`, a C or C++ file, as `to`. False, after a visible skip, without a compiler.
pub fn library(source: &Path, to: &Path, more: &[&str]) -> bool {
    std::fs::create_dir_all(to.parent().expect("a path in a directory")).expect("a directory for a library");
    compile(source, to, &[&["-shared", "-fPIC", "-fvisibility=hidden"], more].concat())
}

/// The program of `source`, linked with the library under test.
pub fn program(source: &Path, to: &Path, more: &[&str]) -> bool {
    let binary = Path::new(env!("CARGO_BIN_EXE_nereid"));
    let directory = binary.parent().expect("a program in a directory").join("deps");
    let path = directory.display().to_string();
    let link = ["-L", &path, "-ltritonserver", &format!("-Wl,-rpath,{path}")].map(str::to_owned);
    let link: Vec<&str> = link.iter().map(String::as_str).collect();
    compile(source, to, &[more, &link].concat())
}

fn compile(source: &Path, to: &Path, more: &[&str]) -> bool {
    let is_cpp = source.extension().is_some_and(|extension| extension == "cc");
    let (program, standard) = if is_cpp { ("c++", "-std=c++17") } else { ("cc", "-std=c11") };
    let mut compiler = Command::new(program);
    compiler.args([standard, "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"]).arg(to).arg(source);
    compiler.arg("-I").arg(root().join("include")).arg("-I").arg(root().join("tests/native_programs")).args(more);
    match compiler.output() {
        Err(error) => {
            skip(&format!("no compiler '{program}': {error}"));
            false
        }
        // A compiler that is there and refuses our own source is a failure, not a reason to skip.
        Ok(output) => {
            assert!(output.status.success(), "{source:?}: {}", String::from_utf8_lossy(&output.stderr));
            true
        }
    }
}

/// A directory for `--backend-directory` that holds the backend of `tests/backends/<file>`, named like the file.
pub fn backend(file: &str, more: &[&str]) -> Option<PathBuf> {
    let name = file.split('.').next().unwrap_or(file);
    let key: String = more.concat().chars().filter(char::is_ascii_alphanumeric).collect();
    let directory = workshop().join(format!("{name}-{key}-{:?}", std::thread::current().id()));
    let to = directory.join(name).join(format!("libtriton_{name}.so"));
    library(&root().join("tests/backends").join(file), &to, more).then_some(directory)
}
