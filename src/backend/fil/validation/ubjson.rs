//! Reads XGBoost's UBJSON as far as its validation needs.
//!
//! A file that is not UBJSON is left to treelite. So reading stops without an error where no document can go on, except
//! for counts that no file of this size can have.

use super::Invalid;
use super::xgboost::{Document, NESTING_MAX};

pub fn validate(bytes: &[u8]) -> Result<(), Invalid> {
    let mut reader = Reader { rest: bytes, document: Document::default() };
    match reader.marker().and_then(|marker| reader.value(marker, 0)) {
        Ok(()) => reader.document.finish(),
        Err(Stop::NotUbjson) => Ok(()),
        Err(Stop::Invalid(invalid)) => Err(invalid),
    }
}

/// Why reading ends before the document.
enum Stop {
    NotUbjson,
    Invalid(Invalid),
}

impl From<Invalid> for Stop {
    fn from(invalid: Invalid) -> Stop {
        Stop::Invalid(invalid)
    }
}

struct Reader<'a> {
    rest: &'a [u8],
    document: Document,
}

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], Stop> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(Stop::NotUbjson)?;
        self.rest = rest;
        Ok(taken)
    }

    /// The next byte that is not a filler.
    fn marker(&mut self) -> Result<u8, Stop> {
        loop {
            match self.take(1)? {
                [b'N'] => {}
                [marker] => return Ok(*marker),
                _ => return Err(Stop::NotUbjson),
            }
        }
    }

    fn is_next(&mut self, byte: u8) -> bool {
        while let Some(rest) = self.rest.strip_prefix(b"N") {
            self.rest = rest;
        }
        self.rest.first() == Some(&byte)
    }

    fn integer(&mut self, marker: u8) -> Result<i64, Stop> {
        let len = match marker {
            b'i' | b'U' => 1,
            b'I' => 2,
            b'l' => 4,
            b'L' => 8,
            _ => return Err(Stop::NotUbjson),
        };
        let bytes = self.take(len)?;
        let is_negative = marker != b'U' && bytes.first().is_some_and(|byte| *byte >= 0x80);
        let from = if is_negative { -1 } else { 0 };
        Ok(bytes.iter().fold(from, |number, byte| number << 8 | i64::from(*byte)))
    }

    fn length(&mut self) -> Result<usize, Stop> {
        let marker = self.marker()?;
        usize::try_from(self.integer(marker)?).map_err(|_| Stop::NotUbjson)
    }

    /// A count of items, which have at least a byte each.
    fn count(&mut self) -> Result<usize, Stop> {
        let count = self.length()?;
        if count > self.rest.len() {
            return Err(Invalid::Truncated(format!("it cannot contain an array of {count} items")).into());
        }
        Ok(count)
    }

    fn value(&mut self, marker: u8, depth: usize) -> Result<(), Stop> {
        match marker {
            b'i' | b'U' | b'I' | b'l' | b'L' => {
                let number = self.integer(marker)?;
                self.document.number(Some(number));
            }
            b'd' | b'D' => {
                self.take(if marker == b'd' { 4 } else { 8 })?;
                self.document.number(None);
            }
            b'Z' | b'T' | b'F' => self.document.number(None),
            b'C' => {
                self.take(1)?;
                self.document.number(None);
            }
            b'S' | b'H' => {
                let len = self.length()?;
                let text = self.take(len)?;
                self.document.text(text)?;
                if marker == b'H' {
                    self.document.number(None);
                }
            }
            b'[' | b'{' if depth >= NESTING_MAX => self.document.begin(true)?,
            b'[' => self.container(true, depth)?,
            b'{' => self.container(false, depth)?,
            _ => return Err(Stop::NotUbjson),
        }
        Ok(())
    }

    fn container(&mut self, is_array: bool, depth: usize) -> Result<(), Stop> {
        self.document.begin(is_array)?;
        let mut item_type = None;
        if self.is_next(b'$') {
            self.take(1)?;
            item_type = self.take(1)?.first().copied();
        }
        let mut left = None;
        if self.is_next(b'#') {
            self.take(1)?;
            left = Some(self.count()?);
        } else if item_type.is_some() {
            return Err(Stop::NotUbjson);
        }
        let end = if is_array { b']' } else { b'}' };
        loop {
            match &mut left {
                Some(0) => break,
                Some(left) => *left -= 1,
                None if self.is_next(end) => {
                    self.take(1)?;
                    break;
                }
                None => {}
            }
            if !is_array {
                let len = self.length()?;
                let key = self.take(len)?;
                self.document.key(key);
            }
            let marker = match item_type {
                Some(item_type) => item_type,
                None => self.marker()?,
            };
            self.value(marker, depth + 1)?;
        }
        Ok(self.document.end()?)
    }
}
