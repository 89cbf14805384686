//! `TRITONSERVER_*`: versions, names, errors, messages.

pub(crate) mod allocators;
pub(crate) mod application_trace;
pub mod buffer_attributes;
pub mod custom_metrics;
pub(crate) mod inference;
pub(crate) mod inputs;
pub mod life;
pub mod log;
pub mod metrics;
pub mod models;
pub mod options;
pub mod parameters;
pub(crate) mod requests;
mod response_errors;
pub(crate) mod responses;
pub mod trace;

use std::ffi::{CStr, CString, c_char, c_void};

use nereid_request::{Code, DataType, Status, Value};

pub use buffer_attributes::BufferAttributes;

use super::border::{deref, entry, entry_or, give, null, put, take, text};

/// Version of the server half of the interface: major, minor.
pub const SERVER_API_VERSION: (u32, u32) = (1, 34);

/// `TRITONSERVER_Error`: owned by the code that got it, deleted by `TRITONSERVER_ErrorDelete`.
#[derive(Debug, Clone)]
pub struct Error {
    code: Code,
    message: CString,
    /// The lease of a response's error (see `response_errors`); 0: not an error of a response.
    lease: u64,
}

impl Error {
    /// Makes an error that C owns.
    pub fn into_raw(status: Status) -> *mut Error {
        give(Error::of(status))
    }

    fn of(status: Status) -> Error {
        let bytes: Vec<u8> = status.message.bytes().filter(|&byte| byte != 0).collect();
        Error { code: status.code, message: CString::new(bytes).unwrap_or_default(), lease: 0 }
    }

    /// The status of an error that foreign code gave up by returning it.
    ///
    /// # Safety
    /// The error came from this interface and is not used afterwards.
    pub unsafe fn returned(error: *mut Error) -> Status {
        // SAFETY: the caller owns the error until now and does not use it after this call.
        unsafe { Error::taken(error, "the returned error") }.unwrap_or_else(|fault| fault)
    }

    /// Ends an error, or one share of it, and returns its status.
    ///
    /// # Safety
    /// The error is NULL or came from this interface, and its owner gives it up.
    unsafe fn taken(error: *mut Error, what: &str) -> Result<Status, Status> {
        // SAFETY: by contract NULL or live.
        let (status, lease) = unsafe { deref(error, what) }.map(|error| (error.status(), error.lease))?;
        match lease {
            // SAFETY: an error without a lease is the caller's alone.
            0 => unsafe { take(error, what) }.map(drop)?,
            lease => response_errors::give_up(lease),
        }
        Ok(status)
    }

    fn byte_size(&self) -> usize {
        size_of::<Error>() + self.message.as_bytes_with_nul().len()
    }

    pub fn status(&self) -> Status {
        Status { code: self.code, refusal: None, message: self.message.to_string_lossy().into_owned().into() }
    }
}

/// `TRITONSERVER_Message`: JSON text.
#[derive(Debug)]
pub struct Message {
    json: CString,
    /// Part of another object: its reader must not delete it.
    is_lent: bool,
}

impl Message {
    /// A message that the server keeps and C only reads.
    pub fn lent(json: &str) -> Message {
        Message { json: CString::new(json).unwrap_or_default(), is_lent: true }
    }

    pub fn into_raw(json: &str) -> *mut Message {
        give(Message { is_lent: false, ..Message::lent(json) })
    }

    pub fn json(&self) -> &str {
        self.json.to_str().unwrap_or_default()
    }
}

/// # Safety
/// The pointers are valid for writing or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ApiVersion(major: *mut u32, minor: *mut u32) -> *mut Error {
    // SAFETY: `major` and `minor` are NULL or writable: this function requires that of its caller.
    entry(|| unsafe { put(major, SERVER_API_VERSION.0).and_then(|()| put(minor, SERVER_API_VERSION.1)) })
}

/// `TRITONSERVER_ParameterType` of a value, and the value's address.
pub(super) fn parameter_pointer(value: &Value) -> (u32, *const c_void) {
    match value {
        Value::String(text) => (0, text.as_c_str().as_ptr().cast()),
        Value::Int(int) => (1, (&raw const *int).cast()),
        Value::Bool(bool) => (2, (&raw const *bool).cast()),
        Value::Double(double) => (3, (&raw const *double).cast()),
        Value::Bytes(bytes) => (4, bytes.as_ptr().cast()),
    }
}

fn name_of(names: &[&'static CStr], value: u32) -> *const c_char {
    usize::try_from(value).ok().and_then(|at| names.get(at)).unwrap_or(&c"<invalid>").as_ptr()
}

const DATA_TYPES: [&CStr; 15] = [
    c"<invalid>",
    c"BOOL",
    c"UINT8",
    c"UINT16",
    c"UINT32",
    c"UINT64",
    c"INT8",
    c"INT16",
    c"INT32",
    c"INT64",
    c"FP16",
    c"FP32",
    c"FP64",
    c"BYTES",
    c"BF16",
];

#[unsafe(no_mangle)]
pub extern "C" fn TRITONSERVER_DataTypeString(datatype: u32) -> *const c_char {
    name_of(&DATA_TYPES, datatype)
}

/// # Safety
/// `name` is a C string or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_StringToDataType(name: *const c_char) -> u32 {
    // SAFETY: `name` is NULL or a C string: this function requires it of its caller.
    let name = unsafe { text(name, "dtype") };
    name.ok().and_then(|name| DataType::from_name(name.to_bytes())).map_or(0, |datatype| datatype as u32)
}

#[unsafe(no_mangle)]
pub extern "C" fn TRITONSERVER_DataTypeByteSize(datatype: u32) -> u32 {
    DataType::from_number(datatype).map_or(0, |datatype| datatype.byte_size() as u32)
}

#[unsafe(no_mangle)]
pub extern "C" fn TRITONSERVER_MemoryTypeString(memory_type: u32) -> *const c_char {
    name_of(&[c"CPU", c"CPU_PINNED", c"GPU"], memory_type)
}

#[unsafe(no_mangle)]
pub extern "C" fn TRITONSERVER_ParameterTypeString(parameter_type: u32) -> *const c_char {
    name_of(&[c"STRING", c"INT", c"BOOL", c"DOUBLE", c"BYTES"], parameter_type)
}

#[unsafe(no_mangle)]
pub extern "C" fn TRITONSERVER_InstanceGroupKindString(kind: u32) -> *const c_char {
    name_of(&[c"AUTO", c"CPU", c"GPU", c"MODEL"], kind)
}

/// # Safety
/// `message` is a C string or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ErrorNew(code: u32, message: *const c_char) -> *mut Error {
    entry_or(std::ptr::null_mut(), || {
        // SAFETY: `message` is NULL or a C string: this function requires it of its caller.
        let message = unsafe { text(message, "msg") }.map(CStr::to_owned).unwrap_or_default();
        Ok(give(Error { code: Code::from_number(code), message, lease: 0 }))
    })
}

/// # Safety
/// `error` came from this interface, is not used afterwards, or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ErrorDelete(error: *mut Error) {
    // SAFETY: the caller gives the error up, or one share of it.
    entry_or((), || unsafe { Error::taken(error, "error") }.map(drop));
}

/// # Safety
/// `error` is a live error or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ErrorCode(error: *const Error) -> u32 {
    // SAFETY: `error` is NULL or live: this function requires it of its caller.
    entry_or(Code::Unknown as u32, || Ok(unsafe { deref(error, "error")? }.code as u32))
}

/// # Safety
/// `error` is a live error or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ErrorCodeString(error: *const Error) -> *const c_char {
    const NAMES: [&CStr; 7] =
        [c"Unknown", c"Internal", c"Not found", c"Invalid argument", c"Unavailable", c"Unsupported", c"Already exists"];
    // SAFETY: `error` is NULL or live: this function requires it of its caller.
    let code = entry_or(Code::Unknown as u32, || Ok(unsafe { deref(error, "error")? }.code as u32));
    NAMES.get(code as usize).unwrap_or(&c"<invalid code>").as_ptr()
}

/// # Safety
/// `error` is a live error or NULL; the text lives as long as it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ErrorMessage(error: *const Error) -> *const c_char {
    // SAFETY: `error` is NULL or live: this function requires it of its caller.
    entry_or(c"".as_ptr(), || Ok(unsafe { deref(error, "error")? }.message.as_ptr()))
}

/// # Safety
/// `base` is readable for `byte_size` bytes, `message` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_MessageNewFromSerializedJson(
    message: *mut *mut Message,
    base: *const c_char,
    byte_size: usize,
) -> *mut Error {
    entry(|| {
        // Checked first: a message without a place to put it would never be deleted.
        if message.is_null() {
            return Err(null("message"));
        }
        if base.is_null() {
            return Err(null("base"));
        }
        // SAFETY: not null and by contract readable.
        let bytes = unsafe { std::slice::from_raw_parts(base.cast::<u8>(), byte_size) };
        let json =
            std::str::from_utf8(bytes).map_err(|error| Status::invalid(format!("message is not text: {error}")))?;
        if let Err(error) = serde_json::from_str::<serde::de::IgnoredAny>(json) {
            return Err(Status::invalid(format!("failed to parse the message as JSON: {error}")));
        }
        // Checked first: a message without a place to put it would never be deleted. SAFETY: the caller's promise is
        // passed on.
        unsafe { put(message, std::ptr::null_mut()) }?;
        // SAFETY: `message` is NULL or writable: this function requires it of its caller.
        unsafe { put(message, Message::into_raw(json)) }
    })
}

/// # Safety
/// `message` is a live message that is not used afterwards, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_MessageDelete(message: *mut Message) -> *mut Error {
    if message.is_null() {
        return std::ptr::null_mut();
    }
    // SAFETY: `message` is NULL or live: this function requires it of its caller.
    entry(|| unsafe {
        if deref(message, "message")?.is_lent {
            return Err(Status::invalid("the message stays the server's and may not be deleted"));
        }
        take(message, "message").map(drop)
    })
}

/// # Safety
/// `message` is live; the text lives as long as it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_MessageSerializeToJson(
    message: *const Message,
    base: *mut *const c_char,
    byte_size: *mut usize,
) -> *mut Error {
    // SAFETY: `message` is NULL or live, and `base` and `byte_size` are NULL or writable: this function requires that
    // of its caller.
    entry(|| unsafe {
        let json = &deref(message, "message")?.json;
        put(base, json.as_ptr())?;
        put(byte_size, json.as_bytes().len())
    })
}
