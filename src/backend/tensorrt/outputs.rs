//! The outputs of a batch on a device: the part for each request, copied to the host or left where it is.

use std::ops::Range;

use nereid_gpu::flight::{Fetched, Output};
use nereid_gpu::{DeviceSlice, DeviceTarget, DriverError, Flight};
use nereid_memory::{BlockMut, Pool, Slice};
use nereid_request::shared::OutputDestination;
use nereid_request::{OutputTensor, Request, Response, Shape, Status};

use super::plan::{OutputPlan, Plan};

/// One request of a batch, with its response except for the bytes.
pub struct Pending {
    pub request: Box<Request>,
    pub parts: Vec<Part>,
}

/// One request's part of one output.
pub struct Part {
    /// Position in the plan.
    output: usize,
    /// The shape that the engine computed.
    shape: Shape,
    source: Source,
    is_wanted: bool,
    has_state: bool,
}

/// The source of a part's bytes when the batch has completed.
enum Source {
    /// Part of the bytes that were fetched to the host.
    Fetched(Fetched, Range<usize>),
    /// Part of an output on the device.
    Device(Output, Range<usize>),
    /// The client's memory, which has the bytes already.
    Target(DeviceTarget),
    /// A tensor that the library wrote on the host.
    Host(usize),
}

/// A part before its copy is enqueued.
pub struct PartToCopy {
    /// The index of the request in its batch.
    pub number: usize,
    pub shape: Shape,
    pub bytes: Range<usize>,
    pub destination: OutputDestination,
    pub is_wanted: bool,
    pub has_state: bool,
}

/// Adds a part that the library writes on the host: tensor number `block`.
pub fn on_host(output: usize, shape: Shape, block: usize) -> Part {
    Part { output, shape, source: Source::Host(block), is_wanted: true, has_state: false }
}

/// Enqueues the copies of an output for all requests: adjacent parts for the host are one copy.
pub fn send_out(
    flight: &mut Flight,
    (position, output): (usize, Output),
    to_copy: Vec<PartToCopy>,
    parts: &mut [Vec<Part>],
) -> Result<(), DriverError> {
    let is_host = |part: &PartToCopy| matches!(part.destination, OutputDestination::OnHost);
    let joins =
        |one: &PartToCopy, next: &PartToCopy| is_host(one) && is_host(next) && one.bytes.end == next.bytes.start;
    let mut to_copy = to_copy.into_iter().peekable();
    while let Some(first) = to_copy.next() {
        let begin = first.bytes.start;
        let mut run = vec![first];
        while let Some(last) = run.last()
            && to_copy.peek().is_some_and(|next| joins(last, next))
        {
            run.extend(to_copy.next());
        }
        let end = run.last().map_or(begin, |last| last.bytes.end);
        let fetched = if run.iter().all(is_host) { Some(flight.fetch(output, begin, end - begin)?) } else { None };
        for PartToCopy { number, shape, bytes, destination, is_wanted, has_state } in run {
            let source = match (fetched, destination) {
                (Some(fetched), _) => Source::Fetched(fetched, bytes.start - begin..bytes.end - begin),
                (None, OutputDestination::At(target)) => {
                    let target = target.part(0, bytes.len());
                    if flight.output_address(output) != target.address() {
                        flight.deliver(output, bytes.start, bytes.len(), &target)?;
                    }
                    Source::Target(target)
                }
                (None, _) => Source::Device(output, bytes),
            };
            if let Some(parts) = parts.get_mut(number) {
                parts.push(Part { output: position, shape, source, is_wanted, has_state });
            }
        }
    }
    Ok(())
}

/// The results of a batch.
pub struct BatchResults {
    fetched: Vec<(Fetched, Slice)>,
    outputs: Vec<Option<DeviceSlice>>,
    blocks: Vec<Slice>,
}

impl BatchResults {
    pub fn of(flight: &mut Flight, batch: &[Pending], blocks: Vec<BlockMut>) -> BatchResults {
        let mut fetched: Vec<(Fetched, Slice)> = Vec::new();
        for part in batch.iter().flat_map(|pending| &pending.parts) {
            if let Source::Fetched(number, _) = &part.source
                && fetched.iter().all(|(known, _)| known != number)
                && let Some(slice) = flight.take_fetched(*number)
            {
                fetched.push((*number, slice));
            }
        }
        let blocks = blocks.into_iter().map(BlockMut::freeze).collect();
        BatchResults { fetched, outputs: flight.take_outputs(), blocks }
    }

    /// Stores the states for the sequence's next request, and returns the response with its bytes.
    pub fn complete(
        &self,
        pending: Pending,
        plan: &Plan,
        pool: &Pool,
    ) -> Result<(Box<Request>, Response), (Box<Request>, Status)> {
        let Pending { request, parts } = pending;
        let mut response = Response::new(request.id.clone());
        for part in parts {
            let is_wanted = part.is_wanted;
            let Some(output) = plan.outputs.get(part.output) else { continue };
            match self.fill(part, output, &request, plan.batching, pool) {
                Ok(tensor) if is_wanted => response.outputs.push(tensor),
                Ok(_) => {}
                Err(status) => return Err((request, status)),
            }
        }
        // In the order of the request's outputs.
        let place = |index| request.outputs.iter().position(|output| output.index == index);
        response.outputs.sort_by_key(|output| place(output.index));
        Ok((request, response))
    }

    fn fill(
        &self,
        part: Part,
        output: &OutputPlan,
        request: &Request,
        batching: bool,
        pool: &Pool,
    ) -> Result<OutputTensor, Status> {
        let Part { shape, source, has_state, .. } = part;
        let lost = || Status::internal(format!("output '{}' did not come back from its device", output.name));
        let mut tensor = OutputTensor {
            name: output.name.clone(),
            datatype: output.datatype,
            shape: output.shape.for_client(&shape, batching),
            data: smallvec::SmallVec::new(),
            index: output.index,
            on_device: None,
        };
        match source {
            Source::Fetched(number, range) => {
                let (_, slice) = self.fetched.iter().find(|(known, _)| *known == number).ok_or_else(lost)?;
                tensor.data = smallvec::smallvec![slice.window(range)];
            }
            Source::Host(number) => {
                tensor.data = smallvec::smallvec![self.blocks.get(number).ok_or_else(lost)?.clone()]
            }
            Source::Device(number, range) => {
                let slice = self.outputs.get(number.index()).and_then(Option::as_ref).ok_or_else(lost)?;
                tensor.on_device = Some(Box::new(slice.window(range)));
            }
            Source::Target(target) => tensor.on_device = Some(Box::new(target.freeze())),
        }
        if let Some(states) = request.states.as_ref().filter(|_| has_state)
            && let Some(data) = tensor.data.first()
        {
            let mut kept = pool.get(data.len())?;
            kept.copy_from_slice(data);
            states.update(&output.name.to_str_lossy(), output.datatype, shape, kept.freeze())?;
        }
        Ok(tensor)
    }
}
