//! The functions of shim.cpp, safe to call: TorchScript modules, runs of them, and the library's thread pools.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char};
use std::fmt;
use std::marker::PhantomData;
use std::path::Path;
use std::ptr;
use std::ptr::NonNull;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use smallvec::SmallVec;

use super::RUNTIME;
use crate::element::{datatype_of, dtype_of, is_of_modules};
use nereid_backend::rows::byte_size;
use nereid_backend::runtime_search::LibraryError;
use nereid_memory::Slice;
use nereid_request::DataType;

/// `nereid_torch_interface`
const INTERFACE: u32 = 2;

#[repr(C)]
struct RawModule {
    _opaque: [u8; 0],
}

#[repr(C)]
struct RawPlace {
    _opaque: [u8; 0],
}

#[repr(C)]
struct RawResult {
    _opaque: [u8; 0],
}

/// `NereidText`
#[repr(C)]
#[derive(Clone, Copy)]
struct RawText {
    bytes: *const c_char,
    size: usize,
}

/// `NereidInput`
#[repr(C)]
struct RawInput {
    argument: usize,
    key: RawText,
    is_strings: bool,
    scalar_type: i8,
    data: *mut u8,
    sizes: *const i64,
    rank: usize,
    strings: *const RawText,
    string_count: usize,
}

/// `NereidOptions`
#[repr(C)]
struct RawOptions {
    is_optimized: bool,
    is_inference: bool,
    has_cudnn: bool,
    returns_memory: bool,
    tensor_fuser: i8,
    jit_profiling: i8,
    jit_executor: i8,
}

/// `NereidOutput`
#[repr(C)]
struct RawOutput {
    is_strings: bool,
    scalar_type: i8,
    data: *const u8,
    byte_size: usize,
    sizes: *const i64,
    rank: usize,
    strings: *const RawText,
    string_count: usize,
}

type Failed = *mut c_char;

/// The functions, by their names in shim.cpp without `nereid_torch_`.
struct Functions {
    release_text: unsafe extern "C" fn(*mut c_char),
    load: unsafe extern "C" fn(*const u8, usize, *const c_char, bool, *mut *mut RawModule) -> Failed,
    release_module: unsafe extern "C" fn(*mut RawModule),
    argument_count: unsafe extern "C" fn(*const RawModule) -> usize,
    argument: unsafe extern "C" fn(*const RawModule, usize, *mut RawText, *mut RawText, *mut i32),
    returns_memory: unsafe extern "C" fn() -> bool,
    place: unsafe extern "C" fn(*const c_char, *mut *mut RawPlace) -> Failed,
    release_place: unsafe extern "C" fn(*mut RawPlace),
    run: unsafe extern "C" fn(
        *const RawModule,
        *const RawPlace,
        *const RawOptions,
        *const RawInput,
        usize,
        *mut *mut RawResult,
    ) -> Failed,
    output_count: unsafe extern "C" fn(*const RawResult) -> usize,
    output: unsafe extern "C" fn(*const RawResult, usize, *mut RawOutput),
    release_result: unsafe extern "C" fn(*mut RawResult),
    set_intra_op_threads: unsafe extern "C" fn(i32) -> Failed,
    set_inter_op_threads: unsafe extern "C" fn(i32) -> Failed,
    intra_op_threads: unsafe extern "C" fn() -> i32,
    inter_op_threads: unsafe extern "C" fn() -> i32,
}

/// The compiled shim. It stays open as long as the process, as the library that it calls does.
pub struct Shim(Functions);

impl fmt::Debug for Shim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shim")
    }
}

/// A function of shim.cpp.
///
/// # Safety
///
/// `F` is the type of the function of that name.
unsafe fn function<F: Copy>(library: &Library, name: &'static str) -> Result<F, LibraryError> {
    let symbol = format!("nereid_torch_{name}\0");
    // SAFETY: the type is that of the function, by the contract of this one.
    let found = unsafe { library.get::<F>(symbol.as_bytes()) };
    found.map(|found| *found).map_err(|_| unusable(format!("it has no function '{name}'")))
}

fn unusable(reason: String) -> LibraryError {
    LibraryError::Unusable { title: RUNTIME.title, reason }
}

impl Shim {
    /// Opens a compiled shim. PyTorch must be open in this process, because the shim needs it by its name.
    pub(super) fn open(path: &Path) -> Result<Shim, LibraryError> {
        // SAFETY: opening a library runs its initialisers; this one was compiled from shim.cpp, which has none of its
        // own.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
        let library = library.map_err(|error| LibraryError::opening(&error))?;
        // SAFETY: every version of shim.cpp has this function with this type.
        let interface = unsafe { function::<unsafe extern "C" fn() -> u32>(&library, "interface")? };
        // SAFETY: it takes nothing and returns a constant.
        let found = unsafe { interface() };
        if found != INTERFACE {
            return Err(unusable(format!("its interface has the number {found} in place of {INTERFACE}")));
        }
        // SAFETY: the types in `Functions` are those of the declarations in the shim.cpp of this interface's number.
        let functions = unsafe {
            Functions {
                release_text: function(&library, "release_text")?,
                load: function(&library, "load")?,
                release_module: function(&library, "release_module")?,
                argument_count: function(&library, "argument_count")?,
                argument: function(&library, "argument")?,
                returns_memory: function(&library, "returns_memory")?,
                place: function(&library, "place")?,
                release_place: function(&library, "release_place")?,
                run: function(&library, "run")?,
                output_count: function(&library, "output_count")?,
                output: function(&library, "output")?,
                release_result: function(&library, "release_result")?,
                set_intra_op_threads: function(&library, "set_intra_op_threads")?,
                set_inter_op_threads: function(&library, "set_inter_op_threads")?,
                intra_op_threads: function(&library, "intra_op_threads")?,
                inter_op_threads: function(&library, "inter_op_threads")?,
            }
        };
        std::mem::forget(library);
        Ok(Shim(functions))
    }

    /// The text of a failed call.
    fn check(&self, failed: Failed) -> Result<(), String> {
        if failed.is_null() {
            return Ok(());
        }
        // SAFETY: not null, so it is the NUL-terminated text of an error that now belongs to this side.
        let text = unsafe { CStr::from_ptr(failed) }.to_string_lossy().into_owned();
        // SAFETY: the text came from the shim, and nothing uses it after this.
        unsafe { (self.0.release_text)(failed) };
        Err(text)
    }

    /// Whether a run can return the memory that the library keeps on GPUs: from PyTorch 2.9 on.
    pub fn returns_memory(&self) -> bool {
        // SAFETY: it takes nothing and returns a constant.
        unsafe { (self.0.returns_memory)() }
    }

    /// A stream on `device`, such as `cuda:0`. The part of the library for such devices must be open.
    pub fn place(&'static self, device: &CStr) -> Result<Place, String> {
        let mut raw = ptr::null_mut();
        // SAFETY: the name is readable during the call, which does not keep it, and `raw` is writable.
        self.check(unsafe { (self.0.place)(device.as_ptr(), &mut raw) })?;
        Ok(Place { shim: self, raw: NonNull::new(raw).ok_or("the library returned no stream")? })
    }

    /// Threads that one operation may use, in the whole process. Threads that have run an operation already keep their
    /// number.
    pub fn set_intra_op_threads(&self, count: i32) -> Result<(), String> {
        // SAFETY: any number may be passed: an exception is returned as text.
        self.check(unsafe { (self.0.set_intra_op_threads)(count) })
    }

    /// Threads for operations side by side, in the whole process; to be set once, before any work.
    pub fn set_inter_op_threads(&self, count: i32) -> Result<(), String> {
        // SAFETY: any number may be passed, at any time: an exception is returned as text.
        self.check(unsafe { (self.0.set_inter_op_threads)(count) })
    }

    pub fn intra_op_threads(&self) -> i32 {
        // SAFETY: it takes nothing and reads a number.
        unsafe { (self.0.intra_op_threads)() }
    }

    pub fn inter_op_threads(&self) -> i32 {
        // SAFETY: it takes nothing and reads the size of a pool.
        unsafe { (self.0.inter_op_threads)() }
    }
}

/// A GPU, and a stream there: where an instance computes.
pub struct Place {
    shim: &'static Shim,
    raw: NonNull<RawPlace>,
}

// SAFETY: it is a description of a stream, which any thread may use and release.
unsafe impl Send for Place {}

impl Drop for Place {
    fn drop(&mut self) {
        // SAFETY: this value owns the description, and it is not used afterwards.
        unsafe { (self.shim.0.release_place)(self.raw.as_ptr()) };
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Place")
    }
}

/// The kind of an argument of `forward`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArgumentKind {
    Tensor,
    List,
    Dict,
    Other,
}

/// An argument of `forward`; `self` is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Argument {
    pub name: String,
    /// As the library prints it: `Tensor`, `Dict(str, Tensor)`.
    pub type_name: String,
    pub kind: ArgumentKind,
}

/// A loaded TorchScript module.
pub struct Module {
    shim: &'static Shim,
    raw: NonNull<RawModule>,
    arguments: Vec<Argument>,
}

// SAFETY: the library lets any thread run and release a module.
unsafe impl Send for Module {}
// SAFETY: `forward` of a loaded module may run on several threads at once: each run has an interpreter of its own, and
// the shim runs a module that may write to its own attributes once at a time.
unsafe impl Sync for Module {}

impl Module {
    /// Loads the module that the file `bytes` holds. `device`: where its tensors are placed; `None`: where the file has
    /// them.
    pub fn load(
        shim: &'static Shim,
        bytes: &[u8],
        device: Option<&CStr>,
        is_inference: bool,
    ) -> Result<Module, String> {
        let mut raw = ptr::null_mut();
        let device = device.map_or(ptr::null(), CStr::as_ptr);
        // SAFETY: the bytes and the name are readable during the call, which keeps neither, and `raw` is writable.
        shim.check(unsafe { (shim.0.load)(bytes.as_ptr(), bytes.len(), device, is_inference, &mut raw) })?;
        let raw = NonNull::new(raw).ok_or("the library returned no module")?;
        let mut module = Module { shim, raw, arguments: Vec::new() };
        // SAFETY: the module was loaded above and is not released yet.
        let count = unsafe { (shim.0.argument_count)(raw.as_ptr()) };
        for index in 0..count {
            let mut texts = [RawText { bytes: ptr::null(), size: 0 }; 2];
            let [name, type_name] = &mut texts;
            let mut kind = -1;
            // SAFETY: the index is below the count, and the three places are writable.
            unsafe { (shim.0.argument)(raw.as_ptr(), index, name, type_name, &mut kind) };
            // SAFETY: both texts were filled in and live as long as the module.
            let [name, type_name] =
                texts.map(|text| String::from_utf8_lossy(unsafe { slice(text.bytes.cast(), text.size) }).into_owned());
            let kind = match kind {
                0 => ArgumentKind::Tensor,
                1 => ArgumentKind::List,
                2 => ArgumentKind::Dict,
                _ => ArgumentKind::Other,
            };
            module.arguments.push(Argument { name, type_name, kind });
        }
        Ok(module)
    }

    pub fn arguments(&self) -> &[Argument] {
        &self.arguments
    }

    /// Runs `forward`, on a GPU if `place` is there that the module is on. Each argument must be given, each of a
    /// dictionary by a key of its own. The result is on the host; it may be views of the inputs' memory.
    pub fn run<'a>(
        &'a self,
        place: Option<&Place>,
        options: &Options,
        inputs: &[Input<'a>],
    ) -> Result<Run<'a>, String> {
        let mut texts: SmallVec<[Vec<RawText>; 2]> = SmallVec::new();
        let mut raw_inputs: SmallVec<[RawInput; 8]> = SmallVec::new();
        for input in inputs {
            raw_inputs.push(input.raw(&mut texts)?);
        }
        let switch = |given: Option<bool>| given.map_or(-1, i8::from);
        let options = RawOptions {
            is_optimized: options.is_optimized,
            is_inference: options.is_inference,
            has_cudnn: options.has_cudnn,
            returns_memory: options.returns_memory,
            tensor_fuser: switch(options.tensor_fuser),
            jit_profiling: switch(options.jit_profiling),
            jit_executor: switch(options.jit_executor),
        };
        let mut raw = ptr::null_mut();
        // SAFETY: the module lives; the inputs describe memory that `Input::raw` has checked against shape and type and
        // that lives as long as the result; the shim copies an input that the model writes to or keeps; `texts` holds
        // the lists of strings, which the call copies; the place lives; `raw` is writable.
        let failed = unsafe {
            (self.shim.0.run)(
                self.raw.as_ptr(),
                place.map_or(ptr::null(), |place| place.raw.as_ptr().cast_const()),
                &options,
                raw_inputs.as_ptr(),
                raw_inputs.len(),
                &mut raw,
            )
        };
        self.shim.check(failed)?;
        let raw = NonNull::new(raw).ok_or("the library returned no result")?;
        Ok(Run { shim: self.shim, raw, inputs: PhantomData })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: the module is released once, here, and no run of it is left: runs borrow it.
        unsafe { (self.shim.0.release_module)(self.raw.as_ptr()) };
    }
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Module").field("arguments", &self.arguments).finish_non_exhaustive()
    }
}

/// How a module is run; `None` leaves a switch of the process as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    pub is_optimized: bool,
    pub is_inference: bool,
    pub has_cudnn: bool,
    /// After each run on a GPU the memory that the library keeps there is returned, if it can.
    pub returns_memory: bool,
    pub tensor_fuser: Option<bool>,
    pub jit_profiling: Option<bool>,
    pub jit_executor: Option<bool>,
}

/// What is passed for an argument, or for a key of one that is a dictionary.
#[derive(Debug)]
pub struct Input<'a> {
    pub argument: usize,
    pub key: &'a str,
    pub data: InputData<'a>,
}

#[derive(Debug)]
pub enum InputData<'a> {
    Tensor { datatype: DataType, shape: &'a [i64], bytes: &'a Slice },
    Strings(Vec<&'a [u8]>),
}

impl Input<'_> {
    /// Texts of strings are pushed to `texts`, which must not be shortened before the run.
    fn raw(&self, texts: &mut SmallVec<[Vec<RawText>; 2]>) -> Result<RawInput, String> {
        let mut raw = RawInput {
            argument: self.argument,
            key: text(self.key.as_bytes()),
            is_strings: false,
            scalar_type: 0,
            data: ptr::null_mut(),
            sizes: ptr::null(),
            rank: 0,
            strings: ptr::null(),
            string_count: 0,
        };
        match &self.data {
            InputData::Strings(strings) => {
                let list: Vec<RawText> = strings.iter().map(|string| text(string)).collect();
                (raw.is_strings, raw.strings, raw.string_count) = (true, list.as_ptr(), list.len());
                texts.push(list);
            }
            InputData::Tensor { datatype, shape, bytes } => {
                let is_aligned = bytes.is_empty() || bytes.as_ptr().addr().is_multiple_of(datatype.byte_size().max(1));
                if byte_size(shape, *datatype) != Some(bytes.len()) || !is_aligned {
                    return Err(format!("{} bytes are no {datatype} tensor of shape {shape:?}", bytes.len()));
                }
                raw.scalar_type = scalar_type(*datatype).ok_or_else(|| format!("PyTorch has no type {datatype}"))?;
                (raw.data, raw.sizes, raw.rank) = (bytes.as_ptr().cast_mut(), shape.as_ptr(), shape.len());
            }
        }
        Ok(raw)
    }
}

fn text(bytes: &[u8]) -> RawText {
    RawText { bytes: bytes.as_ptr().cast(), size: bytes.len() }
}

/// The outputs of a run.
pub struct Run<'a> {
    shim: &'static Shim,
    raw: NonNull<RawResult>,
    inputs: PhantomData<&'a [u8]>,
}

/// One output, which lives as long as its run.
#[derive(Debug)]
pub enum Output<'a> {
    Tensor {
        /// `None`: a type that the protocol has not.
        datatype: Option<DataType>,
        shape: &'a [i64],
        bytes: &'a [u8],
    },
    Strings(Vec<&'a [u8]>),
}

impl Run<'_> {
    pub fn len(&self) -> usize {
        // SAFETY: the result lives until this value is dropped.
        unsafe { (self.shim.0.output_count)(self.raw.as_ptr()) }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn output(&self, index: usize) -> Option<Output<'_>> {
        if index >= self.len() {
            return None;
        }
        let mut raw = RawOutput {
            is_strings: false,
            scalar_type: -1,
            data: ptr::null(),
            byte_size: 0,
            sizes: ptr::null(),
            rank: 0,
            strings: ptr::null(),
            string_count: 0,
        };
        // SAFETY: the index is below the count, and the structure is writable and has the layout of the shim's.
        unsafe { (self.shim.0.output)(self.raw.as_ptr(), index, &mut raw) };
        if raw.is_strings {
            // SAFETY: the list lives as long as the result.
            let list = unsafe { slice(raw.strings, raw.string_count) };
            // SAFETY: each text is that of a string that the result keeps.
            let strings = list.iter().map(|text| unsafe { slice(text.bytes.cast(), text.size) }).collect();
            return Some(Output::Strings(strings));
        }
        let datatype = datatype_of(raw.scalar_type.into()).filter(|datatype| is_of_modules(*datatype));
        // SAFETY: the tensor's sizes live as long as the result, which holds the tensor.
        let shape = unsafe { slice(raw.sizes, raw.rank) };
        // SAFETY: the tensor is contiguous and on the host, has that many bytes, and lives as long as the result.
        let bytes = unsafe { slice(raw.data, raw.byte_size) };
        Some(Output::Tensor { datatype, shape, bytes })
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        // SAFETY: the result is released once, here; outputs borrow this value.
        unsafe { (self.shim.0.release_result)(self.raw.as_ptr()) };
    }
}

/// A slice of the library's memory, which may be null if it is empty.
///
/// # Safety
///
/// If `len` is not 0, `at` points to as many elements, which live and do not change for `'a`.
unsafe fn slice<'a, T>(at: *const T, len: usize) -> &'a [T] {
    if len == 0 || at.is_null() {
        return &[];
    }
    // SAFETY: not null; the rest is the contract of this function.
    unsafe { std::slice::from_raw_parts(at, len) }
}

/// `c10::ScalarType`
fn scalar_type(datatype: DataType) -> Option<i8> {
    dtype_of(datatype).filter(|_| is_of_modules(datatype)).and_then(|number| i8::try_from(number).ok())
}
