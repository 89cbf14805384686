//! What an execution lends to the requests that it makes itself.
//!
//! A model that calls another one holds its resources while it waits. Its requests carry a grant, requests made on
//! behalf of one of them carry a copy, and where such a request is handed in the grant becomes a lease: the called
//! model may use what its caller holds, so that neither waits for the other (contract/schedulers.md section 6).

use std::any::Any;
use std::sync::Arc;

use super::{Status, Times};

/// The holder of an execution's resources.
pub trait Lender: Send + Sync {
    /// The execution hands a request to `model` and waits for its end, which is when the lease is dropped. `None`:
    /// there is nothing that `model` itself would have to wait for. An error if the wait would never end.
    fn lend(&self, model: &str) -> Result<Option<ResourceLease>, Status>;
}

/// Carried by requests that are executed, and copied to those that are made on their behalf.
#[derive(Clone)]
pub struct Grant(Arc<dyn Lender>);

impl Grant {
    pub fn new(lender: Arc<dyn Lender>) -> Grant {
        Grant(lender)
    }

    /// See [`Lender::lend`].
    pub fn lend(&self, model: &str) -> Result<Option<ResourceLease>, Status> {
        self.0.lend(model)
    }
}

impl std::fmt::Debug for Grant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Grant")
    }
}

/// Lasts as long as the request that it was given for.
pub struct ResourceLease(#[expect(dead_code, reason = "its end is the news")] Box<dyn Any + Send + Sync>);

impl ResourceLease {
    pub fn new(guard: impl Any + Send + Sync) -> ResourceLease {
        ResourceLease(Box::new(guard))
    }
}

/// What ties a request to executions: to the one that it is part of, and to the one on whose behalf it was made.
#[derive(Debug, Default)]
pub struct ExecutionLinks {
    /// Of the execution that the request is part of, or, until a model has it, of the one on whose behalf it was made.
    pub grant: Option<Grant>,
    /// What that other execution lends until this request ends.
    pub lease: Option<ResourceLease>,
    /// Of the request on whose behalf this one was made.
    pub times: Option<Arc<Times>>,
}

impl std::fmt::Debug for ResourceLease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ResourceLease")
    }
}
