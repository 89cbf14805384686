//! A server inside an application that links the library (contract/c_api.md section 4, "Server"), and the operations
//! that code inside any server's process may call.
//!
//! An application owns its server through the [`Access`] that it was given: nothing runs before it, and nothing is left
//! after it. Backends of a program's server get the same type of value, which then owns nothing: they may query and
//! load models, but not end the server.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::access::Access;
use super::control::{ControlThread, RepositoryPoller, Upkeep};
use super::core::Core;
use super::options::{ModelControl, Options};
use super::{Failure, Libraries, drain};
use crate::api::documents;
use crate::repository::{Lifecycle, ModelMap};
use nereid_observe::log::LogGuard;
use nereid_observe::metrics::PageFormat;
use nereid_request::Status;
use nereid_scheduler::{Checks, ServedModel, Verdict, wait_for_all};

pub use crate::repository::{Parameter as LoadParameter, ParameterValue as LoadValue};

/// A server that an application owns.
pub struct Embedded {
    core: Arc<Core>,
    exit_timeout_secs: AtomicU32,
    running: Mutex<Option<Running>>,
    /// Dropped last.
    _log: LogGuard,
}

/// The threads beside the models, until the server stops.
struct Running {
    poller: Option<RepositoryPoller>,
    /// Trims memory that requests no longer need.
    housekeeping: ControlThread,
}

impl From<Failure> for Status {
    fn from(failure: Failure) -> Status {
        match failure {
            Failure::Creating(status) | Failure::Stop(status) | Failure::Port { status, .. } => status,
            Failure::Start(text) => Status::internal(text),
            Failure::Limit(error) => Status::internal(error.to_string()),
        }
    }
}

impl Access {
    /// Starts a server for an application: loads the start-up models, and returns when all have settled.
    pub fn embed(options: &Options, libraries: &Libraries) -> Result<Arc<Access>, Status> {
        let access = Access::new();
        let core = Core::start_embedded(options, libraries, Arc::clone(&access))?;
        let embedded = Embedded::start(core)?;
        *access.embedded.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(embedded));
        Ok(access)
    }

    pub(super) fn embedded(&self) -> Result<Arc<Embedded>, Status> {
        let embedded = self.embedded.lock().unwrap_or_else(PoisonError::into_inner).clone();
        embedded.ok_or_else(|| Status::unsupported("this server belongs to its own program, which alone may end it"))
    }

    /// Refuses changes, finishes the accepted requests, and unloads the models; all of it within the exit timeout.
    /// Later calls have no effect.
    pub fn stop(&self) -> Result<(), Status> {
        self.embedded()?.stop()
    }

    /// Stops the server if it still runs, and drops it. After a failure it is still there, stopped.
    pub fn end(&self) -> Result<(), Status> {
        self.embedded()?.stop()?;
        let embedded = self.embedded.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(embedded);
        Ok(())
    }

    /// For the next stop.
    pub fn set_exit_timeout(&self, secs: u32) -> Result<(), Status> {
        self.embedded()?.exit_timeout_secs.store(secs, Ordering::Relaxed);
        Ok(())
    }

    /// False before the start-up models have settled; an error while the server ends.
    pub fn is_live(&self) -> Result<bool, Status> {
        match (self.lifecycle(), self.core()) {
            (Ok(_), Err(_)) => Ok(false),
            (_, core) => core?.facts.is_live(),
        }
    }

    /// Live, and with strict readiness complete. Instances are queried too.
    pub fn is_ready(&self) -> Result<bool, Status> {
        let (is_ready, checks) = match (self.lifecycle(), self.core()) {
            (Ok(_), Err(_)) => return Ok(false),
            (_, core) => {
                let core = core?;
                let models = core.lifecycle.map();
                (core.facts.is_ready(&models)?, core.facts.checks(&models))
            }
        };
        // Instances may take long to answer, and no lock is held meanwhile.
        Ok(is_ready && agreed(&checks, true)?)
    }

    /// The version is registered and ready, and its instances agree. While the server ends, a version that is still
    /// registered is an error; the lookup comes first.
    pub fn is_model_ready(&self, name: &str, version: Option<i64>) -> Result<bool, Status> {
        let lifecycle = self.lifecycle()?;
        let map = lifecycle.map();
        let Some(model) = map.lookup_ready(name.as_bytes(), version)? else { return Ok(false) };
        if lifecycle.is_stopping() {
            return Err(Status::unavailable("Server not ready"));
        }
        agreed(&[Arc::clone(&model.checks)], false)
    }

    /// The current models, unless the server ends.
    fn models(&self) -> Result<Arc<ModelMap>, Status> {
        let lifecycle = self.lifecycle()?;
        if lifecycle.is_stopping() {
            return Err(Status::unavailable("Server not ready"));
        }
        Ok(lifecycle.map())
    }

    /// A model version that is ready; `None`: the highest.
    pub fn model(&self, name: &str, version: Option<i64>) -> Result<Arc<ServedModel>, Status> {
        self.models()?.lookup(name.as_bytes(), version).cloned()
    }

    /// The document of `/v2`, also while the server ends.
    pub fn metadata(&self) -> Result<String, Status> {
        let core = self.core()?;
        Ok(documents::server_metadata(&core.options.server_id, &core.pool))
    }

    /// The document of `/v2/models/<name>`.
    pub fn model_metadata(&self, name: &str, version: Option<i64>) -> Result<String, Status> {
        documents::model_metadata(&*self.models()?, name, version, &self.core()?.pool)
    }

    /// The document of `/v2/models/<name>/config`.
    pub fn model_config(&self, name: &str, version: Option<i64>, config_version: u32) -> Result<String, Status> {
        documents::model_config(&*self.models()?, name, version, config_version)
    }

    /// The document of `/v2/models/<name>/stats`; without a name that of all models.
    pub fn model_statistics(&self, name: &str, version: Option<i64>) -> Result<String, Status> {
        documents::model_statistics(&*self.models()?, name, version, &self.core()?.pool)
    }

    /// The document of `/v2/repository/index`.
    pub fn index(&self, only_ready: bool) -> Result<String, Status> {
        let pool = self.core()?.pool.clone();
        self.change(|lifecycle| Ok(documents::index(&lifecycle.index(only_ready)?, &pool)))
    }

    /// The metrics page; empty where there are no metrics.
    pub fn render_metrics(&self) -> Result<String, Status> {
        let core = self.core()?;
        Ok(if core.options.metrics.allowed { core.render_metrics(PageFormat::Text).concat() } else { String::new() })
    }

    pub fn load(&self, name: &str, parameters: Vec<LoadParameter>) -> Result<(), Status> {
        self.change(|lifecycle| lifecycle.load(name, parameters))
    }

    pub fn unload(&self, name: &str, unload_dependents: bool) -> Result<(), Status> {
        self.change(|lifecycle| lifecycle.unload(name, unload_dependents))
    }

    /// `mapping`: directories of the repository, and the names under which they are served.
    pub fn register_repository(&self, location: &str, mapping: &[(String, String)]) -> Result<(), Status> {
        self.change(|lifecycle| lifecycle.register_repository(location, mapping))
    }

    pub fn unregister_repository(&self, location: &str) -> Result<(), Status> {
        self.change(|lifecycle| lifecycle.unregister_repository(location))
    }

    /// Polls for added, changed and removed models; returns when all of them have settled.
    pub fn poll(&self) -> Result<(), Status> {
        let core = self.core()?;
        if !matches!(core.options.model_control, ModelControl::Poll { .. }) {
            return Err(Status::unavailable("polling is disabled"));
        }
        self.change(|lifecycle| {
            lifecycle.poll();
            Ok(())
        })
    }

    /// Runs a change that the server's end waits for.
    fn change<T>(&self, change: impl FnOnce(&Arc<Lifecycle>) -> Result<T, Status>) -> Result<T, Status> {
        self.lifecycle()?.run(change)
    }
}

impl Embedded {
    pub(super) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// The exit timeout of the next stop.
    pub(super) fn exit_timeout_secs(&self) -> u32 {
        self.exit_timeout_secs.load(Ordering::Relaxed)
    }

    fn start(core: Arc<Core>) -> Result<Embedded, Status> {
        let cannot = |error| {
            drain::unload(&core.lifecycle, core.options.exit_timeout_secs);
            Status::internal(format!("cannot start a thread: {error}"))
        };
        let upkeep = Upkeep { pool: core.pool.clone(), owns_heap: false };
        let housekeeping = ControlThread::start("memory", Some(upkeep)).map_err(cannot)?;
        let poller = match core.options.model_control {
            ModelControl::Poll { period_secs } if !core.has_failed => {
                Some(RepositoryPoller::start(&core.lifecycle, period_secs))
            }
            _ => None,
        };
        let poller = poller.transpose().map_err(cannot)?;
        core.facts.set_state(core.state_after_start());
        let exit_timeout_secs = AtomicU32::new(core.options.exit_timeout_secs);
        let running = Mutex::new(Some(Running { poller, housekeeping }));
        Ok(Embedded { core, exit_timeout_secs, running, _log: LogGuard::new() })
    }

    fn stop(&self) -> Result<(), Status> {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(Running { poller, housekeeping }) = running else { return Ok(()) };
        let core = &self.core;
        let budget_secs = self.exit_timeout_secs();
        let outcome = drain::run_without_ports(budget_secs, &core.facts, &core.lifecycle);
        housekeeping.join();
        // After a failure a load may be under way; the thread ends by itself after it.
        if let (Ok(()), Some(poller)) = (&outcome, poller) {
            poller.join();
        }
        core.finish_records();
        outcome
    }
}

/// Whether the instances of these versions agree. Waits for their answers.
pub(super) fn agreed(checks: &[Arc<Checks>], is_for_server: bool) -> Result<bool, Status> {
    match wait_for_all(checks, is_for_server) {
        Verdict::Ready => Ok(true),
        Verdict::NotReady(_) => Ok(false),
        Verdict::Unknown(status) => Err(status),
    }
}
