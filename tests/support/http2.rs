//! A scripted HTTP/2 peer: sends exactly the frames it is given, reads frames one by one. It sends no acknowledgements
//! and no replies by itself.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::server::PATIENCE;

pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Types of frames (RFC 9113 section 6).
pub mod kind {
    pub const DATA: u8 = 0;
    pub const HEADERS: u8 = 1;
    pub const PRIORITY: u8 = 2;
    pub const RST_STREAM: u8 = 3;
    pub const SETTINGS: u8 = 4;
    pub const PUSH_PROMISE: u8 = 5;
    pub const PING: u8 = 6;
    pub const GOAWAY: u8 = 7;
    pub const WINDOW_UPDATE: u8 = 8;
    pub const CONTINUATION: u8 = 9;
}

/// Error codes (section 7).
pub mod error {
    pub const NO_ERROR: u32 = 0;
    pub const PROTOCOL_ERROR: u32 = 1;
    pub const FLOW_CONTROL_ERROR: u32 = 3;
    pub const STREAM_CLOSED: u32 = 5;
    pub const FRAME_SIZE_ERROR: u32 = 6;
    pub const REFUSED_STREAM: u32 = 7;
    pub const CANCEL: u32 = 8;
    pub const COMPRESSION_ERROR: u32 = 9;
    pub const ENHANCE_YOUR_CALM: u32 = 11;
}

pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;
pub const ACK: u8 = 1;

/// One frame.
#[derive(Clone, Debug, PartialEq)]
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

impl Frame {
    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// A number of four bytes at `at` of the payload: a last stream, a code, an increment.
    pub fn number(&self, at: usize) -> u32 {
        let bytes = self.payload.get(at..at + 4).unwrap_or_else(|| panic!("too short: {self:?}"));
        u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }
}

pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

pub fn settings(values: &[(u16, u32)]) -> Vec<u8> {
    let mut payload = Vec::new();
    for (id, value) in values {
        payload.extend(id.to_be_bytes());
        payload.extend(value.to_be_bytes());
    }
    frame(kind::SETTINGS, 0, 0, &payload)
}

/// Literal header fields without indexing, no Huffman code (RFC 7541 section 6.2.2).
pub fn fields(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            put_length(&mut block, text.len());
            block.extend_from_slice(text.as_bytes());
        }
    }
    block
}

/// A length of seven bits, continued where it is longer (section 5.1).
fn put_length(block: &mut Vec<u8>, length: usize) {
    if length < 127 {
        return block.push(length as u8);
    }
    block.push(127);
    let mut rest = length - 127;
    while rest >= 128 {
        block.push(rest as u8 | 128);
        rest /= 128;
    }
    block.push(rest as u8);
}

/// The header block of a gRPC call.
pub fn call_fields(path: &str) -> Vec<u8> {
    fields(&[
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "t"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ])
}

trait Duplex: Read + Write {}
impl<T: Read + Write> Duplex for T {}

/// One connection.
pub struct RawPeer {
    stream: Box<dyn Duplex>,
    received: Vec<u8>,
}

impl RawPeer {
    /// Connects without sending anything.
    pub fn connect(address: SocketAddr) -> RawPeer {
        let stream = TcpStream::connect(address).unwrap_or_else(|error| panic!("connect to {address}: {error}"));
        stream.set_nodelay(true).expect("TCP_NODELAY");
        stream.set_read_timeout(Some(PATIENCE)).expect("a read timeout");
        stream.set_write_timeout(Some(PATIENCE)).expect("a write timeout");
        RawPeer::over(stream)
    }

    pub fn over(stream: impl Read + Write + 'static) -> RawPeer {
        RawPeer { stream: Box::new(stream), received: Vec::new() }
    }

    /// Connects and exchanges settings: those of both sides, acknowledged.
    pub fn greet(address: SocketAddr, values: &[(u16, u32)]) -> RawPeer {
        let mut peer = RawPeer::connect(address);
        peer.shake_hands(values);
        peer
    }

    pub fn shake_hands(&mut self, values: &[(u16, u32)]) {
        self.send(PREFACE).send(&settings(values));
        let theirs = self.expect(kind::SETTINGS);
        assert!(!theirs.has(ACK), "the server's own settings come first");
        self.send(&frame(kind::SETTINGS, ACK, 0, b""));
        while !self.expect(kind::SETTINGS).has(ACK) {}
    }

    pub fn send(&mut self, bytes: &[u8]) -> &mut RawPeer {
        self.stream.write_all(bytes).and_then(|()| self.stream.flush()).expect("send to the server");
        self
    }

    /// Sends; false if the server no longer accepts bytes (it may have closed the connection after an error).
    pub fn try_send(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).and_then(|()| self.stream.flush()).is_ok()
    }

    /// Opens a call.
    pub fn open(&mut self, stream: u32, path: &str) -> &mut RawPeer {
        self.send(&frame(kind::HEADERS, END_HEADERS, stream, &call_fields(path)))
    }

    /// Sends a message and the end of the call's request.
    pub fn message(&mut self, stream: u32, message: &[u8]) -> &mut RawPeer {
        let framed = crate::grpc::frame_bytes(0, message);
        self.send(&frame(kind::DATA, END_STREAM, stream, &framed))
    }

    /// The next frame, or None at the end of the connection, also by a reset.
    pub fn next(&mut self) -> Option<Frame> {
        loop {
            if let Some([a, b, c, kind, flags, s0, s1, s2, s3]) = self.received.first_chunk::<9>().copied() {
                let length = u32::from_be_bytes([0, a, b, c]) as usize;
                if self.received.len() >= 9 + length {
                    let payload = self.received[9..9 + length].to_vec();
                    self.received.drain(..9 + length);
                    let stream = u32::from_be_bytes([s0, s1, s2, s3]) & 0x7fff_ffff;
                    return Some(Frame { kind, flags, stream, payload });
                }
            }
            let mut buffer = [0; 65_536];
            match self.stream.read(&mut buffer) {
                Ok(0) => return None,
                Ok(read) => self.received.extend_from_slice(&buffer[..read]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => {
                    let hung = matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut);
                    assert!(!hung, "the server neither answers nor closes");
                    return None;
                }
            }
        }
    }

    /// The next frame of that kind; others are skipped.
    pub fn expect(&mut self, kind: u8) -> Frame {
        loop {
            let frame = self.next().unwrap_or_else(|| panic!("the connection ends before a frame of kind {kind}"));
            if frame.kind == kind {
                return frame;
            }
        }
    }

    /// Reads to the end of a stream: its data, and whether it was reset.
    pub fn finish(&mut self, stream: u32) -> (Vec<u8>, Option<u32>) {
        let mut data = Vec::new();
        loop {
            let frame = self.next().unwrap_or_else(|| panic!("the connection ends within stream {stream}"));
            if frame.stream != stream {
                continue;
            }
            match frame.kind {
                kind::RST_STREAM => return (data, Some(frame.number(0))),
                kind::DATA => data.extend_from_slice(&frame.payload),
                _ => {}
            }
            if frame.has(END_STREAM) && matches!(frame.kind, kind::DATA | kind::HEADERS) {
                return (data, None);
            }
        }
    }

    /// Reads to the end of the connection: the code and the text of its last GOAWAY.
    pub fn end(&mut self) -> Option<(u32, String)> {
        let mut last = None;
        while let Some(frame) = self.next() {
            if frame.kind == kind::GOAWAY {
                last = Some((frame.number(4), String::from_utf8_lossy(&frame.payload[8..]).into_owned()));
            }
        }
        last
    }

    /// All bytes until the end of the connection, whether they form frames or not.
    pub fn raw_end(&mut self) -> Vec<u8> {
        let mut all = std::mem::take(&mut self.received);
        // A reset ends the connection like a close.
        let _ = self.stream.read_to_end(&mut all);
        all
    }
}
