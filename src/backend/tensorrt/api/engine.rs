//! A runtime, and the engine that it reads from a plan, on one device.

use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

use nereid_gpu::Gpu;

use super::abi::{self, Dims, Object, ProfileValues, Shell, implementation, method, returned};
use super::context::Context;
use super::library::{Library, creation};
use super::logger::with_errors;

/// The longest name of a tensor that is used.
const NAME_BYTES_MAX: usize = 4096;

/// A runtime of one device.
pub struct Runtime {
    shell: NonNull<Shell>,
    object: NonNull<Object>,
    gpu: Gpu,
    library: &'static Library,
}

// SAFETY: TensorRT lets threads use a runtime one after the other, which the lock of creation ensures.
unsafe impl Send for Runtime {}
// SAFETY: threads share a runtime only to read plans, which the lock of creation makes one at a time.
unsafe impl Sync for Runtime {}

impl Runtime {
    /// The error is the text of the library. The device must be current on this thread.
    pub fn new(library: &'static Library, gpu: &Gpu) -> Result<Runtime, String> {
        let _one = creation();
        // SAFETY: the logger lives as long as the process, and has the form that this version expects.
        let create = || unsafe { (library.create_runtime)(library.logger(), library.number()) };
        let (shell, text) = with_errors(create);
        let Some(shell) = returned(shell) else { return Err(text) };
        // SAFETY: the library has just created it.
        let object = unsafe { implementation(shell) }.ok_or(text)?;
        Ok(Runtime { shell, object, gpu: gpu.clone(), library })
    }

    /// The cores of the Deep Learning Accelerator that the device has.
    pub fn dla_cores(&self) -> i32 {
        // SAFETY: `int32_t getNbDLACores() const`
        unsafe {
            let call: unsafe extern "C" fn(NonNull<Object>) -> i32 =
                method(self.object, self.library.slots.runtime.dla_cores);
            call(self.object)
        }
    }

    pub fn set_dla_core(&self, core: i32) {
        // SAFETY: `void setDLACore(int32_t)`
        unsafe {
            let call: unsafe extern "C" fn(NonNull<Object>, i32) =
                method(self.object, self.library.slots.runtime.set_dla_core);
            call(self.object, core);
        }
    }

    /// Lets plans of other versions run the code that they bring.
    pub fn allow_host_code(&self) {
        // SAFETY: `void setEngineHostCodeAllowed(bool)`
        unsafe {
            let call: unsafe extern "C" fn(NonNull<Object>, bool) =
                method(self.object, self.library.slots.runtime.allow_host_code);
            call(self.object, true);
        }
    }

    /// Reads a plan. The error is the text of the library.
    pub fn engine(self: &Arc<Runtime>, plan: &[u8]) -> Result<Engine, String> {
        let _one = creation();
        // SAFETY: `ICudaEngine* deserializeCudaEngine(void const*, size_t)`; the plan is only read.
        let (shell, text) = with_errors(|| unsafe {
            let call: unsafe extern "C" fn(NonNull<Object>, *const u8, usize) -> *mut Shell =
                method(self.object, self.library.slots.runtime.deserialize);
            call(self.object, plan.as_ptr(), plan.len())
        });
        let Some(shell) = returned(shell) else { return Err(text) };
        // SAFETY: the library has just created it.
        let object = unsafe { implementation(shell) }.ok_or(text)?;
        Ok(Engine { shell, object, runtime: Arc::clone(self) })
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        let _ = self.gpu.enter();
        let _one = creation();
        // SAFETY: engines hold their runtime, so none is left.
        unsafe { abi::delete(self.shell) }
    }
}

/// Which bound of a profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Selector {
    Min = 0,
    Opt = 1,
    Max = 2,
}

/// When a context allocates the memory that its executions need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum AllocationStrategy {
    Static = 0,
    OnProfileChange = 1,
}

/// A plan on its device, which any thread may query.
pub struct Engine {
    shell: NonNull<Shell>,
    object: NonNull<Object>,
    runtime: Arc<Runtime>,
}

// SAFETY: the methods that are called here are const, and TensorRT allows them on any thread at the same time.
unsafe impl Send for Engine {}
// SAFETY: as above; contexts are created under the lock of creation.
unsafe impl Sync for Engine {}

impl Engine {
    fn slots(&self) -> &abi::EngineSlots {
        &self.runtime.library.slots.engine
    }

    pub(super) fn context_slots(&self) -> &abi::ContextSlots {
        &self.runtime.library.slots.context
    }

    pub(super) fn gpu(&self) -> &Gpu {
        &self.runtime.gpu
    }

    /// A method without arguments that returns a number.
    fn number(&self, place: usize) -> i32 {
        // SAFETY: `int32_t f() const`
        unsafe {
            let call: unsafe extern "C" fn(NonNull<Object>) -> i32 = method(self.object, place);
            call(self.object)
        }
    }

    /// A method of a tensor that returns a number.
    fn of_tensor(&self, place: usize, name: &CStr) -> i32 {
        // SAFETY: `int32_t f(char const*) const`
        unsafe {
            let call: unsafe extern "C" fn(NonNull<Object>, *const c_char) -> i32 = method(self.object, place);
            call(self.object, name.as_ptr())
        }
    }

    /// A method of a tensor in a profile that returns a number.
    fn of_tensor_in(&self, place: usize, name: &CStr, profile: i32) -> i32 {
        // SAFETY: `int32_t f(char const*, int32_t) const`
        unsafe {
            let call: unsafe extern "C" fn(NonNull<Object>, *const c_char, i32) -> i32 = method(self.object, place);
            call(self.object, name.as_ptr(), profile)
        }
    }

    pub fn profile_count(&self) -> i32 {
        self.number(self.slots().profiles)
    }

    pub fn tensor_count(&self) -> i32 {
        self.number(self.slots().tensors)
    }

    /// The name of a tensor; `None` for one that cannot be used.
    pub fn tensor_name(&self, index: i32) -> Option<CString> {
        // SAFETY: `char const* getIOTensorName(int32_t) const`
        let name = unsafe {
            let call: unsafe extern "C" fn(NonNull<Object>, i32) -> *const c_char =
                method(self.object, self.slots().tensor_name);
            call(self.object, index)
        };
        // SAFETY: not null; the text ends in NUL and lives as long as the engine.
        let name = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) })?;
        (name.count_bytes() <= NAME_BYTES_MAX).then(|| name.to_owned())
    }

    /// `nvinfer1::DataType`
    pub fn datatype(&self, name: &CStr) -> i32 {
        self.of_tensor(self.slots().datatype, name)
    }

    /// `nvinfer1::TensorIOMode`
    pub fn io_mode(&self, name: &CStr) -> i32 {
        self.of_tensor(self.slots().io_mode, name)
    }

    /// `nvinfer1::TensorLocation`
    pub fn location(&self, name: &CStr) -> i32 {
        self.of_tensor(self.slots().location, name)
    }

    pub fn is_shape_tensor(&self, name: &CStr) -> bool {
        // SAFETY: `bool isShapeInferenceIO(char const*) const`
        unsafe {
            let call: unsafe extern "C" fn(NonNull<Object>, *const c_char) -> u8 =
                method(self.object, self.slots().is_shape_tensor);
            call(self.object, name.as_ptr()) != 0
        }
    }

    pub fn shape(&self, name: &CStr) -> Dims {
        // SAFETY: `Dims64 getTensorShape(char const*) const`; C++ and C return a plain structure of this size alike.
        unsafe {
            let call: unsafe extern "C" fn(NonNull<Object>, *const c_char) -> Dims =
                method(self.object, self.slots().shape);
            call(self.object, name.as_ptr())
        }
    }

    /// `nvinfer1::TensorFormat`; 0 is linear.
    pub fn format(&self, name: &CStr, profile: i32) -> i32 {
        self.of_tensor_in(self.slots().format, name, profile)
    }

    pub fn profile_shape(&self, name: &CStr, profile: i32, selector: Selector) -> Dims {
        // SAFETY: `Dims64 getProfileShape(char const*, int32_t, OptProfileSelector) const`
        unsafe {
            let call: unsafe extern "C" fn(NonNull<Object>, *const c_char, i32, i32) -> Dims =
                method(self.object, self.slots().profile_shape);
            call(self.object, name.as_ptr(), profile, selector as i32)
        }
    }

    /// The values that a profile states for an input that is a shape tensor of `count` elements; `None` for a tensor
    /// that is not.
    pub fn profile_values(&self, name: &CStr, profile: i32, selector: Selector, count: usize) -> Option<Vec<i64>> {
        // The library writes as many values as the tensor has elements: nothing longer is read.
        let (is_known, dims) = (self.is_shape_tensor(name), self.shape(name));
        let sizes = dims.sizes.get(..usize::try_from(dims.rank).ok()?)?;
        let elements = sizes.iter().try_fold(1usize, |all, size| all.checked_mul(usize::try_from(*size).ok()?));
        if !is_known || elements != Some(count) {
            return None;
        }
        let place = match self.slots().profile_values {
            ProfileValues::Int32(place) | ProfileValues::Int64(place) => place,
        };
        // SAFETY: `intN_t const* f(char const*, int32_t, OptProfileSelector) const`
        let values = unsafe {
            let call: unsafe extern "C" fn(NonNull<Object>, *const c_char, i32, i32) -> *const c_void =
                method(self.object, place);
            call(self.object, name.as_ptr(), profile, selector as i32)
        };
        if values.is_null() {
            return None;
        }
        // SAFETY: not null, and as many values as the tensor has elements, which the engine keeps.
        Some(unsafe {
            match self.slots().profile_values {
                ProfileValues::Int32(_) => {
                    std::slice::from_raw_parts(values.cast::<i32>(), count).iter().copied().map(i64::from).collect()
                }
                ProfileValues::Int64(_) => std::slice::from_raw_parts(values.cast::<i64>(), count).to_vec(),
            }
        })
    }

    /// Creates a context. The error is the text of the library.
    pub fn context(self: &Arc<Engine>, strategy: AllocationStrategy) -> Result<Context, String> {
        let _one = creation();
        // SAFETY: `IExecutionContext* createExecutionContext(ExecutionContextAllocationStrategy)`
        let (shell, text) = with_errors(|| unsafe {
            let call: unsafe extern "C" fn(NonNull<Object>, i32) -> *mut Shell =
                method(self.object, self.slots().create_context);
            call(self.object, strategy as i32)
        });
        let Some(shell) = returned(shell) else { return Err(text) };
        // SAFETY: the library has just created it.
        let object = unsafe { implementation(shell) }.ok_or(text)?;
        Ok(Context::new(shell, object, Arc::clone(self)))
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.gpu().enter();
        let _one = creation();
        // SAFETY: contexts hold their engine, so none is left.
        unsafe { abi::delete(self.shell) }
    }
}
