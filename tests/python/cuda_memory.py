#!/usr/bin/env python3
"""Tensors in memory of a device, which this process lends by a handle of its own making: a simulated device's."""

import argparse
import base64
import os
import struct

import numpy as np

from connect import PROTOCOLS, connect, expect


class Lent:
    """A file without a name, whose bytes the server's simulated devices map."""

    def __init__(self, byte_size):
        self.byte_size = byte_size
        self.file = os.memfd_create("nereid-cuda-memory")
        os.ftruncate(self.file, byte_size)

    def handle(self):
        return struct.pack("<8sIIQQ32x", b"nereid-1", os.getpid(), self.file, 0, self.byte_size)

    def write(self, at, array):
        os.pwrite(self.file, array.tobytes(), at)

    def read(self, at, count):
        return np.frombuffer(os.pread(self.file, 4 * count, at), np.float32)


def regions(connection):
    status = connection.get_cuda_shared_memory_status()
    if connection.is_http:
        return {row["name"]: (row["device_id"], row["byte_size"]) for row in status}
    return {name: (row.device_id, row.byte_size) for name, row in status.regions.items()}


def run(connection):
    lent = [Lent(4096), Lent(4096)]
    for device, memory in enumerate(lent):
        # The client of HTTP sends the text that it is given, the one of gRPC decodes it.
        handle = base64.b64encode(memory.handle())
        handle = handle.decode() if connection.is_http else handle
        connection.register_cuda_shared_memory(f"lent_{device}", handle, device, memory.byte_size)
    expect("regions", regions(connection), {"lent_0": (0, 4096), "lent_1": (1, 4096)})
    numbers = np.arange(16, dtype=np.float32)
    lent[0].write(0, numbers)
    for model, expected in [("twice", 2 * numbers + 1), ("thrice", 3 * numbers + 1), ("same", numbers)]:
        values = connection.tensors.InferInput("INPUT0", [16], "FP32")
        values.set_shared_memory("lent_0", 64)
        result = connection.tensors.InferRequestedOutput("OUTPUT0")
        result.set_shared_memory("lent_1", 64, 128)
        lent[1].write(128, np.zeros(16, np.float32))
        connection.infer(model, [values], outputs=[result])
        expect(f"{model} in place", lent[1].read(128, 16).tolist(), expected.tolist())
        answer = connection.infer(model, [values])
        expect(f"{model} over the network", answer.as_numpy("OUTPUT0").tolist(), expected.tolist())
    connection.unregister_cuda_shared_memory("lent_0")
    expect("regions", regions(connection), {"lent_1": (1, 4096)})
    connection.unregister_cuda_shared_memory()
    expect("regions", regions(connection), {})


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--protocol", choices=PROTOCOLS, required=True)
    parser.add_argument("--url", required=True)
    options = parser.parse_args()
    with connect(options.protocol, options.url) as connection:
        run(connection)
    print(f"{options.protocol}: ok")


if __name__ == "__main__":
    main()
