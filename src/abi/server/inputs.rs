//! `TRITONSERVER_InferenceRequest*` about tensors: inputs with the memory that they lie in, and the outputs wanted.
//!
//! Nothing is copied: a request stores the addresses of its caller's memory, and the requests that are sent from it
//! read that memory.

use std::ffi::{CStr, c_char, c_void};

use super::requests::{Description, InferenceRequest, edited};
use super::{BufferAttributes, Error};
use crate::abi::border::{deref, entry, null, text};
use nereid_gpu::{Gpu, Gpus};
use nereid_request::{DataType, MemoryType, Place, Shape, Status, Text};

/// An input, as far as the application has described it.
pub(super) struct Input {
    pub name: Text,
    /// None for a raw input.
    pub datatype: Option<DataType>,
    pub shape: Shape,
    pub data: Vec<Chunk>,
    /// The data for the instances of single host policies, in place of `data`.
    pub for_policies: Vec<(Text, Vec<Chunk>)>,
}

/// A contiguous piece of the caller's bytes.
#[derive(Clone, Copy)]
pub(super) struct Chunk {
    pub at: *const u8,
    pub len: usize,
    pub place: Place,
}

/// # Safety
/// The request is live and used by this call only, `name` a C string, `shape` readable for `dim_count` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_InferenceRequestAddInput(
    inference_request: *mut InferenceRequest,
    name: *const c_char,
    datatype: u32,
    shape: *const i64,
    dim_count: u64,
) -> *mut Error {
    entry(|| {
        // SAFETY: `inference_request` is NULL or live, and used by this call alone; `name` is NULL or a C string: this
        // function requires that of its caller.
        let (request, name) = unsafe { (edited(inference_request)?, text(name, "name")?) };
        let shown = name.to_string_lossy();
        let datatype = DataType::from_number(datatype).ok_or_else(|| {
            Status::invalid(format!("{}unknown data type {datatype} for input '{shown}'", request.log_id()))
        })?;
        let count = usize::try_from(dim_count).ok().filter(|count| *count <= DIMS_MAX).ok_or_else(|| {
            Status::invalid(format!("{}input '{shown}' has more than {DIMS_MAX} dimensions", request.log_id()))
        })?;
        let shape = match count {
            0 => Shape::new(),
            _ if shape.is_null() => return Err(null("shape")),
            // SAFETY: not null and by contract readable.
            count => Shape::from_slice(unsafe { std::slice::from_raw_parts(shape, count) }),
        };
        request.add(name, Some(datatype), shape)
    })
}

/// No tensor has more; the bound limits the read of a wrong count.
const DIMS_MAX: usize = 4096;

/// # Safety
/// The request is live and used by this call only, `name` a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_InferenceRequestAddRawInput(
    inference_request: *mut InferenceRequest,
    name: *const c_char,
) -> *mut Error {
    entry(|| {
        // SAFETY: `inference_request` is NULL or live, and used by this call alone; `name` is NULL or a C string: this
        // function requires that of its caller.
        let (request, name) = unsafe { (edited(inference_request)?, text(name, "name")?) };
        if !request.inputs.is_empty() {
            let (id, shown) = (request.log_id(), name.to_string_lossy());
            return Err(Status::invalid(format!(
                "{id}raw input '{shown}' can't be added to request with other inputs"
            )));
        }
        request.add(name, None, Shape::new())?;
        request.is_raw = true;
        Ok(())
    })
}

impl Description {
    fn add(&mut self, name: &CStr, datatype: Option<DataType>, shape: Shape) -> Result<(), Status> {
        let name = Text::new(name.to_bytes());
        if self.inputs.iter().any(|other| other.name == name) {
            return Err(Status::invalid(format!("{}input '{name}' already exists in request", self.log_id())));
        }
        self.inputs.push(Input { name, datatype, shape, data: Vec::new(), for_policies: Vec::new() });
        Ok(())
    }

    fn position(&self, name: &CStr) -> Result<usize, Status> {
        let found = self.inputs.iter().position(|input| input.name.as_bytes() == name.to_bytes());
        found.ok_or_else(|| {
            let shown = name.to_string_lossy();
            Status::invalid(format!("{}input '{shown}' does not exist in request", self.log_id()))
        })
    }

    /// A piece of bytes for an input; none if it has no bytes.
    fn chunk(&self, base: *const c_void, len: usize, place: Place) -> Result<Option<Chunk>, Status> {
        let chunk = chunk(base, len, place)?;
        chunk.map_or(Ok(()), |chunk| check_device(self, chunk.place))?;
        Ok(chunk)
    }

    fn input_mut(&mut self, name: &CStr) -> Result<&mut Input, Status> {
        let at = self.position(name)?;
        self.inputs.get_mut(at).ok_or_else(|| Status::internal("an input is gone while it is used"))
    }
}

/// # Safety
/// The request is live and used by this call only, `name` a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_InferenceRequestRemoveInput(
    inference_request: *mut InferenceRequest,
    name: *const c_char,
) -> *mut Error {
    entry(|| {
        // SAFETY: `inference_request` is NULL or live, and used by this call alone; `name` is NULL or a C string: this
        // function requires that of its caller.
        let (request, name) = unsafe { (edited(inference_request)?, text(name, "name")?) };
        let at = request.position(name)?;
        request.inputs.remove(at);
        request.is_raw = false;
        Ok(())
    })
}

/// # Safety
/// The request is live and used by this call only.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_InferenceRequestRemoveAllInputs(
    inference_request: *mut InferenceRequest,
) -> *mut Error {
    entry(|| {
        // SAFETY: `inference_request` is NULL or live, and used by this call alone: this function requires it of its
        // caller.
        let request = unsafe { edited(inference_request)? };
        request.inputs.clear();
        request.is_raw = false;
        Ok(())
    })
}

/// Refuses memory of devices that the server does not use.
fn check_device(request: &Description, place: Place) -> Result<(), Status> {
    match (place.memory_type, request.callee.gpus()) {
        (MemoryType::Gpu, None) => Err(Status::unsupported("input data in GPU memory is not supported by this build")),
        (MemoryType::Gpu, Some(gpus)) if gpu_of(gpus, place).is_none() => {
            Err(Status::invalid(format!("the server uses no GPU {}", place.memory_type_id)))
        }
        _ => Ok(()),
    }
}

/// The device of a place, if the server uses it.
pub(super) fn gpu_of(gpus: &Gpus, place: Place) -> Option<&Gpu> {
    let id = i32::try_from(place.memory_type_id).ok().filter(|_| place.memory_type == MemoryType::Gpu)?;
    gpus.get(id)
}

fn chunk(base: *const c_void, byte_size: usize, place: Place) -> Result<Option<Chunk>, Status> {
    if byte_size == 0 {
        return Ok(None);
    }
    if base.is_null() {
        return Err(null("base"));
    }
    if isize::try_from(byte_size).is_err() {
        return Err(Status::invalid(format!("no buffer has {byte_size} bytes")));
    }
    Ok(Some(Chunk { at: base.cast(), len: byte_size, place }))
}

fn place_of(memory_type: u32, memory_type_id: i64) -> Result<Place, Status> {
    let kind = MemoryType::from_number(memory_type);
    let memory_type = kind.ok_or_else(|| Status::invalid(format!("unknown memory type {memory_type}")))?;
    Ok(Place { memory_type, memory_type_id, cuda_ipc_handle: 0 })
}

/// # Safety
/// The request is live and used by this call only, `name` a C string; `base` is readable for `byte_size` bytes and
/// unchanged while the request is in flight.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_InferenceRequestAppendInputData(
    inference_request: *mut InferenceRequest,
    name: *const c_char,
    base: *const c_void,
    byte_size: usize,
    memory_type: u32,
    memory_type_id: i64,
) -> *mut Error {
    entry(|| {
        // SAFETY: `inference_request` is NULL or live, and used by this call alone; `name` is NULL or a C string: this
        // function requires that of its caller.
        let (request, name) = unsafe { (edited(inference_request)?, text(name, "name")?) };
        request.position(name)?;
        let chunk = request.chunk(base, byte_size, place_of(memory_type, memory_type_id)?)?;
        request.input_mut(name)?.data.extend(chunk);
        Ok(())
    })
}

/// # Safety
/// As for `TRITONSERVER_InferenceRequestAppendInputData`; `host_policy_name` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_InferenceRequestAppendInputDataWithHostPolicy(
    inference_request: *mut InferenceRequest,
    name: *const c_char,
    base: *const c_void,
    byte_size: usize,
    memory_type: u32,
    memory_type_id: i64,
    host_policy_name: *const c_char,
) -> *mut Error {
    entry(|| {
        // SAFETY: `inference_request` is NULL or live, and used by this call alone; `name` and `host_policy_name` are
        // NULL or a C string: this function requires that of its caller.
        let (request, name, policy) =
            unsafe { (edited(inference_request)?, text(name, "name")?, text(host_policy_name, "host_policy_name")?) };
        request.position(name)?;
        let chunk = request.chunk(base, byte_size, place_of(memory_type, memory_type_id)?)?;
        let input = request.input_mut(name)?;
        match input.for_policies.iter_mut().find(|(known, _)| known.as_bytes() == policy.to_bytes()) {
            Some((_, data)) => data.extend(chunk),
            None => input.for_policies.push((Text::new(policy.to_bytes()), chunk.into_iter().collect())),
        }
        Ok(())
    })
}

/// # Safety
/// As for `TRITONSERVER_InferenceRequestAppendInputData`; the attributes are live, and state how much is readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_InferenceRequestAppendInputDataWithBufferAttributes(
    inference_request: *mut InferenceRequest,
    name: *const c_char,
    base: *const c_void,
    buffer_attributes: *const BufferAttributes,
) -> *mut Error {
    entry(|| {
        // SAFETY: `inference_request` is NULL or live, and used by this call alone; `name` is NULL or a C string;
        // `buffer_attributes` is NULL or live: this function requires that of its caller.
        let (request, name, attributes) = unsafe {
            (edited(inference_request)?, text(name, "name")?, deref(buffer_attributes, "buffer_attributes")?)
        };
        request.position(name)?;
        let place = place_of(attributes.memory_type, attributes.memory_type_id)?;
        let place = Place { cuda_ipc_handle: attributes.cuda_ipc_handle.addr(), ..place };
        let chunk = request.chunk(base, attributes.byte_size, place)?;
        request.input_mut(name)?.data.extend(chunk);
        Ok(())
    })
}

/// # Safety
/// The request is live and used by this call only, `name` a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_InferenceRequestRemoveAllInputData(
    inference_request: *mut InferenceRequest,
    name: *const c_char,
) -> *mut Error {
    entry(|| {
        // SAFETY: `inference_request` is NULL or live, and used by this call alone; `name` is NULL or a C string: this
        // function requires that of its caller.
        let input = unsafe { edited(inference_request)?.input_mut(text(name, "name")?)? };
        input.data.clear();
        input.for_policies.clear();
        Ok(())
    })
}

/// Requesting an output twice has the effect of requesting it once.
///
/// # Safety
/// The request is live and used by this call only, `name` a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_InferenceRequestAddRequestedOutput(
    inference_request: *mut InferenceRequest,
    name: *const c_char,
) -> *mut Error {
    entry(|| {
        // SAFETY: `inference_request` is NULL or live, and used by this call alone; `name` is NULL or a C string: this
        // function requires that of its caller.
        let (request, name) = unsafe { (edited(inference_request)?, text(name, "name")?) };
        let name = Text::new(name.to_bytes());
        if !request.outputs.contains(&name) {
            request.outputs.push(name);
        }
        Ok(())
    })
}

/// Removing an output that was not requested is no error.
///
/// # Safety
/// The request is live and used by this call only, `name` a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_InferenceRequestRemoveRequestedOutput(
    inference_request: *mut InferenceRequest,
    name: *const c_char,
) -> *mut Error {
    entry(|| {
        // SAFETY: `inference_request` is NULL or live, and used by this call alone; `name` is NULL or a C string: this
        // function requires that of its caller.
        let (request, name) = unsafe { (edited(inference_request)?, text(name, "name")?) };
        request.outputs.retain(|output| output.as_bytes() != name.to_bytes());
        Ok(())
    })
}

/// From now on every output is requested.
///
/// # Safety
/// The request is live and used by this call only.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_InferenceRequestRemoveAllRequestedOutputs(
    inference_request: *mut InferenceRequest,
) -> *mut Error {
    entry(|| {
        // SAFETY: `inference_request` is NULL or live, and used by this call alone: this function requires it of its
        // caller.
        unsafe { edited(inference_request)? }.outputs.clear();
        Ok(())
    })
}
