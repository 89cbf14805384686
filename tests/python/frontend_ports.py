"""Ports of a server in this process: what clients get from them over HTTP and gRPC, with each of their options.

For the package of the wheel. Arguments: names of cases, or none for all.
"""

import json
import os
import queue
import socket
import ssl
import sys
import tempfile
import urllib.request

import numpy
import tritonclient.grpc
import tritonclient.http
import tritonfrontend
import tritonserver
from api_support import repository, started, write
from cases import case, raises, run
from frontend_support import ENGINE, ask, grpc, grpc_client, http, http_client, metrics, opened, tensor, words
from tritonclient.utils import InferenceServerException
from tritonfrontend import Feature, FeatureGroup, KServeGrpc, KServeHttp, Metrics, RestrictedFeatures

# Made by the test, where there is openssl.
CERTIFICATES = os.environ.get("NEREID_CERTIFICATES")
MODULES = [(tritonclient.http, http, http_client), (tritonclient.grpc, grpc, grpc_client)]


@case
def clients_of_both_protocols_are_served():
    folder = repository()
    server = started(folder, "echo", "words", server_id="inside")
    values = numpy.arange(6, dtype=numpy.float32).reshape(2, 3)
    for module, front_of, client_of in MODULES:
        with front_of(server) as front, client_of(front) as client:
            assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("echo")
            assert not client.is_model_ready("nobody")
            metadata = client.get_server_metadata()
            assert (metadata["name"] if isinstance(metadata, dict) else metadata.name) == "inside"
            for at in range(100):
                result = client.infer("echo", [tensor(module, "INPUT0", values + at, "FP32")], request_id=str(at))
                assert numpy.array_equal(result.as_numpy("OUTPUT0"), values + at)
            assert list(client.infer("words", words(module, "ä", "b")).as_numpy("WORDS")) == ["ä".encode(), b"b"]
            with raises(InferenceServerException, "the model failed"):
                client.infer("words", words(module, "fail"))
            with raises(InferenceServerException, "Request for unknown model: 'nobody' is not found"):
                client.infer("nobody", words(module, "a"))
            # The requests of the program and of clients are in the same statistics.
            list(server.model("echo").infer(inputs={"INPUT0": values}))
    statistics = server.model("echo").statistics()["model_stats"][0]
    assert statistics["inference_stats"]["success"]["count"] == 202, statistics
    server.stop()


@case
def decoupled_models_stream():
    folder = repository()
    server = started(folder, "stream")
    with grpc(server) as front, grpc_client(front) as client:
        answers = queue.Queue()
        client.start_stream(lambda result, error: answers.put((result, error)))
        texts = [str(at) for at in range(100)]
        client.async_stream_infer("stream", words(tritonclient.grpc, *texts))
        client.stop_stream()
        found = []
        while not answers.empty():
            result, error = answers.get()
            assert error is None, error
            array = result.as_numpy("WORDS")
            found.extend(() if array is None else [text.decode() for text in array])
        assert found == texts, found
    with http(server) as front:
        status, text = ask(front.port, "/v2/models/stream/generate_stream", {"WORDS": ["one", "two"]})
        assert status == 200 and "one" in text and "two" in text, text
        status, text = ask(front.port, "/v2/models/stream/generate", {"WORDS": ["one"]})
        assert status == 200 and json.loads(text)["WORDS"] == "one", text
    server.stop()


@case
def a_server_may_have_many_ports():
    folder = repository()
    server = started(folder, "echo")
    kinds = [KServeHttp, KServeHttp, KServeHttp, Metrics, Metrics, KServeGrpc, KServeGrpc]
    fronts = [opened(kind, server) for kind in kinds]
    ports = [front.port for front in fronts]
    assert len(set(ports)) == len(ports), ports
    for front in fronts[:3]:
        assert ask(front.port, "/v2/models/echo/ready")[0] == 200
    for front in fronts[5:]:
        assert grpc_client(front).is_model_ready("echo")
    fronts[0].stop()
    assert ask(fronts[1].port, "/v2/health/ready")[0] == 200 and "nv_" in ask(fronts[3].port, "/metrics")[1]
    # The address of one that was closed is free at once.
    again = opened(KServeHttp, server, port=ports[0])
    assert again.port == ports[0] and ask(ports[0], "/v2")[0] == 200
    for front in [*fronts[1:], again]:
        front.stop()
    server.stop()


@case
def models_that_come_and_go_do_so_at_each_port():
    folder = repository()
    server = started(folder)
    with http(server) as one, http(server) as other, grpc(server) as front, grpc_client(front) as client:
        server.load("echo")
        assert all(ask(of.port, "/v2/models/echo/ready")[0] == 200 for of in [one, other])
        assert client.is_model_ready("echo")
        assert ask(one.port, "/v2/repository/models/words/load", {})[0] == 200
        assert ask(other.port, "/v2/models/words/ready")[0] == 200 and server.model("words").ready()
        client.unload_model("echo")
        server.unload("words", wait_until_unloaded=True)
        for of in [one, other]:
            assert ask(of.port, "/v2/models/echo/ready")[0] != 200 and ask(of.port, "/v2/models/words/ready")[0] != 200
        assert not client.is_model_ready("words")
    server.stop()


@case
def metrics_are_served():
    folder = repository()
    server = started(folder, "echo", server_id="inside")
    with metrics(server) as page, http(server) as front:
        count = 'nv_inference_request_success{model="echo",version="1"}'
        values = numpy.ones([1, 1], numpy.float32)
        for at in range(3):
            assert f"{count} {at}" in ask(page.port, "/metrics")[1]
            with http_client(front) as client:
                client.infer("echo", [tensor(tritonclient.http, "INPUT0", values, "FP32")])
        family = tritonserver.MetricFamily(tritonserver.MetricKind.COUNTER, "own_total", "")
        metric = tritonserver.Metric(family)
        metric.increment(2)
        assert "\nown_total 2\n" in ask(page.port, "/metrics")[1]
        assert "inside" not in ask(page.port, "/v2")[1]
        del metric, family
    server.stop()


@case
def features_can_be_restricted():
    folder = repository()
    server = started(folder, "echo")
    features = RestrictedFeatures([FeatureGroup("admin-key", "admin", [Feature.MODEL_REPOSITORY, Feature.LOGGING])])
    group = features.create_feature_group("user-key", "secret value", Feature.INFERENCE)
    assert group.features == [Feature.INFERENCE] and features.has_feature(Feature.LOGGING)
    assert not features.has_feature(Feature.HEALTH) and "admin-key" in repr(features) and "secret" not in repr(features)
    with raises(tritonserver.InvalidArgumentError, "can only belong to one group. inference already"):
        features.add_feature_group(FeatureGroup("other", "x", [Feature.INFERENCE]))
    with raises(ValueError):
        FeatureGroup("key", "value", ["everything"])
    values = numpy.ones([1, 1], numpy.float32)
    for module, front_of, client_of in MODULES:
        prefix = "triton-grpc-protocol-" if module is tritonclient.grpc else ""
        refused = "This protocol is restricted, expecting header" if prefix else "This API is restricted"
        with front_of(server, restricted_features=features) as front, client_of(front) as client:
            given = [tensor(module, "INPUT0", values, "FP32")]
            assert client.is_server_ready()
            for call in [lambda **more: client.infer("echo", given, **more), client.get_model_repository_index]:
                with raises(InferenceServerException, refused):
                    call()
                with raises(InferenceServerException, refused):
                    call(headers={prefix + "user-key": "wrong", prefix + "admin-key": "wrong"})
                call(headers={prefix + "user-key": "secret value", prefix + "admin-key": "admin"})
        with front_of(server) as open_to_all, client_of(open_to_all) as client:
            client.infer("echo", given)
    server.stop()


@case
def each_feature_has_its_routes():
    folder = repository()
    server = started(folder, "echo")
    one = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1]}
    routes = {
        Feature.HEALTH: ("/v2/health/ready", None),
        Feature.METADATA: ("/v2/models/echo", None),
        Feature.INFERENCE: ("/v2/models/echo/infer", {"inputs": [one]}),
        Feature.SHM_MEMORY: ("/v2/systemsharedmemory/status", None),
        Feature.MODEL_CONFIG: ("/v2/models/echo/config", None),
        Feature.MODEL_REPOSITORY: ("/v2/repository/index", {}),
        Feature.STATISTICS: ("/v2/models/echo/stats", None),
        Feature.TRACE: ("/v2/trace/setting", None),
        Feature.LOGGING: ("/v2/logging", None),
    }
    assert set(routes) == set(Feature)
    for feature in Feature:
        features = RestrictedFeatures([FeatureGroup("key", "secret", feature)])
        with http(server, restricted_features=features) as front:
            for of, (path, document) in routes.items():
                status, text = ask(front.port, path, document)
                assert (status == 403) == (of is feature), (feature, path, status, text)
            path, document = routes[feature]
            assert ask(front.port, path, document, key="secret")[0] != 403
    server.stop()


@case
def ports_speak_tls():
    if CERTIFICATES is None:
        return
    folder = repository()
    server = started(folder, "echo")
    names = {"server_cert": "server.pem", "server_key": "server.key", "root_cert": "authority.pem"}
    certificates = {name: os.path.join(CERTIFICATES, file) for name, file in names.items()}
    client_side = [os.path.join(CERTIFICATES, file) for file in ["client.pem", "client.key"]]
    values = numpy.ones([3, 100_000], numpy.float32)
    roots = certificates["root_cert"]
    for mutual in [False, True]:
        options = {"use_ssl": True, "use_mutual_auth": mutual, **certificates}
        with grpc(server, **options) as front:
            more = dict(zip(["certificate_chain", "private_key"], client_side)) if mutual else {}
            client = tritonclient.grpc.InferenceServerClient(
                f"localhost:{front.port}", ssl=True, root_certificates=roots, **more)
            result = client.infer("echo", [tensor(tritonclient.grpc, "INPUT0", values, "FP32")])
            assert numpy.array_equal(result.as_numpy("OUTPUT0"), values)
            client.close()
        with http(server, **options) as front:
            context = ssl.create_default_context(cafile=roots)
            if mutual:
                context.load_cert_chain(*client_side)
            url = f"https://localhost:{front.port}/v2/health/ready"
            assert urllib.request.urlopen(url, context=context, timeout=300).status == 200
            with raises(Exception):
                urllib.request.urlopen(url.replace("https", "http"), timeout=300)
    missing = KServeGrpc(server, KServeGrpc.Options(use_ssl=True, server_cert="/nowhere", server_key="/nowhere"))
    with raises(tritonserver.InvalidArgumentError, "/nowhere"):
        missing.start()
    server.stop()


@case
def headers_are_forwarded_by_their_patterns():
    folder = repository()
    write(folder, "words/1/model.py", """
import json
import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        texts = [json.dumps(sorted(json.loads(request.parameters() or "{}"))) for request in requests]
        tensors = [pb_utils.Tensor("WORDS", numpy.array([text], dtype=numpy.object_)) for text in texts]
        return [pb_utils.InferenceResponse([tensor]) for tensor in tensors]
""")
    server = started(folder, "words")
    options = {http: "header_forward_pattern", grpc: "forward_header_pattern"}
    for module, front_of, client_of in MODULES:
        with front_of(server, **{options[front_of]: "x-own-.*"}) as front, client_of(front) as client:
            headers = {"x-own-1": "a", "x-other": "b"}
            names = client.infer("words", words(module, "a"), headers=headers).as_numpy("WORDS")[0]
            assert "x-own-1" in names.decode().lower() and "x-other" not in names.decode().lower(), names
        with raises(tritonserver.InvalidArgumentError, options[front_of]):
            opened(KServeHttp if front_of is http else KServeGrpc, server, **{options[front_of]: "("})
    server.stop()


@case
def the_other_options_have_their_effect():
    folder = repository()
    server = started(folder, "echo")
    values = numpy.zeros([100, 1000], numpy.float32)
    level = KServeGrpc.Grpc_compression_level
    options = {
        "infer_compression_level": level.HIGH,
        "keepalive_time_ms": 1000,
        "keepalive_permit_without_calls": True,
        "max_connection_age_ms": 60_000,
        "infer_thread_count": 1,
        "max_response_pool_size": 1,
    }
    with grpc(server, **options) as front, grpc_client(front) as client:
        result = client.infer("echo", [tensor(tritonclient.grpc, "INPUT0", values, "FP32")])
        assert numpy.array_equal(result.as_numpy("OUTPUT0"), values)
    with grpc(server, max_receive_message_size=1000) as front, grpc_client(front) as client:
        with raises(InferenceServerException, "RESOURCE_EXHAUSTED"):
            client.infer("echo", [tensor(tritonclient.grpc, "INPUT0", values, "FP32")])
    with http(server, max_input_size=1000) as front:
        one = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 1000], "data": [0] * 1000}
        status, text = ask(front.port, "/v2/models/echo/infer", {"inputs": [one]})
        assert status == 400 and "1000" in text, text
    path = os.path.join(tempfile.mkdtemp(), "socket")
    with http(server, uds=path, thread_count=3):
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(path)
            peer.sendall(b"GET /v2/health/ready HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert peer.recv(100).startswith(b"HTTP/1.1 200")
    assert not os.path.exists(path)
    with http(server, reuse_port=True) as one:
        with http(server, reuse_port=True, port=one.port) as other:
            assert one.port == other.port
    server.stop()


@case
def clients_register_no_shared_memory():
    folder = repository()
    server = started(folder, "echo")
    with http(server) as front, http_client(front) as client:
        with raises(InferenceServerException):
            client.register_system_shared_memory("region", "/region", 64)
    server.stop()


@case
def options_are_checked_as_in_tritons_package():
    assert KServeHttp.Options() == KServeHttp.Options("0.0.0.0", 8000, False, 8, "")
    assert KServeGrpc.Options().port == 8001 and Metrics.Options() == Metrics.Options("0.0.0.0", 8002, 1)
    assert KServeHttp.Options(port="8005").port == 8005
    level = KServeGrpc.Grpc_compression_level
    for given in [level.HIGH, 3]:
        assert type(KServeGrpc.Options(infer_compression_level=given).infer_compression_level) is int
    assert [one.value for one in level] == [0, 1, 2, 3, 4] and level.COUNT.name == "COUNT"
    keepalive = ["keepalive_time_ms", "keepalive_timeout_ms", "http2_max_pings_without_data", "http2_max_ping_strikes"]
    keepalive += ["max_connection_age_ms", "max_connection_age_grace_ms"]
    keepalive += ["http2_min_recv_ping_interval_without_data_ms"]
    sizes = ["infer_thread_count", "infer_allocation_pool_size", "max_response_pool_size"]
    wrong = [(KServeGrpc, name, -1) for name in [*keepalive, *sizes]]
    for kind in [KServeHttp, KServeGrpc, Metrics]:
        wrong += [(kind, "port", value) for value in [-15, 65536, "a port", None]] + [(kind, "address", 10)]
    wrong += [(kind, "thread_count", value) for kind in [KServeHttp, Metrics] for value in [0, -5, "many"]]
    wrong += [(KServeHttp, "header_forward_pattern", 10), (KServeGrpc, "forward_header_pattern", 10)]
    wrong += [(KServeHttp, "reuse_port", "perhaps"), (KServeGrpc, "infer_compression_level", "much")]
    wrong += [(kind, "io_engine", "tape") for kind in [KServeHttp, KServeGrpc, Metrics]]
    wrong += [(KServeHttp, "restricted_features", "all"), (KServeHttp, "drain_timeout_ms", -1)]
    for kind, name, value in wrong:
        with raises(ValueError):
            kind.Options(**{name: value})
    for kind in [KServeHttp, KServeGrpc, Metrics]:
        with raises(ValueError):
            kind.Options(no_such_option=1)
    server = started(repository())
    for kind in [KServeHttp, KServeGrpc, Metrics]:
        for options in [{"port": 1}, "options", (KServeGrpc if kind is KServeHttp else KServeHttp).Options()]:
            text = f"options argument must be of type {kind.__name__}.Options"
            with raises(tritonserver.InvalidArgumentError, text):
                kind(server, options)
    with raises(tritonserver.InvalidArgumentError, "infer_compression_level must be 0"):
        KServeGrpc(server, KServeGrpc.Options(infer_compression_level=level.COUNT))
    server.stop()
    for kind in [KServeHttp, KServeGrpc, Metrics]:
        with raises(tritonserver.InvalidArgumentError, "Server not started"):
            kind(server)
    assert ENGINE and tritonfrontend.__version__ == tritonserver.__version__


if __name__ == "__main__":
    run(sys.argv[1:])
