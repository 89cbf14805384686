#!/usr/bin/env python3
"""What recording costs a request, and how true a replay is.

    cargo build --release
    benches/record.py target/release/nereid [--rounds N]

Starts a server with the built-in model `identity` (16 FP32 values) without a recording and with several kinds of them,
in turns, and loads each over HTTP and over gRPC with 16 requests in flight. Shows CPU µs of a request in the whole
server, what was dropped and the bytes of a record. Then records an open loop with random times at 2,000 requests a
second with contents, replays it at several speeds to a server of the same model and to one that answers otherwise, and
shows how late requests were sent, and what was found different. Prints tables in Markdown.
"""

import argparse
import collections
import http.client
import json
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

PATIENCE_S = 120
MODEL = """name: "m"
backend: "%s"
max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 16 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 16 ] } ]
"""
KINDS = {
    "none": [],
    "1 of 100": ["--record-rate=100"],
    "every request": [],
    "1 of 100, with contents": ["--record-rate=100", "--record-data=true"],
    "every request, with contents": ["--record-data=true"],
}


class Server:
    def __init__(self, binary, directory, flags, backend="identity"):
        taken = [socket.socket() for _ in range(3)]
        for one in taken:
            one.bind(("127.0.0.1", 0))
        self.http, self.grpc, self.metrics = (one.getsockname()[1] for one in taken)
        for one in taken:
            one.close()
        repository = directory / backend
        (repository / "m/1").mkdir(parents=True, exist_ok=True)
        more = 'parameters { key: "bias" value { string_value: "1" } }' if backend == "affine" else ""
        (repository / "m/config.pbtxt").write_text(MODEL % backend + more)
        words = [binary, f"--model-repository={repository}", f"--http-port={self.http}", f"--grpc-port={self.grpc}",
                 f"--metrics-port={self.metrics}", "--http-address=127.0.0.1", "--grpc-address=127.0.0.1",
                 "--metrics-address=127.0.0.1", "--log-info=false", *flags]
        self.process = subprocess.Popen([str(word) for word in words], stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        began = time.monotonic()
        while not self.is_ready():
            if self.process.poll() is not None or time.monotonic() - began > PATIENCE_S:
                sys.exit(f"the server does not get ready: {words}")
            time.sleep(0.005)

    def get(self, port, path):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()

    def is_ready(self):
        try:
            return self.get(self.http, "/v2/health/ready")[0] == 200
        except OSError:
            return False

    def cpu_s(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def metric(self, family, **labels):
        total = 0
        for line in self.get(self.metrics, "/metrics")[1].splitlines():
            if line.startswith(family) and all(f'{name}="{value}"' in line for name, value in labels.items()):
                total += float(line.rpartition(" ")[2])
        return total

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(PATIENCE_S)


def run(words, codes=(0,)):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode not in codes:
        sys.exit(f"{' '.join(map(str, words))}: {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def loaded(given, server, protocol, *load):
    port = server.http if protocol == "http" else server.grpc
    # 4: the client was the limit. What counts here is the server's CPU time and its recording.
    run([given.binary, "perf", "-m", "m", "-i", protocol, "-u", f"127.0.0.1:{port}", "--shape=INPUT0:16",
         "--max-trials=3", "--stability-percentage=100", *load], (0, 4))


def costs(given, directory):
    figures = collections.defaultdict(list)
    for number in range(given.rounds):
        for kind, flags in KINDS.items():
            for protocol in ("http", "grpc"):
                file = directory / f"{number}-{len(figures)}-{protocol}.rec"
                record = [] if kind == "none" else [f"--record={file}", "--record-byte-size=8000000000", *flags]
                server = Server(given.binary, directory, record)
                loaded(given, server, protocol, "--concurrency-range=16", "--measurement-interval=200")
                requests, before_s = server.metric("nv_inference_request_success"), server.cpu_s()
                loaded(given, server, protocol, "--concurrency-range=16", "--measurement-interval=1000")
                requests = server.metric("nv_inference_request_success") - requests
                cpu_us = (server.cpu_s() - before_s) * 1e6 / requests
                count = lambda outcome: server.metric("nereid_recorded_requests_total", outcome=outcome)
                written, dropped = count("written"), count("dropped")
                server.stop()
                size = file.stat().st_size / written if written else 0
                file.unlink(missing_ok=True)
                figures[kind, protocol].append((cpu_us, dropped / (written + dropped) if written else 0, size))
    print("| recording | protocol | CPU µs of a request (min–max) | ÷ none | dropped | bytes of a record |")
    print("|---|---|---|---|---|---|")
    for (kind, protocol), rounds in figures.items():
        cpu = [one[0] for one in rounds]
        none = statistics.median(one[0] for one in figures["none", protocol])
        median = statistics.median(cpu)
        print(f"| {kind} | {protocol} | {median:.2f} ({min(cpu):.2f}–{max(cpu):.2f}) | {median / none:.2f} | "
              f"{100 * statistics.median(one[1] for one in rounds):.1f} % | "
              f"{statistics.median(one[2] for one in rounds):.0f} |", flush=True)


def fidelity(given, directory):
    file = directory / "loop.rec"
    server = Server(given.binary, directory, [f"--record={file}", "--record-data=true"])
    loaded(given, server, "http", "--request-rate-range=2000", "--request-distribution=poisson",
           "--measurement-interval=3000")
    server.stop()
    print("\n| replayed to | speed | requests | different | sent late, ms: p50 | p99 | latency, ms: recorded p50 | "
          "replayed p50 |\n|---|---|---|---|---|---|---|---|")
    for backend in ("identity", "affine"):
        for speed in ("1", "2", "max"):
            server = Server(given.binary, directory, [], backend)
            report = json.loads(run([given.binary, "replay", file, f"--url=127.0.0.1:{server.http}", "--compare",
                                     f"--speed={speed}", "--concurrency-max=16", "--format=json"], (0, 1)))
            server.stop()
            show(backend, speed, report)


def show(backend, speed, report):
    latency = report["latency_ms"]
    late = latency["sent_late_by"] or {}
    figure = lambda part, name: f"{part[name]:.3f}" if part and part.get(name) is not None else "–"
    model = "the same model" if backend == "identity" else "a model that computes something else"
    print(f"| {model} | {speed} | {report['sent']} | {report['different']} | "
          f"{figure(late, 'p50')} | {figure(late, 'p99')} | {figure(latency['recorded'], 'p50')} | "
          f"{figure(latency['replayed'], 'p50')} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        costs(given, pathlib.Path(directory))
        fidelity(given, pathlib.Path(directory))


if __name__ == "__main__":
    main()
