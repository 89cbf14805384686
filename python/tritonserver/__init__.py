"""An inference server inside this process, under the names of Triton's in-process Python API.

    server = tritonserver.Server(model_repository="models").start(wait_until_ready=True)
    for response in server.model("add").infer(inputs={"INPUT0": numpy.ones([1, 4], numpy.float32)}):
        print(numpy.from_dlpack(response.outputs["OUTPUT0"]))
"""

from importlib import metadata as _metadata

from tritonserver._api._allocators import MemoryBuffer as MemoryBuffer
from tritonserver._api._dlpack import DLDeviceType as DLDeviceType
from tritonserver._api._model import Model as Model
from tritonserver._api._request import InferenceRequest as InferenceRequest
from tritonserver._api._response import InferenceResponse as InferenceResponse
from tritonserver._api._server import (
    InstanceGroupKind as InstanceGroupKind,
    LogFormat as LogFormat,
    Metric as Metric,
    MetricFamily as MetricFamily,
    MetricFormat as MetricFormat,
    MetricKind as MetricKind,
    ModelControlMode as ModelControlMode,
    Options as Options,
    RateLimiterResource as RateLimiterResource,
    RateLimitMode as RateLimitMode,
    Server as Server,
)
from tritonserver._api._tensor import Tensor as Tensor
from tritonserver._c import triton_bindings as _bindings
from tritonserver._c.triton_bindings import (
    AlreadyExistsError as AlreadyExistsError,
    CancelledError as CancelledError,
    InternalError as InternalError,
    InvalidArgumentError as InvalidArgumentError,
    NotFoundError as NotFoundError,
    TritonError as TritonError,
    UnavailableError as UnavailableError,
    UnknownError as UnknownError,
    UnsupportedError as UnsupportedError,
)

DataType = _bindings.TRITONSERVER_DataType
MemoryType = _bindings.TRITONSERVER_MemoryType
ModelBatchFlag = _bindings.TRITONSERVER_ModelBatchFlag
ModelTxnPropertyFlag = _bindings.TRITONSERVER_ModelTxnPropertyFlag

# As in Triton's package, `from tritonserver import *` brings nothing.
__all__: list[str] = []

try:
    __version__ = _metadata.version("tritonserver")
except _metadata.PackageNotFoundError:
    __version__ = "UNKNOWN"
