#!/usr/bin/env python3
"""What a request costs while the server has little to do: sleeps, wake-ups and CPU time at a few rates.

    cargo build --release
    benches/partial_load.py target/release/nereid [--rounds N] [--server-cores 0,1] [--client-cores 2,3]

Two servers of the built-in model `identity` run side by side: one whose threads spin for 5 % of their time, as no server
does by default on shared cores (--spin-percent=5), and one whose threads sleep at once (--spin-percent=0). `nereid perf` loads one of them at a time with an open loop, at each rate over HTTP and over gRPC, a
row after the other, and all rows again in each round: A B A B, so that drift of the machine reaches both. With
--server-flag=--run-to-completion=off a thread of the model executes the requests, so that they change threads twice.
Prints a table in Markdown for each rate: the median of the rounds, with the least and the most, of p50 and p99, and of
the server for each request: CPU time as the kernel's clock of its process has it, sleeps, wake-ups by other threads and
time spent spinning as its metrics have them. A row in which the client was the limit in any round is `void`, but for the
figures of the server. Last come the CPU time, sleeps and spinning of both servers at rest, for a second.
"""

import argparse
import http.client
import json
import os
import pathlib
import platform
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

PATIENCE_S = 120
MODEL = """name: "m"
backend: "identity"
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
VOID = 4
UNSTABLE = 2
COUNTERS = ("nereid_sleeps_total", "nereid_wake_ups_total", "nereid_spin_nanoseconds_total")


class Server:
    """`figures` are those of its process since the start."""

    def __init__(self, binary, repository, flags, cores):
        taken = [socket.socket() for _ in range(3)]
        for one in taken:
            one.bind(("127.0.0.1", 0))
        self.http, self.grpc, self.metrics = (one.getsockname()[1] for one in taken)
        for one in taken:
            one.close()
        words = [binary, f"--model-repository={repository}", f"--http-port={self.http}", f"--grpc-port={self.grpc}",
                 f"--metrics-port={self.metrics}", "--http-address=127.0.0.1", "--grpc-address=127.0.0.1",
                 "--metrics-address=127.0.0.1", "--log-info=false", *flags]
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(words, stdout=self.log, stderr=self.log, preexec_fn=confine(cores))
        self.clock = (~self.process.pid << 3) | 2
        begin = time.perf_counter()
        while not self.is_ready():
            if self.process.poll() is not None or time.perf_counter() - begin > PATIENCE_S:
                self.log.seek(0)
                text = self.log.read().decode(errors="replace")[-2000:]
                self.stop()
                raise SystemExit(f"the server does not get ready:\n{text}")
            time.sleep(0.01)

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def get(self, port, path):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def is_ready(self):
        try:
            return self.get(self.http, "/v2/health/ready")[0] == 200
        except OSError:
            return False

    def figures(self):
        page = self.get(self.metrics, "/metrics")[1]
        total = lambda name: sum(float(it) for it in re.findall(rf"^{name}{{[^}}]*}} (\S+)$", page, re.MULTILINE))
        sleeps, wake_ups, spun_ns = (total(name) for name in COUNTERS)
        return {"cpu": time.clock_gettime_ns(self.clock) / 1000, "sleeps": sleeps, "wake_ups": wake_ups,
                "spun": spun_ns / 1000}


def confine(cores):
    return (lambda: os.sched_setaffinity(0, cores)) if cores else None


def difference(before, after):
    return {name: after[name] - before[name] for name in before}


class Run:
    """One run of `nereid perf`: latency, and what the server used for a request."""

    def __init__(self, given, server, protocol, rate, directory):
        report, count = f"{directory}/report.json", int(rate * given.seconds)
        warm_up = max(1, count // 10)
        port = server.http if protocol == "HTTP" else server.grpc
        words = [given.binary, "perf", "-m", "m", "-i", protocol.lower(), "-u", f"127.0.0.1:{port}",
                 f"--shape=INPUT0:{given.elements}", f"--request-rate-range={rate}", "--request-distribution=poisson",
                 f"--request-count={count}", f"--warmup-request-count={warm_up}", f"--threads={given.threads}",
                 f"--json={report}"]
        before = server.figures()
        ended = subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                               preexec_fn=confine(given.client_cores))
        used = difference(before, server.figures())
        if ended.returncode not in (0, UNSTABLE, VOID):
            raise SystemExit(f"{' '.join(words)}:\n{ended.stderr.decode(errors='replace')[-2000:]}")
        point = json.loads(pathlib.Path(report).read_text())["points"][0]
        self.void = ended.returncode == VOID
        percentiles = point["latency"]["percentiles_us"]
        self.p50_us, self.p99_us = percentiles["p50"], percentiles["p99"]
        self.used = {name: value / (count + warm_up) for name, value in used.items()}


def shown(numbers, digits=1):
    numbers = sorted(numbers)
    middle = statistics.median(numbers)
    return f"{middle:.{digits}f} ({numbers[0]:.{digits}f}–{numbers[-1]:.{digits}f})"


def table(found):
    print("| protocol, server | p50, µs | p99, µs | CPU, µs | sleeps | wake-ups | spinning, µs |")
    print("|---|---|---|---|---|---|---|")
    for name, runs in found.items():
        void = any(run.void for run in runs)
        latency = lambda of: "void" if void else shown([of(run) for run in runs])
        used = lambda name: shown([run.used[name] for run in runs], 2)
        print(f"| {name} | {latency(lambda run: run.p50_us)} | {latency(lambda run: run.p99_us)} | {used('cpu')} "
              f"| {used('sleeps')} | {used('wake_ups')} | {used('spun')} |")


def cores(text):
    return {int(core) for core in text.split(",")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", type=os.path.abspath)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4, help="of each run")
    parser.add_argument("--rates", type=int, nargs="+", default=[1_000, 10_000, 30_000], help="requests a second")
    parser.add_argument("--elements", type=int, default=16, help="of the tensor, 4 bytes each")
    parser.add_argument("--threads", type=int, default=1, help="of the client")
    parser.add_argument("--server-flag", action="append", default=[], help="of both servers")
    parser.add_argument("--server-cores", type=cores)
    parser.add_argument("--client-cores", type=cores)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        repository = pathlib.Path(directory, "models")
        (repository / "m/1").mkdir(parents=True)
        (repository / "m/config.pbtxt").write_text(MODEL)
        servers = {}
        try:
            for name in ("--spin-percent=5", "--spin-percent=0"):
                servers[name] = Server(given.binary, repository, [*given.server_flag, name], given.server_cores)
            print(f"{platform.machine()}, Linux {platform.release()}, {os.cpu_count()} cores; {given.rounds} rounds of "
                  f"{given.seconds:g} s; server on cores {given.server_cores or 'all'}, client on "
                  f"{given.client_cores or 'all'} with {given.threads} thread(s); flags of the servers: "
                  f"{' '.join(given.server_flag) or 'none'}\n")
            for rate in given.rates:
                found = {}
                for round_ in range(given.rounds):
                    for protocol in ("HTTP", "gRPC"):
                        for name, server in servers.items():
                            print(f"round {round_ + 1}: {rate}/s, {protocol}, {name}", file=sys.stderr)
                            run = Run(given, server, protocol, rate, directory)
                            found.setdefault(f"{protocol}, {name}", []).append(run)
                print(f"### {rate} requests a second\n")
                table(found)
                print(flush=True)
            print("### At rest\n\n| server | CPU, µs a second | sleeps a second | spinning, µs a second |\n|---|---|---|---|")
            for name, server in servers.items():
                before, begin = server.figures(), time.perf_counter()
                time.sleep(given.seconds)
                used, seconds = difference(before, server.figures()), time.perf_counter() - begin
                print(f"| {name} | {used['cpu'] / seconds:.0f} | {used['sleeps'] / seconds:.1f} "
                      f"| {used['spun'] / seconds:.1f} |")
        finally:
            for server in servers.values():
                server.stop()


if __name__ == "__main__":
    main()
