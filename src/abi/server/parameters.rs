//! `TRITONSERVER_Parameter`: a name and a value that an application hands to other calls.
//!
//! Bytes are not copied, as the interface specifies: a file that is part of a load may be large.

use std::ffi::{CStr, CString, c_char, c_void};

use super::super::border::{deref, entry_or, give, take, text};
use crate::server::embedded::{LoadParameter, LoadValue};
use nereid_request::Status;

/// `TRITONSERVER_ParameterType`.
const STRING: u32 = 0;
const INT: u32 = 1;
const BOOL: u32 = 2;
const DOUBLE: u32 = 3;

/// See the [module](self).
#[derive(Debug)]
pub struct Parameter {
    pub name: CString,
    pub value: Value,
}

#[derive(Debug, PartialEq)]
pub enum Value {
    String(CString),
    Int(i64),
    Bool(bool),
    Double(f64),
    /// Memory of the application.
    Bytes(*const u8, usize),
}

impl Parameter {
    pub fn name(&self) -> Result<&str, Status> {
        self.name.to_str().map_err(|_| Status::invalid("the name of a parameter is not UTF-8"))
    }

    /// The value of a parameter that has to be a string.
    pub fn string(&self) -> Option<Result<&str, Status>> {
        let Value::String(text) = &self.value else { return None };
        let wrong =
            |_| Status::invalid(format!("the value of parameter '{}' is not UTF-8", self.name.to_string_lossy()));
        Some(text.to_str().map_err(wrong))
    }

    /// The parameter of a load, with a copy of its bytes, because the load keeps files after the call.
    ///
    /// # Safety
    /// The memory of bytes is still readable.
    pub unsafe fn of_load(&self) -> Result<LoadParameter, Status> {
        let value = match &self.value {
            Value::String(text) => LoadValue::Text(text.to_string_lossy().into_owned()),
            Value::Int(number) => LoadValue::Integer(*number),
            Value::Bool(flag) => LoadValue::Boolean(*flag),
            Value::Double(number) => LoadValue::Double(*number),
            Value::Bytes(_, 0) => LoadValue::Bytes(Vec::new()),
            // SAFETY: not NULL by construction, and readable by contract.
            Value::Bytes(base, size) => LoadValue::Bytes(unsafe { std::slice::from_raw_parts(*base, *size) }.to_vec()),
        };
        Ok(LoadParameter { name: self.name()?.to_owned(), value })
    }
}

/// The parameters that an array points to.
///
/// # Safety
/// `parameters` is NULL or readable for `count` pointers, each NULL or to a live parameter.
pub(super) unsafe fn listed<'a>(
    parameters: *const *const Parameter,
    count: usize,
    what: &str,
) -> Result<Vec<&'a Parameter>, Status> {
    if count == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: `parameters` is NULL or live: this function requires it of its caller.
    unsafe { deref(parameters, what)? };
    // SAFETY: not null, and by contract readable for that many.
    let pointers = unsafe { std::slice::from_raw_parts(parameters, count) };
    // SAFETY: by contract null or live.
    pointers.iter().map(|parameter| unsafe { deref(*parameter, what) }).collect()
}

/// # Safety
/// `name` is NULL or a C string, `value` NULL or a value of the type: a C string, an `int64_t`, a `bool`, a `double`.
unsafe fn read(name: *const c_char, parameter_type: u32, value: *const c_void) -> Result<Parameter, Status> {
    // SAFETY: `name` is NULL or a C string: this function requires it of its caller.
    let name = unsafe { text(name, "name")? }.to_owned();
    // SAFETY: by contract the value is of the type that is passed; it need not be aligned.
    let value = unsafe {
        deref(value.cast::<u8>(), "value")?;
        match parameter_type {
            STRING => Value::String(CStr::from_ptr(value.cast()).to_owned()),
            INT => Value::Int(value.cast::<i64>().read_unaligned()),
            // Any byte is accepted: only 0 is false.
            BOOL => Value::Bool(value.cast::<u8>().read() != 0),
            DOUBLE => Value::Double(value.cast::<f64>().read_unaligned()),
            _ => return Err(Status::invalid(format!("a parameter of type {parameter_type} has no such value"))),
        }
    };
    Ok(Parameter { name, value })
}

/// NULL on an invalid argument. Bytes have a function of their own.
///
/// # Safety
/// `name` is NULL or a C string, `value` NULL or a value of the type: a C string, an `int64_t`, a `bool`, a `double`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ParameterNew(
    name: *const c_char,
    parameter_type: u32,
    value: *const c_void,
) -> *mut Parameter {
    // SAFETY: `name` is NULL or a C string, and `value` NULL or of the type: this function requires that of its caller.
    unsafe { read(name, parameter_type, value) }.map_or(std::ptr::null_mut(), give)
}

/// NULL if `byte_ptr` is NULL.
///
/// # Safety
/// `name` is NULL or a C string; `byte_ptr` is readable for `size` bytes until the parameter is deleted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ParameterBytesNew(
    name: *const c_char,
    byte_ptr: *const c_void,
    size: u64,
) -> *mut Parameter {
    // SAFETY: `name` is NULL or a C string: this function requires it of its caller.
    let name = unsafe { text(name, "name") }.map(CStr::to_owned);
    match (name, isize::try_from(size)) {
        (Ok(name), Ok(size)) if size == 0 || !byte_ptr.is_null() => {
            give(Parameter { name, value: Value::Bytes(byte_ptr.cast(), size.unsigned_abs()) })
        }
        _ => std::ptr::null_mut(),
    }
}

/// # Safety
/// `parameter` is NULL or a live parameter that is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ParameterDelete(parameter: *mut Parameter) {
    // SAFETY: the caller's promise is passed on; NULL deletes nothing.
    entry_or((), || unsafe { take(parameter, "parameter") }.map(drop));
}
