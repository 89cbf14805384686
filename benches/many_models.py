#!/usr/bin/env python3
"""What a repository of many models costs, of which few are loaded at a time.

    cargo build --release
    benches/many_models.py target/release/nereid [--models N] [--requests N]

Makes a repository of `identity` models and starts the server on it with loads on demand and a budget of 1 GiB, and
with room for 64 models. Shows the time until it is ready, until the index lists all models, until the metrics page is
there before and after the requests, and the resident memory; the time of requests to models in random order, most of
which load theirs; and the CPU time of a request to one loaded model, beside a server without loads on demand that has
this one model, in turns. Prints a table in Markdown.
"""

import argparse
import http.client
import json
import os
import pathlib
import random
import signal
import socket
import statistics
import subprocess
import tempfile
import time

CONFIG = """name: "%s"
backend: "identity"
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
"""
BODY = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1], "data": [7]}]})
PATIENCE_S = 300
ROUNDS = 5


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Server:
    """A server on a repository, and what is asked of it."""

    def __init__(self, binary, repository, flags):
        self.http, grpc, self.metrics = free_ports(3)
        flags = [f"--model-repository={repository}", f"--http-port={self.http}", f"--grpc-port={grpc}",
                 f"--metrics-port={self.metrics}", "--log-info=false", *flags]
        begin = time.perf_counter()
        self.process = subprocess.Popen([binary, *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while True:
            try:
                if self.ask("GET", "/v2/health/ready")[0] == 200:
                    break
            except OSError:
                pass
            if self.process.poll() is not None or time.perf_counter() - begin > PATIENCE_S:
                raise SystemExit("the server does not get ready")
            time.sleep(0.001)
        self.ready_s = time.perf_counter() - begin
        self.connection = http.client.HTTPConnection("127.0.0.1", self.http, timeout=PATIENCE_S)

    def ask(self, method, path, body=None, port=None):
        connection = http.client.HTTPConnection("127.0.0.1", port or self.http, timeout=PATIENCE_S)
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, answer.read()

    def infer(self, model):
        self.connection.request("POST", f"/v2/models/{model}/infer", BODY)
        answer = self.connection.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise SystemExit(f"{model}: {answer.status} {text!r}")

    def cpu_ns(self):
        # Of the process, not its threads: those of loads and unloads come and go.
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")

    def resident_mib(self):
        for line in pathlib.Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        return 0

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(PATIENCE_S)


def timed(job):
    begin = time.perf_counter()
    result = job()
    return time.perf_counter() - begin, result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--models", type=int, default=10_000)
    parser.add_argument("--requests", type=int, default=1_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as many, tempfile.TemporaryDirectory() as one:
        for root, count in ((many, options.models), (one, 1)):
            for at in range(count):
                model = pathlib.Path(root) / f"m{at}"
                (model / "1").mkdir(parents=True)
                (model / "config.pbtxt").write_text(CONFIG % model.name)
        flags = ["--model-control-mode=explicit", "--model-load-on-demand=true", "--model-count-max=64",
                 f"--model-memory-byte-size={1 << 30}"]
        server, plain = Server(options.binary, many, flags), Server(options.binary, one, [])
        rows = [("ready after the start, s", server.ready_s)]
        seconds, (_, text) = timed(lambda: server.ask("POST", "/v2/repository/index"))
        assert len(json.loads(text)) == options.models
        rows.append(("index of all models, s", seconds))
        rows.append(("resident memory before requests, MiB", server.resident_mib()))
        generator, times = random.Random(7), []
        for _ in range(options.requests):
            model = f"m{generator.randrange(options.models)}"
            times.append(timed(lambda: server.infer(model))[0] * 1e3)
        rows.append((f"request to one of {options.models} models, ms, median", statistics.median(times)))
        rows.append(("the same, 99th percentile", sorted(times)[len(times) * 99 // 100]))
        seconds, (_, page) = timed(lambda: server.ask("GET", "/metrics", port=server.metrics))
        rows += [("metrics page, s", seconds), ("metrics page, KiB", len(page) / 1024)]
        rows.append(("resident memory after requests, MiB", server.resident_mib()))
        costs = {"on demand": [], "without": []}
        for _ in range(ROUNDS):
            for name, side in (("on demand", server), ("without", plain)):
                side.infer("m0")
                before = side.cpu_ns()
                for _ in range(options.requests):
                    side.infer("m0")
                costs[name].append((side.cpu_ns() - before) / options.requests / 1e3)
        rows += [(f"CPU of a request to a loaded model, us, {name}", statistics.median(of)) for name, of in costs.items()]
        server.stop()
        plain.stop()
    print(f"| {options.models} models, {options.requests} requests | |\n|---|---|")
    for name, value in rows:
        print(f"| {name} | {value:.3f} |")


if __name__ == "__main__":
    main()
