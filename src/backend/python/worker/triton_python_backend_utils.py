"""The module that models import, conventionally as pb_utils: its 31 names (contract/python_backend.md section 3)."""

from c_python_backend_utils import (
    TRITONSERVER_MEMORY_CPU,
    TRITONSERVER_MEMORY_GPU,
    InferenceRequest,
    InferenceResponse,
    Logger,
    MetricFamily,
    PreferredMemory,
    Tensor,
    TritonError,
    TritonModelException,
    get_model_dir,
    is_model_ready,
    load_model,
    unload_model,
)
from nereid_python.config import ModelConfig
from nereid_python.strings import deserialize_bytes_tensor, serialize_byte_tensor
from nereid_python.types import (
    TRITON_STRING_TO_NUMPY,
    numpy_to_triton_type,
    triton_string_to_numpy,
    triton_to_numpy_type,
)

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2
TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
TRITONSERVER_REQUEST_RELEASE_ALL = 1
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = 2

__all__ = [
    "InferenceRequest",
    "InferenceResponse",
    "Logger",
    "MetricFamily",
    "ModelConfig",
    "PreferredMemory",
    "TRITONSERVER_MEMORY_CPU",
    "TRITONSERVER_MEMORY_GPU",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START",
    "TRITONSERVER_REQUEST_RELEASE_ALL",
    "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE",
    "TRITONSERVER_RESPONSE_COMPLETE_FINAL",
    "TRITON_STRING_TO_NUMPY",
    "Tensor",
    "TritonError",
    "TritonModelException",
    "deserialize_bytes_tensor",
    "get_input_config_by_name",
    "get_input_tensor_by_name",
    "get_model_dir",
    "get_output_config_by_name",
    "get_output_tensor_by_name",
    "is_model_ready",
    "load_model",
    "numpy_to_triton_type",
    "serialize_byte_tensor",
    "triton_string_to_numpy",
    "triton_to_numpy_type",
    "unload_model",
    "using_decoupled_model_transaction_policy",
]


def get_input_tensor_by_name(inference_request, name):
    """The input of that name, or None. Stand-ins of models for requests and tensors have only the public methods."""
    if type(inference_request) is not InferenceRequest:
        return _named(inference_request.inputs(), name)
    for tensor in inference_request._inputs:
        if tensor._wire[0] == name:
            return tensor
    return None


def get_output_tensor_by_name(inference_response, name):
    """The output of that name, or None."""
    return _named(inference_response.output_tensors(), name)


def get_input_config_by_name(model_config, name):
    """The configuration of the input of that name, or None."""
    return _by_name(model_config, "input", name)


def get_output_config_by_name(model_config, name):
    """The configuration of the output of that name, or None."""
    return _by_name(model_config, "output", name)


def using_decoupled_model_transaction_policy(model_config):
    """Whether the model is decoupled."""
    return model_config.get("model_transaction_policy", {}).get("decoupled", False)


def _named(tensors, name):
    for tensor in tensors:
        if tensor.name() == name:
            return tensor
    return None


def _by_name(model_config, side, name):
    for properties in model_config.get(side, ()):
        if properties["name"] == name:
            return properties
    return None
