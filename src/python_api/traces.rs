//! `TRITONSERVER_InferenceTrace`: the events of one request, reported to functions of the program.
//!
//! Children of a trace call the same functions. The C interface does not say how many there are, so a number stands for
//! the functions, which end with the last trace that was seen; a later call finds none.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{c_char, c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::c;
use crate::errors::{InvalidArgumentError, call, check, owned};
use crate::numbers::{DataType, MemoryType, TraceActivity};
use crate::process::in_callback;

/// The functions of a trace and of its children.
struct Functions {
    activity: Py<PyAny>,
    tensor: Option<Py<PyAny>>,
    release: Py<PyAny>,
    userp: Py<PyAny>,
}

/// Functions, and the addresses of the traces that were seen with them and not released.
type Record = (Arc<Functions>, BTreeSet<usize>);

static RECORDS: Mutex<BTreeMap<u64, Record>> = Mutex::new(BTreeMap::new());

fn records() -> MutexGuard<'static, BTreeMap<u64, Record>> {
    RECORDS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn number_of(userp: *mut c_void) -> u64 {
    userp.addr() as u64
}

/// The functions, for a trace that is seen.
fn functions(userp: *mut c_void, trace: *mut c::Trace) -> Option<Arc<Functions>> {
    let mut records = records();
    let (functions, seen) = records.get_mut(&number_of(userp))?;
    seen.insert(trace.addr());
    Some(Arc::clone(functions))
}

/// Ends a trace: the functions go with the last one.
fn forget(number: u64, trace: *mut c::Trace) -> Option<Arc<Functions>> {
    let mut records = records();
    let (functions, seen) = records.get_mut(&number)?;
    seen.remove(&trace.addr());
    let is_last = seen.is_empty();
    let functions = Arc::clone(functions);
    if is_last {
        records.remove(&number);
    }
    Some(functions)
}

/// Calls a function with a trace of the server's, which is valid during the call.
fn report(trace: *mut c::Trace, function: impl FnOnce(Python<'_>, &Bound<'_, InferenceTrace>) -> PyResult<()>) {
    in_callback(|| {
        Python::try_attach(|py| {
            let borrowed = Bound::new(py, InferenceTrace::borrowing(trace));
            let outcome = borrowed.and_then(|borrowed| {
                let outcome = function(py, &borrowed);
                borrowed.get().set(null_mut());
                outcome
            });
            if let Err(error) = outcome {
                error.write_unraisable(py, None);
            }
        });
    });
}

unsafe extern "C" fn activity(trace: *mut c::Trace, activity: c_int, timestamp_ns: u64, userp: *mut c_void) {
    let Some(functions) = functions(userp, trace) else { return };
    report(trace, |py, borrowed| {
        let arguments = (borrowed, TraceActivity(activity), timestamp_ns, &functions.userp);
        functions.activity.bind(py).call1(arguments).map(drop)
    });
}

unsafe extern "C" fn tensor(
    trace: *mut c::Trace,
    activity: c_int,
    name: *const c_char,
    datatype: c_int,
    base: *const c_void,
    byte_size: usize,
    shape: *const i64,
    dim_count: u64,
    memory_type: c_int,
    memory_type_id: i64,
    userp: *mut c_void,
) {
    let Some(functions) = functions(userp, trace) else { return };
    // SAFETY: the server passes a C string.
    let name = unsafe { owned(name) };
    let dims = usize::try_from(dim_count).unwrap_or(0);
    let shape: &[i64] = if dims == 0 {
        &[]
    } else {
        // SAFETY: the server passes the address of so many numbers.
        unsafe { std::slice::from_raw_parts(shape, dims) }
    };
    report(trace, |py, borrowed| {
        let Some(function) = &functions.tensor else { return Ok(()) };
        let shape = PyTuple::new(py, shape)?;
        let place = (MemoryType(memory_type), memory_type_id, &functions.userp);
        let (activity, datatype) = (TraceActivity(activity), DataType(datatype));
        let (kind, device, userp) = place;
        let arguments = (borrowed, activity, name, datatype, base.addr(), byte_size, shape, kind, device, userp);
        function.bind(py).call1(arguments).map(drop)
    });
}

unsafe extern "C" fn release(trace: *mut c::Trace, userp: *mut c_void) {
    let functions = forget(number_of(userp), trace);
    in_callback(|| {
        let released = Python::try_attach(|py| {
            let Some(functions) = &functions else { return false };
            let outcome = Bound::new(py, InferenceTrace::owning(trace))
                .and_then(|trace| functions.release.bind(py).call1((trace, &functions.userp)));
            if let Err(error) = outcome {
                error.write_unraisable(py, None);
            }
            true
        });
        if released != Some(true) {
            // SAFETY: the server gave the trace back, and no object has taken it over.
            drop(check(unsafe { c::TRITONSERVER_InferenceTraceDelete(trace) }));
        }
    });
}

struct State {
    /// NULL when the trace is the server's, or no more.
    at: *mut c::Trace,
    is_owned: bool,
}

#[pyclass(name = "TRITONSERVER_InferenceTrace", module = "tritonserver._c.triton_bindings", frozen)]
pub struct InferenceTrace {
    state: Mutex<State>,
    id: u64,
    parent_id: u64,
    /// The number of the functions, for a trace that the program has made and not sent.
    functions: Option<u64>,
}

// SAFETY: the address is read and changed under a lock.
unsafe impl Send for InferenceTrace {}
// SAFETY: the address is read and changed under a lock.
unsafe impl Sync for InferenceTrace {}

impl InferenceTrace {
    fn of(at: *mut c::Trace, is_owned: bool, functions: Option<u64>) -> InferenceTrace {
        let (mut id, mut parent_id) = (0, 0);
        // Neither fails for a trace that is live.
        drop(call!(TRITONSERVER_InferenceTraceId(at, &mut id)));
        drop(call!(TRITONSERVER_InferenceTraceParentId(at, &mut parent_id)));
        InferenceTrace { state: Mutex::new(State { at, is_owned }), id, parent_id, functions }
    }

    fn borrowing(at: *mut c::Trace) -> InferenceTrace {
        InferenceTrace::of(at, false, None)
    }

    fn owning(at: *mut c::Trace) -> InferenceTrace {
        InferenceTrace::of(at, true, None)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, at: *mut c::Trace) {
        self.state().at = at;
    }

    fn live(&self) -> PyResult<*mut c::Trace> {
        let at = self.state().at;
        if at.is_null() {
            return Err(InvalidArgumentError::new_err("the trace belongs to the server, or was released"));
        }
        Ok(at)
    }

    /// Gives the trace to the server.
    pub fn lend(&self) -> PyResult<*mut c::Trace> {
        let at = self.live()?;
        let mut state = self.state();
        if !state.is_owned {
            return Err(InvalidArgumentError::new_err("the trace belongs to the server"));
        }
        state.at = null_mut();
        state.is_owned = false;
        Ok(at)
    }

    /// Takes the trace of a refused request back.
    pub fn take_back(&self, at: *mut c::Trace) {
        *self.state() = State { at, is_owned: true };
    }
}

/// The arguments of the constructor by name; without `tensor_activity_function` there are five.
const NAMES: [&str; 6] =
    ["level", "parent_id", "activity_function", "tensor_activity_function", "release_function", "trace_userp"];

#[pymethods]
impl InferenceTrace {
    #[new]
    #[pyo3(signature = (*args, **kwargs))]
    fn new(args: &Bound<'_, PyTuple>, kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<InferenceTrace> {
        let py = args.py();
        let given = args.len() + kwargs.map_or(0, |kwargs| kwargs.len());
        let is_short = given == 5 && kwargs.is_none_or(|kwargs| !kwargs.contains(NAMES[3]).unwrap_or(false));
        let names: Vec<&str> = NAMES.into_iter().filter(|name| !(is_short && *name == NAMES[3])).collect();
        let wrong = || PyTypeError::new_err(format!("the arguments of a trace are {}", names.join(", ")));
        if given != names.len() {
            return Err(wrong());
        }
        let mut values = Vec::new();
        for (index, name) in names.iter().enumerate() {
            let by_name = || kwargs.and_then(|kwargs| kwargs.get_item(*name).ok().flatten());
            let value = if index < args.len() { args.get_item(index).ok() } else { by_name() };
            values.push(value.ok_or_else(wrong)?);
        }
        let level: c_int = values[0].extract()?;
        let parent_id: u64 = values[1].extract()?;
        let mut rest = values.drain(2..).map(Bound::unbind);
        let mut next = || rest.next().unwrap_or_else(|| py.None());
        let functions = Functions {
            activity: next(),
            tensor: (!is_short).then(&mut next).filter(|function| !function.is_none(py)),
            release: next(),
            userp: next(),
        };
        static LAST: AtomicU64 = AtomicU64::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        let userp = std::ptr::without_provenance_mut::<c_void>(usize::try_from(number).unwrap_or(0));
        let mut at = null_mut();
        if functions.tensor.is_some() {
            call!(TRITONSERVER_InferenceTraceTensorNew(&mut at, level, parent_id, activity, tensor, release, userp))?;
        } else {
            call!(TRITONSERVER_InferenceTraceNew(&mut at, level, parent_id, activity, release, userp))?;
        }
        records().insert(number, (Arc::new(functions), BTreeSet::from([at.addr()])));
        Ok(InferenceTrace::of(at, true, Some(number)))
    }

    #[getter]
    fn id(&self) -> u64 {
        self.id
    }

    #[getter]
    fn parent_id(&self) -> u64 {
        self.parent_id
    }

    #[getter]
    fn model_name(&self) -> PyResult<String> {
        let mut name = null();
        call!(TRITONSERVER_InferenceTraceModelName(self.live()?, &mut name))?;
        // SAFETY: the call has set NULL or a C string that lives as long as the trace.
        Ok(unsafe { owned(name) })
    }

    #[getter]
    fn model_version(&self) -> PyResult<i64> {
        let mut version = 0;
        call!(TRITONSERVER_InferenceTraceModelVersion(self.live()?, &mut version))?;
        Ok(version)
    }

    #[getter]
    fn request_id(&self) -> PyResult<String> {
        let mut id = null();
        call!(TRITONSERVER_InferenceTraceRequestId(self.live()?, &mut id))?;
        // SAFETY: the call has set NULL or a C string that lives as long as the trace.
        Ok(unsafe { owned(id) })
    }
}

impl Drop for InferenceTrace {
    fn drop(&mut self) {
        let (at, is_owned) = {
            let state = self.state();
            (state.at, state.is_owned)
        };
        if !is_owned || at.is_null() {
            return;
        }
        if let Some(number) = self.functions {
            drop(forget(number, at));
        }
        // SAFETY: this object owns the C object, and nothing uses it afterwards.
        drop(check(unsafe { c::TRITONSERVER_InferenceTraceDelete(at) }));
    }
}
