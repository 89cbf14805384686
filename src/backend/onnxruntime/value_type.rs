//! The types of a model's inputs and outputs, as its file declares them.
//!
//! Clients exchange tensors only. Of the other types of ONNX, those that have one meaning as a tensor are described by
//! the tensor that `composite` makes of them; the rest keeps its name for the error.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ptr;

use ort::sys;

use super::element::ElementType;
use super::runtime::{Runtime, RuntimeError, filled};
use super::value::read_tensor_type;
use nereid_request::Shape;

/// A type of ONNX, as far as it decides how a value is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueKind {
    Tensor,
    /// A tensor or nothing.
    Optional,
    /// Tensors of one element type.
    Sequence,
    /// Maps with keys of this type, one for each row of a batch.
    Maps(ElementType),
    /// One map for a whole run.
    Map(ElementType),
    /// A type without a tensor that stands for it: the library's name of it.
    Other(&'static str),
}

impl ValueKind {
    /// The library's name, for messages.
    pub fn onnx_name(self) -> &'static str {
        match self {
            ValueKind::Tensor => TENSOR,
            ValueKind::Optional => OPTIONAL,
            ValueKind::Sequence | ValueKind::Maps(_) => SEQUENCE,
            ValueKind::Map(_) => MAP,
            ValueKind::Other(name) => name,
        }
    }

    /// Whether a run has one value for all rows of a batch, so that it cannot be split.
    pub fn is_for_whole_run(self) -> bool {
        matches!(self, ValueKind::Sequence | ValueKind::Map(_))
    }
}

/// A type, and the element type and dimensions of the tensor that stands for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValueType {
    pub kind: ValueKind,
    /// `None`: a type that the protocol does not have.
    pub element: Option<ElementType>,
    /// -1 is variable; empty for a scalar.
    pub dims: Shape,
}

impl ValueType {
    fn other(name: &'static str) -> ValueType {
        ValueType { kind: ValueKind::Other(name), element: None, dims: Shape::new() }
    }
}

const TENSOR: &str = "ONNX_TYPE_TENSOR";
const SEQUENCE: &str = "ONNX_TYPE_SEQUENCE";
const MAP: &str = "ONNX_TYPE_MAP";
const OPTIONAL: &str = "ONNX_TYPE_OPTIONAL";

/// Reads a description of the library.
///
/// # Safety
/// `description` is alive.
pub unsafe fn read(runtime: &Runtime, description: *const sys::OrtTypeInfo) -> Result<ValueType, RuntimeError> {
    // SAFETY: the description is alive: this function requires it of its caller.
    match unsafe { number(runtime, description) }? {
        // SAFETY: the description is alive, and is that of a tensor.
        1 => Ok(unsafe { tensor(runtime, description) }?.unwrap_or(ValueType::other(TENSOR))),
        // SAFETY: the description is alive, and is that of a sequence.
        2 => unsafe { sequence(runtime, description) },
        // SAFETY: the description is alive, and is that of a map.
        3 => Ok(unsafe { map(runtime, description) }?.unwrap_or(ValueType::other(MAP))),
        4 => Ok(ValueType::other("ONNX_TYPE_OPAQUE")),
        5 => Ok(ValueType::other("ONNX_TYPE_SPARSETENSOR")),
        // SAFETY: the description is alive, and is that of an optional.
        6 => unsafe { optional(runtime, description) },
        _ => Ok(ValueType::other("ONNX_TYPE_UNKNOWN")),
    }
}

/// `ONNXType` as a number: a newer library may answer with a kind that the binding's enum does not declare.
///
/// # Safety
/// `description` is alive.
unsafe fn number(runtime: &Runtime, description: *const sys::OrtTypeInfo) -> Result<i32, RuntimeError> {
    let mut kind = MaybeUninit::<sys::ONNXType>::zeroed();
    // SAFETY: the description is alive by contract; a kind is written to the given place.
    runtime.check(unsafe { (runtime.api.GetOnnxTypeFromTypeInfo)(description, kind.as_mut_ptr()) })?;
    // SAFETY: the enum is repr(i32) and the place was zeroed, so these are four initialised bytes.
    Ok(unsafe { kind.as_ptr().cast::<i32>().read() })
}

/// `None`: the description is not that of a tensor.
///
/// # Safety
/// `description` is alive.
unsafe fn tensor(runtime: &Runtime, description: *const sys::OrtTypeInfo) -> Result<Option<ValueType>, RuntimeError> {
    let mut tensor = ptr::null();
    // SAFETY: the description is alive by contract; what is written belongs to it and is not released on its own.
    runtime.check(unsafe { (runtime.api.CastTypeInfoToTensorInfo)(description, &mut tensor) })?;
    if tensor.is_null() {
        return Ok(None);
    }
    // SAFETY: alive as long as the description.
    let (element, dims) = unsafe { read_tensor_type(runtime, tensor) }?;
    Ok(Some(ValueType { kind: ValueKind::Tensor, element: ElementType::from_number(element), dims }))
}

/// # Safety
/// `description` is alive.
unsafe fn sequence(runtime: &Runtime, description: *const sys::OrtTypeInfo) -> Result<ValueType, RuntimeError> {
    let api = runtime.api;
    let mut sequence = ptr::null();
    // SAFETY: the description is alive by contract; what is written belongs to it and is not released on its own.
    runtime.check(unsafe { (api.CastTypeInfoToSequenceTypeInfo)(description, &mut sequence) })?;
    if sequence.is_null() {
        return Ok(ValueType::other(SEQUENCE));
    }
    let mut element = ptr::null_mut();
    // SAFETY: alive as long as the description; a new description is written to the given place.
    runtime.check(unsafe { (api.GetSequenceElementType)(sequence, &mut element) })?;
    let element = filled(element)?;
    // SAFETY: the new description is alive until the next statement releases it.
    let inner = unsafe { contained(runtime, element.as_ptr()) };
    // SAFETY: created above and released once.
    unsafe { (api.ReleaseTypeInfo)(element.as_ptr()) };
    Ok(match inner? {
        ValueType { kind: ValueKind::Tensor, element, dims } => {
            let dims = [-1].into_iter().chain(dims).collect();
            ValueType { kind: ValueKind::Sequence, element, dims }
        }
        ValueType { kind: ValueKind::Map(key), element, .. } => {
            ValueType { kind: ValueKind::Maps(key), element, dims: Shape::from_slice(&[-1, -1]) }
        }
        _ => ValueType::other(SEQUENCE),
    })
}

/// # Safety
/// `description` is alive.
unsafe fn optional(runtime: &Runtime, description: *const sys::OrtTypeInfo) -> Result<ValueType, RuntimeError> {
    let api = runtime.api;
    let mut optional = ptr::null();
    // SAFETY: the description is alive by contract; what is written belongs to it and is not released on its own.
    runtime.check(unsafe { (api.CastTypeInfoToOptionalTypeInfo)(description, &mut optional) })?;
    if optional.is_null() {
        return Ok(ValueType::other(OPTIONAL));
    }
    let mut element = ptr::null_mut();
    // SAFETY: alive as long as the description; a new description is written to the given place.
    runtime.check(unsafe { (api.GetOptionalContainedTypeInfo)(optional, &mut element) })?;
    let element = filled(element)?;
    // SAFETY: the new description is alive until the next statement releases it.
    let inner = unsafe { contained(runtime, element.as_ptr()) };
    // SAFETY: created above and released once.
    unsafe { (api.ReleaseTypeInfo)(element.as_ptr()) };
    Ok(match inner? {
        ValueType { kind: ValueKind::Tensor, element, dims } => ValueType { kind: ValueKind::Optional, element, dims },
        _ => ValueType::other(OPTIONAL),
    })
}

/// What a sequence or an optional contains: a tensor or a map, else something that cannot be converted.
///
/// # Safety
/// `description` is alive.
unsafe fn contained(runtime: &Runtime, description: *const sys::OrtTypeInfo) -> Result<ValueType, RuntimeError> {
    // SAFETY: the description is alive: this function requires it of its caller.
    let found = match unsafe { number(runtime, description) }? {
        // SAFETY: the description is alive, and is that of a tensor.
        1 => unsafe { tensor(runtime, description) }?,
        // SAFETY: the description is alive, and is that of a map.
        3 => unsafe { map(runtime, description) }?,
        _ => None,
    };
    Ok(found.unwrap_or(ValueType::other("ONNX_TYPE_UNKNOWN")))
}

/// `None`: the keys have a type that the protocol does not have, or the values are no tensors.
///
/// # Safety
/// `description` is alive.
unsafe fn map(runtime: &Runtime, description: *const sys::OrtTypeInfo) -> Result<Option<ValueType>, RuntimeError> {
    let api = runtime.api;
    let mut map = ptr::null();
    // SAFETY: the description is alive by contract; what is written belongs to it and is not released on its own.
    runtime.check(unsafe { (api.CastTypeInfoToMapTypeInfo)(description, &mut map) })?;
    if map.is_null() {
        return Ok(None);
    }
    let mut key = MaybeUninit::<sys::ONNXTensorElementDataType>::zeroed();
    // SAFETY: alive as long as the description; a type is written to the given place.
    runtime.check(unsafe { (api.GetMapKeyType)(map, key.as_mut_ptr()) })?;
    // SAFETY: the enum is repr(i32) and the place was zeroed, so these are four initialised bytes.
    let key = ElementType::from_number(unsafe { key.as_ptr().cast::<i32>().read() });
    let mut values = ptr::null_mut();
    // SAFETY: alive as long as the description; a new description is written to the given place.
    runtime.check(unsafe { (api.GetMapValueType)(map, &mut values) })?;
    let values = filled(values)?;
    // SAFETY: the new description is alive until the next statement releases it.
    let value = unsafe { tensor(runtime, values.as_ptr()) };
    // SAFETY: created above and released once.
    unsafe { (api.ReleaseTypeInfo)(values.as_ptr()) };
    let found = key.zip(value?);
    Ok(found.map(|(key, value)| ValueType {
        kind: ValueKind::Map(key),
        element: value.element,
        dims: Shape::from_slice(&[-1]),
    }))
}
