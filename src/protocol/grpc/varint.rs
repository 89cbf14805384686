//! Base-128 integers of protobuf.

/// Bytes of the longest varint.
pub const BYTES_MAX: usize = 10;

/// What the front of a byte string is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decoded {
    /// A value and the bytes that it takes.
    Value(u64, usize),
    /// The beginning of a varint, or nothing.
    Partial,
    /// Ten bytes that do not end, or that contain more than 64 bits.
    TooLong,
}

/// Reads a varint off the front of `bytes`. Padding with leading zero groups is legal, as long as ten bytes hold it.
#[inline]
pub fn decode(bytes: &[u8]) -> Decoded {
    match bytes.first() {
        Some(&byte) if byte < 0x80 => Decoded::Value(u64::from(byte), 1),
        Some(_) => decode_long(bytes),
        None => Decoded::Partial,
    }
}

fn decode_long(bytes: &[u8]) -> Decoded {
    let mut value = 0;
    for (at, &byte) in bytes.iter().take(BYTES_MAX).enumerate() {
        if at == BYTES_MAX - 1 && byte > 1 {
            return Decoded::TooLong;
        }
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte < 0x80 {
            return Decoded::Value(value, at + 1);
        }
    }
    Decoded::Partial
}

/// Bytes that `value` takes.
#[inline]
pub fn len(value: u64) -> usize {
    let bits = 64 - (value | 1).leading_zeros() as usize;
    bits.div_ceil(7)
}

/// Appends `value`.
#[inline]
pub fn put(mut value: u64, into: &mut Vec<u8>) {
    while value >= 0x80 {
        into.push(value as u8 | 0x80);
        value >>= 7;
    }
    into.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_there_and_back() {
        for shift in 0..64 {
            for value in [1u64 << shift, (1 << shift) - 1, u64::MAX >> shift] {
                let mut bytes = Vec::new();
                put(value, &mut bytes);
                assert_eq!(bytes.len(), len(value), "{value}");
                assert_eq!(decode(&bytes), Decoded::Value(value, bytes.len()));
                for cut in 0..bytes.len() {
                    assert_eq!(decode(&bytes[..cut]), Decoded::Partial);
                }
                let mut reference = Vec::new();
                prost::encoding::encode_varint(value, &mut reference);
                assert_eq!(bytes, reference);
            }
        }
    }

    #[test]
    fn padding_is_legal_and_overflow_is_not() {
        assert_eq!(decode(&[0x80, 0x00]), Decoded::Value(0, 2));
        assert_eq!(decode(&[0x81, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x00]), Decoded::Value(1, 10));
        assert_eq!(decode(&[0xff; 9]), Decoded::Partial);
        assert_eq!(decode(&[0xff; 10]), Decoded::TooLong);
        let mut most = [0xff; 10];
        most[9] = 1;
        assert_eq!(decode(&most), Decoded::Value(u64::MAX, 10));
        most[9] = 2;
        assert_eq!(decode(&most), Decoded::TooLong);
    }
}
