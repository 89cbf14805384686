//! Custom batching: code of a model's author that decides which requests make a batch (contract/c_api.md section 5,
//! "Batch strategy library").

use nereid_request::Request;

/// Called by the batcher while it forms a batch, by one thread at a time, and never on a shard.
pub trait BatchStrategy: Send + Sync {
    /// Begins a new batch.
    fn begin(&self);

    /// Whether `request` goes into the current batch. False closes the batch without the request.
    fn includes(&self, request: &Request) -> bool;

    /// The current batch is cut, or given up.
    fn end(&self);

    /// Called once when the model is unloaded, after all other calls.
    fn close(&self);
}
