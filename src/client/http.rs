//! Calls over HTTP/1.1, one after the other on one connection.

use serde_json::Value;

use super::wire::{Deadline, Wire};
use nereid_protocol::http1::{JSON_LENGTH, RequestBody, RequestHead, ResponseParser, ResponseSink};

/// More than any answer to a call has.
pub const ANSWER_BYTES_MAX: usize = 64 << 20;

/// How a call failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallError {
    /// The connection failed, before the call or during it.
    Connection(String),
    /// No answer, or no more of it, came in time. A second try would wait as long, and have the work done twice.
    TimedOut(String),
    /// The server refused.
    Refused(String),
}

/// A connection, and the headers that each request on it carries.
pub struct HttpClient {
    wire: Wire,
    host: String,
    headers: Vec<(String, String)>,
    parser: ResponseParser,
}

/// What the server answered.
#[derive(Debug, Default)]
pub struct Answer {
    pub status: u16,
    /// How many bytes of the body are JSON, where binary tensors follow.
    pub json_len: Option<usize>,
    pub body: Vec<u8>,
    done: bool,
}

impl ResponseSink for Answer {
    fn head(&mut self, status: u16, headers: &[(&str, &[u8])]) {
        self.status = status;
        let length = headers.iter().find(|(name, _)| name.eq_ignore_ascii_case(JSON_LENGTH));
        self.json_len = length.and_then(|(_, value)| std::str::from_utf8(value).ok()?.trim().parse().ok());
    }

    fn body(&mut self, bytes: &[u8]) {
        self.body.extend_from_slice(bytes);
    }

    fn done(&mut self, _keep_alive: bool) {
        self.done = true;
    }
}

impl HttpClient {
    pub fn new(wire: Wire, host: String, headers: Vec<(String, String)>) -> HttpClient {
        HttpClient { wire, host, headers, parser: ResponseParser::default() }
    }

    /// A page as it is.
    pub fn page(&mut self, path: &str) -> Result<String, CallError> {
        let answer = self.exchange("GET", path, "")?;
        match answer.status {
            200 => Ok(String::from_utf8_lossy(&answer.body).into_owned()),
            status => Err(CallError::Refused(format!("HTTP status {status}"))),
        }
    }

    /// A call with an answer in JSON.
    pub fn call(&mut self, method: &str, target: &str, body: &str) -> Result<Value, CallError> {
        let answer = self.exchange(method, target, body)?;
        let value: Value = serde_json::from_slice(&answer.body).unwrap_or(Value::Null);
        match (answer.status, value["error"].as_str()) {
            (200, _) => Ok(value),
            (_, Some(error)) => Err(CallError::Refused(error.to_owned())),
            (status, None) => {
                let text = String::from_utf8_lossy(&answer.body);
                Err(CallError::Refused(format!("HTTP status {status} {}", text.trim()).trim().to_owned()))
            }
        }
    }

    /// Sends a request and reads the answer to it, whatever its status.
    pub fn exchange(&mut self, method: &str, target: &str, body: &str) -> Result<Answer, CallError> {
        self.exchange_bytes(method, target, &[("Content-Type", "application/json")], body.as_bytes(), ANSWER_BYTES_MAX)
    }

    /// The same with headers of its own, with any bytes as the body, and with a bound on those of the answer.
    pub fn exchange_bytes(
        &mut self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: &[u8],
        answer_bytes_max: usize,
    ) -> Result<Answer, CallError> {
        let mut headers = headers.to_vec();
        headers.extend(self.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        let kind = if method == "GET" { RequestBody::None } else { RequestBody::Length(body.len()) };
        let head = RequestHead { method, target, host: &self.host, headers: &headers, body: kind };
        let mut request = Vec::new();
        head.encode(&mut request);
        request.extend_from_slice(body);
        self.wire.send(&request)?;
        self.parser.sent(false);
        let mut answer = Answer::default();
        let mut buffer = vec![0; 64 * 1024];
        let mut deadline = Deadline::new(self.wire.patience());
        while !answer.done {
            match self.wire.receive_until(&mut buffer, deadline.at()) {
                Ok(n) => {
                    let received = self.parser.receive(buffer.get(..n).unwrap_or_default(), &mut answer);
                    received.map_err(|error| CallError::Connection(error.to_string()))?;
                }
                // An answer without a length lasts up to here.
                Err(CallError::Connection(reason)) => {
                    self.parser.end(&mut answer).map_err(|_| CallError::Connection(reason))?;
                }
                Err(error) => return Err(error),
            }
            deadline.note(answer.body.len(), answer.status != 0);
            if answer.body.len() > answer_bytes_max {
                return Err(CallError::Connection("an answer that does not end".to_owned()));
            }
        }
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::time::Duration;

    use super::*;
    use crate::endpoint::tests::listen;

    #[test]
    fn single_bytes_do_not_put_the_end_of_the_wait_off() {
        let (listener, endpoint) = listen();
        let server = std::thread::spawn(move || {
            let mut peer = listener.accept().unwrap().0;
            while peer.write_all(b"H").is_ok() {
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let wire = Wire::connect(&endpoint, None, Duration::from_millis(300)).unwrap();
        let mut client = HttpClient::new(wire, endpoint.authority(), Vec::new());
        assert!(matches!(client.page("/"), Err(CallError::TimedOut(_))));
        drop(client);
        server.join().unwrap();
    }
}
