//! The server as those inside the process reach it: applications that link it, and models that call models.
//!
//! It is there before the models, which may keep it, and it keeps nothing alive: a call that comes too early or too
//! late finds no server.

use std::sync::{Arc, Mutex, OnceLock, Weak};

use super::core::Core;
use super::embedded::Embedded;
use super::inproc_executor::InprocExecutor;
use crate::repository::Lifecycle;
use nereid_gpu::Gpus;
use nereid_memory::Pool;
use nereid_request::Status;

/// See the [module](self). `TRITONSERVER_Server` points to one.
#[derive(Default)]
pub struct Access {
    /// What answers are made of.
    pool: OnceLock<Pool>,
    /// Of requests from inside the process.
    executor: Arc<InprocExecutor>,
    gpus: OnceLock<Arc<Gpus>>,
    lifecycle: OnceLock<Weak<Lifecycle>>,
    core: OnceLock<Weak<Core>>,
    /// The server itself, where an application owns it.
    pub(super) embedded: Mutex<Option<Arc<Embedded>>>,
}

impl Access {
    pub(super) fn new() -> Arc<Access> {
        Arc::default()
    }

    /// Where requests from inside the process are at home.
    pub(super) fn executor(&self) -> &Arc<InprocExecutor> {
        &self.executor
    }

    /// What their answers are made of.
    pub(super) fn pool(&self) -> Result<&Pool, Status> {
        self.pool.get().ok_or_else(not_ready)
    }

    /// Whose memory they may bring and get; none before models can be found.
    pub(super) fn gpus(&self) -> Arc<Gpus> {
        self.gpus.get().cloned().unwrap_or_default()
    }

    /// From now on models can be found.
    pub(super) fn set_lifecycle(&self, lifecycle: &Arc<Lifecycle>, pool: &Pool, gpus: &Arc<Gpus>) {
        let _ = self.pool.set(pool.clone());
        let _ = self.gpus.set(Arc::clone(gpus));
        let _ = self.lifecycle.set(Arc::downgrade(lifecycle));
    }

    /// From now on the rest can.
    pub(super) fn set_core(&self, core: &Arc<Core>) {
        let _ = self.core.set(Arc::downgrade(core));
    }

    /// The models and their life; also while the models of the start load.
    pub(super) fn lifecycle(&self) -> Result<Arc<Lifecycle>, Status> {
        self.lifecycle.get().and_then(Weak::upgrade).ok_or_else(not_ready)
    }

    /// The whole server, once the models of the start are loaded.
    pub(super) fn core(&self) -> Result<Arc<Core>, Status> {
        self.core.get().and_then(Weak::upgrade).ok_or_else(not_ready)
    }
}

fn not_ready() -> Status {
    Status::unavailable("Server not ready")
}
