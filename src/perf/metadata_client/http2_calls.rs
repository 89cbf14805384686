//! Unary calls over HTTP/2, one after the other, on a connection that blocks.

use crate::exchange::{call_head, end_of_call, http2_config};
use nereid_client::{CallError, Wire};
use nereid_memory::Pool;
use nereid_protocol::grpc::PREFIX_BYTES;
use nereid_protocol::http2::{Connection, ErrorCode, Handler, Headers, ResetCause, StreamId};

/// More than any answer to a question has.
const ANSWER_BYTES_MAX: usize = 64 << 20;
const POOL_BYTES: usize = 256 << 20;

pub struct Http2Calls {
    wire: Wire,
    authority: String,
    tls: bool,
    headers: Vec<(String, String)>,
    connection: Connection,
}

/// The answer to the one call that is open.
#[derive(Default)]
struct Answer {
    frame: Vec<u8>,
    end: Option<Result<(), String>>,
}

impl Handler for Answer {
    fn headers(&mut self, _stream: StreamId, headers: &Headers, end_stream: bool) {
        if end_stream || headers.status() != Some(b"200") {
            self.end = Some(end_of_call(headers));
        }
    }

    fn data(&mut self, _stream: StreamId, bytes: &[u8], end_stream: bool) -> usize {
        if self.frame.len() < ANSWER_BYTES_MAX {
            self.frame.extend_from_slice(bytes);
        }
        if end_stream {
            self.end.get_or_insert_with(|| Err("an answer without a gRPC status".to_owned()));
        }
        bytes.len()
    }

    fn trailers(&mut self, _stream: StreamId, headers: &Headers) {
        self.end = Some(end_of_call(headers));
    }

    fn reset(&mut self, _stream: StreamId, code: ErrorCode, _cause: ResetCause) {
        self.end.get_or_insert_with(|| Err(format!("the call was reset: {code}")));
    }
}

impl Http2Calls {
    pub fn new(wire: Wire, authority: String, tls: bool, headers: Vec<(String, String)>) -> Http2Calls {
        let connection = Connection::client(http2_config(), Pool::new(POOL_BYTES));
        Http2Calls { wire, authority, tls, headers, connection }
    }

    /// The message of the answer.
    pub fn call(&mut self, method: &str, message: &[u8]) -> Result<Vec<u8>, CallError> {
        let head = call_head(&self.authority, self.tls, method, None, &self.headers);
        let fields = head.iter().map(|(name, value)| (&name[..], &value[..]));
        let broken = |error: &dyn std::fmt::Display| CallError::Connection(error.to_string());
        let stream = self.connection.open(fields, false).map_err(|error| broken(&error))?;
        let mut frame = vec![0];
        frame.extend_from_slice(&u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes());
        frame.extend_from_slice(message);
        self.connection.send_bytes(stream, &frame, true).map_err(|error| broken(&error))?;
        let mut answer = Answer::default();
        let mut buffer = vec![0; 64 * 1024];
        while answer.end.is_none() {
            let waiting = self.connection.output();
            let output = waiting.to_vec();
            waiting.clear();
            self.wire.send(&output)?;
            let n = self.wire.receive(&mut buffer)?;
            let received = self.connection.receive(buffer.get(..n).unwrap_or_default(), &mut answer);
            received.map_err(|error| broken(&error))?;
        }
        answer.end.unwrap_or(Ok(())).map_err(CallError::Refused)?;
        Ok(answer.frame.split_off(PREFIX_BYTES.min(answer.frame.len())))
    }
}
