//! Varints and fixed-size values out of bytes that may be cut anywhere, within the message that holds them.

use super::super::{Malformed, varint};

/// How much of the innermost message is still to come, and the front of a value whose rest is.
#[derive(Default)]
pub(super) struct Tokens {
    /// Bytes of the innermost message still to come.
    pub(super) left: usize,
    /// Bytes of the whole message still to come.
    pub(super) ahead: usize,
    carry: [u8; varint::BYTES_MAX],
    carried: usize,
}

impl Tokens {
    pub(super) fn new(len: usize) -> Tokens {
        Tokens { left: len, ahead: len, ..Tokens::default() }
    }

    /// True if the innermost message is over.
    pub(super) fn is_over(&self) -> bool {
        self.left == 0 && self.carried == 0
    }

    /// A varint; `None` while bytes of it are missing. Most have one byte, which is not worth a call.
    #[inline(always)]
    pub(super) fn varint(&mut self, rest: &mut &[u8]) -> Result<Option<u64>, Malformed> {
        if self.carried > 0 {
            return self.carried_varint(rest);
        }
        match rest.first() {
            Some(&byte) if byte < 0x80 && self.left > 0 => {
                self.consume(rest, 1);
                Ok(Some(u64::from(byte)))
            }
            _ => self.long_varint(rest),
        }
    }

    #[inline(never)]
    fn long_varint(&mut self, rest: &mut &[u8]) -> Result<Option<u64>, Malformed> {
        let here = &rest[..rest.len().min(self.left)];
        match varint::decode(here) {
            varint::Decoded::Value(value, len) => {
                self.consume(rest, len);
                Ok(Some(value))
            }
            varint::Decoded::TooLong => Err(Malformed::Varint),
            varint::Decoded::Partial if here.len() == self.left => Err(Malformed::Overrun),
            varint::Decoded::Partial => {
                let len = here.len();
                self.carry[..len].copy_from_slice(here);
                self.carried = len;
                self.consume(rest, len);
                Ok(None)
            }
        }
    }

    /// Completes a varint that was cut, byte by byte.
    #[cold]
    fn carried_varint(&mut self, rest: &mut &[u8]) -> Result<Option<u64>, Malformed> {
        loop {
            if self.left == 0 {
                return Err(Malformed::Overrun);
            }
            let Some(&byte) = rest.first() else { return Ok(None) };
            let Some(slot) = self.carry.get_mut(self.carried) else { return Err(Malformed::Varint) };
            *slot = byte;
            self.carried += 1;
            self.consume(rest, 1);
            match varint::decode(&self.carry[..self.carried]) {
                varint::Decoded::Value(value, _) => {
                    self.carried = 0;
                    return Ok(Some(value));
                }
                varint::Decoded::TooLong => return Err(Malformed::Varint),
                varint::Decoded::Partial => {}
            }
        }
    }

    /// A little-endian value of `width` bytes, 8 at most; `None` while bytes of it are missing.
    pub(super) fn fixed(&mut self, rest: &mut &[u8], width: usize) -> Result<Option<u64>, Malformed> {
        let missing = width - self.carried;
        if missing > self.left {
            return Err(Malformed::Overrun);
        }
        let len = rest.len().min(missing);
        self.carry[self.carried..self.carried + len].copy_from_slice(&rest[..len]);
        self.carried += len;
        self.consume(rest, len);
        if len < missing {
            return Ok(None);
        }
        self.carried = 0;
        let mut bits = [0; 8];
        bits[..width].copy_from_slice(&self.carry[..width]);
        Ok(Some(u64::from_le_bytes(bits)))
    }

    /// Takes the next `len` bytes out of the innermost message, to be read by other means.
    pub(super) fn reserve(&mut self, len: usize) -> Result<(), Malformed> {
        self.left = self.left.checked_sub(len).ok_or(Malformed::Overrun)?;
        Ok(())
    }

    /// Notes that `len` bytes were read by other means.
    pub(super) fn passed(&mut self, len: usize) {
        self.ahead = self.ahead.saturating_sub(len);
    }

    #[inline]
    fn consume(&mut self, rest: &mut &[u8], len: usize) {
        *rest = &rest[len..];
        self.left -= len;
        self.passed(len);
    }
}
