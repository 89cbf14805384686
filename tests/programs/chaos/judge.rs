//! Which refusals are documented, for which models: everything else fails the run.

/// A refusal by its HTTP status or, from 0 to 16, its gRPC code.
#[derive(Clone, Debug)]
pub struct Refusal {
    pub code: u32,
    pub text: String,
}

/// Where a refusal is allowed, the codes and the texts that it has.
struct Rule {
    models: &'static [&'static str],
    codes: &'static [u32],
    text: &'static str,
}

const ANY: &[&str] = &[];
/// Models whose requests a Python worker executes, or a part of them.
const PYTHON: &[&str] = &["echo", "chain", "sums", "burst", "generation"];
/// Models that come and go.
const VOLATILE: &[&str] = &["generation", "flipping"];
const UNAVAILABLE: &[u32] = &[503, 14];
const FAILED: &[u32] = &[500, 13];
/// A stream of gRPC has no code for one request of it.
pub const IN_STREAM: u32 = 99;

const RULES: [Rule; 13] = [
    // docs/design.md, the table of bounds: the memory of requests and answers.
    Rule { models: ANY, codes: &[503, 14, 8, IN_STREAM], text: "bytes were asked for, but only" },
    Rule { models: &["slow"], codes: &[503, 14, IN_STREAM], text: "Exceeds maximum queue size" },
    // docs/python-faults.md.
    Rule { models: PYTHON, codes: &[503, 14, 500, 13, IN_STREAM], text: "is not healthy" },
    Rule { models: PYTHON, codes: &[500, 13, IN_STREAM], text: "Failed to process the request(s) for model" },
    Rule { models: PYTHON, codes: &[503, 14, IN_STREAM], text: "with a worker: " },
    Rule { models: &["sums"], codes: &[400, 3, IN_STREAM], text: "must specify the START flag on the first request" },
    Rule { models: &["sums"], codes: &[503, 14, IN_STREAM], text: "begin the sequence again with the START flag" },
    // A model that is not there.
    Rule { models: VOLATILE, codes: &[400, 404, 3, 5, 14, IN_STREAM], text: "Request for unknown model" },
    Rule { models: VOLATILE, codes: UNAVAILABLE, text: "is not at ready state" },
    Rule { models: VOLATILE, codes: FAILED, text: "is being unloaded" },
    // docs/shared-memory.md.
    Rule { models: &["plain"], codes: &[400, 500, 3, 13], text: "has lost its memory" },
    Rule { models: &["plain"], codes: &[400, 3], text: "failed to resize shared memory" },
    Rule { models: &["plain"], codes: &[400, 500, 3, 13], text: "Unable to open shared memory region" },
];

/// The text under which a refusal is counted, or why it must not be.
pub fn judge(model: &str, refusal: &Refusal) -> Result<String, String> {
    let Refusal { code, text } = refusal;
    let fits = |rule: &&Rule| {
        (rule.models.is_empty() || rule.models.contains(&model))
            && rule.codes.contains(code)
            && text.contains(rule.text)
    };
    match RULES.iter().find(fits) {
        Some(rule) => Ok(format!("{code} {}", rule.text)),
        None => Err(format!("model '{model}' refuses with {code} {text:?}, which is not documented")),
    }
}
