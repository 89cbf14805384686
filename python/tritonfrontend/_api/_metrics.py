"""The front end for the metrics."""

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from tritonfrontend._api._frontend import Frontend
from tritonfrontend._c.tritonfrontend_bindings import TritonFrontendMetrics


class Metrics(Frontend):
    """The page of the metrics, `/metrics`."""

    _BINDING = TritonFrontendMetrics

    @dataclass(config=ConfigDict(extra="forbid"))
    class Options:
        """Triton's options, and behind `thread_count` that of this server."""

        address: str = "0.0.0.0"
        port: int = Field(8002, ge=0, le=65535)
        thread_count: int = Field(1, gt=0)
        io_engine: str = Field("auto", pattern="^(auto|io_uring|epoll)$")
