//! The inputs of requests for vectors and scores.
//!
//! vLLM's models take a JSON text (contract/openai.md section 3.2). Any other model that turns a text into a vector or
//! a score has one text, or a pair, in each request; the scheduler makes batches of them.

use super::tensors::{Tensors, shape, strings};
use super::{ModelFacts, Ranker, python_text};
use crate::error::{Compat, Refusal};
use crate::json::Json;
use crate::plan::Input;
use nereid_request::DataType;

impl ModelFacts {
    /// A request of vLLM's form for the vector of a text, or of tokens.
    pub fn embedding_request(&self, input: Json, dimensions: Option<i64>) -> Result<Vec<Input>, Refusal> {
        let dimensions = dimensions.map(|count| Json::List(vec![Json::Int(i128::from(count))]));
        let pooling = dimensions.map(|dimensions| ("dimensions".to_owned(), dimensions)).into_iter().collect();
        let request =
            Json::Object(vec![("input".to_owned(), input), ("pooling_params".to_owned(), Json::Object(pooling))]);
        let mut tensors = Tensors::new(self, Compat::OpenAi, 1);
        tensors.prompt("embedding_request", &python_text(&request))?;
        tensors.flag("return_num_input_tokens", true);
        tensors.flag("return_num_output_tokens", true);
        Ok(tensors.into_inputs())
    }

    /// A request for the vector of a text; `None` if the model is not one of embeddings, or is vLLM's.
    pub fn embedding_input(&self, text: &str) -> Option<Result<Vec<Input>, Refusal>> {
        let name = self.embedder.as_deref()?;
        let mut tensors = Tensors::new(self, Compat::OpenAi, 1);
        Some(tensors.prompt(name, text).map(|()| tensors.into_inputs()))
    }

    /// A request for the score of a document; `None` if the model does not rank.
    pub fn rerank_input(&self, query: &str, document: &str) -> Option<Result<Vec<Input>, Refusal>> {
        let ranker = self.ranker.as_ref()?;
        let mut tensors = Tensors::new(self, Compat::OpenAi, 1);
        Some(match ranker {
            Ranker::Two { query: query_input, document: document_input } => tensors
                .prompt(query_input, query)
                .and_then(|()| tensors.prompt(document_input, document))
                .map(|()| tensors.into_inputs()),
            Ranker::Pair { input } => strings(&[query, document]).map(|data| {
                let rank = tensors.declared(input).map_or(1, |(_, rank)| rank);
                tensors.push(input, DataType::Bytes, shape(rank, 2), data);
                tensors.into_inputs()
            }),
        })
    }
}
