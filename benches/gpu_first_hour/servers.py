#!/usr/bin/env python3
"""Whole servers on the host's GPU, each compared with what numpy computes, and their figures.

    servers.py --server=target/release/nereid [--onnxruntime=DIRECTORY] [--sanitizer=compute-sanitizer] [NAME …]

Each check prints one line, `PASS`, `FAIL` or `SKIPPED`, and what it saw. numpy is needed; torch, onnx and tritonclient
are used where the interpreter has them.
"""

import argparse
import base64
import concurrent.futures
import contextlib
import ctypes
import http.client
import importlib
import importlib.util
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
GPU = "instance_group { kind: KIND_GPU gpus: [ 0 ] }\n"
AFFINE = """backend: "affine" max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }
parameters { key: "scale" value { string_value: "2" } }
parameters { key: "bias" value { string_value: "1" } }
"""
RECORDED = """optimization { cuda { graphs: true graph_spec { batch_size: 8 graph_lower_bound { batch_size: 1 }
    input { key: "INPUT0" value { dim: [ 64 ] } } } } }
"""


def ensemble_step(model, maps_in, maps_out):
    """A step of an ensemble; maps are of the model's tensors to those of the ensemble."""
    maps = [("input", *one) for one in maps_in.items()] + [("output", *one) for one in maps_out.items()]
    text = "".join('%s_map { key: "%s" value: "%s" } ' % one for one in maps)
    return 'step { model_name: "%s" model_version: -1 %s}\n' % (model, text)


class Skipped(Exception):
    pass


def needs(module):
    if importlib.util.find_spec(module) is None:
        raise Skipped("no Python package " + module)


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Server:
    """A server over a repository that is written here; stopped at the end of the block."""

    def __init__(self, options, models, *flags, before=(), patience=60, environment=()):
        self.options = options
        self.directory = tempfile.TemporaryDirectory(prefix="nereid-gpu-")
        root = pathlib.Path(self.directory.name)
        for path, content in models.items():
            path = root / "models" / path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
            if path.name == "config.pbtxt":
                (path.parent / "1").mkdir(exist_ok=True)
        self.http, self.grpc, self.metrics = free_ports(3)
        self.log_path = root / "log"
        command = [
            *before, options.server, "--model-repository=%s" % (root / "models"), "--http-port=%d" % self.http,
            "--grpc-port=%d" % self.grpc, "--metrics-port=%d" % self.metrics, "--allow-client-shm=true",
            "--backend-config=python,interpreter=" + sys.executable, *flags,
        ]  # fmt: skip
        if options.onnxruntime:
            command.append("--backend-config=onnxruntime,library=" + options.onnxruntime)
        self.log = open(self.log_path, "wb")
        self.process = subprocess.Popen(
            command, stdout=self.log, stderr=subprocess.STDOUT, env=dict(os.environ, **dict(environment))
        )
        self.patience, self.is_started_by_tool = patience, bool(before)

    def __enter__(self):
        end = time.monotonic() + self.patience
        while True:
            with contextlib.suppress(OSError):
                if self.get("/v2/health/ready")[0] == 200:
                    return self
            if self.process.poll() is not None or time.monotonic() > end:
                text = self.text()
                self.__exit__()
                errors = [line for line in text.splitlines() if re.match(r"E\d|error", line)]
                raise AssertionError("the server is not ready:\n" + "\n".join(errors or [text[-4000:]]))
            time.sleep(0.05)

    def __exit__(self, *_):
        if self.process.poll() is None:
            os.kill(self.pid(), signal.SIGTERM)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.log.close()
        self.last_log = self.text()
        self.directory.cleanup()

    def pid(self):
        """Of the server itself, which a tool may have started."""
        children = pathlib.Path("/proc/%d/task/%d/children" % (self.process.pid, self.process.pid))
        started = children.read_text().split() if self.is_started_by_tool else []
        return int(started[0]) if started else self.process.pid

    def text(self):
        return self.log_path.read_text(errors="replace")

    def errors(self):
        return [line for line in self.last_log.splitlines() if re.match(r"E\d", line) or "panicked" in line]

    def request(self, method, path, body=None, headers=(), port=None):
        connection = http.client.HTTPConnection("127.0.0.1", port or self.http, timeout=60)
        try:
            connection.request(method, path, body, dict(headers))
            answer = connection.getresponse()
            return answer.status, answer.read(), dict(answer.getheaders())
        finally:
            connection.close()

    def get(self, path, port=None):
        status, body, _ = self.request("GET", path, port=port)
        return status, body

    def post(self, path, document):
        status, body, _ = self.request("POST", path, json.dumps(document))
        return status, json.loads(body or b"{}")

    def page(self):
        return self.get("/metrics", self.metrics)[1].decode()

    def client(self, model):
        return Client(self, model)


DATATYPES = {"float32": "FP32", "int64": "INT64", "int32": "INT32", "float16": "FP16"}
TYPES = {datatype: numpy for numpy, datatype in DATATYPES.items()}


class Client:
    """One connection; tensors go and come as bytes."""

    def __init__(self, server, model):
        self.connection = http.client.HTTPConnection("127.0.0.1", server.http, timeout=60)
        self.path = "/v2/models/%s/infer" % model

    def infer(self, inputs, outputs=None):
        tails = [np.ascontiguousarray(array).tobytes() for array in inputs.values()]
        rows = [
            {
                "name": name, "shape": list(array.shape), "datatype": DATATYPES[array.dtype.name],
                "parameters": {"binary_data_size": array.nbytes},
            }
            for name, array in inputs.items()
        ]  # fmt: skip
        head = {"inputs": rows, "parameters": {"binary_data_output": True}}
        if outputs:
            head["outputs"] = [{"name": name, "parameters": {"binary_data": True}} for name in outputs]
        head = json.dumps(head).encode()
        headers = {"Inference-Header-Content-Length": str(len(head))}
        self.connection.request("POST", self.path, b"".join([head, *tails]), headers)
        answer = self.connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise AssertionError("%d: %s" % (answer.status, body[:2000].decode(errors="replace")))
        at = int(answer.getheader("Inference-Header-Content-Length") or len(body))
        made = {}
        for row in json.loads(body[:at])["outputs"]:
            if "data" in row:
                made[row["name"]] = row["data"]
                continue
            length = row["parameters"]["binary_data_size"]
            if row["datatype"] == "BYTES":
                made[row["name"]] = body[at + 4 : at + length]
            else:
                made[row["name"]] = np.frombuffer(body[at : at + length], TYPES[row["datatype"]]).reshape(
                    row["shape"]
                )
            at += length
        return made


def at_once(count, work):
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        return [done.result() for done in [pool.submit(work, number) for number in range(count)]]


def phases(server, model):
    """The mean time of a request in each phase, in microseconds."""
    stats = json.loads(server.get("/v2/models/%s/stats" % model)[1])["model_stats"][0]["inference_stats"]
    means = {
        name: one["ns"] / one["count"] / 1e3
        for name, one in stats.items()
        if one.get("count") and one.get("ns")
    }
    print("    %s, us: %s" % (model, ", ".join("%s %.0f" % one for one in means.items())))


def expect(what, seen, expected):
    if seen != expected:
        raise AssertionError("%s: %r, expected %r" % (what, seen, expected))


def perf(options, server, model, concurrency, *more, protocol="grpc"):
    port = server.grpc if protocol == "grpc" else server.http
    command = [
        options.server, "perf", "-m", model, "-u", "127.0.0.1:%d" % port, "-i", protocol, "-p", "400", "-r", "3",
        "--concurrency-range", str(concurrency), *more,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    lines = (done.stdout + done.stderr).strip().splitlines()
    interesting = [
        line.strip() for line in lines if re.search(r"VOID|hroughput:|p50|p99 |CPU|requests/s|rror", line)
    ]
    print("    %s, %s in flight: %s" % (model, concurrency, " | ".join(interesting[:8]) or lines[-3:]))


# Checks. Each returns what it saw.


def affine(options):
    """The built-in model: batches of many clients, pinned and pageable, and recorded launches."""
    graphs = GPU + "dynamic_batching { }\n" + RECORDED
    models = {
        "plain/config.pbtxt": AFFINE
        + "instance_group { kind: KIND_GPU count: 2 gpus: [ 0 ] } dynamic_batching { }",
        "recorded/config.pbtxt": AFFINE + graphs,
        "on_host/config.pbtxt": AFFINE + "instance_group { kind: KIND_CPU }",
    }
    with Server(options, models, "--log-verbose=1") as server:

        def ask(number):
            clients = {name: server.client(name) for name in ("plain", "recorded")}
            for turn in range(150):
                size = [1, 3, 50, 64, 1_000, 40_000, 150_000][(turn + number) % 7]
                rows = 1 + turn % 3 if size < 1_000 else 1
                values = (np.arange(rows * size, dtype=np.float32) + number * 1_000 + turn).reshape(
                    rows, size
                )
                for name, client in clients.items():
                    made = client.infer({"INPUT0": values})["OUTPUT0"]
                    assert (made == 2 * values + 1).all(), (name, number, turn)

        at_once(8, ask)
        page = server.page()
        statistics = json.loads(server.get("/v2/models/plain/stats")[1])["model_stats"][0]
        for model in ("on_host", "plain", "recorded"):
            for concurrency in (1, 16, 64):
                perf(options, server, model, concurrency, "--shape", "INPUT0:16")
        perf(options, server, "plain", 8, "--shape", "INPUT0:150000")
    seen = [
        line for line in server.last_log.splitlines() if "GPU" in line or "CUDA" in line or "pinned" in line
    ]
    print("\n".join("    " + line for line in seen[:12]))
    names = "nv_gpu_utilization|nv_gpu_memory|nv_gpu_power|nv_energy|nv_inference_count|nv_pinned"
    rows = [line for line in page.splitlines() if re.match(names, line)]
    print("\n".join("    " + line for line in rows))
    expect("errors in the log", server.errors(), [])
    for name in (
        "nv_gpu_utilization",
        "nv_gpu_memory_total_bytes",
        "nv_gpu_power_usage",
        "nv_energy_consumption",
    ):
        assert any(line.startswith(name + '{gpu_uuid="GPU-') for line in rows), name
    count, executions = statistics["inference_count"], statistics["execution_count"]
    return "%d rows in %d executions" % (count, executions)


def placement(options):
    """What does not exist is refused with its text; the memory of a model is given back."""

    def memory(server):
        found = re.search(r"^nv_gpu_memory_used_bytes\{[^}]*\} (\S+)", server.page(), re.M)
        return float(found.group(1)) / 2**20

    models = {
        "one/config.pbtxt": AFFINE + GPU,
        "none/config.pbtxt": AFFINE + "instance_group { kind: KIND_GPU gpus: [ 7 ] }",
    }
    flags = ["--model-control-mode=explicit", "--load-model=one", "--model-load-gpu-limit=0:0.9999"]
    with Server(options, models, *flags) as server:
        status, answer = server.post("/v2/repository/models/none/load", {})
        assert status != 200 and "invalid or unsupported gpu id 7" in answer["error"], answer
        used = [memory(server)]
        for _ in range(3):
            server.client("one").infer({"INPUT0": np.ones((8, 100_000), np.float32)})
            time.sleep(2.2)
            used.append(memory(server))
            expect("unload", server.post("/v2/repository/models/one/unload", {})[0], 200)
            time.sleep(2.2)
            used.append(memory(server))
            expect("load", server.post("/v2/repository/models/one/load", {})[0], 200)
        return "device memory in MiB over loads: " + " ".join("%.0f" % one for one in used)


def network(onnx, path_from, layers, extra=None):
    """An ONNX file: matrix products with Relu between."""
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(7)
    nodes, weights, name = [], [], "x"
    for at, (rows, columns) in enumerate(zip(layers[:-1], layers[1:], strict=True)):
        weight = (random.standard_normal((rows, columns)) / np.sqrt(rows)).astype(np.float32)
        weights.append(numpy_helper.from_array(weight, "w%d" % at))
        nodes.append(helper.make_node("MatMul", [name, "w%d" % at], ["m%d" % at]))
        nodes.append(helper.make_node("Relu", ["m%d" % at], ["r%d" % at]))
        name = "r%d" % at
    outputs = [("y", TensorProto.FLOAT, ["n", layers[-1]])]
    inputs = [("x", TensorProto.FLOAT, ["n", layers[0]])]
    if extra == "host":
        # A shape that the host reads, and an operator that only the CPU has.
        inputs.append(("shape", TensorProto.INT64, [2]))
        nodes.append(helper.make_node("Reshape", [name, "shape"], ["y"]))
        outputs = [("y", TensorProto.FLOAT, ["a", "b"])]
    elif extra == "cpu_node":
        # Only the CPU's provider has it.
        nodes.append(helper.make_node("Det", ["x_square"], ["d"]))
        nodes.insert(0, helper.make_node("Reshape", ["x", "square"], ["x_square"]))
        weights.append(numpy_helper.from_array(np.array([-1, 4, 4], np.int64), "square"))
        nodes.append(helper.make_node("Identity", [name], ["y"]))
        outputs.append(("d", TensorProto.FLOAT, ["n"]))
    else:
        nodes.append(helper.make_node("Identity", [name], ["y"]))
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info(*one) for one in inputs],
        [helper.make_tensor_value_info(*one) for one in outputs],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return model.SerializeToString(), [
        numpy_helper.to_array(weight) for weight in weights if weight.name[0] == "w"
    ]


def computed(values, weights):
    for weight in weights:
        values = np.maximum(values @ weight, 0)
    return values


def close(seen, expected):
    # TF32 may be used by the library.
    return seen.shape == expected.shape and np.allclose(seen, expected, rtol=2e-2, atol=2e-2)


def onnx_models(options):
    """ONNX Runtime's CUDA provider: plain, recorded, with an input or a node on the host, in an ensemble."""
    needs("onnx")
    if not options.onnxruntime:
        raise Skipped("no --onnxruntime")
    import onnx

    small, weights = network(onnx, "x", [16, 64, 8])
    large, large_weights = network(onnx, "x", [256, 2048, 2048, 16])
    on_host, _ = network(onnx, "x", [16, 64, 8], "host")
    on_cpu, _ = network(onnx, "x", [16, 64, 8], "cpu_node")
    batching = 'backend: "onnxruntime" max_batch_size: 32 dynamic_batching { }\n' + GPU
    recorded = """optimization { execution_accelerators { gpu_execution_accelerator {
        name: "cuda" parameters { key: "enable_cuda_graph" value: "1" } } } }\n"""
    flat = '{ name: "%s" data_type: TYPE_FP32 dims: [ -1, -1 ] }'
    ours = [flat.replace("-1 ]", "%d ]" % width) % name for name, width in (("x", 16), ("y", 8))]
    affine_flat = 'backend: "affine" input %s output %s\n' % (flat % "INPUT0", flat % "OUTPUT0") + GPU
    unbatched = 'backend: "onnxruntime" input %s output %s\n' % tuple(ours) + GPU
    steps = [
        ensemble_step("same", {"INPUT0": "x"}, {"OUTPUT0": "a"}),
        ensemble_step("unbatched", {"x": "a"}, {"y": "b"}),
        ensemble_step("same", {"INPUT0": "b"}, {"OUTPUT0": "y"}),
    ]
    chain = 'platform: "ensemble" input %s output %s ensemble_scheduling { %s }' % (*ours, "".join(steps))
    models = {
        "small/1/model.onnx": small, "small/config.pbtxt": batching,
        "large/1/model.onnx": large, "large/config.pbtxt": batching,
        "recorded/1/model.onnx": small, "recorded/config.pbtxt": batching + recorded,
        "recorded_large/1/model.onnx": large, "recorded_large/config.pbtxt": batching + recorded,
        "on_host/1/model.onnx": on_host, "on_host/config.pbtxt": 'backend: "onnxruntime"\n' + GPU,
        "on_cpu/1/model.onnx": on_cpu, "on_cpu/config.pbtxt": 'backend: "onnxruntime" max_batch_size: 32\n' + GPU,
        "cpu_large/1/model.onnx": large,
        "cpu_large/config.pbtxt": 'backend: "onnxruntime" max_batch_size: 32 instance_group { kind: KIND_CPU }\n',
        "unbatched/1/model.onnx": small, "unbatched/config.pbtxt": unbatched,
        "same/config.pbtxt": affine_flat, "chain/config.pbtxt": chain,
    }  # fmt: skip
    random = np.random.default_rng(3)
    flags = ["--log-verbose=1", "--model-control-mode=explicit"]
    names = [name.split("/")[0] for name in models if name.endswith("config.pbtxt")]
    flags += ["--load-model=" + name for name in names if name not in ("recorded", "recorded_large")]
    with Server(options, models, *flags, patience=120) as server:
        stop = threading.Event()

        def keep_asking():
            # A model that serves while another one's recording is made.
            client, count = server.client("small"), 0
            values = random.standard_normal((2, 16)).astype(np.float32)
            while not stop.is_set():
                assert close(client.infer({"x": values})["y"], computed(values, weights))
                count += 1
            return count

        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            asked = pool.submit(keep_asking)
            for name in ("recorded", "recorded_large"):
                status, answer = server.post("/v2/repository/models/%s/load" % name, {})
                expect("load of " + name, (status, answer), (200, {}))
                for rows in (1, 2, 3):
                    width = 16 if name == "recorded" else 256
                    values = random.standard_normal((rows, width)).astype(np.float32)
                    right = weights if name == "recorded" else large_weights
                    assert close(server.client(name).infer({"x": values})["y"], computed(values, right)), name
            stop.set()
            print("    %d requests while two models with recordings were loaded" % asked.result())

        def ask(number):
            own = np.random.default_rng(number)
            clients = {name: server.client(name) for name in names}
            for turn in range(120):
                rows = 1 + (turn + number) % 7
                values = own.standard_normal((rows, 16)).astype(np.float32)
                expected = computed(values, weights)
                for name in ("small", "recorded", "on_cpu", "unbatched", "chain"):
                    made = clients[name].infer({"x": values})
                    assert close(made["y"], expected), (name, number, turn)
                    if name == "on_cpu":
                        right = np.linalg.det(values.reshape(-1, 4, 4))
                        assert np.allclose(made["d"].ravel(), right, rtol=1e-2, atol=1e-2), (made["d"], right)
                shape = np.array([4, rows * 2], np.int64)
                made = clients["on_host"].infer({"x": values, "shape": shape})["y"]
                assert close(made, expected.reshape(4, rows * 2)), ("on_host", number, turn)
                if turn % 4 == 0:
                    values = own.standard_normal((rows, 256)).astype(np.float32)
                    for name in ("large", "recorded_large", "cpu_large"):
                        assert close(
                            clients[name].infer({"x": values})["y"], computed(values, large_weights)
                        ), name

        at_once(8, ask)
        for model, shape in [("small", "x:16"), ("recorded", "x:16"), ("large", "x:256"), ("recorded_large", "x:256"),
                             ("cpu_large", "x:256"), ("on_cpu", "x:16"), ("chain", "x:1,16")]:  # fmt: skip
            for concurrency in (1, 16, 64):
                perf(options, server, model, concurrency, "--shape", shape)
    wanted = r"GPU at the end|on the CPU|graph|provider|error 9|CUDA failure"
    seen = [line for line in server.last_log.splitlines() if re.search(wanted, line)]
    print("\n".join("    " + line[:240] for line in seen[:20]))
    expect("errors in the log", server.errors(), [])
    return "%d models" % len(names)


class Cuda:
    """Memory of GPU 0 in this process, through the driver's library."""

    class Handle(ctypes.Structure):
        _fields_ = [("bytes", ctypes.c_ubyte * 64)]

    def __init__(self):
        try:
            self.library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise Skipped(str(error)) from None
        self.call("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name, *arguments):
        code = getattr(self.library, name)(*arguments)
        assert code == 0, "%s: %d" % (name, code)

    def allocate(self, length):
        at = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(length))
        return at.value

    def handle(self, at):
        handle = Cuda.Handle()
        self.call("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(at))
        return base64.b64encode(bytes(handle.bytes)).decode()

    def write(self, at, array):
        array = np.ascontiguousarray(array)
        self.call(
            "cuMemcpyHtoD_v2",
            ctypes.c_uint64(at),
            array.ctypes.data_as(ctypes.c_void_p),
            ctypes.c_size_t(array.nbytes),
        )

    def read(self, at, count):
        array = np.empty(count, np.float32)
        self.call(
            "cuMemcpyDtoH_v2",
            array.ctypes.data_as(ctypes.c_void_p),
            ctypes.c_uint64(at),
            ctypes.c_size_t(array.nbytes),
        )
        return array


# A client that sends a request 200 times, and prints how long that took, in milliseconds.
REPEAT = """
import http.client, sys, time
connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]))
start = time.perf_counter()
for _ in range(200):
    connection.request("POST", "/v2/models/twice/infer", sys.argv[2])
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    answer.read()
print((time.perf_counter() - start) * 1e3)
"""


def cuda_memory(options):
    """CUDA shared memory of a client in another process, in and out, for models on the GPU and on the host."""
    cuda = Cuda()
    models = {
        "twice/config.pbtxt": AFFINE + GPU,
        "host/config.pbtxt": AFFINE + "instance_group { kind: KIND_CPU }",
        "same/config.pbtxt": 'backend: "identity" input { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }\n'
        'output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } instance_group { kind: KIND_CPU }',
    }
    with Server(options, models) as server:
        length, times = 1 << 24, []
        here = [cuda.allocate(length) for _ in range(4)]
        for at, memory in enumerate(here):
            document = {"raw_handle": {"b64": cuda.handle(memory)}, "device_id": 0, "byte_size": length}
            status, answer = server.post("/v2/cudasharedmemory/region/r%d/register" % at, document)
            expect("registration", (status, answer), (200, {}))
        bad = {"raw_handle": {"b64": base64.b64encode(b"\1" * 64).decode()}, "device_id": 0, "byte_size": 64}
        print("    a wrong handle:", server.post("/v2/cudasharedmemory/region/bad/register", bad))

        def tensor(name, region, offset, count, batched=True):
            where = {
                "shared_memory_region": region,
                "shared_memory_offset": offset,
                "shared_memory_byte_size": 4 * count,
            }
            row = {"name": name, "parameters": where}
            if name.startswith("IN"):
                row.update(datatype="FP32", shape=[1, count] if batched else [count])
            return row

        for turn in range(60):
            count = [1, 16, 1000, 262_144][turn % 4]
            offset = [0, 256, 4096 + 4 * (turn % 3)][turn % 3]
            values = np.arange(count, dtype=np.float32) + turn
            for model, expected in [("twice", 2 * values + 1), ("host", 2 * values + 1), ("same", values)]:
                cuda.write(here[0] + offset, values)
                cuda.write(here[1] + offset, np.full(count + 4, -7, np.float32))
                document = {
                    "inputs": [tensor("INPUT0", "r0", offset, count, model != "same")],
                    "outputs": [tensor("OUTPUT0", "r1", offset, count)],
                }
                start = time.perf_counter()
                status, answer = server.post("/v2/models/%s/infer" % model, document)
                times.append(time.perf_counter() - start)
                expect("answer", status, 200)
                back = cuda.read(here[1] + offset, count + 4)
                assert (back[:count] == expected).all() and (back[count:] == -7).all(), (model, turn, offset)

        def in_processes(regions):
            """The time of the slowest of clients in processes of their own, in milliseconds."""
            children = []
            for region in regions:
                document = {
                    "inputs": [tensor("INPUT0", "r%d" % region, 0, 2_000_000)],
                    "outputs": [tensor("OUTPUT0", "r%d" % (region + 1), 0, 2_000_000)],
                }
                command = [sys.executable, "-c", REPEAT, str(server.http), json.dumps(document)]
                children.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            return max(float(child.communicate(timeout=60)[0]) for child in children)

        alone, together = in_processes([0]), in_processes([0, 2])
        print(
            "    8 MB in, 8 MB out in place, 200 times: %.0f ms; two clients together %.0f ms"
            % (alone, together)
        )
        expect("unregistration", server.post("/v2/cudasharedmemory/unregister", {})[0], 200)
        expect("regions", json.loads(server.get("/v2/cudasharedmemory/status")[1]), [])
    expect("errors in the log", server.errors(), [])
    return "median of all %.0f us" % (np.median(times) * 1e6)


def official_client(options):
    """tritonclient's own module for CUDA shared memory."""
    needs("tritonclient")
    import tritonclient.grpc as grpcclient
    import tritonclient.http as httpclient
    import tritonclient.utils.cuda_shared_memory as cudashm

    with Server(options, {"twice/config.pbtxt": AFFINE + GPU}) as server:
        for kind, port in ((httpclient, server.http), (grpcclient, server.grpc)):
            client = kind.InferenceServerClient("127.0.0.1:%d" % port)
            values = np.arange(1000, dtype=np.float32).reshape(1, 1000)
            given = cudashm.create_shared_memory_region("given", values.nbytes, 0)
            made = cudashm.create_shared_memory_region("made", values.nbytes, 0)
            cudashm.set_shared_memory_region(given, [values])
            client.register_cuda_shared_memory("given", cudashm.get_raw_handle(given), 0, values.nbytes)
            client.register_cuda_shared_memory("made", cudashm.get_raw_handle(made), 0, values.nbytes)
            tensor = kind.InferInput("INPUT0", [1, 1000], "FP32")
            tensor.set_shared_memory("given", values.nbytes)
            result = kind.InferRequestedOutput("OUTPUT0")
            result.set_shared_memory("made", values.nbytes)
            client.infer("twice", [tensor], outputs=[result])
            back = cudashm.get_contents_as_numpy(made, np.float32, [1, 1000])
            assert (back == 2 * values + 1).all()
            client.unregister_cuda_shared_memory()
            for region in (given, made):
                cudashm.destroy_shared_memory_region(region)
    expect("errors in the log", server.errors(), [])
    return "HTTP and gRPC"


PYTHON_MODEL = """
import json
import numpy as np
import torch
import triton_python_backend_utils as pb_utils
from torch.utils.dlpack import from_dlpack

class TritonPythonModel:
    def initialize(self, args):
        self.device = "cuda:" + args["model_instance_device_id"] if args["model_instance_kind"] == "GPU" else "cpu"
        self.matrix = torch.eye(64, device=self.device)

    def execute(self, requests):
        responses = []
        for request in requests:
            given = pb_utils.get_input_tensor_by_name(request, "INPUT0")
            facts = {"is_cpu": given.is_cpu(), "device": self.device}
            tensor = from_dlpack(given.to_dlpack()).to(self.device)
            made = tensor
            # Work that is not complete when the model returns.
            for _ in range(20):
                made = made * 1.0
            made = made * 10
            outputs = [pb_utils.Tensor.from_dlpack("OUTPUT0", made)]
            text = np.array([json.dumps(facts).encode()], dtype=object)
            outputs.append(pb_utils.Tensor("FACTS", text))
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses
"""

CALLER = """
import json
import numpy as np
import torch
import triton_python_backend_utils as pb_utils
from torch.utils.dlpack import from_dlpack

def call(model, tensor, output):
    request = pb_utils.InferenceRequest(model_name=model, inputs=[tensor], requested_output_names=[output])
    response = request.exec()
    if response.has_error():
        raise RuntimeError(response.error().message())
    return response.output_tensors()[0]

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            given = from_dlpack(pb_utils.get_input_tensor_by_name(request, "INPUT0").to_dlpack()).cuda()
            one = call("flat", pb_utils.Tensor.from_dlpack("INPUT0", given), "OUTPUT0")
            two = call("tens", pb_utils.Tensor.from_dlpack("INPUT0", one), "OUTPUT0")
            three = call("flat", pb_utils.Tensor.from_dlpack("INPUT0", two), "OUTPUT0")
            seen = [one.is_cpu(), two.is_cpu(), three.is_cpu()]
            made = from_dlpack(three.to_dlpack()) + 0.5
            text = np.array([json.dumps({"seen": seen}).encode()], dtype=object)
            responses.append(pb_utils.InferenceResponse(
                [pb_utils.Tensor.from_dlpack("OUTPUT0", made), pb_utils.Tensor("FACTS", text)]))
        return responses
"""


def python_models(options):
    """Models in Python with torch on the GPU: tensors that stay there between models, in ensembles and calls."""
    needs("torch")
    tensors = """input { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }
        output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }
        %s"""
    facts = 'output { name: "FACTS" data_type: TYPE_STRING dims: [ 1 ] }\n'
    free = 'parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "no" } }\n'
    pair = 'parameters { key: "%s" value { string_value: "%s" } }\n'
    scale = pair % ("scale", "2") + pair % ("bias", "1")
    steps = [
        ensemble_step("flat", {"INPUT0": "INPUT0"}, {"OUTPUT0": "a"}),
        ensemble_step("tens", {"INPUT0": "a"}, {"OUTPUT0": "b", "FACTS": "FACTS"}),
        ensemble_step("flat", {"INPUT0": "b"}, {"OUTPUT0": "OUTPUT0"}),
    ]
    on_host = "instance_group { kind: KIND_CPU count: 2 }"
    models = {
        "flat/config.pbtxt": 'backend: "affine"\n' + tensors % "" + scale + GPU,
        "tens/config.pbtxt": 'backend: "python"\n' + tensors % facts + free + GPU,
        "tens/1/model.py": PYTHON_MODEL,
        "tens_on_host/config.pbtxt": 'backend: "python"\n' + tensors % facts + GPU,
        "tens_on_host/1/model.py": PYTHON_MODEL,
        "caller/config.pbtxt": 'backend: "python"\n' + tensors % facts + free + on_host,
        "caller/1/model.py": CALLER,
        "chain/config.pbtxt": 'platform: "ensemble"\n' + tensors % facts
        + "ensemble_scheduling { %s }" % "".join(steps),
    }  # fmt: skip
    facts_seen = {}
    with Server(options, models, patience=180) as server:

        def ask(number):
            clients = {name: server.client(name) for name in ("tens", "tens_on_host", "caller", "chain")}
            for turn in range(60):
                size = [1, 5, 3000, 200_000, 0][(turn + number) % 5]
                values = np.arange(size, dtype=np.float32) % 1000 + turn
                once = 2 * values + 1
                right = {
                    "tens": 10 * values,
                    "tens_on_host": 10 * values,
                    "chain": 20 * once + 1,
                    "caller": 20 * once + 1.5,
                }
                for name, client in clients.items():
                    made = client.infer({"INPUT0": values})
                    assert (made["OUTPUT0"] == right[name]).all(), (name, number, turn, size)
                    if size:
                        facts_seen[name] = made["FACTS"].decode()

        at_once(4, ask)
        for model in ("flat", "tens", "chain", "caller"):
            for concurrency in (1, 8):
                perf(options, server, model, concurrency, "--shape", "INPUT0:1000")
            phases(server, model)
    expect("where inputs lay", json.loads(facts_seen["chain"])["is_cpu"], False)
    expect("where inputs lay", json.loads(facts_seen["tens_on_host"])["is_cpu"], True)
    expect("where answers lay", json.loads(facts_seen["caller"])["seen"], [False, False, False])
    expect("errors in the log", server.errors(), [])
    return str(facts_seen)


TORCH_MODEL = """
import torch
from typing import List, Tuple

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))

    def forward(self, values, more):
        return self.layers(values) + more, values.transpose(0, 1).contiguous().transpose(0, 1), more.to(torch.int64)


class Mover(torch.nn.Module):
    def __init__(self, inner: Model):
        super().__init__()
        self.inner = inner

    def forward(self, values, more):
        where = torch.device("cuda:0")
        return self.inner(values.to(where), more.to(where))
"""


def torchscript(options):
    """TorchScript modules on the GPU, with modules of their own and shared ones, and where the file has its tensors."""
    needs("torch")
    import torch

    with tempfile.TemporaryDirectory() as directory:
        # The compiler of modules reads their source from a file.
        pathlib.Path(directory, "made.py").write_text(TORCH_MODEL)
        sys.path.insert(0, directory)
        module = importlib.import_module("made").Model().eval()
        torch.jit.script(module).save(directory + "/host.pt")
        torch.jit.script(module.cuda()).save(directory + "/gpu.pt")
        # An instance of KIND_MODEL gets its inputs on the host.
        torch.jit.script(sys.modules["made"].Mover(module)).save(directory + "/moving.pt")
        names = ("host.pt", "gpu.pt", "moving.pt")
        host, gpu, moving = (pathlib.Path(directory, name).read_bytes() for name in names)
    module.cpu()
    tensors = """platform: "pytorch_libtorch" max_batch_size: 16
        input { name: "INPUT__0" data_type: TYPE_FP32 dims: [ 16 ] }
        input { name: "INPUT__1" data_type: TYPE_FP32 dims: [ 8 ] }
        output { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 8 ] }
        output { name: "OUTPUT__1" data_type: TYPE_FP32 dims: [ 16 ] }
        output { name: "OUTPUT__2" data_type: TYPE_INT64 dims: [ 8 ] }
        dynamic_batching { }\n"""
    key = 'parameters { key: "%s" value { string_value: "true" } }\n'
    three = "instance_group { kind: KIND_GPU count: 3 gpus: [ 0 ] }\n"
    configs = {
        "own": (host, three), "shared": (host, three + key % "ENABLE_WEIGHT_SHARING"),
        "clean": (host, GPU + key % "ENABLE_CACHE_CLEANING"),
        "saved": (moving, "instance_group { kind: KIND_MODEL }\n"),
        "unnamed": (host, ""), "on_host": (gpu, "instance_group { kind: KIND_CPU }\n"),
    }  # fmt: skip
    models = {name + "/1/model.pt": content for name, (content, _) in configs.items()}
    models.update({name + "/config.pbtxt": tensors + more for name, (_, more) in configs.items()})
    with Server(options, models, patience=400) as server:
        for name in configs:
            config = json.loads(server.get("/v2/models/%s/config" % name)[1])
            print("    %s: %s" % (name, config["instance_group"]))

        def ask(number):
            own = np.random.default_rng(number)
            clients = {name: server.client(name) for name in configs}
            for turn in range(60):
                rows = 1 + turn % 5
                values = own.standard_normal((rows, 16)).astype(np.float32)
                more = own.integers(-9, 9, (rows, 8)).astype(np.float32)
                with torch.no_grad():
                    expected = [
                        one.numpy() for one in module(torch.from_numpy(values), torch.from_numpy(more))
                    ]
                for name, client in clients.items():
                    try:
                        made = client.infer({"INPUT__0": values, "INPUT__1": more})
                    except AssertionError as error:
                        raise AssertionError("%s: %s" % (name, str(error)[-600:])) from None
                    assert close(made["OUTPUT__0"], expected[0]), (name, number, turn)
                    assert (made["OUTPUT__1"] == expected[1]).all(), (name, number, turn)
                    assert (made["OUTPUT__2"] == expected[2]).all(), (name, number, turn)

        at_once(6, ask)
        try:
            server.client("own").infer(
                {"INPUT__0": np.ones((1, 17), np.float32), "INPUT__1": np.ones((1, 8), np.float32)}
            )
        except AssertionError as error:
            print("    a wrong shape: %s" % str(error)[:200])
        for name in ("own", "shared", "on_host"):
            for concurrency in (1, 16, 64):
                perf(options, server, name, concurrency)
    expect("errors in the log", server.errors(), [])
    return "%d placements answer as torch on the host" % len(configs)


def tensorrt(options):
    """TensorRT: its library is opened on the GPU, and refuses what is no plan with its own text."""
    if not options.tensorrt:
        raise Skipped("no --tensorrt")
    models = {"junk/1/model.plan": b"ftrt" + b"\1" * 4096, "junk/config.pbtxt": 'backend: "tensorrt"\n'}
    flags = [
        "--model-control-mode=explicit",
        "--backend-config=tensorrt,library=" + options.tensorrt,
        "--log-verbose=1",
    ]
    with Server(options, models, *flags) as server:
        status, answer = server.post("/v2/repository/models/junk/load", {})
        assert status != 200 and "unable to create TensorRT engine" in answer["error"], answer
    print("\n".join("    " + line[:200] for line in server.last_log.splitlines() if "ensorRT" in line))
    return answer["error"]


def sanitized(options):
    """The server under compute-sanitizer: no wrong access, no leak of device memory."""
    sanitizer = shutil.which(options.sanitizer)
    if sanitizer is None:
        raise Skipped("no " + options.sanitizer)
    report = pathlib.Path(tempfile.gettempdir(), "nereid-sanitizer")
    before = [sanitizer, "--tool=memcheck", "--leak-check=full", "--log-file=%s" % report]
    models = {"plain/config.pbtxt": AFFINE + GPU + "dynamic_batching { }",
              "recorded/config.pbtxt": AFFINE + GPU + RECORDED}  # fmt: skip
    with Server(options, models, before=before, patience=120) as server:
        for name in ("plain", "recorded"):
            client = server.client(name)
            for turn in range(60):
                values = np.arange([1, 64, 1000, 150_000][turn % 4], dtype=np.float32)[None]
                assert (client.infer({"INPUT0": values})["OUTPUT0"] == 2 * values + 1).all()
    text = report.read_text()
    print("\n".join("    " + line for line in text.splitlines()[-25:]))
    found = re.search(r"ERROR SUMMARY: (\d+) error", text)
    assert found and found.group(1) == "0", "errors were reported"
    return found.group(0)


CHECKS = [
    affine,
    placement,
    onnx_models,
    cuda_memory,
    official_client,
    python_models,
    torchscript,
    tensorrt,
    sanitized,
]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", required=True)
    parser.add_argument("--onnxruntime")
    parser.add_argument("--tensorrt", help="the library, or its directory")
    parser.add_argument("--sanitizer", default="compute-sanitizer")
    parser.add_argument("names", nargs="*", help="of " + " ".join(check.__name__ for check in CHECKS))
    options = parser.parse_args()
    failed = 0
    for check in CHECKS:
        if options.names and check.__name__ not in options.names:
            continue
        start = time.monotonic()
        try:
            verdict = "PASS %s: %s" % (check.__name__, check(options))
        except Skipped as reason:
            verdict = "SKIPPED %s: %s" % (check.__name__, reason)
        except Exception:
            failed += 1
            verdict = "FAIL %s: %s" % (check.__name__, traceback.format_exc())
        print("%s (%.0f s)" % (verdict, time.monotonic() - start), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
