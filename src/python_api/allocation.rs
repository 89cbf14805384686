//! Memory for outputs: the allocator of all requests, the attributes of buffers, and `TRITONSERVER_ResponseAllocator`.

use std::alloc::{Layout, alloc, dealloc};
use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::c;
use crate::errors::{Failure, call, check};
use crate::numbers::MemoryType;

/// Fits every element type, and a line of the processor's cache.
const ALIGNMENT: usize = 64;

/// The address of the allocator that all requests use; it lives as long as the process.
struct Shared(*mut c::Allocator);

// SAFETY: its functions have no state, so any thread may use it.
unsafe impl Send for Shared {}
// SAFETY: its functions have no state, so threads may share it.
unsafe impl Sync for Shared {}

/// The allocator that puts every output into memory of the process, whatever the backend prefers.
pub fn shared() -> Result<*mut c::Allocator, Failure> {
    static SHARED: OnceLock<Shared> = OnceLock::new();
    if let Some(shared) = SHARED.get() {
        return Ok(shared.0);
    }
    let mut made = null_mut();
    call!(TRITONSERVER_ResponseAllocatorNew(&mut made, allocate, release, None))?;
    // A thread that was slower leaves its own, a few bytes, behind.
    Ok(SHARED.get_or_init(|| Shared(made)).0)
}

fn layout(size: usize) -> Option<Layout> {
    Layout::from_size_align(size, ALIGNMENT).ok().filter(|_| size > 0)
}

unsafe extern "C" fn allocate(
    _allocator: *mut c::Allocator,
    _tensor_name: *const c_char,
    byte_size: usize,
    _memory_type: c_int,
    _memory_type_id: i64,
    _userp: *mut c_void,
    buffer: *mut *mut c_void,
    buffer_userp: *mut *mut c_void,
    actual_memory_type: *mut c_int,
    actual_memory_type_id: *mut i64,
) -> *mut c::Error {
    // SAFETY: the layout has a size.
    let memory = layout(byte_size).map_or(null_mut(), |layout| unsafe { alloc(layout) });
    if memory.is_null() && byte_size > 0 {
        let text = c"no memory for an output";
        // SAFETY: the text is a C string, which is copied. 4 is `TRITONSERVER_ERROR_UNAVAILABLE`.
        return unsafe { c::TRITONSERVER_ErrorNew(4, text.as_ptr()) };
    }
    // SAFETY: the server passes addresses of four results.
    unsafe {
        *buffer = memory.cast();
        *buffer_userp = null_mut();
        *actual_memory_type = c::MEMORY_CPU;
        *actual_memory_type_id = 0;
    }
    null_mut()
}

unsafe extern "C" fn release(
    _allocator: *mut c::Allocator,
    buffer: *mut c_void,
    _buffer_userp: *mut c_void,
    byte_size: usize,
    _memory_type: c_int,
    _memory_type_id: i64,
) -> *mut c::Error {
    if let (Some(layout), false) = (layout(byte_size), buffer.is_null()) {
        // SAFETY: `allocate` returned this buffer for the same size, and the server gives it back once.
        unsafe { dealloc(buffer.cast(), layout) };
    }
    null_mut()
}

/// The size of `cudaIpcMemHandle_t`.
const HANDLE_BYTES: usize = 64;

#[pyclass(name = "TRITONSERVER_BufferAttributes", module = "tritonserver._c.triton_bindings")]
pub struct BufferAttributes {
    at: *mut c::BufferAttributes,
    /// The C object keeps its address.
    handle: Option<Box<[u8; HANDLE_BYTES]>>,
}

// SAFETY: the functions of attributes may be called from any thread, by one at a time.
unsafe impl Send for BufferAttributes {}
// SAFETY: what changes the C object takes `&mut self`.
unsafe impl Sync for BufferAttributes {}

impl BufferAttributes {
    pub fn at(&self) -> *mut c::BufferAttributes {
        self.at
    }
}

#[pymethods]
impl BufferAttributes {
    #[new]
    fn new() -> PyResult<BufferAttributes> {
        let mut at = null_mut();
        call!(TRITONSERVER_BufferAttributesNew(&mut at))?;
        Ok(BufferAttributes { at, handle: None })
    }

    #[getter]
    fn memory_type_id(&self) -> PyResult<i64> {
        let mut id = 0;
        call!(TRITONSERVER_BufferAttributesMemoryTypeId(self.at, &mut id))?;
        Ok(id)
    }

    #[setter]
    fn set_memory_type_id(&mut self, id: i64) -> PyResult<()> {
        Ok(call!(TRITONSERVER_BufferAttributesSetMemoryTypeId(self.at, id))?)
    }

    #[getter]
    fn memory_type(&self) -> PyResult<MemoryType> {
        let mut kind = 0;
        call!(TRITONSERVER_BufferAttributesMemoryType(self.at, &mut kind))?;
        Ok(MemoryType(kind))
    }

    #[setter]
    fn set_memory_type(&mut self, kind: MemoryType) -> PyResult<()> {
        Ok(call!(TRITONSERVER_BufferAttributesSetMemoryType(self.at, kind.0))?)
    }

    /// The address of the handle; 0 without one.
    #[getter]
    fn cuda_ipc_handle(&self) -> PyResult<usize> {
        let mut handle = null_mut();
        call!(TRITONSERVER_BufferAttributesCudaIpcHandle(self.at, &mut handle))?;
        Ok(handle.addr())
    }

    /// Copies the 64 bytes at the address.
    #[setter]
    fn set_cuda_ipc_handle(&mut self, address: usize) -> PyResult<()> {
        if address == 0 {
            call!(TRITONSERVER_BufferAttributesSetCudaIpcHandle(self.at, null_mut()))?;
            self.handle = None;
            return Ok(());
        }
        let mut copy = Box::new([0; HANDLE_BYTES]);
        // SAFETY: the program states that a handle is at this address, as in Triton's binding.
        unsafe { std::ptr::copy_nonoverlapping(address as *const u8, copy.as_mut_ptr(), HANDLE_BYTES) };
        call!(TRITONSERVER_BufferAttributesSetCudaIpcHandle(self.at, copy.as_mut_ptr().cast()))?;
        self.handle = Some(copy);
        Ok(())
    }

    #[getter]
    fn byte_size(&self) -> PyResult<usize> {
        let mut size = 0;
        call!(TRITONSERVER_BufferAttributesByteSize(self.at, &mut size))?;
        Ok(size)
    }

    #[setter]
    fn set_byte_size(&mut self, size: usize) -> PyResult<()> {
        Ok(call!(TRITONSERVER_BufferAttributesSetByteSize(self.at, size))?)
    }
}

impl Drop for BufferAttributes {
    fn drop(&mut self) {
        // SAFETY: this object owns the C object, and nothing uses it afterwards.
        drop(check(unsafe { c::TRITONSERVER_BufferAttributesDelete(self.at) }));
    }
}

/// Functions of a program that would find memory for outputs. As in Triton's binding, no other call takes one.
#[pyclass(name = "TRITONSERVER_ResponseAllocator", module = "tritonserver._c.triton_bindings")]
pub struct ResponseAllocator {
    _functions: Vec<Py<PyAny>>,
    buffer_attributes: Option<Py<PyAny>>,
    query: Option<Py<PyAny>>,
}

fn callable(function: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
    if function.is_callable() {
        return Ok(function.clone().unbind());
    }
    Err(PyTypeError::new_err(format!("expected a function, not {}", function.get_type().name()?)))
}

#[pymethods]
impl ResponseAllocator {
    #[new]
    #[pyo3(signature = (alloc_function, release_function, start_function = None))]
    fn new(
        alloc_function: &Bound<'_, PyAny>,
        release_function: &Bound<'_, PyAny>,
        start_function: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<ResponseAllocator> {
        let given = [Some(alloc_function), Some(release_function), start_function];
        let functions = given.into_iter().flatten().map(callable).collect::<PyResult<_>>()?;
        Ok(ResponseAllocator { _functions: functions, buffer_attributes: None, query: None })
    }

    fn set_buffer_attributes_function(&mut self, buffer_attributes_function: &Bound<'_, PyAny>) -> PyResult<()> {
        self.buffer_attributes = Some(callable(buffer_attributes_function)?);
        Ok(())
    }

    fn set_query_function(&mut self, query_function: &Bound<'_, PyAny>) -> PyResult<()> {
        self.query = Some(callable(query_function)?);
        Ok(())
    }
}
