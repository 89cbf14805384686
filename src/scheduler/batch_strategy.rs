//! Custom batching: code of a model's owner that says which requests make a batch (contract/c_api.md section 5, "Batch
//! strategy library").

use nereid_request::Request;

/// Asked by the batcher while it forms a batch, by one thread at a time, and never on a shard.
pub trait BatchStrategy: Send + Sync {
    /// A new batch is formed.
    fn begin(&self);

    /// Whether `request` goes into the batch that was begun. False closes it without the request.
    fn includes(&self, request: &Request) -> bool;

    /// The batch that was begun is cut, or given up.
    fn end(&self);

    /// The model goes: nothing is asked any more.
    fn close(&self);
}
