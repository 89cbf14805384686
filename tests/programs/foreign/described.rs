//! A description of the HTTP port from which clients can be generated (tests/fixtures), and requests generated from it:
//! valid and slightly invalid ones. The description must cover every response.

use std::path::Path;
use std::time::{Duration, Instant};

use nereid_test_support::http::Peer;
use nereid_test_support::prepared::source;
use nereid_test_support::python::Python;
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::{PATIENCE, Server};
use nereid_test_support::variant::usual;

/// Generated requests per route, for a long run by hand.
const EXAMPLES: &str = "NEREID_TEST_EXAMPLES";

/// A run over the routes whose paths match, and what the server looks like after it.
fn run(python: &Python, server: Server, routes: &str) {
    assert_eq!(Peer::connect(server.http).get("/v2").status, 200);
    let descriptors = server.descriptors();
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("described-{}", server.pid()));
    std::fs::create_dir_all(&scratch).expect("a directory for what the generator writes");
    let examples = std::env::var(EXAMPLES).unwrap_or_else(|_| "12".to_string());
    let mut generator = python.command("described.py");
    generator.arg("run").arg(source("tests/fixtures/kserve.openapi.yaml")).arg("--url");
    generator.arg(format!("http://{}", server.http)).args(["--phases", "coverage,fuzzing", "--seed", "1"]);
    generator.args(["--max-examples", &examples, "--no-shrink", "--continue-on-failure"]);
    generator.args(["--include-path-regex", routes, "--suppress-health-check", "all", "--warnings", "off"]);
    let checks = "status_code_conformance,content_type_conformance,response_schema_conformance";
    generator.args(["--no-color", "--request-timeout", "300", "--checks", checks]);
    let output = generator.current_dir(&scratch).output().expect("the generator runs");
    let text = [&output.stdout[..], &output.stderr].map(String::from_utf8_lossy).concat();
    let _ = std::fs::remove_dir_all(&scratch);
    assert!(output.status.success(), "{}\n{text}", output.status);
    assert!(text.contains("No issues found"), "{text}");

    // Its connections are gone, and nothing that they brought stays open.
    let started = Instant::now();
    while server.descriptors() > descriptors {
        assert!(started.elapsed() < PATIENCE, "{descriptors} descriptors before, {} after", server.descriptors());
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(Peer::connect(server.http).get("/v2/health/live").status, 200);
    server.stop();
}

#[test]
fn generated_requests_are_answered_as_described() {
    let Some(python) = Python::with("schemathesis.txt") else { return };
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("INT32", "-1"), Pair::new("INT32", "-1").optional()]);
    repository.identity("batching", 4, &[Pair::new("FP32", "-1")]);
    repository.identity("text", 0, &[Pair::new("BYTES", "-1")]);
    repository.identity("flag", 0, &[Pair::new("BOOL", "-1")]);
    run(&python, Server::start(usual(), repository.path(), &[]), "^/v2");
    // Models come and go under the same requests.
    let explicit = ["--model-control-mode=explicit", "--load-model=*"];
    run(&python, Server::start(usual(), repository.path(), &explicit), "^/v2/(repository|models/.*/infer)");
}
