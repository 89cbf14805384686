"""Responses, and the iterators that return them in the order in which the model sent them."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Optional, Union

from tritonserver._api._allocators import MemoryBuffer
from tritonserver._api._tensor import Tensor
from tritonserver._c.triton_bindings import (
    FINAL,
    InternalError,
    InvalidArgumentError,
    TRITONSERVER_InferenceRequest,
    TRITONSERVER_InferenceResponse,
    TritonError,
    UnsupportedError,
)
from tritonserver._c.triton_bindings import TRITONSERVER_ParameterType as ParameterType

if TYPE_CHECKING:
    from tritonserver._api._model import Model
    from tritonserver._api._request import InferenceRequest

_FINAL = int(FINAL)
# What the C interface delivers: a response or none, and flags.
_Delivered = tuple[Optional[TRITONSERVER_InferenceResponse], int]


@dataclass
class InferenceResponse:
    """One response of a model.

    Attributes
    ----------
    model : Model
        The model, with the version that answered.
    request_id : str
        Empty if the request has none.
    parameters : dict
    outputs : dict[str, Tensor]
        In the order of the model. Their memory lives as long as a tensor, or an array made of one, is in use.
    error : TritonError, optional
        If the response is an error. Its second argument is this response.
    classification_label : str, optional
        Always None; labels are `memory_buffer.owner.output_classification_label(output, class)`.
    final : bool
        Whether it is the last response of its request.
    """

    model: Model
    request_id: Optional[str] = None
    parameters: dict[str, Union[str, int, bool, float]] = field(default_factory=dict)
    outputs: dict[str, Tensor] = field(default_factory=dict)
    error: Optional[TritonError] = None
    classification_label: Optional[str] = None
    final: bool = False

    @staticmethod
    def _of(request: InferenceRequest, delivered: _Delivered) -> InferenceResponse:
        """The response of what the C interface delivered."""
        native, flags = delivered
        response = InferenceResponse(request.model, request.request_id or "", final=flags == _FINAL)
        if native is None:
            return response
        try:
            name, version = native.model
            response.model = request.model._served_as(name, version)
            response.request_id = native.id
            native.throw_if_response_error()
            response._read(native)
        except TritonError as error:
            response._fail(error)
        except Exception as error:
            response._fail(InternalError(f"Unexpected error in creating response object: {error}"))
        if request.output_memory_type is not None and response.error is None:
            response._move(request.output_memory_type)
        return response

    def _read(self, native: TRITONSERVER_InferenceResponse) -> None:
        for index in range(native.parameter_count):
            name, kind, value = native.parameter(index)
            if kind == ParameterType.BYTES:
                text = f"Unexpected type '{kind.name}' received as response parameter"
                raise InternalError(f"Unexpected error in creating response object: {UnsupportedError(text)}")
            self.parameters[name] = value
        for index in range(native.output_count):
            name, data_type, shape, address, size, memory_type, memory_type_id = native.output(index)
            buffer = MemoryBuffer(address, memory_type, memory_type_id, size, native)
            self.outputs[name] = Tensor(data_type, shape, buffer)

    def _fail(self, error: TritonError) -> None:
        error.args = (*error.args, self)
        self.error = error

    def _move(self, device: Any) -> None:
        try:
            for name, tensor in self.outputs.items():
                self.outputs[name] = tensor.to_device(device)
        except Exception as error:
            raise InvalidArgumentError(f"Memory type {device} not supported: {error}") from None


class _Forwarding:
    """Puts each response of a request into the program's queue and the iterator's own, on the thread that delivers
    it: it looks to the binding like a future that is never done."""

    def __init__(self, request: InferenceRequest, native: TRITONSERVER_InferenceRequest, own: queue.SimpleQueue):
        self._request = request
        self._native = native
        self._own = own

    def done(self) -> bool:
        return False

    def set_result(self, delivered: _Delivered) -> None:
        self.put(delivered)
        if not delivered[1] & _FINAL:
            self._native.get_next_response(self)

    def put(self, delivered: _Delivered) -> None:
        item: Union[InferenceResponse, Exception]
        try:
            item = InferenceResponse._of(self._request, delivered)
        except Exception as error:
            item = error
        self._own.put(item)
        if isinstance(item, InferenceResponse) and self._request.response_queue is not None:
            self._request.response_queue.put(item)


class _Responses:
    """What both iterators have: a request that was sent."""

    def __init__(self, request: InferenceRequest, native: TRITONSERVER_InferenceRequest, raise_on_error: bool):
        self._request = request
        self._native = native
        self._raise_on_error = raise_on_error
        self._is_complete = False

    def cancel(self) -> None:
        """Asks the server to give the request up. Responses that were sent before still arrive; the last one is an
        error if the model could be stopped."""
        self._native.cancel()

    def _checked(self, response: InferenceResponse) -> InferenceResponse:
        self._is_complete = response.final
        if response.error is not None and self._raise_on_error:
            raise response.error
        return response


class ResponseIterator(_Responses):
    """The responses of a request, as they arrive."""

    def __init__(self, request: InferenceRequest, native: TRITONSERVER_InferenceRequest, raise_on_error: bool):
        super().__init__(request, native, raise_on_error)
        self._own: Optional[queue.SimpleQueue] = None
        if request.response_queue is None:
            return
        self._own = queue.SimpleQueue()
        forwarding = _Forwarding(request, native, self._own)
        if isinstance(request.response_queue, queue.SimpleQueue):
            native.get_next_response(forwarding)
        else:
            # Another kind of queue may be full and wait, which the server's threads must not.
            threading.Thread(target=_forward, args=(native, forwarding), daemon=True).start()

    def __iter__(self) -> ResponseIterator:
        return self

    def __next__(self) -> InferenceResponse:
        if self._is_complete:
            raise StopIteration
        if self._own is None:
            delivered = self._native._next()
            self._is_complete = bool(delivered[1] & _FINAL)
            return self._checked(InferenceResponse._of(self._request, delivered))
        item = self._own.get()
        if isinstance(item, Exception):
            raise item
        return self._checked(item)


def _forward(native: TRITONSERVER_InferenceRequest, forwarding: _Forwarding) -> None:
    is_final = False
    while not is_final:
        delivered = native._next()
        forwarding.put(delivered)
        is_final = bool(delivered[1] & _FINAL)


class AsyncResponseIterator(_Responses):
    """The responses of a request, for `async for`."""

    def __init__(self, request: InferenceRequest, native: TRITONSERVER_InferenceRequest, raise_on_error: bool):
        super().__init__(request, native, raise_on_error)
        # Responses whose awaiting task was cancelled when they came.
        self._left: deque[_Delivered] = deque()
        self._own: Optional[asyncio.Queue] = None
        if request.response_queue is not None:
            self._own = asyncio.Queue()
            self._task = asyncio.get_running_loop().create_task(self._forward())

    def __aiter__(self) -> AsyncResponseIterator:
        return self

    async def __anext__(self) -> InferenceResponse:
        if self._is_complete:
            raise StopAsyncIteration
        if self._own is None:
            return self._checked(await self._next())
        item = await self._own.get()
        if isinstance(item, Exception):
            raise item
        return self._checked(item)

    async def _next(self) -> InferenceResponse:
        delivered = self._left.popleft() if self._left else self._native._next(0)
        if delivered is None:
            future = asyncio.get_running_loop().create_future()
            self._native.get_next_response(future)
            try:
                delivered = await future
            except asyncio.CancelledError:
                if future.done() and not future.cancelled():
                    self._left.append(future.result())
                raise
        self._is_complete = bool(delivered[1] & _FINAL)
        return InferenceResponse._of(self._request, delivered)

    async def _forward(self) -> None:
        """Moves every response to the program's queue and to this iterator's."""
        assert self._own is not None and self._request.response_queue is not None
        is_final = False
        while not is_final:
            try:
                response = await self._next()
            except Exception as error:
                is_final, self._is_complete = self._is_complete, False
                self._own.put_nowait(error)
                continue
            # This is set again when the iterator returns the response.
            is_final, self._is_complete = self._is_complete, False
            self._own.put_nowait(response)
            outcome: Any = self._request.response_queue.put(response)
            if asyncio.iscoroutine(outcome):
                await outcome
