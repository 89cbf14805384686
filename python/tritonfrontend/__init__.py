"""Ports of a server inside this process, under the names of Triton's package.

    with KServeHttp(server, KServeHttp.Options(port=8000)), Metrics(server):
        ...

The options are dataclasses of pydantic, which is needed only where one of the front ends is used.
"""

from importlib import import_module as _import_module
from importlib import metadata as _metadata
from typing import TYPE_CHECKING, Any

import tritonserver as _tritonserver  # noqa: F401  Its servers end after the ports: what is registered last runs first.

if TYPE_CHECKING:
    from tritonfrontend._api import (
        Feature as Feature,
        FeatureGroup as FeatureGroup,
        KServeGrpc as KServeGrpc,
        KServeHttp as KServeHttp,
        Metrics as Metrics,
        RestrictedFeatures as RestrictedFeatures,
    )

__all__ = ["Feature", "FeatureGroup", "KServeGrpc", "KServeHttp", "Metrics", "RestrictedFeatures"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_import_module("tritonfrontend._api"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


try:
    __version__ = _metadata.version("tritonfrontend")
except _metadata.PackageNotFoundError:
    __version__ = "UNKNOWN"
