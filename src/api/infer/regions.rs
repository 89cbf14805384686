//! What inputs and outputs of a request name in shared memory (contract/http.md section 4, "Request use").

use smallvec::smallvec;

use nereid_memory::{Slice, WindowError};
use nereid_request::shared::{check, draft};
use nereid_request::{InputPlacement, InputTensor, Request, SharedMemory, Status, Text};

/// Where a tensor is, in the client's words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegionRange {
    pub region: Box<[u8]>,
    pub offset: u64,
    pub byte_size: u64,
}

/// The elements of an input, as they are used in place.
pub enum InputElements {
    OnHost(Slice),
    OnDevice(Box<InputPlacement>),
}

impl InputElements {
    /// The input has them from now on.
    pub fn give_to(self, input: &mut InputTensor) {
        match self {
            InputElements::OnHost(data) => input.data = smallvec![data],
            InputElements::OnDevice(placement) => input.placement = Some(placement),
        }
    }
}

/// Of which kind the region is that a request uses.
enum Kind {
    System,
    Cuda,
}

impl RegionRange {
    /// Has the request use the region, whatever its kind.
    fn begin_use(&self, memory: &SharedMemory, request: &mut Request) -> Result<Kind, Status> {
        let shared = draft(&mut request.shared, memory.job_thread());
        if shared.use_of(&self.region).is_some() {
            return Ok(Kind::System);
        }
        if shared.device_use_of(&self.region).is_some() {
            return Ok(Kind::Cuda);
        }
        if let Some(found) = memory.system.get(&self.region) {
            shared.add_use(found);
            return Ok(Kind::System);
        }
        let Some(found) = memory.gpus.regions().get(&self.region) else {
            let name = String::from_utf8_lossy(&self.region);
            return Err(Status::not_found(format!("Unable to find shared memory region: '{name}'")));
        };
        shared.add_device_use(found);
        Ok(Kind::Cuda)
    }

    /// The elements of an input that lie there. The request uses the region from now on.
    pub fn use_as_input(&self, memory: &SharedMemory, request: &mut Request) -> Result<InputElements, Status> {
        let kind = self.begin_use(memory, request)?;
        let shared = draft(&mut request.shared, memory.job_thread());
        match kind {
            Kind::System => {
                let one = shared.use_of(&self.region).ok_or_else(misplaced)?;
                check(one.region())?;
                let window = one.window(self.offset, self.byte_size).map_err(|error| self.refused(error))?;
                Ok(InputElements::OnHost(window.slice()))
            }
            Kind::Cuda => {
                let one = shared.device_use_of(&self.region).ok_or_else(misplaced)?;
                let slice = one.slice(self.offset, self.byte_size).map_err(|error| self.refused(error))?;
                // Nothing is the same everywhere.
                if slice.is_empty() {
                    return Ok(InputElements::OnHost(Slice::empty()));
                }
                Ok(InputElements::OnDevice(Box::new(InputPlacement {
                    on_device: Some(slice),
                    ..InputPlacement::default()
                })))
            }
        }
    }

    /// Has the output of that name go there.
    pub fn set_aside(&self, output: Text, memory: &SharedMemory, request: &mut Request) -> Result<(), Status> {
        let kind = self.begin_use(memory, request)?;
        let shared = draft(&mut request.shared, memory.job_thread());
        match kind {
            Kind::System => {
                let one = shared.use_of(&self.region).ok_or_else(misplaced)?;
                check(one.region())?;
                let window = one.window(self.offset, self.byte_size).map_err(|error| self.refused(error))?;
                shared.add_window(output, window);
            }
            Kind::Cuda => {
                let one = shared.device_use_of(&self.region).ok_or_else(misplaced)?;
                let target = one.target(self.offset, self.byte_size).map_err(|error| self.refused(error))?;
                shared.add_target(output, target);
            }
        }
        Ok(())
    }

    fn refused(&self, error: WindowError) -> Status {
        let name = String::from_utf8_lossy(&self.region);
        match error {
            WindowError::Offset | WindowError::Size => {
                Status::invalid(format!("{error} for shared memory region: '{name}'"))
            }
            WindowError::Overflow { .. } => Status::invalid(format!("{error} for region '{name}'")),
        }
    }
}

fn misplaced() -> Status {
    Status::internal("a use of a shared memory region is not where it was put")
}
