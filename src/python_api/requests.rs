//! `TRITONSERVER_InferenceRequest`: a request that is filled, sent, and answered.
//!
//! While a request is with the server, two references hold it: one until its release callback, one until the response
//! that is the last. So a program may drop its own at any time.

use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::allocation::{self, BufferAttributes};
use crate::c;
use crate::delivery::{Arrival, Delivery};
use crate::errors::{Failure, call, check, owned, text};
use crate::numbers::{DataType, MemoryType};
use crate::process::in_callback;
use crate::responses::ResponseHandle;
use crate::server::{Server, ServerHandle};
use crate::traces::InferenceTrace;

/// A request of the C interface, and what must live as long as it.
pub struct RequestHandle {
    at: *mut c::Request,
    delivery: Arc<Delivery>,
    /// Whether the server has it: until its release callback, and until its last response.
    is_sent: AtomicBool,
    is_answered: AtomicBool,
    /// The owners of input data.
    inputs: Mutex<Vec<Py<PyAny>>>,
    server: Arc<ServerHandle>,
}

// SAFETY: the C object is changed by one thread at a time, which holds the interpreter's lock.
unsafe impl Send for RequestHandle {}
// SAFETY: what is called without the interpreter's lock may be called by several threads at a time.
unsafe impl Sync for RequestHandle {}

impl RequestHandle {
    fn changeable(&self) -> PyResult<*mut c::Request> {
        self.server.origin().check()?;
        if self.is_sent.load(Ordering::Acquire) || !self.is_answered.load(Ordering::Acquire) {
            return Err(PyRuntimeError::new_err("the request is with the server until its last response"));
        }
        Ok(self.at)
    }

    /// Whether the server has it, from now on.
    fn mark(&self, is_sent: bool) {
        self.is_sent.store(is_sent, Ordering::Release);
        self.is_answered.store(!is_sent, Ordering::Release);
    }

    fn readable(&self) -> PyResult<*mut c::Request> {
        self.server.origin().check()?;
        Ok(self.at)
    }
}

impl Drop for RequestHandle {
    fn drop(&mut self) {
        if self.server.origin().is_here() {
            // SAFETY: the server does not have it, as it would hold a reference, and nothing uses it afterwards.
            drop(check(unsafe { c::TRITONSERVER_InferenceRequestDelete(self.at) }));
        }
    }
}

unsafe extern "C" fn released(_request: *mut c::Request, _flags: u32, userp: *mut c_void) {
    // SAFETY: `send` made this reference for the one call of this function.
    let request = unsafe { Arc::from_raw(userp.cast::<RequestHandle>().cast_const()) };
    request.is_sent.store(false, Ordering::Release);
    in_callback(|| drop(request));
}

unsafe extern "C" fn answered(response: *mut c::Response, flags: u32, userp: *mut c_void) {
    let userp = userp.cast::<RequestHandle>().cast_const();
    // SAFETY: `send` made this reference, which lives until the call with the last response, at the end of this block.
    let request = unsafe { &*userp };
    let server = &request.server;
    let response = (!response.is_null()).then(|| ResponseHandle::owning(response, Arc::clone(server)));
    let arrival = Arrival { response, flags };
    let is_last = arrival.is_final();
    if is_last {
        request.is_answered.store(true, Ordering::Release);
    }
    // As soon as it is pushed, the program may drop the request.
    let delivery = Arc::clone(&request.delivery);
    delivery.push(arrival);
    if is_last {
        // SAFETY: the server makes no further call for this request, so this ends its reference.
        in_callback(|| drop(unsafe { Arc::from_raw(userp) }));
    }
}

/// Sends a request that is marked as sent; both references are taken back if the server refuses it.
pub fn send(server: &ServerHandle, request: &Arc<RequestHandle>, trace: *mut c::Trace) -> Result<(), Failure> {
    let allocator = allocation::shared().inspect_err(|_| request.mark(false))?;
    let references = [Arc::into_raw(Arc::clone(request)), Arc::into_raw(Arc::clone(request))];
    let [release, answer] = references.map(|reference| reference.cast_mut().cast::<c_void>());
    let outcome = call!(TRITONSERVER_InferenceRequestSetReleaseCallback(request.at, released, release))
        .and_then(|()| {
            call!(TRITONSERVER_InferenceRequestSetResponseCallback(request.at, allocator, null_mut(), answered, answer))
        })
        .and_then(|()| call!(TRITONSERVER_ServerInferAsync(server.at(), request.at, trace)));
    if outcome.is_err() {
        request.mark(false);
        for reference in references {
            // SAFETY: a refused request has no callbacks, so nobody else takes this reference.
            drop(unsafe { Arc::from_raw(reference) });
        }
    }
    outcome
}

#[pyclass(name = "TRITONSERVER_InferenceRequest", module = "tritonserver._c.triton_bindings", frozen, weakref)]
pub struct InferenceRequest(Arc<RequestHandle>);

impl InferenceRequest {
    /// Sends the request, with the trace if there is one.
    pub fn send(&self, py: Python<'_>, server: &ServerHandle, trace: Option<&InferenceTrace>) -> PyResult<()> {
        self.0.changeable()?;
        let lent = c::Pointer::to(trace.map_or(Ok(null_mut()), InferenceTrace::lend)?);
        // Still with the interpreter's lock, so that no other thread changes or sends it meanwhile.
        self.0.mark(true);
        let outcome = py.detach(|| send(server, &self.0, lent.get()));
        if let (Some(trace), Err(failure)) = (trace, &outcome)
            && failure.is_invalid_argument()
        {
            // The server takes over no trace of such a request.
            trace.take_back(lent.get());
        }
        Ok(outcome?)
    }

    fn hold(&self, owner: Option<Py<PyAny>>) {
        if let Some(owner) = owner {
            self.0.inputs.lock().unwrap_or_else(PoisonError::into_inner).push(owner);
        }
    }
}

/// Properties of a request that are read and written.
macro_rules! set {
    ($request:expr, $function:ident($($value:expr),*)) => {
        Ok(call!($function($request.0.changeable()?, $($value),*))?)
    };
}

macro_rules! get {
    ($request:expr, $function:ident, $initial:expr) => {{
        let mut value = $initial;
        call!($function($request.0.readable()?, &mut value))?;
        Ok::<_, PyErr>(value)
    }};
}

#[pymethods]
impl InferenceRequest {
    #[new]
    fn new(py: Python<'_>, server: &Server, model_name: &str, model_version: i64) -> PyResult<InferenceRequest> {
        let server = server.handle()?;
        let name = text(model_name)?;
        let made = py.detach(|| {
            let mut request = null_mut();
            call!(TRITONSERVER_InferenceRequestNew(&mut request, server.at(), name.as_ptr(), model_version))?;
            Ok::<_, Failure>(c::Pointer::to(request))
        })?;
        Ok(InferenceRequest(Arc::new(RequestHandle {
            at: made.get(),
            delivery: Arc::default(),
            is_sent: AtomicBool::new(false),
            is_answered: AtomicBool::new(true),
            inputs: Mutex::default(),
            server,
        })))
    }

    #[getter]
    fn id(&self) -> PyResult<String> {
        let id = get!(self, TRITONSERVER_InferenceRequestId, null())?;
        // SAFETY: a C string that lives until the request changes.
        Ok(unsafe { owned(id) })
    }

    #[setter]
    fn set_id(&self, id: &str) -> PyResult<()> {
        let id = text(id)?;
        set!(self, TRITONSERVER_InferenceRequestSetId(id.as_ptr()))
    }

    #[getter]
    fn flags(&self) -> PyResult<u32> {
        get!(self, TRITONSERVER_InferenceRequestFlags, 0)
    }

    #[setter]
    fn set_flags(&self, flags: u32) -> PyResult<()> {
        set!(self, TRITONSERVER_InferenceRequestSetFlags(flags))
    }

    #[getter]
    fn correlation_id(&self) -> PyResult<u64> {
        get!(self, TRITONSERVER_InferenceRequestCorrelationId, 0)
    }

    #[setter]
    fn set_correlation_id(&self, id: u64) -> PyResult<()> {
        set!(self, TRITONSERVER_InferenceRequestSetCorrelationId(id))
    }

    #[getter]
    fn correlation_id_string(&self) -> PyResult<String> {
        let id = get!(self, TRITONSERVER_InferenceRequestCorrelationIdString, null())?;
        // SAFETY: a C string that lives until the request changes.
        Ok(unsafe { owned(id) })
    }

    #[setter]
    fn set_correlation_id_string(&self, id: &str) -> PyResult<()> {
        let id = text(id)?;
        set!(self, TRITONSERVER_InferenceRequestSetCorrelationIdString(id.as_ptr()))
    }

    #[getter]
    fn priority(&self) -> PyResult<u32> {
        get!(self, TRITONSERVER_InferenceRequestPriority, 0)
    }

    #[setter]
    fn set_priority(&self, priority: u32) -> PyResult<()> {
        set!(self, TRITONSERVER_InferenceRequestSetPriority(priority))
    }

    #[getter]
    fn priority_uint64(&self) -> PyResult<u64> {
        get!(self, TRITONSERVER_InferenceRequestPriorityUInt64, 0)
    }

    #[setter]
    fn set_priority_uint64(&self, priority: u64) -> PyResult<()> {
        set!(self, TRITONSERVER_InferenceRequestSetPriorityUInt64(priority))
    }

    #[getter]
    fn timeout_microseconds(&self) -> PyResult<u64> {
        get!(self, TRITONSERVER_InferenceRequestTimeoutMicroseconds, 0)
    }

    #[setter]
    fn set_timeout_microseconds(&self, timeout_us: u64) -> PyResult<()> {
        set!(self, TRITONSERVER_InferenceRequestSetTimeoutMicroseconds(timeout_us))
    }

    fn add_input(&self, name: &str, datatype: DataType, shape: &Bound<'_, PyAny>) -> PyResult<()> {
        let name = text(name)?;
        let shape = shape.try_iter()?.map(|dim| dim?.extract()).collect::<PyResult<Vec<i64>>>()?;
        let dims = shape.len() as u64;
        set!(self, TRITONSERVER_InferenceRequestAddInput(name.as_ptr(), datatype.0, shape.as_ptr(), dims))
    }

    fn add_raw_input(&self, name: &str) -> PyResult<()> {
        let name = text(name)?;
        set!(self, TRITONSERVER_InferenceRequestAddRawInput(name.as_ptr()))
    }

    fn remove_input(&self, name: &str) -> PyResult<()> {
        let name = text(name)?;
        set!(self, TRITONSERVER_InferenceRequestRemoveInput(name.as_ptr()))
    }

    fn remove_all_inputs(&self) -> PyResult<()> {
        set!(self, TRITONSERVER_InferenceRequestRemoveAllInputs())
    }

    fn append_input_data(
        &self,
        name: &str,
        address: usize,
        byte_size: usize,
        memory_type: MemoryType,
        memory_type_id: i64,
    ) -> PyResult<()> {
        let (name, base) = (text(name)?, address as *const c_void);
        let (kind, device) = (memory_type.0, memory_type_id);
        set!(self, TRITONSERVER_InferenceRequestAppendInputData(name.as_ptr(), base, byte_size, kind, device))
    }

    fn append_input_data_with_host_policy(
        &self,
        name: &str,
        address: usize,
        byte_size: usize,
        memory_type: MemoryType,
        memory_type_id: i64,
        host_policy_name: &str,
    ) -> PyResult<()> {
        let (name, base, policy) = (text(name)?, address as *const c_void, text(host_policy_name)?);
        Ok(call!(TRITONSERVER_InferenceRequestAppendInputDataWithHostPolicy(
            self.0.changeable()?,
            name.as_ptr(),
            base,
            byte_size,
            memory_type.0,
            memory_type_id,
            policy.as_ptr(),
        ))?)
    }

    fn append_input_data_with_buffer_attributes(
        &self,
        name: &str,
        address: usize,
        buffer_attributes: &BufferAttributes,
    ) -> PyResult<()> {
        let (name, base) = (text(name)?, address as *const c_void);
        let attributes = buffer_attributes.at();
        set!(self, TRITONSERVER_InferenceRequestAppendInputDataWithBufferAttributes(name.as_ptr(), base, attributes))
    }

    /// Adds an input with its data in one buffer, and holds the buffer's owner as long as the server may read it.
    #[pyo3(signature = (name, datatype, shape, address, byte_size, memory_type, memory_type_id, owner))]
    #[allow(clippy::too_many_arguments)] // As many as an input has.
    fn _add_tensor(
        &self,
        name: &str,
        datatype: DataType,
        shape: &Bound<'_, PyAny>,
        address: usize,
        byte_size: usize,
        memory_type: MemoryType,
        memory_type_id: i64,
        owner: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        self.add_input(name, datatype, shape)?;
        self.hold(owner);
        self.append_input_data(name, address, byte_size, memory_type, memory_type_id)
    }

    fn remove_all_input_data(&self, name: &str) -> PyResult<()> {
        let name = text(name)?;
        set!(self, TRITONSERVER_InferenceRequestRemoveAllInputData(name.as_ptr()))
    }

    fn add_requested_output(&self, name: &str) -> PyResult<()> {
        let name = text(name)?;
        set!(self, TRITONSERVER_InferenceRequestAddRequestedOutput(name.as_ptr()))
    }

    fn remove_requested_output(&self, name: &str) -> PyResult<()> {
        let name = text(name)?;
        set!(self, TRITONSERVER_InferenceRequestRemoveRequestedOutput(name.as_ptr()))
    }

    fn remove_all_requested_outputs(&self) -> PyResult<()> {
        set!(self, TRITONSERVER_InferenceRequestRemoveAllRequestedOutputs())
    }

    fn set_string_parameter(&self, key: &str, value: &str) -> PyResult<()> {
        let (key, value) = (text(key)?, text(value)?);
        set!(self, TRITONSERVER_InferenceRequestSetStringParameter(key.as_ptr(), value.as_ptr()))
    }

    fn set_int_parameter(&self, key: &str, value: i64) -> PyResult<()> {
        let key = text(key)?;
        set!(self, TRITONSERVER_InferenceRequestSetIntParameter(key.as_ptr(), value))
    }

    fn set_bool_parameter(&self, key: &str, value: bool) -> PyResult<()> {
        let key = text(key)?;
        set!(self, TRITONSERVER_InferenceRequestSetBoolParameter(key.as_ptr(), value))
    }

    fn set_double_parameter(&self, key: &str, value: f64) -> PyResult<()> {
        let key = text(key)?;
        set!(self, TRITONSERVER_InferenceRequestSetDoubleParameter(key.as_ptr(), value))
    }

    /// Asks the server to give the request up. It may be called at any time, on any thread.
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        self.0.server.origin().check()?;
        Ok(py.detach(|| call!(TRITONSERVER_InferenceRequestCancel(self.0.at)))?)
    }

    /// Sets the next response as the result of the future: `(TRITONSERVER_InferenceResponse or None, flags)`.
    fn get_next_response(&self, py: Python<'_>, future: &Bound<'_, PyAny>) -> PyResult<()> {
        self.0.delivery.register(py, future)
    }

    /// Waits for the next response and returns it with its flags; None after `timeout` seconds.
    #[pyo3(signature = (timeout = None))]
    fn _next<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let until = timeout.map(Duration::try_from_secs_f64).and_then(Result::ok).map(|wait| Instant::now() + wait);
        loop {
            self.0.server.origin().check()?;
            if let Some(arrival) = py.detach(|| self.0.delivery.wait(until)) {
                return Ok(Some(arrival.into_tuple(py)?));
            }
            py.check_signals()?;
            if until.is_some_and(|until| until <= Instant::now()) {
                return Ok(None);
            }
        }
    }
}
