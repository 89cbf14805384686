"""The front ends and their options."""

try:
    import pydantic as _pydantic
except ImportError as error:
    raise ImportError("tritonfrontend needs pydantic 2 for its options: pip install 'pydantic>=2'") from error
if int(_pydantic.VERSION.split(".")[0]) < 2:
    raise ImportError(f"tritonfrontend needs pydantic 2, not {_pydantic.VERSION}: pip install 'pydantic>=2'")

from tritonfrontend._api._kservegrpc import KServeGrpc as KServeGrpc
from tritonfrontend._api._kservehttp import KServeHttp as KServeHttp
from tritonfrontend._api._metrics import Metrics as Metrics
from tritonfrontend._api._restricted_features import (
    Feature as Feature,
    FeatureGroup as FeatureGroup,
    RestrictedFeatures as RestrictedFeatures,
)
