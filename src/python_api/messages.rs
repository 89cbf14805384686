//! `TRITONSERVER_Message` and `TRITONSERVER_Metrics`: texts that the server wrote.

use std::ffi::c_char;
use std::ptr::null_mut;

use pyo3::prelude::*;

use crate::c;
use crate::errors::{call, check};
use crate::numbers::MetricFormat;

/// The text of `size` bytes at `base`.
///
/// # Safety
/// There are as many bytes at `base`, or `base` is NULL.
unsafe fn text_at(base: *const c_char, size: usize) -> String {
    if base.is_null() {
        return String::new();
    }
    // SAFETY: there are as many bytes: this function requires it of its caller.
    String::from_utf8_lossy(unsafe { std::slice::from_raw_parts(base.cast(), size) }).into_owned()
}

#[pyclass(name = "TRITONSERVER_Message", module = "tritonserver._c.triton_bindings", frozen)]
pub struct Message(*mut c::Message);

// SAFETY: the C object does not change between its creation and its deletion.
unsafe impl Send for Message {}
// SAFETY: as it does not change, threads may share it.
unsafe impl Sync for Message {}

impl Message {
    /// Takes the message over.
    pub fn owning(message: *mut c::Message) -> Message {
        Message(message)
    }
}

#[pymethods]
impl Message {
    #[new]
    fn new(json: &str) -> PyResult<Message> {
        let mut message = null_mut();
        call!(TRITONSERVER_MessageNewFromSerializedJson(&mut message, json.as_ptr().cast(), json.len()))?;
        Ok(Message(message))
    }

    fn serialize_to_json(&self) -> PyResult<String> {
        let (mut base, mut size) = (std::ptr::null(), 0);
        call!(TRITONSERVER_MessageSerializeToJson(self.0, &mut base, &mut size))?;
        // SAFETY: the call has set address and size of a text that lives as long as the message.
        Ok(unsafe { text_at(base, size) })
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        // SAFETY: this object owns the C object, and nothing uses it afterwards.
        drop(check(unsafe { c::TRITONSERVER_MessageDelete(self.0) }));
    }
}

#[pyclass(name = "TRITONSERVER_Metrics", module = "tritonserver._c.triton_bindings", frozen)]
pub struct Metrics(*mut c::Metrics);

// SAFETY: the C object is a snapshot, which does not change.
unsafe impl Send for Metrics {}
// SAFETY: as it does not change, threads may share it.
unsafe impl Sync for Metrics {}

impl Metrics {
    /// Takes the snapshot over.
    pub fn owning(metrics: *mut c::Metrics) -> Metrics {
        Metrics(metrics)
    }
}

#[pymethods]
impl Metrics {
    fn formatted(&self, format: MetricFormat) -> PyResult<String> {
        let (mut base, mut size) = (std::ptr::null(), 0);
        call!(TRITONSERVER_MetricsFormatted(self.0, format.0, &mut base, &mut size))?;
        // SAFETY: the call has set address and size of a text that lives as long as the snapshot.
        Ok(unsafe { text_at(base, size) })
    }
}

impl Drop for Metrics {
    fn drop(&mut self) {
        // SAFETY: this object owns the C object, and nothing uses it afterwards.
        drop(check(unsafe { c::TRITONSERVER_MetricsDelete(self.0) }));
    }
}
