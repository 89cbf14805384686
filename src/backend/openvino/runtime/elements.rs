//! The library's numbers of element types.
//!
//! The numbers differ between releases: 2025 removed one from the front of the enumeration, and several releases added
//! small integers in its middle. So the numbers are read off the library: the size of a tensor gives the type away.

use std::ptr;

use nereid_request::DataType;

use super::functions::{Functions, OvShape};

/// The types that models can have here, with their numbers (contract/frameworks.md section 3, "types").
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Elements([(DataType, i32); 11]);

/// Elements of the tensors whose sizes are read: enough that types of less than a byte differ from bytes.
const PROBED_ELEMENTS: i64 = 8;
/// Numbers behind that of the 1-bit type that are tried for the first whole byte; releases have had up to five between.
const BETWEEN_MAX: i32 = 12;

impl Elements {
    pub fn of(functions: &Functions) -> Result<Elements, String> {
        Elements::probe(|number| byte_size(functions, number))
    }

    /// `byte_size` is that of [`PROBED_ELEMENTS`] elements of the type with this number.
    fn probe(byte_size: impl Fn(i32) -> Option<usize>) -> Result<Elements, String> {
        // boolean, bf16, f16, f32, f64, i4, i8, i16, i32, i64, u1: their order has never changed.
        let sizes = [8, 16, 16, 32, 64, 4, 8, 16, 32, 64, 1];
        let mut starts = 0..4;
        let first = starts.find(|first| (*first..).zip(sizes).all(|(number, size)| byte_size(number) == Some(size)));
        let first = first.ok_or("its element types are in an unknown order")?;
        let u1 = first + 10;
        let mut bytes = u1 + 1..u1 + BETWEEN_MAX;
        let u8 = bytes
            .find(|u8| (*u8..).zip([8, 16, 32, 64]).all(|(number, size)| byte_size(number) == Some(size)))
            .ok_or("its unsigned element types are in an unknown order")?;
        Ok(Elements([
            (DataType::Bool, first),
            (DataType::Fp16, first + 2),
            (DataType::Fp32, first + 3),
            (DataType::Int8, first + 6),
            (DataType::Int16, first + 7),
            (DataType::Int32, first + 8),
            (DataType::Int64, first + 9),
            (DataType::Uint8, u8),
            (DataType::Uint16, u8 + 1),
            (DataType::Uint32, u8 + 2),
            (DataType::Uint64, u8 + 3),
        ]))
    }

    pub fn number(&self, datatype: DataType) -> Option<i32> {
        self.0.iter().find(|(known, _)| *known == datatype).map(|(_, number)| *number)
    }

    pub fn datatype(&self, number: i32) -> Option<DataType> {
        self.0.iter().find(|(_, known)| *known == number).map(|(datatype, _)| *datatype)
    }
}

/// Bytes of [`PROBED_ELEMENTS`] elements of the type with this number; `None` for a number without a type.
fn byte_size(functions: &Functions, number: i32) -> Option<usize> {
    let mut dims = [PROBED_ELEMENTS];
    let shape = OvShape { rank: 1, dims: dims.as_mut_ptr() };
    let (mut tensor, mut size) = (ptr::null_mut(), 0);
    // SAFETY: the shape is alive during the call; an unknown number is an error.
    if unsafe { (functions.ov_tensor_create)(number, shape, &mut tensor) } != 0 || tensor.is_null() {
        return None;
    }
    // SAFETY: the tensor was just made; its size is written to the given place.
    let status = unsafe { (functions.ov_tensor_get_byte_size)(tensor, &mut size) };
    // SAFETY: made by the call above, and freed once.
    unsafe { (functions.ov_tensor_free)(tensor) };
    (status == 0).then_some(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sizes in the order of a release's enumeration; 0: no size.
    fn release(sizes: &[usize]) -> Result<Elements, String> {
        Elements::probe(|number| {
            let size = usize::try_from(number).ok().and_then(|number| sizes.get(number)).copied();
            size.filter(|size| *size > 0)
        })
    }

    #[test]
    fn the_numbers_of_every_release_are_found() {
        let common = [8, 16, 16, 32, 64, 4, 8, 16, 32, 64, 1];
        let unsigned = [8, 16, 32, 64];
        // Undefined and dynamic, then no small integers; dynamic alone, then u2, u3, u4 and u6.
        let older = release(&[&[0, 0], &common[..], &[4], &unsigned[..]].concat()).unwrap();
        let newer = release(&[&[0], &common[..], &[2, 3, 4, 6], &unsigned[..]].concat()).unwrap();
        assert_eq!((older.number(DataType::Fp32), newer.number(DataType::Fp32)), (Some(5), Some(4)));
        assert_eq!((older.number(DataType::Uint8), newer.number(DataType::Uint8)), (Some(14), Some(16)));
        assert_eq!(newer.datatype(19), Some(DataType::Uint64));
        for unsupported in [DataType::Fp64, DataType::Bf16, DataType::Bytes] {
            assert_eq!(newer.number(unsupported), None);
        }
        assert_eq!(newer.datatype(5), None, "a model may have f64");
        assert_eq!(release(&[8, 8, 8, 8]), Err("its element types are in an unknown order".to_owned()));
        let without = release(&[&[0], &common[..]].concat());
        assert_eq!(without, Err("its unsigned element types are in an unknown order".to_owned()));
    }
}
