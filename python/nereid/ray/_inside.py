"""A server in the replica's own process."""

from __future__ import annotations

import ctypes
from typing import Any, AsyncGenerator, Iterable, Mapping, Optional

import numpy
import tritonserver

from nereid.ray._errors import of_triton


class InsideServer:
    """What a replica asks of its server. The calls that wait block the caller's thread, except for the requests."""

    def __init__(self, options: tritonserver.Options, start_timeout_s: float) -> None:
        self.server = tritonserver.Server(options)
        self.server.start(wait_until_ready=True, timeout=start_timeout_s)

    def is_ready(self) -> bool:
        try:
            return self.server.ready()
        except tritonserver.TritonError:
            return False  # It was stopped.

    def is_model_ready(self, name: str) -> bool:
        return self.server.model(name).ready()

    def load(self, name: str) -> None:
        try:
            self.server.load(name)
        except tritonserver.TritonError as error:
            raise of_triton(error) from None

    def metrics(self) -> str:
        return self.server.metrics()

    def stop(self) -> None:
        try:
            self.server.stop()
        except tritonserver.InvalidArgumentError:
            pass  # It was stopped before.

    async def infer(
        self,
        model: str,
        inputs: Mapping[str, Any],
        version: int,
        outputs: Optional[Iterable[str]],
        parameters: Mapping[str, Any],
        request_id: str,
        is_stream: bool,
    ) -> AsyncGenerator[dict[str, numpy.ndarray], None]:
        """The outputs of each response that has any. A caller that goes away cancels the request."""
        wanted = None if outputs is None else set(outputs)
        arrays = {name: numpy.asarray(value) if isinstance(value, list) else value for name, value in inputs.items()}
        try:
            responses = self.server.model(model, version).async_infer(
                inputs=arrays, parameters=dict(parameters), request_id=request_id or None
            )
        except tritonserver.TritonError as error:
            raise of_triton(error) from None
        is_complete = False
        try:
            async for response in responses:
                is_complete = response.final
                if response.outputs:
                    tensors = response.outputs.items()
                    yield {name: _array(tensor) for name, tensor in tensors if wanted is None or name in wanted}
        except tritonserver.TritonError as error:
            raise of_triton(error) from None
        finally:
            if not is_complete:
                responses.cancel()


def _array(tensor: tritonserver.Tensor) -> numpy.ndarray:
    if tensor.data_type == tritonserver.DataType.BYTES:
        return tensor.to_bytes_array()
    if tensor.memory_type == tritonserver.MemoryType.GPU:
        tensor = tensor.to_host()
    if tensor.data_type == tritonserver.DataType.BF16:
        # numpy has no such type: the upper halves of FP32.
        halves = numpy.frombuffer(ctypes.string_at(tensor.data_ptr, tensor.size), "<u2")
        return (halves.astype(numpy.uint32) << 16).view(numpy.float32).reshape(tensor.shape)
    return numpy.from_dlpack(tensor)
