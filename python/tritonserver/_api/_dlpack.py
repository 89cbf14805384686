"""Numbers of DLPack, by which array libraries hand tensors over without a copy."""

from __future__ import annotations

from typing import Any, Optional

from tritonserver._c.triton_bindings import TRITONSERVER_DataType as DataType


class DLDeviceType(int):
    """A kind of device."""

    kDLCPU = 1
    kDLCUDA = 2
    kDLCUDAHost = 3
    kDLOpenCL = 4
    kDLVulkan = 7
    kDLMetal = 8
    kDLVPI = 9
    kDLROCM = 10
    kDLROCMHost = 11
    kDLExtDev = 12
    kDLCUDAManaged = 13
    kDLOneAPI = 14
    kDLWebGPU = 15
    kDLHexagon = 16

    @property
    def value(self) -> int:
        return int(self)


class DLDataTypeCode(int):
    """A kind of element."""

    kDLInt = 0
    kDLUInt = 1
    kDLFloat = 2
    kDLOpaqueHandle = 3
    kDLBfloat = 4
    kDLComplex = 5
    kDLBool = 6


# Code and bits of each data type; BYTES has none.
DATA_TYPE_TO_DLPACK: dict[DataType, tuple[int, int]] = {
    DataType.BOOL: (DLDataTypeCode.kDLBool, 8),
    DataType.INT8: (DLDataTypeCode.kDLInt, 8),
    DataType.INT16: (DLDataTypeCode.kDLInt, 16),
    DataType.INT32: (DLDataTypeCode.kDLInt, 32),
    DataType.INT64: (DLDataTypeCode.kDLInt, 64),
    DataType.UINT8: (DLDataTypeCode.kDLUInt, 8),
    DataType.UINT16: (DLDataTypeCode.kDLUInt, 16),
    DataType.UINT32: (DLDataTypeCode.kDLUInt, 32),
    DataType.UINT64: (DLDataTypeCode.kDLUInt, 64),
    DataType.FP16: (DLDataTypeCode.kDLFloat, 16),
    DataType.FP32: (DLDataTypeCode.kDLFloat, 32),
    DataType.FP64: (DLDataTypeCode.kDLFloat, 64),
    DataType.BF16: (DLDataTypeCode.kDLBfloat, 16),
}
DLPACK_TO_DATA_TYPE: dict[tuple[int, int], DataType] = {key: kind for kind, key in DATA_TYPE_TO_DLPACK.items()}


def capsule_of(source: Any, stream: Optional[int] = None) -> Any:
    """The capsule of an object that supports the protocol."""
    if stream is None:
        return source.__dlpack__()
    return source.__dlpack__(stream=stream)
