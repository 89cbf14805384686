//! Brings inputs that lie on devices to where an instance reads them, before it executes.
//!
//! An instance that takes them there gets them unchanged, unless they are misaligned for their type: the fault of a
//! kernel would break the device for all its users. All other instances read inputs on the host. Strings are always
//! read on the host, where their lengths are checked.

use smallvec::smallvec;

use crate::InstanceContext;
use nereid_gpu::{DeviceSlice, DriverError, PinnedPool};
use nereid_memory::Slice;
use nereid_request::{DataType, InputTensor, Request, Status};
use nereid_scheduler::Payload;
use nereid_scheduler::validate::check_contents;
use nereid_wire::inference::model_config::SchedulingChoice;
use nereid_wire::inference::model_sequence_batching::StrategyChoice;

/// The treatment of an input.
enum Step {
    Leave,
    /// Copy it to aligned memory on its device.
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

/// Brings the inputs of `payload` to where the instance reads them; requests with inputs that cannot be read are
/// answered and removed. Waits for devices.
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
    // If a row of the batch belongs to a sequence, no row can be left out.
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
                let moved = slice.gpu().copy_here(&slice).map_err(failed)?;
                if let Some(placement) = &mut request.inputs[at].placement {
                    // The attributes of the former place do not apply to the new one.
                    placement.places.clear();
                    placement.on_device = Some(moved);
                }
            }
            Step::Fetch => {
                let data = fetch(&slice, context.model.gpus.pinned(), request, failed)?;
                let input = &mut request.inputs[at];
                input.data = smallvec![data];
                if let Some(placement) = &mut input.placement {
                    placement.places.clear();
                    placement.on_device = None;
                }
                check_contents(request, at, &context.spec)?;
            }
        }
    }
    Ok(())
}

/// Copies the bytes to the host: to pinned memory, which the device writes directly, as long as some is left.
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
