//! Models' conventions: which tensors a request becomes (contract/openai.md section 3).
//!
//! The convention of a model follows from its configuration: its backend, and the inputs that it declares. Where that
//! is not enough, parameters of `config.pbtxt` state it, as
//! `parameters { key: "openai_form" value { string_value: "embedding" } }`:
//!
//! - `openai_form`: `vllm`, `tensorrtllm` or `llmapi` is the convention of a model that generates text, and wins over
//!   `--backend`; `embedding`: the model turns a text into a vector; `rerank`: it scores a document by a query.
//! - `openai_tokenizer`: the folder of the model's tokenizer and chat template, relative to the model's folder; without
//!   it a folder named `tokenizer`, where there is one.
//! - `openai_prompt_input`: the input that takes the prompt or the text, otherwise `text_input` or the only one.
//! - `openai_output`: the output that is answered, otherwise `text_output` or the only one of FP32.
//!
//! A model without `openai_form` is taken for one of embeddings if it has one text input and one FP32 output with more
//! than one element, and for one that ranks if its FP32 output has one element and its inputs are `query` and
//! `document`, or `text_1` and `text_2`, or one text input of two elements (the query, then the document).

use std::path::{Path, PathBuf};

use crate::error::{Compat, Refusal};
use crate::json::Json;
use crate::plan::{Input, OutputForm};
use crate::request::Sampling;
use nereid_model_config::{ModelSpec, TensorSpec};
use nereid_request::DataType;

mod detect;
mod embed;
mod generate;
mod lora;
mod npy;
mod sampling;
mod tensors;
#[cfg(test)]
pub(crate) mod tests;

pub use detect::Ranker;
pub use lora::{Lora, LoraError, Loras};

/// The convention of a model's inputs (`--backend`, or a parameter of its configuration).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Vllm,
    TensorRtLlm,
    /// The LLM API of TensorRT-LLM.
    LlmApi,
}

/// An input or output that the configuration declares.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Declared {
    name: String,
    datatype: DataType,
    /// Without the batch dimension.
    dims: Vec<i64>,
    is_optional: bool,
}

impl Declared {
    fn of(tensor: &TensorSpec) -> Option<Declared> {
        let datatype = DataType::ALL.into_iter().find(|datatype| datatype.name() == tensor.datatype)?;
        let (name, dims) = (tensor.name.clone(), tensor.dims.clone());
        Some(Declared { name, datatype, dims, is_optional: tensor.optional })
    }
}

/// What a model is for, as `openai_form` states it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stated {
    Generation(Form),
    Embedding,
    Rerank,
}

/// What the interface knows of a model.
#[derive(Debug)]
pub struct ModelFacts {
    name: String,
    /// The backend, or `ensemble`; empty if it is unknown.
    backend: String,
    is_batching: bool,
    is_decoupled: bool,
    inputs: Vec<Declared>,
    outputs: Vec<Declared>,
    stated: Option<Stated>,
    prompt_input: Option<String>,
    output: Option<String>,
    /// The input for the text, of a model of embeddings that is not vLLM's.
    embedder: Option<String>,
    ranker: Option<Ranker>,
    folder: Option<PathBuf>,
    tokenizer_folder: Option<PathBuf>,
    loras: Loras,
    warnings: Vec<String>,
}

/// A text to be generated.
#[derive(Debug, Clone, Copy)]
pub struct Generation<'a> {
    pub prompt: &'a str,
    pub sampling: &'a Sampling,
    pub is_chat: bool,
    pub max_tokens: i64,
    /// How many tokens the model reports at each place; `None`: none.
    pub logprobs: Option<i64>,
    /// Of completions, if it was given.
    pub echo: Option<bool>,
    pub guide: Option<&'a Guide>,
    pub lora: Option<&'a str>,
}

/// What the text is held to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Guide {
    /// The text of a JSON schema.
    Schema(String),
    /// Any JSON object.
    JsonObject,
}

impl ModelFacts {
    /// `folder`: the model's, where it is on this host. LoRA adapters are off until [`ModelFacts::read_loras`].
    pub fn of(spec: &ModelSpec, folder: Option<&Path>) -> ModelFacts {
        let is_ensemble = spec.backend.is_empty() && spec.platform == "ensemble";
        let parameter = |key: &str| spec.parameters.get(key).filter(|value| !value.is_empty()).cloned();
        let mut facts = ModelFacts {
            name: spec.name.clone(),
            backend: if is_ensemble { "ensemble".to_owned() } else { spec.backend.clone() },
            is_batching: spec.is_batching(),
            is_decoupled: spec.decoupled,
            inputs: spec.inputs.iter().filter_map(Declared::of).collect(),
            outputs: spec.outputs.iter().filter_map(Declared::of).collect(),
            stated: None,
            prompt_input: parameter("openai_prompt_input"),
            output: parameter("openai_output"),
            embedder: None,
            ranker: None,
            folder: folder.map(Path::to_owned),
            tokenizer_folder: None,
            loras: Loras::Off,
            warnings: Vec::new(),
        };
        facts.detect(parameter("openai_form").as_deref());
        facts.find_tokenizer(parameter("openai_tokenizer").as_deref());
        facts
    }

    /// Reads which LoRA adapters the model has, by files of its folder (contract/openai.md section 3.6). To be called
    /// if `--lora-separator` is given; an error stops the start of the server or the load of the model.
    pub fn read_loras(&mut self, flag: Option<Form>) -> Result<(), LoraError> {
        let (loras, warning) = lora::read(&self.name, self.folder.as_deref(), self.form(flag))?;
        self.loras = loras;
        self.warnings.extend(warning);
        Ok(())
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Empty if it is unknown.
    pub fn backend(&self) -> &str {
        &self.backend
    }

    /// What the operator should know about the configuration, a sentence each.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// A request may have any number of responses. Other models cannot stream.
    pub fn is_decoupled(&self) -> bool {
        self.is_decoupled
    }

    /// The folder of the model's own tokenizer.
    pub fn tokenizer_folder(&self) -> Option<&Path> {
        self.tokenizer_folder.as_deref()
    }

    pub fn loras(&self) -> &Loras {
        &self.loras
    }

    /// `flag`: `--backend`.
    pub fn form(&self, flag: Option<Form>) -> Form {
        let form = match (self.stated, flag) {
            (Some(Stated::Generation(form)), _) => return form,
            (_, Some(form)) => form,
            _ if self.backend == "vllm" || self.input("sampling_parameters").is_some() => Form::Vllm,
            _ => Form::TensorRtLlm,
        };
        let is_llm_api = form == Form::TensorRtLlm && self.input("sampling_param_max_tokens").is_some();
        if is_llm_api { Form::LlmApi } else { form }
    }

    /// Writes text for a prompt.
    pub fn is_generative(&self) -> bool {
        let is_text = |tensor: Option<&Declared>| tensor.is_some_and(|tensor| tensor.datatype == DataType::Bytes);
        match self.stated {
            Some(Stated::Generation(_)) => true,
            Some(_) => false,
            None => {
                let output = self.output.as_deref().unwrap_or("text_output");
                self.backend == "vllm" || is_text(self.input(self.prompt_input())) && is_text(self.output(output))
            }
        }
    }

    /// Turns texts into vectors.
    pub fn is_embedding(&self) -> bool {
        self.embedder.is_some() || self.input("embedding_request").is_some()
    }

    /// `openai_form` says so, rather than the shapes of tensors.
    pub fn is_stated_embedding(&self) -> bool {
        self.stated == Some(Stated::Embedding)
    }

    /// Scores documents by queries.
    pub fn is_rerank(&self) -> bool {
        self.ranker.is_some()
    }

    /// How many elements the vectors have, where the configuration says so and the model is not vLLM's.
    pub fn embedding_length(&self) -> Option<i64> {
        let output = self.embedder.as_ref().and(self.output.as_deref())?;
        self.output(output)?.dims.last().copied().filter(|&length| length > 0)
    }

    /// The output that is answered, unless it is `text_output`.
    pub fn output_name(&self) -> Option<&str> {
        self.output.as_deref()
    }

    /// The model itself counts the tokens of prompts.
    pub fn reports_prompt_tokens(&self) -> bool {
        self.output("num_input_tokens").is_some()
    }

    /// What the text can be held to with the inputs that the model declares.
    pub fn can_guide(&self, flag: Option<Form>) -> bool {
        let input = if self.form(flag) == Form::Vllm { "sampling_parameters" } else { "guided_decoding_guide" };
        self.input(input).is_some()
    }

    /// How its responses are to be understood.
    pub fn output_form(&self, flag: Option<Form>, compat: Compat) -> OutputForm {
        let is_cumulative = self.form(flag) == Form::LlmApi;
        OutputForm { is_cumulative, has_finish_reason: self.reports_finish_reason(compat) }
    }

    /// The inputs of a request for a text.
    pub fn inputs(
        &self,
        generation: &Generation<'_>,
        flag: Option<Form>,
        compat: Compat,
    ) -> Result<Vec<Input>, Refusal> {
        generate::inputs(self, generation, self.form(flag), compat)
    }

    /// As upstream does for U (contract/openai.md section 1.5), Triton's bytes never tell why a text ended.
    fn reports_finish_reason(&self, compat: Compat) -> bool {
        compat == Compat::OpenAi
            && self.input("return_finish_reason").is_some()
            && self.output("finish_reason").is_some()
    }

    fn prompt_input(&self) -> &str {
        self.prompt_input.as_deref().unwrap_or("text_input")
    }

    /// It follows vLLM's convention, log probabilities included.
    pub fn reports_logprobs(&self, flag: Option<Form>) -> bool {
        self.form(flag) == Form::Vllm && self.input("return_logprobs").is_some() && self.output("logprobs").is_some()
    }

    fn input(&self, name: &str) -> Option<&Declared> {
        self.inputs.iter().find(|input| input.name == name)
    }

    fn output(&self, name: &str) -> Option<&Declared> {
        self.outputs.iter().find(|output| output.name == name)
    }

    /// The input that keeps the prompt out of the text.
    fn echo_input(&self) -> Option<&str> {
        let names = ["exclude_input_in_output", "sampling_param_exclude_input_from_output"];
        self.inputs.iter().map(|input| input.name.as_str()).find(|name| names.contains(name))
    }
}

/// As `json.dumps(value)` of Python.
fn python_text(value: &Json) -> String {
    let mut text = String::new();
    value.python(&mut text, true);
    text
}

/// Without blanks, members in their order.
pub(crate) fn compact_text(value: &Json) -> String {
    let mut text = String::new();
    value.compact(&mut text);
    text
}
