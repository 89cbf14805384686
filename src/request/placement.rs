//! Where the bytes of a tensor lie, and for which instances they are: what in-process callers give beside the data.
//!
//! Clients over the wire give none of this, so all of it lies behind one pointer that is mostly empty.

use std::any::Any;
use std::sync::{Mutex, PoisonError};

use smallvec::SmallVec;

use super::Text;
use nereid_gpu::DeviceSlice;
use nereid_memory::Slice;

/// Kinds of memory, by the numbers of `TRITONSERVER_MemoryType`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum MemoryType {
    #[default]
    Cpu = 0,
    CpuPinned = 1,
    Gpu = 2,
}

impl MemoryType {
    pub fn from_number(number: u32) -> Option<MemoryType> {
        [MemoryType::Cpu, MemoryType::CpuPinned, MemoryType::Gpu].into_iter().find(|known| *known as u32 == number)
    }
}

/// Where a run of bytes lies, as its owner states it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Place {
    pub memory_type: MemoryType,
    pub memory_type_id: i64,
    /// The address of a handle that is handed on and never read; 0 is none.
    pub cuda_ipc_handle: usize,
}

impl Place {
    /// Of bytes on a device.
    pub fn of(slice: &DeviceSlice) -> Place {
        let memory_type_id = i64::from(slice.gpu().id());
        Place { memory_type: MemoryType::Gpu, memory_type_id, cuda_ipc_handle: 0 }
    }
}

/// What belongs to an input beside its data.
#[derive(Debug, Clone, Default)]
pub struct InputPlacement {
    /// Of the pieces of the data, by their position; what lies beyond is in plain memory.
    pub places: Vec<Place>,
    /// Data for the instances of single host policies, at most one for each.
    pub for_policies: Vec<PolicyData>,
    /// The data, where they lie on a device: there is none on the host then.
    pub on_device: Option<DeviceSlice>,
}

/// The data of an input for the instances of one host policy.
#[derive(Debug, Clone, Default)]
pub struct PolicyData {
    pub policy: Text,
    pub data: SmallVec<[Slice; 1]>,
    pub places: Vec<Place>,
}

/// Something that hangs on a tensor for as long as it lives. A copy of the tensor starts without it.
#[derive(Debug, Default)]
pub struct Attachment(Mutex<Option<Box<dyn Any + Send>>>);

impl Attachment {
    /// Runs `access` on what is kept, which it may replace.
    pub fn with<R>(&self, access: impl FnOnce(&mut Option<Box<dyn Any + Send>>) -> R) -> R {
        access(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Clone for Attachment {
    fn clone(&self) -> Attachment {
        Attachment::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DataType, InputTensor, Shape};

    #[test]
    fn a_policy_of_its_own_has_its_data_and_all_others_the_common_one() {
        let mut input = InputTensor::new(Text::from("I"), DataType::Uint8, Shape::from_slice(&[2]));
        input.data.push(Slice::from_static(b"ab"));
        assert_eq!(input.data_for(b"cpu")[0][..], *b"ab");
        assert_eq!(input.place(None, 0), Place::default());
        let pinned = Place { memory_type: MemoryType::CpuPinned, memory_type_id: 3, cuda_ipc_handle: 0 };
        let policy_data = PolicyData {
            policy: Text::from("gpu_0"),
            data: [Slice::from_static(b"c"), Slice::from_static(b"d")].into_iter().collect(),
            places: vec![Place::default(), pinned],
        };
        input.placement =
            Some(Box::new(InputPlacement { places: vec![pinned], for_policies: vec![policy_data], on_device: None }));
        assert_eq!(input.data_for(b"gpu_0").len(), 2);
        assert_eq!(input.data_for(b"gpu_1")[0][..], *b"ab");
        assert_eq!(input.place(None, 0), pinned);
        assert_eq!(input.place(Some(b"gpu_1"), 0), pinned, "the common data lie where they lie");
        assert_eq!(input.place(Some(b"gpu_0"), 0), Place::default());
        assert_eq!(input.place(Some(b"gpu_0"), 1), pinned);
        assert_eq!(input.place(None, 9), Place::default());
    }

    #[test]
    fn a_copy_keeps_nothing() {
        let attachment = Attachment::default();
        attachment.with(|kept| *kept = Some(Box::new(5u8)));
        assert!(attachment.with(|kept| kept.is_some()));
        assert!(attachment.clone().with(|kept| kept.is_none()));
    }
}
