//! Traces that an application makes: `TRITONSERVER_InferenceTraceNew` and `…TensorNew`.
//!
//! Such a trace observes its request and calls the application's functions, on the thread of each event. It belongs to
//! the application until a request takes it, and again after that request has ended, which the call of its release
//! function reports. Children, made here for the steps of ensembles or by a backend, carry the same functions.

use std::any::Any;
use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use crate::abi::border::{deref, entry, give, null, put, take};
use crate::abi::guard::{ForeignCode, guarded};
use crate::abi::server::Error;
use nereid_clock::now_ns;
use nereid_observe::trace::next_id;
use nereid_request::{
    Call, DataType, Mark, Observation, Observer, OutputTensor, Place, SeenAt, SeenTensor, Status, Text, TraceFacts,
};

pub(super) type ActivityFn = unsafe extern "C-unwind" fn(*mut Observation, u32, u64, *mut c_void);
pub(super) type TensorActivityFn = unsafe extern "C-unwind" fn(
    *mut Observation,
    u32,
    *const c_char,
    u32,
    *const c_void,
    usize,
    *const i64,
    u64,
    u32,
    i64,
    *mut c_void,
);
pub(super) type ReleaseFn = unsafe extern "C-unwind" fn(*mut Observation, *mut c_void);

/// `TRITONSERVER_InferenceTraceLevel`, bit by bit.
const LEVEL_MIN: u32 = 1;
const LEVEL_MAX: u32 = 2;
const LEVEL_TIMESTAMPS: u32 = 4;
const LEVEL_TENSORS: u32 = 8;

/// `TRITONSERVER_InferenceTraceActivity`.
const REQUEST_START: u32 = 0;
const QUEUE_START: u32 = 1;
const COMPUTE_START: u32 = 2;
const COMPUTE_INPUT_END: u32 = 3;
const COMPUTE_OUTPUT_START: u32 = 4;
const COMPUTE_END: u32 = 5;
const REQUEST_END: u32 = 6;
const TENSOR_QUEUE_INPUT: u32 = 7;
const TENSOR_BACKEND_OUTPUT: u32 = 9;
const CUSTOM_ACTIVITY: u32 = 10;

/// The stages of a trace: held by the application, in use by a request, over.
const HELD: u8 = 0;
const IN_USE: u8 = 1;
const OVER: u8 = 2;

#[derive(Debug, Clone, Copy)]
struct Functions {
    level: u32,
    activity: ActivityFn,
    tensor: Option<TensorActivityFn>,
    release: ReleaseFn,
    userp: *mut c_void,
}

/// See the [module](self).
pub(super) struct ApplicationTrace {
    functions: Functions,
    id: u64,
    parent_id: u64,
    /// The application's handle: a box of its own that keeps this value alive.
    handle: AtomicPtr<Observation>,
    stage: AtomicU8,
    /// Holders that may still report: its request, and the receivers of the responses.
    holds: AtomicU32,
    /// The call of the request that it belongs to, directly or as a child. The end is reported through it, because a
    /// request may end in the middle of a queue.
    call: OnceLock<Arc<dyn Call>>,
    me: Weak<ApplicationTrace>,
    /// Whether it entered a queue and was not executed since.
    is_queued: AtomicBool,
    named: OnceLock<Named>,
    context: Mutex<CString>,
    /// Held during a custom activity, which changes the context for the time of the call.
    activity_order: Mutex<()>,
    /// Former contexts: texts that were handed out live as long as the trace.
    old_contexts: Mutex<Vec<CString>>,
}

// SAFETY: the pointers are handed back to the application only, whose functions take them on any thread.
unsafe impl Send for ApplicationTrace {}
// SAFETY: as above; everything else is atomic or locked.
unsafe impl Sync for ApplicationTrace {}

struct Named {
    model: CString,
    version: i64,
    request_id: CString,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ApplicationTrace {
    /// Makes a trace and its handle.
    fn begin(functions: Functions, parent_id: u64, stage: u8) -> Arc<ApplicationTrace> {
        let trace = Arc::new_cyclic(|me| ApplicationTrace {
            functions,
            call: OnceLock::new(),
            me: Weak::clone(me),
            id: next_id(),
            parent_id,
            handle: AtomicPtr::default(),
            stage: AtomicU8::new(stage),
            holds: AtomicU32::new(1),
            is_queued: AtomicBool::new(false),
            named: OnceLock::new(),
            context: Mutex::default(),
            activity_order: Mutex::default(),
            old_contexts: Mutex::default(),
        });
        let handle = give(Observation::new(Arc::clone(&trace) as Arc<dyn Observer>));
        trace.handle.store(handle, Ordering::Release);
        trace
    }

    /// The trace behind a handle, if an application made it.
    pub fn of(observation: &Observation) -> Option<&ApplicationTrace> {
        observation.as_any()?.downcast_ref()
    }

    fn handle(&self) -> *mut Observation {
        self.handle.load(Ordering::Acquire)
    }

    /// Makes a child trace, which the caller owns until a request takes it.
    pub fn spawn(&self) -> *mut Observation {
        ApplicationTrace::begin(self.functions, self.id, HELD).handle()
    }

    pub fn set_context(&self, context: &CStr) {
        let before = std::mem::replace(&mut *lock(&self.context), context.to_owned());
        if !before.is_empty() {
            lock(&self.old_contexts).push(before);
        }
    }

    fn report(&self, activity: u32, at_ns: u64) {
        if self.functions.level & LEVEL_TIMESTAMPS != 0 {
            let Functions { activity: function, userp, .. } = self.functions;
            // SAFETY: the application's function gets the pointer that it was registered with.
            called("TRITONSERVER_InferenceTraceActivityFn_t", || unsafe {
                function(self.handle(), activity, at_ns, userp)
            });
        }
    }

    fn end(&self, at_ns: u64) {
        let (Some(me), Some(call)) = (self.me.upgrade(), self.call.get()) else {
            self.report(REQUEST_END, at_ns);
            return self.let_go();
        };
        let report = move || {
            me.report(REQUEST_END, at_ns);
            me.let_go();
        };
        call.run_foreign(Box::new(report), false);
    }

    /// Drops a holder. The last one gives the trace back to the application.
    fn let_go(&self) {
        if self.holds.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        let Functions { release, userp, .. } = self.functions;
        let handle = self.handle();
        // SAFETY: as above; the handle belongs to the application from now on.
        called("TRITONSERVER_InferenceTraceReleaseFn_t", || unsafe { release(handle, userp) });
    }
}

fn called(call: &'static str, function: impl FnOnce()) {
    let work = ForeignCode { kind: "application", call, ..ForeignCode::default() };
    if let Err(thrown) = guarded(&work, function) {
        tracing::error!("the application threw an exception in {call}: {thrown}");
    }
}

impl Observer for ApplicationTrace {
    fn begins(&self, model: &str, version: i64, id: &Text, at_ns: u64) {
        let model = CString::new(model).unwrap_or_default();
        let _ = self.named.set(Named { model, version, request_id: id.as_c_str().to_owned() });
        self.report(REQUEST_START, at_ns);
    }

    fn mark(&self, mark: Mark, at_ns: u64) {
        match mark {
            Mark::QueueStart => {
                // Schedulers report a later time when they keep a request for longer; only the first start counts.
                if !self.is_queued.swap(true, Ordering::AcqRel) {
                    self.report(QUEUE_START, at_ns);
                }
            }
            Mark::Taken => {}
            Mark::ComputeStart => self.report(COMPUTE_START, at_ns),
            Mark::ComputeInputEnd => self.report(COMPUTE_INPUT_END, at_ns),
            Mark::ComputeOutputStart => self.report(COMPUTE_OUTPUT_START, at_ns),
            Mark::ComputeEnd => self.report(COMPUTE_END, at_ns),
            Mark::RequestEnd => {
                // When the handle itself ends, no request has ended.
                if self.stage.compare_exchange(IN_USE, OVER, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                    self.end(at_ns);
                }
            }
        }
    }

    fn executed(&self, times_ns: [u64; 4]) {
        self.is_queued.store(false, Ordering::Release);
        let activities = [COMPUTE_START, COMPUTE_INPUT_END, COMPUTE_OUTPUT_START, COMPUTE_END];
        activities.into_iter().zip(times_ns).for_each(|(activity, at_ns)| self.report(activity, at_ns));
    }

    fn records_tensors(&self) -> bool {
        self.functions.level & LEVEL_TENSORS != 0 && self.functions.tensor.is_some()
    }

    fn tensor(&self, at: SeenAt, tensor: SeenTensor<'_>) {
        let Some(function) = self.functions.tensor.filter(|_| self.records_tensors()) else { return };
        let activity = match at {
            SeenAt::QueueInput => TENSOR_QUEUE_INPUT,
            SeenAt::BackendOutput => TENSOR_BACKEND_OUTPUT,
        };
        // The elements in one piece, as the function requires.
        let joined: Vec<u8>;
        let (base, len) = match tensor.data {
            [only] => (only.as_ptr(), only.len()),
            pieces => {
                joined = pieces.iter().fold(Vec::new(), |mut all, piece| {
                    piece.append_to(&mut all);
                    all
                });
                (joined.as_ptr(), joined.len())
            }
        };
        let (base, byte_size, place) = match tensor.on_device {
            Some(slice) => (std::ptr::without_provenance(slice.address().0 as usize), slice.len(), Place::of(slice)),
            None => (base, len, Place::default()),
        };
        let datatype: DataType = tensor.datatype;
        // SAFETY: what the pointers point to lives through the call.
        called("TRITONSERVER_InferenceTraceTensorActivityFn_t", || unsafe {
            function(
                self.handle(),
                activity,
                tensor.name.as_c_str().as_ptr(),
                datatype as u32,
                base.cast(),
                byte_size,
                tensor.shape.as_ptr(),
                tensor.shape.len() as u64,
                place.memory_type as u32,
                place.memory_type_id,
                self.functions.userp,
            );
        });
    }

    /// Passes the name as Triton does: while the application's function runs, the context has one more member, with the
    /// time and the name.
    fn activity(&self, name: &str, at_ns: u64) {
        if self.functions.level & LEVEL_TIMESTAMPS == 0 {
            return;
        }
        let _in_order = lock(&self.activity_order);
        let members =
            serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(lock(&self.context).to_bytes());
        let mut members = members.unwrap_or_default();
        members.insert(at_ns.to_string(), name.into());
        let named = CString::new(serde_json::Value::Object(members).to_string()).unwrap_or_default();
        // The old string itself is put back, because texts that were handed out point to its bytes.
        let before = std::mem::replace(&mut *lock(&self.context), named);
        self.report(CUSTOM_ACTIVITY, at_ns);
        *lock(&self.context) = before;
    }

    fn child(&self) -> Option<Arc<dyn Observer>> {
        let child = ApplicationTrace::begin(self.functions, self.id, IN_USE);
        if let Some(call) = self.call.get() {
            let _ = child.call.set(Arc::clone(call));
        }
        Some(child)
    }

    fn trace(&self) -> Option<&dyn TraceFacts> {
        Some(self)
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

impl TraceFacts for ApplicationTrace {
    fn id(&self) -> u64 {
        self.id
    }

    fn parent_id(&self) -> u64 {
        self.parent_id
    }

    fn model_name(&self) -> &CStr {
        self.named.get().map_or(c"", |named| &named.model)
    }

    fn model_version(&self) -> i64 {
        self.named.get().map_or(-1, |named| named.version)
    }

    fn request_id(&self) -> &CStr {
        self.named.get().map_or(c"", |named| &named.request_id)
    }

    fn context(&self) -> &CStr {
        let context = lock(&self.context);
        // SAFETY: the text is replaced by `set_context`, which keeps the old one for as long as the trace lives, and by
        // `activity` for the time of a call, in which the application's function may read it.
        unsafe { CStr::from_ptr(context.as_ptr()) }
    }
}

/// Reports the outputs of responses to the trace of their request. While this value lives, the trace is not released.
pub(super) struct OutputTrace(Arc<dyn Observer>);

impl OutputTrace {
    pub fn show(&self, outputs: &[OutputTensor]) {
        for OutputTensor { name, datatype, shape, data, on_device, .. } in outputs {
            let (datatype, on_device) = (*datatype, on_device.as_deref());
            self.0.tensor(SeenAt::BackendOutput, SeenTensor { name, datatype, shape, data, on_device });
        }
    }
}

impl Drop for OutputTrace {
    fn drop(&mut self) {
        if let Some(own) = self.0.as_any().and_then(|own| own.downcast_ref::<ApplicationTrace>()) {
            own.let_go();
        }
    }
}

/// Takes the trace that a request gets; NULL is none. A trace of an application belongs to the request until the
/// request ends, any other trace for good.
///
/// # Safety
/// The trace is NULL or live, and belongs to the caller.
pub(super) unsafe fn adopt(trace: *mut Observation, call: &Arc<dyn Call>) -> Result<Adopted, Status> {
    if trace.is_null() {
        return Ok((None, None));
    }
    // SAFETY: `trace` is NULL or live: this function requires it of its caller.
    let observation = unsafe { deref(trace, "trace")? };
    let Some(own) = ApplicationTrace::of(observation) else {
        // SAFETY: as above; such a trace was given to the caller by `TRITONSERVER_InferenceTraceSpawnChildTrace`.
        return Ok((Some(*unsafe { take(trace, "trace")? }), None));
    };
    if own.stage.compare_exchange(HELD, IN_USE, Ordering::AcqRel, Ordering::Acquire).is_err() {
        return Err(Status::invalid("the trace belongs to a request, or did"));
    }
    let _ = own.call.set(Arc::clone(call));
    let output_trace = own.records_tensors().then(|| {
        own.holds.fetch_add(1, Ordering::AcqRel);
        OutputTrace(observation.observer())
    });
    Ok((Some(Observation::new(observation.observer())), output_trace))
}

/// Gives a trace back to the application at once, after the server refused the request that had taken it.
pub(super) fn give_back(observation: Observation) {
    if let Some(own) = ApplicationTrace::of(&observation)
        && own.stage.compare_exchange(IN_USE, OVER, Ordering::AcqRel, Ordering::Acquire).is_ok()
    {
        own.report(REQUEST_END, now_ns());
        own.let_go();
    }
}

/// The observation for the request, and the observer of its responses.
type Adopted = (Option<Observation>, Option<OutputTrace>);

/// Maps a level to the present ones: the two old levels stand for timestamps.
fn level_of(level: u32) -> Result<u32, Status> {
    if level & !(LEVEL_MIN | LEVEL_MAX | LEVEL_TIMESTAMPS | LEVEL_TENSORS) != 0 {
        return Err(Status::invalid(format!("unknown trace level {level}")));
    }
    let is_old = level & (LEVEL_MIN | LEVEL_MAX) != 0;
    Ok(level & !(LEVEL_MIN | LEVEL_MAX) | if is_old { LEVEL_TIMESTAMPS } else { 0 })
}

/// # Safety
/// The pointer is writable; the functions may be called from any thread until the trace is released. It belongs to the
/// caller.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_InferenceTraceNew(
    trace: *mut *mut Observation,
    level: u32,
    parent_id: u64,
    activity_fn: Option<ActivityFn>,
    release_fn: Option<ReleaseFn>,
    trace_userp: *mut c_void,
) -> *mut Error {
    // SAFETY: `trace` is NULL or writable: this function requires it of its caller.
    entry(|| unsafe { put_new(trace, level, parent_id, (activity_fn, None), release_fn, trace_userp) })
}

/// # Safety
/// As for `TRITONSERVER_InferenceTraceNew`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_InferenceTraceTensorNew(
    trace: *mut *mut Observation,
    level: u32,
    parent_id: u64,
    activity_fn: Option<ActivityFn>,
    tensor_activity_fn: Option<TensorActivityFn>,
    release_fn: Option<ReleaseFn>,
    trace_userp: *mut c_void,
) -> *mut Error {
    entry(|| {
        if tensor_activity_fn.is_none() {
            return Err(null("tensor_activity_fn"));
        }
        // SAFETY: `trace` is NULL or writable: this function requires it of its caller.
        unsafe { put_new(trace, level, parent_id, (activity_fn, tensor_activity_fn), release_fn, trace_userp) }
    })
}

/// # Safety
/// As for `TRITONSERVER_InferenceTraceNew`.
unsafe fn put_new(
    trace: *mut *mut Observation,
    level: u32,
    parent_id: u64,
    (activity, tensor): (Option<ActivityFn>, Option<TensorActivityFn>),
    release: Option<ReleaseFn>,
    userp: *mut c_void,
) -> Result<(), Status> {
    let activity = activity.ok_or_else(|| null("activity_fn"))?;
    let release = release.ok_or_else(|| null("release_fn"))?;
    let level = level_of(level)?;
    if trace.is_null() {
        return Err(null("trace"));
    }
    let functions = Functions { level, activity, tensor, release, userp };
    // SAFETY: `trace` is NULL or writable: this function requires it of its caller.
    unsafe { put(trace, ApplicationTrace::begin(functions, parent_id, HELD).handle()) }
}

/// # Safety
/// The trace is live, and made by an application; `trace_context` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_InferenceTraceSetContext(
    trace: *mut Observation,
    trace_context: *const c_char,
) -> *mut Error {
    entry(|| {
        // SAFETY: `trace` is NULL or live, and `trace_context` is NULL or a C string: this function requires that of
        // its caller.
        let (observation, context) =
            unsafe { (deref(trace, "trace")?, crate::abi::border::text(trace_context, "trace_context")?) };
        let own = ApplicationTrace::of(observation);
        let own = own.ok_or_else(|| Status::unsupported("the context of a trace that the server made is its own"))?;
        own.set_context(context);
        Ok(())
    })
}
