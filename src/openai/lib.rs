//! OpenAI's interface (contract/openai.md) without I/O: everything between the body of a request and the tensors of a
//! model, and between the responses of a model and the bytes of an answer.
//!
//! ```text
//! body ─► json ─► schema (Request) ─► prepare (checks; template, tokenizer; form) ─► Prepared: tensors, Plan
//! Response ─► answer (tools, reasoning, logprobs; by the Plan) ─► JSON, or events of a stream
//! ```
//!
//! `prepare` runs on a pool of threads, or for short bodies on the shard; `answer` runs on the shard, in bounded steps.

pub mod answer;
pub mod date;
pub mod error;
pub mod form;
pub mod json;
pub mod logprobs;
pub mod plan;
pub mod prepare;
pub mod python_json;
pub mod reasoning;
pub mod request;
pub mod schema;
pub mod template;
pub mod text_assembly;
pub mod tokenizer;
pub mod tools;
