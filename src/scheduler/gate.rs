//! What stands between a payload and its execution where instances share limited resources
//! (contract/schedulers.md section 6).

use std::any::Any;
use std::sync::Arc;

use super::WorkerInfo;
use nereid_request::{Grant, Status};
use nereid_wire::inference::ModelInstanceGroup;

/// Gives out what instances of all models share.
pub trait Limiter: Send + Sync {
    /// Holds the instance groups of one more model version against the limits and those of all others, before any
    /// instance is made. What comes back takes them away again when it is dropped.
    fn register(&self, groups: &[ModelInstanceGroup]) -> Result<Registration, Status>;

    /// Replaces the groups of a registration. On an error nothing has changed.
    fn change(&self, registration: &Registration, groups: &[ModelInstanceGroup]) -> Result<(), Status>;

    /// One more instance of `model`; dropping its gate takes it away again.
    fn admit(&self, model: &str, info: &WorkerInfo) -> Result<Arc<dyn Gate>, Status>;
}

/// The instance groups of a model version, as their limiter knows them.
pub struct Registration {
    pub(super) number: u64,
    #[expect(dead_code, reason = "its end is the news")]
    pub(super) guard: Box<dyn Any + Send + Sync>,
}

/// One instance's way to its resources. A worker asks when it has found something to execute, and not before.
pub trait Gate: Send + Sync {
    /// True: the instance has its resources, and keeps them until it leaves. False: it is in line, and its waker
    /// is called once it has them; until then others may take the work.
    fn enter(&self) -> bool;

    /// The execution has ended. The instance is about to ask again or to leave: until then nobody else gets what it
    /// has, so that it competes with those who wait.
    fn executed(&self);

    /// Gives the resources back, or the place in line: there is nothing to execute.
    fn leave(&self);

    /// For the requests that are executed now: what requests made on their behalf may use. Only behind the gate.
    fn grant(&self) -> Option<Grant> {
        None
    }
}
