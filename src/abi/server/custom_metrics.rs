//! `TRITONSERVER_Metric*`: metrics that backends and applications define.
//!
//! The functions take no server, so the metrics belong to the process and appear on the page of every server in it. A
//! handle holds its series; a change of a value is one atomic operation.

use std::ffi::c_char;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Error;
use super::parameters::{Parameter, listed};
use crate::abi::border::{deref, deref_mut, deref_optional, entry, give, null, put, take, text};
use nereid_observe::metrics::{self, Kind, MetricError, Registry};
use nereid_request::Status;

/// `TRITONSERVER_MetricFamily`.
pub struct MetricFamily {
    held: Arc<HeldFamily>,
}

/// The data that the handle of a family and those of its metrics share.
struct HeldFamily {
    family: metrics::Family,
    /// The number of live handles of metrics that were made through this handle.
    metric_count: AtomicUsize,
}

/// `TRITONSERVER_Metric`.
pub struct Metric {
    metric: metrics::Metric,
    family: Arc<HeldFamily>,
}

/// `TRITONSERVER_MetricArgs`.
#[derive(Default)]
pub struct MetricArgs {
    /// The buckets of a histogram, once they are set.
    buckets: Option<Vec<f64>>,
}

impl Drop for Metric {
    fn drop(&mut self) {
        self.family.metric_count.fetch_sub(1, Ordering::AcqRel);
    }
}

fn refused(error: MetricError) -> Status {
    match error {
        MetricError::TooMany => Status::unavailable(error.to_string()),
        MetricError::Unsupported { .. } => Status::unsupported(error.to_string()),
        _ => Status::invalid(error.to_string()),
    }
}

/// `TRITONSERVER_MetricKind`.
fn number_of(kind: Kind) -> u32 {
    match kind {
        Kind::Counter => 0,
        Kind::Gauge | Kind::Summary => 1,
        Kind::Histogram => 2,
    }
}

/// # Safety
/// `name` and `description` are C strings or NULL, `family` is writable or NULL. The family belongs to the caller until
/// it deletes it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_MetricFamilyNew(
    family: *mut *mut MetricFamily,
    kind: u32,
    name: *const c_char,
    description: *const c_char,
) -> *mut Error {
    entry(|| {
        if family.is_null() {
            return Err(null("family"));
        }
        let kind = match kind {
            0 => Kind::Counter,
            1 => Kind::Gauge,
            2 => Kind::Histogram,
            _ => return Err(Status::invalid("Unsupported kind passed to MetricFamily constructor.")),
        };
        // SAFETY: `name` and `description` are NULL or a C string: this function requires that of its caller.
        let (name, help) = unsafe { (text(name, "name")?, text(description, "description")?) };
        let made = Registry::of_process().custom_family(&name.to_string_lossy(), &help.to_string_lossy(), kind);
        let held = HeldFamily { family: made.map_err(refused)?, metric_count: AtomicUsize::new(0) };
        // SAFETY: `family` is NULL or writable: this function requires it of its caller.
        unsafe { put(family, give(MetricFamily { held: Arc::new(held) })) }
    })
}

/// # Safety
/// `family` is live and not used afterwards unless the call fails, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_MetricFamilyDelete(family: *mut MetricFamily) -> *mut Error {
    entry(|| {
        // SAFETY: `family` is NULL or live: this function requires it of its caller.
        let held = unsafe { &deref(family, "family")?.held };
        if held.metric_count.load(Ordering::Acquire) > 0 {
            let text = "Must call MetricDelete on all dependent metrics before calling MetricFamilyDelete.";
            return Err(Status::internal(text));
        }
        // SAFETY: as above; the reference from before is not used any more.
        unsafe { take(family, "family") }.map(drop)
    })
}

/// # Safety
/// `family` is live or NULL, `kind` is writable or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_GetMetricFamilyKind(family: *const MetricFamily, kind: *mut u32) -> *mut Error {
    // SAFETY: `kind` is NULL or writable: this function requires it of its caller.
    entry(|| unsafe { put(kind, number_of(deref(family, "family")?.held.family.kind())) })
}

/// # Safety
/// `args` is writable or NULL. The arguments belong to the caller until it deletes them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_MetricArgsNew(args: *mut *mut MetricArgs) -> *mut Error {
    entry(|| {
        if args.is_null() {
            return Err(null("args"));
        }
        // SAFETY: `args` is NULL or writable: this function requires it of its caller.
        unsafe { put(args, give(MetricArgs::default())) }
    })
}

/// # Safety
/// `args` is live and used by this call only, or NULL; `buckets` is readable for `buckets_count` numbers, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_MetricArgsSetHistogram(
    args: *mut MetricArgs,
    buckets: *const f64,
    buckets_count: u64,
) -> *mut Error {
    entry(|| {
        // SAFETY: `args` is NULL or live, and used by this call alone: this function requires it of its caller.
        let args = unsafe { deref_mut(args, "args")? };
        let count = usize::try_from(buckets_count).unwrap_or(usize::MAX);
        // The last one may be infinity, which does not count.
        if count > metrics::MAX_BOUNDS + 1 {
            return Err(refused(MetricError::InvalidBounds));
        }
        let given = match (count, buckets.is_null()) {
            (0, _) => &[],
            (_, true) => return Err(null("buckets")),
            // SAFETY: not null, and by contract readable.
            (count, false) => unsafe { std::slice::from_raw_parts(buckets, count) },
        };
        args.buckets = Some(given.to_vec());
        Ok(())
    })
}

/// NULL is accepted: Triton's Python backend deletes arguments that it never made for counters and gauges.
///
/// # Safety
/// `args` is live and not used afterwards, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_MetricArgsDelete(args: *mut MetricArgs) -> *mut Error {
    if args.is_null() {
        return std::ptr::null_mut();
    }
    // SAFETY: `args` is NULL or an object that the caller gives back: this function requires it of its caller.
    entry(|| unsafe { take(args, "args") }.map(drop))
}

/// # Safety
/// As for [`TRITONSERVER_MetricNewWithArgs`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_MetricNew(
    metric: *mut *mut Metric,
    family: *const MetricFamily,
    labels: *const *const Parameter,
    label_count: u64,
) -> *mut Error {
    // SAFETY: the pointers are NULL, or live and writable as `make` requires: this function requires the same of its
    // caller.
    entry(|| unsafe { make(metric, family, (labels, label_count), std::ptr::null()) })
}

/// # Safety
/// `family` and `args` are live or NULL, `labels` points to `label_count` live parameters or is NULL, `metric` is
/// writable or NULL. The metric belongs to the caller, which deletes it before its family.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_MetricNewWithArgs(
    metric: *mut *mut Metric,
    family: *const MetricFamily,
    labels: *const *const Parameter,
    label_count: u64,
    args: *const MetricArgs,
) -> *mut Error {
    // SAFETY: the pointers are NULL, or live and writable as `make` requires: this function requires the same of its
    // caller.
    entry(|| unsafe { make(metric, family, (labels, label_count), args) })
}

/// # Safety
/// As for [`TRITONSERVER_MetricNewWithArgs`].
unsafe fn make(
    metric: *mut *mut Metric,
    family: *const MetricFamily,
    (labels, label_count): (*const *const Parameter, u64),
    args: *const MetricArgs,
) -> Result<(), Status> {
    if metric.is_null() {
        return Err(null("metric"));
    }
    // SAFETY: `family` is NULL or live: this function requires it of its caller.
    let (held, labels) = unsafe { (&deref(family, "family")?.held, texts(labels, label_count)?) };
    // SAFETY: `args` is NULL or live: this function requires it of its caller.
    let buckets = buckets_for(held.family.kind(), unsafe { deref_optional(args, "args")? })?;
    let made = held.family.metric(&labels, buckets).map_err(refused)?;
    held.metric_count.fetch_add(1, Ordering::AcqRel);
    // SAFETY: `metric` is NULL or writable: this function requires it of its caller.
    unsafe { put(metric, give(Metric { metric: made, family: Arc::clone(held) })) }
}

fn buckets_for(kind: Kind, args: Option<&MetricArgs>) -> Result<&[f64], Status> {
    match (kind, args) {
        (Kind::Histogram, None) => Err(Status::invalid("Bucket boundaries not found in Metric args.")),
        (Kind::Histogram, Some(args)) => {
            args.buckets.as_deref().ok_or_else(|| Status::invalid("Metric args not set to histogram kind."))
        }
        (_, None) => Ok(&[]),
        (Kind::Counter, Some(_)) => Err(Status::invalid("Unexpected args found in counter Metric constructor.")),
        (_, Some(_)) => Err(Status::invalid("Unexpected args found in gauge Metric constructor.")),
    }
}

/// Names and values of labels.
///
/// # Safety
/// `labels` is NULL or points to `count` pointers, each NULL or to a live parameter.
unsafe fn texts<'a>(labels: *const *const Parameter, count: u64) -> Result<Vec<(&'a str, &'a str)>, Status> {
    // Every label has at least one byte.
    let count = usize::try_from(count).ok().filter(|count| *count <= metrics::MAX_TEXT_BYTES);
    let count = count.ok_or_else(|| refused(MetricError::TooLong))?;
    // SAFETY: `labels` is NULL or points to `count` pointers: this function requires it of its caller.
    let labels = unsafe { listed(labels, count, "labels")? };
    let text = |label: &'a Parameter| match (label.name()?, label.string()) {
        (name, Some(value)) => Ok((name, value?)),
        (name, None) => Err(Status::invalid(format!(
            "Parameter [{name}] must have a type of TRITONSERVER_PARAMETER_STRING to be added as a label."
        ))),
    };
    labels.into_iter().map(text).collect()
}

/// # Safety
/// `metric` is live and not used afterwards, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_MetricDelete(metric: *mut Metric) -> *mut Error {
    // SAFETY: `metric` is NULL or an object that the caller gives back: this function requires it of its caller.
    entry(|| unsafe { take(metric, "metric") }.map(drop))
}

/// # Safety
/// `metric` is live or NULL, `value` is writable or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_MetricValue(metric: *const Metric, value: *mut f64) -> *mut Error {
    // SAFETY: `value` is NULL or writable, and `metric` is NULL or live: this function requires that of its caller.
    entry(|| unsafe { put(value, deref(metric, "metric")?.metric.value().map_err(refused)?) })
}

/// # Safety
/// `metric` is live or NULL, `kind` is writable or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_GetMetricKind(metric: *const Metric, kind: *mut u32) -> *mut Error {
    // SAFETY: `kind` is NULL or writable: this function requires it of its caller.
    entry(|| unsafe { put(kind, number_of(deref(metric, "metric")?.metric.kind())) })
}

/// Exports `(metric, value) -> error`, which change a value.
macro_rules! changes {
    ($($name:ident(f64) = $change:ident;)*) => {$(
        /// # Safety
        /// `metric` is live or NULL. Any number of threads may call it at once.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(metric: *const Metric, value: f64) -> *mut Error {
            // SAFETY: `metric` is NULL or live: this function requires it of its caller.
            entry(|| unsafe { deref(metric, "metric")? }.metric.$change(value).map_err(refused))
        }
    )*};
}

changes! {
    TRITONSERVER_MetricIncrement(f64) = increment;
    TRITONSERVER_MetricSet(f64) = set;
    TRITONSERVER_MetricObserve(f64) = observe;
}
