//! An exchange as a shard hands it over, and the record that the writer's thread makes of it.

use std::io;

use bytes::Bytes;

use super::format::{AnswerFacts, Protocol, Record, RecordHead, RequestFacts};
use super::message::{MessageError, facts_of_grpc, facts_of_http, outputs_of_grpc, outputs_of_http};
use super::redaction::Redaction;
use super::unpack::unpack;
use nereid_memory::Slice;

/// Says how many bytes of a body over HTTP are JSON; what is recorded has its own.
const JSON_LENGTH: &str = "Inference-Header-Content-Length";
/// Headers that a recording leaves out, because its bodies are plain and of known length.
const LEFT_OUT: [&str; 4] = ["content-encoding", "content-length", "transfer-encoding", "grpc-encoding"];
/// In front of a message over gRPC.
const PREFIX_BYTES: usize = 5;

/// Bytes of a body or a message, in order.
#[derive(Debug, Default)]
pub struct Body {
    pub pieces: Vec<Slice>,
    /// Of the whole, of which `pieces` may be the beginning.
    pub byte_size: u64,
    /// Bytes that `pieces` keep from being given back, if these are more than they have.
    pub pinned: u64,
    pub is_packed: bool,
    /// Over HTTP: the bytes that are JSON; none: all of them.
    pub json_len: Option<usize>,
    /// Over gRPC: the prefix of the message is in front of it, and says whether it is packed.
    pub has_prefix: bool,
}

impl Body {
    /// Bytes that it holds.
    pub fn held(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.len() as u64).sum::<u64>().max(self.pinned)
    }

    fn bytes(&self) -> Vec<u8> {
        let mut all = Vec::with_capacity(self.pieces.iter().map(|piece| piece.len()).sum());
        self.pieces.iter().for_each(|piece| piece.append_to(&mut all));
        all
    }

    /// All of it, unpacked and without a prefix.
    fn plain(&self) -> io::Result<Vec<u8>> {
        let mut bytes = self.bytes();
        let mut is_packed = self.is_packed;
        if self.has_prefix && !bytes.is_empty() {
            is_packed = bytes.first() == Some(&1);
            bytes.drain(..bytes.len().min(PREFIX_BYTES));
        }
        if is_packed { unpack(&bytes) } else { Ok(bytes) }
    }
}

/// An answer as it went out.
#[derive(Debug, Default)]
pub struct Answer {
    /// The status over HTTP, the code over gRPC.
    pub status: u16,
    pub message: String,
    pub body: Body,
}

/// A request for inference and its answer.
#[derive(Debug)]
pub struct Exchange {
    pub at_ns: u64,
    pub took_ns: u64,
    pub protocol: Protocol,
    /// Over HTTP as the path has them; over gRPC the message has them.
    pub model: String,
    pub version: String,
    /// Over HTTP.
    pub path: String,
    /// Where headers are recorded.
    pub headers: Vec<(String, String)>,
    pub request: Body,
    /// None: the client left.
    pub answer: Option<Answer>,
}

impl Exchange {
    /// Bytes that it holds.
    pub fn held(&self) -> u64 {
        self.request.held().saturating_add(self.answer.as_ref().map_or(0, |answer| answer.body.held()))
    }

    /// What is written of it. Nothing of a body remains that cannot be read and therefore not be redacted.
    pub(crate) fn record(self, data: bool, redaction: &Redaction) -> Record {
        let Exchange { at_ns, took_ns, protocol, model, version, path, headers, request, answer } = self;
        let (mut model, mut version) = (model, version);
        let (read, request_body) = match protocol {
            Protocol::Http => read_http_request(&request, data, redaction),
            Protocol::Grpc => match read_grpc_request(&request, data, redaction) {
                Ok((facts, body, of_model, of_version)) => {
                    (model, version) = (of_model, of_version);
                    (Ok(facts), body)
                }
                Err(error) => (Err(error), None),
            },
        };
        let mut facts = read.unwrap_or_else(|_| RequestFacts { malformed: true, ..RequestFacts::default() });
        facts.byte_size = request.byte_size;
        if data {
            facts.path = path;
            let kept = headers.into_iter().filter(|(name, _)| {
                !name.eq_ignore_ascii_case(JSON_LENGTH) && !LEFT_OUT.iter().any(|out| name.eq_ignore_ascii_case(out))
            });
            facts.headers = kept.map(|(name, value)| (name.clone(), redaction.header(&name, &value))).collect();
        }
        let (answer, answer_body) = match answer {
            None => (None, None),
            Some(answer) => {
                let (facts, body) = read_answer(protocol, answer, data, redaction);
                (Some(facts), body)
            }
        };
        let head = RecordHead { at_ns, took_ns, protocol, model, version, request: facts, answer };
        Record { head, request_body, answer_body }
    }
}

type Read = Result<RequestFacts, MessageError>;

fn broken(error: io::Error) -> MessageError {
    MessageError::Json(error.to_string())
}

/// The JSON of a body, redacted, and the body around it.
struct HttpBody {
    body: Vec<u8>,
    json_len: Option<usize>,
}

impl HttpBody {
    fn read(from: &Body, redaction: &Redaction) -> Result<HttpBody, MessageError> {
        let body = from.plain().map_err(broken)?;
        let of_json = from.json_len.unwrap_or(body.len());
        let json = body.get(..of_json).ok_or(MessageError::JsonLength { json: of_json, body: body.len() })?;
        // A body without JSON has no parameters either.
        let redacted = if json.is_empty() { None } else { redaction.json(json)? };
        Ok(match redacted {
            None => HttpBody { json_len: from.json_len, body },
            Some(mut kept) => {
                let json_len = from.json_len.map(|_| kept.len());
                kept.extend_from_slice(body.get(of_json..).unwrap_or_default());
                HttpBody { body: kept, json_len }
            }
        })
    }

    fn json(&self) -> &[u8] {
        self.body.get(..self.json_len.unwrap_or(self.body.len())).unwrap_or_default()
    }
}

fn read_http_request(request: &Body, data: bool, redaction: &Redaction) -> (Read, Option<Vec<u8>>) {
    let read = HttpBody::read(request, redaction).and_then(|read| {
        let mut facts = match read.json_len {
            Some(0) => RequestFacts::default(),
            _ => facts_of_http(read.json())?,
        };
        facts.json_byte_size = read.json_len.map(|len| len as u64);
        Ok((facts, read.body))
    });
    match read {
        Ok((facts, body)) => (Ok(facts), data.then_some(body)),
        Err(error) => (Err(error), None),
    }
}

type GrpcRead = (RequestFacts, Option<Vec<u8>>, String, String);

fn read_grpc_request(request: &Body, data: bool, redaction: &Redaction) -> Result<GrpcRead, MessageError> {
    let message = Bytes::from(request.plain().map_err(broken)?);
    let (facts, model, version) = facts_of_grpc(message.clone())?;
    let body = match data {
        true => Some(redaction.grpc_request(message.clone())?.unwrap_or_else(|| message.into())),
        false => None,
    };
    Ok((facts, body, model, version))
}

fn read_answer(
    protocol: Protocol,
    answer: Answer,
    data: bool,
    redaction: &Redaction,
) -> (AnswerFacts, Option<Vec<u8>>) {
    let Answer { status, message, body } = answer;
    let message = if data { message } else { String::new() };
    let mut facts = AnswerFacts { status, message, byte_size: body.byte_size, ..AnswerFacts::default() };
    let kept = match protocol {
        Protocol::Http => HttpBody::read(&body, redaction).and_then(|read| {
            facts.outputs = outputs_of_http(read.json())?;
            facts.json_byte_size = read.json_len.map(|len| len as u64);
            Ok(read.body)
        }),
        Protocol::Grpc if status != 0 => Ok(Vec::new()),
        Protocol::Grpc => body.plain().map_err(broken).and_then(|message| {
            let message = Bytes::from(message);
            facts.outputs = outputs_of_grpc(message.clone())?;
            Ok(redaction.grpc_answer(message.clone())?.unwrap_or_else(|| message.into()))
        }),
    };
    (facts, kept.ok().filter(|_| data))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redaction::REDACTED;

    fn body(bytes: &[u8], json_len: Option<usize>) -> Body {
        let pieces = bytes.chunks(5).map(Slice::copy_of).collect();
        Body { pieces, byte_size: bytes.len() as u64, json_len, ..Body::default() }
    }

    fn http(request: &[u8], json_len: Option<usize>) -> Exchange {
        let headers = [("Authorization", "x"), ("Content-Encoding", "gzip"), ("X-A", "b")];
        Exchange {
            at_ns: 1,
            took_ns: 2,
            protocol: Protocol::Http,
            model: "m".to_owned(),
            version: String::new(),
            path: "/v2/models/m/infer".to_owned(),
            headers: headers.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            request: body(request, json_len),
            answer: Some(Answer { status: 200, message: String::new(), body: body(br#"{"outputs":[]}"#, None) }),
        }
    }

    const JSON: &str = r#"{"parameters":{"password":"p"},"inputs":[{"name":"x","datatype":"INT8","shape":[1],
        "parameters":{"binary_data_size":1}}]}"#;

    #[test]
    fn contents_are_left_out_unless_they_are_wanted() {
        let sent = [JSON.as_bytes(), b"7"].concat();
        let redaction = Redaction::default();
        let bare = http(&sent, Some(JSON.len())).record(false, &redaction);
        assert_eq!((&bare.request_body, &bare.answer_body), (&None, &None));
        assert!(bare.head.request.headers.is_empty() && bare.head.request.path.is_empty());
        assert_eq!(bare.head.request.inputs[0].byte_size, Some(1));
        assert_eq!(bare.head.request.parameters, ["password"]);
        let full = http(&sent, Some(JSON.len())).record(true, &redaction);
        let kept = full.request_body.unwrap();
        let json_len = usize::try_from(full.head.request.json_byte_size.unwrap()).unwrap();
        assert!(String::from_utf8_lossy(&kept[..json_len]).contains(REDACTED));
        assert_eq!(&kept[json_len..], b"7");
        let headers = &full.head.request.headers;
        assert_eq!(headers[..], [("Authorization", REDACTED), ("X-A", "b")].map(|(a, b)| (a.to_owned(), b.to_owned())));
        assert_eq!(full.answer_body.as_deref(), Some(&br#"{"outputs":[]}"#[..]));
    }

    #[test]
    fn a_body_that_cannot_be_read_is_not_kept() {
        for (request, json_len) in [(&b"{\"password\":1"[..], None), (b"{}", Some(3)), (b"\xff\xfe", None)] {
            let record = http(request, json_len).record(true, &Redaction::default());
            assert!(record.head.request.malformed && record.request_body.is_none(), "{request:?}");
        }
        let mut packed = http(b"no gzip", None);
        packed.request.is_packed = true;
        assert!(packed.record(true, &Redaction::default()).head.request.malformed);
        let mut broken = http(b"", None);
        broken.protocol = Protocol::Grpc;
        broken.request = Body { has_prefix: true, ..body(b"\0\0\0\0\x01\xff", None) };
        assert!(broken.record(true, &Redaction::default()).head.request.malformed);
        let raw = http(b"raw", Some(0)).record(true, &Redaction::default());
        assert_eq!((raw.head.request.malformed, raw.request_body.as_deref()), (false, Some(&b"raw"[..])));
    }
}
