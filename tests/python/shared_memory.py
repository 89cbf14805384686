#!/usr/bin/env python3
"""Tensors in the client's shared memory: numbers and strings, in and out, one after the other and many at a time."""

import argparse
import asyncio
import os
import queue

import numpy as np
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException, serialize_byte_tensor

from connect import PROTOCOLS, connect, expect


class Regions:
    """Regions of this process, each known to the server by its own name."""

    def __init__(self, connection):
        self.connection = connection
        self.handles = {}

    def make(self, name, byte_size, arrays=()):
        key = f"/nereid-python-{os.getpid()}-{self.connection.protocol}-{name}"
        handle = shm.create_shared_memory_region(name, key, byte_size)
        self.handles[name] = handle
        if arrays:
            shm.set_shared_memory_region(handle, arrays)
        self.connection.register_system_shared_memory(name, key, byte_size)
        return handle

    def names(self):
        status = self.connection.get_system_shared_memory_status()
        rows = status if self.connection.is_http else status.regions.values()
        return sorted(row["name"] if self.connection.is_http else row.name for row in rows)

    def close(self):
        self.connection.unregister_system_shared_memory()
        expect("regions", self.names(), [])
        for handle in self.handles.values():
            shm.destroy_shared_memory_region(handle)


def shared_input(connection, name, shape, datatype, region, byte_size, offset=0):
    tensor = connection.tensors.InferInput(name, shape, datatype)
    tensor.set_shared_memory(region, byte_size, offset)
    return tensor


def shared_output(connection, name, region, byte_size, offset=0):
    if connection.is_http:
        tensor = connection.tensors.InferRequestedOutput(name, binary_data=True)
    else:
        tensor = connection.tensors.InferRequestedOutput(name)
    tensor.set_shared_memory(region, byte_size, offset)
    return tensor


def numbers(connection, regions):
    """Sum and difference; the results of request n lie behind those of the ones before it."""
    count, size = 16, 64
    first = np.arange(16, dtype=np.int32)
    second = np.full(16, 3, dtype=np.int32)
    regions.make("numbers", 2 * size, [first, second])
    results = regions.make("results", 2 * size * count)
    expect("regions", regions.names(), ["numbers", "results"])

    def asked(number):
        inputs = [
            shared_input(connection, "INPUT0", [1, 16], "INT32", "numbers", size),
            shared_input(connection, "INPUT1", [1, 16], "INT32", "numbers", size, size),
        ]
        outputs = [
            shared_output(connection, "OUTPUT0", "results", size, 2 * size * number),
            shared_output(connection, "OUTPUT1", "results", size, 2 * size * number + size),
        ]
        return inputs, outputs

    def check(number):
        at = 2 * size * number
        total = shm.get_contents_as_numpy(results, np.int32, [16], at)
        difference = shm.get_contents_as_numpy(results, np.int32, [16], at + size)
        expect(f"sum {number}", total.tolist(), (first + second).tolist())
        expect(f"difference {number}", difference.tolist(), (first - second).tolist())

    inputs, outputs = asked(0)
    result = connection.infer("simple", inputs, outputs=outputs)
    output = result.get_output("OUTPUT0")
    expect("shape", output["shape"] if connection.is_http else list(output.shape), [1, 16])
    check(0)
    in_flight(connection, [asked(number) for number in range(1, count)])
    for number in range(count):
        check(number)


def in_flight(connection, asked):
    """All at once, by whatever means the client has for that."""
    if connection.protocol.endswith("-aio"):

        async def gather():
            calls = (connection.client.infer("simple", inputs, outputs=outputs) for inputs, outputs in asked)
            await asyncio.gather(*calls)

        connection._run(gather())
    elif connection.is_http:
        handles = [connection.client.async_infer("simple", inputs, outputs=outputs) for inputs, outputs in asked]
        for handle in handles:
            handle.get_result()
    else:
        answers = queue.Queue()
        for inputs, outputs in asked:
            call = lambda result, error: answers.put(error)
            connection.client.async_infer("simple", inputs, call, outputs=outputs)
        for _ in asked:
            expect("error", answers.get(timeout=300), None)


def strings(connection, regions):
    words = np.array([b"one", b"", "drei".encode(), b"x" * 300_000], dtype=np.object_)
    size = sum(4 + len(word) for word in words)
    handle = regions.make("words", 2 * size, [serialize_byte_tensor(words)])
    inputs = [shared_input(connection, "INPUT0", [4], "BYTES", "words", size)]
    connection.infer("words", inputs, outputs=[shared_output(connection, "OUTPUT0", "words", size, size)])
    got = shm.get_contents_as_numpy(handle, np.object_, [4], size)
    expect("words", got.tolist(), words.tolist())


def large(connection, regions):
    array = np.random.default_rng(1).random(150_528, dtype=np.float32)
    handle = regions.make("image", 2 * array.nbytes, [array])
    inputs = [shared_input(connection, "INPUT0", [array.size], "FP32", "image", array.nbytes)]
    outputs = [shared_output(connection, "OUTPUT0", "image", array.nbytes, array.nbytes)]
    connection.infer("image", inputs, outputs=outputs)
    got = shm.get_contents_as_numpy(handle, np.float32, [array.size], array.nbytes)
    expect("image", bool((got == array).all()), True)
    result = connection.infer("image", inputs)
    expect("image by the network", bool((result.as_numpy("OUTPUT0") == array).all()), True)


def refusals(connection, regions):
    def refused(what, text, call, *args, **kwargs):
        try:
            call(*args, **kwargs)
        except InferenceServerException as error:
            expect(what, error.message(), text)
        else:
            raise SystemExit(f"{what}: not refused")

    key = f"/nereid-python-{os.getpid()}-{connection.protocol}-image"
    register = connection.register_system_shared_memory
    refused("twice", "shared memory region 'image' already in manager", register, "image", key, 4)
    refused("absent", "Unable to open shared memory region: '/nereid-nowhere'", register, "x", "/nereid-nowhere", 4)
    inputs = [shared_input(connection, "INPUT0", [1], "FP32", "nobody", 4)]
    refused("unknown", "Unable to find shared memory region: 'nobody'", connection.infer, "image", inputs)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--protocol", choices=PROTOCOLS, required=True)
    parser.add_argument("--url", required=True)
    args = parser.parse_args()
    with connect(args.protocol, args.url) as connection:
        regions = Regions(connection)
        for part in [numbers, strings, large, refusals]:
            part(connection, regions)
        regions.close()
    print(f"{args.protocol}: ok")


if __name__ == "__main__":
    main()
