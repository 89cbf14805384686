"""The package itself: files, names, numbers, stubs, metrics, the log, and what processes do to it.

For the package of the wheel. Arguments: names of cases, or none for all.
"""

import gc
import importlib.metadata
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading

import numpy
import tritonserver
from api_support import WORDS, write, repository, started, script, silence
from cases import case, raises, run
from tritonserver import _c
from tritonserver._api._logging import LogMessage

LIVING = """
import sys, tempfile, os, numpy, tritonserver
folder = tempfile.mkdtemp()
os.makedirs(folder + "/echo/1")
open(folder + "/echo/config.pbtxt", "w").write('backend: "identity" input { name: "INPUT0" data_type: TYPE_INT64 dims: -1 } '
    'output { name: "OUTPUT0" data_type: TYPE_INT64 dims: -1 }')
server = tritonserver.Server(model_repository=folder, exit_timeout=60).start(wait_until_ready=True)
model = server.model("echo")
(response,) = model.infer(inputs={"INPUT0": numpy.arange(3)})
"""
# It sends until the server refuses it.
ENDLESS = """
import threading
def go():
    try:
        while True:
            model.infer(inputs={"INPUT0": numpy.arange(9)})
    except tritonserver.TritonError:
        pass
threading.Thread(target=go, daemon=True).start()
"""


@case
def the_package_is_what_it_says():
    folder = pathlib.Path(tritonserver.__file__).parent
    assert tritonserver.__version__ == importlib.metadata.version("tritonserver")
    assert importlib.metadata.version("nereid")
    assert importlib.metadata.version("tritonfrontend") == tritonserver.__version__
    for name in ["py.typed", "_c/_native.pyi", "libtritonserver.so", "include/triton/core/tritonserver.h"]:
        assert (folder / name).is_file(), name
    names = {}
    exec("from tritonserver import *", names)
    assert set(names) == {"__builtins__"}, names.keys()
    expected = """AlreadyExistsError DLDeviceType DataType InferenceRequest InferenceResponse InstanceGroupKind
        InternalError InvalidArgumentError LogFormat MemoryBuffer MemoryType Metric MetricFamily MetricFormat MetricKind
        Model ModelBatchFlag ModelControlMode ModelTxnPropertyFlag NotFoundError Options RateLimitMode
        RateLimiterResource Server Tensor TritonError UnavailableError UnknownError UnsupportedError"""
    missing = [name for name in expected.split() if not hasattr(tritonserver, name)]
    assert not missing, missing
    from tritonserver._api._datautils import parse_device_or_memory_type
    from tritonserver._api._server import LogLevel, ModelLoadDeviceLimit

    assert all([parse_device_or_memory_type, LogMessage, LogLevel, ModelLoadDeviceLimit])
    assert tritonserver._c.triton_bindings.TRITONSERVER_DataType is tritonserver.DataType
    major, minor = _c.api_version()
    assert (major, minor) >= (1, 34)


@case
def the_programs_are_on_the_path():
    for name in ["nereid", "tritonserver"]:
        program = pathlib.Path(sys.executable).with_name(name)
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0 and done.stdout.strip(), (name, done)


@case
def the_library_is_the_packages_own():
    own = str(pathlib.Path(tritonserver.__file__).with_name("libtritonserver.so").resolve())
    opened = {line.split(maxsplit=5)[-1].strip() for line in open("/proc/self/maps") if "libtritonserver" in line}
    assert opened == {own}, opened


@case
def stubs_name_what_there_is():
    import ast

    path = pathlib.Path(tritonserver.__file__).parent / "_c" / "_native.pyi"
    module = ast.parse(path.read_text())
    native = _c._native
    declared = {node.name: node for node in module.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    # What only describes an argument.
    del declared["_Future"]
    there = {name for name in dir(native) if not name.startswith("__")}
    assert set(declared) == there, set(declared) ^ there
    for name, node in declared.items():
        if not isinstance(node, ast.ClassDef) or issubclass(getattr(native, name), BaseException):
            continue
        members = {one.name for one in node.body if isinstance(one, ast.FunctionDef)}
        members |= {one.target.id for one in node.body if isinstance(one, ast.AnnAssign)}
        members -= {"__init__", "__new__"}
        own = {member for member in vars(getattr(native, name)) if not member.startswith("__")}
        assert members == own, (name, members ^ own)


@case
def numbers_are_as_in_tritons_binding():
    kind = tritonserver.DataType
    assert str(kind.FP32) == f"{kind.FP32}" == "TRITONSERVER_DataType.FP32"
    assert repr(kind.FP32) == "<TRITONSERVER_DataType.FP32: 11>"
    assert kind.FP32 == 11 and int(kind.FP32) == 11 and hash(kind.FP32) == hash(11) and kind(11) is kind.FP32
    assert (kind.FP32.name, kind.FP32.value) == ("FP32", 11)
    assert kind.__members__["BF16"] is kind.BF16
    assert tritonserver.LogFormat.__members__["ISO8601"] == 1 and _c.FINAL == 1 and _c.READY == 1
    with raises(TypeError, "TRITONSERVER_ModelControlMode"):
        _c.TRITONSERVER_ServerOptions().set_model_control_mode(1)


@case
def exceptions_are_one_family():
    names = "Unknown Internal NotFound InvalidArgument Unavailable Unsupported AlreadyExists".split()
    for name in names:
        kind = getattr(tritonserver, f"{name}Error")
        assert issubclass(kind, tritonserver.TritonError) and kind("why").args == ("why",)
        assert kind.__module__ == "tritonserver" and kind is getattr(_c, f"{name}Error")
    assert issubclass(tritonserver.CancelledError, tritonserver.UnknownError)




@case
def metrics_of_a_program_are_shown():
    folder = repository()
    server = started(folder)
    family = tritonserver.MetricFamily(tritonserver.MetricKind.GAUGE, "own_gauge", "what it shows")
    metric = tritonserver.Metric(family, {"label": "ä"})
    plain = tritonserver.Metric(family)
    metric.set_value(3.5)
    metric.increment(-1)
    assert metric.value == 2.5 and metric.kind is tritonserver.MetricKind.GAUGE and plain.value == 0
    assert '\nown_gauge{label="ä"} 2.5\n' in server.metrics()

    class Own(tritonserver.Metric):
        pass

    counter = tritonserver.MetricFamily(tritonserver.MetricKind.COUNTER, "own_counter", "")
    own = Own(counter)
    own.increment(1)
    for wrong in [lambda: own.set_value(1), lambda: own.increment(-1)]:
        with raises(tritonserver.TritonError):
            wrong()
    # A metric keeps its family.
    del family
    gc.collect()
    assert "own_gauge" in server.metrics()
    del metric, plain
    assert "own_gauge" not in server.metrics()
    server.stop()
    quiet = started(folder, metrics=False)
    assert "nv_inference" not in quiet.metrics()
    quiet.stop()


@case
def a_function_gets_the_log():
    records = []
    levels = tritonserver._api._server.LogLevel

    def take(level, filename, line, timestamp_us, message):
        records.append((level, filename, line, message))
        # A message from in here does not come here again.
        LogMessage(levels.ERROR, "from the function")

    tritonserver.Options([], log_error=True, log_callback=take)._create_tritonserver_server_options()
    _c.TRITONSERVER_LogMessage(levels.ERROR, "some/file.cc", 3, "an error")
    assert records == [(levels.ERROR, "file.cc", 3, "an error")], records
    LogMessage(levels.ERROR, "with a place")
    assert records[-1][1] == pathlib.Path(__file__).name and records[-1][2] > 0
    folder = repository()
    server = started(folder, "words", log_verbose=1, log_callback=take)
    assert {level for level, *_ in records} >= {levels.INFO, levels.ERROR, levels.VERBOSE}, records

    # The server's threads log, and this one waits for them, while others hold the interpreter.
    def busy():
        while not done:
            sum(range(100))

    done = []
    threads = [threading.Thread(target=busy) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        list(server.model("words").infer(inputs={"WORDS": ["x"]}))
        server.unload("words", wait_until_unloaded=True)
        server.load("words")
    done.append(True)
    for thread in threads:
        thread.join()
    server.stop()
    options = _c.TRITONSERVER_ServerOptions()
    with raises(TypeError):
        options.set_log_callback(3)
    reported = []
    sys.unraisablehook = lambda given: reported.append(given.exc_type)
    options.set_log_callback(lambda *record: 1 / 0)
    _c.TRITONSERVER_LogMessage(levels.ERROR, "file", 1, "thrown at")
    assert reported == [ZeroDivisionError]
    sys.unraisablehook = sys.__unraisablehook__
    options.set_log_callback(None)
    count = len(records)
    silence()
    _c.TRITONSERVER_LogMessage(levels.ERROR, "file", 1, "to nobody")
    assert len(records) == count


@case
def interpreters_end_with_servers_that_run():
    for more in [
        "held = [model.infer(inputs={'INPUT0': numpy.arange(100)}) for _ in range(100)]",
        "low = server._server; server.keep = low; del server, model",
        ENDLESS,
        "model.infer(inputs={'INPUT0': [1]}); sys.exit(0)",
    ]:
        assert script(LIVING + more) == (0, ""), more


@case
def a_child_of_fork_is_refused():
    child = """
pid = os.fork()
if pid == 0:
    refused = 0
    for call in [server.ready, model.config, lambda: model.infer(inputs={"INPUT0": [1]}), server.stop]:
        try:
            call()
        except tritonserver.InternalError as error:
            assert "forked" in str(error), error
            refused += 1
    del response
    os._exit(refused)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 4
assert server.ready() and list(model.infer(inputs={"INPUT0": numpy.arange(3)}))
server.stop()
"""
    code, text = script(LIVING + child)
    assert code == 0, text


@case
def other_interpreters_of_the_process_are_refused():
    try:
        import _xxsubinterpreters as interpreters
    except ImportError:
        return
    made = interpreters.create()
    program = "import tritonserver._c._native"
    try:
        failure = interpreters.run_string(made, program)
    except Exception as error:
        failure = error
    assert failure is not None
    interpreters.destroy(made)


@case
def an_interpreter_without_the_lock_is_refused():
    """A stand-in for such an interpreter, which says what one says of itself."""
    for name in ["tritonserver", "tritonserver._c", "tritonserver._c.triton_bindings", "tritonfrontend"]:
        program = f"import sysconfig\nsysconfig.get_config_var = lambda name: name == 'Py_GIL_DISABLED'\nimport {name}"
        code, text = script(program)
        assert code == 1 and text.splitlines()[-1].startswith("ImportError: tritonserver needs an interpreter"), text


@case
def a_package_with_another_library_says_so():
    """The library of another version or architecture, or one that needs a newer system, ends the import in one line."""
    folder = tempfile.mkdtemp()
    own = pathlib.Path(tritonserver.__file__).parent
    shutil.copytree(own, pathlib.Path(folder, "tritonserver"), ignore=shutil.ignore_patterns("libtritonserver.so"))
    program = f"import sys; sys.path.insert(0, {folder!r}); import tritonserver"
    for content in [None, b"", b"\x7fELF\x01 of another kind"]:
        if content is not None:
            pathlib.Path(folder, "tritonserver", "libtritonserver.so").write_bytes(content)
        # Cargo names the folder of the library to the programs that it runs.
        code, text = script(program, LD_LIBRARY_PATH="")
        last = text.splitlines()[-1]
        assert code == 1 and last.startswith("ImportError: ") and "libtritonserver.so" in last, text
    shutil.rmtree(folder)


@case
def nothing_leaks():
    folder = repository()
    server = started(folder, "echo", "words")
    model, failing = server.model("echo"), server.model("words")

    def resident():
        gc.collect()
        return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096

    def work(count):
        values = numpy.ones([64, 1024], numpy.float32)
        for _ in range(count):
            for response in model.infer(inputs={"INPUT0": values}, request_id="leak", parameters={"a": "b"}):
                assert numpy.from_dlpack(response.outputs["OUTPUT0"]).nbytes == values.nbytes
        for _ in range(count // 20):
            (response,) = failing.infer(inputs={"WORDS": ["fail"]}, raise_on_error=False)

    work(400)
    before = resident()
    work(2000)
    # One in twenty of these responses, kept, would be 25 MiB.
    assert resident() - before < 20 << 20, resident() - before
    server.stop()


if __name__ == "__main__":
    run(sys.argv[1:])
