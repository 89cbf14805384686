//! Types of elements: torch's numbers for them, and the types that a configuration may use
//! (contract/frameworks.md sections 1, 1a and 8).

use nereid_request::DataType;
use nereid_wire::inference as wire;

/// Torch's number of each type that tensors of a model may have (`c10::ScalarType`).
const TYPES: [(DataType, i32); 10] = [
    (DataType::Uint8, 0),
    (DataType::Int8, 1),
    (DataType::Int16, 2),
    (DataType::Int32, 3),
    (DataType::Int64, 4),
    (DataType::Fp16, 5),
    (DataType::Fp32, 6),
    (DataType::Fp64, 7),
    (DataType::Bool, 11),
    (DataType::Bf16, 15),
];

/// Types that torch has and a configuration must not use.
const OTHERS: [(DataType, i32); 3] = [(DataType::Uint16, 27), (DataType::Uint32, 28), (DataType::Uint64, 29)];

/// Torch's number of `datatype`; `None` if no tensor of a model may have it.
pub fn dtype_of(datatype: DataType) -> Option<i32> {
    TYPES.iter().find(|(known, _)| *known == datatype).map(|(_, number)| *number)
}

/// The type with this number, if tensors of a model may have it.
pub fn datatype_of(dtype: i32) -> Option<DataType> {
    TYPES.iter().find(|(_, number)| *number == dtype).map(|(datatype, _)| *datatype)
}

/// Whether tensors of this type can be passed to a module of TorchScript. Those of BF16 can be passed to packages only.
pub fn is_of_modules(datatype: DataType) -> bool {
    datatype != DataType::Bf16 && dtype_of(datatype).is_some()
}

/// The configuration's name of torch's type, for messages: `TYPE_FP32`.
pub fn config_name_of_dtype(dtype: i32) -> &'static str {
    let known = TYPES.iter().chain(&OTHERS).find(|(_, number)| *number == dtype);
    known.map_or(wire::DataType::TypeInvalid.as_str_name(), |(datatype, _)| config_name(*datatype))
}

/// `TYPE_FP32`
pub fn config_name(datatype: DataType) -> &'static str {
    wire::DataType::try_from(datatype as i32).unwrap_or(wire::DataType::TypeInvalid).as_str_name()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_and_large_unsigned_numbers_have_no_type() {
        let refused: Vec<DataType> =
            DataType::ALL.into_iter().filter(|datatype| dtype_of(*datatype).is_none()).collect();
        assert_eq!(refused, [DataType::Uint16, DataType::Uint32, DataType::Uint64, DataType::Bytes]);
        for (datatype, number) in TYPES {
            assert_eq!((datatype_of(number), is_of_modules(datatype)), (Some(datatype), number != 15));
            assert_eq!((dtype_of(datatype), config_name_of_dtype(number)), (Some(number), config_name(datatype)));
        }
        assert_eq!((datatype_of(27), is_of_modules(DataType::Bytes)), (None, false));
        assert_eq!(config_name(DataType::Bytes), "TYPE_STRING");
        assert_eq!((config_name_of_dtype(27), config_name_of_dtype(9)), ("TYPE_UINT16", "TYPE_INVALID"));
    }
}
