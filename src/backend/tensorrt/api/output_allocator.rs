//! Memory for outputs whose sizes depend on data: the library asks for it when it knows them.

use std::cell::{RefCell, UnsafeCell};
use std::ffi::{c_char, c_void};

use nereid_gpu::{DeviceBuffer, Gpu};

use super::abi::{Dims, InterfaceInfo};

/// An object with the functions of `nvinfer1::IOutputAllocator`, for one output of one context.
pub struct OutputAllocator(Box<UnsafeCell<Shared>>);

#[repr(C)]
struct Shared {
    functions: *const Function,
    state: RefCell<State>,
}

struct State {
    gpu: Gpu,
    buffers: Vec<DeviceBuffer>,
    dims: Option<Dims>,
}

/// What an execution made of an output.
pub struct Allocated {
    /// The last one holds the output. The library may have begun to write the others.
    pub buffers: Vec<DeviceBuffer>,
    /// The shape, if it was reported.
    pub dims: Option<Dims>,
}

#[derive(Clone, Copy)]
#[repr(transparent)]
struct Function(*const c_void);

/// The table, with the two words that C++ has in front of it.
#[repr(C)]
struct Table {
    offset: isize,
    kind: *const c_void,
    functions: [Function; 7],
}

// SAFETY: addresses of functions.
unsafe impl Sync for Table {}

static TABLE: Table = Table {
    offset: 0,
    kind: std::ptr::null(),
    functions: [
        Function(language as *const c_void),
        Function(interface as *const c_void),
        Function(destroy as *const c_void),
        Function(destroy as *const c_void),
        Function(allocate as *const c_void),
        Function(allocate_on as *const c_void),
        Function(notify as *const c_void),
    ],
};

// SAFETY: the library calls the functions while a context enqueues, on that thread or on one that it waits for.
unsafe impl Send for OutputAllocator {}

impl OutputAllocator {
    pub fn new(gpu: &Gpu) -> OutputAllocator {
        let state = RefCell::new(State { gpu: gpu.clone(), buffers: Vec::new(), dims: None });
        OutputAllocator(Box::new(UnsafeCell::new(Shared { functions: TABLE.functions.as_ptr(), state })))
    }

    pub(super) fn as_ptr(&self) -> *mut c_void {
        self.0.get().cast()
    }

    /// What the last execution allocated; the next one allocates anew.
    pub fn take(&mut self) -> Allocated {
        let state = self.0.get_mut().state.get_mut();
        Allocated { buffers: std::mem::take(&mut state.buffers), dims: state.dims.take() }
    }
}

unsafe extern "C" fn language(_this: *const c_void) -> i32 {
    0
}

unsafe extern "C" fn interface(_this: *const c_void) -> InterfaceInfo {
    InterfaceInfo { kind: c"IOutputAllocator".as_ptr(), major: 1, minor: 0 }
}

/// The server owns it.
unsafe extern "C" fn destroy(_this: *mut c_void) {}

/// # Safety
/// `this` is an allocator.
unsafe extern "C" fn allocate(
    this: *const c_void,
    _name: *const c_char,
    _current: *mut c_void,
    size: u64,
    alignment: u64,
) -> u64 {
    // SAFETY: `this` is an allocator, which lives as long as its context: this function requires it.
    let state = unsafe { &(*this.cast::<Shared>()).state };
    let Ok(mut state) = state.try_borrow_mut() else { return 0 };
    let fits = |buffer: &DeviceBuffer| usize::try_from(size).is_ok_and(|size| size <= buffer.len());
    if let Some(last) = state.buffers.last().filter(|last| fits(last)) {
        return last.address().0;
    }
    // An empty output needs an address too.
    let Ok(len) = usize::try_from(size.max(1)) else { return 0 };
    match state.gpu.allocate(len) {
        Ok(buffer) if alignment == 0 || buffer.address().0.is_multiple_of(alignment) => {
            let address = buffer.address().0;
            state.buffers.push(buffer);
            address
        }
        Ok(_) => 0,
        Err(error) => {
            tracing::error!("an output of {size} bytes cannot be allocated: {error}");
            0
        }
    }
}

/// # Safety
/// As [`allocate`].
unsafe extern "C" fn allocate_on(
    this: *const c_void,
    name: *const c_char,
    current: *mut c_void,
    size: u64,
    alignment: u64,
    _stream: *mut c_void,
) -> u64 {
    // SAFETY: `this` is an allocator: this function requires it.
    unsafe { allocate(this, name, current, size, alignment) }
}

/// # Safety
/// `this` is an allocator, and `dims` is valid.
unsafe extern "C" fn notify(this: *const c_void, _name: *const c_char, dims: *const Dims) {
    // SAFETY: the library passes an allocator and valid dims: this function requires it.
    let (state, dims) = unsafe { (&(*this.cast::<Shared>()).state, *dims) };
    if let Ok(mut state) = state.try_borrow_mut() {
        state.dims = Some(dims);
    }
}
