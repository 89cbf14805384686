//! What inputs and outputs of a request name in shared memory (http.md section 4, "Request use").

use crate::memory::{Regions, Window, WindowError};
use crate::request::shared::{check, draft};
use crate::request::{Request, Status, Text};

/// Where a tensor is, in the client's words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub region: Box<[u8]>,
    pub offset: u64,
    pub byte_size: u64,
}

impl Place {
    /// The memory that is meant. The request uses the region from now on.
    pub fn find(&self, regions: &Regions, request: &mut Request) -> Result<Window, Status> {
        let name = String::from_utf8_lossy(&self.region);
        let shared = draft(&mut request.shared, regions.clerk());
        if shared.use_of(&self.region).is_none() {
            let found = regions.get(&self.region);
            let unknown = || Status::not_found(format!("Unable to find shared memory region: '{name}'"));
            shared.add_use(found.ok_or_else(unknown)?);
        }
        let Some(one) = shared.use_of(&self.region) else {
            return Err(Status::internal("a use of a shared memory region is not where it was put"));
        };
        check(one.region())?;
        one.window(self.offset, self.byte_size).map_err(|error| match error {
            WindowError::Offset | WindowError::Size => {
                Status::invalid(format!("{error} for shared memory region: '{name}'"))
            }
            WindowError::Overflow { .. } => Status::invalid(format!("{error} for region '{name}'")),
        })
    }

    /// Has the output of that name go there.
    pub fn set_aside(&self, output: Text, regions: &Regions, request: &mut Request) -> Result<(), Status> {
        let window = self.find(regions, request)?;
        draft(&mut request.shared, regions.clerk()).add_window(output, window);
        Ok(())
    }
}
