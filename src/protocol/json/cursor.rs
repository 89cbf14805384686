//! The short way through a small text of the usual form: straight to the values, without tokens and nodes.
//!
//! Whatever is out of the ordinary (an escape, a fraction where an integer should be, a mistake) ends it with `None`,
//! and the caller begins anew with a [`Builder`](super::Builder), which reads everything and has the error texts for
//! what is wrong. So what is accepted here must mean the same there, and nothing else is promised.

use std::ops::Range;

use super::Element;
use super::numbers;
use super::text;

/// Digits of an integer that fits 64 bits in any case.
const DIGITS_MAX: usize = 18;
/// Arrays in arrays.
const DEPTH_MAX: usize = 16;

/// A place in a text.
#[derive(Debug, Clone)]
pub struct Cursor<'t> {
    text: &'t [u8],
    at: usize,
}

impl<'t> Cursor<'t> {
    pub fn new(text: &'t [u8]) -> Cursor<'t> {
        Cursor { text, at: 0 }
    }

    /// Skips blanks and returns the byte behind them; 0 at the end.
    #[inline]
    pub fn peek(&mut self) -> u8 {
        loop {
            match self.text.get(self.at) {
                Some(b' ' | b'\n' | b'\r' | b'\t') => self.at += 1,
                other => return other.copied().unwrap_or(0),
            }
        }
    }

    /// Takes `byte`, if it is the next one.
    #[inline]
    pub fn take(&mut self, byte: u8) -> bool {
        let is_next = self.peek() == byte;
        self.at += usize::from(is_next);
        is_next
    }

    #[inline]
    pub fn expect(&mut self, byte: u8) -> Option<()> {
        self.take(byte).then_some(())
    }

    /// True if only blanks follow.
    pub fn is_at_end(&mut self) -> bool {
        self.peek();
        self.at == self.text.len()
    }

    /// The key of the next member of an object that was opened by `{` before, and its colon; `Some(None)` behind the
    /// last one. `is_first`: no member was read yet.
    #[inline]
    pub fn key(&mut self, is_first: bool) -> Option<Option<&'t [u8]>> {
        if self.take(b'}') {
            return Some(None);
        }
        if !is_first {
            self.expect(b',')?;
        }
        let key = self.string()?;
        self.expect(b':')?;
        Some(Some(key))
    }

    /// True if another element follows in an array that was opened by `[` before; false behind the last one.
    #[inline]
    pub fn element(&mut self, is_first: bool) -> Option<bool> {
        if self.take(b']') {
            return Some(false);
        }
        if !is_first {
            self.expect(b',')?;
            // What stands behind a comma is an element; its own reader reports that it is none.
            return (self.peek() != b']').then_some(true);
        }
        Some(true)
    }

    /// A string without escapes.
    #[inline]
    pub fn string(&mut self) -> Option<&'t [u8]> {
        let span = self.string_span()?;
        self.text.get(span)
    }

    /// Where the bytes of such a string are.
    #[inline]
    pub fn string_span(&mut self) -> Option<Range<usize>> {
        self.expect(b'"')?;
        let start = self.at;
        let end = text::plain_end(self.text, start);
        if self.text.get(end) != Some(&b'"') {
            return None;
        }
        self.at = end + 1;
        Some(start..end)
    }

    /// An integer of at most 18 digits without a sign.
    #[inline]
    pub fn uint(&mut self) -> Option<u64> {
        self.peek();
        let rest = self.text.get(self.at..)?;
        let mut value = 0;
        let mut digits = 0;
        while let Some(digit @ b'0'..=b'9') = rest.get(digits)
            && digits <= DIGITS_MAX
        {
            value = value * 10 + u64::from(digit - b'0');
            digits += 1;
        }
        let is_plain = (1..=DIGITS_MAX).contains(&digits) && (digits == 1 || rest.first() != Some(&b'0'));
        if !is_plain || matches!(rest.get(digits), Some(b'.' | b'e' | b'E')) {
            return None;
        }
        self.at += digits;
        Some(value)
    }

    pub fn bool(&mut self) -> Option<bool> {
        self.peek();
        let rest = self.text.get(self.at..)?;
        let (value, len) = if rest.starts_with(b"true") {
            (true, 4)
        } else if rest.starts_with(b"false") {
            (false, 5)
        } else {
            return None;
        };
        self.at += len;
        Some(value)
    }

    /// An array of as many elements as `out` has room for, nested or not, read into it.
    pub fn numbers(&mut self, element: Element, out: &mut [u8]) -> Option<()> {
        numbers::with_reader!(element, |read| self.fill(out, read))
    }

    #[inline(always)]
    fn fill<const N: usize>(
        &mut self,
        out: &mut [u8],
        read: impl Fn(&[u8], &mut usize) -> Result<[u8; N], super::TensorError>,
    ) -> Option<()> {
        let mut depth = 0;
        let mut room = out.chunks_exact_mut(N);
        loop {
            // Here stands a value.
            if self.peek() == b'[' {
                depth += 1;
                self.at += 1;
                if depth > DEPTH_MAX {
                    return None;
                }
                continue;
            }
            if depth == 0 {
                return None;
            }
            let place = room.next()?;
            place.copy_from_slice(&read(self.text, &mut self.at).ok()?);
            // And here what follows one.
            loop {
                match self.peek() {
                    b',' => {
                        self.at += 1;
                        break;
                    }
                    b']' => {
                        self.at += 1;
                        depth -= 1;
                        if depth == 0 {
                            return room.next().is_none().then_some(());
                        }
                    }
                    _ => return None,
                }
            }
        }
    }
}
