//! Metrics that a program creates. A metric keeps its family.

use std::ptr::null_mut;
use std::sync::Arc;

use pyo3::prelude::*;

use crate::c;
use crate::errors::{call, check, text};
use crate::numbers::MetricKind;
use crate::parameters::{Parameter, addresses};

/// A family, which ends with the last object that uses it.
struct Family(*mut c::MetricFamily);

// SAFETY: the functions of families may be called from any thread.
unsafe impl Send for Family {}
// SAFETY: the functions of families may be called by several threads at a time.
unsafe impl Sync for Family {}

impl Drop for Family {
    fn drop(&mut self) {
        // SAFETY: metrics hold their family, so none is left, and nothing uses it afterwards.
        drop(check(unsafe { c::TRITONSERVER_MetricFamilyDelete(self.0) }));
    }
}

#[pyclass(name = "TRITONSERVER_MetricFamily", module = "tritonserver._c.triton_bindings", frozen, subclass)]
pub struct MetricFamily(Arc<Family>);

#[pymethods]
impl MetricFamily {
    #[new]
    fn new(kind: MetricKind, name: &str, description: &str) -> PyResult<MetricFamily> {
        let (name, description) = (text(name)?, text(description)?);
        let mut family = null_mut();
        call!(TRITONSERVER_MetricFamilyNew(&mut family, kind.0, name.as_ptr(), description.as_ptr()))?;
        Ok(MetricFamily(Arc::new(Family(family))))
    }
}

#[pyclass(name = "TRITONSERVER_Metric", module = "tritonserver._c.triton_bindings", frozen, subclass)]
pub struct Metric {
    at: *mut c::Metric,
    _family: Arc<Family>,
}

// SAFETY: the functions of metrics may be called from any thread.
unsafe impl Send for Metric {}
// SAFETY: the functions of metrics may be called by several threads at a time.
unsafe impl Sync for Metric {}

#[pymethods]
impl Metric {
    #[new]
    fn new(family: &MetricFamily, labels: Vec<PyRef<'_, Parameter>>) -> PyResult<Metric> {
        let mut labels = addresses(&labels);
        let mut at = null_mut();
        call!(TRITONSERVER_MetricNew(&mut at, family.0.0, labels.as_mut_ptr(), labels.len() as u64))?;
        Ok(Metric { at, _family: Arc::clone(&family.0) })
    }

    #[getter]
    fn value(&self) -> PyResult<f64> {
        let mut value = 0.0;
        call!(TRITONSERVER_MetricValue(self.at, &mut value))?;
        Ok(value)
    }

    #[getter]
    fn kind(&self) -> PyResult<MetricKind> {
        let mut kind = 0;
        call!(TRITONSERVER_GetMetricKind(self.at, &mut kind))?;
        Ok(MetricKind(kind))
    }

    fn increment(&self, value: f64) -> PyResult<()> {
        Ok(call!(TRITONSERVER_MetricIncrement(self.at, value))?)
    }

    fn set_value(&self, value: f64) -> PyResult<()> {
        Ok(call!(TRITONSERVER_MetricSet(self.at, value))?)
    }
}

impl Drop for Metric {
    fn drop(&mut self) {
        // SAFETY: this object owns the C object, and nothing uses it afterwards.
        drop(check(unsafe { c::TRITONSERVER_MetricDelete(self.at) }));
    }
}
