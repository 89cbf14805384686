#!/usr/bin/env python3
"""Decoupled models through the official gRPC clients: every response, its flag, the end where it is asked for."""

import argparse
import asyncio
import queue

import numpy as np
import tritonclient.grpc as grpc
import tritonclient.grpc.aio as grpc_aio

from connect import expect

COUNT = 20


def tensor(name, datatype, values):
    array = np.array(values, dtype=np.int32 if datatype == "INT32" else np.uint32)
    one = grpc.InferInput(name, list(array.shape), datatype)
    one.set_data_from_numpy(array)
    return one


def request(number):
    """As many responses as the number says, and an end for every second request."""
    values = list(range(number))
    return {
        "model_name": "repeat",
        "inputs": [
            tensor("IN", "INT32", values),
            tensor("DELAY", "UINT32", [number % 3] * number),
            tensor("WAIT", "UINT32", [0]),
        ],
        "request_id": str(number),
        "enable_empty_final_response": number % 2 == 1,
    }


class Seen:
    def __init__(self):
        self.values = {number: [] for number in range(COUNT)}
        self.ended = set()

    def take(self, result, error):
        expect("error", error, None)
        response = result.get_response()
        number = int(response.id)
        expect(f"model of {number}", response.model_name, "repeat")
        if number in self.ended:
            raise SystemExit(f"request {number}: a response behind its end")
        if response.parameters["triton_final_response"].bool_param:
            expect(f"outputs of the end of {number}", len(response.outputs), 0)
            self.ended.add(number)
            return
        expect(f"index in {number}", result.as_numpy("IDX").tolist(), [len(self.values[number])])
        self.values[number] += result.as_numpy("OUT").tolist()

    def is_complete(self):
        return all(len(values) == number for number, values in self.values.items()) and len(self.ended) == COUNT // 2

    def check(self, ends):
        for number, values in self.values.items():
            expect(f"responses of {number}", values, list(range(number)))
        expect("ends", sorted(self.ended), ends)


def with_callbacks(url):
    answers, seen = queue.Queue(), Seen()
    with grpc.InferenceServerClient(url) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for number in range(COUNT):
            client.async_stream_infer(**request(number))
        while not seen.is_complete():
            seen.take(*answers.get(timeout=300))
        client.stop_stream()
    expect("answers left over", answers.qsize(), 0)
    seen.check(list(range(1, COUNT, 2)))


async def with_iterators(url):
    async def requests():
        for number in range(COUNT):
            yield request(number)

    seen = Seen()
    async with grpc_aio.InferenceServerClient(url) as client:
        async for result, error in client.stream_infer(requests()):
            seen.take(result, error)
    # This client has no way to ask for ends.
    seen.check([])


def refused(url):
    with grpc.InferenceServerClient(url) as client:
        try:
            client.infer(**{key: value for key, value in request(1).items() if key != "enable_empty_final_response"})
        except grpc.InferenceServerException as error:
            text = "ModelInfer RPC doesn't support models with decoupled transaction policy"
            expect("refusal", (error.status(), error.message()), ("StatusCode.UNIMPLEMENTED", text))
        else:
            raise SystemExit("a unary call to a decoupled model succeeded")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    args = parser.parse_args()
    with_callbacks(args.url)
    asyncio.run(with_iterators(args.url))
    refused(args.url)
    print("ok")


if __name__ == "__main__":
    main()
