//! `TRITONBACKEND_ModelInstance…ResponseStatistics*`: reports on single responses (contract/metrics.md section 3).
//!
//! The index of a response is the number of responses that were reported for its request before it.

use super::super::handles::{FactoryHandle, InstanceHandle};
use crate::abi::border::{deref, deref_mut, entry, give, null, put, take};
use crate::abi::server::Error;
use nereid_observe::statistics::{ResponseOutcome, ResponseTimes};
use nereid_request::{Code, Status};

/// `TRITONBACKEND_ModelInstanceResponseStatistics`: a report that its owner fills in and may send again.
pub struct ResponseStatisticsHandle {
    instance: *const InstanceHandle,
    factory: *const FactoryHandle,
    start_ns: u64,
    /// 0: the response has no outputs.
    output_start_ns: u64,
    end_ns: u64,
    error: Option<Code>,
}

/// # Safety
/// The pointer is writable. The statistics belong to the caller until they are deleted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_ModelInstanceResponseStatisticsNew(
    statistics: *mut *mut ResponseStatisticsHandle,
) -> *mut Error {
    entry(|| {
        if statistics.is_null() {
            return Err(null("response_statistics"));
        }
        let handle = ResponseStatisticsHandle {
            instance: std::ptr::null(),
            factory: std::ptr::null(),
            start_ns: 0,
            output_start_ns: 0,
            end_ns: 0,
            error: None,
        };
        // SAFETY: `statistics` is NULL or writable: this function requires it of its caller.
        unsafe { put(statistics, give(handle)) }
    })
}

/// # Safety
/// The statistics belong to the caller and are not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_ModelInstanceResponseStatisticsDelete(
    statistics: *mut ResponseStatisticsHandle,
) -> *mut Error {
    // SAFETY: `statistics` is NULL or an object that the caller gives back: this function requires it of its caller.
    entry(|| unsafe { take(statistics, "response_statistics") }.map(drop))
}

/// Exports setters of one field.
macro_rules! setters {
    ($($name:ident($field:ident, $from:ty) = |$it:ident| $value:expr;)*) => {$(
        /// # Safety
        /// The statistics belong to the caller; what the setters store lives until they are reported.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(statistics: *mut ResponseStatisticsHandle, $it: $from) -> *mut Error {
            entry(|| {
                // SAFETY: `statistics` is NULL or live, and used by this call alone: this function requires it of its
                // caller.
                let handle = unsafe { deref_mut(statistics, "response_statistics")? };
                handle.$field = $value;
                Ok(())
            })
        }
    )*};
}

setters! {
    TRITONBACKEND_ModelInstanceResponseStatisticsSetModelInstance(instance, *const InstanceHandle) = |it| it;
    TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseFactory(factory, *const FactoryHandle) = |it| it;
    TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseStart(start_ns, u64) = |it| it;
    TRITONBACKEND_ModelInstanceResponseStatisticsSetComputeOutputStart(output_start_ns, u64) = |it| it;
    TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseEnd(end_ns, u64) = |it| it;
    TRITONBACKEND_ModelInstanceResponseStatisticsSetError(error, *const Error) = |it| {
        match it.is_null() {
            true => None,
            // SAFETY: by contract a live error, which stays the caller's.
            false => Some(unsafe { deref(it, "error")? }.status().code),
        }
    };
}

/// # Safety
/// The statistics belong to the caller; the instance and the factory that they name are live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_ModelInstanceReportResponseStatistics(
    statistics: *const ResponseStatisticsHandle,
) -> *mut Error {
    entry(|| {
        // SAFETY: `statistics` is NULL or live: this function requires it of its caller.
        let handle = unsafe { deref(statistics, "response_statistics")? };
        // SAFETY: `handle` is NULL or live: this function requires it of its caller.
        let (instance, factory) = unsafe {
            (
                deref(handle.instance, "the model instance of response_statistics")?,
                deref(handle.factory, "the response factory of response_statistics")?,
            )
        };
        let times = ResponseTimes {
            start_ns: handle.start_ns,
            output_start_ns: Some(handle.output_start_ns).filter(|output_ns| *output_ns > 0),
            end_ns: handle.end_ns,
        };
        times.check().map_err(Status::invalid)?;
        let outcome = match handle.error {
            None => ResponseOutcome::Sent,
            Some(Code::Cancelled) => ResponseOutcome::Cancelled,
            Some(_) => ResponseOutcome::Failed,
        };
        let index = factory.responses.next_report();
        if factory.is_counted {
            instance.context.model.statistics.response_made(index, outcome, &times);
        }
        Ok(())
    })
}
