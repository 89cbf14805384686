//! Inputs that lie on devices, brought to where an instance reads them before it executes.
//!
//! An instance that takes them there gets them as they are, unless no number of their type may begin where they begin:
//! a kernel that stumbles over that breaks its device for everybody. All others read inputs on the host, and so do
//! those who take strings, whose lengths are checked once they are there.

use smallvec::smallvec;

use crate::backend::InstanceContext;
use crate::scheduler::Payload;
use crate::scheduler::validate::check_contents;
use nereid_gpu::{DeviceSlice, DriverError, PinnedPool};
use nereid_memory::Slice;
use nereid_request::{DataType, InputTensor, Request, Status};
use nereid_wire::inference::model_config::SchedulingChoice;
use nereid_wire::inference::model_sequence_batching::StrategyChoice;

/// What is to be done with an input.
enum Step {
    Leave,
    /// On its device, to a place where its numbers may begin.
    Move,
    Fetch,
}

impl Step {
    fn of(input: &InputTensor, slice: &DeviceSlice, takes_device_tensors: bool) -> Step {
        if input.datatype == DataType::Bytes || !takes_device_tensors {
            return Step::Fetch;
        }
        let size = input.datatype.byte_size().next_power_of_two() as u64;
        if slice.address().0.is_multiple_of(size) { Step::Leave } else { Step::Move }
    }
}

/// Makes the inputs of `payload` such as the instance wants them; requests whose inputs cannot be had are answered and
/// gone. Waits for devices.
pub(super) fn land(payload: &mut Payload, context: &InstanceContext, takes_device_tensors: bool) {
    let is_on_device = |request: &Request| request.inputs.iter().any(|input| input.on_device().is_some());
    if !payload.requests().iter().any(|request| is_on_device(request)) {
        return;
    }
    let requests = payload.take().into_iter().map(|mut request| {
        let landed = land_one(&mut request, context, takes_device_tensors);
        (request, landed.err())
    });
    let requests: Vec<(Box<Request>, Option<Status>)> = requests.collect();
    let failed = requests.iter().find_map(|(_, status)| status.clone());
    // Where a row of the batch is a sequence's, no row can be left out.
    let all = failed.filter(|_| has_slots(context));
    for (request, status) in requests {
        match status.or_else(|| all.clone()) {
            Some(status) => context.fail(request, status),
            None => payload.push(request),
        }
    }
}

fn has_slots(context: &InstanceContext) -> bool {
    match &context.spec.config.scheduling_choice {
        Some(SchedulingChoice::SequenceBatching(batching)) => {
            !matches!(batching.strategy_choice, Some(StrategyChoice::Oldest(_)))
        }
        _ => false,
    }
}

fn land_one(request: &mut Request, context: &InstanceContext, takes_device_tensors: bool) -> Result<(), Status> {
    for at in 0..request.inputs.len() {
        let input = &request.inputs[at];
        let Some(slice) = input.on_device().cloned() else { continue };
        let failed = |error: DriverError| {
            Status::internal(format!("input '{}' on GPU {} cannot be read: {error}", input.name, slice.gpu()))
        };
        match Step::of(input, &slice, takes_device_tensors) {
            Step::Leave => {}
            Step::Move => {
                let moved = slice.gpu().take_over(&slice).map_err(failed)?;
                if let Some(beside) = &mut request.inputs[at].beside {
                    // What was said of the former place is not true of this one.
                    beside.places.clear();
                    beside.on_device = Some(moved);
                }
            }
            Step::Fetch => {
                let data = fetch(&slice, context.model.gpus.pinned(), request, failed)?;
                let input = &mut request.inputs[at];
                input.data = smallvec![data];
                if let Some(beside) = &mut input.beside {
                    beside.places.clear();
                    beside.on_device = None;
                }
                check_contents(request, at, &context.spec)?;
            }
        }
    }
    Ok(())
}

/// The bytes on the host: in memory that the device writes by itself, as long as there is some.
fn fetch(
    slice: &DeviceSlice,
    pinned: &PinnedPool,
    request: &Request,
    failed: impl FnOnce(DriverError) -> Status,
) -> Result<Slice, Status> {
    if let Some(mut buffer) = pinned.take(slice.len()) {
        slice.gpu().fetch(slice, &mut buffer).map_err(failed)?;
        return Ok(buffer.freeze());
    }
    let mut block = request.allocate(slice.len())?;
    slice.gpu().fetch(slice, &mut block).map_err(failed)?;
    Ok(block.freeze())
}

#[cfg(test)]
mod tests;
