//! The outputs of a batch: the part for each request, and the responses that they become.

use nereid_backend::device_outputs::{CopiedOutputs, PartSource};
use nereid_gpu::Flight;
use nereid_memory::{BlockMut, Pool, Slice};
use nereid_request::{OutputTensor, Request, Response, Shape, Status};

use super::plan::{OutputPlan, Plan};

/// One request of a batch, with its response except for the bytes.
pub struct Pending {
    pub request: Box<Request>,
    pub parts: Vec<Part>,
}

/// One request's part of one output.
pub struct Part {
    pub described: PartDescription,
    pub source: Source,
}

/// What a part is, except for its bytes.
pub struct PartDescription {
    /// Position in the plan.
    pub output: usize,
    /// The shape that the engine computed.
    pub shape: Shape,
    pub is_wanted: bool,
    pub has_state: bool,
}

/// The source of a part's bytes when the batch has completed.
pub enum Source {
    Device(PartSource),
    /// A tensor that the library wrote on the host.
    Host(usize),
}

/// The results of a batch.
pub struct BatchResults {
    copied: CopiedOutputs,
    blocks: Vec<Slice>,
}

impl BatchResults {
    pub fn of(flight: &mut Flight, batch: &[Pending], blocks: Vec<BlockMut>) -> BatchResults {
        let sources = batch.iter().flat_map(|pending| &pending.parts).filter_map(|part| match &part.source {
            Source::Device(source) => Some(source),
            Source::Host(_) => None,
        });
        let copied = CopiedOutputs::of(flight, sources);
        BatchResults { copied, blocks: blocks.into_iter().map(BlockMut::freeze).collect() }
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
            let is_wanted = part.described.is_wanted;
            let Some(output) = plan.outputs.get(part.described.output) else { continue };
            match self.fill(part, output, &request, plan.batching, pool) {
                Ok(tensor) if is_wanted => response.outputs.push(tensor),
                Ok(_) => {}
                Err(status) => return Err((request, status)),
            }
        }
        nereid_backend::rows::sort_as_named(&mut response.outputs, &request);
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
        let PartDescription { shape, has_state, .. } = part.described;
        let lost = || Status::internal(format!("output '{}' did not come back from its device", output.name));
        let mut tensor = OutputTensor {
            name: output.name.clone(),
            datatype: output.datatype,
            shape: output.shape.for_client(&shape, batching),
            data: smallvec::SmallVec::new(),
            index: output.index,
            on_device: None,
        };
        match part.source {
            Source::Device(source) => self.copied.fill(&mut tensor, source).ok_or_else(lost)?,
            Source::Host(number) => {
                tensor.data = smallvec::smallvec![self.blocks.get(number).ok_or_else(lost)?.clone()];
            }
        }
        if let Some(states) = request.states.as_ref().filter(|_| has_state)
            && let Some(data) = tensor.data.first()
        {
            let mut kept = pool.get(data.len())?;
            data.copy_to(0, &mut kept);
            states.update(&output.name.to_str_lossy(), output.datatype, shape, kept.freeze())?;
        }
        Ok(tensor)
    }
}
