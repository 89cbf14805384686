//! How the ports for inference over HTTP differ: where a request states the length of its JSON, and where an answer
//! states it (contract/http.md sections 5, 8 and 9).
//!
//! The clouds' front ends let no header through but the content type, so the length travels in that. Everything else
//! about an inference request is the same on every port.

use super::int32::{NumberError, parse_int32, read_int32};
use crate::api::error;
use nereid_memory::Gather;
use nereid_protocol::http1::{Head, JSON_LENGTH, JsonLength, Response};
use nereid_protocol::service::Port;
use nereid_request::Status;

const SAGEMAKER_BINARY: &str = "application/vnd.sagemaker-triton.binary+json;json-header-size=";
const VERTEX_BINARY: &str = "application/vnd.vertex-ai-triton.binary+json;json-header-size=";

/// What SageMaker takes for a lack of memory, be it the host's or a GPU's (contract/http.md section 8).
const OUT_OF_MEMORY: [&str; 17] = [
    "CUDA out of memory",
    "CUDA_OUT_OF_MEMORY",
    "Out of memory",
    "Out Of Memory",
    "out of memory",
    "MemoryError",
    "OutOfMemory",
    "OOM",
    "Dst tensor is not initialized",
    "Src tensor is not initialized",
    "CNMEM_STATUS_OUT_OF_MEMORY",
    "CUDNN_STATUS_NOT_INITIALIZED",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_NOT_INITIALIZED",
    "Failed to allocate memory",
    "failed to allocate memory",
    "No space left on device",
];

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Dialect {
    /// The HTTP port itself.
    #[default]
    Kserve,
    SageMaker,
    /// One of the models of a multi-model endpoint: all errors are 400, but for a lack of memory.
    SageMakerInvoke,
    Vertex,
}

impl Dialect {
    pub fn of(port: Port) -> Dialect {
        match port {
            Port::SageMaker => Dialect::SageMaker,
            Port::Vertex => Dialect::Vertex,
            Port::Http | Port::Grpc | Port::Metrics | Port::OpenAi | Port::Ipc => Dialect::Kserve,
        }
    }

    /// Compressed requests and answers are for the HTTP port only.
    pub fn compresses(self) -> bool {
        self == Dialect::Kserve
    }

    fn binary_type(self) -> Option<&'static str> {
        match self {
            Dialect::Kserve => None,
            Dialect::SageMaker | Dialect::SageMakerInvoke => Some(SAGEMAKER_BINARY),
            Dialect::Vertex => Some(VERTEX_BINARY),
        }
    }

    /// Where a request states the length of its JSON.
    pub fn json_length_in(self) -> JsonLength {
        self.binary_type().map_or(JsonLength::Field, JsonLength::ContentType)
    }

    /// The length of the JSON in front of the body, as a request gives it; `None`: the whole body.
    pub fn json_length(self, head: &Head) -> Option<Result<i64, Status>> {
        let Some(binary_type) = self.binary_type() else {
            return head.header(JSON_LENGTH).map(|value| parse_int32(JSON_LENGTH, value));
        };
        let content_type = head.header("Content-Type")?;
        let at = memchr::memmem::find(content_type, binary_type.as_bytes())?;
        if at != 0 {
            let got = String::from_utf8_lossy(content_type);
            let text = format!("expect MIME type for binary data starts with '{binary_type}', got: {got}");
            return Some(Err(Status::invalid(text)));
        }
        let given = content_type.get(binary_type.len()..).unwrap_or_default();
        let complaint = |what: &str| {
            let got = String::from_utf8_lossy(given);
            Status::invalid(format!("Unable to parse inference header size, {what}: {got}"))
        };
        Some(read_int32(given).map_err(|error| match error {
            NumberError::None => complaint("got"),
            NumberError::OutOfRange => complaint("value is out of range, got"),
        }))
    }

    /// That length as the request writes it, where errors of its port repeat it literally.
    pub fn given_length(self, head: &Head) -> Option<String> {
        let known = self.binary_type()?;
        let content_type = head.header("Content-Type")?;
        content_type.get(known.len()..).map(|given| String::from_utf8_lossy(given).into_owned())
    }

    /// An answer of `json_len` bytes of JSON and binary data behind them.
    pub fn binary_answer(self, json_len: usize, body: Gather) -> Response {
        match self {
            Dialect::Kserve | Dialect::Vertex => {
                let mut reply = error::reply(200, Some("application/octet-stream"), body);
                reply.head = reply.head.header(JSON_LENGTH, json_len as u64);
                reply
            }
            Dialect::SageMaker | Dialect::SageMakerInvoke => {
                let mut reply = error::reply(200, None, body);
                reply.head = reply.head.content_type(format!("{SAGEMAKER_BINARY}{json_len}"));
                reply
            }
        }
    }

    /// Adapts an error to this port: `reply` is that of the HTTP port.
    pub fn adapt_error(self, mut reply: Response) -> Response {
        if self == Dialect::SageMakerInvoke && reply.head.status >= 400 {
            reply.head.status = sagemaker_status(&reply.body.to_vec());
            if reply.head.status == 507 {
                tracing::error!("Received an OOM error during INVOKE MODEL. Returning a 507.");
            }
        }
        reply
    }
}

/// The status of an error with that text.
pub fn sagemaker_status(text: &[u8]) -> u16 {
    let lacks_memory = OUT_OF_MEMORY.iter().any(|sign| memchr::memmem::find(text, sign.as_bytes()).is_some());
    if lacks_memory { 507 } else { 400 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_of_a_lack_of_memory() {
        for sign in OUT_OF_MEMORY {
            assert_eq!(sagemaker_status(format!("x{sign}y").as_bytes()), 507, "{sign}");
        }
        for text in ["", "out of  memory", "oom", "MemoryErro", "no space left"] {
            assert_eq!(sagemaker_status(text.as_bytes()), 400, "{text}");
        }
    }
}
