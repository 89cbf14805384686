//! An instance of a TorchScript model: it runs payloads on its own thread.

use std::sync::Arc;

use super::batch::run;
use super::plan::Plan;
use super::threads;
use crate::torch::{Module, Options, Shim};
use nereid_backend::{Instance, InstanceContext, rows};
use nereid_request::Status;
use nereid_scheduler::Payload;

/// It stays on the thread that made it: each thread that runs operations has threads of its own in the library.
pub struct TorchScriptInstance {
    context: InstanceContext,
    shim: &'static Shim,
    module: Arc<Module>,
    plan: Plan,
    options: Options,
}

impl TorchScriptInstance {
    pub fn new(
        context: InstanceContext,
        shim: &'static Shim,
        module: Arc<Module>,
        plan: Plan,
        options: Options,
    ) -> TorchScriptInstance {
        TorchScriptInstance { context, shim, module, plan, options }
    }
}

impl Instance for TorchScriptInstance {
    fn execute(&mut self, payload: &mut Payload) -> Result<(), Status> {
        threads::limit_inter_op(self.shim, self.context.model.worker_cpu_count);
        rows::execute(&self.context, payload, self.plan.max_batch_size, |batch| {
            run(&self.plan, &self.module, &self.options, batch, &self.context.model.pool)
        });
        Ok(())
    }
}
