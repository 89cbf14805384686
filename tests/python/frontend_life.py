"""How ports of a server in this process open and close, whatever happens to their server, their clients and the
process.

For the package of the wheel. Arguments: names of cases, or none for all.
"""

import gc
import os
import pathlib
import socket
import sys
import threading
import time

import numpy
import tritonclient.grpc
import tritonclient.http
import tritonfrontend
import tritonserver
from api_support import repository, script, silence, started
from cases import case, raises, run
from frontend_support import (
    ENGINE, ask, grpc, grpc_client, hold, http, http_client, metrics, open_front, opened, release, slow_repository,
    tensor, wait_for_slow, words)
from tritonclient.utils import InferenceServerException
from tritonfrontend import KServeGrpc, KServeHttp, Metrics
from tritonfrontend._c import tritonfrontend_bindings as bindings

KINDS = {KServeHttp: "HTTP", KServeGrpc: "GRPC", Metrics: "HTTP"}

LIVING = f"""
import os, sys, tempfile, threading, time, urllib.request, numpy, tritonserver, tritonfrontend
from tritonfrontend import KServeHttp, KServeGrpc, Metrics
folder = tempfile.mkdtemp()
os.makedirs(folder + "/echo/1")
open(folder + "/echo/config.pbtxt", "w").write('backend: "identity" input {{ name: "INPUT0" data_type: TYPE_INT64 '
    'dims: -1 }} output {{ name: "OUTPUT0" data_type: TYPE_INT64 dims: -1 }}')
server = tritonserver.Server(model_repository=folder, exit_timeout=60).start(wait_until_ready=True)
fronts = [kind(server, kind.Options(address="127.0.0.1", port=0, io_engine="{ENGINE}"))
    for kind in [KServeHttp, KServeGrpc, Metrics]]
for front in fronts:
    front.start()
url = f"http://127.0.0.1:{{fronts[0].port}}"
urllib.request.urlopen(url + "/v2/health/ready").read()
"""


@case
def a_front_end_starts_and_stops_once():
    server = started(repository(), "echo")
    for kind, name in KINDS.items():
        front = kind(server, kind.Options(address="127.0.0.1", port=0, io_engine=ENGINE))
        for call in [front.stop, lambda: front.port]:
            with raises(tritonserver.UnavailableError, f"{name} server is not running."):
                call()
        for _ in range(2):
            front.start()
            with raises(tritonserver.AlreadyExistsError, f"{name} server is already running."):
                front.start()
            assert front.port > 0
            front.stop()
        with raises(tritonserver.UnavailableError, f"{name} server is not running."):
            front.stop()
    server.stop()


@case
def a_port_that_is_taken_is_refused():
    server = started(repository(), "echo")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for kind in KINDS:
            front = kind(server, kind.Options(address="127.0.0.1", port=port, io_engine=ENGINE))
            for _ in range(2):
                with raises(tritonserver.UnavailableError, f"Socket '127.0.0.1:{port}' already in use "):
                    front.start()
            with raises(tritonserver.UnavailableError, "is not running."):
                front.stop()
    # Once it is free the same front end starts.
    front.start()
    assert front.port == port
    front.stop()
    nowhere = KServeHttp(server, KServeHttp.Options(address="no such host", port=0))
    with raises(tritonserver.InvalidArgumentError, "cannot resolve 'no such host:0'"):
        nowhere.start()
    server.stop()


@case
def blocks_open_and_close_ports():
    server = started(repository(), "echo")
    options = {"address": "127.0.0.1", "port": 0, "io_engine": ENGINE}
    pages = Metrics(server, Metrics.Options(**options))
    with KServeHttp(server, KServeHttp.Options(**options)) as front, pages as page:
        port = front.port
        assert ask(port, "/v2")[0] == 200 and ask(page.port, "/metrics")[0] == 200
    with raises(OSError):
        ask(port, "/v2")
    with raises(KeyError, "why"):
        with KServeHttp(server, KServeHttp.Options(**options)) as front:
            port = front.port
            raise KeyError("why")
    with raises(OSError):
        ask(port, "/v2")
    with raises(tritonserver.UnavailableError, "HTTP server is not running."):
        with KServeHttp(server, KServeHttp.Options(**options)) as front:
            front.stop()
    with http(server) as front:
        again = KServeHttp(server, KServeHttp.Options(**{**options, "port": front.port}))
        with raises(tritonserver.UnavailableError, "already in use"):
            with again:
                raise AssertionError("the block does not begin")
    server.stop()


@case
def a_front_end_that_nothing_holds_is_closed():
    server = started(repository(), "echo")
    front = opened(KServeHttp, server)
    port = front.port
    assert ask(port, "/v2")[0] == 200
    del front
    gc.collect()
    with raises(OSError):
        ask(port, "/v2")
    server.stop()


def resources():
    """Resident bytes, descriptors and threads of this process."""
    gc.collect()
    resident = int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096
    return resident, len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def settled(threads, descriptors):
    """Whether no more of either is left; a thread that has ended leaves the list a moment later."""
    for _ in range(30000):
        _, found, running = resources()
        if running <= threads and found <= descriptors:
            return True
        time.sleep(0.01)
    return False


@case
def ports_that_open_and_close_leave_nothing():
    server = started(repository(), "echo")
    values = numpy.ones([100, 100], numpy.float32)

    def work():
        with http(server) as front, grpc(server) as other, metrics(server) as page:
            assert ask(front.port, "/v2/models/echo/ready")[0] == 200 and ask(page.port, "/metrics")[0] == 200
            for module, client in [(tritonclient.http, http_client(front)), (tritonclient.grpc, grpc_client(other))]:
                with client:
                    client.infer("echo", [tensor(module, "INPUT0", values, "FP32")])

    for _ in range(10):
        work()
    before, descriptors, threads = resources()
    for _ in range(50):
        work()
    assert settled(threads, descriptors), (resources(), descriptors, threads)
    after, _, _ = resources()
    # A front end that is left behind has more than a megabyte.
    assert after - before < 24 << 20, after - before
    server.stop()


def asked(client, module, outcomes):
    """A thread that sends one request to the slow model, and notes the answer or the error."""

    def ask_it():
        try:
            outcomes.append(list(client.infer("slow", words(module, "x")).as_numpy("WORDS")))
        except Exception as error:
            outcomes.append(error)

    thread = threading.Thread(target=ask_it)
    thread.start()
    return thread


@case
def accepted_requests_are_finished_and_no_others_taken():
    folder = slow_repository()
    server = started(folder, "slow")
    for module, kind, client_of in [
        (tritonclient.http, KServeHttp, http_client),
        (tritonclient.grpc, KServeGrpc, grpc_client),
    ]:
        front = opened(kind, server, drain_timeout_ms=600_000)
        port, outcomes = front.port, []
        asking = asked(client_of(front), module, outcomes)
        wait_for_slow(folder)
        stopping = threading.Thread(target=front.stop)
        stopping.start()
        is_open = True
        while is_open:
            with socket.socket() as peer:
                is_open = peer.connect_ex(("127.0.0.1", port)) == 0
            time.sleep(0.01)
        assert stopping.is_alive() and not outcomes
        release(folder)
        asking.join()
        stopping.join()
        assert outcomes == [[b"x"]], outcomes
        hold(folder)
    server.stop()


@case
def requests_that_take_too_long_get_an_error():
    folder = slow_repository()
    server = started(folder, "slow", "echo", exit_timeout=30)
    for module, kind, client_of in [
        (tritonclient.http, KServeHttp, http_client),
        (tritonclient.grpc, KServeGrpc, grpc_client),
    ]:
        # With 0 the connection is closed at once, as in Triton.
        for time_ms in [0, 50]:
            front = opened(kind, server, drain_timeout_ms=time_ms)
            outcomes = []
            asking = asked(client_of(front), module, outcomes)
            wait_for_slow(folder)
            front.stop()
            asking.join()
            (error,) = outcomes
            assert isinstance(error, Exception), outcomes
            if time_ms:
                assert "the server exits before this request can be finished" in str(error), error
            # The model is still at it; afterwards it serves the next one.
            release(folder)
            (response,) = server.model("slow").infer(inputs={"WORDS": ["y"]})
            assert list(response.outputs["WORDS"].to_bytes_array()) == [b"y"]
            hold(folder)
            pathlib.Path(folder.name, "slow", "entered").unlink()
    release(folder)
    server.stop()


@case
def a_server_may_stop_before_its_ports():
    folder = repository()
    server = started(folder, "echo")
    front, other, page = [opened(kind, server) for kind in KINDS]
    late = KServeHttp(server, KServeHttp.Options(address="127.0.0.1", port=0))
    client = grpc_client(other)
    given = [tensor(tritonclient.grpc, "INPUT0", numpy.ones([1, 1], numpy.float32), "FP32")]
    client.infer("echo", given)
    server.stop()
    for _ in range(2):
        data = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}
        for path, document in [
            ("/v2/models/echo/infer", data),
            ("/v2/models/echo/ready", None),
            ("/v2/repository/index", {}),
            ("/v2/repository/models/echo/load", {}),
        ]:
            status, text = ask(front.port, path, document)
            assert status == 503, (path, status, text)
        assert ask(front.port, "/v2/health/ready")[0] != 200
        with raises(InferenceServerException, "UNAVAILABLE"):
            client.infer("echo", given)
        assert ask(page.port, "/metrics")[0] == 200
        with raises(tritonserver.UnavailableError, "Server not ready"):
            late.start()
        # The second time without the server's last name.
        del server
        gc.collect()
        server = None
    for one in [front, other, page]:
        one.stop()
    # Another server in the place of the first.
    server = started(folder, "echo")
    with http(server) as front:
        assert ask(front.port, "/v2/models/echo/ready")[0] == 200
    server.stop()


@case
def a_server_that_stops_finishes_the_requests_of_its_ports():
    folder = slow_repository()
    for module, kind, client_of in [
        (tritonclient.http, KServeHttp, http_client),
        (tritonclient.grpc, KServeGrpc, grpc_client),
    ]:
        server = started(folder, "slow", exit_timeout=600)
        with open_front(kind, server) as front:
            outcomes = []
            asking = asked(client_of(front), module, outcomes)
            wait_for_slow(folder)
            stopping = threading.Thread(target=server.stop)
            stopping.start()
            # The port says so at once.
            while True:
                try:
                    client_of(front).get_model_repository_index()
                except InferenceServerException as error:
                    assert "Server not ready" in str(error), error
                    break
            assert stopping.is_alive() and not outcomes
            release(folder)
            asking.join()
            stopping.join()
            assert outcomes == [[b"x"]], outcomes
        hold(folder)


@case
def interpreters_end_with_ports_that_are_open():
    for more in [
        "",
        "sys.exit(0)",
        "del server",
        "server.stop()",
        "held = [urllib.request.urlopen(url + '/v2') for _ in range(3)]",
        # Clients ask until the end.
        """
import socket
def go():
    try:
        while True:
            urllib.request.urlopen(url + "/v2/models/echo", timeout=60).read()
    except OSError:
        pass
for _ in range(3):
    threading.Thread(target=go, daemon=True).start()
""",
        # The log goes to a function of the program.
        "options = tritonserver.Options([], log_verbose=1, log_callback=lambda *record: None)\n"
        "options._create_tritonserver_server_options()\nurllib.request.urlopen(url + '/v2').read()",
    ]:
        assert script(LIVING + more) == (0, ""), more


@case
def a_child_of_fork_is_refused():
    child = """
pid = os.fork()
if pid == 0:
    refused = 0
    made = lambda: KServeHttp(server, KServeHttp.Options(port=0))
    for call in [fronts[0].stop, fronts[1].start, lambda: fronts[2].port, made]:
        try:
            call()
        except tritonserver.InternalError as error:
            assert "forked" in str(error), error
            refused += 1
    del fronts, front
    os._exit(refused)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 4
# One that ends as programs do leaves what is the other process's.
pid = os.fork()
if pid == 0:
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
urllib.request.urlopen(url + "/v2").read()
for front in fronts:
    front.stop()
server.stop()
"""
    code, text = script(LIVING + child)
    assert (code, text) == (0, ""), text


@case
def the_binding_checks_what_it_gets():
    server = started(repository(), "echo")
    address = server._ptr()
    wanted = {
        bindings.TritonFrontendHttp: KServeHttp.Options(address="127.0.0.1", port=0),
        bindings.TritonFrontendGrpc: KServeGrpc.Options(address="127.0.0.1", port=0),
        bindings.TritonFrontendMetrics: Metrics.Options(address="127.0.0.1", port=0),
    }
    wrong_of = {bool: ("bool", 1, "int"), int: ("int", "1", "string"), str: ("string", True, "bool")}
    for kind, options in wanted.items():
        # Triton's own keys alone.
        triton = {name: getattr(options, name) for name in kind._KEYS}
        front = kind(address, triton)
        front.start()
        front.stop()
        for name, value in triton.items():
            with raises(bindings.InvalidArgumentError, f"Key: {name} not found in options provided."):
                kind(address, {key: triton[key] for key in triton if key != name})
            expected, wrong, found = wrong_of[type(value)]
            text = f"Key: {name} found, but incorrect type. Expected {expected} Found: {found}"
            with raises(bindings.InvalidArgumentError, text):
                kind(address, {**triton, name: wrong})
        for wrong in [0, 1, address + 8, 1 << 63]:
            with raises(bindings.InvalidArgumentError, "no server of this process has the address"):
                kind(wrong, triton)
        for wrong in [("address", triton), (address, None), (-1, triton), (address, {**triton, "port": None})]:
            with raises((TypeError, OverflowError)):
                kind(*wrong)
        with raises(bindings.InvalidArgumentError, "out of range"):
            kind(address, {**triton, "port": 1 << 70})
        with raises(bindings.InvalidArgumentError, "has no option 'more'"):
            kind(address, {**triton, "more": 1})
        with raises(bindings.UnavailableError, "server is not running."):
            front.stop()
    server.stop()
    with raises(bindings.UnavailableError, "Server not ready"):
        front.start()
    del front
    gc.collect()
    with raises(bindings.InvalidArgumentError, "no server of this process"):
        bindings.TritonFrontendMetrics(address, triton)
    names = "Triton Unknown Internal NotFound InvalidArgument Unavailable Unsupported AlreadyExists".split()
    for name in [f"{name}Error" for name in names]:
        kind = getattr(bindings, name)
        assert issubclass(kind, bindings.TritonError) and kind is getattr(tritonfrontend._c, name)
        assert kind is not getattr(tritonserver, name) and kind("why").args == ("why",)


@case
def pydantic_is_needed_for_options_alone():
    without = """
import sys
sys.modules["pydantic"] = None
import tritonserver, tritonfrontend
from tritonfrontend._c import TritonFrontendHttp
assert "KServeHttp" in dir(tritonfrontend)
try:
    from tritonfrontend import KServeHttp
except ImportError as error:
    assert "tritonfrontend needs pydantic 2" in str(error), error
else:
    raise AssertionError("it is there")
try:
    tritonfrontend.nothing
except AttributeError:
    pass
else:
    raise AssertionError("it is there")
"""
    assert script(without) == (0, "")
    assert script("import sys, tritonserver; assert 'pydantic' not in sys.modules") == (0, "")
    assert script("from tritonfrontend import *; KServeHttp.Options(), Metrics.Options()") == (0, "")


@case
def a_function_that_waits_holds_up_no_shard():
    """The log's function is called for a shard's messages by another thread than the shard."""
    own, records, may_go_on = threading.get_ident(), [], threading.Event()
    is_blocking = False

    def take(level, filename, line, timestamp_us, message):
        if is_blocking and threading.get_ident() != own:
            may_go_on.wait()
        records.append((filename, message))

    server = started(repository(), "echo", log_verbose=2, log_callback=take)
    with http(server) as front:
        assert f"Started HTTPService at 127.0.0.1:{front.port}" in [message for _, message in records], records
        is_blocking = True
        count = len(records)
        for _ in range(20):
            assert ask(front.port, "/v2/models/echo")[0] == 200
        assert len(records) == count, records[count:]
        may_go_on.set()
    server.stop()
    silence()
    assert len(records) >= count + 20, records[count:]


if __name__ == "__main__":
    run(sys.argv[1:])
