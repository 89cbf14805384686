//! Where a model wants the outputs of its requests to other models (contract/python_backend.md section 3,
//! "PreferredMemory").

use std::sync::Arc;

use nereid_gpu::{Gpu, Gpus, Piece};
use nereid_memory::BlockMut;
use nereid_request::shared::OutputDestination;
use nereid_request::{DataType, MemoryType, OutputTensor, Response, Status};

/// See the [module](self).
#[derive(Debug, Clone, Default)]
pub enum Preference {
    #[default]
    Host,
    /// Wherever the model that computes them puts them.
    Anywhere,
    On(Gpu),
}

impl Preference {
    /// Reads the message's value: a type of memory and the number of a device. A device that does not exist counts as
    /// the host.
    pub fn new(said: Option<(u32, i64)>, gpus: &Arc<Gpus>) -> Preference {
        if gpus.iter().next().is_none() {
            return Preference::Host;
        }
        let Some((memory_type, device)) = said else { return Preference::Anywhere };
        let gpu = || i32::try_from(device).ok().and_then(|device| gpus.get(device)).cloned();
        match MemoryType::from_number(memory_type) {
            Some(MemoryType::Gpu) => gpu().map_or(Preference::Host, Preference::On),
            _ => Preference::Host,
        }
    }

    /// The place for the outputs of a model that computes on a device.
    pub fn destination(&self) -> OutputDestination {
        match self {
            Preference::Host => OutputDestination::OnHost,
            Preference::Anywhere | Preference::On(_) => OutputDestination::OnDevice,
        }
    }

    /// Whether outputs may lie on devices.
    pub fn is_of_devices(&self) -> bool {
        !matches!(self, Preference::Host)
    }

    /// Whether writing the response requires a device.
    pub fn waits_for_device(&self, response: &Response) -> bool {
        matches!(self, Preference::On(_)) || response.outputs.iter().any(|output| output.on_device.is_some())
    }

    /// Copies the outputs to the preferred place. May wait for a device.
    pub fn apply(&self, response: &mut Response) -> Result<(), Status> {
        match self {
            Preference::Anywhere => Ok(()),
            Preference::Host => response.outputs.iter_mut().try_for_each(fetch),
            Preference::On(gpu) => response.outputs.iter_mut().try_for_each(|output| put(output, gpu)),
        }
    }
}

/// Copies an output to the host, if it is not there.
pub fn fetch(output: &mut OutputTensor) -> Result<(), Status> {
    let Some(slice) = output.on_device.take() else { return Ok(()) };
    let mut block = BlockMut::try_unpooled(slice.len())?;
    slice.gpu().fetch(&slice, &mut block)?;
    output.data = smallvec::smallvec![block.freeze()];
    Ok(())
}

/// Copies an output to a device, if it is not there. Strings stay on the host, where their lengths are read.
fn put(output: &mut OutputTensor, gpu: &Gpu) -> Result<(), Status> {
    let slice = match &output.on_device {
        Some(slice) if slice.gpu().is_same(gpu) => return Ok(()),
        Some(slice) => gpu.copy_here(slice)?,
        None if output.datatype == DataType::Bytes || output.byte_size() == 0 => return Ok(()),
        None => gpu.gather(&output.data.iter().cloned().map(Piece::Host).collect::<Vec<_>>())?,
    };
    output.data.clear();
    output.on_device = Some(Box::new(slice));
    Ok(())
}
