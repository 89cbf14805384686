#!/usr/bin/env python3
"""Tensors through Python models: every datatype, shape and kind of memory, over both protocols."""

import argparse

import ml_dtypes
import numpy as np

from connect import expect
from model_calls import both, texts

NUMBERS = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
}
# As messages, at their bound, and as shared memory.
COUNTS = (0, 1, 5, 511, 512, 513, 4095, 4096, 4097, 100_000)


def filled(dtype, count):
    values = np.random.default_rng(count).integers(0, 256, size=count * dtype().itemsize, dtype=np.uint8)
    if dtype is np.bool_:
        return values % 2 == 1
    array = values.view(dtype)
    # What is not a number is not equal to itself.
    return np.nan_to_num(array) if array.dtype.kind == "f" else array


def same(what, got, array):
    if got.dtype != array.dtype or got.shape != array.shape or not (got == array).all():
        raise SystemExit(f"{what}: {got.dtype} {got.shape} for {array.dtype} {array.shape}")


def datatypes(client):
    for datatype, dtype in NUMBERS.items():
        for count in COUNTS:
            array = filled(dtype, count)
            answer = client.infer("identity", {f"IN_{datatype}": array}, outputs=[f"OUT_{datatype}"])
            same(f"{client.name} {datatype} {count}", answer[f"OUT_{datatype}"], array)
    for count in COUNTS:
        array = (np.arange(count) % 256).astype(ml_dtypes.bfloat16)
        answer = client.infer("identity", {"IN_BF16": (array, "BF16")}, outputs=["OUT_BF16"])
        same(f"{client.name} BF16 {count}", answer["OUT_BF16"], array)
    # Several at once, in one message and beyond it.
    arrays = {f"IN_{datatype}": filled(dtype, 3000) for datatype, dtype in NUMBERS.items()}
    answer = client.infer("identity", arrays, outputs=[f"OUT_{datatype}" for datatype in NUMBERS])
    for datatype in NUMBERS:
        same(f"{datatype} among others", answer[f"OUT_{datatype}"], arrays[f"IN_{datatype}"])
    for rows in (1, 8):
        array = np.arange(rows * 700, dtype=np.int64).reshape(rows, 700)
        answer = client.infer("identity_batched", {"IN_INT64": array}, outputs=["OUT_INT64"])
        same(f"{rows} rows", answer["OUT_INT64"], array)


def byte_strings(client):
    for elements in (
        [],
        [b""],
        [b"a"],
        [b"", b"a", b""],
        [b"\0", b"a\0b\0", b"\0\0"],
        [b"\xff\xfe", bytes(range(256)), "é\U0001f600".encode()],
        [b"x" * 5000],
        [b"%d" % number for number in range(10_000)],
        [b"y" * (24 << 20), b"", b"z" * (1 << 20)],
    ):
        array = np.array(elements, dtype=np.object_)
        answer = client.infer("identity", {"IN_BYTES": (array, "BYTES")}, outputs=["OUT_BYTES"])
        got = answer["OUT_BYTES"].tolist()
        if got != elements:
            raise SystemExit(f"{client.name}: {len(elements)} strings {str(elements)[:80]}: {str(got)[:80]}")


def shapes(client):
    for name, array, seen in [
        ("GRID", np.arange(12, dtype=np.float32).reshape(4, 3), [3, 4, 1, 3]),
        ("ANY", np.arange(6, dtype=np.float32).reshape(2, 3), [2, 2, 3]),
        ("ANY", np.zeros((0, 5), dtype=np.float32), [2, 0, 5]),
        ("ANY", np.zeros((3, 0), dtype=np.float32), [2, 3, 0]),
    ]:
        answer = client.infer("shapes", {name: array}, outputs=["SEEN", "VALUES"])
        expect(f"{client.name}: shape of {name}", answer["SEEN"].tolist(), seen)
        if array.size:
            same(name, answer["VALUES"], array)


def kinds_of_memory(client):
    def ask(how, array, outputs):
        arrays = {"HOW": texts(how)}
        if array is not None:
            arrays["DATA"] = array
        return client.infer("holder", arrays, outputs=outputs)

    for count in (600, 50_000, 3 << 20):
        array = filled(np.uint8, count)
        for _ in range(3):
            same("same", ask("same", array, ["OUT"])["OUT"], array)
            answer = ask("views", array, ["OUT", "AGAIN"])
            same("a part", answer["OUT"], array[100:-100])
            same("turned around", answer["AGAIN"], array[::-2])
            answer = ask("twice", array, ["OUT", "AGAIN"])
            same("twice", answer["OUT"], array + np.uint8(1))
            same("twice", answer["AGAIN"], array + np.uint8(1))
            same("written", ask("written", array, ["OUT"])["OUT"], array[::-1])
    for _ in range(3):
        same("always the same", ask("always_the_same", None, ["OUT"])["OUT"], np.full(50_000, 7, dtype=np.uint8))
    # What a model keeps stays what it was, whatever comes after it.
    ask("forget", None, ["SUMS"])
    sums = []
    for number in range(12):
        array = np.full(5 << number, number + 1, dtype=np.uint8)
        sums.append(int(array.sum()))
        expect("kept", ask("keep", array, ["SUMS"])["SUMS"].tolist(), sums)
        same("in between", ask("same", filled(np.uint8, 70_000), ["OUT"])["OUT"], filled(np.uint8, 70_000))
    for _ in range(100):
        ask("same", filled(np.uint8, 70_000), ["OUT"])
    expect("kept", ask("sums", None, ["SUMS"])["SUMS"].tolist(), sums)
    expect("forgotten", ask("forget", None, ["SUMS"])["SUMS"].tolist(), [])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("http")
    parser.add_argument("grpc")
    arguments = parser.parse_args()
    for client in both(arguments.http, arguments.grpc):
        datatypes(client)
        byte_strings(client)
        shapes(client)
        kinds_of_memory(client)


if __name__ == "__main__":
    main()
