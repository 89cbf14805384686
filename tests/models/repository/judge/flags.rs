//! Wrong flags: both servers must exit with the same code and the same error after their usage text.

use crate::repository::judge::differences::{Known, Line, compare};
use nereid_test_support::original::original;
use nereid_test_support::server::run_to_end_under;
use nereid_test_support::steadily::steadily;

const FLAGS: &[&[&str]] = &[
    &["--http-port=http"],
    &["--http-port=99999999999"],
    &["--http-port="],
    &["--allow-http=perhaps"],
    &["--exit-timeout-secs=soon"],
    &["--surplus"],
    &["surplus"],
    &["--model-control-mode=sometimes"],
    &["--load-model=m"],
    &["--model-config-name="],
    &["--repository-poll-secs=x"],
    &["--strict-readiness=maybe"],
    &["--exit-on-error="],
    &["--log-format=xml"],
    &["--log-verbose=much"],
    &["--backend-config=onnxruntime"],
    &["--backend-config=onnxruntime,x"],
    &["--backend-config=,a=b"],
    &["--http-max-input-size=0"],
    &["--model-load-thread-count=x"],
    &["--model-load-retry-count=x"],
    &["--model-namespacing=x"],
    &["--grpc-infer-response-compression-level=some"],
    &["--min-supported-compute-capability=x"],
    &["--http-port=7", "--grpc-port=7", "--http-address=127.0.0.1", "--grpc-address=127.0.0.1"],
];

/// What the lines of an answer begin with.
const BEGINNINGS: [&str; 10] = [
    "Bad option",
    "Invalid option",
    "invalid ",
    "Error: --",
    "Error: Use",
    "Error: empty",
    "Provided",
    "Unexpected",
    "Cannot parse",
    "The server cannot",
];

const SIZE: Known = Known {
    name: "The limit of the input's size",
    is: |difference| {
        difference.question == "--http-max-input-size=0"
            && difference.ours.ends_with("Error: --http-max-input-size must be greater than 0.")
            && difference.theirs == "1 "
    },
};

/// The exit code and what follows the usage text.
fn transcript(words: &[String]) -> Vec<Line> {
    let mut lines = Vec::new();
    for flags in FLAGS {
        let mut all = vec!["--model-repository=/nonexistent"];
        all.extend(*flags);
        let (status, _, err) = run_to_end_under(words, &all);
        // The usage text is indented, or speaks of flags; log records and what the host lacks are no answer.
        let said: Vec<&str> = err.lines().filter(|line| BEGINNINGS.iter().any(|word| line.starts_with(word))).collect();
        lines.push((flags.join(" "), format!("{} {}", status.code().unwrap_or(-1), said.join(" / "))));
    }
    lines
}

#[test]
fn both_servers_refuse_the_same_flags_in_the_same_words() {
    let Some(original) = original() else { return };
    steadily(|| {
        compare(&transcript(&[]), &transcript(&original), &[SIZE]);
    });
}
