"""Models of a server."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Optional

from tritonserver._api._request import InferenceRequest
from tritonserver._api._response import AsyncResponseIterator, ResponseIterator
from tritonserver._c.triton_bindings import (
    InvalidArgumentError,
    TRITONSERVER_ModelBatchFlag,
    TRITONSERVER_ModelTxnPropertyFlag,
    TRITONSERVER_Server,
)

if TYPE_CHECKING:
    from tritonserver._api._server import Server


class Model:
    """A model of a server that was started. That there is one of this name is not checked before it is used.

    Attributes
    ----------
    name : str
    version : int
        -1 is the version that the server chooses.
    state, reason : str, optional
        As in the server's index.
    """

    name: str
    version: int
    state: Optional[str]
    reason: Optional[str]

    def __init__(
        self,
        server: Server,
        name: str,
        version: int = -1,
        state: Optional[str] = None,
        reason: Optional[str] = None,
    ) -> None:
        # The server of the C interface, which lives as long as a model does.
        inner = server._server
        if not isinstance(inner, TRITONSERVER_Server):
            raise InvalidArgumentError("Server not started")
        self._server = inner
        self.name = name
        self.version = int(version)
        self.state = state
        self.reason = reason

    def _served_as(self, name: str, version: int) -> Model:
        """The model under the name and version that answered."""
        served = Model.__new__(type(self))
        served.__dict__.update(self.__dict__, name=name, version=version)
        return served

    def create_request(self, **kwargs: Any) -> InferenceRequest:
        """A request to this model, with the fields of `InferenceRequest`."""
        kwargs.pop("model", None)
        return InferenceRequest(model=self, **kwargs)

    def infer(
        self, inference_request: Optional[InferenceRequest] = None, raise_on_error: bool = True, **kwargs: Any
    ) -> ResponseIterator:
        """Sends a request, or one with these fields, and returns an iterator of its responses.

        With `raise_on_error` the iterator raises the errors of responses instead of returning them.
        """
        return ResponseIterator(*self._send(inference_request, kwargs), raise_on_error)

    def async_infer(
        self, inference_request: Optional[InferenceRequest] = None, raise_on_error: bool = True, **kwargs: Any
    ) -> AsyncResponseIterator:
        """Sends a request, or one with these fields, and returns an asynchronous iterator of its responses."""
        return AsyncResponseIterator(*self._send(inference_request, kwargs), raise_on_error)

    def _send(self, request: Optional[InferenceRequest], fields: dict[str, Any]) -> tuple[InferenceRequest, Any]:
        if request is None:
            request = self.create_request(**fields)
        native = request._create_server_request()
        self._server.infer_async(native)
        return request, native

    def metadata(self) -> dict[str, Any]:
        """Its inputs and outputs."""
        return json.loads(self._server.model_metadata(self.name, self.version).serialize_to_json())

    def ready(self) -> bool:
        """Whether it answers requests; False for one that is unknown."""
        return self._server.model_is_ready(self.name, self.version)

    def batch_properties(self) -> TRITONSERVER_ModelBatchFlag:
        flags, _ = self._server.model_batch_properties(self.name, self.version)
        return TRITONSERVER_ModelBatchFlag(flags)

    def transaction_properties(self) -> TRITONSERVER_ModelTxnPropertyFlag:
        flags, _ = self._server.model_transaction_properties(self.name, self.version)
        return TRITONSERVER_ModelTxnPropertyFlag(flags)

    def statistics(self) -> dict[str, Any]:
        return json.loads(self._server.model_statistics(self.name, self.version).serialize_to_json())

    def config(self, config_version: int = 1) -> dict[str, Any]:
        return json.loads(self._server.model_config(self.name, self.version, config_version).serialize_to_json())

    def __str__(self) -> str:
        return str({"name": self.name, "version": self.version, "state": self.state})

    __repr__ = __str__
