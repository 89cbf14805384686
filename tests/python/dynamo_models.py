"""What NVIDIA Dynamo's worker, unmodified, serves with the package: kinds of models, tensors and failures."""

import json
import queue
import re
import sys
import urllib.error

from cases import case, raises, run
from dynamo_system import GRPC, HTTP, System, get, own_network, until, write

if __name__ == "__main__":
    # Before the imports that start threads.
    own_network()

import ml_dtypes
import numpy
import tritonclient.grpc as grpcclient
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2
from tritonclient.utils import InferenceServerException

import dynamo_wire
from dynamo_repository import ANSWERING, FIELDS, KINDS, PYTHON, SEQUENCE, classifier, is_ready, models

NUMPY = {"BYTES": numpy.object_, "FP32": numpy.float32, "FP64": numpy.float64, "BOOL": numpy.bool_}


def array(kind, values):
    if kind == "BYTES":
        return numpy.array(values, dtype=numpy.object_)
    return numpy.array(values, dtype=NUMPY.get(kind) or getattr(numpy, kind.lower()))


def given(name, kind, values):
    tensor = grpcclient.InferInput(name, list(values.shape), kind)
    tensor.set_data_from_numpy(values)
    return tensor


def words(*values):
    return [given("WORDS", "BYTES", array("BYTES", [value.encode() for value in values]))]


def texts(result, name="WORDS"):
    return [one.decode() for one in result.as_numpy(name).reshape(-1)]


def streamed(client, *values):
    """What a decoupled model sends, up to the response that is the last, or the error."""
    came = queue.SimpleQueue()
    client.start_stream(lambda result, error: came.put(error or result))
    try:
        client.async_stream_infer("stream", words(*values), enable_empty_final_response=True)
        client.stop_stream()
    except BaseException:
        client.stop_stream(cancel_requests=True)
        raise
    every = []
    while not came.empty():
        every.append(came.get())
    return every


@case
def every_model_is_found_and_described():
    names = ["Classes,of 3", "bits_BF16", "bits_FP16", "fields", "kinds", "sequence", "stream", "words"]
    for name in names:
        until(lambda: is_ready(client, name))
    config = client.get_model_config("Classes,of 3", as_json=True)["config"]
    assert (config["max_batch_size"], config["backend"]) == (8, "identity"), config
    assert config["output"][1]["label_filename"] == "labels", config
    metadata = client.get_model_metadata("kinds")
    assert [tensor.datatype for tensor in metadata.inputs] == list(KINDS), metadata
    assert [tensor.name for tensor in metadata.outputs] == [f"OUTPUT{i}" for i in range(len(KINDS))], metadata
    assert client.get_model_config("stream").config.model_transaction_policy.decoupled
    with raises(InferenceServerException, "absent"):
        client.infer("absent", words("one"))


@case
def a_configuration_comes_whole():
    for name, text in (("fields", FIELDS), ("sequence", SEQUENCE)):
        given_config = text_format.Parse(text, model_config_pb2.ModelConfig())
        until(lambda: is_ready(client, name))
        config = client.get_model_config(name).config
        for field, value in given_config.ListFields():
            assert getattr(config, field.name) == value, (field.name, getattr(config, field.name), value)


@case
def tensors_of_every_kind_come_back():
    for shape in ([1, 3], [3, 1]):
        values = {kind: array(kind, those).reshape(shape) for kind, those in KINDS.items()}
        inputs = [given(f"INPUT{i}", kind, values[kind]) for i, kind in enumerate(KINDS)]
        result = client.infer("kinds", inputs)
        for i, kind in enumerate(KINDS):
            output = result.get_output(f"OUTPUT{i}")
            assert (output.datatype, list(output.shape)) == (kind, shape), output
            back = result.as_numpy(f"OUTPUT{i}")
            assert numpy.array_equal(back, values[kind]), (kind, back, values[kind])
    wrong = [given("INPUT0", "INT32", array("INT32", [[1]]))]
    with raises(InferenceServerException, "INPUT0"):
        client.infer("kinds", wrong)


@case
def floats_of_16_bits_go_in_and_dynamo_cannot_bring_them_back():
    # The worker sends floats where the frontend takes bits, and reads outputs by numpy, which has no BF16.
    refusals = {"FP16": "expected u16", "BF16": "Unsupported dtype in DLTensor"}
    for kind, type_of in (("FP16", numpy.float16), ("BF16", ml_dtypes.bfloat16)):
        tensor = grpcclient.InferInput("HALVES", [3], kind)
        values = numpy.array([-1.5, 0.25, 65504], type_of)
        # As bytes: for BF16 the client would take other floats, and cut them.
        tensor._raw_content = values.tobytes()
        bits = grpcclient.InferRequestedOutput("BITS")
        result = client.infer(f"bits_{kind}", [tensor], outputs=[bits])
        assert list(result.as_numpy("BITS")) == list(values.view(numpy.uint16)), result.get_response()
        with raises(InferenceServerException, refusals[kind]):
            client.infer(f"bits_{kind}", [tensor])


@case
def outputs_are_chosen_and_classified():
    rows = array("FP32", [[0.25, 0.5, 0.125], [3, 1, 2]])
    inputs = [given("INPUT0", "INT32", array("INT32", [[4, 5], [7, 6]])), given("INPUT1", "FP32", rows)]
    chosen = grpcclient.InferRequestedOutput("OUTPUT1")
    result = client.infer("Classes,of 3", inputs, outputs=[chosen])
    assert result.as_numpy("OUTPUT0") is None and numpy.array_equal(result.as_numpy("OUTPUT1"), rows)
    # The labels are those of the second output.
    chosen = [grpcclient.InferRequestedOutput("OUTPUT1", class_count=2),
              grpcclient.InferRequestedOutput("OUTPUT0", class_count=1)]
    result = client.infer("Classes,of 3", inputs, outputs=chosen)
    assert texts(result, "OUTPUT1") == [
        "0.500000:1:second", "0.250000:0:first", "3.000000:0:first", "2.000000:2:third"], result.get_response()
    assert texts(result, "OUTPUT0") == ["5:1", "7:0"], result.get_response()
    assert list(result.get_output("OUTPUT1").shape) == [2, 2], result.get_response()
    with raises(InferenceServerException, "unexpected inference output 'NONE' for model 'Classes,of 3'"):
        client.infer("Classes,of 3", inputs, outputs=[grpcclient.InferRequestedOutput("NONE")])


@case
def a_decoupled_model_streams():
    for count in (1, 3, 100):
        sent = [f"word {i}" for i in range(count)]
        every = streamed(client, *sent)
        assert not [one for one in every if isinstance(one, Exception)], every
        came = [texts(one)[0] for one in every if one.get_response().outputs]
        assert came == sent, came


@case
def an_error_ends_a_stream_after_what_came_before():
    every = streamed(client, "one", "two", "fail", "never")
    assert [texts(one)[0] for one in every[:2]] == ["one", "two"], every
    assert isinstance(every[2], InferenceServerException) and "the stream failed" in str(every[2]), every
    # The worker and the model go on.
    assert texts(streamed(client, "again")[0]) == ["again"]


@case
def the_newest_of_two_versions_answers():
    assert list(client.get_model_metadata("words").versions) == ["1"], "Dynamo knows of no versions"
    assert texts(client.infer("words", words("version"))) == ["2"]
    before = worker.count("words", "2")
    client.infer("words", words("one"))
    assert worker.count("words", "2") == before + 1
    assert worker.count("words", "1") == 0


@case
def a_model_that_fails_leaves_the_worker_alive():
    for _ in range(50):
        with raises(InferenceServerException, "the model failed"):
            client.infer("words", words("fail"))
        with raises(InferenceServerException, "the model's own exception"):
            client.infer("words", words("raise"))
    assert texts(client.infer("words", words("one", "two"))) == ["one", "two"]
    assert worker.is_running()
    # An error that a model sends as its response is a response.
    failed = re.search(r'^nv_inference_request_failure{model="words",reason="BACKEND",version="2"} (\d+)$',
                       worker.metrics(), re.M)
    assert int(failed.group(1)) == 50, worker.metrics()


@case
def a_model_whose_process_dies_is_started_again():
    with raises(InferenceServerException, "words"):
        client.infer("words", words("die"))

    def answers():
        try:
            return texts(client.infer("words", words("one"))) == ["one"]
        except InferenceServerException:
            return False

    until(answers)
    assert worker.is_running()


@case
def many_requests_at_a_time_are_answered_each_with_its_own():
    came = queue.SimpleQueue()
    count = 300
    for number in range(count):
        sent = [f"{number}", "x" * (number % 7)]
        client.async_infer("words", words(*sent), lambda result, error, sent=sent: came.put((sent, result, error)))
    for _ in range(count):
        sent, result, error = came.get(timeout=300)
        assert error is None and texts(result) == sent, (sent, error)


@case
def clients_that_leave_harm_nothing():
    for _ in range(10):
        with raises(InferenceServerException):
            client.infer("words", words("slow"), client_timeout=0.05)
    # The worker does not cancel them.
    pending = r'^nv_inference_pending_request_count{model="words",version="2"} 0$'
    until(lambda: re.search(pending, worker.metrics(), re.M))
    assert texts(client.infer("words", words("one"))) == ["one"]
    assert worker.is_running()


@case
def the_worker_publishes_the_servers_metrics():
    text = worker.metrics()
    for family in ("nv_inference_request_success", "nv_inference_queue_duration_us", "nv_cpu_utilization",
                   "dynamo_component_requests_total"):
        assert re.search(f"^{family}", text, re.M), f"no {family} in\n{text}"
    # One family, one block: else a scraper refuses all.
    types = re.findall(r"^# TYPE (\S+)", text, re.M)
    twice = {name for name in types if types.count(name) > 1}
    assert not twice, twice


@case
def health_is_that_of_server_and_models():
    port = worker.find(r"system status server bound to: 127.0.0.1:(\d+)").group(1)
    health = json.loads(get(f"http://127.0.0.1:{port}/health"))
    assert health["status"] == "ready" and len(health["endpoints"]) == 8, health


@case
def the_log_goes_through_dynamo():
    worker.find(r"\dZ  INFO operation: successfully loaded 'kinds'")
    client.infer("words", words("log"))
    worker.find(r"\dZ ERROR \S+: the model's own line")
    # Triton's own form of a line.
    own = re.search(r"^[IWEV]\d{4} \d\d:\d\d.*$", worker.text(), re.M)
    assert own is None, own


@case
def texts_are_classified_over_http():
    folder = system.folder / "classifier"
    classifier(folder)
    system.http_frontend()
    other = system.worker("classifier", folder, "--task", "classify", "--log-info", "false")
    other.find("Skipping 2 ensemble dependency model")

    def classify(**fields):
        body = json.dumps({"model": "mood", **fields}).encode()
        return json.loads(get(f"http://127.0.0.1:{HTTP}/v1/classify", body))

    def answers():
        try:
            return classify(input=["a", "a long sentence"])
        except (urllib.error.HTTPError, urllib.error.URLError):
            return None

    rows = until(answers)["data"]
    assert [(row["index"], row["label"], row["num_classes"]) for row in rows] == [(0, "short", 2), (1, "long", 2)], rows
    assert numpy.allclose(rows[0]["probs"], [0.9, 0.1]), rows
    assert classify(input="four")["data"][0]["label"] == "short"
    with raises(urllib.error.HTTPError):
        classify(input="four", truncation_side="left")


@case
def the_frontend_speaks_with_a_worker_that_is_not_dynamos():
    # docs/dynamo.md says how, for this release.
    other = dynamo_wire.Worker(system.folder / "discovery", "wire")
    until(lambda: is_ready(client, "wire"))
    floats = array("FP32", [1.5, -2, 0.25])
    for _ in range(3):
        result = client.infer("wire", [given("INPUT0", "FP32", floats)], request_id="7")
        assert numpy.array_equal(result.as_numpy("OUTPUT0"), floats) and result.get_response().id == "7", result
    endpoint, headers, control, body = other.requests[-1]
    assert endpoint.endswith("/dynamo/wire/wire") and headers["x-endpoint-path"] == endpoint, (endpoint, headers)
    assert {key: control[key] for key in ("request_type", "response_type", "payload_codec")} == {
        "request_type": "single_in", "response_type": "many_out", "payload_codec": "json"}, control
    assert body["tensors"][0]["data"] == {"data_type": "Float32", "values": [1.5, -2, 0.25]}, body
    other.leave()
    until(lambda: not is_ready(client, "wire"))


@case
def options_reach_the_server():
    folder = system.folder / "options"
    write(folder, "one/config.pbtxt", PYTHON % 'parameters { key: "x" value { string_value: "y" } }')
    write(folder, "one/1/model.py", ANSWERING)
    flags = ["--strict-model-config", "true", "--exit-timeout-secs", "7", "--log-verbose", "1", "--allow-metrics",
             "false", "--rate-limit", "EXEC_COUNT", "--log-format", "ISO8601", "--cache-config", "local,size=1048576",
             "--cuda-memory-pool-byte-size", "0:0", "--backend-config", "python,shm-default-byte-size=1048576",
             "--metrics-config", "summary_latencies,quantiles=0.5:0.01"]
    # An older release than the one from which on the log is asked for: the log is the server's own.
    other = system.worker("options", folder, *flags, NVIDIA_TRITON_SERVER_VERSION="26.07")
    other.find("Registered endpoint 'dynamo.options.one_")
    text = other.text()
    for row in (r"\| server_id +\| options ", r"\| strict_model_config +\| 1 ", r"\| rate_limit +\| EXEC_COUNT ",
                r"\| exit_timeout +\| 7 ", r"\| cache_enabled +\| 1 "):
        assert re.search(row, text), f"no {row} in\n{text}"
    assert "predates the log_callback API" in text
    assert re.search(r"^\d{4}-\d\d-\d\dT\S+ I \d+ ", text, re.M), text
    assert "nv_" not in other.metrics()
    other.kill()


@case
def a_model_that_cannot_be_loaded_ends_the_worker_or_is_left_out():
    folder = system.folder / "broken"
    write(folder, "good/config.pbtxt", PYTHON % "")
    write(folder, "good/1/model.py", ANSWERING)
    write(folder, "broken/config.pbtxt", PYTHON % "")
    write(folder, "broken/1/model.py", "raise RuntimeError('a model of its own')")
    strict = system.worker("strict", folder)
    assert strict.end() != 0
    assert "InternalError" in strict.text() and "a model of its own" in strict.text(), strict.text()
    lenient = system.worker("lenient", folder, "--exit-on-error", "false", "--strict-readiness", "false")
    lenient.find("Serving 1 model\\(s\\): \\['good'\\]")
    until(lambda: is_ready(client, "good"))
    assert texts(client.infer("good", words("one"))) == ["one"]
    lenient.kill()


if __name__ == "__main__":
    with System() as system:
        models(system.folder / "models")
        system.grpc_frontend()
        worker = system.worker("triton", system.folder / "models", "--cache-config", "local,size=1048576")
        client = grpcclient.InferenceServerClient(f"127.0.0.1:{GRPC}")
        run(sys.argv[1:])
