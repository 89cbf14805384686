//! A loaded model and how it is run.
//!
//! One session per instance, so nothing in it is shared between workers; sessions are created one at a time over the
//! whole process (contract/backends.md section 4), because optimising a graph takes all cores anyway.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, PoisonError};

use ort::sys;
use smallvec::SmallVec;

use super::append::OnGpu;
use super::element::ElementType;
use super::options::{RunOptions, SessionOptions, c_string};
use super::runtime::{Runtime, RuntimeError, filled};
use super::settings::SessionSettings;
use super::value::Value;
use super::value_type::{self, ValueKind, ValueType};
use nereid_gpu::{Lanes, capture};
use nereid_request::Shape;

/// An input, overridable initializer or output as the model file declares it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    pub name: String,
    pub kind: ValueKind,
    /// That of the tensor which stands for it; `None`: a type that the protocol does not have.
    pub element: Option<ElementType>,
    /// -1 is variable; empty for a scalar.
    pub dims: Shape,
}

/// A model ready to run.
pub struct Session {
    runtime: &'static Runtime,
    at: NonNull<sys::OrtSession>,
    pub inputs: Vec<TensorInfo>,
    /// Initializers that a request may replace: the model's optional inputs.
    pub initializers: Vec<TensorInfo>,
    pub outputs: Vec<TensorInfo>,
    /// The streams that it uses on a device, until it is released.
    lanes: Option<Arc<Lanes>>,
}

// SAFETY: a session may be used and released on any thread; `run` has it exclusively through its instance.
unsafe impl Send for Session {}
// SAFETY: running one session from several threads at once is allowed by the library's interface.
unsafe impl Sync for Session {}

impl Session {
    /// Loads the model at `path`.
    pub fn open(
        runtime: &'static Runtime,
        path: &Path,
        settings: &SessionSettings,
        gpu: Option<OnGpu<'_>>,
    ) -> Result<Session, RuntimeError> {
        static CREATING: Mutex<()> = Mutex::new(());
        let options = SessionOptions::new(runtime, settings, gpu)?;
        let path = c_string(path.as_os_str().as_bytes())?;
        let mut session = ptr::null_mut();
        let one = CREATING.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = gpu.map(|_| capture::shared());
        // SAFETY: environment and options are alive; a handle is written to the given place.
        let status = unsafe {
            (runtime.api.CreateSession)(runtime.environment(), path.as_ptr(), options.as_ptr(), &mut session)
        };
        drop((shared, one));
        runtime.check(status)?;
        let mut session = Session {
            runtime,
            at: filled(session)?,
            inputs: Vec::new(),
            initializers: Vec::new(),
            outputs: Vec::new(),
            lanes: gpu.map(|gpu| Arc::clone(gpu.lanes)),
        };
        let api = runtime.api;
        let (inputs, outputs) = (
            session.read_tensors(api.SessionGetInputCount, api.SessionGetInputName, api.SessionGetInputTypeInfo)?,
            session.read_tensors(api.SessionGetOutputCount, api.SessionGetOutputName, api.SessionGetOutputTypeInfo)?,
        );
        session.initializers = session.read_tensors(
            api.SessionGetOverridableInitializerCount,
            api.SessionGetOverridableInitializerName,
            api.SessionGetOverridableInitializerTypeInfo,
        )?;
        (session.inputs, session.outputs) = (inputs, outputs);
        Ok(session)
    }

    pub fn runtime(&self) -> &'static Runtime {
        self.runtime
    }

    pub(super) fn as_ptr(&self) -> *mut sys::OrtSession {
        self.at.as_ptr()
    }

    fn read_tensors(
        &self,
        count: unsafe extern "system" fn(*const sys::OrtSession, *mut usize) -> sys::OrtStatusPtr,
        name: unsafe extern "system" fn(
            *const sys::OrtSession,
            usize,
            *mut sys::OrtAllocator,
            *mut *mut c_char,
        ) -> sys::OrtStatusPtr,
        info: unsafe extern "system" fn(*const sys::OrtSession, usize, *mut *mut sys::OrtTypeInfo) -> sys::OrtStatusPtr,
    ) -> Result<Vec<TensorInfo>, RuntimeError> {
        let runtime = self.runtime;
        let session = self.at.as_ptr();
        let mut tensors = 0;
        // SAFETY: the session is alive; a number is written to the given place.
        runtime.check(unsafe { count(session, &mut tensors) })?;
        (0..tensors)
            .map(|index| {
                let mut text = ptr::null_mut();
                // SAFETY: as above; a string of the default allocator is written to the given place.
                runtime.check(unsafe { name(session, index, runtime.allocator(), &mut text) })?;
                // SAFETY: the string just came from that allocator.
                let name = unsafe { runtime.take_string(text) }?;
                let mut description = ptr::null_mut();
                // SAFETY: the string just came from that allocator.
                runtime.check(unsafe { info(session, index, &mut description) })?;
                let description = filled(description)?;
                // SAFETY: the description is alive until the next statement releases it.
                let read = unsafe { value_type::read(runtime, description.as_ptr()) };
                // SAFETY: created above and released once.
                unsafe { (runtime.api.ReleaseTypeInfo)(description.as_ptr()) };
                let ValueType { kind, element, dims } = read?;
                Ok(TensorInfo { name, kind, element, dims })
            })
            .collect()
    }

    /// Computes the outputs named `output_names` from `inputs`. An output that is given is written to and kept; the
    /// library allocates one that is `None`. After an error the contents of given outputs are unspecified.
    pub fn run(
        &self,
        options: &RunOptions,
        inputs: &[(&CStr, &Value)],
        output_names: &[&CStr],
        outputs: &mut [Option<Value>],
    ) -> Result<(), RuntimeError> {
        type Pointers<T> = SmallVec<[T; 8]>;
        if output_names.len() != outputs.len() {
            return Err(RuntimeError::here("outputs and their names differ in number"));
        }
        let input_names: Pointers<*const c_char> = inputs.iter().map(|(name, _)| name.as_ptr()).collect();
        let input_values: Pointers<*const sys::OrtValue> =
            inputs.iter().map(|(_, value)| value.as_ptr().cast_const()).collect();
        let output_names: Pointers<*const c_char> = output_names.iter().map(|name| name.as_ptr()).collect();
        let mut output_values: Pointers<*mut sys::OrtValue> =
            outputs.iter().map(|value| value.as_ref().map_or(ptr::null_mut(), Value::as_ptr)).collect();
        // SAFETY: names and values are alive and as many as passed; values over the server's memory are valid by the
        // contract of `Value::over`. A null output is replaced by a new value that the caller releases.
        let status = unsafe {
            (self.runtime.api.Run)(
                self.at.as_ptr(),
                options.as_ptr(),
                input_names.as_ptr(),
                input_values.as_ptr(),
                inputs.len(),
                output_names.as_ptr(),
                output_names.len(),
                output_values.as_mut_ptr(),
            )
        };
        let ran = self.runtime.check(status);
        for (output, made) in outputs.iter_mut().zip(output_values) {
            if output.is_none()
                && let Some(made) = NonNull::new(made)
            {
                // SAFETY: the library made this value for the caller.
                *output = Some(unsafe { Value::from_raw(self.runtime, made) });
            }
        }
        ran?;
        match outputs.iter().all(Option::is_some) {
            true => Ok(()),
            false => Err(RuntimeError::here("an output was not computed")),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _shared = self.lanes.as_ref().map(|_| capture::shared());
        // SAFETY: this handle owns one session, which is not used afterwards.
        unsafe { (self.runtime.api.ReleaseSession)(self.at.as_ptr()) }
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("inputs", &self.inputs).field("outputs", &self.outputs).finish_non_exhaustive()
    }
}
