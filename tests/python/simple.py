#!/usr/bin/env python3
"""Sum and difference through the `simple` ONNX model, also with many requests in flight."""

import argparse
import asyncio

import numpy as np

from connect import PROTOCOLS, connect, expect


def inputs_for(connection, number, rows):
    first = np.arange(16 * rows, dtype=np.int32).reshape(rows, 16) * number
    second = np.full((rows, 16), number, dtype=np.int32)
    return first, second, [connection.input("INPUT0", first, "INT32"), connection.input("INPUT1", second, "INT32")]


def check(result, first, second, what):
    expect(f"{what}: sum", result.as_numpy("OUTPUT0").tolist(), (first + second).tolist())
    expect(f"{what}: difference", result.as_numpy("OUTPUT1").tolist(), (first - second).tolist())


def in_flight(connection, count):
    """`count` requests at once, by whatever means the client has for that."""
    asked = [inputs_for(connection, number, 1 + number % 8) for number in range(count)]
    if connection.protocol.endswith("-aio"):

        async def gather():
            return await asyncio.gather(*(connection.client.infer("simple", inputs) for _, _, inputs in asked))

        results = connection._run(gather())
    elif connection.is_http:
        handles = [connection.client.async_infer("simple", inputs) for _, _, inputs in asked]
        results = [handle.get_result() for handle in handles]
    else:
        import queue

        answers = queue.Queue()
        for number, (_, _, inputs) in enumerate(asked):
            connection.client.async_infer(
                "simple", inputs, lambda result, error, number=number: answers.put((number, result, error))
            )
        by_number = {}
        for _ in asked:
            number, result, error = answers.get(timeout=300)
            expect(f"error of request {number}", error, None)
            by_number[number] = result
        results = [by_number[number] for number in range(count)]
    for number, (result, (first, second, _)) in enumerate(zip(results, asked)):
        check(result, first, second, f"request {number} of {count} in flight")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--protocol", choices=PROTOCOLS, required=True)
    parser.add_argument("--url", required=True)
    args = parser.parse_args()
    with connect(args.protocol, args.url) as connection:
        for number in range(20):
            first, second, inputs = inputs_for(connection, number, 1 + number % 8)
            result = connection.infer("simple", inputs, request_id=str(number))
            check(result, first, second, f"request {number}")
            response = result.get_response()
            expect("id", response["id"] if connection.is_http else response.id, str(number))
        in_flight(connection, 200)
    print(f"{args.protocol}: ok")


if __name__ == "__main__":
    main()
