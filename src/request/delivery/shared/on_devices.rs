//! What a request has in memory of devices that its client lent: inputs that lie there, and places for outputs.
//!
//! A backend that computes on a device writes to such a place itself; what it made elsewhere is brought there where the
//! answer is sent. That waits for the device, so that it is never done by a thread that must not wait.

use smallvec::{SmallVec, smallvec};

use super::{OutputDestination, WIDEST, too_small};
use crate::{OutputTensor, Status, Text};
use nereid_gpu::{DeviceRegionUse, DeviceSlice, DeviceTarget, DriverError};
use nereid_memory::{BlockMut, Exhausted};

/// See the [module](self).
#[derive(Debug, Default)]
pub struct OnDevices {
    pub uses: SmallVec<[DeviceRegionUse; 2]>,
    pub targets: SmallVec<[(Text, DeviceTarget); 2]>,
}

impl OnDevices {
    fn target(&self, output: &[u8]) -> Option<&DeviceTarget> {
        self.targets.iter().find(|(name, _)| name.as_bytes() == output).map(|(_, target)| target)
    }

    /// The place of an output of `byte_size` bytes; `None`: it has none, or needs none.
    pub fn target_for(&self, output: &[u8], byte_size: usize) -> Result<Option<DeviceTarget>, Status> {
        let Some(target) = self.target(output).filter(|_| byte_size > 0) else { return Ok(None) };
        match byte_size <= target.len() {
            true => Ok(Some(target.part(0, byte_size))),
            false => Err(too_small(output, target.len(), byte_size)),
        }
    }

    /// Where a model shall write an output of that size. A kernel that writes numbers where none may begin would break
    /// the device for everybody: such a place is copied to.
    pub fn destination(&self, output: &[u8], byte_size: usize) -> Result<Option<OutputDestination>, Status> {
        let target = self.target_for(output, byte_size)?;
        Ok(target.map(|target| match target.address().0.is_multiple_of(WIDEST as u64) {
            true => OutputDestination::At(target),
            false => OutputDestination::OnDevice,
        }))
    }

    /// Nothing needs to be done to have the output where it belongs.
    pub fn has(&self, output: &OutputTensor) -> bool {
        match (self.target(output.name.as_bytes()), &output.on_device) {
            (Some(target), Some(slice)) => is_in_place(slice, target),
            (Some(_), None) => output.byte_size() == 0,
            (None, on_device) => on_device.is_none(),
        }
    }

    /// Brings an output to its place. True: it has one, and nothing is to be done with it any more.
    pub fn place(&self, output: &mut OutputTensor) -> Result<bool, Status> {
        let byte_size = output.byte_size();
        let Some(target) = self.target_for(output.name.as_bytes(), byte_size)? else { return Ok(false) };
        let gpu = target.gpu();
        match &output.on_device {
            Some(slice) if is_in_place(slice, &target) => return Ok(true),
            Some(slice) => gpu.copy_to(&target, slice).map_err(|error| failed(output, "written", &error))?,
            // The host's bytes stay where they are: others may read them, a cache above all.
            None => {
                let mut at = 0;
                for piece in &output.data {
                    let part = target.part(at, piece.len());
                    gpu.put_slice_at(&part, piece).map_err(|error| failed(output, "written", &error))?;
                    at += piece.len();
                }
                return Ok(true);
            }
        }
        output.on_device = Some(Box::new(target.freeze()));
        Ok(true)
    }
}

fn is_in_place(slice: &DeviceSlice, target: &DeviceTarget) -> bool {
    slice.address() == target.address() && slice.gpu().is_same(target.gpu())
}

fn failed(output: &OutputTensor, done: &str, error: &DriverError) -> Status {
    let (name, device) = (&output.name, output.on_device.as_ref().map(|slice| slice.gpu().id()));
    let of = device.map_or_else(String::new, |device| format!(" of GPU {device}"));
    Status::internal(format!("output '{name}'{of} cannot be {done}: {error}"))
}

/// Brings an output that lies on a device to the host. Waits for the device.
pub fn fetch(
    output: &mut OutputTensor,
    allocate: impl FnOnce(usize) -> Result<BlockMut, Exhausted>,
) -> Result<(), Status> {
    let Some(slice) = &output.on_device else { return Ok(()) };
    let mut block = allocate(slice.len())?;
    slice.gpu().fetch(slice, &mut block).map_err(|error| failed(output, "read", &error))?;
    output.data = smallvec![block.freeze()];
    output.on_device = None;
    Ok(())
}

#[cfg(test)]
mod tests;
