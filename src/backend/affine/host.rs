//! An affine model on the CPU.

use super::model::{AffineModel, output_of, pairs};
use crate::{Instance, InstanceContext, Mobility};
use nereid_clock::now_ns;
use nereid_observe::statistics::Execution;
use nereid_request::{InputTensor, Request, Response, Status};
use nereid_scheduler::Payload;

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
            self.compute(input, &mut target);
            let mut output = output_of(input, wanted);
            output.data.push(target.freeze());
            response.outputs.push(output);
        }
        Ok(response)
    }

    /// Pieces of the input may end in the middle of an element.
    fn compute(&self, input: &InputTensor, to: &mut [u8]) {
        let pieces = input.data_for(self.context.host_policy.name.as_bytes());
        let mut bytes = pieces.iter().flat_map(|piece| piece.iter().copied());
        for number in to.chunks_exact_mut(4) {
            let mut next = || bytes.next().unwrap_or_default();
            let value = f32::from_le_bytes([next(), next(), next(), next()]);
            number.copy_from_slice(&self.model.affine.apply(value).to_le_bytes());
        }
    }
}

impl Instance for HostInstance {
    fn mobility(&self) -> Mobility {
        Mobility::FreeIfShort
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
