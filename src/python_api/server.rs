//! `TRITONSERVER_Server`: a server in this process.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::c;
use crate::errors::{Failure, call, check, text};
use crate::messages::{Message, Metrics};
use crate::options::ServerOptions;
use crate::parameters::{Parameter, addresses};
use crate::process::{Origin, outside_callbacks};
use crate::requests::InferenceRequest;
use crate::traces::InferenceTrace;

/// A server of the C interface. Requests, responses and the program hold it; the last one ends it.
pub struct ServerHandle {
    at: *mut c::Server,
    origin: Origin,
}

// SAFETY: all functions of a server may be called from any thread.
unsafe impl Send for ServerHandle {}
// SAFETY: all functions of a server may be called by several threads at a time.
unsafe impl Sync for ServerHandle {}

impl ServerHandle {
    pub fn at(&self) -> *mut c::Server {
        self.at
    }

    pub fn origin(&self) -> Origin {
        self.origin
    }
}

/// The servers of this process by their addresses: an address alone does not say whether it is one.
static SERVERS: Mutex<BTreeMap<usize, Weak<ServerHandle>>> = Mutex::new(BTreeMap::new());

fn servers() -> MutexGuard<'static, BTreeMap<usize, Weak<ServerHandle>>> {
    SERVERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The server of this process that has the address.
pub fn server_at(address: usize) -> Option<Arc<ServerHandle>> {
    servers().get(&address)?.upgrade()
}

impl Drop for ServerHandle {
    fn drop(&mut self) {
        if !self.origin.is_here() {
            return;
        }
        // Another server may get the address as soon as this one is deleted.
        servers().remove(&self.at.addr());
        let server = c::Pointer::to(self.at);
        outside_callbacks(move || {
            let delete = || {
                // SAFETY: nothing else holds the server, and what came from it is gone.
                if let Err(failure) = check(unsafe { c::TRITONSERVER_ServerDelete(server.get()) }) {
                    eprintln!("tritonserver: a server could not be deleted: {}", failure.message());
                }
            };
            // Callbacks of the requests that it waits for take the interpreter's lock, which this thread may hold.
            // While the interpreter ends, they take none.
            if Python::try_attach(|py| py.detach(delete)).is_none() {
                delete();
            }
        });
    }
}

#[pyclass(name = "TRITONSERVER_Server", module = "tritonserver._c.triton_bindings", frozen, weakref)]
pub struct Server(Arc<ServerHandle>);

impl Server {
    pub fn handle(&self) -> PyResult<Arc<ServerHandle>> {
        self.0.origin.check()?;
        Ok(Arc::clone(&self.0))
    }

    /// Makes a call without the interpreter's lock.
    fn run<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(*mut c::Server) -> Result<T, Failure> + Send,
    ) -> PyResult<T> {
        self.0.origin.check()?;
        Ok(py.detach(|| call(self.0.at))?)
    }

    /// Makes a call that returns a JSON text.
    fn message(
        &self,
        py: Python<'_>,
        call: impl FnOnce(*mut c::Server, &mut *mut c::Message) -> Result<(), Failure> + Send,
    ) -> PyResult<Message> {
        self.run(py, |server| {
            let mut message = null_mut();
            call(server, &mut message)?;
            Ok(Message::owning(message))
        })
    }

    /// Makes a call for a model that returns flags.
    fn flags(
        &self,
        py: Python<'_>,
        name: &str,
        call: impl FnOnce(*mut c::Server, &CString, &mut u32) -> Result<(), Failure> + Send,
    ) -> PyResult<(u32, usize)> {
        let name = text(name)?;
        self.run(py, |server| {
            let mut flags = 0;
            call(server, &name, &mut flags)?;
            Ok((flags, 0))
        })
    }
}

#[pymethods]
impl Server {
    /// Starts a server, and returns when the models of its start are loaded.
    #[new]
    fn new(py: Python<'_>, options: &ServerOptions) -> PyResult<Server> {
        options.install_log_function(py);
        let options = c::Pointer::to(options.at());
        let server = py.detach(|| {
            let mut server = null_mut();
            call!(TRITONSERVER_ServerNew(&mut server, options.get()))?;
            Ok::<_, Failure>(ServerHandle { at: server, origin: Origin::here() })
        })?;
        let server = Arc::new(server);
        servers().insert(server.at.addr(), Arc::downgrade(&server));
        Ok(Server(server))
    }

    /// The address of the C object.
    fn _ptr(&self) -> usize {
        self.0.at.addr()
    }

    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        self.run(py, |server| call!(TRITONSERVER_ServerStop(server)))
    }

    fn register_model_repository(
        &self,
        py: Python<'_>,
        repository_path: &str,
        name_mapping: Vec<PyRef<'_, Parameter>>,
    ) -> PyResult<()> {
        let path = text(repository_path)?;
        let mut mapping = addresses(&name_mapping);
        let count = u32::try_from(mapping.len()).map_err(|_| PyRuntimeError::new_err("too many names"))?;
        let mapping = c::Pointer::to(mapping.as_mut_ptr());
        self.run(py, |server| {
            call!(TRITONSERVER_ServerRegisterModelRepository(server, path.as_ptr(), mapping.get(), count))
        })
    }

    fn unregister_model_repository(&self, py: Python<'_>, repository_path: &str) -> PyResult<()> {
        let path = text(repository_path)?;
        self.run(py, |server| call!(TRITONSERVER_ServerUnregisterModelRepository(server, path.as_ptr())))
    }

    fn poll_model_repository(&self, py: Python<'_>) -> PyResult<()> {
        self.run(py, |server| call!(TRITONSERVER_ServerPollModelRepository(server)))
    }

    fn is_live(&self, py: Python<'_>) -> PyResult<bool> {
        self.run(py, |server| {
            let mut is_live = false;
            call!(TRITONSERVER_ServerIsLive(server, &mut is_live)).map(|()| is_live)
        })
    }

    fn is_ready(&self, py: Python<'_>) -> PyResult<bool> {
        self.run(py, |server| {
            let mut is_ready = false;
            call!(TRITONSERVER_ServerIsReady(server, &mut is_ready)).map(|()| is_ready)
        })
    }

    fn model_is_ready(&self, py: Python<'_>, model_name: &str, model_version: i64) -> PyResult<bool> {
        let name = text(model_name)?;
        self.run(py, |server| {
            let mut is_ready = false;
            call!(TRITONSERVER_ServerModelIsReady(server, name.as_ptr(), model_version, &mut is_ready))
                .map(|()| is_ready)
        })
    }

    fn model_batch_properties(&self, py: Python<'_>, model_name: &str, model_version: i64) -> PyResult<(u32, usize)> {
        self.flags(py, model_name, |server, name, flags| {
            call!(TRITONSERVER_ServerModelBatchProperties(server, name.as_ptr(), model_version, flags, null_mut()))
        })
    }

    fn model_transaction_properties(
        &self,
        py: Python<'_>,
        model_name: &str,
        model_version: i64,
    ) -> PyResult<(u32, usize)> {
        self.flags(py, model_name, |server, name, flags| {
            call!(TRITONSERVER_ServerModelTransactionProperties(
                server,
                name.as_ptr(),
                model_version,
                flags,
                null_mut()
            ))
        })
    }

    fn metadata(&self, py: Python<'_>) -> PyResult<Message> {
        self.message(py, |server, message| call!(TRITONSERVER_ServerMetadata(server, message)))
    }

    fn model_metadata(&self, py: Python<'_>, model_name: &str, model_version: i64) -> PyResult<Message> {
        let name = text(model_name)?;
        self.message(py, |server, message| {
            call!(TRITONSERVER_ServerModelMetadata(server, name.as_ptr(), model_version, message))
        })
    }

    fn model_statistics(&self, py: Python<'_>, model_name: &str, model_version: i64) -> PyResult<Message> {
        let name = text(model_name)?;
        self.message(py, |server, message| {
            call!(TRITONSERVER_ServerModelStatistics(server, name.as_ptr(), model_version, message))
        })
    }

    fn model_config(
        &self,
        py: Python<'_>,
        model_name: &str,
        model_version: i64,
        config_version: u32,
    ) -> PyResult<Message> {
        let name = text(model_name)?;
        self.message(py, |server, message| {
            call!(TRITONSERVER_ServerModelConfig(server, name.as_ptr(), model_version, config_version, message))
        })
    }

    fn model_index(&self, py: Python<'_>, flags: u32) -> PyResult<Message> {
        self.message(py, |server, message| call!(TRITONSERVER_ServerModelIndex(server, flags, message)))
    }

    fn load_model(&self, py: Python<'_>, model_name: &str) -> PyResult<()> {
        let name = text(model_name)?;
        self.run(py, |server| call!(TRITONSERVER_ServerLoadModel(server, name.as_ptr())))
    }

    fn load_model_with_parameters(
        &self,
        py: Python<'_>,
        model_name: &str,
        parameters: Vec<PyRef<'_, Parameter>>,
    ) -> PyResult<()> {
        let name = text(model_name)?;
        let mut given = addresses(&parameters);
        let count = given.len() as u64;
        let given = c::Pointer::to(given.as_mut_ptr());
        self.run(py, |server| {
            call!(TRITONSERVER_ServerLoadModelWithParameters(server, name.as_ptr(), given.get(), count))
        })
    }

    fn unload_model(&self, py: Python<'_>, model_name: &str) -> PyResult<()> {
        let name = text(model_name)?;
        self.run(py, |server| call!(TRITONSERVER_ServerUnloadModel(server, name.as_ptr())))
    }

    fn unload_model_and_dependents(&self, py: Python<'_>, model_name: &str) -> PyResult<()> {
        let name = text(model_name)?;
        self.run(py, |server| call!(TRITONSERVER_ServerUnloadModelAndDependents(server, name.as_ptr())))
    }

    fn metrics(&self, py: Python<'_>) -> PyResult<Metrics> {
        self.run(py, |server| {
            let mut metrics = null_mut();
            call!(TRITONSERVER_ServerMetrics(server, &mut metrics))?;
            Ok(Metrics::owning(metrics))
        })
    }

    #[pyo3(signature = (request, trace = None))]
    fn infer_async(
        &self,
        py: Python<'_>,
        request: &InferenceRequest,
        trace: Option<PyRef<'_, InferenceTrace>>,
    ) -> PyResult<()> {
        self.0.origin.check()?;
        request.send(py, &self.0, trace.as_deref())
    }
}
