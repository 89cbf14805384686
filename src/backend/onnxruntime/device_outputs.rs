//! The outputs of a batch on a device: the part for each request, copied to the host or left in place.

use std::ops::Range;

use smallvec::SmallVec;

use super::binding::Produced;
use super::composite::{Converted, convert};
use super::io_binding::AllocatedOutput;
use super::plan::{OutputSource, Plan};
use super::result::ResultTensor;
use super::strings::Content;
use nereid_gpu::flight::{Fetched, Output};
use nereid_gpu::{DeviceSlice, DeviceTarget, DriverError, Flight};
use nereid_memory::{Pool, Slice};
use nereid_request::shared::OutputDestination;
use nereid_request::{OutputTensor, Request, Response, Shape, Status};

/// One request of a batch, with its response except for the bytes.
pub struct DeviceOutputs {
    pub request: Box<Request>,
    pub parts: Vec<OutputPart>,
}

/// One request's part of one output.
pub struct OutputPart {
    output: OutputTensor,
    /// The shape in the model.
    shape: Shape,
    source: Source,
    is_wanted: bool,
    has_state: bool,
}

/// The source of a part's bytes when the batch has completed.
enum Source {
    /// The output has its bytes already.
    Here,
    /// Part of the bytes that were fetched to the host.
    Host(Fetched, Range<usize>),
    /// Part of an output on the device.
    Device(Output, Range<usize>),
    /// The client's memory, which has the bytes already.
    Target(DeviceTarget),
}

impl OutputPart {
    /// A part that was never on the device.
    pub fn from_host(output: OutputTensor, shape: Shape, is_wanted: bool, has_state: bool) -> OutputPart {
        OutputPart { output, shape, source: Source::Here, is_wanted, has_state }
    }
}

/// A part of an output before its copy is enqueued.
pub struct PartToCopy {
    /// The index of the request in its batch.
    pub number: usize,
    pub output: OutputTensor,
    pub shape: Shape,
    pub bytes: Range<usize>,
    pub destination: OutputDestination,
    /// Whether the client requested the output.
    pub is_wanted: bool,
    /// Whether it is a state for the sequence's next request.
    pub has_state: bool,
}

/// An output of a run.
pub enum Computed {
    Device {
        output: Output,
        shape: Shape,
    },
    /// Strings, or a value that is no tensor.
    Host(ResultTensor),
}

/// The outputs of a run in the order of the configuration: those that were bound, and those that the library
/// allocated.
pub fn computed(
    plan: &Plan,
    flight: &mut Flight,
    outputs: impl Iterator<Item = (Option<Computed>, Option<AllocatedOutput>)>,
    requests: &[Box<Request>],
    (content, pool): (&mut Content, &Pool),
) -> Result<SmallVec<[Computed; 4]>, Status> {
    let (mut all, mut keys) = (SmallVec::new(), SmallVec::new());
    for ((index, output), (bound, allocated)) in plan.computed().zip(outputs) {
        all.push(match (bound, allocated) {
            (Some(bound), _) => bound,
            (None, Some(AllocatedOutput::Device { shape, slice })) => {
                Computed::Device { output: flight.output_made(slice), shape }
            }
            (None, Some(AllocatedOutput::Host(value))) => match output.source {
                OutputSource::Converted(kind) => {
                    let converted = match plan.is_needed(index, requests) {
                        true => convert(&value, kind, output, content, pool)?,
                        false => Converted::absent(),
                    };
                    keys.extend(converted.keys.map(|keys| (index, Computed::Host(keys))));
                    Computed::Host(converted.values)
                }
                _ => {
                    let produced = Produced::Strings { shape: value.tensor_type()?.1, value };
                    Computed::Host(ResultTensor::new(produced, output, content, pool)?)
                }
            },
            (None, None) => return Err(output.not_computed()),
        });
    }
    plan.insert_keys(&mut all, keys)?;
    Ok(all)
}

/// Enqueues the copies of an output for all requests: adjacent parts for the host are one copy.
pub fn send_out(
    flight: &mut Flight,
    output: Output,
    to_copy: Vec<PartToCopy>,
    parts: &mut [Vec<OutputPart>],
) -> Result<(), DriverError> {
    let joins = |one: &PartToCopy, next: &PartToCopy| {
        matches!((&one.destination, &next.destination), (OutputDestination::OnHost, OutputDestination::OnHost))
            && one.bytes.end == next.bytes.start
    };
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
        let is_host = run.iter().all(|part| matches!(part.destination, OutputDestination::OnHost));
        let fetched = if is_host { Some(flight.fetch(output, begin, end - begin)?) } else { None };
        for PartToCopy { number, output: tensor, shape, bytes, destination, is_wanted, has_state } in run {
            let source = match (fetched, destination) {
                (Some(fetched), _) => Source::Host(fetched, bytes.start - begin..bytes.end - begin),
                (None, OutputDestination::At(target)) => {
                    let target = target.part(0, bytes.len());
                    if flight.output_address(output) != target.address() {
                        flight.deliver(output, bytes.start, bytes.len(), &target)?;
                    }
                    Source::Target(target)
                }
                (None, _) => Source::Device(output, bytes),
            };
            let part = OutputPart { output: tensor, shape, source, is_wanted, has_state };
            if let Some(parts) = parts.get_mut(number) {
                parts.push(part);
            }
        }
    }
    Ok(())
}

/// The results of a batch.
pub struct BatchResults {
    fetched: Vec<(Fetched, Slice)>,
    outputs: Vec<Option<DeviceSlice>>,
}

impl BatchResults {
    pub fn of(flight: &mut Flight, batch: &[DeviceOutputs]) -> BatchResults {
        let mut fetched: Vec<(Fetched, Slice)> = Vec::new();
        for part in batch.iter().flat_map(|outputs| &outputs.parts) {
            if let Source::Host(number, _) = &part.source
                && fetched.iter().all(|(known, _)| known != number)
                && let Some(slice) = flight.take_fetched(*number)
            {
                fetched.push((*number, slice));
            }
        }
        BatchResults { fetched, outputs: flight.take_outputs() }
    }

    /// Stores the states for the sequence's next request, and returns the response with its bytes.
    pub fn complete(
        &self,
        outputs: DeviceOutputs,
        plan: &Plan,
        pool: &Pool,
    ) -> Result<(Box<Request>, Response), (Box<Request>, Status)> {
        let DeviceOutputs { request, parts } = outputs;
        let mut response = Response::new(request.id.clone());
        for part in parts {
            let is_wanted = part.is_wanted;
            match self.fill(part, &request, plan, pool) {
                Ok(output) if is_wanted => response.outputs.push(output),
                Ok(_) => {}
                Err(status) => return Err((request, status)),
            }
        }
        // In the order of the request's outputs.
        let place = |index| request.outputs.iter().position(|output| output.index == index);
        response.outputs.sort_by_key(|output| place(output.index));
        Ok((request, response))
    }

    fn fill(&self, part: OutputPart, request: &Request, plan: &Plan, pool: &Pool) -> Result<OutputTensor, Status> {
        let OutputPart { mut output, shape, source, has_state, .. } = part;
        let name = output.name.clone();
        let lost = || Status::internal(format!("output '{name}' did not come back from its device"));
        match source {
            Source::Here => {}
            Source::Host(number, range) => {
                let slice = self.fetched.iter().find(|(known, _)| *known == number).ok_or_else(lost)?;
                output.data = smallvec::smallvec![slice.1.window(range)];
            }
            Source::Device(number, range) => {
                let slice = self.outputs.get(number.index()).and_then(Option::as_ref).ok_or_else(lost)?;
                output.on_device = Some(Box::new(slice.window(range)));
            }
            Source::Target(target) => output.on_device = Some(Box::new(target.freeze())),
        }
        let Some(planned) = plan.outputs.get(output.index) else { return Ok(output) };
        if let Some(states) = request.states.as_ref().filter(|_| has_state)
            && let Some(data) = output.data.first()
        {
            let kept = super::instance::copy(data, pool)?;
            states.update(&planned.text.to_str_lossy(), planned.element.datatype(), shape.clone(), kept)?;
        }
        output.shape = planned.client_shape(&shape, plan.batching);
        Ok(output)
    }
}
