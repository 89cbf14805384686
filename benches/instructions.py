#!/usr/bin/env python3
"""Counts the instructions that the whole server takes for a plain request.

    RUSTFLAGS='--cfg rustix_use_libc' cargo build --release --target-dir target/counted
    benches/instructions.py target/counted/release/nereid [OTHER_BINARY] [--functions] [--load=NAME ...]

Wall time is noise on a shared machine; instructions are not. The server runs under valgrind's callgrind and answers
requests of 64 bytes to an identity model over one connection, once a thousand and once three thousand of them; the
difference of the two counts, divided by two thousand, is what one request takes, since start and end cancel. The
client runs outside valgrind. For two binaries the second is also reported as a change of the first. With --functions
the functions follow that make the difference, the largest first. --load= names other loads: grpc_busy (64 in flight over
4 connections), grpc_wide (64 connections), grpc_stream, grpc_decoupled (one count is one response) and
grpc_large (588 KiB); http_busy (64 in flight over 4 connections), http_wide (64 connections), http_ids (each request
with an id of its own), http_json (16 FP32 as text, both ways), http_shared (system shared memory) and http_large.

Valgrind offers no vdso that rustix could call by itself: rustix has to go through libc, and the server to use epoll.
"""

import collections
import os
import pathlib
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

FEW, MANY = 1000, 3000
SIZE = 64

CONFIG = """name: "same"
backend: "identity"
input [ { name: "INPUT0" data_type: TYPE_UINT8 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_UINT8 dims: [ -1 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
"""

CONFIG_FLOATS = CONFIG.replace("same", "floats").replace("UINT8", "FP32")

CONFIG_BATCHED = """name: "batched"
backend: "identity"
max_batch_size: 8
dynamic_batching { preferred_batch_size: [ 8 ] max_queue_delay_microseconds: 10000000 }
input [ { name: "INPUT0" data_type: TYPE_UINT8 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_UINT8 dims: [ -1 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
"""

CONFIG_MANY = """name: "many"
backend: "repeat"
model_transaction_policy { decoupled: true }
input [
  { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] },
  { name: "DELAY" data_type: TYPE_UINT32 dims: [ -1 ] },
  { name: "WAIT" data_type: TYPE_UINT32 dims: [ 1 ] }
]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }, { name: "IDX" data_type: TYPE_UINT32 dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
"""


def http(port, count):
    """Binary tensors over HTTP/1.1, one at a time."""
    request = binary(SIZE)
    with socket.create_connection(("127.0.0.1", port)) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(count):
            peer.sendall(request)
            answer = b""
            while b"\r\n\r\n" not in answer:
                answer += received(peer)
            head, rest = answer.split(b"\r\n\r\n", 1)
            if not head.startswith(b"HTTP/1.1 200"):
                sys.exit(f"the server answers {answer!r}")
            length = int(re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)[1])
            while len(rest) < length:
                rest += received(peer)


def received(peer):
    """The next bytes; a server that leaves ends the run."""
    return peer.recv(65536) or sys.exit("the server closed the connection")


def literal(name, value):
    """A header field that the peer shall remember; `name` is a place in the static table, or a text."""
    start = bytes([0x40 | name]) if isinstance(name, int) else b"\x40" + bytes([len(name)]) + name
    return start + bytes([len(value)]) + value


def varint(number):
    """As protobuf writes it."""
    text = b""
    while number > 127:
        text, number = text + bytes([number & 127 | 128]), number >> 7
    return text + bytes([number])


def field(number, contents):
    """A field of bytes of a protobuf message."""
    return varint(number << 3 | 2) + varint(len(contents)) + contents


def frame(kind, flags, stream, payload):
    """A frame of HTTP/2."""
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def message_of(model, *inputs):
    """ModelInferRequest: inputs by name, datatype, shape and raw contents."""
    message = field(1, model)
    for name, datatype, shape, _ in inputs:
        message += field(5, field(1, name) + field(2, datatype) + field(3, b"".join(map(varint, shape))))
    return message + b"".join(field(7, data) for *_, data in inputs)


def framed(message):
    """A message behind gRPC's prefix."""
    return b"\0" + struct.pack(">I", len(message)) + message


class Http2:
    """A client's connection, header fields by their indices once they are in the server's table."""

    def __init__(self, port, method=b"ModelInfer"):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        settings = struct.pack(">HI", 4, (1 << 31) - 1)
        self.socket.sendall(
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, settings) + frame(8, 0, 0, struct.pack(">I", 1 << 30))
        )
        self.method, self.stream, self.unread, self.partial, self.taken = method, -1, bytearray(), bytearray(), 0

    def open(self):
        """The frame that opens the next stream."""
        self.stream += 2
        if self.stream > 1:
            return frame(1, 4, self.stream, b"\x83\x86\xc1\xc0\xbf\xbe")
        head = (
            b"\x83\x86"
            + literal(4, b"/inference.GRPCInferenceService/" + self.method)
            + literal(1, b"127.0.0.1:8001")
            + literal(31, b"application/grpc")
            + literal(b"te", b"trailers")
        )
        return frame(1, 4, self.stream, head)

    def frames(self):
        """Frames that have come, once there is one: kind, flags, stream and payload. Answers what wants an answer."""
        self.unread += self.socket.recv(1 << 20) or sys.exit("the server closed the connection")
        came, at = [], 0
        while len(self.unread) >= at + 9:
            length, kind, flags, _ = struct.unpack(">IBBH", b"\0" + self.unread[at : at + 7])
            start, end = at + 9, at + 9 + length
            if len(self.unread) < end:
                break
            of, payload = int.from_bytes(self.unread[at + 5 : start], "big"), bytes(self.unread[start:end])
            at = end
            if kind in (4, 6) and not flags & 1:
                self.socket.sendall(frame(kind, 1, 0, payload if kind == 6 else b""))
            elif kind == 0:
                self.taken += length
            came.append((kind, flags, of, payload))
        del self.unread[:at]
        if self.taken > 1 << 28:
            self.socket.sendall(frame(8, 0, 0, struct.pack(">I", self.taken)))
            self.taken = 0
        return came

    def messages(self):
        """How many messages of the one stream have come, once there is a frame."""
        for kind, flags, _, payload in self.frames():
            if kind == 3 or kind == 1 and flags & 1:
                sys.exit(f"the server ends the stream with {payload}")
            self.partial += payload if kind == 0 else b""
        count = 0
        while len(self.partial) >= 5 and len(self.partial) >= 5 + int.from_bytes(self.partial[1:5], "big"):
            del self.partial[: 5 + int.from_bytes(self.partial[1:5], "big")]
            count += 1
        return count


def unary(port, count, connections, in_flight, size, model=b"same", shape=None):
    """ModelInfer, so many of them in flight on each of so many connections."""
    data = framed(message_of(model, (b"INPUT0", b"UINT8", shape or (size,), bytes(size))))
    peers = {peer.socket.fileno(): peer for peer in (Http2(port) for _ in range(connections))}
    sent, answered, wakes = 0, 0, select.poll()
    for descriptor, peer in peers.items():
        wakes.register(descriptor, select.POLLIN)
        # The first head stands alone: the others refer to it.
        for _ in range(in_flight):
            peer.socket.sendall(peer.open() + frame(0, 1, peer.stream, data))
            sent += 1
    while answered < count:
        for descriptor, _ in wakes.poll():
            peer, ended = peers[descriptor], 0
            for kind, flags, _, payload in peer.frames():
                ended += kind in (0, 1) and flags & 1
                if kind == 3 or kind == 1 and b"grpc-message" in payload:
                    sys.exit(f"the server answers {kind} {payload}")
            answered += ended
            more = max(min(ended, count - sent), 0)
            sent += more
            if more:
                peer.socket.sendall(b"".join(peer.open() + frame(0, 1, peer.stream, data) for _ in range(more)))


def grpc(port, count):
    """ModelInfer over HTTP/2, one at a time."""
    unary(port, count, 1, 1, SIZE)


def grpc_busy(port, count):
    """The same with 64 in flight over 4 connections."""
    unary(port, count, 4, 16, SIZE)


def grpc_wide(port, count):
    """The same with 64 connections, one in flight on each."""
    unary(port, count, 64, 1, SIZE)


def grpc_large(port, count):
    """The same with 588 KiB, one at a time."""
    unary(port, count, 1, 1, 588 << 10)


def grpc_stream(port, count):
    """ModelStreamInfer with 64 in flight."""
    peer, answered = Http2(port, b"ModelStreamInfer"), 0
    data = framed(message_of(b"same", (b"INPUT0", b"UINT8", (SIZE,), bytes(SIZE))))
    peer.socket.sendall(peer.open())
    sent = 64
    peer.socket.sendall(frame(0, 0, 1, data) * sent)
    while answered < count:
        came = peer.messages()
        answered += came
        more = max(min(came, count - sent), 0)
        sent += more
        if more:
            peer.socket.sendall(frame(0, 0, 1, data) * more)


def grpc_decoupled(port, count):
    """Responses of decoupled requests on a stream, a hundred to each of them, two requests in flight."""
    peer, answered = Http2(port, b"ModelStreamInfer"), 0
    inputs = ((b"IN", b"INT32", (100,), bytes(400)), (b"DELAY", b"UINT32", (100,), bytes(400)), (b"WAIT", b"UINT32", (1,), bytes(4)))
    data = framed(message_of(b"many", *inputs))
    peer.socket.sendall(peer.open() + frame(0, 0, 1, data) * 2)
    sent = 2
    while answered < count:
        before = answered // 100
        answered += peer.messages()
        more = max(min(answered // 100 - before, count // 100 - sent), 0)
        sent += more
        if more:
            peer.socket.sendall(frame(0, 0, 1, data) * more)


def post(path, json, data=b""):
    """A request over HTTP/1.1, tensors behind its JSON."""
    binary = b"Inference-Header-Content-Length: %d\r\n" % len(json) if data else b""
    return (
        b"POST %s HTTP/1.1\r\nHost: 127.0.0.1:8000\r\nUser-Agent: python-requests/2.31.0\r\nAccept: */*\r\n"
        b"Connection: keep-alive\r\nContent-Type: application/%s\r\n%sContent-Length: %d\r\n\r\n%s"
        % (path, b"octet-stream" if data else b"json", binary, len(json) + len(data), json + data)
    )


def binary(size, members=""):
    """An inference request with a tensor of `size` bytes behind its JSON."""
    json = (
        '{%s"inputs":[{"name":"INPUT0","shape":[%d],"datatype":"UINT8","parameters":{"binary_data_size":%d}}],'
        '"parameters":{"binary_data_output":true}}' % (members, size, size)
    )
    return post(b"/v2/models/same/infer", json.encode(), bytes(size))


def answers(unread):
    """How many whole answers stand at the front of `unread`, which loses them."""
    count = 0
    while (end := unread.find(b"\r\n\r\n")) >= 0:
        head = bytes(unread[: end + 2])
        if not head.startswith(b"HTTP/1.1 200"):
            sys.exit(f"the server answers {bytes(unread)!r}")
        length = int(re.search(rb"(?i)\ncontent-length: *(\d+)\r", head)[1])
        if len(unread) < end + 4 + length:
            break
        del unread[: end + 4 + length]
        count += 1
    return count


def http_load(port, count, connections, in_flight, request):
    """So many requests in flight on each of so many connections; `request` makes number n of them."""
    peers, wakes, sent, answered = {}, select.poll(), 0, 0
    for _ in range(connections):
        peer = socket.create_connection(("127.0.0.1", port))
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        wakes.register(peer, select.POLLIN)
        peers[peer.fileno()] = (peer, bytearray())
        peer.sendall(b"".join(request(sent + at) for at in range(in_flight)))
        sent += in_flight
    while answered < count:
        for descriptor, _ in wakes.poll():
            peer, unread = peers[descriptor]
            unread += peer.recv(1 << 20) or sys.exit("the server closed the connection")
            came = answers(unread)
            answered += came
            more = max(min(came, count - sent), 0)
            if more:
                peer.sendall(b"".join(request(sent + at) for at in range(more)))
                sent += more


def http_busy(port, count):
    """64 requests in flight over 4 connections."""
    same = binary(SIZE)
    http_load(port, count, 4, 16, lambda _: same)


def http_wide(port, count):
    """64 connections, one request in flight on each."""
    same = binary(SIZE)
    http_load(port, count, 64, 1, lambda _: same)


def http_ids(port, count):
    """Each request has an id of its own."""
    http_load(port, count, 1, 1, lambda at: binary(SIZE, f'"id":"{at}",'))


def http_json(port, count):
    """Numbers as text, there and back."""
    numbers = ",".join(f"{at * 0.37:.3f}" for at in range(16))
    json = '{"inputs":[{"name":"INPUT0","shape":[16],"datatype":"FP32","data":[%s]}]}' % numbers
    same = post(b"/v2/models/floats/infer", json.encode())
    http_load(port, count, 1, 1, lambda _: same)


def http_shared(port, count):
    """Tensors in system shared memory."""
    with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="nereid-instructions-") as memory:
        memory.truncate(2 * SIZE)
        key, size = "/" + os.path.basename(memory.name), 2 * SIZE
        register = '{"key":"%s","offset":0,"byte_size":%d}' % (key, size)
        first = post(b"/v2/systemsharedmemory/region/r/register", register.encode())
        window = '"parameters":{"shared_memory_region":"r","shared_memory_offset":%d,"shared_memory_byte_size":%d}'
        json = (
            '{"inputs":[{"name":"INPUT0","shape":[%d],"datatype":"UINT8",%s}],"outputs":[{"name":"OUTPUT0",%s}]}'
            % (SIZE, window % (0, SIZE), window % (SIZE, SIZE))
        )
        same = post(b"/v2/models/same/infer", json.encode())
        http_load(port, count, 1, 1, lambda at: same if at else first)


def http_large(port, count):
    """588 KiB there and back."""
    same = binary(588 * 1024)
    http_load(port, count, 1, 1, lambda _: same)


def grpc_batch(port, count):
    """The same as `grpc` to a model that makes batches of eight, eight in flight."""
    unary(port, count, 1, 8, SIZE, b"batched", (1, SIZE))


LARGE = (http_large, grpc_large)
LOADS = (http, http_busy, http_wide, http_ids, http_json, http_shared, http_large)
LOADS += (grpc, grpc_busy, grpc_wide, grpc_stream, grpc_decoupled, grpc_large, grpc_batch)


def free_port():
    """A port on which no process listens now."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def run(binary, ask, count):
    """Instructions of a server's whole life, in all and by function."""
    with tempfile.TemporaryDirectory() as directory:
        models = pathlib.Path(directory, "models")
        configs = {"same": CONFIG, "floats": CONFIG_FLOATS, "many": CONFIG_MANY, "batched": CONFIG_BATCHED}
        for name, config in configs.items():
            models.joinpath(name, "1").mkdir(parents=True)
            models.joinpath(name, "config.pbtxt").write_text(config)
        port, out = free_port(), os.path.join(directory, "out")
        own = ask.__name__.split("_")[0]
        other = "grpc" if own == "http" else "http"
        flags = [f"--allow-{other}=false", f"--{own}-port={port}", "--allow-metrics=false"]
        flags += ["--io-engine=epoll", "--io-cores=1", "--allow-client-shm=true", f"--model-repository={models}"]
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", binary, *flags]
        with open(os.path.join(directory, "log"), "wb+") as log:
            server = subprocess.Popen(command, stdout=log, stderr=log)
            while socket.socket().connect_ex(("127.0.0.1", port)) != 0:
                if server.poll() is not None:
                    log.seek(0)
                    sys.exit(log.read().decode(errors="replace"))
                time.sleep(0.1)
            try:
                ask(port, count)
            finally:
                server.send_signal(signal.SIGTERM)
                server.wait()
        text = subprocess.run(
            ["callgrind_annotate", "--threshold=100", "--auto=no", out], capture_output=True, text=True, check=True
        ).stdout
    functions = collections.Counter()
    for line in re.finditer(r"^ *([\d,]+) \([ \d.]+%\)  (.*)$", text, re.M):
        name = re.sub(r" \[.*\]$|::h[0-9a-f]{16}|'\d+$", "", line[2].rsplit("???:", 1)[-1])
        functions[re.sub(r"^\S*/(?=[^/ ]*:)", "", name)] += int(line[1].replace(",", ""))
    return functions.pop("PROGRAM TOTALS"), functions


def measure(binary, ask):
    """Instructions of one request, in all and by function."""
    portion = 10 if ask in LARGE else 1
    few, many = run(binary, ask, FEW // portion), run(binary, ask, MANY // portion)
    requests = (MANY - FEW) // portion
    by_function = {name: (count - few[1][name]) / requests for name, count in many[1].items()}
    return (many[0] - few[0]) / requests, by_function


def main():
    """Prints what each of the binaries needs."""
    show = "--functions" in sys.argv
    binaries = [word for word in sys.argv[1:] if not word.startswith("--")]
    named = {word.removeprefix("--load=") for word in sys.argv[1:] if word.startswith("--load=")}
    loads = [load for load in LOADS if load.__name__ in named or not named and load in (http, grpc)]
    if not loads or not binaries or len(binaries) > 2:
        sys.exit(__doc__)
    for load in loads:
        counts = [measure(binary, load) for binary in binaries]
        change = f" ({counts[-1][0] - counts[0][0]:+.0f})" if len(counts) == 2 else ""
        print(f"{load.__name__}: {' → '.join(f'{total:.0f}' for total, _ in counts)} instructions a request{change}", flush=True)
        if show:
            names = {name for _, functions in counts for name in functions}
            last, first = counts[-1][1], counts[0][1] if len(counts) == 2 else {}
            rows = [(last.get(name, 0) - first.get(name, 0), last.get(name, 0), name) for name in names]
            for difference, count, name in sorted(rows, key=lambda row: -abs(row[0])):
                if abs(difference) >= 1:
                    print(f"  {difference:+9.1f} {count:9.1f}  {name}")


if __name__ == "__main__":
    main()
