//! Handles of both interfaces that are one object in Triton: a request, and a response.
//!
//! Triton's own tests, and programs after them, cast `TRITONSERVER_InferenceRequest*` to `TRITONBACKEND_Request*` and
//! `TRITONSERVER_InferenceResponse*` to `TRITONBACKEND_Response*`, or back. Here what an application holds and what a
//! backend holds are different values, so a handle is tagged: the lowest bit of an application's is set, that of a
//! backend's, which is the plain address of the server's own value, is not. Every function that takes such a handle
//! takes both.

use super::border::deref;
use super::handles::ResponseHandle;
use super::server::requests::InferenceRequest;
use super::server::responses::InferenceResponse;
use nereid_request::{Request, Status};

const OF_APPLICATION: usize = 1;

/// The address of a value, as the handle of an application.
pub(super) fn handle_of_application<T>(at: *mut T) -> *mut T {
    const { assert!(align_of::<T>() > OF_APPLICATION) };
    at.map_addr(|address| address | OF_APPLICATION)
}

/// The address behind an application's handle; `None` for a backend's handle, and for NULL.
fn of_application<H, T>(handle: *const H) -> Option<*mut T> {
    let is_of_application = handle.addr() & OF_APPLICATION != 0;
    is_of_application.then(|| handle.map_addr(|address| address & !OF_APPLICATION).cast_mut().cast())
}

/// A handle, untagged: the address of an application's value or of a backend's.
pub(super) enum Either<A, B> {
    Application(*mut A),
    Backend(*mut B),
}

/// The request behind a handle, whatever type the handle was cast to.
pub(super) fn request<H>(handle: *const H) -> Either<InferenceRequest, Request> {
    of_application(handle).map_or(Either::Backend(handle.cast_mut().cast()), Either::Application)
}

/// The response behind a handle, whatever type the handle was cast to.
pub(super) fn response<H>(handle: *const H) -> Either<InferenceResponse, ResponseHandle> {
    of_application(handle).map_or(Either::Backend(handle.cast_mut().cast()), Either::Application)
}

/// A request as backends read it.
///
/// # Safety
/// The handle is NULL or that of a live request. An application's is not edited or sent while the reference is used.
pub(super) unsafe fn readable_request<'a>(handle: *const Request) -> Result<&'a Request, Status> {
    match request(handle) {
        // SAFETY: `at` is NULL or live: this function requires it of its caller.
        Either::Backend(at) => unsafe { deref(at.cast_const(), "request") },
        // SAFETY: `at` is NULL or live: this function requires it of its caller.
        Either::Application(at) => unsafe { deref(at.cast_const(), "request")?.as_a_backend_reads_it() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_says_whose_it_is_whatever_it_is_cast_to() {
        let at: *mut InferenceRequest = std::ptr::without_provenance_mut(0x1000);
        let handle = handle_of_application(at);
        assert!(matches!(request(handle), Either::Application(found) if found == at));
        assert!(matches!(request(handle.cast::<Request>()), Either::Application(found) if found == at));
        let of_backend: *mut Request = std::ptr::without_provenance_mut(0x1000);
        assert!(matches!(request(of_backend), Either::Backend(found) if found == of_backend));
        assert!(matches!(request(of_backend.cast::<u8>()), Either::Backend(found) if found == of_backend));
        assert!(matches!(response(std::ptr::null::<u8>()), Either::Backend(found) if found.is_null()));
    }
}
