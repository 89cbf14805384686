//! One engine on a GPU and the batches that it runs there, one behind the other (contract/frameworks.md section 2,
//! "Execution").
//!
//! A batch is a flight: its inputs are copied in, or used where they lie, the library enqueues its work in the stream
//! of the instance, outputs are copied out or stay. While one batch computes, the next one is copied in and the one
//! before it is copied out. Shape tensors stay on the host, where the library reads and writes them.

use std::collections::VecDeque;
use std::sync::Arc;

use nereid_backend::device_outputs::{PartToCopy, copy_out};
use nereid_backend::pipeline::{Batch, Pipelined, UNDER_WAY_MAX};
use nereid_backend::rows::{Failure, Tensors, byte_size};
use nereid_backend::{Instance, InstanceContext};
use nereid_clock::now_ns;
use nereid_gpu::flight::{Input, Output};
use nereid_gpu::{Flight, Lanes, Piece};
use nereid_memory::{BlockMut, Slice};
use nereid_request::shared::OutputDestination;
use nereid_request::{DataType, Request, Shape, Status};
use nereid_scheduler::Payload;

use super::contexts::{Contexts, Fed, Ran};
use super::outputs::{BatchResults, Part, PartDescription, Pending, Source};
use super::plan::Plan;

pub struct TensorRtInstance {
    /// First, so that it is dropped first: the batches under way use all other fields.
    under_way: VecDeque<Batch<Cargo>>,
    contexts: Contexts,
    plan: Plan,
    lanes: Arc<Lanes>,
    context: InstanceContext,
}

/// The requests of a batch.
pub struct Cargo {
    pending: Vec<Pending>,
    /// Shape tensors that the library wrote.
    blocks: Vec<BlockMut>,
    /// Shape tensors that the library may still read.
    _read: Vec<Slice>,
}

/// A launched batch, without its requests.
struct Flown {
    flight: Flight,
    parts: Vec<Vec<Part>>,
    blocks: Vec<BlockMut>,
    read: Vec<Slice>,
    compute_start_ns: u64,
}

/// The inputs of a batch before they are copied.
pub struct Joined {
    /// Whole shapes, in the plan's order.
    pub shapes: Vec<Shape>,
    /// Values of the shape tensors; empty for all other inputs.
    pub values: Vec<Vec<i64>>,
    /// The bytes of the shape tensors.
    pub bytes: Vec<Option<Slice>>,
}

impl TensorRtInstance {
    pub fn new(context: InstanceContext, lanes: Arc<Lanes>, plan: Plan, contexts: Contexts) -> TensorRtInstance {
        TensorRtInstance { under_way: VecDeque::new(), contexts, plan, lanes, context }
    }

    /// Copies shape tensors that lie on a device to the host.
    fn bring_home(&self, request: &mut Request) -> Result<(), Status> {
        for planned in self.plan.inputs.iter().filter(|input| self.contexts.is_shape_tensor(input)) {
            let Some(input) = request.inputs.iter_mut().find(|input| input.index == planned.index) else { continue };
            let Some(slice) = input.on_device().cloned() else { continue };
            let mut block = self.context.model.pool.get(slice.len())?;
            slice.gpu().fetch(&slice, &mut block)?;
            input.data = smallvec::smallvec![block.freeze()];
            input.placement.iter_mut().for_each(|placement| placement.on_device = None);
        }
        Ok(())
    }

    /// The shapes of all inputs of the batch, and the values of the shape tensors.
    fn join(&self, requests: &[Box<Request>], tensors: &Tensors<'_>) -> Result<Joined, Failure> {
        let count = self.plan.inputs.len();
        let mut joined = Joined {
            shapes: Vec::with_capacity(count),
            values: Vec::with_capacity(count),
            bytes: Vec::with_capacity(count),
        };
        for input in &self.plan.inputs {
            let (shape, _) =
                self.plan.joined(input, requests, tensors).map_err(|(at, status)| Failure::One(at, status))?;
            joined.shapes.push(shape);
            let Some(tensor) = tensors.input(0, input.index).filter(|_| self.contexts.is_shape_tensor(input)) else {
                joined.values.push(Vec::new());
                joined.bytes.push(None);
                continue;
            };
            let mut block = self.context.model.pool.get(tensor.byte_size())?;
            let mut rest = &mut block[..];
            for piece in &tensor.data {
                let (head, tail) = rest.split_at_mut(piece.len().min(rest.len()));
                piece.copy_to(0, head);
                rest = tail;
            }
            joined.values.push(integers(&block, input.datatype));
            joined.bytes.push(Some(block.freeze()));
        }
        Ok(joined)
    }

    /// Enqueues the copies of inputs, the execution and the copies of outputs.
    fn fly(&mut self, requests: &[Box<Request>]) -> Result<Flown, Failure> {
        let tensors = &Tensors::new(requests);
        let joined = self.join(requests, tensors)?;
        let chosen = self.contexts.choose(&self.plan, &joined)?;
        let recorded = match self.can_use_recorded(requests) {
            true => self.contexts.recorded(chosen, &joined, self.plan.batching),
            false => None,
        };
        let mut flight = Flight::new(&self.lanes)?;
        let mut fed: Vec<Fed> = Vec::with_capacity(self.plan.inputs.len());
        for (at, input) in self.plan.inputs.iter().enumerate() {
            if let Some(bytes) = joined.bytes.get(at).and_then(Option::as_ref) {
                fed.push(Fed::Host(bytes.clone()));
                continue;
            }
            let pieces = self.pieces(input.index, tensors);
            let buffer = recorded.as_ref().and_then(|recorded| recorded.inputs.get(at));
            fed.push(Fed::Device(match buffer {
                Some(buffer) => flight.add_input_in(buffer, &pieces)?,
                None => flight.add_input(&pieces)?,
            }));
        }
        let compute_start_ns = now_ns();
        let (ran, blocks) = match recorded {
            Some(recorded) => {
                flight.run(&recorded.graph)?;
                self.contexts.log_graph(chosen);
                let outputs = recorded
                    .outputs
                    .iter()
                    .map(|(buffer, shape)| Ran::Device { output: flight.output_to(buffer), shape: shape.clone() });
                (outputs.collect(), Vec::new())
            }
            None => self.enqueue(&mut flight, chosen, requests, &joined, &fed)?,
        };
        let parts = self.hand_out(&mut flight, (requests, tensors), ran)?;
        flight.seal()?;
        let read = joined.bytes.into_iter().flatten().collect();
        Ok(Flown { flight, parts, blocks, read, compute_start_ns })
    }

    /// An output that stays on the device would keep the buffers of a recording in use.
    fn can_use_recorded(&self, requests: &[Box<Request>]) -> bool {
        let stays = |request: &Request| {
            request.outputs.iter().any(|output| {
                matches!(request.destination_of(&output.name, 0), Ok(OutputDestination::OnDevice) | Err(_))
            })
        };
        self.contexts.has_recorded() && !requests.iter().any(|request| stays(request))
    }

    /// The pieces of an input of all requests.
    fn pieces(&self, index: usize, tensors: &Tensors<'_>) -> Vec<Piece> {
        let policy = self.context.host_policy.name.as_bytes();
        let mut pieces = Vec::with_capacity(tensors.len());
        for tensor in tensors.inputs(index).flatten() {
            match tensor.on_device() {
                Some(slice) => pieces.push(Piece::Device(slice.clone())),
                None => {
                    let data = tensor.data_for(policy).iter();
                    pieces.extend(data.filter(|piece| !piece.is_empty()).cloned().map(Piece::Host));
                }
            }
        }
        pieces
    }

    /// Sets shapes and addresses, and enqueues the execution.
    fn enqueue(
        &mut self,
        flight: &mut Flight,
        chosen: usize,
        requests: &[Box<Request>],
        joined: &Joined,
        fed: &[Fed],
    ) -> Result<(Vec<Ran>, Vec<BlockMut>), Failure> {
        self.contexts.set_inputs(chosen, &self.plan, joined, fed, flight)?;
        let mut memory = Vec::with_capacity(self.plan.outputs.len());
        let mut blocks = Vec::new();
        for output in &self.plan.outputs {
            let shape = self.contexts.output_shape(chosen, output)?;
            let known = shape.iter().all(|dim| *dim >= 0);
            let len = byte_size(&shape, output.datatype);
            memory.push(match (self.contexts.is_on_host(output), known, len) {
                (true, _, Some(len)) => {
                    let block = self.context.model.pool.get(len)?;
                    blocks.push(block);
                    Ran::Host { block: blocks.len() - 1, shape }
                }
                (false, true, Some(len)) => {
                    let output = match self.target(requests, output.index, &output.name, len)? {
                        Some(target) => flight.output_at(target),
                        None => flight.output(len)?,
                    };
                    Ran::Device { output, shape }
                }
                (false, false, _) => Ran::Allocated,
                _ => {
                    let text = format!("output '{}' of model '{}' is too large", output.name, self.plan.model);
                    return Err(Status::internal(text).into());
                }
            });
        }
        self.contexts.set_outputs(chosen, &self.plan, &memory, &mut blocks, flight)?;
        self.contexts.enqueue(chosen, flight)?;
        let made = self.contexts.take_allocated(chosen, &self.plan, memory, flight)?;
        Ok((made, blocks))
    }

    /// The client's memory on this device, if one request has all rows of an output and wants it there.
    fn target(
        &self,
        requests: &[Box<Request>],
        index: usize,
        name: &nereid_request::Text,
        len: usize,
    ) -> Result<Option<nereid_gpu::DeviceTarget>, Status> {
        let [only] = requests else { return Ok(None) };
        if !only.outputs.iter().any(|output| output.index == index) {
            return Ok(None);
        }
        match only.destination_of(name, len)? {
            OutputDestination::At(target) if target.gpu().is_same(self.lanes.gpu()) && target.len() >= len => {
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
        ran: Vec<Ran>,
    ) -> Result<Vec<Vec<Part>>, Status> {
        let mut parts: Vec<Vec<Part>> =
            requests.iter().map(|request| Vec::with_capacity(request.outputs.len())).collect();
        for (position, (output, ran)) in self.plan.outputs.iter().zip(ran).enumerate() {
            let (made, whole): (Option<Output>, Shape) = match ran {
                Ran::Device { output, shape } => (Some(output), shape),
                Ran::Host { block, shape } => {
                    for number in 0..requests.len() {
                        if tensors.is_requested(number, output.index)
                            && let Some(parts) = parts.get_mut(number)
                        {
                            let shape = shape.clone();
                            let described =
                                PartDescription { output: position, shape, is_wanted: true, has_state: false };
                            parts.push(Part { described, source: Source::Host(block) });
                        }
                    }
                    (None, shape)
                }
                Ran::Allocated => continue,
            };
            let Some(made) = made else { continue };
            let mut first_row = 0;
            let mut to_copy = Vec::new();
            for (number, request) in requests.iter().enumerate() {
                let from = first_row;
                first_row += self.plan.rows(request);
                let is_wanted = tensors.is_requested(number, output.index);
                let has_state = output.is_state && request.states.is_some();
                if !is_wanted && !has_state {
                    continue;
                }
                let part = self.plan.part(&whole, from, self.plan.rows(request));
                let size = output.datatype.byte_size();
                let found = part.map(|(shape, range)| (shape, range.start * size..range.end * size));
                let (shape, bytes) =
                    found.filter(|(_, bytes)| bytes.end <= flight.output_len(made)).ok_or_else(|| {
                        Status::internal(format!(
                            "output '{}' of model '{}' has the shape {}, which lacks rows of the batch",
                            output.name,
                            self.plan.model,
                            nereid_request::format_shape(&whole)
                        ))
                    })?;
                let destination = match is_wanted && !has_state {
                    true => request.destination_of(&output.name, bytes.len())?,
                    // A state for the next request is kept on the host.
                    false => OutputDestination::OnHost,
                };
                let described = PartDescription { output: position, shape, is_wanted, has_state };
                to_copy.push(PartToCopy { number, bytes, destination, described });
            }
            copy_out(flight, made, to_copy, |number, described, source| {
                if let Some(parts) = parts.get_mut(number) {
                    parts.push(Part { described, source: Source::Device(source) });
                }
            })?;
        }
        Ok(parts)
    }
}

/// The address of an input of a flight.
pub fn address(flight: &Flight, input: Input) -> u64 {
    flight.input_address(input).0
}

/// The values of a shape tensor.
fn integers(bytes: &[u8], datatype: DataType) -> Vec<i64> {
    match datatype {
        DataType::Int64 => bytes.as_chunks::<8>().0.iter().map(|eight| i64::from_le_bytes(*eight)).collect(),
        _ => bytes.as_chunks::<4>().0.iter().map(|four| i64::from(i32::from_le_bytes(*four))).collect(),
    }
}

impl Pipelined for TensorRtInstance {
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
        let most = self.plan.max_batch_size;
        if rows > most.max(1) {
            let text = format!("batch size {rows} for '{}', max allowed is {most}", self.context.name);
            let status = Status::internal(text);
            requests.into_iter().for_each(|request| self.context.fail(request, status.clone()));
            return;
        }
        let mut fitting: Vec<Box<Request>> = Vec::with_capacity(requests.len());
        for mut request in requests {
            match self.bring_home(&mut request) {
                Ok(()) => fitting.push(request),
                Err(status) => self.context.fail(request, status),
            }
        }
        // Each round but the last removes one request.
        while !fitting.is_empty() {
            let rows = fitting.iter().map(|request| self.plan.rows(request)).sum();
            match self.fly(&fitting) {
                Ok(Flown { flight, parts, blocks, read, compute_start_ns }) => {
                    let pending = fitting.into_iter().zip(parts);
                    let pending = pending.map(|(request, parts)| Pending { request, parts }).collect();
                    let cargo = Cargo { pending, blocks, _read: read };
                    return self.under_way.push_back(Batch::new(flight, cargo, rows, (start_ns, compute_start_ns)));
                }
                Err(Failure::One(at, status)) if at < fitting.len() => self.context.fail(fitting.remove(at), status),
                Err(Failure::One(_, status) | Failure::All(status)) => {
                    fitting.drain(..).for_each(|request| self.context.fail(request, status.clone()));
                }
            }
        }
    }

    fn answer(&self, mut batch: Batch<Cargo>) {
        let execution = batch.execution();
        let Cargo { pending, blocks, .. } = batch.cargo;
        let results = BatchResults::of(&mut batch.flight, &pending, blocks);
        self.context.report_batch(batch.rows, &execution);
        for pending in pending {
            match results.complete(pending, &self.plan, &self.context.model.pool) {
                Ok((request, response)) => self.context.succeed(request, response, &execution),
                Err((request, status)) => self.context.fail(request, status),
            }
        }
    }

    fn requests(cargo: Cargo) -> impl Iterator<Item = Box<Request>> {
        cargo.pending.into_iter().map(|pending| pending.request)
    }
}

impl Instance for TensorRtInstance {
    fn takes_device_tensors(&self) -> bool {
        true
    }

    fn answers_last(&self) -> bool {
        true
    }

    fn execute(&mut self, payload: &mut Payload) -> Result<(), Status> {
        self.lanes.gpu().enter()?;
        // The states of a request must be stored before it is answered, because the next request of its sequence reads
        // them.
        self.execute_up_to(if self.plan.has_states() { 1 } else { UNDER_WAY_MAX }, payload);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
