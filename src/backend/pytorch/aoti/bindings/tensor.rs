//! Tensors of torch: over bytes of the server, and as models return them.

use std::marker::PhantomData;
use std::ptr;

use nereid_request::Shape;

use super::api::{Api, DEVICE_CPU, RawTensor, SUCCESS};

/// The most dimensions that are read of a result; torch itself allows more.
const RANK_MAX: i64 = 64;

/// A tensor that refers to bytes of the lifetime `'a`: its own, or those that it was computed from.
#[derive(Debug)]
pub struct Tensor<'a> {
    raw: *mut RawTensor,
    api: &'static Api,
    bytes: PhantomData<&'a mut [u8]>,
}

// SAFETY: a handle is used by one thread at a time; the count of references to its memory is atomic.
unsafe impl Send for Tensor<'_> {}

impl<'a> Tensor<'a> {
    /// A contiguous tensor over `bytes`, which the model may change; `dtype` has elements of `element_size` bytes.
    pub fn over(
        api: &'static Api,
        bytes: &'a mut [u8],
        shape: &[i64],
        dtype: i32,
        element_size: usize,
    ) -> Result<Tensor<'a>, String> {
        let needed = byte_size(shape, element_size).filter(|needed| *needed <= bytes.len());
        if needed.is_none() {
            return Err(format!("a tensor of shape {shape:?} has only {} bytes", bytes.len()));
        }
        let strides = contiguous_strides(shape);
        let mut raw = ptr::null_mut();
        // SAFETY: the bytes have the size of the shape, as checked above, live as long as the tensor and have no other
        // user meanwhile, so the model may write to them; sizes and strides have one number for each dimension.
        let code = unsafe {
            (api.create_from_blob)(
                bytes.as_mut_ptr().cast(),
                shape.len() as i64,
                shape.as_ptr(),
                strides.as_ptr(),
                0,
                dtype,
                DEVICE_CPU,
                0,
                &mut raw,
            )
        };
        if code != SUCCESS || raw.is_null() {
            return Err(api.error("the creation of a tensor"));
        }
        Ok(Tensor { raw, api, bytes: PhantomData })
    }

    /// Takes over a handle that torch has returned.
    ///
    /// # Safety
    /// The handle is valid, has no other owner, and refers to no bytes that live shorter than `'a`.
    pub(super) unsafe fn from_raw(api: &'static Api, raw: *mut RawTensor) -> Tensor<'a> {
        Tensor { raw, api, bytes: PhantomData }
    }

    /// The handle, whose owner is the caller from now on.
    pub(super) fn into_raw(self) -> *mut RawTensor {
        let raw = self.raw;
        std::mem::forget(self);
        raw
    }

    pub fn shape(&self) -> Result<Shape, String> {
        Ok(Shape::from_slice(self.numbers(self.api.sizes, "the shape")?))
    }

    /// Torch's number of the type of the elements.
    pub fn dtype(&self) -> Result<i32, String> {
        self.get(self.api.dtype, 0, "the type")
    }

    pub fn is_on_host(&self) -> Result<bool, String> {
        Ok(self.get(self.api.device, 0, "the device")? == DEVICE_CPU)
    }

    /// A copy with the elements one behind the other, unless they are already.
    pub fn contiguous(&self) -> Result<Option<Tensor<'a>>, String> {
        let shape = self.shape()?;
        let strides = contiguous_strides(&shape);
        let is_contiguous = {
            let found = self.numbers(self.api.strides, "the strides")?;
            // A dimension of one element is never stepped over.
            shape.contains(&0) || shape.iter().zip(found).zip(&strides).all(|((dim, a), b)| *dim == 1 || a == b)
        };
        if is_contiguous {
            return Ok(None);
        }
        let dtype = self.dtype()?;
        let mut raw = ptr::null_mut();
        // SAFETY: sizes and strides have one number for each dimension.
        let code = unsafe {
            let (sizes, rank) = (shape.as_ptr(), shape.len() as i64);
            (self.api.empty_strided)(rank, sizes, strides.as_ptr(), dtype, DEVICE_CPU, 0, &mut raw)
        };
        if code != SUCCESS || raw.is_null() {
            return Err(self.api.error("the creation of a tensor"));
        }
        // SAFETY: the handle was just returned, and owns the memory that it refers to.
        let copy = unsafe { Tensor::from_raw(self.api, raw) };
        // SAFETY: both handles are valid, and of the same shape and type.
        match unsafe { (self.api.copy)(copy.raw, self.raw, 0) } {
            SUCCESS => Ok(Some(copy)),
            _ => Err(self.api.error("the copy of a tensor")),
        }
    }

    /// The bytes of a contiguous tensor on the host, whose elements have `element_size` bytes.
    pub fn bytes(&self, element_size: usize) -> Result<&[u8], String> {
        let shape = self.shape()?;
        let size = byte_size(&shape, element_size).ok_or_else(|| format!("a result has the shape {shape:?}"))?;
        let data = self.get(self.api.data, ptr::null_mut(), "the bytes")?;
        if size == 0 || data.is_null() {
            return if size == 0 { Ok(&[]) } else { Err("a result has no memory".to_owned()) };
        }
        // SAFETY: torch keeps that many bytes at the address for as long as the tensor, which is borrowed, and no code
        // writes to a result.
        Ok(unsafe { std::slice::from_raw_parts(data.cast::<u8>(), size) })
    }

    /// The list of one number for each dimension that `get` returns.
    fn numbers(
        &self,
        get: unsafe extern "C" fn(*mut RawTensor, *mut *mut i64) -> i32,
        what: &str,
    ) -> Result<&[i64], String> {
        let rank = self.get(self.api.dim, 0, "the rank")?;
        let numbers = self.get(get, ptr::null_mut(), what)?;
        match usize::try_from(rank) {
            Ok(0) => Ok(&[]),
            Ok(count) if rank <= RANK_MAX && !numbers.is_null() => {
                // SAFETY: torch keeps one number for each dimension at the address for as long as the tensor.
                Ok(unsafe { std::slice::from_raw_parts(numbers, count) })
            }
            _ => Err(format!("a result has {rank} dimensions")),
        }
    }

    fn get<T>(
        &self,
        get: unsafe extern "C" fn(*mut RawTensor, *mut T) -> i32,
        mut value: T,
        what: &str,
    ) -> Result<T, String> {
        // SAFETY: the handle is valid, and the function writes a value of this type.
        match unsafe { get(self.raw, &mut value) } {
            SUCCESS => Ok(value),
            _ => Err(self.api.error(&format!("the reading of {what} of a tensor"))),
        }
    }
}

impl Drop for Tensor<'_> {
    fn drop(&mut self) {
        // SAFETY: the handle is owned, and not used again.
        unsafe { (self.api.delete)(self.raw) };
    }
}

fn byte_size(shape: &[i64], element_size: usize) -> Option<usize> {
    nereid_backend::rows::elements(shape)?.checked_mul(element_size)
}

fn contiguous_strides(shape: &[i64]) -> Shape {
    let mut strides = Shape::from_elem(1, shape.len());
    for at in (1..shape.len()).rev() {
        let next = strides.get(at).zip(shape.get(at)).map(|(stride, dim)| stride.saturating_mul((*dim).max(1)));
        if let (Some(stride), Some(next)) = (strides.get_mut(at - 1), next) {
            *stride = next;
        }
    }
    strides
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strides_step_over_the_dimensions_behind() {
        for (shape, strides) in
            [(&[][..], &[][..]), (&[7], &[1]), (&[2, 3, 5], &[15, 5, 1]), (&[2, 0, 3], &[3, 3, 1]), (&[1, 1], &[1, 1])]
        {
            assert_eq!(contiguous_strides(shape).as_slice(), strides, "{shape:?}");
        }
        assert_eq!(contiguous_strides(&[2, i64::MAX, i64::MAX]).as_slice(), [i64::MAX, i64::MAX, 1]);
    }
}
