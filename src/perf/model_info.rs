//! The model that is measured, as its server describes it.

/// Metadata and configuration in the terms that requests are made of.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ModelInfo {
    pub server: String,
    pub server_version: String,
    /// The program itself, as its metrics name it; empty where they do not.
    pub server_build: String,
    pub model: String,
    /// The one that the server chose, if the plan names none.
    pub version: String,
    pub platform: String,
    /// 0: shapes have no batch dimension.
    pub max_batch_size: u64,
    pub decoupled: bool,
    /// The model is scheduled by sequences.
    pub sequences: bool,
    pub response_cache: bool,
    pub inputs: Vec<TensorFacts>,
    pub outputs: Vec<TensorFacts>,
    /// Names of the models of an ensemble's steps.
    pub composing_models: Vec<String>,
}

impl ModelInfo {
    /// Of a server that describes no models.
    pub fn named(model: &str) -> ModelInfo {
        ModelInfo { model: model.to_owned(), ..ModelInfo::default() }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TensorFacts {
    pub name: String,
    pub datatype: String,
    /// As in metadata: -1 where any size will do, the batch dimension first if there is one.
    pub shape: Vec<i64>,
    pub optional: bool,
    /// A tensor of shapes has the batch dimension nowhere.
    pub is_shape_tensor: bool,
}
