#!/usr/bin/env python3
"""What a request over HTTP costs at a port of `tritonfrontend` in a Python process, and at the program's.

    python benches/frontends.py            in an environment with the package's wheel

Requests of 16 numbers go to `identity`, eight connections at a time, in turns to both servers; the CPU time is that of
all threads of the server's process.
"""

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time

CONFIG = """
backend: "identity"
input { name: "INPUT0" data_type: TYPE_FP32 dims: 16 }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: 16 }
"""
EMBEDDED = """
import sys, tritonserver, tritonfrontend
server = tritonserver.Server(model_repository=sys.argv[1]).start(wait_until_ready=True)
options = tritonfrontend.KServeHttp.Options(address="127.0.0.1", port=int(sys.argv[2]), io_engine=sys.argv[3])
with tritonfrontend.KServeHttp(server, options):
    sys.stdin.read()
server.stop()
"""
BODY = b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[16],"data":[%s]}]}' % b",".join([b"1.5"] * 16)
REQUEST = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)
CONNECTIONS = 8


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def start(way, repository, engine):
    port = free_port()
    if way == "tritonfrontend":
        command = [sys.executable, "-c", EMBEDDED, repository, str(port), engine]
    else:
        command = [os.path.join(os.path.dirname(sys.executable), "nereid"), f"--model-repository={repository}"]
        command += [f"--http-port={port}", "--http-address=127.0.0.1", f"--io-engine={engine}", "--allow-grpc=false"]
        command += ["--allow-metrics=false", "--log-info=false"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    while process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return process, port
        except OSError:
            time.sleep(0.05)
    raise SystemExit(f"{way} has ended")


def cpu_ns(process):
    threads = os.listdir(f"/proc/{process.pid}/task")
    return sum(int(open(f"/proc/{process.pid}/task/{thread}/schedstat").read().split()[0]) for thread in threads)


def measure(process, port, rounds):
    """CPU microseconds and wall microseconds of a request."""
    peers = [socket.create_connection(("127.0.0.1", port)) for _ in range(CONNECTIONS)]

    def exchange(count):
        for _ in range(count):
            for peer in peers:
                peer.sendall(REQUEST)
            for peer in peers:
                if not peer.recv(65536).startswith(b"HTTP/1.1 200"):
                    raise SystemExit("a request failed")

    exchange(50)
    cpu, wall = cpu_ns(process), time.perf_counter()
    exchange(rounds)
    wall, cpu = time.perf_counter() - wall, cpu_ns(process) - cpu
    for peer in peers:
        peer.close()
    return cpu / 1e3 / rounds / CONNECTIONS, wall * 1e6 / rounds / CONNECTIONS


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--exchanges", type=int, default=400)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as repository:
        os.makedirs(os.path.join(repository, "echo", "1"))
        with open(os.path.join(repository, "echo", "config.pbtxt"), "w") as file:
            file.write(CONFIG)
        print("| engine | way | CPU µs a request | wall µs a request |\n|---|---|---|---|")
        for engine in ["io_uring", "epoll"]:
            servers = {way: start(way, repository, engine) for way in ["program", "tritonfrontend"]}
            found = {way: [] for way in servers}
            for _ in range(options.rounds):
                for way, (process, port) in servers.items():
                    found[way].append(measure(process, port, options.exchanges))
            for way, figures in found.items():
                cpu, wall = (statistics.median(column) for column in zip(*figures))
                print(f"| {engine} | {way} | {cpu:.1f} | {wall:.1f} |", flush=True)
            for process, _ in servers.values():
                process.stdin.close()
                process.terminate()
                process.wait()


if __name__ == "__main__":
    main()
