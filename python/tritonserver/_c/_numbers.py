"""The numbers of the C interface, with its names and without its prefixes.

A member is an int. Its text is that of Triton's binding, because messages contain it.
"""

from enum import IntEnum

_MODULE = "tritonserver._c.triton_bindings"


class _Number(IntEnum):
    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}.{self.name}: {self.value}>"


class TRITONSERVER_DataType(_Number):
    INVALID = 0
    BOOL = 1
    UINT8 = 2
    UINT16 = 3
    UINT32 = 4
    UINT64 = 5
    INT8 = 6
    INT16 = 7
    INT32 = 8
    INT64 = 9
    FP16 = 10
    FP32 = 11
    FP64 = 12
    BYTES = 13
    BF16 = 14


class TRITONSERVER_MemoryType(_Number):
    CPU = 0
    CPU_PINNED = 1
    GPU = 2


class TRITONSERVER_ParameterType(_Number):
    STRING = 0
    INT = 1
    BOOL = 2
    DOUBLE = 3
    BYTES = 4


class TRITONSERVER_InstanceGroupKind(_Number):
    AUTO = 0
    CPU = 1
    GPU = 2
    MODEL = 3


class TRITONSERVER_LogLevel(_Number):
    INFO = 0
    WARN = 1
    ERROR = 2
    VERBOSE = 3


class TRITONSERVER_LogFormat(_Number):
    DEFAULT = 0
    ISO8601 = 1


class TRITONSERVER_MetricFormat(_Number):
    PROMETHEUS = 0


class TRITONSERVER_MetricKind(_Number):
    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2


class TRITONSERVER_InferenceTraceLevel(_Number):
    DISABLED = 0
    MIN = 1
    MAX = 2
    TIMESTAMPS = 4
    TENSORS = 8


class TRITONSERVER_InferenceTraceActivity(_Number):
    REQUEST_START = 0
    QUEUE_START = 1
    COMPUTE_START = 2
    COMPUTE_INPUT_END = 3
    COMPUTE_OUTPUT_START = 4
    COMPUTE_END = 5
    REQUEST_END = 6
    TENSOR_QUEUE_INPUT = 7
    TENSOR_BACKEND_INPUT = 8
    TENSOR_BACKEND_OUTPUT = 9
    CUSTOM_ACTIVITY = 10


class TRITONSERVER_RequestFlag(_Number):
    SEQUENCE_START = 1
    SEQUENCE_END = 2


class TRITONSERVER_RequestReleaseFlag(_Number):
    ALL = 1


class TRITONSERVER_ResponseCompleteFlag(_Number):
    FINAL = 1


class TRITONSERVER_ModelControlMode(_Number):
    NONE = 0
    POLL = 1
    EXPLICIT = 2


class TRITONSERVER_RateLimitMode(_Number):
    OFF = 0
    EXEC_COUNT = 1


class TRITONSERVER_ModelBatchFlag(_Number):
    UNKNOWN = 1
    FIRST_DIM = 2


class TRITONSERVER_ModelIndexFlag(_Number):
    READY = 1


class TRITONSERVER_ModelTxnPropertyFlag(_Number):
    ONE_TO_ONE = 1
    DECOUPLED = 2


for _class in _Number.__subclasses__():
    # Where programs find it, and so where pickle looks for it.
    _class.__module__ = _MODULE
