//! Models that control models: what code inside the server may ask of the repository.

use super::Status;

/// What stands in for what the repository has of a model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Replacement {
    /// The configuration as JSON; `None`: the model's own.
    pub config: Option<String>,
    /// Parameters' names, `file:<path>`, and the files' contents.
    pub files: Vec<(String, Vec<u8>)>,
}

/// Loads and unloads models as the API does for clients, with the same errors. Every call may block for as long as that
/// takes, and none may come from a shard.
pub trait Control: Send + Sync {
    /// Returns when the model serves, or why it does not.
    fn load(&self, model: &str, replacement: Replacement) -> Result<(), Status>;

    /// Returns when the model takes no more requests.
    fn unload(&self, model: &str, with_dependents: bool) -> Result<(), Status>;

    /// Whether the version is there and its instances agree; `None`: the highest. A model that nobody knows is not
    /// ready, which is no error.
    fn is_ready(&self, model: &str, version: Option<i64>) -> Result<bool, Status>;
}
