//! The values of the headers that gRPC itself defines: deadline, content type, message encoding.

use std::time::Duration;

use super::Code;
use crate::compression::Format;

/// The encodings of requests that are understood: the value of `grpc-accept-encoding`.
pub const ACCEPTED_ENCODINGS: &str = "identity, deflate, gzip";

/// `grpc-timeout` is not one to eight digits and a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("grpc-timeout is not a number of at most eight digits followed by one of H, M, S, m, u, n")]
pub struct TimeoutError;

/// Reads `grpc-timeout` (gRPC over HTTP/2, "Timeout").
pub fn parse_timeout(value: &[u8]) -> Result<Duration, TimeoutError> {
    let (unit, digits) = value.split_last().ok_or(TimeoutError)?;
    if digits.is_empty() || digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return Err(TimeoutError);
    }
    let amount = digits.iter().fold(0u64, |amount, digit| amount * 10 + u64::from(digit - b'0'));
    match unit {
        b'H' => Ok(Duration::from_secs(amount * 3600)),
        b'M' => Ok(Duration::from_secs(amount * 60)),
        b'S' => Ok(Duration::from_secs(amount)),
        b'm' => Ok(Duration::from_millis(amount)),
        b'u' => Ok(Duration::from_micros(amount)),
        b'n' => Ok(Duration::from_nanos(amount)),
        _ => Err(TimeoutError),
    }
}

/// True for a content type that carries protobuf messages in gRPC framing; anything else is answered with HTTP 415.
pub fn is_grpc(content_type: &[u8]) -> bool {
    let essence = content_type.split(|&byte| byte == b';').next().unwrap_or_default().trim_ascii();
    essence.eq_ignore_ascii_case(b"application/grpc") || essence.eq_ignore_ascii_case(b"application/grpc+proto")
}

/// How messages with the compressed flag are packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Encoding {
    #[default]
    Identity,
    Gzip,
    Deflate,
}

/// A `grpc-encoding` that the server cannot unpack.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("Compression algorithm '{0}' is disabled.")]
pub struct UnknownEncoding(pub String);

impl UnknownEncoding {
    pub const CODE: Code = Code::Unimplemented;
}

impl Encoding {
    /// Reads `grpc-encoding`.
    pub fn parse(value: &[u8]) -> Result<Encoding, UnknownEncoding> {
        match value {
            b"identity" => Ok(Encoding::Identity),
            b"gzip" => Ok(Encoding::Gzip),
            b"deflate" => Ok(Encoding::Deflate),
            _ => Err(UnknownEncoding(String::from_utf8_lossy(value).into_owned())),
        }
    }

    /// How messages are packed, unless they are not.
    pub fn format(self) -> Option<Format> {
        match self {
            Encoding::Identity => None,
            Encoding::Gzip => Some(Format::Gzip),
            Encoding::Deflate => Some(Format::Deflate),
        }
    }

    /// The best of what a client's `grpc-accept-encoding` lists: gzip, which every peer has, before deflate.
    pub fn accepted(list: &[u8]) -> Encoding {
        let has = |name: &[u8]| list.split(|&byte| byte == b',').any(|listed| listed.trim_ascii() == name);
        match () {
            () if has(b"gzip") => Encoding::Gzip,
            () if has(b"deflate") => Encoding::Deflate,
            () => Encoding::Identity,
        }
    }

    /// The value of `grpc-encoding`.
    pub fn header(self) -> &'static str {
        match self {
            Encoding::Identity => "identity",
            Encoding::Gzip => "gzip",
            Encoding::Deflate => "deflate",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_in_every_unit() {
        let cases: [(&[u8], Duration); 8] = [
            (b"1H", Duration::from_secs(3600)),
            (b"2M", Duration::from_secs(120)),
            (b"3S", Duration::from_secs(3)),
            (b"4m", Duration::from_millis(4)),
            (b"5u", Duration::from_micros(5)),
            (b"6n", Duration::from_nanos(6)),
            (b"0S", Duration::ZERO),
            (b"99999999H", Duration::from_secs(99_999_999 * 3600)),
        ];
        for (value, timeout) in cases {
            assert_eq!(parse_timeout(value), Ok(timeout));
        }
    }

    #[test]
    fn broken_timeouts_are_refused() {
        for value in [&b""[..], b"S", b"1", b"12", b"-1S", b"+1S", b"1s", b"1h", b" 1S", b"1 S", b"1.5S", b"100000000n"]
        {
            assert_eq!(parse_timeout(value), Err(TimeoutError), "{}", value.escape_ascii());
        }
    }

    #[test]
    fn content_types() {
        for yes in ["application/grpc", "application/grpc+proto", "Application/GRPC", "application/grpc; charset=utf-8"]
        {
            assert!(is_grpc(yes.as_bytes()), "{yes}");
        }
        for no in ["", "application/grpc-web", "application/grpc+json", "application/json", "application/grpcx", "grpc"]
        {
            assert!(!is_grpc(no.as_bytes()), "{no}");
        }
    }

    #[test]
    fn encodings() {
        for encoding in [Encoding::Identity, Encoding::Gzip, Encoding::Deflate] {
            assert_eq!(Encoding::parse(encoding.header().as_bytes()), Ok(encoding));
        }
        assert_eq!(Encoding::parse(b"br").unwrap_err().to_string(), "Compression algorithm 'br' is disabled.");
    }

    #[test]
    fn the_best_of_what_a_client_accepts() {
        for (list, best) in [
            ("identity, deflate, gzip", Encoding::Gzip),
            ("gzip", Encoding::Gzip),
            ("deflate,br", Encoding::Deflate),
            ("identity", Encoding::Identity),
            ("", Encoding::Identity),
            ("gzipped, x-deflate", Encoding::Identity),
        ] {
            assert_eq!(Encoding::accepted(list.as_bytes()), best, "{list}");
        }
    }
}
