"""Requests, as a program fills them."""

from __future__ import annotations

import asyncio
import queue
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Optional, Union

from tritonserver._api._datautils import DeviceOrMemoryType
from tritonserver._api._tensor import Tensor
from tritonserver._c.triton_bindings import InvalidArgumentError, TRITONSERVER_InferenceRequest

if TYPE_CHECKING:
    from tritonserver._api._model import Model


@dataclass
class InferenceRequest:
    """A request to a model. It may be sent more than once, each time with the fields of that moment.

    Attributes
    ----------
    model : Model
    request_id : str, optional
    flags : int
        `SEQUENCE_START` 1 and `SEQUENCE_END` 2.
    correlation_id : int or str, optional
        Of the sequence.
    priority : int
        0 is the model's default.
    timeout : int
        How long it may wait in the queue, in microseconds; 0 is the model's default.
    inputs : dict
        By name: a `Tensor`, a numpy array, a list, or an object that supports DLPack. The server reads the memory of
        the first two and of the last, so do not change it before the response.
    parameters : dict
        By name: str, int, bool or float.
    output_memory_type : optional
        The device that outputs are moved to.
    response_queue : queue.SimpleQueue or asyncio.Queue, optional
        Gets each response, beside the iterator.
    """

    model: Model
    request_id: Optional[str] = None
    flags: int = 0
    correlation_id: Optional[Union[int, str]] = None
    priority: int = 0
    timeout: int = 0
    inputs: dict[str, Any] = field(default_factory=dict)
    parameters: dict[str, Union[str, int, bool, float]] = field(default_factory=dict)
    output_memory_type: Optional[DeviceOrMemoryType] = None
    response_queue: Optional[Union[queue.SimpleQueue, asyncio.Queue]] = None

    def _create_server_request(self) -> TRITONSERVER_InferenceRequest:
        """A request of the C interface. It holds the memory of the inputs until the server has no more use of it."""
        request = TRITONSERVER_InferenceRequest(self.model._server, self.model.name, self.model.version)
        if self.request_id is not None:
            request.id = self.request_id
        if self.priority:
            request.priority_uint64 = self.priority
        if self.timeout:
            request.timeout_microseconds = self.timeout
        if self.correlation_id is not None:
            if isinstance(self.correlation_id, str):
                request.correlation_id_string = self.correlation_id
            else:
                request.correlation_id = self.correlation_id
        if self.flags:
            request.flags = int(self.flags)
        for name, value in self.inputs.items():
            tensor = Tensor._from_object(value)
            buffer = tensor.memory_buffer
            request._add_tensor(
                name,
                tensor.data_type,
                tensor.shape,
                buffer.data_ptr,
                buffer.size,
                buffer.memory_type,
                buffer.memory_type_id,
                buffer,
            )
        parameter: Any
        for key, parameter in self.parameters.items():
            kind = type(parameter)
            if kind is str:
                request.set_string_parameter(key, parameter)
            elif kind is int:
                request.set_int_parameter(key, parameter)
            elif kind is float:
                request.set_double_parameter(key, parameter)
            elif kind is bool:
                request.set_bool_parameter(key, parameter)
            else:
                raise InvalidArgumentError(f"Unsupported Value. Can't convert {kind} to Request Parameter")
        return request
