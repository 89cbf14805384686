//! Unary calls over gRPC, one after the other on one connection.

use super::http::CallError;
use super::wire::{Deadline, Wire};
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

/// The answer to the one call that is open. What still comes for an earlier one is read and dropped.
struct Collected {
    stream: StreamId,
    frame: Vec<u8>,
    has_head: bool,
    end: Option<Result<(Code, String), CallError>>,
}

impl Collected {
    fn new(stream: StreamId) -> Collected {
        Collected { stream, frame: Vec::new(), has_head: false, end: None }
    }

    fn end(&mut self, headers: &Headers) {
        self.end = Some(match headers.get(b"grpc-status") {
            Some(status) => {
                let text = decode_message(headers.get(b"grpc-message").unwrap_or_default());
                Ok((Code::from_header(status), text))
            }
            None => {
                let status = headers.status().map_or_else(|| "none".into(), String::from_utf8_lossy);
                Err(CallError::Refused(format!("an answer without a gRPC status (HTTP status {status})")))
            }
        });
    }
}

impl Handler for Collected {
    fn headers(&mut self, stream: StreamId, headers: &Headers, end_stream: bool) {
        if stream != self.stream {
            return;
        }
        self.has_head = true;
        if end_stream || headers.status() != Some(b"200") {
            self.end(headers);
        }
    }

    fn data(&mut self, stream: StreamId, bytes: &[u8], end_stream: bool) -> usize {
        if stream != self.stream {
            return bytes.len();
        }
        match self.frame.len().saturating_add(bytes.len()) <= ANSWER_BYTES_MAX {
            true => self.frame.extend_from_slice(bytes),
            false => self.end = Some(Err(CallError::Refused("an answer that does not end".to_owned()))),
        }
        if end_stream {
            let missing = || Err(CallError::Refused("an answer without a gRPC status".to_owned()));
            self.end.get_or_insert_with(missing);
        }
        bytes.len()
    }

    fn trailers(&mut self, stream: StreamId, headers: &Headers) {
        if stream == self.stream {
            self.end(headers);
        }
    }

    fn reset(&mut self, stream: StreamId, code: ErrorCode, cause: ResetCause) {
        if stream == self.stream {
            let text = format!("the call was reset: {code}");
            // A server that shuts down has not seen the call; otherwise it has answered it in its way.
            let is_unseen = matches!(cause, ResetCause::GoingAway) || code == ErrorCode::REFUSED_STREAM;
            let error = if is_unseen { CallError::Connection(text) } else { CallError::Refused(text) };
            self.end.get_or_insert(Err(error));
        }
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
        let mut collected = Collected::new(stream);
        let mut buffer = vec![0; 64 * 1024];
        let mut deadline = Deadline::new(self.wire.patience());
        while collected.end.is_none() {
            let waiting = self.connection.output();
            let output = waiting.to_vec();
            waiting.clear();
            self.wire.send(&output)?;
            // Bytes of this call in both directions: pings and other streams earn it no time.
            let sent = frame.len().saturating_sub(self.connection.unsent(stream));
            deadline.note(sent.saturating_add(collected.frame.len()), collected.has_head);
            let n = self.wire.receive_until(&mut buffer, deadline.at())?;
            let received = self.connection.receive(buffer.get(..n).unwrap_or_default(), &mut collected);
            received.map_err(|error| broken(&error))?;
        }
        // An answer may come before the whole request is sent; then the rest is of no use.
        self.connection.reset(stream, ErrorCode::CANCEL);
        let Collected { mut frame, end, .. } = collected;
        let (code, text) = end.unwrap_or_else(|| Err(CallError::Connection("the call has no end".to_owned())))?;
        let message = frame.split_off(frame.len().min(PREFIX_BYTES));
        Ok(GrpcAnswer { code, text, message })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_late_for_an_earlier_call_is_dropped() {
        let mut connection = Connection::client(Config::default(), Pool::new(1 << 20));
        let mut open = || {
            let fields: [(&[u8], &[u8]); 4] =
                [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"h")];
            let stream = connection.open(fields, false).unwrap();
            connection.reset(stream, ErrorCode::NO_ERROR);
            stream
        };
        let (earlier, stream) = (open(), open());
        let mut collected = Collected::new(stream);
        assert_eq!(collected.data(earlier, b"ab", true), 2);
        collected.reset(earlier, ErrorCode::NO_ERROR, ResetCause::Peer);
        assert!(collected.end.is_none() && collected.frame.is_empty());
        assert_eq!(collected.data(stream, b"c", false), 1);
        assert_eq!(collected.frame, b"c");
        collected.reset(stream, ErrorCode::INTERNAL_ERROR, ResetCause::Peer);
        assert!(matches!(collected.end, Some(Err(CallError::Refused(_)))));
    }
}
