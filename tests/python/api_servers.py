"""Servers, their options, and their models.

For the package of the wheel. Arguments: names of cases, or none for all.
"""

import json
import os
import pathlib
import sys
import tempfile
import threading
import time

import numpy
import tritonserver
from api_support import ECHO, MODEL, WORDS, write, repository, script, started, silence, text_of
from cases import case, raises, run
from tritonserver._api._logging import LogMessage


@case
def options_are_checked_when_a_server_starts():
    with raises(TypeError):
        tritonserver.Server(unknown=1)
    with raises(AttributeError):
        tritonserver.Options().unknown = 1
    for wrong, kind, part in [
        ({"server_id": 1}, TypeError, ""),
        ({"model_repository": None}, tritonserver.InvalidArgumentError, "Model repository must be specified."),
        ({"model_repository": "/nowhere"}, tritonserver.InternalError, ""),
        ({"server_id": "a\0b"}, ValueError, "NUL"),
    ]:
        server = tritonserver.Server(**wrong)
        with raises(kind, part):
            server.start()
        with raises(tritonserver.InvalidArgumentError, "Server not started"):
            server.ready()
    limit = tritonserver._api._server.ModelLoadDeviceLimit(tritonserver.InstanceGroupKind.CPU, 0, 0.5)
    with raises(tritonserver.TritonError, "not supported"):
        tritonserver.Server(model_load_device_limits=[limit]).start()
    with raises(tritonserver.TritonError, "Unsupported host policy setting"):
        tritonserver.Server(host_policies={"a": {"b": "c"}}).start()


@case
def every_option_reaches_the_server():
    folder = repository()
    server = started(
        folder,
        "echo",
        server_id="named",
        rate_limiter_mode=tritonserver.RateLimitMode.EXEC_COUNT,
        rate_limiter_resources=[tritonserver.RateLimiterResource("thing", 4, -1)],
        pinned_memory_pool_size=1 << 20,
        cuda_memory_pool_sizes={0: 1 << 20},
        cache_config={"local": {"size": "1048576"}},
        cache_directory=folder.name,
        min_supported_compute_capability=7.0,
        exit_on_error=False,
        strict_readiness=False,
        buffer_manager_thread_count=1,
        model_load_thread_count=2,
        model_load_retry_count=1,
        enable_peer_access=False,
        log_file=os.path.join(folder.name, "log"),
        log_verbose=1,
        log_format=tritonserver.LogFormat.ISO8601,
        metrics=True,
        gpu_metrics=False,
        cpu_metrics=True,
        metrics_interval=100,
        backend_directory=folder.name,
        repo_agent_directory=folder.name,
        model_load_device_limits=[
            tritonserver._api._server.ModelLoadDeviceLimit(tritonserver.InstanceGroupKind.GPU, 0, 0.9)
        ],
        backend_configuration={"python": {"grpc-timeout-milliseconds": "2000"}},
        host_policies={"gpu_0": {"numa-node": "0"}},
        metrics_configuration={"": {"summary_latencies": "false"}},
    )
    assert server.options.log_info and server.options.log_warn and server.options.log_error
    # The log is written by a thread of its own; what was logged before a message of the program is there behind it.
    LogMessage(tritonserver._api._server.LogLevel.INFO, "now")
    text = pathlib.Path(folder.name, "log").read_text()
    for part in ["| named", "MODE_EXPLICIT", "| 1048576", "EXEC_COUNT", "cache_enabled                    | 1"]:
        assert part in text, (part, text)
    assert server.metadata()["name"] == "named"
    server.stop()
    silence()


@case
def a_server_starts_and_stops():
    folder = repository()
    server = tritonserver.Server(tritonserver.Options(folder.name, "by options"), server_id="ignored")
    assert server.options.server_id == "by options" and server.options.model_repository == folder.name
    for call in ["ready", "live", "metadata", "models", "metrics", "stop", "_ptr", "poll_model_repository"]:
        with raises(tritonserver.InvalidArgumentError, "Server not started"):
            getattr(server, call)()
    with raises(tritonserver.InvalidArgumentError, "Server not started"):
        server.model("echo")
    server.options.model_control_mode = tritonserver.ModelControlMode.EXPLICIT
    assert server.start(wait_until_ready=True) is server
    with raises(tritonserver.InvalidArgumentError, "Server already started"):
        server.start()
    assert server.live() and server.ready() and server._ptr() > 0
    assert server.options.model_repository == [folder.name]
    assert "nv_" in server.metrics() and server.metadata()["name"] == "by options"
    with raises(tritonserver.UnavailableError):
        server.poll_model_repository()
    for _ in range(2):
        server.stop()
        with raises(tritonserver.InvalidArgumentError, "Server not started"):
            server.stop()
        server.start()
    server.stop()


@case
def a_server_that_is_not_ready_in_time_says_so():
    folder = repository()
    write(folder, "words/1/model.py", "raise RuntimeError('never loads')")
    options = {"model_control_mode": tritonserver.ModelControlMode.EXPLICIT, "startup_models": ["words"]}
    server = tritonserver.Server(model_repository=folder.name, exit_on_error=False, **options)
    with raises(tritonserver.UnavailableError, "Timeout before ready"):
        server.start(wait_until_ready=True, timeout=0.05, polling_interval=0.01)
    assert server.live() and not server.ready()
    server.stop()
    with raises(tritonserver.TritonError):
        tritonserver.Server(model_repository=folder.name, **options).start()


@case
def models_are_found_loaded_and_unloaded():
    folder = repository()
    server = started(folder)
    assert list(server.models(exclude_not_ready=True)) == []
    assert {name for name, _ in server.models()} == {"echo", "stream", "words"}
    assert not server.model("echo").ready() and not server.model("nobody").ready()
    model = server.load("echo")
    assert model.ready() and (model.name, model.version) == ("echo", -1)
    assert str(model) == repr(model) == "{'name': 'echo', 'version': -1, 'state': None}"
    models = server.models(exclude_not_ready=True)
    assert list(models) == [("echo", 1)] and models[("echo", 1)].state == "READY"
    assert models["echo"].version == -1
    for key in ["nobody", ("echo", 7), 3]:
        with raises(KeyError, "Unknown Model"):
            models[key]
    assert model.batch_properties() is tritonserver.ModelBatchFlag.UNKNOWN
    assert model.transaction_properties() is tritonserver.ModelTxnPropertyFlag.ONE_TO_ONE
    assert model.config()["name"] == "echo" and model.statistics()["model_stats"][0]["name"] == "echo"
    assert {tensor["name"] for tensor in model.metadata()["inputs"]} == {"INPUT0", "INPUT1", "INPUT2"}
    assert set(vars(model)) == {"_server", "name", "version", "state", "reason"}
    with raises(tritonserver.TritonError, "never loads"):
        server.load("words", {"file:1/model.py": b"raise RuntimeError('never loads')", "config": "{}"})
    assert server.load("words", {"config": json.dumps({"backend": "python"})}).ready()
    server.unload("words", unload_dependents=True, wait_until_unloaded=True)
    server.unload(model, wait_until_unloaded=True, timeout=300)
    assert list(server.models(exclude_not_ready=True)) == []
    other = tempfile.TemporaryDirectory()
    write(other, "folder/config.pbtxt", ECHO)
    write(other, "folder/labels", "one\n")
    write(other, "folder/1/none", "")
    server.register_model_repository(other.name, {"folder": "served"})
    assert server.load("served").ready()
    server.unregister_model_repository(other.name)
    with raises(tritonserver.TritonError):
        server.register_model_repository("/nowhere")
    server.stop()
    plain = tritonserver.Server(model_repository=other.name).start()
    with raises(tritonserver.UnavailableError):
        plain.load("folder")
    plain.stop()


@case
def models_in_python_run_with_this_interpreter():
    folder = repository()
    write(folder, "words/1/model.py", """
import os
import sys

import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        found = [sys.prefix, sys.version, str(os.getpid())]
        tensors = [pb_utils.Tensor("WORDS", numpy.array(found, dtype=numpy.object_)) for _ in requests]
        return [pb_utils.InferenceResponse([tensor]) for tensor in tensors]
""")
    server = started(folder, "words")
    (response,) = server.model("words").infer(inputs={"WORDS": ["x"]})
    prefix, version, process = text_of(response)
    assert (prefix, version) == (sys.prefix, sys.version), (prefix, version)
    assert int(process) != os.getpid()
    server.stop()


@case
def two_servers_live_in_one_process():
    folder = repository()
    first, second = started(folder, "echo", server_id="first"), started(folder, "echo", server_id="second")
    values = numpy.ones([1, 4], numpy.float32)
    for server in [first, second]:
        list(server.model("echo").infer(inputs={"INPUT0": values}))
    assert (first.metadata()["name"], second.metadata()["name"]) == ("first", "second")
    first.stop()
    (response,) = second.model("echo").infer(inputs={"INPUT0": values})
    assert numpy.array_equal(numpy.from_dlpack(response.outputs["OUTPUT0"]), values)
    second.stop()


@case
def waiting_calls_let_other_threads_run():
    folder = repository()
    write(folder, "words/wait", "")
    server = started(folder)
    failed = []

    def load():
        try:
            server.load("words")
        except Exception as error:
            failed.append(error)

    loading = threading.Thread(target=load)
    loading.start()
    # Had the load the interpreter's lock, this thread would never get here.
    while not pathlib.Path(folder.name, "words/waiting").exists():
        assert not failed, failed
        assert server.live()
        time.sleep(0.01)
    os.remove(os.path.join(folder.name, "words/wait"))
    loading.join()
    assert not failed and server.model("words").ready()
    server.stop()


FORKING = """
import ctypes, time, tritonserver
inside, overlapped = [], []
def prepare():
    overlapped.extend(inside)
    inside.append(1)
    time.sleep(0.02)
def parent():
    inside.pop()
kind = ctypes.CFUNCTYPE(None)
handlers = [kind(prepare), kind(parent)]
ctypes.CDLL(None).__register_atfork(*handlers, None, None)
server = tritonserver.Server(model_repository=FOLDER, model_load_thread_count=6).start(wait_until_ready=True)
assert len(server.models(exclude_not_ready=True)) == 6
server.stop()
print("overlapped", len(overlapped))
"""


@case
def processes_of_models_are_started_one_at_a_time():
    """Handlers of fork that other libraries register, such as those of gRPC, may not bear two at a time."""
    folder = tempfile.TemporaryDirectory()
    for index in range(6):
        write(folder, f"words{index}/config.pbtxt", WORDS % "")
        write(folder, f"words{index}/1/model.py", MODEL)
    code, out = script(FORKING.replace("FOLDER", repr(folder.name)))
    assert code == 0 and "overlapped 0" in out, out


if __name__ == "__main__":
    run(sys.argv[1:])
