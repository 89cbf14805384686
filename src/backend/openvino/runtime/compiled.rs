//! A model that was compiled for a device, shared by the instances of its model.

use std::ffi::c_char;
use std::ptr::{self, NonNull};

use super::functions::OvCompiledModel;
use super::{InferRequest, OpenVinoError, Port, Runtime, c_string, filled};

const INPUTS: &str = "getting input infos";
const OUTPUTS: &str = "getting output infos";
const CREATING: &str = "creating infer request object";

pub struct Compiled {
    runtime: &'static Runtime,
    at: NonNull<OvCompiledModel>,
}

// SAFETY: a compiled model may be used and freed on any thread.
unsafe impl Send for Compiled {}
// SAFETY: the library documents that infer requests may be created from several threads; the model does not change.
unsafe impl Sync for Compiled {}

impl Drop for Compiled {
    fn drop(&mut self) {
        // SAFETY: made by the library for this owner, and freed once; requests keep what they use alive.
        unsafe { (self.runtime.functions.ov_compiled_model_free)(self.at.as_ptr()) };
    }
}

impl Compiled {
    pub(super) fn new(runtime: &'static Runtime, at: NonNull<OvCompiledModel>) -> Compiled {
        Compiled { runtime, at }
    }

    /// A property of the compiled model; `None` if its device has none of that name.
    pub fn property(&self, key: &str) -> Option<String> {
        let key = c_string(key, CREATING).ok()?;
        let mut value: *mut c_char = ptr::null_mut();
        let get = self.runtime.functions.ov_compiled_model_get_property;
        // SAFETY: the model is alive, and the key during the call; a text that is ours to free is written to the given
        // place.
        let status = unsafe { get(self.at.as_ptr(), key.as_ptr(), &mut value) };
        self.runtime.check(status, CREATING).ok()?;
        Some(self.runtime.take_string(value))
    }

    /// The outputs in the model's order, as the device makes them.
    pub fn outputs(&self) -> Result<Vec<Port>, OpenVinoError> {
        let functions = &self.runtime.functions;
        let mut count = 0;
        // SAFETY: the model is alive; a number is written to the given place.
        let status = unsafe { (functions.ov_compiled_model_outputs_size)(self.at.as_ptr(), &mut count) };
        self.runtime.check(status, OUTPUTS)?;
        let port = |index| {
            let mut port = ptr::null_mut();
            let get = functions.ov_compiled_model_output_by_index;
            // SAFETY: the model is alive and has more outputs than the index says; one is written to the given place.
            self.runtime.check(unsafe { get(self.at.as_ptr(), index, &mut port) }, OUTPUTS)?;
            Port::take(self.runtime, filled(port, OUTPUTS)?, OUTPUTS)
        };
        (0..count).map(port).collect()
    }

    /// What runs the model, one call at a time. `outputs` are those of this model.
    pub fn infer_request(&self, outputs: &[Port]) -> Result<InferRequest, OpenVinoError> {
        let mut at = ptr::null_mut();
        let create = self.runtime.functions.ov_compiled_model_create_infer_request;
        // SAFETY: the model is alive; an object is written to the given place.
        self.runtime.check(unsafe { create(self.at.as_ptr(), &mut at) }, CREATING)?;
        let at = filled(at, CREATING)?;
        let mut inputs = 0;
        let size = self.runtime.functions.ov_compiled_model_inputs_size;
        // SAFETY: the model is alive; the number of its inputs is written to the given place.
        let status = unsafe { size(self.at.as_ptr(), &mut inputs) };
        let request = InferRequest::new(self.runtime, at, inputs, outputs)?;
        self.runtime.check(status, INPUTS).map(|()| request)
    }
}
