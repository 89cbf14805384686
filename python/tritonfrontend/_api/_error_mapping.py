"""Errors of the front ends as those of `tritonserver`."""

from __future__ import annotations

import functools
from typing import Any, Callable

import tritonserver
from tritonfrontend._c import tritonfrontend_bindings as bindings

ERROR_MAPPING: dict[type[bindings.TritonError], type[tritonserver.TritonError]] = {
    bindings.TritonError: tritonserver.TritonError,
    bindings.NotFoundError: tritonserver.NotFoundError,
    bindings.UnknownError: tritonserver.UnknownError,
    bindings.InternalError: tritonserver.InternalError,
    bindings.InvalidArgumentError: tritonserver.InvalidArgumentError,
    bindings.UnavailableError: tritonserver.UnavailableError,
    bindings.AlreadyExistsError: tritonserver.AlreadyExistsError,
    bindings.UnsupportedError: tritonserver.UnsupportedError,
}


def handle_triton_error(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with the errors of the front ends raised as those of `tritonserver`."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except bindings.TritonError as error:
            raise ERROR_MAPPING[type(error)](*error.args) from None

    return wrapper
