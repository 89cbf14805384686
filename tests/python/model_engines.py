#!/usr/bin/env python3
"""Models that drive engines: streams, cancellation, errors, adapters, health, metrics and unload
(contract/frameworks.md section 7). What has happened in an engine is read from its metrics."""

import argparse
import json
import socket
import time
import urllib.request

import numpy as np

from connect import expect
from model_calls import Http, Stream, both, run, texts

LABELS = '{model="llm_engine",version="1"}'


def words(prompt, count, lora=None):
    """What the engine says to a prompt."""
    parts = prompt.split()
    said = ["%s.%d" % (parts[at % len(parts)], at) for at in range(count)]
    return [word if lora is None else f"{lora}:{word}" for word in said]


def asked(prompt, streams=True, **sampling):
    return {
        "text_input": texts(prompt),
        "stream": np.array([streams]),
        "sampling_parameters": texts(json.dumps(sampling)),
        "return_num_output_tokens": np.array([True]),
    }


def text(answer):
    return answer["text_output"][0].decode()


def until(what, fact):
    for _ in range(60_000):
        if fact():
            return
        time.sleep(0.002)
    raise SystemExit(f"it never happens: {what}")


class Page:
    """The server's metrics."""

    def __init__(self, url):
        self.url = f"http://{url}/metrics"

    def text(self):
        with urllib.request.urlopen(self.url) as page:
            return page.read().decode()

    def value(self, sample):
        found = [line for line in self.text().splitlines() if line.startswith(f"{sample} ")]
        return float(found[0].rsplit(" ", 1)[1]) if found else None

    def engine(self, name):
        return self.value(f"engine:{name}{LABELS}")


def interleaved(url):
    """Requests of many streams are in the engine at the same time, and each gets its own responses in their order."""
    lengths = [1, 7, 40, 15]
    streams = [Stream(url) for _ in range(8)]
    for at, stream in enumerate(streams):
        for length in lengths:
            stream.ask("llm_engine", asked(f"s{at} n{length}", max_tokens=length), request_id=f"{length}")
    for at, stream in enumerate(streams):
        came = {length: [] for length in lengths}
        open_requests = set(lengths)
        while open_requests:
            answer, is_last = stream.next()
            length = int(answer.result.get_response().id)
            came[length].append(text(answer))
            expect("tokens so far", int(answer["num_output_tokens"][0]), len(came[length]))
            expect("outputs", answer.names(), ["num_output_tokens", "text_output"])
            if is_last:
                open_requests.remove(length)
        for length in lengths:
            expect(f"stream {at}", "".join(came[length]), " ".join(words(f"s{at} n{length}", length)))
            expect("responses", len(came[length]), length)
        stream.stop()


def whole(http_url, page):
    """Without streaming there is one response, also over HTTP; it has the outputs that were asked for."""
    body = {"text_input": "a b", "stream": False, "return_finish_reason": True, "parameters": {"max_tokens": 4}}
    said = posted(http_url, "generate", body)
    expect("generate", (said["text_output"], said["finish_reason"]), (" ".join(words("a b", 4)), "length"))
    expect("what was not asked for", "num_output_tokens" in said, False)
    body = {"text_input": "c", "stream": True, "parameters": {"max_tokens": 3, "lora_name": "terse"}}
    events = posted(http_url, "generate_stream", body, raw=True)
    pieces = [json.loads(line[6:])["text_output"] for line in events.splitlines() if line.startswith("data: ")]
    expect("an adapter", "".join(pieces), " ".join(words("c", 3, "terse")))
    until("the lengths are counted", lambda: page.engine("tokens_of_request_count") == 8 * 4 + 2)


def posted(url, what, body, raw=False):
    request = urllib.request.Request(f"http://{url}/v2/models/llm_engine/{what}", json.dumps(body).encode())
    with urllib.request.urlopen(request) as answer:
        content = answer.read().decode()
    return content if raw else json.loads(content)


def adapters(url):
    """An adapter is named in the sampling parameters or in those of the request; an unknown one is refused."""
    stream = Stream(url)
    got = stream.all("llm_engine", asked("a b", max_tokens=3, lora_name="formal"))
    expect("an adapter", "".join(map(text, got)), " ".join(words("a b", 3, "formal")))
    arrays = {"text_input": texts("x"), "stream": np.array([True])}
    parameters = {"lora_name": "terse", "max_tokens": 2}
    got = stream.all("llm_engine", arrays, parameters=parameters)
    expect("an adapter of a parameter", "".join(map(text, got)), " ".join(words("x", 2, "terse")))
    got = stream.all("llm_engine", asked("a", lora_name="rude"))
    expect("an unknown adapter", [one.text for one in got], [
        "LoRA rude is not supported, we currently support ['formal', 'terse']",
    ])
    stream.stop()


def errors(url):
    """An error ends its request after the responses before it, and no other request."""
    stream, beside = Stream(url), Stream(url)
    beside.ask("llm_engine", asked("beside", max_tokens=60))
    got = stream.all("llm_engine", asked("a b", fail_at=3))
    expect("before the error", "".join(map(text, got[:-1])), " ".join(words("a b", 3)))
    expect("the error", got[-1].text, "Error generating stream: token 3 cannot be sampled")
    got = stream.all("llm_engine", asked(""))
    expect("nothing asked", [one.text for one in got], ["Error generating stream: the prompt is empty"])
    got, is_last = [], False
    while not is_last:
        answer, is_last = beside.next()
        got.append(text(answer))
    expect("the other", "".join(got), " ".join(words("beside", 60)))
    for one in (stream, beside):
        one.stop()


def cancelled(http_url, grpc_url, page):
    """Clients that cancel or disconnect, streaming or not, abort their sequence in the engine; others go on."""
    stays = Stream(grpc_url)
    stays.ask("llm_engine", asked("stays", max_tokens=-1))
    stays.next()
    aborted = page.engine("aborted_total") or 0
    stream = Stream(grpc_url)
    for _ in range(3):
        stream.ask("llm_engine", asked("endless", max_tokens=-1))
    for _ in range(10):
        stream.next()
    stream.stop(cancel=True)
    until("the stream's sequences are aborted", lambda: page.engine("aborted_total") == aborted + 3)
    for what, streams in [("generate", False), ("generate_stream", True)]:
        aborted = page.engine("aborted_total")
        body = {"text_input": "endless", "stream": streams, "parameters": {"max_tokens": -1}}
        connection = begun(http_url, what, body)
        until("it is in the engine beside the other", lambda: page.engine("running") == 2)
        expect("not aborted", page.engine("aborted_total"), aborted)
        connection.close()
        until(f"{what} is aborted", lambda: page.engine("aborted_total") == aborted + 1)
    stays.next()
    until("one is under way", lambda: page.engine("running") == 1)
    stays.stop(cancel=True)
    until("none is under way", lambda: page.engine("running") == 0)


def begun(url, what, body):
    host, port = url.rsplit(":", 1)
    connection = socket.create_connection((host, int(port)))
    content = json.dumps(body)
    head = f"POST /v2/models/llm_engine/{what} HTTP/1.1\r\nHost: {url}\r\nContent-Length: {len(content)}\r\n\r\n"
    connection.sendall((head + content).encode())
    return connection


def unloaded(url, client, page):
    """An unload waits for the requests under way, which the engine ends as usual; new ones are refused."""
    stream, other = Stream(url), Stream(url)
    stream.ask("llm_engine", asked("until the end", max_tokens=400))
    got = [text(stream.next()[0])]
    client.unload_model("llm_engine")
    refused = other.all("llm_engine", asked("late"))
    if len(refused) != 1 or "llm_engine" not in refused[0].text:
        raise SystemExit(f"a late request: {refused}")
    is_last = False
    while not is_last:
        answer, is_last = stream.next()
        got.append(text(answer))
    expect("all of it", "".join(got), " ".join(words("until the end", 400)))
    for one in (stream, other):
        one.stop()
    until("its metrics are gone", lambda: "engine:" not in page.text())
    client.load_model("llm_engine")
    expect("ready", client.is_model_ready("llm_engine"), True)


def dead(url, client, page):
    """A dead engine makes the model unready and ends its requests; unload and load bring another."""
    stream = Stream(url)
    stream.ask("llm_engine", asked("under way", max_tokens=-1))
    stream.next()
    other = Stream(url)
    expect("the engine", other.all("llm_engine", asked("die", streams=False))[-1].text, "the engine has died")
    answer = stream.next()[0]
    while answer.error is None:
        answer = stream.next()[0]
    expect("the one under way", answer.text, "the engine has died")
    expect("ready", client.is_model_ready("llm_engine"), False)
    client.unload_model("llm_engine")
    until("it is gone", lambda: "engine:" not in page.text())
    client.load_model("llm_engine")
    expect("ready again", client.is_model_ready("llm_engine"), True)
    expect("alive", "".join(map(text, other.all("llm_engine", asked("a", max_tokens=2)))), "a.0 a.1")
    for one in (stream, other):
        one.stop()


def pipelines(http_url, grpc_url):
    """Calls of models around an engine, whose responses are many or one."""
    streams = [Stream(grpc_url) for _ in range(6)]
    for at, stream in enumerate(streams):
        stream.ask("llm_pipeline", {"TEXT": texts(f"abc{at}"), "COUNT": np.array([10 + at], dtype=np.int32)})
    for at, stream in enumerate(streams):
        got = []
        while True:
            answer, is_last = stream.next()
            if answer.error is not None or answer.result.get_response().outputs:
                got.append(answer["TEXT"][0].decode())
            if is_last:
                break
        raised = ["".join(chr(ord(one) + step) for one in f"abc{at}") for step in range(1, 11 + at)]
        expect("steps", got, raised)
        stream.stop()
    stream = Stream(grpc_url)
    arrays = {"TEXT": texts("ab"), "COUNT": np.array([3], dtype=np.int32)}
    got = stream.all("llm_pipeline", arrays, parameters={"engine": "llm_single"})
    expect("one response", [one["TEXT"][0].decode() for one in got], ["de"])
    got = stream.all("llm_pipeline", {"TEXT": texts("ab"), "COUNT": np.array([0], dtype=np.int32)})
    expect("an error of the engine", [one.text for one in got], ["no identifiers are asked for"])
    stream.stop()
    ids = {"IDS": np.array([1, 2], dtype=np.int32), "COUNT": np.array([5], dtype=np.int32)}
    for client in both(http_url, grpc_url):
        expect(client.name, client.infer("llm_single", ids)["IDS"].tolist(), [6, 7])
        waiting = [client.start("llm_single", ids) for _ in range(20)]
        expect("overlapping", [one()["IDS"].tolist() for one in waiting], [[6, 7]] * 20)
    gone = Stream(grpc_url)
    gone.ask("llm_pipeline", {"TEXT": texts("x"), "COUNT": np.array([-1], dtype=np.int32)})
    gone.next()
    gone.stop(cancel=True)


def tables(http_url, grpc_url):
    """Rows of texts and numbers of several requests are one table."""
    names = ["Ada", "Zoë", "", "日本", "long " * 50]

    def ask(client, at):
        rows = [(name, at if row else -1) for row, name in enumerate(names)]
        arrays = {
            "name": texts(*names, shape=(len(names), 1)),
            "age": np.array([age for _, age in rows], dtype=np.int64).reshape(-1, 1),
        }
        if at % 2:
            arrays["score"] = np.full((len(names), 1), at / 2)
        return client.start("frames", arrays)

    for client in both(http_url, grpc_url):
        waiting = [ask(client, at) for at in range(30)]
        for at, answer in enumerate(waiting):
            got = answer()
            score = f" ({at / 2})" if at % 2 else ""
            labels = [f"{name} is {at}{score}" if row else "" for row, name in enumerate(names)]
            expect("labels", [one.decode() for one in got["label"].reshape(-1)], labels)
            expect("lengths", got["length"].reshape(-1).tolist(), [len(name) for name in names])


def main():
    parser = argparse.ArgumentParser()
    for name in ("http", "grpc", "metrics"):
        parser.add_argument(name)
    args = parser.parse_args()
    page, client = Page(args.metrics), Http(args.http).client
    interleaved(args.grpc)
    whole(args.http, page)
    adapters(args.grpc)
    errors(args.grpc)
    cancelled(args.http, args.grpc, page)
    unloaded(args.grpc, client, page)
    dead(args.grpc, client, page)
    pipelines(args.http, args.grpc)
    tables(args.http, args.grpc)


if __name__ == "__main__":
    run(main)
