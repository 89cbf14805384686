#!/usr/bin/env python3
"""How costs grow with what there is: models, tensors, parameters, strings, connections, sequences, steps.

    cargo build --release
    benches/growth.py target/release/nereid [ROW ...] [--quick] [--row-secs N]

Each row starts a server of its own and grows one number over four sizes. What is measured is CPU time of the server's
process, user and system, threads that ended included, as the kernel's clock of the process has it; or its resident
memory. What a server or request costs with one of the things is taken off first. Then a line is fitted to the
logarithms of sizes and costs by least squares: its slope is the exponent, 1 where the cost grows as the things do. The
cost of each is that of the largest size.

A row misses its aim if one costs more than the aim says, or if the exponent is above 1.15. Rows whose sizes would take
longer than --row-secs stop at a smaller one, and say so. CPU time does not depend much on others who want the cores,
but caches are shared: repeat what is close to its aim.
"""

import argparse
import http.client
import json
import math
import os
import pathlib
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time

PATIENCE_S = 600
EXPONENT_MAX = 1.15
PARTS = 7

IDENTITY = """name: "%s"
backend: "identity"
%sinput [ { name: "INPUT0" data_type: TYPE_%s dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_%s dims: [ -1 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
"""


class Server:
    """A server on a repository; `cpu_ns` and `resident_kib` are those of its process."""

    def __init__(self, binary, repository, *flags):
        self.http, self.grpc, self.metrics = free_ports(3)
        flags = [f"--model-repository={repository}", f"--http-port={self.http}", f"--grpc-port={self.grpc}",
                 f"--metrics-port={self.metrics}", "--http-address=127.0.0.1", "--grpc-address=127.0.0.1",
                 "--log-info=false", "--log-warning=false", *flags]
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen([binary, *flags], stdout=self.log, stderr=self.log)
        self.clock = (~self.process.pid << 3) | 2
        begin = time.perf_counter()
        while not self.is_ready("/v2/health/ready"):
            if self.process.poll() is not None or time.perf_counter() - begin > PATIENCE_S:
                self.log.seek(0)
                text = self.log.read().decode(errors="replace")[-2000:]
                self.stop()
                raise SystemExit(f"the server does not get ready:\n{text}")
            time.sleep(0.01)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.log.close()

    def cpu_ns(self):
        return time.clock_gettime_ns(self.clock)

    def resident_kib(self):
        for line in pathlib.Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1])
        return 0

    def ask(self, method, path, body=None, port=None):
        connection = http.client.HTTPConnection("127.0.0.1", port or self.http, timeout=PATIENCE_S)
        connection.request(method, path, body)
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        return answer, text

    def is_ready(self, path):
        try:
            return self.ask("GET", path)[0].status == 200
        except OSError:
            return False


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def model(repository, name, config):
    folder = pathlib.Path(repository, name)
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(config)


def identity(name, datatype="INT32", more=""):
    return IDENTITY % (name, more, datatype, datatype)


# Clients


class Http:
    """One connection, prepared requests."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @staticmethod
    def prepared(name, header, binary=b"", more=""):
        text = json.dumps(header).encode()
        length = f"Inference-Header-Content-Length: {len(text)}\r\n" if binary else ""
        head = (f"POST /v2/models/{name}/infer HTTP/1.1\r\nHost: localhost\r\n{more}{length}"
                f"Content-Length: {len(text) + len(binary)}\r\n\r\n")
        return head.encode() + text + binary

    def send(self, request):
        self.socket.sendall(request)
        data = b""
        while b"\r\n\r\n" not in data:
            data += self.received()
        head, _, body = data.partition(b"\r\n\r\n")
        fields = [line.partition(b":") for line in head.split(b"\r\n")[1:]]
        length = next((int(value) for name, _, value in fields if name.lower() == b"content-length"), 0)
        pieces, have = [body], len(body)
        while have < length:
            pieces.append(self.received())
            have += len(pieces[-1])
        if b" 200 " not in head.split(b"\r\n")[0]:
            raise SystemExit(f"refused: {head!r} {b''.join(pieces)[:500]!r}")
        return head, b"".join(pieces)

    def received(self):
        data = self.socket.recv(1 << 18)
        if not data:
            raise SystemExit("the server has closed the connection")
        return data

    def close(self):
        self.socket.close()


class Grpc:
    """One connection of HTTP/2, one call at a time. Windows for what is received are as large as can be."""

    WINDOW = (1 << 31) - 1

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.data, self.stream, self.taken = b"", -1, 0
        self.window, self.initial, self.of_stream = 65_535, 65_535, 0
        settings = struct.pack(">HI", 4, self.WINDOW)
        self.socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, settings)
                            + frame(8, 0, 0, struct.pack(">I", self.WINDOW - 65_535)))

    def call(self, path, message):
        self.stream += 2
        self.of_stream = self.initial
        fields = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "localhost"),
                  ("content-type", "application/grpc"), ("te", "trailers")]
        block = b"".join(b"\x00" + packed(name) + packed(value) for name, value in fields)
        out = [frame(1, 4, self.stream, block)]
        body = b"\x00" + struct.pack(">I", len(message)) + message
        at = 0
        while at < len(body):
            room = min(16_384, self.window, self.of_stream, len(body) - at)
            if room <= 0:
                self.socket.sendall(b"".join(out))
                out = []
                self.next_frame()
                continue
            is_last = at + room == len(body)
            out.append(frame(0, 1 if is_last else 0, self.stream, body[at:at + room]))
            at, self.window, self.of_stream = at + room, self.window - room, self.of_stream - room
        self.socket.sendall(b"".join(out))
        pieces = []
        while True:
            kind, flags, stream, payload = self.next_frame()
            if kind == 3 or kind == 7:
                raise SystemExit(f"the call was reset: {payload!r}")
            if stream != self.stream:
                continue
            if kind == 0:
                pieces.append(payload)
            if flags & 1:
                break
        answer = b"".join(pieces)
        if len(answer) < 5:
            raise SystemExit(f"{path} was refused: {payload!r}")
        return answer[5:]

    def next_frame(self):
        while len(self.data) < 9:
            self.data += self.received()
        length = int.from_bytes(self.data[:3], "big")
        kind, flags, stream = self.data[3], self.data[4], int.from_bytes(self.data[5:9], "big")
        while len(self.data) < 9 + length:
            self.data += self.received()
        payload, self.data = self.data[9:9 + length], self.data[9 + length:]
        if kind == 4 and not flags & 1:
            for at in range(0, length, 6):
                key, value = struct.unpack(">HI", payload[at:at + 6])
                if key == 4:
                    self.of_stream += value - self.initial
                    self.initial = value
            self.socket.sendall(frame(4, 1, 0, b""))
        elif kind == 6 and not flags & 1:
            self.socket.sendall(frame(6, 1, 0, payload))
        elif kind == 8 and stream == 0:
            self.window += int.from_bytes(payload, "big")
        elif kind == 8 and stream == self.stream:
            self.of_stream += int.from_bytes(payload, "big")
        elif kind == 0:
            self.taken += length
            if self.taken > 1 << 28:
                self.socket.sendall(frame(8, 0, 0, struct.pack(">I", self.taken)))
                self.taken = 0
        return kind, flags, stream, payload

    def received(self):
        data = self.socket.recv(1 << 18)
        if not data:
            raise SystemExit("the server has closed the connection")
        return data

    def close(self):
        self.socket.close()


def frame(kind, flags, stream, payload):
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def packed(text):
    assert len(text) < 127
    return bytes([len(text)]) + text.encode()


def varint(value):
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number, value):
    """A field of a message: a number, or bytes with their length."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value


def tensor(name, datatype, shape):
    return field(1, name) + field(2, datatype) + field(3, b"".join(varint(dim) for dim in shape))


INFER = "/inference.GRPCInferenceService/ModelInfer"


# What the rows measure


class Row:
    """The points of a row: sizes and what they cost in all, without what one thing costs."""

    def __init__(self, given, sizes, unit, aim=None):
        self.given, self.unit, self.aim = given, unit, aim
        self.sizes = [max(2, size // 8) for size in sizes] if given.quick else sizes
        self.points, self.notes, self.begin = [], [], time.perf_counter()

    def over(self, size):
        """Whether this size is left out because time is over."""
        if time.perf_counter() - self.begin <= self.given.row_secs or not self.points:
            return False
        self.notes.append(f"{size:,} left out after {self.given.row_secs} s")
        return True

    def add(self, size, cost):
        print(f"    {size:>8,}: {cost:.4g} {self.unit}", file=sys.stderr, flush=True)
        if cost > 0:
            self.points.append((size, cost))
        else:
            self.notes.append(f"{size:,} cost less than could be seen")

    def exponent(self):
        if len(self.points) < 2:
            return math.nan
        x, y = [math.log(size) for size, _ in self.points], [math.log(cost) for _, cost in self.points]
        middle_x, middle_y = statistics.fmean(x), statistics.fmean(y)
        spread = sum((one - middle_x) ** 2 for one in x)
        return sum((a - middle_x) * (b - middle_y) for a, b in zip(x, y)) / spread

    def line(self, name):
        if not self.points:
            return f"| {name} | – | – | – | – | – | – | {'; '.join(self.notes)} |"
        size, cost = self.points[-1]
        each, exponent = cost / size, self.exponent()
        # The aim of some rows is that of the whole.
        value = cost if self.aim and self.aim[1] == "all" else each
        shown_aim = "–" if not self.aim else f"≤ {self.aim[0]:g} {self.unit} {self.aim[1]}"
        is_met = exponent <= EXPONENT_MAX and (not self.aim or value <= self.aim[0])
        verdict = "met" if is_met else "missed"
        sizes = f"{self.points[0][0]:,}–{size:,}"
        notes = "; ".join(self.notes)
        return (f"| {name} | {sizes} | {cost:.4g} {self.unit} | {each:.4g} {self.unit} | {exponent:.2f} | {shown_aim} | "
                f"{verdict} | {notes} |")


def steady_us(server, once, least_s=0.6):
    """CPU time of one call in microseconds: the median of some parts, each of as many calls as take long enough."""
    for _ in range(3):
        begin = time.perf_counter()
        once()
        took = max(time.perf_counter() - begin, 1e-5)
    calls = max(1, min(3_000, int(least_s / PARTS / took)))
    costs = []
    for _ in range(PARTS):
        before = server.cpu_ns()
        for _ in range(calls):
            once()
        costs.append((server.cpu_ns() - before) / calls / 1e3)
    return statistics.median(costs)


def row_models(given):
    """Start of native models."""
    cpu = Row(given, [640, 1_600, 4_000, 10_000], "ms", (0.4, "each"))
    memory = Row(given, cpu.sizes, "KiB", (60, "each"))
    base = None
    for size in [1, *cpu.sizes]:
        if cpu.over(size):
            break
        with tempfile.TemporaryDirectory() as repository:
            for at in range(size):
                model(repository, f"m{at}", identity(f"m{at}"))
            with Server(given.binary, repository) as server:
                now = (server.cpu_ns() / 1e6, server.resident_kib())
        if base is None:
            base = now
            continue
        cpu.add(size - 1, now[0] - base[0])
        memory.add(size - 1, now[1] - base[1])
    return [("models, start: CPU", cpu), ("models, start: resident memory", memory)]


def row_loads(given):
    """Loads that a client requests, one after the other, while others are loaded already."""
    row = Row(given, [400, 1_000, 2_500, 6_250], "ms")
    with tempfile.TemporaryDirectory() as repository:
        for at in range(row.sizes[-1]):
            model(repository, f"m{at}", identity(f"m{at}"))
        with Server(given.binary, repository, "--model-control-mode=explicit") as server:
            client, loaded = Http(server.http), 0
            begin = server.cpu_ns()
            for size in row.sizes:
                if row.over(size):
                    break
                for at in range(loaded, size):
                    path = f"/v2/repository/models/m{at}/load"
                    client.send(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n".encode())
                loaded = size
                row.add(size, (server.cpu_ns() - begin) / 1e6)
            client.close()
    return [("models, loaded one by one: CPU", row)]


def row_poll(given):
    """Models that a poll finds at once while the server runs."""
    row = Row(given, [400, 1_000, 2_500, 6_250], "ms")
    for size in row.sizes:
        if row.over(size):
            break
        with tempfile.TemporaryDirectory() as repository, tempfile.TemporaryDirectory() as aside:
            model(repository, "first", identity("first"))
            for at in range(size):
                model(aside, f"m{at}", identity(f"m{at}"))
            flags = ["--model-control-mode=poll", "--repository-poll-secs=3"]
            with Server(given.binary, repository, *flags) as server:
                before = server.cpu_ns()
                for at in range(size):
                    os.rename(pathlib.Path(aside, f"m{at}"), pathlib.Path(repository, f"m{at}"))
                while not all(server.is_ready(f"/v2/models/m{at}/ready") for at in (0, size // 2, size - 1)):
                    time.sleep(0.2)
                while True:
                    rows = json.loads(server.ask("POST", "/v2/repository/index")[1])
                    if sum(one.get("state") == "READY" for one in rows) > size:
                        break
                    time.sleep(0.5)
                row.add(size, (server.cpu_ns() - before) / 1e6)
    return [("models, found by a poll: CPU", row)]


def tensors_config(count):
    pairs = [f'{side}put [ {{ name: "{side.upper()}PUT{at}" data_type: TYPE_INT32 dims: [ 1 ] }} ]\n'
             for side in ("in", "out") for at in range(count)]
    return 'name: "many"\nbackend: "identity"\n' + "".join(pairs)


def row_tensors(given):
    """Inputs and outputs of one request."""
    sizes = [60, 250, 1_000, 4_000]
    rows = [("tensors, HTTP with binary data", Row(given, sizes, "us", (0.7, "each"))),
            ("tensors, HTTP, in another order", Row(given, sizes, "us")),
            ("tensors, gRPC", Row(given, sizes, "us", (0.7, "each"))),
            ("tensors, gRPC, in another order", Row(given, sizes, "us"))]
    base = None
    for size in [1, *rows[0][1].sizes]:
        if rows[0][1].over(size):
            break
        with tempfile.TemporaryDirectory() as repository:
            model(repository, "many", tensors_config(size))
            with Server(given.binary, repository) as server:
                http_client, grpc_client, costs = Http(server.http), Grpc(server.grpc), []
                for order in (range(size), range(size - 1, -1, -1)):
                    inputs = [{"name": f"INPUT{at}", "shape": [1], "datatype": "INT32",
                               "parameters": {"binary_data_size": 4}} for at in order]
                    header = {"inputs": inputs, "parameters": {"binary_data_output": True}}
                    request = Http.prepared("many", header, bytes(4 * size))
                    costs.append(steady_us(server, lambda: http_client.send(request)))
                for order in (range(size), range(size - 1, -1, -1)):
                    message = field(1, "many") + b"".join(field(5, tensor(f"INPUT{at}", "INT32", [1])) for at in order)
                    message += field(7, bytes(4)) * size
                    costs.append(steady_us(server, lambda: grpc_client.call(INFER, message)))
                http_client.close()
                grpc_client.close()
        if base is None:
            base = costs
            continue
        for (_, row), cost, of_one in zip(rows, costs, base):
            row.add(size - 1, cost - of_one)
    return rows


def row_parameters(given):
    """Parameters of one request, each with another name."""
    sizes = [60, 250, 1_000, 4_000]
    rows = [("parameters, HTTP", Row(given, sizes, "us")), ("parameters, gRPC", Row(given, sizes, "us"))]
    with tempfile.TemporaryDirectory() as repository:
        model(repository, "one", identity("one"))
        with Server(given.binary, repository) as server:
            http_client, grpc_client, base = Http(server.http), Grpc(server.grpc), None
            for size in [0, *rows[0][1].sizes]:
                names = {f"parameter_{at}": at for at in range(size)}
                header = {"parameters": {"binary_data_output": True, **names},
                          "inputs": [{"name": "INPUT0", "shape": [1], "datatype": "INT32",
                                      "parameters": {"binary_data_size": 4}}]}
                request = Http.prepared("one", header, bytes(4))
                entries = b"".join(field(4, field(1, name) + field(2, field(2, at))) for name, at in names.items())
                message = field(1, "one") + entries + field(5, tensor("INPUT0", "INT32", [1])) + field(7, bytes(4))
                costs = [steady_us(server, lambda: http_client.send(request)),
                         steady_us(server, lambda: grpc_client.call(INFER, message))]
                if base is None:
                    base = costs
                    continue
                for (_, row), cost, without in zip(rows, costs, base):
                    row.add(size, cost - without)
            http_client.close()
            grpc_client.close()
    return rows


def row_strings(given):
    """Elements of BYTES of one request, of 8 bytes each."""
    sizes = [1_000, 8_000, 64_000, 512_000]
    rows = [("strings, JSON", Row(given, sizes, "us")), ("strings, HTTP with binary data", Row(given, sizes, "us")),
            ("strings, gRPC", Row(given, sizes, "us"))]
    with tempfile.TemporaryDirectory() as repository:
        model(repository, "one", identity("one", "STRING"))
        with Server(given.binary, repository) as server:
            http_client, grpc_client, base = Http(server.http), Grpc(server.grpc), None
            for size in [1, *rows[0][1].sizes]:
                texts = [f"{at:08}" for at in range(size)]
                raw = b"".join(struct.pack("<I", 8) + text.encode() for text in texts)
                one = {"name": "INPUT0", "shape": [size], "datatype": "BYTES"}
                in_json = Http.prepared("one", {"inputs": [{**one, "data": texts}]})
                header = {"inputs": [{**one, "parameters": {"binary_data_size": len(raw)}}],
                          "parameters": {"binary_data_output": True}}
                binary = Http.prepared("one", header, raw)
                message = field(1, "one") + field(5, tensor("INPUT0", "BYTES", [size])) + field(7, raw)
                costs = [steady_us(server, lambda: http_client.send(in_json)),
                         steady_us(server, lambda: http_client.send(binary)),
                         steady_us(server, lambda: grpc_client.call(INFER, message))]
                if base is None:
                    base = costs
                    continue
                for (_, row), cost, of_one in zip(rows, costs, base):
                    row.add(size - 1, cost - of_one)
            http_client.close()
            grpc_client.close()
    return rows


def row_idle(given):
    """Connections at rest, each after one request."""
    row = Row(given, [1_000, 2_500, 5_000, 10_000], "KiB", (6, "each"))
    left = Row(given, row.sizes, "KiB", (0.6, "each"))
    with tempfile.TemporaryDirectory() as repository:
        model(repository, "one", identity("one"))
        request = Http.prepared("one", {"inputs": [{"name": "INPUT0", "shape": [1], "datatype": "INT32",
                                                    "data": [7]}]})
        for size in row.sizes:
            with Server(given.binary, repository) as server:
                first = Http(server.http)
                first.send(request)
                before = server.resident_kib()
                open_ones = []
                for _ in range(size):
                    client = Http(server.http)
                    client.send(request)
                    open_ones.append(client)
                # Connections give back what they keep for more requests once they are at rest.
                time.sleep(5)
                row.add(size, server.resident_kib() - before)
                for client in open_ones:
                    client.close()
                # The server trims the heap of what it found free in two looks, a minute apart.
                for _ in range(150):
                    time.sleep(1)
                    held = server.resident_kib() - before
                    if held <= 0.6 * size:
                        break
                left.add(size, max(held, 1))
                first.close()
    left.notes.append("the exponent says nothing where next to nothing is left; less than 32 MiB stays in the heap")
    return [("connections at rest: resident memory", row), ("connections, after they closed: memory left", left)]


def row_sequences(given):
    """Sequences that live at the same time, begun over one connection of gRPC."""
    cpu = Row(given, [3_000, 10_000, 30_000, 100_000], "us")
    memory, again = Row(given, cpu.sizes, "KiB"), Row(given, cpu.sizes, "us")
    config = identity("kept", more="max_batch_size: 1\nsequence_batching { max_sequence_idle_microseconds: 3600000000 "
                                   "oldest { max_candidate_sequences: 200000 } }\n")
    base = None
    with tempfile.TemporaryDirectory() as repository:
        model(repository, "kept", config)
        with Server(given.binary, repository) as server:
            client = Grpc(server.grpc)

            def send(number, is_first):
                flags = field(4, field(1, "sequence_start") + field(2, field(1, 1))) if is_first else b""
                identity_of = field(4, field(1, "sequence_id") + field(2, field(2, number)))
                tail = field(5, tensor("INPUT0", "INT32", [1, 1])) + field(7, bytes(4))
                client.call(INFER, field(1, "kept") + identity_of + flags + tail)

            send(1, True)
            alive, began, before = 1, server.cpu_ns(), server.resident_kib()
            for size in cpu.sizes:
                if cpu.over(size):
                    break
                for number in range(alive + 1, size + 1):
                    send(number, True)
                began_now = server.cpu_ns() - began
                alive = size
                cpu.add(size, began_now / 1e3)
                memory.add(size, server.resident_kib() - before)
                count = min(size, 3_000)
                step, before_again = size // count, server.cpu_ns()
                for at in range(count):
                    send(1 + at * step, False)
                spent = server.cpu_ns() - before_again
                again.add(size, spent / 1e3 / count * size)
                began += spent
            client.close()
    return [("sequences, begun: CPU", cpu), ("sequences, alive: resident memory", memory),
            ("sequences, one more request of each: CPU", again)]


def chain_config(steps):
    """An ensemble of steps one behind the other."""
    name = lambda at: "INPUT0" if at == 0 else "OUTPUT0" if at == steps else f"between{at}"
    text = "".join(
        f'step [ {{ model_name: "one" model_version: -1 input_map {{ key: "INPUT0" value: "{name(at)}" }} '
        f'output_map {{ key: "OUTPUT0" value: "{name(at + 1)}" }} }} ]\n' for at in range(steps))
    return ('name: "chain"\nplatform: "ensemble"\ninput [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]\n'
            'output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]\nensemble_scheduling {\n'
            + text + "}\n")


def fan_config(steps):
    """An ensemble of steps beside each other, each with an output of its own."""
    text = "".join(
        f'step [ {{ model_name: "one" model_version: -1 input_map {{ key: "INPUT0" value: "INPUT0" }} '
        f'output_map {{ key: "OUTPUT0" value: "OUT{at}" }} }} ]\n' for at in range(steps))
    outputs = "".join(f'output [ {{ name: "OUT{at}" data_type: TYPE_INT32 dims: [ -1 ] }} ]\n' for at in range(steps))
    return ('name: "fan"\nplatform: "ensemble"\ninput [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]\n'
            + outputs + "ensemble_scheduling {\n" + text + "}\n")


def row_ensembles(given):
    """Steps of an ensemble of identity, in a chain and side by side."""
    sizes = [30, 100, 300, 1_000]
    rows = [("ensemble steps, in a chain", Row(given, sizes, "us", (0.5, "each"))),
            ("ensemble steps, side by side", Row(given, sizes, "us"))]
    base = None
    for size in [1, *rows[0][1].sizes]:
        if rows[0][1].over(size):
            break
        with tempfile.TemporaryDirectory() as repository:
            model(repository, "one", identity("one"))
            model(repository, "chain", chain_config(size))
            model(repository, "fan", fan_config(size))
            with Server(given.binary, repository) as server:
                client, costs = Http(server.http), []
                for name in ("chain", "fan"):
                    header = {"inputs": [{"name": "INPUT0", "shape": [1], "datatype": "INT32",
                                          "parameters": {"binary_data_size": 4}}],
                              "parameters": {"binary_data_output": True}}
                    request = Http.prepared(name, header, bytes(4))
                    costs.append(steady_us(server, lambda: client.send(request)))
                client.close()
        if base is None:
            base = costs
            continue
        for (_, row), cost, of_one in zip(rows, costs, base):
            row.add(size - 1, cost - of_one)
    return rows


def row_many_ensembles(given):
    """Start of ensembles of two steps, each of models of its own."""
    row = Row(given, [125, 320, 800, 2_000], "ms")
    base = None
    for size in [1, *row.sizes]:
        if row.over(size):
            break
        with tempfile.TemporaryDirectory() as repository:
            for at in range(size):
                model(repository, f"m{at}", identity(f"m{at}"))
                config = chain_config(2).replace('"chain"', f'"e{at}"').replace('"one"', f'"m{at}"')
                model(repository, f"e{at}", config)
            with Server(given.binary, repository) as server:
                now = server.cpu_ns() / 1e6
        if base is None:
            base = now
            continue
        row.add(size - 1, now - base)
    return [("ensembles, start with a part each: CPU", row)]


def row_metrics(given):
    """The page of metrics with so many models."""
    row = Row(given, [640, 1_600, 4_000, 10_000], "ms", (30, "all"))
    base, shown = None, ""
    for size in [1, *row.sizes]:
        if row.over(size):
            break
        with tempfile.TemporaryDirectory() as repository:
            for at in range(size):
                model(repository, f"m{at}", identity(f"m{at}"))
            with Server(given.binary, repository) as server:
                page = lambda: server.ask("GET", "/metrics", port=server.metrics)
                cost = steady_us(server, page) / 1e3
                answer, text = page()
                is_in_parts = answer.getheader("Transfer-Encoding") == "chunked"
                shown = f"{len(text) / 1e6:.1f} MB {'in parts' if is_in_parts else 'at once'}"
        if base is None:
            base = cost
            continue
        row.add(size - 1, cost - base)
    row.notes.append(shown)
    return [("metrics page with many models: CPU", row)]


def row_arrivals(given):
    """Connections that come, send one request and go."""
    row = Row(given, [500, 2_000, 8_000, 20_000], "us", (20, "each"))
    with tempfile.TemporaryDirectory() as repository:
        model(repository, "one", identity("one"))
        with Server(given.binary, repository) as server:
            request = Http.prepared("one", {"inputs": [{"name": "INPUT0", "shape": [1], "datatype": "INT32",
                                                        "data": [7]}]}, more="Connection: close\r\n")
            seconds = 0
            for size in row.sizes:
                if row.over(size):
                    break
                before, begin = server.cpu_ns(), time.perf_counter()
                for _ in range(size):
                    client = Http(server.http)
                    # At once reset: else the ports of this side would be used up.
                    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    client.send(request)
                    client.close()
                seconds = (time.perf_counter() - begin) / size
                row.add(size, (server.cpu_ns() - before) / 1e3)
            row.notes.append(f"{1 / seconds:,.0f} a second by one client")
    return [("connections that come and go: CPU", row)]


ROWS = {
    "models": row_models, "loads": row_loads, "poll": row_poll, "tensors": row_tensors, "parameters": row_parameters,
    "strings": row_strings, "idle": row_idle, "sequences": row_sequences, "ensembles": row_ensembles,
    "many-ensembles": row_many_ensembles, "metrics": row_metrics, "arrivals": row_arrivals,
}


def machine():
    names = [line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")]
    load = " ".join(open("/proc/loadavg").read().split()[:3])
    return f"{names[0] if names else '?'}, {os.cpu_count()} cores, Linux {os.uname().release}, load average {load}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"all of: {', '.join(ROWS)}")
    parser.add_argument("--quick", action="store_true", help="an eighth of each size")
    parser.add_argument("--row-secs", type=int, default=180, help="after so long a row takes no larger size")
    given = parser.parse_intermixed_args()
    unknown = set(given.rows) - ROWS.keys()
    if unknown:
        parser.error(f"no row is called {', '.join(sorted(unknown))}; there are {', '.join(ROWS)}")
    print(f"{machine()}{'; an eighth of each size' if given.quick else ''}\n")
    print("| row | things | cost of the most | each | exponent | aim | | |\n|---|---|---|---|---|---|---|---|", flush=True)
    for name in given.rows or ROWS:
        print(f"{name}: {ROWS[name].__doc__}", file=sys.stderr, flush=True)
        for title, row in ROWS[name](given):
            print(row.line(title), flush=True)


if __name__ == "__main__":
    main()
