//! Tensors of the library, over the server's memory or over its own.

use std::ffi::c_void;
use std::ptr::NonNull;

use nereid_memory::Slice;
use nereid_request::Shape;

use super::functions::{self, StringElement};
use super::library::Runtime;
use super::status::TensorFlowError;
use super::tensor_strings::StringElements;

/// The most dimensions of a tensor: the library ends the process for more.
pub const RANK_MAX: usize = 254;

/// One `TF_Tensor`.
pub struct Tensor {
    runtime: &'static Runtime,
    at: NonNull<functions::Tensor>,
}

// SAFETY: a tensor is a reference to a counted buffer, without ties to a thread.
unsafe impl Send for Tensor {}

impl Tensor {
    /// A tensor over `bytes`, which stay alive as long as the library refers to them. It copies them if they do not
    /// start at a multiple of 64.
    pub fn over(
        runtime: &'static Runtime,
        bytes: Slice,
        shape: &[i64],
        element_type: i32,
        element_size: usize,
    ) -> Result<Tensor, TensorFlowError> {
        let count = element_count(shape)?;
        if count.checked_mul(element_size) != Some(bytes.len()) {
            return Err(TensorFlowError(format!("{} bytes do not fit a tensor of {count} elements", bytes.len())));
        }
        let (at, len) = (bytes.as_ptr().cast_mut(), bytes.len());
        let owner = Box::into_raw(Box::new(bytes));
        // SAFETY: the bytes were compared with the shape and live until `release_slice` is called. The library does not
        // write to them: the buffer does not belong to it, so that it may not be reused for a result.
        unsafe { Tensor::create(runtime, element_type, shape, at.cast(), len, release_slice, owner.cast()) }
    }

    /// A string tensor with copies of `strings`.
    pub fn strings<'a>(
        runtime: &'static Runtime,
        shape: &[i64],
        element_type: i32,
        strings: impl ExactSizeIterator<Item = &'a [u8]>,
    ) -> Result<Tensor, TensorFlowError> {
        let count = element_count(shape)?;
        if count != strings.len() {
            return Err(TensorFlowError(format!("{} strings do not fit a tensor of {count} elements", strings.len())));
        }
        let elements = StringElements::copy_of(runtime, strings)?;
        let (at, len) = (elements.as_ptr(), elements.byte_size());
        let owner = Box::into_raw(Box::new(elements));
        // SAFETY: the elements are initialised, as many as the shape has, and live until `release_strings` is called.
        unsafe { Tensor::create(runtime, element_type, shape, at.cast(), len, release_strings, owner.cast()) }
    }

    /// # Safety
    /// `len` bytes at `data` are a tensor of that type and shape until the deallocator is called with `owner`, which
    /// it releases.
    unsafe fn create(
        runtime: &'static Runtime,
        element_type: i32,
        shape: &[i64],
        data: *mut c_void,
        len: usize,
        release: functions::Deallocator,
        owner: *mut c_void,
    ) -> Result<Tensor, TensorFlowError> {
        // `element_count` limited the number of dimensions.
        let rank = i32::try_from(shape.len()).unwrap_or(i32::MAX);
        // SAFETY: the library copies the shape, whose dimensions were checked; data and owner are the caller's promise.
        let at =
            unsafe { (runtime.functions.TF_NewTensor)(element_type, shape.as_ptr(), rank, data, len, release, owner) };
        // Where it returns null it has released the owner: the buffer that it had made around the data is gone.
        NonNull::new(at).map(|at| Tensor { runtime, at }).ok_or_else(|| {
            TensorFlowError(format!("TensorFlow did not make a tensor of type {element_type} and {len} bytes"))
        })
    }

    /// # Safety
    /// The tensor is live and has no other owner.
    pub(super) unsafe fn owned(runtime: &'static Runtime, at: NonNull<functions::Tensor>) -> Tensor {
        Tensor { runtime, at }
    }

    pub(super) fn as_ptr(&self) -> *mut functions::Tensor {
        self.at.as_ptr()
    }

    /// The number of the element type.
    pub fn element_type(&self) -> i32 {
        // SAFETY: the tensor is live, and the call only reads it.
        unsafe { (self.runtime.functions.TF_TensorType)(self.as_ptr()) }
    }

    pub fn shape(&self) -> Shape {
        let functions = &self.runtime.functions;
        // SAFETY: the tensor is live, and the call only reads it.
        let rank = unsafe { (functions.TF_NumDims)(self.as_ptr()) };
        // SAFETY: the tensor is live, and each index is below its number of dimensions.
        (0..rank).map(|index| unsafe { (functions.TF_Dim)(self.as_ptr(), index) }).collect()
    }

    /// The bytes of a tensor of numbers; of other ones those of the library's own objects.
    pub fn bytes(&self) -> &[u8] {
        let functions = &self.runtime.functions;
        // SAFETY: the tensor is live; both calls only read it.
        let (at, len) =
            unsafe { ((functions.TF_TensorData)(self.as_ptr()), (functions.TF_TensorByteSize)(self.as_ptr())) };
        if at.is_null() || len == 0 {
            return &[];
        }
        // SAFETY: the tensor owns `len` bytes at `at` as long as it lives, and results of a run are not written again.
        unsafe { std::slice::from_raw_parts(at.cast::<u8>(), len) }
    }

    /// The elements of a string tensor. `count` is that of its shape.
    pub fn string_elements(
        &self,
        count: usize,
    ) -> Result<impl ExactSizeIterator<Item = &[u8]> + Clone, TensorFlowError> {
        let bytes = self.bytes();
        let held = bytes.len() / size_of::<StringElement>();
        if held < count || !bytes.as_ptr().cast::<StringElement>().is_aligned() && count > 0 {
            return Err(TensorFlowError(format!("a string tensor of {count} elements has {} bytes", bytes.len())));
        }
        let first = bytes.as_ptr().cast::<StringElement>();
        let functions = &self.runtime.functions;
        Ok((0..count).map(move |index| {
            // SAFETY: the bytes hold `count` aligned elements, compared above; the calls only read one of them.
            let (at, len) = unsafe {
                let element = first.add(index);
                ((functions.TF_StringGetDataPointer)(element), (functions.TF_StringGetSize)(element))
            };
            match at.is_null() || len == 0 {
                true => &[][..],
                // SAFETY: the element owns `len` bytes at `at` as long as the tensor, which `self` borrows.
                false => unsafe { std::slice::from_raw_parts(at.cast::<u8>(), len) },
            }
        }))
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        // SAFETY: this object owns one tensor, which is not used after this.
        unsafe { (self.runtime.functions.TF_DeleteTensor)(self.at.as_ptr()) }
    }
}

/// Elements of a shape that the library accepts: it ends the process for others.
fn element_count(shape: &[i64]) -> Result<usize, TensorFlowError> {
    let count = nereid_request::element_count(shape).and_then(|count| usize::try_from(count).ok());
    // The product may be 0 while some of the dimensions overflow together: the library multiplies all but zeros.
    let positive = shape.iter().filter(|dim| **dim > 0).try_fold(1i64, |product, dim| product.checked_mul(*dim));
    let count = count.filter(|_| shape.len() <= RANK_MAX && positive.is_some());
    count.ok_or_else(|| {
        TensorFlowError(format!("TensorFlow has no tensor of shape {}", nereid_request::format_shape(shape)))
    })
}

/// # Safety
/// `owner` comes from `Tensor::over`, and is not used after this call.
unsafe extern "C" fn release_slice(_data: *mut c_void, _len: usize, owner: *mut c_void) {
    // SAFETY: a box of this type was turned into the pointer, and the library calls this once for it.
    drop(unsafe { Box::from_raw(owner.cast::<Slice>()) });
}

/// # Safety
/// `owner` comes from `Tensor::strings`, and is not used after this call.
unsafe extern "C" fn release_strings(_data: *mut c_void, _len: usize, owner: *mut c_void) {
    // SAFETY: `Tensor::strings` made the pointer of a box of this type, and the library calls this once for it.
    drop(unsafe { Box::from_raw(owner.cast::<StringElements>()) });
}
