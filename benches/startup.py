#!/usr/bin/env python3
"""How long a server takes to get ready, what it holds at rest, and how large it is.

    cargo build --release
    benches/startup.py target/release/nereid [OTHER_BINARY] [--rounds N] [--original SERVER]

Each server is started in turns with one native model, the C backend of benches/plugin/tiny.c, on a repository of its
own, and polled at /v2/health/ready from the moment of its exec on until it answers 200; the median, the least and the
most of all rounds are shown, and the CPU time of all its threads until then. At the end of each round it rests for two
seconds; then its resident and proportional memory and its threads are read. `nereid, built in` is the first binary
with the identity model that needs no library.

The official server takes part where it is: --original names its binary, NEREID_TEST_ORIGINAL does, or the tests have
unpacked it under target/. It gets the same repository, backend and flags.
"""

import argparse
import glob
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
CONFIG = """name: "same"
backend: "%s"
input [ { name: "INPUT0" data_type: TYPE_UINT8 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_UINT8 dims: [ -1 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
"""
ASK = b"GET /v2/health/ready HTTP/1.1\r\nHost: localhost\r\n\r\n"
PATIENCE_S = 60
REST_S = 2.0


class Side:
    """One server, and what was seen of it."""

    def __init__(self, name, binary, repository, backends):
        self.name, self.binary, self.repository, self.backends = name, binary, repository, backends
        self.ready_ms, self.cpu_ms, self.rss, self.pss, self.anonymous, self.threads = [], [], [], [], [], []

    def run(self, rest):
        http, grpc, metrics = free_ports(3)
        flags = [f"--model-repository={self.repository}", f"--backend-directory={self.backends}"]
        flags += [f"--http-port={http}", f"--grpc-port={grpc}", f"--metrics-port={metrics}"]
        with tempfile.TemporaryFile() as log:
            begin = time.perf_counter_ns()
            server = subprocess.Popen([self.binary, *flags], stdout=log, stderr=log)
            try:
                self.await_ready(server, http, begin, log)
                self.ready_ms.append((time.perf_counter_ns() - begin) / 1e6)
                self.cpu_ms.append(cpu_ns(server.pid) / 1e6)
                if rest:
                    time.sleep(REST_S)
                    self.measure_rest(server.pid)
            finally:
                server.send_signal(signal.SIGTERM)
                try:
                    server.wait(PATIENCE_S)
                except subprocess.TimeoutExpired:
                    server.kill()
                    server.wait()

    def await_ready(self, server, port, begin, log):
        while True:
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as peer:
                    peer.sendall(ASK)
                    if peer.recv(4096).startswith(b"HTTP/1.1 200"):
                        return
            except OSError:
                pass
            if server.poll() is not None or time.perf_counter_ns() - begin > PATIENCE_S * 1_000_000_000:
                log.seek(0)
                sys.exit(f"{self.name} does not get ready:\n{log.read().decode(errors='replace')}")
            # Short beside what is measured, long enough to leave the core to the server.
            time.sleep(0.0002)

    def measure_rest(self, pid):
        rollup = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
        values = dict(line.split(":") for line in rollup.splitlines()[1:])
        kib = {name: int(values[name].split()[0]) for name in ("Rss", "Pss", "Anonymous")}
        self.rss.append(kib["Rss"])
        self.pss.append(kib["Pss"])
        self.anonymous.append(kib["Anonymous"])
        self.threads.append(len(os.listdir(f"/proc/{pid}/task")))


def cpu_ns(pid):
    """CPU time of the threads that live."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            total += int(pathlib.Path(f"/proc/{pid}/task/{task}/schedstat").read_text().split()[0])
        except FileNotFoundError:
            pass
    return total


def free_ports(count):
    """A port on which no process listens now."""
    taken = [socket.socket() for _ in range(count)]
    for one in taken:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in taken]
    for one in taken:
        one.close()
    return ports


def repository(directory, backend):
    model = pathlib.Path(directory, f"models-{backend}", "same")
    model.joinpath("1").mkdir(parents=True)
    model.joinpath("config.pbtxt").write_text(CONFIG % backend)
    return model.parent


def built_backend(directory):
    """The C backend, for both servers."""
    backends = pathlib.Path(directory, "backends")
    backends.joinpath("tiny").mkdir(parents=True)
    out = backends / "tiny" / "libtriton_tiny.so"
    compiler = [os.environ.get("CC", "cc"), "-O2", "-shared", "-fPIC", "-o", str(out)]
    subprocess.run([*compiler, str(ROOT / "benches/plugin/tiny.c"), "-I", str(ROOT / "include")], check=True)
    return backends


def original(given):
    """The official server's binary, if it is here."""
    found = given or os.environ.get("NEREID_TEST_ORIGINAL")
    unpacked = sorted(glob.glob(str(ROOT / "target/original-*/pytriton/tritonserver/bin/tritonserver")))
    return found or (unpacked[-1] if unpacked else None)


def stripped_bytes(binary):
    """Bytes of the file without symbols and debug information; none where there is no strip."""
    with tempfile.NamedTemporaryFile() as out:
        try:
            subprocess.run(["strip", "-o", out.name, binary], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            return None
        return os.path.getsize(out.name)


def row(side):
    ready, rss = sorted(side.ready_ms), statistics.median(side.rss)
    size = stripped_bytes(side.binary)
    return [
        side.name, f"{statistics.median(ready):.1f} ({ready[0]:.1f}–{ready[-1]:.1f})",
        f"{statistics.median(side.cpu_ms):.1f}", f"{rss / 1024:.1f}", f"{statistics.median(side.pss) / 1024:.1f}",
        f"{statistics.median(side.anonymous) / 1024:.1f}", f"{statistics.median(side.threads):.0f}",
        "–" if size is None else f"{size / 1e6:.1f}",
    ]


def machine():
    model = [line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")]
    load = " ".join(open("/proc/loadavg").read().split()[:3])
    return f"{model[0] if model else '?'}, {os.cpu_count()} cores, Linux {os.uname().release}, load average {load}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binaries", nargs="+", help="the server, and another build of it to hold against it")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--rests", type=int, default=3, help="rounds at whose end the server rests and is measured")
    parser.add_argument("--original", help="the official server's binary")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        backends = built_backend(directory)
        plugin, built_in = repository(directory, "tiny"), repository(directory, "identity")
        sides = [Side("nereid, built in", given.binaries[0], built_in, backends)]
        names = ["nereid"] + [f"nereid ({path})" for path in given.binaries[1:]]
        sides += [Side(name, path, plugin, backends) for name, path in zip(names, given.binaries)]
        official = original(given.original)
        sides += [Side("official", official, plugin, backends)] if official else []
        if not official:
            print("the official server is not here: left out", file=sys.stderr)
        before = machine()
        for number in range(given.rounds):
            for side in sides:
                side.run(rest=number < given.rests)
    print(f"{before}; {given.rounds} rounds in turns\n")
    print("| server | ready, ms: median (least–most) | CPU until then, ms | RSS at rest, MiB | PSS | anonymous | threads "
          "| stripped, MB |")
    print("|---|---|---|---|---|---|---|---|")
    for side in sides:
        print("| " + " | ".join(row(side)) + " |")


main()
