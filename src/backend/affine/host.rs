//! An affine model on the CPU.

use super::model::{AffineModel, output_of, pairs};
use crate::{Instance, InstanceContext, Mobility};
use nereid_clock::now_ns;
use nereid_memory::{SliceReader, Target};
use nereid_observe::statistics::Execution;
use nereid_request::{InputTensor, Request, Response, Status};
use nereid_scheduler::Payload;

/// Bytes that are read, computed and written at a time: clients may write to the memory of both tensors meanwhile.
const CHUNK: usize = 1024;

pub struct HostInstance {
    context: InstanceContext,
    model: AffineModel,
}

impl HostInstance {
    pub fn new(context: InstanceContext, model: AffineModel) -> HostInstance {
        HostInstance { context, model }
    }

    fn answer(&self, request: &Request) -> Result<Response, Status> {
        let mut response = Response::new(request.id.clone());
        for (input, wanted) in pairs(request)? {
            let mut target = request.allocate_output(&wanted.name, input.byte_size())?;
            self.compute(input, &mut target)?;
            let mut output = output_of(input, wanted);
            output.data.push(target.freeze());
            response.outputs.push(output);
        }
        Ok(response)
    }

    /// Pieces of the input may end in the middle of an element.
    fn compute(&self, input: &InputTensor, to: &mut Target) -> Result<(), Status> {
        let mut reader = SliceReader::new(input.data_for(self.context.host_policy.name.as_bytes()));
        let (mut chunk, mut at) = ([0; CHUNK], 0);
        while at < to.len() {
            let part = &mut chunk[..CHUNK.min(to.len() - at)];
            let read = reader.read(part);
            part[read..].fill(0);
            for number in part.as_chunks_mut::<4>().0 {
                *number = self.model.affine.apply(f32::from_le_bytes(*number)).to_le_bytes();
            }
            if !to.write(at, part) {
                return Err(Status::internal("an output ended before its input"));
            }
            at += part.len();
        }
        Ok(())
    }
}

impl Instance for HostInstance {
    /// A pass over the input on the calling thread.
    fn mobility(&self) -> Mobility {
        Mobility::FreeIfShort
    }

    fn answers_last(&self) -> bool {
        true
    }

    fn execute(&mut self, payload: &mut Payload) -> Result<(), Status> {
        let start_ns = now_ns();
        let requests = payload.take();
        let rows = requests.iter().map(|request| self.model.rows(request)).fold(0, u64::saturating_add);
        let answers: Vec<_> = requests.iter().map(|request| self.answer(request)).collect();
        let end_ns = now_ns();
        let execution = Execution {
            exec_start_ns: start_ns,
            compute_start_ns: start_ns,
            compute_end_ns: end_ns,
            exec_end_ns: end_ns,
        };
        self.context.report_batch(rows, &execution);
        for (request, answer) in requests.into_iter().zip(answers) {
            match answer {
                Ok(response) => self.context.succeed(request, response, &execution),
                Err(status) => self.context.fail(request, status),
            }
        }
        Ok(())
    }
}
