"""The front ends as Triton's binding has them: constructed with the address of a server and a dictionary of options.

The errors are of classes of this module's own, as in Triton's binding; they have the names of those of `tritonserver`.
"""

from __future__ import annotations

import atexit
import weakref
from contextlib import contextmanager
from typing import ClassVar, Iterator, Union

from tritonserver._c import _native

__all__ = [
    "AlreadyExistsError",
    "InternalError",
    "InvalidArgumentError",
    "NotFoundError",
    "TritonError",
    "TritonFrontendGrpc",
    "TritonFrontendHttp",
    "TritonFrontendMetrics",
    "UnavailableError",
    "UnknownError",
    "UnsupportedError",
]


class TritonError(Exception):
    """The base of all errors of a front end."""


class UnknownError(TritonError):
    """An error without a kind of its own."""


class InternalError(TritonError):
    """An error inside the server."""


class NotFoundError(TritonError):
    """What was named does not exist."""


class InvalidArgumentError(TritonError):
    """A value is not what it must be."""


class UnavailableError(TritonError):
    """The front end cannot do this at present."""


class UnsupportedError(TritonError):
    """A front end never does this."""


class AlreadyExistsError(TritonError):
    """What was to be created exists."""


_CLASSES: dict[type[_native.TritonError], type[TritonError]] = {
    _native.InternalError: InternalError,
    _native.NotFoundError: NotFoundError,
    _native.InvalidArgumentError: InvalidArgumentError,
    _native.UnavailableError: UnavailableError,
    _native.UnsupportedError: UnsupportedError,
    _native.AlreadyExistsError: AlreadyExistsError,
}


@contextmanager
def _own_errors() -> Iterator[None]:
    """Raises the errors of the server as those of this module."""
    try:
        yield
    except _native.TritonError as error:
        raise _CLASSES.get(type(error), UnknownError)(*error.args) from None


_open: weakref.WeakSet[_Frontend] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Closes the ports before the interpreter ends."""
    for frontend in list(_open):
        try:
            frontend.stop()
        except TritonError:
            pass  # The program closes it at the same moment.


class _Frontend:
    # The number in the C interface.
    _KIND: ClassVar[int]
    # What there must be a value of.
    _KEYS: ClassVar[tuple[str, ...]]

    def __init__(self, server: int, options: dict[str, Union[bool, int, str]]) -> None:
        if not isinstance(options, dict):
            raise TypeError(f"the options must be a dict, not {type(options).__name__}")
        with _own_errors():
            self._native = _native.Frontend(self._KIND, server)
            for key in self._KEYS:
                if key not in options:
                    raise InvalidArgumentError(f"Key: {key} not found in options provided.")
            for key, value in options.items():
                self._native.set(key, value)

    def start(self) -> None:
        """Opens the port, which answers when this returns."""
        with _own_errors():
            self._native.start()
        _open.add(self)

    def stop(self) -> None:
        """Closes the port, and finishes the requests that were accepted."""
        with _own_errors():
            self._native.stop()
        _open.discard(self)

    def port(self) -> int:
        """The port that is open, which tells what the system chose for port 0."""
        with _own_errors():
            return self._native.port()

    def restrict(self, feature: str, key: str, value: str) -> None:
        """Requires a header with a value for requests of a feature, from the next start on."""
        with _own_errors():
            self._native.restrict(feature, key, value)


class TritonFrontendHttp(_Frontend):
    """KServe's protocol over HTTP."""

    _KIND = 0
    _KEYS = ("address", "port", "reuse_port", "thread_count", "header_forward_pattern")


class TritonFrontendGrpc(_Frontend):
    """KServe's protocol over gRPC."""

    _KIND = 1
    _KEYS = (
        "address",
        "port",
        "reuse_port",
        "use_ssl",
        "server_cert",
        "server_key",
        "root_cert",
        "use_mutual_auth",
        "keepalive_time_ms",
        "keepalive_timeout_ms",
        "keepalive_permit_without_calls",
        "http2_max_pings_without_data",
        "http2_min_recv_ping_interval_without_data_ms",
        "http2_max_ping_strikes",
        "max_connection_age_ms",
        "max_connection_age_grace_ms",
        "infer_compression_level",
        "infer_thread_count",
        "infer_allocation_pool_size",
        "max_response_pool_size",
        "forward_header_pattern",
    )


class TritonFrontendMetrics(_Frontend):
    """The page of the metrics."""

    _KIND = 2
    _KEYS = ("address", "port", "thread_count")
