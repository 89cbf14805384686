#!/usr/bin/env python3
"""Responses of decoupled models: their order, their end, clients that read slowly and clients that go away."""

import argparse
import threading
import time

import numpy as np
import tritonclient.grpc as grpc

from connect import expect
from model_calls import run, Stream, texts


def asked(how, count):
    return {"HOW": texts(how), "COUNT": np.array([count], dtype=np.int32)}


def numbers(answers, name="NUMBER"):
    return [int(answer[name][0]) for answer in answers]


def ways(stream):
    """Of the model `decoupled`: how many responses, and the text of an error behind them."""
    failed = "Failed to process the request(s) for model 'decoupled_0_0', message: "
    none = "Python model 'decoupled' is using the decoupled mode and the execute function must return None."
    for how, count, expected, error in [
        ("plain", 5, 5, None),
        ("plain", 0, 0, None),
        ("together", 3, 3, None),
        ("thread", 40, 40, None),
        ("thread together", 3, 3, None),
        ("raise", 2, 2, failed + "ValueError: after the responses"),
        ("raise", 0, 0, failed + "ValueError: after the responses"),
        ("value", 1, 1, none),
    ]:
        arrays = {"COUNT": np.array([count], dtype=np.int32), "HOW": texts(how)}
        answers = stream.all("decoupled", arrays)
        if error is not None:
            text = answers.pop().text
            if error not in text:
                raise SystemExit(f"{how}: {text!r}")
        expect(f"{how}: responses", numbers(answers, "OUT"), list(range(expected)))
        got = [answer["TEXT"][0].decode() for answer in answers]
        expect(f"{how}: texts", got, [f"{how} {number}" for number in range(count)])
    # The stream of tritonclient takes an error for an end; the model sends on, and the next request waits for that.
    arrays = {"COUNT": np.array([4], dtype=np.int32), "HOW": texts("errors")}
    stream.ask("decoupled", arrays)
    got = [stream.next()[0] for _ in range(4)]
    expect("errors between", [answer.text for answer in got], [None, "number 1", None, "number 3"])
    expect("the end", stream.next()[1], True)


def coroutines(url):
    """Coroutines of one instance overlap."""
    streams = [Stream(url) for _ in range(8)]
    for stream in streams:
        stream.ask("decoupled_async", {"COUNT": np.array([50], dtype=np.int32)})
    for stream in streams:
        got = []
        while True:
            answer, is_last = stream.next()
            if is_last:
                break
            got.append(answer)
        expect("of a coroutine", numbers(got, "OUT"), list(range(50)))
        stream.stop()


def order(stream):
    for count in (2, 7, 100):
        expect("in turns", numbers(stream.all("stream", asked("in_turns", count))), list(range(count)))
    for _ in range(20):
        expect("ended elsewhere", numbers(stream.all("stream", asked("ends_elsewhere", 3))), [0, 1, 2])
        answers = stream.all("stream", asked("fails_behind_others", 3))
        error = answers.pop()
        expect("before the error", numbers(answers), [0, 1, 2])
        if "ValueError: behind the responses" not in error.text:
            raise SystemExit(error.text)
    got = numbers(stream.all("stream", asked("from_many", 200)))
    expect("from many", sorted(got), list(range(200)))
    for first in range(4):
        own = [number for number in got if number % 4 == first]
        expect("each in its order", own, list(range(first, 200, 4)))


def one_does_not_read(url):
    """A client that does not read holds back nobody else, and gets everything once it does."""
    release = threading.Event()
    slow, got = grpc.InferenceServerClient(url), []

    def read(result, error):
        release.wait()
        got.append((result, error))

    slow.start_stream(read)
    arrays = asked("flood", 600)
    inputs = []
    for name, array in arrays.items():
        one = grpc.InferInput(name, list(array.shape), "BYTES" if name == "HOW" else "INT32")
        one.set_data_from_numpy(array)
        inputs.append(one)
    slow.async_stream_infer("stream", inputs)
    stream = Stream(url)
    # Soon, for whoever reads nothing for ten seconds loses the stream.
    for _ in range(12):
        expect("beside it", numbers(stream.all("stream", asked("in_turns", 10))), list(range(10)))
        expect("flood beside it", numbers(stream.all("stream", asked("flood", 8))), list(range(8)))
    stream.stop()
    if len(got) > 1:
        raise SystemExit("the slow client reads")
    release.set()
    until = time.monotonic() + 120
    while len(got) < 600 and time.monotonic() < until:
        time.sleep(0.01)
    expect("all of it", [int(result.as_numpy("NUMBER")[0]) for result, _ in got[:600]], list(range(600)))
    fill = got[599][0].as_numpy("FILL")
    expect("its bytes", (len(fill), bool((fill == np.arange(1 << 18, dtype=np.uint8)).all())), (1 << 18, True))
    slow.stop_stream()


def gone(url):
    """Clients that go away, which the test waits for in the log."""
    for how in ("until_cancelled", "until_cancelled_here"):
        stream = Stream(url)
        stream.ask("stream", asked(how, 3))
        # The model has the request by then; one that still waits for it would be cancelled unseen.
        expect("before it goes", numbers([stream.next()[0] for _ in range(3)]), [0, 1, 2])
        stream.stop(cancel=True)
        # The place of the request that was cancelled is another's now.
        stream = Stream(url)
        for _ in range(10):
            expect("not cancelled", numbers(stream.all("stream", asked("is_cancelled", 0))), [0])
        stream.stop()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("grpc")
    url = parser.parse_args().grpc
    stream = Stream(url)
    ways(stream)
    order(stream)
    stream.stop()
    coroutines(url)
    one_does_not_read(url)
    gone(url)


if __name__ == "__main__":
    run(main)
