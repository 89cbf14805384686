//! DLPack: tensors handed over between libraries without a copy, as capsules with one C structure.
//!
//! The layouts are those of dlpack.h, version 1.

use std::ffi::{CStr, c_void};
use std::ptr::{null_mut, with_exposed_provenance_mut};

use pyo3::exceptions::{PyBufferError, PyOverflowError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

const PLAIN: &CStr = c"dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";
/// The version of DLPack that the structures have.
const VERSION: [u32; 2] = [1, 0];

#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
struct Managed {
    tensor: Tensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

#[repr(C)]
struct ManagedVersioned {
    version: [u32; 2],
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedVersioned)>,
    flags: u64,
    tensor: Tensor,
}

/// What a consumer's deleter ends: the structure, its shape, and the hold on the owner of the memory.
struct Export<T> {
    managed: T,
    _shape: Box<[i64]>,
    _owner: Py<PyAny>,
}

/// Lets the owner go, with the interpreter's lock, which the consumer need not hold.
fn end<T>(export: Box<Export<T>>) {
    let export = std::mem::ManuallyDrop::new(export);
    // None while the interpreter ends, with all that it has.
    Python::try_attach(|_| drop(std::mem::ManuallyDrop::into_inner(export)));
}

unsafe extern "C" fn delete(managed: *mut Managed) {
    // SAFETY: the structure is in the `Export` that its context names, and consumers delete it once.
    end(unsafe { Box::from_raw((*managed).context.cast::<Export<Managed>>()) });
}

unsafe extern "C" fn delete_versioned(managed: *mut ManagedVersioned) {
    // SAFETY: the structure is in the `Export` that its context names, and consumers delete it once.
    end(unsafe { Box::from_raw((*managed).context.cast::<Export<ManagedVersioned>>()) });
}

/// Deletes what no consumer has taken: one that takes a tensor renames its capsule.
unsafe extern "C" fn end_of_capsule(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls this with a capsule that `export` made, whose pointer has the type of its name.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, PLAIN.as_ptr()) != 0 {
            delete(ffi::PyCapsule_GetPointer(capsule, PLAIN.as_ptr()).cast());
        } else if ffi::PyCapsule_IsValid(capsule, VERSIONED.as_ptr()) != 0 {
            delete_versioned(ffi::PyCapsule_GetPointer(capsule, VERSIONED.as_ptr()).cast());
        }
    }
}

/// A capsule of a dense tensor at `address`, which holds `owner` until its consumer deletes it.
#[pyfunction]
#[allow(clippy::too_many_arguments)] // As many as the structure has members.
fn dlpack_export(
    py: Python<'_>,
    owner: Py<PyAny>,
    address: usize,
    code: u8,
    bits: u8,
    shape: &Bound<'_, PyAny>,
    device_type: i32,
    device_id: i32,
    is_versioned: bool,
) -> PyResult<Py<PyAny>> {
    let mut shape = shape.try_iter()?.map(|dim| dim?.extract()).collect::<PyResult<Box<[i64]>>>()?;
    let ndim = i32::try_from(shape.len()).map_err(|_| PyOverflowError::new_err("too many dimensions"))?;
    let (data, strides) = (with_exposed_provenance_mut(address), null_mut());
    let tensor = Tensor {
        data,
        device_type,
        device_id,
        ndim,
        code,
        bits,
        lanes: 1,
        shape: shape.as_mut_ptr(),
        strides,
        byte_offset: 0,
    };
    let (context, flags) = (null_mut(), 0);
    // SAFETY: the pointers are those of boxes that `end_of_capsule` or the consumer's call of the deleter frees.
    let capsule = unsafe {
        if is_versioned {
            let managed =
                ManagedVersioned { version: VERSION, context, deleter: Some(delete_versioned), flags, tensor };
            let export = Box::into_raw(Box::new(Export { managed, _shape: shape, _owner: owner }));
            (*export).managed.context = export.cast();
            ffi::PyCapsule_New((&raw mut (*export).managed).cast(), VERSIONED.as_ptr(), Some(end_of_capsule))
        } else {
            let managed = Managed { tensor, context, deleter: Some(delete) };
            let export = Box::into_raw(Box::new(Export { managed, _shape: shape, _owner: owner }));
            (*export).managed.context = export.cast();
            ffi::PyCapsule_New((&raw mut (*export).managed).cast(), PLAIN.as_ptr(), Some(end_of_capsule))
        }
    };
    // SAFETY: a new reference, or NULL with an exception.
    unsafe { Bound::from_owned_ptr_or_err(py, capsule) }.map(Bound::unbind)
}

type Imported<'py> = (usize, u8, u8, u16, Bound<'py, PyTuple>, bool, i32, i32, u64);

/// What a capsule describes: address, code, bits and lanes of the type, shape, whether the elements are dense and in
/// C's order, device, and size in bytes. The capsule stays its owner's.
#[pyfunction]
fn dlpack_import<'py>(capsule: &Bound<'py, PyAny>) -> PyResult<Imported<'py>> {
    let py = capsule.py();
    // SAFETY: the functions take any object; a capsule with this name has a pointer to this structure.
    let tensor = unsafe {
        if ffi::PyCapsule_IsValid(capsule.as_ptr(), PLAIN.as_ptr()) == 0 {
            return Err(PyBufferError::new_err("not a DLPack capsule that nobody has taken"));
        }
        &(*ffi::PyCapsule_GetPointer(capsule.as_ptr(), PLAIN.as_ptr()).cast::<Managed>()).tensor
    };
    let dims = usize::try_from(tensor.ndim).unwrap_or(0);
    let numbers = |at: *const i64| -> &[i64] {
        if dims == 0 || at.is_null() {
            return &[];
        }
        // SAFETY: both members are NULL or addresses of so many numbers.
        unsafe { std::slice::from_raw_parts(at, dims) }
    };
    let (shape, strides) = (numbers(tensor.shape), numbers(tensor.strides));
    let elements = shape.iter().try_fold(1u64, |count, dim| count.checked_mul(u64::try_from(*dim).ok()?));
    let bits = u64::from(tensor.bits) * u64::from(tensor.lanes);
    let size = elements.and_then(|count| count.checked_mul(bits.div_ceil(8)));
    let size = size.ok_or_else(|| PyOverflowError::new_err("the shape of the tensor is beyond any memory"))?;
    let mut step = 1;
    let mut is_dense = true;
    for (dim, stride) in shape.iter().zip(strides).rev() {
        is_dense &= *dim == 1 || *stride == step;
        step *= dim;
    }
    let offset = usize::try_from(tensor.byte_offset).unwrap_or(0);
    let address = tensor.data.addr().wrapping_add(offset);
    let (code, bits, lanes) = (tensor.code, tensor.bits, tensor.lanes);
    let shape = PyTuple::new(py, shape)?;
    Ok((address, code, bits, lanes, shape, is_dense || size == 0, tensor.device_type, tensor.device_id, size))
}

pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(dlpack_export, module)?)?;
    module.add_function(wrap_pyfunction!(dlpack_import, module)?)
}
