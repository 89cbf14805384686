//! Integers with a prefix of 1 to 8 bits (RFC 7541 section 5.1).

use super::Error;

/// Continuation bytes that are read at most: 4 carry 28 bits, beyond every length and index that we can meet.
const CONTINUATIONS_MAX: u32 = 4;

/// Reads the integer that starts in the low `prefix_bits` of `bytes[*at]` and moves `at` behind it.
pub(super) fn read(bytes: &[u8], at: &mut usize, prefix_bits: u32) -> Result<usize, Error> {
    let first = *bytes.get(*at).ok_or(Error::Truncated)?;
    *at += 1;
    let full = (1usize << prefix_bits) - 1;
    let mut value = usize::from(first) & full;
    if value < full {
        return Ok(value);
    }
    for i in 0..CONTINUATIONS_MAX {
        let byte = *bytes.get(*at).ok_or(Error::Truncated)?;
        *at += 1;
        value += usize::from(byte & 0x7f) << (7 * i);
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(Error::IntegerOverflow)
}

/// Appends `value` behind the bits of `pattern` that lie above the prefix.
pub(super) fn write(mut value: usize, prefix_bits: u32, pattern: u8, out: &mut Vec<u8>) {
    let full = (1usize << prefix_bits) - 1;
    if value < full {
        return out.push(pattern | value as u8);
    }
    out.push(pattern | full as u8);
    value -= full;
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 7541 appendix C.1.
    #[test]
    fn examples_of_the_rfc() {
        for (value, bits, bytes) in [(10, 5, &[0x0a][..]), (1337, 5, &[0x1f, 0x9a, 0x0a]), (42, 8, &[0x2a])] {
            let mut out = Vec::new();
            write(value, bits, 0, &mut out);
            assert_eq!(out, bytes);
            let mut at = 0;
            assert_eq!(read(bytes, &mut at, bits), Ok(value));
            assert_eq!(at, bytes.len());
        }
    }

    #[test]
    fn every_prefix_round_trips_around_its_edges() {
        for bits in 1..=8 {
            let full = (1usize << bits) - 1;
            for value in [0, 1, full.saturating_sub(1), full, full + 1, full + 127, full + 128, 16_384, (1 << 28) - 1] {
                let mut out = Vec::new();
                write(value, bits, 0, &mut out);
                let mut at = 0;
                assert_eq!(read(&out, &mut at, bits), Ok(value), "{value} in {bits} bits");
                for cut in 0..out.len() {
                    assert_eq!(read(&out[..cut], &mut 0, bits), Err(Error::Truncated));
                }
            }
        }
    }

    #[test]
    fn long_integers_are_refused() {
        assert_eq!(read(&[0x7f, 0xff, 0xff, 0xff, 0xff, 0x00], &mut 0, 7), Err(Error::IntegerOverflow));
        assert_eq!(read(&[0x7f, 0x80, 0x80, 0x80, 0x80, 0x80, 0x00], &mut 0, 7), Err(Error::IntegerOverflow));
    }
}
