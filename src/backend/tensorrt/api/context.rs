//! A context: the shapes and addresses of the next execution, and its enqueueing.

use std::ffi::{CStr, c_char, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

use nereid_gpu::stream::Stream;

use super::abi::{self, Dims, Object, Shell, method};
use super::engine::Engine;
use super::library::creation;
use super::output_allocator::OutputAllocator;

/// One context of an engine, used by one thread at a time.
pub struct Context {
    shell: NonNull<Shell>,
    object: NonNull<Object>,
    engine: Arc<Engine>,
}

// SAFETY: TensorRT lets threads use a context one after the other, which exclusive references ensure.
unsafe impl Send for Context {}

impl Context {
    pub(super) fn new(shell: NonNull<Shell>, object: NonNull<Object>, engine: Arc<Engine>) -> Context {
        Context { shell, object, engine }
    }

    fn slots(&self) -> &abi::ContextSlots {
        self.engine.context_slots()
    }

    /// Chooses the profile; work that the library enqueues for it is in the stream. False: it was refused.
    pub fn set_profile(&mut self, profile: i32, stream: &Stream) -> bool {
        // SAFETY: `bool setOptimizationProfileAsync(int32_t, cudaStream_t)`
        unsafe {
            let call: unsafe extern "C" fn(NonNull<Object>, i32, *mut c_void) -> u8 =
                method(self.object, self.slots().set_profile);
            call(self.object, profile, stream.as_ptr()) != 0
        }
    }

    /// False: the shape was refused.
    pub fn set_input_shape(&mut self, name: &CStr, dims: &Dims) -> bool {
        // SAFETY: `bool setInputShape(char const*, Dims64 const&)`
        unsafe {
            let call: unsafe extern "C" fn(NonNull<Object>, *const c_char, *const Dims) -> u8 =
                method(self.object, self.slots().set_input_shape);
            call(self.object, name.as_ptr(), dims) != 0
        }
    }

    /// The shape for the inputs that were set; it holds -1 where it depends on data.
    pub fn tensor_shape(&self, name: &CStr) -> Dims {
        // SAFETY: `Dims64 getTensorShape(char const*) const`
        unsafe {
            let call: unsafe extern "C" fn(NonNull<Object>, *const c_char) -> Dims =
                method(self.object, self.slots().tensor_shape);
            call(self.object, name.as_ptr())
        }
    }

    /// Sets the address of a tensor. False: it was refused.
    ///
    /// # Safety
    /// The memory holds the tensor, and is valid until the execution that uses it is complete: memory of the device,
    /// or of the host for a tensor that lies there.
    pub unsafe fn set_address(&mut self, name: &CStr, address: u64) -> bool {
        // SAFETY: `bool setTensorAddress(char const*, void*)`; the memory is valid by the contract of this function.
        unsafe {
            let call: unsafe extern "C" fn(NonNull<Object>, *const c_char, u64) -> u8 =
                method(self.object, self.slots().set_address);
            call(self.object, name.as_ptr(), address) != 0
        }
    }

    /// The number of inputs whose shapes or values are missing; negative: the library cannot tell.
    pub fn missing_shapes(&mut self) -> i32 {
        // SAFETY: `int32_t inferShapes(int32_t, char const**)`; no names are to be written.
        unsafe {
            let call: unsafe extern "C" fn(NonNull<Object>, i32, *mut *const c_char) -> i32 =
                method(self.object, self.slots().infer_shapes);
            call(self.object, 0, std::ptr::null_mut())
        }
    }

    /// Lets an output whose size depends on data be allocated when it is known.
    ///
    /// # Safety
    /// The allocator outlives the context.
    pub unsafe fn set_allocator(&mut self, name: &CStr, allocator: &OutputAllocator) -> bool {
        // SAFETY: `bool setOutputAllocator(char const*, IOutputAllocator*)`
        unsafe {
            let call: unsafe extern "C" fn(NonNull<Object>, *const c_char, *mut c_void) -> u8 =
                method(self.object, self.slots().set_allocator);
            call(self.object, name.as_ptr(), allocator.as_ptr()) != 0
        }
    }

    /// Enqueues an execution. False: nothing was enqueued.
    ///
    /// # Safety
    /// The addresses of all tensors were set for the shapes of this execution.
    pub unsafe fn enqueue(&mut self, stream: &Stream) -> bool {
        // SAFETY: `bool enqueueV3(cudaStream_t)`; the memory is valid by the contract of this function.
        unsafe {
            let call: unsafe extern "C" fn(NonNull<Object>, *mut c_void) -> u8 =
                method(self.object, self.slots().enqueue);
            call(self.object, stream.as_ptr()) != 0
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let _ = self.engine.gpu().enter();
        let _one = creation();
        // SAFETY: nothing uses the context any more.
        unsafe { abi::delete(self.shell) }
    }
}
