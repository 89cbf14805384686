//! Paths of the sources, of the server under test, and of directories for the files of tests.
//!
//! Cargo names the program and the temporary directory to integration tests only, when it compiles them. This crate is
//! compiled separately and derives both from the path of the test binary, which is in `<target>/<profile>/deps`.

use std::path::{Path, PathBuf};

/// The root of the source tree.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("this crate lies in tests/support")
}

/// The server of this build.
pub fn server() -> PathBuf {
    profile().join("nereid")
}

/// The directory for files that are expensive to create and kept between runs: `target/`.
pub fn target() -> PathBuf {
    profile().parent().expect("a profile lies in a target directory").to_owned()
}

/// Cargo's `CARGO_TARGET_TMPDIR`, for files that one run needs.
pub fn temporary() -> PathBuf {
    let directory = target().join("tmp");
    std::fs::create_dir_all(&directory).expect("the build's temporary directory can be written");
    directory
}

/// `<target>/<profile>`.
fn profile() -> PathBuf {
    let binary = std::env::current_exe().expect("the path of this test binary");
    binary.ancestors().nth(2).expect("a test binary lies in <target>/<profile>/deps").to_owned()
}
