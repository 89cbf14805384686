"""Replaces the native module of Triton's stub, under the same name: the classes behind triton_python_backend_utils."""

from nereid_python.calls import ResponseIterator
from nereid_python.control import get_model_dir, is_model_ready, load_model, unload_model
from nereid_python.errors import TritonError, TritonModelException
from nereid_python.logger import Logger
from nereid_python.metrics import Metric, MetricFamily, MetricKind
from nereid_python.request import InferenceRequest, MemoryType, PreferredMemory
from nereid_python.response import InferenceResponse
from nereid_python.sender import InferenceResponseSender
from nereid_python.tensor import Tensor
from nereid_python.trace import InferenceTrace
from nereid_python.wire import link


class SharedMemory:
    """The memory that the worker and the server share, in the direction of the server."""

    def free_memory(self):
        """Bytes that can be used without a request for more memory."""
        return link.free_bytes()


# The memory that the worker and the server share.
shared_memory = SharedMemory()

COUNTER = MetricKind.COUNTER
GAUGE = MetricKind.GAUGE
HISTOGRAM = MetricKind.HISTOGRAM
TRITONSERVER_MEMORY_GPU = MemoryType.TRITONSERVER_MEMORY_GPU
TRITONSERVER_MEMORY_CPU = MemoryType.TRITONSERVER_MEMORY_CPU

__all__ = [
    "COUNTER",
    "GAUGE",
    "HISTOGRAM",
    "InferenceRequest",
    "InferenceResponse",
    "InferenceResponseSender",
    "InferenceTrace",
    "Logger",
    "MemoryType",
    "Metric",
    "MetricFamily",
    "MetricKind",
    "PreferredMemory",
    "SharedMemory",
    "ResponseIterator",
    "TRITONSERVER_MEMORY_CPU",
    "TRITONSERVER_MEMORY_GPU",
    "Tensor",
    "TritonError",
    "TritonModelException",
    "get_model_dir",
    "is_model_ready",
    "load_model",
    "shared_memory",
    "unload_model",
]
