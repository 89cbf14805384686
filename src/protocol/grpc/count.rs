//! How many fields a message has, before anything is made of them.

use super::varint::{self, Decoded};

/// Levels of messages in messages that are counted: none that the server takes nests its lists deeper.
const DEPTH_MAX: usize = 4;

/// Fields of a message and of those within it, as far as its bytes can be read as such; no fewer than there are.
pub fn count_fields(message: &[u8]) -> usize {
    count(message, DEPTH_MAX)
}

fn count(mut rest: &[u8], depth: usize) -> usize {
    let mut fields = 0;
    while let Decoded::Value(key, taken) = varint::decode(rest) {
        rest = rest.get(taken..).unwrap_or_default();
        let value = match key & 7 {
            0 => match varint::decode(rest) {
                Decoded::Value(_, taken) => taken,
                Decoded::Partial | Decoded::TooLong => return fields,
            },
            1 => 8,
            5 => 4,
            2 => match varint::decode(rest) {
                Decoded::Value(len, taken) => {
                    let end = usize::try_from(len).unwrap_or(usize::MAX).saturating_add(taken);
                    let Some(within) = rest.get(taken..end) else { return fields };
                    if depth > 1 {
                        fields += count(within, depth - 1);
                    }
                    end
                }
                Decoded::Partial | Decoded::TooLong => return fields,
            },
            // Groups are read field by field.
            _ => 0,
        };
        let Some(behind) = rest.get(value..) else { return fields };
        (rest, fields) = (behind, fields + 1);
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_counted_through_all_levels() {
        assert_eq!(count_fields(b""), 0);
        // Two varints and an empty string.
        assert_eq!(count_fields(b"\x08\x01\x10\x96\x01\x1a\x00"), 3);
        // A message of three empty strings.
        assert_eq!(count_fields(b"\x0a\x06\x0a\x00\x0a\x00\x0a\x00"), 4);
        let many: Vec<u8> = b"\x0a\x00".repeat(1000);
        assert_eq!(count_fields(&many), 1000);
        // Cut short, or a length beyond the end: as far as it goes.
        assert_eq!(count_fields(b"\x08\x01\x0a\xff\xff\xff\xff\x0f"), 1);
        assert_eq!(count_fields(b"\x08\x01\x09\x00"), 1);
    }
}
