//! Tensors as a request carries them.

use smallvec::SmallVec;

use super::{Attachment, DataType, InputPlacement, Place, PolicyData, Text};
use nereid_gpu::DeviceSlice;
use nereid_memory::Slice;

/// Dimensions; -1 is variable. Six fit in place.
pub type Shape = SmallVec<[i64; 6]>;

/// Elements of `shape`; `None` where a dimension is negative or the product exceeds `i64::MAX`.
#[inline]
pub fn element_count(shape: &[i64]) -> Option<i64> {
    // A zero anywhere makes the tensor empty, whatever the others would multiply to.
    if shape.iter().any(|&dim| dim < 0) {
        return None;
    }
    if shape.contains(&0) {
        return Some(0);
    }
    shape.iter().try_fold(1i64, |count, &dim| count.checked_mul(dim))
}

/// `[-1,16]`: how messages print shapes.
pub fn format_shape(shape: &[i64]) -> String {
    let dims: Vec<String> = shape.iter().map(i64::to_string).collect();
    format!("[{}]", dims.join(","))
}

#[derive(Debug, Clone)]
pub struct InputTensor {
    pub name: Text,
    pub datatype: DataType,
    /// Full shape as the client gave it, batch dimension included.
    pub shape: Shape,
    /// Shape for the model: the configuration's `reshape` applied. Set by validation.
    pub model_shape: Shape,
    /// The elements, little-endian, in one or more pieces; BYTES elements are length-prefixed.
    pub data: SmallVec<[Slice; 1]>,
    /// Position among the model's configured inputs. Set by validation.
    pub index: usize,
    /// What an in-process caller gives beside the data; empty for a client over the wire.
    pub placement: Option<Box<InputPlacement>>,
    /// What was made for a call of a backend, and lives as long as the tensor.
    pub attachment: Attachment,
}

impl InputTensor {
    pub fn new(name: Text, datatype: DataType, shape: Shape) -> InputTensor {
        InputTensor {
            name,
            datatype,
            shape,
            model_shape: Shape::new(),
            data: SmallVec::new(),
            index: 0,
            placement: None,
            attachment: Attachment::default(),
        }
    }

    #[inline]
    pub fn byte_size(&self) -> usize {
        let on_host = || self.data.iter().map(|piece| piece.len()).sum();
        self.on_device().map_or_else(on_host, DeviceSlice::len)
    }

    /// The elements, if they lie on a device.
    #[inline]
    pub fn on_device(&self) -> Option<&DeviceSlice> {
        self.placement.as_ref()?.on_device.as_ref()
    }

    /// The pieces that an instance of host policy `policy` shall see: those given for it, else those for all.
    pub fn data_for(&self, policy: &[u8]) -> &[Slice] {
        self.policy_data(policy).map_or(&self.data[..], |policy_data| &policy_data.data[..])
    }

    /// Where piece number `at` of the data lies; with a policy, of what its instances see.
    pub fn place(&self, policy: Option<&[u8]>, at: usize) -> Place {
        let places = match policy.and_then(|policy| self.policy_data(policy)) {
            Some(policy_data) => &policy_data.places[..],
            None => self.placement.as_ref().map_or(&[][..], |placement| &placement.places[..]),
        };
        places.get(at).copied().unwrap_or_default()
    }

    fn policy_data(&self, policy: &[u8]) -> Option<&PolicyData> {
        self.placement.as_ref()?.for_policies.iter().find(|policy_data| policy_data.policy.as_bytes() == policy)
    }
}

/// An output the client wants.
#[derive(Debug, Clone)]
pub struct RequestedOutput {
    pub name: Text,
    /// Position among the model's configured outputs. Set by validation.
    pub index: usize,
}
