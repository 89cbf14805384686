#!/usr/bin/env python3
"""Measures what a server answers in time at multiples of its capacity, and how soon it refuses the rest.

    cargo build --release
    benches/goodput.py target/release/nereid [--seconds=5] [--server-core=0] [--client-core=1]

An identity model takes 4 ms for a request, so that its one instance and not the CPU is the bottleneck. The capacity is
measured in a closed loop; then requests come in an open loop, at even intervals, at 0.5, 1, 2 and 10 times that rate.
Goodput is what is answered within 100 ms of its intended time. Three forms of the model: `bounded` has a queue of 20
requests (a promise of 80 ms and an execution), `unbounded` has none, `deadline` has none but refuses by deadlines. Over
gRPC each request has a deadline of 100 ms, over HTTP it has none. Server and client have one core each.
"""

import os
import pathlib
import re
import selectors
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request

EXECUTION_MS = 4
QUEUE = 20
IN_TIME_S = 0.1
FACTORS = (0.5, 1, 2, 10)
CONNECTIONS = 64

CONFIG = """name: "%s"
backend: "identity"
max_batch_size: 1
dynamic_batching { %s }
input [ { name: "INPUT0" data_type: TYPE_UINT8 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_UINT8 dims: [ -1 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
parameters { key: "execute_delay_ms" value { string_value: "%d" } }
parameters { key: "deadline_admission" value { string_value: "%s" } }
"""
FORMS = {
    "bounded": (f"default_queue_policy {{ max_queue_size: {QUEUE} }}", "off"),
    "unbounded": ("", "off"),
    "deadline": ("", "on"),
}


def varint(number):
    text = b""
    while number > 127:
        text, number = text + bytes([number & 127 | 128]), number >> 7
    return text + bytes([number])


def field(number, contents):
    return varint(number << 3 | 2) + varint(len(contents)) + contents


def frame(kind, flags, stream, payload):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def literal(name, value):
    """A header field that the peer does not remember."""
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


def http_request(model):
    json = b'{"inputs":[{"name":"INPUT0","datatype":"UINT8","shape":[1,4],"data":[1,2,3,4]}]}'
    head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: t\r\nContent-Length: {len(json)}\r\n\r\n"
    return head.encode() + json


def grpc_request(model):
    """The header block and the DATA payload of a call."""
    block = b"".join(
        literal(name, value)
        for name, value in (
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", b"/inference.GRPCInferenceService/ModelInfer"),
            (b":authority", b"t"),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
            (b"grpc-timeout", b"%dm" % (IN_TIME_S * 1000)),
        )
    )
    shape = field(3, b"\x01\x04")
    tensor = field(5, field(1, b"INPUT0") + field(2, b"UINT8") + shape)
    message = field(1, model.encode()) + tensor + field(7, b"\x01\x02\x03\x04")
    return block, b"\0" + struct.pack(">I", len(message)) + message


class Http:
    """Connections with one request at a time each; more are opened as they are needed."""

    def __init__(self, port, model):
        self.port, self.request, self.idle = port, http_request(model), []
        self.selector = selectors.DefaultSelector()
        for _ in range(CONNECTIONS):
            self.idle.append(self.connect())

    def connect(self):
        peer = socket.create_connection(("127.0.0.1", self.port))
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.selector.register(peer, selectors.EVENT_READ, [b"", 0.0, 0.0])
        return peer

    def send(self, intended):
        peer = self.idle.pop() if self.idle else self.connect()
        data = self.selector.get_key(peer).data
        data[:] = [b"", intended, time.perf_counter()]
        peer.sendall(self.request)

    def receive(self, timeout):
        """(outcome, intended, sent) of each answer that is here."""
        for key, _ in self.selector.select(timeout):
            data, peer = key.data, key.fileobj
            data[0] += peer.recv(65536) or sys.exit("the server closed a connection")
            head, found, rest = data[0].partition(b"\r\n\r\n")
            if not found:
                continue
            length = int(re.search(rb"(?i)content-length: *(\d+)", head)[1])
            if len(rest) < length:
                continue
            outcome = "ok" if head.startswith(b"HTTP/1.1 200") else "refused" if b"nereid-refused" in head else "failed"
            self.idle.append(peer)
            yield outcome, data[1], data[2]


class Grpc:
    """Calls in turn on a few connections of HTTP/2."""

    def __init__(self, port, model):
        self.block, self.message = grpc_request(model)
        self.selector, self.peers, self.turn = selectors.DefaultSelector(), [], 0
        for _ in range(8):
            peer = socket.create_connection(("127.0.0.1", port))
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # A window that no run uses up, and no table: what the server sends can be read as it is.
            settings = struct.pack(">HIHI", 1, 0, 4, 1 << 24)
            window = frame(8, 0, 0, struct.pack(">I", (1 << 31) - 1 - 65535))
            peer.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, settings) + window)
            state = {"peer": peer, "buffer": b"", "next": 1, "calls": {}}
            self.selector.register(peer, selectors.EVENT_READ, state)
            self.peers.append(state)

    def send(self, intended):
        self.turn = (self.turn + 1) % len(self.peers)
        state = self.peers[self.turn]
        stream, state["next"] = state["next"], state["next"] + 2
        state["calls"][stream] = [intended, time.perf_counter(), "failed"]
        state["peer"].sendall(frame(1, 4, stream, self.block) + frame(0, 1, stream, self.message))

    def receive(self, timeout):
        for key, _ in self.selector.select(timeout):
            state = key.data
            buffer = state["buffer"] + (state["peer"].recv(65536) or sys.exit("the server closed a connection"))
            at = 0
            while len(buffer) - at >= 9:
                length = int.from_bytes(buffer[at : at + 3])
                if len(buffer) - at < 9 + length:
                    break
                kind, flags = buffer[at + 3], buffer[at + 4]
                stream = int.from_bytes(buffer[at + 5 : at + 9]) & 0x7FFFFFFF
                payload, at = buffer[at + 9 : at + 9 + length], at + 9 + length
                if kind == 4 and not flags & 1:
                    state["peer"].sendall(frame(4, 1, 0, b""))
                elif kind == 6 and not flags & 1:
                    state["peer"].sendall(frame(6, 1, 0, payload))
                elif stream in state["calls"]:
                    call = state["calls"][stream]
                    if kind == 0:
                        call[2] = "ok"
                    elif kind == 1 and b"nereid-refused" in payload:
                        call[2] = "refused"
                    if flags & 1 or kind == 3:
                        intended, sent, outcome = state["calls"].pop(stream)
                        yield outcome, intended, sent
            state["buffer"] = buffer[at:]


def closed_loop(client, seconds):
    """Answers a second with eight requests on their way."""
    begun, answered = time.perf_counter(), 0
    for _ in range(8):
        client.send(0.0)
    while (now := time.perf_counter()) < begun + seconds:
        for _ in client.receive(0.1):
            answered += 1
            client.send(0.0)
    left = 8
    while left > 0:
        left -= sum(1 for _ in client.receive(1))
    return answered / (now - begun)


def open_loop(client, rate, seconds):
    """Outcome, latency from the intended time, and from the sending, of each request."""
    count, results = int(rate * seconds), []
    begun = time.perf_counter() + 0.05
    sent = 0
    while len(results) < count:
        now = time.perf_counter()
        while sent < count and begun + sent / rate <= now:
            client.send(begun + sent / rate)
            sent += 1
        wait = max(0.0, begun + sent / rate - time.perf_counter()) if sent < count else 1
        for outcome, intended, sent_at in client.receive(wait):
            at = time.perf_counter()
            results.append((outcome, at - intended, at - sent_at))
    return results


def quantiles(values):
    values = sorted(values)
    if not values:
        return "–"
    of = lambda part: values[min(len(values) - 1, int(len(values) * part))] * 1000
    return f"{of(0.5):.2f} / {of(0.99):.2f} / {values[-1] * 1000:.2f}"


def main():
    binary = next(word for word in sys.argv[1:] if not word.startswith("--"))
    option = {word.split("=")[0]: word.split("=")[1] for word in sys.argv[1:] if word.startswith("--")}
    seconds = float(option.get("--seconds", 5))
    os.sched_setaffinity(0, {int(option.get("--client-core", 1))})
    repository = tempfile.TemporaryDirectory()
    for form, (policy, admission) in FORMS.items():
        path = pathlib.Path(repository.name, form, "1")
        path.mkdir(parents=True)
        text = CONFIG % (form, policy, EXECUTION_MS, admission)
        path.parent.joinpath("config.pbtxt").write_text(text)
    ports = [free_port() for _ in range(3)]
    flags = [f"--model-repository={repository.name}", "--log-info=false", "--io-cores=1"]
    flags += [f"--http-port={ports[0]}", f"--grpc-port={ports[1]}", f"--metrics-port={ports[2]}"]
    core = {int(option.get("--server-core", 0))}
    server = subprocess.Popen([binary, *flags], preexec_fn=lambda: os.sched_setaffinity(0, core))
    try:
        wait_until_ready(ports[0])
        print("| protocol | model | offered | goodput/s | of peak | refused/s | refused after ms: p50 / p99 / max | answered after ms: p50 / p99 / max |")
        print("|---|---|---|---|---|---|---|---|")
        for name, port, kind in (("HTTP", ports[0], Http), ("gRPC", ports[1], Grpc)):
            capacity = closed_loop(kind(port, "bounded"), seconds)
            for form in FORMS if kind is Grpc else ["bounded"]:
                measure(name, form, kind(port, form), capacity, seconds)
    finally:
        server.terminate()
        server.wait()


def measure(name, form, client, capacity, seconds):
    peak = 0.0
    for factor in FACTORS:
        results = open_loop(client, capacity * factor, seconds)
        good = sum(outcome == "ok" and latency <= IN_TIME_S for outcome, latency, _ in results) / seconds
        peak = max(peak, good)
        refused = [since for outcome, _, since in results if outcome == "refused"]
        answered = [latency for outcome, latency, _ in results if outcome == "ok"]
        cells = [name, form, f"{factor} × {capacity:.0f}/s", f"{good:.0f}", f"{good / peak:.0%}"]
        cells += [f"{len(refused) / seconds:.0f}", quantiles(refused), quantiles(answered)]
        print("| " + " | ".join(cells) + " |", flush=True)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until_ready(port):
    for _ in range(600):
        try:
            return urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready").read()
        except OSError:
            time.sleep(0.1)
    sys.exit("the server is not ready")


if __name__ == "__main__":
    main()
