//! The stand-in for a backend of an ensemble, which has none: its scheduler executes it.

use std::sync::Arc;

use nereid_backend::{Backend, Instance, InstanceContext, Model, ModelContext};
use nereid_request::Status;

pub struct Composed;

impl Backend for Composed {
    fn name(&self) -> &str {
        ""
    }

    fn create_model(&self, _context: Arc<ModelContext>) -> Result<Arc<dyn Model>, Status> {
        Ok(Arc::new(Composed))
    }
}

impl Model for Composed {
    fn create_instance(self: Arc<Self>, context: InstanceContext) -> Result<Box<dyn Instance>, Status> {
        // Validation allows no instance groups.
        Err(Status::internal(format!("ensemble '{}' has no instances", context.model.name)))
    }
}
