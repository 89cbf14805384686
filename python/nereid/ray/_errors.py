"""Errors that reach the callers of a replica, so each must survive pickling: the errors of `tritonserver` hold the
response, which belongs to one process."""

from __future__ import annotations

from typing import Any


class InferenceError(RuntimeError):
    """A request that the server refused or that its model failed.

    Attributes
    ----------
    code : str
        The code of the error under the name of gRPC, such as `NOT_FOUND`.
    """

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message, code)
        self.code = code

    def __str__(self) -> str:
        return str(self.args[0])


class ServerLost(RuntimeError):
    """The server of a replica does not run. Ray Serve replaces a replica whose health check raises this."""


# The classes of `tritonserver`, by name.
_CODES = {
    "AlreadyExistsError": "ALREADY_EXISTS",
    "CancelledError": "CANCELLED",
    "InternalError": "INTERNAL",
    "InvalidArgumentError": "INVALID_ARGUMENT",
    "NotFoundError": "NOT_FOUND",
    "UnavailableError": "UNAVAILABLE",
    "UnsupportedError": "UNIMPLEMENTED",
}


def of_triton(error: Any) -> InferenceError:
    """The error for callers of a `tritonserver.TritonError`."""
    return InferenceError(str(error.args[0]) if error.args else "", _CODES.get(type(error).__name__, "UNKNOWN"))
