//! `TRITONSERVER_ServerInferAsync`: an application's request on its way, and its answers on theirs.
//!
//! The model reads the inputs where the application has them, and writes outputs where its allocator says, if it asks
//! for their memory before it writes; what comes in other memory is copied once, when it is delivered.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Error;
use super::allocators::Buffer;
use super::application_trace::{Watching, adopt, give_back};
use super::inputs::{Chunk, Input};
use super::requests::{Answering, InferenceRequest, ReleaseFn};
use super::responses::{Data, InferenceResponse, Output};
use crate::abi::border::{deref, entry, give};
use crate::backend::plugin::guard::{Work, guarded};
use crate::memory::{BlockMut, Exhausted, Given, Lending, Slice, Target};
use crate::request::validate::{Raw, raw_input};
use crate::request::{
    Admission, Apart, Asked, Beside, Call, Callee, Delivery, InputTensor, MemoryType, Observation, OutputTensor, Place,
    Request, RequestedOutput, Response, Sink, Status, Text, log_id,
};
use crate::server::access::Access;

/// `TRITONSERVER_REQUEST_RELEASE_ALL`.
const RELEASE_ALL: u32 = 1;
/// `TRITONSERVER_RESPONSE_COMPLETE_FINAL`.
const FINAL: u32 = 1;

/// Where numbers of every size can begin.
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
        // SAFETY: the caller's promise is passed on.
        let given = unsafe {
            deref(server, "server")?;
            deref(inference_request, "inference_request")?
        };
        given.check_is_here()?;
        // SAFETY: as above; the allocator lives as long as it may be used.
        let (answers, release) = unsafe { callbacks_of(given)? };
        let (mut request, call) = given.callee.request(Arc::clone(&answers) as Arc<dyn Sink>);
        // A cancellation may come from now on.
        *given.call() = Some(Arc::clone(&call));
        let lending = Arc::new(lending(inference_request, release, (&call, request.admission())));
        let checked = fill(&mut request, given, &lending).and_then(|()| given.callee.check(&mut request));
        if let Err(status) = checked {
            lending.dismiss();
            request.withdraw();
            return Err(status);
        }
        // SAFETY: what the caller promises of its trace.
        match unsafe { adopt(trace, &call) } {
            Ok((observer, watching)) => {
                request.observer = observer;
                *answers.watching() = watching;
            }
            Err(status) => {
                lending.dismiss();
                request.withdraw();
                return Err(status);
            }
        }
        request.lending = Some(lending);
        given.is_out.store(true, Ordering::Release);
        // From here on the request may be released, and deleted, at any time.
        call.submit(request).map_err(|(status, mut request)| {
            if let Some(lending) = request.lending.take() {
                lending.dismiss();
            }
            // It came back: nobody else has it, nor will.
            given.is_out.store(false, Ordering::Release);
            if let Some(observer) = request.observer.take() {
                give_back(observer);
            }
            request.withdraw();
            answers.stop_watching();
            status
        })
    })
}

/// # Safety
/// The allocator that the request names is live.
unsafe fn callbacks_of(given: &InferenceRequest) -> Result<(Arc<Answers>, (ReleaseFn, *mut c_void)), Status> {
    let missing = |what: &str| Status::invalid(format!("{}the request has no {what} callback", given.log_id()));
    let answering = given.answer.ok_or_else(|| missing("response"))?;
    let release = given.release.ok_or_else(|| missing("release"))?;
    static SENDS: AtomicU64 = AtomicU64::new(0);
    let answers = Answers {
        number: SENDS.fetch_add(1, Ordering::Relaxed),
        // SAFETY: the caller's promise is passed on.
        answering: Answering { allocating: unsafe { answering.allocating.renewed()? }, ..answering },
        callee: Arc::clone(&given.callee),
        id: given.id.clone(),
        is_begun: AtomicBool::new(false),
        spare: Mutex::default(),
        watching: Mutex::default(),
    };
    Ok((Arc::new(answers), release))
}

/// What the request's caller is told when nobody looks at its memory any more. That may happen in the middle of a
/// queue, where no code of users may run.
fn lending(
    request: *mut InferenceRequest,
    (release, userp): (ReleaseFn, *mut c_void),
    (call, admission): (&Arc<dyn Call>, &Arc<Admission>),
) -> Lending {
    struct Released(*mut InferenceRequest, *mut c_void);
    // SAFETY: the pointers go back to the application, whose function takes them on any thread.
    unsafe impl Send for Released {}

    let (released, call, admission) = (Released(request, userp), Arc::clone(call), Arc::clone(admission));
    Lending::new(move || {
        let tell = move || {
            // All of it, not its fields one by one.
            let Released(request, userp) = { released };
            // SAFETY: the request is the server's until the function is called, and not looked at afterwards.
            unsafe { &*request }.is_out.store(false, Ordering::Release);
            // SAFETY: the function gets what it was registered with.
            told("TRITONSERVER_InferenceRequestReleaseFn_t", || unsafe { release(request, RELEASE_ALL, userp) });
        };
        call.run_foreign(Box::new(tell), admission.is_taken());
    })
}

/// Calls a function of the application's that returns nothing.
fn told(call: &'static str, function: impl FnOnce()) {
    let work = Work { kind: "application", call, ..Work::default() };
    if let Err(thrown) = guarded(&work, function) {
        tracing::error!("the application threw an exception in {call}: {thrown}");
    }
}

/// Makes `request` what the application described.
fn fill(request: &mut Request, given: &InferenceRequest, lending: &Arc<Lending>) -> Result<(), Status> {
    request.id = given.id.clone();
    request.flags = given.flags;
    request.correlation_id = given.correlation_id.clone();
    request.priority = given.priority;
    request.timeout_us = given.timeout_us;
    request.parameters = given.parameters.clone();
    request.outputs = given.outputs.iter().map(|name| RequestedOutput { name: name.clone(), index: 0 }).collect();
    for input in &given.inputs {
        let data = input.data.iter().map(|chunk| lent(chunk, lending));
        let mut tensor = match input.datatype {
            Some(datatype) => InputTensor::new(input.name.clone(), datatype, input.shape.clone()),
            None => raw(given, input)?,
        };
        let prefix = tensor.data.len();
        tensor.data.extend(data);
        tensor.beside = beside(input, lending, prefix).map(Box::new);
        request.inputs.push(tensor);
    }
    Ok(())
}

fn lent(chunk: &Chunk, lending: &Arc<Lending>) -> Slice {
    // SAFETY: the application promised the memory until the request is released, which the lending tells of; a chunk is
    // never NULL.
    unsafe { Slice::foreign(chunk.at, chunk.len, Arc::clone(lending) as Arc<_>) }
}

/// Where the data lie and for whom, where that is worth a word. `prefix` pieces of ours come before them.
fn beside(input: &Input, lending: &Arc<Lending>, prefix: usize) -> Option<Beside> {
    let is_plain = |chunk: &Chunk| chunk.place == Place::default();
    if input.for_policies.is_empty() && input.data.iter().all(is_plain) {
        return None;
    }
    let ours = std::iter::repeat_n(Place::default(), prefix);
    let for_policies = input.for_policies.iter().map(|(policy, data)| Apart {
        policy: policy.clone(),
        data: data.iter().map(|chunk| lent(chunk, lending)).collect(),
        places: data.iter().map(|chunk| chunk.place).collect(),
    });
    Some(Beside {
        places: ours.chain(input.data.iter().map(|chunk| chunk.place)).collect(),
        for_policies: for_policies.collect(),
    })
}

/// The tensor of a raw input without its data, but with the length that stands before the one element of BYTES.
fn raw(given: &InferenceRequest, input: &Input) -> Result<InputTensor, Status> {
    let byte_size = input.data.iter().map(|chunk| chunk.len).fold(0, usize::saturating_add);
    let spec = given.callee.spec();
    let Raw { datatype, shape, length } = raw_input(spec, &given.log_id(), byte_size)?;
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

/// Where the answers of one send arrive.
struct Answers {
    /// Tells its buffers from those of others.
    number: u64,
    answering: Answering,
    callee: Arc<dyn Callee>,
    id: Text,
    /// A response was begun by who asked for memory before it said that there is one.
    is_begun: AtomicBool,
    /// Memory that the application gave and the model could not write to.
    spare: Mutex<Vec<(Text, Buffer)>>,
    /// The trace that wants to see what the model answers.
    watching: Mutex<Option<Watching>>,
}

/// Memory of an application's, as the owner of what a model writes there.
pub(super) struct Provided {
    pub buffer: Buffer,
    number: u64,
}

impl Answers {
    fn watching(&self) -> MutexGuard<'_, Option<Watching>> {
        self.watching.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stop_watching(&self) {
        let watching = self.watching().take();
        // The application hears of it: not under the lock.
        drop(watching);
    }

    fn respond(&self, response: Response) -> InferenceResponse {
        let Response { outputs, parameters, mut error, is_begun, credit: _credit, .. } = response;
        if !is_begun && !self.is_begun.swap(false, Ordering::AcqRel) {
            self.answering.allocating.start();
        }
        if let Some(watching) = self.watching().as_ref() {
            watching.show(&outputs);
        }
        let mut placed = Vec::with_capacity(outputs.len());
        if error.is_none() {
            for output in outputs {
                match self.place(output) {
                    Ok(output) => placed.push(output),
                    Err(status) => {
                        // All or nothing; what was given goes back.
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
            error: error.map(Error::of),
            parameters,
            outputs: placed,
            labels: Mutex::new(BTreeMap::new()),
        }
    }

    /// Sees to it that the elements of an output are where the application wants them.
    fn place(&self, output: OutputTensor) -> Result<Output, Status> {
        let OutputTensor { name, datatype, shape, data: pieces, .. } = output;
        let byte_size = pieces.iter().map(|piece| piece.len()).fold(0, usize::saturating_add);
        let data = match &pieces[..] {
            [] => Data::None,
            [only] if self.is_in_place(only) => Data::Written(only.clone()),
            pieces => {
                let spare = self.take_spare(&name, byte_size);
                let wanted = Place::default();
                let allocate = || self.answering.allocating.allocate(name.as_c_str(), byte_size, wanted);
                let buffer = spare.map_or_else(allocate, Ok)?;
                let mut at = 0;
                for piece in pieces {
                    // SAFETY: the buffer has room for all pieces, is the CPU's to write, and nobody else writes to it.
                    unsafe {
                        let to = buffer.at.cast::<u8>().wrapping_add(at);
                        std::ptr::copy(piece.as_ptr(), to, if to.is_null() { 0 } else { piece.len() });
                    }
                    at += piece.len();
                }
                Data::Copied(buffer)
            }
        };
        Ok(Output { name, datatype, shape, data })
    }

    fn is_in_place(&self, data: &Slice) -> bool {
        let provided = data.foreign_owner::<Provided>();
        provided.is_some_and(|provided| provided.number == self.number && provided.buffer.byte_size == data.len())
    }

    fn take_spare(&self, name: &Text, byte_size: usize) -> Option<Buffer> {
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        let at = spare.iter().position(|(known, buffer)| known == name && buffer.byte_size == byte_size)?;
        Some(spare.swap_remove(at).1)
    }
}

impl Sink for Answers {
    fn deliver(&self, _key: u64, delivery: Delivery) {
        let flags = if delivery.last { FINAL } else { 0 };
        let response = match delivery.response.map(|response| self.respond(response)) {
            Some(response) => give(response),
            None if delivery.last => std::ptr::null_mut(),
            None => return,
        };
        let Answering { complete, userp, .. } = self.answering;
        // SAFETY: the function gets what it was registered with, and the response, which is its own from now on.
        told("TRITONSERVER_InferenceResponseCompleteFn_t", || unsafe { complete(response, flags, userp) });
        if delivery.last {
            self.stop_watching();
        }
    }

    fn allocate(&self, _key: u64, byte_size: usize) -> Result<BlockMut, Exhausted> {
        Ok(BlockMut::unpooled(byte_size))
    }

    fn allocate_output(&self, _key: u64, asked: &Asked<'_>) -> Result<Option<Target>, Status> {
        if !asked.is_begun && !self.is_begun.swap(true, Ordering::AcqRel) {
            self.answering.allocating.start();
        }
        let name = Text::new(asked.name);
        let buffer = self.answering.allocating.allocate(name.as_c_str(), asked.byte_size, asked.place)?;
        if asked.is_aligned && !buffer.at.addr().is_multiple_of(WIDEST) {
            self.spare.lock().unwrap_or_else(PoisonError::into_inner).push((name, buffer));
            return Ok(None);
        }
        let (at, byte_size, place) = (buffer.at.cast(), buffer.byte_size, buffer.place);
        let place = (place.memory_type as u32, place.memory_type_id);
        let owner = Arc::new(Provided { buffer, number: self.number });
        // SAFETY: an allocator gives memory of that size which is its response's alone until it is released, which the
        // owner does; of the kinds that the CPU cannot write none comes here.
        Ok(Some(Target::Given(unsafe { Given::new(at, byte_size, place, owner) })))
    }

    fn begin(&self, _key: u64) -> bool {
        self.answering.allocating.start();
        true
    }

    fn preferred_place(
        &self,
        _key: u64,
        (name, byte_size): (Option<&CStr>, Option<usize>),
        place: Place,
    ) -> Result<Place, Status> {
        let unknown = || Status::unavailable(format!("{}Output properties are not available", log_id(&self.id)));
        let place = self.answering.allocating.query(name, byte_size, place)?.ok_or_else(unknown)?;
        // What cannot be written is of no use to anybody.
        let is_ours = place.memory_type != MemoryType::Gpu;
        Ok(if is_ours { place } else { Place::default() })
    }
}
