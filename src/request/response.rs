//! One answer of a model.

use smallvec::SmallVec;

use super::{Credit, DataType, Parameters, Shape, Status, Text, recycle};
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
    /// The elements, where they lie on a device: `data` is empty then. Only who asked for it gets such an answer.
    pub on_device: Option<Box<DeviceSlice>>,
}

impl OutputTensor {
    pub fn byte_size(&self) -> usize {
        self.on_device.as_ref().map_or_else(|| self.data.iter().map(|piece| piece.len()).sum(), |bytes| bytes.len())
    }
}

/// One answer. It is large and goes through many hands, so what is passed on is where it lies. It is made where an
/// earlier one lay (see [`recycle`](super::recycle)).
#[derive(Debug, Default)]
pub struct Response(Box<ResponseParts>);

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
    /// Whoever asked to be told that it was begun has been told (see [`Sink::begin`](super::Sink::begin)).
    pub is_begun: bool,
}

impl Response {
    pub fn new(id: Text) -> Response {
        let mut response = recycle::response().map_or_else(Response::default, Response);
        response.id = id;
        response
    }

    pub fn failed(id: Text, status: Status) -> Response {
        let mut response = Response::new(id);
        response.error = Some(status);
        response
    }

    pub fn into_parts(self) -> ResponseParts {
        *self.0
    }

    /// Ends it, as dropping does.
    pub fn retire(mut self) {
        if self.0.outputs.capacity() <= recycle::LONGEST {
            self.0.clear();
            recycle::keep_response(self.0);
        }
    }
}

impl ResponseParts {
    /// As new; a field at a time, because nearly all of them are empty.
    fn clear(&mut self) {
        let ResponseParts { id, outputs, parameters, error, credit, is_begun } = self;
        outputs.clear();
        (*id, *parameters) = (Text::default(), Parameters::default());
        (*error, *credit, *is_begun) = (None, None, false);
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
