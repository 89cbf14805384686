//! Access to the server from inside the process: for applications that link it, and for models that call models.
//!
//! It exists before the models, which may keep it, and it keeps nothing alive: a call that comes too early or too late
//! finds no server.

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
    /// Memory for answers.
    pool: OnceLock<Pool>,
    /// Executes the requests from inside the process.
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

    /// The executor of requests from inside the process.
    pub(super) fn executor(&self) -> &Arc<InprocExecutor> {
        &self.executor
    }

    /// The memory pool for their answers.
    pub(super) fn pool(&self) -> Result<&Pool, Status> {
        self.pool.get().ok_or_else(not_ready)
    }

    /// The GPUs with memory that their tensors may lie in; none before models can be found.
    pub(super) fn gpus(&self) -> Arc<Gpus> {
        self.gpus.get().cloned().unwrap_or_default()
    }

    /// From now on models can be found.
    pub(super) fn set_lifecycle(&self, lifecycle: &Arc<Lifecycle>, pool: &Pool, gpus: &Arc<Gpus>) {
        let _ = self.pool.set(pool.clone());
        let _ = self.gpus.set(Arc::clone(gpus));
        let _ = self.lifecycle.set(Arc::downgrade(lifecycle));
    }

    /// From now on the whole server is available.
    pub(super) fn set_core(&self, core: &Arc<Core>) {
        let _ = self.core.set(Arc::downgrade(core));
    }

    /// The life cycle of the models; available while the start-up models load.
    pub(super) fn lifecycle(&self) -> Result<Arc<Lifecycle>, Status> {
        self.lifecycle.get().and_then(Weak::upgrade).ok_or_else(not_ready)
    }

    /// The whole server, available once the start-up models are loaded.
    pub(super) fn core(&self) -> Result<Arc<Core>, Status> {
        self.core.get().and_then(Weak::upgrade).ok_or_else(not_ready)
    }
}

fn not_ready() -> Status {
    Status::unavailable("Server not ready")
}
