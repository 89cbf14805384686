//! A container of models, as a package's library makes it: some runners of one model that share its weights.

use std::ffi::{CStr, c_char, c_void};
use std::ptr;

use nereid_memory::Slice;

use super::api::{Api, RawTensor, SUCCESS};
use super::library::ModelLibrary;
use super::tensor::Tensor;

/// What the library calls a container's handle.
#[repr(C)]
pub struct RawContainer {
    _opaque: [u8; 0],
}

/// A named constant of the model.
#[repr(C)]
pub struct RawConstant {
    name: *const c_char,
    tensor: *mut RawTensor,
}

/// A container.
#[derive(Debug)]
pub struct Container {
    raw: *mut RawContainer,
    library: &'static ModelLibrary,
    api: &'static Api,
    /// The container refers to them.
    _weights: Option<Slice>,
    inputs: usize,
    outputs: usize,
}

// SAFETY: a container may be moved between threads; it has locks of its own (aoti_runtime/model_container.h).
unsafe impl Send for Container {}
// SAFETY: several threads may run it at once; those beyond its runners wait.
unsafe impl Sync for Container {}

impl Container {
    /// A container with `runners` runners; `weights` are those that lie beside the library.
    pub fn new(
        api: &'static Api,
        library: &'static ModelLibrary,
        runners: usize,
        weights: Option<Slice>,
    ) -> Result<Container, String> {
        let functions = library.functions();
        let mut raw = ptr::null_mut();
        // SAFETY: the arguments are as the interface demands: a place for the handle, a number of models, a device, and
        // no directory of device code, which the CPU has none of.
        let code = unsafe { (functions.create)(&mut raw, runners.max(1), c"cpu".as_ptr(), ptr::null()) };
        if code != SUCCESS || raw.is_null() {
            return Err(library.error("the creation of its model"));
        }
        let mut container = Container { raw, library, api, _weights: None, inputs: 0, outputs: 0 };
        container.inputs = container.count(functions.input_count, "inputs")?;
        container.outputs = container.count(functions.output_count, "outputs")?;
        if let Some(weights) = weights {
            container.set_weights(weights)?;
        }
        container.check_weights()?;
        Ok(container)
    }

    pub fn inputs(&self) -> usize {
        self.inputs
    }

    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// The specifications of the inputs and of the outputs.
    pub fn call_spec(&self) -> Result<(String, String), String> {
        let (mut inputs, mut outputs) = (ptr::null(), ptr::null());
        // SAFETY: the handle is valid, and the function writes two texts that belong to the container.
        let code = unsafe { (self.library.functions().call_spec)(self.raw, &mut inputs, &mut outputs) };
        match code {
            // SAFETY: the texts end with a zero byte, and the container keeps them.
            SUCCESS => Ok(unsafe { (text_at(inputs), text_at(outputs)) }),
            _ => Err(self.library.error("the reading of its call specification")),
        }
    }

    /// Runs the model, in the calling thread, once a runner is free.
    pub fn run<'a>(&self, inputs: Vec<Tensor<'a>>) -> Result<Vec<Tensor<'a>>, String> {
        if inputs.len() != self.inputs {
            return Err(format!("the model takes {} inputs, and {} were given", self.inputs, inputs.len()));
        }
        let mut inputs: Vec<*mut RawTensor> = inputs.into_iter().map(Tensor::into_raw).collect();
        let mut outputs = vec![ptr::null_mut(); self.outputs];
        // SAFETY: the arrays have as many valid handles, and as many places, as the model has inputs and outputs. Each
        // input that the library takes over it replaces by null.
        let code = unsafe {
            let (inputs, outputs) = (inputs.as_mut_ptr(), outputs.as_mut_ptr());
            let run = self.library.functions().run;
            run(self.raw, inputs, self.inputs, outputs, self.outputs, ptr::null_mut(), ptr::null_mut())
        };
        let error = (code != SUCCESS).then(|| self.library.error("the run"));
        for left in inputs.into_iter().filter(|raw| !raw.is_null()) {
            // SAFETY: what the library has left, as it does if it refuses an input, has no other owner.
            drop(unsafe { Tensor::<'a>::from_raw(self.api, left) });
        }
        let is_complete = outputs.iter().all(|raw| !raw.is_null());
        let outputs = outputs.into_iter().filter(|raw| !raw.is_null());
        // SAFETY: the library returns each output to its caller. It may refer to the bytes of an input, which live for
        // `'a`, or to the weights, which the container keeps.
        let outputs = outputs.map(|raw| unsafe { Tensor::from_raw(self.api, raw) }).collect();
        match error {
            Some(error) => Err(error),
            None if is_complete => Ok(outputs),
            None => Err("the model returned fewer outputs than it has".to_owned()),
        }
    }

    fn set_weights(&mut self, weights: Slice) -> Result<(), String> {
        let functions = self.library.functions();
        let (Some(size), Some(update)) = (functions.weights_size, functions.update_weights) else {
            return Err("its library is of a version that takes no weights; compile it again".to_owned());
        };
        let mut needed = 0u64;
        // SAFETY: the handle is valid, and the function writes a number.
        if unsafe { size(self.raw, &mut needed) } != SUCCESS {
            return Err(self.library.error("the reading of the size of its weights"));
        }
        if usize::try_from(needed).is_ok_and(|needed| needed > weights.len()) {
            return Err(format!("its weights have {} bytes and its library needs {needed}", weights.len()));
        }
        // SAFETY: the bytes are at least as many as the library reads, and the container keeps them.
        if unsafe { update(self.raw, weights.as_ptr()) } != SUCCESS {
            return Err(self.library.error("the loading of its weights"));
        }
        self._weights = Some(weights);
        Ok(())
    }

    /// Refuses a model without its weights: a run would read from the address null.
    fn check_weights(&self) -> Result<(), String> {
        let functions = self.library.functions();
        let (Some(count), Some(is_folded), Some(entries)) =
            (functions.constant_count, functions.is_folded_constant, functions.constants)
        else {
            return Ok(());
        };
        let count = self.count(count, "constants")?;
        let mut needed = 0usize;
        for at in 0..count {
            let mut folded = false;
            // SAFETY: the handle is valid, the position is below the count, and the function writes a flag.
            if unsafe { is_folded(self.raw, at, &mut folded) } != SUCCESS {
                return Err(self.library.error("the reading of its constants"));
            }
            needed += usize::from(!folded);
        }
        let (mut first, mut present) = (ptr::null(), 0usize);
        // SAFETY: the handle is valid; the function writes an array, which is not read here, and its length.
        if unsafe { entries(self.raw, &mut first, &mut present, false) } != SUCCESS {
            return Err(self.library.error("the reading of its constants"));
        }
        match present < needed {
            false => Ok(()),
            true => Err(format!(
                "it contains {present} of its {needed} weights; compile it with \
                 \"aot_inductor.package_constants_in_so\""
            )),
        }
    }

    fn count(
        &self,
        get: unsafe extern "C" fn(*mut RawContainer, *mut usize) -> i32,
        what: &str,
    ) -> Result<usize, String> {
        let mut count = 0;
        // SAFETY: the handle is valid, and the function writes a number.
        match unsafe { get(self.raw, &mut count) } {
            SUCCESS => Ok(count),
            _ => Err(self.library.error(&format!("the reading of the number of its {what}"))),
        }
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        // SAFETY: the handle is owned and no run is under way, because runs borrow the container.
        unsafe { (self.library.functions().delete)(self.raw) };
    }
}

/// A text of the library; empty for null.
///
/// # Safety
/// The address is null, or of a text that ends with a zero byte and is not changed during the call.
pub(super) unsafe fn text_at(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the caller vouches for the text.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().trim_end().to_owned()
}

/// The functions of a package's library (aoti_runtime/interface.h). Those that newer versions have are optional.
#[derive(Debug)]
pub struct Functions {
    pub create: unsafe extern "C" fn(*mut *mut RawContainer, usize, *const c_char, *const c_char) -> i32,
    pub delete: unsafe extern "C" fn(*mut RawContainer) -> i32,
    pub input_count: unsafe extern "C" fn(*mut RawContainer, *mut usize) -> i32,
    pub output_count: unsafe extern "C" fn(*mut RawContainer, *mut usize) -> i32,
    pub call_spec: unsafe extern "C" fn(*mut RawContainer, *mut *const c_char, *mut *const c_char) -> i32,
    pub run: Run,
    pub last_error: Option<unsafe extern "C" fn(*mut *const c_char) -> i32>,
    pub weights_size: Option<unsafe extern "C" fn(*mut RawContainer, *mut u64) -> i32>,
    pub update_weights: Option<unsafe extern "C" fn(*mut RawContainer, *const u8) -> i32>,
    pub constant_count: Option<unsafe extern "C" fn(*mut RawContainer, *mut usize) -> i32>,
    pub is_folded_constant: Option<unsafe extern "C" fn(*mut RawContainer, usize, *mut bool) -> i32>,
    pub constants: Option<unsafe extern "C" fn(*mut RawContainer, *mut *const RawConstant, *mut usize, bool) -> i32>,
}

type Run = unsafe extern "C" fn(
    *mut RawContainer,
    *mut *mut RawTensor,
    usize,
    *mut *mut RawTensor,
    usize,
    *mut c_void,
    *mut c_void,
) -> i32;
