//! Bodies of requests against the schema of contract/openai.md section 1.2.

use crate::error::{Compat, Refusal};
use crate::request::{Operation, Request};

/// How bodies are read.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    pub compat: Compat,
    /// Members of OpenAI's present interface and of engines that Triton's front end does not know are let through.
    pub extensions: bool,
}

/// Reads a body. `is_json`: its content type is absent or JSON.
pub fn read(_operation: Operation, _body: &[u8], _is_json: bool, _rules: &Rules) -> Result<Request, Refusal> {
    unimplemented!()
}
