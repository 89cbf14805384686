//! Bytes → frames (RFC 9113 section 4), cut anywhere.
//!
//! DATA is passed on as it comes. Every other frame is handled in one piece: in place if the input holds it whole,
//! else collected first, within a bound that its type has.

use super::data::DataFrame;
use super::frame::{FrameHead, HEAD_LEN, flag, kind};
use super::prediction::FrameRun;
use super::{Connection, ConnectionError, Handler, PREFACE, Role};

/// More settings than this in one frame have no use.
const SETTINGS_PAYLOAD_MAX: u32 = 4096;
/// What is kept of a GOAWAY; the rest of its debug data is skipped.
const GOAWAY_KEPT: u32 = 1024;

#[derive(Debug, Clone, Copy)]
enum ReceiveState {
    /// Server: inside the client's preface.
    Preface,
    Head,
    /// Inside a frame that is handled whole.
    Payload(FrameHead),
    /// Inside bytes that mean nothing to us.
    Skip(u32),
    Data(DataFrame),
}

/// Where in the input a connection stands.
pub(super) struct Parser {
    state: ReceiveState,
    /// What came of a preface, frame head or payload that is not yet complete.
    partial: Vec<u8>,
    settings_seen: bool,
    frames: u64,
    run: FrameRun,
}

impl Parser {
    pub(super) fn new(role: Role) -> Parser {
        let state = if role == Role::Server { ReceiveState::Preface } else { ReceiveState::Head };
        Parser { state, partial: Vec::new(), settings_seen: false, frames: 0, run: FrameRun::new() }
    }

    /// See [`Connection::frames`].
    pub(super) fn frames(&self) -> (u64, bool) {
        (self.frames, !matches!(self.state, ReceiveState::Head) || !self.partial.is_empty())
    }

    /// The DATA frame that the input stands in.
    pub(super) fn data(&self) -> Option<DataFrame> {
        match self.state {
            ReceiveState::Data(frame) => Some(frame),
            _ => None,
        }
    }

    /// Bytes that have come of the next frame's head; `None` within a frame or the preface.
    pub(super) fn partial_head(&self) -> Option<usize> {
        matches!(self.state, ReceiveState::Head).then(|| self.partial.len()).filter(|came| *came < HEAD_LEN)
    }

    /// The last frames.
    pub(super) fn run(&self) -> &FrameRun {
        &self.run
    }

    pub(super) fn run_mut(&mut self) -> &mut FrameRun {
        &mut self.run
    }

    /// Goes on inside a DATA frame, or behind it.
    pub(super) fn set_data(&mut self, frame: Option<DataFrame>) {
        self.state = frame.map_or(ReceiveState::Head, ReceiveState::Data);
    }
}

impl Connection {
    /// Takes received bytes; keeps no reference to them. However the input is cut, the events are the same (but for
    /// how a body is cut). After an error the output holds our last words, and every further call returns the same.
    pub fn receive(&mut self, mut bytes: &[u8], handler: &mut impl Handler) -> Result<(), ConnectionError> {
        if let Some(failure) = self.failure() {
            return Err(failure);
        }
        self.note_sent_replies();
        while !bytes.is_empty() {
            match self.step(bytes, handler) {
                Ok(taken) => bytes = bytes.get(taken..).unwrap_or_default(),
                Err(error) => {
                    self.fail(error);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Takes at least one of `bytes` and returns how many.
    fn step(&mut self, bytes: &[u8], handler: &mut impl Handler) -> Result<usize, ConnectionError> {
        match self.parser.state {
            ReceiveState::Head => self.take_head(bytes, handler),
            ReceiveState::Payload(head) => self.take_payload(head, bytes, handler),
            ReceiveState::Data(frame) => self.take_data(frame, bytes, handler),
            ReceiveState::Skip(left) => {
                let taken = bytes.len().min(left as usize);
                let left = left - taken as u32;
                self.parser.state = if left == 0 { ReceiveState::Head } else { ReceiveState::Skip(left) };
                Ok(taken)
            }
            ReceiveState::Preface => self.take_preface(bytes),
        }
    }

    fn take_preface(&mut self, bytes: &[u8]) -> Result<usize, ConnectionError> {
        let seen = self.parser.partial.len();
        let expected = PREFACE.get(seen..).unwrap_or_default();
        let taken = bytes.len().min(expected.len());
        let same = bytes.iter().zip(expected).take_while(|(came, wanted)| came == wanted).count();
        let upto = bytes.get(..taken.min(same + 1)).unwrap_or_default();
        self.parser.partial.extend_from_slice(upto);
        if same < taken {
            return Err(other_protocol(&self.parser.partial));
        }
        if self.parser.partial.len() == PREFACE.len() {
            self.parser.partial.clear();
            self.parser.state = ReceiveState::Head;
            self.greet();
        }
        Ok(taken)
    }

    fn take_head(&mut self, bytes: &[u8], handler: &mut impl Handler) -> Result<usize, ConnectionError> {
        let (head, taken) = match (self.parser.partial.len(), bytes.first_chunk::<HEAD_LEN>()) {
            (0, Some(head)) => (FrameHead::parse(*head), HEAD_LEN),
            (held, _) => {
                let taken = bytes.len().min(HEAD_LEN.saturating_sub(held));
                self.parser.partial.extend_from_slice(bytes.get(..taken).unwrap_or_default());
                let Some(head) = self.parser.partial.first_chunk::<HEAD_LEN>() else { return Ok(taken) };
                let head = FrameHead::parse(*head);
                self.parser.partial.clear();
                (head, taken)
            }
        };
        self.check_head(head)?;
        self.parser.frames += u64::from(head.kind != kind::CONTINUATION);
        if head.kind == kind::DATA {
            self.parser.run.note(head);
            let frame = self.begin_data(head, handler)?;
            self.parser.set_data(frame);
            return Ok(taken);
        }
        self.parser.run.interrupt();
        if head.kind > kind::CONTINUATION {
            self.spend_idle_frame()?;
            self.parser.state = if head.length == 0 { ReceiveState::Head } else { ReceiveState::Skip(head.length) };
            return Ok(taken);
        }
        if head.length == 0 {
            self.parser.state = ReceiveState::Head;
            self.handle(head, &[], handler)?;
            return Ok(taken);
        }
        self.parser.state = ReceiveState::Payload(head);
        Ok(taken)
    }

    /// What can be refused by a frame's head alone, before any of its payload is kept.
    fn check_head(&mut self, head: FrameHead) -> Result<(), ConnectionError> {
        if !self.parser.settings_seen {
            if head.kind != kind::SETTINGS || head.has(flag::ACK) {
                return Err(ConnectionError::protocol("the first frame is not SETTINGS"));
            }
            self.parser.settings_seen = true;
        }
        if head.length > self.config.max_frame_size {
            return Err(ConnectionError::frame_size("a frame is larger than SETTINGS_MAX_FRAME_SIZE"));
        }
        self.check_continuation(head)?;
        match (head.kind, head.length) {
            (kind::SETTINGS, length) if length > SETTINGS_PAYLOAD_MAX => {
                Err(ConnectionError::flood("a SETTINGS frame of thousands of bytes"))
            }
            (kind::RST_STREAM | kind::WINDOW_UPDATE, length) if length != 4 => {
                Err(ConnectionError::frame_size("RST_STREAM and WINDOW_UPDATE have four bytes"))
            }
            (kind::PING, length) if length != 8 => Err(ConnectionError::frame_size("a PING has eight bytes")),
            // A stream error by section 6.3, but streams need not exist for PRIORITY: the connection takes it.
            (kind::PRIORITY, length) if length != 5 => Err(ConnectionError::frame_size("a PRIORITY has five bytes")),
            (kind::GOAWAY, length) if length < 8 => Err(ConnectionError::frame_size("a GOAWAY has eight bytes")),
            (kind::PUSH_PROMISE, _) => Err(ConnectionError::protocol("PUSH_PROMISE was never allowed")),
            (kind::PING | kind::SETTINGS | kind::GOAWAY, _) if head.stream != 0 => {
                Err(ConnectionError::protocol("a frame of the connection names a stream"))
            }
            (kind::DATA | kind::HEADERS | kind::PRIORITY | kind::RST_STREAM, _) if head.stream == 0 => {
                Err(ConnectionError::protocol("a frame of a stream names none"))
            }
            _ => Ok(()),
        }
    }

    fn take_payload(
        &mut self,
        head: FrameHead,
        bytes: &[u8],
        handler: &mut impl Handler,
    ) -> Result<usize, ConnectionError> {
        let kept = if head.kind == kind::GOAWAY { head.length.min(GOAWAY_KEPT) } else { head.length };
        let wanted = (kept as usize).saturating_sub(self.parser.partial.len());
        let Some(now) = bytes.get(..wanted) else {
            self.parser.partial.extend_from_slice(bytes);
            return Ok(bytes.len());
        };
        let rest = head.length - kept;
        self.parser.state = if rest == 0 { ReceiveState::Head } else { ReceiveState::Skip(rest) };
        if self.parser.partial.is_empty() {
            self.handle(head, now, handler)?;
        } else {
            let mut payload = std::mem::take(&mut self.parser.partial);
            payload.extend_from_slice(now);
            let handled = self.handle(head, &payload, handler);
            payload.clear();
            payload.shrink_to(16 << 10);
            self.parser.partial = payload;
            handled?;
        }
        Ok(wanted)
    }

    fn handle(&mut self, head: FrameHead, payload: &[u8], handler: &mut impl Handler) -> Result<(), ConnectionError> {
        match head.kind {
            kind::HEADERS => self.handle_headers(head, payload, handler),
            kind::CONTINUATION => self.handle_continuation(head, payload, handler),
            kind::PRIORITY => self.handle_priority(head, payload, handler),
            kind::RST_STREAM => self.handle_reset(head, payload, handler),
            kind::SETTINGS => self.handle_settings(head, payload, handler),
            kind::PING => self.handle_ping(head, payload, handler),
            kind::GOAWAY => self.handle_goaway(payload, handler),
            _ => self.handle_window_update(head, payload, handler),
        }
    }
}

/// Names what came instead of the preface, by its beginning up to the first byte that differs.
fn other_protocol(beginning: &[u8]) -> ConnectionError {
    match beginning {
        [0x16, ..] => ConnectionError::Tls,
        // A method in capitals, such as POST, which shares its first letter with the preface.
        [.., last] if last.is_ascii_uppercase() => ConnectionError::Http1,
        // "PRI * HTTP/1.1" and the like.
        beginning if beginning.starts_with(b"PRI ") => ConnectionError::Http1,
        _ => ConnectionError::NotHttp2,
    }
}
