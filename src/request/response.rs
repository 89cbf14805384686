//! One answer of a model.

use smallvec::SmallVec;

use super::{Credit, DataType, Parameters, Shape, Status, Text};
use nereid_gpu::DeviceSlice;
use nereid_memory::Slice;

#[derive(Debug, Clone)]
pub struct OutputTensor {
    pub name: Text,
    pub datatype: DataType,
    /// Full shape, batch dimension included.
    pub shape: Shape,
    pub data: SmallVec<[Slice; 1]>,
    /// Position among the model's configured outputs.
    pub index: usize,
    /// The elements, where they lie on a device: `data` is empty then. Only a sink that requested that gets such an
    /// answer.
    pub on_device: Option<Box<DeviceSlice>>,
}

impl OutputTensor {
    pub fn byte_size(&self) -> usize {
        self.on_device.as_ref().map_or_else(|| self.data.iter().map(|piece| piece.len()).sum(), |bytes| bytes.len())
    }
}

/// One answer. It is large and passed on many times, so it lies in a box. It is made in the box of an earlier one where
/// the recycle pool has one (see [`Response::new`]).
#[derive(Debug, Default)]
pub struct Response(pub(super) Box<ResponseParts>);

#[derive(Debug, Default)]
pub struct ResponseParts {
    /// Id of the request this answers.
    pub id: Text,
    pub outputs: SmallVec<[OutputTensor; 2]>,
    pub parameters: Parameters,
    /// Set: the outputs do not count.
    pub error: Option<Status>,
    /// What it was sent with, to be given back once its bytes are with the transport.
    pub credit: Option<Credit>,
    /// The sink has been called for its beginning, and needs no call when it is delivered (see `Sink::begin`).
    pub is_begun: bool,
}

impl Response {
    pub fn failed(id: Text, status: Status) -> Response {
        let mut response = Response::new(id);
        response.error = Some(status);
        response
    }

    pub fn into_parts(self) -> ResponseParts {
        *self.0
    }
}

impl std::ops::Deref for Response {
    type Target = ResponseParts;

    #[inline]
    fn deref(&self) -> &ResponseParts {
        &self.0
    }
}

impl std::ops::DerefMut for Response {
    #[inline]
    fn deref_mut(&mut self) -> &mut ResponseParts {
        &mut self.0
    }
}
