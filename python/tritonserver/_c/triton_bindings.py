"""The C interface of the server, class by class and function by function, under the names of Triton's binding.

Numbers are enumerations in Python; all else is the extension module `_native`, which has the library that lies in this
package opened.
"""

from tritonserver._c._native import (
    AlreadyExistsError as AlreadyExistsError,
    CancelledError as CancelledError,
    InternalError as InternalError,
    InvalidArgumentError as InvalidArgumentError,
    NotFoundError as NotFoundError,
    TRITONSERVER_BufferAttributes as TRITONSERVER_BufferAttributes,
    TRITONSERVER_DataTypeByteSize as TRITONSERVER_DataTypeByteSize,
    TRITONSERVER_DataTypeString as TRITONSERVER_DataTypeString,
    TRITONSERVER_InferenceRequest as TRITONSERVER_InferenceRequest,
    TRITONSERVER_InferenceResponse as TRITONSERVER_InferenceResponse,
    TRITONSERVER_InferenceTrace as TRITONSERVER_InferenceTrace,
    TRITONSERVER_InferenceTraceActivityString as TRITONSERVER_InferenceTraceActivityString,
    TRITONSERVER_InferenceTraceLevelString as TRITONSERVER_InferenceTraceLevelString,
    TRITONSERVER_InstanceGroupKindString as TRITONSERVER_InstanceGroupKindString,
    TRITONSERVER_LogIsEnabled as TRITONSERVER_LogIsEnabled,
    TRITONSERVER_LogMessage as TRITONSERVER_LogMessage,
    TRITONSERVER_MemoryTypeString as TRITONSERVER_MemoryTypeString,
    TRITONSERVER_Message as TRITONSERVER_Message,
    TRITONSERVER_Metric as TRITONSERVER_Metric,
    TRITONSERVER_MetricFamily as TRITONSERVER_MetricFamily,
    TRITONSERVER_Metrics as TRITONSERVER_Metrics,
    TRITONSERVER_Parameter as TRITONSERVER_Parameter,
    TRITONSERVER_ParameterTypeString as TRITONSERVER_ParameterTypeString,
    TRITONSERVER_ResponseAllocator as TRITONSERVER_ResponseAllocator,
    TRITONSERVER_Server as TRITONSERVER_Server,
    TRITONSERVER_ServerOptions as TRITONSERVER_ServerOptions,
    TRITONSERVER_StringToDataType as TRITONSERVER_StringToDataType,
    TritonError as TritonError,
    UnavailableError as UnavailableError,
    UnknownError as UnknownError,
    UnsupportedError as UnsupportedError,
    api_version as api_version,
)
from tritonserver._c._numbers import (
    TRITONSERVER_DataType as TRITONSERVER_DataType,
    TRITONSERVER_InferenceTraceActivity as TRITONSERVER_InferenceTraceActivity,
    TRITONSERVER_InferenceTraceLevel as TRITONSERVER_InferenceTraceLevel,
    TRITONSERVER_InstanceGroupKind as TRITONSERVER_InstanceGroupKind,
    TRITONSERVER_LogFormat as TRITONSERVER_LogFormat,
    TRITONSERVER_LogLevel as TRITONSERVER_LogLevel,
    TRITONSERVER_MemoryType as TRITONSERVER_MemoryType,
    TRITONSERVER_MetricFormat as TRITONSERVER_MetricFormat,
    TRITONSERVER_MetricKind as TRITONSERVER_MetricKind,
    TRITONSERVER_ModelBatchFlag as TRITONSERVER_ModelBatchFlag,
    TRITONSERVER_ModelControlMode as TRITONSERVER_ModelControlMode,
    TRITONSERVER_ModelIndexFlag as TRITONSERVER_ModelIndexFlag,
    TRITONSERVER_ModelTxnPropertyFlag as TRITONSERVER_ModelTxnPropertyFlag,
    TRITONSERVER_ParameterType as TRITONSERVER_ParameterType,
    TRITONSERVER_RateLimitMode as TRITONSERVER_RateLimitMode,
    TRITONSERVER_RequestFlag as TRITONSERVER_RequestFlag,
    TRITONSERVER_RequestReleaseFlag as TRITONSERVER_RequestReleaseFlag,
    TRITONSERVER_ResponseCompleteFlag as TRITONSERVER_ResponseCompleteFlag,
)

# Members that are names of the module as well.
DISABLED = TRITONSERVER_InferenceTraceLevel.DISABLED
MIN = TRITONSERVER_InferenceTraceLevel.MIN
MAX = TRITONSERVER_InferenceTraceLevel.MAX
TIMESTAMPS = TRITONSERVER_InferenceTraceLevel.TIMESTAMPS
TENSORS = TRITONSERVER_InferenceTraceLevel.TENSORS
REQUEST_START = TRITONSERVER_InferenceTraceActivity.REQUEST_START
QUEUE_START = TRITONSERVER_InferenceTraceActivity.QUEUE_START
COMPUTE_START = TRITONSERVER_InferenceTraceActivity.COMPUTE_START
COMPUTE_INPUT_END = TRITONSERVER_InferenceTraceActivity.COMPUTE_INPUT_END
COMPUTE_OUTPUT_START = TRITONSERVER_InferenceTraceActivity.COMPUTE_OUTPUT_START
COMPUTE_END = TRITONSERVER_InferenceTraceActivity.COMPUTE_END
REQUEST_END = TRITONSERVER_InferenceTraceActivity.REQUEST_END
TENSOR_QUEUE_INPUT = TRITONSERVER_InferenceTraceActivity.TENSOR_QUEUE_INPUT
TENSOR_BACKEND_INPUT = TRITONSERVER_InferenceTraceActivity.TENSOR_BACKEND_INPUT
TENSOR_BACKEND_OUTPUT = TRITONSERVER_InferenceTraceActivity.TENSOR_BACKEND_OUTPUT
CUSTOM_ACTIVITY = TRITONSERVER_InferenceTraceActivity.CUSTOM_ACTIVITY
SEQUENCE_START = TRITONSERVER_RequestFlag.SEQUENCE_START
SEQUENCE_END = TRITONSERVER_RequestFlag.SEQUENCE_END
ALL = TRITONSERVER_RequestReleaseFlag.ALL
FINAL = TRITONSERVER_ResponseCompleteFlag.FINAL
UNKNOWN = TRITONSERVER_ModelBatchFlag.UNKNOWN
FIRST_DIM = TRITONSERVER_ModelBatchFlag.FIRST_DIM
READY = TRITONSERVER_ModelIndexFlag.READY
ONE_TO_ONE = TRITONSERVER_ModelTxnPropertyFlag.ONE_TO_ONE
DECOUPLED = TRITONSERVER_ModelTxnPropertyFlag.DECOUPLED
