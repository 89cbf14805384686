//! OpenVINO's library, opened once for the process, behind safe types: [`Core`] reads and compiles, [`Network`] is a
//! model that was read, [`Compiled`] one that can run, [`InferRequest`] runs it.
//!
//! All `unsafe` of the backend is below this module. The library is never closed: its threads and plug-ins are not
//! made for that.

#![allow(unsafe_code)]

mod compiled;
mod core;
mod elements;
mod error;
mod functions;
mod network;
mod port;
mod request;
mod tensor;

use std::ffi::{CStr, CString, c_char};
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};

use libloading::Library;
use nereid_backend::runtime_search::{LibraryError, Missing, OpenedLibrary, OpenedOnce, Surroundings};

pub use self::compiled::Compiled;
pub use self::core::Core;
use self::elements::Elements;
pub use self::error::OpenVinoError;
use self::functions::{Functions, OvStatus, OvVersion};
pub use self::network::{Conversion, Network};
pub use self::port::{Dimension, Port};
pub use self::request::{COPIED_BYTES_MAX, HostInput, InferRequest, OutputMemory};
use super::RUNTIME as KIND;

/// The opened library.
pub struct Runtime {
    functions: Functions,
    elements: Elements,
    path: PathBuf,
    version: String,
}

impl std::fmt::Debug for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "OpenVINO {} from {}", self.version, self.path.display())
    }
}

impl OpenedLibrary for Runtime {
    fn path(&self) -> &Path {
        &self.path
    }

    fn version(&self) -> &str {
        &self.version
    }
}

/// The process's OpenVINO, opened at the first call that finds one.
pub fn load(surroundings: &Surroundings) -> Result<&'static Runtime, Missing> {
    static RUNTIME: OpenedOnce<Runtime> = OpenedOnce::new();
    RUNTIME.find(&KIND, surroundings, Runtime::open)
}

/// The version of the library at `path`, which is opened and stays mapped.
pub fn version(path: &Path) -> Result<String, LibraryError> {
    Ok(Runtime::open(path)?.version)
}

impl Runtime {
    fn open(path: &Path) -> Result<Runtime, LibraryError> {
        // Its plug-ins are searched beside the file that the symbolic link leads to.
        let path = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
        // SAFETY: opening a library runs its initialisers; the user chose this file, or it lies where OpenVINO lies.
        let library = unsafe { Library::new(&path) }.map_err(|error| LibraryError::opening(&error))?;
        let functions = Functions::of(&library)?;
        std::mem::forget(library);
        let unusable = |reason: String| LibraryError::Unusable { title: KIND.title, reason };
        let version = version_of(&functions).map_err(unusable)?;
        let elements = Elements::of(&functions).map_err(unusable)?;
        Ok(Runtime { functions, elements, path, version })
    }

    /// Turns the status of a call into a result; `step` is what the call was for.
    fn check(&self, status: OvStatus, step: &str) -> Result<(), OpenVinoError> {
        if status == 0 { Ok(()) } else { Err(OpenVinoError::new(step, text_of(&self.functions, status))) }
    }

    /// A string that the library allocated; it is freed.
    fn take_string(&self, text: *mut c_char) -> String {
        take_string(&self.functions, text)
    }
}

fn version_of(functions: &Functions) -> Result<String, String> {
    let mut version = OvVersion { build_number: ptr::null(), description: ptr::null() };
    // SAFETY: two texts are written to the given structure.
    let status = unsafe { (functions.ov_get_openvino_version)(&mut version) };
    if status != 0 || version.build_number.is_null() {
        return Err("it has no version".to_owned());
    }
    // SAFETY: not null, and a NUL-terminated text until the structure is freed below.
    let text = unsafe { CStr::from_ptr(version.build_number) }.to_string_lossy().into_owned();
    // SAFETY: filled by the library, and freed once.
    unsafe { (functions.ov_version_free)(&mut version) };
    // `2026.4.1-22982-e213a147257-releases/2026/4`: only the release matters.
    Ok(text.split('-').next().unwrap_or_default().to_owned())
}

/// The text of the call that failed last, where the library has one, else that of its status.
fn text_of(functions: &Functions, status: OvStatus) -> String {
    if let Some(last) = functions.ov_get_last_err_msg {
        // SAFETY: the function takes nothing and returns a text that is the caller's to free, or null.
        let text = take_string(functions, unsafe { last() }.cast_mut());
        let text = text.trim();
        if !text.is_empty() {
            return text.to_owned();
        }
    }
    // SAFETY: every number may be passed; the text is static.
    let text = unsafe { (functions.ov_get_error_info)(status) };
    if text.is_null() {
        return format!("status {status}");
    }
    // SAFETY: not null, and a static NUL-terminated text.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

fn take_string(functions: &Functions, text: *mut c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: not null; the library ends its texts in NUL.
    let copy = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
    // SAFETY: the library allocated the text for its caller, and nothing uses it behind this line.
    unsafe { (functions.ov_free)(text) };
    copy
}

/// The object that a successful call returned.
fn filled<T>(pointer: *mut T, step: &str) -> Result<NonNull<T>, OpenVinoError> {
    NonNull::new(pointer).ok_or_else(|| OpenVinoError::new(step, "the library returned no object"))
}

fn c_string(text: impl Into<Vec<u8>>, step: &str) -> Result<CString, OpenVinoError> {
    CString::new(text).map_err(|_| OpenVinoError::new(step, "a text contains a zero byte"))
}

#[cfg(test)]
mod tests;
