//! One session on a GPU and the batches that it runs there, one behind the other.
//!
//! A batch is a flight: its inputs are copied in, or used where they lie, the library enqueues its work in the stream
//! of the instance, outputs are copied out or stay. While one batch computes, the next one is copied in and the one
//! before it is copied out. Strings and small tensors of numbers, which describe shapes, are passed on the host, where
//! the library reads them.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::sync::Arc;

use smallvec::SmallVec;

use super::batch::{Failure, model_shape, too_large};
use super::binding::{BoundInput, Returns, contiguous};
use super::device_outputs::{BatchResults, Computed, DeviceOutputs, OutputPart, PartDescription, computed};
use super::instance::is_shape_conflict;
use super::io_binding::{Binding, DeviceRange, Memory};
use super::options::RunOptions;
use super::plan::Plan;
use super::recording::{Recording, RecordingKey, Recordings};
use super::result::{part, too_few_elements, too_few_rows};
use super::session::Session;
use super::strings::{Content, Strings};
use crate::device_outputs::{PartToCopy, copy_out};
use crate::pipeline::{Batch, Pipelined, UNDER_WAY_MAX};
use crate::rows::Tensors;
use crate::{Instance, InstanceContext};
use nereid_clock::now_ns;
use nereid_gpu::flight::Input;
use nereid_gpu::{DriverError, Flight, Gpu, Lanes, Piece, capture};
use nereid_request::shared::OutputDestination;
use nereid_request::{InputTensor, OutputTensor, Request, Shape, Status, element_count, format_shape};
use nereid_scheduler::Payload;

pub struct DeviceInstance {
    /// First, so that it is dropped first: the batches under way use all other fields.
    under_way: VecDeque<Batch<Cargo>>,
    context: InstanceContext,
    plan: Plan,
    running: Running,
    returns: Arc<Returns>,
    session: Arc<Session>,
    memory: Memory,
    lanes: Arc<Lanes>,
    strings: Strings,
    content: Content,
    /// Whether the model computed another shape than it declares: then its outputs are not bound any more.
    declares_wrongly: bool,
}

/// The options and buffers of runs.
pub struct Running {
    pub options: RunOptions,
    /// The recorded runs, if the configuration enables CUDA graphs.
    pub recordings: Option<Recordings>,
}

/// The requests of a batch.
pub struct Cargo {
    outputs: Vec<DeviceOutputs>,
    /// Inputs on the host that the library may still read.
    _read: Vec<BoundInput>,
}

/// A launched batch, without its requests.
struct Flown {
    flight: Flight,
    /// The parts of each request.
    parts: Vec<Vec<OutputPart>>,
    read: Vec<BoundInput>,
    compute_start_ns: u64,
}

impl Running {
    fn recording(&self, number: Option<usize>) -> Option<&Recording> {
        self.recordings.as_ref()?.get(number?)
    }
}

/// An input that is passed to the model.
enum Fed {
    Host(BoundInput),
    Device(Input, Shape),
}

impl DeviceInstance {
    pub fn new(
        context: InstanceContext,
        lanes: Arc<Lanes>,
        session: Session,
        plan: Plan,
        running: Running,
    ) -> Result<DeviceInstance, Status> {
        lanes.gpu().enter()?;
        let session = Arc::new(session);
        Ok(DeviceInstance {
            under_way: VecDeque::new(),
            context,
            plan,
            running,
            returns: Returns::new(Arc::clone(&session)),
            memory: Memory::new(session.runtime(), lanes.gpu())?,
            session,
            lanes,
            strings: Strings::default(),
            content: Content::default(),
            declares_wrongly: false,
        })
    }

    fn gpu(&self) -> &Gpu {
        self.lanes.gpu()
    }

    /// Copies the inputs that the library reads on the host to the host.
    fn bring_home(&self, request: &mut Request) -> Result<(), Status> {
        for at in 0..request.inputs.len() {
            let Some(input) = request.inputs.get(at) else { continue };
            let stays = self.plan.inputs.get(input.index).is_some_and(|plan| plan.stays_on_host());
            let Some(slice) = input.on_device().filter(|_| stays).cloned() else { continue };
            let mut block = self.context.model.pool.get(slice.len())?;
            slice.gpu().fetch(&slice, &mut block)?;
            if let Some(input) = request.inputs.get_mut(at) {
                input.data = smallvec::smallvec![block.freeze()];
                input.placement.iter_mut().for_each(|placement| placement.on_device = None);
            }
        }
        Ok(())
    }

    /// Enqueues the copies of inputs, the run and the copies of outputs.
    fn fly(&mut self, requests: &[Box<Request>], rows: u64) -> Result<Flown, Failure> {
        let mut flight = Flight::new(&self.lanes)?;
        let tensors = &Tensors::new(requests);
        let recording = self.recording(requests, tensors, rows)?;
        let mut fed: Vec<(usize, Fed)> = Vec::with_capacity(self.plan.inputs.len());
        for index in 0..self.plan.inputs.len() {
            let input = self.feed(&mut flight, index, tensors, rows, recording)?;
            fed.extend(input.map(|input| (index, input)));
        }
        let mut batch_inputs: SmallVec<[BoundInput; 4]> = SmallVec::new();
        let pool = &self.context.model.pool;
        self.plan.make_batch_inputs(tensors, self.session.runtime(), pool, &mut batch_inputs)?;
        // The library may read a bound tensor at once, on a stream of its own.
        flight.await_inputs()?;
        let compute_start_ns = now_ns();
        let computed = match self.run(&mut flight, (requests, tensors), &fed, &batch_inputs, (rows, recording)) {
            Err(status) if !self.declares_wrongly && is_shape_conflict(&status.message) => {
                // The model declares a fixed shape and computes another: it runs again, into the library's own memory.
                self.declares_wrongly = true;
                let again = self.run(&mut flight, (requests, tensors), &fed, &batch_inputs, (rows, None));
                self.declares_wrongly = again.is_ok();
                again?
            }
            computed => computed?,
        };
        let parts = self.hand_out(&mut flight, (requests, tensors), computed)?;
        flight.seal()?;
        let on_host = fed.into_iter().filter_map(|(_, input)| match input {
            Fed::Host(bound) => Some(bound),
            Fed::Device(..) => None,
        });
        Ok(Flown { flight, parts, read: on_host.chain(batch_inputs).collect(), compute_start_ns })
    }

    /// Input number `index` of all requests; `None` if it is optional and absent.
    fn feed(
        &mut self,
        flight: &mut Flight,
        index: usize,
        tensors: &Tensors<'_>,
        rows: u64,
        recording: Option<usize>,
    ) -> Result<Option<Fed>, Failure> {
        let context = &self.context.model;
        let (Some(plan), Some(shape)) =
            (self.plan.inputs.get(index), self.plan.joined_shape(index, tensors, rows, context)?)
        else {
            return Ok(None);
        };
        let runtime = self.session.runtime();
        let size = plan.element.datatype().byte_size();
        if size == 0 {
            let strings = self.plan.join_strings(index, tensors, &shape, runtime, &mut self.strings)?;
            return Ok(Some(Fed::Host(strings)));
        }
        let given = tensors.inputs(index).flatten();
        if plan.stays_on_host() {
            let bytes = contiguous(given.flat_map(|tensor| tensor.data.iter()), size, &context.pool)?;
            return Ok(Some(Fed::Host(BoundInput::over(runtime, bytes, &shape, plan.element)?)));
        }
        let policy = self.context.host_policy.name.as_bytes();
        let mut pieces = Vec::with_capacity(tensors.len());
        for tensor in given {
            match tensor.on_device() {
                Some(slice) => pieces.push(Piece::Device(slice.clone())),
                None => {
                    let data = tensor.data_for(policy).iter();
                    pieces.extend(data.filter(|piece| !piece.is_empty()).cloned().map(Piece::Host));
                }
            }
        }
        let len: usize = pieces.iter().map(Piece::len).sum();
        let expected = element_count(&shape).and_then(|count| usize::try_from(count).ok());
        if expected.and_then(|count| count.checked_mul(size)) != Some(len) {
            let (label, shape) = (&plan.label, format_shape(&shape));
            let text = format!("input '{label}' has {len} bytes, which do not fit its shape {shape}");
            return Err(Status::internal(text).into());
        }
        let input = match self.running.recording(recording).and_then(|one| one.inputs.get(index)) {
            Some(buffer) => flight.add_input_in(buffer, &pieces)?,
            None => flight.add_input(&pieces)?,
        };
        Ok(Some(Fed::Device(input, shape)))
    }

    /// The number of the recording for batches like this one, if it can be recorded: all of its tensors have to lie on
    /// the device, with fixed sizes, and no output may stay there.
    fn recording(
        &mut self,
        requests: &[Box<Request>],
        tensors: &Tensors<'_>,
        rows: u64,
    ) -> Result<Option<usize>, Failure> {
        if self.running.recordings.is_none() || self.declares_wrongly || !self.plan.batch_inputs.is_empty() {
            return Ok(None);
        }
        let context = &self.context.model;
        let mut key = RecordingKey { shapes: Vec::new(), input_lens: Vec::new(), output_lens: Vec::new() };
        for (index, plan) in self.plan.inputs.iter().enumerate() {
            let shape = self.plan.joined_shape(index, tensors, rows, context)?;
            let Some(shape) = shape.filter(|_| !plan.stays_on_host()) else { return Ok(None) };
            let given = tensors.inputs(index).flatten();
            key.input_lens.push(given.map(InputTensor::byte_size).sum());
            key.shapes.push(shape);
        }
        for (index, plan) in self.plan.outputs.iter().enumerate() {
            let Some((_, len)) = self.plan.fixed_output(index, rows, context)? else { return Ok(None) };
            let wanting = requests.iter().enumerate().filter(|(at, _)| tensors.is_requested(*at, index));
            for (_, request) in wanting {
                if matches!(request.destination_of(&plan.text, len)?, OutputDestination::OnDevice) {
                    return Ok(None);
                }
            }
            key.output_lens.push(len);
        }
        let Some(recordings) = &mut self.running.recordings else { return Ok(None) };
        Ok(recordings.find(key, self.lanes.gpu())?)
    }

    /// Binds inputs and outputs, and starts the run.
    fn run(
        &mut self,
        flight: &mut Flight,
        (requests, tensors): (&[Box<Request>], &Tensors<'_>),
        fed: &[(usize, Fed)],
        batch_inputs: &[BoundInput],
        (rows, number): (u64, Option<usize>),
    ) -> Result<SmallVec<[Computed; 4]>, Status> {
        let recording = self.running.recording(number);
        let (_alone, _shared) = match recording.is_some_and(|one| !one.is_made) {
            true => (Some(capture::exclusive()), None),
            false => (None, Some(capture::shared())),
        };
        let mut binding = Binding::new(&self.session, &self.memory)?;
        for (index, input) in fed {
            let Some(plan) = self.plan.inputs.get(*index) else { continue };
            match input {
                Fed::Host(bound) => binding.input(&plan.name, bound.value())?,
                Fed::Device(input, shape) => {
                    let range = DeviceRange { at: flight.input_address(*input), len: flight.input_len(*input) };
                    // SAFETY: the flight keeps its inputs until all of its work is complete, and they are not written.
                    unsafe { binding.device_input(&plan.name, range, shape, plan.element) }?;
                }
            }
        }
        let names = self.plan.batch_inputs.iter().flat_map(|input| &input.names);
        for (name, bound) in names.zip(batch_inputs) {
            binding.input(name, bound.value())?;
        }
        let mut bound: Vec<Option<Computed>> = Vec::with_capacity(self.plan.outputs.len());
        for (index, plan) in self.plan.computed() {
            let fixed = match self.declares_wrongly {
                true => None,
                false => self.plan.fixed_output(index, rows, &self.context.model)?,
            };
            let Some((shape, len)) = fixed else {
                binding.open_output(&plan.name, plan.stays_on_host())?;
                bound.push(None);
                continue;
            };
            let output =
                match (recording.and_then(|one| one.outputs.get(index)), self.target((requests, tensors), index, len)?)
                {
                    (Some(buffer), _) => flight.output_to(buffer),
                    (None, Some(target)) => flight.output_at(target),
                    (None, None) => flight.output(len)?,
                };
            let range = DeviceRange { at: flight.output_address(output), len };
            // SAFETY: the flight keeps its outputs until all of its work is complete; no other code uses them.
            unsafe { binding.device_output(&plan.name, range, &shape, plan.element) }?;
            bound.push(Some(Computed::Device { output, shape }));
        }
        let allocated = binding.run(recording.map_or(&self.running.options, |one| &one.options), &self.returns)?;
        if let (Some(recordings), Some(number)) = (&mut self.running.recordings, number) {
            recordings.note_made(number);
        }
        let outputs = bound.into_iter().zip(allocated);
        computed(&self.plan, flight, outputs, requests, (&mut self.content, &self.context.model.pool))
    }

    /// The client's memory on this device, if one request has all rows of an output and wants it there.
    fn target(
        &self,
        (requests, tensors): (&[Box<Request>], &Tensors<'_>),
        index: usize,
        len: usize,
    ) -> Result<Option<nereid_gpu::DeviceTarget>, Status> {
        let ([only], Some(plan)) = (requests, self.plan.outputs.get(index)) else { return Ok(None) };
        if !tensors.is_requested(0, index) {
            return Ok(None);
        }
        match only.destination_of(&plan.text, len)? {
            OutputDestination::At(target) if target.gpu().is_same(self.gpu()) && target.len() >= len => {
                Ok(Some(target.part(0, len)))
            }
            _ => Ok(None),
        }
    }

    /// Distributes the outputs to the requests, and enqueues the copies of those that leave the device.
    fn hand_out(
        &self,
        flight: &mut Flight,
        (requests, tensors): (&[Box<Request>], &Tensors<'_>),
        computed: SmallVec<[Computed; 4]>,
    ) -> Result<Vec<Vec<OutputPart>>, Status> {
        let mut parts: Vec<Vec<OutputPart>> =
            requests.iter().map(|request| Vec::with_capacity(request.outputs.len())).collect();
        for (index, (plan, computed)) in self.plan.outputs.iter().zip(computed).enumerate() {
            let (mut first_row, mut scattered) = (0, 0usize);
            let mut to_copy = Vec::new();
            for (number, request) in requests.iter().enumerate() {
                let rows = self.plan.batching.then_some((first_row, request.batch_size));
                first_row += self.plan.rows(request);
                let is_wanted = tensors.is_requested(number, index);
                let has_state = plan.is_state && request.states.is_some();
                let scatter = plan.scatter.as_ref().map(|scatter| {
                    let source = tensors.input(number, scatter.source).map(model_shape).unwrap_or_default();
                    scatter.shape(plan, source)
                });
                let scatter = scatter.transpose()?;
                let from = scattered;
                if let Some(shape) = &scatter {
                    let count = element_count(shape).and_then(|count| usize::try_from(count).ok()).unwrap_or(0);
                    scattered = scattered.saturating_add(count);
                }
                if !is_wanted && !has_state {
                    continue;
                }
                let output = OutputTensor {
                    name: plan.text.clone(),
                    datatype: plan.element.datatype(),
                    shape: Shape::new(),
                    data: SmallVec::new(),
                    index,
                    on_device: None,
                };
                match &computed {
                    Computed::Host(result) => {
                        let (shape, data) = match scatter {
                            Some(shape) => result.scatter(plan, shape, &mut { from })?,
                            None => result.cut(plan, rows)?,
                        };
                        let output = OutputTensor { data: smallvec::smallvec![data], ..output };
                        let described = PartDescription { output, shape, is_wanted, has_state };
                        if let Some(parts) = parts.get_mut(number) {
                            parts.push(OutputPart { described, source: None });
                        }
                    }
                    Computed::Device { shape: whole, .. } => {
                        let (shape, elements) = match scatter {
                            Some(shape) => {
                                let all = part(whole, None).map_or(0, |(_, all)| all.end);
                                let end = Some(scattered).filter(|end| *end <= all);
                                let end = end.ok_or_else(|| too_few_elements(plan, whole))?;
                                (shape, from..end)
                            }
                            None => part(whole, rows).ok_or_else(|| too_few_rows(plan, whole))?,
                        };
                        let size = plan.element.datatype().byte_size();
                        let bytes = elements.start.saturating_mul(size)..elements.end.saturating_mul(size);
                        let destination = match is_wanted && !has_state {
                            true => request.destination_of(&plan.text, bytes.len())?,
                            // A state for the next request is kept on the host.
                            false => OutputDestination::OnHost,
                        };
                        let described = PartDescription { output, shape, is_wanted, has_state };
                        to_copy.push(PartToCopy { number, bytes, destination, described });
                    }
                }
            }
            if let Computed::Device { output, .. } = computed {
                copy_out(flight, output, to_copy, |number, described, source| {
                    if let Some(parts) = parts.get_mut(number) {
                        parts.push(OutputPart { described, source: Some(source) });
                    }
                })?;
            }
        }
        Ok(parts)
    }

    /// Records an error of the device that the library reports.
    fn note(&self, status: &Status) {
        if let Some(error) = device_error(&status.message) {
            self.gpu().record_failure(&error);
        }
    }
}

/// An error of CUDA in a text of the library: `CUDA failure 700: an illegal memory access was encountered ; …`.
fn device_error(text: &str) -> Option<DriverError> {
    let (_, behind) = text.split_once("CUDA failure ")?;
    let digits = behind.split(|letter: char| !letter.is_ascii_digit()).next()?;
    let code = digits.parse().ok()?;
    let text = behind.trim_start_matches(|letter: char| letter.is_ascii_digit() || letter == ':' || letter == ' ');
    let text = text.split(';').next().unwrap_or_default().trim().to_owned();
    Some(DriverError { call: "OrtApi::RunWithBinding", code, name: "CUDA failure".to_owned(), text })
}

impl Pipelined for DeviceInstance {
    type Cargo = Cargo;

    fn context(&self) -> &InstanceContext {
        &self.context
    }

    fn under_way(&mut self) -> &mut VecDeque<Batch<Cargo>> {
        &mut self.under_way
    }

    fn launch(&mut self, payload: &mut Payload) {
        let start_ns = now_ns();
        let requests = payload.take();
        let rows = requests.iter().map(|request| self.plan.rows(request)).fold(0, u64::saturating_add);
        if rows != 1 && rows > self.plan.max_batch_size {
            let status = too_large(&self.context.model, rows, self.plan.max_batch_size);
            requests.into_iter().for_each(|request| self.context.fail(request, status.clone()));
            return;
        }
        let mut fitting: Vec<Box<Request>> = Vec::with_capacity(requests.len());
        for mut request in requests {
            match self.plan.check(&request).and_then(|()| self.bring_home(&mut request)) {
                Ok(()) => fitting.push(request),
                Err(status) => self.context.fail(request, status),
            }
        }
        // Each round but the last removes one request.
        while !fitting.is_empty() {
            let rows = fitting.iter().map(|request| self.plan.rows(request)).sum();
            match self.fly(&fitting, rows) {
                Ok(Flown { flight, parts, read, compute_start_ns }) => {
                    let outputs = fitting.into_iter().zip(parts);
                    let outputs = outputs.map(|(request, parts)| DeviceOutputs { request, parts }).collect();
                    let cargo = Cargo { outputs, _read: read };
                    return self.under_way.push_back(Batch::new(flight, cargo, rows, (start_ns, compute_start_ns)));
                }
                Err(Failure::One(at, status)) if at < fitting.len() => self.context.fail(fitting.remove(at), status),
                Err(Failure::One(_, status) | Failure::All(status)) => {
                    self.note(&status);
                    fitting.drain(..).for_each(|request| self.context.fail(request, status.clone()));
                }
            }
        }
    }

    fn answer(&self, mut batch: Batch<Cargo>) {
        let execution = batch.execution();
        let results = BatchResults::of(&mut batch.flight, &batch.cargo.outputs);
        self.context.report_batch(batch.rows, &execution);
        for outputs in batch.cargo.outputs {
            match results.complete(outputs, &self.plan, &self.context.model.pool) {
                Ok((request, response)) => self.context.succeed(request, response, &execution),
                Err((request, status)) => self.context.fail(request, status),
            }
        }
    }

    fn requests(cargo: Cargo) -> impl Iterator<Item = Box<Request>> {
        cargo.outputs.into_iter().map(|outputs| outputs.request)
    }
}

impl Instance for DeviceInstance {
    fn takes_device_tensors(&self) -> bool {
        true
    }

    fn answers_last(&self) -> bool {
        true
    }

    fn execute(&mut self, payload: &mut Payload) -> Result<(), Status> {
        self.gpu().enter()?;
        self.returns.drain();
        // The states of a request must be stored before it is answered, because the next request of its sequence reads
        // them.
        let has_states = self.plan.outputs.iter().any(|output| output.is_state);
        self.execute_up_to(if has_states { 1 } else { UNDER_WAY_MAX }, payload);
        self.strings.clear();
        self.content.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
