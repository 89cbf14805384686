//! A scripted HTTP/1.1 peer: sends exactly the given bytes, reads responses one by one.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};

use serde_json::Value;

use crate::server::PATIENCE;

/// One connection. Responses may be pipelined: bytes after a response are kept for the next.
pub struct Peer {
    stream: TcpStream,
    received: Vec<u8>,
}

/// Other tests start processes, which have copies of every descriptor for a short time: the server would detect a close
/// of ours late.
impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// One response.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Peer {
    pub fn connect(address: SocketAddr) -> Peer {
        Peer::try_connect(address).unwrap_or_else(|error| panic!("connect to {address}: {error}"))
    }

    pub fn try_connect(address: SocketAddr) -> std::io::Result<Peer> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Peer { stream, received: Vec::new() })
    }

    /// Its own end of the connection.
    pub fn local(&self) -> SocketAddr {
        self.stream.local_addr().expect("the address of a connected socket")
    }

    pub fn send(&mut self, bytes: &[u8]) -> &mut Peer {
        self.stream.write_all(bytes).expect("send to the server");
        self
    }

    /// Sends; false if the server no longer accepts bytes (it may have closed the connection after an error).
    pub fn try_send(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).is_ok()
    }

    /// Ends the sending direction of the connection.
    pub fn finish(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    pub fn get(&mut self, path: &str) -> Answer {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n").as_bytes()).answer()
    }

    pub fn post(&mut self, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        self.send(&request("POST", path, headers, body)).answer()
    }

    /// The next final response; panics if the connection ends or the bytes are not HTTP.
    pub fn answer(&mut self) -> Answer {
        self.try_answer().unwrap_or_else(|problem| panic!("expected an answer: {problem}"))
    }

    /// The head of the next response, whose chunks are then read one by one.
    pub fn head(&mut self) -> Answer {
        self.try_head().unwrap_or_else(|problem| panic!("expected an answer: {problem}"))
    }

    /// The next chunk; None after the last one. Err if the connection ends in between.
    pub fn try_chunk(&mut self) -> Result<Option<Vec<u8>>, String> {
        let line_end = loop {
            if let Some(at) = find(&self.received, b"\r\n") {
                break at;
            }
            self.read_more()?;
        };
        let line = String::from_utf8_lossy(&self.received[..line_end]).into_owned();
        self.received.drain(..line_end + 2);
        let size = usize::from_str_radix(line.trim(), 16).map_err(|_| format!("chunk size {line:?}"))?;
        let chunk = self.exactly(size + 2)?;
        if !chunk.ends_with(b"\r\n") {
            return Err(format!("a chunk of {size} bytes ends with {:?}", chunk.get(size..)));
        }
        Ok((size > 0).then(|| chunk[..size].to_vec()))
    }

    pub fn chunk(&mut self) -> Option<Vec<u8>> {
        self.try_chunk().unwrap_or_else(|problem| panic!("expected a chunk: {problem}"))
    }

    fn try_head(&mut self) -> Result<Answer, String> {
        let head_end = loop {
            if let Some(at) = find(&self.received, b"\r\n\r\n") {
                break at + 4;
            }
            self.read_more()?;
        };
        let head = String::from_utf8_lossy(&self.received[..head_end]).into_owned();
        self.received.drain(..head_end);
        let mut lines = head.split("\r\n");
        let status_line = lines.next().unwrap_or_default();
        let status = status_line.strip_prefix("HTTP/1.1 ").or(status_line.strip_prefix("HTTP/1.0 "));
        let status = status.and_then(|rest| rest.get(..3)).and_then(|code| code.parse().ok());
        let status: u16 = status.ok_or_else(|| format!("no status line: {head:?}"))?;
        let headers = lines.filter_map(|line| line.split_once(':'));
        let headers = headers.map(|(name, value)| (name.to_string(), value.trim().to_string())).collect();
        Ok(Answer { status, headers, body: Vec::new() })
    }

    /// The next response, including interim ones (1xx); Err describes what was received instead.
    pub fn try_answer(&mut self) -> Result<Answer, String> {
        let mut answer = self.try_head()?;
        let chunked = answer.header("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked"));
        if chunked {
            answer.body = self.chunks()?;
        } else if let Some(length) = answer.header("content-length") {
            let length = length.parse().map_err(|_| format!("content-length: {length:?}"))?;
            answer.body = self.exactly(length)?;
        } else if answer.status >= 200 && answer.status != 204 {
            // Without a length the body ends with the connection.
            while self.read_more().is_ok() {}
            answer.body = std::mem::take(&mut self.received);
        }
        Ok(answer)
    }

    /// Asserts that the server closes the connection without sending further bytes.
    pub fn expect_close(&mut self) {
        let problem = match self.read_once() {
            Ok(0) => None,
            Ok(_) => Some("more bytes".to_owned()),
            // Of a server that does not read what it has refused.
            Err(error) if error.kind() == ErrorKind::ConnectionReset => None,
            Err(error) => Some(error.to_string()),
        };
        let rest = String::from_utf8_lossy(&self.received);
        assert!(problem.is_none() && rest.is_empty(), "expected the connection to end, got {problem:?}, {rest:?}");
    }

    fn chunks(&mut self) -> Result<Vec<u8>, String> {
        let mut body = Vec::new();
        while let Some(chunk) = self.try_chunk()? {
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    }

    fn exactly(&mut self, length: usize) -> Result<Vec<u8>, String> {
        while self.received.len() < length {
            self.read_more()?;
        }
        Ok(self.received.drain(..length).collect())
    }

    fn read_more(&mut self) -> Result<(), String> {
        let problem = match self.read_once() {
            Ok(0) => "the connection ended".to_owned(),
            Ok(_) => return Ok(()),
            Err(error) => error.to_string(),
        };
        Err(format!("{problem} after {:?}", String::from_utf8_lossy(&self.received)))
    }

    /// Appends what comes next, and returns how many bytes it is; 0 at the end.
    fn read_once(&mut self) -> std::io::Result<usize> {
        let mut buffer = [0u8; 65536];
        loop {
            match self.stream.read(&mut buffer) {
                // The kernel interrupts reads that have a timeout for more than signals: also while it takes down an
                // io_uring that this thread has closed.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
                Ok(count) => {
                    self.received.extend_from_slice(&buffer[..count]);
                    return Ok(count);
                }
            }
        }
    }
}

impl Answer {
    /// The first header with this name, in any case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {:?}", self.text()))
    }

    /// The text of an error response (contract/http.md section 2): the body must be exactly `{"error":"<text>"}`.
    pub fn error(&self) -> String {
        let json: Value = serde_json::from_slice(&self.body).unwrap_or(Value::Null);
        match json.as_object() {
            Some(members) if members.len() == 1 => members.get("error").and_then(Value::as_str).map(str::to_string),
            _ => None,
        }
        .unwrap_or_else(|| panic!("expected {{\"error\":…}}, got {} {:?}", self.status, self.text()))
    }

    /// The leading JSON and the binary data of an inference response.
    pub fn split(&self) -> (Value, &[u8]) {
        match self.header("inference-header-content-length") {
            None => (self.json(), &[]),
            Some(length) => {
                let length: usize = length.parse().expect("the length of the JSON");
                assert!(length <= self.body.len(), "JSON of {length} bytes in {} bytes", self.body.len());
                let (json, tail) = self.body.split_at(length);
                (serde_json::from_slice(json).expect("the leading JSON"), tail)
            }
        }
    }
}

/// The bytes of a request with a Content-Length.
pub fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut bytes = format!("{method} {path} HTTP/1.1\r\nHost: test\r\nContent-Length: {}\r\n", body.len());
    for (name, value) in headers {
        bytes.push_str(&format!("{name}: {value}\r\n"));
    }
    bytes.push_str("\r\n");
    let mut bytes = bytes.into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

/// The bytes of an inference request with binary data after the JSON.
pub fn infer_with_tail(path: &str, json: &str, tail: &[u8]) -> Vec<u8> {
    let length = json.len().to_string();
    let body = [json.as_bytes(), tail].concat();
    request("POST", path, &[("Inference-Header-Content-Length", &length)], &body)
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}
