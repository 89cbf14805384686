//! Numbers of the C interface. Their classes are Python's (`tritonserver._c._numbers`); here they are looked up.

use std::ffi::c_int;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

use crate::c;
use crate::errors::{owned, text};

/// One enumeration: its class, and its members with their values.
pub struct Class {
    class: Py<PyType>,
    members: Vec<(c_int, Py<PyAny>)>,
}

impl Class {
    fn find(py: Python<'_>, name: &str) -> PyResult<Class> {
        let class = py.import("tritonserver._c._numbers")?.getattr(name)?.cast_into::<PyType>()?;
        let mut members = Vec::new();
        for member in class.try_iter()? {
            let member = member?;
            members.push((member.extract()?, member.unbind()));
        }
        Ok(Class { class: class.unbind(), members })
    }
}

/// A number that Python programs see as a member of an enumeration.
pub trait Number: Sized {
    const NAME: &'static str;
    fn class() -> &'static PyOnceLock<Class>;
    fn of(value: c_int) -> Self;

    fn known(py: Python<'_>) -> PyResult<&'static Class> {
        Self::class().get_or_try_init(py, || Class::find(py, Self::NAME))
    }

    /// The member; the number itself if a newer library has one without a name.
    fn member(py: Python<'_>, value: c_int) -> PyResult<Py<PyAny>> {
        let known = Self::known(py)?;
        match known.members.iter().find(|(number, _)| *number == value) {
            Some((_, member)) => Ok(member.clone_ref(py)),
            None => Ok(value.into_pyobject(py)?.into_any().unbind()),
        }
    }

    fn from_member(member: &Bound<'_, PyAny>) -> PyResult<Self> {
        let known = Self::known(member.py())?;
        if !member.is_instance(known.class.bind(member.py()))? {
            let given = member.get_type().name()?.to_string();
            return Err(PyTypeError::new_err(format!("expected {}, not {given}", Self::NAME)));
        }
        Ok(Self::of(member.extract()?))
    }
}

macro_rules! numbers {
    ($($kind:ident $name:literal;)*) => { $(
        #[derive(Clone, Copy)]
        pub struct $kind(pub c_int);

        impl Number for $kind {
            const NAME: &'static str = $name;

            fn class() -> &'static PyOnceLock<Class> {
                static CLASS: PyOnceLock<Class> = PyOnceLock::new();
                &CLASS
            }

            fn of(value: c_int) -> $kind {
                $kind(value)
            }
        }

        impl<'py> IntoPyObject<'py> for $kind {
            type Target = PyAny;
            type Output = Bound<'py, PyAny>;
            type Error = PyErr;

            fn into_pyobject(self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
                Ok(<$kind as Number>::member(py, self.0)?.into_bound(py))
            }
        }

        impl<'py> FromPyObject<'_, 'py> for $kind {
            type Error = PyErr;

            fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<$kind> {
                <$kind as Number>::from_member(&object)
            }
        }
    )* };
}

numbers! {
    DataType "TRITONSERVER_DataType";
    MemoryType "TRITONSERVER_MemoryType";
    ParameterType "TRITONSERVER_ParameterType";
    InstanceGroupKind "TRITONSERVER_InstanceGroupKind";
    LogLevel "TRITONSERVER_LogLevel";
    LogFormat "TRITONSERVER_LogFormat";
    MetricFormat "TRITONSERVER_MetricFormat";
    MetricKind "TRITONSERVER_MetricKind";
    TraceLevel "TRITONSERVER_InferenceTraceLevel";
    TraceActivity "TRITONSERVER_InferenceTraceActivity";
    ModelControlMode "TRITONSERVER_ModelControlMode";
    RateLimitMode "TRITONSERVER_RateLimitMode";
}

/// Functions that name numbers.
macro_rules! names {
    ($($function:ident($kind:ty);)*) => { $(
        #[pyfunction]
        fn $function(value: $kind) -> String {
            // SAFETY: the function takes any number, and its result is a text that lives for ever.
            unsafe { owned(c::$function(value.0)) }
        }
    )* };
}

names! {
    TRITONSERVER_DataTypeString(DataType);
    TRITONSERVER_MemoryTypeString(MemoryType);
    TRITONSERVER_ParameterTypeString(ParameterType);
    TRITONSERVER_InstanceGroupKindString(InstanceGroupKind);
    TRITONSERVER_InferenceTraceLevelString(TraceLevel);
    TRITONSERVER_InferenceTraceActivityString(TraceActivity);
}

#[pyfunction]
fn TRITONSERVER_StringToDataType(name: &str) -> PyResult<DataType> {
    let name = text(name)?;
    // SAFETY: a C string that lives through the call.
    Ok(DataType(unsafe { c::TRITONSERVER_StringToDataType(name.as_ptr()) }))
}

#[pyfunction]
fn TRITONSERVER_DataTypeByteSize(datatype: DataType) -> u32 {
    // SAFETY: the function takes any number.
    unsafe { c::TRITONSERVER_DataTypeByteSize(datatype.0) }
}

/// The version of the C interface.
#[pyfunction]
fn api_version() -> PyResult<(u32, u32)> {
    let (mut major, mut minor) = (0, 0);
    crate::errors::call!(TRITONSERVER_ApiVersion(&mut major, &mut minor))?;
    Ok((major, minor))
}

pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(api_version, module)?)?;
    module.add_function(wrap_pyfunction!(TRITONSERVER_DataTypeString, module)?)?;
    module.add_function(wrap_pyfunction!(TRITONSERVER_MemoryTypeString, module)?)?;
    module.add_function(wrap_pyfunction!(TRITONSERVER_ParameterTypeString, module)?)?;
    module.add_function(wrap_pyfunction!(TRITONSERVER_InstanceGroupKindString, module)?)?;
    module.add_function(wrap_pyfunction!(TRITONSERVER_InferenceTraceLevelString, module)?)?;
    module.add_function(wrap_pyfunction!(TRITONSERVER_InferenceTraceActivityString, module)?)?;
    module.add_function(wrap_pyfunction!(TRITONSERVER_StringToDataType, module)?)?;
    module.add_function(wrap_pyfunction!(TRITONSERVER_DataTypeByteSize, module)?)
}
