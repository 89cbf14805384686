//! `TRITONSERVER_InferenceTrace*` and `TRITONBACKEND_RequestTrace`: the handle of a request's trace, and custom
//! activities of a backend. How an application makes traces is in `application_trace`.
//!
//! The handle is the request's reference to its observer, or a child's own; a request without a trace has none.

use std::ffi::{CStr, c_char};

use crate::abi::border::{deref, entry, give, lend, null, put, take, text};
use crate::abi::casts::readable_request;
use crate::abi::server::Error;
use crate::abi::server::application_trace::ApplicationTrace;
use nereid_request::{Observation, Request, Status, TraceFacts};

/// # Safety
/// The request is live and the pointer writable; the trace lives as long as the request. NULL: it is not traced.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_RequestTrace(
    request: *const Request,
    trace: *mut *const Observation,
) -> *mut Error {
    entry(|| {
        // SAFETY: `request` is NULL or a live request: this function requires it of its caller.
        let request = unsafe { readable_request(request)? };
        let observer = request.observer.as_ref().filter(|observer| observer.trace().is_some());
        // SAFETY: `trace` is NULL or writable: this function requires it of its caller.
        unsafe { put(trace, observer.map_or(std::ptr::null(), |observer| lend(observer, request))) }
    })
}

/// # Safety
/// `trace` is NULL or live.
unsafe fn facts<'a>(trace: *const Observation) -> Result<&'a dyn TraceFacts, Status> {
    // SAFETY: `trace` is NULL or live: this function requires it of its caller.
    let observation = unsafe { deref(trace, "trace")? };
    observation.trace().ok_or_else(|| Status::internal("the request is watched and has no trace"))
}

/// Exports functions `(trace, out) -> error`.
macro_rules! getters {
    ($($name:ident($out:ty) = |$it:ident| $value:expr;)*) => {$(
        /// # Safety
        /// The trace is live and the result pointer writable; texts live as long as the trace.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(trace: *const Observation, out: *mut $out) -> *mut Error {
            // SAFETY: `trace` is NULL or a live trace, and `out` is NULL or writable: this function requires that of
            // its caller.
            entry(|| unsafe {
                let $it = facts(trace)?;
                put(out, $value)
            })
        }
    )*};
}

getters! {
    TRITONSERVER_InferenceTraceId(u64) = |trace| trace.id();
    TRITONSERVER_InferenceTraceParentId(u64) = |trace| trace.parent_id();
    TRITONSERVER_InferenceTraceModelName(*const c_char) = |trace| trace.model_name().as_ptr();
    TRITONSERVER_InferenceTraceModelVersion(i64) = |trace| trace.model_version();
    TRITONSERVER_InferenceTraceRequestId(*const c_char) = |trace| trace.request_id().as_ptr();
    TRITONSERVER_InferenceTraceContext(*const c_char) = |trace| trace.context().as_ptr();
}

/// # Safety
/// The trace is live and `name` a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_InferenceTraceReportActivity(
    trace: *const Observation,
    timestamp: u64,
    name: *const c_char,
) -> *mut Error {
    entry(|| {
        // SAFETY: `trace` is NULL or live, and `name` is NULL or a C string: this function requires that of its caller.
        let (observation, name) = unsafe { (deref(trace, "trace")?, text(name, "activity_name")?) };
        observation.activity(&name.to_string_lossy(), timestamp);
        Ok(())
    })
}

/// A trace for a request that is made on behalf of the traced one; the caller owns it.
///
/// # Safety
/// The trace is live and the pointer writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_InferenceTraceSpawnChildTrace(
    trace: *const Observation,
    child_trace: *mut *mut Observation,
) -> *mut Error {
    entry(|| {
        if child_trace.is_null() {
            return Err(null("child_trace"));
        }
        // SAFETY: `trace` is NULL or live: this function requires it of its caller.
        let parent = unsafe { deref(trace, "trace")? };
        if let Some(own) = ApplicationTrace::of(parent) {
            // SAFETY: not null, and by contract writable.
            return unsafe { put(child_trace, own.spawn()) };
        }
        let child = parent.child();
        let child = child.ok_or_else(|| Status::internal("the trace has no children"))?;
        // SAFETY: not null, and by contract writable.
        unsafe { put(child_trace, give(Observation::new(child))) }
    })
}

/// # Safety
/// The trace was made or spawned and no request has it, it is not used afterwards, or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_InferenceTraceDelete(trace: *mut Observation) -> *mut Error {
    if trace.is_null() {
        return std::ptr::null_mut();
    }
    // SAFETY: `trace` is NULL or an object that the caller gives back: this function requires it of its caller.
    entry(|| unsafe { take(trace, "trace") }.map(drop))
}

#[unsafe(no_mangle)]
pub extern "C" fn TRITONSERVER_InferenceTraceLevelString(level: u32) -> *const c_char {
    let name: &CStr = match level {
        0 => c"DISABLED",
        1 => c"MIN",
        2 => c"MAX",
        4 => c"TIMESTAMPS",
        8 => c"TENSORS",
        _ => c"<unknown>",
    };
    name.as_ptr()
}

const ACTIVITIES: [&CStr; 11] = [
    c"REQUEST_START",
    c"QUEUE_START",
    c"COMPUTE_START",
    c"COMPUTE_INPUT_END",
    c"COMPUTE_OUTPUT_START",
    c"COMPUTE_END",
    c"REQUEST_END",
    c"TENSOR_QUEUE_INPUT",
    c"TENSOR_BACKEND_INPUT",
    c"TENSOR_BACKEND_OUTPUT",
    c"CUSTOM_ACTIVITY",
];

#[unsafe(no_mangle)]
pub extern "C" fn TRITONSERVER_InferenceTraceActivityString(activity: u32) -> *const c_char {
    usize::try_from(activity).ok().and_then(|at| ACTIVITIES.get(at)).unwrap_or(&c"<unknown>").as_ptr()
}

#[cfg(test)]
mod tests {
    use std::ptr;
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::abi::server::TRITONSERVER_ErrorDelete;
    use nereid_request::{Completion, Mark, Observer, Sink, Text};

    struct NullSink;

    impl Sink for NullSink {
        fn deliver(&self, _key: u64, _delivery: nereid_request::Delivery) {}

        fn allocate(&self, _key: u64, byte_size: usize) -> Result<nereid_memory::BlockMut, nereid_memory::Exhausted> {
            Ok(nereid_memory::BlockMut::unpooled(byte_size))
        }
    }

    /// Records the reports that it gets.
    struct Recorder {
        recorded: Arc<Mutex<Vec<String>>>,
        is_trace: bool,
        id: u64,
    }

    impl Observer for Recorder {
        fn begins(&self, _model: &str, _version: i64, _id: &Text, _at_ns: u64) {}

        fn mark(&self, mark: Mark, _at_ns: u64) {
            self.recorded.lock().unwrap().push(format!("{} {mark:?}", self.id));
        }

        fn executed(&self, _times_ns: [u64; 4]) {}

        fn activity(&self, name: &str, at_ns: u64) {
            self.recorded.lock().unwrap().push(format!("{} {name} {at_ns}", self.id));
        }

        fn child(&self) -> Option<Arc<dyn Observer>> {
            Some(Arc::new(Recorder { recorded: Arc::clone(&self.recorded), is_trace: true, id: self.id + 1 }))
        }

        fn trace(&self) -> Option<&dyn TraceFacts> {
            self.is_trace.then_some(self as &dyn TraceFacts)
        }
    }

    impl TraceFacts for Recorder {
        fn id(&self) -> u64 {
            self.id
        }

        fn parent_id(&self) -> u64 {
            self.id - 1
        }

        fn model_name(&self) -> &CStr {
            c"m"
        }

        fn model_version(&self) -> i64 {
            3
        }

        fn request_id(&self) -> &CStr {
            c"r"
        }

        fn context(&self) -> &CStr {
            c"{}"
        }
    }

    fn watched(is_trace: bool) -> (Request, Arc<Mutex<Vec<String>>>) {
        let recorded: Arc<Mutex<Vec<String>>> = Arc::default();
        let mut request = Request::new(Completion::new(Arc::new(NullSink), 0));
        let notes = Recorder { recorded: Arc::clone(&recorded), is_trace, id: 1 };
        request.observer = Some(Observation::new(Arc::new(notes)));
        (request, recorded)
    }

    #[test]
    fn a_backend_reads_a_trace_and_adds_to_it() {
        let (request, recorded) = watched(true);
        // SAFETY: all pointers are those of live values of this function, each of its type.
        unsafe {
            let mut trace = ptr::null();
            assert!(TRITONBACKEND_RequestTrace(&raw const request, &raw mut trace).is_null());
            let (mut id, mut parent, mut version) = (0, 7, 0);
            let (mut model, mut request_id, mut context) = (ptr::null(), ptr::null(), ptr::null());
            assert!(TRITONSERVER_InferenceTraceId(trace, &raw mut id).is_null());
            assert!(TRITONSERVER_InferenceTraceParentId(trace, &raw mut parent).is_null());
            assert!(TRITONSERVER_InferenceTraceModelVersion(trace, &raw mut version).is_null());
            assert!(TRITONSERVER_InferenceTraceModelName(trace, &raw mut model).is_null());
            assert!(TRITONSERVER_InferenceTraceRequestId(trace, &raw mut request_id).is_null());
            assert!(TRITONSERVER_InferenceTraceContext(trace, &raw mut context).is_null());
            assert_eq!((id, parent, version), (1, 0, 3));
            let texts = [model, request_id, context].map(|text| CStr::from_ptr(text));
            assert_eq!(texts, [c"m", c"r", c"{}"]);
            assert!(TRITONSERVER_InferenceTraceReportActivity(trace, 5, c"MINE".as_ptr()).is_null());
            let mut child = ptr::null_mut();
            assert!(TRITONSERVER_InferenceTraceSpawnChildTrace(trace, &raw mut child).is_null());
            assert!(TRITONSERVER_InferenceTraceReportActivity(child, 6, c"CHILDS".as_ptr()).is_null());
            assert!(TRITONSERVER_InferenceTraceDelete(child).is_null());
            assert!(TRITONSERVER_InferenceTraceDelete(ptr::null_mut()).is_null());
        }
        drop(request);
        assert_eq!(*recorded.lock().unwrap(), ["1 MINE 5", "2 CHILDS 6", "2 RequestEnd", "1 RequestEnd"]);
    }

    #[test]
    fn a_request_without_a_trace_has_no_handle() {
        let (timed, _) = watched(false);
        let plain = Request::new(Completion::new(Arc::new(NullSink), 0));
        for request in [&timed, &plain] {
            let mut trace = ptr::dangling();
            // SAFETY: the pointers are those of live values.
            unsafe {
                assert!(TRITONBACKEND_RequestTrace(request, &raw mut trace).is_null());
                assert!(trace.is_null());
                let mut id = 0;
                let error = TRITONSERVER_InferenceTraceId(trace, &raw mut id);
                assert!(!error.is_null(), "NULL is no trace");
                TRITONSERVER_ErrorDelete(error);
            }
        }
    }

    #[test]
    fn levels_and_activities_have_names() {
        // SAFETY: the texts are static.
        let name = |text| unsafe { CStr::from_ptr(text) };
        assert_eq!(name(TRITONSERVER_InferenceTraceLevelString(4)), c"TIMESTAMPS");
        assert_eq!(name(TRITONSERVER_InferenceTraceLevelString(3)), c"<unknown>");
        for (number, expected) in [(0, c"REQUEST_START"), (10, c"CUSTOM_ACTIVITY"), (11, c"<unknown>")] {
            assert_eq!(name(TRITONSERVER_InferenceTraceActivityString(number)), expected);
        }
    }
}
