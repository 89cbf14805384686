//! The entry to the library: reads models, holds the properties of devices, compiles.
//!
//! Each model has a core of its own, so that properties and extensions of one do not reach another
//! (contract/frameworks.md section 3, "parameters").

use std::ffi::{CString, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{self, NonNull};

use super::functions::{OvCore, OvProperty};
use super::{Compiled, Network, OpenVinoError, Runtime, c_string, filled};

const CONFIGURING: &str = "configuring openvino core";
const LOADING: &str = "loading model";
const READING: &str = "reading model";

pub struct Core {
    runtime: &'static Runtime,
    at: NonNull<OvCore>,
}

// SAFETY: the library's core has no thread of its own and may be used and freed on any thread.
unsafe impl Send for Core {}
// SAFETY: the library documents its core as usable from several threads; it locks inside.
unsafe impl Sync for Core {}

impl Drop for Core {
    fn drop(&mut self) {
        // SAFETY: made by `Core::new`, and freed once.
        unsafe { (self.runtime.functions.ov_core_free)(self.at.as_ptr()) };
    }
}

impl Core {
    pub fn new(runtime: &'static Runtime) -> Result<Core, OpenVinoError> {
        let mut at = ptr::null_mut();
        // SAFETY: an object is written to the given place.
        runtime.check(unsafe { (runtime.functions.ov_core_create)(&mut at) }, CONFIGURING)?;
        Ok(Core { runtime, at: filled(at, CONFIGURING)? })
    }

    /// Adds the operations of a library.
    pub fn add_extension(&self, path: &str) -> Result<(), OpenVinoError> {
        let path = c_string(path, CONFIGURING)?;
        let add = self.runtime.functions.ov_core_add_extension;
        let add = add.ok_or_else(|| OpenVinoError::new(CONFIGURING, "this version of OpenVINO loads no extensions"))?;
        // SAFETY: the core is alive, and the text during the call. The library runs the extension's code: the
        // configuration's author chose the file.
        let status = unsafe { add(self.at.as_ptr(), path.as_ptr()) };
        self.runtime.check(status, CONFIGURING)
    }

    /// Sets properties of a device, for all models that this core compiles for it.
    pub fn set_properties(&self, device: &str, properties: &[(&str, String)]) -> Result<(), OpenVinoError> {
        if properties.is_empty() {
            return Ok(());
        }
        let device = c_string(device, CONFIGURING)?;
        let texts = Texts::new(properties, CONFIGURING)?;
        let core = self.at.as_ptr();
        if let Some(set) = self.runtime.functions.ov_core_set_properties {
            let raw = texts.raw();
            // SAFETY: the core is alive; device and properties are alive during the call.
            let status = unsafe { set(core, device.as_ptr(), raw.len(), raw.as_ptr()) };
            return self.runtime.check(status, CONFIGURING);
        }
        for (key, value) in &texts.0 {
            let set = self.runtime.functions.ov_core_set_property;
            // SAFETY: the core is alive; the function reads one key and one value, both texts, behind the device.
            let status = unsafe { set(core, device.as_ptr(), key.as_ptr(), value.as_ptr()) };
            self.runtime.check(status, CONFIGURING)?;
        }
        Ok(())
    }

    /// A property of a device; `None` if it cannot be read.
    pub fn property(&self, device: &str, key: &str) -> Option<String> {
        let (device, key) = (c_string(device, CONFIGURING).ok()?, c_string(key, CONFIGURING).ok()?);
        let mut value: *mut c_char = ptr::null_mut();
        let get = self.runtime.functions.ov_core_get_property;
        // SAFETY: the core is alive, and the texts during the call; a text that is ours to free is written to the
        // given place.
        let status = unsafe { get(self.at.as_ptr(), device.as_ptr(), key.as_ptr(), &mut value) };
        self.runtime.check(status, CONFIGURING).ok()?;
        Some(self.runtime.take_string(value))
    }

    /// Reads a model of any format that the library has a reader for.
    pub fn read(&self, path: &Path) -> Result<Network, OpenVinoError> {
        let path = c_string(path.as_os_str().as_bytes(), READING)?;
        let mut at = ptr::null_mut();
        let read = self.runtime.functions.ov_core_read_model;
        // SAFETY: the core is alive, and the path during the call; without a path of weights the library finds them.
        let status = unsafe { read(self.at.as_ptr(), path.as_ptr(), ptr::null(), &mut at) };
        self.runtime.check(status, READING)?;
        Ok(Network::new(self.runtime, filled(at, READING)?))
    }

    /// Compiles a model for a device, with properties that hold for this compilation alone.
    pub fn compile(
        &self,
        network: &Network,
        device: &str,
        properties: &[(&str, String)],
    ) -> Result<Compiled, OpenVinoError> {
        let device = c_string(device, LOADING)?;
        let texts = Texts::new(properties, LOADING)?;
        let (core, model, device) = (self.at.as_ptr(), network.at(), device.as_ptr());
        let mut at = ptr::null_mut();
        let functions = &self.runtime.functions;
        let status = match (functions.ov_core_compile_model_props, texts.0.as_slice()) {
            (Some(compile), _) => {
                let raw = texts.raw();
                // SAFETY: core and model are alive; device and properties are alive during the call.
                unsafe { compile(core, model, device, raw.len(), raw.as_ptr(), &mut at) }
            }
            // SAFETY: core, model and device are alive; no texts follow, as the number says.
            (None, []) => unsafe { (functions.ov_core_compile_model)(core, model, device, 0, &mut at) },
            (None, [(key, value)]) => {
                let (key, value) = (key.as_ptr(), value.as_ptr());
                // SAFETY: core, model and device are alive; two texts follow, as the number says.
                unsafe { (functions.ov_core_compile_model)(core, model, device, 2, &mut at, key, value) }
            }
            (None, [(key, value), (second, other), ..]) => {
                let (key, value) = (key.as_ptr(), value.as_ptr());
                let (second, other) = (second.as_ptr(), other.as_ptr());
                // SAFETY: core, model and device are alive; four texts follow, as the number says.
                unsafe { (functions.ov_core_compile_model)(core, model, device, 4, &mut at, key, value, second, other) }
            }
        };
        self.runtime.check(status, LOADING)?;
        Ok(Compiled::new(self.runtime, filled(at, LOADING)?))
    }
}

/// Properties as C strings.
struct Texts(Vec<(CString, CString)>);

impl Texts {
    fn new(properties: &[(&str, String)], step: &str) -> Result<Texts, OpenVinoError> {
        let text = |(key, value): &(&str, String)| Ok((c_string(*key, step)?, c_string(value.as_str(), step)?));
        Ok(Texts(properties.iter().map(text).collect::<Result<_, OpenVinoError>>()?))
    }

    /// Valid as long as these texts are.
    fn raw(&self) -> Vec<OvProperty> {
        self.0.iter().map(|(key, value)| OvProperty { key: key.as_ptr(), value: value.as_ptr().cast() }).collect()
    }
}
