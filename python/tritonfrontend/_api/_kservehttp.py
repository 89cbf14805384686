"""The front end for HTTP."""

from typing import Optional

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from tritonfrontend._api._frontend import Frontend
from tritonfrontend._api._restricted_features import RestrictedFeatures
from tritonfrontend._c.tritonfrontend_bindings import TritonFrontendHttp


class KServeHttp(Frontend):
    """KServe's protocol over HTTP."""

    _BINDING = TritonFrontendHttp

    @dataclass(config=ConfigDict(arbitrary_types_allowed=True, extra="forbid"))
    class Options:
        """Triton's options, and behind `header_forward_pattern` those of this server."""

        address: str = "0.0.0.0"
        port: int = Field(8000, ge=0, le=65535)
        reuse_port: bool = False
        thread_count: int = Field(8, gt=0)
        header_forward_pattern: str = ""
        restricted_features: Optional[RestrictedFeatures] = None
        use_ssl: bool = False
        server_cert: str = ""
        server_key: str = ""
        root_cert: str = ""
        use_mutual_auth: bool = False
        uds: str = ""
        max_input_size: int = Field(64 << 20, gt=0)
        io_engine: str = Field("auto", pattern="^(auto|io_uring|epoll)$")
        drain_timeout_ms: Optional[int] = Field(None, ge=0)
