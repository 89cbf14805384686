"""Data types: their numbers in the server's C interface (TRITONSERVER_DataType), in configurations, and in numpy."""

import numpy as np

BOOL = 1
BYTES = 13
BF16 = 14

# By number. BF16, which numpy lacks, is stored as integers with its bits.
_NUMPY = (
    None,
    np.bool_,
    np.uint8,
    np.uint16,
    np.uint32,
    np.uint64,
    np.int8,
    np.int16,
    np.int32,
    np.int64,
    np.float16,
    np.float32,
    np.float64,
    np.object_,
)
STORED_AS = (None,) + tuple(np.dtype(known) for known in _NUMPY[1:]) + (np.dtype(np.int16),)

# By dtype, for the fast path; equal dtypes have equal hashes.
NUMBER_OF = {np.dtype(known): number for number, known in enumerate(_NUMPY) if known is not None}

TRITON_STRING_TO_NUMPY = {
    "TYPE_BOOL": bool,
    "TYPE_UINT8": np.uint8,
    "TYPE_UINT16": np.uint16,
    "TYPE_UINT32": np.uint32,
    "TYPE_UINT64": np.uint64,
    "TYPE_INT8": np.int8,
    "TYPE_INT16": np.int16,
    "TYPE_INT32": np.int32,
    "TYPE_INT64": np.int64,
    "TYPE_FP16": np.float16,
    "TYPE_FP32": np.float32,
    "TYPE_FP64": np.float64,
    "TYPE_STRING": np.object_,
}


def triton_to_numpy_type(data_type):
    """The numpy type of a number, or None."""
    for number, known in enumerate(_NUMPY):
        if number and number == data_type:
            return known
    return None


def numpy_to_triton_type(data_type):
    """The number of a numpy type or dtype, or None."""
    for known, number in NUMBER_OF.items():
        if data_type == known.type or (isinstance(data_type, np.dtype) and data_type == known):
            return number
    if data_type == np.bytes_:
        return BYTES
    return None


def triton_string_to_numpy(triton_type_string):
    """The numpy type of a configuration's data type, such as "TYPE_FP32"."""
    return TRITON_STRING_TO_NUMPY[triton_type_string]


def number_of_array(dtype):
    """The number of an array's dtype, or None: byte strings of fixed width are BYTES too, texts are not."""
    number = NUMBER_OF.get(dtype)
    if number is None:
        number = BYTES if dtype.kind == "S" else numpy_to_triton_type(dtype)
    return number
