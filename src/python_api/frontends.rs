//! Ports of a server in this process, which the package `tritonfrontend` opens.

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::Arc;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyInt, PyString};

use crate::c;
use crate::errors::{Failure, InvalidArgumentError, call, check, text};
use crate::process::outside_callbacks;
use crate::server::{ServerHandle, server_at};

/// A front end of the C interface. It holds its server.
#[pyclass(module = "tritonserver._c._native", frozen, weakref)]
pub struct Frontend {
    at: *mut c::Frontend,
    server: Arc<ServerHandle>,
}

// SAFETY: all functions of a front end may be called from any thread.
unsafe impl Send for Frontend {}
// SAFETY: all functions of a front end may be called by several threads at a time.
unsafe impl Sync for Frontend {}

impl Frontend {
    /// Makes a call without the interpreter's lock.
    fn run<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(*mut c::Frontend) -> Result<T, Failure> + Send,
    ) -> PyResult<T> {
        self.server.origin().check()?;
        Ok(py.detach(|| call(self.at))?)
    }
}

#[pymethods]
impl Frontend {
    /// A front end of the kind with this number, of the server at this address.
    #[new]
    fn new(kind: c_int, server: usize) -> PyResult<Frontend> {
        let Some(server) = server_at(server) else {
            let text = format!("no server of this process has the address {server:#x}");
            return Err(InvalidArgumentError::new_err(text));
        };
        server.origin().check()?;
        let mut at = null_mut();
        call!(NEREID_FrontendNew(&mut at, server.at(), kind))?;
        Ok(Frontend { at, server })
    }

    /// Sets an option for the next start.
    fn set(&self, py: Python<'_>, name: &str, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let key = text(name)?;
        if let Ok(value) = value.cast::<PyBool>() {
            let value = value.is_true();
            self.run(py, |at| call!(NEREID_FrontendSetBool(at, key.as_ptr(), value)))
        } else if let Ok(value) = value.cast::<PyInt>() {
            let too_large = |_| InvalidArgumentError::new_err(format!("{name} is out of range"));
            let value = value.extract::<i64>().map_err(too_large)?;
            self.run(py, |at| call!(NEREID_FrontendSetInt(at, key.as_ptr(), value)))
        } else if let Ok(value) = value.cast::<PyString>() {
            let value = text(&value.to_cow()?)?;
            self.run(py, |at| call!(NEREID_FrontendSetString(at, key.as_ptr(), value.as_ptr())))
        } else {
            let given = value.get_type().name()?.to_string();
            Err(PyTypeError::new_err(format!("option {name} must be a bool, an int or a str, not {given}")))
        }
    }

    /// Requires a header with a value for requests of a feature.
    fn restrict(&self, py: Python<'_>, feature: &str, key: &str, value: &str) -> PyResult<()> {
        let (feature, key, value) = (text(feature)?, text(key)?, text(value)?);
        self.run(py, |at| call!(NEREID_FrontendRestrict(at, feature.as_ptr(), key.as_ptr(), value.as_ptr())))
    }

    fn start(&self, py: Python<'_>) -> PyResult<()> {
        self.run(py, |at| call!(NEREID_FrontendStart(at)))
    }

    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        self.run(py, |at| call!(NEREID_FrontendStop(at)))
    }

    /// The port that is open.
    fn port(&self, py: Python<'_>) -> PyResult<u32> {
        self.run(py, |at| {
            let mut port = 0;
            call!(NEREID_FrontendPort(at, &mut port)).map(|()| port)
        })
    }
}

impl Drop for Frontend {
    fn drop(&mut self) {
        if !self.server.origin().is_here() {
            return;
        }
        // The server is held until the port is closed.
        let (frontend, server) = (c::Pointer::to(self.at), Arc::clone(&self.server));
        outside_callbacks(move || {
            let delete = || {
                // SAFETY: nothing else has the front end.
                if let Err(failure) = check(unsafe { c::NEREID_FrontendDelete(frontend.get()) }) {
                    eprintln!("tritonfrontend: a front end could not be deleted: {}", failure.message());
                }
            };
            // The log's function takes the interpreter's lock, which this thread may hold.
            if Python::try_attach(|py| py.detach(delete)).is_none() {
                delete();
            }
            drop(server);
        });
    }
}
