//! `TRITONSERVER_Metrics`: a snapshot of a server's metrics.

use std::ffi::c_char;

use super::super::border::{deref, entry, give, null, put, take};
use super::Error;
use crate::server::access::Access;
use nereid_request::Status;

/// `TRITONSERVER_MetricFormat`.
const PROMETHEUS: u32 = 0;

/// See the [module](self).
#[derive(Debug)]
pub struct Metrics {
    page: Box<str>,
}

/// # Safety
/// `server` is live and `metrics` writable; the caller owns the metrics.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ServerMetrics(server: *const Access, metrics: *mut *mut Metrics) -> *mut Error {
    entry(|| {
        // SAFETY: `server` is NULL or live: this function requires it of its caller.
        let server = unsafe { deref(server, "server")? };
        if metrics.is_null() {
            return Err(null("metrics"));
        }
        let page = server.render_metrics()?.into();
        // SAFETY: not null, and by contract writable.
        unsafe { put(metrics, give(Metrics { page })) }
    })
}

/// # Safety
/// `metrics` is live and not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_MetricsDelete(metrics: *mut Metrics) -> *mut Error {
    // SAFETY: `metrics` is NULL or an object that the caller gives back: this function requires it of its caller.
    entry(|| unsafe { take(metrics, "metrics") }.map(drop))
}

/// # Safety
/// `metrics` is live, the rest writable; the text lives as long as the metrics, and no 0 ends it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_MetricsFormatted(
    metrics: *const Metrics,
    format: u32,
    base: *mut *const c_char,
    byte_size: *mut usize,
) -> *mut Error {
    // SAFETY: `metrics` is NULL or live, and `base` and `byte_size` are NULL or writable: this function requires that
    // of its caller.
    entry(|| unsafe {
        let page = &deref(metrics, "metrics")?.page;
        if format != PROMETHEUS {
            return Err(Status::invalid(format!("unknown metrics format '{format}'")));
        }
        put(base, page.as_ptr().cast())?;
        put(byte_size, page.len())
    })
}
