#!/usr/bin/env python3
"""What a request costs over each protocol of one host: HTTP, gRPC over TCP and a Unix socket, the shared-memory ring.

    cargo build --release
    benches/ipc.py target/release/nereid [--rounds N] [--server-cores 0,1] [--client-cores 2,3]

Two servers of the built-in model `identity` run side by side: one whose threads sleep when they are idle, and one whose
threads spin for up to --spin-us before. `nereid perf` loads one of them at a time, a row after the other, and all rows
again in each round: A B C A B C, so that drift of the machine reaches all of them. In the rows `spinning` the client
polls, too. Prints tables in Markdown: for each size of the tensor and number of requests in flight the median of the
rounds, with the least and the most, of p50, of the rate, and of CPU time of a request, the server's as the kernel's
clock of its process has it, the client's as `nereid perf` reports it. A row in which the client was the limit in any
round is `void`, but for the CPU time of the server. Give server and client cores of their own.
"""

import argparse
import http.client
import json
import os
import pathlib
import platform
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


class Server:
    """`cpu_ns` is that of its process, threads that ended included."""

    def __init__(self, binary, repository, directory, spin_us, cores):
        taken = [socket.socket() for _ in range(3)]
        for one in taken:
            one.bind(("127.0.0.1", 0))
        self.http, self.grpc, metrics = (one.getsockname()[1] for one in taken)
        for one in taken:
            one.close()
        self.grpc_socket, self.ring = f"{directory}/grpc-{spin_us}", f"{directory}/ipc-{spin_us}"
        words = [binary, f"--model-repository={repository}", f"--http-port={self.http}", f"--grpc-port={self.grpc}",
                 f"--metrics-port={metrics}", "--http-address=127.0.0.1", "--grpc-address=127.0.0.1",
                 "--metrics-address=127.0.0.1", "--log-info=false", f"--spin-us={spin_us}",
                 f"--grpc-unix-socket={self.grpc_socket}", f"--ipc-path={self.ring}"]
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

    def is_ready(self):
        try:
            connection = http.client.HTTPConnection("127.0.0.1", self.http, timeout=PATIENCE_S)
            connection.request("GET", "/v2/health/ready")
            status = connection.getresponse().status
            connection.close()
            return status == 200
        except OSError:
            return False

    def cpu_ns(self):
        return time.clock_gettime_ns(self.clock)


def confine(cores):
    return (lambda: os.sched_setaffinity(0, cores)) if cores else None


def rows(parked, spinning, spin_us):
    """Names of rows, their server, and the flags of `nereid perf`."""
    def ring(server, *more):
        return server, ["-i", "ipc", "-u", server.ring, *more]

    return {
        "HTTP": (parked, ["-i", "http", "-u", f"127.0.0.1:{parked.http}"]),
        "gRPC over TCP": (parked, ["-i", "grpc", "-u", f"127.0.0.1:{parked.grpc}"]),
        "gRPC over a Unix socket": (parked, ["-i", "grpc", "-u", f"unix:{parked.grpc_socket}"]),
        "gRPC over a Unix socket, server spinning": (spinning, ["-i", "grpc", "-u", f"unix:{spinning.grpc_socket}"]),
        "ring, parked": ring(parked),
        "ring, parked, tensors in the arena": ring(parked, "--shared-memory=arena"),
        "ring, spinning": ring(spinning, f"--ipc-spin-us={spin_us}"),
        "ring, spinning, tensors in the arena": ring(spinning, "--shared-memory=arena", f"--ipc-spin-us={spin_us}"),
    }


class Run:
    """One run of `nereid perf`: p50, rate, CPU time of a request on both sides, and whether the client was the limit."""

    def __init__(self, given, server, flags, elements, in_flight, directory):
        report, count = f"{directory}/report.json", given.requests
        warm_up = max(1, count // 10)
        threads = min(in_flight, given.threads)
        words = [given.binary, "perf", "-m", "m", f"--shape=INPUT0:{elements}", f"--concurrency-range={in_flight}",
                 f"--request-count={count}", f"--warmup-request-count={warm_up}", f"--threads={threads}",
                 f"--output-shared-memory-size={4 * elements}", f"--json={report}", *flags]
        before = server.cpu_ns()
        ended = subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                               preexec_fn=confine(given.client_cores))
        used = server.cpu_ns() - before
        if ended.returncode not in (0, UNSTABLE, VOID):
            raise SystemExit(f"{' '.join(words)}:\n{ended.stderr.decode(errors='replace')[-2000:]}")
        point = json.loads(pathlib.Path(report).read_text())["points"][0]
        self.void = ended.returncode == VOID
        self.p50_us = point["latency"]["percentiles_us"]["p50"]
        self.rate = point["completed"] / point["seconds"]
        self.server_us = used / 1000 / (count + warm_up)
        self.client_us = sum(thread["cpu_us"] for thread in point["client"]["threads"]) / point["completed"]


def shown(numbers, digits=1):
    numbers = sorted(numbers)
    middle = statistics.median(numbers)
    return f"{middle:.{digits}f} ({numbers[0]:.{digits}f}–{numbers[-1]:.{digits}f})"


def table(found):
    print("| protocol | p50, µs | requests/s | server CPU, µs a request | client CPU, µs a request |")
    print("|---|---|---|---|---|")
    for name, runs in found.items():
        void = any(run.void for run in runs)
        cell = lambda numbers, digits=1: "void" if void else shown(numbers, digits)
        print(f"| {name} | {cell([run.p50_us for run in runs])} | {cell([run.rate for run in runs], 0)} "
              f"| {shown([run.server_us for run in runs], 2)} | {cell([run.client_us for run in runs], 2)} |")


def cores(text):
    return {int(core) for core in text.split(",")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", type=os.path.abspath)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=20_000, help="of each run")
    parser.add_argument("--elements", type=int, nargs="+", default=[16, 16_384], help="of the tensor, 4 bytes each")
    parser.add_argument("--in-flight", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--threads", type=int, default=1, help="of the client, but no more than requests in flight")
    parser.add_argument("--spin-us", type=int, default=50)
    parser.add_argument("--server-cores", type=cores)
    parser.add_argument("--client-cores", type=cores)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        repository = pathlib.Path(directory, "models")
        (repository / "m/1").mkdir(parents=True)
        (repository / "m/config.pbtxt").write_text(MODEL)
        servers = []
        try:
            for spin_us in (0, given.spin_us):
                servers.append(Server(given.binary, repository, directory, spin_us, given.server_cores))
            print(f"{platform.machine()}, Linux {platform.release()}, {os.cpu_count()} cores; {given.rounds} rounds of "
                  f"{given.requests} requests; server on cores {given.server_cores or 'all'}, client on "
                  f"{given.client_cores or 'all'} with {given.threads} thread(s); spin {given.spin_us} µs\n")
            for elements in given.elements:
                for in_flight in given.in_flight:
                    found = {}
                    for round_ in range(given.rounds):
                        for name, (server, flags) in rows(*servers, given.spin_us).items():
                            print(f"round {round_ + 1}: {name}", file=sys.stderr)
                            run = Run(given, server, flags, elements, in_flight, directory)
                            found.setdefault(name, []).append(run)
                    print(f"### {4 * elements} bytes, {in_flight} in flight\n")
                    table(found)
                    print(flush=True)
        finally:
            for server in servers:
                server.stop()


if __name__ == "__main__":
    main()
