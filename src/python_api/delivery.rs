//! Responses on their way from the server's threads to the program: in a queue until somebody wants them, then returned
//! to a thread that waits, or set as the result of a future.
//!
//! The lock of the queue is never held together with the interpreter's: a server's thread pushes without the
//! interpreter, so that a program that waits in `next` costs no hand-over of the interpreter between threads.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::c;
use crate::errors::AlreadyExistsError;
use crate::process::in_callback;
use crate::responses::{InferenceResponse, ResponseHandle};

/// One call of the response callback.
pub struct Arrival {
    pub response: Option<ResponseHandle>,
    pub flags: u32,
}

impl Arrival {
    pub fn is_final(&self) -> bool {
        self.flags & c::RESPONSE_COMPLETE_FINAL != 0
    }

    /// `(response or None, flags)`.
    pub fn into_tuple(self, py: Python<'_>) -> PyResult<Bound<'_, PyTuple>> {
        let response = match self.response {
            Some(handle) => Bound::new(py, InferenceResponse(handle))?.into_any(),
            None => py.None().into_bound(py),
        };
        PyTuple::new(py, [response, self.flags.into_pyobject(py)?.into_any()])
    }
}

#[derive(Default)]
struct State {
    arrived: VecDeque<Arrival>,
    /// The future that gets the next response.
    future: Option<Py<PyAny>>,
    /// Whether a response is between queue and future. The next one waits, so that none overtakes another.
    is_handing_over: bool,
}

/// How long a thread waits before it looks for signals, such as that of Ctrl-C.
const SIGNALS_AFTER: Duration = Duration::from_millis(100);

#[derive(Default)]
pub struct Delivery {
    state: Mutex<State>,
    changed: Condvar,
}

impl Delivery {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Called by the server's threads.
    pub fn push(self: &Arc<Self>, arrival: Arrival) {
        self.state().arrived.push_back(arrival);
        self.changed.notify_one();
        self.hand_over();
    }

    /// Waits for a response without the interpreter's lock. None after the time, or if signals shall be handled.
    pub fn wait(&self, until: Option<Instant>) -> Option<Arrival> {
        let end = Instant::now() + SIGNALS_AFTER;
        let end = until.map_or(end, |until| until.min(end));
        let mut state = self.state();
        loop {
            if !state.is_handing_over
                && let Some(arrival) = state.arrived.pop_front()
            {
                return Some(arrival);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Registers the future for the next response.
    pub fn register(self: &Arc<Self>, py: Python<'_>, future: &Bound<'_, PyAny>) -> PyResult<()> {
        let waiting = self.state().future.as_ref().map(|waiting| waiting.clone_ref(py));
        if let Some(waiting) = waiting {
            // One that its program gave up is no hindrance.
            if !is_done(waiting.bind(py))? {
                return Err(AlreadyExistsError::new_err("cannot call GetNextResponse concurrently"));
            }
        }
        let before = self.state().future.replace(future.clone().unbind());
        drop(before);
        self.hand_over();
        Ok(())
    }

    /// Hands responses to the registered futures while there are both.
    fn hand_over(self: &Arc<Self>) {
        loop {
            let mut state = self.state();
            if state.is_handing_over || state.arrived.is_empty() {
                return;
            }
            let Some(future) = state.future.take() else { return };
            let Some(arrival) = state.arrived.pop_front() else { return };
            state.is_handing_over = true;
            drop(state);
            let outcome = in_callback(|| Python::try_attach(|py| self.settle(py, future, arrival)));
            // None while the interpreter ends: then nobody waits any more.
            if outcome.is_none_or(|later| later) {
                return;
            }
        }
    }

    /// Sets the result of a future, or has its event loop do so. Returns whether that happens later.
    fn settle(self: &Arc<Self>, py: Python<'_>, future: Py<PyAny>, arrival: Arrival) -> bool {
        let bound = future.bind(py);
        let of_loop = bound.getattr_opt(intern!(py, "get_loop")).ok().flatten();
        let Some(get_loop) = of_loop else {
            self.set_result(py, bound, arrival);
            return false;
        };
        let later = HandOver { delivery: Arc::clone(self), kept: Mutex::new(Some((future.clone_ref(py), arrival))) };
        let scheduled = Bound::new(py, later).and_then(|later| {
            let target = get_loop.call0()?;
            let outcome = target.call_method1(intern!(py, "call_soon_threadsafe"), (&later,));
            if outcome.is_err() {
                // The loop is closed: the response waits for whoever asks next.
                later.get().put_back();
            }
            outcome
        });
        scheduled.is_ok()
    }

    /// Sets the result; a response for a future that was given up goes back to the head of the queue.
    fn set_result(&self, py: Python<'_>, future: &Bound<'_, PyAny>, arrival: Arrival) {
        if is_done(future).unwrap_or(false) {
            return self.end_hand_over(Some(arrival));
        }
        let outcome = arrival.into_tuple(py).and_then(|value| future.call_method1(intern!(py, "set_result"), (value,)));
        if let Err(error) = outcome {
            error.write_unraisable(py, Some(future));
        }
        // Not before: a future that registers again in `set_result` would otherwise be settled inside that call, and so
        // on for each response that waits.
        self.end_hand_over(None);
    }

    fn end_hand_over(&self, back: Option<Arrival>) {
        let mut state = self.state();
        state.is_handing_over = false;
        if let Some(arrival) = back {
            state.arrived.push_front(arrival);
        }
        drop(state);
        self.changed.notify_one();
    }
}

fn is_done(future: &Bound<'_, PyAny>) -> PyResult<bool> {
    future.call_method0(intern!(future.py(), "done"))?.is_truthy()
}

/// What an event loop calls to set the result of one of its futures.
#[pyclass(frozen)]
struct HandOver {
    delivery: Arc<Delivery>,
    kept: Mutex<Option<(Py<PyAny>, Arrival)>>,
}

impl HandOver {
    fn take(&self) -> Option<(Py<PyAny>, Arrival)> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn put_back(&self) {
        if let Some((_, arrival)) = self.take() {
            self.delivery.end_hand_over(Some(arrival));
        }
    }
}

#[pymethods]
impl HandOver {
    fn __call__(&self, py: Python<'_>) {
        if let Some((future, arrival)) = self.take() {
            self.delivery.set_result(py, future.bind(py), arrival);
            self.delivery.hand_over();
        }
    }
}

impl Drop for HandOver {
    /// A loop that ends without calling it leaves the response to whoever asks next, or waits already.
    fn drop(&mut self) {
        self.put_back();
        self.delivery.hand_over();
    }
}
