//! `TRITONSERVER_ServerInferAsync`: sends an application's request and delivers its responses.
//!
//! The model reads the inputs in the application's memory. It writes an output into memory of the application's
//! allocator if it requests that memory before it writes; an output in other memory is copied once, at delivery.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Error;
use super::allocators::Buffer;
use super::application_trace::{OutputTrace, adopt, give_back};
use super::inputs::{Chunk, Input, gpu_of};
use super::requests::{Description, InferenceRequest, ReleaseFn, ResponseCallback, edited};
use super::response_errors::ResponseError;
use super::responses::{Data, InferenceResponse, Output};
use crate::abi::border::{deref, entry, give};
use crate::abi::casts::{self, Either, handle_of_application};
use crate::abi::guard::{ForeignCode, guarded};
use crate::server::access::Access;
use nereid_gpu::driver::DeviceAddress;
use nereid_gpu::{DeviceSlice, DriverError, Gpu, Gpus, Piece};
use nereid_memory::{BlockMut, Exhausted, ForeignMemory, ReleaseGuard, Slice, Target};
use nereid_request::shared::OutputDestination;
use nereid_request::{
    Admission, Call, Callee, Completion, Delivery, InputPlacement, InputTensor, MemoryType, Observation, OutputQuery,
    OutputTensor, Place, PolicyData, Request, RequestedOutput, Response, ResponseParts, Sink, Status, Text, log_id,
};
use nereid_scheduler::validate::{RawInput, raw_input};

/// `TRITONSERVER_REQUEST_RELEASE_ALL`.
const RELEASE_ALL: u32 = 1;
/// `TRITONSERVER_RESPONSE_COMPLETE_FINAL`.
const FINAL: u32 = 1;

/// The alignment that suits every element type.
const WIDEST: usize = 8;

/// # Safety
/// Server and request are live, and so is the trace unless it is NULL. Without an error the server has the request
/// until it is released; the trace then comes back through its own release function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ServerInferAsync(
    server: *const Access,
    inference_request: *mut InferenceRequest,
    trace: *mut Observation,
) -> *mut Error {
    entry(|| {
        // SAFETY: `server` is NULL or live: this function requires it of its caller.
        unsafe { deref(server, "server")? };
        let Either::Application(at) = casts::request(inference_request) else {
            // SAFETY: as above; it returns the reason.
            return unsafe { edited(inference_request) }.map(drop);
        };
        // SAFETY: `at` is NULL or live: this function requires it of its caller.
        let handle = unsafe { deref(at.cast_const(), "inference_request")? };
        // SAFETY: no other call edits it meanwhile: this function requires it of its caller.
        let given = unsafe {
            handle.check_may_be_sent()?;
            handle.description()
        };
        *handle.view() = None;
        // SAFETY: as above; the allocator lives as long as it may be used.
        let callbacks = unsafe { callbacks_of(given) };
        if callbacks.is_err() {
            // As in Triton, errors of the tensors are reported first.
            check_tensors(given)?;
        }
        let (receiver, release) = callbacks?;
        let (mut request, call) = given.callee.request(Arc::clone(&receiver) as Arc<dyn Sink>);
        // A cancellation may come from now on.
        *handle.call() = Some(Arc::clone(&call));
        *handle.admission.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(request.admission()));
        let guard = Arc::new(release_guard(at, release, (&call, request.admission())));
        let checked = fill(&mut request, given, &guard).and_then(|()| given.callee.check(&mut request));
        if let Err(status) = checked {
            guard.disarm();
            request.withdraw();
            return Err(status);
        }
        // SAFETY: as the caller guarantees for its trace.
        match unsafe { adopt(trace, &call) } {
            Ok((observer, output_trace)) => {
                request.observer = observer;
                *receiver.output_trace() = output_trace;
            }
            Err(status) => {
                guard.disarm();
                request.withdraw();
                return Err(status);
            }
        }
        request.release.guard = Some(guard);
        handle.is_with_server.store(true, Ordering::Release);
        // From here on the request may be released, and deleted, at any time: no reference to it is held.
        call.submit(request).map_err(|(status, mut request)| {
            if let Some(guard) = request.release.guard.take() {
                guard.disarm();
            }
            // The request came back: no other code has it or will get it.
            // SAFETY: the application still waits for it to be released or refused.
            unsafe { &*at }.is_with_server.store(false, Ordering::Release);
            if let Some(observer) = request.observer.take() {
                give_back(observer);
            }
            request.withdraw();
            receiver.stop_tracing();
            status
        })
    })
}

/// # Safety
/// The allocator that the request names is live.
unsafe fn callbacks_of(given: &Description) -> Result<(Arc<ResponseReceiver>, (ReleaseFn, *mut c_void)), Status> {
    let missing = |what: &str| Status::invalid(format!("{}the request has no {what} callback", given.log_id()));
    let response_callback = given.answer.ok_or_else(|| missing("response"))?;
    let release = given.release.ok_or_else(|| missing("release"))?;
    static SENDS: AtomicU64 = AtomicU64::new(0);
    let receiver = ResponseReceiver {
        number: SENDS.fetch_add(1, Ordering::Relaxed),
        response_callback: ResponseCallback {
            // SAFETY: the allocator that the request names is live: this function requires it of its caller.
            request_allocator: unsafe { response_callback.request_allocator.renewed()? },
            ..response_callback
        },
        callee: Arc::clone(&given.callee),
        id: given.id.clone(),
        is_begun: AtomicBool::new(false),
        unused: Mutex::default(),
        output_trace: Mutex::default(),
    };
    Ok((Arc::new(receiver), release))
}

/// Calls the application's release function when its memory is no longer read. That may happen in the middle of a
/// queue, where application code must not run.
fn release_guard(
    request: *mut InferenceRequest,
    (release, userp): (ReleaseFn, *mut c_void),
    (call, admission): (&Arc<dyn Call>, &Arc<Admission>),
) -> ReleaseGuard {
    struct ReleaseCall(*mut InferenceRequest, *mut c_void);
    // SAFETY: the pointers go back to the application, whose function takes them on any thread.
    unsafe impl Send for ReleaseCall {}

    let (release_call, call, admission) = (ReleaseCall(request, userp), Arc::clone(call), Arc::clone(admission));
    ReleaseGuard::new(move || {
        let call_back = move || {
            // Captures the whole value, not its fields one by one.
            let ReleaseCall(request, userp) = { release_call };
            // SAFETY: the server has the request until the function is called, and does not read it afterwards.
            unsafe { &*request }.is_with_server.store(false, Ordering::Release);
            // SAFETY: the function gets the pointer that it was registered with.
            call_application("TRITONSERVER_InferenceRequestReleaseFn_t", || unsafe {
                release(handle_of_application(request), RELEASE_ALL, userp)
            });
        };
        call.run_foreign(Box::new(call_back), admission.is_taken());
    })
}

/// Calls a function of the application that returns no value.
pub(super) fn call_application(call: &'static str, function: impl FnOnce()) {
    let work = ForeignCode { kind: "application", call, ..ForeignCode::default() };
    if let Err(thrown) = guarded(&work, function) {
        tracing::error!("the application threw an exception in {call}: {thrown}");
    }
}

/// A request like `given`, for functions of the backend's interface to read. Its responses go to no receiver.
pub(super) fn view_of(given: &Description, was_sent: bool) -> Result<Request, Status> {
    let mut request = unanswered(given)?;
    // A request that was sent lists all its outputs, because the check adds them; one that was not sent may fail the
    // check.
    if was_sent {
        given.callee.check(&mut request)?;
    }
    Ok(request)
}

/// Checks that the model would accept the request.
fn check_tensors(given: &Description) -> Result<(), Status> {
    given.callee.check(&mut unanswered(given)?)
}

fn unanswered(given: &Description) -> Result<Request, Status> {
    let mut request = Request::new(Completion::new(Arc::new(NullReceiver), 0));
    fill(&mut request, given, &Arc::new(ReleaseGuard::new(|| {})))?;
    Ok(request)
}

/// The receiver of responses of a request that is only read.
struct NullReceiver;

impl Sink for NullReceiver {
    fn deliver(&self, _key: u64, _delivery: Delivery) {}

    fn allocate(&self, _key: u64, byte_size: usize) -> Result<BlockMut, Exhausted> {
        Ok(BlockMut::unpooled(byte_size))
    }
}

/// The place that the application prefers for an output of its request.
pub(in crate::abi) fn preferred_place(
    given: &Description,
    query: (Option<&CStr>, Option<usize>),
    place: Place,
) -> Result<Place, Status> {
    // SAFETY: the allocator lives as long as a request names it.
    let (receiver, _) = unsafe { callbacks_of(given)? };
    receiver.preferred_place(0, query, place)
}

/// Fills `request` with the application's description.
fn fill(request: &mut Request, given: &Description, guard: &Arc<ReleaseGuard>) -> Result<(), Status> {
    request.id = given.id.clone();
    request.flags = given.flags;
    request.correlation_id = given.correlation_id.clone();
    request.queueing = given.queueing;
    request.parameters = given.parameters.clone();
    request.outputs = given.outputs.iter().map(|name| RequestedOutput { name: name.clone(), index: 0 }).collect();
    for input in &given.inputs {
        let mut tensor = match input.datatype {
            Some(datatype) => InputTensor::new(input.name.clone(), datatype, input.shape.clone()),
            None => raw(given, input)?,
        };
        let gpus = given.callee.gpus();
        if let Some(device) = input.data.iter().find_map(|chunk| gpu_of(gpus?, chunk.place)) {
            bring_to(device, &mut tensor, (input, gpus), guard)?;
        } else {
            let prefix = tensor.data.len();
            tensor.data.extend(input.data.iter().map(|chunk| lent(chunk, guard)));
            tensor.placement = placement(input, gpus, guard, prefix)?.map(Box::new);
        }
        request.inputs.push(tensor);
    }
    Ok(())
}

fn lent(chunk: &Chunk, guard: &Arc<ReleaseGuard>) -> Slice {
    // SAFETY: the application promised the memory until the request is released, which the guard reports; a chunk is
    // never NULL.
    unsafe { Slice::foreign(chunk.at, chunk.len, Arc::clone(guard) as Arc<_>) }
}

/// Brings an input of which some bytes lie on a device to that device as a whole; an input in one piece is not copied.
fn bring_to(
    device: &Gpu,
    tensor: &mut InputTensor,
    (input, gpus): (&Input, Option<&Gpus>),
    guard: &Arc<ReleaseGuard>,
) -> Result<(), Status> {
    let before = std::mem::take(&mut tensor.data);
    let piece = |chunk: &Chunk| match gpus.and_then(|gpus| gpu_of(gpus, chunk.place)) {
        Some(gpu) => Piece::Device(lent_on_device(chunk, gpu, guard)),
        None => Piece::Host(lent(chunk, guard)),
    };
    let pieces: Vec<Piece> = before.into_iter().map(Piece::Host).chain(input.data.iter().map(piece)).collect();
    let (slice, places) = match (&pieces[..], &input.data[..]) {
        ([Piece::Device(only)], [chunk]) => (only.clone(), vec![chunk.place]),
        (pieces, _) => {
            let failed =
                |error| Status::internal(format!("input '{}' cannot be joined on GPU {device}: {error}", input.name));
            (device.gather(pieces).map_err(failed)?, Vec::new())
        }
    };
    let for_policies = for_policies(input, gpus, guard)?;
    tensor.placement = Some(Box::new(InputPlacement { places, for_policies, on_device: Some(slice) }));
    Ok(())
}

fn lent_on_device(chunk: &Chunk, gpu: &Gpu, guard: &Arc<ReleaseGuard>) -> DeviceSlice {
    let at = DeviceAddress(chunk.at.addr() as u64);
    // SAFETY: as for `lent`; all writes to it have completed, because the application passed it as the input.
    unsafe { DeviceSlice::foreign(gpu.clone(), at, chunk.len, Arc::clone(guard) as Arc<_>) }
}

/// The data for the instances of single host policies, copied to the host if it lies elsewhere.
fn for_policies(input: &Input, gpus: Option<&Gpus>, guard: &Arc<ReleaseGuard>) -> Result<Vec<PolicyData>, Status> {
    let fetched = |chunk: &Chunk| match gpus.and_then(|gpus| gpu_of(gpus, chunk.place)) {
        None => Ok((lent(chunk, guard), chunk.place)),
        Some(gpu) => {
            let mut block = BlockMut::unpooled(chunk.len);
            let fetched = gpu.fetch(&lent_on_device(chunk, gpu, guard), &mut block);
            let failed = |error| Status::internal(format!("input '{}' cannot be read: {error}", input.name));
            fetched.map_err(failed)?;
            Ok((block.freeze(), Place::default()))
        }
    };
    let policy_data = |(policy, data): &(Text, Vec<Chunk>)| {
        let runs = data.iter().map(fetched).collect::<Result<Vec<_>, Status>>()?;
        let (data, places) = runs.into_iter().unzip();
        Ok(PolicyData { policy: policy.clone(), data, places })
    };
    input.for_policies.iter().map(policy_data).collect()
}

/// The places of the data and the data for host policies, where either differs from plain memory for all. `prefix`
/// pieces of the server come before the data.
fn placement(
    input: &Input,
    gpus: Option<&Gpus>,
    guard: &Arc<ReleaseGuard>,
    prefix: usize,
) -> Result<Option<InputPlacement>, Status> {
    let is_plain = |chunk: &Chunk| chunk.place == Place::default();
    if input.for_policies.is_empty() && input.data.iter().all(is_plain) {
        return Ok(None);
    }
    let ours = std::iter::repeat_n(Place::default(), prefix);
    let places = ours.chain(input.data.iter().map(|chunk| chunk.place)).collect();
    Ok(Some(InputPlacement { places, for_policies: for_policies(input, gpus, guard)?, on_device: None }))
}

/// The tensor of a raw input without its data, but with the length prefix of the one element of BYTES.
fn raw(given: &Description, input: &Input) -> Result<InputTensor, Status> {
    let byte_size = input.data.iter().map(|chunk| chunk.len).fold(0, usize::saturating_add);
    let spec = given.callee.spec();
    let RawInput { datatype, shape, length } = raw_input(spec, &given.log_id(), byte_size)?;
    let mut tensor = InputTensor::new(input.name.clone(), datatype, shape);
    if let Some(length) = length {
        if !input.for_policies.is_empty() {
            return Err(Status::unsupported(format!(
                "{}Raw input with data associated with a host policy setting is not currently supported for model '{}'",
                given.log_id(),
                spec.name
            )));
        }
        tensor.data.push(Slice::copy_of(&length.to_le_bytes()));
    }
    Ok(tensor)
}

/// The receiver of the responses of one send.
struct ResponseReceiver {
    /// Distinguishes its buffers from those of other sends.
    number: u64,
    response_callback: ResponseCallback,
    callee: Arc<dyn Callee>,
    id: Text,
    /// Whether a request for memory has begun a response that is not delivered yet.
    is_begun: AtomicBool,
    /// Memory that the application provided and the model could not write to.
    unused: Mutex<Vec<(Text, Buffer)>>,
    /// The trace that observes the model's responses.
    output_trace: Mutex<Option<OutputTrace>>,
}

/// Memory of a device that is not chosen yet.
const ON_DEVICE: Place = Place { memory_type: MemoryType::Gpu, memory_type_id: 0, cuda_ipc_handle: 0 };

fn misplaced(name: &Text, error: &DriverError) -> Status {
    Status::internal(format!("output '{name}' cannot be brought to the application's memory: {error}"))
}

/// Memory of an application, as the owner of what a model writes there.
pub(super) struct ApplicationMemory {
    pub buffer: Buffer,
    number: u64,
}

impl ResponseReceiver {
    fn output_trace(&self) -> MutexGuard<'_, Option<OutputTrace>> {
        self.output_trace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stop_tracing(&self) {
        let output_trace = self.output_trace().take();
        // The drop may call the application: not under the lock.
        drop(output_trace);
    }

    fn respond(&self, response: Response) -> InferenceResponse {
        let ResponseParts { outputs, parameters, mut error, is_begun, credit: _credit, .. } = response.into_parts();
        if !is_begun && !self.is_begun.swap(false, Ordering::AcqRel) {
            self.response_callback.request_allocator.start();
        }
        if let Some(output_trace) = self.output_trace().as_ref() {
            output_trace.show(&outputs);
        }
        let mut placed = Vec::with_capacity(outputs.len());
        if error.is_none() {
            for output in outputs {
                match self.place(output) {
                    Ok(output) => placed.push(output),
                    Err(status) => {
                        // All or nothing; the buffers are released.
                        placed.clear();
                        error = Some(status);
                        break;
                    }
                }
            }
        }
        InferenceResponse {
            callee: Arc::clone(&self.callee),
            id: self.id.clone(),
            error: error.map(|status| ResponseError::new(Error::of(status))),
            parameters,
            outputs: placed,
            labels: Mutex::new(BTreeMap::new()),
        }
    }

    /// Puts the elements of an output where the application wants them.
    fn place(&self, output: OutputTensor) -> Result<Output, Status> {
        let OutputTensor { name, datatype, shape, data: pieces, on_device, .. } = output;
        let data = match (&pieces[..], on_device) {
            (_, Some(slice)) => self.place_from_device(&name, &slice)?,
            ([], None) => Data::None,
            ([only], None) if self.is_in_place(only) => Data::Written(only.clone()),
            (pieces, None) => {
                let byte_size = pieces.iter().map(|piece| piece.len()).fold(0, usize::saturating_add);
                let buffer = self.buffer_for(&name, byte_size, Place::default())?;
                let target = buffer.target(self.callee.gpus(), Arc::new(()));
                let mut at = 0;
                // Nothing is written if the application gave no memory.
                for piece in pieces.iter().filter(|_| !buffer.at.is_null()) {
                    match &target {
                        Some(target) => {
                            let written = target.gpu().put_slice_at(&target.part(at, piece.len()), piece);
                            written.map_err(|error| misplaced(&name, &error))?;
                        }
                        // SAFETY: the buffer has room for all pieces, is writable by the CPU, and no other code writes
                        // to it.
                        None => unsafe {
                            let to = buffer.at.cast::<u8>().wrapping_add(at);
                            std::ptr::copy(piece.as_ptr(), to, piece.len());
                        },
                    }
                    at += piece.len();
                }
                Data::Copied(buffer)
            }
        };
        Ok(Output { name, datatype, shape, data })
    }

    /// The same for elements that lie on a device.
    fn place_from_device(&self, name: &Text, slice: &DeviceSlice) -> Result<Data, Status> {
        let memory = slice.owner::<ApplicationMemory>();
        if memory.is_some_and(|one| one.number == self.number && one.buffer.byte_size == slice.len()) {
            return Ok(Data::OnDevice(slice.clone()));
        }
        let buffer = self.buffer_for(name, slice.len(), Place::of(slice))?;
        let done = match buffer.target(self.callee.gpus(), Arc::new(())) {
            Some(target) => target.gpu().copy_to(&target, slice),
            None if buffer.at.is_null() => Ok(()),
            None => {
                // SAFETY: the buffer has room for so many bytes, is writable by the CPU, and no other code writes to
                // it.
                let bytes = unsafe { std::slice::from_raw_parts_mut(buffer.at.cast::<u8>(), slice.len()) };
                slice.gpu().fetch(slice, bytes)
            }
        };
        done.map_err(|error| misplaced(name, &error))?;
        Ok(Data::Copied(buffer))
    }

    /// Memory of the application for an output: a buffer that it gave before and that is still unused, or a new one.
    fn buffer_for(&self, name: &Text, byte_size: usize, wanted: Place) -> Result<Buffer, Status> {
        match self.take_unused(name, byte_size) {
            Some(buffer) => Ok(buffer),
            None => self.response_callback.request_allocator.allocate(
                name.as_c_str(),
                byte_size,
                wanted,
                self.callee.gpus(),
            ),
        }
    }

    fn keep_unused(&self, name: Text, buffer: Buffer) {
        self.unused.lock().unwrap_or_else(PoisonError::into_inner).push((name, buffer));
    }

    /// Reports the start of a response to the application, once for each response.
    fn note_begun(&self, query: &OutputQuery<'_>) {
        if !query.is_begun && !self.is_begun.swap(true, Ordering::AcqRel) {
            self.response_callback.request_allocator.start();
        }
    }

    fn is_in_place(&self, data: &Slice) -> bool {
        let memory = data.foreign_owner::<ApplicationMemory>();
        memory.is_some_and(|memory| memory.number == self.number && memory.buffer.byte_size == data.len())
    }

    fn take_unused(&self, name: &Text, byte_size: usize) -> Option<Buffer> {
        let mut unused = self.unused.lock().unwrap_or_else(PoisonError::into_inner);
        let at = unused.iter().position(|(known, buffer)| known == name && buffer.byte_size == byte_size)?;
        Some(unused.swap_remove(at).1)
    }
}

impl Sink for ResponseReceiver {
    fn deliver(&self, _key: u64, delivery: Delivery) {
        let flags = if delivery.last { FINAL } else { 0 };
        let response = match delivery.response.map(|response| self.respond(response)) {
            Some(response) => handle_of_application(give(response)),
            None if delivery.last => std::ptr::null_mut(),
            None => return,
        };
        let ResponseCallback { complete, userp, .. } = self.response_callback;
        // SAFETY: the function gets what it was registered with, and the response, which it owns from now on.
        call_application("TRITONSERVER_InferenceResponseCompleteFn_t", || unsafe { complete(response, flags, userp) });
        if delivery.last {
            self.stop_tracing();
        }
    }

    fn allocate(&self, _key: u64, byte_size: usize) -> Result<BlockMut, Exhausted> {
        Ok(BlockMut::unpooled(byte_size))
    }

    fn allocate_output(&self, _key: u64, query: &OutputQuery<'_>) -> Result<Option<Target>, Status> {
        self.note_begun(query);
        let name = Text::new(query.name);
        let buffer = self.buffer_for(&name, query.byte_size, query.place)?;
        let is_on_host = buffer.place.memory_type != MemoryType::Gpu;
        let is_nowhere = buffer.at.is_null() && buffer.byte_size > 0;
        if !is_on_host || is_nowhere || query.is_aligned && !buffer.at.addr().is_multiple_of(WIDEST) {
            self.keep_unused(name, buffer);
            return Ok(None);
        }
        let (at, byte_size, place) = (buffer.at.cast(), buffer.byte_size, buffer.place);
        let place = (place.memory_type as u32, place.memory_type_id);
        let owner = Arc::new(ApplicationMemory { buffer, number: self.number });
        // SAFETY: an allocator gives memory of that size for this response alone until its release, which is the
        // owner's drop; memory that the CPU cannot write does not get here.
        Ok(Some(Target::Foreign(unsafe { ForeignMemory::new(at, byte_size, place, owner) })))
    }

    /// Requests memory of a device from the application, which may give other memory.
    fn destination(&self, _key: u64, query: &OutputQuery<'_>) -> Result<OutputDestination, Status> {
        let Some(gpus) = self.callee.gpus().filter(|_| query.byte_size > 0) else {
            return Ok(OutputDestination::OnHost);
        };
        let any = || gpus.iter().next().map(|gpu| Place { memory_type_id: i64::from(gpu.id()), ..ON_DEVICE });
        let wanted = if query.place.memory_type == MemoryType::Gpu { Some(query.place) } else { any() };
        let Some(wanted) = wanted else { return Ok(OutputDestination::OnHost) };
        self.note_begun(query);
        let name = Text::new(query.name);
        let buffer = self.buffer_for(&name, query.byte_size, wanted)?;
        if buffer.place.memory_type != MemoryType::Gpu || buffer.at.is_null() {
            self.keep_unused(name, buffer);
            return Ok(OutputDestination::OnHost);
        }
        // The same rule as for shared memory regions that clients name.
        if !buffer.at.addr().is_multiple_of(WIDEST) {
            self.keep_unused(name, buffer);
            return Ok(OutputDestination::OnDevice);
        }
        let owner = Arc::new(ApplicationMemory { buffer, number: self.number });
        let target = owner.buffer.target(Some(gpus), Arc::clone(&owner) as Arc<_>);
        Ok(target.map_or(OutputDestination::OnHost, OutputDestination::At))
    }

    fn begin(&self, _key: u64) -> bool {
        self.response_callback.request_allocator.start();
        true
    }

    fn preferred_place(
        &self,
        _key: u64,
        (name, byte_size): (Option<&CStr>, Option<usize>),
        place: Place,
    ) -> Result<Place, Status> {
        let unknown = || Status::unavailable(format!("{}Output properties are not available", log_id(&self.id)));
        self.response_callback.request_allocator.query(name, byte_size, place)?.ok_or_else(unknown)
    }
}

#[cfg(test)]
mod tests;
