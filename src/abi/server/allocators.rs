//! `TRITONSERVER_ResponseAllocator*`: how an application provides the memory for its responses.

use std::any::Any;
use std::ffi::{CStr, c_char, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::inputs::gpu_of;
use super::{BufferAttributes, Error};
use crate::abi::border::{deref, entry, give, null, put, take};
use crate::abi::guard::{ForeignCode, guarded};
use crate::abi::handle_registry;
use nereid_gpu::driver::DeviceAddress;
use nereid_gpu::{DeviceTarget, Gpus};
use nereid_request::{MemoryType, Place, Status};

pub(super) type AllocFn = unsafe extern "C-unwind" fn(
    *mut ResponseAllocator,
    *const c_char,
    usize,
    u32,
    i64,
    *mut c_void,
    *mut *mut c_void,
    *mut *mut c_void,
    *mut u32,
    *mut i64,
) -> *mut Error;
pub(super) type AttributesFn = unsafe extern "C-unwind" fn(
    *mut ResponseAllocator,
    *const c_char,
    *mut BufferAttributes,
    *mut c_void,
    *mut c_void,
) -> *mut Error;
pub(super) type QueryFn = unsafe extern "C-unwind" fn(
    *mut ResponseAllocator,
    *mut c_void,
    *const c_char,
    *mut usize,
    *mut u32,
    *mut i64,
) -> *mut Error;
pub(super) type ReleaseFn =
    unsafe extern "C-unwind" fn(*mut ResponseAllocator, *mut c_void, *mut c_void, usize, u32, i64) -> *mut Error;
pub(super) type StartFn = unsafe extern "C-unwind" fn(*mut ResponseAllocator, *mut c_void) -> *mut Error;

/// `TRITONSERVER_ResponseAllocator`.
#[derive(Debug)]
pub struct ResponseAllocator {
    /// Requests on any thread read them, while another thread may set one.
    functions: Mutex<Functions>,
}

impl ResponseAllocator {
    fn functions(&self) -> MutexGuard<'_, Functions> {
        self.functions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Clone, Copy)]
struct Functions {
    alloc: AllocFn,
    release: ReleaseFn,
    start: Option<StartFn>,
    attributes: Option<AttributesFn>,
    query: Option<QueryFn>,
}

/// # Safety
/// The pointer is writable; the functions may be called from any thread for as long as requests use the allocator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ResponseAllocatorNew(
    allocator: *mut *mut ResponseAllocator,
    alloc_fn: Option<AllocFn>,
    release_fn: Option<ReleaseFn>,
    start_fn: Option<StartFn>,
) -> *mut Error {
    entry(|| {
        let alloc = alloc_fn.ok_or_else(|| null("alloc_fn"))?;
        let release = release_fn.ok_or_else(|| null("release_fn"))?;
        if allocator.is_null() {
            return Err(null("allocator"));
        }
        let functions = Functions { alloc, release, start: start_fn, attributes: None, query: None };
        // SAFETY: `allocator` is NULL or writable: this function requires it of its caller.
        unsafe { put(allocator, give(ResponseAllocator { functions: Mutex::new(functions) })) }
    })
}

/// # Safety
/// The allocator is live; requests that were sent keep the functions that it had then. NULL takes the function away.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ResponseAllocatorSetBufferAttributesFunction(
    allocator: *mut ResponseAllocator,
    buffer_attributes_fn: Option<AttributesFn>,
) -> *mut Error {
    entry(|| {
        // SAFETY: `allocator` is NULL or live: this function requires it of its caller.
        unsafe { deref(allocator.cast_const(), "allocator")? }.functions().attributes = buffer_attributes_fn;
        Ok(())
    })
}

/// # Safety
/// The allocator is live; requests that were sent keep the functions that it had then. NULL takes the function away.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ResponseAllocatorSetQueryFunction(
    allocator: *mut ResponseAllocator,
    query_fn: Option<QueryFn>,
) -> *mut Error {
    entry(|| {
        // SAFETY: `allocator` is NULL or live: this function requires it of its caller.
        unsafe { deref(allocator.cast_const(), "allocator")? }.functions().query = query_fn;
        Ok(())
    })
}

/// # Safety
/// The allocator is live and no request or response that uses it is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ResponseAllocatorDelete(allocator: *mut ResponseAllocator) -> *mut Error {
    entry(|| {
        // SAFETY: `allocator` is NULL or an object that the caller gives back: this function requires it of its caller.
        unsafe { take(allocator, "allocator") }.map(drop)
    })
}

/// An allocator as one request uses it, with the functions that it had when the request chose it.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequestAllocator {
    allocator: *mut ResponseAllocator,
    userp: *mut c_void,
    functions: Functions,
}

// SAFETY: both pointers are only handed back to the application, whose functions take them on any thread.
unsafe impl Send for RequestAllocator {}
// SAFETY: as above; contract/c_api.md, "Allocator": concurrent requests share it.
unsafe impl Sync for RequestAllocator {}

/// Memory that an application provided. Dropping it releases it.
#[derive(Debug)]
pub(super) struct Buffer {
    request_allocator: RequestAllocator,
    pub at: *mut c_void,
    pub byte_size: usize,
    pub place: Place,
    pub userp: *mut c_void,
}

// SAFETY: as for `RequestAllocator`; the memory is used by one owner at a time, whatever its thread.
unsafe impl Send for Buffer {}
// SAFETY: as for `RequestAllocator`; the memory is used by one owner at a time, whatever its thread.
unsafe impl Sync for Buffer {}

/// Calls a function of the application that returns an error or NULL.
fn called(call: &'static str, function: impl FnOnce() -> *mut Error) -> Result<(), Status> {
    let work = ForeignCode { kind: "application", call, ..ForeignCode::default() };
    let error = guarded(&work, function)
        .map_err(|thrown| Status::internal(format!("the application threw an exception in {call}: {thrown}")))?;
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: what the function returns is an error of this interface that belongs to its caller.
    Err(unsafe { Error::returned(error) })
}

impl RequestAllocator {
    /// # Safety
    /// The allocator is NULL or live, and stays so until every response made with it is deleted.
    pub unsafe fn new(allocator: *mut ResponseAllocator, userp: *mut c_void) -> Result<RequestAllocator, Status> {
        // SAFETY: `allocator` is NULL or live: this function requires it of its caller. Requests that other threads
        // send share it.
        let functions = *unsafe { deref(allocator.cast_const(), "response_allocator")? }.functions();
        Ok(RequestAllocator { allocator, userp, functions })
    }

    /// The allocator with its present functions: an application may set some after it chose the allocator.
    ///
    /// # Safety
    /// As for [`new`](RequestAllocator::new).
    pub unsafe fn renewed(&self) -> Result<RequestAllocator, Status> {
        // SAFETY: `self.allocator` is live: this function requires it of its caller.
        unsafe { RequestAllocator::new(self.allocator, self.userp) }
    }

    /// Calls the start function of the allocator: a response begins. An error that it returns is only logged.
    pub fn start(&self) {
        let Some(start) = self.functions.start else { return };
        // SAFETY: the application's function gets what it was registered with.
        let outcome =
            called("TRITONSERVER_ResponseAllocatorStartFn_t", || unsafe { start(self.allocator, self.userp) });
        if let Err(status) = outcome {
            tracing::error!("the start function of a response allocator failed: {status}");
        }
    }

    /// Memory for an output, of the kind that the application chooses; of a device only if it is one of `gpus`.
    pub fn allocate(
        &self,
        name: &CStr,
        byte_size: usize,
        wanted: Place,
        gpus: Option<&Gpus>,
    ) -> Result<Buffer, Status> {
        let (mut at, mut buffer_userp) = (std::ptr::null_mut(), std::ptr::null_mut());
        let (mut kind, mut id) = (wanted.memory_type as u32, wanted.memory_type_id);
        // SAFETY: the name is a C string, the results are variables of this function.
        called("TRITONSERVER_ResponseAllocatorAllocFn_t", || unsafe {
            (self.functions.alloc)(
                self.allocator,
                name.as_ptr(),
                byte_size,
                wanted.memory_type as u32,
                wanted.memory_type_id,
                self.userp,
                &raw mut at,
                &raw mut buffer_userp,
                &raw mut kind,
                &raw mut id,
            )
        })?;
        let memory_type = MemoryType::from_number(kind);
        let place = Place { memory_type: memory_type.unwrap_or_default(), memory_type_id: id, cuda_ipc_handle: 0 };
        // From here on it is released on every path.
        let mut buffer = Buffer { request_allocator: *self, at, byte_size, place, userp: buffer_userp };
        let shown = name.to_string_lossy();
        if memory_type.is_none() {
            return Err(Status::invalid(format!("the buffer for output '{shown}' is of unknown memory type {kind}")));
        }
        self.describe(name, &mut buffer)?;
        // Triton also accepts a success without a buffer: the output has a size but no elements.
        if at.is_null() {
            return Ok(buffer);
        }
        let is_on_device = buffer.place.memory_type == MemoryType::Gpu;
        if is_on_device && gpus.is_none() {
            return Err(Status::unsupported(format!(
                "the response allocator gave GPU memory for output '{shown}', which this build cannot write"
            )));
        }
        if is_on_device && gpus.and_then(|gpus| gpu_of(gpus, buffer.place)).is_none() {
            let id = buffer.place.memory_type_id;
            return Err(Status::unsupported(format!(
                "the response allocator gave memory of GPU {id} for output '{shown}', which the server does not use"
            )));
        }
        Ok(buffer)
    }

    /// Calls the application's function for buffer attributes, if there is one.
    fn describe(&self, name: &CStr, buffer: &mut Buffer) -> Result<(), Status> {
        let Some(describe) = self.functions.attributes else { return Ok(()) };
        let mut attributes = BufferAttributes {
            memory_type: buffer.place.memory_type as u32,
            memory_type_id: buffer.place.memory_type_id,
            byte_size: buffer.byte_size,
            ..BufferAttributes::default()
        };
        handle_registry::expose(&raw const attributes);
        // SAFETY: the name is a C string, the attributes live through the call.
        let outcome = called("TRITONSERVER_ResponseAllocatorBufferAttributesFn_t", || unsafe {
            describe(self.allocator, name.as_ptr(), &raw mut attributes, self.userp, buffer.userp)
        });
        handle_registry::reclaim(&raw const attributes);
        outcome?;
        buffer.place = Place {
            memory_type: MemoryType::from_number(attributes.memory_type).unwrap_or_default(),
            memory_type_id: attributes.memory_type_id,
            cuda_ipc_handle: attributes.cuda_ipc_handle.addr(),
        };
        Ok(())
    }

    /// Where the application would place an output; `None`: it has no query function.
    pub fn query(&self, name: Option<&CStr>, byte_size: Option<usize>, wanted: Place) -> Result<Option<Place>, Status> {
        let Some(query) = self.functions.query else { return Ok(None) };
        let (mut kind, mut id) = (wanted.memory_type as u32, wanted.memory_type_id);
        let mut byte_size = byte_size;
        let byte_size = byte_size.as_mut().map_or(std::ptr::null_mut(), std::ptr::from_mut);
        let name = name.map_or(std::ptr::null(), CStr::as_ptr);
        // SAFETY: the name is a C string or NULL, the rest are variables of this function.
        called("TRITONSERVER_ResponseAllocatorQueryFn_t", || unsafe {
            query(self.allocator, self.userp, name, byte_size, &raw mut kind, &raw mut id)
        })?;
        let memory_type = MemoryType::from_number(kind)
            .ok_or_else(|| Status::invalid(format!("the response allocator prefers unknown memory type {kind}")))?;
        Ok(Some(Place { memory_type, memory_type_id: id, cuda_ipc_handle: 0 }))
    }
}

impl Buffer {
    /// The buffer as memory of a device, if it is that; it must not outlive the buffer, unless `owner` holds the
    /// buffer.
    pub fn target(&self, gpus: Option<&Gpus>, owner: Arc<dyn Any + Send + Sync>) -> Option<DeviceTarget> {
        let gpu = gpu_of(gpus?, self.place).filter(|_| !self.at.is_null())?;
        // SAFETY: the application gave the memory for this output alone, until the buffer goes back.
        Some(unsafe { DeviceTarget::foreign(gpu.clone(), DeviceAddress(self.at.addr() as u64), self.byte_size, owner) })
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // Without a buffer there is nothing to release.
        if self.at.is_null() {
            return;
        }
        let RequestAllocator { allocator, functions, .. } = self.request_allocator;
        let Place { memory_type, memory_type_id, .. } = self.place;
        // SAFETY: the buffer came from this allocator, and is not used any more.
        let outcome = called("TRITONSERVER_ResponseAllocatorReleaseFn_t", || unsafe {
            (functions.release)(allocator, self.at, self.userp, self.byte_size, memory_type as u32, memory_type_id)
        });
        if let Err(status) = outcome {
            tracing::error!("the release function of a response allocator failed: {status}");
        }
    }
}
