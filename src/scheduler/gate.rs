//! What stands between a payload and its execution where instances share limited resources (schedulers.md section 6).

use std::sync::Arc;

use crate::instance::Seat;
use crate::request::Status;

/// Gives out what instances of all models share.
pub trait Limiter: Send + Sync {
    /// One more instance of `model`; dropping its gate takes it away again.
    fn admit(&self, model: &str, seat: &Seat) -> Result<Arc<dyn Gate>, Status>;
}

/// One instance's way to its resources. A worker asks when it has found something to execute, and not before.
pub trait Gate: Send + Sync {
    /// True: the instance has its resources, and keeps them until it leaves. False: it is in line, and its seat's waker
    /// is called once it has them; until then others may take the work.
    fn enter(&self) -> bool;

    /// Gives the resources back, or the place in line: the execution has ended, or there is nothing to execute after
    /// all.
    fn leave(&self);
}
