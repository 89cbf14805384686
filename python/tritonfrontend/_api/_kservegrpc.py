"""The front end for gRPC."""

from enum import IntEnum
from typing import Optional, Union

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from tritonfrontend._api._frontend import Frontend
from tritonfrontend._api._restricted_features import RestrictedFeatures
from tritonfrontend._c.tritonfrontend_bindings import TritonFrontendGrpc


class Grpc_compression_level(IntEnum):
    """How much answers are compressed."""

    NONE = 0
    LOW = 1
    MED = 2
    HIGH = 3
    COUNT = 4


class KServeGrpc(Frontend):
    """KServe's protocol over gRPC."""

    _BINDING = TritonFrontendGrpc
    Grpc_compression_level = Grpc_compression_level

    @dataclass(config=ConfigDict(arbitrary_types_allowed=True, extra="forbid"))
    class Options:
        """Triton's options, and behind `forward_header_pattern` those of this server."""

        address: str = "0.0.0.0"
        port: int = Field(8001, ge=0, le=65535)
        reuse_port: bool = False
        use_ssl: bool = False
        server_cert: str = ""
        server_key: str = ""
        root_cert: str = ""
        use_mutual_auth: bool = False
        keepalive_time_ms: int = Field(7_200_000, ge=0)
        keepalive_timeout_ms: int = Field(20_000, ge=0)
        keepalive_permit_without_calls: bool = False
        http2_max_pings_without_data: int = Field(2, ge=0)
        http2_min_recv_ping_interval_without_data_ms: int = Field(300_000, ge=0)
        http2_max_ping_strikes: int = Field(2, ge=0)
        max_connection_age_ms: int = Field(0, ge=0)
        max_connection_age_grace_ms: int = Field(0, ge=0)
        infer_compression_level: Union[int, Grpc_compression_level] = Grpc_compression_level.NONE
        infer_thread_count: int = Field(2, ge=0)
        infer_allocation_pool_size: int = Field(8, ge=0)
        max_response_pool_size: int = Field(2_147_483_647, ge=0)
        forward_header_pattern: str = ""
        restricted_features: Optional[RestrictedFeatures] = None
        uds: str = ""
        max_receive_message_size: int = Field(2_147_483_647, gt=0)
        io_engine: str = Field("auto", pattern="^(auto|io_uring|epoll)$")
        drain_timeout_ms: Optional[int] = Field(None, ge=0)

        def __post_init__(self) -> None:
            self.infer_compression_level = int(self.infer_compression_level)
