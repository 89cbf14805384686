#!/usr/bin/env python3
"""What a request costs while the server has little to do: sleeps, wake-ups and CPU time at a few rates.

    cargo build --release
    benches/partial_load.py target/release/nereid [--c-library] [--triton DIR] [--rounds N] [--rates N ...]
        [--server-cores 0,1] [--client-cores 2,3]

Two servers of ours run side by side: one whose threads spin for 5 % of their time, as no server does by default on
shared cores (--spin-percent=5), and one whose threads sleep at once (--spin-percent=0). With --triton DIR the
official server runs beside them; DIR is the unpacked wheel nvidia-pytriton, as the tests leave it in
target/original-nvidia_pytriton-…. The model copies 16 FP32: ours is the built-in `identity`, or with --c-library the
example's C library, which Triton has in any case. The aims are about one library on both sides, so they are judged
with --c-library only.

`nereid perf` loads one server at a time: with an open loop at each rate, and at last with one client that waits for
each answer, over HTTP and over gRPC, a row after the other, and all rows again in each round: A B C A B C, so that
drift of the machine reaches all. With --server-flag=--run-to-completion=off a thread of the model executes the
requests, so that they change threads twice.

Prints a table in Markdown for each load: the median of the rounds, with the least and the most, of p50 and p99, and
of the server for each request: CPU time as the kernel's clock of its process has it; voluntary context switches of
its threads as /proc has them; and of ours, sleeps, wake-ups by other threads and time spent spinning as its metrics
have them. A row in which the client was the limit in any round is `void`, and one whose server could not keep up is
`overload`, but for the figures of the server. With --triton a second table has the ratios of each round, Triton's
figure over ours. Last come the CPU time, switches, sleeps and spinning of the servers at rest, for a second.
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

import official_server

PATIENCE_S = 120
MODEL = """name: "m"
backend: "{}"
input [ {{ name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }} ]
output [ {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }} ]
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
"""
VOID = 4
UNSTABLE = 2
COUNTERS = ("nereid_sleeps_total", "nereid_wake_ups_total", "nereid_spin_nanoseconds_total")
OURS = ("--spin-percent=5", "--spin-percent=0")
TRITON = "Triton"
PROTOCOLS = ("HTTP", "gRPC")
# The load of one client that waits for each answer; other loads are requests a second.
LONE = "one client, one request at a time"
# What is to hold with one C library on both sides: at this rate Triton's CPU time over ours and our sleeps of a
# request, and p50 of one client.
AIM_RATE = 30_000
AIM_CPU = {"HTTP": 3, "gRPC": 5}
AIM_SLEEPS = 0.5
AIM_LONE_P50_US = 70


class Server:
    """`figures` are those of its process since the start."""

    def __init__(self, words, environment, repository, cores, is_ours):
        self.is_ours = is_ours
        taken = [socket.socket() for _ in range(3)]
        for one in taken:
            one.bind(("127.0.0.1", 0))
        self.http, self.grpc, self.metrics = (one.getsockname()[1] for one in taken)
        for one in taken:
            one.close()
        words = [*words, f"--model-repository={repository}", f"--http-port={self.http}", f"--grpc-port={self.grpc}",
                 "--http-address=127.0.0.1", "--grpc-address=127.0.0.1", "--log-info=false"]
        # Triton's page has nothing that is wanted here.
        metrics = [f"--metrics-port={self.metrics}", "--metrics-address=127.0.0.1"]
        words += metrics if is_ours else ["--allow-metrics=false"]
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
                                        env={**os.environ, **environment}, preexec_fn=confine(cores))
        self.clock = (~self.process.pid << 3) | 2
        begin = time.perf_counter()
        while not self.is_ready():
            if self.process.poll() is not None or time.perf_counter() - begin > PATIENCE_S:
                self.log.seek(0)
                text = self.log.read().decode(errors="replace")[-2000:]
                self.stop()
                raise SystemExit(f"{words[0]} does not get ready:\n{text}")
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
        found = {"cpu": time.clock_gettime_ns(self.clock) / 1000, "switches": switches(self.process.pid)}
        if self.is_ours:
            page = self.get(self.metrics, "/metrics")[1]
            total = lambda name: sum(map(float, re.findall(rf"^{name}{{[^}}]*}} (\S+)$", page, re.MULTILINE)))
            found["sleeps"], found["wake_ups"], spun_ns = (total(name) for name in COUNTERS)
            found["spun"] = spun_ns / 1000
        return found


def switches(pid):
    """Voluntary context switches of the threads that a process has."""
    total = 0
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        try:
            status = (task / "status").read_text()
        except OSError:
            # The thread has ended meanwhile.
            continue
        total += int(re.search(r"^voluntary_ctxt_switches:\s*(\d+)", status, re.MULTILINE)[1])
    return total


def confine(cores):
    return (lambda: os.sched_setaffinity(0, cores)) if cores else None


def difference(before, after):
    return {name: after[name] - before[name] for name in before}


class Run:
    """One run of `nereid perf`: latency, and what the server used for a request."""

    def __init__(self, given, server, protocol, load, directory):
        report = f"{directory}/report.json"
        count = given.lone_requests if load == LONE else int(load * given.seconds)
        warm_up = max(1, count // 10)
        port = server.http if protocol == "HTTP" else server.grpc
        words = [given.binary, "perf", "-m", "m", "-i", protocol.lower(), "-u", f"127.0.0.1:{port}",
                 f"--shape=INPUT0:{given.elements}", f"--request-count={count}", f"--warmup-request-count={warm_up}",
                 f"--threads={given.threads}", f"--json={report}"]
        words += ["--concurrency-range=1"] if load == LONE else [f"--request-rate-range={load}",
                                                                 "--request-distribution=poisson"]
        before = server.figures()
        ended = subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                               preexec_fn=confine(given.client_cores))
        used = difference(before, server.figures())
        if ended.returncode not in (0, UNSTABLE, VOID):
            raise SystemExit(f"{' '.join(words)}:\n{ended.stderr.decode(errors='replace')[-2000:]}")
        point = json.loads(pathlib.Path(report).read_text())["points"][0]
        # Why its latency says nothing of the server.
        self.doubt = "overload" if not point["sustainable"] else "void" if ended.returncode == VOID else None
        percentiles = point["latency"]["percentiles_us"]
        self.p50_us, self.p99_us = percentiles["p50"], percentiles["p99"]
        self.used = {name: value / (count + warm_up) for name, value in used.items()}


def shown(numbers, digits=1):
    numbers = sorted(numbers)
    if not numbers:
        return ""
    middle = statistics.median(numbers)
    return f"{middle:.{digits}f} ({numbers[0]:.{digits}f}–{numbers[-1]:.{digits}f})"


def doubt(runs):
    return next((run.doubt for run in runs if run.doubt), None)


def table(found):
    """`found` has the runs of a load by protocol and server."""
    print("| protocol, server | p50, µs | p99, µs | CPU, µs | switches | sleeps | wake-ups | spinning, µs |")
    print("|---|---|---|---|---|---|---|---|")
    for (protocol, name), runs in found.items():
        latency = lambda of: doubt(runs) or shown([of(run) for run in runs])
        used = lambda name: shown([run.used[name] for run in runs if name in run.used], 2)
        print(f"| {protocol}, {name} | {latency(lambda run: run.p50_us)} | {latency(lambda run: run.p99_us)} "
              f"| {used('cpu')} | {used('switches')} | {used('sleeps')} | {used('wake_ups')} | {used('spun')} |")
    print()


def judged(aim, is_met):
    return f"{aim}: {'met' if is_met else 'missed'}"


def aims(given, load, protocol, runs, cpu_ratios):
    """The aims of a load, and whether ours meets them."""
    if not given.c_library:
        return ""
    if load == LONE:
        p50_us = statistics.median(run.p50_us for run in runs)
        return doubt(runs) or judged(f"p50 ≤ {AIM_LONE_P50_US} µs", p50_us <= AIM_LONE_P50_US)
    if load != AIM_RATE:
        return ""
    sleeps = statistics.median(run.used["sleeps"] for run in runs)
    aim = AIM_CPU[protocol]
    return (judged(f"CPU ≥ {aim}", statistics.median(cpu_ratios) >= aim) + "; "
            + judged(f"≤ {AIM_SLEEPS} sleeps", sleeps <= AIM_SLEEPS))


def ratio_table(given, load, found):
    """Triton's figures over ours, round by round."""
    print("| protocol, ours | CPU | switches | p50 | p99 | aims |\n|---|---|---|---|---|---|")
    for protocol in PROTOCOLS:
        theirs = found[protocol, TRITON]
        for name in OURS:
            ours = found[protocol, name]
            ratios = lambda of: [of(their) / of(our) for their, our in zip(theirs, ours) if of(our) > 0]
            latency = lambda of: doubt([*ours, *theirs]) or shown(ratios(of), 2)
            used = lambda name: ratios(lambda run: run.used[name])
            print(f"| {protocol}, {name} | {shown(used('cpu'), 2)} | {shown(used('switches'), 2)} "
                  f"| {latency(lambda run: run.p50_us)} | {latency(lambda run: run.p99_us)} "
                  f"| {aims(given, load, protocol, ours, used('cpu'))} |")
    print()


def at_rest(given, servers):
    print("### At rest\n\n| server | CPU, µs a second | switches a second | sleeps a second | spinning, µs a second |")
    print("|---|---|---|---|---|")
    for name, server in servers.items():
        before, begin = server.figures(), time.perf_counter()
        time.sleep(given.seconds)
        used, seconds = difference(before, server.figures()), time.perf_counter() - begin
        a_second = lambda name: f"{used[name] / seconds:.1f}" if name in used else ""
        print(f"| {name} | {a_second('cpu')} | {a_second('switches')} | {a_second('sleeps')} | {a_second('spun')} |")


def start_all(given, directory, servers):
    """Starts the servers, of which each that is up is in `servers` even if the next one fails."""
    backends = directory / "backends"
    if given.c_library or given.triton:
        official_server.build_copied(backends)
    def repository(backend):
        made = directory / backend
        (made / "m/1").mkdir(parents=True, exist_ok=True)
        (made / "m/config.pbtxt").write_text(MODEL.format(backend))
        return made
    ours = repository(official_server.COPIED if given.c_library else "identity")
    words = [given.binary, *([f"--backend-directory={backends}"] if given.c_library else []), *given.server_flag]
    for name in OURS:
        servers[name] = Server([*words, name], {}, ours, given.server_cores, True)
    if given.triton:
        words = [str(given.triton), f"--backend-directory={backends}"]
        environment = {"LD_LIBRARY_PATH": str(official_server.libraries(given.triton))}
        theirs = repository(official_server.COPIED)
        servers[TRITON] = Server(words, environment, theirs, given.server_cores, False)


def cores(text):
    return {int(core) for core in text.split(",")}


def triton(text):
    server = official_server.program(os.path.abspath(text))
    if not server.exists():
        raise argparse.ArgumentTypeError(f"there is no {server}; run the tests once, which unpack the wheel")
    return server


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", type=os.path.abspath)
    parser.add_argument("--triton", type=triton, metavar="DIR", help="the unpacked wheel of the official server")
    parser.add_argument("--c-library", action="store_true", help="our models are of the C library, too")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=2, help="of each run")
    parser.add_argument("--rates", type=int, nargs="+", default=[1_000, 10_000, 30_000], help="requests a second")
    parser.add_argument("--lone-requests", type=int, default=10_000, help="of the one client in each run; 0 for none")
    parser.add_argument("--elements", type=int, default=16, help="of the tensor, 4 bytes each")
    parser.add_argument("--threads", type=int, default=1, help="of the client")
    parser.add_argument("--server-flag", action="append", default=[], help="of both servers of ours")
    parser.add_argument("--server-cores", type=cores)
    parser.add_argument("--client-cores", type=cores)
    given = parser.parse_args()
    loads = [*given.rates, *([LONE] if given.lone_requests else [])]
    with tempfile.TemporaryDirectory(prefix="partial-load-") as directory:
        servers = {}
        try:
            start_all(given, pathlib.Path(directory), servers)
            print(f"{platform.machine()}, Linux {platform.release()}, {os.cpu_count()} cores; {given.rounds} rounds of "
                  f"{given.seconds:g} s; servers on cores {given.server_cores or 'all'}, client on "
                  f"{given.client_cores or 'all'} with {given.threads} thread(s); our model is "
                  f"{'the C library' if given.c_library else 'built in'}; flags of our servers: "
                  f"{' '.join(given.server_flag) or 'none'}\n")
            for load in loads:
                found = {}
                for round_ in range(given.rounds):
                    for protocol in PROTOCOLS:
                        for name, server in servers.items():
                            print(f"round {round_ + 1}: {load}, {protocol}, {name}", file=sys.stderr)
                            run = Run(given, server, protocol, load, directory)
                            found.setdefault((protocol, name), []).append(run)
                print(f"### {LONE.capitalize() if load == LONE else f'{load} requests a second'}\n")
                table(found)
                if given.triton:
                    print("Triton's over ours:\n")
                    ratio_table(given, load, found)
                sys.stdout.flush()
            at_rest(given, servers)
        finally:
            for server in servers.values():
                server.stop()


if __name__ == "__main__":
    main()
