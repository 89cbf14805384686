//! Models that control models: what code inside the server may request of the repository.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Status;

/// The load that a model is part of, for requests on the model's behalf: the load may be waiting for their end. All
/// clones are one.
#[derive(Debug, Clone, Default)]
pub struct LoadUnderWay(Arc<AtomicU64>);

/// No operation has this number.
const NONE: u64 = 0;

impl LoadUnderWay {
    /// An operation loads the model, or instances of it, until the returned value goes.
    pub fn begin(&self, operation: u64) -> impl Drop + use<> {
        struct End(LoadUnderWay);
        impl Drop for End {
            fn drop(&mut self) {
                self.0.0.store(NONE, Ordering::SeqCst);
            }
        }
        self.0.store(operation, Ordering::SeqCst);
        End(self.clone())
    }

    /// The number of the operation that loads the model now.
    pub fn operation(&self) -> Option<u64> {
        Some(self.0.load(Ordering::SeqCst)).filter(|operation| *operation != NONE)
    }
}

/// What stands in for what the repository has of a model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Replacement {
    /// The configuration as JSON; `None`: the model's own.
    pub config: Option<String>,
    /// Parameters' names, `file:<path>`, and the files' contents.
    pub files: Vec<(String, Vec<u8>)>,
}

/// Loads and unloads models as the API does for clients, with the same errors. Every call may block for as long as that
/// takes, and none may come from a shard. What waits for the end of the asker's own load is refused.
pub trait Control: Send + Sync {
    /// Returns when the model serves, or why it does not.
    fn load(&self, asker: &LoadUnderWay, model: &str, replacement: Replacement) -> Result<(), Status>;

    /// Returns when the model takes no more requests.
    fn unload(&self, asker: &LoadUnderWay, model: &str, with_dependents: bool) -> Result<(), Status>;

    /// Whether the version is there and its instances agree; `None`: the highest. An unknown model is not ready, which
    /// is no error.
    fn is_ready(&self, model: &str, version: Option<i64>) -> Result<bool, Status>;
}
