//! An instance of a TorchScript model: it runs payloads on its own thread.

use std::sync::Arc;

use super::batch::Runner;
use super::plan::Plan;
use super::threads;
use crate::torch::{Module, Options, Place, Shim};
use nereid_backend::{Instance, InstanceContext, rows};
use nereid_request::Status;
use nereid_scheduler::Payload;
use nereid_wire::inference::model_instance_group::Kind;

/// It stays on the thread that made it: each thread that runs operations has threads of its own in the library.
pub struct TorchScriptInstance {
    context: InstanceContext,
    shim: &'static Shim,
    module: Arc<Module>,
    /// Where it computes; `None`: on the host, or where the file says.
    place: Option<Place>,
    plan: Plan,
    options: Options,
}

impl TorchScriptInstance {
    pub fn new(
        context: InstanceContext,
        shim: &'static Shim,
        module: Arc<Module>,
        place: Option<Place>,
        plan: Plan,
        options: Options,
    ) -> TorchScriptInstance {
        TorchScriptInstance { context, shim, module, place, plan, options }
    }
}

impl Instance for TorchScriptInstance {
    fn answers_last(&self) -> bool {
        true
    }

    fn execute(&mut self, payload: &mut Payload) -> Result<(), Status> {
        threads::limit_inter_op(self.shim, self.context.model.worker_cpu_count);
        let uses_gpus = matches!(self.context.kind, Kind::Gpu | Kind::Model);
        let runner = Runner { module: &self.module, place: self.place.as_ref(), uses_gpus, options: &self.options };
        rows::execute(&self.context, payload, self.plan.max_batch_size, |batch| {
            let computed = runner.run(&self.plan, batch, &self.context.model.pool);
            if let (Err(_), Some(gpu)) = (&computed, &self.context.gpu) {
                // After an error that breaks the device every call fails: this one finds it out and records it.
                let _ = gpu.memory();
            }
            computed
        });
        Ok(())
    }
}
