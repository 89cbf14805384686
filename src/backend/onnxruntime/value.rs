//! Tensors of ONNX Runtime, over the server's memory or over the library's own.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int};
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};

use ort::sys;

use super::element::ElementType;
use super::runtime::{Runtime, RuntimeError, filled};
use nereid_request::{Shape, element_count};

/// Dimensions that a tensor may have here; more would be a mistake or an attack, and make shapes costly.
pub(super) const RANK_MAX: usize = 1024;

/// One `OrtValue`.
pub struct Value {
    runtime: &'static Runtime,
    at: NonNull<sys::OrtValue>,
}

// SAFETY: a value is a reference-counted tensor without ties to a thread.
unsafe impl Send for Value {}
// SAFETY: shared references only read.
unsafe impl Sync for Value {}

impl Value {
    /// A tensor over `len` bytes at `data`, which the caller still owns.
    ///
    /// # Safety
    /// Until the value is dropped the bytes stay valid, are not written while the library reads them, and, if the value
    /// is an output, only the library reads or writes them.
    pub unsafe fn over(
        runtime: &'static Runtime,
        data: *mut u8,
        len: usize,
        shape: &[i64],
        element: ElementType,
    ) -> Result<Value, RuntimeError> {
        // SAFETY: as the caller guarantees, for memory of this process.
        unsafe { Value::in_memory(runtime, runtime.memory(), data, len, shape, element) }
    }

    /// The same in memory of another kind.
    ///
    /// # Safety
    /// As [`Value::over`]; `memory` is alive and describes where `data` lies.
    pub unsafe fn in_memory(
        runtime: &'static Runtime,
        memory: *const sys::OrtMemoryInfo,
        data: *mut u8,
        len: usize,
        shape: &[i64],
        element: ElementType,
    ) -> Result<Value, RuntimeError> {
        let mut value = ptr::null_mut();
        // SAFETY: the library checks length against shape and keeps only the pointer, which the caller guarantees.
        let status = unsafe {
            (runtime.api.CreateTensorWithDataAsOrtValue)(
                memory,
                data.cast(),
                len,
                shape.as_ptr(),
                shape.len(),
                element.number(),
                &mut value,
            )
        };
        runtime.check(status)?;
        Ok(Value { runtime, at: filled(value)? })
    }

    /// A string tensor; the library copies each string up to its NUL.
    pub fn strings(runtime: &'static Runtime, shape: &[i64], strings: &[&CStr]) -> Result<Value, RuntimeError> {
        let mut value = ptr::null_mut();
        // SAFETY: the default allocator lives for ever; the shape is copied.
        let status = unsafe {
            (runtime.api.CreateTensorAsOrtValue)(
                runtime.allocator(),
                shape.as_ptr(),
                shape.len(),
                sys::ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING,
                &mut value,
            )
        };
        runtime.check(status)?;
        let value = Value { runtime, at: filled(value)? };
        if !strings.is_empty() {
            let pointers: Vec<*const c_char> = strings.iter().map(|string| string.as_ptr()).collect();
            // SAFETY: the library checks the count against the tensor's and reads NUL-terminated strings.
            runtime.check(unsafe {
                (runtime.api.FillStringTensor)(value.at.as_ptr(), pointers.as_ptr(), pointers.len())
            })?;
        }
        Ok(value)
    }

    /// Takes ownership of the value that [`super::session::Session::run`] left in an empty output.
    ///
    /// # Safety
    /// `at` is an `OrtValue` without another owner.
    pub(super) unsafe fn from_raw(runtime: &'static Runtime, at: NonNull<sys::OrtValue>) -> Value {
        Value { runtime, at }
    }

    pub(super) fn as_ptr(&self) -> *mut sys::OrtValue {
        self.at.as_ptr()
    }

    /// Element type and shape. Anything but a tensor is an error.
    pub fn tensor_type(&self) -> Result<(Option<ElementType>, Shape), RuntimeError> {
        let api = self.runtime.api;
        let mut info = ptr::null_mut();
        // SAFETY: the value is alive; a new description is written to the given place.
        self.runtime.check(unsafe { (api.GetTensorTypeAndShape)(self.as_ptr(), &mut info) })?;
        let info = filled(info)?;
        // SAFETY: the description is alive until the next statement releases it.
        let read = unsafe { read_tensor_type(self.runtime, info.as_ptr()) };
        // SAFETY: created above and released once.
        unsafe { (api.ReleaseTensorTypeAndShapeInfo)(info.as_ptr()) };
        let (element, shape) = read?;
        Ok((ElementType::from_number(element), shape))
    }

    /// The number of elements of a sequence; 2 for a map, which has keys and values.
    pub fn count(&self) -> Result<usize, RuntimeError> {
        let mut count = 0;
        // SAFETY: the value is alive; a number is written to the given place.
        self.runtime.check(unsafe { (self.runtime.api.GetValueCount)(self.as_ptr(), &mut count) })?;
        Ok(count)
    }

    /// A copy of element number `index` of a sequence; of a map's keys (0) or values (1), as a tensor in the order of
    /// the keys.
    pub fn element(&self, index: usize) -> Result<Value, RuntimeError> {
        let runtime = self.runtime;
        let index = c_int::try_from(index).map_err(|_| RuntimeError::here("a sequence has too many elements"))?;
        let mut element = ptr::null_mut();
        // SAFETY: the value is alive; the library checks the index and writes a new value to the given place.
        runtime.check(unsafe { (runtime.api.GetValue)(self.as_ptr(), index, runtime.allocator(), &mut element) })?;
        Ok(Value { runtime, at: filled(element)? })
    }

    /// Whether an optional value is there.
    pub fn is_present(&self) -> Result<bool, RuntimeError> {
        let mut present = 0;
        // SAFETY: the value is alive; a number is written to the given place.
        self.runtime.check(unsafe { (self.runtime.api.HasValue)(self.as_ptr(), &mut present) })?;
        Ok(present != 0)
    }

    /// Copies the numbers of a tensor, which fill `to`.
    pub fn copy_numbers(&self, to: &mut [u8]) -> Result<(), RuntimeError> {
        let (element, shape) = self.tensor_type()?;
        let size = element.map_or(0, |element| element.datatype().byte_size());
        let count = element_count(&shape).and_then(|count| usize::try_from(count).ok());
        if size == 0 || count.and_then(|count| count.checked_mul(size)) != Some(to.len()) {
            return Err(RuntimeError::here("a tensor has another size than its neighbours"));
        }
        if !to.is_empty() {
            // SAFETY: a tensor of numbers has its elements one behind the other, as many bytes as just computed.
            to.copy_from_slice(unsafe { std::slice::from_raw_parts(self.data()?, to.len()) });
        }
        Ok(())
    }

    /// The first byte of a tensor that holds numbers; valid as long as the value.
    pub fn data(&self) -> Result<*const u8, RuntimeError> {
        let mut data = ptr::null_mut();
        // SAFETY: the value is alive; a pointer is written to the given place.
        self.runtime.check(unsafe { (self.runtime.api.GetTensorMutableData)(self.as_ptr(), &mut data) })?;
        Ok(data.cast_const().cast())
    }

    /// The bytes of all `count` strings one behind the other, and where each begins. Both vectors are refilled.
    pub fn string_content(
        &self,
        count: usize,
        bytes: &mut Vec<u8>,
        starts: &mut Vec<usize>,
    ) -> Result<(), RuntimeError> {
        let api = self.runtime.api;
        bytes.clear();
        starts.clear();
        if count == 0 {
            return Ok(());
        }
        let mut len = 0;
        // SAFETY: the value is alive; a length is written to the given place.
        self.runtime.check(unsafe { (api.GetStringTensorDataLength)(self.as_ptr(), &mut len) })?;
        bytes.try_reserve(len).map_err(|_| RuntimeError::here("no memory for a string tensor"))?;
        bytes.resize(len, 0);
        starts.resize(count, 0);
        // SAFETY: both buffers have the passed lengths; the library refuses a count or length that does not fit.
        self.runtime.check(unsafe {
            (api.GetStringTensorContent)(self.as_ptr(), bytes.as_mut_ptr().cast(), len, starts.as_mut_ptr(), count)
        })?;
        let ordered = starts.windows(2).all(|pair| matches!(pair, [a, b] if a <= b));
        match ordered && starts.last().is_none_or(|last| *last <= len) {
            true => Ok(()),
            false => Err(RuntimeError::here("a string tensor's offsets are out of order")),
        }
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        // SAFETY: this handle owns one value, which is not used afterwards.
        unsafe { (self.runtime.api.ReleaseValue)(self.at.as_ptr()) }
    }
}

/// Element type (as its number) and dimensions; symbolic ones are -1.
///
/// # Safety
/// `info` is alive.
pub(super) unsafe fn read_tensor_type(
    runtime: &Runtime,
    info: *const sys::OrtTensorTypeAndShapeInfo,
) -> Result<(i32, Shape), RuntimeError> {
    let api = runtime.api;
    // Newer libraries have element types that this build's enum does not declare: it is read as a number.
    let mut element = MaybeUninit::<sys::ONNXTensorElementDataType>::zeroed();
    // SAFETY: `info` is alive by contract; the type is written to the given place.
    runtime.check(unsafe { (api.GetTensorElementType)(info, element.as_mut_ptr()) })?;
    // SAFETY: the enum is repr(i32) and the place was zeroed, so these are four initialised bytes.
    let element = unsafe { element.as_ptr().cast::<i32>().read() };
    let mut rank = 0;
    // SAFETY: `info` is alive by contract; the rank is written to the given place.
    runtime.check(unsafe { (api.GetDimensionsCount)(info, &mut rank) })?;
    if rank > RANK_MAX {
        return Err(RuntimeError::here(format!("a tensor has {rank} dimensions")));
    }
    let mut shape = Shape::from_elem(0, rank);
    // SAFETY: as above; the place holds `rank` dimensions.
    runtime.check(unsafe { (api.GetDimensions)(info, shape.as_mut_ptr(), rank) })?;
    for dim in &mut shape {
        *dim = (*dim).max(-1);
    }
    Ok((element, shape))
}
