"""Every class, method, option and number of the packages: that it is there, typed, and has a case that uses it.

For the package of the wheel. Arguments: names of cases, or none for all.
"""

import dataclasses
import inspect
import pathlib
import random
import re
import sys
import threading

import numpy
import tritonfrontend
import tritonserver
from api_support import WORDS, repository, silence, started, write
from cases import case, raises, run
from tritonserver import _c
from tritonserver._api import _allocators, _datautils, _dlpack, _logging, _model, _request, _response, _server, _tensor

# The values of each enumeration in their order; 0 is the first, unless a pair begins with another.
NUMBERS = {
    "DataType": "INVALID BOOL UINT8 UINT16 UINT32 UINT64 INT8 INT16 INT32 INT64 FP16 FP32 FP64 BYTES BF16",
    "MemoryType": "CPU CPU_PINNED GPU",
    "ParameterType": "STRING INT BOOL DOUBLE BYTES",
    "InstanceGroupKind": "AUTO CPU GPU MODEL",
    "LogLevel": "INFO WARN ERROR VERBOSE",
    "LogFormat": "DEFAULT ISO8601",
    "MetricFormat": "PROMETHEUS",
    "MetricKind": "COUNTER GAUGE HISTOGRAM",
    "InferenceTraceLevel": "DISABLED=0 MIN=1 MAX=2 TIMESTAMPS=4 TENSORS=8",
    "InferenceTraceActivity": "REQUEST_START QUEUE_START COMPUTE_START COMPUTE_INPUT_END COMPUTE_OUTPUT_START "
    "COMPUTE_END REQUEST_END TENSOR_QUEUE_INPUT TENSOR_BACKEND_INPUT TENSOR_BACKEND_OUTPUT CUSTOM_ACTIVITY",
    "RequestFlag": "SEQUENCE_START=1 SEQUENCE_END=2",
    "RequestReleaseFlag": "ALL=1",
    "ResponseCompleteFlag": "FINAL=1",
    "ModelControlMode": "NONE POLL EXPLICIT",
    "RateLimitMode": "OFF EXEC_COUNT",
    "ModelBatchFlag": "UNKNOWN=1 FIRST_DIM=2",
    "ModelIndexFlag": "READY=1",
    "ModelTxnPropertyFlag": "ONE_TO_ONE=1 DECOUPLED=2",
}
# Enumerations whose members are names of the module as well.
AT_MODULE = "InferenceTraceLevel InferenceTraceActivity RequestFlag RequestReleaseFlag ResponseCompleteFlag "
AT_MODULE += "ModelBatchFlag ModelIndexFlag ModelTxnPropertyFlag"

# What programs import that is not in the packages themselves.
PRIVATE = [
    (_server, "ModelLoadDeviceLimit LogLevel"),
    (_logging, "LogMessage"),
    (_datautils, "parse_device_or_memory_type"),
    (_tensor.Tensor, "_from_object _from_converters"),
    (_server.Server, "_ptr"),
    (_server.Options, "_create_tritonserver_server_options"),
]

GATE = """
import os
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.folder = args["model_repository"]

    def execute(self, requests):
        open(os.path.join(self.folder, "entered"), "w").close()
        while not os.path.exists(os.path.join(self.folder, "go")):
            time.sleep(0.01)
        tensors = [pb_utils.get_input_tensor_by_name(request, "IN").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", tensor)]) for tensor in tensors]
"""


def sources():
    """The text of all cases, without the tables above."""
    folder = pathlib.Path(__file__).parent
    files = [*folder.glob("api_*.py"), *folder.glob("frontend_*.py"), folder / "bindings.py", folder / "in_process.py"]
    return "\n".join(file.read_text().split("def sources", 1)[-1] for file in files)


def public(kind):
    """The members of a class that programs use."""
    names = {name for of in kind.__mro__[:-1] if of.__module__.startswith("triton") for name in vars(of)}
    if dataclasses.is_dataclass(kind):
        names |= {field.name for field in dataclasses.fields(kind)}
    return {name for name in names if not name.startswith("_")}


@case
def every_member_has_a_case():
    text = sources()
    kinds = [_server.Server, _server.Options, _server.ModelDictionary, _server.RateLimiterResource, _model.Model]
    kinds += [_request.InferenceRequest, _response.InferenceResponse, _response.ResponseIterator]
    kinds += [_response.AsyncResponseIterator, _tensor.Tensor, _allocators.MemoryBuffer, _dlpack.DLDeviceType]
    kinds += [tritonfrontend.KServeHttp, tritonfrontend.KServeGrpc, tritonfrontend.Metrics]
    kinds += [kind.Options for kind in kinds[-3:]]
    kinds += [tritonfrontend.Feature, tritonfrontend.FeatureGroup, tritonfrontend.RestrictedFeatures]
    wanted = set().union(*(public(kind) for kind in kinds))
    wanted |= {name for name in dir(tritonserver) if name[0].isupper()}
    # What only the packages themselves use is left out.
    native = {name: value for name, value in vars(_c._native).items() if name in vars(_c.triton_bindings)}
    wanted |= {name for name in native if not name.startswith("_")}
    for kind in [value for value in native.values() if inspect.isclass(value)]:
        wanted |= {name for name in vars(kind) if not name.startswith("_")}
    missing = {name for name in wanted if not re.search(rf"\b{re.escape(name)}\b", text)}
    assert not missing, sorted(missing)
    for owner, names in PRIVATE:
        for name in names.split():
            assert hasattr(owner, name) and re.search(rf"\b{name}\b", text), name


@case
def numbers_have_their_values():
    for name, members in NUMBERS.items():
        kind = getattr(_c, f"TRITONSERVER_{name}")
        expected = {}
        for at, member in enumerate(members.split()):
            of, _, value = member.partition("=")
            expected[of] = int(value or at)
        assert {of: int(member) for of, member in kind.__members__.items()} == expected, name
        for of, value in expected.items():
            member = kind(value)
            assert member is getattr(kind, of) and member == value and hash(member) == value and member.value == value
            assert str(member) == f"TRITONSERVER_{name}.{of}" and repr(member) == f"<TRITONSERVER_{name}.{of}: {value}>"
            if name in AT_MODULE.split():
                assert getattr(_c.triton_bindings, of) is member and getattr(_c, of) is member
        with raises(ValueError):
            kind(77)
    names = {name for name in vars(_c.triton_bindings) if not name.startswith("_")}
    assert not [name for name in names if getattr(_c, name, None) is not getattr(_c.triton_bindings, name)]
    devices = "kDLCPU 1 kDLCUDA 2 kDLCUDAHost 3 kDLOpenCL 4 kDLVulkan 7 kDLMetal 8 kDLVPI 9 kDLROCM 10 kDLROCMHost 11"
    devices += " kDLExtDev 12 kDLCUDAManaged 13 kDLOneAPI 14 kDLWebGPU 15 kDLHexagon 16"
    pairs = devices.split()
    for name, value in zip(pairs[::2], pairs[1::2]):
        assert getattr(tritonserver.DLDeviceType, name) == int(value)
    assert tritonserver.DLDeviceType(2) == tritonserver.DLDeviceType.kDLCUDA


@case
def signatures_are_tritons():
    def names(function):
        return [name for name in inspect.signature(function).parameters if name != "self"]

    options = [field.name for field in dataclasses.fields(tritonserver.Options)]
    first = """model_repository server_id model_control_mode startup_models strict_model_config rate_limiter_mode
        rate_limiter_resources pinned_memory_pool_size cuda_memory_pool_sizes cache_config cache_directory
        min_supported_compute_capability exit_on_error strict_readiness exit_timeout buffer_manager_thread_count
        model_load_thread_count model_load_retry_count model_namespacing enable_peer_access log_file log_info log_warn
        log_error log_format log_verbose metrics gpu_metrics cpu_metrics metrics_interval backend_directory
        repo_agent_directory model_load_device_limits backend_configuration host_policies metrics_configuration"""
    assert options == [*first.split(), "log_callback"], options
    with raises(AttributeError):
        tritonserver.Options([]).no_such_option = 1
    fields = [field.name for field in dataclasses.fields(tritonserver.InferenceRequest)]
    assert fields == ["model", "request_id", "flags", "correlation_id", "priority", "timeout", "inputs", "parameters",
                      "output_memory_type", "response_queue"]
    fields = [field.name for field in dataclasses.fields(tritonserver.InferenceResponse)]
    assert fields == ["model", "request_id", "parameters", "outputs", "error", "classification_label", "final"]
    fields = [field.name for field in dataclasses.fields(tritonserver.MemoryBuffer)]
    assert fields == ["data_ptr", "memory_type", "memory_type_id", "size", "owner"]
    fields = [field.name for field in dataclasses.fields(tritonserver.Tensor)]
    assert fields == ["data_type", "shape", "memory_buffer"]
    server, model = tritonserver.Server, tritonserver.Model
    assert names(server.start) == ["wait_until_ready", "polling_interval", "timeout"]
    assert names(server.unload) == ["model", "unload_dependents", "wait_until_unloaded", "polling_interval", "timeout"]
    assert names(server.load) == ["model_name", "parameters"] and names(server.models) == ["exclude_not_ready"]
    assert names(server.register_model_repository) == ["path", "name_mapping"]
    assert names(model.__init__) == ["server", "name", "version", "state", "reason"]
    for call in [model.infer, model.async_infer]:
        assert names(call) == ["inference_request", "raise_on_error", "kwargs"]
    assert names(model.config) == ["config_version"] and names(tritonserver.Metric) == ["family", "labels"]
    assert names(_logging.LogMessage) == ["level", "message"]
    for kind in [tritonfrontend.KServeHttp, tritonfrontend.KServeGrpc, tritonfrontend.Metrics]:
        assert names(kind) == ["server", "options"] and inspect.signature(kind).parameters["options"].default is None


@case
def all_code_is_typed():
    """Each function of the packages has types for its arguments and its result."""
    import ast

    for package in [tritonserver, tritonfrontend]:
        folder = pathlib.Path(package.__file__).parent
        assert (folder / "py.typed").is_file()
        for file in folder.rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    continue
                given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                untyped = [one.arg for one in given if one.annotation is None and one.arg not in ("self", "cls")]
                assert not untyped, (file, node.name, untyped)
                assert node.returns is not None or node.name == "__init__", (file, node.name)


@case
def setters_refuse_what_they_do_not_take():
    options = _c.TRITONSERVER_ServerOptions()
    options.set_model_load_retry_count(2)
    options.set_enable_peer_access(True)
    options.set_metrics(False)
    options.set_host_policy("policy", "numa-node", "0")
    kinds = {bool: [None, "yes"], int: ["1", None, 1.5], str: [1, None, b"x"]}
    takes = {str: "server_id model_repository_path startup_model cache_directory log_file backend_directory "
             "repo_agent_directory", bool: "strict_model_config exit_on_error strict_readiness model_namespacing "
             "enable_peer_access log_info log_warn log_error metrics gpu_metrics cpu_metrics", int:
             "pinned_memory_pool_byte_size response_cache_byte_size exit_timeout buffer_manager_thread_count "
             "model_load_thread_count model_load_retry_count log_verbose metrics_interval"}
    for kind, names in takes.items():
        for name in names.split():
            for wrong in kinds[kind]:
                with raises(TypeError):
                    getattr(options, f"set_{name}")(wrong)
    for name in ["pinned_memory_pool_byte_size", "exit_timeout", "metrics_interval"]:
        for wrong in [-1, 1 << 70]:
            with raises(OverflowError):
                getattr(options, f"set_{name}")(wrong)
    with raises(ValueError, "NUL"):
        options.set_server_id("a\0b")
    for name in ["model_control_mode", "rate_limiter_mode", "log_format"]:
        with raises(TypeError, "TRITONSERVER_"):
            getattr(options, f"set_{name}")(0)


@case
def converters_can_be_added():
    class Own:
        values = [1.0, 2.0]

    with raises(tritonserver.InvalidArgumentError, "Must be one of"):
        tritonserver.Tensor._from_object(Own())
    tritonserver.Tensor._from_converters[Own] = lambda own: tritonserver.Tensor._from_object(own.values)
    assert list(numpy.from_dlpack(tritonserver.Tensor._from_object(Own()))) == [1.0, 2.0]
    del tritonserver.Tensor._from_converters[Own]
    server = started(repository(), "words")
    request = _c.TRITONSERVER_InferenceRequest(server._server, "words", -1)
    request.set_double_parameter("double", 0.5)
    for wrong in [lambda: request.set_double_parameter("double", "0.5"), lambda: request.set_bool_parameter("b", 2)]:
        with raises(TypeError):
            wrong()
    assert type(server._server.metrics()) is _c.TRITONSERVER_Metrics
    server.stop()


@case
def no_wrong_call_ends_the_process():
    """Calls with arguments of any kind: each returns or raises. Those that take an address believe it, and are left
    out; so are those that wait, and those that open a port."""
    server = started(repository(), "echo")
    native, choice = _c._native, random.Random(7).choice
    left_out = "dlpack_export append_input_data append_input_data_with_host_policy _add_tensor cuda_ipc_handle "
    left_out += "append_input_data_with_buffer_attributes set_log_file stop start _next get_next_response"
    left_out = set(left_out.split())
    given = [None, -1, 0, 1, 1 << 31, 1 << 63, 1 << 70, 1.5, float("nan"), "", "echo", "INPUT0", "a\0b", b"x"]
    given += ["ä" * 1000, True, [], [1, 2], [-1], (), {}, object(), lambda *_: None, server._server._ptr()]
    given += [_c.TRITONSERVER_DataType.FP32, _c.TRITONSERVER_MemoryType.CPU, _c.TRITONSERVER_MetricKind.GAUGE]
    made = [server._server, server._server.metrics(), _c.TRITONSERVER_ServerOptions(), _c.TRITONSERVER_Message("{}")]
    made += [_c.TRITONSERVER_InferenceRequest(server._server, "echo", -1), _c.TRITONSERVER_Parameter("a", 1)]
    made += [native.Frontend(kind, server._ptr()) for kind in range(3)]
    of_module = [value for name, value in vars(native).items() if callable(value) and name not in left_out]
    classes = [value for value in of_module if inspect.isclass(value) and not issubclass(value, BaseException)]
    functions = [value for value in of_module if not inspect.isclass(value)]
    refusals = (tritonserver.TritonError, TypeError, ValueError, ArithmeticError, AttributeError, RuntimeError)
    refusals += (BufferError,)
    returned = 0
    for _ in range(4000):
        arguments = [choice(given + made[-20:]) for _ in range(choice(range(6)))]
        try:
            if choice([True, False]):
                made.append(choice(classes)(*arguments))
            else:
                one = choice(made)
                names = [name for name in dir(one) if not name.startswith("__") and name not in left_out]
                member = getattr(one, choice(names)) if names else choice(functions)
                if callable(member):
                    member(*arguments)
            returned += 1
        except refusals:
            pass
    assert returned > 100
    silence()
    assert list(server.model("echo").infer(inputs={"INPUT0": numpy.ones([1, 1], numpy.float32)}))
    server.stop()


@case
def inputs_are_read_in_place():
    """A request copies no byte of an input that is an array: what the array has when the model reads it is what the
    model gets. Outputs are in the memory of the response, which arrays share."""
    folder = repository()
    config = WORDS.replace("TYPE_STRING", "TYPE_INT64").replace("WORDS", "IN", 1).replace("WORDS", "OUT", 1)
    write(folder, "gate/config.pbtxt", config % "")
    write(folder, "gate/1/model.py", GATE)
    server = started(folder, "gate")
    model = server.model("gate")
    first = model.infer(inputs={"IN": numpy.zeros(1, numpy.int64)})
    entered = pathlib.Path(folder.name, "gate", "entered")
    while not entered.exists():
        threading.Event().wait(0.01)
    # The model is at the first one; this one waits.
    values = numpy.zeros(1_000_000, numpy.int64)
    iterator = model.infer(inputs={"IN": values})
    values[:] = 7
    write(folder, "gate/go", "")
    (response,) = iterator
    output = response.outputs["OUT"]
    array = numpy.from_dlpack(output)
    assert array.ctypes.data == output.data_ptr == output.memory_buffer.data_ptr and (array == 7).all(), array
    list(first)
    server.stop()


if __name__ == "__main__":
    run(sys.argv[1:])
