//! Gates between a payload and its execution, where instances share limited resources (contract/schedulers.md section
//! 6).

use std::any::Any;
use std::sync::Arc;

use super::WorkerInfo;
use nereid_request::{Grant, Status};
use nereid_wire::inference::ModelInstanceGroup;

/// Grants the resources that instances of all models share.
pub trait Limiter: Send + Sync {
    /// Checks the instance groups of one more model version against the limits and the groups of all others, before any
    /// instance is made. Dropping the registration removes them again.
    fn register(&self, groups: &[ModelInstanceGroup]) -> Result<Registration, Status>;

    /// Replaces the groups of a registration. On an error nothing has changed.
    fn change(&self, registration: &Registration, groups: &[ModelInstanceGroup]) -> Result<(), Status>;

    /// Adds an instance of `model`; dropping its gate removes it again.
    fn admit(&self, model: &str, info: &WorkerInfo) -> Result<Arc<dyn Gate>, Status>;
}

/// The registered instance groups of a model version.
pub struct Registration {
    pub(super) number: u64,
    #[expect(dead_code, reason = "dropped for its effect")]
    pub(super) guard: Box<dyn Any + Send + Sync>,
}

/// One instance's access to its resources. A worker enters only when it has found something to execute.
pub trait Gate: Send + Sync {
    /// True: the instance has its resources, and keeps them until it leaves. False: it is queued, and its waker is
    /// called once it has them; until then others may take the work.
    fn enter(&self) -> bool;

    /// The execution has ended. The instance is about to enter again or to leave: until then no other instance gets its
    /// resources, so that it competes with the waiting ones.
    fn executed(&self);

    /// Gives back the resources, or the place in the queue, because there is nothing to execute.
    fn leave(&self);

    /// The grant for requests made on behalf of those that are executed now. Only between entering and leaving.
    fn grant(&self) -> Option<Grant> {
        None
    }
}
