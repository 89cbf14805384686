//! The names and sizes of tensor data types: those of a configuration (`TYPE_FP32`) and of the protocol (`FP32`).

use nereid_wire::inference::DataType;

/// All types that a tensor can have, with their protocol names and sizes of one element in bytes.
const TYPES: [(DataType, &str, Option<usize>); 14] = [
    (DataType::TypeBool, "BOOL", Some(1)),
    (DataType::TypeUint8, "UINT8", Some(1)),
    (DataType::TypeUint16, "UINT16", Some(2)),
    (DataType::TypeUint32, "UINT32", Some(4)),
    (DataType::TypeUint64, "UINT64", Some(8)),
    (DataType::TypeInt8, "INT8", Some(1)),
    (DataType::TypeInt16, "INT16", Some(2)),
    (DataType::TypeInt32, "INT32", Some(4)),
    (DataType::TypeInt64, "INT64", Some(8)),
    (DataType::TypeFp16, "FP16", Some(2)),
    (DataType::TypeFp32, "FP32", Some(4)),
    (DataType::TypeFp64, "FP64", Some(8)),
    (DataType::TypeString, "BYTES", None),
    (DataType::TypeBf16, "BF16", Some(2)),
];

/// The protocol's name; `<invalid>` for TYPE_INVALID.
pub fn protocol_name(data_type: DataType) -> &'static str {
    TYPES.iter().find(|(known, _, _)| *known == data_type).map_or("<invalid>", |(_, name, _)| *name)
}

/// The type of a protocol name, which is spelt in capitals.
pub fn from_protocol_name(name: &str) -> Option<DataType> {
    TYPES.iter().find(|(_, known, _)| *known == name).map(|(data_type, _, _)| *data_type)
}

/// Bytes of one element; none where elements differ in size.
pub fn element_bytes(data_type: DataType) -> Option<usize> {
    TYPES.iter().find(|(known, _, _)| *known == data_type).and_then(|(_, _, bytes)| *bytes)
}

/// The configuration's name of a wire number, `TYPE_INVALID` for one that does not exist.
pub fn config_name(number: i32) -> &'static str {
    DataType::try_from(number).unwrap_or(DataType::TypeInvalid).as_str_name()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wire_type_has_a_name_that_leads_back() {
        for number in 1..=14 {
            let data_type = DataType::try_from(number).unwrap();
            assert_eq!(from_protocol_name(protocol_name(data_type)), Some(data_type));
            let config = config_name(number).strip_prefix("TYPE_").unwrap();
            let expected = if config == "STRING" { "BYTES" } else { config };
            assert_eq!(protocol_name(data_type), expected);
        }
        assert!(DataType::try_from(15).is_err());
        assert_eq!(protocol_name(DataType::TypeInvalid), "<invalid>");
        assert_eq!(config_name(15), "TYPE_INVALID");
        assert_eq!(from_protocol_name("fp32"), None);
        assert_eq!(from_protocol_name("STRING"), None);
        assert_eq!(element_bytes(DataType::TypeString), None);
        assert_eq!(element_bytes(DataType::TypeBf16), Some(2));
    }
}
