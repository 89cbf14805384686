//! An inference request of the gRPC protocol (contract/grpc.md section 4), from the scanned message.

use super::http_request::DIMS_MAX;
use super::regions::{InputElements, RegionRange};
use super::{AnswerForm, OutputForm};
use crate::api::forwarding::put_metadata;
use crate::api::timing::PARAMETER;
use nereid_memory::{Pool, Slice};
use nereid_protocol::grpc::{INT_BYTES, InferRequest, InputRef, List, Parameters, Value};
use nereid_protocol::service::Kept;
use nereid_request::{
    CorrelationId, DataType, InputTensor, Request, SEQUENCE_END, SEQUENCE_START, Shape, SharedMemory, Status, Text,
};
use nereid_request::{Parameters as RequestParameters, Value as Parameter};
use nereid_scheduler::ServedModel;
use nereid_scheduler::next_step::unexpected_input;
use nereid_scheduler::validate::{
    NamedTensors, add_named_input, add_named_output, check_input_count, check_output_count,
};

/// Fills `request` from `message`, in the specification's order, and from the metadata of its call; says how it is to
/// be answered.
pub fn read(
    message: &InferRequest,
    model: &ServedModel,
    request: &mut Request,
    kept: &Kept,
    pool: &Pool,
    regions: &SharedMemory,
) -> Result<AnswerForm, Status> {
    let mut form = AnswerForm { version: Text::from(message.model_version()), ..AnswerForm::default() };
    request.id = Text::from(message.id());
    read_parameters(message.parameters(), request, &mut form)?;
    check_input_count(message.input_count(), request, &model.spec)?;
    check_kept(message.inputs().len(), message.input_count())?;
    let mut named = NamedTensors::default();
    for input in message.inputs() {
        let tensor = declare(&input, model, request)?;
        add_named_input(request, tensor, &model.spec, &mut named)?;
    }
    check_output_count(message.output_count(), request, &model.spec)?;
    check_kept(message.outputs().len(), message.output_count())?;
    let mut named = NamedTensors::default();
    for output in message.outputs() {
        let name = Text::from(output.name());
        add_named_output(request, name.clone(), &model.spec, &mut named)?;
        form.outputs.push(OutputForm { name, binary: true, class_count: 0, is_shared: false });
    }
    put_metadata(kept, request)?;
    let mut raw = message.raw.iter();
    for (at, input) in message.inputs().enumerate() {
        let data = match region_range(&input.parameters(), input.name())? {
            Some(place) => shared_data(&input, &place, model, request, regions)?,
            None => InputElements::OnHost(data_of(&input, &mut raw, message.raw.is_empty(), model, pool)?),
        };
        data.give_to(&mut request.inputs[at]);
    }
    for (output, form) in message.outputs().zip(&mut form.outputs) {
        read_output_parameters(output.parameters(), form, request, regions)?;
    }
    Ok(form)
}

/// Refuses a message that had more tensors than any model when it began, for a model that has become ready since.
fn check_kept(kept: usize, count: usize) -> Result<(), Status> {
    match kept == count {
        true => Ok(()),
        false => Err(Status::unavailable(
            "a model with more tensors became ready while the request arrived. Please send the request again.",
        )),
    }
}

fn declare(input: &InputRef<'_>, model: &ServedModel, request: &Request) -> Result<InputTensor, Status> {
    let name = Text::from(input.name());
    if input.shape().len() > DIMS_MAX {
        return Err(Status::invalid(format!("input '{name}' has more than {DIMS_MAX} dimensions")));
    }
    match DataType::from_name(input.datatype().as_bytes()) {
        Some(datatype) => Ok(InputTensor::new(name, datatype, Shape::from_slice(input.shape()))),
        None => {
            let spec = &model.spec;
            let config = spec.input_index(input.name()).and_then(|index| spec.inputs.get(index));
            let Some(expected) = config.map(|config| config.datatype) else {
                return Err(unexpected_input(&name, spec));
            };
            Err(Status::invalid(format!(
                "{}inference input '{name}' data-type is '<invalid>', but model '{}' expects '{expected}'",
                request.log_id(),
                spec.name
            )))
        }
    }
}

fn wrong_type(key: &str, expected: &str) -> Status {
    Status::invalid(format!("invalid value type for '{key}' parameter, expected {expected}."))
}

fn read_parameters(parameters: Parameters<'_>, request: &mut Request, form: &mut AnswerForm) -> Result<(), Status> {
    for (key, value) in parameters.iter() {
        match (key, value) {
            ("sequence_id", Value::Int64(id)) => request.correlation_id = CorrelationId::Number(id as u64),
            ("sequence_id", Value::String(id)) => request.correlation_id = CorrelationId::of_text(id.into())?,
            ("sequence_id", _) => return Err(wrong_type(key, "int64_param or string_param")),
            ("sequence_start", value) => set_flag(request, SEQUENCE_START, key, value)?,
            ("sequence_end", value) => set_flag(request, SEQUENCE_END, key, value)?,
            ("priority", Value::Int64(priority)) => {
                request.queueing.priority = u64::try_from(priority)
                    .map_err(|_| Status::invalid("invalid value for 'priority', expected value >= 0."))?;
            }
            ("priority", Value::Uint64(priority)) => request.queueing.priority = priority,
            ("priority", _) => return Err(wrong_type(key, "int64_param or uint64_param")),
            ("timeout", Value::Int64(timeout_us)) => request.queueing.timeout_us = timeout_us as u64,
            ("timeout", _) => return Err(wrong_type(key, "int64_param")),
            (PARAMETER, Value::Bool(wanted)) => form.wants_timing = wanted,
            (PARAMETER, _) => return Err(wrong_type(key, "bool_param")),
            ("triton_enable_empty_final_response", Value::Bool(wanted)) => form.empty_final_response = wanted,
            ("triton_enable_empty_final_response", _) => return Err(wrong_type(key, "bool_param")),
            (key, _) if key.starts_with("triton_") => {
                let text = "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following \
                            keys starting with 'triton_' are allowed: triton_enable_empty_final_response";
                return Err(Status::invalid(text));
            }
            (key, value) => custom(&mut request.parameters, key, value)?,
        }
    }
    Ok(())
}

fn custom(parameters: &mut RequestParameters, key: &str, value: Value<'_>) -> Result<(), Status> {
    let value = match value {
        Value::Int64(int) => Parameter::Int(int),
        Value::Bool(bool) => Parameter::Bool(bool),
        Value::String(string) => Parameter::String(string.into()),
        Value::Double(double) => Parameter::Double(double),
        Value::Uint64(_) | Value::Unset => {
            let text =
                format!("invalid value type for '{key}' parameter, expected int64_param, bool_param, or string_param.");
            return Err(Status::invalid(text));
        }
    };
    parameters.push(key.into(), value);
    Ok(())
}

fn set_flag(request: &mut Request, flag: u32, key: &str, value: Value<'_>) -> Result<(), Status> {
    match value {
        Value::Bool(true) => request.flags |= flag,
        Value::Bool(false) => request.flags &= !flag,
        _ => return Err(wrong_type(key, "bool_param")),
    }
    Ok(())
}

/// Where a tensor is in shared memory, if it is there.
fn region_range(parameters: &Parameters<'_>, tensor: &str) -> Result<Option<RegionRange>, Status> {
    if parameters.iter().next().is_none() {
        return Ok(None);
    }
    let wrong_type = |key: &str, expected: &str| {
        Status::invalid(format!("invalid value type for '{key}' parameter for tensor '{tensor}', expected {expected}."))
    };
    let region = match parameters.get("shared_memory_region") {
        None => None,
        Some(Value::String(region)) => Some(region),
        Some(_) => return Err(wrong_type("shared_memory_region", "string_param")),
    };
    // A negative number stands for the unsigned one with the same bits.
    let number = |key: &str| match parameters.get(key) {
        None => Ok(None),
        Some(_) if region.is_none() => Err(Status::invalid(format!(
            "'{key}' can not be specified without 'shared_memory_region' parameter for tensor '{tensor}'"
        ))),
        Some(Value::Int64(number)) => Ok(Some(number as u64)),
        Some(_) => Err(wrong_type(key, "int64_param")),
    };
    let (offset, byte_size) = (number("shared_memory_offset")?, number("shared_memory_byte_size")?);
    let Some(region) = region else { return Ok(None) };
    let byte_size = byte_size.ok_or_else(|| {
        Status::invalid(format!(
            "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor \
             '{tensor}'"
        ))
    })?;
    Ok(Some(RegionRange { region: region.as_bytes().into(), offset: offset.unwrap_or(0), byte_size }))
}

fn shared_data(
    input: &InputRef<'_>,
    place: &RegionRange,
    model: &ServedModel,
    request: &mut Request,
    regions: &SharedMemory,
) -> Result<InputElements, Status> {
    if input.contents().is_some() {
        let (name, model) = (input.name(), &model.name);
        return Err(Status::invalid(format!(
            "unexpected 'content' provided when using shared memory for input tensor '{name}' for model '{model}'"
        )));
    }
    place.use_as_input(regions, request)
}

fn read_output_parameters(
    parameters: Parameters<'_>,
    form: &mut OutputForm,
    request: &mut Request,
    regions: &SharedMemory,
) -> Result<(), Status> {
    let place = region_range(&parameters, &form.name.to_str_lossy())?;
    form.class_count = match parameters.get("classification") {
        None => 0,
        Some(Value::Int64(count)) if count > 0 => u32::try_from(count).unwrap_or(u32::MAX),
        Some(Value::Int64(_)) => {
            return Err(Status::invalid("invalid value for 'classification' parameter, expected >= 0"));
        }
        Some(_) => {
            return Err(Status::invalid("invalid value type for 'classification' parameter, expected int64_param"));
        }
    };
    let Some(place) = place else { return Ok(()) };
    if form.class_count > 0 {
        return Err(Status::invalid("output can't set both 'shared_memory_region' and 'classification'"));
    }
    form.is_shared = true;
    place.set_aside(form.name.clone(), regions, request)
}

fn data_of<'a>(
    input: &InputRef<'_>,
    raw: &mut impl Iterator<Item = &'a Slice>,
    raw_is_empty: bool,
    model: &ServedModel,
    pool: &Pool,
) -> Result<Slice, Status> {
    let (name, model) = (input.name(), &model.name);
    let Some(contents) = input.contents() else {
        let found = raw.next().cloned();
        return found.ok_or_else(|| {
            Status::invalid(format!("unable to find data for input tensor '{name}' for model '{model}' in request."))
        });
    };
    if !raw_is_empty {
        return Err(Status::invalid(format!(
            "contents field must not be specified when using raw_input_contents for '{name}' for model '{model}'"
        )));
    }
    let mut lists = contents.lists();
    let Some(list) = lists.next() else { return Ok(Slice::empty()) };
    let declared = input.datatype();
    let (own, width) = list_type(list, declared);
    if own != declared {
        return Err(Status::invalid(format!(
            "unexpected explicit tensor data for input tensor '{name}' for model '{model}' of type '{own}', expected \
             datatype '{declared}'"
        )));
    }
    if lists.next().is_some() {
        return Err(Status::invalid(format!(
            "unexpected explicit tensor data for input tensor '{name}' for model '{model}', binary data was already \
             supplied."
        )));
    }
    match (width, contents.int_bytes()) {
        (0, INT_BYTES) => Ok(contents.data().clone()),
        (wanted, kept) if wanted == kept => Ok(contents.data().clone()),
        (0, _) if !matches!(list, List::Int | List::Uint) => Ok(contents.data().clone()),
        (wanted @ 1.., INT_BYTES) if contents.elements() <= NARROWED_AT_ONCE => narrow(contents.data(), wanted, pool),
        _ => Err(Status::invalid(format!(
            "the datatype of input tensor '{name}' for model '{model}' must stand before its contents in the message"
        ))),
    }
}

/// Elements that are narrowed in one go because their data type came behind them, as no library writes a message.
const NARROWED_AT_ONCE: usize = 64 * 1024;

/// The type a list stands for when the input declares `declared`, and its element size where it has to be narrowed.
fn list_type(list: List, declared: &str) -> (&str, usize) {
    match (list, declared) {
        (List::Bool, _) => ("BOOL", 0),
        (List::Int, "INT8") => ("INT8", 1),
        (List::Int, "INT16") => ("INT16", 2),
        (List::Int, _) => ("INT32", 0),
        (List::Int64, _) => ("INT64", 0),
        (List::Uint, "UINT8") => ("UINT8", 1),
        (List::Uint, "UINT16") => ("UINT16", 2),
        (List::Uint, _) => ("UINT32", 0),
        (List::Uint64, _) => ("UINT64", 0),
        (List::Fp32, _) => ("FP32", 0),
        (List::Fp64, _) => ("FP64", 0),
        (List::Bytes, _) => ("BYTES", 0),
    }
}

/// Keeps the low `width` bytes of each element.
fn narrow(data: &Slice, width: usize, pool: &Pool) -> Result<Slice, Status> {
    let (elements, _) = data.as_chunks::<INT_BYTES>();
    let own = data.pool();
    let mut block = own.as_ref().unwrap_or(pool).get(elements.len() * width)?;
    for (to, from) in block.chunks_exact_mut(width).zip(elements) {
        to.copy_from_slice(&from[..width]);
    }
    Ok(block.freeze())
}
