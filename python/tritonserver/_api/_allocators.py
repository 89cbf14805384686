"""Pieces of memory and their owners."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tritonserver._api._datautils import memory_type_of_device
from tritonserver._api._dlpack import capsule_of
from tritonserver._c._native import dlpack_import
from tritonserver._c.triton_bindings import InvalidArgumentError
from tritonserver._c.triton_bindings import TRITONSERVER_MemoryType as MemoryType


@dataclass
class MemoryBuffer:
    """Memory that lives as long as its owner does.

    Attributes
    ----------
    data_ptr : int
        The address.
    memory_type : MemoryType
    memory_type_id : int
        The device.
    size : int
        In bytes.
    owner : Any
        The object that the memory belongs to.
    """

    data_ptr: int
    memory_type: MemoryType
    memory_type_id: int
    size: int
    owner: Any

    @staticmethod
    def from_dlpack(owner: Any) -> MemoryBuffer:
        """The memory of an object that supports DLPack."""
        if not hasattr(owner, "__dlpack__"):
            raise InvalidArgumentError("Object does not support DLpack protocol")
        described = dlpack_import(capsule_of(owner))
        address, _code, _bits, _lanes, _shape, is_dense, device_type, device_id, size = described
        if not is_dense:
            raise InvalidArgumentError("Only contiguous memory is supported")
        return MemoryBuffer(address, memory_type_of_device(device_type), device_id, size, owner)
