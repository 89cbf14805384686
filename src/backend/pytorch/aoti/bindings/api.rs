//! The functions of `libtorch_cpu.so` that handle tensors and the threads that compute them.

use std::ffi::{c_char, c_void};
use std::sync::OnceLock;

use libloading::os::unix::Library;

use crate::torch::{RUNTIME, Torch};
use nereid_backend::runtime_search::LibraryError;

/// What torch calls a tensor's handle.
#[repr(C)]
pub struct RawTensor {
    _opaque: [u8; 0],
}

pub type Code = i32;
/// `AOTI_TORCH_SUCCESS`
pub const SUCCESS: Code = 0;
/// `c10::DeviceType::CPU`
pub const DEVICE_CPU: i32 = 0;

type CreateFromBlob =
    unsafe extern "C" fn(*mut c_void, i64, *const i64, *const i64, i64, i32, i32, i32, *mut *mut RawTensor) -> Code;
type EmptyStrided = unsafe extern "C" fn(i64, *const i64, *const i64, i32, i32, i32, *mut *mut RawTensor) -> Code;
type Get<T> = unsafe extern "C" fn(*mut RawTensor, *mut T) -> Code;

/// The functions, which every version of torch that writes packages has (torch/csrc/inductor/aoti_torch/c/shim.h).
#[derive(Debug, Clone, Copy)]
pub struct Api {
    pub(super) create_from_blob: CreateFromBlob,
    pub(super) empty_strided: EmptyStrided,
    pub(super) copy: unsafe extern "C" fn(*mut RawTensor, *mut RawTensor, i32) -> Code,
    pub(super) delete: unsafe extern "C" fn(*mut RawTensor) -> Code,
    pub(super) data: Get<*mut c_void>,
    pub(super) dim: Get<i64>,
    pub(super) sizes: Get<*mut i64>,
    pub(super) strides: Get<*mut i64>,
    pub(super) dtype: Get<i32>,
    pub(super) device: Get<i32>,
    set_grad_mode: unsafe extern "C" fn(bool),
    /// `at::set_num_threads(int)` and `at::get_num_threads()`: torch has no C functions for them.
    set_threads: unsafe extern "C" fn(i32),
    threads: unsafe extern "C" fn() -> i32,
    /// `at::set_num_interop_threads(int)`
    set_inter_op_threads: unsafe extern "C" fn(i32),
    /// The text of the last error of this thread, in newer versions.
    last_error: Option<unsafe extern "C" fn() -> *const c_char>,
}

impl Api {
    /// The functions of the process's torch.
    pub fn get(torch: &'static Torch) -> Result<&'static Api, LibraryError> {
        static API: OnceLock<Api> = OnceLock::new();
        if let Some(api) = API.get() {
            return Ok(api);
        }
        let api = Api::of(torch.library())?;
        Ok(API.get_or_init(|| api))
    }

    fn of(library: &Library) -> Result<Api, LibraryError> {
        // SAFETY: each symbol has, in every libtorch_cpu.so, the type of its field (shim.h; those of `at::` in
        // ATen/Parallel.h take and return plain integers, so that C++ and C call them alike).
        unsafe {
            Ok(Api {
                create_from_blob: symbol(library, "aoti_torch_create_tensor_from_blob")?,
                empty_strided: symbol(library, "aoti_torch_empty_strided")?,
                copy: symbol(library, "aoti_torch_copy_")?,
                delete: symbol(library, "aoti_torch_delete_tensor_object")?,
                data: symbol(library, "aoti_torch_get_data_ptr")?,
                dim: symbol(library, "aoti_torch_get_dim")?,
                sizes: symbol(library, "aoti_torch_get_sizes")?,
                strides: symbol(library, "aoti_torch_get_strides")?,
                dtype: symbol(library, "aoti_torch_get_dtype")?,
                device: symbol(library, "aoti_torch_get_device_type")?,
                set_grad_mode: symbol(library, "aoti_torch_grad_mode_set_enabled")?,
                set_threads: symbol(library, "_ZN2at15set_num_threadsEi")?,
                threads: symbol(library, "_ZN2at15get_num_threadsEv")?,
                set_inter_op_threads: symbol(library, "_ZN2at23set_num_interop_threadsEi")?,
                last_error: symbol(library, "torch_exception_get_what_without_backtrace").ok(),
            })
        }
    }

    /// Prepares the calling thread, which runs models from now on: no gradients are recorded, and its operators use
    /// `threads` threads.
    pub fn prepare_thread(&self, threads: i32) {
        // SAFETY: it sets a flag of the calling thread.
        unsafe { (self.set_grad_mode)(false) };
        // When torch is first asked by a thread, it gives the thread the number that was set last by any: that must not
        // come behind this one.
        self.threads();
        // SAFETY: a positive number is accepted at any time; it sizes the pool of OpenMP for the calling thread.
        unsafe { (self.set_threads)(threads.max(1)) };
    }

    /// The threads of an operator that the calling thread runs.
    pub fn threads(&self) -> i32 {
        // SAFETY: it reads a number of the calling thread.
        unsafe { (self.threads)() }
    }

    /// Sets the number of operations side by side, which the process can do once.
    pub fn set_inter_op_threads(&self, torch: &Torch, count: i32) {
        match torch.opened_shim() {
            // Modules of TorchScript may have started the pool, and then C++ throws.
            Some(shim) => {
                if let Err(text) = shim.set_inter_op_threads(count) {
                    tracing::warn!("INTER_OP_THREAD_COUNT cannot be set: {text}");
                }
            }
            // SAFETY: the number is above 0 and set for the first time, before any module of TorchScript could have
            // started the pool; compiled code never starts it.
            None => unsafe { (self.set_inter_op_threads)(count.max(1)) },
        }
    }

    /// The text of an error that a function has just returned.
    pub(super) fn error(&self, what: &str) -> String {
        let Some(last_error) = self.last_error else { return format!("{what} failed") };
        // SAFETY: the text belongs to the calling thread until its next call of torch, and ends with a zero byte.
        let text = unsafe { super::container::text_at(last_error()) };
        if text.is_empty() { format!("{what} failed") } else { format!("{what} failed: {text}") }
    }
}

/// The symbol `name` of `library`.
///
/// # Safety
/// `T` is the type of the function of this name.
pub(super) unsafe fn symbol<T: Copy>(library: &Library, name: &'static str) -> Result<T, LibraryError> {
    // SAFETY: the caller vouches for the type, and the library is never closed.
    let found = unsafe { library.get::<T>(name.as_bytes()) };
    found.map(|symbol| *symbol).map_err(|_| LibraryError::Foreign { title: RUNTIME.title, symbol: name })
}
