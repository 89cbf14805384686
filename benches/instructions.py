#!/usr/bin/env python3
"""Counts the instructions that the whole server takes for a plain request.

    RUSTFLAGS='--cfg rustix_use_libc' cargo build --release --target-dir target/counted
    benches/instructions.py target/counted/release/nereid [OTHER_BINARY] [--functions]

Wall time is noise on a shared machine; instructions are not. The server runs under valgrind's callgrind and answers
requests of 64 bytes to an identity model over one connection, once a thousand and once three thousand of them; the
difference of the two counts, divided by two thousand, is what one request takes, since start and end cancel. What
sends the requests runs outside valgrind. Of two binaries the second is also told as a change of the first. With
--functions the functions follow that make the difference, the largest first.

Valgrind offers no vdso that rustix could call by itself: rustix has to go through libc, and the server to use epoll.
"""

import collections
import os
import pathlib
import re
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


def http(port, count):
    """Binary tensors over HTTP/1.1."""
    json = (
        '{"inputs":[{"name":"INPUT0","shape":[%d],"datatype":"UINT8","parameters":{"binary_data_size":%d}}],'
        '"parameters":{"binary_data_output":true}}' % (SIZE, SIZE)
    ).encode()
    body = json + bytes(SIZE)
    request = (
        b"POST /v2/models/same/infer HTTP/1.1\r\nHost: 127.0.0.1:8000\r\nUser-Agent: python-requests/2.31.0\r\n"
        b"Accept: */*\r\nConnection: keep-alive\r\n"
        b"Content-Type: application/octet-stream\r\nInference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n"
        % (len(json), len(body))
    ) + body
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


def grpc(port, count):
    """ModelInfer over HTTP/2, header fields by their places once the server knows them."""
    tensor = field(1, b"INPUT0") + field(2, b"UINT8") + field(3, varint(SIZE))
    message = field(1, b"same") + field(5, tensor) + field(7, bytes(SIZE))
    data = b"\0" + struct.pack(">I", len(message)) + message
    first = (
        b"\x83\x86"
        + literal(4, b"/inference.GRPCInferenceService/ModelInfer")
        + literal(1, b"127.0.0.1:8001")
        + literal(31, b"application/grpc")
        + literal(b"te", b"trailers")
    )
    with socket.create_connection(("127.0.0.1", port)) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        window = struct.pack(">I", 1 << 30)
        peer.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"") + frame(8, 0, 0, window))
        unread = b""
        for at in range(count):
            stream = 2 * at + 1
            head = first if at == 0 else b"\x83\x86\xc1\xc0\xbf\xbe"
            peer.sendall(frame(1, 4, stream, head) + frame(0, 1, stream, data))
            is_open, answered = True, 0
            while is_open:
                while len(unread) < 9 or len(unread) < 9 + int.from_bytes(unread[:3], "big"):
                    unread += received(peer)
                length, kind, flags = int.from_bytes(unread[:3], "big"), unread[3], unread[4]
                of, payload, unread = int.from_bytes(unread[5:9], "big"), unread[9 : 9 + length], unread[9 + length :]
                if kind == 4 and not flags & 1:
                    peer.sendall(frame(4, 1, 0, b""))
                elif kind == 6 and not flags & 1:
                    peer.sendall(frame(6, 1, 0, payload))
                answered += length if kind == 0 else 0
                is_open = not (kind in (0, 1) and flags & 1 and of == stream)
            if answered < SIZE:
                sys.exit(f"the server sends {answered} bytes for request {at}")


def free_port():
    """One that nobody listens on now."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def run(binary, ask, count):
    """Instructions of a server's whole life, in all and by function."""
    with tempfile.TemporaryDirectory() as directory:
        model = pathlib.Path(directory, "models", "same")
        model.joinpath("1").mkdir(parents=True)
        model.joinpath("config.pbtxt").write_text(CONFIG)
        port, out = free_port(), os.path.join(directory, "out")
        other = "grpc" if ask is http else "http"
        flags = [f"--allow-{other}=false", f"--{ask.__name__}-port={port}", "--allow-metrics=false"]
        flags += ["--io-engine=epoll", "--io-cores=1", f"--model-repository={model.parent}"]
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
    few, many = run(binary, ask, FEW), run(binary, ask, MANY)
    requests = MANY - FEW
    by_function = {name: (count - few[1][name]) / requests for name, count in many[1].items()}
    return (many[0] - few[0]) / requests, by_function


def main():
    """Tells what each of the binaries needs."""
    show = "--functions" in sys.argv
    binaries = [word for word in sys.argv[1:] if word != "--functions"]
    if not binaries or len(binaries) > 2:
        sys.exit(__doc__)
    for ask in (http, grpc):
        counts = [measure(binary, ask) for binary in binaries]
        change = f" ({counts[-1][0] - counts[0][0]:+.0f})" if len(counts) == 2 else ""
        print(f"{ask.__name__}: {' → '.join(f'{total:.0f}' for total, _ in counts)} instructions a request{change}", flush=True)
        if show:
            names = {name for _, functions in counts for name in functions}
            last, first = counts[-1][1], counts[0][1] if len(counts) == 2 else {}
            rows = [(last.get(name, 0) - first.get(name, 0), last.get(name, 0), name) for name in names]
            for difference, count, name in sorted(rows, key=lambda row: -abs(row[0])):
                if abs(difference) >= 1:
                    print(f"  {difference:+9.1f} {count:9.1f}  {name}")


main()
