"""The deployment class, and the application made of it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import sys
import threading
import time
from typing import Any, AsyncIterator, Iterable, Mapping, Optional, Union
from urllib.parse import quote

import numpy
import ray
import tritonserver
from ray import serve

from nereid.ray import _scaling
from nereid.ray._beside import BesideServer
from nereid.ray._errors import InferenceError, ServerLost
from nereid.ray._head import HeadWatch
from nereid.ray._inside import InsideServer

# The logger whose lines Ray Serve writes to the log of the replica.
logger = logging.getLogger("ray.serve")

# Below the 60 s after which Ray kills processes that lost the head.
HEAD_TIMEOUT_S = 30.0
START_TIMEOUT_S = 600.0
MAX_ONGOING_REQUESTS = 64
# What ends without being wrong itself (EX_TEMPFAIL).
HEAD_LOST_STATUS = 75
_POLL_S = 0.05
# What Ray may need to send the last answers, which it does after the method returned.
_LINGER_S = 1.0
_FIELDS = {field.name for field in dataclasses.fields(tritonserver.Options)}


class InferenceServer:
    """A replica with one server, for handles and as the base of ingress classes.

    Parameters
    ----------
    options : tritonserver.Options, optional
        Or its fields as keywords.
    load : list of str
        Models that are loaded before the replica is ready, for the control mode explicit.
    beside : bool
        Whether the server runs in a process of its own, on ports of 127.0.0.1, in place of this process.
    head_timeout_s : float, optional
        After how many seconds without the Ray head the replica answers what it has and exits; None is never.
    start_timeout_s : float
        How long the server may take to be ready.
    """

    def __init__(
        self,
        options: Optional[tritonserver.Options] = None,
        *,
        load: Iterable[str] = (),
        beside: bool = False,
        head_timeout_s: Optional[float] = HEAD_TIMEOUT_S,
        start_timeout_s: float = START_TIMEOUT_S,
        **fields: Any,
    ) -> None:
        if options is not None and fields:
            raise TypeError(f"give options, or the fields of tritonserver.Options, not both: {sorted(fields)}")
        self.options = options if options is not None else tritonserver.Options(**fields)
        self._ongoing = 0
        self._draining: Optional[str] = None
        self._stop_lock = threading.Lock()
        self._server: Union[InsideServer, BesideServer]
        self._server = (BesideServer if beside else InsideServer)(self.options, start_timeout_s)
        try:
            for model in load:
                self._server.load(model)
            self._watch = self._watch_head(head_timeout_s)
        except BaseException:
            self._server.stop()
            raise

    def _watch_head(self, timeout_s: Optional[float]) -> Optional[HeadWatch]:
        if timeout_s is None or not ray.is_initialized():
            return None
        return HeadWatch(ray.get_runtime_context().gcs_address, timeout_s, self._leave)

    @property
    def server(self) -> tritonserver.Server:
        """The server of this process, for calls that this class does not have."""
        if isinstance(self._server, BesideServer):
            raise ServerLost("the server is in a process beside the replica: beside=False puts it into this one")
        return self._server.server

    # Requests

    async def infer(
        self,
        model: str,
        inputs: Mapping[str, Any],
        *,
        version: int = -1,
        outputs: Optional[Iterable[str]] = None,
        parameters: Optional[Mapping[str, Any]] = None,
        request_id: str = "",
    ) -> dict[str, numpy.ndarray]:
        """The outputs of a request by name. Elements of BYTES are `bytes`; BF16 becomes FP32.

        Raises `InferenceError`, also for a decoupled model that sends more than one response.
        """
        found: Optional[dict[str, numpy.ndarray]] = None
        with self._request():
            responses = self._server.infer(model, inputs, version, outputs, parameters or {}, request_id, False)
            async with contextlib.aclosing(responses):
                async for response in responses:
                    if found is not None:
                        text = f"model '{model}' sent more than one response: call stream"
                        raise InferenceError(text, "UNIMPLEMENTED")
                    found = response
        return found or {}

    async def stream(
        self,
        model: str,
        inputs: Mapping[str, Any],
        *,
        version: int = -1,
        outputs: Optional[Iterable[str]] = None,
        parameters: Optional[Mapping[str, Any]] = None,
        request_id: str = "",
    ) -> AsyncIterator[dict[str, numpy.ndarray]]:
        """The outputs of each response, as the model sends it; a handle calls it with `options(stream=True)`."""
        with self._request():
            responses = self._server.infer(model, inputs, version, outputs, parameters or {}, request_id, True)
            async with contextlib.aclosing(responses):
                async for response in responses:
                    yield response

    async def is_model_ready(self, model: str) -> bool:
        return await asyncio.to_thread(self._server.is_model_ready, model)

    async def load(self, model: str) -> None:
        """Loads a model in this replica alone: which one a handle's call reaches is chance. Give `load` to all."""
        await asyncio.to_thread(self._server.load, model)

    def _request(self) -> _Counted:
        if self._draining is not None:
            raise InferenceError(f"the replica is ending: {self._draining}", "UNAVAILABLE")
        return _Counted(self)

    # What Ray Serve calls

    async def check_health(self) -> None:
        if self._draining is not None:
            raise ServerLost(f"the replica is ending: {self._draining}")
        if not await asyncio.to_thread(self._server.is_ready):
            raise ServerLost("the server is not ready: a model failed to load, or it is stopping; its log says which")

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """The figures that `QueuePolicy` uses. Without metrics there is no queue to report."""
        if not self.options.metrics:
            return {_scaling.ONGOING: float(self._ongoing)}
        exposition = await asyncio.to_thread(self._server.metrics)
        return {_scaling.PENDING: _scaling.pending_requests(exposition), _scaling.ONGOING: float(self._ongoing)}

    def __del__(self) -> None:
        # Ray calls it when the replica has no requests any more; the interpreter may call it again.
        if getattr(self, "_watch", None) is not None:
            self._watch.stop()  # type: ignore[union-attr]
        if hasattr(self, "_server"):
            self._stop()

    def _stop(self) -> None:
        with self._stop_lock:
            try:
                self._server.stop()
            except tritonserver.TritonError as error:
                logger.warning("the server did not stop in time: %s", error)

    def _leave(self, reason: str) -> None:
        """Answers the requests that are there, and ends the process."""
        logger.error("nereid replica drains and exits: %s", reason)
        self._draining = reason
        until = time.monotonic() + self.options.exit_timeout
        while self._ongoing > 0 and time.monotonic() < until:
            time.sleep(_POLL_S)
        left = self._ongoing
        time.sleep(_LINGER_S)
        self._stop()
        text = f"nereid replica exited: {reason}; {left} requests were not answered"
        logger.error(text)
        print(text, file=sys.stderr, flush=True)
        for handler in logger.handlers:
            handler.flush()
        # The interpreter's own end would wait for Ray's threads, and they for the head.
        os._exit(HEAD_LOST_STATUS)


class _Counted:
    """Counts a request for as long as the replica has it. The loop's thread alone changes the count."""

    def __init__(self, of: InferenceServer) -> None:
        self._of = of

    def __enter__(self) -> None:
        self._of._ongoing += 1

    def __exit__(self, *_: Any) -> None:
        self._of._ongoing -= 1


# What belongs to one connection, and the length, which is that of another coding.
_HOP_BY_HOP = {
    "connection",
    "content-length",
    "host",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
}


def _target(scope: Any) -> str:
    """The path behind the deployment's own, and the query, as the client coded them."""
    coded = (scope.get("raw_path") or quote(scope["path"]).encode()).decode("latin-1")
    path = coded.removeprefix(quote(scope.get("root_path", ""))) or "/"
    query = scope.get("query_string", b"").decode("latin-1")
    return path + (f"?{query}" if query else "")


class HttpServer(InferenceServer):
    """As `InferenceServer` with `beside=True`; also passes HTTP requests on: every route of the server, and streams
    as they come."""

    def __init__(self, options: Optional[tritonserver.Options] = None, **fields: Any) -> None:
        super().__init__(options, beside=True, **fields)
        self._session: Any = None

    async def __call__(self, request: Any) -> Any:
        import aiohttp
        from starlette.responses import JSONResponse, StreamingResponse
        from yarl import URL

        assert isinstance(self._server, BesideServer)
        counted = self._request()
        if self._session is None:
            # The bodies stay as they are coded, and the caller's time limit is the only one.
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=5.0)
            connector = aiohttp.TCPConnector(limit=0)
            # What the client accepts is the client's matter.
            skipped = ["Accept", "Accept-Encoding", "Content-Type", "User-Agent"]
            self._session = aiohttp.ClientSession(
                timeout=timeout, connector=connector, auto_decompress=False, skip_auto_headers=skipped
            )
        url = URL(f"http://{self._server.process.http}{_target(request.scope)}", encoded=True)
        headers = [(name, value) for name, value in request.headers.items() if name not in _HOP_BY_HOP]
        body = await request.body()
        with counted:
            try:
                answer = await self._session.request(request.method, url, headers=headers, data=body or None)
            except aiohttp.ClientConnectionError as error:
                return JSONResponse({"error": f"the server beside the replica does not answer: {error}"}, 503)
        passed = StreamingResponse(self._passed_on(answer), status_code=answer.status)
        # Each as often as it came.
        passed.raw_headers = [
            (name, value) for name, value in answer.raw_headers if name.decode("latin-1").lower() not in _HOP_BY_HOP
        ]
        return passed

    async def _passed_on(self, answer: Any) -> AsyncIterator[bytes]:
        with _Counted(self):
            try:
                async for piece in answer.content.iter_any():
                    yield piece
            finally:
                # Closing the connection in the middle of an answer cancels the request.
                if answer.content.at_eof():
                    answer.release()
                else:
                    answer.close()


def application(
    options: Optional[tritonserver.Options] = None,
    *,
    http: bool = False,
    beside: bool = False,
    load: Iterable[str] = (),
    head_timeout_s: Optional[float] = HEAD_TIMEOUT_S,
    start_timeout_s: float = START_TIMEOUT_S,
    **settings: Any,
) -> serve.Application:
    """An application of `InferenceServer`, or with `http` of `HttpServer`.

    `settings` are fields of `tritonserver.Options`, and options of `ray.serve.deployment`, such as `num_replicas`,
    `max_ongoing_requests`, `ray_actor_options` and `autoscaling_config`.
    """
    fields = {name: value for name, value in settings.items() if name in _FIELDS}
    rest = {name: value for name, value in settings.items() if name not in _FIELDS}
    if options is not None and fields:
        raise TypeError(f"give options, or the fields of tritonserver.Options, not both: {sorted(fields)}")
    options = options if options is not None else tritonserver.Options(**fields)
    # Ray kills a replica that takes longer than this; the server's own limit comes first.
    rest.setdefault("graceful_shutdown_timeout_s", options.exit_timeout + 10.0)
    rest.setdefault("graceful_shutdown_wait_loop_s", 1.0)
    # With Ray's default of 5 there is seldom a second batch to make while the first one is executed.
    rest.setdefault("max_ongoing_requests", MAX_ONGOING_REQUESTS)
    arguments: dict[str, Any] = {"load": list(load), "head_timeout_s": head_timeout_s}
    arguments["start_timeout_s"] = start_timeout_s
    if http:
        return serve.deployment(HttpServer, **rest).bind(options, **arguments)
    return serve.deployment(InferenceServer, **rest).bind(options, beside=beside, **arguments)
