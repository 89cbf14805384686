#!/usr/bin/env python3
"""Clients that do not wait: timeouts and cancellations of every kind; and clients in crowds, with large messages.

The model `slow` takes a second and has one instance, so what comes second waits.
"""

import argparse
import asyncio
import concurrent.futures
import contextlib
import queue
import time

import numpy as np
import tritonclient.grpc as grpc
import tritonclient.grpc.aio as grpc_aio
import tritonclient.http as http
import tritonclient.http.aio as http_aio
from tritonclient.utils import InferenceServerException

from connect import expect

# One that is not run in time says nothing of the next.
ATTEMPTS = 8


def tensor(module, number, rows=1):
    array = np.full((rows,), number, dtype=np.int32)
    one = module.InferInput("INPUT0", list(array.shape), "INT32")
    one.set_data_from_numpy(array)
    return [one]


def check(result, number):
    expect("tensor", result.as_numpy("OUTPUT0").tolist(), [number])


def error_of(work, what):
    try:
        answer = work()
    except InferenceServerException as error:
        return error
    raise SystemExit(f"{what}: expected an error, got {answer!r}")


@contextlib.contextmanager
def slow_one(url):
    """While this is open, the only instance of `slow` is busy; it is answered in the end."""
    answers = queue.Queue()
    with grpc.InferenceServerClient(url) as client:
        client.async_infer("slow", tensor(grpc, 1), lambda result, error: answers.put((result, error)))
        yield
        result, error = answers.get(timeout=300)
        expect("error of the slow request", error, None)
        check(result, 1)


def grpc_timeouts(url):
    with grpc.InferenceServerClient(url) as client:
        with slow_one(url):
            error = error_of(lambda: client.infer("slow", tensor(grpc, 2), client_timeout=0.1), "client_timeout")
            expect("status", error.status(), "StatusCode.DEADLINE_EXCEEDED")
            answers = queue.Queue()
            client.async_infer(
                "slow", tensor(grpc, 3), lambda result, error: answers.put(error), client_timeout=0.1
            )
            expect("status", answers.get(timeout=300).status(), "StatusCode.DEADLINE_EXCEEDED")
        # Enough time is enough.
        check(client.infer("slow", tensor(grpc, 4), client_timeout=300), 4)


def grpc_cancellations(url):
    with grpc.InferenceServerClient(url) as client:
        with slow_one(url):
            answers = queue.Queue()
            calls = [
                client.async_infer("slow", tensor(grpc, number), lambda result, error: answers.put(error))
                for number in range(8)
            ]
            for call in calls:
                call.cancel()
            for _ in calls:
                expect("status", answers.get(timeout=300).status(), "StatusCode.CANCELLED")
        check(client.infer("plain", tensor(grpc, 5)), 5)


def grpc_streams(url):
    # The stream's time ends while a request waits.
    with grpc.InferenceServerClient(url) as client, slow_one(url):
        # The stream's time is not for making the connection.
        check(client.infer("plain", tensor(grpc, 1)), 1)
        # On a busy machine a time may be over before the first answer: then the next stream has more.
        for seconds in (3, 12, 48):
            answers = queue.Queue()
            client.start_stream(lambda result, error, to=answers: to.put((result, error)), stream_timeout=seconds)
            client.async_stream_infer("plain", tensor(grpc, 1))
            result, error = answers.get(timeout=300)
            if error is None:
                break
            expect("status of the stream", error.status(), "StatusCode.DEADLINE_EXCEEDED")
            client.stop_stream()
        expect("error before the timeout", error, None)
        check(result, 1)
        # More than can be answered in that time.
        for number in range(seconds + 2):
            client.async_stream_infer("slow", tensor(grpc, number))
        result, error = answers.get(timeout=300)
        while error is None:
            result, error = answers.get(timeout=300)
        expect("status of the stream", error.status(), "StatusCode.DEADLINE_EXCEEDED")
        client.stop_stream()
    # The client gives the stream up with everything on it.
    with grpc.InferenceServerClient(url) as client, slow_one(url):
        answers = queue.Queue()
        client.start_stream(lambda result, error: answers.put((result, error)))
        for number in range(5):
            client.async_stream_infer("slow", tensor(grpc, number))
        client.stop_stream(cancel_requests=True)
        result, error = answers.get(timeout=300)
        expect("status of the stream", error.status(), "StatusCode.CANCELLED")
        # The same client opens another one.
        client.start_stream(lambda result, error: answers.put((result, error)))
        client.async_stream_infer("plain", tensor(grpc, 6))
        result, error = answers.get(timeout=300)
        expect("error on the next stream", error, None)
        check(result, 6)
        client.stop_stream()


async def grpc_aio_all(url):
    keepalive = grpc.KeepAliveOptions(keepalive_time_ms=60_000, keepalive_timeout_ms=20_000)
    async with grpc_aio.InferenceServerClient(url, keepalive_options=keepalive) as client:
        patient = asyncio.create_task(client.infer("slow", tensor(grpc, 1)))
        await asyncio.sleep(0)
        try:
            await client.infer("slow", tensor(grpc, 2), client_timeout=0.1)
            raise SystemExit("client_timeout of the aio client: no error")
        except InferenceServerException as error:
            expect("status", error.status(), "StatusCode.DEADLINE_EXCEEDED")
        given_up = asyncio.create_task(client.infer("slow", tensor(grpc, 3)))
        await asyncio.sleep(0.05)
        given_up.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await given_up
            raise SystemExit("a cancelled task has a result")

        async def requests():
            yield {"model_name": "plain", "inputs": tensor(grpc, 7)}
            yield {"model_name": "slow", "inputs": tensor(grpc, 8)}
            # Whoever waits for the end of the requests waits for long.
            await asyncio.sleep(120)

        stream = client.stream_infer(requests())
        result, error = await anext(stream)
        expect("error on the aio stream", error, None)
        check(result, 7)
        stream.cancel()
        try:
            await anext(stream)
            raise SystemExit("an answer on a cancelled aio stream")
        except (asyncio.CancelledError, StopAsyncIteration, InferenceServerException):
            pass
        check(await patient, 1)
        results = await asyncio.gather(*(client.infer("plain", tensor(grpc, number)) for number in range(300)))
        for number, result in enumerate(results):
            check(result, number)


def http_timeouts(url):
    with slow_one(options.grpc):
        # One that is not run until the answer is there finds it in time.
        for attempt in range(ATTEMPTS):
            client = http.InferenceServerClient(url, network_timeout=0.2)
            try:
                answer = client.infer("slow", tensor(http, 2))
            except (TimeoutError, OSError):
                break
            if attempt == ATTEMPTS - 1:
                raise SystemExit(f"network_timeout: no error but {answer!r}")
        with contextlib.suppress(Exception):
            client.close()
    client = http.InferenceServerClient(url, concurrency=8, connection_timeout=300, network_timeout=300)
    handles = [client.async_infer("plain", tensor(http, number)) for number in range(200)]
    for number, handle in enumerate(handles):
        check(handle.get_result(timeout=300), number)
    client.close()


async def http_aio_all(url):
    with slow_one(options.grpc):
        async with http_aio.InferenceServerClient(url, conn_timeout=0.2) as client:
            for attempt in range(ATTEMPTS):
                try:
                    answer = await client.infer("slow", tensor(http, 2))
                except TimeoutError:
                    break
                if attempt == ATTEMPTS - 1:
                    raise SystemExit(f"conn_timeout: no error but {answer!r}")
    async with http_aio.InferenceServerClient(url, conn_limit=16) as client:
        given_up = [asyncio.create_task(client.infer("slow", tensor(http, number))) for number in range(4)]
        await asyncio.sleep(0.05)
        for task in given_up:
            task.cancel()
        await asyncio.gather(*given_up, return_exceptions=True)
        results = await asyncio.gather(*(client.infer("plain", tensor(http, number)) for number in range(300)))
        for number, result in enumerate(results):
            check(result, number)


def large_messages(grpc_url, http_url):
    data = np.arange(4_000_003, dtype=np.int32)
    for module, url, options_of in [
        (grpc, grpc_url, {"channel_args": [("grpc.max_receive_message_length", -1)]}),
        (http, http_url, {}),
    ]:
        with module.InferenceServerClient(url, **options_of) as client:
            one = module.InferInput("INPUT0", [data.size], "INT32")
            one.set_data_from_numpy(data)
            for _ in range(3):
                got = client.infer("plain", [one]).as_numpy("OUTPUT0")
                if not np.array_equal(got, data):
                    raise SystemExit(f"{module.__name__}: 16 MB changed on their way")
    # A client that takes no more than a megabyte says so by itself, and its connection goes on.
    small = [("grpc.max_receive_message_length", 1 << 20)]
    with grpc.InferenceServerClient(grpc_url, channel_args=small) as client:
        one = grpc.InferInput("INPUT0", [data.size], "INT32")
        one.set_data_from_numpy(data)
        error = error_of(lambda: client.infer("plain", [one]), "a client that takes a megabyte")
        expect("status", error.status(), "StatusCode.RESOURCE_EXHAUSTED")
        check(client.infer("plain", tensor(grpc, 9)), 9)


def crowds(grpc_url, http_url):
    """Threads that share a gRPC client, and threads with a client each, over both protocols."""

    def ask(client, module, first):
        for number in range(first, first + 60):
            check(client.infer("plain", tensor(module, number)), number)

    def ask_alone(module, url, first):
        # A channel of its own, so that a connection is too.
        more = {"channel_args": [("grpc.use_local_subchannel_pool", 1)]} if module is grpc else {}
        with module.InferenceServerClient(url, **more) as client:
            ask(client, module, first)

    with concurrent.futures.ThreadPoolExecutor(24) as pool, grpc.InferenceServerClient(grpc_url) as shared:
        work = [pool.submit(ask, shared, grpc, 1000 * index) for index in range(8)]
        work += [pool.submit(ask_alone, grpc, grpc_url, 1000 * index) for index in range(8)]
        work += [pool.submit(ask_alone, http, http_url, 1000 * index) for index in range(8)]
        for one in work:
            one.result(timeout=300)


def settled(url):
    """What was given up leaves nothing behind: soon nothing is pending, and the model serves."""
    with grpc.InferenceServerClient(url) as client:
        check(client.infer("slow", tensor(grpc, 1), client_timeout=300), 1)
        started = time.monotonic()
        while True:
            stats = client.get_inference_statistics("slow").model_stats[0].inference_stats
            # Each accepted request ends once, well or not; the asker cannot know how many were accepted.
            if stats.success.count > 0 and stats.fail.count > 0:
                return
            if time.monotonic() - started > 300:
                raise SystemExit(f"statistics of the slow model: {stats}")


def main():
    grpc_timeouts(options.grpc)
    grpc_cancellations(options.grpc)
    grpc_streams(options.grpc)
    asyncio.run(grpc_aio_all(options.grpc))
    http_timeouts(options.http)
    asyncio.run(http_aio_all(options.http))
    large_messages(options.grpc, options.http)
    crowds(options.grpc, options.http)
    settled(options.grpc)
    print("ok")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--grpc", required=True)
    parser.add_argument("--http", required=True)
    options = parser.parse_args()
    main()
