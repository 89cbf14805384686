//! A tensor of the library: over memory of the server, or with memory of its own.

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::slice;

use nereid_memory::Slice;
use nereid_request::{DataType, Shape};

use super::functions::{OvShape, OvTensor};
use super::{OpenVinoError, Runtime, filled};

pub(super) const SETTING: &str = "setting tensor data";

/// The most dimensions that are read from the library's answer.
const RANK_MAX: usize = 64;

pub(super) struct Tensor {
    runtime: &'static Runtime,
    at: NonNull<OvTensor>,
}

// SAFETY: a tensor is data; it may be used and freed on any thread, one at a time.
unsafe impl Send for Tensor {}

impl Drop for Tensor {
    fn drop(&mut self) {
        // SAFETY: made by this module for this owner, and freed once; requests that use it hold their own reference.
        unsafe { (self.runtime.functions.ov_tensor_free)(self.at.as_ptr()) };
    }
}

impl Tensor {
    /// A tensor over `memory`, of which it uses as many bytes as shape and type need.
    ///
    /// # Safety
    /// No call of the library may use the tensor, or a request that it was set in, when the memory is gone; while one
    /// uses it as an output, no other code accesses the memory.
    pub unsafe fn over(
        runtime: &'static Runtime,
        datatype: DataType,
        shape: &[i64],
        memory: *mut u8,
        len: usize,
    ) -> Result<Tensor, OpenVinoError> {
        let number = number(runtime, datatype)?;
        check_size(datatype, shape, len)?;
        let mut dims = Shape::from_slice(shape);
        let shape = raw(&mut dims);
        // The library refuses null, which an empty slice may have.
        let memory = if len == 0 { ptr::without_provenance_mut(64) } else { memory };
        let mut at = ptr::null_mut();
        let create = runtime.functions.ov_tensor_create_from_host_ptr;
        // SAFETY: the memory has as many bytes as shape and type need, checked above, and outlives every use by this
        // function's contract; the shape is alive during the call, which copies it.
        let status = unsafe { create(number, shape, memory.cast::<c_void>(), &mut at) };
        runtime.check(status, SETTING)?;
        Ok(Tensor { runtime, at: filled(at, SETTING)? })
    }

    /// A tensor with memory of its own, which the library enlarges as it needs.
    pub fn owned(runtime: &'static Runtime, number: i32, shape: &[i64]) -> Result<Tensor, OpenVinoError> {
        let mut dims = Shape::from_slice(shape);
        let mut at = ptr::null_mut();
        // SAFETY: the shape is alive during the call, which copies it; an object is written to the given place.
        let status = unsafe { (runtime.functions.ov_tensor_create)(number, raw(&mut dims), &mut at) };
        runtime.check(status, SETTING)?;
        Ok(Tensor { runtime, at: filled(at, SETTING)? })
    }

    /// A tensor with memory of its own that has these elements.
    pub fn copy_of(
        runtime: &'static Runtime,
        datatype: DataType,
        shape: &[i64],
        elements: &Slice,
    ) -> Result<Tensor, OpenVinoError> {
        check_size(datatype, shape, elements.len())?;
        let mut tensor = Tensor::owned(runtime, number(runtime, datatype)?, shape)?;
        tensor.copy_from(elements)?;
        Ok(tensor)
    }

    /// Copies all its elements. For tensors with memory of their own.
    pub fn copy_from(&mut self, elements: &Slice) -> Result<(), OpenVinoError> {
        let own = self.bytes()?;
        if own.len() != elements.len() {
            return Err(OpenVinoError::ByteSize { expected: own.len(), found: elements.len() });
        }
        // SAFETY: the tensor's memory has that many bytes, compared above. It is this object's, which is borrowed
        // mutably, and no run reads it meanwhile, because a run borrows the request that owns this tensor.
        unsafe { ptr::copy_nonoverlapping(elements.as_ptr(), own.as_ptr().cast_mut(), elements.len()) };
        Ok(())
    }

    pub fn at(&self) -> *const OvTensor {
        self.at.as_ptr()
    }

    pub fn shape(&self) -> Result<Shape, OpenVinoError> {
        let functions = &self.runtime.functions;
        let mut shape = OvShape { rank: 0, dims: ptr::null_mut() };
        // SAFETY: the tensor is alive; rank and a list of dimensions are written to the given structure.
        self.runtime.check(unsafe { (functions.ov_tensor_get_shape)(self.at.as_ptr(), &mut shape) }, SETTING)?;
        let dims = match usize::try_from(shape.rank) {
            Ok(rank @ 1..=RANK_MAX) if !shape.dims.is_null() => {
                // SAFETY: the library has filled as many dimensions as the rank says; they are alive until freed below.
                Shape::from_slice(unsafe { slice::from_raw_parts(shape.dims, rank) })
            }
            _ => Shape::new(),
        };
        // SAFETY: filled by the library, and freed once.
        unsafe { (functions.ov_shape_free)(&mut shape) };
        Ok(dims)
    }

    /// The elements. For tensors with memory of their own: other memory belongs to its owner.
    pub fn bytes(&self) -> Result<&[u8], OpenVinoError> {
        let functions = &self.runtime.functions;
        let (mut data, mut len) = (ptr::null_mut(), 0);
        // SAFETY: the tensor is alive; a number is written to the given place.
        self.runtime.check(unsafe { (functions.ov_tensor_get_byte_size)(self.at.as_ptr(), &mut len) }, SETTING)?;
        if len == 0 {
            return Ok(&[]);
        }
        // SAFETY: the tensor is alive; a pointer is written to the given place.
        self.runtime.check(unsafe { (functions.ov_tensor_data)(self.at.as_ptr(), &mut data) }, SETTING)?;
        let data = filled(data.cast::<u8>(), SETTING)?;
        // SAFETY: the tensor's memory has that many bytes, and stays where it is until a run changes the tensor, for
        // which its request must be borrowed mutably.
        Ok(unsafe { slice::from_raw_parts(data.as_ptr(), len) })
    }
}

fn check_size(datatype: DataType, shape: &[i64], len: usize) -> Result<(), OpenVinoError> {
    let elements = shape.iter().try_fold(1usize, |count, dim| count.checked_mul(usize::try_from(*dim).ok()?));
    let expected = elements.and_then(|count| count.checked_mul(datatype.byte_size())).unwrap_or(usize::MAX);
    if expected == len { Ok(()) } else { Err(OpenVinoError::ByteSize { expected, found: len }) }
}

fn number(runtime: &Runtime, datatype: DataType) -> Result<i32, OpenVinoError> {
    let number = runtime.elements.number(datatype);
    number.ok_or_else(|| OpenVinoError::new(SETTING, format!("the library has no type {datatype}")))
}

fn raw(dims: &mut Shape) -> OvShape {
    OvShape { rank: i64::try_from(dims.len()).unwrap_or(i64::MAX), dims: dims.as_mut_ptr() }
}
