"""Tensors: a data type and a shape over memory that somebody owns."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Callable, ClassVar, Optional, Union

import numpy

from tritonserver._api._allocators import MemoryBuffer
from tritonserver._api._datautils import (
    DeviceOrMemoryType,
    data_type_of_array,
    memory_type_of_device,
    parse_device_or_memory_type,
)
from tritonserver._api._dlpack import DATA_TYPE_TO_DLPACK, DLPACK_TO_DATA_TYPE, DLDeviceType, capsule_of
from tritonserver._c._native import dlpack_export, dlpack_import
from tritonserver._c.triton_bindings import InvalidArgumentError, TritonError, UnsupportedError
from tritonserver._c.triton_bindings import TRITONSERVER_DataType as DataType
from tritonserver._c.triton_bindings import TRITONSERVER_MemoryType as MemoryType

try:
    import cupy  # type: ignore[import-not-found]
except ImportError:
    cupy = None

_HOST = (MemoryType.CPU, MemoryType.CPU_PINNED)


@dataclass
class Tensor:
    """A tensor of a request or of a response.

    Attributes
    ----------
    data_type : DataType
    shape : Sequence[int]
    memory_buffer : MemoryBuffer
        The elements, dense and in C's order; for BYTES each one's length in four bytes before it.
    """

    data_type: DataType
    shape: Sequence[int]
    memory_buffer: MemoryBuffer

    _from_converters: ClassVar[dict[type, Callable[[Any], Tensor]]] = {}

    @property
    def data_ptr(self) -> int:
        """The address of the elements."""
        return self.memory_buffer.data_ptr

    @property
    def memory_type(self) -> MemoryType:
        return self.memory_buffer.memory_type

    @property
    def memory_type_id(self) -> int:
        return self.memory_buffer.memory_type_id

    @property
    def size(self) -> int:
        """In bytes."""
        return self.memory_buffer.size

    @staticmethod
    def from_dlpack(obj: Any) -> Tensor:
        """The tensor of an object that supports DLPack, in that object's memory."""
        try:
            described = dlpack_import(capsule_of(obj))
        except TritonError:
            raise
        except Exception as error:
            raise InvalidArgumentError(f"Object does not support DLPack protocol: {error}") from None
        address, code, bits, lanes, shape, is_dense, device_type, device_id, size = described
        data_type = DLPACK_TO_DATA_TYPE.get((code, bits)) if lanes == 1 else None
        if data_type is None:
            text = f"Unsupported DLPack data type. Can't convert {(code, bits)} to Triton server data type"
            raise InvalidArgumentError(text)
        if not is_dense:
            raise InvalidArgumentError("Only contiguous memory is supported")
        buffer = MemoryBuffer(address, memory_type_of_device(device_type), device_id, size, obj)
        return Tensor(data_type, list(shape), buffer)

    @staticmethod
    def from_string_array(string_array: Any) -> Tensor:
        """A BYTES tensor of strings: a list, or an array of numpy's."""
        return Tensor._bytes_from(string_array)

    @staticmethod
    def from_bytes_array(bytes_array: Any) -> Tensor:
        """A BYTES tensor of bytes: a list, or an array of numpy's."""
        return Tensor._bytes_from(bytes_array)

    def to_string_array(self) -> numpy.ndarray:
        """The strings of a BYTES tensor, which are UTF-8, as an array of numpy's str."""
        elements = self.to_bytes_array()
        texts = numpy.empty(elements.shape, dtype=numpy.object_)
        flat = texts.reshape(-1)
        for index, element in enumerate(elements.reshape(-1)):
            flat[index] = element.decode("utf-8")
        return texts.astype(numpy.str_)

    def to_bytes_array(self) -> numpy.ndarray:
        """The elements of a BYTES tensor as an array of bytes objects."""
        if self.data_type != DataType.BYTES:
            raise InvalidArgumentError(f"Tensor has data type {self.data_type} not {DataType.BYTES}")
        host = self.to_host()
        content = ctypes.string_at(host.data_ptr, host.size) if host.size else b""
        elements, at = [], 0
        while at < len(content):
            length = int.from_bytes(content[at : at + 4], sys.byteorder)
            elements.append(content[at + 4 : at + 4 + length])
            at += 4 + length
        array = numpy.empty(len(elements), dtype=numpy.object_)
        array[:] = elements
        return array.reshape(tuple(self.shape))

    def to_host(self) -> Tensor:
        """The tensor in the process's own memory; itself, if it is there."""
        return self.to_device(MemoryType.CPU)

    def to_device(self, device: DeviceOrMemoryType) -> Tensor:
        """The tensor in the memory of a device; itself, if it is there."""
        kind, number = parse_device_or_memory_type(device)
        own = (self.memory_type, self.memory_type_id)
        if own == (kind, number) or (self.memory_type, kind) == (MemoryType.CPU_PINNED, MemoryType.CPU):
            return self
        if cupy is not None:
            # As bytes, because not every data type has a form that both sides know.
            flat = Tensor(DataType.UINT8, (self.size,), self.memory_buffer)
            copy: Any = None
            if self.memory_type == MemoryType.GPU and kind in _HOST:
                with cupy.cuda.Device(self.memory_type_id):
                    copy = cupy.asnumpy(cupy.from_dlpack(flat))
            elif self.memory_type in _HOST and kind == MemoryType.GPU:
                with cupy.cuda.Device(number):
                    copy = cupy.asarray(numpy.from_dlpack(flat))
                    cupy.cuda.get_current_stream().synchronize()
            if copy is not None:
                return Tensor(self.data_type, self.shape, MemoryBuffer.from_dlpack(copy))
        raise UnsupportedError(f"Conversion from ({own[0]}, {own[1]}) to ({kind}, {number}) not supported.")

    def __dlpack__(
        self,
        *,
        stream: Optional[int] = None,
        max_version: Optional[tuple[int, int]] = None,
        dl_device: Optional[tuple[int, int]] = None,
        copy: Optional[bool] = None,
    ) -> Any:
        """A capsule with the tensor, without a copy unless one is asked for."""
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(f"the tensor is on device {self.__dlpack_device__()}, not {dl_device}")
        if copy:
            return self._copy_of().__dlpack__(stream=stream, max_version=max_version)
        self._synchronize(stream)
        key = DATA_TYPE_TO_DLPACK.get(self.data_type)
        if key is None:
            raise InvalidArgumentError(f"DLPack does not support tensors of data type {self.data_type}")
        is_versioned = max_version is not None and max_version[0] >= 1
        place = self.__dlpack_device__()
        return dlpack_export(self, self.data_ptr, *key, self.shape, *place, is_versioned)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Type and number of the device."""
        if self.memory_type in _HOST:
            return DLDeviceType.kDLCPU, self.memory_type_id
        return DLDeviceType.kDLCUDA, self.memory_type_id

    def _copy_of(self) -> Tensor:
        if self.memory_type in _HOST:
            flat = Tensor(DataType.UINT8, (self.size,), self.memory_buffer)
            copy = numpy.from_dlpack(flat).copy()
            return Tensor(self.data_type, self.shape, MemoryBuffer.from_dlpack(copy))
        raise BufferError("only tensors in the process's own memory are copied for DLPack")

    def _synchronize(self, stream: Optional[int]) -> None:
        """Lets the consumer's stream wait for what was queued on the device."""
        if self.memory_type in _HOST:
            is_supported = stream is None or stream == 0
        else:
            is_supported = cupy is not None or stream == -1
            if cupy is not None and stream is not None and stream != -1:
                with cupy.cuda.Device(self.memory_type_id):
                    event = cupy.cuda.Event()
                    event.record(cupy.cuda.get_current_stream())
                    cupy.cuda.ExternalStream(stream).wait_event(event)
        if not is_supported:
            text = f"DLPack stream synchronization on memory type {self.memory_type} and stream {stream} not supported"
            raise UnsupportedError(text)

    @staticmethod
    def _from_object(obj: Any) -> Tensor:
        """The tensor of whatever a request may have as an input."""
        if isinstance(obj, Tensor):
            return obj
        converter = Tensor._from_converters.get(type(obj))
        if converter is None and isinstance(obj, numpy.generic):
            converter = Tensor._from_generic
        if converter is not None:
            return converter(obj)
        if hasattr(obj, "__dlpack__"):
            return Tensor.from_dlpack(obj)
        kinds = list(Tensor._from_converters.keys())
        text = f"Input type {type(obj)} not supported. Must be one of {kinds} or the type must support __dlpack__"
        raise InvalidArgumentError(text)

    @staticmethod
    def _from_numpy(array: numpy.ndarray) -> Tensor:
        data_type = data_type_of_array(array)
        if data_type == DataType.BYTES:
            return Tensor._bytes_of(array)
        if not array.flags.c_contiguous:
            array = array.copy(order="C")
        if not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))
        address = array.__array_interface__["data"][0]
        return Tensor(data_type, array.shape, MemoryBuffer(address, MemoryType.CPU, 0, array.nbytes, array))

    @staticmethod
    def _from_generic(value: numpy.generic) -> Tensor:
        return Tensor._from_numpy(numpy.asarray(value))

    @staticmethod
    def _from_list(values: list) -> Tensor:
        try:
            array = numpy.array(values)
        except Exception:
            raise InvalidArgumentError(f"Conversion from {values} to tensor not supported.") from None
        return Tensor._from_numpy(array)

    @staticmethod
    def _bytes_from(values: Any) -> Tensor:
        tensor: Union[Tensor, None] = None
        if isinstance(values, (list, numpy.ndarray)):
            tensor = Tensor._from_object(values)
        if tensor is None or tensor.data_type != DataType.BYTES:
            kind = tensor.data_type if tensor is not None else type(values)
            raise InvalidArgumentError(f"Unsupported conversion from {values} to Triton BYTES Tensor. Got {kind}")
        return tensor

    @staticmethod
    def _bytes_of(array: numpy.ndarray) -> Tensor:
        parts: list[bytes] = []
        for element in array.reshape(-1):
            content = element if isinstance(element, bytes) else str(element).encode("utf-8")
            parts.append(len(content).to_bytes(4, sys.byteorder))
            parts.append(content)
        content = b"".join(parts)
        held = numpy.frombuffer(content, dtype=numpy.uint8) if content else numpy.empty(0, dtype=numpy.uint8)
        address = held.__array_interface__["data"][0]
        return Tensor(DataType.BYTES, array.shape, MemoryBuffer(address, MemoryType.CPU, 0, held.nbytes, held))


Tensor._from_converters = {
    numpy.ndarray: Tensor._from_numpy,
    numpy.generic: Tensor._from_generic,
    list: Tensor._from_list,
}
