"""NVIDIA's binding of the C interface (`tritonserver._c`) on the server's library, case by case as its own tests use it.

Arguments: names of cases, or none for all.
"""

import concurrent.futures
import ctypes
import gc
import json
import os
import queue
import re
import sys
import tempfile
import threading

import numpy
from cases import case, raises, run
from tritonserver import _c

MODEL = b"""
import json

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        for name in ["INPUT0", "INPUT1"]:
            config.add_input({"name": name, "data_type": "TYPE_FP32", "dims": [4]})
        for name in ["OUTPUT0", "OUTPUT1"]:
            config.add_output({"name": name, "data_type": "TYPE_FP32", "dims": [4]})
        config.set_max_batch_size(0)
        config.set_dynamic_batching()
        levels = {"priority_levels": 20, "default_priority_level": 10}
        config._model_config["dynamic_batching"].update(levels)
        return config

    def initialize(self, args):
        config = json.loads(args["model_config"])
        of = pb_utils.get_output_config_by_name
        types = [pb_utils.triton_string_to_numpy(of(config, f"OUTPUT{at}")["data_type"]) for at in (0, 1)]
        self.types = types

    def execute(self, requests):
        responses = []
        for request in requests:
            one, other = [pb_utils.get_input_tensor_by_name(request, f"INPUT{at}").as_numpy() for at in (0, 1)]
            values = [one + other, one - other]
            tensors = [pb_utils.Tensor(f"OUTPUT{at}", values[at].astype(self.types[at])) for at in (0, 1)]
            responses.append(pb_utils.InferenceResponse(tensors))
        return responses
"""
MODES = _c.TRITONSERVER_ModelControlMode
LEVELS = _c.TRITONSERVER_LogLevel
FINAL = int(_c.TRITONSERVER_ResponseCompleteFlag.FINAL)


def repository():
    folder = tempfile.TemporaryDirectory()
    os.makedirs(os.path.join(folder.name, "addsub", "1"))
    with open(os.path.join(folder.name, "addsub", "1", "model.py"), "wb") as file:
        file.write(MODEL)
    return folder


def server_of(folder, mode):
    options = _c.TRITONSERVER_ServerOptions()
    options.set_model_repository_path(folder.name)
    options.set_model_control_mode(mode)
    options.set_strict_model_config(False)
    options.set_server_id("testing_server")
    options.set_exit_timeout(60)
    return _c.TRITONSERVER_Server(options)


def attributes_of(array):
    attributes = _c.TRITONSERVER_BufferAttributes()
    attributes.memory_type = _c.TRITONSERVER_MemoryType.CPU
    attributes.memory_type_id = 0
    attributes.byte_size = array.nbytes
    return attributes


def addition(server, identity="req_0"):
    """A request, and the array that its data lies in."""
    request = _c.TRITONSERVER_InferenceRequest(server, "addsub", -1)
    request.id = identity
    array = numpy.ones([4], dtype=numpy.float32)
    for name in ["INPUT0", "INPUT1"]:
        request.add_input(name, _c.TRITONSERVER_DataType.FP32, array.shape)
        request.append_input_data_with_buffer_attributes(name, array.ctypes.data, attributes_of(array))
    return request, array


def next_response(request):
    future = concurrent.futures.Future()
    request.get_next_response(future)
    return future.result(timeout=300)


def silent():
    options = _c.TRITONSERVER_ServerOptions()
    options.set_log_file("")
    for switch in [options.set_log_info, options.set_log_warn, options.set_log_error]:
        switch(False)
    options.set_log_verbose(0)
    options.set_log_format(_c.TRITONSERVER_LogFormat.DEFAULT)


@case
def numbers_have_names():
    sizes = {"BOOL": 1, "UINT8": 1, "UINT16": 2, "UINT32": 4, "UINT64": 8, "INT8": 1, "INT16": 2, "INT32": 4}
    sizes |= {"INT64": 8, "FP16": 2, "FP32": 4, "FP64": 8, "BYTES": 0, "BF16": 2}
    for name, size in sizes.items():
        datatype = getattr(_c.TRITONSERVER_DataType, name)
        assert _c.TRITONSERVER_DataTypeString(datatype) == name
        assert _c.TRITONSERVER_StringToDataType(name) == datatype
        assert _c.TRITONSERVER_DataTypeByteSize(datatype) == size
    invalid = _c.TRITONSERVER_DataType.INVALID
    assert _c.TRITONSERVER_DataTypeString(invalid) == "<invalid>"
    assert _c.TRITONSERVER_StringToDataType("<invalid>") == invalid
    for kind, of in [
        ("MemoryType", _c.TRITONSERVER_MemoryTypeString),
        ("ParameterType", _c.TRITONSERVER_ParameterTypeString),
        ("InstanceGroupKind", _c.TRITONSERVER_InstanceGroupKindString),
        ("InferenceTraceLevel", _c.TRITONSERVER_InferenceTraceLevelString),
        ("InferenceTraceActivity", _c.TRITONSERVER_InferenceTraceActivityString),
    ]:
        members = getattr(_c, f"TRITONSERVER_{kind}").__members__
        assert len(members) >= 3
        for name, value in members.items():
            assert of(value) == name, (kind, name)


@case
def objects_are_made_and_deleted():
    for value in ["text", 123, True, b"abc"]:
        for _ in range(100):
            _c.TRITONSERVER_Parameter("key", value)
    attributes = _c.TRITONSERVER_BufferAttributes()
    attributes.memory_type_id = 4
    attributes.memory_type = _c.TRITONSERVER_MemoryType.CPU_PINNED
    attributes.byte_size = 1024
    found = (attributes.memory_type_id, attributes.memory_type, attributes.byte_size)
    assert found == (4, _c.TRITONSERVER_MemoryType.CPU_PINNED, 1024)
    handle = (ctypes.c_ubyte * 64)(*range(64))
    attributes.cuda_ipc_handle = ctypes.addressof(handle)
    ctypes.memset(handle, 0xFF, 64)
    kept = (ctypes.c_ubyte * 64).from_address(attributes.cuda_ipc_handle)
    assert list(kept) in (list(range(64)), [0xFF] * 64)
    said = {"key_0": [1, 2, "3"], "key_1": {"nested_key": "nested_value"}}
    assert json.loads(_c.TRITONSERVER_Message(json.dumps(said)).serialize_to_json()) == said
    allocator = _c.TRITONSERVER_ResponseAllocator(lambda *_: (0, None, None, 0), lambda *_: None)
    del allocator
    allocator = _c.TRITONSERVER_ResponseAllocator(lambda *_: (0, None, None, 0), lambda *_: None, lambda *_: None)
    allocator.set_buffer_attributes_function(lambda *_: None)
    allocator.set_query_function(lambda *_: None)


@case
def the_log_is_in_its_file_when_a_message_was_logged():
    folder = tempfile.TemporaryDirectory()
    path = os.path.join(folder.name, "log.txt")
    try:
        options = _c.TRITONSERVER_ServerOptions()
        options.set_log_file(path)
        switches = {LEVELS.INFO: True, LEVELS.WARN: False, LEVELS.ERROR: True, LEVELS.VERBOSE: False}
        options.set_log_info(True)
        options.set_log_warn(False)
        options.set_log_error(True)
        options.set_log_verbose(0)
        options.set_log_format(_c.TRITONSERVER_LogFormat.DEFAULT)
        for line, (level, enabled) in enumerate(switches.items()):
            assert _c.TRITONSERVER_LogIsEnabled(level) == enabled
            _c.TRITONSERVER_LogMessage(level, "filename", line, f"message of {level.name}")
            text = open(path).read()
            assert bool(re.search(rf"filename:{line}\].*message of {level.name}", text)) == enabled, text
        default, iso = r"[IEW]\d{4} \d\d:\d\d:\d\d\.\d{6} ", r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ "
        assert re.search(default, text) and not re.search(iso, text), text
        options.set_log_format(_c.TRITONSERVER_LogFormat.ISO8601)
        _c.TRITONSERVER_LogMessage(LEVELS.INFO, "fn", 258, "another")
        text = open(path).read()
        assert re.search(iso + r".* fn:258\].*another", text), text
    finally:
        silent()


@case
def options_take_what_they_are_given():
    options = _c.TRITONSERVER_ServerOptions()
    options.set_server_id("server_id")
    options.set_min_supported_compute_capability(7.0)
    options.set_exit_on_error(False)
    options.set_strict_readiness(False)
    options.set_exit_timeout(30)
    options.set_model_repository_path("model_repo_0")
    options.set_model_repository_path("model_repo_1")
    for mode in [MODES.NONE, MODES.POLL, MODES.EXPLICIT]:
        options.set_model_control_mode(mode)
    options.set_startup_model("*")
    options.set_strict_model_config(True)
    options.set_model_load_thread_count(2)
    options.set_model_namespacing(True)
    kinds = _c.TRITONSERVER_InstanceGroupKind
    options.set_model_load_device_limit(kinds.GPU, 0, 0.5)
    for kind in [kinds.AUTO, kinds.CPU, kinds.MODEL]:
        with raises(_c.TritonError, "not supported"):
            options.set_model_load_device_limit(kind, 0, 0)
    options.set_backend_directory("backend_dir_0")
    options.set_backend_directory("backend_dir_1")
    options.set_backend_config("backend_name", "setting", "value")
    for mode in [_c.TRITONSERVER_RateLimitMode.OFF, _c.TRITONSERVER_RateLimitMode.EXEC_COUNT]:
        options.set_rate_limiter_mode(mode)
    options.add_rate_limiter_resource("shared_resource", 4, -1)
    options.add_rate_limiter_resource("device_resource", 1, 0)
    options.set_pinned_memory_pool_byte_size(1024)
    options.set_cuda_memory_pool_byte_size(0, 2048)
    options.set_response_cache_byte_size(4096)
    options.set_cache_config("cache_name", json.dumps({"config_0": "value_0", "config_1": "value_1"}))
    options.set_cache_directory("cache_dir_0")
    options.set_cache_directory("cache_dir_1")
    try:
        options.set_log_file(tempfile.NamedTemporaryFile().name)
        for switch in [options.set_log_info, options.set_log_warn, options.set_log_error]:
            switch(True)
        options.set_log_verbose(2)
        for form in [_c.TRITONSERVER_LogFormat.DEFAULT, _c.TRITONSERVER_LogFormat.ISO8601]:
            options.set_log_format(form)
    finally:
        silent()
    options.set_gpu_metrics(True)
    options.set_cpu_metrics(True)
    options.set_metrics_interval(5)
    options.set_metrics_config("metrics_group", "setting", "value")
    with raises(_c.TritonError, "Unsupported host policy setting"):
        options.set_host_policy("policy_name", "setting", "value")
    options.set_repo_agent_directory("repo_agent_dir_0")
    options.set_repo_agent_directory("repo_agent_dir_1")
    options.set_buffer_manager_thread_count(4)


@case
def a_server_describes_itself_and_its_models():
    folder = repository()
    server = server_of(folder, MODES.POLL)
    assert server.is_live() and server.is_ready() and server.model_is_ready("addsub", -1)
    assert server.model_batch_properties("addsub", -1) == (int(_c.TRITONSERVER_ModelBatchFlag.UNKNOWN), 0)
    one = int(_c.TRITONSERVER_ModelTxnPropertyFlag.ONE_TO_ONE)
    assert server.model_transaction_properties("addsub", -1) == (one, 0)

    def of(message):
        return json.loads(message.serialize_to_json())

    assert of(server.metadata())["name"] == "testing_server"
    assert of(server.model_metadata("addsub", -1))["name"] == "addsub"
    assert of(server.model_statistics("addsub", -1))["model_stats"][0]["name"] == "addsub"
    assert len(of(server.model_config("addsub", -1, 1))["input"]) == 2
    assert of(server.model_index(0))[0]["name"] == "addsub"
    # Metrics of the host are there from the beginning.
    text = server.metrics().formatted(_c.TRITONSERVER_MetricFormat.PROMETHEUS)
    assert "\nnv_cpu_memory_used_bytes " in text, text


@case
def a_request_is_what_was_set():
    folder = repository()
    server = server_of(folder, MODES.POLL)
    with raises(_c.NotFoundError, "unknown model"):
        _c.TRITONSERVER_InferenceRequest(server, "not_existing_model", -1)
    request = _c.TRITONSERVER_InferenceRequest(server, "addsub", -1)
    flags = _c.TRITONSERVER_RequestFlag
    request.id = "request"
    request.flags = int(flags.SEQUENCE_START) | int(flags.SEQUENCE_END)
    assert (request.id, request.flags) == ("request", 3)
    request.correlation_id = 2
    assert request.correlation_id == 2
    request.correlation_id_string = "123"
    assert request.correlation_id_string == "123"
    with raises(_c.TritonError):
        request.correlation_id
    request.priority = 19
    assert request.priority == 19
    request.priority_uint64 = 67
    assert request.priority_uint64 == 10
    request.timeout_microseconds = 222
    assert request.timeout_microseconds == 222
    request.set_string_parameter("str_key", "str_val")
    request.set_int_parameter("int_key", 567)
    request.set_bool_parameter("bool_key", False)

    array = numpy.ones([2, 3], dtype=numpy.float32)
    of_array = attributes_of(array)
    request.add_input("INPUT0", _c.TRITONSERVER_DataType.FP32, array.shape)
    with raises(_c.TritonError, "input 'INPUT2' does not exist in request"):
        request.remove_input("INPUT2")
    with raises(_c.TritonError, "raw input 'INPUT1' can't be added to request with other inputs"):
        request.add_raw_input("INPUT1")
    request.remove_input("INPUT0")
    request.add_raw_input("INPUT1")
    request.remove_all_inputs()
    data = ["INPUT0", array.ctypes.data, array.nbytes, of_array.memory_type, 0]
    for refused in [
        lambda: request.append_input_data(*data),
        lambda: request.append_input_data_with_host_policy(*data, "host_policy_name"),
        lambda: request.append_input_data_with_buffer_attributes("INPUT0", array.ctypes.data, of_array),
        lambda: request.remove_all_input_data("INPUT0"),
    ]:
        with raises(_c.TritonError, "input 'INPUT0' does not exist in request"):
            refused()
    request.add_input("INPUT0", _c.TRITONSERVER_DataType.FP32, array.shape)
    request.append_input_data(*data)
    request.remove_all_input_data("INPUT0")
    request.add_requested_output("OUTPUT0")
    request.remove_requested_output("OUTPUT1")
    request.remove_all_requested_outputs()


@case
def a_request_is_answered():
    folder = repository()
    server = server_of(folder, MODES.POLL)
    request, array = addition(server)
    server.infer_async(request)
    response, flags = next_response(request)
    assert flags == FINAL
    response.throw_if_response_error()
    assert (response.model, response.id, response.parameter_count) == (("addsub", 1), "req_0", 0)
    with raises(_c.TritonError, "out of bounds index 0"):
        response.parameter(0)
    assert response.output_count == 2
    for at, expected in enumerate([array + array, array - array]):
        name, datatype, shape, buffer, byte_size, memory_type, memory_type_id = response.output(at)
        assert (name, datatype) == (f"OUTPUT{at}", _c.TRITONSERVER_DataType.FP32)
        assert list(shape) == [4] and byte_size == 16
        assert (memory_type, memory_type_id) == (_c.TRITONSERVER_MemoryType.CPU, 0)
        assert numpy.array_equal(numpy.frombuffer(ctypes.string_at(buffer, byte_size), numpy.float32), expected)
    assert response.output_classification_label(0, 1) == ""
    del response


@case
def errors_of_responses_are_thrown_as_often_as_asked():
    folder = repository()
    with open(os.path.join(folder.name, "addsub", "1", "model.py"), "ab") as file:
        file.write(b"\n\nTritonPythonModel.execute = lambda self, requests: 1 / 0\n")
    server = server_of(folder, MODES.POLL)
    for _ in range(20):
        request, _array = addition(server)
        server.infer_async(request)
        response, flags = next_response(request)
        for _ in range(3):
            with raises(_c.TritonError, "ZeroDivisionError"):
                response.throw_if_response_error()
        assert flags == FINAL
        del response, request


@case
def a_trace_follows_its_request():
    folder = repository()
    seen, released = [], queue.Queue()

    def of(trace):
        return (trace.id, trace.parent_id, trace.model_name, trace.model_version, trace.request_id)

    def timestamp(trace, activity, timestamp_ns, userp):
        seen.append((of(trace), activity.name, timestamp_ns > 0))

    def tensor(trace, activity, name, datatype, buffer, byte_size, shape, memory_type, memory_type_id, userp):
        place = (datatype.name, byte_size, list(shape), memory_type.name, memory_type_id)
        seen.append((of(trace), activity.name, (name, *place)))

    levels = _c.TRITONSERVER_InferenceTraceLevel
    level = int(levels.TIMESTAMPS) | int(levels.TENSORS)
    trace = _c.TRITONSERVER_InferenceTrace(level, 123, timestamp, tensor, lambda *_: released.put(1), seen)
    number = trace.id
    server = server_of(folder, MODES.POLL)
    request, _array = addition(server)
    server.infer_async(request, trace)
    response, flags = next_response(request)
    assert flags == FINAL
    del response
    gc.collect()
    released.get(timeout=300)
    assert {whose for whose, _, _ in seen} == {(number, 123, "addsub", 1, "req_0")}, seen
    times = ["REQUEST_START", "QUEUE_START", "COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START"]
    times += ["COMPUTE_END", "REQUEST_END"]
    assert sorted(activity for _, activity, what in seen if what is True) == sorted(times), seen
    place = ("FP32", 16, [4], "CPU", 0)
    tensors = sorted((activity, what) for _, activity, what in seen if what is not True)
    expected = [("TENSOR_BACKEND_OUTPUT", (f"OUTPUT{at}", *place)) for at in (0, 1)]
    expected += [("TENSOR_QUEUE_INPUT", (f"INPUT{at}", *place)) for at in (0, 1)]
    assert tensors == expected, tensors


@case
def models_come_and_go():
    folder = repository()
    server = server_of(folder, MODES.EXPLICIT)
    brought = [_c.TRITONSERVER_Parameter("config", "{}"), _c.TRITONSERVER_Parameter("file:1/model.py", MODEL)]
    server.load_model_with_parameters("wired_addsub", brought)
    assert server.model_is_ready("wired_addsub", -1)
    assert not server.model_is_ready("addsub", -1)
    server.unregister_model_repository(folder.name)
    with raises(_c.TritonError, "failed to load 'addsub', failed to poll from model repository"):
        server.load_model("addsub")
    server.register_model_repository(folder.name, [])
    server.load_model("addsub")
    assert server.model_is_ready("addsub", -1)
    server.unload_model("wired_addsub")
    assert not server.model_is_ready("wired_addsub", -1)
    server.unload_model_and_dependents("addsub")
    assert not server.model_is_ready("addsub", -1)


@case
def metrics_of_a_program_are_on_the_page():
    folder = tempfile.TemporaryDirectory()
    server = server_of(folder, MODES.EXPLICIT)
    family = _c.TRITONSERVER_MetricFamily(_c.TRITONSERVER_MetricKind.COUNTER, "custom_family", "what it counts")
    metric = _c.TRITONSERVER_Metric(family, [])
    metric.increment(2)
    assert (metric.kind, metric.value) == (_c.TRITONSERVER_MetricKind.COUNTER, 2)
    with raises(_c.TritonError):
        metric.set_value(5)
    text = server.metrics().formatted(_c.TRITONSERVER_MetricFormat.PROMETHEUS)
    assert "\ncustom_family 2" in text, text
    del metric, family
    gc.collect()
    assert "custom_family" not in server.metrics().formatted(_c.TRITONSERVER_MetricFormat.PROMETHEUS)


@case
def families_of_one_name_are_one():
    folder = tempfile.TemporaryDirectory()
    server = server_of(folder, MODES.EXPLICIT)

    def page():
        return server.metrics().formatted(_c.TRITONSERVER_MetricFormat.PROMETHEUS)

    def family(description):
        return _c.TRITONSERVER_MetricFamily(_c.TRITONSERVER_MetricKind.COUNTER, "shared_family", description)

    first, second = family("first description"), family("second description")
    # Nothing is shown of a family without metrics.
    assert "shared_family" not in page()
    labels = [[_c.TRITONSERVER_Parameter("key", value)] for value in ["one", "two"]]
    one, same = _c.TRITONSERVER_Metric(first, labels[0]), _c.TRITONSERVER_Metric(second, labels[0])
    two = _c.TRITONSERVER_Metric(second, labels[1])
    one.increment(7.5)
    assert (one.value, same.value, two.value) == (7.5, 7.5, 0)
    text = page()
    assert text.count("# HELP shared_family first description") == 1 and "second description" not in text, text
    assert '\nshared_family{key="one"} 7.5\n' in text and '\nshared_family{key="two"} 0\n' in text, text
    del one, first
    assert '\nshared_family{key="one"} 7.5\n' in page()
    del same
    assert 'key="one"' not in page() and 'key="two"' in page()
    del two, second
    gc.collect()
    assert "shared_family" not in page()


@case
def a_function_gets_the_log_of_a_server():
    records, folder = [], tempfile.TemporaryDirectory()
    options = _c.TRITONSERVER_ServerOptions()
    options.set_model_repository_path(folder.name)
    options.set_model_control_mode(MODES.EXPLICIT)
    options.set_log_info(True)
    options.set_log_error(True)
    options.set_log_callback(lambda *record: records.append(record))
    server = _c.TRITONSERVER_Server(options)
    assert records, "the server said nothing of its start"
    _c.TRITONSERVER_LogMessage(LEVELS.ERROR, "some/model.cc", 42, "a record")
    level, filename, line, timestamp_us, message = records[-1]
    assert (level, filename, line, message) == (LEVELS.ERROR, "model.cc", 42, "a record")
    assert timestamp_us > 1_700_000_000_000_000
    del server
    gc.collect()

    # An exception of the function is Python's to report; whoever logs goes on.
    unraisable = []
    sys.unraisablehook = lambda given: unraisable.append(given.exc_type)

    def throws(*record):
        raise RuntimeError("boom")

    options.set_log_callback(throws)
    server = _c.TRITONSERVER_Server(options)
    threads = [
        threading.Thread(target=_c.TRITONSERVER_LogMessage, args=(LEVELS.ERROR, "x.cc", 1, "thrown at")) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    del server
    gc.collect()
    assert unraisable and set(unraisable) == {RuntimeError}, unraisable

    # A server whose options hold none takes it away.
    options.set_log_callback(None)
    server, count = _c.TRITONSERVER_Server(options), len(records)
    options.set_log_file(os.path.join(folder.name, "log.txt"))
    _c.TRITONSERVER_LogMessage(LEVELS.ERROR, "x.cc", 1, "to the file")
    assert len(records) == count and "to the file" in open(os.path.join(folder.name, "log.txt")).read()
    del server
    silent()


if __name__ == "__main__":
    run(sys.argv[1:])
