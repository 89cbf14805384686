//! Vectors of embeddings and scores: from the text of a JSON list, which comes in runs, or from elements of a tensor.

use std::ops::Range;

use nereid_memory::Slice;

use super::outputs::RUN_BYTES_MAX;
use crate::python_json::push_float;

/// Magnitudes of numbers that the crate zmij and Python write alike.
const PLAIN: Range<f64> = 1e-4..1e15;

/// A number's text is shorter than this.
const NUMBER_BYTES_MAX: usize = 64;

pub(super) enum Vector {
    Single(Vec<f32>),
    Double(Vec<f64>),
}

impl Vector {
    pub fn len(&self) -> usize {
        match self {
            Vector::Single(numbers) => numbers.len(),
            Vector::Double(numbers) => numbers.len(),
        }
    }

    pub fn byte_size(&self) -> usize {
        match self {
            Vector::Single(numbers) => size_of_val(&numbers[..]),
            Vector::Double(numbers) => size_of_val(&numbers[..]),
        }
    }

    pub fn double(&self, index: usize) -> f64 {
        match self {
            Vector::Single(_) => f64::from(self.single(index)),
            Vector::Double(numbers) => numbers.get(index).copied().unwrap_or_default(),
        }
    }

    pub fn single(&self, index: usize) -> f32 {
        match self {
            Vector::Single(numbers) => numbers.get(index).copied().unwrap_or_default(),
            Vector::Double(numbers) => numbers.get(index).copied().unwrap_or_default() as f32,
        }
    }

    /// Writes one number as Python's `repr` does; each is finite. Of a single one there are as many digits as it needs.
    pub fn put(&self, index: usize, out: &mut Vec<u8>) {
        let mut buffer = zmij::Buffer::new();
        let text = match self {
            Vector::Single(_) => buffer.format_finite(self.single(index)),
            Vector::Double(_) => buffer.format_finite(self.double(index)),
        };
        let magnitude = self.double(index).abs();
        if magnitude == 0.0 || PLAIN.contains(&magnitude) {
            return out.extend_from_slice(text.as_bytes());
        }
        let mut python = String::new();
        push_float(&mut python, text.parse().unwrap_or_default());
        out.extend_from_slice(python.as_bytes());
    }
}

/// What is wrong with a vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Malformed(pub &'static str);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    BeforeList,
    /// Behind `[`: a number or the end.
    First,
    /// Behind a comma.
    Next,
    InNumber,
    BehindNumber,
    BehindList,
}

/// Reads the text of a JSON list of numbers.
pub(super) struct NumberList {
    numbers: Vec<f64>,
    /// The beginning of a number.
    held: Vec<u8>,
    place: Place,
}

impl NumberList {
    pub fn new() -> NumberList {
        NumberList { numbers: Vec::new(), held: Vec::new(), place: Place::BeforeList }
    }

    pub fn push(&mut self, text: &[u8]) -> Result<(), Malformed> {
        for &byte in text {
            self.take(byte)?;
        }
        Ok(())
    }

    fn take(&mut self, byte: u8) -> Result<(), Malformed> {
        let is_numeric = matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
        if self.place == Place::InNumber {
            if is_numeric && self.held.len() < NUMBER_BYTES_MAX {
                self.held.push(byte);
                return Ok(());
            }
            self.end_number()?;
        }
        self.place = match (self.place, byte) {
            (place, b' ' | b'\t' | b'\n' | b'\r') => place,
            (Place::BeforeList, b'[') => Place::First,
            (Place::First | Place::Next, _) if is_numeric => {
                self.held.push(byte);
                Place::InNumber
            }
            (Place::First | Place::BehindNumber, b']') => Place::BehindList,
            (Place::BehindNumber, b',') => Place::Next,
            _ => return Err(Malformed("it is not the text of a JSON list of finite numbers")),
        };
        Ok(())
    }

    fn end_number(&mut self) -> Result<(), Malformed> {
        let number = std::str::from_utf8(&self.held).ok().and_then(|text| text.parse::<f64>().ok());
        match number.filter(|number| number.is_finite()) {
            Some(number) => self.numbers.push(number),
            None => return Err(Malformed("one of its numbers is none, or not finite")),
        }
        self.held.clear();
        self.place = Place::BehindNumber;
        Ok(())
    }

    /// No text follows.
    pub fn finish(self) -> Result<Vector, Malformed> {
        match self.place {
            Place::BehindList => Ok(Vector::Double(self.numbers)),
            _ => Err(Malformed("the JSON list of numbers in it has no end")),
        }
    }
}

/// Copies elements of a tensor.
#[derive(Default)]
pub(super) struct Elements {
    numbers: Vec<f32>,
    piece: usize,
    at: usize,
    /// An element that two pieces share.
    held: Vec<u8>,
}

impl Elements {
    /// Takes a bounded number more. True: there are no more. `elements_max`: so many are enough.
    pub fn read(&mut self, pieces: &[Slice], elements_max: usize) -> Result<bool, Malformed> {
        let mut left = RUN_BYTES_MAX;
        while left > 0 && self.numbers.len() < elements_max {
            let Some(piece) = pieces.get(self.piece) else { return Ok(true) };
            let rest = piece.get(self.at..).unwrap_or_default();
            if rest.is_empty() {
                (self.piece, self.at) = (self.piece + 1, 0);
                left -= 1;
                continue;
            }
            let taken = rest.len().min(left);
            self.take(rest.get(..taken).unwrap_or_default(), elements_max)?;
            self.at += taken;
            left -= taken;
        }
        Ok(self.numbers.len() >= elements_max)
    }

    fn take(&mut self, mut bytes: &[u8], elements_max: usize) -> Result<(), Malformed> {
        while !self.held.is_empty()
            && let Some((&byte, rest)) = bytes.split_first()
        {
            bytes = rest;
            self.held.push(byte);
            if let Ok(element) = <[u8; 4]>::try_from(&self.held[..]) {
                self.held.clear();
                self.push(element)?;
            }
        }
        let (elements, rest) = bytes.as_chunks::<4>();
        for element in elements.iter().take(elements_max.saturating_sub(self.numbers.len())) {
            self.push(*element)?;
        }
        self.held.extend_from_slice(rest);
        Ok(())
    }

    fn push(&mut self, element: [u8; 4]) -> Result<(), Malformed> {
        let number = f32::from_le_bytes(element);
        if !number.is_finite() {
            return Err(Malformed("one of its numbers is not finite"));
        }
        self.numbers.push(number);
        Ok(())
    }

    pub fn finish(self) -> Vector {
        Vector::Single(self.numbers)
    }
}
