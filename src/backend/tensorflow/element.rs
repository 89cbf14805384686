//! Element types by TensorFlow's numbers (tensorflow/core/framework/types.proto).

use nereid_request::DataType;
use nereid_wire::inference as wire;

/// Each type of the protocol that the backend supports, and TensorFlow's number of it. BF16 is not among them
/// (contract/frameworks.md section 5, "types").
const NUMBERS: [(DataType, i32); 13] = [
    (DataType::Fp32, 1),
    (DataType::Fp64, 2),
    (DataType::Int32, 3),
    (DataType::Uint8, 4),
    (DataType::Int16, 5),
    (DataType::Int8, 6),
    (DataType::Bytes, 7),
    (DataType::Int64, 9),
    (DataType::Bool, 10),
    (DataType::Uint16, 17),
    (DataType::Fp16, 19),
    (DataType::Uint32, 22),
    (DataType::Uint64, 23),
];

/// Names of types that models may have and the protocol has not.
const OTHER_NAMES: [(i32, &str); 5] =
    [(8, "DT_COMPLEX64"), (14, "DT_BFLOAT16"), (18, "DT_COMPLEX128"), (20, "DT_RESOURCE"), (21, "DT_VARIANT")];

/// TensorFlow's number of a type.
pub fn number_of(datatype: DataType) -> Option<i32> {
    NUMBERS.iter().find(|(known, _)| *known == datatype).map(|(_, number)| *number)
}

/// The type of this number.
pub fn from_number(number: i32) -> Option<DataType> {
    NUMBERS.iter().find(|(_, known)| *known == number).map(|(datatype, _)| *datatype)
}

/// The same as the configuration numbers it; TYPE_INVALID for a type that it has not.
pub fn configured(number: i32) -> wire::DataType {
    let datatype = from_number(number).and_then(|datatype| wire::DataType::try_from(datatype as i32).ok());
    datatype.unwrap_or(wire::DataType::TypeInvalid)
}

/// TensorFlow's name of a type that is not supported.
pub fn name_of_unsupported(number: i32) -> String {
    let known = OTHER_NAMES.iter().find(|(known, _)| *known == number);
    known.map_or_else(|| format!("DataType {number}"), |(_, name)| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_but_bf16_has_a_number() {
        for datatype in DataType::ALL {
            let number = number_of(datatype);
            assert_eq!(number.is_none(), datatype == DataType::Bf16);
            if let Some(number) = number {
                assert_eq!(from_number(number), Some(datatype));
                assert_eq!(configured(number).as_str_name(), datatype.config_name());
            }
        }
        assert_eq!((from_number(14), configured(20)), (None, wire::DataType::TypeInvalid));
        assert_eq!((name_of_unsupported(8), name_of_unsupported(99)), ("DT_COMPLEX64".into(), "DataType 99".into()));
    }
}
