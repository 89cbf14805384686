//! The outputs of a batch on a device: what they are in the configuration, and the responses that they become.

use smallvec::SmallVec;

use super::binding::Produced;
use super::composite::{Converted, convert};
use super::io_binding::AllocatedOutput;
use super::plan::{OutputSource, Plan};
use super::result::ResultTensor;
use super::strings::Content;
use crate::device_outputs::{CopiedOutputs, PartSource};
use nereid_gpu::Flight;
use nereid_gpu::flight::Output;
use nereid_memory::Pool;
use nereid_request::{OutputTensor, Request, Response, Shape, Status};

/// One request of a batch, with its response except for the bytes.
pub struct DeviceOutputs {
    pub request: Box<Request>,
    pub parts: Vec<OutputPart>,
}

/// One request's part of one output.
pub struct OutputPart {
    pub described: PartDescription,
    /// `None`: it was never on the device, and the output has its bytes already.
    pub source: Option<PartSource>,
}

/// What a part is, except for its bytes.
pub struct PartDescription {
    pub output: OutputTensor,
    /// The shape in the model.
    pub shape: Shape,
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

/// The results of a batch.
pub struct BatchResults(CopiedOutputs);

impl BatchResults {
    pub fn of(flight: &mut Flight, batch: &[DeviceOutputs]) -> BatchResults {
        let parts = batch.iter().flat_map(|outputs| &outputs.parts);
        BatchResults(CopiedOutputs::of(flight, parts.filter_map(|part| part.source.as_ref())))
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
            let is_wanted = part.described.is_wanted;
            match self.fill(part, &request, plan, pool) {
                Ok(output) if is_wanted => response.outputs.push(output),
                Ok(_) => {}
                Err(status) => return Err((request, status)),
            }
        }
        crate::rows::sort_as_named(&mut response.outputs, &request);
        Ok((request, response))
    }

    fn fill(&self, part: OutputPart, request: &Request, plan: &Plan, pool: &Pool) -> Result<OutputTensor, Status> {
        let PartDescription { mut output, shape, has_state, .. } = part.described;
        if let Some(source) = part.source {
            self.0.fill(&mut output, source).ok_or_else(|| {
                Status::internal(format!("output '{}' did not come back from its device", output.name))
            })?;
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
