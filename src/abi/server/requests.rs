//! `TRITONSERVER_InferenceRequest*`: a request as an application builds it, sends it, and sends it again.
//!
//! The model version is chosen when the request is made and kept until it is deleted. Each send makes a request of the
//! server's own from this one (see `inference`), so that nothing here changes while the server has it.

use std::cell::UnsafeCell;
use std::ffi::{c_char, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Error;
use super::allocators::{RequestAllocator, ResponseAllocator};
use super::inference::{call_application, view_of};
use super::inputs::Input;
use super::responses::InferenceResponse;
use crate::abi::border::{deref, deref_mut, entry, give, null, put, take, text};
use crate::abi::casts::{self, Either, handle_of_application};
use crate::abi::handle_registry;
use crate::server::access::Access;
use nereid_request::{
    Admission, Call, Callee, CorrelationId, Parameters, Queueing, Request, Status, Submit, Text, Value, log_id,
};

pub(super) type ReleaseFn = unsafe extern "C-unwind" fn(*mut InferenceRequest, u32, *mut c_void);
pub(super) type CompleteFn = unsafe extern "C-unwind" fn(*mut InferenceResponse, u32, *mut c_void);

/// `TRITONSERVER_InferenceRequest`: what any thread may use at any time, apart from what one call at a time edits.
pub struct InferenceRequest {
    /// Read and edited through the cell alone: a thread may cancel the request while another one edits it.
    description: UnsafeCell<Description>,
    /// The call of its last send.
    call: Mutex<Option<Arc<dyn Call>>>,
    /// The admission of its last send, which records whether a worker has taken it.
    pub(super) admission: Mutex<Option<Arc<Admission>>>,
    /// Whether the server has it.
    pub(super) is_with_server: AtomicBool,
    /// A request for functions of the backend's interface to read, made when one is called with it.
    view: Mutex<Option<View>>,
}

/// What the application says of its request.
pub(in crate::abi) struct Description {
    pub(super) callee: Arc<dyn Callee>,
    pub(super) id: Text,
    pub(super) flags: u32,
    pub(super) correlation_id: CorrelationId,
    pub(super) queueing: Queueing,
    pub(super) inputs: Vec<Input>,
    /// Whether its one input is raw: type and shape follow from the model and the number of bytes.
    pub(super) is_raw: bool,
    pub(super) outputs: Vec<Text>,
    pub(super) parameters: Parameters,
    pub(super) release: Option<(ReleaseFn, *mut c_void)>,
    pub(super) answer: Option<ResponseCallback>,
}

/// A request of the server's own that is never submitted.
pub(super) struct View(Box<Request>);

impl View {
    pub fn new(request: Request) -> View {
        let view = View(Box::new(request));
        handle_registry::expose(&raw const *view.0);
        view
    }
}

impl Drop for View {
    fn drop(&mut self) {
        handle_registry::reclaim(&raw const *self.0);
    }
}

/// The receiver of responses: the application's function and allocator.
#[derive(Clone, Copy)]
pub(super) struct ResponseCallback {
    pub request_allocator: RequestAllocator,
    pub complete: CompleteFn,
    pub userp: *mut c_void,
}

// SAFETY: the pointer is only handed back to the application, whose function takes it on any thread.
unsafe impl Send for ResponseCallback {}
// SAFETY: the pointer is only handed back to the application, whose function takes it on any thread.
unsafe impl Sync for ResponseCallback {}

impl Description {
    pub(super) fn log_id(&self) -> String {
        log_id(&self.id)
    }
}

impl InferenceRequest {
    pub(super) fn new(description: Description) -> InferenceRequest {
        InferenceRequest {
            description: UnsafeCell::new(description),
            call: Mutex::default(),
            admission: Mutex::default(),
            is_with_server: AtomicBool::new(false),
            view: Mutex::default(),
        }
    }

    /// # Safety
    /// No call edits the request while the reference is used.
    pub(in crate::abi) unsafe fn description(&self) -> &Description {
        // SAFETY: this function requires of its caller that there is no other reference that writes.
        unsafe { &*self.description.get() }
    }

    pub(super) fn call(&self) -> MutexGuard<'_, Option<Arc<dyn Call>>> {
        self.call.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn view(&self) -> MutexGuard<'_, Option<View>> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request for functions of the backend's interface to read: valid until this one is edited, sent or deleted.
    ///
    /// # Safety
    /// No call edits the request meanwhile.
    pub(in crate::abi) unsafe fn as_a_backend_reads_it<'a>(&self) -> Result<&'a Request, Status> {
        let mut view = self.view();
        if view.is_none() {
            // SAFETY: this function requires it of its caller.
            *view = Some(View::new(view_of(unsafe { self.description() }, self.call().is_some())?));
        }
        let request: Option<*const Request> = view.as_ref().map(|view| &raw const *view.0);
        // SAFETY: the box stays where it is until the request is edited, sent or deleted, which C must not do while it
        // uses what it got from it.
        request.map(|request| unsafe { &*request }).ok_or_else(|| Status::internal("the request has no view"))
    }

    pub(in crate::abi) fn is_cancelled(&self) -> Result<bool, Status> {
        match &*self.call() {
            Some(call) => Ok(call.is_cancelled()),
            None => Err(Status::internal(
                "It is not possible to query cancellation status before calling TRITONSERVER_InferAsync.",
            )),
        }
    }

    /// The call of the last send, through which other code than the model can answer it.
    ///
    /// # Safety
    /// No call edits the request meanwhile.
    pub(in crate::abi) unsafe fn last_call(&self) -> Result<(Arc<dyn Call>, Text), Status> {
        // SAFETY: this function requires it of its caller.
        let description = unsafe { self.description() };
        let call = self.call().clone().ok_or_else(|| {
            let text = "the request has no response factory before TRITONSERVER_ServerInferAsync was called with it";
            Status::internal(format!("{}{text}", description.log_id()))
        })?;
        Ok((call, description.id.clone()))
    }

    /// Releases it for a backend: calls the application's release function, which may delete it. So it is given by its
    /// address, and no reference to it is held meanwhile.
    ///
    /// # Safety
    /// The request is live, and no call edits it before the function is called.
    pub(in crate::abi) unsafe fn release(at: *mut InferenceRequest, flags: u32) -> Result<(), Status> {
        // SAFETY: this function requires it of its caller.
        let (release, userp) = unsafe { (*at).description().release }.ok_or_else(|| null("request_release_fn"))?;
        // SAFETY: the function gets the handle that it was registered with.
        call_application("TRITONSERVER_InferenceRequestReleaseFn_t", || unsafe {
            release(handle_of_application(at), flags, userp)
        });
        Ok(())
    }

    /// Triton's error for a request that is sent while the server has it.
    ///
    /// # Safety
    /// No call edits the request meanwhile.
    pub(super) unsafe fn check_may_be_sent(&self) -> Result<(), Status> {
        if !self.is_with_server.load(Ordering::Acquire) {
            return Ok(());
        }
        let admission = self.admission.lock().unwrap_or_else(PoisonError::into_inner);
        let state = match admission.as_ref().is_some_and(|admission| admission.is_taken()) {
            true => "EXECUTING",
            false => "PENDING",
        };
        let text = format!("Invalid request state transition from {state} to INITIALIZED");
        // SAFETY: this function requires it of its caller.
        Err(Status::internal(format!("{}{text}", unsafe { self.description() }.log_id())))
    }

    /// Fails while the server has it.
    ///
    /// # Safety
    /// No other call edits the request meanwhile.
    pub(super) unsafe fn check_is_here(&self) -> Result<(), Status> {
        match self.is_with_server.load(Ordering::Acquire) {
            false => Ok(()),
            true => {
                let text = "the request is in flight: it cannot be changed or deleted before it is released";
                // SAFETY: this function requires it of its caller.
                Err(Status::invalid(format!("{}{text}", unsafe { self.description() }.log_id())))
            }
        }
    }
}

/// # Safety
/// The request is NULL or live, and no other call reads or edits its description unless it is in flight. Other threads
/// may cancel it and ask whether it is cancelled.
pub(super) unsafe fn edited<'a>(request: *mut InferenceRequest) -> Result<&'a mut Description, Status> {
    let request = match casts::request(request) {
        Either::Application(request) => request,
        Either::Backend(request) => {
            // SAFETY: `request` is NULL or live: this function requires it of its caller.
            let id = unsafe { deref(request.cast_const(), "inference_request")? }.log_id();
            let text = "the request is a backend's: its tensors and callbacks cannot be changed, nor can it be sent";
            return Err(Status::invalid(format!("{id}{text}")));
        }
    };
    // SAFETY: `request` is NULL or live: this function requires it of its caller.
    let request = unsafe { deref(request.cast_const(), "inference_request")? };
    // SAFETY: no other call edits the description: this function requires it of its caller.
    unsafe { request.check_is_here()? };
    // Ends the view that a backend's function read.
    *request.view() = None;
    // SAFETY: this call alone uses the description: this function requires it of its caller. What other threads use
    // lies outside the cell.
    Ok(unsafe { &mut *request.description.get() })
}

/// # Safety
/// The server is live, `model_name` a C string, the pointer writable. The request belongs to the caller.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_InferenceRequestNew(
    inference_request: *mut *mut InferenceRequest,
    server: *const Access,
    model_name: *const c_char,
    model_version: i64,
) -> *mut Error {
    entry(|| {
        // SAFETY: `server` is NULL or live, and `model_name` is NULL or a C string: this function requires that of its
        // caller.
        let (server, name) = unsafe { (deref(server, "server")?, text(model_name, "model_name")?) };
        if inference_request.is_null() {
            return Err(null("inference_request"));
        }
        let callee = server.find(name.to_bytes(), model_version)?;
        let queueing = Queueing { priority: callee.spec().priority(0), ..Queueing::default() };
        let request = InferenceRequest::new(Description {
            callee,
            id: Text::default(),
            flags: 0,
            correlation_id: CorrelationId::None,
            queueing,
            inputs: Vec::new(),
            is_raw: false,
            outputs: Vec::new(),
            parameters: Parameters::default(),
            release: None,
            answer: None,
        });
        // SAFETY: `inference_request` is NULL or writable: this function requires it of its caller.
        unsafe { put(inference_request, handle_of_application(give(request))) }
    })
}

/// # Safety
/// The request belongs to the caller and is not used afterwards, unless this fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_InferenceRequestDelete(inference_request: *mut InferenceRequest) -> *mut Error {
    entry(|| {
        match casts::request(inference_request) {
            // SAFETY: the caller gives the request up, so no other call uses it.
            Either::Application(request) => unsafe {
                deref(request.cast_const(), "inference_request")?.check_is_here()?;
                take(request, "inference_request").map(drop)
            },
            Either::Backend(request) => {
                // SAFETY: `request` is NULL or live: this function requires it of its caller.
                let id = unsafe { deref(request.cast_const(), "inference_request")? }.log_id();
                Err(Status::invalid(format!("{id}the request is a backend's, which ends it by releasing it")))
            }
        }
    })
}

/// Exports functions `(request, out) -> error`.
macro_rules! getters {
    ($($name:ident($out:ty) = |$it:ident| $value:expr;)*) => {$(
        /// # Safety
        /// The request is live and not edited meanwhile, and the pointer writable; texts live until they are set anew
        /// or the request is deleted.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(inference_request: *const InferenceRequest, out: *mut $out) -> *mut Error {
            entry(|| {
                let value: Result<$out, Status> = match casts::request(inference_request) {
                    Either::Application(at) => {
                        // SAFETY: `at` is NULL or live, and not edited meanwhile: this function requires it of its
                        // caller.
                        unsafe { deref(at.cast_const(), "inference_request").map(|it| it.description()) }
                            .and_then(|$it| $value)
                    }
                    Either::Backend(at) => {
                        // SAFETY: the caller's promise is passed on; only the kind of handle differs.
                        unsafe { deref(at.cast_const(), "inference_request") }.and_then(|$it| $value)
                    }
                };
                // SAFETY: `out` is NULL or writable: this function requires it of its caller.
                unsafe { put(out, value?) }
            })
        }
    )*};
}

getters! {
    TRITONSERVER_InferenceRequestId(*const c_char) = |request| Ok(request.id.as_c_str().as_ptr());
    TRITONSERVER_InferenceRequestFlags(u32) = |request| Ok(request.flags);
    TRITONSERVER_InferenceRequestCorrelationId(u64) = |request| match &request.correlation_id {
        CorrelationId::None => Ok(0),
        CorrelationId::Number(id) => Ok(*id),
        CorrelationId::Text(_) => {
            Err(Status::invalid("given request's correlation id is not an unsigned int"))
        }
    };
    TRITONSERVER_InferenceRequestCorrelationIdString(*const c_char) = |request| match &request.correlation_id {
        CorrelationId::Text(id) => Ok(id.as_c_str().as_ptr()),
        CorrelationId::None | CorrelationId::Number(_) => {
            Err(Status::invalid("given request's correlation id is not a string"))
        }
    };
    TRITONSERVER_InferenceRequestPriority(u32) = |request| {
        u32::try_from(request.queueing.priority).map_err(|_| {
            Status::invalid(format!(
                "request priority overflows uint32_t, use TRITONSERVER_InferenceRequestPriorityUInt64, \
                 priority={}",
                request.queueing.priority
            ))
        })
    };
    TRITONSERVER_InferenceRequestPriorityUInt64(u64) = |request| Ok(request.queueing.priority);
    TRITONSERVER_InferenceRequestTimeoutMicroseconds(u64) = |request| Ok(request.queueing.timeout_us);
}

/// # Safety
/// The request is live and the pointer writable. Any thread may call this at any time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_InferenceRequestIsCancelled(
    inference_request: *const InferenceRequest,
    is_cancelled: *mut bool,
) -> *mut Error {
    entry(|| {
        // SAFETY: `inference_request` is NULL or live: this function requires it of its caller. What is read of it lies
        // outside the part that another thread may edit.
        let found = unsafe {
            match casts::request(inference_request) {
                Either::Application(at) => deref(at.cast_const(), "inference_request")?.is_cancelled()?,
                Either::Backend(at) => deref(at.cast_const(), "inference_request")?.admission().is_cancelled(),
            }
        };
        // SAFETY: `is_cancelled` is NULL or writable: this function requires it of its caller.
        unsafe { put(is_cancelled, found) }
    })
}

/// What requests of both kinds have, for the functions below.
trait RequestFields {
    fn set_priority(&mut self, priority: u64);
}

impl RequestFields for Request {
    fn set_priority(&mut self, priority: u64) {
        self.queueing.priority = priority;
    }
}

impl RequestFields for Description {
    /// A level that its model does not have becomes the default level.
    fn set_priority(&mut self, priority: u64) {
        self.queueing.priority = self.callee.spec().priority(priority);
    }
}

/// Exports functions `(request, value) -> error`.
macro_rules! setters {
    ($($name:ident($type:ty) = |$it:ident, $value:ident| $set:expr;)*) => {$(
        /// # Safety
        /// The request is live and used by this call only; texts are C strings.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(inference_request: *mut InferenceRequest, $value: $type) -> *mut Error {
            entry(|| {
                match casts::request(inference_request) {
                    Either::Application(_) => {
                        // SAFETY: `inference_request` is NULL or live, and used by this call alone: this function
                        // requires it of its caller.
                        let $it = unsafe { edited(inference_request)? };
                        $set;
                    }
                    Either::Backend(request) => {
                        // SAFETY: as above; a backend's request is the backend's alone.
                        let $it = unsafe { deref_mut(request, "inference_request")? };
                        $set;
                    }
                }
                Ok(())
            })
        }
    )*};
}

/// `TRITONSERVER_REQUEST_FLAG_SEQUENCE_START` and `_END`.
const KNOWN_FLAGS: u32 = nereid_request::SEQUENCE_START | nereid_request::SEQUENCE_END;

setters! {
    TRITONSERVER_InferenceRequestSetId(*const c_char) = |request, id| {
        // SAFETY: `id` is NULL or a C string: this function requires it of its caller.
        request.id = Text::new(unsafe { text(id, "id")? }.to_bytes())
    };
    TRITONSERVER_InferenceRequestSetFlags(u32) = |request, flags| {
        if flags & !KNOWN_FLAGS != 0 {
            return Err(Status::invalid(format!("{}unknown request flags {flags}", request.log_id())));
        }
        request.flags = flags
    };
    TRITONSERVER_InferenceRequestSetCorrelationId(u64) = |request, id| {
        request.correlation_id = CorrelationId::Number(id)
    };
    TRITONSERVER_InferenceRequestSetCorrelationIdString(*const c_char) = |request, id| {
        // SAFETY: `id` is NULL or a C string: this function requires it of its caller.
        let id = unsafe { text(id, "correlation_id")? }.to_bytes();
        request.correlation_id = CorrelationId::of_text(Text::new(id))?
    };
    TRITONSERVER_InferenceRequestSetPriority(u32) = |request, priority| {
        request.set_priority(u64::from(priority))
    };
    TRITONSERVER_InferenceRequestSetPriorityUInt64(u64) = |request, priority| request.set_priority(priority);
    TRITONSERVER_InferenceRequestSetTimeoutMicroseconds(u64) = |request, timeout_us| {
        request.queueing.timeout_us = timeout_us
    };
}

/// Exports functions `(request, key, value) -> error`.
macro_rules! set_parameter {
    ($($name:ident($type:ty) = |$value:ident| $made:expr;)*) => {$(
        /// # Safety
        /// The request is live and used by this call only; texts are C strings.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            request: *mut InferenceRequest,
            key: *const c_char,
            $value: $type,
        ) -> *mut Error {
            entry(|| {
                // SAFETY: the caller's promise is passed on; a backend's request is the backend's alone.
                let (parameters, key) = unsafe {
                    let parameters = match casts::request(request) {
                        Either::Application(_) => &mut edited(request)?.parameters,
                        Either::Backend(request) => &mut deref_mut(request, "inference_request")?.parameters,
                    };
                    (parameters, text(key, "key")?)
                };
                parameters.push(Text::new(key.to_bytes()), $made);
                Ok(())
            })
        }
    )*};
}

set_parameter! {
    TRITONSERVER_InferenceRequestSetStringParameter(*const c_char) = |value| {
        // SAFETY: by contract a C string or NULL.
        Value::String(Text::new(unsafe { text(value, "value")? }.to_bytes()))
    };
    TRITONSERVER_InferenceRequestSetIntParameter(i64) = |value| Value::Int(value);
    TRITONSERVER_InferenceRequestSetBoolParameter(bool) = |value| Value::Bool(value);
    TRITONSERVER_InferenceRequestSetDoubleParameter(f64) = |value| Value::Double(value);
}

/// # Safety
/// The request is live. Any thread may call this at any time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_InferenceRequestCancel(inference_request: *const InferenceRequest) -> *mut Error {
    entry(|| {
        let request = match casts::request(inference_request) {
            // SAFETY: `request` is NULL or live: this function requires it of its caller.
            Either::Application(request) => unsafe { deref(request.cast_const(), "inference_request")? },
            Either::Backend(request) => {
                // SAFETY: as above. A backend has it, so no other code responds to it.
                unsafe { deref(request.cast_const(), "inference_request")? }.admission().cancel();
                return Ok(());
            }
        };
        let call = request.call().clone().ok_or_else(|| {
            Status::internal(
                "It is not possible to cancel an inference request before calling TRITONSERVER_InferAsync.",
            )
        })?;
        call.cancel();
        Ok(())
    })
}

/// # Safety
/// The request is live and used by this call only; the function may be called on any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_InferenceRequestSetReleaseCallback(
    inference_request: *mut InferenceRequest,
    request_release_fn: Option<ReleaseFn>,
    request_release_userp: *mut c_void,
) -> *mut Error {
    entry(|| {
        // SAFETY: `inference_request` is NULL or live, and used by this call alone: this function requires it of its
        // caller.
        let request = unsafe { edited(inference_request)? };
        let function = request_release_fn.ok_or_else(|| null("request_release_fn"))?;
        request.release = Some((function, request_release_userp));
        Ok(())
    })
}

/// # Safety
/// The request is live and used by this call only; the allocator lives until every response made with it is deleted;
/// the function may be called on any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_InferenceRequestSetResponseCallback(
    inference_request: *mut InferenceRequest,
    response_allocator: *mut ResponseAllocator,
    response_allocator_userp: *mut c_void,
    response_fn: Option<CompleteFn>,
    response_userp: *mut c_void,
) -> *mut Error {
    entry(|| {
        // SAFETY: `inference_request` is NULL or live, and used by this call alone: this function requires it of its
        // caller.
        let (request, request_allocator) = unsafe {
            (edited(inference_request)?, RequestAllocator::new(response_allocator, response_allocator_userp)?)
        };
        let complete = response_fn.ok_or_else(|| null("response_fn"))?;
        request.answer = Some(ResponseCallback { request_allocator, complete, userp: response_userp });
        Ok(())
    })
}

#[cfg(test)]
mod tests;
