"""System shared memory: registered, used for inputs and outputs, and taken back."""

import os
import time

import numpy as np
from tritonclient.grpc import service_pb2 as pb
from tritonclient.utils import shared_memory

from wire import Ask

from forms import RIGHT

BASE = "/v2/systemsharedmemory"


def cases(server):
    key = f"/differential_{os.getpid()}"
    region = shared_memory.create_shared_memory_region("mine", key, 64)
    try:
        yield from with_region(server, region, key)
    finally:
        shared_memory.destroy_shared_memory_region(region)


def masked(server, answer, key):
    text = server.normal(answer)
    return replaced(text, key.strip("/"))


def replaced(value, name):
    if isinstance(value, dict):
        return {key: replaced(one, name) for key, one in value.items()}
    if isinstance(value, list):
        return [replaced(one, name) for one in value]
    return value.replace(name, "<region>") if isinstance(value, str) else value


def with_region(server, region, key):
    def http(name, *args):
        return name, masked(server, server.http(*args), key)

    yield http("status of none", "GET", f"{BASE}/status")
    yield http("status of a missing one", "GET", f"{BASE}/region/mine/status")
    yield http("register", "POST", f"{BASE}/region/mine/register", {"key": key, "offset": 0, "byte_size": 64})
    yield http("register again", "POST", f"{BASE}/region/mine/register", {"key": key, "offset": 0, "byte_size": 64})
    yield http("register nothing", "POST", f"{BASE}/region/other/register", {"key": "/no_such_region", "byte_size": 64})
    yield http("register too much", "POST", f"{BASE}/region/large/register", {"key": key, "byte_size": 6400})
    yield http("status", "GET", f"{BASE}/region/mine/status")
    answer = server.call("SystemSharedMemoryStatus", pb.SystemSharedMemoryStatusRequest())
    yield "SystemSharedMemoryStatus", masked(server, answer, key)
    values = np.array([5, 6, 7, 8], dtype=np.float32)
    shared_memory.set_shared_memory_region(region, [values])
    for name, (offset, size) in {"within": (0, 16), "beyond": (56, 16), "short": (0, 12), "far": (4096, 16)}.items():
        inside = {"shared_memory_region": "mine", "shared_memory_offset": offset, "shared_memory_byte_size": size}
        body = {
            "inputs": [
                {"name": "INPUT0", "datatype": "FP32", "shape": [4], "parameters": inside},
                {"name": "INPUT1", "datatype": "FP32", "shape": [4], "data": RIGHT[3]},
            ]
        }
        yield http(f"input {name}, HTTP", "POST", "/v2/models/add_sub/infer", body)
        message = server.message_of(Ask("add_sub", [RIGHT]))
        from_region = message.inputs.add(name="INPUT0", datatype="FP32", shape=[4])
        for parameter, value in inside.items():
            if isinstance(value, str):
                from_region.parameters[parameter].string_param = value
            else:
                from_region.parameters[parameter].int64_param = value
        yield f"input {name}, gRPC", masked(server, server.call("ModelInfer", message), key)
    for name, size in {"large enough": 16, "too small": 8}.items():
        where = {"shared_memory_region": "mine", "shared_memory_offset": 32, "shared_memory_byte_size": size}
        ask = Ask("add_sub", [("INPUT0", "FP32", [4], [1.0] * 4), RIGHT], outputs=[("OUTPUT0", where), "OUTPUT1"])
        yield http(f"output {name}, HTTP", "POST", "/v2/models/add_sub/infer", server.json_of(ask))
        yield f"output {name}, gRPC", masked(server, server.infer_grpc(ask), key)
        there = shared_memory.get_contents_as_numpy(region, np.float32, [4], 32)
        yield f"output {name}, in the region", there.tolist()
    # The official server lets go of a region some time after the answer that it was used for.
    for _ in range(3000):
        name, answer = http("unregister", "POST", f"{BASE}/region/mine/unregister")
        if "currently in use" not in str(answer):
            break
        time.sleep(0.1)
    yield name, answer
    yield http("unregister again", "POST", f"{BASE}/region/mine/unregister")
    yield http("status afterwards", "GET", f"{BASE}/status")
