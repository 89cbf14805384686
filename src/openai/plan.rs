//! What is settled about a request before its model has it, and what its answer is written by.

use std::sync::Arc;

use crate::error::Compat;
use crate::reasoning::ReasoningParserKind;
use crate::request::Operation;
use crate::tools::ToolParserKind;
use nereid_request::{DataType, Shape};

/// An input for the model: elements as Triton's binary data has them (strings with their lengths in front).
#[derive(Debug, Clone, PartialEq)]
pub struct Input {
    pub name: String,
    pub datatype: DataType,
    pub shape: Shape,
    pub data: Vec<u8>,
}

/// A request for one model, and how its responses become the answer.
#[derive(Debug, Clone)]
pub struct Prepared {
    /// Of the model, without the LoRA adapter.
    pub model: String,
    /// One list per request: embeddings of several texts are several requests.
    pub requests: Vec<Vec<Input>>,
    /// The weights of this adapter went along: it is known to the model once this request has succeeded.
    pub lora_sent: Option<String>,
    pub priority: Option<i64>,
    pub plan: Plan,
}

/// What the answer is written by.
#[derive(Debug, Clone)]
pub struct Plan {
    pub operation: Operation,
    pub compat: Compat,
    pub id: String,
    /// Seconds since 1970.
    pub created: u64,
    /// As the request names it.
    pub model: String,
    pub stream: bool,
    pub include_usage: bool,
    pub continuous_usage: bool,
    /// What the request allows, where it says so: as many tokens mean that the text was cut.
    pub max_tokens: Option<u64>,
    /// `None`: not wanted. How many alternatives; for chat without `top_logprobs` 0 alternatives and the chosen token.
    pub logprobs: Option<u32>,
    pub tools: ToolPlan,
    pub reasoning: Option<ReasoningParserKind>,
    pub outputs: OutputForm,
    /// The output that has the text, the vector or the score, unless it is `text_output`.
    pub output_name: Option<Arc<str>>,
    /// The prompt's tokens by the tokenizer of the server, where the model reports none and the flag asks for it.
    pub prompt_tokens: Option<u64>,
    /// Embeddings: `encoding_format` is base64.
    pub base64: bool,
    /// What the Responses API repeats in its answers.
    pub responses: Option<Arc<crate::request::Responses>>,
    /// Rerank: the documents, where they are to be returned, and how many results.
    pub rerank: Option<Arc<crate::request::Rerank>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolPlan {
    None,
    /// The text is that of the arguments of this tool.
    Forced {
        name: String,
    },
    Auto {
        parser: ToolParserKind,
        bytes_max: usize,
        is_vllm: bool,
    },
}

/// How the text of a model's responses is to be understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputForm {
    /// Each response has the whole text so far, not only what is new.
    pub is_cumulative: bool,
    /// A response's `finish_reason` is to be taken.
    pub has_finish_reason: bool,
}
