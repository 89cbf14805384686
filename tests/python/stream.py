#!/usr/bin/env python3
"""ModelStreamInfer through the official gRPC clients: order, ids, errors in band."""

import argparse
import asyncio
import queue

import numpy as np
import tritonclient.grpc as grpc
import tritonclient.grpc.aio as grpc_aio

from connect import expect

COUNT = 50


def tensor(number, datatype="INT32"):
    array = np.array([[number]], dtype=np.int32 if datatype == "INT32" else np.int64)
    one = grpc.InferInput("INPUT0", [1, 1], datatype)
    one.set_data_from_numpy(array)
    return one


def request(number):
    """Every tenth request has the wrong datatype and must fail in its turn."""
    return {
        "model_name": "identity_int32",
        "inputs": [tensor(number, "INT64" if number % 10 == 9 else "INT32")],
        "request_id": str(number),
    }


def check(number, result, error):
    if number % 10 == 9:
        text = f"[request id: {number}] inference input 'INPUT0' data-type is 'INT64'"
        if error is None or text not in str(error):
            raise SystemExit(f"request {number}: expected {text!r}, got {error!r}")
        return
    expect(f"error of request {number}", error, None)
    expect("id", result.get_response().id, str(number))
    expect("tensor", result.as_numpy("OUTPUT0").tolist(), [[number]])


def with_callbacks(url):
    answers = queue.Queue()
    with grpc.InferenceServerClient(url) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for number in range(COUNT):
            client.async_stream_infer(**request(number))
        for number in range(COUNT):
            check(number, *answers.get(timeout=300))
        client.stop_stream()


async def with_iterators(url):
    async def requests():
        for number in range(COUNT):
            yield request(number)

    async with grpc_aio.InferenceServerClient(url) as client:
        number = 0
        async for result, error in client.stream_infer(requests()):
            check(number, result, error)
            number += 1
        expect("answers", number, COUNT)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    args = parser.parse_args()
    with_callbacks(args.url)
    asyncio.run(with_iterators(args.url))
    print("ok")


if __name__ == "__main__":
    main()
