//! What brings the server into a cluster: `deploy/kubernetes`, rendered by Helm and checked against the schemas of
//! Kubernetes, and rolling updates as a kubelet plays them.

use nereid_test_support::python::Python;
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::variant::{each, usual};

const REQUIREMENTS: &str = "kubernetes.txt";

/// Case by case what the chart, the manifests and the runtimes for KServe promise.
#[test]
fn the_chart_and_the_manifests_hold() {
    let Some(python) = Python::with(REQUIREMENTS) else { return };
    let said = python.run("kubernetes.py", &[]);
    let source = std::fs::read_to_string(python.script("kubernetes.py")).expect("the script");
    let names: Vec<&str> = source.split("\n@case\ndef ").skip(1).filter_map(|rest| rest.split('(').next()).collect();
    let missing: Vec<_> =
        names.iter().filter(|name| !said.lines().any(|line| line == format!("held {name}"))).collect();
    assert!(!names.is_empty() && missing.is_empty(), "{missing:?} did not hold:\n{said}");
}

/// Servers with the arguments, probes and grace period of the chart's pod are replaced one by one.
#[test]
fn rolling_updates_fail_no_request() {
    let Some(python) = Python::with(REQUIREMENTS) else { return };
    each(&[usual()], |variant| {
        let repository = Repository::new();
        repository.identity("same", 0, &[Pair::new("INT32", "-1")]);
        let binary = format!("--binary={}", env!("CARGO_BIN_EXE_nereid"));
        let models = format!("--repository={}", repository.path().display());
        let engine = format!("--io-engine={}", variant.io_engine);
        let said = python.run("kubelet.py", &[&binary, &models, "--updates=1", &engine]);
        assert!(said.trim_end().ends_with(", 0 failed"), "{said}");
        println!("{variant:?}: {said}");
    });
}
