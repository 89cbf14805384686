"""NVIDIA's in-process API (`tritonserver`) and its front ends in C++ (`tritonfrontend`) on the server's library.

Arguments: names of cases, or none for all.
"""

import asyncio
import json
import os
import queue
import socket
import sys
import tempfile
import threading
import tracemalloc
import urllib.error
import urllib.request

import numpy
import tritonserver
from cases import case, raises, run

try:
    import tritonclient.grpc
    import tritonfrontend
except ImportError:
    pass  # Only the cases of NVIDIA's front ends need them.

# Every input comes back under the name of its output; the parameters of the request are an output of their own.
MODEL = """
import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        kinds = ["FP16", "BOOL", "STRING"]
        for kind in kinds:
            tensor = {"data_type": f"TYPE_{kind}", "dims": [-1, -1]}
            config.add_input({"name": f"{kind.lower()}_input", "optional": True, **tensor})
            config.add_output({"name": f"{kind.lower()}_output", **tensor})
        config.add_output({"name": "output_parameters", "data_type": "TYPE_STRING", "dims": [1]})
        config.set_max_batch_size(0)
        if config.as_dict()["parameters"]["decoupled"]["string_value"] == "True":
            config.set_model_transaction_policy({"decoupled": True})
        return config

    def initialize(self, args):
        self.decoupled = '"decoupled":true' in args["model_config"].replace(" ", "")

    def execute(self, requests):
        responses = []
        for request in requests:
            tensors = [
                pb_utils.Tensor(tensor.name().replace("input", "output"), tensor.as_numpy())
                for tensor in request.inputs()
            ]
            if self.decoupled:
                sender = request.get_response_sender()
                for _ in range(3):
                    sender.send(pb_utils.InferenceResponse(tensors))
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            else:
                parameters = numpy.array([request.parameters()], dtype=numpy.object_)
                tensors.append(pb_utils.Tensor("output_parameters", parameters))
                responses.append(pb_utils.InferenceResponse(tensors))
        return None if self.decoupled else responses
"""
IDENTITY = """
backend: "identity" max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_INT32 dims: -1 }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: -1 }
"""


def write(folder, path, text):
    path = os.path.join(folder.name, path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(text)


def repository():
    folder = tempfile.TemporaryDirectory()
    write(folder, "test/1/model.py", MODEL)
    write(folder, "test/config.pbtxt", 'backend: "python" parameters { key: "decoupled" value { string_value: "True" } }')
    write(folder, "echo/1/none", "")
    write(folder, "echo/config.pbtxt", IDENTITY)
    return folder


def started(folder, decoupled=False):
    server = tritonserver.Server(
        server_id="TestServer",
        model_repository=folder.name,
        log_verbose=6,
        log_error=True,
        log_warn=True,
        log_info=True,
        strict_model_config=False,
        model_control_mode=tritonserver.ModelControlMode.EXPLICIT,
        exit_timeout=60,
        log_file=os.path.join(folder.name, "log"),
    ).start(wait_until_ready=True)
    config = {"backend": "python", "parameters": {"decoupled": {"string_value": str(decoupled)}}}
    server.load("test", {"config": json.dumps(config)})
    return server


def both():
    values = numpy.random.rand(1, 100)
    return {"fp16_input": values.astype(numpy.float16), "bool_input": values > 0.5}


def check(response, inputs):
    for name, value in inputs.items():
        found = numpy.from_dlpack(response.outputs[name.replace("input", "output")])
        numpy.testing.assert_array_equal(numpy.asarray(value), found)


@case
def what_is_wrong_with_options_is_said():
    with raises(tritonserver.InvalidArgumentError, "Server not started"):
        tritonserver.Server().ready()
    for wrong in [{"server_id": 1}, {"model_repository": 1}]:
        with raises(TypeError):
            tritonserver.Server(**wrong).start()
    with raises(tritonserver.InternalError):
        tritonserver.Server(model_repository="/nonexistent/repository").start()
    with raises(tritonserver.InvalidArgumentError):
        tritonserver.Server(model_repository=None).start()


@case
def models_are_listed_and_described():
    folder = repository()
    server = started(folder)
    assert list(server.models(exclude_not_ready=True)) == [("test", 1)]
    assert {name for name, _ in server.models()} == {"test", "echo"}
    model = server.model("test")
    assert model.ready() and model.config()["backend"] == "python"
    outputs = {output["name"]: output["datatype"] for output in model.metadata()["outputs"]}
    assert outputs["string_output"] == "BYTES" and outputs["fp16_output"] == "FP16", outputs
    assert model.batch_properties() and model.transaction_properties()
    assert model.statistics()["model_stats"][0]["name"] == "test"
    assert server.metadata()["name"] == "TestServer"
    assert "nv_inference_request_success" in server.metrics()
    server.models()["test"].create_request()
    tritonserver.InferenceRequest(server.model("test"))
    with raises(KeyError, "Unknown Model"):
        server.models()["nobody"]
    with raises(tritonserver.NotFoundError, "unknown model"):
        server.model("nobody").metadata()
    server.unload(server.model("test"), wait_until_unloaded=True)
    assert list(server.models(exclude_not_ready=True)) == []
    server.stop()
    for gone in [server.ready, lambda: server.model("test").ready()]:
        with raises(tritonserver.TritonError):
            gone()


@case
def tensors_of_each_kind_come_back():
    folder = repository()
    server = started(folder)
    model = server.model("test")
    for inputs in [both(), {"bool_input": [[True, False, False, True]]}]:
        responses = list(model.infer(inputs=inputs, output_memory_type="cpu", raise_on_error=True))
        assert len(responses) == 1
        check(responses[0], inputs)
    for strings in [[["hello"]], tritonserver.Tensor.from_string_array([["hello"]])]:
        (response,) = model.infer(inputs={"string_input": strings})
        for _ in range(2):
            assert response.outputs["string_output"].to_string_array()[0][0] == "hello"
    with raises(tritonserver.InvalidArgumentError, "Memory type unsupported not supported"):
        list(model.infer(inputs={"string_input": [["hello"]]}, output_memory_type="unsupported"))
    with raises(tritonserver.InvalidArgumentError, "unexpected shape for input 'fp16_input' for model 'test'"):
        model.infer(inputs={"fp16_input": numpy.zeros([3], numpy.float16)})
    with raises(tritonserver.NotFoundError, "unknown model"):
        server.model("nobody").infer(inputs=both())


@case
def parameters_reach_the_model():
    folder = repository()
    server = started(folder)
    parameters = {"int_parameter": 0, "float_parameter": 0.5, "bool_parameter": False, "string_parameter": "test"}
    (response,) = server.model("test").infer(inputs=both(), parameters=parameters)
    assert json.loads(response.outputs["output_parameters"].to_string_array()[0]) == parameters
    for wrong in [{"test": 1}, None]:
        with raises(tritonserver.InvalidArgumentError):
            server.model("test").infer(inputs=both(), parameters={"invalid": wrong})


@case
def responses_come_to_queues_and_iterators():
    folder = repository()
    server = started(folder)
    inputs, responses = both(), queue.SimpleQueue()
    iterators = [server.model("test").infer(inputs=inputs, response_queue=responses) for _ in range(2)]
    for _ in range(2):
        check(responses.get(timeout=300), inputs)
    for iterator in iterators:
        for response in iterator:
            check(response, inputs)
    assert responses.empty()

    async def asynchronous():
        responses = asyncio.Queue()
        model = server.model("test")
        iterators = [model.async_infer(inputs=inputs, response_queue=responses) for _ in range(2)]
        for _ in range(2):
            check(await asyncio.wait_for(responses.get(), 300), inputs)
        for iterator in iterators:
            async for response in iterator:
                check(response, inputs)
        assert responses.empty()

    asyncio.run(asynchronous())
    # Several responses to one request.
    server = started(folder, decoupled=True)
    found = list(server.model("test").infer(inputs=inputs))
    tensors = [response for response in found if response.outputs]
    assert len(tensors) == 3 and [response.final for response in found][-1], found
    for response in tensors:
        check(response, inputs)


@case
def inference_leaks_nothing():
    folder = repository()
    server = started(folder)
    model = server.model("test")

    def infer(count):
        for _ in range(count):
            inputs = both()
            for response in model.infer(inputs=inputs, output_memory_type="cpu"):
                check(response, inputs)

    infer(50)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    infer(400)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < 120_000, after - before


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def front_end(kind, server):
    """A front end that was started, and its address; another program may take a port before it."""
    for _ in range(20):
        port = free_port()
        front = kind(server, kind.Options(address="127.0.0.1", port=port))
        try:
            front.start()
        except Exception:  # The port is taken.
            continue
        return front, f"http://127.0.0.1:{port}"
    raise AssertionError(f"{kind.__name__} finds no port")


def is_refused(call, *expected):
    try:
        call()
    except tritonclient.grpc.InferenceServerException as error:
        assert error.status() == expected[0] and expected[1] in error.message(), error
    else:
        raise AssertionError(f"no {expected}")


def ask(url, body=None):
    try:
        data = json.dumps(body).encode() if body is not None else None
        with urllib.request.urlopen(urllib.request.Request(url, data=data), timeout=300) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@case
def nvidias_front_ends_serve_our_models():
    folder = repository()
    server = started(folder)
    server.load("echo")
    for kind in [tritonfrontend.KServeHttp, tritonfrontend.KServeGrpc, tritonfrontend.Metrics]:
        with raises(tritonserver.InvalidArgumentError, f"must be of type {kind.__name__}.Options"):
            kind(server, {"port": 1})
    http, url = front_end(tritonfrontend.KServeHttp, server)
    metrics, page = front_end(tritonfrontend.Metrics, server)
    assert ask(url + "/v2/health/ready")[0] == 200
    assert json.loads(ask(url + "/v2")[1])["name"] == "TestServer"
    assert json.loads(ask(url + "/v2/models/echo")[1])["inputs"][0]["datatype"] == "INT32"
    tensor = {"name": "INPUT0", "datatype": "INT32", "shape": [2, 3], "data": [1, 2, 3, 4, 5, 6]}
    for _ in range(100):
        status, text = ask(url + "/v2/models/echo/infer", {"inputs": [tensor]})
        assert status == 200 and json.loads(text)["outputs"][0]["data"] == tensor["data"], text
    status, text = ask(url + "/v2/models/echo/infer", {"inputs": [{**tensor, "shape": [6]}]})
    assert status == 400 and "unexpected shape for input 'INPUT0' for model 'echo'. Expected [-1,-1], got [6]." in text
    status, text = ask(url + "/v2/models/nobody/infer", {"inputs": [tensor]})
    assert (status, json.loads(text)) == (404, {"error": "Request for unknown model: 'nobody' is not found"})
    status, text = ask(url + "/v2/models/test/generate", {"fp16_input": 1})
    assert status >= 400 and "error" in json.loads(text)
    assert json.loads(ask(url + "/v2/repository/index", {})[1])
    status, text = ask(page + "/metrics")
    assert status == 200 and 'nv_inference_request_success{model="echo",version="1"} 100' in text, text
    http.stop()
    metrics.stop()
    server.stop()


@case
def nvidias_grpc_front_end_serves_our_models():
    folder = repository()
    server = started(folder, decoupled=True)
    server.load("echo")
    front, url = front_end(tritonfrontend.KServeGrpc, server)
    url = url.removeprefix("http://")
    client = tritonclient.grpc.InferenceServerClient(url)
    assert client.is_server_ready() and client.is_model_ready("echo") and not client.is_model_ready("nobody")
    assert client.get_model_config("echo").config.backend == "identity"

    def tensor(name, values, datatype):
        given = tritonclient.grpc.InferInput(name, list(values.shape), datatype)
        given.set_data_from_numpy(values)
        return given

    values = numpy.arange(6, dtype=numpy.int32).reshape(2, 3)
    wrong = []

    def infer_often():
        own = tritonclient.grpc.InferenceServerClient(url)
        for at in range(100):
            answer = own.infer("echo", [tensor("INPUT0", values + at, "INT32")], request_id=str(at))
            if not numpy.array_equal(answer.as_numpy("OUTPUT0"), values + at) or answer.get_response().id != str(at):
                wrong.append(at)

    threads = [threading.Thread(target=infer_often) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    count = client.get_inference_statistics("echo").model_stats[0].inference_stats.success.count
    assert not wrong and count == 400, (wrong, count)
    given, flat = tensor("INPUT0", values, "INT32"), tensor("INPUT0", values.reshape(6), "INT32")
    unknown = "Request for unknown model: 'nobody' is not found"
    is_refused(lambda: client.infer("nobody", [given]), "StatusCode.NOT_FOUND", unknown)
    is_refused(lambda: client.infer("echo", [flat]), "StatusCode.INVALID_ARGUMENT", "unexpected shape for input")
    too_long = "string correlation ID cannot be longer than 128 characters"
    refused = lambda: client.infer("echo", [given], sequence_id="x" * 129)
    is_refused(refused, "StatusCode.UNIMPLEMENTED", too_long)

    # Three responses and a last one without tensors to each request of a stream.
    answers = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    ones = tensor("fp16_input", numpy.ones([1, 4], numpy.float16), "FP16")
    for at in range(10):
        client.async_stream_infer("test", [ones], request_id=str(at), enable_empty_final_response=True)
    ids = []
    for _ in range(40):
        result, error = answers.get(timeout=300)
        assert error is None, error
        ids.append(result.get_response().id)
    assert all(ids.count(str(at)) == 4 for at in range(10)), ids
    client.stop_stream()
    # Calls that their client gives up.
    for _ in range(20):
        client.async_infer("echo", [given], callback=lambda result, error: None).cancel()
    client.close()
    front.stop()
    server.stop()


if __name__ == "__main__":
    run(sys.argv[1:])
