//! `TRITONBACKEND_ResponseFactory*`: responses that a plug-in sends later, from any thread, in any number.
//!
//! A factory wraps the server's own producer of responses. It outlives the request. A send blocks while too many bytes
//! of the request's responses wait for a client that does not read.

use crate::abi::border::{deref, entry, give, null, put, take};
use crate::abi::casts::{self, Either};
use crate::abi::handles::{FactoryHandle, ResponseHandle};
use crate::abi::server::Error;
use nereid_request::{Request, Status};

use super::responses::FINAL;

/// # Safety
/// The request is live and the pointer writable. The factory belongs to the caller until it is deleted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_ResponseFactoryNew(
    factory: *mut *mut FactoryHandle,
    request: *const Request,
) -> *mut Error {
    entry(|| {
        // SAFETY: `request` is NULL or a live request: this function requires it of its caller.
        let handle = unsafe { factory_of(request)? };
        if factory.is_null() {
            return Err(null("factory"));
        }
        // SAFETY: `factory` is NULL or writable: this function requires it of its caller.
        unsafe { put(factory, give(handle)) }
    })
}

/// The factory of a backend's request, or of one that an application sent.
///
/// # Safety
/// The request is NULL or live.
pub(super) unsafe fn factory_of(request: *const Request) -> Result<FactoryHandle, Status> {
    match casts::request(request) {
        Either::Backend(request) => {
            // SAFETY: `request` is NULL or live: this function requires it of its caller.
            let request = unsafe { deref(request.cast_const(), "request")? };
            Ok(FactoryHandle {
                responses: request.responses(),
                call: None,
                id: request.id.clone(),
                is_counted: request.is_counted(),
                shapes: request.output_shapes.clone(),
                gpus: request.gpus.clone(),
            })
        }
        Either::Application(request) => {
            // SAFETY: `request` is NULL or live: this function requires it of its caller.
            let (call, id) = unsafe { deref(request.cast_const(), "request")?.last_call()? };
            let responses = call.responses();
            Ok(FactoryHandle { responses, call: Some(call), id, is_counted: true, shapes: None, gpus: None })
        }
    }
}

/// # Safety
/// The factory belongs to the caller and is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_ResponseFactoryDelete(factory: *mut FactoryHandle) -> *mut Error {
    // SAFETY: `factory` is NULL or an object that the caller gives back: this function requires it of its caller.
    entry(|| unsafe { take(factory, "factory") }.map(drop))
}

/// Sends flags without a response: the final flag, or none, which has no effect (contract/grpc.md section 5).
///
/// # Safety
/// The factory is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_ResponseFactorySendFlags(
    factory: *const FactoryHandle,
    send_flags: u32,
) -> *mut Error {
    entry(|| {
        // SAFETY: `factory` is NULL or live: this function requires it of its caller.
        let factory = unsafe { deref(factory, "factory")? };
        if send_flags & FINAL != 0 {
            factory.responses.send_end();
        }
        Ok(())
    })
}

/// # Safety
/// The factory is live and the pointer writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_ResponseFactoryIsCancelled(
    factory: *const FactoryHandle,
    is_cancelled: *mut bool,
) -> *mut Error {
    // SAFETY: `is_cancelled` is NULL or writable, and `factory` is NULL or live: this function requires that of its
    // caller.
    entry(|| unsafe { put(is_cancelled, deref(factory, "factory")?.is_cancelled()) })
}

/// # Safety
/// The factory is live and the pointer writable. The response belongs to the caller until it is sent or deleted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_ResponseNewFromFactory(
    response: *mut *mut ResponseHandle,
    factory: *const FactoryHandle,
) -> *mut Error {
    entry(|| {
        // SAFETY: `factory` is NULL or live: this function requires it of its caller.
        let factory = unsafe { deref(factory, "factory")? };
        if response.is_null() {
            return Err(null("response"));
        }
        // SAFETY: `response` is NULL or writable: this function requires it of its caller.
        unsafe { put(response, give(ResponseHandle::from(factory))) }
    })
}
