"""Models for the tests of NVIDIA Dynamo, and whether a client finds them."""

from dynamo_system import write
from tritonclient.utils import InferenceServerException

KINDS = {
    "BOOL": [True, False, True],
    "UINT8": [0, 1, 255],
    "UINT16": [0, 1, 65535],
    "UINT32": [0, 1, 2**32 - 1],
    "UINT64": [0, 1, 2**64 - 1],
    "INT8": [-128, 0, 127],
    "INT16": [-32768, 0, 32767],
    "INT32": [-(2**31), 0, 2**31 - 1],
    "INT64": [-(2**63), 0, 2**63 - 1],
    "FP32": [-1.5, 1e-40, 3.4e38],
    "FP64": [-1.5, 5e-324, 1.7e308],
    "BYTES": [b"", "\u00e4\u20ac".encode(), b"\xff\x00\xfe"],
}
PYTHON = """
backend: "python" %s
input { name: "WORDS" data_type: TYPE_STRING dims: -1 }
output { name: "WORDS" data_type: TYPE_STRING dims: -1 }
"""
ANSWERING = """
import os
import time
import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.version = args["model_version"]

    def answer(self, request):
        words = pb_utils.get_input_tensor_by_name(request, "WORDS").as_numpy()
        if b"die" in words:
            os._exit(3)
        if b"raise" in words:
            raise ValueError("the model's own exception")
        if b"fail" in words:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("the model failed"))
        if b"slow" in words:
            time.sleep(0.2)
        if b"version" in words:
            words = numpy.array([self.version.encode()], dtype=numpy.object_)
        if b"log" in words:
            pb_utils.Logger.log_error("the model's own line")
        return pb_utils.InferenceResponse([pb_utils.Tensor("WORDS", words)])

    def execute(self, requests):
        return [self.answer(request) for request in requests]
"""
STREAMING = """
import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for word in pb_utils.get_input_tensor_by_name(request, "WORDS").as_numpy():
                if word == b"fail":
                    sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("the stream failed")))
                    break
                one = pb_utils.Tensor("WORDS", numpy.array([word], dtype=numpy.object_))
                sender.send(pb_utils.InferenceResponse([one]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
# The bits of floats of 16 bits, which Dynamo takes from clients and cannot give back.
BITS = """
backend: "python"
input { name: "HALVES" data_type: TYPE_%s dims: -1 }
output [ { name: "BITS" data_type: TYPE_UINT16 dims: -1 }, { name: "HALVES" data_type: TYPE_%s dims: -1 } ]
"""
READING = """
import ctypes
import numpy
import triton_python_backend_utils as pb_utils

pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
pointer_of.argtypes, pointer_of.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.POINTER(ctypes.c_void_p)


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        halves = pb_utils.get_input_tensor_by_name(request, "HALVES")
        capsule = halves.to_dlpack()
        data = ctypes.string_at(pointer_of(capsule, b"dltensor")[0], 2 * halves.shape()[0])
        bits = pb_utils.Tensor("BITS", numpy.frombuffer(data, numpy.uint16))
        return pb_utils.InferenceResponse([bits, pb_utils.Tensor.from_dlpack("HALVES", halves.to_dlpack())])
"""
CLASSES = """
backend: "identity" max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: 2 }, { name: "INPUT1" data_type: TYPE_FP32 dims: 3 } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: 2 },
         { name: "OUTPUT1" data_type: TYPE_FP32 dims: 3 label_filename: "labels" } ]
"""
# For /v1/classify: texts become numbers, and numbers probabilities.
STEP = """
import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        texts = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
        long = [[min(len(text), 10) / 10] for text in texts[:, 0]]
        both = numpy.concatenate([1 - numpy.array(long), long], axis=1).astype(numpy.float32)
        return pb_utils.InferenceResponse([pb_utils.Tensor("NUMBERS", both)])
"""
TO_NUMBERS = """
backend: "python" max_batch_size: 4
input { name: "TEXT" data_type: TYPE_STRING dims: 1 }
output { name: "NUMBERS" data_type: TYPE_FP32 dims: 2 }
"""
TO_CLASSES = """
backend: "identity" max_batch_size: 4
input { name: "INPUT0" data_type: TYPE_FP32 dims: 2 }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: 2 label_filename: "labels" }
"""
ENSEMBLE = """
platform: "ensemble" max_batch_size: 4
input { name: "TEXT" data_type: TYPE_STRING dims: 1 }
output { name: "CLASSES" data_type: TYPE_FP32 dims: 2 label_filename: "labels" }
ensemble_scheduling { step [
  { model_name: "numbers" model_version: -1 input_map { key: "TEXT" value: "TEXT" }
    output_map { key: "NUMBERS" value: "between" } },
  { model_name: "classes" model_version: -1 input_map { key: "INPUT0" value: "between" }
    output_map { key: "OUTPUT0" value: "CLASSES" } } ] }
"""


# Fields that the worker reads into NVIDIA's message, which must know each.
FIELDS = """
backend: "identity" max_batch_size: 8 version_policy { specific { versions: [1] } } default_model_filename: "x"
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ 1, 2 ] reshape { shape: [ 2 ] } optional: false format: FORMAT_NONE }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 1, 2 ] reshape { shape: [ 2 ] } label_filename: "labels" }
dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 100 priority_levels: 3 default_priority_level: 2
  default_queue_policy { timeout_action: REJECT default_timeout_microseconds: 1000000 allow_timeout_override: true max_queue_size: 100 }
  priority_queue_policy { key: 1 value { timeout_action: DELAY max_queue_size: 7 } } }
instance_group [ { name: "one" count: 2 kind: KIND_CPU rate_limiter { resources [ { name: "R" count: 1 global: true } ] priority: 2 } host_policy: "h" } ]
optimization { priority: PRIORITY_MAX input_pinned_memory { enable: false } output_pinned_memory { enable: false } gather_kernel_buffer_threshold: 5 eager_batching: true execution_accelerators { cpu_execution_accelerator { name: "openvino" parameters { key: "a" value: "b" } } } }
parameters { key: "x" value { string_value: "y" } }
metric_tags { key: "t" value: "u" }
cc_model_filenames { key: "7.5" value: "z" }
model_warmup [ { name: "w" batch_size: 1 count: 1 inputs { key: "INPUT0" value { data_type: TYPE_FP32 dims: [ 1, 2 ] zero_data: true } } } ]
model_transaction_policy { decoupled: false }
response_cache { enable: true }
batch_input [ { kind: BATCH_ELEMENT_COUNT target_name: "B" data_type: TYPE_INT32 source_input: "INPUT0" } ]
batch_output [ { target_name: "OUTPUT0" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "INPUT0" } ]
model_metrics { metric_control [ { metric_identifier { family: "nv_inference_first_response_histogram_ms" } histogram_options { buckets: [ 1, 2 ] } } ] }
model_operations { op_library_filename: "none" }
"""
SEQUENCE = """
backend: "identity" max_batch_size: 4
input { name: "INPUT0" data_type: TYPE_FP32 dims: -1 }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: -1 }
sequence_batching { max_sequence_idle_microseconds: 5 iterative_sequence: false oldest { max_candidate_sequences: 4 preferred_batch_size: [ 2 ] max_queue_delay_microseconds: 9 preserve_ordering: true }
 state [ { input_name: "S" output_name: "T" data_type: TYPE_FP32 dims: 1 use_same_buffer_for_input_output: true initial_state { name: "i" data_type: TYPE_FP32 dims: 1 zero_data: true } } ]
 control_input [ { name: "START" control [ { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } ] } ] }
"""


def config_name(kind):
    return "STRING" if kind == "BYTES" else kind


def models(folder):
    def side(word):
        tensors = [f'{{ name: "{word.upper()}{i}" data_type: TYPE_{config_name(kind)} dims: [ -1, -1 ] }}'
                   for i, kind in enumerate(KINDS)]
        return f"{word} [ {', '.join(tensors)} ]"

    write(folder, "kinds/config.pbtxt", f'backend: "identity" max_batch_size: 0 {side("input")} {side("output")}')
    write(folder, "kinds/1/none", "")
    # Dynamo makes a name of its own of this one.
    write(folder, "Classes,of 3/config.pbtxt", CLASSES)
    write(folder, "Classes,of 3/1/none", "")
    write(folder, "Classes,of 3/labels", "first\nsecond\nthird\n")
    write(folder, "fields/config.pbtxt", FIELDS)
    write(folder, "fields/1/none", "")
    write(folder, "fields/labels", "first\nsecond\n")
    write(folder, "sequence/config.pbtxt", SEQUENCE)
    write(folder, "sequence/1/none", "")
    write(folder, "words/config.pbtxt", PYTHON % "version_policy { all {} }")
    write(folder, "words/1/model.py", ANSWERING)
    write(folder, "words/2/model.py", ANSWERING)
    for kind in ("FP16", "BF16"):
        write(folder, f"bits_{kind}/config.pbtxt", BITS % (kind, kind))
        write(folder, f"bits_{kind}/1/model.py", READING)
    write(folder, "stream/config.pbtxt", PYTHON % "model_transaction_policy { decoupled: true }")
    write(folder, "stream/1/model.py", STREAMING)


def classifier(folder):
    write(folder, "numbers/config.pbtxt", TO_NUMBERS)
    write(folder, "numbers/1/model.py", STEP)
    write(folder, "classes/config.pbtxt", TO_CLASSES)
    write(folder, "classes/1/none", "")
    write(folder, "classes/labels", "short\nlong\n")
    write(folder, "mood/config.pbtxt", ENSEMBLE)
    write(folder, "mood/1/none", "")
    write(folder, "mood/labels", "short\nlong\n")


def is_ready(client, model):
    """Whether the frontend knows the model. A frontend that starts does not listen yet."""
    try:
        return client.is_model_ready(model)
    except InferenceServerException:
        return False
