#!/usr/bin/env python3
"""What one request costs a Python program, by three ways to the same library in the same process.

    python benches/python_api.py [--requests 2000] [--rounds 9]

Run it with an interpreter in whose environment the wheel is installed (python/build), or NVIDIA's own packages. The ways
are: the C interface through `ctypes`, which needs no extension module; the package's binding (`tritonserver._c`); and the
package's in-process API above that (`tritonserver`). Each sends an array of 16 floats to a model that returns it, waits,
and makes an array of the output. The ways take turns; a row is the median round.
"""

import argparse
import ctypes
import os
import pathlib
import queue
import statistics
import tempfile
import time

import numpy
import tritonserver
from tritonserver import _c

CONFIG = """
backend: "identity"
input { name: "INPUT0" data_type: TYPE_FP32 dims: 16 }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: 16 }
"""
FP32, CPU, FINAL = 11, 0, 1
POINTER, TEXT, SIZE, INT64, INT = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int64, ctypes.c_int
ALLOCATE = ctypes.CFUNCTYPE(
    POINTER, POINTER, TEXT, SIZE, INT, INT64, POINTER, ctypes.POINTER(POINTER), POINTER, ctypes.POINTER(INT),
    ctypes.POINTER(INT64),
)  # fmt: skip
RELEASE_BUFFER = ctypes.CFUNCTYPE(POINTER, POINTER, POINTER, POINTER, SIZE, INT, INT64)
RELEASED = ctypes.CFUNCTYPE(None, POINTER, ctypes.c_uint32, POINTER)
ANSWERED = ctypes.CFUNCTYPE(None, POINTER, ctypes.c_uint32, POINTER)


class ThroughCtypes:
    """A request by ctypes alone."""

    name = "ctypes over the C interface"

    def __init__(self, server):
        own = pathlib.Path(tritonserver.__file__).with_name("libtritonserver.so")
        self.library = ctypes.CDLL(str(own) if own.exists() else "libtritonserver.so")
        self.server = POINTER(server._ptr())
        self.delivered = queue.SimpleQueue()
        self.buffers = {}
        self.new = self.function("InferenceRequestNew", ctypes.POINTER(POINTER), POINTER, TEXT, INT64)
        self.delete = self.function("InferenceRequestDelete", POINTER)
        self.add = self.function(
            "InferenceRequestAddInput", POINTER, TEXT, INT, ctypes.POINTER(INT64), ctypes.c_uint64
        )
        self.append = self.function("InferenceRequestAppendInputData", POINTER, TEXT, POINTER, SIZE, INT, INT64)
        self.on_release = self.function("InferenceRequestSetReleaseCallback", POINTER, RELEASED, POINTER)
        self.on_response = self.function(
            "InferenceRequestSetResponseCallback", POINTER, POINTER, POINTER, ANSWERED, POINTER
        )
        self.infer = self.function("ServerInferAsync", POINTER, POINTER, POINTER)
        self.error = self.function("InferenceResponseError", POINTER)
        self.output = self.function(
            "InferenceResponseOutput", POINTER, ctypes.c_uint32, ctypes.POINTER(TEXT), ctypes.POINTER(INT),
            ctypes.POINTER(ctypes.POINTER(INT64)), ctypes.POINTER(ctypes.c_uint64), ctypes.POINTER(POINTER),
            ctypes.POINTER(SIZE), ctypes.POINTER(INT), ctypes.POINTER(INT64), ctypes.POINTER(POINTER),
        )  # fmt: skip
        self.end = self.function("InferenceResponseDelete", POINTER)
        # Functions that C calls must be held.
        self.callbacks = (
            ALLOCATE(self.allocate),
            RELEASE_BUFFER(self.release),
            RELEASED(lambda request, flags, userp: None),
            ANSWERED(lambda response, flags, userp: self.delivered.put((response, flags))),
        )
        self.allocator = POINTER()
        make = self.function(
            "ResponseAllocatorNew", ctypes.POINTER(POINTER), ALLOCATE, RELEASE_BUFFER, POINTER
        )
        assert not make(self.allocator, self.callbacks[0], self.callbacks[1], None)

    def function(self, name, *arguments):
        function = getattr(self.library, f"TRITONSERVER_{name}")
        function.argtypes, function.restype = arguments, POINTER
        return function

    def allocate(self, _allocator, _name, size, _kind, _device, _userp, buffer, _buffer_userp, kind, device):
        memory = ctypes.create_string_buffer(size)
        address = ctypes.addressof(memory)
        self.buffers[address] = memory
        buffer[0], kind[0], device[0] = address, CPU, 0

    def release(self, _allocator, buffer, *_):
        del self.buffers[buffer]

    def request(self, array):
        request = POINTER()
        assert not self.new(request, self.server, b"echo", -1)
        assert not self.add(request, b"INPUT0", FP32, (INT64 * 1)(16), 1)
        assert not self.append(request, b"INPUT0", array.ctypes.data, array.nbytes, CPU, 0)
        assert not self.on_release(request, self.callbacks[2], None)
        assert not self.on_response(request, self.allocator, None, self.callbacks[3], None)
        assert not self.infer(self.server, request, None)
        response, flags = self.delivered.get()
        assert flags & FINAL and not self.error(response)
        name, kind, shape, dims = TEXT(), INT(), ctypes.POINTER(INT64)(), ctypes.c_uint64()
        base, size, memory, device, userp = POINTER(), SIZE(), INT(), INT64(), POINTER()
        assert not self.output(response, 0, name, kind, shape, dims, base, size, memory, device, userp)
        result = numpy.frombuffer(self.buffers[base.value], numpy.float32).reshape(shape[: dims.value])
        checked = result[3] == array[3]
        del result
        self.end(response)
        # Its release callback has come: this model releases a request before it answers.
        self.delete(request)
        return checked


class Future:
    """The least that a binding sets a result of."""

    def __init__(self):
        self.results = queue.SimpleQueue()

    def done(self):
        return False

    def set_result(self, result):
        self.results.put(result)


def next_response(request):
    # NVIDIA's binding has futures only.
    if hasattr(request, "_next"):
        return request._next()
    future = Future()
    request.get_next_response(future)
    return future.results.get()


class ThroughBinding:
    """A request by the binding alone."""

    name = "binding (`tritonserver._c`)"

    def __init__(self, server):
        self.server = server._server

    def request(self, array):
        request = _c.TRITONSERVER_InferenceRequest(self.server, "echo", -1)
        request.add_input("INPUT0", _c.TRITONSERVER_DataType.FP32, array.shape)
        request.append_input_data("INPUT0", array.ctypes.data, array.nbytes, _c.TRITONSERVER_MemoryType.CPU, 0)
        self.server.infer_async(request)
        response, flags = next_response(request)
        response.throw_if_response_error()
        _name, _kind, shape, base, size, _memory, _device = response.output(0)
        result = numpy.frombuffer((ctypes.c_char * size).from_address(base), numpy.float32).reshape(shape)
        return flags == FINAL and result[3] == array[3]


class ThroughApi:
    """A request by the in-process API."""

    name = "in-process API (`tritonserver`)"

    def __init__(self, server):
        self.model = server.model("echo")

    def request(self, array):
        (response,) = self.model.infer(inputs={"INPUT0": array})
        return numpy.from_dlpack(response.outputs["OUTPUT0"])[3] == array[3]


def measure(way, array, count):
    """Microseconds of each request, and of the process's CPU time for one."""
    times = []
    cpu = time.process_time_ns()
    for _ in range(count):
        before = time.perf_counter_ns()
        assert way.request(array)
        times.append((time.perf_counter_ns() - before) / 1000)
    return sorted(times), (time.process_time_ns() - cpu) / 1000 / count


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.makedirs(os.path.join(folder, "echo", "1"))
        pathlib.Path(folder, "echo", "config.pbtxt").write_text(CONFIG)
        server = tritonserver.Server(model_repository=folder, metrics=False).start(wait_until_ready=True)
        array = numpy.arange(16, dtype=numpy.float32)
        ways = [kind(server) for kind in (ThroughCtypes, ThroughBinding, ThroughApi)]
        rounds = {way.name: [] for way in ways}
        for way in ways:
            measure(way, array, options.requests // 4)
        for _ in range(options.rounds):
            for way in ways:
                rounds[way.name].append(measure(way, array, options.requests))
        print("| way | p50 µs | p99 µs | CPU µs a request, all threads |\n|---|---|---|---|")
        for name, measured in rounds.items():
            p50, p99 = (
                statistics.median(times[int(len(times) * share)] for times, _ in measured) for share in (0.5, 0.99)
            )
            cpu = statistics.median(cpu for _, cpu in measured)
            print(f"| {name} | {p50:.1f} | {p99:.1f} | {cpu:.1f} |")
        server.stop()


if __name__ == "__main__":
    main()
