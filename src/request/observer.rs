//! Observers of a request: they are called at the points that it passes, with the time of each.
//!
//! Most requests have no observer, and their points call nothing. The points are those of contract/metrics.md section
//! 3; what becomes of them, an entry of a trace or a share of a sum, is the observer's business.

use std::any::Any;
use std::ffi::CStr;
use std::ops::Deref;
use std::sync::Arc;

use super::{DataType, Request, Text};
use nereid_clock::now_ns;
use nereid_gpu::DeviceSlice;
use nereid_memory::Slice;

/// A point that a request passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// It was put into a scheduler. A later one replaces an earlier one unless the request was executed in between.
    QueueStart,
    /// A worker has it, in a payload that is about to be executed.
    Taken,
    ComputeStart,
    ComputeInputEnd,
    ComputeOutputStart,
    ComputeEnd,
    /// Its model lets go of it.
    RequestEnd,
}

/// Where a tensor was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeenAt {
    QueueInput,
    BackendOutput,
}

/// A tensor that passes by.
#[derive(Debug, Clone, Copy)]
pub struct SeenTensor<'a> {
    pub name: &'a Text,
    pub datatype: DataType,
    pub shape: &'a [i64],
    pub data: &'a [Slice],
    /// The elements, where they lie on a device: there are none on the host then.
    pub on_device: Option<&'a DeviceSlice>,
}

/// What C programs may read of a trace (contract/c_api.md, "InferenceTrace").
pub trait TraceFacts {
    fn id(&self) -> u64;
    /// 0: it has none.
    fn parent_id(&self) -> u64;
    fn model_name(&self) -> &CStr;
    fn model_version(&self) -> i64;
    fn request_id(&self) -> &CStr;
    /// Context for traces that others make, as JSON; empty: there is none.
    fn context(&self) -> &CStr;
}

/// Called by any thread that has the request; must not block.
pub trait Observer: Send + Sync {
    /// The request, now one of `model`, is accepted.
    fn begins(&self, model: &str, version: i64, id: &Text, at_ns: u64);

    /// The id of the model's state that the request enters, right before it begins; called only if
    /// [`shows_generations`](Observer::shows_generations) is true.
    fn generation(&self, _id: Arc<str>) {}

    fn shows_generations(&self) -> bool {
        false
    }

    fn mark(&self, mark: Mark, at_ns: u64);

    /// The model reports the four times of an execution: start, computation's start and end, end.
    fn executed(&self, times_ns: [u64; 4]);

    fn records_tensors(&self) -> bool {
        false
    }

    fn tensor(&self, _at: SeenAt, _tensor: SeenTensor<'_>) {}

    /// A backend reports an activity of its own.
    fn activity(&self, _name: &str, _at_ns: u64) {}

    /// Watches a request that is made on behalf of this one.
    fn child(&self) -> Option<Arc<dyn Observer>>;

    /// Its own type, for the code that made it.
    fn as_any(&self) -> Option<&dyn Any> {
        None
    }

    /// If it is a trace.
    fn trace(&self) -> Option<&dyn TraceFacts> {
        None
    }
}

/// An observer's hold on one request; its end is the request's.
pub struct Observation(Arc<dyn Observer>);

impl Observation {
    pub fn new(observer: Arc<dyn Observer>) -> Observation {
        Observation(observer)
    }

    pub fn observer(&self) -> Arc<dyn Observer> {
        Arc::clone(&self.0)
    }
}

impl Deref for Observation {
    type Target = dyn Observer;

    fn deref(&self) -> &(dyn Observer + 'static) {
        &*self.0
    }
}

impl Drop for Observation {
    #[inline]
    fn drop(&mut self) {
        self.0.mark(Mark::RequestEnd, now_ns());
    }
}

impl std::fmt::Debug for Observation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Observation")
    }
}

impl Request {
    /// Puts `at_ns` down as the time at which the request entered its queue.
    pub fn mark_queued(&mut self, at_ns: u64) {
        self.stamps.queued_ns = at_ns;
        if let Some(observer) = &self.observer {
            observer.mark(Mark::QueueStart, at_ns);
        }
    }

    /// Passes the inputs to the observer, if it wants tensors.
    pub fn show_inputs(&self, at: SeenAt) {
        if let Some(observer) = &self.observer
            && observer.records_tensors()
        {
            for input in &self.inputs {
                let shape = if input.model_shape.is_empty() { &input.shape } else { &input.model_shape };
                let (name, datatype, data) = (&input.name, input.datatype, &input.data[..]);
                observer.tensor(at, SeenTensor { name, datatype, shape, data, on_device: input.on_device() });
            }
        }
    }

    /// A worker is about to execute the request.
    pub fn mark_taken(&self) {
        if let Some(observer) = &self.observer {
            observer.mark(Mark::Taken, now_ns());
        }
    }
}
