//! The outputs of a batch on a device: each request's part of them is copied to the host, or to the client's memory on
//! the device, or is left where it is.

use std::ops::Range;

use nereid_gpu::flight::{Fetched, Output};
use nereid_gpu::{DeviceSlice, DeviceTarget, DriverError, Flight};
use nereid_memory::Slice;
use nereid_request::OutputTensor;
use nereid_request::shared::OutputDestination;

/// One request's part of an output, before its copy is enqueued.
pub struct PartToCopy<D> {
    /// The index of the request in its batch.
    pub number: usize,
    /// Its bytes in the output.
    pub bytes: Range<usize>,
    pub destination: OutputDestination,
    /// What the backend knows of it.
    pub described: D,
}

/// Where a part's bytes are when the batch has completed.
pub enum PartSource {
    /// In bytes that were fetched to the host.
    Fetched(Fetched, Range<usize>),
    /// In an output on the device.
    Device(Output, Range<usize>),
    /// In the client's memory.
    Target(DeviceTarget),
}

/// Enqueues the copies of an output for all requests: adjacent parts for the host are one copy. `enqueued` is called
/// with each part in its order: the index of the request, its description, and its source.
pub fn copy_out<D>(
    flight: &mut Flight,
    output: Output,
    to_copy: Vec<PartToCopy<D>>,
    mut enqueued: impl FnMut(usize, D, PartSource),
) -> Result<(), DriverError> {
    let is_for_host = |part: &PartToCopy<D>| matches!(part.destination, OutputDestination::OnHost);
    let joins = |one: &PartToCopy<D>, next: &PartToCopy<D>| {
        is_for_host(one) && is_for_host(next) && one.bytes.end == next.bytes.start
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
        let fetched = if run.iter().all(is_for_host) { Some(flight.fetch(output, begin, end - begin)?) } else { None };
        for PartToCopy { number, bytes, destination, described } in run {
            let source = match (fetched, destination) {
                (Some(fetched), _) => PartSource::Fetched(fetched, bytes.start - begin..bytes.end - begin),
                (None, OutputDestination::At(target)) => {
                    let target = target.part(0, bytes.len());
                    if flight.output_address(output) != target.address() {
                        flight.deliver(output, bytes.start, bytes.len(), &target)?;
                    }
                    PartSource::Target(target)
                }
                (None, _) => PartSource::Device(output, bytes),
            };
            enqueued(number, described, source);
        }
    }
    Ok(())
}

/// What a batch that has completed has left on the host and on the device.
pub struct CopiedOutputs {
    fetched: Vec<(Fetched, Slice)>,
    outputs: Vec<Option<DeviceSlice>>,
}

impl CopiedOutputs {
    /// Takes it from the flight; `sources` are those of all parts.
    pub fn of<'a>(flight: &mut Flight, sources: impl Iterator<Item = &'a PartSource>) -> CopiedOutputs {
        let mut fetched: Vec<(Fetched, Slice)> = Vec::new();
        for source in sources {
            if let PartSource::Fetched(number, _) = source
                && fetched.iter().all(|(known, _)| known != number)
                && let Some(slice) = flight.take_fetched(*number)
            {
                fetched.push((*number, slice));
            }
        }
        CopiedOutputs { fetched, outputs: flight.take_outputs() }
    }

    /// Gives `tensor` the bytes of a part; `None`: they did not come back.
    pub fn fill(&self, tensor: &mut OutputTensor, source: PartSource) -> Option<()> {
        match source {
            PartSource::Fetched(number, range) => {
                let (_, slice) = self.fetched.iter().find(|(known, _)| *known == number)?;
                tensor.data = smallvec::smallvec![slice.window(range)];
            }
            PartSource::Device(number, range) => {
                let slice = self.outputs.get(number.index())?.as_ref()?;
                tensor.on_device = Some(Box::new(slice.window(range)));
            }
            PartSource::Target(target) => tensor.on_device = Some(Box::new(target.freeze())),
        }
        Some(())
    }
}
