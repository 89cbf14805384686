//! Element types of ONNX and of the protocol, one to one where both have them (contract/backends.md section 4).

use ort::sys::ONNXTensorElementDataType as Number;

use nereid_request::DataType;

/// An element type that ONNX and the protocol both have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ElementType {
    number: Number,
    datatype: DataType,
}

const TYPES: [(Number, DataType, &str); 14] = [
    (Number::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, DataType::Fp32, "FLOAT"),
    (Number::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8, DataType::Uint8, "UINT8"),
    (Number::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8, DataType::Int8, "INT8"),
    (Number::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16, DataType::Uint16, "UINT16"),
    (Number::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16, DataType::Int16, "INT16"),
    (Number::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32, DataType::Int32, "INT32"),
    (Number::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, DataType::Int64, "INT64"),
    (Number::ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING, DataType::Bytes, "STRING"),
    (Number::ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL, DataType::Bool, "BOOL"),
    (Number::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16, DataType::Fp16, "FLOAT16"),
    (Number::ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE, DataType::Fp64, "DOUBLE"),
    (Number::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32, DataType::Uint32, "UINT32"),
    (Number::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64, DataType::Uint64, "UINT64"),
    (Number::ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16, DataType::Bf16, "BFLOAT16"),
];

impl ElementType {
    /// From `ONNXTensorElementDataType`; `None` for complex numbers and types of newer libraries.
    pub fn from_number(number: i32) -> Option<ElementType> {
        let (number, datatype, _) = TYPES.into_iter().find(|(known, ..)| *known as i32 == number)?;
        Some(ElementType { number, datatype })
    }

    pub fn datatype(self) -> DataType {
        self.datatype
    }

    pub(super) fn number(self) -> Number {
        self.number
    }

    /// The name that ONNX uses, for messages.
    pub fn onnx_name(self) -> &'static str {
        TYPES.into_iter().find(|(number, ..)| *number == self.number).map_or("UNDEFINED", |(.., name)| name)
    }
}

impl From<DataType> for ElementType {
    fn from(datatype: DataType) -> ElementType {
        // Every type of the protocol is in the table, as the test below checks.
        let found = TYPES.into_iter().find(|(_, known, _)| *known == datatype);
        let number = found.map_or(Number::ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED, |(number, ..)| number);
        ElementType { number, datatype }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_of_the_protocol_has_one_of_onnx() {
        for datatype in DataType::ALL {
            let element = ElementType::from(datatype);
            assert_eq!(ElementType::from_number(element.number() as i32), Some(element), "{datatype}");
            assert_eq!(element.datatype(), datatype);
            assert_ne!(element.onnx_name(), "UNDEFINED");
        }
        assert_eq!(ElementType::from(DataType::Bf16).onnx_name(), "BFLOAT16");
    }

    #[test]
    fn complex_and_unheard_of_types_are_none() {
        for number in [-1, 0, 14, 15, 17, 23, 1000] {
            assert_eq!(ElementType::from_number(number), None);
        }
    }
}
