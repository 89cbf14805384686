"""Where the time of a request through NVIDIA Dynamo goes: one client, one request at a time, four numbers in a tensor.

    dynamo_cost.py [REQUESTS]

Prints medians in microseconds: inside a program, through the ports of a server (`nereid`), and through Dynamo; then the
means that Dynamo and the server measured themselves while the last ones ran.
"""

import pathlib
import re
import subprocess
import sys
import time

from dynamo_system import GRPC, METRICS, System, get, own_network, start, until, write

if __name__ == "__main__":
    # Before the imports that start threads.
    own_network()

import numpy
import tritonclient.grpc as grpcclient
import tritonserver
import uvloop

import dynamo_wire
from dynamo_repository import is_ready

PORT = 8001
# Of the lines that Dynamo writes for each request all but one go away.
QUIET = {"DYN_LOG": "warn"}
CONFIG = """
backend: "identity" max_batch_size: 0
input { name: "INPUT0" data_type: TYPE_FP32 dims: -1 }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: -1 }
"""
VALUES = numpy.array([1, 2, 3, 4], numpy.float32)


def median_us(times):
    return sorted(times)[len(times) // 2] * 1e6


def timed(call, count):
    for _ in range(count // 10):
        call()
    times = []
    for _ in range(count):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return median_us(times)


async def awaited(model, count):
    """As Dynamo's worker does it."""
    times = []
    for _ in range(count):
        start = time.perf_counter()
        request = model.create_request()
        request.inputs["INPUT0"] = VALUES
        async for response in model.async_infer(request):
            numpy.from_dlpack(response.outputs["OUTPUT0"])
        times.append(time.perf_counter() - start)
    return median_us(times[count // 10:])


def client_of(port):
    client = grpcclient.InferenceServerClient(f"127.0.0.1:{port}")
    tensor = grpcclient.InferInput("INPUT0", [4], "FP32")
    tensor.set_data_from_numpy(VALUES)
    return client, lambda: client.infer("echo", [tensor])


def sum_and_count(text, family, labels=""):
    """Of a histogram in seconds, over all label sets that contain the labels."""
    pattern = rf"^{family}_%s{{[^}}]*{labels}[^}}]*}} (\S+)$"
    return [sum(map(float, re.findall(pattern % kind, text, re.M))) for kind in ("sum", "count")]


def mean_us(before, after):
    return (after[0] - before[0]) / (after[1] - before[1]) * 1e6


def server_us(text):
    of = lambda family: float(re.search(rf'^{family}{{model="echo",version="1"}} (\S+)$', text, re.M).group(1))
    return of("nv_inference_request_duration_us") / 1e6, of("nv_inference_request_success")


def main(count):
    with System() as system:
        models = system.folder / "models"
        write(models, "echo/config.pbtxt", CONFIG)
        write(models, "echo/1/none", "")

        server = tritonserver.Server(model_repository=str(models)).start(wait_until_ready=True)
        model = server.model("echo")
        direct = timed(lambda: list(model.infer(inputs={"INPUT0": VALUES})), count)
        print(f"{direct:6.0f} in a program, infer()")
        print(f"{uvloop.run(awaited(model, count)):6.0f} in a program, async_infer() under uvloop")
        server.stop()

        flags = [f"--model-repository={models}", f"--grpc-port={PORT}", "--allow-http=false", "--allow-metrics=false"]
        nereid = pathlib.Path(sys.executable).with_name("nereid")
        serving = start([nereid, *flags], stdout=subprocess.DEVNULL)
        client, call = client_of(PORT)
        until(lambda: is_ready(client, "echo"))
        print(f"{timed(call, count):6.0f} through gRPC, nereid alone")
        serving.terminate()
        serving.wait()

        system.grpc_frontend(**QUIET)
        client, call = client_of(GRPC)
        alone = dynamo_wire.Worker(system.folder / "discovery", "echo")
        until(lambda: is_ready(client, "echo"))
        print(f"{timed(call, count):6.0f} through gRPC, Dynamo's frontend, and a worker that only gives back")
        alone.leave()
        until(lambda: not is_ready(client, "echo"))

        worker = system.worker("triton", models, "--log-info", "false", DYN_SYSTEM_PORT="9090", **QUIET)
        until(lambda: is_ready(client, "echo"))

        def measured():
            of_worker, of_frontend = get("http://127.0.0.1:9090/metrics"), get(f"http://127.0.0.1:{METRICS}/metrics")
            return (sum_and_count(of_frontend, "dynamo_frontend_request_duration_seconds"),
                    sum_and_count(of_worker, "dynamo_component_request_duration_seconds"), server_us(of_worker))

        timed(call, count // 10)
        before = measured()
        print(f"{timed(call, count):6.0f} through gRPC, Dynamo")
        after = measured()
        names = ("the frontend, from the request to the response", "the worker, from the request to the response",
                 "the server in the worker")
        for name, one, other in zip(names, before, after):
            print(f"{mean_us(one, other):6.0f} mean of {name}")
        worker.kill()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2000)
