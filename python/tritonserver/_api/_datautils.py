"""Data types and devices, as programs name them and as the server does."""

from __future__ import annotations

from typing import Any, Union

import numpy

from tritonserver._api._dlpack import DLDeviceType
from tritonserver._c.triton_bindings import InvalidArgumentError
from tritonserver._c.triton_bindings import TRITONSERVER_DataType as DataType
from tritonserver._c.triton_bindings import TRITONSERVER_MemoryType as MemoryType

# What names a device: a kind of memory, one with a device's number, or a text such as "gpu:1".
DeviceOrMemoryType = Union[tuple[MemoryType, int], MemoryType, tuple[DLDeviceType, int], str]

NUMPY_TO_DATA_TYPE: dict[type, DataType] = {
    bool: DataType.BOOL,
    numpy.bool_: DataType.BOOL,
    numpy.int8: DataType.INT8,
    numpy.int16: DataType.INT16,
    numpy.int32: DataType.INT32,
    numpy.int64: DataType.INT64,
    numpy.uint8: DataType.UINT8,
    numpy.uint16: DataType.UINT16,
    numpy.uint32: DataType.UINT32,
    numpy.uint64: DataType.UINT64,
    numpy.float16: DataType.FP16,
    numpy.float32: DataType.FP32,
    numpy.float64: DataType.FP64,
    numpy.bytes_: DataType.BYTES,
    numpy.str_: DataType.BYTES,
    numpy.object_: DataType.BYTES,
}

_DEVICE_TO_MEMORY_TYPE = {DLDeviceType.kDLCPU: MemoryType.CPU, DLDeviceType.kDLCUDA: MemoryType.GPU}


def data_type_of_array(array: numpy.ndarray) -> DataType:
    """The data type of an array's elements."""
    kind = array.dtype.type
    found = NUMPY_TO_DATA_TYPE.get(kind)
    if found is None and kind.__name__ == "bfloat16":
        return DataType.BF16  # Of the package ml_dtypes.
    if found is None:
        raise InvalidArgumentError(f"Unsupported Numpy data type. Can't convert {kind} to Triton server data type")
    return found


def memory_type_of_device(device_type: int) -> MemoryType:
    """The kind of memory of a device of DLPack."""
    found = _DEVICE_TO_MEMORY_TYPE.get(int(device_type))
    if found is None:
        raise InvalidArgumentError(f"Unsupported device type {device_type!r}. It must be a CPU or a CUDA device")
    return found


def parse_device_or_memory_type(device_or_memory_type: DeviceOrMemoryType) -> tuple[MemoryType, int]:
    """Kind of memory and number of the device that the argument names."""
    given: Any = device_or_memory_type
    number = 0
    if isinstance(given, tuple):
        if len(given) != 2 or not isinstance(given[1], int):
            raise InvalidArgumentError(f"Invalid memory type {given}")
        given, number = given
        if isinstance(given, DLDeviceType) or type(given) is int:
            return memory_type_of_device(given), number
    if isinstance(given, MemoryType):
        return given, number
    if not isinstance(given, str):
        raise InvalidArgumentError(f"Invalid memory type {given}")
    name, colon, device = given.partition(":")
    if colon:
        try:
            number = int(device)
        except ValueError:
            raise InvalidArgumentError(f"Invalid memory type string {given}") from None
    kind = MemoryType.__members__.get(name.upper())
    if kind is None:
        text = f"Unsupported Memory Type String. Can't convert {name.upper()} to Triton server memory type"
        raise InvalidArgumentError(text)
    return kind, number
