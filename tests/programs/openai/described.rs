//! The description that the port serves, and requests generated from it: none may end in an error of the server.

use std::path::Path;

use serde_json::{Value, json};

use super::frontend::{Frontend, Tokenizer, has_run, repository};
use nereid_test_support::python::Python;

/// Generated requests per route, for a long run by hand.
const EXAMPLES: &str = "NEREID_TEST_EXAMPLES";

const MODELS: [&str; 4] = ["openai_mock", "openai_embedding_mock", "openai_rerank_mock", "absent"];
/// The mock writes as many words as it is asked for.
const TOKENS_MAX: u64 = 64;

/// The description with names of models that there are, and with answers that are short.
fn narrowed(mut description: Value) -> Value {
    for schema in description["components"]["schemas"].as_object_mut().expect("schemas").values_mut() {
        let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) else { continue };
        let is_request =
            ["messages", "prompt", "input", "query", "text_1"].iter().any(|name| properties.contains_key(*name));
        if let Some(model) = properties.get_mut("model").filter(|_| is_request) {
            *model = json!({"enum": MODELS});
        }
        for name in ["max_tokens", "min_tokens", "max_completion_tokens", "max_output_tokens"] {
            if let Some(limit) = properties.get_mut(name) {
                limit["maximum"] = TOKENS_MAX.into();
            }
        }
    }
    description
}

#[test]
fn generated_requests_are_no_errors_of_the_server() {
    if has_run() {
        return;
    }
    let (Some(python), Some(tokens)) = (Python::with("schemathesis.txt"), Python::with("openai.txt")) else { return };
    let (repository, tokenizer) =
        (repository(&["openai_mock", "openai_embedding_mock", "openai_rerank_mock"]), Tokenizer::new());
    tokens.run("openai_tokens.py", &["train", &tokenizer.path().display().to_string()]);
    let flags = [&tokenizer.flag(), "--tool-call-parser=hermes"];
    let Some(frontend) = Frontend::start(&repository, &flags) else { return };
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("openai-described-{}", frontend.server.pid()));
    std::fs::create_dir_all(&scratch).expect("a directory for what the generator writes");
    let description = frontend.get("/openapi.json");
    assert_eq!(description.status, 200);
    let file = scratch.join("openapi.json");
    std::fs::write(&file, narrowed(description.json()).to_string()).expect("the description");
    let examples = std::env::var(EXAMPLES).unwrap_or_else(|_| "12".to_string());
    let mut generator = python.command("described.py");
    generator.arg("run").arg(&file).arg("--url").arg(format!("http://{}", frontend.address));
    generator.args(["--phases", "coverage,fuzzing", "--seed", "1", "--max-examples", &examples]);
    generator.args(["--no-shrink", "--continue-on-failure", "--suppress-health-check", "all", "--warnings", "off"]);
    let checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance";
    generator.args(["--no-color", "--request-timeout", "300", "--checks", checks]);
    let output = generator.current_dir(&scratch).output().expect("the generator runs");
    let text = [&output.stdout[..], &output.stderr].map(String::from_utf8_lossy).concat();
    let _ = std::fs::remove_dir_all(&scratch);
    assert!(output.status.success(), "{}\n{text}", output.status);
    assert!(text.contains("No issues found"), "{text}");
    assert_eq!(frontend.get("/health/ready").status, 200);
    frontend.stop();
}
