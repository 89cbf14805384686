//! Ray Serve: replicas of `nereid.ray` on two raylets of this host. Its packages are large, so the test runs only if
//! NEREID_TEST_LARGE_RUNTIMES is 1 or ray.

use nereid_test_support::large_runtimes::is_large_runtime_wanted;
use nereid_test_support::python::Python;

use crate::python_package::{Package, hold};

const REQUIREMENTS: &str = "ray.txt";

#[test]
#[ignore = ".ci/run calls it, and leaves out the test of Ray if it fails"]
fn its_packages_are_installed() {
    assert!(Python::with(REQUIREMENTS).is_some());
}

/// All cases in one process, because the start of a cluster takes longer than each of them. The program leaves no
/// process behind, however it ends.
#[test]
fn ray_serves_replicas_drains_and_replaces_them() {
    if !is_large_runtime_wanted("ray") {
        return;
    }
    let Some(ray) = Python::with(REQUIREMENTS) else { return };
    let Some(package) = Package::get() else { return };
    let mut command = ray.command("ray_serve.py");
    // The wheel of this build beside the environment's own packages, for Ray's processes, too.
    command.env("PYTHONPATH", package.python.packages());
    hold(command, ray.script("ray_serve.py"), &[]);
}
