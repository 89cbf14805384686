"""What the cases of the front ends have in common: a server, its ports, and clients of them."""

import contextlib
import json
import os
import pathlib
import time
import urllib.error
import urllib.request

import numpy
import tritonclient.grpc
import tritonclient.http
import tritonfrontend
from api_support import WORDS, repository, write

# As the tests of the ports choose it.
ENGINE = os.environ.get("NEREID_TEST_ENGINE") or "auto"


SLOW = """
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
        tensors = [pb_utils.get_input_tensor_by_name(request, "WORDS") for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("WORDS", tensor.as_numpy())]) for tensor in tensors]
"""


def slow_repository():
    """Models of `repository`, and `slow`, which answers once the file `slow/go` is there."""
    folder = repository()
    write(folder, "slow/config.pbtxt", WORDS % "")
    write(folder, "slow/1/model.py", SLOW)
    return folder


def wait_for_slow(folder):
    """Until the model has a request."""
    entered = pathlib.Path(folder.name, "slow", "entered")
    while not entered.exists():
        time.sleep(0.01)
    entered.unlink()


def release(folder):
    """Lets the model answer the requests that it has, until `hold`."""
    write(folder, "slow/go", "")


def hold(folder):
    pathlib.Path(folder.name, "slow", "go").unlink()


def opened(kind, server, **options):
    """A front end at a free port of this host alone."""
    options = {"address": "127.0.0.1", "port": 0, "io_engine": ENGINE, **options}
    front = kind(server, kind.Options(**options))
    front.start()
    return front


@contextlib.contextmanager
def open_front(kind, server, **options):
    front = opened(kind, server, **options)
    yield front
    front.stop()


def http(server, **options):
    return open_front(tritonfrontend.KServeHttp, server, **options)


def grpc(server, **options):
    return open_front(tritonfrontend.KServeGrpc, server, **options)


def metrics(server, **options):
    return open_front(tritonfrontend.Metrics, server, **options)


def http_client(front, **options):
    return tritonclient.http.InferenceServerClient(f"127.0.0.1:{front.port}", network_timeout=300, **options)


def grpc_client(front, **options):
    return tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{front.port}", **options)


def tensor(module, name, values, datatype):
    given = module.InferInput(name, list(values.shape), datatype)
    given.set_data_from_numpy(values)
    return given


def words(module, *texts):
    return [tensor(module, "WORDS", numpy.array(texts, dtype=numpy.object_), "BYTES")]


def ask(port, path, document=None, **headers):
    """Status and text of an answer over HTTP."""
    data = None if document is None else json.dumps(document).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers)
    try:
        with urllib.request.urlopen(request, timeout=300) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
