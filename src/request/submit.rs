//! Requests from inside the process: models that call other models, and applications that link the server.
//!
//! A caller finds a model first, which makes a request whose answers go to the sink that the caller names; the request
//! is filled, checked, and handed in. Nothing here depends on C, so that backends written in Rust call models in the
//! same way.

use std::ffi::CStr;
use std::sync::Arc;

use super::{Request, ResponseFactory, Sink, Status};
use nereid_gpu::Gpus;
use nereid_model_config::ModelSpec;

/// Finds models for requests from inside the process.
pub trait Submit: Send + Sync {
    /// The version of a model that a request means; a negative one leaves the choice to the server. It may be called
    /// while models still load.
    fn find(&self, model: &[u8], version: i64) -> Result<Arc<dyn Callee>, Status>;
}

/// A model version that takes requests from inside the process. Its holder keeps it from being unloaded.
pub trait Callee: Send + Sync {
    fn name(&self) -> &CStr;

    fn version(&self) -> i64;

    fn spec(&self) -> &ModelSpec;

    /// The label of a class, where the output has a file of labels and the class a line in it.
    fn label(&self, output: &[u8], class: usize) -> Option<&[u8]>;

    /// The devices of the server, if it has a driver for any.
    fn gpus(&self) -> Option<&Gpus> {
        None
    }

    /// A request to this model. Its answers go to `answers`, under the key 0, on the threads that produce them but
    /// never on a shard.
    fn request(&self, answers: Arc<dyn Sink>) -> (Box<Request>, Arc<dyn Call>);

    /// Whether the model would take the request; what passes is completed.
    fn check(&self, request: &mut Request) -> Result<(), Status>;
}

/// One request to a model, from its making to its end.
pub trait Call: Send + Sync {
    /// Hands the checked request in. On refusal it comes back unanswered. Answers may come before this returns.
    fn submit(&self, request: Box<Request>) -> Result<(), (Status, Box<Request>)>;

    /// The caller does not wait for its answers any more. The holder of the request may check that, and need not.
    fn cancel(&self);

    fn is_cancelled(&self) -> bool;

    /// A producer of responses beside those of the request's holder; those of a request that is over, or not handed in,
    /// are dropped.
    fn responses(&self) -> ResponseFactory {
        ResponseFactory::discarding()
    }

    /// Runs `job`, which ends in code that is not the server's: here if that is fine and this thread may wait, else at
    /// home.
    fn run_foreign(&self, job: Box<dyn FnOnce() + Send>, is_fine_here: bool);
}
