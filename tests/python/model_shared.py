#!/usr/bin/env python3
"""Inputs and outputs of Python models in the clients' shared memory, small and large, numbers and strings."""

import argparse
import os

import numpy as np
import tritonclient.utils.shared_memory as shm

from connect import expect
from model_calls import both


def through(client, name, array, datatype):
    """The output of `identity` as the region holds it."""
    module = client.module
    data = shm_bytes(array) if datatype == "BYTES" else array.tobytes()
    size = len(data)
    inside = shm.create_shared_memory_region("in", f"/nereid-in-{os.getpid()}", size)
    outside = shm.create_shared_memory_region("out", f"/nereid-out-{os.getpid()}", size)
    try:
        shm.set_shared_memory_region(inside, [np.frombuffer(data, np.uint8)])
        client.client.register_system_shared_memory("in", f"/nereid-in-{os.getpid()}", size)
        client.client.register_system_shared_memory("out", f"/nereid-out-{os.getpid()}", size)
        one = module.InferInput(f"IN_{name}", list(array.shape), datatype)
        one.set_shared_memory("in", size)
        output = module.InferRequestedOutput(f"OUT_{name}")
        output.set_shared_memory("out", size)
        client.client.infer("identity", [one], outputs=[output])
        return shm.get_contents_as_numpy(outside, np.uint8, [size]).tobytes() == data
    finally:
        client.client.unregister_system_shared_memory()
        shm.destroy_shared_memory_region(inside)
        shm.destroy_shared_memory_region(outside)


def shm_bytes(array):
    return b"".join(len(one).to_bytes(4, "little") + one for one in array.tolist())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("http")
    parser.add_argument("grpc")
    arguments = parser.parse_args()
    for client in both(arguments.http, arguments.grpc):
        for count in (1, 1000, 500_000):
            array = np.arange(count, dtype=np.float32)
            expect(f"{client.name}: {count} numbers", through(client, "FP32", array, "FP32"), True)
            array = np.array([b"\0%d" % number for number in range(count)], dtype=np.object_)
            expect(f"{client.name}: {count} strings", through(client, "BYTES", array, "BYTES"), True)


if __name__ == "__main__":
    main()
