//! The frames of both sides, read from and written to their payloads.
//!
//! A payload was copied out of the shared memory before it gets here: nothing changes while it is read.

use super::layout::ROUTES_MAX;

/// Kinds of frames that clients write.
pub mod from_client {
    pub const ROUTE: u32 = 1;
    pub const CALL: u32 = 2;
    pub const DATA: u32 = 3;
    pub const CANCEL: u32 = 4;
}

/// Kinds of frames that the server writes.
pub mod from_server {
    pub const DATA: u32 = 1;
    pub const STATUS: u32 = 2;
    pub const LEAVE: u32 = 3;
}

/// The sender sends no more on the call.
const END: u32 = 1;
/// Bytes before those of the messages, in a frame that begins a call and in one that goes on.
pub const CALL_HEAD: usize = 16;
/// Bytes of the payload that defines a route: more than the head of a call may have, with the lengths.
const ROUTE_BYTES_MAX: usize = 20 << 10;
pub const DATA_HEAD: usize = 8;

/// Which rule of the contract a client has broken: its connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    #[error("a position in the ring of requests cannot be")]
    Position,
    #[error("a frame has an unknown kind")]
    Kind,
    #[error("a frame has an unknown flag")]
    Flags,
    #[error("a frame is too short for its kind")]
    Short,
    #[error("a route is not defined, or its number is not below {ROUTES_MAX}")]
    Route,
    #[error("a route has no path, or metadata that no call may have")]
    Metadata,
    #[error("the number of a new call is 0 or that of a call that is open")]
    Call,
    #[error("bytes follow the end of a request")]
    BehindEnd,
}

/// What a client sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientFrame<'a> {
    Route { route: usize, path: &'a [u8], metadata: Strings<'a> },
    Call { call: u32, route: usize, ends: bool, timeout_ns: u64, bytes: &'a [u8] },
    Data { call: u32, ends: bool, bytes: &'a [u8] },
    Cancel { call: u32 },
}

/// What the server sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerFrame<'a> {
    Data { call: u32, ends: bool, bytes: &'a [u8] },
    Status { call: u32, code: u32, text: &'a [u8], trailers: Strings<'a> },
    Leave,
}

/// Strings behind each other, each with its length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Strings<'a>(&'a [u8]);

fn number(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (number, rest) = bytes.split_first_chunk::<4>()?;
    Some((u32::from_le_bytes(*number), rest))
}

impl<'a> Iterator for Strings<'a> {
    type Item = Result<&'a [u8], Violation>;

    fn next(&mut self) -> Option<Result<&'a [u8], Violation>> {
        if self.0.is_empty() {
            return None;
        }
        let split = number(self.0).and_then(|(len, rest)| rest.split_at_checked(len as usize));
        let Some((string, rest)) = split else {
            self.0 = &[];
            return Some(Err(Violation::Short));
        };
        self.0 = rest;
        Some(Ok(string))
    }
}

/// The call, the flags and the bytes of a frame with messages.
fn data(payload: &[u8]) -> Result<(u32, bool, &[u8]), Violation> {
    let (call, rest) = number(payload).ok_or(Violation::Short)?;
    let (flags, bytes) = number(rest).ok_or(Violation::Short)?;
    if flags & !END != 0 {
        return Err(Violation::Flags);
    }
    Ok((call, flags & END != 0, bytes))
}

impl<'a> ClientFrame<'a> {
    pub fn read(kind: u32, payload: &'a [u8]) -> Result<ClientFrame<'a>, Violation> {
        match kind {
            from_client::CALL => {
                let (head, bytes) = payload.split_first_chunk::<CALL_HEAD>().ok_or(Violation::Short)?;
                let [a, b, c, d, route_low, route_high, flags_low, flags_high, timeout @ ..] = *head;
                let flags = u16::from_le_bytes([flags_low, flags_high]);
                if u32::from(flags) & !END != 0 {
                    return Err(Violation::Flags);
                }
                Ok(ClientFrame::Call {
                    call: u32::from_le_bytes([a, b, c, d]),
                    route: usize::from(u16::from_le_bytes([route_low, route_high])),
                    ends: flags != 0,
                    timeout_ns: u64::from_le_bytes(timeout),
                    bytes,
                })
            }
            from_client::DATA => {
                let (call, ends, bytes) = data(payload)?;
                Ok(ClientFrame::Data { call, ends, bytes })
            }
            from_client::CANCEL => Ok(ClientFrame::Cancel { call: data(payload)?.0 }),
            from_client::ROUTE if payload.len() > ROUTE_BYTES_MAX => Err(Violation::Metadata),
            from_client::ROUTE => {
                let (route, rest) = number(payload).ok_or(Violation::Short)?;
                let route = usize::try_from(route).ok().filter(|route| *route < ROUTES_MAX).ok_or(Violation::Route)?;
                let mut strings = Strings(rest);
                let path = strings.next().ok_or(Violation::Metadata)??;
                Ok(ClientFrame::Route { route, path, metadata: strings })
            }
            _ => Err(Violation::Kind),
        }
    }
}

impl<'a> ServerFrame<'a> {
    pub fn read(kind: u32, payload: &'a [u8]) -> Result<ServerFrame<'a>, Violation> {
        match kind {
            from_server::DATA => {
                let (call, ends, bytes) = data(payload)?;
                Ok(ServerFrame::Data { call, ends, bytes })
            }
            from_server::STATUS => {
                let (call, rest) = number(payload).ok_or(Violation::Short)?;
                let (code, rest) = number(rest).ok_or(Violation::Short)?;
                let mut trailers = Strings(rest);
                let text = trailers.next().unwrap_or(Ok(&[]))?;
                Ok(ServerFrame::Status { call, code, text, trailers })
            }
            from_server::LEAVE => Ok(ServerFrame::Leave),
            _ => Err(Violation::Kind),
        }
    }
}

/// The beginnings and payloads of frames.
pub mod encode {
    use super::{CALL_HEAD, DATA_HEAD, END};

    fn string(payload: &mut Vec<u8>, string: &[u8]) {
        payload.extend_from_slice(&u32::try_from(string.len()).unwrap_or(u32::MAX).to_le_bytes());
        payload.extend_from_slice(string);
    }

    /// The payload that defines a route.
    pub fn route(route: u16, path: &[u8], metadata: &[(&[u8], &[u8])]) -> Vec<u8> {
        let mut payload = u32::from(route).to_le_bytes().to_vec();
        string(&mut payload, path);
        for (name, value) in metadata {
            string(&mut payload, name);
            string(&mut payload, value);
        }
        payload
    }

    /// What stands before the first bytes of a call.
    pub fn call(call: u32, route: u16, ends: bool, timeout_ns: u64) -> [u8; CALL_HEAD] {
        let mut head = [0; CALL_HEAD];
        head[..4].copy_from_slice(&call.to_le_bytes());
        head[4..6].copy_from_slice(&route.to_le_bytes());
        head[6] = u8::from(ends);
        head[8..].copy_from_slice(&timeout_ns.to_le_bytes());
        head
    }

    /// What stands before further bytes of a call, in either direction.
    pub fn data(call: u32, ends: bool) -> [u8; DATA_HEAD] {
        let mut head = [0; DATA_HEAD];
        head[..4].copy_from_slice(&call.to_le_bytes());
        head[4..].copy_from_slice(&(u32::from(ends) * END).to_le_bytes());
        head
    }

    /// The payload that ends a call with a status, of `most` bytes at most: the text is cut, then trailers are left
    /// out.
    pub fn status<'a>(
        call: u32,
        code: u32,
        text: &str,
        trailers: impl Iterator<Item = (&'a [u8], &'a [u8])>,
        most: usize,
    ) -> Vec<u8> {
        let mut payload = call.to_le_bytes().to_vec();
        payload.extend_from_slice(&code.to_le_bytes());
        let room = most.saturating_sub(payload.len() + 4);
        string(&mut payload, &text.as_bytes()[..text.floor_char_boundary(room)]);
        for (name, value) in trailers {
            if payload.len() + 8 + name.len() + value.len() > most {
                break;
            }
            string(&mut payload, name);
            string(&mut payload, value);
        }
        payload
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_as_they_are_written() {
        let payload = encode::route(3, b"/a/b", &[(b"k", b"v"), (b"", b"w")]);
        let Ok(ClientFrame::Route { route: 3, path: b"/a/b", metadata }) =
            ClientFrame::read(from_client::ROUTE, &payload)
        else {
            panic!("no route")
        };
        assert_eq!(metadata.collect::<Result<Vec<_>, _>>().unwrap(), [&b"k"[..], b"v", b"", b"w"]);
        let payload = [&encode::call(7, 3, true, 9)[..], b"bytes"].concat();
        let call = ClientFrame::Call { call: 7, route: 3, ends: true, timeout_ns: 9, bytes: b"bytes" };
        assert_eq!(ClientFrame::read(from_client::CALL, &payload), Ok(call));
        let payload = [&encode::data(7, false)[..], b"more"].concat();
        let data = ClientFrame::Data { call: 7, ends: false, bytes: b"more" };
        assert_eq!(ClientFrame::read(from_client::DATA, &payload), Ok(data));
        let data = ServerFrame::Data { call: 7, ends: false, bytes: b"more" };
        assert_eq!(ServerFrame::read(from_server::DATA, &payload), Ok(data));
    }

    #[test]
    fn a_status_keeps_to_its_bound() {
        let trailers = [(&b"name"[..], &b"value"[..]), (b"n", b"v")];
        for most in 12..60 {
            let payload = encode::status(1, 5, "täxt", trailers.into_iter(), most);
            assert!(payload.len() <= most, "{most}");
            let Ok(ServerFrame::Status { call: 1, code: 5, text, trailers: found }) =
                ServerFrame::read(from_server::STATUS, &payload)
            else {
                panic!("{most}")
            };
            assert!("täxt".as_bytes().starts_with(text) && std::str::from_utf8(text).is_ok());
            assert!(found.clone().all(|string| string.is_ok()) && found.count().is_multiple_of(2));
        }
    }

    #[test]
    fn what_no_client_may_write_is_refused() {
        for (kind, payload, violation) in [
            (0, &[][..], Violation::Kind),
            (5, &[0; 64], Violation::Kind),
            (from_client::CALL, &[0; 15], Violation::Short),
            (from_client::CALL, &[0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0], Violation::Flags),
            (from_client::DATA, &[0; 7], Violation::Short),
            (from_client::DATA, &[0, 0, 0, 0, 2, 0, 0, 0], Violation::Flags),
            (from_client::CANCEL, &[0; 3], Violation::Short),
            (from_client::ROUTE, &[64, 0, 0, 0], Violation::Route),
            (from_client::ROUTE, &[1, 0, 0, 0], Violation::Metadata),
            (from_client::ROUTE, &[1, 0, 0, 0, 2, 0, 0, 0, 65], Violation::Short),
            (from_client::ROUTE, &[0; ROUTE_BYTES_MAX + 4], Violation::Metadata),
        ] {
            assert_eq!(ClientFrame::read(kind, payload), Err(violation), "{kind} {payload:?}");
        }
    }
}
