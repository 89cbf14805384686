//! Answers that are packed before they leave (contract/http.md section 5, "Accept-Encoding"; contract/grpc.md section
//! 7, "Compression").

use nereid_memory::{Gather, Pool};
use nereid_protocol::compression::{Format, Level, Outcome, Packer};
use nereid_protocol::grpc::{Encoding, MessagePacker};
use nereid_protocol::http1::{Response, ResponseHead};
use nereid_protocol::service::{CallKey, GrpcReply, GrpcStatus, HttpReply, Replies};

/// How an answer is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packing {
    pub format: Format,
    pub level: Level,
}

impl Packing {
    /// The choice of a client by `Accept-Encoding`: the highest weight above 0, the first of equal ones.
    pub fn of_http(accepted: &[u8]) -> Option<Packing> {
        let (mut best, mut highest) = (None, 0.0);
        for coding in accepted.split(|&byte| byte == b',') {
            let parameter = coding.windows(3).position(|window| window == b";q=");
            let (name, weight) = match parameter {
                None => (coding, Some(1.0)),
                Some(at) => (&coding[..at], leading_number(&coding[at + 3..])),
            };
            let format = match name.trim_ascii_start() {
                b"identity" => None,
                b"gzip" => Some(Format::Gzip),
                b"deflate" => Some(Format::Deflate),
                _ => continue,
            };
            if let Some(weight) = weight.filter(|weight| *weight > highest) {
                (best, highest) = (format, weight);
            }
        }
        best.map(|format| Packing { format, level: Level::Medium })
    }

    pub fn of_grpc(encoding: Encoding, level: Option<Level>) -> Option<Packing> {
        Some(Packing { format: encoding.format()?, level: level? })
    }
}

/// Bytes of a weight that are read.
const WEIGHT_BYTES_MAX: usize = 32;

/// As C++'s `stod` reads: blanks, then as much of a number as there is.
fn leading_number(text: &[u8]) -> Option<f64> {
    let text = text.get(..WEIGHT_BYTES_MAX).unwrap_or(text);
    let text = std::str::from_utf8(text).ok()?.trim_ascii_start();
    let end = text.find(|sign: char| !matches!(sign, '0'..='9' | '.' | '+' | '-' | 'e' | 'E')).unwrap_or(text.len());
    (0..=end).rev().find_map(|end| text.get(..end)?.parse().ok())
}

/// An answer that is being packed.
pub struct Answer {
    call: CallKey,
    form: Form,
}

enum Form {
    Http(ResponseHead, Format, Packer),
    /// The one message of a unary call, and its end.
    Grpc(MessagePacker, GrpcStatus),
}

impl Answer {
    pub fn http(call: CallKey, response: Response, packing: Packing) -> Answer {
        let Response { head, mut body } = response;
        let mut pieces = Vec::new();
        body.take(usize::MAX, &mut pieces);
        let packer = Packer::new(packing.format, packing.level, pieces);
        Answer { call, form: Form::Http(head, packing.format, packer) }
    }

    pub fn call(&self) -> CallKey {
        self.call
    }

    pub fn grpc(call: CallKey, message: Gather, packing: Packing, end: GrpcStatus) -> Answer {
        Answer { call, form: Form::Grpc(MessagePacker::new(packing.format, packing.level, message), end) }
    }

    /// Packs one portion; true when that was the last.
    pub fn step(&mut self, pool: &Pool) -> bool {
        match &mut self.form {
            Form::Http(_, _, packer) => packer.step(pool),
            Form::Grpc(packer, _) => packer.step(pool),
        }
    }

    /// Sends it: packed, once a step has returned true, or as it was.
    pub fn send(self, is_packed: bool, pool: &Pool, replies: &mut Replies) {
        match self.form {
            Form::Grpc(packer, end) => {
                replies.push(self.call, GrpcReply::Message(packer.finish(pool, is_packed)));
                replies.push(self.call, GrpcReply::End(end));
            }
            Form::Http(head, format, packer) => {
                let (head, pieces) = match if is_packed { packer.finish() } else { packer.give_up() } {
                    Outcome::Packed(pieces) => (head.header("Content-Encoding", format.name()), pieces),
                    Outcome::Plain(pieces) => (head, pieces),
                };
                let mut body = Gather::new();
                pieces.into_iter().for_each(|piece| body.push(pool, piece));
                replies.push(self.call, HttpReply::Answer(Response::new(head, body)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_chooses_by_weight_and_order() {
        let (gzip, deflate) = (Some(Format::Gzip), Some(Format::Deflate));
        for (accepted, chosen) in [
            ("gzip", gzip),
            ("deflate", deflate),
            ("identity", None),
            ("", None),
            ("gzip, deflate", gzip),
            ("deflate, gzip", deflate),
            ("deflate,gzip", deflate),
            ("identity, gzip", None),
            ("gzip;q=0.5, deflate", deflate),
            ("gzip;q=0.5, deflate;q=0.7, identity;q=0.6", deflate),
            ("gzip;q=0.5, deflate;q=0.5", gzip),
            ("gzip;q=0", None),
            ("gzip;q=0, deflate;q=0.001", deflate),
            ("gzip;q=-1", None),
            ("identity;q=0, gzip", gzip),
            ("*", None),
            ("*;q=1, deflate;q=0.1", deflate),
            ("br, zstd, gzip", gzip),
            ("gzip;q=x, deflate;q=0.1", deflate),
            ("gzip;q=", None),
            ("gzip;q=0.5x, deflate;q=0.4", gzip),
            ("gzip;q= 1, deflate;q=0.4", gzip),
            ("gzip;q=1e-3, deflate;q=0.4", deflate),
            ("gzip;q=nan", None),
            ("  gzip", gzip),
            ("gzip ;q=1, deflate", deflate),
            ("gzip ", None),
            ("gzip; q=1", None),
            ("GZIP", None),
            ("x-gzip", None),
        ] {
            assert_eq!(Packing::of_http(accepted.as_bytes()).map(|packing| packing.format), chosen, "{accepted:?}");
        }
    }

    #[test]
    fn a_call_is_packed_if_both_sides_want_it() {
        assert_eq!(Packing::of_grpc(Encoding::Gzip, None), None);
        assert_eq!(Packing::of_grpc(Encoding::Identity, Some(Level::High)), None);
        let packing = Packing { format: Format::Deflate, level: Level::Low };
        assert_eq!(Packing::of_grpc(Encoding::Deflate, Some(Level::Low)), Some(packing));
    }
}
