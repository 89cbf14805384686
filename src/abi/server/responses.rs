//! `TRITONSERVER_InferenceResponse*`: a response that the application owns.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use super::allocators::Buffer;
use super::response_errors::ResponseError;
use super::{Error, parameter_pointer};
use crate::abi::border::{deref, entry, put, put_if_requested, take};
use crate::abi::casts::{self, Either};
use crate::abi::handles::ResponseHandle;
use nereid_gpu::DeviceSlice;
use nereid_request::{Callee, DataType, MemoryType, Parameters, Place, Shape, Status, Text};

/// `TRITONSERVER_InferenceResponse`. Deleting it releases its buffers.
pub struct InferenceResponse {
    pub(super) callee: Arc<dyn Callee>,
    pub(super) id: Text,
    pub(super) error: Option<ResponseError>,
    pub(super) parameters: Parameters,
    pub(super) outputs: Vec<Output>,
    /// The labels that were requested, as C strings.
    pub(super) labels: Mutex<BTreeMap<(u32, usize), CString>>,
}

pub(super) struct Output {
    pub name: Text,
    pub datatype: DataType,
    pub shape: Shape,
    pub data: Data,
}

/// Where the elements of an output are.
pub(super) enum Data {
    /// The model provided no elements.
    None,
    /// Memory of the application that the model wrote to.
    Written(nereid_memory::Slice),
    /// The same, in memory of a device.
    OnDevice(DeviceSlice),
    /// A copy of elements that the model wrote elsewhere.
    Copied(Buffer),
}

impl Data {
    /// Address, size, place, and the application's pointer for the buffer.
    pub(super) fn parts(&self) -> (*const c_void, usize, Place, *mut c_void) {
        let of = |buffer: &Buffer| (buffer.at.cast_const(), buffer.byte_size, buffer.place, buffer.userp);
        match self {
            Data::None => (std::ptr::null(), 0, Place::default(), std::ptr::null_mut()),
            Data::Copied(buffer) => of(buffer),
            Data::OnDevice(slice) => match slice.owner::<super::inference::ApplicationMemory>() {
                Some(provided) => of(&provided.buffer),
                None => {
                    let at = std::ptr::with_exposed_provenance(slice.address().0 as usize);
                    (at, slice.len(), Place::of(slice), std::ptr::null_mut())
                }
            },
            Data::Written(slice) => match slice.foreign_owner::<super::inference::ApplicationMemory>() {
                Some(provided) => of(&provided.buffer),
                None => (slice.as_ptr().cast(), slice.len(), Place::default(), std::ptr::null_mut()),
            },
        }
    }
}

impl InferenceResponse {
    /// Name, type and shape of the outputs, in their order.
    pub(in crate::abi) fn heads(&self) -> impl ExactSizeIterator<Item = OutputHead<'_>> {
        self.outputs.iter().map(|output| OutputHead {
            name: &output.name,
            datatype: output.datatype,
            shape: &output.shape,
        })
    }

    pub(in crate::abi) fn parameters_mut(&mut self) -> &mut Parameters {
        &mut self.parameters
    }
}

/// An output without its elements.
#[derive(Clone, Copy)]
pub(in crate::abi) struct OutputHead<'a> {
    pub name: &'a Text,
    pub datatype: DataType,
    pub shape: &'a Shape,
}

/// A response that an application got, or a cast one that a backend is making.
enum AnyResponse<'a> {
    Delivered(&'a InferenceResponse),
    UnderConstruction(&'a ResponseHandle),
}

/// # Safety
/// The handle is NULL or of a live response, and no call changes a backend's meanwhile.
unsafe fn any_response<'a>(response: *const InferenceResponse) -> Result<AnyResponse<'a>, Status> {
    match casts::response(response) {
        // SAFETY: `at` is NULL or live: this function requires it of its caller.
        Either::Application(at) => unsafe { deref(at.cast_const(), "inference_response") }.map(AnyResponse::Delivered),
        Either::Backend(at) => {
            // SAFETY: `at` is NULL or live, and not changed meanwhile: this function requires it of its caller.
            unsafe { deref(at.cast_const(), "inference_response") }.map(AnyResponse::UnderConstruction)
        }
    }
}

impl<'a> AnyResponse<'a> {
    fn id(&self) -> &Text {
        match self {
            AnyResponse::Delivered(response) => &response.id,
            AnyResponse::UnderConstruction(handle) => &handle.response.id,
        }
    }

    fn parameters(&self) -> &Parameters {
        match self {
            AnyResponse::Delivered(response) => &response.parameters,
            AnyResponse::UnderConstruction(handle) => &handle.response.parameters,
        }
    }

    fn output_count(&self) -> usize {
        match self {
            AnyResponse::Delivered(response) => response.outputs.len(),
            AnyResponse::UnderConstruction(handle) => handle.outputs.len(),
        }
    }

    fn delivered(self) -> Result<&'a InferenceResponse, Status> {
        match self {
            AnyResponse::Delivered(response) => Ok(response),
            AnyResponse::UnderConstruction(_) => Err(Status::invalid("the response was not sent: it has no model yet")),
        }
    }
}

/// An output as the application reads it.
struct OutputView {
    name: *const c_char,
    datatype: DataType,
    shape: (*const i64, usize),
    at: (*const c_void, usize),
    place: Place,
    userp: *mut c_void,
}

fn describe(any_response: &AnyResponse<'_>, index: u32) -> Result<OutputView, Status> {
    let count = any_response.output_count();
    let position = usize::try_from(index).unwrap_or(usize::MAX);
    let found = match any_response {
        AnyResponse::Delivered(response) => response.outputs.get(position).map(|output| {
            let (begin, size, place, userp) = output.data.parts();
            let (name, shape) = (output.name.as_c_str().as_ptr(), (output.shape.as_ptr(), output.shape.len()));
            OutputView { name, datatype: output.datatype, shape, at: (begin, size), place, userp }
        }),
        AnyResponse::UnderConstruction(handle) => handle.outputs.get(position).map(|output| {
            let memory = output.buffer.as_ref();
            let (kind, id) = memory.map_or((0, 0), |memory| memory.place());
            let begin = memory.map_or(std::ptr::null(), |memory| memory.as_ptr());
            let memory_type = MemoryType::from_number(kind).unwrap_or_default();
            let place = Place { memory_type, memory_type_id: id, cuda_ipc_handle: 0 };
            let (tensor, at) = (&output.tensor, (begin, output.attributes.byte_size));
            let (name, shape) = (tensor.name.as_c_str().as_ptr(), (tensor.shape.as_ptr(), tensor.shape.len()));
            OutputView { name, datatype: tensor.datatype, shape, at, place, userp: std::ptr::null_mut() }
        }),
    };
    found.ok_or_else(|| out_of_range(index, count, "outputs"))
}

fn out_of_range(index: u32, count: usize, what: &str) -> Status {
    Status::invalid(format!("out of bounds index {index}: response has {count} {what}"))
}

fn at<'a, T>(found: Option<&'a T>, index: u32, count: usize, what: &str) -> Result<&'a T, Status> {
    found.ok_or_else(|| out_of_range(index, count, what))
}

/// # Safety
/// The response belongs to the caller and is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_InferenceResponseDelete(response: *mut InferenceResponse) -> *mut Error {
    entry(|| {
        match casts::response(response) {
            // SAFETY: the caller gives the response up.
            Either::Application(at) => unsafe { take(at, "inference_response") }.map(drop),
            // SAFETY: `at` is NULL or an object that the caller gives back: this function requires it of its caller.
            Either::Backend(at) => unsafe { take(at, "inference_response") }.map(drop),
        }
    })
}

/// NULL: the inference succeeded. Otherwise an error that may be deleted, once for each call, and need not be; it can
/// be read after the response is deleted (see `response_errors`).
///
/// # Safety
/// The response is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_InferenceResponseError(response: *const InferenceResponse) -> *mut Error {
    let mut found = std::ptr::null_mut();
    let failed = entry(|| {
        // SAFETY: `response` is NULL or a live response: this function requires it of its caller.
        let error = match unsafe { any_response(response)? } {
            AnyResponse::Delivered(response) => response.error.as_ref(),
            AnyResponse::UnderConstruction(_) => None,
        };
        found = error.map_or(std::ptr::null_mut(), ResponseError::lend);
        Ok(())
    });
    if failed.is_null() { found } else { failed }
}

/// # Safety
/// The response is live, the pointers are writable; the name lives with the response.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_InferenceResponseModel(
    response: *const InferenceResponse,
    model_name: *mut *const c_char,
    model_version: *mut i64,
) -> *mut Error {
    // SAFETY: `response` is NULL or a live response, and `model_name` and `model_version` are NULL or writable: this
    // function requires that of its caller.
    entry(|| unsafe {
        let callee = &any_response(response)?.delivered()?.callee;
        put(model_name, callee.name().as_ptr())?;
        put(model_version, callee.version())
    })
}

/// # Safety
/// The response is live, the pointer writable; the id lives with the response.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_InferenceResponseId(
    response: *const InferenceResponse,
    request_id: *mut *const c_char,
) -> *mut Error {
    // SAFETY: `request_id` is NULL or writable, and `response` is NULL or a live response: this function requires that
    // of its caller.
    entry(|| unsafe { put(request_id, any_response(response)?.id().as_c_str().as_ptr()) })
}

/// # Safety
/// The response is live, the pointer writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_InferenceResponseParameterCount(
    response: *const InferenceResponse,
    count: *mut u32,
) -> *mut Error {
    // SAFETY: `count` is NULL or writable, and `response` is NULL or a live response: this function requires that of
    // its caller.
    entry(|| unsafe { put(count, any_response(response)?.parameters().len() as u32) })
}

/// # Safety
/// The response is live, the pointers are writable; what they get lives with the response.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_InferenceResponseParameter(
    response: *const InferenceResponse,
    index: u32,
    name: *mut *const c_char,
    parameter_type: *mut u32,
    value: *mut *const c_void,
) -> *mut Error {
    entry(|| {
        // SAFETY: `response` is NULL or a live response: this function requires it of its caller.
        let any_response = unsafe { any_response(response)? };
        let parameters = any_response.parameters();
        let found = usize::try_from(index).ok().and_then(|index| parameters.get(index));
        let parameter = at(found, index, parameters.len(), "parameters")?;
        let (kind, pointer) = parameter_pointer(&parameter.value);
        // SAFETY: `name`, `parameter_type` and `value` are NULL or writable: this function requires that of its caller.
        unsafe {
            put(name, parameter.name.as_c_str().as_ptr())?;
            put(parameter_type, kind)?;
            put(value, pointer)
        }
    })
}

/// # Safety
/// The response is live, the pointer writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_InferenceResponseOutputCount(
    response: *const InferenceResponse,
    count: *mut u32,
) -> *mut Error {
    // SAFETY: `count` is NULL or writable, and `response` is NULL or a live response: this function requires that of
    // its caller.
    entry(|| unsafe { put(count, any_response(response)?.output_count() as u32) })
}

/// # Safety
/// The response is live, the pointers are writable, or NULL for what is not requested; what they get lives with the
/// response.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_InferenceResponseOutput(
    response: *const InferenceResponse,
    index: u32,
    name: *mut *const c_char,
    datatype: *mut u32,
    shape: *mut *const i64,
    dim_count: *mut u64,
    base: *mut *const c_void,
    byte_size: *mut usize,
    memory_type: *mut u32,
    memory_type_id: *mut i64,
    userp: *mut *mut c_void,
) -> *mut Error {
    entry(|| {
        // SAFETY: `response` is NULL or a live response: this function requires it of its caller.
        let found = describe(&unsafe { any_response(response)? }, index)?;
        // SAFETY: as above; NULL means that the caller does not request the value.
        unsafe {
            put_if_requested(name, found.name);
            put_if_requested(datatype, found.datatype as u32);
            put_if_requested(shape, found.shape.0);
            put_if_requested(dim_count, found.shape.1 as u64);
            put_if_requested(base, found.at.0);
            put_if_requested(byte_size, found.at.1);
            put_if_requested(memory_type, found.place.memory_type as u32);
            put_if_requested(memory_type_id, found.place.memory_type_id);
            put_if_requested(userp, found.userp);
        }
        Ok(())
    })
}

/// NULL: the class has no label.
///
/// # Safety
/// The response is live, the pointer writable; the label lives with the response.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_InferenceResponseOutputClassificationLabel(
    response: *const InferenceResponse,
    index: u32,
    class_index: usize,
    label: *mut *const c_char,
) -> *mut Error {
    entry(|| {
        // SAFETY: `response` is NULL or a live response: this function requires it of its caller.
        let any_response = unsafe { any_response(response)? };
        describe(&any_response, index)?;
        let response = any_response.delivered()?;
        let found = usize::try_from(index).ok().and_then(|index| response.outputs.get(index));
        let output = at(found, index, response.outputs.len(), "outputs")?;
        let found = response.callee.label(output.name.as_bytes(), class_index).filter(|label| !label.is_empty());
        let pointer = found.map_or(std::ptr::null(), |text| {
            let mut labels = response.labels.lock().unwrap_or_else(PoisonError::into_inner);
            let kept = labels.entry((index, class_index)).or_insert_with(|| {
                let bytes = text.split(|byte| *byte == 0).next().unwrap_or_default();
                CString::new(bytes).unwrap_or_default()
            });
            CStr::as_ptr(kept)
        });
        // SAFETY: `label` is NULL or writable: this function requires it of its caller.
        unsafe { put(label, pointer) }
    })
}
