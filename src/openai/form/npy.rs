//! Arrays in NumPy's files (`.npy`), as converters of LoRA adapters write them.
//!
//! The header is a literal of Python: `{'descr': '<f2', 'fortran_order': False, 'shape': (1, 64, 16), }`. Only what
//! such files hold is read: plain numbers, little-endian, in C order.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use thiserror::Error;

use nereid_request::{DataType, Shape};

/// The longest header; those of arrays of numbers have about a hundred bytes.
const HEADER_BYTES_MAX: usize = 64 << 10;
/// The largest array: adapters of the largest models have about 1 GiB.
const ARRAY_BYTES_MAX: u64 = 4 << 30;
const DIMENSIONS_MAX: usize = 32;

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(super) enum NpyError {
    #[error("it cannot be read: {0}")]
    Unreadable(String),
    #[error("it is not a file of NumPy (.npy) of version 1, 2 or 3")]
    Foreign,
    #[error("its header is not that of an array: {0}")]
    Header(&'static str),
    #[error("its numbers have the type '{0}', but float16, float32, int16, int32 and int64, little-endian, are read")]
    Type(String),
    #[error("its array is in Fortran's order; save it with numpy.ascontiguousarray")]
    FortranOrder,
    #[error("its array has more than {ARRAY_BYTES_MAX} bytes")]
    TooLarge,
    #[error("it ends before its array does")]
    Short,
}

/// An array and its element type as the file states it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Array {
    stated: DataType,
    pub(super) shape: Shape,
    pub(super) data: Vec<u8>,
}

impl Array {
    /// The element type for an input of type `declared`: NumPy has no BF16, so that files have its bits as integers.
    pub(super) fn datatype(&self, declared: DataType) -> DataType {
        if self.stated == DataType::Int16 && declared == DataType::Bf16 { declared } else { self.stated }
    }
}

pub(super) fn read(path: &Path) -> Result<Array, NpyError> {
    let unreadable = |error: std::io::Error| NpyError::Unreadable(error.to_string());
    // A pipe would block.
    if !fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err(NpyError::Unreadable("it is not a regular file".to_owned()));
    }
    let mut file = File::open(path).map_err(unreadable)?;
    let length = file.metadata().map_err(unreadable)?.len();
    read_from(&mut file, length)
}

/// `length`: of the whole file, which bounds what is reserved for its array.
pub(super) fn read_from(file: &mut dyn Read, length: u64) -> Result<Array, NpyError> {
    let mut fixed = [0; 8];
    fill(file, &mut fixed).map_err(|_| NpyError::Foreign)?;
    let [b'\x93', b'N', b'U', b'M', b'P', b'Y', major, _] = fixed else { return Err(NpyError::Foreign) };
    let (header_length, width) = match major {
        1 => {
            let mut bytes = [0; 2];
            fill(file, &mut bytes)?;
            (usize::from(u16::from_le_bytes(bytes)), 2)
        }
        2 | 3 => {
            let mut bytes = [0; 4];
            fill(file, &mut bytes)?;
            (usize::try_from(u32::from_le_bytes(bytes)).unwrap_or(usize::MAX), 4)
        }
        _ => return Err(NpyError::Foreign),
    };
    if header_length > HEADER_BYTES_MAX {
        return Err(NpyError::Header("it is too long"));
    }
    let mut header = vec![0; header_length];
    fill(file, &mut header)?;
    let header = str::from_utf8(&header).map_err(|_| NpyError::Header("it is not text"))?;
    let (stated, shape) = parse(header)?;
    let size = shape.iter().try_fold(stated_size(stated), |size, &count| size.checked_mul(u64::try_from(count).ok()?));
    let size = size.filter(|&size| size <= ARRAY_BYTES_MAX).ok_or(NpyError::TooLarge)?;
    let before = u64::try_from(header_length).unwrap_or(u64::MAX).saturating_add(8 + width);
    if size > length.saturating_sub(before) {
        return Err(NpyError::Short);
    }
    let mut data = vec![0; usize::try_from(size).map_err(|_| NpyError::TooLarge)?];
    fill(file, &mut data)?;
    Ok(Array { stated, shape, data })
}

fn fill(file: &mut dyn Read, bytes: &mut [u8]) -> Result<(), NpyError> {
    file.read_exact(bytes).map_err(|error| match error.kind() {
        std::io::ErrorKind::UnexpectedEof => NpyError::Short,
        _ => NpyError::Unreadable(error.to_string()),
    })
}

fn stated_size(datatype: DataType) -> u64 {
    match datatype {
        DataType::Int16 | DataType::Fp16 => 2,
        DataType::Int64 => 8,
        _ => 4,
    }
}

/// The element type and the shape of a header.
fn parse(header: &str) -> Result<(DataType, Shape), NpyError> {
    let mut rest = Cursor(header.trim());
    let (mut descr, mut is_fortran, mut shape) = (None, None, None);
    rest.expect('{')?;
    while !rest.take('}') {
        let name = rest.string()?;
        rest.expect(':')?;
        match name {
            "descr" => descr = Some(rest.string()?),
            "fortran_order" => is_fortran = Some(rest.boolean()?),
            "shape" => shape = Some(rest.tuple()?),
            _ => return Err(NpyError::Header("it has an unknown member")),
        }
        if !rest.take(',') {
            rest.expect('}')?;
            break;
        }
    }
    let (Some(descr), Some(is_fortran), Some(shape)) = (descr, is_fortran, shape) else {
        return Err(NpyError::Header("a member is missing"));
    };
    let datatype = match descr {
        "<f2" => DataType::Fp16,
        "<f4" => DataType::Fp32,
        "<i2" | "<u2" | "|V2" | "<V2" => DataType::Int16,
        "<i4" => DataType::Int32,
        "<i8" => DataType::Int64,
        other => return Err(NpyError::Type(other.chars().take(16).collect())),
    };
    if is_fortran && shape.iter().filter(|&&size| size > 1).count() > 1 {
        return Err(NpyError::FortranOrder);
    }
    Ok((datatype, shape))
}

/// The part of a header that is still to be read.
struct Cursor<'a>(&'a str);

impl<'a> Cursor<'a> {
    fn take(&mut self, c: char) -> bool {
        match self.0.trim_start().strip_prefix(c) {
            Some(rest) => {
                self.0 = rest;
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, c: char) -> Result<(), NpyError> {
        if self.take(c) { Ok(()) } else { Err(NpyError::Header("it is no dictionary of Python")) }
    }

    fn string(&mut self) -> Result<&'a str, NpyError> {
        let quote = if self.take('"') { '"' } else { '\'' };
        if quote == '\'' {
            self.expect('\'')?;
        }
        let (text, rest) = self.0.split_once(quote).ok_or(NpyError::Header("a string does not end"))?;
        self.0 = rest;
        Ok(text)
    }

    fn boolean(&mut self) -> Result<bool, NpyError> {
        let text = self.0.trim_start();
        let (value, rest) = match (text.strip_prefix("True"), text.strip_prefix("False")) {
            (Some(rest), _) => (true, rest),
            (_, Some(rest)) => (false, rest),
            _ => return Err(NpyError::Header("'fortran_order' is no truth value")),
        };
        self.0 = rest;
        Ok(value)
    }

    fn tuple(&mut self) -> Result<Shape, NpyError> {
        let mut shape = Shape::new();
        self.expect('(')?;
        while !self.take(')') {
            let text = self.0.trim_start();
            let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
            let (digits, rest) = text.split_at_checked(end).unwrap_or((text, ""));
            let size = digits.parse().map_err(|_| NpyError::Header("'shape' is no tuple of sizes"))?;
            if shape.len() == DIMENSIONS_MAX {
                return Err(NpyError::Header("'shape' has too many dimensions"));
            }
            shape.push(size);
            self.0 = rest;
            if !self.take(',') {
                self.expect(')')?;
                break;
            }
        }
        Ok(shape)
    }
}
