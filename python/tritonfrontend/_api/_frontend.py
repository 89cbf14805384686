"""What all front ends have in common."""

from __future__ import annotations

import dataclasses
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Optional

from tritonfrontend._api._error_mapping import handle_triton_error
from tritonfrontend._c.tritonfrontend_bindings import InvalidArgumentError

if TYPE_CHECKING:
    from typing_extensions import Self

    import tritonserver


class Frontend:
    """A port of a server, which is open from `start` to `stop`, or in a `with` block.

    It holds the server: clients of a server that was stopped get an error until the port is closed.
    """

    Options: ClassVar[Any]
    # The class of the binding.
    _BINDING: ClassVar[Any]

    @handle_triton_error
    def __init__(self, server: tritonserver.Server, options: Any = None) -> None:
        address = server._ptr()
        if options is None:
            options = self.Options()
        if not isinstance(options, self.Options):
            text = f"Incorrect type for options. options argument must be of type {type(self).__name__}.Options"
            raise InvalidArgumentError(text)
        fields = {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}
        restricted = fields.pop("restricted_features", None)
        # What is None is the server's own default.
        given = {name: value for name, value in fields.items() if value is not None}
        self.triton_frontend = self._BINDING(address, given)
        for feature, key, value in restricted._keys() if restricted is not None else ():
            self.triton_frontend.restrict(feature, key, value)

    @handle_triton_error
    def __enter__(self) -> Self:
        self.triton_frontend.start()
        return self

    @handle_triton_error
    def __exit__(
        self,
        exc_type: Optional[type[BaseException]],
        exc_value: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        # An exception of the block goes on as it is.
        self.triton_frontend.stop()

    @handle_triton_error
    def start(self) -> None:
        """Opens the port, which answers when this returns."""
        self.triton_frontend.start()

    @handle_triton_error
    def stop(self) -> None:
        """Closes the port. Requests that were accepted are finished within `drain_timeout_ms`; the rest gets an
        error."""
        self.triton_frontend.stop()

    @property
    @handle_triton_error
    def port(self) -> int:
        """The port that is open, which tells what the system chose for port 0."""
        return self.triton_frontend.port()
