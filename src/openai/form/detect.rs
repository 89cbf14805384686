//! What a model is for: by the parameters of its configuration, otherwise by its tensors.
//!
//! A wrong guess costs no more than an entry in a listing: nothing runs on a model but what a request asks of it.

use std::path::{Component, Path};

use super::{Declared, Form, ModelFacts, Stated};
use nereid_request::DataType;

/// How a model that ranks takes a query and a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ranker {
    /// By an input each.
    Two { query: String, document: String },
    /// As the two elements of one input.
    Pair { input: String },
}

impl ModelFacts {
    pub(super) fn detect(&mut self, form: Option<&str>) {
        self.stated = match form {
            None => None,
            Some("vllm") => Some(Stated::Generation(Form::Vllm)),
            Some("tensorrtllm") => Some(Stated::Generation(Form::TensorRtLlm)),
            Some("llmapi") => Some(Stated::Generation(Form::LlmApi)),
            Some("embedding") => Some(Stated::Embedding),
            Some("rerank") => Some(Stated::Rerank),
            Some(other) => {
                self.warn(format!(
                    "parameter 'openai_form' is '{other}', which is none of vllm, tensorrtllm, llmapi, embedding and \
                     rerank; it is ignored"
                ));
                None
            }
        };
        self.check_names();
        match self.stated {
            Some(Stated::Generation(_)) => {}
            Some(Stated::Embedding) => self.detect_embedder(true),
            Some(Stated::Rerank) => self.detect_ranker(true),
            // The numbers of a model that writes text stand beside it.
            None if self.is_generative() => {}
            None => {
                self.detect_embedder(false);
                self.detect_ranker(false);
            }
        }
    }

    /// Tensors that parameters name must exist.
    fn check_names(&mut self) {
        if let Some(name) = self.prompt_input.take_if(|name| self.inputs.iter().all(|input| input.name != *name)) {
            self.warn(format!("parameter 'openai_prompt_input' names no input of the model: '{name}'; it is ignored"));
        }
        if let Some(name) = self.output.take_if(|name| self.outputs.iter().all(|output| output.name != *name)) {
            self.warn(format!("parameter 'openai_output' names no output of the model: '{name}'; it is ignored"));
        }
    }

    /// The name of the output with numbers, if it is certain: the only one of FP32.
    fn numbers(&self) -> Option<&Declared> {
        if let Some(name) = &self.output {
            return self.output(name);
        }
        let mut candidates = self.outputs.iter().filter(|output| output.datatype == DataType::Fp32);
        candidates.next().filter(|_| candidates.next().is_none())
    }

    /// The text inputs, unless a request would have to give others.
    fn texts(&self) -> Vec<&Declared> {
        let is_text = |input: &&Declared| input.datatype == DataType::Bytes;
        if self.inputs.iter().any(|input| !is_text(&input) && !input.is_optional) {
            return Vec::new();
        }
        let required: Vec<&Declared> = self.inputs.iter().filter(is_text).filter(|input| !input.is_optional).collect();
        if required.is_empty() { self.inputs.iter().filter(is_text).collect() } else { required }
    }

    fn detect_embedder(&mut self, is_stated: bool) {
        let texts = self.texts();
        let text = match &self.prompt_input {
            Some(name) => texts.iter().find(|input| input.name == *name),
            None => texts.first().filter(|_| texts.len() == 1),
        };
        let text = text.filter(|input| input.dims.iter().all(|&size| size == 1 || size == -1));
        let numbers = self.numbers().filter(|output| output.datatype == DataType::Fp32 && is_vector(&output.dims));
        match (text, numbers) {
            (Some(text), Some(numbers)) => {
                let (text, numbers) = (text.name.clone(), numbers.name.clone());
                (self.embedder, self.output) = (Some(text), Some(numbers));
            }
            _ if is_stated => self.warn(
                "parameter 'openai_form' is 'embedding', but the model has not one input of TYPE_STRING with one \
                 element and one output of TYPE_FP32 with several; name them by 'openai_prompt_input' and \
                 'openai_output'"
                    .to_owned(),
            ),
            _ => {}
        }
    }

    fn detect_ranker(&mut self, is_stated: bool) {
        let score = self.numbers().filter(|output| output.datatype == DataType::Fp32 && is_scalar(&output.dims));
        let texts = self.texts();
        let names: Vec<&str> = texts.iter().map(|input| input.name.as_str()).collect();
        let two = |query: &str, document: &str| Ranker::Two { query: query.to_owned(), document: document.to_owned() };
        let ranker = match names[..] {
            ["query" | "text_1", "document" | "text_2"] => Some(two(names[0], names[1])),
            ["document" | "text_2", "query" | "text_1"] => Some(two(names[1], names[0])),
            [first, second] if is_stated => Some(two(first, second)),
            [input] => {
                let takes_two = texts.first().is_some_and(|text| match text.dims[..] {
                    [.., 2] => true,
                    [.., -1] => is_stated,
                    _ => false,
                });
                takes_two.then(|| Ranker::Pair { input: input.to_owned() })
            }
            _ => None,
        };
        match (ranker, score.map(|score| score.name.clone())) {
            (Some(ranker), Some(score)) => (self.ranker, self.output) = (Some(ranker), Some(score)),
            _ if is_stated => self.warn(
                "parameter 'openai_form' is 'rerank', but the model has not one output of TYPE_FP32 with one element \
                 and, as inputs of TYPE_STRING, two for a query and a document or one of two elements"
                    .to_owned(),
            ),
            _ => {}
        }
    }

    /// The folder must be inside the model's: who may write a configuration may not read the host's files by it.
    pub(super) fn find_tokenizer(&mut self, parameter: Option<&str>) {
        let Some(folder) = self.folder.clone() else { return };
        let Some(relative) = parameter else {
            let usual = folder.join("tokenizer");
            let is_one = ["tokenizer_config.json", "tokenizer.json"].iter().any(|file| usual.join(file).is_file());
            self.tokenizer_folder = is_one.then_some(usual);
            return;
        };
        let is_inside = Path::new(relative).components().all(|part| matches!(part, Component::Normal(_)));
        let path = folder.join(relative);
        if !is_inside {
            self.warn(format!(
                "parameter 'openai_tokenizer' must be a folder inside that of the model, but is '{relative}'; it is \
                 ignored"
            ));
        } else if !path.is_dir() {
            self.warn(format!(
                "parameter 'openai_tokenizer' is '{relative}', but the model's folder has no folder of this name; it \
                 is ignored"
            ));
        } else {
            self.tokenizer_folder = Some(path);
        }
    }

    fn warn(&mut self, text: String) {
        self.warnings.push(format!("model '{}': {text}", self.name));
    }
}

/// More than one element, behind dimensions of one.
fn is_vector(dims: &[i64]) -> bool {
    dims.split_last()
        .is_some_and(|(&last, before)| (last > 1 || last == -1) && before.iter().all(|&size| size == 1 || size == -1))
}

fn is_scalar(dims: &[i64]) -> bool {
    dims.iter().all(|&size| size == 1)
}
