//! The description that the port serves, and requests generated from it: none may end in an error of the server.

use std::path::Path;

use super::frontend::{Frontend, Tokenizer, has_run, repository};
use nereid_test_support::python::Python;

/// Generated requests per route, for a long run by hand.
const EXAMPLES: &str = "NEREID_TEST_EXAMPLES";

#[test]
fn generated_requests_are_no_errors_of_the_server() {
    if has_run() {
        return;
    }
    let Some(python) = Python::with("schemathesis.txt") else { return };
    let (repository, tokenizer) =
        (repository(&["openai_mock", "openai_embedding_mock", "openai_rerank_mock"]), Tokenizer::new());
    let flags = [&tokenizer.flag(), "--tool-call-parser=hermes"];
    let Some(frontend) = Frontend::start(&repository, &flags) else { return };
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("openai-described-{}", frontend.server.pid()));
    std::fs::create_dir_all(&scratch).expect("a directory for what the generator writes");
    let description = frontend.get("/openapi.json");
    assert_eq!(description.status, 200);
    let file = scratch.join("openapi.json");
    std::fs::write(&file, &description.body).expect("the description");
    let examples = std::env::var(EXAMPLES).unwrap_or_else(|_| "12".to_string());
    let mut generator = python.command("described.py");
    generator.arg("run").arg(&file).arg("--url").arg(format!("http://{}", frontend.address));
    generator.args(["--phases", "coverage,fuzzing", "--seed", "1", "--max-examples", &examples]);
    generator.args(["--no-shrink", "--continue-on-failure", "--suppress-health-check", "all", "--warnings", "off"]);
    let checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance";
    generator.args(["--no-color", "--checks", checks]);
    let output = generator.current_dir(&scratch).output().expect("the generator runs");
    let text = [&output.stdout[..], &output.stderr].map(String::from_utf8_lossy).concat();
    let _ = std::fs::remove_dir_all(&scratch);
    assert!(output.status.success(), "{}\n{text}", output.status);
    assert!(text.contains("No issues found"), "{text}");
    assert_eq!(frontend.get("/health/ready").status, 200);
    frontend.stop();
}
