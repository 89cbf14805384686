//! One answer of a model.

use smallvec::SmallVec;

use super::{Credit, DataType, Parameters, Shape, Status, Text};
use crate::gpu::DeviceSlice;
use crate::memory::Slice;

#[derive(Debug, Clone)]
pub struct OutputTensor {
    pub name: Text,
    pub datatype: DataType,
    /// Full shape, batch dimension included.
    pub shape: Shape,
    pub data: SmallVec<[Slice; 1]>,
    /// Position among the model's configured outputs.
    pub index: usize,
    /// The elements, where they lie on a device: `data` is empty then. Only who asked for it gets such an answer.
    pub on_device: Option<Box<DeviceSlice>>,
}

impl OutputTensor {
    pub fn byte_size(&self) -> usize {
        self.on_device.as_ref().map_or_else(|| self.data.iter().map(|piece| piece.len()).sum(), |bytes| bytes.len())
    }
}

#[derive(Debug, Default)]
pub struct Response {
    /// Id of the request this answers.
    pub id: Text,
    pub outputs: SmallVec<[OutputTensor; 2]>,
    pub parameters: Parameters,
    /// Set: the outputs do not count.
    pub error: Option<Status>,
    /// What it was sent with, to be given back once its bytes are with the transport.
    pub credit: Option<Credit>,
    /// Whoever asked to be told that it was begun has been told (see [`Sink::begin`](super::Sink::begin)).
    pub is_begun: bool,
}

impl Response {
    pub fn new(id: Text) -> Response {
        Response { id, ..Response::default() }
    }

    pub fn failed(id: Text, status: Status) -> Response {
        Response { id, error: Some(status), ..Response::default() }
    }
}
