//! Unary calls over gRPC, one after the other on one connection.

use super::http::CallError;
use super::wire::Wire;
use nereid_memory::Pool;
use nereid_protocol::grpc::{Code, PREFIX_BYTES, decode_message};
use nereid_protocol::http2::{Config, Connection, ErrorCode, Handler, Headers, ResetCause, StreamId};

/// More than any answer to a call has.
const ANSWER_BYTES_MAX: usize = 1 << 30;
const POOL_BYTES: usize = 2 << 30;

/// A connection, and the metadata that each call on it carries.
pub struct GrpcClient {
    wire: Wire,
    authority: String,
    has_tls: bool,
    metadata: Vec<(String, String)>,
    connection: Connection,
}

/// How a call ended that the server answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrpcAnswer {
    pub code: Code,
    /// The text of the status.
    pub text: String,
    /// Without its prefix; empty where there is none.
    pub message: Vec<u8>,
}

/// The answer to the one call that is open.
#[derive(Default)]
struct Collected {
    frame: Vec<u8>,
    end: Option<Result<(Code, String), String>>,
}

impl Collected {
    fn end(&mut self, headers: &Headers) {
        self.end = Some(match headers.get(b"grpc-status") {
            Some(status) => {
                let text = decode_message(headers.get(b"grpc-message").unwrap_or_default());
                Ok((Code::from_header(status), text))
            }
            None => {
                let status = headers.status().map_or_else(|| "none".into(), String::from_utf8_lossy);
                Err(format!("an answer without a gRPC status (HTTP status {status})"))
            }
        });
    }
}

impl Handler for Collected {
    fn headers(&mut self, _stream: StreamId, headers: &Headers, end_stream: bool) {
        if end_stream || headers.status() != Some(b"200") {
            self.end(headers);
        }
    }

    fn data(&mut self, _stream: StreamId, bytes: &[u8], end_stream: bool) -> usize {
        match self.frame.len().saturating_add(bytes.len()) <= ANSWER_BYTES_MAX {
            true => self.frame.extend_from_slice(bytes),
            false => self.end = Some(Err("an answer that does not end".to_owned())),
        }
        if end_stream {
            self.end.get_or_insert_with(|| Err("an answer without a gRPC status".to_owned()));
        }
        bytes.len()
    }

    fn trailers(&mut self, _stream: StreamId, headers: &Headers) {
        self.end(headers);
    }

    fn reset(&mut self, _stream: StreamId, code: ErrorCode, _cause: ResetCause) {
        self.end.get_or_insert_with(|| Err(format!("the call was reset: {code}")));
    }
}

impl GrpcClient {
    pub fn new(wire: Wire, authority: String, has_tls: bool, metadata: Vec<(String, String)>) -> GrpcClient {
        // Windows that whole tensors fit into.
        let config = Config { stream_window: 16 << 20, connection_window: 64 << 20, ..Config::default() };
        let connection = Connection::client(config, Pool::new(POOL_BYTES));
        GrpcClient { wire, authority, has_tls, metadata, connection }
    }

    /// Calls `/package.Service/Method` with an encoded message, and further metadata.
    pub fn unary(
        &mut self,
        path: &str,
        message: &[u8],
        metadata: &[(String, String)],
    ) -> Result<GrpcAnswer, CallError> {
        let scheme = if self.has_tls { "https" } else { "http" };
        let mut fields: Vec<(Vec<u8>, &[u8])> = [
            (":method", "POST"),
            (":scheme", scheme),
            (":path", path),
            (":authority", &self.authority),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("user-agent", "nereid"),
            ("grpc-accept-encoding", "identity"),
        ]
        .into_iter()
        .map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes()))
        .collect();
        let given = self.metadata.iter().chain(metadata);
        fields.extend(given.map(|(name, value)| (name.to_ascii_lowercase().into_bytes(), value.as_bytes())));
        let broken = |error: &dyn std::fmt::Display| CallError::Connection(error.to_string());
        let fields = fields.iter().map(|(name, value)| (&name[..], *value));
        let stream = self.connection.open(fields, false).map_err(|error| broken(&error))?;
        let length =
            u32::try_from(message.len()).map_err(|_| CallError::Refused("a message is too long".to_owned()))?;
        let mut frame = vec![0];
        frame.extend_from_slice(&length.to_be_bytes());
        frame.extend_from_slice(message);
        self.connection.send_bytes(stream, &frame, true).map_err(|error| broken(&error))?;
        let mut collected = Collected::default();
        let mut buffer = vec![0; 64 * 1024];
        while collected.end.is_none() {
            let waiting = self.connection.output();
            let output = waiting.to_vec();
            waiting.clear();
            self.wire.send(&output).map_err(CallError::Connection)?;
            let n = self.wire.receive(&mut buffer).map_err(CallError::Connection)?;
            let received = self.connection.receive(buffer.get(..n).unwrap_or_default(), &mut collected);
            received.map_err(|error| broken(&error))?;
        }
        let Collected { mut frame, end } = collected;
        let end = end.unwrap_or_else(|| Err("the call has no end".to_owned()));
        let (code, text) = end.map_err(CallError::Connection)?;
        let message = frame.split_off(frame.len().min(PREFIX_BYTES));
        Ok(GrpcAnswer { code, text, message })
    }
}
