"""A server in a process beside the replica, which calls it over 127.0.0.1."""

from __future__ import annotations

import asyncio
import json
import sys
import urllib.parse
from typing import Any, AsyncGenerator, AsyncIterator, Iterable, Mapping, Optional

import grpc
import numpy
import tritonserver

from nereid.ray import _wire
from nereid.ray._errors import InferenceError, ServerLost
from nereid.ray._flags import flags_of
from nereid.ray._process import ServerProcess

# How much longer than its own limit a server may take to end.
_END_MARGIN_S = 5.0
# Messages are bounded by the server and by the memory for requests, not by the client.
_CHANNEL = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_http_proxy", 0),
]


class BesideServer:
    """As `InsideServer`."""

    def __init__(self, options: tritonserver.Options, start_timeout_s: float) -> None:
        self._exit_timeout_s = float(options.exit_timeout)
        flags = flags_of(options)
        if "interpreter" not in options.backend_configuration.get("python", {}):
            # As for a server in the process: models in Python find what the replica finds.
            flags.append(f"--backend-config=python,interpreter={sys.executable}")
        self.process = ServerProcess(flags, start_timeout_s)
        self._channel: Any = None
        self._loop: Optional[asyncio.AbstractEventLoop] = None

    def is_ready(self) -> bool:
        if not self.process.is_running():
            raise ServerLost(f"the server process ended with status {self.process.status}")
        return self.process.is_ready()

    def is_model_ready(self, name: str) -> bool:
        return self.process.ask(f"/v2/models/{urllib.parse.quote(name, safe='')}/ready")[0] == 200

    def load(self, name: str) -> None:
        path = f"/v2/repository/models/{urllib.parse.quote(name, safe='')}/load"
        # A load takes as long as the model does.
        status, body = self.process.ask(path, "POST", timeout_s=3600.0)
        if status != 200:
            raise InferenceError(_text_of(body), "UNAVAILABLE" if status == 0 else "INTERNAL")

    def metrics(self) -> str:
        status, body = self.process.ask("/metrics", at=self.process.metrics)
        if status != 200:
            raise ServerLost(f"the server process has no metrics: {status} {_text_of(body)}")
        return body.decode()

    def stop(self) -> None:
        self.process.stop(self._exit_timeout_s + _END_MARGIN_S)

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
        """As in `InsideServer`. A call that is dropped is cancelled on the wire."""
        request = _wire.request_of(model, inputs, version, outputs, parameters, request_id)
        call = self._calls(is_stream)
        try:
            if not is_stream:
                yield _wire.outputs_of(await call(request))
                return
            async for response in call(_once(request)):
                if response.error_message:
                    raise InferenceError(response.error_message, "UNKNOWN")
                if response.infer_response.outputs:
                    yield _wire.outputs_of(response.infer_response)
        except grpc.aio.AioRpcError as error:
            raise InferenceError(error.details() or "", error.code().name) from None

    def _calls(self, is_stream: bool) -> Any:
        # A channel belongs to a loop, and Ray runs the constructor and the calls on one; tests may not.
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._channel = grpc.aio.insecure_channel(self.process.grpc, options=_CHANNEL)
            self._loop = loop
        to_bytes = _wire.Request.SerializeToString
        if is_stream:
            of = _wire.StreamResponse.FromString
            return self._channel.stream_stream(f"{_wire.SERVICE}ModelStreamInfer", to_bytes, of)
        return self._channel.unary_unary(f"{_wire.SERVICE}ModelInfer", to_bytes, _wire.Response.FromString)


async def _once(request: Any) -> AsyncIterator[Any]:
    yield request


def _text_of(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace")
