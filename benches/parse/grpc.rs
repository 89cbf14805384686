//! gRPC messages: the reads and writes of a call.

use nereid_memory::{Gather, Pool, Slice};
use nereid_protocol::grpc::{
    Encoder, InferRequestParts, InferResponse, InputTensor, Limits, Message, MessageReader, Mode, OutputTensor,
};

use super::operation::Operation;

const TENSOR: &[u8; 64] = &[7; 64];

pub fn read() -> Box<dyn Operation> {
    let reader = MessageReader::new(Pool::new(64 << 20), Limits::default(), Mode::Infer);
    Box::new(Read { reader, frame: request_frame(), tensor_bytes: 0 })
}

pub fn write() -> Box<dyn Operation> {
    let data = Slice::from_static(TENSOR);
    let (encoder, pool) = (Encoder::new(), Pool::new(64 << 20));
    Box::new(Write { encoder, pool, data, message: Gather::new(), pieces: Vec::new() })
}

/// A framed ModelInferRequest.
pub fn request_frame() -> Vec<u8> {
    let data = Slice::from_static(TENSOR);
    let input = InputTensor { name: "INPUT0", datatype: "FP32", shape: &[16], parameters: &[], data: Some(&data) };
    let parts = InferRequestParts {
        model_name: "identity",
        model_version: "",
        id: "",
        parameters: std::iter::empty(),
        inputs: std::iter::once(input),
        outputs: std::iter::empty(),
    };
    let mut frame = Gather::new();
    Encoder::new().infer_request(&parts, &Pool::new(1 << 20), &mut frame).expect("a short message");
    frame.to_vec()
}

/// A framed ModelInferResponse.
pub fn response_frame() -> Vec<u8> {
    let mut frame = Gather::new();
    respond(&mut Encoder::new(), &Slice::from_static(TENSOR), &Pool::new(1 << 20), &mut frame);
    frame.to_vec()
}

fn respond(encoder: &mut Encoder, data: &Slice, pool: &Pool, into: &mut Gather) {
    let output = OutputTensor { name: "OUTPUT0", datatype: "FP32", shape: &[16], data };
    let response = InferResponse {
        model_name: "identity",
        model_version: "1",
        id: "",
        parameters: std::iter::empty(),
        outputs: std::iter::once(output),
    };
    encoder.infer_response(&response, pool, into).expect("a short message");
}

struct Read {
    reader: MessageReader,
    frame: Vec<u8>,
    tensor_bytes: usize,
}

impl Operation for Read {
    /// From received bytes to a request, whose storage then goes back.
    fn perform(&mut self) {
        if self.reader.feed(&self.frame).is_ok()
            && let Some(Message::Infer(request)) = self.reader.next_message()
        {
            self.tensor_bytes = request.raw.first().map_or(0, |tensor| tensor.len());
            self.reader.recycle(request);
        }
    }

    fn settle(&mut self) {
        assert_eq!(std::mem::take(&mut self.tensor_bytes), TENSOR.len(), "the request was not understood");
    }
}

struct Write {
    encoder: Encoder,
    pool: Pool,
    data: Slice,
    message: Gather,
    pieces: Vec<Slice>,
}

impl Operation for Write {
    fn perform(&mut self) {
        respond(&mut self.encoder, &self.data, &self.pool, &mut self.message);
        self.message.take(usize::MAX, &mut self.pieces);
    }

    fn settle(&mut self) {
        let written: usize = self.pieces.drain(..).map(|piece| piece.len()).sum();
        assert!(written > TENSOR.len(), "only {written} bytes");
    }
}
