//! Models' conventions: which tensors a request becomes (contract/openai.md section 3).

use std::path::Path;

use nereid_model_config::ModelSpec;

/// The convention of a model's inputs (`--backend`, or a parameter of its configuration).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Vllm,
    TensorRtLlm,
    /// The LLM API of TensorRT-LLM.
    LlmApi,
}

/// What the interface knows of a model.
#[derive(Debug)]
pub struct ModelFacts {}

impl ModelFacts {
    /// `folder`: the model's, where it is on this host.
    pub fn of(_spec: &ModelSpec, _folder: Option<&Path>) -> ModelFacts {
        unimplemented!()
    }
}
