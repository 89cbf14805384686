//! Status codes and the form in which a status message travels in a header.

use percent_encoding::percent_decode;

/// The codes of `grpc-status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Code {
    Ok = 0,
    Cancelled = 1,
    Unknown = 2,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    AlreadyExists = 6,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Aborted = 10,
    OutOfRange = 11,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    DataLoss = 15,
    Unauthenticated = 16,
}

const CODES: [(Code, &str, &str); 17] = [
    (Code::Ok, "0", "OK"),
    (Code::Cancelled, "1", "CANCELLED"),
    (Code::Unknown, "2", "UNKNOWN"),
    (Code::InvalidArgument, "3", "INVALID_ARGUMENT"),
    (Code::DeadlineExceeded, "4", "DEADLINE_EXCEEDED"),
    (Code::NotFound, "5", "NOT_FOUND"),
    (Code::AlreadyExists, "6", "ALREADY_EXISTS"),
    (Code::PermissionDenied, "7", "PERMISSION_DENIED"),
    (Code::ResourceExhausted, "8", "RESOURCE_EXHAUSTED"),
    (Code::FailedPrecondition, "9", "FAILED_PRECONDITION"),
    (Code::Aborted, "10", "ABORTED"),
    (Code::OutOfRange, "11", "OUT_OF_RANGE"),
    (Code::Unimplemented, "12", "UNIMPLEMENTED"),
    (Code::Internal, "13", "INTERNAL"),
    (Code::Unavailable, "14", "UNAVAILABLE"),
    (Code::DataLoss, "15", "DATA_LOSS"),
    (Code::Unauthenticated, "16", "UNAUTHENTICATED"),
];

impl Code {
    /// The value of the `grpc-status` header.
    pub fn header(self) -> &'static str {
        CODES[self as usize].1
    }

    /// The name in capitals, as documentation and logs write it.
    pub fn name(self) -> &'static str {
        CODES[self as usize].2
    }

    /// Reads a `grpc-status` header; what is not a known code counts as UNKNOWN, as the gRPC specification requires.
    pub fn from_header(value: &[u8]) -> Code {
        CODES.iter().find(|code| code.1.as_bytes() == value).map_or(Code::Unknown, |code| code.0)
    }
}

/// Writes `message` as the value of `grpc-message`: printable ASCII except `%` stands for itself, every other byte is
/// percent-encoded (gRPC over HTTP/2, "Status-Message").
pub fn encode_message(message: &str, into: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    into.reserve(message.len());
    let last = message.len().saturating_sub(1);
    for (at, &byte) in message.as_bytes().iter().enumerate() {
        // A field's value neither begins nor ends with a blank (RFC 9113 section 8.2.1).
        let is_outer_blank = byte == b' ' && (at == 0 || at == last);
        match byte {
            b' '..=b'~' if byte != b'%' && !is_outer_blank => into.push(byte),
            _ => into.extend([b'%', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]),
        }
    }
}

/// Reads a `grpc-message`. Broken escapes stay as they are and bytes that are not UTF-8 are replaced: a message that is
/// slightly wrong beats none.
pub fn decode_message(value: &[u8]) -> String {
    percent_decode(value).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_agrees_with_the_numbers() {
        for (at, (code, header, _)) in CODES.iter().enumerate() {
            assert_eq!(*code as usize, at);
            assert_eq!(*header, at.to_string());
            assert_eq!(Code::from_header(header.as_bytes()), *code);
        }
        assert_eq!(Code::Internal.header(), "13");
        assert_eq!(Code::Unavailable.name(), "UNAVAILABLE");
        for wrong in [&b"17"[..], b"", b"-1", b"00", b"x"] {
            assert_eq!(Code::from_header(wrong), Code::Unknown);
        }
    }

    #[test]
    fn messages_survive_the_header() {
        let cases = [
            ("plain text, with 'quotes' ~", "plain text, with 'quotes' ~"),
            ("100% sure", "100%25 sure"),
            ("a\nb\r\0\x7f", "a%0Ab%0D%00%7F"),
            ("größer 日", "gr%C3%B6%C3%9Fer %E6%97%A5"),
            ("", ""),
            (" a b ", "%20a b%20"),
            (" ", "%20"),
        ];
        for (message, header) in cases {
            let mut encoded = Vec::new();
            encode_message(message, &mut encoded);
            assert_eq!(String::from_utf8(encoded.clone()).unwrap(), header);
            assert_eq!(decode_message(&encoded), message);
        }
    }

    #[test]
    fn broken_escapes_are_kept() {
        assert_eq!(decode_message(b"50% off %zz %4"), "50% off %zz %4");
        assert_eq!(decode_message(b"%41%4a%"), "AJ%");
        assert_eq!(decode_message(b"%+1"), "%+1");
        assert_eq!(decode_message(b"%ff"), "\u{fffd}");
    }
}
