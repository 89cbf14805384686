//! The format of a file: lines of JSON, each followed by the bytes that it announces.
//!
//! The first line describes the file. Each further line describes one exchange, and behind it stand the body of its
//! request and the body of its answer, if the line states their lengths, and a line feed. A file without contents is
//! therefore nothing but lines of JSON. Lengths stand in front of what they measure, so that a file that ends in the
//! middle of a record is readable up to there.

use std::io::{self, Write};

use serde::{Deserialize, Serialize};

/// What the first line names as its format.
pub const FORMAT: &str = "nereid-recording";
/// Of the format. A reader refuses others; members that it does not know it skips.
pub const VERSION: u32 = 1;
/// Bytes of a line.
pub const LINE_BYTES_MAX: usize = 4 << 20;
/// Bytes of a body.
pub const BODY_BYTES_MAX: u64 = 1 << 30;

/// The first line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileHead {
    pub format: String,
    pub version: u32,
    /// The program that recorded.
    #[serde(default)]
    pub server: String,
    /// When the recording began, in milliseconds since 1970.
    #[serde(default)]
    pub started_unix_ms: u64,
    /// Records have headers and bodies.
    #[serde(default)]
    pub data: bool,
    /// One of so many requests was recorded.
    #[serde(default)]
    pub rate: u32,
    /// Names of headers and parameters that were redacted beside those that always are.
    #[serde(default)]
    pub redacted: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    Http,
    Grpc,
}

impl Protocol {
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Http => "http",
            Protocol::Grpc => "grpc",
        }
    }
}

/// A tensor without its contents.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TensorFacts {
    #[serde(default)]
    pub name: String,
    #[serde(default)]
    pub datatype: String,
    #[serde(default)]
    pub shape: Vec<i64>,
    /// Of its contents in the binary form; none: they were JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub byte_size: Option<u64>,
    /// Its contents were in a region of shared memory.
    #[serde(default, skip_serializing_if = "is_false")]
    pub shared_memory: bool,
}

fn is_false(flag: &bool) -> bool {
    !flag
}

/// The request of an exchange.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RequestFacts {
    /// Of its body or message as it came.
    pub byte_size: u64,
    /// Of a body over HTTP, the bytes that are JSON, where binary tensors follow them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub json_byte_size: Option<u64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inputs: Vec<TensorFacts>,
    /// Names of the outputs that it requests.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<String>,
    /// Names of its parameters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parameters: Vec<String>,
    /// It is not a request that the protocol describes.
    #[serde(default, skip_serializing_if = "is_false")]
    pub malformed: bool,
    /// With data: the path over HTTP, without a query.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub path: String,
    /// With data: headers over HTTP, metadata over gRPC.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<(String, String)>,
    /// With data: bytes of the body that follow the line, unpacked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_byte_size: Option<u64>,
}

/// The answer of an exchange.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct AnswerFacts {
    /// The status over HTTP, the code over gRPC.
    pub status: u16,
    pub byte_size: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub json_byte_size: Option<u64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<TensorFacts>,
    /// With data: the text of the status over gRPC.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// With data: bytes of the body that follow that of the request, unpacked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_byte_size: Option<u64>,
}

/// A further line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordHead {
    /// When the request was there, since the recording began.
    pub at_ns: u64,
    /// From then until its answer was.
    pub took_ns: u64,
    pub protocol: Protocol,
    #[serde(default)]
    pub model: String,
    /// As the request has it: empty where the server chose.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub version: String,
    pub request: RequestFacts,
    /// None: the client left before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<AnswerFacts>,
}

/// One exchange of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub head: RecordHead,
    pub request_body: Option<Vec<u8>>,
    pub answer_body: Option<Vec<u8>>,
}

#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    #[error("a record's line has {bytes} bytes, more than {LINE_BYTES_MAX}")]
    LineTooLong { bytes: usize },
    #[error("a record's body has {bytes} bytes, more than {BODY_BYTES_MAX}")]
    BodyTooLong { bytes: usize },
    #[error("a record cannot be written as JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error(transparent)]
    Io(#[from] io::Error),
}

fn line(of: &impl Serialize) -> Result<Vec<u8>, WriteError> {
    let mut line = serde_json::to_vec(of)?;
    line.push(b'\n');
    match line.len() > LINE_BYTES_MAX {
        true => Err(WriteError::LineTooLong { bytes: line.len() }),
        false => Ok(line),
    }
}

/// Writes the first line.
pub fn write_head(head: &FileHead, out: &mut impl Write) -> Result<u64, WriteError> {
    let line = line(head)?;
    out.write_all(&line)?;
    Ok(line.len() as u64)
}

/// Writes a record; returns its bytes, and writes nothing if `bytes_left` is less than they are.
pub fn write_record(record: &mut Record, bytes_left: u64, out: &mut impl Write) -> Result<Option<u64>, WriteError> {
    let Record { head, request_body, answer_body } = record;
    let of_body = |body: &Option<Vec<u8>>| match body {
        Some(body) if body.len() as u64 > BODY_BYTES_MAX => Err(WriteError::BodyTooLong { bytes: body.len() }),
        body => Ok(body.as_ref().map(|body| body.len() as u64)),
    };
    head.request.body_byte_size = of_body(request_body)?;
    let answer_byte_size = of_body(answer_body)?;
    if let Some(answer) = &mut head.answer {
        answer.body_byte_size = answer_byte_size;
    }
    let line = line(head)?;
    let bodies = [&*request_body, &*answer_body].into_iter().flatten();
    let has_bodies = request_body.is_some() || answer_body.is_some();
    let bytes = bodies.clone().map(|body| body.len() as u64).sum::<u64>() + line.len() as u64 + u64::from(has_bodies);
    if bytes > bytes_left {
        return Ok(None);
    }
    out.write_all(&line)?;
    for body in bodies {
        out.write_all(body)?;
    }
    if has_bodies {
        out.write_all(b"\n")?;
    }
    Ok(Some(bytes))
}
