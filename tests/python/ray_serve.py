"""Servers in Ray Serve: two raylets on this host, replicas with a server inside and beside.

For the package of the wheel and Ray. Arguments: names of cases, or none for all. The cases share one cluster.
"""

import gzip
import json
import os
import pathlib
import signal
import sys
import threading
import time
import urllib.error
import urllib.request

import ray_support
from api_support import repository, write
from cases import case, raises, run
from ray_support import cluster, command_of, free_port, runs, servers_beside, until

SLOW = """
backend: "python"
input [ { name: "SECONDS" data_type: TYPE_FP32 dims: 1 },
        { name: "PATH" data_type: TYPE_STRING dims: 1 optional: true } ]
output { name: "SECONDS" data_type: TYPE_FP32 dims: 1 }
"""
SLOW_MODEL = """
import pathlib
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            seconds = pb_utils.get_input_tensor_by_name(request, "SECONDS")
            path = pb_utils.get_input_tensor_by_name(request, "PATH")
            if path is not None:
                pathlib.Path(path.as_numpy()[0].decode() + ".begun").touch()
            time.sleep(float(seconds.as_numpy()[0]))
            if path is not None:
                pathlib.Path(path.as_numpy()[0].decode() + ".done").touch()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("SECONDS", seconds.as_numpy())]))
        return responses
"""
REPEAT = """
backend: "repeat" model_transaction_policy { decoupled: true }
input [ { name: "IN" data_type: TYPE_INT32 dims: -1 }, { name: "DELAY" data_type: TYPE_UINT32 dims: -1 },
        { name: "WAIT" data_type: TYPE_UINT32 dims: 1 } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: 1 }, { name: "IDX" data_type: TYPE_UINT32 dims: 1 } ]
"""
TUTORIAL = """
backend: "python" max_batch_size: 8 dynamic_batching { }
input { name: "string_input" data_type: TYPE_STRING dims: 1 }
output { name: "string_output" data_type: TYPE_STRING dims: 1 }
"""
TUTORIAL_MODEL = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        texts = [pb_utils.get_input_tensor_by_name(request, "string_input").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("string_output", text)]) for text in texts]
"""
# A share of a raylet, and nothing that keeps replicas apart.
SMALL = {"ray_actor_options": {"num_cpus": 0.1}}


def models():
    folder = repository()
    for name, config, model in [("slow", SLOW, SLOW_MODEL), ("identity", TUTORIAL, TUTORIAL_MODEL)]:
        write(folder, f"{name}/config.pbtxt", config)
        write(folder, f"{name}/1/model.py", model)
    write(folder, "repeat/config.pbtxt", REPEAT)
    write(folder, "repeat/1/none", "")
    return folder


class Load:
    """Threads that call until they are stopped; what failed is kept."""

    def __init__(self, call, threads):
        self.failed, self.answered, self.stopped = [], 0, threading.Event()
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self.go, args=(call,)) for _ in range(threads)]
        for thread in self.threads:
            thread.start()

    def go(self, call):
        while not self.stopped.is_set():
            try:
                call()
            except Exception as error:
                self.failed.append(repr(error))
                return
            with self.lock:
                self.answered += 1

    def stop(self):
        self.stopped.set()
        for thread in self.threads:
            thread.join()
        assert not self.failed, self.failed[:3]
        return self.answered


def located(folder, **settings):
    """An application whose replicas also state where they are."""
    import tritonserver
    from nereid.ray import InferenceServer
    from ray import get_runtime_context, serve

    class Located(InferenceServer):
        def where(self):
            return get_runtime_context().get_node_id(), os.getpid()

    options = tritonserver.Options(model_repository=folder.name, exit_timeout=60)
    beside = settings.pop("beside", False)
    head_timeout_s = settings.pop("head_timeout_s", 30.0)
    settings = {"max_ongoing_requests": 16, "graceful_shutdown_timeout_s": 90, "health_check_period_s": 1, **settings}
    return serve.deployment(Located, **settings).bind(options, beside=beside, head_timeout_s=head_timeout_s)


def replicas_of(application):
    from ray import serve

    of = serve.status().applications.get(application)
    counts = [d.replica_states.get("RUNNING", 0) for d in of.deployments.values()] if of else [0]
    return sum(counts)


def http(path, data=None, **options):
    request = urllib.request.Request(f"http://127.0.0.1:{PORT}{path}", data=data, **options)
    return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=300)


def apart(parts):
    """What `parts(delay_ms)` yields, whose last part comes that much later: it was not there yet when the first one came.

    A busy machine may read both late, and then gets another try with a longer delay.
    """
    for delay_ms in (3_000, 15_000, 60_000):
        found = [(time.monotonic(), part) for part in parts(delay_ms)]
        if found[-1][0] - found[0][0] > 0.15:
            break
    assert found[-1][0] - found[0][0] > 0.15, found
    return [part for _, part in found]


@case
def the_pattern_of_the_tutorial_works_unchanged():
    import fastapi
    import tritonserver
    from ray import serve

    api = fastapi.FastAPI()
    scaling = {"min_replicas": 1, "max_replicas": 8, "target_ongoing_requests": 1, "upscale_delay_s": 2}
    scaling |= {"downscale_delay_s": 120, "upscaling_factor": 1, "downscaling_factor": 1}
    scaling |= {"metrics_interval_s": 2, "look_back_period_s": 4}
    path = FOLDER.name

    @serve.deployment(max_ongoing_requests=1, autoscaling_config=scaling, **SMALL)
    @serve.ingress(api)
    class Deployment:
        def __init__(self):
            control = tritonserver.ModelControlMode.EXPLICIT
            self.server = tritonserver.Server(model_repository=[path], model_control_mode=control, log_info=False)
            self.server.start(wait_until_ready=True)
            print(self.server.metadata())
            print(self.server.models())
            self.identity = None
            self.seen = [self.server.model("identity").ready()]
            if not self.server.model("identity").ready():
                self.identity = self.server.load("identity")
                self.seen.append(self.identity.ready())
            print(self.server.models())

        @api.get("/identity")
        def answer(self, string_input: str) -> str:
            responses = list(self.identity.infer(inputs={"string_input": [[string_input]]}))
            return responses[0].outputs["string_output"].to_string_array()[0][0]

        @api.get("/seen")
        def states(self) -> list[bool]:
            return self.seen

    serve.run(Deployment.bind(), name="tutorial", route_prefix="/tutorial")
    with http("/tutorial/identity?string_input=h%C3%A9llo") as response:
        assert json.load(response) == "héllo"
    with http("/tutorial/seen") as response:
        assert json.load(response) == [False, True]
    serve.delete("tutorial")


@case
def replicas_on_two_raylets_drain_without_a_failed_request():
    import numpy
    from nereid.ray import InferenceError
    from ray import serve

    # Each wants the whole of a raylet's CPU.
    on_each = {"ray_actor_options": {"num_cpus": 1}, "graceful_shutdown_wait_loop_s": 0.2}
    handle = serve.run(located(FOLDER, num_replicas=2, **on_each), name="two", route_prefix=None)
    places = set()
    until(lambda: places.add(handle.where.remote().result()) or len(places) == 2, "calls reach both replicas")
    assert len({node for node, _ in places}) == 2, places

    # Arrays of this size come through the object store, and cannot be written to.
    large = numpy.arange(300_000, dtype=numpy.float32).reshape(3, -1)
    got = handle.infer.remote("echo", {"INPUT0": large, "INPUT2": ["a", "ä"]}).result()
    assert (got["OUTPUT0"] == large).all() and got["OUTPUT2"].tolist() == [b"a", "ä".encode()], got
    got = handle.infer.remote("echo", {"INPUT0": large, "INPUT1": [1]}, outputs=["OUTPUT1"]).result()
    assert list(got) == ["OUTPUT1"] and got["OUTPUT1"].tolist() == [1], got
    with raises(InferenceError, "nowhere"):
        handle.infer.remote("nowhere", {"INPUT0": large}).result()
    with raises(InferenceError, "the model failed"):
        handle.infer.remote("words", {"WORDS": ["fail"]}).result()
    def repeat(delay_ms):
        delays = numpy.array([0, 0, delay_ms], "u4")
        return {"IN": numpy.array([7, 8, 9], "i4"), "DELAY": delays, "WAIT": numpy.array([0], "u4")}

    with raises(InferenceError, "call stream"):
        handle.infer.remote("repeat", repeat(0)).result()
    streaming = handle.options(stream=True)
    values = apart(lambda delay_ms: streaming.stream.remote("repeat", repeat(delay_ms)))
    assert [part["OUT"].tolist() for part in values] == [[7], [8], [9]], values

    brief = {"SECONDS": numpy.array([0.05], "f4")}
    long = {"IN": numpy.arange(20, dtype="i4"), "DELAY": numpy.full(20, 100, "u4"), "WAIT": numpy.array([0], "u4")}
    calls = Load(lambda: handle.infer.remote("slow", brief).result(), 6)

    def whole():
        parts = [part["OUT"][0] for part in streaming.stream.remote("repeat", long)]
        assert parts == list(range(20)), parts

    streams = Load(whole, 4)
    until(lambda: calls.answered > 20 and streams.answered > 2, "calls are answered")
    pids = {pid for _, pid in places}
    serve.run(located(FOLDER, num_replicas=1, **on_each), name="two", route_prefix=None)
    until(lambda: replicas_of("two") == 1 and sum(map(runs, pids)) < 2, "one replica is left")
    before = calls.answered
    until(lambda: calls.answered > before + 20, "it answers")
    total = calls.stop() + streams.stop()
    print(f"drained: {total} requests, none failed", flush=True)
    serve.delete("two")


@case
def the_number_of_replicas_follows_the_queue():
    import numpy
    from nereid.ray import QueuePolicy, application
    from ray import serve

    scaling = {"min_replicas": 1, "max_replicas": 2, "upscale_delay_s": 0.5, "downscale_delay_s": 1}
    # The number of requests alone, 8 of 64, is no ground for a second replica.
    scaling |= {"target_ongoing_requests": 64, "metrics_interval_s": 0.5, "look_back_period_s": 1}
    scaling |= {"policy": {"policy_function": QueuePolicy, "policy_kwargs": {"target_pending_requests": 3}}}
    settings = {"autoscaling_config": scaling, "graceful_shutdown_wait_loop_s": 0.2, **SMALL}
    made = application(model_repository=FOLDER.name, exit_timeout=20, **settings)
    handle = serve.run(made, name="scaled", route_prefix=None)
    brief = {"SECONDS": numpy.array([0.2], "f4")}
    a_cancelled_call_frees_its_instance(handle)
    # Two calls: one is executed, one waits, which is below the target.
    few = Load(lambda: handle.infer.remote("slow", brief).result(), 2)
    until(lambda: few.answered > 15, "calls are answered")
    assert replicas_of("scaled") == 1
    many = Load(lambda: handle.infer.remote("slow", brief).result(), 6)
    until(lambda: replicas_of("scaled") == 2, "a queue brings a second replica")
    many.stop()
    few.stop()
    until(lambda: replicas_of("scaled") == 1, "without a queue it goes")
    serve.delete("scaled")


@case
def an_ingress_of_ones_own_streams():
    import fastapi
    import numpy
    import tritonserver
    from nereid.ray import InferenceServer
    from ray import serve
    from starlette.responses import StreamingResponse

    api = fastapi.FastAPI()

    @serve.deployment(graceful_shutdown_wait_loop_s=0.2, **SMALL)
    @serve.ingress(api)
    class Ingress(InferenceServer):
        @api.get("/count")
        async def count(self, to: int, delay_ms: int):
            delays = numpy.zeros(to, "u4")
            delays[-1] = delay_ms
            inputs = {"IN": numpy.arange(to, dtype="i4"), "DELAY": delays, "WAIT": numpy.array([0], "u4")}

            async def lines():
                async for part in self.stream("repeat", inputs):
                    yield f"{part['OUT'][0]}\n"

            return StreamingResponse(lines())

        @api.get("/loaded")
        def loaded(self) -> list[str]:
            return [name for name, _ in self.server.models(exclude_not_ready=True)]

    control = tritonserver.ModelControlMode.EXPLICIT
    options = tritonserver.Options(model_repository=FOLDER.name, model_control_mode=control, exit_timeout=20)
    serve.run(Ingress.bind(options, load=["repeat"]), name="ingress", route_prefix="/ingress")
    with http("/ingress/loaded") as response:
        assert json.load(response) == ["repeat"]

    def lines(delay_ms):
        with http(f"/ingress/count?to=3&delay_ms={delay_ms}") as response:
            yield from response

    assert apart(lines) == [b"0\n", b"1\n", b"2\n"]
    serve.delete("ingress")


@case
def every_option_reaches_a_server_beside():
    import dataclasses

    import tritonserver
    from nereid.ray import ServerLost
    from nereid.ray._flags import flags_of
    from nereid.ray._process import ServerProcess

    log = os.path.join(FOLDER.name, "log")
    limit = tritonserver._api._server.ModelLoadDeviceLimit(tritonserver.InstanceGroupKind.GPU, 0, 0.5)
    given = {
        "model_repository": [FOLDER.name],
        "server_id": "named",
        "model_control_mode": tritonserver.ModelControlMode.EXPLICIT,
        "startup_models": ["echo"],
        "strict_model_config": True,
        "rate_limiter_mode": tritonserver.RateLimitMode.EXEC_COUNT,
        "rate_limiter_resources": [tritonserver.RateLimiterResource("thing", 4, -1)],
        "pinned_memory_pool_size": 1 << 20,
        "cuda_memory_pool_sizes": {0: 1 << 20},
        "cache_config": {"local": {"size": "1048576"}},
        "cache_directory": FOLDER.name,
        "min_supported_compute_capability": 7.0,
        "exit_on_error": False,
        "strict_readiness": False,
        "exit_timeout": 20,
        "buffer_manager_thread_count": 1,
        "model_load_thread_count": 2,
        "model_load_retry_count": 1,
        "model_namespacing": True,
        "enable_peer_access": False,
        "log_file": log,
        "log_info": True,
        "log_warn": True,
        "log_error": True,
        "log_format": tritonserver.LogFormat.ISO8601,
        "log_verbose": 1,
        "metrics": False,
        "gpu_metrics": False,
        "cpu_metrics": False,
        "metrics_interval": 1000,
        "backend_directory": FOLDER.name,
        "repo_agent_directory": FOLDER.name,
        "model_load_device_limits": [limit],
        "backend_configuration": {"python": {"shm-default-byte-size": "1048576"}, "": {"default-max-batch-size": "2"}},
        "host_policies": {"here": {"cpu-cores": "0-0"}},
        "metrics_configuration": {"": {"counter_latencies": "true"}},
    }
    names = {field.name for field in dataclasses.fields(tritonserver.Options)} - {"log_callback"}
    assert set(given) == names, set(given) ^ names
    for name, value in given.items():
        assert flags_of(tritonserver.Options(**{name: value})) != flags_of(tritonserver.Options()), name
    with raises(ValueError, "log_callback"):
        flags_of(tritonserver.Options(log_callback=print))
    with raises(ServerLost, "ended with status 1"):
        ServerProcess(["--model-repository=/nowhere"], 120)
    process = ServerProcess(flags_of(tritonserver.Options(**{**given, "metrics": True})), 120)
    status, body = process.ask("/v2")
    assert status == 200 and json.loads(body)["name"] == "named", body
    assert process.ask("/v2/models/echo/ready")[0] == 200
    assert process.ask("/v2/models/words/ready")[0] != 200
    status, body = process.ask("/metrics", at=process.metrics)
    assert status == 200 and b"nv_inference_pending_request_count" in body and b"nv_cpu_utilization" not in body, body
    process.stop(30)
    assert process.status == 0 and not process.is_running(), process.status
    text = pathlib.Path(log).read_text()
    assert "named" in text and "Z" in text.split()[0], text[:300]


@case
def a_server_beside_speaks_its_whole_protocol_and_ends_with_its_replica():
    import numpy
    from nereid.ray import InferenceError, application
    from ray import serve

    settings = {"exit_timeout": 20, "health_check_period_s": 0.5, "graceful_shutdown_wait_loop_s": 0.2, **SMALL}
    made = application(model_repository=FOLDER.name, server_id="beside", http=True, **settings)
    handle = serve.run(made, name="beside", route_prefix="/beside")
    (first,) = servers_beside()
    with http("/beside/v2") as response:
        assert json.load(response)["name"] == "beside"
    body = {"inputs": [{"name": "INPUT1", "datatype": "INT64", "shape": [2], "data": [1, 2]}]}
    with http("/beside/v2/models/echo/infer", json.dumps(body).encode()) as response:
        outputs = {output["name"]: output["data"] for output in json.load(response)["outputs"]}
    assert outputs["OUTPUT1"] == [1, 2], outputs
    # A client that asks for no coding gets none.
    with http("/beside/v2/models/echo/config", headers={"Accept-Encoding": "identity"}) as response:
        assert response.headers["Content-Encoding"] is None and json.load(response)["name"] == "echo"
    body, coding = json.dumps(body).encode(), {"Accept-Encoding": "gzip"}
    with http("/beside/v2/models/echo/infer", body, headers=coding) as response:
        coded = response.headers["Content-Encoding"], response.read()
    assert coded[0] == "gzip" and b"OUTPUT1" in gzip.decompress(coded[1]), coded
    for path in ["models/nowhere", "health/live%3Fx"]:
        with raises(urllib.error.HTTPError, "404"):
            http(f"/beside/v2/{path}")

    def events(delay_ms):
        body = json.dumps({"IN": [7, 8, 9], "DELAY": [0, 0, delay_ms], "WAIT": 0}).encode()
        with http("/beside/v2/models/repeat/generate_stream", body) as response:
            yield from (json.loads(line[5:]) for line in response if line.startswith(b"data:"))

    found = apart(events)
    assert [event["OUT"] for event in found] == [7, 8, 9], found

    array = numpy.arange(6, dtype=numpy.float32).reshape(2, 3)
    inputs = {"INPUT0": array, "INPUT2": ["a", "ä"]}
    got = handle.infer.remote("echo", inputs, request_id="1", parameters={"a": 1, "b": "c", "d": False}).result()
    assert (got["OUTPUT0"] == array).all() and got["OUTPUT2"].tolist() == [b"a", "ä".encode()], got
    with raises(InferenceError, "nowhere"):
        handle.infer.remote("nowhere", inputs).result()
    repeat = {"IN": numpy.array([7, 8], "i4"), "DELAY": numpy.array([0, 0], "u4"), "WAIT": numpy.array([0], "u4")}
    parts = list(handle.options(stream=True).stream.remote("repeat", repeat))
    assert [part["OUT"].tolist() for part in parts] == [[7], [8]], parts

    a_cancelled_call_frees_its_instance(handle)

    # A server that dies fails the health check, so Ray replaces the replica.
    os.kill(first, signal.SIGKILL)
    (second,) = until(lambda: servers_beside() - {first}, "a new replica with a new server")
    until(lambda: answers(handle), "the new replica answers")
    # A replica that dies takes its server along.
    replica = int(pathlib.Path(f"/proc/{second}/stat").read_text().rpartition(")")[2].split()[1])
    assert "ServeReplica" in command_of(replica), command_of(replica)
    os.kill(replica, signal.SIGKILL)
    until(lambda: not runs(second), "the server ends with its replica")
    (third,) = until(lambda: servers_beside() - {first, second}, "a new replica with a new server")
    serve.delete("beside")
    until(lambda: not runs(third), "the server ends with the application")


def a_cancelled_call_frees_its_instance(handle):
    waiting = handle.infer.remote("words", {"WORDS": ["wait", "once"]})

    def unanswered():
        call = handle.infer.remote("words", {"WORDS": ["behind"]})
        try:
            call.result(timeout_s=1)
        except TimeoutError:
            return call

    # Once the only instance executes it, nothing else is answered. Ray may deliver calls in another order before.
    behind = until(unanswered, "the call takes the instance")
    waiting.cancel()
    assert behind.result()["WORDS"].tolist() == [b"behind"]


def answers(handle):
    try:
        return "OUTPUT1" in handle.infer.remote("echo", {"INPUT1": [1]}).result()
    except Exception:
        return False


@case
def without_its_head_a_replica_answers_and_exits():
    """The last one: it leaves the cluster without a head."""
    import numpy
    from ray import serve

    second = {"ray_actor_options": {"num_cpus": 0.1, "resources": {"second": 0.1}}, "head_timeout_s": 3}
    handles, pids = [], []
    for beside in (False, True):
        name = f"headless-{beside}"
        handles.append(serve.run(located(FOLDER, beside=beside, **second), name=name, route_prefix=None))
        pids.append(handles[-1].where.remote().result()[1])
    (server,) = servers_beside()
    calls = []
    for handle, pid in zip(handles, pids):
        path = os.path.join(FOLDER.name, str(pid))
        inputs = {"SECONDS": numpy.array([6], "f4"), "PATH": [path]}
        calls.append(handle.infer.remote("slow", inputs))
        until(lambda: os.path.exists(path + ".begun"), "the request is executed")
    logs = pathlib.Path(CLUSTER.head_node.get_session_dir_path(), "logs")
    CLUSTER.head_node.kill_gcs_server()
    for call, pid in zip(calls, pids):
        assert call.result()["SECONDS"] == 6, "the answer did not arrive"
        until(lambda: not runs(pid), "the replica exits")
        assert os.path.exists(os.path.join(FOLDER.name, f"{pid}.done")), "the request was not executed to its end"
        reasons = [line for file in logs.rglob(f"worker-*{pid}.err") for line in file.read_text().splitlines()]
        (reason,) = [line for line in reasons if line.startswith("nereid replica exited: ")]
        assert "accepted no connection for 3 s; 0 requests were not answered" in reason, reason
    until(lambda: not runs(server), "the server beside ends, too")


def main():
    global CLUSTER, FOLDER, PORT
    from ray import serve

    FOLDER, PORT = models(), free_port()
    CLUSTER = cluster()
    serve.start(http_options={"host": "127.0.0.1", "port": PORT})
    run(sys.argv[1:])
    # What is left ends with the supervisor.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    ray_support.supervised(main)
